/* The cpu kernels one by one, at every level this machine has: conversions against the reference
 * code over all bit patterns that matter, the exponential against libm, softmax against double. */
#include "support/op_data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void same_float(float found, float expected, uint32_t pattern, const char *what) {
    if (isnan(expected) && isnan(found)) return;
    if (memcmp(&found, &expected, sizeof found) != 0)
        fail_msg("%s of %08x: expected %a, found %a", what, pattern, (double)expected,
                 (double)found);
}

static void decoding_is_the_reference(void **state) {
    (void)state;
    const hd_cpu_kernels *k[TEST_ISA_MAX];
    int n = test_kernels(k);
    static uint16_t h[65536];
    static float found[65536];
    for (uint32_t i = 0; i < 65536; i++) h[i] = (uint16_t)i;
    for (int i = 0; i < n; i++) {
        k[i]->decode(HD_F16, h, found, 65536);
        for (uint32_t p = 0; p < 65536; p++)
            same_float(found[p], hd_f16_to_f32((uint16_t)p), p, "decode F16");
        k[i]->decode(HD_BF16, h, found, 65536);
        for (uint32_t p = 0; p < 65536; p++)
            same_float(found[p], hd_bf16_to_f32((uint16_t)p), p, "decode BF16");
    }
}

/* Around every 16-bit pattern's float value, and the rounding ties between them. */
static void encoding_is_the_reference(void **state) {
    (void)state;
    enum { N = 65536 * 8 };
    const hd_cpu_kernels *k[TEST_ISA_MAX];
    int n = test_kernels(k);
    float *x = malloc(sizeof *x * N), back[2];
    uint16_t *found = malloc(sizeof *found * N), *expected = malloc(sizeof *found * N);
    assert_true(x != NULL && found != NULL && expected != NULL);
    static const uint32_t low[8] = {0, 1, 0x1000, 0x0FFF, 0x1001, 0x8000, 0x7FFF, 0x8001};
    for (int f = 0; f < 2; f++) {
        enum hd_format format = f ? HD_BF16 : HD_F16;
        for (uint32_t i = 0; i < N; i++) {
            float base = f ? 0.0f : hd_f16_to_f32((uint16_t)(i / 8));
            uint32_t bits = i / 8 << 16;
            if (!f) memcpy(&bits, &base, sizeof bits);
            bits += low[i % 8];
            memcpy(&x[i], &bits, sizeof bits);
        }
        hd_format_get(format)->encode(x, expected, N);
        for (int i = 0; i < n; i++) {
            k[i]->encode(format, x, found, N);
            for (uint32_t p = 0; p < N; p++) {
                hd_format_get(format)->decode(&found[p], &back[0], 1);
                hd_format_get(format)->decode(&expected[p], &back[1], 1);
                uint32_t bits;
                memcpy(&bits, &x[p], sizeof bits);
                same_float(back[0], back[1], bits, f ? "encode BF16" : "encode F16");
            }
        }
    }
    for (int i = 0; i < n; i++) { /* lengths that are no multiple of a vector */
        for (int len = 1; len < 40; len++) {
            memset(found, 0xAA, sizeof *found * 48);
            k[i]->encode(HD_BF16, x, found, len);
            assert_int_equal(found[len], 0xAAAA);
        }
    }
    free(x);
    free(found);
    free(expected);
}

/* swiglu(g, 1) = g / (1 + e^-g). e^x is off by at most 2 units in the last place, which the
 * division and the sum may bring to 4. */
static void silu_is_accurate(void **state) {
    (void)state;
    const hd_cpu_kernels *k[TEST_ISA_MAX];
    int n = test_kernels(k);
    enum { N = 20001 };
    static float g[N], one[N], y[N];
    for (int i = 0; i < N; i++) {
        g[i] = (float)(i - N / 2) * 0.0088f;
        one[i] = 1;
    }
    for (int i = 0; i < n; i++) {
        k[i]->swiglu(g, one, N, y);
        for (int j = 0; j < N; j++) {
            double expected = (double)g[j] / (1 + exp(-(double)g[j]));
            double bound = 4 * 6e-8 * fabs(expected) + 2e-37;
            if (!(fabs((double)y[j] - expected) <= bound))
                fail_msg("%s: silu(%g): expected %.9g, found %.9g", k[i]->name, (double)g[j],
                         expected, (double)y[j]);
        }
        float hard[4] = {NAN, INFINITY, -1000, 1000};
        k[i]->swiglu(hard, one, 4, y);
        assert_true(isnan(y[0]) && isinf(y[1]) && y[2] == 0 && y[3] == 1000);
    }
}

/* Blocks of 64, each with its own maximum, merged one by one: the weights of all of them, and what
 * fold makes of sums of weighted ones. */
static void softmax_in_blocks(void **state) {
    (void)state;
    enum { Q = 16, MOST = 200 };
    const hd_cpu_kernels *k[TEST_ISA_MAX];
    int n = test_kernels(k);
    for (int i = 0; i < n; i++) {
        for (int len = 1; len <= MOST; len += 13) {
            float *s = test_floats((size_t)len * Q, 30), *p = test_copy(s, (size_t)len * Q);
            float m[2][Q], l[2][Q], keep[Q], gain[Q], sum[Q][Q], part[Q];
            for (int t = 0; t < len; t += 64) {
                int n_t = len - t < 64 ? len - t : 64, now = t > 0;
                k[i]->weigh(&(hd_cpu_weighing){.s = p + t * Q,
                                               .lds = Q,
                                               .n_t = n_t,
                                               .n_lane = Q,
                                               .scale = 0.7f,
                                               .m = m[now],
                                               .l = l[now]});
                if (now)
                    k[i]->merge(&(hd_cpu_merging){.n_lane = Q,
                                                  .m = m[0],
                                                  .l = l[0],
                                                  .block_m = m[1],
                                                  .block_l = l[1],
                                                  .keep = keep,
                                                  .gain = gain});
                for (int q = 0; q < Q; q++) {
                    for (int o = 0; o < Q; o++) part[o] = 0;
                    for (int j = t; j < t + n_t; j++) part[j % Q] += p[j * Q + q];
                    if (now)
                        k[i]->fold(sum[q], part, Q, keep[q], gain[q]);
                    else
                        memcpy(sum[q], part, sizeof part);
                }
            }
            for (int q = 0; q < Q; q++) {
                double top = -INFINITY, all = 0, by[Q] = {0};
                for (int t = 0; t < len; t++) top = fmax(top, (double)(s[t * Q + q] * 0.7f));
                for (int t = 0; t < len; t++) {
                    double e = exp((double)(s[t * Q + q] * 0.7f) - top);
                    all += e, by[t % Q] += e;
                }
                assert_true((double)m[0][q] == top && fabs((double)l[0][q] / all - 1) < 1e-6);
                /* s - max of up to 42 is rounded to 2e-6 before the exponential sees it */
                for (int o = 0; o < Q; o++)
                    assert_true(fabs((double)sum[q][o] - by[o]) <= 5e-6 * by[o] + 1e-30);
            }
            free(s);
            free(p);
        }
        float bad[3 * Q], m[Q], l[Q];
        for (int j = 0; j < 3 * Q; j++) bad[j] = j == Q + 5 ? NAN : (float)j;
        k[i]->weigh(&(hd_cpu_weighing){
            .s = bad, .lds = Q, .n_t = 3, .n_lane = Q, .scale = 1, .m = m, .l = l});
        for (int q = 0; q < Q; q++) assert_true(isnan(l[q]) == (q == 5));
    }
}

/* e^x of the weights: within 2 units in the last place of every x from -87 to 0, then down to 0. */
static void weights_are_accurate(void **state) {
    (void)state;
    enum { N = 87 * 4096 };
    const hd_cpu_kernels *k[TEST_ISA_MAX];
    int n = test_kernels(k);
    for (int i = 0; i < n; i++) {
        for (int at = 0; at < N; at += 8) {
            float s[2 * 16] = {0}, x[8], m[16], l[16];
            for (int j = 0; j < 8; j++) s[16 + j] = x[j] = -(float)(at + j) / 4096.0f;
            k[i]->weigh(&(hd_cpu_weighing){
                .s = s, .lds = 16, .n_t = 2, .n_lane = 16, .scale = 1, .m = m, .l = l});
            for (int j = 0; j < 8; j++) {
                double expected = exp((double)x[j]);
                float near = (float)expected, ulp = nextafterf(near, 1) - near;
                if (!(fabs((double)s[16 + j] - expected) <= 2 * (double)ulp))
                    fail_msg("%s: exp(%.9g): expected %.9g, found %.9g", k[i]->name, (double)x[j],
                             expected, (double)s[16 + j]);
            }
        }
        float s[2 * 16] = {0}, m[16], l[16];
        s[16] = -INFINITY, s[17] = -1000;
        k[i]->weigh(&(hd_cpu_weighing){
            .s = s, .lds = 16, .n_t = 2, .n_lane = 16, .scale = 1, .m = m, .l = l});
        assert_true(s[16] == 0 && s[17] == 0 && l[0] == 1);
    }
}

/* The values as F16, rounded in x, too. */
static uint16_t *round_to_halves(float *x, size_t n) {
    uint16_t *half = malloc(n * sizeof *half);
    assert_non_null(half);
    for (size_t i = 0; i < n; i++) {
        half[i] = hd_f32_to_f16(x[i]);
        x[i] = hd_f16_to_f32(half[i]);
    }
    return half;
}

/* Every number of rows and of panels, both strides, the three ways to end: the same as one multiply
 * and add after the other. */
enum { S_ROWS = 37, S_K = 229, S_LANES = 80 };

typedef struct strided_case {
    const float *a, *b, *c, *keep, *gain;
    const uint16_t *half; /* b as F16, or NULL */
    bool is_across;       /* a is [S_K, S_ROWS] */
    int way;              /* 0: c = sum; 1: the sum begins with c; 2: folded */
} strided_case;

static void expect_strided(const strided_case *s, bool is_fused, float *out) {
    for (int r = 0; r < S_ROWS; r++)
        for (int o = 0; o < S_LANES; o++) {
            float was = s->c[r * S_LANES + o], sum = s->way == 1 ? was : 0;
            for (int j = 0; j < S_K; j++) {
                float x = s->a[s->is_across ? j * S_ROWS + r : r * S_K + j];
                float y = s->b[j * S_LANES + o];
                sum = is_fused ? fmaf(x, y, sum) : x * y + sum;
            }
            float kept = was * s->keep[r], gain = s->gain[r];
            if (s->way == 2) sum = is_fused ? fmaf(sum, gain, kept) : sum * gain + kept;
            out[r * S_LANES + o] = sum;
        }
}

static void check_strided(const hd_cpu_kernels *k, const strided_case *s) {
    float *expected = test_copy(s->c, S_ROWS * S_LANES);
    const void *b = s->half != NULL ? (const void *)s->half : s->b;
    const void *const ahead[] = {s->a, b};
    expect_strided(s, k != &hd_cpu_scalar, expected);
    for (int n_row = 1; n_row <= S_ROWS; n_row++)
        for (int n_lane = 16; n_lane <= S_LANES; n_lane += 16) {
            float *c = test_copy(s->c, S_ROWS * S_LANES);
            k->strided(&(hd_cpu_strided){.n_row = n_row,
                                         .n_k = S_K,
                                         .n_lane = n_lane,
                                         .a = s->a,
                                         .b = {b, S_LANES, s->half != NULL},
                                         .a_row = s->is_across ? 1 : S_K,
                                         .a_step = s->is_across ? S_ROWS : 1,
                                         .b_panel = 16,
                                         .c = c,
                                         .ldc = S_LANES,
                                         .is_sum = s->way == 1,
                                         .keep = s->way == 2 ? s->keep : NULL,
                                         .gain = s->gain,
                                         .ahead = {ahead, n_row % 3, sizeof(float) * S_K}});
            for (int at = 0; at < S_ROWS * S_LANES; at++) {
                bool is_in = at / S_LANES < n_row && at % S_LANES < n_lane;
                assert_true(c[at] == (is_in ? expected : s->c)[at]);
            }
            free(c);
        }
    free(expected);
}

static void strided_products(void **state) {
    (void)state;
    const hd_cpu_kernels *k[TEST_ISA_MAX];
    int n = test_kernels(k);
    float *a = test_floats(S_ROWS * S_K, 1), *b = test_floats(S_K * S_LANES, 1);
    float *c = test_floats(S_ROWS * S_LANES, 1), *keep = test_floats(S_ROWS, 1);
    float *gain = test_floats(S_ROWS, 1);
    uint16_t *half = round_to_halves(b, S_K * S_LANES);
    for (int i = 0; i < n; i++)
        for (int at = 0; at < 12; at++)
            check_strided(k[i], &(strided_case){.a = a,
                                                .b = b,
                                                .half = at < 6 ? NULL : half,
                                                .c = c,
                                                .keep = keep,
                                                .gain = gain,
                                                .is_across = at % 2 == 1,
                                                .way = at / 2 % 3});
    free(a);
    free(b);
    free(half);
    free(c);
    free(keep);
    free(gain);
}

/* Scores of so many queries and keys: the same as four sums one after the other, every fourth value
 * in each of them. Keys end in NaN, which nothing may read. */
enum { Q_MOST = 36, Q_KEYS = HD_CPU_SCORE_KEYS, Q_KEY_MOST = 200 };

typedef struct score_case {
    int n_t, n_query, n_key;
    const float *q, *k;   /* [Q_MOST, n_key], [Q_KEYS, n_key + 1] */
    const uint16_t *half; /* k as F16, or NULL */
    int n_ahead;
} score_case;

static float expected_score(const score_case *c, int t, int q, bool is_fused) {
    float sum[4] = {0};
    for (int i = 0; i < c->n_key; i++) {
        float x = c->k[t * (c->n_key + 1) + i], y = c->q[q * c->n_key + i];
        sum[i % 4] = is_fused ? fmaf(x, y, sum[i % 4]) : x * y + sum[i % 4];
    }
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

static void check_scores(const hd_cpu_kernels *k, const score_case *c) {
    int n_four = (c->n_query + 3) / 4, n_quad = (c->n_key + 3) / 4, lds = Q_MOST + 4;
    float *by_fours = test_floats((size_t)(n_four * n_quad * 16), 0);
    float *s = test_floats((size_t)(Q_KEYS * lds), 1);
    const void *piece[Q_KEYS], *keys = c->half != NULL ? (const void *)c->half : c->k;
    for (int q = 0; q < c->n_query; q++)
        for (int i = 0; i < c->n_key; i++)
            by_fours[((q / 4 * n_quad + i / 4) * 4 + q % 4) * 4 + i % 4] = c->q[q * c->n_key + i];
    for (int i = 0; i < c->n_ahead; i++) piece[i] = c->k + i * (c->n_key + 1);
    for (int at = 0; at < Q_KEYS * lds; at++) s[at] = -7;
    k->score(&(hd_cpu_scoring){.n_t = c->n_t,
                               .n_four = n_four,
                               .n_key = c->n_key,
                               .q = by_fours,
                               .k = {keys, (size_t)c->n_key + 1, c->half != NULL},
                               .s = s,
                               .lds = (size_t)lds,
                               .ahead = {piece, c->n_ahead, sizeof(float) * (size_t)c->n_key}});
    for (int t = 0; t < Q_KEYS; t++)
        for (int q = 0; q < lds; q++) {
            float found = s[t * lds + q];
            if (t >= c->n_t || q >= 4 * n_four)
                assert_true(found == -7);
            else if (q < c->n_query)
                assert_true(found == expected_score(c, t, q, k != &hd_cpu_scalar));
        }
    free(by_fours);
    free(s);
}

static void scores(void **state) {
    (void)state;
    static const int n_keys[] = {1, 4, 6, 19, 64, 97, Q_KEY_MOST};
    const hd_cpu_kernels *kernels[TEST_ISA_MAX];
    int n = test_kernels(kernels);
    for (size_t i = 0; i < HD_COUNT_OF(n_keys); i++) {
        int n_key = n_keys[i];
        float *q = test_floats((size_t)(Q_MOST * n_key), 1);
        float *k = test_floats((size_t)(Q_KEYS * (n_key + 1)), 1);
        for (int t = 0; t < Q_KEYS; t++) k[t * (n_key + 1) + n_key] = NAN;
        uint16_t *half = round_to_halves(k, (size_t)(Q_KEYS * (n_key + 1)));
        for (int t = 1; t <= Q_KEYS; t += t < 33 ? 1 : 5)
            for (int n_query = 1; n_query <= Q_MOST; n_query += n_query < 20 ? 1 : 4)
                for (int l = 0; l < 2 * n; l++)
                    check_scores(kernels[l / 2], &(score_case){.n_t = t,
                                                               .n_query = n_query,
                                                               .n_key = n_key,
                                                               .q = q,
                                                               .k = k,
                                                               .half = l % 2 ? half : NULL,
                                                               .n_ahead = (t + n_query) % 3 * 20});
        free(q);
        free(k);
        free(half);
    }
}

/* Groups of cache rows: magnitudes over all of float's range, ties between codes, both sides of the
 * largest magnitude that a scale serves, zeros of both signs, and what is not finite. */
static void fill_group(float *x, int n, int round) {
    static const float special[] = {0.0f,    -0.0f,  448.0f, 448.00003f, 0x1p-149f, -0x1p-126f,
                                    3.4e38f, 1e-30f, 127.5f, 63.5f,      -0x1p-10f, 464.0f};
    float unit = ldexpf(1, test_below(240) - 120);
    for (int i = 0; i < n; i++) {
        x[i] = (float)test_uniform() * unit;
        if (round % 4 == 1) x[i] = ldexpf((float)(test_below(65) - 32) / 32, test_below(20) - 10);
        if (round % 4 == 2) x[i] = special[test_below(HD_COUNT_OF(special))];
        if (round % 4 == 3) x[i] = (float)(test_below(255) - 127) / 2 * unit;
    }
    if (round % 16 == 6) x[test_below(n)] = NAN;
    if (round % 16 == 10) x[test_below(n)] = -INFINITY;
}

static void cache_groups_are_the_reference(void **state) {
    (void)state;
    const hd_cpu_kernels *k[TEST_ISA_MAX];
    int n_level = test_kernels(k);
    float x[HD_KV_GROUP_MAX], expected[HD_KV_GROUP_MAX], found[HD_KV_GROUP_MAX];
    unsigned char row[512], code[HD_KV_GROUP_MAX];
    for (int round = 0; round < 20000; round++) {
        enum hd_kv_type t = round / 16 % 2 ? HD_KV_FP8 : HD_KV_INT8;
        int n = 1 + round % HD_KV_GROUP_MAX;
        hd_kv_layout l = hd_kv_layout_of(t, 1, n, 0);
        fill_group(x, n, round);
        hd_kv_encode(&l, x, row);
        hd_kv_decode(&l, row, 0, n, expected);
        uint16_t h;
        memcpy(&h, row + l.scale_at, sizeof h);
        for (int i = 0; i < n_level; i++) {
            float scale = k[i]->encode_group(t, x, code, n);
            same_float(scale, hd_bf16_to_f32(h), (uint32_t)round, "scale of round");
            test_bits_equal(code, row, (size_t)n, "codes of a group");
            k[i]->decode_group(t, code, scale, found, n);
            for (int j = 0; j < n; j++)
                same_float(found[j], expected[j], (uint32_t)round, "value of round");
        }
    }
}

/* Strips of floats: panels are what the format decodes to, sums without one are those of the
 * panels, bit for bit, and an FP8 code that is no number makes none of its output. */
static void check_streams(const hd_cpu_kernels *k, enum hd_format f, int n_in) {
    enum { n_out = 64, n_row = 13, n_in_most = 384, n_strip_most = n_out / 16 };
    _Alignas(64) static float panel[n_in_most * n_out], c[2][n_row][n_out];
    _Alignas(64) static unsigned char strips[n_in_most * n_out * sizeof(float)];
    float value[n_in_most];
    hd_weight *w = test_weight(f, n_in, n_out, 1);
    size_t row_bytes = hd_format_bytes(f, (size_t)n_in);
    unsigned char *bytes = malloc(row_bytes * n_out);
    float *x = test_floats((size_t)n_row * (size_t)n_in, 1);
    assert_non_null(bytes);
    memcpy(bytes, w->mat[0], row_bytes * n_out);
    if (f == HD_F8_B128) {
        /* Scales about the largest that takes in the factor of codes, and the least. */
        const float scale[] = {0x1.8p8f, 0x1p7f, 0x1.fffffep6f, -0x1.8p9f, 0x1p-140f, 0};
        for (size_t i = 0; i < HD_COUNT_OF(scale); i++)
            memcpy(bytes + (20 + 7 * i) * row_bytes + 132 * (i % 3), &scale[i], sizeof scale[i]);
        bytes[17 * row_bytes + 132 + 4 + 77] = 0xFF;
        for (int i = 0; i < 256; i++) /* all codes that are numbers */
            bytes[18 * row_bytes + 132 * (size_t)(i / 128) + 4 + (size_t)(i % 128)] =
                (unsigned char)(i % 128 == 127 ? 0 : i);
    }
    assert_true(hd_cpu_packed_bytes(f, n_in, n_out) <= sizeof strips);
    hd_cpu_pack(f, n_in, n_out, bytes, strips);
    for (int k0 = 0; k0 < n_in; k0 += 128)
        k->unpack(&(hd_cpu_unpack){.format = f,
                                   .n_in = n_in,
                                   .n_strip = n_strip_most,
                                   .k0 = k0,
                                   .n_k = n_in - k0 < 128 ? n_in - k0 : 128,
                                   .strip = strips,
                                   .panel = panel + k0 * n_out,
                                   .ld = n_out});
    for (int o = 0; o < n_out; o++) {
        hd_format_get(f)->decode(bytes + (size_t)o * row_bytes, value, (size_t)n_in);
        for (int i = 0; i < n_in; i++)
            if (f != HD_F8_B128 || o != 17)
                same_float(panel[i * n_out + o], value[i], (uint32_t)i, "unpacked weight");
    }
    const float *a[n_row];
    float *to[2][n_row];
    for (int r = 0; r < n_row; r++)
        a[r] = x + (size_t)r * (size_t)n_in, to[0][r] = c[0][r], to[1][r] = c[1][r];
    for (int i = 0; i < n_row * n_strip_most; i++) {
        int n = 1 + i / n_strip_most, n_strip = 1 + i % n_strip_most;
        k->product(&(hd_cpu_product){.n_row = n,
                                     .n_k = n_in,
                                     .n_lane = n_out,
                                     .a = a,
                                     .a_step = 1,
                                     .b = panel,
                                     .ldb = n_out,
                                     .c = to[0]});
        k->stream(&(hd_cpu_stream){.format = f,
                                   .n_row = n,
                                   .n_in = n_in,
                                   .n_strip = n_strip,
                                   .strip = strips,
                                   .next = strips,
                                   .a = a,
                                   .c = to[1]});
        for (int r = 0; r < n; r++)
            for (int o = 0; o < 16 * n_strip; o++)
                same_float(c[1][r][o], c[0][r][o], (uint32_t)o, hd_format_get(f)->name);
        if (n_strip == 1) continue;
        assert_true(isnan(c[1][n - 1][17]) == (f == HD_F8_B128) && !isnan(c[1][n - 1][16]));
    }
    test_weight_free(w);
    free(bytes);
    free(x);
}

static void streams_are_the_panels_sums(void **state) {
    (void)state;
    static const enum hd_format formats[] = {HD_F32, HD_F16, HD_BF16, HD_F8_B128};
    const hd_cpu_kernels *k[TEST_ISA_MAX];
    int n = test_kernels(k);
    for (int i = 0; i < n; i++)
        for (size_t f = 0; f < HD_COUNT_OF(formats); f++) {
            check_streams(k[i], formats[f], 384);
            if (formats[f] != HD_F8_B128) check_streams(k[i], formats[f], 301);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoding_is_the_reference),
        cmocka_unit_test(encoding_is_the_reference),
        cmocka_unit_test(cache_groups_are_the_reference),
        cmocka_unit_test(silu_is_accurate),
        cmocka_unit_test(softmax_in_blocks),
        cmocka_unit_test(weights_are_accurate),
        cmocka_unit_test(strided_products),
        cmocka_unit_test(scores),
        cmocka_unit_test(streams_are_the_panels_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
