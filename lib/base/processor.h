/* What the processor offers this process. Thread: any. */
#ifndef HD_BASE_PROCESSOR_H
#define HD_BASE_PROCESSOR_H

#include <stdbool.h>

/* Cores this process may use: scheduling affinity, and a control group's CPU quota if one is set.
 * At least 1. */
int hd_cpu_available(void);

/* Whether attention that meets an F16 cache as it lies is faster than over floats: on AMD's
 * processors with AVX-512 (Zen 5 was measured); not on a Xeon with AMX, nor by AVX2; no other was
 * measured (docs/benchmarks.md#latent-attention-alone). */
bool hd_cpu_likes_halves(void);

#endif
