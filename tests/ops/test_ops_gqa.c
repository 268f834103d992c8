/* Grouped-query attention of the cpu backend against the oracle: heads over key heads, page sizes,
 * ragged batches in random page order, cache formats, both orders of rotated pairs. Every page or
 * position that no sequence owns is NaN, so that one value read too far spoils a result. A row
 * alone and the row among many are bit-equal, which is every chunk split too, as both read the same
 * cache. The oracle itself is held against a plain double-precision formula.
 *
 * Bound: 3e-5 of the row's largest value (float32 sums of up to 300 terms against double). */
#include "support/op_data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct shape {
    int n_head, n_head_kv, d_head;
} shape;

enum { D = 96 };

static hd_dev_limits limits(const shape *s, int n_row, int n_pos) {
    return (hd_dev_limits){.n_row = n_row,
                           .n_seq = 70,
                           .n_out = 1,
                           .d_model = D,
                           .n_vocab = 10,
                           .d_ff = 32,
                           .n_head = s->n_head,
                           .n_rope = s->d_head,
                           .n_v = s->d_head,
                           .n_kv = s->n_head_kv * s->d_head,
                           .n_pos = n_pos};
}

/* One head, its keys and values of another width than a lane, a group of 7, more heads than 64. */
static const shape shapes[] = {
    {.n_head = 1, .n_head_kv = 1, .d_head = 64}, {.n_head = 4, .n_head_kv = 2, .d_head = 16},
    {.n_head = 7, .n_head_kv = 1, .d_head = 34}, {.n_head = 6, .n_head_kv = 6, .d_head = 6},
    {.n_head = 66, .n_head_kv = 2, .d_head = 8},
};

/* ---- gqa_attn ---- */

static void attend(const hd_dev *d, const struct hd_op_gqa_attn *like, const hd_batch *b,
                   const float *q, float *out) {
    struct hd_op_gqa_attn a = *like;
    a.batch = b, a.q = q, a.out = out;
    d->ops->gqa_attn(d->ctx, &a);
}

/* Head `head` of the cache row of position t of the row's sequence, in double. */
static void cached(const struct hd_op_gqa_attn *a, const void *cache, int row, int t, int head,
                   double *out) {
    const hd_batch *b = a->batch;
    const int32_t *page = b->page + b->seq_page0[b->row_seq[row]];
    size_t at = (size_t)page[t / b->page_tok] * (size_t)b->page_tok + (size_t)(t % b->page_tok);
    float x[1024];
    hd_kv_decode(&a->kv, (const char *)cache + hd_kv_bytes(&a->kv, at), 0, a->kv.n, x);
    for (int i = 0; i < a->d_head; i++) out[i] = (double)x[head * a->d_head + i];
}

static void check_formula(const struct hd_op_gqa_attn *a, const float *found, int row) {
    double score[3000], x[1024], out[1024];
    for (int h = 0; h < a->n_head; h++) {
        size_t at = ((size_t)row * (size_t)a->n_head + (size_t)h) * (size_t)a->d_head;
        int kv = h / (a->n_head / a->n_head_kv), n_pos = a->batch->pos[row] + 1;
        double sum = 0;
        for (int t = 0; t < n_pos; t++) {
            cached(a, a->keys, row, t, kv, x);
            score[t] = 0;
            for (int i = 0; i < a->d_head; i++) score[t] += (double)a->q[at + (size_t)i] * x[i];
            score[t] = exp((double)a->scale * score[t]);
            sum += score[t];
        }
        memset(out, 0, sizeof out);
        for (int t = 0; t < n_pos; t++) {
            cached(a, a->values, row, t, kv, x);
            for (int i = 0; i < a->d_head; i++) out[i] += score[t] / sum * x[i];
        }
        for (int i = 0; i < a->d_head; i++)
            assert_true(fabs(out[i] - (double)found[at + (size_t)i]) < 1e-5);
    }
}

static void check_alone(const hd_dev *d, const struct hd_op_gqa_attn *a, const hd_batch *b,
                        const float *q, const float *all) {
    size_t n = (size_t)(a->n_head * a->d_head);
    float *one = test_floats(n, 0);
    int step = 1 + b->n_row / 40;
    for (int r = 0; r < b->n_row; r += step) {
        hd_batch single;
        test_batch_row(&single, b, r);
        attend(d, a, &single, q + (size_t)r * n, one);
        test_rows_equal(one, all + (size_t)r * n, n * sizeof *one, "attention: a row alone");
        hd_batch_fini(&single);
    }
    free(one);
}

static void check_attn(const shape *s, const test_seq *seq, int n_seq, int page_tok,
                       enum hd_kv_type kv_type) {
    hd_kv_layout kv = hd_kv_heads(kv_type, s->n_head_kv, s->d_head);
    hd_batch b;
    int n_page, n_pos = 0;
    if (!test_has_kv(kv_type)) return;
    test_batch(&b, seq, n_seq, page_tok, &n_page);
    for (int i = 0; i < n_seq; i++)
        if (seq[i].n_pos > n_pos) n_pos = seq[i].n_pos;
    hd_dev_limits l = limits(s, b.n_row, n_pos);
    size_t n_row = (size_t)(s->n_head * s->d_head), n = (size_t)b.n_row * n_row;
    void *keys = test_cache(&b, n_page, &kv);
    void *values = test_cache(&b, n_page, &kv);
    float *q = test_floats(n, 2), *expected = test_floats(n, 0);
    float *first = test_floats(n, 0), *found = test_floats(n, 0);
    struct hd_op_gqa_attn a = {.batch = &b,
                               .q = q,
                               .kv = kv,
                               .keys = keys,
                               .values = values,
                               .n_head = s->n_head,
                               .n_head_kv = s->n_head_kv,
                               .d_head = s->d_head,
                               .scale = 0.3f};
    hd_dev ref = test_open_ref(&l);
    attend(&ref, &a, &b, q, expected);
    test_close(&ref);
    for (int r = 0; r < b.n_row; r += 1 + b.n_row / 5) check_formula(&a, expected, r);
    test_level level[TEST_LEVEL_MAX];
    int n_level = test_levels(level);
    for (int i = 0; i < n_level; i++) {
        hd_dev d = test_open_cpu(level[i], &l);
        attend(&d, &a, &b, q, level[i].n_thread == 1 ? first : found);
        if (level[i].n_thread == 1) {
            test_rows_close(first, expected, b.n_row, (int)n_row, test_bound(3e-5, 2e-2),
                            "attention");
            check_alone(&d, &a, &b, q, first);
        } else
            test_bits_equal(found, first, n * sizeof *found, "attention by threads");
        test_close(&d);
    }
    free(keys);
    free(values);
    free(q);
    free(expected);
    free(first);
    free(found);
    hd_batch_fini(&b);
}

static void ragged_batches(void **state) {
    (void)state;
    static const test_seq seqs[] = {{.n_pos = 128, .n_row = 128}, {.n_pos = 256, .n_row = 1},
                                    {.n_pos = 64, .n_row = 64},   {.n_pos = 1, .n_row = 1},
                                    {.n_pos = 65, .n_row = 3},    {.n_pos = 63, .n_row = 2},
                                    {.n_pos = 129, .n_row = 7},   {.n_pos = 17, .n_row = 17}};
    static const int page_toks[] = {1, 16, 64};
    for (size_t s = 0; s < HD_COUNT_OF(shapes); s++)
        for (size_t p = 0; p < HD_COUNT_OF(page_toks); p++)
            check_attn(&shapes[s], seqs, 8, page_toks[p],
                       (enum hd_kv_type)((s + 2 * p) % HD_KV_TYPE_COUNT));
}

static void codes(void **state) {
    (void)state;
    static const test_seq seqs[] = {
        {.n_pos = 150, .n_row = 40}, {.n_pos = 300, .n_row = 1}, {.n_pos = 33, .n_row = 17}};
    static const shape wide = {.n_head = 20, .n_head_kv = 10, .d_head = 96};
    for (int is_int8 = 0; is_int8 < 2; is_int8++) {
        enum hd_kv_type type = is_int8 ? HD_KV_INT8 : HD_KV_FP8;
        for (size_t s = 0; s < HD_COUNT_OF(shapes); s++) check_attn(&shapes[s], seqs, 3, 16, type);
        check_attn(&wide, seqs, 3, 16, type);
    }
}

static void long_and_many(void **state) {
    (void)state;
    static const test_seq longest[] = {{.n_pos = 300, .n_row = 300}};
    test_seq many[64];
    for (int i = 0; i < 64; i++) many[i] = (test_seq){.n_pos = 1 + i * 2, .n_row = 1};
    check_attn(&shapes[0], longest, 1, 16, HD_KV_BF16);
    check_attn(&shapes[1], many, 64, 16, HD_KV_F16);
    check_attn(&(shape){.n_head = 600, .n_head_kv = 1, .d_head = 2}, longest, 1, 16, HD_KV_F32);
}

/* So long that threads share its chunks, so many queries that the chunks' sums wait in several
 * windows. */
static void long_contexts(void **state) {
    (void)state;
    static const test_seq one[] = {{.n_pos = 2999, .n_row = 1}};
    static const test_seq rows[] = {{.n_pos = 1500, .n_row = 250}};
    static const test_seq two[] = {{.n_pos = 513, .n_row = 2}, {.n_pos = 1025, .n_row = 1}};
    check_attn(&shapes[0], one, 1, 48, HD_KV_F32);
    check_attn(&shapes[2], one, 1, 7, HD_KV_INT8);
    check_attn(&(shape){.n_head = 16, .n_head_kv = 4, .d_head = 4}, rows, 1, 64, HD_KV_F16);
    check_attn(&shapes[4], two, 2, 100, HD_KV_FP8);
}

/* A NaN that a later row of the same chunk left in either cache does not reach earlier rows. */
static void later_rows_are_not_seen(void **state) {
    (void)state;
    enum { N = 20, BAD = 13 };
    const shape *s = &shapes[1];
    test_seq seq = {.n_pos = N, .n_row = N};
    hd_batch b;
    int n_page, width = s->n_head_kv * s->d_head;
    hd_kv_layout kv = hd_kv_heads(HD_KV_F32, s->n_head_kv, s->d_head);
    test_batch(&b, &seq, 1, 16, &n_page);
    hd_dev_limits l = limits(s, N, N);
    size_t n = (size_t)(s->n_head * s->d_head);
    float *cache[2] = {test_cache(&b, n_page, &kv), test_cache(&b, n_page, &kv)};
    float *q = test_floats(N * n, 1), *clean = test_floats(N * n, 0),
          *dirty = test_floats(N * n, 0);
    struct hd_op_gqa_attn a = {.kv = kv,
                               .keys = cache[0],
                               .values = cache[1],
                               .n_head = s->n_head,
                               .n_head_kv = s->n_head_kv,
                               .d_head = s->d_head,
                               .scale = 0.3f};
    test_level level[TEST_LEVEL_MAX];
    int n_level = test_levels(level);
    for (int i = 0; i < 2 * n_level; i++) {
        float *spot = cache[i % 2] + (size_t)b.kv_row[BAD] * (size_t)width, kept = spot[3];
        hd_dev d = test_open_cpu(level[i / 2], &l);
        attend(&d, &a, &b, q, clean);
        spot[3] = NAN;
        attend(&d, &a, &b, q, dirty);
        spot[3] = kept;
        test_bits_equal(dirty, clean, BAD * n * sizeof *clean, "rows before the NaN");
        for (int r = BAD; r < N; r++) assert_true(isnan(dirty[(size_t)r * n + 3]));
        test_close(&d);
    }
    free(cache[0]);
    free(cache[1]);
    free(q);
    free(clean);
    free(dirty);
    hd_batch_fini(&b);
}

/* ---- gqa_qkv ---- */

/* Of the oracle in [0], of one thread in [1], of more threads in [2]; caches: keys, values. */
typedef struct qkv_out {
    float *q[3];
    char *cache[2][3], *before;
    size_t n_q, cache_bytes;
} qkv_out;

static void run_qkv(const hd_dev *d, struct hd_op_gqa_qkv *a, qkv_out *o, int at) {
    for (int c = 0; c < 2; c++) memcpy(o->cache[c][at], o->before, o->cache_bytes);
    a->keys = o->cache[0][at], a->values = o->cache[1][at], a->q_out = o->q[at];
    d->ops->gqa_qkv(d->ctx, a);
}

static void check_cache(char *const cache[3], const qkv_out *o, const struct hd_op_gqa_qkv *a,
                        double bound) {
    size_t bytes = hd_kv_bytes(&a->kv, 1);
    float x[256], y[256];
    for (size_t row = 0; row < o->cache_bytes / bytes; row++) {
        bool is_written = false;
        const char *p = cache[1] + row * bytes, *e = cache[0] + row * bytes;
        for (int r = 0; r < a->batch->n_row; r++) is_written |= a->batch->kv_row[r] == (int)row;
        if (!is_written) {
            test_bits_equal(p, o->before + row * bytes, bytes, "cache row of no row of the batch");
            continue;
        }
        hd_kv_decode(&a->kv, p, 0, a->kv.n, x);
        hd_kv_decode(&a->kv, e, 0, a->kv.n, y);
        test_rows_close(x, y, 1, a->kv.n, bound, "cache row");
    }
}

/* The oracle's own row: (W x + b), rotated pair by pair. */
static void check_row(const struct hd_op_gqa_qkv *a, const float *q, int row) {
    double normed[D], mean = 0;
    const float *x = a->x + (size_t)row * D;
    for (int i = 0; i < D; i++) mean += (double)x[i] * (double)x[i] / D;
    for (int i = 0; i < D; i++)
        normed[i] = (double)x[i] / sqrt(mean + (double)a->eps) * (double)a->norm[i];
    for (int h = 0; h < a->n_head; h++)
        for (int i = 0; i < a->d_head / 2; i++) {
            int pair[2] = {h * a->d_head + (a->is_half_split ? i : 2 * i),
                           h * a->d_head + (a->is_half_split ? i + a->d_head / 2 : 2 * i + 1)};
            double y[2];
            float w[D];
            for (int k = 0; k < 2; k++) {
                size_t bytes = hd_format_bytes(a->q->format, D);
                hd_format_get(a->q->format)
                    ->decode((const char *)a->q->mat[0] + (size_t)pair[k] * bytes, w, D);
                y[k] = a->q_bias ? (double)a->q_bias[pair[k]] : 0;
                for (int j = 0; j < D; j++) y[k] += (double)w[j] * normed[j];
            }
            const float *cs = a->rope_cs + a->batch->pos[row] * a->d_head + 2 * i;
            double c = (double)cs[0], s = (double)cs[1];
            assert_true(fabs(y[0] * c - y[1] * s - (double)q[pair[0]]) < 1e-5);
            assert_true(fabs(y[1] * c + y[0] * s - (double)q[pair[1]]) < 1e-5);
        }
}

static void compare_qkv(struct hd_op_gqa_qkv *a, qkv_out *o, const hd_dev_limits *l) {
    int n_q = a->n_head * a->d_head;
    hd_dev ref = test_open_ref(l);
    run_qkv(&ref, a, o, 0);
    test_close(&ref);
    for (int r = 0; r < a->batch->n_row; r += 9) check_row(a, o->q[0] + r * n_q, r);
    double bound = test_bound(a->k->format == HD_Q8_0 ? 2e-4 : 5e-5, 2e-2);
    /* and one rounding to the cache's format */
    double kv_bound = bound + test_kv_step(a->kv.type);
    test_level level[TEST_LEVEL_MAX];
    int n_level = test_levels(level);
    for (int i = 0; i < n_level; i++) {
        hd_dev d = test_open_cpu(level[i], l);
        run_qkv(&d, a, o, level[i].n_thread == 1 ? 1 : 2);
        for (int c = 0; c < 2; c++) {
            if (level[i].n_thread == 1)
                check_cache(o->cache[c], o, a, kv_bound);
            else
                test_bits_equal(o->cache[c][2], o->cache[c][1], o->cache_bytes, "cache by threads");
        }
        if (level[i].n_thread == 1)
            test_rows_close(o->q[1], o->q[0], a->batch->n_row, n_q, bound, "q");
        else
            test_bits_equal(o->q[2], o->q[1], o->n_q * sizeof *o->q[1], "q by threads");
        test_close(&d);
    }
}

static void check_qkv(const shape *s, enum hd_format wf, enum hd_kv_type kvt, bool is_qwen2) {
    static const test_seq seqs[] = {
        {.n_pos = 40, .n_row = 40}, {.n_pos = 90, .n_row = 1}, {.n_pos = 35, .n_row = 5}};
    enum { N_SEQ = 3, N_POS = 90 };
    hd_kv_layout kv = hd_kv_heads(kvt, s->n_head_kv, s->d_head);
    hd_batch b;
    if (!test_has_kv(kvt)) return;
    int n_page, n_kv = s->n_head_kv * s->d_head, n_q = s->n_head * s->d_head;
    test_batch(&b, seqs, N_SEQ, 16, &n_page);
    hd_dev_limits l = limits(s, b.n_row, N_POS);
    hd_weight *w[3] = {test_weight(wf, D, n_q, 1), test_weight(wf, D, n_kv, 1),
                       test_weight(wf, D, n_kv, 1)};
    float *bias[3] = {test_floats((size_t)n_q, 1), test_floats((size_t)n_kv, 1),
                      test_floats((size_t)n_kv, 1)};
    float *norm = test_floats(D, 1), *cs = test_floats((size_t)(N_POS * s->d_head), 1);
    float *x = test_floats((size_t)b.n_row * D, 1);
    qkv_out o = {.n_q = (size_t)(b.n_row * n_q),
                 .cache_bytes = hd_kv_bytes(&kv, (size_t)(n_page * b.page_tok)),
                 .before = test_cache(&b, n_page, &kv)};
    for (int i = 0; i < 3; i++) {
        for (int c = 0; c < 2; c++) o.cache[c][i] = malloc(o.cache_bytes);
        o.q[i] = test_floats(o.n_q, 0);
    }
    struct hd_op_gqa_qkv a = {.batch = &b,
                              .x = x,
                              .norm = norm,
                              .eps = 1e-6f,
                              .q = w[0],
                              .k = w[1],
                              .v = w[2],
                              .q_bias = is_qwen2 ? bias[0] : NULL,
                              .k_bias = is_qwen2 ? bias[1] : NULL,
                              .v_bias = is_qwen2 ? bias[2] : NULL,
                              .rope_cs = cs,
                              .is_half_split = is_qwen2,
                              .d_model = D,
                              .n_head = s->n_head,
                              .n_head_kv = s->n_head_kv,
                              .d_head = s->d_head,
                              .kv = kv};
    compare_qkv(&a, &o, &l);
    for (int i = 0; i < 3; i++) {
        for (int c = 0; c < 2; c++) free(o.cache[c][i]);
        free(o.q[i]);
        free(bias[i]);
        test_weight_free(w[i]);
    }
    free(o.before);
    free(norm);
    free(cs);
    free(x);
    hd_batch_fini(&b);
}

static void qkv_writes_its_rows_only(void **state) {
    (void)state;
    static const enum hd_format wf[] = {HD_F32, HD_F16, HD_BF16, HD_Q8_0};
    for (size_t s = 0; s < HD_COUNT_OF(shapes); s++)
        for (size_t f = 0; f < 4; f++)
            for (int is_qwen2 = 0; is_qwen2 < 2; is_qwen2++)
                check_qkv(&shapes[s], wf[f],
                          (enum hd_kv_type)((s + f + (size_t)is_qwen2) % HD_KV_TYPE_COUNT),
                          is_qwen2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ragged_batches),          cmocka_unit_test(codes),
        cmocka_unit_test(long_and_many),           cmocka_unit_test(long_contexts),
        cmocka_unit_test(later_rows_are_not_seen), cmocka_unit_test(qkv_writes_its_rows_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
