/* sampler: against a naive version that sorts everything, at the extremes, and statistically. */
#include "engine/sampler.h"
#include "support/check.h"
#include "support/rng.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static test_rng rng = {.x = 1};
static int below(int n) { return rng_int(&rng, 0, n - 1); }
static float uniform(float a, float b) { return a + (b - a) * (float)rng_unit(&rng); }

/* ---- the naive version: probabilities of every id, in doubles ---- */

typedef struct naive {
    int n;
    const hd_sampling *set;
    const int32_t *prompt, *generated;
    int n_prompt, n_generated;
    const int32_t *no_token;
    int n_no_token;
} naive;

static int count_in(const int32_t *a, int n, int32_t id) {
    int k = 0;
    for (int i = 0; i < n; i++) k += a[i] == id;
    return k;
}

static const float *sort_row;
static int by_logit(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (sort_row[x] != sort_row[y]) return sort_row[x] > sort_row[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

static void naive_row(const naive *v, const float *logits, float *row) {
    const hd_sampling *s = v->set;
    for (int32_t i = 0; i < v->n; i++) {
        float x = logits[i];
        for (int k = 0; k < s->n_bias; k++)
            if (s->bias[k].token == i) x += s->bias[k].bias;
        if (count_in(v->no_token, v->n_no_token, i)) x = -INFINITY;
        int n_new = count_in(v->generated, v->n_generated, i);
        if (n_new || count_in(v->prompt, v->n_prompt, i))
            x = x > 0 ? x / s->repetition_penalty : x * s->repetition_penalty;
        x -= s->frequency_penalty * (float)n_new;
        if (n_new) x -= s->presence_penalty;
        row[i] = x;
    }
}

/* p[id] of the distribution that is sampled; returns the greedy choice. */
static int32_t naive_p(const naive *v, const float *logits, double *p) {
    const hd_sampling *s = v->set;
    int n = v->n;
    float *row = malloc((size_t)n * sizeof *row);
    int32_t *order = malloc((size_t)n * sizeof *order);
    double *e = malloc((size_t)n * sizeof *e);
    naive_row(v, logits, row);
    for (int32_t i = 0; i < n; i++) order[i] = i;
    sort_row = row;
    qsort(order, (size_t)n, sizeof *order, by_logit);
    int32_t best = order[0];
    int n_kept = 0;
    double sum = 0;
    for (int i = 0; i < n && s->temperature > 0; i++) {
        e[i] = exp(((double)row[order[i]] - (double)row[best]) / (double)s->temperature);
        if (row[order[i]] == -INFINITY || e[i] < (double)s->min_p) break;
        if (s->top_k > 0 && i >= s->top_k) break;
        sum += e[i];
        n_kept++;
    }
    double kept = 0;
    int n_top = 0;
    while (n_top < n_kept && (n_top == 0 || kept < (double)s->top_p * sum)) kept += e[n_top++];
    for (int i = 0; i < n; i++) p[i] = 0;
    for (int i = 0; i < n_top; i++) p[order[i]] = e[i] / kept;
    free(row);
    free(order);
    free(e);
    return best;
}

/* ---- helpers ---- */

static void plain(hd_sampling *s) {
    *s = (hd_sampling){.temperature = 1, .top_p = 1, .repetition_penalty = 1, .n_top_logprob = -1};
}

static hd_sampler *sampler_of(const hd_sampling *s, uint64_t seed) {
    hd_sampler_spec spec = {.sampling = s, .seed = seed, .n_new_max = 100};
    return hd_sampler_new(&spec);
}

static int32_t sample_one(const hd_sampling *set, const float *logits, int n, uint64_t seed) {
    hd_sampler *s = sampler_of(set, seed);
    hd_sampler_desk *d = hd_sampler_desk_new(n, NULL, 0);
    hd_top_logprob top[HD_TOP_LOGPROB_MAX];
    hd_sample out = {.top = top};
    assert_ok(hd_sampler_next(s, d, logits, NULL, 0, &out));
    hd_sampler_free(s);
    hd_sampler_desk_free(d);
    return out.token;
}

/* ---- tests ---- */

enum { n_draw = 20000 };

/* Pearson's statistic over bins of at least 20 expected draws, against a generous bound:
 * mean k, variance 2k; six standard deviations and a little. The seeds are fixed. */
static void check_chi_square(const double *p, const int *hits, int n, const char *what) {
    double stat = 0, rest_p = 0, rest_hits = 0;
    int n_bin = 0;
    for (int i = 0; i < n; i++) {
        if (p[i] == 0 && hits[i] > 0) fail_msg("%s: id %d was drawn, its p is 0", what, i);
        if (p[i] * n_draw < 20) {
            rest_p += p[i];
            rest_hits += hits[i];
            continue;
        }
        double d = hits[i] - p[i] * n_draw;
        stat += d * d / (p[i] * n_draw);
        n_bin++;
    }
    if (rest_p * n_draw >= 20) {
        double d = rest_hits - rest_p * n_draw;
        stat += d * d / (rest_p * n_draw);
        n_bin++;
    } else {
        assert_true(rest_hits < 80);
    }
    double k = n_bin > 1 ? n_bin - 1 : 1;
    if (stat > k + 6 * sqrt(2 * k) + 4)
        fail_msg("%s: chi-square %g over %d bins", what, stat, n_bin);
}

static void draw_many(const hd_sampling *set, int n_row, const char *what) {
    float *logits = malloc((size_t)n_row * sizeof *logits);
    double *p = malloc((size_t)n_row * sizeof *p);
    int *hits = calloc((size_t)n_row, sizeof *hits);
    for (int i = 0; i < n_row; i++) logits[i] = uniform(-3, 3);
    int32_t prompt[] = {1, 1, 5}, generated[] = {2, 5, 5, 5}, no_token[] = {7, n_row - 1};
    hd_sampler_spec spec = {
        .sampling = set, .seed = rng_next(&rng), .prompt = prompt, .n_prompt = 3, .n_new_max = 4};
    hd_sampler_desk *d = hd_sampler_desk_new(n_row, no_token, 2);
    naive v = {.n = n_row,
               .set = set,
               .prompt = prompt,
               .n_prompt = 3,
               .generated = generated,
               .n_generated = 4,
               .no_token = no_token,
               .n_no_token = 2};
    naive_p(&v, logits, p);
    for (int i = 0; i < n_draw; i++) {
        spec.seed++;
        hd_sampler *s = hd_sampler_new(&spec);
        for (int k = 0; k < 4; k++) hd_sampler_accept(s, generated[k]);
        hd_sample out = {0};
        assert_ok(hd_sampler_next(s, d, logits, NULL, 0, &out));
        hits[out.token]++;
        hd_sampler_free(s);
    }
    check_chi_square(p, hits, n_row, what);
    hd_sampler_desk_free(d);
    free(logits);
    free(p);
    free(hits);
}

static void draws_follow_the_distribution(void **state) {
    (void)state;
    hd_sampling s;
    rng.x = 11;
    plain(&s);
    draw_many(&s, 50, "plain");
    s.temperature = 0.5f;
    draw_many(&s, 50, "temperature 0.5");
    s.temperature = 2;
    s.top_k = 12;
    draw_many(&s, 50, "top_k");
    s.top_k = 0;
    s.top_p = 0.7f;
    draw_many(&s, 50, "top_p");
    s.top_k = 20;
    draw_many(&s, 50, "top_k and top_p");
    s.min_p = 0.2f;
    draw_many(&s, 50, "top_k, top_p and min_p");
    plain(&s);
    s.min_p = 0.1f;
    draw_many(&s, 200, "min_p");
    plain(&s);
    s.top_k = 300;
    draw_many(&s, 2000, "top_k of many");
    s.top_p = 0.8f;
    draw_many(&s, 2000, "top_k and top_p of many");
    plain(&s);
    s.frequency_penalty = 0.7f;
    s.presence_penalty = -0.8f;
    s.repetition_penalty = 1.7f;
    hd_logit_bias bias[] = {{3, 4}, {4, -100}, {5, 2}, {3, 1}};
    s.bias = bias;
    s.n_bias = 4;
    draw_many(&s, 50, "penalties and bias");
}

/* Every draw lands inside the naive version's support, and greedy agrees exactly. */
static void random_settings_agree_with_naive(void **state) {
    (void)state;
    rng.x = 5;
    for (int round = 0; round < 3000; round++) {
        int n = 2 + below(60);
        float logits[64];
        /* A coarse grid, so that ties are common. */
        for (int i = 0; i < n; i++) logits[i] = (float)below(9) * 0.5f - 2;
        hd_sampling set;
        plain(&set);
        const float temperature[] = {0, 0, 1, 0.3f, 5};
        set.temperature = temperature[below(5)];
        if (below(2)) set.top_k = 1 + below(n + 3);
        if (below(2)) set.top_p = uniform(0, 1);
        if (below(3) == 0) set.min_p = uniform(0, 1);
        if (below(2)) set.repetition_penalty = uniform(0.5f, 2);
        if (below(2)) set.frequency_penalty = uniform(-2, 2);
        if (below(2)) set.presence_penalty = uniform(-2, 2);
        hd_logit_bias bias[3] = {
            {below(n), uniform(-3, 3)}, {below(n), -INFINITY}, {below(n), 100}};
        set.bias = bias;
        set.n_bias = below(4);
        int32_t prompt[5], generated[5], no_token[1] = {n - 1};
        for (int i = 0; i < 5; i++) prompt[i] = below(n), generated[i] = below(n);
        naive v = {.n = n,
                   .set = &set,
                   .prompt = prompt,
                   .n_prompt = 5,
                   .generated = generated,
                   .n_generated = below(6),
                   .no_token = no_token,
                   .n_no_token = below(2)};
        double p[64];
        int32_t greedy = naive_p(&v, logits, p);
        float row[64];
        naive_row(&v, logits, row);
        hd_sampler_desk *d = hd_sampler_desk_new(n, no_token, v.n_no_token);
        hd_sampler_spec spec = {.sampling = &set,
                                .seed = (uint64_t)round,
                                .prompt = prompt,
                                .n_prompt = 5,
                                .n_new_max = 5};
        hd_sampler *s = hd_sampler_new(&spec);
        for (int i = 0; i < v.n_generated; i++) hd_sampler_accept(s, generated[i]);
        hd_sample out = {0};
        hd_status st = hd_sampler_next(s, d, logits, NULL, 0, &out);
        if (row[greedy] == -INFINITY) {
            assert_int_equal(st, HD_E_INVALID);
        } else {
            assert_int_equal(st, HD_OK);
            if (set.temperature == 0) assert_int_equal(out.token, greedy);
            if (set.temperature > 0) { /* rounding may move an edge by a hair, never more */
                hd_sampling loose = set;
                loose.top_p += 1e-5f;
                loose.min_p -= 1e-5f;
                v.set = &loose;
                naive_p(&v, logits, p);
                if (p[out.token] == 0) fail_msg("round %d: drew outside the support", round);
            }
        }
        hd_sampler_free(s);
        hd_sampler_desk_free(d);
    }
}

/* A cut that cuts nothing off changes no draw. */
static void an_idle_cut_changes_nothing(void **state) {
    (void)state;
    rng.x = 8;
    enum { n = 500 };
    float logits[n];
    for (int i = 0; i < n; i++) logits[i] = uniform(-6, 6);
    for (uint64_t seed = 0; seed < 300; seed++) {
        hd_sampling s;
        plain(&s);
        int32_t t = sample_one(&s, logits, n, seed);
        s.top_k = n;
        assert_int_equal(sample_one(&s, logits, n, seed), t);
        s.top_k = 0;
        s.min_p = 1e-30f;
        assert_int_equal(sample_one(&s, logits, n, seed), t);
    }
}

static void extremes(void **state) {
    (void)state;
    const float logits[6] = {1, 3, 3, -2, 2.999f, 0};
    hd_sampling s;
    plain(&s);
    s.temperature = 0;
    assert_int_equal(sample_one(&s, logits, 6, 1), 1); /* the lower of two equal ones */
    for (uint64_t seed = 0; seed < 50; seed++) {
        plain(&s);
        s.temperature = 1e-30f;
        int32_t t = sample_one(&s, logits, 6, seed);
        assert_true(t == 1 || t == 2);
        s.temperature = FLT_MIN / 4; /* a subnormal */
        t = sample_one(&s, logits, 6, seed);
        assert_true(t == 1 || t == 2);
        plain(&s);
        s.top_p = 0;
        assert_int_equal(sample_one(&s, logits, 6, seed), 1);
        plain(&s);
        s.top_k = 1;
        assert_int_equal(sample_one(&s, logits, 6, seed), 1);
        plain(&s);
        s.min_p = 1;
        t = sample_one(&s, logits, 6, seed);
        assert_true(t == 1 || t == 2);
        plain(&s);
        s.temperature = FLT_MAX;
        s.top_k = 1000;
        t = sample_one(&s, logits, 6, seed);
        assert_in_range(t, 0, 5);
    }
    plain(&s);
    s.temperature = FLT_MAX; /* uniform over everything */
    int hits[6] = {0};
    for (uint64_t seed = 0; seed < 6000; seed++) hits[sample_one(&s, logits, 6, seed)]++;
    for (int i = 0; i < 6; i++) assert_in_range(hits[i], 850, 1150);
    const float wide[3] = {FLT_MAX, -FLT_MAX, 0};
    hd_logit_bias up = {0, 100};
    s = (hd_sampling){.temperature = 1,
                      .top_p = 1,
                      .repetition_penalty = 1,
                      .n_top_logprob = -1,
                      .bias = &up,
                      .n_bias = 1};
    assert_int_equal(sample_one(&s, wide, 3, 3), 0);
}

static void everything_banned_is_an_error(void **state) {
    (void)state;
    const float logits[3] = {1, 2, 3};
    hd_logit_bias bias[3] = {{0, -INFINITY}, {1, -INFINITY}, {2, -INFINITY}};
    hd_sampling set;
    plain(&set);
    set.bias = bias;
    set.n_bias = 2;
    assert_int_equal(sample_one(&set, logits, 3, 9), 2);
    set.n_bias = 3;
    hd_sampler *s = sampler_of(&set, 1);
    hd_sampler_desk *d = hd_sampler_desk_new(3, NULL, 0);
    hd_sample out = {0};
    assert_int_equal(hd_sampler_next(s, d, logits, NULL, 0, &out), HD_E_INVALID);
    hd_sampler_free(s);
    plain(&set);
    s = sampler_of(&set, 1);
    int32_t ban[2] = {2, 0};
    assert_ok(hd_sampler_next(s, d, logits, ban, 2, &out));
    assert_int_equal(out.token, 1);
    hd_sampler_free(s);
    hd_sampler_desk_free(d);
}

static void non_finite_rows_are_refused(void **state) {
    (void)state;
    hd_sampling set;
    plain(&set);
    set.temperature = 0;
    hd_sampler *s = sampler_of(&set, 1);
    const float bad[3] = {NAN, INFINITY, -INFINITY};
    for (int n = 1; n < 40; n++) {
        hd_sampler_desk *d = hd_sampler_desk_new(n, NULL, 0);
        for (int at = 0; at < n; at++) {
            for (int b = 0; b < 3; b++) {
                float logits[40] = {0};
                hd_sample out = {0};
                assert_ok(hd_sampler_next(s, d, logits, NULL, 0, &out));
                logits[at] = bad[b];
                assert_int_equal(hd_sampler_next(s, d, logits, NULL, 0, &out), HD_E_NUMERIC);
            }
        }
        hd_sampler_desk_free(d);
    }
    hd_sampler_free(s);
}

static void logprobs_are_of_the_raw_row(void **state) {
    (void)state;
    rng.x = 77;
    enum { n = 300 };
    float logits[n];
    for (int i = 0; i < n; i++) logits[i] = (float)below(40) * 0.25f; /* ties */
    double sum = 0;
    for (int i = 0; i < n; i++) sum += exp((double)logits[i]);
    hd_logit_bias bias = {17, 50};
    hd_sampling set;
    plain(&set);
    set.temperature = 0.1f;
    set.top_k = 3;
    set.bias = &bias;
    set.n_bias = 1;
    set.n_top_logprob = 20;
    int32_t order[n], no_token[2] = {20, 21};
    for (int32_t i = 0; i < n; i++) order[i] = i;
    sort_row = logits;
    qsort(order, n, sizeof *order, by_logit);
    hd_sampler *s = sampler_of(&set, 1);
    hd_sampler_desk *d = hd_sampler_desk_new(n, no_token, 2);
    hd_top_logprob top[HD_TOP_LOGPROB_MAX];
    hd_sample out = {.top = top};
    assert_ok(hd_sampler_next(s, d, logits, NULL, 0, &out));
    assert_int_equal(out.token, 17);
    assert_true(fabs((double)out.logprob - ((double)logits[17] - log(sum))) < 1e-5);
    assert_int_equal(out.n_top, 20);
    for (int i = 0, at = 0; i < 20; i++, at++) {
        while (order[at] == 20 || order[at] == 21) at++;
        assert_int_equal(top[i].token, order[at]);
        assert_true(fabs((double)top[i].logprob - ((double)logits[order[at]] - log(sum))) < 1e-5);
    }
    hd_sampler_free(s);
    hd_sampler_desk_free(d);
    /* Fewer tokens than asked for. */
    d = hd_sampler_desk_new(3, NULL, 0);
    set.n_bias = 0;
    s = sampler_of(&set, 1);
    assert_ok(hd_sampler_next(s, d, logits, NULL, 0, &out));
    assert_int_equal(out.n_top, 3);
    hd_sampler_free(s);
    hd_sampler_desk_free(d);
}

static void a_draw_depends_on_seed_and_index_only(void **state) {
    (void)state;
    enum { n = 64 };
    float logits[n];
    for (int i = 0; i < n; i++) logits[i] = uniform(0, 1);
    hd_sampling set;
    plain(&set);
    hd_sampler_desk *d = hd_sampler_desk_new(n, NULL, 0);
    int32_t first[20];
    for (int pass = 0; pass < 3; pass++) {
        hd_sampler *s = sampler_of(&set, 1234), *other = sampler_of(&set, (uint64_t)pass);
        for (int i = 0; i < 20; i++) {
            hd_sample out = {0};
            for (int k = 0; k < pass; k++) { /* draws between: others', and repeated ones */
                assert_ok(hd_sampler_next(other, d, logits, NULL, 0, &out));
                hd_sampler_accept(other, out.token);
                assert_ok(hd_sampler_next(s, d, logits, NULL, 0, &out));
            }
            assert_ok(hd_sampler_next(s, d, logits, NULL, 0, &out));
            hd_sampler_accept(s, out.token);
            if (pass == 0) first[i] = out.token;
            assert_int_equal(out.token, first[i]);
        }
        hd_sampler_free(s);
        hd_sampler_free(other);
    }
    hd_sampler_desk_free(d);
    int n_same = 0; /* neighbouring seeds, and seeds one increment apart, are unrelated */
    for (uint64_t i = 0; i < 1000; i++) {
        n_same += hd_sampler_uniform(1, i) == hd_sampler_uniform(2, i);
        n_same += hd_sampler_uniform(1, i + 1) == hd_sampler_uniform(1 + 0x9E3779B97F4A7C15u, i);
    }
    assert_int_equal(n_same, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(random_settings_agree_with_naive),
        cmocka_unit_test(an_idle_cut_changes_nothing),
        cmocka_unit_test(extremes),
        cmocka_unit_test(everything_banned_is_an_error),
        cmocka_unit_test(non_finite_rows_are_refused),
        cmocka_unit_test(logprobs_are_of_the_raw_row),
        cmocka_unit_test(a_draw_depends_on_seed_and_index_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
