/* Dot products of a block of 32 inputs at the levels with sixteen registers of eight lanes, for
 * both halves of a strip: included by kernel_pair.h. */

/* A block of the strip: its planes or, if not NULL, its codes, taken out of them before. */
typedef struct planes {
    const unsigned char *low, *high;
    const W (*code)[VP]; /* by group */
} planes;

/* The bytes of a block of some rows that are multiplied. */
typedef struct tile_bytes {
    const int8_t *x[ABREAST];
    int n_row;
} tile_bytes;

ALWAYS W group_codes(hd_cpu_layout l, const planes *p, int g, int v) {
    if (p->code != NULL) return p->code[g][v];
    W low = w_load(p->low + 64 * low_of(l, g) + v * (int)sizeof(W));
    W high = l.high_bits > 0 ? w_load(p->high + 64 * high_of(l, g) + v * (int)sizeof(W)) : low;
    return codes_of(l, low, high, g);
}

#ifdef SUMS_OF_16_BITS
/* Groups of products with codes of so many bits that add up within 16 bits: two of up to 128 times
 * the largest code each. */
ALWAYS int groups_within(int n_bit) { return n_bit <= 4 ? 8 : n_bit == 5 ? 4 : n_bit == 6 ? 2 : 1; }

ALWAYS int code_bits(hd_cpu_layout l) {
    return l.table == HD_CPU_TABLE_IQ4   ? 8
           : l.table == HD_CPU_TABLE_IQ2 ? 7
           : l.table == HD_CPU_TABLE_FP4 ? 5
                                         : l.low_bits + l.high_bits;
}

/* sum[r][v] += the products of groups first .. first + n of codes of a byte, whose halves are
 * multiplied apart: of one vector of outputs after the other, since there are twice as many sums.
 */
ALWAYS void add_byte_products(hd_cpu_layout l, const planes *p, const tile_bytes *x, int first,
                              int n, VI sum[][VP]) {
    UNROLL for (int v = 0; v < VP; v++) {
        VI lower[ABREAST], upper[ABREAST];
        UNROLL for (int g = first; g < first + n; g++) {
            W w = group_codes(l, p, g, v), low = w & 0x0F0F0F0Fu, high = (w >> 4) & 0x0F0F0F0Fu;
            UNROLL for (int r = 0; r < x->n_row; r++) {
                VI four = vi_four(x->x[r] + 4 * g), a = vi_pairs(low, four),
                   b = vi_pairs(high, four);
                lower[r] = g == first ? a : vi_add_16(lower[r], a);
                upper[r] = g == first ? b : vi_add_16(upper[r], b);
            }
        }
        UNROLL for (int r = 0; r < x->n_row; r++) sum[r][v] = vi_add_products(
            vi_add_products(sum[r][v], lower[r], vi_set(0x00010001)), upper[r], vi_set(0x00100010));
    }
}

/* The integers n of a block of a wide row: of four, the first and the third, and the others. */
typedef struct wide_block {
    _Alignas(32) int16_t even[16], odd[16];
} wide_block;

ALWAYS void load_wide(const hd_cpu_xblock *x, wide_block *out) {
    VI q, lower;
    __builtin_memcpy(&q, x->q, sizeof q);
    __builtin_memcpy(&lower, x->wide.lower, sizeof lower);
    VI even = vi_add_16(vi_shift_up_16(q, 8), vi_shift_down_16(vi_shift_up_16(lower, 8), 8));
    VI odd = vi_add_16(vi_shift_up_16(vi_shift_down_16(q, 8), 8), vi_shift_down_16(lower, 8));
    __builtin_memcpy(out->even, &even, sizeof even);
    __builtin_memcpy(out->odd, &odd, sizeof odd);
}

ALWAYS void add_wide_products(hd_cpu_layout l, const planes *p, const wide_block *x, int n_row,
                              int first, int n, VI sum[][VP]) {
    UNROLL for (int g = first; g < first + n; g++) {
        W even[VP], odd[VP];
        UNROLL for (int v = 0; v < VP; v++) {
            W w = group_codes(l, p, g, v);
            even[v] = w & 0x00FF00FFu, odd[v] = (w >> 8) & 0x00FF00FFu;
        }
        UNROLL for (int r = 0; r < n_row; r++) {
            VI x0 = vi_four((const int8_t *)(x[r].even + 2 * g));
            VI x1 = vi_four((const int8_t *)(x[r].odd + 2 * g));
            UNROLL for (int v = 0; v < VP; v++) sum[r][v] =
                vi_add_products(vi_add_products(sum[r][v], (VI)even[v], x0), (VI)odd[v], x1);
        }
    }
}
#endif

/* sum[r][v] += the products of groups first .. first + n. */
ALWAYS void add_products(hd_cpu_layout l, const planes *p, const tile_bytes *x, int first, int n,
                         VI sum[][VP]) {
#ifdef SUMS_OF_16_BITS
    if (code_bits(l) == 8) {
        add_byte_products(l, p, x, first, n, sum);
        return;
    }
    int each = groups_within(code_bits(l)) < n ? groups_within(code_bits(l)) : n;
    VI pairs[ABREAST][VP];
#endif
    UNROLL for (int g = first; g < first + n; g++) {
        W w[VP];
        UNROLL for (int v = 0; v < VP; v++) w[v] = group_codes(l, p, g, v);
        UNROLL for (int r = 0; r < x->n_row; r++) {
            VI four = vi_four(x->x[r] + 4 * g);
            UNROLL for (int v = 0; v < VP; v++) {
#ifdef SUMS_OF_16_BITS
                VI both = vi_pairs(w[v], four);
                pairs[r][v] = g % each == 0 ? both : vi_add_16(pairs[r][v], both);
                if (g % each == each - 1)
                    sum[r][v] = vi_add_products(sum[r][v], pairs[r][v], vi_set(0x00010001));
#else
                sum[r][v] = vi_dot(sum[r][v], w[v], four);
#endif
            }
        }
    }
}

ALWAYS void next_blocks(blocks *b, size_t step) {
    UNROLL for (int r = 0; r < b->n_row; r++) b->x[r] =
        (const hd_cpu_xblock *)(const void *)((const char *)b->x[r] + step);
}

/* The sums over groups first .. first+n of a block, of one half of it or of both, and `zero`;
 * exact. */
ALWAYS void dots(hd_cpu_layout l, bool is_wide, const planes *p, const blocks *x, int first, int n,
                 int zero, VI sum[][VP]) {
    tile_bytes q = {.n_row = x->n_row};
    UNROLL for (int r = 0; r < x->n_row; r++) {
        q.x[r] = x->x[r]->q;
        VI start = sum_start(l, is_wide, x->x[r], first, n, zero);
        UNROLL for (int v = 0; v < VP; v++) sum[r][v] = start;
    }
    if (!is_wide) {
        add_products(l, p, &q, first, n, sum);
        return;
    }
#ifdef SUMS_OF_16_BITS
    wide_block wide[ABREAST];
    UNROLL for (int r = 0; r < x->n_row; r++) load_wide(x->x[r], &wide[r]);
    add_wide_products(l, p, wide, x->n_row, first, n, sum);
#else
    VI upper[ABREAST][VP];
    UNROLL for (int r = 0; r < x->n_row; r++) {
        UNROLL for (int v = 0; v < VP; v++) upper[r][v] = vi_set(0);
    }
    add_products(l, p, &q, first, n, upper);
    UNROLL for (int r = 0; r < x->n_row; r++) q.x[r] = x->x[r]->wide.lower;
    add_products(l, p, &q, first, n, sum);
    UNROLL for (int r = 0; r < x->n_row; r++) {
        UNROLL for (int v = 0; v < VP; v++) sum[r][v] =
            vi_add(vi_shift_up(upper[r][v], 8), sum[r][v]);
    }
#endif
}

ALWAYS void add_blocks(hd_cpu_layout l, bool is_wide, const planes *p, const block_factor *s,
                       const blocks *rows, V acc[][VP]) {
    bool is_split = hd_cpu_has_halves(l.head);
    VI first[ABREAST][VP], second[ABREAST][VP];
    dots(l, is_wide, p, rows, 0, is_split ? 4 : 8, first_start(l, is_wide), first);
    if (is_split) dots(l, is_wide, p, rows, 4, 4, 0, second);
    UNROLL for (int r = 0; r < rows->n_row; r++) {
        UNROLL for (int v = 0; v < VP; v++) acc[r][v] =
            add_block(l, is_wide, first[r][v], &second[r][v], &s[v], rows->x[r], acc[r][v]);
    }
}
