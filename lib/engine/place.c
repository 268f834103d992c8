/* Placing weights: on the device while there is room, feed-forwards on the host beyond. */
#include "engine/place.h"

#include "base/log.h"
#include "engine/memory.h"

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Weights that the cpu repacks are copied; what it reads from the mapping is page cache, which can
 * be taken back: counted as taken either way. */
hd_status hd_place_find(const hd_place_ask *a, hd_place *out) {
    bool has_memory = hd_dev_has_memory(a->dev);
    uint64_t weights = 0, room;
    HD_ASSERT(a->n_rank >= 1);
    *out = (hd_place){.plan = a->plan};
    if (a->n_rank > 1 && a->plan)
        return HD_FAIL(INVALID,
                       "offload_plan: a model over several ranks leaves nothing to the host");
    room = has_memory ? a->dev->ops->free_bytes(a->dev->ctx) : hd_memory_free_bytes("");
    if (has_memory && a->device_gib > 0) room = smaller(room, (uint64_t)(a->device_gib * 0x1p30));
    for (size_t i = 0; i < hd_checkpoint_count(a->checkpoint); i++)
        weights += hd_checkpoint_at(a->checkpoint, i)->n_byte;
    if (has_memory && a->n_rank > 1)
        HD_TRY(hd_model_rank_bytes(a->checkpoint, a->n_rank, a->is_expert_parallel, &weights));
    uint64_t kept = room / 8 + a->kv_bytes, for_weights = room > kept ? room - kept : 0;
    if (!has_memory || a->n_rank > 1 || weights <= for_weights) {
        out->free_bytes = room > weights ? room - weights : 0;
        if (!has_memory) out->free_bytes /= (uint64_t)a->n_rank;
        return HD_OK;
    }
    out->device_weight_bytes = for_weights > 0 ? for_weights : 1;
    out->free_bytes = room - for_weights;
    return hd_dev_open("cpu", a->host, &out->host);
}

void hd_place_close(hd_place *p) { hd_dev_close(&p->host); }

void hd_place_apply(const hd_place *p, hd_model_options *o) {
    o->host = p->host.ops ? &p->host : NULL;
    o->device_weight_bytes = p->device_weight_bytes;
    o->offload_plan = p->plan;
}

void hd_place_log(const hd_place *p, const hd_model *m) {
    hd_offload_facts f = hd_model_offload(m);
    hd_dev_roofline roof = {0};
    if (f.n_layer == 0) return;
    if (p->host.ops->roofline && p->host.ops->roofline(p->host.ctx, &roof) != HD_OK)
        roof.read_bytes = 0;
    hd_log(HD_LOG_WARN, "feed-forwards run on the host: the device's memory does not hold them",
           "layers", "d", (int64_t)f.n_layer, "host_weight_bytes", "d", (int64_t)f.n_byte,
           "bytes_a_token_reads", "d", (int64_t)f.token_bytes, "host_read_bytes_per_s", "f",
           roof.read_bytes, "tokens_per_s_at_most", "f",
           f.token_bytes > 0 ? roof.read_bytes / (double)f.token_bytes : 0, NULL);
}
