/* hd_engine_config from the parsed options, and the progress bar. */
#include "base/clock.h"
#include "cmd/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void hd_progress(void *unused, const char *what, double done) {
    (void)unused;
    enum { width = 30 };
    static int64_t last_ns;
    static bool is_shown;
    if (!isatty(STDERR_FILENO)) return;
    int64_t now = hd_now_ns();
    if (done < 1 && now - last_ns < 50000000) return;
    last_ns = now;
    if (done >= 1) {
        if (is_shown) fprintf(stderr, "\r\033[K");
        is_shown = false;
        return;
    }
    char bar[width + 1];
    int full = (int)(done * width);
    for (int i = 0; i < width; i++) bar[i] = i < full ? '#' : '.';
    bar[width] = 0;
    fprintf(stderr, "\r\033[K%s [%s] %3.0f%%", what, bar, 100 * done);
    is_shown = true;
}

void hd_load_progress(void *unused, int done, int all) {
    hd_progress(unused, "loading", all > 0 ? (double)done / all : 1);
}

void hd_hash_progress(void *unused, uint64_t done, uint64_t all) {
    hd_progress(unused, "hashing", done < all ? (double)done / (double)all : 1);
}

static int smaller_nonzero(int a, int b) {
    if (a == 0 || b == 0) return a + b;
    return a < b ? a : b;
}

hd_status hd_dev_config_from(const struct hd_options *o, hd_dev_config *c) {
    *c = (hd_dev_config){.n_thread = o->threads,
                         .isa = o->isa,
                         .cuda_library = o->cuda_library,
                         .is_deterministic = o->deterministic,
                         .no_context_fmha = !o->context_fmha,
                         .no_multi_block = !o->multi_block,
                         .no_early_launch = !o->enable_pdl};
    return hd_compute_of(o->dtype, &c->compute);
}

/* "CLASS:NAME:MS" into the class's target. */
static hd_status take_slo(const char *text, hd_service_target *target) {
    char class[32] = "", name[32] = "", *end = NULL;
    double ms = 0;
    int n = 0;
    if (sscanf(text, "%31[^:]:%31[^:]:%n", class, name, &n) == 2 && n > 0)
        ms = strtod(text + n, &end);
    int c = hd_service_find(class);
    if (end && end != text + n && *end == 0 && c >= 0 && ms > 0 && ms <= 1e9) {
        int64_t ns = (int64_t)(ms * 1e6);
        if (strcmp(name, "ttft") == 0) return target[c].ttft_ns = ns, HD_OK;
        if (strcmp(name, "itl") == 0) return target[c].itl_ns = ns, HD_OK;
        if (strcmp(name, "wait") == 0) return target[c].wait_ns = ns, HD_OK;
    }
    return HD_FAIL(INVALID,
                   "slo: expected CLASS:NAME:MS with class interactive, standard, batch or "
                   "offline and name ttft, itl or wait, such as interactive:ttft:500, found '%s'",
                   text);
}

hd_status hd_service_targets_from(const struct hd_options *o,
                                  hd_service_target target[HD_SERVICE_COUNT]) {
    for (int i = 0; i < o->slo.n; i++) HD_TRY(take_slo(o->slo.item[i], target));
    return HD_OK;
}

void hd_engine_config_from(const struct hd_options *o, hd_engine_config *c) {
    hd_engine_config_init(c);
    c->model = o->model;
    c->served_name = o->served_model_name;
    c->backend = o->backend;
    c->isa = o->isa;
    c->cuda_library = o->cuda_library;
    c->dtype = o->dtype;
    c->deterministic = o->deterministic;
    c->no_context_fmha = !o->context_fmha;
    c->no_multi_block = !o->multi_block;
    c->no_early_launch = !o->enable_pdl;
    c->gpu_memory_gib = o->gpu_memory_gib;
    c->offload_plan = o->offload_plan;
    c->repack_cache = o->repack_cache;
    c->n_thread = o->threads;
    c->tensor_parallel_size = o->tensor_parallel_size;
    c->enable_expert_parallel = o->enable_expert_parallel;
    c->max_model_len = smaller_nonzero(o->max_model_len, o->max_attention_window_size);
    c->max_num_seqs = o->max_num_seqs;
    c->max_num_batched_tokens = o->max_num_batched_tokens;
    c->context_chunk_size = o->context_chunk_size;
    c->enable_chunked_context = o->enable_chunked_context;
    c->block_size = o->block_size;
    c->max_tokens_in_paged_kv_cache = o->max_tokens_in_paged_kv_cache;
    c->kv_cache_free_mem_fraction = o->kv_cache_free_mem_fraction;
    c->kv_cache_dtype = o->kv_cache_dtype;
    c->enable_prefix_caching = o->enable_prefix_caching;
    c->exact = o->exact;
    c->max_num_queued_reqs = o->max_num_queued_reqs;
    c->max_num_queued_tokens = o->max_num_queued_tokens;
    c->scheduling_policy = o->scheduling_policy;
    c->no_dynamic_batching = !o->dynamic_batching;
    c->max_step_ms = o->max_step_ms;
    c->elastic_batching = o->elastic_batching;
    c->reorder_policy = o->reorder_policy;
    c->reorder_interval = o->reorder_interval;
    c->compaction_pages = o->compaction_pages;
    c->latency_profile = o->latency_profile;
    c->queue_timeout_s = o->queue_timeout;
    c->tokenizer = o->tokenizer;
    c->chat_encoding = o->chat_encoding;
    c->expect_hash = o->expect_hash;
    c->on_progress = hd_progress;
}
