/* Every op of the cpu backend with weights of every row of formats.def, found there, against the
 * oracle: awkward shapes, all levels. A row alone, rows in parts and rows by 1, 2 and 3 threads are
 * bit-equal, and so are all levels but scalar.
 *
 * Bounds, as a share of the row's largest value: 2e-5 a product (float32 sums of up to 768 terms
 * against double), 1e-4 for Q8_0 and for the matrices inside of attention, whose activations are
 * rounded to 16 bits, 2e-2 for the other quantised formats (8 bits; test_cpu_packed holds them to
 * exact sums of the rounded activations). */
#include "support/op_data.h"

#include "cpu/pack.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One op over some of its rows, on a device; out gets n values a row. */
typedef struct op_case {
    void (*run)(const hd_dev *d, const void *args, int row0, int n_row, float *out);
    const void *args;
    int n_row, n, n_part; /* n_part: rows a call of the split runs */
    double bound;
    const char *what;
} op_case;

enum { ROW_MAX = 40, POS_MAX = 80 };

static int block_of(enum hd_format f) {
    int n = hd_format_get(f)->block_elems;
    return n < 32 ? 32 : n;
}

static hd_dev_limits limits(enum hd_format f) {
    int n = 20 * block_of(f); /* as wide as the widest case */
    return (hd_dev_limits){.n_row = ROW_MAX,
                           .n_seq = 4,
                           .n_out = ROW_MAX,
                           .d_model = n,
                           .n_vocab = 90,
                           .d_ff = n,
                           .d_expert = n,
                           .n_expert = 4,
                           .n_used = 2,
                           .n_head = 4,
                           .n_nope = n,
                           .n_rope = 16,
                           .n_c = 2 * block_of(f),
                           .n_v = 96,
                           .n_kv = 96,
                           .q_lora = n,
                           .n_pos = POS_MAX};
}

static void run_all(const hd_dev *d, const op_case *c, float *out) {
    c->run(d, c->args, 0, c->n_row, out);
}

static void run_parts(const hd_dev *d, const op_case *c, float *out) {
    for (int row = 0; row < c->n_row; row += c->n_part) {
        int n = c->n_row - row < c->n_part ? c->n_row - row : c->n_part;
        c->run(d, c->args, row, n, out + (size_t)row * (size_t)c->n);
    }
}

static void check_case(enum hd_format f, const op_case *c) {
    hd_dev_limits l = limits(f);
    test_level level[TEST_LEVEL_MAX];
    int n_level = test_levels(level);
    char what[96];
    snprintf(what, sizeof what, "%s, %s, %d rows", hd_format_get(f)->name, c->what, c->n_row);
    size_t n = (size_t)c->n_row * (size_t)c->n, n_byte = n * sizeof(float);
    float *expected = test_floats(n, 0), *first = test_floats(n, 0), *found = test_floats(n, 0);
    float *fused = test_floats(n, 0);
    bool has_fused = false;
    hd_dev ref = test_open_ref(&l);
    run_all(&ref, c, expected);
    test_close(&ref);
    for (int i = 0; i < n_level; i++) {
        hd_dev d = test_open_cpu(level[i], &l);
        if (level[i].n_thread > 1) {
            run_all(&d, c, found);
            test_bits_equal(found, first, n_byte, what);
        } else {
            run_all(&d, c, first);
            test_rows_close(first, expected, c->n_row, c->n, c->bound, what);
            run_parts(&d, c, found);
            test_rows_equal(found, first, n_byte, what);
            bool is_fused = test_backend() == NULL && strcmp(level[i].isa, "scalar") != 0;
            if (has_fused) test_bits_equal(first, fused, n_byte, what);
            if (is_fused && !has_fused) memcpy(fused, first, n_byte);
            has_fused |= is_fused;
        }
        test_close(&d);
    }
    free(expected);
    free(first);
    free(found);
    free(fused);
}

/* Whether the backend under test rounds the activations that meet this format to 8 bits. */
static bool is_narrow(enum hd_format f) {
    bool is_cpu = test_backend() == NULL || strcmp(test_backend(), "cpu") == 0;
    return is_cpu && hd_cpu_is_packed(f) && f != HD_Q8_0;
}

static double bound_of(enum hd_format f, int n_product) {
    double of_float32 = is_narrow(f) ? 2e-2 : f == HD_Q8_0 ? 1e-4 : 2e-5;
    return test_bound(of_float32, 1e-2) * n_product;
}

static const int row_counts[] = {1, 7, 33};
enum { N_ROW_COUNT = 3 };

/* ---- ops over plain rows ---- */

static void run_proj(const hd_dev *d, const void *args, int row0, int n_row, float *out) {
    struct hd_op_proj_add a = *(const struct hd_op_proj_add *)args;
    size_t n_out = (size_t)a.w->n_out;
    memcpy(out, a.x + (size_t)row0 * n_out, sizeof *out * n_out * (size_t)n_row);
    a.n_row = n_row, a.a += (size_t)row0 * (size_t)a.w->n_in, a.x = out;
    d->ops->proj_add(d->ctx, &a);
}

static void products(enum hd_format f) {
    static const int n_outs[] = {17, 70, 131}, n_blocks[] = {11, 20, 3};
    for (int i = 0; i < N_ROW_COUNT; i++) {
        int n_in = n_blocks[i] * block_of(f);
        hd_weight *w = test_weight(f, n_in, n_outs[i], 1);
        float *a = test_floats((size_t)(ROW_MAX * n_in), 1),
              *x = test_floats((size_t)(ROW_MAX * n_outs[i]), 1);
        struct hd_op_proj_add args = {.a = a, .w = w, .x = x};
        check_case(f, &(op_case){.run = run_proj,
                                 .args = &args,
                                 .n_row = row_counts[i],
                                 .n = n_outs[i],
                                 .n_part = 3,
                                 .bound = bound_of(f, 1),
                                 .what = "proj_add"});
        free(a);
        free(x);
        test_weight_free(w);
    }
}

static void run_embed(const hd_dev *d, const void *args, int row0, int n_row, float *out) {
    struct hd_op_embed a = *(const struct hd_op_embed *)args;
    a.n_row = n_row, a.token += row0, a.x = out;
    d->ops->embed(d->ctx, &a);
}

static void run_head(const hd_dev *d, const void *args, int row0, int n_row, float *out) {
    struct hd_op_head a = *(const struct hd_op_head *)args;
    a.n_out = n_row, a.row += row0, a.logits = out;
    d->ops->head(d->ctx, &a);
}

static void embedding_and_head(enum hd_format f) {
    enum { V = 83, N = 9 };
    int n_in = 2 * block_of(f);
    hd_weight *w = test_weight(f, n_in, V, 1);
    float *x = test_floats((size_t)(ROW_MAX * n_in), 3), *norm = test_floats((size_t)n_in, 1);
    int32_t token[N], row[N];
    for (int i = 0; i < N; i++) token[i] = test_below(V), row[i] = 3 * i;
    struct hd_op_embed embed = {.token = token, .table = w};
    struct hd_op_head head = {.d_model = n_in, .row = row, .x = x, .norm = norm, .eps = 1e-6f};
    head.w = w;
    op_case c = {.run = run_embed, .args = &embed, .n_row = N, .n = n_in, .n_part = 2};
    c.what = "embed"; /* decoding is exact: no bound */
    check_case(f, &c);
    c.run = run_head, c.args = &head, c.n = V, c.bound = bound_of(f, 1), c.what = "head";
    check_case(f, &c);
    free(x);
    free(norm);
    test_weight_free(w);
}

static void run_ffn(const hd_dev *d, const void *args, int row0, int n_row, float *out) {
    struct hd_op_ffn a = *(const struct hd_op_ffn *)args;
    size_t width = (size_t)a.d_model;
    memcpy(out, a.x + (size_t)row0 * width, sizeof *out * (size_t)n_row * width);
    a.n_row = n_row, a.x = out;
    d->ops->ffn(d->ctx, &a);
}

static void feed_forward(enum hd_format f) {
    int n_in = block_of(f), n_ff = n_in < 64 ? 2 * n_in : n_in;
    for (int i = 0; i < N_ROW_COUNT; i++) { /* gate and up may differ in format */
        hd_weight *gate = test_weight(f, n_in, n_ff, 1), *down = test_weight(f, n_ff, n_in, 1);
        hd_weight *up = test_weight(i == 1 ? HD_BF16 : f, n_in, n_ff, 1);
        float *x = test_floats((size_t)(ROW_MAX * n_in), 1), *norm = test_floats((size_t)n_in, 1);
        struct hd_op_ffn a = {.d_model = n_in, .norm = norm, .eps = 1e-6f, .x = x};
        a.gate = gate, a.up = up, a.down = down;
        check_case(f, &(op_case){.run = run_ffn,
                                 .args = &a,
                                 .n_row = row_counts[i],
                                 .n = n_in,
                                 .n_part = 2,
                                 .bound = bound_of(f, 2),
                                 .what = "ffn"});
        free(x);
        free(norm);
        test_weight_free(gate);
        test_weight_free(up);
        test_weight_free(down);
    }
}

enum { E = 4, USED = 2 };

/* Normed rows and weights of experts; which experts they are shows in the weights' order. */
static void run_route(const hd_dev *d, const void *args, int row0, int n_row, float *out) {
    struct hd_op_route a = *(const struct hd_op_route *)args;
    int32_t expert[ROW_MAX * USED];
    float weight[ROW_MAX * USED];
    size_t width = (size_t)a.d_model;
    float *normed = test_floats((size_t)n_row * width, 0);
    a.n_row = n_row, a.x += (size_t)row0 * width;
    a.normed = normed, a.expert = expert, a.weight = weight;
    d->ops->route(d->ctx, &a);
    for (int r = 0; r < n_row; r++)
        for (int e = 0; e < E; e++) {
            float *to = out + r * E + e;
            *to = 0;
            for (int k = 0; k < USED; k++)
                if (expert[r * USED + k] == e) *to = weight[r * USED + k];
        }
    free(normed);
}

static void routing(enum hd_format f) {
    int n_in = 2 * block_of(f);
    hd_weight *w = test_weight(f, n_in, E, 1);
    float *x = test_floats((size_t)(ROW_MAX * n_in), 1), *norm = test_floats((size_t)n_in, 1);
    struct hd_op_route a = {.d_model = n_in,
                            .x = x,
                            .norm = norm,
                            .eps = 1e-6f,
                            .router = w,
                            .gating = HD_GATING_SIGMOID,
                            .n_expert = E,
                            .n_used = USED,
                            .n_group = 1,
                            .n_group_used = 1,
                            .scale = 1};
    check_case(f, &(op_case){.run = run_route,
                             .args = &a,
                             .n_row = 33,
                             .n = E,
                             .n_part = 4,
                             .bound = 2e-5, /* the router meets float32 activations always */
                             .what = "route"});
    free(x);
    free(norm);
    test_weight_free(w);
}

static void run_moe(const hd_dev *d, const void *args, int row0, int n_row, float *out) {
    struct hd_op_moe a = *(const struct hd_op_moe *)args;
    size_t width = (size_t)a.d_model;
    memcpy(out, a.x + (size_t)row0 * width, sizeof *out * (size_t)n_row * width);
    a.n_row = n_row, a.normed += (size_t)row0 * width, a.x = out;
    a.expert += row0 * USED, a.weight += row0 * USED;
    d->ops->moe(d->ctx, &a);
}

static void experts(enum hd_format f) {
    int n_in = block_of(f), n_ff = n_in < 64 ? 2 * n_in : n_in;
    hd_weight *w[6];
    for (int i = 0; i < 6; i++)
        w[i] = test_weight(f, i % 3 < 2 ? n_in : n_ff, i % 3 < 2 ? n_ff : n_in, i < 3 ? E : 1);
    float *x = test_floats((size_t)(ROW_MAX * n_in), 1);
    float *normed = test_floats((size_t)(ROW_MAX * n_in), 1);
    float *weight = test_floats(ROW_MAX * USED, 1);
    int32_t expert[ROW_MAX * USED];
    for (int r = 0; r < ROW_MAX; r++) {
        expert[r * USED] = test_below(E - 1);
        expert[r * USED + 1] = expert[r * USED] + 1;
    }
    for (int i = 0; i < 2; i++) {
        struct hd_op_moe a = {.d_model = n_in, .n_used = USED, .normed = normed, .x = x};
        a.expert = expert, a.weight = weight;
        a.gate = w[0], a.up = w[1], a.down = w[2];
        if (i == 1) a.shared_gate = w[3], a.shared_up = w[4], a.shared_down = w[5];
        check_case(f, &(op_case){.run = run_moe,
                                 .args = &a,
                                 .n_row = i == 0 ? 2 : 29,
                                 .n = n_in,
                                 .n_part = 1,
                                 .bound = bound_of(f, 2),
                                 .what = i == 0 ? "moe" : "moe with a shared expert"});
    }
    free(x);
    free(normed);
    free(weight);
    for (int i = 0; i < 6; i++) test_weight_free(w[i]);
}

/* ---- ops over a batch ---- */

enum { H = 3, N_ROPE = 16, N_V = 21, H_KV = 2, D_HEAD = 48 };
static const test_seq seqs[] = {{.n_pos = 20, .n_row = 20, .n_expanded = 9},
                                {.n_pos = 71, .n_row = 2, .n_expanded = 1}};

/* The batch as it is, or row row0 of it alone. */
static void batch_part(hd_batch *part, const hd_batch *b, int row0, int n_row) {
    HD_ASSERT(n_row == 1 || n_row == b->n_row);
    test_batch_row(part, b, row0);
}

static void run_attn(const hd_dev *d, const void *args, int row0, int n_row, float *out) {
    struct hd_op_mla_attn a = *(const struct hd_op_mla_attn *)args;
    hd_batch one;
    batch_part(&one, a.batch, row0, n_row);
    one.form[0] = a.batch->form[row0];
    a.q += (size_t)row0 * (size_t)(a.n_head * (a.n_nope + a.n_rope));
    if (n_row == 1) a.batch = &one;
    a.out = out;
    d->ops->mla_attn(d->ctx, &a);
    hd_batch_fini(&one);
}

static void latent_attention(enum hd_format f) {
    int n_nope = block_of(f), n_c = 2 * n_nope, n_page;
    hd_batch b;
    test_batch(&b, seqs, 2, 16, &n_page);
    hd_weight *k_b = test_weight(f, n_nope, n_c, H), *v_b = test_weight(f, n_c, N_V, H);
    float *q = test_floats((size_t)(b.n_row * H * (n_nope + N_ROPE)), 2);
    hd_kv_layout kv = hd_kv_latent(HD_KV_F32, n_c, N_ROPE);
    void *cache = test_cache(&b, n_page, &kv);
    struct hd_op_mla_attn a = {.batch = &b,
                               .q = q,
                               .kv = kv,
                               .cache = cache,
                               .k_b = k_b,
                               .v_b = v_b,
                               .n_head = H,
                               .n_nope = n_nope,
                               .n_rope = N_ROPE,
                               .n_c = n_c,
                               .n_v = N_V,
                               .scale = 0.1f};
    check_case(f, &(op_case){.run = run_attn,
                             .args = &a,
                             .n_row = b.n_row,
                             .n = H * N_V,
                             .n_part = 1,
                             .bound = test_bound(is_narrow(f) || f == HD_Q8_0 ? 1e-4 : 3e-5, 2e-2),
                             .what = "mla_attn"});
    free(q);
    free(cache);
    test_weight_free(k_b);
    test_weight_free(v_b);
    hd_batch_fini(&b);
}

/* Copies a row of q and the row's cache row behind it. */
static void take_row(float *out, const float *q, int n_q, const float *cache, int kv_row,
                     int width) {
    memcpy(out, q, sizeof *out * (size_t)n_q);
    memcpy(out + n_q, cache + (size_t)kv_row * (size_t)width, sizeof *out * (size_t)width);
}

static void run_mla_qkv(const hd_dev *d, const void *args, int row0, int n_row, float *out) {
    struct hd_op_mla_qkv a = *(const struct hd_op_mla_qkv *)args;
    const hd_batch *b = a.batch;
    hd_batch one;
    int n_q = a.n_head * (a.n_nope + a.n_rope), width = a.n_c + a.n_rope;
    batch_part(&one, b, row0, n_row);
    float *q = test_floats((size_t)(n_row * n_q), 0);
    float *cache = test_floats((size_t)(20 * b->page_tok * width), 0);
    a.x += (size_t)row0 * (size_t)a.d_model, a.q_out = q, a.cache = cache;
    if (n_row == 1) a.batch = &one;
    d->ops->mla_qkv(d->ctx, &a);
    for (int r = 0; r < n_row; r++)
        take_row(out + r * (n_q + width), q + r * n_q, n_q, cache, b->kv_row[row0 + r], width);
    free(q);
    free(cache);
    hd_batch_fini(&one);
}

static void latent_projections(enum hd_format f) {
    int n_in = 2 * block_of(f), lora = block_of(f), n_c = 40, n_nope = 24, n_page;
    int n_q = H * (n_nope + N_ROPE);
    hd_batch b;
    test_batch(&b, seqs, 2, 16, &n_page);
    assert_true(n_page <= 20);
    hd_weight *w[4] = {test_weight(f, n_in, n_q, 1), test_weight(f, n_in, lora, 1),
                       test_weight(f, lora, n_q, 1), test_weight(f, n_in, n_c + N_ROPE, 1)};
    float *x = test_floats((size_t)(b.n_row * n_in), 1), *norm = test_floats((size_t)n_in, 1);
    float *cs = test_floats((size_t)(POS_MAX * N_ROPE), 1);
    for (int i = 0; i < 2; i++) {
        struct hd_op_mla_qkv a = {.batch = &b,
                                  .x = x,
                                  .norm = norm,
                                  .eps = 1e-6f,
                                  .lora_eps = 1e-6f,
                                  .kv_a = w[3],
                                  .kv_a_norm = norm,
                                  .rope_cs = cs,
                                  .d_model = n_in,
                                  .n_head = H,
                                  .n_nope = n_nope,
                                  .n_rope = N_ROPE,
                                  .n_c = n_c,
                                  .kv = hd_kv_latent(HD_KV_F32, n_c, N_ROPE)};
        if (i == 0)
            a.q = w[0];
        else
            a.q_a = w[1], a.q_a_norm = norm, a.q_b = w[2];
        check_case(f, &(op_case){.run = run_mla_qkv,
                                 .args = &a,
                                 .n_row = b.n_row,
                                 .n = n_q + n_c + N_ROPE,
                                 .n_part = 1,
                                 .bound = bound_of(f, 3),
                                 .what = "mla_qkv"});
    }
    free(x);
    free(norm);
    free(cs);
    for (int i = 0; i < 4; i++) test_weight_free(w[i]);
    hd_batch_fini(&b);
}

static void run_gqa_qkv(const hd_dev *d, const void *args, int row0, int n_row, float *out) {
    struct hd_op_gqa_qkv a = *(const struct hd_op_gqa_qkv *)args;
    const hd_batch *b = a.batch;
    hd_batch one;
    int n_q = a.n_head * a.d_head, width = a.n_head_kv * a.d_head;
    size_t n_cache = (size_t)(20 * b->page_tok * width);
    batch_part(&one, b, row0, n_row);
    float *q = test_floats((size_t)(n_row * n_q), 0);
    float *keys = test_floats(n_cache, 0), *values = test_floats(n_cache, 0);
    a.x += (size_t)row0 * (size_t)a.d_model, a.q_out = q, a.keys = keys, a.values = values;
    if (n_row == 1) a.batch = &one;
    d->ops->gqa_qkv(d->ctx, &a);
    for (int r = 0; r < n_row; r++, out += n_q + 2 * width) {
        take_row(out, q + r * n_q, n_q, keys, b->kv_row[row0 + r], width);
        memcpy(out + n_q + width, values + (size_t)b->kv_row[row0 + r] * (size_t)width,
               sizeof *out * (size_t)width);
    }
    free(q);
    free(keys);
    free(values);
    hd_batch_fini(&one);
}

static void grouped_projections(enum hd_format f) {
    int n_in = 2 * block_of(f), n_q = H_KV * 2 * D_HEAD, n_kv = H_KV * D_HEAD, n_page;
    hd_batch b;
    test_batch(&b, seqs, 2, 16, &n_page);
    hd_weight *w[3] = {test_weight(f, n_in, n_q, 1), test_weight(f, n_in, n_kv, 1),
                       test_weight(f, n_in, n_kv, 1)};
    float *x = test_floats((size_t)(b.n_row * n_in), 1), *norm = test_floats((size_t)n_in, 1);
    float *cs = test_floats((size_t)(POS_MAX * D_HEAD), 1), *bias = test_floats((size_t)n_q, 1);
    struct hd_op_gqa_qkv a = {.batch = &b,
                              .x = x,
                              .norm = norm,
                              .eps = 1e-6f,
                              .q = w[0],
                              .k = w[1],
                              .v = w[2],
                              .q_bias = bias,
                              .rope_cs = cs,
                              .d_model = n_in,
                              .n_head = 2 * H_KV,
                              .n_head_kv = H_KV,
                              .d_head = D_HEAD,
                              .kv = hd_kv_heads(HD_KV_F32, H_KV, D_HEAD)};
    check_case(f, &(op_case){.run = run_gqa_qkv,
                             .args = &a,
                             .n_row = b.n_row,
                             .n = n_q + 2 * n_kv,
                             .n_part = 1,
                             .bound = bound_of(f, 2),
                             .what = "gqa_qkv"});
    free(x);
    free(norm);
    free(cs);
    free(bias);
    for (int i = 0; i < 3; i++) test_weight_free(w[i]);
    hd_batch_fini(&b);
}

/* ---- all of them ---- */

static void for_each_format(void (*check)(enum hd_format f)) {
    test_level level[TEST_LEVEL_MAX];
    test_levels(level); /* leaves when there is no device */
    for (int f = 0; f < HD_FORMAT_COUNT; f++)
        if (test_has_format((enum hd_format)f)) check((enum hd_format)f);
}

#define EACH_FORMAT(check)                                                                         \
    static void each_format_##check(void **state) {                                                \
        (void)state;                                                                               \
        for_each_format(check);                                                                    \
    }
EACH_FORMAT(products)
EACH_FORMAT(embedding_and_head)
EACH_FORMAT(feed_forward)
EACH_FORMAT(routing)
EACH_FORMAT(experts)
EACH_FORMAT(latent_attention)
EACH_FORMAT(latent_projections)
EACH_FORMAT(grouped_projections)

/* What `supports` promises is what the tests above have run. */
static void every_format_is_promised(void **state) {
    (void)state;
    hd_dev d;
    assert_ok(hd_dev_open("cpu", NULL, &d));
    for (int op = 0; op < HD_OP_COUNT; op++)
        for (int f = 0; f < HD_FORMAT_COUNT; f++)
            assert_true(d.ops->supports(d.ctx, (enum hd_op)op, (enum hd_format)f));
    hd_dev_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_format_products),
        cmocka_unit_test(each_format_embedding_and_head),
        cmocka_unit_test(each_format_feed_forward),
        cmocka_unit_test(each_format_routing),
        cmocka_unit_test(each_format_experts),
        cmocka_unit_test(each_format_latent_attention),
        cmocka_unit_test(each_format_latent_projections),
        cmocka_unit_test(each_format_grouped_projections),
        cmocka_unit_test(every_format_is_promised),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
