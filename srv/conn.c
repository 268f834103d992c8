/* Connections: reading requests, sending answers, noticing clients that leave. */
#include "srv/conn.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/metric.h"
#include "base/version.h"
#include "srv/core.h"
#include "srv/generation.h"
#include "srv/prep.h"
#include "srv/routes.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum {
    input_bytes_max = 65536,      /* read ahead of what is being worked on */
    swallow_bytes_max = 1 << 20,  /* a refused request's body that is still read */
    body_reserve_max = 1 << 20,   /* of an announced body, before any of it came */
    linger_ms = 2000,             /* for the client to read an answer before a close */
    body_bytes_per_s_min = 16384, /* slower senders run into the read limit */
    probe_ms = 5
};

enum conn_state {
    READING_HEAD,
    READING_BODY,
    BUSY,      /* a call is being worked on */
    STREAMING, /* its answer has begun */
    LINGERING  /* answered; the client may finish reading */
};

struct hd_conn {
    hd_reactor *reactor;
    hd_conn *prev, *next;
    struct bufferevent *bev;
    struct event *probe_event;
    evutil_socket_t fd;
    enum conn_state state;
    int64_t since_ns; /* of the state; of the last byte sent while an answer is under way */
    size_t n_scanned;
    hd_http_chunked chunked;
    int64_t body_left;
    bool is_refused;     /* the body is read, then the reply that is already there is sent */
    bool keep_alive;     /* another request may follow */
    bool is_head_only;   /* HEAD */
    bool is_chunked_out; /* the stream's framing */
    bool has_status;     /* "HTTP/1.1 200 OK" went out as a probe */
    bool is_padded;      /* a whole answer's headers went out, with blank lines before its body */
    bool peer_closed, close_when_sent, is_probed;
    bool is_processing; /* inside process(), which loops by itself */
    hd_call *call;
    char client[64];
};

hd_conn *hd_conn_next(hd_conn *c) { return c->next; }

static void process(hd_conn *c);

static void set_state(hd_conn *c, enum conn_state s) {
    c->state = s;
    c->since_ns = hd_now_ns();
}

/* ---- leaving ---- */

/* Lets go of the call; the work for it is cancelled when it is not done. */
static void abandon_call(hd_conn *c) {
    hd_call *call = c->call;
    if (!call) return;
    c->call = NULL;
    call->conn = NULL;
    pthread_mutex_lock(&call->mu);
    call->is_cancelled = true;
    bool is_prepared = call->is_prepared;
    pthread_mutex_unlock(&call->mu);
    if (is_prepared && call->generation) hd_generation_abandon(call);
    hd_call_finish(call, 0);
    hd_call_unref(call);
}

void hd_conn_drop(hd_conn *c) {
    hd_reactor *r = c->reactor;
    abandon_call(c);
    if (c->prev)
        c->prev->next = c->next;
    else
        r->conn = c->next;
    if (c->next) c->next->prev = c->prev;
    r->n_conn--;
    hd_metric_set(HD_M_HTTP_CONNECTIONS, atomic_fetch_sub(&r->server->n_connection, 1) - 1);
    event_free(c->probe_event);
    bufferevent_free(c->bev); /* closes the socket */
    hd_free(c);
}

/* No further request may follow: the server is going, or the client sends no more. */
static bool is_last_request(const hd_conn *c) {
    bool has_input = evbuffer_get_length(bufferevent_get_input(c->bev)) > 0;
    return c->reactor->server->is_draining || (c->peer_closed && !has_input);
}

static size_t unsent_bytes(const hd_conn *c) {
    return evbuffer_get_length(bufferevent_get_output(c->bev));
}

/* Everything is sent: tell the client, and give it time to read (a close with unread input would
 * reset the connection under the answer). */
static void begin_linger(hd_conn *c) {
    if (c->peer_closed) {
        hd_conn_drop(c);
        return;
    }
    shutdown(c->fd, SHUT_WR);
    set_state(c, LINGERING);
}

/* The answer is handed over; what now? May drop. */
static void after_answer(hd_conn *c) {
    hd_call *call = c->call;
    c->call = NULL;
    call->conn = NULL;
    hd_call_unref(call);
    c->has_status = c->is_probed = c->is_padded = false;
    if (!c->keep_alive || c->reactor->is_stopping || is_last_request(c)) {
        c->close_when_sent = true;
        set_state(c, BUSY);
        if (unsent_bytes(c) == 0) begin_linger(c);
        return;
    }
    c->n_scanned = 0;
    set_state(c, READING_HEAD);
    if (!c->is_processing) process(c);
}

/* ---- sending ---- */

static void put(hd_conn *c, const void *p, size_t n) {
    if (n > 0) evbuffer_add(bufferevent_get_output(c->bev), p, n);
}

static void put_str(hd_conn *c, const char *s) { put(c, s, strlen(s)); }

static void put_f(hd_conn *c, const char *fmt, ...) HD_PRINTF(2, 3);
static void put_f(hd_conn *c, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    evbuffer_add_vprintf(bufferevent_get_output(c->bev), fmt, ap);
    va_end(ap);
}

static void put_status_line(hd_conn *c, int code) {
    if (!c->has_status) put_f(c, "HTTP/1.1 %d %s\r\n", code, hd_http_reason(code));
}

static void put_common_headers(hd_conn *c) {
    const hd_call *call = c->call;
    time_t now = (time_t)(hd_wall_ms() / 1000);
    struct tm tm;
    char date[40];
    gmtime_r(&now, &tm);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    put_f(c, "Date: %s\r\n", date);
    put_str(c, "Server: hadal/" HD_VERSION "\r\nX-Content-Type-Options: nosniff\r\n");
    put_f(c, "X-Request-Id: %s\r\n", call->request_id);
    if (!c->keep_alive)
        put_str(c, "Connection: close\r\n");
    else if (call->head.minor == 0)
        put_str(c, "Connection: keep-alive\r\n");
    const char *origin = c->reactor->server->config.cors_origin;
    if (!origin) return;
    put_f(c, "Access-Control-Allow-Origin: %s\r\n", origin);
    put_str(c, "Access-Control-Expose-Headers: X-Request-Id, Retry-After\r\n");
    if (strcmp(origin, "*") != 0) put_str(c, "Vary: Origin\r\n");
}

/* Starts an answer that ends by itself: what follows goes through hd_conn_stream_send. */
static void begin_pieces(hd_conn *c, const char *headers) {
    c->is_chunked_out = c->call->head.minor == 1;
    if (!c->is_chunked_out || is_last_request(c)) c->keep_alive = false;
    put_status_line(c, 200);
    put_common_headers(c);
    put_str(c, headers);
    if (c->is_chunked_out) put_str(c, "Transfer-Encoding: chunked\r\n");
    put_str(c, "\r\n");
}

void hd_conn_reply(hd_conn *c) {
    hd_call *call = c->call;
    hd_reply *r = &call->reply;
    /* The probe or the blank lines promised otherwise: no answer is better. */
    if ((c->has_status || c->is_padded) && r->code != 200) {
        hd_conn_drop(c);
        return;
    }
    if (c->is_padded) {
        if (hd_conn_stream_send(c, hd_buf_str(&r->body))) hd_conn_stream_end(c);
        return;
    }
    if (is_last_request(c)) c->keep_alive = false;
    size_t n = r->fixed ? r->fixed_bytes : r->body.len;
    put_status_line(c, r->code);
    put_common_headers(c);
    put(c, r->headers.ptr, r->headers.len);
    if (r->content_type) put_f(c, "Content-Type: %s\r\n", r->content_type);
    if (r->code != 204 && r->code != 304) put_f(c, "Content-Length: %zu\r\n", n);
    put_str(c, "\r\n");
    if (!c->is_head_only) put(c, r->fixed ? r->fixed : r->body.ptr, n);
    hd_call_finish(call, r->code);
    after_answer(c);
}

void hd_conn_stream_begin(hd_conn *c) {
    begin_pieces(c, "Content-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
                    "X-Accel-Buffering: no\r\n");
    set_state(c, STREAMING);
}

/* A blank line for a client that waits for a whole answer: JSON begins after any white space. May
 * drop. */
static void pad(hd_conn *c) {
    if (!c->is_padded) begin_pieces(c, "Content-Type: application/json\r\n");
    c->is_padded = true;
    hd_conn_stream_send(c, hd_str_of("\n"));
}

bool hd_conn_stream_send(hd_conn *c, hd_str bytes) {
    if (bytes.len == 0) return true;
    if (c->is_chunked_out) put_f(c, "%zx\r\n", bytes.len);
    put(c, bytes.ptr, bytes.len);
    if (c->is_chunked_out) put_str(c, "\r\n");
    c->since_ns = hd_now_ns();
    if (unsent_bytes(c) <= c->reactor->server->config.output_bytes_max) return true;
    hd_metric_add(HD_M_HTTP_SLOW, 1);
    hd_log(HD_LOG_WARN, "client reads too slowly", "request_id", "s", c->call->request_id, "client",
           "s", c->client, "unsent_bytes", "d", (int64_t)unsent_bytes(c), NULL);
    hd_conn_drop(c);
    return false;
}

void hd_conn_stream_end(hd_conn *c) {
    if (c->is_chunked_out) put_str(c, "0\r\n\r\n");
    hd_call_finish(c->call, 200);
    after_answer(c);
}

/* ---- clients that leave ---- */

/* The kernel's view: TCP_CLOSE when the other side is gone for good, TCP_CLOSE_WAIT when a close
 * has arrived (which a full input buffer may hide from us). */
static int tcp_state(const hd_conn *c) {
    struct tcp_info info;
    socklen_t n = sizeof info;
    return getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &n) == 0 ? info.tcpi_state : TCP_CLOSE;
}

/* Whether the engine works for this connection: a request that was refused while it was prepared
 * has a generation too, but its reply is there already, and is not to be probed with a 200. */
static bool has_generation(const hd_conn *c) {
    if (!c->call || (c->state != BUSY && c->state != STREAMING)) return false;
    pthread_mutex_lock(&c->call->mu);
    bool is_prepared = c->call->is_prepared;
    pthread_mutex_unlock(&c->call->mu);
    return is_prepared && c->call->generation && c->call->reply.code == 0;
}

/* Sends something that means nothing yet, to see whether anybody is there. May drop. */
static void probe(hd_conn *c) {
    static const struct timeval soon = {0, probe_ms * 1000};
    c->is_probed = true;
    if (c->state == STREAMING) {
        if (!hd_conn_stream_send(c, hd_str_of(": keep-alive\n\n"))) return;
    } else if (c->is_padded) {
        if (!hd_conn_stream_send(c, hd_str_of("\n"))) return;
    } else if (!c->has_status) {
        put_status_line(c, 200);
        c->has_status = true;
    }
    event_add(c->probe_event, &soon);
}

void hd_conn_probe(hd_conn *c) {
    if (c->peer_closed && has_generation(c)) probe(c);
}

static void on_probe(evutil_socket_t fd, short what, void *arg) {
    (void)fd;
    (void)what;
    hd_conn *c = arg;
    if (tcp_state(c) == TCP_CLOSE) hd_conn_drop(c);
}

/* The client has closed its sending side, or all of it. May drop. */
static void on_peer_closed(hd_conn *c) {
    if (c->peer_closed) return;
    c->peer_closed = true;
    bool has_call = c->call && (c->state == BUSY || c->state == STREAMING);
    if (!has_call && unsent_bytes(c) == 0) {
        hd_conn_drop(c);
        return;
    }
    if (!has_call) {
        c->close_when_sent = true;
        return;
    }
    hd_conn_probe(c);
}

/* ---- reading ---- */

/* Answers with c->call->reply before the body was read. A small body is read first, so that the
 * connection can go on; else it is closed after the answer. May drop. */
static void refuse(hd_conn *c) {
    const hd_http_head *h = &c->call->head;
    bool is_small =
        !h->is_chunked && !h->expects_continue && h->content_length <= swallow_bytes_max;
    if (is_small && c->body_left > 0) {
        c->is_refused = true;
        return;
    }
    if (c->body_left != 0) c->keep_alive = false;
    hd_conn_reply(c);
}

static hd_buf *extra_headers(hd_call *call) { return &call->reply.headers; }

static void reply_options(hd_call *call, hd_str allow) {
    hd_reply_clear(&call->reply);
    call->reply.code = 204;
    hd_buf_addf(extra_headers(call), "Allow: %.*s\r\n", (int)allow.len, allow.ptr);
    if (!call->server->config.cors_origin) return;
    hd_buf_addf(extra_headers(call), "Access-Control-Allow-Methods: %.*s\r\n", (int)allow.len,
                allow.ptr);
    hd_buf_add_c(extra_headers(call),
                 "Access-Control-Allow-Headers: Authorization, Content-Type, X-Api-Key, "
                 "X-Request-Id\r\nAccess-Control-Max-Age: 86400\r\n");
}

/* What can be said from the head alone. False: the reply is there. */
static bool accept_head(hd_call *call) {
    const hd_http_head *h = &call->head;
    const hd_server *s = call->server;
    hd_buf allow;
    hd_buf_init(&allow, 256);
    call->route = hd_route_find(h->method, h->path, &allow);
    bool is_options = hd_str_eq_c(h->method, "OPTIONS");
    if (is_options && hd_str_eq_c(h->path, "*")) hd_buf_add_c(&allow, "GET, HEAD, POST, OPTIONS");
    if (!call->route && allow.len > 0) {
        if (is_options) {
            reply_options(call, hd_buf_str(&allow));
        } else {
            hd_reply_status(&call->reply, HD_E_METHOD, "this path does not take that method");
            hd_buf_addf(extra_headers(call), "Allow: %s\r\n", allow.ptr);
        }
    } else if (!call->route) {
        hd_reply_status(&call->reply, HD_E_NOT_FOUND, "no such path");
    }
    hd_buf_fini(&allow);
    if (!call->route) return false;
    hd_api_error e;
    if (call->route->needs_key &&
        !hd_auth_allows(&s->config, hd_http_get(h, "authorization"), hd_http_get(h, "x-api-key"))) {
        hd_api_fail(&e, HD_E_AUTH, NULL,
                    "a valid API key is needed: send 'Authorization: Bearer KEY'");
        e.code = "invalid_api_key";
        hd_reply_error(&call->reply, &e);
        return false;
    }
    if (call->route->needs_engine) {
        enum hd_server_state state = hd_server_get_state(s);
        if (state == HD_SERVER_LOADING) {
            hd_reply_loading(&call->reply);
            return false;
        }
        bool is_work = call->route->kind != HD_ROUTE_HERE;
        if (is_work && (state == HD_SERVER_DRAINING || state == HD_SERVER_FAILED)) {
            hd_reply_status(&call->reply, HD_E_UNAVAILABLE,
                            state == HD_SERVER_DRAINING ? "the server is shutting down"
                                                        : "the engine has failed");
            return false;
        }
    }
    if (h->content_length > (int64_t)s->config.body_bytes_max) {
        hd_api_fail(&e, HD_E_TOO_LARGE, NULL, "the body may have at most %zu bytes, found %lld",
                    s->config.body_bytes_max, (long long)h->content_length);
        hd_reply_error(&call->reply, &e);
        return false;
    }
    return true;
}

/* The request is whole: hands it to its handler. May drop. */
static void dispatch(hd_conn *c) {
    hd_call *call = c->call;
    set_state(c, BUSY);
    if (c->is_refused || call->reply.code != 0) {
        hd_conn_reply(c);
        return;
    }
    if (call->route->kind == HD_ROUTE_HERE) {
        call->route->handle(call);
        hd_conn_reply(c);
        return;
    }
    if (call->route->kind == HD_ROUTE_ENGINE && !hd_generation_may_start(call)) {
        hd_conn_reply(c);
        return;
    }
    call->is_active = true;
    hd_server_active(call->server, 1);
    if (hd_prep_add(call->server->prep, call)) return;
    hd_reply_status(&call->reply, HD_E_BUSY, "too many requests are waiting");
    hd_metric_add(HD_M_REJECTED, 1);
    hd_conn_reply(c);
}

/* A request that broke the protocol: answered, then the connection closes. May drop. */
static void fail_protocol(hd_conn *c, int code, const char *why) {
    hd_reply_code(&c->call->reply, code, why);
    c->keep_alive = false;
    c->body_left = 0;
    set_state(c, BUSY);
    hd_conn_reply(c);
}

static void begin_call(hd_conn *c) {
    if (c->call) return;
    c->call = hd_call_new(c->reactor->server, c);
    c->call->reactor = c->reactor;
    snprintf(c->call->client, sizeof c->call->client, "%s", c->client);
    hd_make_id(c->call->request_id);
    c->keep_alive = true;
    c->is_refused = c->is_head_only = false;
    c->body_left = 0;
}

/* Tries to read a head. True: there is one, and the state has moved on. May drop. */
static bool read_head(hd_conn *c) {
    struct evbuffer *in = bufferevent_get_input(c->bev);
    size_t n = evbuffer_get_length(in), n_used = 0;
    if (n == 0) return false;
    if (n > HD_HTTP_HEAD_BYTES_MAX + 4) n = HD_HTTP_HEAD_BYTES_MAX + 4;
    if (!c->call) c->since_ns = hd_now_ns(); /* the limit runs from the first byte */
    begin_call(c);
    hd_call *call = c->call;
    const char *p = (const char *)evbuffer_pullup(in, (ssize_t)n);
    enum hd_http_result r = hd_http_parse_head((hd_str){p, n}, &c->n_scanned, &call->head, &n_used);
    if (r == HD_HTTP_MORE) return false;
    if (r == HD_HTTP_BAD) {
        call->head.n_header = 0; /* its views end with the input */
        call->head.method = call->head.path = call->head.target = (hd_str){"", 0};
        fail_protocol(c, call->head.error_code, call->head.error);
        return true;
    }
    size_t scanned = 0; /* once more on a copy that lives as long as the call */
    const char *copy = hd_arena_strndup(call->arena, p, n_used);
    r = hd_http_parse_head((hd_str){copy, n_used}, &scanned, &call->head, &n_used);
    HD_ASSERT(r == HD_HTTP_DONE);
    evbuffer_drain(in, n_used);
    call->start_ns = hd_now_ns();
    hd_call_set_request_id(call);
    const hd_http_head *h = &call->head;
    c->keep_alive = h->keep_alive;
    c->is_head_only = hd_str_eq_c(h->method, "HEAD");
    c->body_left = h->is_chunked ? -1 : h->content_length > 0 ? h->content_length : 0;
    c->chunked = (hd_http_chunked){0};
    set_state(c, READING_BODY);
    call->body.cap = call->server->config.body_bytes_max;
    if (!accept_head(call)) {
        refuse(c);
        return true;
    }
    if (c->body_left > 0)
        hd_buf_reserve(&call->body,
                       (size_t)(c->body_left < body_reserve_max ? c->body_left : body_reserve_max));
    if (h->expects_continue && c->body_left != 0) put_str(c, "HTTP/1.1 100 Continue\r\n\r\n");
    return true;
}

static void refuse_body(hd_conn *c, hd_status s, const char *why) {
    hd_reply_status(&c->call->reply, s, why);
    c->keep_alive = false;
    c->body_left = 0;
    set_state(c, BUSY);
    hd_conn_reply(c);
}

/* Takes what there is of the body. True: it is whole (or was refused). May drop. */
static bool read_body(hd_conn *c) {
    struct evbuffer *in = bufferevent_get_input(c->bev);
    hd_call *call = c->call;
    while (c->body_left != 0) {
        size_t n = evbuffer_get_contiguous_space(in), n_used;
        if (n == 0) return false;
        hd_str piece = {(const char *)evbuffer_pullup(in, (ssize_t)n), n};
        if (c->body_left > 0) {
            n_used = (int64_t)n < c->body_left ? n : (size_t)c->body_left;
            if (!c->is_refused) hd_buf_add(&call->body, piece.ptr, n_used);
            c->body_left -= (int64_t)n_used;
        } else {
            enum hd_http_result r = hd_http_dechunk(&c->chunked, piece, &n_used, &call->body);
            if (r == HD_HTTP_BAD) {
                fail_protocol(c, 400, "malformed chunked body");
                return true;
            }
            if (r == HD_HTTP_DONE) c->body_left = 0;
        }
        evbuffer_drain(in, n_used);
        if (call->body.overflowed) {
            refuse_body(c, HD_E_TOO_LARGE, "the body is larger than the server takes");
            return true;
        }
        size_t growth = call->body.room - call->body_counted;
        call->body_counted += growth;
        if (!hd_server_body_bytes(call->server, (int64_t)growth)) {
            refuse_body(c, HD_E_UNAVAILABLE, "too many request bodies in memory");
            return true;
        }
    }
    dispatch(c);
    return true;
}

/* Goes on with what is in the input buffer. May drop: then it returns at once. */
static void process(hd_conn *c) {
    hd_reactor *r = c->reactor;
    c->is_processing = true;
    int n_before = r->n_conn;
    for (bool more = true; more;) {
        /* Answers to pipelined requests pile up only as far as they are read. */
        bool is_stuffed = unsent_bytes(c) > input_bytes_max;
        if (c->state == READING_HEAD)
            more = !is_stuffed && read_head(c);
        else if (c->state == READING_BODY)
            more = read_body(c);
        else
            more = false;
        if (r->n_conn != n_before) return; /* dropped itself: nothing else removes it here */
    }
    c->is_processing = false;
    if (c->peer_closed && c->state <= READING_BODY) { /* no more will come */
        if (unsent_bytes(c) > 0)
            c->close_when_sent = true;
        else
            hd_conn_drop(c);
    }
}

/* ---- bufferevent callbacks ---- */

static void on_read(struct bufferevent *bev, void *arg) {
    hd_conn *c = arg;
    if (c->state == LINGERING) {
        struct evbuffer *in = bufferevent_get_input(bev);
        evbuffer_drain(in, evbuffer_get_length(in));
        return;
    }
    process(c);
}

static void on_sent(struct bufferevent *bev, void *arg) {
    (void)bev;
    hd_conn *c = arg;
    if (c->close_when_sent && c->state != LINGERING)
        begin_linger(c);
    else if (c->state == READING_HEAD)
        process(c);
}

static void on_event(struct bufferevent *bev, short what, void *arg) {
    (void)bev;
    hd_conn *c = arg;
    if ((what & BEV_EVENT_EOF) && c->state != LINGERING)
        on_peer_closed(c);
    else if (what & (BEV_EVENT_EOF | BEV_EVENT_ERROR | BEV_EVENT_TIMEOUT))
        hd_conn_drop(c);
}

/* ---- opening, sweeping, stopping ---- */

static void name_client(hd_conn *c) {
    struct sockaddr_storage a = {0};
    socklen_t n = sizeof a;
    char text[INET6_ADDRSTRLEN] = "?";
    int port = 0;
    if (getpeername(c->fd, (struct sockaddr *)&a, &n) == 0 && a.ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)&a;
        inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
        port = ntohs(v4->sin_port);
    } else if (a.ss_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&a;
        inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
        port = ntohs(v6->sin6_port);
    }
    snprintf(c->client, sizeof c->client, "%s:%d", text, port);
}

void hd_conn_open(hd_reactor *r, int fd) {
    const hd_server_config *config = &r->server->config;
    hd_conn *c = hd_alloc_zero(1, sizeof *c);
    c->reactor = r;
    c->fd = fd;
    c->bev = bufferevent_socket_new(r->base, fd, BEV_OPT_CLOSE_ON_FREE);
    c->probe_event = event_new(r->base, -1, 0, on_probe, c);
    HD_ASSERT(c->bev && c->probe_event);
    name_client(c);
    c->next = r->conn;
    if (r->conn) r->conn->prev = c;
    r->conn = c;
    r->n_conn++;
    hd_metric_set(HD_M_HTTP_CONNECTIONS, atomic_fetch_add(&r->server->n_connection, 1) + 1);
    set_state(c, READING_HEAD);
    double s = config->write_timeout_s;
    struct timeval write_limit = {(time_t)s, (suseconds_t)((s - (double)(time_t)s) * 1e6)};
    bufferevent_set_timeouts(c->bev, NULL, &write_limit);
    bufferevent_setwatermark(c->bev, EV_READ, 0, input_bytes_max);
    bufferevent_setcb(c->bev, on_read, on_sent, on_event, c);
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
    if (r->is_stopping) hd_conn_drop(c);
}

void hd_conn_sweep(hd_conn *c, int64_t now_ns) {
    const hd_server_config *config = &c->reactor->server->config;
    double age_s = (double)(now_ns - c->since_ns) / 1e9;
    switch (c->state) {
    case READING_HEAD:
        if (c->call && age_s > config->read_timeout_s)
            fail_protocol(c, 408, "the request took too long to arrive");
        else if (!c->call && age_s > config->idle_timeout_s && unsent_bytes(c) == 0)
            hd_conn_drop(c);
        return;
    case READING_BODY: {
        double expected_s = (double)c->call->body.len / body_bytes_per_s_min;
        if (age_s <= config->read_timeout_s + expected_s) return;
        if (c->call->reply.code != 0) { /* the answer to a refused request is there already */
            c->keep_alive = false;
            set_state(c, BUSY);
            hd_conn_reply(c);
        } else {
            fail_protocol(c, 408, "the request took too long to arrive");
        }
        return;
    }
    case STREAMING:
        if (age_s > config->keep_alive_s) {
            hd_conn_stream_send(c, hd_str_of(": keep-alive\n\n"));
            return; /* it may be gone */
        }
        break;
    case LINGERING:
        if (age_s * 1000 > linger_ms) hd_conn_drop(c);
        return;
    case BUSY:
        if (age_s > config->keep_alive_s && has_generation(c)) {
            pad(c);
            return; /* it may be gone */
        }
        break;
    }
    bool is_blind = evbuffer_get_length(bufferevent_get_input(c->bev)) >= input_bytes_max;
    int state = tcp_state(c);
    if (state == TCP_CLOSE)
        hd_conn_drop(c);
    else if (state == TCP_CLOSE_WAIT && !c->peer_closed && !c->close_when_sent)
        on_peer_closed(c);
    else if (is_blind && !c->is_probed && has_generation(c))
        probe(c); /* a close may be stuck behind what is not read */
}

void hd_conn_stop(hd_conn *c) {
    if (c->call && (c->state == BUSY || c->state == STREAMING)) {
        hd_call *call = c->call;
        pthread_mutex_lock(&call->mu);
        call->is_cancelled = true;
        bool is_prepared = call->is_prepared;
        pthread_mutex_unlock(&call->mu);
        if (!is_prepared) return; /* the pool has it still, and will wake the reactor */
        if (call->generation) {
            hd_generation_fail(call, HD_E_UNAVAILABLE, "the server is shutting down");
            return;
        }
        if (call->reply.code == 0)
            hd_reply_status(&call->reply, HD_E_UNAVAILABLE, "the server is shutting down");
        hd_conn_reply(c);
        return;
    }
    if (unsent_bytes(c) == 0 || c->state == LINGERING)
        hd_conn_drop(c);
    else
        c->close_when_sent = true;
}
