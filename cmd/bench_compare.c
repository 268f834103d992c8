/* hadal bench compare: one load under several policies of batching, on the model in this process or
 * in simulated time; and whether the simulation says what the model shows. */
#include "cmd/compare.h"

#include "base/mem.h"
#include "base/sort.h"
#include "cmd/output.h"
#include "cmd/sim.h"
#include "engine/sizes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POLICY_MAX = 8, RUN_MAX = 16 };

/* Figures of a run, or their mean over runs. */
#define FIGURES(X)                                                                                 \
    X(throughput, "throughput_rps", "requests/s", 1)                                               \
    X(latency_mean, "latency_mean_ms", "mean ms", 1e3)                                             \
    X(latency_p50, "latency_p50_ms", "p50 ms", 1e3)                                                \
    X(latency_p99, "latency_p99_ms", "p99 ms", 1e3)                                                \
    X(ttft_mean, "ttft_mean_ms", "ttft ms", 1e3)                                                   \
    X(kv_peak, "kv_peak_bytes", "KV peak MB", 1)                                                   \
    X(concurrency, "concurrency_mean", "at once", 1)                                               \
    X(fragmentation, "kv_fragmentation", "KV waste", 1)                                            \
    X(n_ok, "answered", "answered", 1)                                                             \
    X(step_ratio, "steps_to_profile", "steps", 1)

struct figures {
#define X(field, key, title, factor) double field;
    FIGURES(X)
#undef X
};

struct result {
    hd_policy policy;
    int n_run;
    hd_compare_steps steps[RUN_MAX];
    struct figures run[RUN_MAX], mean, spread; /* spread: (largest - least) / mean */
    struct figures predicted;
};

struct compare {
    const struct hd_options *o;
    const char *model;
    hd_trace trace;
    struct result result[POLICY_MAX];
    int n_policy;
    hd_cost cost;
    bool is_checked;            /* simulated, too, with that profile */
    struct hd_bench_grid *grid; /* the profile is measured between the runs; NULL: it is not */
    int64_t kv_tok_bytes;
};

/* ---- policies ---- */

static hd_status parse_policies(const char *text, struct compare *c) {
    static const char *const word[] = {"static", "paged", "dynamic"};
    for (const char *p = text;; p++) {
        hd_policy policy = {0};
        size_t len = strcspn(p, ","), name_len = strcspn(p, ":,");
        char *end = NULL;
        int kind = 0;
        while (kind < 3 && !hd_str_eq_c((hd_str){p, name_len}, word[kind])) kind++;
        long n = p[name_len] == ':' ? strtol(p + name_len + 1, &end, 10) : 0;
        bool is_right =
            kind == HD_POLICY_DYNAMIC ? name_len == len : end == p + len && n >= 1 && n <= 4096;
        if (kind == 3 || !is_right || len >= sizeof policy.name || c->n_policy == POLICY_MAX)
            return HD_FAIL(
                INVALID,
                "--policies: expected at most %d of static:N, paged:N and dynamic, found "
                "\"%s\"",
                POLICY_MAX, hd_show(hd_str_of(text)));
        memcpy(policy.name, p, len);
        policy.kind = (enum hd_policy_kind)kind;
        policy.n_max = (int)n;
        c->result[c->n_policy++].policy = policy;
        p += len;
        if (!*p) return HD_OK;
    }
}

/* ---- figures ---- */

void hd_compare_count_pages(const hd_trace *trace, int page_tok, hd_compare_run *run) {
    for (int i = 0; i < trace->n; i++) {
        const hd_compare_request *q = &run->request[i];
        if (q->status != HD_OK) continue;
        double used = 0, allocated = 0, seconds = (q->end_s - q->admitted_s) / q->n_output;
        for (int k = 0; k < q->n_output; k++) {
            int n = trace->item[i].n_prompt + k;
            used += n;
            allocated += (n + page_tok - 1) / page_tok * page_tok;
        }
        run->kv_used += used * seconds;
        run->kv_allocated += allocated * seconds;
    }
}

static struct figures figures_of(const struct compare *c, const hd_compare_run *run) {
    struct figures f = {0};
    double *latency = hd_alloc_zero((size_t)c->trace.n, sizeof *latency), last_s = 0, busy = 0;
    int n = 0;
    for (int i = 0; i < c->trace.n; i++) {
        const hd_compare_request *q = &run->request[i];
        if (q->status != HD_OK) continue;
        latency[n++] = q->end_s - q->arrival_s;
        f.latency_mean += q->end_s - q->arrival_s;
        f.ttft_mean += q->first_s - q->arrival_s;
        busy += q->end_s - q->admitted_s;
        last_s = fmax(last_s, q->end_s);
    }
    hd_sort_doubles(latency, (size_t)n);
    if (n > 0) {
        f.latency_mean /= n;
        f.ttft_mean /= n;
        f.latency_p50 = latency[(n + 1) / 2 - 1];
        f.latency_p99 = latency[(int)ceil(0.99 * n) - 1]; /* by the nearest rank */
        f.throughput = n / last_s;
        f.concurrency = busy / last_s;
    }
    f.n_ok = n;
    f.kv_peak = (double)(run->kv_peak_tok * c->kv_tok_bytes);
    if (run->kv_allocated > 0) f.fragmentation = 1 - run->kv_used / run->kv_allocated;
    hd_free(latency);
    return f;
}

static void add_up(struct result *r) {
#define X(field, key, title, factor)                                                               \
    {                                                                                              \
        double sum = 0, least = INFINITY, most = -INFINITY;                                        \
        for (int i = 0; i < r->n_run; i++) {                                                       \
            sum += r->run[i].field;                                                                \
            least = fmin(least, r->run[i].field);                                                  \
            most = fmax(most, r->run[i].field);                                                    \
        }                                                                                          \
        r->mean.field = sum / r->n_run;                                                            \
        r->spread.field = sum > 0 ? (most - least) / r->mean.field : 0;                            \
    }
    FIGURES(X)
#undef X
}

/* ---- on the model ---- */

static int64_t real_now(void *ctx) {
    return hd_work_clock_now(&((struct hd_bench_model *)ctx)->clock);
}

static void real_wait(void *ctx, int64_t ns) {
    hd_work_clock_wait(&((struct hd_bench_model *)ctx)->clock, ns);
}

static hd_status real_step(void *ctx) {
    struct hd_bench_model *m = ctx;
    (void)hd_bench_step(m);
    return m->status;
}

static hd_status run_static(struct compare *c, const hd_policy *p, hd_compare_run *run) {
    struct hd_bench_model m;
    hd_status s = hd_bench_open(&m, c->o, c->model);
    int n_pos = hd_static_n_pos(&c->trace);
    if (s == HD_OK) s = hd_bench_open_model(&m, c->o->max_num_batched_tokens, p->n_max, n_pos, 0);
    if (s == HD_OK) {
        hd_static_machine machine = {.batch = &m.batch,
                                     .now_ns = real_now,
                                     .wait_until = real_wait,
                                     .step = real_step,
                                     .ctx = &m,
                                     .n_pos_max = n_pos,
                                     .expand_min = hd_engine_expand_min(&m.hp),
                                     .kv_tok = c->o->max_tokens_in_paged_kv_cache};
        c->kv_tok_bytes = (int64_t)hd_hparams_kv_bytes(&m.hp, m.mo.kv_type);
        s = hd_static_run(&machine, p, &c->trace, run);
    }
    hd_bench_close(&m);
    return s;
}

static hd_status kv_bytes_of_model(struct compare *c) {
    struct hd_bench_model m;
    hd_status s = hd_bench_open(&m, c->o, c->model);
    if (s == HD_OK) c->kv_tok_bytes = (int64_t)hd_hparams_kv_bytes(&m.hp, m.mo.kv_type);
    hd_bench_close(&m);
    return s;
}

/* ---- in simulated time ---- */

struct simulated {
    hd_sim_machine machine;
    hd_batch batch;
};

static int64_t simulated_now(void *ctx) { return ((struct simulated *)ctx)->machine.now_ns; }
static void simulated_wait(void *ctx, int64_t ns) {
    ((struct simulated *)ctx)->machine.now_ns = ns;
}

static hd_status simulated_step(void *ctx) {
    struct simulated *m = ctx;
    hd_sim_machine_enqueue(&m->machine, &m->batch);
    hd_sim_machine_fetch(&m->machine);
    return hd_sim_machine_status(&m->machine);
}

static hd_status simulate_static(struct compare *c, const hd_policy *p, hd_compare_run *run) {
    struct simulated m = {.machine = {.cost = &c->cost, .random = c->trace.seed}};
    int n_pos = hd_static_n_pos(&c->trace), page_tok = c->o->block_size;
    if (n_pos > c->cost.n_ctx)
        return HD_FAIL(CONTEXT, "%d tokens of context: the model has %d", n_pos, c->cost.n_ctx);
    int n_row = c->o->max_num_batched_tokens;
    hd_batch_init(&m.batch, n_row > p->n_max ? n_row : p->n_max, p->n_max,
                  (n_pos + page_tok - 1) / page_tok * p->n_max, page_tok);
    hd_static_machine machine = {.batch = &m.batch,
                                 .now_ns = simulated_now,
                                 .wait_until = simulated_wait,
                                 .step = simulated_step,
                                 .ctx = &m,
                                 .n_pos_max = n_pos,
                                 .expand_min = c->cost.expand_min,
                                 .kv_tok = c->o->max_tokens_in_paged_kv_cache};
    hd_status s = hd_static_run(&machine, p, &c->trace, run);
    hd_batch_fini(&m.batch);
    return s;
}

hd_status hd_compare_config(const struct hd_options *o, const hd_cost *cost, const hd_trace *trace,
                            hd_sim_config *out) {
    HD_TRY(hd_sim_config_from(o, cost, trace, out));
    for (int i = 0; i < HD_SERVICE_COUNT; i++) out->loop.sched.target[i].wait_ns = INT64_MAX / 4;
    out->loop.n_queue_max = trace->n;
    out->loop.queue_tok_max = out->loop.wait_max_ns = 0;
    return HD_OK;
}

static hd_status simulate_dynamic(struct compare *c, hd_compare_run *run) {
    hd_sim_config sc;
    hd_sim_result r = {0};
    HD_TRY(hd_compare_config(c->o, &c->cost, &c->trace, &sc));
    hd_status s = hd_sim_run(&sc, &c->trace, &r);
    for (int i = 0; i < c->trace.n && s == HD_OK; i++) {
        const hd_sim_request *q = &r.request[i];
        double at_s = c->trace.item[i].arrival_s - c->trace.item[0].arrival_s;
        run->request[i] = (hd_compare_request){.status = q->status,
                                               .arrival_s = at_s,
                                               .admitted_s = at_s + q->queue_s,
                                               .first_s = at_s + q->ttft_s,
                                               .end_s = at_s + q->latency_s,
                                               .n_output = q->n_output};
    }
    run->kv_peak_tok = (int64_t)r.n_page_peak * c->o->block_size;
    if (s == HD_OK) hd_compare_count_pages(&c->trace, c->o->block_size, run);
    hd_sim_result_fini(&r);
    return s;
}

/* ---- all of them ---- */

static hd_status run_policy(struct compare *c, const hd_policy *p, bool is_simulated,
                            hd_compare_steps *steps, struct figures *out) {
    hd_compare_run run = {0};
    run.request = hd_alloc_zero((size_t)c->trace.n, sizeof *run.request);
    bool is_dynamic = p->kind == HD_POLICY_DYNAMIC;
    hd_status s = is_simulated
                      ? is_dynamic ? simulate_dynamic(c, &run) : simulate_static(c, p, &run)
                  : is_dynamic ? hd_live_run(c->o, c->model, &c->trace, &run)
                               : run_static(c, p, &run);
    if (s == HD_OK) *out = figures_of(c, &run);
    *steps = run.steps;
    hd_free(run.request);
    return s;
}

/* A part of the profile, of contexts as the load has them or a step's tokens make. */
static hd_status measure_part(struct compare *c) {
    struct hd_bench_model m;
    const struct hd_options *o = c->o;
    int n_pos = hd_static_n_pos(&c->trace);
    if (n_pos < o->max_num_batched_tokens) n_pos = o->max_num_batched_tokens;
    if (!c->grid) return HD_OK;
    hd_status s = hd_bench_open(&m, o, c->model);
    if (s == HD_OK)
        s = hd_bench_open_model(&m, o->max_num_batched_tokens, o->max_num_seqs,
                                n_pos < m.hp.n_ctx ? n_pos : m.hp.n_ctx, 0);
    if (s == HD_OK) s = hd_bench_grid_measure(c->grid, &m, o->bench_runs + 1);
    hd_bench_close(&m);
    return s;
}

/* What steps took over what the profile says of them; 0: there are none. */
static double step_ratio(const hd_cost *cost, const hd_compare_steps *steps) {
    double measured_s = 0, expected_s = 0;
    for (int i = 0; i < steps->n; i++) {
        measured_s += steps->v[i].seconds;
        expected_s += hd_cost_mean_s(cost, &steps->v[i].load) * steps->v[i].share;
    }
    return expected_s > 0 ? measured_s / expected_s : 0;
}

/* Runs of one policy follow those of another, so that slow minutes meet all of them, and so does
 * the profile. */
static hd_status run_all(struct compare *c) {
    bool is_simulated = c->o->compare_simulated != NULL;
    HD_TRY(measure_part(c));
    for (int i = 0; i < c->o->bench_runs; i++) {
        for (int k = 0; k < c->n_policy; k++) {
            struct result *r = &c->result[k];
            HD_TRY(run_policy(c, &r->policy, is_simulated, &r->steps[i], &r->run[i]));
            r->n_run = i + 1;
        }
        HD_TRY(measure_part(c));
    }
    if (c->grid) HD_TRY(hd_bench_grid_save(c->grid, c->o->bench_save_cost, &c->cost));
    for (int k = 0; k < c->n_policy; k++) {
        struct result *r = &c->result[k];
        hd_compare_steps none;
        for (int i = 0; i < r->n_run && c->is_checked; i++)
            r->run[i].step_ratio = step_ratio(&c->cost, &r->steps[i]);
        add_up(r);
        if (c->is_checked) HD_TRY(run_policy(c, &r->policy, true, &none, &r->predicted));
    }
    return HD_OK;
}

/* ---- telling ---- */

static double error_of(double predicted, double measured) {
    return measured > 0 ? fabs(predicted / measured - 1) : 0;
}

static bool is_within(double predicted, double measured, double spread) {
    return error_of(predicted, measured) <= fmax(0.1, spread);
}

static void print_row(const char *name, const struct figures *f) {
    printf("%-14s %10.3f %11.1f %11.1f %11.1f %11.1f %11.2f %8.2f %8.1f %%\n", name, f->throughput,
           f->latency_mean * 1e3, f->latency_p50 * 1e3, f->latency_p99 * 1e3, f->ttft_mean * 1e3,
           f->kv_peak * 1e-6, f->concurrency, 100 * f->fragmentation);
}

static double ratio(double a, double b) { return b > 0 ? a / b : 0; }

/* Of the last policy to each of the others. */
static void print_ratios(const struct compare *c) {
    const struct result *last = &c->result[c->n_policy - 1];
    for (int k = 0; k < c->n_policy - 1; k++) {
        const struct figures *a = &last->mean, *b = &c->result[k].mean;
        printf("%s / %s: throughput %.2fx, mean latency %.2fx, p99 %.2fx, KV peak %.2fx\n",
               last->policy.name, c->result[k].policy.name, ratio(a->throughput, b->throughput),
               ratio(a->latency_mean, b->latency_mean), ratio(a->latency_p99, b->latency_p99),
               ratio(a->kv_peak, b->kv_peak));
    }
}

static void print_check(const struct result *r) {
    const struct figures *p = &r->predicted, *m = &r->mean;
    const struct {
        const char *what;
        double predicted, measured, spread;
    } row[] = {{"requests/s", p->throughput, m->throughput, r->spread.throughput},
               {"p99 ms", p->latency_p99 * 1e3, m->latency_p99 * 1e3, r->spread.latency_p99},
               {"mean ms", p->latency_mean * 1e3, m->latency_mean * 1e3, r->spread.latency_mean}};
    for (size_t i = 0; i < HD_COUNT_OF(row); i++)
        printf("%-14s %-10s measured %10.3f (spread of %d runs %5.1f %%), simulated %10.3f: off by "
               "%5.1f %%, %s\n",
               r->policy.name, row[i].what, row[i].measured, r->n_run, 100 * row[i].spread,
               row[i].predicted, 100 * error_of(row[i].predicted, row[i].measured),
               is_within(row[i].predicted, row[i].measured, row[i].spread) ? "within"
                                                                           : "not within");
}

static void print_steps(const struct result *r) {
    if (r->mean.step_ratio > 0)
        printf(
            "%-14s steps took %.3f times (spread %.1f %%) what the profile says of them: what is "
            "not the scheduling's\n",
            r->policy.name, r->mean.step_ratio, 100 * r->spread.step_ratio);
}

static void print(const struct compare *c) {
    double last_s = c->trace.item[c->trace.n - 1].arrival_s - c->trace.item[0].arrival_s;
    printf("%s%s: %d requests arrive in %.2f s, seed %llu, %d run%s\n",
           c->o->compare_simulated ? c->cost.model : c->model,
           c->o->compare_simulated ? ", simulated" : "", c->trace.n, last_s,
           (unsigned long long)c->trace.seed, c->o->bench_runs, c->o->bench_runs == 1 ? "" : "s");
    printf("%-14s %10s %11s %11s %11s %11s %11s %8s %10s\n", "policy", "requests/s", "mean ms",
           "p50 ms", "p99 ms", "ttft ms", "KV peak MB", "at once", "KV waste");
    for (int k = 0; k < c->n_policy; k++) print_row(c->result[k].policy.name, &c->result[k].mean);
    print_ratios(c);
    for (int k = 0; k < c->n_policy; k++) {
        const struct result *r = &c->result[k];
        if (r->mean.n_ok < c->trace.n)
            printf("%s: only %.0f of %d requests were answered\n", r->policy.name, r->mean.n_ok,
                   c->trace.n);
        if (c->is_checked) print_check(r);
        if (c->is_checked) print_steps(r);
    }
}

static void write_figures(hd_json *j, const struct figures *f) {
#define X(field, key, title, factor)                                                               \
    hd_json_key(j, key);                                                                           \
    hd_json_num(j, f->field *(factor));
    FIGURES(X)
#undef X
}

static void write_check(hd_json *j, const struct result *r) {
    const double error[] = {error_of(r->predicted.throughput, r->mean.throughput),
                            error_of(r->predicted.latency_p99, r->mean.latency_p99)};
    hd_json_key(j, "simulated");
    hd_json_object(j);
    write_figures(j, &r->predicted);
    hd_json_key(j, "throughput_error");
    hd_json_num(j, error[0]);
    hd_json_key(j, "latency_p99_error");
    hd_json_num(j, error[1]);
    hd_json_key(j, "within");
    hd_json_bool(j, error[0] <= fmax(0.1, r->spread.throughput) &&
                        error[1] <= fmax(0.1, r->spread.latency_p99));
    hd_json_object_end(j);
}

static void print_json(const struct compare *c) {
    hd_buf out;
    hd_buf_init(&out, 1 << 20);
    hd_json j = hd_json_begin(&out);
    hd_json_object(&j);
    hd_json_key(&j, "model");
    hd_json_str_c(&j, c->o->compare_simulated ? c->cost.model : c->model);
    hd_json_key(&j, "simulated");
    hd_json_bool(&j, c->o->compare_simulated != NULL);
    hd_json_key(&j, "seed");
    hd_json_int(&j, (int64_t)c->trace.seed);
    hd_json_key(&j, "requests");
    hd_json_int(&j, c->trace.n);
    hd_json_key(&j, "runs");
    hd_json_int(&j, c->o->bench_runs);
    hd_json_key(&j, "policies");
    hd_json_object(&j);
    for (int k = 0; k < c->n_policy; k++) {
        const struct result *r = &c->result[k];
        hd_json_key(&j, r->policy.name);
        hd_json_object(&j);
        write_figures(&j, &r->mean);
        hd_json_key(&j, "throughput_spread");
        hd_json_num(&j, r->spread.throughput);
        hd_json_key(&j, "latency_p99_spread");
        hd_json_num(&j, r->spread.latency_p99);
        if (c->is_checked) write_check(&j, r);
        hd_json_object_end(&j);
    }
    hd_json_object_end(&j);
    hd_json_object_end(&j);
    printf("%s\n", out.ptr);
    hd_buf_fini(&out);
}

/* ---- the command ---- */

static hd_status prepare(struct compare *c) {
    const struct hd_options *o = c->o;
    const char *path = o->compare_simulated ? o->compare_simulated : o->compare_check;
    if (o->bench_runs > RUN_MAX)
        return HD_FAIL(INVALID, "--runs: expected at most %d, found %d", RUN_MAX, o->bench_runs);
    if (o->compare_simulated && o->compare_check)
        return HD_FAIL(INVALID, "--check: expected runs on the model, found --simulated, too");
    if (o->bench_save_cost && path)
        return HD_FAIL(INVALID, "--save-cost: expected runs on the model and no other profile, "
                                "found --simulated or --check, too");
    HD_TRY(parse_policies(o->compare_policies, c));
    HD_TRY(hd_load_trace_init(&c->trace, o));
    hd_trace_hasten(&c->trace, o->load_scale);
    if (path) HD_TRY(hd_cost_read(path, &c->cost));
    if (o->bench_save_cost) {
        HD_TRY(hd_output_try(o->bench_save_cost));
        c->grid = hd_bench_grid_new();
    }
    c->is_checked = o->compare_check || c->grid;
    c->kv_tok_bytes = c->cost.kv_tok_bytes;
    return o->compare_simulated ? HD_OK : kv_bytes_of_model(c);
}

int hd_bench_compare(const struct hd_options *o, int n_arg, char **arg) {
    if (n_arg > 2) return hd_command_usage(&hd_cmd_bench, "compare: one model at a time");
    struct compare *c = hd_alloc_zero(1, sizeof *c);
    c->o = o;
    c->model = n_arg == 2 ? arg[1] : o->model;
    hd_status s = prepare(c);
    if (s == HD_OK) s = run_all(c);
    if (s == HD_OK && o->json) print_json(c);
    if (s == HD_OK && !o->json) print(c);
    for (int k = 0; k < c->n_policy; k++)
        for (int i = 0; i < RUN_MAX; i++) hd_free(c->result[k].steps[i].v);
    hd_bench_grid_free(c->grid);
    hd_trace_fini(&c->trace);
    hd_free(c);
    return s == HD_OK ? 0 : hd_command_error(&hd_cmd_bench);
}
