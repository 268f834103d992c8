/* The real clock. */
#include "base/clock.h"

#include <stddef.h>
#include <time.h>

int64_t hd_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t hd_wall_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int64_t real_now(void *ctx) {
    (void)ctx;
    return hd_now_ns();
}

hd_clock hd_clock_real(void) { return (hd_clock){.now_ns = real_now, .ctx = NULL}; }

int64_t hd_thread_cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
