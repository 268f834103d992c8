/* The server over real sockets, in front of a stand-in engine: its life, its end, and clients that
 * leave in every state. */
#include "http/wire.h"

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

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(loading_then_ready),
        TEST(unhealthy_when_stuck_or_failed),
        TEST(port_in_use_is_said),
        TEST(left_clients_are_noticed),
        TEST(half_closed_clients_get_their_answer),
        TEST(slow_readers_are_dropped),
        TEST(drain_finishes_what_runs),
        TEST(stop_ends_streams_with_an_error),
        TEST(many_clients_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
