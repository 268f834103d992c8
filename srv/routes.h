/* The routes: one row each in routes.c. */
#ifndef HD_SRV_ROUTES_H
#define HD_SRV_ROUTES_H

#include "srv/call.h"

enum hd_route_kind {
    HD_ROUTE_HERE,  /* answered on the reactor: no waiting, no long computing */
    HD_ROUTE_POOL,  /* parsed and prepared by the pool */
    HD_ROUTE_ENGINE /* the same, for the engine: refused at once when it takes no more */
};

typedef struct hd_route {
    const char *method, *path; /* a path ending in '*' is a prefix */
    enum hd_route_kind kind;
    bool needs_key;    /* an API key, where the server has any */
    bool needs_engine; /* 503 while loading, and new work is refused while draining */
    bool is_quiet;     /* logged at debug level: asked for all the time by machines */
    void (*handle)(hd_call *c);
} hd_route;

struct hd_web_asset;
/* The embedded file of that path, compressed where `gzip` is fine and there is such a form. */
const struct hd_web_asset *hd_asset_find(hd_str path, bool gzip);

/* The row for a method ("HEAD" finds GET's) and path, or NULL: then *allow lists the path's
 * methods, empty when there is no such path. */
const hd_route *hd_route_find(hd_str method, hd_str path, hd_buf *allow);

/* Handlers: they fill c->reply, or start c->generation. */
void hd_handle_chat(hd_call *c);
void hd_handle_deepseek_chat(hd_call *c); /* the paths that DeepSeek's API alone has */
void hd_handle_completion(hd_call *c);
void hd_handle_tokenize(hd_call *c);
void hd_handle_detokenize(hd_call *c);
void hd_handle_apply_template(hd_call *c);
void hd_handle_models(hd_call *c);
void hd_handle_model(hd_call *c);
void hd_handle_health(hd_call *c);
void hd_handle_ready(hd_call *c);
void hd_handle_metrics(hd_call *c);
void hd_handle_version(hd_call *c);
void hd_handle_asset(hd_call *c);

#endif
