/* The AVX-VNNI level: as AVX2, with dot products of integers by vpdpbusd, for processors that have
 * it without AVX-512. Compiled with -mavxvnni too; run only after the processor was asked. */
#if defined(__x86_64__)
#include "cpu/kernel_avx2.h"

/* 8-bit products added to acc; of acc too, so that none can be left out. */
#define INT8_EACH 32
static inline VI vi_probe_int8(VI acc, VI x) { return _mm256_dpbusd_avx_epi32(acc, acc, x); }

/* acc + the dot products of four unsigned codes a lane with four signed bytes. */
static inline VI vi_dot(VI acc, W code, VI four) {
    return _mm256_dpbusd_avx_epi32(acc, (__m256i)code, four);
}
#define SUM_START 0x4B400000
#define START_VALUE 0x1.8p23f

#define TILE_ROWS 6
#define TILE_PANELS 1
#define STRIDED_ROWS 6 /* of one panel of 16 lanes */
#define KERNELS hd_cpu_avxvnni
#define KERNELS_NAME "avxvnni"
#define KERNELS_TITLE "AVX2 with FMA and AVX-VNNI"
#define KERNELS_INTEGERS "avx-vnni"
#define KERNELS_FLOATS "avx2-fma"
#include "cpu/kernel_product.h"
#include "cpu/kernel_repacked.h"
#include "cpu/kernel_rows.h"
#endif
