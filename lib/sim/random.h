/* Random numbers of generators and simulations: splitmix64 (Steele, Lea and Flood, OOPSLA 2014) and
 * what is drawn from it. A state is one number; equal states give equal numbers everywhere. */
#ifndef HD_SIM_RANDOM_H
#define HD_SIM_RANDOM_H

#include <math.h>
#include <stdint.h>

static inline uint64_t hd_random_next(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* In (0, 1). */
static inline double hd_random_uniform(uint64_t *state) {
    return ((double)(hd_random_next(state) >> 11) + 0.5) * 0x1p-53;
}

static inline double hd_random_exponential(uint64_t *state, double mean) {
    return -mean * log(hd_random_uniform(state));
}

#endif
