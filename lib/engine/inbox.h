/* The way into the loop: one bounded queue of submits and ends, many writers, one reader.
 *
 * Every live request has a slot. A slot has at most one submit and one end under way, so a queue
 * of twice the slots never overflows and an end can always be posted; what is refused (HD_E_BUSY)
 * is a submit, when too many requests or prompt tokens wait already or the wait would be too long.
 * Everything is allocated at the start. Thread: any, except where it says the reader. */
#ifndef HD_ENGINE_INBOX_H
#define HD_ENGINE_INBOX_H

#include "engine/job.h"
#include "sched/pace.h"

typedef struct hd_inbox hd_inbox;

typedef struct hd_inbox_limits {
    int n_running_max, n_waiting_max;
    int64_t waiting_tok_max;               /* 0: no bound */
    int64_t wait_max_ns[HD_SERVICE_COUNT]; /* predicted; 0: no bound */
} hd_inbox_limits;

hd_inbox *hd_inbox_new(const hd_inbox_limits *l);
void hd_inbox_free(hd_inbox *x);        /* accepts NULL */
int hd_inbox_n_slot(const hd_inbox *x); /* jobs alive at most */

typedef struct hd_inbox_ask {
    enum hd_service service;
    uint64_t tenant;
    int n_prompt, n_new;         /* tokens; the answer's at most */
    int64_t now_ns, deadline_ns; /* 0: none */
} hd_inbox_ask;

/* Takes a slot for a request and names it: *id. HD_E_BUSY: too many wait, or it would wait too long
 * for its class or its deadline. HD_E_UNAVAILABLE: closed. Follow with post_submit or forsake. */
HD_MUST_CHECK hd_status hd_inbox_reserve(hd_inbox *x, const hd_inbox_ask *a, uint64_t *id);
void hd_inbox_forsake(hd_inbox *x, uint64_t id, const hd_inbox_ask *a);
/* The answer that reserve would give, without the slot. */
HD_MUST_CHECK hd_status hd_inbox_would_reserve(hd_inbox *x, const hd_inbox_ask *a);
/* Predicted wait of a request of this class; *retry_ns: until one may be accepted again. */
int64_t hd_inbox_wait_ns(hd_inbox *x, enum hd_service c, int64_t *retry_ns);
/* The job is the reader's from now on. HD_E_UNAVAILABLE: closed meanwhile; it is still the
 * caller's, and so is the slot. */
HD_MUST_CHECK hd_status hd_inbox_post_submit(hd_inbox *x, hd_job *j);
/* how: CANCELLED, or STOP. Of several for a job the first counts. */
void hd_inbox_post_end(hd_inbox *x, uint64_t id, enum hd_finish how);

/* No more submits. text: what later ones are told (static). */
void hd_inbox_close(hd_inbox *x, const char *text);
void hd_inbox_wake(hd_inbox *x);

/* ---- the reader ---- */

typedef struct hd_inbox_message {
    enum hd_finish end; /* how the job is to end; NONE: a submit */
    hd_job *job;
} hd_inbox_message;
bool hd_inbox_pop(hd_inbox *x, hd_inbox_message *out); /* false: empty */
/* A job left the waiting line (admitted, or ended before that). */
void hd_inbox_left(hd_inbox *x, const hd_job *j);
/* A job has ended; its last event is yet to be told. */
void hd_inbox_ended(hd_inbox *x);
/* How the line moves; n_room is added to its bound. */
void hd_inbox_set_pace(hd_inbox *x, const hd_pace *p);
/* Drops one reference; with the last one the slot is free, the job is freed and true returned. */
bool hd_inbox_unref(hd_inbox *x, hd_job *j);
/* The job in a slot, or NULL: to end all of them. */
hd_job *hd_inbox_job_at(hd_inbox *x, int slot);
/* Sleeps until there is a message or a wake, or for at most timeout_ns (0: no limit). */
void hd_inbox_sleep(hd_inbox *x, int64_t timeout_ns);

/* ---- watching: never blocks ---- */

int hd_inbox_n_live(const hd_inbox *x);         /* reserved, waiting or running */
int hd_inbox_n_unread(const hd_inbox *x);       /* submits that the reader has not seen */
int64_t hd_inbox_busy_since(const hd_inbox *x); /* when n_live last became more than 0 */

#endif
