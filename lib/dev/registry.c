/* The backends, best first, what they share, and the names of ops. */
#include "base/log.h"
#include "dev/plugin.h"

#include <string.h>

/* "auto" opens the first that opens. Adding a backend is one entry: its table, or the shared object
 * that holds it. */
static const struct backend {
    const char *name;
    const hd_dev_ops *ops;
    const char *object;
} backends[] = {
    {.name = "cuda", .object = "libhadal_cuda.so"},
    {.name = "cpu", .ops = &hd_dev_cpu},
    {.name = "ref", .ops = &hd_dev_ref},
};

static hd_status open_backend(const struct backend *b, const hd_dev_config *config, hd_dev *out) {
    const hd_dev_ops *ops = b->ops;
    void *ctx = NULL;
    if (b->object) HD_TRY(hd_plugin_load(b->object, config->cuda_library, &ops));
    HD_TRY(ops->open(config, &ctx));
    *out = (hd_dev){.ops = ops, .ctx = ctx};
    return HD_OK;
}

static hd_status open_named(const struct backend *b, const hd_dev_config *config, hd_dev *out) {
    hd_status s = open_backend(b, config, out);
    return s == HD_OK || !b->object ? s : hd_fail_context(s, "backend %s", b->name);
}

static hd_status unknown_name(const char *name) {
    char known[256] = "auto";
    for (size_t i = 0; i < HD_COUNT_OF(backends); i++)
        hd_list_add(known, sizeof known, backends[i].name);
    return HD_FAIL(UNSUPPORTED, "no backend \"%s\"; known: %s", name, known);
}

hd_status hd_dev_open(const char *name, const hd_dev_config *config, hd_dev *out) {
    static const hd_dev_config defaults = {.n_thread = 0, .isa = "auto"};
    if (!config) config = &defaults;
    *out = (hd_dev){0};
    if (!name || strcmp(name, "auto") == 0) {
        hd_status s = HD_OK;
        for (size_t i = 0; i < HD_COUNT_OF(backends); i++) {
            s = open_backend(&backends[i], config, out);
            if (s == HD_OK) return HD_OK;
            if (backends[i].object)
                hd_log(HD_LOG_INFO, "a backend is not used", "backend", "s", backends[i].name,
                       "reason", "s", hd_error_text(), NULL);
        }
        return s;
    }
    for (size_t i = 0; i < HD_COUNT_OF(backends); i++)
        if (strcmp(name, backends[i].name) == 0) return open_named(&backends[i], config, out);
    return unknown_name(name);
}

hd_status hd_compute_of(const char *name, enum hd_compute *out) {
    static const char *const names[] = {"auto", "float32", "bfloat16"};
    *out = HD_COMPUTE_AUTO;
    for (size_t i = 0; name && i < HD_COUNT_OF(names); i++) {
        *out = (enum hd_compute)i;
        if (strcmp(name, names[i]) == 0) return HD_OK;
    }
    return name ? HD_FAIL(INVALID, "dtype \"%s\": auto, float32 or bfloat16", name) : HD_OK;
}

void hd_dev_close(hd_dev *d) {
    if (d->ops) d->ops->close(d->ctx);
    *d = (hd_dev){0};
}

hd_status hd_dev_put(const hd_dev *d, void *to, const void *from, size_t n_byte) {
    if (d->ops->put) return d->ops->put(d->ctx, to, from, n_byte);
    if (to != from) memcpy(to, from, n_byte);
    return HD_OK;
}

hd_status hd_dev_get(const hd_dev *d, void *to, const void *from, size_t n_byte) {
    if (d->ops->get) return d->ops->get(d->ctx, to, from, n_byte);
    if (to != from) memcpy(to, from, n_byte);
    return HD_OK;
}

hd_status hd_dev_copy(const hd_dev *d, void *to, const void *from, size_t n_byte) {
    if (d->ops->copy) return d->ops->copy(d->ctx, to, from, n_byte);
    memcpy(to, from, n_byte);
    return HD_OK;
}

hd_status hd_dev_upload(const hd_dev *d, const hd_batch *b, const hd_batch **out) {
    *out = b;
    return d->ops->upload ? d->ops->upload(d->ctx, b, out) : HD_OK;
}

hd_status hd_dev_send(const hd_dev *d, int ix, const void *from, size_t n_byte) {
    return d->ops->send ? d->ops->send(d->ctx, ix, from, n_byte) : HD_OK;
}

hd_status hd_dev_receive(const hd_dev *d, int ix, const void *from, void *to, size_t n_byte) {
    if (d->ops->receive) return d->ops->receive(d->ctx, ix, to, n_byte);
    memcpy(to, from, n_byte);
    return HD_OK;
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
