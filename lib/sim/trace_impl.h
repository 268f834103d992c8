/* Inside of the traces: building one, request by request. */
#ifndef HD_SIM_TRACE_IMPL_H
#define HD_SIM_TRACE_IMPL_H

#include "sim/trace.h"

void hd_trace_begin(hd_trace *t, uint64_t seed);
/* Copies the item, whose texts must live as long as the trace, and gives it its seeds. */
void hd_trace_add(hd_trace *t, const hd_trace_item *item);

#endif
