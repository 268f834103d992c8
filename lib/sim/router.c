/* Routing: in turn, to the least loaded, or by prefix with bounded loads. */
#include "sim/router.h"

#include "base/mem.h"
#include "sim/random.h"

struct hd_router {
    enum hd_sim_router kind;
    int n, *load; /* [n] */
    int64_t all;
    int next; /* in turn; where the search for the least loaded begins */
};

hd_router *hd_router_new(enum hd_sim_router kind, int n_replica) {
    hd_router *r = hd_alloc_zero(1, sizeof *r);
    r->kind = kind;
    r->n = n_replica;
    r->load = hd_alloc_zero((size_t)n_replica, sizeof *r->load);
    return r;
}

void hd_router_free(hd_router *r) {
    if (!r) return;
    hd_free(r->load);
    hd_free(r);
}

static int in_turn(hd_router *r) {
    int to = r->next;
    r->next = (r->next + 1) % r->n;
    return to;
}

/* Ties go in turn. */
static int least_loaded(hd_router *r) {
    int best = r->next;
    for (int i = 0; i < r->n; i++) {
        int at = (r->next + i) % r->n;
        if (r->load[at] < r->load[best]) best = at;
    }
    r->next = (best + 1) % r->n;
    return best;
}

/* A number of [0, n) for a key, of which few keys change when n does: jump consistent hash (Lamping
 * and Veach, 2014). */
static int jump_hash(uint64_t key, int n) {
    int64_t at = -1, next = 0;
    while (next < n) {
        at = next;
        key = key * 2862933555777941757u + 1;
        next = (int64_t)((double)(at + 1) * (0x1p31 / (double)((key >> 33) + 1)));
    }
    return (int)at;
}

/* The key's first replica that has room; each further try is another hash of the key, so that a
 * group that overflows always overflows to the same places. */
static int by_prefix(hd_router *r, uint64_t key) {
    enum { try_max = 64 };
    int64_t bound = (5 * (r->all + 1) + 4 * r->n - 1) / (4 * r->n) + HD_SIM_ROUTE_SLACK;
    for (int i = 0; i < try_max; i++) {
        int to = jump_hash(hd_random_next(&key), r->n);
        if (r->load[to] < bound) return to;
    }
    return least_loaded(r);
}

int hd_router_choose(hd_router *r, const hd_trace_item *item) {
    int to;
    if (r->kind == HD_SIM_ROUTE_ROUND_ROBIN)
        to = in_turn(r);
    else if (r->kind == HD_SIM_ROUTE_PREFIX && item->n_prefix > 0)
        to = by_prefix(r, item->prefix_seed);
    else
        to = least_loaded(r);
    r->load[to]++;
    r->all++;
    return to;
}

void hd_router_leave(hd_router *r, int replica) {
    HD_ASSERT(r->load[replica] > 0);
    r->load[replica]--;
    r->all--;
}
