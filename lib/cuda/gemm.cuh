// Products of many rows with BF16 inputs: what both kernels share. A tile is up to p.rows rows
// by some outputs; blocks are persistent and take every gridDim.x-th tile. Tiles are numbered in
// groups of GROUP row tiles, outputs slower than the group's rows, so that what runs at a time
// shares its rows and its weights in the cache.
#pragma once

#include "cuda/device.cuh"
#include "cuda/many.h"

constexpr int GEMM_ROWS = HD_CUDA_GEMM_ROWS, GEMM_FEW = HD_CUDA_GEMM_FEW, GEMM_GROUP = 16;

// One or two products of a launch; tiles from `split` on are of the second, counted on the device
// where a list says which rows there are.
struct gemm_pair {
    hd_cuda_mul m[2];
    int n, rows; // rows of a tile at most: GEMM_ROWS, or GEMM_FEW
};

void gemm_mma_run(const gemm_pair &p, int n_block, cudaStream_t stream);
void gemm_wgmma_run(const gemm_pair &p, int n_block, cudaStream_t stream);

// A tile: matrix, rows, outputs of which product.
struct gemm_tile {
    const hd_cuda_mul *m;
    int mat, first, n, o0;
};

static __device__ __forceinline__ int row_tiles(const gemm_pair &p, const hd_cuda_mul &m) {
    if (m.tile != nullptr) return *m.n_tile;
    return (m.n_row + p.rows - 1) / p.rows * m.w.n_mat;
}

// Tile number `at` of the launch, outputs `width` at a time; false: there are not so many.
static __device__ __forceinline__ bool find_gemm_tile(const gemm_pair &p, int at, int width,
                                                      gemm_tile *t) {
    for (int i = 0; i < p.n; i++) {
        const hd_cuda_mul &m = p.m[i];
        int n_row_tile = row_tiles(p, m), n_col = (m.w.n_out + width - 1) / width;
        if (at >= n_row_tile * n_col) {
            at -= n_row_tile * n_col;
            continue;
        }
        int group = at / (GEMM_GROUP * n_col), in_group = at % (GEMM_GROUP * n_col);
        int n_in_group = min(GEMM_GROUP, n_row_tile - group * GEMM_GROUP);
        int row_tile = group * GEMM_GROUP + in_group % n_in_group;
        t->m = &m;
        t->o0 = in_group / n_in_group * width;
        if (m.tile != nullptr) {
            hd_cuda_tile listed = m.tile[row_tile];
            t->mat = listed.mat, t->first = listed.first, t->n = listed.n;
        } else {
            int per_mat = (m.n_row + p.rows - 1) / p.rows;
            t->mat = row_tile / per_mat;
            t->first = row_tile % per_mat * p.rows;
            t->n = min(p.rows, m.n_row - t->first);
        }
        return true;
    }
    return false;
}

// Row i of the tile.
static __device__ __forceinline__ const uint16_t *gemm_input(const gemm_tile &t, int i) {
    const hd_cuda_mul &m = *t.m;
    size_t r = (size_t)(m.x_row != nullptr ? m.x_row[t.first + i] : t.first + i);
    return m.x_bf16 + (m.tile != nullptr ? 0 : (size_t)t.mat * m.x_mat) + r * m.ldx;
}

static __device__ __forceinline__ float swiglu(float gate, float up) {
    return up * (gate / (1.0f + expf(-gate)));
}

// Elements from y (or y_bf16) to outputs of row i of the tile.
static __device__ __forceinline__ size_t gemm_output(const gemm_tile &t, int i) {
    const hd_cuda_mul &m = *t.m;
    return (m.tile != nullptr ? 0 : (size_t)t.mat * m.y_mat) + (size_t)(t.first + i) * m.ldy;
}

static __device__ __forceinline__ void gemm_put_one(const hd_cuda_mul &m, size_t at, float v) {
    if (m.y_bf16 != nullptr)
        m.y_bf16[at] = (uint16_t)bf16_bits(v);
    else
        m.y[at] = m.into == HD_CUDA_ADD ? m.y[at] + v : v;
}

static __device__ __forceinline__ void store4(const hd_cuda_mul &m, size_t at, const float v[4]) {
    if (m.y_bf16 != nullptr) {
        *(uint2 *)(m.y_bf16 + at) = make_uint2(bf16_bits(v[0]) | bf16_bits(v[1]) << 16,
                                               bf16_bits(v[2]) | bf16_bits(v[3]) << 16);
        return;
    }
    float4 *y = (float4 *)(m.y + at);
    float4 to = make_float4(v[0], v[1], v[2], v[3]);
    if (m.into == HD_CUDA_ADD) {
#if __CUDA_ARCH__ >= 900
        // One addition an output: the order is no matter, and nobody waits for what was there.
        asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(y), "f"(to.x), "f"(to.y),
                     "f"(to.z), "f"(to.w)
                     : "memory");
        return;
#else
        float4 old = *y;
        to = make_float4(old.x + to.x, old.y + to.y, old.z + to.z, old.w + to.w);
#endif
    }
    *y = to;
}

// Outputs o .. o+3, o a multiple of 4, of a row whose outputs start at element `at`.
static __device__ __forceinline__ void gemm_put4(const hd_cuda_mul &m, size_t at, int o,
                                                 const float v[4]) {
    at += (size_t)o;
    bool is_rounded = m.y_bf16 != nullptr;
    uintptr_t to = is_rounded ? (uintptr_t)(m.y_bf16 + at) : (uintptr_t)(m.y + at);
    if (o + 3 < m.w.n_out && (to & (is_rounded ? 7 : 15)) == 0) {
        store4(m, at, v);
    } else {
#pragma unroll
        for (int c = 0; c < 4; c++)
            if (o + c < m.w.n_out) gemm_put_one(m, at + (size_t)c, v[c]);
    }
}

// Four neighbours in a row out of two pairs: lanes t = 0, 2 of a group of four have outputs 2t ..
// 2t+3 of the first block of eight afterwards, lanes 1, 3 outputs 2(t-1) .. of the second.
static __device__ __forceinline__ void join_pairs(const float a[2], const float b[2], float v[4]) {
    bool is_odd = threadIdx.x % 2 != 0;
#pragma unroll
    for (int c = 0; c < 2; c++) {
        float got = shuffle_xor(is_odd ? a[c] : b[c], 1);
        v[c] = is_odd ? got : a[c];
        v[c + 2] = is_odd ? b[c] : got;
    }
}

static __device__ __forceinline__ int clamp_bytes(int n) { return max(0, min(16, n)); }
