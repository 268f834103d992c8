/* Inside of the cpu backend: its context, scratch memory and the weight product that ops share.
 *
 * All memory is taken in reserve(); an op takes none. One thread calls ops at a time; inside an op
 * the pool's threads split outputs, heads, experts or rows, never a sum. */
#ifndef HD_CPU_CPU_H
#define HD_CPU_CPU_H

#include "base/pool.h"
#include "cpu/kernel.h"
#include "dev/dev.h"
#include "dev/draw.h"

#include <stdatomic.h>

#define HD_CPU_EXPERT_MAX 2048 /* reserve() refuses more */
#define HD_CPU_KV_BLOCK 64     /* positions of one attention block */

#define HD_CPU_QUERIES 512 /* most of them in one attention task */

/* (row, head) pairs that run over one sequence's positions together; ascending position. */
typedef struct hd_cpu_queries {
    int n;
    const float **q; /* [HD_CPU_QUERIES] */
    float **acc;     /* [HD_CPU_QUERIES] weighted sums, padded to HD_CPU_LANES */
    float *m, *l;    /* [HD_CPU_QUERIES] running maximum and sum */
    int *pos;        /* [HD_CPU_QUERIES] last position each one sees */
} hd_cpu_queries;

/* A block of positions as queries see it. */
typedef struct hd_cpu_block {
    int t0, n_t;     /* first position, positions */
    const float *kt; /* [n_key, 64] keys, positions across lanes */
    const float *v;  /* [n_t, ldv] values */
    int n_key, n_v;
    size_t ldv;
    float scale;
} hd_cpu_block;

/* One thread's working memory. */
typedef struct hd_cpu_scratch {
    float *panel;    /* [HD_CPU_KDECODE, HD_CPU_STRIP] unpacked weights; Q8_0 panels fit too */
    float *decoded;  /* [HD_CPU_LANES, HD_CPU_KDECODE] weights between two formats */
    float *q_scale;  /* [HD_CPU_KBLOCK/32, HD_CPU_STRIP] */
    float *c[2];     /* [HD_CPU_ROWS, HD_CPU_STRIP] products before they go where they belong */
    const float **a; /* [n_ptr] row pointers */
    float **c_row;   /* [n_ptr] */
    int32_t *q_row;  /* [HD_CPU_ROWS] */
    const void **w;  /* [n_ptr] weight or cache rows */
    /* Attention over one block of positions: */
    float *ct;   /* [n_c+n_rope, 64] latents, positions across lanes */
    float *rows; /* [64, pad(n_c+n_rope)] cache rows, decoded */
    float *kt;   /* [n_nope+n_rope, 64] keys of one head */
    float *v;    /* [64, pad(n_v)] values of one head */
    float *kb;   /* [n_c, n_nope] k_b of one head */
    float *vb;   /* [n_c, pad(n_v)] v_b of one head, transposed */
    float *s;    /* [HD_CPU_QCHUNK, 64] scores */
    float *acc;  /* [HD_CPU_QUERIES, pad(n_v)] */
    hd_cpu_queries queries;
} hd_cpu_scratch;
#define HD_CPU_QCHUNK 24

/* y = W x for a set of rows. */
enum hd_cpu_into { HD_CPU_STORE, HD_CPU_ADD };
typedef struct hd_cpu_mul {
    const hd_weight *w;  /* matrix `mat` of it */
    const hd_weight *up; /* not NULL: y = silu(w x) * (up x) */
    int mat;
    bool is_float; /* float32 activations even for Q8_0 weights */
    int n_row;
    const float *x; /* [., ldx] */
    size_t ldx;
    const int32_t *x_row; /* [n_row] rows of x and xq; NULL: 0, 1, 2, ... */
    hd_cpu_qrows xq;      /* the same rows, quantised; needed for Q8_0 unless is_float */
    float *y;             /* [., ldy] */
    size_t ldy;
    const int32_t *y_row; /* as x_row */
    enum hd_cpu_into into;
    const float *y_scale; /* [n_row] or NULL: with HD_CPU_ADD, y += y_scale * (w x) */
} hd_cpu_mul;

/* Rows of one sequence handled by one attention task (for every head or head group). */
typedef struct hd_cpu_group {
    int seq, first, n; /* rows list[first .. first+n) */
} hd_cpu_group;

typedef struct hd_cpu {
    hd_pool *pool;
    const hd_cpu_kernels *k;
    int n_thread;
    hd_dev_limits limits;
    hd_dev_observer observer; /* inputs NULL: nobody */
    _Atomic uint64_t kv_lost; /* values that a cache could not hold */
    size_t arena_bytes;
    void *arena;            /* everything below; NULL before reserve */
    hd_cpu_scratch *thread; /* [n_thread] */
    hd_draw_desk **desk;    /* [n_thread] for the op `sample`; NULL before reserve */
    float *normed;          /* [R, d_model] */
    float *a;               /* [R, max(q_lora, d_ff, d_expert*n_used)]: between two products */
    float *kv;              /* [R, n_c+n_rope]; GQA: [2, R, n_kv] */
    float *score;           /* [R, n_expert] */
    hd_cpu_qrows q[2];      /* quantised inputs: of the op, and of its second product */
    size_t q_room[2];       /* elements */
    hd_cpu_mul *mul;        /* [max(n_head, n_expert + 1)] */
    float *q_abs;           /* [HD_CPU_WAVE, H, n_c+n_rope] absorbed queries */
    float *u;               /* [HD_CPU_WAVE, H, pad(n_c)] weighted latents */
    int32_t *list[2];       /* [R] rows by form */
    hd_cpu_group *group;    /* [R] */
    int32_t *moe_row;       /* [R * n_used] rows by expert */
    int32_t *moe_slot;      /* [R * n_used] 0, 1, 2, ... (rows of `a` by expert) */
    float *moe_weight;      /* [R * n_used] */
    int *moe_first;         /* [n_expert + 1] */
} hd_cpu;
#define HD_CPU_WAVE 64 /* absorbed rows whose queries exist at a time */

static inline int hd_cpu_least(int a, int b) { return a < b ? a : b; }
static inline size_t hd_cpu_pad(int n) {
    return ((size_t)n + HD_CPU_LANES - 1) / HD_CPU_LANES * HD_CPU_LANES;
}

/* ---- Weights as floats (decode.c) ---- */

/* Whether the kernels read this format where it lies. */
static inline bool hd_cpu_is_native(enum hd_format f) {
    return f == HD_F32 || f == HD_F16 || f == HD_BF16 || f == HD_Q8_0;
}
/* n weights, whole blocks, of any format. */
void hd_cpu_decode(const hd_cpu *c, enum hd_format f, const void *src, float *dst, int n);
/* As the kernels' unpack, for any format; no row is NULL. k0 is a multiple of HD_CPU_KDECODE, or of
 * HD_CPU_KBLOCK when the format is native. */
typedef struct hd_cpu_unpacking {
    enum hd_format format;
    const void *const *row; /* [n_row] */
    int n_row, k0, n_k;
    float *panel; /* [n_k, ld] */
    size_t ld;
} hd_cpu_unpacking;
void hd_cpu_unpack(const hd_cpu *c, const hd_cpu_scratch *t, const hd_cpu_unpacking *u);

/* Runs n products, independent of one another, on all threads. */
void hd_cpu_mul_run(hd_cpu *c, const hd_cpu_mul *mul, int n);
/* Runs n products of equal n_out that add into the same rows: for every output in list order. */
void hd_cpu_mul_run_in_order(hd_cpu *c, const hd_cpu_mul *mul, int n);

/* fn(ctx, row, thread) for every row; on one thread when n_row * work (elements a row) is little.
 */
void hd_cpu_rows(hd_cpu *c, int n_row, int work, void (*fn)(void *ctx, int row, int thread),
                 void *ctx);
/* Quantises rows of x[n_row, ldx] into slot 0 or 1 and returns them. */
hd_cpu_qrows hd_cpu_quantise(hd_cpu *c, int slot, const float *x, size_t ldx, int n_row, int n_k);
/* Norms rows of x (row ix[i], or i) into out[n_row, n]; quantises them into slot 0 when asked. */
typedef struct hd_cpu_norm_rows {
    const float *x;
    const int32_t *ix; /* or NULL */
    size_t ldx;
    const float *w;
    float eps;
    int n_row, n;
    float *out;
    bool is_quantised;
} hd_cpu_norm_rows;
hd_cpu_qrows hd_cpu_norm(hd_cpu *c, const hd_cpu_norm_rows *a);

/* ---- the cache (cache.c) ---- */

/* Writes one row; counts what its type cannot hold. */
void hd_cpu_cache_put(hd_cpu *c, const hd_kv_layout *l, const float *x, void *row);
/* Values first .. first + n of n_row rows, at most HD_CPU_KV_BLOCK. */
typedef struct hd_cpu_cached {
    const hd_kv_layout *kv;
    const void *const *row; /* [n_row] */
    int n_row, first, n;
} hd_cpu_cached;
/* out [n_row, ld] */
void hd_cpu_cache_rows(const hd_cpu_kernels *k, const hd_cpu_cached *s, float *out, size_t ld);
/* panel [n, HD_CPU_KV_BLOCK]: positions across lanes. Of types with codes, rows [n_row, ld] holds
 * what hd_cpu_cache_rows yields afterwards; of others it is not touched. */
void hd_cpu_cache_panel(const hd_cpu_kernels *k, const hd_cpu_cached *s, float *rows, size_t ld,
                        float *panel);

/* ---- attention (attend.c) ---- */

/* Runs t's queries over one block: scores, softmax, weighted values. Blocks come in order. */
void hd_cpu_attend(const hd_cpu_kernels *k, hd_cpu_scratch *t, const hd_cpu_block *b);
/* Pointers to the cache rows of the block's positions of a sequence: row[n_t]. */
void hd_cpu_block_rows(const hd_batch *b, int seq, const hd_cpu_block *block, const void *cache,
                       size_t row_bytes, const void **row);
/* Fills c->group with runs of at most n_max rows of one sequence, from list[first..end); returns
 * how many. */
int hd_cpu_make_groups(hd_cpu *c, const hd_batch *b, const int32_t *list, int first, int end,
                       int n_max);

hd_status hd_cpu_reserve(void *ctx, const hd_dev_limits *limits);
void hd_cpu_free_desks(hd_cpu *c);
hd_status hd_cpu_roofline(void *ctx, hd_dev_roofline *out);
void hd_cpu_mla_qkv(void *ctx, const struct hd_op_mla_qkv *args);
void hd_cpu_mla_attn(void *ctx, const struct hd_op_mla_attn *args);
void hd_cpu_gqa_qkv(void *ctx, const struct hd_op_gqa_qkv *args);
void hd_cpu_gqa_attn(void *ctx, const struct hd_op_gqa_attn *args);
void hd_cpu_route(void *ctx, const struct hd_op_route *args);
void hd_cpu_moe(void *ctx, const struct hd_op_moe *args);

#endif
