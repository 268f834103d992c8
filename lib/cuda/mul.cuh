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

// Against weights that are exact in their terms; quantised ones are rounded to 16 bits themselves.
template <int F>
constexpr int x_terms = F == HD_F32 || F == HD_F16 || F == HD_BF16 || F == HD_MXFP4 ? 3 : 2;

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
    return true;
}

static __device__ __forceinline__ const unsigned char *weight_row(const hd_cuda_mul &m, int mat,
                                                                  int o) {
    o = min(o, m.w.n_out - 1); // rows past the end: computed like the last, stored nowhere
    return m.w.data + (size_t)mat * m.w.mat_bytes + (size_t)o * m.w.row_bytes;
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
        v *= *y / (1.0f + expf(-*y));
    *y = v;
}

template <int F> __global__ void __launch_bounds__(256) mul_few(const hd_cuda_mul m) {
    constexpr int NW = codec<F>::terms, NX = x_terms<F>;
    __shared__ float part[SLICES][FEW][17];
    hd_cuda_tile tile;
    if (!find_tile(m, FEW, &tile)) return;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int o0 = (int)blockIdx.y * 16, n_in = m.w.n_in, length = slice_length(n_in);
    const unsigned char *wa = weight_row(m, tile.mat, o0 + g);
    const unsigned char *wb = weight_row(m, tile.mat, o0 + g + 8);
    const float *x = input_row(m, tile, g);
    int k1 = min((warp + 1) * length, padded(n_in));
    float acc[4] = {0, 0, 0, 0};
#pragma unroll 4
    for (int k = warp * length; k < k1; k += 32) {
        uint32_t a[NW][4], b[NW][4], xt[NX][4];
        weight_terms<F>(wa, k + 8 * t, a);
        weight_terms<F>(wb, k + 8 * t, b);
        float_terms<NX>(x, k + 8 * t, n_in, xt);
        multiply<NW, NX>(acc, a, b, xt);
    }
#pragma unroll
    for (int c = 0; c < 4; c++) part[warp][2 * t + c % 2][g + c / 2 * 8] = acc[c];
    __syncthreads();
    if (threadIdx.x >= 16 * FEW) return;
    int o = threadIdx.x % 16, i = threadIdx.x / 16;
    float sum = 0;
#pragma unroll
    for (int s = 0; s < SLICES; s++)
        if (s * length < n_in) sum += part[s][i][o];
    put(m, tile, i, o0 + o, sum);
}

// What a thread moves a block of 32 inputs: two pieces of eight of the weights and of the rows.
template <int NW, int NX> struct moved { uint32_t w[2][NW][4], x[2][NX][4]; };

template <int F> __global__ void __launch_bounds__(128) mul_many(const hd_cuda_mul m) {
    constexpr int NW = codec<F>::terms, NX = x_terms<F>;
    __shared__ uint4 sw[2][NW][MANY * 4], sx[2][NX][MANY * 4];
    hd_cuda_tile tile;
    if (!find_tile(m, MANY, &tile)) return;
    int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
    int o0 = (int)blockIdx.y * MANY, o_warp = warp / 2 * 32, i_warp = warp % 2 * 32;
    int n_in = m.w.n_in, length = slice_length(n_in), n_step = padded(n_in) / 32;
    const unsigned char *w[2];
    const float *x[2];
    for (int u = 0; u < 2; u++) {
        w[u] = weight_row(m, tile.mat, o0 + tid / 4 + 32 * u);
        x[u] = input_row(m, tile, tid / 4 + 32 * u);
    }
    float acc[2][4][4] = {}, total[2][4][4] = {};
    moved<NW, NX> in;
    auto load = [&](int step) {
        int k = step * 32 + tid % 4 * 8;
#pragma unroll
        for (int u = 0; u < 2; u++) {
            weight_terms<F>(w[u], k, in.w[u]);
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

template <int F> static void launch_mul(const hd_cuda_mul *m, cudaStream_t stream) {
    bool is_few = m->tile != nullptr ? m->tile_rows == FEW : m->n_row <= 2 * FEW;
    int n_each = is_few ? FEW : MANY, n_out_each = is_few ? 16 : MANY;
    int n_tile = m->tile != nullptr ? m->n_tile_max : (m->n_row + n_each - 1) / n_each;
    dim3 grid((unsigned)n_tile, (unsigned)((m->w.n_out + n_out_each - 1) / n_out_each),
              (unsigned)(m->tile != nullptr ? 1 : m->w.n_mat));
    if (n_tile == 0) return;
    if (is_few)
        HD_LAUNCH(mul_few<F>, grid, 256, 0, stream, *m);
    else
        HD_LAUNCH(mul_many<F>, grid, 128, 0, stream, *m);
}

#define HD_CUDA_MUL_OF(F)                                                                          \
    extern "C" void hd_cuda_mul_##F(const hd_cuda_mul *m, cudaStream_t stream) {                   \
        launch_mul<F>(m, stream);                                                                  \
    }
