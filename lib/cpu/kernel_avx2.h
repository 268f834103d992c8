/* Eight-lane primitives of the AVX2 and AVX-VNNI levels. */
#ifndef HD_CPU_KERNEL_AVX2_H
#define HD_CPU_KERNEL_AVX2_H

#include "cpu/kernel.h"

#include <immintrin.h>

#define VN 8
typedef __m256 V;
typedef __m256i VI;
typedef uint32_t W __attribute__((vector_size(32))); /* four bytes a lane */

static inline V v_set(float x) { return _mm256_set1_ps(x); }
static inline V v_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void v_store(float *p, V x) { _mm256_storeu_ps(p, x); }
static inline V v_fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
/* sum += a * b in the sum's own register: where sums take nearly all registers, gcc 12 has them
 * change places, and spills some. */
static inline void v_add_product(V *sum, V a, V b) {
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(*sum) : "x"(a), "x"(b));
}
static inline V v_max(V a, V b) { return _mm256_max_ps(a, b); }
static inline V v_min(V a, V b) { return _mm256_min_ps(a, b); }
static inline V v_max_bits(V a, V b) {
    return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
}
static inline V v_abs(V a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
static inline V v_round(V x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline VI v_int(V x) { return _mm256_cvtps_epi32(x); }
static inline V v_pow2(VI n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
static inline V v_float(VI n) { return _mm256_cvtepi32_ps(n); }
static inline VI vi_set(int32_t n) { return _mm256_set1_epi32(n); }
static inline VI vi_shift_up(VI n, int by) { return _mm256_slli_epi32(n, by); }
/* n / 256, rounded so that what is left is a signed byte. */
static inline VI vi_upper(VI n) {
    return _mm256_srai_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(128)), 8);
}
static inline VI vi_shift_down(VI n, int by) { return _mm256_srai_epi32(n, by); }
static inline VI vi_sub(VI a, VI b) { return _mm256_sub_epi32(a, b); }
static inline VI vi_add(VI a, VI b) { return _mm256_add_epi32(a, b); }

static inline V v_decode_f32(const unsigned char *p) {
    return _mm256_loadu_ps((const float *)(const void *)p);
}
static inline V v_decode_f16(const unsigned char *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
static inline V v_decode_bf16(const unsigned char *p) {
    __m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(w, 16));
}
/* The lane whose bits, as a number with a sign, are the largest. */
static inline float v_largest_bits(V x) {
    __m256i n = _mm256_castps_si256(x);
    __m128i t = _mm_max_epi32(_mm256_castsi256_si128(n), _mm256_extracti128_si256(n, 1));
    t = _mm_max_epi32(t, _mm_shuffle_epi32(t, 0x4E));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(t, _mm_shuffle_epi32(t, 0xB1))));
}
static inline int32_t vi_sum(VI n) {
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(n), _mm256_extracti128_si256(n, 1));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(t, _mm_shuffle_epi32(t, 0xB1)));
}
/* Sum of 16 lanes by halves: i and i + 8, then 4, 2, 1 apart; the same order at every level. */
static inline float v_sum_16(const V v[2]) {
    __m256 t = _mm256_add_ps(v[0], v[1]);
    __m128 u = _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
    u = _mm_add_ps(u, _mm_movehl_ps(u, u));
    return _mm_cvtss_f32(_mm_add_ss(u, _mm_movehdup_ps(u)));
}

static inline V v_decode_s8(const unsigned char *p) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}
/* A code's bits, moved to where a float has its sign, exponent and fraction, are its value times
 * 2^-120: also of subnormal codes. */
static inline V v_decode_e4m3(const unsigned char *p) {
    __m256i q = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
    __m256i size = _mm256_slli_epi32(_mm256_and_si256(q, _mm256_set1_epi32(0x7F)), 20);
    __m256i sign = _mm256_slli_epi32(_mm256_and_si256(q, _mm256_set1_epi32(0x80)), 24);
    return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_or_si256(size, sign)), v_set(0x1p120f));
}
/* 2^floor(log2 |x|); 0 of 0. */
static inline V v_binade(V x) {
    return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7F800000)));
}
/* Codes of sizes that are values of E4M3, with the signs of x. */
static inline void v_store_e4m3(unsigned char *p, V size, V x) {
    __m256i q = _mm256_castps_si256(_mm256_mul_ps(size, v_set(0x1p-120f)));
    __m256i sign = _mm256_srli_epi32(_mm256_castps_si256(x), 24);
    q = _mm256_or_si256(_mm256_srli_epi32(q, 20), _mm256_and_si256(sign, _mm256_set1_epi32(0x80)));
    __m128i h = _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
    _mm_storel_epi64((__m128i *)(void *)p, _mm_packus_epi16(h, h));
}
static inline void v_store_s8(unsigned char *p, VI n) {
    __m128i h = _mm_packs_epi32(_mm256_castsi256_si128(n), _mm256_extracti128_si256(n, 1));
    _mm_storel_epi64((__m128i *)(void *)p, _mm_packs_epi16(h, h));
}
static inline void v_encode_f16(unsigned char *p, V x) {
    _mm_storeu_si128((__m128i *)(void *)p,
                     _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
/* Round to nearest even on the bits; NaN keeps its upper half and turns quiet. */
static inline void v_encode_bf16(unsigned char *p, V x) {
    __m256i bits = _mm256_castps_si256(x), one = _mm256_set1_epi32(1);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
    __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i h = _mm256_srli_epi32(_mm256_blendv_epi8(sum, quiet, is_nan), 16);
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(h, h), 0x08);
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_castsi256_si128(packed));
}
/* Four values, floats or halves, in all parts of four lanes. */
static inline V v_four(const float *p) {
    return _mm256_broadcast_ps((const __m128 *)(const void *)p);
}
static inline V v_four_halves(const unsigned char *p) {
    return _mm256_cvtph_ps(_mm_broadcastq_epi64(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}
/* Sums of each part of four lanes of x[0], then of x[1], ...: (0 + 2) + (1 + 3) of its lanes. */
static inline V v_sum_fours(const V x[4]) {
    V a = _mm256_add_ps(_mm256_unpacklo_ps(x[0], x[1]), _mm256_unpackhi_ps(x[0], x[1]));
    V b = _mm256_add_ps(_mm256_unpacklo_ps(x[2], x[3]), _mm256_unpackhi_ps(x[2], x[3]));
    V sum = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xEE));
    return _mm256_permutevar8x32_ps(sum, _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0));
}
/* Lanes 4 * i .. 4 * i + 3. */
static inline void v_store_four(float *p, V x, int i) {
    _mm_storeu_ps(p, i == 0 ? _mm256_castps256_ps128(x) : _mm256_extractf128_ps(x, 1));
}
static inline V v_rotate(V x, V cs) {
    V c = _mm256_moveldup_ps(cs), s = _mm256_movehdup_ps(cs);
    V swapped = _mm256_permute_ps(x, 0xB1);
    return _mm256_addsub_ps(_mm256_mul_ps(x, c), _mm256_mul_ps(swapped, s));
}
static inline void v_transpose(V r[VN]) {
    V t[VN], u[VN];
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xEE);
        u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xEE);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

/* ---- Repacked weights ---- */

static inline W w_kept(W w) { return w; } /* there are few registers */

/* A byte a lane. */
static inline W w_bytes(const unsigned char *p) {
    return (W)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}
static inline W w_lookup(const unsigned char table[16], W index) {
    __m128i t = _mm_loadu_si128((const __m128i *)(const void *)table);
    return (W)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(t), (__m256i)index);
}
/* Of the indices in bytes 0 and 2 of a lane its points (hd_cpu_iq2_points), and of bytes 1 and 3.
 */
static inline void w_points(W index, W point[2]) {
    const int *table = (const int *)(const void *)hd_cpu_iq2_points;
    _Pragma("GCC unroll 2") for (int h = 0; h < 2; h++) {
        W first = (W)_mm256_i32gather_epi32(table, (__m256i)(index >> (8 * h) & 255), 2);
        W second = (W)_mm256_i32gather_epi32(table, (__m256i)(index >> (8 * h + 16) & 255), 2);
        point[h] = (first & 0xFFFFu) | second << 16;
    }
}
/* Four bytes of a row in every lane. */
static inline VI vi_four(const int8_t *x) {
    int four;
    __builtin_memcpy(&four, x, sizeof four);
    return _mm256_set1_epi32(four);
}

#endif
