/* Seeded random numbers for tests: SplitMix64 (engine/sampler.h cites it). */
#ifndef HD_TEST_RNG_H
#define HD_TEST_RNG_H

#include <stdbool.h>
#include <stdint.h>

typedef struct test_rng {
    uint64_t x; /* the seed, any number */
} test_rng;

uint64_t rng_mix(uint64_t x); /* one number scattered over all bits */
uint64_t rng_next(test_rng *r);
int rng_int(test_rng *r, int lo, int hi); /* lo..hi, both included */
double rng_unit(test_rng *r);             /* [0, 1) */
bool rng_chance(test_rng *r, double p);

#endif
