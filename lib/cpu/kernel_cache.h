/* Groups of cache rows (quant/kv.h) at one instruction-set level: bit for bit what the reference
 * does. Included by kernel_rows.h, over the same primitives. */

ALWAYS V load_part(const float *x, int n) {
    float part[VN] = {0};
    __builtin_memcpy(part, x, sizeof(float) * (size_t)n);
    return v_load(part);
}

/* The largest magnitude by its bits, so that NaN is larger than everything. */
ALWAYS float largest_bits(const float *x, int n) {
    V top = v_set(0);
    int i = 0;
    for (; i + VN <= n; i += VN) top = v_max_bits(top, v_abs(v_load(x + i)));
    if (i < n) top = v_max_bits(top, v_abs(load_part(x + i, n - i)));
    return v_largest_bits(top);
}

/* Of E4M3: rounded to three bits of fraction, or to a multiple of 2^-9, by adding and taking away a
 * number whose last bit is that. */
ALWAYS void encode_lanes(enum hd_kv_type t, unsigned char *code, V x) {
    if (t == HD_KV_INT8) {
        v_store_s8(code, v_int(x));
        return;
    }
    V big = v_max(v_binade(x), v_set(0x1p-6f)) * v_set(0x1.8p20f);
    v_store_e4m3(code, v_abs(x) + big - big, x);
}

ALWAYS float encode_group_as(enum hd_kv_type t, const float *src, unsigned char *code, int n) {
    float amax = largest_bits(src, n);
    if (!(amax < HD_KV_LIMIT)) {
        __builtin_memset(code, 0, (size_t)n);
        return __builtin_nanf("");
    }
    float group_scale = hd_kv_scale(t, amax);
    V inverse = v_set(1.0f / group_scale);
    int i = 0;
    for (; i + VN <= n; i += VN) encode_lanes(t, code + i, v_load(src + i) * inverse);
    if (i == n) return group_scale;
    unsigned char part[VN];
    encode_lanes(t, part, load_part(src + i, n - i) * inverse);
    __builtin_memcpy(code + i, part, (size_t)(n - i));
    return group_scale;
}

static float encode_group(enum hd_kv_type t, const float *src, unsigned char *code, int n) {
    return t == HD_KV_FP8 ? encode_group_as(HD_KV_FP8, src, code, n)
                          : encode_group_as(HD_KV_INT8, src, code, n);
}

ALWAYS V decode_code_lanes(enum hd_kv_type t, const unsigned char *code) {
    return t == HD_KV_FP8 ? v_decode_e4m3(code) : v_decode_s8(code);
}

ALWAYS void decode_group_as(enum hd_kv_type t, const unsigned char *code, V by, float *dst, int n) {
    int i = 0;
    for (; i + VN <= n; i += VN) v_store(dst + i, decode_code_lanes(t, code + i) * by);
    if (i == n) return;
    unsigned char part[VN] = {0};
    float out[VN];
    __builtin_memcpy(part, code + i, (size_t)(n - i));
    v_store(out, decode_code_lanes(t, part) * by);
    __builtin_memcpy(dst + i, out, sizeof(float) * (size_t)(n - i));
}

static void decode_group(enum hd_kv_type t, const unsigned char *code, float by, float *dst,
                         int n) {
    if (t == HD_KV_FP8)
        decode_group_as(HD_KV_FP8, code, v_set(by), dst, n);
    else
        decode_group_as(HD_KV_INT8, code, v_set(by), dst, n);
}
