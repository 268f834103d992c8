/* Which part of the hyper-parameters and of each tensor is a rank's, and its collectives. */
#include "model/shard.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static hd_status divide(int *n, int n_rank, const char *what) {
    if (*n % n_rank != 0)
        return HD_FAIL(INVALID, "%d ranks: %d %s do not divide into equal parts", n_rank, *n, what);
    *n /= n_rank;
    return HD_OK;
}

hd_status hd_hparams_part(const hd_hparams *whole, int n_rank, bool is_expert_parallel,
                          hd_hparams *out) {
    hd_hparams hp = *whole;
    if (n_rank < 1 || n_rank > HD_RANK_MAX)
        return HD_FAIL(INVALID, "ranks of a model: expected 1 to %d, found %d", HD_RANK_MAX,
                       n_rank);
    bool has_experts = hp.n_dense_layer < hp.n_layer;
    int n_expert = hp.n_expert, n_vocab = hp.n_vocab; /* both are whole in the forward pass */
    int d_shared = hp.n_expert_shared * hp.d_expert;
    HD_TRY(divide(&hp.n_head, n_rank, "attention heads"));
    if (!hd_hparams_is_mla(&hp)) HD_TRY(divide(&hp.n_head_kv, n_rank, "key and value heads"));
    if (hp.n_dense_layer > 0) HD_TRY(divide(&hp.d_ff, n_rank, "values of the feed-forward"));
    if (has_experts && is_expert_parallel) HD_TRY(divide(&n_expert, n_rank, "experts"));
    if (has_experts && !is_expert_parallel)
        HD_TRY(divide(&hp.d_expert, n_rank, "values of an expert"));
    if (has_experts) HD_TRY(divide(&d_shared, n_rank, "values of the shared expert"));
    HD_TRY(divide(&n_vocab, n_rank, "rows of the output matrix"));
    *out = hp;
    return HD_OK;
}

static enum hd_cut cut_of(const hd_model *m, const hd_canon_tensor *t, const hd_slot *slot) {
    bool is_expert = slot->op == HD_OP_moe && t->n_dim > 2;
    return is_expert && m->opt.is_expert_parallel ? HD_CUT_MATRICES : slot->cut;
}

/* unit: values that stay together. */
static hd_status take_part(const hd_model *m, const hd_canon_tensor *t, int64_t unit, int64_t *at,
                           int64_t *n) {
    int64_t n_rank = m->opt.comm->n_rank;
    if (*n % (n_rank * unit) != 0)
        return HD_FAIL(INVALID,
                       "tensor %s: %" PRId64 " values do not divide into %d equal parts of whole "
                       "blocks of %d (%s)",
                       t->name, *n, (int)n_rank, (int)unit, hd_format_get(t->format)->name);
    *n /= n_rank;
    *at = *n * m->opt.comm->rank;
    return HD_OK;
}

hd_status hd_shard_piece_of(const hd_model *m, const hd_canon_tensor *t, const hd_slot *slot,
                            hd_shard_piece *out) {
    bool is_vector = t->n_dim == 1;
    int64_t mat0 = 0, n_mat = t->n_dim > 2 ? t->ne[2] : 1;
    hd_shard_piece p = {.n_row = is_vector ? 1 : t->ne[1], .n_col = t->ne[0]};
    switch (m->opt.comm ? cut_of(m, t, slot) : HD_CUT_NONE) {
    case HD_CUT_NONE: break;
    case HD_CUT_MATRICES: HD_TRY(take_part(m, t, 1, &mat0, &n_mat)); break;
    case HD_CUT_ROWS:
        HD_TRY(take_part(m, t, 1, is_vector ? &p.col0 : &p.row0, is_vector ? &p.n_col : &p.n_row));
        break;
    case HD_CUT_COLUMNS:
        HD_TRY(take_part(m, t, hd_format_get(t->format)->block_elems, &p.col0, &p.n_col));
        break;
    }
    p.mat0 = (int)mat0;
    p.n_mat = (int)n_mat;
    *out = p;
    return HD_OK;
}

/* ---- what a rank takes ---- */

static const hd_slot *slot_in(const hd_slot *slot, size_t n, const char *suffix) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(slot[i].suffix, suffix) == 0) return &slot[i];
    return NULL;
}

static const hd_slot *slot_of(const hd_arch *a, const char *name) {
    int layer, at = 0;
    if (sscanf(name, "blk.%d.%n", &layer, &at) == 1 && at > 0)
        return slot_in(a->layer_slot, a->n_layer_slot, name + at);
    return slot_in(a->global_slot, a->n_global_slot, name);
}

static hd_status sum_pieces(const hd_model *m, uint64_t *sum) {
    *sum = 0;
    for (size_t i = 0; i < hd_canon_count(m->canon); i++) {
        const hd_canon_tensor *t = hd_canon_at(m->canon, i);
        const hd_slot *slot = slot_of(m->arch, t->name);
        hd_shard_piece p;
        if (!slot) continue; /* read otherwise: rope_freqs */
        HD_TRY(hd_shard_piece_of(m, t, slot, &p));
        enum hd_format f = slot->kind == HD_SLOT_VECTOR ? HD_F32 : t->format;
        *sum +=
            (uint64_t)hd_format_bytes(f, (size_t)p.n_col) * (uint64_t)p.n_row * (uint64_t)p.n_mat;
    }
    return HD_OK;
}

hd_status hd_model_rank_bytes(const hd_checkpoint *c, int n_rank, bool is_expert_parallel,
                              uint64_t *out) {
    hd_comm comm = {.n_rank = n_rank};
    hd_model m = {.opt = {.comm = &comm, .is_expert_parallel = is_expert_parallel}};
    HD_TRY(hd_hparams_read(c, &m.whole));
    HD_TRY(hd_hparams_part(&m.whole, n_rank, is_expert_parallel, &m.hp));
    m.arch = hd_arch_find(m.hp.arch);
    if (!m.arch) return HD_FAIL(UNSUPPORTED, "architecture %s has no forward pass", m.hp.arch);
    HD_TRY(hd_canon_new(c, &m.whole, &m.canon));
    hd_status s = sum_pieces(&m, out);
    hd_canon_free(m.canon);
    return s;
}

/* ---- a forward pass ---- */

hd_status hd_shard_plan(hd_model *m) {
    if (!m->opt.comm) return HD_OK;
    size_t n_own = (size_t)(m->hp.n_vocab / m->opt.comm->n_rank);
    return hd_model_work(m, (size_t)m->opt.n_out_max * n_own, sizeof *m->own_logits,
                         (void **)&m->own_logits);
}

int hd_shard_expert0(const hd_model *m) {
    if (!m->opt.comm || !m->opt.is_expert_parallel) return 0;
    return m->hp.n_expert / m->opt.comm->n_rank * m->opt.comm->rank;
}

void hd_shard_sum(hd_model *m, int n_row, float *x) {
    if (!m->opt.comm) return;
    HD_RUN(all_reduce, .comm = m->opt.comm, .n = (size_t)n_row * (size_t)m->hp.d_model, .x = x);
}

float *hd_shard_logits(const hd_model *m, float *logits) {
    return m->opt.comm ? m->own_logits : logits;
}

void hd_shard_gather(hd_model *m, int n_out, float *logits) {
    if (!m->opt.comm) return;
    HD_RUN(all_gather, .comm = m->opt.comm, .n_row = n_out,
           .n_each = m->hp.n_vocab / m->opt.comm->n_rank, .part = m->own_logits, .all = logits);
}
