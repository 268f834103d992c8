/* Least-squares fits of a few floats by small integer codes, for the encoders.
 *
 * The codes that are best for a given scale are the rounded ones; the scale that is best for given
 * codes is a weighted least-squares quotient. Alternating the two only ever lowers the error, but
 * it has many local minima, so a handful of starting scales is tried and the best kept and refined.
 * Without measured importance every element counts the same: with inputs of one variance the
 * error of an output is the plain squared error of its weights. */
#include "quant/blocks.h"

#include <math.h>

enum { n_try = 15, n_refine = 3, n_lane = 8 };

/* Sums run in lanes, so that compilers use vectors and all give the same bits. */
struct lanes {
    float v[n_lane];
};

static float total(const struct lanes *a) {
    float sum = 0;
    for (int l = 0; l < n_lane; l++) sum += a->v[l];
    return sum;
}

static void count(const float *weight, int n, float *w) {
    for (int i = 0; i < n; i++) w[i] = weight ? weight[i] : 1;
}

/* ---- x ~ d q ---- */

struct symmetric_fit {
    float d, gain; /* error = sum w x^2 - gain */
};

static struct symmetric_fit try_symmetric(const float *x, const float *w, int n, float lo, float hi,
                                          float inverse) {
    struct lanes xq = {{0}}, qq = {{0}};
    for (int i = 0; i < n; i += n_lane)
        for (int l = 0; l < n_lane; l++) {
            float code = hd_code_of(x[i + l] * inverse, lo, hi), wq = w[i + l] * code;
            xq.v[l] += wq * x[i + l];
            qq.v[l] += wq * code;
        }
    float sum_xq = total(&xq), sum_qq = total(&qq);
    if (!(sum_qq > 0)) return (struct symmetric_fit){0, -1};
    return (struct symmetric_fit){sum_xq / sum_qq, sum_xq * sum_xq / sum_qq};
}

float hd_fit_symmetric(const float *x, const float *weight, int n, int lo, int hi, int8_t *q) {
    float extreme = 0, w[HD_FIT_MAX];
    HD_ASSERT(n <= HD_FIT_MAX && n % n_lane == 0);
    for (int i = 0; i < n; i++)
        if (fabsf(x[i]) > fabsf(extreme)) extreme = x[i];
    for (int i = 0; i < n; i++) q[i] = 0;
    if (!(fabsf(extreme) > 1e-30f) || !isfinite(extreme)) return 0;
    count(weight, n, w);
    struct symmetric_fit best = {0, -1};
    for (int t = 0; t < n_try; t++) {
        float inverse = ((float)lo + 0.1f * (float)(t - n_try / 2)) / extreme;
        struct symmetric_fit f = try_symmetric(x, w, n, (float)lo, (float)hi, inverse);
        if (f.gain > best.gain) best = f;
    }
    for (int t = 0; t < n_refine && best.d != 0; t++) {
        struct symmetric_fit f = try_symmetric(x, w, n, (float)lo, (float)hi, 1 / best.d);
        if (!(f.gain > best.gain)) break;
        best = f;
    }
    if (best.d == 0) return 0;
    for (int i = 0; i < n; i++) q[i] = (int8_t)clamp_round(x[i] / best.d, lo, hi);
    return best.d;
}

float hd_symmetric_error(const float *x, const float *weight, int n, int lo, int hi, float d) {
    struct lanes e = {{0}};
    float inverse = d != 0 ? 1 / d : 0, w[HD_FIT_MAX];
    count(weight, n, w);
    for (int i = 0; i < n; i += n_lane)
        for (int l = 0; l < n_lane; l++) {
            float r = d * hd_code_of(x[i + l] * inverse, (float)lo, (float)hi) - x[i + l];
            e.v[l] += w[i + l] * r * r;
        }
    return total(&e);
}

/* ---- x ~ d q - m ---- */

struct affine_fit {
    float d, m, error;
};

static struct affine_fit try_affine(const float *x, const float *w, int n, float hi,
                                    struct affine_fit from) {
    struct lanes a[5] = {{{0}}};
    float inverse = 1 / from.d;
    for (int i = 0; i < n; i += n_lane)
        for (int l = 0; l < n_lane; l++) {
            float v = x[i + l], code = hd_code_of((v + from.m) * inverse, 0, hi), wi = w[i + l];
            a[0].v[l] += wi * code;
            a[1].v[l] += wi * code * code;
            a[2].v[l] += wi * code * v;
            a[3].v[l] += wi;
            a[4].v[l] += wi * v;
        }
    float q = total(&a[0]), qq = total(&a[1]), xq = total(&a[2]), sum_w = total(&a[3]),
          sx = total(&a[4]);
    float det = sum_w * qq - q * q;
    struct affine_fit f = {0, 0, INFINITY};
    if (!(det > 0)) return f;
    f.d = (sum_w * xq - sx * q) / det;
    f.m = (q * xq - qq * sx) / det;
    if (f.m < 0) { /* none is stored: the best without */
        f.m = 0;
        f.d = xq / qq;
    }
    /* less sum w x^2, which is the same for all */
    f.error = f.d * f.d * qq + f.m * f.m * sum_w - 2 * f.d * xq + 2 * f.m * sx - 2 * f.d * f.m * q;
    if (!(f.d > 0)) f.error = INFINITY;
    return f;
}

float hd_fit_affine(const float *x, const float *weight, int n, int hi, uint8_t *q, float *m) {
    float low = 0, high = 0, w[HD_FIT_MAX]; /* the minimum is at most 0: m >= 0 */
    HD_ASSERT(n <= HD_FIT_MAX && n % n_lane == 0);
    for (int i = 0; i < n; i++) {
        if (x[i] < low) low = x[i];
        if (x[i] > high) high = x[i];
    }
    for (int i = 0; i < n; i++) q[i] = 0;
    *m = -low;
    float range = high - low;
    if (!(range > 1e-30f) || !isfinite(range)) return 0;
    count(weight, n, w);
    struct affine_fit best = {range / (float)hi, -low, INFINITY};
    for (int t = 0; t < n_try; t++) {
        struct affine_fit from = {range / ((float)hi + 0.12f * (float)(t - n_try / 3)), -low, 0};
        struct affine_fit f = try_affine(x, w, n, (float)hi, from);
        if (f.error < best.error) best = f;
    }
    for (int t = 0; t < n_refine && best.error < INFINITY; t++) {
        struct affine_fit f = try_affine(x, w, n, (float)hi, best);
        if (!(f.error < best.error)) break;
        best = f;
    }
    for (int i = 0; i < n; i++) q[i] = (uint8_t)clamp_round((x[i] + best.m) / best.d, 0, hi);
    *m = best.m;
    return best.d;
}

float hd_affine_error(const float *x, const float *weight, int n, int hi, float d, float m) {
    struct lanes e = {{0}};
    float inverse = d > 0 ? 1 / d : 0, w[HD_FIT_MAX];
    count(weight, n, w);
    for (int i = 0; i < n; i += n_lane)
        for (int l = 0; l < n_lane; l++) {
            float r = d * hd_code_of((x[i + l] + m) * inverse, 0, (float)hi) - m - x[i + l];
            e.v[l] += w[i + l] * r * r;
        }
    return total(&e);
}
