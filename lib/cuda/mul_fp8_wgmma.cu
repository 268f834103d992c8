// y = W x for FP8 weights and some tens of rows on sm_90a: the codes go from the copy engine to the
// FP8 units as they are.
//
// Inputs are coded before: 128 of a row as two terms of E4M3, the second what rounding to the first
// leaves, and a power of two that both are multiplied by. An item is 128 outputs (64 of W and 64 of
// `up`, when there is that) for a tile of rows; a stage of its ring has 128 inputs: codes and
// scales of the weights, both terms of the rows and their scales. One warp starts the copies, four
// multiply: the outputs are the rows of their products, the tile's rows and its second terms the
// columns. The sum of 128 inputs is multiplied by its scales and added up in float32, since the
// units keep fewer bits. Blocks are persistent. A row's numbers do not depend on the other rows.
#include "cuda/codes.h"
#include "cuda/mul.cuh"
#include "cuda/sm90.cuh"

#include <string.h>

constexpr int OUTS = 64, DEPTH = 128, N_STAGE = 4, N_THREAD = 160, MOST = HD_CUDA_CODE_TILE;
constexpr int WEIGHT_BYTES = 2 * OUTS * DEPTH, INPUT_BYTES = 2 * MOST * DEPTH;
constexpr int W_SCALES = WEIGHT_BYTES + INPUT_BYTES, X_SCALES = W_SCALES + 2 * OUTS * 4;
constexpr int STAGE_BYTES = (X_SCALES + MOST * 4 + 1023) / 1024 * 1024;
constexpr size_t SHARED_BYTES = 1024 + N_STAGE * STAGE_BYTES + 16 * N_STAGE;
constexpr int EACH_BLOCK = HD_CUDA_FP8_BLOCK / DEPTH; // stages of a block of a weight's row

// Inputs of a product: row r of a tile's list, of dense matrices m row m * n_row + r. Of 128 inputs
// of a row 256 bytes, first terms, then second ones; scales are [n_in / 128, n_row].
struct coded_inputs {
    unsigned char *term;
    float *scale;
    int n_row; // of all matrices
};

struct code_args {
    hd_cuda_mul m[2];
    coded_inputs x[2];
    int rows[2]; // of their tiles
    int n;
};

// The maps of a launch, which the copy engine reads where the kernel's arguments are. x: boxes of
// eight rows.
struct code_maps {
    CUtensorMap w[2], up[2], x[2];
};

// ---- inputs ----

// Four values as two E4M3 terms each.
static __device__ __forceinline__ uint32_t e4m3_codes4(const float v[4]) {
    uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(v[0], v[1]), __NV_SATFINITE, __NV_E4M3);
    uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(v[2], v[3]), __NV_SATFINITE, __NV_E4M3);
    return low | high << 16;
}
static __device__ __forceinline__ void e4m3_terms(const float v[4], uint32_t *first,
                                                  uint32_t *second) {
    float rest[4];
    *first = e4m3_codes4(v);
    e4m3_values4(*first, rest);
#pragma unroll
    for (int i = 0; i < 4; i++) rest[i] = v[i] - rest[i];
    *second = e4m3_codes4(rest);
}

struct code_rows_args {
    hd_cuda_mul m[2];
    coded_inputs to[2];
    int n_x; // rows that m[i].x_row chooses from
};

// A warp has 128 inputs of a row, a lane four of them. blockIdx.y: the product.
static __global__ void __launch_bounds__(256) code_rows(const __grid_constant__ code_rows_args a) {
    let_next_start();
    wait_for_previous();
    const hd_cuda_mul &m = a.m[blockIdx.y];
    const coded_inputs &out = a.to[blockIdx.y];
    int lane = (int)threadIdx.x % 32, n_group = m.w.n_in / DEPTH;
    int at = (int)blockIdx.x * 8 + (int)threadIdx.x / 32, row = at / n_group, group = at % n_group;
    if (row >= out.n_row) return;
    int mat = m.tile != nullptr ? 0 : row / m.n_row, from = row - mat * m.n_row;
    if (m.x_row != nullptr) from = max(0, min(m.x_row[from], a.n_x - 1)); // some lists are shorter
    const float *x = m.x + (size_t)mat * m.x_mat + (size_t)from * m.ldx + group * DEPTH + 4 * lane;
    float v[4], top = 0;
    if (((uintptr_t)x & 15) == 0) {
        float4 r = *(const float4 *)x;
        v[0] = r.x, v[1] = r.y, v[2] = r.z, v[3] = r.w;
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = x[i];
    }
#pragma unroll
    for (int i = 0; i < 4; i++) top = fmaxf(top, fabsf(v[i]));
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) top = fmaxf(top, shuffle_xor(top, mask));
    // The power of two that brings top to between 128 and 256; one that has an inverse.
    int exponent = max(1, min(253, 254 + 7 - (int)(__float_as_uint(top) >> 23)));
    float factor = __uint_as_float((uint32_t)exponent << 23);
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] *= factor;
    uint32_t first, second;
    e4m3_terms(v, &first, &second);
    // Where these four stand in 64 codes: hd_cuda_mat.
    int word = lane / 16 * 16 + lane % 8 / 2 * 4 + lane % 16 / 8 * 2 + lane % 2;
    uint32_t *to = (uint32_t *)(out.term + (size_t)at * 2 * DEPTH) + word;
    to[0] = __byte_perm(first, 0, 0x3120);
    to[DEPTH / 4] = __byte_perm(second, 0, 0x3120);
    float unit = __uint_as_float((uint32_t)(254 - exponent) << 23);
    if (lane == 0) out.scale[group * out.n_row + row] = top == INFINITY ? NAN : unit;
}

// ---- items ----

struct code_item {
    int product, o0;
    hd_cuda_tile tile;
};

static __device__ __forceinline__ int outs_of(const hd_cuda_mul &m) {
    return m.up.data != nullptr ? OUTS : 2 * OUTS;
}

// Number `at` of the first n products; false: there are not so many. Outputs are the fastest.
static __device__ __forceinline__ bool find_item(const code_args &a, int n, int at,
                                                 code_item *item) {
    for (int p = 0; p < n; p++) {
        const hd_cuda_mul &m = a.m[p];
        int n_col = (m.w.n_out + outs_of(m) - 1) / outs_of(m);
        int each = (m.n_row + a.rows[p] - 1) / a.rows[p];
        int n_tile = m.tile != nullptr ? *m.n_tile : each * m.w.n_mat;
        if (at >= n_tile * n_col) {
            at -= n_tile * n_col;
            continue;
        }
        int tile = at / n_col;
        item->product = p;
        item->o0 = at % n_col * outs_of(m);
        if (m.tile != nullptr) {
            item->tile = m.tile[tile];
        } else {
            item->tile.mat = tile / each;
            item->tile.first = tile % each * a.rows[p];
            item->tile.n = min(a.rows[p], m.n_row - item->tile.first);
        }
        return true;
    }
    return false;
}

// Rows of a tile's products: those that there are by eights, sixteens or all.
static __device__ __forceinline__ int width_of(int n) { return n <= 8 ? 8 : n <= 16 ? 16 : MOST; }

// A place in the ring, and the parity of the round.
struct ring {
    int stage = 0;
    uint32_t phase = 0;
    __device__ __forceinline__ void next(void) {
        if (++stage == N_STAGE) stage = 0, phase ^= 1;
    }
};

// Addresses in shared memory: barrier i of full and empty is 8*i bytes behind the first.
struct places {
    uint32_t stage, full, empty;
};

// ---- copies ----

// Bytes of a stage that the copy engine brings.
static __device__ __forceinline__ int engine_bytes(const code_item &item) {
    return WEIGHT_BYTES + 2 * width_of(item.tile.n) * DEPTH;
}

// The weights' codes of stage `step` of an item, to the stage at `to`; the stage is begun.
static __device__ __forceinline__ void copy_weights(const code_args &a, const code_maps &maps,
                                                    const code_item &item, int step, uint32_t to,
                                                    uint32_t full) {
    constexpr int SCALES = HD_CUDA_FP8_BYTES - HD_CUDA_FP8_BLOCK;
    const hd_cuda_mul &m = a.m[item.product];
    bool is_gated = m.up.data != nullptr;
    int x = step / EACH_BLOCK * HD_CUDA_FP8_BYTES + SCALES + step % EACH_BLOCK * DEPTH;
    barrier_expect(full, engine_bytes(item));
    copy_box(to, &maps.w[item.product], x, item.o0, item.tile.mat, full);
    copy_box(to + OUTS * DEPTH, is_gated ? &maps.up[item.product] : &maps.w[item.product], x,
             is_gated ? item.o0 : item.o0 + OUTS, item.tile.mat, full);
}

// The rows' terms; row: the first in the coded inputs.
static __device__ __forceinline__ void copy_terms(const code_maps &maps, const code_item &item,
                                                  int row, int step, uint32_t to, uint32_t full) {
    int width = width_of(item.tile.n);
    to += WEIGHT_BYTES;
    for (int i = 0; i < width; i += 8) {
        copy_box(to + i * DEPTH, &maps.x[item.product], step * 2 * DEPTH, row + i, 0, full);
        copy_box(to + (width + i) * DEPTH, &maps.x[item.product], step * 2 * DEPTH + DEPTH, row + i,
                 0, full);
    }
}

// The scales of all outputs that an item has, a lane four of them.
struct scale_rows {
    const unsigned char *row[4];
    __device__ __forceinline__ void find(const hd_cuda_mul &m, const code_item &item) {
        bool is_gated = m.up.data != nullptr;
        int o = item.o0 + (int)threadIdx.x % 32;
        row[0] = weight_row(m.w, item.tile.mat, o);
        row[1] = weight_row(m.w, item.tile.mat, o + 32);
        row[2] = is_gated ? weight_row(m.up, item.tile.mat, o)
                          : weight_row(m.w, item.tile.mat, o + OUTS);
        row[3] = is_gated ? weight_row(m.up, item.tile.mat, o + 32)
                          : weight_row(m.w, item.tile.mat, o + OUTS + 32);
    }
    __device__ __forceinline__ void copy(int step, uint32_t to) const {
        int at = step / EACH_BLOCK * HD_CUDA_FP8_BYTES + step % EACH_BLOCK * 4;
#pragma unroll
        for (int i = 0; i < 4; i++)
            copy4(to + (uint32_t)(W_SCALES + i * 128 + (int)threadIdx.x % 32 * 4), row[i] + at);
    }
};

// What a dense product's first stages take that does not depend on other kernels: how many.
static __device__ __forceinline__ int copy_first(const code_args &a, const code_maps &maps,
                                                 const places &at) {
    code_item item;
    const hd_cuda_mul &m = a.m[0];
    if (m.tile != nullptr) return 0;
    if (!find_item(a, 1, (int)blockIdx.x, &item)) return 0;
    int n = min(N_STAGE, m.w.n_in / DEPTH);
    for (int i = 0; threadIdx.x % 32 == 0 && i < n; i++)
        copy_weights(a, maps, item, i, at.stage + (uint32_t)(i * STAGE_BYTES),
                     at.full + 8 * (uint32_t)i);
    return n;
}

// The copying warp. (Maybe unused: other chips have no use for it, nor for what is so marked
// below.)
[[maybe_unused]] static __device__ __forceinline__ void
copy_items(const code_args &a, const code_maps &maps, const places &at) {
    int lane = (int)threadIdx.x % 32;
    ring in;
    code_item item;
    int n_ahead = copy_first(a, maps, at);
    wait_for_previous();
    for (int i = (int)blockIdx.x; find_item(a, a.n, i, &item); i += (int)gridDim.x) {
        const hd_cuda_mul &m = a.m[item.product];
        const coded_inputs &x = a.x[item.product];
        int n_step = m.w.n_in / DEPTH, row = item.tile.first;
        if (m.tile == nullptr) row += item.tile.mat * m.n_row;
        const float *scale = x.scale + row + min(lane, item.tile.n - 1);
        scale_rows w;
        w.find(m, item);
        for (int step = 0; step < n_step; step++, n_ahead--, in.next()) {
            uint32_t to = at.stage + (uint32_t)(in.stage * STAGE_BYTES);
            uint32_t full = at.full + 8 * (uint32_t)in.stage;
            barrier_wait(at.empty + 8 * (uint32_t)in.stage, in.phase ^ 1);
            if (lane == 0) {
                if (n_ahead <= 0) copy_weights(a, maps, item, step, to, full);
                copy_terms(maps, item, row, step, to, full);
            }
            __syncwarp();
            w.copy(step, to);
            copy4(to + (uint32_t)(X_SCALES + lane * 4), scale + step * x.n_row);
            barrier_arrive_copied(full);
        }
    }
    copy_wait<0>();
}

// ---- products ----

#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define CODE_PRODUCT(N, NAMES, A, B, P)                                                            \
    "{.reg .pred p;\n setp.ne.b32 p, " P ", 0;\n"                                                  \
    "wgmma.mma_async.sync.aligned.m64n" N "k32.f32.e4m3.e4m3 {" NAMES "}, " A ", " B ", p, 1, 1;}"

// d = (keeps ? d : 0) + A B^T of E4M3: A [64, 32], B [n, 32]. Of d, lane 4g+t of warp w has rows
// 16w + g (4j, 4j+1) and 16w + g + 8 (4j+2, 4j+3), columns 8j + 2t and 8j + 2t + 1.
[[maybe_unused]] static __device__ __forceinline__ void code_product(float (&d)[8], uint64_t a,
                                                                     uint64_t b, int keeps) {
    asm volatile(CODE_PRODUCT("16", "%0, %1, %2, %3, %4, %5, %6, %7", "%8", "%9", "%10")
                 : D4(0), D4(4)
                 : "l"(a), "l"(b), "r"(keeps));
}
[[maybe_unused]] static __device__ __forceinline__ void code_product(float (&d)[16], uint64_t a,
                                                                     uint64_t b, int keeps) {
    asm volatile(CODE_PRODUCT("32",
                              "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, "
                              "%15",
                              "%16", "%17", "%18")
                 : D4(0), D4(4), D4(8), D4(12)
                 : "l"(a), "l"(b), "r"(keeps));
}
[[maybe_unused]] static __device__ __forceinline__ void code_product(float (&d)[32], uint64_t a,
                                                                     uint64_t b, int keeps) {
    asm volatile(CODE_PRODUCT("64",
                              "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, "
                              "%15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, "
                              "%28, %29, %30, %31",
                              "%32", "%33", "%34")
                 : D4(0), D4(4), D4(8), D4(12), D4(16), D4(20), D4(24), D4(28)
                 : "l"(a), "l"(b), "r"(keeps));
}
#undef CODE_PRODUCT
#undef D4

// What a product wrote is read behind the wait, not before.
template <int N> static __device__ __forceinline__ void read_from_here(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

[[maybe_unused]] static __device__ __forceinline__ void
put_code(const hd_cuda_mul &m, const hd_cuda_tile &t, int i, int o, float v) {
    if (i >= t.n || o >= m.w.n_out) return;
    float *y = m.y + (m.tile != nullptr ? 0 : (size_t)t.mat * m.y_mat);
    y += (size_t)(t.first + i) * m.ldy + (size_t)o;
    if (m.into == HD_CUDA_ADD)
        atomicAdd(y, v); // one addition an output: nobody waits for what was there
    else
        *y = v;
}

// ROWS: rows of the products, each of two columns.
template <int ROWS>
static __device__ __forceinline__ void multiply_item(const code_args &a, const code_item &item,
                                                     const places &at, unsigned char *stages,
                                                     ring *in) {
    const hd_cuda_mul &m = a.m[item.product];
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = lane / 4, t = lane % 4;
    int n_step = m.w.n_in / DEPTH;
    float total[2][ROWS / 2] = {};
    for (int step = 0; step < n_step; step++) {
        uint32_t stage = at.stage + (uint32_t)(in->stage * STAGE_BYTES);
        const unsigned char *from = stages + in->stage * STAGE_BYTES;
        float d[2][ROWS], w[2][2];
        float2 x[ROWS / 8];
        barrier_wait(at.full + 8 * (uint32_t)in->stage, in->phase);
        uint64_t ww = tile_descriptor(stage), xx = tile_descriptor(stage + WEIGHT_BYTES);
        warpgroup_begin();
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int k = 0; k < DEPTH / 32; k++)
                code_product(d[i], ww + (uint64_t)(i * (OUTS * DEPTH / 16) + 2 * k),
                             xx + (uint64_t)(2 * k), k > 0);
            warpgroup_commit();
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int c = 0; c < 2; c++)
                w[i][c] =
                    *(const float *)(from + W_SCALES + (i * OUTS + warp * 16 + g + 8 * c) * 4);
#pragma unroll
        for (int j = 0; j < ROWS / 8; j++)
            x[j] = *(const float2 *)(from + X_SCALES + (8 * j + 2 * t) * 4);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (i == 0)
                warpgroup_wait<1>();
            else
                warpgroup_wait<0>();
            read_from_here(d[i]);
#pragma unroll
            for (int j = 0; j < ROWS / 8; j++)
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    float sum = d[i][4 * j + c] + d[i][4 * j + c + ROWS / 2];
                    total[i][4 * j + c] = __fmaf_rn(sum, w[i][c / 2] * (c % 2 ? x[j].y : x[j].x),
                                                    total[i][4 * j + c]);
                }
        }
        __syncwarp(); // every lane has read the scales
        if (lane == 0) barrier_arrive(at.empty + 8 * (uint32_t)in->stage);
        in->next();
    }
    bool is_gated = m.up.data != nullptr;
#pragma unroll
    for (int j = 0; j < ROWS / 8; j++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            int row = 8 * j + 2 * t + c % 2, o = item.o0 + warp * 16 + g + c / 2 * 8;
            float first = total[0][4 * j + c], second = total[1][4 * j + c];
            put_code(m, item.tile, row, o, is_gated ? gated(first, second) : first);
            if (!is_gated) put_code(m, item.tile, row, o + OUTS, second);
        }
}

static __global__ void __launch_bounds__(N_THREAD, 2)
    mul_codes(const __grid_constant__ code_args a, const __grid_constant__ code_maps maps) {
#if __CUDA_ARCH_FEAT_SM90_ALL
    HD_DYNAMIC_SHARED(memory);
    places at;
    let_next_start();
    uint32_t base = shared_address(memory);
    at.stage = (base + 1023) & ~1023u;
    at.full = at.stage + N_STAGE * STAGE_BYTES, at.empty = at.full + 8 * N_STAGE;
    if (threadIdx.x == 0) {
        for (int i = 0; i < N_STAGE; i++) {
            barrier_init(at.full + 8 * i, 32 + 1); // and the copy engine's
            barrier_init(at.empty + 8 * i, 4);
        }
        fence_async();
    }
    __syncthreads();
    if (threadIdx.x >= 128) {
        copy_items(a, maps, at);
        return;
    }
    wait_for_previous();
    ring in;
    code_item item;
    for (int i = (int)blockIdx.x; find_item(a, a.n, i, &item); i += (int)gridDim.x) {
        unsigned char *stages = memory + (at.stage - base);
        int width = width_of(item.tile.n);
        if (width == 8)
            multiply_item<8>(a, item, at, stages, &in);
        else if (width == 16)
            multiply_item<16>(a, item, at, stages, &in);
        else
            multiply_item<MOST>(a, item, at, stages, &in);
    }
#endif
}

// ---- launches ----

// Rows of inputs, of all matrices.
static int coded_rows(const hd_cuda_mul *m) {
    return m->tile == nullptr ? m->n_row * m->w.n_mat : m->n_row;
}

// Bytes that they take as codes: the terms, then the scales.
static size_t coded_bytes(const hd_cuda_mul *m, int n_row) {
    size_t n_group = (size_t)n_row * (size_t)(m->w.n_in / DEPTH);
    return n_group * (2 * DEPTH) + (n_group * sizeof(float) + 255) / 256 * 256;
}

extern "C" bool hd_cuda_can_mul_codes(const hd_cuda_mul *m, int n, const hd_cuda_codes *room) {
    size_t n_byte = 0;
    for (int i = 0; i < n; i++) {
        bool has_maps = m[i].w.map != nullptr && (m[i].up.data == nullptr || m[i].up.map);
        bool is_mine = m[i].w.format == HD_F8_B128 && m[i].is_rounded && !m[i].is_ordered;
        is_mine &= m[i].up.data == nullptr || m[i].up.format == HD_F8_B128;
        is_mine &= m[i].into != HD_CUDA_SWIGLU && m[i].norm == nullptr;
        if (!is_mine || !has_maps || room->at == nullptr) return false;
        if (m[i].w.n_in % DEPTH != 0) return false;
        if (m[i].tile == nullptr && (m[i].x_row != nullptr || m[i].n_row > HD_CUDA_FP8_ROWS))
            return false;
        if (m[i].tile != nullptr && m[i].tile_rows > MOST) return false;
        n_byte += coded_bytes(&m[i], coded_rows(&m[i]));
    }
    return n_byte <= room->n_byte;
}

// Boxes of eight rows.
static bool make_map(const coded_inputs &x, int n_in, CUtensorMap *map) {
    size_t width = (size_t)n_in * 2, n_row = (size_t)x.n_row;
    return hd_cuda_encode_map({x.term, 1, width, width * n_row, n_row, 1, 8}, map) == cudaSuccess;
}

// Dense products first: their weights are known before anything else is, and they take longest.
extern "C" bool hd_cuda_run_mul_codes(const hd_cuda_mul *m, int n, const hd_cuda_codes *room,
                                      cudaStream_t stream) {
    code_args a = {};
    code_rows_args r = {};
    code_maps maps = {};
    unsigned char *to = (unsigned char *)room->at;
    long long n_item = 0, n_slot = 2 * hd_cuda_current().n_sm;
    unsigned n_block = 0;
    a.n = n, r.n_x = room->n_x;
    for (int i = 0; i < n; i++) {
        const hd_cuda_mul *from = &m[m[0].tile != nullptr ? n - 1 - i : i];
        a.m[i] = r.m[i] = *from;
        a.rows[i] = from->tile != nullptr ? from->tile_rows : MOST;
        memcpy(&maps.w[i], from->w.map, sizeof maps.w[i]);
        int outs = from->up.data != nullptr ? OUTS : 2 * OUTS;
        if (from->up.data != nullptr) memcpy(&maps.up[i], from->up.map, sizeof maps.up[i]);
        long long n_tile = (long long)((from->n_row + MOST - 1) / MOST) * from->w.n_mat;
        if (from->tile != nullptr) n_tile = from->n_tile_max;
        n_item += n_tile * ((from->w.n_out + outs - 1) / outs);
        int n_row = coded_rows(from);
        unsigned n_group = (unsigned)n_row * (unsigned)(from->w.n_in / DEPTH);
        a.x[i] = r.to[i] = {to, (float *)(to + (size_t)n_group * 2 * DEPTH), n_row};
        if (n_group > 0 && !make_map(a.x[i], from->w.n_in, &maps.x[i])) return false;
        to += coded_bytes(from, n_row);
        n_block = n_block > (n_group + 7) / 8 ? n_block : (n_group + 7) / 8;
    }
    if (n_item == 0 || n_block == 0) return true;
    HD_LAUNCH_EARLY(code_rows, dim3(n_block, (unsigned)n), 256, 0, stream, r);
    HD_LAUNCH_EARLY(mul_codes, dim3((unsigned)(n_item < n_slot ? n_item : n_slot)), N_THREAD,
                    SHARED_BYTES, stream, a, maps);
    return true;
}
