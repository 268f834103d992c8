/* The ranks of a sharded model beside the first: a thread each, with a device and a part of the
 * weights of its own (model/shard.h), in this process.
 *
 * Rank 0 is the caller's: its thread opens its own device and model and runs the loop. Whatever it
 * does with its model, the others do at the same time with theirs; the batch is flat integers that
 * all of them read. A rank that fails ends the step on all of them with HD_E_DEVICE. */
#ifndef HD_ENGINE_RANKS_H
#define HD_ENGINE_RANKS_H

#include "dev/dev.h"
#include "file/checkpoint.h"
#include "model/model.h"

typedef struct hd_ranks_spec {
    const hd_checkpoint *checkpoint; /* borrowed, as is all that follows, until close */
    const char *backend;             /* hd_dev_open's name */
    hd_dev_config config;            /* of one rank; a rank's device is the one of its number */
    hd_model_options options;        /* comm is set here */
    int n_rank;                      /* 2 to HD_RANK_MAX */
} hd_ranks_spec;

/* NULL, for the functions that say so: rank 0 is alone. */
typedef struct hd_ranks hd_ranks;
/* Starts them: they open their devices and load. HD_E_NO_MEMORY: there are no threads. */
HD_MUST_CHECK hd_status hd_ranks_start(const hd_ranks_spec *spec, hd_ranks **out);
/* What rank 0's model is opened with. */
hd_comm *hd_ranks_comm(hd_ranks *r);
/* Rank 0's device and model are open: waits for the others and makes a group of all. The error of
 * the first that could not be opened. r may be NULL, as below. */
HD_MUST_CHECK hd_status hd_ranks_wait(hd_ranks *r, const hd_dev *dev);
/* Before rank 0's model is closed. */
void hd_ranks_stop(hd_ranks *r);
/* After it. */
void hd_ranks_free(hd_ranks *r);

/* hd_model_rehearse, hd_model_enqueue and hd_model_fetch of all ranks; m, out: rank 0's. */
HD_MUST_CHECK hd_status hd_ranks_rehearse(hd_ranks *r, hd_model *m,
                                          void (*on_progress)(void *user, int done, int all),
                                          void *user);
HD_MUST_CHECK hd_status hd_ranks_enqueue(hd_ranks *r, hd_model *m, const hd_batch *b);
HD_MUST_CHECK hd_status hd_ranks_fetch(hd_ranks *r, hd_model *m, hd_model_out *out);

/* Sums over the other ranks, between steps. */
typedef struct hd_ranks_facts {
    uint64_t weight_bytes, kv_bytes, workspace_bytes, kv_lost;
} hd_ranks_facts;
hd_ranks_facts hd_ranks_get_facts(const hd_ranks *r);

#endif
