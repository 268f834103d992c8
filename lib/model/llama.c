/* llama, qwen2, deepseek: deepseek-llm, deepseek-coder and R1-Distill-Llama (arXiv 2302.13971),
 * R1-Distill-Qwen (arXiv 2407.10671), DeepSeekMoE (arXiv 2401.06066).
 *
 * Read llama_forward first: one block op a line. Each layer is grouped-query attention and a
 * feed-forward. What differs is hyper-parameters: qwen2 has biases on q, k and v and rotates halves
 * of a head, deepseek has experts. There are two KV kinds: the rotated keys and the values. */
#include "model/ffn.h"
#include "model/shard.h"

struct globals {
    const hd_weight *token_embd; /* [V, D] */
    const float *output_norm;    /* [D] */
    const hd_weight *output;     /* [V, D]; token_embd's matrix when tied */
};

struct layer {
    const float *attn_norm;                /* [D] */
    const hd_weight *q;                    /* [H*d_head, D] */
    const hd_weight *k, *v;                /* [H_kv*d_head, D] */
    const float *q_bias, *k_bias, *v_bias; /* [n_out] or NULL */
    const hd_weight *output;               /* [D, H*d_head] */
    hd_ffn ffn;
};

struct work {      /* R = n_row_max */
    float *x;      /* [R, D] residual stream */
    float *q;      /* [R, H, d_head] */
    float *attn;   /* [R, H, d_head] */
    float *logits; /* [n_out_max, V] */
    hd_ffn_work ffn;
};

static bool has_bias(const hd_hparams *hp, int layer) {
    (void)layer;
    return hp->has_qkv_bias;
}

/* clang-format off */
static const hd_slot global_slot[] = {
    HD_MATRIX(globals, token_embd,  "token_embd.weight",  embed, .when = NULL),
    HD_VECTOR(globals, output_norm, "output_norm.weight", head,  .when = NULL),
    HD_MATRIX(globals, output,      "output.weight",      head,  .cut = HD_CUT_ROWS, .fallback = "token_embd.weight"),
};

static const hd_slot layer_slot[] = {
    HD_VECTOR(layer, attn_norm, "attn_norm.weight",   gqa_qkv,  .when = NULL),
    HD_MATRIX(layer, q,         "attn_q.weight",      gqa_qkv,  .cut = HD_CUT_ROWS),
    HD_MATRIX(layer, k,         "attn_k.weight",      gqa_qkv,  .cut = HD_CUT_ROWS),
    HD_MATRIX(layer, v,         "attn_v.weight",      gqa_qkv,  .cut = HD_CUT_ROWS),
    HD_VECTOR(layer, q_bias,    "attn_q.bias",        gqa_qkv,  .when = has_bias, .cut = HD_CUT_ROWS),
    HD_VECTOR(layer, k_bias,    "attn_k.bias",        gqa_qkv,  .when = has_bias, .cut = HD_CUT_ROWS),
    HD_VECTOR(layer, v_bias,    "attn_v.bias",        gqa_qkv,  .when = has_bias, .cut = HD_CUT_ROWS),
    HD_MATRIX(layer, output,    "attn_output.weight", proj_add, .cut = HD_CUT_COLUMNS),
    HD_FFN_SLOTS(layer, ffn),
};
/* clang-format on */

enum { KEYS, VALUES };

static int kv_kinds(const hd_hparams *hp, enum hd_kv_type t, hd_kv_kind out[HD_KV_KIND_MAX]) {
    hd_kv_layout layout = hd_hparams_kv_layout(hp, t);
    out[KEYS] = (hd_kv_kind){.name = "key", .layout = layout};
    out[VALUES] = (hd_kv_kind){.name = "value", .layout = layout};
    return 2;
}

static hd_status plan(hd_model *m) {
    const hd_hparams *hp = &m->hp;
    hd_dev_limits limits = hd_model_limits(m);
    HD_TRY(m->dev.ops->reserve(m->dev.ctx, &limits));
    struct work *w = m->work = hd_arena_alloc(m->arena, sizeof *w);
    size_t n_row = (size_t)m->opt.n_row_max, n_out = (size_t)m->opt.n_out_max;
    size_t n_q = (size_t)hp->n_head * (size_t)hp->n_rope, d = (size_t)hp->d_model;
    HD_TRY(hd_model_work(m, n_row * d, sizeof *w->x, (void **)&w->x));
    HD_TRY(hd_model_work(m, n_row * n_q, sizeof *w->q, (void **)&w->q));
    HD_TRY(hd_model_work(m, n_row * n_q, sizeof *w->attn, (void **)&w->attn));
    HD_TRY(hd_ffn_plan(m, &w->ffn));
    return hd_model_work(m, n_out * (size_t)hp->n_vocab, sizeof *w->logits, (void **)&w->logits);
}

static void attention(hd_model *m, const hd_batch *b, int layer, float *x) {
    const hd_hparams *hp = &m->hp;
    const struct layer *l = (const struct layer *)(const void *)m->layer + layer;
    struct work *w = m->work;
    HD_RUN(gqa_qkv, .batch = b, .x = x, .norm = l->attn_norm, .eps = hp->rms_eps, .q = l->q,
           .k = l->k, .v = l->v, .q_bias = l->q_bias, .k_bias = l->k_bias, .v_bias = l->v_bias,
           .rope_cs = m->rope, .is_half_split = hp->is_half_split, .d_model = hp->d_model,
           .n_head = hp->n_head, .n_head_kv = hp->n_head_kv, .d_head = hp->n_rope,
           .kv = m->kv[KEYS].kind.layout, .keys = hd_model_kv(m, KEYS, layer),
           .values = hd_model_kv(m, VALUES, layer), .q_out = w->q);
    HD_RUN(gqa_attn, .batch = b, .q = w->q, .kv = m->kv[KEYS].kind.layout,
           .keys = hd_model_kv(m, KEYS, layer), .values = hd_model_kv(m, VALUES, layer),
           .n_head = hp->n_head, .n_head_kv = hp->n_head_kv, .d_head = hp->n_rope,
           .scale = hd_rope_softmax_scale(hp), .out = w->attn);
    HD_RUN(proj_add, .n_row = b->n_row, .a = w->attn, .w = l->output, .x = x,
           .is_partial = hd_shard_is_partial(m));
    hd_shard_sum(m, b->n_row, x);
}

static const float *llama_forward(hd_model *m, const hd_batch *b) {
    const hd_hparams *hp = &m->hp;
    const struct globals *g = m->global;
    const struct layer *l = (const struct layer *)(const void *)m->layer;
    struct work *w = m->work;
    float *x = hd_model_embed(m, b, g->token_embd, w->x);
    for (int layer = b->layer0, end = hd_model_layer_end(m, b); layer < end; layer++) {
        attention(m, b, layer, x);
        hd_ffn_forward(m, b, layer, &l[layer].ffn, &w->ffn, x);
    }
    if (b->n_out > 0) {
        HD_RUN(head, .n_out = b->n_out, .d_model = hp->d_model, .row = b->out_row, .x = x,
               .norm = g->output_norm, .eps = hp->rms_eps, .w = g->output,
               .logits = hd_shard_logits(m, w->logits));
        hd_shard_gather(m, b->n_out, w->logits);
    }
    return w->logits;
}

const hd_arch hd_arch_llama = {
    .attn = HD_OP_gqa_attn,
    .global_slot = global_slot,
    .layer_slot = layer_slot,
    .n_global_slot = HD_COUNT_OF(global_slot),
    .n_layer_slot = HD_COUNT_OF(layer_slot),
    .global_bytes = sizeof(struct globals),
    .layer_bytes = sizeof(struct layer),
    .kv_kinds = kv_kinds,
    .plan = plan,
    .forward = llama_forward,
};
