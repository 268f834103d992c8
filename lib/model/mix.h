/* Mixes of tensor formats: what `hadal quantize --type NAME` means.
 *
 * A mix names the format of most weights and what the tensors get that cost little and matter
 * more: the head, the value path of attention, the last matrix of feed-forwards. Names are those
 * of llama-quantize; the rules are ours (docs/quantize.md). Thread: everything here is pure. */
#ifndef HD_MODEL_MIX_H
#define HD_MODEL_MIX_H

#include "model/model.h"

typedef struct hd_mix hd_mix;

/* By name or another name of it, in any case; HD_E_UNSUPPORTED lists the known names. */
HD_MUST_CHECK hd_status hd_mix_by_name(const char *name, const hd_mix **out);
const char *hd_mix_name(const hd_mix *m);
uint32_t hd_mix_file_type(const hd_mix *m);  /* general.file_type */
enum hd_format hd_mix_base(const hd_mix *m); /* of most weights */
/* What the mix wants for a matrix, whatever its shape; hd_export_format says what fits. */
enum hd_format hd_mix_format(const hd_mix *m, const hd_hparams *hp, const hd_canon_tensor *t);

#endif
