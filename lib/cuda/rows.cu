// Kernels of a row at a time: norms, embeddings, rotations and the cache, and what formats there
// are.
#include "cuda/decode.cuh"

#define ROW(F) extern "C" void hd_cuda_mul_##F(const hd_cuda_mul *m, int n, cudaStream_t stream);
HD_CUDA_FORMATS(ROW)
#undef ROW

static void run_format(const hd_cuda_mul *m, int n, cudaStream_t stream) {
    switch (m->w.format) {
#define ROW(F)                                                                                     \
    case F: hd_cuda_mul_##F(m, n, stream); break;
        HD_CUDA_FORMATS(ROW)
#undef ROW
    default: break; // hd_cuda_can_decode was asked
    }
}

extern "C" void hd_cuda_run_mul(const hd_cuda_mul *m, int n, cudaStream_t stream) {
    bool is_one_format = true;
    for (int i = 0; i < n; i++) {
        is_one_format &= m[i].w.format == m->w.format && m[i].is_rounded == m->is_rounded;
        is_one_format &= m[i].up.data == nullptr || m[i].up.format == m->w.format;
    }
    if (is_one_format) {
        run_format(m, n, stream);
        return;
    }
    for (int i = 0; i < n; i++) {
        hd_cuda_mul one = m[i];
        if (one.up.data != nullptr && one.up.format != one.w.format) {
            one.up.data = nullptr;
            run_format(&one, 1, stream);
            one.w = m[i].up, one.into = HD_CUDA_SWIGLU;
        }
        run_format(&one, 1, stream);
    }
}

extern "C" bool hd_cuda_can_decode(enum hd_format f) {
    switch (f) {
#define ROW(F) case F:
        HD_CUDA_FORMATS(ROW)
#undef ROW
        return true;
    default: return false;
    }
}

constexpr int BLOCK = 256;

// The sum of every thread's v, the same for all of them.
static __device__ float block_sum(float v) {
    __shared__ float warp_sum[BLOCK / 32];
    for (int mask = 16; mask > 0; mask /= 2) v += shuffle_xor(v, mask);
    __syncthreads(); // the last use of warp_sum is over
    if (threadIdx.x % 32 == 0) warp_sum[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (int i = 0; i < BLOCK / 32; i++) v += warp_sum[i];
    return v;
}

static __device__ float inverse_rms(const float *x, int n, float eps) {
    float sum = 0;
#pragma unroll 8
    for (int i = threadIdx.x; i < n; i += BLOCK) sum += x[i] * x[i];
    return 1.0f / sqrtf(block_sum(sum) / (float)n + eps);
}

static __global__ void __launch_bounds__(BLOCK) norm_rows(const hd_cuda_norm a) {
    size_t from = (size_t)(a.ix != nullptr ? a.ix[blockIdx.x] : (int)blockIdx.x);
    const float *x = a.x + from * (size_t)a.n;
    float *out = a.out + (size_t)blockIdx.x * (size_t)a.n;
    float inverse = inverse_rms(x, a.n, a.eps);
    for (int i = threadIdx.x; i < a.n; i += BLOCK) out[i] = a.w[i] * (x[i] * inverse);
}

extern "C" void hd_cuda_run_norm(const hd_cuda_norm *a, cudaStream_t stream) {
    if (a->n_row > 0) HD_LAUNCH(norm_rows, (unsigned)a->n_row, BLOCK, 0, stream, *a);
}

template <int F>
static __global__ void __launch_bounds__(BLOCK)
    embed_rows(const struct hd_op_embed a, const hd_cuda_mat table) {
    int token = a.token[blockIdx.x];
    if (token < 0) {
        token = max(0, a.last[-1 - token]);
        __syncthreads(); // every thread has read what is replaced now
        if (threadIdx.x == 0) a.token[blockIdx.x] = token;
    }
    const unsigned char *row = table.data + (size_t)token * table.row_bytes;
    float *out = a.x + (size_t)blockIdx.x * (size_t)table.n_in;
    for (int k = threadIdx.x * 8; k < table.n_in; k += BLOCK * 8) {
        float v[8];
        codec<F>::values8(row, k, v);
        for (int i = 0; i < 8; i++)
            if (k + i < table.n_in) out[k + i] = v[i];
    }
}

extern "C" void hd_cuda_run_embed(const struct hd_op_embed *args, const hd_cuda_mat *table,
                                  cudaStream_t stream) {
    if (args->n_row == 0) return;
    switch (table->format) {
#define ROW(F)                                                                                     \
    case F: HD_LAUNCH(embed_rows<F>, (unsigned)args->n_row, BLOCK, 0, stream, *args, *table); break;
        HD_CUDA_FORMATS(ROW)
#undef ROW
    default: break;
    }
}

// ---- rotation and cache ----

static __device__ __forceinline__ void put_cache(enum hd_format f, void *cache, size_t at,
                                                 float v) {
    if (f == HD_F32)
        ((float *)cache)[at] = v;
    else
        ((unsigned short *)cache)[at] = (unsigned short)(f == HD_F16 ? f16_bits(v) : bf16_bits(v));
}

struct rotated {
    float a, b;
};
static __device__ __forceinline__ rotated rotate(float a, float b, const float *cs) {
    return {a * cs[0] - b * cs[1], b * cs[0] + a * cs[1]};
}

static __global__ void __launch_bounds__(BLOCK)
    mla_finish(const struct hd_op_mla_qkv a, const hd_batch b, float *kv) {
    int row = (int)blockIdx.x, width = a.n_c + a.n_rope, half = a.n_rope / 2;
    size_t at = (size_t)b.kv_row[row] * (size_t)width;
    const float *cs = a.rope_cs + (size_t)b.pos[row] * (size_t)a.n_rope;
    kv += (size_t)row * (size_t)width;
    float inverse = inverse_rms(kv, a.n_c, a.lora_eps);
    for (int i = threadIdx.x; i < a.n_c; i += BLOCK)
        put_cache(a.kv_format, a.cache, at + (size_t)i, a.kv_a_norm[i] * (kv[i] * inverse));
    for (int i = threadIdx.x; i < half; i += BLOCK) {
        rotated r = rotate(kv[a.n_c + 2 * i], kv[a.n_c + 2 * i + 1], cs + 2 * i);
        put_cache(a.kv_format, a.cache, at + (size_t)(a.n_c + 2 * i), r.a);
        put_cache(a.kv_format, a.cache, at + (size_t)(a.n_c + 2 * i + 1), r.b);
    }
    int q_width = a.n_nope + a.n_rope;
    float *q = a.q_out + (size_t)row * (size_t)a.n_head * (size_t)q_width;
    for (int i = threadIdx.x; i < a.n_head * half; i += BLOCK) {
        float *pair = q + (i / half) * q_width + a.n_nope + i % half * 2;
        rotated r = rotate(pair[0], pair[1], cs + i % half * 2);
        pair[0] = r.a, pair[1] = r.b;
    }
}

extern "C" void hd_cuda_run_mla_finish(const struct hd_op_mla_qkv *args, float *kv,
                                       cudaStream_t stream) {
    HD_LAUNCH(mla_finish, (unsigned)args->batch->n_row, BLOCK, 0, stream, *args, *args->batch, kv);
}

// Bias and rotation of n_head heads of a row; when cache is not NULL they go there instead.
static __device__ void finish_heads(const struct hd_op_gqa_qkv &a, float *x, const float *bias,
                                    const float *cs, int n_head, void *cache, size_t at) {
    int half = a.d_head / 2;
    for (int i = threadIdx.x; i < n_head * half; i += BLOCK) {
        int pair = i % half, at_a = a.is_half_split ? pair : 2 * pair;
        int i_a = i / half * a.d_head + at_a, i_b = i_a + (a.is_half_split ? half : 1);
        rotated r = {x[i_a] + (bias != nullptr ? bias[i_a] : 0),
                     x[i_b] + (bias != nullptr ? bias[i_b] : 0)};
        if (cs != nullptr) r = rotate(r.a, r.b, cs + 2 * pair);
        if (cache != nullptr) {
            put_cache(a.kv_format, cache, at + (size_t)i_a, r.a);
            put_cache(a.kv_format, cache, at + (size_t)i_b, r.b);
        } else {
            x[i_a] = r.a, x[i_b] = r.b;
        }
    }
}

static __global__ void __launch_bounds__(BLOCK)
    gqa_finish(const struct hd_op_gqa_qkv a, const hd_batch b, float *k, float *v) {
    int row = (int)blockIdx.x;
    size_t n_q = (size_t)a.n_head * (size_t)a.d_head, n_kv = (size_t)a.n_head_kv * (size_t)a.d_head;
    size_t at = (size_t)b.kv_row[row] * n_kv;
    const float *cs = a.rope_cs + (size_t)b.pos[row] * (size_t)a.d_head;
    finish_heads(a, a.q_out + (size_t)row * n_q, a.q_bias, cs, a.n_head, nullptr, 0);
    finish_heads(a, k + (size_t)row * n_kv, a.k_bias, cs, a.n_head_kv, a.keys, at);
    finish_heads(a, v + (size_t)row * n_kv, a.v_bias, nullptr, a.n_head_kv, a.values, at);
}

extern "C" void hd_cuda_run_gqa_finish(const struct hd_op_gqa_qkv *args, float *k, float *v,
                                       cudaStream_t stream) {
    HD_LAUNCH(gqa_finish, (unsigned)args->batch->n_row, BLOCK, 0, stream, *args, *args->batch, k,
              v);
}

extern "C" cudaError_t hd_cuda_check_image(void) {
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, (const void *)norm_rows);
}
