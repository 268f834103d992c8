/* Least-squares fits of a few floats by small integer codes, for the encoders.
 *
 * The codes that are best for a given scale are the rounded ones; the scale that is best for given
 * codes is a weighted least-squares quotient. The error has many local minima, so a handful of
 * starting scales is tried, each refined by that quotient, and the best kept. */
#include "quant/blocks.h"

#include <math.h>

enum { n_try = 19 };

static float weight_of(const float *weight, const float *x, int i) {
    /* Without measured importance large weights matter more: they carry more of the output. */
    return weight ? weight[i] : x[i] * x[i] + 1e-12f;
}

float hd_fit_symmetric(const float *x, const float *weight, int n, int lo, int hi, int8_t *q) {
    float extreme = 0;
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > fabsf(extreme)) extreme = x[i];
    for (int i = 0; i < n; i++) q[i] = 0;
    if (!(fabsf(extreme) > 1e-30f) || !isfinite(extreme)) return 0;
    float best_d = 0, best_gain = -1;
    for (int t = 0; t < n_try; t++) {
        float inverse = ((float)lo + 0.1f * (float)(t - n_try / 2)) / extreme;
        float sum_xq = 0, sum_qq = 0;
        for (int i = 0; i < n; i++) {
            float w = weight_of(weight, x, i);
            float code = (float)clamp_round(x[i] * inverse, lo, hi);
            sum_xq += w * x[i] * code;
            sum_qq += w * code * code;
        }
        /* error = sum w x^2 - sum_xq^2 / sum_qq at the best scale */
        if (sum_qq > 0 && sum_xq * sum_xq / sum_qq > best_gain) {
            best_gain = sum_xq * sum_xq / sum_qq;
            best_d = sum_xq / sum_qq;
        }
    }
    if (best_d == 0) return 0;
    for (int i = 0; i < n; i++) q[i] = (int8_t)clamp_round(x[i] / best_d, lo, hi);
    return best_d;
}

struct sums {
    float w, x, xx, q, qq, xq;
};

static struct sums sums_of(const float *x, const float *weight, int n, int hi, float inverse,
                           float m) {
    struct sums s = {0};
    for (int i = 0; i < n; i++) {
        float w = weight_of(weight, x, i), code = (float)clamp_round((x[i] + m) * inverse, 0, hi);
        s.w += w;
        s.x += w * x[i];
        s.xx += w * x[i] * x[i];
        s.q += w * code;
        s.qq += w * code * code;
        s.xq += w * x[i] * code;
    }
    return s;
}

float hd_fit_affine(const float *x, const float *weight, int n, int hi, uint8_t *q, float *m) {
    float low = 0, high = 0; /* the minimum is at most 0: m >= 0 */
    for (int i = 0; i < n; i++) {
        if (x[i] < low) low = x[i];
        if (x[i] > high) high = x[i];
    }
    for (int i = 0; i < n; i++) q[i] = 0;
    *m = -low;
    float range = high - low;
    if (!(range > 1e-30f) || !isfinite(range)) return 0;
    float best_d = range / (float)hi, best_m = -low, best_error = INFINITY;
    for (int t = 0; t < n_try; t++) {
        float inverse = ((float)hi + 0.1f * (float)(t - n_try / 2)) / range;
        struct sums s = sums_of(x, weight, n, hi, inverse, -low);
        /* minimise sum w (d q - m - x)^2 over d and m */
        float det = s.w * s.qq - s.q * s.q;
        if (!(det > 0)) continue;
        float d = (s.w * s.xq - s.x * s.q) / det, shift = (s.q * s.xq - s.qq * s.x) / det;
        if (shift < 0) {
            shift = 0;
            d = s.xq / s.qq;
        }
        if (!(d > 0)) continue;
        float error = s.xx + d * d * s.qq + shift * shift * s.w - 2 * d * s.xq + 2 * shift * s.x -
                      2 * d * shift * s.q;
        if (error < best_error) {
            best_error = error;
            best_d = d;
            best_m = shift;
        }
    }
    for (int i = 0; i < n; i++) q[i] = (uint8_t)clamp_round((x[i] + best_m) / best_d, 0, hi);
    *m = best_m;
    return best_d;
}
