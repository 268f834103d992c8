/* Ops that compute one rank's part: the ranks' parts add up to the whole, for columns of a product,
 * parts of a feed-forward and experts by rank; a part is bit for bit the same op on zeros. */
#include "support/op_data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { D = 96, F = 64, E = 12, USED = 4, ROWS = 9, RANKS = 3 };

static hd_dev_limits limits(void) {
    return (hd_dev_limits){.n_row = ROWS,
                           .n_seq = ROWS,
                           .n_out = ROWS,
                           .d_model = D,
                           .n_vocab = D,
                           .d_ff = 2 * F,
                           .d_expert = F,
                           .n_expert = E,
                           .n_used = USED,
                           .n_head = 1,
                           .n_nope = 32,
                           .n_rope = 32,
                           .n_c = 32,
                           .n_v = D,
                           .q_lora = 32,
                           .n_pos = 16};
}

/* Runs an op on x [ROWS, D]. rank: whose part, or -1: the whole, residual and all. */
typedef void (*part_fn)(const hd_dev *d, int rank, bool is_partial, float *x);

/* On every level: parts over what is no number equal those over zeros; rank 0's with the residual
 * and the others' without add up to the whole. */
static void check_parts(part_fn run, double bound, const char *what) {
    enum { N = ROWS * D };
    hd_dev_limits l = limits();
    test_level level[TEST_LEVEL_MAX];
    int n_level = test_levels(level);
    float *x = test_floats(N, 1), *whole = test_floats(N, 0);
    float *sum = test_floats(N, 0), *part = test_floats(N, 0), *zero = test_floats(N, 0);
    hd_dev ref = test_open_ref(&l);
    memcpy(whole, x, N * sizeof *x);
    run(&ref, -1, false, whole);
    test_close(&ref);
    for (int i = 0; i <= n_level; i++) {
        hd_dev d = i < n_level ? test_open_cpu(level[i], &l) : test_open_ref(&l);
        memcpy(sum, x, N * sizeof *x);
        run(&d, 0, false, sum);
        for (int rank = 1; rank < RANKS; rank++) {
            for (int k = 0; k < N; k++) part[k] = NAN, zero[k] = 0;
            run(&d, rank, true, part);
            run(&d, rank, false, zero);
            for (int k = 0; k < N; k++)
                if (!(part[k] == zero[k])) fail_msg("%s: rank %d, value %d", what, rank, k);
            for (int k = 0; k < N; k++) sum[k] += part[k];
        }
        test_rows_close(sum, whole, ROWS, D, bound, what);
        test_close(&d);
    }
    free(x);
    free(whole);
    free(sum);
    free(part);
    free(zero);
}

/* ---- experts by rank ---- */

static hd_weight *gate, *up, *down, *shared_gate, *shared_up, *shared_down;
static float *normed, *weight;
static int32_t expert[ROWS * USED];

/* The matrices of rank r: 4 of 12; the last rank's last expert is one that nobody chose. */
static hd_weight share(const hd_weight *w, int rank) {
    hd_weight part = *w;
    if (rank < 0) return part;
    part.n_mat = E / RANKS;
    part.mat = w->mat + rank * part.n_mat;
    return part;
}

static void run_moe(const hd_dev *d, int rank, bool is_partial, float *x) {
    hd_weight g = share(gate, rank), u = share(up, rank), w = share(down, rank);
    struct hd_op_moe a = {.n_row = ROWS,
                          .d_model = D,
                          .n_used = USED,
                          .normed = normed,
                          .expert = expert,
                          .weight = weight,
                          .expert0 = rank < 0 ? 0 : rank * (E / RANKS),
                          .gate = &g,
                          .up = &u,
                          .down = &w,
                          .is_partial = is_partial,
                          .x = x};
    if (rank == 1 || rank < 0) /* its hidden part is one rank's, here */
        a.shared_gate = shared_gate, a.shared_up = shared_up, a.shared_down = shared_down;
    d->ops->moe(d->ctx, &a);
}

static void experts_by_rank(void **state) {
    (void)state;
    const enum hd_format formats[] = {HD_BF16, HD_F32, HD_Q8_0};
    for (size_t f = 0; f < HD_COUNT_OF(formats); f++) {
        if (!test_has_format(formats[f])) continue;
        gate = test_weight(formats[f], D, F, E), up = test_weight(formats[f], D, F, E);
        down = test_weight(formats[f], F, D, E);
        shared_gate = test_weight(formats[f], D, F, 1),
        shared_up = test_weight(formats[f], D, F, 1);
        shared_down = test_weight(formats[f], F, D, 1);
        normed = test_floats(ROWS * D, 1), weight = test_floats(ROWS * USED, 1);
        for (int r = 0; r < ROWS; r++) /* row 0: experts of one rank alone; the last: none of it */
            for (int k = 0, e = r; k < USED; k++, e += 1 + test_below(2))
                expert[r * USED + k] = r == 0 ? k : r == ROWS - 1 ? k + USED : e % (E - 1);
        check_parts(run_moe, 1e-4, "experts by rank");
        hd_weight *const w[] = {gate, up, down, shared_gate, shared_up, shared_down};
        for (size_t i = 0; i < HD_COUNT_OF(w); i++) test_weight_free(w[i]);
        free(normed);
        free(weight);
    }
}

/* ---- experts by rank behind routing, on a device that may keep the order of rows from there ----
 */

enum { FEW = 5 };

/* n_byte of the device's, filled from `from` or with zeros. */
static void *on_device(const hd_dev *d, const void *from, size_t n_byte) {
    void *host = calloc(1, n_byte), *p = host;
    if (from) memcpy(host, from, n_byte);
    if (!hd_dev_has_memory(d)) return host;
    assert_ok(d->ops->alloc(d->ctx, n_byte, &p));
    assert_ok(hd_dev_put(d, p, host, n_byte));
    free(host);
    return p;
}
static void leave_device(const hd_dev *d, void *p) {
    if (hd_dev_has_memory(d))
        d->ops->free(d->ctx, p);
    else
        free(p);
}

static hd_weight prepared(const hd_dev *d, hd_weight w) {
    if (d->ops->prepare) assert_ok(d->ops->prepare(d->ctx, &w));
    if (d->ops->settle) assert_ok(d->ops->settle(d->ctx));
    return w;
}
static void release(const hd_dev *d, hd_weight *w) {
    if (d->ops->prepare) d->ops->release(d->ctx, w);
}

/* out [FEW, D] = what the experts of `rank` (-1: all) add for the rows that route() sends them. The
 * order that a route leaves is used once, twice it would be another op's. */
static void route_and_moe(const hd_dev *d, const hd_weight *router, int rank, const float *x,
                          float *out) {
    enum { N = FEW * D };
    hd_weight g = prepared(d, share(gate, rank)), u = prepared(d, share(up, rank));
    hd_weight w = prepared(d, share(down, rank)), by = prepared(d, *router);
    float *x_in = on_device(d, x, N * sizeof *x), *ones = test_floats(D, 0);
    for (int i = 0; i < D; i++) ones[i] = 1;
    struct hd_op_route r = {.n_row = FEW,
                            .d_model = D,
                            .x = x_in,
                            .norm = on_device(d, ones, D * sizeof *ones),
                            .eps = 1e-6f,
                            .scale = 1,
                            .router = &by,
                            .gating = HD_GATING_SOFTMAX,
                            .n_expert = E,
                            .n_used = USED,
                            .n_group = 1,
                            .n_group_used = 1,
                            .normed = on_device(d, NULL, N * sizeof *x),
                            .expert = on_device(d, NULL, FEW * USED * sizeof(int32_t)),
                            .weight = on_device(d, NULL, FEW * USED * sizeof(float))};
    struct hd_op_moe a = {.n_row = FEW,
                          .d_model = D,
                          .n_used = USED,
                          .normed = r.normed,
                          .expert = r.expert,
                          .weight = r.weight,
                          .expert0 = rank < 0 ? 0 : rank * (E / RANKS),
                          .gate = &g,
                          .up = &u,
                          .down = &w,
                          .is_partial = true,
                          .x = on_device(d, NULL, N * sizeof *x)};
    float *again = test_floats(N, 0);
    d->ops->route(d->ctx, &r);
    for (int i = 0; i < 2; i++) {
        d->ops->moe(d->ctx, &a);
        if (hd_dev_has_memory(d))
            assert_ok(hd_dev_get(d, i == 0 ? out : again, a.x, N * sizeof *x));
        else
            memcpy(i == 0 ? out : again, a.x, N * sizeof *x);
    }
    test_bits_equal(again, out, N * sizeof *x, "moe again, without a route before it");
    void *const all[] = {x_in, (void *)(uintptr_t)r.norm, r.normed, r.expert, r.weight, a.x};
    for (size_t i = 0; i < HD_COUNT_OF(all); i++) leave_device(d, all[i]);
    hd_weight *const weights[] = {&g, &u, &w, &by};
    for (size_t i = 0; i < HD_COUNT_OF(weights); i++) release(d, weights[i]);
    free(ones);
    free(again);
}

static void experts_by_rank_behind_routing(void **state) {
    (void)state;
    enum { N = FEW * D };
    hd_dev_limits l = limits();
    test_level level[TEST_LEVEL_MAX];
    int n_level = test_levels(level);
    gate = test_weight(HD_BF16, D, F, E), up = test_weight(HD_BF16, D, F, E);
    down = test_weight(HD_BF16, F, D, E);
    hd_weight *router = test_weight(HD_F32, D, E, 1);
    float *x = test_floats(N, 1), *whole = test_floats(N, 0);
    float *sum = test_floats(N, 0), *part = test_floats(N, 0);
    hd_dev ref = test_open_ref(&l);
    route_and_moe(&ref, router, -1, x, whole);
    test_close(&ref);
    for (int i = 0; i < n_level; i++) {
        hd_dev d = test_open_raw(level[i], &l);
        route_and_moe(&d, router, -1, x, part);
        test_rows_close(part, whole, FEW, D, 1e-4, "all experts behind routing");
        memset(sum, 0, N * sizeof *sum);
        for (int rank = 0; rank < RANKS; rank++) {
            route_and_moe(&d, router, rank, x, part);
            for (int k = 0; k < N; k++) sum[k] += part[k];
        }
        test_rows_close(sum, whole, FEW, D, 1e-4, "experts by rank behind routing");
        test_close(&d);
    }
    hd_weight *const w[] = {gate, up, down, router};
    for (size_t i = 0; i < HD_COUNT_OF(w); i++) test_weight_free(w[i]);
    float *const p[] = {x, whole, sum, part};
    for (size_t i = 0; i < HD_COUNT_OF(p); i++) free(p[i]);
}

/* ---- a product and a feed-forward whose hidden part is split ---- */

static hd_weight *proj[RANKS], *ffn_gate, *ffn_up, *ffn_down;
static float *inputs, *norm;

/* The whole is the parts one after another, so there is nothing to compare but their sum. */
static void run_proj(const hd_dev *d, int rank, bool is_partial, float *x) {
    for (int r = rank < 0 ? 0 : rank; r <= (rank < 0 ? RANKS - 1 : rank); r++)
        d->ops->proj_add(
            d->ctx,
            &(struct hd_op_proj_add){
                .n_row = ROWS, .a = inputs, .w = proj[r], .is_partial = is_partial, .x = x});
}

static void columns_by_rank(void **state) {
    (void)state;
    inputs = test_floats(ROWS * F, 1);
    for (int r = 0; r < RANKS; r++) proj[r] = test_weight(HD_BF16, F, D, 1);
    check_parts(run_proj, 1e-4, "columns by rank");
    for (int r = 0; r < RANKS; r++) test_weight_free(proj[r]);
    free(inputs);
}

/* A feed-forward reads x and replaces it: its part of x is x' - x of the whole op. */
static void a_part_of_a_feed_forward(void **state) {
    (void)state;
    enum { N = ROWS * D };
    hd_dev_limits l = limits();
    test_level level[TEST_LEVEL_MAX];
    int n_level = test_levels(level);
    norm = test_floats(D, 1);
    ffn_gate = test_weight(HD_BF16, D, F, 1), ffn_up = test_weight(HD_BF16, D, F, 1);
    ffn_down = test_weight(HD_BF16, F, D, 1);
    float *x = test_floats(N, 1), *added = test_floats(N, 0), *part = test_floats(N, 0);
    for (int i = 0; i <= n_level; i++) {
        hd_dev d = i < n_level ? test_open_cpu(level[i], &l) : test_open_ref(&l);
        struct hd_op_ffn a = {.n_row = ROWS,
                              .d_model = D,
                              .norm = norm,
                              .eps = 1e-6f,
                              .gate = ffn_gate,
                              .up = ffn_up,
                              .down = ffn_down};
        memcpy(added, x, N * sizeof *x);
        memcpy(part, x, N * sizeof *x);
        a.x = added;
        d.ops->ffn(d.ctx, &a);
        a.x = part, a.is_partial = true;
        d.ops->ffn(d.ctx, &a);
        for (int k = 0; k < N; k++) part[k] += x[k];
        test_rows_close(part, added, ROWS, D, 1e-6, "a part of a feed-forward");
        test_close(&d);
    }
    test_weight_free(ffn_gate);
    test_weight_free(ffn_up);
    test_weight_free(ffn_down);
    free(norm);
    free(x);
    free(added);
    free(part);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_by_rank),
        cmocka_unit_test(a_part_of_a_feed_forward),
        cmocka_unit_test(experts_by_rank),
        cmocka_unit_test(experts_by_rank_behind_routing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
