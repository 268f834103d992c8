/* Routing and the mixture of experts: rows are grouped by expert, so that an expert's weights are
 * read once for all its rows; every row sums its experts in ascending order. */
#include "cpu/cpu.h"

#include <math.h>
#include <string.h>

#define SET_WORDS (HD_CPU_EXPERT_MAX / 32)

/* ---- Route ---- */

/* NaN counts as minus infinity, so that a choice always exists. */
static float key_of(float score) { return isnan(score) ? -INFINITY : score; }

static bool has(const uint32_t *set, int i) { return (set[i / 32] >> (i % 32) & 1) != 0; }
static void put(uint32_t *set, int i) { set[i / 32] |= 1u << (i % 32); }

/* The best of n not yet in `taken` (ties and all-equal: the lowest index); -1 when all are. */
static int best_left(const float *score, const uint32_t *taken, int n) {
    int best = -1;
    for (int i = 0; i < n; i++)
        if (!has(taken, i) && (best < 0 || key_of(score[i]) > key_of(score[best]))) best = i;
    return best;
}

static float group_score(const struct hd_op_route *a, const float *score, int n) {
    float first = -INFINITY, second = -INFINITY;
    for (int i = 0; i < n; i++) {
        /* The analyzer does not see that groups end where the experts do. */
        float s = key_of(score[i]); /* NOLINT(clang-analyzer-core.CallAndMessage) */
        if (s > first) {
            second = first;
            first = s;
        } else if (s > second)
            second = s;
    }
    return a->group_rule == HD_GROUP_MAX || n < 2 ? first : first + second;
}

/* Puts the experts of the groups that were not chosen into `taken`. */
static void drop_groups(const struct hd_op_route *a, const float *score, uint32_t *taken) {
    int size = a->n_expert / a->n_group;
    HD_ASSERT(size > 0);
    uint32_t chosen[SET_WORDS] = {0};
    float sum[HD_CPU_EXPERT_MAX];
    for (int g = 0; g < a->n_group; g++) sum[g] = group_score(a, score + g * size, size);
    for (int i = 0; i < a->n_group_used; i++) {
        int g = best_left(sum, chosen, a->n_group);
        if (g >= 0) put(chosen, g);
    }
    for (int e = 0; e < a->n_expert; e++)
        if (!has(chosen, e / size)) put(taken, e);
}

static void softmax_row(float *s, int n) {
    float top = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++)
        if (s[i] > top) top = s[i];
    for (int i = 0; i < n; i++) {
        s[i] = expf(s[i] - top);
        sum += s[i];
    }
    for (int i = 0; i < n; i++) s[i] /= sum;
}

/* s: the row's router products, replaced by its scores. */
static void route_row(const struct hd_op_route *a, float *s, int row) {
    float sel[HD_CPU_EXPERT_MAX];
    uint32_t taken[SET_WORDS] = {0}, chosen[SET_WORDS] = {0};
    HD_ASSERT(a->n_expert > 0 && a->n_group > 0);
    if (a->gating == HD_GATING_SOFTMAX)
        softmax_row(s, a->n_expert);
    else
        for (int e = 0; e < a->n_expert; e++) s[e] = 1.0f / (1.0f + expf(-s[e]));
    for (int e = 0; e < a->n_expert; e++) sel[e] = s[e] + (a->bias != NULL ? a->bias[e] : 0.0f);
    if (a->n_group > 1) drop_groups(a, sel, taken);
    for (int i = 0; i < a->n_used; i++) {
        int e = best_left(sel, taken, a->n_expert);
        if (e < 0) e = best_left(sel, chosen, a->n_expert); /* fewer in the groups than wanted */
        HD_ASSERT(e >= 0);
        put(taken, e);
        put(chosen, e);
    }
    int32_t *expert = a->expert + (size_t)row * (size_t)a->n_used;
    float *weight = a->weight + (size_t)row * (size_t)a->n_used, sum = 0;
    for (int e = 0, i = 0; e < a->n_expert; e++) {
        if (!has(chosen, e)) continue;
        expert[i] = e;
        weight[i++] = s[e];
        sum += s[e];
    }
    for (int i = 0; i < a->n_used; i++) {
        if (a->normalise) weight[i] /= sum + 1e-20f;
        weight[i] *= a->scale;
    }
}

typedef struct route_job {
    const struct hd_op_route *a;
    float *score;
} route_job;

static void route_task(void *ctx, int row, int thread) {
    (void)thread;
    const route_job *j = ctx;
    route_row(j->a, j->score + (size_t)row * (size_t)j->a->n_expert, row);
}

void hd_cpu_route(void *ctx, const struct hd_op_route *args) {
    hd_cpu *c = ctx;
    HD_ASSERT(args->n_expert <= HD_CPU_EXPERT_MAX && args->n_used <= args->n_expert);
    size_t d = (size_t)args->d_model;
    hd_cpu_norm(c, &(hd_cpu_norm_rows){.x = args->x,
                                       .ldx = d,
                                       .w = args->norm,
                                       .eps = args->eps,
                                       .n_row = args->n_row,
                                       .n = args->d_model,
                                       .out = args->normed});
    hd_cpu_mul m = {.w = args->router,
                    .n_row = args->n_row,
                    .x = args->normed,
                    .ldx = d,
                    .y = c->score,
                    .ldy = (size_t)args->n_expert};
    hd_cpu_mul_run(c, &m, 1);
    route_job j = {.a = args, .score = c->score};
    hd_cpu_rows(c, args->n_row, 32 * args->n_expert, route_task, &j);
}

/* ---- Experts ---- */

/* Rows by expert: c->moe_first, moe_row, moe_weight. Returns how many there are. */
static int sort_rows(hd_cpu *c, const struct hd_op_moe *a) {
    int n_expert = a->gate->n_mat;
    int *first = c->moe_first;
    memset(first, 0, sizeof *first * (size_t)(n_expert + 1));
    for (int i = 0; i < a->n_row * a->n_used; i++) {
        int e = a->expert[i] - a->expert0;
        HD_ASSERT(a->expert[i] >= 0 && a->expert[i] < c->limits.n_expert);
        if (e >= 0 && e < n_expert) first[e + 1]++;
    }
    for (int e = 0; e < n_expert; e++) first[e + 1] += first[e];
    for (int i = 0; i < a->n_row * a->n_used; i++) {
        int e = a->expert[i] - a->expert0;
        if (e < 0 || e >= n_expert) continue;
        int at = first[e]++;
        c->moe_row[at] = i / a->n_used;
        c->moe_weight[at] = a->weight[i];
    }
    for (int e = n_expert; e > 0; e--) first[e] = first[e - 1];
    first[0] = 0;
    return first[n_expert];
}

void hd_cpu_moe(void *ctx, const struct hd_op_moe *args) {
    hd_cpu *c = ctx;
    const struct hd_op_moe *a = args;
    size_t d = (size_t)a->d_model, f = (size_t)a->gate->n_out;
    size_t fs = a->shared_gate != NULL ? (size_t)a->shared_gate->n_out : 0;
    int n_expert = a->gate->n_mat, n_mul = 0;
    HD_ASSERT(a->n_row <= c->limits.n_row && a->n_used <= c->limits.n_used);
    HD_ASSERT(n_expert <= c->limits.n_expert);
    int n_pick = sort_rows(c, a);

    enum hd_cpu_input routed = hd_cpu_input_of_both(c, a->gate, a->up),
                      shared = hd_cpu_input_of_both(c, a->shared_gate, a->shared_up);
    hd_cpu_qrows xq =
        hd_cpu_quantise(c, &(hd_cpu_quantising){.input = routed > shared ? routed : shared,
                                                .x = a->normed,
                                                .ldx = d,
                                                .n_row = a->n_row,
                                                .n_k = a->d_model});
    float *h = c->a, *hs = c->a + (size_t)n_pick * f;
    hd_cpu_mul in = {.x = a->normed, .ldx = d, .xq = xq};
    for (int e = 0; e < n_expert; e++) {
        int first = c->moe_first[e], n = c->moe_first[e + 1] - first;
        if (n == 0) continue;
        hd_cpu_mul *m = &c->mul[n_mul++];
        *m = in;
        m->w = a->gate, m->up = a->up, m->mat = e;
        m->n_row = n, m->x_row = c->moe_row + first;
        m->y = h + (size_t)first * f, m->ldy = f;
    }
    if (fs > 0) {
        hd_cpu_mul *m = &c->mul[n_mul++];
        *m = in;
        m->w = a->shared_gate, m->up = a->shared_up, m->n_row = a->n_row;
        m->y = hs, m->ldy = fs;
    }
    hd_cpu_mul_run(c, c->mul, n_mul);

    hd_cpu_qrows hq =
        hd_cpu_quantise(c, &(hd_cpu_quantising){.input = hd_cpu_input_of_down(c, a->down, routed),
                                                .slot = 1,
                                                .x = h,
                                                .ldx = f,
                                                .n_row = n_pick,
                                                .n_k = (int)f});
    hd_cpu_qrows hsq = hd_cpu_quantise(
        c, &(hd_cpu_quantising){.input = hd_cpu_input_of_down(c, a->shared_down, shared),
                                .x = hs,
                                .ldx = fs,
                                .n_row = a->n_row,
                                .n_k = (int)fs});
    n_mul = 0;
    if (a->is_partial) memset(a->x, 0, (size_t)a->n_row * d * sizeof *a->x);
    for (int e = 0; e < n_expert; e++) {
        int first = c->moe_first[e], n = c->moe_first[e + 1] - first;
        if (n == 0) continue;
        c->mul[n_mul++] = (hd_cpu_mul){.w = a->down,
                                       .mat = e,
                                       .n_row = n,
                                       .x = h,
                                       .ldx = f,
                                       .x_row = c->moe_slot + first,
                                       .xq = hq,
                                       .y = a->x,
                                       .ldy = d,
                                       .y_row = c->moe_row + first,
                                       .into = HD_CPU_ADD,
                                       .y_scale = c->moe_weight + first};
    }
    if (fs > 0)
        c->mul[n_mul++] = (hd_cpu_mul){.w = a->shared_down,
                                       .n_row = a->n_row,
                                       .x = hs,
                                       .ldx = fs,
                                       .xq = hsq,
                                       .y = a->x,
                                       .ldy = d,
                                       .into = HD_CPU_ADD};
    hd_cpu_mul_run_in_order(c, c->mul, n_mul);
}
