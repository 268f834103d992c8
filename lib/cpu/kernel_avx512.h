/* Sixteen-lane primitives of the AVX-512 and AMX levels. */
#ifndef HD_CPU_KERNEL_AVX512_H
#define HD_CPU_KERNEL_AVX512_H

#include "cpu/kernel.h"

#include <immintrin.h>

#define VN 16
typedef __m512 V;
typedef __m512i VI;
typedef uint32_t W __attribute__((vector_size(64))); /* four bytes a lane */

static inline V v_set(float x) { return _mm512_set1_ps(x); }
static inline V v_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void v_store(float *p, V x) { _mm512_storeu_ps(p, x); }
static inline V v_fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
static inline void v_add_product(V *sum, V a, V b) { *sum = v_fma(a, b, *sum); }
static inline V v_max(V a, V b) { return _mm512_max_ps(a, b); }
static inline V v_min(V a, V b) { return _mm512_min_ps(a, b); }
static inline V v_max_bits(V a, V b) {
    return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}
static inline V v_abs(V a) { return _mm512_abs_ps(a); }
static inline V v_round(V x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline VI v_int(V x) { return _mm512_cvtps_epi32(x); }
static inline V v_pow2(VI n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
}
static inline V v_float(VI n) { return _mm512_cvtepi32_ps(n); }
static inline VI vi_set(int32_t n) { return _mm512_set1_epi32(n); }
static inline VI vi_shift_up(VI n, unsigned by) { return _mm512_slli_epi32(n, by); }
/* n / 256, rounded so that what is left is a signed byte. */
static inline VI vi_upper(VI n) {
    return _mm512_srai_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(128)), 8);
}
static inline VI vi_shift_down(VI n, int by) { return _mm512_srai_epi32(n, (unsigned)by); }
static inline VI vi_sub(VI a, VI b) { return _mm512_sub_epi32(a, b); }
static inline VI vi_add(VI a, VI b) { return _mm512_add_epi32(a, b); }

static inline V v_decode_f32(const unsigned char *p) { return _mm512_loadu_ps(p); }
static inline V v_decode_f16(const unsigned char *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
static inline V v_decode_bf16(const unsigned char *p) {
    __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
}
/* The lane whose bits, as a number with a sign, are the largest. */
static inline float v_largest_bits(V x) {
    return _mm_cvtss_f32(
        _mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(_mm512_castps_si512(x)))));
}
static inline int32_t vi_sum(VI n) { return _mm512_reduce_add_epi32(n); }
/* Sum of 16 lanes by halves: i and i + 8, then 4, 2, 1 apart; the same order at every level. */
static inline float v_sum_16(const V v[1]) {
    __m256 t = _mm256_add_ps(_mm512_castps512_ps256(v[0]), _mm512_extractf32x8_ps(v[0], 1));
    __m128 u = _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
    u = _mm_add_ps(u, _mm_movehl_ps(u, u));
    return _mm_cvtss_f32(_mm_add_ss(u, _mm_movehdup_ps(u)));
}

static inline V v_decode_s8(const unsigned char *p) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}
/* A code's bits, moved to where a float has its sign, exponent and fraction, are its value times
 * 2^-120: also of subnormal codes. */
static inline V v_decode_e4m3(const unsigned char *p) {
    __m512i q = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    __m512i size = _mm512_slli_epi32(_mm512_and_si512(q, _mm512_set1_epi32(0x7F)), 20);
    __m512i sign = _mm512_slli_epi32(_mm512_and_si512(q, _mm512_set1_epi32(0x80)), 24);
    return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_or_si512(size, sign)), v_set(0x1p120f));
}
/* 2^floor(log2 |x|); 0 of 0. */
static inline V v_binade(V x) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7F800000)));
}
/* Codes of sizes that are values of E4M3, with the signs of x. */
static inline void v_store_e4m3(unsigned char *p, V size, V x) {
    __m512i q = _mm512_castps_si512(_mm512_mul_ps(size, v_set(0x1p-120f)));
    __m512i sign = _mm512_srli_epi32(_mm512_castps_si512(x), 24);
    q = _mm512_or_si512(_mm512_srli_epi32(q, 20), _mm512_and_si512(sign, _mm512_set1_epi32(0x80)));
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(q));
}
static inline void v_store_s8(unsigned char *p, VI n) {
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(n));
}
static inline void v_encode_f16(unsigned char *p, V x) {
    _mm256_storeu_si256((__m256i *)(void *)p,
                        _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
/* Round to nearest even on the bits; NaN keeps its upper half and turns quiet. */
static inline void v_encode_bf16(unsigned char *p, V x) {
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
    __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    __m512i h = _mm512_srli_epi32(_mm512_mask_mov_epi32(sum, is_nan, quiet), 16);
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(h));
}
/* Four values, floats or halves, in all parts of four lanes. */
static inline V v_four(const float *p) { return _mm512_broadcast_f32x4(_mm_loadu_ps(p)); }
static inline V v_four_halves(const unsigned char *p) {
    return _mm512_cvtph_ps(
        _mm256_broadcastq_epi64(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}
/* Sums of each part of four lanes of x[0], then of x[1], ...: (0 + 2) + (1 + 3) of its lanes. */
static inline V v_sum_fours(const V x[4]) {
    V a = _mm512_add_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
    V b = _mm512_add_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
    V sum = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xEE));
    return _mm512_permutexvar_ps(
        _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0), sum);
}
/* Lanes 4 * i .. 4 * i + 3. */
static inline void v_store_four(float *p, V x, int i) {
    switch (i) {
    case 0: _mm_storeu_ps(p, _mm512_castps512_ps128(x)); break;
    case 1: _mm_storeu_ps(p, _mm512_extractf32x4_ps(x, 1)); break;
    case 2: _mm_storeu_ps(p, _mm512_extractf32x4_ps(x, 2)); break;
    default: _mm_storeu_ps(p, _mm512_extractf32x4_ps(x, 3)); break;
    }
}
static inline V v_rotate(V x, V cs) {
    V c = _mm512_moveldup_ps(cs), s = _mm512_movehdup_ps(cs);
    V swapped = _mm512_permute_ps(x, 0xB1);
    V turned = _mm512_mul_ps(swapped, s), kept = _mm512_mul_ps(x, c);
    return _mm512_mask_sub_ps(_mm512_add_ps(kept, turned), 0x5555, kept, turned);
}
static inline __attribute__((always_inline)) void v_transpose(V r[VN]) {
    V t[VN], u[VN];
#define EACH(n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)
    EACH(8) {
        t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    EACH(4) {
        u[4 * i] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        u[4 * i + 1] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0xEE);
        u[4 * i + 2] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        u[4 * i + 3] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xEE);
    }
    /* u[4g + j] holds, in 128-bit part q, column 4q + j of rows 4g..4g+3. */
    EACH(4) {
        t[i] = _mm512_shuffle_f32x4(u[i], u[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(u[i], u[i + 4], 0xDD);
        t[i + 8] = _mm512_shuffle_f32x4(u[i + 8], u[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(u[i + 8], u[i + 12], 0xDD);
    }
    EACH(4) {
        r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xDD);
        r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xDD);
    }
#undef EACH
}

/* ---- Repacked weights ---- */

/* A vector that stays in a register for all its uses: gcc 12 loads it for each one, and loads are
 * what a product waits for. */
static inline W w_kept(W w) {
    __asm__("" : "+v"(w));
    return w;
}

/* A byte a lane. */
static inline W w_bytes(const unsigned char *p) {
    return (W)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}
static inline W w_lookup(const unsigned char table[16], W index) {
    __m128i t = _mm_loadu_si128((const __m128i *)(const void *)table);
    return (W)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(t), (__m512i)index);
}
/* Of the indices in bytes 0 and 2 of a lane its points (hd_cpu_iq2_points), and of bytes 1 and 3:
 * four permutations have 64 points each, of which bits 6 and 7 choose one. */
static inline void w_points(W index, W point[2]) {
    const __m512i *table = (const __m512i *)(const void *)hd_cpu_iq2_points;
    _Pragma("GCC unroll 2") for (int h = 0; h < 2; h++) {
        __m512i i = h == 0 ? (__m512i)index : _mm512_srli_epi16((__m512i)index, 8), of[4];
        _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++) of[k] = _mm512_permutex2var_epi16(
            _mm512_load_si512(table + 2 * k), i, _mm512_load_si512(table + 2 * k + 1));
        __mmask32 bit6 = _mm512_test_epi16_mask(i, _mm512_set1_epi16(64)),
                  bit7 = _mm512_test_epi16_mask(i, _mm512_set1_epi16(128));
        point[h] = (W)_mm512_mask_blend_epi16(bit7, _mm512_mask_blend_epi16(bit6, of[0], of[1]),
                                              _mm512_mask_blend_epi16(bit6, of[2], of[3]));
    }
}

#endif
