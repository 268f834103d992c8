// Weight products of the rarer formats of 256 elements a block.
#include "cuda/stream.cuh"

HD_CUDA_MUL_OF(HD_Q2_K)
HD_CUDA_MUL_OF(HD_Q3_K)
HD_CUDA_MUL_OF(HD_Q5_K)
HD_CUDA_MUL_OF(HD_IQ4_XS)
