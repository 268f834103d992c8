/* Products of weights with rows of activations, split over threads by strips of outputs.
 *
 * A strip's weights are unpacked block by block along the inputs and each block is used for up to
 * 256 rows. How wide a strip is depends on how many threads there are to feed; no element's sum
 * does (kernel.h). */
#include "cpu/cpu.h"

#include <string.h>

/* Below this many multiply-adds a product runs on the calling thread: waking others costs more. */
#define SERIAL_WORK 32768

/* How far ahead weights are asked for, in steps of inputs: with 64 rows of BF16, 32 KiB. On a
 * shared machine whose memory was slow, the median speed of one-token steps doubled; with weights
 * in cache it makes no difference. */
#define PREFETCH_STEPS 2

/* Rows row0..row0+n_row of outputs o0..o0+n_o of one weight into t->c[which]. */
typedef struct part {
    const hd_cpu_mul *m;
    int o0, n_o, row0, n_row;
} part;

static float *output_row(const part *p, int r) {
    const hd_cpu_mul *m = p->m;
    int row = p->row0 + r;
    return m->y + (size_t)(m->y_row != NULL ? m->y_row[row] : row) * m->ldy + p->o0;
}

/* Products write whole tiles of 32 outputs: straight into y when that is all there is to do. */
static bool is_direct(const part *p) {
    return p->m->up == NULL && p->m->into == HD_CPU_STORE && p->n_o % (2 * HD_CPU_LANES) == 0;
}

/* Asks for inputs k0 .. k0+n_k of n_o rows that lie one after another. Unpacking reads 16 rows side
 * by side, which the processor's own prefetcher does not follow. */
static void prefetch(const hd_weight *w, const char *first, int n_o, int k0, int n_k) {
    size_t row_bytes = hd_format_bytes(w->format, (size_t)w->n_in);
    size_t from = hd_format_bytes(w->format, (size_t)k0),
           n = hd_format_bytes(w->format, (size_t)n_k);
    if (n == row_bytes) n *= (size_t)n_o, n_o = 1; /* one run of memory */
    for (int o = 0; o < n_o; o++) {
        const char *p = first + (size_t)o * row_bytes + from;
        for (size_t i = 0; i < n; i += 64) __builtin_prefetch(p + i, 0, 2);
    }
}

static void product_part(const hd_cpu *c, hd_cpu_scratch *t, const part *p, const hd_weight *w,
                         float *into) {
    const hd_cpu_mul *m = p->m;
    bool is_int = w->format == HD_Q8_0 && !m->is_float;
    size_t row_bytes = hd_format_bytes(w->format, (size_t)w->n_in);
    const char *first = (const char *)w->mat[m->mat] + (size_t)p->o0 * row_bytes;
    for (int i = 0; i < p->n_o; i++) t->w[i] = first + (size_t)i * row_bytes;
    for (int r = 0; r < p->n_row; r++) {
        int row = m->x_row != NULL ? m->x_row[p->row0 + r] : p->row0 + r;
        if (is_int)
            t->q_row[r] = row;
        else
            t->a[r] = m->x + (size_t)row * m->ldx;
        t->c_row[r] = is_direct(p) ? output_row(p, r) : into + (size_t)r * HD_CPU_STRIP;
    }
    int step = hd_cpu_is_native(w->format) ? HD_CPU_KBLOCK : HD_CPU_KDECODE;
    prefetch(w, first, p->n_o, 0, hd_cpu_least(w->n_in, PREFETCH_STEPS * step));
    for (int k0 = 0; k0 < w->n_in; k0 += step) {
        int n_k = hd_cpu_least(w->n_in - k0, step), ahead = k0 + PREFETCH_STEPS * step;
        if (ahead < w->n_in) prefetch(w, first, p->n_o, ahead, hd_cpu_least(w->n_in - ahead, step));
        if (is_int) {
            int block0 = k0 / HD_CPU_QBLOCK, n_block = n_k / HD_CPU_QBLOCK;
            c->k->unpack_q8(t->w, p->n_o, block0, n_block, t->panel, t->q_scale);
            c->k->product_q8(&(hd_cpu_qproduct){.n_row = p->n_row,
                                                .n_block = n_block,
                                                .n_lane = (int)hd_cpu_pad(p->n_o),
                                                .x = &m->xq,
                                                .row = t->q_row,
                                                .block0 = block0,
                                                .panel = t->panel,
                                                .scale = t->q_scale,
                                                .c = t->c_row,
                                                .is_sum = k0 > 0});
        } else {
            hd_cpu_unpack(c, t,
                          &(hd_cpu_unpacking){.format = w->format,
                                              .row = t->w,
                                              .n_row = p->n_o,
                                              .k0 = k0,
                                              .n_k = n_k,
                                              .panel = t->panel,
                                              .ld = HD_CPU_STRIP});
            c->k->product(&(hd_cpu_product){.n_row = p->n_row,
                                            .n_k = n_k,
                                            .n_lane = (int)hd_cpu_pad(p->n_o),
                                            .a = t->a,
                                            .a_off = (size_t)k0,
                                            .a_step = 1,
                                            .b = t->panel,
                                            .ldb = HD_CPU_STRIP,
                                            .c = t->c_row,
                                            .is_sum = k0 > 0});
        }
    }
}

static void run_part(hd_cpu *c, int thread, const part *p) {
    hd_cpu_scratch *t = &c->thread[thread];
    const hd_cpu_mul *m = p->m;
    product_part(c, t, p, m->w, t->c[0]);
    if (m->up != NULL) product_part(c, t, p, m->up, t->c[1]);
    if (is_direct(p)) return;
    for (int r = 0; r < p->n_row; r++) {
        float *y = output_row(p, r);
        const float *from = t->c[0] + (size_t)r * HD_CPU_STRIP;
        if (m->up != NULL)
            c->k->swiglu(from, t->c[1] + (size_t)r * HD_CPU_STRIP, p->n_o, y);
        else if (m->into == HD_CPU_ADD)
            c->k->axpy(from, p->n_o, m->y_scale != NULL ? m->y_scale[p->row0 + r] : 1.0f, y);
        else
            memcpy(y, from, sizeof *y * (size_t)p->n_o);
    }
}

typedef struct job {
    hd_cpu *c;
    const hd_cpu_mul *mul;
    int n_mul, strip;
} job;

static int ceil_div(int a, int b) { return (a + b - 1) / b; }

/* Rows that one task takes: as many as keep their inputs in the level-2 cache (1 MiB) while one
 * strip of weights after another passes. */
static int rows_each(const hd_cpu_mul *m) {
    int n = (1 << 18) / m->w->n_in;
    return n < 32 ? 32 : hd_cpu_least(n, HD_CPU_ROWS);
}

static int tasks_of(const hd_cpu_mul *m, int strip) {
    return ceil_div(m->w->n_out, strip) * ceil_div(m->n_row, rows_each(m));
}

static void run_task(void *ctx, int task, int thread) {
    const job *j = ctx;
    const hd_cpu_mul *m = j->mul;
    for (int n = tasks_of(m, j->strip); task >= n; n = tasks_of(m, j->strip)) {
        task -= n;
        m++;
    }
    int n_strip = ceil_div(m->w->n_out, j->strip);
    part p = {.m = m, .o0 = task % n_strip * j->strip, .row0 = task / n_strip * rows_each(m)};
    p.n_o = hd_cpu_least(m->w->n_out - p.o0, j->strip);
    p.n_row = hd_cpu_least(m->n_row - p.row0, rows_each(m));
    run_part(j->c, thread, &p);
}

static void check(const hd_cpu_mul *m) {
    HD_DASSERT(m->w->format != HD_Q8_0 || m->w->n_in % HD_CPU_QBLOCK == 0);
    HD_DASSERT(m->is_float || m->w->format != HD_Q8_0 || m->xq.n_k == m->w->n_in);
    HD_DASSERT(m->up == NULL || (m->up->n_in == m->w->n_in && m->up->n_out == m->w->n_out));
    (void)m;
}

static void tell_observer(const hd_cpu *c, const hd_cpu_mul *mul, int n) {
    for (int i = 0; c->observer.inputs != NULL && i < n; i++) {
        const hd_cpu_mul *m = &mul[i];
        hd_dev_inputs in = {
            .w = m->w, .mat = m->mat, .n_row = m->n_row, .x = m->x, .ldx = m->ldx, .row = m->x_row};
        c->observer.inputs(c->observer.user, &in);
        in.w = m->up;
        if (in.w != NULL) c->observer.inputs(c->observer.user, &in);
    }
}

void hd_cpu_mul_run(hd_cpu *c, const hd_cpu_mul *mul, int n) {
    tell_observer(c, mul, n);
    job j = {.c = c, .mul = mul, .n_mul = n, .strip = HD_CPU_STRIP};
    double work = 0;
    for (int i = 0; i < n; i++) {
        check(&mul[i]);
        work += (double)mul[i].n_row * mul[i].w->n_in * mul[i].w->n_out;
    }
    int n_task = 0;
    for (;;) {
        n_task = 0;
        for (int i = 0; i < n; i++) n_task += tasks_of(&mul[i], j.strip);
        if (j.strip == HD_CPU_LANES || n_task >= 4 * c->n_thread || c->n_thread == 1) break;
        j.strip /= 2;
    }
    if (work < SERIAL_WORK)
        for (int i = 0; i < n_task; i++) run_task(&j, i, 0);
    else
        hd_pool_run(c->pool, n_task, run_task, &j);
}

static void run_strip_in_order(void *ctx, int task, int thread) {
    const job *j = ctx;
    for (int i = 0; i < j->n_mul; i++) {
        const hd_cpu_mul *m = &j->mul[i];
        part p = {.m = m, .o0 = task * j->strip};
        p.n_o = hd_cpu_least(m->w->n_out - p.o0, j->strip);
        for (; p.row0 < m->n_row; p.row0 += rows_each(m)) {
            p.n_row = hd_cpu_least(m->n_row - p.row0, rows_each(m));
            run_part(j->c, thread, &p);
        }
    }
}

void hd_cpu_mul_run_in_order(hd_cpu *c, const hd_cpu_mul *mul, int n) {
    if (n == 0) return;
    tell_observer(c, mul, n);
    job j = {.c = c, .mul = mul, .n_mul = n, .strip = HD_CPU_STRIP};
    for (int i = 0; i < n; i++) check(&mul[i]);
    int n_out = mul[0].w->n_out;
    if (c->n_thread > 1)
        while (j.strip > HD_CPU_LANES && ceil_div(n_out, j.strip) < 4 * c->n_thread) j.strip /= 2;
    hd_pool_run(c->pool, ceil_div(n_out, j.strip), run_strip_in_order, &j);
}

/* ---- Rows ---- */

typedef struct row_job {
    void (*fn)(void *ctx, int row, int thread);
    void *ctx;
    int n_row, n_each;
} row_job;

static void run_rows(void *ctx, int task, int thread) {
    const row_job *j = ctx;
    int end = (task + 1) * j->n_each < j->n_row ? (task + 1) * j->n_each : j->n_row;
    for (int r = task * j->n_each; r < end; r++) j->fn(j->ctx, r, thread);
}

void hd_cpu_rows(hd_cpu *c, int n_row, int work, void (*fn)(void *ctx, int row, int thread),
                 void *ctx) {
    row_job j = {.fn = fn, .ctx = ctx, .n_row = n_row, .n_each = n_row};
    if (c->n_thread > 1 && n_row > 1 && (double)n_row * work >= SERIAL_WORK)
        j.n_each = ceil_div(n_row, 4 * c->n_thread);
    if (n_row > 0) hd_pool_run(c->pool, ceil_div(n_row, j.n_each), run_rows, &j);
}

typedef struct quantise_job {
    const hd_cpu *c;
    const float *x;
    size_t ldx;
    hd_cpu_qrows q;
} quantise_job;

static void quantise_row(void *ctx, int row, int thread) {
    (void)thread;
    const quantise_job *j = ctx;
    j->c->k->quantise(j->x + (size_t)row * j->ldx, j->q.n_k, &j->q, row);
}

static hd_cpu_qrows qrows(const hd_cpu *c, int slot, int n_row, int n_k) {
    HD_ASSERT(n_k % HD_CPU_QBLOCK == 0 && (size_t)n_row * (size_t)n_k <= c->q_room[slot]);
    hd_cpu_qrows q = c->q[slot];
    q.n_k = n_k;
    return q;
}

hd_cpu_qrows hd_cpu_quantise(hd_cpu *c, int slot, const float *x, size_t ldx, int n_row, int n_k) {
    quantise_job j = {.c = c, .x = x, .ldx = ldx, .q = qrows(c, slot, n_row, n_k)};
    hd_cpu_rows(c, n_row, n_k, quantise_row, &j);
    return j.q;
}

typedef struct norm_job {
    const hd_cpu *c;
    const hd_cpu_norm_rows *a;
    hd_cpu_qrows q;
} norm_job;

static void norm_row(void *ctx, int row, int thread) {
    (void)thread;
    const norm_job *j = ctx;
    const hd_cpu_norm_rows *a = j->a;
    size_t from = (size_t)(a->ix != NULL ? a->ix[row] : row);
    float *out = a->out + (size_t)row * (size_t)a->n;
    j->c->k->norm(a->x + from * a->ldx, a->w, a->eps, a->n, out);
    if (a->is_quantised) j->c->k->quantise(out, a->n, &j->q, row);
}

hd_cpu_qrows hd_cpu_norm(hd_cpu *c, const hd_cpu_norm_rows *a) {
    norm_job j = {.c = c, .a = a};
    if (a->is_quantised) j.q = qrows(c, 0, a->n_row, a->n);
    hd_cpu_rows(c, a->n_row, a->n, norm_row, &j);
    return j.q;
}
