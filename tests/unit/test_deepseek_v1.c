/* deepseek (DeepSeekMoE 16B, arXiv 2401.06066) against its published formula: a small random model
 * is written as a Hugging Face folder, and its logits are computed here once more in plain double
 * precision, with rotated halves as such folders have them. Then the same bits from every split,
 * and from the GGUF made of the folder. */
#include "support/canon.h"
#include "support/check.h"
#include "support/files.h"

#include "base/mem.h"
#include "model/export.h"
#include "model/score.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { V = 40, D = 32, H = 4, H_KV = 2, HEAD = 8, F = 48, E = 6, USED = 2, FE = 16, LAYERS = 3 };
enum { N = 23 };

static char *dir;

/* ---- weights ---- */

struct tensor {
    char name[96];
    int n_out, n_in; /* n_in 1: a vector */
    float *w;
};
static struct tensor tensors[256];
static int n_tensor;

static uint64_t seed = 5;
static float uniform(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(seed >> 11) / 4503599627370496.0 - 1);
}

static void add(const char *name, int n_out, int n_in) {
    struct tensor *t = &tensors[n_tensor++];
    snprintf(t->name, sizeof t->name, "%s", name);
    t->n_out = n_out, t->n_in = n_in;
    t->w = malloc((size_t)(n_out * n_in) * sizeof *t->w);
    for (int i = 0; i < n_out * n_in; i++)
        t->w[i] = n_in == 1 ? 1 + 0.3f * uniform() : uniform() * 2.5f / sqrtf((float)n_in);
}

static void add_mlp(const char *prefix, int width) {
    static const char *const parts[3] = {"gate_proj", "up_proj", "down_proj"};
    for (int p = 0; p < 3; p++) {
        char name[96];
        snprintf(name, sizeof name, "%s.%s.weight", prefix, parts[p]);
        add(name, p == 2 ? D : width, p == 2 ? width : D);
    }
}

static void add_layer(int layer) {
    static const struct {
        const char *name;
        int n_out, n_in;
    } own[] = {{"input_layernorm", D, 1},
               {"self_attn.q_proj", H * HEAD, D},
               {"self_attn.k_proj", H_KV * HEAD, D},
               {"self_attn.v_proj", H_KV * HEAD, D},
               {"self_attn.o_proj", D, H * HEAD},
               {"post_attention_layernorm", D, 1}};
    char name[96];
    for (size_t i = 0; i < HD_COUNT_OF(own); i++) {
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, own[i].name);
        add(name, own[i].n_out, own[i].n_in);
    }
    snprintf(name, sizeof name, "model.layers.%d.mlp", layer);
    if (layer == 0) {
        add_mlp(name, F);
        return;
    }
    snprintf(name, sizeof name, "model.layers.%d.mlp.gate.weight", layer);
    add(name, E, D);
    snprintf(name, sizeof name, "model.layers.%d.mlp.shared_experts", layer);
    add_mlp(name, 2 * FE);
    for (int e = 0; e < E; e++) {
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d", layer, e);
        add_mlp(name, FE);
    }
}

static void write_folder(bool is_normalised) {
    hd_buf header, file;
    size_t at = 0;
    hd_buf_init(&header, SIZE_MAX);
    hd_buf_init(&file, SIZE_MAX);
    for (int i = 0; i < n_tensor; i++) {
        const struct tensor *t = &tensors[i];
        size_t n = (size_t)(t->n_out * t->n_in) * sizeof(float);
        char shape[32];
        snprintf(shape, sizeof shape, t->n_in == 1 ? "%d" : "%d,%d", t->n_out, t->n_in);
        hd_buf_addf(&header,
                    "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                    i ? "," : "{", t->name, shape, at, at + n);
        at += n;
    }
    hd_buf_add_c(&header, "}");
    test_safetensors(&file, header.ptr, 0);
    for (int i = 0; i < n_tensor; i++)
        hd_buf_add(&file, tensors[i].w,
                   (size_t)(tensors[i].n_out * tensors[i].n_in) * sizeof(float));
    test_write_file(test_join(dir, "model.safetensors"), file.ptr, file.len);
    hd_buf_fini(&header);
    hd_buf_fini(&file);
    char config[1024];
    snprintf(config, sizeof config,
             "{\"model_type\":\"deepseek\",\"vocab_size\":%d,\"hidden_size\":%d,"
             "\"intermediate_size\":%d,\"moe_intermediate_size\":%d,\"num_hidden_layers\":%d,"
             "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"n_shared_experts\":2,"
             "\"n_routed_experts\":%d,\"num_experts_per_tok\":%d,\"moe_layer_freq\":1,"
             "\"first_k_dense_replace\":1,\"norm_topk_prob\":%s,\"scoring_func\":\"softmax\","
             "\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,\"max_position_embeddings\":64,"
             "\"hidden_act\":\"silu\",\"attention_bias\":false,\"tie_word_embeddings\":false}",
             V, D, F, FE, LAYERS, H, H_KV, E, USED, is_normalised ? "true" : "false");
    test_write_text(test_join(dir, "config.json"), config);
}

static int set_up(void **state) {
    (void)state;
    dir = test_temp_dir();
    add("model.embed_tokens.weight", V, D);
    for (int layer = 0; layer < LAYERS; layer++) add_layer(layer);
    add("model.norm.weight", D, 1);
    add("lm_head.weight", V, D);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    for (int i = 0; i < n_tensor; i++) free(tensors[i].w);
    n_tensor = 0;
    test_remove_dir(dir);
    return 0;
}

/* ---- the formula ---- */

static const struct tensor *find(const char *prefix, const char *name) {
    char all[128];
    snprintf(all, sizeof all, "%s%s.weight", prefix, name);
    for (int i = 0; i < n_tensor; i++)
        if (strcmp(tensors[i].name, all) == 0) return &tensors[i];
    fail_msg("no %s", all);
    return NULL;
}

static void multiply(const struct tensor *t, const double *x, double *y) {
    for (int o = 0; o < t->n_out; o++) {
        y[o] = 0;
        for (int i = 0; i < t->n_in; i++) y[o] += (double)t->w[o * t->n_in + i] * x[i];
    }
}

static void norm(const struct tensor *t, const double *x, double *y) {
    double mean = 0;
    for (int i = 0; i < D; i++) mean += x[i] * x[i] / D;
    for (int i = 0; i < D; i++) y[i] = (double)t->w[i] * x[i] / sqrt(mean + 1e-6);
}

static void rotate(double *head, int pos) {
    for (int i = 0; i < HEAD / 2; i++) {
        double angle = pos * pow(10000, -2.0 * i / HEAD), a = head[i], b = head[i + HEAD / 2];
        head[i] = a * cos(angle) - b * sin(angle);
        head[i + HEAD / 2] = b * cos(angle) + a * sin(angle);
    }
}

static void attend(const char *layer, double x[N][D]) {
    static double q[N][H * HEAD], k[N][H_KV * HEAD], v[N][H_KV * HEAD];
    for (int t = 0; t < N; t++) {
        double n[D], out[H * HEAD] = {0}, add[D];
        norm(find(layer, "input_layernorm"), x[t], n);
        multiply(find(layer, "self_attn.q_proj"), n, q[t]);
        multiply(find(layer, "self_attn.k_proj"), n, k[t]);
        multiply(find(layer, "self_attn.v_proj"), n, v[t]);
        for (int h = 0; h < H; h++) rotate(q[t] + h * HEAD, t);
        for (int h = 0; h < H_KV; h++) rotate(k[t] + h * HEAD, t);
        for (int h = 0; h < H; h++) {
            int kv = h / (H / H_KV) * HEAD;
            double p[N], sum = 0;
            for (int s = 0; s <= t; s++) {
                p[s] = 0;
                for (int i = 0; i < HEAD; i++) p[s] += q[t][h * HEAD + i] * k[s][kv + i];
                p[s] = exp(p[s] / sqrt(HEAD));
                sum += p[s];
            }
            for (int s = 0; s <= t; s++)
                for (int i = 0; i < HEAD; i++) out[h * HEAD + i] += p[s] / sum * v[s][kv + i];
        }
        multiply(find(layer, "self_attn.o_proj"), out, add);
        for (int i = 0; i < D; i++) x[t][i] += add[i];
    }
}

/* x += weight * mlp(n) */
static void add_of_mlp(const char *prefix, const double *n, double weight, double *x) {
    double gate[F], up[F], out[D];
    multiply(find(prefix, ".gate_proj"), n, gate);
    multiply(find(prefix, ".up_proj"), n, up);
    int width = find(prefix, ".up_proj")->n_out;
    for (int i = 0; i < width; i++) gate[i] *= up[i] / (1 + exp(-gate[i]));
    multiply(find(prefix, ".down_proj"), gate, out);
    for (int i = 0; i < D; i++) x[i] += weight * out[i];
}

static void mix_experts(const char *mlp, const double *n, bool is_normalised, double *x) {
    double p[E], sum = 0, of_best = 0;
    int best[USED];
    char name[96];
    multiply(find(mlp, ".gate"), n, p);
    for (int e = 0; e < E; e++) sum += p[e] = exp(p[e]);
    for (int e = 0; e < E; e++) p[e] /= sum;
    for (int u = 0; u < USED; u++) {
        best[u] = -1;
        for (int e = 0; e < E; e++)
            if ((u == 0 || e != best[0]) && (best[u] < 0 || p[e] > p[best[u]])) best[u] = e;
        of_best += p[best[u]];
    }
    for (int u = 0; u < USED; u++) {
        snprintf(name, sizeof name, "%s.experts.%d", mlp, best[u]);
        add_of_mlp(name, n, is_normalised ? p[best[u]] / of_best : p[best[u]], x);
    }
    snprintf(name, sizeof name, "%s.shared_experts", mlp);
    add_of_mlp(name, n, 1, x);
}

static void expected_logits(const int32_t *id, bool is_normalised, double logits[N][V]) {
    static double x[N][D];
    for (int t = 0; t < N; t++)
        for (int i = 0; i < D; i++)
            x[t][i] = (double)find("model.embed_tokens", "")->w[id[t] * D + i];
    for (int layer = 0; layer < LAYERS; layer++) {
        char prefix[32], mlp[48];
        snprintf(prefix, sizeof prefix, "model.layers.%d.", layer);
        snprintf(mlp, sizeof mlp, "%smlp", prefix);
        attend(prefix, x);
        for (int t = 0; t < N; t++) {
            double n[D];
            norm(find(prefix, "post_attention_layernorm"), x[t], n);
            if (layer == 0)
                add_of_mlp(mlp, n, 1, x[t]);
            else
                mix_experts(mlp, n, is_normalised, x[t]);
        }
    }
    for (int t = 0; t < N; t++) {
        double n[D];
        norm(find("model.norm", ""), x[t], n);
        multiply(find("lm_head", ""), n, logits[t]);
    }
}

/* ---- the model ---- */

static void keep(void *user, int seq, int pos, const float *logits) {
    (void)seq;
    memcpy((float *)user + (size_t)pos * V, logits, V * sizeof *logits);
}

static void found_logits(const char *path, const char *backend, const int32_t *id, int first,
                         float logits[N][V]) {
    hd_model_options o = {.n_row_max = N,
                          .n_seq_max = 1,
                          .n_out_max = N,
                          .n_pos_max = 32,
                          .n_page = 9,
                          .page_tok = 4,
                          .kv_type = HD_KV_F32};
    hd_checkpoint *c;
    hd_dev dev;
    hd_model *m;
    assert_ok(hd_checkpoint_open(path, &c));
    assert_ok(hd_dev_open(backend, NULL, &dev));
    assert_ok(hd_model_open(c, &dev, &o, NULL, NULL, &m));
    assert_string_equal(hd_model_hparams(m)->arch, "deepseek");
    hd_scorer *s = hd_scorer_new(m, &o, (uint64_t)first + 1);
    hd_score_spec spec = {.token = id, .n_tok = N, .n_tok_max = N};
    assert_int_equal(hd_scorer_add(s, &spec), 0);
    hd_scorer_step(s, first, keep, logits);
    while (hd_scorer_step(s, 0, keep, logits) > 0) continue;
    hd_scorer_free(s);
    hd_model_close(m);
    hd_dev_close(&dev);
    hd_checkpoint_close(c);
}

static void write_gguf(const char *path) {
    struct opened o;
    open_all(&o, dir);
    for (size_t i = 0; i < hd_checkpoint_count(o.c); i++) assert_true(hd_canon_is_used(o.k, i));
    assert_ok(export_as(&o, HD_EXPORT_AUTO, path, NULL));
    close_all(&o);
}

static void check(const char *backend, bool is_normalised) {
    static double expected[N][V];
    static float found[N][V], other[N][V];
    int32_t id[N];
    for (int t = 0; t < N; t++) id[t] = (t * 17 + 5) % V;
    write_folder(is_normalised);
    expected_logits(id, is_normalised, expected);
    found_logits(dir, backend, id, 0, found);
    double square = 0, worst = 0;
    for (int i = 0; i < N * V; i++) square += pow(expected[i / V][i % V], 2) / (N * V);
    for (int i = 0; i < N * V; i++)
        worst = fmax(worst, fabs((double)found[i / V][i % V] - expected[i / V][i % V]));
    print_message("%s: largest logit error %.2g of %.2g\n", backend, worst, sqrt(square));
    assert_true(worst < 1e-5 * sqrt(square) && sqrt(square) > 0.5);
    for (int first = 1; first < N; first++) {
        found_logits(dir, backend, id, first, other);
        assert_memory_equal(other, found, sizeof found);
    }
    write_gguf(test_join(dir, "m.gguf"));
    found_logits(test_join(dir, "m.gguf"), backend, id, 0, other);
    assert_memory_equal(other, found, sizeof found);
}

static void logits_are_the_formulas(void **state) {
    (void)state;
    for (int is_normalised = 0; is_normalised < 2; is_normalised++) {
        check("ref", is_normalised);
        check("cpu", is_normalised);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(logits_are_the_formulas, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
