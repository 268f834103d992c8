/* Determinism level 1 through the engine: tokens and log-probabilities of a request, bit for bit
 * the same alone and in company, whatever the budget of a step cuts prompts into; short prompts and
 * long ones, which have other kernels. HADAL_TEST_BACKEND=cuda: on the GPU, with and without
 * products that round. (What else may not matter on the cpu: test_engine.c.) */
#include "hadal.h"
#include "support/answer.h"
#include "support/backend.h"
#include "support/check.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

enum { N_REQUEST = 10, PROMPT_MAX = 420, N_NEW = 12 };
/* Below and above the length from which a prompt takes the expanded form (43 in this model). */
static const int lengths[N_REQUEST] = {3, 20, 42, 43, 44, 70, 150, 251, 400, 420};

static void await(test_answer *a) {
    test_answer_await(a);
    assert_int_equal(a->finish, HD_FINISH_LENGTH);
    assert_int_equal(a->n, N_NEW);
}

static void submit(hd_engine *e, int which, test_answer *a) {
    int32_t prompt[PROMPT_MAX];
    hd_request r;
    uint64_t id;
    for (int i = 0; i < lengths[which]; i++)
        prompt[i] = 100 + (31 * i + 7 * i * which + 11 * which) % 900;
    hd_request_init(&r);
    r.prompt = prompt;
    r.n_prompt = lengths[which];
    r.max_tokens = N_NEW;
    r.ignore_eos = true;
    r.sampling.temperature = 0;
    r.sampling.n_top_logprob = 0;
    test_answer_expect(a, &r);
    assert_ok(hd_request_submit(e, &r, &id));
}

static hd_engine *open_engine(int n_row_max) {
    hd_engine_config c;
    hd_engine *e;
    hd_engine_config_init(&c);
    c.backend = test_backend() ? test_backend() : "cpu";
    if (test_dev_config().compute == HD_COMPUTE_FLOAT32) c.dtype = "float32";
    c.kv_cache_dtype = "bf16";
    c.deterministic = true;
    c.max_num_seqs = N_REQUEST;
    c.max_num_batched_tokens = n_row_max;
    c.max_tokens_in_paged_kv_cache = 8192;
    c.enable_prefix_caching = false;
    assert_ok(hd_engine_open(&c, &e));
    return e;
}

static void the_same_bits(void **state) {
    (void)state;
    static const int budgets[] = {512, 2048, 100, 17};
    static test_answer alone[N_REQUEST], many[N_REQUEST];
    hd_engine *e = open_engine(budgets[0]);
    for (int i = 0; i < N_REQUEST; i++) {
        submit(e, i, &alone[i]);
        await(&alone[i]);
    }
    for (size_t k = 0; k < HD_COUNT_OF(budgets); k++) {
        if (k > 0) e = open_engine(budgets[k]);
        for (int i = 0; i < N_REQUEST; i++) submit(e, i, &many[i]);
        for (int i = 0; i < N_REQUEST; i++) {
            await(&many[i]);
            if (memcmp(many[i].token, alone[i].token, sizeof alone[i].token) != 0 ||
                memcmp(many[i].logprob, alone[i].logprob, sizeof alone[i].logprob) != 0)
                fail_msg("budget %d: the prompt of %d tokens: another answer", budgets[k],
                         lengths[i]);
        }
        hd_engine_close(e);
    }
}

int main(void) {
    hd_log_set_level(HD_LOG_WARN);
    test_need_backend();
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
