/* Products with repacked weights (cpu/pack.h) of one instruction-set level: included after its
 * primitives, as kernel_product.h.
 *
 * A tile is a strip of outputs and some rows. For each 32 inputs the codes of the strip are taken
 * out of their planes for all rows of the tile (kernel_tile.h; kernel_pair.h at eight lanes); the
 * dot product of a row's 8-bit integers with them is exact, so that levels agree. Blocks ascending,
 * acc = fma(dot * scale of weights, scale of row, acc), and the same for the minimums of formats
 * that have them and the row's sums. No sum depends on which rows share a tile. */

#include "cpu/kernel_codes.h"

static const int log2_of[129] = {[4] = 2, [8] = 3, [16] = 4, [32] = 5, [64] = 6, [128] = 7};

/* What a block's integers meet. `shift`, where sums begin at SUM_START: -START_VALUE * scale, which
 * has no rounding. */
typedef struct block_factor {
    block_scale s;
    V shift;
} block_factor;

/* Where a sum is small enough it begins at SUM_START, so that its bits are those of the float
 * START_VALUE + sum; E8M0 scales may be too large for that. */
ALWAYS bool is_shifted(hd_cpu_layout l, bool is_wide) {
    return SUM_START != 0 && !is_wide && l.head != HD_CPU_HEAD_E;
}

/* round(sum * scale) */
ALWAYS V scaled(bool is_small, VI sum, const block_factor *s) {
    if (is_small) return v_fma((V)sum, s->s.scale[0], s->shift);
    return v_float(sum) * s->s.scale[0];
}

/* Where the first sums of a block begin. */
ALWAYS int first_start(hd_cpu_layout l, bool is_wide) {
    return is_shifted(l, is_wide) ? SUM_START : 0;
}

/* What the sum over groups first .. first + n of a block begins with: of codes that have an offset,
 * -offset times the sum of the row's integers, too. */
ALWAYS VI sum_start(hd_cpu_layout l, bool is_wide, const hd_cpu_xblock *x, int first, int n,
                    int zero) {
    VI sum = vi_set(zero);
    if (l.offset == 0) return sum;
    const int32_t *minus = is_wide ? x->wide.minus : x->minus;
    VI less = vi_set(minus[n == 8 ? 2 : first / 4]);
    if (l.offset < 128) less = vi_shift_down(less, 7 - log2_of[l.offset]);
    return vi_add(sum, less);
}

/* acc and a block of a row, of which the sums of products are given: of its halves where they have
 * scales of their own, else of all of it in `first`. */
ALWAYS V add_block(hd_cpu_layout l, bool is_wide, VI first, const VI *second, const block_factor *s,
                   const hd_cpu_xblock *x, V acc) {
    V d = v_set(is_wide ? x->wide.d : x->d), t = scaled(is_shifted(l, is_wide), first, s);
    if (hd_cpu_has_halves(l.head)) t = v_fma(v_float(*second), s->s.scale[1], t);
    acc = v_fma(t, d, acc);
    if (l.head == HD_CPU_HEAD_K45 || l.head == HD_CPU_HEAD_DM)
        acc = v_fma(s->s.add[0], v_set(is_wide ? x->wide.sum : x->sum), acc);
    if (l.head == HD_CPU_HEAD_K2) {
        const int32_t *minus = is_wide ? x->wide.minus : x->minus;
        V sum0 = v_float(vi_set(minus[0])), sum1 = v_float(vi_set(minus[1]));
        acc = v_fma(v_fma(s->s.add[1], sum1, s->s.add[0] * sum0), d, acc);
    }
    return acc;
}

ALWAYS block_factor load_factors(hd_cpu_layout l, bool is_wide, const super_scale *super,
                                 const unsigned char *head, int lane, int b) {
    block_factor s = {.s = load_scales(l, super, head, lane, b)};
    if (is_shifted(l, is_wide)) s.shift = v_set(-START_VALUE) * s.s.scale[0];
    /* Sums of 16 are kept times -128. */
    if (l.head == HD_CPU_HEAD_K2) {
        UNROLL for (int i = 0; i < 2; i++) s.s.add[i] = v_set(-0x1p-7f) * s.s.add[i];
    }
    return s;
}

/* ---- Asking for memory ---- */

/* How far ahead of its reading a strip is asked for. Two threads that read 40 GB/s with up to four
 * rows wait longer for lines asked for later; two requests for a line, one of them earlier, gain
 * nothing and take the time of two loads (Zen 5). */
#define PREFETCH_AHEAD 8192

/* Tiles that do little with a line wait for memory alone. They ask for lines a little later, and
 * for one of each page of 4 KB much earlier, so that the page's address is known by then: where the
 * memory of a virtual machine consists of such pages on its host, finding an address takes longer
 * than reading PREFETCH_AHEAD. Strips of matrices at random places of 4 GB came at 44 to 50 GB/s
 * with one row, and come at 54 to 58, where plain reads have 51 to 56 (two Zen 5 cores). Tiles that
 * do more lose by it what those gain. */
#define PAGES_AHEAD (32 << 10)
#define PAGE_BYTES 4096
#define PREFETCH_AHEAD_OF_FEW 6144
/* Such tiles have so many rows, by the lines of a block of 32 inputs. */
#define FEW_ROWS(n_line) (VN == 16 ? 3 * (n_line) / 4 : (n_line) / 4)

/* Lines are asked for in the order in which they lie. In the order in which they are read, those of
 * formats with two planes came at two thirds of the bandwidth (Zen 3). The end of what lies there
 * is looked for once a super-block. */
typedef struct asking {
    const unsigned char *at, *end; /* the next line; the last strip's end, or all ones behind it */
    ptrdiff_t to_next;             /* from that end to what is read after the strips */
    bool is_of_few;
} asking;

/* For a tile of n_row rows. */
ALWAYS asking ask_strip(enum hd_format f, const hd_cpu_packed_product *p, int n_row) {
    hd_cpu_layout l = hd_cpu_layout_of(f);
    const unsigned char *end = p->strip + (size_t)p->n_strip * hd_cpu_strip_bytes(f, p->n_in);
    bool is_of_few = n_row <= FEW_ROWS(l.low_bits + l.high_bits);
    return (asking){.at = p->strip + (is_of_few ? PREFETCH_AHEAD_OF_FEW : PREFETCH_AHEAD),
                    .end = end,
                    .to_next = p->next - end,
                    .is_of_few = is_of_few};
}

ALWAYS void ask(asking *a, int n_line) {
    UNROLL for (int i = 0; i < n_line; i++) __builtin_prefetch(a->at + 64 * i, 0, 3);
    a->at += 64 * n_line;
}

/* The lines of a super-block's head; the others are asked for block by block. */
ALWAYS void ask_head(asking *a, hd_cpu_layout l) {
    int n_head = (int)hd_cpu_head_bytes(l.head, 8);
    if (a->at >= a->end) a->at += a->to_next, a->end = (const unsigned char *)UINTPTR_MAX;
    if (a->is_of_few) {
        int n_byte = n_head + 64 * 8 * (l.low_bits + l.high_bits);
        const unsigned char *page = a->at + PAGES_AHEAD;
        if (page >= a->end) page += a->to_next;
        UNROLL for (int i = 0; i < n_byte; i += PAGE_BYTES) __builtin_prefetch(page + i, 0, 3);
    }
    ask(a, n_head / 64);
}

/* Rows whose sums advance side by side: a sum's next product waits for the one before. */
#define ABREAST 4

/* A block of some rows. */
typedef struct blocks {
    const hd_cpu_xblock *x[ABREAST];
    int n_row;
} blocks;

#if VN == 8
#include "cpu/kernel_pair.h"
#else
#include "cpu/kernel_tile.h"
#endif

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
    hd_cpu_packed_product left = *p;
    size_t n_byte = hd_cpu_strip_bytes(p->format, p->n_in);
    for (; left.n_strip > 0; left.n_strip--, left.strip += n_byte, left.c += HD_CPU_STRIP_OUT)
        packed_strip(&left);
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
