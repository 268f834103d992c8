// Products of many rows on the tensor cores of every device, in the order of sums of
// hd_cuda_run_mul: eight warps of 64 rows by 32 outputs, or two matrices' 16, over a ring of stages
// of 32 inputs.
//
// A row of 32 inputs is 64 bytes, the four chunks of a fragment's lanes (terms.cuh): 16 bytes a
// lane are the operands of two products, and eight lanes read 128 bytes in a row.
#include "cuda/gemm.cuh"

constexpr int MMA_DEPTH = 32, MMA_WIDTH = 128, MMA_THREAD = 256, MMA_STAGE = 4;
constexpr int MMA_STEP_BYTES = (GEMM_ROWS + MMA_WIDTH) * MMA_DEPTH * 2;
constexpr size_t MMA_SHARED = (size_t)MMA_STAGE * 2 * MMA_STEP_BYTES;

template <bool GATED>
static __global__ void __launch_bounds__(MMA_THREAD, 1)
    gemm_mma(const __grid_constant__ gemm_pair p) {
    HD_DYNAMIC_SHARED(memory);
    constexpr int COLS = GATED ? MMA_WIDTH / 2 : MMA_WIDTH;
    int tid = (int)threadIdx.x, warp = tid / 32, lane = tid % 32, g = lane / 4, t4 = lane % 4;
    int chunk = tid % 4, row0 = tid / 4, r0 = warp / 4 * 64, o_warp = warp % 4 * 32;
    uint32_t base = shared_address(memory);
    gemm_tile t;
    let_next_start();
    wait_for_previous();
    for (int i = (int)blockIdx.x; find_gemm_tile(p, i, COLS, &t); i += (int)gridDim.x) {
        const hd_cuda_mul &m = *t.m;
        int n_in = m.w.n_in, n_step = (n_in + MMA_DEPTH - 1) / MMA_DEPTH;
        int slice = (n_in + HD_CUDA_SLICES - 1) / HD_CUDA_SLICES;
        slice = (slice + MMA_DEPTH - 1) / MMA_DEPTH; // steps
        const uint16_t *x[2];
        const unsigned char *w[2];
        bool is_there[2], has_row[2];
#pragma unroll
        for (int u = 0; u < 2; u++) {
            int row = row0 + 64 * u, o = t.o0 + (GATED ? row0 : row);
            const hd_cuda_mat &mat = GATED && u == 1 ? m.up : m.w;
            x[u] = gemm_input(t, min(row, t.n - 1)) + chunk * 8;
            has_row[u] = row < t.n;
            is_there[u] = o < m.w.n_out;
            w[u] = mat.data + (size_t)t.mat * mat.mat_bytes +
                   (is_there[u] ? (size_t)o * mat.row_bytes : 0) + chunk * 16;
        }
        auto load = [&](int pair) {
#pragma unroll
            for (int sub = 0; sub < 2; sub++) {
                int step = 2 * pair + sub;
                if (step >= n_step) break;
                uint32_t to = base + (uint32_t)((pair % MMA_STAGE * 2 + sub) * MMA_STEP_BYTES);
                to += (uint32_t)tid * 16;
                int k = step * MMA_DEPTH, n_byte = clamp_bytes((n_in - k - chunk * 8) * 2);
                if (n_byte == 0) k = 0;
#pragma unroll
                for (int u = 0; u < 2; u++) {
                    copy16(to + (uint32_t)(u * 4096), x[u] + k, has_row[u] ? n_byte : 0);
                    copy16(to + (uint32_t)(u * 4096 + 8192), w[u] + 2 * k,
                           is_there[u] ? n_byte : 0);
                }
            }
            copy_commit();
        };
        float acc[4][4][4] = {}, total[4][4][4] = {};
        for (int pair = 0; pair < MMA_STAGE - 1; pair++) load(pair);
        int n_slice_left = slice;
        for (int pair = 0; pair * 2 < n_step; pair++) {
            copy_wait<MMA_STAGE - 2>();
            __syncthreads();
            load(pair + MMA_STAGE - 1);
#pragma unroll
            for (int sub = 0; sub < 2; sub++) {
                int step = 2 * pair + sub;
                if (step >= n_step) break;
                const uint4 *rows =
                    (const uint4 *)(memory + (pair % MMA_STAGE * 2 + sub) * MMA_STEP_BYTES);
                const uint4 *outs = rows + 512;
                // Outputs are the rows of A, as in hd_cuda_run_mul; with GATED the second are up's.
                uint32_t first[2][4], second[2][4];
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    int o = GATED ? o_warp / 2 + 64 * c : o_warp + 16 * c;
                    uint4 a = outs[(o + g) * 4 + t4], b = outs[(o + 8 + g) * 4 + t4];
                    first[c][0] = a.x, first[c][1] = b.x, first[c][2] = a.y, first[c][3] = b.y;
                    second[c][0] = a.z, second[c][1] = b.z, second[c][2] = a.w, second[c][3] = b.w;
                }
                uint4 in[8];
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    if (j < 2) in[j] = rows[(r0 + 8 * j + g) * 4 + t4];
                    if (j + 2 < 8) in[j + 2] = rows[(r0 + 8 * (j + 2) + g) * 4 + t4];
                    uint32_t xf[2] = {in[j].x, in[j].y}, xs[2] = {in[j].z, in[j].w};
#pragma unroll
                    for (int c = 0; c < 2; c++)
                        tensor_product(acc[c * 2 + j / 4][j % 4], first[c], xf);
#pragma unroll
                    for (int c = 0; c < 2; c++)
                        tensor_product(acc[c * 2 + j / 4][j % 4], second[c], xs);
                }
                if (--n_slice_left == 0 || step + 1 == n_step) {
                    n_slice_left = slice;
#pragma unroll
                    for (int c = 0; c < 4; c++)
#pragma unroll
                        for (int j = 0; j < 4; j++)
#pragma unroll
                            for (int e = 0; e < 4; e++) {
                                total[c][j][e] += acc[c][j][e];
                                acc[c][j][e] = 0;
                            }
                }
            }
        }
        copy_wait<0>();
        __syncthreads();
        // Of a product, lane 4g+t has outputs g and g + 8 of rows 2t and 2t + 1: exchanged with
        // the lanes whose g differs in a bit, four outputs of one row.
#pragma unroll
        for (int j = 0; j < 8; j++) {
            if (r0 + 8 * j >= t.n) break;
            int row = r0 + 8 * j + 2 * t4 + g % 2;
            size_t at = gemm_output(t, min(row, t.n - 1));
#pragma unroll
            for (int c = 0; c < (GATED ? 1 : 2); c++) {
                float pair[2][2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float v[2];
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        float one = total[c * 2 + j / 4][j % 4][2 * e + h];
                        v[h] = GATED ? swiglu(one, total[2 + j / 4][j % 4][2 * e + h]) : one;
                    }
                    // g even keeps row 2t, g odd row 2t + 1
                    float got = shuffle_xor(g % 2 ? v[0] : v[1], 4);
                    pair[e][0] = g % 2 ? got : v[0], pair[e][1] = g % 2 ? v[1] : got;
                }
                // g with bit 1 clear keeps outputs 0 .. 7, set 8 .. 15.
                bool is_high = (g & 2) != 0;
                float v[4];
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    float got = shuffle_xor(is_high ? pair[0][h] : pair[1][h], 8);
                    v[h] = is_high ? got : pair[0][h];
                    v[h + 2] = is_high ? pair[1][h] : got;
                }
                int o = t.o0 + (GATED ? o_warp / 2 : o_warp + 16 * c) + (is_high ? 8 : 0) + (g & 4);
                if (row < t.n) gemm_put4(m, at, o, v);
            }
        }
    }
}

cudaError_t gemm_mma_prepare(void) {
    cudaError_t e = cudaFuncSetAttribute(
        gemm_mma<false>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)MMA_SHARED);
    if (e != cudaSuccess) return e;
    return cudaFuncSetAttribute(gemm_mma<true>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)MMA_SHARED);
}

void gemm_mma_run(const gemm_pair &p, int n_block, cudaStream_t stream) {
    if (p.m[0].up.data != nullptr)
        HD_LAUNCH_EARLY(gemm_mma<true>, dim3((unsigned)n_block), MMA_THREAD, MMA_SHARED, stream, p);
    else
        HD_LAUNCH_EARLY(gemm_mma<false>, dim3((unsigned)n_block), MMA_THREAD, MMA_SHARED, stream,
                        p);
}
