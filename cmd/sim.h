/* Inside of `hadal sim`: what its parts share. */
#ifndef HD_CMD_SIM_H
#define HD_CMD_SIM_H

#include "cmd/bench_load.h"
#include "sim/sim.h"

/* --find-max-load: scales of the load, and the shares of good requests at them. */
struct hd_sim_bracket {
    double good, good_share; /* the largest that keeps the bounds */
    double bad, bad_share;   /* tried above it, and does not; at most 1 % larger */
};

struct hd_sim_report {
    const struct hd_options *o;
    const hd_sim_config *c;
    const hd_cost *cost;
    const hd_sim_result *result;
    const hd_load_run *run;                /* the same requests as a load's */
    int64_t n_tok;                         /* of prompts and answers */
    const struct hd_sim_bracket *max_load; /* NULL: it was not looked for */
};

/* Simulator and loop for machines of this profile under this trace: the engine's options, a context
 * no longer than the trace needs, and pages for every sequence unless the options bound them. */
HD_MUST_CHECK hd_status hd_sim_config_from(const struct hd_options *o, const hd_cost *cost,
                                           const hd_trace *trace, hd_sim_config *out);
/* Runs it, and makes a load's results of the requests (run->trace, run->o and run->result are
 * set). */
HD_MUST_CHECK hd_status hd_sim_to_load(hd_sim_config *c, hd_load_run *run, hd_sim_result *result);

/* A table, or one JSON object, on stdout. */
HD_MUST_CHECK hd_status hd_sim_print(const struct hd_sim_report *r);
HD_MUST_CHECK hd_status hd_sim_plot(const struct hd_sim_report *r, const char *path);

#endif
