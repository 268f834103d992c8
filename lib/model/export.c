/* GGUF from canonical tensors: which format each gets, conversion row by row, and the keys. */
#include "model/export.h"

#include "base/mem.h"
#include "model/arch.h"
#include "model/hparams_source.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static bool fits(enum hd_format f, int64_t n_in) {
    return n_in % hd_format_get(f)->block_elems == 0;
}

/* What takes the place of a format whose blocks do not fit: about as many bits, blocks of 32. The
 * choices are llama.cpp's. */
static enum hd_format substitute(enum hd_format f) {
    switch (f) {
    case HD_IQ2_XXS:
    case HD_IQ4_XS: return HD_IQ4_NL;
    case HD_Q2_K:
    case HD_Q3_K: return HD_Q4_0;
    case HD_Q4_K: return HD_Q5_0;
    case HD_Q5_K: return HD_Q5_1;
    case HD_Q6_K: return HD_Q8_0;
    default: return HD_F16;
    }
}

bool hd_export_is_fixed(const hd_canon_tensor *t) {
    return t->n_dim == 1 || hd_str_ends_c(hd_str_of(t->name), "ffn_gate_inp.weight");
}

enum hd_format hd_export_format(const hd_canon_tensor *t, int wanted, char why[128]) {
    why[0] = 0;
    if (hd_export_is_fixed(t)) return HD_F32;
    /* The transposed key part of a quantised kv_b arrives decoded: quantise it again. */
    enum hd_format first = wanted == HD_EXPORT_AUTO ? t->src[0]->format : (enum hd_format)wanted;
    if (!hd_format_is_gguf(first))
        first = HD_BF16; /* FP8: four bits of each weight, and of its scale */
    enum hd_format to = first;
    while (!fits(to, t->ne[0])) to = substitute(to);
    if (to != first)
        snprintf(why, 128, "rows of %lld are no multiple of %d, as %s needs", (long long)t->ne[0],
                 hd_format_get(first)->block_elems, hd_format_get(first)->name);
    return to;
}

uint32_t hd_export_file_type(enum hd_format f) {
    /* llama.cpp's enum llama_ftype; of the mixtures the medium one. */
    static const struct {
        enum hd_format format;
        uint32_t file_type;
    } known[] = {{HD_F32, 0},   {HD_F16, 1},   {HD_Q4_0, 2},     {HD_Q4_1, 3},    {HD_Q8_0, 7},
                 {HD_Q5_0, 8},  {HD_Q5_1, 9},  {HD_Q2_K, 10},    {HD_Q3_K, 12},   {HD_Q4_K, 15},
                 {HD_Q5_K, 17}, {HD_Q6_K, 18}, {HD_IQ2_XXS, 19}, {HD_IQ4_NL, 25}, {HD_IQ4_XS, 30},
                 {HD_BF16, 32}, {HD_MXFP4, 38}};
    for (size_t i = 0; i < HD_COUNT_OF(known); i++)
        if (known[i].format == f) return known[i].file_type;
    return 1024; /* "guessed": each tensor says its own */
}

/* ---- keys ---- */

struct keys {
    hd_gguf_writer *w;
    const char *arch;
    char key[128];
};

static const char *key_of(struct keys *k, const char *suffix) {
    snprintf(k->key, sizeof k->key, "%s.%s", k->arch, suffix);
    return k->key;
}

static void put_int(struct keys *k, const char *suffix, int v) {
    hd_gguf_set_u32(k->w, key_of(k, suffix), (uint32_t)v);
}

static void put_num(struct keys *k, const char *suffix, float v) {
    hd_gguf_set_f32(k->w, key_of(k, suffix), v);
}

/* The mscale pair for llama.cpp, which has two numbers: with A = attn_factor, L =
 * yarn_log_multiplier / 0.1 and g(m) = 1 + 0.1 m ln factor it multiplies cos and sin by A and
 * scores by (A g(L))^2, or by A g(1) and (A g(1))^2 when L is 0 or there is no latent (and then
 * scores by nothing). An equal pair m needs L = m alone; whatever else is wanted has one solution.
 */
static void put_mscale(struct keys *k, const hd_hparams *hp) {
    double factor = (double)hp->yarn_factor, log_multiplier = 0.1 * (double)hp->yarn_mscale_all;
    double g_all = hd_rope_mscale(factor, (double)hp->yarn_mscale_all);
    double wanted = hd_rope_mscale(factor, (double)hp->yarn_mscale) / g_all; /* of cos and sin */
    double unit = hd_rope_mscale(factor, 1);
    bool is_equal = hp->yarn_mscale == hp->yarn_mscale_all || !(factor > 1);
    if (!hd_hparams_is_mla(hp))
        log_multiplier = 0;
    else if (!is_equal)
        log_multiplier = (g_all / wanted - 1) / log(factor);
    float l = (float)log_multiplier;
    double attn_factor = l == 0 ? wanted / unit : is_equal ? 1 : wanted;
    if (l != 0) put_num(k, "rope.scaling.yarn_log_multiplier", l);
    if ((float)attn_factor != 1) put_num(k, HD_KEY_ATTN_FACTOR, (float)attn_factor);
}

static void put_rope(struct keys *k, const hd_hparams *hp) {
    put_int(k, "rope.dimension_count", hp->n_rope);
    put_num(k, "rope.freq_base", hp->rope_base);
    if (hp->rope_linear > 0) {
        hd_gguf_set_str(k->w, key_of(k, "rope.scaling.type"), hd_str_of("linear"));
        put_num(k, "rope.scaling.factor", hp->rope_linear);
    }
    if (!hp->is_yarn) return;
    hd_gguf_set_str(k->w, key_of(k, "rope.scaling.type"), hd_str_of("yarn"));
    put_num(k, "rope.scaling.factor", hp->yarn_factor);
    put_int(k, "rope.scaling.original_context_length", hp->yarn_orig_ctx);
    put_num(k, "rope.scaling.yarn_beta_fast", hp->yarn_beta_fast);
    put_num(k, "rope.scaling.yarn_beta_slow", hp->yarn_beta_slow);
    put_mscale(k, hp);
    put_num(k, HD_KEY_MSCALE, hp->yarn_mscale);
    put_num(k, HD_KEY_MSCALE_ALL, hp->yarn_mscale_all);
}

static void put_heads(struct keys *k, const hd_hparams *hp) {
    if (!hd_hparams_is_mla(hp)) {
        put_int(k, "attention.key_length", hp->n_rope);
        put_int(k, "attention.value_length", hp->n_v);
        return;
    }
    put_int(k, "attention.key_length", hp->n_c + hp->n_rope); /* the latent view */
    put_int(k, "attention.value_length", hp->n_c);
    put_int(k, "attention.key_length_mla", hp->n_nope + hp->n_rope);
    put_int(k, "attention.value_length_mla", hp->n_v);
    if (hp->q_lora) put_int(k, "attention.q_lora_rank", hp->q_lora);
    put_int(k, "attention.kv_lora_rank", hp->n_c);
}

static void put_experts(struct keys *k, const hd_hparams *hp) {
    bool has_experts = hp->n_expert > 0;
    if (has_experts || hd_hparams_is_mla(hp))
        put_int(k, "leading_dense_block_count", hp->n_dense_layer);
    if (!has_experts) return;
    put_int(k, "expert_count", hp->n_expert);
    put_int(k, "expert_used_count", hp->n_expert_used);
    put_int(k, "expert_shared_count", hp->n_expert_shared);
    put_int(k, "expert_feed_forward_length", hp->d_expert);
    put_int(k, "expert_group_count", hp->n_group);
    put_int(k, "expert_group_used_count", hp->n_group_used);
    put_int(k, "expert_gating_func", (int)hp->gating);
    put_num(k, "expert_weights_scale", hp->expert_scale);
    hd_gguf_set_bool(k->w, key_of(k, "expert_weights_norm"), hp->expert_normalise);
}

void hd_export_keys(hd_gguf_writer *w, const hd_hparams *hp) {
    struct keys k = {.w = w, .arch = hp->arch};
    hd_gguf_set_str(w, "general.architecture", hd_str_of(hp->arch));
    hd_gguf_set_str(w, "general.name", hd_str_of(hp->name));
    put_int(&k, "block_count", hp->n_layer);
    put_int(&k, "context_length", hp->n_ctx);
    put_int(&k, "embedding_length", hp->d_model);
    put_int(&k, "vocab_size", hp->n_vocab);
    put_int(&k, "feed_forward_length", hp->d_ff);
    put_int(&k, "attention.head_count", hp->n_head);
    put_int(&k, "attention.head_count_kv", hp->n_head_kv);
    put_num(&k, "attention.layer_norm_rms_epsilon", hp->rms_eps);
    put_heads(&k, hp);
    put_rope(&k, hp);
    put_experts(&k, hp);
}

/* ---- tensors ---- */

/* Of a row about to be encoded: the first weight that is not finite or beyond what `to` can hold;
 * n when there is none. */
static size_t first_bad(const float *x, size_t n, enum hd_format to) {
    /* From 65520 on a number rounds past f16's largest, and scales and minimums are stored so;
     * Q8_0's is a block's largest / 127. FP8's scale is f32, MXFP4's a power of two. */
    bool is_wide = to == HD_F32 || to == HD_BF16 || to == HD_MXFP4 || to == HD_F8_B128;
    float limit = is_wide ? INFINITY : to == HD_Q8_0 ? 65520.0f * 127 : 65520.0f;
    size_t i = 0;
    while (i < n && fabsf(x[i]) < limit) i++; /* false for NaN */
    return i;
}

/* ---- encoding, a slab of rows at a time on all threads ---- */

enum { slab_bytes = 8 << 20, serial_elems = 1 << 14 };

struct slab {
    const hd_canon_tensor *t;
    enum hd_format to;
    const float *importance; /* [n_in] or NULL */
    const char *from;        /* the first row */
    int64_t row0;            /* its index in the matrix, for messages */
    int n_row, n_row_task;
    bool is_measured;
    float *decoded, *again;  /* [thread, n_in] */
    char *encoded;           /* [n_row] */
    double *error2, *value2; /* [n_row] */
    bool *is_bad;            /* [n_row] */
};

static void encode_row(const struct slab *s, int row, int thread) {
    size_t n_in = (size_t)s->t->ne[0];
    const hd_format_info *from = hd_format_get(s->t->format), *to = hd_format_get(s->to);
    float *x = s->decoded + (size_t)thread * n_in, *y = s->again + (size_t)thread * n_in;
    char *out = s->encoded + (size_t)row * hd_format_bytes(s->to, n_in);
    from->decode(s->from + (size_t)row * hd_format_bytes(s->t->format, n_in), x, n_in);
    s->is_bad[row] = first_bad(x, n_in, s->to) < n_in;
    if (s->is_bad[row]) return;
    if (s->importance)
        to->encode_weighted(x, s->importance, out, n_in);
    else
        to->encode(x, out, n_in);
    s->error2[row] = s->value2[row] = 0;
    if (!s->is_measured) return;
    to->decode(out, y, n_in);
    for (size_t i = 0; i < n_in; i++) {
        double e = (double)x[i] - (double)y[i];
        s->error2[row] += e * e;
        s->value2[row] += (double)x[i] * (double)x[i];
    }
}

static void encode_rows(void *ctx, int task, int thread) {
    const struct slab *s = ctx;
    int end = (task + 1) * s->n_row_task;
    if (end > s->n_row) end = s->n_row;
    for (int row = task * s->n_row_task; row < end; row++) encode_row(s, row, thread);
}

/* The text of a slab's first row that cannot be encoded. */
static hd_status bad_row(const struct slab *s, int row) {
    size_t n_in = (size_t)s->t->ne[0];
    const hd_format_info *from = hd_format_get(s->t->format);
    from->decode(s->from + (size_t)row * hd_format_bytes(s->t->format, n_in), s->decoded, n_in);
    float x = s->decoded[first_bad(s->decoded, n_in, s->to)];
    return HD_FAIL(NUMERIC, "tensor %s: row %lld: expected %s, found %.9g", s->t->name,
                   (long long)(s->row0 + row),
                   isfinite(x) ? "what the format can hold (take --outtype bf16)"
                               : "finite weights",
                   (double)x);
}

static hd_status run_slab(const hd_export *e, struct slab *s, hd_export_loss *loss) {
    int n_thread = hd_pool_threads(e->pool);
    bool is_serial = (int64_t)s->n_row * s->t->ne[0] < serial_elems;
    s->n_row_task = is_serial ? s->n_row : (s->n_row + 4 * n_thread - 1) / (4 * n_thread);
    hd_pool_run(e->pool, (s->n_row + s->n_row_task - 1) / s->n_row_task, encode_rows, s);
    for (int row = 0; row < s->n_row; row++) {
        if (s->is_bad[row]) return bad_row(s, row);
        loss->error2 += s->error2[row];
        loss->value2 += s->value2[row];
    }
    size_t n_byte = hd_format_bytes(s->to, (size_t)s->t->ne[0]) * (size_t)s->n_row;
    HD_TRY(hd_gguf_data(e->w, s->encoded, n_byte));
    if (e->on_bytes) e->on_bytes(e->user, n_byte);
    return HD_OK;
}

/* Already in the wanted format: the bytes as they are. */
static hd_status copy_matrix(const hd_export *e, const hd_canon_tensor *t, const char *matrix) {
    size_t left = hd_format_bytes(t->format, (size_t)(t->ne[0] * t->ne[1]));
    while (left > 0) {
        size_t n = left < slab_bytes ? left : slab_bytes;
        HD_TRY(hd_gguf_data(e->w, matrix, n));
        if (e->on_bytes) e->on_bytes(e->user, n);
        matrix += n;
        left -= n;
    }
    return HD_OK;
}

static hd_status encode_matrix(const hd_export *e, struct slab *s, int n_row_max,
                               const char *matrix, hd_export_loss *loss) {
    size_t row_bytes = hd_format_bytes(s->t->format, (size_t)s->t->ne[0]);
    for (s->row0 = 0; s->row0 < s->t->ne[1]; s->row0 += s->n_row) {
        int64_t left = s->t->ne[1] - s->row0;
        s->n_row = left < n_row_max ? (int)left : n_row_max;
        s->from = matrix + (size_t)s->row0 * row_bytes;
        HD_TRY(run_slab(e, s, loss));
    }
    return HD_OK;
}

hd_status hd_export_tensor(const hd_export *e, const hd_canon_tensor *t, enum hd_format to,
                           const hd_importance *importance, hd_export_loss *loss) {
    size_t n_in = (size_t)t->ne[0], n = n_in * (size_t)t->ne[1];
    size_t row_bytes = hd_format_bytes(to, n_in);
    size_t n_row = slab_bytes / row_bytes + 1;
    if (n_row > (size_t)t->ne[1]) n_row = (size_t)t->ne[1];
    void *scratch = hd_canon_is_copied(t) ? hd_alloc(hd_format_bytes(t->format, n)) : NULL;
    float *floats = hd_alloc(2 * (size_t)hd_pool_threads(e->pool) * n_in * sizeof *floats);
    double *sums = hd_alloc(2 * n_row * sizeof *sums);
    struct slab s = {.t = t,
                     .to = to,
                     .is_measured = e->is_measured,
                     .decoded = floats,
                     .again = floats + (size_t)hd_pool_threads(e->pool) * n_in,
                     .encoded = hd_alloc(n_row * row_bytes),
                     .error2 = sums,
                     .value2 = sums + n_row,
                     .is_bad = hd_alloc(n_row * sizeof *s.is_bad)};
    *loss = (hd_export_loss){0};
    hd_status status = HD_OK;
    for (int m = 0; m < (int)t->ne[2] && status == HD_OK; m++) {
        status = hd_canon_check(e->k, t, m);
        if (status != HD_OK) break;
        const char *matrix = hd_canon_matrix(e->k, t, m, scratch);
        s.importance = importance ? hd_importance_row(importance, m) : NULL;
        loss->n_unseen += importance && importance->mean && !s.importance;
        status = to == t->format ? copy_matrix(e, t, matrix)
                                 : encode_matrix(e, &s, (int)n_row, matrix, loss);
    }
    hd_free(scratch);
    hd_free(floats);
    hd_free(sums);
    hd_free(s.encoded);
    hd_free(s.is_bad);
    return status;
}
