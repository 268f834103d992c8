/* The server's life: binding, threads, the engine, draining, stopping. */
#include "srv/core.h"

#include "base/clock.h"
#include "base/log.h"
#include "srv/prep.h"
#include "srv/reactor.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Small enough that a client that stops reading is noticed; inherited by accepted sockets. */
enum { send_buffer_bytes = 128 * 1024 };

void hd_server_config_init(hd_server_config *c) {
    *c = (hd_server_config){.host = "127.0.0.1",
                            .port = 8080,
                            .n_reactor = 1,
                            .n_pool = 2,
                            .n_connection_max = 8192,
                            .body_bytes_max = 32 << 20,
                            .output_bytes_max = 1 << 20,
                            .read_timeout_s = 10,
                            .idle_timeout_s = 75,
                            .write_timeout_s = 60,
                            .keep_alive_s = 15,
                            .model_sampling = true};
}

void hd_server_active(hd_server *s, int by) { atomic_fetch_add(&s->n_active, by); }

bool hd_server_body_bytes(hd_server *s, int64_t by) {
    return atomic_fetch_add(&s->body_bytes, by) + by <= HD_SERVER_BODY_BYTES_MAX;
}

enum hd_server_state hd_server_get_state(const hd_server *s) {
    const hd_engine *e = atomic_load(&s->engine);
    if (!e) return atomic_load(&s->is_draining) ? HD_SERVER_DRAINING : HD_SERVER_LOADING;
    hd_engine_stats stats;
    hd_engine_get_stats(e, &stats);
    if (stats.is_failed) return HD_SERVER_FAILED;
    if (stats.stuck_ns > HD_SERVER_STUCK_NS) return HD_SERVER_STUCK;
    return atomic_load(&s->is_draining) ? HD_SERVER_DRAINING : HD_SERVER_READY;
}

/* ---- binding ---- */

static int bound_port(int fd) {
    struct sockaddr_storage a = {0};
    socklen_t n = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0) return 0;
    if (a.ss_family == AF_INET6) return ntohs(((struct sockaddr_in6 *)&a)->sin6_port);
    return ntohs(((struct sockaddr_in *)&a)->sin_port);
}

static int try_bind(const struct addrinfo *a) {
    static const int one = 1, send_buffer = send_buffer_bytes;
    static const int keep_idle_s = 30, keep_interval_s = 10, keep_count = 3;
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    /* A client whose machine vanished, while nothing is sent to it, is noticed within a minute. */
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &keep_idle_s, sizeof keep_idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &keep_interval_s, sizeof keep_interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &keep_count, sizeof keep_count);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 1) == 0) return fd;
    int e = errno;
    close(fd);
    errno = e;
    return -1;
}

static hd_status bind_to(const char *host, int port, int *out) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    char service[8];
    snprintf(service, sizeof service, "%d", port);
    int e = getaddrinfo(host, service, &hints, &list);
    if (e != 0) return HD_FAIL(IO, "cannot listen on %s port %d: %s", host, port, gai_strerror(e));
    *out = -1;
    for (const struct addrinfo *a = list; a && *out < 0; a = a->ai_next) *out = try_bind(a);
    e = errno;
    freeaddrinfo(list);
    if (*out >= 0) return HD_OK;
    return HD_FAIL(IO, "cannot listen on %s port %d: %s%s", host, port, strerror(e),
                   e == EADDRINUSE ? " (another program has it; choose one with --port)" : "");
}

/* ---- life ---- */

static const char *keep(hd_server *s, const char *text) {
    return text ? hd_arena_strndup(s->arena, text, strlen(text)) : NULL;
}

static void copy_config(hd_server *s, const hd_server_config *c) {
    s->config = *c;
    s->config.host = keep(s, c->host);
    s->config.cors_origin = keep(s, c->cors_origin);
    size_t n = (size_t)c->n_api_key;
    const char **key = hd_arena_alloc(s->arena, (n + 1) * sizeof *key);
    for (size_t i = 0; i < n; i++) key[i] = keep(s, c->api_key[i]);
    s->config.api_key = key;
    if (s->config.n_reactor > HD_SERVER_REACTOR_MAX) s->config.n_reactor = HD_SERVER_REACTOR_MAX;
}

static void discard(hd_server *s) {
    for (int i = 0; i < s->config.n_reactor; i++) hd_reactor_free(s->reactor[i]);
    hd_prep_free(s->prep);
    hd_arena_free(s->arena);
    hd_free(s);
}

hd_status hd_server_open(const hd_server_config *c, hd_server **out) {
    *out = NULL;
    signal(SIGPIPE, SIG_IGN);
    int fd;
    HD_TRY(bind_to(c->host, c->port, &fd));
    hd_server *s = hd_alloc_zero(1, sizeof *s);
    s->arena = hd_arena_new(1024);
    copy_config(s, c);
    s->port = bound_port(fd);
    s->started_s = hd_wall_ms() / 1000;
    hd_status status = HD_OK;
    for (int i = 0; i < s->config.n_reactor && status == HD_OK; i++) {
        status = hd_reactor_new(s, i, i == 0 ? fd : -1, &s->reactor[i]);
    }
    if (status != HD_OK) {
        discard(s);
        return status;
    }
    status = hd_prep_new(s->config.n_pool, &s->prep);
    for (int i = 0; i < s->config.n_reactor && status == HD_OK; i++)
        status = hd_reactor_start(s->reactor[i]);
    if (status != HD_OK) {
        hd_server_stop(s);
        discard(s);
        return status;
    }
    *out = s;
    return HD_OK;
}

int hd_server_port(const hd_server *s) { return s->port; }
void hd_server_set_engine(hd_server *s, hd_engine *e) { atomic_store(&s->engine, e); }
void hd_server_drain(hd_server *s) { atomic_store(&s->is_draining, true); }
int hd_server_n_active(const hd_server *s) { return atomic_load(&s->n_active); }

void hd_server_stop(hd_server *s) {
    atomic_store(&s->is_draining, true);
    for (int i = 0; i < s->config.n_reactor; i++) hd_reactor_ask_stop(s->reactor[i]);
    for (int i = 0; i < s->config.n_reactor; i++) hd_reactor_join(s->reactor[i]);
    hd_prep_stop(s->prep);
}

void hd_server_free(hd_server *s) {
    if (s) discard(s);
}
