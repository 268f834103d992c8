/* model: canonical tensors of a checkpoint: names and shapes, kv_b split per head against direct
 * indexing, experts single and fused, the spellings of GGUF, and what is missing or misshapen. */
#include "support/canon.h"
#include "support/check.h"
#include "support/files.h"

#include "base/mem.h"
#include "file/gguf.h"
#include "model/model.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint16_t u16_at(const void *p, size_t ix) {
    uint16_t v;
    memcpy(&v, (const char *)p + 2 * ix, 2);
    return v;
}

static void hf_names_are_translated(void **state) {
    (void)state;
    struct opened o;
    open_all(&o, test_path("tests/golden/families/v3"));
    /* 3 globals; 10 a layer, 3 dense, 8 with experts */
    assert_int_equal(hd_canon_count(o.k), 3 + 4 * 10 + 3 + 3 * 8);
    const hd_canon_tensor *t = hd_canon_find(o.k, "token_embd.weight");
    assert_true(t->kind == HD_CANON_PLAIN && t->n_dim == 2 && t->ne[0] == 64 && t->ne[1] == 320);
    assert_string_equal(t->src[0]->name, "model.embed_tokens.weight");
    assert_ptr_equal(hd_canon_matrix(o.k, t, 0, NULL), t->src[0]->data);
    t = hd_canon_find(o.k, "blk.1.ffn_down_exps.weight");
    assert_true(t->kind == HD_CANON_STACK && t->n_dim == 3 && t->n_src == 16);
    assert_true(t->ne[0] == 48 && t->ne[1] == 64 && t->ne[2] == 16);
    assert_string_equal(t->src[11]->name, "model.layers.1.mlp.experts.11.down_proj.weight");
    assert_ptr_equal(hd_canon_matrix(o.k, t, 11, NULL), t->src[11]->data);
    assert_non_null(hd_canon_find(o.k, "blk.0.ffn_gate.weight"));
    assert_null(hd_canon_find(o.k, "blk.1.ffn_gate.weight"));
    assert_null(hd_canon_find(o.k, "blk.0.exp_probs_b.bias"));
    assert_null(hd_canon_find(o.k, "blk.0.attn_q.weight"));
    for (size_t i = 0; i < hd_checkpoint_count(o.c); i++) assert_true(hd_canon_is_used(o.k, i));
    close_all(&o);
}

/* k_b[h][j][r] = kv_b[h*(nope+v) + r][j]; v_b[h][i][j] = kv_b[h*(nope+v) + nope + i][j]. */
static void kv_b_is_split_by_head(void **state) {
    (void)state;
    enum { n_c = 32, n_nope = 24, n_v = 20, n_head = 4 };
    struct opened o;
    open_all(&o, test_path("tests/golden/families/v3"));
    for (int layer = 0; layer < 4; layer++) {
        char name[64];
        uint16_t scratch[n_c * n_nope];
        snprintf(name, sizeof name, "model.layers.%d.self_attn.kv_b_proj.weight", layer);
        const void *kv_b = hd_checkpoint_find(o.c, name)->data;
        snprintf(name, sizeof name, "blk.%d.attn_k_b.weight", layer);
        const hd_canon_tensor *k_b = hd_canon_find(o.k, name);
        snprintf(name, sizeof name, "blk.%d.attn_v_b.weight", layer);
        const hd_canon_tensor *v_b = hd_canon_find(o.k, name);
        assert_true(k_b->ne[0] == n_nope && k_b->ne[1] == n_c && k_b->ne[2] == n_head);
        assert_true(v_b->ne[0] == n_c && v_b->ne[1] == n_v && v_b->ne[2] == n_head);
        assert_true(k_b->n_dim == 3 && v_b->n_dim == 3 && k_b->format == HD_BF16);
        for (int h = 0; h < n_head; h++) {
            size_t row0 = (size_t)h * (n_nope + n_v);
            const void *k = hd_canon_matrix(o.k, k_b, h, scratch);
            for (size_t j = 0; j < n_c; j++)
                for (size_t r = 0; r < n_nope; r++)
                    assert_int_equal(u16_at(k, j * n_nope + r), u16_at(kv_b, (row0 + r) * n_c + j));
            const void *v = hd_canon_matrix(o.k, v_b, h, NULL);
            for (size_t i = 0; i < n_v; i++)
                for (size_t j = 0; j < n_c; j++)
                    assert_int_equal(u16_at(v, i * n_c + j),
                                     u16_at(kv_b, (row0 + n_nope + i) * n_c + j));
        }
    }
    close_all(&o);
}

/* ---- the same weights in other files ---- */

struct change {            /* of a copy of the v3 checkpoint */
    const char *drop;      /* tensors whose name has this are left out */
    bool fuse_experts;     /* mlp.experts.gate_up_proj, mlp.experts.down_proj */
    const char *transpose; /* this tensor gets its shape turned round */
    const char *extra[2];  /* tensors of these names are added */
};

static void add_tensor(json_t *header, hd_buf *data, const char *name, json_t *shape,
                       size_t n_byte) {
    json_object_set_new(header, name,
                        json_pack("{s:s, s:o, s:[I, I]}", "dtype", "BF16", "shape", shape,
                                  "data_offsets", (json_int_t)data->len,
                                  (json_int_t)(data->len + n_byte)));
}

/* gate rows, then up rows, of every expert; then all down matrices */
static void add_fused(json_t *header, hd_buf *data, const hd_checkpoint *c, int layer) {
    static const char *const parts[3] = {"gate_proj", "up_proj", "down_proj"};
    char name[96];
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.gate_up_proj", layer);
    add_tensor(header, data, name, json_pack("[i, i, i]", 16, 96, 64), 16 * 96 * 64 * 2);
    for (int pass = 0; pass < 2; pass++) {
        for (int e = 0; e < 16; e++)
            for (int p = pass * 2; p < pass + 2; p++) {
                snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s.weight", layer, e,
                         parts[p]);
                const hd_file_tensor *t = hd_checkpoint_find(c, name);
                hd_buf_add(data, t->data, (size_t)t->n_byte);
            }
        if (pass) break;
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.down_proj", layer);
        add_tensor(header, data, name, json_pack("[i, i, i]", 16, 64, 48), 16 * 64 * 48 * 2);
    }
}

static void write_changed(const struct change *x) {
    hd_checkpoint *c;
    hd_buf data, file;
    json_t *header = json_object();
    const char *from = test_path("tests/golden/families/v3");
    assert_ok(hd_checkpoint_open(from, &c));
    hd_buf_init(&data, SIZE_MAX);
    hd_buf_init(&file, SIZE_MAX);
    for (size_t i = 0; i < hd_checkpoint_count(c); i++) {
        const hd_file_tensor *t = hd_checkpoint_at(c, i);
        if (x->drop && strstr(t->name, x->drop)) continue;
        if (x->fuse_experts && strstr(t->name, "mlp.experts.")) continue;
        json_t *shape = json_array();
        bool is_turned = x->transpose && strcmp(t->name, x->transpose) == 0;
        for (int d = 0; d < t->n_dim; d++)
            json_array_append_new(shape, json_integer(t->ne[is_turned ? d : t->n_dim - 1 - d]));
        add_tensor(header, &data, t->name, shape, (size_t)t->n_byte);
        hd_buf_add(&data, t->data, (size_t)t->n_byte);
    }
    for (int layer = 1; x->fuse_experts && layer < 4; layer++) add_fused(header, &data, c, layer);
    for (int i = 0; i < 2 && x->extra[i]; i++) {
        add_tensor(header, &data, x->extra[i], json_pack("[i]", 4), 8);
        hd_buf_add(&data, "\0\0\0\0\0\0\0\0", 8);
    }
    char *text = json_dumps(header, JSON_COMPACT);
    test_safetensors(&file, text, 0);
    hd_buf_add(&file, data.ptr, data.len);
    test_write_file(test_join(test_dir, "model.safetensors"), file.ptr, file.len);
    test_copy_file(test_join(from, "config.json"), test_join(test_dir, "config.json"));
    free(text);
    json_decref(header);
    hd_buf_fini(&data);
    hd_buf_fini(&file);
    hd_checkpoint_close(c);
}

/* Every matrix of every canonical tensor has the same bytes. */
static void assert_same(const struct opened *a, const struct opened *b) {
    static char x[1 << 20], y[1 << 20];
    assert_int_equal(hd_canon_count(a->k), hd_canon_count(b->k));
    for (size_t i = 0; i < hd_canon_count(a->k); i++) {
        const hd_canon_tensor *t = hd_canon_at(a->k, i), *u = hd_canon_find(b->k, t->name);
        if (!u) fail_msg("no %s", t->name);
        assert_int_equal(t->format, u->format);
        assert_int_equal(t->n_dim, u->n_dim);
        assert_memory_equal(t->ne, u->ne, sizeof t->ne);
        size_t n_byte = hd_format_bytes(t->format, (size_t)(t->ne[0] * t->ne[1]));
        for (int m = 0; m < (int)t->ne[2]; m++)
            if (memcmp(hd_canon_matrix(a->k, t, m, x), hd_canon_matrix(b->k, u, m, y), n_byte) != 0)
                fail_msg("%s: matrix %d differs", t->name, m);
    }
}

static void fused_experts_are_the_same(void **state) {
    (void)state;
    struct opened a, b;
    write_changed(&(struct change){.fuse_experts = true});
    open_all(&a, test_path("tests/golden/families/v3"));
    open_all(&b, test_dir);
    assert_true(hd_checkpoint_count(b.c) < hd_checkpoint_count(a.c));
    assert_same(&a, &b);
    for (size_t i = 0; i < hd_checkpoint_count(b.c); i++) assert_true(hd_canon_is_used(b.k, i));
    close_all(&a);
    close_all(&b);
}

static void extra_tensors_are_ignored(void **state) {
    (void)state;
    struct opened o;
    static const struct {
        const char *name;
        bool is_surplus; /* worth a warning */
    } extras[] = {
        {"model.layers.4.shared_head.norm.weight", false},
        {"model.layers.1.self_attn.rotary_emb.inv_freq", false},
        {"model.layers.1.self_attn.rotary_emb.other", true},
        {"model.vision.weight", true},
    };
    for (size_t e = 0; e < HD_COUNT_OF(extras); e++) {
        write_changed(&(struct change){.extra = {extras[e].name}});
        open_all(&o, test_dir);
        size_t n_unused = 0, n_surplus = 0;
        for (size_t i = 0; i < hd_checkpoint_count(o.c); i++) {
            n_unused += !hd_canon_is_used(o.k, i);
            n_surplus += hd_canon_is_surplus(o.k, i);
        }
        assert_int_equal(n_unused, 1);
        assert_int_equal(n_surplus, extras[e].is_surplus);
        close_all(&o);
    }
    /* a layer that predicts further tokens, which config.json does not count */
    write_changed(&(struct change){
        .extra = {"model.layers.4.input_layernorm.weight", "model.layers.4.eh_proj.weight"}});
    open_all(&o, test_dir);
    close_all(&o);
}

static void refused_as(hd_status want, const struct change *x, const char *words[]) {
    hd_checkpoint *c;
    hd_hparams hp;
    hd_canon *k;
    write_changed(x);
    assert_ok(hd_checkpoint_open(test_dir, &c));
    assert_ok(hd_hparams_read(c, &hp));
    assert_int_equal(hd_canon_new(c, &hp, &k), want);
    assert_null(k);
    for (int i = 0; words[i]; i++)
        if (!strstr(hd_error_text(), words[i]))
            fail_msg("expected \"%s\" in: %s", words[i], hd_error_text());
    hd_checkpoint_close(c);
}

static void refused(const struct change *x, const char *words[]) {
    refused_as(HD_E_CORRUPT, x, words);
}

static void missing_and_misshapen_are_named(void **state) {
    (void)state;
    struct change lm_head = {.drop = "lm_head"}, expert = {.drop = "layers.2.mlp.experts.7.up"},
                  bias = {.drop = "layers.3.mlp.gate.e_score"},
                  turned = {.transpose = "model.layers.1.self_attn.q_b_proj.weight"},
                  kv_b = {.transpose = "model.layers.0.self_attn.kv_b_proj.weight"};
    refused(&lm_head, (const char *[]){test_dir, "lm_head.weight", "[320, 64]", "no such", NULL});
    refused(&expert,
            (const char *[]){"model.layers.2.mlp.experts.7.up_proj.weight", "[48, 64]", NULL});
    refused(&bias,
            (const char *[]){"model.layers.3.mlp.gate.e_score_correction_bias", "[16]", NULL});
    refused(&turned, (const char *[]){"model.safetensors", "model.layers.1.self_attn.q_b_proj",
                                      "expected shape [160, 40]", "found [40, 160]", NULL});
    refused(&kv_b, (const char *[]){"expected shape [176, 32]", "found [32, 176]", NULL});
    struct change native = {.drop = "embed_tokens", .extra = {"embed.weight"}},
                  biased = {.extra = {"model.layers.1.self_attn.o_proj.bias"}};
    refused_as(HD_E_UNSUPPORTED, &native,
               (const char *[]){"model.safetensors", "embed.weight", "DeepSeek's own", NULL});
    refused_as(HD_E_UNSUPPORTED, &biased,
               (const char *[]){"model.safetensors", "o_proj.bias", "no such bias", NULL});
}

static void write_config(const char *from, const char *to);

/* Layers or shared experts that the file has and the configuration leaves out: another model. */
static void leftovers_are_named(void **state) {
    (void)state;
    struct change more = {.extra = {"model.layers.4.input_layernorm.weight"}};
    refused(&more, (const char *[]){test_dir, "model.layers.4.input_layernorm.weight",
                                    "expected 4 layers and no more", NULL});
    hd_checkpoint *c;
    hd_hparams hp;
    hd_canon *k;
    write_changed(&more);
    write_config("\"num_nextn_predict_layers\": 0", "\"num_nextn_predict_layers\": 1");
    assert_ok(hd_checkpoint_open(test_dir, &c)); /* one that predicts further tokens */
    assert_ok(hd_hparams_read(c, &hp));
    assert_ok(hd_canon_new(c, &hp, &k));
    hd_canon_free(k);
    hd_checkpoint_close(c);
    write_changed(&(struct change){0});
    write_config("\"n_shared_experts\": 1", "\"n_shared_experts\": 0");
    assert_ok(hd_checkpoint_open(test_dir, &c));
    assert_ok(hd_hparams_read(c, &hp));
    assert_int_equal(hd_canon_new(c, &hp, &k), HD_E_CORRUPT);
    assert_non_null(strstr(hd_error_text(), "expected no shared expert"));
    hd_checkpoint_close(c);
}

static void write_config(const char *from, const char *to) {
    size_t n;
    char *text = test_read_file(test_path("tests/golden/families/v3/config.json"), &n);
    char *at = strstr(text, from);
    assert_non_null(at);
    hd_buf b;
    hd_buf_init(&b, 1 << 20);
    hd_buf_add(&b, text, (size_t)(at - text));
    hd_buf_add_c(&b, to);
    hd_buf_add_c(&b, at + strlen(from));
    test_write_text(test_join(test_dir, "config.json"), b.ptr);
    hd_buf_fini(&b);
    free(text);
}

static void tied_output_is_not_listed(void **state) {
    (void)state;
    struct opened o;
    write_changed(&(struct change){.drop = "lm_head"});
    write_config("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
    open_all(&o, test_dir);
    assert_null(hd_canon_find(o.k, "output.weight"));
    close_all(&o);
}

/* rope_interleave false: only the rotated rows of each head, and of the key, change places. */
static void halves_of_latent_attention_become_pairs(void **state) {
    (void)state;
    enum { n_c = 32, n_nope = 24, n_rope = 16 };
    static const struct {
        const char *name, *hf;
        int first; /* rotated row of a group */
    } weights[] = {
        {"blk.1.attn_q_b.weight", "model.layers.1.self_attn.q_b_proj.weight", n_nope},
        {"blk.1.attn_kv_a_mqa.weight", "model.layers.1.self_attn.kv_a_proj_with_mqa.weight", n_c},
    };
    struct opened o;
    write_changed(&(struct change){0});
    write_config("\"rope_interleave\": true", "\"rope_interleave\": false");
    open_all(&o, test_dir);
    for (size_t w = 0; w < HD_COUNT_OF(weights); w++) {
        const hd_canon_tensor *t = hd_canon_find(o.k, weights[w].name);
        const char *file = hd_checkpoint_find(o.c, weights[w].hf)->data;
        char scratch[64 * 160 * 2];
        size_t row_bytes = hd_format_bytes(t->format, (size_t)t->ne[0]);
        const char *found = hd_canon_matrix(o.k, t, 0, scratch);
        int first = weights[w].first, group = first + n_rope;
        for (int row = 0; row < (int)t->ne[1]; row++) {
            int in_group = row % group, i = in_group - first, from = row;
            if (i >= 0) from = row - i + i % 2 * (n_rope / 2) + i / 2;
            assert_memory_equal(found + (size_t)row * row_bytes, file + (size_t)from * row_bytes,
                                row_bytes);
        }
    }
    close_all(&o);
}

/* ---- spellings of GGUF: kv_b unsplit, experts fused, bias without suffix, flat stacks ---- */

enum gguf_style { NEW_STYLE, OLD_STYLE, OLD_STYLE_Q8_0 };

static void set_keys(hd_gguf_writer *w, const hd_hparams *hp, enum gguf_style style) {
    hd_gguf_set_str(w, "general.architecture", hd_str_of("deepseek2"));
    hd_gguf_set_u32(w, "deepseek2.block_count", (uint32_t)hp->n_layer);
    hd_gguf_set_u32(w, "deepseek2.context_length", 640);
    hd_gguf_set_u32(w, "deepseek2.embedding_length", 64);
    hd_gguf_set_u32(w, "deepseek2.feed_forward_length", 160);
    hd_gguf_set_u32(w, "deepseek2.attention.head_count", 4);
    hd_gguf_set_f32(w, "deepseek2.attention.layer_norm_rms_epsilon", 1e-6f);
    hd_gguf_set_u32(w, "deepseek2.attention.q_lora_rank", 40);
    hd_gguf_set_u32(w, "deepseek2.attention.kv_lora_rank", 32);
    if (style == NEW_STYLE) {
        hd_gguf_set_u32(w, "deepseek2.attention.key_length_mla", 40);
        hd_gguf_set_u32(w, "deepseek2.attention.value_length_mla", 20);
    } else {
        hd_gguf_set_u32(w, "deepseek2.attention.key_length", 40);
        hd_gguf_set_u32(w, "deepseek2.attention.value_length", 20);
    }
    hd_gguf_set_u32(w, "deepseek2.rope.dimension_count", 16);
    hd_gguf_set_u32(w, "deepseek2.expert_count", 16);
    hd_gguf_set_u32(w, "deepseek2.expert_used_count", 4);
    hd_gguf_set_u32(w, "deepseek2.expert_shared_count", 1);
    hd_gguf_set_u32(w, "deepseek2.expert_feed_forward_length", 48);
    hd_gguf_set_u32(w, "deepseek2.leading_dense_block_count", 1);
    hd_gguf_set_u32(w, "deepseek2.expert_group_count", 4);
    hd_gguf_set_u32(w, "deepseek2.expert_group_used_count", 2);
    hd_gguf_set_u32(w, "deepseek2.vocab_size", 320);
}

struct plan { /* the same walk declares everything, then writes everything */
    bool writing;
    hd_gguf_writer *w;
};

static void declare(struct plan *p, const char *name, enum hd_format f, int n_dim,
                    const int64_t *ne) {
    if (!p->writing) hd_gguf_declare(p->w, name, f, n_dim, ne);
}

static void give(struct plan *p, const void *bytes, size_t n) {
    if (p->writing) assert_ok(hd_gguf_data(p->w, bytes, n));
}

static void old_kv_b(struct plan *p, const struct opened *o, int layer, enum gguf_style style) {
    static float x[176 * 32];
    static char q[176 * 34];
    char name[64];
    snprintf(name, sizeof name, "model.layers.%d.self_attn.kv_b_proj.weight", layer);
    const hd_file_tensor *t = hd_checkpoint_find(o->c, name);
    snprintf(name, sizeof name, "blk.%d.attn_kv_b.weight", layer);
    bool is_q8 = style == OLD_STYLE_Q8_0;
    declare(p, name, is_q8 ? HD_Q8_0 : HD_BF16, 2, t->ne);
    if (!is_q8) {
        give(p, t->data, (size_t)t->n_byte);
        return;
    }
    hd_format_get(HD_BF16)->decode(t->data, x, 176 * 32);
    hd_format_get(HD_Q8_0)->encode(x, q, 176 * 32);
    give(p, q, 176 * 34);
}

static void old_gate_up(struct plan *p, const struct opened *o, int layer) {
    char name[64];
    snprintf(name, sizeof name, "blk.%d.ffn_gate_exps.weight", layer);
    const hd_canon_tensor *gate = hd_canon_find(o->k, name);
    snprintf(name, sizeof name, "blk.%d.ffn_up_exps.weight", layer);
    const hd_canon_tensor *up = hd_canon_find(o->k, name);
    snprintf(name, sizeof name, "blk.%d.ffn_gate_up_exps.weight", layer);
    declare(p, name, HD_BF16, 3, (int64_t[]){64, 96, 16});
    for (int e = 0; e < 16; e++) {
        give(p, hd_canon_matrix(o->k, gate, e, NULL), 48 * 64 * 2);
        give(p, hd_canon_matrix(o->k, up, e, NULL), 48 * 64 * 2);
    }
}

static void put_all(struct plan *p, const struct opened *o, enum gguf_style style) {
    static char scratch[1 << 20];
    bool is_old = style != NEW_STYLE;
    for (size_t i = 0; i < hd_canon_count(o->k); i++) {
        const hd_canon_tensor *t = hd_canon_at(o->k, i);
        const char *name = t->name;
        char shorter[64];
        int layer = 0;
        if (is_old && strstr(name, "attn_v_b")) continue;
        if (is_old && strstr(name, "ffn_up_exps")) continue;
        if (strncmp(name, "blk.", 4) == 0) layer = (int)strtol(name + 4, NULL, 10);
        if (is_old && strstr(name, "attn_k_b")) {
            old_kv_b(p, o, layer, style);
            continue;
        }
        if (is_old && strstr(name, "ffn_gate_exps")) {
            old_gate_up(p, o, layer);
            continue;
        }
        if (is_old && strstr(name, "exp_probs_b")) {
            snprintf(shorter, sizeof shorter, "blk.%d.exp_probs_b", layer);
            name = shorter;
        }
        /* the new style has down experts stored flat, to see that taken */
        int64_t flat[2] = {t->ne[0], t->ne[1] * t->ne[2]};
        bool is_flat = !is_old && strstr(name, "ffn_down_exps");
        declare(p, name, t->format, is_flat ? 2 : t->n_dim, is_flat ? flat : t->ne);
        for (int m = 0; m < (int)t->ne[2]; m++)
            give(p, hd_canon_matrix(o->k, t, m, scratch),
                 hd_format_bytes(t->format, (size_t)(t->ne[0] * t->ne[1])));
    }
}

static void write_gguf(const struct opened *o, enum gguf_style style) {
    struct plan p = {0};
    assert_ok(hd_gguf_create(test_join(test_dir, "m.gguf"), &p.w));
    set_keys(p.w, &o->hp, style);
    put_all(&p, o, style);
    assert_ok(hd_gguf_begin(p.w));
    p.writing = true;
    put_all(&p, o, style);
    assert_ok(hd_gguf_finish(p.w));
}

static void gguf_in_every_style_is_the_same(void **state) {
    (void)state;
    struct opened a, b;
    open_all(&a, test_path("tests/golden/families/v3"));
    for (int style = NEW_STYLE; style <= OLD_STYLE; style++) {
        write_gguf(&a, (enum gguf_style)style);
        open_all(&b, test_join(test_dir, "m.gguf"));
        assert_same(&a, &b);
        close_all(&b);
    }
    close_all(&a);
}

/* Of a quantised kv_b the key part is handed out decoded and transposed. */
static void quantised_kv_b_is_decoded(void **state) {
    (void)state;
    struct opened a, b;
    open_all(&a, test_path("tests/golden/families/v3"));
    write_gguf(&a, OLD_STYLE_Q8_0);
    open_all(&b, test_join(test_dir, "m.gguf"));
    const hd_file_tensor *kv_b = hd_checkpoint_find(b.c, "blk.2.attn_kv_b.weight");
    const hd_canon_tensor *k_b = hd_canon_find(b.k, "blk.2.attn_k_b.weight"),
                          *v_b = hd_canon_find(b.k, "blk.2.attn_v_b.weight");
    assert_true(k_b->format == HD_F32 && v_b->format == HD_Q8_0);
    static float rows[176 * 32], k[32 * 24], v[20 * 32];
    hd_format_get(HD_Q8_0)->decode(kv_b->data, rows, 176 * 32);
    for (int h = 0; h < 4; h++) {
        const float *got = hd_canon_matrix(b.k, k_b, h, k);
        for (int j = 0; j < 32; j++)
            for (int r = 0; r < 24; r++)
                assert_true(got[j * 24 + r] == rows[(h * 44 + r) * 32 + j]);
        hd_format_get(HD_Q8_0)->decode(hd_canon_matrix(b.k, v_b, h, NULL), v, 20 * 32);
        assert_memory_equal(v, rows + (h * 44 + 24) * 32, sizeof v);
    }
    close_all(&a);
    close_all(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hf_names_are_translated),
        cmocka_unit_test(kv_b_is_split_by_head),
        cmocka_unit_test_setup_teardown(fused_experts_are_the_same, test_dir_make, test_dir_remove),
        cmocka_unit_test_setup_teardown(extra_tensors_are_ignored, test_dir_make, test_dir_remove),
        cmocka_unit_test_setup_teardown(missing_and_misshapen_are_named, test_dir_make,
                                        test_dir_remove),
        cmocka_unit_test_setup_teardown(leftovers_are_named, test_dir_make, test_dir_remove),
        cmocka_unit_test_setup_teardown(tied_output_is_not_listed, test_dir_make, test_dir_remove),
        cmocka_unit_test_setup_teardown(halves_of_latent_attention_become_pairs, test_dir_make,
                                        test_dir_remove),
        cmocka_unit_test_setup_teardown(gguf_in_every_style_is_the_same, test_dir_make,
                                        test_dir_remove),
        cmocka_unit_test_setup_teardown(quantised_kv_b_is_decoded, test_dir_make, test_dir_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
