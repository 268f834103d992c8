/* Rows of the KV cache: where values lie, what codes cost, and what happens to numbers that a type
 * cannot hold. */
#include "support/op_data.h"

#include "quant/kv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void layouts(void **state) {
    (void)state;
    hd_kv_layout v3 = hd_kv_latent(HD_KV_FP8, 512, 64); /* DeepSeek-V2-Lite, V2, V3 */
    assert_int_equal(v3.n, 576);
    assert_int_equal(v3.n_code, 512);
    assert_int_equal(v3.group, 128);
    assert_int_equal(v3.scale_at, 512);
    assert_int_equal(v3.plain_at, 528);
    assert_int_equal(v3.row_bytes, 656);
    assert_int_equal(hd_kv_latent(HD_KV_BF16, 512, 64).row_bytes, 1152);
    assert_int_equal(hd_kv_latent(HD_KV_F32, 512, 64).row_bytes, 2304);
    hd_kv_layout heads = hd_kv_heads(HD_KV_INT8, 8, 192);
    assert_int_equal(heads.n_code, 8 * 192);
    assert_int_equal(heads.group, 96); /* the largest divisor of a head up to 128 */
    assert_int_equal(heads.row_bytes, 8 * 192 + 8 * 2 * 2);
    for (int t = 0; t < HD_KV_TYPE_COUNT; t++)
        for (int unit = 1; unit < 300; unit++) {
            hd_kv_layout l = hd_kv_layout_of((enum hd_kv_type)t, 3, unit, unit % 7);
            assert_int_equal(l.n, 3 * unit + unit % 7);
            if (l.n_code == 0) continue;
            assert_true(unit % l.group == 0 && l.group <= HD_KV_GROUP_MAX);
            assert_true(l.scale_at % 2 == 0 && l.scale_at >= l.n_code);
            assert_true(l.plain_at % 16 == 0 && l.row_bytes % 16 == 0);
            assert_true(l.plain_at >= l.scale_at + 2 * l.n_code / l.group);
            assert_true(l.row_bytes >= l.plain_at + 2 * (l.n - l.n_code));
        }
}

static void names(void **state) {
    (void)state;
    static const struct {
        const char *name;
        enum hd_kv_type t;
    } rows[] = {{"f32", HD_KV_F32}, {"bf16", HD_KV_BF16},    {"bfloat16", HD_KV_BF16},
                {"fp8", HD_KV_FP8}, {"FP8_E4M3", HD_KV_FP8}, {"int8", HD_KV_INT8},
                {"F16", HD_KV_F16}};
    enum hd_kv_type t;
    for (size_t i = 0; i < HD_COUNT_OF(rows); i++) {
        assert_ok(hd_kv_type_by_name(rows[i].name, &t));
        assert_int_equal(t, rows[i].t);
    }
    static const char *const bad[] = {"", "fp", "fp8_e5m2", "f32|float32", "q8_0", "|"};
    for (size_t i = 0; i < HD_COUNT_OF(bad); i++)
        assert_int_equal(hd_kv_type_by_name(bad[i], &t), HD_E_INVALID);
    assert_non_null(strstr(hd_error_text(), "fp8_e4m3"));
}

/* Half a step of the code at most: of E4M3 2^-4 of the value, or 2^-10 of the scale below the
 * smallest normal code; of INT8 half the scale. The scale is at most the one promised. */
static void codes_are_the_nearest(void **state) {
    (void)state;
    unsigned char row[4096];
    float back[512];
    for (int round = 0; round < 2000; round++) {
        enum hd_kv_type t = round % 2 ? HD_KV_FP8 : HD_KV_INT8;
        hd_kv_layout l = hd_kv_layout_of(t, 2, 1 + round % 160, 5);
        float *x = test_floats((size_t)l.n, 1);
        for (int i = 0; i < l.n; i++) x[i] = ldexpf(x[i], test_below(24) - 12 + round % 40);
        assert_int_equal(hd_kv_encode(&l, x, row), 0);
        hd_kv_decode(&l, row, 0, l.n, back);
        for (int i = 0; i < l.n; i++) {
            double error = fabs((double)back[i] - (double)x[i]), amax = 0, allowed;
            int g0 = i < l.n_code ? i / l.group * l.group : 0;
            for (int g = g0; g < g0 + l.group; g++) amax = fmax(amax, fabs((double)x[g]));
            if (i >= l.n_code)
                allowed = fabs((double)x[i]) * 0x1p-8;
            else if (t == HD_KV_INT8)
                allowed = amax / 127 * 1.01 / 2;
            else
                allowed = fmax(fabs((double)x[i]) * 0x1p-4, amax / 224 * 0x1p-10);
            if (error > allowed)
                fail_msg("round %d, %d: %a became %a", round, i, (double)x[i], (double)back[i]);
            float rounded = hd_bf16_to_f32(hd_f32_to_bf16(back[i]));
            if (t == HD_KV_FP8) assert_true(rounded == back[i]); /* one BF16 term */
        }
        for (int i = 0; i < l.n; i += 13) { /* any part reads the same */
            float part[512];
            hd_kv_decode(&l, row, i, l.n - i, part);
            test_bits_equal(part, back + i, (size_t)(l.n - i) * sizeof *part, "a part of a row");
        }
        free(x);
    }
}

static void what_no_type_can_hold(void **state) {
    (void)state;
    unsigned char row[1024], clean[1024];
    float x[80], back[80];
    static const float bad[] = {NAN, INFINITY, -INFINITY, 3.402e38f};
    for (int t = 0; t < HD_KV_TYPE_COUNT; t++)
        for (size_t b = 0; b < HD_COUNT_OF(bad); b++)
            for (int at = 0; at < 80; at += 7) {
                hd_kv_layout l = hd_kv_layout_of((enum hd_kv_type)t, 2, 32, 16);
                for (int i = 0; i < 80; i++) x[i] = (float)(i + 1);
                assert_int_equal(hd_kv_encode(&l, x, clean), 0);
                x[at] = bad[b];
                int n_lost = hd_kv_encode(&l, x, row);
                hd_kv_decode(&l, row, 0, 80, back);
                int n_found = 0;
                for (int i = 0; i < 80; i++) n_found += !isfinite(back[i]);
                assert_int_equal(n_lost, n_found);
                bool is_held = b == 3 && t == HD_KV_F32;
                bool is_group = l.n_code > 0 && at < 64 && !is_held;
                assert_int_equal(n_lost, is_held ? 0 : is_group ? 32 : 1);
                if (!is_held) assert_true(!isfinite(back[at]));
                for (int i = 0; l.n_code > 0 && i < 64; i++) /* the other group is not touched */
                    if (i / 32 != at / 32) assert_int_equal(row[i], clean[i]);
            }
}

static void zeros_stay_zeros(void **state) {
    (void)state;
    for (int t = 0; t < HD_KV_TYPE_COUNT; t++) {
        hd_kv_layout l = hd_kv_latent((enum hd_kv_type)t, 48, 8);
        unsigned char row[256];
        float x[56] = {0}, back[56];
        x[3] = -0.0f;
        assert_int_equal(hd_kv_encode(&l, x, row), 0);
        hd_kv_decode(&l, row, 0, 56, back);
        for (int i = 0; i < 56; i++) assert_true(back[i] == 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts),
        cmocka_unit_test(names),
        cmocka_unit_test(codes_are_the_nearest),
        cmocka_unit_test(what_no_type_can_hold),
        cmocka_unit_test(zeros_stay_zeros),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
