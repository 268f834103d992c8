/* Groups whose ranks are threads of one process: they meet, show each other where their data lies,
 * and each computes one piece of the result for all of them. */
#include "dev/comm.h"

#include "base/mem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* About 20 to 50 microseconds of PAUSE: ranks that do equal work arrive within that. */
enum { SPIN_PASSES = 1000, PIECE = 16 /* floats of a cache line */ };

typedef struct rank {
    hd_comm comm; /* first: a rank's end is its rank */
    hd_group *group;
    float *x;          /* what it shows the others */
    const float *part; /* the same of all_gather */
} rank;

struct hd_group {
    int n_rank;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    atomic_int n_here;     /* ranks that have arrived */
    atomic_uint n_meeting; /* meetings that are over */
    atomic_bool is_broken;
    int broken_rank; /* under the lock until is_broken */
    char why[256];
    rank rank[];
};

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

static bool is_over(hd_group *g, unsigned meeting) {
    return atomic_load_explicit(&g->n_meeting, memory_order_acquire) != meeting ||
           atomic_load_explicit(&g->is_broken, memory_order_acquire);
}

static void end_meeting(hd_group *g) {
    atomic_store_explicit(&g->n_here, 0, memory_order_relaxed);
    pthread_mutex_lock(&g->lock);
    atomic_fetch_add_explicit(&g->n_meeting, 1, memory_order_release);
    pthread_cond_broadcast(&g->moved);
    pthread_mutex_unlock(&g->lock);
}

static hd_status check(hd_comm *c) {
    const hd_group *g = ((const rank *)(const void *)c)->group;
    if (!atomic_load_explicit(&g->is_broken, memory_order_acquire)) return HD_OK;
    return HD_FAIL(DEVICE, "rank %d of %d failed: %s", g->broken_rank, g->n_rank, g->why);
}

/* Returns when every rank is here. */
static hd_status meet(hd_group *g) {
    unsigned meeting = atomic_load_explicit(&g->n_meeting, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&g->n_here, 1, memory_order_acq_rel) + 1 == g->n_rank) {
        end_meeting(g);
    } else {
        for (int i = 0; i < SPIN_PASSES && !is_over(g, meeting); i++) relax();
        pthread_mutex_lock(&g->lock);
        while (!is_over(g, meeting)) pthread_cond_wait(&g->moved, &g->lock);
        pthread_mutex_unlock(&g->lock);
    }
    return check(&g->rank[0].comm);
}

static hd_status all_reduce(hd_comm *c, float *x, size_t n) {
    rank *r = (rank *)(void *)c;
    hd_group *g = r->group;
    size_t each = hd_align_up((n + (size_t)g->n_rank - 1) / (size_t)g->n_rank, PIECE);
    size_t from = each * (size_t)c->rank, to = from + each;
    r->x = x;
    HD_TRY(meet(g));
    for (size_t i = from; i < to && i < n; i++) {
        float sum = g->rank[0].x[i];
        for (int k = 1; k < g->n_rank; k++) sum += g->rank[k].x[i];
        for (int k = 0; k < g->n_rank; k++) g->rank[k].x[i] = sum;
    }
    return meet(g);
}

static hd_status all_gather(hd_comm *c, const float *part, float *all, size_t n_row,
                            size_t n_each) {
    rank *r = (rank *)(void *)c;
    hd_group *g = r->group;
    r->part = part;
    HD_TRY(meet(g));
    for (size_t row = 0; row < n_row; row++)
        for (size_t k = 0; k < (size_t)g->n_rank; k++)
            memcpy(all + (row * (size_t)g->n_rank + k) * n_each, g->rank[k].part + row * n_each,
                   n_each * sizeof *all);
    return meet(g);
}

hd_group *hd_group_new(int n_rank) {
    HD_ASSERT(n_rank >= 1 && n_rank <= HD_RANK_MAX);
    hd_group *g = hd_alloc_zero(1, sizeof *g + (size_t)n_rank * sizeof *g->rank);
    g->n_rank = n_rank;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->moved, NULL);
    for (int i = 0; i < n_rank; i++)
        g->rank[i] = (rank){.group = g,
                            .comm = {.by = "host memory",
                                     .rank = i,
                                     .n_rank = n_rank,
                                     .check = check,
                                     .all_reduce = all_reduce,
                                     .all_gather = all_gather}};
    return g;
}

void hd_group_free(hd_group *g) {
    if (!g) return;
    for (int i = 0; i < g->n_rank; i++) {
        hd_comm *c = &g->rank[i].comm;
        if (c->native.handle) c->native.close(c->native.handle);
    }
    pthread_cond_destroy(&g->moved);
    pthread_mutex_destroy(&g->lock);
    hd_free(g);
}

hd_comm *hd_group_comm(hd_group *g, int ix) {
    HD_ASSERT(ix >= 0 && ix < g->n_rank);
    return &g->rank[ix].comm;
}

hd_status hd_group_join(hd_group *g, const hd_dev *dev) {
    void *ctx[HD_RANK_MAX];
    hd_comm *comm[HD_RANK_MAX];
    for (int i = 0; i < g->n_rank; i++) {
        HD_ASSERT(dev[i].ops == dev[0].ops);
        ctx[i] = dev[i].ctx;
        comm[i] = &g->rank[i].comm;
    }
    return dev[0].ops->join ? dev[0].ops->join(ctx, comm, g->n_rank) : HD_OK;
}

void hd_comm_fail(hd_comm *c) {
    hd_group *g = ((rank *)(void *)c)->group;
    pthread_mutex_lock(&g->lock);
    bool is_first = !atomic_load_explicit(&g->is_broken, memory_order_relaxed);
    if (is_first) {
        g->broken_rank = c->rank;
        snprintf(g->why, sizeof g->why, "%s", hd_error_text());
        atomic_store_explicit(&g->is_broken, true, memory_order_release);
        pthread_cond_broadcast(&g->moved);
    }
    pthread_mutex_unlock(&g->lock);
    for (int i = 0; is_first && i < g->n_rank; i++) {
        hd_comm *other = &g->rank[i].comm;
        if (other->native.handle) other->native.cancel(other->native.handle);
    }
}

void hd_comm_op_all_reduce(void *ctx, const struct hd_op_all_reduce *args) {
    hd_comm *c = args->comm;
    (void)ctx;
    if (c->status == HD_OK) c->status = c->all_reduce(c, args->x, args->n);
}

void hd_comm_op_all_gather(void *ctx, const struct hd_op_all_gather *args) {
    hd_comm *c = args->comm;
    (void)ctx;
    if (c->status == HD_OK)
        c->status =
            c->all_gather(c, args->part, args->all, (size_t)args->n_row, (size_t)args->n_each);
}
