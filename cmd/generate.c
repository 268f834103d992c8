/* The engine's thread must never block, and a terminal may: events cross to the caller's thread in
 * a queue, with an eventfd that SIGINT's handler can write, too. */
#include "cmd/generate.h"

#include "base/mem.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static volatile sig_atomic_t was_interrupted;
static volatile int interrupt_fd = -1;

static void on_interrupt(int sig) {
    (void)sig;
    int saved = errno;
    uint64_t one = 1;
    was_interrupted = 1;
    if (interrupt_fd >= 0 && write(interrupt_fd, &one, sizeof one) < 0) was_interrupted = 1;
    errno = saved;
}

void hd_generate_catch_interrupt(void) {
    struct sigaction a = {.sa_handler = on_interrupt}; /* no SA_RESTART: reading a line ends */
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
}

bool hd_generate_was_interrupted(void) {
    bool yes = was_interrupted != 0;
    was_interrupted = 0;
    return yes;
}

/* Events that the caller has not seen; each request sends at most n_max. */
typedef struct queue {
    pthread_mutex_t lock;
    hd_event *event;
    int n, n_max;
    char error[256];
    int fd;
} queue;

static bool on_event(void *user, const hd_event *ev) {
    queue *q = user;
    pthread_mutex_lock(&q->lock);
    HD_ASSERT(q->n < q->n_max);
    q->event[q->n++] = *ev;
    if (ev->error) snprintf(q->error, sizeof q->error, "%s", ev->error);
    pthread_mutex_unlock(&q->lock);
    uint64_t one = 1;
    return write(q->fd, &one, sizeof one) == (ssize_t)sizeof one;
}

static void finish(hd_generated *out, const hd_event *ev) {
    int64_t first_ns = ev->first_token_ns > 0 ? ev->first_token_ns : ev->now_ns;
    *out = (hd_generated){.finish = ev->finish,
                          .status = ev->status,
                          .n_prompt = ev->n_prompt,
                          .n_hit = ev->n_hit,
                          .n_generated = ev->n_generated,
                          .first_s = (double)(first_ns - ev->submitted_ns) * 1e-9};
    double rest_s = (double)(ev->now_ns - first_ns) * 1e-9;
    if (ev->n_generated > 1 && rest_s > 0) out->token_s = (ev->n_generated - 1) / rest_s;
}

static void receive(hd_engine *e, queue *q, uint64_t id,
                    bool (*on_token)(void *user, const hd_event *ev), void *user,
                    hd_generated *out) {
    for (int seen = 0; out->finish == HD_FINISH_NONE;) {
        struct pollfd p = {.fd = q->fd, .events = POLLIN};
        uint64_t n;
        if (poll(&p, 1, -1) > 0 && read(q->fd, &n, sizeof n) < 0) continue;
        if (was_interrupted) hd_request_cancel(e, id);
        pthread_mutex_lock(&q->lock);
        int n_event = q->n;
        pthread_mutex_unlock(&q->lock);
        for (; seen < n_event; seen++) { /* written ones do not change any more */
            const hd_event *ev = &q->event[seen];
            if (ev->token >= 0 && !on_token(user, ev)) hd_request_cancel(e, id);
            if (ev->finish != HD_FINISH_NONE) finish(out, ev);
        }
    }
}

hd_status hd_generate(hd_engine *e, hd_request *r, bool (*on_token)(void *user, const hd_event *ev),
                      void *user, hd_generated *out) {
    *out = (hd_generated){0};
    queue q = {.n_max = hd_engine_get_info(e)->max_model_len + 2, .fd = eventfd(0, EFD_CLOEXEC)};
    if (q.fd < 0) return HD_FAIL(IO, "eventfd: %s", strerror(errno));
    q.event = hd_alloc_zero((size_t)q.n_max, sizeof *q.event);
    pthread_mutex_init(&q.lock, NULL);
    interrupt_fd = q.fd;
    r->on_event = on_event;
    r->user = &q;
    uint64_t id;
    hd_status s = hd_request_submit(e, r, &id);
    if (s == HD_OK) receive(e, &q, id, on_token, user, out);
    interrupt_fd = -1;
    if (s == HD_OK && out->finish == HD_FINISH_ERROR) s = hd_fail(out->status, "%s", q.error);
    pthread_mutex_destroy(&q.lock);
    hd_free(q.event);
    close(q.fd);
    return s;
}
