/* The load that options describe: a trace from a file, or one that is generated. */
#ifndef HD_CMD_LOAD_TRACE_H
#define HD_CMD_LOAD_TRACE_H

#include "cmd/command.h"
#include "sim/trace.h"

/* By --trace, else --generate and its options; kept with --save-trace. hd_trace_fini in every
 * case. */
HD_MUST_CHECK hd_status hd_load_trace_init(hd_trace *t, const struct hd_options *o);

#endif
