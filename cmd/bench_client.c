/* The client of `hadal bench serve`: libevent's HTTP, one connection a request, one thread. */
#include "base/clock.h"
#include "base/sse.h"
#include "cmd/bench_load.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <jansson.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/resource.h>

enum { head_bytes_max = 1 << 16, event_bytes_max = 1 << 20, ask_seconds = 60 };
enum { body_bytes_max = 1 << 28, path_max = 256, gap_max = 1 << 20, send_burst_max = 16 };

struct client;

/* A request on its way. */
struct call {
    TAILQ_ENTRY(call) link;
    struct client *c;
    hd_load_result *result;
    double arrival_s;
    struct evhttp_connection *conn;
    struct event *limit;
    hd_sse sse;
    float *gap; /* seconds between events with tokens */
    int n_gap, gap_room;
    double first_s, last_s;
    bool is_over, has_end, has_usage;
    enum hd_load_outcome fault; /* what the stream turned out to be, or UNSENT */
};
TAILQ_HEAD(call_list, call);

struct client {
    hd_load_run *r;
    struct event_base *base;
    char address[64], host[300], path[path_max]; /* numeric; for the Host field; before /v1 */
    uint16_t port;
    struct event *next_event, *reap_event, *interrupt_event;
    struct call_list open, over; /* over: to be freed outside of libevent's callbacks */
    int n_sent, n_open, n_over;
    int64_t start_ns;
};

static double elapsed_s(const struct client *c) {
    return (double)(hd_now_ns() - c->start_ns) * 1e-9;
}

static struct timeval to_timeval(double seconds) {
    double s = seconds > 0 ? seconds : 0;
    return (struct timeval){(time_t)s, (suseconds_t)((s - floor(s)) * 1e6)};
}

/* ---- where ---- */

static hd_status resolve(struct client *c, const char *host, const char *url) {
    size_t n = strlen(host);
    char name[256];
    bool is_bracketed = n > 2 && host[0] == '[';
    snprintf(name, sizeof name, "%.*s", (int)(is_bracketed ? n - 2 : n), host + is_bracketed);
    struct addrinfo hint = {.ai_socktype = SOCK_STREAM}, *found;
    int e = getaddrinfo(name, NULL, &hint, &found);
    if (e != 0)
        return HD_FAIL(INVALID, "--base-url %s: %s", hd_show(hd_str_of(url)), gai_strerror(e));
    e = getnameinfo(found->ai_addr, found->ai_addrlen, c->address, sizeof c->address, NULL, 0,
                    NI_NUMERICHOST);
    freeaddrinfo(found);
    if (e != 0)
        return HD_FAIL(INVALID, "--base-url %s: %s", hd_show(hd_str_of(url)), gai_strerror(e));
    snprintf(c->host, sizeof c->host, "%s:%d", host, c->port);
    return HD_OK;
}

/* The path before /v1, which the URL may name or leave out. */
static hd_status take_url(struct client *c, const char *url) {
    struct evhttp_uri *u = evhttp_uri_parse(url);
    const char *scheme = u ? evhttp_uri_get_scheme(u) : NULL;
    const char *host = u ? evhttp_uri_get_host(u) : NULL;
    hd_status s = HD_OK;
    if (!scheme || strcmp(scheme, "http") != 0 || !host || !*host || strlen(host) > 255 ||
        strlen(evhttp_uri_get_path(u)) + 32 > path_max) {
        s = HD_FAIL(INVALID, "--base-url: expected http://HOST:PORT, found \"%s\"",
                    hd_show(hd_str_of(url)));
    } else {
        int port = evhttp_uri_get_port(u);
        c->port = (uint16_t)(port > 0 ? port : 80);
        snprintf(c->path, sizeof c->path, "%s", evhttp_uri_get_path(u));
        size_t n = strlen(c->path);
        while (n > 0 && c->path[n - 1] == '/') c->path[--n] = 0;
        if (n >= 3 && strcmp(c->path + n - 3, "/v1") == 0) c->path[n - 3] = 0;
        s = resolve(c, host, url);
    }
    if (u) evhttp_uri_free(u);
    return s;
}

static struct evhttp_connection *connect_to(struct client *c, double timeout_s) {
    struct evhttp_connection *conn = evhttp_connection_base_new(c->base, NULL, c->address, c->port);
    HD_ASSERT(conn);
    struct timeval tv = to_timeval(timeout_s);
    evhttp_connection_set_timeout_tv(conn, &tv);
    evhttp_connection_set_max_headers_size(conn, head_bytes_max);
    evhttp_connection_set_max_body_size(conn, body_bytes_max);
    return conn;
}

/* Sends body (NULL: a GET); takes req. False: there is no connection. */
static bool send_request(struct client *c, struct evhttp_connection *conn,
                         struct evhttp_request *req, const char *name, const hd_buf *body) {
    struct evkeyvalq *head = evhttp_request_get_output_headers(req);
    const hd_opt_list *key = &c->r->o->api_key;
    char path[path_max];
    snprintf(path, sizeof path, "%.200s/v1/%s", c->path, name);
    evhttp_add_header(head, "Host", c->host);
    evhttp_add_header(head, "Connection", "close");
    if (key->n > 0) {
        char value[4200];
        snprintf(value, sizeof value, "Bearer %.4096s", key->item[0]);
        evhttp_add_header(head, "Authorization", value);
    }
    if (body) {
        evhttp_add_header(head, "Content-Type", "application/json");
        evbuffer_add(evhttp_request_get_output_buffer(req), body->ptr, body->len);
    }
    if (evhttp_make_request(conn, req, body ? EVHTTP_REQ_POST : EVHTTP_REQ_GET, path) != 0)
        return false;
    int one = 1, fd = bufferevent_getfd(evhttp_connection_get_bufferevent(conn));
    return fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0;
}

/* ---- one answer, before the load ---- */

struct answer {
    struct client *c;
    int status; /* 0: none */
    hd_buf body;
};

static void on_answer(struct evhttp_request *req, void *user) {
    struct answer *a = user;
    if (req) {
        struct evbuffer *in = evhttp_request_get_input_buffer(req);
        size_t n = evbuffer_get_length(in);
        a->status = evhttp_request_get_response_code(req);
        if (n > 0) hd_buf_add(&a->body, evbuffer_pullup(in, -1), n);
    }
    event_base_loopbreak(a->c->base);
}

static void ask(struct client *c, const char *name, const hd_buf *body, struct answer *out) {
    out->c = c;
    out->status = 0;
    hd_buf_clear(&out->body);
    struct evhttp_connection *conn = connect_to(c, ask_seconds);
    struct evhttp_request *req = evhttp_request_new(on_answer, out);
    HD_ASSERT(req);
    if (send_request(c, conn, req, name, body)) event_base_dispatch(c->base);
    evhttp_connection_free(conn);
}

/* The model that --model names, or the server's first where it is left at its default. */
static void choose_model(struct client *c, const struct answer *a) {
    const char *asked = c->r->o->model, *first = NULL;
    json_t *root =
        a->status == 200 && a->body.len > 0 ? json_loadb(a->body.ptr, a->body.len, 0, NULL) : NULL;
    const json_t *list = json_object_get(root, "data");
    bool is_listed = false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *id = json_string_value(json_object_get(json_array_get(list, i), "id"));
        if (id && !first) first = id;
        if (id && strcmp(id, asked) == 0) is_listed = true;
    }
    bool is_default = strcmp(asked, "mini") == 0;
    snprintf(c->r->model, sizeof c->r->model, "%s",
             first && is_default && !is_listed ? first : asked);
    json_decref(root);
}

/* A prompt as JSON: a list of token ids, or text of about as many tokens. */
static void write_prompt(const hd_trace_item *item, bool is_text, hd_json *j) {
    static const char *const word[] = {" one", " day", " the", " man", " saw", " two",
                                       " new", " red", " and", " old", " big", " sea",
                                       " sun", " was", " not", " all"};
    int32_t *token = hd_alloc_zero((size_t)item->n_prompt, sizeof *token);
    hd_buf text;
    hd_buf_init(&text, (size_t)HD_TRACE_TOKEN_MAX * 4);
    hd_trace_prompt(item, token);
    if (!is_text) hd_json_array(j);
    for (int i = 0; i < item->n_prompt; i++) {
        if (is_text)
            hd_buf_add_c(&text, word[(size_t)token[i] % HD_COUNT_OF(word)]);
        else
            hd_json_int(j, token[i]);
    }
    if (is_text)
        hd_json_str(j, text.ptr, text.len);
    else
        hd_json_array_end(j);
    hd_buf_fini(&text);
    hd_free(token);
}

static void write_body(const struct client *c, const hd_trace_item *item, hd_buf *out) {
    hd_json j = hd_json_begin(out);
    hd_json_object(&j);
    hd_json_key(&j, "model");
    hd_json_str_c(&j, c->r->model);
    hd_json_key(&j, "prompt");
    write_prompt(item, c->r->is_text, &j);
    hd_json_key(&j, "max_tokens");
    hd_json_int(&j, item->n_output);
    if (*item->service) {
        hd_json_key(&j, "service_tier");
        hd_json_str_c(&j, item->service);
    }
    static const char rest[] = ",\"ignore_eos\":true,\"temperature\":0,\"stream\":true,"
                               "\"stream_options\":{\"include_usage\":true}";
    hd_buf_add_c(out, rest);
    /* So that tokens without text make events, too, as all of a model without a tokenizer do. */
    hd_buf_add_c(out, c->r->is_text ? "}" : ",\"return_token_ids\":true}");
}

/* One token for a prompt that is not of the load: tells whether there is a server, and whether it
 * takes ids. */
static hd_status try_server(struct client *c) {
    static const hd_trace_item first = {.n_prompt = 4, .n_output = 1, .service = ""};
    struct answer a = {0};
    hd_buf body;
    hd_buf_init(&a.body, 1 << 20);
    hd_buf_init(&body, body_bytes_max);
    ask(c, "models", NULL, &a);
    choose_model(c, &a);
    for (int i = 0; i < 2; i++) {
        c->r->is_text = i == 1;
        hd_buf_clear(&body);
        write_body(c, &first, &body);
        ask(c, "completions", &body, &a);
        if (a.status != 400 && a.status != 422) break; /* not for the prompt's form */
    }
    hd_status s = HD_OK;
    bool is_rejected = a.status == 429 || a.status == 503; /* is there, and busy */
    if (a.status == 0)
        s = HD_FAIL(UNAVAILABLE, "%s: no answer to a first request", c->r->o->load_url);
    else if (a.status != 200 && !is_rejected)
        s = HD_FAIL(UNAVAILABLE, "%s: expected 200 for a first request, found %d: %s",
                    c->r->o->load_url, a.status, hd_show(hd_buf_str(&a.body)));
    hd_buf_fini(&body);
    hd_buf_fini(&a.body);
    return s;
}

/* ---- one request of the load ---- */

static void send_due(struct client *c);

/* Counts what came; the call's memory goes once libevent has returned. */
static void finish(struct call *call, enum hd_load_outcome outcome) {
    struct client *c = call->c;
    hd_load_result *r = call->result;
    if (call->is_over) return;
    call->is_over = true;
    r->outcome = call->fault != HD_LOAD_UNSENT ? call->fault : outcome;
    r->latency_s = elapsed_s(c) - call->arrival_s;
    r->answer_s = r->latency_s - r->late_s;
    if (!call->has_usage) r->n_output = r->n_event;
    if (r->n_event > 0) r->ttft_s = call->first_s - call->arrival_s;
    if (r->n_event > 1 && r->n_output > 1) {
        r->tpot_s = (call->last_s - call->first_s) / (r->n_output - 1);
        /* An event brings several tokens at times: usage tells how many in the mean. */
        double tokens = (double)(r->n_output - 1) / (r->n_event - 1);
        for (int i = 0; r->outcome == HD_LOAD_OK && i < call->n_gap; i++)
            hd_load_histogram_add(&c->r->gap, call->gap[i] / tokens, tokens);
    }
    TAILQ_REMOVE(&c->open, call, link);
    TAILQ_INSERT_TAIL(&c->over, call, link);
    c->n_open--;
    c->n_over++;
    c->r->seconds = elapsed_s(c);
    event_active(c->reap_event, EV_TIMEOUT, 0);
}

static void free_call(struct call *call) {
    evhttp_connection_free(call->conn);
    event_free(call->limit);
    hd_sse_fini(&call->sse);
    hd_free(call->gap);
    hd_free(call);
}

static void on_reap(evutil_socket_t fd, short what, void *user) {
    (void)fd, (void)what;
    struct client *c = user;
    for (struct call *call; (call = TAILQ_FIRST(&c->over));) {
        TAILQ_REMOVE(&c->over, call, link);
        free_call(call);
    }
    hd_progress(NULL, "requests", (double)c->n_over / c->r->trace->n);
    if (c->n_over == c->r->trace->n)
        event_base_loopbreak(c->base);
    else
        send_due(c); /* those that --max-concurrency held back */
}

static void take_tokens(struct call *call) {
    double now_s = elapsed_s(call->c);
    if (call->result->n_event++ == 0) {
        call->first_s = now_s;
    } else if (call->n_gap < gap_max) {
        if (call->n_gap == call->gap_room) {
            call->gap_room = call->gap_room ? 2 * call->gap_room : 64;
            call->gap = hd_realloc(call->gap, (size_t)call->gap_room * sizeof *call->gap);
        }
        call->gap[call->n_gap++] = (float)(now_s - call->last_s);
    }
    call->last_s = now_s;
}

static int count_of(const json_t *usage, const char *key) {
    json_int_t v = json_integer_value(json_object_get(usage, key));
    return v < 0 ? 0 : v > HD_TRACE_TOKEN_MAX ? HD_TRACE_TOKEN_MAX : (int)v;
}

/* An event of the stream: tokens, usage, an error, or the end. */
static void on_data(void *user, hd_str data) {
    struct call *call = user;
    if (call->fault != HD_LOAD_UNSENT || call->has_end) return;
    if (hd_str_eq_c(data, "[DONE]")) {
        call->has_end = true;
        return;
    }
    json_t *root = json_loadb(data.ptr, data.len, JSON_ALLOW_NUL, NULL);
    const json_t *choice = json_array_get(json_object_get(root, "choices"), 0);
    const json_t *usage = json_object_get(root, "usage");
    const char *text = json_string_value(json_object_get(choice, "text"));
    if (!json_is_object(root))
        call->fault = HD_LOAD_MALFORMED;
    else if (json_object_get(root, "error"))
        call->fault = HD_LOAD_EVENT;
    if (choice && ((text && *text) || json_is_null(json_object_get(choice, "finish_reason"))))
        take_tokens(call);
    if (json_is_object(usage)) {
        call->has_usage = true;
        call->result->n_input = count_of(usage, "prompt_tokens");
        call->result->n_output = count_of(usage, "completion_tokens");
    }
    json_decref(root);
}

/* A response's head has come. */
static int on_head(struct evhttp_request *req, void *user) {
    struct call *call = user;
    call->result->status = evhttp_request_get_response_code(req);
    return 0;
}

static void on_bytes(struct evhttp_request *req, void *user) {
    struct call *call = user;
    struct evbuffer *in = evhttp_request_get_input_buffer(req);
    size_t n = evbuffer_get_length(in);
    if (call->is_over || call->result->status != 200 || n == 0) return;
    hd_str bytes = {(const char *)evbuffer_pullup(in, -1), n};
    if (hd_sse_feed(&call->sse, bytes, on_data, call) != HD_OK) call->fault = HD_LOAD_MALFORMED;
    if (call->fault != HD_LOAD_UNSENT) finish(call, call->fault);
    if (call->has_end) finish(call, HD_LOAD_OK);
}

static enum hd_load_outcome outcome_of(int status, int n_event) {
    if (status == 0) return HD_LOAD_CONNECTION;
    if (status == 429 || status == 503) return HD_LOAD_REJECTED;
    if (status != 200) return HD_LOAD_STATUS;
    return n_event > 0 ? HD_LOAD_CUT : HD_LOAD_MALFORMED; /* no [DONE] came */
}

static void on_end(struct evhttp_request *req, void *user) {
    struct call *call = user;
    if (call->is_over) return;
    (void)req;
    finish(call, outcome_of(call->result->status, call->result->n_event));
}

/* on_end follows with no request. */
static void on_error(enum evhttp_request_error e, void *user) {
    struct call *call = user;
    if (call->is_over) return;
    if (e == EVREQ_HTTP_TIMEOUT)
        call->fault = HD_LOAD_TIMEOUT;
    else if (e == EVREQ_HTTP_INVALID_HEADER || e == EVREQ_HTTP_DATA_TOO_LONG)
        call->fault = HD_LOAD_MALFORMED;
    else if (call->result->status == 200)
        call->fault = HD_LOAD_CUT;
}

static void on_limit(evutil_socket_t fd, short what, void *user) {
    (void)fd, (void)what;
    finish(user, HD_LOAD_TIMEOUT);
}

static void send_one(struct client *c, int ix) {
    const hd_trace_item *item = &c->r->trace->item[ix];
    double timeout_s = c->r->o->load_timeout;
    struct call *call = hd_alloc_zero(1, sizeof *call);
    struct timeval limit = to_timeval(timeout_s);
    *call = (struct call){.c = c, .result = &c->r->result[ix], .arrival_s = item->arrival_s};
    hd_sse_init(&call->sse, event_bytes_max);
    call->conn = connect_to(c, timeout_s + 1);
    call->limit = evtimer_new(c->base, on_limit, call);
    struct evhttp_request *req = evhttp_request_new(on_end, call);
    HD_ASSERT(call->limit && req);
    evtimer_add(call->limit, &limit);
    evhttp_request_set_header_cb(req, on_head);
    evhttp_request_set_chunked_cb(req, on_bytes);
    evhttp_request_set_error_cb(req, on_error);
    TAILQ_INSERT_TAIL(&c->open, call, link);
    c->n_open++;
    call->result->outcome = HD_LOAD_UNFINISHED;
    hd_buf body;
    hd_buf_init(&body, body_bytes_max);
    write_body(c, item, &body);
    call->result->late_s = elapsed_s(c) - item->arrival_s;
    if (!send_request(c, call->conn, req, "completions", &body)) finish(call, HD_LOAD_CONNECTION);
    hd_buf_fini(&body);
}

/* Sends what is due and sets the clock for what comes next; after a handful it lets answers in. */
static void send_due(struct client *c) {
    const hd_trace *p = c->r->trace;
    int room = c->r->o->load_max_concurrency;
    for (int n = 0; c->n_sent < p->n && (room == 0 || c->n_open < room); n++) {
        double wait_s = p->item[c->n_sent].arrival_s - elapsed_s(c);
        if (wait_s > 0 || n == send_burst_max) {
            struct timeval tv = to_timeval(wait_s);
            evtimer_add(c->next_event, &tv);
            return;
        }
        send_one(c, c->n_sent++);
    }
}

static void on_next(evutil_socket_t fd, short what, void *user) {
    (void)fd, (void)what;
    send_due(user);
}

static void on_interrupt(evutil_socket_t fd, short what, void *user) {
    (void)fd, (void)what;
    struct client *c = user;
    c->r->is_interrupted = true;
    c->r->seconds = elapsed_s(c);
    event_base_loopbreak(c->base);
}

/* ---- the run ---- */

static void open_client(struct client *c, hd_load_run *r) {
    struct event_config *config = event_config_new();
    HD_ASSERT(config);
    event_config_set_flag(config, EVENT_BASE_FLAG_PRECISE_TIMER);
    *c = (struct client){.r = r, .base = event_base_new_with_config(config)};
    event_config_free(config);
    HD_ASSERT(c->base);
    TAILQ_INIT(&c->open);
    TAILQ_INIT(&c->over);
    c->next_event = evtimer_new(c->base, on_next, c);
    c->reap_event = event_new(c->base, -1, 0, on_reap, c);
    c->interrupt_event = evsignal_new(c->base, SIGINT, on_interrupt, c);
    HD_ASSERT(c->next_event && c->reap_event && c->interrupt_event);
    signal(SIGPIPE, SIG_IGN);
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
        files.rlim_cur = files.rlim_max; /* a socket a request */
        if (setrlimit(RLIMIT_NOFILE, &files) != 0) return;
    }
}

static void close_client(struct client *c) {
    for (struct call *call; (call = TAILQ_FIRST(&c->open));) {
        TAILQ_REMOVE(&c->open, call, link);
        free_call(call);
    }
    for (struct call *call; (call = TAILQ_FIRST(&c->over));) {
        TAILQ_REMOVE(&c->over, call, link);
        free_call(call);
    }
    event_free(c->next_event);
    event_free(c->reap_event);
    event_free(c->interrupt_event);
    event_base_free(c->base);
}

hd_status hd_load_send(hd_load_run *r) {
    struct client c;
    open_client(&c, r);
    hd_status s = take_url(&c, r->o->load_url);
    if (s == HD_OK) s = try_server(&c);
    if (s == HD_OK) {
        event_add(c.interrupt_event, NULL);
        c.start_ns = hd_now_ns();
        send_due(&c);
        event_base_dispatch(c.base);
        hd_progress(NULL, "requests", 1);
    }
    close_client(&c);
    return s;
}
