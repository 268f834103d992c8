/* Device pointers are host pointers moved by a distance that makes them no address at all. Of the
 * ops of a decoding step their bytes are kept as one number, which a rehearsal notes: as with
 * graphs, a step that differs from the rehearsed one of its size counts as an allocation. */
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
static hd_dev_limits limits;
enum { SHAPE_MAX = 64 };
static uint64_t rehearsed[SHAPE_MAX + 1], step_hash; /* [rows]; 0: not rehearsed */
static int n_decode_row;                             /* of the step; 0: it is no decoding step */
static bool is_rehearsing, was_rehearsed;

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
static hd_status far_copy(void *ctx, void *to, const void *from, size_t n_byte) {
    (void)ctx;
    memcpy(near(to), near(from), n_byte);
    return HD_OK;
}
static hd_status far_reserve(void *ctx, const hd_dev_limits *l) {
    limits = *l;
    return inner.ops->reserve(ctx, l);
}

static bool far_rehearsal(void *ctx, int ix, int *n_row, int *n_pos) {
    (void)ctx;
    *n_row = ix + 1, *n_pos = limits.n_pos;
    return *n_row <= limits.n_seq && *n_row <= limits.n_out && *n_row <= SHAPE_MAX;
}
static void far_rehearse(void *ctx, bool on) {
    (void)ctx;
    is_rehearsing = on;
    was_rehearsed = !on;
}

static void begin_list(const hd_batch *b) {
    bool is_decode = b->n_row == b->n_seq && b->n_row == b->n_out && b->n_row <= SHAPE_MAX;
    for (int i = 0; i < b->n_row; i++) is_decode &= b->form[i] == HD_MLA_ABSORBED;
    n_decode_row = is_decode ? b->n_row : 0;
    step_hash = 1;
}

static void add_to_list(enum hd_op op, const void *args, size_t n_byte) {
    step_hash = (step_hash ^ (uint64_t)op) * 0x100000001B3u;
    for (size_t i = 0; i < n_byte; i++)
        step_hash = (step_hash ^ ((const unsigned char *)args)[i]) * 0x100000001B3u;
}

static void end_list(void) {
    if (is_rehearsing) rehearsed[n_decode_row] = step_hash;
    if (was_rehearsed && n_decode_row > 0) n_alloc += rehearsed[n_decode_row] != step_hash;
}

static hd_status far_send(void *ctx, int ix, const void *from, size_t n_byte) {
    (void)ctx;
    end_list();
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
    if (near_batch.n_row_max < b->n_row_max || near_batch.n_seq_max < b->n_seq_max ||
        near_batch.n_page_max < b->n_page_max || near_batch.page_tok != b->page_tok) {
        hd_batch_fini(&near_batch);
        hd_batch_init(&near_batch, b->n_row_max, b->n_seq_max, b->n_page_max, b->page_tok);
    }
    begin_list(b);
    near_batch.n_row = b->n_row, near_batch.n_seq = b->n_seq;
    near_batch.n_page = b->n_page, near_batch.n_out = b->n_out;
    near_batch.layer0 = b->layer0, near_batch.layer1 = b->layer1;
    near_batch.chunk_ix = b->chunk_ix;
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
        add_to_list(HD_OP_##name, args, sizeof *args);                                             \
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
    is_broken = is_rehearsing = was_rehearsed = false;
    for (int i = 0; i < HD_DEV_STEPS; i++) n_sent[i] = SIZE_MAX;
    assert_ok(hd_dev_open("ref", NULL, &inner));
    far_ops = *inner.ops;
    far_ops.name = "far";
    far_ops.close = far_close;
    far_ops.alloc = far_alloc, far_ops.free = far_free;
    far_ops.put = far_put, far_ops.get = far_get, far_ops.copy = far_copy;
    far_ops.n_alloc = far_n_alloc;
    far_ops.reserve = far_reserve;
    far_ops.rehearsal = far_rehearsal, far_ops.rehearse = far_rehearse;
    far_ops.send = far_send, far_ops.receive = far_receive;
    far_ops.upload = far_upload, far_ops.free_bytes = far_free_bytes;
#define HD_OP(name, what) far_ops.name = far_##name;
#include "dev/op.def"
#undef HD_OP
    return (hd_dev){.ops = &far_ops, .ctx = inner.ctx};
}

void test_break_far(void) { is_broken = true; }
