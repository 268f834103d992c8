// Weight products of the formats of 256 elements a block.
#include "cuda/few.cuh"

HD_CUDA_MUL_FEW_OF(HD_Q4_K)
HD_CUDA_MUL_FEW_OF(HD_Q6_K)
