/* Fair queueing of tenants. */
#include "sched/fair.h"

int64_t hd_fair_ask(hd_fair *f, uint64_t tenant, int64_t work_ns) {
    int found = -1, nearest = 0;
    for (int i = 0; i < HD_FAIR_TENANTS; i++) {
        if (f->tenant[i].finish > f->now && f->tenant[i].id == tenant) found = i;
        if (f->tenant[i].finish < f->tenant[nearest].finish) nearest = i;
    }
    int64_t start = found >= 0 ? f->tenant[found].finish : f->now;
    if (found < 0) found = nearest;
    f->tenant[found].id = tenant;
    f->tenant[found].finish = start + work_ns;
    if (f->last < start + work_ns) f->last = start + work_ns;
    return start;
}

void hd_fair_served(hd_fair *f, int64_t start) {
    if (f->now < start) f->now = start;
}

void hd_fair_idle(hd_fair *f) {
    if (f->now < f->last) f->now = f->last;
}
