/* Scheduler: directed cases. The random ones are tests/sim/test_sim.c. */
#include "support/check.h"

#include "base/mem.h"
#include "sched/sched.h"

static hd_sched_config config(void) {
    return (hd_sched_config){.n_seq_max = 16,
                             .n_row_max = 64,
                             .chunked = true,
                             .n_queue_max = 100,
                             .n_pos_max = 1000,
                             .n_page = 200,
                             .page_tok = 8,
                             .prefix_cache = true,
                             .expand_min = 32,
                             .model_key = 7};
}

struct fixture {
    hd_sched_config c;
    hd_sched *s;
    hd_batch b;
    int64_t now_ns;
};

static struct fixture setup(hd_sched_config c) {
    struct fixture f = {.c = c, .s = hd_sched_new(&c)};
    hd_sched_batch_init(&c, &f.b);
    return f;
}

static void teardown(struct fixture *f) {
    hd_sched_check(f->s);
    hd_sched_drop_cache(f->s);
    hd_sched_stats st;
    hd_sched_get_stats(f->s, &st);
    assert_int_equal(st.n_page_free, f->c.n_page);
    hd_batch_fini(&f->b);
    hd_sched_free(f->s);
}

/* A sequence whose prompt counts up from `from`. */
static hd_seq *seq(const struct fixture *f, int from, int n_prompt, int n_new_max) {
    int32_t token[2000];
    for (int i = 0; i < n_prompt; i++) token[i] = from + i;
    hd_seq_spec spec = {
        .id = (uint64_t)from, .prompt = token, .n_prompt = n_prompt, .n_new_max = n_new_max};
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
            assert_ok(hd_sched_submit(f.s, q, 0));
            while (step(&f) > 0) {
            }
            assert_int_equal(hd_seq_get_state(q), HD_SEQ_DONE);
            assert_int_equal(hd_seq_n_hit(q), k == 0 ? 0 : (n_prompt - 1) / 8 * 8);
            hd_seq_free(q);
        }
        teardown(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(repeat_hits_all_whole_pages_but_the_last_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
