/* Calls: reference counting, replies, request ids, the line in the log. */
#include "srv/call.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/metric.h"
#include "srv/core.h"
#include "srv/generation.h"
#include "srv/routes.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

hd_call *hd_call_new(hd_server *s, struct hd_conn *conn) {
    hd_call *c = hd_alloc_zero(1, sizeof *c);
    atomic_init(&c->n_ref, 1);
    c->server = s;
    c->conn = conn;
    c->arena = hd_arena_new(4096);
    c->start_ns = hd_now_ns();
    pthread_mutex_init(&c->mu, NULL);
    hd_buf_init(&c->body, 0);
    hd_buf_init(&c->reply.body, SIZE_MAX / 2);
    hd_buf_init(&c->reply.headers, 8192);
    return c;
}

hd_call *hd_call_ref(hd_call *c) {
    atomic_fetch_add_explicit(&c->n_ref, 1, memory_order_relaxed);
    return c;
}

void hd_call_unref(hd_call *c) {
    if (atomic_fetch_sub_explicit(&c->n_ref, 1, memory_order_acq_rel) != 1) return;
    hd_server_body_bytes(c->server, -(int64_t)c->body_counted);
    hd_generation_free(c->generation);
    hd_buf_fini(&c->body);
    hd_buf_fini(&c->reply.body);
    hd_buf_fini(&c->reply.headers);
    hd_arena_free(c->arena);
    pthread_mutex_destroy(&c->mu);
    hd_free(c);
}

static double ms_between(int64_t from, int64_t to) {
    return to > from ? (double)(to - from) / 1e6 : 0;
}

static void count(int code) {
    static const enum hd_metric by_class[] = {HD_M_HTTP_2XX, HD_M_HTTP_2XX, HD_M_HTTP_2XX,
                                              HD_M_HTTP_2XX, HD_M_HTTP_4XX, HD_M_HTTP_5XX};
    hd_metric_add(code == 0 ? HD_M_HTTP_GONE : by_class[code / 100 % 6], 1);
}

void hd_call_finish(hd_call *c, int code) {
    if (c->is_finished) return;
    c->is_finished = true;
    if (c->is_active) hd_server_active(c->server, -1);
    int64_t now = hd_now_ns();
    count(code);
    hd_metric_observe(HD_M_HTTP_TIME, (double)(now - c->start_ns) / 1e9);
    char path[129];
    snprintf(path, sizeof path, "%.*s", (int)(c->head.path.len < 128 ? c->head.path.len : 128),
             c->head.path.len ? c->head.path.ptr : "");
    bool is_probe = c->route && c->route->is_quiet, is_quiet = is_probe && code < 400;
    if ((code == 429 || code == 503) && !is_probe)
        hd_metric_observe(HD_M_REFUSAL_TIME, (double)(now - c->start_ns) / 1e9);
    enum hd_log_level level = is_quiet ? HD_LOG_DEBUG : HD_LOG_INFO;
    if (!c->model) {
        hd_log(level, "request", "request_id", "s", c->request_id, "client", "s", c->client, "path",
               "s", path, "status", "d", (int64_t)code, "total_ms", "f",
               ms_between(c->start_ns, now), NULL);
        return;
    }
    hd_log(level, "request", "request_id", "s", c->request_id, "client", "s", c->client, "path",
           "s", path, "status", "d", (int64_t)code, "model", "s", c->model, "prompt_tokens", "d",
           c->usage.n_prompt, "cached_tokens", "d", c->usage.n_hit, "completion_tokens", "d",
           c->usage.n_generated, "ttft_ms", "f", ms_between(c->start_ns, c->first_token_ns),
           "total_ms", "f", ms_between(c->start_ns, now), "finish", "s",
           code == 0 ? "client_gone" : c->finish, NULL);
}

/* ---- replies ---- */

void hd_reply_clear(hd_reply *r) {
    r->code = 0;
    r->content_type = NULL;
    r->fixed = NULL;
    r->fixed_bytes = 0;
    hd_buf_clear(&r->body);
    hd_buf_clear(&r->headers);
}

hd_json hd_reply_json(hd_reply *r) {
    hd_reply_clear(r);
    r->code = 200;
    r->content_type = "application/json";
    return hd_json_begin(&r->body);
}

static void error_json(hd_buf *b, const char *message, const char *type, const char *param,
                       const char *code) {
    hd_json j = hd_json_begin(b);
    hd_json_object(&j);
    hd_json_key(&j, "error");
    hd_json_object(&j);
    hd_json_key(&j, "message");
    hd_json_str_c(&j, message);
    hd_json_key(&j, "type");
    hd_json_str_c(&j, type);
    hd_json_key(&j, "param");
    hd_json_str_c(&j, param && *param ? param : NULL);
    hd_json_key(&j, "code");
    hd_json_str_c(&j, code);
    hd_json_object_end(&j);
    hd_json_object_end(&j);
}

void hd_error_json(hd_buf *b, const hd_api_error *e) {
    error_json(b, e->message, hd_status_type(e->status), e->param, e->code);
}

void hd_reply_error(hd_reply *r, const hd_api_error *e) {
    hd_reply_clear(r);
    r->code = hd_status_http(e->status);
    r->content_type = "application/json";
    hd_error_json(&r->body, e);
    if (r->code == 429 || r->code == 503)
        hd_buf_addf(&r->headers, "Retry-After: %d\r\n", e->retry_s > 0 ? e->retry_s : 1);
    if (r->code == 501 || r->code == 504)
        hd_buf_add_c(&r->headers, "X-Should-Retry: false\r\n"); /* OpenAI's SDKs */
    if (r->code == 401) hd_buf_add_c(&r->headers, "WWW-Authenticate: Bearer\r\n");
}

void hd_reply_status(hd_reply *r, hd_status s, const char *message) {
    hd_api_error e;
    hd_api_fail(&e, s, NULL, "%s", message ? message : hd_status_text(s));
    hd_reply_error(r, &e);
}

void hd_reply_code(hd_reply *r, int code, const char *message) {
    hd_reply_clear(r);
    r->code = code;
    r->content_type = "application/json";
    error_json(&r->body, message, hd_status_type(HD_E_INVALID), NULL, NULL);
}

void hd_reply_loading(hd_reply *r) {
    hd_json j = hd_reply_json(r);
    r->code = 503;
    hd_json_object(&j);
    hd_json_key(&j, "error");
    hd_json_object(&j);
    hd_json_key(&j, "code");
    hd_json_int(&j, 503);
    hd_json_key(&j, "message");
    hd_json_str_c(&j, "Loading model");
    hd_json_key(&j, "type");
    hd_json_str_c(&j, "unavailable_error");
    hd_json_object_end(&j);
    hd_json_object_end(&j);
    hd_buf_add_c(&r->headers, "Retry-After: 1\r\n");
}

/* ---- ids ---- */

void hd_make_id(char out[33]) {
    unsigned char bytes[16];
    for (size_t got = 0; got < sizeof bytes;) {
        ssize_t n = getrandom(bytes + got, sizeof bytes - got, 0);
        if (n > 0) got += (size_t)n;
    }
    for (int i = 0; i < 16; i++) snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

void hd_call_set_request_id(hd_call *c) {
    hd_str given = hd_http_get(&c->head, "x-request-id");
    bool ok = given.len > 0 && given.len < sizeof c->request_id;
    for (size_t i = 0; ok && i < given.len; i++) {
        char x = given.ptr[i];
        ok = (x >= 'a' && x <= 'z') || (x >= 'A' && x <= 'Z') || (x >= '0' && x <= '9') ||
             x == '-' || x == '_' || x == '.' || x == ':';
    }
    if (ok)
        snprintf(c->request_id, sizeof c->request_id, "%.*s", (int)given.len, given.ptr);
    else
        hd_make_id(c->request_id);
}
