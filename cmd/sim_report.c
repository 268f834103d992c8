/* What a simulation showed beside the load's own report: machines, cache, KV, energy, over time. */
#include "cmd/sim.h"

#include <math.h>
#include <stdio.h>

struct figures {
    double busy_share, rows_a_step, hit_share, reusable_share, hit_of_reusable, recomputed_share;
    double kv_page_bytes, kv_mean_share, kv_peak_share;
    double watt_hours, requests_a_kwh; /* 0: no power was told */
    double tok_a_wall_s;
};

static struct figures figures_of(const struct hd_sim_report *r) {
    const hd_sim_result *q = r->result;
    const hd_sched_config *s = &r->c->loop.sched;
    double all_s = q->seconds * r->c->n_replica;
    double prompt = fmax((double)q->prompt_tok, 1);
    double reusable = (double)hd_trace_reusable_tok(r->run->trace, s->page_tok);
    double joule = q->busy_s * r->o->sim_watts_busy + (all_s - q->busy_s) * r->o->sim_watts_idle;
    int n_ok = 0;
    for (int i = 0; i < r->run->trace->n; i++) n_ok += r->run->result[i].outcome == HD_LOAD_OK;
    struct figures f = {.busy_share = all_s > 0 ? q->busy_s / all_s : 0,
                        .rows_a_step = q->n_step > 0 ? (double)q->n_row / (double)q->n_step : 0,
                        .hit_share = (double)q->hit_tok / prompt,
                        .reusable_share = reusable / prompt,
                        .hit_of_reusable = reusable > 0 ? (double)q->hit_tok / reusable : 0,
                        .recomputed_share =
                            q->n_row > 0 ? (double)q->recomputed_tok / (double)q->n_row : 0,
                        .kv_page_bytes = (double)r->cost->kv_tok_bytes * s->page_tok,
                        .kv_mean_share = q->page_used / s->n_page,
                        .kv_peak_share = (double)q->n_page_peak / s->n_page,
                        .watt_hours = joule / 3600,
                        .tok_a_wall_s = (double)r->n_tok / fmax(q->wall_s, 1e-9)};
    if (joule > 0) f.requests_a_kwh = n_ok / (joule / 3.6e6);
    return f;
}

static const char *one_or_more(int n) { return n == 1 ? "" : "s"; }

static void print_machines(const struct hd_sim_report *r, const struct figures *f) {
    const hd_sim_result *q = r->result;
    const hd_sched_config *s = &r->c->loop.sched;
    printf(
        "\nmachines: busy %.1f %%; %llu steps of %.1f rows; at most %d of %d requests computed at "
        "once\n",
        100 * f->busy_share, (unsigned long long)q->n_step, f->rows_a_step, q->n_run_peak,
        s->n_seq_max);
    printf("prompt tokens: %.2f %% from the cache (%.2f %% could be: %.2f %% of them were)\n",
           100 * f->hit_share, 100 * f->reusable_share, 100 * f->hit_of_reusable);
    printf("KV of a machine: in use %.1f %% in the mean, %.1f %% at most, of %.1f MB; %llu "
           "preemptions, %.2f %% of rows computed again\n",
           100 * f->kv_mean_share, 100 * f->kv_peak_share, f->kv_page_bytes * s->n_page * 1e-6,
           (unsigned long long)q->n_preempt, 100 * f->recomputed_share);
    if (f->watt_hours > 0)
        printf("energy: %.3g Wh, %.4g requests a kWh (%g W busy, %g W idle a machine)\n",
               f->watt_hours, f->requests_a_kwh, r->o->sim_watts_busy, r->o->sim_watts_idle);
    printf("simulated: %.0f tokens in %.2f s, %.2f million a second\n", (double)r->n_tok, q->wall_s,
           f->tok_a_wall_s * 1e-6);
}

static void write_number(hd_json *j, const char *key, double v) {
    hd_json_key(j, key);
    hd_json_num(j, v);
}

/* One list a figure, all of the same moments. */
static void write_timeline(const struct hd_sim_report *r, hd_json *j) {
    static const char *const key[] = {"at_s", "running", "waiting", "kv_pages_used"};
    hd_json_key(j, "timeline");
    hd_json_object(j);
    for (int k = 0; k < 4; k++) {
        hd_json_key(j, key[k]);
        hd_json_array(j);
        for (int i = 0; i < r->result->n_sample; i++) {
            const hd_sim_sample *s = &r->result->sample[i];
            const double v[] = {s->at_s, s->n_running, s->n_waiting, s->n_page_used};
            hd_json_num(j, v[k]);
        }
        hd_json_array_end(j);
    }
    hd_json_object_end(j);
}

static hd_status write(const struct hd_sim_report *r, const struct figures *f, hd_json *j) {
    const hd_sim_result *q = r->result;
    hd_json_object(j);
    hd_json_key(j, "model");
    hd_json_str_c(j, r->cost->model);
    hd_json_key(j, "cost");
    hd_json_str_c(j, r->o->sim_cost);
    hd_json_key(j, "seed");
    hd_json_int(j, (int64_t)r->run->trace->seed);
    hd_json_key(j, "router");
    hd_json_str_c(j, r->o->sim_router);
    write_number(j, "replicas", r->c->n_replica);
    write_number(j, "load_scale", r->c->scale);
    if (r->max_load) {
        write_number(j, "load_scale_too_much", r->max_load->bad);
        write_number(j, "slo_attainment_too_much", r->max_load->bad_share);
    }
    HD_TRY(hd_load_write(r->run, j));
    if (r->o->load_goodput.n > 0) write_number(j, "slo_attainment", hd_load_good_share(r->run));
    write_number(j, "busy_share", f->busy_share);
    write_number(j, "steps", (double)q->n_step);
    write_number(j, "rows_per_step", f->rows_a_step);
    write_number(j, "concurrency_peak", q->n_run_peak);
    write_number(j, "prefix_hit_share", f->hit_share);
    write_number(j, "prefix_hit_of_reusable", f->hit_of_reusable);
    write_number(j, "kv_pages", r->c->loop.sched.n_page);
    write_number(j, "kv_mean_bytes", f->kv_page_bytes * q->page_used);
    write_number(j, "kv_peak_bytes", f->kv_page_bytes * q->n_page_peak);
    write_number(j, "preemptions", (double)q->n_preempt);
    write_number(j, "recomputed_share", f->recomputed_share);
    if (f->watt_hours > 0) {
        write_number(j, "energy_wh", f->watt_hours);
        write_number(j, "requests_per_kwh", f->requests_a_kwh);
    }
    write_timeline(r, j);
    hd_json_key(j, "simulator");
    hd_json_object(j);
    write_number(j, "wall_s", q->wall_s);
    write_number(j, "tokens_per_s", f->tok_a_wall_s);
    hd_json_object_end(j);
    hd_json_object_end(j);
    return HD_OK;
}

hd_status hd_sim_print(const struct hd_sim_report *r) {
    struct figures f = figures_of(r);
    if (r->o->json) {
        hd_buf out;
        hd_buf_init(&out, 1 << 22);
        hd_json j = hd_json_begin(&out);
        hd_status s = write(r, &f, &j);
        if (s == HD_OK) printf("%s\n", out.ptr);
        hd_buf_fini(&out);
        return s;
    }
    printf(
        "%s on %s: %s; profile %s, off by %.1f %% in the mean\n%d replica%s, router %s, %.4g times "
        "the load, seed %llu\n",
        r->cost->model, r->cost->backend, r->cost->device, r->o->sim_cost,
        100 * r->cost->error_mean, r->c->n_replica, one_or_more(r->c->n_replica), r->o->sim_router,
        r->c->scale, (unsigned long long)r->run->trace->seed);
    HD_TRY(hd_load_print(r->run));
    print_machines(r, &f);
    const struct hd_sim_bracket *b = r->max_load;
    if (b)
        printf("largest load: %.5g times this one (%.2f %% good); %.5g times it is too much (%.2f "
               "%% good)\n",
               b->good, 100 * b->good_share, b->bad, 100 * b->bad_share);
    return HD_OK;
}
