/* The fork-join pool: every task runs exactly once, jobs of any size follow one another at once,
 * and a pool without work uses no processor time. */
#include "support/check.h"

#include "base/pool.h"
#include "base/processor.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { N_MAX = 1000 };

typedef struct count {
    atomic_int total;
    int seen[N_MAX]; /* each written by one task only: no atomics on purpose, for TSan */
    int n_thread;
} count;

static void add_one(void *ctx, int task, int thread) {
    count *c = ctx;
    assert_in_range(thread, 0, c->n_thread - 1);
    c->seen[task]++;
    atomic_fetch_add(&c->total, 1);
}

static void every_task_runs_once(void **state) {
    (void)state;
    for (int n_thread = 1; n_thread <= 5; n_thread++) {
        hd_pool *p;
        assert_ok(hd_pool_open(n_thread, &p));
        assert_int_equal(hd_pool_threads(p), n_thread);
        for (int job = 0; job < 2000; job++) {
            count c = {.n_thread = n_thread};
            int n = job % 50 == 7 ? N_MAX : job % 9;
            hd_pool_run(p, n, add_one, &c);
            assert_int_equal(atomic_load(&c.total), n);
            for (int i = 0; i < N_MAX; i++) assert_int_equal(c.seen[i], i < n ? 1 : 0);
        }
        hd_pool_close(p);
    }
}

/* Results of one job are there for the next, whichever thread wrote them. */
static int values[N_MAX];
static void add_to_earlier(void *ctx, int task, int thread) {
    (void)thread;
    const int *from = ctx;
    values[task] = from[task] + 1;
}

static void jobs_see_earlier_jobs(void **state) {
    (void)state;
    hd_pool *p;
    assert_ok(hd_pool_open(3, &p));
    memset(values, 0, sizeof values);
    for (int job = 0; job < 500; job++) hd_pool_run(p, 64, add_to_earlier, values);
    for (int i = 0; i < 64; i++) assert_int_equal(values[i], 500);
    hd_pool_close(p);
}

static int64_t cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* After the spin the threads sleep: far less than 1 % of a core. */
static void idle_pool_sleeps(void **state) {
    (void)state;
    hd_pool *p;
    count c = {.n_thread = 4};
    assert_ok(hd_pool_open(4, &p));
    hd_pool_run(p, 100, add_one, &c);
    usleep(50000);
    int64_t before = cpu_ns();
    usleep(500000);
    int64_t used = cpu_ns() - before;
    if (used > 5000000) fail_msg("idle pool used %lld us in 0.5 s", (long long)used / 1000);
    hd_pool_run(p, 100, add_one, &c); /* and they wake up */
    assert_int_equal(atomic_load(&c.total), 200);
    hd_pool_close(p);
}

static void cores_are_counted(void **state) {
    (void)state;
    int n = hd_cpu_available();
    assert_in_range(n, 1, 100000);
    assert_true(n <= sysconf(_SC_NPROCESSORS_CONF));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_runs_once),
        cmocka_unit_test(jobs_see_earlier_jobs),
        cmocka_unit_test(idle_pool_sleeps),
        cmocka_unit_test(cores_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
