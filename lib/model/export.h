/* Writing a model as GGUF: hyper-parameter keys and canonical tensors, in the layout that llama.cpp
 * reads too (deepseek2 with split attn_k_b and attn_v_b; docs/gguf-keys.md). */
#ifndef HD_MODEL_EXPORT_H
#define HD_MODEL_EXPORT_H

#include "file/gguf.h"
#include "model/model.h"

enum { HD_EXPORT_AUTO = -1 }; /* keep each tensor's own format */

/* The format a tensor is written in when `wanted` (a format, or HD_EXPORT_AUTO) is asked for:
 * norms, router and its bias are always F32; rows that are no whole blocks stay F16. why says so
 * then, and is "" else. */
enum hd_format hd_export_format(const hd_canon_tensor *t, int wanted, char why[128]);

/* Every hyper-parameter under its key; hd_hparams_read gives the same struct back bit for bit. */
void hd_export_keys(hd_gguf_writer *w, const hd_hparams *hp);

/* Gives the bytes of the tensor whose turn it is, converted. HD_E_NUMERIC when a weight is not
 * finite or does not fit the format: tensor, row and value are named. on_bytes (may be NULL) is
 * told bytes written. */
HD_MUST_CHECK hd_status hd_export_tensor(hd_gguf_writer *w, const hd_canon *k,
                                         const hd_canon_tensor *t, enum hd_format to,
                                         void (*on_bytes)(void *user, uint64_t n), void *user);

/* ggml's number for "mostly this format" (general.file_type). */
uint32_t hd_export_file_type(enum hd_format f);

#endif
