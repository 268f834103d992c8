/* Memory of the cuda backend: every allocation, scratch, and weights. */
#include "cuda/cuda.h"

#include "base/mem.h"

#include <string.h>

/* ---- allocations: all of them are here, and counted; graphs count theirs, too ---- */

hd_status hd_cuda_alloc(hd_cuda *c, size_t n_byte, const char *what, void **out) {
    *out = NULL;
    cudaError_t e = cudaMalloc(out, n_byte ? n_byte : 1);
    c->n_alloc++;
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError(); /* this one is no broken device */
        return HD_FAIL(NO_MEMORY, "%s: %zu bytes: %s has no memory for it", what, n_byte,
                       c->prop.name);
    }
    return hd_cuda_told(e, what);
}

hd_status hd_cuda_alloc_host(hd_cuda *c, size_t n_byte, const char *what, void **out) {
    *out = NULL;
    c->n_alloc++;
    return hd_cuda_told(cudaMallocHost(out, n_byte ? n_byte : 1), what);
}

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

/* Inputs of products with FP8 weights, as hd_cuda_run_mul_codes has them: of one launch at most. */
static void lay_out_codes(cut *k, hd_cuda *c, const hd_dev_limits *l) {
    size_t n_row = least((size_t)l->n_row, HD_CUDA_FP8_ROWS), n_head = (size_t)l->n_head;
    size_t wide = most(most((size_t)l->d_model, (size_t)l->q_lora), (size_t)l->d_ff);
    wide = most(wide, n_head * (size_t)l->n_v);
    size_t expert = most((size_t)l->d_model, (size_t)l->d_expert);
    size_t n = wide + (size_t)l->n_used * expert;
    n = n_row * most(n, n_head * most((size_t)l->n_c, (size_t)l->n_nope));
    c->codes = (hd_cuda_codes){0};
    if (!c->gemm.is_sm90 || !hd_cuda_streams_fp8(c, HD_F8_B128)) return;
    c->codes.n_byte = 2 * n + n / 32 + 512;
    c->codes.at = take(k, c->codes.n_byte, 1);
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
    c->n_ended = take(k, n_row, sizeof *c->n_ended);
    lay_out_codes(k, c, l);
}

static hd_status check_limits(const hd_cuda *c, const hd_dev_limits *l) {
    if (l->n_expert > HD_CUDA_EXPERT_MAX)
        return HD_FAIL(UNSUPPORTED, "backend cuda: %d experts, at most %d", l->n_expert,
                       HD_CUDA_EXPERT_MAX);
    int n_value = l->n_c > 0 ? l->n_c : l->n_v, n_key = l->n_c > 0 ? l->n_c + l->n_rope : l->n_rope;
    if (n_value > HD_CUDA_VALUE_MAX)
        return HD_FAIL(UNSUPPORTED, "backend cuda: %d values of an attention head, at most %d",
                       n_value, HD_CUDA_VALUE_MAX);
    size_t shared = hd_cuda_attn_shared(HD_KV_BF16, n_key, n_value, l->n_c > 0);
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
    void *memory;
    HD_TRY(hd_cuda_alloc(c, count.at, "scratch", &memory));
    cut real = {.base = memory};
    c->scratch = memory;
    c->limits = *limits;
    lay_out(&real, c, limits);
    c->sorted = NULL;
    HD_TRY(hd_cuda_told(
        cudaMemsetAsync(c->n_ended, 0, (size_t)limits->n_row * sizeof *c->n_ended, c->stream),
        "cudaMemset"));
    c->scratch_bytes = count.at;
    hd_cuda_graphs_reserve(c);
    return hd_cuda_reserve_step(c);
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

/* Of a row on the device: hd_cuda_mat. */
static size_t row_bytes_of(enum hd_format f, int n_in) {
    enum { SCALES = HD_CUDA_FP8_BYTES - HD_CUDA_FP8_BLOCK };
    if (f == HD_F8_B128)
        return (size_t)n_in + SCALES * (((size_t)n_in + HD_CUDA_FP8_BLOCK - 1) / HD_CUDA_FP8_BLOCK);
    bool is_float = geometry[f].block_elems == 1;
    return is_float ? bytes_of(f, (n_in + 31) / 32 * 32) : (bytes_of(f, n_in) + 15) / 16 * 16;
}

static hd_status copy_weight(hd_cuda *c, const hd_weight *w, const hd_cuda_mat *m,
                             size_t from_bytes) {
    for (int i = 0; i < m->n_mat; i++) {
        hd_cuda_rows r = {.to = (unsigned char *)(uintptr_t)m->data + (size_t)i * m->mat_bytes,
                          .from = w->mat[i],
                          .to_bytes = m->row_bytes,
                          .from_bytes = from_bytes,
                          .n_row = (size_t)m->n_out,
                          .is_fp8 = m->format == HD_F8_B128};
        HD_TRY(hd_cuda_load(c, &r, w->name));
    }
    return HD_OK;
}

enum { DECODED_MAX = 1 << 30 }; /* bytes of a weight as BF16 that is decoded for prompts */

/* Room for a weight's two matrices (gate and up) as BF16, where products of many rows read them. */
static hd_status make_decoded(hd_cuda *c, const hd_cuda_mat *m) {
    size_t n = hd_cuda_decoded_bytes(m);
    if (!hd_cuda_rounds(c, m->format) || m->format == HD_BF16) return HD_OK;
    if (n > DECODED_MAX || 2 * n <= c->decoded_bytes) return HD_OK;
    HD_TRY(hd_cuda_told(cudaFree(c->decoded), "cudaFree"));
    c->decoded = NULL, c->decoded_bytes = 0;
    void *memory;
    HD_TRY(hd_cuda_alloc(c, 2 * n, "decoded weights", &memory));
    c->decoded = memory, c->decoded_bytes = 2 * n;
    return HD_OK;
}

hd_status hd_cuda_prepare(void *ctx, hd_weight *w) {
    hd_cuda *c = ctx;
    size_t from_bytes = bytes_of(w->format, w->n_in);
    hd_cuda_mat m = {.format = w->format, .n_in = w->n_in, .n_out = w->n_out, .n_mat = w->n_mat};
    m.row_bytes = row_bytes_of(w->format, w->n_in);
    m.mat_bytes = (m.row_bytes * (size_t)m.n_out + 255) / 256 * 256;
    void *memory;
    HD_TRY(hd_cuda_alloc(c, m.mat_bytes * (size_t)m.n_mat, w->name, &memory));
    m.data = memory;
    hd_status s = copy_weight(c, w, &m, from_bytes);
    if (s == HD_OK) s = make_decoded(c, &m);
    if (s != HD_OK) {
        (void)hd_cuda_settle(c); /* nobody writes there any more */
        (void)cudaFree(memory);
        return s;
    }
    hd_cuda_mat *kept = hd_alloc(sizeof *kept + HD_CUDA_MAP_BYTES);
    *kept = m;
    if ((m.format == HD_BF16 || m.format == HD_F8_B128) &&
        hd_cuda_make_map(kept, kept + 1) == cudaSuccess)
        kept->map = kept + 1;
    w->prepared = kept;
    c->has_fp8 |= hd_cuda_streams_fp8(c, m.format);
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
