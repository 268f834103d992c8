/* Opening a checkpoint with its canonical tensors. */
#include "support/canon.h"

#include "support/check.h"

void open_all(struct opened *o, const char *path) {
    assert_ok(hd_checkpoint_open(path, &o->c));
    assert_ok(hd_hparams_read(o->c, &o->hp));
    assert_ok(hd_canon_new(o->c, &o->hp, &o->k));
}

void close_all(struct opened *o) {
    hd_canon_free(o->k);
    hd_checkpoint_close(o->c);
}
