/* The simulator of loads: the cost formula finds what its points were made of; equal seeds give
 * equal results; every request ends, and counts add up; routers do what they promise. */
#include "support/check.h"

#include "base/mem.h"
#include "sim/random.h"
#include "sim/router.h"
#include "sim/sim.h"

#include <math.h>
#include <string.h>

/* ---- the cost profile ---- */

static hd_cost made_up(void) {
    hd_cost c = {.model = "made-up \"model\"",
                 .backend = "cpu",
                 .device = "a desk",
                 .kv_dtype = "F32",
                 .n_thread = 2,
                 .n_ctx = 2048,
                 .expand_min = 43,
                 .n_layer = 7,
                 .kv_tok_bytes = 4608,
                 .weight_bytes = 1 << 25,
                 .n_knot = 5,
                 .knot = {1, 4, 16, 64, 512},
                 .knot_s = {1e-3, 1.4e-3, 2.2e-3, 6e-3, 40e-3},
                 .out_s = 2e-5,
                 .decode_s = 5e-7,
                 .absorbed_s = 3e-7,
                 .expanded_s = 1e-7,
                 .expand_s = 4e-6};
    double factor[101];
    for (int i = 0; i < 101; i++) factor[i] = 0.8 + 0.4 * i / 100;
    hd_cost_spread(&c, factor, 101);
    return c;
}

static int make_points(const hd_cost *c, hd_cost_point *p) {
    int n = 0;
    for (int k = 0; k < c->n_knot; k++) {
        int rows = c->knot[k];
        for (double pos = 10; pos < 2000; pos *= 5) {
            p[n++].load = (hd_cost_load){.n_row = rows, .n_out = rows, .decode_pos = rows * pos};
            p[n++].load = (hd_cost_load){.n_row = rows, .n_out = 1, .absorbed_pos = rows * pos};
            p[n++].load = (hd_cost_load){
                .n_row = rows, .n_out = 1, .expanded_pos = rows * pos, .expand_tok = rows + pos};
        }
    }
    p[n++] = (hd_cost_point){
        .load = {.n_row = 40, .n_out = 9, .decode_pos = 900, .absorbed_pos = 99}, .is_other = true};
    for (int i = 0; i < n; i++) p[i].mean_s = hd_cost_mean_s(c, &p[i].load);
    return n;
}

static void the_formula_is_found_again(void **state) {
    (void)state;
    hd_cost c = made_up(), found = {0};
    hd_cost_point p[100] = {0};
    int n = make_points(&c, p);
    assert_int_equal(hd_cost_fit(&found, p, n), HD_OK);
    assert_int_equal(found.n_knot, c.n_knot);
    assert_int_equal(found.n_other, 1);
    assert_true(found.error_max < 0.01 && found.other_max < 0.01);
    assert_true(fabs(found.decode_s / c.decode_s - 1) < 0.05);
    assert_true(fabs(found.expand_s / c.expand_s - 1) < 0.05);
    for (int i = 0; i < n; i++) p[i].mean_s *= i % 2 ? 1.1 : 0.9; /* what is not in the formula */
    assert_int_equal(hd_cost_fit(&found, p, n), HD_OK);
    assert_true(found.error_mean > 0.05 && found.error_mean < 0.15);
    assert_int_equal(hd_cost_fit(&found, p, 0), HD_E_CORRUPT);
}

static void the_spread_has_mean_one(void **state) {
    (void)state;
    hd_cost c = made_up();
    double sum = 0;
    uint64_t random = 1;
    for (int i = 0; i < 100000; i++) {
        double f = hd_cost_factor(&c, hd_random_uniform(&random));
        assert_true(f > 0.79 && f < 1.21);
        sum += f;
    }
    assert_true(fabs(sum / 100000 - 1) < 0.005);
}

static void a_profile_is_written_and_read(void **state) {
    (void)state;
    hd_cost c = made_up(), back;
    c.n_point = 7;
    hd_buf text;
    hd_buf_init(&text, 1 << 20);
    hd_cost_write(&c, &text);
    assert_int_equal(hd_cost_parse(hd_buf_str(&text), "x", &back), HD_OK);
    hd_cost_load l = {.n_row = 40, .n_out = 9, .decode_pos = 900, .expanded_pos = 99};
    assert_true(fabs(hd_cost_mean_s(&back, &l) / hd_cost_mean_s(&c, &l) - 1) < 1e-6);
    assert_string_equal(back.model, c.model);
    assert_int_equal(back.expand_min, 43);
    static const char *const bad[][3] = {
        {"\"kind\":\"hadal cost profile\"", "\"kind\":\"x\"", "x: kind: expected \"hadal cost"},
        {"\"threads\":2", "\"threads\":-1", "threads: expected a whole number from 0, found -1"},
        {"\"context\":2048", "\"context\":1e3", "context: expected a whole number from 2"},
        {"\"out_s\":2e-05", "\"out_s\":\"2\"",
         "out_s: expected a number from 0 to 1e6, found \"2\""},
        {"\"decode_s\":", "\"decode_s\":9e300,\"x\":",
         "decode_s: expected a number from 0 to 1e6, found"},
        {"\"rows\":[1,4", "\"rows\":[4,4", "rows: expected a whole number from 5, found 4"},
        {"\"seconds\":[0.001,", "\"seconds\":[", "seconds: expected as many as rows"},
        {"\"spread\":[", "\"spread\":[9,", "spread: expected a list of 21, found a list of 22"},
    };
    for (size_t i = 0; i < HD_COUNT_OF(bad); i++) {
        const char *at = strstr(text.ptr, bad[i][0]);
        assert_non_null(at);
        hd_buf wrong;
        hd_buf_init(&wrong, 1 << 20);
        hd_buf_add(&wrong, text.ptr, (size_t)(at - text.ptr));
        hd_buf_add_c(&wrong, bad[i][1]);
        hd_buf_add_c(&wrong, at + strlen(bad[i][0]));
        assert_int_equal(hd_cost_parse(hd_buf_str(&wrong), "x", &back), HD_E_CORRUPT);
        if (!strstr(hd_error_text(), bad[i][2]))
            fail_msg("\"%s\" is not in \"%s\"", bad[i][2], hd_error_text());
        hd_buf_fini(&wrong);
    }
    hd_buf_fini(&text);
}

/* ---- simulations ---- */

static hd_trace make_trace(enum hd_trace_kind kind, int n, double rate) {
    hd_trace_spec s = {.kind = kind,
                       .n = n,
                       .rate = rate,
                       .shape = 1,
                       .period_s = 5,
                       .n_prompt = 40,
                       .n_output = 12,
                       .spread = 0.5,
                       .n_prompt_long = 400,
                       .n_turn = 10,
                       .think_s = 1,
                       .seed = 3};
    hd_trace t;
    assert_int_equal(hd_trace_generate(&t, &s), HD_OK);
    return t;
}

static hd_sim_config config_of(const hd_cost *cost, const hd_trace *t) {
    return (hd_sim_config){.loop = {.sched = {.n_seq_max = 16,
                                              .n_row_max = 128,
                                              .chunked = true,
                                              .n_pos_max = hd_trace_longest(t),
                                              .n_page = 200,
                                              .page_tok = 16,
                                              .prefix_cache = true,
                                              .expand_min = 43},
                                    .n_queue_max = 64},
                           .cost = cost,
                           .n_replica = 1,
                           .scale = 1,
                           .n_sample = 50,
                           .seed = 5};
}

static void check_result(const hd_sim_config *c, const hd_trace *t, const hd_sim_result *r) {
    uint64_t prompt = 0, output = 0;
    for (int i = 0; i < t->n; i++) {
        const hd_sim_request *q = &r->request[i];
        assert_in_range(q->replica, 0, c->n_replica - 1);
        if (q->status == HD_E_BUSY) continue;
        assert_int_equal(q->status, HD_OK);
        assert_int_equal(q->n_output, t->item[i].n_output);
        assert_true(q->queue_s >= 0 && q->queue_s < q->ttft_s && q->ttft_s <= q->latency_s);
        prompt += (uint64_t)t->item[i].n_prompt;
        output += (uint64_t)q->n_output;
    }
    assert_int_equal(r->prompt_tok, prompt);
    assert_int_equal(r->generated_tok, output);
    assert_true(r->n_page_peak <= c->loop.sched.n_page && r->n_run_peak <= 16);
    /* Each token but the last of an answer is a row, unless it came from the cache. */
    uint64_t answered = 0;
    for (int i = 0; i < t->n; i++) answered += r->request[i].status == HD_OK;
    uint64_t n_row = prompt - r->hit_tok + output - answered + r->recomputed_tok;
    assert_int_equal(r->n_row, n_row);
    assert_true(r->busy_s <= r->seconds * c->n_replica + 1e-6 && r->n_sample > 0);
}

static void equal_seeds_give_equal_results(void **state) {
    (void)state;
    hd_cost cost = made_up();
    for (int k = 0; k < HD_TRACE_KIND_COUNT; k++) {
        hd_trace t = make_trace((enum hd_trace_kind)k, 400, 100);
        hd_sim_config c = config_of(&cost, &t);
        c.n_replica = 1 + k;
        c.is_async = k % 2; /* and then prompts are computed some layers at a time */
        c.loop.sched.n_layer = k % 2 ? cost.n_layer : 0;
        hd_sim_result r[3];
        for (int i = 0; i < 3; i++) {
            c.seed = i < 2 ? 5 : 6;
            assert_int_equal(hd_sim_run(&c, &t, &r[i]), HD_OK);
            check_result(&c, &t, &r[i]);
        }
        size_t n = (size_t)t.n * sizeof *r[0].request;
        assert_memory_equal(r[0].request, r[1].request, n);
        assert_true(memcmp(r[0].request, r[2].request, n) != 0);
        for (int i = 0; i < 3; i++) hd_sim_result_fini(&r[i]);
        hd_trace_fini(&t);
    }
}

/* With time to spare a request takes exactly what its own steps do. */
static void a_lone_request_takes_its_steps(void **state) {
    (void)state;
    hd_cost cost = made_up();
    for (int i = 0; i < HD_COST_QUANTILES; i++) cost.quantile[i] = 1;
    hd_trace t = make_trace(HD_TRACE_POISSON, 50, 0.1);
    hd_sim_config c = config_of(&cost, &t);
    hd_sim_result r;
    assert_int_equal(hd_sim_run(&c, &t, &r), HD_OK);
    for (int i = 0; i < t.n; i++) {
        int n = t.item[i].n_prompt;
        hd_cost_load l = {.n_row = n, .n_out = 1};
        double n_pos = 0.5 * n * (n + 1.0);
        *(n >= 43 ? &l.expanded_pos : &l.absorbed_pos) = n_pos;
        if (n >= 43) l.expand_tok = n;
        double s = hd_cost_mean_s(&cost, &l);
        assert_true(fabs(r.request[i].ttft_s - s) < 1e-7);
        for (int k = 1; k < t.item[i].n_output; k++) {
            hd_cost_load step = {.n_row = 1, .n_out = 1, .decode_pos = n + k};
            s += hd_cost_mean_s(&cost, &step);
        }
        assert_true(fabs(r.request[i].latency_s - s) < 1e-6);
    }
    hd_sim_result_fini(&r);
    hd_trace_fini(&t);
}

static void an_overload_is_refused(void **state) {
    (void)state;
    hd_cost cost = made_up();
    hd_trace t = make_trace(HD_TRACE_POISSON, 2000, 0);
    hd_sim_config c = config_of(&cost, &t);
    hd_sim_result r;
    assert_int_equal(hd_sim_run(&c, &t, &r), HD_OK);
    check_result(&c, &t, &r);
    int n_ok = 0;
    for (int i = 0; i < t.n; i++) n_ok += r.request[i].status == HD_OK;
    assert_int_equal(n_ok, 64 + 16); /* all at once: those that wait, those that could run */
    hd_sim_result_fini(&r);
    hd_trace_fini(&t);
}

/* Times that an int64_t of nanoseconds cannot hold are told, not wrapped. */
static void time_without_end_is_refused(void **state) {
    (void)state;
    hd_cost cost = made_up();
    hd_trace t = make_trace(HD_TRACE_POISSON, 50, 0.1);
    hd_sim_config c = config_of(&cost, &t);
    hd_sim_result r;
    cost.out_s = 1e6; /* a step alone is too long */
    assert_int_equal(hd_sim_run(&c, &t, &r), HD_E_INVALID);
    assert_non_null(strstr(hd_error_text(), "expected steps of at most 1e+06 s"));
    hd_sim_result_fini(&r);
    cost = made_up();
    c.scale = 1e-6; /* arrivals are */
    t.item[t.n - 1].arrival_s = 9e8;
    assert_int_equal(hd_sim_run(&c, &t, &r), HD_E_INVALID);
    assert_non_null(strstr(hd_error_text(), "request 50: at this load scale it comes after 9e+14"));
    hd_sim_result_fini(&r);
    hd_trace_fini(&t);
}

/* ---- fleets ---- */

static double latency_of(const hd_sim_config *c, const hd_trace *t, uint64_t *hit) {
    hd_sim_result r;
    double sum = 0;
    assert_int_equal(hd_sim_run(c, t, &r), HD_OK);
    check_result(c, t, &r);
    for (int i = 0; i < t->n; i++) sum += r.request[i].latency_s;
    *hit = r.hit_tok;
    hd_sim_result_fini(&r);
    return sum / t->n;
}

static void sessions_find_their_prefix(void **state) {
    (void)state;
    hd_cost cost = made_up();
    hd_trace t = make_trace(HD_TRACE_SESSIONS, 2000, 100);
    hd_sim_config c = config_of(&cost, &t);
    uint64_t by_prefix, in_turn, least;
    c.n_replica = 20;
    c.router = HD_SIM_ROUTE_PREFIX;
    double latency = latency_of(&c, &t, &by_prefix);
    c.router = HD_SIM_ROUTE_ROUND_ROBIN;
    assert_true(latency_of(&c, &t, &in_turn) > latency);
    c.router = HD_SIM_ROUTE_LEAST_LOADED;
    assert_true(latency_of(&c, &t, &least) > latency);
    int64_t reusable = hd_trace_reusable_tok(&t, c.loop.sched.page_tok);
    assert_true((int64_t)by_prefix <= reusable && (double)by_prefix > 0.95 * (double)reusable);
    assert_true(in_turn < by_prefix / 2 && least < by_prefix / 2);
    hd_trace_fini(&t);
}

/* Loads of the replicas after n requests of n_group groups, none of which ended. */
static void route(enum hd_sim_router kind, int n_replica, int n, int n_group, int *load) {
    hd_router *r = hd_router_new(kind, n_replica);
    memset(load, 0, (size_t)n_replica * sizeof *load);
    for (int i = 0; i < n; i++) {
        uint64_t group = (uint64_t)(i % n_group);
        hd_trace_item item = {.n_prompt = 9, .n_prefix = 9, .prefix_seed = group * 77777};
        load[hd_router_choose(r, &item)]++;
    }
    for (int i = 0; i < n_replica; i++)
        for (int k = 0; k < load[i]; k++) hd_router_leave(r, i);
    hd_router_free(r);
}

static void routers_keep_their_promises(void **state) {
    (void)state;
    int load[50], first[50];
    route(HD_SIM_ROUTE_ROUND_ROBIN, 50, 1010, 3, load);
    for (int i = 0; i < 50; i++) assert_int_equal(load[i], 20 + (i < 10));
    route(HD_SIM_ROUTE_LEAST_LOADED, 50, 1010, 3, load);
    for (int i = 0; i < 50; i++) assert_in_range(load[i], 20, 21);
    /* One group is spread, too, once its replica has more than its share. */
    for (int n_group = 1; n_group < 2000; n_group *= 11) {
        route(HD_SIM_ROUTE_PREFIX, 50, 5000, n_group, load);
        for (int i = 0; i < 50; i++) assert_true(load[i] <= 125 + 1 + HD_SIM_ROUTE_SLACK);
    }
    /* Few requests of one group stay together, and equal calls give equal routes. */
    route(HD_SIM_ROUTE_PREFIX, 50, HD_SIM_ROUTE_SLACK, 1, load);
    int n_used = 0;
    for (int i = 0; i < 50; i++) n_used += load[i] > 0;
    assert_int_equal(n_used, 1);
    route(HD_SIM_ROUTE_PREFIX, 50, 900, 300, load);
    route(HD_SIM_ROUTE_PREFIX, 50, 900, 300, first);
    assert_memory_equal(load, first, sizeof load);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_formula_is_found_again),
        cmocka_unit_test(the_spread_has_mean_one),
        cmocka_unit_test(a_profile_is_written_and_read),
        cmocka_unit_test(equal_seeds_give_equal_results),
        cmocka_unit_test(a_lone_request_takes_its_steps),
        cmocka_unit_test(an_overload_is_refused),
        cmocka_unit_test(time_without_end_is_refused),
        cmocka_unit_test(sessions_find_their_prefix),
        cmocka_unit_test(routers_keep_their_promises),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
