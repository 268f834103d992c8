/* A model over several ranks: each holds a part of the weights, computes its part of every layer,
 * and the parts are summed (tensor parallel as in Megatron-LM, arXiv 1909.08053, section 3).
 *
 * Attention is split by heads: rows of q and of k and v (GQA), matrices of k_b and v_b (MLA), and
 * columns of the output projection, which then yields a term of x. Feed-forwards are split by their
 * hidden values: rows of gate and up, columns of down. Routed experts are split likewise, or with
 * opt.is_expert_parallel whole ones are dealt out in runs; every rank routes alike. The output
 * matrix is split by rows. So a layer has two sums over the ranks, and a step one gather. Every
 * rank holds norms, the router, the embedding table, MLA's q_a and kv_a and its latent cache (a
 * latent serves all heads); GQA's caches are split by key and value heads.
 *
 * Rank 0 adds the residual: x = ((x + term 0) + term 1) + ... on every rank, so all ranks have the
 * same bits. Experts that are dealt out are summed in ascending order within a rank, then by rank;
 * the shared one's part comes behind each rank's. Owner: the model. */
#ifndef HD_MODEL_SHARD_H
#define HD_MODEL_SHARD_H

#include "model/arch.h"

/* The piece of a tensor that a rank holds: of matrices mat0.. the rows row0.. and columns col0.. */
typedef struct hd_shard_piece {
    int mat0, n_mat;
    int64_t row0, n_row, col0, n_col;
} hd_shard_piece;

/* The whole tensor without ranks or a cut. HD_E_INVALID names tensor, size and ranks where it does
 * not divide, or where columns would divide blocks of its format. */
HD_MUST_CHECK hd_status hd_shard_piece_of(const hd_model *m, const hd_canon_tensor *t,
                                          const hd_slot *slot, hd_shard_piece *out);
/* Memory for the rank's part of the logits. */
HD_MUST_CHECK hd_status hd_shard_plan(hd_model *m);

/* ---- a forward pass ---- */

/* Whether this rank's sums leave the residual out. */
static inline bool hd_shard_is_partial(const hd_model *m) {
    return m->opt.comm && m->opt.comm->rank > 0;
}
/* The first routed expert of this rank. */
int hd_shard_expert0(const hd_model *m);
/* x [n_row, D] becomes the sum of the ranks' x. */
void hd_shard_sum(hd_model *m, int n_row, float *x);
/* Where the head writes: logits [n_out, V], or a rank's columns of it; gather completes them. */
float *hd_shard_logits(const hd_model *m, float *logits);
void hd_shard_gather(hd_model *m, int n_out, float *logits);

#endif
