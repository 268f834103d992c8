/* A model on its way into a new GGUF file: what `convert` and `quantize` share.
 *
 * Open the source, choose a format for every tensor, begin (checks the target and its disk, writes
 * the metadata; further keys may be set then), write, report. The target appears only when it is
 * complete: a failure, a full disk or a signal leaves nothing. One at a time (signals). */
#ifndef HD_CMD_TARGET_H
#define HD_CMD_TARGET_H

#include "cmd/command.h"
#include "model/export.h"

struct hd_target {
    const char *path, *what; /* of the new file; the word of the progress bar */
    hd_checkpoint *c;
    hd_hparams hp;
    hd_canon *k;
    hd_gguf_writer *w;
    hd_pool *pool;
    struct hd_target_tensor {
        enum hd_format to;
        hd_importance importance;
        hd_export_loss loss;
    } * tensor;         /* [hd_canon_count] */
    bool is_measured;   /* what encoding loses */
    uint64_t done, all; /* bytes of tensors: written, to write */
    int64_t start_ns;
    double seconds; /* from open to the end of writing */
    hd_buf notes;   /* lines for people */
};

/* name: general.name, or NULL for the source's. hd_target_close in every case. */
HD_MUST_CHECK hd_status hd_target_open(struct hd_target *t, const char *source, const char *name,
                                       int n_thread);
void hd_target_close(struct hd_target *t);

/* Tensor ix gets the format `wanted`, or what fits in its place; reasons are noted once each. */
void hd_target_choose(struct hd_target *t, size_t ix, int wanted);
/* The format that most weights get. */
enum hd_format hd_target_majority(const struct hd_target *t);
uint64_t hd_target_bytes(const struct hd_target *t, size_t ix);
double hd_target_bits(const struct hd_target *t); /* a weight, over all tensors */

HD_MUST_CHECK hd_status hd_target_begin(struct hd_target *t, const char *path, bool is_forced);
HD_MUST_CHECK hd_status hd_target_write(struct hd_target *t);
/* sqrt(error^2 / weight^2) of what was encoded. */
double hd_target_loss(double error2, double value2);
/* The table by part of the model, and the notes. */
void hd_target_report(const struct hd_target *t);

/* target_keys.c: everything but what hd_target_begin sets itself. */
HD_MUST_CHECK hd_status hd_target_put_keys(struct hd_target *t);

#endif
