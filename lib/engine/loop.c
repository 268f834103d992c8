/* The engine loop. hd_loop_turn is the program: the six functions above it are its verbs. A job
 * that has something to tell stands in the emit list; emit is the only place that calls out. */
#include "engine/loop.h"

#include "base/mem.h"
#include "base/metric.h"
#include "engine/inbox.h"
#include "engine/stats.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

struct hd_loop {
    hd_loop_config c;
    hd_inbox *inbox;
    hd_sched *sched;
    hd_sampler_desk *desk;
    hd_batch batch;
    hd_step_out out;
    hd_status step_status;
    char step_error[256]; /* of step_status */
    hd_job **out_job;     /* [n_out of the step under way] NULL: ended since */
    int n_out_job;
    hd_step_load load;                      /* of the step under way, */
    int n_layer;                            /* which has so many of c.sched.n_layer; 0: all */
    bool is_under_way;                      /* a step was enqueued and not told */
    bool needs_host;                        /* a draw of it is the host's: it is told at once */
    int64_t now_ns, step_from_ns, began_ns; /* began: the step under way, about */
    int64_t next_look_ns;                   /* for requests that wait too long */
    hd_job *emit_first, *emit_last;
    hd_engine_stats total; /* counts of this loop; the scheduler's are added when published */
    hd_sched_stats before; /* as of the last publish: metrics are told the difference */
    uint64_t generated_before, step_before;
    hd_stats_board *board;
    int64_t ttft_ns[HD_SERVICE_COUNT]; /* the classes' targets */
    _Atomic uint64_t next_seed;
    _Atomic bool is_stopping;
};

static void publish(hd_loop *l);
static void emit(hd_loop *l);

hd_loop *hd_loop_new(const hd_loop_config *c) {
    hd_loop *l = hd_alloc_zero(1, sizeof *l);
    l->c = *c;
    hd_inbox_limits limits = {.n_running_max = c->sched.n_seq_max,
                              .n_waiting_max = c->n_queue_max,
                              .waiting_tok_max = c->queue_tok_max};
    for (int k = 0; k < HD_SERVICE_COUNT; k++) {
        hd_service_target t = hd_service_defaults((enum hd_service)k, c->sched.target[k]);
        limits.wait_max_ns[k] = t.wait_ns;
        bool is_asked = c->sched.target[k].wait_ns > 0; /* else nobody is let wait in vain */
        if (!is_asked && c->wait_max_ns > 0 && c->wait_max_ns < t.wait_ns)
            limits.wait_max_ns[k] = c->wait_max_ns;
        l->ttft_ns[k] = t.ttft_ns;
    }
    l->inbox = hd_inbox_new(&limits);
    l->sched = hd_sched_new(&l->c.sched);
    l->desk = hd_sampler_desk_new(c->n_vocab, c->no_token, c->n_no_token);
    l->c.no_token = NULL;
    size_t n_end = (size_t)c->n_end_token + (size_t)c->n_chat_end_token;
    int32_t *end_token = hd_alloc_zero(n_end, sizeof *end_token);
    if (n_end > 0) memcpy(end_token, c->end_token, n_end * sizeof *end_token);
    l->c.end_token = end_token;
    hd_sched_batch_init(&l->c.sched, &l->batch);
    l->out_job = hd_alloc_zero((size_t)l->batch.n_seq_max, sizeof(hd_job *));
    l->board = hd_stats_board_new();
    atomic_store(&l->next_seed, c->seed);
    publish(l);
    return l;
}

void hd_loop_free(hd_loop *l) {
    if (!l) return;
    hd_inbox_free(l->inbox);
    hd_sched_free(l->sched);
    hd_sampler_desk_free(l->desk);
    hd_batch_fini(&l->batch);
    hd_free(l->out_job);
    hd_stats_board_free(l->board);
    hd_free((void *)(uintptr_t)l->c.end_token);
    hd_free(l);
}

static int64_t clock_now(const hd_loop *l) { return l->c.clock.now_ns(l->c.clock.ctx); }

static void count(const hd_loop *l, unsigned m, double v) {
    if (l->c.has_metrics && v > 0) hd_metric_add((enum hd_metric)m, v);
}

static void observe(const hd_loop *l, unsigned m, int64_t from_ns, int64_t to_ns) {
    if (l->c.has_metrics) hd_metric_observe((enum hd_metric)m, (double)(to_ns - from_ns) * 1e-9);
}

/* ---- submit and cancel: any thread ---- */

hd_status hd_loop_submit(hd_loop *l, const hd_request *r, uint64_t *id) {
    int64_t now_ns = clock_now(l);
    int room = l->c.sched.n_pos_max - r->n_prompt;
    int n_new_max = r->max_tokens > 0 && r->max_tokens < room ? r->max_tokens : room;
    hd_status s = room < 1 ? HD_FAIL(CONTEXT, "prompt of %d tokens; the context has room for %d",
                                     r->n_prompt, l->c.sched.n_pos_max - 1)
                           : hd_sched_fits(&l->c.sched, r->n_prompt, n_new_max);
    if (s == HD_OK && r->n_stop > 0 && !l->c.tokenizer)
        s = HD_FAIL(UNSUPPORTED, "stop strings need a tokenizer; the model has none");
    hd_inbox_ask ask = {.service = r->service,
                        .tenant = r->tenant,
                        .n_prompt = r->n_prompt,
                        .n_new = n_new_max,
                        .now_ns = now_ns,
                        .deadline_ns = r->deadline_ns};
    if (s == HD_OK) s = hd_inbox_reserve(l->inbox, &ask, id);
    if (s != HD_OK) {
        count(l, HD_M_REJECTED, 1);
        if (s == HD_E_BUSY) count(l, HD_M_CLASS_REFUSED + r->service, 1);
        return s;
    }
    hd_job_spec spec = {.request = r,
                        .sched = &l->c.sched,
                        .tokenizer = l->c.tokenizer,
                        .end_token = l->c.end_token,
                        .n_end_token = l->c.n_end_token,
                        .n_chat_end_token = l->c.n_chat_end_token,
                        .n_new_max = n_new_max,
                        .id = *id,
                        .seed = atomic_fetch_add(&l->next_seed, 1),
                        .now_ns = now_ns};
    hd_job *j = NULL;
    s = hd_job_new(&spec, &j);
    if (s == HD_OK) s = hd_inbox_post_submit(l->inbox, j);
    if (s == HD_OK) return HD_OK;
    hd_job_free(j);
    hd_inbox_forsake(l->inbox, *id, &ask);
    count(l, HD_M_REJECTED, 1);
    return s;
}

hd_status hd_loop_admits(const hd_loop *l, enum hd_service service) {
    hd_inbox_ask ask = {.service = service, .n_prompt = 1, .n_new = 1};
    hd_status s = hd_inbox_would_reserve(l->inbox, &ask);
    if (s == HD_E_BUSY) count(l, HD_M_CLASS_REFUSED + service, 1);
    return s;
}

int hd_loop_retry_s(const hd_loop *l, enum hd_service service) {
    int64_t retry_ns;
    hd_inbox_wait_ns(l->inbox, service, &retry_ns);
    int64_t s = retry_ns / 1000000000 + 1;
    return s < 3600 ? (int)s : 3600;
}

void hd_loop_cancel(hd_loop *l, uint64_t id) {
    hd_inbox_post_end(l->inbox, id, HD_FINISH_CANCELLED);
}
void hd_loop_finish(hd_loop *l, uint64_t id) { hd_inbox_post_end(l->inbox, id, HD_FINISH_STOP); }

/* ---- one job ---- */

static void will_emit(hd_loop *l, hd_job *j) {
    HD_DASSERT(!j->is_emitting);
    j->is_emitting = true;
    j->emit_next = NULL;
    if (l->emit_last)
        l->emit_last->emit_next = j;
    else
        l->emit_first = j;
    l->emit_last = j;
}

/* Ends a job, releasing its pages at once; its last event is told by emit. */
static void end_job(hd_loop *l, hd_job *j, enum hd_finish finish, hd_status status) {
    HD_ASSERT(!j->is_ended && finish != HD_FINISH_NONE);
    static const enum hd_metric metric[] = {[HD_FINISH_STOP] = HD_M_FINISH_STOP,
                                            [HD_FINISH_LENGTH] = HD_M_FINISH_LENGTH,
                                            [HD_FINISH_CANCELLED] = HD_M_FINISH_ABORT,
                                            [HD_FINISH_ERROR] = HD_M_FINISH_ERROR};
    j->is_ended = true;
    if (j->out_ix >= 0) l->out_job[j->out_ix] = NULL;
    j->out_ix = -1;
    if (j->is_submitted && status == HD_E_NUMERIC) hd_sched_distrust(l->sched, j->seq);
    if (j->is_submitted) hd_sched_finish(l->sched, j->seq);
    j->is_submitted = false;
    if (!j->is_admitted) hd_inbox_left(l->inbox, j);
    hd_inbox_ended(l->inbox);
    j->ev.finish = finish;
    j->ev.status = status;
    if (finish == HD_FINISH_ERROR) {
        snprintf(j->error, sizeof j->error, "%s", hd_error_text());
        j->ev.error = j->error;
    }
    l->total.n_finished++;
    count(l, metric[finish], 1);
    observe(l, HD_M_E2E, j->submitted_ns, l->now_ns);
    if (!j->is_emitting) will_emit(l, j);
}

static void note_admitted(hd_loop *l, hd_job *j) {
    if (j->is_admitted) return;
    j->is_admitted = true;
    j->ev.admitted_ns = hd_seq_admitted_ns(j->seq);
    j->ev.n_hit = hd_seq_n_hit(j->seq);
    hd_inbox_left(l->inbox, j);
    observe(l, HD_M_QUEUE_TIME, j->submitted_ns, j->ev.admitted_ns);
}

/* Ends requests whose computation has not begun in time. */
static void give_up_waiting(hd_loop *l) {
    static const int64_t period_ns = 100 * 1000 * 1000;
    if (l->c.wait_max_ns == 0 || l->now_ns < l->next_look_ns) return;
    l->next_look_ns = l->now_ns + period_ns;
    for (int i = 0; i < hd_inbox_n_slot(l->inbox); i++) {
        hd_job *j = hd_inbox_job_at(l->inbox, i);
        if (!j || !j->is_submitted || j->is_admitted) continue;
        if (l->now_ns - j->submitted_ns <= l->c.wait_max_ns) continue;
        end_job(l, j, HD_FINISH_ERROR,
                HD_FAIL(UNAVAILABLE, "the request has waited %g s, and its turn has not come",
                        (double)l->c.wait_max_ns * 1e-9));
    }
}

/* ---- the six verbs ---- */

static int drain(hd_loop *l) {
    int n = 0;
    for (hd_inbox_message m; n < 2 * hd_inbox_n_slot(l->inbox) && hd_inbox_pop(l->inbox, &m); n++) {
        hd_job *j = m.job;
        if (m.end != HD_FINISH_NONE) {
            if (!j->is_ended) end_job(l, j, m.end, HD_OK);
            hd_inbox_unref(l->inbox, j);
            continue;
        }
        hd_status s = hd_sched_submit(l->sched, j->seq);
        j->is_submitted = s == HD_OK;
        if (s != HD_OK) end_job(l, j, HD_FINISH_ERROR, s);
    }
    give_up_waiting(l);
    return n;
}

/* How the next token of a job is drawn, one being under way or not. */
static void plan_draw(const hd_job *j, hd_draw *out) {
    int n_pending = j->out_ix >= 0;
    hd_sampler_draw(j->sampler, n_pending, out);
    if (j->ev.n_generated + n_pending < j->n_new_min) out->is_host = true; /* ends are banned */
}

/* Work that nobody can use any more makes room before the next step is planned. */
static void end_expired(hd_loop *l) {
    for (hd_seq *q; (q = hd_sched_expired(l->sched, l->now_ns));) {
        hd_job *j = hd_seq_user(q);
        count(l, HD_M_DEADLINE_LOST, 1);
        end_job(l, j, HD_FINISH_ERROR,
                HD_FAIL(DEADLINE, "the request's deadline cannot be kept: %s, %d tokens generated",
                        j->is_admitted ? "it has passed" : "its prompt would take longer",
                        j->ev.n_generated));
    }
}

static int plan(hd_loop *l) {
    end_expired(l);
    int n_row = hd_sched_plan(l->sched, l->now_ns, &l->batch);
    for (int i = 0; i < l->batch.n_seq && n_row > 0; i++) {
        hd_seq *q = hd_sched_seq_at(l->sched, &l->batch, i);
        if (q) note_admitted(l, hd_seq_user(q)); /* else it ended with layers yet to compute */
    }
    for (int i = 0; i < l->batch.n_out && n_row > 0; i++)
        plan_draw(hd_seq_user(hd_sched_out_seq(l->sched, &l->batch, i)), &l->batch.draw[i]);
    return n_row;
}

static void step(hd_loop *l) {
    l->step_from_ns = clock_now(l);
    l->step_status = l->c.stepper.enqueue(l->c.stepper.ctx, &l->batch);
    if (l->step_status != HD_OK)
        snprintf(l->step_error, sizeof l->step_error, "%s", hd_error_text());
    if (l->c.has_metrics && l->batch.layer0 == 0) hd_metric_observe(HD_M_ITER_TOK, l->batch.n_row);
}

/* Chooses the next token of output row i. */
static hd_status choose(hd_loop *l, hd_job *j, int i) {
    hd_event *ev = &j->ev;
    ev->logprob = 0;
    ev->n_top = 0;
    if (!l->needs_host || !l->batch.draw[i].is_host) {
        ev->token = l->out.token[i];
        return ev->token >= 0 ? HD_OK : HD_FAIL(NUMERIC, "a row's numbers were not finite");
    }
    int n_ban = ev->n_generated < j->n_new_min ? j->n_end_token : 0;
    hd_sample sample = {.top = j->top};
    const float *row = l->out.logits + (size_t)i * (size_t)l->c.n_vocab;
    HD_TRY(hd_sampler_next(j->sampler, l->desk, row, j->end_token, n_ban, &sample));
    ev->token = sample.token;
    ev->logprob = sample.logprob;
    ev->n_top = sample.n_top;
    return HD_OK;
}

/* Why the token just chosen is the last one, or HD_FINISH_NONE. */
static enum hd_finish finish_of(hd_job *j) {
    hd_event *ev = &j->ev;
    if (hd_job_is_end_token(j, ev->token) && ev->n_generated > j->n_new_min) {
        ev->is_end_token = true;
        ev->stop_token = ev->token;
        return HD_FINISH_STOP;
    }
    if (j->stop) {
        hd_text_out text = hd_stream_feed(j->stop, ev->token);
        if (text.stopped) {
            ev->stop_ix = text.stop_ix;
            return HD_FINISH_STOP;
        }
    }
    return ev->n_generated >= j->n_new_max ? HD_FINISH_LENGTH : HD_FINISH_NONE;
}

static void commit_token(hd_loop *l, hd_job *j, int i) {
    hd_event *ev = &j->ev;
    hd_status s = choose(l, j, i);
    if (s != HD_OK) {
        if (s == HD_E_NUMERIC) count(l, HD_M_NON_FINITE, 1);
        ev->token = -1;
        end_job(l, j, HD_FINISH_ERROR, s);
        return;
    }
    hd_sampler_accept(j->sampler, ev->token);
    l->total.generated_tok++;
    if (ev->n_generated++ == 0) {
        ev->first_token_ns = l->now_ns;
        observe(l, HD_M_TTFT, j->submitted_ns, l->now_ns);
        observe(l, HD_M_CLASS_TTFT + j->service, j->submitted_ns, l->now_ns);
        if (l->now_ns - j->submitted_ns > l->ttft_ns[j->service])
            count(l, HD_M_CLASS_LATE + j->service, 1);
    } else {
        observe(l, HD_M_ITL, j->last_token_ns, l->now_ns);
    }
    j->last_token_ns = l->now_ns;
    will_emit(l, j);
    enum hd_finish finish = finish_of(j);
    if (finish == HD_FINISH_NONE)
        hd_sched_resolve(l->sched, j->seq, ev->token);
    else
        end_job(l, j, finish, HD_OK);
}

/* The device is of no use any more. */
static void break_down(hd_loop *l, hd_status s) {
    l->total.is_failed = true;
    hd_loop_end_all(l, s);
}

static void learn(hd_loop *l, int64_t step_ns) {
    if (l->n_layer > 0) step_ns = step_ns * l->c.sched.n_layer / l->n_layer;
    int64_t p95_ns = hd_profile_p95_ns(l->c.profile, &l->load);
    if (p95_ns > 0 && step_ns > p95_ns) count(l, HD_M_STEP_OVER_P95, 1);
    hd_profile_learn(l->c.profile, &l->load, step_ns);
}

/* The tokens of the step under way go to their jobs; false: there is none. */
static bool tell(hd_loop *l) {
    if (!l->is_under_way) return false;
    int64_t from_ns = clock_now(l);
    hd_status s = l->c.stepper.fetch(l->c.stepper.ctx, &l->out);
    l->is_under_way = false;
    l->now_ns = clock_now(l);
    l->total.n_step++;
    observe(l, HD_M_STEP_TIME, l->began_ns, l->now_ns);
    observe(l, HD_M_STEP_WAIT, from_ns, l->now_ns);
    l->total.last_step_ns = l->now_ns;
    if (s != HD_OK) {
        break_down(l, s);
        return true;
    }
    if (l->c.profile) learn(l, l->now_ns - l->began_ns);
    for (int i = 0; i < l->n_out_job; i++) {
        hd_job *j = l->out_job[i];
        if (!j) continue;
        j->out_ix = -1;
        commit_token(l, j, i);
    }
    return true;
}

/* The step was not enqueued: its requests end, once they have the tokens of the step before, and
 * with HD_E_DEVICE all others, too. */
static void commit_failure(hd_loop *l) {
    int n_seq = l->batch.n_seq;
    emit(l);
    hd_sched_abandon(l->sched, &l->batch);
    hd_status s = hd_fail(l->step_status, "%s", l->step_error);
    if (s == HD_E_DEVICE) {
        break_down(l, s);
        return;
    }
    for (int i = 0; i < n_seq; i++) {
        hd_seq *q = hd_sched_seq_at(l->sched, &l->batch, i);
        if (q) end_job(l, hd_seq_user(q), HD_FINISH_ERROR, s);
    }
}

/* The step that was just enqueued becomes the one under way; what ended meanwhile is not in it. */
static void commit(hd_loop *l) {
    if (l->total.is_failed) {
        hd_sched_abandon(l->sched, &l->batch);
        return;
    }
    if (l->step_status != HD_OK) {
        commit_failure(l);
        return;
    }
    hd_sched_commit(l->sched, &l->batch);
    l->is_under_way = true;
    l->began_ns = l->step_from_ns > l->total.last_step_ns ? l->step_from_ns : l->total.last_step_ns;
    l->load = hd_step_load_of(&l->batch);
    l->n_layer = l->batch.layer1 - l->batch.layer0;
    l->needs_host = false;
    l->n_out_job = l->batch.n_out;
    for (int i = 0; i < l->n_out_job; i++) {
        hd_seq *q = hd_sched_out_seq(l->sched, &l->batch, i);
        l->out_job[i] = q ? hd_seq_user(q) : NULL;
        if (!q) continue;
        l->out_job[i]->out_ix = i;
        l->needs_host |= l->batch.draw[i].is_host;
        hd_sched_append(l->sched, q, HD_TOKEN_UNKNOWN);
    }
}

/* Tells every job in the list its event. One that refuses is cancelled, and comes again at the end
 * of the list. What was freed is published first, so that a receiver of the last event sees it. */
static void emit(hd_loop *l) {
    publish(l);
    bool is_stale = false;
    for (hd_job *j; (j = l->emit_first);) {
        l->emit_first = j->emit_next;
        if (!l->emit_first) l->emit_last = NULL;
        j->is_emitting = false;
        if (is_stale) publish(l);
        is_stale = false;
        j->ev.now_ns = l->now_ns;
        bool is_last = j->is_ended;
        bool accepts = j->on_event(j->user, &j->ev);
        j->ev.token = -1;
        j->ev.n_top = 0;
        if (is_last) {
            hd_inbox_unref(l->inbox, j);
        } else if (!accepts) {
            end_job(l, j, HD_FINISH_CANCELLED, HD_OK);
            is_stale = true;
        }
    }
}

bool hd_loop_turn(hd_loop *l) {
    l->now_ns = clock_now(l);
    int n_message = drain(l);
    int n_row = plan(l);
    if (n_row > 0) step(l);
    bool did_tell = tell(l); /* the tokens of the step before this one */
    if (n_row > 0) commit(l);
    if (l->is_under_way && (l->needs_host || !l->c.stepper.is_async)) {
        if (l->emit_first) emit(l);
        tell(l);
    }
    emit(l);
    return n_message > 0 || n_row > 0 || did_tell;
}

/* ---- around the turn ---- */

void hd_loop_end_all(hd_loop *l, hd_status status) {
    hd_inbox_close(l->inbox, status == HD_OK ? "the engine is stopping"
                                             : "the engine has stopped after a device failure");
    l->now_ns = clock_now(l);
    for (hd_inbox_message m; hd_inbox_pop(l->inbox, &m);) {
        if (m.end == HD_FINISH_NONE) continue; /* found by its slot below */
        if (!m.job->is_ended) end_job(l, m.job, m.end, HD_OK);
        hd_inbox_unref(l->inbox, m.job);
    }
    for (int i = 0; i < hd_inbox_n_slot(l->inbox); i++) {
        hd_job *j = hd_inbox_job_at(l->inbox, i);
        if (!j || j->is_ended) continue;
        end_job(l, j, status == HD_OK ? HD_FINISH_CANCELLED : HD_FINISH_ERROR, status);
    }
    emit(l);
    /* Cancels that receivers posted while they were told the end. */
    for (hd_inbox_message m; hd_inbox_pop(l->inbox, &m);) hd_inbox_unref(l->inbox, m.job);
}

void hd_loop_run(hd_loop *l) {
    while (!atomic_load(&l->is_stopping)) {
        if (hd_loop_turn(l)) continue;
        /* With requests alive, the submitter of one is about to post it: look again soon. */
        bool is_idle = hd_inbox_n_live(l->inbox) == 0;
        hd_inbox_sleep(l->inbox, is_idle ? 0 : 10 * 1000 * 1000);
    }
    hd_loop_end_all(l, HD_OK);
}

void hd_loop_stop(hd_loop *l) {
    atomic_store(&l->is_stopping, true);
    hd_inbox_close(l->inbox, "the engine is stopping");
    hd_inbox_wake(l->inbox);
}

/* Puts the scheduler's and the loop's counts where others may read them. */
static void publish(hd_loop *l) {
    hd_sched_stats s;
    hd_sched_get_stats(l->sched, &s);
    hd_engine_stats *t = &l->total;
    t->n_running = s.n_running;
    t->n_waiting = s.n_waiting;
    t->n_page = s.n_page;
    t->n_page_free = s.n_page_free;
    t->n_page_cached = s.n_page_cached;
    t->n_page_used = s.n_page_used;
    t->prompt_tok = s.prompt_tok;
    t->hit_tok = s.hit_tok;
    t->n_preempt = s.n_preempt;
    t->recomputed_tok = s.recomputed_tok;
    t->n_page_moved = s.n_moved;
    hd_stats_board_put(l->board, t);
    memcpy(t->n_waiting_of, s.n_waiting_of, sizeof t->n_waiting_of);
    hd_pace pace;
    hd_sched_get_pace(l->sched, l->now_ns, &pace);
    hd_inbox_set_pace(l->inbox, &pace);
    count(l, HD_M_PROMPT_TOK, (double)(s.prompt_tok - l->before.prompt_tok));
    count(l, HD_M_PREFIX_QUERIES, (double)(s.prompt_tok - l->before.prompt_tok));
    count(l, HD_M_PREFIX_HITS, (double)(s.hit_tok - l->before.hit_tok));
    count(l, HD_M_PREEMPTIONS, (double)(s.n_preempt - l->before.n_preempt));
    count(l, HD_M_RECOMPUTED_TOK, (double)(s.recomputed_tok - l->before.recomputed_tok));
    count(l, HD_M_PAGES_MOVED, (double)(s.n_moved - l->before.n_moved));
    count(l, HD_M_AGED, (double)(s.n_aged - l->before.n_aged));
    count(l, HD_M_GEN_TOK, (double)(t->generated_tok - l->generated_before));
    count(l, HD_M_STEPS, (double)(t->n_step - l->step_before));
    l->before = s;
    l->generated_before = t->generated_tok;
    l->step_before = t->n_step;
}

void hd_loop_get_stats(const hd_loop *l, hd_engine_stats *out) {
    hd_stats_board_get(l->board, out);
    out->n_waiting += hd_inbox_n_unread(l->inbox);
    int64_t retry_ns;
    for (int k = 0; k < HD_SERVICE_COUNT; k++)
        out->wait_ns[k] = hd_inbox_wait_ns(l->inbox, (enum hd_service)k, &retry_ns);
    out->stuck_ns = 0;
    if (hd_inbox_n_live(l->inbox) == 0 || out->is_failed) return;
    int64_t since = hd_inbox_busy_since(l->inbox);
    if (out->last_step_ns > since) since = out->last_step_ns;
    int64_t stuck_ns = clock_now(l) - since;
    out->stuck_ns = stuck_ns > 0 ? stuck_ns : 0;
}

void hd_loop_drop_cache(hd_loop *l) {
    hd_sched_drop_cache(l->sched);
    publish(l);
}

void hd_loop_check(hd_loop *l) {
    hd_sched_check(l->sched);
    int n_alive = 0, n_submitted = 0;
    for (int i = 0; i < hd_inbox_n_slot(l->inbox); i++) {
        const hd_job *j = hd_inbox_job_at(l->inbox, i);
        if (!j) continue;
        n_alive += !j->is_ended;
        n_submitted += j->is_submitted;
        HD_ASSERT(!j->is_submitted || !j->is_ended);
        HD_ASSERT(j->n_ref >= 1 && !j->is_emitting);
        HD_ASSERT(j->ev.n_generated <= j->n_new_max);
    }
    HD_ASSERT(l->emit_first == NULL && n_alive <= hd_inbox_n_live(l->inbox));
    hd_sched_stats s;
    hd_sched_get_stats(l->sched, &s);
    HD_ASSERT(s.n_running + s.n_waiting == n_submitted);
}
