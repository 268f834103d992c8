/* The server over real sockets, in front of a stand-in engine: framing, limits, slow senders,
 * routes and authorisation. */
#include "http/wire.h"

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

int main(void) {
    const struct CMUnitTest tests[] = {
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
