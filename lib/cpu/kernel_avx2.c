/* The AVX2 level: eight-lane fused multiply-add; Q8_0 through 16-bit pairs (vpmaddwd), which cannot
 * saturate as the 8-bit vpmaddubsw can. Compiled with -mavx2 -mfma -mf16c; run only after the
 * processor was asked. Float products are bit-equal to the AVX-512 level's. */
#if defined(__x86_64__)
#include "cpu/kernel_avx2.h"

/* The integer products of this level, added to acc; of acc too, so that none can be left out. */
#define INT8_EACH 32
static inline VI vi_probe_int8(VI acc, VI x) {
    VI pairs = _mm256_maddubs_epi16(acc, x);
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

/* acc + the dot products of four unsigned codes a lane with four signed bytes. Sums of two products
 * are 16 bits wide on the way, enough for codes of up to 7 bits; the eighth bit goes by itself. */
static inline VI v_dot(hd_cpu_layout l, VI acc, W code, const int8_t *x) {
    int four;
    __builtin_memcpy(&four, x, sizeof four);
    __m256i w = (__m256i)code, x4 = _mm256_set1_epi32(four), one = _mm256_set1_epi16(1);
    bool is_byte = l.low_bits == 8 || l.table == HD_CPU_TABLE_IQ4;
    if (is_byte) {
        __m256i top = _mm256_set1_epi8((char)0x80);
        __m256i pairs = _mm256_maddubs_epi16(_mm256_and_si256(w, top), x4);
        acc = _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, one));
        w = _mm256_andnot_si256(top, w);
    }
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x4), one));
}
#define SUM_START 0x4B400000
#define START_VALUE 0x1.8p23f
#define PACKED_ROWS 4

#define TILE_ROWS 6
#define TILE_PANELS 1
#define STRIDED_ROWS 6 /* of one panel of 16 lanes */
#define KERNELS hd_cpu_avx2
#define KERNELS_NAME "avx2"
#define KERNELS_TITLE "AVX2 with FMA"
#define KERNELS_INTEGERS "avx2-integer"
#define KERNELS_FLOATS "avx2-fma"
#include "cpu/kernel_product.h"
#include "cpu/kernel_repacked.h"
#include "cpu/kernel_rows.h"
#endif
