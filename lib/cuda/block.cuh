// What kernels of a block a row share: its size, sums over it.
#pragma once

#include "cuda/device.cuh"

constexpr int BLOCK = 256;

// The sum of every thread's v, the same for all of them.
static __device__ __forceinline__ float block_sum(float v) {
    __shared__ float warp_sum[BLOCK / 32];
    for (int mask = 16; mask > 0; mask /= 2) v += shuffle_xor(v, mask);
    __syncthreads(); // the last use of warp_sum is over
    if (threadIdx.x % 32 == 0) warp_sum[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (int i = 0; i < BLOCK / 32; i++) v += warp_sum[i];
    return v;
}

static __device__ __forceinline__ float inverse_rms(const float *x, int n, float eps) {
    float sum = 0;
#pragma unroll 8
    for (int i = threadIdx.x; i < n; i += BLOCK) sum += x[i] * x[i];
    return 1.0f / sqrtf(block_sum(sum) / (float)n + eps);
}
