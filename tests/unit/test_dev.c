/* The contract of devices: backends in shared objects, and devices with memory of their own. */
#include "support/check.h"
#include "support/far_dev.h"

#include "dev/plugin.h"
#include "model/score.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- shared objects ---- */

static void assert_error_has(const char *part) {
    if (!strstr(hd_error_text(), part)) fail_msg("no \"%s\" in: %s", part, hd_error_text());
}

static void an_object_of_another_build_is_refused(void **state) {
    (void)state;
    const hd_dev_ops *ops = NULL;
    char path[512];
    snprintf(path, sizeof path, "%s/tests/libplugin_other.so", getenv("HADAL_BUILD_DIR"));
    assert_int_equal(hd_plugin_load("other.so", path, &ops), HD_E_UNSUPPORTED);
    assert_error_has("not a backend of this build");
    assert_null(ops);
    snprintf(path, sizeof path, "%s/tests/libplugin_none.so", getenv("HADAL_BUILD_DIR"));
    assert_int_equal(hd_plugin_load("none.so", path, &ops), HD_E_UNSUPPORTED);
    assert_error_has("not a backend of this build"); /* an object without the symbol */
}

static void a_missing_object_is_named(void **state) {
    (void)state;
    hd_dev d;
    hd_dev_config config = {.isa = "auto", .cuda_library = "/nowhere/libhadal_cuda.so"};
    assert_int_equal(hd_dev_open("cuda", &config, &d), HD_E_UNSUPPORTED);
    assert_error_has("backend cuda: ");
    assert_error_has("/nowhere/libhadal_cuda.so");
    assert_null(strchr(hd_error_text(), '\n'));
    assert_ok(hd_dev_open("auto", &config, &d)); /* the next one */
    assert_string_equal(d.ops->name, "cpu");
    hd_dev_close(&d);
    const hd_dev_ops *ops;
    assert_int_equal(hd_plugin_load("libhadal_abacus.so", NULL, &ops), HD_E_UNSUPPORTED);
    assert_error_has("libhadal_abacus.so is not beside the program");
}

/* ---- memory of its own ---- */

enum { N_TOK = 40, N_PAGE = 8 };

typedef struct run {
    hd_checkpoint *checkpoint;
    hd_dev dev;
    hd_model *model;
    hd_scorer *scorer;
    size_t n_vocab;
    float *logits; /* [N_TOK, n_vocab] */
} run;

static void keep(void *user, int seq, int pos, const float *logits) {
    run *r = user;
    (void)seq;
    memcpy(r->logits + (size_t)pos * r->n_vocab, logits, r->n_vocab * sizeof *logits);
}

static void open_run(run *r, const char *family, hd_dev dev) {
    const hd_model_options o = {.n_row_max = 24,
                                .n_seq_max = 1,
                                .n_out_max = 24,
                                .n_pos_max = N_TOK,
                                .n_page = N_PAGE,
                                .page_tok = 16,
                                .kv_type = HD_KV_BF16};
    char path[128];
    *r = (run){.dev = dev};
    snprintf(path, sizeof path, "tests/golden/families/%s", family);
    assert_ok(hd_checkpoint_open(test_path(path), &r->checkpoint));
    assert_ok(hd_model_open(r->checkpoint, &r->dev, &o, NULL, NULL, &r->model));
    r->n_vocab = (size_t)hd_model_hparams(r->model)->n_vocab;
    r->logits = calloc(N_TOK * r->n_vocab, sizeof *r->logits);
    r->scorer = hd_scorer_new(r->model, &o, 3);
    int32_t id[N_TOK];
    for (int i = 0; i < N_TOK; i++) id[i] = i * 7 % 300;
    hd_score_spec spec = {.token = id, .n_tok = N_TOK, .n_tok_max = N_TOK, .form = HD_MLA_EXPANDED};
    assert_int_equal(hd_scorer_add(r->scorer, &spec), 0);
}

static void close_run(run *r) {
    hd_scorer_free(r->scorer);
    hd_model_close(r->model);
    hd_dev_close(&r->dev);
    hd_checkpoint_close(r->checkpoint);
    free(r->logits);
}

static void a_model_never_follows_device_pointers(void **state) {
    (void)state;
    static const char *const families[] = {"v3", "v2-lite-yarn", "llama", "qwen2"};
    for (size_t f = 0; f < HD_COUNT_OF(families); f++) {
        run r[2];
        hd_dev ref;
        assert_ok(hd_dev_open("ref", NULL, &ref));
        open_run(&r[0], families[f], ref);
        open_run(&r[1], families[f], test_open_far());
        for (int i = 0; i < 2; i++)
            while (hd_scorer_step(r[i].scorer, 0, keep, &r[i]) > 0) continue;
        assert_memory_equal(r[1].logits, r[0].logits, N_TOK * r[0].n_vocab * sizeof(float));
        assert_true(r[0].logits[N_TOK * r[0].n_vocab - 1] != 0);
        close_run(&r[0]);
        close_run(&r[1]);
    }
}

static void a_broken_device_is_told(void **state) {
    (void)state;
    run r;
    open_run(&r, "v3", test_open_far());
    assert_int_equal(hd_scorer_step(r.scorer, 0, keep, &r), 24);
    test_break_far();
    assert_int_equal(hd_scorer_step(r.scorer, 0, keep, &r), -1);
    assert_error_has("broke");
    close_run(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_object_of_another_build_is_refused),
        cmocka_unit_test(a_missing_object_is_named),
        cmocka_unit_test(a_model_never_follows_device_pointers),
        cmocka_unit_test(a_broken_device_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
