/* What tests of ops share: random weights in any format, batches over scattered pages, devices at
 * every instruction-set level that this machine has, and comparisons. Memory comes from malloc in
 * exact sizes, so that AddressSanitizer sees a kernel that reads past a tensor. */
#ifndef HD_TEST_OP_DATA_H
#define HD_TEST_OP_DATA_H

#include "support/backend.h"
#include "support/check.h"

#include "cpu/kernel.h"

double test_uniform(void); /* [-1, 1), one sequence a process */
int test_below(int n);     /* 0 .. n-1 */
float *test_floats(size_t n, double scale);
float *test_copy(const float *p, size_t n);

/* A random weight of n_mat matrices, each in its own allocation; free with test_weight_free. */
hd_weight *test_weight(enum hd_format f, int n_in, int n_out, int n_mat);
void test_weight_free(hd_weight *w);

/* Whether the backend under test (the cpu where none is named) reads weights of this format; says
 * so when not. */
bool test_has_format(enum hd_format f);

/* The same of a cache type. */
bool test_has_kv(enum hd_kv_type t);
/* By how much a value may change, as a share of its row's largest, when a rounding goes the other
 * way: its code is the next one, and its scale is. */
double test_kv_step(enum hd_kv_type t);

/* The cpu backend at the levels this machine has (others are named on stdout as skipped), or the
 * one level of another backend under test: when that cannot be opened, the program says why and
 * ends with code 77. */
typedef struct test_level {
    const char *isa;
    int n_thread;
} test_level;
enum { TEST_ISA_MAX = 5, TEST_LEVEL_MAX = 3 * TEST_ISA_MAX };
/* Fills out[TEST_LEVEL_MAX] with level x {1, 2, 3} threads; returns how many. */
int test_levels(test_level *out);
/* The kernels of those levels, out[TEST_ISA_MAX]; returns how many. */
int test_kernels(const hd_cpu_kernels **out);
hd_dev test_open_cpu(test_level level, const hd_dev_limits *limits);
/* The same, but the arguments of its ops have to be in its memory, where it has its own. */
hd_dev test_open_raw(test_level level, const hd_dev_limits *limits);
hd_dev test_open_ref(const hd_dev_limits *limits);
void test_close(hd_dev *d);

/* Per row of n: |found - expected| <= bound * max(|expected| of the row) + 1e-30. */
void test_rows_close(const float *found, const float *expected, int n_row, int n, double bound,
                     const char *what);
void test_bits_equal(const void *found, const void *expected, size_t n_byte, const char *what);
/* The same of rows that were computed beside others, where the device promises it. */
void test_rows_equal(const void *found, const void *expected, size_t n_byte, const char *what);

/* ---- Batches ---- */

/* One sequence: n_row rows that end at position n_pos - 1. */
typedef struct test_seq {
    int n_pos, n_row;
    int n_expanded; /* the first n_expanded rows are in expanded form, the others absorbed */
} test_seq;

/* Pages are dealt in random order from a pool with some to spare; *n_page_all is its size. */
void test_batch(hd_batch *b, const test_seq *seq, int n_seq, int page_tok, int *n_page_all);
/* Batch of row r of b alone; uses the same pages. */
void test_batch_row(hd_batch *out, const hd_batch *b, int r);
/* A cache of n_page pages: random where a sequence of b has a position, NaN everywhere else. */
void *test_cache(const hd_batch *b, int n_page, const hd_kv_layout *l);

#endif
