/* A call: one HTTP request, from its head to the last byte of its answer.
 *
 * It is shared by the connection it came on, the pool that prepares it and the engine that works
 * for it, and lives until the last of them lets go. Who may touch what: `arena`, `body` and `reply`
 * belong to the pool until `is_prepared`, then to the reactor; `conn` is the reactor's always; what
 * is under `mu` is anybody's. */
#ifndef HD_SRV_CALL_H
#define HD_SRV_CALL_H

#include "base/mem.h"
#include "srv/api_read.h"
#include "srv/http.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct hd_call hd_call;
struct hd_server;
struct hd_reactor;
struct hd_conn;
struct hd_route;
struct hd_generation;

/* An answer that is whole. */
typedef struct hd_reply {
    int code;
    const char *content_type; /* NULL: no body */
    hd_buf body;
    const void *fixed; /* not NULL: the body, borrowed for ever, instead of `body` */
    size_t fixed_bytes;
    hd_buf headers; /* further lines, each ending in CR LF */
} hd_reply;

/* Tokens of an answer. A prompt counts once, however many choices answer it. */
typedef struct hd_usage {
    int64_t n_prompt, n_hit, n_generated, n_reasoning;
} hd_usage;

struct hd_call {
    atomic_int n_ref;
    struct hd_server *server;
    struct hd_reactor *reactor;
    struct hd_conn *conn; /* NULL: the client is gone */
    const struct hd_route *route;
    hd_arena *arena;
    hd_http_head head; /* views into the arena */
    hd_buf body;
    size_t body_counted; /* of its memory, in the server's sum */
    hd_reply reply;
    char request_id[65], client[64];
    int64_t start_ns;
    bool is_active;   /* counted as work */
    bool is_finished; /* logged and counted */

    pthread_mutex_t mu;
    bool is_queued;    /* in the reactor's list */
    bool is_prepared;  /* the pool is done: `reply` or `generation` is there */
    bool is_cancelled; /* nobody waits for it any more */
    hd_call *next;     /* in the pool's or the reactor's list */

    struct hd_generation *generation; /* set before is_prepared */
    /* For the log; the reactor's. model NULL: no generation. */
    const char *model, *finish;
    hd_usage usage;
    int64_t first_token_ns;
};

hd_call *hd_call_new(struct hd_server *s, struct hd_conn *conn);
hd_call *hd_call_ref(hd_call *c);
void hd_call_unref(hd_call *c); /* any thread */

/* The request is over, answered with `code` (0: the client went away). Logs and counts it, once. */
void hd_call_finish(hd_call *c, int code);

/* Replies; each replaces what was there. */
void hd_reply_clear(hd_reply *r);
void hd_reply_error(hd_reply *r, const hd_api_error *e);
void hd_reply_status(hd_reply *r, hd_status s, const char *message);
/* With an HTTP code of its own (408, 431, ...), type invalid_request_error. */
void hd_reply_code(hd_reply *r, int code, const char *message);
/* 503 while the model loads, in the form that llama.cpp's clients know. */
void hd_reply_loading(hd_reply *r);
/* Starts a JSON body with code 200. */
hd_json hd_reply_json(hd_reply *r);
/* {"error": {...}} onto a buffer. */
void hd_error_json(hd_buf *b, const hd_api_error *e);

/* Takes x-request-id when it is short and plain, else makes one. */
void hd_call_set_request_id(hd_call *c);
/* 32 hex digits that no other call has. */
void hd_make_id(char out[33]);

#endif
