/* What attention's kernels share, and its products, at one instruction-set level; included by
 * kernel_rows.h, over the same primitives. */

/* ---- Memory that is wanted next ---- */

#define LINE_BYTES 64

/* Every tile asks for its share, not only those of the first rows or queries: at eight lanes there
 * are more tiles, which give memory more time (8 heads of 16 sequences are 1.1 times as fast, Zen
 * 3). */
#define ALL_ASK (VN == 8)

/* What is asked for step by step. */
typedef struct wanted {
    const char *at;
    size_t step;
} wanted;

/* Shares from .. from + n of `of` of what is ahead, in n_step steps; none of it: somewhere. */
ALWAYS wanted want(const hd_cpu_ahead *a, const void *somewhere, int from, int n, int of,
                   int n_step) {
    size_t n_byte = a->n_byte * (size_t)a->n, first = n_byte * (size_t)from / (size_t)of;
    if (n_byte == 0) return (wanted){.at = somewhere};
    return (wanted){.at = (const char *)a->piece[first / a->n_byte] + first % a->n_byte,
                    .step = n_byte * (size_t)n / (size_t)of / (size_t)n_step + 1};
}

/* ---- Values of the cache: floats, or halves that become floats on the way ---- */

ALWAYS size_t value_bytes(bool is_half) { return is_half ? 2 : sizeof(float); }

ALWAYS V value_lanes(const char *p, bool is_half) {
    return is_half ? v_decode_f16((const unsigned char *)p)
                   : v_load((const float *)(const void *)p);
}

/* Four of them, in all parts of four lanes. */
ALWAYS V value_four(const char *p, bool is_half) {
    return is_half ? v_four_halves((const unsigned char *)p)
                   : v_four((const float *)(const void *)p);
}

/* ---- Products ---- */

/* Inputs k0 .. k0 + n_k of a product. */
typedef struct strided_part {
    const hd_cpu_strided *p;
    int k0, n_k;
} strided_part;

/* One register tile. Rows go in fours from one pointer: addresses then take few registers. */
ALWAYS void strided_tile(const strided_part *s, int row0, int lane0, int n_row, int n_panel,
                         bool is_half) {
    enum { ROWS_MOST = 16, EACH = 4 };
    const hd_cpu_strided *p = s->p;
    const float *a[ROWS_MOST / EACH];
    const char *b[2];
    V acc[ROWS_MOST][2 * VP];
    size_t each = value_bytes(is_half);
    size_t row = p->a_row, row3 = 3 * row, step = p->a_step, ldb = p->b.ld * each;
    int n_v = n_panel * VP, n_a = (n_row + EACH - 1) / EACH;
    wanted ahead = {.at = p->b.at};
    int n_lane = n_panel * HD_CPU_LANES, of = ALL_ASK ? p->n_row : 1;
    if (ALL_ASK || row0 == 0)
        ahead = want(&p->ahead, p->b.at, lane0 * of + row0 * n_lane, n_lane * (ALL_ASK ? n_row : 1),
                     p->n_lane * of, p->n_k);
    float *c = p->c + (size_t)row0 * p->ldc + lane0;
    bool is_sum = p->is_sum || s->k0 > 0;
    UNROLL for (int i = 0; i < n_a; i++) a[i] =
        p->a + (size_t)(row0 + i * EACH) * row + (size_t)s->k0 * step;
    UNROLL for (int i = 0; i < n_panel; i++) b[i] =
        (const char *)p->b.at + (size_t)(lane0 / HD_CPU_LANES + i) * p->b_panel * each +
        (size_t)s->k0 * ldb;
    UNROLL for (int r = 0; r < n_row; r++) {
        UNROLL for (int v = 0; v < n_v; v++) acc[r][v] =
            is_sum ? v_load(c + (size_t)r * p->ldc + v * VN) : v_set(0);
    }
    for (int k = s->n_k; k > 0; k--) {
        V w[2 * VP];
        __builtin_prefetch(ahead.at, 0, 2);
        ahead.at += ahead.step;
        UNROLL for (int v = 0; v < n_v; v++) w[v] =
            value_lanes(b[v / VP] + (size_t)(v % VP * VN) * each, is_half);
        UNROLL for (int r = 0; r < n_row; r++) {
            size_t at = r % EACH == 3 ? row3 : (size_t)(r % EACH) * row;
            V x = v_set(a[r / EACH][at]);
            UNROLL for (int v = 0; v < n_v; v++) acc[r][v] = v_fma(x, w[v], acc[r][v]);
        }
        UNROLL for (int i = 0; i < n_panel; i++) b[i] += ldb;
        UNROLL for (int i = 0; i < n_a; i++) {
            a[i] += step;
            /* Keeps gcc from giving every row a pointer of its own, which it then spills: 0.7 times
             * the speed (gcc 12). */
            __asm__("" : "+r"(a[i]));
        }
    }
    UNROLL for (int r = 0; r < n_row; r++) {
        float *to = c + (size_t)r * p->ldc;
        if (p->keep == NULL) {
            UNROLL for (int v = 0; v < n_v; v++) v_store(to + v * VN, acc[r][v]);
            continue;
        }
        V keep = v_set(p->keep[row0 + r]), gain = v_set(p->gain[row0 + r]);
        UNROLL for (int v = 0; v < n_v; v++)
            v_store(to + v * VN, v_fma(acc[r][v], gain, v_load(to + v * VN) * keep));
    }
}

ALWAYS void strided_panels(const strided_part *s, int lane0, int n_row, int n_panel, bool is_half) {
    int r = 0, end = s->p->n_row;
    /* At eight lanes eight rows are two fours: two rows take as long as four, as each sum waits for
     * itself. */
    for (; r + n_row <= end && !(n_row == 6 && end - r == 8); r += n_row)
        strided_tile(s, r, lane0, n_row, n_panel, is_half);
#if STRIDED_ROWS > 8
    for (; r + 8 <= end; r += 8) strided_tile(s, r, lane0, 8, n_panel, is_half);
#endif
#if STRIDED_ROWS > 4
    for (; r + 4 <= end; r += 4) strided_tile(s, r, lane0, 4, n_panel, is_half);
#endif
#if STRIDED_ROWS > 2
    for (; r + 2 <= end; r += 2) strided_tile(s, r, lane0, 2, n_panel, is_half);
#endif
    for (; r < end; r++) strided_tile(s, r, lane0, 1, n_panel, is_half);
}

/* Two panels of so many inputs stay in the level-1 cache while all rows meet them. */
#define STRIDED_K 192

ALWAYS void strided_of(const hd_cpu_strided *p, bool is_half) {
    /* What is folded into c needs its sum in one piece. */
    int each = p->keep != NULL ? p->n_k : STRIDED_K;
    for (int k = 0; k < p->n_k; k += each) {
        strided_part s = {.p = p, .k0 = k, .n_k = p->n_k - k < each ? p->n_k - k : each};
        int lane = 0;
#if STRIDED_ROWS > 8
        for (; lane + 2 * HD_CPU_LANES <= p->n_lane; lane += 2 * HD_CPU_LANES)
            strided_panels(&s, lane, STRIDED_ROWS / 2, 2, is_half);
#endif
        for (; lane < p->n_lane; lane += HD_CPU_LANES)
            strided_panels(&s, lane, STRIDED_ROWS, 1, is_half);
    }
}

static void strided(const hd_cpu_strided *p) {
    if (p->b.is_half)
        strided_of(p, true);
    else
        strided_of(p, false);
}
