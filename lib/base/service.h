/* Service classes: how long a request may take, as its sender sees it (service.def). */
#ifndef HD_BASE_SERVICE_H
#define HD_BASE_SERVICE_H

#include <stdint.h>

enum hd_service {
#define HD_SERVICE(id, name, tier, ttft_ms, wait_ms, slowdown, help) HD_SERVICE_##id,
#include "base/service.def"
#undef HD_SERVICE
    HD_SERVICE_COUNT
};

/* What an operator promises a class; 0 in a configuration: the default of service.def. */
typedef struct hd_service_target {
    int64_t ttft_ns; /* the first token is due so long after the request */
    int64_t wait_ns; /* predicted wait from which a request is refused; default: ttft_ns if given */
    int64_t itl_ns;  /* bound of a step's time while one of this class decodes; 0: by slowdown */
    double slowdown; /* the same as a multiple of the time of the decoding rows alone */
} hd_service_target;

/* For messages: what hd_service_find knows. */
#define HD_SERVICE_NAMES                                                                           \
    "interactive, standard, batch or offline (or, as service_tier, priority, default, flex or "    \
    "auto)"
const char *hd_service_name(enum hd_service c);
/* By name, or by OpenAI's service_tier; "auto" is standard. -1: no such class. */
int hd_service_find(const char *name);
/* Fills what is 0. */
hd_service_target hd_service_defaults(enum hd_service c, hd_service_target t);

#endif
