/* Chat encodings: messages to token ids, one table row per DeepSeek generation.
 *
 * Markup becomes its added token; a message's own text is always encoded as plain text, so nobody
 * forges a turn by typing <｜User｜>. Adjacent plain pieces are joined before encoding, so the ids
 * equal those of the official template wherever the text holds no markup. */
#ifndef HD_TEXT_CHAT_H
#define HD_TEXT_CHAT_H

#include "base/chat.h"
#include "text/tokenizer.h"

typedef struct hd_chat_encoding hd_chat_encoding;

/* By name ("deepseek_v3.1") or another name of it; NULL when there is none. */
const hd_chat_encoding *hd_chat_by_name(const char *name);
/* All of them, from 0; NULL past the end. */
const hd_chat_encoding *hd_chat_at(size_t ix);
/* Their names, ", " between; cut to room with its NUL. */
void hd_chat_names(char *out, size_t room);
/* The first token that the encoding needs and the tokenizer has not, or NULL. */
const char *hd_chat_missing_marker(const hd_chat_encoding *e, const hd_tokenizer *t);

/* What tells which encoding a model was trained on. */
typedef struct hd_chat_evidence {
    const hd_tokenizer *tokenizer;
    hd_str arch;          /* GGUF's general.architecture, or config.json's model_type */
    hd_str name;          /* what the model calls itself */
    hd_str chat_template; /* Jinja text; empty: it brings none */
} hd_chat_evidence;
/* The encoding, or NULL, and in why[room] the reason in words. The template decides by what it
 * writes; without one (V3.2 and V4 ship none) the tokenizer's tokens and the architecture. */
const hd_chat_encoding *hd_chat_choose(const hd_chat_evidence *v, char *why, size_t room);

const char *hd_chat_name(const hd_chat_encoding *e);
const char *hd_chat_models(const hd_chat_encoding *e); /* it is for: "V3.1, V3.1-Terminus" */
bool hd_chat_can_think(const hd_chat_encoding *e);
bool hd_chat_thinks_by_default(const hd_chat_encoding *e); /* on DeepSeek's own servers */
bool hd_chat_always_thinks(const hd_chat_encoding *e);
bool hd_chat_can_call_tools(const hd_chat_encoding *e);
/* Whether it has a text that tells the model the form of its answer. */
bool hd_chat_has_response_format(const hd_chat_encoding *e);
/* Whether the prompt holds the reasoning of messages with tool calls after the last user's. */
bool hd_chat_keeps_reasoning(const hd_chat_encoding *e);
/* Tokens that end a chat answer besides eos, as many as the tokenizer has of them: a turn of the
 * user that the model would invent. Returns their count. */
enum { HD_CHAT_END_MAX = 4 };
int hd_chat_end_tokens(const hd_chat_encoding *e, const hd_tokenizer *t,
                       int32_t out[HD_CHAT_END_MAX]);

/* Appends the prompt's ids, bos included (once; the caller adds none). When the last message is an
 * assistant message with continue_final it is left open (no end token) and generation continues it,
 * its reasoning when it has no content; otherwise the generation prefix is written (but for
 * no_generation_prefix), as the official template does: not after tool messages, which the model
 * continues directly. With HD_TOOL_REQUIRED the beginning of a call follows: up to the name, with
 * forced_tool up to the arguments.
 * HD_E_INVALID names the message or the tool that cannot be encoded. HD_E_UNSUPPORTED names what
 * the encoding has not, or the marker that the tokenizer lacks. HD_E_TOO_LARGE: over 1 GiB of text.
 */
HD_MUST_CHECK hd_status hd_chat_encode(const hd_chat_encoding *e, const hd_tokenizer *t,
                                       const hd_chat_prompt *p, hd_ids *out, hd_chat_start *start);

/* Appends the ids of a text with a gap between prefix and suffix, which the model is to fill:
 * bos, <｜fim▁begin｜> prefix <｜fim▁hole｜> suffix <｜fim▁end｜>; both texts are plain.
 * HD_E_UNSUPPORTED names the token that the tokenizer lacks. */
HD_MUST_CHECK hd_status hd_chat_fim(const hd_tokenizer *t, hd_str prefix, hd_str suffix,
                                    hd_ids *out);
bool hd_chat_has_fim(const hd_tokenizer *t);

#endif
