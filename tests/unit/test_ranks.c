/* The mini model over ranks through the engine: the same greedy tokens as one rank, the same bits
 * in every run and beside others, and what happens when a rank breaks. HADAL_TEST_BACKEND=cuda: on
 * GPUs, one a rank, of the HADAL_TEST_GPUS there are. */
#include "support/answer.h"
#include "support/backend.h"
#include "support/check.h"

#include "base/log.h"
#include "engine/impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_PROMPT = 4, N_NEW = 16 };

static const char *const texts[N_PROMPT] = {
    "Once upon a time, in a small village, there lived a kind girl named Mia.",
    "The old king called his three sons and said,",
    "What is 12 + 30? Count from 1 to 20. Copy this text: small",
    "\"Where are you going?\" asked the wolf. \"To my grandmother,\" she said.",
};

static hd_status submit(hd_engine *e, int which, test_answer *a) {
    hd_request r;
    hd_token_list prompt;
    uint64_t id;
    hd_request_init(&r);
    assert_ok(hd_engine_tokenize(e, hd_str_of(texts[which]), false, true, &prompt));
    r.prompt = prompt.id;
    r.n_prompt = (int)prompt.n;
    r.max_tokens = N_NEW;
    r.sampling.temperature = 0;
    r.sampling.n_top_logprob = 1;
    r.ignore_eos = true;
    test_answer_expect(a, &r);
    hd_status s = hd_request_submit(e, &r, &id);
    hd_engine_free_ids(&prompt);
    return s;
}

/* False, told: there are too few GPUs. */
static bool has_devices(int n_rank) {
    const char *gpus = getenv("HADAL_TEST_GPUS");
    int n = gpus ? (int)strtol(gpus, NULL, 10) : 1;
    if (!test_backend() || n >= n_rank) return true;
    printf("skipped: %d ranks: HADAL_TEST_GPUS says %d\n", n_rank, n);
    return false;
}

static hd_engine *open_engine(int n_rank, bool is_expert_parallel) {
    hd_engine_config c;
    hd_engine *e;
    hd_engine_config_init(&c);
    c.model = test_path("models/mini/mini-bf16.gguf");
    c.backend = test_backend() ? test_backend() : "cpu";
    c.dtype = "float32";
    c.deterministic = true;
    c.max_tokens_in_paged_kv_cache = 4096;
    c.n_thread = n_rank;
    c.tensor_parallel_size = n_rank;
    c.enable_expert_parallel = is_expert_parallel;
    assert_ok(hd_engine_open(&c, &e));
    return e;
}

/* All at once, or one after another. */
static void answer_all(hd_engine *e, bool is_together, test_answer a[N_PROMPT]) {
    for (int i = 0; i < N_PROMPT; i++) {
        assert_ok(submit(e, i, &a[i]));
        if (!is_together) test_answer_await(&a[i]);
    }
    for (int i = 0; i < N_PROMPT; i++) {
        test_answer_await(&a[i]);
        assert_int_equal(a[i].finish, HD_FINISH_LENGTH);
        assert_int_equal(a[i].n, N_NEW);
    }
}

static void the_same_tokens(void **state) {
    (void)state;
    static const struct {
        int n_rank;
        bool is_expert_parallel;
    } way[] = {{2, false}, {2, true}, {4, true}};
    static test_answer one[N_PROMPT], many[N_PROMPT], alone[N_PROMPT];
    hd_engine *e = open_engine(1, false);
    hd_engine_info whole = *hd_engine_get_info(e);
    answer_all(e, true, one);
    hd_engine_close(e);
    for (size_t w = 0; w < HD_COUNT_OF(way); w++) {
        double worst = 0;
        if (!has_devices(way[w].n_rank)) continue;
        e = open_engine(way[w].n_rank, way[w].is_expert_parallel);
        const hd_engine_info *i = hd_engine_get_info(e);
        assert_int_equal(i->n_rank, way[w].n_rank);
        assert_true(i->weight_bytes > whole.weight_bytes &&
                    i->weight_bytes < way[w].n_rank * whole.weight_bytes);
        answer_all(e, true, many);
        answer_all(e, false, alone);
        for (int k = 0; k < N_PROMPT; k++) {
            assert_memory_equal(many[k].token, one[k].token, sizeof one[k].token);
            assert_memory_equal(alone[k].token, many[k].token, sizeof one[k].token);
            assert_memory_equal(alone[k].logprob, many[k].logprob, sizeof one[k].logprob);
            for (int t = 0; t < N_NEW; t++)
                worst = fmax(worst, fabs((double)many[k].logprob[t] - (double)one[k].logprob[t]));
        }
        print_message("%d ranks%s: logprobs differ by %.2g at most\n", way[w].n_rank,
                      way[w].is_expert_parallel ? ", experts by rank" : "", worst);
        assert_true(worst < 1e-3);
        hd_engine_close(e);
    }
}

/* What runs ends with the reason, and nothing is accepted any more. */
static void a_rank_that_breaks(void **state) {
    (void)state;
    test_answer a;
    if (!has_devices(2)) skip();
    hd_engine *e = open_engine(2, false);
    assert_ok(submit(e, 0, &a));
    test_answer_await(&a);
    (void)HD_FAIL(DEVICE, "somebody pulled the plug");
    hd_comm_fail(hd_ranks_comm(e->ranks));
    assert_ok(submit(e, 1, &a));
    test_answer_await(&a);
    assert_int_equal(a.finish, HD_FINISH_ERROR);
    assert_non_null(strstr(a.error, "somebody pulled the plug"));
    hd_engine_stats s;
    hd_engine_get_stats(e, &s);
    assert_true(s.is_failed);
    hd_engine_close(e);
}

static void impossible_ranks(void **state) {
    (void)state;
    static const struct {
        int n_rank;
        const char *says;
    } row[] = {{0, "expected 1 to 64, found 0"},
               {65, "expected 1 to 64, found 65"},
               {7, "do not divide into equal parts"}};
    for (size_t i = 0; i < HD_COUNT_OF(row); i++) {
        hd_engine_config c;
        hd_engine *e;
        hd_engine_config_init(&c);
        c.backend = "cpu";
        c.model = test_path("models/mini/mini-bf16.gguf");
        c.tensor_parallel_size = row[i].n_rank;
        assert_int_equal(hd_engine_open(&c, &e), HD_E_INVALID);
        if (!strstr(hd_error_text(), row[i].says)) fail_msg("%s", hd_error_text());
    }
    hd_engine_config c;
    hd_engine *e;
    hd_engine_config_init(&c);
    c.backend = "cpu";
    c.model = test_path("models/mini/mini-bf16.gguf");
    c.tensor_parallel_size = 2;
    c.offload_plan = "layers.txt";
    assert_int_equal(hd_engine_open(&c, &e), HD_E_INVALID);
    assert_non_null(strstr(hd_error_text(), "offload_plan"));
}

int main(void) {
    hd_log_set_level(HD_LOG_WARN);
    test_need_backend();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_tokens),
        cmocka_unit_test(a_rank_that_breaks),
        cmocka_unit_test(impossible_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
