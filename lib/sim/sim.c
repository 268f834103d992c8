/* The simulator: replicas, the heap of their next turns, and what is noted of each request. */
#include "sim/sim.h"

#include "base/mem.h"
#include "engine/measure.h"
#include "sim/random.h"
#include "sim/router.h"

#include <math.h>
#include <string.h>

enum { answer_token = HD_TRACE_ID_FIRST };

/* So that the ends of the steps under way, and what is predicted of them, fit an int64_t. */
static const double step_max_s = 1e6;
static const int64_t time_max_ns = INT64_C(1) << 60;

struct sim;

struct replica {
    hd_sim_machine machine;
    hd_loop *loop;       /* NULL: no request has come yet */
    hd_profile *profile; /* its own, learned as a server does */
    int32_t *token;      /* [n_row_max] what every output row yields */
    int ix, n_ended;     /* ended in its last turn, which the router learns when that is over */
    bool is_queued;      /* in the heap */
};

struct note { /* of a request under way */
    struct sim *sim;
    struct replica *replica;
    int ix;
    int64_t arrival_ns, last_ns;
};

struct sim {
    const hd_sim_config *c;
    const hd_trace *trace;
    hd_sim_result *r;
    struct replica *replica; /* [n_replica] */
    hd_profile *measured;    /* what every server has measured at its start */
    hd_router *router;
    int *heap, n_heap; /* replicas by (time, index) */
    struct note *note; /* [trace->n] */
    int32_t *prompt;
    double sample_s, next_sample_s, page_sum;
    int room_sample;
    int64_t end_ns;
};

void hd_sim_machine_enqueue(hd_sim_machine *m, const hd_batch *b) {
    hd_cost_load l;
    hd_cost_load_of(b, &l);
    double s = hd_cost_mean_s(m->cost, &l);
    if (b->layer1 > 0) s *= (double)(b->layer1 - b->layer0) / m->cost->n_layer;
    s *= hd_cost_factor(m->cost, hd_random_uniform(&m->random));
    if (!(s <= step_max_s)) {
        s = step_max_s;
        m->is_over = true;
    }
    HD_ASSERT(m->n_under_way < 2);
    int64_t from_ns = m->now_ns;
    if (m->n_under_way == 1 && m->end_ns[0] > from_ns) from_ns = m->end_ns[0];
    /* Never nothing: time goes on. */
    m->end_ns[m->n_under_way++] = from_ns + (int64_t)llround(s * 1e9) + 1;
    m->busy_s += s;
    m->n_step++;
    if (b->layer0 == 0) m->n_row += (uint64_t)b->n_row;
}

void hd_sim_machine_fetch(hd_sim_machine *m) {
    HD_ASSERT(m->n_under_way > 0);
    if (m->end_ns[0] > m->now_ns) m->now_ns = m->end_ns[0];
    m->end_ns[0] = m->end_ns[1];
    m->n_under_way--;
    if (m->now_ns > time_max_ns) m->is_over = true;
}

hd_status hd_sim_machine_status(const hd_sim_machine *m) {
    if (!m->is_over) return HD_OK;
    return HD_FAIL(INVALID,
                   "simulated time: expected steps of at most %g s and an end within %g s, found "
                   "more: the cost profile is of no such machine",
                   step_max_s, (double)time_max_ns * 1e-9);
}

static hd_status enqueue(void *ctx, const hd_batch *b) {
    struct replica *p = ctx;
    hd_sim_machine_enqueue(&p->machine, b);
    return HD_OK;
}

static hd_status fetch(void *ctx, hd_step_out *out) {
    struct replica *p = ctx;
    hd_sim_machine_fetch(&p->machine);
    out->token = p->token;
    return HD_OK;
}

static int64_t now(void *ctx) { return ((struct replica *)ctx)->machine.now_ns; }

/* ---- the heap ---- */

static bool is_sooner(const struct sim *m, int a, int b) {
    int64_t x = m->replica[a].machine.now_ns, y = m->replica[b].machine.now_ns;
    return x < y || (x == y && a < b);
}

static void heap_add(struct sim *m, int replica) {
    int at = m->n_heap++;
    m->replica[replica].is_queued = true;
    for (; at > 0 && is_sooner(m, replica, m->heap[(at - 1) / 2]); at = (at - 1) / 2)
        m->heap[at] = m->heap[(at - 1) / 2];
    m->heap[at] = replica;
}

static int heap_take(struct sim *m) {
    int first = m->heap[0], last = m->heap[--m->n_heap], at = 0;
    for (int child; (child = 2 * at + 1) < m->n_heap; at = child) {
        if (child + 1 < m->n_heap && is_sooner(m, m->heap[child + 1], m->heap[child])) child++;
        if (!is_sooner(m, m->heap[child], last)) break;
        m->heap[at] = m->heap[child];
    }
    m->heap[at] = last;
    m->replica[first].is_queued = false;
    return first;
}

/* ---- requests ---- */

void hd_sim_request_of(const hd_trace_item *item, const int32_t *prompt, hd_request *out) {
    hd_request_init(out);
    out->prompt = prompt;
    out->n_prompt = item->n_prompt;
    out->max_tokens = item->n_output;
    out->ignore_eos = true;
    out->sampling.temperature = 0;
    int service = hd_service_find(item->service);
    out->service = service < 0 ? HD_SERVICE_STANDARD : (enum hd_service)service;
}

static double since(const struct note *n, int64_t at_ns) {
    return (double)(at_ns - n->arrival_ns) * 1e-9;
}

static bool on_event(void *user, const hd_event *ev) {
    struct note *n = user;
    struct sim *m = n->sim;
    hd_sim_request *q = &m->r->request[n->ix];
    if (ev->token >= 0) {
        if (ev->n_generated > 1 && m->c->on_gap)
            m->c->on_gap(m->c->user, (double)(ev->now_ns - n->last_ns) * 1e-9);
        n->last_ns = ev->now_ns;
    }
    if (ev->finish == HD_FINISH_NONE) return true;
    q->status = ev->finish == HD_FINISH_ERROR       ? ev->status
                : ev->finish == HD_FINISH_CANCELLED ? HD_E_CANCELLED
                                                    : HD_OK;
    q->n_output = ev->n_generated;
    q->n_hit = ev->n_hit;
    if (ev->admitted_ns > 0) q->queue_s = since(n, ev->admitted_ns);
    if (ev->first_token_ns > 0) q->ttft_s = since(n, ev->first_token_ns);
    q->latency_s = since(n, ev->now_ns);
    n->replica->n_ended++;
    return true;
}

/* The loop's configuration on replica p. */
static hd_loop_config loop_config(const struct sim *m, struct replica *p) {
    hd_loop_config lc = m->c->loop;
    lc.clock = (hd_clock){.now_ns = now, .ctx = p};
    lc.stepper =
        (hd_stepper){.enqueue = enqueue, .fetch = fetch, .is_async = m->c->is_async, .ctx = p};
    lc.n_vocab = HD_TRACE_ID_FIRST + HD_TRACE_ID_COUNT;
    lc.profile = p->profile;
    lc.sched.profile = p->profile;
    return lc;
}

static void measure(struct sim *m) {
    struct replica like = {.machine = {.cost = m->c->cost, .random = m->c->seed}};
    hd_loop_config lc = loop_config(m, &like);
    m->measured = hd_profile_new();
    hd_measure_steps(&lc, m->c->measure_ns, m->measured);
}

/* Before its first request: those of a large fleet that get none cost nothing. */
static void open_replica(struct sim *m, struct replica *p) {
    uint64_t seed = m->c->seed + (uint64_t)p->ix * 0x632BE59BD9B4E019u;
    p->machine = (hd_sim_machine){.cost = m->c->cost, .random = hd_random_next(&seed)};
    p->profile = hd_profile_copy(m->measured);
    hd_loop_config lc = loop_config(m, p);
    p->token = hd_alloc_zero((size_t)lc.sched.n_row_max, sizeof *p->token);
    for (int i = 0; i < lc.sched.n_row_max; i++) p->token[i] = answer_token;
    p->loop = hd_loop_new(&lc);
}

/* The replica may be amid a step, which ends later: the request is there before. */
static void arrive(struct sim *m, int ix, int64_t at_ns) {
    const hd_trace_item *item = &m->trace->item[ix];
    int to = hd_router_choose(m->router, item);
    struct replica *p = &m->replica[to];
    hd_sim_request *q = &m->r->request[ix];
    struct note *n = &m->note[ix];
    *n = (struct note){.sim = m, .replica = p, .ix = ix, .arrival_ns = at_ns};
    hd_request r;
    if (!p->loop) open_replica(m, p);
    hd_trace_prompt(item, m->prompt);
    hd_sim_request_of(item, m->prompt, &r);
    r.on_event = on_event;
    r.user = n;
    int64_t until_ns = p->machine.now_ns;
    uint64_t id;
    p->machine.now_ns = at_ns;
    q->replica = to;
    q->status = hd_loop_submit(p->loop, &r, &id);
    if (q->status != HD_OK) {
        hd_router_leave(m->router, to);
        p->machine.now_ns = until_ns;
        return;
    }
    if (p->is_queued)
        p->machine.now_ns = until_ns;
    else
        heap_add(m, to);
}

/* ---- time ---- */

static void sample(struct sim *m, double at_s) {
    hd_sim_result *r = m->r;
    if (r->n_sample == m->room_sample) {
        m->room_sample = m->room_sample ? 2 * m->room_sample : 256;
        r->sample = hd_realloc(r->sample, (size_t)m->room_sample * sizeof *r->sample);
    }
    hd_sim_sample *to = &r->sample[r->n_sample++];
    *to = (hd_sim_sample){.at_s = at_s};
    for (int i = 0; i < m->c->n_replica; i++) {
        hd_engine_stats s;
        if (!m->replica[i].loop) continue;
        hd_loop_get_stats(m->replica[i].loop, &s);
        to->n_running += s.n_running;
        to->n_waiting += s.n_waiting;
        to->n_page_used += s.n_page_used;
    }
}

static void reach(struct sim *m, int64_t at_ns) {
    while (m->sample_s > 0 && (double)at_ns * 1e-9 >= m->next_sample_s) {
        sample(m, m->next_sample_s);
        m->next_sample_s += m->sample_s;
    }
}

static hd_status turn(struct sim *m, int ix) {
    struct replica *p = &m->replica[ix];
    for (; p->n_ended > 0; p->n_ended--) hd_router_leave(m->router, ix);
    double busy_s = p->machine.busy_s;
    bool has_worked = hd_loop_turn(p->loop);
    HD_TRY(hd_sim_machine_status(&p->machine));
    hd_engine_stats s;
    hd_loop_get_stats(p->loop, &s);
    m->page_sum += s.n_page_used * (p->machine.busy_s - busy_s);
    if (s.n_page_used > m->r->n_page_peak) m->r->n_page_peak = s.n_page_used;
    if (s.n_running > m->r->n_run_peak) m->r->n_run_peak = s.n_running;
    if (p->machine.now_ns > m->end_ns) m->end_ns = p->machine.now_ns;
    if (has_worked) {
        heap_add(m, ix);
        return HD_OK;
    }
    if (s.n_running + s.n_waiting == 0) return HD_OK;
    return HD_FAIL(INTERNAL, "replica %d stands still with %d requests running and %d waiting", ix,
                   s.n_running, s.n_waiting);
}

static hd_status run(struct sim *m) {
    double first_s = m->trace->item[0].arrival_s;
    for (int next = 0; next < m->trace->n || m->n_heap > 0;) {
        int64_t arrival_ns = INT64_MAX;
        if (next < m->trace->n) {
            double s = (m->trace->item[next].arrival_s - first_s) / m->c->scale;
            if (!(s * 1e9 < (double)time_max_ns))
                return HD_FAIL(INVALID,
                               "request %d: at this load scale it comes after %g s, expected at "
                               "most %g s",
                               next + 1, s, (double)time_max_ns * 1e-9);
            arrival_ns = 1 + llround(s * 1e9);
        }
        bool has_turn = m->n_heap > 0 && m->replica[m->heap[0]].machine.now_ns < arrival_ns;
        reach(m, has_turn ? m->replica[m->heap[0]].machine.now_ns : arrival_ns);
        if (has_turn)
            HD_TRY(turn(m, heap_take(m)));
        else
            arrive(m, next++, arrival_ns);
    }
    return HD_OK;
}

/* ---- around it ---- */

static void close_replica(struct sim *m, struct replica *p) {
    hd_sim_result *r = m->r;
    hd_engine_stats s;
    if (!p->loop) return;
    hd_loop_end_all(p->loop, HD_OK); /* only after a failure there are some */
    hd_loop_get_stats(p->loop, &s);
    r->busy_s += p->machine.busy_s;
    r->n_step += p->machine.n_step;
    r->n_row += p->machine.n_row;
    r->prompt_tok += s.prompt_tok;
    r->hit_tok += s.hit_tok;
    r->generated_tok += s.generated_tok;
    r->n_preempt += s.n_preempt;
    r->recomputed_tok += s.recomputed_tok;
    hd_loop_free(p->loop);
    hd_profile_free(p->profile);
    hd_free(p->token);
}

hd_status hd_sim_run(const hd_sim_config *c, const hd_trace *trace, hd_sim_result *out) {
    HD_ASSERT(trace->n > 0 && c->n_replica > 0 && c->scale > 0);
    int64_t from_ns = hd_now_ns();
    struct sim m = {.c = c, .trace = trace, .r = out};
    *out = (hd_sim_result){0};
    size_t n = (size_t)trace->n, n_replica = (size_t)c->n_replica;
    int n_prompt = 0;
    for (int i = 0; i < trace->n; i++)
        if (trace->item[i].n_prompt > n_prompt) n_prompt = trace->item[i].n_prompt;
    out->request = hd_alloc_zero(n, sizeof *out->request);
    m.note = hd_alloc_zero(n, sizeof *m.note);
    m.prompt = hd_alloc_zero((size_t)n_prompt, sizeof *m.prompt);
    m.replica = hd_alloc_zero(n_replica, sizeof *m.replica);
    m.heap = hd_alloc_zero(n_replica, sizeof *m.heap);
    m.router = hd_router_new(c->router, c->n_replica);
    double last_s = (trace->item[n - 1].arrival_s - trace->item[0].arrival_s) / c->scale;
    m.sample_s = c->n_sample > 0 ? fmax(last_s / c->n_sample, 1e-3) : 0;
    for (int i = 0; i < c->n_replica; i++) m.replica[i].ix = i;
    measure(&m);
    hd_status s = run(&m);
    for (int i = 0; i < c->n_replica; i++) close_replica(&m, &m.replica[i]);
    hd_profile_free(m.measured);
    out->seconds = (double)m.end_ns * 1e-9;
    out->page_used = out->busy_s > 0 ? m.page_sum / out->busy_s : 0;
    out->wall_s = (double)(hd_now_ns() - from_ns) * 1e-9;
    hd_router_free(m.router);
    hd_free(m.heap);
    hd_free(m.replica);
    hd_free(m.prompt);
    hd_free(m.note);
    return s;
}

void hd_sim_result_fini(hd_sim_result *r) {
    hd_free(r->request);
    hd_free(r->sample);
    *r = (hd_sim_result){0};
}
