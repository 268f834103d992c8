/* Collectives: what the ranks of a sharded model tell each other.
 *
 * A rank is one device and the thread that runs it; the n ranks of a group are numbered from 0.
 * Every rank calls the same collectives in the same order with the same sizes: they are ops
 * (all_reduce, all_gather in dev/op.h), and a device runs them on its own memory. This is the
 * rank's end of the group that such an op is given. Its functions work on the host's memory and
 * wait for the other ranks; a device with links of its own (NCCL) uses those instead (`native`).
 *
 * A sum goes over the ranks in ascending order on every rank, so all of them have the same bits,
 * and a group of the same size always has the same ones (determinism level 1).
 *
 * A rank that failed says so with hd_comm_fail: from then on the collectives of every rank return
 * HD_E_DEVICE at once, those that wait, too. The group does not recover. */
#ifndef HD_DEV_COMM_H
#define HD_DEV_COMM_H

#include "base/status.h"
#include "dev/dev.h"

#include <stddef.h>

typedef struct hd_comm hd_comm;
struct hd_comm {
    int rank, n_rank;
    const char *by;   /* what they go through, for people: "host memory", "nccl" */
    hd_status status; /* the first failure of a collective that was an op; the rank's thread */
    /* HD_E_DEVICE: a rank failed; what a device computed with its own links since is worth nothing.
     */
    hd_status (*check)(hd_comm *c);
    /* x [n]: each becomes the sum of the ranks' x. */
    hd_status (*all_reduce)(hd_comm *c, float *x, size_t n);
    /* all [n_row, n_rank*n_each]: row by row the ranks' part [n_row, n_each], rank 0's first. */
    hd_status (*all_gather)(hd_comm *c, const float *part, float *all, size_t n_row, size_t n_each);
    struct { /* made by hd_dev_ops.join; handle NULL: the device goes through the host's memory */
        void *handle;
        void (*cancel)(void *handle); /* any thread: ends what waits for other ranks */
        void (*close)(void *handle);
    } native;
};

enum { HD_RANK_MAX = 64 };

/* Ranks that are threads of this process. */
typedef struct hd_group hd_group;
/* n_rank: 1 to HD_RANK_MAX. */
hd_group *hd_group_new(int n_rank);
/* After the ranks' devices have been closed. Accepts NULL. */
void hd_group_free(hd_group *g);
/* The group's; each to be used by one thread at a time. */
hd_comm *hd_group_comm(hd_group *g, int rank);

/* Tells the devices of the ranks, dev [n_rank], that they are a group, before its first collective
 * and once their limits are known; they may link up in a way of their own. */
HD_MUST_CHECK hd_status hd_group_join(hd_group *g, const hd_dev *dev);

/* Any thread: the rank failed, with this thread's error text; the others are told. The memory that
 * it gave to a collective must stay until every rank has returned. */
void hd_comm_fail(hd_comm *c);

/* The ops of devices that work on the host's memory. They return nothing: a failure is kept in
 * comm->status, and later ones do nothing. */
void hd_comm_op_all_reduce(void *ctx, const struct hd_op_all_reduce *args);
void hd_comm_op_all_gather(void *ctx, const struct hd_op_all_gather *args);

#endif
