/* Threads that do with their part of a model what rank 0 does with its own, one command at a time.
 */
#include "engine/ranks.h"

#include "base/log.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum command { OPEN, REHEARSE, ENQUEUE, FETCH, STOP };

typedef struct member {
    hd_ranks *all;
    int rank;
    pthread_t thread;
    hd_dev dev;
    hd_model *model;
    hd_status status; /* of the last command */
    char error[256];
} member;

struct hd_ranks {
    hd_ranks_spec spec;
    hd_group *group;
    pthread_mutex_t lock;
    pthread_cond_t given, done;
    /* Under the lock: */
    enum command command;
    const hd_batch *batch;
    uint64_t n_given; /* commands so far */
    int n_busy;       /* members that are not done with the last */
    int n_member;     /* threads that were started */
    bool is_stopped;
    member member[];
};

static hd_status open_member(member *m) {
    const hd_ranks_spec *spec = &m->all->spec;
    hd_dev_config config = spec->config;
    hd_model_options o = spec->options;
    config.ordinal = m->rank;
    o.comm = hd_group_comm(m->all->group, m->rank);
    HD_TRY(hd_dev_open(spec->backend, &config, &m->dev));
    return hd_model_open(spec->checkpoint, &m->dev, &o, NULL, NULL, &m->model);
}

static void close_member(member *m) {
    hd_model_close(m->model);
    hd_dev_close(&m->dev);
    m->model = NULL;
}

static hd_status obey(member *m, enum command command, const hd_batch *b) {
    hd_model_out out;
    switch (command) {
    case OPEN: return open_member(m);
    case REHEARSE: return hd_model_rehearse(m->model, NULL, NULL);
    case ENQUEUE: return hd_model_enqueue(m->model, b);
    case FETCH: return hd_model_fetch(m->model, &out);
    case STOP: close_member(m); break;
    }
    return HD_OK;
}

static void *member_thread(void *arg) {
    member *m = arg;
    hd_ranks *r = m->all;
    enum command command;
    uint64_t n_seen = 0;
    do {
        pthread_mutex_lock(&r->lock);
        while (r->n_given == n_seen) pthread_cond_wait(&r->given, &r->lock);
        n_seen = r->n_given;
        command = r->command;
        const hd_batch *b = r->batch;
        pthread_mutex_unlock(&r->lock);
        m->status = obey(m, command, b);
        if (m->status != HD_OK) snprintf(m->error, sizeof m->error, "%s", hd_error_text());
        pthread_mutex_lock(&r->lock);
        if (--r->n_busy == 0) pthread_cond_signal(&r->done);
        pthread_mutex_unlock(&r->lock);
    } while (command != STOP);
    return NULL;
}

static void give(hd_ranks *r, enum command command, const hd_batch *b) {
    pthread_mutex_lock(&r->lock);
    HD_ASSERT(r->n_busy == 0);
    r->command = command;
    r->batch = b;
    r->n_busy = r->n_member;
    r->n_given++;
    pthread_cond_broadcast(&r->given);
    pthread_mutex_unlock(&r->lock);
}

/* own: what rank 0's part of the command came to. */
static hd_status settle(hd_ranks *r, hd_status own) {
    pthread_mutex_lock(&r->lock);
    while (r->n_busy > 0) pthread_cond_wait(&r->done, &r->lock);
    pthread_mutex_unlock(&r->lock);
    if (own != HD_OK) return own;
    for (int i = 0; i < r->n_member; i++) {
        const member *m = &r->member[i];
        if (m->status != HD_OK) return hd_fail(m->status, "rank %d: %s", m->rank, m->error);
    }
    return HD_OK;
}

hd_status hd_ranks_start(const hd_ranks_spec *spec, hd_ranks **out) {
    int n = spec->n_rank - 1;
    hd_ranks *r = hd_alloc_zero(1, sizeof *r + (size_t)n * sizeof *r->member);
    r->spec = *spec;
    r->group = hd_group_new(spec->n_rank);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->given, NULL);
    pthread_cond_init(&r->done, NULL);
    *out = r;
    for (int i = 0; i < n; i++) {
        member *m = &r->member[i];
        *m = (member){.all = r, .rank = i + 1};
        int rc = pthread_create(&m->thread, NULL, member_thread, m);
        if (rc != 0) return HD_FAIL(NO_MEMORY, "a rank's thread: %s", strerror(rc));
        pthread_setname_np(m->thread, "hadal-rank");
        r->n_member++;
    }
    give(r, OPEN, NULL);
    return HD_OK;
}

hd_comm *hd_ranks_comm(hd_ranks *r) { return hd_group_comm(r->group, 0); }

hd_status hd_ranks_wait(hd_ranks *r, const hd_dev *dev) {
    hd_dev all[HD_RANK_MAX] = {*dev};
    if (!r) return HD_OK;
    HD_TRY(settle(r, HD_OK));
    for (int i = 0; i < r->n_member; i++) all[r->member[i].rank] = r->member[i].dev;
    HD_TRY(hd_group_join(r->group, all));
    hd_log(HD_LOG_INFO, "the model is sharded", "ranks", "d", (int64_t)r->spec.n_rank, "experts",
           "s", r->spec.options.is_expert_parallel ? "by rank" : "in parts", "collectives", "s",
           hd_ranks_comm(r)->by, NULL);
    return HD_OK;
}

void hd_ranks_stop(hd_ranks *r) {
    if (!r || r->is_stopped) return;
    r->is_stopped = true;
    (void)settle(r, HD_OK); /* they may still be loading */
    give(r, STOP, NULL);
    for (int i = 0; i < r->n_member; i++) pthread_join(r->member[i].thread, NULL);
}

void hd_ranks_free(hd_ranks *r) {
    if (!r) return;
    hd_ranks_stop(r);
    hd_group_free(r->group);
    pthread_cond_destroy(&r->given);
    pthread_cond_destroy(&r->done);
    pthread_mutex_destroy(&r->lock);
    hd_free(r);
}

hd_status hd_ranks_rehearse(hd_ranks *r, hd_model *m,
                            void (*on_progress)(void *user, int done, int all), void *user) {
    if (!r) return hd_model_rehearse(m, on_progress, user);
    give(r, REHEARSE, NULL);
    return settle(r, hd_model_rehearse(m, on_progress, user));
}

hd_status hd_ranks_enqueue(hd_ranks *r, hd_model *m, const hd_batch *b) {
    if (!r) return hd_model_enqueue(m, b);
    give(r, ENQUEUE, b);
    return settle(r, hd_model_enqueue(m, b));
}

hd_status hd_ranks_fetch(hd_ranks *r, hd_model *m, hd_model_out *out) {
    if (!r) return hd_model_fetch(m, out);
    give(r, FETCH, NULL);
    return settle(r, hd_model_fetch(m, out));
}

hd_ranks_facts hd_ranks_get_facts(const hd_ranks *r) {
    hd_ranks_facts f = {0};
    for (int i = 0; r && i < r->n_member; i++) {
        const hd_model *m = r->member[i].model;
        f.weight_bytes += hd_model_weight_bytes(m);
        f.kv_bytes += hd_model_kv_bytes(m);
        f.workspace_bytes += hd_model_workspace_bytes(m);
        f.kv_lost += hd_model_kv_lost(m);
    }
    return f;
}
