/* The kernels of attention at one instruction-set level; included by kernel_rows.h, over the same
 * primitives. Queries lie across lanes in scores and weights, [position, query], so that a softmax
 * needs no sum over lanes and keys are read as the cache has them, position by position. */

/* ---- Products ---- */

/* Inputs k0 .. k0 + n_k of a product. */
typedef struct strided_part {
    const hd_cpu_strided *p;
    int k0, n_k;
} strided_part;

/* One register tile. Rows go in fours from one pointer: addresses then take few registers. What is
 * fetched ahead is taken as if the rows' pieces followed one another: where a page ends in between,
 * a wrong line costs nothing but its fetching. */
ALWAYS void strided_tile(const strided_part *s, int row0, int lane0, int n_row, int n_panel) {
    enum { ROWS_MOST = 16, EACH = 4 };
    const hd_cpu_strided *p = s->p;
    const float *a[ROWS_MOST / EACH], *b[2];
    V acc[ROWS_MOST][2 * VP];
    size_t row = p->a_row, row3 = 3 * row, step = p->a_step, ldb = p->ldb;
    int n_v = n_panel * VP, n_a = (n_row + EACH - 1) / EACH;
    bool is_ahead = p->ahead != NULL && lane0 == 0;
    size_t ahead_step = is_ahead ? p->ahead_bytes * (size_t)n_row / (size_t)p->n_k : 0;
    const char *ahead = is_ahead ? p->ahead[row0] : (const char *)p->b;
    ahead += (size_t)s->k0 * ahead_step;
    float *c = p->c + (size_t)row0 * p->ldc + lane0;
    bool is_sum = p->is_sum || s->k0 > 0;
    UNROLL for (int i = 0; i < n_a; i++) a[i] =
        p->a + (size_t)(row0 + i * EACH) * row + (size_t)s->k0 * step;
    UNROLL for (int i = 0; i < n_panel; i++) b[i] =
        p->b + (size_t)(lane0 / HD_CPU_LANES + i) * p->b_panel + (size_t)s->k0 * ldb;
    UNROLL for (int r = 0; r < n_row; r++) {
        UNROLL for (int v = 0; v < n_v; v++) acc[r][v] =
            is_sum ? v_load(c + (size_t)r * p->ldc + v * VN) : v_set(0);
    }
    for (int k = s->n_k; k > 0; k--) {
        V w[2 * VP];
        __builtin_prefetch(ahead, 0, 2);
        ahead += ahead_step;
        UNROLL for (int v = 0; v < n_v; v++) w[v] = v_load(b[v / VP] + v % VP * VN);
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

ALWAYS void strided_panels(const strided_part *s, int lane0, int n_row, int n_panel) {
    int r = 0, end = s->p->n_row;
    for (; r + n_row <= end; r += n_row) strided_tile(s, r, lane0, n_row, n_panel);
#if STRIDED_ROWS > 8
    for (; r + 8 <= end; r += 8) strided_tile(s, r, lane0, 8, n_panel);
#endif
#if STRIDED_ROWS > 4
    for (; r + 4 <= end; r += 4) strided_tile(s, r, lane0, 4, n_panel);
#endif
#if STRIDED_ROWS > 2
    for (; r + 2 <= end; r += 2) strided_tile(s, r, lane0, 2, n_panel);
#endif
    for (; r < end; r++) strided_tile(s, r, lane0, 1, n_panel);
}

/* Two panels of so many inputs stay in the level-1 cache while all rows meet them. */
#define STRIDED_K 192

static void strided(const hd_cpu_strided *p) {
    /* What is folded into c needs its sum in one piece. */
    int each = p->keep != NULL ? p->n_k : STRIDED_K;
    for (int k = 0; k < p->n_k; k += each) {
        strided_part s = {.p = p, .k0 = k, .n_k = p->n_k - k < each ? p->n_k - k : each};
        int lane = 0;
#if STRIDED_ROWS > 8
        for (; lane + 2 * HD_CPU_LANES <= p->n_lane; lane += 2 * HD_CPU_LANES)
            strided_panels(&s, lane, STRIDED_ROWS / 2, 2);
#endif
        for (; lane < p->n_lane; lane += HD_CPU_LANES) strided_panels(&s, lane, STRIDED_ROWS, 1);
    }
}

/* ---- Softmax ---- */

static void weigh(const hd_cpu_weighing *w) {
    for (int q = 0; q < w->n_lane; q += VN) {
        float *s = w->s + q;
        V scale = v_set(w->scale), top = v_set(-__builtin_inff()), sum = v_set(0);
        for (int t = 0; t < w->n_t; t++) {
            V e = v_load(s + (size_t)t * w->lds) * scale;
            v_store(s + (size_t)t * w->lds, e);
            top = v_max(e, top); /* passes over NaN */
        }
        /* exp(-inf - -inf) is NaN: only where nothing finite was seen, and there is no answer. */
        for (int t = 0; t < w->n_t; t++) {
            V e = v_exp(v_load(s + (size_t)t * w->lds) - top);
            v_store(s + (size_t)t * w->lds, e);
            sum = sum + e;
        }
        v_store(w->m + q, top);
        v_store(w->l + q, sum);
    }
}

static void merge(const hd_cpu_merging *g) {
    for (int q = 0; q < g->n_lane; q += VN) {
        V m = v_load(g->m + q), block = v_load(g->block_m + q), top = v_max(block, m);
        V keep = v_exp(m - top), gain = v_exp(block - top);
        v_store(g->m + q, top);
        v_store(g->l + q, v_fma(v_load(g->block_l + q), gain, v_load(g->l + q) * keep));
        v_store(g->keep + q, keep);
        v_store(g->gain + q, gain);
    }
}

static void fold(float *x, const float *y, int n, float keep, float gain) {
    for (int i = 0; i < n; i += VN)
        v_store(x + i, v_fma(v_load(y + i), v_set(gain), v_load(x + i) * v_set(keep)));
}
