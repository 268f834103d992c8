/* Formats of 256 elements a super-block: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS.
 *
 * A super-block holds 8 or 16 sub-blocks with small integer scales (and minimums) of their own
 * under one or two f16 factors. Encoders fit each sub-block (fit.c), quantise the sub-block scales
 * against their maximum, then choose the codes again for the scales as stored. Layouts: GGUF's. */
#include "quant/blocks.h"

#include <math.h>
#include <stdbool.h>

enum { n_elem = 256 };

static float as_f16(float f) { return hd_f16_to_f32(hd_f32_to_f16(f)); }

/* Eight 6-bit scales and minimums in 12 bytes (Q4_K, Q5_K). */
static void unpack_scales(const unsigned char *s, int j, int *scale, int *min) {
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *min = s[j + 4] >> 4 | (s[j] >> 6) << 4;
    }
}

static void pack_scales(unsigned char *s, const int *scale, const int *min) {
    for (int j = 0; j < 4; j++) {
        s[j] = (unsigned char)(scale[j] | (scale[j + 4] >> 4) << 6);
        s[j + 4] = (unsigned char)(min[j] | (min[j + 4] >> 4) << 6);
        s[j + 8] = (unsigned char)((scale[j + 4] & 15) | (min[j + 4] & 15) << 4);
    }
}

/* Sub-blocks by codes 0..hi under integer scales and minimums of up to scale_max. */
struct affine {
    int n_sub, hi, scale_max;
    float d_unit, m_unit; /* the factors as stored */
    int scale[16], min[16];
    uint8_t q[n_elem];
};

/* Chooses scale and minimum of every sub-block near the present ones; the error of all. */
static float choose_affine(struct affine *a, const float *x, const float *weight) {
    int n = n_elem / a->n_sub;
    float sum = 0;
    for (int s = 0; s < a->n_sub; s++) {
        const float *xs = x + s * n, *w = weight ? weight + s * n : NULL;
        int scale = a->scale[s], min = a->min[s];
        float best = INFINITY;
        for (int sc = scale - 1; sc <= scale + 1; sc++)
            for (int mi = min - 1; mi <= min + 1; mi++) {
                if (sc < 0 || sc > a->scale_max || mi < 0 || mi > a->scale_max) continue;
                float e =
                    hd_affine_error(xs, w, n, a->hi, a->d_unit * (float)sc, a->m_unit * (float)mi);
                if (!(e < best)) continue;
                best = e;
                a->scale[s] = sc;
                a->min[s] = mi;
            }
        float d = a->d_unit * (float)a->scale[s], m = a->m_unit * (float)a->min[s];
        for (int i = 0; i < n; i++)
            a->q[s * n + i] = (uint8_t)(d > 0 ? clamp_round((xs[i] + m) / d, 0, a->hi) : 0);
        sum += best;
    }
    return sum;
}

/* The factors that are best for scales, minimums and codes: false when there are none. */
static bool refit_affine(const struct affine *a, const float *x, const float *weight, float *d,
                         float *m) {
    float aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;
    int n = n_elem / a->n_sub;
    for (int i = 0; i < n_elem; i++) {
        int sub = i / n;
        float w = weight ? weight[i] : 1, p = (float)(a->scale[sub] * a->q[i]),
              o = (float)a->min[sub];
        aa += w * p * p;
        ab += w * p * o;
        bb += w * o * o;
        ax += w * p * x[i];
        bx += w * o * x[i];
    }
    float det = aa * bb - ab * ab;
    *d = det > 0 ? (ax * bb - ab * bx) / det : ax / aa;
    *m = det > 0 ? (ab * ax - aa * bx) / det : 0;
    return *d > 0 && *m >= 0;
}

/* Fits the sub-blocks alone, brings their scales to integers under the largest, then alternates:
 * integers near by, factors for them. d_at and m_at get the factors. */
static void encode_affine(struct affine *a, const float *x, const float *weight, void *d_at,
                          void *m_at) {
    enum { n_round = 2 };
    int n = n_elem / a->n_sub;
    float d[16], m[16], d_max = 0, m_max = 0;
    for (int s = 0; s < a->n_sub; s++) {
        d[s] =
            hd_fit_affine(x + s * n, weight ? weight + s * n : NULL, n, a->hi, a->q + s * n, &m[s]);
        d_max = fmaxf(d_max, d[s]);
        m_max = fmaxf(m_max, m[s]);
    }
    a->d_unit = store_f16(d_at, d_max / (float)a->scale_max);
    a->m_unit = store_f16(m_at, m_max / (float)a->scale_max);
    for (int s = 0; s < a->n_sub; s++) {
        a->scale[s] = a->d_unit > 0 ? clamp_round(d[s] / a->d_unit, 0, a->scale_max) : 0;
        a->min[s] = a->m_unit > 0 ? clamp_round(m[s] / a->m_unit, 0, a->scale_max) : 0;
    }
    float error = choose_affine(a, x, weight);
    for (int t = 0; t < n_round; t++) {
        struct affine b = *a;
        float d_new, m_new;
        if (!refit_affine(&b, x, weight, &d_new, &m_new)) break;
        b.d_unit = as_f16(d_new);
        b.m_unit = as_f16(m_new);
        float e = choose_affine(&b, x, weight);
        if (!(e < error)) break;
        error = e;
        *a = b;
        store_f16(d_at, a->d_unit);
        store_f16(m_at, a->m_unit);
    }
}

/* The same for symmetric codes lo..hi with signed sub-block scales in [scale_lo, scale_hi]. */
struct symmetric {
    int lo, hi, scale_lo, scale_hi;
    float unit;
    int scale[16];
    int8_t q[n_elem];
};

enum { n_part = 16, part = 16 }; /* sub-blocks of a symmetric super-block, and their elements */

static float choose_symmetric(struct symmetric *a, const float *x, const float *weight) {
    float sum = 0;
    for (int s = 0; s < n_part; s++) {
        const float *xs = x + s * part, *w = weight ? weight + s * part : NULL;
        int scale = a->scale[s];
        float best = INFINITY;
        for (int sc = scale - 1; sc <= scale + 1; sc++) {
            if (sc < a->scale_lo || sc > a->scale_hi) continue;
            float e = hd_symmetric_error(xs, w, part, a->lo, a->hi, a->unit * (float)sc);
            if (!(e < best)) continue;
            best = e;
            a->scale[s] = sc;
        }
        float d = a->unit * (float)a->scale[s];
        for (int i = 0; i < part; i++)
            a->q[s * part + i] = (int8_t)(d != 0 ? clamp_round(xs[i] / d, a->lo, a->hi) : 0);
        sum += best;
    }
    return sum;
}

static void encode_symmetric(struct symmetric *a, const float *x, const float *weight, void *d_at) {
    enum { n_round = 2 };
    float d[n_part], extreme = 0;
    for (int s = 0; s < n_part; s++) {
        d[s] = hd_fit_symmetric(x + s * part, weight ? weight + s * part : NULL, part, a->lo, a->hi,
                                a->q + s * part);
        if (fabsf(d[s]) > fabsf(extreme)) extreme = d[s];
    }
    a->unit = store_f16(d_at, extreme / (float)a->scale_lo);
    for (int s = 0; s < n_part; s++)
        a->scale[s] = a->unit != 0 ? clamp_round(d[s] / a->unit, a->scale_lo, a->scale_hi) : 0;
    float error = choose_symmetric(a, x, weight);
    for (int t = 0; t < n_round; t++) {
        struct symmetric b = *a;
        float xp = 0, pp = 0;
        for (int i = 0; i < n_elem; i++) {
            int sub = i / part;
            float w = weight ? weight[i] : 1, p = (float)(a->scale[sub] * a->q[i]);
            xp += w * x[i] * p;
            pp += w * p * p;
        }
        if (!(pp > 0)) break;
        b.unit = as_f16(xp / pp);
        float e = choose_symmetric(&b, x, weight);
        if (!(e < error)) break;
        error = e;
        *a = b;
        store_f16(d_at, a->unit);
    }
}

/* Q4_K: f16 d, f16 dmin, scales[12], qs[128]. */
void hd_decode_Q4_K(const void *src, float *dst, size_t n) {
    const unsigned char *p = src;
    for (size_t b = 0; b < n / n_elem; b++, p += 144, dst += n_elem) {
        float d = load_f16(p), dmin = load_f16(p + 2);
        for (int s = 0; s < 8; s++) {
            int scale, min;
            unpack_scales(p + 4, s, &scale, &min);
            const unsigned char *qs = p + 16 + 32 * (s / 2);
            for (int i = 0; i < 32; i++) {
                int q = s % 2 ? qs[i] >> 4 : qs[i] & 15;
                dst[32 * s + i] = d * (float)scale * (float)q - dmin * (float)min;
            }
        }
    }
}

void hd_encode_Q4_K(const float *src, const float *weight, void *dst, size_t n) {
    unsigned char *p = dst;
    for (size_t b = 0; b < n / n_elem; b++, p += 144, src += n_elem) {
        struct affine a = {.n_sub = 8, .hi = 15, .scale_max = 63};
        encode_affine(&a, src, weight ? weight + b * n_elem : NULL, p, p + 2);
        pack_scales(p + 4, a.scale, a.min);
        for (int c = 0; c < 4; c++)
            for (int i = 0; i < 32; i++)
                p[16 + 32 * c + i] = (unsigned char)(a.q[64 * c + i] | a.q[64 * c + 32 + i] << 4);
    }
}

/* Q5_K: f16 d, f16 dmin, scales[12], qh[32] (bit s of byte i: fifth bit of element 32 s + i),
 * qs[128]. */
void hd_decode_Q5_K(const void *src, float *dst, size_t n) {
    const unsigned char *p = src;
    for (size_t b = 0; b < n / n_elem; b++, p += 176, dst += n_elem) {
        float d = load_f16(p), dmin = load_f16(p + 2);
        for (int s = 0; s < 8; s++) {
            int scale, min;
            unpack_scales(p + 4, s, &scale, &min);
            const unsigned char *qs = p + 48 + 32 * (s / 2);
            for (int i = 0; i < 32; i++) {
                int q = (s % 2 ? qs[i] >> 4 : qs[i] & 15) | (p[16 + i] >> s & 1) << 4;
                dst[32 * s + i] = d * (float)scale * (float)q - dmin * (float)min;
            }
        }
    }
}

void hd_encode_Q5_K(const float *src, const float *weight, void *dst, size_t n) {
    unsigned char *p = dst;
    for (size_t b = 0; b < n / n_elem; b++, p += 176, src += n_elem) {
        struct affine a = {.n_sub = 8, .hi = 31, .scale_max = 63};
        encode_affine(&a, src, weight ? weight + b * n_elem : NULL, p, p + 2);
        pack_scales(p + 4, a.scale, a.min);
        memset(p + 16, 0, 32);
        for (int s = 0; s < 8; s++)
            for (int i = 0; i < 32; i++) {
                int q = a.q[32 * s + i];
                unsigned char *byte = p + 48 + 32 * (s / 2) + i;
                *byte = (unsigned char)(s % 2 ? *byte | (q & 15) << 4 : q & 15);
                p[16 + i] = (unsigned char)(p[16 + i] | (q >> 4) << s);
            }
    }
}

/* Q6_K: ql[128], qh[64], int8 scales[16], f16 d; x = d * scale * (q - 32). In each half of 128, run
 * r of 32 elements has its low bits in nibble r / 2 of ql[32 (r % 2) ..] and its high two bits at
 * bit 2 r of qh. */
/* One run: shifts that are constants after inlining make vectors of it. */
static inline void q6_run(const unsigned char *p, float d, int h, int r, float *dst) {
    const unsigned char *low = p + 64 * h + 32 * (r % 2), *high = p + 128 + 32 * h;
    for (int k = 0; k < 2; k++) {
        float scale = d * (float)(int8_t)p[192 + 8 * h + 2 * r + k];
        for (int l = 16 * k; l < 16 * k + 16; l++) {
            int q = (low[l] >> (4 * (r / 2)) & 15) | (high[l] >> (2 * r) & 3) << 4;
            dst[l] = scale * (float)(q - 32);
        }
    }
}

void hd_decode_Q6_K(const void *src, float *dst, size_t n) {
    const unsigned char *p = src;
    for (size_t b = 0; b < n / n_elem; b++, p += 210, dst += n_elem) {
        float d = load_f16(p + 208);
        for (int h = 0; h < 2; h++) {
            q6_run(p, d, h, 0, dst + 128 * h);
            q6_run(p, d, h, 1, dst + 128 * h + 32);
            q6_run(p, d, h, 2, dst + 128 * h + 64);
            q6_run(p, d, h, 3, dst + 128 * h + 96);
        }
    }
}

void hd_encode_Q6_K(const float *src, const float *weight, void *dst, size_t n) {
    unsigned char *p = dst;
    for (size_t b = 0; b < n / n_elem; b++, p += 210, src += n_elem) {
        struct symmetric a = {.lo = -32, .hi = 31, .scale_lo = -128, .scale_hi = 127};
        memset(p, 0, 208);
        encode_symmetric(&a, src, weight ? weight + b * n_elem : NULL, p + 208);
        for (int s = 0; s < 16; s++) p[192 + s] = (unsigned char)(int8_t)a.scale[s];
        for (int i = 0; i < n_elem; i++) {
            int h = i / 128, r = i % 128 / 32, l = i % 32, q = a.q[i] + 32;
            unsigned char *low = p + 64 * h + 32 * (r % 2) + l, *high = p + 128 + 32 * h + l;
            *low = (unsigned char)(*low | (q & 15) << (4 * (r / 2)));
            *high = (unsigned char)(*high | (q >> 4) << (2 * r));
        }
    }
}

/* Q2_K: scales[16] (low nibble scale, high nibble minimum), qs[64], f16 d, f16 dmin. In each half
 * of 128, run r of 32 elements is at bits 2 r of qs[32 h ..]. */
static inline void q2_run(const unsigned char *p, float d, float dmin, int s, float *dst) {
    const unsigned char *qs = p + 16 + 32 * (s / 8);
    for (int k = 0; k < 2; k++) {
        float scale = d * (float)(p[s + k] & 15), min = dmin * (float)(p[s + k] >> 4);
        for (int l = 16 * k; l < 16 * k + 16; l++)
            dst[l] = scale * (float)(qs[l] >> (s % 8) & 3) - min;
    }
}

void hd_decode_Q2_K(const void *src, float *dst, size_t n) {
    const unsigned char *p = src;
    for (size_t b = 0; b < n / n_elem; b++, p += 84) {
        float d = load_f16(p + 80), dmin = load_f16(p + 82);
        for (int s = 0; s < 16; s += 8, dst += 128) {
            q2_run(p, d, dmin, s, dst);
            q2_run(p, d, dmin, s + 2, dst + 32);
            q2_run(p, d, dmin, s + 4, dst + 64);
            q2_run(p, d, dmin, s + 6, dst + 96);
        }
    }
}

void hd_encode_Q2_K(const float *src, const float *weight, void *dst, size_t n) {
    unsigned char *p = dst;
    for (size_t b = 0; b < n / n_elem; b++, p += 84, src += n_elem) {
        struct affine a = {.n_sub = 16, .hi = 3, .scale_max = 15};
        encode_affine(&a, src, weight ? weight + b * n_elem : NULL, p + 80, p + 82);
        memset(p + 16, 0, 64);
        for (int s = 0; s < 16; s++) p[s] = (unsigned char)(a.scale[s] | a.min[s] << 4);
        for (int i = 0; i < n_elem; i++) {
            unsigned char *byte = p + 16 + 32 * (i / 128) + i % 32;
            *byte = (unsigned char)(*byte | a.q[i] << (2 * (i % 128 / 32)));
        }
    }
}

/* Q3_K: hmask[32] (third bits), qs[64] (low two bits, as Q2_K), scales[12] (6 bits each, minus 32),
 * f16 d; x = d * scale * (q - 4) with q of three bits. */
static int q3_scale(const unsigned char *s, int i) {
    int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
    return (low | (s[8 + i % 4] >> (2 * (i / 4)) & 3) << 4) - 32;
}

static inline void q3_run(const unsigned char *p, float d, int s, float *dst) {
    const unsigned char *low = p + 32 + 32 * (s / 8);
    for (int k = 0; k < 2; k++) {
        float scale = d * (float)q3_scale(p + 96, s + k);
        for (int l = 16 * k; l < 16 * k + 16; l++) {
            int q = (low[l] >> (s % 8) & 3) | (p[l] >> (s / 2) & 1) << 2;
            dst[l] = scale * (float)(q - 4);
        }
    }
}

void hd_decode_Q3_K(const void *src, float *dst, size_t n) {
    const unsigned char *p = src;
    for (size_t b = 0; b < n / n_elem; b++, p += 110, dst += n_elem) {
        float d = load_f16(p + 108);
        q3_run(p, d, 0, dst);
        q3_run(p, d, 2, dst + 32);
        q3_run(p, d, 4, dst + 64);
        q3_run(p, d, 6, dst + 96);
        q3_run(p, d, 8, dst + 128);
        q3_run(p, d, 10, dst + 160);
        q3_run(p, d, 12, dst + 192);
        q3_run(p, d, 14, dst + 224);
    }
}

void hd_encode_Q3_K(const float *src, const float *weight, void *dst, size_t n) {
    unsigned char *p = dst;
    for (size_t b = 0; b < n / n_elem; b++, p += 110, src += n_elem) {
        struct symmetric a = {.lo = -4, .hi = 3, .scale_lo = -32, .scale_hi = 31};
        memset(p, 0, 108);
        encode_symmetric(&a, src, weight ? weight + b * n_elem : NULL, p + 108);
        for (int s = 0; s < 16; s++) {
            int v = a.scale[s] + 32;
            unsigned char *low = p + 96 + s % 8, *high = p + 104 + s % 4;
            *low = (unsigned char)(*low | (v & 15) << (s < 8 ? 0 : 4));
            *high = (unsigned char)(*high | (v >> 4) << (2 * (s / 4)));
        }
        for (int i = 0; i < n_elem; i++) {
            int q = a.q[i] + 4;
            unsigned char *low = p + 32 + 32 * (i / 128) + i % 32, *high = p + i % 32;
            *low = (unsigned char)(*low | (q & 3) << (2 * (i % 128 / 32)));
            *high = (unsigned char)(*high | (q >> 2) << (i / 32));
        }
    }
}

/* IQ4_XS: f16 d, u16 scales_h, scales_l[4], qs[128]; x = d * (scale - 32) * code[q]. Sub-block s of
 * 32: low scale bits in nibble s of scales_l, high two at bits 2 s of scales_h; element j in the
 * low and j + 16 in the high half of qs[16 s + j]. */
void hd_decode_IQ4_XS(const void *src, float *dst, size_t n) {
    const unsigned char *p = src;
    for (size_t b = 0; b < n / n_elem; b++, p += 136) {
        float d = load_f16(p);
        int high = p[2] | p[3] << 8;
        for (int s = 0; s < 8; s++, dst += 32) {
            int scale = (p[4 + s / 2] >> (4 * (s % 2)) & 15) | (high >> (2 * s) & 3) << 4;
            const unsigned char *qs = p + 8 + 16 * s;
            float unit = d * (float)(scale - 32);
            for (int j = 0; j < 16; j++) {
                dst[j] = unit * (float)hd_iq4_codes[qs[j] & 15];
                dst[j + 16] = unit * (float)hd_iq4_codes[qs[j] >> 4];
            }
        }
    }
}

struct iq4_super {
    float unit; /* as stored */
    int scale[8];
    uint8_t q[n_elem];
};

/* As choose_symmetric: scales near the present ones, their codes, the error of all. */
static float choose_iq4(struct iq4_super *a, const float *x, const float *weight) {
    float sum = 0;
    for (int s = 0; s < 8; s++) {
        const float *xs = x + 32 * s, *w = weight ? weight + (size_t)(32 * s) : NULL;
        int scale = a->scale[s];
        float best = INFINITY;
        for (int sc = scale - 1; sc <= scale + 1; sc++) {
            if (sc < -32 || sc > 31) continue;
            float e = hd_iq4_error(xs, w, 32, a->unit * (float)sc);
            if (!(e < best)) continue;
            best = e;
            a->scale[s] = sc;
        }
        float d = a->unit * (float)a->scale[s], inverse = d != 0 ? 1 / d : 0;
        for (int j = 0; j < 32; j++) a->q[32 * s + j] = (uint8_t)hd_iq4_nearest(xs[j] * inverse);
        sum += best;
    }
    return sum;
}

static void fit_iq4_super(struct iq4_super *a, const float *x, const float *weight) {
    float d[8], extreme = 0, xp = 0, pp = 0;
    for (int s = 0; s < 8; s++) {
        d[s] = hd_iq4_fit(x + 32 * s, weight ? weight + (size_t)(32 * s) : NULL, 32);
        if (fabsf(d[s]) > fabsf(extreme)) extreme = d[s];
    }
    a->unit = as_f16(extreme / -32);
    for (int s = 0; s < 8; s++)
        a->scale[s] = a->unit != 0 ? clamp_round(d[s] / a->unit, -32, 31) : 0;
    float error = choose_iq4(a, x, weight);
    for (int i = 0; i < n_elem; i++) {
        int sub = i / 32;
        float w = weight ? weight[i] : 1, p = (float)(a->scale[sub] * hd_iq4_codes[a->q[i]]);
        xp += w * x[i] * p;
        pp += w * p * p;
    }
    struct iq4_super b = *a;
    if (!(pp > 0)) return;
    b.unit = as_f16(xp / pp);
    if (choose_iq4(&b, x, weight) < error) *a = b;
}

void hd_encode_IQ4_XS(const float *src, const float *weight, void *dst, size_t n) {
    unsigned char *p = dst;
    for (size_t b = 0; b < n / n_elem; b++, p += 136, src += n_elem) {
        struct iq4_super a;
        fit_iq4_super(&a, src, weight ? weight + b * n_elem : NULL);
        memset(p, 0, 136);
        store_f16(p, a.unit);
        int high = 0;
        for (int s = 0; s < 8; s++) {
            int scale = a.scale[s] + 32;
            p[4 + s / 2] = (unsigned char)(p[4 + s / 2] | (scale & 15) << (4 * (s % 2)));
            high |= scale >> 4 << (2 * s);
            for (int j = 0; j < 32; j++) {
                unsigned char *byte = p + 8 + 16 * s + j % 16;
                *byte = (unsigned char)(*byte | a.q[32 * s + j] << (j < 16 ? 0 : 4));
            }
        }
        p[2] = (unsigned char)high;
        p[3] = (unsigned char)(high >> 8);
    }
}
