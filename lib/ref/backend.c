/* The oracle backend: plain scalar C on one thread, which defines what every op means.
 *
 * Start with dev/op.h for the ops and ref/ref.h for the primitives. It is slow on purpose: where
 * speed and clarity differ, clarity is kept. All memory is taken in reserve(). */
#include "ref/ref.h"

#include "base/mem.h"
#include "dev/comm.h"

static hd_status open_ref(const hd_dev_config *config, void **ctx) {
    (void)config; /* one thread, one code path */
    *ctx = hd_alloc_zero(1, sizeof(struct hd_ref));
    return HD_OK;
}

/* Every scratch pointer of the struct, so that release and reserve cannot forget one. */
static void free_scratch(struct hd_ref *r) {
    void *all[] = {r->weight_row, r->normed, r->gate,  r->up,         r->block_out,   r->sum,
                   r->q_lora,     r->kv,     r->score, r->pick,       r->pick_weight, r->latent,
                   r->k,          r->v,      r->k_b_t, r->q_absorbed, r->u,           r->acc};
    for (size_t i = 0; i < HD_COUNT_OF(all); i++) hd_free(all[i]);
    *r = (struct hd_ref){.observer = r->observer, .kv_lost = r->kv_lost};
}

static void close_ref(void *ctx) {
    if (!ctx) return;
    free_scratch(ctx);
    hd_free(ctx);
}

static void describe(void *ctx, hd_buf *b) {
    (void)ctx;
    hd_buf_add_c(b, "reference: scalar C, 1 thread, sums in float64");
}

static bool supports(void *ctx, enum hd_op op, enum hd_format f) {
    (void)ctx;
    return op < HD_OP_COUNT && f < HD_FORMAT_COUNT; /* weights are decoded row by row */
}

static bool supports_kv(void *ctx, enum hd_kv_type t) {
    (void)ctx;
    return t < HD_KV_TYPE_COUNT;
}

static uint64_t kv_lost(void *ctx) { return ((const struct hd_ref *)ctx)->kv_lost; }

static hd_status alloc_ref(void *ctx, size_t n_byte, void **out) {
    (void)ctx;
    return hd_alloc_large(n_byte, out);
}

static void release_ref(void *ctx, void *p) {
    (void)ctx;
    hd_free(p);
}

static int max_int(int a, int b) { return a > b ? a : b; }

static hd_status floats(size_t n_row, int width, float **out) {
    void *p;
    HD_TRY(hd_alloc_large(n_row * (size_t)width * sizeof(float), &p));
    *out = p;
    return HD_OK;
}

static hd_status doubles(size_t n_row, int width, double **out) {
    void *p;
    HD_TRY(hd_alloc_large(n_row * (size_t)width * sizeof(double), &p));
    *out = p;
    return HD_OK;
}

static hd_status reserve_attention(struct hd_ref *r, const hd_dev_limits *l) {
    size_t n_pos = (size_t)l->n_pos;
    HD_TRY(floats(n_pos, l->n_c + l->n_rope, &r->latent));
    HD_TRY(floats(n_pos, l->n_nope, &r->k));
    HD_TRY(floats(n_pos, l->n_v, &r->v));
    HD_TRY(floats((size_t)l->n_nope, l->n_c, &r->k_b_t));
    HD_TRY(floats(1, l->n_c + l->n_rope, &r->q_absorbed));
    HD_TRY(floats(1, l->n_c, &r->u));
    return doubles(1, max_int(l->n_c, l->n_v), &r->acc);
}

static hd_status reserve_rows(struct hd_ref *r, const hd_dev_limits *l) {
    size_t n_row = (size_t)max_int(l->n_row, l->n_out);
    int wide_in = max_int(max_int(l->d_model, l->d_ff), max_int(l->d_expert, l->q_lora));
    wide_in = max_int(wide_in, max_int(l->n_head * l->n_v, max_int(l->n_c, l->n_nope)));
    HD_TRY(floats(1, wide_in, &r->weight_row));
    HD_TRY(floats(n_row, l->d_model, &r->normed));
    HD_TRY(floats(n_row, max_int(l->d_ff, l->d_expert), &r->gate));
    HD_TRY(floats(n_row, max_int(l->d_ff, l->d_expert), &r->up));
    HD_TRY(floats(n_row, l->d_model, &r->block_out));
    HD_TRY(doubles(n_row, l->d_model, &r->sum));
    HD_TRY(floats(n_row, l->q_lora, &r->q_lora));
    HD_TRY(floats(n_row, max_int(l->n_c + l->n_rope, l->n_kv), &r->kv));
    HD_TRY(floats(1, max_int(l->n_pos, l->n_expert), &r->score));
    HD_TRY(floats(n_row, 1, &r->pick_weight));
    void *pick;
    HD_TRY(hd_alloc_large(n_row * sizeof *r->pick, &pick));
    r->pick = pick;
    return HD_OK;
}

static hd_status reserve(void *ctx, const hd_dev_limits *limits) {
    struct hd_ref *r = ctx;
    if (limits->n_expert > HD_REF_EXPERT_MAX)
        return HD_FAIL(UNSUPPORTED, "backend ref: %d experts, at most %d", limits->n_expert,
                       HD_REF_EXPERT_MAX);
    free_scratch(r);
    HD_TRY(reserve_rows(r, limits));
    return reserve_attention(r, limits);
}

static void observe(void *ctx, const hd_dev_observer *o) {
    struct hd_ref *r = ctx;
    r->observer = o ? *o : (hd_dev_observer){0};
}

void hd_ref_op_all_reduce(void *ctx, const struct hd_op_all_reduce *a) {
    hd_comm_op_all_reduce(ctx, a);
}
void hd_ref_op_all_gather(void *ctx, const struct hd_op_all_gather *a) {
    hd_comm_op_all_gather(ctx, a);
}

const hd_dev_ops hd_dev_ref = {
    .name = "ref",
    .open = open_ref,
    .close = close_ref,
    .describe = describe,
    .supports = supports,
    .supports_kv = supports_kv,
    .kv_lost = kv_lost,
    .alloc = alloc_ref,
    .free = release_ref,
    .reserve = reserve,
    .observe = observe,
#define HD_OP(name, what) .name = hd_ref_op_##name,
#include "dev/op.def"
#undef HD_OP
};
