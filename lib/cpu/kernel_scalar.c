/* The portable level: plain C on the compiler's own four-lane vectors, for any processor. Two
 * roundings where the others fuse. Slow and simple; also what tests compare the others with. */
#include "cpu/kernel.h"

#define VN 4
typedef float V __attribute__((vector_size(16)));
typedef int32_t VI __attribute__((vector_size(16)));
typedef uint32_t W __attribute__((vector_size(16))); /* four bytes a lane */
typedef float VU __attribute__((vector_size(16), aligned(4), may_alias));

static inline V v_set(float x) { return (V){x, x, x, x}; }
static inline V v_load(const float *p) { return *(const VU *)(const void *)p; }
static inline void v_store(float *p, V x) { *(VU *)(void *)p = x; }
static inline V v_fma(V a, V b, V c) { return a * b + c; }
static inline void v_add_product(V *sum, V a, V b) { *sum = v_fma(a, b, *sum); }
/* The second operand when either is NaN, as the x86 instruction. */
static inline V v_max(V a, V b) {
    VI pick = a > b;
    return (V)(((VI)a & pick) | ((VI)b & ~pick));
}
static inline V v_min(V a, V b) {
    VI pick = a < b;
    return (V)(((VI)a & pick) | ((VI)b & ~pick));
}
/* Larger bit pattern of two that are not negative: NaN beats infinity. */
static inline V v_max_bits(V a, V b) {
    VI pick = (VI)a > (VI)b;
    return (V)(((VI)a & pick) | ((VI)b & ~pick));
}
static inline V v_abs(V a) { return (V)((VI)a & (VI){INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX}); }
/* x + 1.5*2^23 leaves round(x) in the low mantissa bits, for |x| < 2^22. */
static inline V v_round(V x) {
    V big = v_set(12582912.0f);
    return x + big - big;
}
/* round(x) as an integer, same range; anything for NaN. */
static inline VI v_int(V x) {
    V big = v_set(12582912.0f);
    VI offset = {0x4B400000, 0x4B400000, 0x4B400000, 0x4B400000};
    return (VI)(x + big) - offset;
}
/* 2^n for n in -126..127 */
static inline V v_pow2(VI n) {
    VI bias = {127, 127, 127, 127};
    return (V)((n + bias) << 23);
}
static inline VI vi_shift_down(VI n, int by) { return n >> by; }
static inline VI vi_sub(VI a, VI b) { return (VI)((W)a - (W)b); } /* wraps, as the next */
static inline VI vi_add(VI a, VI b) { return (VI)((W)a + (W)b); }
static inline V v_float(VI n) { return __builtin_convertvector(n, V); }
static inline VI vi_set(int32_t n) { return (VI){n, n, n, n}; }
static inline VI vi_shift_up(VI n, int by) { return (VI)((W)n << by); }
/* n / 256, rounded so that what is left is a signed byte. */
static inline VI vi_upper(VI n) { return vi_add(n, vi_set(128)) >> 8; }
/* The integer products of this level, added to acc; of acc too, so that none can be left out. */
#define INT8_EACH 4
static inline VI vi_probe_int8(VI acc, VI x) { return (VI)((W)acc + (W)acc * (W)x); }

static inline V v_decode_f32(const unsigned char *p) {
    V x; /* pairs of BF16 values are read with it, too: at any even address */
    __builtin_memcpy(&x, p, sizeof x);
    return x;
}
static inline V v_decode_f16(const unsigned char *p) {
    uint16_t h[VN];
    __builtin_memcpy(h, p, sizeof h);
    return (V){hd_f16_to_f32(h[0]), hd_f16_to_f32(h[1]), hd_f16_to_f32(h[2]), hd_f16_to_f32(h[3])};
}
static inline V v_decode_bf16(const unsigned char *p) {
    uint16_t h[VN];
    __builtin_memcpy(h, p, sizeof h);
    return (V){hd_bf16_to_f32(h[0]), hd_bf16_to_f32(h[1]), hd_bf16_to_f32(h[2]),
               hd_bf16_to_f32(h[3])};
}
/* The lane whose bits, as a number with a sign, are the largest. */
static inline float v_largest_bits(V x) {
    VI n = (VI)x;
    int best = 0;
    for (int i = 1; i < VN; i++)
        if (n[i] > n[best]) best = i;
    return x[best];
}
static inline int32_t vi_sum(VI n) {
    uint32_t sum = 0;
    for (int i = 0; i < VN; i++) sum += (uint32_t)n[i];
    return (int32_t)sum;
}
/* Sum of 16 lanes by halves: i and i + 8, then 4, 2, 1 apart; the same order at every level. */
static inline float v_sum_16(const V v[4]) {
    V t = (v[0] + v[2]) + (v[1] + v[3]);
    return (t[0] + t[2]) + (t[1] + t[3]);
}

static inline V v_decode_s8(const unsigned char *p) {
    int8_t q[VN];
    __builtin_memcpy(q, p, sizeof q);
    return (V){(float)q[0], (float)q[1], (float)q[2], (float)q[3]};
}
static inline V v_decode_e4m3(const unsigned char *p) {
    return (V){hd_e4m3_to_f32(p[0]), hd_e4m3_to_f32(p[1]), hd_e4m3_to_f32(p[2]),
               hd_e4m3_to_f32(p[3])};
}
/* 2^floor(log2 |x|); 0 of 0. */
static inline V v_binade(V x) {
    return (V)((VI)x & (VI){0x7F800000, 0x7F800000, 0x7F800000, 0x7F800000});
}
/* Codes of sizes that are values of E4M3, with the signs of x. */
static inline void v_store_e4m3(unsigned char *p, V size, V x) {
    for (int i = 0; i < VN; i++)
        p[i] = (unsigned char)(hd_f32_to_e4m3(size[i]) | (((VI)x)[i] < 0 ? 0x80 : 0));
}
static inline void v_store_s8(unsigned char *p, VI n) {
    for (int i = 0; i < VN; i++) p[i] = (unsigned char)n[i];
}
static inline void v_encode_f16(unsigned char *p, V x) {
    uint16_t h[VN] = {hd_f32_to_f16(x[0]), hd_f32_to_f16(x[1]), hd_f32_to_f16(x[2]),
                      hd_f32_to_f16(x[3])};
    __builtin_memcpy(p, h, sizeof h);
}
static inline void v_encode_bf16(unsigned char *p, V x) {
    uint16_t h[VN] = {hd_f32_to_bf16(x[0]), hd_f32_to_bf16(x[1]), hd_f32_to_bf16(x[2]),
                      hd_f32_to_bf16(x[3])};
    __builtin_memcpy(p, h, sizeof h);
}
/* Four values, floats or halves, in all parts of four lanes. */
static inline V v_four(const float *p) { return v_load(p); }
static inline V v_four_halves(const unsigned char *p) { return v_decode_f16(p); }
/* Sums of each part of four lanes of x[0], then of x[1], ...: (0 + 2) + (1 + 3) of its lanes. */
static inline V v_sum_fours(const V x[4]) {
    V sum;
    for (int i = 0; i < 4; i++) sum[i] = (x[i][0] + x[i][2]) + (x[i][1] + x[i][3]);
    return sum;
}
/* Lanes 4 * i .. 4 * i + 3. */
static inline void v_store_four(float *p, V x, int i) {
    (void)i;
    v_store(p, x);
}
/* (even, odd) pairs: x * {c,c} + swapped x * {-s,s}; cs holds c,s,c,s */
static inline V v_rotate(V x, V cs) {
    V swapped = {x[1], x[0], x[3], x[2]};
    V c = {cs[0], cs[0], cs[2], cs[2]}, s = {-cs[1], cs[1], -cs[3], cs[3]};
    return x * c + swapped * s;
}
static inline void v_transpose(V r[VN]) {
    V t[VN];
    for (int i = 0; i < VN; i++) t[i] = (V){r[0][i], r[1][i], r[2][i], r[3][i]};
    for (int i = 0; i < VN; i++) r[i] = t[i];
}

/* ---- Repacked weights ---- */

static inline W w_kept(W w) { return w; }

/* A byte a lane. */
static inline W w_bytes(const unsigned char *p) { return (W){p[0], p[1], p[2], p[3]}; }
static inline W w_lookup(const unsigned char table[16], W index) {
    W out = {0};
    for (int i = 0; i < VN; i++)
        for (int shift = 0; shift < 32; shift += 8)
            out[i] |= (uint32_t)table[index[i] >> shift & 15] << shift;
    return out;
}
/* Of the indices in bytes 0 and 2 of a lane its points (hd_cpu_iq2_points), and of bytes 1 and 3.
 */
static inline void w_points(W index, W point[2]) {
    for (int i = 0; i < VN; i++)
        for (int h = 0; h < 2; h++)
            point[h][i] = hd_cpu_iq2_points[index[i] >> (8 * h) & 255] |
                          (uint32_t)hd_cpu_iq2_points[index[i] >> (8 * h + 16) & 255] << 16;
}
/* acc + the dot products of four unsigned codes a lane with four signed bytes. */
static inline VI v_dot(VI acc, W code, const int8_t *x) {
    for (int i = 0; i < 4; i++) acc += (VI)(code >> (8 * i) & 255) * (int32_t)x[i];
    return acc;
}
#define SUM_START 0 /* no fused multiply-add */
#define START_VALUE 0.0f
#define PACKED_ROWS 1

#define TILE_ROWS 2
#define TILE_PANELS 1
#define STRIDED_ROWS 2 /* of one panel of 16 lanes */
#define KERNELS hd_cpu_scalar
#define KERNELS_NAME "scalar"
#define KERNELS_TITLE "portable C"
#define KERNELS_INTEGERS "scalar-integer"
#define KERNELS_FLOATS "scalar"
#include "cpu/kernel_product.h"
#include "cpu/kernel_repacked.h"
#include "cpu/kernel_rows.h"
