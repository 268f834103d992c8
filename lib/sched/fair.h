/* Fair queueing of tenants: whose request is how far ahead of its fair share.
 *
 * Start-time fair queueing (Goyal, Vin and Cheng 1996). Work is in nanoseconds of the device. A
 * request's start tag is S = max(v, F), F its tenant's last finish tag, which becomes S + work; v,
 * the virtual time, is the start tag of the request last served. Served in order of their tags,
 * tenants that always ask for more get the same work, and S - v is what a tenant has asked for and
 * not had yet. A tenant with F <= v is like one never seen, so the table needs room only for those
 * with work waiting; when it is full, the one nearest to v is forgotten.
 *
 * Owner: the scheduler. Nothing allocates. */
#ifndef HD_SCHED_FAIR_H
#define HD_SCHED_FAIR_H

#include <stdint.h>

enum { HD_FAIR_TENANTS = 256 };

typedef struct hd_fair {
    struct {
        uint64_t id;
        int64_t finish; /* <= now: free */
    } tenant[HD_FAIR_TENANTS];
    int64_t now;  /* virtual time */
    int64_t last; /* largest finish tag */
} hd_fair;

/* The request's start tag: its place on the clock that `now` is, too. */
int64_t hd_fair_ask(hd_fair *f, uint64_t tenant, int64_t work_ns);
void hd_fair_served(hd_fair *f, int64_t start);
/* Nothing waits any more: nobody owes anything. */
void hd_fair_idle(hd_fair *f);

#endif
