// The root mean square norm, in one order wherever it is computed: thread i of 256 adds the squares
// of elements 8i .. 8i+7 of every 2048, lanes are added as a tree, then warps in order.
#pragma once

#include "cuda/terms.cuh"

// Eight floats from x[k], fast when they are aligned; those from n on are zero.
static __device__ __forceinline__ void load_any8(const float *x, int k, int n, float v[8]) {
    if (k + 8 <= n && ((uintptr_t)(x + k) & 15) == 0)
        load8(x, k, v);
    else
        load_some(x, k, n, v);
}

static __device__ __forceinline__ void store_any8(float *to, int k, int n, const float v[8]) {
    if (k + 8 <= n && ((uintptr_t)(to + k) & 15) == 0) {
        ((float4 *)(to + k))[0] = make_float4(v[0], v[1], v[2], v[3]);
        ((float4 *)(to + k))[1] = make_float4(v[4], v[5], v[6], v[7]);
        return;
    }
#pragma unroll
    for (int e = 0; e < 8; e++)
        if (k + e < n) to[k + e] = v[e];
}

static __device__ __forceinline__ void add_squares(const float v[8], float *sum) {
#pragma unroll
    for (int e = 0; e < 8; e++) *sum += v[e] * v[e];
}
static __device__ __forceinline__ void put_warp_sum(float sum, float warp_sum[256 / 32]) {
    for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
    if (threadIdx.x % 32 == 0) warp_sum[threadIdx.x / 32] = sum;
}

// Sums of the squares of x[0..n) by warps of the block.
static __device__ __forceinline__ void sum_squares(const float *x, int n,
                                                   float warp_sum[256 / 32]) {
    float sum = 0;
    for (int k = (int)threadIdx.x * 8; k < n; k += 256 * 8) {
        float v[8];
        load_any8(x, k, n, v);
        add_squares(v, &sum);
    }
    put_warp_sum(sum, warp_sum);
}

// 1 / sqrt(mean + eps)
static __device__ __forceinline__ float inverse_of(const float warp_sum[256 / 32], int n,
                                                   float eps) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 256 / 32; i++) sum += warp_sum[i];
    return 1.0f / sqrtf(sum / (float)n + eps);
}
