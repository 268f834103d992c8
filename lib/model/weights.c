/* Binding: every slot of the architecture gets its tensor, checked once, so that the forward pass
 * looks nothing up.
 *
 * Norms and biases become float32 arrays. A matrix stays as stored and is read from the mapping
 * where it lies there whole and aligned; else (a transposed key matrix, an unaligned safetensors
 * tensor) the model owns one copy. A device may then read a copy of its own, repacked or uploaded
 * (prepare), or one that an image has (model/repack.h). A format that the device's op cannot read
 * ends the load. */
#include "model/offload.h"
#include "model/repack.h"
#include "model/shard.h"

#include <stdio.h>
#include <string.h>

static hd_status check_format(const hd_dev *dev, const hd_slot *slot, const char *name,
                              enum hd_format format) {
    if (dev->ops->supports(dev->ctx, slot->op, format)) return HD_OK;
    return HD_FAIL(UNSUPPORTED, "op %s: tensor %s: format %s is not supported by backend %s",
                   hd_op_name(slot->op), name, hd_format_get(format)->name, dev->ops->name);
}

static hd_status bind_vector(hd_model *m, const hd_canon_tensor *t, const hd_slot *slot,
                             const float **out) {
    hd_shard_piece piece;
    HD_TRY(hd_shard_piece_of(m, t, slot, &piece));
    size_t n_all = (size_t)t->ne[0], n = (size_t)piece.n_col;
    float *v = hd_arena_alloc(m->arena, n_all * sizeof *v);
    const void *src = hd_canon_matrix(m->canon, t, 0, NULL);
    hd_format_get(t->format)->decode(src, v, n_all);
    v += piece.col0;
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

static size_t piece_bytes(const hd_canon_tensor *t, const hd_shard_piece *p) {
    return (size_t)p->n_row * hd_format_bytes(t->format, (size_t)p->n_col);
}

/* Copies the piece's rows and columns out of a whole matrix. */
static void copy_piece(const hd_canon_tensor *t, const hd_shard_piece *p, const char *whole,
                       char *out) {
    size_t row_bytes = hd_format_bytes(t->format, (size_t)t->ne[0]);
    size_t n_byte = hd_format_bytes(t->format, (size_t)p->n_col);
    whole += (size_t)p->row0 * row_bytes + hd_format_bytes(t->format, (size_t)p->col0);
    for (int64_t row = 0; row < p->n_row; row++)
        memcpy(out + (size_t)row * n_byte, whole + (size_t)row * row_bytes, n_byte);
}

/* Pointers to the matrices of a piece of t; those that cannot be read in place go to one block,
 * *owned (NULL: there is none), the caller's to free. scratch: room for a whole matrix, of a tensor
 * that is copied and cut; else NULL. */
static hd_status matrix_pointers(hd_model *m, const hd_canon_tensor *t, const hd_shard_piece *piece,
                                 void *scratch, const void **mat, void **owned) {
    size_t row_bytes = hd_format_bytes(t->format, (size_t)t->ne[0]);
    size_t stride = hd_align_up(piece_bytes(t, piece), 64);
    bool has_whole_rows = piece->n_col == t->ne[0];
    *owned = NULL;
    if (hd_canon_is_copied(t)) HD_TRY(hd_alloc_large(stride * (size_t)piece->n_mat, owned));
    for (int ix = 0; ix < piece->n_mat; ix++) {
        void *room = scratch ? scratch : *owned ? (char *)*owned + (size_t)ix * stride : NULL;
        const char *p = hd_canon_matrix(m->canon, t, piece->mat0 + ix, room);
        HD_TRY(hd_canon_check(m->canon, t, piece->mat0 + ix));
        mat[ix] = p + (size_t)piece->row0 * row_bytes;
        if (!(scratch && p == scratch) && has_whole_rows && is_aligned(mat[ix], t->format))
            continue;
        if (!*owned) HD_TRY(hd_alloc_large(stride * (size_t)piece->n_mat, owned));
        char *copy = (char *)*owned + (size_t)ix * stride;
        copy_piece(t, piece, p, copy);
        mat[ix] = copy;
    }
    return HD_OK;
}

/* NULL unless every matrix is as it lies in a file. */
static const hd_place_in_file *places_of(hd_model *m, const void *const *mat, int n_mat) {
    hd_place_in_file *place = hd_arena_alloc(m->arena, (size_t)n_mat * sizeof *place);
    for (int i = 0; i < n_mat; i++)
        if (!hd_checkpoint_locate(m->checkpoint, mat[i], &place[i].fd, &place[i].at)) return NULL;
    return place;
}

/* Read by rows; or in float32, where repacking would make other products of a quantised format. */
static bool is_plain(enum hd_op op, enum hd_format f) {
    return op == HD_OP_embed || (op == HD_OP_route && hd_format_get(f)->block_elems > 1);
}

/* Repacks or uploads a bound weight, some of whose matrices are in `owned` (or NULL). A device on
 * the host that has a copy of its own needs those no more: both together would be twice the model.
 */
static hd_status prepare(hd_model *m, const hd_dev *dev, struct hd_bound *b, void *owned) {
    hd_weight *w = &b->weight;
    hd_status s = HD_OK;
    b->is_mapped = hd_repack_find(m, dev, w);
    if (dev->ops->prepare && !b->is_mapped) s = dev->ops->prepare(dev->ctx, w);
    if (!owned) return s;
    bool is_read = s != HD_OK || !w->prepared || hd_dev_has_memory(dev);
    if (!is_read && dev->ops->settle) s = dev->ops->settle(dev->ctx);
    if (is_read) {
        hd_model_hold(m, owned, false);
        return s;
    }
    hd_free(owned);
    memset((void *)(uintptr_t)w->mat, 0, (size_t)w->n_mat * sizeof *w->mat);
    return s;
}

static hd_status bind_matrix(hd_model *m, const hd_canon_tensor *t, const hd_slot *slot, int layer,
                             const hd_weight **out) {
    bool on_host = hd_offload_is_host(m, slot->op, layer);
    const hd_dev *dev = on_host ? &m->offload->host : &m->dev;
    HD_TRY(check_format(dev, slot, t->name, t->format));
    hd_shard_piece piece;
    HD_TRY(hd_shard_piece_of(m, t, slot, &piece));
    const void **mat = hd_arena_alloc(m->arena, (size_t)piece.n_mat * sizeof *mat);
    void *scratch = NULL, *owned;
    size_t whole_bytes = hd_format_bytes(t->format, (size_t)t->ne[0] * (size_t)t->ne[1]);
    bool is_cut = piece_bytes(t, &piece) < whole_bytes;
    if (is_cut && hd_canon_is_copied(t)) HD_TRY(hd_alloc_large(whole_bytes, &scratch));
    hd_status s = matrix_pointers(m, t, &piece, scratch, mat, &owned);
    hd_free(scratch);
    if (s != HD_OK) {
        hd_free(owned);
        return s;
    }
    struct hd_bound *b = hd_arena_alloc(m->arena, sizeof *b);
    *b = (struct hd_bound){.slot = slot, .layer = layer, .on_host = on_host};
    b->weight = (hd_weight){.format = t->format,
                            .n_in = (int)piece.n_col,
                            .n_out = (int)piece.n_row,
                            .n_mat = piece.n_mat,
                            .place = places_of(m, mat, piece.n_mat),
                            .mat = mat,
                            .is_plain = is_plain(slot->op, t->format)};
    snprintf(b->weight.name, sizeof b->weight.name, "%s", t->name);
    HD_TRY(prepare(m, dev, b, owned));
    *m->bound_end = b; /* only now: release sees what prepare has seen succeed */
    m->bound_end = &b->next;
    m->weight_bytes += (uint64_t)piece_bytes(t, &piece) * (uint64_t)piece.n_mat;
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
        return bind_vector(m, t, slot, (const float **)(void *)(target + slot->offset));
    uint64_t counted = m->weight_bytes;
    HD_TRY(bind_matrix(m, t, slot, layer, (const hd_weight **)(void *)(target + slot->offset)));
    if (is_shared) m->weight_bytes = counted;
    return HD_OK;
}

static hd_status settle(hd_model *m) {
    const hd_dev *host = m->offload ? &m->offload->host : NULL;
    hd_status s = m->dev.ops->settle ? m->dev.ops->settle(m->dev.ctx) : HD_OK;
    if (host && host->ops->settle && s == HD_OK) s = host->ops->settle(host->ctx);
    return s;
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
    return settle(m);
}

void hd_weights_release(hd_model *m) {
    (void)settle(m); /* binding may have failed */
    for (struct hd_bound *b = m->bound; b; b = b->next) {
        const hd_dev *dev = b->on_host ? &m->offload->host : &m->dev;
        if (dev->ops->release && !b->is_mapped) dev->ops->release(dev->ctx, &b->weight);
    }
}
