/* The inner loops of the cpu backend, one table an instruction-set level.
 *
 * A kernel fixes the order of its sums by its arguments alone: element (r, o) of a product is
 * acc = fma(a[r][k], b[k][o], acc) for k ascending, whatever tile it falls into, so a row's result
 * never depends on the other rows, on how outputs are split, or on which thread computes it. (The
 * scalar level multiplies and adds with two roundings; the order is the same.)
 *
 * Weights are repacked when they are loaded (cpu/pack.h). Quantised ones meet quantised
 * activations. Floats meet some rows as they are read, again for the next rows; where that takes
 * longer `unpack` turns a block of them into a panel with outputs across vector lanes, once for all
 * rows, and the product runs on the panel.
 * Thread: any; kernels hold no state and allocate nothing. All float buffers 64-byte aligned. */
#ifndef HD_CPU_KERNEL_H
#define HD_CPU_KERNEL_H

#include "base/status.h"
#include "cpu/pack.h"
#include "quant/kv.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HD_CPU_LANES 16      /* outputs are padded to a multiple of this in panels and products */
#define HD_CPU_STRIP 64      /* most outputs of one product call, unless rows are few: */
#define HD_CPU_FEW_ROWS 8    /* that meet quantised weights may take any number of outputs */
#define HD_CPU_KBLOCK 128    /* inputs unpacked together: 32 KiB of panel, level-1 cache */
#define HD_CPU_KDECODE 256   /* the same of rows as they lie: whole blocks of any format */
#define HD_CPU_ROWS 256      /* most rows of one product call */
#define HD_CPU_SCORE_KEYS 64 /* most keys of one scoring */
#define HD_CPU_FP8_ROWS 6    /* more are worth a panel of FP8 weights, which take long to decode */

/* c[r][o] (+)= sum over k of a[r][a_off + k*a_step] * b[k*ldb + o], o < n_lane (multiple of 16). */
typedef struct hd_cpu_product {
    int n_row, n_k, n_lane;
    const float *const *a; /* [n_row] */
    size_t a_off, a_step;
    const float *b;
    size_t ldb;
    float *const *c; /* [n_row], 64-byte aligned */
    bool is_sum;     /* add to what c holds; else c is overwritten */
} hd_cpu_product;

/* The same of strips of floats, without a panel: c[r][o] = sum over k of a[r][k] * weight k of
 * output o; the same sums. */
typedef struct hd_cpu_stream {
    enum hd_format format;
    int n_row, n_in, n_strip;   /* n_strip: 1 to 4 */
    const unsigned char *strip; /* the first; the others follow it */
    const unsigned char *next;  /* what is read after them: it is asked for on the way */
    const float *const *a;      /* [n_row] */
    float *const *c;            /* [n_row], 64-byte aligned */
} hd_cpu_stream;

/* panel[(k - k0) * ld + o] = weight k of output o of strips of floats, k0 <= k < k0 + n_k. */
typedef struct hd_cpu_unpack {
    enum hd_format format;
    int n_in, n_strip, k0, n_k; /* k0: a multiple of 128; n_k, too, or up to n_in */
    const unsigned char *strip;
    float *panel;
    size_t ld;
} hd_cpu_unpack;

/* 32 activations as integers. x = d * q with |q| <= 127; and of rows that are wide, which some
 * weights need (docs/precision.md), x = wide.d * n with |n| <= 32512, n = 256 q + lower: what is
 * lost then is the weights' rounding and no more. NaN or infinite activations make d no number. */
typedef struct hd_cpu_xblock {
    int8_t q[32];
    float d, sum;     /* of the q: d * their sum */
    int32_t minus[3]; /* -128 * the sum of the first 16, of the others, and of all */
    struct {
        int8_t lower[32];
        float d, sum; /* the same of the n */
        int32_t minus[3];
    } wide; /* there only in rows that are wide */
} hd_cpu_xblock;

/* Rows of such blocks. */
typedef struct hd_cpu_qrows {
    int n_k; /* elements a row, multiple of 32 */
    bool is_wide;
    unsigned char *row0;
    size_t row_bytes; /* from one row to the next */
} hd_cpu_qrows;

static inline size_t hd_cpu_xblock_bytes(bool is_wide) {
    return is_wide ? sizeof(hd_cpu_xblock) : offsetof(hd_cpu_xblock, wide);
}

/* c[r][o] = sum over k of x[r][k] * weight k of output o of strips (cpu/pack.h), from rows' q or,
 * when is_wide, n. Blocks ascend. */
typedef struct hd_cpu_packed_product {
    enum hd_format format;
    bool is_wide;
    int n_row, n_in, n_strip;      /* more than HD_CPU_FEW_ROWS rows: at most 4 strips */
    const unsigned char *strip;    /* the first; the others follow it */
    const unsigned char *next;     /* what is read after them: it is asked for on the way */
    const unsigned char *const *x; /* [n_row] first blocks of rows */
    size_t x_step;                 /* bytes from a row's block to its next */
    float *c;                      /* [n_row, ldc], 16 of each row for a strip */
    size_t ldc;                    /* more than HD_CPU_FEW_ROWS rows: HD_CPU_STRIP */
} hd_cpu_packed_product;

/* panel[k * ld + o] = weight k of output o of a strip of quantised weights. */
typedef struct hd_cpu_packed_unpack {
    enum hd_format format;
    int n_in;
    const unsigned char *strip;
    float *panel; /* [n_in, ld] */
    size_t ld;
} hd_cpu_packed_unpack;

/* Memory that is wanted next, asked for while a kernel works: n pieces of so many bytes; n 0: none.
 * What asks takes pieces as if they followed one another for a while: where they do not, a wrong
 * line costs nothing but its fetching. */
typedef struct hd_cpu_ahead {
    const void *const *piece;
    int n;
    size_t n_byte;
} hd_cpu_ahead;

/* Rows of values, from one to the next ld values: floats, or F16, which becomes floats on the way.
 */
typedef struct hd_cpu_values {
    const void *at;
    size_t ld;
    bool is_half;
} hd_cpu_values;

/* Attention: c[r*ldc + o] = sum over k of a[r*a_row + k*a_step] * b[o/16*b_panel + k*b.ld + o%16],
 * o < n_lane, which is a multiple of 16. */
typedef struct hd_cpu_strided {
    int n_row, n_k, n_lane;
    const float *a;
    size_t a_row, a_step;
    hd_cpu_values b;
    size_t b_panel;
    float *c;
    size_t ldc;
    bool is_sum;              /* the sum begins with what c holds */
    const float *keep, *gain; /* [n_row]: c = keep * c + gain * sum; NULL: c = sum */
    hd_cpu_ahead ahead;       /* a cache line for each k and two panels at most */
} hd_cpu_strided;

/* Scores of queries by fours: s[t*lds + q] is key t times query q, q < 4 * n_four. Every fourth
 * value has a sum of its own, k ascending from value i on: (sum 0 + sum 2) + (sum 1 + sum 3). */
typedef struct hd_cpu_scoring {
    int n_t, n_four, n_key; /* n_t <= HD_CPU_SCORE_KEYS */
    const float *q;  /* [n_four, (n_key + 3) / 4, 4, 4] by value / 4, query, value % 4; zeros past
                        the last value */
    hd_cpu_values k; /* [n_t] keys */
    float *s;
    size_t lds;
    hd_cpu_ahead ahead; /* a cache line for each four values of four keys at most */
} hd_cpu_scoring;

/* The softmax of one block of positions, a query a lane: s[t*lds + q] becomes e^(scale*s - m[q]),
 * m[q] the largest scale*s and l[q] the sum of the weights, t ascending. */
typedef struct hd_cpu_weighing {
    float *s;
    size_t lds;
    int n_t, n_lane; /* n_lane: multiple of 16 */
    float scale;
    float *m, *l; /* [n_lane] */
} hd_cpu_weighing;

/* A block's m and l brought into those of the blocks before it; what each side's sums of weighted
 * values are then multiplied by. */
typedef struct hd_cpu_merging {
    int n_lane;   /* multiple of 16 */
    float *m, *l; /* [n_lane], as all below */
    const float *block_m, *block_l;
    float *keep, *gain;
} hd_cpu_merging;

typedef struct hd_cpu_kernels {
    const char *name, *title; /* option value; for people */
    /* For people, too: what multiplies quantised weights; floats; what is decoded. */
    const char *integers, *floats, *decoded;
    /* panel[k*ld + o] = row[o][k], k < n; lanes from n_row up to the next multiple of 16 become 0.
     * Reads no byte outside the elements named. */
    void (*lanes)(const float *const *row, int n_row, int n, float *panel, size_t ld);
    void (*product)(const hd_cpu_product *p);
    void (*stream)(const hd_cpu_stream *s);
    void (*unpack)(const hd_cpu_unpack *u);
    void (*packed_product)(const hd_cpu_packed_product *p);
    void (*packed_unpack)(const hd_cpu_packed_unpack *u);
    /* x[n] into n/32 blocks. */
    void (*quantise)(const float *x, int n, bool is_wide, unsigned char *row);
    /* y = x / sqrt(mean(x^2) + eps) * w; y may be x. */
    void (*norm)(const float *x, const float *w, float eps, int n, float *y);
    /* y = silu(g) * u */
    void (*swiglu)(const float *g, const float *u, int n, float *y);
    void (*strided)(const hd_cpu_strided *p);
    void (*score)(const hd_cpu_scoring *s);
    void (*weigh)(const hd_cpu_weighing *w);
    void (*merge)(const hd_cpu_merging *m);
    /* x = keep * x + gain * y; n is a multiple of 16. */
    void (*fold)(float *x, const float *y, int n, float keep, float gain);
    void (*scale)(float *x, int n, float by);
    /* y += by * x; n any. */
    void (*axpy)(const float *x, int n, float by, float *y);
    /* Interleaved pairs of x[n] turned by cs[n/2][2] (cos, sin). */
    void (*rope)(float *x, const float *cs, int n);
    void (*decode)(enum hd_format f, const void *src, float *dst, int n); /* whole blocks */
    void (*encode)(enum hd_format f, const float *src, void *dst, int n); /* F32, F16, BF16 */
    /* A group of a cache row (quant/kv.h): its codes; returns its scale, NaN when a value is past
     * the limit (then every code is 0). And n of its values, from code[0] on. */
    float (*encode_group)(enum hd_kv_type t, const float *src, unsigned char *code, int n);
    void (*decode_group)(enum hd_kv_type t, const unsigned char *code, float scale, float *dst,
                         int n);
    /* What the machine can do at this level (roofline.c): floating-point operations done by n
     * rounds of multiply-adds on registers, the same of 8-bit integers, and a sum over p[n], n a
     * multiple of 128. */
    double (*probe_fma)(int64_t n, float *sink);
    double (*probe_int8)(int64_t n, int32_t *sink);
    float (*probe_read)(const float *p, size_t n);
} hd_cpu_kernels;

extern const hd_cpu_kernels hd_cpu_scalar;
#if defined(__x86_64__)
extern const hd_cpu_kernels hd_cpu_avx2, hd_cpu_avxvnni, hd_cpu_avx512;
/* The AVX-512 level's, with two kernels of its own. */
extern const hd_cpu_kernels hd_cpu_amx;
void hd_cpu_amx_product(const hd_cpu_packed_product *p);
double hd_cpu_amx_probe_int8(int64_t n, int32_t *sink);
#endif

/* The best level that this machine has, for "auto" or NULL, or the one named (level.c). */
hd_status hd_cpu_choose_level(const char *isa, const hd_cpu_kernels **out);

#endif
