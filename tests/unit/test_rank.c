/* Ranks and what follows from them: classes, lanes, deadlines, tenants, ageing, chunks by time.
 * A machine whose steps take exactly what the profile was taught, under a virtual clock. */
#include "support/check.h"

#include "base/mem.h"
#include "sched/sched.h"

#include <string.h>

enum { MS = 1000000 };

/* 1 ms a step, 0.1 ms a decoding row, 20 us a prompt row. */
static int64_t law(const hd_step_load *l) {
    return 1 * MS + l->n_decode * (MS / 10) + l->n_prompt * (MS / 50);
}

typedef struct world {
    hd_sched_config c;
    hd_profile *profile;
    hd_sched *s;
    hd_batch b;
    int64_t now_ns;
    int from; /* of the next prompt: none shares a prefix */
} world;

static hd_sched_config config(void) {
    return (hd_sched_config){.n_seq_max = 16,
                             .n_row_max = 512,
                             .chunked = true,
                             .n_pos_max = 20000,
                             .n_page = 4000,
                             .page_tok = 16,
                             .prefix_cache = true};
}

static void open_world(world *w, hd_sched_config c) {
    *w = (world){.c = c, .profile = hd_profile_new(), .now_ns = 1000 * INT64_C(1000000000)};
    for (int d = 0; d <= 64; d = d ? 2 * d : 1) {
        for (int n = 0; n <= 512; n = n ? 2 * n : 2) {
            hd_step_load l = {.n_decode = d, .n_prompt = n, .n_read = d + n};
            for (int k = 0; k < 400 && d + n > 0; k++) hd_profile_learn(w->profile, &l, law(&l));
        }
    }
    w->c.profile = w->profile;
    w->s = hd_sched_new(&w->c);
    hd_sched_batch_init(&w->c, &w->b);
}

static void close_world(world *w) {
    hd_sched_check(w->s);
    hd_batch_fini(&w->b);
    hd_sched_free(w->s);
    hd_profile_free(w->profile);
}

static hd_seq *submit(world *w, int n_prompt, int n_new, hd_seq_spec spec) {
    int32_t *token = hd_alloc_zero((size_t)n_prompt, sizeof *token);
    for (int i = 0; i < n_prompt; i++) token[i] = w->from++;
    spec.prompt = token;
    spec.n_prompt = n_prompt;
    spec.n_new_max = n_new;
    spec.submitted_ns = w->now_ns;
    hd_seq *q = hd_seq_new(&w->c, &spec);
    hd_free(token);
    assert_ok(hd_sched_submit(w->s, q));
    return q;
}

static hd_seq *submit_as(world *w, int n_prompt, int n_new, enum hd_service service) {
    return submit(w, n_prompt, n_new, (hd_seq_spec){.service = service});
}

/* One step; returns its time. Sequences that are done stay with the caller. */
static int64_t step(world *w) {
    if (hd_sched_plan(w->s, w->now_ns, &w->b) == 0) return 0;
    hd_sched_check(w->s);
    hd_step_load l = hd_step_load_of(&w->b);
    hd_sched_commit(w->s, &w->b);
    for (int i = 0; i < w->b.n_out; i++) {
        hd_seq *q = hd_sched_out_seq(w->s, &w->b, i);
        hd_sched_append(w->s, q, 7);
        if (hd_seq_n_tok(q) == hd_seq_n_prompt(q) + hd_seq_n_new_max(q)) hd_sched_finish(w->s, q);
    }
    w->now_ns += law(&l);
    return law(&l);
}

static void run_out(world *w) {
    while (step(w) > 0) {
    }
}

static bool is_running(const hd_seq *q) { return hd_seq_get_state(q) == HD_SEQ_RUNNING; }

/* ---- order ---- */

static void classes_go_before_each_other(void **state) {
    (void)state;
    hd_sched_config c = config();
    c.n_seq_max = 1;
    world w;
    open_world(&w, c);
    hd_seq *q[HD_SERVICE_COUNT];
    for (int k = HD_SERVICE_COUNT - 1; k >= 0; k--) q[k] = submit_as(&w, 10, 3, (enum hd_service)k);
    for (int k = 0; k < HD_SERVICE_COUNT; k++) {
        step(&w);
        for (int i = 0; i < HD_SERVICE_COUNT; i++)
            if (hd_seq_get_state(q[i]) != HD_SEQ_DONE) assert_int_equal(is_running(q[i]), i == k);
        while (hd_seq_get_state(q[k]) != HD_SEQ_DONE) step(&w);
    }
    for (int k = 0; k < HD_SERVICE_COUNT; k++) hd_seq_free(q[k]);
    close_world(&w);
}

static void fcfs_knows_no_classes(void **state) {
    (void)state;
    hd_sched_config c = config();
    c.n_seq_max = 1;
    c.policy = HD_SCHED_FCFS;
    world w;
    open_world(&w, c);
    hd_seq *late = submit_as(&w, 10, 3, HD_SERVICE_OFFLINE);
    hd_seq *urgent = submit_as(&w, 10, 3, HD_SERVICE_INTERACTIVE);
    step(&w);
    assert_true(is_running(late) && !is_running(urgent));
    run_out(&w);
    hd_seq_free(late);
    hd_seq_free(urgent);
    close_world(&w);
}

/* Interactive requests keep their order of submission; one of 19000 tokens (0.42 s alone, more than
 * half of the 0.6 s it would have) waits behind all of them. */
static void long_prompts_have_a_lane_of_their_own(void **state) {
    (void)state;
    hd_sched_config c = config();
    c.n_seq_max = 1;
    c.target[HD_SERVICE_INTERACTIVE].ttft_ns = 600 * MS;
    world w;
    open_world(&w, c);
    hd_seq *first = submit_as(&w, 100, 3, HD_SERVICE_INTERACTIVE);
    hd_seq *huge = submit_as(&w, 19000, 3, HD_SERVICE_INTERACTIVE);
    hd_seq *large = submit_as(&w, 5000, 3, HD_SERVICE_INTERACTIVE);
    hd_seq *last = submit_as(&w, 100, 3, HD_SERVICE_INTERACTIVE);
    hd_seq *order[] = {first, large, last, huge};
    int64_t start_ns[4];
    run_out(&w);
    for (int i = 0; i < 4; i++) {
        start_ns[i] = hd_seq_admitted_ns(order[i]);
        if (i > 0) assert_true(start_ns[i] > start_ns[i - 1]);
        hd_seq_free(order[i]);
    }
    close_world(&w);
}

static void due_times_order_a_bucket(void **state) {
    (void)state;
    hd_sched_config c = config();
    c.n_seq_max = 1;
    world w;
    open_world(&w, c);
    hd_seq *running = submit_as(&w, 10, 50, HD_SERVICE_STANDARD);
    step(&w);
    hd_seq_spec spec = {.service = HD_SERVICE_STANDARD};
    hd_seq *plain = submit(&w, 10, 3, spec);
    spec.priority = 1;
    hd_seq *patient = submit(&w, 10, 3, spec);
    spec.priority = -1;
    hd_seq *pressing = submit(&w, 10, 3, spec);
    spec.priority = 0;
    spec.deadline_ns = w.now_ns + 11000 * (int64_t)MS; /* of use within the target of 10 s */
    hd_seq *deadline = submit(&w, 10, 3, spec);
    run_out(&w);
    hd_seq *order[] = {running, pressing, plain, deadline, patient};
    assert_true(hd_seq_due_ns(deadline) >= hd_seq_due_ns(plain));
    for (int i = 1; i < 5; i++)
        assert_true(hd_seq_admitted_ns(order[i]) > hd_seq_admitted_ns(order[i - 1]));
    for (int i = 0; i < 5; i++) hd_seq_free(order[i]);
    /* A deadline nearer than its class's target makes it more urgent than those before it. */
    plain = submit_as(&w, 10, 3, HD_SERVICE_BATCH);
    hd_seq *standard = submit_as(&w, 10, 3, HD_SERVICE_STANDARD);
    hd_seq *soon = submit(
        &w, 10, 3,
        (hd_seq_spec){.service = HD_SERVICE_BATCH, .deadline_ns = w.now_ns + 500 * (int64_t)MS});
    run_out(&w);
    assert_true(hd_seq_admitted_ns(soon) < hd_seq_admitted_ns(standard));
    assert_true(hd_seq_admitted_ns(standard) < hd_seq_admitted_ns(plain));
    hd_seq_free(plain);
    hd_seq_free(standard);
    hd_seq_free(soon);
    close_world(&w);
}

/* ---- tenants ---- */

/* One tenant has asked for 40 requests when another comes with 10 of the same size: it does not
 * wait for the 40, and both get the same work until it has what it wanted. */
static void tenants_share_fairly(void **state) {
    (void)state;
    hd_sched_config c = config();
    c.n_seq_max = 2;
    world w;
    open_world(&w, c);
    hd_seq *q[50];
    for (int i = 0; i < 50; i++)
        q[i] = submit(&w, 100, 20,
                      (hd_seq_spec){.service = HD_SERVICE_STANDARD, .tenant = i < 40 ? 1 : 2});
    int n_done[2] = {0};
    while (n_done[1] < 10) {
        assert_true(step(&w) > 0);
        n_done[0] = n_done[1] = 0;
        for (int i = 0; i < 50; i++) n_done[i >= 40] += hd_seq_get_state(q[i]) == HD_SEQ_DONE;
        /* 2 run at once, and the first 2 were there before the other tenant was known. */
        if (n_done[1] > 0 && n_done[1] < 10) assert_in_range(n_done[0] - n_done[1] + 10, 6, 14);
    }
    run_out(&w);
    for (int i = 0; i < 50; i++) hd_seq_free(q[i]);
    close_world(&w);
}

/* ---- deadlines ---- */

static void lost_deadlines_are_told(void **state) {
    (void)state;
    world w;
    open_world(&w, config());
    int64_t t0 = w.now_ns;
    assert_null(hd_sched_expired(w.s, t0));
    hd_seq_spec spec = {.service = HD_SERVICE_STANDARD, .deadline_ns = t0 + 100 * MS};
    hd_seq *late = submit(&w, 10000, 5, spec); /* 220 ms alone */
    assert_ptr_equal(hd_sched_expired(w.s, t0), late);
    hd_sched_finish(w.s, late);
    assert_null(hd_sched_expired(w.s, t0));
    hd_seq *fine = submit(&w, 100, 500, spec); /* 3 ms alone */
    hd_seq *free_one = submit_as(&w, 100, 5, HD_SERVICE_STANDARD);
    assert_null(hd_sched_expired(w.s, t0 + 90 * MS));
    assert_ptr_equal(hd_sched_expired(w.s, t0 + 99 * MS), fine); /* waiting: no time for a token */
    step(&w);
    assert_null(hd_sched_expired(w.s, t0 + 99 * MS)); /* running: until it has passed */
    assert_ptr_equal(hd_sched_expired(w.s, t0 + 100 * MS), fine);
    hd_sched_finish(w.s, fine);
    assert_null(hd_sched_expired(w.s, INT64_MAX - 1));
    run_out(&w);
    hd_seq_free(late);
    hd_seq_free(fine);
    hd_seq_free(free_one);
    close_world(&w);
}

/* ---- preemption ---- */

static void urgent_ones_take_the_place_of_patient_ones(void **state) {
    (void)state;
    hd_sched_config c = config();
    c.n_seq_max = 2;
    world w;
    open_world(&w, c);
    hd_seq *a = submit_as(&w, 100, 400, HD_SERVICE_OFFLINE);
    hd_seq *b = submit_as(&w, 300, 400, HD_SERVICE_OFFLINE);
    for (int i = 0; i < 20; i++) step(&w);
    hd_seq *urgent = submit_as(&w, 50, 5, HD_SERVICE_INTERACTIVE);
    hd_seq *equal = submit_as(&w, 50, 5, HD_SERVICE_OFFLINE);
    step(&w);
    assert_true(is_running(urgent) && !is_running(equal));
    assert_int_equal(is_running(a) + is_running(b), 1);
    run_out(&w);
    hd_sched_stats st;
    hd_sched_get_stats(w.s, &st);
    assert_int_equal(st.n_preempt, 1);
    assert_true(st.recomputed_tok < 32); /* its full pages were kept */
    hd_seq *all[] = {a, b, urgent, equal};
    for (int i = 0; i < 4; i++) hd_seq_free(all[i]);
    close_world(&w);
}

/* ---- order of rows ---- */

static void rows_stand_as_the_policy_says(void **state) {
    (void)state;
    for (int policy = HD_REORDER_NONE; policy <= HD_REORDER_LENGTH; policy++) {
        hd_sched_config c = config();
        c.reorder = (enum hd_reorder)policy;
        c.reorder_interval = 2;
        world w;
        open_world(&w, c);
        hd_seq *q[6];
        for (int i = 0; i < 6; i++) {
            if (i % 2 == 1) w.from = 0; /* 1, 3 and 5 begin as 0 does, which is in the cache then */
            q[i] = submit_as(&w, 100 + 40 * ((i * 5) % 6), 300, HD_SERVICE_STANDARD);
            for (int k = 0; k < 2; k++) step(&w);
            w.from = 10000 * (i + 1);
        }
        for (int k = 0; k < 60; k++) step(&w); /* all decode */
        assert_int_equal(w.b.n_row, 6);
        int n_together = 0, n_ascending = 0, n_as_started = 0;
        for (int i = 0; i < 6; i++) {
            const hd_seq *at = hd_sched_seq_at(w.s, &w.b, i);
            const hd_seq *before = i > 0 ? hd_sched_seq_at(w.s, &w.b, i - 1) : NULL;
            n_as_started += at == q[i];
            if (!before) continue;
            n_ascending += hd_seq_n_tok(before) <= hd_seq_n_tok(at);
            n_together += hd_seq_tokens(before)[0] == 0 && hd_seq_tokens(at)[0] == 0;
        }
        if (policy == HD_REORDER_NONE) assert_int_equal(n_as_started, 6);
        if (policy == HD_REORDER_LENGTH) assert_int_equal(n_ascending, 5);
        if (policy == HD_REORDER_PREFIX) assert_int_equal(n_together, 3);
        if (policy == HD_REORDER_NONE) assert_true(n_ascending < 5 && n_together < 3);
        run_out(&w);
        for (int i = 0; i < 6; i++) hd_seq_free(q[i]);
        close_world(&w);
    }
}

/* ---- who goes first of those that wait ---- */

/* Three beginnings of 200 tokens in turn, one slot, pages for a beginning and a half: in the order
 * of arrival each one is computed anew. Returns the prompt tokens that were. */
static int64_t computed_of_three_groups(enum hd_reorder policy, enum hd_sched_policy sched) {
    hd_sched_config c = config();
    c.n_seq_max = 1;
    c.n_page = 20;
    c.reorder = policy;
    c.reorder_interval = 1;
    c.policy = sched;
    world w;
    open_world(&w, c);
    hd_seq *q[18];
    for (int i = 0; i < 18; i++) {
        w.from = 10000 * (i % 3 + 1);
        q[i] = submit_as(&w, 200, 3, HD_SERVICE_STANDARD);
    }
    run_out(&w);
    hd_sched_stats st;
    hd_sched_get_stats(w.s, &st);
    for (int i = 0; i < 18; i++) {
        assert_int_equal(hd_seq_get_state(q[i]), HD_SEQ_DONE);
        hd_seq_free(q[i]);
    }
    close_world(&w);
    return (int64_t)(st.prompt_tok - st.hit_tok);
}

static void those_of_one_beginning_follow_one_another(void **state) {
    (void)state;
    int64_t all = 18 * 200, rest = 15 * (200 - 192); /* 12 pages of 16 are reused */
    assert_int_equal(computed_of_three_groups(HD_REORDER_NONE, HD_SCHED_PRIORITY), all);
    assert_int_equal(computed_of_three_groups(HD_REORDER_PREFIX, HD_SCHED_FCFS), all);
    assert_int_equal(computed_of_three_groups(HD_REORDER_PREFIX, HD_SCHED_PRIORITY),
                     3 * 200 + rest);
}

/* Favourites never end: the first in line is passed sixteen times and then has its turn; a more
 * urgent class is not passed at all. */
static void a_favourite_passes_for_a_while(void **state) {
    (void)state;
    for (int policy = HD_REORDER_PREFIX; policy <= HD_REORDER_LENGTH; policy++) {
        hd_sched_config c = config();
        c.n_seq_max = 1;
        c.reorder = (enum hd_reorder)policy;
        c.reorder_interval = 1;
        world w;
        open_world(&w, c);
        hd_seq *q[42], *urgent = NULL;
        for (int i = 0; i < 42; i++) {
            w.from = i == 1 ? 10000 : 0; /* the second is a stranger, and longer */
            q[i] = submit_as(&w, i == 1 ? 120 : 100, 3, HD_SERVICE_STANDARD);
        }
        int n_before = 0;
        for (int i = 0; i < 1000 && hd_seq_get_state(q[1]) == HD_SEQ_WAITING; i++) {
            step(&w);
            n_before = 0;
            for (int k = 0; k < 42; k++) n_before += hd_seq_get_state(q[k]) == HD_SEQ_DONE;
            if (n_before == 5 && !urgent) urgent = submit_as(&w, 100, 3, HD_SERVICE_INTERACTIVE);
            if (n_before == 7) assert_int_equal(hd_seq_get_state(urgent), HD_SEQ_DONE);
        }
        assert_int_equal(n_before, 17); /* the first of all, and sixteen favourites */
        run_out(&w);
        for (int i = 0; i < 42; i++) hd_seq_free(q[i]);
        hd_seq_free(urgent);
        close_world(&w);
    }
}

/* ---- chunks by time ---- */

static void prompts_leave_decoders_their_pace(void **state) {
    (void)state;
    static const struct {
        enum hd_service decoding, prompt;
        double least, most; /* of the longest step, in steps of the decoding rows alone */
    } cases[] = {
        {HD_SERVICE_INTERACTIVE, HD_SERVICE_STANDARD, 1.2, 1.5},
        {HD_SERVICE_STANDARD, HD_SERVICE_STANDARD, 1.5, 2.0},
        {HD_SERVICE_BATCH, HD_SERVICE_BATCH, 3.0, 4.0},
    };
    for (size_t i = 0; i < HD_COUNT_OF(cases); i++) {
        world w;
        open_world(&w, config());
        hd_seq *q[12];
        for (int k = 0; k < 12; k++) q[k] = submit_as(&w, 8, 3000, cases[i].decoding);
        for (int k = 0; k < 12; k++) step(&w);
        int64_t quiet = step(&w), longest = 0;
        hd_seq *prompt = submit_as(&w, 8000, 2, cases[i].prompt);
        while (hd_seq_get_state(prompt) != HD_SEQ_DONE) {
            int64_t ns = step(&w);
            if (ns > longest) longest = ns;
        }
        double ratio = (double)longest / (double)quiet;
        assert_true(ratio >= cases[i].least && ratio <= cases[i].most + 0.05);
        for (int k = 0; k < 12; k++) {
            hd_sched_finish(w.s, q[k]);
            hd_seq_free(q[k]);
        }
        hd_seq_free(prompt);
        close_world(&w);
    }
}

/* A bound in milliseconds counts with and without decoders; without any, a prompt alone takes the
 * whole budget. */
static void steps_keep_their_bound(void **state) {
    (void)state;
    for (int bounded = 0; bounded < 2; bounded++) {
        hd_sched_config c = config();
        c.step_max_ns = bounded ? 5 * MS : 0;
        world w;
        open_world(&w, c);
        hd_seq *q = submit_as(&w, 4000, 2, HD_SERVICE_STANDARD);
        int64_t ns = step(&w);
        if (bounded)
            assert_in_range(ns, 3 * MS, 5 * MS);
        else
            assert_int_equal(w.b.n_row, 512);
        run_out(&w);
        hd_seq_free(q);
        close_world(&w);
    }
}

/* A prompt that would be late gets more of the step, unless a more urgent class decodes. */
static void late_prompts_get_more(void **state) {
    (void)state;
    for (int urgent = 0; urgent < 2; urgent++) {
        world w;
        hd_sched_config c = config();
        c.n_seq_max = 2;
        open_world(&w, c);
        enum hd_service class = urgent ? HD_SERVICE_INTERACTIVE : HD_SERVICE_STANDARD;
        hd_seq *decoding = submit_as(&w, 8, 3000, class);
        for (int k = 0; k < 3; k++) step(&w);
        hd_seq *late = submit_as(&w, 3000, 2, HD_SERVICE_STANDARD);
        w.now_ns += 20000 * (int64_t)MS; /* beyond the target */
        int64_t ns = step(&w);
        if (urgent)
            assert_in_range(ns, 1.1 * MS, 1.7 * MS);
        else
            assert_in_range(ns, 5 * MS, 9 * MS);
        hd_sched_finish(w.s, decoding);
        run_out(&w);
        hd_seq_free(decoding);
        hd_seq_free(late);
        close_world(&w);
    }
}

/* One that decodes alone tolerates what half of the slots would: 1.5 times the time of 8. */
static void few_decoders_leave_room(void **state) {
    (void)state;
    world w;
    open_world(&w, config());
    hd_seq *decoding = submit_as(&w, 8, 3000, HD_SERVICE_INTERACTIVE);
    for (int k = 0; k < 3; k++) step(&w);
    hd_seq *prompt = submit_as(&w, 3000, 2, HD_SERVICE_STANDARD);
    assert_in_range(step(&w), 2.2 * MS, 1.5 * 1.8 * MS);
    hd_sched_finish(w.s, decoding);
    run_out(&w);
    hd_seq_free(decoding);
    hd_seq_free(prompt);
    close_world(&w);
}

/* A line of requests that ask for few tokens moves as fast as they end. */
static void the_wait_knows_what_is_asked_for(void **state) {
    (void)state;
    const hd_pace pace = {.tok_ns = 1, .seq_ns = 1000, .out_tok = 100, .n_room = 0};
    static const struct {
        int n_new;
        int64_t each;
    } row[] = {{10, 100}, {100, 1000}, {5000, 1000}, {INT32_MAX, 1000}};
    for (size_t i = 0; i < HD_COUNT_OF(row); i++) {
        hd_line line = {0};
        for (int k = 0; k < 9; k++) hd_line_add(&line, HD_SERVICE_STANDARD, 0, 5, row[i].n_new, 1);
        assert_int_equal(hd_pace_wait_ns(&pace, &line, HD_SERVICE_STANDARD, 0),
                         45 + 10 * row[i].each);
        for (int k = 0; k < 9; k++) hd_line_add(&line, HD_SERVICE_STANDARD, 0, 5, row[i].n_new, -1);
        assert_int_equal(line.out[HD_SERVICE_STANDARD], 0);
    }
}

/* More load is forecast than the machine can do. The longest step beside a long prompt, in steps of
 * the decoding rows alone. */
static double longest_under_load(bool somebody_waits) {
    hd_sched_config c = config();
    c.n_seq_max = 9;
    c.elastic = true;
    world w;
    open_world(&w, c);
    hd_seq *q[10];
    for (int i = 0; i < 8; i++) q[i] = submit_as(&w, 8, 4000, HD_SERVICE_STANDARD);
    step(&w);
    int64_t alone_ns = step(&w), longest_ns = 0;
    for (int i = 0; i < 200; i++) {
        hd_seq *gone = submit_as(&w, 2000, 1, HD_SERVICE_STANDARD);
        hd_sched_finish(w.s, gone);
        hd_seq_free(gone);
    }
    for (int64_t from_ns = w.now_ns; w.now_ns - from_ns < INT64_C(1100) * MS;) step(&w);
    int n = somebody_waits ? 10 : 9;
    for (int i = 8; i < n; i++) q[i] = submit_as(&w, 8000, 1, HD_SERVICE_STANDARD);
    while (hd_seq_get_state(q[8]) != HD_SEQ_DONE) {
        int64_t ns = step(&w);
        if (ns > longest_ns) longest_ns = ns;
    }
    run_out(&w);
    for (int i = 0; i < n; i++) hd_seq_free(q[i]);
    close_world(&w);
    return (double)longest_ns / (double)alone_ns;
}

static void a_step_is_stretched_for_those_who_wait(void **state) {
    (void)state;
    assert_true(longest_under_load(false) <= 2.1);
    assert_true(longest_under_load(true) > 3);
}

/* A prompt too long for its class's lane is late in the next one: it does not stretch the steps of
 * its own class, which it is not to stand before. */
static void a_long_prompt_stretches_no_step_of_its_class(void **state) {
    (void)state;
    hd_sched_config c = config();
    c.target[HD_SERVICE_STANDARD].ttft_ns = 200 * (int64_t)MS;
    c.target[HD_SERVICE_BATCH].ttft_ns = 500 * (int64_t)MS;
    world w;
    open_world(&w, c);
    hd_seq *q[9];
    for (int i = 0; i < 8; i++) q[i] = submit_as(&w, 8, 1000, HD_SERVICE_STANDARD);
    step(&w);
    int64_t alone_ns = step(&w), longest_ns = 0;
    q[8] = submit(&w, 10000, 1, (hd_seq_spec){.service = HD_SERVICE_STANDARD, .priority = -1});
    while (hd_seq_get_state(q[8]) != HD_SEQ_DONE) {
        int64_t ns = step(&w);
        if (ns > longest_ns) longest_ns = ns;
    }
    assert_true(w.now_ns > hd_seq_due_ns(q[8])); /* it was late */
    assert_true((double)longest_ns <= 2.1 * (double)alone_ns);
    run_out(&w);
    for (int i = 0; i < 9; i++) hd_seq_free(q[i]);
    close_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_go_before_each_other),
        cmocka_unit_test(fcfs_knows_no_classes),
        cmocka_unit_test(long_prompts_have_a_lane_of_their_own),
        cmocka_unit_test(due_times_order_a_bucket),
        cmocka_unit_test(tenants_share_fairly),
        cmocka_unit_test(lost_deadlines_are_told),
        cmocka_unit_test(urgent_ones_take_the_place_of_patient_ones),
        cmocka_unit_test(rows_stand_as_the_policy_says),
        cmocka_unit_test(those_of_one_beginning_follow_one_another),
        cmocka_unit_test(a_favourite_passes_for_a_while),
        cmocka_unit_test(prompts_leave_decoders_their_pace),
        cmocka_unit_test(a_step_is_stretched_for_those_who_wait),
        cmocka_unit_test(a_long_prompt_stretches_no_step_of_its_class),
        cmocka_unit_test(the_wait_knows_what_is_asked_for),
        cmocka_unit_test(steps_keep_their_bound),
        cmocka_unit_test(late_prompts_get_more),
        cmocka_unit_test(few_decoders_leave_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
