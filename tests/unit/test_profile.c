/* The latency profile: laws it has to find, phases it must not forget, its file. */
#include "support/allocs.h"
#include "support/check.h"
#include "support/files.h"
#include "support/rng.h"

#include "base/mem.h"
#include "sched/profile.h"

#include <stdlib.h>
#include <string.h>

/* A machine: 1 ms to read the weights, 0.1 ms a decoding row, 50 us a prompt row, 10 ns a position
 * read. */
static double law(const hd_step_load *l) {
    return 1e6 + 1e5 * l->n_decode + 5e4 * l->n_prompt + 10.0 * (double)l->n_read;
}

static hd_step_load any_load(test_rng *r) {
    int n_decode = rng_int(r, 0, 64), n_prompt = rng_chance(r, 0.5) ? rng_int(r, 2, 512) : 0;
    if (n_decode + n_prompt == 0) n_decode = 1;
    return (hd_step_load){.n_decode = n_decode,
                          .n_prompt = n_prompt,
                          .n_read = (int64_t)(n_decode + n_prompt) * rng_int(r, 1, 2000)};
}

/* Lognormal-like noise that is 1 in the mean: mostly near it, one step in ten slower by half. */
static double noise(test_rng *r) {
    return rng_chance(r, 0.1) ? 1.4 + 0.01 * rng_int(r, 0, 10) : 0.9 + 0.001 * rng_int(r, 0, 110);
}

static void assert_near(int64_t found, double expected, double part) {
    if ((double)found < expected * (1 - part) || (double)found > expected * (1 + part))
        fail_msg("expected %.0f ns within %.0f %%, found %lld", expected, 100 * part,
                 (long long)found);
}

static void finds_a_linear_law(void **state) {
    (void)state;
    hd_profile *p = hd_profile_new();
    hd_step_load l = {.n_decode = 1, .n_read = 1};
    assert_int_equal(hd_profile_mean_ns(p, &l) + hd_profile_p95_ns(p, &l), 0);
    assert_int_equal(hd_profile_rows_within(p, &l, 0, 77, 1), 77); /* nothing is known */
    test_rng r = {.x = 1};
    for (int i = 0; i < 400; i++) {
        l = any_load(&r);
        hd_profile_learn(p, &l, (int64_t)law(&l));
        hd_profile_check(p);
    }
    for (int i = 0; i < 400; i++) {
        l = any_load(&r);
        assert_near(hd_profile_mean_ns(p, &l), law(&l), 0.03);
    }
    hd_profile_free(p);
}

static void p95_holds_for_nineteen_steps_in_twenty(void **state) {
    (void)state;
    hd_profile *p = hd_profile_new();
    test_rng r = {.x = 2};
    int n_above = 0;
    double sum = 0;
    for (int i = 0; i < 6000; i++) {
        hd_step_load l = any_load(&r);
        double ns = law(&l) * noise(&r);
        if (i >= 2000) {
            n_above += ns > (double)hd_profile_p95_ns(p, &l);
            sum += (double)hd_profile_mean_ns(p, &l) / law(&l);
        }
        hd_profile_learn(p, &l, (int64_t)ns);
    }
    hd_profile_check(p);
    print_message("%.1f %% of the steps above the P95, mean of predicted over true %.3f\n",
                  n_above / 40.0, sum / 4000);
    assert_in_range(n_above, 4000 / 50, 4000 / 12);
    assert_near((int64_t)(1e6 * sum / 4000), 1e6, 0.05);
    hd_profile_free(p);
}

/* A day of decoding alone, and a machine that became twice as slow: prompts are still known, and
 * decoding is known anew. */
static void follows_without_forgetting(void **state) {
    (void)state;
    hd_profile *p = hd_profile_new();
    test_rng r = {.x = 3};
    for (int i = 0; i < 2000; i++) {
        hd_step_load l = any_load(&r);
        hd_profile_learn(p, &l, (int64_t)law(&l));
    }
    hd_step_load decode = {.n_decode = 20, .n_read = 20000}, prompt = {.n_prompt = 300};
    prompt.n_read = 45150;
    for (int i = 0; i < 100000; i++) hd_profile_learn(p, &decode, (int64_t)(2 * law(&decode)));
    assert_near(hd_profile_mean_ns(p, &decode), 2 * law(&decode), 0.05);
    assert_near(hd_profile_mean_ns(p, &prompt), law(&prompt), 0.1);
    hd_profile_free(p);
}

static void chunks_keep_the_limit(void **state) {
    (void)state;
    hd_profile *p = hd_profile_new();
    test_rng r = {.x = 4};
    for (int i = 0; i < 2000; i++) {
        hd_step_load l = any_load(&r);
        hd_profile_learn(p, &l, (int64_t)(law(&l) * noise(&r)));
    }
    int n_some = 0;
    for (int i = 0; i < 500; i++) {
        hd_step_load l = any_load(&r);
        int64_t limit = hd_profile_p95_ns(p, &l) * rng_int(&r, 1, 6) / 2;
        int pos = rng_int(&r, 0, 2000), n = hd_profile_rows_within(p, &l, pos, 512, limit);
        assert_in_range(n, 0, 512);
        n_some += n > 0 && n < 512;
        if (n == 0) continue;
        hd_step_load_add(&l, n, pos);
        assert_true(hd_profile_p95_ns(p, &l) <= limit);
    }
    assert_true(n_some > 100);
    /* A prompt in chunks: its rows, and once a chunk what every step costs. */
    hd_step_load none = {0};
    double expected = 4 * (1e6 + 512 * 5e4) + 10.0 * 2048 * 1024;
    assert_near(hd_profile_prompt_ns(p, &none, 2048, 0, 512), expected, 0.15);
    hd_profile_free(p);
}

static void learning_allocates_nothing(void **state) {
    (void)state;
    hd_profile *p = hd_profile_new();
    test_rng r = {.x = 5};
    test_allocs_watch(true);
    long before = test_allocs_count();
    for (int i = 0; i < 100; i++) {
        hd_step_load l = any_load(&r);
        hd_profile_learn(p, &l, (int64_t)law(&l));
        hd_profile_rows_within(p, &l, 0, 512, 1000000);
    }
    assert_int_equal(test_allocs_count() - before, 0);
    test_allocs_watch(false);
    hd_profile_free(p);
}

static void its_file_is_whole_or_refused(void **state) {
    (void)state;
    const char *path = test_join(test_dir, "profile");
    hd_profile *p = hd_profile_new(), *q = NULL;
    test_rng r = {.x = 6};
    for (int i = 0; i < 3000; i++) {
        hd_step_load l = any_load(&r);
        hd_profile_learn(p, &l, (int64_t)(law(&l) * noise(&r)));
    }
    assert_ok(hd_profile_save(p, path, 77));
    assert_int_equal(hd_profile_load(path, 78, &q), HD_E_CORRUPT);
    assert_non_null(strstr(hd_error_text(), "expected key 000000000000004e"));
    assert_int_equal(hd_profile_load(test_join(test_dir, "none"), 77, &q), HD_E_IO);
    assert_int_equal(hd_profile_save(p, test_join(test_dir, "none/p"), 77), HD_E_IO);
    assert_ok(hd_profile_load(path, 77, &q));
    hd_profile_check(q);
    for (int i = 0; i < 200; i++) {
        hd_step_load l = any_load(&r);
        assert_near(hd_profile_mean_ns(q, &l), (double)hd_profile_mean_ns(p, &l), 0.02);
    }
    hd_profile_free(q);
    size_t n;
    char *text = test_read_file(path, &n);
    uint64_t key;
    for (size_t cut = 0; cut < n; cut += 1 + n / 300)
        assert_int_equal(hd_profile_parse((hd_str){text, cut}, &key, &q), HD_E_CORRUPT);
    for (size_t at = 40; at < n; at += 1 + n / 300) {
        char was = text[at];
        text[at] = was == '1' ? '2' : '1';
        assert_int_equal(hd_profile_parse((hd_str){text, n}, &key, &q), HD_E_CORRUPT);
        assert_null(q);
        text[at] = was;
    }
    assert_ok(hd_profile_parse((hd_str){text, n}, &key, &q));
    hd_profile_free(q);
    hd_profile_free(p);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_a_linear_law),
        cmocka_unit_test(p95_holds_for_nineteen_steps_in_twenty),
        cmocka_unit_test(follows_without_forgetting),
        cmocka_unit_test(chunks_keep_the_limit),
        cmocka_unit_test(learning_allocates_nothing),
        cmocka_unit_test_setup_teardown(its_file_is_whole_or_refused, test_dir_make,
                                        test_dir_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
