/* model: hyper-parameters of the llama kind (llama, qwen2, deepseek v1) from config.json and from
 * GGUF keys: defaults, rope scalings, what is refused; and the order of the rows of q and k. */
#include "support/check.h"
#include "support/files.h"

#include "base/mem.h"
#include "file/gguf.h"
#include "model/hparams_source.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- config.json ---- */

#define BASE                                                                                       \
    "\"vocab_size\":320,\"hidden_size\":64,\"intermediate_size\":160,\"num_hidden_layers\":3,"     \
    "\"num_attention_heads\":4,\"rms_norm_eps\":1e-6,\"max_position_embeddings\":256"
#define MOE                                                                                        \
    "\"n_routed_experts\":8,\"num_experts_per_tok\":3,\"n_shared_experts\":2,"                     \
    "\"moe_intermediate_size\":48,\"first_k_dense_replace\":1"

static hd_status read_config(const char *type, const char *more, hd_hparams *h) {
    char text[2048];
    snprintf(text, sizeof text, "{\"model_type\":\"%s\"," BASE "%s%s}", type, *more ? "," : "",
             more);
    *h = (hd_hparams){.bos = -1, .eos = -1, .pad = -1};
    return hd_hparams_parse_config((hd_str){text, strlen(text)}, "config.json", h);
}

static void said(hd_status want, hd_status found, const char *word) {
    if (found != want)
        fail_msg("expected %s, found %s: %s", hd_status_name(want), hd_status_name(found),
                 found ? hd_error_text() : word);
    if (!strstr(hd_error_text(), word)) fail_msg("expected \"%s\" in: %s", word, hd_error_text());
}

static void configs_are_read(void **state) {
    (void)state;
    hd_hparams h;
    assert_ok(read_config("llama", "", &h));
    assert_string_equal(h.arch, "llama");
    assert_true(h.n_rope == 16 && h.n_v == 16 && h.n_nope == 0 && h.n_c == 0 && h.n_head_kv == 4);
    assert_true(h.n_dense_layer == 3 && h.n_expert == 0 && h.d_ff == 160 && !h.is_tied);
    assert_true(!h.has_qkv_bias && !h.is_half_split && !h.is_yarn && !h.has_rope_divisor);
    assert_true(h.rope_base == 10000 && h.rope_linear == 0);
    assert_int_equal(hd_hparams_kv_bytes(&h, HD_KV_F16), 3 * 2 * 64 * 2);
    assert_ok(read_config("qwen2",
                          "\"num_key_value_heads\":2,\"head_dim\":24,\"tie_word_embeddings\":true,"
                          "\"attention_bias\":false,\"use_sliding_window\":false,"
                          "\"layer_types\":[\"full_attention\"],"
                          "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1e6}",
                          &h));
    assert_string_equal(h.arch, "qwen2");
    assert_true(h.n_rope == 24 && h.n_head_kv == 2 && h.is_tied && h.rope_base == 1e6f);
    assert_true(h.has_qkv_bias && h.is_half_split);
    assert_ok(
        read_config("deepseek", MOE ",\"norm_topk_prob\":true,\"scoring_func\":\"softmax\"", &h));
    assert_string_equal(h.arch, "deepseek");
    assert_true(h.n_expert == 8 && h.n_expert_used == 3 && h.n_expert_shared == 2);
    assert_true(h.n_dense_layer == 1 && h.d_expert == 48 && h.n_group == 1 && h.expert_scale == 1);
    assert_true(h.gating == HD_GATING_SOFTMAX && h.expert_normalise);
    assert_ok(read_config("llama", MOE, &h)); /* keys of other kinds mean nothing */
    assert_true(h.n_expert == 0 && h.n_dense_layer == 3);
}

static void rope_scalings_are_read(void **state) {
    (void)state;
    hd_hparams h;
    assert_ok(read_config("llama", "\"rope_scaling\":{\"type\":\"linear\",\"factor\":4.0}", &h));
    assert_true(h.rope_linear == 4);
    assert_ok(read_config("qwen2",
                          "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0,"
                          "\"original_max_position_embeddings\":64}",
                          &h));
    assert_true(h.is_yarn && h.yarn_factor == 4 && h.yarn_mscale == 1 && h.yarn_mscale_all == 0);
    assert_ok(read_config("llama", "\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}", &h));
    assert_true(!h.is_yarn && h.rope_linear == 0 && !h.has_rope_divisor);
    assert_ok(read_config("llama",
                          "\"head_dim\":128,\"rope_theta\":5e5,\"rope_scaling\":{"
                          "\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,"
                          "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192}",
                          &h));
    assert_true(h.has_rope_divisor);
    for (int i = 0; i < 64; i++) { /* the published rule, in frequencies */
        double f = pow(5e5, -i / 64.0), wavelength = 2 * M_PI / f, s = (8192 / wavelength - 1) / 3;
        double scaled = wavelength < 2048 ? f : wavelength > 8192 ? f / 8 : (1 - s) * f / 8 + s * f;
        assert_true(fabs(f / (double)h.rope_divisor[i] / scaled - 1) < 1e-6);
    }
    assert_true(h.rope_divisor[0] == 1 && h.rope_divisor[63] == 8);
}

static void bad_configs_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *type, *more;
        hd_status status;
        const char *word;
    } cases[] = {
        {"llama", "\"attention_bias\":true", HD_E_UNSUPPORTED, "attention_bias"},
        {"llama", "\"mlp_bias\":true", HD_E_UNSUPPORTED, "mlp_bias"},
        {"qwen2", "\"use_sliding_window\":true", HD_E_UNSUPPORTED, "use_sliding_window"},
        {"llama", "\"num_key_value_heads\":3", HD_E_CORRUPT, "divisor of the head count, found 3"},
        {"llama", "\"num_key_value_heads\":0", HD_E_CORRUPT, "num_key_value_heads"},
        {"llama", "\"head_dim\":15", HD_E_CORRUPT, "even number, found 15"},
        {"llama", "\"head_dim\":2048", HD_E_CORRUPT, "head size: expected 2 to 1024, found 2048"},
        {"llama", "\"rope_scaling\":{\"type\":\"longrope\",\"factor\":2}", HD_E_UNSUPPORTED,
         "\"longrope\""},
        {"llama", "\"rope_scaling\":{\"type\":\"linear\"}", HD_E_CORRUPT, "found -1"},
        {"llama", "\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}", HD_E_CORRUPT,
         "linear rope scaling factor"},
        {"llama", "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}", HD_E_CORRUPT,
         "low_freq_factor"},
        {"llama",
         "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
         "\"high_freq_factor\":4,\"original_max_position_embeddings\":64}",
         HD_E_CORRUPT, "high_freq_factor more than low_freq_factor"},
        {"llama",
         "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
         "\"high_freq_factor\":4}",
         HD_E_CORRUPT, "original_max_position_embeddings"},
        {"deepseek", MOE ",\"topk_method\":\"noaux_tc\"", HD_E_UNSUPPORTED, "scoring_func"},
        {"deepseek", MOE ",\"moe_layer_freq\":2", HD_E_UNSUPPORTED, "moe_layer_freq"},
    };
    for (size_t i = 0; i < HD_COUNT_OF(cases); i++) {
        hd_hparams h;
        said(cases[i].status, read_config(cases[i].type, cases[i].more, &h), cases[i].word);
    }
}

/* ---- GGUF ---- */

struct extra { /* a key beside those every file has; text: a string, else a number */
    const char *key, *text;
    double num;
    bool is_float;
};

static hd_status read_gguf(const char *arch, const struct extra *x, int n_freq, float freq,
                           hd_hparams *h) {
    static const struct {
        const char *suffix;
        uint32_t value;
    } ints[] = {{"block_count", 3},           {"context_length", 256},     {"embedding_length", 64},
                {"feed_forward_length", 160}, {"attention.head_count", 4}, {"vocab_size", 320}};
    char key[96];
    hd_gguf_writer *w;
    assert_ok(hd_gguf_create(test_join(test_dir, "m.gguf"), &w));
    hd_gguf_set_str(w, "general.architecture", hd_str_of(arch));
    for (size_t i = 0; i < HD_COUNT_OF(ints); i++) {
        snprintf(key, sizeof key, "%s.%s", arch, ints[i].suffix);
        hd_gguf_set_u32(w, key, ints[i].value);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    hd_gguf_set_f32(w, key, 1e-6f);
    for (; x && x->key; x++) {
        snprintf(key, sizeof key, "%s.%s", arch, x->key);
        if (x->text)
            hd_gguf_set_str(w, key, hd_str_of(x->text));
        else if (x->is_float)
            hd_gguf_set_f32(w, key, (float)x->num);
        else
            hd_gguf_set_u32(w, key, (uint32_t)x->num);
    }
    if (n_freq) hd_gguf_declare(w, "rope_freqs.weight", HD_F32, 1, (int64_t[]){n_freq, 1, 1, 1});
    assert_ok(hd_gguf_begin(w));
    for (int i = 0; i < n_freq; i++) assert_ok(hd_gguf_data(w, &freq, sizeof freq));
    assert_ok(hd_gguf_finish(w));
    hd_checkpoint *c;
    assert_ok(hd_checkpoint_open(test_join(test_dir, "m.gguf"), &c));
    hd_status s = hd_hparams_read(c, h);
    hd_checkpoint_close(c);
    return s;
}
#define EXTRA(...) ((const struct extra[]){__VA_ARGS__, {.key = NULL}})

static void gguf_is_read(void **state) {
    (void)state;
    hd_hparams h;
    assert_ok(read_gguf("llama", NULL, 0, 0, &h));
    assert_true(h.n_rope == 16 && h.n_v == 16 && h.n_head_kv == 4 && h.n_dense_layer == 3);
    assert_true(h.is_tied && !h.has_rope_divisor && h.rope_linear == 0 && !h.is_half_split);
    assert_ok(read_gguf("qwen2",
                        EXTRA({"attention.head_count_kv", NULL, 2, false},
                              {"attention.key_length", NULL, 24, false},
                              {"attention.value_length", NULL, 24, false},
                              {"rope.dimension_count", NULL, 24, false}),
                        0, 0, &h));
    assert_true(h.n_rope == 24 && h.n_head_kv == 2 && h.has_qkv_bias && h.is_half_split);
    assert_ok(read_gguf(
        "llama",
        EXTRA({"rope.scaling.type", "linear", 0, false}, {"rope.scaling.factor", NULL, 4, true}), 0,
        0, &h));
    assert_true(h.rope_linear == 4);
    assert_ok(read_gguf("llama", EXTRA({"rope.scale_linear", NULL, 4, true}), 0, 0, &h));
    assert_true(h.rope_linear == 4);
    assert_ok(read_gguf("llama", NULL, 8, 1.5f, &h));
    assert_true(h.has_rope_divisor && h.rope_divisor[7] == 1.5f && h.rope_divisor[8] == 0);
    assert_ok(
        read_gguf("deepseek",
                  EXTRA({"expert_count", NULL, 8, false}, {"expert_used_count", NULL, 3, false},
                        {"expert_shared_count", NULL, 2, false},
                        {"expert_feed_forward_length", NULL, 48, false},
                        {"leading_dense_block_count", NULL, 1, false}),
                  0, 0, &h));
    assert_true(h.n_expert == 8 && h.gating == HD_GATING_SOFTMAX && !h.expert_normalise);
    assert_true(h.n_dense_layer == 1 && h.expert_scale == 1 && h.n_group == 1);
}

static void bad_gguf_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *arch;
        struct extra x;
        int n_freq;
        float freq;
        hd_status status;
        const char *word;
    } cases[] = {
        {"llama", {"expert_count", NULL, 8, false}, 0, 0, HD_E_UNSUPPORTED, "llama.expert_count"},
        {"llama", {"rope.dimension_count", NULL, 8, false}, 0, 0, HD_E_UNSUPPORTED, "head size 16"},
        {"llama", {"attention.value_length", NULL, 8, false}, 0, 0, HD_E_UNSUPPORTED, "found 8"},
        {"llama", {"attention.head_count_kv", NULL, 3, false}, 0, 0, HD_E_CORRUPT, "divisor"},
        {"qwen2", {"attention.sliding_window", NULL, 64, false}, 0, 0, HD_E_UNSUPPORTED, "window"},
        {"llama", {"rope.scaling.type", "longrope", 0, false}, 0, 0, HD_E_UNSUPPORTED, "longrope"},
        {"llama", {"vocab", NULL, 0, false}, 7, 1, HD_E_CORRUPT, "expected F32 [8], found F32 [7]"},
        {"llama", {"vocab", NULL, 0, false}, 8, 0, HD_E_CORRUPT, "value 0"},
        {"llama", {"vocab", NULL, 0, false}, 8, NAN, HD_E_CORRUPT, "value 0"},
    };
    for (size_t i = 0; i < HD_COUNT_OF(cases); i++) {
        hd_hparams h;
        hd_status s =
            read_gguf(cases[i].arch, EXTRA(cases[i].x), cases[i].n_freq, cases[i].freq, &h);
        said(cases[i].status, s, cases[i].word);
    }
}

/* ---- rows of q and k ---- */

/* Row 2i+s of a head is row s*8+i of the file, for llama; qwen2's are as they are. */
static void rows_come_in_pairs(void **state) {
    (void)state;
    static const char *const families[] = {"llama", "qwen2"};
    for (size_t f = 0; f < 2; f++) {
        char path[96];
        hd_checkpoint *c;
        hd_hparams h;
        hd_canon *k;
        snprintf(path, sizeof path, "tests/golden/families/%s", families[f]);
        assert_ok(hd_checkpoint_open(test_path(path), &c));
        assert_ok(hd_hparams_read(c, &h));
        assert_ok(hd_canon_new(c, &h, &k));
        for (int which = 0; which < 2; which++) {
            static const char *const names[2][2] = {
                {"blk.1.attn_q.weight", "model.layers.1.self_attn.q_proj.weight"},
                {"blk.1.attn_k.weight", "model.layers.1.self_attn.k_proj.weight"}};
            const hd_canon_tensor *t = hd_canon_find(k, names[which][0]);
            const char *file = hd_checkpoint_find(c, names[which][1])->data;
            enum { row_bytes = 64 * 2 };
            char scratch[64 * row_bytes];
            assert_true(t->format == HD_BF16 && t->ne[0] == 64 && t->ne[1] == (which ? 32 : 64));
            const char *found = hd_canon_matrix(k, t, 0, scratch);
            if (h.is_half_split) assert_ptr_equal(found, file);
            for (int row = 0; row < t->ne[1] && !h.is_half_split; row++) {
                int head = row / 16, i = row % 16 / 2, s = row % 2;
                assert_memory_equal(found + row * row_bytes,
                                    file + (head * 16 + s * 8 + i) * row_bytes, row_bytes);
            }
        }
        for (size_t i = 0; i < hd_checkpoint_count(c); i++) assert_true(hd_canon_is_used(k, i));
        hd_canon_free(k);
        hd_checkpoint_close(c);
    }
}

/* A llama folder with qwen2's tensors: its biases would be lost without a word. */
static void a_bias_that_is_not_added_is_refused(void **state) {
    (void)state;
    hd_checkpoint *c;
    hd_hparams h;
    hd_canon *k;
    test_copy_file(test_path("tests/golden/families/qwen2/model.safetensors"),
                   test_join(test_dir, "model.safetensors"));
    test_copy_file(test_path("tests/golden/families/llama/config.json"),
                   test_join(test_dir, "config.json"));
    assert_ok(hd_checkpoint_open(test_dir, &c));
    assert_ok(hd_hparams_read(c, &h));
    said(HD_E_UNSUPPORTED, hd_canon_new(c, &h, &k), "self_attn.k_proj.bias");
    hd_checkpoint_close(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configs_are_read),
        cmocka_unit_test(rope_scalings_are_read),
        cmocka_unit_test(bad_configs_are_refused),
        cmocka_unit_test_setup_teardown(gguf_is_read, test_dir_make, test_dir_remove),
        cmocka_unit_test_setup_teardown(bad_gguf_is_refused, test_dir_make, test_dir_remove),
        cmocka_unit_test(rows_come_in_pairs),
        cmocka_unit_test_setup_teardown(a_bias_that_is_not_added_is_refused, test_dir_make,
                                        test_dir_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
