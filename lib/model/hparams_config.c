/* Hyper-parameters from config.json of a Hugging Face checkpoint: model types of the
 * table in hparams.c. A setting that would change the result and is not built is refused by its
 * name. */
#include "model/hparams_source.h"

#include "file/json.h"
#include "model/arch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct source {
    const json_t *root;
    const char *file;
    const hd_hparams_family *family;
};

/* NULL for an absent key and for null, which mean the same. */
static const json_t *get(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    return v && !json_is_null(v) ? v : NULL;
}

static hd_status get_num(const struct source *s, const json_t *o, const char *key, bool is_int,
                         double *out) {
    const json_t *v = get(o, key);
    if (!v) return HD_OK;
    double d = json_number_value(v);
    if (!json_is_number(v) || (is_int && d != floor(d)))
        return HD_FAIL(CORRUPT, "%s: %s: expected %s, found %s", s->file, key,
                       is_int ? "an integer" : "a number", hd_json_found(v));
    *out = d;
    return HD_OK;
}

static hd_status get_float(const struct source *s, const json_t *o, const char *key, float initial,
                           float *out) {
    double v = (double)initial;
    HD_TRY(get_num(s, o, key, false, &v));
    *out = (float)v;
    return HD_OK;
}

static hd_status get_bool(const struct source *s, const char *key, bool initial, bool *out) {
    const json_t *v = get(s->root, key);
    *out = initial;
    if (!v) return HD_OK;
    if (!json_is_boolean(v))
        return HD_FAIL(CORRUPT, "%s: %s: expected true or false, found %s", s->file, key,
                       hd_json_found(v));
    *out = json_is_true(v);
    return HD_OK;
}

static hd_status get_str(const struct source *s, const json_t *o, const char *key,
                         const char *initial, const char **out) {
    const json_t *v = get(o, key);
    *out = initial;
    if (!v) return HD_OK;
    if (!json_is_string(v))
        return HD_FAIL(CORRUPT, "%s: %s: expected a string, found %s", s->file, key,
                       hd_json_found(v));
    *out = json_string_value(v);
    return HD_OK;
}

static hd_status unsupported(const struct source *s, const char *key, const char *expected,
                             const json_t *found) {
    return HD_FAIL(UNSUPPORTED, "%s: %s: not supported: expected %s, found %s", s->file, key,
                   expected, hd_json_found(found));
}

static hd_status read_model_type(struct source *s, hd_hparams *hp) {
    const char *type;
    HD_TRY(get_str(s, s->root, "model_type", "", &type));
    return hd_hparams_set_type(hp, s->file, type, &s->family);
}

static hd_status read_rows(const struct source *s, hd_hparams *hp) {
    const hd_hparams_row *row;
    size_t n = hd_hparams_rows(&row);
    for (; n > 0; n--, row++) {
        double v = row->initial;
        if (!hd_hparams_has_row(s->family, row)) continue;
        if (row->is_required && !get(s->root, row->json))
            return HD_FAIL(CORRUPT, "%s: %s: expected a number, found none", s->file, row->json);
        HD_TRY(get_num(s, s->root, row->json, row->kind == 'i', &v));
        if (get(s->root, row->json))
            HD_TRY(hd_hparams_set(hp, row, s->file, row->json, v));
        else if (row->kind == 'f')
            *(float *)(void *)((char *)hp + row->offset) = (float)row->initial;
    }
    return HD_OK;
}

/* An integer that must be there. */
static hd_status need_int(const struct source *s, const json_t *o, const char *key, int *out) {
    double v = -1;
    HD_TRY(get_num(s, o, key, true, &v));
    if (!(v >= 1 && v <= 1 << 24))
        return HD_FAIL(CORRUPT, "%s: %s: expected an integer from 1 to 16777216, found %s", s->file,
                       key, hd_json_found(json_object_get(o, key)));
    *out = (int)v;
    return HD_OK;
}

static hd_status refuse_windows(const struct source *s) {
    bool flag;
    const json_t *types = get(s->root, "layer_types"), *type;
    size_t i;
    HD_TRY(get_bool(s, "use_sliding_window", false, &flag));
    if (flag)
        return unsupported(s, "use_sliding_window", "false", get(s->root, "use_sliding_window"));
    json_array_foreach(types, i, type) {
        const char *name = json_string_value(type);
        if (!name || strcmp(name, "full_attention") != 0)
            return unsupported(s, "layer_types", "\"full_attention\" in all layers", type);
    }
    return HD_OK;
}

static hd_status refuse_partial_rotary(const struct source *s, const json_t *o) {
    double v = 1;
    HD_TRY(get_num(s, o, "partial_rotary_factor", false, &v));
    return v == 1 ? HD_OK
                  : unsupported(s, "partial_rotary_factor", "1", get(o, "partial_rotary_factor"));
}

/* quantization_config: FP8 with a scale for each block of rows and columns. How scales were rounded
 * (scale_fmt) and how others would round activations changes nothing here: scales are read as they
 * are, activations stay as they are. */
static hd_status read_quantization(const struct source *s, hd_hparams *hp) {
    const json_t *q = get(s->root, "quantization_config");
    const char *method, *fmt;
    hp->fp8_block[0] = hp->fp8_block[1] = 128;
    if (!q) return HD_OK;
    HD_TRY(get_str(s, q, "quant_method", "", &method));
    if (strcmp(method, "fp8") != 0)
        return HD_FAIL(UNSUPPORTED,
                       "%s: quantization_config: quant_method: not supported: expected \"fp8\" (or "
                       "plain weights), found %s",
                       s->file, hd_json_found(json_object_get(q, "quant_method")));
    HD_TRY(get_str(s, q, "fmt", "e4m3", &fmt));
    if (strcmp(fmt, "e4m3") != 0)
        return HD_FAIL(UNSUPPORTED,
                       "%s: quantization_config: fmt: not supported: expected \"e4m3\", found %s",
                       s->file, hd_json_found(get(q, "fmt")));
    const json_t *size = get(q, "weight_block_size");
    for (size_t i = 0; i < 2; i++) {
        const json_t *v = json_array_get(size, i);
        if (json_array_size(size) != 2 || !json_is_integer(v) || json_integer_value(v) < 1 ||
            json_integer_value(v) > 1 << 20)
            return HD_FAIL(
                UNSUPPORTED,
                "%s: quantization_config: weight_block_size: expected two numbers from 1 "
                "to 1048576 (a scale for each block), found %s",
                s->file, hd_json_found(v ? v : size));
        hp->fp8_block[i] = (int)json_integer_value(v);
    }
    return HD_OK;
}

/* Settings with one value that this program computes. */
static hd_status refuse_features(const struct source *s, const hd_hparams *hp) {
    const char *text;
    bool flag;
    double freq = 1, n_kv = hp->n_head;
    HD_TRY(get_str(s, s->root, "hidden_act", "silu", &text));
    if (strcmp(text, "silu") != 0 && strcmp(text, "swish") != 0)
        return unsupported(s, "hidden_act", "\"silu\"", get(s->root, "hidden_act"));
    HD_TRY(get_bool(s, "attention_bias", false, &flag)); /* qwen2 has its biases whatever it says */
    if (flag && !hp->has_qkv_bias)
        return unsupported(s, "attention_bias", "false", get(s->root, "attention_bias"));
    HD_TRY(get_bool(s, "mlp_bias", false, &flag));
    if (flag) return unsupported(s, "mlp_bias", "false", get(s->root, "mlp_bias"));
    HD_TRY(refuse_partial_rotary(s, s->root));
    HD_TRY(get_num(s, s->root, "moe_layer_freq", true, &freq));
    if (freq != 1) return unsupported(s, "moe_layer_freq", "1", get(s->root, "moe_layer_freq"));
    HD_TRY(get_num(s, s->root, "num_key_value_heads", true, &n_kv));
    if (s->family->is_mla && n_kv != hp->n_head)
        return unsupported(s, "num_key_value_heads", "the number of attention heads",
                           get(s->root, "num_key_value_heads"));
    return refuse_windows(s);
}

/* As transformers reads the pair: cos and sin are scaled by the ratio of both, or by
 * attention_factor, or else by mscale(factor, 1), whatever one of them alone says; scores by
 * mscale_all_dim. What is not said as a pair becomes the one that does the same. Zero counts as
 * absent. */
static hd_status read_mscale(const struct source *s, const json_t *rope, hd_hparams *hp) {
    double m = 0, all = 0, factor = 0;
    const struct {
        const char *key;
        double *value;
    } parts[] = {{"mscale", &m}, {"mscale_all_dim", &all}, {"attention_factor", &factor}};
    for (size_t i = 0; i < HD_COUNT_OF(parts); i++) {
        HD_TRY(get_num(s, rope, parts[i].key, false, parts[i].value));
        if (!(*parts[i].value >= 0 && *parts[i].value <= 100))
            return HD_FAIL(CORRUPT, "%s: %s: expected 0 to 100, found %.9g", s->file, parts[i].key,
                           *parts[i].value);
    }
    hp->yarn_mscale = 1;
    hp->yarn_mscale_all = (float)all;
    if (factor == 0 && m != 0 && all != 0) hp->yarn_mscale = (float)m;
    if (factor == 0 && ((m != 0 && all != 0) || all == 0)) return HD_OK;
    double unit = hd_rope_mscale((double)hp->yarn_factor, 1);
    double wanted = factor != 0 ? factor : unit;
    if (unit == 1 && wanted != 1)
        return unsupported(s, "attention_factor", "1 with a yarn factor up to 1",
                           get(rope, "attention_factor"));
    if (unit != 1)
        hp->yarn_mscale =
            (float)((wanted * hd_rope_mscale((double)hp->yarn_factor, all) - 1) / (unit - 1));
    return HD_OK;
}

static hd_status read_llama3(const struct source *s, const json_t *rope, hd_hparams *hp) {
    double factor = -1, low = -1, high = -1, orig = -1;
    HD_TRY(get_num(s, rope, "factor", false, &factor));
    HD_TRY(get_num(s, rope, "low_freq_factor", false, &low));
    HD_TRY(get_num(s, rope, "high_freq_factor", false, &high));
    HD_TRY(get_num(s, rope, "original_max_position_embeddings", true, &orig));
    return hd_hparams_set_llama3(hp, s->file, factor, low, high, orig);
}

static hd_status read_yarn(const struct source *s, const json_t *rope, hd_hparams *hp) {
    int orig = hp->n_ctx;
    if (json_is_false(json_object_get(rope, "truncate")))
        return unsupported(s, "truncate", "true", get(rope, "truncate"));
    if (get(rope, "original_max_position_embeddings"))
        HD_TRY(need_int(s, rope, "original_max_position_embeddings", &orig));
    hp->is_yarn = true;
    hp->yarn_orig_ctx = orig;
    /* null says that the context is as long as the factor makes it */
    float factor =
        json_is_null(json_object_get(rope, "factor")) ? (float)hp->n_ctx / (float)orig : -1;
    HD_TRY(get_float(s, rope, "factor", factor, &hp->yarn_factor));
    HD_TRY(get_float(s, rope, "beta_fast", 32, &hp->yarn_beta_fast));
    HD_TRY(get_float(s, rope, "beta_slow", 1, &hp->yarn_beta_slow));
    return read_mscale(s, rope, hp);
}

static hd_status read_linear(const struct source *s, const json_t *rope, hd_hparams *hp) {
    HD_TRY(get_float(s, rope, "factor", -1, &hp->rope_linear));
    if (hp->rope_linear == 0) hp->rope_linear = -1; /* 0 would mean none */
    return HD_OK;
}

/* Dynamic scaling too: it changes nothing up to max_position_embeddings, the longest sequence. */
static hd_status read_plain(const struct source *s, const json_t *rope, hd_hparams *hp) {
    (void)s, (void)rope, (void)hp;
    return HD_OK;
}

static const struct {
    const char *type;
    hd_status (*read)(const struct source *s, const json_t *rope, hd_hparams *hp);
} rope_types[] = {{"default", read_plain},
                  {"dynamic", read_plain},
                  {"linear", read_linear},
                  {"llama3", read_llama3},
                  {"yarn", read_yarn}};

/* rope_scaling, or rope_parameters in files of newer library versions (then with rope_theta). */
static hd_status read_rope(const struct source *s, hd_hparams *hp) {
    const char *name = get(s->root, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    const json_t *rope = get(s->root, name);
    const char *type, *older;
    HD_TRY(get_float(s, s->root, "rope_theta", 10000, &hp->rope_base));
    if (!rope) return HD_OK;
    if (!json_is_object(rope))
        return HD_FAIL(CORRUPT, "%s: %s: expected an object, found %s", s->file, name,
                       hd_json_found(rope));
    HD_TRY(get_float(s, rope, "rope_theta", hp->rope_base, &hp->rope_base));
    HD_TRY(refuse_partial_rotary(s, rope));
    HD_TRY(get_str(s, rope, "type", "default", &older));
    HD_TRY(get_str(s, rope, "rope_type", older, &type));
    bool is_yarn = strcmp(type, "yarn") == 0;
    if (s->family->is_mla && !is_yarn && get(rope, "mscale_all_dim"))
        return unsupported(s, "mscale_all_dim", "none but with rope type \"yarn\"",
                           get(rope, "mscale_all_dim"));
    for (size_t i = 0; i < HD_COUNT_OF(rope_types); i++)
        if (strcmp(type, rope_types[i].type) == 0) return rope_types[i].read(s, rope, hp);
    return unsupported(s, name, "type default, dynamic, linear, llama3 or yarn",
                       get(rope, "rope_type") ? get(rope, "rope_type") : get(rope, "type"));
}

static hd_status read_heads(const struct source *s, hd_hparams *hp) {
    int d_head = 0, n_kv = 0;
    hp->has_half_rows = !hp->is_half_split;
    if (s->family->is_mla) {
        bool is_interleaved;
        HD_TRY(get_bool(s, "rope_interleave", true, &is_interleaved));
        hp->has_half_rows = !is_interleaved;
        HD_TRY(need_int(s, s->root, "qk_nope_head_dim", &hp->n_nope));
        return need_int(s, s->root, "v_head_dim", &hp->n_v);
    }
    if (get(s->root, "head_dim")) HD_TRY(need_int(s, s->root, "head_dim", &d_head));
    if (get(s->root, "num_key_value_heads"))
        HD_TRY(need_int(s, s->root, "num_key_value_heads", &n_kv));
    return hd_hparams_set_heads(hp, s->file, d_head, n_kv);
}

/* Keys that a V3 configuration leaves out mean what V3 itself has, as in transformers: taken as
 * none they would change every answer without a word. */
static void set_v3_defaults(const struct source *s, hd_hparams *hp) {
    const struct {
        const char *key;
        int *value, initial;
    } ints[] = {{"n_group", &hp->n_group, 8}, {"topk_group", &hp->n_group_used, 4}};
    for (size_t i = 0; i < HD_COUNT_OF(ints); i++)
        if (!json_object_get(s->root, ints[i].key)) *ints[i].value = ints[i].initial;
    if (!json_object_get(s->root, "routed_scaling_factor")) hp->expert_scale = 2.5f;
}

static hd_status read_routing(const struct source *s, hd_hparams *hp) {
    const char *scoring, *method;
    if (s->family->is_v3) set_v3_defaults(s, hp);
    HD_TRY(get_str(s, s->root, "scoring_func", s->family->is_v3 ? "sigmoid" : "softmax", &scoring));
    HD_TRY(get_str(s, s->root, "topk_method", s->family->is_v3 ? "noaux_tc" : "greedy", &method));
    HD_TRY(get_bool(s, "norm_topk_prob", s->family->is_v3, &hp->expert_normalise));
    bool is_greedy = strcmp(method, "greedy") == 0;
    bool is_softmax = is_greedy || strcmp(method, "group_limited_greedy") == 0;
    if (!is_softmax && strcmp(method, "noaux_tc") != 0)
        return unsupported(s, "topk_method", "noaux_tc, greedy or group_limited_greedy",
                           get(s->root, "topk_method"));
    if (strcmp(scoring, is_softmax ? "softmax" : "sigmoid") != 0)
        return HD_FAIL(UNSUPPORTED,
                       "%s: scoring_func: not supported: expected %s with topk_method %s, found "
                       "%.40s",
                       s->file, is_softmax ? "softmax" : "sigmoid", method, scoring);
    if (is_softmax && hp->expert_normalise && s->family->is_mla)
        return unsupported(s, "norm_topk_prob", "false with softmax scores",
                           get(s->root, "norm_topk_prob"));
    hp->gating = is_softmax ? HD_GATING_SOFTMAX : HD_GATING_SIGMOID;
    if (is_greedy) hp->n_group = hp->n_group_used = 1;
    return HD_OK;
}

/* An id, or a list of ids whose first counts; -1 when there is none. */
static hd_status read_token(const struct source *s, const char *key, int32_t *out) {
    const json_t *v = get(s->root, key);
    *out = -1;
    if (json_is_array(v)) v = json_array_size(v) ? json_array_get(v, 0) : NULL;
    if (!v) return HD_OK;
    if (!json_is_integer(v) || json_integer_value(v) < -1 || json_integer_value(v) > INT32_MAX)
        return HD_FAIL(CORRUPT, "%s: %s: expected a token id, found %s", s->file, key,
                       hd_json_found(v));
    *out = (int32_t)json_integer_value(v);
    return HD_OK;
}

static hd_status read_next(const struct source *s, hd_hparams *hp) {
    double n = 0;
    HD_TRY(get_num(s, s->root, "num_nextn_predict_layers", true, &n));
    if (!(n >= 0 && n <= 1024))
        return HD_FAIL(CORRUPT, "%s: num_nextn_predict_layers: expected 0 to 1024, found %.9g",
                       s->file, n);
    hp->n_next = (int)n;
    return HD_OK;
}

static hd_status read_all(struct source *s, hd_hparams *hp) {
    HD_TRY(read_model_type(s, hp));
    HD_TRY(read_rows(s, hp));
    HD_TRY(read_next(s, hp));
    HD_TRY(need_int(s, s->root, "vocab_size", &hp->n_vocab));
    HD_TRY(read_heads(s, hp));
    HD_TRY(read_quantization(s, hp));
    HD_TRY(refuse_features(s, hp));
    HD_TRY(read_rope(s, hp));
    if (s->family->has_experts) HD_TRY(read_routing(s, hp));
    HD_TRY(get_bool(s, "tie_word_embeddings", false, &hp->is_tied));
    HD_TRY(read_token(s, "bos_token_id", &hp->bos));
    HD_TRY(read_token(s, "eos_token_id", &hp->eos));
    return read_token(s, "pad_token_id", &hp->pad);
}

hd_status hd_hparams_from_config(hd_str text, const char *file, hd_hparams *hp) {
    json_t *root;
    HD_TRY(hd_json_parse(text, file, &root));
    struct source source = {.root = root, .file = file};
    hd_status s = read_all(&source, hp);
    json_decref(root);
    return s;
}
