/* The ops: which kernels they are made of. */
#include "cuda/cuda.h"

/* y[n_row, ldy] = W x for the rows of x[n_row, ldx]. */
static hd_cuda_mul mul_of(const hd_cuda *c, const hd_weight *w, const float *x, float *y,
                          int n_row) {
    const hd_cuda_mat *m = hd_cuda_mat_of(w);
    return (hd_cuda_mul){.w = *m,
                         .x = x,
                         .ldx = (size_t)m->n_in,
                         .y = y,
                         .ldy = (size_t)m->n_out,
                         .n_row = n_row,
                         .is_rounded = hd_cuda_rounds(c, m->format)};
}

static void run_mul(hd_cuda *c, const hd_weight *w, const float *x, float *y, int n_row,
                    enum hd_cuda_into into) {
    hd_cuda_mul m = mul_of(c, w, x, y, n_row);
    m.into = into;
    hd_cuda_run_mul(&m, 1, c->stream);
}

static void norm(hd_cuda *c, hd_cuda_norm a) { hd_cuda_run_norm(&a, c->stream); }

void hd_cuda_now_embed(void *ctx, const struct hd_op_embed *args) {
    hd_cuda *c = ctx;
    hd_cuda_run_embed(args, hd_cuda_mat_of(args->table), c->stream);
}

void hd_cuda_now_mla_qkv(void *ctx, const struct hd_op_mla_qkv *args) {
    hd_cuda *c = ctx;
    const struct hd_op_mla_qkv *a = args;
    int n_row = a->batch->n_row;
    HD_ASSERT(n_row <= c->limits.n_row);
    if (hd_cuda_many_mla_qkv(c, args)) return;
    norm(c, (hd_cuda_norm){.x = a->x,
                           .w = a->norm,
                           .out = c->normed,
                           .eps = a->eps,
                           .n_row = n_row,
                           .n = a->d_model});
    const hd_cuda_mul in[2] = {
        mul_of(c, a->q ? a->q : a->q_a, c->normed, a->q ? a->q_out : c->a, n_row),
        mul_of(c, a->kv_a, c->normed, c->kv, n_row)};
    hd_cuda_run_mul(in, 2, c->stream);
    if (!a->q) {
        norm(c, (hd_cuda_norm){.x = c->a,
                               .w = a->q_a_norm,
                               .out = c->a,
                               .eps = a->lora_eps,
                               .n_row = n_row,
                               .n = a->q_a->n_out});
        run_mul(c, a->q_b, c->a, a->q_out, n_row, HD_CUDA_STORE);
    }
    hd_cuda_run_mla_finish(a, c->kv, c->kv_lost, c->stream);
}

void hd_cuda_now_gqa_qkv(void *ctx, const struct hd_op_gqa_qkv *args) {
    hd_cuda *c = ctx;
    const struct hd_op_gqa_qkv *a = args;
    int n_row = a->batch->n_row;
    HD_ASSERT(n_row <= c->limits.n_row && a->k->n_out <= c->limits.n_kv);
    if (hd_cuda_many_gqa_qkv(c, args)) return;
    norm(c, (hd_cuda_norm){.x = a->x,
                           .w = a->norm,
                           .out = c->normed,
                           .eps = a->eps,
                           .n_row = n_row,
                           .n = a->d_model});
    float *k = c->kv, *v = c->kv + (size_t)n_row * (size_t)a->k->n_out;
    run_mul(c, a->q, c->normed, a->q_out, n_row, HD_CUDA_STORE);
    const hd_cuda_mul kv[2] = {mul_of(c, a->k, c->normed, k, n_row),
                               mul_of(c, a->v, c->normed, v, n_row)};
    hd_cuda_run_mul(kv, 2, c->stream);
    hd_cuda_run_gqa_finish(a, k, v, c->kv_lost, c->stream);
}

void hd_cuda_now_proj_add(void *ctx, const struct hd_op_proj_add *args) {
    if (hd_cuda_many_proj_add(ctx, args)) return;
    run_mul(ctx, args->w, args->a, args->x, args->n_row,
            args->is_partial ? HD_CUDA_STORE : HD_CUDA_ADD);
}

/* out = silu(gate x) * (up x) */
static hd_cuda_mul gated(const hd_cuda *c, const hd_weight *gate, const hd_weight *up,
                         const float *x, float *out, int n_row) {
    hd_cuda_mul m = mul_of(c, gate, x, out, n_row);
    m.up = *hd_cuda_mat_of(up);
    return m;
}

void hd_cuda_now_ffn(void *ctx, const struct hd_op_ffn *args) {
    hd_cuda *c = ctx;
    HD_ASSERT(args->n_row <= c->limits.n_row);
    if (hd_cuda_many_ffn(c, args)) return;
    norm(c, (hd_cuda_norm){.x = args->x,
                           .w = args->norm,
                           .out = c->normed,
                           .eps = args->eps,
                           .n_row = args->n_row,
                           .n = args->d_model});
    hd_cuda_mul in = gated(c, args->gate, args->up, c->normed, c->a, args->n_row);
    hd_cuda_run_mul(&in, 1, c->stream);
    run_mul(c, args->down, c->a, args->x, args->n_row,
            args->is_partial ? HD_CUDA_STORE : HD_CUDA_ADD);
}

void hd_cuda_now_route(void *ctx, const struct hd_op_route *args) {
    hd_cuda *c = ctx;
    HD_ASSERT(args->n_row <= c->limits.n_row && args->n_expert <= c->limits.n_expert);
    norm(c, (hd_cuda_norm){.x = args->x,
                           .w = args->norm,
                           .out = args->normed,
                           .eps = args->eps,
                           .n_row = args->n_row,
                           .n = args->d_model});
    hd_cuda_mul score = mul_of(c, args->router, args->normed, c->score, args->n_row);
    score.is_rounded = false; /* a choice is discontinuous */
    hd_cuda_run_mul(&score, 1, c->stream);
    hd_cuda_run_select(args, c->score, c->stream);
}

void hd_cuda_now_moe(void *ctx, const struct hd_op_moe *args) {
    hd_cuda *c = ctx;
    const struct hd_op_moe *a = args;
    int n_expert = a->gate->n_mat, n_pick = a->n_row * a->n_used;
    HD_ASSERT(a->n_row <= c->limits.n_row && a->n_used <= c->limits.n_used);
    HD_ASSERT(n_expert <= c->limits.n_expert);
    if (hd_cuda_many_moe(c, args)) return;
    bool is_few = n_pick <= n_expert * HD_CUDA_MANY_ROWS / 2; /* rows of an expert, about */
    int tile_rows = is_few ? HD_CUDA_FEW_ROWS : HD_CUDA_MANY_ROWS;
    hd_cuda_run_sort(&(hd_cuda_sort){.expert = a->expert,
                                     .n_row = a->n_row,
                                     .n_used = a->n_used,
                                     .n_expert = n_expert,
                                     .expert0 = a->expert0,
                                     .tile_rows = tile_rows,
                                     .row_of = c->row_of,
                                     .slot_of = c->slot_of,
                                     .tile = c->tile,
                                     .n_tile = c->n_tile},
                     c->stream);
    int n_busy = n_pick < n_expert ? n_pick : n_expert;
    /* The routed experts and the shared one side by side. */
    int n_mul = a->shared_gate ? 2 : 1;
    hd_cuda_mul m[2] = {gated(c, a->gate, a->up, a->normed, c->hidden, n_pick)};
    m[0].x_row = c->row_of;
    m[0].tile = c->tile, m[0].n_tile = c->n_tile, m[0].tile_rows = tile_rows;
    m[0].n_tile_max = n_pick / tile_rows + n_busy;
    if (a->shared_gate) m[1] = gated(c, a->shared_gate, a->shared_up, a->normed, c->a, a->n_row);
    hd_cuda_run_mul(m, n_mul, c->stream);
    hd_cuda_mul down = mul_of(c, a->down, c->hidden, c->picked, n_pick);
    down.tile = m[0].tile, down.n_tile = m[0].n_tile;
    down.tile_rows = tile_rows, down.n_tile_max = m[0].n_tile_max;
    m[0] = down;
    if (a->shared_gate) m[1] = mul_of(c, a->shared_down, c->a, c->shared, a->n_row);
    hd_cuda_run_mul(m, n_mul, c->stream);
    hd_cuda_run_combine(&(hd_cuda_combine){.y = c->picked,
                                           .weight = a->weight,
                                           .shared = a->shared_gate ? c->shared : NULL,
                                           .slot_of = c->slot_of,
                                           .is_partial = a->is_partial,
                                           .x = a->x,
                                           .n_row = a->n_row,
                                           .n_used = a->n_used,
                                           .n = a->d_model},
                        c->stream);
}

void hd_cuda_now_head(void *ctx, const struct hd_op_head *args) {
    hd_cuda *c = ctx;
    HD_ASSERT(args->n_out <= c->limits.n_out || args->n_out <= c->limits.n_row);
    if (hd_cuda_many_head(c, args)) return;
    norm(c, (hd_cuda_norm){.x = args->x,
                           .ix = args->row,
                           .w = args->norm,
                           .out = c->normed,
                           .eps = args->eps,
                           .n_row = args->n_out,
                           .n = args->d_model});
    run_mul(c, args->w, c->normed, args->logits, args->n_out, HD_CUDA_STORE);
}

void hd_cuda_now_sample(void *ctx, const struct hd_op_sample *args) {
    hd_cuda *c = ctx;
    HD_ASSERT(args->batch == &c->batch && args->n_vocab <= HD_DRAW_VOCAB_MAX);
    hd_cuda_run_sample(args, c->stream);
}
