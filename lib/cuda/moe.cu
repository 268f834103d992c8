// Routing, rows by expert, and the sum of a row's experts.
#include "cuda/device.cuh"

constexpr int WARP = 32;
constexpr float NONE = -INFINITY;

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
    for (int i = (int)threadIdx.x; i < n; i += WARP) {
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
    if (threadIdx.x == 0) state[ix] = as;
    warp_barrier();
}

static __device__ float warp_max(float v) {
    for (int mask = WARP / 2; mask > 0; mask /= 2) v = fmaxf(v, shuffle_xor(v, mask));
    return v;
}
static __device__ float warp_sum(float v) {
    for (int mask = WARP / 2; mask > 0; mask /= 2) v += shuffle_xor(v, mask);
    return v;
}

static __device__ void softmax(float *s, int n) {
    float top = NONE, sum = 0;
    for (int i = (int)threadIdx.x; i < n; i += WARP) top = fmaxf(top, s[i]);
    top = warp_max(top);
    for (int i = (int)threadIdx.x; i < n; i += WARP) {
        s[i] = expf(s[i] - top);
        sum += s[i];
    }
    sum = warp_sum(sum);
    for (int i = (int)threadIdx.x; i < n; i += WARP) s[i] /= sum;
}

// Closes the experts of the groups that are not among the best.
static __device__ void close_groups(const struct hd_op_route &a, const float *key, float *group,
                                    unsigned char *group_state, unsigned char *state) {
    int size = a.n_expert / a.n_group;
    for (int g = (int)threadIdx.x; g < a.n_group; g += WARP) {
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
    for (int e = (int)threadIdx.x; e < a.n_expert; e += WARP)
        if (group_state[e / size] != TAKEN) state[e] = CLOSED;
    warp_barrier();
}

static __global__ void __launch_bounds__(WARP)
    select_experts(const struct hd_op_route a, const float *product) {
    __shared__ float score[HD_CUDA_EXPERT_MAX], key[HD_CUDA_EXPERT_MAX], group[HD_CUDA_EXPERT_MAX];
    __shared__ unsigned char state[HD_CUDA_EXPERT_MAX], group_state[HD_CUDA_EXPERT_MAX];
    int lane = (int)threadIdx.x;
    size_t row = blockIdx.x;
    for (int e = lane; e < a.n_expert; e += WARP)
        score[e] = product[row * (size_t)a.n_expert + (size_t)e];
    warp_barrier();
    if (a.gating == HD_GATING_SOFTMAX)
        softmax(score, a.n_expert);
    else
        for (int e = lane; e < a.n_expert; e += WARP) score[e] = 1.0f / (1.0f + expf(-score[e]));
    for (int e = lane; e < a.n_expert; e += WARP) {
        key[e] = key_of(score[e] + (a.bias != nullptr ? a.bias[e] : 0));
        state[e] = OPEN;
    }
    warp_barrier();
    if (a.n_group > 1 && a.n_group_used < a.n_group)
        close_groups(a, key, group, group_state, state);
    for (int i = 0; i < a.n_used; i++) {
        best b = find_best(key, state, a.n_expert, OPEN);
        if (b.ix == INT_MAX) b = find_best(key, state, a.n_expert, CLOSED);
        mark(state, b.ix, TAKEN);
    }
    int32_t *expert = a.expert + row * (size_t)a.n_used;
    float *weight = a.weight + row * (size_t)a.n_used, sum = 0;
    int n = 0;
    for (int e0 = 0; e0 < a.n_expert; e0 += WARP) { // ascending
        bool is_taken = e0 + lane < a.n_expert && state[e0 + lane] == TAKEN;
        uint32_t taken = warp_ballot(is_taken);
        int at = n + __popc(taken & ((1u << lane) - 1));
        if (is_taken) {
            expert[at] = e0 + lane;
            weight[at] = score[e0 + lane];
        }
        for (uint32_t left = taken; left != 0; left &= left - 1)
            sum += score[e0 + __ffs((int)left) - 1];
        n += __popc(taken);
    }
    warp_barrier();
    for (int i = lane; i < a.n_used; i += WARP) {
        float w = weight[i];
        if (a.normalise) w /= sum + 1e-20f;
        weight[i] = w * a.scale;
    }
}

extern "C" void hd_cuda_run_select(const struct hd_op_route *args, const float *score,
                                   cudaStream_t stream) {
    HD_LAUNCH(select_experts, (unsigned)args->n_row, WARP, 0, stream, *args, score);
}

// ---- rows by expert: one block, a thread an expert ----

static __device__ int running_sum(int *v, int n) { // of v[0..threadIdx.x]; n threads
    int tid = (int)threadIdx.x;
    for (int step = 1; step < n; step *= 2) {
        __syncthreads();
        int before = tid >= step ? v[tid - step] : 0;
        __syncthreads();
        v[tid] += before;
    }
    __syncthreads();
    return v[tid];
}

static __global__ void __launch_bounds__(HD_CUDA_EXPERT_MAX) sort_rows(const hd_cuda_sort a) {
    __shared__ int chosen[HD_CUDA_EXPERT_MAX], sum[HD_CUDA_EXPERT_MAX];
    int e = (int)threadIdx.x, n_thread = (int)blockDim.x, n_pick = a.n_row * a.n_used, count = 0;
    for (int i0 = 0; i0 < n_pick; i0 += n_thread) {
        if (i0 + e < n_pick) {
            int mine = a.expert[i0 + e] - a.expert0;
            chosen[e] = mine >= 0 && mine < a.n_expert ? mine : -1;
            if (chosen[e] < 0) a.slot_of[i0 + e] = -1;
        }
        __syncthreads();
        int n = min(n_thread, n_pick - i0);
        for (int i = 0; i < n; i++) count += chosen[i] == e;
        __syncthreads();
    }
    sum[e] = count;
    int slot = running_sum(sum, n_thread) - count, first = slot;
    __syncthreads();
    int n_tile = (count + a.tile_rows - 1) / a.tile_rows;
    sum[e] = n_tile;
    int end = running_sum(sum, n_thread), tile0 = end - n_tile;
    if (e == n_thread - 1) *a.n_tile = end;
    for (int i = 0; i < n_tile; i++)
        a.tile[tile0 + i] = {e, first + i * a.tile_rows, min(a.tile_rows, count - i * a.tile_rows)};
    for (int i0 = 0; i0 < n_pick; i0 += n_thread) {
        if (i0 + e < n_pick) chosen[e] = a.expert[i0 + e] - a.expert0;
        __syncthreads();
        int n = min(n_thread, n_pick - i0);
        for (int i = 0; i < n; i++) {
            if (chosen[i] != e || e >= a.n_expert) continue;
            a.row_of[slot] = (i0 + i) / a.n_used;
            a.slot_of[i0 + i] = slot++;
        }
        __syncthreads();
    }
}

extern "C" void hd_cuda_run_sort(const hd_cuda_sort *a, cudaStream_t stream) {
    int n_thread = (a->n_expert + WARP - 1) / WARP * WARP;
    HD_LAUNCH(sort_rows, 1, (unsigned)n_thread, 0, stream, *a);
}

// ---- the sum ----

static __global__ void __launch_bounds__(256) combine_rows(const hd_cuda_combine a) {
    size_t row = blockIdx.x, n = (size_t)a.n;
    const int32_t *slot = a.slot_of + row * (size_t)a.n_used;
    const float *weight = a.weight + row * (size_t)a.n_used;
    size_t i = (size_t)blockIdx.y * 256 + threadIdx.x;
    if (i >= n) return;
    float sum = 0;
#pragma unroll 8
    for (int k = 0; k < a.n_used; k++)
        if (slot[k] >= 0) sum += weight[k] * a.y[(size_t)slot[k] * n + i];
    if (a.shared != nullptr) sum += a.shared[row * n + i];
    a.x[row * n + i] = a.is_partial ? sum : a.x[row * n + i] + sum;
}

extern "C" void hd_cuda_run_combine(const hd_cuda_combine *a, cudaStream_t stream) {
    dim3 grid((unsigned)a->n_row, (unsigned)((a->n + 255) / 256));
    HD_LAUNCH(combine_rows, grid, 256, 0, stream, *a);
}
