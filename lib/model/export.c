/* GGUF from canonical tensors: which format each gets, conversion row by row, and the keys. */
#include "model/export.h"

#include "base/mem.h"
#include "model/arch.h"
#include "model/hparams_source.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static bool fits(enum hd_format f, int64_t n_in) {
    return n_in % hd_format_get(f)->block_elems == 0;
}

enum hd_format hd_export_format(const hd_canon_tensor *t, int wanted, char why[128]) {
    why[0] = 0;
    if (t->n_dim == 1 || hd_str_ends_c(hd_str_of(t->name), "ffn_gate_inp.weight")) return HD_F32;
    /* The transposed key part of a quantised kv_b arrives decoded: quantise it again. */
    enum hd_format to = wanted == HD_EXPORT_AUTO ? t->src[0]->format : (enum hd_format)wanted;
    if (!hd_format_is_gguf(to)) to = HD_BF16; /* FP8: four bits of each weight, and of its scale */
    if (fits(to, t->ne[0])) return to;
    snprintf(why, 128, "rows of %lld are no multiple of %d, as %s needs", (long long)t->ne[0],
             hd_format_get(to)->block_elems, hd_format_get(to)->name);
    return HD_F16;
}

uint32_t hd_export_file_type(enum hd_format f) {
    /* llama.cpp's enum llama_ftype; of the mixtures the medium one. */
    static const struct {
        enum hd_format format;
        uint32_t file_type;
    } known[] = {{HD_F32, 0},     {HD_F16, 1},     {HD_Q4_0, 2},  {HD_Q4_1, 3},
                 {HD_Q8_0, 7},    {HD_Q5_0, 8},    {HD_Q5_1, 9},  {HD_Q2_K, 10},
                 {HD_Q3_K, 12},   {HD_Q4_K, 15},   {HD_Q5_K, 17}, {HD_Q6_K, 18},
                 {HD_IQ4_NL, 25}, {HD_IQ4_XS, 30}, {HD_BF16, 32}, {HD_MXFP4, 38}};
    for (size_t i = 0; i < HD_COUNT_OF(known); i++)
        if (known[i].format == f) return known[i].file_type;
    return 1024; /* "guessed": each tensor says its own */
}

/* ---- keys ---- */

struct keys {
    hd_gguf_writer *w;
    const char *arch;
    char key[128];
};

static const char *key_of(struct keys *k, const char *suffix) {
    snprintf(k->key, sizeof k->key, "%s.%s", k->arch, suffix);
    return k->key;
}

static void put_int(struct keys *k, const char *suffix, int v) {
    hd_gguf_set_u32(k->w, key_of(k, suffix), (uint32_t)v);
}

static void put_num(struct keys *k, const char *suffix, float v) {
    hd_gguf_set_f32(k->w, key_of(k, suffix), v);
}

/* The mscale pair for llama.cpp, which has two numbers: with A = attn_factor, L =
 * yarn_log_multiplier / 0.1 and g(m) = 1 + 0.1 m ln factor it multiplies cos and sin by A and
 * scores by (A g(L))^2, or by A g(1) and (A g(1))^2 when L is 0 or there is no latent (and then
 * scores by nothing). An equal pair m needs L = m alone; whatever else is wanted has one solution.
 */
static void put_mscale(struct keys *k, const hd_hparams *hp) {
    double factor = (double)hp->yarn_factor, log_multiplier = 0.1 * (double)hp->yarn_mscale_all;
    double g_all = hd_rope_mscale(factor, (double)hp->yarn_mscale_all);
    double wanted = hd_rope_mscale(factor, (double)hp->yarn_mscale) / g_all; /* of cos and sin */
    double unit = hd_rope_mscale(factor, 1);
    bool is_equal = hp->yarn_mscale == hp->yarn_mscale_all || !(factor > 1);
    if (!hd_hparams_is_mla(hp))
        log_multiplier = 0;
    else if (!is_equal)
        log_multiplier = (g_all / wanted - 1) / log(factor);
    float l = (float)log_multiplier;
    double attn_factor = l == 0 ? wanted / unit : is_equal ? 1 : wanted;
    if (l != 0) put_num(k, "rope.scaling.yarn_log_multiplier", l);
    if ((float)attn_factor != 1) put_num(k, HD_KEY_ATTN_FACTOR, (float)attn_factor);
}

static void put_rope(struct keys *k, const hd_hparams *hp) {
    put_int(k, "rope.dimension_count", hp->n_rope);
    put_num(k, "rope.freq_base", hp->rope_base);
    if (hp->rope_linear > 0) {
        hd_gguf_set_str(k->w, key_of(k, "rope.scaling.type"), hd_str_of("linear"));
        put_num(k, "rope.scaling.factor", hp->rope_linear);
    }
    if (!hp->is_yarn) return;
    hd_gguf_set_str(k->w, key_of(k, "rope.scaling.type"), hd_str_of("yarn"));
    put_num(k, "rope.scaling.factor", hp->yarn_factor);
    put_int(k, "rope.scaling.original_context_length", hp->yarn_orig_ctx);
    put_num(k, "rope.scaling.yarn_beta_fast", hp->yarn_beta_fast);
    put_num(k, "rope.scaling.yarn_beta_slow", hp->yarn_beta_slow);
    put_mscale(k, hp);
    put_num(k, HD_KEY_MSCALE, hp->yarn_mscale);
    put_num(k, HD_KEY_MSCALE_ALL, hp->yarn_mscale_all);
}

static void put_heads(struct keys *k, const hd_hparams *hp) {
    if (!hd_hparams_is_mla(hp)) {
        put_int(k, "attention.key_length", hp->n_rope);
        put_int(k, "attention.value_length", hp->n_v);
        return;
    }
    put_int(k, "attention.key_length", hp->n_c + hp->n_rope); /* the latent view */
    put_int(k, "attention.value_length", hp->n_c);
    put_int(k, "attention.key_length_mla", hp->n_nope + hp->n_rope);
    put_int(k, "attention.value_length_mla", hp->n_v);
    if (hp->q_lora) put_int(k, "attention.q_lora_rank", hp->q_lora);
    put_int(k, "attention.kv_lora_rank", hp->n_c);
}

static void put_experts(struct keys *k, const hd_hparams *hp) {
    bool has_experts = hp->n_expert > 0;
    if (has_experts || hd_hparams_is_mla(hp))
        put_int(k, "leading_dense_block_count", hp->n_dense_layer);
    if (!has_experts) return;
    put_int(k, "expert_count", hp->n_expert);
    put_int(k, "expert_used_count", hp->n_expert_used);
    put_int(k, "expert_shared_count", hp->n_expert_shared);
    put_int(k, "expert_feed_forward_length", hp->d_expert);
    put_int(k, "expert_group_count", hp->n_group);
    put_int(k, "expert_group_used_count", hp->n_group_used);
    put_int(k, "expert_gating_func", (int)hp->gating);
    put_num(k, "expert_weights_scale", hp->expert_scale);
    hd_gguf_set_bool(k->w, key_of(k, "expert_weights_norm"), hp->expert_normalise);
}

void hd_export_keys(hd_gguf_writer *w, const hd_hparams *hp) {
    struct keys k = {.w = w, .arch = hp->arch};
    hd_gguf_set_str(w, "general.architecture", hd_str_of(hp->arch));
    hd_gguf_set_str(w, "general.name", hd_str_of(hp->name));
    put_int(&k, "block_count", hp->n_layer);
    put_int(&k, "context_length", hp->n_ctx);
    put_int(&k, "embedding_length", hp->d_model);
    put_int(&k, "vocab_size", hp->n_vocab);
    put_int(&k, "feed_forward_length", hp->d_ff);
    put_int(&k, "attention.head_count", hp->n_head);
    put_int(&k, "attention.head_count_kv", hp->n_head_kv);
    put_num(&k, "attention.layer_norm_rms_epsilon", hp->rms_eps);
    put_heads(&k, hp);
    put_rope(&k, hp);
    put_experts(&k, hp);
}

/* ---- tensors ---- */

/* Of a row about to be encoded: everything finite, nothing beyond what `to` can hold. */
static hd_status check_row(const hd_canon_tensor *t, const float *x, int64_t row,
                           enum hd_format to) {
    /* From 65520 on a number rounds past f16's largest; Q8_0 stores a block's largest / 127 so. */
    float limit = to == HD_F16 ? 65520.0f : to == HD_Q8_0 ? 65520.0f * 127 : INFINITY;
    for (int64_t i = 0; i < t->ne[0]; i++) {
        if (isfinite(x[i]) && fabsf(x[i]) < limit) continue;
        return HD_FAIL(
            NUMERIC, "tensor %s: row %lld: expected %s, found %.9g", t->name, (long long)row,
            isfinite(x[i]) ? "what the format can hold (take --outtype bf16)" : "finite weights",
            (double)x[i]);
    }
    return HD_OK;
}

struct rows { /* room for one row on its way */
    float *decoded;
    char *encoded;
};

static hd_status export_matrix(hd_gguf_writer *w, const hd_canon_tensor *t, const char *matrix,
                               enum hd_format to, const struct rows *r) {
    size_t n_in = (size_t)t->ne[0], row_bytes = hd_format_bytes(t->format, n_in);
    if (to == t->format) return hd_gguf_data(w, matrix, row_bytes * (size_t)t->ne[1]);
    for (int64_t row = 0; row < t->ne[1]; row++) {
        hd_format_get(t->format)->decode(matrix + (size_t)row * row_bytes, r->decoded, n_in);
        HD_TRY(check_row(t, r->decoded, row, to));
        hd_format_get(to)->encode(r->decoded, r->encoded, n_in);
        HD_TRY(hd_gguf_data(w, r->encoded, hd_format_bytes(to, n_in)));
    }
    return HD_OK;
}

hd_status hd_export_tensor(hd_gguf_writer *w, const hd_canon *k, const hd_canon_tensor *t,
                           enum hd_format to, void (*on_bytes)(void *user, uint64_t n),
                           void *user) {
    size_t n_in = (size_t)t->ne[0], n = n_in * (size_t)t->ne[1];
    struct rows r = {hd_alloc(n_in * sizeof(float)), hd_alloc(hd_format_bytes(to, n_in))};
    void *scratch = hd_canon_is_copied(t) ? hd_alloc(hd_format_bytes(t->format, n)) : NULL;
    hd_status s = HD_OK;
    for (int m = 0; m < (int)t->ne[2] && s == HD_OK; m++) {
        s = hd_canon_check(k, t, m);
        if (s == HD_OK) s = export_matrix(w, t, hd_canon_matrix(k, t, m, scratch), to, &r);
        if (on_bytes) on_bytes(user, hd_format_bytes(to, n));
    }
    hd_free(scratch);
    hd_free(r.decoded);
    hd_free(r.encoded);
    return s;
}
