/* Drawing a token from a row of logits: the arithmetic and the order that every backend and the
 * host share, so that a row and a draw give the same token everywhere, bit for bit.
 *
 * A candidate is an id with x = (logit - max) / temperature above HD_DRAW_X_MIN and not below
 * min_x. Its weight is a whole number, 2^HD_DRAW_BITS * e^x rounded down: sums of weights do not
 * depend on the order in which they are added up. The exponential is made of float32 additions and
 * products only. Candidates are ranked by logit, equal ones by id, and top_k  leaves the first
 * top_k; top_p  of these the shortest beginning, at least one, whose sum is at least top_p * sum;
 * the token is the first one, by id, at which the sum over what is left exceeds u * sum. */
#ifndef HD_DEV_DRAW_H
#define HD_DEV_DRAW_H

#include "base/batch.h"

#ifdef __CUDACC__
#define HD_DRAW_FN static __device__ __forceinline__
HD_DRAW_FN float hd_draw_mul(float a, float b) { return __fmul_rn(a, b); }
HD_DRAW_FN float hd_draw_add(float a, float b) { return __fadd_rn(a, b); }
HD_DRAW_FN float hd_draw_bits(uint32_t bits) { return __uint_as_float(bits); }
#else
#include <string.h>
#define HD_DRAW_FN static inline
HD_DRAW_FN float hd_draw_mul(float a, float b) {
    return a * b;
} /* no contraction: CMakeLists.txt */
HD_DRAW_FN float hd_draw_add(float a, float b) { return a + b; }
HD_DRAW_FN float hd_draw_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
#endif

/* 2^20 weights of at most 2^42 do not overflow 64 bits. */
enum { HD_DRAW_BITS = 42, HD_DRAW_VOCAB_MAX = 1 << 20 };
#define HD_DRAW_X_MIN (-30.0f) /* below this a weight is 0 */

HD_DRAW_FN float hd_draw_x(float logit, float max, float temperature) {
    return (logit - max) / temperature;
}
HD_DRAW_FN bool hd_draw_is_candidate(float x, float min_x) {
    return x > HD_DRAW_X_MIN && x >= min_x;
}

/* e^x of a candidate, right to 2 units in the last place. Argument reduction by Cody and Waite,
 * then the series to the seventh power. */
HD_DRAW_FN float hd_draw_exp(float x) {
    int k = (int)hd_draw_add(hd_draw_mul(x, 1.44269504f), -0.5f); /* rounded to nearest: <= 0 */
    float n = (float)-k;
    float r = hd_draw_add(x, hd_draw_mul(n, 0.693359375f)); /* ln 2 in two parts */
    r = hd_draw_add(r, hd_draw_mul(n, -2.12194440e-4f));
    float y = 1.0f / 5040;
    y = hd_draw_add(hd_draw_mul(y, r), 1.0f / 720);
    y = hd_draw_add(hd_draw_mul(y, r), 1.0f / 120);
    y = hd_draw_add(hd_draw_mul(y, r), 1.0f / 24);
    y = hd_draw_add(hd_draw_mul(y, r), 1.0f / 6);
    y = hd_draw_add(hd_draw_mul(y, r), 0.5f);
    y = hd_draw_add(hd_draw_mul(y, r), 1.0f);
    y = hd_draw_add(hd_draw_mul(y, r), 1.0f);
    return hd_draw_mul(y, hd_draw_bits((uint32_t)(127 + k) << 23));
}

HD_DRAW_FN uint64_t hd_draw_weight(float x) {
    return (uint64_t)hd_draw_mul(hd_draw_exp(x), (float)(1ll << HD_DRAW_BITS));
}

/* Bins of candidates, best first: a candidate of a lower bin is ranked before one of a higher. */
enum { HD_DRAW_BINS = 1921 };
HD_DRAW_FN int hd_draw_bin(float x) { return (int)hd_draw_mul(x, -64.0f); }

/* The sum up to which ids are passed over: less than `sum`, which is at least 1. */
HD_DRAW_FN uint64_t hd_draw_target(double u, uint64_t sum) {
    uint64_t at = (uint64_t)(u * (double)sum);
    return at < sum ? at : sum - 1;
}

/* How much is kept of the ranks: the first n_max, or fewer when their mass reaches top_p of sum. */
typedef struct hd_draw_bound {
    int32_t n_max;
    float top_p; /* 1: no bound */
    uint64_t sum;
} hd_draw_bound;
HD_DRAW_FN bool hd_draw_is_reached(hd_draw_bound b, int32_t n, uint64_t mass) {
    return n >= b.n_max || (b.top_p < 1 && (double)mass >= (double)b.top_p * (double)b.sum);
}

#ifndef __CUDACC__
/* Working memory for a row; of one thread at a time. */
typedef struct hd_draw_desk hd_draw_desk;
hd_draw_desk *hd_draw_desk_new(int n_vocab); /* 1 .. HD_DRAW_VOCAB_MAX */
void hd_draw_desk_free(hd_draw_desk *d);     /* accepts NULL */

/* row [n_vocab]: finite, or -infinity: cannot be drawn. -1: none can. */
int32_t hd_draw_token(hd_draw_desk *d, const float *row, const hd_draw *how);
/* Whether no value of x [n] is NaN or infinite. */
bool hd_draw_is_finite(const float *x, int n);
/* The op `sample` for one row: -1 when it is not finite. is_token [n_vocab], or NULL: all are. */
int32_t hd_draw_row(hd_draw_desk *d, const float *logits, const uint8_t *is_token,
                    const hd_draw *how);
#endif

#endif
