/* model: importance matrices. What was summed is read back as means, in both layouts; stacks with
 * one count or one each; what has no data is told apart from zeros; hostile and wrong files are
 * named. */
#include "support/canon.h"
#include "support/check.h"
#include "support/files.h"

#include "file/gguf.h"
#include "model/imatrix.h"
#include "model/score.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static hd_canon_tensor tensor(const char *name, int64_t n_in, int64_t n_mat) {
    hd_canon_tensor t = {.n_dim = n_mat > 1 ? 3 : 2, .ne = {n_in, 5, n_mat, 1}};
    snprintf(t.name, sizeof t.name, "%s", name);
    return t;
}

static const hd_imatrix_source source = {.text = "a text", .n_chunk = 3, .n_tok_a_chunk = 8};

/* Two rows for `a`; of the stack `b` matrix 0 gets none, matrix 1 gets rows 2 and 0 of three. */
static hd_imatrix_sums *example(void) {
    static const float x[3][2] = {{1, 2}, {3, -4}, {-5, 0.5f}};
    static const int32_t row[] = {2, 0};
    hd_weight a = {.name = "a", .n_in = 2, .n_out = 5, .n_mat = 1},
              b = {.name = "b", .n_in = 2, .n_out = 5, .n_mat = 2};
    hd_imatrix_sums *s = hd_imatrix_sums_new();
    hd_imatrix_observe(s, &(hd_dev_inputs){.w = &a, .n_row = 1, .x = x[0], .ldx = 2});
    hd_imatrix_observe(
        s, &(hd_dev_inputs){.w = &b, .mat = 1, .n_row = 2, .x = x[0], .ldx = 2, .row = row});
    hd_imatrix_observe(s, &(hd_dev_inputs){.w = &a, .n_row = 1, .x = x[1], .ldx = 2});
    assert_int_equal(hd_imatrix_sums_count(s), 2);
    return s;
}

static void what_was_summed_comes_back_as_means(void **state) {
    (void)state;
    const char *path = test_join(test_dir, "im.gguf");
    hd_imatrix_sums *s = example();
    hd_imatrix *m;
    hd_importance of;
    assert_ok(hd_imatrix_write(s, path, &source));
    hd_imatrix_sums_free(s);
    assert_ok(hd_imatrix_open(path, &m));
    assert_int_equal(hd_imatrix_count(m), 2);
    assert_int_equal(hd_imatrix_chunks(m), 3);
    assert_string_equal(hd_imatrix_dataset(m), "a text");
    hd_canon_tensor t = tensor("a", 2, 1);
    assert_ok(hd_imatrix_find(m, &t, &of));
    const float *row = hd_importance_row(&of, 0);
    assert_true(row[0] == (1 + 9) / 2.0f && row[1] == (4 + 16) / 2.0f);
    t = tensor("b", 2, 2);
    assert_ok(hd_imatrix_find(m, &t, &of));
    assert_null(hd_importance_row(&of, 0));
    row = hd_importance_row(&of, 1);
    assert_true(row[0] == (25 + 1) / 2.0f && row[1] == (0.25f + 4) / 2.0f);
    t = tensor("c", 2, 1);
    assert_ok(hd_imatrix_find(m, &t, &of));
    assert_null(of.mean);
    t = tensor("b", 2, 3);
    assert_int_equal(hd_imatrix_find(m, &t, &of), HD_E_CORRUPT);
    assert_non_null(strstr(hd_error_text(), "b: expected 2 columns of 3 matrices, found 2 of 2"));
    hd_imatrix_close(m);
}

/* llama.cpp's tensors as they lie in its files: counts [1, n_mat], or one for a whole stack. */
static void one_count_serves_a_stack(void **state) {
    (void)state;
    const char *path = test_join(test_dir, "stack.gguf");
    const float sums[] = {2, 4, 6, 8, 10, 12}, count = 2;
    hd_gguf_writer *w;
    hd_imatrix *m;
    hd_importance of;
    assert_ok(hd_gguf_create(path, &w));
    hd_gguf_set_str(w, "general.type", hd_str_of("imatrix"));
    hd_gguf_declare(w, "blk.0.attn_k_b.weight.in_sum2", HD_F32, 2, (int64_t[]){6, 1});
    hd_gguf_declare(w, "blk.0.attn_k_b.weight.counts", HD_F32, 2, (int64_t[]){1, 1});
    assert_ok(hd_gguf_begin(w));
    assert_ok(hd_gguf_data(w, sums, sizeof sums));
    assert_ok(hd_gguf_data(w, &count, sizeof count));
    assert_ok(hd_gguf_finish(w));
    assert_ok(hd_imatrix_open(path, &m));
    assert_string_equal(hd_imatrix_dataset(m), "");
    hd_canon_tensor t = tensor("blk.0.attn_k_b.weight", 2, 3);
    assert_ok(hd_imatrix_find(m, &t, &of));
    for (int mat = 0; mat < 3; mat++) {
        const float *row = hd_importance_row(&of, mat);
        assert_true(row[0] == (float)(2 * mat + 1) && row[1] == (float)(2 * mat + 2));
    }
    hd_imatrix_close(m);
}

/* ---- the older layout ---- */

struct bytes {
    unsigned char p[512];
    size_t n;
};

static void put(struct bytes *b, const void *p, size_t n) {
    assert_true(b->n + n <= sizeof b->p);
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

static void put_i32(struct bytes *b, int32_t v) { put(b, &v, sizeof v); }

static void put_entry(struct bytes *b, const char *name, int32_t n_call, const float *v,
                      int32_t n) {
    put_i32(b, (int32_t)strlen(name));
    put(b, name, strlen(name));
    put_i32(b, n_call);
    put_i32(b, n);
    put(b, v, (size_t)n * sizeof *v);
}

static void the_older_layout_is_read(void **state) {
    (void)state;
    struct bytes b = {0};
    const float v[] = {3, 6, 9, 12};
    hd_imatrix *m;
    hd_importance of;
    put_i32(&b, 2);
    put_entry(&b, "one", 3, v, 2);
    put_entry(&b, "stack", 1, v, 4);
    put_i32(&b, 7);
    put_i32(&b, 4);
    put(&b, "text", 4);
    assert_ok(hd_imatrix_parse(b.p, b.n, "old", &m));
    assert_int_equal(hd_imatrix_chunks(m), 7);
    assert_string_equal(hd_imatrix_dataset(m), "text");
    hd_canon_tensor t = tensor("one", 2, 1);
    assert_ok(hd_imatrix_find(m, &t, &of));
    assert_true(hd_importance_row(&of, 0)[1] == 2);
    t = tensor("stack", 2, 2);
    assert_ok(hd_imatrix_find(m, &t, &of));
    assert_true(hd_importance_row(&of, 1)[0] == 9);
    hd_imatrix_close(m);
    for (size_t n = 0; n < b.n - 12; n++) { /* cut anywhere in the entries */
        assert_int_equal(hd_imatrix_parse(b.p, n, "old", &m), HD_E_CORRUPT);
        assert_null(m);
    }
    for (size_t n = b.n - 12; n < b.n; n++) { /* behind them all may be missing */
        assert_ok(hd_imatrix_parse(b.p, n, "old", &m));
        hd_imatrix_close(m);
    }
}

static void refused(const struct bytes *b, const char *word) {
    hd_imatrix *m;
    assert_int_equal(hd_imatrix_parse(b->p, b->n, "bad", &m), HD_E_CORRUPT);
    assert_null(m);
    if (!strstr(hd_error_text(), word)) fail_msg("%s: no \"%s\"", hd_error_text(), word);
}

static void wrong_files_are_named(void **state) {
    (void)state;
    const float v[] = {1, 2}, negative[] = {1, -2}, strange[] = {NAN, 1};
    struct bytes b = {0};
    put_i32(&b, 2);
    put_entry(&b, "twice", 1, v, 2);
    put_entry(&b, "twice", 1, v, 2);
    refused(&b, "twice: expected one entry, found two");
    b = (struct bytes){0};
    put_i32(&b, 1);
    put_entry(&b, "minus", 1, negative, 2);
    refused(&b, "minus: expected mean squares, found -2");
    b = (struct bytes){0};
    put_i32(&b, 1);
    put_entry(&b, "nan", 1, strange, 2);
    refused(&b, "nan: expected mean squares, found");
    b = (struct bytes){0};
    put_i32(&b, 1);
    put_entry(&b, "to\x1b[2Jscreen", 1, negative, 2);
    refused(&b, "importance of to?[2Jscreen: expected");
    b = (struct bytes){0};
    put_i32(&b, 1 << 30);
    put(&b, "and no more than that", 21);
    refused(&b, "found neither");
    b = (struct bytes){0};
    put_i32(&b, 1);
    put_entry(&b, "a name that is much longer than the name of any tensor in a GGUF file can be", 1,
              v, 2);
    refused(&b, "expected a tensor name, found");
    hd_imatrix *m;
    assert_int_equal(hd_imatrix_open(test_path("models/mini/mini-bf16.gguf"), &m), HD_E_CORRUPT);
    assert_non_null(strstr(hd_error_text(), "general.type: expected imatrix"));
    assert_int_equal(hd_imatrix_open("/nothing/here", &m), HD_E_NOT_FOUND);
}

static void sums_that_are_not_finite_are_refused(void **state) {
    (void)state;
    const float x[] = {INFINITY, 1};
    hd_weight w = {.name = "w", .n_in = 2, .n_out = 5, .n_mat = 1};
    hd_imatrix_sums *s = hd_imatrix_sums_new();
    hd_imatrix_observe(s, &(hd_dev_inputs){.w = &w, .n_row = 1, .x = x, .ldx = 2});
    const char *path = test_join(test_dir, "inf.gguf");
    assert_int_equal(hd_imatrix_write(s, path, &source), HD_E_NUMERIC);
    assert_non_null(strstr(hd_error_text(), "importance of w"));
    hd_imatrix *m;
    assert_int_equal(hd_imatrix_open(path, &m), HD_E_NOT_FOUND);
    hd_imatrix_sums_free(s);
}

/* ---- what devices tell ---- */

enum { N_TOK = 50 };

static void ignore(void *user, int seq, int pos, const float *logits) {
    (void)user, (void)seq, (void)pos, (void)logits;
}

/* Importance of a family on a backend, N_TOK tokens in chunks, absorbed. */
static hd_imatrix *measured_by(const char *family, const char *backend, int chunk) {
    hd_checkpoint *c;
    hd_dev dev;
    hd_model *m;
    hd_imatrix *found;
    hd_model_options o = {.n_row_max = 64,
                          .n_seq_max = 1,
                          .n_out_max = 1,
                          .n_pos_max = 64,
                          .n_page = 8,
                          .page_tok = 8,
                          .kv_type = HD_KV_F32};
    int32_t id[N_TOK];
    for (int i = 0; i < N_TOK; i++) id[i] = (i * 53 + 7) % 320;
    assert_ok(hd_checkpoint_open(family, &c));
    assert_ok(hd_dev_open(backend, NULL, &dev));
    assert_ok(hd_model_open(c, &dev, &o, NULL, NULL, &m));
    hd_imatrix_sums *s = hd_imatrix_sums_new();
    dev.ops->observe(dev.ctx, &(hd_dev_observer){hd_imatrix_observe, s});
    hd_scorer *scorer = hd_scorer_new(m, &o, 1);
    hd_score_spec spec = {.token = id, .n_tok = N_TOK, .n_tok_max = N_TOK, .first_out = N_TOK - 1};
    assert_int_equal(hd_scorer_add(scorer, &spec), 0);
    while (hd_scorer_step(scorer, chunk, ignore, NULL) > 0) continue;
    dev.ops->observe(dev.ctx, NULL); /* from here on nobody is told */
    size_t n = hd_imatrix_sums_count(s);
    hd_scorer_drop(scorer, 0);
    assert_int_equal(hd_scorer_add(scorer, &spec), 0);
    while (hd_scorer_step(scorer, chunk, ignore, NULL) > 0) continue;
    assert_int_equal(hd_imatrix_sums_count(s), n);
    const char *path = test_join(test_dir, "measured.gguf");
    assert_ok(hd_imatrix_write(s, path, &source));
    assert_ok(hd_imatrix_open(path, &found));
    hd_scorer_free(scorer);
    hd_imatrix_sums_free(s);
    hd_model_close(m);
    hd_dev_close(&dev);
    hd_checkpoint_close(c);
    return found;
}

static void assert_close(const hd_importance *a, const hd_importance *b, const hd_canon_tensor *t) {
    for (int mat = 0; mat < (int)t->ne[2]; mat++) {
        const float *x = hd_importance_row(a, mat), *y = hd_importance_row(b, mat);
        assert_int_equal(x != NULL, y != NULL);
        if (!x) continue;
        float top = 0;
        for (int64_t i = 0; i < t->ne[0]; i++) top = fmaxf(top, x[i]);
        assert_true(top > 0);
        for (int64_t i = 0; i < t->ne[0]; i++)
            if (!(fabsf(x[i] - y[i]) <= 1e-4f * top))
                fail_msg("%s, matrix %d, column %d: %g and %g", t->name, mat, (int)i, (double)x[i],
                         (double)y[i]);
    }
}

/* Every matrix but the embedding table, on both backends, however the tokens come. */
static void both_backends_tell_every_products_inputs(void **state) {
    (void)state;
    static const char *const families[] = {"v3", "v2-lite-yarn", "qwen2"};
    for (size_t f = 0; f < HD_COUNT_OF(families); f++) {
        struct opened o;
        char path[128];
        snprintf(path, sizeof path, "tests/golden/families/%s", families[f]);
        hd_imatrix *ref = measured_by(test_path(path), "ref", 0);
        hd_imatrix *cpu = measured_by(test_path(path), "cpu", 7);
        open_all(&o, test_path(path));
        size_t n = 0;
        for (size_t i = 0; i < hd_canon_count(o.k); i++) {
            const hd_canon_tensor *t = hd_canon_at(o.k, i);
            hd_importance a, b;
            if (t->n_dim == 1 || (strcmp(t->name, "token_embd.weight") == 0 && !o.hp.is_tied))
                continue;
            assert_ok(hd_imatrix_find(ref, t, &a));
            assert_ok(hd_imatrix_find(cpu, t, &b));
            if (!a.mean || !b.mean) fail_msg("%s of %s was not told", t->name, families[f]);
            assert_close(&a, &b, t);
            n++;
        }
        assert_int_equal(hd_imatrix_count(ref), n);
        assert_int_equal(hd_imatrix_count(cpu), n);
        hd_imatrix_close(ref);
        hd_imatrix_close(cpu);
        close_all(&o);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_summed_comes_back_as_means),
        cmocka_unit_test(one_count_serves_a_stack),
        cmocka_unit_test(the_older_layout_is_read),
        cmocka_unit_test(wrong_files_are_named),
        cmocka_unit_test(sums_that_are_not_finite_are_refused),
        cmocka_unit_test(both_backends_tell_every_products_inputs),
    };
    return cmocka_run_group_tests(tests, test_dir_make, test_dir_remove);
}
