// Attention of few rows a sequence over latent rows of codes at DeepSeek's width, on sm_90a.
//
// What differs from attn_codes.cuh: a step is 64 positions, whose rows the copy engine brings; a
// warp has sixteen of them with all their elements, so that no sums of products are exchanged. The
// positions are the rows of warpgroup products, the codes their left side: F16 in registers, of
// each group of codes a sum of its own, multiplied by the scale of position and group. Weights pass
// through shared memory once, as F16; of the values a warp has the columns of one group of codes,
// whose scales it multiplies the weights with.
#pragma once

#include "cuda/attn_codes.cuh"

struct latent_shape {
    static constexpr int ROWS = 2 * TILE, DC = 512, DR = 64, GROUPS = DC / HD_KV_GROUP_MAX;
    static constexpr int LINE = DC + 16 + 2 * DR, STAGE_BYTES = ROWS * LINE, STAGES = 2;
    // Queries: columns of 64 elements of 16 heads, those of the plain values last.
    static constexpr int COLUMN = HEADS * 128, N_COLUMN = (DC + DR) / 64;
    static constexpr int P_LINE =
        2 * HEADS + 16; // weights of a position: eight in eight bank groups
    static constexpr int STAGE_AT = N_COLUMN * COLUMN, P_AT = STAGE_AT + STAGES * STAGE_BYTES;
    static constexpr int SCALE_AT = P_AT + ROWS * P_LINE, TOP_AT = SCALE_AT + GROUPS * ROWS * 2;
    static constexpr int SUM_AT = TOP_AT + WARPS * HEADS * 4, UNIT_AT = SUM_AT + WARPS * HEADS * 4;
    static constexpr int BARRIER_AT = UNIT_AT + HEADS * 4;
    static constexpr int SHARED = 1024 + BARRIER_AT + STAGES * 8;
    static_assert(GROUPS == WARPS, "the columns of a warp are of one group");
    static_assert(LINE / 16 % 2 == 1, "eight rows of a piece are in eight bank groups");
};

// Rows as hd_kv_latent() lays them out for 512 values and a rotated key of 64.
static bool is_latent_shape(const hd_cuda_attn *a) {
    using S = latent_shape;
    return a->keys == a->values && hd_kv_has_codes(a->kv.type) && a->n_v == S::DC &&
           a->n_q0 == S::DC && a->n_key == S::DC + S::DR && a->kv.group == HD_KV_GROUP_MAX &&
           a->kv.scale_at == S::DC && a->kv.plain_at == S::DC + 16 && a->kv.row_bytes == S::LINE;
}

#if __CUDA_ARCH_FEAT_SM90_ALL

// d = (keeps ? d : 0) + A B^T: A [64, 16] from registers, B [16, 16]. Of d, lane 4g+t of warp w has
// rows 16w + g (4j, 4j+1) and 16w + g + 8 (4j+2, 4j+3), columns 8j + 2t and 8j + 2t + 1.
#define LATENT_PRODUCT(TYPES)                                                                      \
    asm volatile("{.reg .pred p;\n setp.ne.b32 p, %13, 0;\n"                                       \
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32." TYPES                               \
                 " {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, p, 1, 1, 0;}"                  \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),         \
                   "+f"(d[6]), "+f"(d[7])                                                          \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)keeps))
static __device__ __forceinline__ void latent_half_product(float d[8], const uint32_t a[4],
                                                           uint64_t b, bool keeps) {
    LATENT_PRODUCT("f16.f16");
}
static __device__ __forceinline__ void latent_plain_product(float d[8], const uint32_t a[4],
                                                            uint64_t b, bool keeps) {
    LATENT_PRODUCT("bf16.bf16");
}
#undef LATENT_PRODUCT

// n_byte from global to shared memory by the copy engine, counted on bar; both ends and n_byte are
// multiples of 16.
static __device__ __forceinline__ void copy_run(uint32_t to, const void *from, int n_byte,
                                                uint32_t bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(n_byte), "r"(bar)
                 : "memory");
}

// The next 64 positions of the segment, or what is left. True: they begin a segment.
static __device__ __forceinline__ bool step_twice(const hd_cuda_split &s, walker *w, int begin) {
    return step(s, w, begin) || step(s, w, begin);
}

// Positions of the segment from its tile on.
static __device__ __forceinline__ int n_left(const walker &w) {
    return min(w.s.n_pos, w.s.tile_end * TILE) - w.s.tile * TILE;
}

// A lane of the first sixteen copies one row of a step: which; -1: past the positions. They are
// looked up some time before they are copied.
static __device__ __forceinline__ int latent_row(const hd_cuda_attn &a, const walker &w) {
    int r = (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 16, p = w.s.tile * TILE + r;
    if (w.at >= w.end || r >= n_left(w)) return -1;
    return a.page[w.s.page0 + p / a.page_tok] * a.page_tok + p % a.page_tok;
}

static __device__ __forceinline__ void copy_latent(const hd_cuda_attn &a, int row, uint32_t to,
                                                   uint32_t full) {
    using S = latent_shape;
    int lane = (int)threadIdx.x % 32;
    if (lane >= 16) return;
    to += (uint32_t)(((int)threadIdx.x / 32 * 16 + lane) * S::LINE);
    if (row >= 0) {
        barrier_expect(full, S::LINE);
        copy_run(to, (const unsigned char *)a.keys + (size_t)row * S::LINE, S::LINE, full);
    } else {
        for (int i = 0; i < S::LINE; i += 16) store_piece(to + (uint32_t)i, make_uint4(0, 0, 0, 0));
        fence_async(); // the copy engine may write there next
        barrier_arrive(full);
    }
}

// The segment's queries to shared memory, zeros for heads that are not there: against codes as F16
// times a power of two a head, in the order in which halves_of_codes() gives codes; and what sums
// of codes are to be multiplied with. By all threads, which may read them then.
template <int T>
static __device__ __forceinline__ void load_latent_queries(const hd_cuda_attn &a, const walker &w,
                                                           unsigned char *to) {
    using S = latent_shape;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, head0, n_head;
    heads_of(a, w.n_sub, w.s.sub, &head0, &n_head);
#pragma unroll
    for (int i = 0; i < HEADS / WARPS; i++) {
        int h = warp * (HEADS / WARPS) + i;
        size_t at = (size_t)w.s.row * (size_t)a.n_head + (size_t)(head0 + h);
        float v[S::DC / 128][4] = {}, x[2] = {}, top = 0;
        if (h < n_head) {
#pragma unroll
            for (int k = 0; k < S::DC / 128; k++)
                query_run<4>(a.q0 + at * a.ldq0, 128 * k + 4 * lane, S::DC, v[k]);
            query_run<2>(a.q1 + at * a.ldq1, 2 * lane, S::DR, x);
        }
#pragma unroll
        for (int k = 0; k < S::DC / 128; k++)
#pragma unroll
            for (int c = 0; c < 4; c++) top = fmaxf(top, fabsf(v[k][c]));
#pragma unroll
        for (int mask = 1; mask < 32; mask *= 2) top = fmaxf(top, shuffle_xor(top, mask));
        float unit, factor = query_factor<T>(top, &unit);
        if (lane == 0) ((float *)(to + S::UNIT_AT))[h] = unit;
#pragma unroll
        for (int k = 0; k < S::DC / 128; k++) {
            unsigned char *column = to + (2 * k + lane / 16) * S::COLUMN + lane % 4 * 4;
            int piece = lane % 16 / 4 * 2;
            *(uint32_t *)(column + swizzled(h, piece)) =
                half_pair(v[k][0] * factor, v[k][1] * factor);
            *(uint32_t *)(column + swizzled(h, piece + 1)) =
                half_pair(v[k][2] * factor, v[k][3] * factor);
        }
        unsigned char *plain = to + (S::N_COLUMN - 1) * S::COLUMN + lane % 4 * 4;
        *(uint32_t *)(plain + swizzled(h, lane / 4)) = bf16_pair(x[0], x[1]);
    }
    fence_async(); // warpgroup products read them
    __syncthreads();
}

// Sixteen rows of a warp, 128 codes of each, as left sides of eight products.
template <int T>
static __device__ __forceinline__ void latent_codes_of(uint32_t line, uint32_t keys[8][4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t codes[4];
        load_four(codes, line + (uint32_t)(32 * i));
#pragma unroll
        for (int c = 0; c < 4; c++)
            halves_of_codes<T, false>(codes[c], &keys[2 * i + c / 2][c % 2],
                                      &keys[2 * i + c / 2][2 + c % 2]);
    }
}

// Products of this warp's sixteen positions with all heads: s[4j + 2i + c] of position g + 8i and
// head 8j + 2t + c.
template <int T>
static __device__ __forceinline__ void latent_products(uint32_t queries, const unsigned char *rows,
                                                       const float unit[4], float s[8]) {
    using S = latent_shape;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, id = lane / 8, r8 = lane % 8;
    uint32_t line =
        shared_address(rows) + (uint32_t)((16 * warp + r8 + id % 2 * 8) * S::LINE + id / 2 * 16);
    uint64_t q = tile_descriptor(queries);
    float sum[S::GROUPS][8];
    uint32_t plain[S::DR / 16][4];
#pragma unroll
    for (int k = 0; k < S::DR / 16; k++)
        load_four(plain[k], line + (uint32_t)(S::DC + 16 + 32 * k));
    warpgroup_begin();
#pragma unroll
    for (int k = 0; k < S::DR / 16; k++)
        latent_plain_product(s, plain[k],
                             q + (uint64_t)((S::N_COLUMN - 1) * S::COLUMN / 16 + 2 * k), k > 0);
    warpgroup_commit();
#pragma unroll
    for (int n = 0; n < S::GROUPS; n++) {
        uint32_t keys[8][4];
        latent_codes_of<T>(line + (uint32_t)(128 * n), keys);
        warpgroup_begin();
#pragma unroll
        for (int k = 0; k < 8; k++)
            latent_half_product(sum[n], keys[k],
                                q + (uint64_t)((2 * n + k / 4) * S::COLUMN / 16 + k % 4 * 2),
                                k > 0);
        warpgroup_commit();
        warpgroup_wait<1>(); // registers
    }
    uint2 scales[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        scales[i] = *(const uint2 *)(rows + (16 * warp + lane / 4 + 8 * i) * S::LINE + S::DC);
    warpgroup_wait<0>();
#pragma unroll
    for (int c = 0; c < 8; c++) { // what the products wrote is read from here on
        asm volatile("" : "+f"(s[c])::"memory");
#pragma unroll
        for (int n = 0; n < S::GROUPS; n++) asm volatile("" : "+f"(sum[n][c])::"memory");
    }
#pragma unroll
    for (int c = 0; c < 8; c++) {
        uint2 scale = scales[c / 2 % 2];
        float v = sum[0][c] * bf16_value(scale.x & 0xffff);
        v = __fmaf_rn(sum[1][c], __uint_as_float(scale.x & 0xffff0000u), v);
        v = __fmaf_rn(sum[2][c], bf16_value(scale.y & 0xffff), v);
        v = __fmaf_rn(sum[3][c], __uint_as_float(scale.y & 0xffff0000u), v);
        s[c] = __fmaf_rn(v, unit[c / 4 * 2 + c % 2], s[c]);
    }
}

// The scales of this warp's group of all positions to shared memory as F16, relative to a power of
// two, the largest one's so far; how much less what was summed up counts relative to it.
static __device__ __forceinline__ float latent_scales(const unsigned char *rows, __half *to,
                                                      int *exponent) {
    using S = latent_shape;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    uint32_t bits[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        bits[i] = *(const unsigned short *)(rows + (lane + 32 * i) * S::LINE + S::DC + 2 * warp);
    int top = (int)__reduce_max_sync(0xffffffffu, max(bits[0], bits[1])) >> 7;
    int now = max(*exponent, max(1, min(top, 253))), ago = now - *exponent;
    float relative = __uint_as_float((uint32_t)(254 - now) << 23);
    *exponent = now;
#pragma unroll
    for (int i = 0; i < 2; i++)
        to[warp * S::ROWS + lane + 32 * i] = __float2half_rn(bf16_value(bits[i]) * relative);
    return ago < 127 ? __uint_as_float((uint32_t)(127 - ago) << 23) : 0;
}

// What lanes have of heads 8j + 2t + c, for heads g and g + 8.
static __device__ __forceinline__ void of_heads(const float from[4], float to[2]) {
    int g = (int)threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float even = __shfl_sync(0xffffffffu, from[2 * i], g / 2);
        float odd = __shfl_sync(0xffffffffu, from[2 * i + 1], g / 2);
        to[i] = g % 2 ? odd : even;
    }
}

// A warp's largest product of every head, of those of the first n_seen positions.
static __device__ __forceinline__ void latent_tops(float s[8], int n_seen, float *to) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        float m[2];
#pragma unroll
        for (int c = 0; c < 2; c++) {
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (16 * warp + g + 8 * i >= n_seen) s[4 * j + 2 * i + c] = -INFINITY;
            m[c] = fmaxf(s[4 * j + c], s[4 * j + 2 + c]);
#pragma unroll
            for (int mask = 4; mask < 32; mask *= 2) m[c] = fmaxf(m[c], shuffle_xor(m[c], mask));
        }
        if (lane < 4) *(float2 *)(to + warp * HEADS + 8 * j + 2 * t) = make_float2(m[0], m[1]);
    }
}

// This warp's weights to shared memory, a line a position; tops: of all warps.
static __device__ __forceinline__ void latent_weights(const float s[8], const float *tops,
                                                      unsigned char *to, float top[4], float sum[4],
                                                      float keep[4]) {
    using S = latent_shape;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        float m[2] = {top[2 * j], top[2 * j + 1]}, w[2][2];
#pragma unroll
        for (int i = 0; i < WARPS; i++) {
            float2 x = *(const float2 *)(tops + i * HEADS + 8 * j + 2 * t);
            m[0] = fmaxf(m[0], x.x), m[1] = fmaxf(m[1], x.y);
        }
#pragma unroll
        for (int c = 0; c < 2; c++) {
            keep[2 * j + c] = exp2_fast(top[2 * j + c] - m[c]);
            top[2 * j + c] = m[c];
            w[0][c] = exp2_fast(s[4 * j + c] - m[c]);
            w[1][c] = exp2_fast(s[4 * j + 2 + c] - m[c]);
            sum[2 * j + c] = __fmaf_rn(sum[2 * j + c], keep[2 * j + c], w[0][c] + w[1][c]);
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
            *(uint32_t *)(to + (16 * warp + g + 8 * i) * S::P_LINE + (8 * j + 2 * t) * 2) =
                half_pair(w[i][0], w[i][1]);
    }
}

// Sixteen of this warp's columns, of all positions: the codes of 32 positions, and of the others.
static __device__ __forceinline__ void latent_columns(uint32_t rows, int j, uint32_t codes[2][4]) {
    using S = latent_shape;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    uint32_t line = rows + (uint32_t)(lane * S::LINE + warp * HD_KV_GROUP_MAX + 16 * j);
    load_four_transposed(codes[0], line);
    load_four_transposed(codes[1], line + (uint32_t)(TILE * S::LINE));
}

// out += weights scales values, of this warp's columns, of which the first sixteen's codes are
// here.
template <int T>
static __device__ __forceinline__ void latent_values(uint32_t weights, const __half *scales,
                                                     uint32_t rows, const uint32_t first[2][4],
                                                     float out[16][4]) {
    using S = latent_shape;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, id = lane / 8, r8 = lane % 8;
    uint32_t p[4][4]; // steps of sixteen positions
    weights += (uint32_t)((r8 + id / 2 * 8) * S::P_LINE + id % 2 * 16);
    const __half2 *scale = (const __half2 *)(scales + warp * S::ROWS + 2 * (lane % 4));
#pragma unroll
    for (int e = 0; e < 4; e++) {
        load_four_transposed(p[e], weights + (uint32_t)(16 * e * S::P_LINE));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            __half2 v = __hmul2(*(const __half2 *)&p[e][i], scale[8 * e + i / 2 * 4]);
            p[e][i] = *(const uint32_t *)&v;
        }
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        uint32_t codes[2][4], even[4], odd[4];
        if (j > 0) latent_columns(rows, j, codes);
#pragma unroll
        for (int n = 0; n < 2; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                halves_of_codes<T, true>(j > 0 ? codes[n][i] : first[n][i], &even[i], &odd[i]);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                half_product(out[2 * j], p[2 * n + e], even[2 * e], even[2 * e + 1]);
                half_product(out[2 * j + 1], p[2 * n + e], odd[2 * e], odd[2 * e + 1]);
            }
        }
    }
}

// The segment's results; sum: of a lane's positions.
template <class C>
static __device__ __forceinline__ void
store_latent(const hd_cuda_attn &a, const walker &w, const float top[4], const float sum[4],
             float *sums, int exponent, const float out[C::NV][4]) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float all[4], tops[2], part[2];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        all[i] = sum[i];
#pragma unroll
        for (int mask = 4; mask < 32; mask *= 2) all[i] += shuffle_xor(all[i], mask);
    }
    if (lane < 4) {
        *(float2 *)(sums + warp * HEADS + 2 * t) = make_float2(all[0], all[1]);
        *(float2 *)(sums + warp * HEADS + 8 + 2 * t) = make_float2(all[2], all[3]);
    }
    of_heads(top, tops);
    __syncthreads();
    part[0] = sums[t * HEADS + g], part[1] = sums[t * HEADS + g + 8]; // store_codes() adds these up
    store_codes<C>(a, w, tops, part, exponent, out);
}
#endif

template <int T> using latent_codes_results = coded_shape<T, 512, 64, 512, 4, 2>;

template <int T>
static __global__ void __launch_bounds__(THREADS, 2) split_latent(const hd_cuda_split s) {
#if __CUDA_ARCH_FEAT_SM90_ALL
    using S = latent_shape;
    HD_DYNAMIC_SHARED(dynamic);
    const hd_cuda_attn &a = s.a;
    unsigned char *shared = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
    uint32_t base = shared_address(shared), full = base + S::BARRIER_AT;
    walker now, next;
    int begin;
    let_next_start();
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::STAGES; i++) barrier_init(full + 8 * (uint32_t)i, S::ROWS);
        fence_async();
    }
    __syncthreads();
    wait_for_previous();
    if (!start(s, &now, &begin)) return;
    next = now;
    copy_latent(a, latent_row(a, next), base + S::STAGE_AT, full);
    step_twice(s, &next, begin);
    int ahead = latent_row(a, next), stage = 0, exponent = 0;
    uint32_t phase = 0;
    float *tops = (float *)(shared + S::TOP_AT), *sums = (float *)(shared + S::SUM_AT);
    __half *scales = (__half *)(shared + S::SCALE_AT);
    float unit[4], top[4], sum[4], keep[4], out[16][4], scale = a.scale * LOG2_E;
    for (bool is_first = true; now.at < now.end;) {
        if (is_first) {
            load_latent_queries<T>(a, now, shared);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int h = i / 2 * 8 + (int)threadIdx.x % 4 * 2 + i % 2;
                unit[i] = ((const float *)(shared + S::UNIT_AT))[h];
                top[i] = -INFINITY, sum[i] = 0;
            }
#pragma unroll
            for (int j = 0; j < 16; j++) out[j][0] = out[j][1] = out[j][2] = out[j][3] = 0;
            exponent = 0;
        }
        const unsigned char *rows = shared + S::STAGE_AT + stage * S::STAGE_BYTES;
        float products[8];
        barrier_wait(full + 8 * (uint32_t)stage, phase);
        latent_products<T>(base, rows, unit, products);
#pragma unroll
        for (int c = 0; c < 8; c++) products[c] *= scale;
        latent_tops(products, n_left(now), tops);
        float older = latent_scales(rows, scales, &exponent);
        __syncthreads(); // the tops are there, the other stage has been used
        stage ^= 1;
        phase ^= stage == 0;
        if (next.at < next.end) {
            copy_latent(a, ahead, base + S::STAGE_AT + (uint32_t)(stage * S::STAGE_BYTES),
                        full + 8 * (uint32_t)stage);
            step_twice(s, &next, begin);
            ahead = latent_row(a, next);
        }
        latent_weights(products, tops, shared + S::P_AT, top, sum, keep);
        bool moves = older != 1 || keep[0] != 1 || keep[1] != 1 || keep[2] != 1 || keep[3] != 1;
        if (warp_ballot(moves) != 0) {
            float factor[2];
            of_heads(keep, factor);
#pragma unroll
            for (int j = 0; j < 16; j++)
#pragma unroll
                for (int c = 0; c < 4; c++) out[j][c] *= factor[c / 2] * older;
        }
        uint32_t first[2][4]; // meanwhile
        latent_columns(shared_address(rows), 0, first);
        __syncthreads(); // the weights are there
        latent_values<T>(base + S::P_AT, scales, shared_address(rows), first, out);
        walker done = now;
        is_first = step_twice(s, &now, begin);
        if (is_first) store_latent<latent_codes_results<T>>(a, done, top, sum, sums, exponent, out);
    }
#endif
}

template <int T> static void launch_latent(const hd_cuda_split *s, cudaStream_t stream) {
    HD_LAUNCH(split_latent<T>, (unsigned)s->n_block, THREADS, latent_shape::SHARED, stream, *s);
}
