/* Repacked weights: the image read back by the layout's description (cpu/pack.h), weight by weight,
 * is what the format's own decoding says; sizes; packing in parts. */
#include "support/check.h"
#include "support/rng.h"

#include "cpu/pack.h"
#include "quant/iq2_grid.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static test_rng random_of = {20261130};

static float half_at(const unsigned char *p) { return hd_f16_to_f32((uint16_t)(p[0] | p[1] << 8)); }

/* The i-th of count six-bit numbers of output o. */
static int six_bits(const unsigned char *p, int count, int i, int o) {
    int half = count / 2, quarter = count / 4;
    int low = p[16 * (i % half) + o] >> (4 * (i / half)) & 15;
    return low | (p[8 * count + 16 * (i % quarter) + o] >> (2 * (i / quarter)) & 3) << 4;
}

/* Scale and addend of input k of a super-block for output o. */
static void scale_at(const hd_cpu_layout *l, const unsigned char *head, int o, int k, float *scale,
                     float *add) {
    int b = k / 32, half = k / 16;
    float d = half_at(head + 2 * o);
    *add = 0;
    switch (l->head) {
    case HD_CPU_HEAD_D: *scale = half_at(head + 32 * b + 2 * o); break;
    case HD_CPU_HEAD_DM:
        *scale = half_at(head + 64 * b + 2 * o);
        *add = half_at(head + 64 * b + 32 + 2 * o);
        break;
    case HD_CPU_HEAD_E: *scale = ldexpf(0.5f, head[16 * b + o] - 127); break;
    case HD_CPU_HEAD_K45:
        *scale = d * (float)six_bits(head + 64, 16, b, o);
        *add = -half_at(head + 32 + 2 * o) * (float)six_bits(head + 64, 16, 8 + b, o);
        break;
    case HD_CPU_HEAD_K6: *scale = d * (float)(int8_t)head[32 + 16 * half + o]; break;
    case HD_CPU_HEAD_K3: *scale = d * (float)(six_bits(head + 32, 16, half, o) - 32); break;
    case HD_CPU_HEAD_K2:
        *scale = d * (float)(head[64 + 16 * half + o] & 15);
        *add = -half_at(head + 32 + 2 * o) * (float)(head[64 + 16 * half + o] >> 4);
        break;
    case HD_CPU_HEAD_X2:
        *scale = d * ((float)(head[32 + 16 * (b / 2) + o] >> (4 * (b % 2)) & 15) + 0.5f) / 4;
        break;
    default: *scale = d * (float)(six_bits(head + 32, 8, b, o) - 32); break;
    }
}

static int bits_at(const unsigned char *plane, int bits, int o, int k) {
    int g = k % 32 / 4, vector = bits == 8 ? g : bits == 4 ? g % 4 : bits == 2 ? g / 4 : 0;
    int shift = bits == 8 ? 0 : bits == 4 ? 4 * (g / 4) : bits == 2 ? 2 * (g % 4) : g;
    int byte = plane[64 * (bits * (k / 32) + vector) + 4 * o + k % 4];
    return byte >> shift & ((1 << bits) - 1);
}

/* The value of input k of a point by the index of it. */
static int point_at(const unsigned char *plane, int o, int k) {
#define CODE(c) c,
    static const uint16_t grid[256] = {HD_IQ2_GRID(CODE)};
#undef CODE
    static const int value[3] = {8, 25, 43};
    return value[grid[plane[64 * (k / 32) + 4 * o + k % 32 / 8]] >> (2 * (k % 8)) & 3];
}

static float weight_at(enum hd_format f, const unsigned char *image, int n_in, int row, int k) {
    static const int iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                1,    13,   25,  38,  53,  69,  89,  113};
    static const int fp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    hd_cpu_layout l = hd_cpu_layout_of(f);
    const unsigned char *p = image + (size_t)(row / 16) * hd_cpu_strip_bytes(f, n_in);
    int super = k / 256, n_sub = (n_in - 256 * super < 256 ? n_in - 256 * super : 256) / 32;
    p += (size_t)super * hd_cpu_strip_bytes(f, 256);
    float scale, add;
    scale_at(&l, p, row % 16, k % 256, &scale, &add);
    p += hd_cpu_head_bytes(l.head, n_sub);
    int code = bits_at(p, l.low_bits, row % 16, k % 256);
    int point = l.table == HD_CPU_TABLE_IQ2 ? point_at(p, row % 16, k % 256) : 0;
    p += 64 * l.low_bits * n_sub;
    if (l.table == HD_CPU_TABLE_IQ2)
        return scale * (float)(bits_at(p, 1, row % 16, k % 256) ? -point : point);
    if (l.high_bits > 0) code |= bits_at(p, l.high_bits, row % 16, k % 256) << l.low_bits;
    int whole = l.table == HD_CPU_TABLE_IQ4   ? iq4[code]
                : l.table == HD_CPU_TABLE_FP4 ? fp4[code]
                                              : code - l.offset;
    return scale * (float)whole + add;
}

/* Random bytes are valid blocks but for scales that are no numbers. */
static unsigned char *random_rows(enum hd_format f, int n_in, int n_out) {
    size_t n = hd_format_bytes(f, (size_t)n_in) * (size_t)n_out;
    unsigned char *p = malloc(n);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) {
        p[i] = (unsigned char)rng_int(&random_of, 0, 255);
        if (f == HD_F8_B128 && (p[i] & 127) == 127) p[i]--; /* a code of NaN spoils its block */
    }
    return p;
}

static float float_at(enum hd_format f, const unsigned char *image, int n_in, int row, int k) {
    const unsigned char *p = image + (size_t)(row / 16) * hd_cpu_strip_bytes(f, n_in);
    int o = row % 16, word = f == HD_F32 ? k : f == HD_F8_B128 ? k / 4 + k / 128 + 1 : k / 2;
    const unsigned char *v = p + 64 * word;
    float scale;
    uint16_t h = (uint16_t)(v[4 * o + k % 2 * 2] | v[4 * o + k % 2 * 2 + 1] << 8);
    switch (f) {
    case HD_F32: memcpy(&scale, v + 4 * o, sizeof scale); return scale;
    case HD_BF16: return hd_bf16_to_f32(h);
    case HD_F16: return half_at(v + 32 * (k % 2) + 2 * o);
    default: /* FP8 */
        memcpy(&scale, p + 64 * 33 * (k / 128) + 4 * o, sizeof scale);
        return scale * hd_e4m3_to_f32(v[4 * o + k % 4]);
    }
}

static bool same(float a, float b) { return a == b || (isnan(a) && isnan(b)); }

static void check_image(enum hd_format f, int n_in, int n_out) {
    size_t row_bytes = hd_format_bytes(f, (size_t)n_in), n = hd_cpu_packed_bytes(f, n_in, n_out);
    unsigned char *rows = random_rows(f, n_in, n_out), *image = aligned_alloc(64, n),
                  *parts = aligned_alloc(64, n);
    float *expected = malloc(sizeof(float) * (size_t)n_in);
    assert_true(image != NULL && parts != NULL && expected != NULL);
    hd_cpu_pack(f, n_in, n_out, rows, image);
    for (int o = 0; o < n_out; o++) {
        hd_format_get(f)->decode(rows + (size_t)o * row_bytes, expected, (size_t)n_in);
        for (int k = 0; k < n_in; k++) {
            float found = hd_cpu_is_float(f) ? float_at(f, image, n_in, o, k)
                                             : weight_at(f, image, n_in, o, k);
            if (!same(found, expected[k]) && !(isinf(expected[k]) || isnan(expected[k])))
                fail_msg("%s, output %d, input %d: expected %g, found %g", hd_format_get(f)->name,
                         o, k, (double)expected[k], (double)found);
        }
    }
    size_t strip = hd_cpu_strip_bytes(f, n_in);
    for (int o = 0; o < n_out; o += 32) {
        int n_part = n_out - o < 32 ? n_out - o : 32;
        hd_cpu_pack(f, n_in, n_part, rows + (size_t)o * row_bytes,
                    parts + (size_t)(o / 16) * strip);
    }
    assert_memory_equal(image, parts, n);
    free(rows);
    free(image);
    free(parts);
    free(expected);
}

static void every_weight_is_where_the_layout_says(void **state) {
    (void)state;
    int n_format = 0;
    for (enum hd_format f = 0; f < HD_FORMAT_COUNT; f++) {
        if (!hd_cpu_is_packed(f)) continue;
        int block = hd_format_get(f)->block_elems;
        check_image(f, block, 1);
        check_image(f, 3 * block, 16);
        check_image(f, 256 + block, 37);
        check_image(f, 512, 80);
        n_format++;
    }
    assert_int_equal(n_format, 14);
    static const enum hd_format floats[] = {HD_F32, HD_F16, HD_BF16};
    for (size_t i = 0; i < HD_COUNT_OF(floats); i++) {
        check_image(floats[i], 1, 1);
        check_image(floats[i], 257, 37);
        check_image(floats[i], 512, 80);
    }
    check_image(HD_F8_B128, 128, 1);
    check_image(HD_F8_B128, 384, 37);
}

static void an_image_is_hardly_larger_than_the_file(void **state) {
    (void)state;
    for (enum hd_format f = 0; f < HD_FORMAT_COUNT; f++) {
        if (!hd_cpu_is_packed(f)) continue;
        size_t file = hd_format_bytes(f, 2048) * 1408, image = hd_cpu_packed_bytes(f, 2048, 1408);
        assert_true((double)image <= (f == HD_IQ2_XXS ? 1.1 : 1.02) * (double)file);
        assert_int_equal(hd_cpu_packed_bytes(f, 3 * hd_format_get(f)->block_elems, 1) % 64, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_weight_is_where_the_layout_says),
        cmocka_unit_test(an_image_is_hardly_larger_than_the_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
