/* Block formats: decoders against the layout formulas written out literally, on random bytes;
 * encode and decode round trips within each format's error. */
#include "support/check.h"

#include "quant/format.h"
#include "quant/iq2_grid.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef unsigned char u8;

static uint64_t seed = 12345;

static uint32_t next_random(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33);
}

/* Roughly Gaussian, deviation 1. */
static float gauss(void) {
    float sum = 0;
    for (int i = 0; i < 12; i++) sum += (float)next_random() / 2147483648.0f;
    return sum - 6;
}

static float h(const u8 *p) { return hd_f16_to_f32((uint16_t)(p[0] | p[1] << 8)); }

static const int kv[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                           1,    13,   25,  38,  53,  69,  89,  113};
static const float fp4[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6};

static void literal_small(enum hd_format f, const u8 *p, float *y) {
    for (int j = 0; j < 16; j++) {
        switch (f) {
        case HD_Q4_0:
            y[j] = h(p) * (float)((p[2 + j] & 15) - 8);
            y[j + 16] = h(p) * (float)((p[2 + j] >> 4) - 8);
            break;
        case HD_Q4_1:
            y[j] = h(p) * (float)(p[4 + j] & 15) + h(p + 2);
            y[j + 16] = h(p) * (float)(p[4 + j] >> 4) + h(p + 2);
            break;
        case HD_Q5_0:
        case HD_Q5_1: {
            int at = f == HD_Q5_0 ? 2 : 4;
            uint32_t qh;
            memcpy(&qh, p + at, 4);
            int lo = (p[at + 4 + j] & 15) + 16 * (int)(qh >> j & 1);
            int hi = (p[at + 4 + j] >> 4) + 16 * (int)(qh >> (j + 16) & 1);
            y[j] = f == HD_Q5_0 ? h(p) * (float)(lo - 16) : h(p) * (float)lo + h(p + 2);
            y[j + 16] = f == HD_Q5_0 ? h(p) * (float)(hi - 16) : h(p) * (float)hi + h(p + 2);
            break;
        }
        case HD_IQ4_NL:
            y[j] = h(p) * (float)kv[p[2 + j] & 15];
            y[j + 16] = h(p) * (float)kv[p[2 + j] >> 4];
            break;
        default:
            y[j] = ldexpf(fp4[p[1 + j] & 15], p[0] - 127);
            y[j + 16] = ldexpf(fp4[p[1 + j] >> 4], p[0] - 127);
        }
    }
}

static void scale_min_k4(const u8 *S, int j, int *sc, int *m) {
    if (j < 4) {
        *sc = S[j] & 63;
        *m = S[j + 4] & 63;
    } else {
        *sc = (S[j + 4] & 15) | (S[j - 4] >> 6) << 4;
        *m = (S[j + 4] >> 4) | (S[j] >> 6) << 4;
    }
}

static void literal_q45(enum hd_format f, const u8 *p, float *y) {
    float d = h(p), dmin = h(p + 2);
    const u8 *S = p + 4, *qh = p + 16, *qs = f == HD_Q4_K ? p + 16 : p + 48;
    for (int c = 0; c < 4; c++)
        for (int l = 0; l < 32; l++) {
            int s0, m0, s1, m1, b0 = 0, b1 = 0;
            scale_min_k4(S, 2 * c, &s0, &m0);
            scale_min_k4(S, 2 * c + 1, &s1, &m1);
            if (f == HD_Q5_K) {
                b0 = 16 * (qh[l] >> (2 * c) & 1);
                b1 = 16 * (qh[l] >> (2 * c + 1) & 1);
            }
            y[64 * c + l] = d * (float)s0 * (float)((qs[32 * c + l] & 15) + b0) - dmin * (float)m0;
            y[64 * c + 32 + l] =
                d * (float)s1 * (float)((qs[32 * c + l] >> 4) + b1) - dmin * (float)m1;
        }
}

static void literal_q6(const u8 *p, float *y) {
    float d = h(p + 208);
    for (int n = 0; n < 2; n++)
        for (int l = 0; l < 32; l++) {
            const u8 *ql = p + 64 * n, *qh = p + 128 + 32 * n;
            const int8_t *sc = (const int8_t *)p + 192 + 8 * n;
            int k = l / 16;
            int q1 = (ql[l] & 15) | (qh[l] & 3) << 4, q2 = (ql[l + 32] & 15) | ((qh[l] >> 2) & 3)
                                                                                   << 4;
            int q3 = (ql[l] >> 4) | ((qh[l] >> 4) & 3) << 4,
                q4 = (ql[l + 32] >> 4) | ((qh[l] >> 6) & 3) << 4;
            y[128 * n + l] = d * (float)sc[k] * (float)(q1 - 32);
            y[128 * n + l + 32] = d * (float)sc[k + 2] * (float)(q2 - 32);
            y[128 * n + l + 64] = d * (float)sc[k + 4] * (float)(q3 - 32);
            y[128 * n + l + 96] = d * (float)sc[k + 6] * (float)(q4 - 32);
        }
}

static void literal_q23(enum hd_format f, const u8 *p, float *y) {
    int scale[16];
    const u8 *S = p + 96;
    for (int i = 0; i < 16; i++) {
        int low = i < 8 ? S[i] & 15 : S[i - 8] >> 4;
        scale[i] = (low | ((S[8 + (i & 3)] >> (2 * (i >> 2))) & 3) << 4) - 32;
    }
    for (int n = 0; n < 2; n++)
        for (int q = 0; q < 4; q++)
            for (int l = 0; l < 32; l++) {
                int g = 8 * n + 2 * q + (l >= 16), at = 128 * n + 32 * q + l;
                if (f == HD_Q2_K) {
                    int v = (p[16 + 32 * n + l] >> (2 * q)) & 3;
                    y[at] =
                        h(p + 80) * (float)(p[g] & 15) * (float)v - h(p + 82) * (float)(p[g] >> 4);
                } else {
                    int v =
                        ((p[32 + 32 * n + l] >> (2 * q)) & 3) - (p[l] >> (4 * n + q) & 1 ? 0 : 4);
                    y[at] = h(p + 108) * (float)scale[g] * (float)v;
                }
            }
}

static void literal_iq4_xs(const u8 *p, float *y) {
    int scales_h = p[2] | p[3] << 8;
    for (int b = 0; b < 8; b++) {
        int low = b % 2 ? p[4 + b / 2] >> 4 : p[4 + b / 2] & 15;
        int ls = low | ((scales_h >> (2 * b)) & 3) << 4;
        for (int j = 0; j < 16; j++) {
            y[32 * b + j] = h(p) * (float)(ls - 32) * (float)kv[p[8 + 16 * b + j] & 15];
            y[32 * b + 16 + j] = h(p) * (float)(ls - 32) * (float)kv[p[8 + 16 * b + j] >> 4];
        }
    }
}

static void literal_iq2_xxs(const u8 *p, float *y) {
#define CODE(c) c,
    static const uint16_t grid[256] = {HD_IQ2_GRID(CODE)};
#undef CODE
    static const float value[3] = {8, 25, 43};
    for (int b = 0; b < 8; b++) {
        uint32_t s;
        memcpy(&s, p + 2 + 8 * b + 4, 4);
        float db = h(p) * (0.5f + (float)(s >> 28)) * 0.25f;
        for (int l = 0; l < 4; l++) {
            uint32_t c = s >> (7 * l) & 127, n = 0;
            for (int j = 0; j < 7; j++) n += c >> j & 1;
            c |= (n & 1) << 7;
            for (int j = 0; j < 8; j++)
                y[32 * b + 8 * l + j] =
                    db * value[grid[p[2 + 8 * b + l]] >> (2 * j) & 3] * (c >> j & 1 ? -1.0f : 1.0f);
        }
    }
}

static float literal_e4m3(u8 b) {
    int e = b >> 3 & 15, m = b & 7;
    float v = e ? ldexpf(1 + (float)m / 8, e - 7) : ldexpf((float)m / 8, -6);
    if ((b & 127) == 127) v = NAN;
    return b & 128 ? -v : v;
}

static void literal_f8(const u8 *p, float *y) {
    float scale;
    memcpy(&scale, p, 4);
    for (int i = 0; i < 128; i++) y[i] = scale * literal_e4m3(p[4 + i]);
}

static void literal(enum hd_format f, const u8 *p, float *y) {
    switch (f) {
    case HD_Q2_K:
    case HD_Q3_K: literal_q23(f, p, y); break;
    case HD_Q4_K:
    case HD_Q5_K: literal_q45(f, p, y); break;
    case HD_Q6_K: literal_q6(p, y); break;
    case HD_IQ4_XS: literal_iq4_xs(p, y); break;
    case HD_IQ2_XXS: literal_iq2_xxs(p, y); break;
    case HD_F8_B128: literal_f8(p, y); break;
    default: literal_small(f, p, y);
    }
}

static const struct {
    enum hd_format f;
    double rms;   /* relative error of Gaussian data that the encoder must stay below */
    double again; /* share of it that encoding the decoded values may lose */
} cases[] = {
    {HD_Q4_0, .082, .001},    {HD_Q4_1, .072, .001},   {HD_Q5_0, .041, .001},
    {HD_Q5_1, .0345, .001},   {HD_IQ4_NL, .075, .001}, {HD_MXFP4, .113, .001},
    {HD_Q2_K, .27, .15},      {HD_Q3_K, .147, .05},    {HD_Q4_K, .072, .12},
    {HD_Q5_K, .0355, .2},     {HD_Q6_K, .0178, .15},   {HD_IQ4_XS, .0755, .001},
    {HD_IQ2_XXS, .335, .001}, {HD_F8_B128, .03, .001},
};

static void decoders_follow_the_layout(void **state) {
    (void)state;
    for (size_t c = 0; c < HD_COUNT_OF(cases); c++) {
        const hd_format_info *i = hd_format_get(cases[c].f);
        for (int round = 0; round < 200; round++) {
            u8 block[256];
            float want[256], got[256];
            for (int k = 0; k < i->block_bytes; k++) block[k] = (u8)next_random();
            literal(cases[c].f, block, want);
            i->decode(block, got, (size_t)i->block_elems);
            for (int k = 0; k < i->block_elems; k++)
                if (got[k] != want[k] && !(isnan(got[k]) && isnan(want[k])) &&
                    !(cases[c].f == HD_MXFP4 && block[0] == 255))
                    fail_msg("%s element %d: %g, expected %g", i->name, k, (double)got[k],
                             (double)want[k]);
        }
    }
}

/* The relative error as `measure` weighs it, of an encoding that minimised it under `weight`. */
static double round_trip(enum hd_format f, const float *x, const float *weight,
                         const float *measure, size_t n) {
    static u8 bytes[1 << 16];
    static float y[1 << 14];
    const hd_format_info *i = hd_format_get(f);
    assert_true(hd_format_bytes(f, n) <= sizeof bytes && n <= HD_COUNT_OF(y));
    i->encode_weighted(x, weight, bytes, n);
    i->decode(bytes, y, n);
    double error = 0, all = 0;
    for (size_t k = 0; k < n; k++) {
        double w = measure ? (double)measure[k] : 1;
        error += w * (double)(x[k] - y[k]) * (double)(x[k] - y[k]);
        all += w * (double)x[k] * (double)x[k];
    }
    return sqrt(error / all);
}

static void encoders_stay_within_their_error(void **state) {
    (void)state;
    enum { n = 256 * 64 };
    static float x[n], weight[n];
    for (int k = 0; k < n; k++) {
        x[k] = 0.02f * gauss();
        weight[k] = k % 32 < 4 ? 30.0f : 1.0f;
    }
    for (size_t c = 0; c < HD_COUNT_OF(cases); c++) {
        const char *name = hd_format_get(cases[c].f)->name;
        double plain = round_trip(cases[c].f, x, NULL, NULL, n);
        printf("%-7s relative error %.4f\n", name, plain);
        if (!(plain < cases[c].rms)) fail_msg("%s: %.4f, limit %.4f", name, plain, cases[c].rms);
        /* Importance lowers the error that it weighs, where there is a scale to fit (MXFP4 has
         * powers of two, FP8 a scale that its largest element gives). */
        bool is_fitted = cases[c].f != HD_MXFP4 && cases[c].f != HD_F8_B128;
        double weighted = round_trip(cases[c].f, x, weight, weight, n),
               unaware = round_trip(cases[c].f, x, NULL, weight, n);
        if (!(is_fitted ? weighted < 0.98 * unaware : weighted <= unaware))
            fail_msg("%s weighted: %.4f, without importance %.4f", name, weighted, unaware);
    }
}

/* What was encoded once is nearly a fixed point: encoding the decoded values again loses little of
 * what is left, nothing where the scale is found again exactly. */
static void what_was_encoded_stays(void **state) {
    (void)state;
    enum { n = 256 * 64 };
    static float x[n], once[n];
    static u8 bytes[1 << 16];
    for (int k = 0; k < n; k++) x[k] = 0.02f * gauss();
    for (size_t c = 0; c < HD_COUNT_OF(cases); c++) {
        const hd_format_info *i = hd_format_get(cases[c].f);
        i->encode(x, bytes, n);
        i->decode(bytes, once, n);
        double again = round_trip(cases[c].f, once, NULL, NULL, n) / cases[c].rms;
        printf("%-7s again: %.5f\n", i->name, again);
        if (!(again <= cases[c].again))
            fail_msg("%s: %.5f, limit %.5f", i->name, again, cases[c].again);
    }
}

static void extremes_are_encoded(void **state) {
    (void)state;
    static const float values[] = {0, 1e-30f, -1e-30f, 60000, -60000, 1e-38f, 3e4f};
    for (size_t c = 0; c < HD_COUNT_OF(cases); c++)
        for (size_t v = 0; v < HD_COUNT_OF(values); v++) {
            float x[256], y[256];
            for (int k = 0; k < 256; k++) x[k] = values[v];
            u8 block[8 * 32];
            const hd_format_info *i = hd_format_get(cases[c].f);
            i->encode(x, block, (size_t)i->block_elems);
            i->decode(block, y, (size_t)i->block_elems);
            for (int k = 0; k < i->block_elems; k++) {
                assert_true(isfinite(y[k]));
                assert_true(fabsf(y[k] - x[k]) <= 0.26f * fabsf(x[k]) + 1e-6f);
            }
        }
}

/* Eight blocks in which every point of the grid is once, by the decoder of gguf-py (the Python
 * package of llama.cpp, 2026): scale 8 makes whole numbers of all, of which the first and the last
 * sixteen stand here and a hash of all (FNV-1a of 64 bits over numbers of 16 bits). */
static void iq2_xxs_is_what_others_read(void **state) {
    (void)state;
    static const int first[16] = {-8, -8, -8, 8, 8, -8, 8, 8, 43, 8, -8, 8, -8, 8, 8, 8};
    static const int last[16] = {216, 216,  675,  -675, 216, 1161,  1161,  -1161,
                                 216, -675, -216, -216, 675, -1161, -1161, -1161};
    u8 block[8 * 66];
    float y[2048];
    uint32_t random = 2024;
    for (int b = 0; b < 8; b++) {
        u8 *p = block + 66 * b;
        p[0] = 0, p[1] = 0x48; /* 8 */
        for (int s = 0; s < 8; s++) {
            for (int i = 0; i < 4; i++) p[2 + 8 * s + i] = (u8)(32 * b + 4 * s + i);
            random = random * 1664525u + 1013904223u;
            memcpy(p + 2 + 8 * s + 4, &random, 4);
        }
    }
    hd_format_get(HD_IQ2_XXS)->decode(block, y, HD_COUNT_OF(y));
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < HD_COUNT_OF(y); i++)
        hash = (hash ^ (uint16_t)(int16_t)y[i]) * 1099511628211u;
    for (int i = 0; i < 16; i++) assert_true((int)y[i] == first[i] && (int)y[2032 + i] == last[i]);
    assert_true(hash == 0xffa95dcf8ad01ba2u);
}

/* A negative number that rounds to nothing is zero: llama.cpp decodes code 8 as 0, hadal as -0. */
static void mxfp4_has_no_negative_zero(void **state) {
    (void)state;
    float x[32] = {6, -6, -0.01f, 0.01f, -0.0f}, y[32];
    u8 block[17];
    hd_format_get(HD_MXFP4)->encode(x, block, 32);
    hd_format_get(HD_MXFP4)->decode(block, y, 32);
    assert_true(y[0] == 6 && y[1] == -6);
    for (int k = 2; k < 32; k++) assert_true(y[k] == 0 && !signbit(y[k]));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoders_follow_the_layout),
        cmocka_unit_test(encoders_stay_within_their_error),
        cmocka_unit_test(what_was_encoded_stays),
        cmocka_unit_test(extremes_are_encoded),
        cmocka_unit_test(iq2_xxs_is_what_others_read),
        cmocka_unit_test(mxfp4_has_no_negative_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
