// Weight products of the formats of 32 elements a block, and of FP8.
#include "cuda/few.cuh"

HD_CUDA_MUL_FEW_OF(HD_Q8_0)
HD_CUDA_MUL_FEW_OF(HD_Q4_0)
HD_CUDA_MUL_FEW_OF(HD_Q5_0)
HD_CUDA_MUL_OF(HD_MXFP4)
HD_CUDA_MUL_OF(HD_F8_B128)
