/* FP8 weights: an E4M3 tensor X.weight and a grid of scales beside it, one for each block of rows
 * and columns (128 by 128 in DeepSeek's files, the last ones partial): weight = code * scale.
 *
 * In memory a row carries its own scales, as F8_B128 (quant/fp8.c): one format, one decoding, and
 * whatever takes rows out of a tensor (heads of kv_b, experts, the pairs of q and k) takes their
 * scales along. That costs a copy at load and 4 bytes for 128 weights. Where 128 columns of a row
 * do not share a scale, or do not divide it, rows become F32: exact, four times the size, and no
 * released model has such a weight. */
#include "model/canon_build.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { block = 128, block_bytes = 132, name_bytes = 280 };

static int64_t n_blocks(int64_t n, int size) { return (n + size - 1) / size; }

/* X.weight_scale_inv (DeepSeek-V3), or X.scale (DeepSeek's own names); NULL. */
static const hd_file_tensor *scale_beside(const hd_canon *k, const hd_file_tensor *f) {
    char name[name_bytes];
    snprintf(name, sizeof name, "%s_scale_inv", f->name);
    const hd_file_tensor *s = hd_checkpoint_find(k->c, name);
    if (s || !hd_str_ends_c(hd_str_of(f->name), ".weight")) return s;
    int n_stem = (int)(strlen(f->name) - strlen("weight"));
    snprintf(name, sizeof name, "%.*sscale", n_stem, f->name);
    return hd_checkpoint_find(k->c, name);
}

static hd_status check_values(const hd_file_tensor *s) {
    const hd_format_info *i = hd_format_get(s->format);
    int64_t n = s->ne[0] * s->ne[1] * s->ne[2];
    for (int64_t at = 0; at < n; at++) {
        float v;
        i->decode((const char *)s->data + at * i->block_bytes, &v, 1);
        if (!(isfinite(v) && v >= 0))
            return HD_FAIL(NUMERIC,
                           "%s: tensor %s: scale %lld: expected a number from 0, found %.9g",
                           s->file, s->name, (long long)at, (double)v);
    }
    return HD_OK;
}

hd_status hd_canon_find_scale(hd_canon *k, const hd_file_tensor *f, const hd_file_tensor **out) {
    const int *size = k->hp->fp8_block;
    const hd_file_tensor *s = scale_beside(k, f);
    char expected[96], found[96];
    int64_t ne[4] = {n_blocks(f->ne[0], size[1]), n_blocks(f->ne[1], size[0]), f->ne[2], 1};
    hd_shape_text(k->c, ne, f->ne[2] > 1 ? 3 : 2, expected);
    if (!s)
        return HD_FAIL(CORRUPT,
                       "%s: tensor %s: F8_E4M3: expected its scales %s_scale_inv %s, found none",
                       f->file, f->name, f->name, expected);
    bool is_right = s->format == HD_F32 || s->format == HD_BF16 || s->format == HD_F16 ||
                    s->format == HD_F8_E8M0;
    if (!is_right)
        return HD_FAIL(UNSUPPORTED,
                       "%s: tensor %s: expected scales of F32, BF16, F16 or F8_E8M0, found %s",
                       s->file, s->name, s->type);
    if (memcmp(s->ne, ne, sizeof ne) != 0) {
        hd_shape_text(k->c, s->ne, s->n_dim, found);
        return HD_FAIL(CORRUPT, "%s: tensor %s: expected shape %s (blocks of %d by %d), found %s",
                       s->file, s->name, expected, size[0], size[1], found);
    }
    k->is_used[s - hd_checkpoint_at(k->c, 0)] = true;
    *out = s;
    return check_values(s);
}

enum hd_format hd_canon_scaled_format(const hd_canon *k, const hd_canon_tensor *t) {
    const hd_hparams *hp = k->hp;
    if (t->ne[0] % block != 0) return HD_F32;
    if (t->kind != HD_CANON_K_B) return hp->fp8_block[1] % block == 0 ? HD_F8_B128 : HD_F32;
    /* Transposed: 128 rows of a head must share their scales. */
    bool is_aligned = hp->fp8_block[0] % block == 0 && (hp->n_nope + hp->n_v) % block == 0;
    return is_aligned ? HD_F8_B128 : HD_F32;
}

/* ---- rows ---- */

/* A source and where its scales are. */
struct scaled {
    const uint8_t *code; /* [rows, n_in] */
    int64_t n_in, n_col; /* n_col: scales of a block row */
    const hd_canon_scale *scale;
    const int *size;
};

static struct scaled scaled_of(const hd_canon *k, const hd_canon_tensor *t, int src) {
    const hd_file_tensor *f = t->src[src];
    return (struct scaled){.code = f->data,
                           .n_in = f->ne[0],
                           .n_col = n_blocks(f->ne[0], k->hp->fp8_block[1]),
                           .scale = &t->scale[src],
                           .size = k->hp->fp8_block};
}

static float scale_at(const struct scaled *s, int64_t row, int64_t col) {
    const hd_file_tensor *f = s->scale->tensor;
    const hd_format_info *i = hd_format_get(f->format);
    int64_t at =
        s->scale->first + (s->scale->row0 + row) / s->size[0] * s->n_col + col / s->size[1];
    float v;
    i->decode((const char *)f->data + at * i->block_bytes, &v, 1);
    return v;
}

static void put_row(const struct scaled *s, int64_t row, enum hd_format to, char *out) {
    const uint8_t *code = s->code + row * s->n_in;
    if (to == HD_F8_B128) {
        for (int64_t col = 0; col < s->n_in; col += block, out += block_bytes) {
            float scale = scale_at(s, row, col);
            memcpy(out, &scale, sizeof scale);
            memcpy(out + sizeof scale, code + col, block);
        }
        return;
    }
    float scale = 0;
    for (int64_t col = 0; col < s->n_in; col++) {
        if (col % s->size[1] == 0) scale = scale_at(s, row, col);
        float v = scale * hd_e4m3_to_f32(code[col]);
        memcpy(out + col * (int64_t)sizeof v, &v, sizeof v);
    }
}

/* Rows row0 .. of a head become columns: row col of the matrix [n_in, n_row]. */
static void put_turned(const struct scaled *s, int64_t row0, int64_t n_row, enum hd_format to,
                       char *out) {
    for (int64_t col = 0; col < s->n_in; col++)
        for (int64_t r = 0; r < n_row; r++) {
            uint8_t code = s->code[(row0 + r) * s->n_in + col];
            if (to == HD_F32) {
                float v = scale_at(s, row0 + r, col) * hd_e4m3_to_f32(code);
                memcpy(out, &v, sizeof v);
                out += sizeof v;
                continue;
            }
            if (r % block == 0) {
                float scale = scale_at(s, row0 + r, col);
                memcpy(out, &scale, sizeof scale);
                out += sizeof scale;
            }
            *out++ = (char)code;
        }
}

void hd_canon_scaled_matrix(const hd_canon *k, const hd_canon_tensor *t, int ix, char *out) {
    int src = t->kind == HD_CANON_STACK ? ix : 0;
    struct scaled s = scaled_of(k, t, src);
    int64_t row0 = hd_canon_source_row(k, t, ix, 0);
    if (t->kind == HD_CANON_K_B) {
        put_turned(&s, row0, t->ne[0], t->format, out);
        return;
    }
    size_t row_bytes = hd_format_bytes(t->format, (size_t)t->ne[0]);
    for (int64_t row = 0; row < t->ne[1]; row++)
        put_row(&s, hd_canon_source_row(k, t, ix, row), t->format, out + (size_t)row * row_bytes);
}

hd_status hd_canon_check(const hd_canon *k, const hd_canon_tensor *t, int ix) {
    if (!hd_canon_is_scaled(t)) return HD_OK;
    struct scaled s = scaled_of(k, t, t->kind == HD_CANON_STACK ? ix : 0);
    int64_t row0 = hd_canon_source_row(k, t, ix, 0);
    int64_t n_row = t->kind == HD_CANON_K_B ? t->ne[0] : t->ne[1];
    const uint8_t *code = s.code + row0 * s.n_in;
    if (t->kind == HD_CANON_PAIRS) code = s.code; /* the same rows in another order */
    size_t n = (size_t)(n_row * s.n_in), n_nan = 0;
    for (size_t i = 0; i < n; i++) n_nan += (code[i] & 0x7F) == 0x7F;
    if (n_nan == 0) return HD_OK;
    return HD_FAIL(NUMERIC, "%s: tensor %s: expected numbers, found %zu NaN codes (0x7F or 0xFF)",
                   t->src[0]->file, t->src[t->kind == HD_CANON_STACK ? ix : 0]->name, n_nan);
}
