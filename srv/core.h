/* What the files of srv share of the server itself. */
#ifndef HD_SRV_CORE_H
#define HD_SRV_CORE_H

#include "base/mem.h"
#include "srv/server.h"

#include <stdatomic.h>

struct hd_reactor;
struct hd_prep;

enum { HD_SERVER_REACTOR_MAX = 16 };
/* A loop that has made no progress for this long with work queued is reported as unhealthy. */
#define HD_SERVER_STUCK_NS 5000000000
/* Bodies of all requests together; more are answered 503. */
#define HD_SERVER_BODY_BYTES_MAX ((int64_t)1 << 30)

struct hd_server {
    hd_server_config config; /* its strings are in the arena */
    hd_arena *arena;
    int port;
    struct hd_reactor *reactor[HD_SERVER_REACTOR_MAX];
    struct hd_prep *prep;
    _Atomic(hd_engine *) engine; /* NULL: loading */
    atomic_bool is_draining;
    atomic_int n_active, n_connection;
    _Atomic int64_t body_bytes;
    int64_t started_s; /* since 1970 */
};

/* Adds to the count of requests being worked on. Any thread. */
void hd_server_active(hd_server *s, int by);
/* Adds to the bytes of bodies held; false when the limit is passed. Any thread. */
bool hd_server_body_bytes(hd_server *s, int64_t by);

enum hd_server_state {
    HD_SERVER_LOADING,
    HD_SERVER_READY,
    HD_SERVER_DRAINING,
    HD_SERVER_STUCK,
    HD_SERVER_FAILED
};
/* Any thread; never blocks on the engine. */
enum hd_server_state hd_server_get_state(const hd_server *s);

/* Whether the presented key is one of the server's, in time that does not depend on which bytes
 * differ. Always true without keys. */
bool hd_auth_allows(const hd_server_config *c, hd_str authorization, hd_str x_api_key);

#endif
