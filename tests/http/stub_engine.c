/* A stand-in for the engine behind hadal.h, for tests of the server alone: it decides nothing by
 * itself. A test reads what was submitted and says what happens next, so that every state a request
 * can be in (queued, silent, streaming, failed) is reached on purpose.
 *
 * Tokens 0..255 are bytes; 256 begins, 257 ends, 258 and 259 are <think> and </think>; 260 begins a
 * tool call, 261 ends its name, 262 ends it; 263 and 264 mark and close a hole. A stop string is
 * one byte. Included in the source of one test program; the linker takes its definitions instead of
 * the library's. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "hadal.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    STUB_BOS = 256,
    STUB_EOS,
    STUB_THINK,
    STUB_END_THINK,
    STUB_CALL,
    STUB_SEP,
    STUB_END_CALL,
    STUB_HOLE,
    STUB_END_FIM,
    STUB_VOCAB = 300,
    STUB_MAX = 4096
};

typedef struct stub_request {
    uint64_t id;
    hd_event_fn on_event;
    void *user;
    int32_t prompt[64];
    int n_prompt, n_generated, max_tokens, min_tokens, n_stop, priority;
    hd_sampling sampling;
    uint64_t cache_salt, tenant;
    enum hd_service service;
    int64_t deadline_ns;
    bool is_open, must_cancel, must_stop, refused; /* refused: on_event said no */
    bool is_telling;                               /* an event is being told, by whichever thread */
} stub_request;

struct hd_engine {
    pthread_mutex_t mu;
    pthread_cond_t changed;
    pthread_t thread;
    bool is_closing;
    stub_request r[STUB_MAX];
    int n, n_open, n_cancelled, n_stopped;
    int echo_tokens;   /* > 0: each request is answered at once with that many 'x' */
    bool is_full;      /* nothing of class standard or later is admitted */
    int n_asked;       /* calls of hd_engine_admits */
    int busy_after;    /* submissions that are taken before HD_E_BUSY; -1: all */
    int64_t submit_ns; /* how long a submission takes */
    float temperature; /* the model's suggestion */
    hd_engine_info info;
    hd_engine_stats stats;
};

static void stub_event(hd_engine *e, stub_request *r, hd_event ev) {
    ev.id = r->id;
    ev.n_prompt = r->n_prompt;
    ev.n_hit = r->n_prompt / 2;
    ev.stop_token = -1;
    if (ev.token >= 0) r->n_generated++;
    ev.n_generated = r->n_generated;
    ev.submitted_ns = ev.first_token_ns = ev.now_ns = hd_now_ns();
    bool is_last = ev.finish != HD_FINISH_NONE;
    r->is_telling = true;
    pthread_mutex_unlock(&e->mu);
    bool ok = r->on_event(r->user, &ev);
    pthread_mutex_lock(&e->mu);
    r->is_telling = false;
    if (!ok && !is_last) r->must_cancel = r->refused = true;
    if (is_last) {
        r->is_open = false;
        e->n_open--;
    }
    pthread_cond_broadcast(&e->changed);
}

/* The engine's thread: ends what was cancelled, answers what is to be answered at once. */
static void *stub_run(void *arg) {
    hd_engine *e = arg;
    pthread_mutex_lock(&e->mu);
    while (!e->is_closing || e->n_open > 0) {
        bool did = false;
        for (int i = 0; i < e->n; i++) {
            stub_request *r = &e->r[i];
            if (!r->is_open || r->is_telling) continue;
            if (r->must_stop) {
                e->n_stopped++;
                did = true;
                stub_event(e, r, (hd_event){.token = -1, .stop_ix = -1, .finish = HD_FINISH_STOP});
            } else if (r->must_cancel || e->is_closing) {
                e->n_cancelled++;
                did = true;
                stub_event(e, r, (hd_event){.token = -1, .finish = HD_FINISH_CANCELLED});
            } else if (e->echo_tokens > 0) {
                did = true;
                int left = e->echo_tokens - r->n_generated;
                stub_event(e, r,
                           (hd_event){.token = 'x',
                                      .stop_ix = -1,
                                      .finish = left == 1 ? HD_FINISH_LENGTH : HD_FINISH_NONE});
            }
        }
        if (!did && !(e->is_closing && e->n_open == 0)) pthread_cond_wait(&e->changed, &e->mu);
    }
    pthread_mutex_unlock(&e->mu);
    return NULL;
}

static hd_engine *stub_open(void) {
    hd_engine *e = hd_alloc_zero(1, sizeof *e);
    pthread_mutex_init(&e->mu, NULL);
    pthread_cond_init(&e->changed, NULL);
    e->busy_after = -1;
    e->temperature = 1;
    e->info = (hd_engine_info){.model_name = "stub",
                               .arch = "stub",
                               .backend = "stub",
                               .device = "stub",
                               .model_hash = "0123456789abcdef0123456789abcdef",
                               .max_model_len = 64,
                               .n_vocab = STUB_VOCAB,
                               .chat_encoding = "stub",
                               .can_think = true,
                               .can_call_tools = true,
                               .has_fim = true,
                               .bos = STUB_BOS,
                               .eos = STUB_EOS};
    pthread_create(&e->thread, NULL, stub_run, e);
    return e;
}

void hd_engine_close(hd_engine *e) {
    if (!e) return;
    pthread_mutex_lock(&e->mu);
    e->is_closing = true;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->mu);
    pthread_join(e->thread, NULL);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->mu);
    hd_free(e);
}

/* ---- what a test does ---- */

/* Waits up to 5 s until `count` of the engine is as wanted; returns what it is then. */
static inline int stub_await(hd_engine *e, const int *count, int wanted) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 5;
    pthread_mutex_lock(&e->mu);
    while (*count != wanted)
        if (pthread_cond_timedwait(&e->changed, &e->mu, &until) != 0) break;
    int found = *count;
    pthread_mutex_unlock(&e->mu);
    return found;
}

static inline int stub_count(hd_engine *e, const int *count) {
    pthread_mutex_lock(&e->mu);
    int n = *count;
    pthread_mutex_unlock(&e->mu);
    return n;
}

/* The ix-th request ever submitted gets an event. */
static void stub_say(hd_engine *e, int ix, hd_event ev) {
    pthread_mutex_lock(&e->mu);
    while (e->r[ix].is_telling) pthread_cond_wait(&e->changed, &e->mu);
    if (e->r[ix].is_open) stub_event(e, &e->r[ix], ev);
    pthread_mutex_unlock(&e->mu);
}

static inline void stub_text(hd_engine *e, int ix, const char *text) {
    for (; *text; text++)
        stub_say(e, ix, (hd_event){.token = (unsigned char)*text, .logprob = -0.5f, .stop_ix = -1});
}

static inline void stub_finish(hd_engine *e, int ix, enum hd_finish why) {
    hd_event ev = {.token = -1, .stop_ix = -1, .finish = why};
    if (why == HD_FINISH_STOP) {
        ev.token = STUB_EOS;
        ev.is_end_token = true;
    }
    if (why == HD_FINISH_ERROR) {
        ev.status = HD_E_NUMERIC;
        ev.error = "logits of layer 3 are not finite";
    }
    stub_say(e, ix, ev);
}

/* ---- hadal.h ---- */

hd_status hd_engine_open(const hd_engine_config *c, hd_engine **out) {
    (void)c;
    *out = stub_open();
    return HD_OK;
}
const hd_engine_info *hd_engine_get_info(const hd_engine *e) { return &e->info; }
void hd_engine_get_stats(const hd_engine *e, hd_engine_stats *out) {
    hd_engine *m = (hd_engine *)e;
    pthread_mutex_lock(&m->mu);
    *out = m->stats;
    pthread_mutex_unlock(&m->mu);
}
void hd_sampling_init(hd_sampling *s) {
    *s = (hd_sampling){.temperature = 1, .top_p = 1, .repetition_penalty = 1, .n_top_logprob = -1};
}
void hd_engine_sampling_init(const hd_engine *e, hd_sampling *s) {
    hd_sampling_init(s);
    s->temperature = e->temperature;
}
void hd_request_init(hd_request *r) {
    *r = (hd_request){0};
    hd_sampling_init(&r->sampling);
}

hd_status hd_request_submit(hd_engine *e, const hd_request *q, uint64_t *id) {
    pthread_mutex_lock(&e->mu);
    if (e->submit_ns > 0) {
        struct timespec t = {e->submit_ns / 1000000000, e->submit_ns % 1000000000};
        pthread_mutex_unlock(&e->mu);
        nanosleep(&t, NULL);
        pthread_mutex_lock(&e->mu);
    }
    hd_status s = HD_OK;
    if (q->n_prompt >= e->info.max_model_len)
        s = HD_FAIL(CONTEXT, "prompt of %d tokens, context of %d", q->n_prompt,
                    e->info.max_model_len);
    else if (e->busy_after == 0 || e->n == STUB_MAX)
        s = HD_FAIL(BUSY, "1024 requests are waiting");
    if (s == HD_OK) {
        if (e->busy_after > 0) e->busy_after--;
        stub_request *r = &e->r[e->n++];
        *r = (stub_request){.id = (uint64_t)e->n,
                            .on_event = q->on_event,
                            .user = q->user,
                            .n_prompt = q->n_prompt,
                            .max_tokens = q->max_tokens,
                            .min_tokens = q->min_tokens,
                            .n_stop = q->n_stop,
                            .priority = q->priority,
                            .sampling = q->sampling,
                            .cache_salt = q->cache_salt,
                            .tenant = q->tenant,
                            .service = q->service,
                            .deadline_ns = q->deadline_ns,
                            .is_open = true};
        memcpy(r->prompt, q->prompt,
               (size_t)(q->n_prompt < 64 ? q->n_prompt : 64) * sizeof *r->prompt);
        *id = r->id;
        e->n_open++;
        pthread_cond_broadcast(&e->changed);
    }
    pthread_mutex_unlock(&e->mu);
    return s;
}

hd_status hd_engine_admits(const hd_engine *engine, enum hd_service service) {
    hd_engine *e = (hd_engine *)(uintptr_t)engine;
    pthread_mutex_lock(&e->mu);
    bool refuses = e->is_full && service >= HD_SERVICE_STANDARD;
    e->n_asked++;
    pthread_mutex_unlock(&e->mu);
    return refuses ? HD_FAIL(BUSY, "the queue is full") : HD_OK;
}

int hd_engine_retry_s(const hd_engine *e, enum hd_service service) {
    (void)e;
    return 7 + (int)service;
}

void hd_request_cancel(hd_engine *e, uint64_t id) {
    pthread_mutex_lock(&e->mu);
    if (id >= 1 && id <= (uint64_t)e->n && e->r[id - 1].is_open) e->r[id - 1].must_cancel = true;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->mu);
}

void hd_request_stop(hd_engine *e, uint64_t id) {
    pthread_mutex_lock(&e->mu);
    if (id >= 1 && id <= (uint64_t)e->n && e->r[id - 1].is_open) e->r[id - 1].must_stop = true;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->mu);
}

void hd_engine_free_ids(hd_token_list *l) {
    hd_free(l->id);
    *l = (hd_token_list){0};
}

static void stub_add(hd_token_list *l, int32_t id) {
    l->id = hd_realloc(l->id, (l->n + 1) * sizeof *l->id);
    l->id[l->n++] = id;
}

hd_status hd_engine_tokenize(const hd_engine *e, hd_str text, bool match_added, bool add_bos,
                             hd_token_list *out) {
    (void)e;
    (void)match_added;
    *out = (hd_token_list){0};
    if (add_bos) stub_add(out, STUB_BOS);
    for (size_t i = 0; i < text.len; i++) stub_add(out, (unsigned char)text.ptr[i]);
    return HD_OK;
}

hd_str hd_engine_token_bytes(const hd_engine *e, int32_t token) {
    static char bytes[256];
    (void)e;
    for (int i = 0; i < 256 && !bytes[255]; i++) bytes[i] = (char)i;
    if (token == STUB_THINK) return hd_str_of("<think>");
    if (token == STUB_END_THINK) return hd_str_of("</think>");
    return token < 256 ? (hd_str){&bytes[token], 1} : (hd_str){"", 0};
}
bool hd_engine_token_is_special(const hd_engine *e, int32_t token) {
    (void)e;
    return token == STUB_BOS || token == STUB_EOS;
}
void hd_engine_detokenize(const hd_engine *e, const int32_t *id, size_t n, bool keep_special,
                          hd_buf *out) {
    (void)keep_special;
    for (size_t i = 0; i < n; i++) {
        hd_str s = hd_engine_token_bytes(e, id[i]);
        hd_buf_add(out, s.ptr, s.len);
    }
}

static void stub_add_text(const hd_engine *e, hd_token_list *l, hd_str text) {
    hd_token_list one;
    HD_ASSERT(hd_engine_tokenize(e, text, false, false, &one) == HD_OK);
    for (size_t k = 0; k < one.n; k++) stub_add(l, one.id[k]);
    hd_engine_free_ids(&one);
}

static void stub_add_call(const hd_engine *e, hd_token_list *l, const hd_tool_call *c) {
    stub_add(l, STUB_CALL);
    stub_add_text(e, l, c->name);
    stub_add(l, STUB_SEP);
    stub_add_text(e, l, c->arguments);
    stub_add(l, STUB_END_CALL);
}

/* The names of the tools; each message: reasoning, content, calls. */
hd_status hd_engine_chat(const hd_engine *e, const hd_chat_prompt *p, hd_token_list *out,
                         hd_chat_start *start) {
    *out = (hd_token_list){0};
    *start = (hd_chat_start){.in_reasoning = p->thinking};
    stub_add(out, STUB_BOS);
    for (size_t i = 0; i < p->n_tool && p->tool_choice != HD_TOOL_NONE; i++)
        stub_add_text(e, out, p->tool[i].name);
    stub_add_text(e, out, p->schema);
    for (size_t i = 0; i < p->n_message; i++) {
        const hd_message *m = &p->message[i];
        stub_add_text(e, out, m->reasoning);
        stub_add_text(e, out, m->content);
        for (size_t k = 0; k < m->n_call; k++) stub_add_call(e, out, &m->call[k]);
    }
    if (p->n_tool > 0 && p->tool_choice == HD_TOOL_NONE)
        start->banned[start->n_banned++] = STUB_CALL;
    if (p->no_generation_prefix || p->continue_final) return HD_OK;
    stub_add(out, p->thinking ? STUB_THINK : STUB_END_THINK);
    if (p->tool_choice != HD_TOOL_REQUIRED) return HD_OK;
    size_t n = out->n;
    stub_add(out, STUB_CALL);
    stub_add_text(e, out, p->forced_tool);
    if (p->forced_tool.len > 0) stub_add(out, STUB_SEP);
    start->n_forced = out->n - n;
    return HD_OK;
}

hd_status hd_engine_fim(const hd_engine *e, hd_str prefix, hd_str suffix, hd_token_list *out) {
    *out = (hd_token_list){0};
    if (!e->info.has_fim) return HD_FAIL(UNSUPPORTED, "the tokenizer has no token <hole>");
    stub_add(out, STUB_BOS);
    stub_add_text(e, out, prefix);
    stub_add(out, STUB_HOLE);
    stub_add_text(e, out, suffix);
    stub_add(out, STUB_END_FIM);
    return HD_OK;
}

struct hd_text_stream {
    bool in_reasoning, parse_tools, stopped;
    enum { STUB_IN_TEXT, STUB_IN_NAME, STUB_IN_ARGUMENTS } at;
    int max_call, n_call, stop_ix;
    char stop; /* 0: none */
    char tail[8], shown[16], name[64];
    size_t n_tail, n_in, n_name;
    hd_call_delta delta;
};

hd_status hd_text_stream_new(const hd_engine *e, const hd_text_stream_options *o,
                             hd_text_stream **out) {
    (void)e;
    *out = hd_alloc_zero(1, sizeof **out);
    **out = (hd_text_stream){.in_reasoning = o->in_reasoning,
                             .parse_tools = o->parse_tools,
                             .max_call = o->max_call,
                             .stop = o->n_stop > 0 ? o->stop[0].ptr[0] : 0,
                             .stop_ix = -1};
    return HD_OK;
}
void hd_text_stream_free(hd_text_stream *s) { hd_free(s); }

/* The text of one byte more: empty within a character. */
static hd_str stub_decode(hd_text_stream *s, int32_t byte) {
    s->tail[s->n_tail++] = (char)byte;
    s->n_in++;
    if (hd_utf8_is_partial(s->tail, s->n_tail)) return (hd_str){"", 0};
    memcpy(s->shown, s->tail, s->n_tail);
    hd_str text = {s->shown, s->n_tail};
    s->n_tail = 0;
    return text;
}

static void stub_marker(hd_text_stream *s, int32_t token, hd_text_out *o) {
    s->n_in += token == STUB_EOS || token == STUB_BOS ? 0 : 8;
    if (token == STUB_END_THINK) s->in_reasoning = false;
    if (!s->parse_tools) return;
    if (token == STUB_CALL) {
        s->at = STUB_IN_NAME;
        s->n_name = 0;
    } else if (token == STUB_SEP) {
        s->at = STUB_IN_ARGUMENTS;
        s->delta = (hd_call_delta){.index = s->n_call++, .name = {s->name, s->n_name}};
        o->call = &s->delta;
        o->n_call = 1;
    } else if (token == STUB_END_CALL) {
        s->at = STUB_IN_TEXT;
        s->stopped = s->max_call > 0 && s->n_call == s->max_call;
    }
}

hd_text_out hd_text_stream_feed(hd_text_stream *s, int32_t token) {
    hd_text_out o = {.stop_ix = -1};
    if (!s->stopped && token >= 256) stub_marker(s, token, &o);
    if (!s->stopped && token < 256 && s->stop && (char)token == s->stop) {
        s->stopped = true;
        s->stop_ix = 0;
    }
    if (!s->stopped && token < 256) {
        hd_str text = stub_decode(s, token);
        if (s->at == STUB_IN_NAME) {
            memcpy(s->name + s->n_name, text.ptr, text.len);
            s->n_name += text.len;
        } else if (s->at == STUB_IN_ARGUMENTS && text.len > 0) {
            s->delta = (hd_call_delta){.index = s->n_call - 1, .arguments = text};
            o.call = &s->delta;
            o.n_call = 1;
        } else if (s->in_reasoning) {
            o.reasoning = text;
        } else {
            o.content = text;
        }
    }
    o.in_reasoning = s->in_reasoning;
    o.stopped = s->stopped;
    o.stop_ix = s->stop_ix;
    o.n_in = s->n_in;
    o.n_out = s->n_in - s->n_tail;
    return o;
}
static bool stub_was_cut; /* what the last stream that ended was told */

hd_text_out hd_text_stream_end(hd_text_stream *s, bool is_cut) {
    stub_was_cut = is_cut;
    return (hd_text_out){.in_reasoning = s->in_reasoning,
                         .stopped = s->stopped,
                         .stop_ix = s->stop_ix,
                         .n_in = s->n_in,
                         .n_out = s->n_in};
}
