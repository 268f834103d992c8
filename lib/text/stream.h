/* From generated tokens to text that may be shown: whole UTF-8 characters, reasoning split from
 * content, stop strings honoured.
 *
 * Bytes that could still become a longer character, a marker (</think>) or a stop string are held
 * back until they are resolved. Any grouping of the same tokens gives the same text in all.
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
    const hd_str *stop;   /* copied */
    size_t n_stop;
} hd_stream_options;

/* t is borrowed. Stop strings: at most 16 of 1..1024 bytes (HD_E_INVALID). */
HD_MUST_CHECK hd_status hd_stream_new(const hd_tokenizer *t, const hd_stream_options *o,
                                      hd_stream **out);
void hd_stream_free(hd_stream *s); /* accepts NULL */

/* Text that became certain with this call; both may be empty. Valid until the next call. */
typedef struct hd_stream_out {
    hd_str reasoning, content;
    bool stopped; /* a stop string matched: nothing more will come */
    int stop_ix;  /* which one, when stopped */
} hd_stream_out;
hd_stream_out hd_stream_feed(hd_stream *s, int32_t token);
/* The end of generation: held-back text is released, an incomplete character becomes U+FFFD. */
hd_stream_out hd_stream_end(hd_stream *s);
bool hd_stream_in_reasoning(const hd_stream *s);

#endif
