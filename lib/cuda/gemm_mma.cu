// Products of many rows on the tensor cores of every device, in the order of sums of
// hd_cuda_run_mul: eight warps over a ring of stages of 32 inputs, two at a time, that runs through
// the tiles of a block without a stop. Four warps have 32 outputs each, or two matrices' 16, of the
// first half of a tile's rows, four of the second; only eights of rows that there are cost
// anything.
//
// A row of 32 inputs is 64 bytes, the four chunks of a fragment's lanes (terms.cuh): 16 bytes a
// lane are the operands of two products, and eight lanes read 128 bytes in a row.
#include "cuda/gemm.cuh"

constexpr int MMA_DEPTH = 32, MMA_WIDTH = 128, MMA_THREAD = 256, MMA_STAGE = 4;
constexpr int MMA_STEP_BYTES = (GEMM_ROWS + MMA_WIDTH) * MMA_DEPTH * 2;
constexpr size_t MMA_SHARED = (size_t)MMA_STAGE * 2 * MMA_STEP_BYTES;

static __device__ __forceinline__ int mma_steps(const gemm_tile &t) {
    return (t.m->w.n_in + MMA_DEPTH - 1) / MMA_DEPTH;
}

// What a thread copies: a chunk of two of a tile's rows and of two rows of weights, pair of stages
// by pair, tile by tile.
template <bool GATED> struct mma_copies {
    static constexpr int COLS = GATED ? MMA_WIDTH / 2 : MMA_WIDTH;
    uint32_t to; // in the ring
    int tile_ix, pair, n_pair, n_in, slot;
    bool is_there, has_row[2], has_out[2];
    const uint16_t *x[2];
    const unsigned char *w[2];

    __device__ __forceinline__ void enter(const gemm_pair &p, int ix) {
        gemm_tile t;
        int chunk = (int)threadIdx.x % 4, row0 = (int)threadIdx.x / 4;
        tile_ix = ix, pair = 0;
        is_there = find_gemm_tile(p, ix, COLS, &t);
        if (!is_there) return;
        const hd_cuda_mul &m = *t.m;
        n_in = m.w.n_in, n_pair = (mma_steps(t) + 1) / 2;
#pragma unroll
        for (int u = 0; u < 2; u++) {
            int row = row0 + 64 * u, o = t.o0 + (GATED ? row0 : row);
            const hd_cuda_mat &mat = GATED && u == 1 ? m.up : m.w;
            has_row[u] = row < t.n, has_out[u] = o < m.w.n_out;
            x[u] = gemm_input(t, min(row, t.n - 1)) + chunk * 8;
            w[u] = mat.data + (size_t)t.mat * mat.mat_bytes +
                   (has_out[u] ? (size_t)o * mat.row_bytes : 0) + chunk * 16;
        }
    }
    // The next pair of stages, if there is one; always a group of copies. What is not copied for
    // rows that are not there is the input of products that are stored nowhere.
    __device__ __forceinline__ void next(const gemm_pair &p) {
        if (is_there) {
            int chunk = (int)threadIdx.x % 4;
#pragma unroll
            for (int sub = 0; sub < 2; sub++) {
                int k = (2 * pair + sub) * MMA_DEPTH;
                if (k >= n_in) break;
                uint32_t at = to + (uint32_t)((slot * 2 + sub) * MMA_STEP_BYTES);
                int n_byte = clamp_bytes((n_in - k - chunk * 8) * 2);
                if (n_byte == 0) k = 0;
#pragma unroll
                for (int u = 0; u < 2; u++) {
                    if (has_row[u]) copy16(at + (uint32_t)(u * 4096), x[u] + k, n_byte);
                    if (has_out[u]) copy16(at + (uint32_t)(u * 4096 + 8192), w[u] + 2 * k, n_byte);
                }
            }
            if (++pair == n_pair) enter(p, tile_ix + (int)gridDim.x);
        }
        copy_commit();
        slot = (slot + 1) % MMA_STAGE;
    }
};

// A tile's products, of rows r0 + 8j, j < n_eight, and their sums in order.
template <bool GATED>
static __device__ __forceinline__ void multiply_step(const unsigned char *stage, int r0,
                                                     int n_eight, float (&acc)[4][4][4]) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = lane / 4, t4 = lane % 4;
    int o_warp = warp % 4 * 32;
    const uint4 *rows = (const uint4 *)stage + r0 * 4, *outs = (const uint4 *)stage + 512;
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
        if (j >= n_eight) break;
        if (j < 2) in[j] = rows[(8 * j + g) * 4 + t4];
        if (j + 2 < 8) in[j + 2] = rows[(8 * (j + 2) + g) * 4 + t4];
        uint32_t xf[2] = {in[j].x, in[j].y}, xs[2] = {in[j].z, in[j].w};
#pragma unroll
        for (int c = 0; c < 2; c++) tensor_product(acc[c * 2 + j / 4][j % 4], first[c], xf);
#pragma unroll
        for (int c = 0; c < 2; c++) tensor_product(acc[c * 2 + j / 4][j % 4], second[c], xs);
    }
}

// Of a product, lane 4g+t has outputs g and g + 8 of rows 2t and 2t + 1: exchanged with the lanes
// whose g differs in a bit, four outputs of one row.
template <bool GATED>
static __device__ __forceinline__ void store_sums(const gemm_tile &t, int r0, int n_eight,
                                                  const float (&total)[4][4][4]) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = lane / 4, t4 = lane % 4;
    int o_warp = warp % 4 * 32;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        if (j >= n_eight) break;
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
            if (row < t.n) gemm_put4(*t.m, at, o, v);
        }
    }
}

template <bool GATED>
static __global__ void __launch_bounds__(MMA_THREAD, 1)
    gemm_mma(const __grid_constant__ gemm_pair p) {
    HD_DYNAMIC_SHARED(memory);
    constexpr int COLS = mma_copies<GATED>::COLS;
    mma_copies<GATED> copies;
    gemm_tile t;
    int slot = 0;
    let_next_start();
    wait_for_previous();
    copies.to = shared_address(memory) + threadIdx.x * 16, copies.slot = 0;
    copies.enter(p, (int)blockIdx.x);
    for (int i = 0; i < MMA_STAGE - 1; i++) copies.next(p);
    for (int i = (int)blockIdx.x; find_gemm_tile(p, i, COLS, &t); i += (int)gridDim.x) {
        int n_step = mma_steps(t), n_in = t.m->w.n_in;
        int slice = (n_in + HD_CUDA_SLICES - 1) / HD_CUDA_SLICES;
        slice = (slice + MMA_DEPTH - 1) / MMA_DEPTH; // steps
        int half = (t.n + 15) / 16 * 8, r0 = (int)threadIdx.x / 128 * half;
        int n_eight = min(half, t.n - r0 + 7) / 8; // of a warp
        float acc[4][4][4] = {}, total[4][4][4] = {};
        int n_slice_left = slice;
        for (int step = 0; step < n_step;) {
            copy_wait<MMA_STAGE - 2>();
            __syncthreads();
            copies.next(p);
            for (int sub = 0; sub < 2 && step < n_step; sub++, step++) {
                multiply_step<GATED>(memory + (slot * 2 + sub) * MMA_STEP_BYTES, r0, n_eight, acc);
                if (--n_slice_left > 0 && step + 1 < n_step) continue;
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
            slot = (slot + 1) % MMA_STAGE;
        }
        store_sums<GATED>(t, r0, n_eight, total);
    }
}

void gemm_mma_run(const gemm_pair &p, int n_block, cudaStream_t stream) {
    if (p.m[0].up.data != nullptr)
        HD_LAUNCH_EARLY(gemm_mma<true>, dim3((unsigned)n_block), MMA_THREAD, MMA_SHARED, stream, p);
    else
        HD_LAUNCH_EARLY(gemm_mma<false>, dim3((unsigned)n_block), MMA_THREAD, MMA_SHARED, stream,
                        p);
}
