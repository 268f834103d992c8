/* Multi-head latent attention: projections into the cache, and attention over its pages.
 *
 * Both forms end in the same loop: queries run over a sequence's positions in blocks of 64 from
 * position 0 with an online softmax. Absorbed: all heads of a row share the latent block itself as
 * key and value. Expanded: one head's keys and values are computed from the latent block once and
 * serve every row of the sequence in the batch (DeepSeek-V2, arXiv 2405.04434, section 2.1). Sums
 * over positions are in ascending order and stop at the row's own position, so a row does not see
 * what later rows of its chunk wrote. Only positions up to the last row's are read. */
#include "cpu/cpu.h"

#include <math.h>
#include <string.h>

/* ---- q, kv ---- */

typedef struct qkv_job {
    hd_cpu *c;
    const struct hd_op_mla_qkv *a;
    hd_cpu_qrows q;
} qkv_job;

/* Norm of the query's low-rank vector; norm, rotation and storing of the latent. */
static void latent_row(void *ctx, int row, int thread) {
    (void)thread;
    const qkv_job *j = ctx;
    const struct hd_op_mla_qkv *a = j->a;
    const hd_cpu_kernels *k = j->c->k;
    if (a->q == NULL) {
        float *qa = j->c->a + (size_t)row * (size_t)a->q_a->n_out;
        k->norm(qa, a->q_a_norm, a->lora_eps, a->q_a->n_out, qa);
        if (a->q_b->format == HD_Q8_0) k->quantise(qa, a->q_a->n_out, &j->q, row);
    }
    int width = a->n_c + a->n_rope;
    float *kv = j->c->kv + (size_t)row * (size_t)width;
    const float *cs = a->rope_cs + (size_t)a->batch->pos[row] * (size_t)a->n_rope;
    k->norm(kv, a->kv_a_norm, a->lora_eps, a->n_c, kv);
    k->rope(kv + a->n_c, cs, a->n_rope);
    char *to = (char *)a->cache + hd_kv_bytes(&a->kv, (size_t)a->batch->kv_row[row]);
    hd_cpu_cache_put(j->c, &a->kv, kv, to);
}

static void rope_row(void *ctx, int row, int thread) {
    (void)thread;
    const qkv_job *j = ctx;
    const struct hd_op_mla_qkv *a = j->a;
    size_t width = (size_t)a->n_nope + (size_t)a->n_rope;
    const float *cs = a->rope_cs + (size_t)a->batch->pos[row] * (size_t)a->n_rope;
    float *q = a->q_out + (size_t)row * (size_t)a->n_head * width + a->n_nope;
    for (int h = 0; h < a->n_head; h++, q += width) j->c->k->rope(q, cs, a->n_rope);
}

void hd_cpu_mla_qkv(void *ctx, const struct hd_op_mla_qkv *args) {
    hd_cpu *c = ctx;
    const struct hd_op_mla_qkv *a = args;
    const hd_weight *q_in = a->q != NULL ? a->q : a->q_a;
    int n_row = a->batch->n_row, width = a->n_c + a->n_rope;
    HD_ASSERT(n_row <= c->limits.n_row);
    bool is_q8 = q_in->format == HD_Q8_0 || a->kv_a->format == HD_Q8_0;
    hd_cpu_qrows xq = hd_cpu_norm(c, &(hd_cpu_norm_rows){.x = a->x,
                                                         .ldx = (size_t)a->d_model,
                                                         .w = a->norm,
                                                         .eps = a->eps,
                                                         .n_row = n_row,
                                                         .n = a->d_model,
                                                         .out = c->normed,
                                                         .is_quantised = is_q8});
    size_t q_width = (size_t)q_in->n_out;
    hd_cpu_mul in = {.n_row = n_row, .x = c->normed, .ldx = (size_t)a->d_model, .xq = xq};
    hd_cpu_mul m[2] = {in, in};
    m[0].w = q_in, m[0].y = a->q != NULL ? a->q_out : c->a, m[0].ldy = q_width;
    m[1].w = a->kv_a, m[1].y = c->kv, m[1].ldy = (size_t)width;
    hd_cpu_mul_run(c, m, 2);

    qkv_job j = {.c = c, .a = a};
    if (a->q == NULL && a->q_b->format == HD_Q8_0) {
        j.q = c->q[1];
        j.q.n_k = a->q_b->n_in;
    }
    hd_cpu_rows(c, n_row, 4 * width, latent_row, &j);
    if (a->q == NULL) {
        hd_cpu_mul up = {.w = a->q_b,
                         .n_row = n_row,
                         .x = c->a,
                         .ldx = q_width,
                         .xq = j.q,
                         .y = a->q_out,
                         .ldy = (size_t)a->q_b->n_out};
        hd_cpu_mul_run(c, &up, 1);
    }
    hd_cpu_rows(c, n_row, a->n_head * a->n_rope, rope_row, &j);
}

/* Pointers to the cache rows of a block of a sequence. */
static void cache_rows(const struct hd_op_mla_attn *a, int seq, const hd_cpu_block *b,
                       const void **row) {
    hd_cpu_block_rows(a->batch, seq, b, a->cache, hd_kv_bytes(&a->kv, 1), row);
}

typedef struct attn_job {
    hd_cpu *c;
    const struct hd_op_mla_attn *a;
    const int32_t *list; /* rows, of one form */
    int n_head_each;     /* heads a task, absorbed */
    int n_part;          /* head groups */
    int wave0;           /* absorbed: first entry of list in this wave */
} attn_job;

/* ---- Expanded ---- */

/* Keys and values of head h for the block's positions, from its latents. */
static void expand(const attn_job *j, hd_cpu_scratch *t, int n_t) {
    const struct hd_op_mla_attn *a = j->a;
    const hd_cpu_kernels *k = j->c->k;
    size_t ldv = hd_cpu_pad(a->n_v);
    size_t ld = hd_cpu_pad(a->n_c + a->n_rope);
    hd_cpu_cached s = {.kv = &a->kv, .row = t->w, .n_row = n_t, .n = a->n_c};
    hd_cpu_cache_panel(k, &s, t->rows, ld, t->ct);
    s.first = a->n_c, s.n = a->n_rope;
    hd_cpu_cache_panel(k, &s, t->rows, ld, t->kt + (size_t)a->n_nope * HD_CPU_KV_BLOCK);
    for (int i = 0; i < a->n_nope; i++) {
        t->a[i] = t->kb + i;
        t->c_row[i] = t->kt + (size_t)i * HD_CPU_KV_BLOCK;
    }
    k->product(&(hd_cpu_product){.n_row = a->n_nope,
                                 .n_k = a->n_c,
                                 .n_lane = (int)hd_cpu_pad(n_t),
                                 .a = t->a,
                                 .a_step = (size_t)a->n_nope,
                                 .b = t->ct,
                                 .ldb = HD_CPU_KV_BLOCK,
                                 .c = t->c_row});
    for (int i = 0; i < n_t; i++) {
        t->a[i] = t->ct + i;
        t->c_row[i] = t->v + (size_t)i * ldv;
    }
    k->product(&(hd_cpu_product){.n_row = n_t,
                                 .n_k = a->n_c,
                                 .n_lane = (int)ldv,
                                 .a = t->a,
                                 .a_step = HD_CPU_KV_BLOCK,
                                 .b = t->vb,
                                 .ldb = ldv,
                                 .c = t->c_row});
}

static void load_head(const attn_job *j, hd_cpu_scratch *t, int h) {
    const struct hd_op_mla_attn *a = j->a;
    size_t row_bytes = hd_format_bytes(a->v_b->format, (size_t)a->n_c);
    hd_cpu_decode(j->c, a->k_b->format, a->k_b->mat[h], t->kb, a->n_c * a->n_nope);
    for (int i = 0; i < a->n_v; i++) t->w[i] = (const char *)a->v_b->mat[h] + (size_t)i * row_bytes;
    hd_cpu_unpack(j->c, t,
                  &(hd_cpu_unpacking){.format = a->v_b->format,
                                      .row = t->w,
                                      .n_row = a->n_v,
                                      .n_k = a->n_c,
                                      .panel = t->vb,
                                      .ld = hd_cpu_pad(a->n_v)});
}

static void expanded_task(void *ctx, int task, int thread) {
    const attn_job *j = ctx;
    const struct hd_op_mla_attn *a = j->a;
    const hd_cpu_group *g = &j->c->group[task / a->n_head];
    hd_cpu_scratch *t = &j->c->thread[thread];
    hd_cpu_queries *q = &t->queries;
    int h = task % a->n_head, width = a->n_nope + a->n_rope;
    size_t ldv = hd_cpu_pad(a->n_v);
    load_head(j, t, h);
    q->n = g->n;
    for (int i = 0; i < g->n; i++) {
        int row = j->list[g->first + i];
        q->q[i] = a->q + ((size_t)row * (size_t)a->n_head + (size_t)h) * (size_t)width;
        q->acc[i] = t->acc + (size_t)i * ldv;
        q->pos[i] = a->batch->pos[row];
        q->m[i] = -INFINITY, q->l[i] = 0;
    }
    int n_pos = q->pos[g->n - 1] + 1;
    hd_cpu_block b = {
        .kt = t->kt, .v = t->v, .n_key = width, .n_v = a->n_v, .ldv = ldv, .scale = a->scale};
    for (; b.t0 < n_pos; b.t0 += HD_CPU_KV_BLOCK) {
        b.n_t = hd_cpu_least(HD_CPU_KV_BLOCK, n_pos - b.t0);
        cache_rows(a, g->seq, &b, t->w);
        expand(j, t, b.n_t);
        hd_cpu_attend(j->c->k, t, &b);
    }
    for (int i = 0; i < g->n; i++) {
        size_t row = (size_t)j->list[g->first + i];
        j->c->k->scale(q->acc[i], a->n_v, 1.0f / q->l[i]);
        memcpy(a->out + (row * (size_t)a->n_head + (size_t)h) * (size_t)a->n_v, q->acc[i],
               sizeof(float) * (size_t)a->n_v);
    }
}

/* ---- Absorbed ---- */

static void absorbed_task(void *ctx, int task, int thread) {
    const attn_job *j = ctx;
    const struct hd_op_mla_attn *a = j->a;
    const hd_cpu_group *g = &j->c->group[task / j->n_part];
    const hd_cpu_kernels *k = j->c->k;
    hd_cpu_scratch *t = &j->c->thread[thread];
    hd_cpu_queries *q = &t->queries;
    int h0 = task % j->n_part * j->n_head_each, h1 = hd_cpu_least(h0 + j->n_head_each, a->n_head);
    size_t width = (size_t)a->n_c + (size_t)a->n_rope, ldu = hd_cpu_pad(a->n_c);
    size_t q_width = (size_t)a->n_nope + (size_t)a->n_rope;
    q->n = 0;
    for (int i = g->first; i < g->first + g->n; i++) {
        size_t row = (size_t)j->list[i], slot = (size_t)(i - j->wave0);
        for (int h = h0; h < h1; h++) {
            size_t at = slot * (size_t)a->n_head + (size_t)h;
            float *qa = j->c->q_abs + at * width;
            memcpy(qa + a->n_c, a->q + (row * (size_t)a->n_head + (size_t)h) * q_width + a->n_nope,
                   sizeof(float) * (size_t)a->n_rope);
            q->q[q->n] = qa;
            q->acc[q->n] = j->c->u + at * ldu;
            q->pos[q->n] = a->batch->pos[row];
            q->m[q->n] = -INFINITY, q->l[q->n] = 0;
            q->n++;
        }
    }
    int n_pos = q->pos[q->n - 1] + 1;
    hd_cpu_block b = {.kt = t->ct,
                      .v = t->rows,
                      .n_key = (int)width,
                      .n_v = a->n_c,
                      .ldv = hd_cpu_pad((int)width),
                      .scale = a->scale};
    for (; b.t0 < n_pos; b.t0 += HD_CPU_KV_BLOCK) {
        b.n_t = hd_cpu_least(HD_CPU_KV_BLOCK, n_pos - b.t0);
        cache_rows(a, g->seq, &b, t->w);
        hd_cpu_cached s = {.kv = &a->kv, .row = t->w, .n_row = b.n_t, .n = (int)width};
        hd_cpu_cache_panel(k, &s, t->rows, b.ldv, t->ct);
        s.n = a->n_c;
        if (a->kv.n_code == 0) hd_cpu_cache_rows(k, &s, t->rows, b.ldv);
        hd_cpu_attend(k, t, &b);
    }
    for (int i = 0; i < q->n; i++) k->scale(q->acc[i], a->n_c, 1.0f / q->l[i]);
}

/* ---- The op ---- */

static void run_expanded(attn_job *j, int n) {
    int n_max = HD_CPU_QUERIES, n_group, n_head = j->a->n_head;
    for (;; n_max /= 2) {
        n_group = hd_cpu_make_groups(j->c, j->a->batch, j->list, 0, n, n_max);
        if (n_group * n_head >= 2 * j->c->n_thread || n_max <= HD_CPU_KV_BLOCK) break;
    }
    hd_pool_run(j->c->pool, n_group * n_head, expanded_task, j);
}

/* Queries into latent space, or weighted latents back out of it: one product a head. */
static void run_heads(attn_job *j, int n, bool is_out) {
    const struct hd_op_mla_attn *a = j->a;
    hd_cpu *c = j->c;
    const int32_t *row = j->list + j->wave0;
    size_t width = (size_t)a->n_c + (size_t)a->n_rope, ldu = hd_cpu_pad(a->n_c),
           h_n = (size_t)a->n_head;
    size_t q_width = (size_t)a->n_nope + (size_t)a->n_rope, n_v = (size_t)a->n_v;
    for (int h = 0; h < a->n_head; h++) {
        hd_cpu_mul *m = &c->mul[h];
        *m = (hd_cpu_mul){.mat = h, .is_float = true, .n_row = n};
        if (is_out) {
            m->w = a->v_b;
            m->x = c->u + (size_t)h * ldu, m->ldx = h_n * ldu;
            m->y = a->out + (size_t)h * n_v, m->ldy = h_n * n_v, m->y_row = row;
        } else {
            m->w = a->k_b;
            m->x = a->q + (size_t)h * q_width, m->ldx = h_n * q_width, m->x_row = row;
            m->y = c->q_abs + (size_t)h * width, m->ldy = h_n * width;
        }
    }
    hd_cpu_mul_run(c, c->mul, a->n_head);
}

static void run_absorbed(attn_job *j, int n) {
    hd_cpu *c = j->c;
    const struct hd_op_mla_attn *a = j->a;
    for (j->wave0 = 0; j->wave0 < n; j->wave0 += HD_CPU_WAVE) {
        int n_wave = hd_cpu_least(n - j->wave0, HD_CPU_WAVE);
        run_heads(j, n_wave, false);
        j->n_head_each = hd_cpu_least(a->n_head, HD_CPU_QUERIES);
        int n_row_each = HD_CPU_QUERIES / j->n_head_each;
        int n_group =
            hd_cpu_make_groups(c, a->batch, j->list, j->wave0, j->wave0 + n_wave, n_row_each);
        /* Fewer heads a task only when threads would have none: each task decodes its positions. */
        if (n_group < c->n_thread) {
            int n_part = hd_cpu_least((c->n_thread + n_group - 1) / n_group, a->n_head);
            j->n_head_each = hd_cpu_least(j->n_head_each, (a->n_head + n_part - 1) / n_part);
        }
        j->n_part = (a->n_head + j->n_head_each - 1) / j->n_head_each;
        hd_pool_run(c->pool, n_group * j->n_part, absorbed_task, j);
        run_heads(j, n_wave, true);
    }
}

void hd_cpu_mla_attn(void *ctx, const struct hd_op_mla_attn *args) {
    hd_cpu *c = ctx;
    const hd_batch *b = args->batch;
    int n[2] = {0, 0};
    HD_ASSERT(b->n_row <= c->limits.n_row && args->n_head <= c->limits.n_head);
    HD_ASSERT(args->n_c <= c->limits.n_c && args->n_nope <= c->limits.n_nope);
    HD_ASSERT(args->n_rope <= c->limits.n_rope && args->n_v <= c->limits.n_v);
    for (int r = 0; r < b->n_row; r++) {
        int form = b->form[r] == HD_MLA_EXPANDED;
        c->list[form][n[form]++] = r;
    }
    attn_job j = {.c = c, .a = args};
    if (n[0] > 0) {
        j.list = c->list[0];
        run_absorbed(&j, n[0]);
    }
    if (n[1] > 0) {
        j.list = c->list[1];
        run_expanded(&j, n[1]);
    }
}
