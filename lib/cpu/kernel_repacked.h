/* Products with repacked weights (cpu/pack.h) of one instruction-set level: included after its
 * primitives, as kernel_product.h.
 *
 * A tile is a strip of outputs and some rows. For each 32 inputs the codes of the strip are taken
 * out of their planes into eight vectors, which stay in registers for all rows of the tile; the dot
 * product of a row's 8-bit integers with them is exact, so that levels agree; then
 *   acc = fma(dot * scale of weights, scale of row, acc)
 * with blocks ascending, and the same for the minimums of formats that have them and the row's
 * sums. No sum depends on which rows share a tile. */

#include "cpu/kernel_codes.h"

static const int log2_of[129] = {[4] = 2, [8] = 3, [16] = 4, [32] = 5, [64] = 6, [128] = 7};

/* The integer dot product of 16 inputs, i the first or the second of the block. */
ALWAYS VI dot_16(hd_cpu_layout l, bool is_wide, const W *w, const hd_cpu_xblock *x, int i) {
    VI acc = vi_set(0);
    if (is_wide) {
        UNROLL for (int g = 4 * i; g < 4 * i + 4; g++) acc = v_dot(l, acc, w[g], x->q + 4 * g);
        acc = vi_shift_up(acc, 8);
        if (l.offset > 0) acc = vi_add(acc, vi_set(x->wide.minus[i] >> (7 - log2_of[l.offset])));
        UNROLL for (int g = 4 * i; g < 4 * i + 4; g++) acc =
            v_dot(l, acc, w[g], x->wide.lower + 4 * g);
        return acc;
    }
    if (l.offset > 0) acc = vi_set(x->minus[i] >> (7 - log2_of[l.offset]));
    UNROLL for (int g = 4 * i; g < 4 * i + 4; g++) acc = v_dot(l, acc, w[g], x->q + 4 * g);
    return acc;
}

ALWAYS V add_block(hd_cpu_layout l, bool is_wide, const W *w, const block_scale *s,
                   const hd_cpu_xblock *x, V acc) {
    bool is_split = hd_cpu_has_halves(l.head);
    VI first = dot_16(l, is_wide, w, x, 0), second = dot_16(l, is_wide, w, x, 1);
    V d = v_set(is_wide ? x->wide.d : x->d), t;
    if (is_split)
        t = v_fma(v_float(second), s->scale[1], v_float(first) * s->scale[0]);
    else
        t = v_float(vi_add(first, second)) * s->scale[0];
    acc = v_fma(t, d, acc);
    if (l.head == HD_CPU_HEAD_K45 || l.head == HD_CPU_HEAD_DM)
        acc = v_fma(s->add[0], v_set(is_wide ? x->wide.sum : x->sum), acc);
    if (l.head == HD_CPU_HEAD_K2) {
        const int32_t *minus = is_wide ? x->wide.minus : x->minus;
        V sum0 = v_set((float)minus[0] * -0x1p-7f), sum1 = v_set((float)minus[1] * -0x1p-7f);
        acc = v_fma(v_fma(s->add[1], sum1, s->add[0] * sum0), d, acc);
    }
    return acc;
}

/* Strips lie one after another: what follows in memory is asked for this many bytes ahead, because
 * the processor's own prefetcher does not keep enough of it on its way while lines are unpacked. */
#define PREFETCH_AHEAD 8192

/* Rows row0 .. row0+n_row of the strip's VN outputs from `lane` on; rows past the last are the last
 * one again. n_row is a constant after inlining. */
ALWAYS void packed_tile(enum hd_format f, bool is_wide, const hd_cpu_packed_product *p, int row0,
                        int lane, int n_row) {
    hd_cpu_layout l = hd_cpu_layout_of(f);
    size_t at = 0;
    /* Later tiles find the strip in a cache. */
    bool is_first = row0 == 0 && lane == 0;
    int n_line = (int)(hd_cpu_head_bytes(l.head, 8) / 8 + 63) / 64 + l.low_bits + l.high_bits;
    const unsigned char *x[PACKED_ROWS], *head = p->strip;
    V acc[PACKED_ROWS];
    UNROLL for (int r = 0; r < n_row; r++) {
        x[r] = p->x[row0 + r < p->n_row ? row0 + r : p->n_row - 1];
        acc[r] = v_set(0);
    }
    for (int k = 0; k < p->n_in; k += HD_CPU_SUPER) {
        int left = p->n_in - k, n_sub = (left < HD_CPU_SUPER ? left : HD_CPU_SUPER) / HD_CPU_SUB;
        const unsigned char *low = head + hd_cpu_head_bytes(l.head, n_sub) + 4 * lane;
        const unsigned char *high = low + 64 * l.low_bits * n_sub;
        super_scale super = load_super(l, head, lane);
        const unsigned char *ahead = head + PREFETCH_AHEAD;
        for (int b = 0; b < n_sub; b++, at += p->x_step) {
            W w[8];
            if (is_first)
                UNROLL for (int i = 0; i < n_line; i++, ahead += 64) __builtin_prefetch(ahead);
            load_codes(l, low, high, w);
            block_scale s = load_scales(l, super, head, lane, b);
            UNROLL for (int r = 0; r < n_row; r++) acc[r] = add_block(
                l, is_wide, w, &s, (const hd_cpu_xblock *)(const void *)(x[r] + at), acc[r]);
            low += 64 * l.low_bits;
            high += 64 * l.high_bits;
        }
        head = (l.high_bits > 0 ? high : low) - 4 * lane;
    }
    UNROLL for (int r = 0; r < n_row; r++) {
        if (row0 + r < p->n_row) v_store(p->c + (size_t)(row0 + r) * HD_CPU_STRIP + lane, acc[r]);
    }
}

/* Few instances: what is between their sizes has a row twice, or takes two of them. */
ALWAYS void packed_rows(enum hd_format f, bool is_wide, const hd_cpu_packed_product *p) {
    for (int lane = 0; lane < HD_CPU_STRIP_OUT; lane += VN) {
        for (int r = 0, n; r < p->n_row; r += n) {
            int left = p->n_row - r;
            n = left > 12 && !is_wide ? 16 : left > 6 ? 8 : left > 2 ? 4 : left;
            if (n > PACKED_ROWS) n = PACKED_ROWS;
            switch (n) {
#if PACKED_ROWS >= 8
            case 16: packed_tile(f, is_wide, p, r, lane, 16); break;
            case 8: packed_tile(f, is_wide, p, r, lane, 8); break;
#endif
#if PACKED_ROWS >= 4
            case 4: packed_tile(f, is_wide, p, r, lane, 4); break;
            case 2: packed_tile(f, is_wide, p, r, lane, 2); break;
#endif
            default: packed_tile(f, is_wide, p, r, lane, 1); break;
            }
        }
    }
}

/* ---- Weights as floats, exactly as the format's decoding makes them ---- */

ALWAYS void unpack_block(hd_cpu_layout l, const W *w, const block_scale *s, float *panel,
                         size_t ld) {
    UNROLL for (int g = 0; g < 8; g++) {
        int half = hd_cpu_has_halves(l.head) ? g / 4 : 0;
        UNROLL for (int i = 0; i < 4; i++, panel += ld) {
            V q = v_float((VI)((w[g] >> (8 * i)) & 255)) - v_set((float)l.offset);
            v_store(panel, s->scale[half] * q + s->add[half]);
        }
    }
}

ALWAYS void unpack_strip_as(enum hd_format f, const hd_cpu_packed_unpack *u, int lane) {
    hd_cpu_layout l = hd_cpu_layout_of(f);
    const unsigned char *head = u->strip;
    float *panel = u->panel + lane;
    for (int k = 0; k < u->n_in; k += HD_CPU_SUPER) {
        int left = u->n_in - k, n_sub = (left < HD_CPU_SUPER ? left : HD_CPU_SUPER) / HD_CPU_SUB;
        const unsigned char *low = head + hd_cpu_head_bytes(l.head, n_sub) + 4 * lane;
        const unsigned char *high = low + 64 * l.low_bits * n_sub;
        super_scale super = load_super(l, head, lane);
        for (int b = 0; b < n_sub; b++, panel += HD_CPU_SUB * u->ld) {
            W w[8];
            load_codes(l, low, high, w);
            block_scale s = load_scales(l, super, head, lane, b);
            unpack_block(l, w, &s, panel, u->ld);
            low += 64 * l.low_bits;
            high += 64 * l.high_bits;
        }
        head = (l.high_bits > 0 ? high : low) - 4 * lane;
    }
}

#define HD_CPU_PACKED(id, low, high, head, offset, table)                                          \
    static void packed_unpack_##id(const hd_cpu_packed_unpack *u) {                                \
        for (int lane = 0; lane < HD_CPU_STRIP_OUT; lane += VN) unpack_strip_as(HD_##id, u, lane); \
    }                                                                                              \
    static void packed_narrow_##id(const hd_cpu_packed_product *p) {                               \
        packed_rows(HD_##id, false, p);                                                            \
    }                                                                                              \
    static void packed_wide_##id(const hd_cpu_packed_product *p) { packed_rows(HD_##id, true, p); }
#include "cpu/packed.def"
#undef HD_CPU_PACKED

static void packed_strip(const hd_cpu_packed_product *p) {
    switch (p->format) {
#define HD_CPU_PACKED(id, low, high, head, offset, table)                                          \
    case HD_##id:                                                                                  \
        (p->is_wide ? packed_wide_##id : packed_narrow_##id)(p);                                   \
        break;
#include "cpu/packed.def"
#undef HD_CPU_PACKED
    default: break;
    }
}

static void packed_product(const hd_cpu_packed_product *p) {
    hd_cpu_packed_product one = *p;
    for (int i = 0; i < p->n_strip; i++, one.c += HD_CPU_STRIP_OUT) {
        packed_strip(&one);
        one.strip += hd_cpu_strip_bytes(p->format, p->n_in);
    }
}

static void packed_unpack(const hd_cpu_packed_unpack *u) {
    switch (u->format) {
#define HD_CPU_PACKED(id, low, high, head, offset, table)                                          \
    case HD_##id:                                                                                  \
        packed_unpack_##id(u);                                                                     \
        break;
#include "cpu/packed.def"
#undef HD_CPU_PACKED
    default: break;
    }
}
