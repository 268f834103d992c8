/* The oracle's primitives and ops against independent formulas in double precision. */
#include "support/check.h"

#include "base/mem.h"
#include "ref/ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- random data ---- */

static uint64_t seed = 1;
static double uniform(void) { /* [-1, 1) */
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(seed >> 11) / 4503599627370496.0 - 1;
}
static float *random_floats(size_t n, double scale) {
    float *p = malloc(n * sizeof *p);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) p[i] = (float)(uniform() * scale);
    return p;
}

/* A random weight; `value` holds what its bytes decode to. */
typedef struct weight {
    hd_weight w;
    float *value; /* [n_mat, n_out, n_in] */
    char *bytes;
    const void *mat[16];
} weight;

static weight *random_weight(enum hd_format f, int n_in, int n_out, int n_mat) {
    weight *t = calloc(1, sizeof *t);
    assert_non_null(t);
    assert_true(n_mat <= 16);
    size_t n = (size_t)n_in * (size_t)n_out, n_byte = hd_format_bytes(f, n);
    t->value = random_floats(n * (size_t)n_mat, 1.0 / sqrt(n_in));
    t->bytes = malloc(n_byte * (size_t)n_mat);
    for (int m = 0; m < n_mat; m++) {
        char *p = t->bytes + (size_t)m * n_byte;
        hd_format_get(f)->encode(t->value + (size_t)m * n, p, n);
        hd_format_get(f)->decode(p, t->value + (size_t)m * n, n);
        t->mat[m] = p;
    }
    t->w = (hd_weight){.format = f, .n_in = n_in, .n_out = n_out, .n_mat = n_mat, .mat = t->mat};
    return t;
}
static void free_weight(weight *t) {
    free(t->value);
    free(t->bytes);
    free(t);
}
static double at(const weight *t, int m, int o, int i) {
    return (double)
        t->value[((size_t)m * (size_t)t->w.n_out + (size_t)o) * (size_t)t->w.n_in + (size_t)i];
}

static void assert_close(double found, double expected, double bound) {
    if (!(fabs(found - expected) <= bound * (1 + fabs(expected))))
        fail_msg("expected %.9g, found %.9g (bound %g)", expected, found, bound);
}

/* y[o] = sum_i w[o][i] x[i] in double */
static void matvec(const weight *t, int m, const double *x, double *y) {
    for (int o = 0; o < t->w.n_out; o++) {
        y[o] = 0;
        for (int i = 0; i < t->w.n_in; i++) y[o] += at(t, m, o, i) * x[i];
    }
}
static void norm(const float *x, const float *w, double eps, int n, double *y) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    for (int i = 0; i < n; i++) y[i] = (double)w[i] * (double)x[i] / sqrt(sum / n + eps);
}
static double silu(double z) { return z / (1 + exp(-z)); }

/* ---- a device with room for the shapes below ---- */

enum { D = 64, H = 3, NOPE = 24, ROPE = 8, C = 32, V = 20, LORA = 40, F = 96, FE = 32, E = 8 };
enum { N_POS = 70, PAGE_TOK = 16, N_PAGE = 12 };

static hd_dev open_dev(void) {
    hd_dev d;
    assert_ok(hd_dev_open("ref", NULL, &d));
    hd_dev_limits l = {.n_row = N_POS,
                       .n_seq = 2,
                       .n_out = 4,
                       .d_model = D,
                       .n_vocab = 100,
                       .d_ff = F,
                       .d_expert = FE,
                       .n_expert = E,
                       .n_used = 3,
                       .n_head = H,
                       .n_nope = NOPE,
                       .n_rope = ROPE,
                       .n_c = C,
                       .n_v = V,
                       .q_lora = LORA,
                       .n_pos = N_POS};
    assert_ok(d.ops->reserve(d.ctx, &l));
    return d;
}

/* ---- primitives ---- */

static void dot_is_exact_where_float_is_not(void **state) {
    (void)state;
    float a[] = {1e8f, 1, -1e8f, 0.5f, 3, 3, 3, 3, 2}, b[] = {1, 1, 1, 1, 1, -1, 1, -1, 4};
    assert_true(hd_ref_dot(a, b, 9) == 9.5); /* in float the 1 would be lost beside 1e8 */
    assert_true(hd_ref_dot(a, b, 0) == 0);
    assert_true(hd_ref_dot(a, b, 1) == 1e8);
    float *x = random_floats(1003, 1), *y = random_floats(1003, 1);
    for (int n = 1; n < 1003; n += 77) {
        double sum = 0;
        for (int i = n - 1; i >= 0; i--) sum += (double)x[i] * (double)y[i];
        assert_close(hd_ref_dot(x, y, n), sum, 1e-13);
    }
    free(x);
    free(y);
}

static void rms_norm_scales_by_the_root_mean_square(void **state) {
    (void)state;
    float x[] = {3, -4}, w[] = {1, 2}, y[2];
    hd_ref_rms_norm(x, w, 0, 2, y);
    assert_close((double)y[0], 3 / sqrt(12.5), 1e-7);
    assert_close((double)y[1], -8 / sqrt(12.5), 1e-7);
    float zero[] = {0, 0};
    hd_ref_rms_norm(zero, w, 1e-6f, 2, zero);
    assert_true(zero[0] == 0 && zero[1] == 0);
    float *r = random_floats(257, 5), *g = random_floats(257, 1);
    double want[257];
    norm(r, g, 1e-6, 257, want);
    hd_ref_rms_norm(r, g, 1e-6f, 257, r);
    for (int i = 0; i < 257; i++) assert_close((double)r[i], want[i], 2e-7);
    free(r);
    free(g);
}

static void softmax_does_not_overflow(void **state) {
    (void)state;
    float s[] = {1000, 1001, -1000};
    hd_ref_softmax(s, 3);
    assert_close((double)s[0], 1 / (1 + exp(1)), 1e-7);
    assert_close((double)s[1], 1 / (1 + exp(-1)), 1e-7);
    assert_true(s[2] == 0);
    float one[] = {-5};
    hd_ref_softmax(one, 1);
    assert_true(one[0] == 1);
    float masked[] = {-INFINITY, 2};
    hd_ref_softmax(masked, 2);
    assert_true(masked[0] == 0 && masked[1] == 1);
}

static void gates_saturate(void **state) {
    (void)state;
    assert_true(hd_ref_sigmoid(0) == 0.5f && hd_ref_sigmoid(200) == 1 && hd_ref_sigmoid(-200) == 0);
    assert_close((double)hd_ref_silu(1.5f), silu(1.5), 1e-7);
    assert_true(hd_ref_silu(100) == 100 && hd_ref_silu(0) == 0);
    assert_true(fabsf(hd_ref_silu(-200)) < 1e-30f);
}

static void rope_rotates_interleaved_pairs(void **state) {
    (void)state;
    float x[] = {1, 0, 2, 3};
    float cs[] = {(float)cos(0.5), (float)sin(0.5), (float)cos(2), (float)sin(2)};
    hd_ref_rope(x, cs, 4);
    assert_close((double)x[0], cos(0.5), 1e-7);
    assert_close((double)x[1], sin(0.5), 1e-7);
    assert_close((double)x[2], 2 * cos(2) - 3 * sin(2), 3e-7);
    assert_close((double)x[3], 3 * cos(2) + 2 * sin(2), 3e-7);
}

static void top_k_takes_ties_from_below_and_survives_nan(void **state) {
    (void)state;
    int32_t best[8];
    float ties[] = {1, 2, 2, 0, 2};
    hd_ref_top_k(ties, NULL, 5, 4, best);
    assert_memory_equal(best, ((int32_t[]){1, 2, 4, 0}), 4 * sizeof *best);
    bool allowed[] = {true, false, true, true, false};
    hd_ref_top_k(ties, allowed, 5, 3, best);
    assert_memory_equal(best, ((int32_t[]){2, 0, 3}), 3 * sizeof *best);
    float some_nan[] = {NAN, -5, NAN, 3};
    hd_ref_top_k(some_nan, NULL, 4, 4, best);
    assert_memory_equal(best, ((int32_t[]){3, 1, 0, 2}), 4 * sizeof *best);
    float all_nan[] = {NAN, NAN, NAN};
    hd_ref_top_k(all_nan, NULL, 3, 3, best);
    assert_memory_equal(best, ((int32_t[]){0, 1, 2}), 3 * sizeof *best);
    float infinite[] = {-INFINITY, INFINITY, -INFINITY};
    hd_ref_top_k(infinite, NULL, 3, 2, best);
    assert_memory_equal(best, ((int32_t[]){1, 0}), 2 * sizeof *best);
}

static void weighted_sum_is_a_sum_of_rows(void **state) {
    (void)state;
    float x[] = {1, 2, 9, 3, 4, 9}, p[] = {0.25f, 0.75f}, out[2];
    double acc[2];
    struct hd_ref_rows rows = {.x = x, .n_row = 2, .step = 3, .width = 2};
    hd_ref_weighted_sum(p, rows, acc, out);
    assert_true(out[0] == 2.5f && out[1] == 3.5f);
}

static void matmul_reads_every_format(void **state) {
    (void)state;
    enum { n_in = 256 }; /* a super-block */
    hd_dev d = open_dev();
    assert_ok(d.ops->reserve(d.ctx, &(hd_dev_limits){.n_row = 3, .d_model = n_in}));
    float *x = random_floats(3 * n_in, 1);
    for (int f = 0; f < HD_FORMAT_COUNT; f++) {
        weight *t = random_weight((enum hd_format)f, n_in, 7, 2);
        float y[3 * 7];
        hd_ref_matmul(d.ctx, &t->w, 1, 3, x, y);
        for (int r = 0; r < 3; r++)
            for (int o = 0; o < 7; o++) {
                double want = 0;
                for (int i = 0; i < n_in; i++) want += at(t, 1, o, i) * (double)x[r * n_in + i];
                assert_close((double)y[r * 7 + o], want, 1e-7);
            }
        for (int op = 0; op < HD_OP_COUNT; op++)
            assert_true(d.ops->supports(d.ctx, (enum hd_op)op, (enum hd_format)f));
        free_weight(t);
    }
    free(x);
    hd_dev_close(&d);
}

/* ---- routing ---- */

static struct hd_op_route v3_route(void) {
    return (struct hd_op_route){.gating = HD_GATING_SIGMOID,
                                .group_rule = HD_GROUP_TOP2_SUM,
                                .n_expert = 8,
                                .n_used = 2,
                                .n_group = 4,
                                .n_group_used = 2,
                                .normalise = true,
                                .scale = 2.5f};
}

static void groups_are_scored_by_their_two_best(void **state) {
    (void)state;
    struct hd_op_route a = v3_route();
    /* Sums of pairs: 0.9, 1.0, 1.1, 0.8: groups 1 and 2 stay, although 0.85 is the best score. */
    float score[] = {0.85f, 0.05f, 0.5f, 0.5f, 0.7f, 0.4f, 0.4f, 0.4f};
    int32_t expert[2];
    float w[2];
    hd_ref_select_experts(&a, score, expert, w);
    assert_memory_equal(expert, ((int32_t[]){2, 4}), sizeof expert);
    assert_close((double)w[0], 2.5 * 0.5 / 1.2, 1e-6);
    assert_close((double)w[1], 2.5 * 0.7 / 1.2, 1e-6);
    a.group_rule = HD_GROUP_MAX; /* now group 0 (0.85) and group 2 (0.7) */
    a.normalise = false;
    hd_ref_select_experts(&a, score, expert, w);
    assert_memory_equal(expert, ((int32_t[]){0, 4}), sizeof expert);
    assert_close((double)w[0], 2.5 * 0.85, 1e-6);
}

static void bias_selects_but_does_not_weigh(void **state) {
    (void)state;
    struct hd_op_route a = v3_route();
    a.n_group = a.n_group_used = 1;
    float score[] = {0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f, 0.7f, 0.8f};
    float bias[] = {5, 0, 0, 0, 0, 0, -5, 0};
    a.bias = bias;
    int32_t expert[2];
    float w[2];
    hd_ref_select_experts(&a, score, expert, w);
    assert_memory_equal(expert, ((int32_t[]){0, 7}), sizeof expert);
    assert_close((double)w[0], 2.5 * 0.1 / 0.9, 1e-6);
}

static void a_masked_group_stays_out_even_if_the_kept_are_negative(void **state) {
    (void)state;
    struct hd_op_route a = v3_route();
    float score[] = {0.1f, 0.1f, 0.1f, 0.1f, 0.2f, 0.2f, 0.2f, 0.2f}, bias[8];
    for (int e = 0; e < 8; e++) bias[e] = -1;
    a.bias = bias;
    int32_t expert[2];
    float w[2];
    hd_ref_select_experts(&a, score, expert, w);
    assert_memory_equal(expert, ((int32_t[]){4, 5}), sizeof expert);
}

static void routing_ties_and_nan_give_valid_experts(void **state) {
    (void)state;
    struct hd_op_route a = v3_route();
    float tie[8], nan[8], w[2];
    for (int e = 0; e < 8; e++) {
        tie[e] = 0.5f;
        nan[e] = NAN;
    }
    int32_t expert[2];
    hd_ref_select_experts(&a, tie, expert, w);
    assert_memory_equal(expert, ((int32_t[]){0, 1}), sizeof expert);
    hd_ref_select_experts(&a, nan, expert, w);
    assert_true(expert[0] >= 0 && expert[0] < expert[1] && expert[1] < 8);
    for (int e = 0; e < 8; e++) tie[e] = 0;
    hd_ref_select_experts(&a, tie, expert, w); /* sum 0: 1e-20 keeps it finite */
    assert_true(w[0] == 0 && w[1] == 0);
}

static void route_gates_the_normed_row(void **state) {
    (void)state;
    hd_dev d = open_dev();
    weight *router = random_weight(HD_BF16, D, E, 1);
    float *x = random_floats(2 * D, 3), *g = random_floats(D, 1), normed[2 * D], w[2 * 3];
    int32_t expert[2 * 3];
    struct hd_op_route a = {.n_row = 2,
                            .d_model = D,
                            .x = x,
                            .norm = g,
                            .eps = 1e-6f,
                            .router = &router->w,
                            .gating = HD_GATING_SOFTMAX,
                            .n_expert = E,
                            .n_used = 3,
                            .n_group = 1,
                            .n_group_used = 1,
                            .scale = 1,
                            .normed = normed,
                            .expert = expert,
                            .weight = w};
    d.ops->route(d.ctx, &a);
    for (int row = 0; row < 2; row++) {
        double n[D], z[E], sum = 0;
        norm(x + row * D, g, 1e-6, D, n);
        matvec(router, 0, n, z);
        for (int e = 0; e < E; e++) sum += exp(z[e]);
        for (int i = 0; i < D; i++) assert_close((double)normed[row * D + i], n[i], 1e-6);
        for (int k = 0; k < 3; k++) {
            int e = expert[row * 3 + k], n_better = 0;
            for (int o = 0; o < E; o++) n_better += z[o] > z[e];
            assert_true(n_better < 3 && (k == 0 || e > expert[row * 3 + k - 1]));
            assert_close((double)w[row * 3 + k], exp(z[e]) / sum, 1e-6);
        }
    }
    free(x);
    free(g);
    free_weight(router);
    hd_dev_close(&d);
}

/* ---- feed-forward ---- */

/* out += scale * down(silu(gate n) * up n) */
static void add_expert(const weight *const w[3], int m, const double *n, double scale,
                       double *out) {
    double gate[F], up[F], y[D];
    matvec(w[0], m, n, gate);
    matvec(w[1], m, n, up);
    for (int i = 0; i < w[0]->w.n_out; i++) gate[i] = silu(gate[i]) * up[i];
    matvec(w[2], m, gate, y);
    for (int i = 0; i < D; i++) out[i] += scale * y[i];
}

static void ffn_and_moe_follow_their_formulas(void **state) {
    (void)state;
    hd_dev d = open_dev();
    weight *dense[3] = {random_weight(HD_BF16, D, F, 1), random_weight(HD_F32, D, F, 1),
                        random_weight(HD_F16, F, D, 1)};
    weight *routed[3] = {random_weight(HD_BF16, D, FE, E), random_weight(HD_Q8_0, D, FE, E),
                         random_weight(HD_BF16, FE, D, E)};
    weight *shared[3] = {random_weight(HD_BF16, D, F, 1), random_weight(HD_BF16, D, F, 1),
                         random_weight(HD_BF16, F, D, 1)};
    enum { R = 5 };
    float *x = random_floats(R * D, 2), *g = random_floats(D, 1);
    double want[R][D];
    for (int r = 0; r < R; r++) {
        double n[D];
        for (int i = 0; i < D; i++) want[r][i] = (double)x[r * D + i];
        norm(x + r * D, g, 1e-6, D, n);
        add_expert((const weight *const *)dense, 0, n, 1, want[r]);
    }
    d.ops->ffn(d.ctx, &(struct hd_op_ffn){.n_row = R,
                                          .d_model = D,
                                          .norm = g,
                                          .eps = 1e-6f,
                                          .gate = &dense[0]->w,
                                          .up = &dense[1]->w,
                                          .down = &dense[2]->w,
                                          .x = x});
    for (int i = 0; i < R * D; i++) assert_close((double)x[i], want[i / D][i % D], 2e-6);

    int32_t expert[R][2] = {{0, 3}, {3, 7}, {0, 1}, {6, 7}, {0, 3}}; /* 2, 4 and 5 stay unused */
    float weights[R][2] = {{0.5f, 1}, {2, 0.25f}, {1, 1}, {0, 1.5f}, {-1, 0.125f}};
    float *normed = random_floats(R * D, 1);
    for (int r = 0; r < R; r++) {
        double n[D];
        for (int i = 0; i < D; i++) {
            n[i] = (double)normed[r * D + i];
            want[r][i] = (double)x[r * D + i];
        }
        for (int k = 0; k < 2; k++)
            add_expert((const weight *const *)routed, expert[r][k], n, (double)weights[r][k],
                       want[r]);
        add_expert((const weight *const *)shared, 0, n, 1, want[r]);
    }
    d.ops->moe(d.ctx, &(struct hd_op_moe){.n_row = R,
                                          .d_model = D,
                                          .n_used = 2,
                                          .normed = normed,
                                          .expert = &expert[0][0],
                                          .weight = &weights[0][0],
                                          .gate = &routed[0]->w,
                                          .up = &routed[1]->w,
                                          .down = &routed[2]->w,
                                          .shared_gate = &shared[0]->w,
                                          .shared_up = &shared[1]->w,
                                          .shared_down = &shared[2]->w,
                                          .x = x});
    for (int i = 0; i < R * D; i++) assert_close((double)x[i], want[i / D][i % D], 2e-6);
    for (int k = 0; k < 3; k++) {
        free_weight(dense[k]);
        free_weight(routed[k]);
        free_weight(shared[k]);
    }
    free(x);
    free(g);
    free(normed);
    hd_dev_close(&d);
}

/* ---- both ends ---- */

static void embed_and_head_pick_rows(void **state) {
    (void)state;
    hd_dev d = open_dev();
    weight *table = random_weight(HD_BF16, D, 100, 1);
    float *x = malloc(4 * D * sizeof *x), *g = random_floats(D, 1), logits[2 * 100];
    int32_t token[] = {99, 0, 7, 7}, row[] = {1, 3};
    d.ops->embed(d.ctx,
                 &(struct hd_op_embed){.n_row = 4, .token = token, .table = &table->w, .x = x});
    for (int r = 0; r < 4; r++)
        for (int i = 0; i < D; i++) assert_true((double)x[r * D + i] == at(table, 0, token[r], i));
    d.ops->head(d.ctx, &(struct hd_op_head){.n_out = 2,
                                            .d_model = D,
                                            .row = row,
                                            .x = x,
                                            .norm = g,
                                            .eps = 1e-6f,
                                            .w = &table->w,
                                            .logits = logits});
    for (int i = 0; i < 2; i++) {
        double n[D], want[100];
        norm(x + row[i] * D, g, 1e-6, D, n);
        matvec(table, 0, n, want);
        for (int v = 0; v < 100; v++) assert_close((double)logits[i * 100 + v], want[v], 1e-6);
    }
    free(x);
    free(g);
    free_weight(table);
    hd_dev_close(&d);
}

/* ---- attention ---- */

/* A layer's weights, a rope table and a cache, for two sequences of 60 and 5 tokens. */
typedef struct layer {
    weight *q, *q_a, *q_b, *kv_a, *k_b, *v_b;
    float *attn_norm, *q_a_norm, *kv_a_norm, *rope, *x;
    hd_batch b;
} layer;

enum { N_TOK = 60 + 5 };

static void make_batch(hd_batch *b, enum hd_mla_form form) {
    static const int pages[2][5] = {{7, 2, 11, 0, 5}, {3, 1, 4, 6, 8}}; /* scattered */
    static const int n_tok[2] = {60, 5};
    hd_batch_init(b, N_TOK, 2, 8, PAGE_TOK);
    for (int s = 0; s < 2; s++) {
        for (int p = 0; p < n_tok[s]; p++) {
            int r = b->n_row++;
            b->token[r] = 1;
            b->pos[r] = p;
            b->row_seq[r] = s;
            b->kv_row[r] = pages[s][p / PAGE_TOK] * PAGE_TOK + p % PAGE_TOK;
            b->form[r] = (uint8_t)form;
        }
        for (int k = 0; k * PAGE_TOK < n_tok[s]; k++) b->page[b->n_page++] = pages[s][k];
        b->n_seq++;
        b->seq_row0[b->n_seq] = b->n_row;
        b->seq_page0[b->n_seq] = b->n_page;
    }
    hd_batch_check(b);
}

static layer make_layer(enum hd_mla_form form) {
    layer l = {.q = random_weight(HD_F32, D, H * (NOPE + ROPE), 1),
               .q_a = random_weight(HD_F32, D, LORA, 1),
               .q_b = random_weight(HD_F32, LORA, H * (NOPE + ROPE), 1),
               .kv_a = random_weight(HD_F32, D, C + ROPE, 1),
               .k_b = random_weight(HD_F32, NOPE, C, H),
               .v_b = random_weight(HD_F32, C, V, H),
               .attn_norm = random_floats(D, 1),
               .q_a_norm = random_floats(LORA, 2),
               .kv_a_norm = random_floats(C, 2),
               .rope = malloc(N_POS * ROPE * sizeof(float)),
               .x = random_floats(N_TOK * D, 1)};
    for (int p = 0; p < N_POS; p++)
        for (int i = 0; i < ROPE / 2; i++) {
            l.rope[p * ROPE + 2 * i] = (float)cos(p * pow(0.1, i));
            l.rope[p * ROPE + 2 * i + 1] = (float)sin(p * pow(0.1, i));
        }
    make_batch(&l.b, form);
    return l;
}
static void free_layer(layer *l) {
    weight *w[] = {l->q, l->q_a, l->q_b, l->kv_a, l->k_b, l->v_b};
    for (size_t i = 0; i < HD_COUNT_OF(w); i++) free_weight(w[i]);
    float *p[] = {l->attn_norm, l->q_a_norm, l->kv_a_norm, l->rope, l->x};
    for (size_t i = 0; i < HD_COUNT_OF(p); i++) free(p[i]);
    hd_batch_fini(&l->b);
}

static void rotate(double *x, int pos) {
    for (int i = 0; i < ROPE / 2; i++) {
        double angle = pos * pow(0.1, i), a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cos(angle) - b * sin(angle);
        x[2 * i + 1] = b * cos(angle) + a * sin(angle);
    }
}

/* Textbook attention in double: keys and values of all tokens, then one softmax a row and head.
 * want [N_TOK, H, V]. */
static void naive_attention(const layer *l, bool q_lora, double scale, double *want) {
    static double q[N_TOK][H * (NOPE + ROPE)], kv[N_TOK][C + ROPE], n[D], lora[LORA];
    for (int r = 0; r < N_TOK; r++) {
        norm(l->x + r * D, l->attn_norm, 1e-6, D, n);
        matvec(l->kv_a, 0, n, kv[r]);
        float c[C], low[LORA];
        for (int i = 0; i < C; i++) c[i] = (float)kv[r][i];
        norm(c, l->kv_a_norm, 1e-5, C, kv[r]);
        rotate(kv[r] + C, l->b.pos[r]);
        if (q_lora) {
            matvec(l->q_a, 0, n, lora);
            for (int i = 0; i < LORA; i++) low[i] = (float)lora[i];
            norm(low, l->q_a_norm, 1e-5, LORA, lora);
            matvec(l->q_b, 0, lora, q[r]);
        } else {
            matvec(l->q, 0, n, q[r]);
        }
        for (int h = 0; h < H; h++) rotate(q[r] + h * (NOPE + ROPE) + NOPE, l->b.pos[r]);
    }
    for (int r = 0; r < N_TOK; r++)
        for (int h = 0; h < H; h++) {
            int first = l->b.seq_row0[l->b.row_seq[r]];
            const double *qh = q[r] + h * (NOPE + ROPE);
            double p[N_TOK], sum = 0, *out = want + (r * H + h) * V;
            for (int t = first; t <= r; t++) {
                double s = 0;
                for (int i = 0; i < NOPE; i++) {
                    double key = 0;
                    for (int j = 0; j < C; j++) key += at(l->k_b, h, j, i) * kv[t][j];
                    s += qh[i] * key;
                }
                for (int i = 0; i < ROPE; i++) s += qh[NOPE + i] * kv[t][C + i];
                sum += p[t] = exp(scale * s);
            }
            for (int i = 0; i < V; i++) out[i] = 0;
            for (int t = first; t <= r; t++) {
                double v[V];
                matvec(l->v_b, h, kv[t], v);
                for (int i = 0; i < V; i++) out[i] += p[t] / sum * v[i];
            }
        }
}

static void run_attention(const hd_dev *d, const layer *l, bool q_lora, enum hd_kv_type t,
                          void *cache, float *out) {
    float *q = malloc(N_TOK * H * (NOPE + ROPE) * sizeof *q);
    hd_kv_layout kv = hd_kv_latent(t, C, ROPE);
    d->ops->mla_qkv(d->ctx, &(struct hd_op_mla_qkv){.batch = &l->b,
                                                    .x = l->x,
                                                    .norm = l->attn_norm,
                                                    .eps = 1e-6f,
                                                    .lora_eps = 1e-5f,
                                                    .q = q_lora ? NULL : &l->q->w,
                                                    .q_a = &l->q_a->w,
                                                    .q_a_norm = l->q_a_norm,
                                                    .q_b = &l->q_b->w,
                                                    .kv_a = &l->kv_a->w,
                                                    .kv_a_norm = l->kv_a_norm,
                                                    .rope_cs = l->rope,
                                                    .d_model = D,
                                                    .n_head = H,
                                                    .n_nope = NOPE,
                                                    .n_rope = ROPE,
                                                    .n_c = C,
                                                    .kv = kv,
                                                    .cache = cache,
                                                    .q_out = q});
    d->ops->mla_attn(d->ctx, &(struct hd_op_mla_attn){.batch = &l->b,
                                                      .q = q,
                                                      .kv = kv,
                                                      .cache = cache,
                                                      .k_b = &l->k_b->w,
                                                      .v_b = &l->v_b->w,
                                                      .n_head = H,
                                                      .n_nope = NOPE,
                                                      .n_rope = ROPE,
                                                      .n_c = C,
                                                      .n_v = V,
                                                      .scale = 0.3f,
                                                      .out = out});
    free(q);
}

static void check_attention(enum hd_mla_form form, bool q_lora, enum hd_kv_type t, double bound) {
    hd_kv_layout kv = hd_kv_latent(t, C, ROPE);
    hd_dev d = open_dev();
    layer l = make_layer(form);
    void *cache;
    assert_ok(d.ops->alloc(d.ctx, hd_kv_bytes(&kv, N_PAGE * PAGE_TOK), &cache));
    float *out = malloc(N_TOK * H * V * sizeof *out);
    double *want = malloc(N_TOK * H * V * sizeof *want);
    run_attention(&d, &l, q_lora, t, cache, out);
    naive_attention(&l, q_lora, (double)0.3f, want);
    for (int i = 0; i < N_TOK * H * V; i++) assert_close((double)out[i], want[i], bound);
    free(out);
    free(want);
    d.ops->free(d.ctx, cache);
    free_layer(&l);
    hd_dev_close(&d);
}

static void attention_absorbed_and_expanded_are_textbook_attention(void **state) {
    (void)state;
    for (int form = HD_MLA_ABSORBED; form <= HD_MLA_EXPANDED; form++)
        for (int q_lora = 0; q_lora < 2; q_lora++) {
            check_attention((enum hd_mla_form)form, q_lora, HD_KV_F32, 3e-6);
            check_attention((enum hd_mla_form)form, q_lora, HD_KV_F16, 1e-2);
            check_attention((enum hd_mla_form)form, q_lora, HD_KV_BF16, 5e-2);
            check_attention((enum hd_mla_form)form, q_lora, HD_KV_INT8, 5e-2);
            check_attention((enum hd_mla_form)form, q_lora, HD_KV_FP8, 4e-1);
        }
}

static void nothing_fails_on_nan(void **state) {
    (void)state;
    hd_dev d = open_dev();
    layer l = make_layer(HD_MLA_ABSORBED);
    for (int r = 0; r < N_TOK; r++) l.b.form[r] = (uint8_t)(r % 2);
    for (int i = 0; i < N_TOK * D; i++) l.x[i] = i % 3 ? NAN : INFINITY;
    void *cache;
    assert_ok(d.ops->alloc(d.ctx, N_PAGE * PAGE_TOK * (C + ROPE) * 2, &cache));
    float *out = malloc(N_TOK * H * V * sizeof *out);
    run_attention(&d, &l, true, HD_KV_BF16, cache, out);
    assert_true(isnan(out[0]));
    free(out);
    d.ops->free(d.ctx, cache);
    free_layer(&l);
    hd_dev_close(&d);
}

/* ---- registry ---- */

static void backends_open_by_name(void **state) {
    (void)state;
    hd_dev d;
    assert_int_equal(hd_dev_open("abacus", NULL, &d), HD_E_UNSUPPORTED);
    assert_non_null(strstr(hd_error_text(), "abacus"));
    assert_non_null(strstr(hd_error_text(), "ref"));
    assert_null(d.ops);
    assert_ok(hd_dev_open("auto", NULL, &d));
    hd_dev_close(&d);
    assert_ok(hd_dev_open("ref", NULL, &d));
    hd_buf b;
    hd_buf_init(&b, 1000);
    d.ops->describe(d.ctx, &b);
    assert_true(b.len > 0);
    hd_buf_fini(&b);
    hd_dev_limits l = {.n_row = 1, .n_expert = 100000, .n_pos = 1};
    assert_int_equal(d.ops->reserve(d.ctx, &l), HD_E_UNSUPPORTED);
    hd_dev_close(&d);
    assert_string_equal(hd_op_name(HD_OP_mla_attn), "mla_attn");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dot_is_exact_where_float_is_not),
        cmocka_unit_test(rms_norm_scales_by_the_root_mean_square),
        cmocka_unit_test(softmax_does_not_overflow),
        cmocka_unit_test(gates_saturate),
        cmocka_unit_test(rope_rotates_interleaved_pairs),
        cmocka_unit_test(top_k_takes_ties_from_below_and_survives_nan),
        cmocka_unit_test(weighted_sum_is_a_sum_of_rows),
        cmocka_unit_test(matmul_reads_every_format),
        cmocka_unit_test(groups_are_scored_by_their_two_best),
        cmocka_unit_test(bias_selects_but_does_not_weigh),
        cmocka_unit_test(a_masked_group_stays_out_even_if_the_kept_are_negative),
        cmocka_unit_test(routing_ties_and_nan_give_valid_experts),
        cmocka_unit_test(route_gates_the_normed_row),
        cmocka_unit_test(ffn_and_moe_follow_their_formulas),
        cmocka_unit_test(embed_and_head_pick_rows),
        cmocka_unit_test(attention_absorbed_and_expanded_are_textbook_attention),
        cmocka_unit_test(nothing_fails_on_nan),
        cmocka_unit_test(backends_open_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
