/* A latency profile by which prompts take several times as long as what decodes beside them. */
#ifndef HD_TEST_SLOW_PROMPTS_H
#define HD_TEST_SLOW_PROMPTS_H

#include "sched/profile.h"

/* Of up to n_seq decoding rows, n_row prompt rows. */
hd_profile *test_slow_prompts(int n_seq, int n_row);

#endif
