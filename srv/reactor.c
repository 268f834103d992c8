/* The reactor's loop: accepting, waking, the sweep that enforces time limits, stopping. */
#include "srv/reactor.h"

#include "base/clock.h"
#include "base/log.h"
#include "srv/conn.h"
#include "srv/core.h"
#include "srv/generation.h"

#include <errno.h>
#include <event2/listener.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { backlog = 4096, sweep_ms = 250, accept_pause_ms = 100, stop_flush_s = 2 };

static void ring(hd_reactor *r) {
    uint64_t one = 1;
    ssize_t n = write(r->wake_fd, &one, sizeof one);
    HD_ASSERT(n == (ssize_t)sizeof one || errno == EAGAIN);
}

void hd_reactor_wake(hd_call *c) {
    hd_reactor *r = c->reactor;
    pthread_mutex_lock(&c->mu);
    bool is_new = !c->is_queued;
    c->is_queued = true;
    if (is_new) {
        hd_call_ref(c);
        pthread_mutex_lock(&r->mu);
        bool was_empty = r->ready_head == NULL;
        c->next = NULL;
        if (r->ready_tail)
            r->ready_tail->next = c;
        else
            r->ready_head = c;
        r->ready_tail = c;
        pthread_mutex_unlock(&r->mu);
        if (was_empty) ring(r);
    }
    pthread_mutex_unlock(&c->mu);
}

/* Another reactor gets a socket. */
static void hand_over(hd_reactor *r, int fd) {
    pthread_mutex_lock(&r->mu);
    if (r->n_adopted == r->adopted_room) {
        r->adopted_room = r->adopted_room ? 2 * r->adopted_room : 64;
        r->adopted = hd_realloc(r->adopted, (size_t)r->adopted_room * sizeof *r->adopted);
    }
    r->adopted[r->n_adopted++] = fd;
    pthread_mutex_unlock(&r->mu);
    ring(r);
}

void hd_reactor_ask_stop(hd_reactor *r) {
    pthread_mutex_lock(&r->mu);
    r->must_stop = true;
    pthread_mutex_unlock(&r->mu);
    ring(r);
}

/* ---- on the reactor's thread ---- */

static void arm_sweep(hd_reactor *r) {
    static const struct timeval period = {0, sweep_ms * 1000};
    if (r->n_conn > 0 && !event_pending(r->sweep_event, EV_TIMEOUT, NULL))
        event_add(r->sweep_event, &period);
}

static void open_conn(hd_reactor *r, int fd) {
    hd_conn_open(r, fd);
    arm_sweep(r);
}

static void attend(hd_call *c) {
    pthread_mutex_lock(&c->mu);
    c->is_queued = false;
    bool is_prepared = c->is_prepared;
    pthread_mutex_unlock(&c->mu);
    if (!is_prepared) return; /* events that came early wait for the pool to let go */
    if (c->reactor->is_stopping && c->conn)
        hd_conn_stop(c->conn);
    else if (c->generation)
        hd_generation_attend(c);
    else if (c->conn)
        hd_conn_reply(c->conn);
}

static void begin_stop(hd_reactor *r) {
    r->is_stopping = true;
    r->stop_by_ns = hd_now_ns() + (int64_t)stop_flush_s * 1000000000;
    if (r->listener) evconnlistener_free(r->listener);
    r->listener = NULL;
    for (struct hd_conn *c = r->conn, *next; c; c = next) {
        next = hd_conn_next(c);
        hd_conn_stop(c);
    }
}

static void on_wake(evutil_socket_t fd, short what, void *arg) {
    (void)what;
    hd_reactor *r = arg;
    uint64_t n;
    ssize_t got = read(fd, &n, sizeof n);
    HD_ASSERT(got == (ssize_t)sizeof n || errno == EAGAIN);
    pthread_mutex_lock(&r->mu);
    hd_call *c = r->ready_head;
    r->ready_head = r->ready_tail = NULL;
    int *adopted = r->adopted, n_adopted = r->n_adopted;
    r->adopted = NULL;
    r->n_adopted = r->adopted_room = 0;
    bool must_stop = r->must_stop;
    pthread_mutex_unlock(&r->mu);
    for (int i = 0; i < n_adopted; i++) open_conn(r, adopted[i]);
    hd_free(adopted);
    while (c) {
        hd_call *next = c->next; /* before it may be queued again */
        attend(c);
        hd_call_unref(c);
        c = next;
    }
    if (must_stop && !r->is_stopping) begin_stop(r);
    if (r->is_stopping && r->n_conn == 0) event_base_loopbreak(r->base);
}

static void on_sweep(evutil_socket_t fd, short what, void *arg) {
    (void)fd;
    (void)what;
    hd_reactor *r = arg;
    int64_t now = hd_now_ns();
    bool is_late = r->is_stopping && now > r->stop_by_ns;
    for (struct hd_conn *c = r->conn, *next; c; c = next) {
        next = hd_conn_next(c);
        if (is_late)
            hd_conn_drop(c);
        else
            hd_conn_sweep(c, now);
    }
    if (r->is_stopping && r->n_conn == 0) event_base_loopbreak(r->base);
    arm_sweep(r);
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *a, int n,
                      void *arg) {
    (void)l;
    (void)a;
    (void)n;
    hd_reactor *r = arg;
    struct hd_server *s = r->server;
    if (atomic_load(&s->n_connection) >= s->config.n_connection_max) {
        close(fd);
        return;
    }
    hd_reactor *to = s->reactor[r->turn++ % (unsigned)s->config.n_reactor];
    if (to == r)
        open_conn(r, fd);
    else
        hand_over(to, fd);
}

/* Out of descriptors: the listener would be ready again at once, for ever. */
static void on_accept_error(struct evconnlistener *l, void *arg) {
    static const struct timeval pause = {0, accept_pause_ms * 1000};
    hd_reactor *r = arg;
    hd_log(HD_LOG_WARN, "accept failed", "error", "s", strerror(errno), NULL);
    evconnlistener_disable(l);
    event_add(r->accept_event, &pause);
}

static void on_accept_resume(evutil_socket_t fd, short what, void *arg) {
    (void)fd;
    (void)what;
    hd_reactor *r = arg;
    if (r->listener) evconnlistener_enable(r->listener);
}

static void *run(void *arg) {
    hd_reactor *r = arg;
    event_base_loop(r->base, EVLOOP_NO_EXIT_ON_EMPTY);
    return NULL;
}

/* ---- life ---- */

hd_status hd_reactor_new(struct hd_server *s, int ix, int listen_fd, hd_reactor **out) {
    hd_reactor *r = hd_alloc_zero(1, sizeof *r);
    *out = r;
    r->server = s;
    r->ix = ix;
    pthread_mutex_init(&r->mu, NULL);
    hd_buf_init(&r->scratch, SIZE_MAX / 2);
    r->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    r->base = event_base_new();
    if (r->wake_fd < 0 || !r->base) {
        if (listen_fd >= 0) close(listen_fd);
        return HD_FAIL(IO, "event loop %d: %s", ix, strerror(errno));
    }
    r->wake_event = event_new(r->base, r->wake_fd, EV_READ | EV_PERSIST, on_wake, r);
    r->sweep_event = event_new(r->base, -1, 0, on_sweep, r);
    r->accept_event = event_new(r->base, -1, 0, on_accept_resume, r);
    HD_ASSERT(r->wake_event && r->sweep_event && r->accept_event);
    HD_ASSERT(event_add(r->wake_event, NULL) == 0);
    if (listen_fd < 0) return HD_OK;
    r->listener = evconnlistener_new(
        r->base, on_accept, r, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, backlog, listen_fd);
    if (!r->listener) {
        int e = errno;
        close(listen_fd);
        return HD_FAIL(IO, "cannot listen: %s", strerror(e));
    }
    evconnlistener_set_error_cb(r->listener, on_accept_error);
    return HD_OK;
}

hd_status hd_reactor_start(hd_reactor *r) {
    int e = pthread_create(&r->thread, NULL, run, r);
    if (e) return HD_FAIL(IO, "cannot start a thread: %s", strerror(e));
    r->has_thread = true;
    return HD_OK;
}

void hd_reactor_join(hd_reactor *r) {
    if (r->has_thread) pthread_join(r->thread, NULL);
    r->has_thread = false;
}

void hd_reactor_free(hd_reactor *r) {
    if (!r) return;
    while (r->ready_head) { /* woken after the loop ended */
        hd_call *c = r->ready_head;
        r->ready_head = c->next;
        hd_call_unref(c);
    }
    for (int i = 0; i < r->n_adopted; i++) close(r->adopted[i]);
    hd_free(r->adopted);
    if (r->listener) evconnlistener_free(r->listener);
    if (r->wake_event) event_free(r->wake_event);
    if (r->sweep_event) event_free(r->sweep_event);
    if (r->accept_event) event_free(r->accept_event);
    if (r->base) event_base_free(r->base);
    if (r->wake_fd >= 0) close(r->wake_fd);
    hd_buf_fini(&r->scratch);
    pthread_mutex_destroy(&r->mu);
    hd_free(r);
}
