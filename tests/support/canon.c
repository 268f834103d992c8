/* Opening a checkpoint with its canonical tensors. */
#include "support/canon.h"

#include "support/check.h"

#include "model/export.h"

void open_all(struct opened *o, const char *path) {
    assert_ok(hd_checkpoint_open(path, &o->c));
    assert_ok(hd_hparams_read(o->c, &o->hp));
    assert_ok(hd_canon_new(o->c, &o->hp, &o->k));
}

void close_all(struct opened *o) {
    hd_canon_free(o->k);
    hd_checkpoint_close(o->c);
}

static void add_bytes(void *user, uint64_t n) {
    if (user) *(uint64_t *)user += n;
}

hd_status export_as(const struct opened *o, int wanted, const char *path, uint64_t *n_told) {
    hd_gguf_writer *w;
    hd_pool *pool;
    hd_export_loss loss;
    char why[128];
    hd_status s = HD_OK;
    assert_ok(hd_pool_open(2, &pool));
    assert_ok(hd_gguf_create(path, &w));
    hd_export_keys(w, &o->hp);
    for (size_t i = 0; i < hd_canon_count(o->k); i++) {
        const hd_canon_tensor *t = hd_canon_at(o->k, i);
        hd_gguf_declare(w, t->name, hd_export_format(t, wanted, why), t->n_dim, t->ne);
    }
    assert_ok(hd_gguf_begin(w));
    hd_export e = {.w = w, .k = o->k, .pool = pool, .on_bytes = add_bytes, .user = n_told};
    for (size_t i = 0; i < hd_canon_count(o->k) && s == HD_OK; i++) {
        const hd_canon_tensor *t = hd_canon_at(o->k, i);
        s = hd_export_tensor(&e, t, hd_export_format(t, wanted, why), NULL, &loss);
    }
    hd_pool_close(pool);
    if (s != HD_OK) {
        hd_gguf_abandon(w);
        return s;
    }
    return hd_gguf_finish(w);
}
