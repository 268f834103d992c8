/* Eight-bit floats of safetensors: E4M3 (weights), E8M0 (powers of two, for scales), and E4M3 with
 * a scale for each 128 elements of a row, which is how FP8 weights lie in memory.
 *
 * E4M3: sign, four exponent bits of bias 7, three of fraction; exponent 0 is subnormal, the largest
 * is 448, 0x7F and 0xFF are NaN and there is no infinity (arXiv 2209.05433, section 3).
 * E8M0: 2^(b - 127), 0xFF is NaN (OCP Microscaling Formats 1.0, section 5.4.1). */
#include "quant/blocks.h"

#include <math.h>

enum { block_elems = 128, block_bytes = 132, e4m3_max = 0x7E };

/* Values of the codes 0 to 0x7F. */
static const float e4m3[128] = {
#define FRACTIONS(unit, first)                                                                     \
    (first) * unit, (first + 1) * unit, (first + 2) * unit, (first + 3) * unit,                    \
        (first + 4) * unit, (first + 5) * unit, (first + 6) * unit, (first + 7) * unit
    FRACTIONS(0x1p-9f, 0),
    FRACTIONS(0x1p-9f, 8),
    FRACTIONS(0x1p-8f, 8),
    FRACTIONS(0x1p-7f, 8),
    FRACTIONS(0x1p-6f, 8),
    FRACTIONS(0x1p-5f, 8),
    FRACTIONS(0x1p-4f, 8),
    FRACTIONS(0x1p-3f, 8),
    FRACTIONS(0x1p-2f, 8),
    FRACTIONS(0x1p-1f, 8),
    FRACTIONS(0x1p+0f, 8),
    FRACTIONS(0x1p+1f, 8),
    FRACTIONS(0x1p+2f, 8),
    FRACTIONS(0x1p+3f, 8),
    FRACTIONS(0x1p+4f, 8),
#undef FRACTIONS
    256,
    288,
    320,
    352,
    384,
    416,
    448,
    NAN,
};

float hd_e4m3_to_f32(uint8_t b) {
    float f = e4m3[b & 0x7F]; /* its sign by bits: a branch would be guessed wrong half the time */
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    bits |= (uint32_t)(b & 0x80) << 24;
    memcpy(&f, &bits, sizeof f);
    return f;
}

uint8_t hd_f32_to_e4m3(float x) {
    uint8_t sign = signbit(x) ? 0x80 : 0;
    x = fabsf(x);
    if (!(x == x)) return (uint8_t)(sign | 0x7F);
    int low = 0, high = e4m3_max;
    while (low < high) { /* the largest code whose value is at most x */
        int mid = (low + high + 1) / 2;
        if (e4m3[mid] <= x)
            low = mid;
        else
            high = mid - 1;
    }
    if (low == e4m3_max) return (uint8_t)(sign | e4m3_max);
    float below = x - e4m3[low], above = e4m3[low + 1] - x;
    bool is_up = above < below || (above == below && low % 2);
    return (uint8_t)(sign | (low + is_up));
}

void hd_decode_F8_E4M3(const void *src, float *dst, size_t n) {
    const uint8_t *p = src;
    for (size_t i = 0; i < n; i++) dst[i] = hd_e4m3_to_f32(p[i]);
}

void hd_encode_F8_E4M3(const float *src, const float *weight, void *dst, size_t n) {
    (void)weight;
    uint8_t *p = dst;
    for (size_t i = 0; i < n; i++) p[i] = hd_f32_to_e4m3(src[i]);
}

void hd_decode_F8_E8M0(const void *src, float *dst, size_t n) {
    const uint8_t *p = src;
    for (size_t i = 0; i < n; i++) dst[i] = p[i] == 0xFF ? NAN : ldexpf(1, p[i] - 127);
}

/* The least power of two that is not below |x|, as scales are rounded. */
void hd_encode_F8_E8M0(const float *src, const float *weight, void *dst, size_t n) {
    (void)weight;
    uint8_t *p = dst;
    for (size_t i = 0; i < n; i++) {
        int exponent;
        float fraction = frexpf(fabsf(src[i]), &exponent); /* [0.5, 1) */
        int b = exponent + 127 - (fraction == 0.5f);
        if (!isfinite(src[i])) b = 0xFF;
        p[i] = (uint8_t)(fraction == 0 || b < 0 ? 0 : b);
    }
}

/* F8_B128: f32 scale, then 128 codes; x = scale * code. */
void hd_decode_F8_B128(const void *src, float *dst, size_t n) {
    const uint8_t *p = src;
    for (size_t b = 0; b < n / block_elems; b++, p += block_bytes, dst += block_elems) {
        float scale;
        memcpy(&scale, p, sizeof scale);
        for (int i = 0; i < block_elems; i++) dst[i] = scale * hd_e4m3_to_f32(p[4 + i]);
    }
}

void hd_encode_F8_B128(const float *src, const float *weight, void *dst, size_t n) {
    (void)weight;
    uint8_t *p = dst;
    for (size_t b = 0; b < n / block_elems; b++, p += block_bytes, src += block_elems) {
        float amax = 0;
        for (int i = 0; i < block_elems; i++) amax = fmaxf(amax, fabsf(src[i]));
        float scale = amax / 448;
        memcpy(p, &scale, sizeof scale);
        for (int i = 0; i < block_elems; i++)
            p[4 + i] = scale > 0 ? hd_f32_to_e4m3(src[i] / scale) : hd_f32_to_e4m3(0);
    }
}
