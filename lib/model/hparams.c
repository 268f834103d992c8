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

#define INT(field, gguf, json, min, max, required)                                                 \
    { offsetof(hd_hparams, field), gguf, json, min, max, 0, 'i', required }
#define NUM(field, gguf, json, max, required, initial)                                             \
    { offsetof(hd_hparams, field), gguf, json, 0, max, initial, 'f', required }
/* clang-format off */
static const hd_hparams_row rows[] = {
    INT(n_layer,         "block_count",                 "num_hidden_layers",        1, layers_max, true),
    INT(n_ctx,           "context_length",              "max_position_embeddings",  1, ctx_max, true),
    INT(d_model,         "embedding_length",            "hidden_size",              1, width_max, true),
    INT(d_ff,            "feed_forward_length",         "intermediate_size",        0, wide_max, false),
    INT(n_head,          "attention.head_count",        "num_attention_heads",      1, heads_max, true),
    INT(q_lora,          "attention.q_lora_rank",       "q_lora_rank",              0, width_max, false),
    INT(n_c,             "attention.kv_lora_rank",      "kv_lora_rank",             1, head_dim_max, true),
    INT(n_rope,          "rope.dimension_count",        "qk_rope_head_dim",         2, rope_dim_max, true),
    NUM(rms_eps,         "attention.layer_norm_rms_epsilon","rms_norm_eps",             0.1, true, 0),
    INT(n_dense_layer,   "leading_dense_block_count",   "first_k_dense_replace",    0, layers_max, false),
    INT(n_expert,        "expert_count",                "n_routed_experts",         0, experts_max, false),
    INT(n_expert_used,   "expert_used_count",           "num_experts_per_tok",      0, experts_max, false),
    INT(n_expert_shared, "expert_shared_count",         "n_shared_experts",         0, 1024, false),
    INT(d_expert,        "expert_feed_forward_length",  "moe_intermediate_size",    0, wide_max, false),
    INT(n_group,         "expert_group_count",          "n_group",                  0, experts_max, false),
    INT(n_group_used,    "expert_group_used_count",     "topk_group",               0, experts_max, false),
    NUM(expert_scale,    "expert_weights_scale",        "routed_scaling_factor",    1e6, false, 1),
};
/* clang-format on */

size_t hd_hparams_rows(const hd_hparams_row **out) {
    *out = rows;
    return HD_COUNT_OF(rows);
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
    if (!hp->is_yarn) return;
    expect(c, is_between(hp->yarn_factor, 1, 1e6f), "yarn factor", "1 to 1e6",
           (double)hp->yarn_factor);
    expect(c, is_between(hp->yarn_beta_fast, 1e-3f, 1e6f), "yarn beta_fast", "0.001 to 1e6",
           (double)hp->yarn_beta_fast);
    expect(c, is_between(hp->yarn_beta_slow, 1e-3f, 1e6f), "yarn beta_slow", "0.001 to 1e6",
           (double)hp->yarn_beta_slow);
    expect(c, is_between(hp->yarn_mscale, 0, 100), "yarn mscale", "0 to 100",
           (double)hp->yarn_mscale);
    expect(c, is_between(hp->yarn_mscale_all, 0, 100), "yarn mscale_all_dim", "0 to 100",
           (double)hp->yarn_mscale_all);
    expect(c, hp->yarn_orig_ctx >= 1 && hp->yarn_orig_ctx <= ctx_max, "yarn original context",
           "1 to 16777216", hp->yarn_orig_ctx);
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
    expect(&c, hp->n_nope >= 1 && hp->n_nope <= head_dim_max, "key dimensions without rope",
           "1 to 16384", hp->n_nope);
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
    hp->lora_eps = 1e-6f;
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
    hd_hparams_set_name(out, name);
    if (!hd_checkpoint_gguf(c)) return read_config(c, out);
    return finish(hd_hparams_from_gguf(c, path, out), path, out);
}

size_t hd_hparams_kv_bytes(const hd_hparams *hp, enum hd_format kv_format) {
    return (size_t)hp->n_layer * hd_format_bytes(kv_format, (size_t)hp->n_c + (size_t)hp->n_rope);
}
