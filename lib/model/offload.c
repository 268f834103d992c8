/* Which feed-forwards stay on the host, and running them there. */
#include "model/offload.h"

#include "file/mapping.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLAN_BYTES_MAX = 1 << 20 };

/* ---- which layers ---- */

struct candidate {
    int layer;
    uint64_t n_byte, token_bytes; /* of its feed-forward; of it a token reads */
};

static enum hd_op op_of_slot(const hd_model *m, const char *suffix) {
    for (size_t i = 0; i < m->arch->n_layer_slot; i++)
        if (strcmp(m->arch->layer_slot[i].suffix, suffix) == 0) return m->arch->layer_slot[i].op;
    return HD_OP_COUNT;
}

/* Sums each layer's feed-forward matrices; returns the bytes of everything. */
static uint64_t measure(const hd_model *m, struct candidate *c) {
    uint64_t all = 0;
    for (int i = 0; i < m->hp.n_layer; i++) c[i] = (struct candidate){.layer = i};
    for (size_t i = 0; i < hd_canon_count(m->canon); i++) {
        const hd_canon_tensor *t = hd_canon_at(m->canon, i);
        enum hd_format format = t->n_dim > 1 ? t->format : HD_F32; /* as it is bound */
        int64_t n = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
        uint64_t n_byte = hd_format_bytes(format, (size_t)n);
        all += n_byte;
        int layer, at = 0;
        if (sscanf(t->name, "blk.%d.%n", &layer, &at) != 1 || at == 0 || t->n_dim < 2) continue;
        enum hd_op op = op_of_slot(m, t->name + at);
        if (layer < 0 || layer >= m->hp.n_layer || (op != HD_OP_moe && op != HD_OP_ffn)) continue;
        bool is_routed = t->n_dim > 2 && t->ne[2] > 1;
        c[layer].n_byte += n_byte;
        c[layer].token_bytes +=
            is_routed ? n_byte / (uint64_t)t->ne[2] * (uint64_t)m->hp.n_expert_used : n_byte;
    }
    return all;
}

static int by_size(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    if (x->n_byte != y->n_byte) return x->n_byte < y->n_byte ? 1 : -1;
    return y->layer - x->layer;
}

/* Moves the layers that the file names to the front, in its order. Lines hold one layer's number
 * each; # begins a comment. */
static hd_status read_plan(const char *path, struct candidate *c, int n_layer) {
    char *text;
    size_t n_byte;
    HD_TRY(hd_text_read(path, PLAN_BYTES_MAX, &text, &n_byte));
    hd_status s = HD_OK;
    if (strlen(text) != n_byte)
        s = HD_FAIL(CORRUPT, "%s: byte %zu: expected text, found a zero byte", path,
                    strlen(text) + 1);
    int n_named = 0, line = 0;
    for (char *p = text, *next; p && s == HD_OK; p = next) {
        next = strchr(p, '\n');
        if (next) *next++ = 0;
        line++;
        p[strcspn(p, "#\r")] = 0;
        p += strspn(p, " \t");
        if (*p == 0) continue;
        char *end;
        long layer = strtol(p, &end, 10);
        end += strspn(end, " \t");
        int at = n_named;
        while (at < n_layer && c[at].layer != layer) at++;
        if (*end != 0 || layer < 0 || layer >= n_layer)
            s = HD_FAIL(CORRUPT, "%s: line %d: expected a layer from 0 to %d, found \"%.40s\"",
                        path, line, n_layer - 1, p);
        else if (at == n_layer)
            s = HD_FAIL(CORRUPT, "%s: line %d: layer %ld is named twice", path, line, layer);
        if (s != HD_OK) break;
        struct candidate named = c[at];
        memmove(&c[n_named + 1], &c[n_named], (size_t)(at - n_named) * sizeof *c);
        c[n_named++] = named;
    }
    hd_free(text);
    return s;
}

hd_status hd_offload_choose(hd_model *m) {
    const hd_model_options *o = &m->opt;
    bool is_bounded = o->host && o->device_weight_bytes > 0;
    if (!is_bounded && !o->offload_plan) return HD_OK;
    int n_layer = m->hp.n_layer;
    struct candidate *c = hd_arena_alloc(m->arena, (size_t)n_layer * sizeof *c);
    uint64_t left = measure(m, c);
    qsort(c, (size_t)n_layer, sizeof *c, by_size);
    if (o->offload_plan) HD_TRY(read_plan(o->offload_plan, c, n_layer));
    if (!is_bounded || left <= o->device_weight_bytes) return HD_OK; /* the plan was checked */
    struct hd_offload *f = hd_arena_alloc(m->arena, sizeof *f);
    *f = (struct hd_offload){.host = *o->host};
    f->layer = hd_arena_alloc(m->arena, (size_t)n_layer * sizeof *f->layer);
    memset(f->layer, 0, (size_t)n_layer * sizeof *f->layer);
    for (int i = 0; i < n_layer && left > o->device_weight_bytes; i++) {
        f->layer[c[i].layer] = true;
        f->facts.n_layer++;
        f->facts.n_byte += c[i].n_byte;
        f->facts.token_bytes += c[i].token_bytes;
        left -= c[i].n_byte;
    }
    if (left > o->device_weight_bytes)
        return HD_FAIL(NO_MEMORY,
                       "with every feed-forward on the host the other weights still take %llu "
                       "bytes of the device: %llu are there for weights",
                       (unsigned long long)left, (unsigned long long)o->device_weight_bytes);
    m->offload = f;
    return HD_OK;
}

/* ---- running them ---- */

hd_status hd_offload_plan(hd_model *m) {
    struct hd_offload *f = m->offload;
    if (!f) return HD_OK;
    hd_dev_limits limits = hd_model_limits(m);
    HD_TRY(f->host.ops->reserve(f->host.ctx, &limits));
    size_t n_row = (size_t)m->opt.n_row_max, d = (size_t)m->hp.d_model;
    size_t n_pick = n_row * (size_t)(m->hp.n_expert_used > 0 ? m->hp.n_expert_used : 1);
    f->x = hd_arena_alloc(m->arena, n_row * d * sizeof *f->x);
    f->normed = hd_arena_alloc(m->arena, n_row * d * sizeof *f->normed);
    f->norm = hd_arena_alloc(m->arena, d * sizeof *f->norm);
    f->weight = hd_arena_alloc(m->arena, n_pick * sizeof *f->weight);
    f->expert = hd_arena_alloc(m->arena, n_pick * sizeof *f->expert);
    return HD_OK;
}

/* A copy after one that failed is left out: the device broke, and the step says so. */
static void get(hd_model *m, void *to, const void *from, size_t n_byte) {
    if (m->offload->status == HD_OK) m->offload->status = hd_dev_get(&m->dev, to, from, n_byte);
}
static void put(hd_model *m, void *to, const void *from, size_t n_byte) {
    if (m->offload->status == HD_OK) m->offload->status = hd_dev_put(&m->dev, to, from, n_byte);
}

hd_status hd_offload_status(hd_model *m) {
    if (!m->offload) return HD_OK;
    hd_status s = m->offload->status;
    m->offload->status = HD_OK;
    return s;
}

void hd_offload_ffn(hd_model *m, const struct hd_op_ffn *args) {
    struct hd_offload *f = m->offload;
    size_t d = (size_t)args->d_model, n_byte = (size_t)args->n_row * d * sizeof(float);
    struct hd_op_ffn on_host = *args;
    get(m, f->x, args->x, n_byte);
    get(m, f->norm, args->norm, d * sizeof(float));
    if (f->status != HD_OK) return;
    on_host.x = f->x;
    on_host.norm = f->norm;
    int64_t from_ns = m->spans ? hd_now_ns() : 0;
    f->host.ops->ffn(f->host.ctx, &on_host);
    if (m->spans) hd_model_note(m, HD_OP_ffn, from_ns);
    put(m, args->x, f->x, n_byte);
}

void hd_offload_moe(hd_model *m, const struct hd_op_moe *args) {
    struct hd_offload *f = m->offload;
    size_t n_byte = (size_t)args->n_row * (size_t)args->d_model * sizeof(float);
    size_t n_pick = (size_t)args->n_row * (size_t)args->n_used;
    struct hd_op_moe on_host = *args;
    get(m, f->x, args->x, n_byte);
    get(m, f->normed, args->normed, n_byte);
    get(m, f->expert, args->expert, n_pick * sizeof *f->expert);
    get(m, f->weight, args->weight, n_pick * sizeof *f->weight);
    if (f->status != HD_OK) return;
    on_host.x = f->x;
    on_host.normed = f->normed;
    on_host.expert = f->expert;
    on_host.weight = f->weight;
    int64_t from_ns = m->spans ? hd_now_ns() : 0;
    f->host.ops->moe(f->host.ctx, &on_host);
    if (m->spans) hd_model_note(m, HD_OP_moe, from_ns);
    put(m, args->x, f->x, n_byte);
}
