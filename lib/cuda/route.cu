// Routing: which experts a row takes, and rows by expert.
//
// One kernel norms rows, computes their scores and chooses: blocks of eight experts for a group of
// up to eight rows; the block of a group that ends last has every score. When there is one group
// only, that block sorts, too. Scores are float32 sums in one order for any number of rows.
#include "cuda/decode.cuh"
#include "cuda/norm.cuh"

constexpr int WARP = 32;
constexpr float NONE = -INFINITY;

static __device__ __forceinline__ int lane_of(void) { return (int)threadIdx.x % WARP; }

// ---- which experts: a warp a row ----

enum : unsigned char { OPEN, CLOSED, TAKEN }; // CLOSED: of a group that was not chosen

// NaN counts as minus infinity, so that a choice always exists.
static __device__ __forceinline__ float key_of(float score) {
    return score != score ? NONE : score;
}

struct best {
    float key;
    int ix;
};
static __device__ __forceinline__ bool beats(best a, best b) {
    return a.key > b.key || (a.key == b.key && a.ix < b.ix);
}

// The best of key[0..n) in this state, ties to the lower index; ix INT_MAX: there is none.
static __device__ best find_best(const float *key, const unsigned char *state, int n,
                                 unsigned char wanted) {
    best b = {NONE, INT_MAX};
    for (int i = lane_of(); i < n; i += WARP) {
        best c = {key[i], i};
        if (state[i] == wanted && beats(c, b)) b = c;
    }
    for (int mask = WARP / 2; mask > 0; mask /= 2) {
        best c = {shuffle_xor(b.key, mask), shuffle_xor(b.ix, mask)};
        if (beats(c, b)) b = c;
    }
    return b;
}

static __device__ void mark(unsigned char *state, int ix, unsigned char as) {
    warp_barrier(); // everybody has read
    if (lane_of() == 0) state[ix] = as;
    warp_barrier();
}

static __device__ float warp_max(float v) {
    for (int mask = WARP / 2; mask > 0; mask /= 2) v = fmaxf(v, shuffle_xor(v, mask));
    return v;
}
static __device__ float sum_of_warp(float v) {
    for (int mask = WARP / 2; mask > 0; mask /= 2) v += shuffle_xor(v, mask);
    return v;
}

static __device__ void softmax(float *s, int n) {
    float top = NONE, sum = 0;
    for (int i = lane_of(); i < n; i += WARP) top = fmaxf(top, s[i]);
    top = warp_max(top);
    for (int i = lane_of(); i < n; i += WARP) {
        s[i] = expf(s[i] - top);
        sum += s[i];
    }
    sum = sum_of_warp(sum);
    for (int i = lane_of(); i < n; i += WARP) s[i] /= sum;
}

// Closes the experts of the groups that are not among the best.
static __device__ void close_groups(const struct hd_op_route &a, const float *key, float *group,
                                    unsigned char *group_state, unsigned char *state) {
    int size = a.n_expert / a.n_group;
    for (int g = lane_of(); g < a.n_group; g += WARP) {
        float first = NONE, second = NONE;
        for (int i = 0; i < size; i++) {
            float k = key[g * size + i];
            if (k > first) {
                second = first;
                first = k;
            } else if (k > second) {
                second = k;
            }
        }
        group[g] = key_of(a.group_rule == HD_GROUP_MAX || size < 2 ? first : first + second);
        group_state[g] = OPEN;
    }
    warp_barrier();
    for (int i = 0; i < a.n_group_used; i++)
        mark(group_state, find_best(group, group_state, a.n_group, OPEN).ix, TAKEN);
    for (int e = lane_of(); e < a.n_expert; e += WARP)
        if (group_state[e / size] != TAKEN) state[e] = CLOSED;
    warp_barrier();
}

// What a warp needs for N experts.
template <int N> struct choice {
    float score[N], group[N];
    union {
        float key[N];
        int pick[N]; // instead, when they have been chosen
    };
    unsigned char state[N], group_state[N];
};

// c.pick has the row's experts afterwards, too.
template <int N>
static __device__ void choose(const struct hd_op_route &a, size_t row, const float *product,
                              choice<N> &c) {
    int lane = lane_of();
    for (int e = lane; e < a.n_expert; e += WARP)
        c.score[e] = __ldcg(product + row * (size_t)a.n_expert + (size_t)e);
    warp_barrier();
    if (a.gating == HD_GATING_SOFTMAX)
        softmax(c.score, a.n_expert);
    else
        for (int e = lane; e < a.n_expert; e += WARP)
            c.score[e] = 1.0f / (1.0f + expf(-c.score[e]));
    for (int e = lane; e < a.n_expert; e += WARP) {
        c.key[e] = key_of(c.score[e] + (a.bias != nullptr ? a.bias[e] : 0));
        c.state[e] = OPEN;
    }
    warp_barrier();
    if (a.n_group > 1 && a.n_group_used < a.n_group)
        close_groups(a, c.key, c.group, c.group_state, c.state);
    for (int i = 0; i < a.n_used; i++) {
        best b = find_best(c.key, c.state, a.n_expert, OPEN);
        if (b.ix == INT_MAX) b = find_best(c.key, c.state, a.n_expert, CLOSED);
        mark(c.state, b.ix, TAKEN);
    }
    int32_t *expert = a.expert + row * (size_t)a.n_used;
    float *weight = a.weight + row * (size_t)a.n_used, sum = 0;
    int n = 0;
    for (int e0 = 0; e0 < a.n_expert; e0 += WARP) { // ascending
        bool is_taken = e0 + lane < a.n_expert && c.state[e0 + lane] == TAKEN;
        uint32_t taken = warp_ballot(is_taken);
        int at = n + __popc(taken & ((1u << lane) - 1));
        if (is_taken) {
            expert[at] = c.pick[at] = e0 + lane;
            c.group[at] = c.score[e0 + lane]; // groups have been used
        }
        for (uint32_t left = taken; left != 0; left &= left - 1)
            sum += c.score[e0 + __ffs((int)left) - 1];
        n += __popc(taken);
    }
    warp_barrier();
    for (int i = lane; i < a.n_used; i += WARP) {
        float w = c.group[i];
        if (a.normalise) w /= sum + 1e-20f;
        weight[i] = w * a.scale;
    }
}

static __global__ void __launch_bounds__(WARP)
    select_experts(const struct hd_op_route a, const float *product) {
    __shared__ choice<HD_CUDA_EXPERT_MAX> c;
    let_next_start();
    wait_for_previous();
    choose(a, blockIdx.x, product, c);
}

extern "C" void hd_cuda_run_select(const struct hd_op_route *args, const float *score,
                                   cudaStream_t stream) {
    HD_LAUNCH_EARLY(select_experts, dim3((unsigned)args->n_row), WARP, 0, stream, *args, score);
}

// ---- rows by expert ----

// The sum of v over threads 0 .. threadIdx.x; every thread of the block calls it.
static __device__ int running_sum(int v) {
    __shared__ int of_warp[WARP];
    int lane = lane_of(), warp = (int)threadIdx.x / WARP;
    for (int step = 1; step < WARP; step *= 2) {
        int before = __shfl_up_sync(0xffffffffu, v, step);
        if (lane >= step) v += before;
    }
    __syncthreads(); // the last use is over
    if (lane == WARP - 1) of_warp[warp] = v;
    __syncthreads();
    for (int i = 0; i < warp; i++) v += of_warp[i];
    return v;
}

constexpr int PICKS = 2048; // at a time in shared memory

// pick(i): a.expert[i], which may lie nearer, too. A block of at least as many threads as experts.
// Experts are counted by whole warps, which look at 32 picks at a time.
template <typename P> static __device__ void sort_picks(const hd_cuda_sort &a, P pick) {
    __shared__ int chosen[PICKS], count[HD_CUDA_EXPERT_MAX], slot[HD_CUDA_EXPERT_MAX];
    int tid = (int)threadIdx.x, n_thread = (int)blockDim.x, n_pick = a.n_row * a.n_used;
    int lane = lane_of(), warp = tid / WARP, n_warp = n_thread / WARP;
    for (int e = tid; e < a.n_expert; e += n_thread) count[e] = 0;
    for (int i0 = 0; i0 < n_pick; i0 += PICKS) {
        int n = min(PICKS, n_pick - i0);
        __syncthreads();
        for (int i = tid; i < n; i += n_thread) {
            int e = pick(i0 + i) - a.expert0;
            if (e >= 0 && e < a.n_expert)
                atomicAdd(&count[e], 1);
            else
                a.slot_of[i0 + i] = -1;
        }
    }
    __syncthreads();
    int own = tid < a.n_expert ? count[tid] : 0, first = running_sum(own) - own;
    int n_tile = (own + a.tile_rows - 1) / a.tile_rows, tile0 = running_sum(n_tile) - n_tile;
    if (tid == n_thread - 1) *a.n_tile = tile0 + n_tile;
    for (int i = 0; i < n_tile; i++)
        a.tile[tile0 + i] = {tid, first + i * a.tile_rows, min(a.tile_rows, own - i * a.tile_rows)};
    if (tid < a.n_expert) slot[tid] = first;
    for (int i0 = 0; i0 < n_pick; i0 += PICKS) {
        int n = min(PICKS, n_pick - i0);
        __syncthreads();
        for (int i = tid; i < n; i += n_thread) chosen[i] = pick(i0 + i) - a.expert0;
        __syncthreads();
        for (int e = warp; e < a.n_expert; e += n_warp) {
            if (count[e] == 0) continue;
            int next = slot[e];
            for (int i = lane; i - lane < n; i += WARP) {
                bool is_own = i < n && chosen[i] == e;
                uint32_t all = warp_ballot(is_own);
                int at = next + __popc(all & ((1u << lane) - 1));
                next += __popc(all);
                if (!is_own) continue;
                a.row_of[at] = (i0 + i) / a.n_used;
                a.slot_of[i0 + i] = at;
            }
            warp_barrier();
            if (lane == 0) slot[e] = next;
        }
    }
}

static __global__ void __launch_bounds__(HD_CUDA_EXPERT_MAX) sort_rows(const hd_cuda_sort a) {
    let_next_start();
    wait_for_previous();
    sort_picks(a, [&](int i) { return a.expert[i]; });
}

extern "C" void hd_cuda_run_sort(const hd_cuda_sort *a, cudaStream_t stream) {
    HD_LAUNCH_EARLY(sort_rows, dim3(1), HD_CUDA_EXPERT_MAX, 0, stream, *a);
}

// ---- norm, scores and choice ----

constexpr int GROUP = 8; // rows, and experts, of a block

struct route_args {
    struct hd_op_route a;
    hd_cuda_mat router;
    float *score;      // [n_row, n_expert]
    unsigned *n_ended; // [groups] blocks of a group that ended; 0 before and after
    hd_cuda_sort sort; // of a single group
    int group_rows;
};

// Weights of one expert, a quarter of 2048 at a time: lane l has eight of every 256.
constexpr int ROUTE_AHEAD = 4;
template <int F>
static __device__ __forceinline__ void load_weights(const unsigned char *row, int k, int n,
                                                    float w[ROUTE_AHEAD][8]) {
#pragma unroll
    for (int u = 0; u < ROUTE_AHEAD; u++) {
        int at = k + 256 * u + 8 * lane_of();
        if (at < n) values8<F>(row, at, w[u]);
    }
}

template <int ROWS>
static __device__ __forceinline__ void add_products(const float w[ROUTE_AHEAD][8], const float *x,
                                                    int k, int n, int n_row, float sum[ROWS]) {
#pragma unroll
    for (int u = 0; u < ROUTE_AHEAD; u++) {
        int at = k + 256 * u + 8 * lane_of();
        if (at >= n) break;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r >= n_row) break;
            float v[8];
            load8(x + (size_t)r * (size_t)n, at, v);
#pragma unroll
            for (int e = 0; e < 8; e++) sum[r] += w[u][e] * v[e];
        }
    }
}

// The group's rows normed, to shared memory and, a row a block, to a.normed. Loads of all rows are
// on their way at a time.
template <int ROWS>
static __device__ __forceinline__ void norm_group(const struct hd_op_route &a, int row0, int n_row,
                                                  float *normed) {
    __shared__ float warp_sum[ROWS][256 / 32];
    int n = a.d_model;
    const float *x = a.x + (size_t)row0 * (size_t)n;
    float sum[ROWS] = {};
    for (int k = (int)threadIdx.x * 8; k < n; k += 256 * 8) {
        float v[ROWS][8];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            load_any8(x + (size_t)min(r, n_row - 1) * (size_t)n, k, n, v[r]);
#pragma unroll
        for (int r = 0; r < ROWS; r++) add_squares(v[r], &sum[r]);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) put_warp_sum(sum[r], warp_sum[r]);
    __syncthreads();
    for (int k = (int)threadIdx.x * 8; k < n; k += 256 * 8) {
        float v[ROWS][8], weight[8];
        load_any8(a.norm, k, n, weight);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            load_any8(x + (size_t)min(r, n_row - 1) * (size_t)n, k, n, v[r]);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r >= n_row) break;
            float inverse = inverse_of(warp_sum[r], n, a.eps);
#pragma unroll
            for (int e = 0; e < 8; e++) v[r][e] = weight[e] * (v[r][e] * inverse);
            size_t at = (size_t)r * (size_t)n;
            store_any8(normed + at, k, n, v[r]);
            if (r % (int)gridDim.x == (int)blockIdx.x)
                store_any8(a.normed + (size_t)row0 * (size_t)n + at, k, n, v[r]);
        }
    }
    __syncthreads();
}

// ROWS: 1, or GROUP where a group has more.
template <int F, int ROWS>
static __global__ void __launch_bounds__(256) route_rows(const __grid_constant__ route_args p) {
    HD_DYNAMIC_SHARED(shared);
    __shared__ choice<HD_CUDA_ROUTE_EXPERTS> c[ROWS];
    __shared__ bool is_last;
    const struct hd_op_route &a = p.a;
    float *normed = (float *)shared; // [rows, d_model]
    int tid = (int)threadIdx.x, warp = tid / WARP, n = a.d_model;
    int row0 = (int)blockIdx.y * p.group_rows, n_row = min(p.group_rows, a.n_row - row0);
    int expert = min((int)blockIdx.x * GROUP + warp, a.n_expert - 1);
    const unsigned char *w = p.router.data + (size_t)expert * p.router.row_bytes;
    float near[ROUTE_AHEAD][8], far[ROUTE_AHEAD][8];
    let_next_start();
    load_weights<F>(w, 0, n, near);
    load_weights<F>(w, 256 * ROUTE_AHEAD, n, far);
    wait_for_previous();
    norm_group<ROWS>(a, row0, n_row, normed);
    float sum[ROWS] = {};
    for (int k = 0; k < n; k += 512 * ROUTE_AHEAD) {
        add_products<ROWS>(near, normed, k, n, n_row, sum);
        load_weights<F>(w, k + 512 * ROUTE_AHEAD, n, near);
        add_products<ROWS>(far, normed, k + 256 * ROUTE_AHEAD, n, n_row, sum);
        load_weights<F>(w, k + 768 * ROUTE_AHEAD, n, far);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (r >= n_row) break;
        float all = sum_of_warp(sum[r]);
        if (lane_of() == 0 && (int)blockIdx.x * GROUP + warp < a.n_expert)
            p.score[(size_t)(row0 + r) * (size_t)a.n_expert + (size_t)expert] = all;
    }
    __threadfence();
    __syncthreads();
    if (tid == 0) is_last = atomicAdd(&p.n_ended[blockIdx.y], 1u) == gridDim.x - 1;
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    if (tid == 0) p.n_ended[blockIdx.y] = 0;
    if (warp < n_row) choose(a, (size_t)(row0 + warp), p.score, c[warp]);
    if (gridDim.y > 1) return;
    __syncthreads();
    sort_picks(p.sort, [&](int i) { return c[i / a.n_used].pick[i % a.n_used]; });
}

// Rows of a group; 0: none has room.
static int group_rows(const struct hd_op_route *a) {
    int n = 98304 / (a->d_model * (int)sizeof(float));
    return n < GROUP ? n : GROUP;
}

template <int F> static void launch_route(const route_args *p, cudaStream_t stream) {
    const struct hd_op_route *a = &p->a;
    int n_row = a->n_row < p->group_rows ? a->n_row : p->group_rows;
    auto kernel = n_row == 1 ? route_rows<F, 1> : route_rows<F, GROUP>;
    size_t shared = (size_t)n_row * (size_t)a->d_model * sizeof(float);
    dim3 grid((unsigned)((a->n_expert + GROUP - 1) / GROUP),
              (unsigned)((a->n_row + p->group_rows - 1) / p->group_rows));
    HD_LAUNCH_EARLY(kernel, grid, 256, shared, stream, *p);
}

extern "C" bool hd_cuda_can_route(const struct hd_op_route *a, enum hd_format router) {
    bool is_plain = router == HD_F32 || router == HD_F16 || router == HD_BF16;
    return is_plain && a->n_expert <= HD_CUDA_ROUTE_EXPERTS && a->d_model % 8 == 0 &&
           group_rows(a) > 0;
}

extern "C" int hd_cuda_route_groups(const struct hd_op_route *a) {
    return (a->n_row + group_rows(a) - 1) / group_rows(a);
}

extern "C" void hd_cuda_run_route(const struct hd_op_route *a, const hd_cuda_mat *router,
                                  float *score, unsigned *n_ended, const hd_cuda_sort *sort,
                                  cudaStream_t stream) {
    if (a->n_row == 0) return;
    route_args p = {*a, *router, score, n_ended, *sort, group_rows(a)};
    switch (router->format) {
    case HD_F32: launch_route<HD_F32>(&p, stream); break;
    case HD_F16: launch_route<HD_F16>(&p, stream); break;
    default: launch_route<HD_BF16>(&p, stream);
    }
}
