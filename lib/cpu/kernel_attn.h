/* The kernels of attention at one instruction-set level; included by kernel_rows.h, over the same
 * primitives. Queries lie across lanes in scores and weights, [position, query], so that a softmax
 * needs no sum over lanes. */

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

/* ---- Scores ---- */

/* A vector holds four values of VN / 4 queries each, and meets the same four values of a key: keys
 * are read as the cache has them, and any four heads fill vectors of any level. */
#define FOUR_V (HD_CPU_LANES / VN) /* vectors of four values of four queries */
#define SCORE_FOURS (VN == 16 ? 4 : 1)

/* Of all keys: the values that come in whole fours, or the rest of them and zeros. */
typedef struct key_part {
    const char *k;
    size_t ld; /* bytes */
    int n_four;
} key_part;

typedef struct score_part {
    const hd_cpu_scoring *p;
    key_part key[2];
    int four0; /* queries from 4 * four0 on */
} score_part;

/* Rows of a tile of so many fours of queries. */
ALWAYS int score_rows(int n_four) {
    if (VN < 16) return STRIDED_ROWS;
    return n_four == 1 ? 16 : n_four < 4 ? 8 : 6;
}

ALWAYS void store_scores(const score_part *s, int t0, const V *acc, int n_row, int n_four) {
    enum { EACH = VN / 4 }; /* fours of scores a vector */
    const hd_cpu_scoring *p = s->p;
    float *to = p->s + (size_t)t0 * p->lds + 4 * s->four0;
    int n_v = n_row * n_four * FOUR_V;
    UNROLL for (int i = 0; i < n_v; i += 4) {
        V four[4];
        UNROLL for (int j = 0; j < 4; j++) four[j] = i + j < n_v ? acc[i + j] : v_set(0);
        V sum = v_sum_fours(four);
        int at = i / 4 * EACH;
        if (n_four == EACH) {
            v_store(to + (size_t)(at / n_four) * p->lds, sum);
            continue;
        }
        UNROLL for (int j = 0; j < EACH; j++) if (at + j < n_row * n_four)
            v_store_four(to + (size_t)((at + j) / n_four) * p->lds + (at + j) % n_four * 4, sum, j);
    }
}

/* One register tile, addresses as in strided_tile. */
ALWAYS void score_tile(const score_part *s, int t0, int n_row, int n_four, bool is_half) {
    enum { ROWS_MOST = 16, EACH = 4 };
    const hd_cpu_scoring *p = s->p;
    V acc[ROWS_MOST * SCORE_FOURS * FOUR_V];
    int n_v = n_four * FOUR_V, n_a = (n_row + EACH - 1) / EACH;
    size_t apart = (size_t)(p->n_key + 3) / 4 * 16;
    const float *q = p->q + (size_t)s->four0 * apart;
    wanted ahead = {.at = (const char *)q};
    if (ALL_ASK || s->four0 == 0)
        ahead = want(&p->ahead, q, s->four0 * p->n_t + t0, n_row,
                     p->n_t * (ALL_ASK ? p->n_four : 1), (p->n_key + 3) / 4);
    UNROLL for (int i = 0; i < n_row * n_v; i++) acc[i] = v_set(0);
    for (int half = 0; half < 2; half++) {
        const key_part *key = &s->key[half];
        size_t row = key->ld, row3 = 3 * row;
        const char *a[ROWS_MOST / EACH];
        UNROLL for (int i = 0; i < n_a; i++) a[i] = key->k + (size_t)(t0 + i * EACH) * row;
        /* By twos: a prompt's short keys lose 4 % of the speed without (Zen 5). */
        _Pragma("GCC unroll 2") for (int k = key->n_four; k > 0; k--) {
            V w[SCORE_FOURS * FOUR_V];
            UNROLL for (int i = 0; i < n_row; i += EACH)
                __builtin_prefetch(ahead.at + i / EACH * LINE_BYTES, 0, 2);
            ahead.at += ahead.step;
            UNROLL for (int v = 0; v < n_v; v++) w[v] =
                v_load(q + (size_t)(v / FOUR_V) * apart + v % FOUR_V * VN);
            UNROLL for (int r = 0; r < n_row; r++) {
                size_t at = r % EACH == 3 ? row3 : (size_t)(r % EACH) * row;
                V x = value_four(a[r / EACH] + at, is_half);
                UNROLL for (int v = 0; v < n_v; v++) acc[r * n_v + v] =
                    v_fma(x, w[v], acc[r * n_v + v]);
            }
            q += 16;
            UNROLL for (int i = 0; i < n_a; i++) {
                a[i] += 4 * value_bytes(is_half);
                __asm__("" : "+r"(a[i]));
            }
        }
    }
    store_scores(s, t0, acc, n_row, n_four);
}

ALWAYS void score_tiles(const score_part *s, int n_four, bool is_half) {
    int t = 0, end = s->p->n_t, n_row = score_rows(n_four);
    for (; t + n_row <= end; t += n_row) score_tile(s, t, n_row, n_four, is_half);
#if STRIDED_ROWS > 8
    if (n_row > 8)
        for (; t + 8 <= end; t += 8) score_tile(s, t, 8, n_four, is_half);
#endif
#if STRIDED_ROWS > 4
    for (; t + 4 <= end; t += 4) score_tile(s, t, 4, n_four, is_half);
#endif
#if STRIDED_ROWS > 2
    for (; t + 2 <= end; t += 2) score_tile(s, t, 2, n_four, is_half);
#endif
    for (; t < end; t++) score_tile(s, t, 1, n_four, is_half);
}

ALWAYS void score_of(const hd_cpu_scoring *p, bool is_half) {
    float rest[HD_CPU_SCORE_KEYS][4];
    size_t each = value_bytes(is_half), ld = p->k.ld * each, n_rest = (size_t)p->n_key % 4;
    const char *k = p->k.at, *behind = k + ((size_t)p->n_key - n_rest) * each;
    for (int t = 0; n_rest > 0 && t < p->n_t; t++) {
        __builtin_memset(rest[t], 0, sizeof rest[t]);
        __builtin_memcpy(rest[t], behind + (size_t)t * ld, n_rest * each);
    }
    score_part s = {
        .p = p, .key = {{k, ld, p->n_key / 4}, {(const char *)rest, sizeof rest[0], n_rest > 0}}};
    for (int left = p->n_four, n; left > 0; left -= n, s.four0 += n) {
        int n_pass = (left + SCORE_FOURS - 1) / SCORE_FOURS;
        n = (left + n_pass - 1) / n_pass;
#if VN == 16
        if (n == 4) score_tiles(&s, 4, is_half);
        if (n == 3) score_tiles(&s, 3, is_half);
        if (n == 2) score_tiles(&s, 2, is_half);
#endif
        if (n == 1) score_tiles(&s, 1, is_half);
    }
}

static void score(const hd_cpu_scoring *p) {
    if (p->k.is_half)
        score_of(p, true);
    else
        score_of(p, false);
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
