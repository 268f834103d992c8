/* Inside lib/model: the two places hyper-parameters are read from. */
#ifndef HD_MODEL_HPARAMS_SOURCE_H
#define HD_MODEL_HPARAMS_SOURCE_H

#include "model/model.h"

/* A kind of model: one architecture of GGUF, one model_type of config.json. */
typedef struct hd_hparams_family {
    const char *arch, *model_type;
    bool is_mla, has_experts;
    bool is_v3; /* what config.json leaves out about routing */
    bool has_qkv_bias, is_half_split;
} hd_hparams_family;

/* By architecture (the first of it), or by model_type. HD_E_UNSUPPORTED lists the known ones: `key`
 * of `file` has another. Sets what follows from the family. */
HD_MUST_CHECK hd_status hd_hparams_set_arch(hd_hparams *hp, const char *file, hd_str arch,
                                            const hd_hparams_family **out);
HD_MUST_CHECK hd_status hd_hparams_set_type(hd_hparams *hp, const char *file, const char *type,
                                            const hd_hparams_family **out);

/* A hyper-parameter that both files hold as one number. */
typedef struct hd_hparams_row {
    size_t offset;
    const char *gguf;         /* after the architecture and a dot */
    const char *json;         /* of config.json */
    double min, max, initial; /* initial: when absent */
    char kind;                /* 'i' int, 'f' float */
    bool is_required;
    char only; /* 'm': of latent attention, 'e': of experts, 0: of all */
} hd_hparams_row;

size_t hd_hparams_rows(const hd_hparams_row **out);
bool hd_hparams_has_row(const hd_hparams_family *f, const hd_hparams_row *row);
/* Checks the range and stores; HD_E_CORRUPT names file and key. */
HD_MUST_CHECK hd_status hd_hparams_set(hd_hparams *hp, const hd_hparams_row *row, const char *file,
                                       const char *key, double v);
/* llama3 scaling into rope_divisor (n_rope and rope_base are set): wavelengths beyond orig_ctx /
 * low are stretched by factor, those below orig_ctx / high kept, those between blended.
 * HD_E_CORRUPT names an absurd number. */
HD_MUST_CHECK hd_status hd_hparams_set_llama3(hd_hparams *hp, const char *file, double factor,
                                              double low, double high, double orig_ctx);
/* Head size and key heads of grouped-query attention, 0 for absent ones, whose defaults follow. */
HD_MUST_CHECK hd_status hd_hparams_set_heads(hd_hparams *hp, const char *file, int d_head,
                                             int n_head_kv);
void hd_hparams_set_name(hd_hparams *hp, hd_str name);

HD_MUST_CHECK hd_status hd_hparams_from_gguf(const hd_checkpoint *c, const char *file,
                                             hd_hparams *hp);
HD_MUST_CHECK hd_status hd_hparams_from_config(hd_str text, const char *file, hd_hparams *hp);
/* The text of a config.json, read, completed and checked; file is for messages. */
HD_MUST_CHECK hd_status hd_hparams_parse_config(hd_str text, const char *file, hd_hparams *out);

/* Keys of this project in GGUF files, so that an mscale pair survives bit for bit: GGUF itself has
 * only 0.1 * mscale_all_dim, and takes mscale as equal; or, for another pair, a factor beside it
 * (lib/model/export.c), which is read only where the pair is there too. */
#define HD_KEY_MSCALE "rope.scaling.hadal_mscale"
#define HD_KEY_MSCALE_ALL "rope.scaling.hadal_mscale_all_dim"
#define HD_KEY_ATTN_FACTOR "rope.scaling.attn_factor"

#endif
