/* Random data for tests of ops: one linear congruential sequence a process, so a failure repeats.
 */
#include "support/op_data.h"

#include "support/stage.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t seed = 7;

static uint64_t next(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return seed >> 11;
}

double test_uniform(void) { return (double)next() / 4503599627370496.0 - 1; }

int test_below(int n) { return (int)(next() % (uint64_t)n); }

static void *checked(size_t n_byte) {
    void *p = malloc(n_byte > 0 ? n_byte : 1);
    assert_non_null(p);
    return p;
}

float *test_floats(size_t n, double scale) {
    float *p = checked(n * sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = (float)(test_uniform() * scale);
    return p;
}

float *test_copy(const float *p, size_t n) {
    float *copy = checked(n * sizeof *copy);
    memcpy(copy, p, n * sizeof *copy);
    return copy;
}

hd_weight *test_weight(enum hd_format f, int n_in, int n_out, int n_mat) {
    hd_weight *w = checked(sizeof *w);
    const void **mat = checked(sizeof *mat * (size_t)n_mat);
    size_t n = (size_t)n_in * (size_t)n_out;
    for (int m = 0; m < n_mat; m++) {
        float *value = test_floats(n, 1.7 / sqrt(n_in));
        void *bytes = checked(hd_format_bytes(f, n));
        hd_format_get(f)->encode(value, bytes, n);
        free(value);
        mat[m] = bytes;
    }
    *w = (hd_weight){.format = f, .n_in = n_in, .n_out = n_out, .n_mat = n_mat, .mat = mat};
    return w;
}

void test_weight_free(hd_weight *w) {
    if (w == NULL) return;
    for (int m = 0; m < w->n_mat; m++) free((void *)(uintptr_t)w->mat[m]);
    free((void *)(uintptr_t)w->mat);
    free(w);
}

static hd_status open_level(const char *isa, int n_thread, hd_dev *out) {
    hd_dev_config config = test_dev_config();
    config.n_thread = n_thread, config.isa = isa;
    return hd_dev_open(test_backend() ? test_backend() : "cpu", &config, out);
}

bool test_has_format(enum hd_format f) {
    hd_dev d;
    assert_ok(open_level("auto", 1, &d));
    bool has = d.ops->supports(d.ctx, HD_OP_proj_add, f);
    if (!has) printf("skipped: %s: not read by backend %s\n", hd_format_get(f)->name, d.ops->name);
    hd_dev_close(&d);
    return has;
}

bool test_has_kv(enum hd_kv_type t) {
    hd_dev d;
    assert_ok(open_level("auto", 1, &d));
    bool has = d.ops->supports_kv(d.ctx, t);
    if (!has)
        printf("skipped: cache type %s: not read by backend %s\n", hd_kv_type_name(t), d.ops->name);
    hd_dev_close(&d);
    return has;
}

double test_kv_step(enum hd_kv_type t) {
    static const double step[] = {[HD_KV_F32] = 0,
                                  [HD_KV_F16] = 1e-3,
                                  [HD_KV_BF16] = 8e-3,
                                  [HD_KV_FP8] = 0.13,
                                  [HD_KV_INT8] = 0.02};
    return step[t];
}

int test_levels(test_level *out) {
    static const char *const names[TEST_ISA_MAX] = {"scalar", "avx2", "avxvnni", "avx512", "amx"};
    static int is_told = 0;
    int n = 0;
    if (test_backend()) {
        if (!is_told) test_need_backend();
        is_told = 1;
        out[0] = (test_level){.isa = "auto", .n_thread = 1};
        return 1;
    }
    for (size_t i = 0; i < HD_COUNT_OF(names); i++) {
        hd_dev d;
        if (open_level(names[i], 1, &d) != HD_OK) {
            if (!is_told) printf("skipped: level %s: %s\n", names[i], hd_error_text());
            continue;
        }
        hd_dev_close(&d);
        for (int t = 1; t <= 3; t++) out[n++] = (test_level){.isa = names[i], .n_thread = t};
    }
    is_told = 1;
    return n;
}

hd_dev test_open_raw(test_level level, const hd_dev_limits *limits) {
    hd_dev d;
    assert_ok(open_level(level.isa, level.n_thread, &d));
    assert_ok(d.ops->reserve(d.ctx, limits));
    return d;
}

int test_kernels(const hd_cpu_kernels **out) {
    test_level level[TEST_LEVEL_MAX];
    int n = 0, n_level = test_levels(level);
    for (int i = 0; i < n_level; i += 3) {
        assert_ok(hd_cpu_choose_level(level[i].isa, &out[n]));
        assert_string_equal(out[n]->name, level[i].isa);
        n++;
    }
    return n;
}

hd_dev test_open_cpu(test_level level, const hd_dev_limits *limits) {
    hd_dev d = test_open_raw(level, limits);
    return d.ops->prepare != NULL ? test_stage(d) : d;
}

hd_dev test_open_ref(const hd_dev_limits *limits) {
    hd_dev d;
    assert_ok(hd_dev_open("ref", NULL, &d));
    assert_ok(d.ops->reserve(d.ctx, limits));
    return d;
}

void test_close(hd_dev *d) { hd_dev_close(d); }

void test_rows_close(const float *found, const float *expected, int n_row, int n, double bound,
                     const char *what) {
    for (int r = 0; r < n_row; r++) {
        const float *f = found + (size_t)r * (size_t)n, *e = expected + (size_t)r * (size_t)n;
        double top = 0;
        for (int i = 0; i < n; i++) top = fmax(top, fabs((double)e[i]));
        for (int i = 0; i < n; i++)
            if (!(fabs((double)f[i] - (double)e[i]) <= bound * top + 1e-30))
                fail_msg("%s: row %d value %d: expected %.9g, found %.9g (bound %g of %g)", what, r,
                         i, (double)e[i], (double)f[i], bound, top);
    }
}

void test_bits_equal(const void *found, const void *expected, size_t n_byte, const char *what) {
    const unsigned char *f = found, *e = expected;
    for (size_t i = 0; i < n_byte; i++)
        if (f[i] != e[i]) fail_msg("%s: byte %zu of %zu differs", what, i, n_byte);
}

void test_rows_equal(const void *found, const void *expected, size_t n_byte, const char *what) {
    if (test_is_deterministic()) test_bits_equal(found, expected, n_byte, what);
}

/* ---- Batches ---- */

static void shuffle(int32_t *v, int n) {
    for (int i = n - 1; i > 0; i--) {
        int j = test_below(i + 1);
        int32_t t = v[i];
        v[i] = v[j];
        v[j] = t;
    }
}

void test_batch(hd_batch *b, const test_seq *seq, int n_seq, int page_tok, int *n_page_all) {
    int n_row = 0, n_page = 0;
    for (int s = 0; s < n_seq; s++) {
        n_row += seq[s].n_row;
        n_page += (seq[s].n_pos + page_tok - 1) / page_tok;
    }
    *n_page_all = n_page + 3;
    hd_batch_init(b, n_row, n_seq, n_page, page_tok);
    int32_t *pool = checked(sizeof *pool * (size_t)*n_page_all);
    for (int i = 0; i < *n_page_all; i++) pool[i] = i;
    shuffle(pool, *n_page_all);
    for (int s = 0, row = 0; s < n_seq; s++) {
        int n = (seq[s].n_pos + page_tok - 1) / page_tok;
        b->seq_slot[s] = s;
        b->seq_page0[s + 1] = b->seq_page0[s] + n;
        b->seq_row0[s + 1] = row + seq[s].n_row;
        memcpy(b->page + b->seq_page0[s], pool + b->seq_page0[s], sizeof *pool * (size_t)n);
        for (int i = 0; i < seq[s].n_row; i++, row++) {
            int pos = seq[s].n_pos - seq[s].n_row + i;
            b->token[row] = test_below(50);
            b->pos[row] = pos;
            b->row_seq[row] = s;
            b->kv_row[row] = b->page[b->seq_page0[s] + pos / page_tok] * page_tok + pos % page_tok;
            b->form[row] = i < seq[s].n_expanded ? HD_MLA_EXPANDED : HD_MLA_ABSORBED;
        }
    }
    free(pool);
    b->n_row = n_row, b->n_seq = n_seq, b->n_page = n_page;
    hd_batch_check(b);
}

void test_batch_row(hd_batch *out, const hd_batch *b, int r) {
    int s = b->row_seq[r], page0 = b->seq_page0[s], n_page = b->pos[r] / b->page_tok + 1;
    hd_batch_init(out, 1, 1, n_page, b->page_tok);
    out->n_row = out->n_seq = 1, out->n_page = n_page;
    out->token[0] = b->token[r], out->pos[0] = b->pos[r];
    out->kv_row[0] = b->kv_row[r], out->form[0] = b->form[r];
    out->seq_row0[1] = 1, out->seq_page0[1] = n_page;
    memcpy(out->page, b->page + page0, sizeof *out->page * (size_t)n_page);
    hd_batch_check(out);
}

void *test_cache(const hd_batch *b, int n_page, const hd_kv_layout *l) {
    size_t n = (size_t)n_page * (size_t)b->page_tok, w = (size_t)l->n;
    float *value = checked(n * w * sizeof *value);
    for (size_t i = 0; i < n * w; i++) value[i] = NAN;
    for (int s = 0; s < b->n_seq; s++) {
        int n_pos = b->pos[b->seq_row0[s + 1] - 1] + 1;
        for (int t = 0; t < n_pos; t++) {
            int page = b->page[b->seq_page0[s] + t / b->page_tok];
            float *row =
                value + ((size_t)page * (size_t)b->page_tok + (size_t)(t % b->page_tok)) * w;
            for (size_t i = 0; i < w; i++) row[i] = (float)test_uniform();
        }
    }
    char *cache = checked(hd_kv_bytes(l, n));
    for (size_t i = 0; i < n; i++) hd_kv_encode(l, value + i * w, cache + hd_kv_bytes(l, i));
    free(value);
    return cache;
}
