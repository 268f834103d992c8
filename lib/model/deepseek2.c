/* deepseek2: DeepSeek-V2, V2-Lite, V3, R1, V3.1 (arXiv 2405.04434, 2412.19437).
 *
 * Read deepseek2_forward first: one block op a line. Each layer is multi-head latent attention and
 * a feed-forward, dense in the leading layers and a mixture of experts in the others. V2-Lite has
 * one query matrix where the others have a low-rank pair; routing differs by hyper-parameters only.
 * The only KV kind is one row a token: the normed latent and the rotated rope key. */
#include "model/ffn.h"
#include "model/shard.h"

struct globals {
    const hd_weight *token_embd; /* [V, D] */
    const float *output_norm;    /* [D] */
    const hd_weight *output;     /* [V, D]; token_embd's matrix when tied */
};

struct layer {
    const float *attn_norm;  /* [D] */
    const hd_weight *q;      /* [H*(n_nope+n_rope), D] without a query low-rank pair, or NULL */
    const hd_weight *q_a;    /* [q_lora, D] */
    const float *q_a_norm;   /* [q_lora] */
    const hd_weight *q_b;    /* [H*(n_nope+n_rope), q_lora] */
    const hd_weight *kv_a;   /* [n_c+n_rope, D] */
    const float *kv_a_norm;  /* [n_c] */
    const hd_weight *k_b;    /* H of [n_c, n_nope] */
    const hd_weight *v_b;    /* H of [n_v, n_c] */
    const hd_weight *output; /* [D, H*n_v] */
    hd_ffn ffn;
};

struct work {      /* R = n_row_max */
    float *x;      /* [R, D] residual stream */
    float *q;      /* [R, H, n_nope+n_rope] */
    float *attn;   /* [R, H, n_v] */
    float *logits; /* [n_out_max, V] */
    hd_ffn_work ffn;
};

static bool has_q_lora(const hd_hparams *hp, int layer) {
    (void)layer;
    return hp->q_lora > 0;
}
static bool has_no_q_lora(const hd_hparams *hp, int layer) { return !has_q_lora(hp, layer); }
/* clang-format off */
static const hd_slot global_slot[] = {
    HD_MATRIX(globals, token_embd,  "token_embd.weight",  embed, .when = NULL),
    HD_VECTOR(globals, output_norm, "output_norm.weight", head,  .when = NULL),
    HD_MATRIX(globals, output,      "output.weight",      head,  .cut = HD_CUT_ROWS, .fallback = "token_embd.weight"),
};

static const hd_slot layer_slot[] = {
    HD_VECTOR(layer, attn_norm,   "attn_norm.weight",      mla_qkv,  .when = NULL),
    HD_MATRIX(layer, q,           "attn_q.weight",         mla_qkv,  .when = has_no_q_lora, .cut = HD_CUT_ROWS),
    HD_MATRIX(layer, q_a,         "attn_q_a.weight",       mla_qkv,  .when = has_q_lora),
    HD_VECTOR(layer, q_a_norm,    "attn_q_a_norm.weight",  mla_qkv,  .when = has_q_lora),
    HD_MATRIX(layer, q_b,         "attn_q_b.weight",       mla_qkv,  .when = has_q_lora, .cut = HD_CUT_ROWS),
    HD_MATRIX(layer, kv_a,        "attn_kv_a_mqa.weight",  mla_qkv,  .when = NULL),
    HD_VECTOR(layer, kv_a_norm,   "attn_kv_a_norm.weight", mla_qkv,  .when = NULL),
    HD_MATRIX(layer, k_b,         "attn_k_b.weight",       mla_attn, .cut = HD_CUT_MATRICES),
    HD_MATRIX(layer, v_b,         "attn_v_b.weight",       mla_attn, .cut = HD_CUT_MATRICES),
    HD_MATRIX(layer, output,      "attn_output.weight",    proj_add, .cut = HD_CUT_COLUMNS),
    HD_FFN_SLOTS(layer, ffn),
};
/* clang-format on */

static int kv_kinds(const hd_hparams *hp, enum hd_kv_type t, hd_kv_kind out[HD_KV_KIND_MAX]) {
    out[0] = (hd_kv_kind){.name = "mla_latent", .layout = hd_hparams_kv_layout(hp, t)};
    return 1;
}

static hd_status plan(hd_model *m) {
    const hd_hparams *hp = &m->hp;
    hd_dev_limits limits = hd_model_limits(m);
    HD_TRY(m->dev.ops->reserve(m->dev.ctx, &limits));
    struct work *w = m->work = hd_arena_alloc(m->arena, sizeof *w);
    size_t n_row = (size_t)m->opt.n_row_max, n_out = (size_t)m->opt.n_out_max;
    size_t d = (size_t)hp->d_model, n_head = (size_t)hp->n_head;
    size_t n_q = n_head * (size_t)(hp->n_nope + hp->n_rope);
    HD_TRY(hd_model_work(m, n_row * d, sizeof *w->x, (void **)&w->x));
    HD_TRY(hd_model_work(m, n_row * n_q, sizeof *w->q, (void **)&w->q));
    HD_TRY(hd_model_work(m, n_row * n_head * (size_t)hp->n_v, sizeof *w->attn, (void **)&w->attn));
    HD_TRY(hd_ffn_plan(m, &w->ffn));
    return hd_model_work(m, n_out * (size_t)hp->n_vocab, sizeof *w->logits, (void **)&w->logits);
}

static void attention(hd_model *m, const hd_batch *b, int layer, float *x) {
    const hd_hparams *hp = &m->hp;
    const struct layer *l = (const struct layer *)(const void *)m->layer + layer;
    struct work *w = m->work;
    HD_RUN(mla_qkv, .batch = b, .x = x, .norm = l->attn_norm, .eps = hp->rms_eps,
           .lora_eps = hp->lora_eps, .q = l->q, .q_a = l->q_a, .q_a_norm = l->q_a_norm,
           .q_b = l->q_b, .kv_a = l->kv_a, .kv_a_norm = l->kv_a_norm, .rope_cs = m->rope,
           .d_model = hp->d_model, .n_head = hp->n_head, .n_nope = hp->n_nope, .n_rope = hp->n_rope,
           .n_c = hp->n_c, .kv = m->kv[0].kind.layout, .cache = hd_model_kv(m, 0, layer),
           .q_out = w->q);
    HD_RUN(mla_attn, .batch = b, .q = w->q, .kv = m->kv[0].kind.layout,
           .cache = hd_model_kv(m, 0, layer), .k_b = l->k_b, .v_b = l->v_b, .n_head = hp->n_head,
           .n_nope = hp->n_nope, .n_rope = hp->n_rope, .n_c = hp->n_c, .n_v = hp->n_v,
           .scale = hd_rope_softmax_scale(hp), .out = w->attn);
    HD_RUN(proj_add, .n_row = b->n_row, .a = w->attn, .w = l->output, .x = x,
           .is_partial = hd_shard_is_partial(m));
    hd_shard_sum(m, b->n_row, x);
}

static const float *deepseek2_forward(hd_model *m, const hd_batch *b) {
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

const hd_arch hd_arch_deepseek2 = {
    .attn = HD_OP_mla_attn,
    .global_slot = global_slot,
    .layer_slot = layer_slot,
    .n_global_slot = HD_COUNT_OF(global_slot),
    .n_layer_slot = HD_COUNT_OF(layer_slot),
    .global_bytes = sizeof(struct globals),
    .layer_bytes = sizeof(struct layer),
    .kv_kinds = kv_kinds,
    .plan = plan,
    .forward = deepseek2_forward,
};
