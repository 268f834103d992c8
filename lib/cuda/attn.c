/* The ops of attention: which kernels they are made of.
 *
 * Where products round, and the cache is BF16 or has codes: rows of a prompt by flash attention
 * over expanded keys and values, others by attention that is split over positions. Else every row
 * alone, with float32's accuracy, in the absorbed form. */
#include "cuda/cuda.h"

enum {
    ROOM_BYTES = 256 << 20, /* of expanded keys and values */
    FIXED_SPLIT = 16,       /* parts of a row where they may not depend on other rows */
    TILE_MIN = 2
};
static const size_t part_floats_max = (size_t)32 << 20;

static size_t most(size_t a, size_t b) { return a > b ? a : b; }
static size_t least(size_t a, size_t b) { return a < b ? a : b; }

static void expansion_limits(hd_cuda *c, const hd_dev_limits *l) {
    int n_key = l->n_nope + l->n_rope, width = (n_key + 7) / 8 * 8 + (l->n_v + 7) / 8 * 8;
    size_t n_room = ROOM_BYTES / (2 * (size_t)l->n_head * (size_t)width);
    size_t n_pos = ((size_t)l->n_pos + HD_CUDA_KEY_ROWS - 1) / HD_CUDA_KEY_ROWS * HD_CUDA_KEY_ROWS;
    n_room = most(least(n_room, n_pos * (size_t)l->n_seq), HD_CUDA_KEY_ROWS);
    c->n_room = (int)(n_room / HD_CUDA_KEY_ROWS * HD_CUDA_KEY_ROWS);
    c->flash_rule = HD_CUDA_FLASH_BY_FORM;
}

void hd_cuda_attn_limits(hd_cuda *c, const hd_dev_limits *l) {
    size_t n_unit = ((size_t)l->n_pos + HD_CUDA_UNIT - 1) / HD_CUDA_UNIT, n_row = (size_t)l->n_row;
    int n_v = l->n_c > 0 ? l->n_c : l->n_v;
    size_t n_sub = (size_t)(l->n_c > 0 ? (l->n_head + 15) / 16 : l->n_head); /* at most */
    size_t n_part = most(8 * (size_t)c->prop.multiProcessorCount, FIXED_SPLIT * n_sub);
    c->part_floats = least(part_floats_max, n_row * n_unit * (size_t)l->n_head * (size_t)(n_v + 2));
    c->part_floats = most(c->part_floats, n_part * hd_cuda_part_floats(n_v));
    c->flash_rule = HD_CUDA_FLASH_NONE;
    c->n_room = 0;
    if (!c->has_context_fmha || c->compute == HD_COMPUTE_FLOAT32) return;
    bool is_latent = l->n_c > 0;
    if (!hd_cuda_can_flash(l->n_nope + l->n_rope, l->n_v)) return;
    if (is_latent && (l->n_c + l->n_rope) % 8 == 0) expansion_limits(c, l);
    if (!is_latent && l->n_v % 8 == 0 && !c->is_deterministic)
        c->flash_rule = HD_CUDA_FLASH_BY_LENGTH;
}

/* For every head h: y[r, h] = W_h x[r, h]; a head has x_width floats in x. */
static void run_heads(hd_cuda *c, const hd_weight *w, const float *x, size_t x_width, float *y,
                      int n_row) {
    const hd_cuda_mat *m = hd_cuda_mat_of(w);
    size_t n_head = (size_t)m->n_mat, y_width = (size_t)m->n_out;
    hd_cuda_multiply(c,
                     &(hd_cuda_mul){.w = *m,
                                    .x = x,
                                    .ldx = n_head * x_width,
                                    .x_mat = x_width,
                                    .y = y,
                                    .ldy = n_head * y_width,
                                    .y_mat = y_width,
                                    .n_row = n_row,
                                    .is_rounded = hd_cuda_rounds(c, m->format),
                                    .is_ordered = c->is_deterministic},
                     1, n_row);
}

/* Whether units of attention get a task each: few rows, long sequences, room for the parts. */
static float *part_of(const hd_cuda *c, const hd_cuda_attn *a) {
    size_t floats = (size_t)a->n_row * (size_t)a->n_unit * (size_t)a->n_head;
    floats *= (size_t)a->n_v + 2;
    bool is_wide = a->n_row * a->n_head_kv >= c->prop.multiProcessorCount;
    bool has_parts = c->has_multi_block && a->n_unit > 1 && !is_wide && floats <= c->part_floats;
    return has_parts ? c->part : NULL;
}

/* Rows of a, from row r0 on, at most n. */
static hd_cuda_attn rows_of(const hd_cuda_attn *a, int r0, int n) {
    hd_cuda_attn s = *a;
    size_t heads = (size_t)r0 * (size_t)a->n_head;
    s.q0 += heads * a->ldq0;
    if (s.q1) s.q1 += heads * a->ldq1;
    s.out += heads * (size_t)a->n_v;
    s.pos += r0, s.row_seq += r0;
    s.n_row = a->n_row - r0 < n ? a->n_row - r0 : n;
    return s;
}

/* Split over blocks: by what they have to do, or by the row alone. */
static void attend_split(hd_cuda *c, const hd_cuda_attn *a, const hd_cuda_split_row *row) {
    hd_cuda_split s = {
        .n_split = !c->has_multi_block   ? 1
                   : c->is_deterministic ? FIXED_SPLIT
                                         : 0,
        .n_block = hd_cuda_split_blocks(a) * c->prop.multiProcessorCount,
        .tile_min = TILE_MIN,
        .has_group_products = c->gemm.is_sm90,
    };
    int n_row = a->n_row, each = a->n_head / a->n_head_kv;
    if (s.n_split > 0) {
        size_t n_sub = (size_t)a->n_head_kv * (size_t)((each + 15) / 16);
        size_t floats = hd_cuda_part_floats(a->n_v) * n_sub * (size_t)s.n_split;
        n_row = (int)least((size_t)n_row, c->part_floats / floats);
    }
    for (int r0 = 0; r0 < a->n_row; r0 += n_row) {
        s.a = rows_of(a, r0, n_row);
        s.a.part = c->part;
        s.row = row + r0;
        hd_cuda_run_split(&s, c->stream);
    }
}

/* Rows of attention from batch row row0 on. */
static void attend(hd_cuda *c, const hd_cuda_attn *a, int row0, bool is_rounded) {
    if (is_rounded && hd_cuda_can_split(a)) {
        attend_split(c, a, c->split_row + row0);
        return;
    }
    hd_cuda_attn row = *a;
    row.part = part_of(c, a);
    hd_cuda_run_attn(&row, c->stream);
}

/* ---- multi-head latent attention ---- */

/* Rows row0 .. row0 + n of the batch, absorbed. */
static void attend_wave(hd_cuda *c, const struct hd_op_mla_attn *a, int row0, int n) {
    size_t h = (size_t)a->n_head, q_width = (size_t)a->n_nope + (size_t)a->n_rope;
    size_t n_c = (size_t)a->n_c, n_v = (size_t)a->n_v;
    const float *q = a->q + (size_t)row0 * h * q_width;
    run_heads(c, a->k_b, q, q_width, c->q_abs, n);
    hd_cuda_attn attn = {.q0 = c->q_abs,
                         .ldq0 = n_c,
                         .n_q0 = a->n_c,
                         .q1 = q + a->n_nope,
                         .ldq1 = q_width,
                         .keys = a->cache,
                         .values = a->cache,
                         .out = c->u,
                         .pos = a->batch->pos + row0,
                         .row_seq = a->batch->row_seq + row0,
                         .seq_page0 = a->batch->seq_page0,
                         .page = a->batch->page,
                         .page_tok = a->batch->page_tok,
                         .kv = a->kv,
                         .n_key = a->n_c + a->n_rope,
                         .n_v = a->n_c,
                         .n_head = a->n_head,
                         .n_head_kv = 1,
                         .n_row = n,
                         .n_unit = c->n_unit,
                         .scale = a->scale};
    attend(c, &attn, row0, hd_cuda_rounds(c, a->k_b->format));
    run_heads(c, a->v_b, c->u, n_c, a->out + (size_t)row0 * h * n_v, n);
}

static void attend_absorbed(hd_cuda *c, const struct hd_op_mla_attn *a, int row0, int n) {
    for (int end = row0 + n; row0 < end; row0 += c->n_wave)
        attend_wave(c, a, row0, end - row0 < c->n_wave ? end - row0 : c->n_wave);
}

static void expand_wave(hd_cuda *c, const struct hd_op_mla_attn *a, const hd_cuda_wave *w,
                        const hd_cuda_flash *f) {
    hd_cuda_run_expand(&(hd_cuda_expand){.task = c->expand_task + w->expand0,
                                         .n_task = w->n_expand,
                                         .cache = a->cache,
                                         .kv = a->kv,
                                         .seq_page0 = a->batch->seq_page0,
                                         .page = a->batch->page,
                                         .page_tok = a->batch->page_tok,
                                         .w = c->kv_b,
                                         .keys = c->keys,
                                         .values = c->values,
                                         .ld_head = (int)f->ld_head,
                                         .ld_value_head = (int)f->ld_value_head,
                                         .ldw = (a->n_c + 63) / 64 * 64,
                                         .n_head = a->n_head,
                                         .n_nope = a->n_nope,
                                         .n_rope = a->n_rope,
                                         .n_c = a->n_c,
                                         .n_v = a->n_v},
                       c->stream);
}

static void attend_expanded(hd_cuda *c, const struct hd_op_mla_attn *a) {
    size_t n_key = (size_t)a->n_nope + (size_t)a->n_rope, h = (size_t)a->n_head;
    hd_cuda_flash f = {.q = a->q,
                       .keys = c->keys,
                       .values = c->values,
                       .ld_head = (n_key + 7) / 8 * 8,
                       .ld_value_head = ((size_t)a->n_v + 7) / 8 * 8,
                       .n_head = a->n_head,
                       .n_head_kv = a->n_head,
                       .n_key = (int)n_key,
                       .n_v = a->n_v,
                       .scale = a->scale,
                       .has_group_products = c->gemm.is_sm90,
                       .state = c->flash_state,
                       .out = a->out};
    f.ld_key = h * f.ld_head;
    f.ld_value = h * f.ld_value_head;
    hd_cuda_run_unpack(&(hd_cuda_unpack){.k_b = *hd_cuda_mat_of(a->k_b),
                                         .v_b = *hd_cuda_mat_of(a->v_b),
                                         .w = c->kv_b,
                                         .ldw = (a->n_c + 63) / 64 * 64},
                       c->stream);
    for (int i = 0; i < c->plan.n_wave; i++) {
        const hd_cuda_wave *w = &c->plan.wave[i];
        expand_wave(c, a, w, &f);
        f.task = c->flash_task + w->flash0, f.n_task = w->n_flash;
        f.part = c->flash_part + w->part0, f.seq0 = w->seq0;
        hd_cuda_run_flash(&f, c->stream);
    }
}

void hd_cuda_now_mla_attn(void *ctx, const struct hd_op_mla_attn *args) {
    hd_cuda *c = ctx;
    int n_row = args->batch->n_row;
    HD_ASSERT(n_row <= c->limits.n_row && args->n_head <= c->limits.n_head);
    HD_ASSERT(args->n_c <= c->limits.n_c && args->batch == &c->batch);
    bool can_unpack = hd_cuda_can_unpack(&args->kv) && hd_cuda_rounds(c, args->k_b->format);
    if (!can_unpack || c->plan.n_flash == 0) {
        attend_absorbed(c, args, 0, n_row);
        return;
    }
    for (int i = 0; i < c->plan.n_run; i++)
        attend_absorbed(c, args, c->plan.run[i].row0, c->plan.run[i].n);
    attend_expanded(c, args);
}

/* ---- grouped-query attention ---- */

/* Rows row0 .. row0 + n of the batch. */
static void attend_grouped(hd_cuda *c, const struct hd_op_gqa_attn *a, int row0, int n,
                           bool is_rounded) {
    size_t at = (size_t)row0 * (size_t)a->n_head * (size_t)a->d_head;
    hd_cuda_attn attn = {.q0 = a->q + at,
                         .ldq0 = (size_t)a->d_head,
                         .n_q0 = a->d_head,
                         .keys = a->keys,
                         .values = a->values,
                         .out = a->out + at,
                         .pos = a->batch->pos + row0,
                         .row_seq = a->batch->row_seq + row0,
                         .seq_page0 = a->batch->seq_page0,
                         .page = a->batch->page,
                         .page_tok = a->batch->page_tok,
                         .kv = a->kv,
                         .n_key = a->d_head,
                         .n_v = a->d_head,
                         .n_head = a->n_head,
                         .n_head_kv = a->n_head_kv,
                         .n_row = n,
                         .n_unit = c->n_unit,
                         .scale = a->scale};
    attend(c, &attn, row0, is_rounded);
}

void hd_cuda_now_gqa_attn(void *ctx, const struct hd_op_gqa_attn *args) {
    hd_cuda *c = ctx;
    const struct hd_op_gqa_attn *a = args;
    HD_ASSERT(a->batch->n_row <= c->limits.n_row && a->batch == &c->batch);
    bool is_rounded = c->compute != HD_COMPUTE_FLOAT32;
    if (!is_rounded || !hd_cuda_can_unpack(&a->kv) || c->plan.n_flash == 0) {
        attend_grouped(c, a, 0, a->batch->n_row, is_rounded);
        return;
    }
    for (int i = 0; i < c->plan.n_run; i++)
        attend_grouped(c, a, c->plan.run[i].row0, c->plan.run[i].n, true);
    size_t width = (size_t)a->n_head_kv * (size_t)a->d_head;
    hd_cuda_run_flash(&(hd_cuda_flash){.task = c->flash_task,
                                       .n_task = c->plan.n_flash,
                                       .q = a->q,
                                       .keys = a->keys,
                                       .values = a->values,
                                       .ld_key = width,
                                       .ld_head = (size_t)a->d_head,
                                       .ld_value = width,
                                       .ld_value_head = (size_t)a->d_head,
                                       .seq_page0 = a->batch->seq_page0,
                                       .page = a->batch->page,
                                       .kv = a->kv,
                                       .page_tok = a->batch->page_tok,
                                       .n_head = a->n_head,
                                       .n_head_kv = a->n_head_kv,
                                       .n_key = a->d_head,
                                       .n_v = a->d_head,
                                       .scale = a->scale,
                                       .has_group_products = c->gemm.is_sm90,
                                       .out = a->out},
                      c->stream);
}
