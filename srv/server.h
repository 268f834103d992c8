/* The HTTP server: listens at once, answers /health while the model loads, serves once it is given
 * an engine, drains, stops.
 *
 * Threads: reactors (libevent, each owning its connections) and a small pool that parses, renders
 * and tokenizes; engine events come from the engine's thread. The functions here belong to one
 * controlling thread, except where they say "any thread".
 *
 * Life: open, [set_engine], drain, stop, (close the engine), free. */
#ifndef HD_SRV_SERVER_H
#define HD_SRV_SERVER_H

#include "hadal.h"

typedef struct hd_server_config {
    const char *host; /* address or name to bind */
    int port;         /* 0: any free one */
    int n_reactor, n_pool;
    int n_connection_max;
    size_t body_bytes_max, output_bytes_max; /* a request's body; unsent bytes of a stream */
    double read_timeout_s;      /* for a whole request head, and body (plus its size) */
    double idle_timeout_s;      /* a kept-alive connection without a request */
    double write_timeout_s;     /* no progress of sending */
    double keep_alive_s;        /* silence after which a comment, or a blank line, is sent */
    const char *const *api_key; /* [n_api_key] empty: open to all */
    int n_api_key;
    const char *cors_origin; /* NULL: no CORS headers */
    bool model_sampling;     /* what a request leaves open is as the model's files suggest it */
} hd_server_config;

void hd_server_config_init(hd_server_config *c); /* the defaults */

typedef struct hd_server hd_server;

/* Binds and starts to answer. The config is copied. HD_E_IO names the address and what is wrong. */
HD_MUST_CHECK hd_status hd_server_open(const hd_server_config *c, hd_server **out);
int hd_server_port(const hd_server *s);
/* The engine is borrowed until hd_server_free. From now on requests are served. */
void hd_server_set_engine(hd_server *s, hd_engine *e);
/* Not ready from now on: new work is answered 503, what runs goes on. */
void hd_server_drain(hd_server *s);
/* Requests being worked on, their answers included. Any thread. */
int hd_server_n_active(const hd_server *s);
/* Ends what still runs with an error, sends what can be sent within two seconds, closes all
 * connections and joins the threads. */
void hd_server_stop(hd_server *s);
/* After hd_server_stop, and after hd_engine_close where there was an engine. Accepts NULL. */
void hd_server_free(hd_server *s);

#endif
