// Weight products of the float formats.
#include "cuda/stream.cuh"

HD_CUDA_MUL_OF(HD_F32)
HD_CUDA_MUL_OF(HD_F16)
HD_CUDA_MUL_OF(HD_BF16)
