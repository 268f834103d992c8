/* The ops: which kernels they are made of (attention's: attn.c).
 *
 * Which kernel a product y = W x of R rows takes, the first that can:
 *
 * - mul_fp8_wgmma.cu, from HD_CUDA_CODE_MIN rows on where there are warpgroup products, and
 *   mul_fp8.cu: it rounds, weights are FP8, R <= HD_CUDA_FP8_ROWS, a row's inputs have room in
 *   shared memory; not under --deterministic.
 * - many.c: it rounds, weights are BF16 and R >= HD_CUDA_GEMM_MIN, or they have room to be decoded
 *   and R >= HD_CUDA_GEMM_CODED_MIN (an expert: HD_CUDA_GEMM_PICKS rows, too, in the mean).
 *   gemm_wgmma.cu, or gemm_mma.cu before sm_90. Under
 *   --deterministic (form.c) rows of the expanded form always, those of the absorbed form in
 *   gemm_mma.cu.
 * - stream.cuh: it rounds, R <= 2 * HD_CUDA_MANY_ROWS (tiles of an expert: HD_CUDA_STREAM_ROWS), a
 *   row's inputs have room in shared memory.
 * - mul.cuh, whatever is left, as all products in float32 are: mul_few up to as many rows, then
 *   mul_many. */
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
                         .is_rounded = hd_cuda_rounds(c, m->format),
                         .is_ordered = c->is_deterministic};
}

/* Whether mul_fp8_wgmma.cu takes them, in a step of n_row rows; *room is its then. */
static bool is_coded(const hd_cuda *c, const hd_cuda_mul *m, int n, int n_row,
                     hd_cuda_codes *room) {
    *room = c->codes;
    room->n_x = n_row;
    return n_row >= HD_CUDA_CODE_MIN && hd_cuda_can_mul_codes(m, n, room);
}

void hd_cuda_multiply(const hd_cuda *c, const hd_cuda_mul *m, int n, int n_row) {
    hd_cuda_codes room;
    if (is_coded(c, m, n, n_row, &room))
        HD_ASSERT(hd_cuda_run_mul_codes(m, n, &room, c->stream));
    else
        hd_cuda_run_mul(m, n, c->stream);
}

static void run_mul(hd_cuda *c, const hd_weight *w, const float *x, float *y, int n_row,
                    enum hd_cuda_into into) {
    hd_cuda_mul m = mul_of(c, w, x, y, n_row);
    m.into = into;
    hd_cuda_multiply(c, &m, 1, n_row);
}

static void norm(hd_cuda *c, hd_cuda_norm a) { hd_cuda_run_norm(&a, c->stream); }

/* Products with a norm's rows: of few rows every block norms them itself. */
static void run_normed(hd_cuda *c, hd_cuda_norm a, hd_cuda_mul *m, int n) {
    enum { ROWS = 2 };
    bool is_fused = a.n_row <= ROWS;
    for (int i = 0; i < n; i++)
        is_fused &= hd_cuda_can_mul_fp8(&m[i], 1) || hd_cuda_can_stream(&m[i], 1);
    for (int i = 0; i < n; i++) {
        m[i].x = is_fused ? a.x : a.out;
        if (is_fused) m[i].norm = a.w, m[i].eps = a.eps, m[i].x_row = a.ix;
    }
    if (!is_fused) norm(c, a);
    hd_cuda_multiply(c, m, n, a.n_row);
}

void hd_cuda_now_embed(void *ctx, const struct hd_op_embed *args) {
    hd_cuda *c = ctx;
    hd_cuda_run_embed(args, hd_cuda_mat_of(args->table), c->stream);
}

void hd_cuda_rows_mla_qkv(hd_cuda *c, const struct hd_op_mla_qkv *args) {
    const struct hd_op_mla_qkv *a = args;
    int n_row = a->batch->n_row;
    HD_ASSERT(n_row <= c->limits.n_row);
    if (hd_cuda_many_mla_qkv(c, args)) return;
    hd_cuda_norm normed = {
        .x = a->x, .w = a->norm, .out = c->normed, .eps = a->eps, .n_row = n_row, .n = a->d_model};
    hd_cuda_mul in[2] = {mul_of(c, a->q ? a->q : a->q_a, NULL, a->q ? a->q_out : c->a, n_row),
                         mul_of(c, a->kv_a, NULL, c->kv, n_row)};
    run_normed(c, normed, in, 2);
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
    hd_cuda_multiply(c, kv, 2, n_row);
    hd_cuda_run_gqa_finish(a, k, v, c->kv_lost, c->stream);
}

void hd_cuda_rows_proj_add(hd_cuda *c, const struct hd_op_proj_add *args) {
    if (hd_cuda_many_proj_add(c, args)) return;
    run_mul(c, args->w, args->a, args->x, args->n_row,
            args->is_partial ? HD_CUDA_STORE : HD_CUDA_ADD);
}

/* out = silu(gate x) * (up x) */
static hd_cuda_mul gated(const hd_cuda *c, const hd_weight *gate, const hd_weight *up,
                         const float *x, float *out, int n_row) {
    hd_cuda_mul m = mul_of(c, gate, x, out, n_row);
    m.up = *hd_cuda_mat_of(up);
    return m;
}

void hd_cuda_rows_ffn(hd_cuda *c, const struct hd_op_ffn *args) {
    HD_ASSERT(args->n_row <= c->limits.n_row);
    if (hd_cuda_many_ffn(c, args)) return;
    hd_cuda_norm normed = {.x = args->x,
                           .w = args->norm,
                           .out = c->normed,
                           .eps = args->eps,
                           .n_row = args->n_row,
                           .n = args->d_model};
    hd_cuda_mul in = gated(c, args->gate, args->up, NULL, c->a, args->n_row);
    run_normed(c, normed, &in, 1);
    run_mul(c, args->down, c->a, args->x, args->n_row,
            args->is_partial ? HD_CUDA_STORE : HD_CUDA_ADD);
}

static hd_cuda_sort sort_of(const hd_cuda *c, const int32_t *expert, int n_row, int n_used,
                            int n_expert, int tile_rows) {
    return (hd_cuda_sort){.expert = expert,
                          .n_row = n_row,
                          .n_used = n_used,
                          .n_expert = n_expert,
                          .tile_rows = tile_rows,
                          .row_of = c->row_of,
                          .slot_of = c->slot_of,
                          .tile = c->tile,
                          .n_tile = c->n_tile};
}

void hd_cuda_now_route(void *ctx, const struct hd_op_route *args) {
    hd_cuda *c = ctx;
    const struct hd_op_route *a = args;
    HD_ASSERT(a->n_row <= c->limits.n_row && a->n_expert <= c->limits.n_expert);
    c->sorted = NULL;
    hd_cuda_sort sort = sort_of(c, a->expert, a->n_row, a->n_used, a->n_expert, HD_CUDA_FEW_ROWS);
    const hd_cuda_mat *router = hd_cuda_mat_of(a->router);
    if (hd_cuda_can_route(a, router->format)) {
        hd_cuda_run_route(a, router, c->score, c->n_ended, &sort, c->stream);
        if (hd_cuda_route_groups(a) == 1)
            c->sorted = a->expert, c->sorted_rows = a->n_row, c->sorted_experts = a->n_expert;
        return;
    }
    norm(c, (hd_cuda_norm){.x = a->x,
                           .w = a->norm,
                           .out = a->normed,
                           .eps = a->eps,
                           .n_row = a->n_row,
                           .n = a->d_model});
    hd_cuda_mul score = mul_of(c, a->router, a->normed, c->score, a->n_row);
    score.is_rounded = false; /* a choice is discontinuous */
    hd_cuda_run_mul(&score, 1, c->stream);
    hd_cuda_run_select(a, c->score, c->stream);
}

/* The experts' rows, of tiles of tile_rows rows each. */
static void of_experts(const hd_cuda *c, const struct hd_op_moe *a, int tile_rows, hd_cuda_mul *m) {
    int n_pick = a->n_row * a->n_used, n_expert = a->gate->n_mat;
    m->tile = c->tile, m->n_tile = c->n_tile, m->tile_rows = tile_rows;
    m->n_tile_max = n_pick / tile_rows + (n_pick < n_expert ? n_pick : n_expert);
}

/* The two products of the routed experts, and of the shared one side by side: how many. */
static int gate_and_up(const hd_cuda *c, const struct hd_op_moe *a, int tile_rows,
                       hd_cuda_mul m[2]) {
    m[0] = gated(c, a->gate, a->up, a->normed, c->hidden, a->n_row * a->n_used);
    m[0].x_row = c->row_of;
    of_experts(c, a, tile_rows, &m[0]);
    if (!a->shared_gate) return 1;
    m[1] = gated(c, a->shared_gate, a->shared_up, a->normed, c->a, a->n_row);
    return 2;
}

static int down(const hd_cuda *c, const struct hd_op_moe *a, int tile_rows, hd_cuda_mul m[2]) {
    m[0] = mul_of(c, a->down, c->hidden, c->picked, a->n_row * a->n_used);
    of_experts(c, a, tile_rows, &m[0]);
    if (!a->shared_gate) return 1;
    m[1] = mul_of(c, a->shared_down, c->a, c->shared, a->n_row);
    return 2;
}

/* Whether stream.cuh takes the experts' products with tiles of the most rows that it has. */
static bool has_stream_tiles(const hd_cuda *c, const struct hd_op_moe *a) {
    enum { ROWS = HD_CUDA_STREAM_ROWS };
    hd_cuda_mul m[2];
    for (int i = 0; i < 2; i++) {
        int n = i == 0 ? gate_and_up(c, a, ROWS, m) : down(c, a, ROWS, m);
        for (int k = 0; k < n; k++)
            if (!hd_cuda_can_stream(&m[k], 1)) return false;
    }
    return true;
}

/* Whether the products of a and both weights are hd_cuda_run_mul_codes'. */
static bool has_code_tiles(const hd_cuda *c, const struct hd_op_moe *a) {
    enum { ROWS = HD_CUDA_CODE_TILE };
    hd_cuda_mul m[2];
    hd_cuda_codes room;
    return is_coded(c, m, gate_and_up(c, a, ROWS, m), a->n_row, &room) &&
           is_coded(c, m, down(c, a, ROWS, m), a->n_row, &room);
}

static int tile_rows_of(const hd_cuda *c, const struct hd_op_moe *a, bool has_order) {
    if (a->n_row < HD_CUDA_FEW_ROWS) return a->n_row; /* an expert has one tile, of any size */
    if (!has_order && has_code_tiles(c, a)) return HD_CUDA_CODE_TILE;
    bool has_room = hd_cuda_fp8_rows(a->d_model) >= HD_CUDA_FP8_TILE &&
                    hd_cuda_fp8_rows(a->down->n_in) >= HD_CUDA_FP8_TILE;
    if (!has_order && has_room && a->n_row <= HD_CUDA_FP8_ROWS &&
        hd_cuda_streams_fp8(c, a->gate->format))
        return HD_CUDA_FP8_TILE;
    /* Rows of an expert, about. */
    int n_each = a->n_row * a->n_used / a->gate->n_mat;
    if (n_each > HD_CUDA_MANY_ROWS / 2) return HD_CUDA_MANY_ROWS;
    bool is_wide = n_each > HD_CUDA_FEW_ROWS / 2 && has_stream_tiles(c, a);
    return is_wide ? HD_CUDA_STREAM_ROWS : HD_CUDA_FEW_ROWS;
}

/* Whether the rows lie sorted by the experts that moe has: a rank with some of them sorts anew. */
static bool is_sorted(const hd_cuda *c, const struct hd_op_moe *a) {
    bool is_whole = a->expert0 == 0 && a->gate->n_mat == c->sorted_experts;
    return is_whole && c->sorted == a->expert && c->sorted_rows == a->n_row;
}

void hd_cuda_rows_moe(hd_cuda *c, const struct hd_op_moe *args) {
    const struct hd_op_moe *a = args;
    HD_ASSERT(a->n_row <= c->limits.n_row && a->n_used <= c->limits.n_used);
    HD_ASSERT(a->gate->n_mat <= c->limits.n_expert);
    bool has_order = is_sorted(c, a);
    c->sorted = NULL;
    if (hd_cuda_many_moe(c, args)) return;
    if (a->n_row == 0) return;
    int tile_rows = tile_rows_of(c, a, has_order);
    hd_cuda_sort sort = sort_of(c, a->expert, a->n_row, a->n_used, a->gate->n_mat, tile_rows);
    sort.expert0 = a->expert0;
    if (!has_order) hd_cuda_run_sort(&sort, c->stream);
    hd_cuda_mul m[2];
    hd_cuda_multiply(c, m, gate_and_up(c, a, tile_rows, m), a->n_row);
    hd_cuda_multiply(c, m, down(c, a, tile_rows, m), a->n_row);
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

void hd_cuda_rows_head(hd_cuda *c, const struct hd_op_head *args) {
    HD_ASSERT(args->n_out <= c->limits.n_out || args->n_out <= c->limits.n_row);
    if (hd_cuda_many_head(c, args)) return;
    hd_cuda_norm normed = {.x = args->x,
                           .ix = args->row,
                           .w = args->norm,
                           .out = c->normed,
                           .eps = args->eps,
                           .n_row = args->n_out,
                           .n = args->d_model};
    hd_cuda_mul out = mul_of(c, args->w, NULL, args->logits, args->n_out);
    run_normed(c, normed, &out, 1);
}

void hd_cuda_now_sample(void *ctx, const struct hd_op_sample *args) {
    hd_cuda *c = ctx;
    HD_ASSERT(args->batch == &c->batch && args->n_vocab <= HD_DRAW_VOCAB_MAX);
    hd_cuda_run_sample(args, c->stream);
}
