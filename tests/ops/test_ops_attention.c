/* The cpu backend's latent attention against the oracle: forms mixed in a sequence, page sizes,
 * ragged batches in random page order, cache formats. Every page or position that no sequence owns
 * is NaN, so that one value read too far spoils a result. A row alone and the row among many are
 * bit-equal, which is every chunk split too, as both read the same cache.
 *
 * Bound: 3e-5 of the row's largest value (float32 sums of up to 300 terms against double), 1e-4
 * where quantised k_b and v_b meet activations of 16 bits. */
#include "support/op_data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct shape {
    int n_head, n_nope, n_rope, n_c, n_v;
} shape;

enum { D = 96, LORA = 64 };

static hd_dev_limits limits(const shape *s, int n_row, int n_pos) {
    return (hd_dev_limits){.n_row = n_row,
                           .n_seq = 70,
                           .n_out = 1,
                           .d_model = D,
                           .n_vocab = 10,
                           .d_ff = 32,
                           .d_expert = 32,
                           .n_expert = 4,
                           .n_used = 2,
                           .n_head = s->n_head,
                           .n_nope = s->n_nope,
                           .n_rope = s->n_rope,
                           .n_c = s->n_c,
                           .n_v = s->n_v,
                           .q_lora = LORA,
                           .n_pos = n_pos};
}

static void attend(const hd_dev *d, const struct hd_op_mla_attn *like, const hd_batch *b,
                   const float *q, float *out) {
    struct hd_op_mla_attn a = *like;
    a.batch = b, a.q = q, a.out = out;
    d->ops->mla_attn(d->ctx, &a);
}

typedef struct attn_case {
    shape s;
    const test_seq *seq;
    int n_seq, page_tok;
    enum hd_kv_type kv_type;
    enum hd_format w_format;
    float scale; /* 0: 0.3 */
    const char *what;
} attn_case;

static void check_alone(const hd_dev *d, const struct hd_op_mla_attn *a, const hd_batch *b,
                        const float *q, const float *all) {
    size_t q_n = (size_t)(a->n_head * (a->n_nope + a->n_rope)), o_n = (size_t)(a->n_head * a->n_v);
    float *one = test_floats(o_n, 0);
    int step = 1 + b->n_row / 40;
    for (int r = 0; r < b->n_row; r += step) {
        hd_batch single;
        test_batch_row(&single, b, r);
        attend(d, a, &single, q + (size_t)r * q_n, one);
        test_rows_equal(one, all + (size_t)r * o_n, o_n * sizeof *one, "attention: a row alone");
        hd_batch_fini(&single);
    }
    free(one);
}

static void check_attn(const attn_case *c) {
    const shape *s = &c->s;
    hd_kv_layout kv = hd_kv_latent(c->kv_type, s->n_c, s->n_rope);
    hd_batch b;
    if (!test_has_kv(c->kv_type)) return;
    int n_page, n_pos = 0;
    test_batch(&b, c->seq, c->n_seq, c->page_tok, &n_page);
    for (int i = 0; i < c->n_seq; i++)
        if (c->seq[i].n_pos > n_pos) n_pos = c->seq[i].n_pos;
    hd_dev_limits l = limits(s, b.n_row, n_pos);
    size_t q_n = (size_t)(s->n_head * (s->n_nope + s->n_rope)), o_n = (size_t)(s->n_head * s->n_v);
    size_t n_out = (size_t)b.n_row * o_n;
    hd_weight *k_b = test_weight(c->w_format, s->n_nope, s->n_c, s->n_head);
    hd_weight *v_b = test_weight(c->w_format, s->n_c, s->n_v, s->n_head);
    void *cache = test_cache(&b, n_page, &kv);
    float *q = test_floats((size_t)b.n_row * q_n, 2);
    float *expected = test_floats(n_out, 0), *first = test_floats(n_out, 0);
    float *found = test_floats(n_out, 0);
    struct hd_op_mla_attn a = {.kv = kv,
                               .cache = cache,
                               .k_b = k_b,
                               .v_b = v_b,
                               .n_head = s->n_head,
                               .n_nope = s->n_nope,
                               .n_rope = s->n_rope,
                               .n_c = s->n_c,
                               .n_v = s->n_v,
                               .scale = c->scale > 0 ? c->scale : 0.3f};
    hd_dev ref = test_open_ref(&l);
    attend(&ref, &a, &b, q, expected);
    test_close(&ref);
    test_level level[TEST_LEVEL_MAX];
    int n_level = test_levels(level);
    for (int i = 0; i < n_level; i++) {
        hd_dev d = test_open_cpu(level[i], &l);
        attend(&d, &a, &b, q, level[i].n_thread == 1 ? first : found);
        if (level[i].n_thread == 1) {
            test_rows_close(first, expected, b.n_row, (int)o_n,
                            test_bound(c->w_format == HD_Q8_0 ? 1e-4 : 3e-5, 2e-2), c->what);
            check_alone(&d, &a, &b, q, first);
        } else
            test_bits_equal(found, first, n_out * sizeof *found, c->what);
        test_close(&d);
    }
    free(cache);
    free(q);
    free(expected);
    free(first);
    free(found);
    test_weight_free(k_b);
    test_weight_free(v_b);
    hd_batch_fini(&b);
}

static const shape shapes[] = {
    {.n_head = 1, .n_nope = 32, .n_rope = 16, .n_c = 64, .n_v = 32},
    {.n_head = 3, .n_nope = 24, .n_rope = 8, .n_c = 40, .n_v = 20},
    {.n_head = 5, .n_nope = 33, .n_rope = 6, .n_c = 97, .n_v = 17},
};

static void ragged_batches(void **state) {
    (void)state;
    static const test_seq seqs[] = {
        {.n_pos = 128, .n_row = 128, .n_expanded = 128}, {.n_pos = 256, .n_row = 1},
        {.n_pos = 64, .n_row = 64, .n_expanded = 30},    {.n_pos = 1, .n_row = 1},
        {.n_pos = 65, .n_row = 3, .n_expanded = 1},      {.n_pos = 63, .n_row = 2, .n_expanded = 2},
        {.n_pos = 129, .n_row = 7, .n_expanded = 4},     {.n_pos = 17, .n_row = 17},
    };
    static const int page_toks[] = {1, 16, 64};
    for (size_t s = 0; s < HD_COUNT_OF(shapes); s++)
        for (size_t i = 0; i < 5; i++) {
            size_t p = i % 3;
            check_attn(&(attn_case){.s = shapes[s],
                                    .seq = seqs,
                                    .n_seq = 8,
                                    .page_tok = page_toks[p],
                                    .kv_type = (enum hd_kv_type)((s + i) % HD_KV_TYPE_COUNT),
                                    .w_format = p == 0   ? HD_BF16
                                                : p == 1 ? HD_F16
                                                         : HD_F32,
                                    .what = "ragged batch"});
        }
}

static void q8_heads(void **state) {
    (void)state;
    static const test_seq seqs[] = {{.n_pos = 70, .n_row = 70, .n_expanded = 40},
                                    {.n_pos = 33, .n_row = 1}};
    check_attn(&(attn_case){.s = {.n_head = 3, .n_nope = 32, .n_rope = 16, .n_c = 96, .n_v = 24},
                            .seq = seqs,
                            .n_seq = 2,
                            .page_tok = 16,
                            .kv_type = HD_KV_BF16,
                            .w_format = HD_Q8_0,
                            .what = "Q8_0 k_b and v_b"});
}

/* Codes at the width of DeepSeek's latents, in one group and in several. Heads by sixteens, fewer
 * and more, at the width that has a kernel of its own. */
static void codes(void **state) {
    (void)state;
    static const test_seq seqs[] = {{.n_pos = 170, .n_row = 40, .n_expanded = 40},
                                    {.n_pos = 300, .n_row = 1},
                                    {.n_pos = 33, .n_row = 2}};
    static const int n_cs[] = {112, 128, 256, 512, 512, 512}, heads[] = {17, 13, 9, 5, 16, 35};
    for (size_t i = 0; i < HD_COUNT_OF(n_cs); i++)
        for (int is_int8 = 0; is_int8 < 2; is_int8++)
            check_attn(&(attn_case){.s = {.n_head = heads[i],
                                          .n_nope = 32,
                                          .n_rope = i == 1 ? 24 : 64,
                                          .n_c = n_cs[i],
                                          .n_v = 16},
                                    .seq = seqs,
                                    .n_seq = 3,
                                    .page_tok = i < 4 ? 16 : 7,
                                    .kv_type = is_int8 ? HD_KV_INT8 : HD_KV_FP8,
                                    .w_format = HD_BF16,
                                    .scale = 0.04f,
                                    .what = "a cache of codes"});
}

/* More absorbed rows than a wave holds, more expanded rows than a group holds, many sequences. */
static void long_and_many(void **state) {
    (void)state;
    static const test_seq longest[] = {{.n_pos = 300, .n_row = 300, .n_expanded = 300}};
    static const test_seq absorbed[] = {{.n_pos = 150, .n_row = 150}};
    test_seq many[64];
    for (int i = 0; i < 64; i++) many[i] = (test_seq){.n_pos = 1 + i * 2, .n_row = 1};
    attn_case c = {.s = shapes[0],
                   .seq = longest,
                   .n_seq = 1,
                   .page_tok = 16,
                   .kv_type = HD_KV_BF16,
                   .w_format = HD_BF16,
                   .what = "one long sequence"};
    check_attn(&c);
    c.seq = absorbed, c.s = shapes[1];
    check_attn(&c);
    c.seq = many, c.n_seq = 64, c.what = "64 sequences";
    check_attn(&c);
}

/* Contexts around the borders of blocks and chunks and up to 3000 positions, so that several
 * threads share a sequence's chunks; from one head to more than 128; pages of odd sizes. */
static void long_contexts(void **state) {
    (void)state;
    static const int ends[] = {1, 63, 64, 65, 255, 256, 257, 511, 513, 1000, 3000, 1793};
    static const int heads[] = {1, 2, 7, 8, 15, 16, 17, 33, 130, 4, 12, 20, 24, 40};
    static const int page_toks[] = {3, 64, 7, 100, 1, 48, 5, 16, 37};
    for (int i = 0; i < (int)HD_COUNT_OF(heads); i++) {
        test_seq seq[3];
        for (int s = 0; s < 3; s++) {
            int n_pos = ends[(5 * i + 4 * s) % (int)HD_COUNT_OF(ends)], n_row = 1 + (i + s) % 3;
            if (n_row > n_pos) n_row = n_pos;
            seq[s] = (test_seq){.n_pos = n_pos, .n_row = n_row, .n_expanded = s == 1 ? n_row : 0};
        }
        check_attn(&(attn_case){.s = {.n_head = heads[i],
                                      .n_nope = 8,
                                      .n_rope = 4 + 2 * (i % 3),
                                      .n_c = 24 + 4 * (i % 3),
                                      .n_v = 12},
                                .seq = seq + i % 2,
                                .n_seq = 3 - i % 2 - i % 3 / 2,
                                .page_tok = page_toks[i % (int)HD_COUNT_OF(page_toks)],
                                .kv_type = (enum hd_kv_type)(i % HD_KV_TYPE_COUNT),
                                .w_format = HD_F32,
                                .what = "long contexts"});
    }
}

/* A NaN that a later row of the same chunk left in the cache does not reach earlier rows. */
static void later_rows_are_not_seen(void **state) {
    (void)state;
    enum { N = 20, BAD = 13 };
    const shape s = shapes[0];
    for (int form = 0; form < 2; form++) {
        test_seq seq = {.n_pos = N, .n_row = N, .n_expanded = form == 1 ? N : 0};
        hd_batch b;
        int n_page, width = s.n_c + s.n_rope;
        hd_kv_layout kv = hd_kv_latent(HD_KV_F32, s.n_c, s.n_rope);
        test_batch(&b, &seq, 1, 16, &n_page);
        hd_dev_limits l = limits(&s, N, N);
        size_t o_n = (size_t)(s.n_head * s.n_v);
        float *cache = test_cache(&b, n_page, &kv);
        float *q = test_floats((size_t)(N * s.n_head * (s.n_nope + s.n_rope)), 1);
        float *clean = test_floats(N * o_n, 0), *dirty = test_floats(N * o_n, 0);
        hd_weight *k_b = test_weight(HD_F32, s.n_nope, s.n_c, s.n_head);
        hd_weight *v_b = test_weight(HD_F32, s.n_c, s.n_v, s.n_head);
        struct hd_op_mla_attn a = {.kv = kv,
                                   .cache = cache,
                                   .k_b = k_b,
                                   .v_b = v_b,
                                   .n_head = s.n_head,
                                   .n_nope = s.n_nope,
                                   .n_rope = s.n_rope,
                                   .n_c = s.n_c,
                                   .n_v = s.n_v,
                                   .scale = 0.3f};
        test_level level[TEST_LEVEL_MAX];
        int n_level = test_levels(level);
        float *spot = cache + (size_t)b.kv_row[BAD] * (size_t)width, kept = spot[3];
        for (int i = 0; i < n_level; i++) {
            hd_dev d = test_open_cpu(level[i], &l);
            spot[3] = kept;
            attend(&d, &a, &b, q, clean);
            spot[3] = NAN;
            attend(&d, &a, &b, q, dirty);
            test_bits_equal(dirty, clean, BAD * o_n * sizeof *clean, "rows before the NaN");
            for (int r = BAD; r < N; r++) assert_true(isnan(dirty[(size_t)r * o_n]));
            test_close(&d);
        }
        free(cache);
        free(q);
        free(clean);
        free(dirty);
        test_weight_free(k_b);
        test_weight_free(v_b);
        hd_batch_fini(&b);
    }
}

/* ---- mla_qkv ---- */

typedef struct qkv_weights {
    hd_weight *q, *q_a, *q_b, *kv_a;
    float *norm, *q_a_norm, *kv_a_norm, *cs;
} qkv_weights;

/* q and cache of the oracle in [0], of one thread in [1], of more threads in [2]. */
typedef struct qkv_out {
    float *q[3];
    char *cache[3], *before;
    size_t n_q, cache_bytes;
} qkv_out;

static void check_cache(const qkv_out *o, const struct hd_op_mla_qkv *a, double bound) {
    const hd_batch *b = a->batch;
    int width = a->n_c + a->n_rope;
    size_t bytes = hd_kv_bytes(&a->kv, 1);
    float x[256], y[256];
    for (size_t row = 0; row < o->cache_bytes / bytes; row++) {
        bool is_written = false;
        for (int r = 0; r < b->n_row; r++) is_written |= b->kv_row[r] == (int)row;
        const char *p = o->cache[1] + row * bytes, *e = o->cache[0] + row * bytes;
        if (!is_written) test_bits_equal(p, e, bytes, "cache row of no row of the batch");
        if (!is_written) continue;
        hd_kv_decode(&a->kv, p, 0, width, x);
        hd_kv_decode(&a->kv, e, 0, width, y);
        test_rows_close(x, y, 1, width, bound, "cache row");
    }
}

static void run_qkv(const hd_dev *d, struct hd_op_mla_qkv *a, qkv_out *o, int at) {
    memcpy(o->cache[at], o->before, o->cache_bytes);
    a->cache = o->cache[at], a->q_out = o->q[at];
    d->ops->mla_qkv(d->ctx, a);
}

static void compare_qkv(struct hd_op_mla_qkv *a, qkv_out *o, const hd_dev_limits *l) {
    int q_n = a->n_head * (a->n_nope + a->n_rope);
    hd_dev ref = test_open_ref(l);
    run_qkv(&ref, a, o, 0);
    test_close(&ref);
    double bound = test_bound(a->kv_a->format == HD_Q8_0 ? 2e-4 : 5e-5, 2e-2);
    /* and one rounding to the cache's format */
    double kv_bound = bound + test_kv_step(a->kv.type);
    test_level level[TEST_LEVEL_MAX];
    int n_level = test_levels(level);
    for (int i = 0; i < n_level; i++) {
        hd_dev d = test_open_cpu(level[i], l);
        run_qkv(&d, a, o, level[i].n_thread == 1 ? 1 : 2);
        if (level[i].n_thread == 1) {
            test_rows_close(o->q[1], o->q[0], a->batch->n_row, q_n, bound, "q");
            check_cache(o, a, kv_bound);
        } else {
            test_bits_equal(o->q[2], o->q[1], o->n_q * sizeof *o->q[1], "q by threads");
            test_bits_equal(o->cache[2], o->cache[1], o->cache_bytes, "cache by threads");
        }
        test_close(&d);
    }
}

static void check_qkv(const shape *s, enum hd_format wf, enum hd_kv_type kvt, bool is_lora) {
    static const test_seq seqs[] = {
        {.n_pos = 40, .n_row = 40}, {.n_pos = 90, .n_row = 1}, {.n_pos = 35, .n_row = 5}};
    enum { N_SEQ = 3, N_POS = 90 };
    hd_kv_layout kv = hd_kv_latent(kvt, s->n_c, s->n_rope);
    hd_batch b;
    if (!test_has_kv(kvt)) return;
    int n_page, width = s->n_c + s->n_rope, q_n = s->n_head * (s->n_nope + s->n_rope);
    test_batch(&b, seqs, N_SEQ, 16, &n_page);
    hd_dev_limits l = limits(s, b.n_row, N_POS);
    qkv_weights w = {.q = test_weight(wf, D, q_n, 1),
                     .q_a = test_weight(wf, D, LORA, 1),
                     .q_b = test_weight(wf, LORA, q_n, 1),
                     .kv_a = test_weight(wf, D, width, 1),
                     .norm = test_floats(D, 1),
                     .q_a_norm = test_floats(LORA, 1),
                     .kv_a_norm = test_floats((size_t)s->n_c, 1),
                     .cs = test_floats((size_t)(N_POS * s->n_rope), 1)};
    float *x = test_floats((size_t)b.n_row * D, 1);
    qkv_out o = {.n_q = (size_t)(b.n_row * q_n),
                 .cache_bytes = hd_kv_bytes(&kv, (size_t)(n_page * b.page_tok)),
                 .before = test_cache(&b, n_page, &kv)};
    for (int i = 0; i < 3; i++) {
        o.cache[i] = malloc(o.cache_bytes);
        o.q[i] = test_floats(o.n_q, 0);
    }
    struct hd_op_mla_qkv a = {.batch = &b,
                              .x = x,
                              .norm = w.norm,
                              .eps = 1e-6f,
                              .lora_eps = 1e-6f,
                              .q = is_lora ? NULL : w.q,
                              .q_a = is_lora ? w.q_a : NULL,
                              .q_a_norm = is_lora ? w.q_a_norm : NULL,
                              .q_b = is_lora ? w.q_b : NULL,
                              .kv_a = w.kv_a,
                              .kv_a_norm = w.kv_a_norm,
                              .rope_cs = w.cs,
                              .d_model = D,
                              .n_head = s->n_head,
                              .n_nope = s->n_nope,
                              .n_rope = s->n_rope,
                              .n_c = s->n_c,
                              .kv = kv};
    compare_qkv(&a, &o, &l);
    for (int i = 0; i < 3; i++) {
        free(o.cache[i]);
        free(o.q[i]);
    }
    free(o.before);
    free(x);
    hd_weight *const weights[] = {w.q, w.q_a, w.q_b, w.kv_a};
    float *const floats[] = {w.norm, w.q_a_norm, w.kv_a_norm, w.cs};
    for (int i = 0; i < 4; i++) test_weight_free(weights[i]);
    for (int i = 0; i < 4; i++) free(floats[i]);
    hd_batch_fini(&b);
}

static void qkv_writes_its_rows_only(void **state) {
    (void)state;
    static const enum hd_format wf[] = {HD_F32, HD_F16, HD_BF16, HD_Q8_0};
    for (size_t s = 0; s < HD_COUNT_OF(shapes); s++)
        for (size_t f = 0; f < 4; f++) {
            check_qkv(&shapes[s], wf[f], (enum hd_kv_type)((s + f) % HD_KV_TYPE_COUNT), true);
            check_qkv(&shapes[s], wf[f], (enum hd_kv_type)((s + f + 3) % HD_KV_TYPE_COUNT), false);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ragged_batches),
        cmocka_unit_test(q8_heads),
        cmocka_unit_test(codes),
        cmocka_unit_test(long_and_many),
        cmocka_unit_test(long_contexts),
        cmocka_unit_test(later_rows_are_not_seen),
        cmocka_unit_test(qkv_writes_its_rows_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
