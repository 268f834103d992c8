/* Strips of floats (cpu/pack.h) at one instruction-set level: their products with rows, and panels
 * of them; included by kernel_product.h, over the same primitives. */

/* ---- Words ---- */

/* Input i of the words of VN outputs. An FP8 code's bits, moved to where a float has its sign,
 * exponent and fraction, are its value times 2^-120: also of subnormal codes. */
ALWAYS V word_input(enum hd_format f, const unsigned char *word, int i) {
    if (f == HD_F32) return v_decode_f32(word);
    if (f == HD_F16) return v_decode_f16(word + 2 * HD_CPU_STRIP_OUT * i);
    if (f == HD_BF16) return (V)(i == 0 ? w_load(word) << 16 : w_load(word) & 0xFFFF0000u);
    /* Two codes at once, in the upper bytes of both halves of a word. */
    typedef int16_t halves __attribute__((vector_size(sizeof(W))));
    halves two = (halves)(i % 2 == 1 ? w_load(word) : w_load(word) << 8) >> 4;
    return (V)((i < 2 ? (W)two << 16 : (W)two) & 0x87F00000u);
}

/* An input times its scale, which only FP8 has. */
ALWAYS V fp8_times(enum hd_format f, V x, V by, bool is_large) {
    if (f != HD_F8_B128) return x;
    return is_large ? x * v_set(0x1p120f) * by : x * by;
}

#define FP8_BLOCK (33 * 64) /* scales of 16 outputs and 128 codes of each */

/* Whether scales are too large to take in the factor 2^120, which would make one of them infinite;
 * else they do. Products with codes are rounded once either way. */
ALWAYS bool are_large(V *by, int n_v) {
    V most = v_abs(by[0]);
    UNROLL for (int v = 1; v < n_v; v++) most = v_max_bits(most, v_abs(by[v]));
    if (!(v_largest_bits(most) < 0x1p7f)) return true;
    UNROLL for (int v = 0; v < n_v; v++) by[v] = by[v] * v_set(0x1p120f);
    return false;
}

/* Bytes from one lane to the next. */
ALWAYS int lane_bytes(enum hd_format f) { return f == HD_F16 ? 2 : 4; }

/* ---- Panels ---- */

/* Of FP8 a block, else everything. */
ALWAYS void unpack_words(enum hd_format f, const hd_cpu_unpack *u, const unsigned char *word,
                         float *panel, V by, bool is_large) {
    int per = hd_cpu_word_inputs(f), n_k = f == HD_F8_B128 ? 128 : u->n_k, k = 0;
    for (; k + per <= n_k; k += per, word += 64) {
        UNROLL for (int i = 0; i < per; i++, panel += u->ld)
            v_store(panel, fp8_times(f, word_input(f, word, i), by, is_large));
    }
    if (k < n_k) v_store(panel, word_input(f, word, 0)); /* one of two */
}

ALWAYS void unpack_lanes(enum hd_format f, const hd_cpu_unpack *u, const unsigned char *strip,
                         float *panel) {
    if (f != HD_F8_B128) {
        size_t at = (size_t)(u->k0 / hd_cpu_word_inputs(f)) * 64;
        unpack_words(f, u, strip + at, panel, v_set(0), false);
        return;
    }
    const unsigned char *word = strip + (size_t)u->k0 / 128 * FP8_BLOCK;
    for (int k = 0; k < u->n_k; k += 128, word += FP8_BLOCK, panel += 128 * u->ld) {
        V by = v_decode_f32(word);
        if (are_large(&by, 1))
            unpack_words(f, u, word + 64, panel, by, true);
        else
            unpack_words(f, u, word + 64, panel, by, false);
    }
}

ALWAYS void unpack_as(enum hd_format f, const hd_cpu_unpack *u) {
    size_t n_byte = hd_cpu_strip_bytes(f, u->n_in);
    for (int o = 0; o < u->n_strip * HD_CPU_STRIP_OUT; o += VN)
        unpack_lanes(f, u,
                     u->strip + (size_t)(o / HD_CPU_STRIP_OUT) * n_byte +
                         o % HD_CPU_STRIP_OUT * lane_bytes(f),
                     u->panel + o);
}

static void unpack(const hd_cpu_unpack *u) {
    switch (u->format) {
    case HD_F32: unpack_as(HD_F32, u); break;
    case HD_F16: unpack_as(HD_F16, u); break;
    case HD_F8_B128: unpack_as(HD_F8_B128, u); break;
    default: unpack_as(HD_BF16, u); break;
    }
}

/* ---- Products ---- */

/* Strips whose sums go on side by side, as one sum alone would wait for itself: fewer lanes come
 * with half of the registers, which at eight lanes few rows do not fill with one strip. */
#define STREAM_STRIPS 4
ALWAYS int stream_strips(int n_row) {
    return VN == 16 ? STREAM_STRIPS : VN == 8 && n_row < 3 ? 2 : 1;
}

/* Words that a strip is asked for ahead of its reading; of FP8 a block. */
#define STREAM_AHEAD 32

/* Where a product is: input k, which lies at `word` of the first strip. */
typedef struct stream_sums {
    int k;
    const unsigned char *word, *ahead; /* ahead: what is asked for */
    size_t n_byte;                     /* from a strip to the next */
    const float *x[TILE_ROWS];
    V by[STREAM_STRIPS * VP], acc[TILE_ROWS][STREAM_STRIPS * VP];
} stream_sums;

ALWAYS const unsigned char *stream_vector(enum hd_format f, const stream_sums *t, int v) {
    return t->word + (size_t)(v / VP) * t->n_byte + v % VP * VN * lane_bytes(f);
}

ALWAYS void stream_on(stream_sums *t, int n_strip) {
    UNROLL for (int i = 0; i < n_strip; i++)
        __builtin_prefetch(t->ahead + (size_t)i * t->n_byte, 0, 3);
    t->word += 64;
    t->ahead += 64;
}

/* n_k inputs of a word. */
ALWAYS void stream_word(enum hd_format f, stream_sums *t, int n_k, int n_strip, int n_row,
                        bool is_large) {
    int n_v = n_strip * VP;
    UNROLL for (int i = 0; i < n_k; i++) {
        V w[STREAM_STRIPS * VP];
        UNROLL for (int v = 0; v < n_v; v++) w[v] =
            fp8_times(f, word_input(f, stream_vector(f, t, v), i), t->by[v], is_large);
        UNROLL for (int r = 0; r < n_row; r++) {
            V x = v_set(t->x[r][t->k + i]);
            UNROLL for (int v = 0; v < n_v; v++) v_add_product(&t->acc[r][v], x, w[v]);
        }
    }
    t->k += n_k;
    stream_on(t, n_strip);
}

/* Strips first .. first + n_strip with rows row0 .. row0 + n_row. */
ALWAYS void stream_tile(enum hd_format f, const hd_cpu_stream *s, int first, int n_strip, int row0,
                        int n_row) {
    int per = hd_cpu_word_inputs(f), n_ahead = f == HD_F8_B128 ? 128 : STREAM_AHEAD * per;
    int turn = (s->n_in + per - 1) / per * per - n_ahead, n_v = n_strip * VP;
    stream_sums t = {.n_byte = hd_cpu_strip_bytes(f, s->n_in)};
    t.word = s->strip + (size_t)first * t.n_byte;
    t.ahead = t.word + (f == HD_F8_B128 ? FP8_BLOCK : STREAM_AHEAD * 64);
    if (turn < 0) turn = 0;
    UNROLL for (int r = 0; r < n_row; r++) {
        t.x[r] = s->a[row0 + r];
        UNROLL for (int v = 0; v < n_v; v++) t.acc[r][v] = v_set(0);
    }
    while (t.k < s->n_in) {
        if (t.k == turn)
            t.ahead = first + n_strip < s->n_strip ? s->strip + (size_t)(first + n_strip) * t.n_byte
                                                   : s->next;
        int end = t.k < turn ? turn : s->n_in;
        if (f == HD_F8_B128) {
            end = t.k + 128;
            UNROLL for (int v = 0; v < n_v; v++) t.by[v] = v_decode_f32(stream_vector(f, &t, v));
            stream_on(&t, n_strip);
            if (are_large(t.by, n_v))
                while (t.k < end) stream_word(f, &t, 4, n_strip, n_row, true);
        }
        while (t.k + per <= end) stream_word(f, &t, per, n_strip, n_row, false);
        if (t.k < end) stream_word(f, &t, 1, n_strip, n_row, false); /* one of two */
    }
    UNROLL for (int r = 0; r < n_row; r++) {
        float *c = s->c[row0 + r] + first * HD_CPU_STRIP_OUT;
        UNROLL for (int v = 0; v < n_v; v++) v_store(c + v * VN, t.acc[r][v]);
    }
}

/* Rows row0 .. row0 + n_row. */
ALWAYS void stream_rows(enum hd_format f, const hd_cpu_stream *s, int row0, int n_row) {
    int n = stream_strips(n_row), i = 0;
    for (; i + n <= s->n_strip; i += n) stream_tile(f, s, i, n, row0, n_row);
    for (; n > 1 && i < s->n_strip; i++) stream_tile(f, s, i, 1, row0, n_row);
}

ALWAYS void stream_as(enum hd_format f, const hd_cpu_stream *s) {
    int r = 0;
    for (; r + TILE_ROWS <= s->n_row; r += TILE_ROWS) stream_rows(f, s, r, TILE_ROWS);
    switch (s->n_row - r) {
#if TILE_ROWS > 3
    case 5: stream_rows(f, s, r, 5); break;
    case 4: stream_rows(f, s, r, 4); break;
    case 3: stream_rows(f, s, r, 3); break;
    case 2: stream_rows(f, s, r, 2); break;
#endif
    case 1: stream_rows(f, s, r, 1); break;
    default: break;
    }
}

static void stream(const hd_cpu_stream *s) {
    switch (s->format) {
    case HD_F32: stream_as(HD_F32, s); break;
    case HD_F16: stream_as(HD_F16, s); break;
    case HD_F8_B128: stream_as(HD_F8_B128, s); break;
    default: stream_as(HD_BF16, s); break;
    }
}
