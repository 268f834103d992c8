/* Validation of requests, sizing of the engine, and free memory from planted files. */
#include "engine/memory.h"
#include "engine/request.h"
#include "engine/sizes.h"
#include "support/check.h"
#include "support/files.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool ignore(void *user, const hd_event *ev) {
    (void)user;
    (void)ev;
    return true;
}

enum { n_vocab = 100, n_ctx = 50 };
static int32_t prompt[60];

static hd_request good(void) {
    hd_request r;
    hd_request_init(&r);
    r.prompt = prompt;
    r.n_prompt = 5;
    r.on_event = ignore;
    return r;
}

/* The error text holds the field and the value found. */
static void check_refused(const hd_request *r, hd_status status, const char *field,
                          const char *found) {
    hd_status s = hd_request_check(r, n_vocab, n_ctx);
    if (s != status) fail_msg("%s %s: status %s", field, found, hd_status_name(s));
    if (!strstr(hd_error_text(), field) || !strstr(hd_error_text(), found))
        fail_msg("expected %s and %s in: %s", field, found, hd_error_text());
}

static void every_field_is_checked(void **state) {
    (void)state;
    hd_request r = good();
    assert_ok(hd_request_check(&r, n_vocab, n_ctx));
#define REFUSED(change, field, found)                                                              \
    r = good();                                                                                    \
    change;                                                                                        \
    check_refused(&r, HD_E_INVALID, field, found)
    REFUSED(r.n_prompt = 0, "prompt", "none");
    REFUSED(r.sampling.temperature = -0.5f, "temperature", "-0.5");
    REFUSED(r.sampling.temperature = NAN, "temperature", "nan");
    REFUSED(r.sampling.temperature = INFINITY, "temperature", "inf");
    REFUSED(r.sampling.top_k = -1, "top_k", "-1");
    REFUSED(r.sampling.top_p = 1.5f, "top_p", "1.5");
    REFUSED(r.sampling.top_p = -0.5f, "top_p", "-0.5");
    REFUSED(r.sampling.top_p = NAN, "top_p", "nan");
    REFUSED(r.sampling.min_p = 2, "min_p", "2");
    REFUSED(r.sampling.presence_penalty = 2.5f, "presence_penalty", "2.5");
    REFUSED(r.sampling.frequency_penalty = -2.5f, "frequency_penalty", "-2.5");
    REFUSED(r.sampling.repetition_penalty = 0, "repetition_penalty", "0");
    REFUSED(r.sampling.repetition_penalty = 11, "repetition_penalty", "11");
    REFUSED(r.sampling.n_top_logprob = 21, "top_logprobs", "21");
    REFUSED(r.max_tokens = -3, "max_tokens", "-3");
    REFUSED(r.min_tokens = -3, "min_tokens", "-3");
    REFUSED((r.max_tokens = 4, r.min_tokens = 5), "min_tokens", "5");
    hd_logit_bias bias[2] = {{3, 1}, {n_vocab, 1}};
    REFUSED((r.sampling.bias = bias, r.sampling.n_bias = 2), "logit_bias", "100");
    bias[1] = (hd_logit_bias){4, 101};
    REFUSED((r.sampling.bias = bias, r.sampling.n_bias = 2), "logit_bias", "101");
    bias[1] = (hd_logit_bias){4, NAN};
    REFUSED((r.sampling.bias = bias, r.sampling.n_bias = 2), "logit_bias", "nan");
    REFUSED((r.sampling.bias = bias, r.sampling.n_bias = HD_BIAS_MAX + 1), "logit_bias", "1025");
    hd_str stop[HD_STOP_MAX + 1] = {{"a", 1}, {"", 0}};
    REFUSED((r.stop = stop, r.n_stop = 2), "stop[1]", "empty");
    REFUSED((r.stop = stop, r.n_stop = HD_STOP_MAX + 1), "stop", "17");
    int32_t stop_token[HD_STOP_TOKEN_MAX + 1] = {1, -1};
    REFUSED((r.stop_token = stop_token, r.n_stop_token = 2), "stop_token_ids", "-1");
    REFUSED((r.stop_token = stop_token, r.n_stop_token = 65), "stop_token_ids", "65");
    prompt[3] = n_vocab;
    REFUSED((void)0, "prompt[3]", "100");
    prompt[3] = -1;
    REFUSED((void)0, "prompt[3]", "-1");
    prompt[3] = 0;
#undef REFUSED
    r = good();
    r.n_prompt = n_ctx;
    check_refused(&r, HD_E_CONTEXT, "50", "prompt");
    r.n_prompt = n_ctx + 7;
    check_refused(&r, HD_E_CONTEXT, "57", "50");
}

static void edges_are_allowed(void **state) {
    (void)state;
    hd_request r = good();
    hd_logit_bias bias[2] = {{n_vocab - 1, -100}, {0, -INFINITY}};
    r.n_prompt = n_ctx - 1;
    r.max_tokens = 100000; /* clamped to the context later */
    r.sampling = (hd_sampling){.temperature = 1e30f,
                               .top_k = INT_MAX,
                               .top_p = 0,
                               .min_p = 1,
                               .presence_penalty = -2,
                               .frequency_penalty = 2,
                               .repetition_penalty = 1e-6f,
                               .n_top_logprob = 20,
                               .bias = bias,
                               .n_bias = 2};
    assert_ok(hd_request_check(&r, n_vocab, n_ctx));
}

/* ---- sizes ---- */

static hd_hparams v3_shape(void) {
    return (hd_hparams){.n_layer = 2,
                        .n_ctx = 4096,
                        .d_model = 64,
                        .n_c = 512,
                        .n_rope = 64,
                        .n_nope = 128,
                        .n_v = 128,
                        .n_head = 128};
}

static void expansion_pays_from_171_tokens(void **state) {
    (void)state;
    hd_hparams hp = v3_shape();
    assert_int_equal(hd_engine_expand_min(&hp), 171);
    hp = (hd_hparams){.n_c = 128, .n_rope = 16, .n_nope = 32, .n_v = 32}; /* mini */
    assert_int_equal(hd_engine_expand_min(&hp), 43);
    hp = (hd_hparams){.n_c = 16, .n_rope = 16, .n_nope = 32, .n_v = 32};
    assert_int_equal(hd_engine_expand_min(&hp), INT_MAX);
    hd_hparams gqa = {.n_rope = 128, .n_v = 128, .n_head_kv = 8};
    assert_int_equal(hd_engine_expand_min(&gqa), INT_MAX);
}

static void windows_and_pages(void **state) {
    (void)state;
    hd_hparams hp = v3_shape();
    const uint64_t tok = hd_hparams_kv_bytes(&hp, HD_KV_F16); /* of one token */
    const struct {
        int asked, n_seq;
        int64_t pool_tok;
        uint64_t free_tok; /* free memory in tokens' KV, at a fraction of 0.5 */
        int n_ctx, n_page; /* expected; n_ctx 0: refused */
    } row[] = {
        {0, 4, 0, 1 << 20, 4096, 4 * 256},     /* more than can be used: capped */
        {100, 4, 0, 1 << 20, 100, 4 * 7},      /* asked for less */
        {9999, 4, 0, 1 << 20, 4096, 1024},     /* the model's positions bound it */
        {0, 4, 0, 2000, 1000 - 1000 % 16, 62}, /* cut to what fits */
        {1000, 4, 0, 2000, 0, 0},              /* asked for, does not fit: refused */
        {992, 4, 0, 2000, 992, 62},
        {0, 4, 512, 1 << 20, 512, 32},
        {0, 4, 520, 0, 512, 32},
        {513, 4, 520, 0, 0, 0},
        {0, 4, 15, 1 << 20, 0, 0}, /* not one page */
        {0, 4, 0, 0, 0, 0},        /* no memory */
        {1, 4, 0, 1 << 20, 0, 0},  /* no room for an answer */
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        hd_engine_config c;
        hd_engine_config_init(&c);
        c.max_model_len = row[i].asked;
        c.max_num_seqs = row[i].n_seq;
        c.max_tokens_in_paged_kv_cache = row[i].pool_tok;
        hd_engine_sizes z;
        hd_status s = hd_engine_size(&c, &hp, HD_KV_F16, row[i].free_tok * tok, &z);
        if (row[i].n_ctx == 0) {
            if (s != HD_E_CONTEXT) fail_msg("row %zu: %s", i, hd_status_name(s));
            continue;
        }
        assert_ok(s);
        if (z.n_ctx != row[i].n_ctx || z.n_page != row[i].n_page)
            fail_msg("row %zu: context %d, pages %d", i, z.n_ctx, z.n_page);
    }
}

static void configuration_is_checked(void **state) {
    (void)state;
    hd_hparams hp = v3_shape();
    hd_engine_config c;
    hd_engine_sizes z;
#define REFUSED(change, field)                                                                     \
    hd_engine_config_init(&c);                                                                     \
    change;                                                                                        \
    assert_int_equal(hd_engine_size(&c, &hp, HD_KV_F16, 1 << 30, &z), HD_E_INVALID);               \
    assert_non_null(strstr(hd_error_text(), field))
    REFUSED(c.max_model_len = -1, "max_model_len");
    REFUSED(c.max_num_seqs = 0, "max_num_seqs");
    REFUSED(c.max_num_batched_tokens = 0, "max_num_batched_tokens");
    REFUSED(c.context_chunk_size = -1, "context_chunk_size");
    REFUSED(c.block_size = 0, "block_size");
    REFUSED(c.max_tokens_in_paged_kv_cache = -5, "max_tokens_in_paged_kv_cache");
    REFUSED(c.kv_cache_free_mem_fraction = 0, "kv_cache_free_mem_fraction");
    REFUSED(c.kv_cache_free_mem_fraction = NAN, "kv_cache_free_mem_fraction");
    REFUSED(c.max_num_queued_reqs = 0, "max_num_queued_reqs");
    REFUSED(c.max_num_queued_tokens = -1, "max_num_queued_tokens");
    REFUSED(c.queue_timeout_s = -1, "queue_timeout_s");
    hp.n_ctx = 1 << 24;
    hp.n_layer = hp.n_c = hp.n_rope = 1;
    REFUSED((c.max_num_seqs = 4096, c.block_size = 1), "block_size");
#undef REFUSED
}

/* ---- memory ---- */

static char *root;

static void plant(const char *path, const char *text) {
    char full[1024];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *c = full + strlen(root) + 1; (c = strchr(c, '/')); c++) {
        *c = 0;
        mkdir(full, 0700);
        *c = '/';
    }
    FILE *f = fopen(full, "w");
    if (!f) fail_msg("cannot write %s", full);
    fputs(text, f);
    fclose(f);
}

static void free_memory(void **state) {
    (void)state;
    root = test_temp_dir();
    assert_int_equal(hd_memory_free_bytes(root), 0);
    plant("/proc/meminfo", "MemTotal: 100000 kB\nMemFree: 1 kB\nMemAvailable:    5000 kB\n");
    assert_int_equal(hd_memory_free_bytes(root), 5000 * 1024);
    plant("/proc/self/cgroup", "0::/a/b\n"); /* v2: the tightest group above counts */
    plant("/sys/fs/cgroup/a/memory.max", "3000000\n");
    plant("/sys/fs/cgroup/a/memory.current", "1500000\n");
    plant("/sys/fs/cgroup/a/memory.stat", "anon 7\ninactive_file 500000\n");
    plant("/sys/fs/cgroup/a/b/memory.max", "max\n");
    plant("/sys/fs/cgroup/a/b/memory.current", "1000\n");
    assert_int_equal(hd_memory_free_bytes(root), 2000000);
    plant("/sys/fs/cgroup/memory.max", "1000\n"); /* a container's root */
    plant("/sys/fs/cgroup/memory.current", "2000\n");
    assert_int_equal(hd_memory_free_bytes(root), 0);
    plant("/proc/self/cgroup", "4:memory:/x\n3:cpu:/y\n");
    plant("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "700000\n");
    plant("/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "300000\n");
    assert_int_equal(hd_memory_free_bytes(root), 400000);
    assert_true(hd_memory_free_bytes("") > 0);
    test_remove_dir(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field_is_checked),         cmocka_unit_test(edges_are_allowed),
        cmocka_unit_test(expansion_pays_from_171_tokens), cmocka_unit_test(windows_and_pages),
        cmocka_unit_test(configuration_is_checked),       cmocka_unit_test(free_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
