/* The batch: what one step computes. The only value that crosses from the scheduler down to the
 * model and its device: flat integer arrays, no tokens' meaning, no pointers into other structures.
 *
 * Rows are tokens whose hidden state and KV are computed. Rows of one sequence are adjacent and in
 * ascending position; sequences follow one another. Row r of sequence s at position p attends to
 * positions 0..p of its sequence, which lie in pages page[seq_page0[s] + p / page_tok] at offset
 * p % page_tok. Tables are ragged: each sequence has its own page count.
 *
 * Before its rows are computed, pages are copied, one after the other. They are copied even when
 * the step then fails, unless the device broke.
 *
 * A step may compute some layers of its rows: layer0 .. layer1 - 1. Later steps with the same rows
 * compute those that follow, up to the last, whose outputs are wanted; only then is the rows' KV
 * complete. Steps of all layers may come in between, and such as compute some layers of others:
 * chunk_ix tells whose.
 *
 * A token may be one that only the device knows yet: hd_token_of_slot(k) stands for the last token
 * that was sampled in slot k, and then is the last row of its sequence. */
#ifndef HD_BASE_BATCH_H
#define HD_BASE_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How multi-head latent attention is evaluated for a row: over the latent cache directly, or with
 * K and V expanded from it. Recorded per position so that a recomputation repeats it bit for bit.
 */
enum hd_mla_form { HD_MLA_ABSORBED = 0, HD_MLA_EXPANDED = 1 };

/* Names the token that was last sampled in a slot; negative, so that it is no token's id. */
static inline int32_t hd_token_of_slot(int32_t slot) { return -1 - slot; }
static inline int32_t hd_slot_of_token(int32_t token) { return -1 - token; }

/* How the token of an output row is chosen (the op `sample` in dev/op.h says what it means). */
typedef struct hd_draw {
    double u;          /* uniform in [0, 1): what decides */
    float temperature; /* 0: the largest logit */
    float min_x;       /* ln(min_p): least (logit - max) / temperature */
    float top_p;       /* 1: no bound */
    int32_t top_k;     /* 0: no bound */
    bool is_host;      /* the host chooses: the row's logits are wanted there */
} hd_draw;

enum {
    HD_BATCH_COPY_MAX = 48,
    HD_BATCH_CHUNKS = 2 /* rows of which some layers are computed, at once */
};

typedef struct hd_batch {
    int n_row, n_seq, n_page, n_out, n_copy;
    int layer0, layer1; /* both 0: all layers */
    int chunk_ix;       /* of a step of some layers, in [0, HD_BATCH_CHUNKS); else 0 */
    int page_tok;       /* tokens a page */
    int32_t *token;     /* [n_row] token id, or hd_token_of_slot of its sequence's slot */
    int32_t *pos;       /* [n_row] position in its sequence */
    int32_t *row_seq;   /* [n_row] index into the sequence arrays */
    int32_t *kv_row; /* [n_row] cache row this token's KV is written to: page * page_tok + offset */
    uint8_t *form;   /* [n_row] enum hd_mla_form */
    int32_t *seq_slot;  /* [n_seq] the scheduler's slot of the sequence */
    int32_t *seq_row0;  /* [n_seq + 1] first row of each sequence */
    int32_t *seq_page0; /* [n_seq + 1] first entry of each sequence in page[] */
    int32_t *page;      /* [n_page] page ids */
    int32_t *out_row;   /* [n_out] rows whose logits are wanted, ascending; room for n_row_max */
    int32_t copy_from[HD_BATCH_COPY_MAX], copy_to[HD_BATCH_COPY_MAX]; /* [n_copy] page ids */
    hd_draw *draw; /* [n_out] for whoever samples; the scheduler leaves it alone */
    int n_row_max, n_seq_max, n_page_max; /* room */
} hd_batch;

/* Allocates the arrays once. */
void hd_batch_init(hd_batch *b, int n_row_max, int n_seq_max, int n_page_max, int page_tok);
void hd_batch_fini(hd_batch *b);
void hd_batch_clear(hd_batch *b);
/* All but draws; `to` has room. */
void hd_batch_copy(hd_batch *to, const hd_batch *from);
/* The arrays alone, to the front of those of `to`, whose counts stay; draws and copies are left. */
void hd_batch_copy_arrays(hd_batch *to, const hd_batch *from);
/* Asserts every invariant written above. */
void hd_batch_check(const hd_batch *b);

#endif
