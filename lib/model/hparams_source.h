/* Inside lib/model: the two places hyper-parameters are read from. */
#ifndef HD_MODEL_HPARAMS_SOURCE_H
#define HD_MODEL_HPARAMS_SOURCE_H

#include "model/model.h"

/* A hyper-parameter that both files hold as one number. */
typedef struct hd_hparams_row {
    size_t offset;
    const char *gguf;         /* after "deepseek2." */
    const char *json;         /* of config.json */
    double min, max, initial; /* initial: when absent */
    char kind;                /* 'i' int, 'f' float */
    bool is_required;
} hd_hparams_row;

size_t hd_hparams_rows(const hd_hparams_row **out);
/* Checks the range and stores; HD_E_CORRUPT names file and key. */
HD_MUST_CHECK hd_status hd_hparams_set(hd_hparams *hp, const hd_hparams_row *row, const char *file,
                                       const char *key, double v);
void hd_hparams_set_name(hd_hparams *hp, hd_str name);

HD_MUST_CHECK hd_status hd_hparams_from_gguf(const hd_checkpoint *c, const char *file,
                                             hd_hparams *hp);
HD_MUST_CHECK hd_status hd_hparams_from_config(hd_str text, const char *file, hd_hparams *hp);
/* The text of a config.json, read, completed and checked; file is for messages. */
HD_MUST_CHECK hd_status hd_hparams_parse_config(hd_str text, const char *file, hd_hparams *out);

/* Keys of this project in GGUF files, so that an mscale pair survives bit for bit: GGUF itself has
 * only 0.1 * mscale_all_dim, and takes mscale as equal. */
#define HD_KEY_MSCALE "rope.scaling.hadal_mscale"
#define HD_KEY_MSCALE_ALL "rope.scaling.hadal_mscale_all_dim"

#endif
