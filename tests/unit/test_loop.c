/* loop: exact tokens and exactly one end per request under chunking, preemption, cancels in every
 * state and faults; bounds; stops; no allocation; a quiet idle. The device is a fake whose "KV" is
 * a hash of the prefix, so a page mixed up anywhere changes the tokens. Every test runs twice: with
 * a device that has run a step when enqueue returns, and with one that runs on its own. */
#include "engine/loop.h"
#include "support/allocs.h"
#include "support/check.h"
#include "support/rng.h"

#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { n_vocab = 256, token_max = 256 };

/* ---- the fake device ---- */

typedef struct fake {
    uint64_t *kv;  /* [n_page * page_tok] hash of the prefix that ends there */
    int32_t *last; /* [n_seq_max] by slot */
    struct {
        float *logits; /* rows of the host's draws; NaN elsewhere */
        int32_t *token;
    } out[2];
    int n_enqueued, n_fetched;
    int nan_at_token; /* a sequence whose last token is this gets a NaN row; -1: none */
    int fail_step;    /* the step whose enqueue fails; 0: none */
    int fail_fetch;   /* the step whose fetch fails */
    hd_status fail_status;
    int n_step;
    sem_t *gate; /* waited for in each fetch; NULL: none */
    _Atomic int n_entered;
} fake;

static uint64_t extend(uint64_t h, int32_t token) {
    return rng_mix(h + 0x9E3779B97F4A7C15u * (uint64_t)(token + 1));
}

/* Never 0, which the tests use as the end token. */
static int32_t token_of(uint64_t h) { return 1 + (int32_t)(h % (n_vocab - 1)); }

static bool is_async; /* of the devices of all tests */

static void run_row(fake *f, const hd_batch *b, int r) {
    const int32_t *page = b->page + b->seq_page0[b->row_seq[r]];
    int p = b->pos[r] - 1;
    uint64_t h = p < 0 ? 0 : f->kv[page[p / b->page_tok] * b->page_tok + p % b->page_tok];
    int32_t token = b->token[r];
    if (token < 0)
        token = f->last[hd_slot_of_token(token)] < 0 ? 0 : f->last[hd_slot_of_token(token)];
    f->kv[b->kv_row[r]] = extend(h, token);
}

static void sample_row(fake *f, const hd_batch *b, int i, int32_t *token, float *x) {
    int row = b->out_row[i];
    int32_t best = token_of(f->kv[b->kv_row[row]]);
    bool is_bad = b->token[row] >= 0 && b->token[row] == f->nan_at_token;
    *token = is_bad || b->draw[i].is_host ? -1 : best;
    f->last[b->seq_slot[b->row_seq[row]]] = *token;
    for (int k = 0; k < n_vocab; k++) x[k] = b->draw[i].is_host ? (float)(k % 7) : NAN;
    x[best] = 50;
    if (is_bad) x[n_vocab / 2] = NAN;
}

static hd_status fake_enqueue(void *ctx, const hd_batch *b) {
    fake *f = ctx;
    if (++f->n_step == f->fail_step) return hd_fail(f->fail_status, "planned failure");
    int ix = f->n_enqueued++ % 2;
    assert_true(f->n_enqueued - f->n_fetched <= (is_async ? 2 : 1));
    for (int r = 0; r < b->n_row; r++) run_row(f, b, r);
    for (int i = 0; i < b->n_out; i++)
        sample_row(f, b, i, &f->out[ix].token[i], f->out[ix].logits + (size_t)i * n_vocab);
    return HD_OK;
}

static hd_status fake_fetch(void *ctx, hd_step_out *out) {
    fake *f = ctx;
    assert_true(f->n_fetched < f->n_enqueued);
    atomic_fetch_add(&f->n_entered, 1);
    if (f->gate) sem_wait(f->gate);
    int ix = f->n_fetched++ % 2;
    if (f->n_fetched == f->fail_fetch) return HD_FAIL(DEVICE, "planned failure");
    *out = (hd_step_out){.token = f->out[ix].token, .logits = f->out[ix].logits};
    return HD_OK;
}

static int64_t virtual_now(void *ctx) { return atomic_load((_Atomic int64_t *)ctx); }

typedef struct rig {
    hd_loop_config c;
    fake fake;
    _Atomic int64_t now_ns;
    hd_loop *loop;
} rig;

static void rig_init(rig *g, int n_page, int page_tok) {
    *g = (rig){0};
    static const int32_t end[1] = {0};
    g->c = (hd_loop_config){
        .sched = {.n_seq_max = 8,
                  .n_row_max = 32,
                  .chunked = true,
                  .n_pos_max = 200,
                  .n_page = n_page,
                  .page_tok = page_tok,
                  .prefix_cache = true,
                  .expand_min = 20,
                  .model_key = 7},
        .n_queue_max = 64,
        .clock = {.now_ns = virtual_now, .ctx = &g->now_ns},
        .stepper = {.enqueue = fake_enqueue,
                    .fetch = fake_fetch,
                    .is_async = is_async,
                    .ctx = &g->fake},
        .n_vocab = n_vocab,
        .end_token = end,
        .n_end_token = 1,
    };
    g->fake.nan_at_token = -1;
    g->now_ns = 1000;
}

static void rig_start(rig *g) {
    const hd_sched_config *s = &g->c.sched;
    g->fake.kv = calloc((size_t)s->n_page * (size_t)s->page_tok, sizeof *g->fake.kv);
    g->fake.last = calloc((size_t)s->n_seq_max, sizeof *g->fake.last);
    for (int i = 0; i < 2; i++) {
        g->fake.out[i].logits = calloc((size_t)s->n_seq_max * n_vocab, sizeof(float));
        g->fake.out[i].token = calloc((size_t)s->n_seq_max, sizeof(int32_t));
    }
    g->loop = hd_loop_new(&g->c);
}

static void rig_end(rig *g) {
    hd_engine_stats s;
    hd_loop_get_stats(g->loop, &s);
    assert_int_equal(s.n_running + s.n_waiting, 0);
    assert_int_equal(s.n_page_used, 0);
    assert_int_equal(s.n_page_free + s.n_page_cached, g->c.sched.n_page);
    hd_loop_free(g->loop);
    free(g->fake.kv);
    free(g->fake.last);
    for (int i = 0; i < 2; i++) {
        free(g->fake.out[i].logits);
        free(g->fake.out[i].token);
    }
}

static bool turn(rig *g) {
    g->now_ns += 1000000;
    bool did = hd_loop_turn(g->loop);
    hd_loop_check(g->loop);
    return did;
}

static void turn_until_idle(rig *g) {
    for (int i = 0; turn(g); i++)
        if (i > 100000) fail_msg("the loop does not come to rest");
}

/* ---- a receiver that checks what it is told ---- */

typedef struct receiver {
    uint64_t id;
    int32_t prompt[token_max], token[token_max];
    int n_prompt, n_token, n_end, n_event;
    int refuse_at;      /* returns false at this event; 0: never */
    hd_loop *cancel_in; /* cancels itself there at every event */
    hd_event last;
    char error[256];
} receiver;

static bool receive(void *user, const hd_event *ev) {
    receiver *v = user;
    assert_int_equal(v->n_end, 0); /* nothing after the end */
    v->n_event++;
    if (ev->token >= 0) {
        assert_true(v->n_token < token_max);
        v->token[v->n_token++] = ev->token;
    } else {
        assert_int_not_equal(ev->finish, HD_FINISH_NONE);
    }
    assert_int_equal(ev->n_generated, v->n_token);
    assert_true(ev->now_ns >= ev->submitted_ns);
    v->last = *ev;
    v->n_end += ev->finish != HD_FINISH_NONE;
    snprintf(v->error, sizeof v->error, "%s", ev->error ? ev->error : "");
    if (v->cancel_in) hd_loop_cancel(v->cancel_in, ev->id);
    return v->n_event != v->refuse_at;
}

static hd_request request_for(receiver *v, int n_prompt, int max_tokens) {
    hd_request r;
    hd_request_init(&r);
    v->n_prompt = n_prompt;
    r.prompt = v->prompt;
    r.n_prompt = n_prompt;
    r.max_tokens = max_tokens;
    r.sampling.temperature = 0;
    r.on_event = receive;
    r.user = v;
    return r;
}

static void fill_prompt(receiver *v, int n, uint64_t seed) {
    for (int i = 0; i < n; i++) v->prompt[i] = token_of(rng_mix(seed + (uint64_t)i));
}

/* What was received is a prefix of what the fake says. */
static void check_tokens(const receiver *v) {
    uint64_t h = 0;
    for (int i = 0; i < v->n_prompt; i++) h = extend(h, v->prompt[i]);
    for (int i = 0; i < v->n_token; i++) {
        if (v->token[i] != token_of(h)) fail_msg("token %d of request %d is wrong", i, (int)v->id);
        h = extend(h, v->token[i]);
    }
}

static void check_end(const receiver *v, enum hd_finish finish, int n_token) {
    assert_int_equal(v->n_end, 1);
    if (v->last.finish != finish)
        fail_msg("finish: expected %d, found %d %s", (int)finish, (int)v->last.finish, v->error);
    assert_int_equal(v->n_token, n_token);
    check_tokens(v);
}

/* ---- tests ---- */

static void one_request_to_its_limit(void **state) {
    (void)state;
    for (int logits = 0; logits < 2; logits++) {
        rig g;
        rig_init(&g, 40, 4);
        rig_start(&g);
        hd_engine_stats fresh;
        hd_loop_get_stats(g.loop, &fresh);
        assert_int_equal(fresh.n_page_free, 40);
        assert_false(turn(&g));
        static receiver v;
        v = (receiver){0};
        fill_prompt(&v, 70, 3);
        hd_request r = request_for(&v, 70, 12);
        r.sampling.n_top_logprob = logits ? 0 : -1; /* the host draws */
        assert_ok(hd_loop_submit(g.loop, &r, &v.id));
        turn_until_idle(&g);
        check_end(&v, HD_FINISH_LENGTH, 12);
        assert_int_equal(v.last.n_prompt, 70);
        assert_int_equal(v.last.n_hit, 0);
        assert_true(v.last.admitted_ns > v.last.submitted_ns);
        assert_true(v.last.first_token_ns > v.last.admitted_ns);
        v = (receiver){.n_prompt = 70};
        fill_prompt(&v, 70, 3);
        assert_ok(hd_loop_submit(g.loop, &r, &v.id));
        turn_until_idle(&g);
        check_end(&v, HD_FINISH_LENGTH, 12);
        assert_int_equal(v.last.n_hit, 68);
        rig_end(&g);
    }
}

static void the_context_ends_a_request(void **state) {
    (void)state;
    rig g;
    rig_init(&g, 60, 4);
    rig_start(&g);
    static receiver v;
    v = (receiver){0};
    fill_prompt(&v, 200, 3);
    hd_request r = request_for(&v, 190, 0);
    uint64_t id;
    assert_ok(hd_loop_submit(g.loop, &r, &v.id));
    turn_until_idle(&g);
    check_end(&v, HD_FINISH_LENGTH, 10);
    r.n_prompt = 200;
    assert_int_equal(hd_loop_submit(g.loop, &r, &id), HD_E_CONTEXT);
    assert_non_null(strstr(hd_error_text(), "200"));
    rig_end(&g);
}

/* Many requests with shared prefixes, a pool too small for them, cancels and refusals at random. */
static void a_storm_keeps_every_promise(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        rig g;
        rig_init(&g, seed % 2 ? 52 : 120, 4);
        g.c.sched.chunk_max = seed % 3 == 0 ? 5 : 0;
        g.c.sched.prefix_cache = seed % 5 != 0;
        rig_start(&g);
        enum { n_req = 60 };
        static receiver v[n_req];
        memset(v, 0, sizeof v);
        int n_max[n_req], n_sent = 0;
        bool is_cancelled[n_req] = {false};
        uint64_t x = seed;
        while (n_sent < n_req || turn(&g)) {
            x = rng_mix(x + 1);
            if (n_sent < n_req && x % 3 == 0) {
                int i = n_sent, n_prompt = 1 + (int)((x >> 8) % 100);
                fill_prompt(&v[i], n_prompt, (x >> 20) % 4);
                n_max[i] = 1 + (int)((x >> 30) % 60);
                hd_request r = request_for(&v[i], n_prompt, n_max[i]);
                r.priority = (int)((x >> 40) % 3);
                r.cache_salt = (x >> 44) % 2;
                r.sampling.n_top_logprob = seed % 4 == 0 && x % 2 ? 0 : -1;
                v[i].refuse_at = (x >> 50) % 8 == 0 ? 1 + (int)((x >> 54) % 10) : 0;
                hd_status s = hd_loop_submit(g.loop, &r, &v[i].id);
                if (s == HD_OK)
                    n_sent++;
                else
                    assert_int_equal(s, HD_E_BUSY);
            }
            if (n_sent > 0 && x % 7 == 0) {
                int i = (int)((x >> 16) % (uint64_t)n_sent);
                if (v[i].n_end == 0) is_cancelled[i] = true;
                hd_loop_cancel(g.loop, v[i].id);
                hd_loop_cancel(g.loop, v[i].id);
            }
            if (n_sent < n_req) turn(&g);
        }
        for (int i = 0; i < n_req; i++) {
            assert_int_equal(v[i].n_end, 1);
            check_tokens(&v[i]);
            if (v[i].last.finish == HD_FINISH_LENGTH)
                assert_int_equal(v[i].n_token, n_max[i]);
            else
                assert_true(is_cancelled[i] || v[i].refuse_at > 0);
        }
        hd_engine_stats s;
        hd_loop_get_stats(g.loop, &s);
        assert_int_equal(s.n_finished, n_req);
        if (seed % 2) assert_true(s.n_preempt > 0);
        rig_end(&g);
    }
}

static void cancel_in_every_state(void **state) {
    (void)state;
    for (int round = 0; round < 28; round++) {
        int n_turn = round / 2;
        bool finishes = round % 2; /* the receiver has its answer: a stop */
        rig g;
        rig_init(&g, 100, 4);
        g.c.sched.n_seq_max = 2;
        rig_start(&g);
        static receiver v[4];
        memset(v, 0, sizeof v);
        for (int i = 0; i < 3; i++) { /* 0 and 1 run, 2 waits */
            fill_prompt(&v[i], 100, (uint64_t)(10 * i));
            hd_request r = request_for(&v[i], 100, 4);
            assert_ok(hd_loop_submit(g.loop, &r, &v[i].id));
        }
        for (int i = 0; i < n_turn; i++) turn(&g);
        bool had_ended[3];
        for (int i = 1; i < 3; i++) {
            had_ended[i] = v[i].n_end > 0;
            if (finishes) hd_loop_finish(g.loop, v[i].id);
            hd_loop_cancel(g.loop, v[i].id);
            hd_loop_cancel(g.loop, v[i].id);
            if (!finishes) hd_loop_finish(g.loop, v[i].id); /* the first one counts */
            hd_loop_cancel(g.loop, v[i].id + 1000003);
        }
        turn(&g);
        for (int i = 1; i < 3; i++) {
            assert_int_equal(v[i].n_end, 1);
            if (had_ended[i]) continue;
            assert_int_equal(v[i].last.finish, finishes ? HD_FINISH_STOP : HD_FINISH_CANCELLED);
            assert_int_equal(v[i].last.token, -1);
        }
        hd_loop_cancel(g.loop, v[1].id); /* it has ended */
        hd_loop_cancel(g.loop, 0);
        turn_until_idle(&g);
        check_end(&v[0], HD_FINISH_LENGTH, 4);
        rig_end(&g);
    }
}

static void a_refusing_receiver_is_cancelled_alone(void **state) {
    (void)state;
    for (int at = 1; at <= 6; at++) {
        rig g;
        rig_init(&g, 100, 4);
        rig_start(&g);
        static receiver v[3];
        memset(v, 0, sizeof v);
        for (int i = 0; i < 3; i++) {
            fill_prompt(&v[i], 9, (uint64_t)i);
            hd_request r = request_for(&v[i], 9, 6);
            assert_ok(hd_loop_submit(g.loop, &r, &v[i].id));
        }
        v[1].refuse_at = at;
        turn_until_idle(&g);
        check_end(&v[0], HD_FINISH_LENGTH, 6);
        check_end(&v[2], HD_FINISH_LENGTH, 6);
        /* The sixth event is the end already. */
        check_end(&v[1], at < 6 ? HD_FINISH_CANCELLED : HD_FINISH_LENGTH, at);
        rig_end(&g);
    }
}

static void a_bad_row_fails_alone(void **state) {
    (void)state;
    for (int logits = 0; logits < 2; logits++) {
        rig g;
        rig_init(&g, 100, 4);
        rig_start(&g);
        static receiver v[3];
        memset(v, 0, sizeof v);
        for (int i = 0; i < 3; i++) {
            fill_prompt(&v[i], 10, (uint64_t)i);
            hd_request r = request_for(&v[i], 10, 5);
            r.sampling.n_top_logprob = logits ? 0 : -1;
            assert_ok(hd_loop_submit(g.loop, &r, &v[i].id));
        }
        g.fake.nan_at_token = v[1].prompt[9];
        assert_int_not_equal(v[0].prompt[9], v[1].prompt[9]);
        turn_until_idle(&g);
        check_end(&v[1], HD_FINISH_ERROR, 0);
        assert_int_equal(v[1].last.status, HD_E_NUMERIC);
        assert_true(strlen(v[1].error) > 0);
        check_end(&v[0], HD_FINISH_LENGTH, 5);
        check_end(&v[2], HD_FINISH_LENGTH, 5);
        rig_end(&g);
    }
}

/* A device that broke says so when a step's tokens are asked for. */
static void a_failing_fetch_ends_everything(void **state) {
    (void)state;
    for (int at = 1; at < 8; at++) {
        rig g;
        rig_init(&g, 100, 4);
        g.c.sched.n_seq_max = 2;
        g.fake.fail_fetch = at;
        rig_start(&g);
        static receiver v[3];
        memset(v, 0, sizeof v);
        for (int i = 0; i < 3; i++) {
            fill_prompt(&v[i], 10, (uint64_t)i);
            hd_request r = request_for(&v[i], 10, 8);
            assert_ok(hd_loop_submit(g.loop, &r, &v[i].id));
        }
        turn_until_idle(&g);
        for (int i = 0; i < 3; i++) {
            check_end(&v[i], HD_FINISH_ERROR, i < 2 ? at - 1 : 0);
            assert_int_equal(v[i].last.status, HD_E_DEVICE);
            assert_string_equal(v[i].error, "planned failure");
        }
        hd_engine_stats s;
        hd_loop_get_stats(g.loop, &s);
        assert_true(s.is_failed);
        rig_end(&g);
    }
}

static void a_failing_step_ends_its_requests(void **state) {
    (void)state;
    for (int device = 0; device < 2; device++) {
        rig g;
        rig_init(&g, 100, 4);
        g.c.sched.n_seq_max = 2;
        g.fake.fail_step = 4;
        g.fake.fail_status = device ? HD_E_DEVICE : HD_E_UNAVAILABLE;
        rig_start(&g);
        static receiver v[4];
        memset(v, 0, sizeof v);
        for (int i = 0; i < 4; i++) {
            fill_prompt(&v[i], 10, (uint64_t)i);
            hd_request r = request_for(&v[i], 10, 8);
            assert_ok(hd_loop_submit(g.loop, &r, &v[i].id));
        }
        turn_until_idle(&g);
        for (int i = 0; i < 4; i++) {
            bool fails = device || i < 2;
            assert_int_equal(v[i].n_end, 1);
            assert_int_equal(v[i].last.finish, fails ? HD_FINISH_ERROR : HD_FINISH_LENGTH);
            if (!fails) continue;
            assert_int_equal(v[i].last.status, g.fake.fail_status);
            assert_string_equal(v[i].error, "planned failure");
        }
        hd_engine_stats s;
        hd_loop_get_stats(g.loop, &s);
        assert_int_equal(s.is_failed, device);
        assert_int_equal(s.stuck_ns, 0);
        hd_request r = request_for(&v[0], 10, 8);
        uint64_t id;
        v[0] = (receiver){0};
        hd_status st = hd_loop_submit(g.loop, &r, &id);
        assert_int_equal(st, device ? HD_E_UNAVAILABLE : HD_OK);
        turn_until_idle(&g);
        rig_end(&g);
    }
}

static void the_waiting_line_is_bounded(void **state) {
    (void)state;
    rig g;
    rig_init(&g, 100, 4);
    g.c.sched.n_seq_max = 1;
    g.c.n_queue_max = 2;
    g.c.queue_tok_max = 100;
    rig_start(&g);
    static receiver v[8];
    memset(v, 0, sizeof v);
    hd_request r[8];
    for (int i = 0; i < 8; i++) {
        fill_prompt(&v[i], 60, (uint64_t)i);
        r[i] = request_for(&v[i], i < 4 ? 10 : 60, 5);
    }
    uint64_t id;
    assert_ok(hd_loop_submit(g.loop, &r[0], &id));
    turn(&g); /* 0 runs */
    assert_ok(hd_loop_submit(g.loop, &r[1], &id));
    assert_ok(hd_loop_submit(g.loop, &r[2], &v[2].id));
    assert_int_equal(hd_loop_submit(g.loop, &r[3], &id), HD_E_BUSY);
    assert_non_null(strstr(hd_error_text(), "2"));
    hd_loop_cancel(g.loop, v[2].id);
    turn(&g); /* a place is free again */
    assert_int_equal(hd_loop_submit(g.loop, &r[4], &id), HD_OK);
    turn_until_idle(&g);
    assert_ok(hd_loop_submit(g.loop, &r[5], &id)); /* by tokens: 60 wait */
    assert_int_equal(hd_loop_submit(g.loop, &r[6], &id), HD_E_BUSY);
    assert_ok(hd_loop_submit(g.loop, &r[3], &id));
    turn_until_idle(&g);
    const int expected[8] = {1, 1, 1, 1, 1, 1, 0, 0};
    for (int i = 0; i < 8; i++) assert_int_equal(v[i].n_end, expected[i]);
    rig_end(&g);
}

/* Who waits too long is told so; who was admitted may take as long as it takes. */
static void waiting_has_an_end(void **state) {
    (void)state;
    static const int64_t second_ns = 1000000000;
    rig g;
    rig_init(&g, 100, 4);
    g.c.sched.n_seq_max = 1;
    g.c.wait_max_ns = 2 * second_ns;
    rig_start(&g);
    static receiver v[3];
    memset(v, 0, sizeof v);
    hd_request r[3];
    for (int i = 0; i < 3; i++) {
        fill_prompt(&v[i], 60, (uint64_t)i);
        r[i] = request_for(&v[i], 10, 50);
    }
    assert_ok(hd_loop_submit(g.loop, &r[0], &v[0].id));
    turn(&g); /* 0 runs */
    assert_ok(hd_loop_submit(g.loop, &r[1], &v[1].id));
    g.now_ns += second_ns;
    turn(&g);
    assert_ok(hd_loop_submit(g.loop, &r[2], &v[2].id));
    assert_int_equal(v[1].n_end, 0);
    g.now_ns += second_ns;
    turn(&g); /* 0 runs for longer than any may wait, 1 waited too long, 2 did not yet */
    check_end(&v[1], HD_FINISH_ERROR, 0);
    assert_int_equal(v[1].last.status, HD_E_UNAVAILABLE);
    assert_string_equal(v[1].error, "the request has waited 2 s, and its turn has not come");
    assert_int_equal(v[0].n_end + v[2].n_end, 0);
    turn_until_idle(&g);
    check_end(&v[0], HD_FINISH_LENGTH, 50);
    check_end(&v[2], HD_FINISH_LENGTH, 50);
    rig_end(&g);
}

static void ends_and_minimum(void **state) {
    (void)state;
    rig g;
    rig_init(&g, 100, 4);
    rig_start(&g);
    static receiver v, w;
    v = (receiver){0};
    fill_prompt(&v, 5, 1);
    hd_request r = request_for(&v, 5, 10);
    assert_ok(hd_loop_submit(g.loop, &r, &v.id));
    turn_until_idle(&g);
    check_end(&v, HD_FINISH_LENGTH, 10);
    /* The token that came fourth, as a stop token. */
    int first = 0;
    while (v.token[first] != v.token[3]) first++;
    w = (receiver){0};
    fill_prompt(&w, 5, 1);
    r.user = &w;
    w.n_prompt = 5;
    r.stop_token = &v.token[3];
    r.n_stop_token = 1;
    assert_ok(hd_loop_submit(g.loop, &r, &w.id));
    turn_until_idle(&g);
    check_end(&w, HD_FINISH_STOP, first + 1);
    assert_true(w.last.is_end_token);
    assert_int_equal(w.last.stop_token, v.token[3]);
    assert_int_equal(w.last.stop_ix, -1);
    /* Not before the minimum: it is not sampled at all until then. */
    w = (receiver){0};
    fill_prompt(&w, 5, 1);
    r.min_tokens = 6;
    assert_ok(hd_loop_submit(g.loop, &r, &w.id));
    turn_until_idle(&g);
    assert_int_equal(w.n_end, 1);
    assert_true(w.n_token >= 6);
    for (int i = 0; i < 6; i++) assert_int_not_equal(w.token[i], v.token[3]);
    /* The model's end token: forced by a bias. */
    hd_logit_bias bias = {0, 100};
    for (int ignore = 0; ignore < 2; ignore++) {
        w = (receiver){0};
        fill_prompt(&w, 5, 1);
        r = request_for(&w, 5, 7);
        r.sampling.bias = &bias;
        r.sampling.n_bias = 1;
        r.ignore_eos = ignore;
        assert_ok(hd_loop_submit(g.loop, &r, &w.id));
        turn_until_idle(&g);
        assert_int_equal(w.n_end, 1);
        assert_int_equal(w.last.finish, ignore ? HD_FINISH_LENGTH : HD_FINISH_STOP);
        assert_int_equal(w.n_token, ignore ? 7 : 1);
        assert_int_equal(w.last.is_end_token, !ignore);
    }
    rig_end(&g);
}

static void end_all_tells_everyone(void **state) {
    (void)state;
    for (int n_turn = 0; n_turn < 8; n_turn++) {
        rig g;
        rig_init(&g, 100, 4);
        g.c.sched.n_seq_max = 2;
        rig_start(&g);
        static receiver v[6];
        memset(v, 0, sizeof v);
        for (int i = 0; i < 6; i++) {
            fill_prompt(&v[i], 40, (uint64_t)i);
            hd_request r = request_for(&v[i], 40, 3);
            assert_ok(hd_loop_submit(g.loop, &r, &v[i].id));
            if (i < n_turn) turn(&g);
        }
        hd_loop_cancel(g.loop, v[3].id);
        for (int i = 0; i < 6; i += 2) v[i].cancel_in = g.loop;
        hd_loop_end_all(g.loop, HD_OK);
        for (int i = 0; i < 6; i++) {
            assert_int_equal(v[i].n_end, 1);
            check_tokens(&v[i]);
        }
        hd_request r = request_for(&v[0], 40, 3);
        uint64_t id;
        assert_int_equal(hd_loop_submit(g.loop, &r, &id), HD_E_UNAVAILABLE);
        rig_end(&g);
    }
}

/* ---- with a thread ---- */

static void *run_loop(void *arg) {
    hd_loop_run(arg);
    return NULL;
}

/* One token per byte. */
static hd_tokenizer *byte_tokenizer(void) {
    static char text[n_vocab][3];
    hd_str token[n_vocab];
    int32_t type[n_vocab];
    /* GPT-2's byte-level alphabet: printable bytes stand for themselves, others from U+0100 on. */
    int next = 256;
    for (int b = 0; b < n_vocab; b++) {
        bool is_own = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        int cp = is_own ? b : next++;
        size_t n = 0;
        if (cp >= 128) text[b][n++] = (char)(0xC0 | (cp >> 6));
        text[b][n++] = (char)(cp < 128 ? cp : 0x80 | (cp & 63));
        token[b] = (hd_str){text[b], n};
        type[b] = 1;
    }
    hd_tokenizer_parts p = {.name = "bytes",
                            .pre = hd_str_of("deepseek-v3"),
                            .token = token,
                            .type = type,
                            .n_token = n_vocab,
                            .bos = -1,
                            .eos = -1,
                            .pad = -1};
    hd_tokenizer *t;
    assert_ok(hd_tokenizer_from_parts(&p, &t));
    return t;
}

static void stop_strings(void **state) {
    (void)state;
    rig g;
    rig_init(&g, 100, 4);
    hd_tokenizer *t = byte_tokenizer();
    g.c.tokenizer = t;
    rig_start(&g);
    static receiver v, w;
    v = (receiver){0};
    fill_prompt(&v, 5, 2);
    hd_request r = request_for(&v, 5, 30);
    assert_ok(hd_loop_submit(g.loop, &r, &v.id));
    turn_until_idle(&g);
    check_end(&v, HD_FINISH_LENGTH, 30);
    char text[30];
    for (int i = 0; i < 30; i++) text[i] = (char)v.token[i];
    int n_found = 0;
    for (int from = 0; from < 26; from++) { /* stop strings of 1 to 4 bytes, over several tokens */
        size_t len = 1 + (size_t)from % 4;
        bool is_ascii = true;
        for (size_t i = 0; i < len; i++) is_ascii &= text[(size_t)from + i] > 0;
        if (!is_ascii) continue;
        n_found++;
        hd_str stop[2] = {{"\x01\x02never", 7}, {text + from, len}};
        char *at = memmem(text, sizeof text, text + from, len);
        w = (receiver){0};
        fill_prompt(&w, 5, 2);
        r = request_for(&w, 5, 30);
        r.stop = stop;
        r.n_stop = 2;
        assert_ok(hd_loop_submit(g.loop, &r, &w.id));
        turn_until_idle(&g);
        check_end(&w, HD_FINISH_STOP, (int)(at - text) + (int)len);
        assert_int_equal(w.last.stop_ix, 1);
        assert_int_equal(w.last.stop_token, -1);
        assert_false(w.last.is_end_token);
        /* Text of the first tokens is not looked at. */
        w = (receiver){0};
        fill_prompt(&w, 5, 2);
        r.min_tokens = (int)(at - text) + 1;
        assert_ok(hd_loop_submit(g.loop, &r, &w.id));
        turn_until_idle(&g);
        assert_int_equal(w.n_end, 1);
        assert_true(w.n_token > (int)(at - text) + (int)len || w.last.finish == HD_FINISH_LENGTH);
    }
    assert_true(n_found >= 3);
    hd_str empty = {"", 0};
    r.stop = &empty;
    r.n_stop = 1;
    assert_int_equal(hd_loop_submit(g.loop, &r, &w.id), HD_E_INVALID);
    rig_end(&g);
    hd_tokenizer_free(t);
}

typedef struct quiet_receiver {
    _Atomic int n_token, n_end;
} quiet_receiver;

static bool receive_watched(void *user, const hd_event *ev) {
    quiet_receiver *q = user;
    test_allocs_watch(true); /* this is the loop's thread */
    atomic_fetch_add(&q->n_token, ev->token >= 0);
    if (ev->finish != HD_FINISH_NONE) atomic_fetch_add(&q->n_end, 1);
    return true;
}

static void the_loop_allocates_nothing(void **state) {
    (void)state;
    rig g;
    rig_init(&g, 60, 4); /* small: with preemption */
    hd_tokenizer *t = byte_tokenizer();
    g.c.tokenizer = t;
    g.c.clock = hd_clock_real();
    g.c.has_metrics = true;
    rig_start(&g);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run_loop, g.loop), 0);
    static receiver prompts;
    fill_prompt(&prompts, 100, 4);
    quiet_receiver q = {0};
    hd_str stop[2] = {hd_str_of("\x03\x04\x05"), hd_str_of("zz")};
    hd_logit_bias bias = {3, 2};
    int n_sent = 0;
    hd_engine_stats s = {0};
    long before = test_allocs_count();
    for (uint64_t x = 1; s.n_step < 1500 || s.n_preempt == 0; x = rng_mix(x)) {
        hd_request r;
        hd_request_init(&r);
        r.prompt = prompts.prompt;
        r.n_prompt = 1 + (int)(x % 90);
        r.max_tokens = 5 + (int)((x >> 10) % 80);
        bool is_plain = (x >> 30) % 4 > 0; /* the device draws */
        r.sampling = (hd_sampling){.temperature = 0.7f,
                                   .top_k = x % 2 ? 40 : 0,
                                   .top_p = 0.9f,
                                   .min_p = 0.01f,
                                   .presence_penalty = is_plain ? 0 : 0.5f,
                                   .frequency_penalty = is_plain ? 0 : 0.5f,
                                   .repetition_penalty = is_plain ? 1 : 1.2f,
                                   .n_top_logprob = is_plain ? -1 : (int)((x >> 20) % 21),
                                   .bias = &bias,
                                   .n_bias = is_plain ? 0 : 1};
        r.stop = stop;
        r.n_stop = 2;
        r.on_event = receive_watched;
        r.user = &q;
        uint64_t id;
        if (hd_loop_submit(g.loop, &r, &id) == HD_OK) {
            n_sent++;
            if (x % 5 == 0) hd_loop_cancel(g.loop, id);
        }
        hd_loop_get_stats(g.loop, &s);
        usleep(200);
    }
    while (atomic_load(&q.n_end) < n_sent) usleep(1000);
    assert_int_equal(test_allocs_count() - before, 0);
    hd_loop_stop(g.loop);
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&q.n_end), n_sent);
    rig_end(&g);
    hd_tokenizer_free(t);
    test_allocs_watch(true); /* the counter itself works */
    before = test_allocs_count();
    void *volatile p = malloc(10);
    test_allocs_watch(false);
    free(p);
    assert_int_equal(test_allocs_count() - before, 1);
}

static double cpu_s(pthread_t thread) {
    clockid_t clock;
    struct timespec t;
    assert_int_equal(pthread_getcpuclockid(thread, &clock), 0);
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void an_idle_loop_sleeps(void **state) {
    (void)state;
    rig g;
    rig_init(&g, 60, 4);
    g.c.clock = hd_clock_real();
    rig_start(&g);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run_loop, g.loop), 0);
    static receiver v;
    v = (receiver){0};
    fill_prompt(&v, 5, 1);
    hd_request r = request_for(&v, 5, 3);
    hd_engine_stats s = {0};
    assert_ok(hd_loop_submit(g.loop, &r, &v.id));
    while (s.n_finished == 0) {
        usleep(1000);
        hd_loop_get_stats(g.loop, &s);
    }
    double before = cpu_s(thread);
    usleep(1000000);
    assert_true(cpu_s(thread) - before < 0.01);
    hd_loop_get_stats(g.loop, &s);
    assert_int_equal(s.stuck_ns, 0);
    hd_loop_stop(g.loop);
    pthread_join(thread, NULL);
    check_end(&v, HD_FINISH_LENGTH, 3);
    rig_end(&g);
}

/* A step that hangs: the time since the last progress grows, and reading it does not block. */
static void a_stuck_step_is_seen(void **state) {
    (void)state;
    rig g;
    rig_init(&g, 60, 4);
    sem_t gate;
    sem_init(&gate, 0, 2); /* two steps pass, the third hangs */
    g.fake.gate = &gate;
    rig_start(&g);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run_loop, g.loop), 0);
    static receiver v[2];
    memset(v, 0, sizeof v);
    fill_prompt(&v[0], 5, 1);
    hd_request r = request_for(&v[0], 5, 4);
    assert_ok(hd_loop_submit(g.loop, &r, &v[0].id));
    while (atomic_load(&g.fake.n_entered) < 3) usleep(1000);
    fill_prompt(&v[1], 5, 1);
    r = request_for(&v[1], 5, 4);
    assert_ok(hd_loop_submit(g.loop, &r, &v[1].id));
    hd_engine_stats s;
    hd_loop_get_stats(g.loop, &s);
    assert_int_equal(s.n_waiting, 1);
    assert_int_equal(s.n_running, 1);
    assert_int_equal(s.n_step, 2);
    assert_int_equal(s.stuck_ns, 0);
    atomic_fetch_add(&g.now_ns, 7000000000);
    hd_loop_get_stats(g.loop, &s);
    assert_int_equal(s.stuck_ns, 7000000000);
    for (int i = 0; i < 20; i++) sem_post(&gate);
    while (s.n_finished < 2) {
        usleep(1000);
        hd_loop_get_stats(g.loop, &s);
    }
    hd_loop_stop(g.loop);
    pthread_join(thread, NULL);
    for (int i = 0; i < 2; i++) check_end(&v[i], HD_FINISH_LENGTH, 4);
    rig_end(&g);
    sem_destroy(&gate);
}

typedef struct client {
    rig *g;
    uint64_t seed;
    _Atomic int n_end;
    int n_sent;
} client;

static bool count_end(void *user, const hd_event *ev) {
    client *c = user;
    if (ev->finish != HD_FINISH_NONE) atomic_fetch_add(&c->n_end, 1);
    return ev->n_generated != 13;
}

static void *client_main(void *arg) {
    client *c = arg;
    static int32_t prompt[50];
    uint64_t x = c->seed;
    for (int i = 0; i < 300; i++) {
        x = rng_mix(x + 1);
        hd_request r;
        hd_request_init(&r);
        r.prompt = prompt;
        r.n_prompt = 1 + (int)(x % 50);
        r.max_tokens = 1 + (int)((x >> 8) % 20);
        r.on_event = count_end;
        r.user = c;
        uint64_t id;
        if (hd_loop_submit(c->g->loop, &r, &id) != HD_OK) continue;
        c->n_sent++;
        if (x % 3 == 0) hd_loop_cancel(c->g->loop, id);
        if (x % 4 == 0) hd_loop_cancel(c->g->loop, id - (x >> 20) % 2000);
        hd_engine_stats s;
        hd_loop_get_stats(c->g->loop, &s);
        assert_int_equal(s.n_page_free + s.n_page_cached + s.n_page_used, s.n_page);
    }
    return NULL;
}

static void many_clients(void **state) {
    (void)state;
    rig g;
    rig_init(&g, 60, 4);
    g.c.clock = hd_clock_real();
    rig_start(&g);
    pthread_t thread, client_thread[4];
    client c[4];
    assert_int_equal(pthread_create(&thread, NULL, run_loop, g.loop), 0);
    for (int i = 0; i < 4; i++) {
        c[i] = (client){.g = &g, .seed = (uint64_t)i};
        assert_int_equal(pthread_create(&client_thread[i], NULL, client_main, &c[i]), 0);
    }
    for (int i = 0; i < 4; i++) pthread_join(client_thread[i], NULL);
    hd_loop_stop(g.loop); /* with work left */
    pthread_join(thread, NULL);
    for (int i = 0; i < 4; i++) assert_int_equal(atomic_load(&c[i].n_end), c[i].n_sent);
    rig_end(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_request_to_its_limit),
        cmocka_unit_test(the_context_ends_a_request),
        cmocka_unit_test(a_storm_keeps_every_promise),
        cmocka_unit_test(cancel_in_every_state),
        cmocka_unit_test(a_refusing_receiver_is_cancelled_alone),
        cmocka_unit_test(a_bad_row_fails_alone),
        cmocka_unit_test(a_failing_fetch_ends_everything),
        cmocka_unit_test(a_failing_step_ends_its_requests),
        cmocka_unit_test(the_waiting_line_is_bounded),
        cmocka_unit_test(waiting_has_an_end),
        cmocka_unit_test(ends_and_minimum),
        cmocka_unit_test(end_all_tells_everyone),
        cmocka_unit_test(stop_strings),
        cmocka_unit_test(the_loop_allocates_nothing),
        cmocka_unit_test(an_idle_loop_sleeps),
        cmocka_unit_test(a_stuck_step_is_seen),
        cmocka_unit_test(many_clients),
    };
    int n_failed =
        cmocka_run_group_tests_name("a device that computes when told", tests, NULL, NULL);
    is_async = true;
    return n_failed + cmocka_run_group_tests_name("a device of its own", tests, NULL, NULL);
}
