// Weights of every format that the backend reads straight from the file, eight inputs at a time.
// Layouts and formulas: lib/quant, which is the definition.
//
// codec<F>::terms is how many BF16 terms a weight is, values8 its values. The formats that models
// are quantised to most have their loads apart, as few and as wide as the layout lets them be, so
// that many are on their way before the first is decoded: codec<F>::raw, load and values.
#pragma once

#include "cuda/cache.cuh"
#include "cuda/terms.cuh"

// Every format there is a codec for: ROW(format)
// clang-format off
#define HD_CUDA_FORMATS(ROW)                                                                       \
    ROW(HD_F32) ROW(HD_F16) ROW(HD_BF16) ROW(HD_F8_B128)                                           \
    ROW(HD_Q8_0) ROW(HD_Q4_0) ROW(HD_Q4_1) ROW(HD_Q5_0) ROW(HD_Q5_1) ROW(HD_IQ4_NL) ROW(HD_MXFP4)  \
    ROW(HD_Q2_K) ROW(HD_Q3_K) ROW(HD_Q4_K) ROW(HD_Q5_K) ROW(HD_Q6_K) ROW(HD_IQ4_XS)
// clang-format on

static __device__ __forceinline__ uint32_t load16(const unsigned char *p) {
    return *(const unsigned short *)p;
}

// Eight bytes from anywhere: the words that they lie in.
struct eight_bytes {
    uint32_t w[3];
};
static __device__ __forceinline__ eight_bytes load_eight(const unsigned char *p) {
    const uint32_t *from = (const uint32_t *)((uintptr_t)p & ~(uintptr_t)3);
    eight_bytes r = {{from[0], from[1], 0}};
    if (((uintptr_t)p & 3) != 0) r.w[2] = from[2]; // else it may be past the row
    return r;
}
// Half h of them, which lie at `at` of a row; rows are aligned to 16 bytes.
static __device__ __forceinline__ uint32_t word_of(const eight_bytes &r, int h, int at) {
    return __funnelshift_r(r.w[h], r.w[h + 1], (uint32_t)(at & 3) * 8);
}

// Byte i of a word as a float, minus `zero`: exact, and faster than a conversion.
template <int ZERO> static __device__ __forceinline__ float code_value(uint32_t word, int i) {
    uint32_t bits = __byte_perm(word, 0x4b000000u, 0x7440u + (uint32_t)i); // 2^23 + the byte
    return __uint_as_float(bits) - (8388608.0f + ZERO);
}

// Bits i .. i+3 of v as bit 0 of the bytes of a word.
static __device__ __forceinline__ uint32_t spread_bits(uint32_t v, int i) {
    return ((v >> i & 15) * 0x00204081u) & 0x01010101u;
}

template <int F> struct codec;

template <> struct codec<HD_F32> {
    static constexpr int terms = 3;
    static __device__ __forceinline__ void values8(const unsigned char *row, int k, float v[8]) {
        const float4 *p = (const float4 *)(row + (size_t)k * 4);
        float4 a = p[0], b = p[1];
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
        v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    }
};

template <> struct codec<HD_F16> {
    static constexpr int terms = 2;
    using raw = uint4;
    static __device__ __forceinline__ raw load(const unsigned char *row, int k) {
        return *(const uint4 *)(row + (size_t)k * 2);
    }
    static __device__ __forceinline__ void values(const raw &r, int, float v[8]) {
        uint32_t w[4] = {r.x, r.y, r.z, r.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = f16_value(w[i] & 0xffff);
            v[2 * i + 1] = f16_value(w[i] >> 16);
        }
    }
};

template <> struct codec<HD_BF16> {
    static constexpr int terms = 1;
    static __device__ __forceinline__ void values8(const unsigned char *row, int k, float v[8]) {
        uint4 r = *(const uint4 *)(row + (size_t)k * 2);
        uint32_t w[4] = {r.x, r.y, r.z, r.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = bf16_value(w[i] & 0xffff);
            v[2 * i + 1] = bf16_value(w[i] >> 16);
        }
    }
};

template <> struct codec<HD_F8_B128> { // HD_CUDA_FP8_BLOCK (kernels.h): a value is a float32
    static constexpr int terms = 3;
    static __device__ __forceinline__ void values8(const unsigned char *row, int k, float v[8]) {
        const unsigned char *p = row + (size_t)(k / HD_CUDA_FP8_BLOCK) * HD_CUDA_FP8_BYTES;
        k %= HD_CUDA_FP8_BLOCK;
        float scale = ((const float *)p)[k / 128];
        p += HD_CUDA_FP8_BYTES - HD_CUDA_FP8_BLOCK + k / 64 * 64 + k % 32 * 2 + k % 64 / 32 * 8;
        uint2 codes = *(const uint2 *)p; // the middle two of each four change places
        e4m3_values4(__byte_perm(codes.x, 0, 0x3120), v);
        e4m3_values4(__byte_perm(codes.y, 0, 0x3120), v + 4);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] *= scale;
    }
};

template <> struct codec<HD_Q8_0> { // f16 d, 32 int8
    static constexpr int terms = 2;
    struct raw {
        eight_bytes q;
        uint32_t d;
    };
    static __device__ __forceinline__ raw load(const unsigned char *row, int k) {
        const unsigned char *p = row + (size_t)(k / 32) * 34;
        return {load_eight(p + 2 + k % 32), load16(p)};
    }
    static __device__ __forceinline__ void values(const raw &r, int k, float v[8]) {
        float d = f16_value(r.d);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t q = word_of(r.q, h, k / 32 * 34 + 2) ^ 0x80808080u;
#pragma unroll
            for (int i = 0; i < 4; i++) v[4 * h + i] = d * code_value<128>(q, i);
        }
    }
};

// Codes 8j .. 8j+7 of a block of 32 four-bit codes: byte i has code i low and code i+16 high.
static __device__ __forceinline__ uint32_t four_bits(const unsigned char *qs, int k, int i) {
    return qs[(k & 15) + i] >> (k & 16 ? 4 : 0) & 15;
}

template <> struct codec<HD_Q4_0> { // f16 d, qs[16]
    static constexpr int terms = 2;
    struct raw {
        eight_bytes q;
        uint32_t d;
    };
    static __device__ __forceinline__ raw load(const unsigned char *row, int k) {
        const unsigned char *p = row + (size_t)(k / 32) * 18;
        return {load_eight(p + 2 + k % 16), load16(p)};
    }
    static __device__ __forceinline__ void values(const raw &r, int k, float v[8]) {
        float d = f16_value(r.d);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t q = word_of(r.q, h, k / 32 * 18 + 2) >> (k & 16 ? 4 : 0) & 0x0f0f0f0fu;
#pragma unroll
            for (int i = 0; i < 4; i++) v[4 * h + i] = d * code_value<8>(q, i);
        }
    }
};

template <> struct codec<HD_Q5_0> { // f16 d, qh[4], qs[16]
    static constexpr int terms = 2;
    struct raw {
        eight_bytes q;
        uint32_t d, high;
    };
    static __device__ __forceinline__ raw load(const unsigned char *row, int k) {
        const unsigned char *p = row + (size_t)(k / 32) * 22;
        return {load_eight(p + 6 + k % 16), load16(p), p[2 + k % 32 / 8]};
    }
    static __device__ __forceinline__ void values(const raw &r, int k, float v[8]) {
        float d = f16_value(r.d);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t q = word_of(r.q, h, k / 32 * 22 + 6) >> (k & 16 ? 4 : 0) & 0x0f0f0f0fu;
            q |= spread_bits(r.high, 4 * h) << 4;
#pragma unroll
            for (int i = 0; i < 4; i++) v[4 * h + i] = d * code_value<16>(q, i);
        }
    }
};

template <> struct codec<HD_Q4_1> { // f16 d, f16 m, qs[16]
    static constexpr int terms = 2;
    static __device__ __forceinline__ void values8(const unsigned char *row, int k, float v[8]) {
        const unsigned char *p = row + (size_t)(k / 32) * 20;
        float d = f16_value(load16(p)), m = f16_value(load16(p + 2));
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = __fadd_rn(__fmul_rn(d, (float)four_bits(p + 4, k % 32, i)), m);
    }
};

template <> struct codec<HD_Q5_1> { // f16 d, f16 m, qh[4], qs[16]
    static constexpr int terms = 2;
    static __device__ __forceinline__ void values8(const unsigned char *row, int k, float v[8]) {
        const unsigned char *p = row + (size_t)(k / 32) * 24;
        float d = f16_value(load16(p)), m = f16_value(load16(p + 2));
        uint32_t high = p[4 + k % 32 / 8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t q = four_bits(p + 8, k % 32, i) | (high >> i & 1) << 4;
            v[i] = __fadd_rn(__fmul_rn(d, (float)q), m);
        }
    }
};

// The code book of IQ4_NL and IQ4_XS (lib/quant/small.c), four codes a word.
static __device__ __forceinline__ float iq4_value(uint32_t q) {
    uint32_t low = __byte_perm(0xbfad9881u, 0xf6eaddcfu, q & 7);
    uint32_t high = __byte_perm(0x26190d01u, 0x71594535u, q & 7);
    return (float)(signed char)(q & 8 ? high : low);
}

template <> struct codec<HD_IQ4_NL> { // f16 d, qs[16]
    static constexpr int terms = 2;
    static __device__ __forceinline__ void values8(const unsigned char *row, int k, float v[8]) {
        const unsigned char *p = row + (size_t)(k / 32) * 18;
        float d = f16_value(load16(p));
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = d * iq4_value(four_bits(p + 2, k % 32, i));
    }
};

template <> struct codec<HD_IQ4_XS> { // f16 d, two high bits a scale [2], low ones [4], qs[8][16]
    static constexpr int terms = 2;
    static __device__ __forceinline__ void values8(const unsigned char *row, int k, float v[8]) {
        const unsigned char *p = row + (size_t)(k / 256) * 136;
        int s = k % 256 / 32;
        int scale = (p[4 + s / 2] >> (4 * (s % 2)) & 15) | (load16(p + 2) >> (2 * s) & 3) << 4;
        float unit = f16_value(load16(p)) * (float)(scale - 32);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = unit * iq4_value(four_bits(p + 8 + 16 * s, k % 32, i));
    }
};

// Scale and minimum of run `sub` of 32, of Q4_K and Q5_K, times d and dmin at p.
static __device__ __forceinline__ void six_bits(const unsigned char *p, int sub, float *step,
                                                float *offset) {
    const unsigned char *s = p + 4;
    uint32_t scale = sub < 4 ? s[sub] & 63 : (s[sub + 4] & 15) | (s[sub - 4] >> 6) << 4;
    uint32_t least = sub < 4 ? s[sub + 4] & 63 : s[sub + 4] >> 4 | (s[sub] >> 6) << 4;
    *step = f16_value(load16(p)) * (float)scale;
    *offset = f16_value(load16(p + 2)) * (float)least;
}

template <> struct codec<HD_Q4_K> { // f16 d, f16 dmin, scales[12], qs[128]
    static constexpr int terms = 2;
    struct raw {
        uint4 head; // d, dmin and the scales
        uint2 q;
    };
    static __device__ __forceinline__ raw load(const unsigned char *row, int k) {
        const unsigned char *p = row + (size_t)(k / 256) * 144;
        return {*(const uint4 *)p, *(const uint2 *)(p + 16 + k % 256 / 64 * 32 + k % 32)};
    }
    static __device__ __forceinline__ void values(const raw &r, int k, float v[8]) {
        int sub = k % 256 / 32, at = sub % 4 * 8;
        uint32_t low = r.head.y >> at, high = r.head.z >> at, last = r.head.w >> at;
        uint32_t scale = sub < 4 ? low & 63 : (last & 15) | (low >> 2 & 48);
        uint32_t least = sub < 4 ? high & 63 : (last >> 4 & 15) | (high >> 2 & 48);
        float step = f16_value(r.head.x & 0xffff) * code_value<0>(scale, 0);
        float offset = f16_value(r.head.x >> 16) * code_value<0>(least, 0);
        uint32_t q[2] = {r.q.x >> (sub % 2 * 4) & 0x0f0f0f0fu,
                         r.q.y >> (sub % 2 * 4) & 0x0f0f0f0fu};
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = __fsub_rn(__fmul_rn(step, code_value<0>(q[i / 4], i % 4)), offset);
    }
};

template <> struct codec<HD_Q5_K> { // f16 d, f16 dmin, scales[12], qh[32], qs[128]
    static constexpr int terms = 2;
    static __device__ __forceinline__ void values8(const unsigned char *row, int k, float v[8]) {
        const unsigned char *p = row + (size_t)(k / 256) * 176;
        int sub = k % 256 / 32;
        float step, offset;
        six_bits(p, sub, &step, &offset);
        const unsigned char *qs = p + 48 + 32 * (sub / 2) + k % 32, *qh = p + 16 + k % 32;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int q = (qs[i] >> (sub % 2 * 4) & 15) | (qh[i] >> sub & 1) << 4;
            v[i] = __fsub_rn(__fmul_rn(step, (float)q), offset);
        }
    }
};

template <> struct codec<HD_Q2_K> { // scale and minimum [16], qs[64], f16 d, f16 dmin
    static constexpr int terms = 2;
    static __device__ __forceinline__ void values8(const unsigned char *row, int k, float v[8]) {
        const unsigned char *p = row + (size_t)(k / 256) * 84;
        int i0 = k % 256, r = i0 % 128 / 32;
        uint32_t s = p[i0 / 16];
        float step = f16_value(load16(p + 80)) * (float)(s & 15);
        float offset = f16_value(load16(p + 82)) * (float)(s >> 4);
        const unsigned char *qs = p + 16 + 32 * (i0 / 128) + i0 % 32;
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = __fsub_rn(__fmul_rn(step, (float)(qs[i] >> (2 * r) & 3)), offset);
    }
};

template <> struct codec<HD_Q3_K> { // hmask[32], qs[64], scales[12], f16 d
    static constexpr int terms = 2;
    static __device__ __forceinline__ void values8(const unsigned char *row, int k, float v[8]) {
        const unsigned char *p = row + (size_t)(k / 256) * 110, *scales = p + 96;
        int i0 = k % 256, r = i0 % 128 / 32, s = i0 / 16;
        int low = s < 8 ? scales[s] & 15 : scales[s - 8] >> 4;
        int scale = (low | (scales[8 + s % 4] >> (2 * (s / 4)) & 3) << 4) - 32;
        float step = f16_value(load16(p + 108)) * (float)scale;
        const unsigned char *qs = p + 32 + 32 * (i0 / 128) + i0 % 32, *third = p + i0 % 32;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int q = (qs[i] >> (2 * r) & 3) | (third[i] >> (i0 / 32) & 1) << 2;
            v[i] = step * (float)(q - 4);
        }
    }
};

template <> struct codec<HD_Q6_K> { // ql[128], qh[64], int8 scales[16], f16 d
    static constexpr int terms = 2;
    struct raw {
        eight_bytes low, high;
        uint32_t scale, d;
    };
    static __device__ __forceinline__ raw load(const unsigned char *row, int k) {
        const unsigned char *p = row + (size_t)(k / 256) * 210;
        int i0 = k % 256, h = i0 / 128, l = i0 % 32;
        return {load_eight(p + 64 * h + i0 % 64), load_eight(p + 128 + 32 * h + l),
                p[192 + i0 / 16], load16(p + 208)};
    }
    static __device__ __forceinline__ void values(const raw &r, int k, float v[8]) {
        int i0 = k % 128, at = k / 256 * 210;
        float d = f16_value(r.d) * code_value<128>(r.scale ^ 128, 0);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t q = word_of(r.low, h, at) >> (i0 / 64 * 4) & 0x0f0f0f0fu;
            q |= (word_of(r.high, h, at) >> (i0 / 32 * 2) & 0x03030303u) << 4;
#pragma unroll
            for (int i = 0; i < 4; i++) v[4 * h + i] = d * code_value<32>(q, i);
        }
    }
};

template <> struct codec<HD_MXFP4> { // e8m0 scale, qs[16] of e2m1
    static constexpr int terms = 1;  // three significant bits
    static __device__ __forceinline__ void values8(const unsigned char *row, int k, float v[8]) {
        const unsigned char *p = row + (size_t)(k / 32) * 17;
        // 2^(e-127): a normal float from e = 1 on, the largest subnormal power at 0, NaN at 255.
        float d = __uint_as_float(p[0] == 255 ? 0x7fc00000u
                                  : p[0]      ? (uint32_t)p[0] << 23
                                              : 1u << 22);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t q = four_bits(p + 1, k % 32, i), e = q >> 1 & 3, m = q & 1;
            float size = e ? (float)(2 + m) * (float)(1 << e) * 0.25f : 0.5f * (float)m;
            v[i] = d * (q & 8 ? -size : size);
        }
    }
};

// Formats whose loads are apart.
template <int F>
constexpr bool is_apart =
    F == HD_F16 || F == HD_Q8_0 || F == HD_Q4_0 || F == HD_Q5_0 || F == HD_Q4_K || F == HD_Q6_K;

template <int F>
static __device__ __forceinline__ void values8(const unsigned char *row, int k, float v[8]) {
    if constexpr (is_apart<F>)
        codec<F>::values(codec<F>::load(row, k), k, v);
    else
        codec<F>::values8(row, k, v);
}

template <int F, int N>
static __device__ __forceinline__ void weight_terms(const unsigned char *row, int k,
                                                    uint32_t t[][4]) {
    if constexpr (F == HD_BF16) {
        uint4 r = *(const uint4 *)(row + (size_t)k * 2);
        t[0][0] = r.x, t[0][1] = r.y, t[0][2] = r.z, t[0][3] = r.w;
    } else {
        float v[8];
        values8<F>(row, k, v);
        split8<N>(v, t);
    }
}

// Eight weights on their way, one term of each.
template <int F, bool IS_APART = is_apart<F>> struct moving_weights {
    uint32_t t[1][4];
    __device__ __forceinline__ void load(const unsigned char *row, int k) {
        weight_terms<F, 1>(row, k, t);
    }
    __device__ __forceinline__ void terms(int, uint32_t out[1][4]) const {
#pragma unroll
        for (int i = 0; i < 4; i++) out[0][i] = t[0][i];
    }
};
template <int F> struct moving_weights<F, true> {
    typename codec<F>::raw r;
    __device__ __forceinline__ void load(const unsigned char *row, int k) {
        r = codec<F>::load(row, k);
    }
    __device__ __forceinline__ void terms(int k, uint32_t out[1][4]) const {
        float v[8];
        codec<F>::values(r, k, v);
        split8<1>(v, out);
    }
};
