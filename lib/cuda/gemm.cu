// Products of many rows: which kernel.
#include "cuda/decode.cuh"
#include "cuda/gemm.cuh"

#include <cudaTypedefs.h>
#include <string.h>

extern "C" cudaError_t hd_cuda_prepare_gemm(bool is_sm90) {
    cudaError_t e = gemm_mma_prepare();
    return e == cudaSuccess && is_sm90 ? gemm_wgmma_prepare() : e;
}

extern "C" cudaError_t hd_cuda_make_map(const hd_cuda_mat *w, void *map) {
    PFN_cuTensorMapEncodeTiled_v12000 encode = nullptr;
    cudaDriverEntryPointQueryResult found;
    cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void **)&encode,
                                                     12000, cudaEnableDefault, &found);
    if (e != cudaSuccess) return e;
    if (found != cudaDriverEntryPointSuccess) return cudaErrorNotSupported;
    alignas(64) CUtensorMap m;
    static_assert(sizeof m == HD_CUDA_MAP_BYTES, "the driver's type");
    bool is_fp8 = w->format == HD_F8_B128; // boxes of 128 bytes, either way
    cuuint64_t each = is_fp8 ? 1 : 2;
    cuuint64_t size[3] = {w->row_bytes / each, (cuuint64_t)w->n_out, (cuuint64_t)w->n_mat};
    cuuint64_t stride[2] = {w->row_bytes, w->mat_bytes};
    cuuint32_t box[3] = {(cuuint32_t)(128 / each), HD_CUDA_BOX_ROWS, 1}, step[3] = {1, 1, 1};
    CUresult r =
        encode(&m, is_fp8 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3,
               (void *)w->data, size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
               CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r != CUDA_SUCCESS) return cudaErrorInvalidValue;
    memcpy(map, &m, sizeof m);
    return cudaSuccess;
}

extern "C" void hd_cuda_run_gemm(const hd_cuda_mul *m, int n, const hd_cuda_gemm_how *how,
                                 cudaStream_t stream) {
    gemm_pair p = {{m[0], m[n - 1]}, n};
    bool has_maps = true;
    for (int i = 0; i < n; i++)
        has_maps &= m[i].w.map != nullptr && (m[i].up.data == nullptr || m[i].up.map != nullptr);
    if (how->is_sm90 && has_maps && !how->is_ordered)
        gemm_wgmma_run(p, how->n_block, stream);
    else
        gemm_mma_run(p, how->n_block, stream);
}

// Eight weights a thread; blockIdx.y: the matrix.
template <int F>
static __global__ void __launch_bounds__(256) decode_rows(const hd_cuda_mat w, uint16_t *out) {
    let_next_start();
    wait_for_previous();
    unsigned n_piece = (unsigned)(w.n_in + 31) / 32 * 4, at = blockIdx.x * 256 + threadIdx.x;
    unsigned row = at / n_piece, piece = at % n_piece;
    if (row >= (unsigned)w.n_out) return;
    const unsigned char *from = w.data + blockIdx.y * w.mat_bytes + row * w.row_bytes;
    out += (size_t)blockIdx.y * (size_t)w.n_out * n_piece * 8;
    uint32_t r[1][4];
    weight_terms<F, 1>(from, (int)piece * 8, r);
    *(uint4 *)(out + (size_t)at * 8) = make_uint4(r[0][0], r[0][1], r[0][2], r[0][3]);
}

extern "C" void hd_cuda_run_decode(const hd_cuda_mat *w, uint16_t *out, cudaStream_t stream) {
    unsigned n = (unsigned)(w->n_in + 31) / 32 * 4 * (unsigned)w->n_out; // of a matrix
    dim3 grid((n + 255) / 256, (unsigned)w->n_mat);
    switch (w->format) {
#define ROW(F)                                                                                     \
    case F: HD_LAUNCH_EARLY(decode_rows<F>, grid, 256, 0, stream, *w, out); break;
        HD_CUDA_FORMATS(ROW)
#undef ROW
    default: break; // hd_cuda_can_decode was asked
    }
}
