/* Argument structs of the block ops (dev/op.def), one a struct, shapes in comments.
 *
 * R = batch rows, D = model width, H = heads, E = experts. Activations are float32. y = W x with
 * W [n_out, n_in], a row contiguous. What `ref` computes is the definition; every backend must
 * make a row's result independent of the other rows of the batch (determinism level 1): the order
 * of every sum over n_in or over positions is fixed and does not depend on R, threads or chunking.
 * Formulas: Multi-head latent attention and DeepSeekMoE, DeepSeek-V2 (arXiv 2405.04434) sections
 * 2.1 and 2.2; auxiliary-loss-free routing, DeepSeek-V3 (arXiv 2412.19437) section 2.1.2. */
#ifndef HD_DEV_OP_H
#define HD_DEV_OP_H

#include "base/batch.h"
#include "quant/kv.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hd_comm;

enum hd_op {
#define HD_OP(name, what) HD_OP_##name,
#include "dev/op.def"
#undef HD_OP
    HD_OP_COUNT
};

/* Where bytes lie in a file. */
typedef struct hd_place_in_file {
    int fd;
    uint64_t at;
} hd_place_in_file;

/* A weight matrix, or a stack of n_mat of them (experts, heads), as a device reads it. */
typedef struct hd_weight {
    char name[64]; /* canonical (GGUF) tensor name, for messages */
    enum hd_format format;
    int n_in, n_out, n_mat;
    const void *const *mat; /* [n_mat] pointers to [n_out, n_in] in `format` */
    bool is_plain;          /* read by rows (embed) or in float32 (route): not to be repacked */
    /* [n_mat] the same bytes in files: to read them once, rather than to map them; or NULL */
    const hd_place_in_file *place;
    void *prepared; /* the backend's own repacked copy, or NULL */
} hd_weight;

/* A backend may keep arguments and compare them as bytes (cuda/graph.c does): every byte belongs to
 * a member, which an initialiser sets where it is not named. Padding would hold what the stack
 * held. */
#ifndef __CUDACC__
#pragma GCC diagnostic push
#pragma GCC diagnostic error "-Wpadded"
#endif

struct hd_op_embed {
    int n_row;
    int pad;
    int32_t *token; /* [R] in; out: those that name a slot are replaced by the slot's, -1 by 0 */
    const int32_t *last;    /* [slot] what hd_token_of_slot stands for; NULL: there is none */
    const hd_weight *table; /* [V, D] */
    float *x;               /* [R, D] out */
};

struct hd_op_mla_qkv {
    const hd_batch *batch;
    const float *x;         /* [R, D] */
    const float *norm;      /* [D] attn_norm */
    float eps, lora_eps;    /* of norm; of q_a_norm and kv_a_norm */
    const hd_weight *q;     /* [H*(n_nope+n_rope), D]; NULL when the three below are used */
    const hd_weight *q_a;   /* [q_lora, D] */
    const float *q_a_norm;  /* [q_lora] */
    const hd_weight *q_b;   /* [H*(n_nope+n_rope), q_lora] */
    const hd_weight *kv_a;  /* [n_c+n_rope, D] */
    const float *kv_a_norm; /* [n_c] */
    const float *rope_cs;   /* [position, n_rope/2, 2] cos and sin, YaRN factor included */
    int d_model, n_head, n_nope, n_rope, n_c;
    hd_kv_layout kv; /* hd_kv_latent */
    int pad;
    void *cache;  /* [n_page*page_tok] rows of n_c+n_rope this layer: normed latent, rotated key */
    float *q_out; /* [R, H, n_nope+n_rope] rope part rotated (interleaved pairs) */
};

struct hd_op_mla_attn {
    const hd_batch *batch;
    const float *q; /* [R, H, n_nope+n_rope] */
    hd_kv_layout kv;
    const void *cache;    /* [n_page*page_tok] rows of n_c+n_rope this layer */
    const hd_weight *k_b; /* n_mat = H of [n_c, n_nope]: q'[j] = dot(k_b row j, q_nope) */
    const hd_weight *v_b; /* n_mat = H of [n_v, n_c]:    o[i]  = dot(v_b row i, u) */
    int n_head, n_nope, n_rope, n_c, n_v;
    float scale; /* (n_nope+n_rope)^-0.5 * YaRN mscale^2 */
    float *out;  /* [R, H, n_v] */
};

/* Grouped-query attention (arXiv 2305.13245): query head h reads key and value head
 * h / (H / H_kv). Rotated pairs of a head: (2i, 2i+1), or (i, i + d_head/2) when is_half_split. */
struct hd_op_gqa_qkv {
    const hd_batch *batch;
    const float *x;    /* [R, D] */
    const float *norm; /* [D] attn_norm */
    float eps;
    bool is_half_split;
    char pad[3];
    const hd_weight *q;                    /* [H*d_head, D] */
    const hd_weight *k, *v;                /* [H_kv*d_head, D] */
    const float *q_bias, *k_bias, *v_bias; /* [n_out] added before the rotation; NULL: none */
    const float *rope_cs;                  /* [position, d_head/2, 2] cos and sin */
    int d_model, n_head, n_head_kv, d_head;
    hd_kv_layout kv;     /* hd_kv_heads, of keys and of values */
    void *keys, *values; /* [n_page*page_tok] rows of H_kv*d_head this layer; keys rotated */
    float *q_out;        /* [R, H, d_head] rotated */
};

struct hd_op_gqa_attn {
    const hd_batch *batch;
    const float *q; /* [R, H, d_head] */
    hd_kv_layout kv;
    const void *keys, *values; /* [n_page*page_tok] rows of H_kv*d_head this layer */
    int n_head, n_head_kv, d_head;
    float scale; /* d_head^-0.5 */
    float *out;  /* [R, H, d_head] */
};

struct hd_op_proj_add {
    int n_row;
    bool is_partial; /* x = instead of x +=: the residual is another rank's to add */
    char pad[3];
    const float *a;     /* [R, w->n_in] */
    const hd_weight *w; /* [D, n_in] */
    float *x;           /* [R, D] in and out */
};

struct hd_op_ffn {
    int n_row, d_model;
    float eps;
    bool is_partial; /* as above */
    char pad[3];
    const float *norm;          /* [D] */
    const hd_weight *gate, *up; /* [F, D] */
    const hd_weight *down;      /* [D, F] */
    float *x;                   /* [R, D] in and out */
};

enum hd_gating { HD_GATING_SOFTMAX = 1, HD_GATING_SIGMOID = 2 };
/* How a group of experts is scored: its largest score (V2), or the sum of its two largest (V3). */
enum hd_group_rule { HD_GROUP_MAX, HD_GROUP_TOP2_SUM };

struct hd_op_route {
    int n_row, d_model;
    const float *x;          /* [R, D] */
    const float *norm;       /* [D] ffn_norm */
    float eps, scale;        /* of norm; the weights are multiplied by it, last */
    const hd_weight *router; /* [E, D]; computed in float32 */
    const float *bias;       /* [E] added for selection only; NULL: none */
    enum hd_gating gating;
    enum hd_group_rule group_rule;
    int n_expert, n_used, n_group, n_group_used; /* n_group 1: no groups */
    bool normalise;                              /* weights divided by their sum + 1e-20 */
    char pad[7];
    const int32_t *token; /* [R] for models that route by token id */
    float *normed;        /* [R, D] out: norm(x), input of moe */
    int32_t *expert;      /* [R, n_used] out, ascending; ties to the lower index */
    float *weight;        /* [R, n_used] out */
};

struct hd_op_moe {
    int n_row, d_model, n_used;
    int expert0;     /* the first of the n_mat below; others are other ranks' */
    bool is_partial; /* as above */
    char pad[7];
    const float *normed;        /* [R, D] */
    const int32_t *expert;      /* [R, n_used] ascending */
    const float *weight;        /* [R, n_used] */
    const hd_weight *gate, *up; /* n_mat of [F, D] */
    const hd_weight *down;      /* n_mat of [D, F] */
    const hd_weight *shared_gate, *shared_up,
        *shared_down; /* [Fs, D], [Fs, D], [D, Fs]; NULL: none */
    float *x;         /* [R, D] in and out: x + (sum over experts, ascending) + shared */
};

struct hd_op_head {
    int n_out, d_model;
    const int32_t *row; /* [n_out] rows of x */
    const float *x;     /* [R, D] */
    const float *norm;  /* [D] */
    float eps;
    int pad;
    const hd_weight *w; /* [V, D] */
    float *logits;      /* [n_out, V] out */
};

/* The token of each output row that the host does not choose, as its hd_draw says: dev/draw.h has
 * the definition, exact on every backend. */
struct hd_op_sample {
    int n_out, n_vocab;
    const hd_batch *batch;   /* draw[n_out], and where the rows' slots are found */
    const float *logits;     /* [n_out, V] */
    const uint8_t *is_token; /* [V] 0: never drawn */
    int32_t *token;          /* [n_out] out; -1: a value of the row is not finite, or the host's */
    int32_t *last;           /* [slot] out: the token of each row that was drawn */
};

/* Collectives (dev/comm.h): every rank of the group runs them, in the same order. */
struct hd_op_all_reduce {
    struct hd_comm *comm;
    size_t n;
    float *x; /* [n] in and out */
};

struct hd_op_all_gather {
    struct hd_comm *comm;
    int n_row, n_each;
    const float *part; /* [n_row, n_each] */
    float *all;        /* [n_row, n_rank*n_each] out */
};

#ifndef __CUDACC__
#pragma GCC diagnostic pop
#endif

#endif
