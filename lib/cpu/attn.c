/* Multi-head latent attention: projections into the cache, and attention over its pages (attend.h).
 *
 * Absorbed: all heads of a row share the latent block itself as key and value. Expanded: one head's
 * keys and values are computed from the latent block once and serve every row of the task
 * (DeepSeek-V2, arXiv 2405.04434, section 2.1). A row does not see what later rows of its chunk
 * wrote. */
#include "cpu/attend.h"

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
        if (hd_cpu_takes_integers(a->q_b))
            k->quantise(qa, a->q_a->n_out, j->q.is_wide, hd_cpu_qrow(&j->q, row));
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
    hd_cpu_qrows xq =
        hd_cpu_norm(c, &(hd_cpu_norm_rows){.x = a->x,
                                           .ldx = (size_t)a->d_model,
                                           .w = a->norm,
                                           .eps = a->eps,
                                           .n_row = n_row,
                                           .n = a->d_model,
                                           .out = c->normed,
                                           .input = hd_cpu_input_of_both(c, q_in, a->kv_a)});
    size_t q_width = (size_t)q_in->n_out;
    hd_cpu_mul in = {.n_row = n_row, .x = c->normed, .ldx = (size_t)a->d_model, .xq = xq};
    hd_cpu_mul m[2] = {in, in};
    m[0].w = q_in, m[0].y = a->q != NULL ? a->q_out : c->a, m[0].ldy = q_width;
    m[1].w = a->kv_a, m[1].y = c->kv, m[1].ldy = (size_t)width;
    hd_cpu_mul_run(c, m, 2);

    qkv_job j = {.c = c, .a = a};
    if (a->q == NULL) j.q = hd_cpu_qrows_of(c, hd_cpu_input_of(c, a->q_b), 1, n_row, a->q_b->n_in);
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

/* ---- Attention ---- */

/* The block's cache rows: latents and rotated keys. */
static hd_cpu_cached cached(const hd_cpu_attention *a, hd_cpu_scratch *t, int seq,
                            const hd_cpu_block *b) {
    const struct hd_op_mla_attn *op = a->op;
    hd_cpu_block_rows(a->batch, seq, b, op->cache, hd_kv_bytes(&op->kv, 1), t->ptr);
    return (hd_cpu_cached){
        .kv = &op->kv, .row = t->ptr, .n_row = b->n_t, .n = op->n_c + op->n_rope};
}

/* k_b and v_b of one head, in panels of 16 lanes; of k_b inputs are lanes. */
static void begin_head(const hd_cpu_attention *a, hd_cpu_scratch *t, int h) {
    const struct hd_op_mla_attn *op = a->op;
    size_t panel = (size_t)op->n_c * HD_CPU_LANES, n_nope = (size_t)op->n_nope;
    memset(t->kb, 0, sizeof *t->kb * (size_t)op->n_c * hd_cpu_pad(op->n_nope));
    for (int i = 0; i < op->n_c; i += HD_CPU_LANES) {
        hd_cpu_unpack_lanes(a->c, t, op->k_b, h, i, t->k);
        int n = hd_cpu_least(op->n_c - i, HD_CPU_LANES);
        for (size_t o = 0; o < n_nope; o++) {
            float *to = t->kb + o / HD_CPU_LANES * panel + o % HD_CPU_LANES;
            for (int l = 0; l < n; l++)
                to[(size_t)(i + l) * HD_CPU_LANES] = t->k[o * HD_CPU_LANES + (size_t)l];
        }
    }
    for (int o = 0; o < op->n_v; o += HD_CPU_LANES)
        hd_cpu_unpack_lanes(a->c, t, op->v_b, h, o, t->vb + (size_t)o / HD_CPU_LANES * panel);
}

/* Keys and values of one head for the block's positions, from its latents. */
static void load_head(const hd_cpu_attention *a, hd_cpu_scratch *t, int seq, int unit,
                      hd_cpu_block *b) {
    const struct hd_op_mla_attn *op = a->op;
    (void)unit;
    size_t n_nope = (size_t)op->n_nope, ldk = hd_cpu_pad(a->n_key), ldv = hd_cpu_pad(op->n_v);
    hd_cpu_cached s = cached(a, t, seq, b);
    hd_cpu_values rows = {.at = t->rows, .ld = hd_cpu_pad(s.n)};
    if (op->kv.type == HD_KV_F32)
        rows = hd_cpu_block_values(a->c, &s, t->rows);
    else
        hd_cpu_cache_rows(a->c->k, &s, t->rows, rows.ld);
    const float *row = rows.at;
    b->k = (hd_cpu_values){.at = t->k, .ld = ldk};
    b->v = (hd_cpu_values){.at = t->v, .ld = ldv};
    hd_cpu_strided p = {.n_row = b->n_t,
                        .n_k = op->n_c,
                        .a = row,
                        .a_row = rows.ld,
                        .a_step = 1,
                        .b.ld = HD_CPU_LANES,
                        .b_panel = (size_t)op->n_c * HD_CPU_LANES};
    p.n_lane = (int)hd_cpu_pad(op->n_nope), p.b.at = t->kb, p.c = t->k, p.ldc = ldk;
    a->c->k->strided(&p);
    p.n_lane = (int)ldv, p.b.at = t->vb, p.c = t->v, p.ldc = ldv;
    a->c->k->strided(&p);
    for (size_t i = 0; i < (size_t)b->n_t; i++)
        memcpy(t->k + i * ldk + n_nope, row + i * rows.ld + op->n_c,
               sizeof(float) * (size_t)op->n_rope);
}

static const float *head_query(const hd_cpu_attention *a, int row, int unit, int i) {
    const struct hd_op_mla_attn *op = a->op;
    (void)i;
    return op->q + ((size_t)row * (size_t)op->n_head + (size_t)unit) * (size_t)a->n_key;
}

static float *head_out(const hd_cpu_attention *a, int row, int unit, int i) {
    const struct hd_op_mla_attn *op = a->op;
    (void)i;
    return op->out + ((size_t)row * (size_t)op->n_head + (size_t)unit) * (size_t)op->n_v;
}

static void run_expanded(hd_cpu *c, const struct hd_op_mla_attn *op, int n_row) {
    hd_cpu_attend(&(hd_cpu_attention){.c = c,
                                      .batch = op->batch,
                                      .list = c->list[HD_MLA_EXPANDED],
                                      .n_row = n_row,
                                      .n_unit = op->n_head,
                                      .n_each = 1,
                                      .n_row_most = c->n_query,
                                      .n_key = op->n_nope + op->n_rope,
                                      .n_v = op->n_v,
                                      .n_chunk = HD_CPU_ONE_CHUNK,
                                      .scale = op->scale,
                                      .op = op,
                                      .begin = begin_head,
                                      .load = load_head,
                                      .query = head_query,
                                      .out = head_out});
}

/* ---- Absorbed: rows in waves, their queries and results at the row's place in the wave ---- */

/* The block that many blocks behind b; n_t 0: there is none. */
static hd_cpu_block behind(const hd_cpu_block *b, int n_block) {
    hd_cpu_block next = {.t0 = b->t0 + n_block * HD_CPU_KV_BLOCK};
    int n_left = b->n_pos - next.t0;
    next.n_t = n_left <= 0 ? 0 : hd_cpu_least(HD_CPU_KV_BLOCK, n_left);
    return next;
}

static void load_latents(const hd_cpu_attention *a, hd_cpu_scratch *t, int seq, int unit,
                         hd_cpu_block *b) {
    (void)unit;
    const struct hd_op_mla_attn *op = a->op;
    size_t row_bytes = hd_kv_bytes(&op->kv, 1);
    hd_cpu_cached s = cached(a, t, seq, b);
    b->k = b->v = hd_cpu_block_values(a->c, &s, t->rows);
    /* A line of each row earlier than the others, so that addresses are known when those are asked
     * for (kernel_repacked.h, PAGES_AHEAD): 8 heads behind 16384 tokens take 1.15 to 1.9 ms a
     * layer of a step without, and 1.1 to 1.5 (two Zen 5 cores). */
    hd_cpu_block next = behind(b, 2);
    const int32_t *page = a->batch->page + a->batch->seq_page0[seq];
    int page_tok = a->batch->page_tok, in_page = next.t0 % page_tok;
    for (int i = 0, p = next.t0 / page_tok; i < next.n_t; p++, in_page = 0) {
        const char *row = (const char *)op->cache + (size_t)page[p] * (size_t)page_tok * row_bytes;
        for (; i < next.n_t && in_page < page_tok; i++, in_page++)
            __builtin_prefetch(row + (size_t)in_page * row_bytes, 0, 2);
    }
    next = behind(b, 1);
    if (next.n_t == 0) return;
    hd_cpu_block_rows(a->batch, seq, &next, op->cache, row_bytes, t->ptr);
    b->ahead = (hd_cpu_ahead){.piece = t->ptr, .n = next.n_t, .n_byte = row_bytes};
}

static const float *latent_query(const hd_cpu_attention *a, int row, int unit, int i) {
    const struct hd_op_mla_attn *op = a->op;
    (void)unit;
    size_t at = (size_t)a->c->wave_at[row] * (size_t)op->n_head + (size_t)i;
    return a->c->q_abs + at * (size_t)a->n_key;
}

static float *latent_out(const hd_cpu_attention *a, int row, int unit, int i) {
    const struct hd_op_mla_attn *op = a->op;
    (void)unit;
    size_t at = (size_t)a->c->wave_at[row] * (size_t)op->n_head + (size_t)i;
    return a->c->u + at * hd_cpu_pad(op->n_c);
}

typedef struct wave {
    hd_cpu *c;
    const struct hd_op_mla_attn *op;
    const int32_t *row; /* [n] */
    int n;
} wave;

/* Inputs of the heads' products: head h of row r is x + r * ld + h * ld_head, and as integers row
 * r * H + h of q. */
typedef struct head_inputs {
    hd_cpu *c;
    const float *x;
    size_t ld, ld_head;
    int n_head;
    const int32_t *row; /* those that matter; NULL: 0, 1, 2, ... */
    hd_cpu_qrows q;
} head_inputs;

static void quantise_heads(void *ctx, int i, int thread) {
    (void)thread;
    const head_inputs *in = ctx;
    int row = in->row != NULL ? in->row[i] : i;
    for (int h = 0; h < in->n_head; h++)
        in->c->k->quantise(in->x + (size_t)row * in->ld + (size_t)h * in->ld_head, in->q.n_k,
                           in->q.is_wide, hd_cpu_qrow(&in->q, row * in->n_head + h));
}

/* Queries into latent space, or weighted latents back out of it: one product a head. What is lost
 * here is lost for all positions: activations of 16 bits. */
static void run_heads(const wave *w, bool is_out) {
    const struct hd_op_mla_attn *op = w->op;
    const hd_weight *b = is_out ? op->v_b : op->k_b;
    hd_cpu *c = w->c;
    size_t width = (size_t)op->n_c + (size_t)op->n_rope, ldu = hd_cpu_pad(op->n_c),
           h_n = (size_t)op->n_head;
    size_t q_width = (size_t)op->n_nope + (size_t)op->n_rope, n_v = (size_t)op->n_v;
    head_inputs in = {.c = c, .x = op->q, .ld = h_n * q_width, .ld_head = q_width, .row = w->row};
    if (is_out) in.x = c->u, in.ld = h_n * ldu, in.ld_head = ldu, in.row = NULL;
    in.n_head = op->n_head;
    if (hd_cpu_takes_integers(b)) {
        int n_row = (is_out ? w->n : op->batch->n_row) * op->n_head;
        in.q = hd_cpu_qrows_of(c, HD_CPU_WIDE, 0, n_row, b->n_in);
        hd_cpu_rows(c, w->n, op->n_head * b->n_in, quantise_heads, &in);
    }
    for (int h = 0; h < op->n_head; h++) {
        hd_cpu_mul *m = &c->mul[h];
        *m = (hd_cpu_mul){.w = b, .mat = h, .is_exact = true, .n_row = w->n, .xq = in.q};
        m->x = in.x + (size_t)h * in.ld_head, m->ldx = in.ld, m->x_row = in.row;
        m->xq.row0 = hd_cpu_takes_integers(b) ? hd_cpu_qrow(&in.q, h) : NULL;
        m->xq.row_bytes = h_n * in.q.row_bytes;
        if (is_out)
            m->y = op->out + (size_t)h * n_v, m->ldy = h_n * n_v, m->y_row = w->row;
        else
            m->y = c->q_abs + (size_t)h * width, m->ldy = h_n * width;
    }
    hd_cpu_mul_run(c, c->mul, op->n_head);
}

/* The part of a row's queries that was rotated, behind that in latent space. */
static void rotated_row(void *ctx, int at, int thread) {
    (void)thread;
    const wave *w = ctx;
    const struct hd_op_mla_attn *op = w->op;
    size_t h_n = (size_t)op->n_head, n_rope = (size_t)op->n_rope, n_c = (size_t)op->n_c;
    size_t q_width = (size_t)op->n_nope + n_rope;
    const float *q = op->q + (size_t)w->row[at] * h_n * q_width + op->n_nope;
    float *to = w->c->q_abs + (size_t)at * h_n * (n_c + n_rope) + n_c;
    for (size_t h = 0; h < h_n; h++)
        memcpy(to + h * (n_c + n_rope), q + h * q_width, sizeof *q * n_rope);
}

static void run_absorbed(hd_cpu *c, const struct hd_op_mla_attn *op, int n_row) {
    int n_query = hd_cpu_least(HD_CPU_LATENT_QUERIES, c->n_query);
    hd_cpu_attention a = {.c = c,
                          .batch = op->batch,
                          .n_unit = 1,
                          .n_each = op->n_head,
                          .n_row_most = n_query < op->n_head ? 1 : n_query / op->n_head,
                          .n_key = op->n_c + op->n_rope,
                          .n_v = op->n_c,
                          .n_chunk = HD_CPU_CHUNK,
                          .scale = op->scale,
                          .op = op,
                          .load = load_latents,
                          .query = latent_query,
                          .out = latent_out};
    for (int r = 0; r < n_row; r += HD_CPU_WAVE) {
        wave w = {.c = c, .op = op, .row = c->list[HD_MLA_ABSORBED] + r};
        w.n = hd_cpu_least(n_row - r, HD_CPU_WAVE);
        for (int i = 0; i < w.n; i++) c->wave_at[w.row[i]] = i;
        run_heads(&w, false);
        hd_cpu_rows(c, w.n, op->n_head * op->n_rope, rotated_row, &w);
        a.list = w.row, a.n_row = w.n;
        hd_cpu_attend(&a);
        run_heads(&w, true);
    }
}

void hd_cpu_mla_attn(void *ctx, const struct hd_op_mla_attn *args) {
    hd_cpu *c = ctx;
    HD_ASSERT(args->batch->n_row <= c->limits.n_row && args->n_head <= c->limits.n_head);
    HD_ASSERT(args->n_c <= c->limits.n_c && args->n_nope <= c->limits.n_nope);
    HD_ASSERT(args->n_rope <= c->limits.n_rope && args->n_v <= c->limits.n_v);
    int n = hd_cpu_list_rows(c, args->batch, HD_MLA_ABSORBED, HD_MLA_ABSORBED);
    if (n > 0) run_absorbed(c, args, n);
    n = hd_cpu_list_rows(c, args->batch, HD_MLA_EXPANDED, HD_MLA_EXPANDED);
    if (n > 0) run_expanded(c, args, n);
}
