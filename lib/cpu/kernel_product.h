/* The kernels of one instruction-set level, written once over a handful of vector primitives.
 *
 * Included by the levels after they have defined V (VN float lanes), VI, the v_* primitives and the
 * tile sizes that their register file can hold. Everything is static; the table in kernel_rows.h is
 * the only symbol. Sums over a row use 16 partial sums at every level, whatever VN is. */

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

#include "cpu/kernel_stream.h"
