/* What an op's argument struct points at: where, how many bytes, read or written. With it a test
 * can run any op of any backend on host arrays. */
#ifndef HD_TEST_OP_ARGS_H
#define HD_TEST_OP_ARGS_H

#include "dev/dev.h"

typedef struct test_arg {
    void **at; /* the field */
    size_t n_byte;
    bool is_in, is_out;
} test_arg;

enum { TEST_ARG_MAX = 12, TEST_WEIGHT_MAX = 6 };

typedef struct test_args {
    int n, n_weight;
    test_arg arg[TEST_ARG_MAX];
    const hd_weight **weight[TEST_WEIGHT_MAX]; /* fields that are not NULL */
    const hd_batch **batch;                    /* the field, or NULL */
} test_args;

/* Lists what `args` (a struct hd_op_<name>) points at, NULL fields left out. The batch must be a
 * host's, or b (else NULL) one that has the same counts and its arrays on the host. Caches are
 * counted up to the last page that the batch names, x of head up to the last row that is wanted. */
#define HD_OP(name, what)                                                                          \
    void test_args_##name(struct hd_op_##name *args, const hd_batch *b, test_args *out);
#include "dev/op.def"
#undef HD_OP

#endif
