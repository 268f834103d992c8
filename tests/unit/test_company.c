/* Determinism level 1 through the engine: tokens and log-probabilities of a request, bit for bit
 * the same alone and in company, whatever the budget of a step cuts prompts into; short prompts and
 * long ones, which have other kernels. HADAL_TEST_BACKEND=cuda: on the GPU, with and without
 * products that round. (What else may not matter on the cpu: test_engine.c.) */
#include "hadal.h"
#include "support/backend.h"
#include "support/check.h"

#include "base/log.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { N_REQUEST = 10, PROMPT_MAX = 420, N_NEW = 12 };
/* Below and above the length from which a prompt takes the expanded form (43 in this model). */
static const int lengths[N_REQUEST] = {3, 20, 42, 43, 44, 70, 150, 251, 400, 420};

typedef struct answer {
    int32_t prompt[PROMPT_MAX];
    int32_t token[N_NEW];
    float logprob[N_NEW];
    int n;
    enum hd_finish finish;
    bool is_done;
} answer;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t done = PTHREAD_COND_INITIALIZER;

static bool receive(void *user, const hd_event *ev) {
    answer *a = user;
    if (ev->token >= 0 && a->n < N_NEW) {
        a->logprob[a->n] = ev->logprob;
        a->token[a->n++] = ev->token;
    }
    if (ev->finish == HD_FINISH_NONE) return true;
    pthread_mutex_lock(&lock);
    a->finish = ev->finish;
    a->is_done = true;
    pthread_cond_broadcast(&done);
    pthread_mutex_unlock(&lock);
    return true;
}

static void await(answer *a) {
    pthread_mutex_lock(&lock);
    while (!a->is_done) pthread_cond_wait(&done, &lock);
    pthread_mutex_unlock(&lock);
    assert_int_equal(a->finish, HD_FINISH_LENGTH);
    assert_int_equal(a->n, N_NEW);
}

static void submit(hd_engine *e, int which, answer *a) {
    hd_request r;
    uint64_t id;
    *a = (answer){0};
    for (int i = 0; i < lengths[which]; i++)
        a->prompt[i] = 100 + (31 * i + 7 * i * which + 11 * which) % 900;
    hd_request_init(&r);
    r.prompt = a->prompt;
    r.n_prompt = lengths[which];
    r.max_tokens = N_NEW;
    r.ignore_eos = true;
    r.sampling.temperature = 0;
    r.sampling.n_top_logprob = 0;
    r.on_event = receive;
    r.user = a;
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
    static answer alone[N_REQUEST], many[N_REQUEST];
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
