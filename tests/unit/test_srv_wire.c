/* The server over real sockets, in front of a stand-in engine: framing, limits, authorisation,
 * clients that leave in every state, slow clients, drain, errors before and after the headers. */
#include "http/client.h"
#include "http/stub_engine.c"

#include "base/log.h"
#include "base/metric.h"
#include "srv/server.h"

typedef struct world {
    hd_server *server;
    hd_engine *engine;
    hd_server_config config;
    int port;
} world;

static void start(world *w) {
    w->config.port = 0;
    assert_ok(hd_server_open(&w->config, &w->server));
    w->port = hd_server_port(w->server);
    w->engine = stub_open();
    hd_server_set_engine(w->server, w->engine);
}

static int setup(void **state) {
    world *w = hd_alloc_zero(1, sizeof *w);
    hd_server_config_init(&w->config);
    hd_metric_reset_all();
    hd_log_set_level(HD_LOG_OFF);
    *state = w;
    return 0;
}

static int teardown(void **state) {
    world *w = *state;
    if (w->server) hd_server_stop(w->server);
    if (w->server && hd_server_n_active(w->server) != 0) return -1;
    hd_engine_close(w->engine);
    hd_server_free(w->server);
    hd_free(w);
    return 0;
}

#define CHAT "/v1/chat/completions"
#define HELLO "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}"
#define HELLO_STREAM "{\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}"
#define GET(path) "GET " path " HTTP/1.1\r\nHost: t\r\n\r\n"

static void expect(world *w, const char *request, int code, const char *part) {
    answer a = ask(w->port, request);
    if (a.code != code || !a.is_whole || !strstr(text_of(&a), part))
        fail_msg("expected %d with %s, found %d%s: %s", code, part, a.code,
                 a.is_whole ? "" : " (not whole)", text_of(&a));
    drop_answer(&a);
}

/* ---- life ---- */

static void loading_then_ready(void **state) {
    world *w = *state;
    w->config.port = 0;
    assert_ok(hd_server_open(&w->config, &w->server));
    w->port = hd_server_port(w->server);
    answer a = ask(w->port, GET("/health"));
    assert_int_equal(a.code, 503);
    assert_string_equal(
        text_of(&a),
        "{\"error\":{\"code\":503,\"message\":\"Loading model\",\"type\":\"unavailable_error\"}}");
    drop_answer(&a);
    expect(w, GET("/ready"), 503, "Loading model");
    expect(w, GET("/v1/models"), 503, "Loading model");
    expect(w, post_text(CHAT, "", HELLO), 503, "Loading model");
    expect(w, GET("/version"), 200, "\"version\":");
    expect(w, GET("/metrics"), 200, "# TYPE");
    w->engine = stub_open();
    hd_server_set_engine(w->server, w->engine);
    expect(w, GET("/health"), 200, "{\"status\":\"ok\"}");
    expect(w, GET("/v1/health"), 200, "ok");
    expect(w, GET("/ping"), 200, "ok");
    expect(w, GET("/ready"), 200, "ready");
    expect(w, GET("/v1/models"), 200, "\"max_model_len\":64");
    expect(w, GET("/v1/models/stub"), 200, "\"id\":\"stub\"");
    expect(w, GET("/v1/models/stub"), 200,
           "\"can_think\":true,\"always_thinks\":false,\"thinks_by_default\":false,"
           "\"can_call_tools\":true,\"has_response_format\":false,\"has_fim\":true}");
    expect(w, GET("/v1/models/deepseek%2Dchat"), 200, "\"id\":\"deepseek-chat\"");
    expect(w, GET("/v1/models/other"), 404, "model_not_found");
}

static void unhealthy_when_stuck_or_failed(void **state) {
    world *w = *state;
    start(w);
    w->engine->stats.stuck_ns = 4000000000;
    expect(w, GET("/health"), 200, "ok");
    w->engine->stats.stuck_ns = 6000000000;
    expect(w, GET("/health"), 503, "no progress");
    expect(w, GET("/ready"), 503, "no progress");
    w->engine->stats.stuck_ns = 0;
    w->engine->stats.is_failed = true;
    expect(w, GET("/health"), 503, "failed");
    expect(w, post_text(CHAT, "", HELLO), 503, "failed");
}

static void port_in_use_is_said(void **state) {
    world *w = *state;
    start(w);
    hd_server_config c = w->config;
    c.port = w->port;
    hd_server *second = NULL;
    assert_int_equal(hd_server_open(&c, &second), HD_E_IO);
    assert_non_null(strstr(hd_error_text(), "another program has it"));
    assert_null(second);
    c.host = "no.such.host.invalid";
    assert_int_equal(hd_server_open(&c, &second), HD_E_IO);
}

/* ---- framing ---- */

static void split_writes_change_nothing(void **state) {
    world *w = *state;
    start(w);
    w->engine->echo_tokens = 3;
    const char *whole = post_text(CHAT, "", HELLO);
    size_t n = strlen(whole);
    for (size_t cut = 1; cut < n; cut += 1 + n / 40) {
        int fd = dial(w->port);
        hd_buf b;
        hd_buf_init(&b, 1 << 20);
        put_n(fd, whole, cut);
        usleep(3000);
        put_n(fd, whole + cut, n - cut);
        answer a = take_answer(fd, &b, false);
        assert_int_equal(a.code, 200);
        assert_non_null(strstr(text_of(&a), "\"content\":\"xxx\""));
        drop_answer(&a);
        hd_buf_fini(&b);
        close(fd);
    }
    int fd = dial(w->port);
    hd_buf b;
    hd_buf_init(&b, 1 << 20);
    for (size_t i = 0; i < n; i++) put_n(fd, whole + i, 1);
    answer a = take_answer(fd, &b, false);
    assert_int_equal(a.code, 200);
    drop_answer(&a);
    hd_buf_fini(&b);
    close(fd);
}

static void pipelined_requests_are_answered_in_order(void **state) {
    world *w = *state;
    start(w);
    w->engine->echo_tokens = 2;
    char all[4096];
    snprintf(all, sizeof all, "%s%s%s%s", GET("/version"), post_text(CHAT, "", HELLO_STREAM),
             "HEAD /health HTTP/1.1\r\nHost: t\r\n\r\n", GET("/nothing"));
    int fd = dial(w->port);
    hd_buf b;
    hd_buf_init(&b, 1 << 20);
    put(fd, all);
    answer a = take_answer(fd, &b, false);
    assert_non_null(strstr(text_of(&a), "version"));
    drop_answer(&a);
    a = take_answer(fd, &b, false);
    assert_non_null(strstr(text_of(&a), "data: [DONE]\n\n"));
    drop_answer(&a);
    a = take_answer(fd, &b, true);
    assert_int_equal(a.code, 200);
    assert_string_equal(header(&a, "Content-Length"), "15");
    drop_answer(&a);
    a = take_answer(fd, &b, false);
    assert_int_equal(a.code, 404);
    drop_answer(&a);
    assert_int_equal(b.len, 0);
    hd_buf_fini(&b);
    close(fd);
}

static void chunked_bodies(void **state) {
    world *w = *state;
    start(w);
    w->engine->echo_tokens = 1;
    static const char head[] =
        "POST " CHAT " HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
    static const char body[] =
        "A;x=\"y\"\r\n{\"messages\r\n0025\r\n\":[{\"role\":\"user\",\"content\":"
        "\"hi\"}]}  \r\n0\r\nTrailer: 1\r\n\r\n";
    char all[1024];
    int n = snprintf(all, sizeof all, "%s%s", head, body);
    expect(w, all, 200, "\"content\":\"x\"");
    for (size_t cut = sizeof head; cut < (size_t)n; cut += 5) {
        int fd = dial(w->port);
        hd_buf b;
        hd_buf_init(&b, 1 << 20);
        put_n(fd, all, cut);
        usleep(2000);
        put_n(fd, all + cut, (size_t)n - cut);
        answer a = take_answer(fd, &b, false);
        assert_int_equal(a.code, 200);
        drop_answer(&a);
        hd_buf_fini(&b);
        close(fd);
    }
    static const char *const wrong[] = {"G\r\n",
                                        "\r\n",
                                        "-1\r\n",
                                        "5 5\nhello",
                                        "5\r\nhelloX",
                                        "5\r\nhello\n0\r\n\r\n",
                                        "fffffffffffffffff\r\n",
                                        "0x5\r\nhello\r\n0\r\n\r\n"};
    for (size_t i = 0; i < HD_COUNT_OF(wrong); i++) {
        snprintf(all, sizeof all, "%s%s", head, wrong[i]);
        expect(w, all, 400, "malformed chunked body");
    }
}

static void broken_requests_get_json_errors(void **state) {
    world *w = *state;
    start(w);
    static const struct {
        const char *request;
        int code;
    } rows[] = {
        {"GET /health HTTP/1.1\n\n", 400},
        {"GET /health HTTP/1.1\r\nHost: t\r\nA: b\n\r\n", 400},
        {"GET /health HTTP/1.1\r\nHost: t\r\n x: folded\r\n\r\n", 400},
        {"GET /health HTTP/1.1\r\nHost : t\r\n\r\n", 400},
        {"GET /health HTTP/1.1\r\nno colon\r\n\r\n", 400},
        {"GET /health HTTP/1.1\r\n\r\n", 400},
        {"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
        {"GET health HTTP/1.1\r\nHost: t\r\n\r\n", 400},
        {"GET  /health HTTP/1.1\r\nHost: t\r\n\r\n", 400},
        {"G\x01T /health HTTP/1.1\r\nHost: t\r\n\r\n", 400},
        {"GET /health HTTP/2.0\r\nHost: t\r\n\r\n", 505},
        {"GET /health\r\n\r\n", 400},
        {"POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 2x\r\n\r\n{}", 400},
        {"POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: -1\r\n\r\n{}", 400},
        {"POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
         400},
        {"POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n"
         "Transfer-Encoding: chunked\r\n\r\n{}",
         400},
        {"POST /tokenize HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: gzip\r\n\r\n{}", 501},
        {"POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
        {"POST /tokenize HTTP/1.1\r\nHost: t\r\nExpect: magic\r\nContent-Length: 2\r\n\r\n{}", 417},
    };
    for (size_t i = 0; i < HD_COUNT_OF(rows); i++) {
        answer a = ask(w->port, rows[i].request);
        if (a.code != rows[i].code || !strstr(text_of(&a), "{\"error\":{\"message\":\""))
            fail_msg("row %zu: expected %d, found %d: %s", i, rows[i].code, a.code, text_of(&a));
        assert_string_equal(header(&a, "Connection"), "close");
        drop_answer(&a);
    }
    expect(w, GET("/health"), 200, "ok"); /* and it is still there */
}

static void large_heads_and_bodies(void **state) {
    world *w = *state;
    w->config.body_bytes_max = 2000;
    start(w);
    enum { n = 40000 };
    char *big = hd_alloc(n + 200);
    memset(big, 'a', n);
    memcpy(big, "GET /", 5);
    expect(w, memcpy(big + n, "", 1) ? big : "", 414, "target");
    int at = snprintf(big, n, "GET / HTTP/1.1\r\nHost: t\r\nX: ");
    big[at] = 'b';
    answer a = ask_raw(w->port, big, n);
    assert_int_equal(a.code, 431);
    drop_answer(&a);
    at = snprintf(big, n, "GET / HTTP/1.1\r\nHost: t\r\n");
    for (int i = 0; i < 200; i++) at += snprintf(big + at, (size_t)(n - at), "A: b\r\n");
    snprintf(big + at, (size_t)(n - at), "\r\n");
    expect(w, big, 431, "too many header lines");

    memset(big, ' ', 3000);
    big[3000] = 0;
    static char request[8192];
    snprintf(request, sizeof request,
             "POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 3000\r\n\r\n%s", big);
    expect(w, request, 413, "at most 2000 bytes, found 3000");
    snprintf(request, sizeof request,
             "POST /tokenize HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: "
             "chunked\r\n\r\nbb8\r\n%s\r\n0\r\n\r\n",
             big);
    expect(w, request, 413, "larger than");
    /* Announced, never sent: refused at once. */
    expect(w, "POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999\r\n\r\n", 413,
           "at most");
    expect(w,
           "POST /tokenize HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: "
           "3000\r\n\r\n",
           413, "at most");
    hd_free(big);
    /* A refused body of modest size is read, and the connection goes on. */
    snprintf(request, sizeof request,
             "POST /nothing HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\n%100s" GET("/health"),
             "");
    int fd = dial(w->port);
    hd_buf b;
    hd_buf_init(&b, 1 << 20);
    put(fd, request);
    a = take_answer(fd, &b, false);
    assert_int_equal(a.code, 404);
    drop_answer(&a);
    a = take_answer(fd, &b, false);
    assert_int_equal(a.code, 200);
    drop_answer(&a);
    hd_buf_fini(&b);
    close(fd);
}

static void expect_continue_is_answered(void **state) {
    world *w = *state;
    start(w);
    int fd = dial(w->port);
    hd_buf b;
    hd_buf_init(&b, 1 << 20);
    put(fd,
        "POST /tokenize HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 16\r\n\r\n");
    assert_true(await_text(fd, &b, "HTTP/1.1 100 Continue\r\n\r\n"));
    put(fd, "{\"prompt\": \"abc\"}");
    answer a = take_answer(fd, &b, false);
    assert_int_equal(a.code, 400); /* 17 bytes were sent for 16: the body is cut */
    drop_answer(&a);
    hd_buf_fini(&b);
    close(fd);
}

static void slow_senders_are_cut_off(void **state) {
    world *w = *state;
    w->config.read_timeout_s = 0.3;
    w->config.idle_timeout_s = 0.6;
    start(w);
    static const char *const begun[] = {
        "GET /hea", "GET /health HTTP/1.1\r\nHost: t\r\n",
        "POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 20\r\n\r\n{\"pro",
        "POST /nothing HTTP/1.1\r\nHost: t\r\nContent-Length: 20\r\n\r\n{\"pro"};
    static const int codes[] = {408, 408, 408, 404};
    for (size_t i = 0; i < HD_COUNT_OF(begun); i++) {
        int fd = dial(w->port);
        hd_buf b;
        hd_buf_init(&b, 1 << 20);
        put(fd, begun[i]);
        for (int k = 0; k < 3; k++) { /* a byte now and then does not help */
            usleep(60000);
            if (i < 2) put(fd, "x");
        }
        answer a = take_answer(fd, &b, false);
        assert_int_equal(a.code, codes[i]);
        assert_string_equal(header(&a, "Connection"), "close");
        drop_answer(&a);
        hd_buf_fini(&b);
        close(fd);
    }
    int fd = dial(w->port); /* says nothing */
    hd_buf b;
    hd_buf_init(&b, 1000);
    assert_int_equal(more(fd, &b), 0);
    hd_buf_fini(&b);
    close(fd);
}

static void http_1_0(void **state) {
    world *w = *state;
    start(w);
    w->engine->echo_tokens = 2;
    answer a = ask(w->port, "GET /health HTTP/1.0\r\n\r\n");
    assert_int_equal(a.code, 200);
    assert_string_equal(header(&a, "Connection"), "close");
    drop_answer(&a);
    a = ask(w->port, "GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert_string_equal(header(&a, "Connection"), "keep-alive");
    drop_answer(&a);
    char request[512];
    snprintf(request, sizeof request, "POST " CHAT " HTTP/1.0\r\nContent-Length: %zu\r\n\r\n%s",
             strlen(HELLO_STREAM), HELLO_STREAM);
    a = ask(w->port, request); /* ends with the connection */
    assert_int_equal(a.code, 200);
    assert_true(a.is_whole);
    assert_string_equal(header(&a, "Transfer-Encoding"), "");
    assert_non_null(strstr(text_of(&a), "data: [DONE]\n\n"));
    drop_answer(&a);
}

/* ---- routes, keys, headers ---- */

static void methods_and_paths(void **state) {
    world *w = *state;
    w->config.cors_origin = "https://a.example";
    start(w);
    expect(w, GET("/v1/nothing"), 404, "not_found_error");
    answer a = ask(w->port, GET("/v1/chat/completions"));
    assert_int_equal(a.code, 405);
    assert_string_equal(header(&a, "Allow"), "POST, OPTIONS");
    assert_non_null(strstr(text_of(&a), "{\"error\":"));
    drop_answer(&a);
    a = ask(w->port, "DELETE /health HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_int_equal(a.code, 405);
    assert_string_equal(header(&a, "Allow"), "GET, HEAD, OPTIONS");
    drop_answer(&a);
    a = ask(w->port, "HEAD /v1/models HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_int_equal(a.code, 200);
    assert_true(strtol(header(&a, "Content-Length"), NULL, 10) > 0);
    assert_string_equal(header(&a, "Access-Control-Allow-Origin"), "https://a.example");
    drop_answer(&a);
    a = ask(w->port,
            "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: t\r\nOrigin: https://a.example\r\n"
            "Access-Control-Request-Method: POST\r\n\r\n");
    assert_int_equal(a.code, 204);
    assert_string_equal(header(&a, "Access-Control-Allow-Methods"), "POST, OPTIONS");
    assert_non_null(strstr(header(&a, "Access-Control-Allow-Headers"), "Authorization"));
    drop_answer(&a);
    a = ask(w->port, "OPTIONS * HTTP/1.1\r\nHost: t\r\n\r\n");
    assert_int_equal(a.code, 204);
    drop_answer(&a);
    a = ask(w->port, GET("/"));
    assert_int_equal(a.code, 200);
    assert_non_null(strstr(header(&a, "Content-Type"), "text/html"));
    assert_non_null(strstr(header(&a, "Content-Security-Policy"), "default-src"));
    char etag[128], again[512];
    snprintf(etag, sizeof etag, "%s", header(&a, "ETag"));
    drop_answer(&a);
    snprintf(again, sizeof again, "GET / HTTP/1.1\r\nHost: t\r\nIf-None-Match: %s\r\n\r\n", etag);
    a = ask(w->port, again);
    assert_int_equal(a.code, 304);
    drop_answer(&a);
    expect(w, GET("/health?verbose=1"), 200, "ok");
    static const char *const chats[] = {"/v1/chat/completions", "/chat/completions",
                                        "/beta/chat/completions"};
    static const char *const texts[] = {"/v1/completions", "/completions", "/beta/completions"};
    w->engine->echo_tokens = 1;
    for (size_t i = 0; i < HD_COUNT_OF(chats); i++) {
        expect(w, post_text(chats[i], "", HELLO), 200, "\"content\":\"x\"");
        expect(w, post_text(texts[i], "", "{\"prompt\":\"p\"}"), 200, "\"text\":\"x\"");
    }
    expect(w, GET("/models"), 200, "\"id\":\"stub\"");
    expect(w, GET("/beta/models"), 200, "\"id\":\"stub\"");
    expect(w, "GET http://t/health HTTP/1.1\r\nHost: t\r\n\r\n", 200, "ok");
}

static void keys_open_what_they_should(void **state) {
    world *w = *state;
    static const char *const keys[] = {"secret-1", "k2"};
    w->config.api_key = keys;
    w->config.n_api_key = 2;
    start(w);
    w->engine->echo_tokens = 1;
    static const struct {
        const char *header;
        int code;
    } rows[] = {{"", 401},
                {"Authorization: Bearer secret-1\r\n", 200},
                {"Authorization: bearer k2\r\n", 200},
                {"X-Api-Key: k2\r\n", 200},
                {"Authorization: Bearer secret-2\r\n", 401},
                {"Authorization: Bearer secret-\r\n", 401},
                {"Authorization: Bearer secret-11\r\n", 401},
                {"Authorization: Bearer \r\n", 401},
                {"Authorization: Bearer k2k2\r\n", 401},
                {"Authorization: secret-1\r\n", 401},
                {"Authorization: Basic k2\r\n", 401}};
    for (size_t i = 0; i < HD_COUNT_OF(rows); i++) {
        answer a = ask(w->port, post_text(CHAT, rows[i].header, HELLO));
        if (a.code != rows[i].code) fail_msg("%s: found %d", rows[i].header, a.code);
        if (a.code == 401) {
            assert_string_equal(header(&a, "WWW-Authenticate"), "Bearer");
            assert_non_null(strstr(text_of(&a), "invalid_api_key"));
        }
        drop_answer(&a);
    }
    expect(w, GET("/v1/models"), 401, "API key");
    expect(w, post_text("/tokenize", "", "{\"prompt\":\"a\"}"), 401, "API key");
    expect(w, GET("/health"), 200, "ok");
    expect(w, GET("/ready"), 200, "ready");
    expect(w, GET("/metrics"), 200, "vllm:");
    expect(w, GET("/version"), 200, "version");
    expect(w, GET("/"), 200, "<html");
    expect(w, GET("/v1/nothing"), 404, "no such path");
}

static void request_ids(void **state) {
    world *w = *state;
    start(w);
    answer a = ask(w->port, "GET /health HTTP/1.1\r\nHost: t\r\nx-request-id: a-B_9.z:1\r\n\r\n");
    assert_string_equal(header(&a, "X-Request-Id"), "a-B_9.z:1");
    drop_answer(&a);
    static const char *const bad[] = {
        "a b", "<x>", "\xc3\xa9", "",
        "0123456789012345678901234567890123456789012345678901234567890123456789"};
    for (size_t i = 0; i < HD_COUNT_OF(bad); i++) {
        char request[512];
        snprintf(request, sizeof request,
                 "GET /health HTTP/1.1\r\nHost: t\r\nX-Request-ID: %s\r\n\r\n", bad[i]);
        a = ask(w->port, request);
        assert_int_equal(strlen(header(&a, "X-Request-Id")), 32);
        drop_answer(&a);
    }
}

/* ---- generation ---- */

static void a_chat_streamed(void **state) {
    world *w = *state;
    start(w);
    int fd = dial(w->port);
    hd_buf b;
    hd_buf_init(&b, 1 << 20);
    put(fd, post_text(
                CHAT, "",
                "{\"stream\":true,\"stream_options\":{\"include_usage\":true},\"return_token_ids\":"
                "true,\"chat_template_kwargs\":{\"thinking\":true},\"logprobs\":true,"
                "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}"));
    assert_int_equal(stub_await(w->engine, &w->engine->n_open, 1), 1);
    assert_true(await_text(fd, &b, "text/event-stream")); /* headers come before any token */
    assert_null(strstr(b.ptr, "data:"));
    stub_text(w->engine, 0, "ab");
    stub_say(w->engine, 0, (hd_event){.token = STUB_END_THINK, .stop_ix = -1});
    stub_text(w->engine, 0, "\xc3");
    stub_text(w->engine, 0, "\xa9!");
    stub_finish(w->engine, 0, HD_FINISH_STOP);
    answer a = take_answer(fd, &b, false);
    assert_int_equal(a.code, 200);
    const char *t = text_of(&a);
    assert_non_null(strstr(t, "\"prompt_token_ids\":[256,104,105,258]"));
    assert_non_null(strstr(t, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}"));
    assert_non_null(strstr(t, "\"delta\":{\"reasoning_content\":\"a\"}"));
    /* Both halves of the character come together, with both items and ids. */
    const char *e = strstr(t, "\"delta\":{\"content\":\"\xc3\xa9\"}");
    assert_non_null(e);
    assert_non_null(strstr(e, "{\"token\":\"bytes:\\\\xc3\",\"logprob\":-0.5,\"bytes\":[195],"));
    assert_non_null(strstr(e, "\"token_ids\":[259,195,169]"));
    assert_non_null(strstr(t, "\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\""));
    assert_non_null(strstr(t,
                           "\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":7,"
                           "\"total_tokens\":11,\"prompt_cache_hit_tokens\":2,"
                           "\"prompt_cache_miss_tokens\":2,\"prompt_tokens_details\":{\"cached_"
                           "tokens\":2},\"completion_tokens_details\":{\"reasoning_tokens\":3}}"));
    assert_string_equal(t + strlen(t) - 14, "data: [DONE]\n\n");
    drop_answer(&a);
    hd_buf_fini(&b);
    close(fd);
}

static void choices_of_several_prompts(void **state) {
    world *w = *state;
    start(w);
    int fd = dial(w->port);
    hd_buf b;
    hd_buf_init(&b, 1 << 20);
    put(fd, post_text("/v1/completions", "",
                      "{\"prompt\":[\"p\",\"qq\"],\"n\":2,\"seed\":7,\"echo\":true,\"priority\":-3,"
                      "\"user\":\"u\"}"));
    assert_int_equal(stub_await(w->engine, &w->engine->n_open, 4), 4);
    const stub_request *r = w->engine->r;
    assert_int_equal(r[0].sampling.seed, 7);
    assert_int_equal(r[1].sampling.seed, 8);
    assert_int_equal(r[2].sampling.seed, 7);
    assert_int_equal(r[0].max_tokens, 16);
    assert_int_equal(r[0].priority, -3);
    assert_true(r[0].cache_salt != 0);
    for (int i = 3; i >= 0; i--) {
        char text[2] = {(char)('0' + i), 0};
        stub_text(w->engine, i, text);
        stub_finish(w->engine, i, i == 0 ? HD_FINISH_LENGTH : HD_FINISH_STOP);
    }
    answer a = take_answer(fd, &b, false);
    const char *t = text_of(&a);
    assert_non_null(strstr(t, "\"object\":\"text_completion\""));
    assert_non_null(
        strstr(t, "{\"index\":0,\"text\":\"p0\",\"logprobs\":null,\"finish_reason\":\"length\"}"));
    assert_non_null(
        strstr(t, "{\"index\":3,\"text\":\"qq3\",\"logprobs\":null,\"finish_reason\":\"stop\"}"));
    assert_non_null(
        strstr(t, "\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":7,\"total_tokens\":12"));
    drop_answer(&a);
    hd_buf_fini(&b);
    close(fd);
}

static void refusals_name_the_reason(void **state) {
    world *w = *state;
    start(w);
    w->engine->echo_tokens = 1;
    expect(w, post_text(CHAT, "", "{\"messages\":[}"), 400, "line 1, column 14");
    expect(w,
           post_text(CHAT, "",
                     "{\"model\":\"gpt-4\",\"messages\":[{\"role\":\"user\",\"content\":\"\"}]}"),
           404, "model_not_found");
    expect(w, post_text("/v1/completions", "", "{\"prompt\":[1,300]}"), 400,
           "\"param\":\"prompt\"");
    expect(w, post_text("/v1/completions", "", "{\"prompt\":[1],\"logit_bias\":{\"300\":1}}"), 400,
           "\"param\":\"logit_bias\"");
    char body[256];
    snprintf(body, sizeof body, "{\"prompt\":\"%0100d\"}", 7);
    expect(w, post_text("/v1/completions", "", body), 400, "context_length_exceeded");
    expect(w, post_text("/tokenize", "", "{\"prompt\":\"ab\"}"), 200, "\"tokens\":[256,97,98]");
    expect(w, post_text("/tokenize", "", "{\"content\":\"ab\"}"), 200, "\"tokens\":[97,98]");
    expect(w,
           post_text("/tokenize", "",
                     "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],"
                     "\"return_token_strs\":true}"),
           200, "\"tokens\":[256,97,259],\"token_strs\":[\"\",\"a\",\"</think>\"]");
    expect(w, post_text("/detokenize", "", "{\"tokens\":[97,98]}"), 200,
           "{\"prompt\":\"ab\",\"content\":\"ab\"}");
    expect(w, post_text("/detokenize", "", "{\"tokens\":[97,-1]}"), 400, "tokens");
    w->engine->echo_tokens = 0;
    w->engine->busy_after = 1;
    answer a = ask(w->port, post_text("/v1/completions", "", "{\"prompt\":\"p\",\"n\":2}"));
    assert_int_equal(a.code, 429);
    assert_string_equal(header(&a, "Retry-After"), "8");
    drop_answer(&a);
    assert_int_equal(stub_await(w->engine, &w->engine->n_open, 0), 0);
    assert_int_equal(w->engine->n_cancelled, 1);
}

/* A full engine: refused before the body is read, unless it names a class; a more urgent one is
 * taken. */
static void full_engine_takes_the_urgent(void **state) {
    world *w = *state;
    start(w);
    w->engine->is_full = true;
    answer a = ask(w->port, post_text("/v1/completions", "", "not even JSON"));
    assert_int_equal(a.code, 429);
    assert_string_equal(header(&a, "Retry-After"), "8");
    assert_non_null(strstr(text_of(&a), "rate_limit_exceeded"));
    drop_answer(&a);
    assert_int_equal(w->engine->n_asked, 1);
    a = ask(w->port,
            post_text("/v1/completions", "", "{\"prompt\":\"p\",\"service_tier\":\"flex\"}"));
    assert_int_equal(a.code, 429);
    assert_string_equal(header(&a, "Retry-After"), "9");
    drop_answer(&a);
    a = ask(w->port, post_text("/v1/completions", "", "{\"prompt\":\"p\",\"service_tier\":\"x\"}"));
    assert_int_equal(a.code, 400);
    assert_non_null(strstr(text_of(&a), "\"param\":\"service_tier\""));
    drop_answer(&a);
    assert_int_equal(w->engine->n, 0);
    assert_int_equal((int)hd_metric_get(HD_M_REFUSAL_TIME), 2); /* not the 400 */
    hd_buf b;
    hd_buf_init(&b, 1 << 20);
    int fd = dial(w->port);
    put(fd, post_text("/v1/completions", "X-Hadal-Deadline-Ms: 60000\r\n",
                      "{\"prompt\":\"p\",\"service_tier\":\"priority\",\"user\":\"u\"}"));
    stub_await(w->engine, &w->engine->n, 1);
    const stub_request *r = w->engine->r;
    assert_int_equal(r->service, HD_SERVICE_INTERACTIVE);
    assert_true(r->tenant != 0);
    int64_t left_ns = r->deadline_ns - hd_now_ns();
    assert_true(left_ns > 0 && left_ns <= INT64_C(60000000000));
    stub_text(w->engine, 0, "abc");
    stub_finish(w->engine, 0, HD_FINISH_STOP);
    a = take_answer(fd, &b, false);
    assert_int_equal(a.code, 200);
    assert_non_null(strstr(text_of(&a), "\"service_tier\":\"priority\""));
    drop_answer(&a);
    a = ask(w->port, post_text("/v1/completions", "X-Hadal-Deadline-Ms: 1e3\r\n",
                               "{\"prompt\":\"p\",\"service_tier\":\"priority\"}"));
    assert_int_equal(a.code, 400);
    assert_non_null(strstr(text_of(&a), "x-hadal-deadline-ms"));
    drop_answer(&a);
    hd_buf_fini(&b);
    close(fd);
}

static void engine_errors(void **state) {
    world *w = *state;
    start(w);
    hd_buf b;
    hd_buf_init(&b, 1 << 20);
    int fd = dial(w->port);
    put(fd, post_text(CHAT, "", HELLO));
    stub_await(w->engine, &w->engine->n, 1);
    stub_text(w->engine, 0, "abc");
    stub_finish(w->engine, 0, HD_FINISH_ERROR);
    answer a = take_answer(fd, &b, false);
    assert_int_equal(a.code, 500);
    assert_non_null(strstr(text_of(&a), "layer 3"));
    drop_answer(&a);
    put(fd, post_text(
                CHAT, "",
                "{\"stream\":true,\"n\":2,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}"));
    stub_await(w->engine, &w->engine->n, 3);
    stub_text(w->engine, 1, "abc");
    assert_true(await_text(fd, &b, "\"c\""));
    stub_finish(w->engine, 1, HD_FINISH_ERROR); /* of one choice: the other is cancelled */
    a = take_answer(fd, &b, false);
    assert_int_equal(a.code, 200);
    assert_true(a.is_whole);
    assert_non_null(strstr(text_of(&a), "data: {\"error\":{\"message\":\"logits of layer 3"));
    assert_null(strstr(text_of(&a), "[DONE]"));
    assert_null(strstr(text_of(&a), "\"finish_reason\":\"")); /* none that says it is whole */
    drop_answer(&a);
    assert_int_equal(stub_await(w->engine, &w->engine->n_open, 0), 0);
    put(fd, GET("/health")); /* the connection lives */
    a = take_answer(fd, &b, false);
    assert_int_equal(a.code, 200);
    drop_answer(&a);
    hd_buf_fini(&b);
    close(fd);
}

static void silence_is_filled_with_comments(void **state) {
    world *w = *state;
    w->config.keep_alive_s = 0.2;
    start(w);
    int fd = dial(w->port);
    hd_buf b;
    hd_buf_init(&b, 1 << 20);
    put(fd, post_text(CHAT, "", HELLO_STREAM));
    assert_true(await_text(fd, &b, "\r\n: keep-alive\n\n\r\n"));
    stub_finish(w->engine, 0, HD_FINISH_STOP);
    answer a = take_answer(fd, &b, false);
    assert_non_null(strstr(text_of(&a), "data: [DONE]\n\n"));
    drop_answer(&a);
    hd_buf_fini(&b);
    close(fd);
}

static void waiting_is_filled_with_blank_lines(void **state) {
    world *w = *state;
    w->config.keep_alive_s = 0.2;
    start(w);
    for (int minor = 0; minor < 2; minor++) {
        int fd = dial(w->port);
        hd_buf b;
        hd_buf_init(&b, 1 << 20);
        char request[512];
        snprintf(request, sizeof request,
                 "POST " CHAT " HTTP/1.%d\r\nHost: t\r\nContent-Length: %zu\r\n\r\n%s", minor,
                 strlen(HELLO), HELLO);
        put(fd, request);
        assert_true(await_text(fd, &b, minor == 1 ? "\r\n\r\n1\r\n\n\r\n" : "\r\n\r\n\n"));
        stub_text(w->engine, minor, "ok");
        stub_finish(w->engine, minor, HD_FINISH_STOP);
        answer a = take_answer(fd, &b, false);
        assert_int_equal(a.code, 200);
        assert_true(a.is_whole);
        assert_string_equal(header(&a, "Content-Type"), "application/json");
        assert_memory_equal(text_of(&a), "\n", 1);
        assert_non_null(strstr(text_of(&a), "\n{\"id\":"));
        assert_non_null(strstr(text_of(&a), "\"content\":\"ok\""));
        drop_answer(&a);
        if (minor == 1) { /* the connection goes on */
            put(fd, GET("/health"));
            a = take_answer(fd, &b, false);
            assert_int_equal(a.code, 200);
            drop_answer(&a);
        }
        hd_buf_fini(&b);
        close(fd);
    }
    /* A failure after the 200 cannot be told: the answer is cut, never taken for a whole one. */
    int fd = dial(w->port);
    hd_buf b;
    hd_buf_init(&b, 1 << 20);
    put(fd, post_text(CHAT, "", HELLO));
    assert_true(await_text(fd, &b, "1\r\n\n\r\n"));
    stub_finish(w->engine, 2, HD_FINISH_ERROR);
    answer a = take_answer(fd, &b, false);
    assert_false(a.is_whole);
    assert_null(strchr(text_of(&a), '{'));
    drop_answer(&a);
    close(fd);
    hd_buf_clear(&b);
    fd = dial(w->port); /* nor can the server's end be */
    put(fd, post_text(CHAT, "", HELLO));
    assert_true(await_text(fd, &b, "1\r\n\n\r\n"));
    hd_server_drain(w->server);
    hd_server_stop(w->server);
    a = take_answer(fd, &b, false);
    assert_false(a.is_whole);
    drop_answer(&a);
    hd_buf_fini(&b);
    close(fd);
}

/* ---- clients that leave ---- */

enum leaving { LEAVE_CLOSE, LEAVE_RESET, LEAVE_FLOODED, LEAVE_KINDS };

static void leave(int fd, enum leaving how) {
    if (how == LEAVE_RESET) {
        struct linger l = {.l_onoff = 1};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
    }
    if (how == LEAVE_FLOODED) { /* more pipelined bytes than the server reads ahead */
        static char junk[200000];
        memset(junk, 'x', sizeof junk);
        send(fd, junk, sizeof junk, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    close(fd);
}

static void left_clients_are_noticed(void **state) {
    world *w = *state;
    start(w);
    int n = 0;
    for (int how = 0; how < LEAVE_KINDS; how++) {
        for (int stage = 0; stage < 4; stage++) {
            bool is_stream = stage != 1;
            int fd = dial(w->port);
            hd_buf b;
            hd_buf_init(&b, 1 << 20);
            w->engine->submit_ns = stage == 0 ? 100000000 : 0;
            put(fd, post_text(CHAT, "", is_stream ? HELLO_STREAM : HELLO));
            if (stage == 0) usleep(30000); /* still being prepared */
            if (stage > 0) assert_int_equal(stub_await(w->engine, &w->engine->n, n + 1), n + 1);
            if (stage == 2) assert_true(await_text(fd, &b, "event-stream")); /* silent stream */
            if (stage == 3) {
                stub_text(w->engine, n, "abc");
                assert_true(await_text(fd, &b, "\"c\""));
            }
            leave(fd, (enum leaving)how);
            assert_int_equal(stub_await(w->engine, &w->engine->n, n + 1), n + 1);
            int open = stub_await(w->engine, &w->engine->n_open, 0);
            if (open != 0) fail_msg("way %d, stage %d: not noticed", how, stage);
            n++;
            hd_buf_fini(&b);
        }
    }
    assert_int_equal(w->engine->n_cancelled, n);
    expect(w, GET("/health"), 200, "ok");
}

static void half_closed_clients_get_their_answer(void **state) {
    world *w = *state;
    start(w);
    for (int is_stream = 0; is_stream < 2; is_stream++) {
        int fd = dial(w->port);
        hd_buf b;
        hd_buf_init(&b, 1 << 20);
        put(fd, post_text(CHAT, "", is_stream ? HELLO_STREAM : HELLO));
        shutdown(fd, SHUT_WR);
        assert_int_equal(stub_await(w->engine, &w->engine->n, is_stream + 1), is_stream + 1);
        usleep(400000); /* over a sweep */
        stub_text(w->engine, is_stream, "ok");
        stub_finish(w->engine, is_stream, HD_FINISH_STOP);
        answer a = take_answer(fd, &b, false);
        assert_int_equal(a.code, 200);
        assert_true(a.is_whole);
        assert_non_null(strstr(text_of(&a), is_stream ? "[DONE]" : "\"content\":\"ok\""));
        assert_int_equal(more(fd, &b), 0);
        drop_answer(&a);
        hd_buf_fini(&b);
        close(fd);
    }
    for (int i = 0; i < 200; i++) { /* refused ones too, whichever comes first: refusal or end */
        int fd = dial(w->port);
        hd_buf b;
        hd_buf_init(&b, 1 << 20);
        put(fd, post_text(CHAT, "", "{\"messages\":[]}"));
        shutdown(fd, SHUT_WR);
        answer a = take_answer(fd, &b, false);
        assert_int_equal(a.code, 400);
        assert_true(a.is_whole);
        drop_answer(&a);
        hd_buf_fini(&b);
        close(fd);
    }
    int fd = dial(w->port); /* several requests, then the close */
    hd_buf b;
    hd_buf_init(&b, 1 << 20);
    w->engine->echo_tokens = 2;
    put(fd, GET("/version"));
    put(fd, post_text(CHAT, "", HELLO));
    put(fd, post_text(CHAT, "", HELLO_STREAM));
    put(fd, GET("/health"));
    shutdown(fd, SHUT_WR);
    static const char *const parts[] = {"version", "\"content\":\"xx\"", "[DONE]", "ok"};
    for (size_t i = 0; i < HD_COUNT_OF(parts); i++) {
        answer a = take_answer(fd, &b, false);
        assert_int_equal(a.code, 200);
        assert_non_null(strstr(text_of(&a), parts[i]));
        drop_answer(&a);
    }
    assert_int_equal(more(fd, &b), 0);
    hd_buf_fini(&b);
    close(fd);
}

static void slow_readers_are_dropped(void **state) {
    world *w = *state;
    w->config.output_bytes_max = 64 << 10;
    start(w);
    int slow = dial(w->port), small = 4096;
    setsockopt(slow, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    put(slow, post_text(CHAT, "", HELLO_STREAM));
    assert_int_equal(stub_await(w->engine, &w->engine->n, 1), 1);
    for (int i = 0; i < 20000 && stub_count(w->engine, &w->engine->n_cancelled) == 0; i++) {
        stub_text(w->engine, 0, "abcdefgh");
        if (i % 100 == 0) usleep(5000);
    }
    assert_int_equal(stub_await(w->engine, &w->engine->n_open, 0), 0);
    assert_int_equal(w->engine->n_cancelled, 1);
    assert_int_equal((int)hd_metric_get(HD_M_HTTP_SLOW), 1);
    w->engine->echo_tokens = 2; /* nobody else is troubled */
    expect(w, post_text(CHAT, "", HELLO), 200, "\"content\":\"xx\"");
    close(slow);
}

/* ---- the end ---- */

static void drain_finishes_what_runs(void **state) {
    world *w = *state;
    start(w);
    hd_buf b;
    hd_buf_init(&b, 1 << 20);
    int fd = dial(w->port);
    put(fd, post_text(CHAT, "", HELLO_STREAM));
    assert_int_equal(stub_await(w->engine, &w->engine->n, 1), 1);
    stub_text(w->engine, 0, "a");
    assert_int_equal(hd_server_n_active(w->server), 1);
    hd_server_drain(w->server);
    expect(w, GET("/ready"), 503, "shutting down");
    expect(w, GET("/health"), 200, "draining");
    answer a = ask(w->port, post_text(CHAT, "", HELLO));
    assert_int_equal(a.code, 503);
    assert_string_equal(header(&a, "Retry-After"), "1");
    assert_string_equal(header(&a, "Connection"), "close");
    drop_answer(&a);
    stub_text(w->engine, 0, "b");
    stub_finish(w->engine, 0, HD_FINISH_STOP);
    a = take_answer(fd, &b, false);
    assert_non_null(strstr(text_of(&a), "\"b\""));
    assert_non_null(strstr(text_of(&a), "[DONE]"));
    drop_answer(&a);
    hd_buf_fini(&b);
    close(fd);
    for (int i = 0; i < 100 && hd_server_n_active(w->server) > 0; i++) usleep(10000);
    assert_int_equal(hd_server_n_active(w->server), 0);
}

static void stop_ends_streams_with_an_error(void **state) {
    world *w = *state;
    start(w);
    hd_buf b, b2;
    hd_buf_init(&b, 1 << 20);
    hd_buf_init(&b2, 1 << 20);
    int fd = dial(w->port), fd2 = dial(w->port), idle = dial(w->port);
    put(fd, post_text(CHAT, "", HELLO_STREAM));
    put(fd2, post_text(CHAT, "", HELLO));
    assert_int_equal(stub_await(w->engine, &w->engine->n, 2), 2);
    assert_true(await_text(fd, &b, "event-stream"));
    hd_server_drain(w->server);
    hd_server_stop(w->server);
    answer a = take_answer(fd, &b, false);
    assert_true(a.is_whole);
    assert_non_null(strstr(text_of(&a), "\"code\":\"shutting_down\""));
    drop_answer(&a);
    a = take_answer(fd2, &b2, false);
    assert_int_equal(a.code, 503);
    assert_true(a.is_whole);
    drop_answer(&a);
    assert_int_equal(more(idle, &b), 0);
    close(fd);
    close(fd2);
    close(idle);
    hd_buf_fini(&b);
    hd_buf_fini(&b2);
    assert_int_equal(hd_server_n_active(w->server), 0);
}

/* Several reactors, many clients, some of which leave: nothing is left over. */
static void *crowd(void *arg) {
    world *w = arg;
    for (int i = 0; i < 60; i++) {
        bool is_stream = i % 2;
        int fd = dial(w->port);
        put(fd, post_text(CHAT, "", is_stream ? HELLO_STREAM : HELLO));
        if (i % 5 > 0) {
            hd_buf b;
            hd_buf_init(&b, 1 << 20);
            answer a = take_answer(fd, &b, false);
            if (a.code != 200 || !strstr(text_of(&a), is_stream ? "[DONE]" : "xxxx")) abort();
            drop_answer(&a);
            hd_buf_fini(&b);
        }
        close(fd);
    }
    return NULL;
}

static void many_clients_at_once(void **state) {
    world *w = *state;
    w->config.n_reactor = 3;
    start(w);
    w->engine->echo_tokens = 4;
    pthread_t t[4];
    for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, crowd, w);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    assert_int_equal(stub_await(w->engine, &w->engine->n_open, 0), 0);
    for (int i = 0; i < 100 && hd_metric_get(HD_M_HTTP_CONNECTIONS) > 0; i++) usleep(10000);
    assert_int_equal((int)hd_metric_get(HD_M_HTTP_CONNECTIONS), 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(loading_then_ready),
        TEST(unhealthy_when_stuck_or_failed),
        TEST(port_in_use_is_said),
        TEST(split_writes_change_nothing),
        TEST(pipelined_requests_are_answered_in_order),
        TEST(chunked_bodies),
        TEST(broken_requests_get_json_errors),
        TEST(large_heads_and_bodies),
        TEST(expect_continue_is_answered),
        TEST(slow_senders_are_cut_off),
        TEST(http_1_0),
        TEST(methods_and_paths),
        TEST(keys_open_what_they_should),
        TEST(request_ids),
        TEST(a_chat_streamed),
        TEST(choices_of_several_prompts),
        TEST(refusals_name_the_reason),
        TEST(full_engine_takes_the_urgent),
        TEST(engine_errors),
        TEST(silence_is_filled_with_comments),
        TEST(waiting_is_filled_with_blank_lines),
        TEST(left_clients_are_noticed),
        TEST(half_closed_clients_get_their_answer),
        TEST(slow_readers_are_dropped),
        TEST(drain_finishes_what_runs),
        TEST(stop_ends_streams_with_an_error),
        TEST(many_clients_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
