/* Fair queueing of tenants. */
#include "sched/fair.h"

hd_fair_tag hd_fair_ask(hd_fair *f, uint64_t tenant, int64_t work_ns) {
    int found = -1, nearest = 0, n_active = 0;
    for (int i = 0; i < HD_FAIR_TENANTS; i++) {
        n_active += f->tenant[i].finish > f->now;
        if (f->tenant[i].finish > f->now && f->tenant[i].id == tenant) found = i;
        if (f->tenant[i].finish < f->tenant[nearest].finish) nearest = i;
    }
    int64_t start = found >= 0 ? f->tenant[found].finish : f->now;
    if (found < 0) found = nearest;
    f->tenant[found].id = tenant;
    f->tenant[found].finish = start + work_ns;
    if (f->last < start + work_ns) f->last = start + work_ns;
    int64_t ahead = start - f->now;
    if (n_active > 1 && ahead > INT64_MAX / 4 / n_active) ahead = INT64_MAX / 4 / n_active;
    return (hd_fair_tag){.start = start, .debt_ns = n_active > 1 ? ahead * n_active : ahead};
}

void hd_fair_served(hd_fair *f, int64_t start) {
    if (f->now < start) f->now = start;
}

void hd_fair_idle(hd_fair *f) {
    if (f->now < f->last) f->now = f->last;
}
