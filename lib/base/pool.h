/* A fork-join thread pool: the calling thread works too.
 *
 * hd_pool_run calls fn(ctx, task, thread) once for every task in [0, n_task), on any of the pool's
 * threads, and returns when all are done. Which thread runs which task is not fixed, so a task must
 * write only what no other task touches; then results do not depend on the number of threads.
 * Workers spin for some microseconds after the last task, then sleep: an idle pool uses no CPU.
 * Thread: one caller at a time; run is not re-entrant. Nothing is allocated after open. */
#ifndef HD_BASE_POOL_H
#define HD_BASE_POOL_H

#include "base/status.h"

typedef struct hd_pool hd_pool;
typedef void (*hd_pool_fn)(void *ctx, int task, int thread);

/* n_thread counts the caller; 1 starts no threads. HD_E_NO_MEMORY when the system gives none. */
HD_MUST_CHECK hd_status hd_pool_open(int n_thread, hd_pool **out);
void hd_pool_close(hd_pool *p); /* accepts NULL */
int hd_pool_threads(const hd_pool *p);
void hd_pool_run(hd_pool *p, int n_task, hd_pool_fn fn, void *ctx);

#endif
