/* Sizing: window, token budget, KV pages. */
#include "engine/sizes.h"

#include "base/processor.h"

#include <limits.h>
#include <string.h>

enum {
    table_max = 1 << 28, /* entries of a step's page tables, of 4 bytes */
    COMPACTION_MAX = 16
};

/* With weights in blocks of integers; FP8 weights are as their model was trained. */
static bool is_quantised(const hd_checkpoint *c) {
    for (size_t i = 0; i < hd_checkpoint_count(c); i++) {
        enum hd_format f = hd_checkpoint_at(c, i)->format;
        if (f < HD_FORMAT_COUNT && hd_format_get(f)->block_elems > 1) return true;
    }
    return false;
}

static bool reads_halves(const hd_dev *dev) {
    return strcmp(dev->ops->name, "cpu") == 0 && hd_cpu_likes_halves();
}

/* Float weights keep F32: F16 costs more than their own format may: on the embedded model with BF16
 * weights, mean KL 8e-4 against F32 over 6000 tokens of prose (context 1024), because rounding
 * moves the choice of experts; the bound for BF16 is 1e-4. */
hd_status hd_engine_kv_type(const char *name, const hd_checkpoint *c, const hd_dev *dev,
                            enum hd_kv_type *out) {
    if (name && strcmp(name, "auto") != 0) {
        hd_status s = hd_kv_type_by_name(name, out);
        return s == HD_OK ? HD_OK : hd_fail_context(s, "kv_cache_dtype (or auto)");
    }
    *out = reads_halves(dev) && is_quantised(c) ? HD_KV_F16 : HD_KV_F32;
    return HD_OK;
}

static hd_status check_range(const char *field, int64_t v, int64_t min, int64_t max) {
    if (v >= min && v <= max) return HD_OK;
    return HD_FAIL(INVALID, "%s: expected %lld to %lld, found %lld", field, (long long)min,
                   (long long)max, (long long)v);
}

static bool is_fcfs(const hd_engine_config *c) {
    return c->scheduling_policy && strcmp(c->scheduling_policy, "fcfs") == 0;
}

/* -1: no such policy. */
static int reorder_of(const hd_engine_config *c) {
    static const char *const names[] = {[HD_REORDER_NONE] = "none",
                                        [HD_REORDER_FRAGMENTATION] = "fragmentation",
                                        [HD_REORDER_PREFIX] = "prefix",
                                        [HD_REORDER_LENGTH] = "length"};
    for (int i = 0; c->reorder_policy && i < (int)HD_COUNT_OF(names); i++)
        if (strcmp(c->reorder_policy, names[i]) == 0) return i;
    return c->reorder_policy ? -1 : HD_REORDER_NONE;
}

static hd_status check_config(const hd_engine_config *c) {
    HD_TRY(check_range("max_model_len", c->max_model_len, 0, INT_MAX));
    HD_TRY(check_range("max_num_seqs", c->max_num_seqs, 1, 4096));
    HD_TRY(check_range("max_num_batched_tokens", c->max_num_batched_tokens, 1, 1 << 20));
    HD_TRY(check_range("context_chunk_size", c->context_chunk_size, 0, 1 << 20));
    HD_TRY(check_range("block_size", c->block_size, 1, 1024));
    HD_TRY(
        check_range("max_tokens_in_paged_kv_cache", c->max_tokens_in_paged_kv_cache, 0, INT64_MAX));
    HD_TRY(check_range("max_num_queued_reqs", c->max_num_queued_reqs, 1, 1000000));
    HD_TRY(check_range("max_num_queued_tokens", c->max_num_queued_tokens, 0, INT64_MAX));
    const char *policy = c->scheduling_policy;
    if (policy && strcmp(policy, "priority") != 0 && !is_fcfs(c))
        return HD_FAIL(INVALID, "scheduling_policy: expected priority or fcfs, found '%s'", policy);
    if (reorder_of(c) < 0)
        return HD_FAIL(INVALID,
                       "reorder_policy: expected none, fragmentation, prefix or length, found '%s'",
                       c->reorder_policy);
    HD_TRY(check_range("reorder_interval", c->reorder_interval, 0, 1 << 20));
    HD_TRY(check_range("compaction_pages", c->compaction_pages, -1, COMPACTION_MAX));
    if (!(c->max_step_ms >= 0 && c->max_step_ms <= 1e9))
        return HD_FAIL(INVALID, "max_step_ms: expected 0 to 1e9, found %g", c->max_step_ms);
    if (!(c->queue_timeout_s >= 0 && c->queue_timeout_s <= 1e6))
        return HD_FAIL(INVALID, "queue_timeout_s: expected 0 to 1e6, found %g", c->queue_timeout_s);
    double f = c->kv_cache_free_mem_fraction;
    if (!(f > 0 && f <= 1))
        return HD_FAIL(INVALID,
                       "kv_cache_free_mem_fraction: expected more than 0, up to 1, found %g", f);
    return HD_OK;
}

int hd_engine_expand_min(const hd_hparams *hp) {
    int64_t once = (int64_t)hp->n_c * (hp->n_nope + hp->n_v);
    int64_t absorbed = 2 * (int64_t)hp->n_c + hp->n_rope;
    int64_t expanded = (int64_t)hp->n_nope + hp->n_rope + hp->n_v;
    if (absorbed <= expanded) return INT_MAX;
    int64_t n = (once + absorbed - expanded - 1) / (absorbed - expanded);
    return n < INT_MAX ? (int)n : INT_MAX;
}

static int64_t pages_of(int64_t n_tok, int page_tok) { return (n_tok + page_tok - 1) / page_tok; }

/* More pages than every sequence at full length needs are of no use. */
static int64_t count_pages(const hd_engine_config *c, int n_ctx, size_t tok_bytes,
                           uint64_t free_bytes) {
    int64_t useful = pages_of(n_ctx, c->block_size) * c->max_num_seqs;
    int64_t most = INT32_MAX / c->block_size; /* cache rows are numbered by int32 */
    int64_t n;
    if (c->max_tokens_in_paged_kv_cache > 0)
        n = c->max_tokens_in_paged_kv_cache / c->block_size;
    else
        n = (int64_t)(c->kv_cache_free_mem_fraction * (double)free_bytes /
                      ((double)tok_bytes * c->block_size));
    n = n < useful ? n : useful;
    return n < most ? n : most;
}

static hd_status window_does_not_fit(const hd_engine_config *c, int n_ctx, int64_t n_page,
                                     size_t tok_bytes, uint64_t free_bytes) {
    long long pool = (long long)n_page * c->block_size;
    if (c->max_tokens_in_paged_kv_cache > 0)
        return HD_FAIL(CONTEXT,
                       "max_model_len %d does not fit: max_tokens_in_paged_kv_cache %lld makes "
                       "%lld tokens in whole pages of %d",
                       n_ctx, (long long)c->max_tokens_in_paged_kv_cache, pool, c->block_size);
    return HD_FAIL(CONTEXT,
                   "max_model_len %d does not fit: KV of a token takes %zu bytes, and %g of the "
                   "%llu bytes of free memory hold %lld tokens",
                   n_ctx, tok_bytes, c->kv_cache_free_mem_fraction, (unsigned long long)free_bytes,
                   pool);
}

hd_status hd_engine_size(const hd_engine_config *c, const hd_hparams *hp, enum hd_kv_type kv_type,
                         uint64_t free_bytes, hd_engine_sizes *out) {
    HD_TRY(check_config(c));
    int asked = c->max_model_len;
    int n_ctx = asked > 0 && asked < hp->n_ctx ? asked : hp->n_ctx;
    if (n_ctx < 2)
        return HD_FAIL(CONTEXT, "max_model_len %d: expected at least 2, a prompt and an answer",
                       n_ctx);
    size_t tok_bytes = hd_hparams_kv_bytes(hp, kv_type);
    int64_t n_page = count_pages(c, n_ctx, tok_bytes, free_bytes);
    int64_t pool = n_page * c->block_size;
    /* A window that was asked for is given or refused; the model's own is cut to what there is. */
    if (pool < n_ctx && (asked > 0 || pool < 2))
        return window_does_not_fit(c, n_ctx, n_page, tok_bytes, free_bytes);
    if (pool < n_ctx) n_ctx = (int)pool;
    int64_t n_seq =
        c->max_num_seqs < c->max_num_batched_tokens ? c->max_num_seqs : c->max_num_batched_tokens;
    int64_t seq_pages = pages_of(n_ctx, c->block_size);
    if (seq_pages > n_page) seq_pages = n_page;
    if (n_seq * seq_pages > table_max)
        return HD_FAIL(
            INVALID,
            "block_size %d: page tables of %lld sequences of %d tokens: expected at most "
            "%d pages in all, found %lld",
            c->block_size, (long long)n_seq, n_ctx, table_max, (long long)(n_seq * seq_pages));
    *out = (hd_engine_sizes){.n_ctx = n_ctx,
                             .n_row_max = c->max_num_batched_tokens,
                             .n_page = (int)n_page,
                             .expand_min = hd_engine_expand_min(hp)};
    return HD_OK;
}

bool hd_engine_likes_neighbours(bool has_device_memory, enum hd_kv_type kv_type) {
    return !has_device_memory &&
           (kv_type == HD_KV_F32 || (kv_type == HD_KV_F16 && hd_cpu_likes_halves()));
}

void hd_engine_sched_config(const hd_engine_config *c, const hd_engine_sizes *z,
                            hd_sched_config *out) {
    *out = (hd_sched_config){.n_seq_max = c->max_num_seqs,
                             .n_row_max = z->n_row_max,
                             .chunk_max = c->context_chunk_size,
                             .chunked = c->enable_chunked_context,
                             .n_pos_max = z->n_ctx,
                             .n_page = z->n_page,
                             .page_tok = c->block_size,
                             .prefix_cache = c->enable_prefix_caching,
                             .exact = c->exact,
                             .expand_min = z->expand_min,
                             .policy = is_fcfs(c) ? HD_SCHED_FCFS : HD_SCHED_PRIORITY,
                             .is_static = c->no_dynamic_batching,
                             .step_max_ns = (int64_t)(c->max_step_ms * 1e6),
                             .reorder = (enum hd_reorder)reorder_of(c),
                             .reorder_interval = c->reorder_interval,
                             .compact_page_max = c->compaction_pages,
                             .elastic = c->elastic_batching};
    if (c->compaction_pages < 0) out->compact_page_max = z->likes_neighbours ? COMPACTION_MAX : 0;
    memcpy(out->target, c->target, sizeof out->target);
}
