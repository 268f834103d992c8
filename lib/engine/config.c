/* The engine's defaults, for callers of the library; the program's are in cmd/options.def. */
#include "hadal.h"

void hd_engine_config_init(hd_engine_config *c) {
    *c = (hd_engine_config){
        .backend = "auto",
        .isa = "auto",
        .dtype = "auto",
        .tensor_parallel_size = 1,
        .max_num_seqs = 64,
        .max_num_batched_tokens = 512,
        .enable_chunked_context = true,
        .block_size = 16,
        .kv_cache_free_mem_fraction = 0.5,
        .kv_cache_dtype = "auto",
        .enable_prefix_caching = true,
        .max_num_queued_reqs = 1024,
        .scheduling_policy = "priority",
        .elastic_batching = true,
        .reorder_policy = "prefix",
        .reorder_interval = 32,
        .compaction_pages = -1,
    };
}
