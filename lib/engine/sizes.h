/* The engine's sizes from its configuration, the model and the memory there is. Pure. */
#ifndef HD_ENGINE_SIZES_H
#define HD_ENGINE_SIZES_H

#include "hadal.h"
#include "model/model.h"
#include "sched/sched.h"

typedef struct hd_engine_sizes {
    int n_ctx;     /* effective window */
    int n_row_max; /* token budget of a step */
    int n_page;
    int expand_min;
    bool likes_neighbours; /* pages that follow one another are read faster */
} hd_engine_sizes;

/* The cpu's attention reads an F32 cache where it lies, and an F16 one where the processor likes it
 * (hd_cpu_likes_halves), unless pages are scattered: those it copies first. Other types are decoded
 * in any case, and devices with memory gather rows in any case. */
bool hd_engine_likes_neighbours(bool has_device_memory, enum hd_kv_type kv_type);

/* free_bytes: host memory that is free once the weights are there. HD_E_INVALID names the field of
 * the configuration; HD_E_CONTEXT: the window asked for does not fit, with the reason. */
HD_MUST_CHECK hd_status hd_engine_size(const hd_engine_config *c, const hd_hparams *hp,
                                       enum hd_kv_type kv_type, uint64_t free_bytes,
                                       hd_engine_sizes *out);

/* The scheduler's part of the configuration, but for its model_key: for an engine, and for who
 * simulates one. */
void hd_engine_sched_config(const hd_engine_config *c, const hd_engine_sizes *z,
                            hd_sched_config *out);

/* The cache type that hd_engine_config.kv_cache_dtype means. NULL and "auto": F16 on the cpu beside
 * quantised weights, whose own loss is far larger (docs/precision.md#what-the-kv-type-costs), where
 * it is the faster one (hd_cpu_likes_halves); else F32. HD_E_INVALID: another word than those.
 * Whether the backend has it is hd_model_open's to say. */
HD_MUST_CHECK hd_status hd_engine_kv_type(const char *name, const hd_checkpoint *c,
                                          const hd_dev *dev, enum hd_kv_type *out);

/* Prompt tokens to compute from which expanding K and V from the latent costs less than attending
 * over the latent itself. Per cached token, layer and head, expanding takes n_c*(n_nope+n_v)
 * multiplications once; per query, absorbed attention takes (n_c+n_rope) + n_c and expanded
 * (n_nope+n_rope) + n_v. DeepSeek-V3: 512*256 / (576+512-320) = 171 tokens. INT_MAX: never. */
int hd_engine_expand_min(const hd_hparams *hp);

#endif
