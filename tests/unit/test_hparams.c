/* model: hyper-parameters from config.json and from GGUF keys, in all their spellings; settings
 * that are not built refused by name; every absurd value refused by name. */
#include "support/check.h"
#include "support/files.h"

#include "base/mem.h"
#include "file/gguf.h"
#include "model/arch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *dir;

static int set_up(void **state) {
    (void)state;
    dir = test_temp_dir();
    test_write_file(test_join(dir, "model.safetensors"), "\2\0\0\0\0\0\0\0{}", 10);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    test_remove_dir(dir);
    return 0;
}

static hd_status read_dir(const char *path, hd_hparams *hp) {
    hd_checkpoint *c;
    assert_ok(hd_checkpoint_open(path, &c));
    hd_status s = hd_hparams_read(c, hp);
    hd_checkpoint_close(c);
    return s;
}

static void said(hd_status want, hd_status found, const char *words[]) {
    if (found != want)
        fail_msg("expected %s, found %s: %s", hd_status_name(want), hd_status_name(found),
                 found ? hd_error_text() : "");
    for (int i = 0; words[i]; i++)
        if (!strstr(hd_error_text(), words[i]))
            fail_msg("expected \"%s\" in: %s", words[i], hd_error_text());
}

/* ---- config.json ---- */

#define ROPE                                                                                       \
    "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,\"original_max_position_embeddings\":64,"   \
    "\"beta_fast\":31,\"beta_slow\":2,\"mscale\":0.8,\"mscale_all_dim\":1.2}"

/* A config of V3's kind; `change` is "KEY:VALUE" (VALUE empty removes the key). */
static hd_status read_config(const char *change, hd_hparams *hp) {
    static const char *const pairs[] = {
        "\"model_type\":\"deepseek_v3\"",
        "\"vocab_size\":320",
        "\"hidden_size\":64",
        "\"intermediate_size\":160",
        "\"moe_intermediate_size\":48",
        "\"num_hidden_layers\":4",
        "\"num_attention_heads\":4",
        "\"num_key_value_heads\":4",
        "\"n_shared_experts\":1",
        "\"n_routed_experts\":16",
        "\"num_experts_per_tok\":4",
        "\"routed_scaling_factor\":2.5",
        "\"kv_lora_rank\":32",
        "\"q_lora_rank\":40",
        "\"qk_rope_head_dim\":16",
        "\"qk_nope_head_dim\":24",
        "\"v_head_dim\":20",
        "\"topk_method\":\"noaux_tc\"",
        "\"n_group\":4",
        "\"topk_group\":2",
        "\"norm_topk_prob\":true",
        "\"scoring_func\":\"sigmoid\"",
        "\"first_k_dense_replace\":1",
        "\"moe_layer_freq\":1",
        "\"rms_norm_eps\":1e-05",
        "\"rope_theta\":50000.0",
        "\"max_position_embeddings\":640",
        "\"hidden_act\":\"silu\"",
        "\"tie_word_embeddings\":false",
        "\"bos_token_id\":0",
        "\"eos_token_id\":1",
        "\"attention_bias\":false",
        ROPE,
    };
    hd_buf b;
    hd_buf_init(&b, 1 << 16);
    size_t n_key = strcspn(change, ":");
    bool is_there = false;
    hd_buf_add_c(&b, "{");
    for (size_t i = 0; i < HD_COUNT_OF(pairs); i++) {
        bool is_changed =
            n_key && strncmp(pairs[i] + 1, change, n_key) == 0 && pairs[i][1 + n_key] == '"';
        is_there |= is_changed;
        if (is_changed && !change[n_key + 1]) continue;
        if (b.len > 1) hd_buf_add_c(&b, ",");
        if (is_changed)
            hd_buf_addf(&b, "\"%.*s\":%s", (int)n_key, change, change + n_key + 1);
        else
            hd_buf_add_c(&b, pairs[i]);
    }
    if (n_key && !is_there) hd_buf_addf(&b, ",\"%.*s\":%s", (int)n_key, change, change + n_key + 1);
    hd_buf_add_c(&b, "}");
    test_write_text(test_join(dir, "config.json"), b.ptr);
    hd_buf_fini(&b);
    return read_dir(dir, hp);
}

static void config_is_read(void **state) {
    (void)state;
    hd_hparams h;
    assert_ok(read_config("", &h));
    assert_string_equal(h.arch, "deepseek2");
    assert_non_null(strstr(dir, h.name));
    assert_true(h.n_layer == 4 && h.n_ctx == 640 && h.d_model == 64 && h.n_vocab == 320);
    assert_true(h.d_ff == 160 && h.n_head == 4);
    assert_true(h.rms_eps == 1e-5f && h.lora_eps == 1e-6f);
    assert_true(h.q_lora == 40 && h.n_c == 32 && h.n_nope == 24 && h.n_rope == 16 && h.n_v == 20);
    assert_true(h.rope_base == 50000 && h.is_yarn && h.yarn_factor == 40);
    assert_true(h.yarn_beta_fast == 31 && h.yarn_beta_slow == 2 && h.yarn_orig_ctx == 64);
    assert_true(h.yarn_mscale == 0.8f && h.yarn_mscale_all == 1.2f);
    assert_true(h.n_dense_layer == 1 && h.n_expert == 16 && h.n_expert_used == 4);
    assert_true(h.n_expert_shared == 1 && h.d_expert == 48 && h.n_group == 4);
    assert_true(h.n_group_used == 2 && h.gating == HD_GATING_SIGMOID);
    assert_true(h.group_rule == HD_GROUP_TOP2_SUM && h.expert_normalise && h.expert_scale == 2.5f);
    assert_true(!h.is_tied && h.bos == 0 && h.eos == 1 && h.pad == -1);
    assert_int_equal(hd_hparams_kv_bytes(&h, HD_KV_BF16), 4 * 48 * 2);
}

static void other_spellings_of_config(void **state) {
    (void)state;
    hd_hparams h;
    assert_ok(read_config("rope_scaling:null", &h));
    assert_false(h.is_yarn);
    assert_ok(read_config("rope_scaling:{\"rope_type\":\"default\"}", &h));
    assert_false(h.is_yarn);
    assert_ok(read_config("rope_parameters:{\"rope_type\":\"yarn\",\"factor\":4.0,\"rope_theta\":"
                          "700.0,\"original_max_position_embeddings\":160.0}",
                          &h));
    assert_true(h.is_yarn && h.rope_base == 700 && h.yarn_factor == 4 && h.yarn_orig_ctx == 160);
    assert_true(h.yarn_beta_fast == 32 && h.yarn_beta_slow == 1);
    assert_true(h.yarn_mscale == 1 && h.yarn_mscale_all == 0);
    assert_ok(read_config("rope_scaling:{\"type\":\"yarn\",\"factor\":10}", &h));
    assert_int_equal(h.yarn_orig_ctx, 640);
    assert_true(h.fp8_block[0] == 128 && h.fp8_block[1] == 128);
    assert_ok(read_config("quantization_config:{\"quant_method\":\"fp8\",\"weight_block_size\":[64,"
                          "32],\"scale_fmt\":\"ue8m0\"}",
                          &h));
    assert_true(h.fp8_block[0] == 64 && h.fp8_block[1] == 32);
    assert_ok(read_config("rope_interleave:false", &h));
    assert_true(h.has_half_rows);
    assert_ok(read_config("rope_scaling:{\"type\":\"linear\",\"factor\":4}", &h));
    assert_true(h.rope_linear == 4 && !h.is_yarn);
    assert_ok(read_config("rope_scaling:{\"type\":\"dynamic\",\"factor\":4}", &h));
    assert_true(h.rope_linear == 0 && !h.is_yarn && h.n_ctx == 640);
    assert_ok(read_config(
        "rope_scaling:{\"type\":\"yarn\",\"factor\":null,\"original_max_position_embeddings\":64}",
        &h));
    assert_true(h.yarn_factor == 10);
    assert_ok(read_config("eos_token_id:[7, 8]", &h));
    assert_int_equal(h.eos, 7);
    assert_ok(read_config("bos_token_id:null", &h));
    assert_int_equal(h.bos, -1);
    assert_ok(read_config("q_lora_rank:null", &h));
    assert_int_equal(h.q_lora, 0);
    assert_ok(read_config("topk_method:", &h));
    assert_int_equal(h.group_rule, HD_GROUP_TOP2_SUM);
    assert_ok(read_config("routed_scaling_factor:", &h)); /* V3's own, when nothing is said */
    assert_true(h.expert_scale == 2.5f);
    assert_ok(read_config("n_group:", &h));
    assert_true(h.n_group == 8 && h.n_group_used == 2);
    assert_ok(read_config("topk_group:", &h));
    assert_true(h.n_group == 4 && h.n_group_used == 4);
    assert_ok(read_config("first_k_dense_replace:9", &h)); /* more than the layers: all dense */
    assert_true(h.n_dense_layer == 4 && h.n_expert == 0);
    assert_ok(read_config("tie_word_embeddings:true", &h));
    assert_true(h.is_tied);
}

/* What cos and sin, and what the softmax is multiplied by, for each part of the pair alone: as
 * transformers computes it, where one of them alone leaves cos and sin at mscale(factor, 1). */
static void parts_of_the_mscale_pair(void **state) {
    (void)state;
    const double ln = log(8), m1 = 1 + 0.1 * ln, m2 = 1 + 0.2 * ln, m3 = 1 + 0.3 * ln;
    const struct {
        const char *parts;
        double cos_sin, softmax;
    } cases[] = {
        {"", m1, 1},
        {",\"mscale\":2", m1, 1},
        {",\"mscale\":2,\"mscale_all_dim\":0", m1, 1},
        {",\"mscale_all_dim\":3", m1, m3 * m3},
        {",\"mscale\":3,\"mscale_all_dim\":3", 1, m3 * m3},
        {",\"mscale\":2,\"mscale_all_dim\":3", m2 / m3, m3 * m3},
        {",\"attention_factor\":1.25", 1.25, 1},
        {",\"mscale\":2,\"mscale_all_dim\":3,\"attention_factor\":0.75", 0.75, m3 * m3},
    };
    for (size_t i = 0; i < HD_COUNT_OF(cases); i++) {
        char change[256];
        hd_hparams h;
        float cs[16];
        snprintf(change, sizeof change, "rope_scaling:{\"type\":\"yarn\",\"factor\":8%s}",
                 cases[i].parts);
        assert_ok(read_config(change, &h));
        hd_rope_table(&h, 1, cs);
        assert_true(fabs((double)cs[0] / cases[i].cos_sin - 1) < 1e-6);
        double softmax = (double)hd_rope_softmax_scale(&h) * sqrt(40);
        assert_true(fabs(softmax / cases[i].softmax - 1) < 1e-6);
    }
}

static void v2_configs_are_read(void **state) {
    (void)state;
    hd_hparams h;
    test_write_text(
        test_join(dir, "config.json"),
        "{\"model_type\":\"deepseek_v2\",\"vocab_size\":320,\"hidden_size\":64,"
        "\"intermediate_size\":160,\"moe_intermediate_size\":48,\"num_hidden_layers\":4,"
        "\"num_attention_heads\":4,\"n_shared_experts\":2,\"n_routed_experts\":8,"
        "\"num_experts_per_tok\":3,\"routed_scaling_factor\":16.0,\"kv_lora_rank\":32,"
        "\"q_lora_rank\":null,\"qk_rope_head_dim\":16,\"qk_nope_head_dim\":24,\"v_head_dim\":20,"
        "\"topk_method\":\"group_limited_greedy\",\"n_group\":4,\"topk_group\":2,"
        "\"norm_topk_prob\":false,\"scoring_func\":\"softmax\",\"first_k_dense_replace\":1,"
        "\"rms_norm_eps\":1e-06,\"max_position_embeddings\":640}");
    assert_ok(read_dir(dir, &h));
    assert_true(h.gating == HD_GATING_SOFTMAX && h.group_rule == HD_GROUP_MAX && h.n_group == 4);
    assert_true(!h.expert_normalise && h.expert_scale == 16 && h.q_lora == 0 && !h.is_yarn);
    assert_true(h.rope_base == 10000);
}

static void unbuilt_settings_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *change, *key, *found;
    } cases[] = {
        {"model_type:\"mixtral\"", "model_type", "\"mixtral\""},
        {"model_type:", "model_type", "\"\""},
        {"partial_rotary_factor:0.5", "partial_rotary_factor", "0.5"},
        {"use_sliding_window:true", "use_sliding_window", "true"},
        {"layer_types:[\"full_attention\",\"sliding_attention\"]", "layer_types",
         "sliding_attention"},
        {"hidden_act:\"gelu\"", "hidden_act", "\"gelu\""},
        {"attention_bias:true", "attention_bias", "true"},
        {"moe_layer_freq:2", "moe_layer_freq", "2"},
        {"num_key_value_heads:1", "num_key_value_heads", "1"},
        {"quantization_config:{\"quant_method\":\"fp8\"}", "weight_block_size", "nothing"},
        {"quantization_config:{\"quant_method\":\"fp8\",\"weight_block_size\":null}",
         "weight_block_size", "nothing"},
        {"quantization_config:{\"quant_method\":\"fp8\",\"weight_block_size\":[128]}",
         "weight_block_size", "128"},
        {"quantization_config:{\"quant_method\":\"fp8\",\"weight_block_size\":[0,128]}",
         "weight_block_size", "found 0"},
        {"quantization_config:{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}", "fmt", "\"e5m2\""},
        {"quantization_config:{\"quant_method\":\"gptq\",\"bits\":4}", "expected \"fp8\"",
         "\"gptq\""},
        {"quantization_config:{\"quant_method\":\"awq\"}", "quant_method", "\"awq\""},
        {"quantization_config:{\"quant_method\":\"compressed-tensors\"}", "quant_method",
         "\"compressed-tensors\""},
        {"quantization_config:{\"bits\":4}", "quant_method", "nothing"},
        {"rope_scaling:{\"type\":\"longrope\",\"factor\":4}", "rope_scaling", "\"longrope\""},
        {"rope_scaling:{\"type\":\"yarn\",\"factor\":4,\"truncate\":false}", "truncate", "false"},
        {"rope_scaling:{\"type\":\"yarn\",\"factor\":1,\"attention_factor\":1.1}",
         "attention_factor", "1.1"},
        {"rope_scaling:{\"type\":\"linear\",\"factor\":4,\"mscale_all_dim\":0.5}", "mscale_all_dim",
         "0.5"},
        {"rope_parameters:{\"rope_type\":\"default\",\"partial_rotary_factor\":0.5}",
         "partial_rotary_factor", "0.5"},
        {"topk_method:\"random\"", "topk_method", "\"random\""},
        {"scoring_func:\"softmax\"", "scoring_func", "softmax"},
    };
    hd_hparams h;
    for (size_t i = 0; i < HD_COUNT_OF(cases); i++)
        said(HD_E_UNSUPPORTED, read_config(cases[i].change, &h),
             (const char *[]){"config.json", cases[i].key, cases[i].found, NULL});
}

static void absurd_config_values_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *change, *word;
    } cases[] = {
        {"num_hidden_layers:0", "num_hidden_layers: expected 1 to 1024, found 0"},
        {"num_hidden_layers:-1", "num_hidden_layers"},
        {"num_hidden_layers:", "num_hidden_layers: expected a number, found none"},
        {"num_hidden_layers:\"4\"", "num_hidden_layers: expected an integer, found \"4\""},
        {"num_hidden_layers:4.5", "found 4.5"},
        {"num_hidden_layers:1e30", "num_hidden_layers"},
        {"hidden_size:0", "hidden_size"},
        {"hidden_size:99999999999", "hidden_size"},
        {"vocab_size:0", "vocab_size"},
        {"vocab_size:true", "vocab_size"},
        {"num_attention_heads:0", "num_attention_heads"},
        {"num_attention_heads:100000", "num_attention_heads"},
        {"kv_lora_rank:0", "kv_lora_rank"},
        {"qk_rope_head_dim:0", "qk_rope_head_dim"},
        {"qk_rope_head_dim:15", "rope dimensions of a head: expected an even number, found 15"},
        {"qk_nope_head_dim:0", "qk_nope_head_dim"},
        {"qk_nope_head_dim:1000000", "key dimensions without rope"},
        {"v_head_dim:0", "v_head_dim"},
        {"rms_norm_eps:0", "rms epsilon"},
        {"rms_norm_eps:-1e-6", "rms_norm_eps"},
        {"rope_theta:1.0", "rope base"},
        {"rope_theta:-5", "rope base"},
        {"rope_theta:\"x\"", "rope_theta: expected a number"},
        {"n_group:3", "expert group count: expected a divisor of the expert count, found 3"},
        {"n_group:16", "experts of a group"},
        {"topk_group:5", "expert groups used"},
        {"topk_group:0", "expert groups used"},
        {"num_experts_per_tok:0", "experts used"},
        {"num_experts_per_tok:9", "experts used"},
        {"moe_intermediate_size:0", "expert feed-forward width"},
        {"n_shared_experts:-1", "n_shared_experts"},
        {"routed_scaling_factor:0", "expert weights scale"},
        {"intermediate_size:0", "dense feed-forward width"},
        {"eos_token_id:320", "eos token: expected an id of the vocabulary, found 320"},
        {"bos_token_id:-7", "bos_token_id"},
        {"tie_word_embeddings:1", "tie_word_embeddings: expected true or false"},
        {"rope_scaling:[]", "rope_scaling: expected an object"},
        {"rope_scaling:{\"type\":\"yarn\"}", "yarn factor"},
        {"rope_scaling:{\"type\":\"yarn\",\"factor\":0.5}", "yarn factor"},
        {"rope_scaling:{\"type\":\"yarn\",\"factor\":4,\"beta_fast\":0}", "yarn beta_fast"},
        {"rope_scaling:{\"type\":\"yarn\",\"factor\":4,\"beta_slow\":-1}", "yarn beta_slow"},
        {"rope_scaling:{\"type\":\"yarn\",\"factor\":4,\"mscale\":-1,\"mscale_all_dim\":1}",
         "mscale: expected 0 to 100"},
        {"rope_scaling:{\"type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":0}",
         "original_max_position_embeddings"},
        {"rope_scaling:{\"type\":7}", "type: expected a string, found 7"},
    };
    hd_hparams h;
    for (size_t i = 0; i < HD_COUNT_OF(cases); i++)
        said(HD_E_CORRUPT, read_config(cases[i].change, &h),
             (const char *[]){"config.json", cases[i].word, NULL});
    test_write_text(test_join(dir, "config.json"), "{\"a\":1,}");
    said(HD_E_CORRUPT, read_dir(dir, &h), (const char *[]){"config.json", "JSON", NULL});
    test_write_text(test_join(dir, "config.json"), "[1]");
    said(HD_E_CORRUPT, read_dir(dir, &h), (const char *[]){"config.json", "object", NULL});
}

/* ---- GGUF ---- */

/* Keys of a small V3 as llama.cpp's converter writes them; one may be replaced or left out. */
struct key {
    const char *key;
    char kind; /* u: u32, f: f32, s: string, b: bool, 0: absent */
    double num;
    const char *text;
};

static const struct key v3_keys[] = {
    {"general.architecture", 's', 0, "deepseek2"},
    {"general.name", 's', 0, "Small One"},
    {"deepseek2.block_count", 'u', 4, NULL},
    {"deepseek2.context_length", 'u', 640, NULL},
    {"deepseek2.embedding_length", 'u', 64, NULL},
    {"deepseek2.feed_forward_length", 'u', 160, NULL},
    {"deepseek2.attention.head_count", 'u', 4, NULL},
    {"deepseek2.attention.head_count_kv", 'u', 1, NULL},
    {"deepseek2.attention.layer_norm_rms_epsilon", 'f', 1e-6, NULL},
    {"deepseek2.attention.q_lora_rank", 'u', 40, NULL},
    {"deepseek2.attention.kv_lora_rank", 'u', 32, NULL},
    {"deepseek2.attention.key_length", 'u', 48, NULL},
    {"deepseek2.attention.value_length", 'u', 32, NULL},
    {"deepseek2.attention.key_length_mla", 'u', 40, NULL},
    {"deepseek2.attention.value_length_mla", 'u', 20, NULL},
    {"deepseek2.rope.dimension_count", 'u', 16, NULL},
    {"deepseek2.rope.freq_base", 'f', 10000, NULL},
    {"deepseek2.rope.scaling.type", 's', 0, "yarn"},
    {"deepseek2.rope.scaling.factor", 'f', 40, NULL},
    {"deepseek2.rope.scaling.original_context_length", 'u', 64, NULL},
    {"deepseek2.rope.scaling.yarn_log_multiplier", 'f', 0.1, NULL},
    {"deepseek2.expert_count", 'u', 16, NULL},
    {"deepseek2.expert_used_count", 'u', 4, NULL},
    {"deepseek2.expert_shared_count", 'u', 1, NULL},
    {"deepseek2.expert_feed_forward_length", 'u', 48, NULL},
    {"deepseek2.leading_dense_block_count", 'u', 1, NULL},
    {"deepseek2.expert_weights_scale", 'f', 2.5, NULL},
    {"deepseek2.expert_weights_norm", 'b', 1, NULL},
    {"deepseek2.expert_gating_func", 'u', 2, NULL},
    {"deepseek2.expert_group_count", 'u', 4, NULL},
    {"deepseek2.expert_group_used_count", 'u', 2, NULL},
    {"deepseek2.vocab_size", 'u', 320, NULL},
    {"tokenizer.ggml.bos_token_id", 'u', 0, NULL},
    {"tokenizer.ggml.eos_token_id", 'u', 1, NULL},
};

static void put_key(hd_buf *b, const struct key *k) {
    char flag = k->num != 0;
    switch (k->kind) {
    case 'u': test_gguf_key_u32(b, k->key, (uint32_t)k->num); break;
    case 'f': test_gguf_key_f32(b, k->key, (float)k->num); break;
    case 's': test_gguf_key_str(b, k->key, k->text); break;
    default: test_gguf_key(b, k->key, 7); hd_buf_add(b, &flag, 1);
    }
}

/* Reads the keys with some changed (kind 0 leaves a key out; unknown keys are added). */
static hd_status read_gguf(const struct key *change, size_t n_change, hd_hparams *h) {
    hd_buf b, body;
    hd_buf_init(&b, 1 << 20);
    hd_buf_init(&body, 1 << 20);
    uint64_t n = 0;
    for (size_t i = 0; i < HD_COUNT_OF(v3_keys); i++) {
        bool is_changed = false;
        for (size_t k = 0; k < n_change; k++)
            is_changed |= strcmp(change[k].key, v3_keys[i].key) == 0;
        if (is_changed) continue;
        put_key(&body, &v3_keys[i]);
        n++;
    }
    for (size_t k = 0; k < n_change; k++)
        if (change[k].kind) {
            put_key(&body, &change[k]);
            n++;
        }
    test_gguf_head(&b, 3, 0, n);
    hd_buf_add(&b, body.ptr, body.len);
    hd_checkpoint *c;
    assert_ok(hd_checkpoint_open_memory(b.ptr, b.len, "m.gguf", &c));
    hd_status s = hd_hparams_read(c, h);
    hd_checkpoint_close(c);
    hd_buf_fini(&b);
    hd_buf_fini(&body);
    return s;
}
#define READ_GGUF(h, ...)                                                                          \
    read_gguf((const struct key[]){__VA_ARGS__},                                                   \
              sizeof((const struct key[]){__VA_ARGS__}) / sizeof(struct key), h)

static void gguf_keys_are_read(void **state) {
    (void)state;
    hd_hparams h;
    assert_ok(read_gguf(NULL, 0, &h));
    assert_string_equal(h.name, "Small One");
    assert_true(h.n_layer == 4 && h.n_ctx == 640 && h.d_model == 64 && h.n_vocab == 320);
    assert_true(h.n_nope == 24 && h.n_rope == 16 && h.n_v == 20 && h.n_c == 32 && h.q_lora == 40);
    assert_true(h.rms_eps == 1e-6f && h.lora_eps == 1e-6f && h.n_head == 4);
    assert_true(h.is_yarn && h.yarn_factor == 40 && h.yarn_orig_ctx == 64);
    assert_true(h.yarn_beta_fast == 32 && h.yarn_beta_slow == 1);
    assert_true(h.yarn_mscale == 1 && h.yarn_mscale_all == 1);
    assert_true(h.gating == HD_GATING_SIGMOID && h.group_rule == HD_GROUP_TOP2_SUM);
    assert_true(h.expert_normalise && h.expert_scale == 2.5f && h.n_group == 4);
    assert_true(h.n_group_used == 2 && h.bos == 0 && h.eos == 1 && h.pad == -1 && h.is_tied);
}

static void other_spellings_of_gguf(void **state) {
    (void)state;
    hd_hparams h;
    /* no *_mla keys: heads in key_length and value_length */
    assert_ok(READ_GGUF(&h, {"deepseek2.attention.key_length_mla", 0, 0, NULL},
                        {"deepseek2.attention.value_length_mla", 0, 0, NULL},
                        {"deepseek2.attention.key_length", 'u', 40, NULL},
                        {"deepseek2.attention.value_length", 'u', 20, NULL},
                        {"deepseek2.attention.head_count_kv", 'u', 4, NULL}));
    assert_true(h.n_nope == 24 && h.n_v == 20);
    /* layers that predict further tokens are not the model's */
    assert_ok(READ_GGUF(&h, {"deepseek2.nextn_predict_layers", 'u', 1, NULL}));
    assert_int_equal(h.n_layer, 3);
    assert_ok(READ_GGUF(&h, {"deepseek2.attention.q_lora_rank", 0, 0, NULL}));
    assert_int_equal(h.q_lora, 0);
    /* V2: 0.1 * 0.707 */
    assert_ok(READ_GGUF(&h, {"deepseek2.rope.scaling.yarn_log_multiplier", 'f', 0.0707, NULL}));
    assert_true(fabsf(h.yarn_mscale_all - 0.707f) < 1e-6f && h.yarn_mscale == h.yarn_mscale_all);
    /* none: cos and sin alone are scaled */
    assert_ok(READ_GGUF(&h, {"deepseek2.rope.scaling.yarn_log_multiplier", 0, 0, NULL}));
    assert_true(h.yarn_mscale_all == 0 && h.yarn_mscale == 1);
    /* a pair of this project's own keys counts more, bit for bit */
    assert_ok(READ_GGUF(&h, {"deepseek2.rope.scaling.yarn_log_multiplier", 'f', 0.12, NULL},
                        {"deepseek2.rope.scaling.hadal_mscale", 'f', 0.8, NULL},
                        {"deepseek2.rope.scaling.hadal_mscale_all_dim", 'f', 1.2, NULL}));
    assert_true(h.yarn_mscale == 0.8f && h.yarn_mscale_all == 1.2f);
    assert_ok(READ_GGUF(&h, {"deepseek2.rope.scaling.attn_factor", 'f', 0.92784, NULL},
                        {"deepseek2.rope.scaling.hadal_mscale", 'f', 0.8, NULL},
                        {"deepseek2.rope.scaling.hadal_mscale_all_dim", 'f', 1.2, NULL}));
    assert_true(h.yarn_mscale == 0.8f && h.yarn_mscale_all == 1.2f);
    assert_ok(READ_GGUF(&h, {"deepseek2.rope.scaling.type", 's', 0, "none"}));
    assert_false(h.is_yarn);
    assert_ok(READ_GGUF(&h, {"deepseek2.rope.scaling.type", 0, 0, NULL},
                        {"deepseek2.rope.scaling.factor", 0, 0, NULL}));
    assert_false(h.is_yarn);
    assert_ok(READ_GGUF(&h, {"deepseek2.rope.scaling.original_context_length", 0, 0, NULL},
                        {"deepseek2.rope.scaling.yarn_beta_fast", 'f', 31, NULL},
                        {"deepseek2.rope.scaling.yarn_beta_slow", 'f', 2, NULL}));
    assert_true(h.yarn_orig_ctx == 640 && h.yarn_beta_fast == 31 && h.yarn_beta_slow == 2);
    assert_ok(READ_GGUF(&h, {"deepseek2.expert_weights_scale", 0, 0, NULL},
                        {"deepseek2.expert_weights_norm", 0, 0, NULL},
                        {"tokenizer.ggml.bos_token_id", 0, 0, NULL},
                        {"tokenizer.ggml.padding_token_id", 'u', 2, NULL}));
    assert_true(h.expert_scale == 1 && !h.expert_normalise && h.bos == -1 && h.pad == 2);
    /* softmax with groups: their maximum counts, as in V2 */
    assert_ok(READ_GGUF(&h, {"deepseek2.expert_gating_func", 'u', 1, NULL}));
    assert_true(h.gating == HD_GATING_SOFTMAX && h.group_rule == HD_GROUP_MAX);
    assert_ok(READ_GGUF(&h, {"deepseek2.expert_gating_func", 0, 0, NULL},
                        {"deepseek2.expert_group_count", 0, 0, NULL},
                        {"deepseek2.expert_group_used_count", 0, 0, NULL}));
    assert_true(h.gating == HD_GATING_SOFTMAX && h.n_group == 1 && h.n_group_used == 1);
    /* V3's oldest files have no group counts */
    assert_ok(READ_GGUF(&h, {"deepseek2.expert_count", 'u', 256, NULL},
                        {"deepseek2.expert_group_count", 0, 0, NULL},
                        {"deepseek2.expert_group_used_count", 0, 0, NULL}));
    assert_true(h.n_group == 8 && h.n_group_used == 4);
    assert_ok(READ_GGUF(&h, {"deepseek2.expert_count", 'u', 160, NULL},
                        {"deepseek2.expert_gating_func", 'u', 1, NULL},
                        {"deepseek2.expert_group_count", 0, 0, NULL},
                        {"deepseek2.expert_group_used_count", 0, 0, NULL}));
    assert_true(h.n_group == 8 && h.n_group_used == 3 && h.group_rule == HD_GROUP_MAX);
}

/* No gating key, but a routing bias: sigmoid. A value a layer, all alike: one value. */
static void gguf_tells_by_tensors_and_arrays(void **state) {
    (void)state;
    hd_buf b;
    hd_checkpoint *c;
    hd_hparams h;
    hd_buf_init(&b, 1 << 20);
    for (int variant = 0; variant < 2; variant++) {
        hd_buf_clear(&b);
        test_gguf_head(&b, 3, 2, HD_COUNT_OF(v3_keys) - 2);
        for (size_t i = 0; i < HD_COUNT_OF(v3_keys); i++) {
            if (strstr(v3_keys[i].key, "gating_func") || strstr(v3_keys[i].key, "vocab_size"))
                continue;
            if (!strstr(v3_keys[i].key, "feed_forward_length") ||
                strstr(v3_keys[i].key, "expert")) {
                put_key(&b, &v3_keys[i]);
                continue;
            }
            test_gguf_key(&b, v3_keys[i].key, 9);
            test_put_u32(&b, 5);
            test_put_u64(&b, 2);
            test_put_u32(&b, 160);
            test_put_u32(&b, variant ? 161 : 160);
        }
        test_gguf_tensor(&b, "blk.1.exp_probs_b.bias", 1, (uint64_t[]){16}, 0, 0);
        test_gguf_tensor(&b, "token_embd.weight", 2, (uint64_t[]){1, 320}, 0, 64);
        test_pad(&b, 32);
        test_zeros(&b, 64 + 1280);
        assert_ok(hd_checkpoint_open_memory(b.ptr, b.len, "m.gguf", &c));
        hd_status s = hd_hparams_read(c, &h);
        if (variant) {
            said(HD_E_UNSUPPORTED, s,
                 (const char *[]){"feed_forward_length", "one value", "160", "161", NULL});
        } else {
            assert_ok(s);
            assert_true(h.gating == HD_GATING_SIGMOID && h.d_ff == 160 && h.n_vocab == 320);
        }
        hd_checkpoint_close(c);
    }
    hd_buf_fini(&b);
}

static void bad_gguf_values_are_refused(void **state) {
    (void)state;
    static const struct {
        struct key change;
        hd_status want;
        const char *word;
    } cases[] = {
        {{"general.architecture", 's', 0, "mamba"}, HD_E_UNSUPPORTED, "\"mamba\""},
        {{"general.architecture", 0, 0, NULL}, HD_E_CORRUPT, "general.architecture"},
        {{"general.type", 's', 0, "imatrix"},
         HD_E_UNSUPPORTED,
         "expected model, found \"imatrix\""},
        {{"general.architecture", 'u', 1, NULL}, HD_E_CORRUPT, "general.architecture"},
        {{"deepseek2.rope.scaling.type", 's', 0, "longrope"}, HD_E_UNSUPPORTED, "\"longrope\""},
        {{"deepseek2.rope.scaling.type", 0, 0, NULL}, HD_E_UNSUPPORTED, "yarn_log_multiplier"},
        {{"deepseek2.rope.scaling.type", 's', 0, "linear"}, HD_E_UNSUPPORTED, "yarn alone"},
        {{"deepseek2.rope.scaling.type", 'u', 1, NULL}, HD_E_CORRUPT, "rope.scaling.type"},
        {{"deepseek2.expert_gating_func", 'u', 4, NULL}, HD_E_UNSUPPORTED, "expert_gating_func"},
        {{"deepseek2.attention.scale", 'f', 0.1, NULL}, HD_E_UNSUPPORTED, "attention.scale"},
        {{"deepseek2.attention.temperature_length", 'u', 8192, NULL},
         HD_E_UNSUPPORTED,
         "temperature_length"},
        {{"deepseek2.rope.scaling.attn_factor", 'f', 1.5, NULL}, HD_E_UNSUPPORTED, "attn_factor"},
        {{"deepseek2.block_count", 0, 0, NULL}, HD_E_CORRUPT, "found no such key"},
        {{"deepseek2.block_count", 'u', 0, NULL}, HD_E_CORRUPT, "deepseek2.block_count"},
        {{"deepseek2.block_count", 'f', 4, NULL}, HD_E_CORRUPT, "expected an integer"},
        {{"deepseek2.block_count", 's', 0, "4"}, HD_E_CORRUPT, "expected an integer"},
        {{"deepseek2.block_count", 'u', 4e9, NULL}, HD_E_CORRUPT, "found 4e+09"},
        {{"deepseek2.nextn_predict_layers", 'u', 4, NULL}, HD_E_CORRUPT, "less than the block"},
        {{"deepseek2.attention.head_count", 'u', 0, NULL}, HD_E_CORRUPT, "head_count"},
        {{"deepseek2.attention.head_count_kv", 'u', 2, NULL}, HD_E_CORRUPT, "head_count_kv"},
        {{"deepseek2.attention.key_length_mla", 'u', 16, NULL}, HD_E_CORRUPT, "key_length_mla"},
        {{"deepseek2.attention.value_length_mla", 'u', 0, NULL}, HD_E_CORRUPT, "value dimensions"},
        {{"deepseek2.attention.layer_norm_rms_epsilon", 'f', (double)NAN, NULL},
         HD_E_CORRUPT,
         "rms_epsilon"},
        {{"deepseek2.rope.freq_base", 'f', (double)INFINITY, NULL}, HD_E_CORRUPT, "rope base"},
        {{"deepseek2.rope.scaling.factor", 'f', (double)NAN, NULL}, HD_E_CORRUPT, "yarn factor"},
        {{"deepseek2.rope.dimension_count", 'u', 17, NULL}, HD_E_CORRUPT, "even"},
        {{"deepseek2.expert_group_count", 'u', 5, NULL}, HD_E_CORRUPT, "divisor"},
        {{"deepseek2.expert_weights_scale", 'f', (double)NAN, NULL}, HD_E_CORRUPT, "weights_scale"},
        {{"deepseek2.vocab_size", 0, 0, NULL}, HD_E_CORRUPT, "vocabulary size"},
        {{"tokenizer.ggml.eos_token_id", 'u', 320, NULL}, HD_E_CORRUPT, "eos token"},
    };
    hd_hparams h;
    for (size_t i = 0; i < HD_COUNT_OF(cases); i++)
        said(cases[i].want, read_gguf(&cases[i].change, 1, &h),
             (const char *[]){"m.gguf", cases[i].word, NULL});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(config_is_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(other_spellings_of_config, set_up, tear_down),
        cmocka_unit_test_setup_teardown(parts_of_the_mscale_pair, set_up, tear_down),
        cmocka_unit_test_setup_teardown(v2_configs_are_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(unbuilt_settings_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(absurd_config_values_are_refused, set_up, tear_down),
        cmocka_unit_test(gguf_keys_are_read),
        cmocka_unit_test(other_spellings_of_gguf),
        cmocka_unit_test(gguf_tells_by_tensors_and_arrays),
        cmocka_unit_test(bad_gguf_values_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
