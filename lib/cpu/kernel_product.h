/* The kernels of one instruction-set level, written once over a handful of vector primitives.
 *
 * Included by the levels after they have defined V (VN
 * float lanes), VI, the v_* primitives and the tile sizes that their register file can hold.
 * Everything is static; the table at the end is the only symbol. Sums over a row use 16 partial
 * sums at every level, whatever VN is.
 */

#include "cpu/kernel_codes.h"

#define UNROLL_STEP _Pragma("GCC unroll 64")
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

/* ---- Unpacking: VN rows x VN inputs at a time, transposed in registers ---- */

ALWAYS V decode_lanes(enum hd_format f, const unsigned char *row, int k) {
    size_t at = (size_t)k;
    switch (f) {
    case HD_F32: return v_decode_f32(row + 4 * at);
    case HD_F16: return v_decode_f16(row + 2 * at);
    default: return v_decode_bf16(row + 2 * at);
    }
}

/* The last n < VN inputs of a row, zeros after them. */
ALWAYS V decode_tail(enum hd_format f, const unsigned char *row, int k, int n) {
    size_t width = f == HD_F32 ? 4 : 2;
    unsigned char part[VN * 4] = {0};
    __builtin_memcpy(part, row + width * (size_t)k, width * (size_t)n);
    return decode_lanes(f, part, 0);
}

/* Keeps gcc from holding a block's 32 stores back over the loop, which spills every register: 1.6
 * times slower on BF16 (gcc 12). */
#define SETTLE() __atomic_signal_fence(__ATOMIC_SEQ_CST)

/* What fits a float-sized element travels as one through the transpose, so that there are fewer
 * shuffles: two BF16 values, or four FP8 codes. Inputs of a step, then: */
ALWAYS int step_of(enum hd_format f) {
    return f == HD_BF16 ? 2 * VN : f == HD_F8_B128 ? 4 * VN : VN;
}

/* VN rows from input k on, transposed; rows that are NULL, or from n_row on, are zeros. */
ALWAYS void load_step(enum hd_format f, const void *const *row, int n_row, bool is_full, int k,
                      V *v) {
    size_t at = f == HD_F8_B128 ? (size_t)k / 128 * 132 + 4 + (size_t)k % 128 : 2 * (size_t)k;
    UNROLL for (int i = 0; i < VN; i++) {
        if (!is_full && (i >= n_row || row[i] == 0))
            v[i] = v_set(0);
        else if (f == HD_BF16 || f == HD_F8_B128)
            v[i] = v_decode_f32((const unsigned char *)row[i] + at);
        else
            v[i] = decode_lanes(f, row[i], k);
    }
    v_transpose(v);
}

/* Of FP8: the scales of VN rows' blocks at input k, which are no numbers in a row of which v has a
 * code that is none: one such weight makes all that follows from it no number. */
ALWAYS V load_step_scale(const void *const *row, int n_row, bool is_full, int k, const V *v) {
    float scale[VN];
    UNROLL for (int i = 0; i < VN; i++) {
        scale[i] = 0;
        if (is_full || (i < n_row && row[i] != 0))
            __builtin_memcpy(&scale[i], (const unsigned char *)row[i] + (size_t)k / 128 * 132, 4);
    }
    W top = {0};
    UNROLL for (int i = 0; i < VN; i++) top |= ((W)v[i] & 0x7F7F7F7Fu) + 0x01010101u;
    W is_nan = (W)((top & 0x80808080u) != 0);
    return (V)((is_nan & 0x7FC00000u) | (~is_nan & (W)v_load(scale)));
}

/* Input i of a step. An FP8 code's bits, moved to where a float has its sign, exponent and
 * fraction, are its value times 2^-120: also of subnormal codes. */
ALWAYS V step_input(enum hd_format f, const V *v, V scale, int i) {
    if (f == HD_BF16) return i % 2 == 0 ? v_low_bf16(v[i / 2]) : v_high_bf16(v[i / 2]);
    if (f != HD_F8_B128) return v[i];
    typedef int32_t ints __attribute__((vector_size(sizeof(W))));
    ints bits = (ints)((W)v[i / 4] << (24 - 8 * (i % 4))) >> 4;
    return (V)((W)bits & 0x87F00000u) * v_set(0x1p120f) * scale;
}

ALWAYS void unpack_lanes(enum hd_format f, const void *const *row, int n_row, bool is_full, int k0,
                         int n_k, float *panel, size_t ld) {
    V v[VN], scale = v_set(0);
    int k = 0, n_step = step_of(f);
    for (; k + n_step <= n_k; k += n_step) {
        load_step(f, row, n_row, is_full, k0 + k, v);
        if (f == HD_F8_B128) scale = load_step_scale(row, n_row, is_full, k0 + k, v);
        UNROLL_STEP for (int i = 0; i < n_step; i++, panel += ld)
            v_store(panel, step_input(f, v, scale, i));
        SETTLE();
    }
    for (; k + VN <= n_k; k += VN) { /* BF16, half of a step */
        UNROLL for (int i = 0; i < VN; i++) v[i] =
            is_full || (i < n_row && row[i] != 0) ? decode_lanes(f, row[i], k0 + k) : v_set(0);
        v_transpose(v);
        UNROLL for (int i = 0; i < VN; i++, panel += ld) v_store(panel, v[i]);
    }
    int tail = n_k - k;
    if (tail == 0) return;
    for (int i = 0; i < VN; i++)
        v[i] = i < n_row && row[i] != 0 ? decode_tail(f, row[i], k0 + k, tail) : v_set(0);
    v_transpose(v);
    for (int i = 0; i < tail; i++, panel += ld) v_store(panel, v[i]);
}

ALWAYS void unpack_as(enum hd_format f, const void *const *row, int n_row, int k0, int n_k,
                      float *panel, size_t ld) {
    int n_lane = (n_row + HD_CPU_LANES - 1) / HD_CPU_LANES * HD_CPU_LANES;
    for (int o = 0; o < n_lane; o += VN) {
        bool is_full = n_row - o >= VN;
        for (int i = 0; is_full && i < VN; i++) is_full = row[o + i] != 0;
        if (is_full)
            unpack_lanes(f, row + o, VN, true, k0, n_k, panel + o, ld);
        else
            unpack_lanes(f, row + o, n_row - o, false, k0, n_k, panel + o, ld);
    }
}

static void unpack(enum hd_format f, const void *const *row, int n_row, int k0, int n_k,
                   float *panel, size_t ld) {
    switch (f) {
    case HD_F32: unpack_as(HD_F32, row, n_row, k0, n_k, panel, ld); break;
    case HD_F16: unpack_as(HD_F16, row, n_row, k0, n_k, panel, ld); break;
    case HD_F8_B128: unpack_as(HD_F8_B128, row, n_row, k0, n_k, panel, ld); break;
    default: unpack_as(HD_BF16, row, n_row, k0, n_k, panel, ld); break;
    }
}

/* ---- Few rows: from the transpose straight into the sums ---- */

/* Outputs whose sums go on side by side, as one sum alone waits for itself. */
#define STREAM_PANELS (HD_CPU_STRIP / VN)

/* Element j of the transposed steps of n_v vectors of outputs, times the rows' inputs. */
ALWAYS void stream_sums(enum hd_format f, const hd_cpu_stream *s, int k, int o, int n_v, int n_row,
                        const V t[STREAM_PANELS][VN], const V *scale) {
    enum { most = 4 };
    V acc[most][HD_CPU_STREAM_ROWS];
    const float *x[HD_CPU_STREAM_ROWS];
    bool is_first = k == s->k0 && !s->is_sum;
    int per = step_of(f) / VN;
    UNROLL for (int r = 0; r < n_row; r++) {
        x[r] = s->a[r] + k;
        UNROLL for (int v = 0; v < n_v; v++) acc[v][r] =
            is_first ? v_set(0) : v_load(s->c[r] + o + v * VN);
    }
    for (int j = 0; j < VN; j++) {
        UNROLL for (int i = 0; i < per; i++) {
            UNROLL for (int v = 0; v < n_v; v++) {
                V w = step_input(f, t[v] + j, scale[v], i);
                UNROLL for (int r = 0; r < n_row; r++) acc[v][r] =
                    v_fma(v_set(x[r][j * per + i]), w, acc[v][r]);
            }
        }
    }
    UNROLL for (int r = 0; r < n_row; r++) {
        UNROLL for (int v = 0; v < n_v; v++) v_store(s->c[r] + o + v * VN, acc[v][r]);
    }
}

ALWAYS void stream_rows(enum hd_format f, const hd_cpu_stream *s, int n_row) {
    V t[STREAM_PANELS][VN], scale[STREAM_PANELS];
    int n_step = step_of(f), n_v = n_row > 2 && VN < 16 ? 2 : 4;
    for (int k = s->k0; k < s->k0 + s->n_k; k += n_step) {
        for (int v = 0; v * VN < s->n_out; v++) {
            load_step(f, s->row + v * VN, VN, true, k, t[v]);
            scale[v] =
                f == HD_F8_B128 ? load_step_scale(s->row + v * VN, VN, true, k, t[v]) : v_set(0);
            SETTLE();
        }
        int v = 0, n = s->n_out / VN;
        for (; v + n_v <= n; v += n_v) stream_sums(f, s, k, v * VN, n_v, n_row, t + v, scale + v);
        for (; v < n; v++) stream_sums(f, s, k, v * VN, 1, n_row, t + v, scale + v);
    }
}

ALWAYS void stream_as(enum hd_format f, const hd_cpu_stream *s) {
    switch (s->n_row) {
    case 1: stream_rows(f, s, 1); break;
    case 2: stream_rows(f, s, 2); break;
    case 3: stream_rows(f, s, 3); break;
    default: stream_rows(f, s, 4); break;
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
