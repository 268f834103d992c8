/* Ops of a step whose rows are of both forms: under --deterministic, stretches of one form each.
 *
 * Rows of the absorbed form, as generated tokens are, have products that sum in the order of
 * kernels.h, whatever their number. Rows of the expanded form, those of longer prompts, have the
 * products of many rows, however few they are: which of the two a row is was chosen when its
 * sequence began, and does not depend on what else is computed. */
#include "cuda/cuda.h"

#include "base/mem.h"

static void add(hd_cuda_stretches *s, int row, bool is_expanded) {
    hd_cuda_stretch *last = s->n > 0 ? &s->of[s->n - 1] : NULL;
    if (last && last->is_expanded == is_expanded)
        last->n++;
    else
        s->of[s->n++] = (hd_cuda_stretch){.first = row, .n = 1, .is_expanded = is_expanded};
}

void hd_cuda_forms_make(hd_cuda *c, const hd_batch *b) {
    bool is_latent = c->limits.n_c > 0; /* other attention has no forms */
    c->rows.n = c->outs.n = 0;
    c->rows.n_row = b->n_row, c->outs.n_row = b->n_out;
    for (int r = 0; r < b->n_row; r++) add(&c->rows, r, is_latent && b->form[r] == HD_MLA_EXPANDED);
    for (int i = 0; i < b->n_out; i++)
        add(&c->outs, i, is_latent && b->form[b->out_row[i]] == HD_MLA_EXPANDED);
}

void hd_cuda_forms_reserve(hd_cuda *c, int n_row) {
    if (n_row <= c->rows.room) return;
    hd_cuda_forms_fini(c);
    c->rows.of = hd_alloc((size_t)n_row * sizeof *c->rows.of);
    c->outs.of = hd_alloc((size_t)n_row * sizeof *c->outs.of);
    c->rows.room = c->outs.room = n_row;
}

void hd_cuda_forms_fini(hd_cuda *c) {
    hd_free(c->rows.of);
    hd_free(c->outs.of);
    c->rows = c->outs = (hd_cuda_stretches){0};
}

/* The i-th stretch of n_row rows, whose form the products follow from now on; false: that was the
 * last one. Rows that are not the step's, and all where order is no matter, are one stretch. */
static bool take(hd_cuda *c, const hd_cuda_stretches *s, int n_row, int i, hd_cuda_stretch *out) {
    bool is_apart = c->is_deterministic && s->n_row == n_row;
    bool is_there = i < (is_apart ? s->n : 1);
    *out = is_there && is_apart ? s->of[i] : (hd_cuda_stretch){.n = n_row};
    c->is_expanded = out->is_expanded;
    c->gemm.is_ordered = c->is_deterministic && !c->is_expanded;
    return is_there;
}

void hd_cuda_now_mla_qkv(void *ctx, const struct hd_op_mla_qkv *args) {
    hd_cuda *c = ctx;
    size_t d = (size_t)args->d_model;
    size_t n_q = (size_t)args->n_head * (size_t)(args->n_nope + args->n_rope);
    hd_cuda_stretch s;
    for (int i = 0; take(c, &c->rows, args->batch->n_row, i, &s); i++) {
        hd_batch b = *args->batch; /* what the op reads of it */
        struct hd_op_mla_qkv a = *args;
        b.n_row = s.n, b.pos += s.first, b.kv_row += s.first;
        a.batch = &b;
        a.x += (size_t)s.first * d;
        a.q_out += (size_t)s.first * n_q;
        hd_cuda_rows_mla_qkv(c, &a);
    }
}

void hd_cuda_now_proj_add(void *ctx, const struct hd_op_proj_add *args) {
    hd_cuda *c = ctx;
    hd_cuda_stretch s;
    for (int i = 0; take(c, &c->rows, args->n_row, i, &s); i++) {
        struct hd_op_proj_add a = *args;
        a.n_row = s.n;
        a.a += (size_t)s.first * (size_t)a.w->n_in;
        a.x += (size_t)s.first * (size_t)a.w->n_out;
        hd_cuda_rows_proj_add(c, &a);
    }
}

void hd_cuda_now_ffn(void *ctx, const struct hd_op_ffn *args) {
    hd_cuda *c = ctx;
    hd_cuda_stretch s;
    for (int i = 0; take(c, &c->rows, args->n_row, i, &s); i++) {
        struct hd_op_ffn a = *args;
        a.n_row = s.n;
        a.x += (size_t)s.first * (size_t)a.d_model;
        hd_cuda_rows_ffn(c, &a);
    }
}

void hd_cuda_now_moe(void *ctx, const struct hd_op_moe *args) {
    hd_cuda *c = ctx;
    hd_cuda_stretch s;
    for (int i = 0; take(c, &c->rows, args->n_row, i, &s); i++) {
        struct hd_op_moe a = *args;
        size_t first = (size_t)s.first, d = (size_t)a.d_model, n_used = (size_t)a.n_used;
        a.n_row = s.n;
        a.normed += first * d, a.x += first * d;
        a.expert += first * n_used, a.weight += first * n_used;
        hd_cuda_rows_moe(c, &a);
    }
}

void hd_cuda_now_head(void *ctx, const struct hd_op_head *args) {
    hd_cuda *c = ctx;
    hd_cuda_stretch s;
    for (int i = 0; take(c, &c->outs, args->n_out, i, &s); i++) {
        struct hd_op_head a = *args;
        a.n_out = s.n;
        a.row += s.first;
        a.logits += (size_t)s.first * (size_t)a.w->n_out;
        hd_cuda_rows_head(c, &a);
    }
}
