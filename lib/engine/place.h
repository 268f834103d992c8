/* Where weights go when the device has memory of its own: how much of it they may take, and the
 * device that runs on the host what has no room there. */
#ifndef HD_ENGINE_PLACE_H
#define HD_ENGINE_PLACE_H

#include "dev/dev.h"
#include "file/checkpoint.h"
#include "model/model.h"

typedef struct hd_place_ask {
    const hd_checkpoint *checkpoint;
    const hd_dev *dev;
    bool is_expert_parallel;
    int n_rank; /* from 1: each has a part of the weights and a device; the host they share */
    double device_gib;         /* GiB of the device's memory to take at most; 0: all that is free */
    uint64_t kv_bytes;         /* to be left for the KV cache at least */
    const char *plan;          /* hd_model_options.offload_plan */
    const hd_dev_config *host; /* how the host's device is opened */
} hd_place_ask;

typedef struct hd_place {
    uint64_t free_bytes; /* beside the weights: host memory, or the device's */
    hd_dev host;         /* opened when not all weights fit; else zeros */
    uint64_t device_weight_bytes;
    const char *plan;
} hd_place;

/* One eighth of the device's memory is left for activations. hd_place_close in every case. */
HD_MUST_CHECK hd_status hd_place_find(const hd_place_ask *a, hd_place *out);
void hd_place_close(hd_place *p); /* after the model */
/* The options of the model that go with it. */
void hd_place_apply(const hd_place *p, hd_model_options *o);
/* Logs what stays on the host and what that costs; nothing when nothing does. */
void hd_place_log(const hd_place *p, const hd_model *m);

#endif
