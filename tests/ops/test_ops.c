/* The cpu backend's products, feed-forwards and routing against the oracle: formats, levels,
 * awkward shapes; bit-equality of a row alone and among many, and for 1, 2 and 3 threads.
 *
 * Bounds, as a share of the row's largest value: 2e-5 a product for float weights (float32 sums of
 * up to 300 terms against double), 1e-4 for Q8_0, which rounds activations to 16 bits. */
#include "support/op_data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const enum hd_format formats[] = {HD_F32, HD_F16, HD_BF16, HD_Q8_0};
static const int row_counts[] = {1, 2, 3, 5, 6, 7, 17, 33, 64};
enum { N_FORMAT = 4, N_ROW_COUNT = 9, ROW_MAX = 300 };

static hd_dev_limits limits(void) {
    return (hd_dev_limits){.n_row = ROW_MAX,
                           .n_seq = 8,
                           .n_out = ROW_MAX,
                           .d_model = 320,
                           .n_vocab = 300,
                           .d_ff = 1152,
                           .d_expert = 96,
                           .n_expert = 12,
                           .n_used = 4,
                           .n_head = 3,
                           .n_nope = 32,
                           .n_rope = 16,
                           .n_c = 96,
                           .n_v = 107,
                           .q_lora = 96,
                           .n_pos = 300};
}

static double bound_of(enum hd_format f, int n_product) {
    return test_bound(f == HD_Q8_0 ? 1e-4 : 2e-5, 1e-2) * n_product;
}

/* Every level and thread count of `run`, which leaves its result in out[n]. The first thread count
 * of a level is compared with the oracle's result, the others with the first, bit by bit. */
typedef struct sweep {
    void (*run)(const hd_dev *d, void *ctx, float *out);
    void *ctx;
    int n_row, n;
    double bound;
    const char *what;
} sweep;

static void run_sweep(const sweep *s) {
    hd_dev_limits l = limits();
    test_level level[TEST_LEVEL_MAX];
    int n_level = test_levels(level);
    size_t n = (size_t)s->n_row * (size_t)s->n;
    float *expected = test_floats(n, 0), *first = test_floats(n, 0), *found = test_floats(n, 0);
    hd_dev ref = test_open_ref(&l);
    s->run(&ref, s->ctx, expected);
    test_close(&ref);
    for (int i = 0; i < n_level; i++) {
        hd_dev d = test_open_cpu(level[i], &l);
        s->run(&d, s->ctx, level[i].n_thread == 1 ? first : found);
        if (level[i].n_thread == 1)
            test_rows_close(first, expected, s->n_row, s->n, s->bound, s->what);
        else
            test_bits_equal(found, first, n * sizeof *found, s->what);
        test_close(&d);
    }
    free(expected);
    free(first);
    free(found);
}

/* ---- proj_add: the product itself ---- */

typedef struct proj {
    const hd_weight *w;
    const float *a, *x;
    int row0, n_row;
} proj;

static void run_proj(const hd_dev *d, void *ctx, float *out) {
    const proj *p = ctx;
    size_t n_in = (size_t)p->w->n_in, n_out = (size_t)p->w->n_out;
    memcpy(out, p->x + (size_t)p->row0 * n_out, sizeof *out * n_out * (size_t)p->n_row);
    struct hd_op_proj_add a = {
        .n_row = p->n_row, .a = p->a + (size_t)p->row0 * n_in, .w = p->w, .x = out};
    d->ops->proj_add(d->ctx, &a);
}

static void check_proj(enum hd_format f, int n_in, int n_out, int n_row) {
    char what[96];
    snprintf(what, sizeof what, "proj_add %s [%d, %d] x %d rows", hd_format_get(f)->name, n_out,
             n_in, n_row);
    hd_weight *w = test_weight(f, n_in, n_out, 1);
    float *x = test_floats((size_t)n_row * (size_t)n_out, 1);
    float *a = test_floats((size_t)n_row * (size_t)n_in, 1);
    proj p = {.w = w, .a = a, .x = x, .n_row = n_row};
    run_sweep(&(sweep){
        .run = run_proj,
        .ctx = &p,
        .n_row = n_row,
        .n = n_out,
        .bound = bound_of(f, n_out < 15 ? (int)test_bound(10, 100) : 1), /* one value may cancel */
        .what = what});
    free(a);
    free(x);
    test_weight_free(w);
}

static void products_agree_with_the_oracle(void **state) {
    (void)state;
    static const int n_outs[] = {1, 15, 16, 17, 33, 64, 65, 131};
    for (int f = 0; f < N_FORMAT; f++) {
        for (int r = 0; r < N_ROW_COUNT; r++) {
            check_proj(formats[f], 32, n_outs[r % 8], row_counts[r]);
            check_proj(formats[f], 96, n_outs[(r + 3) % 8], row_counts[r]);
            check_proj(formats[f], 160, n_outs[(r + 5) % 8], row_counts[r]);
            check_proj(formats[f], 288, 33, row_counts[r]);
        }
        check_proj(formats[f], 160, 70, ROW_MAX); /* more rows than one product call takes */
    }
}

/* Kernels for many rows start somewhere between 64 rows and these. */
static void products_of_many_rows(void **state) {
    (void)state;
    static const int n_rows[] = {65, 128, 129, 300}, n_ins[] = {45, 96, 200, 319};
    static const int n_outs[] = {17, 33, 131, 300};
    for (int f = 0; f < N_FORMAT; f++)
        for (int i = 0; i < 4; i++) {
            check_proj(formats[f], formats[f] == HD_Q8_0 ? 288 : n_ins[i], n_outs[3 - i],
                       n_rows[i]);
            check_proj(formats[f], 320, n_outs[i], n_rows[i]);
        }
    for (int i = 0; i < 4; i++) {
        check_proj(HD_F8_B128, i % 2 ? 128 : 256, n_outs[i], n_rows[i]);
        check_proj(HD_F8_B128, 1152, n_outs[i], n_rows[i]);
        check_proj(HD_F8_B128, 1152, n_outs[3 - i], 8 + 8 * i);
    }
}

static void products_of_odd_width(void **state) {
    (void)state;
    static const int n_ins[] = {1, 7, 17, 45, 130, 257};
    for (int f = 0; f < 3; f++)
        for (int i = 0; i < 6; i++) check_proj(formats[f], n_ins[i], 19, 7);
}

static void a_row_alone_equals_the_row_among_many(void **state) {
    (void)state;
    hd_dev_limits l = limits();
    test_level level[TEST_LEVEL_MAX];
    int n_level = test_levels(level);
    enum { N = 137, N_IN = 160, N_OUT = 83 };
    for (int f = 0; f < N_FORMAT; f++) {
        hd_weight *w = test_weight(formats[f], N_IN, N_OUT, 1);
        float *a = test_floats(N * N_IN, 1), *x = test_floats(N * N_OUT, 1);
        float *all = test_floats(N * N_OUT, 0), *some = test_floats(N * N_OUT, 0);
        for (int i = 0; i < n_level; i++) {
            hd_dev d = test_open_cpu(level[i], &l);
            proj p = {.w = w, .a = a, .x = x, .n_row = N};
            run_proj(&d, &p, all);
            for (int n = 1; n <= 81; n += n < 9 ? 1 : 8) { /* splits into runs of n rows */
                for (p.row0 = 0; p.row0 < N; p.row0 += n) {
                    p.n_row = N - p.row0 < n ? N - p.row0 : n;
                    run_proj(&d, &p, some + p.row0 * N_OUT);
                }
                test_rows_equal(some, all, sizeof *all * N * N_OUT, "rows in parts");
            }
            test_close(&d);
        }
        free(a);
        free(x);
        free(all);
        free(some);
        test_weight_free(w);
    }
}

/* ---- embed, head, ffn ---- */

static void run_embed(const hd_dev *d, void *ctx, float *out) {
    struct hd_op_embed a = *(struct hd_op_embed *)ctx;
    a.x = out;
    d->ops->embed(d->ctx, &a);
}

static void embed_is_exact(void **state) {
    (void)state;
    for (int f = 0; f < N_FORMAT; f++) {
        for (int n_in = 32; n_in <= 288; n_in += 64) {
            hd_weight *w = test_weight(formats[f], n_in, 50, 1);
            int32_t token[33];
            for (int i = 0; i < 33; i++) token[i] = test_below(50);
            struct hd_op_embed a = {.n_row = 33, .token = token, .table = w};
            run_sweep(&(sweep){
                .run = run_embed, .ctx = &a, .n_row = 33, .n = n_in, .bound = 0, .what = "embed"});
            test_weight_free(w);
        }
    }
}

static void run_head(const hd_dev *d, void *ctx, float *out) {
    struct hd_op_head a = *(struct hd_op_head *)ctx;
    a.logits = out;
    d->ops->head(d->ctx, &a);
}

static void head_takes_chosen_rows(void **state) {
    (void)state;
    enum { D = 96, V = 211 };
    for (int f = 0; f < N_FORMAT; f++) {
        for (int r = 0; r < N_ROW_COUNT; r++) {
            hd_weight *w = test_weight(formats[f], D, V, 1);
            float *x = test_floats(100 * D, 3), *norm = test_floats(D, 1);
            int32_t row[64];
            for (int i = 0; i < row_counts[r]; i++) row[i] = i + 36;
            struct hd_op_head a = {.n_out = row_counts[r],
                                   .d_model = D,
                                   .row = row,
                                   .x = x,
                                   .norm = norm,
                                   .eps = 1e-6f,
                                   .w = w};
            run_sweep(&(sweep){.run = run_head,
                               .ctx = &a,
                               .n_row = a.n_out,
                               .n = V,
                               .bound = bound_of(formats[f], 1),
                               .what = "head"});
            free(x);
            free(norm);
            test_weight_free(w);
        }
    }
}

typedef struct ffn_case {
    struct hd_op_ffn a;
    const float *x;
} ffn_case;

static void run_ffn(const hd_dev *d, void *ctx, float *out) {
    const ffn_case *c = ctx;
    struct hd_op_ffn a = c->a;
    memcpy(out, c->x, sizeof *out * (size_t)a.n_row * (size_t)a.d_model);
    a.x = out;
    d->ops->ffn(d->ctx, &a);
}

static void check_ffn(enum hd_format f, enum hd_format up_format, int n_row) {
    enum { D = 96, F = 160 };
    hd_weight *gate = test_weight(f, D, F, 1), *up = test_weight(up_format, D, F, 1);
    hd_weight *down = test_weight(f, F, D, 1);
    float *norm = test_floats(D, 1), *x = test_floats((size_t)n_row * D, 1);
    ffn_case c = {.x = x,
                  .a = {.n_row = n_row,
                        .d_model = D,
                        .norm = norm,
                        .eps = 1e-6f,
                        .gate = gate,
                        .up = up,
                        .down = down}};
    run_sweep(&(sweep){
        .run = run_ffn, .ctx = &c, .n_row = n_row, .n = D, .bound = bound_of(f, 2), .what = "ffn"});
    free(x);
    free(norm);
    test_weight_free(gate);
    test_weight_free(up);
    test_weight_free(down);
}

static void ffn_agrees(void **state) {
    (void)state;
    for (int f = 0; f < N_FORMAT; f++)
        for (int r = 0; r < N_ROW_COUNT; r++) /* gate and up may differ in format */
            check_ffn(formats[f], r % 3 == 2 ? HD_F16 : formats[f], row_counts[r]);
    for (int f = 0; f < N_FORMAT; f++) check_ffn(formats[f], formats[f], 150);
}

/* ---- route ---- */

enum { RD = 96 };

typedef struct route_case {
    struct hd_op_route a;
    int32_t expert[64 * 4];
} route_case;

/* out: [R, RD + n_used]: normed rows and weights; experts go to the case and are compared there. */
static void run_route(const hd_dev *d, void *ctx, float *out) {
    route_case *c = ctx;
    struct hd_op_route a = c->a;
    int32_t expert[64 * 4];
    float *normed = test_floats((size_t)a.n_row * RD, 0);
    float *weight = test_floats((size_t)(a.n_row * a.n_used), 0);
    a.normed = normed, a.expert = expert, a.weight = weight;
    d->ops->route(d->ctx, &a);
    size_t n = sizeof *expert * (size_t)(a.n_row * a.n_used);
    if (strcmp(d->ops->name, "ref") == 0)
        memcpy(c->expert, expert, n);
    else
        test_bits_equal(expert, c->expert, n, "route: experts");
    for (int r = 0; r < a.n_row; r++) {
        memcpy(out, normed + r * RD, RD * sizeof *out);
        memcpy(out + RD, weight + r * a.n_used, sizeof *out * (size_t)a.n_used);
        out += RD + a.n_used;
    }
    free(normed);
    free(weight);
}

static void check_route(struct hd_op_route a, enum hd_format f) {
    hd_weight *w = test_weight(f, RD, a.n_expert, 1);
    float *x = test_floats((size_t)a.n_row * RD, 2), *norm = test_floats(RD, 1);
    float *bias = test_floats((size_t)a.n_expert, 0.3);
    route_case c = {.a = a};
    c.a.d_model = RD, c.a.x = x, c.a.norm = norm, c.a.router = w, c.a.eps = 1e-6f;
    c.a.bias = a.gating == HD_GATING_SIGMOID ? bias : NULL;
    run_sweep(&(sweep){.run = run_route,
                       .ctx = &c,
                       .n_row = a.n_row,
                       .n = RD + a.n_used,
                       .bound = 2e-5,
                       .what = "route"});
    free(x);
    free(norm);
    free(bias);
    test_weight_free(w);
}

static void route_agrees(void **state) {
    (void)state;
    for (int f = 0; f < N_FORMAT; f++) {
        for (int r = 0; r < N_ROW_COUNT; r++) {
            struct hd_op_route a = {.n_row = row_counts[r],
                                    .gating = HD_GATING_SIGMOID,
                                    .group_rule = HD_GROUP_TOP2_SUM,
                                    .n_expert = 12,
                                    .n_used = 3,
                                    .n_group = 4,
                                    .n_group_used = 2,
                                    .normalise = true,
                                    .scale = 2.5f};
            check_route(a, formats[f]);
            a.gating = HD_GATING_SOFTMAX, a.group_rule = HD_GROUP_MAX, a.normalise = false;
            check_route(a, formats[f]);
            a.n_group = 1, a.n_group_used = 1, a.n_used = 4, a.scale = 1;
            check_route(a, formats[f]);
        }
    }
}

enum { HOSTILE = 6 };

static void fill_hostile(float *x, int n) {
    memset(x, 0, sizeof *x * (size_t)(HOSTILE * n));
    for (int i = 0; i < n; i++) {
        x[n + i] = NAN;
        x[2 * n + i] = INFINITY;
        x[3 * n + i] = i % 2 == 0 ? INFINITY : -INFINITY;
        x[4 * n + i] = i == 3 ? NAN : 1;
        x[5 * n + i] = 3e38f;
    }
}

/* Ties go to the lower index; NaN and infinities still give distinct experts in range. */
static void route_of_hostile_rows(void **state) {
    (void)state;
    enum { E = 12, USED = 3 };
    hd_dev_limits l = limits();
    test_level level[TEST_LEVEL_MAX];
    int n_level = test_levels(level);
    hd_weight *w = test_weight(HD_F32, RD, E, 1);
    float x[HOSTILE * RD], norm[RD], normed[HOSTILE * RD], weight[HOSTILE * USED];
    int32_t expert[HOSTILE * USED];
    for (int i = 0; i < RD; i++) norm[i] = 1;
    fill_hostile(x, RD);
    for (int i = 0; i < 2 * n_level; i++) {
        hd_dev d = test_open_cpu(level[i / 2], &l);
        bool is_grouped = i % 2 == 1;
        struct hd_op_route a = {.n_row = HOSTILE,
                                .d_model = RD,
                                .x = x,
                                .norm = norm,
                                .eps = 1e-6f,
                                .router = w,
                                .gating = is_grouped ? HD_GATING_SIGMOID : HD_GATING_SOFTMAX,
                                .group_rule = HD_GROUP_TOP2_SUM,
                                .n_expert = E,
                                .n_used = USED,
                                .n_group = is_grouped ? 4 : 1,
                                .n_group_used = is_grouped ? 2 : 1,
                                .scale = 1,
                                .normed = normed,
                                .expert = expert,
                                .weight = weight};
        d.ops->route(d.ctx, &a);
        for (int k = 0; k < HOSTILE * USED; k++) {
            assert_in_range(expert[k], 0, E - 1);
            if (k % USED > 0) assert_true(expert[k] > expert[k - 1]);
        }
        for (int k = 0; k < USED; k++) assert_int_equal(expert[k], k); /* zeros: a tie */
        test_close(&d);
    }
    test_weight_free(w);
}

/* ---- moe ---- */

enum { MD = 96, MF = 96, MFS = 160, ME = 12 };

typedef struct moe_case {
    struct hd_op_moe a;
    const float *x;
} moe_case;

static void run_moe(const hd_dev *d, void *ctx, float *out) {
    const moe_case *c = ctx;
    struct hd_op_moe a = c->a;
    memcpy(out, c->x, sizeof *out * (size_t)a.n_row * MD);
    a.x = out;
    d->ops->moe(d->ctx, &a);
}

static void check_moe_rows_alone(const moe_case *c) {
    int n_row = c->a.n_row, n_used = c->a.n_used;
    hd_dev_limits l = limits();
    test_level level[TEST_LEVEL_MAX];
    int n_level = test_levels(level);
    float *all = test_floats((size_t)n_row * MD, 0), one[MD];
    for (int i = 0; i < n_level; i++) {
        hd_dev d = test_open_cpu(level[i], &l);
        moe_case whole = *c;
        run_moe(&d, &whole, all);
        for (int r = 0; r < n_row; r++) {
            moe_case single = *c;
            single.x = c->x + r * MD, single.a.n_row = 1, single.a.normed = c->a.normed + r * MD;
            single.a.expert = c->a.expert + r * n_used;
            single.a.weight = c->a.weight + r * n_used;
            run_moe(&d, &single, one);
            test_rows_equal(one, all + r * MD, sizeof one, "moe: a row alone");
        }
        test_close(&d);
    }
    free(all);
}

/* skew: every row takes the same experts, else random ones. */
static void check_moe(enum hd_format f, int n_row, int n_used, bool has_shared, bool skew) {
    hd_weight *gate = test_weight(f, MD, MF, ME), *up = test_weight(f, MD, MF, ME);
    hd_weight *down = test_weight(f, MF, MD, ME);
    hd_weight *sg = test_weight(f, MD, MFS, 1), *su = test_weight(f, MD, MFS, 1);
    hd_weight *sd = test_weight(f, MFS, MD, 1);
    float *normed = test_floats((size_t)n_row * MD, 1), *x = test_floats((size_t)n_row * MD, 1);
    float *weight = test_floats((size_t)(n_row * n_used), 1);
    int32_t *expert = malloc(sizeof *expert * (size_t)(n_row * n_used));
    assert_non_null(expert);
    for (int r = 0; r < n_row; r++) {
        int e = skew ? 2 : test_below(ME - 2 * n_used);
        for (int k = 0; k < n_used; k++, e += 1 + (skew ? 1 : test_below(2)))
            expert[r * n_used + k] = e;
    }
    moe_case c = {.x = x,
                  .a = {.n_row = n_row,
                        .d_model = MD,
                        .n_used = n_used,
                        .normed = normed,
                        .expert = expert,
                        .weight = weight,
                        .gate = gate,
                        .up = up,
                        .down = down}};
    if (has_shared) c.a.shared_gate = sg, c.a.shared_up = su, c.a.shared_down = sd;
    run_sweep(&(sweep){.run = run_moe,
                       .ctx = &c,
                       .n_row = n_row,
                       .n = MD,
                       .bound = bound_of(f, 2),
                       .what = "moe"});
    check_moe_rows_alone(&c);
    free(normed);
    free(x);
    free(weight);
    free(expert);
    hd_weight *const w[] = {gate, up, down, sg, su, sd};
    for (int i = 0; i < 6; i++) test_weight_free(w[i]);
}

static void moe_agrees(void **state) {
    (void)state;
    for (int f = 0; f < N_FORMAT; f++) {
        for (int r = 0; r < N_ROW_COUNT; r++)
            check_moe(formats[f], row_counts[r], 1 + r % 4, r % 3 != 1, r % 2 == 1);
        check_moe(formats[f], 280, 4, true, false); /* more than one block of rows is sorted */
        check_moe(formats[f], 140, 3, false, true);
    }
}

/* ---- hostile input ---- */

/* A row of NaN, of infinities or of huge values spoils itself only, and never looks healthy. */
static void hostile_rows_keep_to_themselves(void **state) {
    (void)state;
    enum { N = 5, D = 96, F = 160 };
    hd_dev_limits l = limits();
    test_level level[TEST_LEVEL_MAX];
    int n_level = test_levels(level);
    for (int f = 0; f < N_FORMAT; f++) {
        hd_weight *gate = test_weight(formats[f], D, F, 1), *up = test_weight(formats[f], D, F, 1);
        hd_weight *down = test_weight(formats[f], F, D, 1);
        float *norm = test_floats(D, 1), *clean = test_floats(N * D, 1);
        float *dirty = test_copy(clean, N * D), a[N * D], b[N * D];
        for (int i = 0; i < D; i++) {
            dirty[D + i] = i == 40 ? NAN : 1;
            dirty[3 * D + i] = i == 70 ? -INFINITY : 1;
        }
        for (int i = 0; i < n_level; i++) {
            hd_dev d = test_open_cpu(level[i], &l);
            ffn_case c = {.x = clean,
                          .a = {.n_row = N,
                                .d_model = D,
                                .norm = norm,
                                .eps = 1e-6f,
                                .gate = gate,
                                .up = up,
                                .down = down}};
            run_ffn(&d, &c, a);
            c.x = dirty;
            run_ffn(&d, &c, b);
            for (int r = 0; r < N; r += 2)
                test_bits_equal(b + r * D, a + r * D, D * sizeof *a, "clean row beside a NaN row");
            for (int k = 0; k < D; k++) assert_true(isnan(b[D + k]) && isnan(b[3 * D + k]));
            test_close(&d);
        }
        free(norm);
        free(clean);
        free(dirty);
        test_weight_free(gate);
        test_weight_free(up);
        test_weight_free(down);
    }
}

static void bad_configurations_are_refused(void **state) {
    (void)state;
    hd_dev d;
    hd_dev_config config = {.n_thread = 1, .isa = "sse9"};
    assert_int_equal(hd_dev_open("cpu", &config, &d), HD_E_UNSUPPORTED);
    config = (hd_dev_config){.n_thread = -1, .isa = "auto"};
    assert_int_equal(hd_dev_open("cpu", &config, &d), HD_E_INVALID);
    hd_dev_limits l = limits();
    l.n_expert = 100000;
    assert_ok(hd_dev_open("cpu", NULL, &d));
    assert_int_equal(d.ops->reserve(d.ctx, &l), HD_E_UNSUPPORTED);
    hd_dev_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_agree_with_the_oracle),
        cmocka_unit_test(products_of_many_rows),
        cmocka_unit_test(products_of_odd_width),
        cmocka_unit_test(a_row_alone_equals_the_row_among_many),
        cmocka_unit_test(embed_is_exact),
        cmocka_unit_test(head_takes_chosen_rows),
        cmocka_unit_test(ffn_agrees),
        cmocka_unit_test(route_agrees),
        cmocka_unit_test(route_of_hostile_rows),
        cmocka_unit_test(moe_agrees),
        cmocka_unit_test(hostile_rows_keep_to_themselves),
        cmocka_unit_test(bad_configurations_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
