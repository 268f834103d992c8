/* Device pointers are host pointers moved by a distance that makes them no address at all. */
#include "support/far_dev.h"

#include "support/check.h"
#include "support/op_args.h"

#include <string.h>

#define FAR ((uintptr_t)1 << 62)

static hd_dev_ops far_ops;
static hd_dev inner;
static hd_batch far_batch, near_batch; /* the arrays, as addresses of either kind */
static bool is_broken;
static uint64_t n_alloc;
static char sent[HD_DEV_STEPS][1024];
static size_t n_sent[HD_DEV_STEPS]; /* SIZE_MAX: received */

static void *far(void *p) { return (void *)((uintptr_t)p + FAR); }
static void *near(const void *p) {
    assert_true((uintptr_t)p >= FAR);
    return (void *)((uintptr_t)p - FAR);
}

static hd_status far_alloc(void *ctx, size_t n_byte, void **out) {
    hd_status s = inner.ops->alloc(ctx, n_byte, out);
    n_alloc++;
    if (s == HD_OK) *out = far(*out);
    return s;
}
static void far_free(void *ctx, void *p) { inner.ops->free(ctx, near(p)); }
static hd_status far_put(void *ctx, void *to, const void *from, size_t n_byte) {
    (void)ctx;
    memcpy(near(to), from, n_byte);
    return HD_OK;
}
static hd_status far_get(void *ctx, void *to, const void *from, size_t n_byte) {
    (void)ctx;
    if (is_broken) return HD_FAIL(DEVICE, "the far device broke");
    memcpy(to, near(from), n_byte);
    return HD_OK;
}
static hd_status far_send(void *ctx, int ix, const void *from, size_t n_byte) {
    (void)ctx;
    assert_true(n_byte <= sizeof sent[ix] && ix < HD_DEV_STEPS && n_sent[ix] == SIZE_MAX);
    memcpy(sent[ix], near(from), n_byte);
    n_sent[ix] = n_byte;
    return HD_OK;
}
static hd_status far_receive(void *ctx, int ix, void *to, size_t n_byte) {
    (void)ctx;
    if (is_broken) return HD_FAIL(DEVICE, "the far device broke");
    assert_int_equal(n_byte, n_sent[ix]);
    n_sent[ix] = SIZE_MAX;
    memcpy(to, sent[ix], n_byte);
    return HD_OK;
}
static uint64_t far_n_alloc(void *ctx) {
    (void)ctx;
    return n_alloc;
}
static uint64_t far_free_bytes(void *ctx) {
    (void)ctx;
    return 1 << 30;
}

static hd_status far_upload(void *ctx, const hd_batch *b, const hd_batch **out) {
    (void)ctx;
    if (is_broken) return HD_FAIL(DEVICE, "the far device broke");
    hd_batch_fini(&near_batch);
    hd_batch_init(&near_batch, b->n_row_max, b->n_seq_max, b->n_page_max, b->page_tok);
    near_batch.n_row = b->n_row, near_batch.n_seq = b->n_seq;
    near_batch.n_page = b->n_page, near_batch.n_out = b->n_out;
/* clang-format off */
#define ARRAYS(ARRAY)                                                                              \
    ARRAY(token, n_row) ARRAY(pos, n_row) ARRAY(row_seq, n_row) ARRAY(kv_row, n_row)               \
    ARRAY(form, n_row) ARRAY(seq_slot, n_seq) ARRAY(seq_row0, n_seq + 1)                           \
    ARRAY(seq_page0, n_seq + 1) ARRAY(page, n_page) ARRAY(out_row, n_out)                           \
    ARRAY(draw, n_out)
/* clang-format on */
#define COPY(field, n) memcpy(near_batch.field, b->field, sizeof *b->field *(size_t)(b->n));
    ARRAYS(COPY)
    far_batch = near_batch;
#define MOVE(field, n) far_batch.field = far(far_batch.field);
    ARRAYS(MOVE)
    *out = &far_batch;
    return HD_OK;
}

static void move_near(test_args *t) {
    for (int i = 0; i < t->n; i++) *t->arg[i].at = near(*t->arg[i].at);
    if (!t->batch) return;
    assert_ptr_equal(*t->batch, &far_batch);
    *t->batch = &near_batch;
}

#define HD_OP(name, what)                                                                          \
    static void far_##name(void *ctx, const struct hd_op_##name *args) {                           \
        struct hd_op_##name a = *args;                                                             \
        test_args t;                                                                               \
        test_args_##name(&a, &near_batch, &t);                                                     \
        move_near(&t);                                                                             \
        inner.ops->name(ctx, &a);                                                                  \
    }
#include "dev/op.def"
#undef HD_OP

static void far_close(void *ctx) {
    hd_batch_fini(&near_batch);
    inner.ops->close(ctx);
}

hd_dev test_open_far(void) {
    is_broken = false;
    for (int i = 0; i < HD_DEV_STEPS; i++) n_sent[i] = SIZE_MAX;
    assert_ok(hd_dev_open("ref", NULL, &inner));
    far_ops = *inner.ops;
    far_ops.name = "far";
    far_ops.close = far_close;
    far_ops.alloc = far_alloc, far_ops.free = far_free;
    far_ops.put = far_put, far_ops.get = far_get;
    far_ops.n_alloc = far_n_alloc;
    far_ops.send = far_send, far_ops.receive = far_receive;
    far_ops.upload = far_upload, far_ops.free_bytes = far_free_bytes;
#define HD_OP(name, what) far_ops.name = far_##name;
#include "dev/op.def"
#undef HD_OP
    return (hd_dev){.ops = &far_ops, .ctx = inner.ctx};
}

void test_break_far(void) { is_broken = true; }
