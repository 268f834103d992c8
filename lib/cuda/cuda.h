/* Inside of the cuda backend: its context and its scratch memory.
 *
 * One stream; ops enqueue on it. All scratch is taken in reserve(). Errors of kernels are sticky in
 * the CUDA runtime: the next copy meets them, and the device stays broken (HD_E_DEVICE). */
#ifndef HD_CUDA_H
#define HD_CUDA_H

#include "cuda/attn.h"
#include "cuda/codes.h"
#include "dev/draw.h"
#include "dev/plugin.h"

/* Where a batch waits for its copy: pinned host memory. */
typedef struct hd_cuda_stage {
    char *host;
    cudaEvent_t copied; /* it may be written again */
} hd_cuda_stage;
/* Where a step's tokens arrive: pinned host memory. */
typedef struct hd_cuda_result {
    char *host; /* [limits.n_out] tokens; NULL before reserve */
    cudaEvent_t arrived;
} hd_cuda_result;

typedef struct hd_cuda_graphs hd_cuda_graphs; /* graph.c */
typedef struct hd_cuda_loader hd_cuda_loader; /* load.c */

/* Rows of a step side by side that are of one form, and all of them. */
typedef struct hd_cuda_stretch {
    int first, n;
    bool is_expanded;
} hd_cuda_stretch;
typedef struct hd_cuda_stretches {
    hd_cuda_stretch *of; /* [n] of n_row rows */
    int n, n_row, room;
} hd_cuda_stretches;

typedef struct hd_cuda {
    struct cudaDeviceProp prop;
    int ordinal;
    int driver; /* version, 1000*major + 10*minor */
    cudaStream_t stream;
    hd_dev_limits limits;
    enum hd_compute compute;
    bool is_deterministic; /* level 1 everywhere: kernels.h */
    bool has_context_fmha, has_multi_block, has_early_launch;
    unsigned long long *kv_lost;      /* on the device, where kernels add to it, */
    unsigned long long *kv_lost_seen; /* and as of what the host has waited for: pinned */
    hd_cuda_gemm_how gemm;
    hd_cuda_graphs *graphs;
    bool is_profiled_by_op; /* no graphs meanwhile */
    bool is_in_turn;        /* profiled with kernels that are launched so */
    bool has_fp8;           /* weights for mul_fp8.cu */
    hd_cuda_stage stage[HD_DEV_STEPS];
    int stage_ix;
    hd_cuda_result result[HD_DEV_STEPS];
    size_t batch_room;            /* bytes of each stage's host memory, and of the next */
    char *batch_memory;           /* the arrays of `batch` */
    hd_batch batch;               /* of the last upload: arrays on the device */
    hd_cuda_stretches rows, outs; /* of its rows, of its output rows */
    bool is_expanded;  /* of a deterministic step the rows at hand are: products of many rows */
    int n_unit;        /* units of its longest sequence, at least */
    hd_cuda_plan plan; /* of its attention, and on the device: */
    const hd_cuda_split_row *split_row;
    const hd_cuda_expand_task *expand_task;
    const hd_cuda_flash_task *flash_task;
    const hd_cuda_flash_part *flash_part;
    hd_cuda_loader *loader; /* NULL: nothing is being uploaded */
    uint64_t n_alloc;       /* allocations so far: hd_dev_ops.n_alloc */
    size_t scratch_bytes;
    char *scratch; /* everything below; NULL before reserve */
    float *normed; /* [max(R, n_out), max(D, q_lora)] */
    float *a;      /* [R, max(q_lora, d_ff, H*n_v)] between two products */
    size_t a_floats;
    float *kv;           /* [R, n_c+n_rope]; GQA: [2, R, n_kv] */
    float *score;        /* [R, E] */
    float *hidden;       /* [R*n_used, d_expert] */
    float *picked;       /* [R*n_used, D] */
    float *shared;       /* [R, D] */
    float *q_abs;        /* [wave, H, n_c] absorbed queries */
    float *u;            /* [wave, H, n_c] weighted latents */
    hd_cuda_codes codes; /* at NULL: no product takes that way */
    float *part;         /* [part_floats] units of attention, or parts */
    size_t part_floats;
    enum hd_cuda_flash_rule flash_rule;
    int n_room;         /* positions whose keys and values are expanded at a time, 0: none */
    void *kv_b;         /* [H, n_nope + n_v, n_c padded to 64] BF16 */
    void *keys;         /* [n_room, H, n_nope + n_rope padded to 8] BF16 */
    void *values;       /* [n_room, H, n_v padded to 8] BF16 */
    float *flash_state; /* [R, H, HD_CUDA_STATE + n_v]; NULL: every sequence has room */
    int n_wave;         /* rows whose absorbed queries exist at a time */
    uint16_t *decoded;  /* two of the largest weight that is not BF16, as BF16; NULL: none */
    size_t decoded_bytes;
    unsigned char map[2][HD_CUDA_MAP_BYTES]; /* of them */
    int32_t *row_of, *slot_of;
    hd_cuda_tile *tile;
    int *n_tile;
    int *count;        /* [R / HD_CUDA_SORT_ROWS, E] */
    float *all_ranks;  /* [n_rank, ...] what the ranks of a group send, on the device; or NULL */
    float *host_ranks; /* a collective through the host's pinned memory; NULL: never */
    unsigned *n_ended; /* [R] of blocks that work together: 0 between kernels */
    /* What routing left in row_of, slot_of and tile for the moe that follows: of all experts, in
     * tiles of HD_CUDA_FEW_ROWS. An op that routes or sorts ends it. */
    const int32_t *sorted; /* its picks; NULL: nothing */
    int sorted_rows, sorted_experts;
} hd_cuda;

/* A weight that prepare() has seen. */
static inline const hd_cuda_mat *hd_cuda_mat_of(const hd_weight *w) {
    HD_ASSERT(w->prepared);
    return (const hd_cuda_mat *)w->prepared;
}

/* Whether products with weights of this format round their inputs to BF16 once. */
static inline bool hd_cuda_rounds(const hd_cuda *c, enum hd_format f) {
    return c->compute == HD_COMPUTE_BFLOAT16 || (c->compute == HD_COMPUTE_AUTO && f != HD_F32);
}

/* Whether products with them may be mul_fp8.cu's. */
static inline bool hd_cuda_streams_fp8(const hd_cuda *c, enum hd_format f) {
    return f == HD_F8_B128 && hd_cuda_rounds(c, f) && !c->is_deterministic;
}

/* Attention, attn.c: sets flash_rule, n_room and part_floats; what its kernels can do decides. */
void hd_cuda_attn_limits(hd_cuda *c, const hd_dev_limits *l);

/* Bytes of a weight's matrices after hd_cuda_run_decode. */
static inline size_t hd_cuda_decoded_bytes(const hd_cuda_mat *m) {
    return ((size_t)m->n_in + 31) / 32 * 64 * (size_t)m->n_out * (size_t)m->n_mat;
}

/* Records what failed; HD_OK for cudaSuccess. */
hd_status hd_cuda_told(cudaError_t e, const char *what);

/* ---- graph.c: ops of a decoding step are deferred, then launched as one graph ---- */

#define HD_OP(name, what) void hd_cuda_op_##name(void *ctx, const struct hd_op_##name *args);
#include "dev/op.def"
#undef HD_OP
hd_cuda_graphs *hd_cuda_graphs_new(void);
void hd_cuda_graphs_free(hd_cuda_graphs *g); /* accepts NULL */
/* The batch's arrays moved: no graph fits any more. */
void hd_cuda_graphs_drop(hd_cuda_graphs *g);
/* Kernels are launched in another way: graphs are made anew, each when its shape is there. */
void hd_cuda_graphs_renew(hd_cuda_graphs *g);
/* Chooses the shapes for c->limits. */
void hd_cuda_graphs_reserve(hd_cuda *c);
/* A step with this batch (the host's) begins, its longest sequence having n_unit units; returns the
 * rows that it is to be filled up to, sets c->n_unit. */
int hd_cuda_graphs_begin(hd_cuda *c, const hd_batch *b, int n_unit);
bool hd_cuda_rehearsal(void *ctx, int ix, int *n_row, int *n_pos);
void hd_cuda_rehearse(void *ctx, bool on);
/* Enqueues what was deferred: before anything that waits, copies or frees. */
HD_MUST_CHECK hd_status hd_cuda_flush(hd_cuda *c);

/* ---- profile.c: what ran on the device ---- */

hd_status hd_cuda_profile(void *ctx, hd_spans *t, enum hd_profile_how how);
/* Around the launches of an op that is not part of a graph. */
void hd_cuda_profile_enter(const hd_cuda *c, enum hd_op op);
void hd_cuda_profile_leave(const hd_cuda *c);

/* ---- many.c: ops with many rows; false: not done, it is none for it ---- */

bool hd_cuda_many_mla_qkv(hd_cuda *c, const struct hd_op_mla_qkv *a);
bool hd_cuda_many_gqa_qkv(hd_cuda *c, const struct hd_op_gqa_qkv *a);
bool hd_cuda_many_proj_add(hd_cuda *c, const struct hd_op_proj_add *a);
bool hd_cuda_many_ffn(hd_cuda *c, const struct hd_op_ffn *a);
bool hd_cuda_many_moe(hd_cuda *c, const struct hd_op_moe *a);
bool hd_cuda_many_head(hd_cuda *c, const struct hd_op_head *a);

/* ---- memory.c: HD_E_NO_MEMORY says what for ---- */

HD_MUST_CHECK hd_status hd_cuda_alloc(hd_cuda *c, size_t n_byte, const char *what, void **out);
/* Pinned. */
HD_MUST_CHECK hd_status hd_cuda_alloc_host(hd_cuda *c, size_t n_byte, const char *what, void **out);

/* ---- load.c ---- */

/* Rows of the host's memory and where they go: there each is filled up with zeros to to_bytes. */
typedef struct hd_cuda_rows {
    void *to;
    const void *from;
    size_t to_bytes, from_bytes, n_row;
    bool is_fp8; /* HD_F8_B128, which lies there in another way: hd_cuda_mat */
} hd_cuda_rows;
/* From now on, until settle. */
HD_MUST_CHECK hd_status hd_cuda_load(hd_cuda *c, const hd_cuda_rows *r, const char *what);
hd_status hd_cuda_settle(void *ctx);

/* ---- step.c ---- */

HD_MUST_CHECK hd_status hd_cuda_reserve_step(hd_cuda *c);
void hd_cuda_free_step(hd_cuda *c);
/* Enqueues the copy to kv_lost_seen: before the host waits. */
HD_MUST_CHECK hd_status hd_cuda_see_lost(hd_cuda *c);

/* ---- form.c: the forms of a step's rows (the host's batch, filled up) ---- */

void hd_cuda_forms_reserve(hd_cuda *c, int n_row);
void hd_cuda_forms_fini(hd_cuda *c);
void hd_cuda_forms_make(hd_cuda *c, const hd_batch *b);

/* ---- ops.c: enqueue now; memory.c, step.c ---- */

/* hd_cuda_run_mul, or mul_fp8_wgmma.cu instead; n_row: of the step, or of its outputs. */
void hd_cuda_multiply(const hd_cuda *c, const hd_cuda_mul *m, int n, int n_row);

#define HD_OP(name, what) void hd_cuda_now_##name(void *ctx, const struct hd_op_##name *args);
#include "dev/op.def"
#undef HD_OP
/* Of those that form.c cuts, some rows. */
void hd_cuda_rows_mla_qkv(hd_cuda *c, const struct hd_op_mla_qkv *args);
void hd_cuda_rows_proj_add(hd_cuda *c, const struct hd_op_proj_add *args);
void hd_cuda_rows_ffn(hd_cuda *c, const struct hd_op_ffn *args);
void hd_cuda_rows_moe(hd_cuda *c, const struct hd_op_moe *args);
void hd_cuda_rows_head(hd_cuda *c, const struct hd_op_head *args);
hd_status hd_cuda_reserve(void *ctx, const hd_dev_limits *limits);
hd_status hd_cuda_upload(void *ctx, const hd_batch *b, const hd_batch **out);
hd_status hd_cuda_send(void *ctx, int ix, const void *from, size_t n_byte);
hd_status hd_cuda_receive(void *ctx, int ix, void *to, size_t n_byte);
hd_status hd_cuda_prepare(void *ctx, hd_weight *w);
void hd_cuda_release(void *ctx, hd_weight *w);

/* ---- comm.c: collectives ---- */

hd_status hd_cuda_join(void *const *ctx, struct hd_comm *const *comm, int n_rank);
/* Gives back the memory that join took. */
void hd_cuda_part(hd_cuda *c);

/* Called once by the program that loaded the object; hd_fail and HD_ASSERT go there (host.c). */
void hd_cuda_bind(const hd_host *host);
void hd_cuda_add_text(hd_buf *b, const char *fmt, ...) HD_PRINTF(2, 3);

#endif
