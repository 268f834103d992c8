/* How long a request would wait: the pace at which the line moves, and the line.
 *
 * The scheduler tells the pace (its own thread), the inbox keeps the line; the prediction is
 * arithmetic on both, so that a request can be refused before anything is done for it. Pure. */
#ifndef HD_SCHED_PACE_H
#define HD_SCHED_PACE_H

#include "base/service.h"

#include <stdbool.h>

/* One admission in so many belongs to who is longest overdue. */
enum { HD_PACE_AGED_EVERY = 4 };

typedef struct hd_pace {
    int64_t tok_ns; /* device time of one waiting prompt token, counting those that will be reused;
                       0: nothing is known */
    int64_t running_tok[HD_SERVICE_COUNT]; /* prompt tokens of running sequences yet to compute */
    int64_t seq_ns; /* time between two sequences that end, when all slots are taken, */
    int out_tok;    /* if an answer has so many tokens; shorter ones end sooner */
    int n_room;     /* further sequences that could run now */
    /* Forecast load of each class and those more urgent: 1 is all that the machine can do. */
    double load[HD_SERVICE_COUNT];
    bool has_aged; /* somebody is overdue, and takes one admission in HD_PACE_AGED_EVERY */
} hd_pace;

enum { HD_LINE_TENANTS = 64, HD_LINE_OUT_MAX = 1 << 16 };

/* Requests that wait. */
typedef struct hd_line {
    int n[HD_SERVICE_COUNT];
    int64_t tok[HD_SERVICE_COUNT]; /* their prompt tokens */
    int64_t
        out[HD_SERVICE_COUNT]; /* tokens that they ask for at most, each up to HD_LINE_OUT_MAX */
    int of_tenant[HD_LINE_TENANTS]; /* requests, by tenant; those that share a cell count as one */
} hd_line;

/* A request of n_prompt tokens that asks for up to n_new; n_req: 1 joins, -1 leaves. */
void hd_line_add(hd_line *l, enum hd_service c, uint64_t tenant, int n_prompt, int n_new,
                 int n_req);

/* Predicted time until a request of class c that came now would be admitted and those ahead of it
 * computed: work / (1 - load of more urgent classes and the aged), as of a priority queue (Cobham
 * 1954), the work being the tokens ahead (those running, too) * tok_ns + the ends needed, each as
 * many tokens as answers have in the mean, or the line asks for;
 * or, if that is less, what ageing gives: the whole line's work at one admission in
 * HD_PACE_AGED_EVERY. Of the line only the part counts that goes before this tenant's request on
 * the fair clock: of each other tenant as many requests as this one has, and one. */
int64_t hd_pace_wait_ns(const hd_pace *p, const hd_line *l, enum hd_service c, uint64_t tenant);

#endif
