/* The second half of a layer, shared by architectures: a dense feed-forward in the leading layers,
 * a mixture of experts (arXiv 2401.06066) in the others. An architecture embeds hd_ffn in its layer
 * struct and hd_ffn_work in its workspace. */
#ifndef HD_MODEL_FFN_H
#define HD_MODEL_FFN_H

#include "model/arch.h"

typedef struct hd_ffn {
    const float *norm;                                   /* [D] */
    const hd_weight *gate;                               /* [F, D] dense layers */
    const hd_weight *up;                                 /* [F, D] */
    const hd_weight *down;                               /* [D, F] */
    const hd_weight *router;                             /* [E, D] layers with experts */
    const float *router_bias;                            /* [E] or NULL */
    const hd_weight *gate_exps, *up_exps, *down_exps;    /* E of [Fe, D], [Fe, D], [D, Fe] */
    const hd_weight *gate_shexp, *up_shexp, *down_shexp; /* [Fs, D], [Fs, D], [D, Fs] or NULL */
} hd_ffn;

typedef struct hd_ffn_work { /* R = n_row_max */
    float *normed;           /* [R, D] */
    int32_t *expert;         /* [R, n_used] */
    float *weight;           /* [R, n_used] */
} hd_ffn_work;

bool hd_ffn_has_experts(const hd_hparams *hp, int layer);
bool hd_ffn_is_dense(const hd_hparams *hp, int layer);
bool hd_ffn_has_shared(const hd_hparams *hp, int layer);

/* Slots of the hd_ffn in field `f` of the layer struct s. */
/* clang-format off */
#define HD_FFN_SLOTS(s, f)                                                                                          \
    HD_VECTOR(s, f.norm,        "ffn_norm.weight",       ffn,   .when = NULL),                                      \
    HD_MATRIX(s, f.gate,        "ffn_gate.weight",       ffn,   .when = hd_ffn_is_dense, .cut = HD_CUT_ROWS),       \
    HD_MATRIX(s, f.up,          "ffn_up.weight",         ffn,   .when = hd_ffn_is_dense, .cut = HD_CUT_ROWS),       \
    HD_MATRIX(s, f.down,        "ffn_down.weight",       ffn,   .when = hd_ffn_is_dense, .cut = HD_CUT_COLUMNS),    \
    HD_MATRIX(s, f.router,      "ffn_gate_inp.weight",   route, .when = hd_ffn_has_experts),                        \
    HD_VECTOR(s, f.router_bias, "exp_probs_b.bias",      route, .when = hd_ffn_has_experts, .is_optional = true),   \
    HD_MATRIX(s, f.gate_exps,   "ffn_gate_exps.weight",  moe,   .when = hd_ffn_has_experts, .cut = HD_CUT_ROWS),    \
    HD_MATRIX(s, f.up_exps,     "ffn_up_exps.weight",    moe,   .when = hd_ffn_has_experts, .cut = HD_CUT_ROWS),    \
    HD_MATRIX(s, f.down_exps,   "ffn_down_exps.weight",  moe,   .when = hd_ffn_has_experts, .cut = HD_CUT_COLUMNS), \
    HD_MATRIX(s, f.gate_shexp,  "ffn_gate_shexp.weight", moe,   .when = hd_ffn_has_shared, .cut = HD_CUT_ROWS),     \
    HD_MATRIX(s, f.up_shexp,    "ffn_up_shexp.weight",   moe,   .when = hd_ffn_has_shared, .cut = HD_CUT_ROWS),     \
    HD_MATRIX(s, f.down_shexp,  "ffn_down_shexp.weight", moe,   .when = hd_ffn_has_shared, .cut = HD_CUT_COLUMNS)
/* clang-format on */

HD_MUST_CHECK hd_status hd_ffn_plan(hd_model *m, hd_ffn_work *w);
/* x [R, D] += feed-forward of layer. */
void hd_ffn_forward(hd_model *m, const hd_batch *b, int layer, const hd_ffn *f, hd_ffn_work *w,
                    float *x);

#endif
