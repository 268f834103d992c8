/* Which image belongs to a model, and what goes into it. */
#include "model/repack.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/version.h"
#include "file/mapping.h"
#include "model/offload.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* The device whose layout counts: what a GPU leaves to the host is the host's. */
static const hd_dev *repacker(const hd_model *m) {
    if (m->dev.ops->image_bytes) return &m->dev;
    return m->offload && m->offload->host.ops->image_bytes ? &m->offload->host : NULL;
}

static char *image_path(const hd_model *m) {
    char name[HD_IMAGE_KEY_MAX + 8];
    snprintf(name, sizeof name, "%s.image", m->repack_key);
    return hd_path_join(m->opt.repack_cache, name);
}

hd_status hd_repack_open(hd_model *m) {
    if (!m->opt.repack_cache) return HD_OK;
    const hd_dev *dev = repacker(m);
    if (!dev)
        return HD_FAIL(UNSUPPORTED, "repack cache: backend %s reads weights as they are",
                       m->dev.ops->name);
    if (mkdir(m->opt.repack_cache, 0777) != 0 && errno != EEXIST)
        return HD_FAIL(IO, "repack cache: %s: %s", m->opt.repack_cache, strerror(errno));
    char identity[33];
    hd_checkpoint_identity(m->checkpoint, identity);
    snprintf(m->repack_key, sizeof m->repack_key, "%s-%s-%s", identity, dev->ops->image_layout,
             HD_VERSION);
    char *path = image_path(m);
    hd_status s = hd_image_open(path, m->repack_key, &m->image);
    if (s != HD_OK && s != HD_E_NOT_FOUND)
        hd_log(HD_LOG_WARN, "repacked image is made anew", "why", "s", hd_error_text(), NULL);
    hd_free(path);
    return HD_OK;
}

bool hd_repack_find(const hd_model *m, const hd_dev *dev, hd_weight *w) {
    size_t n_byte = m->image && dev->ops->image_bytes ? dev->ops->image_bytes(dev->ctx, w) : 0;
    const void *p = n_byte > 0 ? hd_image_find(m->image, w->name, n_byte) : NULL;
    if (p) w->prepared = (void *)(uintptr_t)p;
    return p != NULL;
}

struct saving {
    void (*on_progress)(void *user, int done, int all);
    void *user;
};

static void tell(void *user, double done) {
    enum { all = 1000 };
    const struct saving *s = user;
    if (s->on_progress) s->on_progress(s->user, (int)(done * all), all);
}

void hd_repack_save(const hd_model *m, void (*on_progress)(void *user, int done, int all),
                    void *user) {
    size_t n_bound = 0, n = 0;
    bool is_whole = true;
    if (!m->opt.repack_cache) return;
    for (const struct hd_bound *b = m->bound; b; b = b->next) n_bound++;
    hd_image_block *block = hd_alloc_zero(n_bound, sizeof *block);
    for (const struct hd_bound *b = m->bound; b; b = b->next) {
        const hd_dev *dev = b->on_host ? &m->offload->host : &m->dev;
        size_t n_byte = dev->ops->image_bytes ? dev->ops->image_bytes(dev->ctx, &b->weight) : 0;
        if (n_byte == 0) continue;
        snprintf(block[n].name, sizeof block[n].name, "%s", b->weight.name);
        block[n].ptr = b->weight.prepared;
        block[n++].n_byte = n_byte;
        is_whole = is_whole && b->is_mapped;
    }
    if (!is_whole) {
        char *path = image_path(m);
        struct saving saving = {on_progress, user};
        int64_t start = hd_now_ns();
        if (hd_image_write(path, m->repack_key, block, n, tell, &saving) == HD_OK)
            hd_log(HD_LOG_INFO, "repacked image is kept", "path", "s", path, "seconds", "f",
                   (double)(hd_now_ns() - start) / 1e9, NULL);
        else
            hd_log(HD_LOG_WARN, "repacked image is not kept", "why", "s", hd_error_text(), NULL);
        hd_free(path);
    }
    hd_free(block);
}
