/* Inside the latency profile: its cells and fit, shared by what learns and what writes files. */
#ifndef HD_SCHED_PROFILE_IMPL_H
#define HD_SCHED_PROFILE_IMPL_H

#include "sched/profile.h"

enum {
    HD_PROFILE_DECODE_LEVELS = 14, /* 0, 1, 2..3, 4..7, ... 4096 and more decoding rows */
    HD_PROFILE_PROMPT_LEVELS = 18, /* the same of prompt rows, to 65536 */
    HD_PROFILE_READ_LEVELS = 9,    /* fewer than 4^5 positions read, 4^6, ... 4^12 and more */
    HD_PROFILE_CELLS = HD_PROFILE_DECODE_LEVELS * HD_PROFILE_PROMPT_LEVELS * HD_PROFILE_READ_LEVELS,
    HD_PROFILE_TERMS = 4
};

typedef struct hd_profile_cell {
    uint32_t n;                 /* steps, up to a bound; 0: never visited */
    double x[HD_PROFILE_TERMS]; /* mean load; x[0] is 1 */
    double ns;                  /* mean time */
    double q;                   /* P95 of time / predicted mean, at least 1 */
} hd_profile_cell;

struct hd_profile {
    hd_profile_cell cell[HD_PROFILE_CELLS];
    double c[HD_PROFILE_TERMS]; /* nanoseconds a term */
    double q;                   /* of steps in cells that are new */
    uint64_t n_step;
};

int hd_profile_cell_ix(const hd_step_load *l);
/* Of a cell's mean load, which is where it belongs. */
hd_step_load hd_profile_cell_load(const hd_profile_cell *cell);
/* c from the cells. */
void hd_profile_fit(hd_profile *p);

#endif
