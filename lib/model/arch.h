/* Inside of lib/model: what an architecture declares, and what a loaded model holds.
 *
 * An architecture is one row of arch.c: a name, the weight slots it reads, its KV kinds, a plan
 * (memory for the largest batch) and a forward pass. Everything else (binding, KV memory, rope
 * tables, the plan's text) is common and knows no architecture. Owner: hd_model_open's caller. */
#ifndef HD_MODEL_ARCH_H
#define HD_MODEL_ARCH_H

#include "base/clock.h"
#include "base/mem.h"
#include "file/image.h"
#include "model/model.h"

#include <stddef.h>

enum hd_slot_kind {
    HD_SLOT_VECTOR, /* const float *: decoded to float32, the device's, owned by the model */
    HD_SLOT_MATRIX, /* const hd_weight *: as stored, read from the mapping where that is possible */
};

/* What of a weight a rank of a sharded model holds (model/shard.h). */
enum hd_cut { HD_CUT_NONE, HD_CUT_ROWS, HD_CUT_COLUMNS, HD_CUT_MATRICES };

/* A weight that an architecture reads, and where its pointer goes. */
typedef struct hd_slot {
    const char *suffix; /* canonical name; of a layer's weight what follows "blk.N." */
    enum hd_slot_kind kind;
    enum hd_op op; /* the op that reads it: its format must be supported there */
    size_t offset; /* of the pointer in the architecture's globals or layer struct */
    /* Whether this layer has it (NULL: every layer); layer is -1 for globals. */
    bool (*when)(const hd_hparams *hp, int layer);
    bool is_optional;     /* stays NULL when the checkpoint has none */
    enum hd_cut cut;      /* of a vector: ROWS are its values */
    const char *fallback; /* canonical name to bind when the checkpoint has none, or NULL */
} hd_slot;

/* One kind of cache row that every layer keeps for each token (V3: one; GQA: keys and values). */
typedef struct hd_kv_kind {
    const char *name;
    hd_kv_layout layout;
} hd_kv_kind;
enum { HD_KV_KIND_MAX = 4 };

typedef struct hd_arch {
    enum hd_op attn; /* the op that reads the KV cache */
    const hd_slot *global_slot, *layer_slot;
    size_t n_global_slot, n_layer_slot;
    size_t global_bytes, layer_bytes; /* structs that hold the pointers */
    int (*kv_kinds)(const hd_hparams *hp, enum hd_kv_type t, hd_kv_kind out[HD_KV_KIND_MAX]);
    /* Fills in the device limits and takes the workspace of the largest batch. */
    hd_status (*plan)(hd_model *m);
    /* b: as hd_dev_upload returned it. Returns the device's logits. */
    const float *(*forward)(hd_model *m, const hd_batch *b);
} hd_arch;

/* Rows of an architecture's slot tables: struct (its tag), field, canonical name, op, the rest. */
#define HD_VECTOR(struct_, field, name_, op_, ...)                                                 \
    {                                                                                              \
        .suffix = name_, .kind = HD_SLOT_VECTOR, .op = HD_OP_##op_,                                \
        .offset = offsetof(struct struct_, field), __VA_ARGS__                                     \
    }
#define HD_MATRIX(struct_, field, name_, op_, ...)                                                 \
    {                                                                                              \
        .suffix = name_, .kind = HD_SLOT_MATRIX, .op = HD_OP_##op_,                                \
        .offset = offsetof(struct struct_, field), __VA_ARGS__                                     \
    }
/* One block op on the device of the model m: by its arguments, or a pointer to them. */
#define HD_RUN(op_, ...) HD_RUN_ARGS(op_, &((struct hd_op_##op_){__VA_ARGS__}))
#define HD_RUN_ARGS(op_, args_)                                                                    \
    do {                                                                                           \
        int64_t hd_from_ns_ = m->spans ? hd_now_ns() : 0;                                          \
        m->dev.ops->op_(m->dev.ctx, args_);                                                        \
        if (m->spans) hd_model_note(m, HD_OP_##op_, hd_from_ns_);                                  \
    } while (0)

extern const hd_arch hd_arch_deepseek2; /* deepseek2.c */
extern const hd_arch hd_arch_llama;     /* llama.c */

/* By GGUF architecture; NULL when there is none of that name. */
const hd_arch *hd_arch_find(const char *name);

/* A bound matrix and where it belongs (a list, for prepare, release and the plan's text). */
struct hd_bound {
    hd_weight weight;
    const hd_slot *slot;
    int layer;      /* -1: global */
    bool on_host;   /* read by the host's device (model/offload.h) */
    bool is_mapped; /* weight.prepared is the image's */
    struct hd_bound *next;
};
/* Memory to give back at close: host (matrices that had to be copied) or device. */
struct hd_held {
    void *ptr;
    bool is_device;
    struct hd_held *next;
};

struct hd_model {
    hd_hparams hp;    /* of what this rank computes */
    hd_hparams whole; /* of the checkpoint; the same without ranks */
    hd_model_options opt;
    hd_dev dev;
    const hd_arch *arch;
    const hd_checkpoint *checkpoint; /* borrowed */
    hd_image *image; /* repacked weights of an earlier load (model/repack.h), or NULL */
    char repack_key[HD_IMAGE_KEY_MAX];
    hd_arena *arena;   /* slots, weight descriptors, decoded vectors */
    hd_canon *canon;   /* borrowed by nothing after open, but it owns STACK source lists */
    void *global;      /* arch->global_bytes */
    char *layer;       /* [n_layer] arch->layer_bytes */
    const float *rope; /* [n_pos_max, n_rope/2, 2] cos and sin */
    struct hd_bound *bound, **bound_end;
    struct hd_held *held;
    int n_kv_kind;
    struct {
        hd_kv_kind kind;
        char *base;
        size_t layer_bytes;
    } kv[HD_KV_KIND_MAX];
    void *work;         /* the architecture's workspace struct, in the arena */
    float *own_logits;  /* [n_out_max, V/n_rank] of a rank, or NULL */
    float *host_logits; /* [n_out_max, V], or NULL: the device's memory is the host's */
    uint8_t *is_token;  /* [V] of the device: 0: never sampled */
    float *kept_x;      /* [HD_BATCH_CHUNKS, R, D] of the device: of steps of some layers */
    int32_t *token;     /* [n_out_max] of the device: tokens of the last step */
    int32_t *last;      /* [n_seq_max + HD_DEV_SPARE] of the device: by slot */
    struct hd_model_step {
        const hd_batch *batch; /* NULL: no draw is the host's */
        const float *logits;   /* the device's */
        int32_t *token;        /* [n_out_max] as fetched */
        int n_out;
    } step[HD_DEV_STEPS];
    uint64_t n_enqueued, n_fetched;
    uint64_t weight_bytes, kv_bytes, workspace_bytes;
    struct hd_offload *offload; /* model/offload.h; NULL: every weight is the device's */
    hd_spans *spans;            /* of the calls of ops; NULL: not profiled */
};

/* Binds every slot (weights.c). HD_E_UNSUPPORTED names op, tensor, format and device. */
HD_MUST_CHECK hd_status hd_weights_bind(hd_model *m,
                                        void (*on_progress)(void *user, int done, int all),
                                        void *user);
void hd_weights_release(hd_model *m);

/* Notes a call of op, which began at from_ns, in the model's spans. */
void hd_model_note(hd_model *m, enum hd_op op, int64_t from_ns);
/* p is given back when the model is closed. */
void hd_model_hold(hd_model *m, void *p, bool is_device);
/* Device memory that lives as long as the model, counted as workspace: n_elem zeroed elements. */
HD_MUST_CHECK hd_status hd_model_work(hd_model *m, size_t n_elem, size_t elem_bytes, void **out);
/* The largest shapes of the model's ops. */
hd_dev_limits hd_model_limits(const hd_model *m);
/* The residual stream that a step's layers begin with: its tokens by rows of table [V, D] in x [R,
 * D], the architecture's, or in what is kept from one step of some layers to the next, where later
 * layers find it; and where its layers end. */
float *hd_model_embed(hd_model *m, const hd_batch *b, const hd_weight *table, float *x);
int hd_model_layer_end(const hd_model *m, const hd_batch *b);
/* Cache rows of one kind and layer: [n_page * page_tok] of the kind's layout. */
void *hd_model_kv(const hd_model *m, int kind, int layer);

/* ---- rotary positions (rope.c) ---- */

/* Inverse frequencies [n_rope/2] in float32, with YaRN (arXiv 2309.00071, section 3.2), linear
 * (arXiv 2306.15595) or llama3 scaling applied. */
void hd_rope_inv_freq(const hd_hparams *hp, float *inv_freq);
/* YaRN's magnitude 0.1 m ln(s) + 1; 1 when s <= 1. */
double hd_rope_mscale(double factor, double m);
/* cs [n_pos, n_rope/2, 2]: cos and sin of position * inv_freq, times the YaRN factor. */
void hd_rope_table(const hd_hparams *hp, int n_pos, float *cs);
/* (n_nope + n_rope)^-0.5; of MLA times mscale(factor, mscale_all)^2 under YaRN. */
float hd_rope_softmax_scale(const hd_hparams *hp);

#endif
