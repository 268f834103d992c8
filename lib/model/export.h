/* Writing a model as GGUF: hyper-parameter keys and canonical tensors, in the layout that llama.cpp
 * reads too (deepseek2 with split attn_k_b and attn_v_b; docs/gguf-keys.md). */
#ifndef HD_MODEL_EXPORT_H
#define HD_MODEL_EXPORT_H

#include "base/pool.h"
#include "file/gguf.h"
#include "model/imatrix.h"

enum { HD_EXPORT_AUTO = -1 }; /* keep each tensor's own format */

/* Norms, biases and the router: F32, whatever is asked for. */
bool hd_export_is_fixed(const hd_canon_tensor *t);
/* The format a tensor is written in when `wanted` (a format, or HD_EXPORT_AUTO) is asked for:
 * rows that are no whole blocks of it take the next format that fits, by the table in export.c, and
 * F16 when none does. why says so then, and is ""
 * else. */
enum hd_format hd_export_format(const hd_canon_tensor *t, int wanted, char why[128]);

/* Every hyper-parameter under its key; hd_hparams_read gives the same struct back bit for bit. */
void hd_export_keys(hd_gguf_writer *w, const hd_hparams *hp);

/* A file being written. */
typedef struct hd_export {
    hd_gguf_writer *w;
    const hd_canon *k;
    hd_pool *pool;
    bool is_measured;                         /* what encoding loses: decodes everything again */
    void (*on_bytes)(void *user, uint64_t n); /* may be NULL: told of bytes written */
    void *user;
} hd_export;

/* What encoding has lost. Relative RMS error: sqrt(error2 / value2). */
typedef struct hd_export_loss {
    double error2, value2; /* sums of squares: of the differences, of the weights */
    int n_unseen;          /* matrices encoded without importance though others had it */
} hd_export_loss;

/* Gives the bytes of the tensor whose turn it is, converted; encoders weigh columns by importance
 * (may be NULL). The same bytes and losses for any number of threads. HD_E_NUMERIC when a weight is
 * not finite or does not fit the format: tensor, row and value are named. */
HD_MUST_CHECK hd_status hd_export_tensor(const hd_export *e, const hd_canon_tensor *t,
                                         enum hd_format to, const hd_importance *importance,
                                         hd_export_loss *loss);

/* ggml's number for "mostly this format" (general.file_type). */
uint32_t hd_export_file_type(enum hd_format f);

#endif
