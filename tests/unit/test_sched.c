/* Scheduler: directed cases. The random ones are tests/sim/test_sim.c. */
#include "support/allocs.h"
#include "support/check.h"
#include "support/fake_dev.h"
#include "support/slow_prompts.h"

#include "base/mem.h"
#include "sched/sched.h"

#include <string.h>

static hd_sched_config config(void) {
    return (hd_sched_config){.n_seq_max = 16,
                             .n_row_max = 64,
                             .chunked = true,
                             .n_pos_max = 1000,
                             .n_page = 200,
                             .page_tok = 8,
                             .prefix_cache = true,
                             .expand_min = 32,
                             .model_key = 7};
}

struct fixture {
    hd_sched_config c;
    hd_profile *profile; /* NULL: nothing is predicted */
    hd_sched *s;
    hd_batch b;
    int64_t now_ns;
};

static struct fixture setup(hd_sched_config c) {
    struct fixture f = {.c = c, .s = hd_sched_new(&c)};
    hd_sched_batch_init(&c, &f.b);
    return f;
}

/* By this profile, which the fixture owns, prompts beside those who decode are cut into layers. */
static struct fixture setup_cut(hd_sched_config c, int n_layer, hd_profile *profile) {
    c.n_layer = n_layer;
    c.profile = profile;
    struct fixture f = setup(c);
    f.profile = profile;
    return f;
}

static hd_profile *slow_prompts(const hd_sched_config *c) {
    return test_slow_prompts(c->n_seq_max, c->n_row_max);
}

static void teardown(struct fixture *f) {
    hd_sched_check(f->s);
    hd_sched_drop_cache(f->s);
    hd_sched_stats st;
    hd_sched_get_stats(f->s, &st);
    assert_int_equal(st.n_page_free, f->c.n_page);
    hd_batch_fini(&f->b);
    hd_sched_free(f->s);
    hd_profile_free(f->profile);
}

/* A sequence whose prompt counts up from `from`. */
static hd_seq *seq(const struct fixture *f, int from, int n_prompt, int n_new_max) {
    int32_t token[2000];
    for (int i = 0; i < n_prompt; i++) token[i] = from + i;
    hd_seq_spec spec = {.prompt = token, .n_prompt = n_prompt, .n_new_max = n_new_max};
    return hd_seq_new(&f->c, &spec);
}

/* One step: a sequence gets token 9000 + its length, and ends with its last one. */
static int step(struct fixture *f) {
    int n_row = hd_sched_plan(f->s, f->now_ns++, &f->b);
    hd_sched_check(f->s);
    hd_sched_commit(f->s, &f->b);
    for (int i = 0; i < f->b.n_out; i++) {
        hd_seq *q = hd_sched_out_seq(f->s, &f->b, i);
        if (!q) continue;
        hd_sched_append(f->s, q, 9000 + hd_seq_n_tok(q));
        if (hd_seq_n_tok(q) == hd_seq_n_prompt(q) + hd_seq_n_new_max(q)) hd_sched_finish(f->s, q);
    }
    hd_sched_check(f->s);
    return n_row;
}

static void repeat_hits_all_whole_pages_but_the_last_token(void **state) {
    (void)state;
    for (int n_prompt = 1; n_prompt <= 40; n_prompt++) {
        struct fixture f = setup(config());
        for (int k = 0; k < 2; k++) {
            hd_seq *q = seq(&f, 0, n_prompt, 3);
            assert_ok(hd_sched_submit(f.s, q));
            while (step(&f) > 0) {
            }
            assert_int_equal(hd_seq_get_state(q), HD_SEQ_DONE);
            assert_int_equal(hd_seq_n_hit(q), k == 0 ? 0 : (n_prompt - 1) / 8 * 8);
            hd_seq_free(q);
        }
        teardown(&f);
    }
}

static hd_seq *submitted(struct fixture *f, hd_seq *q) {
    assert_ok(hd_sched_submit(f->s, q));
    return q;
}

/* A prompt of n_shared tokens from 0 on and n_own from `from` on. */
static hd_seq *shared_seq(struct fixture *f, int n_shared, int from, int n_own,
                          enum hd_service service) {
    int32_t token[2000];
    for (int i = 0; i < n_shared; i++) token[i] = i;
    for (int i = 0; i < n_own; i++) token[n_shared + i] = from + i;
    hd_seq_spec spec = {
        .prompt = token, .n_prompt = n_shared + n_own, .n_new_max = 5, .service = service};
    return submitted(f, hd_seq_new(&f->c, &spec));
}

static hd_sched_stats stats(const struct fixture *f) {
    hd_sched_stats st;
    hd_sched_get_stats(f->s, &st);
    return st;
}

static void sixteen_at_once_compute_a_shared_prefix_once(void **state) {
    (void)state;
    for (int n_own = 0; n_own <= 20; n_own += 4) { /* 0: sixteen times the same prompt */
        struct fixture f = setup(config());
        hd_seq *q[16];
        for (int i = 0; i < 16; i++)
            q[i] = shared_seq(&f, 403, 2000 + 100 * i, n_own, HD_SERVICE_BATCH);
        int n_row = 0, n;
        while ((n = step(&f)) > 0) n_row += n;
        int n_hit = (403 - (n_own == 0)) / 8 * 8, n_total = 0;
        for (int i = 0; i < 16; i++) {
            assert_int_equal(hd_seq_get_state(q[i]), HD_SEQ_DONE);
            assert_int_equal(hd_seq_n_hit(q[i]), i == 0 ? 0 : n_hit);
            n_total += hd_seq_n_prompt(q[i]) + 4; /* the last token is not computed */
            hd_seq_free(q[i]);
        }
        assert_int_equal(n_row, n_total - 15 * n_hit);
        assert_int_equal(stats(&f).hit_tok, 15 * n_hit);
        assert_int_equal(stats(&f).prompt_tok, 16 * (403 + n_own));
        teardown(&f);
    }
}

/* Whoever computes the shared prefix is cancelled, at each step and moment of it: the next takes
 * over from where it was, and nobody waits forever. */
static void a_promise_ends_with_who_made_it(void **state) {
    (void)state;
    for (int at = 0; at < 10; at++) {
        for (int in_flight = 0; in_flight < 2; in_flight++) {
            struct fixture f = setup(config());
            hd_seq *q[4];
            for (int i = 0; i < 4; i++)
                q[i] = shared_seq(&f, 403, 2000 + 100 * i, 9, HD_SERVICE_BATCH);
            for (int i = 0; i < at; i++) step(&f);
            if (in_flight) {
                assert_true(hd_sched_plan(f.s, 0, &f.b) > 0);
                hd_sched_finish(f.s, q[0]);
                for (int i = 0; i < f.b.n_seq; i++) {
                    assert_ptr_not_equal(hd_sched_seq_at(f.s, &f.b, i), q[0]);
                }
                hd_sched_check(f.s);
                hd_sched_abandon(f.s, &f.b);
            } else {
                hd_sched_finish(f.s, q[0]);
            }
            while (step(&f) > 0) {
            }
            for (int i = 0; i < 4; i++) {
                assert_int_equal(hd_seq_get_state(q[i]), HD_SEQ_DONE);
                int n_done = at * 64 < 400 ? at * 64 : 400; /* before the cancel */
                if (i == 1) assert_int_equal(hd_seq_n_hit(q[1]), n_done);
                if (i > 1) assert_int_equal(hd_seq_n_hit(q[i]), 400);
                hd_seq_free(q[i]);
            }
            teardown(&f);
        }
    }
}

static void who_waits_for_a_prefix_stops_nobody(void **state) {
    (void)state;
    hd_sched_config c = config();
    c.chunk_max = 16;
    struct fixture f = setup(c);
    hd_seq *first = shared_seq(&f, 403, 2000, 9, HD_SERVICE_BATCH),
           *waits = shared_seq(&f, 403, 3000, 9, HD_SERVICE_BATCH);
    hd_seq *other = submitted(&f, seq(&f, 5000, 10, 5));
    hd_seq *urgent = shared_seq(&f, 403, 4000, 9, HD_SERVICE_STANDARD);
    step(&f);
    assert_int_equal(hd_seq_get_state(first), HD_SEQ_WAITING); /* for the urgent one's */
    assert_int_equal(hd_seq_get_state(waits), HD_SEQ_WAITING);
    assert_int_equal(hd_seq_get_state(other), HD_SEQ_RUNNING);
    assert_int_equal(hd_seq_get_state(urgent), HD_SEQ_RUNNING);
    hd_seq *more_urgent = shared_seq(
        &f, 403, 6000, 9, HD_SERVICE_INTERACTIVE); /* does not wait for the less urgent */
    step(&f);
    assert_int_equal(hd_seq_get_state(more_urgent), HD_SEQ_RUNNING);
    while (step(&f) > 0) {
    }
    assert_int_equal(hd_seq_n_hit(first), 400);
    assert_int_equal(hd_seq_n_hit(waits), 400);
    assert_int_equal(hd_seq_n_hit(more_urgent), 16);
    hd_seq *all[] = {first, waits, other, urgent, more_urgent};
    for (int i = 0; i < 5; i++) hd_seq_free(all[i]);
    teardown(&f);
}

static void tenants_do_not_share(void **state) {
    (void)state;
    struct fixture f = setup(config());
    int32_t token[100] = {0};
    for (uint64_t salt = 1; salt <= 2; salt++) {
        hd_seq_spec spec = {.prompt = token, .n_prompt = 100, .n_new_max = 1, .salt = salt};
        hd_seq *q = submitted(&f, hd_seq_new(&f.c, &spec));
        while (step(&f) > 0) {
        }
        assert_int_equal(hd_seq_n_hit(q), 0);
        hd_seq_free(q);
    }
    teardown(&f);
}

/* Turn k of an agent is turn k-1, its answer and 10 tokens more. */
static void long_session_hits_every_turn(void **state) {
    (void)state;
    struct fixture f = setup(config());
    int32_t token[1000] = {0};
    int n_tok = 0;
    for (int turn = 0; turn < 50; turn++) {
        for (int i = 0; i < 10; i++) token[n_tok++] = 100 * turn + i;
        hd_seq_spec spec = {.prompt = token, .n_prompt = n_tok, .n_new_max = 7};
        hd_seq *q = submitted(&f, hd_seq_new(&f.c, &spec));
        while (step(&f) > 0) {
        }
        int n_known = n_tok - 11; /* computed in earlier turns: all but their last token */
        assert_int_equal(hd_seq_n_hit(q), turn == 0 ? 0 : n_known / 8 * 8);
        for (int i = 0; i < 7; i++) token[n_tok++] = hd_seq_tokens(q)[hd_seq_n_prompt(q) + i];
        hd_seq_free(q);
    }
    teardown(&f);
}

static void what_cannot_fit_is_refused_by_name(void **state) {
    (void)state;
    hd_sched_config c = config();
    assert_ok(hd_sched_fits(&c, 999, 1));
    assert_int_equal(hd_sched_fits(&c, 999, 2), HD_E_CONTEXT);
    assert_non_null(strstr(hd_error_text(), "at most 1000 tokens, asked for 1001"));
    assert_int_equal(hd_sched_fits(&c, 1, INT32_MAX), HD_E_CONTEXT);
    assert_int_equal(hd_sched_fits(&c, 0, 1), HD_E_INVALID);
    assert_int_equal(hd_sched_fits(&c, 1, 0), HD_E_INVALID);
    c.n_page = 10;
    assert_ok(hd_sched_fits(&c, 80, 1)); /* the generated token is never computed */
    assert_int_equal(hd_sched_fits(&c, 80, 2), HD_E_CONTEXT);
    assert_non_null(strstr(hd_error_text(), "at most 10 of 8 tokens, asked for 11"));
    c.chunked = false;
    assert_ok(hd_sched_fits(&c, 64, 2));
    assert_int_equal(hd_sched_fits(&c, 65, 2), HD_E_CONTEXT);
    assert_non_null(strstr(hd_error_text(), "at most 64 tokens"));
    struct fixture f = setup(c);
    hd_seq *q = seq(&f, 0, 65, 2), *huge = seq(&f, 0, 5, INT32_MAX);
    assert_int_equal(hd_sched_submit(f.s, q), HD_E_CONTEXT);
    assert_int_equal(hd_sched_submit(f.s, huge), HD_E_CONTEXT);
    hd_seq_free(q);
    hd_seq_free(huge);
    teardown(&f);
}

/* Five decoding sequences and a prompt of ten steps: each step has a row for each, and the prompt
 * gets what is left. */
static void decoding_goes_on_beside_a_long_prompt(void **state) {
    (void)state;
    hd_sched_config c = config();
    c.n_row_max = 20;
    c.chunk_max = 12;
    struct fixture f = setup(c);
    hd_seq *q[6];
    for (int i = 0; i < 5; i++) q[i] = submitted(&f, seq(&f, 1000 + 100 * i, 1, 100));
    step(&f);
    q[5] = submitted(&f, seq(&f, 0, 120, 1));
    for (int i = 0; i < 10; i++) {
        assert_int_equal(step(&f), 5 + 12);
        for (int k = 0; k < 5; k++) assert_int_equal(hd_seq_n_tok(q[k]), 3 + i);
    }
    assert_int_equal(hd_seq_get_state(q[5]), HD_SEQ_DONE);
    while (step(&f) > 0) {
    }
    for (int i = 0; i < 6; i++) hd_seq_free(q[i]);
    teardown(&f);
}

static void unchunked_prompt_gets_a_step_of_its_own(void **state) {
    (void)state;
    hd_sched_config c = config();
    c.chunked = false;
    c.prefix_cache = false;
    struct fixture f = setup(c);
    hd_seq *decoding = submitted(&f, seq(&f, 0, 10, 100));
    step(&f);
    hd_seq *fits = submitted(&f, seq(&f, 100, 63, 1));
    assert_int_equal(step(&f), 64);
    assert_int_equal(hd_seq_get_state(fits), HD_SEQ_DONE);
    hd_seq *q[10];
    for (int i = 0; i < 10; i++) q[i] = submitted(&f, seq(&f, 100, 64, 1));
    for (int i = 0; i < 10; i++) { /* every other step, so that decoding goes on */
        assert_int_equal(step(&f), 1);
        assert_int_equal(hd_seq_n_tok(decoding), 13 + i);
        assert_int_equal(step(&f), 64);
        assert_int_equal(hd_seq_get_state(q[i]), HD_SEQ_DONE);
        hd_seq_free(q[i]);
    }
    while (step(&f) > 0) {
    }
    hd_seq_free(decoding);
    hd_seq_free(fits);
    teardown(&f);
}

static void failed_step_is_planned_again(void **state) {
    (void)state;
    struct fixture f = setup(config());
    hd_seq *q = submitted(&f, seq(&f, 0, 100, 2));
    int32_t pos = 0;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(hd_sched_plan(f.s, 0, &f.b), 64);
        assert_int_equal(f.b.pos[0], pos);
        hd_sched_abandon(f.s, &f.b);
        hd_sched_check(f.s);
        assert_int_equal(hd_seq_n_computed(q), 0);
    }
    while (step(&f) > 0) {
    }
    assert_int_equal(stats(&f).recomputed_tok, 0);
    hd_seq_free(q);
    teardown(&f);
}

static void slots_are_no_more_than_rows(void **state) {
    (void)state;
    hd_sched_config c = config();
    c.n_row_max = 3;
    struct fixture f = setup(c);
    hd_seq *q[8];
    for (int i = 0; i < 8; i++) q[i] = submitted(&f, seq(&f, 100 * i, 4, 10));
    int n;
    while ((n = step(&f)) > 0) assert_true(n <= 3 && stats(&f).n_running <= 3);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(hd_seq_get_state(q[i]), HD_SEQ_DONE);
        hd_seq_free(q[i]);
    }
    teardown(&f);
}

/* Two sequences outgrow the pool: the one submitted last is preempted, or the one of later
 * due time; it comes back before others that wait, and repeats its forms. */
static void preemption_chooses_and_repeats(void **state) {
    (void)state;
    for (int low_first = 0; low_first < 2; low_first++) {
        hd_sched_config c = config();
        c.n_page = 17;
        c.n_seq_max = 2;
        c.expand_min = 20;
        struct fixture f = setup(c);
        int32_t token[40] = {0};
        hd_seq_spec spec = {.prompt = token, .n_prompt = 30, .n_new_max = 60};
        spec.priority = low_first;
        token[0] = 1;
        hd_seq *q0 = submitted(&f, hd_seq_new(&c, &spec));
        spec.priority = 0;
        token[0] = 2;
        hd_seq *q1 = submitted(&f, hd_seq_new(&c, &spec));
        spec.priority = 1;
        spec.n_prompt = 1;
        hd_seq *later = submitted(&f, hd_seq_new(&c, &spec));
        hd_seq *victim = low_first ? q0 : q1, *other = low_first ? q1 : q0;
        while (stats(&f).n_preempt == 0) assert_true(step(&f) > 0);
        assert_int_equal(hd_seq_get_state(victim), HD_SEQ_WAITING);
        assert_int_equal(hd_seq_get_state(other), HD_SEQ_RUNNING);
        int n_tok = hd_seq_n_tok(victim);
        assert_true(n_tok > 60);
        while (hd_seq_get_state(victim) == HD_SEQ_WAITING) {
            assert_int_equal(hd_seq_get_state(later), HD_SEQ_WAITING);
            assert_true(hd_sched_plan(f.s, 0, &f.b) > 0);
            hd_sched_check(f.s);
            for (int i = 0; i < f.b.n_row; i++) {
                if (hd_sched_seq_at(f.s, &f.b, f.b.row_seq[i]) == later) continue;
                int form = f.b.pos[i] < 30 ? HD_MLA_EXPANDED : HD_MLA_ABSORBED;
                assert_int_equal(f.b.form[i], form);
            }
            hd_sched_commit(f.s, &f.b);
            for (int i = 0; i < f.b.n_out; i++) {
                hd_seq *q = hd_sched_out_seq(f.s, &f.b, i);
                hd_sched_append(f.s, q, 5);
                if (hd_seq_n_tok(q) == hd_seq_n_prompt(q) + 60) hd_sched_finish(f.s, q);
            }
        }
        while (step(&f) > 0) {
        }
        assert_int_equal(hd_seq_n_tok(victim), 90);
        assert_int_equal(stats(&f).prompt_tok, 61); /* once each */
        hd_seq_free(q0);
        hd_seq_free(q1);
        hd_seq_free(later);
        teardown(&f);
    }
}

/* The prompt that has hardly begun holds the most pages for the least work: it gives them up,
 * though it came before another. What it had computed is still in the cache when it comes back. */
static void the_cheapest_is_preempted(void **state) {
    (void)state;
    hd_sched_config c = config();
    c.n_page = 17;
    c.chunk_max = 2;
    struct fixture f = setup(c);
    hd_seq *q[3] = {seq(&f, 0, 8, 40), seq(&f, 1000, 100, 1), seq(&f, 2000, 8, 40)};
    for (int i = 0; i < 3; i++) submitted(&f, q[i]);
    while (stats(&f).n_preempt == 0) assert_true(step(&f) > 0);
    assert_int_equal(hd_seq_get_state(q[0]), HD_SEQ_RUNNING);
    assert_int_equal(hd_seq_get_state(q[1]), HD_SEQ_WAITING);
    assert_int_equal(hd_seq_get_state(q[2]), HD_SEQ_RUNNING);
    while (step(&f) > 0) continue;
    assert_int_equal(stats(&f).n_preempt, 1);
    assert_true(stats(&f).recomputed_tok <= 24);
    for (int i = 0; i < 3; i++) hd_seq_free(q[i]);
    teardown(&f);
}

/* A stream of short requests does not keep a long one out: what has no room yet goes first. */
static void long_request_is_not_starved(void **state) {
    (void)state;
    hd_sched_config c = config();
    c.n_page = 40;
    c.n_seq_max = 8;
    struct fixture f = setup(c);
    hd_seq *q[400] = {0}, *big = NULL;
    int n_short = 0, n_wait = 0;
    for (int i = 0; i < 600; i++) {
        if (n_short < 400 && stats(&f).n_waiting < 20) {
            q[n_short] = submitted(&f, seq(&f, 1000 + 7 * n_short, 20, 20));
            n_short++;
        }
        if (i == 50) big = submitted(&f, seq(&f, 0, 300, 20)); /* 40 of 40 pages */
        step(&f);
        if (big && hd_seq_get_state(big) == HD_SEQ_WAITING) n_wait++;
    }
    /* 20 before it in the queue and 8 running, each of 20 tokens, 6 at a time at least. */
    assert_int_equal(hd_seq_get_state(big), HD_SEQ_DONE);
    assert_true(n_wait < 5 * 25);
    while (step(&f) > 0) {
    }
    for (int i = 0; i < n_short; i++) hd_seq_free(q[i]);
    hd_seq_free(big);
    teardown(&f);
}

/* 600 requests of unknown length (150 tokens on average, of a declared 1500) over a pool for about
 * 10 of them: few rows are computed again, and the pool is well used. */
static void preemption_does_not_thrash(void **state) {
    (void)state;
    hd_sched_config c = config();
    c.n_seq_max = 64;
    c.n_row_max = 128;
    c.n_pos_max = 1700;
    c.n_page = 256;
    struct fixture f = setup(c);
    test_rng r = {.x = 1};
    for (int i = 0; i < 600; i++) submitted(&f, seq(&f, 100 * i, rng_int(&r, 1, 99), 1500));
    double n_row = 0, n_step = 0, used = 0;
    for (int n; (n = hd_sched_plan(f.s, 0, &f.b)) > 0;) {
        n_row += n;
        n_step++;
        used += (double)stats(&f).n_page_used / c.n_page;
        hd_sched_commit(f.s, &f.b);
        for (int i = 0; i < f.b.n_out; i++) {
            hd_seq *q = hd_sched_out_seq(f.s, &f.b, i);
            hd_sched_append(f.s, q, rng_int(&r, 0, 9999));
            if (!rng_chance(&r, 1.0 / 150)) continue;
            hd_sched_finish(f.s, q);
            hd_seq_free(q);
        }
    }
    hd_sched_stats st = stats(&f);
    print_message("%.0f rows, %llu preemptions, %.2f %% computed again, %.0f %% of pages used\n",
                  n_row, (unsigned long long)st.n_preempt, 100 * (double)st.recomputed_tok / n_row,
                  100 * used / n_step);
    assert_true(st.n_preempt > 10);
    assert_true((double)st.recomputed_tok < 0.05 * n_row);
    assert_true(used > 0.6 * n_step);
    teardown(&f);
}

static void nothing_is_allocated_while_running(void **state) {
    (void)state;
    hd_sched_config c = config();
    c.n_page = 30; /* preemption and eviction too */
    struct fixture f = setup(c);
    hd_seq *q[40];
    for (int i = 0; i < 40; i++) q[i] = seq(&f, i % 3, 5 * (i % 7) + 1, 60);
    test_allocs_watch(true);
    long before = test_allocs_count();
    for (int i = 0; i < 40; i++) submitted(&f, q[i]);
    for (int i = 0; step(&f) > 0; i++) {
        if (i % 10 == 0 && hd_seq_get_state(q[i / 10 % 40]) != HD_SEQ_DONE) {
            hd_sched_finish(f.s, q[i / 10 % 40]);
        }
        hd_sched_plan(f.s, 0, &f.b);
        hd_sched_abandon(f.s, &f.b);
    }
    hd_sched_drop_cache(f.s);
    assert_int_equal(test_allocs_count() - before, 0);
    assert_true(stats(&f).n_preempt > 0);
    hd_seq_free(seq(&f, 0, 1, 1)); /* the counter works */
    assert_true(test_allocs_count() > before);
    test_allocs_watch(false);
    for (int i = 0; i < 40; i++) hd_seq_free(q[i]);
    teardown(&f);
}

/* After its pages were evicted, a preempted sequence finds its beginning again, computed in another
 * form by another sequence: it computes its own. */
static void readmission_takes_only_its_own_forms(void **state) {
    (void)state;
    hd_sched_config c = config();
    c.n_page = 12;
    struct fixture f = setup(c);
    int32_t token[60];
    for (int i = 0; i < 60; i++) token[i] = i;
    hd_seq_spec spec = {.prompt = token, .n_prompt = 40, .n_new_max = 20, .priority = 2};
    hd_seq *expanded = submitted(&f, hd_seq_new(&c, &spec));
    step(&f);
    hd_seq *big = seq(&f, 500, 20, 70); /* 12 of 12 pages in the end */
    submitted(&f, big);
    while (stats(&f).n_preempt == 0) assert_true(step(&f) > 0);
    assert_int_equal(hd_seq_get_state(expanded), HD_SEQ_WAITING);
    hd_sched_drop_cache(f.s);
    spec = (hd_seq_spec){.prompt = token, .n_prompt = 20, .n_new_max = 1, .priority = -1};
    hd_seq *absorbed = submitted(&f, hd_seq_new(&c, &spec));
    while (hd_seq_get_state(absorbed) != HD_SEQ_DONE) assert_true(step(&f) > 0);
    assert_int_equal(hd_seq_n_hit(absorbed), 0);
    assert_int_equal(hd_seq_get_state(expanded), HD_SEQ_WAITING);
    hd_sched_finish(f.s, big);
    assert_true(hd_sched_plan(f.s, 0, &f.b) >= 40);
    assert_ptr_equal(hd_sched_seq_at(f.s, &f.b, 0), expanded);
    for (int i = 0; i < 40; i++) {
        assert_int_equal(f.b.pos[i], i);
        assert_int_equal(f.b.form[i], HD_MLA_EXPANDED);
    }
    hd_sched_abandon(f.s, &f.b);
    while (step(&f) > 0) {
    }
    /* Both stand in the cache; a new one takes what is there, whatever its form. */
    spec = (hd_seq_spec){.prompt = token, .n_prompt = 41, .n_new_max = 1};
    hd_seq *again = submitted(&f, hd_seq_new(&c, &spec));
    while (step(&f) > 0) {
    }
    assert_int_equal(hd_seq_n_hit(again), 40);
    hd_seq *all[] = {expanded, big, absorbed, again};
    for (int i = 0; i < 4; i++) hd_seq_free(all[i]);
    teardown(&f);
}

static void distrusted_pages_are_not_reused(void **state) {
    (void)state;
    struct fixture f = setup(config());
    int n_hit[4];
    for (int k = 0; k < 4; k++) {
        hd_seq *q = submitted(&f, seq(&f, 0, 100, 5));
        step(&f);
        step(&f);
        n_hit[k] = hd_seq_n_hit(q);
        if (k == 1) { /* shares its beginning with one that goes on */
            hd_seq *other = shared_seq(&f, 100, 2000, 30, HD_SERVICE_BATCH);
            step(&f);
            assert_int_equal(hd_seq_n_hit(other), 96);
            hd_sched_distrust(f.s, q);
            hd_sched_finish(f.s, q);
            while (step(&f) > 0) {
            }
            assert_int_equal(hd_seq_get_state(other), HD_SEQ_DONE);
            hd_seq_free(other);
        }
        while (step(&f) > 0) {
        }
        hd_seq_free(q);
    }
    assert_int_equal(n_hit[0], 0);
    assert_int_equal(n_hit[1], 96);
    assert_int_equal(n_hit[2], 0);
    assert_int_equal(n_hit[3], 96);
    teardown(&f);
}

/* Pages of the batch's only sequence that do not follow the one before. */
static int jumps(const hd_batch *b) {
    int n = 0;
    assert_int_equal(b->n_seq, 1);
    for (int i = 1; i < b->n_page; i++) n += b->page[i] != b->page[i - 1] + 1;
    return n;
}

/* Sequences that decode side by side take pages in turn; the one that is left has its own moved, in
 * copies that never overwrite what is still to be copied. */
static void scattered_pages_are_brought_together(void **state) {
    (void)state;
    enum { N = 4 };
    for (int has_prefixes = 0; has_prefixes < 2; has_prefixes++) {
        hd_sched_config c = config();
        c.prefix_cache = has_prefixes;
        c.n_page = 75; /* 18 pages each, so that what is cached stands in the way */
        c.compact_page_max = 16;
        struct fixture f = setup(c);
        hd_seq *q[N];
        for (int i = 0; i < N; i++) {
            q[i] = seq(&f, 1000 * i, 8, i == 0 ? 400 : 136);
            assert_ok(hd_sched_submit(f.s, q[i]));
        }
        while (hd_seq_get_state(q[N - 1]) != HD_SEQ_DONE) step(&f);
        step(&f);
        int n_before = jumps(&f.b), n_copy = 0;
        hd_sched_stats st;
        hd_sched_get_stats(f.s, &st);
        uint64_t n_moved = st.n_moved;
        for (int i = 0; i < 140; i++) {
            step(&f);
            n_copy += f.b.n_copy;
        }
        hd_sched_get_stats(f.s, &st);
        assert_true(st.n_moved > n_moved && n_copy >= (int)(st.n_moved - n_moved));
        assert_true(n_before >= 8 && jumps(&f.b) < n_before);
        while (step(&f) > 0) continue;
        for (int i = 0; i < N; i++) hd_seq_free(q[i]);
        teardown(&f);
    }
}

/* Scattered pages, and no place for them: nothing is moved, and what is cached stays. */
static void looking_for_a_place_costs_no_page(void **state) {
    (void)state;
    hd_sched_config c = config();
    c.page_tok = 64;
    c.n_page = 4 * 6 + 2;
    c.compact_page_max = 16;
    struct fixture f = setup(c);
    hd_seq *q[5];
    for (int i = 0; i < 5; i++) {
        q[i] = submitted(&f, seq(&f, 1000 * i, i == 0 ? 129 : 8, i == 0 ? 1 : 370));
        while (i == 0 && step(&f) > 0) continue;
    }
    for (int i = 0; i < 375; i++) {
        step(&f);
        if (hd_seq_n_computed(q[4]) <= 320) continue; /* all have their six pages from then on */
        for (int k = 1; k < f.b.n_page; k++) assert_int_not_equal(f.b.page[k], f.b.page[k - 1] + 1);
        assert_int_equal(stats(&f).n_page_cached, 2);
    }
    assert_int_equal(stats(&f).n_moved, 0);
    while (step(&f) > 0) continue;
    for (int i = 0; i < 5; i++) hd_seq_free(q[i]);
    teardown(&f);
}

/* A batch at a time: who comes later waits until the last one has ended. */
static void a_static_batch_is_closed(void **state) {
    (void)state;
    hd_sched_config c = config();
    c.is_static = true;
    struct fixture f = setup(c);
    hd_seq *q[3] = {seq(&f, 0, 8, 5), seq(&f, 100, 8, 20), seq(&f, 200, 8, 5)};
    for (int i = 0; i < 2; i++) assert_ok(hd_sched_submit(f.s, q[i]));
    step(&f);
    assert_ok(hd_sched_submit(f.s, q[2]));
    while (hd_seq_get_state(q[1]) != HD_SEQ_DONE) {
        assert_int_equal(hd_seq_get_state(q[2]), HD_SEQ_WAITING);
        step(&f);
    }
    assert_int_equal(hd_seq_get_state(q[0]), HD_SEQ_DONE);
    while (step(&f) > 0) continue;
    assert_int_equal(hd_seq_get_state(q[2]), HD_SEQ_DONE);
    for (int i = 0; i < 3; i++) hd_seq_free(q[i]);
    teardown(&f);
}

/* Beside a sequence that decodes a prompt keeps the rows of its chunks, and every other step
 * computes some of their layers; alone it is computed whole. */
static void a_prompt_beside_decoding_is_cut_by_layers(void **state) {
    (void)state;
    hd_sched_config c = config();
    struct fixture f = setup_cut(c, 8, slow_prompts(&c));
    hd_seq *a = submitted(&f, seq(&f, 0, 100, 80));
    assert_int_equal(step(&f), 64);
    assert_int_equal(step(&f), 36);
    assert_int_equal(step(&f), 1);
    hd_seq *b = submitted(&f, seq(&f, 2000, 150, 2));
    static const int n_rows[] = {64, 64, 22};
    for (int i = 0; i < 3; i++) {
        for (int layer = 0; layer < f.c.n_layer; layer = f.b.layer1) {
            assert_int_equal(step(&f), 1);
            assert_int_equal(f.b.layer1, 0);
            assert_ptr_equal(hd_sched_seq_at(f.s, &f.b, 0), a);
            assert_int_equal(step(&f), n_rows[i]);
            assert_ptr_equal(hd_sched_seq_at(f.s, &f.b, 0), b);
            assert_int_equal(f.b.layer0, layer);
            assert_in_range(f.b.layer1, layer + 1, f.c.n_layer);
            assert_int_equal(f.b.n_out, i == 2 && f.b.layer1 == f.c.n_layer);
        }
        assert_int_equal(hd_seq_n_computed(b), 64 * i + n_rows[i]);
    }
    assert_int_equal(step(&f), 2); /* both decode */
    while (step(&f) > 0) continue;
    assert_int_equal(hd_seq_get_state(a), HD_SEQ_DONE);
    assert_int_equal(hd_seq_get_state(b), HD_SEQ_DONE);
    hd_seq_free(a);
    hd_seq_free(b);
    teardown(&f);
}

/* Nanoseconds: so many a step, and a row; a decoding row 1000. */
static hd_profile *linear_profile(int64_t step_ns, int64_t row_ns) {
    hd_profile *p = hd_profile_new();
    for (int k = 0; k < 30; k++)
        for (int n = 0; n <= 512; n = n ? 2 * n : 1) {
            hd_step_load l = {.n_prompt = n, .n_decode = n == 0, .n_read = 40};
            hd_profile_learn(p, &l, step_ns + (n ? n * row_ns : 1000));
        }
    return p;
}

/* Rows of the first chunk of a prompt of 900 beside a sequence that decodes. */
static int rows_beside_decoding(int expand_min, int64_t step_ns, int64_t row_ns) {
    hd_sched_config c = config();
    c.n_row_max = 512;
    c.expand_min = expand_min;
    c.step_max_ns = 1; /* leaves no rows */
    struct fixture f = setup_cut(c, 8, linear_profile(step_ns, row_ns));
    hd_seq *a = submitted(&f, seq(&f, 0, 8, 80));
    assert_int_equal(step(&f), 8);
    hd_seq *b = submitted(&f, seq(&f, 2000, 900, 2));
    assert_int_equal(step(&f), 1);
    int n = step(&f);
    assert_ptr_equal(hd_sched_seq_at(f.s, &f.b, 0), b);
    assert_true(f.b.layer1 < f.c.n_layer);
    while (step(&f) > 0) continue;
    assert_int_equal(hd_seq_get_state(b), HD_SEQ_DONE);
    hd_seq_free(a);
    hd_seq_free(b);
    teardown(&f);
    return n;
}

/* A layer of a chunk is what others' tokens wait for at least: the chunk has no more rows than make
 * its time depend on rows, and than expanding the positions before it wants. */
static void a_chunk_has_as_many_rows_as_it_is_worth(void **state) {
    (void)state;
    assert_int_equal(rows_beside_decoding(8, 1000, 1000), 64);
    assert_int_equal(rows_beside_decoding(8, 30000, 1000), 128); /* 158 >= 3 * 46 > 94 */
    assert_int_equal(rows_beside_decoding(8, 1000000, 1000), 512);
    assert_int_equal(rows_beside_decoding(37, 1000, 1000), 96); /* 3 * 37 in tiles of 16 */
    assert_int_equal(rows_beside_decoding(171, 1000, 1000), 512);
}

/* Its bound holds for layers of a prompt, too, when those have just ended beside whom it was to be
 * computed. */
static void a_prompt_that_is_left_alone_keeps_the_bound(void **state) {
    (void)state;
    hd_sched_config c = config();
    c.step_max_ns = 3000;
    struct fixture f = setup_cut(c, 8, slow_prompts(&c));
    hd_seq *a = submitted(&f, seq(&f, 0, 8, 80));
    assert_int_equal(step(&f), 8);
    hd_seq *b = submitted(&f, seq(&f, 2000, 150, 2));
    assert_int_equal(step(&f), 1);
    hd_sched_finish(f.s, a);
    for (int layer = 0; layer < f.c.n_layer; layer = f.b.layer1) {
        assert_true(step(&f) > 1);
        assert_int_equal(f.b.layer0, layer);
        assert_in_range(f.b.layer1, layer + 1, layer + 2);
    }
    while (step(&f) > 0) continue;
    assert_int_equal(hd_seq_get_state(b), HD_SEQ_DONE);
    hd_seq_free(a);
    hd_seq_free(b);
    teardown(&f);
}

/* A prompt of this class whose tokens count up from `from`. */
static hd_seq *classed(struct fixture *f, enum hd_service service, int from, int n_prompt) {
    int32_t token[150];
    for (int k = 0; k < n_prompt; k++) token[k] = from + k;
    hd_seq_spec spec = {.prompt = token, .n_prompt = n_prompt, .n_new_max = 1, .service = service};
    return submitted(f, hd_seq_new(&f->c, &spec));
}

/* Steps of the chunk that computes q, from layer to end: every other one. */
static void expect_layers(struct fixture *f, const hd_seq *q, int layer, int end) {
    while (layer < end) {
        assert_int_equal(step(f), 1);
        assert_int_equal(f->b.layer1, 0);
        assert_true(step(f) > 1);
        assert_int_equal(f->b.token[0], hd_seq_tokens(q)[0]);
        assert_int_equal(f->b.layer0, layer);
        layer = f->b.layer1;
    }
    assert_int_equal(layer, end);
}

/* A chunk pauses while a more urgent prompt is computed, whose layers are cut as well, and goes on
 * where it was. A third one waits until that has ended. */
static void a_more_urgent_prompt_overtakes_a_chunk(void **state) {
    (void)state;
    hd_sched_config c = config();
    struct fixture f = setup_cut(c, 8, slow_prompts(&c));
    hd_seq *a = submitted(&f, seq(&f, 0, 8, 80)), *q[3];
    assert_int_equal(step(&f), 8);
    q[2] = classed(&f, HD_SERVICE_BATCH, 1000, 64);
    assert_int_equal(step(&f), 1);
    assert_int_equal(step(&f), 64);
    int layer = f.b.layer1;
    assert_in_range(layer, 1, f.c.n_layer - 1);
    q[1] = classed(&f, HD_SERVICE_STANDARD, 2000, 64);
    assert_int_equal(step(&f), 1);
    assert_int_equal(step(&f), 64);
    assert_ptr_equal(hd_sched_seq_at(f.s, &f.b, 0), q[1]);
    assert_int_equal(f.b.layer0, 0);
    q[0] = classed(&f, HD_SERVICE_INTERACTIVE, 3000, 64);
    expect_layers(&f, q[1], f.b.layer1, f.c.n_layer);
    assert_int_equal(hd_seq_get_state(q[1]), HD_SEQ_DONE);
    expect_layers(&f, q[0], 0, f.c.n_layer);
    expect_layers(&f, q[2], layer, f.c.n_layer);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(hd_seq_get_state(q[i]), HD_SEQ_DONE);
        hd_seq_free(q[i]);
    }
    hd_sched_finish(f.s, a);
    hd_seq_free(a);
    assert_int_equal(step(&f), 0);
    teardown(&f);
}

/* Pages in use but for those of a, which decodes. */
static int pages_beside(const struct fixture *f, const hd_seq *a) {
    return stats(f).n_page_used - (hd_seq_n_computed(a) + 7) / 8;
}

/* However many more urgent prompts come, the paused chunk has a turn after three of them. */
static void a_paused_chunk_advances(void **state) {
    (void)state;
    hd_sched_config c = config();
    struct fixture f = setup_cut(c, 8, slow_prompts(&c));
    hd_seq *a = submitted(&f, seq(&f, 0, 8, 80)), *q = NULL, *b;
    assert_int_equal(step(&f), 8);
    b = classed(&f, HD_SERVICE_BATCH, 1000, 64);
    step(&f);
    step(&f);
    int layer = f.b.layer1, n_prompt = 0;
    assert_in_range(layer, 1, f.c.n_layer - 1);
    for (int n_between = 0; hd_seq_get_state(b) != HD_SEQ_DONE;) {
        if (!q || hd_seq_get_state(q) == HD_SEQ_DONE) {
            hd_seq_free(q);
            q = classed(&f, HD_SERVICE_INTERACTIVE, 2000 + 100 * n_prompt++, 64);
            n_between++;
        }
        assert_true(step(&f) > 0);
        if (hd_sched_seq_at(f.s, &f.b, 0) != b) continue;
        assert_int_equal(f.b.layer0, layer);
        layer = f.b.layer1;
        assert_in_range(n_between, 1, 4);
        n_between = 0;
    }
    assert_true(n_prompt > 3);
    while (step(&f) > 0) continue;
    hd_seq_free(a);
    hd_seq_free(b);
    hd_seq_free(q);
    teardown(&f);
}

/* Pages of a request that is cancelled while layers of its prompt are computed come back when the
 * chunk has ended, or, when all of its requests are cancelled, before the next step. */
static void pages_of_a_cancelled_prompt_come_back_with_its_chunk(void **state) {
    (void)state;
    for (int n_cancel = 1; n_cancel <= 2; n_cancel++) {
        hd_sched_config c = config();
        c.prefix_cache = false;
        struct fixture f = setup_cut(c, 64, slow_prompts(&c));
        hd_seq *a = submitted(&f, seq(&f, 0, 8, 80)), *q[2];
        assert_int_equal(step(&f), 8);
        for (int i = 0; i < 2; i++) q[i] = classed(&f, HD_SERVICE_STANDARD, 1000 + 100 * i, 32);
        assert_int_equal(step(&f), 1);
        assert_int_equal(step(&f), 64);
        assert_in_range(f.b.layer1, 1, f.c.n_layer - 1);
        for (int i = 0; i < n_cancel; i++) hd_sched_finish(f.s, q[i]);
        assert_int_equal(pages_beside(&f, a), 8);
        assert_int_equal(step(&f), 1);
        assert_int_equal(pages_beside(&f, a), n_cancel == 2 ? 0 : 8);
        while (n_cancel == 1 && hd_seq_get_state(q[1]) != HD_SEQ_DONE) {
            assert_int_equal(pages_beside(&f, a), 8);
            step(&f);
        }
        assert_int_equal(pages_beside(&f, a), 0);
        hd_sched_finish(f.s, a);
        hd_seq_free(a);
        for (int i = 0; i < 2; i++) hd_seq_free(q[i]);
        teardown(&f);
    }
}

/* A prompt whose layers are being computed gives up no page; of the others it is still the least
 * urgent who does. */
static void beside_a_chunk_the_least_urgent_is_preempted(void **state) {
    (void)state;
    hd_sched_config c = config();
    static const struct {
        int n_prompt, n_new;
        enum hd_service service;
    } of[3] = {
        {8, 80, HD_SERVICE_INTERACTIVE}, {8, 80, HD_SERVICE_STANDARD}, {150, 1, HD_SERVICE_BATCH}};
    int32_t token[150];
    hd_seq *q[3];
    c.n_page = 2 * 2 + 19 + 2;
    struct fixture f = setup_cut(c, 8, slow_prompts(&c));
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 150; k++) token[k] = 1000 * i + k;
        hd_seq_spec spec = {.prompt = token, .n_prompt = of[i].n_prompt, .n_new_max = of[i].n_new};
        spec.service = of[i].service;
        q[i] = submitted(&f, hd_seq_new(&f.c, &spec));
        for (int k = 0; k < 2 && i == 1; k++) step(&f);
    }
    while (stats(&f).n_preempt == 0) assert_true(step(&f) > 0);
    assert_int_equal(hd_seq_get_state(q[0]), HD_SEQ_RUNNING);
    assert_int_equal(hd_seq_get_state(q[1]), HD_SEQ_WAITING);
    assert_int_equal(hd_seq_get_state(q[2]), HD_SEQ_RUNNING);
    while (step(&f) > 0) continue;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(hd_seq_get_state(q[i]), HD_SEQ_DONE);
        hd_seq_free(q[i]);
    }
    teardown(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(repeat_hits_all_whole_pages_but_the_last_token),
        cmocka_unit_test(sixteen_at_once_compute_a_shared_prefix_once),
        cmocka_unit_test(a_promise_ends_with_who_made_it),
        cmocka_unit_test(who_waits_for_a_prefix_stops_nobody),
        cmocka_unit_test(tenants_do_not_share),
        cmocka_unit_test(long_session_hits_every_turn),
        cmocka_unit_test(what_cannot_fit_is_refused_by_name),
        cmocka_unit_test(decoding_goes_on_beside_a_long_prompt),
        cmocka_unit_test(unchunked_prompt_gets_a_step_of_its_own),
        cmocka_unit_test(failed_step_is_planned_again),
        cmocka_unit_test(slots_are_no_more_than_rows),
        cmocka_unit_test(preemption_chooses_and_repeats),
        cmocka_unit_test(the_cheapest_is_preempted),
        cmocka_unit_test(long_request_is_not_starved),
        cmocka_unit_test(preemption_does_not_thrash),
        cmocka_unit_test(readmission_takes_only_its_own_forms),
        cmocka_unit_test(distrusted_pages_are_not_reused),
        cmocka_unit_test(scattered_pages_are_brought_together),
        cmocka_unit_test(looking_for_a_place_costs_no_page),
        cmocka_unit_test(a_static_batch_is_closed),
        cmocka_unit_test(a_prompt_beside_decoding_is_cut_by_layers),
        cmocka_unit_test(a_chunk_has_as_many_rows_as_it_is_worth),
        cmocka_unit_test(a_prompt_that_is_left_alone_keeps_the_bound),
        cmocka_unit_test(a_more_urgent_prompt_overtakes_a_chunk),
        cmocka_unit_test(a_paused_chunk_advances),
        cmocka_unit_test(pages_of_a_cancelled_prompt_come_back_with_its_chunk),
        cmocka_unit_test(beside_a_chunk_the_least_urgent_is_preempted),
        cmocka_unit_test(nothing_is_allocated_while_running),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
