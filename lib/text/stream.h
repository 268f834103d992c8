/* From generated tokens to text that may be shown: whole UTF-8 characters, reasoning split from
 * content, stop strings honoured.
 *
 * Bytes that could still become a longer character, a marker or a stop string are held back until
 * they are resolved. Any grouping of the same tokens gives the same text in all.
 *
 * UTF-8: the maximal invalid prefix becomes one U+FFFD, as Unicode recommends.
 * Reasoning: ends at the first </think>, which is not shown; content is exactly what follows. An
 * output that itself begins with <think> begins inside reasoning; that marker and one newline after
 * it are not shown. The markers are the tokens of these texts where the tokenizer has them (then
 * the same text spelt by other tokens is only text), else the texts.
 * Stop strings: the one that is complete first ends the text; of those complete with the same
 * character, the longest. They are sought in the text as generated: in reasoning, in content and
 * across the markers. Shown is what lies before it; with include_stop the stop string as well.
 *
 * One owner at a time. Allocates only in hd_stream_new. */
#ifndef HD_TEXT_STREAM_H
#define HD_TEXT_STREAM_H

#include "text/tokenizer.h"

typedef struct hd_stream hd_stream;

typedef struct hd_stream_options {
    bool in_reasoning;    /* output begins inside reasoning */
    bool split_reasoning; /* false: everything is content, markers included */
    bool keep_special;    /* show special tokens (skip_special_tokens: false) */
    bool include_stop;    /* the stop string stays in the text */
    int min_tokens;       /* stop strings are not sought in the text of the first so many */
    const hd_str *stop;   /* copied */
    size_t n_stop;
} hd_stream_options;

enum { HD_STREAM_STOP_MAX = 16, HD_STREAM_STOP_BYTES_MAX = 1024 };

/* t is borrowed. HD_E_INVALID: more than 16 stop strings, or one that is not 1..1024 bytes of valid
 * UTF-8. */
HD_MUST_CHECK hd_status hd_stream_new(const hd_tokenizer *t, const hd_stream_options *o,
                                      hd_stream **out);
void hd_stream_free(hd_stream *s); /* accepts NULL */

/* Text that became certain with this call; both may be empty, each is valid UTF-8. Where both are
 * not, reasoning comes first. Valid until the next call. After a stop or the end, nothing comes. */
typedef struct hd_stream_out {
    hd_str reasoning, content;
    bool stopped; /* a stop string matched: nothing more will come */
    int stop_ix;  /* which one, when stopped */
    /* Bytes taken in so far, and how many of them are decided: shown, or markers. After a stop,
     * n_out is where the text was cut. Invalid bytes count as the U+FFFD they become. */
    size_t n_in, n_out;
} hd_stream_out;
hd_stream_out hd_stream_feed(hd_stream *s, int32_t token);
/* The end of generation: held-back text is released, an incomplete character becomes U+FFFD. */
hd_stream_out hd_stream_end(hd_stream *s);
/* Whether the tokens fed so far end inside reasoning. */
bool hd_stream_in_reasoning(const hd_stream *s);

#endif
