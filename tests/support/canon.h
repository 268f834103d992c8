/* A checkpoint with what lib/model makes of it: hyper-parameters and canonical tensors. */
#ifndef HD_TEST_CANON_H
#define HD_TEST_CANON_H

#include "model/model.h"

struct opened {
    hd_checkpoint *c;
    hd_hparams hp;
    hd_canon *k;
};

/* Fails the test when something of it cannot be opened. */
void open_all(struct opened *o, const char *path);
void close_all(struct opened *o);

/* Writes it as GGUF, every tensor as hd_export_format says for `wanted`; the status of the first
 * tensor that failed, with no file left then. *n_told (may be NULL) gets the bytes reported. */
hd_status export_as(const struct opened *o, int wanted, const char *path, uint64_t *n_told);

#endif
