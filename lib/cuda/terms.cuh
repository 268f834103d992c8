// Floats as sums of BF16 terms, and the product of two such sums.
//
// Fragments. A block of 32 inputs is shared by the four lanes t of a group: lane t has inputs 8t ..
// 8t+7, in four registers of two. Registers 0 and 1 make the first tensor core product, 2 and 3 the
// second: which input is in which place of it is the same for both sides, so it does not matter.
#pragma once

#include "cuda/device.cuh"

// t[n] = v rounded to BF16, minus the terms before.
template <int N> static __device__ __forceinline__ void split8(const float v[8], uint32_t t[][4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float a = v[2 * i], b = v[2 * i + 1];
#pragma unroll
        for (int n = 0; n < N; n++) {
            uint32_t ha = bf16_bits(a), hb = bf16_bits(b);
            t[n][i] = ha | hb << 16;
            a -= bf16_value(ha);
            b -= bf16_value(hb);
        }
    }
}

// Eight floats from x[k], which is aligned to 16 bytes; without x zeros.
static __device__ __forceinline__ void load8(const float *x, int k, float v[8]) {
    float4 a = {0, 0, 0, 0}, b = a;
    if (x != nullptr) a = *(const float4 *)(x + k), b = *(const float4 *)(x + k + 4);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

// The same from anywhere; those from n on are zero.
static __device__ __forceinline__ void load_some(const float *x, int k, int n, float v[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = x != nullptr && k + i < n ? x[k + i] : 0;
}

template <int N>
static __device__ __forceinline__ void float_terms(const float *x, int k, int n, uint32_t t[][4]) {
    float v[8];
    if (k + 8 <= n && ((uintptr_t)(x + k) & 15) == 0)
        load8(x, k, v);
    else
        load_some(x, k, n, v);
    split8<N>(v, t);
}

// c += (sum of A's terms) (sum of B's), least products first. a: rows g, b: rows g+8 of A.
template <int NA, int NB>
static __device__ __forceinline__ void multiply(float c[4], const uint32_t (*a)[4],
                                                const uint32_t (*b)[4], const uint32_t (*x)[4]) {
    constexpr int LAST = (NA > NB ? NA : NB) - 1;
#pragma unroll
    for (int s = LAST; s >= 0; s--) {
#pragma unroll
        for (int i = 0; i < NA; i++) {
            int j = s - i;
            if (j < 0 || j >= NB) continue;
            uint32_t first[4] = {a[i][0], b[i][0], a[i][1], b[i][1]};
            uint32_t second[4] = {a[i][2], b[i][2], a[i][3], b[i][3]};
            tensor_product(c, first, x[j]);
            tensor_product(c, second, x[j] + 2);
        }
    }
}
