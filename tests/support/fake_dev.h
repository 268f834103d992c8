/* A fake device: stands for the model and its KV cache under the scheduler and the loop.
 *
 * A KV row holds two hashes of the beginning it stands for: one of (salt, tokens), one of their MLA
 * forms too. Running a batch computes each row from the row of the position before it, read through
 * the sequence's page table; the next token depends on the salt and the tokens alone. So a page
 * that is wrong, stale, another's or not written yet shows up in the tokens, and at once in
 * fake_dev_verify. Pages are poisoned to begin with. */
#ifndef HD_TEST_FAKE_DEV_H
#define HD_TEST_FAKE_DEV_H

#include "base/batch.h"
#include "support/rng.h"

#include <stdint.h>

typedef struct fake_dev fake_dev;

enum { FAKE_N_VOCAB = 1000, FAKE_STOP = 0 }; /* one token in FAKE_STOP_EVERY is FAKE_STOP */
enum { FAKE_STOP_EVERY = 100 };

fake_dev *fake_dev_new(int n_page, int page_tok, int n_slot);
void fake_dev_free(fake_dev *d);

/* What the sequence in a slot begins with (tenant salt); slots start at 0. */
void fake_dev_set_salt(fake_dev *d, int slot, uint64_t salt);
/* Writes the KV of all rows and next[n_out], which later batches can name by their slot. */
void fake_dev_run(fake_dev *d, const hd_batch *b, int32_t *next);
/* A failed step: pages are copied, then garbage in all rows that it would have written. */
void fake_dev_fail(fake_dev *d, const hd_batch *b);
/* Fails the test unless the KV of the batch's sequence holds these tokens in these forms at each
 * of positions 0..n_tok-1, as its page table shows them. */
void fake_dev_verify(const fake_dev *d, const hd_batch *b, int seq_ix, const int32_t *token,
                     const uint8_t *form, int n_tok);

/* The definition: hash of a beginning, extended by a token, and the token that follows it. */
uint64_t fake_hash_begin(uint64_t salt);
uint64_t fake_hash_add(uint64_t hash, uint64_t value);
int32_t fake_next(uint64_t hash);

#endif
