/* Kernels for repacked weights, every format at every level that this machine has: weights as
 * floats are the format's decoding; products are what exact sums of the quantised activations give,
 * the same bits whichever rows and strips stand beside, and the same bits at every level but
 * scalar. */
#include "support/op_data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROW_MAX = 45, PART_MAX = 29 }; /* rows enough for every kernel of every level */

static bool is_fused(const hd_cpu_kernels *k) { return k != &hd_cpu_scalar; }

/* Rows of quantised activations, and what they stand for. */
typedef struct rows {
    int n_in;
    bool is_wide;
    size_t step;
    unsigned char *block[ROW_MAX];
    double *value[ROW_MAX]; /* [n_in] as 16 bits when is_wide, else as 8 */
} rows;

static void fill(rows *x, const hd_cpu_kernels *k, float *const *from) {
    x->step = hd_cpu_xblock_bytes(x->is_wide);
    for (int r = 0; r < ROW_MAX; r++) {
        x->block[r] = malloc((size_t)x->n_in / 32 * x->step);
        x->value[r] = malloc(sizeof(double) * (size_t)x->n_in);
        assert_true(x->block[r] != NULL && x->value[r] != NULL);
        k->quantise(from[r], x->n_in, x->is_wide, x->block[r]);
        for (int i = 0; i < x->n_in; i++) {
            const hd_cpu_xblock *b =
                (const hd_cpu_xblock *)(const void *)(x->block[r] + (size_t)(i / 32) * x->step);
            double q = b->q[i % 32];
            x->value[r][i] = x->is_wide ? (double)b->wide.d * (256 * q + b->wide.lower[i % 32])
                                        : (double)b->d * q;
        }
    }
}

static void drop(rows *x) {
    for (int r = 0; r < ROW_MAX; r++) {
        free(x->block[r]);
        free(x->value[r]);
    }
}

/* Half a step, and what float32 adds: 8 bits, 1/127 of the block's largest; 16, 1/32512. */
static void check_rounding(const rows *x, float *const *from) {
    for (int r = 0; r < ROW_MAX; r++) {
        for (int i = 0; i < x->n_in; i++) {
            double top = 0;
            for (int j = i / 32 * 32; j < i / 32 * 32 + 32; j++)
                top = fmax(top, fabs((double)from[r][j]));
            double bound = 0.51 / (x->is_wide ? 32512 : 127);
            assert_true(fabs(x->value[r][i] - (double)from[r][i]) <= bound * top);
        }
    }
}

typedef struct matrix {
    enum hd_format f;
    int n_in, n_out;
    hd_weight *w;
    unsigned char *image;
    double *value; /* [n_out, n_in] */
} matrix;

static matrix random_matrix(enum hd_format f, int n_in, int n_out) {
    matrix m = {.f = f, .n_in = n_in, .n_out = n_out, .w = test_weight(f, n_in, n_out, 1)};
    m.image = aligned_alloc(64, hd_cpu_packed_bytes(f, n_in, n_out));
    m.value = malloc(sizeof(double) * (size_t)n_in * (size_t)n_out);
    float *row = malloc(sizeof(float) * (size_t)n_in);
    assert_true(m.image != NULL && m.value != NULL && row != NULL);
    hd_cpu_pack(f, n_in, n_out, m.w->mat[0], m.image);
    for (int o = 0; o < n_out; o++) {
        hd_format_get(f)->decode((const char *)m.w->mat[0] +
                                     (size_t)o * hd_format_bytes(f, (size_t)n_in),
                                 row, (size_t)n_in);
        for (int i = 0; i < n_in; i++)
            m.value[(size_t)o * (size_t)n_in + (size_t)i] = (double)row[i];
    }
    free(row);
    return m;
}

static void drop_matrix(matrix *m) {
    test_weight_free(m->w);
    free(m->image);
    free(m->value);
}

/* c[n_row, 64] of some strips, of rows row0 ..; or c[n_row, ldc]. */
typedef struct part {
    int strip, n_strip, row0, n_row;
    size_t ldc;
} part;

static void product(const hd_cpu_kernels *k, const matrix *m, const rows *x, part p, float *c) {
    k->packed_product(&(hd_cpu_packed_product){
        .format = m->f,
        .is_wide = x->is_wide,
        .n_row = p.n_row,
        .n_in = m->n_in,
        .n_strip = p.n_strip,
        .strip = m->image + (size_t)p.strip * hd_cpu_strip_bytes(m->f, m->n_in),
        .next = m->image,
        .x = (const unsigned char *const *)x->block + p.row0,
        .x_step = x->step,
        .c = c,
        .ldc = p.ldc != 0 ? p.ldc : HD_CPU_STRIP});
}

static void check_sums(const matrix *m, const rows *x, int strip, const float *c) {
    for (int r = 0; r < ROW_MAX; r++) {
        for (int o = 16 * strip; o < 16 * strip + 16 && o < m->n_out; o++) {
            double sum = 0, size = 0;
            for (int i = 0; i < m->n_in; i++) {
                double term = m->value[(size_t)o * (size_t)m->n_in + (size_t)i] * x->value[r][i];
                sum += term, size += fabs(term);
            }
            double found = (double)c[r * HD_CPU_STRIP + o % 16];
            /* Float sums of blocks; formats with minimums add two numbers that nearly cancel. */
            if (!(fabs(found - sum) <= 1e-5 * size + 1e-30))
                fail_msg("%s [%d, %d], row %d, output %d: expected %.9g, found %.9g",
                         hd_format_get(m->f)->name, m->n_out, m->n_in, r, o, sum, found);
        }
    }
}

static void check_product(const matrix *m, bool is_wide) {
    static float c[TEST_ISA_MAX][ROW_MAX * HD_CPU_STRIP], alone[ROW_MAX * HD_CPU_STRIP];
    static float all[ROW_MAX * HD_CPU_STRIP];
    const hd_cpu_kernels *k[TEST_ISA_MAX];
    int n_level = test_kernels(k), n_strip = (m->n_out + 15) / 16;
    float *from[ROW_MAX];
    for (int r = 0; r < ROW_MAX; r++) from[r] = test_floats((size_t)m->n_in, r % 3 == 0 ? 100 : 1);
    for (int strip = 0; strip < n_strip; strip++) {
        for (int i = 0; i < n_level; i++) {
            rows x = {.n_in = m->n_in, .is_wide = is_wide};
            memset(c[i], 0, sizeof c[i]);
            fill(&x, k[i], from);
            check_rounding(&x, from);
            product(k[i], m, &x, (part){strip, 1, 0, ROW_MAX, 0}, c[i]);
            check_sums(m, &x, strip, c[i]);
            for (int n = 1; n <= PART_MAX; n++) {
                int end = n <= 20 ? 40 : ROW_MAX;
                for (int r = 0; r + n <= end; r += n) {
                    memset(alone, 0, sizeof alone);
                    product(k[i], m, &x, (part){strip, 1, r, n, 0}, alone);
                    test_bits_equal(alone, c[i] + r * HD_CPU_STRIP,
                                    sizeof(float) * (size_t)n * HD_CPU_STRIP, "rows in parts");
                }
                if (n == 20) n = PART_MAX - 1;
            }
            product(k[i], m, &x, (part){0, n_strip, 0, ROW_MAX, 0}, all);
            for (int r = 0; r < ROW_MAX; r++)
                test_bits_equal(all + r * HD_CPU_STRIP + 16 * strip, c[i] + r * HD_CPU_STRIP,
                                16 * sizeof(float), "strips together");
            drop(&x);
        }
        for (int i = 1; i < n_level; i++)
            if (is_fused(k[i]) && is_fused(k[i - 1]))
                test_bits_equal(c[i], c[i - 1], sizeof c[i], "two levels");
    }
    for (int r = 0; r < ROW_MAX; r++) free(from[r]);
}

static void products_are_exact_sums(void **state) {
    (void)state;
    for (enum hd_format f = 0; f < HD_FORMAT_COUNT; f++) {
        if (!hd_cpu_is_packed(f)) continue;
        int block = hd_format_get(f)->block_elems;
        const int shape[][2] = {{block, 3}, {3 * block, 16}, {256 + block, 37}};
        for (size_t i = 0; i < HD_COUNT_OF(shape); i++) {
            matrix m = random_matrix(f, shape[i][0], shape[i][1]);
            check_product(&m, false);
            check_product(&m, true);
            drop_matrix(&m);
        }
    }
}

/* As many as eight rows may take any number of strips at once. */
static void few_rows_take_many_strips(void **state) {
    (void)state;
    enum { STRIPS = 9, LDC = 16 * STRIPS + 16, FEW = 8 };
    static float all[FEW * LDC], one[FEW * HD_CPU_STRIP];
    const hd_cpu_kernels *k[TEST_ISA_MAX];
    int n_level = test_kernels(k);
    for (enum hd_format f = 0; f < HD_FORMAT_COUNT; f++) {
        if (!hd_cpu_is_packed(f)) continue;
        matrix m = random_matrix(f, 256 + hd_format_get(f)->block_elems, 16 * STRIPS);
        float *from[ROW_MAX];
        for (int r = 0; r < ROW_MAX; r++) from[r] = test_floats((size_t)m.n_in, 1);
        for (int i = 0; i < n_level; i++) {
            rows x = {.n_in = m.n_in, .is_wide = i % 2 == 1};
            fill(&x, k[i], from);
            for (int n = 1; n <= FEW; n++) {
                memset(all, 0, sizeof all);
                product(k[i], &m, &x, (part){0, STRIPS, 0, n, LDC}, all);
                for (int s = 0; s < STRIPS; s++) {
                    product(k[i], &m, &x, (part){.strip = s, .n_strip = 1, .n_row = n}, one);
                    for (int r = 0; r < n; r++)
                        test_bits_equal(all + r * LDC + 16 * s, one + r * HD_CPU_STRIP,
                                        16 * sizeof(float), "strips together");
                }
                for (int r = 0; r < n; r++)
                    for (int o = 16 * STRIPS; o < LDC; o++) assert_true(all[r * LDC + o] == 0);
            }
            drop(&x);
        }
        for (int r = 0; r < ROW_MAX; r++) free(from[r]);
        drop_matrix(&m);
    }
}

static void weights_as_floats_are_the_decoding(void **state) {
    (void)state;
    const hd_cpu_kernels *k[TEST_ISA_MAX];
    int n_level = test_kernels(k);
    for (enum hd_format f = 0; f < HD_FORMAT_COUNT; f++) {
        if (!hd_cpu_is_packed(f)) continue;
        matrix m = random_matrix(f, 256 + hd_format_get(f)->block_elems, 40);
        float *panel = malloc(sizeof(float) * (size_t)m.n_in * 48);
        assert_non_null(panel);
        for (int i = 0; i < n_level; i++) {
            for (int s = 0; s < 3; s++)
                k[i]->packed_unpack(&(hd_cpu_packed_unpack){
                    .format = m.f,
                    .n_in = m.n_in,
                    .strip = m.image + (size_t)s * hd_cpu_strip_bytes(m.f, m.n_in),
                    .panel = panel + 16 * s,
                    .ld = 48});
            for (int o = 0; o < m.n_out; o++)
                for (int j = 0; j < m.n_in; j++)
                    assert_true((double)panel[(size_t)j * 48 + (size_t)o] ==
                                m.value[(size_t)o * (size_t)m.n_in + (size_t)j]);
        }
        free(panel);
        drop_matrix(&m);
    }
}

/* Codes and activations at their extremes in every place: all weights of a block the largest or the
 * least, activations of one sign or signs that alternate. */
static void integer_products_do_not_saturate(void **state) {
    (void)state;
    const hd_cpu_kernels *k[TEST_ISA_MAX];
    int n_level = test_kernels(k);
    enum { N_IN = 64 };
    const int extreme[2] = {-128, 127};
    for (int i = 0; i < n_level; i++) {
        unsigned char block[16][68], image[2048] __attribute__((aligned(64)));
        uint16_t d = hd_f32_to_f16(1.0f);
        for (int o = 0; o < 16; o++)
            for (int b = 0; b < 2; b++) {
                memcpy(block[o] + 34 * b, &d, sizeof d);
                for (int j = 0; j < 32; j++)
                    block[o][34 * b + 2 + j] = (unsigned char)extreme[o < 4   ? 0
                                                                      : o < 8 ? 1
                                                                              : (o + j) % 2];
            }
        assert_true(hd_cpu_packed_bytes(HD_Q8_0, N_IN, 16) <= sizeof image);
        hd_cpu_pack(HD_Q8_0, N_IN, 16, block, image);
        for (int is_wide = 0; is_wide < 2; is_wide++) {
            float x[2][N_IN], c[2 * HD_CPU_STRIP];
            hd_cpu_xblock xb[2][2];
            const unsigned char *row[2] = {(unsigned char *)xb[0], (unsigned char *)xb[1]};
            size_t step = hd_cpu_xblock_bytes(is_wide);
            for (int j = 0; j < N_IN; j++) x[0][j] = -127, x[1][j] = j % 2 ? 127 : -127;
            for (int r = 0; r < 2; r++) k[i]->quantise(x[r], N_IN, is_wide, (unsigned char *)xb[r]);
            k[i]->packed_product(&(hd_cpu_packed_product){.format = HD_Q8_0,
                                                          .is_wide = is_wide,
                                                          .n_row = 2,
                                                          .n_in = N_IN,
                                                          .n_strip = 1,
                                                          .strip = image,
                                                          .next = image,
                                                          .x = row,
                                                          .x_step = step,
                                                          .c = c,
                                                          .ldc = HD_CPU_STRIP});
            for (int o = 0; o < 16; o++)
                for (int r = 0; r < 2; r++) {
                    double sum = 0;
                    for (int j = 0; j < N_IN; j++)
                        sum += extreme[o < 4 ? 0 : o < 8 ? 1 : (o + j) % 2] * (double)x[r][j];
                    assert_true(fabs((double)c[r * HD_CPU_STRIP + o] - sum) < 0.5);
                }
        }
    }
}

/* Activation i of a row: of one sign, of both in turn, or such that as 16 bits all but one have the
 * least lower byte, -128. */
static float extreme_input(int row, int i) {
    float least = i == 0 ? 1.0f : 25728.0f / 32512;
    switch (row % 5) {
    case 0: return 1;
    case 1: return -1;
    case 2: return i % 2 == 0 ? 1 : -1;
    case 3: return least;
    default: return i == 0 ? 1.0f : -25472.0f / 32512;
    }
}

/* Sets all codes of a strip of 256 inputs, and what they are worth. */
static void set_codes(matrix *m, int byte) {
    static float panel[256 * 16];
    size_t head = hd_cpu_head_bytes(hd_cpu_layout_of(m->f).head, 8);
    memset(m->image + head, byte, hd_cpu_strip_bytes(m->f, 256) - head);
    hd_cpu_scalar.packed_unpack(&(hd_cpu_packed_unpack){
        .format = m->f, .n_in = 256, .strip = m->image, .panel = panel, .ld = 16});
    for (int o = 0; o < 16; o++)
        for (int i = 0; i < 256; i++) m->value[o * 256 + i] = (double)panel[i * 16 + o];
}

/* The same of every format, with a strip's codes all alike: sums of 16 bits hold the largest. */
static void extreme_codes_do_not_saturate(void **state) {
    (void)state;
    static float c[ROW_MAX * HD_CPU_STRIP];
    const hd_cpu_kernels *k[TEST_ISA_MAX];
    int n_level = test_kernels(k);
    float *from[ROW_MAX];
    for (int r = 0; r < ROW_MAX; r++) {
        from[r] = test_floats(256, 1);
        for (int i = 0; i < 256; i++) from[r][i] = extreme_input(r, i % 32);
    }
    for (enum hd_format f = 0; f < HD_FORMAT_COUNT; f++) {
        if (!hd_cpu_is_packed(f)) continue;
        matrix m = random_matrix(f, 256, 16);
        const int codes[] = {0xFF, 0x77, 0x00};
        for (size_t j = 0; j < 2 * HD_COUNT_OF(codes) * (size_t)n_level; j++) {
            const hd_cpu_kernels *level = k[j / (2 * HD_COUNT_OF(codes))];
            rows x = {.n_in = 256, .is_wide = j % 2 == 1};
            set_codes(&m, codes[j / 2 % HD_COUNT_OF(codes)]);
            fill(&x, level, from);
            product(level, &m, &x, (part){0, 1, 0, ROW_MAX, 0}, c);
            check_sums(&m, &x, 0, c);
            for (int r = 0; r < ROW_MAX; r += 3)
                product(level, &m, &x, (part){0, 1, r, 3, 0}, c + r * HD_CPU_STRIP);
            check_sums(&m, &x, 0, c);
            drop(&x);
        }
        drop_matrix(&m);
    }
    for (int r = 0; r < ROW_MAX; r++) free(from[r]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_as_floats_are_the_decoding),
        cmocka_unit_test(products_are_exact_sums),
        cmocka_unit_test(few_rows_take_many_strips),
        cmocka_unit_test(integer_products_do_not_saturate),
        cmocka_unit_test(extreme_codes_do_not_saturate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
