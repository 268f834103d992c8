/* Hyper-parameters from the keys of a GGUF file or from config.json, into one struct.
 *
 * Plain ones are rows of a table with both spellings; what the two files say differently (head
 * sizes, rope scaling, routing, token ids) has a function for each. Then one check of every range
 * and relation, so that nothing behind this file meets a zero divisor or an absurd size. Keys:
 * docs/gguf-keys.md. */
#include "model/hparams_source.h"

#include "base/mem.h"
#include "file/gguf.h"
#include "file/mapping.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum {
    layers_max = 1024,
    ctx_max = 1 << 24,
    width_max = 1 << 20,
    wide_max = 1 << 22,
    heads_max = 4096,
    head_dim_max = 16384,
    rope_dim_max = 1024,
    experts_max = 4096,
};

#define INT(field, gguf, json, min, max, required, only)                                           \
    { offsetof(hd_hparams, field), gguf, json, min, max, 0, 'i', required, only }
#define NUM(field, gguf, json, max, required, initial, only)                                       \
    { offsetof(hd_hparams, field), gguf, json, 0, max, initial, 'f', required, only }
/* clang-format off */
static const hd_hparams_row rows[] = {
    INT(n_layer,         "block_count",                 "num_hidden_layers",        1, layers_max, true, 0),
    INT(n_ctx,           "context_length",              "max_position_embeddings",  1, ctx_max, true, 0),
    INT(d_model,         "embedding_length",            "hidden_size",              1, width_max, true, 0),
    INT(d_ff,            "feed_forward_length",         "intermediate_size",        0, wide_max, false, 0),
    INT(n_head,          "attention.head_count",        "num_attention_heads",      1, heads_max, true, 0),
    INT(q_lora,          "attention.q_lora_rank",       "q_lora_rank",              0, width_max, false, 'm'),
    INT(n_c,             "attention.kv_lora_rank",      "kv_lora_rank",             1, head_dim_max, true, 'm'),
    INT(n_rope,          "rope.dimension_count",        "qk_rope_head_dim",         2, rope_dim_max, true, 'm'),
    NUM(rms_eps,         "attention.layer_norm_rms_epsilon","rms_norm_eps",             0.1, true, 0, 0),
    INT(n_dense_layer,   "leading_dense_block_count",   "first_k_dense_replace",    0, layers_max, false, 'e'),
    INT(n_expert,        "expert_count",                "n_routed_experts",         0, experts_max, false, 'e'),
    INT(n_expert_used,   "expert_used_count",           "num_experts_per_tok",      0, experts_max, false, 'e'),
    INT(n_expert_shared, "expert_shared_count",         "n_shared_experts",         0, 1024, false, 'e'),
    INT(d_expert,        "expert_feed_forward_length",  "moe_intermediate_size",    0, wide_max, false, 'e'),
    INT(n_group,         "expert_group_count",          "n_group",                  0, experts_max, false, 'e'),
    INT(n_group_used,    "expert_group_used_count",     "topk_group",               0, experts_max, false, 'e'),
    NUM(expert_scale,    "expert_weights_scale",        "routed_scaling_factor",    1e6, false, 1, 'e'),
};
/* clang-format on */

static const hd_hparams_family families[] = {
    {.arch = "deepseek2",
     .model_type = "deepseek_v3",
     .is_mla = true,
     .has_experts = true,
     .is_v3 = true},
    {.arch = "deepseek2", .model_type = "deepseek_v2", .is_mla = true, .has_experts = true},
    {.arch = "deepseek", .model_type = "deepseek", .has_experts = true},
    {.arch = "llama", .model_type = "llama"},
    {.arch = "qwen2", .model_type = "qwen2", .has_qkv_bias = true, .is_half_split = true},
};

static void set_family(hd_hparams *hp, const hd_hparams_family *f) {
    snprintf(hp->arch, sizeof hp->arch, "%s", f->arch);
    hp->has_qkv_bias = f->has_qkv_bias;
    hp->is_half_split = f->is_half_split;
}

hd_status hd_hparams_set_arch(hd_hparams *hp, const char *file, hd_str arch,
                              const hd_hparams_family **out) {
    for (size_t i = 0; i < HD_COUNT_OF(families); i++) {
        if (!hd_str_eq_c(arch, families[i].arch)) continue;
        *out = &families[i];
        set_family(hp, *out);
        return HD_OK;
    }
    return HD_FAIL(UNSUPPORTED,
                   "%s: general.architecture: \"%s\" is not supported: known here: deepseek2, "
                   "deepseek, llama, qwen2",
                   file, hd_show(arch));
}

hd_status hd_hparams_set_type(hd_hparams *hp, const char *file, const char *type,
                              const hd_hparams_family **out) {
    for (size_t i = 0; i < HD_COUNT_OF(families); i++) {
        if (strcmp(type, families[i].model_type) != 0) continue;
        *out = &families[i];
        set_family(hp, *out);
        return HD_OK;
    }
    return HD_FAIL(UNSUPPORTED,
                   "%s: model_type: \"%s\" is not supported: known here: deepseek_v3, deepseek_v2, "
                   "deepseek, llama, qwen2",
                   file, hd_show(hd_str_of(type)));
}

size_t hd_hparams_rows(const hd_hparams_row **out) {
    *out = rows;
    return HD_COUNT_OF(rows);
}

bool hd_hparams_has_row(const hd_hparams_family *f, const hd_hparams_row *row) {
    return row->only == 'm' ? f->is_mla : row->only == 'e' ? f->has_experts : true;
}

hd_status hd_hparams_set(hd_hparams *hp, const hd_hparams_row *row, const char *file,
                         const char *key, double v) {
    if (!(v >= row->min && v <= row->max))
        return HD_FAIL(CORRUPT, "%s: %s: expected %.9g to %.9g, found %.9g", file, key, row->min,
                       row->max, v);
    char *field = (char *)hp + row->offset;
    if (row->kind == 'i')
        *(int *)(void *)field = (int)v;
    else
        *(float *)(void *)field = (float)v;
    return HD_OK;
}

void hd_hparams_set_name(hd_hparams *hp, hd_str name) {
    snprintf(hp->name, sizeof hp->name, "%s", hd_show(name));
}

static hd_status bad_llama3(const char *file, const char *what, double found) {
    return HD_FAIL(CORRUPT, "%s: llama3 rope scaling: expected %s, found %.9g", file, what, found);
}

hd_status hd_hparams_set_llama3(hd_hparams *hp, const char *file, double factor, double low,
                                double high, double orig_ctx) {
    if (!(factor >= 1 && factor <= 1e6)) return bad_llama3(file, "factor 1 to 1e6", factor);
    if (!(low > 0 && low <= 1e6))
        return bad_llama3(file, "low_freq_factor more than 0, up to 1e6", low);
    if (!(high > low && high <= 1e6))
        return bad_llama3(file, "high_freq_factor more than low_freq_factor, up to 1e6", high);
    if (!(orig_ctx >= 1 && orig_ctx <= ctx_max))
        return bad_llama3(file, "original_max_position_embeddings 1 to 16777216", orig_ctx);
    if (hp->n_rope / 2 > HD_ROPE_PAIR_MAX)
        return bad_llama3(file, "at most 1024 rope dimensions", hp->n_rope);
    hp->has_rope_divisor = true;
    for (int i = 0; i < hp->n_rope / 2; i++) {
        float exponent = (float)(2 * i) / (float)hp->n_rope;
        double wavelength = 2 * M_PI * pow((double)hp->rope_base, (double)exponent);
        double blend = (orig_ctx / wavelength - low) / (high - low);
        double divisor = 1 / ((1 - blend) / factor + blend);
        if (wavelength < orig_ctx / high) divisor = 1;
        if (wavelength > orig_ctx / low) divisor = factor;
        hp->rope_divisor[i] = (float)divisor;
    }
    return HD_OK;
}

hd_status hd_hparams_set_heads(hd_hparams *hp, const char *file, int d_head, int n_head_kv) {
    if (d_head == 0 && hp->d_model % hp->n_head != 0)
        return HD_FAIL(CORRUPT,
                       "%s: head size: expected one, as width %d is no multiple of %d heads", file,
                       hp->d_model, hp->n_head);
    hp->n_rope = hp->n_v = d_head > 0 ? d_head : hp->d_model / hp->n_head;
    hp->n_head_kv = n_head_kv > 0 ? n_head_kv : hp->n_head;
    return HD_OK;
}

/* ---- relations ---- */

struct check {
    const char *file;
    hd_status s; /* the first failure is kept */
};

static void expect(struct check *c, bool is_right, const char *what, const char *expected,
                   double found) {
    if (c->s == HD_OK && !is_right)
        c->s = HD_FAIL(CORRUPT, "%s: %s: expected %s, found %.9g", c->file, what, expected, found);
}

static bool is_between(float v, float min, float max) {
    return isfinite(v) != 0 && v >= min && v <= max;
}

static void check_rope(struct check *c, const hd_hparams *hp) {
    expect(c, hp->n_rope % 2 == 0, "rope dimensions of a head", "an even number", hp->n_rope);
    expect(c, is_between(hp->rope_base, 1.001f, 1e12f), "rope base", "more than 1, up to 1e12",
           (double)hp->rope_base);
    expect(c, hp->rope_linear == 0 || is_between(hp->rope_linear, 1e-3f, 1e6f),
           "linear rope scaling factor", "0.001 to 1e6", (double)hp->rope_linear);
    if (!hp->is_yarn) return;
    expect(c, is_between(hp->yarn_factor, 1, 1e6f), "yarn factor", "1 to 1e6",
           (double)hp->yarn_factor);
    expect(c, is_between(hp->yarn_beta_fast, 1e-3f, 1e6f), "yarn beta_fast", "0.001 to 1e6",
           (double)hp->yarn_beta_fast);
    expect(c, is_between(hp->yarn_beta_slow, 1e-3f, 1e6f), "yarn beta_slow", "0.001 to 1e6",
           (double)hp->yarn_beta_slow);
    expect(c, is_between(hp->yarn_mscale, -1e4f, 1e4f), "yarn mscale", "-1e4 to 1e4",
           (double)hp->yarn_mscale);
    expect(c, is_between(hp->yarn_mscale_all, 0, 100), "yarn mscale_all_dim", "0 to 100",
           (double)hp->yarn_mscale_all);
    expect(c, hp->yarn_orig_ctx >= 1 && hp->yarn_orig_ctx <= ctx_max, "yarn original context",
           "1 to 16777216", hp->yarn_orig_ctx);
}

static void check_gqa(struct check *c, const hd_hparams *hp) {
    expect(c, hp->n_rope >= 2 && hp->n_rope <= rope_dim_max, "head size", "2 to 1024", hp->n_rope);
    expect(c, hp->n_head_kv >= 1 && hp->n_head % (hp->n_head_kv > 0 ? hp->n_head_kv : 1) == 0,
           "key and value head count", "a divisor of the head count", hp->n_head_kv);
}

static void check_experts(struct check *c, const hd_hparams *hp) {
    int n_in_group = hp->n_group > 0 ? hp->n_expert / hp->n_group : 0;
    expect(c, hp->n_expert >= 1, "expert count", "1 or more (there are layers with experts)",
           hp->n_expert);
    expect(c, hp->d_expert >= 1, "expert feed-forward width", "1 or more", hp->d_expert);
    expect(c, hp->n_group >= 1 && hp->n_expert % (hp->n_group > 0 ? hp->n_group : 1) == 0,
           "expert group count", "a divisor of the expert count", hp->n_group);
    expect(c, hp->n_group == 1 || hp->group_rule == HD_GROUP_MAX || n_in_group >= 2,
           "experts of a group", "2 or more (a group is scored by its best two)", n_in_group);
    expect(c, hp->n_group_used >= 1 && hp->n_group_used <= hp->n_group, "expert groups used",
           "1 to the group count", hp->n_group_used);
    expect(c, hp->n_expert_used >= 1 && hp->n_expert_used <= n_in_group * hp->n_group_used,
           "experts used", "1 to what the groups in use hold", hp->n_expert_used);
    expect(c, (int64_t)hp->d_expert * hp->n_expert_shared <= wide_max,
           "shared experts' feed-forward width", "at most 4194304",
           (double)hp->d_expert * hp->n_expert_shared);
    expect(c, hp->expert_scale > 0, "expert weights scale", "more than 0",
           (double)hp->expert_scale);
}

static void check_token(struct check *c, const hd_hparams *hp, const char *what, int32_t id) {
    expect(c, id >= -1 && id < hp->n_vocab, what, "an id of the vocabulary", id);
}

static hd_status check_all(const hd_hparams *hp, const char *file) {
    struct check c = {.file = file};
    expect(&c, hp->n_vocab >= 1 && hp->n_vocab <= wide_max, "vocabulary size", "1 to 4194304",
           hp->n_vocab);
    if (hd_hparams_is_mla(hp))
        expect(&c, hp->n_nope >= 1 && hp->n_nope <= head_dim_max, "key dimensions without rope",
               "1 to 16384", hp->n_nope);
    else
        check_gqa(&c, hp);
    expect(&c, hp->n_v >= 1 && hp->n_v <= head_dim_max, "value dimensions of a head", "1 to 16384",
           hp->n_v);
    expect(&c, hp->rms_eps > 0, "rms epsilon", "more than 0", (double)hp->rms_eps);
    expect(&c, hp->n_dense_layer == 0 || hp->d_ff >= 1, "dense feed-forward width", "1 or more",
           hp->d_ff);
    check_rope(&c, hp);
    if (hp->n_dense_layer < hp->n_layer) check_experts(&c, hp);
    check_token(&c, hp, "bos token", hp->bos);
    check_token(&c, hp, "eos token", hp->eos);
    check_token(&c, hp, "padding token", hp->pad);
    return c.s;
}

/* What no key says, or what follows from others. */
static void complete(hd_hparams *hp) {
    if (hd_hparams_is_mla(hp)) {
        hp->n_head_kv = 1; /* one latent row for all heads */
        hp->lora_eps = 1e-6f;
    }
    if (hp->n_expert == 0 || hp->n_dense_layer > hp->n_layer) hp->n_dense_layer = hp->n_layer;
    if (hp->n_dense_layer == hp->n_layer)
        hp->n_expert = hp->n_expert_used = hp->n_expert_shared = hp->d_expert = 0;
    if (hp->n_group == 0) hp->n_group = 1;
    if (hp->n_group_used == 0) hp->n_group_used = hp->n_group == 1 ? 1 : 0;
    hp->group_rule = hp->gating == HD_GATING_SIGMOID ? HD_GROUP_TOP2_SUM : HD_GROUP_MAX;
}

static hd_status finish(hd_status s, const char *file, hd_hparams *hp) {
    if (s != HD_OK) return s;
    complete(hp);
    return check_all(hp, file);
}

hd_status hd_hparams_parse_config(hd_str text, const char *file, hd_hparams *out) {
    return finish(hd_hparams_from_config(text, file, out), file, out);
}

static hd_status read_config(const hd_checkpoint *c, hd_hparams *out) {
    char *text, *file = hd_path_join(hd_checkpoint_path(c), "config.json");
    size_t n;
    hd_status s = hd_checkpoint_file(c, "config.json", &text, &n);
    if (s == HD_OK) s = hd_hparams_parse_config((hd_str){text, n}, file, out);
    hd_free(text);
    hd_free(file);
    return s;
}

hd_status hd_hparams_read(const hd_checkpoint *c, hd_hparams *out) {
    const char *path = hd_checkpoint_path(c);
    *out = (hd_hparams){.bos = -1, .eos = -1, .pad = -1};
    hd_str name = hd_path_base(path); /* unless a key has one */
    if (name.len > 5 && hd_str_ends_c(name, ".gguf")) name.len -= 5;
    const size_t n_part = strlen("-00001-of-00001"); /* of a split file */
    if (name.len > n_part && memcmp(name.ptr + name.len - n_part, "-00001-of-", 10) == 0)
        name.len -= n_part;
    hd_hparams_set_name(out, name);
    if (!hd_checkpoint_gguf(c)) return read_config(c, out);
    return finish(hd_hparams_from_gguf(c, path, out), path, out);
}

hd_kv_layout hd_hparams_kv_layout(const hd_hparams *hp, enum hd_kv_type t) {
    return hd_hparams_is_mla(hp) ? hd_kv_latent(t, hp->n_c, hp->n_rope)
                                 : hd_kv_heads(t, hp->n_head_kv, hp->n_rope);
}

size_t hd_hparams_kv_bytes(const hd_hparams *hp, enum hd_kv_type t) {
    hd_kv_layout l = hd_hparams_kv_layout(hp, t);
    return hd_kv_bytes(&l, (size_t)hp->n_layer * (hd_hparams_is_mla(hp) ? 1 : 2));
}
