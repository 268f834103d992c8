/* How long a request would wait. */
#include "sched/pace.h"

#include <math.h>

void hd_line_add(hd_line *l, enum hd_service c, uint64_t tenant, int n_prompt, int n_new,
                 int n_req) {
    int n_out = n_new < HD_LINE_OUT_MAX ? n_new : HD_LINE_OUT_MAX;
    l->n[c] += n_req;
    l->out[c] += (int64_t)n_req * n_out;
    l->tok[c] += (int64_t)n_req * n_prompt;
    l->of_tenant[tenant % HD_LINE_TENANTS] += n_req;
}

/* The part of the line that a request of this tenant waits for. */
static double share_ahead(const hd_line *l, uint64_t tenant) {
    int n = 0, n_ahead = 0, n_own = l->of_tenant[tenant % HD_LINE_TENANTS];
    for (int i = 0; i < HD_LINE_TENANTS; i++) {
        n += l->of_tenant[i];
        n_ahead += l->of_tenant[i] <= n_own ? l->of_tenant[i] : n_own + 1;
    }
    return n > 0 ? (double)n_ahead / n : 1;
}

/* The work of a part of the line up to class c. */
static double work_ns(const hd_pace *p, const hd_line *l, enum hd_service c, double share) {
    double n = 0, n_tok = 0, n_out = 0;
    for (int k = 0; k <= (int)c; k++) {
        n += l->n[k] * share;
        n_out += (double)l->out[k] * share;
        n_tok += (double)l->tok[k] * share + (double)p->running_tok[k];
    }
    double ns = n_tok * (double)p->tok_ns;
    /* What an answer takes of the mean answer's time: no more than its request allows. */
    double part = n > 0 && n_out < n * p->out_tok ? n_out / n / p->out_tok : 1;
    if (n >= p->n_room) ns += (n - p->n_room + 1) * part * (double)p->seq_ns;
    return ns;
}

int64_t hd_pace_wait_ns(const hd_pace *p, const hd_line *l, enum hd_service c, uint64_t tenant) {
    double share = share_ahead(l, tenant);
    double left = c > 0 ? 1 - p->load[c - 1] : 1;
    if (p->has_aged) left -= 1.0 / HD_PACE_AGED_EVERY;
    double by_rank = left > 0 ? work_ns(p, l, c, share) / left : INFINITY;
    double by_age = work_ns(p, l, HD_SERVICE_COUNT - 1, share) * HD_PACE_AGED_EVERY;
    double ns = by_rank < by_age ? by_rank : by_age;
    return ns < 9e18 ? (int64_t)ns : INT64_MAX;
}
