/* Formats of 32 elements a block: Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, MXFP4.
 *
 * All pack element j (0..15) into the low and element j+16 into the high half of byte j. */
#include "quant/blocks.h"

#include <math.h>

enum { n_elem = 32, half = 16 };

static const int8_t iq4_codes[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};
static const float fp4_codes[16] = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                    -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

static int code_at(const unsigned char *qs, int j) {
    return j < half ? qs[j] & 15 : qs[j - half] >> 4;
}

static void put_code(unsigned char *qs, int j, int code) {
    if (j < half)
        qs[j] = (unsigned char)((qs[j] & 0xF0) | code);
    else
        qs[j - half] = (unsigned char)((qs[j - half] & 15) | code << 4);
}

static int high_bit(const unsigned char *qh, int j) { return qh[j / 8] >> (j % 8) & 1; }

/* Q4_0: f16 d, qs[16]; x = d * (q - 8). */
void hd_decode_Q4_0(const void *src, float *dst, size_t n) {
    const unsigned char *p = src;
    for (size_t b = 0; b < n / n_elem; b++, p += 18, dst += n_elem) {
        float d = load_f16(p);
        for (int j = 0; j < n_elem; j++) dst[j] = d * (float)(code_at(p + 2, j) - 8);
    }
}

/* The symmetric encoders share this: d with the sign that puts the extreme on the lowest code, or,
 * with importance, the least-squares fit. */
static float symmetric_scale(const float *x, const float *weight, int lo, int hi, int8_t *q) {
    if (weight) return hd_fit_symmetric(x, weight, n_elem, lo, hi, q);
    float extreme = 0;
    for (int j = 0; j < n_elem; j++)
        if (fabsf(x[j]) > fabsf(extreme)) extreme = x[j];
    float d = extreme / (float)lo, inverse = d != 0 ? 1 / d : 0;
    for (int j = 0; j < n_elem; j++)
        q[j] = (int8_t)(clamp_round(floorf(x[j] * inverse - (float)lo + 0.5f), 0, hi - lo) + lo);
    return d;
}

void hd_encode_Q4_0(const float *src, const float *weight, void *dst, size_t n) {
    unsigned char *p = dst;
    for (size_t b = 0; b < n / n_elem; b++, p += 18, src += n_elem) {
        int8_t q[n_elem];
        store_f16(p, symmetric_scale(src, weight ? weight + b * n_elem : NULL, -8, 7, q));
        for (int j = 0; j < n_elem; j++) put_code(p + 2, j, q[j] + 8);
    }
}

/* Q4_1: f16 d, f16 m, qs[16]; x = d * q + m. */
void hd_decode_Q4_1(const void *src, float *dst, size_t n) {
    const unsigned char *p = src;
    for (size_t b = 0; b < n / n_elem; b++, p += 20, dst += n_elem) {
        float d = load_f16(p), m = load_f16(p + 2);
        for (int j = 0; j < n_elem; j++) dst[j] = d * (float)code_at(p + 4, j) + m;
    }
}

/* d and m of an unsigned code range over the block's own range. */
static float range_scale(const float *x, int hi, float *m) {
    float low = x[0], high = x[0];
    for (int j = 1; j < n_elem; j++) {
        if (x[j] < low) low = x[j];
        if (x[j] > high) high = x[j];
    }
    *m = low;
    return (high - low) / (float)hi;
}

void hd_encode_Q4_1(const float *src, const float *weight, void *dst, size_t n) {
    unsigned char *p = dst;
    (void)weight; /* the range is kept whole: its ends are exact */
    for (size_t b = 0; b < n / n_elem; b++, p += 20, src += n_elem) {
        float m, d = range_scale(src, 15, &m), inverse = d != 0 ? 1 / d : 0;
        store_f16(p, d);
        store_f16(p + 2, m);
        for (int j = 0; j < n_elem; j++)
            put_code(p + 4, j, clamp_round(floorf((src[j] - m) * inverse + 0.5f), 0, 15));
    }
}

/* Q5_0: f16 d, qh[4] (fifth bits), qs[16]; x = d * (q - 16). */
void hd_decode_Q5_0(const void *src, float *dst, size_t n) {
    const unsigned char *p = src;
    for (size_t b = 0; b < n / n_elem; b++, p += 22, dst += n_elem) {
        float d = load_f16(p);
        for (int j = 0; j < n_elem; j++)
            dst[j] = d * (float)((code_at(p + 6, j) | high_bit(p + 2, j) << 4) - 16);
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
        store_f16(p, symmetric_scale(src, weight ? weight + b * n_elem : NULL, -16, 15, q));
        memset(p + 2, 0, 4);
        for (int j = 0; j < n_elem; j++) put_code5(p + 2, p + 6, j, q[j] + 16);
    }
}

/* Q5_1: f16 d, f16 m, qh[4], qs[16]; x = d * q + m. */
void hd_decode_Q5_1(const void *src, float *dst, size_t n) {
    const unsigned char *p = src;
    for (size_t b = 0; b < n / n_elem; b++, p += 24, dst += n_elem) {
        float d = load_f16(p), m = load_f16(p + 2);
        for (int j = 0; j < n_elem; j++)
            dst[j] = d * (float)(code_at(p + 8, j) | high_bit(p + 4, j) << 4) + m;
    }
}

void hd_encode_Q5_1(const float *src, const float *weight, void *dst, size_t n) {
    unsigned char *p = dst;
    (void)weight;
    for (size_t b = 0; b < n / n_elem; b++, p += 24, src += n_elem) {
        float m, d = range_scale(src, 31, &m), inverse = d != 0 ? 1 / d : 0;
        store_f16(p, d);
        store_f16(p + 2, m);
        memset(p + 4, 0, 4);
        for (int j = 0; j < n_elem; j++)
            put_code5(p + 4, p + 8, j, clamp_round(floorf((src[j] - m) * inverse + 0.5f), 0, 31));
    }
}

/* IQ4_NL: f16 d, qs[16]; x = d * code[q], a fixed table denser around zero. */
void hd_decode_IQ4_NL(const void *src, float *dst, size_t n) {
    const unsigned char *p = src;
    for (size_t b = 0; b < n / n_elem; b++, p += 18, dst += n_elem) {
        float d = load_f16(p);
        for (int j = 0; j < n_elem; j++) dst[j] = d * (float)iq4_codes[code_at(p + 2, j)];
    }
}

int hd_iq4_value(int code) { return iq4_codes[code]; }

int hd_iq4_nearest(float x) {
    int best = 0;
    for (int c = 1; c < 16; c++)
        if (fabsf(x - (float)iq4_codes[c]) < fabsf(x - (float)iq4_codes[best])) best = c;
    return best;
}

/* The scale whose nearest codes give the least weighted error, over a few starting scales. */
float hd_iq4_fit(const float *x, const float *weight, int n) {
    float extreme = 0;
    for (int j = 0; j < n; j++)
        if (fabsf(x[j]) > fabsf(extreme)) extreme = x[j];
    if (!(fabsf(extreme) > 1e-30f) || !isfinite(extreme)) return 0;
    float best_d = extreme / -127, best_gain = -1;
    for (int t = -7; t <= 7; t++) {
        float inverse = (-127 + 3 * (float)t) / extreme, sum_xq = 0, sum_qq = 0;
        for (int j = 0; j < n; j++) {
            float w = weight ? weight[j] : x[j] * x[j] + 1e-12f;
            float code = (float)iq4_codes[hd_iq4_nearest(x[j] * inverse)];
            sum_xq += w * x[j] * code;
            sum_qq += w * code * code;
        }
        if (sum_qq > 0 && sum_xq * sum_xq / sum_qq > best_gain) {
            best_gain = sum_xq * sum_xq / sum_qq;
            best_d = sum_xq / sum_qq;
        }
    }
    return best_d;
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
        for (int j = 0; j < n_elem; j++) dst[j] = s * fp4_codes[code_at(p + 1, j)];
    }
}

static int fp4_nearest(float x) {
    int best = 0;
    for (int c = 1; c < 8; c++)
        if (fabsf(fabsf(x) - fp4_codes[c]) < fabsf(fabsf(x) - fp4_codes[best])) best = c;
    return x < 0 ? best | 8 : best;
}

void hd_encode_MXFP4(const float *src, const float *weight, void *dst, size_t n) {
    unsigned char *p = dst;
    (void)weight; /* the scale is a power of two: nothing to fit */
    for (size_t b = 0; b < n / n_elem; b++, p += 17, src += n_elem) {
        float amax = 0;
        for (int j = 0; j < n_elem; j++) amax = fmaxf(amax, fabsf(src[j]));
        int e = amax > 0 && isfinite(amax) ? ilogbf(amax) - 2 + 127 : 0;
        p[0] = (unsigned char)(e < 0 ? 0 : e > 254 ? 254 : e);
        float inverse = 1 / e8m0(p[0]);
        for (int j = 0; j < n_elem; j++) put_code(p + 1, j, fp4_nearest(src[j] * inverse));
    }
}
