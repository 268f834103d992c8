// Attention over a paged cache: multi-head latent attention in its absorbed form (keys and values
// are one latent row, all heads read it), and grouped-query attention.
//
// A block of four warps takes one row, up to 16 query heads of one key head, and a range of units
// of 64 positions. Tiles of 32 positions pass through shared memory as BF16 terms: scores by the
// tensor cores (a warp 8 positions), an online softmax in float32 (arXiv 1805.02867; eight lanes a
// query), weighted values by the tensor cores (a warp a quarter of the columns). A unit starts from
// nothing; units are merged in ascending order, by the block that computed them all or by
// merge_units from memory, with the same operations. Positions past the row's own count as zeros.
#include "cuda/cache.cuh"
#include "cuda/terms.cuh"

constexpr int TILE = 32, UNIT = HD_CUDA_UNIT, HEADS = 16, THREADS = 128;
constexpr int P_STRIDE = TILE + 8, S_STRIDE = TILE + 1;

template <int T>
constexpr int kv_terms = T == HD_KV_F32                      ? 3
                         : T == HD_KV_F16 || T == HD_KV_INT8 ? 2
                                                             : 1;
template <int T> constexpr int q_terms = T == HD_KV_F32 ? 3 : 2;
template <int T> constexpr bool has_codes = T == HD_KV_FP8 || T == HD_KV_INT8;

// Elements between rows in shared memory: no two of eight rows in one bank group.
static __host__ __device__ __forceinline__ int stride_of(int n) { return (n + 63) / 64 * 64 + 8; }

// Eight elements from 16 or 32 aligned bytes, as terms.
template <int T>
static __device__ __forceinline__ void raw_terms(const uint4 r[2], uint32_t t[][4]) {
    uint32_t w[8] = {r[0].x, r[0].y, r[0].z, r[0].w, r[1].x, r[1].y, r[1].z, r[1].w};
    if constexpr (T == HD_KV_BF16) {
#pragma unroll
        for (int i = 0; i < 4; i++) t[0][i] = w[i];
    } else {
        float v[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t half = i % 2 ? w[i / 2] >> 16 : w[i / 2] & 0xffff;
            v[i] = T == HD_KV_F32 ? __uint_as_float(w[i]) : f16_value(half);
        }
        split8<kv_terms<T>>(v, t);
    }
}

// Elements k .. k+7 of the cache row at `at`, of which n count.
template <int T>
static __device__ __forceinline__ void odd_terms(const void *cache, size_t at, int k, int n,
                                                 uint32_t t[][4]) {
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        v[i] = 0;
        if (k + i >= n) continue;
        size_t e = at + (size_t)(k + i);
        v[i] = T == HD_KV_F32   ? ((const float *)cache)[e]
               : T == HD_KV_F16 ? f16_value(((const unsigned short *)cache)[e])
                                : bf16_value(((const unsigned short *)cache)[e]);
    }
    split8<kv_terms<T>>(v, t);
}

static __device__ __forceinline__ void put8(unsigned short *to, const uint32_t t[4]) {
    *(uint4 *)to = make_uint4(t[0], t[1], t[2], t[3]);
}
static __device__ __forceinline__ void get8(const unsigned short *from, uint32_t t[4]) {
    uint4 r = *(const uint4 *)from;
    t[0] = r.x, t[1] = r.y, t[2] = r.z, t[3] = r.w;
}

// total = total * keep + part * take, with one rounding each way of computing it.
static __device__ __forceinline__ float merged(float total, float keep, float part, float take) {
    return __fmaf_rn(part, take, __fmul_rn(total, keep));
}

// Where a task's shared memory is. Elements; term n of a matrix begins at n * its size.
struct layout {
    int q_stride, v_stride, q, k, v, p, end; // 16-bit values
    int n_key, n_v;                          // padded to 32
};
static __host__ __device__ __forceinline__ layout lay_out(int nq, int nk, int n_key, int n_v,
                                                          bool is_latent) {
    layout l;
    l.n_key = (n_key + 31) / 32 * 32;
    l.n_v = (n_v + 31) / 32 * 32;
    l.q_stride = stride_of(l.n_key);
    l.v_stride = is_latent ? l.q_stride : stride_of(l.n_v);
    l.q = 0;
    l.k = l.q + nq * HEADS * l.q_stride;
    l.v = is_latent ? l.k : l.k + nk * TILE * l.q_stride;
    l.p = l.v + nk * TILE * l.v_stride;
    l.end = l.p + nq * HEADS * P_STRIDE;
    return l;
}

// The task of a block.
struct task {
    int row, kv_head, head0, n_head, n_pos, unit0, unit1;
};

static __device__ __forceinline__ bool find_task(const hd_cuda_attn &a, task *t) {
    int each = a.n_head / a.n_head_kv, n_tile = (each + HEADS - 1) / HEADS;
    t->row = (int)blockIdx.x;
    t->kv_head = (int)blockIdx.y / n_tile;
    int first = (int)blockIdx.y % n_tile * HEADS;
    t->head0 = t->kv_head * each + first;
    t->n_head = min(HEADS, each - first);
    t->n_pos = a.pos[t->row] + 1;
    int n_unit = (t->n_pos + UNIT - 1) / UNIT;
    t->unit0 = a.part != nullptr ? (int)blockIdx.z : 0;
    t->unit1 = a.part != nullptr ? t->unit0 + 1 : n_unit;
    return t->unit0 < n_unit;
}

template <int NQ>
static __device__ void load_queries(const hd_cuda_attn &a, const task &t, const layout &l,
                                    unsigned short *q) {
    int n_group = l.n_key / 8;
#pragma unroll 3
    for (int i = (int)threadIdx.x; i < HEADS * n_group; i += THREADS) {
        int h = i / n_group, k = i % n_group * 8;
        size_t at = (size_t)t.row * (size_t)a.n_head + (size_t)(t.head0 + h);
        const float *q0 = h < t.n_head ? a.q0 + at * a.ldq0 : nullptr;
        uint32_t terms[NQ][4];
        if (k + 8 <= a.n_q0 || a.n_q0 == a.n_key) {
            float_terms<NQ>(q0, k, a.n_q0, terms);
        } else if (k >= a.n_q0 && a.n_q0 % 8 == 0) {
            const float *q1 = h < t.n_head ? a.q1 + at * a.ldq1 : nullptr;
            float_terms<NQ>(q1, k - a.n_q0, a.n_key - a.n_q0, terms);
        } else {
            float v[8];
#pragma unroll
            for (int j = 0; j < 8; j++) {
                int e = k + j;
                v[j] = h >= t.n_head || e >= a.n_key ? 0
                       : e < a.n_q0                  ? q0[e]
                                                     : a.q1[at * a.ldq1 + (size_t)(e - a.n_q0)];
            }
            split8<NQ>(v, terms);
        }
#pragma unroll
        for (int n = 0; n < NQ; n++) put8(q + (n * HEADS + h) * l.q_stride + k, terms[n]);
    }
}

// One of the caches: n elements of a row from `skip` on, padded with zeros to n_padded.
struct source {
    const void *cache;
    size_t skip;
    int n, n_padded, stride; // stride: of rows in shared memory
    bool is_aligned;         // whole runs of eight, each at a multiple of its size
};

static __device__ __forceinline__ source source_of(const hd_cuda_attn &a, const task &t,
                                                   const void *cache, int n) {
    source s = {cache, (size_t)t.kv_head * (size_t)n, n, 0, 0, false};
    s.is_aligned = ((uintptr_t)cache & 15) == 0 && n % 8 == 0 && a.kv.n % 8 == 0;
    return s;
}

constexpr size_t NO_ROW = (size_t)-1;

// Cache rows of a unit's positions; NO_ROW past the row's own.
static __device__ void find_rows(const hd_cuda_attn &a, const task &t, int unit, size_t *row) {
    const int32_t *page = a.page + a.seq_page0[a.row_seq[t.row]];
    int at = unit * UNIT + (int)threadIdx.x;
    if (threadIdx.x >= UNIT) return;
    row[threadIdx.x] = at >= t.n_pos ? NO_ROW
                                     : (size_t)page[at / a.page_tok] * (size_t)a.page_tok +
                                           (size_t)(at % a.page_tok);
}

// Elements k .. k+7 of a source's row of codes, of which n count.
template <int T>
static __device__ __forceinline__ void code_terms(const hd_kv_layout &l, const source &s,
                                                  size_t row, int k, uint32_t t[][4]) {
    const unsigned char *from = (const unsigned char *)s.cache + row * (size_t)l.row_bytes;
    int e = (int)s.skip + k;
    float v[8];
    if (l.group % 8 == 0 && e % 8 == 0 && e + 8 <= l.n_code && k + 8 <= s.n) {
        uint2 codes = *(const uint2 *)(from + e);
        float scale = group_scale(l, from, e);
        code_values4<T>(codes.x, scale, v);
        code_values4<T>(codes.y, scale, v + 4);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = k + i < s.n ? cache_value<T>(l, from, e + i) : 0;
    }
    split8<kv_terms<T>>(v, t);
}

template <int T>
static __device__ void load_codes(const hd_kv_layout &l, const source &s, const size_t *row,
                                  unsigned short *to) {
    int n_group = s.n_padded / 8;
    for (int i = (int)threadIdx.x; i < TILE * n_group; i += THREADS) {
        int p = i / n_group, k = i % n_group * 8;
        uint32_t terms[kv_terms<T>][4] = {};
        if (row[p] != NO_ROW && k < s.n) code_terms<T>(l, s, row[p], k, terms);
#pragma unroll
        for (int t = 0; t < kv_terms<T>; t++) put8(to + (t * TILE + p) * s.stride + k, terms[t]);
    }
}

// The 32 rows of a tile. Several loads are on their way before the first is used.
template <int T>
static __device__ void load_tile(const hd_kv_layout &l, const source &s, const size_t *row,
                                 unsigned short *to) {
    if constexpr (has_codes<T>) {
        load_codes<T>(l, s, row, to);
        return;
    }
    size_t ld_kv = (size_t)l.n;
    constexpr int NK = kv_terms<T>, WORDS = T == HD_KV_F32 ? 2 : 1, BATCH = T == HD_KV_BF16 ? 9 : 3;
    int n_group = s.n_padded / 8, n = TILE * n_group;
    size_t elem = T == HD_KV_F32 ? 4 : 2;
    for (int i0 = (int)threadIdx.x; i0 < n; i0 += THREADS * BATCH) {
        uint4 raw[BATCH][2] = {};
        uint32_t terms[NK][4];
        if (s.is_aligned) {
#pragma unroll
            for (int b = 0; b < BATCH; b++) {
                int i = i0 + b * THREADS, p = i / n_group, k = i % n_group * 8;
                if (i >= n || k >= s.n || row[p] == NO_ROW) continue;
                const uint4 *from = (const uint4 *)((const char *)s.cache +
                                                    (row[p] * ld_kv + s.skip + (size_t)k) * elem);
#pragma unroll
                for (int w = 0; w < WORDS; w++) raw[b][w] = from[w];
            }
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            int i = i0 + b * THREADS, p = i / n_group, k = i % n_group * 8;
            if (i >= n) continue;
            if (s.is_aligned)
                raw_terms<T>(raw[b], terms);
            else
                odd_terms<T>(s.cache, row[p] == NO_ROW ? 0 : row[p] * ld_kv + s.skip, k,
                             row[p] == NO_ROW ? 0 : s.n, terms);
#pragma unroll
            for (int t = 0; t < NK; t++) put8(to + (t * TILE + p) * s.stride + k, terms[t]);
        }
    }
}

// Scores of this warp's eight positions.
template <int NQ, int NK>
static __device__ void score_tile(const layout &l, const unsigned short *q, const unsigned short *k,
                                  float scale, float *s) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float acc[4] = {0, 0, 0, 0};
    for (int e = 8 * t; e < l.n_key; e += 32) {
        uint32_t a[NQ][4], b[NQ][4], x[NK][4];
#pragma unroll
        for (int n = 0; n < NQ; n++) {
            get8(q + (n * HEADS + g) * l.q_stride + e, a[n]);
            get8(q + (n * HEADS + g + 8) * l.q_stride + e, b[n]);
        }
#pragma unroll
        for (int n = 0; n < NK; n++) get8(k + (n * TILE + 8 * warp + g) * l.q_stride + e, x[n]);
        multiply<NQ, NK>(acc, a, b, x);
    }
    for (int c = 0; c < 4; c++)
        s[(g + c / 2 * 8) * S_STRIDE + 8 * warp + 2 * t + c % 2] = acc[c] * scale;
}

// A query's running maximum and sum, the same in its eight lanes.
struct softmax_state {
    float m, l;
};

// Weights of the tile's positions into p, as terms; what earlier values are multiplied with into
// keep.
template <int NQ>
static __device__ void soften_tile(const float *s, int n_visible, softmax_state *state,
                                   unsigned short *p, float *keep) {
    int query = threadIdx.x / 8, first = threadIdx.x % 8 * 4;
    float v[8] = {}, top = -INFINITY, sum = 0;
    for (int i = 0; i < 4; i++) {
        v[i] = first + i < n_visible ? s[query * S_STRIDE + first + i] : -INFINITY;
        top = fmaxf(top, v[i]);
    }
    for (int mask = 1; mask < 8; mask *= 2) top = fmaxf(top, shuffle_xor(top, mask));
    top = fmaxf(top, state->m);
    for (int i = 0; i < 4; i++) {
        v[i] = first + i < n_visible ? expf(v[i] - top) : 0;
        sum += v[i];
    }
    for (int mask = 1; mask < 8; mask *= 2) sum += shuffle_xor(sum, mask);
    float factor = expf(state->m - top);
    state->l = merged(state->l, factor, sum, 1);
    state->m = top;
    uint32_t terms[NQ][4];
    split8<NQ>(v, terms);
#pragma unroll
    for (int n = 0; n < NQ; n++)
        *(uint2 *)(p + (n * HEADS + query) * P_STRIDE + first) =
            make_uint2(terms[n][0], terms[n][1]);
    if (first == 0) keep[query] = factor;
}

// acc = acc * keep + P V, this warp's columns: NV tiles of eight from column0.
template <int NQ, int NK, int NV>
static __device__ void add_values(const layout &l, const unsigned short *p, const unsigned short *v,
                                  const float *keep, int column0, int n_v, float (*acc)[4]) {
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float low = keep[g], high = keep[g + 8];
#pragma unroll
    for (int j = 0; j < NV; j++) {
        acc[j][0] *= low, acc[j][1] *= low;
        acc[j][2] *= high, acc[j][3] *= high;
    }
#pragma unroll
    for (int k = 0; k < TILE; k += 16) {
        uint32_t a[NQ][4];
#pragma unroll
        for (int n = 0; n < NQ; n++) {
            const unsigned short *at = p + (n * HEADS + g) * P_STRIDE + k + 2 * t;
            a[n][0] = *(const uint32_t *)at;
            a[n][1] = *(const uint32_t *)(at + 8 * P_STRIDE);
            a[n][2] = *(const uint32_t *)(at + 8);
            a[n][3] = *(const uint32_t *)(at + 8 * P_STRIDE + 8);
        }
#pragma unroll
        for (int j = 0; j < NV; j++) {
            int column = column0 + 8 * j;
            if (column >= n_v) continue;
            uint32_t b[NK][2];
#pragma unroll
            for (int n = 0; n < NK; n++)
                load_transposed(b[n], v + (n * TILE + k + lane % 16) * l.v_stride + column);
#pragma unroll
            for (int s = NQ - 1; s >= 0; s--)
#pragma unroll
                for (int n = 0; n < NK; n++)
                    if (s - n >= 0 && s - n < NQ) tensor_product(acc[j], a[s - n], b[n]);
        }
    }
}

template <int T, int NV>
static __global__ void __launch_bounds__(THREADS) attend(const hd_cuda_attn a) {
    constexpr int NQ = q_terms<T>, NK = kv_terms<T>;
    HD_DYNAMIC_SHARED(shared);
    __shared__ float s[HEADS * S_STRIDE], keep[2][HEADS];
    __shared__ size_t row[UNIT];
    task t;
    if (!find_task(a, &t)) return;
    bool is_latent = a.keys == a.values;
    layout l = lay_out(NQ, NK, a.n_key, a.n_v, is_latent);
    unsigned short *m16 = (unsigned short *)shared;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q4 = lane % 4;
    int query = threadIdx.x / 8, column0 = warp * NV * 8;
    source keys = source_of(a, t, a.keys, a.n_key), values = source_of(a, t, a.values, a.n_v);
    keys.n_padded = l.n_key, keys.stride = l.q_stride;
    values.n_padded = l.n_v, values.stride = l.v_stride;
    load_queries<NQ>(a, t, l, m16 + l.q);
    softmax_state all = {-INFINITY, 0}, unit = {-INFINITY, 0};
    float acc[NV][4], total[NV][4] = {};
    for (int u = t.unit0; u < t.unit1; u++) {
        unit = {-INFINITY, 0};
#pragma unroll
        for (int j = 0; j < NV; j++) acc[j][0] = acc[j][1] = acc[j][2] = acc[j][3] = 0;
        int end = min(t.n_pos, (u + 1) * UNIT);
        __syncthreads(); // the rows of the unit before have been used
        find_rows(a, t, u, row);
        for (int t0 = u * UNIT; t0 < end; t0 += TILE) {
            __syncthreads(); // the tile before has been used
            load_tile<T>(a.kv, keys, row + t0 % UNIT, m16 + l.k);
            if (!is_latent) load_tile<T>(a.kv, values, row + t0 % UNIT, m16 + l.v);
            __syncthreads();
            score_tile<NQ, NK>(l, m16 + l.q, m16 + l.k, a.scale, s);
            __syncthreads();
            soften_tile<NQ>(s, end - t0, &unit, m16 + l.p, keep[0]);
            __syncthreads();
            add_values<NQ, NK, NV>(l, m16 + l.p, m16 + l.v, keep[0], column0, a.n_v, acc);
        }
        if (a.part != nullptr) break;
        float top = fmaxf(all.m, unit.m), old = expf(all.m - top), now = expf(unit.m - top);
        all.l = merged(all.l, old, unit.l, now);
        all.m = top;
        __syncthreads(); // keep has been used
        if (threadIdx.x % 8 == 0) keep[0][query] = old, keep[1][query] = now;
        __syncthreads();
#pragma unroll
        for (int j = 0; j < NV; j++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                total[j][c] =
                    merged(total[j][c], keep[0][g + c / 2 * 8], acc[j][c], keep[1][g + c / 2 * 8]);
    }
    __syncthreads();
    if (threadIdx.x % 8 == 0) keep[0][query] = 1.0f / all.l;
    __syncthreads();
    size_t width = (size_t)a.n_v + 2;
    float *part = nullptr;
    if (a.part != nullptr)
        part = a.part +
               ((size_t)t.row * (size_t)a.n_unit + (size_t)t.unit0) * (size_t)a.n_head * width;
    if (part != nullptr && threadIdx.x % 8 == 0 && query < t.n_head) {
        part[(size_t)(t.head0 + query) * width] = unit.m;
        part[(size_t)(t.head0 + query) * width + 1] = unit.l;
    }
#pragma unroll
    for (int j = 0; j < NV; j++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            int h = g + c / 2 * 8, column = column0 + 8 * j + 2 * q4 + c % 2;
            if (h >= t.n_head || column >= a.n_v) continue;
            size_t head = (size_t)(t.head0 + h);
            if (part != nullptr)
                part[head * width + 2 + (size_t)column] = acc[j][c];
            else
                a.out[((size_t)t.row * (size_t)a.n_head + head) * (size_t)a.n_v + (size_t)column] =
                    total[j][c] * keep[0][h];
        }
}

// The units of one row and head, 128 columns of it, in order, 128 of them at a time: maxima and
// factors by a thread each (a maximum does not round, so it may be taken in any order), sums in
// ascending order.
static __global__ void __launch_bounds__(THREADS) merge_units(const hd_cuda_attn a) {
    __shared__ float top[THREADS], old[THREADS], now[THREADS], sum[THREADS];
    int row = (int)blockIdx.x, head = (int)blockIdx.y, n_unit = a.pos[row] / UNIT + 1;
    int tid = (int)threadIdx.x;
    size_t width = (size_t)a.n_v + 2, step = (size_t)a.n_head * width;
    const float *part = a.part + (size_t)row * (size_t)a.n_unit * step + (size_t)head * width;
    int column = (int)blockIdx.z * THREADS + tid;
    bool is_there = column < a.n_v;
    float m = -INFINITY, l = 0, total = 0;
    for (int u0 = 0; u0 < n_unit; u0 += THREADS, part += THREADS * step) {
        int n = min(THREADS, n_unit - u0);
        __syncthreads(); // the units before have been used
        float own = tid < n ? part[(size_t)tid * step] : -INFINITY;
        top[tid] = own;
        if (tid < n) sum[tid] = part[(size_t)tid * step + 1];
        for (int reach = 1; reach < n; reach *= 2) { // of all units up to this one
            __syncthreads();
            float before = tid >= reach ? top[tid - reach] : -INFINITY;
            __syncthreads();
            top[tid] = fmaxf(top[tid], before);
        }
        __syncthreads();
        float last = fmaxf(m, tid > 0 ? top[tid - 1] : -INFINITY), best = fmaxf(m, top[tid]);
        old[tid] = expf(last - best);
        now[tid] = expf(own - best);
        m = fmaxf(m, top[n - 1]);
        __syncthreads();
#pragma unroll 16
        for (int u = 0; u < n; u++) {
            float v = is_there ? part[(size_t)u * step + 2 + (size_t)column] : 0;
            l = merged(l, old[u], sum[u], now[u]);
            total = merged(total, old[u], v, now[u]);
        }
    }
    if (!is_there) return;
    float inverse = 1.0f / l;
    a.out[((size_t)row * (size_t)a.n_head + (size_t)head) * (size_t)a.n_v + (size_t)column] =
        total * inverse;
}

extern "C" size_t hd_cuda_attn_shared(enum hd_kv_type kv, int n_key, int n_v, bool is_latent) {
    bool is_two = kv == HD_KV_F16 || kv == HD_KV_INT8;
    int nk = kv == HD_KV_F32 ? 3 : is_two ? 2 : 1, nq = kv == HD_KV_F32 ? 3 : 2;
    return (size_t)lay_out(nq, nk, n_key, n_v, is_latent).end * 2;
}

template <int T, int NV> static void launch_attn(const hd_cuda_attn *a, cudaStream_t stream) {
    int each = a->n_head / a->n_head_kv, n_tile = (each + HEADS - 1) / HEADS;
    size_t shared = hd_cuda_attn_shared(a->kv.type, a->n_key, a->n_v, a->keys == a->values);
    dim3 grid((unsigned)a->n_row, (unsigned)(a->n_head_kv * n_tile),
              (unsigned)(a->part != nullptr ? a->n_unit : 1));
    auto kernel = attend<T, NV>;
    HD_LAUNCH(kernel, grid, THREADS, shared, stream, *a);
}

extern "C" void hd_cuda_run_attn(const hd_cuda_attn *a, cudaStream_t stream) {
    bool is_wide = a->n_v > 128;
    switch (a->kv.type) {
#define ROW(T)                                                                                     \
    case T: (is_wide ? launch_attn<T, 16> : launch_attn<T, 4>)(a, stream); break;
        ROW(HD_KV_F32)
        ROW(HD_KV_F16)
        ROW(HD_KV_BF16)
        ROW(HD_KV_FP8)
        ROW(HD_KV_INT8)
#undef ROW
    default: break; // hd_dev_ops.supports_kv was asked
    }
    if (a->part != nullptr) {
        dim3 grid((unsigned)a->n_row, (unsigned)a->n_head,
                  (unsigned)((a->n_v + THREADS - 1) / THREADS));
        HD_LAUNCH(merge_units, grid, THREADS, 0, stream, *a);
    }
}
