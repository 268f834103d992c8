// y = W x, the two kernels of it for one weight format. A file of mul/ compiles a few formats each,
// so that a build uses several cores.
//
// Few rows: a block of eight warps takes 16 outputs and up to 8 rows; warp s computes slice s of
// the sums with weights straight from memory to registers, each weight read once. Many rows: a
// block of four warps takes 64 outputs and 64 rows through shared memory, double-buffered, a slice
// after the other. The numbers of an output are the same either way: kernels.h.
#pragma once

#include "cuda/decode.cuh"

constexpr int FEW = HD_CUDA_FEW_ROWS, MANY = HD_CUDA_MANY_ROWS, SLICES = HD_CUDA_SLICES;

// Terms of weights, and of inputs against them: three where the weights are exact in their terms,
// two where they are rounded to 16 bits themselves. R: rounded, one of each.
template <int F, bool R> constexpr int w_terms = R ? 1 : codec<F>::terms;
template <int F>
constexpr bool is_exact =
    F == HD_F32 || F == HD_F16 || F == HD_BF16 || F == HD_F8_B128 || F == HD_MXFP4;
template <int F, bool R> constexpr int x_terms = R ? 1 : is_exact<F> ? 3 : 2;

static __device__ __forceinline__ int padded(int n_in) { return (n_in + 31) / 32 * 32; }
static __device__ __forceinline__ int slice_length(int n_in) {
    return padded((n_in + SLICES - 1) / SLICES);
}

// The block's rows: of the device's list, or of the dense rows. False: none.
static __device__ __forceinline__ bool find_tile(const hd_cuda_mul &m, int n_each,
                                                 hd_cuda_tile *t) {
    if (m.tile != nullptr) {
        if ((int)blockIdx.x >= *m.n_tile) return false;
        *t = m.tile[blockIdx.x];
        return true;
    }
    t->mat = (int)blockIdx.z;
    t->first = (int)blockIdx.x * n_each;
    t->n = min(n_each, m.n_row - t->first);
    return t->n > 0;
}

static __device__ __forceinline__ const unsigned char *weight_row(const hd_cuda_mat &w, int mat,
                                                                  int o) {
    o = min(o, w.n_out - 1); // rows past the end: computed like the last, stored nowhere
    return w.data + (size_t)mat * w.mat_bytes + (size_t)o * w.row_bytes;
}

static __device__ __forceinline__ float gated(float gate, float up) {
    return up * (gate / (1.0f + expf(-gate)));
}

// Row i of the tile, or NULL past its end.
static __device__ __forceinline__ const float *input_row(const hd_cuda_mul &m,
                                                         const hd_cuda_tile &t, int i) {
    if (i >= t.n) return nullptr;
    size_t r = (size_t)(m.x_row != nullptr ? m.x_row[t.first + i] : t.first + i);
    return m.x + (m.tile != nullptr ? 0 : (size_t)t.mat * m.x_mat) + r * m.ldx;
}

static __device__ __forceinline__ void put(const hd_cuda_mul &m, const hd_cuda_tile &t, int i,
                                           int o, float v) {
    if (i >= t.n || o >= m.w.n_out) return;
    float *y = m.y + (m.tile != nullptr ? 0 : (size_t)t.mat * m.y_mat);
    y += (size_t)(t.first + i) * m.ldy + (size_t)o;
    if (m.into == HD_CUDA_ADD)
        v += *y;
    else if (m.into == HD_CUDA_SWIGLU)
        v = gated(*y, v);
    *y = v;
}

// Two products in one launch: blocks from y = split on compute the second one.
struct mul_pair {
    hd_cuda_mul m[2];
    int split;
};

// NM matrices: 1, or W and `up`, which share the inputs.
template <int F, bool R, int NM>
__global__ void __launch_bounds__(256) mul_few(const __grid_constant__ mul_pair p) {
    constexpr int NW = w_terms<F, R>, NX = x_terms<F, R>;
    __shared__ float part[NM][SLICES][FEW][17];
    let_next_start();
    wait_for_previous();
    bool is_second = (int)blockIdx.y >= p.split;
    const hd_cuda_mul &m = p.m[is_second];
    hd_cuda_tile tile;
    if (!find_tile(m, FEW, &tile)) return;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int o0 = ((int)blockIdx.y - (is_second ? p.split : 0)) * 16;
    int n_in = m.w.n_in, length = slice_length(n_in);
    const unsigned char *w[NM][2];
    for (int i = 0; i < 2; i++) {
        w[0][i] = weight_row(m.w, tile.mat, o0 + g + 8 * i);
        if constexpr (NM == 2) w[1][i] = weight_row(m.up, tile.mat, o0 + g + 8 * i);
    }
    const float *x = input_row(m, tile, g);
    int k1 = min((warp + 1) * length, padded(n_in));
    float acc[NM][4] = {};
    // Several blocks' loads are on their way before the first is used.
    constexpr int AHEAD = NM * NW <= 2 ? 4 : 2;
    bool is_whole = n_in % 32 == 0 && ((uintptr_t)x & 15) == 0;
    for (int k0 = warp * length; k0 < k1; k0 += 32 * AHEAD) {
        uint32_t a[AHEAD][NM][NW][4], b[AHEAD][NM][NW][4];
        float v[AHEAD][8];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            int k = min(k0 + 32 * u, k1 - 32) + 8 * t;
#pragma unroll
            for (int j = 0; j < NM; j++) {
                weight_terms<F, NW>(w[j][0], k, a[u][j]);
                weight_terms<F, NW>(w[j][1], k, b[u][j]);
            }
        }
        if (is_whole) {
#pragma unroll
            for (int u = 0; u < AHEAD; u++) load8(x, min(k0 + 32 * u, k1 - 32) + 8 * t, v[u]);
        } else {
#pragma unroll
            for (int u = 0; u < AHEAD; u++) load_some(x, k0 + 32 * u + 8 * t, n_in, v[u]);
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            if (k0 + 32 * u >= k1) break;
            uint32_t xt[NX][4];
            split8<NX>(v[u], xt);
#pragma unroll
            for (int j = 0; j < NM; j++) multiply<NW, NX>(acc[j], a[u][j], b[u][j], xt);
        }
    }
#pragma unroll
    for (int j = 0; j < NM; j++)
#pragma unroll
        for (int c = 0; c < 4; c++) part[j][warp][2 * t + c % 2][g + c / 2 * 8] = acc[j][c];
    __syncthreads();
    if (threadIdx.x >= 16 * FEW) return;
    int o = threadIdx.x % 16, i = threadIdx.x / 16;
    float sum[NM] = {};
#pragma unroll
    for (int j = 0; j < NM; j++)
#pragma unroll
        for (int s = 0; s < SLICES; s++)
            if (s * length < n_in) sum[j] += part[j][s][i][o];
    if constexpr (NM == 2) sum[0] = gated(sum[0], sum[1]);
    put(m, tile, i, o0 + o, sum[0]);
}

// What a thread moves a block of 32 inputs: two pieces of eight of the weights and of the rows.
template <int NW, int NX> struct moved { uint32_t w[2][NW][4], x[2][NX][4]; };

template <int F, bool R> __global__ void __launch_bounds__(128) mul_many(const hd_cuda_mul m) {
    constexpr int NW = w_terms<F, R>, NX = x_terms<F, R>;
    __shared__ uint4 sw[2][NW][MANY * 4], sx[2][NX][MANY * 4];
    let_next_start();
    wait_for_previous();
    hd_cuda_tile tile;
    if (!find_tile(m, MANY, &tile)) return;
    int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
    int o0 = (int)blockIdx.y * MANY, o_warp = warp / 2 * 32, i_warp = warp % 2 * 32;
    int n_in = m.w.n_in, length = slice_length(n_in), n_step = padded(n_in) / 32;
    const unsigned char *w[2];
    const float *x[2];
    for (int u = 0; u < 2; u++) {
        w[u] = weight_row(m.w, tile.mat, o0 + tid / 4 + 32 * u);
        x[u] = input_row(m, tile, tid / 4 + 32 * u);
    }
    float acc[2][4][4] = {}, total[2][4][4] = {};
    moved<NW, NX> in;
    auto load = [&](int step) {
        int k = step * 32 + tid % 4 * 8;
#pragma unroll
        for (int u = 0; u < 2; u++) {
            weight_terms<F, NW>(w[u], k, in.w[u]);
            float_terms<NX>(x[u], k, n_in, in.x[u]);
        }
    };
    auto store = [&](int at) {
#pragma unroll
        for (int u = 0; u < 2; u++) {
#pragma unroll
            for (int n = 0; n < NW; n++)
                sw[at][n][tid + 128 * u] =
                    make_uint4(in.w[u][n][0], in.w[u][n][1], in.w[u][n][2], in.w[u][n][3]);
#pragma unroll
            for (int n = 0; n < NX; n++)
                sx[at][n][tid + 128 * u] =
                    make_uint4(in.x[u][n][0], in.x[u][n][1], in.x[u][n][2], in.x[u][n][3]);
        }
    };
    load(0);
    store(0);
    __syncthreads();
    for (int step = 0; step < n_step; step++) {
        int at = step % 2;
        if (step + 1 < n_step) load(step + 1);
        uint32_t xt[4][NX][4];
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int n = 0; n < NX; n++) {
                uint4 r = sx[at][n][(i_warp + 8 * j + g) * 4 + t];
                xt[j][n][0] = r.x, xt[j][n][1] = r.y, xt[j][n][2] = r.z, xt[j][n][3] = r.w;
            }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t a[NW][4], b[NW][4];
#pragma unroll
            for (int n = 0; n < NW; n++) {
                uint4 r = sw[at][n][(o_warp + 16 * i + g) * 4 + t];
                a[n][0] = r.x, a[n][1] = r.y, a[n][2] = r.z, a[n][3] = r.w;
                r = sw[at][n][(o_warp + 16 * i + g + 8) * 4 + t];
                b[n][0] = r.x, b[n][1] = r.y, b[n][2] = r.z, b[n][3] = r.w;
            }
#pragma unroll
            for (int j = 0; j < 4; j++) multiply<NW, NX>(acc[i][j], a, b, xt[j]);
        }
        bool is_slice_end = (step + 1) * 32 % length == 0 || step + 1 == n_step;
        if (is_slice_end) {
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int c = 0; c < 4; c++) {
                        total[i][j][c] += acc[i][j][c];
                        acc[i][j][c] = 0;
                    }
        }
        if (step + 1 < n_step) store(1 - at);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                put(m, tile, i_warp + 8 * j + 2 * t + c % 2, o0 + o_warp + 16 * i + g + c / 2 * 8,
                    total[i][j][c]);
}

// Up to twice the rows of a large tile, small ones are faster: they read weights again, but from
// the cache, and there are enough of them to keep every multiprocessor busy.
static bool is_few(const hd_cuda_mul *m) {
    return m->tile != nullptr ? m->tile_rows <= FEW : m->n_row <= 2 * MANY;
}

static unsigned tiles_of(const hd_cuda_mul *m, int n_each) {
    return (unsigned)(m->tile != nullptr ? m->n_tile_max : (m->n_row + n_each - 1) / n_each);
}

template <int F, bool R> static void launch_few(const hd_cuda_mul *m, int n, cudaStream_t stream) {
    mul_pair p = {{m[0], m[n - 1]}, (m[0].w.n_out + 15) / 16};
    dim3 grid(tiles_of(m, FEW), (unsigned)p.split, (unsigned)(m->tile != nullptr ? 1 : m->w.n_mat));
    if (n == 2) {
        grid.x = grid.x > tiles_of(m + 1, FEW) ? grid.x : tiles_of(m + 1, FEW);
        grid.y += (unsigned)(m[1].w.n_out + 15) / 16;
    }
    if (grid.x == 0) return;
    if (m->up.data != nullptr)
        HD_LAUNCH_EARLY((mul_few<F, R, 2>), grid, 256, 0, stream, p);
    else
        HD_LAUNCH_EARLY((mul_few<F, R, 1>), grid, 256, 0, stream, p);
}

template <int F, bool R> static void launch_many(const hd_cuda_mul *m, cudaStream_t stream) {
    dim3 grid(tiles_of(m, MANY), (unsigned)((m->w.n_out + MANY - 1) / MANY),
              (unsigned)(m->tile != nullptr ? 1 : m->w.n_mat));
    if (grid.x > 0) HD_LAUNCH_EARLY((mul_many<F, R>), grid, 128, 0, stream, *m);
}

// n products of one format and rounding, all with `up` or all without; two: of one matrix each, or
// of tiles.
template <int F, bool R> static void launch_mul(const hd_cuda_mul *m, int n, cudaStream_t stream) {
    if (is_few(&m[0]) && is_few(&m[n - 1])) {
        launch_few<F, R>(m, n, stream);
        return;
    }
    for (int i = 0; i < n; i++) {
        hd_cuda_mul one = m[i];
        one.up.data = nullptr;
        if (is_few(&m[i]))
            launch_few<F, R>(&m[i], 1, stream);
        else
            launch_many<F, R>(&one, stream);
        if (is_few(&m[i]) || m[i].up.data == nullptr) continue;
        one.w = m[i].up, one.into = HD_CUDA_SWIGLU;
        launch_many<F, R>(&one, stream);
    }
}
