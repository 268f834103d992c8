/* Grouped-query attention: projections into the two caches, and attention over their pages
 * (attend.h): a unit is a key head, its queries those of every head that reads it. */
#include "cpu/attend.h"

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
    enum hd_cpu_input of_q = hd_cpu_input_of(c, a->q), of_kv = hd_cpu_input_of_both(c, a->k, a->v);
    hd_cpu_qrows xq = hd_cpu_norm(c, &(hd_cpu_norm_rows){.x = a->x,
                                                         .ldx = (size_t)a->d_model,
                                                         .w = a->norm,
                                                         .eps = a->eps,
                                                         .n_row = n_row,
                                                         .n = a->d_model,
                                                         .out = c->normed,
                                                         .input = of_q > of_kv ? of_q : of_kv});
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

/* One head's part of the rows of the block behind b is asked for now: such parts lie a row apart,
 * where no prefetcher of the processor finds them. */
static void fetch_ahead(const hd_cpu_attention *a, hd_cpu_scratch *t, int seq, int head,
                        const hd_cpu_block *b) {
    const struct hd_op_gqa_attn *op = a->op;
    hd_cpu_block next = {.t0 = b->t0 + HD_CPU_KV_BLOCK};
    next.n_t = hd_cpu_least(HD_CPU_KV_BLOCK, b->n_pos - next.t0);
    size_t row_bytes = hd_kv_bytes(&op->kv, 1), n = row_bytes / (size_t)op->n_head_kv;
    const void *const cache[2] = {op->keys, op->values};
    for (int c = 0; c < 2 && next.n_t > 0; c++) {
        hd_cpu_block_rows(a->batch, seq, &next, cache[c], row_bytes, t->ptr);
        for (int i = 0; i < next.n_t; i++)
            for (size_t at = 0; at < n; at += 64)
                __builtin_prefetch((const char *)t->ptr[i] + (size_t)head * n + at, 0, 2);
    }
}

static void load_head(const hd_cpu_attention *a, hd_cpu_scratch *t, int seq, int head,
                      hd_cpu_block *b) {
    const struct hd_op_gqa_attn *op = a->op;
    size_t row_bytes = hd_kv_bytes(&op->kv, 1);
    hd_cpu_cached s = {
        .kv = &op->kv, .row = t->ptr, .n_row = b->n_t, .first = head * op->d_head, .n = op->d_head};
    hd_cpu_block_rows(a->batch, seq, b, op->keys, row_bytes, t->ptr);
    b->k = hd_cpu_block_values(a->c, &s, t->k);
    hd_cpu_block_rows(a->batch, seq, b, op->values, row_bytes, t->ptr);
    b->v = hd_cpu_block_values(a->c, &s, t->v);
    fetch_ahead(a, t, seq, head, b);
}

/* Query head i of those that read a key head. */
static size_t head_at(const hd_cpu_attention *a, int row, int head, int i) {
    const struct hd_op_gqa_attn *op = a->op;
    return ((size_t)row * (size_t)op->n_head + (size_t)(head * a->n_each + i)) * (size_t)op->d_head;
}

static const float *query(const hd_cpu_attention *a, int row, int head, int i) {
    const struct hd_op_gqa_attn *op = a->op;
    return op->q + head_at(a, row, head, i);
}

static float *out(const hd_cpu_attention *a, int row, int head, int i) {
    const struct hd_op_gqa_attn *op = a->op;
    return op->out + head_at(a, row, head, i);
}

void hd_cpu_gqa_attn(void *ctx, const struct hd_op_gqa_attn *args) {
    hd_cpu *c = ctx;
    HD_ASSERT(args->batch->n_row <= c->limits.n_row && args->n_head <= c->limits.n_head);
    HD_ASSERT(args->n_head % args->n_head_kv == 0);
    HD_ASSERT(args->d_head <= c->limits.n_rope && args->d_head <= c->limits.n_v);
    int n_each = args->n_head / args->n_head_kv;
    int n_row = hd_cpu_list_rows(c, args->batch, -1, 0);
    hd_cpu_attend(&(hd_cpu_attention){.c = c,
                                      .batch = args->batch,
                                      .list = c->list[0],
                                      .n_row = n_row,
                                      .n_unit = args->n_head_kv,
                                      .n_each = n_each,
                                      .n_row_most = c->n_query / n_each,
                                      .n_key = args->d_head,
                                      .n_v = args->d_head,
                                      .n_chunk = HD_CPU_CHUNK,
                                      .scale = args->scale,
                                      .op = args,
                                      .load = load_head,
                                      .query = query,
                                      .out = out});
}
