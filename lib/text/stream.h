/* From generated tokens to text that may be shown: whole UTF-8 characters, reasoning split from
 * content, tool calls taken out of it, stop strings honoured.
 *
 * Bytes that could still become a longer character, a marker or a stop string are held back until
 * they are resolved. Any grouping of the same tokens gives the same text in all.
 *
 * UTF-8: the maximal invalid prefix becomes one U+FFFD, as Unicode recommends.
 * Reasoning: ends at the first </think>, which is not shown; content is exactly what follows (but
 * for encodings whose models put newlines around the marker: these are dropped). An output that
 * itself begins with <think> begins inside reasoning; that marker and one newline after it are not
 * shown. The markers are the tokens of these texts where the tokenizer has them (then the same text
 * spelt by other tokens is only text), else the texts.
 * Tool calls: see text/tool_parser.h.
 * Stop strings: the one that is complete first ends the text; of those complete with the same
 * character, the longest. They are sought in the text as generated: in reasoning, in content, in
 * calls and across the markers. Shown is what lies before it; with include_stop the stop string as
 * well.
 *
 * One owner at a time. Allocates only in hd_stream_new. */
#ifndef HD_TEXT_STREAM_H
#define HD_TEXT_STREAM_H

#include "base/chat.h"
#include "text/chat.h"

typedef struct hd_text_stream hd_stream;

/* t is borrowed. e: what the answer is written in; NULL: no chat. HD_E_INVALID: more than 16 stop
 * strings, or one that is not 1..1024 bytes of valid UTF-8. HD_E_UNSUPPORTED: tool calls are to be
 * parsed, and the encoding has none. */
HD_MUST_CHECK hd_status hd_stream_new(const hd_tokenizer *t, const hd_chat_encoding *e,
                                      const hd_text_stream_options *o, hd_stream **out);
void hd_stream_free(hd_stream *s); /* accepts NULL */

/* What became certain with this token. After a stop or the end, nothing comes. */
hd_text_out hd_stream_feed(hd_stream *s, int32_t token);
/* The end of generation: held-back text is released, an incomplete character becomes U+FFFD (or
 * nothing, where tool calls are parsed: it may be the middle of a marker). is_cut: the model had
 * not ended its answer; the arguments of an open call stay as they came. */
hd_text_out hd_stream_end(hd_stream *s, bool is_cut);
/* Whether the tokens fed so far end inside reasoning. */
bool hd_stream_in_reasoning(const hd_stream *s);

#endif
