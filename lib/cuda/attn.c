/* The ops of attention: which kernels they are made of. */
#include "cuda/cuda.h"

/* Whether units of attention get a task each: few rows, long sequences, room for the parts. */
static float *part_of(const hd_cuda *c, const hd_cuda_attn *a) {
    size_t floats = (size_t)a->n_row * (size_t)a->n_unit * (size_t)a->n_head;
    floats *= (size_t)a->n_v + 2;
    bool is_wide = a->n_row * a->n_head_kv >= c->prop.multiProcessorCount;
    return a->n_unit > 1 && !is_wide && floats <= c->part_floats ? c->part : NULL;
}

/* For every head h: y[r, h] = W_h x[r, h]; a head has x_width floats in x. */
static void run_heads(hd_cuda *c, const hd_weight *w, const float *x, size_t x_width, float *y,
                      int n_row) {
    const hd_cuda_mat *m = hd_cuda_mat_of(w);
    size_t n_head = (size_t)m->n_mat, y_width = (size_t)m->n_out;
    hd_cuda_run_mul(&(hd_cuda_mul){.w = *m,
                                   .x = x,
                                   .ldx = n_head * x_width,
                                   .x_mat = x_width,
                                   .y = y,
                                   .ldy = n_head * y_width,
                                   .y_mat = y_width,
                                   .n_row = n_row,
                                   .is_rounded = hd_cuda_rounds(c, m->format)},
                    1, c->stream);
}

/* Rows row0 .. row0 + n of the batch. Both forms are computed as absorbed: equal but for rounding,
 * and the same for a position however often it is computed. */
static void attend_wave(hd_cuda *c, const struct hd_op_mla_attn *a, int row0, int n) {
    size_t h = (size_t)a->n_head, q_width = (size_t)a->n_nope + (size_t)a->n_rope;
    size_t n_c = (size_t)a->n_c, n_v = (size_t)a->n_v;
    const float *q = a->q + (size_t)row0 * h * q_width;
    run_heads(c, a->k_b, q, q_width, c->q_abs, n);
    hd_cuda_attn attn = {.q0 = c->q_abs,
                         .ldq0 = n_c,
                         .n_q0 = a->n_c,
                         .q1 = q + a->n_nope,
                         .ldq1 = q_width,
                         .keys = a->cache,
                         .values = a->cache,
                         .out = c->u,
                         .pos = a->batch->pos + row0,
                         .row_seq = a->batch->row_seq + row0,
                         .seq_page0 = a->batch->seq_page0,
                         .page = a->batch->page,
                         .page_tok = a->batch->page_tok,
                         .ld_kv = n_c + (size_t)a->n_rope,
                         .format = a->kv_format,
                         .n_key = a->n_c + a->n_rope,
                         .n_v = a->n_c,
                         .n_head = a->n_head,
                         .n_head_kv = 1,
                         .n_row = n,
                         .n_unit = c->n_unit,
                         .scale = a->scale};
    attn.part = part_of(c, &attn);
    hd_cuda_run_attn(&attn, c->stream);
    run_heads(c, a->v_b, c->u, n_c, a->out + (size_t)row0 * h * n_v, n);
}

void hd_cuda_now_mla_attn(void *ctx, const struct hd_op_mla_attn *args) {
    hd_cuda *c = ctx;
    int n_row = args->batch->n_row;
    HD_ASSERT(n_row <= c->limits.n_row && args->n_head <= c->limits.n_head);
    HD_ASSERT(args->n_c <= c->limits.n_c && args->batch == &c->batch);
    for (int row0 = 0; row0 < n_row; row0 += c->n_wave) {
        int n = n_row - row0 < c->n_wave ? n_row - row0 : c->n_wave;
        attend_wave(c, args, row0, n);
    }
}

void hd_cuda_now_gqa_attn(void *ctx, const struct hd_op_gqa_attn *args) {
    hd_cuda *c = ctx;
    const struct hd_op_gqa_attn *a = args;
    HD_ASSERT(a->batch->n_row <= c->limits.n_row && a->batch == &c->batch);
    hd_cuda_attn attn = {.q0 = a->q,
                         .ldq0 = (size_t)a->d_head,
                         .n_q0 = a->d_head,
                         .keys = a->keys,
                         .values = a->values,
                         .out = a->out,
                         .pos = a->batch->pos,
                         .row_seq = a->batch->row_seq,
                         .seq_page0 = a->batch->seq_page0,
                         .page = a->batch->page,
                         .page_tok = a->batch->page_tok,
                         .ld_kv = (size_t)a->n_head_kv * (size_t)a->d_head,
                         .format = a->kv_format,
                         .n_key = a->d_head,
                         .n_v = a->d_head,
                         .n_head = a->n_head,
                         .n_head_kv = a->n_head_kv,
                         .n_row = a->batch->n_row,
                         .n_unit = c->n_unit,
                         .scale = a->scale};
    attn.part = part_of(c, &attn);
    hd_cuda_run_attn(&attn, c->stream);
}
