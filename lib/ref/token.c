/* The two ends of the network: token embedding and output logits. */
#include "ref/ref.h"

void hd_ref_op_embed(void *ctx, const struct hd_op_embed *a) {
    (void)ctx;
    for (int row = 0; row < a->n_row; row++) {
        HD_ASSERT(a->token[row] >= 0 && a->token[row] < a->table->n_out);
        hd_ref_weight_row(a->table, 0, a->token[row], a->x + (size_t)row * (size_t)a->table->n_in);
    }
}

void hd_ref_op_head(void *ctx, const struct hd_op_head *a) {
    struct hd_ref *r = ctx;
    size_t d = (size_t)a->d_model;
    for (size_t i = 0; i < (size_t)a->n_out; i++)
        hd_ref_rms_norm(a->x + (size_t)a->row[i] * d, a->norm, a->eps, a->d_model,
                        r->normed + i * d);
    hd_ref_matmul(r, a->w, 0, a->n_out, r->normed, a->logits);
}
