/* model: FP8 weights with block scales: every weight handed out is code * scale of its own block,
 * in any slice (heads, experts, reordered rows), block size, type and name of the scales; what is
 * missing, misshapen or no number is named. Files of random codes are made here. */
#include "support/canon.h"
#include "support/check.h"
#include "support/files.h"
#include "support/rng.h"

#include "base/mem.h"
#include "file/gguf.h"
#include "model/export.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A model of two layers (the second with experts) and how its scales are written. */
struct shape {
    const char *type; /* model_type */
    int d, ff, fe, n_expert, n_head, nope, rope, v, c, ql;
    int block[2];
    enum hd_format scales;
    bool is_fused, is_native_name;
    enum hd_format all, k_b; /* formats expected of rows, and of k_b */
};

static const struct shape aligned = {.type = "deepseek_v3",
                                     .d = 256,
                                     .ff = 384,
                                     .fe = 128,
                                     .n_expert = 2,
                                     .n_head = 2,
                                     .nope = 128,
                                     .rope = 8,
                                     .v = 128,
                                     .c = 128,
                                     .ql = 128,
                                     .block = {128, 128},
                                     .scales = HD_F32,
                                     .all = HD_F8_B128,
                                     .k_b = HD_F8_B128};

/* ---- writing ---- */

struct writer {
    const struct shape *s;
    json_t *header;
    hd_buf data;
    test_rng rng;
    /* what goes wrong */
    const char *no_scale, *nan_in, *bad_scale, *turned_scale, *int_scale, *int_weight;
};

static void add_entry(struct writer *w, const char *name, const char *dtype, const int *ne,
                      size_t n_byte) {
    json_t *shape = json_array();
    for (int d = 0; d < 3; d++)
        if (ne[d]) json_array_append_new(shape, json_integer(ne[d]));
    json_object_set_new(w->header, name,
                        json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype, "shape", shape,
                                  "data_offsets", (json_int_t)w->data.len,
                                  (json_int_t)(w->data.len + n_byte)));
}

static bool is(const char *name, const char *part) { return part && strstr(name, part); }

static void add_plain(struct writer *w, const char *name, int n_out, int n_in) {
    size_t n = (size_t)n_out * (size_t)(n_in ? n_in : 1);
    add_entry(w, name, "F32", (int[]){n_out, n_in, 0}, n * 4);
    for (size_t i = 0; i < n; i++) {
        float v = 0.5f + (float)(rng_next(&w->rng) % 100) * 0.01f;
        hd_buf_add(&w->data, &v, sizeof v);
    }
}

static void add_scales(struct writer *w, const char *name, const int *ne) {
    const hd_format_info *f = hd_format_get(w->s->scales);
    char text[160];
    int n = (int)strlen(name);
    if (is(name, w->no_scale)) return;
    if (w->s->is_native_name)
        snprintf(text, sizeof text, "%.*sscale", n - (int)strlen("weight"), name);
    else
        snprintf(text, sizeof text, "%s_scale_inv", name);
    const int *b = w->s->block;
    int is_3d = ne[2] != 0, rows = ne[is_3d], cols = ne[is_3d + 1];
    int grid[3] = {(rows + b[0] - 1) / b[0], (cols + b[1] - 1) / b[1], 0};
    if (is(name, w->turned_scale)) grid[0]++;
    size_t n_scale = (size_t)(grid[0] * grid[1] * (is_3d ? ne[0] : 1));
    const char *dtype = is(name, w->int_scale) ? "I32" : f->safetensors_name;
    size_t size = is(name, w->int_scale) ? 4 : (size_t)f->block_bytes;
    add_entry(w, text, dtype, is_3d ? (int[]){ne[0], grid[0], grid[1]} : grid, n_scale * size);
    for (size_t i = 0; i < n_scale; i++) {
        float v = (float)(1 + rng_next(&w->rng) % 1000) * 0.003f;
        char bytes[4];
        if (is(name, w->bad_scale)) v = i ? v : -1;
        f->encode(&v, bytes, 1);
        hd_buf_add(&w->data, bytes, size);
    }
}

/* [n0, n1], or with n2 a stack of n0 matrices [n1, n2]. */
static void add_fp8(struct writer *w, const char *name, int n0, int n1, int n2) {
    int ne[3] = {n0, n1, n2};
    size_t n = (size_t)n0 * (size_t)n1 * (size_t)(n2 ? n2 : 1);
    add_entry(w, name, is(name, w->int_weight) ? "I8" : "F8_E4M3", ne, n);
    for (size_t i = 0; i < n; i++) {
        unsigned char code = (unsigned char)rng_next(&w->rng);
        if ((code & 0x7F) == 0x7F) code = 0x3F;
        if (i == 7 && is(name, w->nan_in)) code = 0xFF;
        hd_buf_add(&w->data, &code, 1);
    }
    add_scales(w, name, ne);
}

static void add_layer(struct writer *w, int layer) {
    const struct shape *s = w->s;
    char name[128];
#define NAME(...) (snprintf(name, sizeof name, "model.layers.%d." __VA_ARGS__), name)
    add_plain(w, NAME("input_layernorm.weight", layer), s->d, 0);
    add_plain(w, NAME("post_attention_layernorm.weight", layer), s->d, 0);
    if (s->c) {
        add_fp8(w, NAME("self_attn.q_a_proj.weight", layer), s->ql, s->d, 0);
        add_plain(w, NAME("self_attn.q_a_layernorm.weight", layer), s->ql, 0);
        add_fp8(w, NAME("self_attn.q_b_proj.weight", layer), s->n_head * (s->nope + s->rope), s->ql,
                0);
        add_fp8(w, NAME("self_attn.kv_a_proj_with_mqa.weight", layer), s->c + s->rope, s->d, 0);
        add_plain(w, NAME("self_attn.kv_a_layernorm.weight", layer), s->c, 0);
        add_fp8(w, NAME("self_attn.kv_b_proj.weight", layer), s->n_head * (s->nope + s->v), s->c,
                0);
    } else {
        add_fp8(w, NAME("self_attn.q_proj.weight", layer), s->n_head * s->rope, s->d, 0);
        add_fp8(w, NAME("self_attn.k_proj.weight", layer), s->n_head * s->rope, s->d, 0);
        add_fp8(w, NAME("self_attn.v_proj.weight", layer), s->n_head * s->rope, s->d, 0);
    }
    add_fp8(w, NAME("self_attn.o_proj.weight", layer), s->d, s->n_head * s->v, 0);
    if (layer == 0 || !s->n_expert) {
        add_fp8(w, NAME("mlp.gate_proj.weight", layer), s->ff, s->d, 0);
        add_fp8(w, NAME("mlp.up_proj.weight", layer), s->ff, s->d, 0);
        add_fp8(w, NAME("mlp.down_proj.weight", layer), s->d, s->ff, 0);
        return;
    }
    add_plain(w, NAME("mlp.gate.weight", layer), s->n_expert, s->d);
    add_plain(w, NAME("mlp.gate.e_score_correction_bias", layer), s->n_expert, 0);
    add_fp8(w, NAME("mlp.shared_experts.gate_proj.weight", layer), s->fe, s->d, 0);
    add_fp8(w, NAME("mlp.shared_experts.up_proj.weight", layer), s->fe, s->d, 0);
    add_fp8(w, NAME("mlp.shared_experts.down_proj.weight", layer), s->d, s->fe, 0);
    if (s->is_fused) {
        add_fp8(w, NAME("mlp.experts.gate_up_proj", layer), s->n_expert, 2 * s->fe, s->d);
        add_fp8(w, NAME("mlp.experts.down_proj", layer), s->n_expert, s->d, s->fe);
        return;
    }
    for (int e = 0; e < s->n_expert; e++) {
        add_fp8(w, NAME("mlp.experts.%d.gate_proj.weight", layer, e), s->fe, s->d, 0);
        add_fp8(w, NAME("mlp.experts.%d.up_proj.weight", layer, e), s->fe, s->d, 0);
        add_fp8(w, NAME("mlp.experts.%d.down_proj.weight", layer, e), s->d, s->fe, 0);
    }
#undef NAME
}

static void write_model(struct writer *w) {
    const struct shape *s = w->s;
    hd_buf file, config;
    hd_buf_init(&w->data, SIZE_MAX);
    hd_buf_init(&file, SIZE_MAX);
    hd_buf_init(&config, 1 << 16);
    w->header = json_object();
    w->rng.x = 7;
    add_plain(w, "model.embed_tokens.weight", 40, s->d);
    add_plain(w, "lm_head.weight", 40, s->d);
    add_plain(w, "model.norm.weight", s->d, 0);
    for (int layer = 0; layer < 2; layer++) add_layer(w, layer);
    char *text = json_dumps(w->header, JSON_COMPACT);
    test_safetensors(&file, text, 0);
    hd_buf_add(&file, w->data.ptr, w->data.len);
    test_write_file(test_join(test_dir, "model.safetensors"), file.ptr, file.len);
    hd_buf_addf(&config,
                "{\"model_type\":\"%s\",\"vocab_size\":40,\"hidden_size\":%d,"
                "\"intermediate_size\":%d,\"moe_intermediate_size\":%d,\"num_hidden_layers\":2,"
                "\"num_attention_heads\":%d,\"n_shared_experts\":1,\"n_routed_experts\":%d,"
                "\"n_group\":1,\"topk_group\":1,\"num_experts_per_tok\":1,"
                "\"kv_lora_rank\":%d,\"q_lora_rank\":%d,"
                "\"qk_rope_head_dim\":%d,\"qk_nope_head_dim\":%d,\"v_head_dim\":%d,\"head_dim\":%d,"
                "\"first_k_dense_replace\":1,\"rms_norm_eps\":1e-06,\"max_position_embeddings\":64,"
                "\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\","
                "\"activation_scheme\":\"dynamic\",\"scale_fmt\":\"ue8m0\","
                "\"weight_block_size\":[%d,%d]}}",
                s->type, s->d, s->ff, s->fe, s->n_head, s->n_expert, s->c, s->ql, s->rope, s->nope,
                s->v, s->rope, s->block[0], s->block[1]);
    test_write_text(test_join(test_dir, "config.json"), config.ptr);
    free(text);
    json_decref(w->header);
    hd_buf_fini(&w->data);
    hd_buf_fini(&file);
    hd_buf_fini(&config);
}

/* ---- what is right ---- */

/* The weight of row o, column i of matrix m of a file's tensor. */
static float meaning(const hd_checkpoint *c, const struct shape *s, const char *name, int m, int o,
                     int i) {
    char scale_name[160];
    const hd_file_tensor *t = hd_checkpoint_find(c, name);
    if (!t) fail_msg("no %s", name);
    snprintf(scale_name, sizeof scale_name, "%s_scale_inv", name);
    if (s->is_native_name)
        snprintf(scale_name, sizeof scale_name, "%.*sscale", (int)(strlen(name) - 6), name);
    const hd_file_tensor *g = hd_checkpoint_find(c, scale_name);
    if (!g) fail_msg("no %s", scale_name);
    size_t at = ((size_t)m * (size_t)t->ne[1] + (size_t)o) * (size_t)t->ne[0] + (size_t)i;
    size_t of = ((size_t)m * (size_t)g->ne[1] + (size_t)(o / s->block[0])) * (size_t)g->ne[0] +
                (size_t)(i / s->block[1]);
    float scale;
    const hd_format_info *f = hd_format_get(g->format);
    f->decode((const char *)g->data + of * (size_t)f->block_bytes, &scale, 1);
    return scale * hd_e4m3_to_f32(((const uint8_t *)t->data)[at]);
}

/* How element (o, i) of matrix m of a canonical tensor lies in the file. */
static float expected(const struct opened *k, const struct shape *s, const char *suffix, int m,
                      int o, int i) {
    char hf[128];
    int layer = strstr(suffix, "exp") != NULL, matrix = 0;
    const char *name = suffix, *part = strstr(suffix, "_gate") ? "gate"
                                       : strstr(suffix, "_up") ? "up"
                                                               : "down";
    if (strstr(suffix, "_shexp")) {
        snprintf(hf, sizeof hf, "mlp.shared_experts.%s_proj.weight", part);
    } else if (strstr(suffix, "_exps") && !s->is_fused) {
        snprintf(hf, sizeof hf, "mlp.experts.%d.%s_proj.weight", m, part);
    } else if (strstr(suffix, "_exps")) {
        bool is_down = strcmp(part, "down") == 0;
        snprintf(hf, sizeof hf, "mlp.experts.%s", is_down ? "down_proj" : "gate_up_proj");
        matrix = m;
        if (strcmp(part, "up") == 0) o += s->fe;
    } else if (strncmp(name, "ffn_", 4) == 0) {
        snprintf(hf, sizeof hf, "mlp.%s_proj.weight", part);
    } else if (strcmp(name, "attn_k_b.weight") == 0 || strcmp(name, "attn_v_b.weight") == 0) {
        bool is_k = strcmp(name, "attn_k_b.weight") == 0;
        int row = m * (s->nope + s->v) + (is_k ? i : s->nope + o), col = is_k ? o : i;
        snprintf(hf, sizeof hf, "self_attn.kv_b_proj.weight");
        o = row;
        i = col;
    } else if (!s->c &&
               (strcmp(name, "attn_q.weight") == 0 || strcmp(name, "attn_k.weight") == 0)) {
        int in_head = o % s->rope;
        snprintf(hf, sizeof hf, "self_attn.%c_proj.weight", name[5]);
        o += in_head % 2 * (s->rope / 2) + in_head / 2 - in_head;
    } else {
        static const char *const names[][2] = {{"attn_q_a.weight", "q_a_proj"},
                                               {"attn_q_b.weight", "q_b_proj"},
                                               {"attn_kv_a_mqa.weight", "kv_a_proj_with_mqa"},
                                               {"attn_v.weight", "v_proj"},
                                               {"attn_output.weight", "o_proj"}};
        hf[0] = 0;
        for (size_t n = 0; n < HD_COUNT_OF(names); n++)
            if (strcmp(name, names[n][0]) == 0)
                snprintf(hf, sizeof hf, "self_attn.%s.weight", names[n][1]);
    }
    char full[160];
    snprintf(full, sizeof full, "model.layers.%d.%s", layer, hf);
    return meaning(k->c, s, full, matrix, o, i);
}

static void check_tensor(const struct opened *k, const struct shape *s, const char *suffix) {
    char name[64];
    hd_canon_name(strstr(suffix, "exp") != NULL, suffix, name);
    const hd_canon_tensor *t = hd_canon_find(k->k, name);
    if (!t) fail_msg("no %s", name);
    bool is_k_b = strcmp(suffix, "attn_k_b.weight") == 0;
    if (t->format != (is_k_b ? s->k_b : s->all))
        fail_msg("%s: %s", name, hd_format_get(t->format)->name);
    size_t n = (size_t)(t->ne[0] * t->ne[1]);
    void *scratch = malloc(hd_format_bytes(t->format, n));
    float *got = malloc(n * sizeof *got);
    assert_true(hd_canon_is_copied(t));
    for (int m = 0; m < (int)t->ne[2]; m++) {
        assert_ok(hd_canon_check(k->k, t, m));
        hd_format_get(t->format)->decode(hd_canon_matrix(k->k, t, m, scratch), got, n);
        for (int o = 0; o < t->ne[1]; o++)
            for (int i = 0; i < t->ne[0]; i++) {
                float want = expected(k, s, suffix, m, o, i), found = got[o * (int)t->ne[0] + i];
                if (found != want)
                    fail_msg("%s, matrix %d, row %d, column %d: %.9g, expected %.9g", name, m, o, i,
                             (double)found, (double)want);
            }
    }
    free(got);
    free(scratch);
}

static const char *const of_mla[] = {"attn_q_a.weight", "attn_q_b.weight", "attn_kv_a_mqa.weight",
                                     "attn_k_b.weight", "attn_v_b.weight"};
static const char *const of_gqa[] = {"attn_q.weight", "attn_k.weight", "attn_v.weight"};
static const char *const of_all[] = {"attn_output.weight", "ffn_gate.weight", "ffn_up.weight",
                                     "ffn_down.weight"};
static const char *const of_experts[] = {"ffn_gate_exps.weight", "ffn_up_exps.weight",
                                         "ffn_down_exps.weight", "ffn_gate_shexp.weight",
                                         "ffn_up_shexp.weight",  "ffn_down_shexp.weight"};

static void check_model(const struct shape *s) {
    struct opened k;
    write_model(&(struct writer){.s = s});
    open_all(&k, test_dir);
    for (size_t i = 0; i < HD_COUNT_OF(of_all); i++) check_tensor(&k, s, of_all[i]);
    for (size_t i = 0; i < HD_COUNT_OF(of_mla) && s->c; i++) check_tensor(&k, s, of_mla[i]);
    for (size_t i = 0; i < HD_COUNT_OF(of_gqa) && !s->c; i++) check_tensor(&k, s, of_gqa[i]);
    for (size_t i = 0; i < HD_COUNT_OF(of_experts) && s->n_expert; i++)
        check_tensor(&k, s, of_experts[i]);
    for (size_t i = 0; i < hd_checkpoint_count(k.c); i++)
        if (!hd_canon_is_used(k.k, i)) fail_msg("%s is not used", hd_checkpoint_at(k.c, i)->name);
    close_all(&k);
}

static void every_weight_is_code_times_scale(void **state) {
    (void)state;
    struct shape s = aligned;
    check_model(&s);
    s.is_fused = true;
    check_model(&s);
    s.fe = 192; /* the up rows begin amid a block; 192 columns are no whole one */
    s.all = s.k_b = HD_F32;
    s.d = 192, s.ff = 320, s.c = 96, s.ql = 72, s.v = 160;
    s.n_head = 2, s.nope = 24;
    check_model(&s);
    s.is_fused = false;
    s.is_native_name = true;
    s.scales = HD_F8_E8M0;
    check_model(&s);
}

/* Rows of a block of scales are split among heads: k_b cannot stay FP8, everything else can. */
static void heads_may_begin_amid_a_block(void **state) {
    (void)state;
    struct shape s = aligned;
    s.v = 64;
    s.n_head = 4;
    s.k_b = HD_F32;
    s.scales = HD_BF16;
    check_model(&s);
    s = aligned;
    s.nope = 64; /* heads of 64 + 64 rows: k_b's rows are half a block long */
    s.v = 64;
    s.n_head = 4;
    s.k_b = HD_F32;
    check_model(&s);
}

static void other_block_sizes(void **state) {
    (void)state;
    struct shape s = aligned;
    s.block[0] = 64; /* rows share less: k_b's columns would */
    s.k_b = HD_F32;
    check_model(&s);
    s = aligned;
    s.block[0] = 1;
    s.block[1] = 256;
    s.k_b = HD_F32;
    check_model(&s);
    s = aligned;
    s.block[1] = 32;
    s.all = HD_F32;
    s.k_b = HD_F8_B128; /* turned: 128 rows share a scale all the same */
    check_model(&s);
    s.block[0] = 32;
    s.k_b = HD_F32;
    check_model(&s);
}

static void rows_of_q_and_k_take_their_scales_along(void **state) {
    (void)state;
    struct shape s = {.type = "llama",
                      .d = 256,
                      .ff = 384,
                      .n_head = 4,
                      .rope = 96, /* the second head lies in two blocks */
                      .v = 96,
                      .block = {128, 128},
                      .all = HD_F8_B128};
    check_model(&s);
}

/* ---- refusals ---- */

static void refused(const struct writer *w, hd_status want, const char *words[]) {
    hd_checkpoint *c;
    hd_hparams hp;
    hd_canon *k = NULL;
    struct writer x = *w;
    write_model(&x);
    assert_ok(hd_checkpoint_open(test_dir, &c));
    assert_ok(hd_hparams_read(c, &hp));
    hd_status s = hd_canon_new(c, &hp, &k);
    for (size_t i = 0; s == HD_OK && i < hd_canon_count(k); i++)
        for (int m = 0; s == HD_OK && m < (int)hd_canon_at(k, i)->ne[2]; m++)
            s = hd_canon_check(k, hd_canon_at(k, i), m);
    assert_int_equal(s, want);
    for (int i = 0; words[i]; i++)
        if (!strstr(hd_error_text(), words[i]))
            fail_msg("expected \"%s\" in: %s", words[i], hd_error_text());
    hd_canon_free(k);
    hd_checkpoint_close(c);
}

static void faults_are_named(void **state) {
    (void)state;
    const char *o = "layers.1.self_attn.o_proj", *kv_b = "layers.0.self_attn.kv_b_proj";
    struct writer none = {.s = &aligned, .no_scale = o}, shape = {.s = &aligned, .turned_scale = o},
                  bad = {.s = &aligned, .bad_scale = o}, type = {.s = &aligned, .int_scale = o},
                  nan = {.s = &aligned, .nan_in = o}, nan_b = {.s = &aligned, .nan_in = kv_b},
                  weight = {.s = &aligned, .int_weight = o},
                  expert = {.s = &aligned, .nan_in = "experts.1.up_proj"};
    refused(&none, HD_E_CORRUPT,
            (const char *[]){"model.safetensors", o, "F8_E4M3", "weight_scale_inv [2, 2]",
                             "found none", NULL});
    refused(&shape, HD_E_CORRUPT,
            (const char *[]){o, "_scale_inv", "expected shape [2, 2]", "128 by 128", "found [3, 2]",
                             NULL});
    refused(&bad, HD_E_NUMERIC, (const char *[]){o, "_scale_inv", "scale 0", "found -1", NULL});
    refused(&type, HD_E_UNSUPPORTED, (const char *[]){o, "_scale_inv", "F32, BF16", "I32", NULL});
    refused(&weight, HD_E_UNSUPPORTED,
            (const char *[]){"model.safetensors", o, "type I8 is not supported",
                             "known here: F32, F16, BF16, F8_E4M3", NULL});
    refused(&nan, HD_E_NUMERIC, (const char *[]){o, "1 NaN", NULL});
    refused(&nan_b, HD_E_NUMERIC, (const char *[]){kv_b, "1 NaN", NULL});
    refused(&expert, HD_E_NUMERIC, (const char *[]){"experts.1.up_proj.weight", "1 NaN", NULL});
}

/* GGUF has no FP8: auto writes BF16, which keeps every bit of powers of two. */
static void converted_files_are_close(void **state) {
    (void)state;
    for (int pass = 0; pass < 2; pass++) {
        struct shape s = aligned;
        struct opened a, b;
        char why[128];
        const char *target = test_join(test_dir, "m.gguf");
        if (pass) s.scales = HD_F8_E8M0;
        write_model(&(struct writer){.s = &s});
        open_all(&a, test_dir);
        for (size_t i = 0; i < hd_canon_count(a.k); i++) {
            const hd_canon_tensor *t = hd_canon_at(a.k, i);
            if (t->n_dim > 1 && strstr(t->name, "attn"))
                assert_int_equal(hd_export_format(t, HD_EXPORT_AUTO, why), HD_BF16);
        }
        assert_ok(export_as(&a, HD_EXPORT_AUTO, target, NULL));
        open_all(&b, target);
        for (size_t i = 0; i < hd_canon_count(a.k); i++) {
            const hd_canon_tensor *t = hd_canon_at(a.k, i), *u = hd_canon_find(b.k, t->name);
            size_t n = (size_t)(t->ne[0] * t->ne[1]);
            float *x = malloc(n * sizeof *x), *y = malloc(n * sizeof *y);
            void *scratch = malloc(n * sizeof(float));
            hd_format_get(t->format)->decode(hd_canon_matrix(a.k, t, 0, scratch), x, n);
            hd_format_get(u->format)->decode(hd_canon_matrix(b.k, u, 0, scratch), y, n);
            double error = 0, all = 0;
            for (size_t j = 0; j < n; j++) {
                error += pow((double)x[j] - (double)y[j], 2);
                all += pow((double)x[j], 2);
            }
            if (pass ? error != 0 : !(sqrt(error / all) < 0.004))
                fail_msg("%s: relative error %g", t->name, sqrt(error / all));
            free(x);
            free(y);
            free(scratch);
        }
        close_all(&a);
        close_all(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_weight_is_code_times_scale, test_dir_make,
                                        test_dir_remove),
        cmocka_unit_test_setup_teardown(heads_may_begin_amid_a_block, test_dir_make,
                                        test_dir_remove),
        cmocka_unit_test_setup_teardown(other_block_sizes, test_dir_make, test_dir_remove),
        cmocka_unit_test_setup_teardown(rows_of_q_and_k_take_their_scales_along, test_dir_make,
                                        test_dir_remove),
        cmocka_unit_test_setup_teardown(faults_are_named, test_dir_make, test_dir_remove),
        cmocka_unit_test_setup_teardown(converted_files_are_close, test_dir_make, test_dir_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
