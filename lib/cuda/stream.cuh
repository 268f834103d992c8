// y = W x for few rows, inputs rounded to BF16: as fast as the weights can be read.
//
// Two blocks of eight warps a multiprocessor, each with an equal share of the items: sixteen
// outputs (eight of W and eight of `up`, when there is that) for a tile of up to eight rows, or of
// sixteen, so that weights are read and decoded half as often. Warp s computes slice s of the sums.
// The tile's inputs are in shared memory for as long as the block has items of it. Weights go
// straight to registers, those of the next item while this one is multiplied: the whole item at
// once, so that memory is read in long runs. The first item's, when they do not depend on what
// other kernels write, before the kernel before has ended. The numbers are those of mul.cuh.
#pragma once

#include "cuda/inputs.cuh"

struct stream_args {
    hd_cuda_mul m[2]; // dense ones first: their weights are known before anything else is
    int rows[2];      // of their largest tiles
    int n;
};

// A block's place in its share of the work.
struct stream_place {
    int n_product;        // that are known so far
    int product, at, end; // items of the product
    int tile_ix, out;
    hd_cuda_tile tile;

    __device__ __forceinline__ bool is_valid(void) const { return product < n_product; }
    static __host__ __device__ __forceinline__ int n_out_tile(const hd_cuda_mul &m) {
        int each = m.up.data != nullptr ? 8 : 16;
        return (m.w.n_out + each - 1) / each;
    }
    __device__ __forceinline__ void find_tile(const hd_cuda_mul &m, int rows) {
        if (m.tile != nullptr) {
            tile = m.tile[tile_ix];
            return;
        }
        int n_each = (m.n_row + rows - 1) / rows;
        tile.mat = tile_ix / n_each;
        tile.first = tile_ix % n_each * rows;
        tile.n = min(rows, m.n_row - tile.first);
    }
    // The first item of the share of product p, or of one after it. Blocks that have one item more
    // of a product than others have less of the next.
    __device__ __forceinline__ void enter(const stream_args &a, int p) {
        for (product = p; product < n_product; product++) {
            const hd_cuda_mul &m = a.m[product];
            int rows = a.rows[product], per = n_out_tile(m);
            int n_tile = m.tile != nullptr ? *m.n_tile : (m.n_row + rows - 1) / rows * m.w.n_mat;
            long long n = (long long)per * n_tile, n_block = gridDim.x;
            long long b = product == 0 ? blockIdx.x : n_block - 1 - blockIdx.x;
            at = (int)(n * b / n_block), end = (int)(n * (b + 1) / n_block);
            if (at == end) continue;
            tile_ix = at / per, out = at % per;
            find_tile(m, rows);
            return;
        }
    }
    // True: another tile of rows.
    __device__ __forceinline__ bool next(const stream_args &a) {
        const hd_cuda_mul &m = a.m[product];
        if (++at == end) {
            enter(a, product + 1);
            return true;
        }
        if (++out < n_out_tile(m)) return false;
        out = 0, tile_ix++;
        find_tile(m, a.rows[product]);
        return true;
    }
};

// Weights on their way, blocks of 32 inputs. Of most formats two of these are half of a slice of
// 256 inputs each.
template <int F> constexpr int stream_ahead = sizeof(moving_weights<F>) <= 16 ? 4 : 2;
template <int F> struct stream_weights {
    static constexpr int N = stream_ahead<F>;
    moving_weights<F> w[N][2];
    __device__ __forceinline__ void load(const unsigned char *const row[2], int k, int k1) {
#pragma unroll
        for (int u = 0; u < N; u++) {
            if (k + 32 * u >= k1) break;
            int at = k + 32 * u + (int)threadIdx.x % 4 * 8;
            w[u][0].load(row[0], at);
            w[u][1].load(row[1], at);
        }
    }
    // x: of a lane's row of each eight.
    template <int NT>
    __device__ __forceinline__ void multiply(const unsigned char *const x[NT], int k, int k1,
                                             float acc[NT][4]) const {
#pragma unroll
        for (int u = 0; u < N; u++) {
            if (k + 32 * u >= k1) break;
            int at = k + 32 * u + (int)threadIdx.x % 4 * 8;
            uint32_t a[1][4], b[1][4];
            w[u][0].terms(at, a);
            w[u][1].terms(at, b);
#pragma unroll
            for (int i = 0; i < NT; i++) {
                uint32_t v[1][4];
                get_inputs(x[i], at, v);
                ::multiply<1, 1>(acc[i], a, b, v);
            }
        }
    }
};

// Rows g and g+8 of the item: outputs, or an output of both matrices.
static __device__ __forceinline__ void item_rows(const hd_cuda_mul &m, const stream_place &p,
                                                 const unsigned char *row[2]) {
    int g = threadIdx.x % 32 / 4;
    bool is_gated = m.up.data != nullptr;
    row[0] = weight_row(m.w, p.tile.mat, p.out * (is_gated ? 8 : 16) + g);
    row[1] = is_gated ? weight_row(m.up, p.tile.mat, p.out * 8 + g)
                      : weight_row(m.w, p.tile.mat, p.out * 16 + g + 8);
}

// Adds the slices in order.
template <int ROWS>
static __device__ __forceinline__ void put_item(const hd_cuda_mul &m, const stream_place &p,
                                                const float (*part)[16][ROWS]) {
    bool is_gated = m.up.data != nullptr;
    int n_out = is_gated ? 8 : 16, length = slice_length(m.w.n_in);
    int o = (int)threadIdx.x % n_out, r = (int)threadIdx.x / n_out;
    if (r >= p.tile.n) return;
    float sum = 0, up = 0;
#pragma unroll
    for (int s = 0; s < SLICES; s++) {
        if (s * length >= m.w.n_in) break;
        sum += part[s][o][r];
        if (is_gated) up += part[s][o + 8][r];
    }
    put(m, p.tile, r, p.out * n_out + o, is_gated ? gated(sum, up) : sum);
}

// NT: eights of rows.
template <int F, int NT>
__global__ void __launch_bounds__(256, 2) mul_stream(const __grid_constant__ stream_args a) {
    constexpr int HALF = 32 * stream_ahead<F>;
    HD_DYNAMIC_SHARED(inputs);
    __shared__ float part[SLICES][16][FEW * NT];
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    let_next_start();

    stream_place here, next;
    stream_weights<F> low, high;
    const unsigned char *row[2];
    auto begin = [&](const stream_place &p) { // its first two halves
        const hd_cuda_mul &m = a.m[p.product];
        int length = slice_length(m.w.n_in), k0 = warp * length;
        int k1 = min(k0 + length, padded(m.w.n_in));
        item_rows(m, p, row);
        low.load(row, k0, k1);
        high.load(row, k0 + HALF, k1);
    };
    here.n_product = a.m[0].tile != nullptr ? 0 : a.n == 2 && a.m[1].tile == nullptr ? 2 : 1;
    here.enter(a, 0);
    bool has_begun = here.is_valid();
    if (has_begun) begin(here);
    wait_for_previous();
    if (!has_begun) {
        int n_known = here.n_product;
        here.n_product = a.n;
        here.enter(a, n_known);
        if (here.is_valid()) begin(here);
    }
    here.n_product = a.n;

    for (bool is_new = true; here.is_valid(); here = next) {
        const hd_cuda_mul &m = a.m[here.product];
        int length = slice_length(m.w.n_in), k0 = warp * length;
        int k1 = min(k0 + length, padded(m.w.n_in));
        if (is_new) {
            load_inputs(m, here.tile, inputs);
            __syncthreads();
        }
        const unsigned char *x[NT];
#pragma unroll
        for (int i = 0; i < NT; i++)
            x[i] =
                inputs + (size_t)min(8 * i + g, here.tile.n - 1) * hd_cuda_input_stride(m.w.n_in);
        float acc[NT][4] = {};
        for (; k0 + 2 * HALF < k1; k0 += 2 * HALF) {
            low.template multiply<NT>(x, k0, k1, acc);
            low.load(row, k0 + 2 * HALF, k1);
            high.template multiply<NT>(x, k0 + HALF, k1, acc);
            high.load(row, k0 + 3 * HALF, k1);
        }
        next = here;
        is_new = next.next(a);
        bool has_next = next.is_valid();
        int next_k0 = 0, next_k1 = 0;
        if (has_next) {
            const hd_cuda_mul &to = a.m[next.product];
            int next_length = slice_length(to.w.n_in);
            next_k0 = warp * next_length;
            next_k1 = min(next_k0 + next_length, padded(to.w.n_in));
            item_rows(to, next, row);
        }
        low.template multiply<NT>(x, k0, k1, acc);
        if (has_next) low.load(row, next_k0, next_k1);
        high.template multiply<NT>(x, k0 + HALF, k1, acc);
        if (has_next) high.load(row, next_k0 + HALF, next_k1);
        __syncthreads(); // the sums before have been used, and nobody reads the inputs any more
#pragma unroll
        for (int i = 0; i < NT; i++) {
            *(float2 *)&part[warp][g][8 * i + 2 * t] = make_float2(acc[i][0], acc[i][1]);
            *(float2 *)&part[warp][g + 8][8 * i + 2 * t] = make_float2(acc[i][2], acc[i][3]);
        }
        __syncthreads();
        put_item<FEW * NT>(m, here, part);
    }
}

// n products of one format; hd_cuda_can_stream() them.
template <int F> static void launch_stream(const hd_cuda_mul *m, int n, cudaStream_t stream) {
    stream_args a = {};
    size_t shared = 0;
    bool is_few = true;
    long long n_item = 0, n_slot = 2 * hd_cuda_current().n_sm;
    a.n = n;
    for (int i = 0; i < n; i++) {
        const hd_cuda_mul *from = &m[m[0].tile != nullptr ? n - 1 - i : i];
        a.m[i] = *from;
        a.rows[i] = hd_cuda_stream_rows(from);
        int n_row = from->tile != nullptr ? from->tile_rows : from->n_row;
        long long n_tile = (long long)((n_row + a.rows[i] - 1) / a.rows[i]) * from->w.n_mat;
        if (from->tile != nullptr) n_tile = from->n_tile_max;
        n_item += n_tile * stream_place::n_out_tile(*from);
        n_row = n_row < a.rows[i] ? n_row : a.rows[i];
        is_few &= n_row <= FEW;
        size_t own = (size_t)n_row * hd_cuda_input_stride(from->w.n_in);
        shared = own > shared ? own : shared;
    }
    unsigned n_block = (unsigned)(n_item < n_slot ? n_item : n_slot);
    if (n_block == 0) return;
    auto kernel = is_few ? mul_stream<F, 1> : mul_stream<F, 2>;
    HD_LAUNCH_EARLY(kernel, dim3(n_block), 256, shared, stream, a);
}

template <int F> static void launch_any(const hd_cuda_mul *m, int n, cudaStream_t stream) {
    if (hd_cuda_can_stream(m, n))
        launch_stream<F>(m, n, stream);
    else if (m->is_rounded)
        launch_mul<F, true>(m, n, stream);
    else
        launch_mul<F, false>(m, n, stream);
}

#define HD_CUDA_MUL_OF(F)                                                                          \
    extern "C" void hd_cuda_mul_##F(const hd_cuda_mul *m, int n, cudaStream_t stream) {            \
        launch_any<F>(m, n, stream);                                                               \
    }
