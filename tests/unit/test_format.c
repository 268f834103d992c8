/* quant: number conversions against exact definitions, and Q8_0's bytes. */
#include "support/check.h"

#include "quant/format.h"

#include <math.h>
#include <string.h>

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* What a finite f16 means, by its definition. */
static double f16_meaning(uint16_t h) {
    int exp = h >> 10 & 31, frac = h & 0x3FF;
    double m = exp ? ldexp(1024 + frac, exp - 25) : ldexp(frac, -24);
    return h & 0x8000 ? -m : m;
}

static void every_f16_decodes_and_returns(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = hd_f16_to_f32((uint16_t)h);
        if ((h >> 10 & 31) == 31) {
            assert_true((h & 0x3FF) ? isnan(f) : isinf(f));
        } else {
            assert_true((double)f == f16_meaning((uint16_t)h));
            assert_int_equal(signbit(f) != 0, h >> 15);
        }
        /* A signalling NaN comes back quiet. */
        uint16_t want = isnan(f) ? (uint16_t)(h | 0x200) : (uint16_t)h;
        assert_int_equal(hd_f32_to_f16(f), want);
    }
}

/* Rounding between neighbours h and h + 1: below, at and above the middle. */
static void f16_rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x7BFF; h++) {
        double a = f16_meaning((uint16_t)h), b = f16_meaning((uint16_t)(h + 1));
        float mid = (float)((a + b) / 2); /* exact */
        uint16_t even = (uint16_t)(h & 1 ? h + 1 : h);
        assert_int_equal(hd_f32_to_f16(mid), even);
        assert_int_equal(hd_f32_to_f16(nextafterf(mid, 0)), h);
        assert_int_equal(hd_f32_to_f16(nextafterf(mid, INFINITY)), h + 1);
        assert_int_equal(hd_f32_to_f16(-mid), even | 0x8000);
    }
    assert_int_equal(hd_f32_to_f16(65504.0f), 0x7BFF);
    assert_int_equal(hd_f32_to_f16(nextafterf(65520.0f, 0)), 0x7BFF);
    assert_int_equal(hd_f32_to_f16(65520.0f), 0x7C00);
    assert_int_equal(hd_f32_to_f16(-INFINITY), 0xFC00);
    assert_int_equal(hd_f32_to_f16(1e-30f), 0);
}

static void bf16_rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = hd_bf16_to_f32((uint16_t)h);
        assert_int_equal(bits_of(f), h << 16);
        if (isnan(f)) {
            assert_true(isnan(hd_bf16_to_f32(hd_f32_to_bf16(f))));
            continue;
        }
        assert_int_equal(hd_f32_to_bf16(f), h);
        if (isinf(f)) continue;
        assert_int_equal(hd_f32_to_bf16(float_of(h << 16 | 0x7FFF)), h);
        assert_int_equal(hd_f32_to_bf16(float_of(h << 16 | 0x8000)), h + (h & 1));
        assert_int_equal(hd_f32_to_bf16(float_of(h << 16 | 0x8001)), h + 1);
    }
    /* A NaN whose payload lies in the lower half only must not become infinity. */
    assert_true(isnan(hd_bf16_to_f32(hd_f32_to_bf16(float_of(0x7F800001)))));
}

/* Bytes written by ggml's quantize_row_q8_0_ref's rule, worked by hand: amax 254, d 2. */
static void q8_0_known_block(void **state) {
    (void)state;
    float x[32] = {254, -254, 1, -1, 0.99f, 3, -3, 5, 2, 0};
    unsigned char b[34];
    const hd_format_info *q = hd_format_get(HD_Q8_0);
    q->encode(x, b, 32);
    const unsigned char want[] = {0x00, 0x40, 127, 129, 1, 255, 0, 2, 254, 3, 1, 0};
    assert_memory_equal(b, want, sizeof want);
    float y[32];
    q->decode(b, y, 32);
    assert_true(y[0] == 254 && y[1] == -254 && y[2] == 2 && y[3] == -2 && y[4] == 0 && y[7] == 6);
}

/* q comes from the unrounded scale: with amax 1, 0.49998 * 127 = 63.4975 is 63. The stored f16
 * scale is 0.00787354, whose inverse 127.008 would give 63.501 and so 64. */
static void q8_0_uses_the_unrounded_scale(void **state) {
    (void)state;
    float x[32] = {1, 0.49998f, -0.49998f};
    unsigned char b[34];
    hd_format_get(HD_Q8_0)->encode(x, b, 32);
    uint16_t d;
    memcpy(&d, b, 2);
    assert_int_equal(d, 0x2008);
    assert_int_equal((int8_t)b[3], 63);
    assert_int_equal((int8_t)b[4], -63);
}

static void q8_0_survives_odd_input(void **state) {
    (void)state;
    const hd_format_info *q = hd_format_get(HD_Q8_0);
    float x[32] = {0}, y[32];
    unsigned char b[34];
    q->encode(x, b, 32);
    for (int i = 0; i < 34; i++) assert_int_equal(b[i], 0);
    x[0] = 1e-40f; /* 1/d is infinite */
    x[1] = NAN;
    q->encode(x, b, 32);
    q->decode(b, y, 32);
    assert_true(y[0] == 0 && y[31] == 0);
    x[2] = INFINITY;
    q->encode(x, b, 32);
    q->decode(b, y, 32);
    assert_true(isfinite(y[2]) == 0);
}

/* Relative RMS of Q8_0 on Gaussian-like data: about 0.4 % (reference sheet, section 5). */
static void q8_0_error_is_small(void **state) {
    (void)state;
    enum { n = 32 * 256 };
    static float x[n], y[n];
    static unsigned char b[n / 32 * 34];
    uint32_t seed = 1;
    for (int i = 0; i < n; i++) {
        float s = 0;
        for (int k = 0; k < 12; k++) {
            seed = seed * 1664525u + 1013904223u;
            s += (float)(seed >> 8) * 0x1p-24f;
        }
        x[i] = s - 6;
    }
    const hd_format_info *q = hd_format_get(HD_Q8_0);
    q->encode(x, b, n);
    q->decode(b, y, n);
    double err = 0, all = 0;
    for (int i = 0; i < n; i++) {
        err += (double)(x[i] - y[i]) * (x[i] - y[i]);
        all += (double)x[i] * x[i];
    }
    double rms = sqrt(err / all);
    assert_true(rms > 0.002 && rms < 0.008);
}

static float e4m3_meaning(int b) {
    int e = b >> 3 & 15, m = b & 7;
    float v = e ? ldexpf(8 + (float)m, e - 10) : ldexpf((float)m, -9);
    return b & 0x80 ? -v : v;
}

static unsigned char e4m3_of(float x) {
    unsigned char b;
    hd_format_get(HD_F8_E4M3)->encode(&x, &b, 1);
    return b;
}

static void every_e4m3_decodes_and_returns(void **state) {
    (void)state;
    for (int b = 0; b < 256; b++) {
        float f = hd_e4m3_to_f32((uint8_t)b);
        assert_int_equal(e4m3_of(f), b);
        if ((b & 0x7F) == 0x7F) {
            assert_true(isnan(f));
            continue;
        }
        assert_true(f == e4m3_meaning(b));
        if ((b & 0x7F) == 0x7E) continue;
        float next = e4m3_meaning(b + 1), mid = (f + next) / 2; /* exact */
        assert_int_equal(e4m3_of(mid), b + b % 2);
        assert_int_equal(e4m3_of(nextafterf(mid, f)), b);
        assert_int_equal(e4m3_of(nextafterf(mid, next)), b + 1);
    }
    assert_true(hd_e4m3_to_f32(0x7E) == 448 && hd_e4m3_to_f32(1) == 0x1p-9f);
    assert_int_equal(e4m3_of(1e9f), 0x7E);
    assert_int_equal(e4m3_of(-INFINITY), 0xFE);
}

static void e8m0_is_a_power_of_two(void **state) {
    (void)state;
    const hd_format_info *i = hd_format_get(HD_F8_E8M0);
    for (int b = 0; b < 255; b++) {
        unsigned char byte = (unsigned char)b, back;
        float f;
        i->decode(&byte, &f, 1);
        assert_true((double)f == ldexp(1, b - 127));
        i->encode(&f, &back, 1);
        assert_int_equal(back, b);
    }
    float f = 5;
    unsigned char b;
    i->encode(&f, &b, 1);
    assert_int_equal(b, 127 + 3); /* up */
    b = 0xFF;
    i->decode(&b, &f, 1);
    assert_true(isnan(f));
}

/* What GGUF has no type for is found by no name and no id of it. */
static void formats_of_memory_are_not_gguf(void **state) {
    (void)state;
    enum hd_format f;
    assert_int_equal(hd_format_by_name("F8_B128", &f), HD_E_UNSUPPORTED);
    assert_null(strstr(hd_error_text(), "F8_E4M3"));
    for (uint32_t id = 0; id < 10; id++)
        assert_int_equal(hd_format_by_gguf_id((uint32_t)-1 - id, &f), HD_E_UNSUPPORTED);
    assert_true(hd_format_is_gguf(HD_MXFP4) && !hd_format_is_gguf(HD_F8_B128));
}

static void unaligned_bytes_are_fine(void **state) {
    (void)state;
    enum { n = 256 };
    float x[n], at_odd[n], at_even[n];
    for (int i = 0; i < n; i++) x[i] = (float)(i - 100) * 0.25f;
    for (int f = 0; f < HD_FORMAT_COUNT; f++) {
        const hd_format_info *i = hd_format_get((enum hd_format)f);
        size_t n_byte = hd_format_bytes((enum hd_format)f, n);
        _Alignas(16) unsigned char odd[n * 4 + 1], even[n * 4];
        i->encode(x, odd + 1, n);
        i->encode(x, even, n);
        assert_memory_equal(odd + 1, even, n_byte);
        i->decode(odd + 1, at_odd, n);
        i->decode(even, at_even, n);
        assert_memory_equal(at_odd, at_even, sizeof at_odd);
    }
}

static void names_and_ids(void **state) {
    (void)state;
    enum hd_format f;
    assert_ok(hd_format_by_name("bf16", &f));
    assert_int_equal(f, HD_BF16);
    assert_ok(hd_format_by_name("Q8_0", &f));
    assert_int_equal(f, HD_Q8_0);
    assert_ok(hd_format_by_gguf_id(30, &f));
    assert_int_equal(f, HD_BF16);
    assert_int_equal(hd_format_by_name("q9_z", &f), HD_E_UNSUPPORTED);
    assert_non_null(strstr(hd_error_text(), "q9_z"));
    assert_non_null(strstr(hd_error_text(), "F32, F16, "));
    assert_int_equal(hd_format_by_gguf_id(999, &f), HD_E_UNSUPPORTED);
    assert_non_null(strstr(hd_error_text(), "999"));
    assert_int_equal(hd_format_bytes(HD_Q8_0, 64), 68);
    assert_int_equal(hd_format_bytes(HD_F32, 3), 12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_f16_decodes_and_returns),
        cmocka_unit_test(f16_rounds_to_nearest_even),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(q8_0_known_block),
        cmocka_unit_test(q8_0_uses_the_unrounded_scale),
        cmocka_unit_test(q8_0_survives_odd_input),
        cmocka_unit_test(q8_0_error_is_small),
        cmocka_unit_test(every_e4m3_decodes_and_returns),
        cmocka_unit_test(e8m0_is_a_power_of_two),
        cmocka_unit_test(formats_of_memory_are_not_gguf),
        cmocka_unit_test(unaligned_bytes_are_fine),
        cmocka_unit_test(names_and_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
