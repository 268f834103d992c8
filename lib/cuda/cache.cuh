// Reading rows of the cache: quant/kv.h, which is the definition.
#pragma once

#include "cuda/device.cuh"

#include <cuda_fp8.h>

// Four E4M3 codes as floats.
static __device__ __forceinline__ void e4m3_values4(uint32_t codes, float v[4]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        __half2_raw h =
            __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)(codes >> (16 * i)), __NV_E4M3);
        float2 f = __half22float2(__half2(h));
        v[2 * i] = f.x, v[2 * i + 1] = f.y;
    }
}

// Four integers of a byte each as floats: 2^23 + 128 + q has the byte as its last bits.
static __device__ __forceinline__ void int8_values4(uint32_t codes, float v[4]) {
    codes ^= 0x80808080u;
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = __uint_as_float(__byte_perm(codes, 0x4b000000u, 0x7540u | (uint32_t)i)) - 8388736.0f;
}

template <int T>
static __device__ __forceinline__ void code_values4(uint32_t codes, float scale, float v[4]) {
    if constexpr (T == HD_KV_FP8)
        e4m3_values4(codes, v);
    else
        int8_values4(codes, v);
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] *= scale;
}

// Of code e of a row.
static __device__ __forceinline__ float group_scale(const hd_kv_layout &l, const unsigned char *row,
                                                    int e) {
    return bf16_value(*(const unsigned short *)(row + l.scale_at + 2 * (e / l.group)));
}

// Element e of a row.
template <int T>
static __device__ __forceinline__ float cache_value(const hd_kv_layout &l, const unsigned char *row,
                                                    int e) {
    if constexpr (T == HD_KV_FP8 || T == HD_KV_INT8) {
        if (e < l.n_code) {
            float v[4];
            code_values4<T>(row[e], group_scale(l, row, e), v);
            return v[0];
        }
    }
    int i = e - l.n_code;
    if (T == HD_KV_F32) return ((const float *)row)[i];
    uint32_t bits = ((const unsigned short *)(row + l.plain_at))[i];
    return T == HD_KV_F16 ? f16_value(bits) : bf16_value(bits);
}
