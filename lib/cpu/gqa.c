/* Grouped-query attention: projections into the two caches, and attention over their pages.
 *
 * A task is one key head and some rows of a sequence: every query head that reads the key head, so
 * that a block of its keys and values is decoded once for all of them. */
#include "cpu/cpu.h"

#include <math.h>
#include <string.h>

/* ---- q, k, v ---- */

typedef struct qkv_job {
    hd_cpu *c;
    const struct hd_op_gqa_qkv *a;
    float *k, *v; /* [R, n_kv] */
} qkv_job;

static void rope_halves(float *x, const float *cs, int n) {
    float *y = x + n / 2;
    for (int i = 0; i < n / 2; i++) {
        float a = x[i], b = y[i], c = cs[2 * i], s = cs[2 * i + 1];
        x[i] = a * c - b * s;
        y[i] = b * c + a * s;
    }
}

/* Bias and rotation of n_head heads. */
static void finish_heads(const qkv_job *j, float *x, int n_head, const float *bias,
                         const float *cs) {
    int d = j->a->d_head;
    if (bias != NULL) j->c->k->axpy(bias, n_head * d, 1.0f, x);
    for (int h = 0; cs != NULL && h < n_head; h++, x += d) {
        if (j->a->is_half_split)
            rope_halves(x, cs, d);
        else
            j->c->k->rope(x, cs, d);
    }
}

static void qkv_row(void *ctx, int row, int thread) {
    (void)thread;
    const qkv_job *j = ctx;
    const struct hd_op_gqa_qkv *a = j->a;
    size_t n_q = (size_t)a->n_head * (size_t)a->d_head;
    int n_kv = a->n_head_kv * a->d_head;
    const float *cs = a->rope_cs + (size_t)a->batch->pos[row] * (size_t)a->d_head;
    float *k = j->k + (size_t)row * (size_t)n_kv, *v = j->v + (size_t)row * (size_t)n_kv;
    finish_heads(j, a->q_out + (size_t)row * n_q, a->n_head, a->q_bias, cs);
    finish_heads(j, k, a->n_head_kv, a->k_bias, cs);
    finish_heads(j, v, a->n_head_kv, a->v_bias, NULL);
    size_t at = hd_kv_bytes(&a->kv, (size_t)a->batch->kv_row[row]);
    hd_cpu_cache_put(j->c, &a->kv, k, (char *)a->keys + at);
    hd_cpu_cache_put(j->c, &a->kv, v, (char *)a->values + at);
}

void hd_cpu_gqa_qkv(void *ctx, const struct hd_op_gqa_qkv *args) {
    hd_cpu *c = ctx;
    const struct hd_op_gqa_qkv *a = args;
    int n_row = a->batch->n_row;
    size_t n_kv = (size_t)a->k->n_out;
    HD_ASSERT(n_row <= c->limits.n_row && a->k->n_out <= c->limits.n_kv);
    bool is_q8 = a->q->format == HD_Q8_0 || a->k->format == HD_Q8_0 || a->v->format == HD_Q8_0;
    hd_cpu_qrows xq = hd_cpu_norm(c, &(hd_cpu_norm_rows){.x = a->x,
                                                         .ldx = (size_t)a->d_model,
                                                         .w = a->norm,
                                                         .eps = a->eps,
                                                         .n_row = n_row,
                                                         .n = a->d_model,
                                                         .out = c->normed,
                                                         .is_quantised = is_q8});
    qkv_job j = {.c = c, .a = a, .k = c->kv, .v = c->kv + (size_t)c->limits.n_row * n_kv};
    hd_cpu_mul in = {.n_row = n_row, .x = c->normed, .ldx = (size_t)a->d_model, .xq = xq};
    hd_cpu_mul m[3] = {in, in, in};
    m[0].w = a->q, m[0].y = a->q_out, m[0].ldy = (size_t)a->q->n_out;
    m[1].w = a->k, m[1].y = j.k, m[1].ldy = n_kv;
    m[2].w = a->v, m[2].y = j.v, m[2].ldy = n_kv;
    hd_cpu_mul_run(c, m, 3);
    hd_cpu_rows(c, n_row, a->q->n_out + 4 * a->k->n_out, qkv_row, &j);
}

/* ---- Attention ---- */

typedef struct attn_job {
    hd_cpu *c;
    const struct hd_op_gqa_attn *a;
    int n_part, n_head_each; /* a key head's query heads in n_part tasks of n_head_each */
} attn_job;

/* Keys (positions across lanes) and values (a position a row) of one head for a block. */
static void load_block(const attn_job *j, hd_cpu_scratch *t, int seq, int head, hd_cpu_block *b) {
    const struct hd_op_gqa_attn *a = j->a;
    const hd_cpu_kernels *k = j->c->k;
    size_t row_bytes = hd_kv_bytes(&a->kv, 1);
    hd_cpu_cached s = {
        .kv = &a->kv, .row = t->w, .n_row = b->n_t, .first = head * a->d_head, .n = a->d_head};
    hd_cpu_block_rows(a->batch, seq, b, a->keys, row_bytes, t->w);
    hd_cpu_cache_panel(k, &s, t->rows, b->ldv, t->kt);
    hd_cpu_block_rows(a->batch, seq, b, a->values, row_bytes, t->w);
    hd_cpu_cache_rows(k, &s, t->v, b->ldv);
}

static void attn_task(void *ctx, int task, int thread) {
    const attn_job *j = ctx;
    const struct hd_op_gqa_attn *a = j->a;
    int part = task % j->n_part, head = task / j->n_part % a->n_head_kv;
    const hd_cpu_group *g = &j->c->group[task / j->n_part / a->n_head_kv];
    hd_cpu_scratch *t = &j->c->thread[thread];
    hd_cpu_queries *q = &t->queries;
    size_t d = (size_t)a->d_head, ldv = hd_cpu_pad(a->d_head);
    int n_of_head = a->n_head / a->n_head_kv, first = part * j->n_head_each;
    int h0 = head * n_of_head + first, h1 = h0 + hd_cpu_least(j->n_head_each, n_of_head - first);
    q->n = 0;
    for (int i = g->first; i < g->first + g->n; i++)
        for (int h = h0; h < h1; h++, q->n++) {
            int row = j->c->list[0][i];
            q->q[q->n] = a->q + ((size_t)row * (size_t)a->n_head + (size_t)h) * d;
            q->acc[q->n] = t->acc + (size_t)q->n * ldv;
            q->pos[q->n] = a->batch->pos[row];
            q->m[q->n] = -INFINITY, q->l[q->n] = 0;
        }
    int n_pos = q->pos[q->n - 1] + 1;
    hd_cpu_block b = {.kt = t->kt,
                      .v = t->v,
                      .n_key = a->d_head,
                      .n_v = a->d_head,
                      .ldv = ldv,
                      .scale = a->scale};
    for (; b.t0 < n_pos; b.t0 += HD_CPU_KV_BLOCK) {
        b.n_t = hd_cpu_least(HD_CPU_KV_BLOCK, n_pos - b.t0);
        load_block(j, t, g->seq, head, &b);
        hd_cpu_attend(j->c->k, t, &b);
    }
    for (int i = 0; i < q->n; i++) {
        size_t row = (size_t)j->c->list[0][g->first + i / (h1 - h0)];
        int h = h0 + i % (h1 - h0);
        j->c->k->scale(q->acc[i], a->d_head, 1.0f / q->l[i]);
        memcpy(a->out + (row * (size_t)a->n_head + (size_t)h) * d, q->acc[i], sizeof(float) * d);
    }
}

void hd_cpu_gqa_attn(void *ctx, const struct hd_op_gqa_attn *args) {
    hd_cpu *c = ctx;
    const hd_batch *b = args->batch;
    HD_ASSERT(b->n_row <= c->limits.n_row && args->n_head % args->n_head_kv == 0);
    HD_ASSERT(args->d_head <= c->limits.n_rope && args->d_head <= c->limits.n_v);
    for (int r = 0; r < b->n_row; r++) c->list[0][r] = r;
    attn_job j = {.c = c, .a = args};
    int n_of_head = args->n_head / args->n_head_kv, n_group;
    j.n_part = (n_of_head + HD_CPU_QUERIES - 1) / HD_CPU_QUERIES;
    j.n_head_each = (n_of_head + j.n_part - 1) / j.n_part;
    for (int n_max = HD_CPU_QUERIES / j.n_head_each;; n_max /= 2) {
        n_group = hd_cpu_make_groups(c, b, c->list[0], 0, b->n_row, n_max);
        bool is_small = n_max == 1 || n_max * j.n_head_each <= HD_CPU_KV_BLOCK;
        if (is_small || n_group * args->n_head_kv >= 2 * c->n_thread) break;
    }
    hd_pool_run(c->pool, n_group * args->n_head_kv * j.n_part, attn_task, &j);
}
