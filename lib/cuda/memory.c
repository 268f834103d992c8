/* Memory of the cuda backend: scratch, weights, and the batch on its way to the device. */
#include "cuda/cuda.h"

#include "base/mem.h"

#include <string.h>

/* ---- scratch: laid out once to learn its size, then again to hand out the pieces ---- */

typedef struct cut {
    char *base;
    size_t at;
} cut;

static void *take(cut *k, size_t n, size_t n_byte) {
    void *p = k->base ? k->base + k->at : NULL;
    k->at += (n * n_byte + 255) / 256 * 256;
    return p;
}

static float *floats(cut *k, size_t n) { return take(k, n, sizeof(float)); }

static size_t most(size_t a, size_t b) { return a > b ? a : b; }
static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* Keys and values that are expanded from latents. */
static void lay_out_expanded(cut *k, hd_cuda *c, const hd_dev_limits *l) {
    size_t n_head = (size_t)l->n_head, n_room = (size_t)c->n_room;
    size_t ldw = ((size_t)l->n_c + 63) / 64 * 64, n_v = (size_t)l->n_v;
    size_t n_key = (size_t)l->n_nope + (size_t)l->n_rope;
    if (n_room == 0) return;
    c->kv_b = take(k, n_head * ((size_t)l->n_nope + n_v) * ldw, 2);
    c->keys = take(k, n_room * n_head * ((n_key + 7) / 8 * 8), 2);
    c->values = take(k, n_room * n_head * ((n_v + 7) / 8 * 8), 2);
    size_t n_state = l->n_pos > c->n_room ? (size_t)l->n_row * n_head * (HD_CUDA_STATE + n_v) : 0;
    c->flash_state = floats(k, n_state);
}

static void lay_out(cut *k, hd_cuda *c, const hd_dev_limits *l) {
    const size_t wave_floats = (size_t)64 << 20;
    size_t n_row = (size_t)l->n_row, d = (size_t)l->d_model, n_head = (size_t)l->n_head;
    size_t n_pick = n_row * (size_t)l->n_used, n_c = (size_t)l->n_c;
    size_t n_expert = (size_t)l->n_expert;
    size_t q_lora = (size_t)l->q_lora, heads = n_head * (size_t)l->n_v;
    c->normed = floats(k, most(n_row, (size_t)l->n_out) * most(d, q_lora));
    c->a_floats = n_row * most(most(q_lora, heads), (size_t)l->d_ff);
    c->a = floats(k, c->a_floats);
    c->kv = floats(k, n_row * most(n_c + (size_t)l->n_rope, 2 * (size_t)l->n_kv));
    c->score = floats(k, n_row * n_expert);
    c->hidden = floats(k, n_pick * (size_t)l->d_expert);
    c->picked = floats(k, n_pick * d);
    c->shared = floats(k, n_row * d);
    c->n_wave = (int)(n_c ? least(n_row, most(wave_floats / (n_head * n_c), 1)) : 0);
    c->q_abs = floats(k, (size_t)c->n_wave * n_head * n_c);
    c->u = floats(k, (size_t)c->n_wave * n_head * n_c);
    hd_cuda_attn_limits(c, l);
    c->part = floats(k, c->part_floats);
    lay_out_expanded(k, c, l);
    c->row_of = take(k, n_pick, sizeof *c->row_of);
    c->slot_of = take(k, n_pick, sizeof *c->slot_of);
    c->tile = take(k, n_pick / HD_CUDA_FEW_ROWS + n_expert + 1, sizeof *c->tile);
    c->n_tile = take(k, 1, sizeof *c->n_tile);
    c->count = take(k, (n_row / HD_CUDA_SORT_ROWS + 1) * n_expert, sizeof *c->count);
}

static hd_status check_limits(const hd_cuda *c, const hd_dev_limits *l) {
    if (l->n_expert > HD_CUDA_EXPERT_MAX)
        return HD_FAIL(UNSUPPORTED, "backend cuda: %d experts, at most %d", l->n_expert,
                       HD_CUDA_EXPERT_MAX);
    int n_value = l->n_c > 0 ? l->n_c : l->n_v, n_key = l->n_c > 0 ? l->n_c + l->n_rope : l->n_rope;
    if (n_value > HD_CUDA_VALUE_MAX)
        return HD_FAIL(UNSUPPORTED, "backend cuda: %d values of an attention head, at most %d",
                       n_value, HD_CUDA_VALUE_MAX);
    size_t shared = hd_cuda_attn_shared(HD_BF16, n_key, n_value, l->n_c > 0);
    if (shared > c->prop.sharedMemPerBlockOptin)
        return HD_FAIL(UNSUPPORTED,
                       "backend cuda: attention over keys of %d values takes %zu bytes of shared "
                       "memory, the device has %zu",
                       n_key, shared, c->prop.sharedMemPerBlockOptin);
    return HD_OK;
}

hd_status hd_cuda_reserve(void *ctx, const hd_dev_limits *limits) {
    hd_cuda *c = ctx;
    HD_TRY(check_limits(c, limits));
    HD_TRY(hd_cuda_flush(c));
    hd_cuda_graphs_drop(c->graphs);
    cut count = {0};
    lay_out(&count, c, limits);
    HD_TRY(hd_cuda_told(cudaFree(c->scratch), "cudaFree"));
    c->scratch = NULL;
    void *memory = NULL;
    cudaError_t e = cudaMalloc(&memory, count.at);
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError(); /* this one is no broken device */
        return HD_FAIL(NO_MEMORY, "backend cuda: %zu bytes of scratch memory: the device has none",
                       count.at);
    }
    HD_TRY(hd_cuda_told(e, "cudaMalloc"));
    for (int i = 0; i < HD_DEV_STEPS; i++) {
        (void)cudaFreeHost(c->result[i].host);
        c->result[i].host = NULL;
        HD_TRY(hd_cuda_told(
            cudaMallocHost((void **)&c->result[i].host, (size_t)limits->n_out * sizeof(int32_t)),
            "results"));
    }
    cut real = {.base = memory};
    c->scratch = memory;
    c->limits = *limits;
    lay_out(&real, c, limits);
    return HD_OK;
}

/* ---- weights ---- */

static const struct {
    int block_elems, block_bytes;
} geometry[HD_FORMAT_COUNT] = {
#define HD_FORMAT(id, name, gguf_id, block_elems, block_bytes, ...)                                \
    [HD_##id] = {block_elems, block_bytes},
#include "quant/formats.def"
#undef HD_FORMAT
};

/* Bytes of n elements, whole blocks. */
static size_t bytes_of(enum hd_format f, int n) {
    return (size_t)(n / geometry[f].block_elems) * (size_t)geometry[f].block_bytes;
}

/* Behind what the stream was given; a mapping is read before it returns. */
static hd_status copy_weight(const hd_cuda *c, const hd_weight *w, const hd_cuda_mat *m,
                             size_t from_bytes) {
    size_t n_out = (size_t)m->n_out;
    for (int i = 0; i < m->n_mat; i++) {
        unsigned char *to = (unsigned char *)(uintptr_t)m->data + (size_t)i * m->mat_bytes;
        cudaError_t e;
        if (from_bytes == m->row_bytes)
            e = cudaMemcpyAsync(to, w->mat[i], n_out * from_bytes, cudaMemcpyHostToDevice,
                                c->stream);
        else
            e = cudaMemcpy2DAsync(to, m->row_bytes, w->mat[i], from_bytes, from_bytes, n_out,
                                  cudaMemcpyHostToDevice, c->stream);
        if (e != cudaSuccess) return hd_cuda_told(e, w->name);
    }
    return HD_OK;
}

/* Behind the matrices: how the copy engine finds its way in them. */
static hd_status add_map(const hd_cuda *c, hd_cuda_mat *m) {
    unsigned char map[HD_CUDA_MAP_BYTES];
    if (!c->gemm.is_sm90 || m->format != HD_BF16) return HD_OK;
    m->map = m->data + m->mat_bytes * (size_t)m->n_mat;
    HD_TRY(hd_cuda_told(hd_cuda_make_map(m, map), "a tensor map"));
    return hd_cuda_told(cudaMemcpyAsync((void *)(uintptr_t)m->map, map, sizeof map,
                                        cudaMemcpyHostToDevice, c->stream),
                        "a tensor map");
}

hd_status hd_cuda_prepare(void *ctx, hd_weight *w) {
    hd_cuda *c = ctx;
    int n_in = (w->n_in + 31) / 32 * 32;
    bool is_float = geometry[w->format].block_elems == 1;
    size_t from_bytes = bytes_of(w->format, w->n_in);
    hd_cuda_mat m = {.format = w->format, .n_in = w->n_in, .n_out = w->n_out, .n_mat = w->n_mat};
    m.row_bytes = is_float ? bytes_of(w->format, n_in) : from_bytes;
    m.mat_bytes = (m.row_bytes * (size_t)m.n_out + 255) / 256 * 256;
    void *memory = NULL;
    cudaError_t e = cudaMalloc(&memory, m.mat_bytes * (size_t)m.n_mat + HD_CUDA_MAP_BYTES);
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return HD_FAIL(NO_MEMORY, "%s: %zu bytes: the device has no memory for it", w->name,
                       m.mat_bytes * (size_t)m.n_mat);
    }
    HD_TRY(hd_cuda_told(e, "cudaMalloc"));
    m.data = memory;
    hd_status s = HD_OK;
    if (m.row_bytes != from_bytes)
        s = hd_cuda_told(cudaMemsetAsync(memory, 0, m.mat_bytes * (size_t)m.n_mat, c->stream),
                         "cudaMemset");
    if (s == HD_OK) s = copy_weight(c, w, &m, from_bytes);
    if (s == HD_OK) s = add_map(c, &m);
    if (s != HD_OK) {
        (void)cudaFree(memory);
        return s;
    }
    hd_cuda_mat *kept = hd_alloc(sizeof *kept);
    *kept = m;
    w->prepared = kept;
    return HD_OK;
}

void hd_cuda_release(void *ctx, hd_weight *w) {
    (void)ctx;
    hd_cuda_mat *m = w->prepared;
    if (!m) return;
    (void)cudaFree((void *)(uintptr_t)m->data);
    hd_free(m);
    w->prepared = NULL;
}

/* ---- the batch ---- */

static size_t batch_bytes(size_t n_row, size_t n_seq, size_t n_page) {
    return 64 * 11 + 4 * (6 * n_row + 3 * (n_seq + 1) + n_page) + n_row * (1 + sizeof(hd_draw));
}

static size_t plan_bytes(const hd_cuda_plan *p) {
    return 64 * 4 + ((size_t)p->n_row_max + 1) * sizeof *p->row +
           (size_t)p->n_expand_max * sizeof *p->expand + (size_t)p->n_row_max * sizeof *p->flash +
           (size_t)p->n_part_max * sizeof *p->part;
}

void hd_cuda_free_batch(hd_cuda *c) {
    for (int i = 0; i < HD_CUDA_STAGES; i++) {
        (void)cudaFreeHost(c->stage[i].host);
        c->stage[i].host = NULL;
    }
    (void)cudaFree(c->batch_memory);
    c->batch_memory = NULL;
    c->batch_room = 0;
}

static hd_status make_room(hd_cuda *c, size_t n_byte) {
    if (c->batch_room >= n_byte) return HD_OK;
    HD_TRY(hd_cuda_told(cudaDeviceSynchronize(), "before a larger batch"));
    hd_cuda_graphs_drop(c->graphs);
    hd_cuda_free_batch(c);
    for (int i = 0; i < HD_CUDA_STAGES; i++)
        HD_TRY(hd_cuda_told(cudaMallocHost((void **)&c->stage[i].host, n_byte), "batches"));
    HD_TRY(hd_cuda_told(cudaMalloc((void **)&c->batch_memory, n_byte), "batches"));
    c->batch_room = n_byte;
    return HD_OK;
}

typedef struct upload {
    char *host, *device;
    size_t at;
} upload;

/* Copies an array behind what is there; returns where it will be on the device. */
static void *put_array(upload *u, const void *from, size_t n_byte) {
    void *to = u->device + u->at;
    memcpy(u->host + u->at, from, n_byte);
    u->at += (n_byte + 63) / 64 * 64;
    return to;
}

/* The pages come last: where the other arrays are is a matter of the step's shape. */
static void put_batch(upload *u, const hd_batch *b, hd_batch *out) {
    size_t n_row = (size_t)b->n_row, n_seq = (size_t)b->n_seq;
    *out = *b;
    out->token = put_array(u, b->token, n_row * sizeof *b->token);
    out->pos = put_array(u, b->pos, n_row * sizeof *b->pos);
    out->row_seq = put_array(u, b->row_seq, n_row * sizeof *b->row_seq);
    out->kv_row = put_array(u, b->kv_row, n_row * sizeof *b->kv_row);
    out->form = put_array(u, b->form, n_row * sizeof *b->form);
    out->seq_slot = put_array(u, b->seq_slot, n_seq * sizeof *b->seq_slot);
    out->seq_row0 = put_array(u, b->seq_row0, (n_seq + 1) * sizeof *b->seq_row0);
    out->seq_page0 = put_array(u, b->seq_page0, (n_seq + 1) * sizeof *b->seq_page0);
    out->out_row = put_array(u, b->out_row, (size_t)b->n_out * sizeof *b->out_row);
    out->draw = put_array(u, b->draw, (size_t)b->n_out * sizeof *b->draw);
    out->page = put_array(u, b->page, (size_t)b->n_page * sizeof *b->page);
}

/* Tasks of a prompt's attention: no step that has some is a graph. */
static void put_plan(upload *u, hd_cuda *c) {
    const hd_cuda_plan *p = &c->plan;
    c->expand_task = put_array(u, p->expand, (size_t)p->n_expand * sizeof *p->expand);
    c->flash_task = put_array(u, p->flash, (size_t)p->n_flash * sizeof *p->flash);
    c->flash_part = put_array(u, p->part, (size_t)p->n_part * sizeof *p->part);
}

static hd_status make_room_of(hd_cuda *c, const hd_batch *b) {
    if (!hd_cuda_plan_fits(&c->plan, b, c->flash_rule, c->n_room)) {
        hd_cuda_plan_fini(&c->plan);
        hd_cuda_plan_init(&c->plan, b, c->flash_rule, c->n_room);
    }
    size_t n_row = (size_t)b->n_row_max, n_seq = (size_t)b->n_seq_max;
    return make_room(c, batch_bytes(n_row, n_seq, (size_t)b->n_page_max) + plan_bytes(&c->plan));
}

hd_status hd_cuda_upload(void *ctx, const hd_batch *b, const hd_batch **out) {
    hd_cuda *c = ctx;
    HD_TRY(hd_cuda_flush(c));
    HD_TRY(make_room_of(c, b));
    hd_cuda_stage *s = &c->stage[c->stage_ix];
    c->stage_ix = (c->stage_ix + 1) % HD_CUDA_STAGES;
    HD_TRY(hd_cuda_told(cudaEventSynchronize(s->copied), "an earlier step"));
    upload u = {.host = s->host, .device = c->batch_memory};
    hd_cuda_plan_make(&c->plan, b);
    c->split_row = put_array(&u, c->plan.row, ((size_t)b->n_row + 1) * sizeof *c->split_row);
    put_batch(&u, b, &c->batch);
    put_plan(&u, c);
    HD_ASSERT(u.at <= c->batch_room);
    HD_TRY(hd_cuda_told(cudaMemcpyAsync(u.device, u.host, u.at, cudaMemcpyHostToDevice, c->stream),
                        "a step"));
    HD_TRY(hd_cuda_told(cudaEventRecord(s->copied, c->stream), "a step"));
    int top = 0;
    for (int i = 0; i < b->n_seq; i++) {
        int last = b->pos[b->seq_row0[i + 1] - 1];
        top = last > top ? last : top;
    }
    c->n_unit = top / HD_CUDA_UNIT + 1;
    hd_cuda_graphs_begin(c);
    *out = &c->batch;
    return HD_OK;
}

/* ---- results ---- */

hd_status hd_cuda_send(void *ctx, int ix, const void *from, size_t n_byte) {
    hd_cuda *c = ctx;
    hd_cuda_result *r = &c->result[ix];
    HD_ASSERT(n_byte <= (size_t)c->limits.n_out * sizeof(int32_t));
    HD_TRY(hd_cuda_flush(c));
    HD_TRY(hd_cuda_told(cudaGetLastError(), "a kernel"));
    HD_TRY(hd_cuda_told(cudaMemcpyAsync(r->host, from, n_byte, cudaMemcpyDeviceToHost, c->stream),
                        "tokens"));
    return hd_cuda_told(cudaEventRecord(r->arrived, c->stream), "tokens");
}

hd_status hd_cuda_receive(void *ctx, int ix, void *to, size_t n_byte) {
    hd_cuda *c = ctx;
    HD_TRY(hd_cuda_told(cudaEventSynchronize(c->result[ix].arrived), "a step"));
    memcpy(to, c->result[ix].host, n_byte);
    return HD_OK;
}
