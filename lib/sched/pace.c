/* How long a request would wait. */
#include "sched/pace.h"

#include <math.h>

/* The work of the line up to class c. */
static double work_ns(const hd_pace *p, const hd_line *l, enum hd_service c) {
    int64_t n = 0, n_tok = 0;
    for (int k = 0; k <= (int)c; k++) {
        n += l->n[k];
        n_tok += l->tok[k];
    }
    double ns = (double)n_tok * (double)p->tok_ns;
    if (n >= p->n_room) ns += (double)(n - p->n_room + 1) * (double)p->seq_ns;
    return ns;
}

int64_t hd_pace_wait_ns(const hd_pace *p, const hd_line *l, enum hd_service c) {
    double left = c > 0 ? 1 - p->load[c - 1] : 1;
    double by_rank = left > 0 ? work_ns(p, l, c) / left : INFINITY;
    double by_age = work_ns(p, l, HD_SERVICE_COUNT - 1) * HD_PACE_AGED_EVERY;
    double ns = by_rank < by_age ? by_rank : by_age;
    return ns < 9e18 ? (int64_t)ns : INT64_MAX;
}
