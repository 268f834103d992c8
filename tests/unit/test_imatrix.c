/* model: importance matrices. What was summed is read back as means, in both layouts; stacks with
 * one count or one each; what has no data is told apart from zeros; hostile and wrong files are
 * named. */
#include "support/check.h"
#include "support/files.h"

#include "file/gguf.h"
#include "model/imatrix.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *dir;

static int set_up(void **state) {
    (void)state;
    dir = test_temp_dir();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    test_remove_dir(dir);
    return 0;
}

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
    const char *path = test_join(dir, "im.gguf");
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
    const char *path = test_join(dir, "stack.gguf");
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
    const char *path = test_join(dir, "inf.gguf");
    assert_int_equal(hd_imatrix_write(s, path, &source), HD_E_NUMERIC);
    assert_non_null(strstr(hd_error_text(), "importance of w"));
    hd_imatrix *m;
    assert_int_equal(hd_imatrix_open(path, &m), HD_E_NOT_FOUND);
    hd_imatrix_sums_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_summed_comes_back_as_means),
        cmocka_unit_test(one_count_serves_a_stack),
        cmocka_unit_test(the_older_layout_is_read),
        cmocka_unit_test(wrong_files_are_named),
        cmocka_unit_test(sums_that_are_not_finite_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
