// Weight products of the formats of 32 elements a block that have a minimum or a code book.
#include "cuda/stream.cuh"

HD_CUDA_MUL_OF(HD_Q4_1)
HD_CUDA_MUL_OF(HD_Q5_1)
HD_CUDA_MUL_OF(HD_IQ4_NL)
