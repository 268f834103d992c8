/* Weights as floats, from strips or from rows as they lie, 16 of which are decoded at a time, once
 * for all rows of activations. */
#include "cpu/cpu.h"

#include "base/mem.h"

#define HD_FORMAT(id, name, gguf_id, block_elems, block_bytes, st)                                 \
    _Static_assert(HD_CPU_KDECODE % (block_elems) == 0, "blocks of " name);
#include "quant/formats.def"
#undef HD_FORMAT

void hd_cpu_decode(const hd_cpu *c, enum hd_format f, const void *src, float *dst, int n) {
    if (f == HD_F32 || f == HD_F16 || f == HD_BF16)
        c->k->decode(f, src, dst, n);
    else
        hd_format_get(f)->decode(src, dst, (size_t)n);
}

void hd_cpu_unpack_rows(const hd_cpu *c, const hd_cpu_scratch *t, const hd_cpu_unpacking *u) {
    const float *decoded[HD_CPU_LANES];
    for (int i = 0; i < HD_CPU_LANES; i++) decoded[i] = t->decoded + i * HD_CPU_KDECODE;
    for (int o = 0; o < u->n_row; o += HD_CPU_LANES) {
        int n_row = hd_cpu_least(u->n_row - o, HD_CPU_LANES);
        for (int k = 0; k < u->n_k; k += HD_CPU_KDECODE) {
            int n_k = hd_cpu_least(u->n_k - k, HD_CPU_KDECODE);
            size_t from = hd_format_bytes(u->format, (size_t)u->k0 + (size_t)k);
            for (int i = 0; i < n_row; i++)
                hd_cpu_decode(c, u->format, (const char *)u->row[o + i] + from,
                              t->decoded + i * HD_CPU_KDECODE, n_k);
            c->k->lanes(decoded, n_row, n_k, u->panel + (size_t)k * u->ld + (size_t)o, u->ld);
        }
    }
}

static void unpack_strip(const hd_cpu *c, const hd_weight *w, const unsigned char *strip,
                         float *panel) {
    if (hd_cpu_takes_integers(w))
        c->k->packed_unpack(&(hd_cpu_packed_unpack){.format = w->format,
                                                    .n_in = w->n_in,
                                                    .strip = strip,
                                                    .panel = panel,
                                                    .ld = HD_CPU_LANES});
    else
        c->k->unpack(&(hd_cpu_unpack){.format = w->format,
                                      .n_in = w->n_in,
                                      .n_strip = 1,
                                      .n_k = w->n_in,
                                      .strip = strip,
                                      .panel = panel,
                                      .ld = HD_CPU_LANES});
}

void hd_cpu_unpack_lanes(const hd_cpu *c, hd_cpu_scratch *t, const hd_weight *w, int mat, int o0,
                         float *panel) {
    if (w->prepared != NULL) {
        unpack_strip(c, w, hd_cpu_strip_at(w, mat, o0), panel);
        return;
    }
    size_t row_bytes = hd_format_bytes(w->format, (size_t)w->n_in);
    int n_row = hd_cpu_least(w->n_out - o0, HD_CPU_LANES);
    for (int i = 0; i < n_row; i++)
        t->w[i] = (const char *)w->mat[mat] + (size_t)(o0 + i) * row_bytes;
    hd_cpu_unpack_rows(c, t,
                       &(hd_cpu_unpacking){.format = w->format,
                                           .row = t->w,
                                           .n_row = n_row,
                                           .n_k = w->n_in,
                                           .panel = panel,
                                           .ld = HD_CPU_LANES});
}
