/* Inside of the oracle backend: its scratch memory and the primitives that its ops are made of.
 *
 * Everything here is plain scalar C over float32 values. Dot products and sums are accumulated in
 * double and rounded to float32 once, so that their order hardly matters: a fast backend is
 * compared with numbers that carry next to no rounding of their own. No primitive looks at more
 * than one row, which makes a row's result independent of its batch by construction. */
#ifndef HD_REF_REF_H
#define HD_REF_REF_H

#include "dev/dev.h"

enum { HD_REF_EXPERT_MAX = 1024 }; /* reserve() refuses more */

/* Scratch of one device, sized by reserve(). R, D, H, E as in dev/op.h; T = longest sequence. */
struct hd_ref {
    hd_dev_observer observer; /* inputs NULL: nobody */
    uint64_t kv_lost;         /* values that a cache could not hold */
    float *weight_row;        /* [widest n_in] one decoded row of a weight */
    float *normed;            /* [R, D] */
    float *gate, *up;         /* [R, widest feed-forward] */
    float *block_out;         /* [R, D] what an op adds to the residual */
    double *sum;              /* [R, D] */
    float *q_lora;            /* [R, q_lora] */
    float *kv;          /* [R, max(n_c + n_rope, n_kv)] what will be cached: latent; keys; values */
    float *score;       /* [max(T, E)] */
    int32_t *pick;      /* [R] rows of one expert */
    float *pick_weight; /* [R] */
    float *latent;      /* [T, n_c + n_rope] one sequence, read back from the cache; GQA: keys */
    float *k, *v;       /* [T, n_nope], [T, n_v] one head, expanded */
    float *k_b_t;       /* [n_nope, n_c] one head of k_b, transposed */
    float *q_absorbed;  /* [n_c + n_rope] */
    float *u;           /* [n_c] attention-weighted latent */
    double *acc;        /* [max(n_c, n_v)] */
};

/* ---- primitives (primitives.c) ---- */

/* Sum of a[i]*b[i]. Products of floats are exact in double. */
double hd_ref_dot(const float *a, const float *b, int n);
/* y[i] = w[i] * x[i] / sqrt(mean(x^2) + eps). y may be x. */
void hd_ref_rms_norm(const float *x, const float *w, float eps, int n, float *y);
/* exp(s - max) / sum, in place; the maximum is taken first, so finite scores cannot overflow. */
void hd_ref_softmax(float *s, int n);
float hd_ref_sigmoid(float z); /* 1 / (1 + e^-z) */
float hd_ref_silu(float z);    /* z / (1 + e^-z) */
/* Rotates the n/2 interleaved pairs (x[2i], x[2i+1]) by the angles whose cos and sin are
 * cs[2i], cs[2i+1]: (a cos - b sin, b cos + a sin). */
void hd_ref_rope(float *x, const float *cs, int n);
/* The same for the pairs (x[i], x[i + n/2]), i < n/2. */
void hd_ref_rope_halves(float *x, const float *cs, int n);
/* The n_best highest of score[0..n), as indices in descending order of score, ties to the lower
 * index. NaN counts as -infinity. Only indices with allowed[i] are taken (NULL: all). Always n_best
 * distinct indices when that many are allowed. */
void hd_ref_top_k(const float *score, const bool *allowed, int n, int n_best, int32_t *best);
/* Rows of floats: row t begins at x + t * step and `width` of its values count. */
struct hd_ref_rows {
    const float *x;
    int n_row, step, width;
};
/* out[i] = sum over t of p[t] * row(t)[i], i < width; t ascending. acc: [width] scratch. */
void hd_ref_weighted_sum(const float *p, struct hd_ref_rows rows, double *acc, float *out);
/* y[r][o] = dot(row o of w->mat[mat], x[r]): x [n_row, n_in], y [n_row, n_out]. */
void hd_ref_matmul(struct hd_ref *r, const hd_weight *w, int mat, int n_row, const float *x,
                   float *y);
/* Row `row` of w->mat[mat], decoded into out [n_in]. */
void hd_ref_weight_row(const hd_weight *w, int mat, int row, float *out);

/* ---- ops (mla.c, gqa.c, ffn.c, moe.c, token.c); dev/op.h defines them ---- */
#define HD_OP(name, what) void hd_ref_op_##name(void *ctx, const struct hd_op_##name *args);
#include "dev/op.def"
#undef HD_OP

/* Selects experts of one row from its gated scores (moe.c; alone so that it is tested alone).
 * expert and weight [n_used], ascending by expert. */
void hd_ref_select_experts(const struct hd_op_route *a, const float *score, int32_t *expert,
                           float *weight);

#endif
