/* Load traces: what a file may say and what is said of one that does not; generators keep their
 * rates, lengths and shares, and repeat by their seed. */
#include "support/check.h"

#include "sim/trace.h"

#include <math.h>
#include <string.h>

#define HEAD HD_TRACE_HEADER "\n"

static void a_trace_is_read(void **state) {
    (void)state;
    static const char text[] =
        HEAD "0,20,2,a,16,interactive\r\n\n0.25,4,1,,,\n0.25,18,3,a,18,batch\n1,5,1,b,2,";
    hd_trace t;
    assert_int_equal(hd_trace_parse(&t, hd_str_of(text), 5), HD_OK);
    assert_int_equal(t.n, 4);
    assert_int_equal(t.item[2].n_prefix, 18);
    assert_true(t.item[1].arrival_s == 0.25 && t.item[3].arrival_s == 1);
    assert_string_equal(t.item[0].service, "interactive");
    assert_string_equal(t.item[1].group, "");
    int32_t first[20], third[18], again[20];
    hd_trace_prompt(&t.item[0], first);
    hd_trace_prompt(&t.item[2], third);
    hd_trace_prompt(&t.item[0], again);
    assert_memory_equal(first, again, sizeof first);
    assert_memory_equal(first, third, 16 * sizeof *first); /* of one group */
    assert_int_not_equal(first[16], third[16]);
    for (int i = 0; i < 20; i++) assert_in_range(first[i], 100, 999);
    /* Of request 2 the first 16 of 18; pages of 4 and of 32. */
    assert_int_equal(hd_trace_reusable_tok(&t, 4), 16);
    assert_int_equal(hd_trace_reusable_tok(&t, 32), 0);
    assert_int_equal(hd_trace_longest(&t), 22);
    hd_trace_hasten(&t, 4);
    assert_true(t.item[0].arrival_s == 0 && t.item[1].arrival_s == 0.0625 &&
                t.item[3].arrival_s == 0.25);
    hd_trace_fini(&t);
}

static void a_wrong_trace_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"", "line 1: expected \"arrival_s,"},
        {"a,b\n0,1,1,,,\n", "found \"a,b\""},
        {HEAD, "line 2: expected requests, found none"},
        {HEAD "0,1,1", "line 2, column 1: expected 6 fields, found 3"},
        {HEAD "0,1,1,,,a,b", "line 2, column 1: expected 6 fields, found 7"},
        {HEAD "2,1,1,,,\n1,1,1,,,", "line 3, column 1 (arrival_s): expected no earlier arrival"},
        {HEAD "nan,1,1,,,", "line 2, column 1 (arrival_s): expected seconds from 0, found \"nan\""},
        {HEAD "-1,1,1,,,", "line 2, column 1 (arrival_s)"},
        {HEAD "0,0,1,,,", "line 2, column 3 (prompt_tokens): expected a number from 1 to 16777216"},
        {HEAD "0,1,99999999999,,,", "line 2, column 5 (output_tokens): expected a number"},
        {HEAD "0,1,1x,,,", "found \"1x\""},
        {HEAD "0,4,1,a,5,", "line 2, column 9 (prefix_tokens): expected at most prompt_tokens"},
        {HEAD "0,4,1,,,batch\n1,4,1,,,bacth",
         "line 3, column 9 (class): expected nothing or interactive, standard, batch or offline"},
        {HEAD "0,4,1,a,,", "line 2, column 9 (prefix_tokens): expected a number from 0"},
    };
    for (size_t i = 0; i < HD_COUNT_OF(cases); i++) {
        hd_trace t;
        assert_int_equal(hd_trace_parse(&t, hd_str_of(cases[i].text), 0), HD_E_CORRUPT);
        if (!strstr(hd_error_text(), cases[i].error))
            fail_msg("case %zu: \"%s\" not in \"%s\"", i, cases[i].error, hd_error_text());
        hd_trace_fini(&t);
    }
    hd_trace t;
    assert_int_equal(hd_trace_parse(&t, (hd_str){HEAD "0,1\0,1,,,", sizeof HEAD + 8}, 0),
                     HD_E_CORRUPT);
    assert_non_null(strstr(hd_error_text(), "column 4: expected text, found a zero byte"));
    hd_trace_fini(&t);
    assert_int_equal(hd_trace_read(&t, "/nowhere/gone", 0), HD_E_NOT_FOUND);
    hd_trace_fini(&t);
}

static hd_trace_spec spec_of(enum hd_trace_kind kind) {
    return (hd_trace_spec){.kind = kind,
                           .n = 20000,
                           .rate = 50,
                           .shape = 1,
                           .period_s = 10,
                           .n_prompt = 100,
                           .n_output = 40,
                           .spread = 0.5,
                           .n_prompt_long = 1600,
                           .n_turn = 10,
                           .think_s = 2,
                           .seed = 11};
}

static hd_trace generate(const hd_trace_spec *s) {
    hd_trace t;
    assert_int_equal(hd_trace_generate(&t, s), HD_OK);
    assert_int_equal(t.n, s->n);
    for (int i = 1; i < t.n; i++) assert_true(t.item[i].arrival_s >= t.item[i - 1].arrival_s);
    return t;
}

static bool near(double a, double b, double share) { return fabs(a - b) <= share * b; }

static void rates_and_lengths_are_kept(void **state) {
    (void)state;
    for (int k = 0; k < HD_TRACE_KIND_COUNT; k++) {
        hd_trace_spec s = spec_of((enum hd_trace_kind)k);
        hd_trace t = generate(&s);
        double last_s = t.item[t.n - 1].arrival_s, output = 0, prompt = 0;
        assert_true(near(t.n / last_s, s.rate, k == HD_TRACE_SESSIONS ? 0.1 : 0.03));
        for (int i = 0; i < t.n; i++) {
            output += t.item[i].n_output;
            prompt += t.item[i].n_prompt;
            assert_in_range(t.item[i].n_output, 20, 60);
        }
        assert_true(near(output / t.n, 40, 0.02));
        if (k < HD_TRACE_LENGTHS) assert_true(near(prompt / t.n, 100, 0.02));
        if (k == HD_TRACE_LENGTHS) assert_true(near(prompt / t.n, 0.8 * 100 + 0.2 * 1600, 0.05));
        hd_trace_fini(&t);
    }
}

/* Requests by phase of the period: a burst of a fifth has 4 times the rate, 4/5 of requests. */
static void bursts_and_days_are_as_said(void **state) {
    (void)state;
    for (int k = HD_TRACE_BURSTY; k <= HD_TRACE_DIURNAL; k++) {
        hd_trace_spec s = spec_of((enum hd_trace_kind)k);
        hd_trace t = generate(&s);
        int n_fifth = 0, n_half = 0;
        for (int i = 0; i < t.n; i++) {
            double phase = fmod(t.item[i].arrival_s, s.period_s) / s.period_s;
            n_fifth += phase < 0.2;
            n_half += phase < 0.5;
        }
        if (k == HD_TRACE_BURSTY) assert_true(near(n_fifth, 0.8 * t.n, 0.03));
        if (k == HD_TRACE_DIURNAL) /* 1/2 + 0.8 / pi */
            assert_true(near(n_half, 0.7546 * t.n, 0.03));
        hd_trace_fini(&t);
    }
}

static void burstiness_is_of_the_gaps(void **state) {
    (void)state;
    for (double shape = 0.25; shape <= 4; shape *= 4) {
        hd_trace_spec s = spec_of(HD_TRACE_POISSON);
        s.shape = shape;
        hd_trace t = generate(&s);
        double sum = 0, sum2 = 0;
        for (int i = 1; i < t.n; i++) {
            double gap = t.item[i].arrival_s - t.item[i - 1].arrival_s;
            sum += gap;
            sum2 += gap * gap;
        }
        double mean = sum / (t.n - 1), variance = sum2 / (t.n - 1) - mean * mean;
        assert_true(near(variance / (mean * mean), 1 / shape, 0.1));
        hd_trace_fini(&t);
    }
}

static void sessions_grow(void **state) {
    (void)state;
    hd_trace_spec s = spec_of(HD_TRACE_SESSIONS);
    hd_trace t = generate(&s);
    int64_t prompt = 0;
    for (int i = 0; i < t.n; i++) {
        prompt += t.item[i].n_prompt;
        assert_int_equal(t.item[i].n_prefix, t.item[i].n_prompt);
    }
    /* Turn k shares k - 1 prompts and k - 2 answers of k and k - 1: 0.75 of a session of 10. */
    double share = (double)hd_trace_reusable_tok(&t, 1) / (double)prompt;
    double wanted = 0, all = 0;
    for (int k = 1; k <= 10; k++) {
        all += 100 * k + 40 * (k - 1);
        if (k > 1) wanted += 100 * (k - 1) + 40 * (k - 2);
    }
    assert_true(near(share, wanted / all, 0.01));
    hd_trace_fini(&t);
}

static void classes_have_their_shares(void **state) {
    (void)state;
    hd_trace_spec s = spec_of(HD_TRACE_POISSON);
    assert_int_equal(hd_trace_parse_classes("interactive:3,batch:1", &s), HD_OK);
    hd_trace t = generate(&s);
    int n_interactive = 0;
    for (int i = 0; i < t.n; i++) n_interactive += strcmp(t.item[i].service, "interactive") == 0;
    assert_true(near(n_interactive, 0.75 * t.n, 0.03));
    hd_trace_fini(&t);
    s.kind = HD_TRACE_LENGTHS;
    t = generate(&s);
    for (int i = 0; i < t.n; i++)
        assert_string_equal(t.item[i].service,
                            t.item[i].n_prompt == 1600 ? "batch" : "interactive");
    hd_trace_fini(&t);
    static const char *const bad[] = {
        "batch", "batch:0", ":1", "batch:1,,", "batch:1,offline:x", "batch:1;offline:1", "bacth:1"};
    for (size_t i = 0; i < HD_COUNT_OF(bad); i++)
        assert_int_equal(hd_trace_parse_classes(bad[i], &s), HD_E_INVALID);
}

static void equal_seeds_give_equal_traces(void **state) {
    (void)state;
    for (int k = 0; k < HD_TRACE_KIND_COUNT; k++) {
        hd_trace_spec s = spec_of((enum hd_trace_kind)k);
        s.n = 500;
        hd_buf text[3];
        for (int i = 0; i < 3; i++) {
            s.seed = i < 2 ? 1 : 2;
            hd_trace t = generate(&s), back;
            hd_buf_init(&text[i], 1 << 20);
            hd_trace_write(&t, &text[i]);
            assert_int_equal(hd_trace_parse(&back, hd_buf_str(&text[i]), s.seed), HD_OK);
            for (int j = 0; j < t.n; j++) {
                assert_true(t.item[j].arrival_s == back.item[j].arrival_s);
                assert_int_equal(t.item[j].n_prompt, back.item[j].n_prompt);
                assert_int_equal(t.item[j].seed, back.item[j].seed);
                assert_int_equal(t.item[j].prefix_seed, back.item[j].prefix_seed);
            }
            hd_trace_fini(&back);
            hd_trace_fini(&t);
        }
        assert_string_equal(text[0].ptr, text[1].ptr);
        assert_string_not_equal(text[0].ptr, text[2].ptr);
        for (int i = 0; i < 3; i++) hd_buf_fini(&text[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_trace_is_read),
        cmocka_unit_test(a_wrong_trace_is_refused),
        cmocka_unit_test(rates_and_lengths_are_kept),
        cmocka_unit_test(bursts_and_days_are_as_said),
        cmocka_unit_test(burstiness_is_of_the_gaps),
        cmocka_unit_test(sessions_grow),
        cmocka_unit_test(classes_have_their_shares),
        cmocka_unit_test(equal_seeds_give_equal_traces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
