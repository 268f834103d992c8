// Weight products of the formats of 256 elements a block.
#include "cuda/one.cuh"

HD_CUDA_MUL_ONE_OF(HD_Q4_K)
HD_CUDA_MUL_ONE_OF(HD_Q6_K)
