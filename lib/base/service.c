/* The table of service classes. */
#include "base/service.h"

#include <stddef.h>
#include <string.h>

static const struct {
    const char *name, *tier;
    int ttft_ms, wait_ms;
    double slowdown;
} rows[HD_SERVICE_COUNT] = {
#define HD_SERVICE(id, name, tier, ttft_ms, wait_ms, slowdown, help)                               \
    [HD_SERVICE_##id] = {name, tier, ttft_ms, wait_ms, slowdown},
#include "base/service.def"
#undef HD_SERVICE
};

const char *hd_service_name(enum hd_service c) { return rows[c].name; }

int hd_service_find(const char *name) {
    if (strcmp(name, "auto") == 0) return HD_SERVICE_STANDARD;
    for (int c = 0; c < HD_SERVICE_COUNT; c++) {
        if (strcmp(rows[c].name, name) == 0) return c;
        if (rows[c].tier && strcmp(rows[c].tier, name) == 0) return c;
    }
    return -1;
}

hd_service_target hd_service_defaults(enum hd_service c, hd_service_target t) {
    if (t.wait_ns == 0) t.wait_ns = t.ttft_ns > 0 ? t.ttft_ns : rows[c].wait_ms * INT64_C(1000000);
    if (t.ttft_ns == 0) t.ttft_ns = rows[c].ttft_ms * INT64_C(1000000);
    if (t.slowdown <= 0) t.slowdown = rows[c].slowdown;
    return t;
}
