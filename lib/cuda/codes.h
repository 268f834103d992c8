/* Products with FP8 weights by the FP8 units of sm_90a: mul_fp8_wgmma.cu. */
#ifndef HD_CUDA_CODES_H
#define HD_CUDA_CODES_H

#include "cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    HD_CUDA_CODE_TILE = 32, /* rows of a tile there at most */
    HD_CUDA_CODE_MIN = 16   /* steps of fewer rows take mul_fp8.cu */
};

/* Room for inputs as codes, on the device; at NULL: none. */
typedef struct hd_cuda_codes {
    void *at;
    size_t n_byte;
    int n_x; /* rows that x_row chooses from */
} hd_cuda_codes;

/* Whether it takes one or two products, which hd_cuda_run_mul is not asked for then: FP8 weights
 * with a map, rounded, not ordered, of up to HD_CUDA_FP8_ROWS rows or of tiles, without a norm, and
 * room for their inputs: two E4M3 terms with a power of two for each 128, as right as BF16. */
bool hd_cuda_can_mul_codes(const hd_cuda_mul *m, int n, const hd_cuda_codes *room);
/* False: nothing is launched, since the driver makes no map of the inputs (it made the weights').
 */
bool hd_cuda_run_mul_codes(const hd_cuda_mul *m, int n, const hd_cuda_codes *room,
                           cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
