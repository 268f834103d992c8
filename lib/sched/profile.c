/* The latency profile: cells, the fit over them, predictions. */
#include "sched/profile_impl.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

enum {
    N_TERM = HD_PROFILE_TERMS,
    /* A cell's mean follows its last steps: each new one weighs at least 1 in so many. */
    CELL_MEMORY = 64,
    /* Steps after which a cell's own ratio counts for as much as the fit. */
    CELL_TRUST = 4,
    /* Once so many steps are known, the fit is renewed every so many. */
    FIT_EVERY = 32
};

static const double Q_START = 1.25, Q_TARGET = 0.95;

/* ---- loads ---- */

hd_step_load hd_step_load_of(const hd_batch *b) {
    hd_step_load l = {0};
    for (int i = 0; i < b->n_seq; i++) {
        int row0 = b->seq_row0[i];
        hd_step_load_add(&l, b->seq_row0[i + 1] - row0, b->pos[row0]);
    }
    return l;
}

void hd_step_load_add(hd_step_load *l, int n_row, int pos) {
    if (n_row == 1)
        l->n_decode++;
    else
        l->n_prompt += n_row;
    l->n_read += (int64_t)n_row * pos + (int64_t)n_row * (n_row + 1) / 2;
}

static void terms_of(const hd_step_load *l, double x[N_TERM]) {
    x[0] = 1;
    x[1] = l->n_decode;
    x[2] = l->n_prompt;
    x[3] = (double)l->n_read;
}

/* 0 for 0, else 1 + log2 v, up to n - 1. */
static int level_of(int64_t v, int n) {
    int level = 0;
    for (; v > 0 && level < n - 1; v >>= 1) level++;
    return level;
}

int hd_profile_cell_ix(const hd_step_load *l) {
    int decode = level_of(l->n_decode, HD_PROFILE_DECODE_LEVELS);
    int prompt = level_of(l->n_prompt, HD_PROFILE_PROMPT_LEVELS);
    int read = level_of(l->n_read >> 10, 2 * HD_PROFILE_READ_LEVELS - 1);
    return (decode * HD_PROFILE_PROMPT_LEVELS + prompt) * HD_PROFILE_READ_LEVELS + (read + 1) / 2;
}

hd_step_load hd_profile_cell_load(const hd_profile_cell *cell) {
    /* Rounded: a mean of equal integers may come out a little below them. */
    return (hd_step_load){.n_decode = (int)(cell->x[1] + 0.5),
                          .n_prompt = (int)(cell->x[2] + 0.5),
                          .n_read = (int64_t)(cell->x[3] + 0.5)};
}

hd_profile *hd_profile_new(void) {
    hd_profile *p = hd_alloc_zero(1, sizeof *p);
    p->q = Q_START;
    return p;
}

hd_profile *hd_profile_copy(const hd_profile *p) {
    hd_profile *copy = hd_alloc(sizeof *copy);
    *copy = *p;
    return copy;
}

void hd_profile_free(hd_profile *p) { hd_free(p); }

uint64_t hd_profile_n_step(const hd_profile *p) { return p->n_step; }

/* ---- fit ---- */

/* The normal equations of sum over cells of w (1 - c.x/t)^2. */
struct normal {
    double a[N_TERM][N_TERM], b[N_TERM];
};

static void gather(const hd_profile *p, struct normal *m) {
    *m = (struct normal){0};
    for (int i = 0; i < HD_PROFILE_CELLS; i++) {
        const hd_profile_cell *cell = &p->cell[i];
        if (cell->n == 0) continue;
        double w = cell->n / (cell->n + (double)CELL_TRUST), x[N_TERM];
        for (int k = 0; k < N_TERM; k++) x[k] = cell->x[k] / cell->ns;
        for (int k = 0; k < N_TERM; k++) {
            m->b[k] += w * x[k];
            for (int j = 0; j < N_TERM; j++) m->a[k][j] += w * x[k] * x[j];
        }
    }
}

/* Solves for the terms in `support` (a bit each) by Cholesky, the others being 0; false when they
 * are not independent or one comes out negative. */
static bool solve(const struct normal *m, unsigned support, double c[N_TERM]) {
    int ix[N_TERM], n = 0;
    double l[N_TERM][N_TERM], y[N_TERM];
    for (int k = 0; k < N_TERM; k++)
        if (support >> k & 1) ix[n++] = k;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j <= i; j++) {
            double sum = m->a[ix[i]][ix[j]];
            for (int k = 0; k < j; k++) sum -= l[i][k] * l[j][k];
            if (i == j && sum <= 1e-9 * m->a[ix[i]][ix[i]]) return false;
            l[i][j] = i == j ? sqrt(sum) : sum / l[j][j];
        }
    }
    for (int i = 0; i < n; i++) {
        y[i] = m->b[ix[i]];
        for (int k = 0; k < i; k++) y[i] -= l[i][k] * y[k];
        y[i] /= l[i][i];
    }
    memset(c, 0, N_TERM * sizeof *c);
    for (int i = n - 1; i >= 0; i--) {
        double v = y[i];
        for (int k = i + 1; k < n; k++) v -= l[k][i] * c[ix[k]];
        c[ix[i]] = v / l[i][i];
        if (!(c[ix[i]] >= 0)) return false;
    }
    return true;
}

void hd_profile_fit(hd_profile *p) {
    struct normal m;
    gather(p, &m);
    double best = 0;
    for (unsigned support = 1; support < 1U << N_TERM; support++) {
        double c[N_TERM], gain = 0;
        if (!solve(&m, support, c)) continue;
        /* At a support's optimum the error is a constant less b.c. */
        for (int k = 0; k < N_TERM; k++) gain += m.b[k] * c[k];
        if (gain <= best * (1 + 1e-9)) continue; /* of equal ones the first: few steps fit many */
        best = gain;
        memcpy(p->c, c, sizeof c);
    }
}

/* ---- prediction ---- */

static double by_fit(const hd_profile *p, const double x[N_TERM]) {
    double ns = 0;
    for (int k = 0; k < N_TERM; k++) ns += p->c[k] * x[k];
    return ns;
}

static double mean_of(const hd_profile *p, const hd_profile_cell *cell, const double x[N_TERM]) {
    double ns = by_fit(p, x);
    if (cell->n == 0) return ns;
    double at_mean = by_fit(p, cell->x);
    if (at_mean <= 0) return cell->ns;
    double own = cell->n / (cell->n + (double)CELL_TRUST);
    return ns * (1 + own * (cell->ns / at_mean - 1));
}

static int64_t to_ns(double ns) { return ns < 9e18 ? (int64_t)ns : INT64_MAX; }

int64_t hd_profile_mean_ns(const hd_profile *p, const hd_step_load *l) {
    double x[N_TERM];
    terms_of(l, x);
    return to_ns(mean_of(p, &p->cell[hd_profile_cell_ix(l)], x));
}

int64_t hd_profile_p95_ns(const hd_profile *p, const hd_step_load *l) {
    double x[N_TERM];
    terms_of(l, x);
    const hd_profile_cell *cell = &p->cell[hd_profile_cell_ix(l)];
    return to_ns(mean_of(p, cell, x) * (cell->n > 0 ? cell->q : p->q));
}

int hd_profile_rows_within(const hd_profile *p, const hd_step_load *l, int pos, int n_max,
                           int64_t limit_ns) {
    if (p->n_step == 0) return n_max;
    int low = 0, high = n_max; /* low fits */
    while (low < high) {
        int n = high - (high - low) / 2;
        hd_step_load with = *l;
        hd_step_load_add(&with, n, pos);
        if (hd_profile_p95_ns(p, &with) <= limit_ns)
            low = n;
        else
            high = n - 1;
    }
    return low;
}

int64_t hd_profile_prompt_ns(const hd_profile *p, const hd_step_load *l, int n_tok, int pos,
                             int chunk) {
    if (n_tok <= 0) return 0;
    int n = n_tok < chunk ? n_tok : chunk;
    hd_step_load with = *l;
    hd_step_load_add(&with, n, pos + (n_tok - n) / 2);
    return to_ns((double)hd_profile_mean_ns(p, &with) * n_tok / n);
}

/* ---- learning ---- */

/* One step of the Robbins-Monro search for the 95th percentile of time / mean. */
static double moved(double q, double ratio, uint64_t n) {
    double gain = 0.4 / (1 + (double)n / 8);
    if (gain < 0.02) gain = 0.02;
    q += gain * (ratio > q ? Q_TARGET : Q_TARGET - 1);
    return q > 1 ? q : 1;
}

void hd_profile_learn(hd_profile *p, const hd_step_load *l, int64_t ns) {
    if (ns <= 0) return;
    double x[N_TERM], time = (double)ns;
    terms_of(l, x);
    hd_profile_cell *cell = &p->cell[hd_profile_cell_ix(l)];
    double mean = p->n_step > 0 ? mean_of(p, cell, x) : 0;
    if (mean > 0) {
        p->q = moved(p->q, time / mean, p->n_step);
        cell->q = moved(cell->n > 0 ? cell->q : p->q, time / mean, cell->n);
    } else if (cell->n == 0) {
        cell->q = p->q;
    }
    if (cell->n < CELL_MEMORY) cell->n++;
    for (int k = 0; k < N_TERM; k++) cell->x[k] += (x[k] - cell->x[k]) / cell->n;
    cell->ns += (time - cell->ns) / cell->n;
    p->n_step++;
    if (p->n_step < FIT_EVERY || p->n_step % FIT_EVERY == 0) hd_profile_fit(p);
}

void hd_profile_check(const hd_profile *p) {
    for (int k = 0; k < N_TERM; k++) HD_ASSERT(isfinite(p->c[k]) && p->c[k] >= 0);
    HD_ASSERT(isfinite(p->q) && p->q >= 1);
    for (int i = 0; i < HD_PROFILE_CELLS; i++) {
        const hd_profile_cell *cell = &p->cell[i];
        if (cell->n == 0) continue;
        HD_ASSERT(p->n_step >= cell->n);
        HD_ASSERT(isfinite(cell->ns) && cell->ns > 0 && isfinite(cell->q) && cell->q >= 1);
        HD_ASSERT(cell->x[0] == 1);
        for (int k = 1; k < N_TERM; k++) HD_ASSERT(isfinite(cell->x[k]) && cell->x[k] >= 0);
    }
}
