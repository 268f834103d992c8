/* engine: the embedded model through the public API. Bit-equality of tokens and log-probabilities
 * against batch neighbours, threads, chunking, preemption and cached prefixes; cancels in every
 * state; stops; counts. Runs on the backend that "auto" picks, the heart of it on ref as well. */
#include "hadal.h"
#include "support/allocs.h"
#include "support/check.h"
#include "support/files.h"
#include "support/rng.h"

#include "base/log.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Sanitizers look for races and bad memory, in a crowd of any size; they make it ten times slower.
 */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { n_crowd = 30, n_many = 12, n_some = 5, n_steps = 200 };
#else
enum { n_crowd = 200, n_many = 32, n_some = 10, n_steps = 1000 };
#endif
enum { new_max = 160, prompt_max = 1024 };

/* ---- one request and what came of it ---- */

typedef struct gen {
    hd_request r;
    int32_t prompt[prompt_max];
    hd_logit_bias bias[4];
    uint64_t id;
    int n;
    int32_t token[new_max];
    float logprob[new_max];
    hd_top_logprob top[new_max][3];
    int n_top[new_max];
    hd_event last;
    char error[256];
    _Atomic int n_end;
    int refuse_at;
} gen;

static pthread_mutex_t end_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;

static bool receive(void *user, const hd_event *ev) {
    gen *g = user;
    test_allocs_watch(true);
    assert_int_equal(atomic_load(&g->n_end), 0);
    if (ev->token >= 0) {
        assert_true(g->n < new_max);
        g->token[g->n] = ev->token;
        g->logprob[g->n] = ev->logprob;
        g->n_top[g->n] = ev->n_top;
        for (int i = 0; i < ev->n_top && i < 3; i++) g->top[g->n][i] = ev->top[i];
        g->n++;
    }
    assert_int_equal(ev->n_generated, g->n);
    g->last = *ev;
    if (ev->error) snprintf(g->error, sizeof g->error, "%s", ev->error);
    bool accepts = g->refuse_at == 0 || g->n < g->refuse_at;
    if (ev->finish != HD_FINISH_NONE) { /* from here on g is the waiting thread's */
        pthread_mutex_lock(&end_lock);
        atomic_fetch_add(&g->n_end, 1);
        pthread_cond_broadcast(&ended);
        pthread_mutex_unlock(&end_lock);
    }
    return accepts;
}

static void gen_init(gen *g) {
    memset(g, 0, sizeof *g);
    hd_request_init(&g->r);
    g->r.prompt = g->prompt;
    g->r.on_event = receive;
    g->r.user = g;
    g->r.sampling.n_top_logprob = 3;
    g->r.sampling.temperature = 0;
    g->r.ignore_eos = true;
}

static void gen_submit(hd_engine *e, gen *g) {
    g->n = 0;
    atomic_store(&g->n_end, 0);
    assert_ok(hd_request_submit(e, &g->r, &g->id));
}

static void gen_wait(gen *g) {
    pthread_mutex_lock(&end_lock);
    while (atomic_load(&g->n_end) == 0) pthread_cond_wait(&ended, &end_lock);
    pthread_mutex_unlock(&end_lock);
}

static void gen_run(hd_engine *e, gen *g) {
    gen_submit(e, g);
    gen_wait(g);
}

static void check_same(const gen *a, const gen *b, const char *what, int which) {
    if (a->n != b->n) fail_msg("%s, request %d: %d tokens against %d", what, which, a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        if (a->token[i] != b->token[i])
            fail_msg("%s, request %d: token %d differs", what, which, i);
        if (memcmp(&a->logprob[i], &b->logprob[i], sizeof(float)) != 0)
            fail_msg("%s, request %d: logprob %d differs: %.9g %.9g", what, which, i,
                     (double)a->logprob[i], (double)b->logprob[i]);
        assert_int_equal(a->n_top[i], b->n_top[i]);
        for (int k = 0; k < a->n_top[i] && k < 3; k++) {
            assert_int_equal(a->top[i][k].token, b->top[i][k].token);
            assert_memory_equal(&a->top[i][k].logprob, &b->top[i][k].logprob, sizeof(float));
        }
    }
    assert_int_equal(a->last.finish, b->last.finish);
}

/* ---- engines ---- */

static hd_engine_config config(void) {
    hd_engine_config c;
    hd_engine_config_init(&c);
    c.max_tokens_in_paged_kv_cache = 16384;
    c.n_thread = 1;
    c.enable_prefix_caching = false;
    c.compaction_pages = 16;
    /* A busy machine computes slowly: nothing here is about waits that are refused. */
    for (int k = 0; k < HD_SERVICE_COUNT; k++) c.target[k].wait_ns = INT64_MAX / 4;
    return c;
}

static hd_engine *engine(const hd_engine_config *c) {
    hd_engine *e;
    assert_ok(hd_engine_open(c, &e));
    return e;
}

/* Nothing runs, and every page came back. */
static void engine_close(hd_engine *e) {
    hd_engine_stats s;
    hd_engine_get_stats(e, &s);
    assert_int_equal(s.n_running + s.n_waiting, 0);
    assert_int_equal(s.n_page_used, 0);
    assert_int_equal(s.n_page_free + s.n_page_cached, s.n_page);
    assert_int_equal(s.stuck_ns, 0);
    assert_false(s.is_failed);
    hd_engine_close(e);
}

/* ---- made-up traffic ---- */

static test_rng rng = {.x = 1};
static int below(int n) { return rng_int(&rng, 0, n - 1); }
static float uniform(float a, float b) { return a + (b - a) * (float)rng_unit(&rng); }

static const char *const texts[] = {
    "Once upon a time, in a small village, there lived a kind girl named Mia. ",
    "The old king called his three sons and said, ",
    "What is 12 + 30? Count from 1 to 20. Copy this text: small ",
    "\"Where are you going?\" asked the wolf. \"To my grandmother,\" she said. ",
};

/* n tokens of prose; equal seeds share a prefix. */
static void fill_prompt(hd_engine *e, gen *g, int n, int seed) {
    assert_true(n <= prompt_max);
    g->r.n_prompt = n;
    g->prompt[0] = hd_engine_get_info(e)->bos;
    for (int at = 1; at < n;) {
        hd_token_list l;
        assert_ok(hd_engine_tokenize(e, hd_str_of(texts[seed++ % 4]), false, false, &l));
        for (size_t i = 0; i < l.n && at < n; i++) g->prompt[at++] = l.id[i];
        hd_engine_free_ids(&l);
    }
}

static void random_request(hd_engine *e, gen *g, int n_prompt_max, int n_new_max) {
    gen_init(g);
    fill_prompt(e, g, 1 + below(below(4) ? 40 : n_prompt_max), below(4));
    hd_sampling *s = &g->r.sampling;
    g->r.max_tokens = 1 + below(n_new_max);
    g->r.min_tokens = below(3) ? 0 : below(g->r.max_tokens + 1);
    g->r.ignore_eos = below(2);
    g->r.priority = below(3);
    s->temperature = below(3) ? uniform(0.2f, 1.5f) : 0;
    s->seed = rng_next(&rng);
    s->has_seed = true;
    s->top_k = below(2) ? 0 : 1 + below(100);
    s->top_p = below(2) ? 1 : uniform(0, 1);
    s->min_p = below(2) ? 0 : uniform(0, 0.3f);
    s->presence_penalty = below(3) ? 0 : uniform(-2, 2);
    s->frequency_penalty = below(3) ? 0 : uniform(-2, 2);
    s->repetition_penalty = below(3) ? 1 : uniform(0.7f, 1.5f);
    s->n_top_logprob = below(22) - 1;
    s->bias = g->bias;
    s->n_bias = below(5);
    int n_vocab = hd_engine_get_info(e)->n_vocab;
    for (int i = 0; i < 4; i++) g->bias[i] = (hd_logit_bias){below(n_vocab), uniform(-20, 5)};
}

/* ---- bit-equality ---- */

typedef struct variant {
    const char *name;
    int n_thread, batched, chunk, block, pool_tok, n_seq;
    bool unchunked, prefix, must_preempt, must_hit, must_move;
} variant;

static const variant variants[] = {
    {.name = "all at once"},
    {.name = "2 threads", .n_thread = 2},
    {.name = "budget 1", .batched = 1},
    {.name = "budget 7", .batched = 7},
    {.name = "budget 64, chunk 3", .batched = 64, .chunk = 3},
    {.name = "chunk 16", .chunk = 16},
    {.name = "chunk 33", .chunk = 33, .n_thread = 2},
    {.name = "unchunked", .batched = 352, .unchunked = true},
    {.name = "pages of 1", .block = 1, .must_move = true},
    {.name = "pages of 7", .block = 7},
    {.name = "pages of 64", .block = 64},
    {.name = "small pool", .pool_tok = 352, .block = 4},
    {.name = "small pool, chunk 5", .pool_tok = 352, .block = 4, .chunk = 5},
    {.name = "prefixes", .prefix = true, .must_hit = true},
    {.name = "prefixes, small pool", .prefix = true, .pool_tok = 352, .block = 4, .must_hit = true},
    {.name = "prefixes, pages of 1",
     .prefix = true,
     .block = 1,
     .must_hit = true,
     .must_move = true},
    {.name = "3 sequences", .n_seq = 3},
};

static void run_variant(const variant *v, hd_engine_config c, const gen *alone, gen *again, int n) {
    c.n_thread = v->n_thread ? v->n_thread : c.n_thread;
    c.max_num_batched_tokens = v->batched ? v->batched : c.max_num_batched_tokens;
    c.context_chunk_size = v->chunk;
    c.enable_chunked_context = !v->unchunked;
    c.block_size = v->block ? v->block : c.block_size;
    c.max_tokens_in_paged_kv_cache = v->pool_tok ? v->pool_tok : c.max_tokens_in_paged_kv_cache;
    c.max_num_seqs = v->n_seq ? v->n_seq : c.max_num_seqs;
    c.max_model_len = 352;
    c.enable_prefix_caching = v->prefix;
    hd_engine *e = engine(&c);
    for (int i = 0; i < n; i++) {
        memcpy(&again[i], &alone[i], sizeof again[i]);
        again[i].r.prompt = again[i].prompt;
        again[i].r.sampling.bias = again[i].bias;
        again[i].r.user = &again[i];
    }
    for (int i = 0; i < n; i++) gen_submit(e, &again[i]);
    int64_t n_prompt = 0, n_hit = 0, n_generated = 0;
    for (int i = 0; i < n; i++) {
        gen_wait(&again[i]);
        check_same(&alone[i], &again[i], v->name, i);
        n_prompt += again[i].last.n_prompt;
        n_hit += again[i].last.n_hit;
        n_generated += again[i].n;
    }
    hd_engine_stats s;
    hd_engine_get_stats(e, &s);
    assert_int_equal(s.prompt_tok, n_prompt); /* hit and miss are all of the prompts */
    assert_int_equal(s.hit_tok, n_hit);
    assert_int_equal(s.generated_tok, n_generated);
    assert_int_equal(s.n_finished, n);
    if (v->must_preempt && s.n_preempt == 0) fail_msg("%s: nothing was preempted", v->name);
    if (v->must_hit && n_hit == 0) fail_msg("%s: nothing was reused", v->name);
    if (v->must_move && s.n_page_moved == 0) fail_msg("%s: no page was moved", v->name);
    if (!v->prefix) assert_int_equal(n_hit, 0);
    engine_close(e);
}

static void run_alone(const hd_engine_config *c, gen *g, int n, int n_prompt_max, int n_new_max) {
    hd_engine *e = engine(c);
    for (int i = 0; i < n; i++) {
        random_request(e, &g[i], n_prompt_max, n_new_max);
        gen_run(e, &g[i]);
        if (g[i].last.finish == HD_FINISH_ERROR) fail_msg("request %d: %s", i, g[i].error);
        assert_true(g[i].n >= g[i].r.min_tokens);
    }
    engine_close(e);
}

static void equal_bits_in_every_setting(void **state) {
    (void)state;
    enum { n = n_many };
    gen *alone = calloc(n, sizeof *alone), *again = calloc(n, sizeof *again);
    for (int exact = 0; exact < 2; exact++) {
        hd_engine_config c = config();
        c.exact = exact;
        rng.x = 3 + (uint64_t)exact;
        run_alone(&c, alone, n, 200, 40);
        for (size_t k = 0; k < sizeof variants / sizeof variants[0]; k++) {
            /* What was cached may choose the other form of attention, unless exact. */
            if (variants[k].prefix != exact) continue;
            run_variant(&variants[k], c, alone, again, k < 2 || exact ? n : n_some);
        }
    }
    free(alone);
    free(again);
}

static void the_oracle_too(void **state) {
    (void)state;
    enum { n = 6 };
    gen *alone = calloc(n, sizeof *alone), *again = calloc(n, sizeof *again);
    hd_engine_config c = config();
    c.backend = "ref";
    c.exact = true;
    rng.x = 9;
    run_alone(&c, alone, n, 60, 6);
    const variant v[] = {{.name = "ref, chunk 5", .chunk = 5},
                         {.name = "ref, small pool, prefixes", .prefix = true, .pool_tok = 352}};
    for (int k = 0; k < 2; k++) run_variant(&v[k], c, alone, again, n);
    free(alone);
    free(again);
}

/* Twelve sequences that together grow to four times the pool. */
static void preempted_ones_go_on(void **state) {
    (void)state;
    enum { n = 12 };
    gen *alone = calloc(n, sizeof *alone), *again = calloc(n, sizeof *again);
    hd_engine_config c = config();
    c.exact = true;
    hd_engine *e = engine(&c);
    for (int i = 0; i < n; i++) {
        gen_init(&alone[i]);
        fill_prompt(e, &alone[i], 20 + i, i);
        alone[i].r.max_tokens = 70;
        alone[i].r.sampling.temperature = (float)(i % 2);
        alone[i].r.sampling.has_seed = true;
        gen_run(e, &alone[i]);
    }
    engine_close(e);
    const variant v[] = {
        {.name = "preemption", .pool_tok = 352, .block = 4, .must_preempt = true},
        {.name = "preemption, chunk 5",
         .pool_tok = 352,
         .block = 4,
         .chunk = 5,
         .must_preempt = true},
        {.name = "preemption, prefixes",
         .pool_tok = 352,
         .block = 4,
         .prefix = true,
         .must_preempt = true},
    };
    for (size_t k = 0; k < sizeof v / sizeof v[0]; k++) run_variant(&v[k], c, alone, again, n);
    free(alone);
    free(again);
}

/* 200 requests with every option, all at once, against the same alone. */
static void a_crowd_equals_its_members(void **state) {
    (void)state;
    enum { n = n_crowd };
    gen *alone = calloc(n, sizeof *alone), *again = calloc(n, sizeof *again);
    hd_engine_config c = config();
    rng.x = 21;
    run_alone(&c, alone, n, 80, 16);
    const variant v = {.name = "crowd", .n_thread = 2, .pool_tok = 2048};
    run_variant(&v, c, alone, again, n);
    free(alone);
    free(again);
}

/* A prefix cached up to k tokens, for every k, changes nothing under exact. */
static void every_split_of_a_prompt(void **state) {
    (void)state;
    hd_engine_config c = config();
    c.exact = true;
    hd_engine *plain = engine(&c);
    c.enable_prefix_caching = true;
    hd_engine *e = engine(&c);
    gen *want = calloc(1, sizeof *want), *got = calloc(1, sizeof *got);
    enum { n = 50, page = 16 };
    gen_init(want);
    want->r.max_tokens = 8;
    fill_prompt(plain, want, n, 0);
    gen_run(plain, want);
    for (int k = 1; k <= n; k++) {
        gen_init(got);
        got->r.cache_salt = (uint64_t)k; /* an empty cache of its own */
        got->r.max_tokens = 1;
        fill_prompt(e, got, n, 0);
        got->r.n_prompt = k;
        gen_run(e, got);
        assert_int_equal(got->last.n_hit, 0);
        got->r.n_prompt = n;
        got->r.max_tokens = 8;
        gen_run(e, got);
        check_same(want, got, "split", k);
        int reusable = k / page * page;
        assert_int_equal(got->last.n_hit, reusable < n ? reusable : n - 1);
    }
    engine_close(e);
    engine_close(plain);
    free(want);
    free(got);
}

static void convert(const char *source, const char *target) {
    const char *bin = getenv("HADAL_BIN");
    if (!bin) fail_msg("HADAL_BIN does not name the program");
    char *arg[] = {strdup("hadal"), strdup("convert"), strdup(source), strdup(target), NULL};
    posix_spawn_file_actions_t quiet;
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    pid_t pid;
    int status = -1;
    assert_int_equal(posix_spawn(&pid, bin, &quiet, NULL, arg, environ), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    posix_spawn_file_actions_destroy(&quiet);
    for (int i = 0; i < 4; i++) free(arg[i]);
}

/* A folder of safetensors and the GGUF made from it: the same bits. Neither has a tokenizer. */
static void a_folder_equals_its_gguf(void **state) {
    (void)state;
    static const char *const family[] = {"v3", "v3-yarn-mscale-pair"};
    static const char *const backend[] = {"ref", "auto"};
    enum { n = 5 };
    gen *a = calloc(n, sizeof *a), *b = calloc(n, sizeof *b);
    char *dir = test_temp_dir(), gguf[4096];
    for (int f = 0; f < 2; f++) {
        char folder[256];
        snprintf(folder, sizeof folder, "tests/golden/families/%s", family[f]);
        snprintf(gguf, sizeof gguf, "%s/%s.gguf", dir, family[f]);
        const char *source = test_path(folder);
        convert(source, gguf);
        for (int k = 0; k < 2; k++) {
            hd_engine_config c = config();
            c.backend = backend[k];
            c.model = source;
            hd_engine *from_folder = engine(&c);
            c.model = gguf;
            hd_engine *from_gguf = engine(&c);
            const hd_engine_info *info = hd_engine_get_info(from_folder);
            assert_string_equal(hd_engine_get_info(from_gguf)->arch, info->arch);
            rng.x = 40 + (uint64_t)f;
            for (int i = 0; i < n; i++) {
                gen_init(&a[i]);
                a[i].r.n_prompt = 1 + below(100);
                for (int t = 0; t < a[i].r.n_prompt; t++) a[i].prompt[t] = below(info->n_vocab);
                a[i].r.max_tokens = 6;
                a[i].r.sampling.temperature = (float)(i % 2);
                a[i].r.sampling.has_seed = true;
                b[i] = a[i];
                b[i].r.prompt = b[i].prompt;
                b[i].r.user = &b[i];
                gen_run(from_folder, &a[i]);
                gen_run(from_gguf, &b[i]);
                check_same(&a[i], &b[i], family[f], i);
            }
            hd_token_list l;
            assert_int_equal(hd_engine_tokenize(from_gguf, hd_str_of("a"), false, false, &l),
                             HD_E_UNSUPPORTED);
            engine_close(from_folder);
            engine_close(from_gguf);
        }
    }
    test_remove_dir(dir);
    free(a);
    free(b);
}

/* ---- seeds and sampling ---- */

static void seeds(void **state) {
    (void)state;
    hd_engine_config c = config();
    hd_engine *e = engine(&c);
    enum { n = 8 };
    gen *g = calloc(n, sizeof *g);
    for (int i = 0; i < n; i++) {
        gen_init(&g[i]);
        fill_prompt(e, &g[i], 20, 0);
        g[i].r.max_tokens = 30;
        g[i].r.ignore_eos = true; /* two that end at once would be alike */
        g[i].r.sampling.temperature = 1.5f;
        g[i].r.sampling.has_seed = i < 6;
        g[i].r.sampling.seed = i < 4 ? 500 : (uint64_t)i;
    }
    for (int i = 0; i < n; i++) gen_submit(e, &g[i]);
    for (int i = 0; i < n; i++) gen_wait(&g[i]);
    for (int i = 1; i < 4; i++) check_same(&g[0], &g[i], "same seed", i);
    for (int i = 4; i < n; i++) /* other seeds, and fresh ones */
        for (int k = 3; k < i; k++)
            assert_memory_not_equal(g[k].token, g[i].token, 30 * sizeof(int32_t));
    engine_close(e);
    free(g);
}

static void a_biased_token_and_a_ban(void **state) {
    (void)state;
    hd_engine_config c = config();
    hd_engine *e = engine(&c);
    gen *g = calloc(1, sizeof *g);
    gen_init(g);
    fill_prompt(e, g, 12, 1);
    g->r.max_tokens = 3;
    g->bias[0] = (hd_logit_bias){77, 100};
    g->r.sampling.bias = g->bias;
    g->r.sampling.n_bias = 1;
    gen_run(e, g);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(g->token[i], 77);
        assert_true(g->logprob[i] < -2); /* the model's own opinion of it */
        assert_int_equal(g->n_top[i], 3);
        assert_true(g->top[i][0].logprob >= g->top[i][1].logprob);
        assert_true(g->top[i][0].logprob <= 0);
    }
    int32_t best = g->top[0][0].token;
    g->bias[0] = (hd_logit_bias){best, -INFINITY};
    gen_run(e, g);
    for (int i = 0; i < 3; i++) assert_int_not_equal(g->token[i], best);
    assert_int_equal(g->token[0], g->top[0][1].token);
    engine_close(e);
    free(g);
}

/* ---- cancels ---- */

static void sleep_ms(int ms) {
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

static void cancels(void **state) {
    (void)state;
    hd_engine_config c = config();
    c.max_num_seqs = 2;
    c.enable_prefix_caching = true;
    hd_engine *e = engine(&c);
    enum { n = 24 };
    gen *g = calloc(n, sizeof *g);
    gen *calm = calloc(1, sizeof *calm), *same = calloc(1, sizeof *same);
    gen_init(calm);
    fill_prompt(e, calm, 10, 2);
    calm->r.max_tokens = 40;
    calm->r.cache_salt = 99;
    gen_run(e, calm);
    memcpy(same, calm, sizeof *same);
    same->r.prompt = same->prompt;
    same->r.user = same;
    same->r.priority = -1;
    gen_submit(e, same);
    for (int i = 0; i < n; i++) { /* cancelled at once, while waiting, computing, generating */
        gen_init(&g[i]);
        fill_prompt(e, &g[i], 600, i);
        g[i].r.max_tokens = 150;
        gen_submit(e, &g[i]);
        if (i % 3 == 0) hd_request_cancel(e, g[i].id);
        if (i % 3 == 1) sleep_ms(i % 6);
        if (i % 6 == 4 && i > 4) hd_request_cancel(e, g[i - 4].id);
    }
    g[n - 1].refuse_at = 2;
    for (int i = 0; i < n; i++) {
        hd_request_cancel(e, g[i].id);
        hd_request_cancel(e, g[i].id);
        gen_wait(&g[i]);
        assert_int_equal(atomic_load(&g[i].n_end), 1);
    }
    gen_wait(same);
    check_same(calm, same, "among cancels", 0);
    hd_request_cancel(e, same->id);
    hd_request_cancel(e, 12345678901u);
    gen_run(e, same);
    check_same(calm, same, "after cancels", 0);
    engine_close(e);
    free(g);
    free(calm);
    free(same);
}

static void a_close_ends_what_runs(void **state) {
    (void)state;
    hd_engine_config c = config();
    c.max_num_seqs = 3;
    hd_engine *e = engine(&c);
    enum { n = 10 };
    gen *g = calloc(n, sizeof *g);
    for (int i = 0; i < n; i++) {
        gen_init(&g[i]);
        fill_prompt(e, &g[i], 300, i);
        g[i].r.max_tokens = 150;
        gen_submit(e, &g[i]);
    }
    sleep_ms(20);
    hd_engine_close(e);
    for (int i = 0; i < n; i++) {
        assert_int_equal(atomic_load(&g[i].n_end), 1);
        assert_true(g[i].last.finish == HD_FINISH_CANCELLED || g[i].n == 150);
    }
    hd_engine_close(NULL);
    free(g);
}

/* ---- ends ---- */

static void append(hd_buf *b, hd_str s) { hd_buf_add(b, s.ptr, s.len); }

/* What a front end shows for the tokens of g, with the request's stop strings. */
static void show(hd_engine *e, const gen *g, hd_buf *out, bool *stopped) {
    hd_text_stream_options o = {
        .stop = g->r.stop, .n_stop = g->r.n_stop, .min_tokens = g->r.min_tokens};
    hd_text_stream *s;
    assert_ok(hd_text_stream_new(e, &o, &s));
    *stopped = false;
    hd_buf_clear(out);
    for (int i = 0; i < g->n; i++) {
        hd_text_out t = hd_text_stream_feed(s, g->token[i]);
        append(out, t.content);
        *stopped |= t.stopped;
    }
    append(out, hd_text_stream_end(s, false).content);
    hd_text_stream_free(s);
}

static void stop_strings_over_tokens(void **state) {
    (void)state;
    hd_engine_config c = config();
    hd_engine *e = engine(&c);
    gen *g = calloc(1, sizeof *g), *w = calloc(1, sizeof *w);
    gen_init(g);
    fill_prompt(e, g, 20, 0);
    g->r.max_tokens = 60;
    gen_run(e, g);
    hd_buf all, part;
    hd_buf_init(&all, 1 << 16);
    hd_buf_init(&part, 1 << 16);
    bool stopped;
    show(e, g, &all, &stopped);
    assert_false(stopped);
    assert_true(all.len > 100);
    for (size_t at = 5; at + 9 < all.len; at += 17) {
        hd_str stop[2] = {hd_str_of("never to be found"), {all.ptr + at, 2 + at % 7}};
        memcpy(w, g, sizeof *w);
        w->r.prompt = w->prompt;
        w->r.user = w;
        w->r.stop = stop;
        w->r.n_stop = 2;
        w->r.min_tokens = at % 3 == 0 ? 12 : 0;
        gen_run(e, w);
        show(e, w, &part, &stopped);
        assert_int_equal(w->last.finish == HD_FINISH_STOP, stopped);
        assert_memory_equal(w->token, g->token, (size_t)w->n * sizeof(int32_t));
        assert_memory_equal(part.ptr, all.ptr, part.len);
        if (!stopped) {
            assert_int_equal(w->n, 60);
            continue;
        }
        assert_int_equal(w->last.stop_ix, 1);
        if (w->r.min_tokens > 0) {
            assert_true(w->n > 12);
            continue;
        }
        const char *first = memmem(all.ptr, all.len, stop[1].ptr, stop[1].len);
        assert_int_equal(part.len, first - all.ptr);
        assert_true(w->n < 60);
    }
    hd_buf_fini(&all);
    hd_buf_fini(&part);
    engine_close(e);
    free(g);
    free(w);
}

/* A chat answer ends with the model's end token. */
static void an_answer_ends(void **state) {
    (void)state;
    hd_engine_config c = config();
    hd_engine *e = engine(&c);
    const hd_engine_info *info = hd_engine_get_info(e);
    gen *g = calloc(1, sizeof *g);
    hd_message m = {.role = HD_ROLE_USER, .content = hd_str_of("What is 12 + 30?")};
    hd_chat_prompt in = {.message = &m, .n_message = 1};
    hd_token_list l;
    hd_chat_start start;
    assert_ok(hd_engine_chat(e, &in, &l, &start));
    assert_false(start.in_reasoning);
    gen_init(g);
    memcpy(g->prompt, l.id, l.n * sizeof *l.id);
    g->r.n_prompt = (int)l.n;
    g->r.ignore_eos = false;
    g->r.max_tokens = 100;
    gen_run(e, g);
    assert_int_equal(g->last.finish, HD_FINISH_STOP);
    assert_true(g->last.is_end_token);
    assert_int_equal(g->last.stop_token, info->eos);
    assert_int_equal(g->token[g->n - 1], info->eos);
    hd_buf b;
    hd_buf_init(&b, 1 << 16);
    hd_engine_detokenize(e, g->token, (size_t)g->n, false, &b);
    assert_non_null(strstr(b.ptr, "42"));
    hd_buf_fini(&b);
    hd_engine_free_ids(&l);
    engine_close(e);
    free(g);
}

static void the_context_and_its_limits(void **state) {
    (void)state;
    hd_engine_config c = config();
    c.max_model_len = 64;
    hd_engine *e = engine(&c);
    assert_int_equal(hd_engine_get_info(e)->max_model_len, 64);
    gen *g = calloc(1, sizeof *g);
    gen_init(g);
    fill_prompt(e, g, 50, 0);
    gen_run(e, g); /* max_tokens 0 */
    assert_int_equal(g->n, 14);
    assert_int_equal(g->last.finish, HD_FINISH_LENGTH);
    g->r.max_tokens = 1000;
    gen_run(e, g);
    assert_int_equal(g->n, 14);
    fill_prompt(e, g, 64, 0);
    assert_int_equal(hd_request_submit(e, &g->r, &g->id), HD_E_CONTEXT);
    assert_non_null(strstr(hd_error_text(), "64"));
    g->r.n_prompt = 63;
    gen_run(e, g);
    assert_int_equal(g->n, 1);
    g->prompt[5] = hd_engine_get_info(e)->n_vocab;
    assert_int_equal(hd_request_submit(e, &g->r, &g->id), HD_E_INVALID);
    engine_close(e);
    free(g);
}

/* ---- opening ---- */

static void check_open_fails(hd_engine_config c, hd_status status, const char *text) {
    hd_engine *e = (hd_engine *)&c;
    hd_status s = hd_engine_open(&c, &e);
    if (s != status) fail_msg("%s: status %s: %s", text, hd_status_name(s), hd_error_text());
    if (!strstr(hd_error_text(), text)) fail_msg("expected %s in: %s", text, hd_error_text());
    assert_null(e);
}

static void refusals_at_opening(void **state) {
    (void)state;
    hd_engine_config c = config();
    c.model = "/nowhere/at.gguf";
    hd_engine *e;
    assert_int_not_equal(hd_engine_open(&c, &e), HD_OK);
    assert_non_null(strstr(hd_error_text(), "/nowhere/at.gguf"));
    c = config();
    c.kv_cache_dtype = "q8_0";
    check_open_fails(c, HD_E_INVALID, "kv_cache_dtype");
    c.kv_cache_dtype = "f12";
    check_open_fails(c, HD_E_INVALID, "kv_cache_dtype");
    c = config();
    c.backend = "abacus";
    check_open_fails(c, HD_E_UNSUPPORTED, "abacus");
    c = config();
    c.chat_encoding = "telegram";
    check_open_fails(c, HD_E_INVALID, "telegram");
    c = config();
    c.tokenizer = "/nowhere/tokenizer.json";
    check_open_fails(c, HD_E_NOT_FOUND, "/nowhere/tokenizer.json");
    c = config(); /* 4096 tokens for a vocabulary of 320 */
    c.model = test_path("tests/golden/families/v3");
    c.tokenizer = test_path("models/mini/mini-bf16.gguf");
    check_open_fails(c, HD_E_INVALID, "320");
    c = config();
    c.max_model_len = 1000;
    c.max_tokens_in_paged_kv_cache = 999;
    check_open_fails(c, HD_E_CONTEXT, "1000");
    c = config();
    c.max_num_seqs = 0;
    check_open_fails(c, HD_E_INVALID, "max_num_seqs");
}

static void facts(void **state) {
    (void)state;
    hd_engine_config c = config();
    c.max_num_seqs = 5;
    hd_engine *e = engine(&c);
    const hd_engine_info *i = hd_engine_get_info(e);
    assert_string_equal(i->model_name, "mini");
    assert_string_equal(i->arch, "deepseek2");
    assert_string_equal(i->weight_format, "BF16");
    assert_int_equal(i->n_vocab, 4096);
    assert_int_equal(i->n_layer, 8);
    assert_int_equal(i->max_model_len, 2048);
    assert_int_equal(i->n_ctx_train, 2048);
    assert_int_equal(i->n_page, 5 * 128); /* of 1024: no more than can be used */
    assert_int_equal(i->block_size, 16);
    assert_int_equal(strlen(i->model_hash), 32);
    assert_true(i->n_param > 17000000 && i->n_param < 17200000);
    assert_true(i->kv_bytes_per_token % (8 * 144) == 0);
    assert_true(i->kv_pool_bytes >= i->kv_bytes_per_token * i->n_page * 16);
    assert_true(i->can_think && i->can_call_tools && i->has_fim);
    assert_false(i->always_thinks || i->thinks_by_default);
    hd_sampling own;
    hd_engine_sampling_init(e, &own);
    assert_true(own.temperature == 0.6f && own.top_p == 0.95f && own.top_k == 0);
    assert_int_equal(i->bos, 0);
    assert_int_equal(i->eos, 1);
    engine_close(e);
}

/* ---- text ---- */

static void text_tools(void **state) {
    (void)state;
    hd_engine_config c = config();
    hd_engine *e = engine(&c);
    hd_str text = hd_str_of("Hello, world! 你好 😀 <｜User｜>");
    hd_token_list a, b;
    assert_ok(hd_engine_tokenize(e, text, false, false, &a));
    hd_buf out;
    hd_buf_init(&out, 1000);
    hd_engine_detokenize(e, a.id, a.n, false, &out);
    assert_int_equal(out.len, text.len);
    assert_memory_equal(out.ptr, text.ptr, text.len);
    assert_ok(hd_engine_tokenize(e, text, true, true, &b));
    assert_int_equal(b.id[0], hd_engine_get_info(e)->bos);
    assert_true(b.n < a.n + 1); /* the marker is one token */
    assert_true(hd_engine_token_is_special(e, b.id[0]));
    assert_int_equal(hd_engine_token_bytes(e, 1000000).len, 0);
    assert_int_equal(hd_engine_token_bytes(e, -1).len, 0);
    hd_engine_free_ids(&a);
    /* A bos that is written is not doubled. */
    assert_ok(hd_engine_tokenize(e, hd_engine_token_bytes(e, b.id[0]), true, true, &a));
    assert_int_equal(a.n, 1);
    hd_engine_free_ids(&a);
    hd_engine_free_ids(&b);
    hd_chat_prompt in = {0};
    hd_chat_start start;
    assert_int_equal(hd_engine_chat(e, &in, &a, &start), HD_E_INVALID);
    hd_message m[2] = {{.role = HD_ROLE_SYSTEM, .content = hd_str_of("Be brief.")},
                       {.role = HD_ROLE_USER, .content = hd_str_of("Hello!")}};
    in = (hd_chat_prompt){.message = m, .n_message = 2, .thinking = true};
    assert_ok(hd_engine_chat(e, &in, &a, &start));
    assert_true(start.in_reasoning);
    hd_buf_clear(&out);
    hd_engine_detokenize(e, a.id, a.n, true, &out);
    assert_string_equal(out.ptr,
                        "<｜begin▁of▁sentence｜>Be brief.<｜User｜>Hello!<｜Assistant｜><think>");
    hd_engine_free_ids(&a);
    assert_ok(hd_engine_fim(e, hd_str_of("a"), hd_str_of("b"), &a));
    hd_buf_clear(&out);
    hd_engine_detokenize(e, a.id, a.n, true, &out);
    assert_string_equal(out.ptr,
                        "<｜begin▁of▁sentence｜><｜fim▁begin｜>a<｜fim▁hole｜>b<｜fim▁end｜>");
    hd_engine_free_ids(&a);
    hd_buf_fini(&out);
    engine_close(e);
}

/* ---- the thread ---- */

static void the_engine_thread_allocates_nothing(void **state) {
    (void)state;
    hd_engine_config c = config();
    c.enable_prefix_caching = true;
    c.max_tokens_in_paged_kv_cache = 720;
    c.max_model_len = 700;
    hd_engine *e = engine(&c);
    enum { n = 8 };
    gen *g = calloc(n, sizeof *g);
    rng.x = 31;
    gen_init(&g[0]);
    fill_prompt(e, &g[0], 5, 0);
    g[0].r.max_tokens = 1;
    gen_run(e, &g[0]); /* from its first event on the thread is watched */
    long before = test_allocs_count();
    hd_engine_stats s = {0};
    while (s.n_step < n_steps) {
        for (int i = 0; i < n; i++) {
            random_request(e, &g[i], 60, 60);
            gen_submit(e, &g[i]);
            if (i % 5 == 0) hd_request_cancel(e, g[i].id);
        }
        for (int i = 0; i < n; i++) gen_wait(&g[i]);
        hd_engine_get_stats(e, &s);
    }
    assert_int_equal(test_allocs_count() - before, 0);
    engine_close(e);
    free(g);
}

static void an_idle_engine_sleeps(void **state) {
    (void)state;
    hd_engine_config c = config();
    c.n_thread = 2;
    hd_engine *e = engine(&c);
    gen *g = calloc(1, sizeof *g);
    gen_init(g);
    fill_prompt(e, g, 5, 0);
    g->r.max_tokens = 5;
    gen_run(e, g);
    sleep_ms(50); /* the last turn ends after its last event */
    clock_t before = clock();
    sleep_ms(2000);
    assert_true((double)(clock() - before) / CLOCKS_PER_SEC < 0.02); /* 1 % of a core */
    engine_close(e);
    free(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(facts),
        cmocka_unit_test(text_tools),
        cmocka_unit_test(refusals_at_opening),
        cmocka_unit_test(an_answer_ends),
        cmocka_unit_test(the_context_and_its_limits),
        cmocka_unit_test(seeds),
        cmocka_unit_test(a_biased_token_and_a_ban),
        cmocka_unit_test(stop_strings_over_tokens),
        cmocka_unit_test(cancels),
        cmocka_unit_test(a_close_ends_what_runs),
        cmocka_unit_test(the_engine_thread_allocates_nothing),
        cmocka_unit_test(an_idle_engine_sleeps),
        cmocka_unit_test(every_split_of_a_prompt),
        cmocka_unit_test(a_folder_equals_its_gguf),
        cmocka_unit_test(the_oracle_too),
        cmocka_unit_test(equal_bits_in_every_setting),
        cmocka_unit_test(preempted_ones_go_on),
        cmocka_unit_test(a_crowd_equals_its_members),
    };
    hd_log_set_level(HD_LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
