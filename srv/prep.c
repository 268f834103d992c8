/* The prep pool's queue and threads. */
#include "srv/prep.h"

#include "srv/generation.h"
#include "srv/reactor.h"
#include "srv/routes.h"

#include <string.h>

enum { thread_max = 64 };

struct hd_prep {
    pthread_mutex_t mu;
    pthread_cond_t has_work;
    hd_call *head, *tail;
    int n_queued, n_thread;
    bool is_stopping;
    pthread_t thread[thread_max];
};

static hd_call *take(hd_prep *p) {
    pthread_mutex_lock(&p->mu);
    while (!p->head && !p->is_stopping) pthread_cond_wait(&p->has_work, &p->mu);
    hd_call *c = p->is_stopping ? NULL : p->head;
    if (c) {
        p->head = c->next;
        if (!p->head) p->tail = NULL;
        p->n_queued--;
    }
    pthread_mutex_unlock(&p->mu);
    return c;
}

static void prepare(hd_call *c) {
    pthread_mutex_lock(&c->mu);
    bool is_cancelled = c->is_cancelled;
    pthread_mutex_unlock(&c->mu);
    if (!is_cancelled) c->route->handle(c);
    pthread_mutex_lock(&c->mu);
    c->is_prepared = true;
    is_cancelled = c->is_cancelled;
    pthread_mutex_unlock(&c->mu);
    /* Who cancelled before is_prepared did not see the generation. */
    if (is_cancelled && c->generation) hd_generation_cancel(c->generation);
    hd_reactor_wake(c);
    hd_call_unref(c);
}

static void *run(void *arg) {
    hd_prep *p = arg;
    for (hd_call *c; (c = take(p)) != NULL;) prepare(c);
    return NULL;
}

hd_status hd_prep_new(int n_thread, hd_prep **out) {
    hd_prep *p = hd_alloc_zero(1, sizeof *p);
    *out = p;
    pthread_mutex_init(&p->mu, NULL);
    pthread_cond_init(&p->has_work, NULL);
    HD_ASSERT(n_thread >= 1 && n_thread <= thread_max);
    for (; p->n_thread < n_thread; p->n_thread++) {
        int e = pthread_create(&p->thread[p->n_thread], NULL, run, p);
        if (e) return HD_FAIL(IO, "cannot start a thread: %s", strerror(e));
    }
    return HD_OK;
}

bool hd_prep_add(hd_prep *p, hd_call *c) {
    pthread_mutex_lock(&p->mu);
    bool ok = p->n_queued < HD_PREP_QUEUE_MAX && !p->is_stopping;
    if (ok) {
        hd_call_ref(c);
        c->next = NULL;
        if (p->tail)
            p->tail->next = c;
        else
            p->head = c;
        p->tail = c;
        p->n_queued++;
        pthread_cond_signal(&p->has_work);
    }
    pthread_mutex_unlock(&p->mu);
    return ok;
}

void hd_prep_stop(hd_prep *p) {
    pthread_mutex_lock(&p->mu);
    p->is_stopping = true;
    hd_call *left = p->head;
    p->head = p->tail = NULL;
    pthread_cond_broadcast(&p->has_work);
    pthread_mutex_unlock(&p->mu);
    for (int i = 0; i < p->n_thread; i++) pthread_join(p->thread[i], NULL);
    p->n_thread = 0;
    while (left) {
        hd_call *next = left->next;
        hd_call_unref(left);
        left = next;
    }
}

void hd_prep_free(hd_prep *p) {
    if (!p) return;
    HD_ASSERT(p->n_thread == 0);
    pthread_cond_destroy(&p->has_work);
    pthread_mutex_destroy(&p->mu);
    hd_free(p);
}
