// Rows by expert and back again, many of them.
//
// Sorting: blocks of rows are counted, the counts summed, the rows placed. The result is that of
// hd_cuda_run_sort.
// A block knows its rows of an expert as a mask of bits: a row's place among them is the number of
// bits below its own.
#include "cuda/device.cuh"
#include "cuda/many.h"

constexpr int ROWS = HD_CUDA_SORT_ROWS, WORDS = ROWS / 32;

typedef uint32_t row_mask[HD_CUDA_EXPERT_MAX][WORDS];

// The matrix of a row's k-th expert; negative: it is another rank's.
static __device__ __forceinline__ int matrix_of(const hd_cuda_sort &a, int row, int k) {
    int e = a.expert[row * a.n_used + k] - a.expert0;
    return e < a.n_expert ? e : -1;
}

static __device__ __forceinline__ void mark_rows(const hd_cuda_sort &a, row_mask &mask) {
    int tid = (int)threadIdx.x, row = (int)blockIdx.x * ROWS + tid;
    for (int i = tid; i < a.n_expert * WORDS; i += ROWS) mask[i / WORDS][i % WORDS] = 0;
    __syncthreads();
    for (int k = 0; row < a.n_row && k < a.n_used; k++) {
        int e = matrix_of(a, row, k);
        if (e >= 0) atomicOr(&mask[e][tid / 32], 1u << tid % 32);
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(ROWS) count_rows(const hd_cuda_sort a) {
    __shared__ row_mask mask;
    let_next_start();
    wait_for_previous();
    mark_rows(a, mask);
    for (int e = (int)threadIdx.x; e < a.n_expert; e += ROWS) {
        int n = 0;
        for (int i = 0; i < WORDS; i++) n += __popc(mask[e][i]);
        a.count[(int)blockIdx.x * a.n_expert + e] = n;
    }
}

// v[i] becomes the sum of v[0 .. i-1]; n threads.
static __device__ int sum_before(int *v, int n) {
    int i = (int)threadIdx.x, own = v[i];
    for (int step = 1; step < n; step *= 2) {
        __syncthreads();
        int before = i >= step ? v[i - step] : 0;
        __syncthreads();
        v[i] += before;
    }
    __syncthreads();
    return v[i] - own;
}

// A thread an expert: counts become the first slot of a block's rows.
static __global__ void __launch_bounds__(HD_CUDA_EXPERT_MAX)
    sum_counts(const hd_cuda_sort a, int n_block) {
    __shared__ int n_rows[HD_CUDA_EXPERT_MAX], n_tiles[HD_CUDA_EXPERT_MAX];
    let_next_start();
    wait_for_previous();
    int e = (int)threadIdx.x, n = 0, n_thread = (int)blockDim.x;
    bool is_one = e < a.n_expert;
    for (int b = 0; is_one && b < n_block; b++) n += a.count[b * a.n_expert + e];
    n_rows[e] = n;
    n_tiles[e] = (n + a.tile_rows - 1) / a.tile_rows;
    int slot = sum_before(n_rows, n_thread), tile = sum_before(n_tiles, n_thread);
    if (e == n_thread - 1) *a.n_tile = n_tiles[e];
    for (int i = 0; i < n; i += a.tile_rows)
        a.tile[tile++] = {e, slot + i, min(a.tile_rows, n - i)};
    for (int b = 0; is_one && b < n_block; b++) {
        int in_block = a.count[b * a.n_expert + e];
        a.count[b * a.n_expert + e] = slot;
        slot += in_block;
    }
}

static __global__ void __launch_bounds__(ROWS) place_rows(const hd_cuda_sort a) {
    __shared__ row_mask mask;
    let_next_start();
    wait_for_previous();
    mark_rows(a, mask);
    int tid = (int)threadIdx.x, row = (int)blockIdx.x * ROWS + tid;
    for (int k = 0; row < a.n_row && k < a.n_used; k++) {
        int e = matrix_of(a, row, k);
        a.slot_of[row * a.n_used + k] = -1;
        if (e < 0) continue;
        int slot = a.count[(int)blockIdx.x * a.n_expert + e];
        for (int i = 0; i < tid / 32; i++) slot += __popc(mask[e][i]);
        slot += __popc(mask[e][tid / 32] & ((1u << tid % 32) - 1));
        a.row_of[slot] = row;
        a.slot_of[row * a.n_used + k] = slot;
    }
}

extern "C" void hd_cuda_run_sort_many(const hd_cuda_sort *a, cudaStream_t stream) {
    int n_block = (a->n_row + ROWS - 1) / ROWS, n_thread = (a->n_expert + 31) / 32 * 32;
    HD_LAUNCH_EARLY(count_rows, dim3((unsigned)n_block), ROWS, 0, stream, *a);
    HD_LAUNCH_EARLY(sum_counts, dim3(1), (unsigned)n_thread, 0, stream, *a, n_block);
    HD_LAUNCH_EARLY(place_rows, dim3((unsigned)n_block), ROWS, 0, stream, *a);
}

// ---- the sum of a row's experts: a thread eight values ----

static __device__ __forceinline__ void add_scaled(float sum[8], const uint16_t *from,
                                                  float weight) {
    uint4 r = *(const uint4 *)from;
    uint32_t w[4] = {r.x, r.y, r.z, r.w};
#pragma unroll
    for (int i = 0; i < 8; i++) sum[i] += weight * bf16_value(w[i / 2] >> (i % 2 * 16) & 0xffff);
}

static __global__ void __launch_bounds__(256) combine_bf16(const hd_cuda_combine_bf16 a) {
    let_next_start();
    wait_for_previous();
    size_t row = blockIdx.x, ld = (size_t)(a.n + 7) / 8 * 8;
    const int32_t *slot = a.slot_of + row * (size_t)a.n_used;
    const float *weight = a.weight + row * (size_t)a.n_used;
    for (int i = (int)threadIdx.x * 8; i < a.n; i += 256 * 8) {
        float sum[8] = {};
#pragma unroll 8
        for (int k = 0; k < a.n_used; k++)
            if (slot[k] >= 0) add_scaled(sum, a.y + (size_t)slot[k] * ld + i, weight[k]);
        if (a.shared != nullptr) add_scaled(sum, a.shared + row * ld + i, 1);
        float *x = a.x + row * (size_t)a.n + i;
        if (i + 8 <= a.n && ((uintptr_t)x & 15) == 0) {
            float4 low = *(float4 *)x, high = *(float4 *)(x + 4);
            *(float4 *)x =
                make_float4(low.x + sum[0], low.y + sum[1], low.z + sum[2], low.w + sum[3]);
            *(float4 *)(x + 4) =
                make_float4(high.x + sum[4], high.y + sum[5], high.z + sum[6], high.w + sum[7]);
        } else {
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (i + j < a.n) x[j] += sum[j];
        }
    }
}

extern "C" void hd_cuda_run_combine_bf16(const hd_cuda_combine_bf16 *a, cudaStream_t stream) {
    HD_LAUNCH_EARLY(combine_bf16, dim3((unsigned)a->n_row), 256, 0, stream, *a);
}
