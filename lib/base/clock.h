/* Time, injectable: the scheduler and the simulator see only an hd_clock. */
#ifndef HD_BASE_CLOCK_H
#define HD_BASE_CLOCK_H

#include <stdint.h>

typedef struct hd_clock {
    int64_t (*now_ns)(void *ctx); /* monotonic, any origin */
    void *ctx;
} hd_clock;

hd_clock hd_clock_real(void);   /* CLOCK_MONOTONIC */
int64_t hd_now_ns(void);        /* CLOCK_MONOTONIC */
int64_t hd_thread_cpu_ns(void); /* processor time of this thread */
int64_t hd_wall_ms(void);       /* milliseconds since 1970 */

#endif
