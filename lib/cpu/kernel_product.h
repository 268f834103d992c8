/* The kernels of one instruction-set level, written once over a handful of vector primitives.
 *
 * Included by the levels after they have defined V (VN
 * float lanes), VI, the v_* primitives and the tile sizes that their register file can hold.
 * Everything is static; the table at the end is the only symbol. Sums over a row use 16 partial
 * sums at every level, whatever VN is.
 */

#include "cpu/kernel_codes.h"

#define VP (HD_CPU_LANES / VN) /* vectors a panel of 16 lanes */

/* ---- Products ---- */

/* One register tile: n_row x n_panel, both constants after inlining. */
ALWAYS void tile(const hd_cpu_product *p, int row0, int lane0, int n_row, int n_panel) {
    const float *a[TILE_ROWS];
    V acc[TILE_ROWS][TILE_PANELS * VP];
    int n_v = n_panel * VP;
    UNROLL for (int r = 0; r < n_row; r++) {
        a[r] = p->a[row0 + r] + p->a_off;
        const float *c = p->c[row0 + r] + lane0;
        UNROLL for (int v = 0; v < n_v; v++) acc[r][v] = p->is_sum ? v_load(c + v * VN) : v_set(0);
    }
    const float *b = p->b + lane0;
    size_t at = 0;
    for (int k = 0; k < p->n_k; k++, b += p->ldb, at += p->a_step) {
        V w[TILE_PANELS * VP];
        UNROLL for (int v = 0; v < n_v; v++) w[v] = v_load(b + v * VN);
        UNROLL for (int r = 0; r < n_row; r++) {
            V x = v_set(a[r][at]);
            UNROLL for (int v = 0; v < n_v; v++) v_add_product(&acc[r][v], x, w[v]);
        }
    }
    UNROLL for (int r = 0; r < n_row; r++) {
        float *c = p->c[row0 + r] + lane0;
        UNROLL for (int v = 0; v < n_v; v++) v_store(c + v * VN, acc[r][v]);
    }
}

ALWAYS void tile_rows(const hd_cpu_product *p, int lane0, int n_panel) {
    int r = 0;
    for (; r + TILE_ROWS <= p->n_row; r += TILE_ROWS) tile(p, r, lane0, TILE_ROWS, n_panel);
    switch (p->n_row - r) {
#if TILE_ROWS > 3
    case 5: tile(p, r, lane0, 5, n_panel); break;
    case 4: tile(p, r, lane0, 4, n_panel); break;
    case 3: tile(p, r, lane0, 3, n_panel); break;
    case 2: tile(p, r, lane0, 2, n_panel); break;
#endif
    case 1: tile(p, r, lane0, 1, n_panel); break;
    default: break;
    }
}

static void product(const hd_cpu_product *p) {
    int lane = 0;
    for (; lane + TILE_PANELS * HD_CPU_LANES <= p->n_lane; lane += TILE_PANELS * HD_CPU_LANES)
        tile_rows(p, lane, TILE_PANELS);
#if TILE_PANELS > 2
    for (; lane + 2 * HD_CPU_LANES <= p->n_lane; lane += 2 * HD_CPU_LANES) tile_rows(p, lane, 2);
#endif
#if TILE_PANELS > 1
    for (; lane < p->n_lane; lane += HD_CPU_LANES) tile_rows(p, lane, 1);
#endif
}

/* ---- Rows across lanes: VN rows x VN elements at a time, transposed in registers ---- */

ALWAYS V decode_lanes(enum hd_format f, const unsigned char *row, int k) {
    size_t at = (size_t)k;
    switch (f) {
    case HD_F32: return v_decode_f32(row + 4 * at);
    case HD_F16: return v_decode_f16(row + 2 * at);
    default: return v_decode_bf16(row + 2 * at);
    }
}

/* The last n < VN elements of a row, zeros after them. */
ALWAYS V decode_tail(enum hd_format f, const unsigned char *row, int k, int n) {
    size_t width = f == HD_F32 ? 4 : 2;
    unsigned char part[VN * 4] = {0};
    __builtin_memcpy(part, row + width * (size_t)k, width * (size_t)n);
    return decode_lanes(f, part, 0);
}

/* Keeps gcc from holding a block's stores back over the loop, which spills every register: 1.6
 * times slower (gcc 12). */
#define SETTLE() __atomic_signal_fence(__ATOMIC_SEQ_CST)

ALWAYS void few_lanes(const float *const *row, int n_row, int n, float *panel, size_t ld) {
    V v[VN];
    int k = 0, tail = n % VN;
    for (; k < n - tail; k += VN) {
        UNROLL for (int i = 0; i < VN; i++) v[i] = i < n_row ? v_load(row[i] + k) : v_set(0);
        v_transpose(v);
        UNROLL for (int i = 0; i < VN; i++, panel += ld) v_store(panel, v[i]);
        SETTLE();
    }
    if (tail == 0) return;
    for (int i = 0; i < VN; i++) {
        const unsigned char *from = (const void *)row[i < n_row ? i : 0];
        v[i] = i < n_row ? decode_tail(HD_F32, from, k, tail) : v_set(0);
    }
    v_transpose(v);
    for (int i = 0; i < tail; i++, panel += ld) v_store(panel, v[i]);
}

static void lanes(const float *const *row, int n_row, int n, float *panel, size_t ld) {
    int n_lane = (n_row + HD_CPU_LANES - 1) / HD_CPU_LANES * HD_CPU_LANES;
    for (int o = 0; o < n_lane; o += VN) {
        if (n_row - o >= VN)
            few_lanes(row + o, VN, n, panel + o, ld);
        else
            few_lanes(row + o, n_row - o, n, panel + o, ld);
    }
}

/* ---- Strips of floats ---- */

/* Input i of the words of VN outputs. An FP8 code's bits, moved to where a float has its sign,
 * exponent and fraction, are its value times 2^-120: also of subnormal codes. */
ALWAYS V word_input(enum hd_format f, const unsigned char *word, V scale, int i) {
    if (f == HD_F32) return v_decode_f32(word);
    if (f == HD_F16) return v_decode_f16(word + 2 * HD_CPU_STRIP_OUT * i);
    if (f == HD_BF16) return (V)(i == 0 ? w_load(word) << 16 : w_load(word) & 0xFFFF0000u);
    typedef int32_t ints __attribute__((vector_size(sizeof(W))));
    ints bits = (ints)(w_load(word) << (24 - 8 * i)) >> 4;
    return (V)((W)bits & 0x87F00000u) * v_set(0x1p120f) * scale;
}

/* Bytes from one lane to the next. */
ALWAYS int lane_bytes(enum hd_format f) { return f == HD_F16 ? 2 : 4; }

ALWAYS void unpack_lanes(enum hd_format f, const hd_cpu_unpack *u, const unsigned char *strip,
                         float *panel) {
    int per = hd_cpu_word_inputs(f), k = 0;
    const unsigned char *word = strip;
    V scale = v_set(0);
    if (f == HD_F8_B128)
        word += (size_t)u->k0 / 128 * 33 * 64;
    else
        word += (size_t)u->k0 / (size_t)per * 64;
    for (; k + per <= u->n_k; k += per, word += 64) {
        if (f == HD_F8_B128 && k % 128 == 0) scale = v_decode_f32(word), word += 64;
        UNROLL for (int i = 0; i < per; i++, panel += u->ld)
            v_store(panel, word_input(f, word, scale, i));
    }
    if (k < u->n_k) v_store(panel, word_input(f, word, scale, 0)); /* one of two */
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

/* Strips whose sums go on side by side, as one sum alone would wait for itself: eight lanes come
 * with half of the registers, which few rows do not fill with one strip. */
#define STREAM_STRIPS 4
ALWAYS int stream_strips(int n_row) { return VN == 8 ? n_row < 4 ? 2 : 1 : STREAM_STRIPS; }

/* How far ahead of its reading a strip is asked for. */
#define STREAM_AHEAD 32 /* words; FP8: a block, with its scales */

/* Where a product is: input k, which lies at `word` of the first strip. */
typedef struct stream_sums {
    int k;
    const unsigned char *word, *ahead; /* ahead: what is asked for */
    size_t n_byte;                     /* from a strip to the next */
    const float *x[TILE_ROWS];
    V scale[STREAM_STRIPS * VP], acc[TILE_ROWS][STREAM_STRIPS * VP];
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
ALWAYS void stream_word(enum hd_format f, stream_sums *t, int n_k, int n_strip, int n_row) {
    int n_v = n_strip * VP;
    UNROLL for (int i = 0; i < n_k; i++) {
        V w[STREAM_STRIPS * VP];
        UNROLL for (int v = 0; v < n_v; v++) w[v] =
            word_input(f, stream_vector(f, t, v), t->scale[v], i);
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
    t.ahead = t.word + (f == HD_F8_B128 ? 33 : STREAM_AHEAD) * 64;
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
            UNROLL for (int v = 0; v < n_v; v++) t.scale[v] = v_decode_f32(stream_vector(f, &t, v));
            stream_on(&t, n_strip);
        }
        while (t.k + per <= end) stream_word(f, &t, per, n_strip, n_row);
        if (t.k < end) stream_word(f, &t, 1, n_strip, n_row); /* one of two */
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
    if (n == 1) return;
    for (; i < s->n_strip; i++) stream_tile(f, s, i, 1, row0, n_row);
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
