/* The two ends of the network: token embedding; output logits and the token drawn from them. */
#include "ref/ref.h"

#include "dev/draw.h"

#include <math.h>

void hd_ref_op_embed(void *ctx, const struct hd_op_embed *a) {
    (void)ctx;
    for (int row = 0; row < a->n_row; row++) {
        if (a->token[row] < 0) {
            int32_t last = a->last[hd_slot_of_token(a->token[row])];
            a->token[row] = last < 0 ? 0 : last;
        }
        HD_ASSERT(a->token[row] >= 0 && a->token[row] < a->table->n_out);
        hd_ref_weight_row(a->table, 0, a->token[row], a->x + (size_t)row * (size_t)a->table->n_in);
    }
}

void hd_ref_op_head(void *ctx, const struct hd_op_head *a) {
    struct hd_ref *r = ctx;
    size_t d = (size_t)a->d_model;
    for (size_t i = 0; i < (size_t)a->n_out; i++)
        hd_ref_rms_norm(a->x + (size_t)a->row[i] * d, a->norm, a->eps, a->d_model,
                        r->normed + i * d);
    hd_ref_matmul(r, a->w, 0, a->n_out, r->normed, a->logits);
}

/* Candidate a is ranked before b. */
static bool is_before(const float *logit, int a, int b) {
    return logit[a] > logit[b] || (logit[a] == logit[b] && a < b);
}

/* The candidate ranked next after `id` (-1: the first one); -1: there is none. */
static int next_best(const struct hd_op_sample *a, const float *logit, int id) {
    int best = -1;
    for (int i = 0; i < a->n_vocab; i++) {
        if (!a->is_token[i] || (id >= 0 && !is_before(logit, id, i))) continue;
        if (best < 0 || is_before(logit, i, best)) best = i;
    }
    return best;
}

/* What is left of a row: the candidates down to rank `last`, and the sum of their weights. */
struct cut {
    int last;
    uint64_t sum;
};

/* Goes down the ranks until one is no candidate or the bound is reached. */
static struct cut cut_row(const struct hd_op_sample *a, const float *logit, const hd_draw *how,
                          hd_draw_bound bound) {
    int best = next_best(a, logit, -1);
    struct cut c = {.last = best};
    for (int id = best, n = 0; id >= 0; id = next_best(a, logit, id), n++) {
        float x = hd_draw_x(logit[id], logit[best], how->temperature);
        if (!hd_draw_is_candidate(x, how->min_x)) break;
        if (n > 0 && hd_draw_is_reached(bound, n, c.sum)) break;
        c.last = id;
        c.sum += hd_draw_weight(x);
    }
    return c;
}

static int32_t sample_row(const struct hd_op_sample *a, const float *logit, const hd_draw *how) {
    for (int i = 0; i < a->n_vocab; i++)
        if (!isfinite(logit[i])) return -1;
    int best = next_best(a, logit, -1);
    if (best < 0 || how->temperature == 0) return best;
    hd_draw_bound bound = {.n_max = how->top_k > 0 ? how->top_k : INT32_MAX, .top_p = 1};
    struct cut c = cut_row(a, logit, how, bound);
    bound.top_p = how->top_p;
    bound.sum = c.sum;
    if (how->top_p < 1) c = cut_row(a, logit, how, bound);
    uint64_t target = hd_draw_target(how->u, c.sum), sum = 0;
    for (int i = 0; i < a->n_vocab; i++) {
        if (!a->is_token[i] || is_before(logit, c.last, i)) continue;
        sum += hd_draw_weight(hd_draw_x(logit[i], logit[best], how->temperature));
        if (sum > target) return i;
    }
    return -1;
}

void hd_ref_op_sample(void *ctx, const struct hd_op_sample *a) {
    (void)ctx;
    const hd_batch *b = a->batch;
    for (int i = 0; i < a->n_out; i++) {
        a->token[i] = -1;
        if (b->draw[i].is_host) continue;
        a->token[i] = sample_row(a, a->logits + (size_t)i * (size_t)a->n_vocab, &b->draw[i]);
        a->last[b->seq_slot[b->row_seq[b->out_row[i]]]] = a->token[i];
    }
}
