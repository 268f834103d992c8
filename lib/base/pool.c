/* The fork-join pool. One 64-bit word, the ticket, carries the number of the current job and how
 * many of its tasks nobody has taken yet. A thread takes a task by lowering the count with one
 * compare-and-swap; the word never repeats a value, so a thread that was descheduled in the middle
 * cannot take a task of a job it has not seen, and the job's fields are stable for as long as the
 * count is above zero. The caller waits only for tasks, never for threads that took none. */
#include "base/pool.h"

#include "base/mem.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* About 100 to 300 microseconds of PAUSE: longer than what one thread does alone in a step, and
 * between two steps. Waking a sleeper took 100 microseconds (virtual machine on Zen 5). */
#define SPIN_PASSES 6000

typedef struct worker {
    struct hd_pool *pool;
    pthread_t thread;
    int ix;
} worker;

struct hd_pool {
    int n_thread;
    worker *workers; /* [n_thread - 1] */
    /* The job. Written by the caller while no task is left, read after an acquire of the ticket. */
    _Atomic(hd_pool_fn) fn;
    _Atomic(void *) ctx;
    atomic_int n_task;
    _Alignas(64) atomic_uint_fast64_t ticket; /* job number << 32 | tasks not yet taken */
    _Alignas(64) atomic_uint n_unfinished;    /* futex: the caller sleeps on it */
    _Alignas(64) atomic_uint job; /* futex: workers sleep on it; low half of the number */
    atomic_int n_asleep;
    atomic_int caller_asleep;
    atomic_bool is_closing;
};

static void futex_wait(atomic_uint *word, unsigned expected) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake(atomic_uint *word, int n) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* Takes and runs tasks of the current job until none is left. */
static void work(hd_pool *p, int thread) {
    uint64_t t = atomic_load_explicit(&p->ticket, memory_order_acquire);
    while ((uint32_t)t != 0) {
        hd_pool_fn fn = atomic_load_explicit(&p->fn, memory_order_relaxed);
        void *ctx = atomic_load_explicit(&p->ctx, memory_order_relaxed);
        int n_task = atomic_load_explicit(&p->n_task, memory_order_relaxed);
        if (!atomic_compare_exchange_weak_explicit(&p->ticket, &t, t - 1, memory_order_acq_rel,
                                                   memory_order_acquire))
            continue;
        fn(ctx, n_task - (int)(uint32_t)t, thread);
        if (atomic_fetch_sub(&p->n_unfinished, 1) == 1 && atomic_load(&p->caller_asleep) != 0)
            futex_wake(&p->n_unfinished, 1);
        t = atomic_load_explicit(&p->ticket, memory_order_acquire);
    }
}

static void *worker_main(void *arg) {
    worker *w = arg;
    hd_pool *p = w->pool;
    unsigned seen = 0;
    for (;;) {
        unsigned now = atomic_load(&p->job);
        for (int i = 0; now == seen && i < SPIN_PASSES; i++) {
            relax();
            now = atomic_load(&p->job);
        }
        if (now == seen) {
            atomic_fetch_add(&p->n_asleep, 1);
            futex_wait(&p->job, seen);
            atomic_fetch_sub(&p->n_asleep, 1);
            continue;
        }
        seen = now;
        if (atomic_load(&p->is_closing)) return NULL;
        work(p, w->ix);
    }
}

/* A new job number, seen by spinning workers at once and by sleeping ones through the futex. */
static void announce(hd_pool *p) {
    atomic_fetch_add(&p->job, 1);
    if (atomic_load(&p->n_asleep) > 0) futex_wake(&p->job, INT_MAX);
}

void hd_pool_run(hd_pool *p, int n_task, hd_pool_fn fn, void *ctx) {
    if (n_task <= 0) return;
    if (p->n_thread == 1 || n_task == 1) {
        for (int i = 0; i < n_task; i++) fn(ctx, i, 0);
        return;
    }
    atomic_store_explicit(&p->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&p->ctx, ctx, memory_order_relaxed);
    atomic_store_explicit(&p->n_task, n_task, memory_order_relaxed);
    atomic_store_explicit(&p->n_unfinished, (unsigned)n_task, memory_order_relaxed);
    uint64_t t = atomic_load_explicit(&p->ticket, memory_order_relaxed);
    atomic_store_explicit(&p->ticket, ((t >> 32) + 1) << 32 | (uint32_t)n_task,
                          memory_order_release);
    announce(p);
    work(p, 0);
    for (int i = 0; i < SPIN_PASSES; i++) {
        if (atomic_load(&p->n_unfinished) == 0) return;
        relax();
    }
    atomic_store(&p->caller_asleep, 1);
    unsigned left;
    while ((left = atomic_load(&p->n_unfinished)) != 0) futex_wait(&p->n_unfinished, left);
    atomic_store(&p->caller_asleep, 0);
}

hd_status hd_pool_open(int n_thread, hd_pool **out) {
    HD_ASSERT(n_thread >= 1);
    void *memory;
    HD_TRY(hd_alloc_large(sizeof(hd_pool), &memory));
    hd_pool *p = memory;
    p->workers = hd_alloc_zero((size_t)n_thread, sizeof *p->workers);
    p->n_thread = 1;
    for (int i = 1; i < n_thread; i++) {
        worker *w = &p->workers[i - 1];
        *w = (worker){.pool = p, .ix = i};
        int e = pthread_create(&w->thread, NULL, worker_main, w);
        if (e != 0) {
            hd_pool_close(p);
            return HD_FAIL(NO_MEMORY, "thread pool: thread %d of %d did not start (error %d)",
                           i + 1, n_thread, e);
        }
        p->n_thread++;
    }
    *out = p;
    return HD_OK;
}

void hd_pool_close(hd_pool *p) {
    if (p == NULL) return;
    atomic_store(&p->is_closing, true);
    announce(p);
    for (int i = 1; i < p->n_thread; i++) pthread_join(p->workers[i - 1].thread, NULL);
    hd_free(p->workers);
    hd_free(p);
}

int hd_pool_threads(const hd_pool *p) { return p->n_thread; }
