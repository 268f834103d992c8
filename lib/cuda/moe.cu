// The sum of a row's experts.
#include "cuda/device.cuh"

static __global__ void __launch_bounds__(256) combine_rows(const hd_cuda_combine a) {
    let_next_start();
    wait_for_previous();
    size_t row = blockIdx.x, n = (size_t)a.n;
    const int32_t *slot = a.slot_of + row * (size_t)a.n_used;
    const float *weight = a.weight + row * (size_t)a.n_used;
    size_t i = (size_t)blockIdx.y * 256 + threadIdx.x;
    if (i >= n) return;
    float sum = 0;
#pragma unroll 8
    for (int k = 0; k < a.n_used; k++)
        if (slot[k] >= 0) sum += weight[k] * a.y[(size_t)slot[k] * n + i];
    if (a.shared != nullptr) sum += a.shared[row * n + i];
    a.x[row * n + i] = a.is_partial ? sum : a.x[row * n + i] + sum;
}

extern "C" void hd_cuda_run_combine(const hd_cuda_combine *a, cudaStream_t stream) {
    dim3 grid((unsigned)a->n_row, (unsigned)((a->n + 255) / 256));
    HD_LAUNCH_EARLY(combine_rows, grid, 256, 0, stream, *a);
}
