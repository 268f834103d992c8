/* The simulator: the real loop, scheduler and prefix index, on machines that only take time.
 *
 * Each replica is an engine's loop (engine/loop.h) with a virtual clock and a device that costs
 * what a cost profile says. A router hands the requests of a trace to the replicas; events (an
 * arrival, a replica's next turn) are taken in order of virtual time, an arrival before a turn at
 * the same moment, so that equal configurations give equal results, whatever the speed of the
 * machine that simulates. Not simulated: HTTP, tokenizing, the loop's own time, clients that go
 * away, faults.
 *
 * Thread: one; hd_sim_run does not return before everything has ended. */
#ifndef HD_SIM_SIM_H
#define HD_SIM_SIM_H

#include "engine/loop.h"
#include "sim/cost.h"
#include "sim/trace.h"

/* A machine under virtual time: a host, whose clock it is, and a device that takes one step after
 * the other. */
typedef struct hd_sim_machine {
    const hd_cost *cost;
    int64_t now_ns;
    int64_t end_ns[2]; /* when the steps under way end, the older one first */
    int n_under_way;
    uint64_t random; /* state of the noise */
    double busy_s;
    uint64_t n_step, n_row;
    bool is_over; /* a step or the time is beyond its bound: what follows is worth nothing */
} hd_sim_machine;

/* Gives the device a batch, which computes nothing and takes as long as it would. */
void hd_sim_machine_enqueue(hd_sim_machine *m, const hd_batch *b);
/* Waits for the oldest step that was enqueued and not fetched. */
void hd_sim_machine_fetch(hd_sim_machine *m);
/* HD_E_INVALID: a step took more than 10^6 s, or time has passed 2^60 ns (36 years). */
HD_MUST_CHECK hd_status hd_sim_machine_status(const hd_sim_machine *m);

enum hd_sim_router {
    HD_SIM_ROUTE_PREFIX,      /* one group, one replica, as long as that has no more requests under
                                 way than 1.25 times its share (Mirrokni, Thorup and Zadimoghaddam
                                 2016) and SLACK: a short line costs less than a missed prefix */
    HD_SIM_ROUTE_ROUND_ROBIN, /* in turn */
    HD_SIM_ROUTE_LEAST_LOADED /* the fewest requests under way */
};
enum { HD_SIM_ROUTE_SLACK = 4 };

typedef struct hd_sim_config {
    hd_loop_config loop; /* sched and the bounds of the queue; the rest is the simulator's */
    int64_t measure_ns;  /* spent on a first latency profile, before the first arrival */
    const hd_cost *cost;
    bool is_async; /* the device is a step ahead of the loop, as a GPU */
    int n_replica;
    enum hd_sim_router router;
    double scale;  /* arrivals come so many times as fast */
    int n_sample;  /* of load and KV over time, evenly until the last arrival; more follow */
    uint64_t seed; /* of the noise */
    void (*on_gap)(void *user, double seconds); /* between two tokens of a request; may be NULL */
    void *user;
} hd_sim_config;

typedef struct hd_sim_request {
    hd_status status; /* HD_OK: answered; else why it was refused */
    int replica, n_output, n_hit;
    double queue_s, ttft_s,
        latency_s; /* from its arrival: to its admission, first and last token */
} hd_sim_request;

typedef struct hd_sim_sample { /* over all replicas */
    double at_s;
    int n_running, n_waiting, n_page_used;
} hd_sim_sample;

typedef struct hd_sim_result {
    hd_sim_request *request; /* [trace->n] */
    hd_sim_sample *sample;   /* [n_sample] */
    int n_sample;
    double seconds, busy_s; /* from the first arrival on; busy: added up over replicas */
    uint64_t n_step, n_row, prompt_tok, hit_tok, generated_tok, n_preempt, recomputed_tok;
    int n_page_peak;  /* in use at once, of one replica */
    int n_run_peak;   /* requests computed at once, of one replica */
    double page_used; /* mean pages in use of a busy replica */
    double wall_s;    /* how long simulating took */
} hd_sim_result;

/* HD_E_INTERNAL: a replica stands still with work left. HD_E_INVALID: steps or arrivals are beyond
 * the bounds of hd_sim_machine_status. hd_sim_result_fini in every case. */
HD_MUST_CHECK hd_status hd_sim_run(const hd_sim_config *c, const hd_trace *trace,
                                   hd_sim_result *out);
void hd_sim_result_fini(hd_sim_result *r);

/* The request that stands for an item: as long as asked for, greedy, of the service class that its
 * class names (standard when it names none); prompt is borrowed. */
void hd_sim_request_of(const hd_trace_item *item, const int32_t *prompt, hd_request *out);

#endif
