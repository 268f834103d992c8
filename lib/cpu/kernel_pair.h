/* Tiles of the levels with sixteen registers of eight lanes: included by kernel_repacked.h.
 *
 * Both halves of a strip are done side by side, so that four bytes of a row are loaded once for 16
 * outputs, and codes are taken out of their planes four inputs at a time: a block's would not fit
 * the registers beside the sums. */

#include "cpu/kernel_dots.h"

/* ---- Tiles ---- */

/* Most rows that meet a super-block's codes while those are in the level-1 cache. */
#define MANY_ROWS 32

/* Rows row0 .. row0 + n_row of a strip, and a super-block taken apart. */
typedef struct pair_tile {
    const hd_cpu_packed_product *p;
    int row0, n_row, n_sub;
    size_t at;        /* from a row's first block to the super-block's */
    W code[8][8][VP]; /* by block and group */
    block_factor s[8][VP];
    V acc[MANY_ROWS][VP];
} pair_tile;

/* A strip's super-block. */
typedef struct super_block {
    const unsigned char *head;
    planes at; /* its next block */
    int n_sub;
    super_scale scale[VP];
} super_block;

/* The super-block at `head` with n_left inputs left in its strip. */
ALWAYS void open_super(hd_cpu_layout l, const unsigned char *head, int n_left, asking *a,
                       super_block *s) {
    s->head = head;
    s->n_sub = (n_left < HD_CPU_SUPER ? n_left : HD_CPU_SUPER) / HD_CPU_SUB;
    const unsigned char *low = head + hd_cpu_head_bytes(l.head, s->n_sub);
    s->at = (planes){.low = low, .high = low + 64 * l.low_bits * s->n_sub};
    UNROLL for (int v = 0; v < VP; v++) load_super(l, head, v * VN, &s->scale[v]);
    ask_head(a, l);
}

ALWAYS void next_block(hd_cpu_layout l, super_block *s) {
    s->at.low += 64 * l.low_bits;
    s->at.high += 64 * l.high_bits;
}

/* What is behind its last block. */
ALWAYS const unsigned char *end_of(hd_cpu_layout l, const super_block *s) {
    return l.high_bits > 0 ? s->at.high : s->at.low;
}

/* Scales of block b, and asks for memory. */
ALWAYS void open_block(hd_cpu_layout l, bool is_wide, const super_block *s, int b, asking *a,
                       block_factor out[VP]) {
    ask(a, l.low_bits + l.high_bits);
    UNROLL for (int v = 0; v < VP; v++) out[v] =
        load_factors(l, is_wide, &s->scale[v], s->head, v * VN, b);
}

/* Takes a block apart. */
ALWAYS void keep_codes(hd_cpu_layout l, const planes *p, W code[][VP]) {
    UNROLL for (int v = 0; v < VP; v++) {
        W w[8];
        load_codes(l, p->low + (int)sizeof(W) * v, p->high + (int)sizeof(W) * v, w);
        UNROLL for (int g = 0; g < 8; g++) code[g][v] = w[g];
    }
}

ALWAYS void store_row(const hd_cpu_packed_product *p, int r, const V acc[VP]) {
    float *c = p->c + (size_t)r * p->ldc;
    UNROLL for (int v = 0; v < VP; v++) v_store(c + v * VN, acc[v]);
}

/* Few rows, which meet codes as they come out of their planes. n_row is a constant after inlining.
 */
ALWAYS void few_rows(enum hd_format f, bool is_wide, const hd_cpu_packed_product *p, int row0,
                     int n_row) {
    hd_cpu_layout l = hd_cpu_layout_of(f);
    const unsigned char *head = p->strip;
    asking a = ask_strip(f, p, n_row);
    blocks rows = {.n_row = n_row};
    V acc[ABREAST][VP];
    UNROLL for (int r = 0; r < n_row; r++) {
        rows.x[r] = (const hd_cpu_xblock *)(const void *)p->x[row0 + r];
        UNROLL for (int v = 0; v < VP; v++) acc[r][v] = v_set(0);
    }
    for (int k = 0; k < p->n_in; k += HD_CPU_SUPER) {
        super_block s;
        open_super(l, head, p->n_in - k, &a, &s);
        for (int b = 0; b < s.n_sub; b++, next_block(l, &s)) {
            block_factor factor[VP];
            W code[8][VP];
            open_block(l, is_wide, &s, b, &a, factor);
            planes at = s.at;
            if (l.table == HD_CPU_TABLE_IQ2) {
                keep_codes(l, &at, code);
                at.code = (const W(*)[VP])code;
            }
            add_blocks(l, is_wide, &at, factor, &rows, acc);
            next_blocks(&rows, p->x_step);
        }
        head = end_of(l, &s);
    }
    UNROLL for (int r = 0; r < n_row; r++) store_row(p, row0 + r, acc[r]);
}

/* The super-block of rows row .. row + n of the tile; n is a constant after inlining. */
ALWAYS void add_super(hd_cpu_layout l, bool is_wide, pair_tile *t, int row, int n) {
    blocks rows = {.n_row = n};
    V acc[ABREAST][VP];
    UNROLL for (int r = 0; r < n; r++) {
        rows.x[r] = (const hd_cpu_xblock *)(const void *)(t->p->x[t->row0 + row + r] + t->at);
        UNROLL for (int v = 0; v < VP; v++) acc[r][v] = t->acc[row + r][v];
    }
    for (int b = 0; b < t->n_sub; b++) {
        planes of = {.code = (const W(*)[VP])t->code[b]};
        add_blocks(l, is_wide, &of, t->s[b], &rows, acc);
        next_blocks(&rows, t->p->x_step);
    }
    UNROLL for (int r = 0; r < n; r++) {
        UNROLL for (int v = 0; v < VP; v++) t->acc[row + r][v] = acc[r][v];
    }
}

/* Up to MANY_ROWS rows, which meet a super-block at a time. */
ALWAYS void many_rows(enum hd_format f, bool is_wide, pair_tile *t) {
    const hd_cpu_packed_product *p = t->p;
    hd_cpu_layout l = hd_cpu_layout_of(f);
    const unsigned char *head = p->strip;
    asking a = ask_strip(f, p, MANY_ROWS);
    for (int r = 0; r < t->n_row; r++) {
        UNROLL for (int v = 0; v < VP; v++) t->acc[r][v] = v_set(0);
    }
    for (int k = 0; k < p->n_in; k += HD_CPU_SUPER) {
        super_block s;
        open_super(l, head, p->n_in - k, &a, &s);
        for (int b = 0; b < s.n_sub; b++, next_block(l, &s)) {
            open_block(l, is_wide, &s, b, &a, t->s[b]);
            keep_codes(l, &s.at, t->code[b]);
        }
        head = end_of(l, &s);
        t->n_sub = s.n_sub;
        t->at = (size_t)(k / HD_CPU_SUB) * p->x_step;
        int r = 0;
        for (; r + ABREAST <= t->n_row; r += ABREAST) add_super(l, is_wide, t, r, ABREAST);
        switch (t->n_row - r) {
        case 3: add_super(l, is_wide, t, r, 3); break;
        case 2: add_super(l, is_wide, t, r, 2); break;
        case 1: add_super(l, is_wide, t, r, 1); break;
        default: break;
        }
    }
    for (int r = 0; r < t->n_row; r++) store_row(p, t->row0 + r, t->acc[r]);
}

/* Rows from which on taking a super-block apart first is worth it (Zen 3). */
ALWAYS int many_from(hd_cpu_layout l) { return l.high_bits > 0 ? 5 : 13; }

ALWAYS void packed_rows(enum hd_format f, bool is_wide, const hd_cpu_packed_product *p) {
    pair_tile t;
    t.p = p;
    for (t.row0 = 0; t.row0 < p->n_row; t.row0 += t.n_row) {
        int left = p->n_row - t.row0;
        bool is_many = left >= many_from(hd_cpu_layout_of(f));
        int most = is_many ? MANY_ROWS : ABREAST;
        t.n_row = left < most ? left : most;
        if (is_many) {
            many_rows(f, is_wide, &t);
            continue;
        }
        switch (t.n_row) {
        case 4: few_rows(f, is_wide, p, t.row0, 4); break;
        case 3: few_rows(f, is_wide, p, t.row0, 3); break;
        case 2: few_rows(f, is_wide, p, t.row0, 2); break;
        default: few_rows(f, is_wide, p, t.row0, 1); break;
        }
    }
}
