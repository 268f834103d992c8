/* The embedded model on the oracle against its golden file: the 20 best logits after every prompt,
 * and all greedy tokens. The file was made by an independent implementation in float32. */
#include "support/backend.h"
#include "support/check.h"

#include "model/score.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>

enum { N_SEQ = 26, N_BEST = 20 };
/* The cache's type: HADAL_TEST_KV, F32 without. */
static enum hd_kv_type kv_type(void) {
    const char *name = getenv("HADAL_TEST_KV");
    enum hd_kv_type t = HD_KV_F32;
    if (name) assert_ok(hd_kv_type_by_name(name, &t));
    return t;
}

/* Of each logit; where products round to BF16, or the cache has codes, only means are bounded: a
 * tie of a router that turns moves all of a prompt's logits (docs/precision.md), so the prompts'
 * median more closely than the mean of all; and 5 % of the greedy tokens may differ. */
static bool is_rounded(void) { return kv_type() != HD_KV_F32 || test_bound(0, 1) > 0; }
static double logit_bound(void) { return is_rounded() ? INFINITY : 1e-3; }
static bool has_codes(void) { return kv_type() == HD_KV_FP8 || kv_type() == HD_KV_INT8; }
static double mean_bound(void) { return has_codes() ? 0.4 : 0.1; }
static double median_bound(void) { return kv_type() == HD_KV_FP8 ? 0.3 : 0.08; }
static int n_other_max(void) { return is_rounded() ? 24 : 0; }

struct run {
    const json_t *prompts;
    hd_scorer *scorer;
    int prompt_of[N_SEQ], n_vocab, n_greedy, n_other;
    double worst, sum;
    double mean[N_SEQ]; /* by prompt */
    int n_logit;
};

static int n_of(const json_t *prompt, const char *key) {
    return (int)json_array_size(json_object_get(prompt, key));
}
static int32_t id_of(const json_t *prompt, const char *key, int ix) {
    return (int32_t)json_integer_value(json_array_get(json_object_get(prompt, key), (size_t)ix));
}

static void check_top(struct run *r, const json_t *prompt, int ix, const float *logits) {
    size_t k;
    const json_t *pair;
    json_array_foreach(json_object_get(prompt, "top"), k, pair) {
        json_int_t id = json_integer_value(json_array_get(pair, 0));
        double want = json_number_value(json_array_get(pair, 1));
        double error = fabs((double)logits[id] - want);
        if (!(error <= logit_bound()))
            fail_msg("prompt %d, token %d: logit expected %g, found %g", ix, (int)id, want,
                     (double)logits[id]);
        r->worst = fmax(r->worst, error);
        r->sum += error;
        r->mean[ix] += error / N_BEST;
        r->n_logit++;
    }
    assert_true(k == N_BEST);
}

static void on_logits(void *user, int seq, int pos, const float *logits) {
    struct run *r = user;
    int ix = r->prompt_of[seq];
    const json_t *prompt = json_array_get(r->prompts, (size_t)ix);
    int n_done = pos + 1 - n_of(prompt, "ids"), best = 0;
    if (n_done == 0) check_top(r, prompt, ix, logits);
    for (int i = 1; i < r->n_vocab; i++)
        if (logits[i] > logits[best]) best = i;
    int want = id_of(prompt, "greedy", n_done);
    if (best != want && ++r->n_other > n_other_max())
        fail_msg("prompt %d, greedy token %d: expected %d, found %d", ix, n_done, want, best);
    r->n_greedy++;
    if (n_done + 1 < n_of(prompt, "greedy"))
        hd_scorer_extend(r->scorer, seq, want);
    else
        hd_scorer_drop(r->scorer, seq);
}

static void add_prompt(struct run *r, int ix, enum hd_mla_form form) {
    const json_t *prompt = json_array_get(r->prompts, (size_t)ix);
    int n = n_of(prompt, "ids");
    int32_t *id = malloc((size_t)n * sizeof *id);
    for (int i = 0; i < n; i++) id[i] = id_of(prompt, "ids", i);
    hd_score_spec spec = {.token = id,
                          .n_tok = n,
                          .n_tok_max = n + n_of(prompt, "greedy"),
                          .first_out = n - 1,
                          .form = form};
    int seq = hd_scorer_add(r->scorer, &spec);
    assert_true(seq >= 0);
    r->prompt_of[seq] = ix;
    free(id);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void logits_and_greedy_tokens(enum hd_mla_form form) {
    json_error_t error;
    json_t *root = json_load_file(test_path("tests/golden/mini/golden.json"), 0, &error);
    if (!root) fail_msg("golden.json: %s", error.text);
    hd_checkpoint *c;
    hd_dev dev;
    hd_model *m;
    hd_model_options o = {.n_row_max = 256,
                          .n_seq_max = N_SEQ,
                          .n_out_max = N_SEQ,
                          .n_pos_max = 256,
                          .n_page = 160,
                          .page_tok = 16,
                          .kv_type = kv_type()};
    assert_ok(hd_checkpoint_open(test_path("models/mini/mini-bf16.gguf"), &c));
    const char *backend = test_backend();
    const hd_dev_config config = test_dev_config();
    test_need_backend();
    assert_ok(hd_dev_open(backend ? backend : "ref", &config, &dev));
    assert_ok(hd_model_open(c, &dev, &o, NULL, NULL, &m));
    struct run r = {.prompts = json_object_get(root, "prompts"),
                    .scorer = hd_scorer_new(m, &o, 1),
                    .n_vocab = hd_model_hparams(m)->n_vocab};
    int n_prompt = (int)json_array_size(r.prompts), n_want = 0;
    assert_int_equal(n_prompt, N_SEQ);
    for (int i = 0; i < n_prompt; i++) {
        add_prompt(&r, i, form);
        n_want += n_of(json_array_get(r.prompts, (size_t)i), "greedy");
    }
    while (hd_scorer_step(r.scorer, 0, on_logits, &r) > 0) continue;
    assert_int_equal(r.n_greedy, n_want);
    double mean = r.sum / r.n_logit;
    qsort(r.mean, N_SEQ, sizeof *r.mean, by_size);
    double median = r.mean[N_SEQ / 2];
    print_message("form %d: error of a best logit %.2g, in the mean %.2g, in a prompt's mean %.2g "
                  "(median) and %.2g (largest); %d of %d greedy tokens equal\n",
                  form, r.worst, mean, median, r.mean[N_SEQ - 1], r.n_greedy - r.n_other,
                  r.n_greedy);
    if (!(mean <= mean_bound())) fail_msg("mean error %g", mean);
    if (!(median <= median_bound())) fail_msg("median of the prompts' mean errors %g", median);
    hd_scorer_free(r.scorer);
    hd_model_close(m);
    hd_dev_close(&dev);
    hd_checkpoint_close(c);
    json_decref(root);
}

static void absorbed_form_is_the_reference(void **state) {
    (void)state;
    logits_and_greedy_tokens(HD_MLA_ABSORBED);
}
static void expanded_form_is_the_reference(void **state) {
    (void)state;
    logits_and_greedy_tokens(HD_MLA_EXPANDED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absorbed_form_is_the_reference),
        cmocka_unit_test(expanded_form_is_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
