/* Inside of `hadal profile`: what was measured, and how it is told. */
#ifndef HD_CMD_PROFILE_H
#define HD_CMD_PROFILE_H

#include "cmd/command.h"

/* Steps that ran in one way. */
typedef struct hd_profile_run {
    int64_t *step_ns; /* [n_step] by the wall clock */
    hd_spans spans;
} hd_profile_run;

/* The same steps, run in three ways on a device that enqueues: as always; with kernels launched in
 * turn, so that what they wait for one another is no part of them; and every op apart, where each
 * kernel's op is known. On one that computes when it is called once is enough. */
typedef struct hd_profile {
    const char *what; /* "1 sequence of 128 tokens" */
    char device[256];
    int n_step;
    hd_profile_run always, in_turn, by_op;
    bool has_device; /* kernels are in their spans, in_turn and by_op are filled */
} hd_profile;

/* Tables, or one JSON object, on stdout. */
HD_MUST_CHECK hd_status hd_profile_report(const hd_profile *p, bool is_json);
/* Chrome's trace format, which chrome://tracing and Perfetto show. Replaces path when complete. */
HD_MUST_CHECK hd_status hd_profile_save_trace(const hd_profile *p, const char *path);

#endif
