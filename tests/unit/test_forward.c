/* The forward pass against reference logits of small random models (tests/golden/families), and the
 * promise of determinism: whatever is computed together, in whatever pieces, gives the same bits.
 */
#include "support/backend.h"
#include "support/check.h"
#include "support/cut_layers.h"

#include "model/score.h"

#include <dirent.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Largest logit error over the reference's standard deviation, by backend. */
static struct {
    const char *backend;
    double bound;
} backends[] = {{"ref", 1e-4}, {"cpu", 1e-4}};
/* Mean error of a family's negative log-likelihoods where products round to BF16. */
static const double rounded_bound = 0.15;

/* With HADAL_TEST_BACKEND all of this is about that one; without its device there is nothing to do.
 */
static void choose_backend(void) {
    const char *name = test_backend();
    test_need_backend();
    if (name) backends[0].backend = backends[1].backend = name;
}

/* Every folder of tests/golden/families, by name. */
enum { FAMILY_MAX = 32 };
static char family_names[FAMILY_MAX][64];
static int n_family;

static int list_families(void **state) {
    (void)state;
    choose_backend();
    DIR *d = opendir(test_path("tests/golden/families"));
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (strchr(e->d_name, '.')) continue; /* README.md, . and .. */
        assert_true(n_family < FAMILY_MAX);
        snprintf(family_names[n_family++], sizeof family_names[0], "%.63s", e->d_name);
    }
    closedir(d);
    return 0;
}

/* ---- a model, and logits of one sequence ---- */

typedef struct loaded {
    hd_checkpoint *checkpoint;
    hd_dev dev;
    hd_model_options opt;
    hd_model *model;
    int n_vocab;
} loaded;

static hd_status try_family(const char *backend, const char *family, enum hd_kv_type kv_type,
                            loaded *out) {
    loaded l = {.opt = {.n_row_max = 96,
                        .n_seq_max = 9,
                        .n_out_max = 96,
                        .n_pos_max = 300,
                        .n_page = 70,
                        .page_tok = 16,
                        .kv_type = kv_type}};
    char path[128];
    snprintf(path, sizeof path, "tests/golden/families/%s", family);
    assert_ok(hd_checkpoint_open(test_path(path), &l.checkpoint));
    const hd_dev_config config = test_dev_config();
    assert_ok(hd_dev_open(backend, &config, &l.dev));
    hd_hparams hp;
    assert_ok(hd_hparams_read(l.checkpoint, &hp));
    if (hp.n_ctx < l.opt.n_pos_max) l.opt.n_pos_max = hp.n_ctx;
    hd_status opened = hd_model_open(l.checkpoint, &l.dev, &l.opt, NULL, NULL, &l.model);
    if (opened == HD_OK) l.n_vocab = hd_model_hparams(l.model)->n_vocab;
    *out = l;
    return opened;
}
static loaded open_family(const char *backend, const char *family, enum hd_kv_type kv_type) {
    loaded l;
    assert_ok(try_family(backend, family, kv_type, &l));
    return l;
}
/* Forms of attention that give different bits: latent attention has two. */
static int n_forms(const loaded *l) {
    return hd_hparams_is_mla(hd_model_hparams(l->model)) ? 2 : 1;
}

static void close_family(loaded *l) {
    hd_model_close(l->model);
    hd_dev_close(&l->dev);
    hd_checkpoint_close(l->checkpoint);
}

/* Families in a format that a chosen backend does not read are left out, with the reason. */
static int set_up(void **state) {
    list_families(state);
    int n = n_family;
    n_family = 0;
    for (int i = 0; i < n; i++) {
        loaded l;
        hd_status s = try_family(backends[0].backend, family_names[i], HD_KV_F32, &l);
        close_family(&l);
        if (s == HD_E_UNSUPPORTED && test_backend()) {
            print_message("%s skipped: %s\n", family_names[i], hd_error_text());
            continue;
        }
        assert_int_equal(s, HD_OK);
        memmove(family_names[n_family++], family_names[i], sizeof family_names[0]);
    }
    return 0;
}

struct sink {
    float *logits[9]; /* [n_tok, n_vocab] by sequence */
    int n_vocab;
};
static void keep_logits(void *user, int seq, int pos, const float *logits) {
    struct sink *s = user;
    memcpy(s->logits[seq] + (size_t)pos * (size_t)s->n_vocab, logits,
           (size_t)s->n_vocab * sizeof *logits);
}

typedef struct way {
    int form, first_chunk, chunk; /* chunks: 0 is whole */
    uint64_t seed;                /* order of pages */
} way;

/* [n, n_vocab] on the heap. */
static float *logits_of(loaded *l, const int32_t *id, int n, way w) {
    float *out = malloc((size_t)n * (size_t)l->n_vocab * sizeof *out);
    struct sink sink = {.logits = {out}, .n_vocab = l->n_vocab};
    hd_scorer *s = hd_scorer_new(l->model, &l->opt, w.seed);
    hd_score_spec spec = {.token = id,
                          .n_tok = n,
                          .n_tok_max = n,
                          .form = (enum hd_mla_form)w.form,
                          .next_form = (enum hd_mla_form)w.form};
    assert_int_equal(hd_scorer_add(s, &spec), 0);
    hd_scorer_step(s, w.first_chunk, keep_logits, &sink);
    while (hd_scorer_step(s, w.chunk, keep_logits, &sink) > 0) continue;
    hd_scorer_free(s);
    return out;
}

/* ---- reference cases ---- */

static json_t *read_cases(const char *family) {
    char path[128];
    snprintf(path, sizeof path, "tests/golden/families/%s/cases.json", family);
    json_error_t error;
    json_t *root = json_load_file(test_path(path), 0, &error);
    if (!root) fail_msg("%s: %s", path, error.text);
    return root;
}
static int32_t *read_ids(const json_t *a, int *n) {
    *n = (int)json_array_size(a);
    int32_t *id = malloc((size_t)(*n + 1) * sizeof *id);
    for (int i = 0; i < *n; i++) id[i] = (int32_t)json_integer_value(json_array_get(a, (size_t)i));
    return id;
}

static int arg_max(const float *p, int n, double *margin) {
    int best = 0;
    for (int i = 1; i < n; i++)
        if (p[i] > p[best]) best = i;
    *margin = INFINITY;
    for (int i = 0; i < n; i++)
        if (i != best) *margin = fmin(*margin, (double)(p[best] - p[i]));
    return best;
}
static double nll_of(const float *p, int n, int token) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += exp((double)p[i] - (double)p[token]);
    return log(sum);
}
static double standard_deviation(const json_t *logits) {
    double n = (double)json_array_size(logits), sum = 0, square = 0;
    size_t i;
    const json_t *v;
    json_array_foreach(logits, i, v) {
        sum += json_number_value(v);
        square += json_number_value(v) * json_number_value(v);
    }
    return sqrt(square / n - sum / n * (sum / n));
}

/* Rounding to BF16 turns ties of a router, and one position's logits with them: the mean over a
 * family's positions is bounded (docs/precision.md). */
static struct {
    double sum;
    int n;
} rounded;

static void add_errors(const loaded *l, const json_t *c, const float *p, const int32_t *id, int n) {
    for (int pos = 0; pos + 1 < n; pos++) {
        const float *row = p + (size_t)pos * (size_t)l->n_vocab;
        double want = json_number_value(json_array_get(json_object_get(c, "nll"), (size_t)pos));
        double error = fabs(nll_of(row, l->n_vocab, id[pos + 1]) - want);
        if (!isfinite(error)) fail_msg("%d tokens, position %d: not a number", n, pos);
        rounded.sum += error;
        rounded.n++;
    }
}

static void check_errors(const char *family) {
    if (rounded.n == 0) return;
    double mean = rounded.sum / rounded.n;
    print_message("%s: mean error of the nll %.2g over %d positions\n", family, mean, rounded.n);
    if (mean > rounded_bound) fail_msg("%s: mean error of the nll %g", family, mean);
    rounded.sum = 0, rounded.n = 0;
}

/* Last logits, arg-max and nll of every position. Returns the largest error over the std. */
static double check_case(loaded *l, const json_t *c, way w, double bound) {
    int n;
    int32_t *id = read_ids(json_object_get(c, "ids"), &n);
    float *p = logits_of(l, id, n, w);
    if (test_bound(0, 1) > 0) {
        add_errors(l, c, p, id, n);
        free(p);
        free(id);
        return 0;
    }
    const float *last = p + (size_t)(n - 1) * (size_t)l->n_vocab;
    const json_t *logits = json_object_get(c, "last_logits");
    double std = standard_deviation(logits), worst = 0, margin;
    for (int i = 0; i < l->n_vocab; i++) {
        double want = json_number_value(json_array_get(logits, (size_t)i));
        double error = fabs((double)last[i] - want) / std;
        if (!(error <= bound))
            fail_msg("%d tokens, logit %d: expected %g, found %g", n, i, want, (double)last[i]);
        worst = fmax(worst, error);
    }
    for (int pos = 0; pos < n; pos++) {
        const float *row = p + (size_t)pos * (size_t)l->n_vocab;
        const json_t *top1 = json_array_get(json_object_get(c, "top1"), (size_t)pos);
        if (arg_max(row, l->n_vocab, &margin) != json_integer_value(top1) &&
            margin > 2 * bound * std)
            fail_msg("%d tokens, position %d: arg-max differs by %g", n, pos, margin);
        if (pos + 1 == n) continue;
        double want = json_number_value(json_array_get(json_object_get(c, "nll"), (size_t)pos));
        double found = nll_of(row, l->n_vocab, id[pos + 1]);
        if (!(fabs(found - want) <= 2 * bound * std))
            fail_msg("%d tokens, position %d: nll expected %g, found %g", n, pos, want, found);
    }
    free(p);
    free(id);
    return worst;
}

/* The greedy continuation, token by token after the prompt. */
static void check_greedy(loaded *l, const json_t *c, way w, double bound) {
    int n, n_greedy;
    int32_t *id = read_ids(json_object_get(c, "ids"), &n);
    int32_t *greedy = read_ids(json_object_get(c, "greedy"), &n_greedy);
    double std = standard_deviation(json_object_get(c, "last_logits")), margin;
    id = realloc(id, (size_t)(n + n_greedy) * sizeof *id);
    for (int k = 0; k < n_greedy; k++) {
        float *p = logits_of(l, id, n + k, w);
        int token = arg_max(p + (size_t)(n + k - 1) * (size_t)l->n_vocab, l->n_vocab, &margin);
        if (token != greedy[k] && margin > 2 * bound * std)
            fail_msg("%d tokens, greedy %d: expected %d, found %d", n, k, greedy[k], token);
        free(p);
        id[n + k] = greedy[k];
    }
    free(id);
    free(greedy);
}

static void families_match_the_reference(void **state) {
    (void)state;
    assert_true(n_family >= 8);
    const way ways[] = {{HD_MLA_ABSORBED, 0, 0, 1}, {HD_MLA_EXPANDED, 0, 0, 2}};
    for (size_t b = 0; b < HD_COUNT_OF(backends); b++)
        for (int f = 0; f < n_family; f++) {
            loaded l = open_family(backends[b].backend, family_names[f], HD_KV_F32);
            json_t *root = read_cases(family_names[f]);
            double worst = 0;
            size_t i;
            const json_t *c;
            json_array_foreach(json_object_get(root, "cases"), i, c) {
                for (size_t w = 0; w < (size_t)n_forms(&l); w++) {
                    worst = fmax(worst, check_case(&l, c, ways[w], backends[b].bound));
                    if (json_object_get(c, "greedy") && test_bound(1, 0) > 0)
                        check_greedy(&l, c, ways[w], backends[b].bound);
                }
            }
            assert_true(i >= 4);
            check_errors(family_names[f]);
            print_message("%s, %s: largest logit error / std %.2g\n", backends[b].backend,
                          family_names[f], worst);
            json_decref(root);
            close_family(&l);
        }
}

/* ---- the same bits ---- */

static int32_t *random_ids(int n, uint64_t seed) {
    int32_t *id = malloc((size_t)n * sizeof *id);
    for (int i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        id[i] = (int32_t)(seed >> 40) % 200; /* the smallest vocabulary's */
    }
    return id;
}

static void assert_same_bits(const loaded *l, const float *a, const float *b, int n,
                             const char *what, int which) {
    if (memcmp(a, b, (size_t)n * (size_t)l->n_vocab * sizeof *a) == 0) return;
    for (int i = 0; i < n * l->n_vocab; i++)
        if (memcmp(a + i, b + i, sizeof *a) != 0)
            fail_msg("%s %d: position %d, logit %d: %.9g and %.9g", what, which, i / l->n_vocab,
                     i % l->n_vocab, (double)a[i], (double)b[i]);
}

static void every_split_gives_the_same_bits(void **state) {
    (void)state;
    const enum hd_kv_type types[] = {HD_KV_F32, HD_KV_BF16, HD_KV_F16, HD_KV_FP8, HD_KV_INT8};
    int32_t *id = random_ids(90, 7);
    for (size_t c = 0; c < HD_COUNT_OF(backends) * (size_t)n_family; c++) {
        const char *family = family_names[c / 2];
        bool has_all = strcmp(family, "v3-yarn-mscale-pair") == 0 || strcmp(family, "llama") == 0;
        for (size_t f = 0; f < (has_all ? HD_COUNT_OF(types) : 1); f++) {
            loaded l = open_family(backends[c % 2].backend, family, types[f]);
            for (int form = HD_MLA_ABSORBED; form < n_forms(&l); form++) {
                float *whole = logits_of(&l, id, 90, (way){form, 0, 0, 1});
                int stride = types[f] == HD_KV_F32 ? 1 : 9; /* the type is read back either way */
                for (int first = 1; first < 40; first += stride) {
                    float *split = logits_of(&l, id, 40, (way){form, first, 0, (uint64_t)first});
                    assert_same_bits(&l, split, whole, 40, "split after", first);
                    free(split);
                }
                for (int chunk = 1; chunk < 35; chunk += 11) { /* 1, 12, 23, 34 */
                    float *split = logits_of(&l, id, 90, (way){form, chunk, chunk, 5});
                    assert_same_bits(&l, split, whole, 90, "chunks of", chunk);
                    free(split);
                }
                free(whole);
            }
            close_family(&l);
        }
    }
    free(id);
}

/* A step may have some of the layers; the residual stream is kept between two. */
static void layers_in_several_steps_give_the_same_bits(void **state) {
    (void)state;
    enum { N_TOK = 120 }; /* two chunks */
    int32_t *id = random_ids(N_TOK, 9);
    for (size_t c = 0; c < HD_COUNT_OF(backends) * (size_t)n_family; c++) {
        loaded l = open_family(backends[c % 2].backend, family_names[c / 2], HD_KV_F32);
        float *cut = malloc((size_t)N_TOK * (size_t)l.n_vocab * sizeof *cut);
        assert_true(hd_model_hparams(l.model)->n_layer > 1);
        for (int form = HD_MLA_ABSORBED; form < n_forms(&l); form++) {
            float *whole = logits_of(&l, id, N_TOK, (way){form, 0, 0, 1});
            for (int each = 1; each < hd_model_hparams(l.model)->n_layer; each++) {
                const hd_score_spec what = {
                    .token = id, .n_tok = N_TOK, .form = (enum hd_mla_form)form};
                assert_ok(test_cut_layers(l.model, &l.opt, &what, each, cut));
                assert_same_bits(&l, cut, whole, N_TOK, "layers a step", each);
            }
            free(whole);
        }
        free(cut);
        close_family(&l);
    }
    free(id);
}

/* Grouped-query attention has no forms: what a position records of one changes nothing. */
static void the_form_is_of_latent_attention_alone(void **state) {
    (void)state;
    int32_t *id = random_ids(40, 8);
    for (size_t b = 0; b < HD_COUNT_OF(backends); b++) {
        loaded l = open_family(backends[b].backend, "llama", HD_KV_F32);
        float *x = logits_of(&l, id, 40, (way){HD_MLA_ABSORBED, 0, 0, 1});
        float *y = logits_of(&l, id, 40, (way){HD_MLA_EXPANDED, 0, 0, 2});
        assert_same_bits(&l, x, y, 40, "form", HD_MLA_EXPANDED);
        free(x);
        free(y);
        close_family(&l);
    }
    free(id);
}

/* Many sequences at once, of awkward lengths and in both forms, over scattered pages. */
static void a_ragged_batch_equals_each_alone(void **state) {
    (void)state;
    static const int n_tok[9] = {1, 16, 64, 128, 256, 15, 17, 33, 2};
    static const char *const families[] = {"v3", "llama3-scaling"};
    for (size_t b = 0; b < HD_COUNT_OF(backends) * HD_COUNT_OF(families); b++) {
        loaded l = open_family(backends[b % 2].backend, families[b / 2], HD_KV_BF16);
        for (int chunk = 0; chunk <= 13; chunk += 13) {
            hd_scorer *s = hd_scorer_new(l.model, &l.opt, 11);
            struct sink together = {.n_vocab = l.n_vocab};
            int32_t *id[9];
            for (int i = 0; i < 9; i++) {
                id[i] = random_ids(n_tok[i], (uint64_t)i + 1);
                together.logits[i] = malloc((size_t)n_tok[i] * (size_t)l.n_vocab * sizeof(float));
                hd_score_spec spec = {.token = id[i],
                                      .n_tok = n_tok[i],
                                      .n_tok_max = n_tok[i],
                                      .form = (enum hd_mla_form)(i % 2)};
                assert_int_equal(hd_scorer_add(s, &spec), i);
            }
            while (hd_scorer_step(s, chunk, keep_logits, &together) > 0) continue;
            hd_scorer_free(s);
            for (int i = 0; i < 9; i++) {
                float *alone = logits_of(&l, id[i], n_tok[i], (way){i % 2, 0, 0, 3});
                assert_same_bits(&l, together.logits[i], alone, n_tok[i], "sequence", i);
                free(alone);
                free(together.logits[i]);
                free(id[i]);
            }
        }
        close_family(&l);
    }
}

/* A page's remainder may hold anything: positions that no row has must not be read. */
static void stale_cache_rows_are_not_read(void **state) {
    (void)state;
    static const char *const families[] = {"v3", "llama3-scaling"};
    for (size_t b = 0; b < HD_COUNT_OF(backends) * HD_COUNT_OF(families); b++) {
        loaded l = open_family(backends[b % 2].backend, families[b / 2], HD_KV_F32);
        int32_t *id = random_ids(70, 3), *other = random_ids(256, 4);
        float *fresh = logits_of(&l, id, 70, (way){HD_MLA_EXPANDED, 0, 0, 1});
        for (uint64_t seed = 1; seed < 5; seed++) /* fills most pages with another sequence */
            free(logits_of(&l, other, 256, (way){HD_MLA_ABSORBED, 0, 0, seed}));
        float *again = logits_of(&l, id, 70, (way){HD_MLA_EXPANDED, 0, 0, 9});
        assert_same_bits(&l, again, fresh, 70, "after", 0);
        free(fresh);
        free(again);
        free(id);
        free(other);
        close_family(&l);
    }
}

/* ---- opening ---- */

static bool lacks_bf16_experts(void *ctx, enum hd_op op, enum hd_format f) {
    (void)ctx;
    return !(op == HD_OP_moe && f == HD_BF16);
}
static bool lacks_f16_cache(void *ctx, enum hd_kv_type t) {
    (void)ctx;
    return t != HD_KV_F16;
}

static int n_prepared;
static hd_status prepare_until_the_fifth(void *ctx, hd_weight *w) {
    (void)ctx;
    if (n_prepared == 4) return HD_FAIL(NO_MEMORY, "no room for %s", w->name);
    n_prepared++;
    w->prepared = w;
    return HD_OK;
}
static void release_one(void *ctx, hd_weight *w) {
    (void)ctx;
    assert_ptr_equal(w->prepared, w);
    n_prepared--;
}

static void assert_error_has(const char *part) {
    if (!strstr(hd_error_text(), part)) fail_msg("no \"%s\" in: %s", part, hd_error_text());
}

static void a_missing_format_is_named_at_load(void **state) {
    (void)state;
    loaded l = open_family("ref", "v3", HD_KV_F32);
    hd_dev_ops ops = *l.dev.ops;
    hd_dev dev = {.ops = &ops, .ctx = l.dev.ctx};
    hd_model *m;
    ops.supports = lacks_bf16_experts;
    assert_int_equal(hd_model_open(l.checkpoint, &dev, &l.opt, NULL, NULL, &m), HD_E_UNSUPPORTED);
    assert_error_has("moe");
    assert_error_has("blk.1.ffn_gate_exps.weight");
    assert_error_has("BF16");
    assert_error_has("ref");
    assert_null(m);
    ops.supports = l.dev.ops->supports;
    ops.supports_kv = lacks_f16_cache;
    l.opt.kv_type = HD_KV_F16;
    assert_int_equal(hd_model_open(l.checkpoint, &dev, &l.opt, NULL, NULL, &m), HD_E_UNSUPPORTED);
    assert_error_has("KV");
    close_family(&l);
}

static void a_failed_prepare_releases_what_was_prepared(void **state) {
    (void)state;
    loaded l = open_family("ref", "v3", HD_KV_F32);
    hd_dev_ops ops = *l.dev.ops;
    hd_dev dev = {.ops = &ops, .ctx = l.dev.ctx};
    ops.prepare = prepare_until_the_fifth;
    ops.release = release_one;
    hd_model *m;
    assert_int_equal(hd_model_open(l.checkpoint, &dev, &l.opt, NULL, NULL, &m), HD_E_NO_MEMORY);
    assert_int_equal(n_prepared, 0);
    close_family(&l);
}

static void impossible_options_are_refused(void **state) {
    (void)state;
    loaded l = open_family("ref", "v3", HD_KV_F32);
    hd_model *m;
    hd_model_options o = l.opt;
    o.n_pos_max = 641; /* the model has 640 positions */
    assert_int_equal(hd_model_open(l.checkpoint, &l.dev, &o, NULL, NULL, &m), HD_E_CONTEXT);
    assert_error_has("641");
    o = l.opt;
    o.n_page = 0;
    assert_int_equal(hd_model_open(l.checkpoint, &l.dev, &o, NULL, NULL, &m), HD_E_INVALID);
    o = l.opt;
    o.n_page = 1 << 30;
    assert_int_equal(hd_model_open(l.checkpoint, &l.dev, &o, NULL, NULL, &m), HD_E_INVALID);
    close_family(&l);
}

/* A folder with v3's weights whose config.json says that the output matrix is token_embd. */
static void make_tied(char folder[64]) {
    char path[128],
        *config = test_read_file(test_path("tests/golden/families/v3/config.json"), NULL);
    snprintf(folder, 64, "/tmp/hadal-tied-XXXXXX");
    assert_non_null(mkdtemp(folder));
    char *untied = strstr(config, "\"tie_word_embeddings\": false");
    assert_non_null(untied);
    memcpy(strstr(untied, "false"), "true ", 5);
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(config, f) >= 0);
    fclose(f);
    free(config);
    char target[PATH_MAX];
    assert_non_null(realpath(test_path("tests/golden/families/v3/model.safetensors"), target));
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_int_equal(symlink(target, path), 0);
}
static void remove_tied(const char *folder) {
    char path[128];
    const char *const names[] = {"config.json", "model.safetensors"};
    for (size_t i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

static const void *embedding_rows;
static void keep_embedding(void *ctx, const struct hd_op_head *a) {
    (void)ctx;
    embedding_rows = a->w->mat[0];
    assert_string_equal(a->w->name, "token_embd.weight");
    memset(a->logits, 0, sizeof *a->logits);
}

static void a_tied_output_reads_the_embedding(void **state) {
    (void)state;
    char folder[64];
    make_tied(folder);
    loaded l = open_family("ref", "v3", HD_KV_F32);
    hd_checkpoint *tied;
    assert_ok(hd_checkpoint_open(folder, &tied));
    hd_dev_ops ops = *l.dev.ops;
    ops.head = keep_embedding;
    hd_dev dev = {.ops = &ops, .ctx = l.dev.ctx};
    hd_model *m;
    assert_ok(hd_model_open(tied, &dev, &l.opt, NULL, NULL, &m));
    loaded t = {.opt = l.opt, .model = m, .n_vocab = l.n_vocab};
    int32_t id[] = {5};
    free(logits_of(&t, id, 1, (way){HD_MLA_ABSORBED, 0, 0, 1}));
    assert_ptr_equal(embedding_rows, hd_checkpoint_find(tied, "model.embed_tokens.weight")->data);
    size_t head_bytes = 320 * 64 * 2; /* counted once */
    assert_int_equal(hd_model_weight_bytes(l.model) - hd_model_weight_bytes(m), head_bytes);
    hd_model_close(m);
    hd_checkpoint_close(tied);
    close_family(&l);
    remove_tied(folder);
}

static int last_done, last_all;
static void on_progress(void *user, int done, int all) {
    assert_ptr_equal(user, &last_done);
    assert_true(done == last_done + 1 && done <= all);
    last_done = done;
    last_all = all;
}

static void sizes_and_plan_are_told(void **state) {
    (void)state;
    loaded l = open_family("ref", "v3", HD_KV_BF16);
    hd_model *m;
    assert_ok(hd_model_open(l.checkpoint, &l.dev, &l.opt, on_progress, &last_done, &m));
    assert_true(last_done == last_all && last_all > 0);
    const hd_hparams *hp = hd_model_hparams(m);
    assert_int_equal(hd_hparams_kv_bytes(hp, HD_KV_BF16), 4 * 48 * 2);
    assert_int_equal(hd_model_kv_bytes(m), 4 * 48 * 2 * 70 * 16);
    assert_true(hd_model_workspace_bytes(m) >= 96 * 320 * 4);
    assert_true(hd_model_weight_bytes(m) > 1000000);
    hd_buf b;
    hd_buf_init(&b, 1 << 20);
    hd_model_plan_text(m, &b);
    const char *lines[] = {"embed     -       token_embd.weight      BF16  [320, 64]",
                           "mla_qkv   0-3     attn_q_a.weight        BF16  [40, 64]",
                           "mla_attn  0-3     attn_k_b.weight        BF16  4 x [32, 24]",
                           "ffn       0       ffn_down.weight        BF16  [64, 160]",
                           "moe       1-3     ffn_down_exps.weight   BF16  16 x [64, 48]",
                           "head      -       output.weight          BF16  [320, 64]",
                           "kv        0-3     mla_latent             BF16  48 values"};
    for (size_t i = 0; i < HD_COUNT_OF(lines); i++)
        if (!strstr(b.ptr, lines[i])) fail_msg("no line \"%s\" in:\n%s", lines[i], b.ptr);
    hd_buf_fini(&b);
    hd_model_close(m);
    close_family(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_match_the_reference),
        cmocka_unit_test(every_split_gives_the_same_bits),
        cmocka_unit_test(layers_in_several_steps_give_the_same_bits),
        cmocka_unit_test(the_form_is_of_latent_attention_alone),
        cmocka_unit_test(a_ragged_batch_equals_each_alone),
        cmocka_unit_test(stale_cache_rows_are_not_read),
        cmocka_unit_test(a_missing_format_is_named_at_load),
        cmocka_unit_test(a_failed_prepare_releases_what_was_prepared),
        cmocka_unit_test(impossible_options_are_refused),
        cmocka_unit_test(a_tied_output_reads_the_embedding),
        cmocka_unit_test(sizes_and_plan_are_told),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
