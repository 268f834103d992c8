/* Launchers that only many.c calls. */
#ifndef HD_CUDA_MANY_H
#define HD_CUDA_MANY_H

#include "cuda/kernels.h"

/* Rows of a tile of hd_cuda_run_gemm where experts have few: as well as HD_CUDA_GEMM_ROWS. */
enum { HD_CUDA_GEMM_FEW = 64 };

#ifdef __cplusplus
extern "C" {
#endif

/* hd_cuda_run_combine of BF16: x[r] += sum over k of weight[r][k] * y[slot_of[r][k]], k ascending,
 * then + shared[r]. Rows of y and shared are n padded to 8. */
typedef struct hd_cuda_combine_bf16 {
    const uint16_t *y, *shared; /* shared NULL: none */
    const float *weight;
    const int32_t *slot_of;
    float *x;
    int n_row, n_used, n;
} hd_cuda_combine_bf16;
void hd_cuda_run_combine_bf16(const hd_cuda_combine_bf16 *a, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
