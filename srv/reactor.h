/* A reactor: one thread, one event loop, and the connections it owns.
 *
 * Other threads reach it only by hd_reactor_wake (a call has news) and a socket that
 * reactor 0 hands over; both write an eventfd. Reactor 0 also accepts, and deals sockets out in
 * turn. */
#ifndef HD_SRV_REACTOR_H
#define HD_SRV_REACTOR_H

#include "srv/call.h"

#include <event2/event.h>

typedef struct hd_reactor {
    struct hd_server *server;
    int ix;
    struct event_base *base;
    struct hd_conn *conn; /* its connections, a list */
    int n_conn;
    hd_buf scratch; /* for building one answer at a time */
    struct event *wake_event, *sweep_event, *accept_event;
    struct evconnlistener *listener; /* reactor 0 */
    unsigned turn;                   /* whose the next socket is */
    int wake_fd;
    bool is_stopping;
    int64_t stop_by_ns;
    pthread_t thread;
    bool has_thread;

    pthread_mutex_t mu;
    hd_call *ready_head, *ready_tail; /* calls with news */
    int *adopted;                     /* sockets to take over */
    int n_adopted, adopted_room;
    bool must_stop;
} hd_reactor;

/* listen_fd is taken over; -1 for a reactor that does not accept. */
HD_MUST_CHECK hd_status hd_reactor_new(struct hd_server *s, int ix, int listen_fd,
                                       hd_reactor **out);
HD_MUST_CHECK hd_status hd_reactor_start(hd_reactor *r);
void hd_reactor_wake(hd_call *c);        /* any thread */
void hd_reactor_ask_stop(hd_reactor *r); /* any thread */
void hd_reactor_join(hd_reactor *r);
void hd_reactor_free(hd_reactor *r); /* after join; accepts NULL */

#endif
