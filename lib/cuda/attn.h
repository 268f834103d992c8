/* Attention with BF16 operands: launchers of attn_prefill.cu and attn_decode.cu, what their
 * tasks are: attn_plan.h.
 *
 * Every pointer inside the launchers' structs is the device's. */
#ifndef HD_CUDA_ATTN_H
#define HD_CUDA_ATTN_H

#include "cuda/attn_plan.h"
#include "cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { HD_CUDA_STATE = 5 }; /* floats of a carried softmax, before its n_v sums */

/* ---- many rows of a sequence: flash attention (arXiv 2205.14135) over expanded keys ---- */

typedef struct hd_cuda_flash {
    const hd_cuda_flash_task *task;
    int n_task;
    const hd_cuda_flash_part
        *part; /* of sequence seq0, and so on; NULL: rows see the whole cache */
    int seq0;
    const float *q; /* [row, n_head, n_key] */
    const void *keys, *values;
    size_t ld_key, ld_head; /* elements between rows of keys, between heads of a row */
    size_t ld_value, ld_value_head;
    const int32_t *seq_page0, *page; /* of a paged cache; page NULL: rows are expanded */
    hd_kv_layout kv;                 /* of a paged cache's keys and values; else they are BF16 */
    int page_tok, n_head, n_head_kv, n_key, n_v;
    float scale;
    bool has_group_products; /* compute capability 9.0 */
    float *state; /* [row, n_head, HD_CUDA_STATE + n_v] of rows that several parts are for */
    float *out;   /* [row, n_head, n_v] */
} hd_cuda_flash;
void hd_cuda_run_flash(const hd_cuda_flash *a, cudaStream_t stream);

/* k_b and v_b as one matrix w [n_head * (n_nope + n_v), ldw] of BF16, zeros from n_c to ldw: row
 * h*(n_nope + n_v) + j gives value j of head h's key, then its value. */
typedef struct hd_cuda_unpack {
    hd_cuda_mat k_b, v_b;
    void *w;
    int ldw;
} hd_cuda_unpack;
void hd_cuda_run_unpack(const hd_cuda_unpack *a, cudaStream_t stream);

/* keys[at, h] = [W_k c | rope key | zeros], values[at, h] = W_v c, of latents that are BF16 or
 * become it. */
typedef struct hd_cuda_expand {
    const hd_cuda_expand_task *task;
    int n_task;
    const void *cache; /* rows of n_c + n_rope, aligned to 16 bytes */
    hd_kv_layout kv;
    const int32_t *seq_page0, *page;
    int page_tok;
    const void *w;              /* hd_cuda_unpack */
    void *keys, *values;        /* [*, n_head, ld_head], [*, n_head, ld_value_head], BF16 */
    int ld_head, ld_value_head; /* multiples of 8 */
    int ldw, n_head, n_nope, n_rope, n_c, n_v;
} hd_cuda_expand;
void hd_cuda_run_expand(const hd_cuda_expand *a, cudaStream_t stream);

/* ---- few rows a sequence: positions split over tasks ---- */

/* A row has its tiles of HD_CUDA_TILE_POS positions once for every 16 heads of a key head. Blocks
 * share the tiles of all rows evenly. A row that one block has whole is finished there; of others
 * each block leaves a part, and parts are merged in ascending order. With n_split every row is cut
 * into as many parts, whatever rows there are beside it (determinism level 1). */
typedef struct hd_cuda_split {
    hd_cuda_attn a; /* of a BF16 cache; part: hd_cuda_part_floats each; n_unit is not used */
    const hd_cuda_split_row *row; /* [a.n_row + 1]; a's own arrays of rows are not used */
    int n_split;                  /* 0: by the blocks' shares */
    int n_block;
    int tile_min;            /* tiles of a block's share, at least */
    bool has_group_products; /* compute capability 9.0 */
} hd_cuda_split;
void hd_cuda_run_split(const hd_cuda_split *s, cudaStream_t stream);
/* Whether there are kernels for such rows of a cache, and of such keys and values. */
bool hd_cuda_can_split(const hd_cuda_attn *a);
bool hd_cuda_can_flash(int n_key, int n_v);
/* Whether flash attention, or the expansion before it, reads such rows. */
bool hd_cuda_can_unpack(const hd_kv_layout *kv);
/* Blocks of run_split that a multiprocessor runs at a time. */
int hd_cuda_split_blocks(const hd_cuda_attn *a);
/* Floats of a part: two a block, or n_split for each row, key head and 16 of its heads. */
size_t hd_cuda_part_floats(int n_v);

#ifdef __cplusplus
}
#endif

#endif
