/* Seeded tests: how many seeds, from where, and the line that repeats a failure.
 *
 * `test_x FIRST [COUNT]` runs those seeds; HADAL_SIM_SEEDS=COUNT sets the number otherwise. A
 * failing or aborting seed prints `repeat with: test_x SEED`. */
#ifndef HD_TEST_SEEDS_H
#define HD_TEST_SEEDS_H

#include <stdint.h>

void seeds_init(int argc, char **argv, long n_default);
void seeds_run(void (*run)(uint64_t seed, void *user), void *user);
long seeds_count(void);
/* Returns n_failed, after naming the seed that ran last when it is not 0. */
int seeds_end(int n_failed);

#endif
