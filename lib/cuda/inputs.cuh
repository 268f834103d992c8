// Inputs of a product's tile of rows in shared memory, normed when they have a norm, as BF16.
#pragma once

#include "cuda/mul.cuh"
#include "cuda/norm.cuh"

// Row r is at inputs + r * hd_cuda_input_stride(n_in), padded with zeros to blocks of 32. A block
// of 256, which waits for itself before it reads.
static __device__ __forceinline__ void load_inputs(const hd_cuda_mul &m, const hd_cuda_tile &t,
                                                   unsigned char *inputs) {
    constexpr int AT_ONCE = 2; // registers hold weights meanwhile
    __shared__ float warp_sum[2 * FEW][256 / 32];
    size_t stride = hd_cuda_input_stride(m.w.n_in);
    int n = m.w.n_in;
    if (m.norm != nullptr) {
        for (int r = 0; r < t.n; r++) sum_squares(input_row(m, t, r), n, warp_sum[r]);
        __syncthreads();
    }
    for (int k = (int)threadIdx.x * 8; k < padded(n); k += 256 * 8) {
        for (int r0 = 0; r0 < t.n; r0 += AT_ONCE) {
            float v[AT_ONCE][8];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                load_any8(input_row(m, t, min(r0 + i, t.n - 1)), k, n, v[i]);
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                if (r0 + i >= t.n) break;
                if (m.norm != nullptr) {
                    float w[8], inverse = inverse_of(warp_sum[r0 + i], n, m.eps);
                    load_any8(m.norm, k, n, w);
#pragma unroll
                    for (int e = 0; e < 8; e++) v[i][e] = w[e] * (v[i][e] * inverse);
                }
                uint32_t x[1][4];
                split8<1>(v[i], x);
                *(uint4 *)(inputs + (size_t)(r0 + i) * stride + (size_t)k * 2) =
                    make_uint4(x[0][0], x[0][1], x[0][2], x[0][3]);
            }
        }
    }
}

// Inputs k .. k+7 of a row.
static __device__ __forceinline__ void get_inputs(const unsigned char *row, int k,
                                                  uint32_t x[1][4]) {
    uint4 v = *(const uint4 *)(row + (size_t)k * 2);
    x[0][0] = v.x, x[0][1] = v.y, x[0][2] = v.z, x[0][3] = v.w;
}
