/* Simulation of the scheduler over the fake device: seeded arrivals, lengths, priorities, shared
 * beginnings, cancels in every state, failed steps, pools so small that sequences are preempted.
 *
 * After every step all invariants hold and all KV that was read is what it should be; in the end
 * each request has got exactly its tokens, once and in order, and every page is free. Half of the
 * seeds are told a step's tokens only when the next step has been planned; half of them compute
 * prompts some layers at a time. How to run other seeds:
 * support/seeds.h. */
#include "support/check.h"
#include "support/fake_dev.h"
#include "support/seeds.h"
#include "support/slow_prompts.h"

#include "base/mem.h"
#include "sched/sched.h"

#include <string.h>

enum { N_FAMILY = 4, FAMILY_TOK = 200, LIVE_MAX = 64, STEP_MAX = 200000 };

struct request {
    int32_t *prompt;
    int n_prompt, n_new_max, n_got;
    uint64_t salt;
    uint64_t hash;  /* of prompt and tokens got */
    uint8_t *form;  /* the record when first seen admitted */
    int n_form;     /* 0: not seen yet */
    bool cancelled; /* or failed: it ends short */
    hd_seq *seq;
};

struct sim {
    test_rng rng;
    hd_sched_config c;
    hd_sched *s;
    hd_profile *profile;
    fake_dev *dev;
    hd_batch b;
    int64_t now_ns;
    struct request *live[LIVE_MAX];
    int n_live;
    int n_left; /* requests to arrive */
    double arrive_p, cancel_p, fail_p;
    bool overlaps;
    struct request *told_late[LIVE_MAX]; /* [n_late] outputs of the step before; NULL: ended */
    int32_t late_token[LIVE_MAX];
    int n_late;
    int prompt_max, new_max, n_salt, n_priority, n_service, n_family;
    int32_t family[N_FAMILY][FAMILY_TOK];
    int32_t *next;
    uint64_t prompt_tok, hit_tok, n_finished, n_cancelled, n_refused, n_failed, n_tok_run, n_slice;
    int layer[HD_BATCH_CHUNKS]; /* up to where the last step of some layers went */
    int last_chunk;
    uint64_t n_resume; /* chunks that went on after another one */
};

static void choose_config(struct sim *m) {
    test_rng *r = &m->rng;
    static const int page_toks[] = {1, 2, 3, 4, 8, 16};
    hd_sched_config *c = &m->c;
    c->page_tok = page_toks[rng_int(r, 0, 5)];
    c->n_pos_max = rng_int(r, 2, rng_chance(r, 0.5) ? 40 : 150);
    c->n_page = rng_int(r, 1, 3 * (c->n_pos_max / c->page_tok + 1));
    if (rng_chance(r, 0.3)) c->n_page *= 8;
    c->n_seq_max = rng_int(r, 1, 12);
    c->n_row_max = rng_chance(r, 0.3) ? rng_int(r, 1, 8) : rng_int(r, 8, 64);
    c->chunk_max = rng_chance(r, 0.5) ? 0 : rng_int(r, 1, 32);
    c->chunked = rng_chance(r, 0.8);
    c->prefix_cache = rng_chance(r, 0.8);
    c->exact = rng_chance(r, 0.2);
    c->expand_min = rng_chance(r, 0.5) ? rng_int(r, 0, 20) : rng_int(r, 0, 200);
    c->model_key = rng_next(r);
    c->reorder = (enum hd_reorder)rng_int(r, 0, 3);
    c->reorder_interval = rng_int(r, 1, 8);
    c->is_static = rng_chance(r, 0.1);
    c->compact_page_max = rng_chance(r, 0.5) ? 0 : rng_int(r, 1, 20);
    c->n_layer = rng_chance(r, 0.5) ? 0 : rng_int(r, 1, 8);
    m->n_left = rng_int(r, 10, 60);
    m->arrive_p = rng_chance(r, 0.2) ? 1.0 : 0.02 + 0.3 * rng_int(r, 0, 2);
    m->cancel_p = rng_chance(r, 0.4) ? 0.0 : 0.01 * rng_int(r, 1, 10);
    m->fail_p = rng_chance(r, 0.6) ? 0.0 : 0.05;
    m->overlaps = rng_chance(r, 0.5);
    m->prompt_max = rng_int(r, 1, c->n_pos_max);
    m->new_max = rng_int(r, 1, rng_chance(r, 0.3) ? 4 : c->n_pos_max);
    m->n_salt = rng_int(r, 1, 2);
    m->n_priority = rng_int(r, 1, 3);
    m->n_service = rng_chance(r, 0.5) ? 1 : HD_SERVICE_COUNT;
    m->n_family = N_FAMILY;
    if (rng_chance(r, 0.4)) { /* short prompts, long answers, few pages: sequences outgrow them */
        c->n_pos_max = rng_int(r, 30, 150);
        c->n_seq_max = rng_int(r, 3, 12);
        c->n_page = (c->n_pos_max + c->page_tok - 1) / c->page_tok * rng_int(r, 2, 6) / 2;
        m->prompt_max = rng_int(r, 1, c->n_pos_max / 3);
        m->new_max = c->n_pos_max - m->prompt_max;
        m->arrive_p = 0.9;
        /* Often the same beginning in both forms: a few tokens absorbed, many expanded. */
        c->expand_min = rng_int(r, 1, m->prompt_max);
        m->n_family = rng_int(r, 1, N_FAMILY);
    }
    int n_token = rng_chance(r, 0.5) ? 2 : FAKE_N_VOCAB; /* 2: beginnings often agree by chance */
    for (int f = 0; f < N_FAMILY; f++) {
        for (int i = 0; i < FAMILY_TOK; i++) m->family[f][i] = rng_int(r, 0, n_token - 1);
    }
}

static void sim_init(struct sim *m, uint64_t seed) {
    *m = (struct sim){.rng = {.x = seed * 0x9E3779B97F4A7C15U}};
    choose_config(m);
    if (m->c.n_layer > 0) m->profile = test_slow_prompts(m->c.n_seq_max, m->c.n_row_max);
    m->c.profile = m->profile;
    m->s = hd_sched_new(&m->c);
    hd_sched_batch_init(&m->c, &m->b);
    m->dev = fake_dev_new(m->c.n_page, m->c.page_tok, m->b.n_seq_max);
    m->next = hd_alloc_zero((size_t)m->b.n_seq_max, sizeof *m->next);
}

static void request_free(struct request *r) {
    hd_seq_free(r->seq);
    hd_free(r->prompt);
    hd_free(r->form);
    hd_free(r);
}

static struct request *make_request(struct sim *m) {
    test_rng *g = &m->rng;
    struct request *r = hd_alloc_zero(1, sizeof *r);
    r->n_prompt = rng_int(g, 1, m->prompt_max);
    r->n_new_max = rng_int(g, rng_chance(g, 0.5) ? (m->new_max + 1) / 2 : 1, m->new_max);
    r->salt = (uint64_t)rng_int(g, 0, m->n_salt - 1);
    r->prompt = hd_alloc_zero((size_t)r->n_prompt, sizeof *r->prompt);
    r->form = hd_alloc_zero((size_t)r->n_prompt, sizeof *r->form);
    const int32_t *family = m->family[rng_int(g, 0, m->n_family - 1)];
    int n_shared = rng_chance(g, 0.2) ? r->n_prompt : rng_int(g, 0, r->n_prompt);
    for (int i = 0; i < r->n_prompt; i++) {
        r->prompt[i] = i < n_shared ? family[i % FAMILY_TOK] : rng_int(g, 0, FAKE_N_VOCAB - 1);
    }
    r->hash = fake_hash_begin(r->salt);
    for (int i = 0; i < r->n_prompt; i++) {
        r->hash = fake_hash_add(r->hash, (uint64_t)r->prompt[i]);
    }
    hd_seq_spec spec = {.prompt = r->prompt,
                        .n_prompt = r->n_prompt,
                        .n_new_max = r->n_new_max,
                        .priority = rng_int(g, 0, m->n_priority - 1),
                        .service = (enum hd_service)rng_int(g, 0, m->n_service - 1),
                        .salt = r->salt,
                        .user = r};
    r->seq = hd_seq_new(&m->c, &spec);
    return r;
}

static void arrive(struct sim *m) {
    while (m->n_left > 0 && m->n_live < LIVE_MAX && rng_chance(&m->rng, m->arrive_p)) {
        m->n_left--;
        struct request *r = make_request(m);
        hd_status fits = hd_sched_fits(&m->c, r->n_prompt, r->n_new_max);
        assert_int_equal(hd_sched_submit(m->s, r->seq), fits);
        if (fits == HD_OK) {
            m->live[m->n_live++] = r;
        } else {
            m->n_refused++;
            assert_int_equal(hd_seq_get_state(r->seq), HD_SEQ_NEW);
            request_free(r);
        }
    }
}

/* Everything that is true of a request when it ends. */
static void finish(struct sim *m, struct request *r) {
    if (hd_seq_admitted_ns(r->seq) >= 0) {
        m->prompt_tok += (uint64_t)r->n_prompt;
        m->hit_tok += (uint64_t)hd_seq_n_hit(r->seq);
    }
    int n_tok = hd_seq_n_tok(r->seq);
    n_tok -= hd_seq_tokens(r->seq)[n_tok - 1] == HD_TOKEN_UNKNOWN;
    assert_int_equal(n_tok, r->n_prompt + r->n_got);
    uint64_t hash = fake_hash_begin(r->salt);
    for (int i = 0; i < r->n_prompt + r->n_got; i++) {
        int32_t token = hd_seq_tokens(r->seq)[i];
        if (i < r->n_prompt)
            assert_int_equal(token, r->prompt[i]);
        else
            assert_int_equal(token, fake_next(hash));
        hash = fake_hash_add(hash, (uint64_t)token);
    }
    assert_true(r->cancelled || r->n_got == r->n_new_max || fake_next(r->hash) == FAKE_STOP);
    hd_sched_finish(m->s, r->seq);
    assert_int_equal(hd_seq_get_state(r->seq), HD_SEQ_DONE);
    m->n_finished += !r->cancelled;
    m->n_cancelled += r->cancelled;
    int i = 0;
    while (m->live[i] != r) i++;
    m->live[i] = m->live[--m->n_live];
    for (i = 0; i < m->n_late; i++)
        if (m->told_late[i] == r) m->told_late[i] = NULL;
    request_free(r);
}

static void maybe_cancel(struct sim *m) {
    while (m->n_live > 0 && rng_chance(&m->rng, m->cancel_p)) {
        struct request *r = m->live[rng_int(&m->rng, 0, m->n_live - 1)];
        r->cancelled = true;
        finish(m, r);
        hd_sched_check(m->s);
    }
}

/* The forms follow the rule at first admission and never change afterwards. */
static void check_forms(struct sim *m, struct request *r) {
    const uint8_t *form = hd_seq_forms(r->seq);
    int n_hit = hd_seq_n_hit(r->seq);
    if (r->n_form == 0) {
        assert_true(n_hit % m->c.page_tok == 0 && n_hit < r->n_prompt);
        bool expanded = !m->c.exact && r->n_prompt - n_hit >= m->c.expand_min;
        for (int i = n_hit; i < r->n_prompt; i++) assert_int_equal(form[i], expanded);
        r->n_form = r->n_prompt;
        memcpy(r->form, form, (size_t)r->n_form);
    }
    assert_memory_equal(r->form, form, (size_t)r->n_form);
    for (int i = 0; i < hd_seq_n_tok(r->seq); i++) {
        if (i >= r->n_prompt || m->c.exact) assert_int_equal(form[i], HD_MLA_ABSORBED);
    }
}

/* The step that admits a sequence computes rows of it. */
static void check_admitted(struct sim *m) {
    int n_admitted = 0;
    for (int i = 0; i < m->n_live; i++) {
        n_admitted += hd_seq_admitted_ns(m->live[i]->seq) == m->now_ns;
    }
    for (int i = 0; i < m->b.n_seq; i++) {
        const hd_seq *q = hd_sched_seq_at(m->s, &m->b, i);
        n_admitted -= q && hd_seq_admitted_ns(q) == m->now_ns;
    }
    assert_int_equal(n_admitted, 0);
}

/* Before the run: what the batch says of each sequence agrees with the sequence. */
static void check_batch(struct sim *m) {
    hd_batch_check(&m->b);
    if (m->b.layer1 > 0) {
        int ix = m->b.chunk_ix;
        assert_true(m->b.layer0 == 0 || m->b.layer0 == m->layer[ix]);
        assert_true(m->b.layer1 <= m->c.n_layer);
        assert_true(m->b.layer1 == m->c.n_layer || m->b.n_out == 0);
        m->layer[ix] = m->b.layer1;
        m->n_slice++;
        m->n_resume += m->b.layer0 > 0 && m->last_chunk != ix;
        m->last_chunk = ix;
    }
    for (int i = 0; i < m->b.n_seq; i++) {
        hd_seq *q = hd_sched_seq_at(m->s, &m->b, i);
        assert_true(q || m->b.layer0 > 0); /* it ended with layers yet to compute */
        if (!q) continue;
        struct request *r = hd_seq_user(q);
        check_forms(m, r);
        fake_dev_set_salt(m->dev, m->b.seq_slot[i], r->salt);
        int row0 = m->b.seq_row0[i], n_row = m->b.seq_row0[i + 1] - row0;
        assert_int_equal(m->b.pos[row0], hd_seq_n_computed(q));
        assert_true(hd_seq_n_computed(q) + n_row <= hd_seq_n_tok(q));
        for (int k = row0; k < row0 + n_row; k++) {
            int32_t token = hd_seq_tokens(q)[m->b.pos[k]];
            if (token == HD_TOKEN_UNKNOWN) token = hd_token_of_slot(m->b.seq_slot[i]);
            assert_int_equal(m->b.token[k], token);
            assert_int_equal(m->b.form[k], hd_seq_forms(q)[m->b.pos[k]]);
        }
        bool first = hd_seq_n_computed(q) <= r->n_prompt && hd_seq_n_tok(q) == r->n_prompt;
        if (m->c.chunked && m->c.chunk_max > 0) assert_true(n_row <= m->c.chunk_max || n_row == 1);
        if (!m->c.chunked && first) assert_int_equal(hd_seq_n_computed(q) + n_row, r->n_prompt);
    }
}

static void verify_kv(struct sim *m) {
    for (int i = 0; i < m->b.n_seq; i++) {
        hd_seq *q = hd_sched_seq_at(m->s, &m->b, i);
        if (!q) continue;
        int n_tok = m->b.pos[m->b.seq_row0[i + 1] - 1] + 1;
        fake_dev_verify(m->dev, &m->b, i, hd_seq_tokens(q), hd_seq_forms(q), n_tok);
    }
}

static void take_token(struct sim *m, struct request *r, int32_t token,
                       void (*tell)(hd_sched *s, hd_seq *q, int32_t token)) {
    assert_int_equal(token, fake_next(r->hash));
    if (token == FAKE_STOP) {
        finish(m, r);
        return;
    }
    tell(m->s, r->seq, token);
    r->hash = fake_hash_add(r->hash, (uint64_t)token);
    if (++r->n_got == r->n_new_max) finish(m, r);
}

/* The tokens of the step before, when this one is under way. */
static void take_late(struct sim *m) {
    for (int i = 0; i < m->n_late; i++)
        if (m->told_late[i]) take_token(m, m->told_late[i], m->late_token[i], hd_sched_resolve);
    m->n_late = 0;
}

static void take_outputs(struct sim *m) {
    for (int i = 0; i < m->b.n_out; i++) {
        hd_seq *q = hd_sched_out_seq(m->s, &m->b, i);
        if (!q) continue;
        struct request *r = hd_seq_user(q);
        assert_int_equal(hd_seq_n_computed(q), hd_seq_n_tok(q));
        if (!m->overlaps) {
            take_token(m, r, m->next[i], hd_sched_append);
            continue;
        }
        hd_sched_append(m->s, q, HD_TOKEN_UNKNOWN);
        m->told_late[m->n_late] = r;
        m->late_token[m->n_late++] = m->next[i];
    }
}

/* A step that fails is tried again, or all its sequences fail. */
static void fail_step(struct sim *m) {
    fake_dev_fail(m->dev, &m->b);
    take_late(m);
    hd_sched_abandon(m->s, &m->b);
    hd_sched_check(m->s);
    m->n_failed++;
    if (rng_chance(&m->rng, 0.7)) return;
    for (int i = 0; i < m->b.n_seq; i++) {
        hd_seq *q = hd_sched_seq_at(m->s, &m->b, i);
        if (!q) continue;
        struct request *r = hd_seq_user(q);
        r->cancelled = true;
        finish(m, r);
    }
}

static void step(struct sim *m) {
    m->now_ns += rng_int(&m->rng, 1, 1000000);
    arrive(m);
    maybe_cancel(m);
    int n_row = hd_sched_plan(m->s, m->now_ns, &m->b);
    hd_sched_check(m->s);
    /* Work is always done when there is any. */
    assert_true(n_row > 0 || m->n_live == 0 || m->n_late > 0);
    assert_true(n_row <= m->c.n_row_max);
    check_batch(m);
    check_admitted(m);
    m->n_tok_run += (uint64_t)n_row;
    maybe_cancel(m);
    arrive(m);
    if (n_row > 0 && rng_chance(&m->rng, m->fail_p)) {
        fail_step(m);
        hd_sched_check(m->s);
        return;
    }
    fake_dev_run(m->dev, &m->b, m->next);
    take_late(m);
    verify_kv(m);
    maybe_cancel(m);
    hd_sched_commit(m->s, &m->b);
    hd_sched_check(m->s);
    maybe_cancel(m);
    take_outputs(m);
    hd_sched_check(m->s);
}

static void sim_fini(struct sim *m) {
    hd_sched_stats st;
    assert_int_equal(hd_sched_plan(m->s, m->now_ns, &m->b), 0); /* pages of a prompt cut short */
    hd_sched_get_stats(m->s, &st);
    assert_int_equal(st.n_waiting + st.n_running + st.n_page_used, 0);
    assert_int_equal(st.prompt_tok, m->prompt_tok);
    assert_int_equal(st.hit_tok, m->hit_tok);
    hd_sched_drop_cache(m->s);
    hd_sched_check(m->s);
    hd_sched_get_stats(m->s, &st);
    assert_int_equal(st.n_page_free, m->c.n_page);
    hd_sched_free(m->s);
    hd_batch_fini(&m->b);
    fake_dev_free(m->dev);
    hd_profile_free(m->profile);
    hd_free(m->next);
}

struct totals {
    uint64_t n_finished, n_cancelled, n_refused, n_failed, n_preempt, n_tok_run, recomputed, hit,
        prompt, n_moved, n_slice, n_resume;
};

static void run_seed(uint64_t seed, void *totals) {
    struct totals *t = totals;
    struct sim m;
    sim_init(&m, seed);
    for (int n_step = 0; m.n_left > 0 || m.n_live > 0; n_step++) {
        if (n_step == STEP_MAX) fail_msg("no end after %d steps", STEP_MAX);
        step(&m);
    }
    hd_sched_stats st;
    hd_sched_get_stats(m.s, &st);
    t->n_finished += m.n_finished;
    t->n_cancelled += m.n_cancelled;
    t->n_refused += m.n_refused;
    t->n_failed += m.n_failed;
    t->n_preempt += st.n_preempt;
    t->n_tok_run += m.n_tok_run;
    t->n_slice += m.n_slice;
    t->n_resume += m.n_resume;
    t->recomputed += st.recomputed_tok;
    t->hit += st.hit_tok;
    t->n_moved += st.n_moved;
    t->prompt += st.prompt_tok;
    sim_fini(&m);
}

static void every_request_gets_its_tokens(void **state) {
    (void)state;
    struct totals t = {0};
    seeds_run(run_seed, &t);
    print_message("%llu finished, %llu cancelled, %llu refused, %llu steps failed, "
                  "%llu preemptions, %llu rows, %llu recomputed, %llu of %llu prompt tokens hit, "
                  "%llu pages moved, %llu steps of some layers, %llu resumed behind others\n",
                  (unsigned long long)t.n_finished, (unsigned long long)t.n_cancelled,
                  (unsigned long long)t.n_refused, (unsigned long long)t.n_failed,
                  (unsigned long long)t.n_preempt, (unsigned long long)t.n_tok_run,
                  (unsigned long long)t.recomputed, (unsigned long long)t.hit,
                  (unsigned long long)t.prompt, (unsigned long long)t.n_moved,
                  (unsigned long long)t.n_slice, (unsigned long long)t.n_resume);
    if (seeds_count() < 100) return;
    /* The seeds are worth something only if they reach all this. */
    assert_true(t.n_finished > 0 && t.n_cancelled > 0 && t.n_refused > 0 && t.n_failed > 0);
    assert_true(t.n_moved > 100 && t.n_preempt > 100 && t.hit > 0 && t.hit < t.prompt &&
                t.recomputed > 0 && t.n_slice > 1000);
    if (seeds_count() >= 600) assert_true(t.n_resume > 0);
}

int main(int argc, char **argv) {
    seeds_init(argc, argv, 600);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_request_gets_its_tokens),
    };
    return seeds_end(cmocka_run_group_tests(tests, NULL, NULL));
}
