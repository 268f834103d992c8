/* What ran, when: spans of time that a model and its device note while they are profiled, for
 * `hadal profile`.
 *
 * A model notes its calls of ops (lane HD_LANE_HOST): on a device that computes when it is called
 * they are the ops' times, on one that only enqueues they are the host's work. Such a device notes
 * what ran on it itself (hd_dev_ops.profile). All times are of hd_now_ns's clock.
 *
 * One writer at a time: the thread that runs the model. */
#ifndef HD_DEV_SPANS_H
#define HD_DEV_SPANS_H

#include "dev/op.h"

#include <stddef.h>

enum hd_span_kind {
    HD_SPAN_CALL,   /* the host's call of an op */
    HD_SPAN_KERNEL, /* of the device */
    HD_SPAN_COPY
};
enum { HD_LANE_HOST = -1 };

/* How a device that is profiled runs. Where kernels are launched early, their spans hold what they
 * wait for one another; launched in turn they do not. */
enum hd_profile_how {
    HD_PROFILE_ALWAYS,  /* as always */
    HD_PROFILE_IN_TURN, /* no kernel starts before the one in front of it has ended */
    HD_PROFILE_BY_OP    /* in turn, and each op apart, so that each span knows its own */
};

typedef struct hd_span {
    enum hd_span_kind kind;
    enum hd_op op; /* HD_OP_COUNT: of none, or it is not known of which (a replayed graph) */
    int lane;      /* HD_LANE_HOST, or the device's queue: a CUDA stream */
    int64_t start_ns, end_ns;
    uint64_t n_byte; /* of a copy */
    char name[64];   /* of a kernel or copy; "" of a call */
} hd_span;

typedef struct hd_spans {
    hd_span *span; /* [room] */
    size_t n, room, n_lost;
} hd_spans;

void hd_spans_init(hd_spans *t, size_t room);
void hd_spans_fini(hd_spans *t);
/* Counted as lost when there is no room. */
static inline void hd_spans_add(hd_spans *t, const hd_span *s) {
    if (t->n < t->room)
        t->span[t->n++] = *s;
    else
        t->n_lost++;
}

#endif
