/* Numbers that are not finite fail their request alone, with HD_E_NUMERIC: in a prompt, and in a
 * row that decodes among others. The others' answers stay the same, and so do those of requests
 * that get the failed one's pages next. The model is the embedded one with an infinity in the
 * embedding of one token. HADAL_TEST_BACKEND=cuda: on the GPU. */
#include "hadal.h"
#include "support/answer.h"
#include "support/backend.h"
#include "support/check.h"
#include "support/files.h"

#include "base/log.h"
#include "file/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BAD_TOKEN = 777, POOL_TOK = 1024, N_GOOD = 7, N_PROMPT = 30, N_NEW = 24 };

typedef struct asked {
    int32_t prompt[POOL_TOK];
    test_answer answer;
} asked;

static void submit(hd_engine *e, asked *a, int n_prompt, const hd_logit_bias *bias) {
    hd_request r;
    uint64_t id;
    hd_request_init(&r);
    r.prompt = a->prompt;
    r.n_prompt = n_prompt;
    r.max_tokens = N_NEW;
    r.ignore_eos = true;
    r.sampling.temperature = 0;
    r.sampling.n_top_logprob = test_backend() ? -1 : 0; /* a GPU draws the tokens itself */
    r.sampling.bias = bias;
    r.sampling.n_bias = bias != NULL;
    test_answer_expect(&a->answer, &r);
    assert_ok(hd_request_submit(e, &r, &id));
}

/* A prompt that differs by `which` from its first token on. */
static void fill(asked *a, int n_prompt, int which) {
    for (int i = 0; i < n_prompt; i++) a->prompt[i] = 100 + (37 * i + 11 * which) % 600;
}

/* The embedded model's file with the infinity; its path. */
static const char *plant(void) {
    const char *path = test_join(test_dir, "bad.gguf");
    FILE *f = fopen(test_path("models/mini/mini-bf16.gguf"), "rb");
    hd_checkpoint *c;
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    size_t n_byte = (size_t)ftell(f);
    unsigned char *image = malloc(n_byte);
    rewind(f);
    assert_int_equal(fread(image, 1, n_byte, f), n_byte);
    fclose(f);
    assert_ok(hd_checkpoint_open_memory(image, n_byte, "mini", &c));
    const hd_file_tensor *t = hd_checkpoint_find(c, "token_embd.weight");
    assert_true(t && t->format == HD_BF16 && t->ne[1] > BAD_TOKEN);
    size_t at = (size_t)((const unsigned char *)t->data - image);
    at += (size_t)BAD_TOKEN * (size_t)t->ne[0] * sizeof(uint16_t);
    image[at] = 0x80, image[at + 1] = 0x7F; /* +inf */
    hd_checkpoint_close(c);
    test_write_file(path, image, n_byte);
    free(image);
    return path;
}

static hd_engine *open_engine(const char *model) {
    hd_engine_config c;
    hd_engine *e;
    hd_engine_config_init(&c);
    c.model = model;
    c.backend = test_backend() ? test_backend() : "cpu";
    if (test_dev_config().compute == HD_COMPUTE_FLOAT32) c.dtype = "float32";
    c.deterministic = test_is_deterministic();
    c.n_thread = 1;
    c.max_num_seqs = N_GOOD + 1;
    c.max_tokens_in_paged_kv_cache = POOL_TOK;
    c.enable_prefix_caching = false; /* so that pages go from hand to hand */
    assert_ok(hd_engine_open(&c, &e));
    return e;
}

static void check_good(const asked *want, asked *got) {
    for (int i = 0; i < N_GOOD; i++) {
        const test_answer *w = &want[i].answer, *g = &got[i].answer;
        test_answer_await(&got[i].answer);
        assert_int_equal(g->finish, HD_FINISH_LENGTH);
        assert_int_equal(g->n, N_NEW);
        if (!test_is_deterministic()) continue; /* tokens may turn with the batch */
        assert_memory_equal(g->token, w->token, sizeof w->token);
        if (!test_backend()) assert_memory_equal(g->logprob, w->logprob, sizeof w->logprob);
    }
}

static void check_bad(test_answer *bad, int n_token) {
    test_answer_await(bad);
    assert_int_equal(bad->finish, HD_FINISH_ERROR);
    assert_int_equal(bad->status, HD_E_NUMERIC);
    assert_int_equal(bad->n, n_token);
}

static void submit_good(hd_engine *e, asked *a) {
    for (int i = 0; i < N_GOOD; i++) {
        fill(&a[i], N_PROMPT, i);
        submit(e, &a[i], N_PROMPT, NULL);
    }
}

static void fails_alone(void **state) {
    (void)state;
    static asked want[N_GOOD], got[N_GOOD], bad;
    static const hd_logit_bias to_bad = {BAD_TOKEN, 100};
    hd_engine *e = open_engine(plant());
    submit_good(e, want);
    check_good(want, want);

    /* The last token of a prompt. */
    fill(&bad, N_PROMPT, N_GOOD);
    bad.prompt[N_PROMPT - 1] = BAD_TOKEN;
    submit_good(e, got);
    submit(e, &bad, N_PROMPT, NULL);
    check_bad(&bad.answer, 0);
    check_good(want, got);

    /* A generated token. */
    fill(&bad, N_PROMPT, N_GOOD);
    submit_good(e, got);
    submit(e, &bad, N_PROMPT, &to_bad);
    check_bad(&bad.answer, 1);
    check_good(want, got);

    /* A prompt that leaves nearly every page full of what is not finite. */
    int n_long = POOL_TOK - 2 * N_NEW;
    fill(&bad, n_long, N_GOOD);
    bad.prompt[0] = BAD_TOKEN;
    submit(e, &bad, n_long, NULL);
    check_bad(&bad.answer, 0);
    submit_good(e, got);
    check_good(want, got);
    hd_engine_close(e);
}

int main(void) {
    hd_log_set_level(HD_LOG_WARN);
    test_need_backend();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(fails_alone, test_dir_make, test_dir_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
