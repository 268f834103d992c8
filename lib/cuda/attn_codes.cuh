// Attention of few rows a sequence over a cache of codes (FP8, INT8), which attn_decode.cu splits
// over blocks: the codes pass through shared memory as they are and become F16 in registers, which
// holds each of them exactly; queries and weights are rounded to F16. (mma.sync of E4M3 is no
// faster: sm_90 makes F16 of its operands, too, and of each anew for every product.)
//
// Scales are not multiplied with codes. A warp has the keys' elements of one group of codes: its
// sum of a position is multiplied by that group's scale. Its columns of the values are of one
// group, too: the weights of positions are multiplied by that, relative to the largest so far, so
// that they stay in the range of their type. Queries are scaled into it by a power of two. The
// rotated part of a latent key is BF16.
#pragma once

#include "cuda/attn_tile.cuh"
#include "cuda/cache.cuh"

// Rows of DC codes, 16 bytes of scales and DR plain values.
template <int T_, int DC_, int DR_, int DV_, int STAGES_, int BLOCKS_> struct coded_shape {
    static constexpr int T = T_, DC = DC_, DR = DR_, DV = DV_, STAGES = STAGES_, BLOCKS = BLOCKS_;
    static constexpr bool IS_LATENT = DR > 0;
    // Of a warp: steps of 16 codes, eights of columns.
    static constexpr int KS = DC / 16 / WARPS, NV = DV / 8 / WARPS;
    static constexpr int COPY_ROWS = TILE * 8 / THREADS; // eight lanes a row
    static constexpr int LINE = DC + 16 + DR * 2, K_BYTES = TILE * LINE;
    static constexpr int STAGE_BYTES = (IS_LATENT ? 1 : 2) * K_BYTES;
    static constexpr int SHARED = STAGES * STAGE_BYTES + WARPS * HEADS * TILE * 4;
    static_assert(LINE / 16 % 2 == 1, "eight rows of a piece are in eight bank groups");
    static_assert(DR == 0 || DR == 16 * WARPS, "one step of plain values a warp");
    static_assert(DC == DV && NV % 2 == 0, "columns by sixteens, of the codes");
};

template <class S> constexpr bool hd_is_coded = false;
template <int... N> constexpr bool hd_is_coded<coded_shape<N...>> = true;

// c += A B of F16, as tensor_product.
static __device__ __forceinline__ void half_product(float c[4], const uint32_t a[4], uint32_t b0,
                                                    uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four E4M3 codes, exactly: the first two, and the last two.
[[maybe_unused]] static __device__ __forceinline__ void
halves_of_e4m3(uint32_t codes, uint32_t *first, uint32_t *second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    asm("{.reg .b16 l, h;\n mov.b32 {l, h}, %2;\n cvt.rn.f16x2.e4m3x2 %0, l;\n"
        "cvt.rn.f16x2.e4m3x2 %1, h;}"
        : "=r"(*first), "=r"(*second)
        : "r"(codes));
#endif
}

static __device__ __forceinline__ uint32_t half_pair(float low, float high) {
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

// Whether codes become F16 by an instruction of their own; else by moving bits, which makes 2^-8 of
// an E4M3 value.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
[[maybe_unused]] constexpr bool HAS_CONVERSION = true;
#else
[[maybe_unused]] constexpr bool HAS_CONVERSION = false;
#endif

// What codes as operands are to be multiplied with, and the power of two that queries are brought
// to.
template <int T> constexpr float code_unit = T == HD_KV_FP8 && !HAS_CONVERSION ? 256 : 1;
constexpr int QUERY_EXPONENT = 10;

// Four codes as F16: the first two and the last two of them, or those of the even bytes and of the
// odd ones. Of an integer the bits of 1024 and a byte without a sign are known.
template <int T, bool IS_APART>
static __device__ __forceinline__ void halves_of_codes(uint32_t codes, uint32_t *first,
                                                       uint32_t *second) {
    if constexpr (T == HD_KV_FP8 && HAS_CONVERSION) {
        if (IS_APART) codes = __byte_perm(codes, 0, 0x3120);
        halves_of_e4m3(codes, first, second);
    } else if constexpr (T == HD_KV_FP8) {
        if (!IS_APART) codes = __byte_perm(codes, 0, 0x3120);
        uint32_t low = codes << 8;
        *first = (low >> 1 & 0x3f803f80u) | (low & 0x80008000u);
        *second = (codes >> 1 & 0x3f803f80u) | (codes & 0x80008000u);
    } else {
        codes ^= 0x80808080u;
        const __half2 middle = __half2half2(__ushort_as_half(0x6480)); // 1024 + 128
        uint32_t a = __byte_perm(codes, 0x64646464u, IS_APART ? 0x4240 : 0x4140),
                 b = __byte_perm(codes, 0x64646464u, IS_APART ? 0x4341 : 0x4342);
        __half2 ha = __hsub2(*(const __half2 *)&a, middle),
                hb = __hsub2(*(const __half2 *)&b, middle);
        *first = *(const uint32_t *)&ha, *second = *(const uint32_t *)&hb;
    }
}

// One side of a key head's rows: codes from byte `skip` on, n of them, and the piece of scales.
template <class S>
static __device__ __forceinline__ void copy_codes(const hd_cuda_attn &a, const void *cache, int n,
                                                  const tile_rows<S> &t, uint32_t to) {
    constexpr int CODES = S::DC / 16, ALL = S::LINE / 16;
    int lane = (int)threadIdx.x % 8, n_plain = 2 * (a.kv.n - a.kv.n_code);
    int skip = t.kv_head * n, scales = a.kv.scale_at + t.kv_head * 2 / 16 * 16;
    const unsigned char *base = (const unsigned char *)cache;
    bool is_straight = n == S::DC && n_plain == 2 * S::DR && a.kv.scale_at == S::DC;
#pragma unroll
    for (int i = 0; i < S::COPY_ROWS; i++) {
        int r = i * (THREADS / 8) + (int)threadIdx.x / 8;
        bool is_there = t.row[i] >= 0;
        const unsigned char *from =
            base + (is_there ? (size_t)t.row[i] * (size_t)a.kv.row_bytes : 0);
        if (is_straight) { // the row as it lies
            uint32_t at = to + (uint32_t)(r * S::LINE + 16 * lane);
            from += 16 * lane;
#pragma unroll
            for (int j = 0; j < (ALL + 7) / 8; j++)
                if (8 * j + 8 <= ALL || 8 * j + lane < ALL)
                    copy_piece(at + (uint32_t)(128 * j), from + 128 * j, is_there);
            continue;
        }
#pragma unroll
        for (int j = 0; j < (ALL + 7) / 8; j++) {
            int piece = 8 * j + lane, plain = 16 * (piece - CODES - 1);
            if (piece >= ALL) break;
            int at = piece < CODES    ? skip + 16 * piece
                     : piece == CODES ? scales
                                      : a.kv.plain_at + plain;
            bool has = is_there && (piece < CODES ? 16 * piece < n : plain < n_plain);
            copy_piece(to + (uint32_t)(r * S::LINE + 16 * piece), has ? from + at : base, has);
        }
    }
}

template <class S>
static __device__ __forceinline__ void copy_code_tile(const hd_cuda_attn &a, const tile_rows<S> &t,
                                                      uint32_t to) {
    if (t.kv_head >= 0) {
        copy_codes<S>(a, a.keys, S::IS_LATENT ? a.n_v : a.n_key, t, to);
        if (!S::IS_LATENT) copy_codes<S>(a, a.values, a.n_v, t, to + S::K_BYTES);
    }
    copy_commit();
}

// A warp's part of the queries: against codes, times a power of two a head, and against plain
// values; what sums of codes are to be multiplied with.
template <class S> struct code_queries {
    uint32_t code[S::KS][4], plain[4];
    float unit[2];
};

// The power of two that brings top, of which queries are, to that of QUERY_EXPONENT; one that has
// an inverse. unit: what sums of codes are to be multiplied with.
template <int T> static __device__ __forceinline__ float query_factor(float top, float *unit) {
    int exponent = 254 + QUERY_EXPONENT - (int)(__float_as_uint(top) >> 23);
    exponent = max(1, min(253, exponent));
    *unit = __uint_as_float((uint32_t)(254 - exponent) << 23) * code_unit<T>;
    if (top == INFINITY) *unit = NAN; // which an operand may not hold
    return __uint_as_float((uint32_t)exponent << 23);
}

// Elements e .. e+n-1 of the n_key there are.
template <int N>
static __device__ __forceinline__ void query_run(const float *from, int e, int n, float v[N]) {
    bool is_whole = e + N <= n && ((uintptr_t)(from + e) & (4 * N - 1)) == 0;
    if (N == 4 && is_whole) {
        float4 r = *(const float4 *)(from + e);
        v[0] = r.x, v[1] = r.y, v[2] = r.z, v[3] = r.w;
    } else if (N == 2 && is_whole) {
        float2 r = *(const float2 *)(from + e);
        v[0] = r.x, v[1] = r.y;
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = e + i < n ? from[e + i] : 0;
    }
}

template <class S>
static __device__ __forceinline__ void load_code_queries(const hd_cuda_attn &a, const walker &w,
                                                         code_queries<S> *q) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int head0, n_head;
    heads_of(a, w.n_sub, w.s.sub, &head0, &n_head);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int h = g + 8 * i;
        size_t at = (size_t)w.s.row * (size_t)a.n_head + (size_t)(head0 + h);
        float v[S::KS][4] = {}, top = 0;
        if (h < n_head)
#pragma unroll
            for (int k = 0; k < S::KS; k++)
                query_run<4>(a.q0 + at * a.ldq0, (warp * S::KS + k) * 16 + 4 * t, a.n_q0, v[k]);
#pragma unroll
        for (int k = 0; k < S::KS; k++)
#pragma unroll
            for (int c = 0; c < 4; c++) top = fmaxf(top, fabsf(v[k][c]));
        top = fmaxf(top, shuffle_xor(top, 1));
        top = fmaxf(top, shuffle_xor(top, 2));
        float factor = query_factor<S::T>(top, &q->unit[i]);
#pragma unroll
        for (int k = 0; k < S::KS; k++)
#pragma unroll
            for (int c = 0; c < 4; c++) v[k][c] *= factor;
#pragma unroll
        for (int k = 0; k < S::KS; k++) {
            q->code[k][i] = half_pair(v[k][0], v[k][1]);
            q->code[k][2 + i] = half_pair(v[k][2], v[k][3]);
        }
        float x[2][2] = {};
        if (S::IS_LATENT && h < n_head)
#pragma unroll
            for (int c = 0; c < 2; c++)
                query_run<2>(a.q1 + at * a.ldq1, warp * 16 + 8 * c + 2 * t, a.n_key - a.n_q0, x[c]);
        q->plain[i] = bf16_pair(x[0][0], x[0][1]);
        q->plain[2 + i] = bf16_pair(x[1][0], x[1][1]);
    }
}

// The scales, at byte `from` of a line, of this lane's positions 8j + 2t + c.
template <class S>
static __device__ __forceinline__ void load_scales(const unsigned char *from,
                                                   float scale[TILE / 8][2]) {
    int t = (int)threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < TILE / 8; j++)
#pragma unroll
        for (int c = 0; c < 2; c++)
            scale[j][c] =
                bf16_value(*(const unsigned short *)(from + (8 * j + 2 * t + c) * S::LINE));
}

// This warp's part of all products, for its lanes' places of the fragments.
template <class S>
static __device__ __forceinline__ void code_products(const code_queries<S> &q, uint32_t k,
                                                     const float scale[TILE / 8][2], float4 *sums) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, id = lane / 8, r8 = lane % 8;
    float s[TILE / 8][4] = {};
    uint32_t line = k + (uint32_t)((8 * id + r8) * S::LINE);
    line += (uint32_t)(16 * warp * S::KS);
#pragma unroll
    for (int e = 0; e < S::KS; e += 2) {
        uint32_t codes[2][4], first, second;
        load_four(codes[0], line + (uint32_t)(16 * e));
        load_four(codes[1], line + (uint32_t)(16 * e + 16));
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < TILE / 8; j++) {
                halves_of_codes<S::T, false>(codes[i][j], &first, &second);
                half_product(s[j], q.code[e + i], first, second);
            }
    }
#pragma unroll
    for (int j = 0; j < TILE / 8; j++)
#pragma unroll
        for (int c = 0; c < 4; c++) s[j][c] *= scale[j][c % 2] * q.unit[c / 2];
    if (S::IS_LATENT) {
        line = k + (uint32_t)((r8 + id / 2 * 8) * S::LINE + S::DC + 16 + 16 * (2 * warp + id % 2));
#pragma unroll
        for (int j = 0; j < TILE / 8; j += 2) {
            uint32_t keys[4];
            load_four(keys, line + (uint32_t)(8 * j * S::LINE));
            tensor_product(s[j], q.plain, keys);
            tensor_product(s[j + 1], q.plain, keys + 2);
        }
    }
#pragma unroll
    for (int j = 0; j < TILE / 8; j++)
        sums[(warp * (TILE / 8) + j) * 32 + lane] = make_float4(s[j][0], s[j][1], s[j][2], s[j][3]);
}

// out = 2^exponent' (out keep / 2^exponent + weights scales values): the new exponent is the
// largest scale's so far. scale is used up.
template <class S>
static __device__ __forceinline__ void code_values(const float weight[TILE / 8][4],
                                                   const float keep[2], float scale[TILE / 8][2],
                                                   uint32_t v, int *exponent, float out[S::NV][4]) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, id = lane / 8, r8 = lane % 8;
    int top = 0;
#pragma unroll
    for (int j = 0; j < TILE / 8; j++)
#pragma unroll
        for (int c = 0; c < 2; c++) top = max(top, (int)__float_as_uint(scale[j][c]));
    top = max(top, shuffle_xor(top, 1));
    top = max(top, shuffle_xor(top, 2));
    int now = max(*exponent, max(1, min(top >> 23, 253)));
    int ago = now - *exponent;
    float relative = __uint_as_float((uint32_t)(254 - now) << 23);
    float older = ago < 127 ? __uint_as_float((uint32_t)(127 - ago) << 23) : 0;
    *exponent = now;
#pragma unroll
    for (int j = 0; j < S::NV; j++)
#pragma unroll
        for (int c = 0; c < 4; c++) out[j][c] *= keep[c / 2] * older;
    uint32_t p[TILE / 16][4]; // steps of sixteen positions
#pragma unroll
    for (int j = 0; j < TILE / 8; j += 2)
#pragma unroll
        for (int i = 0; i < 2; i++) { // rows g, g + 8
            float w[4];
#pragma unroll
            for (int c = 0; c < 4; c++)
                w[c] = weight[j + c / 2][2 * i + c % 2] * (scale[j + c / 2][c % 2] * relative);
            p[j / 2][i] = half_pair(w[0], w[1]);
            p[j / 2][2 + i] = half_pair(w[2], w[3]);
        }
    uint32_t line = v + (uint32_t)((8 * id + r8) * S::LINE + warp * S::NV * 8);
#pragma unroll
    for (int j = 0; j < S::NV / 2; j++) {
        uint32_t codes[4], even[4], odd[4];
        load_four_transposed(codes, line + (uint32_t)(16 * j));
#pragma unroll
        for (int i = 0; i < 4; i++) halves_of_codes<S::T, true>(codes[i], &even[i], &odd[i]);
#pragma unroll
        for (int e = 0; e < TILE / 16; e++) {
            half_product(out[2 * j], p[e], even[2 * e], even[2 * e + 1]);
            half_product(out[2 * j + 1], p[e], odd[2 * e], odd[2 * e + 1]);
        }
    }
}

// Lane 4g+t has columns 4t .. 4t+3 of each sixteen: even ones of out[2j], odd ones of out[2j+1].
template <class S>
static __device__ __forceinline__ void store_codes(const hd_cuda_attn &a, const walker &w,
                                                   const float top[2], const float sum[2],
                                                   int exponent, const float out[S::NV][4]) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int head0, n_head;
    heads_of(a, w.n_sub, w.s.sub, &head0, &n_head);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float l = sum[i];
        l += shuffle_xor(l, 1);
        l += shuffle_xor(l, 2);
        int h = g + 8 * i;
        if (h >= n_head) continue;
        float factor = __uint_as_float((uint32_t)exponent << 23);
        factor *= code_unit<S::T>;
        float *to =
            a.out + ((size_t)w.s.row * (size_t)a.n_head + (size_t)(head0 + h)) * (size_t)a.n_v;
        if (w.s.slot >= 0) {
            float *part = a.part + (size_t)w.s.slot * part_floats(a.n_v);
            to = part + (size_t)h * (size_t)a.n_v;
            float *ends = part + (size_t)HEADS * (size_t)a.n_v + 2 * h;
            if (warp == 0 && t == 0) ends[0] = top[i], ends[1] = l;
        } else {
            factor *= 1.0f / l;
        }
#pragma unroll
        for (int j = 0; j < S::NV / 2; j++) {
            int column = warp * S::NV * 8 + 16 * j + 4 * t;
            const float *even = out[2 * j] + 2 * i, *odd = out[2 * j + 1] + 2 * i;
            if (column < a.n_v)
                *(float4 *)(to + column) = make_float4(even[0] * factor, odd[0] * factor,
                                                       even[1] * factor, odd[1] * factor);
        }
    }
}

template <class S>
static __global__ void __launch_bounds__(THREADS, S::BLOCKS) split_codes(const hd_cuda_split s) {
    HD_DYNAMIC_SHARED(shared);
    const hd_cuda_attn &a = s.a;
    walker now, next;
    int begin;
    let_next_start();
    wait_for_previous();
    if (!start(s, &now, &begin)) return;
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
#pragma unroll
    for (int i = 0; i < S::STAGES - 1; i++)
        copy_code_tile<S>(a, rows[i], stage + (uint32_t)(i * S::STAGE_BYTES));
    tile_rows<S> ahead = rows[S::STAGES - 1];
    code_queries<S> q;
    float top[2], sum[2], out[S::NV][4], keep[2], weight[TILE / 8][4], scales[TILE / 8][2];
    bool is_first = true;
    int free = S::STAGES - 1, ready = 0, exponent = 0; // stages; of the values' scales
    while (now.at < now.end) {
        if (is_first) {
            load_code_queries<S>(a, now, &q);
            top[0] = top[1] = -INFINITY, sum[0] = sum[1] = 0, exponent = 0;
#pragma unroll
            for (int j = 0; j < S::NV; j++) out[j][0] = out[j][1] = out[j][2] = out[j][3] = 0;
        }
        int here = ready * S::STAGE_BYTES;
        copy_wait<S::STAGES - 2>();
        __syncthreads(); // this tile is there, the one before has been used
        copy_code_tile<S>(a, ahead, stage + (uint32_t)(free * S::STAGE_BYTES));
        look_up(a, next, &ahead);
        if (next.at < next.end) step(s, &next, begin);
        free = free + 1 == S::STAGES ? 0 : free + 1;
        ready = ready + 1 == S::STAGES ? 0 : ready + 1;
        // Of a latent key the elements that this warp has are the columns that it has.
        int kv_head = now.s.sub / (now.n_sub / a.n_head_kv);
        int group = min((int)threadIdx.x / 32 * S::KS * 16, a.kv.n_code - 1) / HD_KV_GROUP_MAX;
        if (!S::IS_LATENT) group = kv_head % 8; // in the piece that was copied
        const unsigned char *from = shared + here + S::DC + 2 * group;
        load_scales<S>(from, scales);
        code_products<S>(q, stage + (uint32_t)here, scales, sums);
        if (!S::IS_LATENT) load_scales<S>(from + S::K_BYTES, scales);
        __syncthreads();
        soften(sums, scale, now.s.n_pos - now.s.tile * TILE, weight, top, sum, keep);
        code_values<S>(weight, keep, scales,
                       stage + (uint32_t)(here + (S::IS_LATENT ? 0 : S::K_BYTES)), &exponent, out);
        walker done = now;
        is_first = step(s, &now, begin);
        if (is_first) store_codes<S>(a, done, top, sum, exponent, out);
    }
}

template <int T> using latent_codes = coded_shape<T, 512, 64, 512, 4, 2>;
template <int T> using latent_codes_small = coded_shape<T, 128, 64, 128, 4, 4>;
template <int T> using grouped_codes = coded_shape<T, 128, 0, 128, 4, 3>;
