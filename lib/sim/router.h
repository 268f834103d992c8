/* The router of a fleet: which replica gets a request. It knows what a router in front of servers
 * knows: the request's prefix, and how many requests of each replica are under way.
 *
 * Thread: one owner. */
#ifndef HD_SIM_ROUTER_H
#define HD_SIM_ROUTER_H

#include "sim/sim.h"

typedef struct hd_router hd_router;
hd_router *hd_router_new(enum hd_sim_router kind, int n_replica);
void hd_router_free(hd_router *r); /* accepts NULL */

/* The replica for the item, which counts as under way there until hd_router_leave. */
int hd_router_choose(hd_router *r, const hd_trace_item *item);
void hd_router_leave(hd_router *r, int replica);

#endif
