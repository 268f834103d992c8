// y = W x for up to eight rows and quantised weights: as fast as the codes can be read.
//
// A group is 256 inputs; a warp has a run of them, of sixteen outputs at a time, through a ring
// (ring.cuh). Codes are multiplied as they are: an integer becomes BF16 by one operation on two of
// them, and what it is too large by is taken off the sum. What weights that share a scale add up to
// is multiplied by it: no weight is rounded; rows are, to BF16. Of one row the eight columns of the
// tensor core product are eight such runs of weights, and each lane multiplies its own sums of a
// group by scales, once; of more, columns are rows.
#pragma once

#include "cuda/ring.cuh"

constexpr int GROUP = 256;

// Of a format. BYTES of a group, LINE of them in the ring: eight rows in eight bank
// groups. SUB weights share a scale. A code that is multiplied is ZERO more than what counts.
// units(): of part `at` of a group, UNITS times sixteen codes, this lane's four of each, 4t to
// 4t+3: the even two and the odd two. scale(): a weight is code * step - offset, of weights that
// share it.
template <int F> struct few_codec;

// Small integers, bytes 0 and 2, and 1 and 3, of a word: 128 more as BF16.
static __device__ __forceinline__ void bytes_of(uint32_t word, uint32_t pair[2]) {
    pair[0] = (word & 0x007f007fu) | 0x43004300u;
    pair[1] = (word >> 8 & 0x007f007fu) | 0x43004300u;
}

// Word i from p on, which is aligned to two bytes, IS_EVEN: not to four.
template <bool IS_EVEN>
static __device__ __forceinline__ uint32_t word_at(const unsigned char *p, int i) {
    if constexpr (!IS_EVEN) return ((const uint32_t *)p)[i];
    const uint32_t *from = (const uint32_t *)(p - 2) + i;
    return __byte_perm(from[0], from[1], 0x5432);
}

template <int BYTES_> struct few_blocks { // of 32 codes, with an F16 scale before them
    static constexpr bool IS_WHOLE = false;
    static constexpr int BYTES = BYTES_ * 8, LINE = BYTES, SUB = 32, UNITS = 2;
    static __device__ __forceinline__ void scale(const unsigned char *line, int sub, float *step,
                                                 float *offset) {
        *step = f16_value(load16(line + BYTES_ * sub)), *offset = 0;
    }
};

template <> struct few_codec<HD_Q8_0> : few_blocks<34> {
    static constexpr float ZERO = 0;
    // 128 and the low seven bits, less 128 or, of a negative one, 256.
    static __device__ __forceinline__ uint32_t two(uint32_t word) {
        uint32_t low = (word & 0x007f007fu) | 0x43004300u,
                 sign = (word & 0x00800080u) | 0x43004300u;
        __nv_bfloat162 v = __hsub2(*(const __nv_bfloat162 *)&low, *(const __nv_bfloat162 *)&sign);
        return *(const uint32_t *)&v;
    }
    template <bool IS_EVEN>
    static __device__ __forceinline__ void block(const unsigned char *p, uint32_t pair[2][2]) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t word = word_at<IS_EVEN>(p, (int)threadIdx.x % 4 + 4 * i);
            pair[i][0] = two(word), pair[i][1] = two(word >> 8);
        }
    }
    static __device__ __forceinline__ void units(const unsigned char *line, int at,
                                                 uint32_t pair[2][2]) {
        if (at % 2 == 0)
            block<true>(line + 34 * at + 2, pair);
        else
            block<false>(line + 34 * at + 2, pair);
    }
};

template <> struct few_codec<HD_Q4_0> : few_blocks<18> {
    static constexpr float ZERO = 128 + 8;
    static __device__ __forceinline__ void units(const unsigned char *line, int at,
                                                 uint32_t pair[2][2]) {
        const unsigned char *p = line + 18 * at + 2;
        int t = (int)threadIdx.x % 4;
        uint32_t q = at % 2 == 0 ? word_at<true>(p, t) : word_at<false>(p, t);
        bytes_of(q & 0x0f0f0f0fu, pair[0]);
        bytes_of(q >> 4 & 0x0f0f0f0fu, pair[1]);
    }
};

template <> struct few_codec<HD_Q5_0> : few_blocks<22> {
    static constexpr float ZERO = 128 + 16;
    static __device__ __forceinline__ void units(const unsigned char *line, int at,
                                                 uint32_t pair[2][2]) {
        const unsigned char *p = line + 22 * at + 2;
        int t = (int)threadIdx.x % 4;
        uint32_t high = at % 2 == 0 ? word_at<true>(p, 0) : word_at<false>(p, 0);
        uint32_t q = at % 2 == 0 ? word_at<true>(p, 1 + t) : word_at<false>(p, 1 + t);
        bytes_of((q & 0x0f0f0f0fu) | spread_bits(high, 4 * t) << 4, pair[0]);
        bytes_of((q >> 4 & 0x0f0f0f0fu) | spread_bits(high, 4 * t + 16) << 4, pair[1]);
    }
};

template <> struct few_codec<HD_Q4_K> {
    static constexpr bool IS_WHOLE = true;
    static constexpr int BYTES = 144, LINE = BYTES, SUB = 32, UNITS = 4;
    static constexpr float ZERO = 128;
    static __device__ __forceinline__ void units(const unsigned char *line, int at,
                                                 uint32_t pair[4][2]) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t q =
                *(const uint32_t *)(line + 16 + 32 * at + 16 * i + (int)threadIdx.x % 4 * 4);
            bytes_of(q & 0x0f0f0f0fu, pair[i]);
            bytes_of(q >> 4 & 0x0f0f0f0fu, pair[2 + i]);
        }
    }
    static __device__ __forceinline__ void scale(const unsigned char *line, int sub, float *step,
                                                 float *offset) {
        uint4 head = *(const uint4 *)line;
        int at = sub % 4 * 8;
        uint32_t low = head.y >> at, high = head.z >> at, last = head.w >> at;
        uint32_t scale = sub < 4 ? low & 63 : (last & 15) | (low >> 2 & 48);
        uint32_t least = sub < 4 ? high & 63 : (last >> 4 & 15) | (high >> 2 & 48);
        *step = f16_value(head.x & 0xffff) * code_value<0>(scale, 0);
        *offset = f16_value(head.x >> 16) * code_value<0>(least, 0);
    }
};

template <> struct few_codec<HD_Q6_K> { // lines are aligned to two bytes only
    static constexpr bool IS_WHOLE = true;
    static constexpr int BYTES = 210, LINE = 240, SUB = 16, UNITS = 8;
    static constexpr float ZERO = 128 + 32;
    static __device__ __forceinline__ uint32_t word(const unsigned char *p) {
        uint32_t at = (uint32_t)(uintptr_t)p & 2;
        const uint32_t *from = (const uint32_t *)(p - at);
        return __funnelshift_r(from[0], from[1], 8 * at);
    }
    static __device__ __forceinline__ void units(const unsigned char *line, int at,
                                                 uint32_t pair[8][2]) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const unsigned char *p = line + 64 * at + 16 * i + (int)threadIdx.x % 4 * 4;
            uint32_t a = word(p), b = word(p + 32), high = word(p + 128 - 32 * at);
            bytes_of((a & 0x0f0f0f0fu) | (high << 4 & 0x30303030u), pair[i]);
            bytes_of((b & 0x0f0f0f0fu) | (high << 2 & 0x30303030u), pair[2 + i]);
            bytes_of((a >> 4 & 0x0f0f0f0fu) | (high & 0x30303030u), pair[4 + i]);
            bytes_of((b >> 4 & 0x0f0f0f0fu) | (high >> 2 & 0x30303030u), pair[6 + i]);
        }
    }
    static __device__ __forceinline__ void scale(const unsigned char *line, int sub, float *step,
                                                 float *offset) {
        *step = f16_value(load16(line + 208)) * (float)(signed char)line[192 + sub], *offset = 0;
    }
};

// Groups on their way: sixteen lines a slot.
template <int F> struct few_groups {
    using codec = few_codec<F>;
    static constexpr int BYTES = 16 * codec::LINE;
    static constexpr int RING = BYTES <= 3072 ? 3 : 2;
    // Of 16 bytes, at most: a group begins at an even byte of one.
    static constexpr int PIECES = (codec::BYTES + (codec::BYTES % 16 != 0 ? 14 : 0) + 15) / 16;
    static __host__ __device__ __forceinline__ int pieces_of(int n_in) {
        return (n_in + GROUP - 1) / GROUP;
    }
    // Bytes into a line at which group n begins.
    static __device__ __forceinline__ int shift_of(int n) { return n * codec::BYTES % 16; }
    static __device__ __forceinline__ void copy(const unsigned char *const row[2], int n,
                                                const hd_cuda_mat &w, uint32_t to) {
        int lane = (int)threadIdx.x % 32, begin = n * codec::BYTES / 16 * 16;
        int n_byte = min(PIECES * 16, (int)w.row_bytes - begin);
        to += (uint32_t)(lane / 4 * codec::LINE);
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < (PIECES + 3) / 4; j++) {
                int at = 64 * j + lane % 4 * 16;
                if (at < n_byte)
                    copy16(to + (uint32_t)(i * 8 * codec::LINE + at), row[i] + begin + at, 16);
            }
    }
};

// Rows of inputs in shared memory, and of each the sums of every SUB of them, zeros past n_in.
struct few_inputs {
    const unsigned char *row;
    const float *sum;
    int n_in, n_row;
    size_t stride, n_sum; // bytes and sums from a row to the next
};

static __host__ __device__ __forceinline__ size_t few_sums(int n_in, int sub) {
    return (size_t)((n_in + GROUP - 1) / GROUP * (GROUP / sub));
}

// By all threads.
template <int SUB> static __device__ __forceinline__ void sum_inputs(const few_inputs &x) {
    for (int i = (int)threadIdx.x; i < x.n_row * (int)x.n_sum; i += 256) {
        int r = i / (int)x.n_sum, at = i % (int)x.n_sum * SUB;
        float sum = 0;
        for (int k = 0; at < x.n_in && k < SUB; k += 8) {
            uint32_t v[1][4];
            get_inputs(x.row + (size_t)r * x.stride, at + k, v);
#pragma unroll
            for (int e = 0; e < 4; e++)
                sum += bf16_value(v[0][e] & 0xffff) + __uint_as_float(v[0][e] & 0xffff0000u);
        }
        ((float *)x.sum)[i] = sum;
    }
}

// Inputs k .. k+3 of a row in the codes' order: even ones, odd ones.
static __device__ __forceinline__ void four_inputs(const unsigned char *row, int k, bool is_there,
                                                   uint32_t x[2]) {
    uint2 v = make_uint2(0, 0);
    if (is_there) v = *(const uint2 *)(row + 2 * k);
    x[0] = __byte_perm(v.x, v.y, 0x5410), x[1] = __byte_perm(v.x, v.y, 0x7632);
}

// total += the weights that share a scale, of which the sum of products is v, of inputs `all`.
template <int F>
static __device__ __forceinline__ void add_scaled(float v, float all, float step, float offset,
                                                  float *total) {
    v = __fmaf_rn(-few_codec<F>::ZERO, all, v);
    *total = __fmaf_rn(step, v, __fmaf_rn(-offset, all, *total));
}

// Group n of sixteen outputs times the row, added to total[i] of the outputs g + 8i: of the weights
// whose scales are this lane's.
template <int F>
static __device__ __forceinline__ void multiply_one(const unsigned char *const line[2], int n,
                                                    const few_inputs &in, float total[4]) {
    using codec = few_codec<F>;
    constexpr int SUB = codec::SUB, N_SUB = GROUP / SUB, UNITS = codec::UNITS;
    constexpr bool IS_WHOLE = codec::IS_WHOLE; // rows are of whole groups
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t x[2][2]; // of column g
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int k = GROUP * n + 4 * t + (SUB == 32 ? 32 * g + 16 * i : 16 * g + 128 * i);
        four_inputs(in.row, k, IS_WHOLE || k < in.n_in, x[i]);
    }
    float sum[2][4] = {};
#pragma unroll
    for (int at = 0; at < 16 / UNITS; at++) {
        uint32_t a[UNITS][2], b[UNITS][2];
        codec::units(line[0], at, a);
        codec::units(line[1], at, b);
#pragma unroll
        for (int i = 0; i < UNITS; i++) {
            int u = at * UNITS + i, part = SUB == 32 ? u % 2 : u / 8;
            bool is_mine = g == (SUB == 32 ? u / 2 : u % 8);
            uint32_t codes[4] = {a[i][0], b[i][0], a[i][1], b[i][1]};
            uint32_t v[2] = {is_mine ? x[part][0] : 0, is_mine ? x[part][1] : 0};
            tensor_product(sum[part], codes, v);
        }
    }
#pragma unroll
    for (int part = 0; part < N_SUB / 8; part++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            int sub = 8 * part + 2 * t + c % 2;
            float step, offset, v = SUB == 32 ? sum[0][c] + sum[1][c] : sum[part][c];
            codec::scale(line[c / 2], sub, &step, &offset);
            if (!IS_WHOLE && GROUP * n + SUB * sub >= in.n_in) step = 0; // whatever is there
            add_scaled<F>(v, in.sum[n * N_SUB + sub], step, offset, &total[c / 2]);
        }
}

// The same for up to eight rows: total[2i + c] of the output g + 8i and row 2t + c.
template <int F>
static __device__ __forceinline__ void multiply_rows(const unsigned char *const line[2], int n,
                                                     const few_inputs &in, float total[4]) {
    using codec = few_codec<F>;
    constexpr int SUB = codec::SUB, N_SUB = GROUP / SUB, UNITS = codec::UNITS, EACH = SUB / 16;
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4, last = in.n_row - 1;
    const unsigned char *row = in.row + (size_t)min(g, last) * in.stride;
    const float *all[2];
#pragma unroll
    for (int c = 0; c < 2; c++)
        all[c] = in.sum + (size_t)min(2 * t + c, last) * in.n_sum + n * N_SUB;
#pragma unroll
    for (int at = 0; at < 16 / UNITS; at++) {
        if (!codec::IS_WHOLE && GROUP * n + 16 * UNITS * at >= in.n_in) break; // nothing is there
        uint32_t a[UNITS][2], b[UNITS][2];
        codec::units(line[0], at, a);
        codec::units(line[1], at, b);
#pragma unroll
        for (int i = 0; i < UNITS; i += EACH) {
            int sub = (at * UNITS + i) / EACH;
            float sum[4] = {};
#pragma unroll
            for (int u = i; u < i + EACH; u++) {
                uint32_t codes[4] = {a[u][0], b[u][0], a[u][1], b[u][1]}, v[2];
                four_inputs(row, GROUP * n + 16 * (at * UNITS + u) + 4 * t, true, v);
                tensor_product(sum, codes, v);
            }
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float step, offset;
                codec::scale(line[k], sub, &step, &offset);
#pragma unroll
                for (int c = 0; c < 2; c++)
                    add_scaled<F>(sum[2 * k + c], all[c][sub], step, offset, &total[2 * k + c]);
            }
        }
    }
}

// ROWS: one, or eight at most.
template <int F, int ROWS>
__global__ void __launch_bounds__(256, 2) mul_few_codes(const __grid_constant__ stream_args a) {
    using P = few_groups<F>;
    HD_DYNAMIC_SHARED(shared);
    __shared__ float part[2][SLICES][16][ROWS];
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    unsigned char *ring = shared + warp * P::RING * P::BYTES;
    unsigned char *inputs = shared + SLICES * P::RING * P::BYTES;
    let_next_start();
    stream_place here;
    weights_ahead<P> ahead(shared_address(ring));
    ahead.begin(a, &here);
    int slot = 0, turn = 0;
    for (bool is_new = true; here.is_valid(); turn ^= 1) {
        const hd_cuda_mul &m = a.m[here.product];
        size_t stride = hd_cuda_input_stride(m.w.n_in);
        few_inputs in = {inputs,   (const float *)(inputs + (size_t)a.rows[here.product] * stride),
                         m.w.n_in, here.tile.n,
                         stride,   few_sums(m.w.n_in, P::codec::SUB)};
        if (is_new) {
            load_inputs(m, here.tile, inputs);
            __syncthreads();
            sum_inputs<P::codec::SUB>(in);
            __syncthreads();
        }
        weight_run run = run_of(P::pieces_of(m.w.n_in));
        float total[4] = {};
        for (int i = 0; i < run.n; i++) {
            const unsigned char *line[2];
            int n = run.first + i;
            line[0] = ring + slot * P::BYTES + g * P::codec::LINE + P::shift_of(n);
            line[1] = line[0] + 8 * P::codec::LINE;
            copy_wait<P::RING - 1>();
            __syncwarp(); // the other lanes' copies, too
            if constexpr (ROWS == 1)
                multiply_one<F>(line, n, in, total);
            else
                multiply_rows<F>(line, n, in, total);
            slot = slot + 1 == P::RING ? 0 : slot + 1;
            __syncwarp();
            ahead.copy(a);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if constexpr (ROWS == 1) {
                total[i] += shuffle_xor(total[i], 1);
                total[i] += shuffle_xor(total[i], 2);
                if (t == 0) part[turn][warp][g + 8 * i][0] = total[i];
            } else {
                *(float2 *)&part[turn][warp][g + 8 * i][2 * t] =
                    make_float2(total[2 * i], total[2 * i + 1]);
            }
        }
        __syncthreads(); // those before have been used, and nobody reads the inputs any more
        bool is_gated = m.up.data != nullptr;
        int n_out = is_gated ? 8 : 16, o = (int)threadIdx.x % n_out, r = (int)threadIdx.x / n_out;
        if (r < here.tile.n) {
            float sum = 0, up = 0;
#pragma unroll
            for (int s = 0; s < SLICES; s++) {
                sum += part[turn][s][o][r];
                if (is_gated) up += part[turn][s][o + 8][r];
            }
            put(m, here.tile, r, here.out * n_out + o, is_gated ? gated(sum, up) : sum);
        }
        is_new = here.next(a);
    }
    copy_wait<0>();
}

static int few_rows(const hd_cuda_mul *m) { return m->tile != nullptr ? m->tile_rows : m->n_row; }

// Bytes of shared memory for products of n_in inputs.
template <int F> static size_t few_shared(int n_row, int n_in) {
    using P = few_groups<F>;
    size_t each = hd_cuda_input_stride(n_in) + few_sums(n_in, P::codec::SUB) * sizeof(float);
    return SLICES * P::RING * P::BYTES + (size_t)n_row * each;
}

// Of products that hd_cuda_can_stream(): of few rows, in any order of sums.
template <int F> static bool can_few(const hd_cuda_mul *m, int n) {
    size_t fixed = 2 * SLICES * 16 * FEW * sizeof(float) + 2048; // besides, and the system's
    for (int i = 0; i < n; i++) {
        int rows = few_rows(&m[i]);
        if (rows > FEW || m[i].is_ordered || m[i].w.n_in % 32 != 0) return false;
        if (few_shared<F>(rows, m[i].w.n_in) + fixed > hd_cuda_current().shared_max / 2)
            return false;
    }
    return true;
}

template <int F> static void launch_few_codes(const hd_cuda_mul *m, int n, cudaStream_t stream) {
    stream_args a = {};
    size_t shared = 0;
    bool is_one = true;
    long long n_item = 0, n_slot = 2 * hd_cuda_current().n_sm;
    a.n = n;
    for (int i = 0; i < n; i++) {
        const hd_cuda_mul *from = &m[m[0].tile != nullptr ? n - 1 - i : i];
        a.m[i] = *from, a.rows[i] = few_rows(from);
        is_one &= a.rows[i] == 1;
        long long n_tile = from->tile != nullptr ? from->n_tile_max : from->w.n_mat;
        n_item += n_tile * stream_place::n_out_tile(*from);
        size_t own = few_shared<F>(a.rows[i], from->w.n_in);
        shared = own > shared ? own : shared;
    }
    if (n_item == 0) return;
    auto kernel = is_one ? mul_few_codes<F, 1> : mul_few_codes<F, FEW>;
    HD_LAUNCH_EARLY(kernel, dim3((unsigned)(n_item < n_slot ? n_item : n_slot)), 256, shared,
                    stream, a);
}

#define HD_CUDA_MUL_FEW_OF(F)                                                                      \
    extern "C" void hd_cuda_mul_##F(const hd_cuda_mul *m, int n, cudaStream_t stream) {            \
        if (hd_cuda_can_stream(m, n) && can_few<F>(m, n))                                          \
            launch_few_codes<F>(m, n, stream);                                                     \
        else                                                                                       \
            launch_any<F>(m, n, stream);                                                           \
    }
