/* Inside of `hadal bench serve`: the client that sends a load; and the report of a load, which the
 * simulator and the comparison have, too. One thread.
 *
 * Open loop: when a request is sent depends on the trace alone, never on answers, and every latency
 * counts from the planned arrival, so that a slow server cannot hide the wait it caused. */
#ifndef HD_CMD_BENCH_LOAD_H
#define HD_CMD_BENCH_LOAD_H

#include "base/mem.h"
#include "cmd/load_trace.h"

#define HD_LOAD_OUTCOMES(X)                                                                        \
    X(UNSENT, "unsent")                                                                            \
    X(UNFINISHED, "unfinished")                                                                    \
    X(OK, "ok")                                                                                    \
    X(REJECTED, "rejected")                                                                        \
    X(STATUS, "status")                                                                            \
    X(CONNECTION, "connection")                                                                    \
    X(CUT, "cut")                                                                                  \
    X(TIMEOUT, "timeout")                                                                          \
    X(MALFORMED, "malformed")                                                                      \
    X(EVENT, "error_event")

enum hd_load_outcome {
#define X(id, name) HD_LOAD_##id,
    HD_LOAD_OUTCOMES(X)
#undef X
        HD_LOAD_OUTCOME_COUNT
};

typedef struct hd_load_result {
    enum hd_load_outcome outcome;
    int status;                       /* of HTTP; 0: none came */
    int n_input, n_output, n_event;   /* tokens by the server's usage; events with tokens */
    double late_s;                    /* of sending */
    double answer_s;                  /* from sending to the end of what came */
    double ttft_s, tpot_s, latency_s; /* from the planned arrival; tpot: 0 for one token */
} hd_load_result;

/* Weighted samples in logarithmic steps of 1 %, from a microsecond on. */
enum { HD_LOAD_STEPS = 2200 };
typedef struct hd_load_histogram {
    double weight[HD_LOAD_STEPS], all, sum, max;
} hd_load_histogram;

typedef struct hd_load_run {
    const struct hd_options *o;
    const hd_trace *trace;
    hd_load_result *result; /* [trace->n] */
    hd_load_histogram gap;  /* seconds between tokens */
    double seconds;         /* from the start to the last answer */
    char model[256];        /* that requests name */
    bool is_text, is_interrupted;
} hd_load_run;

/* Finds the model and the form of prompts that the server takes, sends the trace and waits for the
 * answers; Ctrl-C ends it early. HD_E_UNAVAILABLE: the server does not take the first request. */
HD_MUST_CHECK hd_status hd_load_send(hd_load_run *r);
void hd_load_histogram_add(hd_load_histogram *h, double seconds, double weight);

/* --goodput: HD_E_INVALID names what is wrong. */
HD_MUST_CHECK hd_status hd_load_check_goodput(const struct hd_options *o);
/* Share of the requests sent that were answered within every bound. */
double hd_load_good_share(const hd_load_run *r);
/* Counts, throughput and latencies: tables on stdout, or keys of an object that is open. */
HD_MUST_CHECK hd_status hd_load_print(const hd_load_run *r);
HD_MUST_CHECK hd_status hd_load_write(const hd_load_run *r, hd_json *j);
/* The figures of a request: in seconds, ascending, of those that have it; v: [trace->n]. */
enum hd_load_metric { HD_LOAD_TTFT, HD_LOAD_TPOT, HD_LOAD_E2EL };
int hd_load_sorted(const hd_load_run *r, enum hd_load_metric metric, double *v);
const char *hd_load_title(enum hd_load_metric metric);

/* One line of JSON for each request. */
HD_MUST_CHECK hd_status hd_load_save(const hd_load_run *r, const char *path);

/* The distributions as a picture (SVG): into a file, or as text. */
HD_MUST_CHECK hd_status hd_load_plot(const hd_load_run *r, const char *path);
void hd_load_draw(const hd_load_run *r, hd_buf *out);

/* The command, after the word `serve`; returns the exit code. */
int hd_bench_serve(const struct hd_options *o, int n_arg);

#endif
