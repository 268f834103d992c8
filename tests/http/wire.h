/* Tests of the server over real sockets, in front of a stand-in engine: what each begins with. Each
 * program includes it once. */
#ifndef HD_TEST_HTTP_WIRE_H
#define HD_TEST_HTTP_WIRE_H

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

static inline void start(world *w) {
    w->config.port = 0;
    assert_ok(hd_server_open(&w->config, &w->server));
    w->port = hd_server_port(w->server);
    w->engine = stub_open();
    hd_server_set_engine(w->server, w->engine);
}

static inline int setup(void **state) {
    world *w = hd_alloc_zero(1, sizeof *w);
    hd_server_config_init(&w->config);
    hd_metric_reset_all();
    hd_log_set_level(HD_LOG_OFF);
    *state = w;
    return 0;
}

static inline int teardown(void **state) {
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

static inline void expect(world *w, const char *request, int code, const char *part) {
    answer a = ask(w->port, request);
    if (a.code != code || !a.is_whole || !strstr(text_of(&a), part))
        fail_msg("expected %d with %s, found %d%s: %s", code, part, a.code,
                 a.is_whole ? "" : " (not whole)", text_of(&a));
    drop_answer(&a);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

#endif
