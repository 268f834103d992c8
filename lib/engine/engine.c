/* Opening, watching and closing an engine. hd_engine_open is the order of events: files, device,
 * sizes, model, loop, thread. Each step records what it found in hd_engine_info. */
#include "engine/impl.h"

#include "base/log.h"
#include "base/metric.h"
#include "base/processor.h"
#include "engine/measure.h"
#include "engine/request.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

static const char *keep(hd_engine *e, const char *s) {
    return hd_arena_strndup(e->names, s, strlen(s));
}

static void progress(const hd_engine_config *c, const char *what, double done) {
    if (c->on_progress) c->on_progress(c->progress_user, what, done);
}

static const char *name_model(hd_engine *e, const hd_engine_config *c, const hd_hparams *hp) {
    if (c->served_name && *c->served_name) return keep(e, c->served_name);
    if (!c->model || strcmp(c->model, "mini") == 0) return "mini";
    return keep(e, hp->name);
}

/* Elements in all, and the format that most of them have. */
static void describe_weights(hd_engine *e) {
    int64_t n_of[HD_FORMAT_COUNT] = {0};
    enum hd_format most = HD_F32;
    for (size_t i = 0; i < hd_checkpoint_count(e->checkpoint); i++) {
        const hd_file_tensor *t = hd_checkpoint_at(e->checkpoint, i);
        int64_t n = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
        if (t->format < HD_FORMAT_COUNT) n_of[t->format] += n;
        e->info.n_param += n;
    }
    for (int f = 0; f < HD_FORMAT_COUNT; f++)
        if (n_of[f] > n_of[most]) most = (enum hd_format)f;
    e->info.weight_format = hd_format_get(most)->name;
}

static hd_status open_text(hd_engine *e, const hd_engine_config *c, int n_vocab) {
    HD_TRY(hd_suggestion_read(e->checkpoint, &e->suggestion));
    HD_TRY(hd_engine_open_tokenizer(e->checkpoint, c->tokenizer, &e->tokenizer));
    if (e->tokenizer && hd_tokenizer_size(e->tokenizer) > (size_t)n_vocab)
        return HD_FAIL(INVALID, "tokenizer: %zu tokens, but the model's vocabulary has %d",
                       hd_tokenizer_size(e->tokenizer), n_vocab);
    e->info.chat_encoding = "none";
    e->info.chat_encoding_why = "the model has no tokenizer";
    if (!e->tokenizer) {
        if (!c->chat_encoding) return HD_OK;
        return HD_FAIL(INVALID, "chat_encoding: the model has no tokenizer");
    }
    char why[HD_CHAT_WHY_MAX];
    HD_TRY(hd_engine_choose_chat(e->checkpoint, c, e->tokenizer, &e->chat, why));
    e->info.chat_encoding_why = keep(e, why);
    if (e->chat) {
        e->info.chat_encoding = hd_chat_name(e->chat);
        e->info.can_think = hd_chat_can_think(e->chat);
        e->info.always_thinks = hd_chat_always_thinks(e->chat);
        e->info.thinks_by_default = hd_chat_thinks_by_default(e->chat);
        e->info.can_call_tools = hd_chat_can_call_tools(e->chat);
        e->info.keeps_reasoning = hd_chat_keeps_reasoning(e->chat);
        e->info.has_response_format = hd_chat_has_response_format(e->chat);
    }
    e->info.has_fim = hd_chat_has_fim(e->tokenizer);
    return HD_OK;
}

/* Of one rank: those of the cpu share its threads. */
static hd_status device_config(const hd_engine_config *c, hd_dev_config *out) {
    int n_thread = c->n_thread > 0 ? c->n_thread : hd_cpu_available();
    n_thread = n_thread > c->tensor_parallel_size ? n_thread / c->tensor_parallel_size : 1;
    hd_dev_config dc = {.n_thread = c->tensor_parallel_size > 1 ? n_thread : c->n_thread,
                        .isa = c->isa ? c->isa : "auto",
                        .cuda_library = c->cuda_library,
                        .is_deterministic = c->deterministic,
                        .no_context_fmha = c->no_context_fmha,
                        .no_multi_block = c->no_multi_block,
                        .no_early_launch = c->no_early_launch};
    *out = dc;
    return hd_compute_of(c->dtype, &out->compute);
}

static hd_status open_device(hd_engine *e, const hd_engine_config *c) {
    hd_dev_config dc;
    HD_TRY(device_config(c, &dc));
    HD_TRY(hd_dev_open(c->backend ? c->backend : "auto", &dc, &e->dev));
    e->info.backend = e->dev.ops->name;
    hd_buf b;
    hd_buf_init(&b, 1024);
    e->dev.ops->describe(e->dev.ctx, &b);
    e->info.device = keep(e, b.len ? b.ptr : "");
    hd_buf_fini(&b);
    return HD_OK;
}

static void model_progress(void *user, int done, int all) {
    progress(user, "loading weights", all > 0 ? 0.99 * done / all : 0);
}

static void rehearse_progress(void *user, int done, int all) {
    progress(user, "preparing steps", all > 0 ? 0.99 * done / all : 0);
}

static void hash_progress(void *user, uint64_t done, uint64_t all) {
    progress(user, "hashing weights", all > 0 ? 0.99 * (double)done / (double)all : 0);
}

static uint64_t count_allocs(const hd_engine *e) {
    return e->dev.ops->n_alloc ? e->dev.ops->n_alloc(e->dev.ctx) : 0;
}

static void list_no_token(hd_engine *e, int n_vocab) {
    if (!e->tokenizer) return;
    e->no_token = hd_alloc_zero((size_t)n_vocab, sizeof *e->no_token);
    for (int32_t i = 0; i < n_vocab; i++)
        if (hd_tokenizer_bytes(e->tokenizer, i).len == 0) e->no_token[e->n_no_token++] = i;
}

/* The other ranks load beside rank 0, whose options they complete. */
static hd_status start_ranks(hd_engine *e, const hd_engine_config *c, hd_model_options *o) {
    if (c->tensor_parallel_size == 1) return HD_OK;
    o->is_expert_parallel = c->enable_expert_parallel;
    hd_ranks_spec spec = {.checkpoint = e->checkpoint,
                          .backend = e->dev.ops->name,
                          .options = *o,
                          .n_rank = c->tensor_parallel_size};
    HD_TRY(device_config(c, &spec.config));
    HD_TRY(hd_ranks_start(&spec, &e->ranks));
    o->comm = hd_ranks_comm(e->ranks);
    return HD_OK;
}

static hd_status open_model(hd_engine *e, const hd_engine_config *c, enum hd_kv_type kv_type,
                            const hd_engine_sizes *z) {
    hd_model_options o = {.n_row_max = z->n_row_max,
                          .n_seq_max = c->max_num_seqs,
                          .n_out_max = c->max_num_seqs,
                          .n_pos_max = z->n_ctx,
                          .n_page = z->n_page,
                          .page_tok = c->block_size,
                          .kv_type = kv_type,
                          .repack_cache = c->repack_cache,
                          .no_token = e->no_token,
                          .n_no_token = e->n_no_token};
    hd_place_apply(&e->place, &o);
    hd_engine_config copy = *c;
    HD_TRY(start_ranks(e, c, &o));
    HD_TRY(hd_model_open(e->checkpoint, &e->dev, &o, model_progress, &copy, &e->model));
    HD_TRY(hd_ranks_wait(e->ranks, &e->dev));
    hd_place_log(&e->place, e->model);
    HD_TRY(hd_ranks_rehearse(e->ranks, e->model, rehearse_progress, &copy));
    e->n_alloc_ready = count_allocs(e);
    hd_engine_info *i = &e->info;
    const hd_hparams *hp = hd_model_hparams(e->model);
    i->arch = keep(e, hp->arch);
    i->kv_cache_dtype = hd_kv_type_name(kv_type);
    i->max_model_len = z->n_ctx;
    i->n_ctx_train = hp->n_ctx;
    i->n_vocab = hp->n_vocab;
    i->n_layer = hp->n_layer;
    i->max_num_seqs = c->max_num_seqs;
    i->block_size = c->block_size;
    i->n_page = z->n_page;
    hd_ranks_facts others = hd_ranks_get_facts(e->ranks);
    i->n_rank = c->tensor_parallel_size;
    i->weight_bytes = (int64_t)(hd_model_weight_bytes(e->model) + others.weight_bytes);
    i->kv_pool_bytes = (int64_t)(hd_model_kv_bytes(e->model) + others.kv_bytes);
    i->kv_bytes_per_token = (int64_t)hd_hparams_kv_bytes(hp, kv_type) * i->n_rank;
    i->workspace_bytes = (int64_t)(hd_model_workspace_bytes(e->model) + others.workspace_bytes);
    int32_t eos = e->tokenizer ? hd_tokenizer_eos(e->tokenizer) : -1;
    int32_t bos = e->tokenizer ? hd_tokenizer_bos(e->tokenizer) : -1;
    i->eos = eos >= 0 ? eos : hp->eos;
    i->bos = bos >= 0 ? bos : hp->bos;
    return HD_OK;
}

/* Starts every fingerprint chain: all that decides the bytes of a KV row besides the tokens. */
static uint64_t model_key(const hd_engine *e, const hd_engine_config *c, enum hd_kv_type kv_type) {
    const hd_hparams *hp = hd_model_hparams(e->model);
    struct {
        char weights[33];
        char kv_type[8];
        float rope[7];
        int32_t n_layer, orig_ctx, is_yarn, n_rank, is_expert_parallel;
    } key;
    memset(&key, 0, sizeof key); /* padding is hashed, too */
    memcpy(key.weights, e->info.model_hash, 32);
    strncpy(key.kv_type, hd_kv_type_name(kv_type), sizeof key.kv_type - 1);
    const float rope[7] = {hp->rope_base,      hp->yarn_factor, hp->yarn_beta_fast,
                           hp->yarn_beta_slow, hp->yarn_mscale, hp->yarn_mscale_all,
                           hp->rms_eps};
    memcpy(key.rope, rope, sizeof rope);
    key.n_layer = hp->n_layer;
    key.orig_ctx = hp->yarn_orig_ctx;
    key.is_yarn = hp->is_yarn;
    key.n_rank = c->tensor_parallel_size;
    key.is_expert_parallel = c->enable_expert_parallel;
    return XXH3_64bits(&key, sizeof key);
}

static hd_status enqueue_step(void *ctx, const hd_batch *b) {
    hd_engine *e = ctx;
    HD_TRY(hd_ranks_enqueue(e->ranks, e->model, b));
    hd_metric_set(HD_M_DEVICE_ALLOCS, (double)(count_allocs(e) - e->n_alloc_ready));
    return HD_OK;
}

static hd_status fetch_step(void *ctx, hd_step_out *out) {
    hd_engine *e = ctx;
    hd_model_out o;
    HD_TRY(hd_ranks_fetch(e->ranks, e->model, &o));
    uint64_t lost = hd_model_kv_lost(e->model) + hd_ranks_get_facts(e->ranks).kv_lost;
    hd_metric_add(HD_M_KV_LOST, (double)(lost - e->kv_lost));
    e->kv_lost = lost;
    *out = (hd_step_out){.token = o.token, .logits = o.logits};
    return HD_OK;
}

/* What a step's time depends on besides its load. */
static uint64_t profile_key(const hd_engine *e, const hd_engine_config *c) {
    hd_buf b;
    hd_buf_init(&b, 4096);
    hd_buf_addf(&b, "%s %s %s %s %d %s %d %s %d", e->info.model_hash, e->info.backend,
                e->info.device, e->info.kv_cache_dtype, c->n_thread, c->isa ? c->isa : "auto",
                e->info.n_rank, c->dtype ? c->dtype : "auto", c->deterministic);
    uint64_t key = XXH3_64bits(b.ptr, b.len);
    hd_buf_fini(&b);
    return key;
}

static bool exists(const char *path) {
    FILE *f = fopen(path, "re");
    if (f) fclose(f);
    return f != NULL;
}

/* Read from its file when there is one, else begun with some measured steps. */
static hd_status open_profile(hd_engine *e, const hd_engine_config *c, const hd_loop_config *lc) {
    if (c->latency_profile) {
        e->profile_path = keep(e, c->latency_profile);
        e->profile_key = profile_key(e, c);
        if (exists(c->latency_profile))
            return hd_profile_load(c->latency_profile, e->profile_key, &e->profile);
    }
    e->profile = hd_profile_new();
    if (c->measure_ms <= 0) return HD_OK;
    progress(c, "measuring steps", 0.99);
    hd_measure_steps(lc, (int64_t)(c->measure_ms * 1e6), e->profile);
    return HD_OK;
}

static hd_status open_loop(hd_engine *e, const hd_engine_config *c, enum hd_kv_type kv_type,
                           const hd_engine_sizes *z) {
    const hd_hparams *hp = hd_model_hparams(e->model);
    int32_t end[2 + HD_CHAT_END_MAX] = {e->info.eos, hp->eos};
    int n_end = end[0] < 0 ? 0 : end[1] < 0 || end[1] == end[0] ? 1 : 2;
    int n_chat_end = e->chat ? hd_chat_end_tokens(e->chat, e->tokenizer, end + n_end) : 0;
    hd_loop_config lc = {
        .n_queue_max = c->max_num_queued_reqs,
        .queue_tok_max = c->max_num_queued_tokens,
        .wait_max_ns = (int64_t)(c->queue_timeout_s * 1e9),
        .clock = hd_clock_real(),
        .stepper = {.enqueue = enqueue_step,
                    .fetch = fetch_step,
                    .is_async = hd_dev_has_memory(&e->dev),
                    .ctx = e},
        .n_vocab = hp->n_vocab,
        .no_token = e->no_token,
        .n_no_token = e->n_no_token,
        .end_token = end,
        .n_end_token = n_end,
        .n_chat_end_token = n_chat_end,
        .tokenizer = e->tokenizer,
        .has_metrics = true,
    };
    hd_engine_sched_config(c, z, &lc.sched);
    lc.sched.n_layer = hp->n_layer;
    lc.sched.model_key = model_key(e, c, kv_type);
    if (getrandom(&lc.seed, sizeof lc.seed, 0) != (ssize_t)sizeof lc.seed)
        lc.seed = (uint64_t)hd_now_ns();
    hd_status s = open_profile(e, c, &lc);
    lc.profile = e->profile;
    lc.sched.profile = e->profile;
    if (s == HD_OK) e->loop = hd_loop_new(&lc);
    return s;
}

static void *engine_thread(void *arg) {
    hd_loop_run(arg);
    return NULL;
}

static hd_status start_thread(hd_engine *e) {
    int rc = pthread_create(&e->thread, NULL, engine_thread, e->loop);
    if (rc != 0) return HD_FAIL(NO_MEMORY, "engine thread: %s", strerror(rc));
    e->has_thread = true;
    pthread_setname_np(e->thread, "hadal-engine");
    return HD_OK;
}

static void log_facts(const hd_engine *e) {
    const hd_engine_info *i = &e->info;
    hd_log(HD_LOG_INFO, "model loaded", "model", "s", i->model_name, "arch", "s", i->arch, "hash",
           "s", i->model_hash, "parameters", "d", i->n_param, "weight_format", "s",
           i->weight_format, "weight_bytes", "d", i->weight_bytes, "backend", "s", i->backend,
           "device", "s", i->device, "context", "d", (int64_t)i->max_model_len, "context_train",
           "d", (int64_t)i->n_ctx_train, "kv_dtype", "s", i->kv_cache_dtype, "kv_pages", "d",
           (int64_t)i->n_page, "kv_page_tokens", "d", (int64_t)i->block_size, "kv_bytes", "d",
           i->kv_pool_bytes, "workspace_bytes", "d", i->workspace_bytes, "max_num_seqs", "d",
           (int64_t)i->max_num_seqs, "ranks", "d", (int64_t)i->n_rank, "chat_encoding", "s",
           i->chat_encoding, "chat_encoding_why", "s", i->chat_encoding_why, "load_s", "f",
           i->load_s, NULL);
    if (i->max_model_len < i->n_ctx_train)
        hd_log(HD_LOG_INFO, "the context is smaller than the model's", "context", "d",
               (int64_t)i->max_model_len, "context_train", "d", (int64_t)i->n_ctx_train, NULL);
}

/* The memory that the sizes are about. A pool of a given number of tokens, or one window, has its
 * place before weights do. */
static hd_status find_place(hd_engine *e, const hd_engine_config *c, const hd_hparams *hp,
                            enum hd_kv_type kv_type) {
    uint64_t tok_bytes = hd_hparams_kv_bytes(hp, kv_type);
    uint64_t n_tok =
        (uint64_t)(c->max_tokens_in_paged_kv_cache > 0 ? c->max_tokens_in_paged_kv_cache
                                                       : c->max_model_len);
    hd_dev_config host;
    HD_TRY(device_config(c, &host));
    return hd_place_find(&(hd_place_ask){.checkpoint = e->checkpoint,
                                         .dev = &e->dev,
                                         .n_rank = c->tensor_parallel_size,
                                         .is_expert_parallel = c->enable_expert_parallel,
                                         .device_gib = c->gpu_memory_gib,
                                         .kv_bytes = n_tok * tok_bytes,
                                         .plan = c->offload_plan,
                                         .host = &host},
                         &e->place);
}

static hd_status open_parts(hd_engine *e, const hd_engine_config *c) {
    progress(c, "reading the model", 0);
    HD_TRY(hd_engine_open_checkpoint(c, &e->checkpoint));
    hd_hparams hp, part;
    HD_TRY(hd_hparams_read(e->checkpoint, &hp));
    HD_TRY(hd_hparams_part(&hp, c->tensor_parallel_size, c->enable_expert_parallel, &part));
    e->info.model_name = name_model(e, c, &hp);
    describe_weights(e);
    HD_TRY(open_text(e, c, hp.n_vocab));
    list_no_token(e, hp.n_vocab);
    HD_TRY(open_device(e, c));
    enum hd_kv_type kv_type;
    HD_TRY(hd_engine_kv_type(c->kv_cache_dtype, e->checkpoint, &e->dev, &kv_type));
    hd_engine_sizes z;
    HD_TRY(find_place(e, c, &part, kv_type));
    HD_TRY(hd_engine_size(c, &part, kv_type, e->place.free_bytes, &z));
    z.likes_neighbours = hd_engine_likes_neighbours(hd_dev_has_memory(&e->dev), kv_type);
    char hash[33];
    hd_checkpoint_hash(e->checkpoint, hash, hash_progress, (void *)(uintptr_t)c);
    e->info.model_hash = keep(e, hash);
    if (c->expect_hash) HD_TRY(hd_checkpoint_expect_hash(e->checkpoint, c->expect_hash, hash));
    HD_TRY(open_model(e, c, kv_type, &z));
    HD_TRY(open_loop(e, c, kv_type, &z));
    return start_thread(e);
}

hd_status hd_engine_open(const hd_engine_config *c, hd_engine **out) {
    *out = NULL;
    int64_t from_ns = hd_now_ns();
    hd_engine *e = hd_alloc_zero(1, sizeof *e);
    e->names = hd_arena_new(1024);
    hd_status s = open_parts(e, c);
    progress(c, s == HD_OK ? "ready" : "failed", 1);
    if (s != HD_OK) {
        hd_engine_close(e);
        return s;
    }
    e->info.load_s = (double)(hd_now_ns() - from_ns) * 1e-9;
    log_facts(e);
    *out = e;
    return HD_OK;
}

static void keep_profile(const hd_engine *e) {
    if (!e->profile_path || hd_profile_n_step(e->profile) == 0) return;
    if (hd_profile_save(e->profile, e->profile_path, e->profile_key) != HD_OK)
        hd_log(HD_LOG_WARN, "the latency profile was not kept", "error", "s", hd_error_text(),
               NULL);
}

void hd_engine_close(hd_engine *e) {
    if (!e) return;
    if (e->has_thread) {
        hd_loop_stop(e->loop);
        pthread_join(e->thread, NULL);
    }
    hd_loop_free(e->loop);
    if (e->has_thread) keep_profile(e);
    hd_profile_free(e->profile);
    hd_ranks_stop(e->ranks);
    hd_model_close(e->model);
    hd_place_close(&e->place);
    hd_dev_close(&e->dev);
    hd_ranks_free(e->ranks); /* the group after its devices */
    hd_tokenizer_free(e->tokenizer);
    hd_free(e->no_token);
    hd_checkpoint_close(e->checkpoint);
    hd_arena_free(e->names);
    hd_free(e);
}

const hd_engine_info *hd_engine_get_info(const hd_engine *e) { return &e->info; }

void hd_engine_sampling_init(const hd_engine *e, hd_sampling *s) {
    const hd_suggestion *own = &e->suggestion;
    hd_sampling_init(s);
    if (own->temperature >= 0) s->temperature = (float)own->temperature;
    if (own->top_p > 0) s->top_p = (float)own->top_p;
    if (own->top_k > 0) s->top_k = own->top_k;
}

void hd_engine_get_stats(const hd_engine *e, hd_engine_stats *out) {
    hd_loop_get_stats(e->loop, out);
}

hd_status hd_request_submit(hd_engine *e, const hd_request *r, uint64_t *id) {
    hd_status s = hd_request_check(r, e->info.n_vocab, e->info.max_model_len);
    if (s != HD_OK) {
        hd_metric_add(HD_M_REJECTED, 1);
        return s;
    }
    return hd_loop_submit(e->loop, r, id);
}

hd_status hd_engine_admits(const hd_engine *e, enum hd_service service) {
    return hd_loop_admits(e->loop, service);
}
int hd_engine_retry_s(const hd_engine *e, enum hd_service service) {
    return hd_loop_retry_s(e->loop, service);
}

void hd_request_cancel(hd_engine *e, uint64_t id) { hd_loop_cancel(e->loop, id); }
void hd_request_stop(hd_engine *e, uint64_t id) { hd_loop_finish(e->loop, id); }
