/* Rotary tables and YaRN against worked values (base 1e4, original context 4096, 64 dimensions). */
#include "support/check.h"

#include "model/arch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static hd_hparams v3(void) {
    return (hd_hparams){.n_c = 512,
                        .n_nope = 128,
                        .n_rope = 64,
                        .rope_base = 10000,
                        .is_yarn = true,
                        .yarn_factor = 40,
                        .yarn_beta_fast = 32,
                        .yarn_beta_slow = 1,
                        .yarn_mscale = 1,
                        .yarn_mscale_all = 1,
                        .yarn_orig_ctx = 4096};
}

static void assert_near(double found, double expected, double relative) {
    if (!(fabs(found - expected) <= relative * fabs(expected)))
        fail_msg("expected %.9g, found %.9g", expected, found);
}

static void yarn_keeps_fast_and_stretches_slow_dimensions(void **state) {
    (void)state;
    hd_hparams hp = v3();
    float f[32];
    hd_rope_inv_freq(&hp, f);
    for (int i = 0; i < 32; i++) {
        double plain = pow(10000, -i / 32.0);
        double ramp = fmin(fmax((i - 10) / 13.0, 0), 1); /* low 10, high 23 */
        assert_near((double)f[i], plain * (1 - ramp) + plain / 40 * ramp, 3e-7);
    }
    hp.is_yarn = false;
    hd_rope_inv_freq(&hp, f);
    assert_true(f[0] == 1);
    assert_near((double)f[31], pow(10000, -31 / 32.0), 3e-7);
}

static void equal_bounds_do_not_divide_by_zero(void **state) {
    (void)state;
    hd_hparams hp = v3();
    hp.yarn_orig_ctx = 4; /* both bounds clamp to 0 */
    hp.yarn_beta_slow = 32;
    float f[32];
    hd_rope_inv_freq(&hp, f);
    for (int i = 0; i < 32; i++) assert_true(isfinite(f[i]) && f[i] > 0);
}

static void softmax_scale_has_the_square_of_mscale(void **state) {
    (void)state;
    hd_hparams hp = v3();
    assert_near((double)hd_rope_softmax_scale(&hp), 0.1352337, 1e-6);
    hp.yarn_mscale = hp.yarn_mscale_all = 0.707f;
    assert_near((double)hd_rope_softmax_scale(&hp), 0.1147214, 1e-6);
    hp.yarn_mscale_all = 0;
    assert_near((double)hd_rope_softmax_scale(&hp), 1 / sqrt(192), 1e-6);
    hp = v3();
    hp.yarn_factor = 1;
    assert_near((double)hd_rope_softmax_scale(&hp), 1 / sqrt(192), 1e-6);
    hp.is_yarn = false;
    assert_near((double)hd_rope_softmax_scale(&hp), 1 / sqrt(192), 1e-6);
    hp = v3(); /* grouped-query attention has no such factor */
    hp.n_c = hp.n_nope = 0;
    assert_near((double)hd_rope_softmax_scale(&hp), 1 / sqrt(64), 1e-6);
}

static void frequencies_are_divided(void **state) {
    (void)state;
    hd_hparams hp = {.n_rope = 64, .rope_base = 10000, .rope_linear = 4};
    float f[32];
    hd_rope_inv_freq(&hp, f);
    assert_true(f[0] == 0.25f);
    assert_near((double)f[31], pow(10000, -31 / 32.0) / 4, 3e-7);
    hp.rope_linear = 0;
    hp.has_rope_divisor = true;
    for (int i = 0; i < 32; i++) hp.rope_divisor[i] = (float)(1 + i);
    hd_rope_inv_freq(&hp, f);
    for (int i = 0; i < 32; i++) assert_near((double)f[i], pow(10000, -i / 32.0) / (1 + i), 3e-7);
}

static void the_table_carries_the_mscale_pair(void **state) {
    (void)state;
    hd_hparams hp = v3();
    enum { n_pos = 5000 };
    float *cs = malloc(n_pos * 64 * sizeof *cs), f[32];
    hd_rope_inv_freq(&hp, f);
    hd_rope_table(&hp, n_pos, cs);
    for (int i = 0; i < 32; i++) { /* equal pair: factor 1 */
        assert_true(cs[2 * i] == 1 && cs[2 * i + 1] == 0);
        for (int pos = 4090; pos < 4100; pos++) { /* nothing happens at the original length */
            float angle = (float)pos * f[i];
            assert_true(cs[pos * 64 + 2 * i] == (float)cos((double)angle));
            assert_true(cs[pos * 64 + 2 * i + 1] == (float)sin((double)angle));
        }
    }
    hp.yarn_factor = 10;
    hp.yarn_mscale = 0.8f;
    hp.yarn_mscale_all = 1.2f;
    hd_rope_table(&hp, 2, cs);
    double factor = (1 + 0.08 * log(10)) / (1 + 0.12 * log(10));
    assert_near(factor, 0.92784, 1e-5);
    for (int i = 0; i < 32; i++) {
        assert_near((double)cs[2 * i], factor, 1e-6);
        assert_true(cs[2 * i + 1] == 0);
    }
    free(cs);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(yarn_keeps_fast_and_stretches_slow_dimensions),
        cmocka_unit_test(equal_bounds_do_not_divide_by_zero),
        cmocka_unit_test(softmax_scale_has_the_square_of_mscale),
        cmocka_unit_test(frequencies_are_divided),
        cmocka_unit_test(the_table_carries_the_mscale_pair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
