/* The backend contract: one table of functions a device.
 *
 * `ref` (lib/ref) is the oracle: plain scalar C that defines what is right. `cpu` (lib/cpu) is the
 * embedded fast path. A backend is opened, told its limits (so that it reserves all scratch memory
 * before the first step), given weights to prepare, then asked for ops by one thread at a time.
 *
 * A device works on the host's memory, or has memory of its own. Of the latter, pointers in
 * argument structs (tensors, and the arrays of the batch that `upload` returned) are the device's:
 * nobody else follows them. Its ops may only be enqueued when they return; `get` waits for all that
 * was. Ops return nothing: what can fail fails at open, prepare or reserve, and a device that broke
 * says so at the next upload or get. */
#ifndef HD_DEV_DEV_H
#define HD_DEV_DEV_H

#include "base/buf.h"
#include "dev/op.h"
#include "dev/spans.h"

/* What a GPU's products compute with: sums of BF16 terms that are as right as float32, or inputs
 * and weights rounded to BF16 once; sums are float32 either way, and the router's product is always
 * the former (its choice is discontinuous). AUTO: float32 for F32 weights, bfloat16 for others. On
 * cpu FLOAT32 rounds the activations that quantised weights meet to 16 bits, the others most of
 * them to 8 (docs/precision.md); ref computes in one way. */
enum hd_compute { HD_COMPUTE_AUTO, HD_COMPUTE_FLOAT32, HD_COMPUTE_BFLOAT16 };

typedef struct hd_dev_config {
    int ordinal;              /* which of several devices of a kind */
    int n_thread;             /* 0: one per available core */
    const char *isa;          /* "auto", "amx", "avx512", "avxvnni", "avx2", "scalar" */
    const char *cuda_library; /* path of the cuda backend; NULL: look for it (dev/plugin.h) */
    enum hd_compute compute;
    bool is_deterministic; /* level 1 on a GPU, too, where that costs speed */
    bool no_context_fmha;  /* a GPU computes the attention of a prompt row by row */
    bool no_multi_block;   /* a GPU computes the attention of a row and 16 heads in one block */
    bool no_early_launch;  /* a GPU's kernels start when those before them have ended */
} hd_dev_config;

/* "auto", "float32", "bfloat16" (vLLM's names); NULL: auto. */
HD_MUST_CHECK hd_status hd_compute_of(const char *name, enum hd_compute *out);

/* The largest shapes any op call will have. */
typedef struct hd_dev_limits {
    int n_row, n_seq, n_out;
    int d_model, n_vocab;
    int d_ff; /* widest dense or shared feed-forward */
    int d_expert, n_expert, n_used;
    int n_head, n_nope, n_rope, n_c, n_v, q_lora; /* GQA: n_rope = n_v = d_head, n_nope = n_c = 0 */
    int n_kv;             /* GQA: values of a key cache row, H_kv*d_head; else 0 */
    int n_pos;            /* longest sequence */
    int n_page, page_tok; /* of the cache, without the spare page */
    int n_table;          /* entries of a batch's page tables */
} hd_dev_limits;

/* What a device can do at best, measured when asked, so that speeds can be told as shares of it. */
typedef struct hd_dev_roofline {
    const char *flop_name; /* of the multiply-adds that products are made of */
    double flops;      /* of them, on operands that stay where they are, counted as two, a second */
    double int8_ops;   /* the same of 8-bit integers; 0: products are not made of those */
    double read_bytes; /* bytes a second, all threads streaming through one buffer */
    size_t buffer_bytes; /* of that buffer: a cache larger than this answers in memory's place */
} hd_dev_roofline;

/* Inputs of a product y = W x that a device is about to compute. */
typedef struct hd_dev_inputs {
    const hd_weight *w;
    int mat; /* matrix of w */
    int n_row;
    const float *x; /* [., ldx]: rows of w->n_in */
    size_t ldx;
    const int32_t *row; /* [n_row] rows of x; NULL: 0, 1, 2, ... */
} hd_dev_inputs;

/* Told of every product, on the thread that calls the op; expanded attention has none with k_b and
 * v_b (it makes keys and values of them). */
typedef struct hd_dev_observer {
    void (*inputs)(void *user, const hd_dev_inputs *in);
    void *user;
} hd_dev_observer;

enum {
    HD_DEV_STEPS = 2, /* steps under way at once, at most */
    HD_DEV_SPARE = 1  /* slots and cache pages behind the scheduler's, for a device's own rows */
};

typedef struct hd_dev_ops {
    const char *name;
    hd_status (*open)(const hd_dev_config *config, void **ctx);
    void (*close)(void *ctx);
    /* One line for people and logs ("2 threads, AVX-512 VNNI"), appended to b. */
    void (*describe)(void *ctx, hd_buf *b);
    /* Whether an op can read weights of this format, and attention a cache of this type. */
    bool (*supports)(void *ctx, enum hd_op op, enum hd_format f);
    bool (*supports_kv)(void *ctx, enum hd_kv_type t);
    /* Values put into caches since it was opened that their type could not hold (quant/kv.h), of
     * the steps that `get` has waited for. */
    uint64_t (*kv_lost)(void *ctx);
    /* Zeroed device memory, 64-byte aligned. */
    hd_status (*alloc)(void *ctx, size_t n_byte, void **out);
    void (*free)(void *ctx, void *p);
    /* All seven of a device with memory of its own, or none (NULL): copies from and to the host,
     * both waiting; a copy within its memory that is enqueued, as ops are; the batch of a step with
     * its arrays on the device, valid until the next upload, which may have rows, sequences and
     * outputs of the device's own behind the host's (HD_DEV_SPARE); a copy that is enqueued (send)
     * and waited for (receive), of at most n_out tokens, ix < HD_DEV_STEPS telling several apart;
     * bytes of its memory that are free. HD_E_DEVICE: the device broke. */
    hd_status (*put)(void *ctx, void *to, const void *from, size_t n_byte);
    hd_status (*get)(void *ctx, void *to, const void *from, size_t n_byte);
    hd_status (*copy)(void *ctx, void *to, const void *from, size_t n_byte);
    hd_status (*upload)(void *ctx, const hd_batch *b, const hd_batch **out);
    hd_status (*send)(void *ctx, int ix, const void *from, size_t n_byte);
    hd_status (*receive)(void *ctx, int ix, void *to, size_t n_byte);
    uint64_t (*free_bytes)(void *ctx);
    hd_status (*reserve)(void *ctx, const hd_dev_limits *limits);
    /* Optional (NULL): the devices of the ranks of a group, after reserve and before the group's
     * first collective (dev/comm.h). */
    hd_status (*join)(void *const *ctx, struct hd_comm *const *comm, int n_rank);
    /* Optional (NULL): bytes that reserve took. */
    uint64_t (*scratch_bytes)(void *ctx);
    /* Optional (NULL): repack or upload a weight, filling w->prepared; its bytes may be read until
     * settle, which waits for all that was prepared (NULL: nothing to wait for). release, after
     * settle, undoes it. HD_E_IO: a file could not be read. */
    hd_status (*prepare)(void *ctx, hd_weight *w);
    hd_status (*settle)(void *ctx);
    void (*release)(void *ctx, hd_weight *w);
    /* Optional (NULL): bytes of what prepare leaves at w->prepared, one block of the host's memory
     * that may be kept in a file and given back in place of a later prepare (0: it leaves nothing);
     * and the layout's name, another one whenever the same weight would give other bytes. */
    size_t (*image_bytes)(void *ctx, const hd_weight *w);
    const char *image_layout;
    /* Optional (NULL): decoding steps that the device wants to see before it is ready: rows (a
     * sequence each) and positions of the longest sequence of the ix-th; false: there is none.
     * Between rehearse(true) and rehearse(false) steps are prepared, not computed. */
    bool (*rehearsal)(void *ctx, int ix, int *n_row, int *n_pos);
    void (*rehearse)(void *ctx, bool on);
    /* Optional (NULL): allocations (of its memory, of pinned memory, of graphs) so far. */
    uint64_t (*n_alloc)(void *ctx);
    /* Optional (NULL): name of the kernel that an op uses for weights of this format, for the plan
     * that people read. */
    const char *(*kernel)(void *ctx, enum hd_op op, enum hd_format f);
    /* Optional (NULL): takes about a second, allocates out->buffer_bytes meanwhile. */
    hd_status (*roofline)(void *ctx, hd_dev_roofline *out);
    /* Optional (NULL; a device that computes when it is called needs none): from now on what runs
     * is noted; t NULL: waits for all of it, adds it to the t of before, and ends. Memory may be
     * taken when `how` changes. HD_E_UNSUPPORTED says what is missing. */
    hd_status (*profile)(void *ctx, hd_spans *t, enum hd_profile_how how);
    /* Optional (NULL): from now on o (copied; NULL: nobody) is told the inputs of products. */
    void (*observe)(void *ctx, const hd_dev_observer *o);
#define HD_OP(name, what) void (*name)(void *ctx, const struct hd_op_##name *args);
#include "dev/op.def"
#undef HD_OP
} hd_dev_ops;

extern const hd_dev_ops hd_dev_ref, hd_dev_cpu;

typedef struct hd_dev {
    const hd_dev_ops *ops;
    void *ctx;
} hd_dev;

/* name: "ref", "cpu", "cuda", or "auto" (the fastest that can be used here; a line of the log says
 * why one that is faster cannot). HD_E_UNSUPPORTED lists the known names. */
HD_MUST_CHECK hd_status hd_dev_open(const char *name, const hd_dev_config *config, hd_dev *out);
void hd_dev_close(hd_dev *d);

/* Whether it has memory of its own; the copies and the upload, which cost nothing where it has not.
 */
static inline bool hd_dev_has_memory(const hd_dev *d) { return d->ops->put != NULL; }
HD_MUST_CHECK hd_status hd_dev_put(const hd_dev *d, void *to, const void *from, size_t n_byte);
HD_MUST_CHECK hd_status hd_dev_get(const hd_dev *d, void *to, const void *from, size_t n_byte);
HD_MUST_CHECK hd_status hd_dev_copy(const hd_dev *d, void *to, const void *from, size_t n_byte);
HD_MUST_CHECK hd_status hd_dev_upload(const hd_dev *d, const hd_batch *b, const hd_batch **out);
HD_MUST_CHECK hd_status hd_dev_send(const hd_dev *d, int ix, const void *from, size_t n_byte);
/* from: as it was sent. */
HD_MUST_CHECK hd_status hd_dev_receive(const hd_dev *d, int ix, const void *from, void *to,
                                       size_t n_byte);

const char *hd_op_name(enum hd_op op);

#endif
