/* Answers in OpenAI's shape, from a generation's events.
 *
 * hd_write_event gathers in the choice's buffers: the text, token ids and logprob items. A stream
 * empties them into a chunk after each event, a collected answer keeps them to the end. A token's
 * logprob item comes with the first byte of its text, so items and text line up although text may
 * be held back. Thread: the reactor's (hd_write_echo: the pool's). */
#ifndef HD_SRV_API_WRITE_H
#define HD_SRV_API_WRITE_H

#include "srv/generation.h"

/* What choice.logprobs holds: chat has items for content and for reasoning; a completion has four
 * parallel arrays. */
enum { HD_LP_CONTENT = 0, HD_LP_REASONING = 1 };
enum { HD_LP_TOKENS = 0, HD_LP_TOKEN_LOGPROBS = 1, HD_LP_TOP = 2, HD_LP_OFFSETS = 3 };

/* The beginning of an answer that the prompt already holds: the ids of a forced tool call. */
void hd_write_forced(hd_choice *ch, const int32_t *id, size_t n);
/* `top`: the event's n_top entries. May find that the text is over (ch->is_cut). */
void hd_write_event(hd_choice *ch, const hd_gen_event *ev, const hd_top_logprob *top);
/* "stop", "length" or "tool_calls"; NULL while it goes on, and when it failed or was cancelled. */
const char *hd_choice_finish(const hd_choice *ch);
/* Appends the SSE events that are due after hd_write_event; empties the choice's buffers. */
void hd_write_chunk(hd_choice *ch, bool is_last, hd_buf *out);
/* The final chunk with usage and no choices. */
void hd_write_usage_chunk(const hd_generation *g, hd_buf *out);
/* The whole answer as one JSON object. */
void hd_write_body(const hd_generation *g, hd_buf *out);
/* Puts each prompt's text in front of its choices' text. */
void hd_write_echo(hd_generation *g);

/* A token's bytes as a string: itself when it is valid UTF-8, else "bytes:\xe2\x82". */
void hd_write_token_text(hd_json *j, hd_str bytes);

#endif
