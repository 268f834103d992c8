/* The cost profile: how long a step takes on a machine, by what it computes; measured by `hadal
 * bench --save-cost`, used by the simulator.
 *
 * The mean of a step's time is
 *     W(rows) + c_out outputs + c_decode D + c_absorbed A + c_expanded E + c_expand T
 * W: piecewise linear between knots of row counts, beyond the last one as between the last two.
 *    It is what does not depend on the context: weights, experts, launches.
 * D: positions that single rows attend to, summed over rows. A, E: the same of prompt chunks, whose
 *    rows have the absorbed or the expanded form. T: positions whose keys and values are expanded,
 *    once a chunk.
 * All coefficients are >= 0: the non-negative least squares of relative errors over the measured
 * points, by cyclic coordinate descent. A step's own time is its mean times a factor drawn from
 * the measured distribution of (time of a run / middle of its point) over its mean; draws are
 * independent, so the slow minutes of a machine that others use, too, are not in it.
 *
 * Thread: immutable once made. */
#ifndef HD_SIM_COST_H
#define HD_SIM_COST_H

#include "base/batch.h"
#include "base/buf.h"

enum { HD_COST_KNOT_MAX = 24, HD_COST_QUANTILES = 21, HD_COST_NAME_MAX = 160 };

typedef struct hd_cost {
    /* What was measured, and where. */
    char model[HD_COST_NAME_MAX], backend[16], device[HD_COST_NAME_MAX], kv_dtype[8];
    int n_thread; /* as asked for; 0: one per core */
    int n_ctx, expand_min;
    int n_layer; /* of which a step may compute some */
    int64_t kv_tok_bytes, weight_bytes;
    /* The formula; seconds. */
    int n_knot, knot[HD_COST_KNOT_MAX]; /* rows, ascending */
    double knot_s[HD_COST_KNOT_MAX];
    double out_s, decode_s, absorbed_s, expanded_s, expand_s;
    double quantile[HD_COST_QUANTILES]; /* of the factor, from 0 to 1 in equal steps; mean 1 */
    /* Relative errors of the formula: over the points it was fitted to, and over the others. */
    int n_point, n_other;
    double error_mean, error_max, other_mean, other_max;
} hd_cost;

typedef struct hd_cost_load {
    int n_row, n_out;
    double decode_pos, absorbed_pos, expanded_pos, expand_tok;
} hd_cost_load;

void hd_cost_load_of(const hd_batch *b, hd_cost_load *out);
double hd_cost_mean_s(const hd_cost *c, const hd_cost_load *l);
/* u in (0, 1). */
double hd_cost_factor(const hd_cost *c, double u);

typedef struct hd_cost_point {
    hd_cost_load load;
    double mean_s;
    bool is_other; /* not fitted to: tells how far the formula reaches */
} hd_cost_point;

/* Fills the formula and its errors from the points; the rest of *c is kept. The knots are the row
 * counts of the fitted points. HD_E_CORRUPT: no points, more knots than fit. */
HD_MUST_CHECK hd_status hd_cost_fit(hd_cost *c, const hd_cost_point *point, int n);
/* Fills the quantiles from factors, which are sorted, and whose mean is returned: the quantiles are
 * those over it, and their linear interpolation keeps the mean of either end. */
double hd_cost_spread(hd_cost *c, double *factor, int n);

void hd_cost_write(const hd_cost *c, hd_buf *out); /* a JSON object and a newline */
/* HD_E_CORRUPT names the key, expected and found. name is for messages. */
HD_MUST_CHECK hd_status hd_cost_parse(hd_str text, const char *name, hd_cost *out);
HD_MUST_CHECK hd_status hd_cost_read(const char *path, hd_cost *out);

#endif
