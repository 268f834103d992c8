/* hadal serve: the HTTP server. Listens at once, loads, serves, and ends gracefully.
 *
 * The main thread waits for signals; a second thread loads the model. The first SIGTERM or SIGINT
 * drains (running requests get --shutdown-timeout seconds), the second exits at once. */
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/new_file.h"
#include "cmd/command.h"
#include "srv/server.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { key_max = 1024, key_line_max = 4096 };

/* ---- API keys ---- */

typedef struct keys {
    const char *item[key_max];
    int n;
    hd_arena *arena;
} keys;

static hd_status add_key(keys *k, const char *key) {
    if (k->n == key_max) return HD_FAIL(INVALID, "api-key: at most %d keys", key_max);
    k->item[k->n++] = hd_arena_strndup(k->arena, key, strlen(key));
    return HD_OK;
}

static hd_status read_key_file(keys *k, const char *path) {
    FILE *f = fopen(path, "r");
    if (!f) return HD_FAIL(IO, "api-key-file %s: %s", path, strerror(errno));
    char line[key_line_max];
    hd_status s = HD_OK;
    int n_before = k->n;
    while (s == HD_OK && fgets(line, sizeof line, f)) {
        size_t n = strlen(line);
        if (n == 0) /* it would never end on a device of zeros */
            s = HD_FAIL(CORRUPT, "api-key-file %s: expected lines of text, found a zero byte",
                        path);
        if (n == sizeof line - 1)
            s = HD_FAIL(CORRUPT, "api-key-file %s: a line is longer than %d bytes", path,
                        key_line_max - 2);
        while (n > 0 && strchr(" \t\r\n", line[n - 1])) line[--n] = 0;
        if (s == HD_OK && n > 0 && line[0] != '#') s = add_key(k, line);
    }
    fclose(f);
    if (s == HD_OK && k->n == n_before) /* rather than a server that is open to all */
        s = HD_FAIL(CORRUPT, "api-key-file %s: expected at least one key, found none", path);
    return s;
}

static hd_status collect_keys(const struct hd_options *o, keys *k) {
    for (int i = 0; i < o->api_key.n; i++) {
        if (!*o->api_key.item[i]) return HD_FAIL(INVALID, "api-key: expected a key, found ''");
        HD_TRY(add_key(k, o->api_key.item[i]));
    }
    return o->api_key_file ? read_key_file(k, o->api_key_file) : HD_OK;
}

/* ---- loading beside the signals ---- */

typedef struct loader {
    hd_engine_config config;
    hd_engine *engine;
    hd_status status;
    char error[512];
    pthread_t main_thread;
} loader;

static void *load(void *arg) {
    loader *l = arg;
    l->status = hd_engine_open(&l->config, &l->engine);
    if (l->status != HD_OK) snprintf(l->error, sizeof l->error, "%s", hd_error_text());
    pthread_kill(l->main_thread, SIGUSR1);
    return NULL;
}

static sigset_t signals_of_interest(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGUSR1); /* loading has ended */
    return set;
}

static int wait_signal(double timeout_s) {
    sigset_t set = signals_of_interest();
    int sig;
    if (timeout_s < 0) {
        do sig = sigwaitinfo(&set, NULL);
        while (sig < 0 && errno == EINTR);
        return sig;
    }
    struct timespec t = {(time_t)timeout_s, (long)((timeout_s - (double)(time_t)timeout_s) * 1e9)};
    return sigtimedwait(&set, NULL, &t);
}

static void exit_now(int sig) { _exit(128 + sig); }

/* ---- talking ---- */

static void url_of(const struct hd_options *o, int port, char *out, size_t room) {
    const char *host = o->host;
    if (strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0) host = "localhost";
    snprintf(out, room, strchr(host, ':') ? "http://[%s]:%d" : "http://%s:%d", host, port);
}

static hd_status write_port_file(const char *path, int port) {
    char line[16];
    snprintf(line, sizeof line, "%d\n", port);
    hd_status s = hd_new_file_put(path, hd_str_of(line));
    return s == HD_OK ? HD_OK : hd_fail_context(s, "port-file");
}

static void say_ready(const struct hd_options *o, const hd_engine *e, int port) {
    const hd_engine_info *info = hd_engine_get_info(e);
    char url[512];
    url_of(o, port, url, sizeof url);
    hd_log(HD_LOG_INFO, "ready", "url", "s", url, "model", "s", info->model_name, "backend", "s",
           info->backend, "max_model_len", "d", (int64_t)info->max_model_len, "kv_bytes", "d",
           info->kv_pool_bytes, "load_s", "f", info->load_s, NULL);
    if (!isatty(STDOUT_FILENO)) return;
    printf("\n  %s (%s, %.1f million parameters) on %s, context %d tokens\n", info->model_name,
           info->arch, (double)info->n_param / 1e6, info->device, info->max_model_len);
    printf("  Page      %s/\n  API       %s/v1   (OpenAI's; any client with this base URL)\n", url,
           url);
    printf("  Try       curl %s/v1/chat/completions -H 'Content-Type: application/json' \\\n"
           "              -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello!\"}]}'\n"
           "  Stop      Ctrl-C\n\n",
           url);
    fflush(stdout);
}

/* ---- life ---- */

/* Running requests finish, or the time is up. */
static void drain(const struct hd_options *o, hd_server *s) {
    hd_server_drain(s);
    int64_t until = hd_now_ns() + (int64_t)(o->shutdown_timeout * 1e9);
    hd_log(HD_LOG_INFO, "draining", "active", "d", (int64_t)hd_server_n_active(s), "timeout_s", "f",
           o->shutdown_timeout, NULL);
    while (hd_server_n_active(s) > 0 && hd_now_ns() < until) {
        int sig = wait_signal(0.02);
        if (sig == SIGTERM || sig == SIGINT) exit_now(sig);
    }
    /* From here on this thread waits for others: a further signal ends the process by itself. */
    struct sigaction now = {.sa_handler = exit_now};
    sigset_t set = signals_of_interest();
    sigaction(SIGTERM, &now, NULL);
    sigaction(SIGINT, &now, NULL);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

static int run_server(const struct hd_command *c, const struct hd_options *o,
                      const hd_service_target *target, hd_server *s) {
    loader l = {.main_thread = pthread_self()};
    pthread_t thread;
    hd_engine_config_from(o, &l.config);
    memcpy(l.config.target, target, sizeof l.config.target);
    l.config.measure_ms = HD_MEASURE_MS;
    int e = pthread_create(&thread, NULL, load, &l);
    if (e != 0) {
        HD_FAIL(IO, "cannot start a thread: %s", strerror(e));
        return hd_command_error(c);
    }
    int sig = wait_signal(-1);
    if (sig != SIGUSR1) { /* stopped while loading, which nothing can interrupt */
        hd_server_stop(s);
        hd_log(HD_LOG_INFO, "stopped while loading", NULL);
        _exit(0);
    }
    pthread_join(thread, NULL);
    if (l.status != HD_OK) {
        hd_fail(l.status, "%s", l.error);
        int rc = hd_command_error(c);
        hd_server_stop(s);
        return rc;
    }
    hd_server_set_engine(s, l.engine);
    say_ready(o, l.engine, hd_server_port(s));
    while (sig != SIGTERM && sig != SIGINT) sig = wait_signal(-1);
    drain(o, s);
    hd_server_stop(s);
    hd_engine_close(l.engine);
    hd_log(HD_LOG_INFO, "stopped", NULL);
    return 0;
}

static hd_status open_server(const struct hd_options *o, const keys *k, hd_server **out) {
    hd_server_config config;
    hd_server_config_init(&config);
    config.host = o->host;
    config.port = o->port;
    config.n_reactor = o->http_threads;
    config.n_pool = o->prepare_threads;
    config.n_connection_max = o->max_connections;
    config.body_bytes_max = (size_t)o->max_body_bytes;
    config.output_bytes_max = (size_t)o->max_output_buffer_bytes;
    config.read_timeout_s = o->http_read_timeout;
    config.idle_timeout_s = o->http_idle_timeout;
    config.write_timeout_s = o->http_write_timeout;
    config.keep_alive_s = o->stream_keep_alive;
    config.api_key = k->item;
    config.n_api_key = k->n;
    config.cors_origin = o->cors_origin;
    config.model_sampling = strcmp(o->generation_config, "auto") == 0;
    for (const char *p = o->cors_origin; p && *p; p++)
        if (*p <= ' ' || *p > '~')
            return HD_FAIL(INVALID, "cors-origin: expected an origin such as https://example.org");
    return hd_server_open(&config, out);
}

/* Every connection is a descriptor; the soft limit is often 1024. */
static void raise_descriptor_limit(void) {
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur == r.rlim_max) return;
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
}

static int run(const struct hd_options *o, int n_arg, char **arg) {
    const struct hd_command *c = &hd_cmd_serve;
    if (n_arg > 0) return hd_command_usage(c, "unexpected argument '%s'", arg[0]);
    sigset_t set = signals_of_interest(); /* blocked in every thread; this one waits for them */
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    raise_descriptor_limit();
    keys k = {.arena = hd_arena_new(4096)};
    hd_service_target target[HD_SERVICE_COUNT] = {0};
    hd_server *s = NULL;
    int rc;
    if (collect_keys(o, &k) != HD_OK || hd_service_targets_from(o, target) != HD_OK ||
        open_server(o, &k, &s) != HD_OK ||
        (o->port_file && write_port_file(o->port_file, hd_server_port(s)) != HD_OK)) {
        rc = hd_command_error(c);
        if (s) hd_server_stop(s);
    } else {
        char url[512];
        url_of(o, hd_server_port(s), url, sizeof url);
        printf("hadal: listening on %s\n", url);
        fflush(stdout);
        rc = run_server(c, o, target, s);
    }
    hd_server_free(s);
    hd_arena_free(k.arena);
    return rc;
}

const struct hd_command hd_cmd_serve = {
    .name = "serve",
    .summary = "serve a model over HTTP: OpenAI's API and a web page",
    .usage = "[options]",
    .details =
        "Listens at once and loads the model; /health answers 503 until it is loaded. SIGTERM or\n"
        "Ctrl-C lets running requests finish (--shutdown-timeout), a second one exits at once.\n"
        "With --api-key, the /v1 routes and /tokenize need the key; /, /health, /ready, /metrics\n"
        "and /version stay open.\n\n"
        "  hadal serve\n"
        "  hadal serve --host 0.0.0.0 --port 8000 --api-key-file keys.txt\n"
        "  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        "    -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello!\"}]}'\n",
    .run = run,
    .is_server = true};
