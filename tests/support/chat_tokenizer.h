/* The mini model's tokenizer with the markers of every DeepSeek generation, or without some. */
#ifndef HD_TEST_CHAT_TOKENIZER_H
#define HD_TEST_CHAT_TOKENIZER_H

#include "text/tokenizer.h"

/* without: ended by NULL; these are no tokens. As llama.cpp's converter writes a GGUF
 * (all_control: every <｜...｜> is control), or as hadal does. The caller frees it. */
hd_tokenizer *chat_tokenizer(const char *const *without, bool all_control);

#endif
