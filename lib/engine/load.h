/* Opening what an engine needs, also for the tools that work without one (tokenize, eval). */
#ifndef HD_ENGINE_LOAD_H
#define HD_ENGINE_LOAD_H

#include "file/checkpoint.h"
#include "hadal.h"
#include "text/chat.h"

/* The model a configuration names. */
HD_MUST_CHECK hd_status hd_engine_open_checkpoint(const hd_engine_config *c, hd_checkpoint **out);
/* The tokenizer at path (a tokenizer.json, a model folder, a GGUF), or with path NULL that of the
 * model; *out NULL when the model has none. */
HD_MUST_CHECK hd_status hd_engine_open_tokenizer(const hd_checkpoint *model, const char *path,
                                                 hd_tokenizer **out);
/* The chat encoding that c names, or else the one of the model's (or the given tokenizer's) chat
 * template, architecture and tokens; *out NULL: there is none that fits. why: the reason, in words.
 * HD_E_INVALID lists the known names. */
enum { HD_CHAT_WHY_MAX = 160 };
HD_MUST_CHECK hd_status hd_engine_choose_chat(const hd_checkpoint *model, const hd_engine_config *c,
                                              const hd_tokenizer *t, const hd_chat_encoding **out,
                                              char why[HD_CHAT_WHY_MAX]);

#endif
