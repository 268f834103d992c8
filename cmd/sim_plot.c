/* The picture of a simulation: the load's distributions, and below them requests and KV over time.
 */
#include "cmd/output.h"
#include "cmd/sim.h"

#include <math.h>

enum { width = 760, height = 740, left = 64, right = 712, top = 496, bottom = 690 };

static const struct line {
    const char *title, *colour;
    size_t offset;
} lines[] = {{"running", "#0a7d4f", offsetof(hd_sim_sample, n_running)},
             {"waiting", "#b3441e", offsetof(hd_sim_sample, n_waiting)},
             {"KV pages in use", "#1f5fbf", offsetof(hd_sim_sample, n_page_used)}};

static int value_of(const hd_sim_sample *s, const struct line *l) {
    return *(const int *)((const char *)s + l->offset);
}

/* Each line on its own scale, whose top is told: they have no unit in common. */
static void draw_line(const hd_sim_result *r, int ix, hd_buf *out) {
    const struct line *l = &lines[ix];
    double most = 1, last_s = r->n_sample > 0 ? fmax(r->sample[r->n_sample - 1].at_s, 1e-9) : 1;
    for (int i = 0; i < r->n_sample; i++) most = fmax(most, value_of(&r->sample[i], l));
    hd_buf_addf(out,
                "<text x=\"%d\" y=\"%d\" fill=\"%s\">%s, up to %.0f</text>\n"
                "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\" points=\"",
                left + 200 * ix, top - 16, l->colour, l->title, most, l->colour);
    for (int i = 0; i < r->n_sample; i++)
        hd_buf_addf(out, "%.1f,%.1f ", left + (right - left) * r->sample[i].at_s / last_s,
                    bottom - (bottom - top) * value_of(&r->sample[i], l) / most);
    hd_buf_addf(out, "\"/>\n");
}

hd_status hd_sim_plot(const struct hd_sim_report *r, const char *path) {
    hd_buf b;
    hd_buf_init(&b, 1 << 22);
    hd_buf_addf(&b,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"12\">\n"
                "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
                width, height, width, height, width, height);
    hd_load_draw(r->run, &b);
    hd_buf_addf(&b, "<path d=\"M%d %dV%dH%d\" stroke=\"#888\" fill=\"none\"/>\n", left, top, bottom,
                right);
    for (int i = 0; i < (int)HD_COUNT_OF(lines); i++) draw_line(r->result, i, &b);
    hd_buf_addf(&b,
                "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">over %.4g s, all machines "
                "together</text>\n</svg>\n",
                (left + right) / 2, bottom + 24, r->result->seconds);
    hd_status s = hd_output_write(path, hd_buf_str(&b));
    hd_buf_fini(&b);
    return s;
}
