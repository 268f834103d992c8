/* The AVX-512 level (F, BW, DQ, VL and VNNI): sixteen-lane fused multiply-add; Q8_0 through
 * vpdpbusd, whose unsigned side is the weight plus 128, put right by -128 * sum(activations).
 * Compiled with those instruction sets; run only after the processor was asked. */
#if defined(__x86_64__)
#include "cpu/kernel.h"

#include <immintrin.h>

#define VN 16
typedef __m512 V;
typedef __m512i VI;

static inline V v_set(float x) { return _mm512_set1_ps(x); }
static inline V v_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void v_store(float *p, V x) { _mm512_storeu_ps(p, x); }
static inline V v_fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
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
static inline VI vi_half(VI n) { return _mm512_srai_epi32(n, 1); }
static inline VI vi_sub(VI a, VI b) { return _mm512_sub_epi32(a, b); }
static inline VI vi_add(VI a, VI b) { return _mm512_add_epi32(a, b); }

static inline VI vi_set(int32_t n) { return _mm512_set1_epi32(n); }
/* 8-bit products added to acc, as q_tile has them; of acc too, so that none can be left out. */
#define INT8_EACH 64
static inline VI vi_probe_int8(VI acc, VI x) { return _mm512_dpbusd_epi32(acc, acc, x); }

static inline float half_to_float(uint16_t h) { return _cvtsh_ss(h); }
static inline V v_decode_f32(const unsigned char *p) { return _mm512_loadu_ps(p); }
static inline V v_decode_f16(const unsigned char *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
static inline V v_decode_bf16(const unsigned char *p) {
    __m512i w = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
}
/* Sum of 16 lanes by halves: i and i + 8, then 4, 2, 1 apart; the same order at every level. */
static inline float v_sum_16(const V v[1]) {
    __m256 t = _mm256_add_ps(_mm512_castps512_ps256(v[0]), _mm512_extractf32x8_ps(v[0], 1));
    __m128 u = _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
    u = _mm_add_ps(u, _mm_movehl_ps(u, u));
    return _mm_cvtss_f32(_mm_add_ss(u, _mm_movehdup_ps(u)));
}

/* The first and the second of the two BF16 values in each element. */
static inline V v_low_bf16(V x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(x), 16));
}
static inline V v_high_bf16(V x) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(-65536)));
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

/* ---- Q8_0: 8-bit weights plus 128, panel [k/4][HD_CPU_STRIP][4] ---- */

/* n = 256 * upper + lower, the upper half rounded so that the lower one is signed too. */
static inline void q_store(int16_t *q, int at, VI n) {
    VI upper = _mm512_srai_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(128)), 8);
    VI lower = _mm512_sub_epi32(n, _mm512_slli_epi32(upper, 8));
    char *block = (char *)q;
    _mm_storeu_si128((__m128i *)(void *)(block + at), _mm512_cvtepi32_epi8(upper));
    _mm_storeu_si128((__m128i *)(void *)(block + 32 + at), _mm512_cvtepi32_epi8(lower));
}

#define QPANEL_BLOCK_BYTES (HD_CPU_QBLOCK * HD_CPU_STRIP)
#define QPANEL_LANE_BYTES 4

/* 16 rows of 8 dwords to 8 vectors of 16: rows o and o+8 share a register. */
static inline void q_unpack_block(const unsigned char *const *row, size_t offset, char *panel,
                                  int lane0) {
    __m512i r[8], t[8], u[8];
    for (int i = 0; i < 8; i++) {
        __m256i low = _mm256_setzero_si256(), high = low;
        if (row[i] != 0)
            low = _mm256_loadu_si256((const __m256i *)(const void *)(row[i] + offset + 2));
        if (row[i + 8] != 0)
            high = _mm256_loadu_si256((const __m256i *)(const void *)(row[i + 8] + offset + 2));
        r[i] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    }
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        u[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        u[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        u[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        u[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    /* u[j], parts: dword j of rows 0-3, dword j+4 of rows 0-3, the same of rows 8-11; u[j+4]: rows
     * 4-7 and 12-15. */
    const __m512i first = _mm512_set_epi64(13, 12, 5, 4, 9, 8, 1, 0);
    const __m512i second = _mm512_set_epi64(15, 14, 7, 6, 11, 10, 3, 2);
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    for (int j = 0; j < 4; j++) {
        __m512i a = _mm512_permutex2var_epi64(u[j], first, u[j + 4]);
        __m512i b = _mm512_permutex2var_epi64(u[j], second, u[j + 4]);
        _mm512_storeu_si512(panel + (j * HD_CPU_STRIP + lane0) * 4, _mm512_xor_si512(a, flip));
        _mm512_storeu_si512(panel + ((j + 4) * HD_CPU_STRIP + lane0) * 4,
                            _mm512_xor_si512(b, flip));
    }
}

#define QTILE_ROWS 6
#define QTILE_LANES 32

/* The upper halves' dots first, shifted up, then the lower halves' on top: one accumulator each.
 * At most 255 * 32512 * 32 in magnitude, far from 2^31. */
static inline __attribute__((always_inline)) void q_tile(const int16_t *const *x,
                                                         const int32_t *sum, const char *panel,
                                                         int n_row, V out[][QTILE_LANES / VN]) {
    __m512i acc[QTILE_ROWS][2];
    _Pragma("GCC unroll 16") for (int r = 0; r < n_row; r++) acc[r][0] = acc[r][1] =
        _mm512_setzero_si512();
    _Pragma("GCC unroll 2") for (int half = 0; half < 2; half++) {
        _Pragma("GCC unroll 8") for (int k = 0; k < HD_CPU_QBLOCK; k += 4) {
            const char *w = panel + k * HD_CPU_STRIP;
            __m512i w0 = _mm512_loadu_si512(w), w1 = _mm512_loadu_si512(w + 64);
            _Pragma("GCC unroll 16") for (int r = 0; r < n_row; r++) {
                int four;
                __builtin_memcpy(&four, (const char *)x[r] + 32 * half + k, sizeof four);
                __m512i xk = _mm512_set1_epi32(four);
                acc[r][0] = _mm512_dpbusd_epi32(acc[r][0], w0, xk);
                acc[r][1] = _mm512_dpbusd_epi32(acc[r][1], w1, xk);
            }
        }
        if (half == 1) break;
        _Pragma("GCC unroll 16") for (int r = 0; r < n_row; r++) {
            acc[r][0] = _mm512_slli_epi32(acc[r][0], 8);
            acc[r][1] = _mm512_slli_epi32(acc[r][1], 8);
        }
    }
    _Pragma("GCC unroll 16") for (int r = 0; r < n_row; r++) {
        __m512i offset = _mm512_set1_epi32(sum[r]);
        out[r][0] = _mm512_cvtepi32_ps(_mm512_add_epi32(acc[r][0], offset));
        out[r][1] = _mm512_cvtepi32_ps(_mm512_add_epi32(acc[r][1], offset));
    }
}

#define TILE_ROWS 6
#define TILE_PANELS 4
#define STRIDED_ROWS 16 /* of one panel of 16 lanes */
#define KERNELS hd_cpu_avx512
#define KERNELS_NAME "avx512"
#define KERNELS_TITLE "AVX-512 VNNI"
#include "cpu/kernel_product.h"
#include "cpu/kernel_rows.h"
#endif
