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
            UNROLL for (int v = 0; v < n_v; v++) acc[r][v] = v_fma(x, w[v], acc[r][v]);
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

/* Vectors of outputs whose sums go on side by side, as one sum alone would wait for itself. */
#define STREAM_VECTORS (VN == 8 ? 2 : 4) /* eight lanes come with half of the registers */

/* How far ahead of its reading a strip is asked for. */
#define STREAM_AHEAD 2048

typedef struct stream_sums {
    const unsigned char *strip[STREAM_VECTORS]; /* the vector's part of it */
    size_t at;                                  /* bytes of the strips read so far, */
    size_t turn;                                /* and from which on the next ones are asked for, */
    ptrdiff_t ahead, to_next;                   /* that far from what is read */
    const float *x[TILE_ROWS];
    V scale[STREAM_VECTORS], acc[STREAM_VECTORS][TILE_ROWS];
} stream_sums;

ALWAYS void stream_on(stream_sums *t, int n_v) {
    UNROLL for (int v = 0; v < n_v; v += HD_CPU_STRIP_OUT / VN)
        __builtin_prefetch(t->strip[v] + t->at + t->ahead, 0, 3);
    t->at += 64;
    if (t->at == t->turn) t->ahead += t->to_next;
}

/* n_k inputs of a word, from k on. */
ALWAYS void stream_word(enum hd_format f, stream_sums *t, int k, int n_k, int n_v, int n_row) {
    UNROLL for (int i = 0; i < n_k; i++) {
        UNROLL for (int v = 0; v < n_v; v++) {
            V w = word_input(f, t->strip[v] + t->at, t->scale[v], i);
            UNROLL for (int r = 0; r < n_row; r++) t->acc[v][r] =
                v_fma(v_set(t->x[r][k + i]), w, t->acc[v][r]);
        }
    }
    stream_on(t, n_v);
}

/* n_v vectors of outputs from `lane` on. */
ALWAYS void stream_lanes(enum hd_format f, const hd_cpu_stream *s, int lane, int n_v, int row0,
                         int n_row) {
    size_t n_byte = hd_cpu_strip_bytes(f, s->n_in);
    int per = hd_cpu_word_inputs(f), n_each = f == HD_F8_B128 ? 128 : s->n_in;
    int end = lane + n_v * VN, n_lane = s->n_strip * HD_CPU_STRIP_OUT;
    const unsigned char *first = s->strip + (size_t)(lane / HD_CPU_STRIP_OUT) * n_byte;
    const unsigned char *next =
        end < n_lane ? s->strip + (size_t)(end / HD_CPU_STRIP_OUT) * n_byte : s->next;
    stream_sums t = {.turn = n_byte > STREAM_AHEAD ? n_byte - STREAM_AHEAD : 64,
                     .ahead = STREAM_AHEAD,
                     .to_next = next - first - (ptrdiff_t)n_byte};
    UNROLL for (int v = 0; v < n_v; v++) {
        int o = lane + v * VN;
        t.strip[v] = s->strip + (size_t)(o / HD_CPU_STRIP_OUT) * n_byte +
                     o % HD_CPU_STRIP_OUT * lane_bytes(f);
        UNROLL for (int r = 0; r < n_row; r++) t.acc[v][r] = v_set(0);
    }
    UNROLL for (int r = 0; r < n_row; r++) t.x[r] = s->a[row0 + r];
    for (int k = 0, k_end; k < s->n_in;) {
        if (f == HD_F8_B128) {
            UNROLL for (int v = 0; v < n_v; v++) t.scale[v] = v_decode_f32(t.strip[v] + t.at);
            stream_on(&t, n_v);
        }
        for (k_end = k + n_each; k + per <= k_end; k += per) stream_word(f, &t, k, per, n_v, n_row);
        if (k < k_end) stream_word(f, &t, k++, 1, n_v, n_row); /* one of two */
    }
    UNROLL for (int r = 0; r < n_row; r++) {
        UNROLL for (int v = 0; v < n_v; v++) v_store(s->c[row0 + r] + lane + v * VN, t.acc[v][r]);
    }
}

/* Rows row0 .. row0 + n_row. */
ALWAYS void stream_rows(enum hd_format f, const hd_cpu_stream *s, int row0, int n_row) {
    int n_v = STREAM_VECTORS, lane = 0, n_lane = s->n_strip * HD_CPU_STRIP_OUT;
    for (; lane + n_v * VN <= n_lane; lane += n_v * VN) stream_lanes(f, s, lane, n_v, row0, n_row);
    for (; lane < n_lane; lane += VN) stream_lanes(f, s, lane, 1, row0, n_row);
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
