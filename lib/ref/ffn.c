/* Dense feed-forward and the projection behind attention, with their residual additions. */
#include "ref/ref.h"

static void add_rows(float *x, const float *y, size_t n, bool is_partial) {
    for (size_t i = 0; i < n; i++) x[i] = is_partial ? y[i] : x[i] + y[i];
}

void hd_ref_op_proj_add(void *ctx, const struct hd_op_proj_add *a) {
    struct hd_ref *r = ctx;
    hd_ref_matmul(r, a->w, 0, a->n_row, a->a, r->block_out);
    add_rows(a->x, r->block_out, (size_t)a->n_row * (size_t)a->w->n_out, a->is_partial);
}

void hd_ref_op_ffn(void *ctx, const struct hd_op_ffn *a) {
    struct hd_ref *r = ctx;
    size_t d = (size_t)a->d_model, n_row = (size_t)a->n_row;
    for (size_t row = 0; row < n_row; row++)
        hd_ref_rms_norm(a->x + row * d, a->norm, a->eps, a->d_model, r->normed + row * d);
    hd_ref_matmul(r, a->gate, 0, a->n_row, r->normed, r->gate);
    hd_ref_matmul(r, a->up, 0, a->n_row, r->normed, r->up);
    for (size_t i = 0; i < n_row * (size_t)a->gate->n_out; i++)
        r->gate[i] = hd_ref_silu(r->gate[i]) * r->up[i];
    hd_ref_matmul(r, a->down, 0, a->n_row, r->gate, r->block_out);
    add_rows(a->x, r->block_out, n_row * d, a->is_partial);
}
