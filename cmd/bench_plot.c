/* The picture of a load: which share of the answered requests was at most so slow. Time is on a
 * logarithmic axis, so that first tokens and whole answers are read in one picture. */
#include "cmd/bench_load.h"

#include <math.h>

enum { width = 760, height = 440, left = 64, right = 712, top = 56, bottom = 388, n_step = 200 };

struct axis {
    int first, last; /* powers of ten, in ms */
};

static const struct curve {
    enum hd_load_metric metric;
    const char *colour;
} curves[] = {{HD_LOAD_TPOT, "#0a7d4f"}, {HD_LOAD_TTFT, "#1f5fbf"}, {HD_LOAD_E2EL, "#b3441e"}};

static void add_escaped(hd_buf *out, const char *text) {
    for (; *text; text++) {
        if (*text == '&' || *text == '<' || *text == '>' || (unsigned char)*text < ' ')
            hd_buf_addf(out, "&#%d;", (unsigned char)*text < ' ' ? ' ' : *text);
        else
            hd_buf_add(out, text, 1);
    }
}

static double to_x(const struct axis *a, double seconds) {
    double at = log10(fmax(seconds * 1e3, 1e-3));
    return left + (right - left) * (at - a->first) / (a->last - a->first);
}

static double to_y(double share) { return bottom - (bottom - top) * share; }

static struct axis axis_of(const hd_load_run *r, double *v) {
    double low = INFINITY, high = 0;
    for (size_t i = 0; i < HD_COUNT_OF(curves); i++) {
        int n = hd_load_sorted(r, curves[i].metric, v);
        if (n == 0) continue;
        low = fmin(low, v[0]);
        high = fmax(high, v[n - 1]);
    }
    if (high <= 0) return (struct axis){0, 1};
    struct axis a = {(int)floor(log10(fmax(low * 1e3, 1e-3))),
                     (int)ceil(log10(fmax(high * 1e3, 1e-3)))};
    if (a.last == a.first) a.last++;
    return a;
}

static void draw_frame(const hd_load_run *r, const struct axis *a, hd_buf *out) {
    hd_buf_addf(out,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"12\">\n"
                "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n"
                "<text x=\"%d\" y=\"24\" font-size=\"14\">",
                width, height, width, height, width, height, left);
    add_escaped(out, r->model);
    hd_buf_addf(out, ": %d requests in %.1f s, seed %llu</text>\n", r->trace->n, r->seconds,
                (unsigned long long)r->trace->seed);
    for (int i = 0; i <= 4; i++) {
        double y = to_y(0.25 * i);
        hd_buf_addf(out,
                    "<path d=\"M%d %.1fH%d\" stroke=\"#ddd\"/>"
                    "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%d %%</text>\n",
                    left, y, right, left - 8, y + 4, 25 * i);
    }
    for (int p = a->first; p <= a->last; p++) {
        double x = to_x(a, pow(10, p) * 1e-3);
        hd_buf_addf(out,
                    "<path d=\"M%.1f %dV%d\" stroke=\"#ddd\"/>"
                    "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g ms</text>\n",
                    x, top, bottom, x, bottom + 20, pow(10, p));
    }
}

static void draw_curve(const hd_load_run *r, const struct axis *a, int ix, double *v, hd_buf *out) {
    const struct curve *c = &curves[ix];
    int n = hd_load_sorted(r, c->metric, v), x = left + 180 * ix;
    hd_buf_addf(out, "<text x=\"%d\" y=\"44\" fill=\"%s\">%s</text>\n", x, c->colour,
                hd_load_title(c->metric));
    if (n == 0) return;
    hd_buf_addf(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"",
                c->colour);
    int n_point = n < n_step ? n : n_step;
    for (int i = 0; i < n_point; i++) {
        double share = (i + 1.0) / n_point;
        hd_buf_addf(out, "%.1f,%.1f ", to_x(a, v[(int)ceil(share * n - 1e-9) - 1]), to_y(share));
    }
    hd_buf_addf(out, "\"/>\n");
}

void hd_load_draw(const hd_load_run *r, hd_buf *out) {
    double *v = hd_alloc_zero((size_t)r->trace->n, sizeof *v);
    struct axis a = axis_of(r, v);
    draw_frame(r, &a, out);
    for (int i = 0; i < (int)HD_COUNT_OF(curves); i++) draw_curve(r, &a, i, v, out);
    hd_buf_addf(out,
                "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">share of answered requests that "
                "took at most this long</text>\n</svg>\n",
                (left + right) / 2, height - 10);
    hd_free(v);
}
