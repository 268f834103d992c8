/* Scores and their softmax at one instruction-set level; included by kernel_rows.h, behind
 * kernel_attn.h. Queries lie across lanes in scores and weights, [position, query], so that a
 * softmax needs no sum over lanes. */

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
    for (int part = 0; part < 2; part++) {
        const key_part *key = &s->key[part];
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
