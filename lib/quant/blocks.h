/* Private to this folder: the codecs of the block formats, one decode and one encode a row of
 * formats.def. weight (may be NULL) is the importance of each element, mean x^2 of its column:
 * encoders minimise the error weighted by it. Block layouts: GGUF's (docs of each .c). */
#ifndef HD_QUANT_BLOCKS_H
#define HD_QUANT_BLOCKS_H

#include "quant/format.h"

#include <string.h>

#define HD_FORMAT(id, name, gguf_id, block_elems, block_bytes, st)                                 \
    void hd_decode_##id(const void *src, float *dst, size_t n);                                    \
    void hd_encode_##id(const float *src, const float *weight, void *dst, size_t n);
#include "quant/formats.def"
#undef HD_FORMAT

static inline float load_f16(const void *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return hd_f16_to_f32(h);
}

/* Stores f as f16 and returns what was stored. */
static inline float store_f16(void *p, float f) {
    uint16_t h = hd_f32_to_f16(f);
    memcpy(p, &h, 2);
    return hd_f16_to_f32(h);
}

/* x rounded to the nearest integer and brought into [lo, hi]; 0 brought inside for NaN. */
static inline int clamp_round(float x, int lo, int hi) {
    if (!(x == x)) x = 0;
    if (x <= (float)lo) return lo;
    if (x >= (float)hi) return hi;
    return (int)__builtin_rintf(x);
}

/* The code nearest to x in [lo, hi], as a float; lo for NaN. Below 2^22 the sum rounds as rintf
 * does, without a call. */
static inline float hd_code_of(float x, float lo, float hi) {
    const float whole = 12582912.0f; /* 1.5 * 2^23 */
    x = x > lo ? x : lo;
    x = x < hi ? x : hi;
    return (x + whole) - whole;
}

/* Fits take at most HD_FIT_MAX elements, a multiple of 8; weight NULL: all count the same. */
enum { HD_FIT_MAX = 32 };
/* Fit of x[0..n) by codes q in [lo, hi]: x ~ d * q. Writes the codes and returns d.
 * Tries scales around amax/extreme and keeps the least weighted squared error. */
float hd_fit_symmetric(const float *x, const float *weight, int n, int lo, int hi, int8_t *q);
/* Fit x ~ d * q - m with q in [0, hi], d >= 0 and m >= 0. Writes the codes and *m, returns d. */
float hd_fit_affine(const float *x, const float *weight, int n, int hi, uint8_t *q, float *m);
/* The weighted squared error under a given scale (and minimum), codes chosen for it. */
float hd_symmetric_error(const float *x, const float *weight, int n, int lo, int hi, float d);
float hd_affine_error(const float *x, const float *weight, int n, int hi, float d, float m);

/* The code book of IQ4_NL and IQ4_XS: values by code, the code nearest to x, the scale for
 * which nearest codes fit x[0..n) with the least weighted error, and the error under a scale. */
extern const int8_t hd_iq4_codes[16];
int hd_iq4_nearest(float x);
float hd_iq4_fit(const float *x, const float *weight, int n);
float hd_iq4_error(const float *x, const float *weight, int n, float d);

#endif
