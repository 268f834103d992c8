/* The plan of attention that the cuda backend makes of a batch: every row is in one run or one
 * task, and a task's parts are all of its positions, once and in order. */
#include "cuda/attn_plan.h"
#include "support/op_data.h"
#include "support/rng.h"

#include <stdio.h>

static void check(const hd_batch *b, enum hd_cuda_flash_rule rule, int n_room) {
    hd_cuda_plan p;
    hd_cuda_plan_init(&p, b, rule, n_room);
    for (int again = 0; again < 2; again++) {
        hd_cuda_plan_make(&p, b);
        hd_cuda_plan_check(&p, b);
    }
    assert_true(hd_cuda_plan_fits(&p, b, rule, n_room));
    assert_false(hd_cuda_plan_fits(&p, b, rule, n_room + HD_CUDA_KEY_ROWS));
    hd_cuda_plan_fini(&p);
}

static void random_batches(void **state) {
    (void)state;
    test_rng r = {.x = 5};
    for (int i = 0; i < 400; i++) {
        test_seq seq[12];
        int n_seq = rng_int(&r, 1, 12), n_page;
        for (int s = 0; s < n_seq; s++) {
            int n_pos = rng_chance(&r, 0.1) ? rng_int(&r, 1, 3000) : rng_int(&r, 1, 300);
            int n_row = rng_chance(&r, 0.3) ? 1 : rng_int(&r, 1, n_pos);
            int n_expanded = rng_chance(&r, 0.4) ? n_row : rng_int(&r, 0, n_row);
            seq[s] = (test_seq){.n_pos = n_pos, .n_row = n_row, .n_expanded = n_expanded};
        }
        hd_batch b;
        test_batch(&b, seq, n_seq, rng_int(&r, 1, 64), &n_page);
        /* Forms as a recomputed sequence may have them: several runs. */
        for (int row = 0; i % 3 == 0 && row < b.n_row; row++)
            b.form[row] = rng_chance(&r, 0.02) ? 1 - b.form[row] : b.form[row];
        check(&b, HD_CUDA_FLASH_BY_FORM, HD_CUDA_KEY_ROWS * rng_int(&r, 1, 20));
        check(&b, HD_CUDA_FLASH_BY_LENGTH, 0);
        check(&b, HD_CUDA_FLASH_NONE, 0);
        hd_batch_fini(&b);
    }
}

/* What fits is not cut; a decoding step has no tasks and one run. */
static void shapes(void **state) {
    (void)state;
    static const test_seq two[] = {{.n_pos = 300, .n_row = 300, .n_expanded = 300},
                                   {.n_pos = 300, .n_row = 200, .n_expanded = 200}};
    static const test_seq steps[] = {{.n_pos = 300, .n_row = 1}, {.n_pos = 33, .n_row = 1}};
    hd_batch b;
    hd_cuda_plan p;
    int n_page;
    test_batch(&b, two, 2, 16, &n_page);
    hd_cuda_plan_init(&p, &b, HD_CUDA_FLASH_BY_FORM, 4 * HD_CUDA_KEY_ROWS);
    hd_cuda_plan_make(&p, &b);
    assert_int_equal(p.n_wave, 2);
    assert_int_equal(p.n_part, 2);
    assert_int_equal(p.n_flash, 5);
    assert_int_equal(p.flash[0].pos, 172); /* the rows that see most come first */
    assert_int_equal(p.n_run, 0);
    hd_cuda_plan_fini(&p);
    hd_batch_fini(&b);
    test_batch(&b, steps, 2, 16, &n_page);
    hd_cuda_plan_init(&p, &b, HD_CUDA_FLASH_BY_FORM, 4 * HD_CUDA_KEY_ROWS);
    hd_cuda_plan_make(&p, &b);
    assert_int_equal(p.n_wave + p.n_flash, 0);
    assert_int_equal(p.n_run, 1);
    assert_int_equal(p.run[0].n, 2);
    assert_int_equal(p.row[2].tile0, 10 + 2);
    assert_int_equal(p.row[1].page0, 19);
    hd_cuda_plan_fini(&p);
    hd_batch_fini(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_batches), cmocka_unit_test(shapes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
