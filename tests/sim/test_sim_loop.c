/* Simulation of the whole loop over the fake device: requests come, are cancelled and are refused
 * at random moments (between turns, while a step runs, from inside a receiver), receivers refuse
 * events, rows come out not finite, steps fail, the device dies when it is given a step or asked
 * for its tokens. Half of the devices run on their own, a step behind the loop; half of the seeds
 * compute prompts some layers at a time.
 *
 * Each request that was accepted is told its tokens, once and in order, and then exactly one end,
 * which is the right one; after every turn all invariants hold; in the end every page is free and
 * the counts add up. How to run other seeds: support/seeds.h. */
#include "support/check.h"
#include "support/fake_dev.h"
#include "support/seeds.h"
#include "support/slow_prompts.h"

#include "base/mem.h"
#include "engine/loop.h"

#include <math.h>
#include <string.h>

enum { REQUEST_MAX = 80, PROMPT_MAX = 160, TURN_MAX = 100000 };

struct sim;

struct request {
    struct sim *sim;
    hd_request r;
    int32_t prompt[PROMPT_MAX], stop_token[2];
    uint64_t id, hash; /* of prompt and tokens told */
    int n_told, n_limit;
    bool is_accepted, is_ended, is_cancelled, may_fail;
    int refuse_at; /* event refused; -1: none */
    int n_event;
};

struct sim {
    test_rng rng;
    hd_loop_config c;
    hd_loop *loop;
    hd_profile *profile; /* NULL: steps' times are not known */
    fake_dev *dev;
    int32_t *token[2]; /* [n_seq_max] of the steps under way */
    float *logits;     /* [n_seq_max, FAKE_N_VOCAB] of the last of them */
    int n_enqueued, n_fetched;
    int64_t now_ns;
    struct request *request; /* [n_request] */
    int n_request, n_sent, n_live;
    double send_p, cancel_p, fail_p, bad_row_p, refuse_p;
    int prompt_max, new_max, die_at; /* step at which the device dies; 0: never */
    bool dies_late;                  /* when asked for the tokens */
    bool is_dead, is_closed; /* closed: the turn in which it died is over, and told everybody */
    int32_t family[2][PROMPT_MAX];
    uint64_t prompt_tok, hit_tok, told_tok;
    uint64_t n_end[HD_FINISH_ERROR + 1], n_busy;
};

static int64_t virtual_now(void *ctx) { return ((struct sim *)ctx)->now_ns; }

enum { CHAT_END_TOKENS = 5 }; /* tokens 1 to 5 end a chat's answer */

static bool is_end_token(const struct request *q, int32_t token) {
    if (!q->r.ignore_eos && token == FAKE_STOP) return true;
    if (!q->r.ignore_eos && q->r.is_chat && token <= CHAT_END_TOKENS) return true;
    for (int i = 0; i < q->r.n_stop_token; i++) {
        if (q->r.stop_token[i] == token) return true;
    }
    return false;
}

static void cancel_one(struct sim *m) {
    struct request *q = &m->request[rng_int(&m->rng, 0, m->n_sent - 1)];
    if (!q->is_accepted) return;
    q->is_cancelled = true; /* also when it has ended: harmless */
    hd_loop_cancel(m->loop, q->id);
}

static void maybe_cancel(struct sim *m) {
    while (m->n_sent > 0 && rng_chance(&m->rng, m->cancel_p)) cancel_one(m);
}

static void check_token(struct request *q, const hd_event *ev) {
    assert_int_equal(ev->token, fake_next(q->hash));
    q->hash = fake_hash_add(q->hash, (uint64_t)ev->token);
    q->n_told++;
    q->sim->told_tok++;
    assert_int_equal(ev->n_generated, q->n_told);
    bool stops = is_end_token(q, ev->token);
    enum hd_finish finish = stops                     ? HD_FINISH_STOP
                            : q->n_told == q->n_limit ? HD_FINISH_LENGTH
                                                      : HD_FINISH_NONE;
    assert_int_equal(ev->finish, finish);
    assert_int_equal(ev->is_end_token, stops);
    if (stops) assert_int_equal(ev->stop_token, ev->token);
}

static void check_end(struct request *q, const hd_event *ev) {
    struct sim *m = q->sim;
    q->is_ended = true;
    m->n_live--;
    m->n_end[ev->finish]++;
    if (ev->finish == HD_FINISH_CANCELLED) assert_true(q->is_cancelled);
    if (ev->finish == HD_FINISH_ERROR) {
        assert_true(q->may_fail || m->is_dead);
        assert_non_null(ev->error);
        assert_true(ev->status == HD_E_NUMERIC || ev->status == HD_E_INTERNAL ||
                    ev->status == HD_E_DEVICE);
    } else {
        assert_int_equal(ev->status, HD_OK);
    }
    if (ev->admitted_ns == 0) return;
    m->prompt_tok += (uint64_t)ev->n_prompt;
    m->hit_tok += (uint64_t)ev->n_hit;
}

static bool on_event(void *user, const hd_event *ev) {
    struct request *q = user;
    struct sim *m = q->sim;
    assert_true(q->is_accepted && !q->is_ended);
    assert_int_equal(ev->id, q->id);
    assert_int_equal(ev->n_prompt, q->r.n_prompt);
    assert_true(ev->n_hit >= 0 && ev->n_hit < ev->n_prompt);
    assert_true(ev->token >= 0 || ev->finish != HD_FINISH_NONE);
    assert_true(ev->submitted_ns <= ev->now_ns);
    if (ev->token >= 0) {
        assert_true(ev->submitted_ns <= ev->admitted_ns && ev->admitted_ns <= ev->first_token_ns);
        check_token(q, ev);
    } else {
        assert_int_equal(ev->n_generated, q->n_told);
        assert_true(ev->finish == HD_FINISH_CANCELLED || ev->finish == HD_FINISH_ERROR);
    }
    if (ev->finish != HD_FINISH_NONE) check_end(q, ev);
    maybe_cancel(m); /* itself or another, from inside */
    if (q->n_event++ != q->refuse_at) return true;
    q->is_cancelled = true;
    return false;
}

static void choose_request(struct sim *m, struct request *q) {
    test_rng *g = &m->rng;
    q->sim = m;
    hd_request_init(&q->r);
    q->r.prompt = q->prompt;
    q->r.n_prompt = rng_int(g, 1, m->prompt_max);
    int n_shared = rng_int(g, 0, q->r.n_prompt), family = rng_int(g, 0, 1);
    q->hash = fake_hash_begin(0);
    for (int i = 0; i < q->r.n_prompt; i++) {
        q->prompt[i] = i < n_shared ? m->family[family][i] : rng_int(g, 0, FAKE_N_VOCAB - 1);
        q->hash = fake_hash_add(q->hash, (uint64_t)q->prompt[i]);
    }
    q->r.max_tokens = rng_chance(g, 0.1) ? 0 : rng_int(g, 1, m->new_max);
    q->r.sampling.temperature = 0;
    q->r.sampling.n_top_logprob = rng_chance(g, 0.9) ? -1 : 0; /* 0: the host draws */
    q->r.ignore_eos = rng_chance(g, 0.3);
    q->r.is_chat = rng_chance(g, 0.5);
    q->r.n_stop_token = rng_chance(g, 0.8) ? 0 : rng_int(g, 1, 2);
    q->r.stop_token = q->stop_token;
    for (int i = 0; i < 2; i++) q->stop_token[i] = rng_int(g, 0, FAKE_N_VOCAB - 1);
    q->r.priority = rng_int(g, 0, 2);
    q->r.cache_salt = (uint64_t)rng_int(g, 0, 1);
    q->r.on_event = on_event;
    q->r.user = q;
    q->refuse_at = rng_chance(g, m->refuse_p) ? rng_int(g, 0, 5) : -1;
    int room = m->c.sched.n_pos_max - q->r.n_prompt;
    q->n_limit = q->r.max_tokens > 0 && q->r.max_tokens < room ? q->r.max_tokens : room;
}

static void send_some(struct sim *m) {
    while (m->n_sent < m->n_request && rng_chance(&m->rng, m->send_p)) {
        struct request *q = &m->request[m->n_sent++];
        choose_request(m, q);
        hd_status fits =
            q->n_limit < 1 ? HD_E_CONTEXT : hd_sched_fits(&m->c.sched, q->r.n_prompt, q->n_limit);
        hd_status s = hd_loop_submit(m->loop, &q->r, &q->id);
        if (m->is_closed) assert_true(s != HD_OK);
        if (fits != HD_OK) assert_int_equal(s, fits);
        if (s == HD_E_BUSY) m->n_busy++;
        q->is_accepted = s == HD_OK;
        m->n_live += s == HD_OK;
        if (s != HD_OK) assert_true(fits != HD_OK || s == HD_E_BUSY || m->is_dead);
    }
}

/* Other threads act while a step runs. */
static void let_others_act(struct sim *m) {
    m->now_ns += rng_int(&m->rng, 1, 1000000);
    send_some(m);
    maybe_cancel(m);
}

static void any_may_fail(struct sim *m) {
    for (int i = 0; i < m->n_sent; i++) m->request[i].may_fail = true; /* any may be in it */
}

static hd_status enqueue(void *ctx, const hd_batch *b) {
    struct sim *m = ctx;
    hd_batch_check(b);
    let_others_act(m);
    bool dies = !m->dies_late && m->n_enqueued + 1 == m->die_at;
    if (dies || rng_chance(&m->rng, m->fail_p)) {
        fake_dev_fail(m->dev, b);
        any_may_fail(m);
        m->is_dead |= dies;
        return dies ? HD_FAIL(DEVICE, "planned death") : HD_FAIL(INTERNAL, "planned failure");
    }
    int32_t *token = m->token[m->n_enqueued++ % 2];
    assert_true(m->n_enqueued - m->n_fetched <= (m->c.stepper.is_async ? 2 : 1));
    fake_dev_run(m->dev, b, token);
    for (int i = 0; i < b->n_out; i++) {
        float *row = m->logits + (size_t)i * FAKE_N_VOCAB;
        for (int k = 0; k < FAKE_N_VOCAB; k++) row[k] = k == token[i];
        bool is_bad = rng_chance(&m->rng, m->bad_row_p);
        if (is_bad) any_may_fail(m);
        if (is_bad) row[0] = NAN;
        if (is_bad || b->draw[i].is_host) token[i] = -1;
    }
    return HD_OK;
}

static hd_status fetch(void *ctx, hd_step_out *out) {
    struct sim *m = ctx;
    assert_true(m->n_fetched < m->n_enqueued);
    let_others_act(m);
    *out = (hd_step_out){.token = m->token[m->n_fetched++ % 2], .logits = m->logits};
    if (!m->dies_late || m->n_fetched != m->die_at) return HD_OK;
    m->is_dead = true;
    return HD_FAIL(DEVICE, "planned death");
}

static void choose_sched(struct sim *m) {
    test_rng *r = &m->rng;
    static const int page_toks[] = {1, 2, 4, 8, 16};
    hd_sched_config *c = &m->c.sched;
    c->page_tok = page_toks[rng_int(r, 0, 4)];
    c->n_pos_max = rng_int(r, 4, PROMPT_MAX);
    c->n_page = (c->n_pos_max / c->page_tok + 1) * rng_int(r, 2, 8) / 2;
    c->n_seq_max = rng_int(r, 1, 10);
    c->n_row_max = rng_int(r, 1, 60);
    c->chunk_max = rng_chance(r, 0.5) ? 0 : rng_int(r, 1, 32);
    c->chunked = rng_chance(r, 0.8);
    m->c.n_queue_max = rng_chance(r, 0.3) ? rng_int(r, 1, 4) : 100;
    m->c.queue_tok_max = rng_chance(r, 0.3) ? rng_int(r, 1, 300) : 0;
    c->prefix_cache = rng_chance(r, 0.8);
    c->exact = rng_chance(r, 0.3);
    c->expand_min = rng_int(r, 0, 40);
    c->compact_page_max = rng_chance(r, 0.5) ? 0 : rng_int(r, 1, 16);
    c->n_layer = rng_chance(r, 0.5) ? 0 : rng_int(r, 1, 8);
    if (c->n_layer > 0) m->profile = test_slow_prompts(c->n_seq_max, c->n_row_max);
    c->profile = m->profile;
}

static void sim_init(struct sim *m, uint64_t seed) {
    static const int32_t end[1 + CHAT_END_TOKENS] = {FAKE_STOP, 1, 2, 3, 4, 5};
    *m = (struct sim){.rng = {.x = seed * 0x9E3779B97F4A7C15U}, .now_ns = 1};
    test_rng *r = &m->rng;
    choose_sched(m);
    m->c.clock = (hd_clock){.now_ns = virtual_now, .ctx = m};
    m->c.stepper =
        (hd_stepper){.enqueue = enqueue, .fetch = fetch, .is_async = rng_chance(r, 0.5), .ctx = m};
    m->c.n_vocab = FAKE_N_VOCAB;
    m->c.end_token = end;
    m->c.n_end_token = 1;
    m->c.n_chat_end_token = CHAT_END_TOKENS;
    m->n_request = rng_int(r, 1, REQUEST_MAX);
    m->send_p = rng_chance(r, 0.3) ? 0.95 : 0.2;
    m->cancel_p = rng_chance(r, 0.5) ? 0 : 0.003 * rng_int(r, 1, 10);
    m->fail_p = rng_chance(r, 0.7) ? 0 : 0.02;
    m->bad_row_p = rng_chance(r, 0.7) ? 0 : 0.01;
    m->refuse_p = rng_chance(r, 0.5) ? 0 : 0.1;
    m->die_at = rng_chance(r, 0.9) ? 0 : rng_int(r, 1, 100);
    m->dies_late = rng_chance(r, 0.5);
    int n_pos_max = m->c.sched.n_pos_max;
    m->prompt_max = rng_chance(r, 0.5) ? n_pos_max : rng_int(r, 1, n_pos_max / 2);
    m->new_max = rng_int(r, 1, n_pos_max);
    for (int f = 0; f < 2; f++) {
        for (int i = 0; i < PROMPT_MAX; i++) m->family[f][i] = rng_int(r, 0, FAKE_N_VOCAB - 1);
    }
    m->request = hd_alloc_zero((size_t)m->n_request, sizeof *m->request);
    for (int i = 0; i < 2; i++)
        m->token[i] = hd_alloc_zero((size_t)m->c.sched.n_seq_max, sizeof(int32_t));
    m->logits = hd_alloc_zero((size_t)m->c.sched.n_seq_max, FAKE_N_VOCAB * sizeof(float));
    m->dev = fake_dev_new(m->c.sched.n_page, m->c.sched.page_tok, m->c.sched.n_seq_max);
    m->loop = hd_loop_new(&m->c);
}

static void sim_fini(struct sim *m) {
    assert_int_equal(m->n_live, 0);
    for (int i = 0; i < m->n_sent; i++) {
        assert_int_equal(m->request[i].is_accepted, m->request[i].is_ended);
    }
    if (!m->is_dead) hd_loop_drop_cache(m->loop);
    hd_engine_stats st;
    hd_loop_get_stats(m->loop, &st);
    assert_int_equal(st.n_running + st.n_waiting + st.n_page_used, 0);
    if (!m->is_dead) assert_int_equal(st.n_page_free, m->c.sched.n_page);
    assert_int_equal(st.prompt_tok, m->prompt_tok);
    assert_int_equal(st.hit_tok, m->hit_tok);
    assert_int_equal(st.generated_tok, m->told_tok);
    assert_int_equal(st.is_failed, m->is_dead);
    hd_loop_free(m->loop);
    hd_profile_free(m->profile);
    fake_dev_free(m->dev);
    for (int i = 0; i < 2; i++) hd_free(m->token[i]);
    hd_free(m->logits);
    hd_free(m->request);
}

struct totals {
    uint64_t n_end[HD_FINISH_ERROR + 1], n_busy, n_preempt, n_dead, n_step, hit_tok;
};

static void run_seed(uint64_t seed, void *totals) {
    struct totals *t = totals;
    struct sim m;
    sim_init(&m, seed);
    bool did = true;
    for (int i = 0; did || (m.n_sent < m.n_request && !m.is_dead); i++) {
        if (i == TURN_MAX) fail_msg("no end after %d turns", TURN_MAX);
        m.now_ns += rng_int(&m.rng, 1, 1000);
        send_some(&m);
        maybe_cancel(&m);
        did = hd_loop_turn(m.loop);
        m.is_closed = m.is_dead;
        hd_loop_check(m.loop);
        assert_true(did || m.n_live == 0); /* no rest while there is work */
    }
    hd_engine_stats st;
    hd_loop_get_stats(m.loop, &st);
    for (int i = 0; i <= HD_FINISH_ERROR; i++) t->n_end[i] += m.n_end[i];
    t->n_busy += m.n_busy;
    t->n_preempt += st.n_preempt;
    t->n_dead += m.is_dead;
    t->n_step += st.n_step;
    t->hit_tok += st.hit_tok;
    sim_fini(&m);
}

static void every_request_is_told_its_tokens_and_one_end(void **state) {
    (void)state;
    struct totals t = {0};
    seeds_run(run_seed, &t);
    print_message("%llu steps; ends: %llu stop, %llu length, %llu cancelled, %llu error; "
                  "%llu refused, %llu preemptions, %llu devices died, %llu tokens hit\n",
                  (unsigned long long)t.n_step, (unsigned long long)t.n_end[HD_FINISH_STOP],
                  (unsigned long long)t.n_end[HD_FINISH_LENGTH],
                  (unsigned long long)t.n_end[HD_FINISH_CANCELLED],
                  (unsigned long long)t.n_end[HD_FINISH_ERROR], (unsigned long long)t.n_busy,
                  (unsigned long long)t.n_preempt, (unsigned long long)t.n_dead,
                  (unsigned long long)t.hit_tok);
    if (seeds_count() < 100) return;
    for (int i = HD_FINISH_STOP; i <= HD_FINISH_ERROR; i++) assert_true(t.n_end[i] > 0);
    assert_true(t.n_busy > 0 && t.n_preempt > 50 && t.n_dead > 0 && t.hit_tok > 0);
}

int main(int argc, char **argv) {
    seeds_init(argc, argv, 600);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_request_is_told_its_tokens_and_one_end),
    };
    return seeds_end(cmocka_run_group_tests(tests, NULL, NULL));
}
