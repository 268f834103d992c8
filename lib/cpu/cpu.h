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

/* One thread's working memory. */
typedef struct hd_cpu_scratch {
    float *panel;    /* [HD_CPU_KDECODE, HD_CPU_STRIP] unpacked weights */
    float *decoded;  /* [HD_CPU_LANES, HD_CPU_KDECODE] weights between two formats */
    float *c[2];     /* [HD_CPU_ROWS, HD_CPU_STRIP] products before they go where they belong */
    const float **a; /* [HD_CPU_ROWS], [n_query] row pointers */
    float **c_row;   /* [HD_CPU_ROWS] */
    const unsigned char **xq; /* [HD_CPU_ROWS] */
    const void **w;           /* [HD_CPU_STRIP] rows of weights */
    /* Attention (attend.c): */
    const void **ptr;   /* [HD_CPU_KV_BLOCK] cache rows */
    int *pos;           /* [n_query] last position that each query sees */
    float *qt;          /* queries by fours, as hd_cpu_scoring has them */
    float *rows;        /* [64, pad(n_c+n_rope)] cache rows, decoded */
    float *k;           /* [64, pad(n_nope+n_rope)] keys of one head */
    float *v;           /* [64, pad(n_v)] values of one head */
    float *kb;          /* [pad(n_nope)/16, n_c, 16] k_b of one head */
    float *vb;          /* [pad(n_v)/16, n_c, 16] v_b of one head, transposed */
    float *s;           /* [64, HD_CPU_QCHUNK] scores, then weights */
    float *ragged;      /* [HD_CPU_QCHUNK, .] weighted values where queries see different n */
    float *m[3], *l[3]; /* [n_query] sums of a chunk, of a stretch and over all so far */
    float *acc[3];      /* [n_query, pad(n_v)] or [HD_CPU_LATENT_QUERIES, pad(n_c)] */
    uint64_t n_block;   /* blocks whose keys and values it made */
} hd_cpu_scratch;
#define HD_CPU_QCHUNK 64          /* queries that meet a block together */
#define HD_CPU_QUERIES 2048       /* most of a task */
#define HD_CPU_LATENT_QUERIES 512 /* the same of latent attention, whose sums are long */

/* y = W x for a set of rows. */
enum hd_cpu_into { HD_CPU_STORE, HD_CPU_ADD };
typedef struct hd_cpu_mul {
    const hd_weight *w;  /* matrix `mat` of it */
    const hd_weight *up; /* not NULL: y = silu(w x) * (up x) */
    int mat;
    bool is_exact; /* 16-bit activations for quantised weights of any format */
    int n_row;
    const float *x; /* [., ldx] */
    size_t ldx;
    const int32_t *x_row; /* [n_row] rows of x and xq; NULL: 0, 1, 2, ... */
    hd_cpu_qrows xq;      /* the same rows, quantised; for weights that take integers */
    float *y;             /* [., ldy] */
    size_t ldy;
    const int32_t *y_row; /* as x_row */
    enum hd_cpu_into into;
    const float *y_scale; /* [n_row] or NULL: with HD_CPU_ADD, y += y_scale * (w x) */
} hd_cpu_mul;

/* Rows that one attention task handles, of sequences that begin alike. */
typedef struct hd_cpu_group {
    int first, n; /* rows list[first .. first+n) */
    int n_pos;    /* positions that the last of them sees */
    bool is_split;
} hd_cpu_group;

/* A sequence of a batch and its pages. */
typedef struct hd_cpu_seq {
    const int32_t *page;
    int n_page, seq;
} hd_cpu_seq;

typedef struct hd_cpu {
    hd_pool *pool;
    struct hd_cpu_store *store; /* memory of repacked weights */
    const hd_cpu_kernels *k;
    int n_thread, n_piece;      /* n_piece: of a set of products */
    struct hd_cpu_share *share; /* [n_thread] */
    bool reads_halves;          /* attention meets values of F16 as they lie */
    bool is_wide; /* HD_COMPUTE_FLOAT32: activations of 16 bits meet weights of every format */
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
    unsigned char *q[2];    /* quantised inputs: of the op, and of its second product */
    size_t q_room[2];       /* elements, of rows that are wide */
    hd_cpu_mul *mul;        /* [max(n_head, n_expert + 1)] */
    float *q_abs;           /* [HD_CPU_WAVE, H, n_c+n_rope] absorbed queries */
    float *u;               /* [HD_CPU_WAVE, H, pad(n_c)] weighted latents */
    int32_t *list[2];       /* [R] rows by form */
    int32_t *wave_at;       /* [R] an absorbed row's place in its wave */
    hd_cpu_group *group;    /* [R] */
    hd_cpu_seq *seq;        /* [n_seq] */
    int n_query;            /* most queries of an attention task */
    int n_slot;             /* sums of a query over a chunk that can wait to be added up */
    float *slot;            /* [n_slot, pad(max(n_c, n_v))] */
    float *slot_m, *slot_l; /* [1 + HD_CPU_STRIPS, n_slot] */
    int32_t *moe_row;       /* [R * n_used] rows by expert */
    int32_t *moe_slot;      /* [R * n_used] 0, 1, 2, ... (rows of `a` by expert) */
    float *moe_weight;      /* [R * n_used] */
    int *moe_first;         /* [n_expert + 1] */
} hd_cpu;
#define HD_CPU_WAVE 64  /* absorbed rows whose queries exist at a time */
#define HD_CPU_STRIPS 4 /* parts in which a query's values are added up */

static inline int hd_cpu_least(int a, int b) { return a < b ? a : b; }
static inline size_t hd_cpu_pad(int n) {
    return ((size_t)n + HD_CPU_LANES - 1) / HD_CPU_LANES * HD_CPU_LANES;
}

/* ---- Weights as floats (decode.c) ---- */

/* n weights, whole blocks, of any format. */
void hd_cpu_decode(const hd_cpu *c, enum hd_format f, const void *src, float *dst, int n);
/* As the kernels' unpack, for rows of any format as they lie; zeros past the last. k0 is a multiple
 * of HD_CPU_KDECODE. */
typedef struct hd_cpu_unpacking {
    enum hd_format format;
    const void *const *row; /* [n_row] */
    int n_row, k0, n_k;
    float *panel; /* [n_k, ld] */
    size_t ld;
} hd_cpu_unpacking;
void hd_cpu_unpack_rows(const hd_cpu *c, const hd_cpu_scratch *t, const hd_cpu_unpacking *u);
/* Outputs o0 (a multiple of 16) .. o0 + 15 of a matrix, repacked or not, zeros past the last: panel
 * [n_in, 16]. */
void hd_cpu_unpack_lanes(const hd_cpu *c, hd_cpu_scratch *t, const hd_weight *w, int mat, int o0,
                         float *panel);

/* ---- Repacked copies (prepare.c) ---- */

void hd_cpu_store_open(hd_cpu *c);
void hd_cpu_store_close(hd_cpu *c); /* nothing is prepared any more */
/* Repacks a weight unless it is plain or of a format for which pack.h has no strips; undone by
 * hd_cpu_release. HD_E_IO: its file. */
hd_status hd_cpu_prepare(void *ctx, hd_weight *w);
hd_status hd_cpu_settle(void *ctx);
void hd_cpu_release(void *ctx, hd_weight *w);
size_t hd_cpu_image_bytes(void *ctx, const hd_weight *w);
/* Of a weight that is repacked, the strip of outputs o (a multiple of 16) and on. */
static inline const unsigned char *hd_cpu_strip_at(const hd_weight *w, int mat, int o) {
    return (const unsigned char *)w->prepared +
           (size_t)mat * hd_cpu_packed_bytes(w->format, w->n_in, w->n_out) +
           (size_t)(o / HD_CPU_STRIP_OUT) * hd_cpu_strip_bytes(w->format, w->n_in);
}

/* ---- Products (mul.c) ---- */

/* What a weight multiplies: rows of floats, or of integers of 8 or of 16 bits (docs/precision.md).
 * Of several weights, the most. */
enum hd_cpu_input { HD_CPU_FLOAT, HD_CPU_NARROW, HD_CPU_WIDE };
static inline bool hd_cpu_takes_integers(const hd_weight *w) {
    return w->prepared != NULL && hd_cpu_is_packed(w->format);
}
static inline enum hd_cpu_input hd_cpu_input_of(const hd_cpu *c, const hd_weight *w) {
    if (w == NULL || !hd_cpu_takes_integers(w)) return HD_CPU_FLOAT;
    return c->is_wide || w->format == HD_Q8_0 ? HD_CPU_WIDE : HD_CPU_NARROW;
}
static inline enum hd_cpu_input hd_cpu_input_of_both(const hd_cpu *c, const hd_weight *a,
                                                     const hd_weight *b) {
    enum hd_cpu_input x = hd_cpu_input_of(c, a), y = hd_cpu_input_of(c, b);
    return x > y ? x : y;
}
/* Of the last product of a feed-forward: no more bits than the products took that made its rows. A
 * Q4_K_M file has some of these weights as Q8_0, which would take twice the time. */
static inline enum hd_cpu_input hd_cpu_input_of_down(const hd_cpu *c, const hd_weight *down,
                                                     enum hd_cpu_input before) {
    enum hd_cpu_input x = hd_cpu_input_of(c, down);
    return x == HD_CPU_WIDE && before == HD_CPU_NARROW ? HD_CPU_NARROW : x;
}

hd_status hd_cpu_shares_open(hd_cpu *c); /* sets n_piece and share, the caller's to free */
/* Runs n products, independent of one another, on all threads. */
void hd_cpu_mul_run(hd_cpu *c, const hd_cpu_mul *mul, int n);
/* Runs n products of equal n_out that add into the same rows: for every output in list order. */
void hd_cpu_mul_run_in_order(hd_cpu *c, const hd_cpu_mul *mul, int n);

/* fn(ctx, row, thread) for every row; on one thread when n_row * work (elements a row) is little.
 */
void hd_cpu_rows(hd_cpu *c, int n_row, int work, void (*fn)(void *ctx, int row, int thread),
                 void *ctx);
/* Quantises rows of x[n_row, ldx] into slot 0 or 1 and returns them; of floats, nothing. */
typedef struct hd_cpu_quantising {
    enum hd_cpu_input input;
    int slot;
    const float *x; /* [n_row, ldx] */
    size_t ldx;
    int n_row, n_k;
} hd_cpu_quantising;
hd_cpu_qrows hd_cpu_quantise(hd_cpu *c, const hd_cpu_quantising *a);
/* Rows for a slot, to be filled by whoever has the floats. */
hd_cpu_qrows hd_cpu_qrows_of(const hd_cpu *c, enum hd_cpu_input input, int slot, int n_row,
                             int n_k);
static inline unsigned char *hd_cpu_qrow(const hd_cpu_qrows *q, int row) {
    return q->row0 + (size_t)row * q->row_bytes;
}
/* Norms rows of x (row ix[i], or i) into out[n_row, n]; quantises them into slot 0 unless floats
 * are asked for. */
typedef struct hd_cpu_norm_rows {
    const float *x;
    const int32_t *ix; /* or NULL */
    size_t ldx;
    const float *w;
    float eps;
    int n_row, n;
    float *out;
    enum hd_cpu_input input;
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
