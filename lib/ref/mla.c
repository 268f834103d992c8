/* Multi-head latent attention of the oracle (DeepSeek-V2, arXiv 2405.04434, section 2.1).
 *
 * A token leaves one row in the cache: its normed latent c (n_c values) and its rotated rope key
 * (n_rope values, shared by all heads). A head's key for a cached token is [W_k c | rope key], its
 * value W_v c. The expanded form computes these; the absorbed form moves W_k to the query side
 * (q' = W_k^T q_nope, once a row) and W_v behind the weighted sum of latents. Both read only the
 * cache, also for rows of the same batch, so that a sequence's chunking cannot change a bit. */
#include "ref/ref.h"

#include <string.h>

/* Normed latent and rotated key of every row, into the cache row that the batch names. */
static void write_cache(struct hd_ref *r, const struct hd_op_mla_qkv *a) {
    const hd_batch *b = a->batch;
    int width = a->n_c + a->n_rope;
    for (int row = 0; row < b->n_row; row++) {
        float *x = r->kv + (size_t)row * (size_t)width;
        const float *cs = a->rope_cs + (size_t)b->pos[row] * (size_t)a->n_rope;
        hd_ref_rms_norm(x, a->kv_a_norm, a->lora_eps, a->n_c, x);
        hd_ref_rope(x + a->n_c, cs, a->n_rope);
        char *to = (char *)a->cache + hd_kv_bytes(&a->kv, (size_t)b->kv_row[row]);
        r->kv_lost += (uint64_t)hd_kv_encode(&a->kv, x, to);
    }
}

static void rotate_queries(const struct hd_op_mla_qkv *a) {
    const hd_batch *b = a->batch;
    int width = a->n_nope + a->n_rope;
    for (int row = 0; row < b->n_row; row++) {
        const float *cs = a->rope_cs + (size_t)b->pos[row] * (size_t)a->n_rope;
        float *q = a->q_out + (size_t)row * (size_t)a->n_head * (size_t)width;
        for (int h = 0; h < a->n_head; h++) hd_ref_rope(q + h * width + a->n_nope, cs, a->n_rope);
    }
}

void hd_ref_op_mla_qkv(void *ctx, const struct hd_op_mla_qkv *a) {
    struct hd_ref *r = ctx;
    int n_row = a->batch->n_row;
    for (size_t row = 0; row < (size_t)n_row; row++)
        hd_ref_rms_norm(a->x + row * (size_t)a->d_model, a->norm, a->eps, a->d_model,
                        r->normed + row * (size_t)a->d_model);
    if (a->q) {
        hd_ref_matmul(r, a->q, 0, n_row, r->normed, a->q_out);
    } else {
        hd_ref_matmul(r, a->q_a, 0, n_row, r->normed, r->q_lora);
        int n = a->q_a->n_out;
        for (size_t row = 0; row < (size_t)n_row; row++) {
            float *x = r->q_lora + row * (size_t)n;
            hd_ref_rms_norm(x, a->q_a_norm, a->lora_eps, n, x);
        }
        hd_ref_matmul(r, a->q_b, 0, n_row, r->q_lora, a->q_out);
    }
    rotate_queries(a);
    hd_ref_matmul(r, a->kv_a, 0, n_row, r->normed, r->kv);
    write_cache(r, a);
}

/* Cache rows of positions 0..n_pos-1 of sequence s, decoded in order. */
static void read_cache(struct hd_ref *r, const struct hd_op_mla_attn *a, int s, int n_pos) {
    const hd_batch *b = a->batch;
    const int32_t *page = b->page + b->seq_page0[s];
    size_t width = (size_t)a->n_c + (size_t)a->n_rope;
    for (int t = 0; t < n_pos; t++) {
        size_t row = (size_t)page[t / b->page_tok] * (size_t)b->page_tok;
        row += (size_t)(t % b->page_tok);
        hd_kv_decode(&a->kv, (const char *)a->cache + hd_kv_bytes(&a->kv, row), 0, (int)width,
                     r->latent + (size_t)t * width);
    }
}

/* Keys (nope part) and values of head h for positions 0..n_pos-1. */
static void expand_head(struct hd_ref *r, const struct hd_op_mla_attn *a, int h, int n_pos) {
    for (int j = 0; j < a->n_c; j++) { /* k_b row j holds what latent value j gives to each key */
        hd_ref_weight_row(a->k_b, h, j, r->weight_row);
        for (int i = 0; i < a->n_nope; i++)
            r->k_b_t[(size_t)i * (size_t)a->n_c + (size_t)j] = r->weight_row[i];
    }
    size_t width = (size_t)a->n_c + (size_t)a->n_rope;
    for (size_t t = 0; t < (size_t)n_pos; t++)
        for (int i = 0; i < a->n_nope; i++)
            r->k[t * (size_t)a->n_nope + (size_t)i] = (float)hd_ref_dot(
                r->k_b_t + (size_t)i * (size_t)a->n_c, r->latent + t * width, a->n_c);
    for (int i = 0; i < a->n_v; i++) {
        hd_ref_weight_row(a->v_b, h, i, r->weight_row);
        for (size_t t = 0; t < (size_t)n_pos; t++)
            r->v[t * (size_t)a->n_v + (size_t)i] =
                (float)hd_ref_dot(r->weight_row, r->latent + t * width, a->n_c);
    }
}

static void attend_expanded(struct hd_ref *r, const struct hd_op_mla_attn *a, const float *q,
                            int n_pos, float *out) {
    size_t width = (size_t)a->n_c + (size_t)a->n_rope;
    for (size_t t = 0; t < (size_t)n_pos; t++) {
        double s = hd_ref_dot(q, r->k + t * (size_t)a->n_nope, a->n_nope);
        s += hd_ref_dot(q + a->n_nope, r->latent + t * width + a->n_c, a->n_rope);
        r->score[t] = (float)((double)a->scale * s);
    }
    hd_ref_softmax(r->score, n_pos);
    struct hd_ref_rows values = {.x = r->v, .n_row = n_pos, .step = a->n_v, .width = a->n_v};
    hd_ref_weighted_sum(r->score, values, r->acc, out);
}

static void attend_absorbed(struct hd_ref *r, const struct hd_op_mla_attn *a, int h, const float *q,
                            int n_pos, float *out) {
    int width = a->n_c + a->n_rope;
    hd_ref_matmul(r, a->k_b, h, 1, q, r->q_absorbed);
    memcpy(r->q_absorbed + a->n_c, q + a->n_nope, (size_t)a->n_rope * sizeof *q);
    for (size_t t = 0; t < (size_t)n_pos; t++) {
        double s = hd_ref_dot(r->q_absorbed, r->latent + t * (size_t)width, width);
        r->score[t] = (float)((double)a->scale * s);
    }
    hd_ref_softmax(r->score, n_pos);
    struct hd_ref_rows latents = {.x = r->latent, .n_row = n_pos, .step = width, .width = a->n_c};
    hd_ref_weighted_sum(r->score, latents, r->acc, r->u);
    hd_ref_matmul(r, a->v_b, h, 1, r->u, out);
}

static void attend_sequence(struct hd_ref *r, const struct hd_op_mla_attn *a, int s) {
    const hd_batch *b = a->batch;
    int row0 = b->seq_row0[s], row1 = b->seq_row0[s + 1];
    int n_pos_all = b->pos[row1 - 1] + 1; /* rows ascend, so the last one sees the most */
    bool any_expanded = false;
    for (int row = row0; row < row1; row++) any_expanded |= b->form[row] == HD_MLA_EXPANDED;
    read_cache(r, a, s, n_pos_all);
    for (int h = 0; h < a->n_head; h++) {
        if (any_expanded) expand_head(r, a, h, n_pos_all);
        for (int row = row0; row < row1; row++) {
            size_t ix = (size_t)row * (size_t)a->n_head + (size_t)h;
            const float *q = a->q + ix * (size_t)(a->n_nope + a->n_rope);
            float *out = a->out + ix * (size_t)a->n_v;
            if (b->form[row] == HD_MLA_EXPANDED)
                attend_expanded(r, a, q, b->pos[row] + 1, out);
            else
                attend_absorbed(r, a, h, q, b->pos[row] + 1, out);
        }
    }
}

void hd_ref_op_mla_attn(void *ctx, const struct hd_op_mla_attn *a) {
    for (int s = 0; s < a->batch->n_seq; s++) attend_sequence(ctx, a, s);
}
