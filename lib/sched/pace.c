/* How long a request would wait. */
#include "sched/pace.h"

int64_t hd_pace_wait_ns(const hd_pace *p, const hd_line *l, enum hd_service c) {
    int64_t n = 0, n_tok = 0;
    for (int k = 0; k <= (int)c; k++) {
        n += l->n[k];
        n_tok += l->tok[k];
    }
    double ns = (double)n_tok * (double)p->tok_ns;
    if (n >= p->n_room) ns += (double)(n - p->n_room + 1) * (double)p->seq_ns;
    double left = c > 0 ? 1 - p->load[c - 1] : 1;
    ns /= left > 0.25 ? left : 0.25;
    return ns < 9e18 ? (int64_t)ns : INT64_MAX;
}
