// What is between the projections and attention: norm of the latent, biases, rotations, and the
// rows of the cache. A block finishes a row in its scratch memory, then writes it in the cache's
// type; layouts and codes: quant/kv.h, which is the definition.
#include "cuda/block.cuh"

#include <cuda_fp8.h>

static __device__ __forceinline__ uint32_t size_bits(float v) {
    return __float_as_uint(v) & 0x7fffffffu;
}

static __device__ void count_lost(unsigned long long *lost, int n) {
    if (n > 0) atomicAdd(lost, (unsigned long long)n); // rare: no number, or too large a one
}

// One group by one warp.
static __device__ void put_group(const hd_kv_layout &l, const float *x, unsigned char *code,
                                 unsigned char *scale_at, unsigned long long *lost) {
    int lane = (int)threadIdx.x % 32;
    uint32_t top = 0;
    for (int i = lane; i < l.group; i += 32) top = max(top, size_bits(x[i]));
    for (int mask = 16; mask > 0; mask /= 2) top = max(top, (uint32_t)shuffle_xor((int)top, mask));
    bool is_held = top < __float_as_uint(HD_KV_LIMIT); // NaN is larger by its bits
    float scale = is_held ? hd_kv_scale(l.type, __uint_as_float(top)) : __uint_as_float(0x7fc00000);
    float inverse = __fdiv_rn(1.0f, scale);
    for (int i = lane; i < l.group; i += 32) {
        float v = is_held ? __fmul_rn(x[i], inverse) : 0.0f;
        code[i] = l.type == HD_KV_FP8
                      ? (unsigned char)__nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3)
                      : (unsigned char)(signed char)__float2int_rn(v);
    }
    if (lane > 0) return;
    *(unsigned short *)scale_at = (unsigned short)bf16_bits(scale);
    if (!is_held) count_lost(lost, l.group);
}

static __device__ __forceinline__ void put_plain(enum hd_format f, unsigned char *to, int i,
                                                 float v) {
    if (f == HD_F32)
        ((float *)to)[i] = v;
    else
        ((unsigned short *)to)[i] = (unsigned short)(f == HD_F16 ? f16_bits(v) : bf16_bits(v));
}

// Row kv_row of the cache from x[l.n], which the block has written.
static __device__ void put_row(const hd_kv_layout &l, const float *x, void *cache, int kv_row,
                               unsigned long long *lost) {
    unsigned char *row = (unsigned char *)cache + (size_t)kv_row * (size_t)l.row_bytes;
    __syncthreads();
    int n_lost = 0;
    for (int i = l.n_code + (int)threadIdx.x; i < l.n; i += BLOCK) {
        put_plain(l.plain, row + l.plain_at, i - l.n_code, x[i]);
        n_lost += size_bits(x[i]) >= hd_kv_limit_bits(l.plain);
    }
    count_lost(lost, n_lost);
    int n_group = l.n_code > 0 ? l.n_code / l.group : 0;
    for (int g = (int)threadIdx.x / 32; g < n_group; g += BLOCK / 32)
        put_group(l, x + g * l.group, row + g * l.group, row + l.scale_at + 2 * g, lost);
}

struct rotated {
    float a, b;
};
static __device__ __forceinline__ rotated rotate(float a, float b, const float *cs) {
    return {a * cs[0] - b * cs[1], b * cs[0] + a * cs[1]};
}

static __global__ void __launch_bounds__(BLOCK)
    mla_finish(const struct hd_op_mla_qkv a, const hd_batch b, float *kv,
               unsigned long long *lost) {
    let_next_start();
    wait_for_previous();
    int row = (int)blockIdx.x, width = a.n_c + a.n_rope, half = a.n_rope / 2;
    const float *cs = a.rope_cs + (size_t)b.pos[row] * (size_t)a.n_rope;
    kv += (size_t)row * (size_t)width;
    float inverse = inverse_rms(kv, a.n_c, a.lora_eps);
    for (int i = threadIdx.x; i < a.n_c; i += BLOCK) kv[i] = a.kv_a_norm[i] * (kv[i] * inverse);
    for (int i = threadIdx.x; i < half; i += BLOCK) {
        float *pair = kv + a.n_c + 2 * i;
        rotated r = rotate(pair[0], pair[1], cs + 2 * i);
        pair[0] = r.a, pair[1] = r.b;
    }
    put_row(a.kv, kv, a.cache, b.kv_row[row], lost);
    int q_width = a.n_nope + a.n_rope;
    float *q = a.q_out + (size_t)row * (size_t)a.n_head * (size_t)q_width;
    for (int i = threadIdx.x; i < a.n_head * half; i += BLOCK) {
        float *pair = q + (i / half) * q_width + a.n_nope + i % half * 2;
        rotated r = rotate(pair[0], pair[1], cs + i % half * 2);
        pair[0] = r.a, pair[1] = r.b;
    }
}

extern "C" void hd_cuda_run_mla_finish(const struct hd_op_mla_qkv *args, float *kv,
                                       unsigned long long *lost, cudaStream_t stream) {
    HD_LAUNCH_EARLY(mla_finish, dim3((unsigned)args->batch->n_row), BLOCK, 0, stream, *args,
                    *args->batch, kv, lost);
}

// Bias and rotation of n_head heads of a row.
static __device__ void finish_heads(const struct hd_op_gqa_qkv &a, float *x, const float *bias,
                                    const float *cs, int n_head) {
    int half = a.d_head / 2;
    for (int i = threadIdx.x; i < n_head * half; i += BLOCK) {
        int pair = i % half, at_a = a.is_half_split ? pair : 2 * pair;
        int i_a = i / half * a.d_head + at_a, i_b = i_a + (a.is_half_split ? half : 1);
        rotated r = {x[i_a] + (bias != nullptr ? bias[i_a] : 0),
                     x[i_b] + (bias != nullptr ? bias[i_b] : 0)};
        if (cs != nullptr) r = rotate(r.a, r.b, cs + 2 * pair);
        x[i_a] = r.a, x[i_b] = r.b;
    }
}

static __global__ void __launch_bounds__(BLOCK)
    gqa_finish(const struct hd_op_gqa_qkv a, const hd_batch b, float *k, float *v,
               unsigned long long *lost) {
    let_next_start();
    wait_for_previous();
    int row = (int)blockIdx.x;
    size_t n_q = (size_t)a.n_head * (size_t)a.d_head, n_kv = (size_t)a.n_head_kv * (size_t)a.d_head;
    const float *cs = a.rope_cs + (size_t)b.pos[row] * (size_t)a.d_head;
    k += (size_t)row * n_kv, v += (size_t)row * n_kv;
    finish_heads(a, a.q_out + (size_t)row * n_q, a.q_bias, cs, a.n_head);
    finish_heads(a, k, a.k_bias, cs, a.n_head_kv);
    finish_heads(a, v, a.v_bias, nullptr, a.n_head_kv);
    put_row(a.kv, k, a.keys, b.kv_row[row], lost);
    put_row(a.kv, v, a.values, b.kv_row[row], lost);
}

extern "C" void hd_cuda_run_gqa_finish(const struct hd_op_gqa_qkv *args, float *k, float *v,
                                       unsigned long long *lost, cudaStream_t stream) {
    HD_LAUNCH_EARLY(gqa_finish, dim3((unsigned)args->batch->n_row), BLOCK, 0, stream, *args,
                    *args->batch, k, v, lost);
}
