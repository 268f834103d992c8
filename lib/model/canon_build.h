/* Inside lib/model: how the list of canonical tensors is made from a file's tensors. */
#ifndef HD_MODEL_CANON_BUILD_H
#define HD_MODEL_CANON_BUILD_H

#include "base/map.h"
#include "base/mem.h"
#include "model/model.h"

struct hd_canon {
    const hd_checkpoint *c;
    const hd_hparams *hp;
    hd_arena *arena;
    hd_canon_tensor *tensor; /* [n] */
    size_t n, room;
    hd_map *by_name;
    bool *is_used; /* [tensors of c] */
};

enum hd_canon_role {
    HD_ROLE_PLAIN,
    HD_ROLE_K_B,
    HD_ROLE_V_B,
    HD_ROLE_PAIRS,    /* q or k: rows of each head in the order of rotated pairs */
    HD_ROLE_PAIR_KEY, /* the same of the one rotated key behind the latent */
    HD_ROLE_ROPE_DIVISOR,
    HD_ROLE_GATE_EXPS,
    HD_ROLE_UP_EXPS,
    HD_ROLE_DOWN_EXPS,
};

/* A tensor the architecture needs. */
typedef struct hd_canon_want {
    const char *suffix; /* canonical name; of a layer's tensor what follows "blk.N." */
    const char *hf;     /* Hugging Face name; of a layer's tensor what follows "model.layers.N." */
    int layer;          /* -1: global */
    enum hd_canon_role role;
    int n_dim;
    int64_t ne[4]; /* GGUF order, unused ones 1 */
} hd_canon_want;

/* Fills in kind, format, src and n_src of t (name and shape are set). */
HD_MUST_CHECK hd_status hd_canon_from_hf(hd_canon *k, const hd_canon_want *w, hd_canon_tensor *t);

/* Room for n sources. */
void hd_canon_room(hd_canon *k, hd_canon_tensor *t, int n_src);
/* Appends the file's tensor `name`, which must have this shape: HD_E_CORRUPT names it, expected
 * and found; so it does when its format differs from the sources before. A stack stored flat
 * ([ne0, ne1 * ne2]) is the same bytes and is taken too. */
HD_MUST_CHECK hd_status hd_canon_take(hd_canon *k, hd_canon_tensor *t, const char *name,
                                      const int64_t ne[4]);
/* Appends, for each of n_mat matrices [n_all, n_in] of the file's tensor `name`, a view of the rows
 * from row0 that t's shape asks for. */
HD_MUST_CHECK hd_status hd_canon_take_rows(hd_canon *k, hd_canon_tensor *t, const char *name,
                                           int64_t n_all, int64_t row0);
/* K_B and V_B from a kv_b [H*(n_nope+n_v), n_c]. */
HD_MUST_CHECK hd_status hd_canon_take_kv_b(hd_canon *k, hd_canon_tensor *t, const char *name,
                                           enum hd_canon_role role);
/* ---- FP8 (canon_fp8.c) ---- */

static inline bool hd_canon_is_scaled(const hd_canon_tensor *t) {
    return t->n_src > 0 && t->scale[0].tensor;
}
/* The scales of an F8_E4M3 tensor, marked as used: HD_E_CORRUPT when there are none or of another
 * shape, HD_E_NUMERIC when one is no number from 0. */
HD_MUST_CHECK hd_status hd_canon_find_scale(hd_canon *k, const hd_file_tensor *f,
                                            const hd_file_tensor **out);
/* The format in which a scaled tensor is handed out (its kind and shape are set). */
enum hd_format hd_canon_scaled_format(const hd_canon *k, const hd_canon_tensor *t);
/* Matrix ix of a scaled tensor, in its format. */
void hd_canon_scaled_matrix(const hd_canon *k, const hd_canon_tensor *t, int ix, char *out);
/* The row of the source that row `row` of matrix ix is (of K_B: that becomes its column). */
int64_t hd_canon_source_row(const hd_canon *k, const hd_canon_tensor *t, int ix, int64_t row);

/* rope_freqs from the hyper-parameters, for files that only say how it is computed. */
void hd_canon_make_rope_divisor(hd_canon *k, hd_canon_tensor *t);

#endif
