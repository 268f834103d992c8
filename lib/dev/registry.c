/* The backends that are built in, best first, and the names of ops. */
#include "dev/dev.h"

#include <string.h>

/* "auto" opens the first that opens. Adding a backend is one entry. */
static const hd_dev_ops *const backends[] = {&hd_dev_cpu, &hd_dev_ref};

static hd_status open_backend(const hd_dev_ops *ops, const hd_dev_config *config, hd_dev *out) {
    void *ctx = NULL;
    HD_TRY(ops->open(config, &ctx));
    *out = (hd_dev){.ops = ops, .ctx = ctx};
    return HD_OK;
}

static hd_status unknown_name(const char *name) {
    char known[256] = "auto";
    for (size_t i = 0; i < HD_COUNT_OF(backends); i++) {
        strncat(known, ", ", sizeof known - strlen(known) - 1);
        strncat(known, backends[i]->name, sizeof known - strlen(known) - 1);
    }
    return HD_FAIL(UNSUPPORTED, "no backend \"%s\"; known: %s", name, known);
}

hd_status hd_dev_open(const char *name, const hd_dev_config *config, hd_dev *out) {
    static const hd_dev_config defaults = {.n_thread = 0, .isa = "auto"};
    if (!config) config = &defaults;
    *out = (hd_dev){0};
    if (!name || strcmp(name, "auto") == 0) {
        hd_status s = HD_OK;
        for (size_t i = 0; i < HD_COUNT_OF(backends); i++) {
            s = open_backend(backends[i], config, out);
            if (s == HD_OK) return HD_OK;
        }
        return s;
    }
    for (size_t i = 0; i < HD_COUNT_OF(backends); i++)
        if (strcmp(name, backends[i]->name) == 0) return open_backend(backends[i], config, out);
    return unknown_name(name);
}

void hd_dev_close(hd_dev *d) {
    if (d->ops) d->ops->close(d->ctx);
    *d = (hd_dev){0};
}

const char *hd_op_name(enum hd_op op) {
    static const char *const names[] = {
#define HD_OP(name, what) #name,
#include "dev/op.def"
#undef HD_OP
    };
    HD_ASSERT(op < HD_OP_COUNT);
    return names[op];
}
