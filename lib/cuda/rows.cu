// Kernels of a row at a time: norms and embeddings; and what formats there are.
#include "cuda/block.cuh"
#include "cuda/decode.cuh"
#include "cuda/norm.cuh"

#define ROW(F) extern "C" void hd_cuda_mul_##F(const hd_cuda_mul *m, int n, cudaStream_t stream);
HD_CUDA_FORMATS(ROW)
#undef ROW

static void run_format(const hd_cuda_mul *m, int n, cudaStream_t stream) {
    if (hd_cuda_can_mul_fp8(m, n)) {
        hd_cuda_run_mul_fp8(m, n, stream);
        return;
    }
    switch (m->w.format) {
#define ROW(F)                                                                                     \
    case F: hd_cuda_mul_##F(m, n, stream); break;
        HD_CUDA_FORMATS(ROW)
#undef ROW
    default: break; // hd_cuda_can_decode was asked
    }
}

// Whether both matrices are of one format, and the inputs are rounded.
static bool is_plain(const hd_cuda_mul *m) {
    bool is_mixed = m->up.data != nullptr && m->up.format != m->w.format;
    return m->is_rounded && !is_mixed && m->into != HD_CUDA_SWIGLU;
}

extern "C" int hd_cuda_stream_rows(const hd_cuda_mul *m) {
    // Two blocks a multiprocessor, each with its slices' sums and what the system takes.
    size_t fixed = HD_CUDA_SLICES * (16 + 1) * HD_CUDA_STREAM_ROWS * sizeof(float) + 1280;
    size_t room = hd_cuda_current().shared_max / 2;
    size_t n = room > fixed ? (room - fixed) / hd_cuda_input_stride(m->w.n_in) : 0;
    return n < HD_CUDA_STREAM_ROWS ? (int)n : HD_CUDA_STREAM_ROWS;
}

extern "C" bool hd_cuda_can_stream(const hd_cuda_mul *m, int n) {
    for (int i = 0; i < n; i++) {
        int rows = hd_cuda_stream_rows(&m[i]);
        if (!is_plain(&m[i]) || rows == 0) return false;
        if (m[i].tile != nullptr ? m[i].tile_rows > rows : m[i].n_row > 2 * HD_CUDA_MANY_ROWS)
            return false;
    }
    return true;
}

extern "C" bool hd_cuda_can_mul_fp8(const hd_cuda_mul *m, int n) {
    for (int i = 0; i < n; i++) {
        if (m[i].w.format != HD_F8_B128 || m[i].is_ordered || !is_plain(&m[i])) return false;
        int rows = hd_cuda_fp8_rows(m[i].w.n_in);
        if (rows == 0) return false;
        if (m[i].tile == nullptr && m[i].n_row > HD_CUDA_FP8_ROWS) return false;
        if (m[i].tile != nullptr && (m[i].tile_rows > HD_CUDA_FP8_TILE || m[i].tile_rows > rows))
            return false;
    }
    return true;
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

static __global__ void __launch_bounds__(BLOCK) norm_rows(const hd_cuda_norm a) {
    let_next_start();
    wait_for_previous();
    size_t from = (size_t)(a.ix != nullptr ? a.ix[blockIdx.x] : (int)blockIdx.x);
    const float *x = a.x + from * (size_t)a.n;
    float *out = a.out + (size_t)blockIdx.x * (size_t)a.n;
    uint16_t *out_bf16 = a.out_bf16 + (size_t)blockIdx.x * a.ld_bf16;
    __shared__ float warp_sum[BLOCK / 32];
    sum_squares(x, a.n, warp_sum);
    __syncthreads();
    float inverse = inverse_of(warp_sum, a.n, a.eps);
    for (int k = (int)threadIdx.x * 8; k < a.n; k += BLOCK * 8) {
        float v[8], w[8]; // all of them are read before the first is written
        load_any8(x, k, a.n, v);
        load_any8(a.w, k, a.n, w);
#pragma unroll
        for (int e = 0; e < 8; e++) v[e] = w[e] * (v[e] * inverse);
        if (a.out != nullptr) store_any8(out, k, a.n, v);
        for (int e = 0; a.out_bf16 != nullptr && e < 8 && k + e < a.n; e++)
            out_bf16[k + e] = (uint16_t)bf16_bits(v[e]);
    }
}

static __global__ void __launch_bounds__(BLOCK)
    round_rows(const float *x, int n, uint16_t *out, size_t ld) {
    let_next_start();
    wait_for_previous();
    x += (size_t)blockIdx.x * (size_t)n, out += (size_t)blockIdx.x * ld;
    bool is_pairs = n % 2 == 0;
    for (int i = threadIdx.x; is_pairs && i < n / 2; i += BLOCK) {
        float2 v = ((const float2 *)x)[i];
        ((uint32_t *)out)[i] = bf16_bits(v.x) | bf16_bits(v.y) << 16;
    }
    for (int i = threadIdx.x; !is_pairs && i < n; i += BLOCK) out[i] = (uint16_t)bf16_bits(x[i]);
}

extern "C" void hd_cuda_run_round(const float *x, int n_row, int n, uint16_t *out, size_t ld,
                                  cudaStream_t stream) {
    if (n_row > 0)
        HD_LAUNCH_EARLY(round_rows, dim3((unsigned)n_row), BLOCK, 0, stream, x, n, out, ld);
}

extern "C" void hd_cuda_run_norm(const hd_cuda_norm *a, cudaStream_t stream) {
    if (a->n_row > 0) HD_LAUNCH_EARLY(norm_rows, dim3((unsigned)a->n_row), BLOCK, 0, stream, *a);
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
        values8<F>(row, k, v);
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

static __global__ void __launch_bounds__(BLOCK)
    sum_ranks(const float *all, int n_rank, size_t n, float *x) {
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= n) return;
    float sum = all[i];
    for (int k = 1; k < n_rank; k++) sum += all[(size_t)k * n + i];
    x[i] = sum;
}

extern "C" void hd_cuda_run_sum_ranks(const float *all, int n_rank, size_t n, float *x,
                                      cudaStream_t stream) {
    HD_LAUNCH(sum_ranks, (unsigned)((n + BLOCK - 1) / BLOCK), BLOCK, 0, stream, all, n_rank, n, x);
}

extern "C" cudaError_t hd_cuda_check_image(int *level) {
    cudaFuncAttributes attributes;
    cudaError_t e = cudaFuncGetAttributes(&attributes, (const void *)norm_rows);
    *level = e == cudaSuccess ? attributes.ptxVersion : 0;
    return e;
}
