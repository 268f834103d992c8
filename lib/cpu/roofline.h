/* What this machine can do, measured on the backend's own threads and instruction set, so that a
 * speed can be told as a share of it. Thread: the one that calls ops, between ops. */
#ifndef HD_CPU_ROOFLINE_H
#define HD_CPU_ROOFLINE_H

#include "dev/dev.h"

typedef struct hd_cpu_roofline {
    double flops;      /* float32 multiply-adds on registers, counted as two, a second */
    double read_bytes; /* bytes a second, each thread streaming through its share of a buffer */
    size_t
        buffer_bytes; /* of that buffer: a cache larger than this answers in the memory's place */
} hd_cpu_roofline;

/* dev must be the cpu backend. Takes about a second. HD_E_NO_MEMORY: no room for the buffer. */
HD_MUST_CHECK hd_status hd_cpu_roofline_measure(const hd_dev *dev, size_t buffer_bytes,
                                                hd_cpu_roofline *out);

#endif
