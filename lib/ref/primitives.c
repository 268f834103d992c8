/* The scalar primitives of the oracle: what each line of an op means, tested one by one. */
#include "ref/ref.h"

#include <math.h>
#include <string.h>

double hd_ref_dot(const float *a, const float *b, int n) {
    /* Eight running sums let the compiler work on several at once; in double their grouping
     * changes the result by less than a float32 rounding. */
    double s[8] = {0};
    int i = 0;
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++) s[k] += (double)a[i + k] * (double)b[i + k];
    for (; i < n; i++) s[0] += (double)a[i] * (double)b[i];
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

void hd_ref_rms_norm(const float *x, const float *w, float eps, int n, float *y) {
    double mean = hd_ref_dot(x, x, n) / n;
    float inverse = (float)(1.0 / sqrt(mean + (double)eps));
    for (int i = 0; i < n; i++) y[i] = w[i] * (x[i] * inverse);
}

void hd_ref_softmax(float *s, int n) {
    float max = s[0];
    for (int i = 1; i < n; i++)
        if (s[i] > max) max = s[i];
    double sum = 0;
    for (int i = 0; i < n; i++) {
        s[i] = expf(s[i] - max);
        sum += (double)s[i];
    }
    for (int i = 0; i < n; i++) s[i] = (float)((double)s[i] / sum);
}

float hd_ref_sigmoid(float z) { return 1.0f / (1.0f + expf(-z)); }

float hd_ref_silu(float z) { return z / (1.0f + expf(-z)); }

void hd_ref_rope(float *x, const float *cs, int n) {
    for (int i = 0; i + 1 < n; i += 2) {
        float a = x[i], b = x[i + 1], c = cs[i], s = cs[i + 1];
        x[i] = a * c - b * s;
        x[i + 1] = b * c + a * s;
    }
}

void hd_ref_rope_halves(float *x, const float *cs, int n) {
    for (int i = 0; i < n / 2; i++) {
        float a = x[i], b = x[i + n / 2], c = cs[2 * i], s = cs[2 * i + 1];
        x[i] = a * c - b * s;
        x[i + n / 2] = b * c + a * s;
    }
}

static bool is_in(int32_t ix, const int32_t *set, int n) {
    for (int i = 0; i < n; i++)
        if (set[i] == ix) return true;
    return false;
}

void hd_ref_top_k(const float *score, const bool *allowed, int n, int n_best, int32_t *best) {
    for (int k = 0; k < n_best; k++) {
        int found = -1;
        float found_score = 0;
        for (int i = 0; i < n; i++) {
            if ((allowed && !allowed[i]) || is_in(i, best, k)) continue;
            float s = isnan(score[i]) ? -INFINITY : score[i];
            if (found < 0 || s > found_score) {
                found = i;
                found_score = s;
            }
        }
        HD_ASSERT(found >= 0);
        best[k] = found;
    }
}

void hd_ref_weighted_sum(const float *p, struct hd_ref_rows rows, double *acc, float *out) {
    for (int i = 0; i < rows.width; i++) acc[i] = 0;
    for (int t = 0; t < rows.n_row; t++) {
        const float *row = rows.x + (size_t)t * (size_t)rows.step;
        for (int i = 0; i < rows.width; i++) acc[i] += (double)p[t] * (double)row[i];
    }
    for (int i = 0; i < rows.width; i++) out[i] = (float)acc[i];
}

void hd_ref_weight_row(const hd_weight *w, int mat, int row, float *out) {
    size_t row_bytes = hd_format_bytes(w->format, (size_t)w->n_in);
    const char *src = (const char *)w->mat[mat] + (size_t)row * row_bytes;
    hd_format_get(w->format)->decode(src, out, (size_t)w->n_in);
}

void hd_ref_matmul(struct hd_ref *r, const hd_weight *w, int mat, int n_row, const float *x,
                   float *y) {
    size_t n_in = (size_t)w->n_in, n_out = (size_t)w->n_out;
    if (r->observer.inputs)
        r->observer.inputs(
            r->observer.user,
            &(hd_dev_inputs){.w = w, .mat = mat, .n_row = n_row, .x = x, .ldx = n_in});
    for (int o = 0; o < w->n_out; o++) {
        hd_ref_weight_row(w, mat, o, r->weight_row);
        for (size_t row = 0; row < (size_t)n_row; row++)
            y[row * n_out + (size_t)o] = (float)hd_ref_dot(r->weight_row, x + row * n_in, w->n_in);
    }
}
