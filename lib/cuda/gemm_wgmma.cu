// Products of many rows on sm_90a: one warpgroup copies, one or two multiply 64 rows each, over a
// ring of stages of 64 inputs. With tiles of 64 rows, as few rows of each of many experts are, two
// blocks share a multiprocessor: one reads while the other begins or ends a tile. Rows, which may
// lie anywhere, are copied by ordinary asynchronous copies, weights by the copy engine through
// their map. The order of sums is not that of hd_cuda_run_mul, but a row's numbers do not depend on
// the other rows.
#include "cuda/gemm.cuh"
#include "cuda/sm90.cuh"

#include <cuda.h>
#include <string.h>

constexpr int DEPTH = 64;
[[maybe_unused]] constexpr int N_COPY = 128; // threads that copy; other chips have no use for it

template <int ROWS> constexpr int n_thread = 128 + 2 * ROWS;
template <int ROWS> constexpr int n_beside = ROWS == 64 ? 2 : 1; // blocks of a multiprocessor
template <int ROWS, int WIDTH> constexpr int stage_bytes = (ROWS + WIDTH) * DEPTH * 2;
template <int ROWS, int WIDTH> constexpr int n_stage = ROWS == 64 || WIDTH == 256 ? 4 : 6;
template <int ROWS, int WIDTH>
constexpr size_t shared_bytes =
    1024 + n_stage<ROWS, WIDTH> *stage_bytes<ROWS, WIDTH> + 16 * n_stage<ROWS, WIDTH>;

// A place in the ring, and the parity of the round.
struct ring {
    int stage = 0;
    uint32_t phase = 0;
    template <int N> __device__ __forceinline__ void next(void) {
        if (++stage == N) stage = 0, phase ^= 1;
    }
};

// The maps of a launch's weights, which the copy engine reads where the kernel's arguments are.
struct gemm_maps {
    CUtensorMap w[2], up[2];
};

// Addresses in shared memory: barrier i of full and empty is 8*i bytes behind the first.
struct places {
    uint32_t tiles, full, empty;
};

// COLS weights of a stage, 64 a box.
template <int COLS>
static __device__ __forceinline__ void copy_weights(const CUtensorMap &map, const gemm_tile &t,
                                                    int k, uint32_t to, uint32_t bar) {
#pragma unroll
    for (int o = 0; o < COLS; o += HD_CUDA_BOX_ROWS)
        copy_box(to + o * 128, &map, k, t.o0 + o, t.mat, bar);
}

// Weights of inputs k .. k + 63 into the stage at `to`.
template <int ROWS, int WIDTH, bool GATED>
static __device__ __forceinline__ void copy_stage_weights(const gemm_maps &maps, const gemm_tile &t,
                                                          int which, int k, uint32_t to,
                                                          uint32_t full) {
    constexpr int COLS = GATED ? WIDTH / 2 : WIDTH;
    to += ROWS * 128;
    barrier_expect(full, WIDTH * 128);
    copy_weights<COLS>(maps.w[which], t, k, to, full);
    if constexpr (GATED) copy_weights<COLS>(maps.up[which], t, k, to + COLS * 128, full);
}

// A dense product's first stages, which do not depend on what other kernels write: how many.
template <int ROWS, int WIDTH, bool GATED>
static __device__ __forceinline__ int copy_first_weights(const gemm_pair &p, const gemm_maps &maps,
                                                         const places &at) {
    constexpr int N = n_stage<ROWS, WIDTH>, COLS = GATED ? WIDTH / 2 : WIDTH;
    const hd_cuda_mul &m = p.m[0];
    gemm_tile t;
    if (m.tile != nullptr || m.w.is_decoded || m.up.is_decoded) return 0;
    if ((int)blockIdx.x >= row_tiles(p, m) * ((m.w.n_out + COLS - 1) / COLS)) return 0;
    (void)find_gemm_tile(p, (int)blockIdx.x, COLS, &t);
    int n = min(N, (m.w.n_in + DEPTH - 1) / DEPTH);
    for (int i = 0; threadIdx.x == 0 && i < n; i++)
        copy_stage_weights<ROWS, WIDTH, GATED>(maps, t, 0, i * DEPTH,
                                               at.tiles + (uint32_t)(i * stage_bytes<ROWS, WIDTH>),
                                               at.full + 8 * (uint32_t)i);
    return n;
}

template <int ROWS, int WIDTH, bool GATED>
static __device__ __forceinline__ void copy_tiles(const gemm_pair &p, const gemm_maps &maps,
                                                  const places &at) {
    constexpr int N = n_stage<ROWS, WIDTH>, COLS = GATED ? WIDTH / 2 : WIDTH, EACH = N_COPY / 8;
    int tid = (int)threadIdx.x, chunk = tid % 8, row0 = tid / 8;
    uint32_t mine = swizzled(row0, chunk); // rows of a thread are 16 apart: the same swizzle
    ring in;
    gemm_tile t;
    int n_ahead = copy_first_weights<ROWS, WIDTH, GATED>(p, maps, at);
    wait_for_previous();
    for (int i = (int)blockIdx.x; find_gemm_tile(p, i, COLS, &t); i += (int)gridDim.x) {
        const hd_cuda_mul &m = *t.m;
        const uint16_t *x[ROWS / EACH];
#pragma unroll
        for (int u = 0; u < ROWS / EACH; u++)
            x[u] = gemm_input(t, min(row0 + u * EACH, t.n - 1)) + chunk * 8;
        for (int k = 0; k < m.w.n_in; k += DEPTH) {
            uint32_t to = at.tiles + (uint32_t)(in.stage * stage_bytes<ROWS, WIDTH>);
            uint32_t full = at.full + 8 * (uint32_t)in.stage;
            int n_byte = clamp_bytes((m.w.n_in - k - chunk * 8) * 2);
            barrier_wait(at.empty + 8 * (uint32_t)in.stage, in.phase ^ 1);
            if (tid == 0 && --n_ahead < 0)
                copy_stage_weights<ROWS, WIDTH, GATED>(maps, t, &m != &p.m[0], k, to, full);
#pragma unroll
            for (int u = 0; u < ROWS / EACH; u++) // other rows' products are stored nowhere
                if (row0 + u * EACH < t.n)
                    copy16(to + mine + u * EACH * 128, x[u] + (n_byte ? k : 0), n_byte);
            barrier_arrive_copied(full);
            in.next<N>();
        }
    }
    copy_wait<0>();
}

// A tile's outputs, of 64 rows: lane 4g+t of the warp has columns 8j + 2t and 8j + 2t + 1 of rows
// g, g + 8.
template <int WIDTH, bool GATED>
static __device__ __forceinline__ void store_tile(const gemm_tile &t, int row0,
                                                  const float (&d)[WIDTH / 2]) {
    constexpr int COLS = GATED ? WIDTH / 2 : WIDTH;
    int lane = (int)threadIdx.x % 32, t4 = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = row0 + lane / 4 + 8 * half;
        size_t at = gemm_output(t, min(row, t.n - 1));
#pragma unroll
        for (int j = 0; j < COLS / 8; j += 2) {
            float pair[2][2], v[4];
#pragma unroll
            for (int c = 0; c < 4; c++) {
                int ix = 4 * (j + c / 2) + 2 * half + c % 2;
                pair[c / 2][c % 2] = GATED ? swiglu(d[ix], d[ix + (GATED ? WIDTH / 4 : 0)]) : d[ix];
            }
            join_pairs(pair[0], pair[1], v);
            int o = t.o0 + 8 * (j + t4 % 2) + t4 / 2 * 4;
            if (row < t.n) gemm_put4(*t.m, at, o, v);
        }
    }
}

template <int ROWS, int WIDTH, bool GATED>
static __device__ __forceinline__ void multiply_tiles(const gemm_pair &p, const places &at) {
    constexpr int N = n_stage<ROWS, WIDTH>, COLS = GATED ? WIDTH / 2 : WIDTH;
    int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0) - 1; // known to be the same
    int warp = (int)threadIdx.x / 32 % 4;
    bool is_first = threadIdx.x % 32 == 0;
    ring in;
    gemm_tile t;
    wait_for_previous();
    for (int i = (int)blockIdx.x; find_gemm_tile(p, i, COLS, &t); i += (int)gridDim.x) {
        int n_step = (t.m->w.n_in + DEPTH - 1) / DEPTH, before = -1;
        if (group * 64 >= t.n) { // no rows: the other group has the multiprocessor for itself
            for (int step = 0; step < n_step; step++) {
                barrier_wait(at.full + 8 * (uint32_t)in.stage, in.phase);
                if (is_first) barrier_arrive(at.empty + 8 * (uint32_t)in.stage);
                in.next<N>();
            }
            continue;
        }
        float d[WIDTH / 2];
        for (int step = 0; step < n_step; step++) {
            uint32_t x = at.tiles + (uint32_t)(in.stage * stage_bytes<ROWS, WIDTH>);
            barrier_wait(at.full + 8 * (uint32_t)in.stage, in.phase);
            fence_async(); // the rows came by ordinary copies
            uint64_t a = tile_descriptor(x + (uint32_t)group * 64 * 128);
            uint64_t b = tile_descriptor(x + ROWS * 128);
            warpgroup_begin();
#pragma unroll
            for (int k = 0; k < DEPTH / 16; k++)
                warpgroup_product(d, a + 2 * k, b + 2 * k, step > 0 || k > 0);
            warpgroup_commit();
            warpgroup_wait<1>();
            if (before >= 0 && is_first) barrier_arrive(at.empty + 8 * (uint32_t)before);
            before = in.stage;
            in.next<N>();
        }
        warpgroup_wait<0>();
        if (is_first) barrier_arrive(at.empty + 8 * (uint32_t)before);
        store_tile<WIDTH, GATED>(t, group * 64 + warp * 16, d);
    }
}

template <int ROWS, int WIDTH, bool GATED>
static __global__ void __launch_bounds__(n_thread<ROWS>, n_beside<ROWS>)
    gemm_wgmma(const __grid_constant__ gemm_pair p, const __grid_constant__ gemm_maps maps) {
#if __CUDA_ARCH_FEAT_SM90_ALL
    constexpr int N = n_stage<ROWS, WIDTH>;
    HD_DYNAMIC_SHARED(memory);
    places at;
    let_next_start();
    at.tiles = (shared_address(memory) + 1023) & ~1023u;
    at.full = at.tiles + N * stage_bytes<ROWS, WIDTH>, at.empty = at.full + 8 * N;
    if (threadIdx.x == 0) {
        for (int i = 0; i < N; i++) {
            barrier_init(at.full + 8 * i, N_COPY + 1); // and the copy engine's
            barrier_init(at.empty + 8 * i, (n_thread<ROWS> - N_COPY) / 32);
        }
        fence_async();
    }
    __syncthreads();
    if (threadIdx.x < N_COPY)
        copy_tiles<ROWS, WIDTH, GATED>(p, maps, at);
    else
        multiply_tiles<ROWS, WIDTH, GATED>(p, at);
#endif
}

// Rounds of tiles that the blocks make, at least.
static int rounds_of(const gemm_pair &p, int n_col, int n_block) {
    int n = 0;
    for (int i = 0; i < p.n; i++) {
        const hd_cuda_mul &m = p.m[i];
        int n_row = m.tile != nullptr ? m.n_tile_max : (m.n_row + GEMM_ROWS - 1) / GEMM_ROWS;
        n += n_row * (m.tile != nullptr ? 1 : m.w.n_mat) * ((m.w.n_out + n_col - 1) / n_col);
    }
    return (n + n_block - 1) / n_block;
}

template <int ROWS, int WIDTH>
static void launch(const gemm_pair &p, int n_block, cudaStream_t stream) {
    gemm_maps maps = {};
    dim3 grid((unsigned)(n_block * n_beside<ROWS>));
    for (int i = 0; i < p.n; i++) {
        memcpy(&maps.w[i], p.m[i].w.map, sizeof maps.w[i]);
        if (p.m[i].up.data != nullptr) memcpy(&maps.up[i], p.m[i].up.map, sizeof maps.up[i]);
    }
    if (p.m[0].up.data != nullptr)
        HD_LAUNCH_EARLY((gemm_wgmma<ROWS, WIDTH, true>), grid, n_thread<ROWS>,
                        (shared_bytes<ROWS, WIDTH>), stream, p, maps);
    else
        HD_LAUNCH_EARLY((gemm_wgmma<ROWS, WIDTH, false>), grid, n_thread<ROWS>,
                        (shared_bytes<ROWS, WIDTH>), stream, p, maps);
}

void gemm_wgmma_run(const gemm_pair &p, int n_block, cudaStream_t stream) {
    // A narrow tile takes somewhat more than half the time of a wide one (H200: 0.53 to 0.58).
    int per = p.m[0].up.data != nullptr ? 2 : 1;
    int wide = rounds_of(p, 256 / per, n_block), narrow = rounds_of(p, 128 / per, n_block);
    if (p.rows == GEMM_FEW)
        launch<GEMM_FEW, 128>(p, n_block, stream);
    else if (wide * 100 <= narrow * 56)
        launch<GEMM_ROWS, 256>(p, n_block, stream);
    else
        launch<GEMM_ROWS, 128>(p, n_block, stream);
}
