/* The loop a step behind a device with memory of its own, over real models: requests get the tokens
 * that they get from a device that computes when it is told, whoever they share steps with, also
 * where prompts are computed some layers at a time, and the device allocates nothing for them. */
#include "support/check.h"
#include "support/far_dev.h"
#include "support/rng.h"
#include "support/slow_prompts.h"

#include "engine/loop.h"
#include "model/model.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_REQUEST = 40, N_NEW_MAX = 24, N_PAGE = 64, PAGE_TOK = 1, N_SEQ = 5, N_CTX = 40 };

typedef struct answer {
    int32_t prompt[N_CTX], token[N_NEW_MAX];
    float logprob[N_NEW_MAX];
    int n_prompt, n_token, n_end, finish;
    uint64_t id;
} answer;

typedef struct rig {
    hd_checkpoint *checkpoint;
    hd_dev dev;
    hd_model *model;
    hd_loop *loop;
    hd_profile *profile; /* NULL: steps' times are not known */
    int64_t now_ns;
    int n_slice;              /* steps of some layers so far */
    int n_resume, last_chunk; /* of them those of a chunk that goes on after another one */
    answer answer[N_REQUEST];
} rig;

static int64_t virtual_now(void *ctx) { return ++*(int64_t *)ctx; }

/* On a thread of its own, as in the engine: another stack, whose bytes must not matter. */
static void *rehearse(void *model) {
    return hd_model_rehearse(model, NULL, NULL) == HD_OK ? model : NULL;
}

static hd_status enqueue(void *ctx, const hd_batch *b) {
    rig *g = ctx;
    if (b->layer1 > 0) {
        g->n_slice++;
        g->n_resume += b->layer0 > 0 && b->chunk_ix != g->last_chunk;
        g->last_chunk = b->chunk_ix;
    }
    return hd_model_enqueue(g->model, b);
}
static hd_status fetch(void *ctx, hd_step_out *out) {
    hd_model_out o;
    HD_TRY(hd_model_fetch(((rig *)ctx)->model, &o));
    *out = (hd_step_out){.token = o.token, .logits = o.logits};
    return HD_OK;
}

static void open_rig(rig *g, const char *family, hd_dev dev, hd_profile *profile) {
    static const int32_t no_token[3] = {0, 7, 255}, end[1] = {5};
    const hd_model_options o = {.n_row_max = 16,
                                .n_seq_max = N_SEQ,
                                .n_out_max = N_SEQ,
                                .n_pos_max = N_CTX,
                                .n_page = N_PAGE,
                                .page_tok = PAGE_TOK,
                                .kv_type = HD_KV_F32,
                                .no_token = no_token,
                                .n_no_token = 3};
    char path[128];
    *g = (rig){.dev = dev, .profile = profile};
    snprintf(path, sizeof path, "tests/golden/families/%s", family);
    assert_ok(hd_checkpoint_open(test_path(path), &g->checkpoint));
    assert_ok(hd_model_open(g->checkpoint, &g->dev, &o, NULL, NULL, &g->model));
    pthread_t thread;
    void *done;
    assert_int_equal(pthread_create(&thread, NULL, rehearse, g->model), 0);
    assert_int_equal(pthread_join(thread, &done), 0);
    assert_ptr_equal(done, g->model);
    hd_loop_config c = {.sched = {.n_seq_max = N_SEQ,
                                  .n_row_max = 16,
                                  .chunked = true,
                                  .profile = profile,
                                  .n_layer = profile ? hd_model_hparams(g->model)->n_layer : 0,
                                  .n_pos_max = N_CTX,
                                  .n_page = N_PAGE,
                                  .page_tok = PAGE_TOK,
                                  .expand_min = 8,
                                  .prefix_cache = true,
                                  .compact_page_max = 16},
                        .n_queue_max = N_REQUEST,
                        .clock = {.now_ns = virtual_now, .ctx = &g->now_ns},
                        .stepper = {.enqueue = enqueue,
                                    .fetch = fetch,
                                    .is_async = hd_dev_has_memory(&g->dev),
                                    .ctx = g},
                        .n_vocab = hd_model_hparams(g->model)->n_vocab,
                        .no_token = no_token,
                        .n_no_token = 3,
                        .end_token = end,
                        .n_end_token = 1,
                        .seed = 3};
    g->loop = hd_loop_new(&c);
}

static void close_rig(rig *g) {
    hd_loop_free(g->loop);
    hd_profile_free(g->profile);
    hd_model_close(g->model);
    hd_dev_close(&g->dev);
    hd_checkpoint_close(g->checkpoint);
}

static bool on_event(void *user, const hd_event *ev) {
    answer *a = user;
    if (ev->token >= 0) {
        assert_true(a->n_token < N_NEW_MAX);
        a->logprob[a->n_token] = ev->logprob;
        a->token[a->n_token++] = ev->token;
    }
    if (ev->finish != HD_FINISH_NONE) a->n_end++, a->finish = (int)ev->finish;
    return true;
}

/* All kinds: greedy, drawn, cut, with penalties, log-probabilities, a minimum, stop tokens. */
static void submit(rig *g, int i) {
    static const int32_t stop[2] = {11, 100};
    answer *a = &g->answer[i];
    test_rng r = {.x = (uint64_t)(i + 1) * 0x9E3779B97F4A7C15u};
    hd_request q;
    hd_request_init(&q);
    a->n_prompt = rng_int(&r, 1, N_CTX - N_NEW_MAX);
    for (int k = 0; k < a->n_prompt; k++) a->prompt[k] = i % 3 ? rng_int(&r, 0, 299) : k;
    q.prompt = a->prompt;
    q.n_prompt = a->n_prompt;
    q.max_tokens = rng_int(&r, 1, N_NEW_MAX);
    q.min_tokens = i % 7 == 3 ? 4 : 0;
    q.sampling.temperature = i % 4 == 0 ? 0 : 1.5f;
    q.sampling.has_seed = true;
    q.sampling.seed = (uint64_t)i;
    if (i % 4 == 2) q.sampling.top_k = 40, q.sampling.top_p = 0.9f;
    if (i % 5 == 4) q.sampling.repetition_penalty = 1.3f;
    if (i % 6 == 5) q.sampling.n_top_logprob = 0;
    q.stop_token = stop;
    q.n_stop_token = i % 2 ? 2 : 0;
    /* More and more urgent. */
    q.service = (enum hd_service)(HD_SERVICE_COUNT - 1 - i * HD_SERVICE_COUNT / N_REQUEST);
    q.on_event = on_event;
    q.user = a;
    assert_ok(hd_loop_submit(g->loop, &q, &a->id));
}

static void run(rig *g, bool alone) {
    for (int i = 0; i < N_REQUEST; i++) {
        submit(g, i);
        if (i % 3 == 2) hd_loop_turn(g->loop);
        while (alone && hd_loop_turn(g->loop)) continue;
    }
    while (hd_loop_turn(g->loop)) hd_loop_check(g->loop);
}

static void the_same_answers(bool has_slices) {
    static const char *const families[] = {"v3", "v2-lite-yarn", "llama"};
    static rig alone, behind;
    uint64_t n_page_moved = 0; /* while their requests ran */
    int n_resume = 0;
    for (size_t f = 0; f < HD_COUNT_OF(families); f++) {
        hd_dev ref;
        assert_ok(hd_dev_open("ref", NULL, &ref));
        open_rig(&alone, families[f], ref, NULL);
        run(&alone, true);
        open_rig(&behind, families[f], test_open_far(),
                 has_slices ? test_slow_prompts(N_SEQ, 16) : NULL);
        uint64_t n_alloc = behind.dev.ops->n_alloc(behind.dev.ctx);
        assert_true(n_alloc > 0);
        run(&behind, false);
        assert_int_equal(behind.dev.ops->n_alloc(behind.dev.ctx), n_alloc);
        hd_engine_stats s;
        hd_loop_get_stats(behind.loop, &s);
        assert_true(s.n_preempt > 0);
        n_page_moved += s.n_page_moved;
        n_resume += behind.n_resume;
        int n_kind[HD_FINISH_ERROR + 1] = {0};
        for (int i = 0; i < N_REQUEST; i++) {
            const answer *a = &alone.answer[i], *b = &behind.answer[i];
            assert_int_equal(b->n_end, 1);
            assert_int_equal(b->finish, a->finish);
            assert_int_equal(b->n_token, a->n_token);
            assert_memory_equal(b->token, a->token, sizeof a->token);
            assert_memory_equal(b->logprob, a->logprob, sizeof a->logprob);
            for (int k = 0; k < b->n_token; k++)
                assert_true(b->token[k] != 0 && b->token[k] != 7 && b->token[k] != 255);
            n_kind[a->finish]++;
        }
        assert_true(n_kind[HD_FINISH_LENGTH] > 0);
        assert_true(has_slices ? behind.n_slice > N_REQUEST : behind.n_slice == 0);
        close_rig(&alone);
        close_rig(&behind);
    }
    assert_true(n_page_moved > 0);
    assert_true(has_slices ? n_resume > 0 : n_resume == 0);
}

static void overlap_changes_no_token(void **state) {
    (void)state;
    the_same_answers(false);
}

static void layers_in_several_steps_change_no_token(void **state) {
    (void)state;
    the_same_answers(true);
}

/* A device that breaks while a step is under way ends every request with that. */
static void break_device(bool has_slices) {
    static rig g;
    open_rig(&g, "v3", test_open_far(), has_slices ? test_slow_prompts(N_SEQ, 16) : NULL);
    for (int i = 0; i < N_REQUEST; i++) submit(&g, i);
    for (int i = 0; i < 3 || (has_slices && g.n_slice % 3 != 1); i++) hd_loop_turn(g.loop);
    test_break_far();
    while (hd_loop_turn(g.loop)) hd_loop_check(g.loop);
    int n_error = 0;
    for (int i = 0; i < N_REQUEST; i++) {
        assert_int_equal(g.answer[i].n_end, 1);
        n_error += g.answer[i].finish == HD_FINISH_ERROR;
    }
    assert_true(n_error > N_REQUEST / 2);
    close_rig(&g);
}

static void a_device_that_breaks_ends_every_request(void **state) {
    (void)state;
    break_device(false);
    break_device(true);
}

/* Requests that end while layers of their prompts are computed leave no page behind, and change no
 * token of those who stay. */
static void cancelled_between_layers(void **state) {
    (void)state;
    static rig g, alone;
    hd_dev ref;
    int n_cancelled = 0;
    assert_ok(hd_dev_open("ref", NULL, &ref));
    open_rig(&alone, "v3", ref, NULL);
    run(&alone, true);
    open_rig(&g, "v3", test_open_far(), test_slow_prompts(N_SEQ, 16));
    for (int i = 0; i < N_REQUEST; i++) {
        submit(&g, i);
        for (int k = 0; k < 3; k++) {
            int n_before = g.n_slice;
            hd_loop_turn(g.loop);
            hd_loop_check(g.loop);
            if (g.n_slice == n_before || i % 2 == 0) continue;
            hd_loop_cancel(g.loop, g.answer[i - 1].id); /* whose prompt may be the chunk's */
        }
    }
    while (hd_loop_turn(g.loop)) hd_loop_check(g.loop);
    for (int i = 0; i < N_REQUEST; i++) {
        const answer *a = &alone.answer[i], *b = &g.answer[i];
        assert_int_equal(b->n_end, 1);
        bool is_cancelled = b->finish == HD_FINISH_CANCELLED;
        n_cancelled += is_cancelled;
        assert_true(is_cancelled ? b->n_token <= a->n_token : b->n_token == a->n_token);
        assert_memory_equal(b->token, a->token, (size_t)b->n_token * sizeof *a->token);
    }
    assert_true(n_cancelled > 5);
    hd_engine_stats s;
    hd_loop_get_stats(g.loop, &s);
    assert_int_equal(s.n_page_used, 0);
    close_rig(&g);
    close_rig(&alone);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overlap_changes_no_token),
        cmocka_unit_test(layers_in_several_steps_change_no_token),
        cmocka_unit_test(cancelled_between_layers),
        cmocka_unit_test(a_device_that_breaks_ends_every_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
