/* The feed-forward that architectures share: which layers have experts, its workspace, its ops. */
#include "model/ffn.h"

#include "model/offload.h"
#include "model/shard.h"

bool hd_ffn_has_experts(const hd_hparams *hp, int layer) { return layer >= hp->n_dense_layer; }
bool hd_ffn_is_dense(const hd_hparams *hp, int layer) { return !hd_ffn_has_experts(hp, layer); }
bool hd_ffn_has_shared(const hd_hparams *hp, int layer) {
    return hd_ffn_has_experts(hp, layer) && hp->n_expert_shared > 0;
}

hd_status hd_ffn_plan(hd_model *m, hd_ffn_work *w) {
    size_t n_row = (size_t)m->opt.n_row_max, d = (size_t)m->hp.d_model;
    size_t n_used = (size_t)m->hp.n_expert_used;
    HD_TRY(hd_model_work(m, n_row * d, sizeof *w->normed, (void **)&w->normed));
    HD_TRY(hd_model_work(m, n_row * n_used, sizeof *w->expert, (void **)&w->expert));
    return hd_model_work(m, n_row * n_used, sizeof *w->weight, (void **)&w->weight);
}

static void run_ffn(hd_model *m, int layer, const struct hd_op_ffn *args) {
    if (hd_offload_is_host(m, HD_OP_ffn, layer))
        hd_offload_ffn(m, args);
    else
        HD_RUN_ARGS(ffn, args);
}

static void run_moe(hd_model *m, int layer, const struct hd_op_moe *args) {
    if (hd_offload_is_host(m, HD_OP_moe, layer))
        hd_offload_moe(m, args);
    else
        HD_RUN_ARGS(moe, args);
}

static void dense(hd_model *m, const hd_batch *b, int layer, const hd_ffn *f, float *x) {
    run_ffn(m, layer,
            &(struct hd_op_ffn){.n_row = b->n_row,
                                .d_model = m->hp.d_model,
                                .norm = f->norm,
                                .eps = m->hp.rms_eps,
                                .gate = f->gate,
                                .up = f->up,
                                .down = f->down,
                                .is_partial = hd_shard_is_partial(m),
                                .x = x});
}

static void experts(hd_model *m, const hd_batch *b, int layer, const hd_ffn *f, hd_ffn_work *w,
                    float *x) {
    const hd_hparams *hp = &m->hp;
    HD_RUN(route, .n_row = b->n_row, .d_model = hp->d_model, .x = x, .norm = f->norm,
           .eps = hp->rms_eps, .router = f->router, .bias = f->router_bias, .gating = hp->gating,
           .group_rule = hp->group_rule, .n_expert = hp->n_expert, .n_used = hp->n_expert_used,
           .n_group = hp->n_group, .n_group_used = hp->n_group_used,
           .normalise = hp->expert_normalise, .scale = hp->expert_scale, .token = b->token,
           .normed = w->normed, .expert = w->expert, .weight = w->weight);
    run_moe(m, layer,
            &(struct hd_op_moe){.n_row = b->n_row,
                                .d_model = hp->d_model,
                                .n_used = hp->n_expert_used,
                                .normed = w->normed,
                                .expert = w->expert,
                                .weight = w->weight,
                                .expert0 = hd_shard_expert0(m),
                                .gate = f->gate_exps,
                                .up = f->up_exps,
                                .down = f->down_exps,
                                .shared_gate = f->gate_shexp,
                                .shared_up = f->up_shexp,
                                .shared_down = f->down_shexp,
                                .is_partial = hd_shard_is_partial(m),
                                .x = x});
}

void hd_ffn_forward(hd_model *m, const hd_batch *b, int layer, const hd_ffn *f, hd_ffn_work *w,
                    float *x) {
    if (hd_ffn_is_dense(&m->hp, layer))
        dense(m, b, layer, f, x);
    else
        experts(m, b, layer, f, w, x);
    hd_shard_sum(m, b->n_row, x);
}
