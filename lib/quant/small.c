/* Formats of 32 elements a block: Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, MXFP4.
 *
 * All pack element j (0..15) into the low and element j+16 into the high half of byte j. */
#include "quant/blocks.h"

#include <math.h>

enum { n_elem = 32, half = 16 };

const int8_t hd_iq4_codes[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                 1,    13,   25,  38,  53,  69,  89,  113};
static const float fp4_codes[16] = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                    -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

static void put_code(unsigned char *qs, int j, int code) {
    if (j < half)
        qs[j] = (unsigned char)((qs[j] & 0xF0) | code);
    else
        qs[j - half] = (unsigned char)((qs[j - half] & 15) | code << 4);
}

static uint32_t fifth_bits(const unsigned char *qh) {
    uint32_t bits;
    memcpy(&bits, qh, sizeof bits);
    return bits;
}

/* Q4_0: f16 d, qs[16]; x = d * (q - 8). */
void hd_decode_Q4_0(const void *src, float *dst, size_t n) {
    const unsigned char *p = src;
    for (size_t b = 0; b < n / n_elem; b++, p += 18, dst += n_elem) {
        float d = load_f16(p);
        for (int j = 0; j < half; j++) {
            dst[j] = d * (float)((p[2 + j] & 15) - 8);
            dst[j + half] = d * (float)((p[2 + j] >> 4) - 8);
        }
    }
}

/* The symmetric encoders: d and codes; the codes are for d as it is stored. */
static void fit_symmetric(const float *x, const float *weight, int lo, int hi, void *d_at,
                          int8_t *q) {
    float d = store_f16(d_at, hd_fit_symmetric(x, weight, n_elem, lo, hi, q));
    for (int j = 0; j < n_elem; j++) q[j] = (int8_t)(d != 0 ? clamp_round(x[j] / d, lo, hi) : 0);
}

void hd_encode_Q4_0(const float *src, const float *weight, void *dst, size_t n) {
    unsigned char *p = dst;
    for (size_t b = 0; b < n / n_elem; b++, p += 18, src += n_elem) {
        int8_t q[n_elem];
        fit_symmetric(src, weight ? weight + b * n_elem : NULL, -8, 7, p, q);
        for (int j = 0; j < n_elem; j++) put_code(p + 2, j, q[j] + 8);
    }
}

/* Q4_1: f16 d, f16 m, qs[16]; x = d * q + m. */
void hd_decode_Q4_1(const void *src, float *dst, size_t n) {
    const unsigned char *p = src;
    for (size_t b = 0; b < n / n_elem; b++, p += 20, dst += n_elem) {
        float d = load_f16(p), m = load_f16(p + 2);
        for (int j = 0; j < half; j++) {
            dst[j] = d * (float)(p[4 + j] & 15) + m;
            dst[j + half] = d * (float)(p[4 + j] >> 4) + m;
        }
    }
}

/* d, m (of either sign: the fit is of what the mean leaves) and the codes for them as stored. */
static void fit_range(const float *x, const float *weight, int hi, unsigned char *d_at,
                      uint8_t q[n_elem]) {
    float mean = 0, rest[n_elem], m;
    for (int j = 0; j < n_elem; j++) mean += x[j] / n_elem;
    for (int j = 0; j < n_elem; j++) rest[j] = x[j] - mean;
    float d = store_f16(d_at, hd_fit_affine(rest, weight, n_elem, hi, q, &m));
    m = store_f16(d_at + 2, mean - m);
    for (int j = 0; j < n_elem; j++)
        q[j] = (uint8_t)(d > 0 ? clamp_round((x[j] - m) / d, 0, hi) : 0);
}

void hd_encode_Q4_1(const float *src, const float *weight, void *dst, size_t n) {
    unsigned char *p = dst;
    for (size_t b = 0; b < n / n_elem; b++, p += 20, src += n_elem) {
        uint8_t q[n_elem];
        fit_range(src, weight ? weight + b * n_elem : NULL, 15, p, q);
        for (int j = 0; j < n_elem; j++) put_code(p + 4, j, q[j]);
    }
}

/* Q5_0: f16 d, qh[4] (fifth bits), qs[16]; x = d * (q - 16). */
void hd_decode_Q5_0(const void *src, float *dst, size_t n) {
    const unsigned char *p = src;
    for (size_t b = 0; b < n / n_elem; b++, p += 22, dst += n_elem) {
        float d = load_f16(p);
        uint32_t high = fifth_bits(p + 2);
        for (int j = 0; j < half; j++) {
            dst[j] = d * (float)(((p[6 + j] & 15) | (int)(high >> j & 1) << 4) - 16);
            dst[j + half] = d * (float)((p[6 + j] >> 4 | (int)(high >> (j + half) & 1) << 4) - 16);
        }
    }
}

static void put_code5(unsigned char *qh, unsigned char *qs, int j, int code) {
    put_code(qs, j, code & 15);
    qh[j / 8] = (unsigned char)(qh[j / 8] | (code >> 4) << (j % 8));
}

void hd_encode_Q5_0(const float *src, const float *weight, void *dst, size_t n) {
    unsigned char *p = dst;
    for (size_t b = 0; b < n / n_elem; b++, p += 22, src += n_elem) {
        int8_t q[n_elem];
        fit_symmetric(src, weight ? weight + b * n_elem : NULL, -16, 15, p, q);
        memset(p + 2, 0, 4);
        for (int j = 0; j < n_elem; j++) put_code5(p + 2, p + 6, j, q[j] + 16);
    }
}

/* Q5_1: f16 d, f16 m, qh[4], qs[16]; x = d * q + m. */
void hd_decode_Q5_1(const void *src, float *dst, size_t n) {
    const unsigned char *p = src;
    for (size_t b = 0; b < n / n_elem; b++, p += 24, dst += n_elem) {
        float d = load_f16(p), m = load_f16(p + 2);
        uint32_t high = fifth_bits(p + 4);
        for (int j = 0; j < half; j++) {
            dst[j] = d * (float)((p[8 + j] & 15) | (int)(high >> j & 1) << 4) + m;
            dst[j + half] = d * (float)(p[8 + j] >> 4 | (int)(high >> (j + half) & 1) << 4) + m;
        }
    }
}

void hd_encode_Q5_1(const float *src, const float *weight, void *dst, size_t n) {
    unsigned char *p = dst;
    for (size_t b = 0; b < n / n_elem; b++, p += 24, src += n_elem) {
        uint8_t q[n_elem];
        fit_range(src, weight ? weight + b * n_elem : NULL, 31, p, q);
        memset(p + 4, 0, 4);
        for (int j = 0; j < n_elem; j++) put_code5(p + 4, p + 8, j, q[j]);
    }
}

/* IQ4_NL: f16 d, qs[16]; x = d * code[q], a fixed table denser around zero. */
void hd_decode_IQ4_NL(const void *src, float *dst, size_t n) {
    const unsigned char *p = src;
    for (size_t b = 0; b < n / n_elem; b++, p += 18, dst += n_elem) {
        float d = load_f16(p);
        for (int j = 0; j < half; j++) {
            dst[j] = d * (float)hd_iq4_codes[p[2 + j] & 15];
            dst[j + half] = d * (float)hd_iq4_codes[p[2 + j] >> 4];
        }
    }
}

/* Codes ascend, so the nearest is how many of the 15 midpoints lie below x. */
int hd_iq4_nearest(float x) {
    static const float midpoint[15] = {-115.5f, -93.5f, -74,   -57,   -42, -28.5f, -16, -4.5f,
                                       7,       19,     31.5f, 45.5f, 61,  79,     101};
    int code = 0;
    for (int i = 0; i < 15; i++) code += x > midpoint[i];
    return code;
}

struct iq4_fit {
    float d, gain; /* error = sum w x^2 - gain */
};

static struct iq4_fit try_iq4(const float *x, const float *weight, int n, float inverse) {
    float sum_xq = 0, sum_qq = 0;
    for (int j = 0; j < n; j++) {
        float code = (float)hd_iq4_codes[hd_iq4_nearest(x[j] * inverse)];
        float wq = weight ? weight[j] * code : code;
        sum_xq += wq * x[j];
        sum_qq += wq * code;
    }
    if (!(sum_qq > 0)) return (struct iq4_fit){0, -1};
    return (struct iq4_fit){sum_xq / sum_qq, sum_xq * sum_xq / sum_qq};
}

/* The scale whose nearest codes give the least weighted error, over a few starting scales that put
 * the extreme near either end of the codes. */
float hd_iq4_fit(const float *x, const float *weight, int n) {
    enum { n_try = 7, n_refine = 3 };
    float extreme = 0;
    for (int j = 0; j < n; j++)
        if (fabsf(x[j]) > fabsf(extreme)) extreme = x[j];
    if (!(fabsf(extreme) > 1e-30f) || !isfinite(extreme)) return 0;
    struct iq4_fit best = {extreme / -127, -1};
    for (int t = -n_try; t <= n_try; t++)
        for (int end = 0; end < 2; end++) {
            float inverse = ((float)hd_iq4_codes[end ? 15 : 0] + 3 * (float)t) / extreme;
            struct iq4_fit f = try_iq4(x, weight, n, inverse);
            if (f.gain > best.gain) best = f;
        }
    for (int t = 0; t < n_refine && best.d != 0; t++) {
        struct iq4_fit f = try_iq4(x, weight, n, 1 / best.d);
        if (!(f.gain > best.gain)) break;
        best = f;
    }
    return best.d;
}

float hd_iq4_error(const float *x, const float *weight, int n, float d) {
    float error = 0, inverse = d != 0 ? 1 / d : 0;
    for (int j = 0; j < n; j++) {
        float r = d * (float)hd_iq4_codes[hd_iq4_nearest(x[j] * inverse)] - x[j];
        error += (weight ? weight[j] : 1) * r * r;
    }
    return error;
}

void hd_encode_IQ4_NL(const float *src, const float *weight, void *dst, size_t n) {
    unsigned char *p = dst;
    for (size_t b = 0; b < n / n_elem; b++, p += 18, src += n_elem) {
        float d = store_f16(p, hd_iq4_fit(src, weight ? weight + b * n_elem : NULL, n_elem));
        float inverse = d != 0 ? 1 / d : 0;
        for (int j = 0; j < n_elem; j++) put_code(p + 2, j, hd_iq4_nearest(src[j] * inverse));
    }
}

/* MXFP4: e8m0 scale s = 2^(e-127), qs[16] of e2m1 codes; x = s * code. OCP MX specification 1.0. */
static float e8m0(int e) { return e == 255 ? NAN : ldexpf(1, e - 127); }

void hd_decode_MXFP4(const void *src, float *dst, size_t n) {
    const unsigned char *p = src;
    for (size_t b = 0; b < n / n_elem; b++, p += 17, dst += n_elem) {
        float s = e8m0(p[0]);
        for (int j = 0; j < half; j++) {
            dst[j] = s * fp4_codes[p[1 + j] & 15];
            dst[j + half] = s * fp4_codes[p[1 + j] >> 4];
        }
    }
}

static int fp4_nearest(float x) {
    int best = 0;
    for (int c = 1; c < 8; c++)
        if (fabsf(fabsf(x) - fp4_codes[c]) < fabsf(fabsf(x) - fp4_codes[best])) best = c;
    return x < 0 && best > 0 ? best | 8 : best; /* no negative zero: readers differ on it */
}

static float fp4_error(const float *x, const float *weight, float s) {
    float error = 0;
    for (int j = 0; j < n_elem; j++) {
        float r = s * fp4_codes[fp4_nearest(x[j] / s)] - x[j];
        error += (weight ? weight[j] : 1) * r * r;
    }
    return error;
}

/* The power of two that OCP's specification takes cuts off what lies between 6 and 8 of it: the
 * next one is taken where its error is smaller. */
static int fp4_exponent(const float *x, const float *weight) {
    float amax = 0;
    for (int j = 0; j < n_elem; j++) amax = fmaxf(amax, fabsf(x[j]));
    int e = amax > 0 && isfinite(amax) ? ilogbf(amax) - 2 + 127 : 0;
    e = e < 0 ? 0 : e > 254 ? 254 : e;
    if (e == 254 || amax <= 6 * e8m0(e)) return e;
    return fp4_error(x, weight, e8m0(e + 1)) < fp4_error(x, weight, e8m0(e)) ? e + 1 : e;
}

void hd_encode_MXFP4(const float *src, const float *weight, void *dst, size_t n) {
    unsigned char *p = dst;
    for (size_t b = 0; b < n / n_elem; b++, p += 17, src += n_elem) {
        p[0] = (unsigned char)fp4_exponent(src, weight ? weight + b * n_elem : NULL);
        float inverse = 1 / e8m0(p[0]);
        for (int j = 0; j < n_elem; j++) put_code(p + 1, j, fp4_nearest(src[j] * inverse));
    }
}
