/* Canonical tensors from a Hugging Face checkpoint: the names of the table in canon.c, experts one
 * by one (as released) or fused in one tensor (as newer libraries save them). There the rows of q
 * and k are in the order of rotated halves (of latent attention rarely: rope_interleave false);
 * GGUF has them in pairs, but for qwen2. */
#include "model/canon_build.h"

#include <stdio.h>

enum { name_bytes = 160 };

static void full_name(const hd_canon_want *w, const char *middle, const char *suffix,
                      char out[name_bytes]) {
    if (w->layer < 0)
        snprintf(out, name_bytes, "%s%s", middle, suffix);
    else
        snprintf(out, name_bytes, "model.layers.%d.%s%s", w->layer, middle, suffix);
}

/* mlp.experts.E.gate_proj.weight [f, D] ... */
static hd_status take_single_experts(hd_canon *k, const hd_canon_want *w, hd_canon_tensor *t) {
    t->kind = HD_CANON_STACK;
    hd_canon_room(k, t, (int)w->ne[2]);
    for (int e = 0; e < (int)w->ne[2]; e++) {
        char middle[48], name[name_bytes];
        snprintf(middle, sizeof middle, "mlp.experts.%d.", e);
        full_name(w, middle, w->hf, name);
        HD_TRY(hd_canon_take(k, t, name, (int64_t[]){w->ne[0], w->ne[1], 1, 1}));
    }
    return HD_OK;
}

/* mlp.experts.gate_up_proj [E, 2f, D], the gate's rows first; mlp.experts.down_proj [E, D, f]. */
static hd_status take_experts(hd_canon *k, const hd_canon_want *w, hd_canon_tensor *t) {
    bool is_down = w->role == HD_ROLE_DOWN_EXPS;
    char name[name_bytes];
    full_name(w, "mlp.experts.", is_down ? "down_proj" : "gate_up_proj", name);
    if (!hd_checkpoint_find(k->c, name)) return take_single_experts(k, w, t);
    if (is_down) return hd_canon_take(k, t, name, w->ne);
    return hd_canon_take_rows(k, t, name, 2 * w->ne[1], w->role == HD_ROLE_UP_EXPS ? w->ne[1] : 0);
}

hd_status hd_canon_from_hf(hd_canon *k, const hd_canon_want *w, hd_canon_tensor *t) {
    char name[name_bytes];
    full_name(w, "", w->hf, name);
    switch (w->role) {
    case HD_ROLE_PLAIN: return hd_canon_take(k, t, name, w->ne);
    case HD_ROLE_K_B:
    case HD_ROLE_V_B: return hd_canon_take_kv_b(k, t, name, w->role);
    case HD_ROLE_PAIRS:
    case HD_ROLE_PAIR_KEY:
        HD_TRY(hd_canon_take(k, t, name, w->ne));
        if (!k->hp->has_half_rows) return HD_OK;
        t->kind = HD_CANON_PAIRS;
        t->pair_at = w->role == HD_ROLE_PAIR_KEY ? k->hp->n_c : k->hp->n_nope;
        t->pair_group = t->pair_at + k->hp->n_rope;
        return HD_OK;
    case HD_ROLE_ROPE_DIVISOR: hd_canon_make_rope_divisor(k, t); return HD_OK;
    default: return take_experts(k, w, t);
    }
}
