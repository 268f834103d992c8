/* Inside of `hadal bench compare`: policies of batching under one load, and what became of it. */
#ifndef HD_CMD_COMPARE_H
#define HD_CMD_COMPARE_H

#include "cmd/bench.h"
#include "cmd/load_trace.h"
#include "sim/sim.h"

enum hd_policy_kind {
    HD_POLICY_STATIC, /* a batch at a time: prompts padded to the longest, contiguous KV, all run
                         until the longest answer ends */
    HD_POLICY_PAGED,  /* a batch at a time, but ragged, in pages, and who has ended leaves */
    HD_POLICY_DYNAMIC /* the engine */
};

typedef struct hd_policy {
    char name[32];
    enum hd_policy_kind kind;
    int n_max; /* requests of a batch */
} hd_policy;

enum { HD_POLICY_WAIT_MS = 50 }; /* after its first request an incomplete batch is dispatched */

/* Seconds from the start of the run. */
typedef struct hd_compare_request {
    hd_status status;
    double arrival_s, admitted_s, first_s, end_s;
    int n_output;
} hd_compare_request;

/* Of the engine's steps on a host: what was computed, and how long that took. */
typedef struct hd_compare_step {
    hd_cost_load load;
    double share, seconds; /* share: of the layers */
} hd_compare_step;

typedef struct hd_compare_steps {
    hd_compare_step *v; /* [n] hd_free */
    int n;
} hd_compare_steps;

typedef struct hd_compare_run {
    hd_compare_request *request;  /* [trace->n] */
    int64_t kv_peak_tok;          /* tokens that KV was allocated for at once, at most */
    double kv_allocated, kv_used; /* tokens times seconds */
    hd_compare_steps steps;       /* none of a simulation, a device or a batch at a time */
} hd_compare_run;

/* What a batch at a time runs on: the model, or a simulated machine. */
typedef struct hd_static_machine {
    hd_batch *batch;
    int64_t (*now_ns)(void *ctx);
    void (*wait_until)(void *ctx, int64_t ns);
    hd_status (*step)(void *ctx); /* computes the batch and chooses its tokens */
    void *ctx;
    int n_pos_max;  /* of a sequence; its pages are slot * pages.. */
    int expand_min; /* as the engine's */
    int64_t kv_tok; /* tokens of KV that batches may take; 0: no bound */
} hd_static_machine;

/* HD_E_CONTEXT: a batch is longer than n_pos_max. */
HD_MUST_CHECK hd_status hd_static_run(const hd_static_machine *m, const hd_policy *p,
                                      const hd_trace *trace, hd_compare_run *run);
/* Room of the batch: positions of the longest prompt and the longest answer together. */
int hd_static_n_pos(const hd_trace *trace);

/* The engine's configuration, but that nobody is refused, since a batch at a time refuses nobody.
 */
HD_MUST_CHECK hd_status hd_compare_config(const struct hd_options *o, const hd_cost *cost,
                                          const hd_trace *trace, hd_sim_config *out);
/* The load on the engine's loop and the model, configured as the options say. */
HD_MUST_CHECK hd_status hd_live_run(const struct hd_options *o, const char *model,
                                    const hd_trace *trace, hd_compare_run *run);

/* Allocated and used KV of requests that held ceil(n / page_tok) pages while they had n tokens. */
void hd_compare_count_pages(const hd_trace *trace, int page_tok, hd_compare_run *run);

/* The command, after the word `compare`; returns the exit code. */
int hd_bench_compare(const struct hd_options *o, int n_arg, char **arg);

#endif
