/* Row-wise kernels of one instruction-set level and its table; included after kernel_product.h,
 * over the same primitives. Sums over a row use 16 partial sums at every level, whatever VN is. */

#include "cpu/kernel_cache.h"

/* ---- Quantising ---- */

/* -128 times the sum of 16, as 32-bit numbers. */
ALWAYS int32_t minus_sum(const VI *n) {
    VI sum = n[0];
    UNROLL for (int v = 1; v < VP; v++) sum = vi_add(sum, n[v]);
    return (int32_t)((uint32_t)vi_sum(sum) * (uint32_t)-128);
}

/* The third of such sums from the first two; as a number. */
ALWAYS float add_sums(int32_t minus[3]) {
    minus[2] = (int32_t)((uint32_t)minus[0] + (uint32_t)minus[1]);
    return -0x1p-7f * (float)minus[2];
}

ALWAYS void quantise_block(const float *x, bool is_wide, hd_cpu_xblock *b) {
    float amax = largest_bits(x, HD_CPU_SUB);
    /* A denormal maximum would make the inverse infinite: such a block is zero. */
    bool is_zero = amax < 1e-32f;
    float inverse = is_zero ? 0.0f : 32512.0f / amax;
    b->d = is_zero ? 0.0f : amax / 127.0f;
    for (int half = 0; half < 2; half++, x += HD_CPU_LANES) {
        VI n[VP], upper[VP];
        UNROLL for (int v = 0; v < VP; v++) {
            n[v] = v_int(v_load(x + v * VN) * v_set(inverse));
            upper[v] = vi_upper(n[v]);
            v_store_s8((unsigned char *)b->q + half * HD_CPU_LANES + v * VN, upper[v]);
        }
        b->minus[half] = minus_sum(upper);
        if (!is_wide) continue;
        UNROLL for (int v = 0; v < VP; v++)
            v_store_s8((unsigned char *)b->wide.lower + half * HD_CPU_LANES + v * VN,
                       vi_sub(n[v], vi_shift_up(upper[v], 8)));
        b->wide.minus[half] = minus_sum(n);
    }
    b->sum = b->d * add_sums(b->minus);
    if (!is_wide) return;
    b->wide.d = b->d * 0x1p-8f;
    b->wide.sum = b->wide.d * add_sums(b->wide.minus);
}

static void quantise(const float *x, int n, bool is_wide, unsigned char *row) {
    for (int i = 0; i < n; i += HD_CPU_SUB, row += hd_cpu_xblock_bytes(is_wide))
        quantise_block(x + i, is_wide, (hd_cpu_xblock *)(void *)row);
}

/* ---- Element-wise ---- */

/* e^x, at most 2 units in the last place from -87 to 88; below it goes to 0 through the denormals,
 * above it to infinity; NaN stays NaN. Range reduction by ln 2 in two parts and the degree-6
 * polynomial of Cephes' expf (S. Moshier). */
ALWAYS V v_exp(V x) {
    x = v_min(v_set(89.0f), v_max(v_set(-106.0f), x));
    V n = v_round(x * v_set(1.44269504f));
    V r = v_fma(n, v_set(-0.693359375f), x);
    r = v_fma(n, v_set(2.12194440e-4f), r);
    V y = v_set(1.9875691500e-4f);
    y = v_fma(y, r, v_set(1.3981999507e-3f));
    y = v_fma(y, r, v_set(8.3334519073e-3f));
    y = v_fma(y, r, v_set(4.1665795894e-2f));
    y = v_fma(y, r, v_set(1.6666665459e-1f));
    y = v_fma(y, r, v_set(5.0000001201e-1f));
    y = v_fma(y, r * r, r) + v_set(1.0f);
    VI whole = v_int(n), half = vi_shift_down(whole, 1);
    return y * v_pow2(half) * v_pow2(vi_sub(whole, half));
}

static void norm(const float *x, const float *w, float eps, int n, float *y) {
    V acc[VP];
    for (int v = 0; v < VP; v++) acc[v] = v_set(0);
    int i = 0;
    for (; i + HD_CPU_LANES <= n; i += HD_CPU_LANES) {
        UNROLL for (int v = 0; v < VP; v++) {
            V e = v_load(x + i + v * VN);
            acc[v] = v_fma(e, e, acc[v]);
        }
    }
    float tail[HD_CPU_LANES] = {0};
    if (i < n) __builtin_memcpy(tail, x + i, sizeof(float) * (size_t)(n - i));
    UNROLL for (int v = 0; v < VP; v++) {
        V e = v_load(tail + v * VN);
        acc[v] = v_fma(e, e, acc[v]);
    }
    float scale = 1.0f / __builtin_sqrtf(v_sum_16(acc) / (float)n + eps);
    for (i = 0; i + VN <= n; i += VN) v_store(y + i, v_load(x + i) * v_set(scale) * v_load(w + i));
    for (; i < n; i++) y[i] = x[i] * scale * w[i];
}

ALWAYS V swiglu_lanes(V g, V u) { return g / (v_set(1.0f) + v_exp(v_set(0) - g)) * u; }

static void swiglu(const float *g, const float *u, int n, float *y) {
    int i = 0;
    for (; i + VN <= n; i += VN) v_store(y + i, swiglu_lanes(v_load(g + i), v_load(u + i)));
    if (i == n) return;
    float a[VN] = {0}, b[VN] = {0};
    size_t tail = sizeof(float) * (size_t)(n - i);
    __builtin_memcpy(a, g + i, tail);
    __builtin_memcpy(b, u + i, tail);
    v_store(a, swiglu_lanes(v_load(a), v_load(b)));
    __builtin_memcpy(y + i, a, tail);
}

#include "cpu/kernel_attn.h"
#include "cpu/kernel_score.h"

static void scale(float *x, int n, float by) {
    int i = 0;
    for (; i + VN <= n; i += VN) v_store(x + i, v_load(x + i) * v_set(by));
    for (; i < n; i++) x[i] *= by;
}

static void axpy(const float *x, int n, float by, float *y) {
    int i = 0;
    for (; i + VN <= n; i += VN) v_store(y + i, v_load(y + i) + v_load(x + i) * v_set(by));
    for (; i < n; i++) y[i] += x[i] * by;
}

static void rope(float *x, const float *cs, int n) {
    int i = 0;
    for (; i + VN <= n; i += VN) v_store(x + i, v_rotate(v_load(x + i), v_load(cs + i)));
    if (i == n) return;
    float a[VN] = {0}, b[VN] = {0};
    size_t tail = sizeof(float) * (size_t)(n - i);
    __builtin_memcpy(a, x + i, tail);
    __builtin_memcpy(b, cs + i, tail);
    v_store(a, v_rotate(v_load(a), v_load(b)));
    __builtin_memcpy(x + i, a, tail);
}

/* ---- Formats ---- */

ALWAYS void decode_as(enum hd_format f, const unsigned char *src, float *dst, int n) {
    int i = 0;
    for (; i + VN <= n; i += VN) v_store(dst + i, decode_lanes(f, src, i));
    if (i == n) return;
    float part[VN];
    v_store(part, decode_tail(f, src, i, n - i));
    __builtin_memcpy(dst + i, part, sizeof(float) * (size_t)(n - i));
}

static void decode(enum hd_format f, const void *src, float *dst, int n) {
    switch (f) {
    case HD_F32: decode_as(HD_F32, src, dst, n); break;
    case HD_F16: decode_as(HD_F16, src, dst, n); break;
    default: decode_as(HD_BF16, src, dst, n); break;
    }
}

static void encode(enum hd_format f, const float *src, void *dst, int n) {
    unsigned char *out = dst;
    if (f == HD_F32) {
        __builtin_memcpy(out, src, sizeof(float) * (size_t)n);
        return;
    }
    for (int i = 0; i < n; i += VN, out += 2 * VN) {
        int left = n - i < VN ? n - i : VN;
        float part[VN] = {0};
        unsigned char bytes[2 * VN];
        __builtin_memcpy(part, src + i, sizeof(float) * (size_t)left);
        if (f == HD_F16)
            v_encode_f16(bytes, v_load(part));
        else
            v_encode_bf16(bytes, v_load(part));
        __builtin_memcpy(out, bytes, 2 * (size_t)left);
    }
}

/* ---- Probes ---- */

static double probe_fma(int64_t n, float *sink) {
    enum { N = 12 }; /* latency 4, two a cycle: 8 would do */
    V acc[N], x = v_set(*sink), y = v_set(1e-9f);
    UNROLL for (int i = 0; i < N; i++) acc[i] = v_set((float)i);
    for (int64_t k = 0; k < n; k++) {
        UNROLL for (int i = 0; i < N; i++) acc[i] = v_fma(acc[i], x, y);
    }
    V sum = acc[0];
    UNROLL for (int i = 1; i < N; i++) sum = sum + acc[i];
    *sink = sum[0];
    return 2.0 * N * VN * (double)n;
}

static double probe_int8(int64_t n, int32_t *sink) {
    enum { N = 12 };
    VI acc[N], x = vi_set(*sink);
    UNROLL for (int i = 0; i < N; i++) acc[i] = vi_set(i + 1);
    for (int64_t k = 0; k < n; k++) {
        UNROLL for (int i = 0; i < N; i++) acc[i] = vi_probe_int8(acc[i], x);
    }
    VI sum = acc[0];
    UNROLL for (int i = 1; i < N; i++) sum = vi_add(sum, acc[i]);
    __builtin_memcpy(sink, &sum, sizeof *sink);
    return 2.0 * N * INT8_EACH * (double)n;
}

static float probe_read(const float *p, size_t n) {
    V acc[8];
    UNROLL for (int i = 0; i < 8; i++) acc[i] = v_set(0);
    for (size_t k = 0; k < n; k += (size_t)8 * VN) {
        UNROLL for (int i = 0; i < 8; i++) acc[i] = acc[i] + v_load(p + k + i * VN);
    }
    UNROLL for (int i = 1; i < 8; i++) acc[0] = acc[0] + acc[i];
    return acc[0][0];
}

/* What levels of the same lanes share. */
#define KERNELS_OF_ROWS                                                                            \
    .floats = KERNELS_FLOATS, .decoded = "decode, " KERNELS_FLOATS, .lanes = lanes,                \
    .product = product, .stream = stream, .unpack = unpack, .packed_unpack = packed_unpack,        \
    .quantise = quantise, .norm = norm, .swiglu = swiglu, .strided = strided, .score = score,      \
    .weigh = weigh, .merge = merge, .fold = fold, .scale = scale, .axpy = axpy, .rope = rope,      \
    .decode = decode, .encode = encode, .encode_group = encode_group,                              \
    .decode_group = decode_group, .probe_fma = probe_fma, .probe_read = probe_read

const hd_cpu_kernels KERNELS = {
    .name = KERNELS_NAME,
    .title = KERNELS_TITLE,
    .integers = KERNELS_INTEGERS,
    .packed_product = packed_product,
    .probe_int8 = probe_int8,
    KERNELS_OF_ROWS,
};
