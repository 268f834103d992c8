/* The pool: threads that parse bodies, render chats and tokenize, so that a long prompt holds up
 * no other connection. */
#ifndef HD_SRV_POOL_H
#define HD_SRV_POOL_H

#include "srv/call.h"

typedef struct hd_pool hd_pool;

enum { HD_POOL_QUEUE_MAX = 4096 };

HD_MUST_CHECK hd_status hd_pool_new(int n_thread, hd_pool **out);
/* Queues the call's handler; when it has run, the call is prepared and its reactor woken. False,
 * and nothing taken, when the queue is full. Any thread. */
bool hd_pool_add(hd_pool *p, hd_call *c);
/* Drops what is queued, lets running handlers end, joins the threads. */
void hd_pool_stop(hd_pool *p);
void hd_pool_free(hd_pool *p); /* accepts NULL */

#endif
