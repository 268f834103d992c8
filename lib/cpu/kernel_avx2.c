/* The AVX2 level: eight-lane fused multiply-add; integers through sums of 16 bits
 * (vpmaddubsw), as many as cannot overflow. Compiled with -mavx2 -mfma -mf16c; run only after the
 * processor was asked. Float products are bit-equal to the AVX-512 level's. */
#if defined(__x86_64__)
#include "cpu/kernel_avx2.h"

/* The integer products of this level, added to acc; of acc too, so that none can be left out. */
#define INT8_EACH 32
static inline VI vi_probe_int8(VI acc, VI x) {
    VI pairs = _mm256_maddubs_epi16(acc, x);
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

/* Products of unsigned codes with signed bytes, sums of two, which codes of up to 7 bits keep
 * within 16 bits; and sums of such sums. */
#define SUMS_OF_16_BITS
static inline VI vi_pairs(W code, VI four) { return _mm256_maddubs_epi16((__m256i)code, four); }
/* gcc 12 would make all products of a block before it adds any of them, and keep them in memory;
 * here and below. */
static inline VI vi_add_16(VI a, VI b) {
    VI sum = _mm256_add_epi16(a, b);
    __asm__ volatile("" : "+x"(sum));
    return sum;
}
static inline VI vi_shift_up_16(VI n, int by) { return _mm256_slli_epi16(n, by); }
static inline VI vi_shift_down_16(VI n, int by) { return _mm256_srai_epi16(n, by); }
/* acc + the sums of two products of 16 bits. */
static inline VI vi_add_products(VI acc, VI a, VI b) {
    VI sum = _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
    __asm__ volatile("" : "+x"(sum));
    return sum;
}
#define SUM_START 0x4B400000
#define START_VALUE 0x1.8p23f

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
