/* Byte-pair merging: the bytes of one word to token ids.
 *
 * The adjacent pair with the lowest rank is merged, the leftmost among equals, until no pair has a
 * merge. O(n log n) in the word's bytes. Immutable once built; any thread. */
#ifndef HD_TEXT_BPE_H
#define HD_TEXT_BPE_H

#include "text/tokenizer.h"

typedef struct hd_bpe hd_bpe;

hd_bpe *hd_bpe_new(size_t n_merge);
void hd_bpe_free(hd_bpe *b); /* accepts NULL */
/* The token of a single byte; all 256 must be set before encoding. */
void hd_bpe_set_byte(hd_bpe *b, unsigned char byte, int32_t id);
/* The next merge in rank order; false when the pair has one already. At most n_merge calls. */
bool hd_bpe_add_merge(hd_bpe *b, int32_t left, int32_t right, int32_t merged);
size_t hd_bpe_n_merge(const hd_bpe *b);
/* All merges in rank order; pair holds n_merge rows of left and right. */
void hd_bpe_list(const hd_bpe *b, int32_t (*pair)[2]);

/* Appends the ids of a word (shorter than 2 GiB). Returns the number of pair look-ups made, by
 * which a test can see that long words cost O(n). */
size_t hd_bpe_encode(const hd_bpe *b, hd_str word, hd_ids *out);

#endif
