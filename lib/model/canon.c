/* The canonical tensors of every architecture: one table says names, shapes and where each occurs;
 * the sources are found by the file's kind (GGUF here, Hugging Face in hf.c).
 *
 * Nothing is copied or computed but two: the key part of kv_b (the absorbed form of attention
 * multiplies by its transpose, so per head its n_nope rows become columns when a matrix is asked
 * for), and the rows of q and k where the file has them in another order. */
#include "model/canon_build.h"

#include <stdio.h>
#include <string.h>

/* Sizes that shapes are made of. */
enum dim { ONE, D, V, QL, HQK, C, C_ROPE, NOPE, VDIM, H, HV, KV, PAIR, F, E, FE, FS };
enum when {
    ALWAYS,
    MLA,
    GQA,
    QKV_BIAS,
    ROPE_DIVISOR,
    Q_LORA,
    NO_Q_LORA,
    DENSE,
    MOE,
    MOE_SIGMOID,
    MOE_SHARED,
    UNTIED
};

struct row {
    const char *suffix, *hf;
    enum dim ne[3];
    enum when when;
    enum hd_canon_role role;
};

/* clang-format off */
static const struct row globals[] = {
    {"token_embd.weight",  "model.embed_tokens.weight", {D, V},  ALWAYS, HD_ROLE_PLAIN},
    {"output_norm.weight", "model.norm.weight",         {D},     ALWAYS, HD_ROLE_PLAIN},
    {"output.weight",      "lm_head.weight",            {D, V},  UNTIED, HD_ROLE_PLAIN},
    {"rope_freqs.weight",  "",                          {PAIR},  ROPE_DIVISOR, HD_ROLE_ROPE_DIVISOR},
};
static const struct row layers[] = {
    {"attn_norm.weight",      "input_layernorm.weight",              {D},          ALWAYS,      HD_ROLE_PLAIN},
    {"attn_q.weight",         "self_attn.q_proj.weight",             {D, HQK},     NO_Q_LORA,   HD_ROLE_PAIRS},
    {"attn_q.weight",         "self_attn.q_proj.weight",             {D, HQK},     GQA,         HD_ROLE_PAIRS},
    {"attn_k.weight",         "self_attn.k_proj.weight",             {D, KV},      GQA,         HD_ROLE_PAIRS},
    {"attn_v.weight",         "self_attn.v_proj.weight",             {D, KV},      GQA,         HD_ROLE_PLAIN},
    {"attn_q.bias",           "self_attn.q_proj.bias",               {HQK},        QKV_BIAS,    HD_ROLE_PLAIN},
    {"attn_k.bias",           "self_attn.k_proj.bias",               {KV},         QKV_BIAS,    HD_ROLE_PLAIN},
    {"attn_v.bias",           "self_attn.v_proj.bias",               {KV},         QKV_BIAS,    HD_ROLE_PLAIN},
    {"attn_q_a.weight",       "self_attn.q_a_proj.weight",           {D, QL},      Q_LORA,      HD_ROLE_PLAIN},
    {"attn_q_a_norm.weight",  "self_attn.q_a_layernorm.weight",      {QL},         Q_LORA,      HD_ROLE_PLAIN},
    {"attn_q_b.weight",       "self_attn.q_b_proj.weight",           {QL, HQK},    Q_LORA,      HD_ROLE_PAIRS},
    {"attn_kv_a_mqa.weight",  "self_attn.kv_a_proj_with_mqa.weight", {D, C_ROPE},  MLA,         HD_ROLE_PAIR_KEY},
    {"attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight",     {C},          MLA,         HD_ROLE_PLAIN},
    {"attn_k_b.weight",       "self_attn.kv_b_proj.weight",          {NOPE, C, H}, MLA,         HD_ROLE_K_B},
    {"attn_v_b.weight",       "self_attn.kv_b_proj.weight",          {C, VDIM, H}, MLA,         HD_ROLE_V_B},
    {"attn_output.weight",    "self_attn.o_proj.weight",             {HV, D},      ALWAYS,      HD_ROLE_PLAIN},
    {"ffn_norm.weight",       "post_attention_layernorm.weight",     {D},          ALWAYS,      HD_ROLE_PLAIN},
    {"ffn_gate.weight",       "mlp.gate_proj.weight",                {D, F},       DENSE,       HD_ROLE_PLAIN},
    {"ffn_up.weight",         "mlp.up_proj.weight",                  {D, F},       DENSE,       HD_ROLE_PLAIN},
    {"ffn_down.weight",       "mlp.down_proj.weight",                {F, D},       DENSE,       HD_ROLE_PLAIN},
    {"ffn_gate_inp.weight",   "mlp.gate.weight",                     {D, E},       MOE,         HD_ROLE_PLAIN},
    {"exp_probs_b.bias",      "mlp.gate.e_score_correction_bias",    {E},          MOE_SIGMOID, HD_ROLE_PLAIN},
    {"ffn_gate_exps.weight",  "gate_proj.weight",                    {D, FE, E},   MOE,         HD_ROLE_GATE_EXPS},
    {"ffn_up_exps.weight",    "up_proj.weight",                      {D, FE, E},   MOE,         HD_ROLE_UP_EXPS},
    {"ffn_down_exps.weight",  "down_proj.weight",                    {FE, D, E},   MOE,         HD_ROLE_DOWN_EXPS},
    {"ffn_gate_shexp.weight", "mlp.shared_experts.gate_proj.weight", {D, FS},      MOE_SHARED,  HD_ROLE_PLAIN},
    {"ffn_up_shexp.weight",   "mlp.shared_experts.up_proj.weight",   {D, FS},      MOE_SHARED,  HD_ROLE_PLAIN},
    {"ffn_down_shexp.weight", "mlp.shared_experts.down_proj.weight", {FS, D},      MOE_SHARED,  HD_ROLE_PLAIN},
};
/* clang-format on */

static int64_t size_of(const hd_hparams *hp, enum dim d) {
    switch (d) {
    case D: return hp->d_model;
    case V: return hp->n_vocab;
    case QL: return hp->q_lora;
    case HQK: return (int64_t)hp->n_head * (hp->n_nope + hp->n_rope);
    case C: return hp->n_c;
    case C_ROPE: return hp->n_c + hp->n_rope;
    case NOPE: return hp->n_nope;
    case VDIM: return hp->n_v;
    case H: return hp->n_head;
    case HV: return (int64_t)hp->n_head * hp->n_v;
    case KV: return (int64_t)hp->n_head_kv * hp->n_rope;
    case PAIR: return hp->n_rope / 2;
    case F: return hp->d_ff;
    case E: return hp->n_expert;
    case FE: return hp->d_expert;
    case FS: return (int64_t)hp->d_expert * hp->n_expert_shared;
    default: return 1;
    }
}

static bool is_wanted(const hd_hparams *hp, enum when when, int layer) {
    bool is_moe = layer >= hp->n_dense_layer;
    switch (when) {
    case MLA: return hd_hparams_is_mla(hp);
    case GQA: return !hd_hparams_is_mla(hp);
    case QKV_BIAS: return hp->has_qkv_bias;
    case ROPE_DIVISOR: return hp->has_rope_divisor;
    case Q_LORA: return hp->q_lora > 0;
    case NO_Q_LORA: return hd_hparams_is_mla(hp) && hp->q_lora == 0;
    case DENSE: return !is_moe;
    case MOE: return is_moe;
    case MOE_SIGMOID: return is_moe && hp->gating == HD_GATING_SIGMOID;
    case MOE_SHARED: return is_moe && hp->n_expert_shared > 0;
    case UNTIED: return !hp->is_tied;
    default: return true;
    }
}

/* ---- taking from the file ---- */

static int dims_of(const int64_t ne[4]) {
    int n = 4;
    while (n > 1 && ne[n - 1] == 1) n--;
    return n;
}

static bool has_shape(const hd_file_tensor *f, const int64_t ne[4]) {
    bool is_flat = f->ne[1] == ne[1] * ne[2] && f->ne[2] == 1;
    return f->ne[0] == ne[0] && f->ne[3] == ne[3] &&
           ((f->ne[1] == ne[1] && f->ne[2] == ne[2]) || is_flat);
}

void hd_canon_room(hd_canon *k, hd_canon_tensor *t, int n_src) {
    t->src = hd_arena_alloc(k->arena, (size_t)n_src * sizeof(void *));
    t->scale = hd_arena_alloc(k->arena, (size_t)n_src * sizeof *t->scale);
    t->n_src = 0;
}

/* A type that is only listed: what its kind of file could have instead. */
static hd_status refuse_type(const hd_canon *k, const hd_file_tensor *f) {
    bool is_gguf = hd_checkpoint_gguf(k->c) != NULL;
    char known[256] = "";
    for (int i = 0; i < HD_FORMAT_COUNT; i++) {
        const hd_format_info *info = hd_format_get((enum hd_format)i);
        const char *name = is_gguf ? info->name : info->safetensors_name;
        if (i != HD_F8_E8M0 && name[0] && (!is_gguf || info->gguf_id >= 0))
            hd_list_add(known, sizeof known, name);
    }
    return HD_FAIL(UNSUPPORTED, "%s: tensor %s: type %s is not supported: known here: %s", f->file,
                   f->name, f->type, known);
}

/* The file's tensor of this name and shape, marked as used. */
static hd_status find(hd_canon *k, const char *name, const int64_t ne[4],
                      const hd_file_tensor **out) {
    char expected[96], found[96];
    const hd_file_tensor *f = hd_checkpoint_find(k->c, name);
    hd_shape_text(k->c, ne, dims_of(ne), expected);
    if (!f)
        return HD_FAIL(CORRUPT, "%s: tensor %s: expected %s, found no such tensor",
                       hd_checkpoint_path(k->c), name, expected);
    if (!has_shape(f, ne)) {
        hd_shape_text(k->c, f->ne, f->n_dim, found);
        return HD_FAIL(CORRUPT, "%s: tensor %s: expected shape %s, found %s", f->file, name,
                       expected, found);
    }
    if (f->format == HD_FORMAT_COUNT || f->format == HD_F8_E8M0) return refuse_type(k, f);
    k->is_used[f - hd_checkpoint_at(k->c, 0)] = true;
    *out = f;
    return HD_OK;
}

/* scale: of f's weights, when it is scaled. */
static hd_status append(const hd_canon *k, hd_canon_tensor *t, const hd_file_tensor *f,
                        hd_canon_scale scale) {
    if (t->n_src > 0 && f->format != t->src[0]->format)
        return HD_FAIL(CORRUPT, "%s: tensor %s: expected format %s like %s, found %s", f->file,
                       f->name, t->src[0]->type, t->src[0]->name, f->type);
    t->scale[t->n_src] = scale;
    t->src[t->n_src++] = f;
    t->format = scale.tensor ? hd_canon_scaled_format(k, t) : f->format;
    return HD_OK;
}

/* Finds the scales of an FP8 tensor that becomes t. */
static hd_status scale_of(hd_canon *k, const hd_canon_tensor *t, const hd_file_tensor *f,
                          hd_canon_scale *out) {
    *out = (hd_canon_scale){0};
    if (f->format != HD_F8_E4M3) return HD_OK;
    if (t->n_dim == 1)
        return HD_FAIL(UNSUPPORTED, "%s: tensor %s: a vector: expected F32, F16 or BF16, found %s",
                       f->file, f->name, f->type);
    return hd_canon_find_scale(k, f, &out->tensor);
}

hd_status hd_canon_take(hd_canon *k, hd_canon_tensor *t, const char *name, const int64_t ne[4]) {
    const hd_file_tensor *f;
    hd_canon_scale scale;
    HD_TRY(find(k, name, ne, &f));
    if (f->format == HD_F8_E4M3 && ne[2] > 1) return hd_canon_take_rows(k, t, name, ne[1], 0);
    HD_TRY(scale_of(k, t, f, &scale));
    if (!t->src) hd_canon_room(k, t, 1);
    return append(k, t, f, scale);
}

hd_status hd_canon_take_rows(hd_canon *k, hd_canon_tensor *t, const char *name, int64_t n_all,
                             int64_t row0) {
    const hd_file_tensor *f;
    hd_canon_scale scale;
    HD_TRY(find(k, name, (int64_t[]){t->ne[0], n_all, t->ne[2], 1}, &f));
    HD_TRY(scale_of(k, t, f, &scale));
    t->kind = HD_CANON_STACK;
    hd_canon_room(k, t, (int)t->ne[2]);
    size_t row_bytes = hd_format_bytes(f->format, (size_t)t->ne[0]);
    for (int64_t m = 0; m < t->ne[2]; m++) {
        hd_file_tensor *view = hd_arena_alloc(k->arena, sizeof *view);
        *view = *f;
        view->n_dim = 2;
        view->ne[1] = t->ne[1];
        view->ne[2] = 1;
        view->data = (const char *)f->data + (size_t)(m * n_all + row0) * row_bytes;
        view->n_byte = (uint64_t)t->ne[1] * row_bytes;
        scale.row0 = f->ne[2] == 1 ? m * n_all + row0 : row0; /* a flat stack has one grid */
        if (scale.tensor && f->ne[2] > 1)
            scale.first = m * scale.tensor->ne[0] * scale.tensor->ne[1];
        HD_TRY(append(k, t, view, scale));
    }
    return HD_OK;
}

hd_status hd_canon_take_kv_b(hd_canon *k, hd_canon_tensor *t, const char *name,
                             enum hd_canon_role role) {
    const hd_hparams *hp = k->hp;
    int64_t n_out = (int64_t)hp->n_head * (hp->n_nope + hp->n_v);
    t->kind = role == HD_ROLE_K_B ? HD_CANON_K_B : HD_CANON_V_B;
    HD_TRY(hd_canon_take(k, t, name, (int64_t[]){hp->n_c, n_out, 1, 1}));
    /* Blocks run along rows, so a transposed quantised matrix can only be handed out decoded. */
    if (role == HD_ROLE_K_B && !hd_canon_is_scaled(t) && hd_format_get(t->format)->block_elems > 1)
        t->format = HD_F32;
    return HD_OK;
}

void hd_canon_make_rope_divisor(hd_canon *k, hd_canon_tensor *t) {
    hd_file_tensor *made = hd_arena_alloc(k->arena, sizeof *made);
    *made = (hd_file_tensor){.name = t->name,
                             .format = HD_F32,
                             .type = "F32",
                             .n_dim = 1,
                             .data = k->hp->rope_divisor,
                             .n_byte = (uint64_t)t->ne[0] * sizeof(float),
                             .file = "config.json"};
    memcpy(made->ne, t->ne, sizeof made->ne);
    hd_canon_room(k, t, 1);
    t->format = HD_F32;
    t->scale[0] = (hd_canon_scale){0};
    t->src[t->n_src++] = made;
}

void hd_canon_name(int layer, const char *suffix, char out[64]) {
    if (layer < 0)
        snprintf(out, 64, "%s", suffix);
    else
        snprintf(out, 64, "blk.%d.%s", layer, suffix);
}

static hd_status take_from_gguf(hd_canon *k, const hd_canon_want *w, hd_canon_tensor *t) {
    char other[64];
    if (hd_checkpoint_find(k->c, t->name)) return hd_canon_take(k, t, t->name, w->ne);
    switch (w->role) {
    case HD_ROLE_K_B:
    case HD_ROLE_V_B:
        hd_canon_name(w->layer, "attn_kv_b.weight", other);
        if (hd_checkpoint_find(k->c, other)) return hd_canon_take_kv_b(k, t, other, w->role);
        break;
    case HD_ROLE_GATE_EXPS:
    case HD_ROLE_UP_EXPS:
        hd_canon_name(w->layer, "ffn_gate_up_exps.weight", other);
        if (hd_checkpoint_find(k->c, other))
            return hd_canon_take_rows(k, t, other, 2 * w->ne[1],
                                      w->role == HD_ROLE_UP_EXPS ? w->ne[1] : 0);
        break;
    default:
        hd_canon_name(w->layer, "exp_probs_b", other); /* the bias in some files has no suffix */
        if (strcmp(w->suffix, "exp_probs_b.bias") == 0 && hd_checkpoint_find(k->c, other))
            return hd_canon_take(k, t, other, w->ne);
    }
    return hd_canon_take(k, t, t->name, w->ne); /* says that it is missing */
}

/* ---- the list ---- */

static hd_status add(hd_canon *k, const struct row *r, int layer) {
    hd_canon_want w = {
        .suffix = r->suffix, .hf = r->hf, .layer = layer, .role = r->role, .ne = {1, 1, 1, 1}};
    if (!is_wanted(k->hp, r->when, layer)) return HD_OK;
    for (int d = 0; d < 3 && r->ne[d] != ONE; d++) w.ne[w.n_dim++] = size_of(k->hp, r->ne[d]);
    hd_canon_tensor *t = &k->tensor[k->n];
    *t = (hd_canon_tensor){.n_dim = w.n_dim};
    memcpy(t->ne, w.ne, sizeof t->ne);
    hd_canon_name(layer, r->suffix, t->name);
    HD_TRY(hd_checkpoint_gguf(k->c) ? take_from_gguf(k, &w, t) : hd_canon_from_hf(k, &w, t));
    hd_map_put(k->by_name, hd_str_of(t->name), k->n++);
    return HD_OK;
}

/* Whether a tensor of the file belongs to a layer that is computed. */
static bool is_of_layers(const hd_canon *k, const char *name) {
    const char *prefix = hd_checkpoint_gguf(k->c) ? "blk." : "model.layers.";
    size_t n = strlen(prefix);
    if (strncmp(name, prefix, n) != 0) return false;
    int layer = 0;
    for (name += n; *name >= '0' && *name <= '9' && layer < k->hp->n_layer; name++)
        layer = 10 * layer + *name - '0';
    return layer < k->hp->n_layer;
}

bool hd_canon_is_surplus(const hd_canon *k, size_t ix) {
    const hd_file_tensor *f = hd_checkpoint_at(k->c, ix);
    hd_str name = hd_str_of(f->name);
    bool is_tied = k->hp->is_tied && hd_str_eq_c(name, "lm_head.weight");
    bool is_of_next =
        strncmp(f->name, "model.layers.", 13) == 0 || strncmp(f->name, "blk.", 4) == 0;
    return !k->is_used[ix] && f->n_byte > 0 && (!is_of_next || is_of_layers(k, f->name)) &&
           !is_tied && !hd_str_ends_c(name, "rotary_emb.inv_freq");
}

/* A bias that nothing adds would be a silent error. */
static hd_status refuse_biases(const hd_canon *k) {
    for (size_t i = 0; i < hd_checkpoint_count(k->c); i++) {
        const hd_file_tensor *f = hd_checkpoint_at(k->c, i);
        if (hd_canon_is_surplus(k, i) && hd_str_ends_c(hd_str_of(f->name), ".bias"))
            return HD_FAIL(UNSUPPORTED, "%s: tensor %s: expected no such bias in architecture %s",
                           f->file, f->name, k->hp->arch);
    }
    return HD_OK;
}

/* DeepSeek's inference code and its newest checkpoints have names of their own. */
static hd_status refuse_native_names(const hd_canon *k) {
    const hd_file_tensor *f = hd_checkpoint_find(k->c, "embed.weight");
    if (hd_checkpoint_gguf(k->c) || !f || hd_checkpoint_find(k->c, "model.embed_tokens.weight"))
        return HD_OK;
    return HD_FAIL(
        UNSUPPORTED,
        "%s: tensor %s: expected Hugging Face's names (model.embed_tokens.weight), found "
        "those of DeepSeek's own inference code",
        f->file, f->name);
}

static hd_status add_all(hd_canon *k) {
    HD_TRY(refuse_native_names(k));
    for (size_t i = 0; i < HD_COUNT_OF(globals); i++) HD_TRY(add(k, &globals[i], -1));
    for (int layer = 0; layer < k->hp->n_layer; layer++)
        for (size_t i = 0; i < HD_COUNT_OF(layers); i++) HD_TRY(add(k, &layers[i], layer));
    return refuse_biases(k);
}

/* A tensor that the hyper-parameters leave out, though the file has it: they say too little, and
 * the rest alone would be another model. */
static hd_status refuse_leftover(const hd_canon *k, int layer, const char *suffix, const char *hf,
                                 const char *expected) {
    char name[128];
    bool is_gguf = hd_checkpoint_gguf(k->c);
    snprintf(name, sizeof name, is_gguf ? "blk.%d.%s" : "model.layers.%d.%s", layer,
             is_gguf ? suffix : hf);
    const hd_file_tensor *f = hd_checkpoint_find(k->c, name);
    if (!f || f->n_byte == 0) return HD_OK; /* an empty one is none */
    return HD_FAIL(CORRUPT, "%s: tensor %s: expected %s, as the hyper-parameters say; found one",
                   hd_checkpoint_path(k->c), name, expected);
}

static hd_status refuse_leftovers(const hd_canon *k) {
    const hd_hparams *hp = k->hp;
    char expected[64], next[64];
    int n_layer = hp->n_layer + hp->n_next;
    snprintf(expected, sizeof expected, "%d layers and no more", n_layer);
    snprintf(next, sizeof next, "model.layers.%d.eh_proj.weight", n_layer);
    if (!hd_checkpoint_find(k->c, next)) /* one that predicts further tokens is none of these */
        HD_TRY(refuse_leftover(k, n_layer, "attn_norm.weight", "input_layernorm.weight", expected));
    if (hp->n_dense_layer == hp->n_layer || hp->n_expert_shared > 0) return HD_OK;
    return refuse_leftover(k, hp->n_dense_layer, "ffn_gate_shexp.weight",
                           "mlp.shared_experts.gate_proj.weight", "no shared expert");
}

hd_status hd_canon_new(const hd_checkpoint *c, const hd_hparams *hp, hd_canon **out) {
    *out = NULL;
    hd_canon *k = hd_alloc_zero(1, sizeof *k);
    k->c = c;
    k->hp = hp;
    k->arena = hd_arena_new(64 << 10);
    size_t room = HD_COUNT_OF(globals) + (size_t)hp->n_layer * HD_COUNT_OF(layers);
    k->tensor = hd_alloc_zero(room, sizeof *k->tensor); /* never moves: names are map keys */
    k->by_name = hd_map_new(room);
    k->is_used = hd_alloc_zero(hd_checkpoint_count(c), sizeof *k->is_used);
    hd_status s = add_all(k);
    if (s == HD_OK) s = refuse_leftovers(k);
    if (s != HD_OK) {
        hd_canon_free(k);
        return s;
    }
    *out = k;
    return HD_OK;
}

void hd_canon_free(hd_canon *k) {
    if (!k) return;
    hd_map_free(k->by_name);
    hd_arena_free(k->arena);
    hd_free(k->tensor);
    hd_free(k->is_used);
    hd_free(k);
}

size_t hd_canon_count(const hd_canon *k) { return k->n; }

const hd_canon_tensor *hd_canon_at(const hd_canon *k, size_t ix) {
    HD_ASSERT(ix < k->n);
    return &k->tensor[ix];
}

const hd_canon_tensor *hd_canon_find(const hd_canon *k, const char *name) {
    uint64_t ix;
    return hd_map_get(k->by_name, hd_str_of(name), &ix) ? &k->tensor[ix] : NULL;
}

bool hd_canon_is_used(const hd_canon *k, size_t checkpoint_ix) {
    HD_ASSERT(checkpoint_ix < hd_checkpoint_count(k->c));
    return k->is_used[checkpoint_ix];
}

/* ---- matrices ---- */

/* Row r (of n_nope) of a head becomes column r of [n_c, n_nope]. */
static void transpose_head(const hd_canon *k, const hd_canon_tensor *t, const char *rows,
                           char *out) {
    enum { n_c_max = 16384 };
    float decoded[n_c_max];
    size_t n_c = (size_t)k->hp->n_c, n_nope = (size_t)k->hp->n_nope;
    enum hd_format from = t->src[0]->format;
    size_t row_bytes = hd_format_bytes(from, n_c), size = hd_format_bytes(t->format, 1);
    HD_ASSERT(n_c <= n_c_max);
    for (size_t r = 0; r < n_nope; r++) {
        const char *row = rows + r * row_bytes;
        if (from != t->format) {
            hd_format_get(from)->decode(row, decoded, n_c);
            row = (const char *)decoded;
        }
        for (size_t j = 0; j < n_c; j++)
            memcpy(out + (j * n_nope + r) * size, row + j * size, size);
    }
}

/* Where row `row` of the pairs lies: of the rotated rows, 2i+s is s*n/2+i of the halves. */
static int64_t unpaired_row(const hd_canon *k, const hd_canon_tensor *t, int64_t row) {
    int64_t n = k->hp->n_rope, i = row % t->pair_group - t->pair_at;
    return i < 0 || i >= n ? row : row - i + i % 2 * (n / 2) + i / 2;
}

int64_t hd_canon_source_row(const hd_canon *k, const hd_canon_tensor *t, int ix, int64_t row) {
    int64_t head = (int64_t)ix * (k->hp->n_nope + k->hp->n_v);
    switch (t->kind) {
    case HD_CANON_PAIRS: return unpaired_row(k, t, row);
    case HD_CANON_K_B: return head + row;
    case HD_CANON_V_B: return head + k->hp->n_nope + row;
    case HD_CANON_STACK: return row;
    default: return ix * t->ne[1] + row;
    }
}

static void pair_rows(const hd_canon *k, const hd_canon_tensor *t, char *out) {
    size_t row_bytes = hd_format_bytes(t->format, (size_t)t->ne[0]);
    const char *data = t->src[0]->data;
    for (int64_t row = 0; row < t->ne[1]; row++)
        memcpy(out + (size_t)row * row_bytes, data + (size_t)unpaired_row(k, t, row) * row_bytes,
               row_bytes);
}

bool hd_canon_is_copied(const hd_canon_tensor *t) {
    return t->kind == HD_CANON_K_B || t->kind == HD_CANON_PAIRS || hd_canon_is_scaled(t);
}

const void *hd_canon_matrix(const hd_canon *k, const hd_canon_tensor *t, int ix, void *scratch) {
    HD_ASSERT(ix >= 0 && ix < t->ne[2]);
    if (hd_canon_is_scaled(t)) {
        hd_canon_scaled_matrix(k, t, ix, scratch);
        return scratch;
    }
    if (t->kind == HD_CANON_PAIRS) {
        pair_rows(k, t, scratch);
        return scratch;
    }
    const hd_file_tensor *f = t->src[t->kind == HD_CANON_STACK ? ix : 0];
    size_t row_bytes = hd_format_bytes(f->format, (size_t)f->ne[0]);
    const char *rows = (const char *)f->data + (size_t)hd_canon_source_row(k, t, ix, 0) * row_bytes;
    if (t->kind != HD_CANON_K_B) return rows;
    transpose_head(k, t, rows, scratch);
    return scratch;
}
