/* The cost profile: the formula and its fit. */
#include "sim/cost.h"

#include "base/mem.h"
#include "base/sort.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void hd_cost_load_of(const hd_batch *b, hd_cost_load *l) {
    *l = (hd_cost_load){.n_row = b->n_row, .n_out = b->n_out};
    for (int i = 0; i < b->n_seq; i++) {
        int row0 = b->seq_row0[i], n = b->seq_row0[i + 1] - row0, first = b->pos[row0];
        double n_pos = (double)n * first + 0.5 * n * (n + 1.0);
        if (n == 1) {
            l->decode_pos += n_pos;
        } else if (b->form[row0] == HD_MLA_EXPANDED) {
            l->expanded_pos += n_pos;
            l->expand_tok += first + n;
        } else {
            l->absorbed_pos += n_pos;
        }
    }
}

/* The weights of the knots at so many rows: of knot *k and of the next one. */
static void knots_at(const hd_cost *c, int n_row, int *k, double *next_share) {
    *k = 0;
    while (*k < c->n_knot - 2 && n_row > c->knot[*k + 1]) ++*k;
    *next_share = 0;
    if (c->n_knot == 1) return;
    double width = c->knot[*k + 1] - c->knot[*k];
    *next_share = fmax((n_row - c->knot[*k]) / width, 0);
}

/* The terms that come after the knots in a fit's columns. */
enum { n_term = 5, n_column_max = HD_COST_KNOT_MAX + n_term };
static void terms_of(const hd_cost_load *l, double *x) {
    const double term[n_term] = {l->n_out, l->decode_pos, l->absorbed_pos, l->expanded_pos,
                                 l->expand_tok};
    memcpy(x, term, sizeof term);
}

double hd_cost_mean_s(const hd_cost *c, const hd_cost_load *l) {
    double x[n_term], next;
    int k;
    const double s[n_term] = {c->out_s, c->decode_s, c->absorbed_s, c->expanded_s, c->expand_s};
    knots_at(c, l->n_row, &k, &next);
    double sum = c->knot_s[k];
    if (next > 0) sum += next * (c->knot_s[k + 1] - c->knot_s[k]);
    terms_of(l, x);
    for (int i = 0; i < n_term; i++) sum += s[i] * x[i];
    return fmax(sum, 0);
}

double hd_cost_factor(const hd_cost *c, double u) {
    double at = u * (HD_COST_QUANTILES - 1);
    int i = at < HD_COST_QUANTILES - 2 ? (int)at : HD_COST_QUANTILES - 2;
    return c->quantile[i] + (at - i) * (c->quantile[i + 1] - c->quantile[i]);
}

/* ---- the fit ---- */

struct normal { /* a x = b */
    int n;
    double a[n_column_max][n_column_max], b[n_column_max];
};

/* min |Ax - b| with x >= 0 by cyclic coordinate descent on the normal equations, each column scaled
 * to length 1. Converges for any start, since the problem is convex; 20000 rounds of some 20
 * columns take milliseconds. */
static void solve(const struct normal *m, double *x) {
    double scale[n_column_max];
    for (int i = 0; i < m->n; i++) {
        scale[i] = m->a[i][i] > 0 ? sqrt(m->a[i][i]) : 0;
        x[i] = 0;
    }
    for (int round = 0; round < 20000; round++) {
        for (int i = 0; i < m->n; i++) {
            if (scale[i] == 0) continue;
            double rest = m->b[i] / scale[i];
            for (int j = 0; j < m->n; j++)
                if (j != i && scale[j] > 0) rest -= m->a[i][j] / (scale[i] * scale[j]) * x[j];
            x[i] = fmax(rest, 0);
        }
    }
    for (int i = 0; i < m->n; i++)
        if (scale[i] > 0) x[i] /= scale[i];
}

static int by_number(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

static hd_status choose_knots(hd_cost *c, const hd_cost_point *point, int n) {
    int *rows = hd_alloc_zero((size_t)n + 1, sizeof *rows), n_rows = 0;
    c->n_knot = 0;
    for (int i = 0; i < n; i++)
        if (!point[i].is_other) rows[n_rows++] = point[i].load.n_row;
    qsort(rows, (size_t)n_rows, sizeof *rows, by_number);
    for (int i = 0; i < n_rows; i++) {
        if (c->n_knot > 0 && rows[i] == c->knot[c->n_knot - 1]) continue;
        if (c->n_knot < HD_COST_KNOT_MAX) c->knot[c->n_knot] = rows[i];
        c->n_knot++;
    }
    hd_free(rows);
    if (c->n_knot >= 1 && c->n_knot <= HD_COST_KNOT_MAX) return HD_OK;
    return HD_FAIL(CORRUPT, "cost profile: expected points of 1 to %d row counts, found %d",
                   HD_COST_KNOT_MAX, c->n_knot);
}

static void add_point(const hd_cost *c, const hd_cost_point *p, struct normal *m) {
    double x[n_column_max] = {0}, next;
    int k;
    knots_at(c, p->load.n_row, &k, &next);
    x[k] = 1 - next;
    if (next > 0) x[k + 1] = next;
    terms_of(&p->load, x + c->n_knot);
    for (int i = 0; i < m->n; i++) { /* errors are relative: in units of the point's mean */
        for (int j = 0; j < m->n; j++) m->a[i][j] += x[i] * x[j] / (p->mean_s * p->mean_s);
        m->b[i] += x[i] / p->mean_s;
    }
}

static void measure_errors(hd_cost *c, const hd_cost_point *point, int n) {
    c->n_point = c->n_other = 0;
    c->error_mean = c->error_max = c->other_mean = c->other_max = 0;
    for (int i = 0; i < n; i++) {
        double e = fabs(hd_cost_mean_s(c, &point[i].load) / point[i].mean_s - 1);
        double *mean = point[i].is_other ? &c->other_mean : &c->error_mean;
        double *max = point[i].is_other ? &c->other_max : &c->error_max;
        *(point[i].is_other ? &c->n_other : &c->n_point) += 1;
        *mean += e;
        *max = fmax(*max, e);
    }
    if (c->n_point > 0) c->error_mean /= c->n_point;
    if (c->n_other > 0) c->other_mean /= c->n_other;
}

hd_status hd_cost_fit(hd_cost *c, const hd_cost_point *point, int n) {
    HD_TRY(choose_knots(c, point, n));
    struct normal *m = hd_alloc_zero(1, sizeof *m);
    double x[n_column_max];
    m->n = c->n_knot + n_term;
    for (int i = 0; i < n; i++)
        if (!point[i].is_other) add_point(c, &point[i], m);
    solve(m, x);
    hd_free(m);
    memcpy(c->knot_s, x, (size_t)c->n_knot * sizeof *x);
    const double *s = x + c->n_knot;
    c->out_s = s[0];
    c->decode_s = s[1];
    c->absorbed_s = s[2];
    c->expanded_s = s[3];
    c->expand_s = s[4];
    measure_errors(c, point, n);
    return HD_OK;
}

static double mean_of(const double *v, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += v[i];
    return sum / n;
}

double hd_cost_spread(hd_cost *c, double *factor, int n) {
    enum { LAST = HD_COST_QUANTILES - 1 };
    double *q = c->quantile;
    for (int i = 0; i <= LAST; i++) q[i] = 1;
    if (n == 0) return 1;
    hd_sort_doubles(factor, (size_t)n);
    for (int i = 0; i <= LAST; i++) {
        double at = (double)i / LAST * (n - 1);
        int k = at < n - 1 ? (int)at : n - 1;
        q[i] = factor[k];
        if (k < n - 1) q[i] += (at - k) * (factor[k + 1] - factor[k]);
    }
    /* The ends stand for all that lies there, not for the single least and largest run. */
    int n_end = (n + LAST - 1) / LAST;
    q[0] = fmax(fmin(2 * mean_of(factor, n_end) - q[1], q[1]), 0);
    q[LAST] = fmax(2 * mean_of(factor + n - n_end, n_end) - q[LAST - 1], q[LAST - 1]);
    double mean = 0; /* of the piecewise linear distribution */
    for (int i = 0; i < LAST; i++) mean += 0.5 * (q[i] + q[i + 1]) / LAST;
    for (int i = 0; i <= LAST; i++) q[i] /= mean;
    return mean;
}
