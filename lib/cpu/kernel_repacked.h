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

/* What a block's integers meet. `shift`, where sums begin at SUM_START: -START_VALUE * scale, which
 * has no rounding. */
typedef struct block_factor {
    block_scale s;
    V shift[2];
} block_factor;

/* Where a sum is small enough it begins at SUM_START, so that its bits are those of the float
 * START_VALUE + sum; E8M0 scales may be too large for that. */
ALWAYS bool is_shifted(hd_cpu_layout l, bool is_wide) {
    return SUM_START != 0 && !is_wide && l.head != HD_CPU_HEAD_E;
}

/* round(sum * scale) */
ALWAYS V scaled(bool is_small, VI sum, const block_factor *s, int i) {
    if (is_small) return v_fma((V)sum, s->s.scale[i], s->shift[i]);
    return v_float(sum) * s->s.scale[i];
}

/* Rows whose sums advance side by side: a sum's next product waits for the one before. */
#define ABREAST 4

/* A block of some rows. */
typedef struct blocks {
    const hd_cpu_xblock *x[ABREAST];
    int n_row;
} blocks;

ALWAYS void add_products(hd_cpu_layout l, const W *w, const blocks *x, bool is_lower, int first,
                         int n, VI *sum) {
#ifdef SPREADS
    VI sixteen[ABREAST];
#endif
    UNROLL for (int g = first; g < first + n; g++) {
        UNROLL for (int r = 0; r < x->n_row; r++) {
            const int8_t *q = is_lower ? x->x[r]->wide.lower : x->x[r]->q;
#ifdef SPREADS
            if (SPREADS(l) && g >= 4) {
                if (g == 4) sixteen[r] = vi_sixteen(q + 16);
                sum[r] = v_dot_spread(sum[r], w[g], sixteen[r], g - 4);
                continue;
            }
#endif
            sum[r] = v_dot(l, sum[r], w[g], q + 4 * g);
        }
    }
}

/* The sums over groups first .. first+n of a block, of one half of it or of both, and `zero`;
 * exact. */
ALWAYS void dots(hd_cpu_layout l, bool is_wide, const W *w, const blocks *x, int first, int n,
                 int zero, VI *sum) {
    UNROLL for (int r = 0; r < x->n_row; r++) {
        const int32_t *minus = is_wide ? x->x[r]->wide.minus : x->x[r]->minus;
        sum[r] = vi_set(zero);
        if (l.offset == 0) continue;
        VI less = vi_set(minus[n == 8 ? 2 : first / 4]);
        if (l.offset < 128) less = vi_shift_down(less, 7 - log2_of[l.offset]);
        sum[r] = vi_add(sum[r], less);
    }
    if (!is_wide) {
        add_products(l, w, x, false, first, n, sum);
        return;
    }
    VI upper[ABREAST];
    UNROLL for (int r = 0; r < x->n_row; r++) upper[r] = vi_set(0);
    add_products(l, w, x, false, first, n, upper);
    add_products(l, w, x, true, first, n, sum);
    UNROLL for (int r = 0; r < x->n_row; r++) sum[r] = vi_add(vi_shift_up(upper[r], 8), sum[r]);
}

ALWAYS void add_blocks(hd_cpu_layout l, bool is_wide, const W *w, const block_factor *s,
                       const blocks *rows, V *acc) {
    bool is_small = is_shifted(l, is_wide), is_split = hd_cpu_has_halves(l.head);
    VI first[ABREAST], second[ABREAST];
    dots(l, is_wide, w, rows, 0, is_split ? 4 : 8, is_small ? SUM_START : 0, first);
    if (is_split) dots(l, is_wide, w, rows, 4, 4, 0, second);
    UNROLL for (int r = 0; r < rows->n_row; r++) {
        const hd_cpu_xblock *x = rows->x[r];
        V d = v_set(is_wide ? x->wide.d : x->d), t = scaled(is_small, first[r], s, 0);
        if (is_split) t = v_fma(v_float(second[r]), s->s.scale[1], t);
        acc[r] = v_fma(t, d, acc[r]);
        if (l.head == HD_CPU_HEAD_K45 || l.head == HD_CPU_HEAD_DM)
            acc[r] = v_fma(s->s.add[0], v_set(is_wide ? x->wide.sum : x->sum), acc[r]);
        if (l.head == HD_CPU_HEAD_K2) {
            const int32_t *minus = is_wide ? x->wide.minus : x->minus;
            V sum0 = v_float(vi_set(minus[0])), sum1 = v_float(vi_set(minus[1]));
            acc[r] = v_fma(v_fma(s->s.add[1], sum1, s->s.add[0] * sum0), d, acc[r]);
        }
    }
}

ALWAYS block_factor load_factors(hd_cpu_layout l, bool is_wide, const super_scale *super,
                                 const unsigned char *head, int lane, int b) {
    block_factor s = {.s = load_scales(l, super, head, lane, b)};
    UNROLL for (int i = 0; i < 2; i++) {
        if (is_shifted(l, is_wide)) s.shift[i] = v_set(-START_VALUE) * s.s.scale[i];
        /* Sums of 16 are kept times -128. */
        if (l.head == HD_CPU_HEAD_K2) s.s.add[i] = v_set(-0x1p-7f) * s.s.add[i];
    }
    return s;
}

/* ---- Asking for memory ---- */

/* How far ahead of its reading a strip is asked for. Two threads that read 40 GB/s with up to four
 * rows wait longer for lines asked for later; two requests for a line, one of them earlier, gain
 * nothing and take the time of two loads (Zen 5). */
#define PREFETCH_AHEAD 8192

typedef struct asking {
    ptrdiff_t ahead, to_next; /* from what is read to what is asked for; where that jumps at */
    const unsigned char *turn;
} asking;

ALWAYS void ask(const asking *a, const unsigned char *p, int n_line) {
    UNROLL for (int i = 0; i < n_line; i++) __builtin_prefetch(p + a->ahead + 64 * i, 0, 3);
}

/* ---- Tiles ---- */

/* Rows row0 .. row0+n_row of the strip's VN outputs from `lane` on; rows past the last are the last
 * one again. n_row is a constant after inlining. */
ALWAYS void packed_tile(enum hd_format f, bool is_wide, const hd_cpu_packed_product *p, int row0,
                        int lane, int n_row) {
    hd_cpu_layout l = hd_cpu_layout_of(f);
    const unsigned char *x[PACKED_ROWS], *head = p->strip;
    const unsigned char *end = head + hd_cpu_strip_bytes(f, p->n_in);
    asking a = {.ahead = PREFETCH_AHEAD, .to_next = p->next - end, .turn = end - PREFETCH_AHEAD};
    V acc[PACKED_ROWS];
    UNROLL for (int r = 0; r < n_row; r++) {
        x[r] = p->x[row0 + r < p->n_row ? row0 + r : p->n_row - 1];
        acc[r] = v_set(0);
    }
    for (int k = 0; k < p->n_in; k += HD_CPU_SUPER) {
        int left = p->n_in - k, n_sub = (left < HD_CPU_SUPER ? left : HD_CPU_SUPER) / HD_CPU_SUB;
        const unsigned char *low = head + hd_cpu_head_bytes(l.head, n_sub) + 4 * lane;
        const unsigned char *high = low + 64 * l.low_bits * n_sub;
        super_scale super;
        load_super(l, head, lane, &super);
        if (head >= a.turn) a.ahead += a.to_next, a.turn = end;
        ask(&a, head, (int)hd_cpu_head_bytes(l.head, 8) / 64);
        for (int b = 0; b < n_sub; b++) {
            W w[8];
            ask(&a, low, l.low_bits);
            ask(&a, high, l.high_bits);
            load_codes(l, low, high, w);
            block_factor s = load_factors(l, is_wide, &super, head, lane, b);
            UNROLL for (int r = 0; r < n_row; r += ABREAST) {
                blocks rows = {.n_row = n_row - r < ABREAST ? n_row - r : ABREAST};
                UNROLL for (int i = 0; i < rows.n_row; i++) rows.x[i] =
                    (const hd_cpu_xblock *)(const void *)x[r + i];
                add_blocks(l, is_wide, w, &s, &rows, acc + r);
                UNROLL for (int i = 0; i < rows.n_row; i++) x[r + i] += p->x_step;
            }
            low += 64 * l.low_bits;
            high += 64 * l.high_bits;
        }
        head = (l.high_bits > 0 ? high : low) - 4 * lane;
    }
    UNROLL for (int r = 0; r < n_row; r++) {
        if (row0 + r < p->n_row) v_store(p->c + (size_t)(row0 + r) * HD_CPU_STRIP + lane, acc[r]);
    }
}

/* Few instances: seven rows are a tile of eight. */
ALWAYS void packed_rows(enum hd_format f, bool is_wide, const hd_cpu_packed_product *p) {
    for (int lane = 0; lane < HD_CPU_STRIP_OUT; lane += VN) {
        for (int r = 0, n; r < p->n_row; r += n) {
            int left = p->n_row - r;
            n = left >= 14 && !is_wide ? 16 : left > 6 ? 8 : left;
            if (n > PACKED_ROWS) n = PACKED_ROWS;
            switch (n) {
#if PACKED_ROWS >= 8
            case 16: packed_tile(f, is_wide, p, r, lane, 16); break;
            case 8: packed_tile(f, is_wide, p, r, lane, 8); break;
            case 6: packed_tile(f, is_wide, p, r, lane, 6); break;
            case 5: packed_tile(f, is_wide, p, r, lane, 5); break;
#endif
#if PACKED_ROWS >= 4
            case 4: packed_tile(f, is_wide, p, r, lane, 4); break;
            case 3: packed_tile(f, is_wide, p, r, lane, 3); break;
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
        super_scale super;
        load_super(l, head, lane, &super);
        for (int b = 0; b < n_sub; b++, panel += HD_CPU_SUB * u->ld) {
            W w[8];
            load_codes(l, low, high, w);
            block_scale s = load_scales(l, &super, head, lane, b);
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
    size_t n_byte = hd_cpu_strip_bytes(p->format, p->n_in);
    for (int i = 1; i <= p->n_strip; i++, one.strip += n_byte, one.c += HD_CPU_STRIP_OUT) {
        one.next = i < p->n_strip ? one.strip + n_byte : p->next;
        packed_strip(&one);
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
