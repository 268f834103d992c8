/* A first latency profile: some steps of made-up tokens, timed while no request is there yet. */
#ifndef HD_ENGINE_MEASURE_H
#define HD_ENGINE_MEASURE_H

#include "engine/loop.h"

/* Runs steps of growing load on the device of c until budget_ns of its clock is spent, at least the
 * first; a step is not begun that the last ones say would pass it. What they leave in the KV pool
 * is garbage, and no page of it is in use. The model is nobody else's meanwhile. A failing step
 * ends it: the profile has then learned less. */
void hd_measure_steps(const hd_loop_config *c, int64_t budget_ns, hd_profile *p);

#endif
