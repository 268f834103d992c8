/* Seeded random numbers. */
#include "support/rng.h"

uint64_t rng_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

uint64_t rng_next(test_rng *r) { return rng_mix(r->x += 0x9E3779B97F4A7C15u); }

int rng_int(test_rng *r, int lo, int hi) {
    return lo + (int)(rng_next(r) % (uint64_t)((int64_t)hi - lo + 1));
}

double rng_unit(test_rng *r) { return (double)(rng_next(r) >> 11) * 0x1p-53; }
bool rng_chance(test_rng *r, double p) { return rng_unit(r) < p; }
