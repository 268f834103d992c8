/* The AVX-512 level (F, BW, DQ, VL and VNNI): sixteen-lane fused multiply-add; dot products of
 * integers by vpdpbusd. Compiled with those instruction sets; run only after the processor was
 * asked. */
#if defined(__x86_64__)
#include "cpu/kernel_avx512.h"

/* 8-bit products added to acc, of acc too, so that none can be left out. */
#define INT8_EACH 64
static inline VI vi_probe_int8(VI acc, VI x) { return _mm512_dpbusd_epi32(acc, acc, x); }

/* acc + the dot products of four unsigned codes a lane with four signed bytes. */
static inline VI v_dot(VI acc, W code, const int8_t *x) {
    typedef int four __attribute__((aligned(1), may_alias));
    /* The compilers' intrinsic takes an instruction more to load the bytes (gcc 12). */
    __asm__ volatile("vpdpbusd %2%{1to16%}, %1, %0"
                     : "+v"(acc)
                     : "v"(code), "m"(*(const four *)(const void *)x));
    return acc;
}
/* Where codes lie as bytes, loads bind a product: half of a row's bytes are loaded sixteen at a
 * time and spread by shuffles, 1.04 to 1.18 times as fast (Zen 5). Other formats, which shift where
 * these shuffle, lose as much. */
#define SPREADS(l) ((l).low_bits == 8)
/* Sixteen bytes in each quarter; then the dot products with the i-th four of them. */
static inline VI vi_sixteen(const int8_t *x) {
    VI sixteen = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)x));
    __asm__("" : "+v"(sixteen)); /* gcc 12 makes four loads of it */
    return sixteen;
}
static inline VI v_dot_spread(VI acc, W code, VI sixteen, int i) {
    VI four = i == 0   ? _mm512_shuffle_epi32(sixteen, 0x00)
              : i == 1 ? _mm512_shuffle_epi32(sixteen, 0x55)
              : i == 2 ? _mm512_shuffle_epi32(sixteen, 0xAA)
                       : _mm512_shuffle_epi32(sixteen, 0xFF);
    __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(code), "v"(four));
    return acc;
}
#define SUM_START 0x4B400000
#define START_VALUE 0x1.8p23f
#define PACKED_ROWS 16

#define TILE_ROWS 6
#define TILE_PANELS 4
#define STRIDED_ROWS 16 /* of one panel of 16 lanes */
#define KERNELS hd_cpu_avx512
#define KERNELS_NAME "avx512"
#define KERNELS_TITLE "AVX-512 VNNI"
#define KERNELS_INTEGERS "avx512-vnni"
#define KERNELS_FLOATS "avx512-fma"
#include "cpu/kernel_product.h"
#include "cpu/kernel_repacked.h"
#include "cpu/kernel_rows.h"

const hd_cpu_kernels hd_cpu_amx = {
    .name = "amx",
    .title = "AMX-INT8 and AVX-512 VNNI",
    .integers = "amx-int8, avx512-vnni",
    .packed_product = hd_cpu_amx_product,
    .probe_int8 = hd_cpu_amx_probe_int8,
    KERNELS_OF_ROWS,
};
#endif
