/* Opening and closing a model, its KV memory, and the checks in front of a forward pass. */
#include "model/offload.h"
#include "model/repack.h"
#include "model/shard.h"

#include "base/log.h"

#include <string.h>

static hd_status check_options(const hd_hparams *hp, const hd_model_options *o) {
    const struct {
        const char *name;
        int value;
    } positive[] = {
        {"n_row_max", o->n_row_max}, {"n_seq_max", o->n_seq_max}, {"n_out_max", o->n_out_max},
        {"n_pos_max", o->n_pos_max}, {"n_page", o->n_page},       {"page_tok", o->page_tok},
    };
    for (size_t i = 0; i < HD_COUNT_OF(positive); i++)
        if (positive[i].value < 1)
            return HD_FAIL(INVALID, "model option %s: expected at least 1, found %d",
                           positive[i].name, positive[i].value);
    if (o->n_pos_max > hp->n_ctx)
        return HD_FAIL(CONTEXT, "sequence length %d: the model has %d positions", o->n_pos_max,
                       hp->n_ctx);
    if ((int64_t)o->n_page * o->page_tok > INT32_MAX)
        return HD_FAIL(INVALID, "%d pages of %d tokens: at most %d tokens", o->n_page, o->page_tok,
                       INT32_MAX);
    if (o->comm && o->device_weight_bytes > 0)
        return HD_FAIL(UNSUPPORTED, "offload: a model over several ranks leaves nothing to the "
                                    "host");
    if (o->comm && o->repack_cache)
        return HD_FAIL(UNSUPPORTED, "repack cache: not of a model over several ranks");
    if (hp->n_rope % 2 || hp->n_rope / 2 > HD_ROPE_PAIR_MAX)
        return HD_FAIL(UNSUPPORTED, "rope dimension %d: expected an even number up to %d",
                       hp->n_rope, 2 * HD_ROPE_PAIR_MAX);
    return HD_OK;
}

static hd_status check_kv_type(const hd_model *m) {
    enum hd_kv_type t = m->opt.kv_type;
    if (m->dev.ops->supports_kv(m->dev.ctx, t)) return HD_OK;
    return HD_FAIL(UNSUPPORTED, "op %s: KV cache: type %s is not supported by backend %s",
                   hd_op_name(m->arch->attn), hd_kv_type_name(t), m->dev.ops->name);
}

void hd_model_hold(hd_model *m, void *p, bool is_device) {
    struct hd_held *h = hd_arena_alloc(m->arena, sizeof *h);
    *h = (struct hd_held){.ptr = p, .is_device = is_device, .next = m->held};
    m->held = h;
}

static hd_status device_memory(hd_model *m, size_t n, size_t elem_bytes, void **out) {
    *out = NULL;
    if (n > SIZE_MAX / elem_bytes)
        return HD_FAIL(NO_MEMORY, "%zu elements of %zu bytes overflow", n, elem_bytes);
    HD_TRY(m->dev.ops->alloc(m->dev.ctx, n * elem_bytes, out));
    hd_model_hold(m, *out, true);
    return HD_OK;
}

hd_status hd_model_work(hd_model *m, size_t n_elem, size_t elem_bytes, void **out) {
    HD_TRY(device_memory(m, n_elem, elem_bytes, out));
    m->workspace_bytes += (uint64_t)n_elem * elem_bytes;
    return HD_OK;
}

hd_dev_limits hd_model_limits(const hd_model *m) {
    const hd_hparams *hp = &m->hp;
    int d_shared = hp->n_expert_shared * hp->d_expert;
    int seq_pages = (m->opt.n_pos_max + m->opt.page_tok - 1) / m->opt.page_tok;
    if (seq_pages > m->opt.n_page) seq_pages = m->opt.n_page;
    int64_t n_table = (int64_t)seq_pages * m->opt.n_seq_max;
    return (hd_dev_limits){.n_row = m->opt.n_row_max,
                           .n_seq = m->opt.n_seq_max,
                           .n_out = m->opt.n_out_max,
                           .d_model = hp->d_model,
                           .n_vocab = hp->n_vocab,
                           .d_ff = hp->d_ff > d_shared ? hp->d_ff : d_shared,
                           .d_expert = hp->d_expert,
                           .n_expert = hp->n_expert,
                           .n_used = hp->n_expert_used,
                           .n_head = hp->n_head,
                           .n_nope = hp->n_nope,
                           .n_rope = hp->n_rope,
                           .n_c = hp->n_c,
                           .n_v = hp->n_v,
                           .n_kv = hd_hparams_is_mla(hp) ? 0 : hp->n_head_kv * hp->n_rope,
                           .q_lora = hp->q_lora,
                           .n_pos = m->opt.n_pos_max,
                           .n_page = m->opt.n_page,
                           .page_tok = m->opt.page_tok,
                           .n_table = n_table < INT32_MAX ? (int)n_table : INT32_MAX};
}

static hd_status open_kv(hd_model *m) {
    hd_kv_kind kind[HD_KV_KIND_MAX];
    m->n_kv_kind = m->arch->kv_kinds(&m->hp, m->opt.kv_type, kind);
    size_t n_page = (size_t)m->opt.n_page + (hd_dev_has_memory(&m->dev) ? HD_DEV_SPARE : 0);
    size_t n_row = n_page * (size_t)m->opt.page_tok;
    for (int i = 0; i < m->n_kv_kind; i++) {
        size_t layer_bytes = hd_align_up(hd_kv_bytes(&kind[i].layout, n_row), 64);
        void *base;
        hd_status s = device_memory(m, (size_t)m->hp.n_layer, layer_bytes, &base);
        if (s != HD_OK)
            return hd_fail_context(s, "KV cache of %d pages of %d tokens (%s)", m->opt.n_page,
                                   m->opt.page_tok, kind[i].name);
        m->kv[i].kind = kind[i];
        m->kv[i].base = base;
        m->kv[i].layer_bytes = layer_bytes;
        m->kv_bytes += (uint64_t)layer_bytes * (uint64_t)m->hp.n_layer;
    }
    return HD_OK;
}

void *hd_model_kv(const hd_model *m, int kind, int layer) {
    return m->kv[kind].base + (size_t)layer * m->kv[kind].layer_bytes;
}

/* Where logits are read: the device's own array, or a copy of it. */
static hd_status open_logits(hd_model *m) {
    size_t n = (size_t)m->opt.n_out_max * (size_t)m->hp.n_vocab;
    void *p;
    if (!hd_dev_has_memory(&m->dev)) return HD_OK;
    HD_TRY(hd_alloc_large(n * sizeof(float), &p));
    hd_model_hold(m, p, false);
    m->host_logits = p;
    return HD_OK;
}

static hd_status open_kept(hd_model *m) {
    size_t n = (size_t)m->opt.n_row_max * (size_t)m->hp.d_model;
    return hd_model_work(m, HD_BATCH_CHUNKS * n, sizeof *m->kept_x, (void **)&m->kept_x);
}

float *hd_model_embed(hd_model *m, const hd_batch *b, const hd_weight *table, float *x) {
    size_t n = (size_t)m->opt.n_row_max * (size_t)m->hp.d_model;
    if (b->layer1 > 0) x = m->kept_x + (size_t)b->chunk_ix * n;
    if (b->layer0 == 0)
        HD_RUN(embed, .n_row = b->n_row, .token = b->token, .last = m->last, .table = table,
               .x = x);
    return x;
}

int hd_model_layer_end(const hd_model *m, const hd_batch *b) {
    return b->layer1 > 0 ? b->layer1 : m->hp.n_layer;
}

/* What sampling needs: which ids are tokens, the tokens chosen, and by slot the last of them. */
static hd_status open_tokens(hd_model *m) {
    size_t n_vocab = (size_t)m->hp.n_vocab, n_out = (size_t)m->opt.n_out_max;
    size_t n_slot = (size_t)m->opt.n_seq_max + HD_DEV_SPARE;
    HD_TRY(hd_model_work(m, n_vocab, sizeof *m->is_token, (void **)&m->is_token));
    HD_TRY(hd_model_work(m, n_out, sizeof *m->token, (void **)&m->token));
    HD_TRY(hd_model_work(m, n_slot, sizeof *m->last, (void **)&m->last));
    for (int i = 0; i < HD_DEV_STEPS; i++)
        m->step[i].token = hd_arena_alloc(m->arena, n_out * sizeof *m->token);
    uint8_t *is_token = hd_arena_alloc(m->arena, n_vocab);
    memset(is_token, 1, n_vocab);
    for (int i = 0; i < m->opt.n_no_token; i++) {
        HD_ASSERT(m->opt.no_token[i] >= 0 && m->opt.no_token[i] < m->hp.n_vocab);
        is_token[m->opt.no_token[i]] = 0;
    }
    m->opt.no_token = NULL;
    return hd_dev_put(&m->dev, m->is_token, is_token, n_vocab);
}

static hd_status open_rope(hd_model *m) {
    void *cs;
    size_t n = (size_t)m->opt.n_pos_max * (size_t)m->hp.n_rope;
    HD_TRY(hd_model_work(m, n, sizeof(float), &cs));
    float *host = hd_dev_has_memory(&m->dev) ? hd_alloc(n * sizeof *host) : cs;
    hd_rope_table(&m->hp, m->opt.n_pos_max, host);
    m->rope = cs;
    hd_status s = hd_dev_put(&m->dev, cs, host, n * sizeof *host);
    if (host != cs) hd_free(host);
    return s;
}

/* Unknown tensors are no error, but may mean that the model is more than its configuration says. */
static void warn_surplus(const hd_model *m, const hd_checkpoint *c) {
    int64_t n = 0;
    const char *first = NULL;
    for (size_t i = 0; i < hd_checkpoint_count(c); i++) {
        if (!hd_canon_is_surplus(m->canon, i)) continue;
        if (n++ == 0) first = hd_checkpoint_at(c, i)->name;
    }
    if (n > 0)
        hd_log(HD_LOG_WARN, "tensors that the architecture does not use", "architecture", "s",
               m->hp.arch, "tensors", "d", n, "first", "s", first, NULL);
}

hd_status hd_model_open(const hd_checkpoint *c, const hd_dev *dev, const hd_model_options *o,
                        void (*on_progress)(void *user, int done, int all), void *user,
                        hd_model **out) {
    *out = NULL;
    hd_status s;
    hd_model *m = hd_alloc_zero(1, sizeof *m);
    m->opt = *o;
    m->dev = *dev;
    m->checkpoint = c;
    m->arena = hd_arena_new(64 << 10);
    HD_TRY_OUT(hd_hparams_read(c, &m->whole));
    m->hp = m->whole;
    if (o->comm)
        HD_TRY_OUT(hd_hparams_part(&m->whole, o->comm->n_rank, o->is_expert_parallel, &m->hp));
    m->arch = hd_arch_find(m->hp.arch);
    if (!m->arch) {
        s = HD_FAIL(UNSUPPORTED, "architecture %s has no forward pass", m->hp.arch);
        goto out;
    }
    HD_TRY_OUT(check_options(&m->hp, o));
    HD_TRY_OUT(check_kv_type(m));
    HD_TRY_OUT(hd_canon_new(c, &m->whole, &m->canon));
    warn_surplus(m, c);
    HD_TRY_OUT(hd_offload_choose(m));
    HD_TRY_OUT(hd_repack_open(m));
    HD_TRY_OUT(hd_weights_bind(m, on_progress, user));
    hd_repack_save(m, on_progress, user);
    HD_TRY_OUT(m->arch->plan(m));
    HD_TRY_OUT(hd_offload_plan(m));
    HD_TRY_OUT(hd_shard_plan(m));
    HD_TRY_OUT(open_rope(m));
    HD_TRY_OUT(open_kv(m));
    HD_TRY_OUT(open_kept(m));
    HD_TRY_OUT(open_logits(m));
    HD_TRY_OUT(open_tokens(m));
    if (dev->ops->scratch_bytes) m->workspace_bytes += dev->ops->scratch_bytes(dev->ctx);
    *out = m;
    return HD_OK;
out:
    hd_model_close(m);
    return s;
}

void hd_model_close(hd_model *m) {
    if (!m) return;
    hd_weights_release(m);
    hd_image_close(m->image);
    for (struct hd_held *h = m->held; h; h = h->next) {
        if (h->is_device)
            m->dev.ops->free(m->dev.ctx, h->ptr);
        else
            hd_free(h->ptr);
    }
    hd_canon_free(m->canon);
    hd_arena_free(m->arena);
    hd_free(m);
}

const hd_hparams *hd_model_hparams(const hd_model *m) { return &m->hp; }
uint64_t hd_model_weight_bytes(const hd_model *m) { return m->weight_bytes; }
uint64_t hd_model_kv_bytes(const hd_model *m) { return m->kv_bytes; }
uint64_t hd_model_kv_lost(const hd_model *m) { return m->dev.ops->kv_lost(m->dev.ctx); }
uint64_t hd_model_workspace_bytes(const hd_model *m) { return m->workspace_bytes; }

hd_offload_facts hd_model_offload(const hd_model *m) {
    return m->offload ? m->offload->facts : (hd_offload_facts){0};
}

/* What memory safety needs of a batch; a violation is a bug of the caller. */
static void check_batch(const hd_model *m, const hd_batch *b) {
    const hd_model_options *o = &m->opt;
    HD_ASSERT(b->n_row <= o->n_row_max && b->n_seq <= o->n_seq_max && b->n_out <= o->n_out_max);
    HD_ASSERT(b->page_tok == o->page_tok);
    HD_ASSERT(b->layer1 <= m->hp.n_layer);
    HD_ASSERT(b->n_out == 0 || b->layer1 == 0 || b->layer1 == m->hp.n_layer);
    for (int s = 0; s < b->n_seq; s++)
        HD_ASSERT(b->seq_slot[s] >= 0 && b->seq_slot[s] < o->n_seq_max);
    for (int r = 0; r < b->n_row; r++) {
        HD_ASSERT(b->token[r] < m->hp.n_vocab && b->pos[r] < o->n_pos_max);
    }
    for (int i = 0; i < b->n_page; i++) HD_ASSERT(b->page[i] >= 0 && b->page[i] < o->n_page);
    for (int i = 0; i < b->n_copy; i++) {
        HD_ASSERT(b->copy_from[i] >= 0 && b->copy_from[i] < o->n_page);
        HD_ASSERT(b->copy_to[i] >= 0 && b->copy_to[i] < o->n_page);
    }
    hd_batch_check(b);
}

/* What failed here fails on every rank, and what failed there here: none can go on alone. */
static hd_status tell_ranks(const hd_model *m, hd_status s) {
    if (!m->opt.comm) return s;
    if (s == HD_OK) return m->opt.comm->check(m->opt.comm);
    hd_comm_fail(m->opt.comm);
    return s;
}

/* The batch's copies of pages, in every layer's cache of every kind. */
static hd_status copy_pages(hd_model *m, const hd_batch *b) {
    for (int i = 0; i < b->n_copy; i++) {
        for (int k = 0; k < m->n_kv_kind; k++) {
            size_t page_bytes = hd_kv_bytes(&m->kv[k].kind.layout, (size_t)m->opt.page_tok);
            for (int layer = 0; layer < m->hp.n_layer; layer++) {
                char *base = hd_model_kv(m, k, layer);
                HD_TRY(hd_dev_copy(&m->dev, base + (size_t)b->copy_to[i] * page_bytes,
                                   base + (size_t)b->copy_from[i] * page_bytes, page_bytes));
            }
        }
    }
    return HD_OK;
}

/* Uploads b and runs its ops; *logits are the device's. */
static hd_status run_ops(hd_model *m, const hd_batch *b, const hd_batch **on_device,
                         const float **logits) {
    check_batch(m, b);
    HD_TRY(copy_pages(m, b));
    HD_TRY(tell_ranks(m, HD_OK));
    HD_TRY(hd_dev_upload(&m->dev, b, on_device));
    *logits = m->arch->forward(m, *on_device);
    HD_TRY(hd_offload_status(m));
    return m->opt.comm ? m->opt.comm->status : HD_OK;
}
static hd_status run_forward(hd_model *m, const hd_batch *b, const hd_batch **on_device,
                             const float **logits) {
    return tell_ranks(m, run_ops(m, b, on_device, logits));
}

hd_status hd_model_forward(hd_model *m, const hd_batch *b, const float **logits) {
    const hd_batch *on_device;
    HD_TRY(run_forward(m, b, &on_device, logits));
    if (b->n_out == 0 || !m->host_logits) return HD_OK;
    size_t n = (size_t)b->n_out * (size_t)m->hp.n_vocab;
    HD_TRY(tell_ranks(m, hd_dev_get(&m->dev, m->host_logits, *logits, n * sizeof **logits)));
    *logits = m->host_logits;
    return HD_OK;
}

hd_status hd_model_profile(hd_model *m, hd_spans *t, enum hd_profile_how how) {
    m->spans = NULL;
    if (m->dev.ops->profile) HD_TRY(m->dev.ops->profile(m->dev.ctx, t, how));
    m->spans = t;
    return HD_OK;
}

void hd_model_note(hd_model *m, enum hd_op op, int64_t from_ns) {
    hd_spans_add(m->spans, &(hd_span){.kind = HD_SPAN_CALL,
                                      .op = op,
                                      .lane = HD_LANE_HOST,
                                      .start_ns = from_ns,
                                      .end_ns = hd_now_ns()});
}

hd_status hd_model_enqueue(hd_model *m, const hd_batch *b) {
    const hd_batch *on_device;
    int ix = (int)(m->n_enqueued % HD_DEV_STEPS);
    struct hd_model_step *step = &m->step[ix];
    HD_ASSERT(m->n_enqueued - m->n_fetched < (hd_dev_has_memory(&m->dev) ? HD_DEV_STEPS : 1));
    HD_TRY(run_forward(m, b, &on_device, &step->logits));
    step->n_out = b->n_out;
    step->batch = NULL;
    for (int i = 0; i < b->n_out; i++)
        if (b->draw[i].is_host) step->batch = b;
    if (b->n_out > 0)
        HD_RUN(sample, .n_out = on_device->n_out, .n_vocab = m->hp.n_vocab, .batch = on_device,
               .logits = step->logits, .is_token = m->is_token, .token = m->token, .last = m->last);
    size_t n_byte = (size_t)b->n_out * sizeof *m->token;
    HD_TRY(tell_ranks(m, hd_dev_send(&m->dev, ix, m->token, n_byte)));
    m->n_enqueued++;
    return HD_OK;
}

/* Logits of the rows that the host draws, runs of them at once. */
static hd_status fetch_rows(hd_model *m, const struct hd_model_step *step) {
    const hd_draw *draw = step->batch->draw;
    size_t n_vocab = (size_t)m->hp.n_vocab;
    for (int i = 0, n; i < step->n_out; i += n) {
        for (n = 1; i + n < step->n_out && draw[i + n].is_host == draw[i].is_host;) n++;
        if (!draw[i].is_host) continue;
        size_t at = (size_t)i * n_vocab, n_byte = (size_t)n * n_vocab * sizeof(float);
        HD_TRY(hd_dev_get(&m->dev, m->host_logits + at, step->logits + at, n_byte));
    }
    return HD_OK;
}

hd_status hd_model_fetch(hd_model *m, hd_model_out *out) {
    HD_ASSERT(m->n_fetched < m->n_enqueued);
    int ix = (int)(m->n_fetched++ % HD_DEV_STEPS);
    const struct hd_model_step *step = &m->step[ix];
    size_t n_byte = (size_t)step->n_out * sizeof *step->token;
    *out = (hd_model_out){.token = step->token, .logits = step->logits};
    HD_TRY(tell_ranks(m, hd_dev_receive(&m->dev, ix, m->token, step->token, n_byte)));
    if (!m->host_logits) return HD_OK;
    out->logits = m->host_logits;
    return step->batch ? fetch_rows(m, step) : HD_OK;
}
