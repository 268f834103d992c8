/* What the processor offers this process. Thread: any. */
#ifndef HD_BASE_PROCESSOR_H
#define HD_BASE_PROCESSOR_H

#include <stdbool.h>

/* Cores this process may use: scheduling affinity, and a control group's CPU quota if one is set.
 * At least 1. */
int hd_cpu_available(void);

/* Whether F16 becomes float32 in units of the processor that multiply-adds do not need. On Intel's
 * a conversion takes two operations of the units that multiply and add, and attention over an F16
 * cache waits for them (docs/benchmarks.md#latent-attention-alone). */
bool hd_cpu_likes_halves(void);

#endif
