/* The ops with many rows, as prompts have them, where products round to BF16 anyway: activations
 * lie in scratch memory as BF16 between two kernels (a row of n takes wide(n) there), and products
 * are hd_cuda_run_gemm's. Weights of other formats are decoded to BF16 before each. Each returns
 * whether it was its business; ops.c does the others. */
#include "cuda/many.h"

#include "cuda/cuda.h"

static size_t wide(int n) { return ((size_t)n + 7) / 8 * 8; }

static bool is_mine(const hd_cuda *c, int n_row, const hd_weight *w) {
    int n_min = w->format == HD_BF16 ? HD_CUDA_GEMM_MIN : HD_CUDA_GEMM_CODED_MIN;
    if ((n_row < n_min && !c->is_expanded) || !hd_cuda_rounds(c, w->format) || w->n_in < 8)
        return false;
    if (n_row <= HD_CUDA_FP8_ROWS && hd_cuda_streams_fp8(c, w->format)) return false;
    return w->format == HD_BF16 || 2 * hd_cuda_decoded_bytes(hd_cuda_mat_of(w)) <= c->decoded_bytes;
}

static uint16_t *bf16(float *scratch) { return (uint16_t *)scratch; }

/* y[n_row, n_out] = W x */
static hd_cuda_mul product(const hd_weight *w, const uint16_t *x, float *y, int n_row) {
    const hd_cuda_mat *m = hd_cuda_mat_of(w);
    return (hd_cuda_mul){.w = *m,
                         .x_bf16 = x,
                         .ldx = wide(m->n_in),
                         .y = y,
                         .ldy = (size_t)m->n_out,
                         .n_row = n_row,
                         .is_rounded = true};
}

/* out[n_row, wide(n_out)] = silu(gate x) * (up x) */
static hd_cuda_mul gated(const hd_weight *gate, const hd_weight *up, const uint16_t *x,
                         uint16_t *out, int n_row) {
    hd_cuda_mul m = product(gate, x, NULL, n_row);
    m.up = *hd_cuda_mat_of(up);
    m.y_bf16 = out;
    m.ldy = wide(m.w.n_out);
    return m;
}

/* w as BF16: itself, or decoded into one half of the room for that. */
static hd_cuda_mat as_bf16(hd_cuda *c, const hd_cuda_mat *w, int half) {
    if (!w->data || w->format == HD_BF16) return *w;
    hd_cuda_mat out = *w;
    uint16_t *to = c->decoded + (size_t)half * (c->decoded_bytes / 4);
    hd_cuda_run_decode(w, to, c->stream);
    out.format = HD_BF16, out.data = (const unsigned char *)to, out.is_decoded = true;
    out.row_bytes = ((size_t)w->n_in + 31) / 32 * 64;
    out.mat_bytes = out.row_bytes * (size_t)w->n_out;
    out.map = hd_cuda_make_map(&out, c->map[half]) == cudaSuccess ? c->map[half] : NULL;
    return out;
}

static bool is_coded(const hd_cuda_mul *m) {
    return m->w.format != HD_BF16 || (m->up.data && m->up.format != HD_BF16);
}

/* One or two products; one at a time where there is room for one's weights. */
static void run(hd_cuda *c, const hd_cuda_mul *m, int n) {
    if (n == 2 && (is_coded(&m[0]) || is_coded(&m[1]))) {
        run(c, &m[0], 1);
        run(c, &m[1], 1);
        return;
    }
    hd_cuda_mul one = *m;
    if (n == 1) {
        one.w = as_bf16(c, &m->w, 0), one.up = as_bf16(c, &m->up, 1);
        m = &one;
    }
    hd_cuda_run_gemm(m, n, &c->gemm, c->stream);
}

static void run_into(hd_cuda *c, hd_cuda_mul m, enum hd_cuda_into into) {
    m.into = into;
    run(c, &m, 1);
}

/* n_row rows of n, normed, as BF16 to out. */
static void norm(hd_cuda *c, hd_cuda_norm a, uint16_t *out) {
    a.out_bf16 = out, a.ld_bf16 = wide(a.n);
    hd_cuda_run_norm(&a, c->stream);
}

bool hd_cuda_many_mla_qkv(hd_cuda *c, const struct hd_op_mla_qkv *a) {
    int n_row = a->batch->n_row;
    const hd_weight *q = a->q ? a->q : a->q_a;
    if (!is_mine(c, n_row, q) || !is_mine(c, n_row, a->kv_a)) return false;
    if (!a->q && !is_mine(c, n_row, a->q_b)) return false;
    uint16_t *x = bf16(c->normed);
    norm(c, (hd_cuda_norm){.x = a->x, .w = a->norm, .eps = a->eps, .n_row = n_row, .n = a->d_model},
         x);
    const hd_cuda_mul in[2] = {product(q, x, a->q ? a->q_out : c->a, n_row),
                               product(a->kv_a, x, c->kv, n_row)};
    run(c, in, 2);
    if (!a->q) {
        norm(c,
             (hd_cuda_norm){.x = c->a,
                            .w = a->q_a_norm,
                            .eps = a->lora_eps,
                            .n_row = n_row,
                            .n = a->q_a->n_out},
             x);
        run_into(c, product(a->q_b, x, a->q_out, n_row), HD_CUDA_STORE);
    }
    hd_cuda_run_mla_finish(a, c->kv, c->kv_lost, c->stream);
    return true;
}

bool hd_cuda_many_gqa_qkv(hd_cuda *c, const struct hd_op_gqa_qkv *a) {
    int n_row = a->batch->n_row;
    if (!is_mine(c, n_row, a->q) || !is_mine(c, n_row, a->k) || !is_mine(c, n_row, a->v))
        return false;
    uint16_t *x = bf16(c->normed);
    norm(c, (hd_cuda_norm){.x = a->x, .w = a->norm, .eps = a->eps, .n_row = n_row, .n = a->d_model},
         x);
    float *k = c->kv, *v = c->kv + (size_t)n_row * (size_t)a->k->n_out;
    run_into(c, product(a->q, x, a->q_out, n_row), HD_CUDA_STORE);
    const hd_cuda_mul kv[2] = {product(a->k, x, k, n_row), product(a->v, x, v, n_row)};
    run(c, kv, 2);
    hd_cuda_run_gqa_finish(a, k, v, c->kv_lost, c->stream);
    return true;
}

bool hd_cuda_many_proj_add(hd_cuda *c, const struct hd_op_proj_add *a) {
    bool fits = (size_t)a->n_row * wide(a->w->n_in) <= 2 * c->a_floats;
    if (!is_mine(c, a->n_row, a->w) || !fits) return false;
    uint16_t *x = bf16(c->a);
    hd_cuda_run_round(a->a, a->n_row, a->w->n_in, x, wide(a->w->n_in), c->stream);
    run_into(c, product(a->w, x, a->x, a->n_row), a->is_partial ? HD_CUDA_STORE : HD_CUDA_ADD);
    return true;
}

static bool is_ffn_mine(const hd_cuda *c, int n_row, const hd_weight *gate, const hd_weight *up,
                        const hd_weight *down) {
    return is_mine(c, n_row, gate) && is_mine(c, n_row, up) && is_mine(c, n_row, down);
}

bool hd_cuda_many_ffn(hd_cuda *c, const struct hd_op_ffn *a) {
    if (!is_ffn_mine(c, a->n_row, a->gate, a->up, a->down)) return false;
    uint16_t *x = bf16(c->normed), *hidden = bf16(c->a);
    norm(c,
         (hd_cuda_norm){.x = a->x, .w = a->norm, .eps = a->eps, .n_row = a->n_row, .n = a->d_model},
         x);
    run_into(c, gated(a->gate, a->up, x, hidden, a->n_row), HD_CUDA_STORE);
    run_into(c, product(a->down, hidden, a->x, a->n_row),
             a->is_partial ? HD_CUDA_STORE : HD_CUDA_ADD);
    return true;
}

/* Small tiles while most experts fill less than half of one. */
static int tile_rows_of(int n_pick, int n_expert) {
    return n_pick <= n_expert * (HD_CUDA_GEMM_FEW / 2) ? HD_CUDA_GEMM_FEW : HD_CUDA_GEMM_ROWS;
}

/* A product over the rows by expert. */
static hd_cuda_mul by_expert(const hd_cuda *c, hd_cuda_mul m) {
    int n_busy = m.n_row < m.w.n_mat ? m.n_row : m.w.n_mat;
    m.tile = c->tile, m.n_tile = c->n_tile, m.tile_rows = tile_rows_of(m.n_row, m.w.n_mat);
    m.n_tile_max = m.n_row / m.tile_rows + n_busy;
    return m;
}

/* x += the experts' outputs; is_rounded: those are BF16. */
static void combine(hd_cuda *c, const struct hd_op_moe *a, bool is_rounded) {
    float *shared = a->shared_gate ? c->shared : NULL;
    if (is_rounded)
        hd_cuda_run_combine_bf16(&(hd_cuda_combine_bf16){.y = bf16(c->picked),
                                                         .weight = a->weight,
                                                         .shared = bf16(shared),
                                                         .slot_of = c->slot_of,
                                                         .x = a->x,
                                                         .n_row = a->n_row,
                                                         .n_used = a->n_used,
                                                         .n = a->d_model},
                                 c->stream);
    else
        hd_cuda_run_combine(&(hd_cuda_combine){.y = c->picked,
                                               .weight = a->weight,
                                               .shared = shared,
                                               .slot_of = c->slot_of,
                                               .is_partial = a->is_partial,
                                               .x = a->x,
                                               .n_row = a->n_row,
                                               .n_used = a->n_used,
                                               .n = a->d_model},
                            c->stream);
}

/* The routed experts and the shared one side by side. */
bool hd_cuda_many_moe(hd_cuda *c, const struct hd_op_moe *a) {
    int n_pick = a->n_row * a->n_used, n_expert = a->gate->n_mat, n = a->shared_gate ? 2 : 1;
    if (n_pick < n_expert * HD_CUDA_GEMM_PICKS && !c->is_expanded) return false;
    if (!is_ffn_mine(c, a->n_row, a->gate, a->up, a->down)) return false;
    if (n == 2 && !is_ffn_mine(c, a->n_row, a->shared_gate, a->shared_up, a->shared_down))
        return false;
    uint16_t *x = bf16(c->normed), *hidden = bf16(c->hidden), *shared = bf16(c->a);
    hd_cuda_sort sort = {.expert = a->expert,
                         .n_row = a->n_row,
                         .n_used = a->n_used,
                         .n_expert = n_expert,
                         .expert0 = a->expert0,
                         .tile_rows = tile_rows_of(n_pick, n_expert),
                         .row_of = c->row_of,
                         .slot_of = c->slot_of,
                         .tile = c->tile,
                         .n_tile = c->n_tile,
                         .count = c->count};
    (a->n_row <= HD_CUDA_SORT_ROWS ? hd_cuda_run_sort : hd_cuda_run_sort_many)(&sort, c->stream);
    hd_cuda_run_round(a->normed, a->n_row, a->d_model, x, wide(a->d_model), c->stream);
    hd_cuda_mul m[2] = {by_expert(c, gated(a->gate, a->up, x, hidden, n_pick))};
    m[0].x_row = c->row_of;
    if (n == 2) m[1] = gated(a->shared_gate, a->shared_up, x, shared, a->n_row);
    run(c, m, n);
    m[0] = by_expert(c, product(a->down, hidden, c->picked, n_pick));
    if (n == 2) m[1] = product(a->shared_down, shared, c->shared, a->n_row);
    /* As they would be with few rows, else. */
    bool is_rounded = !c->gemm.is_ordered && !a->is_partial && a->d_model >= 8;
    for (int i = 0; is_rounded && i < n; i++)
        m[i].y_bf16 = bf16(m[i].y), m[i].y = NULL, m[i].ldy = wide(a->d_model);
    run(c, m, n);
    combine(c, a, is_rounded);
    return true;
}

bool hd_cuda_many_head(hd_cuda *c, const struct hd_op_head *a) {
    if (!is_mine(c, a->n_out, a->w)) return false;
    uint16_t *x = bf16(c->normed);
    norm(c,
         (hd_cuda_norm){.x = a->x,
                        .ix = a->row,
                        .w = a->norm,
                        .eps = a->eps,
                        .n_row = a->n_out,
                        .n = a->d_model},
         x);
    run_into(c, product(a->w, x, a->logits, a->n_out), HD_CUDA_STORE);
    return true;
}
