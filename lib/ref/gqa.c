/* Grouped-query attention of the oracle (arXiv 2305.13245); with as many key heads as query heads
 * it is multi-head attention (arXiv 1706.03762, section 3.2).
 *
 * A token leaves its rotated keys and its values in two caches. Rows of a batch read them back from
 * there like any other position, so that a sequence's chunking cannot change a bit. */
#include "ref/ref.h"

/* y[row] += bias */
static void add_bias(float *y, const float *bias, int n_row, int n) {
    for (int row = 0; bias && row < n_row; row++)
        for (int i = 0; i < n; i++) y[(size_t)row * (size_t)n + (size_t)i] += bias[i];
}

/* Every head of every row, by the angles of the row's position. */
static void rotate(const struct hd_op_gqa_qkv *a, float *x, int n_head) {
    for (int row = 0; row < a->batch->n_row; row++) {
        const float *cs = a->rope_cs + (size_t)a->batch->pos[row] * (size_t)a->d_head;
        for (int h = 0; h < n_head; h++, x += a->d_head) {
            if (a->is_half_split)
                hd_ref_rope_halves(x, cs, a->d_head);
            else
                hd_ref_rope(x, cs, a->d_head);
        }
    }
}

static void write_cache(struct hd_ref *r, const struct hd_op_gqa_qkv *a, void *cache) {
    size_t width = (size_t)a->n_head_kv * (size_t)a->d_head;
    for (int row = 0; row < a->batch->n_row; row++) {
        char *to = (char *)cache + hd_kv_bytes(&a->kv, (size_t)a->batch->kv_row[row]);
        r->kv_lost += (uint64_t)hd_kv_encode(&a->kv, r->kv + (size_t)row * width, to);
    }
}

void hd_ref_op_gqa_qkv(void *ctx, const struct hd_op_gqa_qkv *a) {
    struct hd_ref *r = ctx;
    int n_row = a->batch->n_row;
    size_t d = (size_t)a->d_model;
    for (size_t row = 0; row < (size_t)n_row; row++)
        hd_ref_rms_norm(a->x + row * d, a->norm, a->eps, a->d_model, r->normed + row * d);
    hd_ref_matmul(r, a->q, 0, n_row, r->normed, a->q_out);
    add_bias(a->q_out, a->q_bias, n_row, a->q->n_out);
    rotate(a, a->q_out, a->n_head);
    hd_ref_matmul(r, a->k, 0, n_row, r->normed, r->kv);
    add_bias(r->kv, a->k_bias, n_row, a->k->n_out);
    rotate(a, r->kv, a->n_head_kv);
    write_cache(r, a, a->keys);
    hd_ref_matmul(r, a->v, 0, n_row, r->normed, r->kv);
    add_bias(r->kv, a->v_bias, n_row, a->v->n_out);
    write_cache(r, a, a->values);
}

/* Head h of positions 0..n_pos-1 of sequence s, decoded in order into out [n_pos, d_head]. */
static void read_head(const struct hd_op_gqa_attn *a, const void *cache, int s, int h, int n_pos,
                      float *out) {
    const hd_batch *b = a->batch;
    const int32_t *page = b->page + b->seq_page0[s];
    size_t d = (size_t)a->d_head;
    for (int t = 0; t < n_pos; t++) {
        size_t row = (size_t)page[t / b->page_tok] * (size_t)b->page_tok;
        row += (size_t)(t % b->page_tok);
        hd_kv_decode(&a->kv, (const char *)cache + hd_kv_bytes(&a->kv, row), h * a->d_head,
                     a->d_head, out + (size_t)t * d);
    }
}

static void attend(struct hd_ref *r, const struct hd_op_gqa_attn *a, const float *q, int n_pos,
                   float *out) {
    size_t d = (size_t)a->d_head;
    for (size_t t = 0; t < (size_t)n_pos; t++)
        r->score[t] = (float)((double)a->scale * hd_ref_dot(q, r->latent + t * d, a->d_head));
    hd_ref_softmax(r->score, n_pos);
    struct hd_ref_rows values = {.x = r->v, .n_row = n_pos, .step = a->d_head, .width = a->d_head};
    hd_ref_weighted_sum(r->score, values, r->acc, out);
}

static void attend_sequence(struct hd_ref *r, const struct hd_op_gqa_attn *a, int s) {
    const hd_batch *b = a->batch;
    int row0 = b->seq_row0[s], row1 = b->seq_row0[s + 1], n_each = a->n_head / a->n_head_kv;
    int n_pos_all = b->pos[row1 - 1] + 1; /* rows ascend, so the last one sees the most */
    for (int kv = 0; kv < a->n_head_kv; kv++) {
        read_head(a, a->keys, s, kv, n_pos_all, r->latent);
        read_head(a, a->values, s, kv, n_pos_all, r->v);
        for (int row = row0; row < row1; row++)
            for (int h = kv * n_each; h < (kv + 1) * n_each; h++) {
                size_t at = ((size_t)row * (size_t)a->n_head + (size_t)h) * (size_t)a->d_head;
                attend(r, a, a->q + at, b->pos[row] + 1, a->out + at);
            }
    }
}

void hd_ref_op_gqa_attn(void *ctx, const struct hd_op_gqa_attn *a) {
    for (int s = 0; s < a->batch->n_seq; s++) attend_sequence(ctx, a, s);
}
