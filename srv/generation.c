/* Generations: preparing and submitting (pool), the outbox (engine thread), attending (reactor). */
#include "srv/generation.h"

#include "base/clock.h"
#include "base/metric.h"
#include "srv/api_write.h"
#include "srv/conn.h"
#include "srv/core.h"
#include "srv/routes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- engine thread ---- */

static void outbox_put(hd_outbox *b, const hd_choice *ch, const hd_event *ev) {
    if (b->n_event == b->event_room) {
        b->event_room = b->event_room ? 2 * b->event_room : 16;
        b->event = hd_realloc(b->event, b->event_room * sizeof *b->event);
    }
    size_t n_top = (size_t)ev->n_top;
    if (b->n_top + n_top > b->top_room) {
        b->top_room = 2 * (b->n_top + n_top);
        b->top = hd_realloc(b->top, b->top_room * sizeof *b->top);
    }
    if (n_top > 0) memcpy(b->top + b->n_top, ev->top, n_top * sizeof *b->top);
    b->n_top += n_top;
    b->event[b->n_event++] = (hd_gen_event){.choice = ch->ix,
                                            .token = ev->token,
                                            .is_end_token = ev->is_end_token,
                                            .logprob = ev->logprob,
                                            .n_top = ev->n_top,
                                            .finish = ev->finish,
                                            .n_hit = ev->n_hit,
                                            .n_generated = ev->n_generated,
                                            .first_token_ns = ev->first_token_ns};
}

static bool on_event(void *user, const hd_event *ev) {
    const hd_choice *ch = user;
    hd_generation *g = ch->generation;
    hd_call *c = g->call;
    bool is_last = ev->finish != HD_FINISH_NONE;
    pthread_mutex_lock(&c->mu);
    bool ok = !c->is_cancelled && g->outbox.n_event < HD_OUTBOX_EVENT_MAX;
    if (ok || is_last) outbox_put(&g->outbox, ch, ev);
    if (!ok && !c->is_cancelled && g->failure == HD_OK) {
        g->failure = HD_E_UNAVAILABLE;
        snprintf(g->failure_text, sizeof g->failure_text, "the client reads too slowly");
    }
    if (is_last && g->failure == HD_OK && !c->is_cancelled &&
        (ev->finish == HD_FINISH_ERROR || ev->finish == HD_FINISH_CANCELLED)) {
        bool is_error = ev->finish == HD_FINISH_ERROR && ev->status != HD_OK;
        g->failure = is_error ? ev->status : HD_E_UNAVAILABLE;
        snprintf(g->failure_text, sizeof g->failure_text, "%s",
                 is_error && ev->error && *ev->error ? ev->error : hd_status_text(g->failure));
    }
    pthread_mutex_unlock(&c->mu);
    hd_reactor_wake(c);
    if (is_last) hd_call_unref(c); /* the choice's own reference */
    return ok;
}

/* ---- pool ---- */

static void name_answer(hd_generation *g) {
    char hex[33];
    hd_make_id(hex);
    bool is_chat = g->request.kind == HD_API_CHAT;
    snprintf(g->id, sizeof g->id, "%s-%s", is_chat ? "chatcmpl" : "cmpl", hex);
    g->created_s = hd_wall_ms() / 1000;
}

/* Which model is meant, and whether its name asks for thinking. */
static hd_status resolve_model(hd_generation *g, hd_api_error *e) {
    hd_api_request *q = &g->request;
    const hd_engine_info *info = hd_engine_get_info(g->engine);
    g->model = q->model.len > 0 ? q->model.ptr : info->model_name;
    if (q->model.len == 0 || hd_str_eq_c(q->model, info->model_name)) return HD_OK;
    const hd_model_alias *alias = hd_model_alias_find(q->model);
    if (!alias) {
        hd_api_fail(e, HD_E_NOT_FOUND, "model", "the model '%.128s' does not exist; there is '%s'",
                    q->model.ptr, info->model_name);
        e->code = "model_not_found";
        return HD_E_NOT_FOUND;
    }
    if (q->thinking == HD_API_THINK_UNSET)
        q->thinking = alias->thinks         ? HD_API_THINK_ON
                      : info->always_thinks ? HD_API_THINK_UNSET
                                            : HD_API_THINK_OFF;
    return HD_OK;
}

static hd_status check_ids(const hd_generation *g, const char *param, const int32_t *id, size_t n,
                           hd_api_error *e) {
    int n_vocab = hd_engine_get_info(g->engine)->n_vocab;
    for (size_t i = 0; i < n; i++)
        if (id[i] >= n_vocab)
            return hd_api_fail(e, HD_E_INVALID, param,
                               "'%s' names token %d; the model has %d tokens", param, id[i],
                               n_vocab);
    return HD_OK;
}

static hd_status check_tokens(const hd_generation *g, hd_api_error *e) {
    const hd_api_request *q = &g->request;
    for (int i = 0; i < q->sampling.n_bias; i++)
        HD_TRY(check_ids(g, "logit_bias", &q->sampling.bias[i].token, 1, e));
    HD_TRY(check_ids(g, "stop_token_ids", q->stop_token, q->n_stop_token, e));
    for (size_t p = 0; p < q->n_prompt; p++)
        HD_TRY(check_ids(g, "prompt", q->prompt[p].id, q->prompt[p].n_id, e));
    return HD_OK;
}

static hd_status render_prompts(hd_generation *g, hd_chat_start *start, hd_api_error *e) {
    const hd_api_request *q = &g->request;
    g->n_prompt = q->kind == HD_API_CHAT ? 1 : q->n_prompt;
    g->prompt = hd_alloc_zero(g->n_prompt, sizeof *g->prompt);
    if (q->kind == HD_API_CHAT) return hd_api_chat_ids(g->engine, q, &g->prompt[0], start, e);
    for (size_t i = 0; i < g->n_prompt; i++) {
        const hd_api_prompt *p = &q->prompt[i];
        if (p->id) continue; /* taken as they are */
        if (q->suffix.len > 0) {
            hd_status s = hd_engine_fim(g->engine, p->text, q->suffix, &g->prompt[i]);
            if (s != HD_OK) return hd_api_fail_last(e, s, "suffix");
            continue;
        }
        hd_status s = hd_engine_tokenize(g->engine, p->text, true, true, &g->prompt[i]);
        if (s != HD_OK) return hd_api_fail_last(e, s, "prompt");
        if (g->prompt[i].n == 0) return hd_api_fail(e, HD_E_INVALID, "prompt", "'prompt' is empty");
    }
    return HD_OK;
}

const int32_t *hd_generation_prompt(const hd_generation *g, size_t ix, size_t *n) {
    bool is_ids = g->request.kind == HD_API_COMPLETION && g->request.prompt[ix].id;
    *n = is_ids ? g->request.prompt[ix].n_id : g->prompt[ix].n;
    return is_ids ? g->request.prompt[ix].id : g->prompt[ix].id;
}

static hd_status fail_context(const hd_generation *g, const char *why, hd_api_error *e) {
    const char *param = g->request.kind == HD_API_CHAT ? "messages" : "prompt";
    hd_api_fail(e, HD_E_CONTEXT, param, "%s", why);
    e->code = "context_length_exceeded";
    return HD_E_CONTEXT;
}

/* Before anything is made for each choice: a body of tools can be large. */
static hd_status check_context(const hd_generation *g, hd_api_error *e) {
    int n_max = hd_engine_get_info(g->engine)->max_model_len;
    for (size_t i = 0; i < g->n_prompt; i++) {
        size_t n;
        char why[128];
        hd_generation_prompt(g, i, &n);
        snprintf(
            why, sizeof why,
            "prompt: %zu tokens, but the context holds %d, prompt and at least one generated token",
            n, n_max);
        if (n >= (size_t)n_max) return fail_context(g, why, e);
    }
    return HD_OK;
}

static hd_status make_choices(hd_generation *g, const hd_chat_start *start, hd_api_error *e) {
    const hd_api_request *q = &g->request;
    g->n_choice = (int)g->n_prompt * q->n;
    g->choice = hd_alloc_zero((size_t)g->n_choice, sizeof *g->choice);
    size_t n_tool = q->tool_choice == HD_TOOL_NONE ? 0 : q->n_tool;
    hd_text_stream_options o = {.in_reasoning = start->in_reasoning,
                                .strip_space = start->strip_space,
                                .n_forced = (int)start->n_forced,
                                .split_reasoning = q->kind == HD_API_CHAT,
                                .keep_special = q->keep_special,
                                .include_stop = q->include_stop,
                                .stop = q->stop,
                                .n_stop = q->n_stop,
                                .min_tokens = q->min_tokens,
                                .parse_tools = n_tool > 0,
                                .tool = q->tool,
                                .n_tool = n_tool,
                                .max_call = q->max_call};
    for (int i = 0; i < g->n_choice; i++) {
        hd_choice *ch = &g->choice[i];
        *ch = (hd_choice){.generation = g, .ix = i, .prompt_ix = i / q->n};
        ch->in_reasoning = start->in_reasoning;
        hd_buf_init(&ch->content, HD_COLLECTED_BYTES_MAX);
        hd_buf_init(&ch->reasoning, HD_COLLECTED_BYTES_MAX);
        hd_buf_init(&ch->ids, HD_COLLECTED_BYTES_MAX);
        for (int k = 0; k < 4; k++) hd_buf_init(&ch->logprobs[k], HD_COLLECTED_BYTES_MAX);
        hd_status s = hd_text_stream_new(g->engine, &o, &ch->text);
        if (s != HD_OK) return hd_api_fail_last(e, s, NULL);
        size_t n;
        const int32_t *id = hd_generation_prompt(g, (size_t)ch->prompt_ix, &n);
        hd_write_forced(ch, id + n - start->n_forced, start->n_forced);
    }
    return HD_OK;
}

/* Of the request's own biases, as many as there may be, the last give way. */
static void ban_tokens(hd_generation *g, const hd_chat_start *start) {
    hd_sampling *s = &g->request.sampling;
    if (start->n_banned == 0) return;
    hd_logit_bias *bias = hd_arena_alloc(g->call->arena, HD_BIAS_MAX * sizeof *bias);
    int n = s->n_bias < HD_BIAS_MAX - start->n_banned ? s->n_bias : HD_BIAS_MAX - start->n_banned;
    if (n > 0) memcpy(bias, s->bias, (size_t)n * sizeof *bias);
    for (int i = 0; i < start->n_banned; i++)
        bias[n++] = (hd_logit_bias){.token = start->banned[i], .bias = -INFINITY};
    s->bias = bias;
    s->n_bias = n;
}

static hd_status submit_one(hd_generation *g, hd_choice *ch) {
    const hd_api_request *q = &g->request;
    hd_request r;
    hd_request_init(&r);
    size_t n;
    r.prompt = hd_generation_prompt(g, (size_t)ch->prompt_ix, &n);
    r.n_prompt = (int)n;
    r.max_tokens = q->max_tokens;
    r.min_tokens = q->min_tokens;
    r.sampling = q->sampling;
    r.sampling.seed += (uint64_t)(ch->ix % q->n); /* n answers that differ, and repeat */
    r.stop = q->stop;
    r.n_stop = q->n_stop;
    r.stop_token = q->stop_token;
    r.n_stop_token = (int)q->n_stop_token;
    r.ignore_eos = q->ignore_eos;
    r.is_chat = q->kind == HD_API_CHAT;
    r.keep_special = q->keep_special;
    r.service = q->service;
    r.priority = q->priority;
    r.tenant = q->tenant;
    r.deadline_ns = g->deadline_ns;
    r.cache_salt = q->cache_salt;
    r.on_event = on_event;
    r.user = ch;
    hd_call_ref(g->call);
    hd_status s = hd_request_submit(g->engine, &r, &ch->id);
    if (s == HD_OK) return HD_OK;
    ch->id = 0;
    hd_call_unref(g->call);
    return s;
}

static hd_status fail_busy(const hd_engine *engine, enum hd_service service, hd_api_error *e) {
    hd_api_fail_last(e, HD_E_BUSY, NULL);
    e->code = "rate_limit_exceeded";
    e->retry_s = hd_engine_retry_s(engine, service);
    return HD_E_BUSY;
}

static hd_status submit_all(hd_generation *g, hd_api_error *e) {
    const hd_api_request *q = &g->request;
    g->n_open = g->n_choice;
    for (int i = 0; i < g->n_choice; i++) {
        hd_status s = submit_one(g, &g->choice[i]);
        if (s == HD_OK) continue;
        if (s == HD_E_CONTEXT) return fail_context(g, hd_error_text(), e);
        return s == HD_E_BUSY ? fail_busy(g->engine, q->service, e) : hd_api_fail_last(e, s, NULL);
    }
    return HD_OK;
}

static void default_sampling(const hd_generation *g, hd_sampling *s) {
    if (g->call->server->config.model_sampling)
        hd_engine_sampling_init(g->engine, s);
    else
        hd_sampling_init(s);
}

/* What DeepSeek's API takes while thinking, and gives no effect. */
static void ignore_sampling(hd_generation *g) {
    static const float top_p_min = 0.95f;
    hd_sampling plain, *s = &g->request.sampling;
    if (!hd_api_thinks(hd_engine_get_info(g->engine), &g->request)) return;
    default_sampling(g, &plain);
    s->temperature = plain.temperature;
    s->presence_penalty = plain.presence_penalty;
    s->frequency_penalty = plain.frequency_penalty;
    if (s->top_p < top_p_min) s->top_p = top_p_min;
}

/* How long the answer is of use, from the arrival of the request. */
static hd_status read_deadline(hd_generation *g, hd_api_error *e) {
    static const char name[] = "x-hadal-deadline-ms";
    enum { MS_MAX = 86400000 };
    hd_str v = hd_http_get(&g->call->head, name);
    if (!v.ptr) return HD_OK;
    int64_t ms = 0;
    for (size_t i = 0; i < v.len && ms <= MS_MAX; i++)
        ms = v.ptr[i] >= '0' && v.ptr[i] <= '9' ? ms * 10 + (v.ptr[i] - '0') : MS_MAX + 1;
    if (ms < 1 || ms > MS_MAX)
        return hd_api_fail(e, HD_E_INVALID, name,
                           "the header '%s' must be a number of milliseconds from 1 to %d, found "
                           "\"%.*s\"",
                           name, MS_MAX, (int)(v.len < 64 ? v.len : 64), v.ptr);
    g->deadline_ns = g->call->start_ns + ms * 1000000;
    return HD_OK;
}

/* Before the prompt is rendered and tokenized, which costs the most. */
static hd_status check_admission(const hd_generation *g, hd_api_error *e) {
    hd_status s = hd_engine_admits(g->engine, g->request.service);
    if (s == HD_OK) return HD_OK;
    return s == HD_E_BUSY ? fail_busy(g->engine, g->request.service, e)
                          : hd_api_fail_last(e, s, NULL);
}

static hd_status prepare(hd_generation *g, enum hd_api_kind kind, hd_api_error *e) {
    hd_call *c = g->call;
    hd_sampling defaults;
    default_sampling(g, &defaults);
    HD_TRY(hd_api_parse(kind, hd_buf_str(&c->body), &defaults, c->arena, &g->request, e));
    hd_buf_fini(&c->body); /* everything needed was copied */
    name_answer(g);
    HD_TRY(read_deadline(g, e));
    HD_TRY(resolve_model(g, e));
    HD_TRY(check_admission(g, e));
    HD_TRY(check_tokens(g, e));
    hd_chat_start answer = {0};
    HD_TRY(render_prompts(g, &answer, e));
    HD_TRY(check_context(g, e));
    HD_TRY(make_choices(g, &answer, e));
    if (c->route->handle == hd_handle_deepseek_chat) ignore_sampling(g);
    if (g->request.echo) hd_write_echo(g);
    ban_tokens(g, &answer);
    return submit_all(g, e);
}

/* On failure c->reply is the error. */
static void start(hd_call *c, enum hd_api_kind kind) {
    hd_generation *g = hd_alloc_zero(1, sizeof *g);
    g->call = c;
    g->engine = atomic_load(&c->server->engine);
    c->generation = g;
    hd_api_error e = {0};
    if (prepare(g, kind, &e) == HD_OK) return;
    hd_reply_error(&c->reply, &e);
    if (g->n_open == 0) hd_metric_add(HD_M_REJECTED, 1); /* the engine counts what it refuses */
    hd_generation_cancel(g); /* choices that were submitted before one was refused */
}

bool hd_generation_may_start(hd_call *c) {
    const hd_engine *engine = atomic_load(&c->server->engine);
    enum hd_service service = hd_api_guess_service(hd_buf_str(&c->body));
    if (hd_engine_admits(engine, service) != HD_E_BUSY) return true;
    hd_api_error e = {0};
    fail_busy(engine, service, &e);
    hd_reply_error(&c->reply, &e);
    hd_metric_add(HD_M_REJECTED, 1);
    return false;
}

void hd_handle_chat(hd_call *c) { start(c, HD_API_CHAT); }
void hd_handle_deepseek_chat(hd_call *c) { start(c, HD_API_CHAT); }
void hd_handle_completion(hd_call *c) { start(c, HD_API_COMPLETION); }

void hd_generation_cancel(hd_generation *g) {
    for (int i = 0; i < g->n_choice; i++)
        if (g->choice[i].id) hd_request_cancel(g->engine, g->choice[i].id);
}

static void outbox_fini(hd_outbox *b) {
    hd_free(b->event);
    hd_free(b->top);
}

void hd_generation_free(hd_generation *g) {
    if (!g) return;
    for (int i = 0; i < g->n_choice; i++) {
        hd_choice *ch = &g->choice[i];
        hd_text_stream_free(ch->text);
        hd_buf_fini(&ch->content);
        hd_buf_fini(&ch->reasoning);
        hd_buf_fini(&ch->ids);
        for (int k = 0; k < 4; k++) hd_buf_fini(&ch->logprobs[k]);
        hd_free(ch->held);
        for (size_t k = 0; k < ch->n_call; k++) {
            hd_buf_fini(&ch->call[k].name);
            hd_buf_fini(&ch->call[k].arguments);
        }
        hd_free(ch->call);
    }
    for (size_t i = 0; i < g->n_prompt && g->prompt; i++) hd_engine_free_ids(&g->prompt[i]);
    hd_free(g->prompt);
    hd_free(g->choice);
    outbox_fini(&g->outbox);
    outbox_fini(&g->reading);
    hd_free(g);
}

/* ---- reactor ---- */

hd_usage hd_generation_usage(const hd_generation *g) {
    hd_usage u = {0};
    for (int i = 0; i < g->n_choice; i++) {
        const hd_choice *ch = &g->choice[i];
        if (i % g->request.n == 0) {
            size_t n;
            hd_generation_prompt(g, (size_t)ch->prompt_ix, &n);
            u.n_prompt += (int64_t)n;
            u.n_hit += ch->n_hit;
        }
        u.n_generated += ch->n_generated;
        u.n_reasoning += ch->n_reasoning;
    }
    return u;
}

/* What the log line says. */
static void note(hd_call *c) {
    const hd_generation *g = c->generation;
    c->model = g->model;
    c->usage = hd_generation_usage(g);
    const char *why = g->n_choice > 0 ? hd_choice_finish(&g->choice[g->n_choice - 1]) : NULL;
    if (why) c->finish = why;
}

void hd_generation_abandon(hd_call *c) {
    if (c->generation->is_over) return;
    note(c);
    hd_generation_cancel(c->generation);
}

/* The answer's last bytes are written: nothing of it is wanted any more. */
static void end_answer(hd_generation *g) {
    g->is_over = true;
    pthread_mutex_lock(&g->call->mu);
    g->call->is_cancelled = true;
    pthread_mutex_unlock(&g->call->mu);
    if (g->n_open > 0) hd_generation_cancel(g);
}

void hd_generation_fail(hd_call *c, hd_status s, const char *message) {
    hd_generation *g = c->generation;
    if (g->is_over) return;
    note(c);
    c->finish = "error";
    hd_api_error e;
    hd_api_fail(&e, s, NULL, "%s", message);
    if (s == HD_E_UNAVAILABLE && c->server->is_draining) e.code = "shutting_down";
    end_answer(g);
    if (!c->conn) return;
    if (!g->has_begun) {
        hd_reply_error(&c->reply, &e);
        hd_conn_reply(c->conn);
        return;
    }
    hd_buf *b = &c->reactor->scratch;
    hd_buf_clear(b);
    hd_buf_add_c(b, "data: ");
    hd_error_json(b, &e);
    hd_buf_add_c(b, "\n\n");
    if (hd_conn_stream_send(c->conn, hd_buf_str(b))) hd_conn_stream_end(c->conn);
}

static void send_last(hd_call *c) {
    hd_generation *g = c->generation;
    note(c);
    end_answer(g);
    if (!g->request.stream) {
        hd_reply_json(&c->reply);
        hd_write_body(g, &c->reply.body);
        hd_conn_reply(c->conn);
        return;
    }
    hd_buf *b = &c->reactor->scratch;
    hd_buf_clear(b);
    if (g->request.include_usage) hd_write_usage_chunk(g, b);
    hd_buf_add_c(b, "data: [DONE]\n\n");
    if (hd_conn_stream_send(c->conn, hd_buf_str(b))) hd_conn_stream_end(c->conn);
}

/* Feeds the events to their choices; SSE chunks go to `out`. */
static void digest(hd_generation *g, hd_buf *out) {
    const hd_top_logprob *top = g->reading.top;
    for (size_t i = 0; i < g->reading.n_event; i++) {
        const hd_gen_event *ev = &g->reading.event[i];
        hd_choice *ch = &g->choice[ev->choice];
        if (g->call->first_token_ns == 0) g->call->first_token_ns = ev->first_token_ns;
        hd_write_event(ch, ev, top);
        top += ev->n_top;
        if (ev->finish != HD_FINISH_NONE)
            g->n_open--;
        else if (ch->is_cut)
            hd_request_stop(g->engine, ch->id); /* the engine would go on */
        if (g->request.stream) hd_write_chunk(ch, hd_choice_finish(ch) != NULL, out);
    }
    g->reading.n_event = g->reading.n_top = 0;
}

static bool has_overflowed(const hd_generation *g) {
    for (int i = 0; i < g->n_choice; i++) {
        const hd_choice *ch = &g->choice[i];
        bool over = ch->content.overflowed || ch->reasoning.overflowed || ch->ids.overflowed;
        for (int k = 0; k < 4; k++) over |= ch->logprobs[k].overflowed;
        if (ch->n_call > 0) over |= ch->call[ch->n_call - 1].arguments.overflowed;
        if (over) return true;
    }
    return false;
}

void hd_generation_attend(hd_call *c) {
    hd_generation *g = c->generation;
    if (!c->conn || g->is_over) return;
    if (c->reply.code != 0) { /* refused by the pool */
        end_answer(g);
        note(c);
        c->finish = "refused";
        hd_conn_reply(c->conn);
        return;
    }
    pthread_mutex_lock(&c->mu);
    hd_outbox empty = g->reading;
    g->reading = g->outbox;
    g->outbox = empty;
    hd_status failure = g->failure;
    pthread_mutex_unlock(&c->mu);
    if (g->request.stream && !g->has_begun && failure == HD_OK) {
        g->has_begun = true;
        hd_conn_stream_begin(c->conn);
    }
    if (!g->is_probed) hd_conn_probe(c->conn);
    g->is_probed = true;
    if (!c->conn) return;
    hd_buf *b = &c->reactor->scratch;
    hd_buf_clear(b);
    digest(g, b);
    if (b->len > 0 && !hd_conn_stream_send(c->conn, hd_buf_str(b))) return;
    if (failure != HD_OK)
        hd_generation_fail(c, failure, g->failure_text);
    else if (has_overflowed(g))
        hd_generation_fail(c, HD_E_TOO_LARGE, "the answer is too large to collect: use 'stream'");
    else if (g->n_open == 0)
        send_last(c);
}
