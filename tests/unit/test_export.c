/* model: what hadal convert writes. The written file gives back the same hyper-parameters and, in
 * the source's format, the same bytes; other formats are the reference encoding; weights that a
 * format cannot hold are named. And the embedded model is what its card says. */
#include "support/canon.h"
#include "support/check.h"
#include "support/files.h"

#include "base/mem.h"
#include "model/arch.h"
#include "model/export.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t n_told;

static hd_status write_as(const struct opened *o, int wanted, const char *path) {
    return export_as(o, wanted, path, &n_told);
}

static void assert_same_hparams(const hd_hparams *a, const hd_hparams *b) {
    assert_string_equal(a->arch, b->arch);
    assert_string_equal(a->name, b->name);
    assert_true(a->n_layer == b->n_layer && a->n_ctx == b->n_ctx && a->d_model == b->d_model);
    assert_true(a->n_vocab == b->n_vocab && a->d_ff == b->d_ff && a->n_head == b->n_head);
    assert_true(a->n_head_kv == b->n_head_kv && a->q_lora == b->q_lora && a->n_c == b->n_c);
    assert_true(a->n_nope == b->n_nope && a->n_rope == b->n_rope && a->n_v == b->n_v);
    assert_true(a->rms_eps == b->rms_eps && a->lora_eps == b->lora_eps);
    assert_true(a->rope_base == b->rope_base && a->is_yarn == b->is_yarn);
    assert_true(a->has_qkv_bias == b->has_qkv_bias && a->is_half_split == b->is_half_split);
    assert_true(a->rope_linear == b->rope_linear && a->has_rope_divisor == b->has_rope_divisor);
    assert_memory_equal(a->rope_divisor, b->rope_divisor, sizeof a->rope_divisor);
    assert_true(a->yarn_factor == b->yarn_factor && a->yarn_orig_ctx == b->yarn_orig_ctx);
    assert_true(a->yarn_beta_fast == b->yarn_beta_fast && a->yarn_beta_slow == b->yarn_beta_slow);
    assert_true(a->yarn_mscale == b->yarn_mscale && a->yarn_mscale_all == b->yarn_mscale_all);
    assert_true(a->n_dense_layer == b->n_dense_layer && a->n_expert == b->n_expert);
    assert_true(a->n_expert_used == b->n_expert_used && a->d_expert == b->d_expert);
    assert_true(a->n_expert_shared == b->n_expert_shared && a->n_group == b->n_group);
    assert_true(a->n_group_used == b->n_group_used && a->gating == b->gating);
    assert_true(a->group_rule == b->group_rule && a->expert_normalise == b->expert_normalise);
    assert_true(a->expert_scale == b->expert_scale && a->is_tied == b->is_tied);
}

static float *decoded(const struct opened *o, const hd_canon_tensor *t, int m, float *out) {
    static char scratch[1 << 20];
    size_t n = (size_t)(t->ne[0] * t->ne[1]);
    hd_format_get(t->format)->decode(hd_canon_matrix(o->k, t, m, scratch), out, n);
    return out;
}

/* Every matrix decodes to the same numbers; with `via`, to those that went through that format. */
static void assert_same_weights(const struct opened *a, const struct opened *b, int via) {
    static float x[1 << 16], y[1 << 16];
    static char block[1 << 18];
    assert_int_equal(hd_canon_count(a->k), hd_canon_count(b->k));
    for (size_t i = 0; i < hd_canon_count(a->k); i++) {
        const hd_canon_tensor *t = hd_canon_at(a->k, i), *u = hd_canon_find(b->k, t->name);
        if (!u) fail_msg("no %s", t->name);
        assert_memory_equal(t->ne, u->ne, sizeof t->ne);
        bool is_plain = t->n_dim == 1 || strstr(t->name, "ffn_gate_inp");
        enum hd_format want = is_plain ? HD_F32 : via < 0 ? t->format : (enum hd_format)via;
        if (t->ne[0] % hd_format_get(want)->block_elems != 0) want = HD_F16;
        assert_int_equal(u->format, want);
        size_t n = (size_t)(t->ne[0] * t->ne[1]);
        for (int m = 0; m < (int)t->ne[2]; m++) {
            decoded(a, t, m, x);
            hd_format_get(want)->encode(x, block, n);
            hd_format_get(want)->decode(block, x, n);
            if (memcmp(x, decoded(b, u, m, y), n * sizeof *x) != 0)
                fail_msg("%s: matrix %d differs", t->name, m);
        }
    }
}

static void written_files_are_the_same_model(void **state) {
    (void)state;
    static const char *const families[] = {
        "v3",    "v3-yarn-mscale-pair", "v2-lite", "v2-lite-yarn",   "v2-groups",
        "llama", "llama-mha",           "qwen2",   "llama3-scaling", "llama-linear4"};
    static const int wanted[] = {HD_EXPORT_AUTO, HD_BF16, HD_F32, HD_F16, HD_Q8_0};
    for (size_t f = 0; f < HD_COUNT_OF(families); f++) {
        struct opened a, b;
        char from[128];
        snprintf(from, sizeof from, "tests/golden/families/%s", families[f]);
        open_all(&a, test_path(from));
        for (size_t i = 0; i < HD_COUNT_OF(wanted); i++) {
            n_told = 0;
            assert_ok(write_as(&a, wanted[i], test_join(test_dir, "m.gguf")));
            open_all(&b, test_join(test_dir, "m.gguf"));
            assert_same_hparams(&a.hp, &b.hp);
            assert_same_weights(&a, &b, wanted[i]);
            uint64_t n_byte = 0;
            for (size_t t = 0; t < hd_checkpoint_count(b.c); t++)
                n_byte += hd_checkpoint_at(b.c, t)->n_byte;
            assert_int_equal(n_told, n_byte);
            close_all(&b);
        }
        close_all(&a);
    }
}

/* And a GGUF written again, from Q8_0 too. */
static void a_gguf_is_written_again(void **state) {
    (void)state;
    struct opened a, b, c;
    open_all(&a, test_path("tests/golden/families/v3"));
    assert_ok(write_as(&a, HD_Q8_0, test_join(test_dir, "a.gguf")));
    open_all(&b, test_join(test_dir, "a.gguf"));
    assert_ok(write_as(&b, HD_EXPORT_AUTO, test_join(test_dir, "b.gguf")));
    open_all(&c, test_join(test_dir, "b.gguf"));
    assert_same_hparams(&a.hp, &c.hp);
    assert_same_weights(&b, &c, HD_EXPORT_AUTO);
    char h1[33], h2[33];
    hd_checkpoint_hash(b.c, h1, NULL, NULL);
    hd_checkpoint_hash(c.c, h2, NULL, NULL);
    assert_string_equal(h1, h2);
    close_all(&a);
    close_all(&b);
    close_all(&c);
}

/* What llama.cpp makes of the keys (llama_context and the graph of deepseek2, 2026): the factor of
 * cos and sin, and that of scores. */
static void read_as_llama_cpp(const hd_gguf *g, const char *arch, double *rope, double *scores) {
    char key[96];
    double factor = 0, a = 1, l = 0;
    snprintf(key, sizeof key, "%s.rope.scaling.factor", arch);
    assert_true(hd_gguf_num(g, key, &factor));
    snprintf(key, sizeof key, "%s.rope.scaling.attn_factor", arch);
    hd_gguf_num(g, key, &a);
    snprintf(key, sizeof key, "%s.rope.scaling.yarn_log_multiplier", arch);
    bool has_l = hd_gguf_num(g, key, &l);
    *rope = has_l ? a : a * (1 + 0.1 * log(factor));
    *scores = strcmp(arch, "deepseek2") == 0 ? pow(*rope * (1 + l * log(factor)), 2) : 1;
}

static void any_mscale_pair_is_said_as_llama_cpp_reads_it(void **state) {
    (void)state;
    static const struct {
        const char *family, *arch;
        float m, all, factor;
    } cases[] = {
        {"v3", "deepseek2", 1, 1, 40},       {"v3", "deepseek2", 0.707f, 0.707f, 40},
        {"v3", "deepseek2", 0.8f, 1.2f, 10}, {"v3", "deepseek2", 1.2f, 0.8f, 10},
        {"v3", "deepseek2", 1, 0, 40},       {"v3", "deepseek2", 0, 0, 40},
        {"v3", "deepseek2", 1, 1, 1},        {"llama", "llama", 1, 0, 4},
        {"llama", "llama", 0.8f, 1.2f, 4},   {"qwen2", "qwen2", 0.5f, 0.5f, 4},
    };
    for (size_t i = 0; i < HD_COUNT_OF(cases); i++) {
        struct opened o;
        hd_hparams back;
        char from[128];
        float table[HD_ROPE_PAIR_MAX * 2];
        double rope, scores;
        snprintf(from, sizeof from, "tests/golden/families/%s", cases[i].family);
        open_all(&o, test_path(from));
        o.hp.is_yarn = true;
        o.hp.yarn_factor = cases[i].factor;
        o.hp.yarn_orig_ctx = 64;
        o.hp.yarn_beta_fast = 32;
        o.hp.yarn_beta_slow = 1;
        o.hp.yarn_mscale = cases[i].m;
        o.hp.yarn_mscale_all = cases[i].all;
        assert_ok(write_as(&o, HD_EXPORT_AUTO, test_join(test_dir, "m.gguf")));
        hd_rope_table(&o.hp, 1, table); /* position 0: the cosine is 1 */
        float plain = 1 / sqrtf((float)(o.hp.n_nope + o.hp.n_rope));
        double own = (double)(hd_rope_softmax_scale(&o.hp) / plain);
        hd_checkpoint *c;
        assert_ok(hd_checkpoint_open(test_join(test_dir, "m.gguf"), &c));
        assert_ok(hd_hparams_read(c, &back));
        assert_same_hparams(&o.hp, &back);
        read_as_llama_cpp(hd_checkpoint_gguf(c), cases[i].arch, &rope, &scores);
        if (fabs(rope - (double)table[0]) > 1e-6 || fabs(scores - own) > 2e-6)
            fail_msg("case %zu: cos %.9g for %.9g, scores %.9g for %.9g", i, rope, (double)table[0],
                     scores, own);
        hd_checkpoint_close(c);
        close_all(&o);
    }
}

static void reasons_are_given(void **state) {
    (void)state;
    struct opened o;
    char why[128];
    open_all(&o, test_path("tests/golden/families/v3"));
    assert_int_equal(hd_export_format(hd_canon_find(o.k, "blk.1.attn_k_b.weight"), HD_Q8_0, why),
                     HD_F16);
    assert_non_null(strstr(why, "24"));
    assert_non_null(strstr(why, "32"));
    assert_int_equal(
        hd_export_format(hd_canon_find(o.k, "blk.1.ffn_gate_inp.weight"), HD_Q8_0, why), HD_F32);
    assert_string_equal(why, "");
    assert_int_equal(hd_export_format(hd_canon_find(o.k, "blk.1.ffn_up_exps.weight"), HD_Q8_0, why),
                     HD_Q8_0);
    close_all(&o);
    assert_int_equal(hd_export_file_type(HD_BF16), 32);
    assert_int_equal(hd_export_file_type(HD_Q8_0), 7);
}

/* A copy of v3 with one number of the embedding changed. */
static void plant(uint16_t bf16) {
    const char *from = test_path("tests/golden/families/v3");
    size_t n;
    char *bytes = test_read_file(test_join(from, "model.safetensors"), &n);
    hd_checkpoint *c;
    assert_ok(hd_checkpoint_open(from, &c));
    const hd_file_tensor *t = hd_checkpoint_find(c, "model.embed_tokens.weight"),
                         *last = hd_checkpoint_at(c, 0);
    for (size_t i = 0; i < hd_checkpoint_count(c); i++) /* its data ends the file */
        if ((const char *)hd_checkpoint_at(c, i)->data > (const char *)last->data)
            last = hd_checkpoint_at(c, i);
    size_t at = n - (size_t)((const char *)last->data + last->n_byte - (const char *)t->data);
    memcpy(bytes + at + (size_t)(3 * 64 + 5) * 2, &bf16, 2);
    test_write_file(test_join(test_dir, "model.safetensors"), bytes, n);
    test_copy_file(test_join(from, "config.json"), test_join(test_dir, "config.json"));
    hd_checkpoint_close(c);
    free(bytes);
}

static void weights_that_do_not_fit_are_named(void **state) {
    (void)state;
    static const struct {
        uint16_t bf16;
        int wanted;
        hd_status status;
        const char *word;
    } cases[] = {
        {0x7FC0, HD_F32, HD_E_NUMERIC, "finite"},
        {0x7F80, HD_Q8_0, HD_E_NUMERIC, "finite"},
        {0x4780, HD_F16, HD_E_NUMERIC, "bf16"},
        {0x4B80, HD_Q8_0, HD_E_NUMERIC, "bf16"},
        {0x4B80, HD_Q4_0, HD_E_NUMERIC, "bf16"},
        {0xC780, HD_Q5_1, HD_E_NUMERIC, "bf16"},
        {0x4B80, HD_MXFP4, HD_OK, ""},
        {0x4780, HD_Q8_0, HD_OK, ""},
        {0x477F, HD_F16, HD_OK, ""},
        {0x4780, HD_F32, HD_OK, ""},
        {0x4780, HD_EXPORT_AUTO, HD_OK, ""},
    };
    for (size_t i = 0; i < HD_COUNT_OF(cases); i++) {
        struct opened o;
        plant(cases[i].bf16);
        open_all(&o, test_dir);
        hd_status s = write_as(&o, cases[i].wanted, test_join(test_dir, "m.gguf"));
        if (s != cases[i].status) fail_msg("case %zu: %s", i, s ? hd_error_text() : "ok");
        if (s != HD_OK) {
            assert_non_null(strstr(hd_error_text(), "token_embd.weight"));
            assert_non_null(strstr(hd_error_text(), "row 3"));
            assert_non_null(strstr(hd_error_text(), cases[i].word));
        }
        close_all(&o);
    }
}

static void the_embedded_model_is_what_its_card_says(void **state) {
    (void)state;
    struct opened o;
    char hash[33];
    size_t n;
    open_all(&o, test_path("models/mini/mini-bf16.gguf"));
    char *card = test_read_file(test_path("models/mini/README.md"), &n);
    hd_checkpoint_hash(o.c, hash, NULL, NULL);
    if (!strstr(card, hash)) fail_msg("content hash %s is not in the card", hash);
    assert_string_equal(o.hp.name, "hadal-mini");
    assert_true(o.hp.n_layer == 8 && o.hp.d_model == 256 && o.hp.n_vocab == 4096);
    assert_true(o.hp.n_ctx == 2048 && o.hp.yarn_factor == 4 && o.hp.yarn_orig_ctx == 512);
    for (size_t i = 0; i < hd_checkpoint_count(o.c); i++) assert_true(hd_canon_is_used(o.k, i));
    double v = 0;
    hd_str s;
    assert_true(hd_gguf_num(hd_checkpoint_gguf(o.c), "general.sampling.temp", &v));
    assert_true(v == (double)0.6f);
    assert_true(hd_gguf_str(hd_checkpoint_gguf(o.c), "tokenizer.ggml.pre", &s));
    assert_true(hd_str_eq_c(s, "deepseek-v3"));
    assert_true(hd_gguf_array(hd_checkpoint_gguf(o.c), "tokenizer.ggml.tokens", &n) && n == 4096);
    free(card);
    close_all(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(written_files_are_the_same_model, test_dir_make,
                                        test_dir_remove),
        cmocka_unit_test_setup_teardown(a_gguf_is_written_again, test_dir_make, test_dir_remove),
        cmocka_unit_test_setup_teardown(any_mscale_pair_is_said_as_llama_cpp_reads_it,
                                        test_dir_make, test_dir_remove),
        cmocka_unit_test(reasons_are_given),
        cmocka_unit_test_setup_teardown(weights_that_do_not_fit_are_named, test_dir_make,
                                        test_dir_remove),
        cmocka_unit_test(the_embedded_model_is_what_its_card_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
