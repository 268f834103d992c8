/* Inside of `hadal bench`: what its parts share. */
#ifndef HD_CMD_BENCH_H
#define HD_CMD_BENCH_H

#include "cmd/command.h"
#include "dev/dev.h"

struct hd_bench_products {
    const hd_dev *dev;
    const hd_dev_roofline *roof; /* flops 0: unknown */
    double seconds;              /* a point */
    hd_json *json;               /* NULL: lines on stdout */
};

/* Times y = W x alone, by format, shape and rows, as shares of the roofline. Lines on
 * stdout, or an array member "products". Reserves the device's scratch: not while a model is
 * open on it. */
HD_MUST_CHECK hd_status hd_bench_products(const struct hd_bench_products *b);

#endif
