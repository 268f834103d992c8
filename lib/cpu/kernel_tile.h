/* Tiles of the levels that hold a block's codes in registers: included by kernel_repacked.h. */

ALWAYS void add_products(hd_cpu_layout l, const W *w, const blocks *x, bool is_lower, int first,
                         int n, VI *sum) {
#ifdef SPREADS
    VI sixteen[ABREAST];
#else
    (void)l;
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
            sum[r] = v_dot(sum[r], w[g], q + 4 * g);
        }
    }
}

/* The sums over groups first .. first+n of a block, of one half of it or of both, and `zero`;
 * exact. */
ALWAYS void dots(hd_cpu_layout l, bool is_wide, const W *w, const blocks *x, int first, int n,
                 int zero, VI *sum) {
    UNROLL for (int r = 0; r < x->n_row; r++) sum[r] =
        sum_start(l, is_wide, x->x[r], first, n, zero);
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
    bool is_split = hd_cpu_has_halves(l.head);
    VI first[ABREAST], second[ABREAST];
    dots(l, is_wide, w, rows, 0, is_split ? 4 : 8, first_start(l, is_wide), first);
    if (is_split) dots(l, is_wide, w, rows, 4, 4, 0, second);
    UNROLL for (int r = 0; r < rows->n_row; r++) acc[r] =
        add_block(l, is_wide, first[r], &second[r], s, rows->x[r], acc[r]);
}

/* ---- Tiles ---- */

/* Rows row0 .. row0+n_row of the strip's VN outputs from `lane` on; rows past the last are the last
 * one again. n_row is a constant after inlining. */
ALWAYS void packed_tile(enum hd_format f, bool is_wide, const hd_cpu_packed_product *p, int row0,
                        int lane, int n_row) {
    hd_cpu_layout l = hd_cpu_layout_of(f);
    const unsigned char *x[PACKED_ROWS], *head = p->strip;
    asking a = ask_strip(f, p, n_row);
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
        ask_head(&a, l);
        for (int b = 0; b < n_sub; b++) {
            W w[8];
            ask(&a, l.low_bits + l.high_bits);
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
        if (row0 + r < p->n_row) v_store(p->c + (size_t)(row0 + r) * p->ldc + lane, acc[r]);
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
#if PACKED_ROWS > 1
            case 16: packed_tile(f, is_wide, p, r, lane, 16); break;
            case 8: packed_tile(f, is_wide, p, r, lane, 8); break;
            case 6: packed_tile(f, is_wide, p, r, lane, 6); break;
            case 5: packed_tile(f, is_wide, p, r, lane, 5); break;
            case 4: packed_tile(f, is_wide, p, r, lane, 4); break;
            case 3: packed_tile(f, is_wide, p, r, lane, 3); break;
            case 2: packed_tile(f, is_wide, p, r, lane, 2); break;
#endif
            default: packed_tile(f, is_wide, p, r, lane, 1); break;
            }
        }
    }
}
