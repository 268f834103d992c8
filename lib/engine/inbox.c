/* The inbox: slots, the ring of messages, and the bounds of the waiting line, under one lock. */
#include "engine/inbox.h"

#include "base/mem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

struct hd_inbox {
    hd_inbox_limits limits;
    int n_slot;

    pthread_mutex_t lock;
    pthread_cond_t filled;
    hd_inbox_message *ring; /* [2 * n_slot] */
    int ring_first, ring_n;
    hd_job **slot;      /* [n_slot] NULL: free or reserved */
    int32_t *free_slot; /* [n_free] */
    int n_free;
    uint64_t serial; /* of the last reservation */
    hd_line line;
    hd_pace pace;
    int n_waiting; /* the line's sums */
    int64_t waiting_tok;
    const char *closed; /* NULL: open */
    bool is_woken;

    _Atomic int n_live, n_unread;
    _Atomic int64_t busy_since;
};

hd_inbox *hd_inbox_new(const hd_inbox_limits *l) {
    HD_ASSERT(l->n_running_max > 0 && l->n_waiting_max > 0 && l->n_waiting_max <= 1 << 20);
    hd_inbox *x = hd_alloc_zero(1, sizeof *x);
    x->limits = *l;
    /* Besides those waiting for the first time and those running: some were preempted, and some
     * have ended but wait for the end message that names them. */
    x->n_slot = l->n_waiting_max + 2 * l->n_running_max + 16;
    x->pace.n_room = l->n_running_max;
    x->ring = hd_alloc_zero(2 * (size_t)x->n_slot, sizeof *x->ring);
    x->slot = hd_alloc_zero((size_t)x->n_slot, sizeof(hd_job *));
    x->free_slot = hd_alloc_zero((size_t)x->n_slot, sizeof *x->free_slot);
    while (x->n_free < x->n_slot) {
        x->free_slot[x->n_free] = x->n_slot - 1 - x->n_free;
        x->n_free++;
    }
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&x->filled, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&x->lock, NULL);
    return x;
}

void hd_inbox_free(hd_inbox *x) {
    if (!x) return;
    HD_ASSERT(x->n_free == x->n_slot && x->ring_n == 0);
    pthread_cond_destroy(&x->filled);
    pthread_mutex_destroy(&x->lock);
    hd_free(x->ring);
    hd_free(x->slot);
    hd_free(x->free_slot);
    hd_free(x);
}

int hd_inbox_n_slot(const hd_inbox *x) { return x->n_slot; }

static hd_status refuse_busy(const hd_inbox *x, const hd_inbox_ask *a) {
    const hd_inbox_limits *l = &x->limits;
    if (x->n_free == 0 || x->n_waiting >= l->n_waiting_max + x->pace.n_room)
        return HD_FAIL(BUSY, "the queue is full: %d requests wait, %d may", x->n_waiting,
                       l->n_waiting_max);
    /* One request alone may pass the bound: it would never be accepted otherwise. */
    if (l->waiting_tok_max > 0 && x->n_waiting > 0 &&
        x->waiting_tok + a->n_prompt > l->waiting_tok_max)
        return HD_FAIL(BUSY,
                       "the queue is full: %lld prompt tokens wait and %d are asked, %lld may",
                       (long long)x->waiting_tok, a->n_prompt, (long long)l->waiting_tok_max);
    int64_t wait_ns = hd_pace_wait_ns(&x->pace, &x->line, a->service, a->tenant);
    int64_t max_ns = l->wait_max_ns[a->service];
    if (max_ns > 0 && wait_ns > max_ns)
        return HD_FAIL(BUSY,
                       "the queue is too long: a request of class %s would wait %.1f s, %.1f "
                       "s is the most",
                       hd_service_name(a->service), (double)wait_ns * 1e-9, (double)max_ns * 1e-9);
    if (a->deadline_ns > 0 && a->now_ns + wait_ns > a->deadline_ns)
        return HD_FAIL(BUSY,
                       "the queue is too long: the request would wait %.1f s, beyond its "
                       "deadline",
                       (double)wait_ns * 1e-9);
    return HD_OK;
}

static hd_status refuse(const hd_inbox *x, const hd_inbox_ask *a) {
    return x->closed ? HD_FAIL(UNAVAILABLE, "%s", x->closed) : refuse_busy(x, a);
}

static void join_line(hd_inbox *x, const hd_inbox_ask *a, int n_req) {
    hd_line_add(&x->line, a->service, a->tenant, a->n_prompt, a->n_new, n_req);
    x->n_waiting += n_req;
    x->waiting_tok += (int64_t)n_req * a->n_prompt;
    HD_DASSERT(x->n_waiting >= 0 && x->waiting_tok >= 0);
}

hd_status hd_inbox_would_reserve(hd_inbox *x, const hd_inbox_ask *a) {
    pthread_mutex_lock(&x->lock);
    hd_status s = refuse(x, a);
    pthread_mutex_unlock(&x->lock);
    return s;
}

hd_status hd_inbox_reserve(hd_inbox *x, const hd_inbox_ask *a, uint64_t *id) {
    pthread_mutex_lock(&x->lock);
    hd_status s = refuse(x, a);
    if (s == HD_OK) {
        int slot = x->free_slot[--x->n_free];
        *id = ++x->serial * (uint64_t)x->n_slot + (uint64_t)slot;
        join_line(x, a, 1);
        if (atomic_load(&x->n_live) == 0) atomic_store(&x->busy_since, a->now_ns);
        atomic_fetch_add(&x->n_live, 1);
    }
    pthread_mutex_unlock(&x->lock);
    return s;
}

int64_t hd_inbox_wait_ns(hd_inbox *x, enum hd_service c, int64_t *retry_ns) {
    pthread_mutex_lock(&x->lock);
    int64_t wait_ns = hd_pace_wait_ns(&x->pace, &x->line, c, 0);
    int64_t max_ns = x->limits.wait_max_ns[c];
    *retry_ns = x->pace.seq_ns; /* until a place in the line is free */
    if (max_ns > 0 && wait_ns - max_ns > *retry_ns) *retry_ns = wait_ns - max_ns;
    pthread_mutex_unlock(&x->lock);
    return wait_ns;
}

static void free_slot(hd_inbox *x, uint64_t id) {
    int slot = (int)(id % (uint64_t)x->n_slot);
    x->slot[slot] = NULL;
    x->free_slot[x->n_free++] = slot;
}

void hd_inbox_forsake(hd_inbox *x, uint64_t id, const hd_inbox_ask *a) {
    pthread_mutex_lock(&x->lock);
    join_line(x, a, -1);
    free_slot(x, id);
    atomic_fetch_sub(&x->n_live, 1);
    pthread_mutex_unlock(&x->lock);
}

static void push(hd_inbox *x, hd_inbox_message m) {
    HD_ASSERT(x->ring_n < 2 * x->n_slot);
    x->ring[(x->ring_first + x->ring_n++) % (2 * x->n_slot)] = m;
    pthread_cond_signal(&x->filled);
}

hd_status hd_inbox_post_submit(hd_inbox *x, hd_job *j) {
    pthread_mutex_lock(&x->lock);
    hd_status s = x->closed ? HD_FAIL(UNAVAILABLE, "%s", x->closed) : HD_OK;
    if (s == HD_OK) {
        x->slot[j->id % (uint64_t)x->n_slot] = j;
        push(x, (hd_inbox_message){.job = j});
        atomic_fetch_add(&x->n_unread, 1);
    }
    pthread_mutex_unlock(&x->lock);
    return s;
}

void hd_inbox_post_end(hd_inbox *x, uint64_t id, enum hd_finish how) {
    pthread_mutex_lock(&x->lock);
    hd_job *j = x->slot[id % (uint64_t)x->n_slot];
    if (j && j->id == id && !j->is_end_posted) {
        j->is_end_posted = true;
        j->n_ref++;
        push(x, (hd_inbox_message){.end = how, .job = j});
    }
    pthread_mutex_unlock(&x->lock);
}

void hd_inbox_close(hd_inbox *x, const char *text) {
    pthread_mutex_lock(&x->lock);
    if (!x->closed) x->closed = text;
    pthread_mutex_unlock(&x->lock);
}

void hd_inbox_wake(hd_inbox *x) {
    pthread_mutex_lock(&x->lock);
    x->is_woken = true;
    pthread_cond_signal(&x->filled);
    pthread_mutex_unlock(&x->lock);
}

bool hd_inbox_pop(hd_inbox *x, hd_inbox_message *out) {
    pthread_mutex_lock(&x->lock);
    bool found = x->ring_n > 0;
    if (found) {
        *out = x->ring[x->ring_first];
        x->ring_first = (x->ring_first + 1) % (2 * x->n_slot);
        x->ring_n--;
        if (out->end == HD_FINISH_NONE) atomic_fetch_sub(&x->n_unread, 1);
    }
    pthread_mutex_unlock(&x->lock);
    return found;
}

void hd_inbox_left(hd_inbox *x, const hd_job *j) {
    hd_inbox_ask a = {
        .service = j->service, .tenant = j->tenant, .n_prompt = j->n_prompt, .n_new = j->n_new_max};
    pthread_mutex_lock(&x->lock);
    join_line(x, &a, -1);
    pthread_mutex_unlock(&x->lock);
}

void hd_inbox_ended(hd_inbox *x) { atomic_fetch_sub(&x->n_live, 1); }

void hd_inbox_set_pace(hd_inbox *x, const hd_pace *p) {
    pthread_mutex_lock(&x->lock);
    x->pace = *p;
    pthread_mutex_unlock(&x->lock);
}

bool hd_inbox_unref(hd_inbox *x, hd_job *j) {
    pthread_mutex_lock(&x->lock);
    bool is_last = --j->n_ref == 0;
    if (is_last) free_slot(x, j->id);
    pthread_mutex_unlock(&x->lock);
    if (is_last) hd_job_free(j);
    return is_last;
}

hd_job *hd_inbox_job_at(hd_inbox *x, int slot) {
    pthread_mutex_lock(&x->lock);
    hd_job *j = x->slot[slot];
    pthread_mutex_unlock(&x->lock);
    return j;
}

void hd_inbox_sleep(hd_inbox *x, int64_t timeout_ns) {
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    int64_t nsec = end.tv_nsec + timeout_ns % 1000000000;
    end.tv_sec += timeout_ns / 1000000000 + nsec / 1000000000;
    end.tv_nsec = nsec % 1000000000;
    pthread_mutex_lock(&x->lock);
    bool is_late = false;
    while (x->ring_n == 0 && !x->is_woken && !is_late) {
        if (timeout_ns == 0)
            pthread_cond_wait(&x->filled, &x->lock);
        else
            is_late = pthread_cond_timedwait(&x->filled, &x->lock, &end) != 0;
    }
    x->is_woken = false;
    pthread_mutex_unlock(&x->lock);
}

int hd_inbox_n_live(const hd_inbox *x) { return atomic_load(&x->n_live); }
int hd_inbox_n_unread(const hd_inbox *x) { return atomic_load(&x->n_unread); }
int64_t hd_inbox_busy_since(const hd_inbox *x) { return atomic_load(&x->busy_since); }
