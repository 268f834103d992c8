/* Hyper-parameters from GGUF keys, in every spelling that is in use (docs/gguf-keys.md): current
 * files with a split kv_b, older ones without, and the oldest V3 files without routing keys. */
#include "model/hparams_source.h"

#include "file/gguf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct source {
    const hd_checkpoint *c;
    const hd_gguf *g;
    const char *file;
    const hd_hparams_family *family;
    char key[128]; /* the key asked for last, for messages */
};

static const char *key_of(struct source *s, const char *suffix) {
    snprintf(s->key, sizeof s->key, "%s.%s", s->family->arch, suffix);
    return s->key;
}

static bool has_key(struct source *s, const char *suffix) {
    const char *key = key_of(s, suffix);
    for (size_t i = 0; i < hd_gguf_key_count(s->g); i++)
        if (hd_str_eq_c(hd_gguf_key_at(s->g, i), key)) return true;
    return false;
}

/* A number, or an array of equal numbers (one a layer). *is_there says whether the key exists. */
static hd_status get_num(struct source *s, const char *suffix, bool is_int, bool *is_there,
                         double *out) {
    const char *key = key_of(s, suffix);
    int64_t v = 0;
    size_t n;
    *is_there = has_key(s, suffix);
    if (!*is_there) return HD_OK;
    if (is_int ? hd_gguf_int(s->g, key, &v) : hd_gguf_num(s->g, key, out)) {
        if (is_int) *out = (double)v;
        return HD_OK;
    }
    if (!hd_gguf_array(s->g, key, &n) || n == 0 || !hd_gguf_array_num(s->g, key, 0, out) ||
        (is_int && !hd_gguf_array_int(s->g, key, 0, &v)))
        return HD_FAIL(CORRUPT, "%s: %s: expected %s, found another kind of value", s->file, key,
                       is_int ? "an integer" : "a number");
    for (size_t i = 1; i < n; i++) {
        double other = 0;
        if (!hd_gguf_array_num(s->g, key, i, &other) || other != *out)
            return HD_FAIL(UNSUPPORTED,
                           "%s: %s: expected one value for all layers, found %.9g and %.9g",
                           s->file, key, *out, other);
    }
    return HD_OK;
}

/* An integer in [min, max]; initial when absent. */
static hd_status get_int(struct source *s, const char *suffix, int64_t max, int initial, int *out) {
    bool is_there;
    double v = 0;
    *out = initial;
    HD_TRY(get_num(s, suffix, true, &is_there, &v));
    if (!is_there) return HD_OK;
    if (!(v >= 0 && v <= (double)max))
        return HD_FAIL(CORRUPT, "%s: %s: expected 0 to %lld, found %.0f", s->file, s->key,
                       (long long)max, v);
    *out = (int)v;
    return HD_OK;
}

static hd_status get_float(struct source *s, const char *suffix, float initial, float *out) {
    bool is_there;
    double v = (double)initial;
    HD_TRY(get_num(s, suffix, false, &is_there, &v));
    *out = (float)v;
    return HD_OK;
}

static hd_status read_rows(struct source *s, hd_hparams *hp) {
    const hd_hparams_row *row;
    size_t n = hd_hparams_rows(&row);
    for (; n > 0; n--, row++) {
        bool is_there;
        double v = row->initial;
        if (!hd_hparams_has_row(s->family, row)) continue;
        HD_TRY(get_num(s, row->gguf, row->kind == 'i', &is_there, &v));
        if (!is_there && row->is_required)
            return HD_FAIL(CORRUPT, "%s: %s: expected a number, found no such key", s->file,
                           s->key);
        if (is_there)
            HD_TRY(hd_hparams_set(hp, row, s->file, s->key, v));
        else if (row->kind == 'f')
            *(float *)(void *)((char *)hp + row->offset) = (float)row->initial;
    }
    return HD_OK;
}

/* The mscale pair in hadal's own keys: then what llama.cpp reads instead does not count. */
static bool has_mscale_pair(struct source *s) {
    return has_key(s, HD_KEY_MSCALE) && has_key(s, HD_KEY_MSCALE_ALL);
}

/* What would change the result and is not built. */
static hd_status refuse_features(struct source *s) {
    static const struct {
        const char *suffix;
        double harmless;
        enum { IN_ALL, IN_GQA, IN_DENSE, WITHOUT_PAIR } in;
    } features[] = {
        {"rope.scaling.yarn_log_multiplier", 0, IN_GQA},
        {"expert_count", 0, IN_DENSE},
        {HD_KEY_ATTN_FACTOR, 1, WITHOUT_PAIR},
        {"rope.scaling.yarn_attn_factor", 1, IN_ALL},
        {"rope.scaling.yarn_ext_factor", 1, IN_ALL},
        {"attention.scale", NAN, IN_ALL},
        {"attention.temperature_scale", 0, IN_ALL},
        {"attention.temperature_length", 0, IN_ALL},
        {"attention.sliding_window", 0, IN_ALL},
        {"attn_logit_softcapping", 0, IN_ALL},
        {"final_logit_softcapping", 0, IN_ALL},
        {"router_logit_softcapping", 0, IN_ALL},
        {"attention.indexer.head_count", 0, IN_ALL},
        {"interleave_moe_layer_step", 1, IN_ALL},
        {"moe_every_n_layers", 1, IN_ALL},
        {"logit_scale", 1, IN_ALL},
        {"expert_group_scale", 1, IN_ALL},
    };
    for (size_t i = 0; i < HD_COUNT_OF(features); i++) {
        bool is_there;
        double v = 0;
        if ((features[i].in == IN_GQA && s->family->is_mla) ||
            (features[i].in == IN_DENSE && s->family->has_experts) ||
            (features[i].in == WITHOUT_PAIR && has_mscale_pair(s)))
            continue;
        HD_TRY(get_num(s, features[i].suffix, false, &is_there, &v));
        if (is_there && v != features[i].harmless)
            return HD_FAIL(UNSUPPORTED, "%s: %s: this feature is not supported, found %.9g",
                           s->file, s->key, v);
    }
    return HD_OK;
}

/* Layers behind block_count - nextn_predict_layers predict further tokens: not part of the model.
 */
static hd_status read_layers(struct source *s, hd_hparams *hp) {
    int n_next;
    HD_TRY(get_int(s, "nextn_predict_layers", 1024, 0, &n_next));
    if (n_next >= hp->n_layer)
        return HD_FAIL(CORRUPT, "%s: %s: expected less than the block count %d, found %d", s->file,
                       s->key, hp->n_layer, n_next);
    hp->n_layer -= n_next;
    hp->n_next = n_next;
    return HD_OK;
}

/* Head sizes: current files say them as *_mla beside the sizes of the latent view; older files have
 * them in key_length and value_length, and one kv_b for both. */
static hd_status read_latent_heads(struct source *s, hd_hparams *hp) {
    bool is_split = has_key(s, "attention.key_length_mla");
    int n_key, n_kv;
    HD_TRY(get_int(s, is_split ? "attention.key_length_mla" : "attention.key_length", 32768, 0,
                   &n_key));
    if (n_key <= hp->n_rope)
        return HD_FAIL(CORRUPT, "%s: %s: expected more than the rope dimensions %d, found %d",
                       s->file, s->key, hp->n_rope, n_key);
    hp->n_nope = n_key - hp->n_rope;
    HD_TRY(get_int(s, is_split ? "attention.value_length_mla" : "attention.value_length", 32768, 0,
                   &hp->n_v));
    HD_TRY(get_int(s, "attention.head_count_kv", 4096, 1, &n_kv));
    if (n_kv != 1 && n_kv != hp->n_head)
        return HD_FAIL(CORRUPT, "%s: %s: expected 1 or the head count %d, found %d", s->file,
                       s->key, hp->n_head, n_kv);
    return HD_OK;
}

/* Grouped-query attention: keys and values of one size, rotated whole. */
static hd_status read_heads(struct source *s, hd_hparams *hp) {
    static const char *const same[] = {"attention.value_length", "rope.dimension_count"};
    int d_head, n_kv;
    if (s->family->is_mla) return read_latent_heads(s, hp);
    HD_TRY(get_int(s, "attention.key_length", 32768, 0, &d_head));
    HD_TRY(get_int(s, "attention.head_count_kv", 4096, 0, &n_kv));
    HD_TRY(hd_hparams_set_heads(hp, s->file, d_head, n_kv));
    for (size_t i = 0; i < HD_COUNT_OF(same); i++) {
        int n;
        HD_TRY(get_int(s, same[i], 32768, hp->n_rope, &n));
        if (n != hp->n_rope)
            return HD_FAIL(UNSUPPORTED, "%s: %s: expected the head size %d, found %d", s->file,
                           s->key, hp->n_rope, n);
    }
    return HD_OK;
}

/* llama3 scaling comes as a tensor: what each inverse frequency is divided by. */
static hd_status read_rope_divisor(const struct source *s, hd_hparams *hp) {
    const hd_file_tensor *t = hd_checkpoint_find(s->c, "rope_freqs.weight");
    if (!t) return HD_OK;
    if (t->format != HD_F32 || t->n_dim != 1 || t->ne[0] != hp->n_rope / 2 ||
        t->ne[0] > HD_ROPE_PAIR_MAX)
        return HD_FAIL(CORRUPT, "%s: tensor %s: expected F32 [%d], found %s [%lld]", t->file,
                       t->name, hp->n_rope / 2, t->type, (long long)t->ne[0]);
    memcpy(hp->rope_divisor, t->data, (size_t)t->ne[0] * sizeof(float));
    for (int i = 0; i < hp->n_rope / 2; i++)
        if (!(hp->rope_divisor[i] >= 1e-6f && hp->rope_divisor[i] <= 1e6f))
            return HD_FAIL(CORRUPT, "%s: tensor %s: value %d: expected 1e-6 to 1e6, found %.9g",
                           t->file, t->name, i, (double)hp->rope_divisor[i]);
    hp->has_rope_divisor = true;
    return HD_OK;
}

static hd_status read_mscale(struct source *s, hd_hparams *hp) {
    float log_multiplier;
    HD_TRY(get_float(s, "rope.scaling.yarn_log_multiplier", 0, &log_multiplier));
    if (has_mscale_pair(s)) {
        HD_TRY(get_float(s, HD_KEY_MSCALE, 1, &hp->yarn_mscale));
        return get_float(s, HD_KEY_MSCALE_ALL, 0, &hp->yarn_mscale_all);
    }
    /* llama.cpp's converter stores 0.1 * mscale_all_dim; without it a yarn model scales cos and
     * sin alone. */
    hp->yarn_mscale_all = log_multiplier / 0.1f;
    hp->yarn_mscale = log_multiplier != 0 ? hp->yarn_mscale_all : 1;
    return HD_OK;
}

static hd_status read_rope(struct source *s, hd_hparams *hp) {
    hd_str type = hd_str_of("");
    float factor;
    HD_TRY(get_float(s, "rope.freq_base", 10000, &hp->rope_base));
    HD_TRY(get_float(s, "rope.scaling.factor", 1, &factor));
    if (!has_key(s, "rope.scaling.factor")) /* its name in the oldest files */
        HD_TRY(get_float(s, "rope.scale_linear", 1, &factor));
    if (has_key(s, "rope.scaling.type") &&
        !hd_gguf_str(s->g, key_of(s, "rope.scaling.type"), &type))
        return HD_FAIL(CORRUPT, "%s: %s: expected a string, found another kind of value", s->file,
                       s->key);
    if (hd_str_eq_c(type, "none") || (type.len == 0 && (factor == 1 || factor == 0))) return HD_OK;
    if (type.len == 0 || hd_str_eq_c(type, "linear")) {
        float log_multiplier;
        hp->rope_linear = factor;
        HD_TRY(get_float(s, "rope.scaling.yarn_log_multiplier", 0, &log_multiplier));
        if (log_multiplier != 0)
            return HD_FAIL(UNSUPPORTED,
                           "%s: %s: expected it with rope.scaling.type yarn alone, found %.9g",
                           s->file, s->key, (double)log_multiplier);
        return HD_OK;
    }
    if (!hd_str_eq_c(type, "yarn"))
        return HD_FAIL(UNSUPPORTED, "%s: %s: expected none, linear or yarn, found \"%s\"", s->file,
                       key_of(s, "rope.scaling.type"), hd_show(type));
    hp->is_yarn = true;
    hp->yarn_factor = factor;
    HD_TRY(
        get_int(s, "rope.scaling.original_context_length", 1 << 24, hp->n_ctx, &hp->yarn_orig_ctx));
    HD_TRY(get_float(s, "rope.scaling.yarn_beta_fast", 32, &hp->yarn_beta_fast));
    HD_TRY(get_float(s, "rope.scaling.yarn_beta_slow", 1, &hp->yarn_beta_slow));
    return read_mscale(s, hp);
}

static bool has_routing_bias(const struct source *s, const hd_hparams *hp) {
    char name[64];
    hd_canon_name(hp->n_dense_layer, "exp_probs_b.bias", name);
    if (hd_checkpoint_find(s->c, name)) return true;
    hd_canon_name(hp->n_dense_layer, "exp_probs_b", name);
    return hd_checkpoint_find(s->c, name) != NULL;
}

/* Files older than the routing keys: the bias tensor tells sigmoid scores, 256 experts with those
 * V3's own 8 groups of which 4 are used, 160 experts V2's 8 of which 3 are. */
static hd_status read_routing(struct source *s, hd_hparams *hp) {
    int gating;
    HD_TRY(get_int(s, "expert_gating_func", 100, 0, &gating));
    if (gating == 0) gating = has_routing_bias(s, hp) ? HD_GATING_SIGMOID : HD_GATING_SOFTMAX;
    if (gating != HD_GATING_SIGMOID && gating != HD_GATING_SOFTMAX)
        return HD_FAIL(UNSUPPORTED, "%s: %s: expected 1 (softmax) or 2 (sigmoid), found %d",
                       s->file, s->key, gating);
    hp->gating = (enum hd_gating)gating;
    if (gating == HD_GATING_SIGMOID && hp->n_expert == 256 && hp->n_group == 0) {
        hp->n_group = 8;
        hp->n_group_used = 4;
    }
    bool is_v2 = s->family->is_mla && gating == HD_GATING_SOFTMAX && hp->n_expert == 160;
    if (is_v2 && hp->n_group == 0) {
        hp->n_group = 8;
        hp->n_group_used = 3;
    }
    hd_gguf_bool(s->g, key_of(s, "expert_weights_norm"), &hp->expert_normalise);
    return HD_OK;
}

static hd_status read_vocab(struct source *s, hd_hparams *hp) {
    size_t n_token = 0;
    HD_TRY(get_int(s, "vocab_size", 1 << 22, 0, &hp->n_vocab));
    if (hp->n_vocab > 0) return HD_OK;
    const hd_file_tensor *embd = hd_checkpoint_find(s->c, "token_embd.weight");
    if (!hd_gguf_array(s->g, "tokenizer.ggml.tokens", &n_token) && embd)
        n_token = (size_t)embd->ne[1];
    hp->n_vocab = n_token <= 1 << 22 ? (int)n_token : 0;
    return HD_OK;
}

static hd_status read_token(const struct source *s, const char *key, int32_t *out) {
    int64_t v;
    *out = -1;
    if (!hd_gguf_int(s->g, key, &v)) return HD_OK;
    if (v == -1 || v == UINT32_MAX) return HD_OK; /* both mean none */
    if (v < 0 || v > INT32_MAX)
        return HD_FAIL(CORRUPT, "%s: %s: expected a token id, found %lld", s->file, key,
                       (long long)v);
    *out = (int32_t)v;
    return HD_OK;
}

hd_status hd_hparams_from_gguf(const hd_checkpoint *c, const char *file, hd_hparams *hp) {
    struct source s = {.c = c, .g = hd_checkpoint_gguf(c), .file = file};
    hd_str arch, name, type;
    if (hd_gguf_str(s.g, "general.type", &type) && !hd_str_eq_c(type, "model"))
        return HD_FAIL(UNSUPPORTED, "%s: general.type: expected model, found \"%s\"", file,
                       hd_show(type));
    if (!hd_gguf_str(s.g, "general.architecture", &arch))
        return HD_FAIL(CORRUPT, "%s: general.architecture: expected a string, found none", file);
    HD_TRY(hd_hparams_set_arch(hp, file, arch, &s.family));
    if (hd_gguf_str(s.g, "general.name", &name) && name.len) hd_hparams_set_name(hp, name);
    HD_TRY(refuse_features(&s));
    HD_TRY(read_rows(&s, hp));
    HD_TRY(read_layers(&s, hp));
    HD_TRY(read_heads(&s, hp));
    HD_TRY(read_rope(&s, hp));
    HD_TRY(read_rope_divisor(&s, hp));
    if (s.family->has_experts) HD_TRY(read_routing(&s, hp));
    HD_TRY(read_vocab(&s, hp));
    HD_TRY(read_token(&s, "tokenizer.ggml.bos_token_id", &hp->bos));
    HD_TRY(read_token(&s, "tokenizer.ggml.eos_token_id", &hp->eos));
    HD_TRY(read_token(&s, "tokenizer.ggml.padding_token_id", &hp->pad));
    hp->is_tied = !hd_checkpoint_find(c, "output.weight");
    return HD_OK;
}
