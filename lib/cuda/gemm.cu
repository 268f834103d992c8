// Products of many rows: which kernel.
#include "cuda/decode.cuh"
#include "cuda/gemm.cuh"

#include <string.h>

extern "C" cudaError_t hd_cuda_make_map(const hd_cuda_mat *w, void *map) {
    CUtensorMap m;
    static_assert(sizeof m == HD_CUDA_MAP_BYTES, "the driver's type");
    size_t each = w->format == HD_F8_B128 ? 1 : 2;
    cudaError_t e = hd_cuda_encode_map({w->data, each, w->row_bytes, w->mat_bytes, (size_t)w->n_out,
                                        (size_t)w->n_mat, HD_CUDA_BOX_ROWS},
                                       &m);
    if (e != cudaSuccess) return e;
    memcpy(map, &m, sizeof m);
    return cudaSuccess;
}

extern "C" void hd_cuda_run_gemm(const hd_cuda_mul *m, int n, const hd_cuda_gemm_how *how,
                                 cudaStream_t stream) {
    gemm_pair p = {{m[0], m[n - 1]}, n, GEMM_ROWS};
    bool has_maps = true;
    for (int i = 0; i < n; i++)
        if (m[i].tile != nullptr) p.rows = m[i].tile_rows;
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
