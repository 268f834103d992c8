// Attention of few rows a sequence over a paged BF16 cache (Flash-Decoding; FlashMLA): positions
// are split over blocks, so that a step of one row as one of many keeps every multiprocessor
// reading. Multi-head latent attention in its absorbed form (keys and values are one latent row,
// all heads read it), and grouped-query attention.
//
// A block of four warps passes over tiles of 32 positions with 16 query heads of one key head. The
// next tile is on its way while this one is used. Products: each warp has a quarter of the
// elements, and keeps these of the queries in registers; sums over the warps pass through shared
// memory, lane to the same lane. Every warp then has all weights of the tile as the left fragments
// of the second product, of which it computes a quarter of the columns.
#include "cuda/attn.h"
#include "cuda/attn_tile.cuh"

constexpr int TILE = HD_CUDA_TILE_POS, HEADS = 16, WARPS = 4, THREADS = 32 * WARPS;

template <int DK_, int DV_, bool IS_LATENT_, int BLOCKS_> struct split_shape {
    static constexpr int DK = DK_, DV = DV_, BLOCKS = BLOCKS_;
    static constexpr bool IS_LATENT = IS_LATENT_;
    static constexpr int KS = DK / 16 / WARPS, NV = DV / 8 / WARPS; // of a warp
    static constexpr int K_BYTES = TILE * DK * 2, V_BYTES = IS_LATENT ? 0 : TILE * DV * 2;
    static constexpr int V_LINE = IS_LATENT ? DK * 2 : DV * 2, STAGE_BYTES = K_BYTES + V_BYTES;
    static constexpr int SUM_BYTES = WARPS * HEADS * TILE * 4;
    static constexpr int SHARED = 2 * STAGE_BYTES + 2 * SUM_BYTES;
    static_assert(DK % 64 == 0 && DV % 64 == 0, "rows of whole bank lines");
};

// Tiles tile .. tile_end of a row, for heads head0 .. head0 + n_head of key head kv_head.
struct segment {
    int row, sub, tile, tile_end;
    int n_tile; // of the row
    int slot;   // of its part; -1: the row is whole
};

// The segments of a block, one after the other.
struct walker {
    int at, end, n_sub; // by shares: tiles of the step; else: segments of the step
    segment s;
};

static __device__ __forceinline__ int sub_rows(const hd_cuda_attn &a) {
    return a.n_head_kv * ((a.n_head / a.n_head_kv + HEADS - 1) / HEADS);
}

// Tiles of a block: an even share.
static __device__ __forceinline__ int share_of(const hd_cuda_split &s, int n_sub) {
    int total = (s.tile0[s.a.n_row] - s.tile0[0]) * n_sub;
    return max((total + s.n_block - 1) / s.n_block, s.tile_min);
}

static __device__ __forceinline__ void find_segment(const hd_cuda_split &s, walker *w, int begin) {
    segment *g = &w->s;
    if (w->at >= w->end) return;
    if (s.n_split > 0) {
        int z = w->at % s.n_split, item = w->at / s.n_split;
        g->row = item / w->n_sub, g->sub = item % w->n_sub;
        g->n_tile = s.tile0[g->row + 1] - s.tile0[g->row];
        g->tile = (int)((long long)g->n_tile * z / s.n_split);
        g->tile_end = (int)((long long)g->n_tile * (z + 1) / s.n_split);
        g->slot = w->at;
        return;
    }
    int row_at = (s.tile0[g->row] - s.tile0[0]) * w->n_sub;
    g->n_tile = s.tile0[g->row + 1] - s.tile0[g->row];
    g->sub = (w->at - row_at) / g->n_tile;
    g->tile = (w->at - row_at) % g->n_tile;
    g->tile_end = min(g->n_tile, g->tile + (w->end - w->at));
    bool is_whole = g->tile == 0 && g->tile_end == g->n_tile;
    g->slot = is_whole ? -1 : 2 * (int)blockIdx.x + (w->at == begin ? 0 : 1);
}

// By all threads. False: nothing to do.
static __device__ __forceinline__ bool start(const hd_cuda_split &s, walker *w, int *begin) {
    w->n_sub = sub_rows(s.a);
    w->s = {};
    if (s.n_split > 0) {
        w->end = s.a.n_row * w->n_sub * s.n_split;
        w->at = *begin = (int)blockIdx.x;
        find_segment(s, w, *begin);
        return w->at < w->end;
    }
    int base = s.tile0[0], total = (s.tile0[s.a.n_row] - base) * w->n_sub;
    int share = share_of(s, w->n_sub);
    w->at = *begin = (int)blockIdx.x * share;
    w->end = min(total, w->at + share);
    if (w->at >= total) return false;
    int row = 0; // how many rows end at or before the first tile
    for (int r0 = 1; r0 <= s.a.n_row; r0 += THREADS) {
        int r = r0 + (int)threadIdx.x;
        row += __syncthreads_count(r <= s.a.n_row && (s.tile0[r] - base) * w->n_sub <= w->at);
    }
    w->s.row = row;
    find_segment(s, w, *begin);
    return true;
}

// The next tile. True: it begins a segment.
static __device__ __forceinline__ bool step(const hd_cuda_split &s, walker *w, int begin) {
    segment *g = &w->s;
    if (s.n_split == 0) w->at++;
    if (++g->tile < g->tile_end) return false;
    if (s.n_split > 0) do {
            w->at += s.n_block;
            find_segment(s, w, begin);
        } while (w->at < w->end && g->tile == g->tile_end);
    else {
        if (g->sub == w->n_sub - 1) g->row++;
        find_segment(s, w, begin);
    }
    return true;
}

// ---- the cache ----

// Where the rows of the next tile are that this thread copies pieces of: they are looked up a tile
// ahead. -1: past the row's position.
constexpr int COPY_ROWS = TILE * 8 / THREADS;
struct tile_rows {
    int row[COPY_ROWS];
};

static __device__ __forceinline__ void look_up(const hd_cuda_attn &a, const walker &w,
                                               tile_rows *t) {
    if (w.at >= w.end) return;
    const int32_t *page = a.page + a.seq_page0[a.row_seq[w.s.row]];
    int n_pos = a.pos[w.s.row] + 1;
#pragma unroll
    for (int i = 0; i < COPY_ROWS; i++) {
        int p = w.s.tile * TILE + i * (THREADS / 8) + (int)threadIdx.x / 8;
        t->row[i] = p < n_pos ? page[p / a.page_tok] * a.page_tok + p % a.page_tok : -1;
    }
}

// Eight lanes a row, zeros past its n elements.
template <int D>
static __device__ __forceinline__ void copy_rows(const hd_cuda_attn &a, const void *cache, int n,
                                                 int kv_head, const tile_rows &t, uint32_t to) {
    int lane = (int)threadIdx.x % 8, n_piece = n / 8;
    const unsigned char *base = (const unsigned char *)cache + (size_t)kv_head * (size_t)n * 2;
#pragma unroll
    for (int i = 0; i < COPY_ROWS; i++) {
        int r = i * (THREADS / 8) + (int)threadIdx.x / 8;
        bool is_there = t.row[i] >= 0;
        const unsigned char *from = base + (is_there ? (size_t)t.row[i] * a.ld_kv * 2 : 0);
#pragma unroll
        for (int j = 0; j < D / 64; j++) {
            int piece = 8 * j + lane;
            bool has = is_there && piece < n_piece;
            copy_piece(to + piece_at<D * 2>(r, piece), has ? from + 16 * piece : base, has);
        }
    }
}

template <class S>
static __device__ __forceinline__ void copy_tile(const hd_cuda_attn &a, const walker &w,
                                                 const tile_rows &t, uint32_t to) {
    if (w.at < w.end) {
        int kv_head = w.s.sub / (w.n_sub / a.n_head_kv);
        copy_rows<S::DK>(a, a.keys, a.n_key, kv_head, t, to);
        if (!S::IS_LATENT) copy_rows<S::DV>(a, a.values, a.n_v, kv_head, t, to + S::K_BYTES);
    }
    end_copies();
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

static __device__ __forceinline__ uint32_t query_pair(const hd_cuda_attn &a, size_t at, int e) {
    float v[2];
    const float *q0 = a.q0 + at * a.ldq0;
    if (e + 2 <= a.n_q0 && a.n_q0 % 2 == 0 && a.ldq0 % 2 == 0) {
        float2 r = *(const float2 *)(q0 + e);
        return bf16_pair(r.x, r.y);
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
        v[i] = e + i < a.n_q0    ? q0[e + i]
               : e + i < a.n_key ? a.q1[at * a.ldq1 + (size_t)(e + i - a.n_q0)]
                                 : 0;
    return bf16_pair(v[0], v[1]);
}

template <class S>
static __device__ __forceinline__ void load_queries(const hd_cuda_attn &a, const walker &w,
                                                    uint32_t q[S::KS][4]) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int head0, n_head;
    heads_of(a, w.n_sub, w.s.sub, &head0, &n_head);
    size_t at = (size_t)w.s.row * (size_t)a.n_head + (size_t)(head0 + g);
#pragma unroll
    for (int k = 0; k < S::KS; k++) {
        int e = (warp * S::KS + k) * 16 + 2 * t;
        q[k][0] = g < n_head ? query_pair(a, at, e) : 0;
        q[k][1] = g + 8 < n_head ? query_pair(a, at + 8, e) : 0;
        q[k][2] = g < n_head ? query_pair(a, at, e + 8) : 0;
        q[k][3] = g + 8 < n_head ? query_pair(a, at + 8, e + 8) : 0;
    }
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

// This warp's part of the products, for its lanes' places of the fragments.
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
#pragma unroll
        for (int w = 1; w < WARPS; w++) {
            float4 x = sums[(w * (TILE / 8) + j) * 32 + lane];
            v.x += x.x, v.y += x.y, v.z += x.z, v.w += x.w;
        }
        int p = 8 * j + 2 * t;
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

template <class S>
static __global__ void __launch_bounds__(THREADS, S::BLOCKS) split(const hd_cuda_split s) {
    HD_DYNAMIC_SHARED(shared);
    const hd_cuda_attn &a = s.a;
    walker now, next;
    int begin;
    if (!start(s, &now, &begin)) return;
    if (s.n_split > 0 && now.s.tile == now.s.tile_end) {
        now.s.tile--; // an empty part: on to the next
        step(s, &now, begin);
        if (now.at >= now.end) return;
    }
    next = now;
    uint32_t stage = shared_address(shared);
    float4 *sums = (float4 *)(shared + 2 * S::STAGE_BYTES);
    float scale = a.scale * LOG2_E;
    tile_rows rows;
    look_up(a, next, &rows);
    copy_tile<S>(a, next, rows, stage);
    step(s, &next, begin);
    look_up(a, next, &rows);
    uint32_t q[S::KS][4];
    float top[2], sum[2], out[S::NV][4], keep[2], weight[TILE / 8][4];
    bool is_first = true;
    int n_pos = 0;
    for (int i = 0; now.at < now.end; i++) {
        if (is_first) {
            load_queries<S>(a, now, q);
            n_pos = a.pos[now.s.row] + 1;
            top[0] = top[1] = -INFINITY, sum[0] = sum[1] = 0;
#pragma unroll
            for (int j = 0; j < S::NV; j++) out[j][0] = out[j][1] = out[j][2] = out[j][3] = 0;
        }
        uint32_t here = stage + (uint32_t)(i % 2 * S::STAGE_BYTES);
        float4 *sums_here = sums + i % 2 * (S::SUM_BYTES / 16);
        await_copies<0>();
        __syncthreads(); // this tile is there, the one before has been used
        copy_tile<S>(a, next, rows, stage + (uint32_t)((i + 1) % 2 * S::STAGE_BYTES));
        step(s, &next, begin);
        look_up(a, next, &rows);
        tile_products<S>(q, here, sums_here);
        __syncthreads();
        soften(sums_here, scale, n_pos - now.s.tile * TILE, weight, top, sum, keep);
        tile_values<S>(weight, keep, here + S::K_BYTES * !S::IS_LATENT, out);
        segment done = now.s;
        is_first = step(s, &now, begin);
        if (!is_first) continue;
        walker of = now;
        of.s = done;
        store<S>(a, of, top, sum, out);
    }
}

// ---- parts ----

constexpr int MERGE_THREADS = 256, MERGE_WARPS = MERGE_THREADS / 32, PARTS_MAX = 1024;

// Slots of a row's parts, in order: n of them, the first at `first`, then next, next + step ...
struct parts {
    int n, first, next, step;
};

static __device__ __forceinline__ parts parts_of(const hd_cuda_split &s, int item, int n_sub) {
    int row = item / n_sub, sub = item % n_sub, n_tile = s.tile0[row + 1] - s.tile0[row];
    if (s.n_split > 0) return {s.n_split, item * s.n_split, item * s.n_split + 1, 1};
    int share = share_of(s, n_sub);
    int at = (s.tile0[row] - s.tile0[0]) * n_sub + sub * n_tile, end = at + n_tile;
    int b0 = at / share, b1 = (end - 1) / share;
    return {b1 - b0 + 1, 2 * b0 + (b0 * share == at ? 0 : 1), 2 * b0 + 2, 2};
}

// A block takes a row's head, or 128 columns of it: weights of the parts, then each warp sums every
// eighth run of parts.
static __global__ void __launch_bounds__(MERGE_THREADS) merge_parts(const hd_cuda_split s) {
    __shared__ float weight[PARTS_MAX], most[MERGE_WARPS], total[MERGE_WARPS];
    __shared__ float4 sums[MERGE_WARPS][32];
    const hd_cuda_attn &a = s.a;
    int n_sub = sub_rows(a), item = (int)blockIdx.x, h = (int)blockIdx.y;
    int head0, n_head;
    heads_of(a, n_sub, item % n_sub, &head0, &n_head);
    if (h >= n_head) return;
    parts p = parts_of(s, item, n_sub);
    if (s.n_split == 0 && p.n == 1) return; // the row was whole
    int tid = (int)threadIdx.x, warp = tid / 32, lane = tid % 32;
    int n_tile = s.tile0[item / n_sub + 1] - s.tile0[item / n_sub];
    const float *ends = a.part + (size_t)HEADS * (size_t)a.n_v + 2 * (size_t)h;
    float top = -INFINITY, own[PARTS_MAX / MERGE_THREADS], l[PARTS_MAX / MERGE_THREADS];
#pragma unroll
    for (int j = 0; j < PARTS_MAX / MERGE_THREADS; j++) {
        int i = j * MERGE_THREADS + tid;
        bool is_there = i < p.n;
        if (s.n_split > 0 && is_there) // else: no tile of the row
            is_there = (long long)n_tile * i / s.n_split < (long long)n_tile * (i + 1) / s.n_split;
        int slot = i == 0 ? p.first : p.next + (i - 1) * p.step;
        const float *at = ends + (size_t)slot * part_floats(a.n_v);
        own[j] = is_there ? at[0] : -INFINITY;
        l[j] = is_there ? at[1] : 0;
        top = fmaxf(top, own[j]);
    }
    for (int mask = 1; mask < 32; mask *= 2) top = fmaxf(top, shuffle_xor(top, mask));
    if (lane == 0) most[warp] = top;
    __syncthreads();
    for (int w = 0; w < MERGE_WARPS; w++) top = fmaxf(top, most[w]);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < PARTS_MAX / MERGE_THREADS; j++) {
        float f = exp2_fast(own[j] - top);
        if (j * MERGE_THREADS + tid < p.n) weight[j * MERGE_THREADS + tid] = f;
        sum += f * l[j];
    }
    for (int mask = 1; mask < 32; mask *= 2) sum += shuffle_xor(sum, mask);
    if (lane == 0) total[warp] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < MERGE_WARPS; w++) sum += total[w];
    float factor = 1.0f / sum;
    int each = (p.n + MERGE_WARPS - 1) / MERGE_WARPS;
    int i0 = warp * each, i1 = min(p.n, i0 + each);
    float *out =
        a.out + ((size_t)(item / n_sub) * (size_t)a.n_head + (size_t)(head0 + h)) * (size_t)a.n_v;
    bool is_even = a.n_v % 4 == 0;
    for (int c0 = (int)blockIdx.z * 128; c0 < a.n_v; c0 += 128 * (int)gridDim.z) {
        int column = c0 + 4 * lane;
        float4 v = {0, 0, 0, 0};
#pragma unroll 8
        for (int i = i0; i < i1; i++) {
            int slot = i == 0 ? p.first : p.next + (i - 1) * p.step;
            const float *at = a.part + (size_t)slot * part_floats(a.n_v) +
                              (size_t)h * (size_t)a.n_v + (size_t)column;
            float f = weight[i];
            float4 x = {0, 0, 0, 0};
            if (f == 0) continue;
            if (is_even) {
                if (column < a.n_v) x = *(const float4 *)at;
            } else {
                x.x = column < a.n_v ? at[0] : 0;
                x.y = column + 1 < a.n_v ? at[1] : 0;
                x.z = column + 2 < a.n_v ? at[2] : 0;
                x.w = column + 3 < a.n_v ? at[3] : 0;
            }
            v.x += f * x.x, v.y += f * x.y, v.z += f * x.z, v.w += f * x.w;
        }
        sums[warp][lane] = v;
        __syncthreads();
        if (tid < 128 && c0 + tid < a.n_v) {
            float r = 0;
            for (int w = 0; w < MERGE_WARPS; w++) r += ((const float *)sums[w])[tid];
            out[c0 + tid] = r * factor;
        }
        __syncthreads();
    }
}

template <class S> static void launch_split(const hd_cuda_split *s, cudaStream_t stream) {
    auto kernel = split<S>;
    (void)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               S::SHARED);
    HD_LAUNCH(kernel, (unsigned)s->n_block, THREADS, S::SHARED, stream, *s);
}

using latent_wide = split_shape<576, 512, true, 2>;
using latent_small = split_shape<192, 128, true, 4>;
using grouped_wide = split_shape<128, 128, false, 3>;
using grouped_small = split_shape<64, 64, false, 4>;

static bool is_latent(const hd_cuda_attn *a) { return a->keys == a->values; }
static bool is_small(const hd_cuda_attn *a) {
    if (is_latent(a)) return a->n_key <= latent_small::DK && a->n_v <= latent_small::DV;
    return a->n_key <= grouped_small::DK && a->n_v <= grouped_small::DV;
}

extern "C" bool hd_cuda_can_split(const hd_cuda_attn *a) {
    int n_key = is_latent(a) ? latent_wide::DK : grouped_wide::DK;
    int n_v = is_latent(a) ? latent_wide::DV : grouped_wide::DV;
    bool is_aligned = a->n_key % 8 == 0 && a->ld_kv % 8 == 0 && (is_latent(a) || a->n_v % 8 == 0);
    return a->format == HD_BF16 && is_aligned && a->n_key <= n_key && a->n_v <= n_v;
}

extern "C" int hd_cuda_split_blocks(const hd_cuda_attn *a) {
    if (is_latent(a)) return is_small(a) ? latent_small::BLOCKS : latent_wide::BLOCKS;
    return is_small(a) ? grouped_small::BLOCKS : grouped_wide::BLOCKS;
}

extern "C" size_t hd_cuda_part_floats(int n_v) { return part_floats(n_v); }

extern "C" void hd_cuda_run_split(const hd_cuda_split *s, cudaStream_t stream) {
    const hd_cuda_attn *a = &s->a;
    if (is_latent(a))
        (is_small(a) ? launch_split<latent_small> : launch_split<latent_wide>)(s, stream);
    else
        (is_small(a) ? launch_split<grouped_small> : launch_split<grouped_wide>)(s, stream);
    int each = a->n_head / a->n_head_kv, n_sub = a->n_head_kv * ((each + HEADS - 1) / HEADS);
    int n_item = a->n_row * n_sub, n_z = n_item > 32 ? 1 : (a->n_v + 127) / 128;
    dim3 grid((unsigned)n_item, (unsigned)(each < HEADS ? each : HEADS), (unsigned)n_z);
    HD_LAUNCH(merge_parts, grid, MERGE_THREADS, 0, stream, *s);
}
