/* Routing and mixture of experts of the oracle.
 *
 * Rules: softmax or sigmoid scores; an optional bias that only selects (auxiliary-loss-free
 * balancing, DeepSeek-V3, arXiv 2412.19437, section 2.1.2); experts in groups of which the best
 * few stay (a masked group's experts count as -infinity); ties go to the lower index. The weights
 * are the unbiased scores. Experts of a row are summed in ascending order, then the shared one. */
#include "ref/ref.h"

#include <math.h>
#include <string.h>

static float group_score(const float *score, int n, enum hd_group_rule rule) {
    int32_t best[2];
    int n_best = rule == HD_GROUP_TOP2_SUM && n > 1 ? 2 : 1;
    hd_ref_top_k(score, NULL, n, n_best, best);
    return n_best == 2 ? score[best[0]] + score[best[1]] : score[best[0]];
}

/* Marks the experts of the n_group_used best groups. */
static void allow_best_groups(const struct hd_op_route *a, const float *select, bool *allowed) {
    int per_group = a->n_expert / a->n_group;
    float score[HD_REF_EXPERT_MAX];
    int32_t best[HD_REF_EXPERT_MAX];
    for (int g = 0; g < a->n_group; g++)
        score[g] = group_score(select + g * per_group, per_group, a->group_rule);
    hd_ref_top_k(score, NULL, a->n_group, a->n_group_used, best);
    memset(allowed, 0, (size_t)a->n_expert * sizeof *allowed);
    for (int k = 0; k < a->n_group_used; k++)
        for (int i = 0; i < per_group; i++) allowed[best[k] * per_group + i] = true;
}

static void sort_ascending(int32_t *v, int n) {
    for (int i = 1; i < n; i++)
        for (int k = i; k > 0 && v[k] < v[k - 1]; k--) {
            int32_t t = v[k];
            v[k] = v[k - 1];
            v[k - 1] = t;
        }
}

void hd_ref_select_experts(const struct hd_op_route *a, const float *score, int32_t *expert,
                           float *weight) {
    float select[HD_REF_EXPERT_MAX];
    bool allowed[HD_REF_EXPERT_MAX];
    for (int e = 0; e < a->n_expert; e++) select[e] = score[e] + (a->bias ? a->bias[e] : 0.0f);
    bool is_grouped = a->n_group > 1 && a->n_group_used < a->n_group;
    if (is_grouped) allow_best_groups(a, select, allowed);
    hd_ref_top_k(select, is_grouped ? allowed : NULL, a->n_expert, a->n_used, expert);
    sort_ascending(expert, a->n_used);
    double sum = 1e-20;
    for (int k = 0; k < a->n_used; k++) sum += (double)score[expert[k]];
    for (int k = 0; k < a->n_used; k++) {
        float w = score[expert[k]];
        if (a->normalise) w = (float)((double)w / sum);
        weight[k] = w * a->scale;
    }
}

void hd_ref_op_route(void *ctx, const struct hd_op_route *a) {
    struct hd_ref *r = ctx;
    size_t d = (size_t)a->d_model;
    for (size_t row = 0; row < (size_t)a->n_row; row++) {
        float *normed = a->normed + row * d;
        hd_ref_rms_norm(a->x + row * d, a->norm, a->eps, a->d_model, normed);
        hd_ref_matmul(r, a->router, 0, 1, normed, r->score);
        if (a->gating == HD_GATING_SOFTMAX)
            hd_ref_softmax(r->score, a->n_expert);
        else
            for (int e = 0; e < a->n_expert; e++) r->score[e] = hd_ref_sigmoid(r->score[e]);
        hd_ref_select_experts(a, r->score, a->expert + row * (size_t)a->n_used,
                              a->weight + row * (size_t)a->n_used);
    }
}

/* One expert over n_row rows of x: out = down(silu(gate x) * up x). */
static void run_expert(struct hd_ref *r, const hd_weight *const w[3], int mat, int n_row,
                       const float *x, float *out) {
    hd_ref_matmul(r, w[0], mat, n_row, x, r->gate);
    hd_ref_matmul(r, w[1], mat, n_row, x, r->up);
    for (size_t i = 0; i < (size_t)n_row * (size_t)w[0]->n_out; i++)
        r->gate[i] = hd_ref_silu(r->gate[i]) * r->up[i];
    hd_ref_matmul(r, w[2], mat, n_row, r->gate, out);
}

/* Rows that chose the expert of matrix e go to r->pick with their weights, their inputs to
 * r->normed. */
static int gather_rows(struct hd_ref *r, const struct hd_op_moe *a, int e) {
    int n = 0;
    size_t d = (size_t)a->d_model;
    for (int row = 0; row < a->n_row; row++)
        for (int k = 0; k < a->n_used; k++) {
            int ix = row * a->n_used + k;
            if (a->expert[ix] != a->expert0 + e) continue;
            r->pick[n] = row;
            r->pick_weight[n] = a->weight[ix];
            memcpy(r->normed + (size_t)n * d, a->normed + (size_t)row * d, d * sizeof(float));
            n++;
        }
    return n;
}

void hd_ref_op_moe(void *ctx, const struct hd_op_moe *a) {
    struct hd_ref *r = ctx;
    size_t d = (size_t)a->d_model, n_all = (size_t)a->n_row * d;
    const hd_weight *const routed[3] = {a->gate, a->up, a->down};
    const hd_weight *const shared[3] = {a->shared_gate, a->shared_up, a->shared_down};
    for (size_t i = 0; i < n_all; i++) r->sum[i] = 0;
    for (int e = 0; e < a->gate->n_mat; e++) {
        int n = gather_rows(r, a, e);
        if (n == 0) continue;
        run_expert(r, routed, e, n, r->normed, r->block_out);
        for (size_t k = 0; k < (size_t)n; k++)
            for (size_t i = 0; i < d; i++)
                r->sum[(size_t)r->pick[k] * d + i] +=
                    (double)r->pick_weight[k] * (double)r->block_out[k * d + i];
    }
    if (a->shared_gate) {
        run_expert(r, shared, 0, a->n_row, a->normed, r->block_out);
        for (size_t i = 0; i < n_all; i++) r->sum[i] += (double)r->block_out[i];
    }
    for (size_t i = 0; i < n_all; i++)
        a->x[i] = a->is_partial ? (float)r->sum[i] : a->x[i] + (float)r->sum[i];
}
