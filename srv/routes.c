/* The table of routes, and finding a row. */
#include "srv/routes.h"

#include "srv/web.h"

#include <string.h>

static const hd_route rows[] = {
    /* method, path, where, key, engine, quiet, handler */
    {"POST", "/v1/chat/completions", HD_ROUTE_ENGINE, true, true, false, hd_handle_chat},
    {"POST", "/chat/completions", HD_ROUTE_ENGINE, true, true, false, hd_handle_deepseek_chat},
    {"POST", "/beta/chat/completions", HD_ROUTE_ENGINE, true, true, false, hd_handle_deepseek_chat},
    {"POST", "/v1/completions", HD_ROUTE_ENGINE, true, true, false, hd_handle_completion},
    {"POST", "/completions", HD_ROUTE_ENGINE, true, true, false, hd_handle_completion},
    {"POST", "/beta/completions", HD_ROUTE_ENGINE, true, true, false, hd_handle_completion},
    {"POST", "/tokenize", HD_ROUTE_POOL, true, true, false, hd_handle_tokenize},
    {"POST", "/detokenize", HD_ROUTE_POOL, true, true, false, hd_handle_detokenize},
    {"POST", "/apply-template", HD_ROUTE_POOL, true, true, false, hd_handle_apply_template},
    {"GET", "/v1/models", HD_ROUTE_HERE, true, true, true, hd_handle_models},
    {"GET", "/models", HD_ROUTE_HERE, true, true, true, hd_handle_models},
    {"GET", "/beta/models", HD_ROUTE_HERE, true, true, true, hd_handle_models},
    {"GET", "/v1/models/*", HD_ROUTE_HERE, true, true, true, hd_handle_model},
    {"GET", "/models/*", HD_ROUTE_HERE, true, true, true, hd_handle_model},
    {"GET", "/health", HD_ROUTE_HERE, false, false, true, hd_handle_health},
    {"GET", "/v1/health", HD_ROUTE_HERE, false, false, true, hd_handle_health},
    {"GET", "/ping", HD_ROUTE_HERE, false, false, true, hd_handle_health},
    {"GET", "/ready", HD_ROUTE_HERE, false, false, true, hd_handle_ready},
    {"GET", "/metrics", HD_ROUTE_HERE, false, false, true, hd_handle_metrics},
    {"GET", "/version", HD_ROUTE_HERE, false, false, true, hd_handle_version},
    {"GET", "/*", HD_ROUTE_HERE, false, false, true, hd_handle_asset},
};

static bool fits(const hd_route *r, hd_str path) {
    size_t n = strlen(r->path);
    if (r->handle == hd_handle_asset) return hd_asset_find(path, true) != NULL;
    if (r->path[n - 1] != '*') return hd_str_eq_c(path, r->path);
    return path.len >= n && memcmp(path.ptr, r->path, n - 1) == 0;
}

static void add_method(hd_buf *allow, const char *method) {
    if (allow->len > 0) hd_buf_add_c(allow, ", ");
    hd_buf_add_c(allow, method);
}

const hd_route *hd_route_find(hd_str method, hd_str path, hd_buf *allow) {
    hd_buf_clear(allow);
    if (hd_str_eq_c(method, "HEAD")) method = hd_str_of("GET");
    for (size_t i = 0; i < HD_COUNT_OF(rows); i++) {
        if (!fits(&rows[i], path)) continue;
        if (hd_str_eq_c(method, rows[i].method)) return &rows[i];
        add_method(allow, rows[i].method);
        if (hd_str_eq_c(hd_str_of(rows[i].method), "GET")) add_method(allow, "HEAD");
    }
    if (allow->len > 0) add_method(allow, "OPTIONS");
    return NULL;
}
