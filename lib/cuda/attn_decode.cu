// Attention of few rows a sequence over a paged BF16 cache (Flash-Decoding; FlashMLA): positions
// are split over blocks, so that a step of one row as one of many keeps every multiprocessor
// reading. Multi-head latent attention in its absorbed form (keys and values are one latent row,
// all heads read it), and grouped-query attention.
//
// A block of four warps passes over tiles of 32 positions with 16 query heads of one key head. The
// next tiles are on their way while one is used; what earlier steps wrote, before the kernel before
// has ended. Products: each warp has a quarter of the elements, and keeps these of the queries in
// registers. The four sums of a product pass through shared memory, lane to the same lane, so that
// every warp has all weights of the tile as the left fragments of the second product, of which it
// computes a quarter of the columns.
#include "cuda/attn.h"
#include "cuda/attn_tile.cuh"

constexpr int TILE = HD_CUDA_TILE_POS, HEADS = 16, WARPS = 4, THREADS = 32 * WARPS;

template <int DK_, int DV_, bool IS_LATENT_, int STAGES_, int BLOCKS_> struct split_shape {
    static constexpr int DK = DK_, DV = DV_, STAGES = STAGES_, BLOCKS = BLOCKS_;
    static constexpr bool IS_LATENT = IS_LATENT_;
    // Of a warp: steps of 16 elements, eights of columns.
    static constexpr int KS = DK / 16 / WARPS, NV = DV / 8 / WARPS;
    static constexpr int COPY_ROWS = TILE * 8 / THREADS; // eight lanes a row
    static constexpr int K_BYTES = TILE * DK * 2, V_BYTES = IS_LATENT ? 0 : TILE * DV * 2;
    static constexpr int V_LINE = IS_LATENT ? DK * 2 : DV * 2, STAGE_BYTES = K_BYTES + V_BYTES;
    static constexpr int SUM_BYTES = WARPS * HEADS * TILE * 4;
    // Of a head's queries: heads start in different banks.
    static constexpr int Q_LINE = DK * 2 + 16, Q_AT = STAGES * STAGE_BYTES + SUM_BYTES;
    static constexpr int SHARED = Q_AT + HEADS * Q_LINE;
    static_assert(DK % 64 == 0 && DV % 64 == 0, "rows of whole bank lines");
    static_assert(NV % 2 == 0, "fragments in pairs");
};

// Tiles tile .. tile_end of a row of n_tile, for the heads of sub-row `sub`.
struct segment {
    int row, sub, tile, tile_end, n_tile, n_pos, page0, n_old;
    int slot; // of its part; -1: the row is whole
};

// The segments of a block, one after the other.
struct walker {
    int at, end, n_sub; // by shares: tiles of the step; else: segments of the step
    segment s;
};

static __device__ __forceinline__ int sub_rows(const hd_cuda_attn &a) {
    return a.n_head_kv * ((a.n_head / a.n_head_kv + HEADS - 1) / HEADS);
}

static __device__ __forceinline__ int4 row_at(const hd_cuda_split &s, int row) {
    return ((const int4 *)s.row)[row];
}

// Tiles of a block: an even share.
static __device__ __forceinline__ int share_of(const hd_cuda_split &s, int total) {
    return max((total + s.n_block - 1) / s.n_block, s.tile_min);
}

static __device__ __forceinline__ void set_row(segment *g, int row, int4 r, int next_tile0) {
    g->row = row, g->page0 = r.y, g->n_pos = r.z, g->n_old = r.w, g->n_tile = next_tile0 - r.x;
}

// By shares: where the segment at w->at ends; row_tile: tiles of the step before its row.
static __device__ __forceinline__ void cut_segment(walker *w, int row_tile, int begin) {
    segment *g = &w->s;
    g->sub = (w->at - row_tile) / g->n_tile;
    g->tile = (w->at - row_tile) % g->n_tile;
    g->tile_end = min(g->n_tile, g->tile + (w->end - w->at));
    bool is_whole = g->tile == 0 && g->tile_end == g->n_tile;
    g->slot = is_whole ? -1 : 2 * (int)blockIdx.x + (w->at == begin ? 0 : 1);
}

// By n_split: segment w->at, or the next of the block that has tiles.
static __device__ __forceinline__ void find_split(const hd_cuda_split &s, walker *w) {
    segment *g = &w->s;
    for (; w->at < w->end; w->at += s.n_block) {
        int z = w->at % s.n_split, item = w->at / s.n_split, row = item / w->n_sub;
        set_row(g, row, row_at(s, row), row_at(s, row + 1).x);
        g->sub = item % w->n_sub, g->slot = w->at;
        g->tile = (int)((long long)g->n_tile * z / s.n_split);
        g->tile_end = (int)((long long)g->n_tile * (z + 1) / s.n_split);
        if (g->tile < g->tile_end) return;
    }
}

// By all threads. False: nothing to do.
static __device__ __forceinline__ bool start(const hd_cuda_split &s, walker *w, int *begin) {
    __shared__ segment found;
    w->n_sub = sub_rows(s.a);
    if (s.n_split > 0) {
        w->end = s.a.n_row * w->n_sub * s.n_split;
        w->at = *begin = (int)blockIdx.x;
        find_split(s, w);
        return w->at < w->end;
    }
    int base = row_at(s, 0).x, total = (row_at(s, s.a.n_row).x - base) * w->n_sub;
    int share = share_of(s, total);
    w->at = *begin = (int)blockIdx.x * share;
    w->end = min(total, w->at + share);
    if (w->at >= total) return false;
    for (int r = (int)threadIdx.x; r < s.a.n_row; r += THREADS) {
        int4 row = row_at(s, r);
        int next = row_at(s, r + 1).x;
        int row_tile = (row.x - base) * w->n_sub;
        if (row_tile > w->at || (next - base) * w->n_sub <= w->at) continue;
        set_row(&w->s, r, row, next);
        cut_segment(w, row_tile, *begin);
        found = w->s;
    }
    __syncthreads();
    w->s = found;
    return true;
}

// The next tile. True: it begins a segment.
static __device__ __forceinline__ bool step(const hd_cuda_split &s, walker *w, int begin) {
    segment *g = &w->s;
    if (s.n_split == 0) w->at++;
    if (++g->tile < g->tile_end) return false;
    if (s.n_split > 0) {
        w->at += s.n_block;
        find_split(s, w);
    } else if (w->at < w->end) {
        int row = g->sub == w->n_sub - 1 ? g->row + 1 : g->row;
        int4 r = row_at(s, row);
        set_row(g, row, r, row_at(s, row + 1).x);
        cut_segment(w, (r.x - row_at(s, 0).x) * w->n_sub, begin);
    }
    return true;
}

// ---- the cache ----

// Cache rows of a tile that this thread copies pieces of; -1: past the row's positions. They are
// looked up some time before they are copied.
template <class S> struct tile_rows { int kv_head, row[S::COPY_ROWS]; };

template <class S>
static __device__ __forceinline__ void look_up(const hd_cuda_attn &a, const walker &w,
                                               tile_rows<S> *t) {
    bool is_there = w.at < w.end;
    const int32_t *page = a.page + w.s.page0;
    t->kv_head = is_there ? w.s.sub / (w.n_sub / a.n_head_kv) : -1;
#pragma unroll
    for (int i = 0; i < S::COPY_ROWS; i++) {
        int p = w.s.tile * TILE + i * (THREADS / 8) + (int)threadIdx.x / 8;
        t->row[i] =
            is_there && p < w.s.n_pos ? page[p / a.page_tok] * a.page_tok + p % a.page_tok : -1;
    }
}

// Zeros past a row's n elements.
template <class S, int D>
static __device__ __forceinline__ void copy_rows(const hd_cuda_attn &a, const void *cache, int n,
                                                 const tile_rows<S> &t, uint32_t to) {
    int lane = (int)threadIdx.x % 8, n_piece = n / 8;
    const unsigned char *base = (const unsigned char *)cache + (size_t)t.kv_head * (size_t)n * 2;
#pragma unroll
    for (int i = 0; i < S::COPY_ROWS; i++) {
        int r = i * (THREADS / 8) + (int)threadIdx.x / 8;
        bool is_there = t.row[i] >= 0;
        const unsigned char *from =
            base + (is_there ? (size_t)t.row[i] * (size_t)a.kv.row_bytes : 0);
#pragma unroll
        for (int j = 0; j < D / 64; j++) {
            int piece = 8 * j + lane;
            bool has = is_there && piece < n_piece;
            copy_piece(to + piece_at<D * 2>(r, piece), has ? from + 16 * piece : base, has);
        }
    }
}

template <class S>
static __device__ __forceinline__ void copy_tile(const hd_cuda_attn &a, const tile_rows<S> &t,
                                                 uint32_t to) {
    if (t.kv_head >= 0) {
        copy_rows<S, S::DK>(a, a.keys, a.n_key, t, to);
        if (!S::IS_LATENT) copy_rows<S, S::DV>(a, a.values, a.n_v, t, to + S::K_BYTES);
    }
    copy_commit();
}

// ---- queries and results ----

// First head and how many of a sub-row.
static __device__ __forceinline__ void heads_of(const hd_cuda_attn &a, int n_sub, int sub,
                                                int *head0, int *n_head) {
    int each = a.n_head / a.n_head_kv, n_tile = n_sub / a.n_head_kv;
    int first = sub % n_tile * HEADS;
    *head0 = sub / n_tile * each + first;
    *n_head = min(HEADS, each - first);
}

// Queries e .. e+3 of the head at `at`; zeros past its elements.
static __device__ __forceinline__ float4 four_queries(const hd_cuda_attn &a, size_t at, int e) {
    const float *q0 = a.q0 + at * a.ldq0, *q1 = a.q1 + at * a.ldq1;
    const float *from = e < a.n_q0 ? q0 + e : q1 + (e - a.n_q0);
    bool is_whole = e + 4 <= a.n_q0 || (e >= a.n_q0 && e + 4 <= a.n_key);
    if (is_whole && ((uintptr_t)from & 15) == 0) return *(const float4 *)from;
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = e + i < a.n_q0 ? q0[e + i] : e + i < a.n_key ? q1[e + i - a.n_q0] : 0;
    return make_float4(v[0], v[1], v[2], v[3]);
}

// The segment's queries as BF16 to shared memory, zeros for heads that are not there.
template <class S>
static __device__ __forceinline__ void copy_queries(const hd_cuda_attn &a, const walker &w,
                                                    unsigned char *to) {
    constexpr int FOURS = S::DK / 4;
    int head0, n_head;
    heads_of(a, w.n_sub, w.s.sub, &head0, &n_head);
    size_t at = (size_t)w.s.row * (size_t)a.n_head + (size_t)head0;
#pragma unroll 6
    for (int i = (int)threadIdx.x; i < HEADS * FOURS; i += THREADS) {
        int h = i / FOURS, e = i % FOURS * 4;
        float4 v = {0, 0, 0, 0};
        if (h < n_head) v = four_queries(a, at + (size_t)h, e);
        *(uint2 *)(to + h * S::Q_LINE + e * 2) =
            make_uint2(bf16_pair(v.x, v.y), bf16_pair(v.z, v.w));
    }
}

// This warp's quarter of their elements as left fragments.
template <class S>
static __device__ __forceinline__ void load_queries(uint32_t from, uint32_t q[S::KS][4]) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, id = lane / 8, r8 = lane % 8;
    from += (uint32_t)((r8 + id % 2 * 8) * S::Q_LINE + warp * S::KS * 32 + id / 2 * 16);
#pragma unroll
    for (int k = 0; k < S::KS; k++) load_four(q[k], from + (uint32_t)(32 * k));
}

// Floats of a part: [16, n_v] sums, then [16, 2] maximum (of powers of two) and sum of weights.
static __host__ __device__ __forceinline__ size_t part_floats(int n_v) {
    return (size_t)HEADS * (size_t)(n_v + 2);
}

template <class S>
static __device__ __forceinline__ void store(const hd_cuda_attn &a, const walker &w,
                                             const float top[2], const float sum[2],
                                             const float out[S::NV][4]) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int head0, n_head;
    heads_of(a, w.n_sub, w.s.sub, &head0, &n_head);
    bool is_even = a.n_v % 2 == 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float l = sum[i];
        l += shuffle_xor(l, 1);
        l += shuffle_xor(l, 2);
        int h = g + 8 * i;
        if (h >= n_head) continue;
        float factor = 1.0f / l;
        float *to =
            a.out + ((size_t)w.s.row * (size_t)a.n_head + (size_t)(head0 + h)) * (size_t)a.n_v;
        if (w.s.slot >= 0) {
            float *part = a.part + (size_t)w.s.slot * part_floats(a.n_v);
            to = part + (size_t)h * (size_t)a.n_v, factor = 1;
            float *ends = part + (size_t)HEADS * (size_t)a.n_v + 2 * h;
            if (warp == 0 && t == 0) ends[0] = top[i], ends[1] = l;
        }
#pragma unroll
        for (int j = 0; j < S::NV; j++) {
            int column = (warp * S::NV + j) * 8 + 2 * t;
            float x = out[j][2 * i] * factor, y = out[j][2 * i + 1] * factor;
            if (is_even) {
                if (column < a.n_v) *(float2 *)(to + column) = make_float2(x, y);
            } else {
                if (column < a.n_v) to[column] = x;
                if (column + 1 < a.n_v) to[column + 1] = y;
            }
        }
    }
}

// ---- a tile ----

// This warp's share of the products, for its lanes' places of the fragments.
template <class S>
static __device__ __forceinline__ void tile_products(const uint32_t q[S::KS][4], uint32_t k,
                                                     float4 *sums) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, id = lane / 8, r8 = lane % 8;
    float s[TILE / 8][4] = {};
#pragma unroll
    for (int e = 0; e < S::KS; e++)
#pragma unroll
        for (int j = 0; j < TILE / 16; j++) {
            uint32_t keys[4];
            int piece = 2 * (warp * S::KS + e) + id % 2;
            load_four(keys, k + piece_at<S::DK * 2>(16 * j + r8 + id / 2 * 8, piece));
            tensor_product(s[2 * j], q[e], keys);
            tensor_product(s[2 * j + 1], q[e], keys + 2);
        }
#pragma unroll
    for (int j = 0; j < TILE / 8; j++)
        sums[(warp * (TILE / 8) + j) * 32 + lane] = make_float4(s[j][0], s[j][1], s[j][2], s[j][3]);
}

// Weights of the tile's positions in s, of which the first n_seen count.
static __device__ __forceinline__ void soften(const float4 *sums, float scale, int n_seen,
                                              float s[TILE / 8][4], float top[2], float sum[2],
                                              float keep[2]) {
    int lane = (int)threadIdx.x % 32, t = lane % 4;
#pragma unroll
    for (int j = 0; j < TILE / 8; j++) {
        float4 v = sums[j * 32 + lane];
        int p = 8 * j + 2 * t;
#pragma unroll
        for (int w = 1; w < WARPS; w++) {
            float4 x = sums[(w * (TILE / 8) + j) * 32 + lane];
            v.x += x.x, v.y += x.y, v.z += x.z, v.w += x.w;
        }
        s[j][0] = p < n_seen ? v.x * scale : -INFINITY;
        s[j][1] = p + 1 < n_seen ? v.y * scale : -INFINITY;
        s[j][2] = p < n_seen ? v.z * scale : -INFINITY;
        s[j][3] = p + 1 < n_seen ? v.w * scale : -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float m = top[i], l = 0;
#pragma unroll
        for (int j = 0; j < TILE / 8; j++) m = fmaxf(m, fmaxf(s[j][2 * i], s[j][2 * i + 1]));
        m = fmaxf(m, shuffle_xor(m, 1));
        m = fmaxf(m, shuffle_xor(m, 2));
        keep[i] = exp2_fast(top[i] - m);
        top[i] = m;
#pragma unroll
        for (int j = 0; j < TILE / 8; j++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float v = exp2_fast(s[j][2 * i + c] - m);
                s[j][2 * i + c] = v;
                l += v;
            }
        sum[i] = __fmaf_rn(sum[i], keep[i], l);
    }
}

template <class S>
static __device__ __forceinline__ void tile_values(const float s[TILE / 8][4], const float keep[2],
                                                   uint32_t v, float out[S::NV][4]) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, id = lane / 8, r8 = lane % 8;
#pragma unroll
    for (int j = 0; j < S::NV; j++) {
        out[j][0] *= keep[0], out[j][1] *= keep[0];
        out[j][2] *= keep[1], out[j][3] *= keep[1];
    }
#pragma unroll
    for (int e = 0; e < TILE / 16; e++) {
        uint32_t p[4];
        left_fragment(s + 2 * e, p);
#pragma unroll
        for (int j = 0; j < S::NV / 2; j++) {
            uint32_t x[4];
            int piece = warp * S::NV + 2 * j + id / 2;
            load_four_transposed(x, v + piece_at<S::V_LINE>(16 * e + r8 + id % 2 * 8, piece));
            tensor_product(out[2 * j], p, x);
            tensor_product(out[2 * j + 1], p, x + 2);
        }
    }
}

// The first tiles of a block that only earlier steps wrote, in a row from the first.
template <class S>
static __device__ __forceinline__ int copy_old(const hd_cuda_attn &a, const walker &now,
                                               const tile_rows<S> rows[S::STAGES], uint32_t stage) {
    int n = 0;
#pragma unroll
    for (int i = 0; i < S::STAGES - 1; i++) {
        int tile = now.s.tile + i;
        if (tile >= now.s.tile_end || (tile + 1) * TILE > now.s.n_old) break;
        copy_tile<S>(a, rows[i], stage + (uint32_t)(i * S::STAGE_BYTES));
        n++;
    }
    return n;
}

template <class S>
static __global__ void __launch_bounds__(THREADS, S::BLOCKS) split(const hd_cuda_split s) {
    HD_DYNAMIC_SHARED(shared);
    const hd_cuda_attn &a = s.a;
    walker now, next;
    int begin;
    let_next_start();
    bool has_work = start(s, &now, &begin);
    if (!has_work) {
        wait_for_previous();
        return;
    }
    next = now;
    uint32_t stage = shared_address(shared);
    float4 *sums = (float4 *)(shared + S::STAGES * S::STAGE_BYTES);
    float scale = a.scale * LOG2_E;
    tile_rows<S> rows[S::STAGES];
#pragma unroll
    for (int i = 0; i < S::STAGES; i++) {
        look_up(a, next, &rows[i]);
        if (next.at < next.end) step(s, &next, begin);
    }
    int n_old = copy_old<S>(a, now, rows, stage);
    wait_for_previous();
#pragma unroll
    for (int i = 0; i < S::STAGES - 1; i++)
        if (i >= n_old) copy_tile<S>(a, rows[i], stage + (uint32_t)(i * S::STAGE_BYTES));
    tile_rows<S> ahead = rows[S::STAGES - 1];
    uint32_t q[S::KS][4];
    float top[2], sum[2], out[S::NV][4], keep[2], weight[TILE / 8][4];
    bool is_first = true;
    int free = S::STAGES - 1, ready = 0; // stages
    while (now.at < now.end) {
        if (is_first) {
            copy_queries<S>(a, now, shared + S::Q_AT);
            top[0] = top[1] = -INFINITY, sum[0] = sum[1] = 0;
#pragma unroll
            for (int j = 0; j < S::NV; j++) out[j][0] = out[j][1] = out[j][2] = out[j][3] = 0;
        }
        uint32_t here = stage + (uint32_t)(ready * S::STAGE_BYTES);
        copy_wait<S::STAGES - 2>();
        __syncthreads(); // this tile and the queries are there, the tile before has been used
        copy_tile<S>(a, ahead, stage + (uint32_t)(free * S::STAGE_BYTES));
        look_up(a, next, &ahead);
        if (next.at < next.end) step(s, &next, begin);
        free = free + 1 == S::STAGES ? 0 : free + 1;
        ready = ready + 1 == S::STAGES ? 0 : ready + 1;
        if (is_first) load_queries<S>(stage + S::Q_AT, q);
        tile_products<S>(q, here, sums);
        __syncthreads();
        soften(sums, scale, now.s.n_pos - now.s.tile * TILE, weight, top, sum, keep);
        tile_values<S>(weight, keep, here + (S::IS_LATENT ? 0 : S::K_BYTES), out);
        walker done = now;
        is_first = step(s, &now, begin);
        if (is_first) store<S>(a, done, top, sum, out);
    }
}

#include "cuda/attn_latent.cuh"

// ---- parts ----

constexpr int MERGE_WARPS = 8;

// Slots of a row's parts, in order: n of them, the first at `first`, then next, next + step ...
struct parts {
    int n, first, next, step;
};

static __device__ __forceinline__ parts parts_of(const hd_cuda_split &s, int item, int n_sub) {
    if (s.n_split > 0) return {s.n_split, item * s.n_split, item * s.n_split + 1, 1};
    int row = item / n_sub, sub = item % n_sub, base = row_at(s, 0).x;
    int tile0 = row_at(s, row).x, n_tile = row_at(s, row + 1).x - tile0;
    int share = share_of(s, (row_at(s, s.a.n_row).x - base) * n_sub);
    int at = (tile0 - base) * n_sub + sub * n_tile, end = at + n_tile;
    int b0 = at / share, b1 = (end - 1) / share;
    return {b1 - b0 + 1, 2 * b0 + (b0 * share == at ? 0 : 1), 2 * b0 + 2, 2};
}

// What a part has of a row's head.
static __device__ __forceinline__ const float *part_at(const hd_cuda_split &s, const parts &p,
                                                       int i) {
    int slot = i == 0 ? p.first : p.next + (i - 1) * p.step;
    return s.a.part + (size_t)slot * part_floats(s.a.n_v);
}

// Maximum and sum of part i; nothing where it has no tiles.
static __device__ __forceinline__ float2 ends_of(const hd_cuda_split &s, const parts &p, int i,
                                                 int n_tile, int head) {
    bool is_there = i < p.n;
    if (s.n_split > 0 && is_there)
        is_there = (long long)n_tile * i / s.n_split < (long long)n_tile * (i + 1) / s.n_split;
    if (!is_there) return make_float2(-INFINITY, 0);
    const float *at = part_at(s, p, i) + (size_t)HEADS * (size_t)s.a.n_v;
    return make_float2(at[2 * head], at[2 * head + 1]);
}

static __device__ __forceinline__ float4 load_columns(const float *from, int column, int n) {
    if (n % 4 == 0) return column < n ? *(const float4 *)(from + column) : make_float4(0, 0, 0, 0);
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = column + i < n ? from[column + i] : 0;
    return make_float4(v[0], v[1], v[2], v[3]);
}

// A warp has 128 columns of a row's head and, where few rows leave many parts, an eighth of the
// parts. blockIdx: row and sub-row; then head and columns, for each warp or the block.
template <bool IS_SHARED>
static __global__ void __launch_bounds__(32 * MERGE_WARPS) merge_parts(const hd_cuda_split s) {
    __shared__ float4 sums[MERGE_WARPS][32];
    let_next_start();
    wait_for_previous();
    const hd_cuda_attn &a = s.a;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int n_sub = sub_rows(a), item = (int)blockIdx.x, row = item / n_sub, head0, n_head;
    int n_piece = (a.n_v + 127) / 128;
    int at = IS_SHARED ? (int)blockIdx.y : (int)blockIdx.y * MERGE_WARPS + warp;
    int h = at / n_piece, column = at % n_piece * 128 + 4 * lane;
    heads_of(a, n_sub, item % n_sub, &head0, &n_head);
    if (h >= n_head) return;
    parts p = parts_of(s, item, n_sub);
    if (s.n_split == 0 && p.n == 1) return; // the row was whole
    int n_tile = row_at(s, row + 1).x - row_at(s, row).x;
    float top = -INFINITY, sum = 0;
    for (int i = lane; i < p.n; i += 32) top = fmaxf(top, ends_of(s, p, i, n_tile, h).x);
    for (int mask = 1; mask < 32; mask *= 2) top = fmaxf(top, shuffle_xor(top, mask));
    for (int i = lane; i < p.n; i += 32) {
        float2 ends = ends_of(s, p, i, n_tile, h);
        sum = __fmaf_rn(exp2_fast(ends.x - top), ends.y, sum);
    }
    for (int mask = 1; mask < 32; mask *= 2) sum += shuffle_xor(sum, mask);
    int each = (p.n + MERGE_WARPS - 1) / MERGE_WARPS;
    int i0 = IS_SHARED ? warp * each : 0, i1 = IS_SHARED ? min(p.n, i0 + each) : p.n;
    float4 v = {0, 0, 0, 0};
    for (int g = i0; g < i1; g += 32) {
        float weight = exp2_fast(ends_of(s, p, g + lane, n_tile, h).x - top);
        int n = min(32, i1 - g);
#pragma unroll 8
        for (int j = 0; j < n; j++) {
            float f = __shfl_sync(0xffffffffu, weight, j);
            float4 x = {0, 0, 0, 0};
            if (f != 0) // what is not there is not read
                x = load_columns(part_at(s, p, g + j) + (size_t)h * (size_t)a.n_v, column, a.n_v);
            v.x = __fmaf_rn(f, x.x, v.x), v.y = __fmaf_rn(f, x.y, v.y);
            v.z = __fmaf_rn(f, x.z, v.z), v.w = __fmaf_rn(f, x.w, v.w);
        }
    }
    if (IS_SHARED) {
        sums[warp][lane] = v;
        __syncthreads();
        if (warp > 0) return;
        for (int w = 1; w < MERGE_WARPS; w++) {
            float4 x = sums[w][lane];
            v.x += x.x, v.y += x.y, v.z += x.z, v.w += x.w;
        }
    }
    float factor = 1.0f / sum, r[4] = {v.x * factor, v.y * factor, v.z * factor, v.w * factor};
    float *out = a.out + ((size_t)row * (size_t)a.n_head + (size_t)(head0 + h)) * (size_t)a.n_v;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (column + i < a.n_v) out[column + i] = r[i];
}

// Over codes it begins when the kernel before it has ended.
template <class S> static void launch_split(const hd_cuda_split *s, cudaStream_t stream) {
    void (*kernel)(hd_cuda_split);
    if constexpr (hd_is_coded<S>)
        kernel = split_codes<S>;
    else
        kernel = split<S>;
    if constexpr (hd_is_coded<S>)
        HD_LAUNCH(kernel, (unsigned)s->n_block, THREADS, S::SHARED, stream, *s);
    else
        HD_LAUNCH_EARLY(kernel, dim3((unsigned)s->n_block), THREADS, S::SHARED, stream, *s);
}

static void launch_merge(const hd_cuda_split *s, cudaStream_t stream) {
    const hd_cuda_attn *a = &s->a;
    int each = a->n_head / a->n_head_kv, n_sub = a->n_head_kv * ((each + HEADS - 1) / HEADS);
    int n_item = a->n_row * n_sub, n_warp = (each < HEADS ? each : HEADS) * ((a->n_v + 127) / 128);
    // Another order of the sum: not where the row alone decides it.
    bool is_shared = s->n_split == 0 && n_item <= 16;
    dim3 grid((unsigned)n_item,
              (unsigned)(is_shared ? n_warp : (n_warp + MERGE_WARPS - 1) / MERGE_WARPS));
    HD_LAUNCH_EARLY(is_shared ? merge_parts<true> : merge_parts<false>, grid, 32 * MERGE_WARPS, 0,
                    stream, *s);
}

using latent_wide = split_shape<576, 512, true, 2, 2>;
using latent_small = split_shape<192, 128, true, 3, 4>;
using grouped_wide = split_shape<128, 128, false, 4, 3>;
using grouped_small = split_shape<64, 64, false, 4, 4>;

static bool is_latent(const hd_cuda_attn *a) { return a->keys == a->values; }
static bool is_small(const hd_cuda_attn *a) {
    if (is_latent(a)) return a->n_key <= latent_small::DK && a->n_v <= latent_small::DV;
    return a->n_key <= grouped_small::DK && a->n_v <= grouped_small::DV;
}

// Rows of codes: as many codes of a key as of a value, in groups of whole steps that no warp's part
// shares with another group.
static bool can_split_codes(const hd_cuda_attn *a) {
    int n = a->n_v, n_plain = a->kv.n - a->kv.n_code,
        group = n < HD_KV_GROUP_MAX ? n : HD_KV_GROUP_MAX;
    if (n % 16 != 0 || a->kv.group != group) return false;
    if (is_latent(a)) return n <= latent_codes<HD_KV_FP8>::DC && n_plain <= 64 && n_plain % 8 == 0;
    return n == a->n_key && n <= grouped_codes<HD_KV_FP8>::DC;
}

extern "C" bool hd_cuda_can_split(const hd_cuda_attn *a) {
    if (hd_kv_has_codes(a->kv.type)) return can_split_codes(a);
    int n_key = is_latent(a) ? latent_wide::DK : grouped_wide::DK;
    int n_v = is_latent(a) ? latent_wide::DV : grouped_wide::DV;
    bool is_aligned =
        a->n_key % 8 == 0 && a->kv.row_bytes % 16 == 0 && (is_latent(a) || a->n_v % 8 == 0);
    return a->kv.type == HD_KV_BF16 && is_aligned && a->n_key <= n_key && a->n_v <= n_v;
}

template <int T> static int blocks_of_codes(const hd_cuda_attn *a) {
    if (!is_latent(a)) return grouped_codes<T>::BLOCKS;
    return a->n_v <= latent_codes_small<T>::DC ? latent_codes_small<T>::BLOCKS
                                               : latent_codes<T>::BLOCKS;
}

template <int T> static void launch_codes(const hd_cuda_split *s, cudaStream_t stream) {
    if (s->has_group_products && is_latent_shape(&s->a))
        launch_latent<T>(s, stream);
    else if (!is_latent(&s->a))
        launch_split<grouped_codes<T>>(s, stream);
    else if (s->a.n_v <= latent_codes_small<T>::DC)
        launch_split<latent_codes_small<T>>(s, stream);
    else
        launch_split<latent_codes<T>>(s, stream);
}

extern "C" int hd_cuda_split_blocks(const hd_cuda_attn *a) {
    if (hd_kv_has_codes(a->kv.type)) return blocks_of_codes<HD_KV_FP8>(a);
    if (is_latent(a)) return is_small(a) ? latent_small::BLOCKS : latent_wide::BLOCKS;
    return is_small(a) ? grouped_small::BLOCKS : grouped_wide::BLOCKS;
}

extern "C" size_t hd_cuda_part_floats(int n_v) { return part_floats(n_v); }

extern "C" void hd_cuda_run_split(const hd_cuda_split *s, cudaStream_t stream) {
    const hd_cuda_attn *a = &s->a;
    if (a->kv.type == HD_KV_FP8)
        launch_codes<HD_KV_FP8>(s, stream);
    else if (a->kv.type == HD_KV_INT8)
        launch_codes<HD_KV_INT8>(s, stream);
    else if (is_latent(a))
        (is_small(a) ? launch_split<latent_small> : launch_split<latent_wide>)(s, stream);
    else
        (is_small(a) ? launch_split<grouped_small> : launch_split<grouped_wide>)(s, stream);
    launch_merge(s, stream);
}
