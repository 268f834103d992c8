// Attention of many rows of a sequence: keys and values of every head are expanded from the latents
// (or lie in a grouped-query cache), then blocks of query rows pass over them (FlashAttention-2,
// arXiv 2307.08691).
//
// A row sees units of 64 positions, from position 0 in ascending order, with one running softmax:
// which rows share a block, and how the positions are cut into parts, changes no bit. A unit past a
// row's own position multiplies by one and adds zeros.
#include "cuda/attn.h"
#include "cuda/attn_tile.cuh"
#include "cuda/decode.cuh"

constexpr int UNIT = HD_CUDA_UNIT;

template <int T> constexpr bool has_codes = T == HD_KV_FP8 || T == HD_KV_INT8;

// Elements e .. e+7 of a row of codes as BF16: FP8 exactly, INT8 rounded.
template <int T>
static __device__ __forceinline__ uint4 unpack_codes(const hd_kv_layout &l,
                                                     const unsigned char *row, int e) {
    uint2 codes = *(const uint2 *)(row + e);
    float v[8], scale = group_scale(l, row, e);
    code_values4<T>(codes.x, scale, v);
    code_values4<T>(codes.y, scale, v + 4);
    return make_uint4(bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]), bf16_pair(v[4], v[5]),
                      bf16_pair(v[6], v[7]));
}

// ---- flash attention ----

// Eight warps of 16 query rows; keys and values of up to DK and DV elements. IS_GROUP: products by
// groups of four warps (Hopper), the next unit of keys and of values on their way. KV: the type of
// a cache in whose pages keys and values lie; NO_PAGES: one row a position, of BF16.
constexpr int NO_PAGES = -1;
template <int DK_, int DV_, bool IS_GROUP_, int KV_> struct flash_shape {
    static constexpr int DK = DK_, DV = DV_, ROWS = HD_CUDA_QUERY_ROWS, THREADS = 2 * ROWS;
    static constexpr bool IS_GROUP = IS_GROUP_, IS_PAGED = KV_ != NO_PAGES;
    static constexpr int KV = KV_;
    static constexpr int STAGES = IS_GROUP ? 2 : 1, BLOCKS = DK <= 64 ? 2 : 1;
    static constexpr int Q_BYTES = ROWS * DK * 2, K_BYTES = UNIT * DK * 2, V_BYTES = UNIT * DV * 2;
    static constexpr int SHARED = Q_BYTES + STAGES * (K_BYTES + V_BYTES);
    static_assert(DK % 64 == 0 && DV % 64 == 0, "whole columns");
};

// Rows row0 .. row0 + n_row from position `pos` on, against positions pos0 .. end, of which pos0 is
// in row `at`, or pages from page0 on are the sequence's.
struct flash_task {
    int row0, n_row, pos, pos0, end, at, page0;
    bool is_rest, is_part; // the softmax comes from the state, goes there
};

static __device__ __forceinline__ flash_task find_flash(const hd_cuda_flash &a) {
    hd_cuda_flash_task t = a.task[blockIdx.x];
    hd_cuda_flash_part p = {0, INT_MAX, 0, 0};
    if (a.part != nullptr) p = a.part[t.seq - a.seq0];
    int end = t.pos + t.n_row, page0 = a.page != nullptr ? a.seq_page0[t.seq] : 0;
    return {t.row0, t.n_row, t.pos,      p.pos0,      min(p.pos1, end),
            p.at,   page0,   p.pos0 > 0, p.pos1 < end};
}

template <class S>
static __device__ __forceinline__ void flash_queries(const hd_cuda_flash &a, const flash_task &t,
                                                     int head, unsigned char *to) {
    bool is_aligned = a.n_key % 4 == 0 && ((uintptr_t)a.q & 15) == 0;
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < S::ROWS * (S::DK / 8); i += S::THREADS) {
        int r = i / (S::DK / 8), k = i % (S::DK / 8) * 8;
        float v[8] = {};
        if (r < t.n_row) {
            size_t at = (size_t)(t.row0 + r) * (size_t)a.n_head + (size_t)head;
            const float *q = a.q + at * (size_t)a.n_key;
            if (is_aligned && k + 8 <= a.n_key)
                load8(q, k, v);
            else
                load_some(q, k, a.n_key, v);
        }
        uint4 w = make_uint4(bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]), bf16_pair(v[4], v[5]),
                             bf16_pair(v[6], v[7]));
        *(uint4 *)(to + column_piece_at<S::ROWS>(r, k / 8)) = w;
    }
}

// The unit of positions from p0, of those before `end`: keys, or values. Eight lanes a row; zeros
// where nothing is.
template <class S, bool IS_VALUE>
static __device__ __forceinline__ void flash_copy(const hd_cuda_flash &a, const flash_task &t,
                                                  int kv_head, int p0, uint32_t to) {
    constexpr int D = IS_VALUE ? S::DV : S::DK;
    int lane = (int)threadIdx.x % 8, n_piece = ((IS_VALUE ? a.n_v : a.n_key) + 7) / 8;
    size_t ld = IS_VALUE ? a.ld_value : a.ld_key;
    size_t skip = (size_t)kv_head * (IS_VALUE ? a.ld_value_head : a.ld_head); // elements
    const unsigned char *base = (const unsigned char *)(IS_VALUE ? a.values : a.keys);
    if constexpr (!has_codes<S::KV>) base += skip * 2 + 16 * (size_t)lane;
#pragma unroll
    for (int r0 = 0; r0 < UNIT; r0 += S::THREADS / 8) {
        int r = r0 + (int)threadIdx.x / 8, p = min(p0 + r, t.end - 1);
        bool is_there = p0 + r < t.end;
        size_t row;
        if constexpr (S::IS_PAGED)
            row = (size_t)a.page[t.page0 + p / a.page_tok] * (size_t)a.page_tok +
                  (size_t)(p % a.page_tok);
        else
            row = (size_t)(t.at + p - t.pos0);
        const unsigned char *from = base + row * ld * 2;
        if constexpr (has_codes<S::KV>) from = base + row * (size_t)a.kv.row_bytes;
#pragma unroll
        for (int j = 0; j < D / 64; j++) {
            int piece = 8 * j + lane;
            bool has = is_there && piece < n_piece;
            if constexpr (has_codes<S::KV>) {
                uint4 v = {0, 0, 0, 0};
                if (has) v = unpack_codes<S::KV>(a.kv, from, (int)skip + 8 * piece);
                store_piece(to + column_piece_at<UNIT>(r, piece), v);
                continue;
            }
            copy_piece(to + column_piece_at<UNIT>(r, piece), has ? from + 128 * j : from, has);
        }
    }
    copy_commit();
}

// What a warp keeps of its rows: maxima of the products, this lane's parts of the sums, and the
// weighted values. Row g + 8i of the warp is [i], or [.][2i], [2i + 1].
template <class S> struct flash_rows { float top[2], sum[2], out[S::DV / 8][4]; };

template <class S>
static __device__ __forceinline__ float *flash_state(const hd_cuda_flash &a, const flash_task &t,
                                                     int head, int r) {
    size_t at = (size_t)(t.row0 + r) * (size_t)a.n_head + (size_t)head;
    return a.state + at * (size_t)(HD_CUDA_STATE + a.n_v);
}

template <class S>
static __device__ __forceinline__ void flash_begin(const hd_cuda_flash &a, const flash_task &t,
                                                   int head, int row0, flash_rows<S> *w) {
    int g = (int)threadIdx.x % 32 / 4, q = (int)threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int r = row0 + 8 * i + g;
        bool is_rest = t.is_rest && r < t.n_row;
        const float *from = is_rest ? flash_state<S>(a, t, head, r) : nullptr;
        w->top[i] = is_rest ? from[0] : -INFINITY;
        w->sum[i] = is_rest ? from[1 + q] : 0;
#pragma unroll
        for (int j = 0; j < S::DV / 8; j++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                int column = 8 * j + 2 * q + c;
                w->out[j][2 * i + c] = is_rest && column < a.n_v ? from[HD_CUDA_STATE + column] : 0;
            }
    }
}

template <class S>
static __device__ __forceinline__ void flash_end(const hd_cuda_flash &a, const flash_task &t,
                                                 int head, int row0, const flash_rows<S> &w) {
    int g = (int)threadIdx.x % 32 / 4, q = (int)threadIdx.x % 4;
    bool is_even = a.n_v % 2 == 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int r = row0 + 8 * i + g;
        float sum = w.sum[i];
        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 2);
        if (r >= t.n_row) continue;
        size_t at = (size_t)(t.row0 + r) * (size_t)a.n_head + (size_t)head;
        float *to = a.out + at * (size_t)a.n_v, factor = 1.0f / sum;
        if (t.is_part) {
            to = flash_state<S>(a, t, head, r);
            if (q == 0) to[0] = w.top[i];
            to[1 + q] = w.sum[i];
            to += HD_CUDA_STATE, factor = 1;
        }
#pragma unroll
        for (int j = 0; j < S::DV / 8; j++) {
            int column = 8 * j + 2 * q;
            float x = w.out[j][2 * i] * factor, y = w.out[j][2 * i + 1] * factor;
            if (is_even && !t.is_part) {
                if (column < a.n_v) *(float2 *)(to + column) = make_float2(x, y);
            } else {
                if (column < a.n_v) to[column] = x;
                if (column + 1 < a.n_v) to[column + 1] = y;
            }
        }
    }
}

// Products of the warp's rows and the unit's 64 keys.
template <class S>
static __device__ __forceinline__ void flash_scores(uint32_t q, uint32_t k, int row0,
                                                    float s[8][4]) {
    int lane = (int)threadIdx.x % 32, id = lane / 8, r8 = lane % 8;
#pragma unroll
    for (int j = 0; j < 8; j++) s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0;
#pragma unroll
    for (int e = 0; e < S::DK / 16; e++) {
        uint32_t rows[4];
        load_four(rows, q + column_piece_at<S::ROWS>(row0 + r8 + id % 2 * 8, 2 * e + id / 2));
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t keys[4];
            load_four(keys, k + column_piece_at<UNIT>(16 * j + r8 + id / 2 * 8, 2 * e + id % 2));
            tensor_product(s[2 * j], rows, keys);
            tensor_product(s[2 * j + 1], rows, keys + 2);
        }
    }
}

// Weights of the unit's positions, unnormalised, in s; earlier values are to be multiplied with
// keep. Position p0 + c is seen by row i if it is at most pos0 + i.
template <class S>
static __device__ __forceinline__ void flash_soften(float s[8][4], float scale, int p0, int pos0,
                                                    flash_rows<S> *w, float keep[2]) {
    int g = (int)threadIdx.x % 32 / 4, q = (int)threadIdx.x % 4;
    bool is_cut = p0 + UNIT - 1 > pos0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float top = w->top[i];
        if (is_cut) {
            int n_seen = pos0 + 8 * i + g + 1 - p0;
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int c = 0; c < 2; c++)
                    if (8 * j + 2 * q + c >= n_seen) s[j][2 * i + c] = -INFINITY;
        }
#pragma unroll
        for (int j = 0; j < 8; j++) top = fmaxf(top, fmaxf(s[j][2 * i], s[j][2 * i + 1]));
        top = fmaxf(top, shuffle_xor(top, 1));
        top = fmaxf(top, shuffle_xor(top, 2));
        float base = top * scale, sum = 0;
        keep[i] = exp2_fast((w->top[i] - top) * scale);
        w->top[i] = top;
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float v = exp2_fast(__fmaf_rn(s[j][2 * i + c], scale, -base));
                s[j][2 * i + c] = v;
                sum += v;
            }
        w->sum[i] = __fmaf_rn(w->sum[i], keep[i], sum);
    }
}

template <class S>
static __device__ __forceinline__ void flash_rescale(const float keep[2], flash_rows<S> *w) {
#pragma unroll
    for (int j = 0; j < S::DV / 8; j++)
#pragma unroll
        for (int c = 0; c < 4; c++) w->out[j][c] *= keep[c / 2];
}

template <class S>
static __device__ __forceinline__ void flash_values(const float s[8][4], uint32_t v,
                                                    flash_rows<S> *w) {
    int lane = (int)threadIdx.x % 32, id = lane / 8, r8 = lane % 8;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        uint32_t p[4];
        left_fragment(s + 2 * e, p);
#pragma unroll
        for (int j = 0; j < S::DV / 16; j++) {
            uint32_t x[4];
            load_four_transposed(
                x, v + column_piece_at<UNIT>(16 * e + r8 + id % 2 * 8, 2 * j + id / 2));
            tensor_product(w->out[2 * j], p, x);
            tensor_product(w->out[2 * j + 1], p, x + 2);
        }
    }
}

template <class S>
static __global__ void __launch_bounds__(S::THREADS, S::BLOCKS) flash(const hd_cuda_flash a) {
    extern __shared__ __align__(1024) unsigned char shared_columns[];
    flash_task t = find_flash(a);
    if (t.pos0 >= t.end) return; // complete since an earlier part
    int head = (int)blockIdx.y, kv_head = head / (a.n_head / a.n_head_kv);
    uint32_t q = shared_address(shared_columns), k = q + S::Q_BYTES, v = k + S::K_BYTES;
    int row0 = (int)threadIdx.x / 32 * 16; // of this warp
    float scale = a.scale * LOG2_E;
    flash_copy<S, false>(a, t, kv_head, t.pos0, k);
    flash_queries<S>(a, t, head, shared_columns);
    flash_rows<S> w;
    flash_begin<S>(a, t, head, row0, &w);
    int last = t.pos + row0 + 15; // of the warp's rows: units past it change nothing
    for (int p = t.pos0; p < t.end; p += UNIT) {
        float s[8][4], keep[2];
        copy_wait<0>();
        __syncthreads(); // the keys are there, the values before have been used
        flash_copy<S, true>(a, t, kv_head, p, v);
        if (p <= last) flash_scores<S>(q, k, row0, s);
        copy_wait<0>();
        __syncthreads(); // the values are there, the keys have been used
        if (p + UNIT < t.end) flash_copy<S, false>(a, t, kv_head, p + UNIT, k);
        if (p > last) continue;
        flash_soften<S>(s, scale, p, t.pos + row0, &w, keep);
        flash_rescale<S>(keep, &w);
        flash_values<S>(s, v, &w);
    }
    flash_end<S>(a, t, head, row0, w);
}

// ---- the same with products of groups of four warps, 64 rows each ----

#ifdef HD_HAS_GROUP_PRODUCT
// These begin: what they read and write is theirs until warpgroup_wait.
template <class S>
static __device__ __forceinline__ void begin_scores(uint32_t q, uint32_t k, float s[8][4]) {
    warpgroup_begin();
#pragma unroll
    for (int e = 0; e < S::DK / 16; e++)
        group_product(s, tile_descriptor(q + (uint32_t)(e / 4 * S::ROWS * 128 + e % 4 * 32)),
                      tile_descriptor(k + (uint32_t)(e / 4 * UNIT * 128 + e % 4 * 32)), e > 0);
    warpgroup_commit();
}

template <class S>
static __device__ __forceinline__ void begin_values(const uint32_t p[4][4], uint32_t v,
                                                    flash_rows<S> *w) {
    warpgroup_begin();
#pragma unroll
    for (int e = 0; e < 4; e++)
#pragma unroll
        for (int j = 0; j < S::DV / 64; j++)
            group_product(w->out + 8 * j, p[e],
                          tile_descriptor(v + (uint32_t)(j * UNIT * 128 + e * 16 * 128)));
    warpgroup_commit();
}

// Weighted values of a unit are summed while the weights of the next are computed.
template <class S>
static __device__ __forceinline__ void flash_by_groups(const hd_cuda_flash &a,
                                                       unsigned char *shared) {
    flash_task t = find_flash(a);
    if (t.pos0 >= t.end) return; // complete since an earlier part
    int head = (int)blockIdx.y, kv_head = head / (a.n_head / a.n_head_kv);
    int row0 = (int)threadIdx.x / 32 * 16, group0 = row0 / 64 * 64; // of this warp, of its group
    uint32_t q = shared_address(shared), k = q + S::Q_BYTES, v = k + 2 * S::K_BYTES;
    float scale = a.scale * LOG2_E, s[8][4], keep[2];
    flash_copy<S, false>(a, t, kv_head, t.pos0, k);
    flash_queries<S>(a, t, head, shared);
    q += (uint32_t)(group0 * 128);
    flash_rows<S> w;
    flash_begin<S>(a, t, head, row0, &w);
    // Units of the task, and those that the group's rows see: others change nothing.
    int n = (t.end - t.pos0 + UNIT - 1) / UNIT, n_seen = t.pos + group0 + 64 - t.pos0;
    n_seen = n_seen <= 0 ? 0 : min(n, (n_seen + UNIT - 1) / UNIT);
    auto turn = [&](int u) { // to unit u: its values are there, and the next one's keys
        copy_wait<0>();
        fence_async();
        __syncthreads(); // keys of u and values before it have been used
        if (u + 2 < n)
            flash_copy<S, false>(a, t, kv_head, t.pos0 + (u + 2) * UNIT,
                                 k + (uint32_t)(u & 1) * S::K_BYTES);
        if (u + 1 < n)
            flash_copy<S, true>(a, t, kv_head, t.pos0 + (u + 1) * UNIT,
                                v + (uint32_t)(u + 1 & 1) * S::V_BYTES);
    };
    uint32_t weight[4][4];
    turn(-1);
    if (n_seen > 0) {
        begin_scores<S>(q, k, s);
        warpgroup_wait<0>();
        flash_soften<S>(s, scale, t.pos0, t.pos + row0, &w, keep);
        flash_rescale<S>(keep, &w);
    }
    for (int u = 0; u < n_seen - 1; u++) {
        turn(u);
#pragma unroll
        for (int e = 0; e < 4; e++) left_fragment(s + 2 * e, weight[e]);
        begin_scores<S>(q, k + (uint32_t)(u + 1 & 1) * S::K_BYTES, s);
        begin_values<S>(weight, v + (uint32_t)(u & 1) * S::V_BYTES, &w);
        warpgroup_wait<1>();
        flash_soften<S>(s, scale, t.pos0 + (u + 1) * UNIT, t.pos + row0, &w, keep);
        warpgroup_wait<0>();
        flash_rescale<S>(keep, &w);
    }
    if (n_seen > 0) {
        turn(n_seen - 1);
#pragma unroll
        for (int e = 0; e < 4; e++) left_fragment(s + 2 * e, weight[e]);
        begin_values<S>(weight, v + (uint32_t)(n_seen - 1 & 1) * S::V_BYTES, &w);
        warpgroup_wait<0>();
    }
    for (int u = n_seen; u < n; u++) turn(u);
    flash_end<S>(a, t, head, row0, w);
}
#endif

template <class S>
static __global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    flash_groups(const hd_cuda_flash a) {
#ifdef HD_HAS_GROUP_PRODUCT
    extern __shared__ __align__(1024) unsigned char shared_columns[];
    flash_by_groups<S>(a, shared_columns);
#endif
}

template <class S> static void launch_flash(const hd_cuda_flash *a, cudaStream_t stream) {
    dim3 grid((unsigned)a->n_task, (unsigned)a->n_head);
    void (*kernel)(hd_cuda_flash);
    if constexpr (S::IS_GROUP)
        kernel = flash_groups<S>;
    else
        kernel = flash<S>;
    HD_LAUNCH(kernel, grid, S::THREADS, S::SHARED, stream, *a);
}

template <bool IS_GROUP, int KV>
static void launch_flash_of(const hd_cuda_flash *a, cudaStream_t stream) {
    if (a->n_key <= 64 && a->n_v <= 64)
        launch_flash<flash_shape<64, 64, IS_GROUP, KV>>(a, stream);
    else if (a->n_key <= 128)
        launch_flash<flash_shape<128, 128, IS_GROUP, KV>>(a, stream);
    else
        launch_flash<flash_shape<192, 128, IS_GROUP, KV>>(a, stream);
}

template <int KV> static void launch_flash_kv(const hd_cuda_flash *a, cudaStream_t stream) {
    (a->has_group_products ? launch_flash_of<true, KV> : launch_flash_of<false, KV>)(a, stream);
}

extern "C" void hd_cuda_run_flash(const hd_cuda_flash *a, cudaStream_t stream) {
    if (a->page == nullptr)
        launch_flash_kv<NO_PAGES>(a, stream);
    else if (a->kv.type == HD_KV_FP8)
        launch_flash_kv<HD_KV_FP8>(a, stream);
    else if (a->kv.type == HD_KV_INT8)
        launch_flash_kv<HD_KV_INT8>(a, stream);
    else
        launch_flash_kv<HD_KV_BF16>(a, stream);
}

extern "C" bool hd_cuda_can_flash(int n_key, int n_v) { return n_key <= 192 && n_v <= 128; }

extern "C" bool hd_cuda_can_unpack(const hd_kv_layout *kv) {
    return hd_kv_has_codes(kv->type) ? kv->group % 8 == 0 : kv->type == HD_KV_BF16;
}

// ---- k_b and v_b as one matrix ----

// k_b: rows of w are its columns, by tiles of 32x32. blockIdx: tile of inputs, of outputs, head.
template <int F> static __global__ void __launch_bounds__(128) unpack_keys(const hd_cuda_unpack a) {
    __shared__ float tile[32][33];
    int n_nope = a.k_b.n_in, n_c = a.k_b.n_out, h = (int)blockIdx.z;
    int j0 = (int)blockIdx.x * 32, c0 = (int)blockIdx.y * 32;
    int row = (int)threadIdx.x / 4, part = (int)threadIdx.x % 4 * 8;
    float v[8] = {};
    if (c0 + row < n_c) {
        const unsigned char *data = a.k_b.data + (size_t)h * a.k_b.mat_bytes;
        values8<F>(data + (size_t)(c0 + row) * a.k_b.row_bytes, j0 + part, v);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) tile[row][part + i] = v[i];
    __syncthreads();
    if (j0 + row >= n_nope) return;
    size_t at = (size_t)h * (size_t)(n_nope + a.v_b.n_out) + (size_t)(j0 + row);
    uint32_t t[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        t[i] = bf16_pair(tile[part + 2 * i][row], tile[part + 2 * i + 1][row]);
    *(uint4 *)((unsigned short *)a.w + at * (size_t)a.ldw + c0 + part) =
        make_uint4(t[0], t[1], t[2], t[3]);
}

// v_b: rows as they are. blockIdx: row, head.
template <int F>
static __global__ void __launch_bounds__(128) unpack_values(const hd_cuda_unpack a) {
    int i = (int)blockIdx.x, h = (int)blockIdx.y, n_c = (a.v_b.n_in + 31) / 32 * 32;
    const unsigned char *data =
        a.v_b.data + (size_t)h * a.v_b.mat_bytes + (size_t)i * a.v_b.row_bytes;
    size_t at = (size_t)h * (size_t)(a.k_b.n_in + a.v_b.n_out) + (size_t)(a.k_b.n_in + i);
    for (int c = (int)threadIdx.x * 8; c < a.ldw; c += 1024) {
        float v[8] = {};
        if (c < n_c) values8<F>(data, c, v);
        *(uint4 *)((unsigned short *)a.w + at * (size_t)a.ldw + c) =
            make_uint4(bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]), bf16_pair(v[4], v[5]),
                       bf16_pair(v[6], v[7]));
    }
}

extern "C" void hd_cuda_run_unpack(const hd_cuda_unpack *a, cudaStream_t stream) {
    unsigned n_head = (unsigned)a->k_b.n_mat;
    dim3 keys((unsigned)(a->k_b.n_in + 31) / 32, (unsigned)a->ldw / 32, n_head);
    dim3 values((unsigned)a->v_b.n_out, n_head);
    switch (a->k_b.format) {
#define ROW(F)                                                                                     \
    case F: HD_LAUNCH(unpack_keys<F>, keys, 128, 0, stream, *a); break;
        HD_CUDA_FORMATS(ROW)
#undef ROW
    default: break; // hd_cuda_can_decode was asked
    }
    switch (a->v_b.format) {
#define ROW(F)                                                                                     \
    case F: HD_LAUNCH(unpack_values<F>, values, 128, 0, stream, *a); break;
        HD_CUDA_FORMATS(ROW)
#undef ROW
    default: break;
    }
}

// ---- expansion: [positions, n_c] times w^T, 128 x 128 of it a block ----

namespace expansion {
constexpr int ROWS = HD_CUDA_KEY_ROWS, COLUMNS = 128, STEP = 64, STAGES = 3, THREADS = 256;
constexpr int LINE = STEP * 2, STAGE_BYTES = (ROWS + COLUMNS) * LINE;
constexpr int OUT_LINE = COLUMNS * 2 + 16; // of the finished tile: rows in other bank groups
constexpr int SHARED = STAGES * STAGE_BYTES;
static_assert(ROWS * OUT_LINE <= SHARED, "the finished tile takes the stages' place");
} // namespace expansion

static __device__ __forceinline__ size_t latent_row(const hd_cuda_expand &a,
                                                    const hd_cuda_expand_task &t, int i) {
    int p = t.pos + i;
    return (size_t)a.page[a.seq_page0[t.seq] + p / a.page_tok] * (size_t)a.page_tok +
           (size_t)(p % a.page_tok);
}

// The rope key of every position, behind every head's own, and zeros up to a whole piece.
static __device__ void expand_rope(const hd_cuda_expand &a, const hd_cuda_expand_task &t) {
    int n_key = a.ld_head, n = n_key - a.n_nope;
    size_t skip = (size_t)a.kv.plain_at + (size_t)(a.n_c - a.kv.n_code) * 2;
    const unsigned char *cache = (const unsigned char *)a.cache + skip;
    unsigned short *keys = (unsigned short *)a.keys;
    for (int i = (int)threadIdx.x / 32; i < t.n; i += expansion::THREADS / 32) {
        const unsigned short *from =
            (const unsigned short *)(cache + latent_row(a, t, i) * (size_t)a.kv.row_bytes);
        unsigned short *to = keys + ((size_t)(t.at + i) * (size_t)a.n_head) * (size_t)n_key;
        to += a.n_nope;
        for (int e = (int)threadIdx.x % 32; e < n; e += 32) {
            unsigned short v = e < a.n_rope ? from[e] : (unsigned short)0;
            for (int h = 0; h < a.n_head; h++) to[(size_t)h * (size_t)n_key + (size_t)e] = v;
        }
    }
}

// Where output `column` of row `at` belongs.
static __device__ __forceinline__ unsigned short *expanded_at(const hd_cuda_expand &a, size_t at,
                                                              int column) {
    int each = a.n_nope + a.n_v, h = column / each, j = column % each;
    size_t head = at * (size_t)a.n_head + (size_t)h;
    if (j < a.n_nope) return (unsigned short *)a.keys + head * (size_t)a.ld_head + j;
    return (unsigned short *)a.values + head * (size_t)a.ld_value_head + (j - a.n_nope);
}

template <int T>
static __global__ void __launch_bounds__(expansion::THREADS, 2) expand(const hd_cuda_expand a) {
    using namespace expansion;
    HD_DYNAMIC_SHARED(shared);
    hd_cuda_expand_task t = a.task[blockIdx.y];
    int n_column = a.n_head * (a.n_nope + a.n_v), column0 = (int)blockIdx.x * COLUMNS;
    if (column0 >= n_column) { // the last block of a row of blocks
        expand_rope(a, t);
        return;
    }
    int tid = (int)threadIdx.x, lane = tid % 32, warp = tid / 32, id = lane / 8, r8 = lane % 8;
    uint32_t base = shared_address(shared);
    // A thread copies one piece of every 32nd row.
    const unsigned char *from[2][4];
    bool has[2][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int r = tid / 8 + 32 * i;
        has[0][i] = r < t.n, has[1][i] = column0 + r < n_column;
        from[0][i] = (const unsigned char *)a.cache +
                     (has[0][i] ? latent_row(a, t, r) * (size_t)a.kv.row_bytes : 0);
        from[1][i] = (const unsigned char *)a.w +
                     (has[1][i] ? (size_t)(column0 + r) * (size_t)a.ldw * 2 : 0);
    }
    int n_step = a.ldw / STEP, n_piece = (a.n_c + 7) / 8;
    auto copy = [&](int step) {
        uint32_t to = base + (uint32_t)(step % STAGES * STAGE_BYTES);
        int piece = step * (STEP / 8) + tid % 8;
        if (step < n_step)
#pragma unroll
            for (int m = 0; m < 2; m++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    if (has_codes<T> && m == 0) continue;
                    bool is_there = has[m][i] && (m == 1 || piece < n_piece);
                    copy_piece(to + piece_at<LINE>(128 * m + tid / 8 + 32 * i, tid % 8),
                               is_there ? from[m][i] + 16 * piece : from[m][i], is_there);
                }
        copy_commit();
    };
    // Codes are in registers while a step is multiplied, and become BF16 behind it.
    uint4 unpacked[4];
    auto read_codes = [&](int step) {
        int piece = step * (STEP / 8) + tid % 8;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            unpacked[i] = make_uint4(0, 0, 0, 0);
            if (step < n_step && has[0][i] && piece < n_piece)
                unpacked[i] = unpack_codes<T>(a.kv, from[0][i], 8 * piece);
        }
    };
    auto put_codes = [&](int step) {
        uint32_t to = base + (uint32_t)(step % STAGES * STAGE_BYTES);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (step < n_step)
                store_piece(to + piece_at<LINE>(tid / 8 + 32 * i, tid % 8), unpacked[i]);
    };
    float acc[4][4][4] = {};
    int row0 = warp / 4 * 64, col0 = warp % 4 * 32;
    copy(0);
    copy(1);
    if constexpr (has_codes<T>)
        for (int step = 0; step < 2; step++) {
            read_codes(step);
            put_codes(step);
        }
    for (int step = 0; step < n_step; step++) {
        copy_wait<1>();
        __syncthreads();
        copy(step + 2);
        if constexpr (has_codes<T>) read_codes(step + 2);
        uint32_t rows = base + (uint32_t)(step % STAGES * STAGE_BYTES), cols = rows + ROWS * LINE;
#pragma unroll
        for (int e = 0; e < STEP / 16; e++) {
            uint32_t x[4][4], w[2][4];
#pragma unroll
            for (int m = 0; m < 4; m++)
                load_four(x[m],
                          rows + piece_at<LINE>(row0 + 16 * m + r8 + id % 2 * 8, 2 * e + id / 2));
#pragma unroll
            for (int n = 0; n < 2; n++)
                load_four(w[n],
                          cols + piece_at<LINE>(col0 + 16 * n + r8 + id / 2 * 8, 2 * e + id % 2));
#pragma unroll
            for (int m = 0; m < 4; m++)
#pragma unroll
                for (int n = 0; n < 4; n++) tensor_product(acc[m][n], x[m], w[n / 2] + n % 2 * 2);
        }
        if constexpr (has_codes<T>) put_codes(step + 2);
    }
    copy_wait<0>();
    __syncthreads();
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int r = row0 + 16 * m + 8 * i + lane / 4, c = col0 + 8 * n + lane % 4 * 2;
                *(uint32_t *)(shared + r * OUT_LINE + c * 2) =
                    bf16_pair(acc[m][n][2 * i], acc[m][n][2 * i + 1]);
            }
    __syncthreads();
    bool is_whole = a.n_nope % 8 == 0 && a.n_v % 8 == 0 && a.n_rope % 8 == 0;
    for (int i = tid; i < ROWS * (COLUMNS / 8); i += THREADS) {
        int r = i / (COLUMNS / 8), c = i % (COLUMNS / 8) * 8, column = column0 + c;
        if (r >= t.n) break;
        uint4 v = *(const uint4 *)(shared + r * OUT_LINE + c * 2);
        size_t at = (size_t)(t.at + r);
        if (is_whole) {
            if (column < n_column) *(uint4 *)expanded_at(a, at, column) = v;
            continue;
        }
        uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (column + j < n_column)
                *expanded_at(a, at, column + j) = (unsigned short)(words[j / 2] >> j % 2 * 16);
    }
}

extern "C" void hd_cuda_run_expand(const hd_cuda_expand *a, cudaStream_t stream) {
    int n_column = a->n_head * (a->n_nope + a->n_v);
    dim3 grid((unsigned)((n_column + expansion::COLUMNS - 1) / expansion::COLUMNS + 1),
              (unsigned)a->n_task);
    auto kernel = a->kv.type == HD_KV_FP8    ? expand<HD_KV_FP8>
                  : a->kv.type == HD_KV_INT8 ? expand<HD_KV_INT8>
                                             : expand<HD_KV_BF16>;
    HD_LAUNCH(kernel, grid, expansion::THREADS, expansion::SHARED, stream, *a);
}
