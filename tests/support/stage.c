/* The ops of one device, by way of copies where it has memory of its own, and of prepared weights.
 */
#include "support/stage.h"

#include "support/check.h"
#include "support/op_args.h"

static hd_dev_ops staged_ops;
static hd_dev inner;

/* Where the arguments of an op are: on the host, and copied. */
typedef struct staged {
    test_args t;
    void *host[TEST_ARG_MAX];
    hd_weight weight[TEST_WEIGHT_MAX];
} staged;

static void bring(staged *s, enum hd_op op) {
    test_args *t = &s->t;
    for (int i = 0; hd_dev_has_memory(&inner) && i < t->n; i++) {
        s->host[i] = *t->arg[i].at;
        assert_ok(inner.ops->alloc(inner.ctx, t->arg[i].n_byte, t->arg[i].at));
        if (t->arg[i].is_in)
            assert_ok(hd_dev_put(&inner, *t->arg[i].at, s->host[i], t->arg[i].n_byte));
    }
    for (int i = 0; i < t->n_weight; i++) {
        s->weight[i] = **t->weight[i];
        bool is_quantised = hd_format_get(s->weight[i].format)->block_elems > 1;
        s->weight[i].is_plain = op == HD_OP_embed || (op == HD_OP_route && is_quantised);
        assert_ok(inner.ops->prepare(inner.ctx, &s->weight[i]));
        *t->weight[i] = &s->weight[i];
    }
    if (inner.ops->settle) assert_ok(inner.ops->settle(inner.ctx));
    if (t->batch) assert_ok(hd_dev_upload(&inner, *t->batch, t->batch));
}

static void fetch(staged *s) {
    test_args *t = &s->t;
    for (int i = 0; hd_dev_has_memory(&inner) && i < t->n; i++) {
        if (t->arg[i].is_out)
            assert_ok(hd_dev_get(&inner, s->host[i], *t->arg[i].at, t->arg[i].n_byte));
        inner.ops->free(inner.ctx, *t->arg[i].at);
    }
    for (int i = 0; i < t->n_weight; i++) inner.ops->release(inner.ctx, &s->weight[i]);
}

#define HD_OP(name, what)                                                                          \
    static void staged_##name(void *ctx, const struct hd_op_##name *args) {                        \
        (void)ctx;                                                                                 \
        struct hd_op_##name a = *args;                                                             \
        staged s;                                                                                  \
        test_args_##name(&a, NULL, &s.t);                                                          \
        bring(&s, HD_OP_##name);                                                                   \
        inner.ops->name(inner.ctx, &a);                                                            \
        fetch(&s);                                                                                 \
    }
#include "dev/op.def"
#undef HD_OP

hd_dev test_stage(hd_dev d) {
    inner = d;
    staged_ops = *d.ops;
#define HD_OP(name, what) staged_ops.name = staged_##name;
#include "dev/op.def"
#undef HD_OP
    return (hd_dev){.ops = &staged_ops, .ctx = d.ctx};
}
