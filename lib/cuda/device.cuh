// What every kernel is made of: BF16 terms of floats, the tensor core product, warp reductions.
#pragma once

#include "cuda/kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <limits.h>
#include <math.h>

#define HD_LAUNCH(kernel, grid, block, shared, stream, ...)                                        \
    kernel<<<grid, block, shared, stream>>>(__VA_ARGS__)
#define HD_DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]

static __device__ __forceinline__ float bf16_value(uint32_t bits) {
    return __uint_as_float(bits << 16);
}
static __device__ __forceinline__ uint32_t bf16_bits(float v) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(v));
}
static __device__ __forceinline__ float f16_value(uint32_t bits) {
    return __half2float(__ushort_as_half((unsigned short)bits));
}
static __device__ __forceinline__ uint32_t f16_bits(float v) {
    return __half_as_ushort(__float2half_rn(v));
}

// c += A B: A [16, 16], B [16, 8]; lane 4g+t holds of A rows g and g+8, of B column g, of c rows g
// and g+8, columns 2t and 2t+1.
static __device__ __forceinline__ void tensor_product(float c[4], const uint32_t a[4],
                                                      const uint32_t b[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Two 8x8 matrices of 16-bit values, transposed: lanes 0-7 and 8-15 point at their rows.
static __device__ __forceinline__ void load_transposed(uint32_t b[2], const void *row) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(b[0]), "=r"(b[1])
                 : "r"(at));
}

static __device__ __forceinline__ float shuffle_xor(float v, int mask) {
    return __shfl_xor_sync(0xffffffffu, v, mask);
}
static __device__ __forceinline__ int shuffle_xor(int v, int mask) {
    return __shfl_xor_sync(0xffffffffu, v, mask);
}
static __device__ __forceinline__ uint32_t warp_ballot(bool v) {
    return __ballot_sync(0xffffffffu, v);
}
static __device__ __forceinline__ void warp_barrier(void) { __syncwarp(); }
