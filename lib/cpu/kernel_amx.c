/* Products of repacked weights with many rows on tiles of integers (AMX-INT8); all else of this
 * level is the AVX-512 level's, and so are the products with few rows.
 *
 * For each super-block of 256 inputs the codes of up to four strips become signed bytes, less the
 * format's offset: a block of 32 inputs is a tile of 8 rows of 64 bytes as it lies in a strip. 16
 * rows of activations become a panel, of which a block is a tile of 16 rows of 32 bytes. Their
 * product is the exact integer sum that kernel_repacked.h has, and what follows is done with the
 * same floating-point operations in the same order, so that the bits are the same. Wide activations
 * have a tile for either byte. Formats with a scale for 16 inputs stay with AVX-512.
 *
 * A tile's product takes 52 cycles and begins every 16; its rows reach memory one a cycle. So a
 * product is stored when three later ones have been started, and read after a fourth: next to one
 * another they took twice the time (Xeon of family 6 model 167). Compiled with AMX-TILE, AMX-INT8
 * and what the AVX-512 level needs; run only after the processor and the system were asked. */
#if defined(__x86_64__)
#include "cpu/kernel_avx512.h"
#include "cpu/kernel_codes.h"

enum {
    ROWS = 16, /* of a tile */
    STRIPS = HD_CPU_STRIP / HD_CPU_STRIP_OUT,
    BLOCKS = HD_CPU_SUPER / HD_CPU_SUB,
    AHEAD = 4 /* products started between one's start and its use */
};

static inline bool is_with_minimum(enum hd_cpu_head h) {
    return h == HD_CPU_HEAD_K45 || h == HD_CPU_HEAD_DM;
}

/* 256 inputs of up to four strips. */
typedef struct weights {
    _Alignas(64) int8_t code[STRIPS * BLOCKS][8][64];
    float scale[STRIPS * BLOCKS][16], add[STRIPS * BLOCKS][16];
} weights;

/* 256 inputs of 16 rows. */
typedef struct panel {
    _Alignas(64) int8_t q[BLOCKS][ROWS][32];
    struct {
        float d, sum;
    } row[BLOCKS][ROWS];
    int8_t lower[BLOCKS][ROWS][32];
} panel;

/* ---- Tiles ---- */

/* Registers 0 to 3 take products; 4 and 5 are activations, 6 and 7 codes, of n_k inputs. */
static void set_tiles(int n_k) {
    struct {
        uint8_t palette, start, zero[14];
        uint16_t row_bytes[16];
        uint8_t n_row[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.n_row[i] = (uint8_t)(i < 6 ? ROWS : n_k / 4);
        config.row_bytes[i] = (uint16_t)(i < 4 || i > 5 ? 64 : n_k);
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
}

static void release_tiles(void) { __asm__ volatile("tilerelease"); }

/* The compilers' own intrinsics do not say that they read memory (gcc 12). */
#define TILE_PRODUCT(to, a, b, x, w)                                                               \
    __asm__ volatile("tileloadd (%0,%2,1), %%tmm" #a "\n\ttileloadd (%1,%3,1), %%tmm" #b           \
                     "\n\ttilezero %%tmm" #to "\n\ttdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #to    \
                     :                                                                             \
                     : "r"(x), "r"(w), "r"((size_t)32), "r"((size_t)64)                            \
                     : "memory")
#define TILE_STORE(from, to)                                                                       \
    __asm__ volatile("tilestored %%tmm" #from ", (%0,%1,1)" ::"r"(to), "r"((size_t)64) : "memory")

ALWAYS void start_product(int reg, const int8_t *x, const int8_t *w) {
    switch (reg) {
    case 0: TILE_PRODUCT(0, 4, 6, x, w); break;
    case 1: TILE_PRODUCT(1, 5, 7, x, w); break;
    case 2: TILE_PRODUCT(2, 4, 6, x, w); break;
    default: TILE_PRODUCT(3, 5, 7, x, w); break;
    }
}

ALWAYS void store_product(int reg, int32_t *to) {
    switch (reg) {
    case 0: TILE_STORE(0, to); break;
    case 1: TILE_STORE(1, to); break;
    case 2: TILE_STORE(2, to); break;
    default: TILE_STORE(3, to); break;
    }
}

/* ---- Sixteen rows by the strips of a super-block ---- */

typedef struct tile_job {
    const weights *w;
    const panel *x;
    int n_strip, n_sub; /* n_sub: blocks that there are, of 8 in each strip */
    bool is_first;      /* super-block: sums begin */
    float *c;           /* [16, HD_CPU_STRIP] */
    /* Memory that is read next, n_line lines for each block: fetched on the side. */
    const unsigned char *ahead; /* of the first strip */
    size_t strip_bytes;
    int n_line;
} tile_job;

ALWAYS VI sum_of(bool is_wide, const int32_t *product, int r) {
    VI n = _mm512_load_si512(product + 16 * r);
    if (is_wide) n = vi_add(vi_shift_up(n, 8), _mm512_load_si512(product + 256 + 16 * r));
    return n;
}

/* As kernel_repacked.h has it, of all rows; `at` counts blocks of all strips. Beside tiles only one
 * unit multiplies and converts floats (48 multiply-adds take 26 cycles alone and 51 with one
 * tilezero), so small integers become floats by an addition: the float 1.5 * 2^23 + n has n in its
 * last bits, and 1.5 * 2^23 times a scale of at most 22 bits is exact. */
ALWAYS void add_blocks(bool has_minimum, bool is_wide, const tile_job *j, int at,
                       const int32_t *product, V *acc) {
    int b = at % BLOCKS;
    const weights *w = j->w;
    const panel *x = j->x;
    V scale = v_load(w->scale[at]), add = v_load(w->add[at]), less = scale * v_set(-0x1.8p23f);
    VI big = vi_set(0x4B400000);
    UNROLL for (int r = 0; r < ROWS; r++) {
        VI n = sum_of(is_wide, product, r);
        V t = v_float(n) * scale;
        if (!is_wide) t = v_fma((V)vi_add(n, big), scale, less);
        acc[r] = v_fma(t, v_set(x->row[b][r].d), acc[r]);
        if (has_minimum) acc[r] = v_fma(add, v_set(x->row[b][r].sum), acc[r]);
    }
}

ALWAYS void add_step(bool has_minimum, bool is_wide, const tile_job *j, int at,
                     const int32_t *product, V *acc) {
    int b = at % BLOCKS;
    float *c = j->c + HD_CPU_STRIP_OUT * (at / BLOCKS);
    if (b == 0)
        UNROLL for (int r = 0; r < ROWS; r++) acc[r] =
            j->is_first ? v_set(0) : v_load(c + HD_CPU_STRIP * r);
    if (b < j->n_sub) add_blocks(has_minimum, is_wide, j, at, product, acc);
    if (b == BLOCKS - 1)
        UNROLL for (int r = 0; r < ROWS; r++) v_store(c + HD_CPU_STRIP * r, acc[r]);
}

ALWAYS void ask(const tile_job *j, int at) {
    const unsigned char *p = j->ahead + (size_t)(at / BLOCKS) * j->strip_bytes;
    for (int i = 0; i < j->n_line; i++)
        __builtin_prefetch(p + 64 * (at % BLOCKS * j->n_line + i), 0, 2);
}

/* A block has n_part products: one, or of the upper and of the lower bytes. is_whole: each strip
 * has all its blocks. */
ALWAYS void run_tile(bool has_minimum, bool is_wide, bool is_whole, const tile_job *j) {
    _Alignas(64) int32_t product[AHEAD][ROWS * 16];
    int n_part = is_wide ? 2 : 1;
    int n_step = j->n_strip * BLOCKS * n_part;
    V acc[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) acc[r] = v_set(0);
    for (int first = 0; first <= n_step; first += AHEAD) {
        UNROLL for (int i = 0; i < AHEAD; i++) {
            int part = i % n_part, at = first / n_part + i / n_part, b = at % BLOCKS;
            const int8_t *x = part == 1 ? j->x->lower[b][0] : j->x->q[b][0];
            if (first < n_step && (is_whole || b < j->n_sub)) {
                if (part == 0) ask(j, at);
                start_product(i, x, j->w->code[at][0]);
            }
            if (first > 0 && part == n_part - 1)
                add_step(has_minimum, is_wide, j, at - AHEAD / n_part, product[i - part], acc);
            bool has_stored = is_whole || (first + i + 1 - AHEAD) / n_part % BLOCKS < j->n_sub;
            if ((i == AHEAD - 1 ? first < n_step : first > 0) && has_stored)
                store_product((i + 1) % AHEAD, product[(i + 1) % AHEAD]);
        }
    }
}

#define TILES(name, has_minimum, is_wide)                                                          \
    static void name(const tile_job *j) {                                                          \
        j->n_sub == BLOCKS ? run_tile(has_minimum, is_wide, true, j)                               \
                           : run_tile(has_minimum, is_wide, false, j);                             \
    }
TILES(narrow, false, false)
TILES(wide, false, true)
TILES(narrow_with_minimum, true, false)
TILES(wide_with_minimum, true, true)

/* ---- What tiles are made of ---- */

/* Of one strip, whose super-block of n_sub blocks begins at head. Whether all scales are numbers
 * that add_blocks can multiply by 1.5 * 2^23. */
ALWAYS bool take_codes_as(enum hd_format f, const unsigned char *head, int n_sub, int strip,
                          weights *w) {
    hd_cpu_layout l = hd_cpu_layout_of(f);
    const unsigned char *low = head + hd_cpu_head_bytes(l.head, n_sub);
    const unsigned char *high = low + 64 * l.low_bits * n_sub;
    super_scale super;
    load_super(l, head, 0, &super);
    __m512i offset = _mm512_set1_epi8((char)l.offset);
    V most = v_set(0);
    for (int b = 0; b < n_sub; b++, low += 64 * l.low_bits, high += 64 * l.high_bits) {
        W code[8];
        load_codes(l, low, high, code);
        UNROLL for (int g = 0; g < 8; g++) _mm512_store_si512(
            w->code[strip * BLOCKS + b][g], _mm512_sub_epi8((__m512i)code[g], offset));
        block_scale s = load_scales(l, &super, head, 0, b);
        v_store(w->scale[strip * BLOCKS + b], s.scale[0]);
        if (is_with_minimum(l.head)) v_store(w->add[strip * BLOCKS + b], s.add[0]);
        most = v_max_bits(most, v_abs(s.scale[0]));
    }
    return _mm512_cmp_ps_mask(most, v_set(0x1p100f), _CMP_NLT_UQ) == 0;
}

#define HD_CPU_PACKED(id, low, high, head, offset, table)                                          \
    static bool take_codes_##id(const unsigned char *p, int n_sub, int strip, weights *w) {        \
        return take_codes_as(HD_##id, p, n_sub, strip, w);                                         \
    }
#include "cpu/packed.def"
#undef HD_CPU_PACKED

static bool take_codes(enum hd_format f, const unsigned char *head, int n_sub, int strip,
                       weights *w) {
    switch (f) {
#define HD_CPU_PACKED(id, low, high, head_form, offset, table)                                     \
    case HD_##id:                                                                                  \
        return take_codes_##id(head, n_sub, strip, w);
#include "cpu/packed.def"
#undef HD_CPU_PACKED
    default: return false;
    }
}

/* Rows row0 .. row0+16, past the last the last one again; blocks from byte `at` of a row on. */
ALWAYS void take_rows(bool is_wide, const hd_cpu_packed_product *p, int row0, size_t at, int n_sub,
                      panel *x) {
    for (int r = 0; r < ROWS; r++) {
        const unsigned char *row = p->x[row0 + r < p->n_row ? row0 + r : p->n_row - 1] + at;
        for (int b = 0; b < n_sub; b++, row += p->x_step) {
            const hd_cpu_xblock *from = (const hd_cpu_xblock *)(const void *)row;
            __builtin_memcpy(x->q[b][r], from->q, sizeof from->q);
            if (is_wide) __builtin_memcpy(x->lower[b][r], from->wide.lower, sizeof from->q);
            __builtin_memcpy(&x->row[b][r], is_wide ? &from->wide.d : &from->d,
                             sizeof x->row[b][r]);
        }
    }
}

static void take_narrow_rows(const hd_cpu_packed_product *p, int row0, size_t at, int n_sub,
                             panel *x) {
    take_rows(false, p, row0, at, n_sub, x);
}

static void take_wide_rows(const hd_cpu_packed_product *p, int row0, size_t at, int n_sub,
                           panel *x) {
    take_rows(true, p, row0, at, n_sub, x);
}

/* ---- Products ---- */

/* Rows 0 .. n_row of p, of which the last tile may have fewer than 16. False: there are scales that
 * have to be multiplied otherwise. */
static bool tile_rows(const hd_cpu_packed_product *p, int n_row) {
    weights w;
    panel x;
    _Alignas(64) float rest[ROWS * HD_CPU_STRIP];
    hd_cpu_layout l = hd_cpu_layout_of(p->format);
    static void (*const all[2][2])(const tile_job *) = {{narrow, wide},
                                                        {narrow_with_minimum, wide_with_minimum}};
    void (*run)(const tile_job *) = all[is_with_minimum(l.head)][p->is_wide];
    size_t strip_bytes = hd_cpu_strip_bytes(p->format, p->n_in), at = 0;
    size_t super_bytes =
        hd_cpu_head_bytes(l.head, BLOCKS) + (size_t)(64 * (l.low_bits + l.high_bits) * BLOCKS);
    bool is_done = true;
    tile_job j = {.w = &w, .x = &x, .n_strip = p->n_strip, .strip_bytes = strip_bytes};
    int n_tile = (n_row + ROWS - 1) / ROWS;
    set_tiles(HD_CPU_SUB);
    for (int k = 0; is_done && k < p->n_in; k += HD_CPU_SUPER, at += super_bytes) {
        int left = p->n_in - k;
        j.n_sub = (left < HD_CPU_SUPER ? left : HD_CPU_SUPER) / HD_CPU_SUB;
        j.is_first = k == 0;
        j.n_line = ((int)super_bytes / 64 + n_tile * j.n_sub - 1) / (n_tile * j.n_sub);
        j.ahead = p->strip + at + super_bytes;
        if (left <= HD_CPU_SUPER) j.ahead = p->strip + (size_t)p->n_strip * strip_bytes;
        for (int s = 0; s < p->n_strip; s++)
            is_done &=
                take_codes(p->format, p->strip + (size_t)s * strip_bytes + at, j.n_sub, s, &w);
        for (int r = 0; is_done && r < n_row; r += ROWS, j.ahead += 64 * j.n_sub * j.n_line) {
            (p->is_wide ? take_wide_rows : take_narrow_rows)(
                p, r, (size_t)(k / HD_CPU_SUB) * p->x_step, j.n_sub, &x);
            j.c = r + ROWS > n_row ? rest : p->c + (size_t)r * HD_CPU_STRIP;
            run(&j);
        }
    }
    release_tiles();
    int n_rest = n_row % ROWS;
    for (int r = 0; is_done && r < n_rest; r++)
        __builtin_memcpy(p->c + (size_t)(n_row - n_rest + r) * HD_CPU_STRIP,
                         rest + HD_CPU_STRIP * r,
                         sizeof(float) * (size_t)(HD_CPU_STRIP_OUT * p->n_strip));
    return is_done;
}

/* How many of n_row rows are faster on tiles: a multiple of 16, or all. What one tile of 16 rows
 * and four of them take beside the AVX-512 level (docs/benchmarks.md, "On int8 tiles") says that
 * codes are written out in the time of 4 to 6 rows of that level and a tile of any rows takes that
 * of 11: two tiles gain, one does not. A scale for 16 inputs means twice as many tiles, of half the
 * depth: that gained 1 to 8 % at 64 to 256 rows, and nothing for minimums of 16 inputs. */
static int rows_on_tiles(enum hd_cpu_head head, int n_row) {
    if (hd_cpu_has_halves(head) || n_row < 2 * ROWS) return 0;
    return n_row % ROWS < 11 ? n_row - n_row % ROWS : n_row;
}

void hd_cpu_amx_product(const hd_cpu_packed_product *p) {
    int n_tiled = rows_on_tiles(hd_cpu_layout_of(p->format).head, p->n_row);
    if (n_tiled > 0 && !tile_rows(p, n_tiled)) n_tiled = 0;
    if (n_tiled == p->n_row) return;
    hd_cpu_packed_product few = *p;
    few.n_row -= n_tiled;
    few.x += n_tiled;
    few.c += (size_t)n_tiled * HD_CPU_STRIP;
    hd_cpu_avx512.packed_product(&few);
}

/* Of tiles as deep as there are. */
double hd_cpu_amx_probe_int8(int64_t n, int32_t *sink) {
    enum { DEPTH = 64 };
    _Alignas(64) int8_t x[ROWS * DEPTH];
    _Alignas(64) int32_t product[ROWS * 16];
    for (size_t i = 0; i < sizeof x; i++) x[i] = (int8_t)*sink;
    set_tiles(DEPTH);
    for (int reg = 0; reg < 4; reg++) start_product(reg, x, x);
    for (int64_t k = 0; k < n; k++)
        __asm__ volatile("tdpbssd %%tmm6, %%tmm4, %%tmm0\n\ttdpbssd %%tmm7, %%tmm5, %%tmm1\n\t"
                         "tdpbssd %%tmm6, %%tmm4, %%tmm2\n\ttdpbssd %%tmm7, %%tmm5, %%tmm3" ::);
    store_product(0, product);
    release_tiles();
    *sink = product[0];
    return 2.0 * 4 * ROWS * 16 * DEPTH * (double)n;
}
#endif
