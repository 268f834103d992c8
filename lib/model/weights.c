/* Binding: every slot of the architecture gets its tensor, checked once, so that the forward pass
 * looks nothing up.
 *
 * Norms and biases become float32 arrays. A matrix stays as stored and is read from the mapping
 * where it lies there whole and aligned; else (a transposed key matrix, an unaligned safetensors
 * tensor) the model owns one copy. A format that the device's op cannot read ends the load. */
#include "model/offload.h"

#include <stdio.h>
#include <string.h>

static hd_status check_format(const hd_dev *dev, const hd_slot *slot, const char *name,
                              enum hd_format format) {
    if (dev->ops->supports(dev->ctx, slot->op, format)) return HD_OK;
    return HD_FAIL(UNSUPPORTED, "op %s: tensor %s: format %s is not supported by backend %s",
                   hd_op_name(slot->op), name, hd_format_get(format)->name, dev->ops->name);
}

static hd_status bind_vector(hd_model *m, const hd_canon_tensor *t, const float **out) {
    size_t n = (size_t)t->ne[0];
    float *v = hd_arena_alloc(m->arena, n * sizeof *v);
    const void *src = hd_canon_matrix(m->canon, t, 0, NULL);
    hd_format_get(t->format)->decode(src, v, n);
    m->weight_bytes += n * sizeof *v;
    *out = v;
    if (!hd_dev_has_memory(&m->dev)) return HD_OK;
    void *copy;
    HD_TRY(m->dev.ops->alloc(m->dev.ctx, n * sizeof *v, &copy));
    hd_model_hold(m, copy, true);
    *out = copy;
    return hd_dev_put(&m->dev, copy, v, n * sizeof *v);
}

static bool is_aligned(const void *p, enum hd_format f) {
    size_t align = f == HD_F32 ? 4 : 2; /* others start with 16-bit values */
    return (uintptr_t)p % align == 0;
}

/* Pointers to the n_mat matrices of t; those that cannot be read in place go to one owned block. */
static hd_status matrix_pointers(hd_model *m, const hd_canon_tensor *t, int n_mat, size_t n_byte,
                                 const void **mat) {
    size_t stride = hd_align_up(n_byte, 64);
    void *owned = NULL;
    for (int ix = 0; ix < n_mat; ix++) {
        bool is_copied = hd_canon_is_copied(t);
        const void *p = is_copied ? NULL : hd_canon_matrix(m->canon, t, ix, NULL);
        HD_TRY(hd_canon_check(m->canon, t, ix));
        if (!is_copied && is_aligned(p, t->format)) {
            mat[ix] = p;
            continue;
        }
        if (!owned) {
            HD_TRY(hd_alloc_large(stride * (size_t)n_mat, &owned));
            hd_model_hold(m, owned, false);
        }
        char *copy = (char *)owned + (size_t)ix * stride;
        if (is_copied)
            hd_canon_matrix(m->canon, t, ix, copy);
        else
            memcpy(copy, p, n_byte);
        mat[ix] = copy;
    }
    return HD_OK;
}

static hd_status bind_matrix(hd_model *m, const hd_canon_tensor *t, const hd_slot *slot, int layer,
                             const hd_weight **out) {
    bool on_host = hd_offload_is_host(m, slot->op, layer);
    const hd_dev *dev = on_host ? &m->offload->host : &m->dev;
    HD_TRY(check_format(dev, slot, t->name, t->format));
    int n_mat = t->n_dim > 2 ? (int)t->ne[2] : 1;
    const void **mat = hd_arena_alloc(m->arena, (size_t)n_mat * sizeof *mat);
    size_t n_byte = hd_format_bytes(t->format, (size_t)t->ne[0] * (size_t)t->ne[1]);
    HD_TRY(matrix_pointers(m, t, n_mat, n_byte, mat));
    struct hd_bound *b = hd_arena_alloc(m->arena, sizeof *b);
    *b = (struct hd_bound){.slot = slot, .layer = layer, .on_host = on_host};
    b->weight = (hd_weight){.format = t->format,
                            .n_in = (int)t->ne[0],
                            .n_out = (int)t->ne[1],
                            .n_mat = n_mat,
                            .mat = mat};
    snprintf(b->weight.name, sizeof b->weight.name, "%s", t->name);
    if (dev->ops->prepare) HD_TRY(dev->ops->prepare(dev->ctx, &b->weight));
    *m->bound_end = b; /* only now: release sees what prepare has seen succeed */
    m->bound_end = &b->next;
    m->weight_bytes += (uint64_t)n_byte * (uint64_t)n_mat;
    *out = &b->weight;
    return HD_OK;
}

static hd_status bind_slot(hd_model *m, const hd_slot *slot, int layer, char *target) {
    if (slot->when && !slot->when(&m->hp, layer)) return HD_OK;
    char name[64];
    hd_canon_name(layer, slot->suffix, name);
    const hd_canon_tensor *t = hd_canon_find(m->canon, name);
    bool is_shared = !t && slot->fallback; /* the same bytes as another slot's: counted there */
    if (is_shared) t = hd_canon_find(m->canon, slot->fallback);
    if (!t && slot->is_optional) return HD_OK;
    if (!t) return HD_FAIL(CORRUPT, "tensor %s: expected, found none", name);
    if (slot->kind == HD_SLOT_VECTOR)
        return bind_vector(m, t, (const float **)(void *)(target + slot->offset));
    uint64_t counted = m->weight_bytes;
    HD_TRY(bind_matrix(m, t, slot, layer, (const hd_weight **)(void *)(target + slot->offset)));
    if (is_shared) m->weight_bytes = counted;
    return HD_OK;
}

hd_status hd_weights_bind(hd_model *m, void (*on_progress)(void *user, int done, int all),
                          void *user) {
    const hd_arch *a = m->arch;
    int done = 0, all = (int)a->n_global_slot + m->hp.n_layer * (int)a->n_layer_slot;
    m->bound_end = &m->bound;
    m->global = hd_arena_alloc(m->arena, a->global_bytes);
    m->layer = hd_arena_alloc(m->arena, (size_t)m->hp.n_layer * a->layer_bytes);
    for (size_t i = 0; i < a->n_global_slot; i++) {
        HD_TRY(bind_slot(m, &a->global_slot[i], -1, m->global));
        if (on_progress) on_progress(user, ++done, all);
    }
    for (int layer = 0; layer < m->hp.n_layer; layer++)
        for (size_t i = 0; i < a->n_layer_slot; i++) {
            char *target = m->layer + (size_t)layer * a->layer_bytes;
            HD_TRY(bind_slot(m, &a->layer_slot[i], layer, target));
            if (on_progress) on_progress(user, ++done, all);
        }
    return HD_OK;
}

void hd_weights_release(hd_model *m) {
    for (struct hd_bound *b = m->bound; b; b = b->next) {
        const hd_dev *dev = b->on_host ? &m->offload->host : &m->dev;
        if (dev->ops->release) dev->ops->release(dev->ctx, &b->weight);
    }
}
