/* Chat encodings: messages to token ids, one table row per DeepSeek generation.
 *
 * Markup becomes its added token; a message's own text is always encoded as plain text, so nobody
 * forges a turn by typing <｜User｜>. Adjacent plain pieces are joined before encoding, so the ids
 * equal those of the official template wherever the text holds no markup. */
#ifndef HD_TEXT_CHAT_H
#define HD_TEXT_CHAT_H

#include "text/tokenizer.h"

enum hd_role { HD_ROLE_SYSTEM, HD_ROLE_USER, HD_ROLE_ASSISTANT, HD_ROLE_TOOL };

typedef struct hd_message {
    enum hd_role role;
    hd_str content;
} hd_message;

typedef struct hd_chat_encoding hd_chat_encoding;

/* By name ("deepseek_v3.1"); NULL when there is none. */
const hd_chat_encoding *hd_chat_by_name(const char *name);
/* The one whose markers are all added tokens of the tokenizer; NULL when there is none. */
const hd_chat_encoding *hd_chat_for(const hd_tokenizer *t);
const char *hd_chat_name(const hd_chat_encoding *e);
bool hd_chat_can_think(const hd_chat_encoding *e);

/* Appends the prompt's ids, bos included (once; the caller adds none). When the last message is an
 * assistant message with continue_final it is left open (no end token) and generation continues it;
 * otherwise the generation prefix is written (but for no_generation_prefix), as the official
 * template does: not after tool messages, which the model continues directly. *in_reasoning:
 * whether the output begins inside reasoning. HD_E_INVALID names the message that cannot be encoded
 * (index and role): no messages, an unknown role, an assistant's message last without
 * continue_final, or another's with it. HD_E_UNSUPPORTED names the marker that the tokenizer lacks.
 * HD_E_TOO_LARGE: over 1 GiB of text.
 */
typedef struct hd_chat_prompt {
    const hd_message *message; /* [n_message] */
    size_t n_message;
    bool thinking;
    bool continue_final;
    bool no_generation_prefix; /* the messages alone; an assistant's may be the last, closed */
} hd_chat_prompt;
HD_MUST_CHECK hd_status hd_chat_encode(const hd_chat_encoding *e, const hd_tokenizer *t,
                                       const hd_chat_prompt *p, hd_ids *out, bool *in_reasoning);

#endif
