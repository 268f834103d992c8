/* What the processor offers this process. Thread: any. */
#ifndef HD_BASE_PROCESSOR_H
#define HD_BASE_PROCESSOR_H

#include <stdbool.h>

/* Cores this process may use: scheduling affinity, and a control group's CPU quota if one is set.
 * At least 1. */
int hd_cpu_available(void);

/* Whether F16 becomes float32 in units of the processor that multiply-adds do not need. Intel's
 * take two operations of those that do: attention that meets F16 as it lies then waits for them (a
 * step of 8 heads behind 16384 tokens takes 1.4 times as long as with floats, Xeon with AMX). */
bool hd_cpu_likes_halves(void);

#endif
