/* A load on the engine's loop and the model in this process: requests are submitted when they are
 * due, between turns. */
#include "cmd/compare.h"

#include "base/mem.h"
#include "engine/measure.h"
#include "engine/sizes.h"

#include <stdio.h>
#include <string.h>

struct live {
    struct hd_bench_model m;
    hd_loop *loop;
    const hd_trace *trace;
    hd_compare_run *run;
    int64_t start_ns;
    int n_page_peak;
    int32_t *prompt;
    int n_step_room; /* of run->steps */
    int64_t step_from_ns;
};

static int64_t clock_now(void *ctx) { return hd_work_clock_now(&((struct live *)ctx)->m.clock); }

static double since_start(const struct live *v, int64_t ns) {
    return (double)(ns - v->start_ns) * 1e-9;
}

static int64_t arrival_ns(const struct live *v, int ix) {
    double s = v->trace->item[ix].arrival_s - v->trace->item[0].arrival_s;
    return v->start_ns + (int64_t)(s * 1e9);
}

static bool on_event(void *user, const hd_event *ev) {
    hd_compare_request *q = user;
    if (ev->finish == HD_FINISH_NONE) return true;
    q->status = ev->finish == HD_FINISH_ERROR ? ev->status : HD_OK;
    q->n_output = ev->n_generated; /* moments: hd_live_run makes seconds of them */
    q->admitted_s = (double)ev->admitted_ns;
    q->first_s = (double)ev->first_token_ns;
    q->end_s = (double)ev->now_ns;
    return true;
}

/* On a host: the steps of a device overlap. */
static void note_step(struct live *v, const hd_batch *b) {
    hd_compare_steps *steps = &v->run->steps;
    if (!v->loop || hd_dev_has_memory(&v->m.dev)) return;
    if (steps->n == v->n_step_room) {
        v->n_step_room = v->n_step_room > 0 ? 2 * v->n_step_room : 1024;
        steps->v = hd_realloc(steps->v, (size_t)v->n_step_room * sizeof *steps->v);
    }
    hd_compare_step *t = &steps->v[steps->n++];
    *t = (hd_compare_step){.share = 1};
    hd_cost_load_of(b, &t->load);
    if (b->layer1 > 0) t->share = (double)(b->layer1 - b->layer0) / v->m.hp.n_layer;
}

static hd_status enqueue(void *ctx, const hd_batch *b) {
    struct live *v = ctx;
    note_step(v, b);
    v->step_from_ns = clock_now(v);
    return hd_model_enqueue(v->m.model, b);
}

static hd_status fetch(void *ctx, hd_step_out *out) {
    hd_model_out o;
    struct live *v = ctx;
    HD_TRY(hd_model_fetch(v->m.model, &o));
    hd_compare_steps *steps = &v->run->steps;
    if (steps->n > 0)
        steps->v[steps->n - 1].seconds = (double)(clock_now(v) - v->step_from_ns) * 1e-9;
    *out = (hd_step_out){.token = o.token, .logits = o.logits};
    return HD_OK;
}

static void submit(struct live *v, int ix) {
    hd_compare_request *q = &v->run->request[ix];
    hd_request r;
    uint64_t id;
    hd_trace_prompt(&v->trace->item[ix], v->prompt);
    hd_sim_request_of(&v->trace->item[ix], v->prompt, &r);
    r.on_event = on_event;
    r.user = q;
    q->arrival_s = since_start(v, arrival_ns(v, ix));
    q->status = hd_loop_submit(v->loop, &r, &id);
}

static void run_load(struct live *v) {
    v->start_ns = clock_now(v);
    for (int next = 0;;) {
        while (next < v->trace->n && arrival_ns(v, next) <= clock_now(v)) submit(v, next++);
        bool has_worked = hd_loop_turn(v->loop);
        hd_engine_stats s;
        hd_loop_get_stats(v->loop, &s);
        if (s.n_page_used > v->n_page_peak) v->n_page_peak = s.n_page_used;
        if (has_worked) continue;
        if (next == v->trace->n) break;
        hd_work_clock_wait(&v->m.clock, arrival_ns(v, next));
    }
    for (int i = 0; i < v->trace->n; i++) {
        hd_compare_request *q = &v->run->request[i];
        if (q->status != HD_OK) continue;
        q->admitted_s = since_start(v, (int64_t)q->admitted_s);
        q->first_s = since_start(v, (int64_t)q->first_s);
        q->end_s = since_start(v, (int64_t)q->end_s);
    }
}

static hd_status run(struct live *v, const struct hd_options *o, const char *model) {
    hd_cost like = {0}; /* the model's sizes, by which a simulation is configured, too */
    hd_sim_config c;
    hd_loop_config *lc = &c.loop;
    HD_TRY(hd_bench_open(&v->m, o, model));
    snprintf(like.backend, sizeof like.backend, "%s", v->m.dev.ops->name);
    snprintf(like.kv_dtype, sizeof like.kv_dtype, "%s", hd_kv_type_name(v->m.mo.kv_type));
    like.n_ctx = v->m.hp.n_ctx;
    like.expand_min = hd_engine_expand_min(&v->m.hp);
    HD_TRY(hd_compare_config(o, &like, v->trace, &c));
    const hd_sched_config *s = &lc->sched;
    HD_TRY(hd_bench_open_model(&v->m, s->n_row_max, s->n_seq_max, s->n_pos_max, 0));
    HD_ASSERT(s->n_page <= v->m.mo.n_page);
    lc->clock = (hd_clock){.now_ns = clock_now, .ctx = v};
    lc->stepper = (hd_stepper){
        .enqueue = enqueue, .fetch = fetch, .is_async = hd_dev_has_memory(&v->m.dev), .ctx = v};
    lc->sched.n_layer = v->m.hp.n_layer;
    lc->n_vocab = v->m.hp.n_vocab;
    lc->profile = hd_profile_new();
    lc->sched.profile = lc->profile;
    hd_measure_steps(lc, c.measure_ns, lc->profile);
    v->loop = hd_loop_new(lc);
    run_load(v);
    hd_loop_free(v->loop);
    hd_profile_free(lc->profile);
    v->run->kv_peak_tok = (int64_t)v->n_page_peak * o->block_size;
    hd_compare_count_pages(v->trace, o->block_size, v->run);
    return HD_OK;
}

hd_status hd_live_run(const struct hd_options *o, const char *model, const hd_trace *trace,
                      hd_compare_run *out) {
    struct live v = {.trace = trace, .run = out};
    v.prompt = hd_alloc_zero((size_t)hd_trace_longest(trace), sizeof *v.prompt);
    hd_status s = run(&v, o, model);
    hd_bench_close(&v.m);
    hd_free(v.prompt);
    return s;
}
