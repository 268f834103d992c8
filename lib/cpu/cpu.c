/* The cpu backend: opening, its memory, and the ops that are a line or two over the shared
 * product. */
#include "cpu/cpu.h"

#include "base/mem.h"
#include "base/processor.h"
#include "dev/comm.h"

#include <string.h>

#define HD_TEXT_OF(x) #x
#define HD_TEXT(x) HD_TEXT_OF(x)

/* ---- Opening ---- */

static hd_status cpu_open(const hd_dev_config *config, void **ctx) {
    const hd_cpu_kernels *k = NULL;
    int n_thread = config != NULL ? config->n_thread : 0;
    HD_TRY(hd_cpu_choose_level(config != NULL ? config->isa : NULL, &k));
    if (n_thread < 0 || n_thread > 1024)
        return HD_FAIL(INVALID, "cpu threads: expected 0 to 1024, found %d", n_thread);
    if (n_thread == 0) n_thread = hd_cpu_available();
    hd_cpu *c = hd_alloc_zero(1, sizeof *c);
    c->k = k;
    c->n_thread = n_thread;
    c->reads_halves = k != &hd_cpu_scalar && hd_cpu_likes_halves();
    c->is_wide = config != NULL && config->compute == HD_COMPUTE_FLOAT32;
    hd_cpu_store_open(c);
    hd_status s = hd_cpu_shares_open(c);
    if (s == HD_OK) s = hd_pool_open(n_thread, &c->pool);
    if (s != HD_OK) {
        hd_cpu_store_close(c);
        hd_free(c->share);
        hd_free(c);
        return s;
    }
    *ctx = c;
    return HD_OK;
}

static void cpu_close(void *ctx) {
    hd_cpu *c = ctx;
    if (c == NULL) return;
    hd_pool_close(c->pool);
    hd_cpu_free_desks(c);
    hd_cpu_store_close(c);
    hd_free(c->share);
    hd_free(c->arena);
    hd_free(c);
}

static void cpu_describe(void *ctx, hd_buf *b) {
    const hd_cpu *c = ctx;
    hd_buf_addf(b, "%d thread%s, %s", c->n_thread, c->n_thread == 1 ? "" : "s", c->k->title);
}

static bool cpu_supports(void *ctx, enum hd_op op, enum hd_format f) {
    (void)ctx;
    (void)op;
    (void)f;
    return true; /* decode.c reads whatever has a reference decoding */
}

static bool cpu_supports_kv(void *ctx, enum hd_kv_type t) {
    (void)ctx;
    return t < HD_KV_TYPE_COUNT;
}

static uint64_t cpu_kv_lost(void *ctx) {
    const hd_cpu *c = ctx;
    return atomic_load_explicit(&c->kv_lost, memory_order_relaxed);
}

static const char *cpu_kernel(void *ctx, enum hd_op op, enum hd_format f) {
    const hd_cpu *c = ctx;
    bool is_in_floats = op == HD_OP_embed || op == HD_OP_route;
    if (hd_cpu_is_packed(f) && !is_in_floats) return c->k->integers;
    return hd_cpu_is_float(f) ? c->k->floats : c->k->decoded;
}

static hd_status cpu_alloc(void *ctx, size_t n_byte, void **out) {
    (void)ctx;
    return hd_alloc_large(n_byte, out);
}

static void cpu_free(void *ctx, void *p) {
    (void)ctx;
    hd_free(p);
}

static void cpu_observe(void *ctx, const hd_dev_observer *o) {
    hd_cpu *c = ctx;
    c->observer = o != NULL ? *o : (hd_dev_observer){0};
}

/* ---- Ops ---- */

typedef struct embed_job {
    const hd_cpu *c;
    const struct hd_op_embed *a;
} embed_job;

static void embed_row(void *ctx, int row, int thread) {
    (void)thread;
    const embed_job *j = ctx;
    const hd_weight *w = j->a->table;
    size_t bytes = hd_format_bytes(w->format, (size_t)w->n_in);
    if (j->a->token[row] < 0) {
        int32_t last = j->a->last[hd_slot_of_token(j->a->token[row])];
        j->a->token[row] = last < 0 ? 0 : last;
    }
    HD_DASSERT(j->a->token[row] < w->n_out);
    hd_cpu_decode(j->c, w->format, (const char *)w->mat[0] + (size_t)j->a->token[row] * bytes,
                  j->a->x + (size_t)row * (size_t)w->n_in, w->n_in);
}

static void cpu_embed(void *ctx, const struct hd_op_embed *args) {
    hd_cpu *c = ctx;
    embed_job j = {.c = c, .a = args};
    hd_cpu_rows(c, args->n_row, args->table->n_in, embed_row, &j);
}

static void cpu_proj_add(void *ctx, const struct hd_op_proj_add *args) {
    hd_cpu *c = ctx;
    size_t n_in = (size_t)args->w->n_in;
    hd_cpu_mul m = {.w = args->w,
                    .n_row = args->n_row,
                    .x = args->a,
                    .ldx = n_in,
                    .y = args->x,
                    .ldy = (size_t)args->w->n_out,
                    .into = args->is_partial ? HD_CPU_STORE : HD_CPU_ADD};
    m.xq = hd_cpu_quantise(c, &(hd_cpu_quantising){.input = hd_cpu_input_of(c, args->w),
                                                   .x = args->a,
                                                   .ldx = n_in,
                                                   .n_row = args->n_row,
                                                   .n_k = args->w->n_in});
    hd_cpu_mul_run(c, &m, 1);
}

static void cpu_ffn(void *ctx, const struct hd_op_ffn *args) {
    hd_cpu *c = ctx;
    size_t d = (size_t)args->d_model, f = (size_t)args->gate->n_out;
    HD_ASSERT(args->n_row <= c->limits.n_row);
    enum hd_cpu_input input = hd_cpu_input_of_both(c, args->gate, args->up);
    hd_cpu_mul in = {.w = args->gate,
                     .up = args->up,
                     .n_row = args->n_row,
                     .x = c->normed,
                     .ldx = d,
                     .y = c->a,
                     .ldy = f};
    in.xq = hd_cpu_norm(c, &(hd_cpu_norm_rows){.x = args->x,
                                               .ldx = d,
                                               .w = args->norm,
                                               .eps = args->eps,
                                               .n_row = args->n_row,
                                               .n = args->d_model,
                                               .out = c->normed,
                                               .input = input});
    hd_cpu_mul_run(c, &in, 1);
    hd_cpu_mul out = {.w = args->down,
                      .n_row = args->n_row,
                      .x = c->a,
                      .ldx = f,
                      .y = args->x,
                      .ldy = d,
                      .into = args->is_partial ? HD_CPU_STORE : HD_CPU_ADD};
    out.xq =
        hd_cpu_quantise(c, &(hd_cpu_quantising){.input = hd_cpu_input_of_down(c, args->down, input),
                                                .slot = 1,
                                                .x = c->a,
                                                .ldx = f,
                                                .n_row = args->n_row,
                                                .n_k = (int)f});
    hd_cpu_mul_run(c, &out, 1);
}

static void cpu_head(void *ctx, const struct hd_op_head *args) {
    hd_cpu *c = ctx;
    size_t d = (size_t)args->d_model, n_vocab = (size_t)args->w->n_out;
    for (int i = 0; i < args->n_out; i += c->limits.n_row) {
        int n = args->n_out - i < c->limits.n_row ? args->n_out - i : c->limits.n_row;
        hd_cpu_mul m = {.w = args->w,
                        .n_row = n,
                        .x = c->normed,
                        .ldx = d,
                        .y = args->logits + (size_t)i * n_vocab,
                        .ldy = n_vocab};
        m.xq = hd_cpu_norm(c, &(hd_cpu_norm_rows){.x = args->x,
                                                  .ix = args->row + i,
                                                  .ldx = d,
                                                  .w = args->norm,
                                                  .eps = args->eps,
                                                  .n_row = n,
                                                  .n = args->d_model,
                                                  .out = c->normed,
                                                  .input = hd_cpu_input_of(c, args->w)});
        hd_cpu_mul_run(c, &m, 1);
    }
}

typedef struct sample_job {
    const hd_cpu *c;
    const struct hd_op_sample *a;
} sample_job;

static void sample_row(void *ctx, int row, int thread) {
    const sample_job *j = ctx;
    const struct hd_op_sample *a = j->a;
    const hd_batch *b = a->batch;
    a->token[row] = -1;
    if (b->draw[row].is_host) return;
    a->token[row] = hd_draw_row(j->c->desk[thread], a->logits + (size_t)row * (size_t)a->n_vocab,
                                a->is_token, &b->draw[row]);
    a->last[b->seq_slot[b->row_seq[b->out_row[row]]]] = a->token[row];
}

static void cpu_sample(void *ctx, const struct hd_op_sample *args) {
    hd_cpu *c = ctx;
    HD_ASSERT(args->n_vocab == c->limits.n_vocab);
    sample_job j = {.c = c, .a = args};
    hd_cpu_rows(c, args->n_out, args->n_vocab, sample_row, &j);
}

static uint64_t cpu_scratch_bytes(void *ctx) {
    const hd_cpu *c = ctx;
    return c->arena_bytes;
}

const hd_dev_ops hd_dev_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .supports = cpu_supports,
    .supports_kv = cpu_supports_kv,
    .kv_lost = cpu_kv_lost,
    .kernel = cpu_kernel,
    .roofline = hd_cpu_roofline,
    .observe = cpu_observe,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .reserve = hd_cpu_reserve,
    .scratch_bytes = cpu_scratch_bytes,
    .prepare = hd_cpu_prepare,
    .settle = hd_cpu_settle,
    .release = hd_cpu_release,
    .image_bytes = hd_cpu_image_bytes,
    .image_layout = "cpu" HD_TEXT(HD_CPU_PACK_VERSION),
    .embed = cpu_embed,
    .mla_qkv = hd_cpu_mla_qkv,
    .mla_attn = hd_cpu_mla_attn,
    .gqa_qkv = hd_cpu_gqa_qkv,
    .gqa_attn = hd_cpu_gqa_attn,
    .proj_add = cpu_proj_add,
    .ffn = cpu_ffn,
    .route = hd_cpu_route,
    .moe = hd_cpu_moe,
    .head = cpu_head,
    .sample = cpu_sample,
    .all_reduce = hd_comm_op_all_reduce,
    .all_gather = hd_comm_op_all_gather,
};
