/* The prep pool: threads that parse bodies, render chats and tokenize, so that a long prompt holds
 * up no other connection. */
#ifndef HD_SRV_PREP_H
#define HD_SRV_PREP_H

#include "srv/call.h"

typedef struct hd_prep hd_prep;

enum { HD_PREP_QUEUE_MAX = 4096 };

HD_MUST_CHECK hd_status hd_prep_new(int n_thread, hd_prep **out);
/* Queues the call's handler; when it has run, the call is prepared and its reactor woken. False,
 * and nothing taken, when the queue is full. Any thread. */
bool hd_prep_add(hd_prep *p, hd_call *c);
/* Drops what is queued, lets running handlers end, joins the threads. */
void hd_prep_stop(hd_prep *p);
void hd_prep_free(hd_prep *p); /* accepts NULL */

#endif
