/* The operator plan as text: which weights each op reads, in which layers and formats, by which
 * kernel, and the memory that goes with them. */
#include "model/offload.h"

#include <inttypes.h>
#include <stdio.h>

static bool is_alike(const struct hd_bound *a, const struct hd_bound *b) {
    return a->slot == b->slot && a->on_host == b->on_host && a->weight.format == b->weight.format &&
           a->weight.n_in == b->weight.n_in && a->weight.n_out == b->weight.n_out &&
           a->weight.n_mat == b->weight.n_mat;
}

/* The weight of the same slot in the layer after b's, when it is alike; else NULL. */
static const struct hd_bound *successor(const struct hd_bound *b) {
    for (const struct hd_bound *n = b->next; n; n = n->next)
        if (n->layer == b->layer + 1 && n->slot == b->slot) return is_alike(b, n) ? n : NULL;
    return NULL;
}

static bool is_continuation(const hd_model *m, const struct hd_bound *b) {
    if (b->layer <= 0) return false;
    for (const struct hd_bound *p = m->bound; p != b; p = p->next)
        if (p->slot == b->slot && p->layer == b->layer - 1) return is_alike(p, b);
    return false;
}

static void print_line(const hd_model *m, const struct hd_bound *b, hd_buf *out) {
    const struct hd_bound *last = b;
    for (const struct hd_bound *n; b->layer >= 0 && (n = successor(last));) last = n;
    char layers[32] = "-", shape[64];
    if (b->layer >= 0 && last != b)
        snprintf(layers, sizeof layers, "%d-%d", b->layer, last->layer);
    else if (b->layer >= 0)
        snprintf(layers, sizeof layers, "%d", b->layer);
    if (b->weight.n_mat > 1)
        snprintf(shape, sizeof shape, "%d x [%d, %d]", b->weight.n_mat, b->weight.n_out,
                 b->weight.n_in);
    else
        snprintf(shape, sizeof shape, "[%d, %d]", b->weight.n_out, b->weight.n_in);
    const hd_dev *dev = b->on_host ? &m->offload->host : &m->dev;
    const char *kernel = dev->ops->kernel
                             ? dev->ops->kernel(dev->ctx, b->slot->op, b->weight.format)
                             : dev->ops->name;
    hd_buf_addf(out, "%-9s %-7s %-22s %-5s %-20s %s%s\n", hd_op_name(b->slot->op), layers,
                b->slot->suffix, hd_format_get(b->weight.format)->name, shape, kernel,
                b->on_host ? " (on the host)" : "");
}

void hd_model_plan_text(const hd_model *m, hd_buf *b) {
    hd_buf_addf(b, "%-9s %-7s %-22s %-5s %-20s %s\n", "op", "layers", "weight", "type", "[out, in]",
                "kernel");
    for (int op = 0; op < HD_OP_COUNT; op++)
        for (const struct hd_bound *w = m->bound; w; w = w->next)
            if ((int)w->slot->op == op && !is_continuation(m, w)) print_line(m, w, b);
    for (int i = 0; i < m->n_kv_kind; i++)
        hd_buf_addf(b, "kv        0-%-5d %-22s %-5s %d values, %d bytes a token and layer\n",
                    m->hp.n_layer - 1, m->kv[i].kind.name, hd_kv_type_name(m->opt.kv_type),
                    m->kv[i].kind.layout.n, m->kv[i].kind.layout.row_bytes);
    if (m->opt.comm)
        hd_buf_addf(b, "rank      %d of %d%s\n", m->opt.comm->rank, m->opt.comm->n_rank,
                    m->opt.is_expert_parallel ? ", experts of its own" : "");
    hd_buf_addf(b,
                "memory    weights %" PRIu64 " B, KV %" PRIu64 " B (%d pages of %d tokens), "
                "workspace %" PRIu64 " B\n",
                m->weight_bytes, m->kv_bytes, m->opt.n_page, m->opt.page_tok, m->workspace_bytes);
}
