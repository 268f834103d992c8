// A token for each row of logits, one block a row: dev/draw.h is the definition, and numbers are
// equal to the host's bit for bit. Nothing is sorted: the bins of candidates tell in which one a
// cut falls, and the digits of its members' logits tell after which of them.
#include "cuda/device.cuh"
#include "dev/draw.h"

constexpr int THREADS = 1024, WARPS = THREADS / 32, SLOTS = 2 * THREADS;
static_assert(HD_DRAW_BINS <= SLOTS, "a thread scans two slots");

typedef unsigned long long u64;

struct shared_memory {
    int n_in[SLOTS]; // candidates of a bin or digit
    u64 mass_in[SLOTS];
    int warp_n[WARPS];
    u64 warp_mass[WARPS];
    // The slot in which the bound is reached: how much lies before it, and in it.
    int slot, n_before, n_at;
    u64 mass_before, mass_at;
    int32_t token;
};

// What is left of a row after cuts: keys above `key`, and of those equal the first n_tie by id.
struct kept {
    uint32_t key;
    int n_tie;
    u64 sum;
};

struct row_of_logits {
    const float *logit;
    const uint8_t *is_token;
    int n;
    float max;
    hd_draw how;
};

// Keys are ordered as the logits are; both zeros have one key.
static __device__ __forceinline__ uint32_t key_of(float logit) {
    uint32_t bits = __float_as_uint(__fadd_rn(logit, 0.0f));
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

static __device__ __forceinline__ u64 shuffle_up(u64 v, int by) {
    return __shfl_up_sync(0xffffffffu, v, by);
}

// Inclusive sums over the lanes of a warp.
static __device__ __forceinline__ void scan_warp(int &n, u64 &mass) {
    int lane = threadIdx.x % 32;
    for (int by = 1; by < 32; by *= 2) {
        int n_up = __shfl_up_sync(0xffffffffu, n, by);
        u64 mass_up = shuffle_up(mass, by);
        if (lane >= by) n += n_up, mass += mass_up;
    }
}

// What the warps before this one hold, and all of them; n and mass: this thread's. Inclusive sums
// of the warp stay in n and mass.
static __device__ void scan_block(shared_memory *s, int &n, u64 &mass, int *n_before,
                                  u64 *mass_before, u64 *mass_all) {
    scan_warp(n, mass);
    __syncthreads();
    if (threadIdx.x % 32 == 31)
        s->warp_n[threadIdx.x / 32] = n, s->warp_mass[threadIdx.x / 32] = mass;
    __syncthreads();
    *n_before = 0, *mass_before = 0, *mass_all = 0;
    for (int w = 0; w < WARPS; w++) {
        if (w < (int)threadIdx.x / 32) *n_before += s->warp_n[w], *mass_before += s->warp_mass[w];
        *mass_all += s->warp_mass[w];
    }
}

// Finds the slot in which the bound is reached, (n0, mass0) lying before the first one; slot is -1
// when it is not. Returns the mass of all slots.
static __device__ u64 find_slot(shared_memory *s, hd_draw_bound bound, int n0, u64 mass0) {
    int at = 2 * threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) s->slot = -1;
    int n_in[2] = {s->n_in[at], s->n_in[at + 1]};
    u64 mass_in[2] = {s->mass_in[at], s->mass_in[at + 1]};
    int n = n_in[0] + n_in[1], n_before;
    u64 mass = mass_in[0] + mass_in[1], mass_before, mass_all;
    scan_block(s, n, mass, &n_before, &mass_before, &mass_all);
    n += n0 + n_before - n_in[0] - n_in[1];
    mass += mass0 + mass_before - mass_in[0] - mass_in[1];
    for (int i = 0; i < 2; i++) {
        bool is_open = n == 0 || !hd_draw_is_reached(bound, n, mass);
        if (n_in[i] > 0 && is_open && hd_draw_is_reached(bound, n + n_in[i], mass + mass_in[i])) {
            s->slot = at + i;
            s->n_before = n, s->mass_before = mass;
            s->n_at = n_in[i], s->mass_at = mass_in[i];
        }
        n += n_in[i], mass += mass_in[i];
    }
    __syncthreads();
    return mass_all;
}

static __device__ void clear_slots(shared_memory *s) {
    __syncthreads();
    for (int i = threadIdx.x; i < SLOTS; i += THREADS) s->n_in[i] = 0, s->mass_in[i] = 0;
    __syncthreads();
}

// Whether id i is a candidate; *x is its place below the best.
static __device__ __forceinline__ bool get_candidate(const row_of_logits &r, int i, float *x) {
    if (r.is_token[i] == 0) return false;
    *x = hd_draw_x(r.logit[i], r.max, r.how.temperature);
    return hd_draw_is_candidate(*x, r.how.min_x);
}

static __device__ void fill_bins(const row_of_logits &r, shared_memory *s) {
    clear_slots(s);
    for (int i = threadIdx.x; i < r.n; i += THREADS) {
        float x;
        if (!get_candidate(r, i, &x)) continue;
        atomicAdd(&s->n_in[hd_draw_bin(x)], 1);
        atomicAdd(&s->mass_in[hd_draw_bin(x)], (u64)hd_draw_weight(x));
    }
}

// Members of `bin` whose key begins with `prefix`, by the 8 bits at `shift`, largest first.
static __device__ void fill_digits(const row_of_logits &r, shared_memory *s, int bin,
                                   uint32_t prefix, int shift) {
    clear_slots(s);
    for (int i = threadIdx.x; i < r.n; i += THREADS) {
        float x;
        if (!get_candidate(r, i, &x) || hd_draw_bin(x) != bin) continue;
        uint32_t key = key_of(r.logit[i]);
        if (shift < 24 && key >> (shift + 8) != prefix) continue;
        int digit = 255 - (int)(key >> shift & 255);
        atomicAdd(&s->n_in[digit], 1);
        atomicAdd(&s->mass_in[digit], (u64)hd_draw_weight(x));
    }
}

// Cuts where the bound is reached; the bins are filled, and stay so when it is not.
static __device__ kept cut(const row_of_logits &r, shared_memory *s, hd_draw_bound bound) {
    kept all = {.key = 0, .n_tie = 0, .sum = find_slot(s, bound, 0, 0)};
    int bin = s->slot;
    if (bin < 0) return all;
    uint32_t key = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int n = s->n_before;
        u64 mass = s->mass_before;
        fill_digits(r, s, bin, key, shift);
        find_slot(s, bound, n, mass);
        key = key << 8 | (uint32_t)(255 - s->slot);
    }
    u64 weight = s->mass_at / (u64)s->n_at; // equal logits, equal weights
    int low = 1, high = s->n_at;            // the least number with which the bound is reached
    while (low < high) {
        int mid = (low + high) / 2;
        if (hd_draw_is_reached(bound, s->n_before + mid, s->mass_before + (u64)mid * weight))
            high = mid;
        else
            low = mid + 1;
    }
    return {.key = key, .n_tie = low, .sum = s->mass_before + (u64)low * weight};
}

static __device__ kept cut_all(const row_of_logits &r, shared_memory *s) {
    int n_max = r.how.top_k > 0 ? r.how.top_k : INT_MAX;
    fill_bins(r, s);
    kept k = cut(r, s, {.n_max = n_max, .top_p = 1, .sum = 0});
    if (!(r.how.top_p < 1)) return k;
    if (k.n_tie > 0) fill_bins(r, s);
    return cut(r, s, {.n_max = n_max, .top_p = r.how.top_p, .sum = k.sum});
}

static __device__ __forceinline__ bool is_tied(const row_of_logits &r, const kept &k, int i) {
    float x;
    return i < r.n && get_candidate(r, i, &x) && key_of(r.logit[i]) == k.key;
}

// Of 32 ids, one a lane: the weight of this lane's when it is kept; n_tie counts down.
static __device__ __forceinline__ u64 kept_weight(const row_of_logits &r, const kept &k, int i,
                                                  int *n_tie) {
    float x = 0;
    bool is_in = i < r.n && get_candidate(r, i, &x);
    uint32_t key = is_in ? key_of(r.logit[i]) : 0;
    bool is_tie = is_in && key == k.key;
    uint32_t ties = warp_ballot(is_tie);
    int rank = __popc(ties & ((1u << threadIdx.x % 32) - 1));
    is_in = is_in && (key > k.key || (is_tie && rank < *n_tie));
    *n_tie = max(0, *n_tie - __popc(ties));
    return is_in ? (u64)hd_draw_weight(x) : 0;
}

// The first id at which the sum over what is kept exceeds the target. Each warp has a run of ids.
static __device__ int32_t draw(const row_of_logits &r, shared_memory *s, kept k) {
    int lane = threadIdx.x % 32, run = (r.n + THREADS - 1) / THREADS * 32;
    int first = (int)threadIdx.x / 32 * run, n = 0, n_before = 0;
    u64 mass = 0, mass_before, mass_all;
    if (k.n_tie > 0) { // how many of the ties other warps take
        for (int i = first; i < first + run; i += 32) n += is_tied(r, k, i + lane);
        scan_block(s, n, mass, &n_before, &mass_before, &mass_all);
    }
    const int n_tie = max(0, k.n_tie - n_before);
    int left = n_tie;
    mass = 0, n = 0;
    for (int i = first; i < first + run; i += 32) mass += kept_weight(r, k, i + lane, &left);
    scan_block(s, n, mass, &n_before, &mass_before, &mass_all);
    u64 target = hd_draw_target(r.how.u, mass_all), below = mass_before;
    bool is_mine = below <= target && target < below + s->warp_mass[threadIdx.x / 32];
    left = n_tie;
    for (int i = first; is_mine && i < first + run; i += 32) {
        u64 upto = kept_weight(r, k, i + lane, &left);
        scan_warp(n, upto);
        uint32_t above = warp_ballot(below + upto > target);
        if (above != 0) {
            if (lane == 0) s->token = i + __ffs((int)above) - 1;
            break;
        }
        below += __shfl_sync(0xffffffffu, upto, 31);
    }
    __syncthreads();
    return s->token;
}

// The id of the largest logit, the lowest of equal ones; -1: none, or a value is not finite.
static __device__ int32_t best_of(const row_of_logits &r, shared_memory *s) {
    u64 best = 0;
    bool is_bad = false;
#pragma unroll 4
    for (int i = threadIdx.x; i < r.n; i += THREADS) {
        is_bad |= !isfinite(r.logit[i]);
        u64 ranked = (u64)key_of(r.logit[i]) << 32 | (uint32_t)~i;
        if (r.is_token[i] != 0 && ranked > best) best = ranked;
    }
    for (int by = 16; by > 0; by /= 2) {
        u64 other = __shfl_xor_sync(0xffffffffu, best, by);
        if (other > best) best = other;
    }
    if (threadIdx.x % 32 == 0) s->warp_mass[threadIdx.x / 32] = best;
    if (__syncthreads_or(is_bad) != 0) return -1;
    for (int w = 0; w < WARPS; w++)
        if (s->warp_mass[w] > best) best = s->warp_mass[w];
    __syncthreads();
    return best == 0 ? -1 : (int32_t) ~(uint32_t)best;
}

static __global__ void __launch_bounds__(THREADS)
    sample_rows(const struct hd_op_sample a, const hd_batch b) {
    __shared__ shared_memory s;
    int row = blockIdx.x;
    row_of_logits r = {.logit = a.logits + (size_t)row * (size_t)a.n_vocab,
                       .is_token = a.is_token,
                       .n = a.n_vocab,
                       .max = 0,
                       .how = b.draw[row]};
    int32_t token = -1;
    if (!r.how.is_host) token = best_of(r, &s);
    if (token >= 0 && r.how.temperature > 0) {
        r.max = r.logit[token];
        kept k = {.key = 0, .n_tie = 0, .sum = 0};
        if (r.how.top_k > 0 || r.how.top_p < 1) k = cut_all(r, &s);
        token = draw(r, &s, k);
    }
    if (threadIdx.x > 0) return;
    a.token[row] = token;
    if (!r.how.is_host) a.last[b.seq_slot[b.row_seq[b.out_row[row]]]] = token;
}

extern "C" void hd_cuda_run_sample(const struct hd_op_sample *args, cudaStream_t stream) {
    if (args->n_out > 0)
        HD_LAUNCH(sample_rows, (unsigned)args->n_out, THREADS, 0, stream, *args, *args->batch);
}
