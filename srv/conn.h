/* A connection: a socket whose requests are read, answered in order and, when all is well, followed
 * by the next. Belongs to its reactor's thread.
 *
 * A client may close its sending side and still want the answer, or be gone: both look the same
 * until something is sent. So for a request that costs work a few bytes of the answer are sent at
 * once; a client that is gone answers with a reset, and the work is cancelled. */
#ifndef HD_SRV_CONN_H
#define HD_SRV_CONN_H

#include "srv/reactor.h"

typedef struct hd_conn hd_conn;

void hd_conn_open(hd_reactor *r, int fd); /* takes the socket */
hd_conn *hd_conn_next(hd_conn *c);
/* Closes now; what it waited for is cancelled. */
void hd_conn_drop(hd_conn *c);
/* Enforces time limits, looks for clients that left, sends keep-alive comments. May drop. */
void hd_conn_sweep(hd_conn *c, int64_t now_ns);
/* The server stops: fails what runs and closes once its answer is out. May drop. */
void hd_conn_stop(hd_conn *c);

/* Sends the call's reply and goes on to the next request. May drop. */
void hd_conn_reply(hd_conn *c);

/* The engine has the request: a client that has closed its side is probed. May drop. */
void hd_conn_probe(hd_conn *c);

/* A streamed answer. _send is false when the client was too slow and the connection is gone. */
void hd_conn_stream_begin(hd_conn *c);
bool hd_conn_stream_send(hd_conn *c, hd_str bytes);
void hd_conn_stream_end(hd_conn *c); /* may drop */

#endif
