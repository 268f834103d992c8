/* Products of weights with rows of activations, split over threads by ranges of outputs and blocks
 * of rows, of about equal cost.
 *
 * Weights are read strip by strip, each for a block of rows. Of FP8 and many rows up to 64 outputs
 * are unpacked block by block along the inputs. How outputs and rows are split depends on how many
 * there are and on the threads to feed; no element's sum does (kernel.h). */
#include "base/mem.h"
#include "cpu/cpu.h"

#include <math.h>
#include <string.h>

/* Below this many multiply-adds a product runs on the calling thread: waking others costs more. */
#define SERIAL_WORK 32768

/* Pieces of a thread's share of a set of products. All threads end within about the time that one
 * piece takes, if they are about equally fast. */
#define PIECES 32

/* The pieces of a thread's share that nobody has taken yet. It takes from the front, so that it
 * reads one run of weights, half of what is left at a time. Who is done takes from the others'
 * backs as much as leaves something for each thread that may come for it. */
struct hd_cpu_share {
    _Alignas(64) _Atomic uint64_t left; /* first << 32 | end */
};

/* Rows row0..row0+n_row of outputs o0..o0+n_o of one weight into t->c[which]. */
typedef struct part {
    const hd_cpu_mul *m;
    int o0, n_o, row0, n_row;
    int most_o;                /* of n_o; and from a row of t->c to the next */
    const unsigned char *next; /* what the thread reads after it; NULL: not known */
} part;

static float *output_row(const part *p, int r) {
    const hd_cpu_mul *m = p->m;
    int row = p->row0 + r;
    return m->y + (size_t)(m->y_row != NULL ? m->y_row[row] : row) * m->ldy + p->o0;
}

/* Products write whole tiles of 32 outputs: straight into y when that is all there is to do. */
static bool is_direct(const part *p) {
    return !hd_cpu_takes_integers(p->m->w) && p->m->up == NULL && p->m->into == HD_CPU_STORE &&
           p->n_o % (2 * HD_CPU_LANES) == 0;
}

/* Outputs of a part. What comes between parts takes as long for few rows as for one: fewer of them
 * are worth 2 to 3 % of a step of one sequence (two Zen 5 cores). */
static int most_outputs(const hd_cpu_mul *m, int n_row) {
    bool is_packed = hd_cpu_takes_integers(m->w) && (m->up == NULL || hd_cpu_takes_integers(m->up));
    if (!is_packed || n_row > HD_CPU_FEW_ROWS) return HD_CPU_STRIP;
    return HD_CPU_STRIP * (n_row <= 4 ? 8 : 4);
}

/* What a product reads first for outputs from o on; NULL when its weights are not repacked. */
static const unsigned char *first_strip(const hd_cpu_mul *m, int o) {
    return m->w->prepared != NULL ? hd_cpu_strip_at(m->w, m->mat, o) : NULL;
}

/* What is read after a part's strips of one weight. */
static const unsigned char *next_of(const part *p, const hd_weight *w) {
    const hd_cpu_mul *m = p->m;
    if (w == m->w && m->up != NULL && m->up->prepared != NULL)
        return hd_cpu_strip_at(m->up, m->mat, p->o0);
    return p->next != NULL ? p->next : hd_cpu_strip_at(w, m->mat, p->o0 + p->n_o);
}

/* Of a quantised weight: a strip's bytes come from memory for the first rows, and from a cache for
 * the others. */
static void packed_part(const hd_cpu *c, hd_cpu_scratch *t, const part *p, const hd_weight *w,
                        float *into) {
    const hd_cpu_mul *m = p->m;
    for (int r = 0; r < p->n_row; r++)
        t->xq[r] = hd_cpu_qrow(&m->xq, m->x_row != NULL ? m->x_row[p->row0 + r] : p->row0 + r);
    c->k->packed_product(&(hd_cpu_packed_product){
        .format = w->format,
        .is_wide = m->xq.is_wide && (m->is_exact || hd_cpu_input_of(c, w) == HD_CPU_WIDE),
        .n_row = p->n_row,
        .n_in = w->n_in,
        .n_strip = (int)hd_cpu_pad(p->n_o) / HD_CPU_STRIP_OUT,
        .strip = hd_cpu_strip_at(w, m->mat, p->o0),
        .next = next_of(p, w),
        .x = t->xq,
        .x_step = hd_cpu_xblock_bytes(m->xq.is_wide),
        .c = into,
        .ldc = (size_t)p->most_o});
}

/* Inputs k0 .. k0 + n_k of the part's outputs into the panel. */
static void unpack(const hd_cpu *c, hd_cpu_scratch *t, const part *p, const hd_weight *w, int k0,
                   int n_k) {
    if (w->prepared != NULL) {
        c->k->unpack(&(hd_cpu_unpack){.format = w->format,
                                      .n_in = w->n_in,
                                      .n_strip = (int)hd_cpu_pad(p->n_o) / HD_CPU_STRIP_OUT,
                                      .k0 = k0,
                                      .n_k = n_k,
                                      .strip = hd_cpu_strip_at(w, p->m->mat, p->o0),
                                      .panel = t->panel,
                                      .ld = HD_CPU_STRIP});
        return;
    }
    size_t row_bytes = hd_format_bytes(w->format, (size_t)w->n_in);
    const char *first = (const char *)w->mat[p->m->mat] + (size_t)p->o0 * row_bytes;
    for (int o = 0; o < p->n_o; o++) t->w[o] = first + (size_t)o * row_bytes;
    hd_cpu_unpack_rows(c, t,
                       &(hd_cpu_unpacking){.format = w->format,
                                           .row = t->w,
                                           .n_row = p->n_o,
                                           .k0 = k0,
                                           .n_k = n_k,
                                           .panel = t->panel,
                                           .ld = HD_CPU_STRIP});
}

static void float_part(const hd_cpu *c, hd_cpu_scratch *t, const part *p, const hd_weight *w,
                       float *into) {
    const hd_cpu_mul *m = p->m;
    for (int r = 0; r < p->n_row; r++) {
        int row = m->x_row != NULL ? m->x_row[p->row0 + r] : p->row0 + r;
        t->a[r] = m->x + (size_t)row * m->ldx;
        t->c_row[r] = is_direct(p) ? output_row(p, r) : into + (size_t)r * HD_CPU_STRIP;
    }
    bool is_panel = w->format == HD_F8_B128 && p->n_row > HD_CPU_FP8_ROWS;
    if (w->prepared != NULL && !is_panel) {
        c->k->stream(&(hd_cpu_stream){.format = w->format,
                                      .n_row = p->n_row,
                                      .n_in = w->n_in,
                                      .n_strip = (int)hd_cpu_pad(p->n_o) / HD_CPU_STRIP_OUT,
                                      .strip = hd_cpu_strip_at(w, m->mat, p->o0),
                                      .next = next_of(p, w),
                                      .a = t->a,
                                      .c = t->c_row});
        return;
    }
    int step = w->prepared != NULL ? HD_CPU_KBLOCK : HD_CPU_KDECODE;
    for (int k0 = 0; k0 < w->n_in; k0 += step) {
        int n_k = hd_cpu_least(w->n_in - k0, step);
        unpack(c, t, p, w, k0, n_k);
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

static void product_part(const hd_cpu *c, hd_cpu_scratch *t, const part *p, const hd_weight *w,
                         float *into) {
    (hd_cpu_takes_integers(w) ? packed_part : float_part)(c, t, p, w, into);
}

static void run_part(hd_cpu *c, int thread, const part *p) {
    hd_cpu_scratch *t = &c->thread[thread];
    const hd_cpu_mul *m = p->m;
    size_t ld = (size_t)p->most_o;
    product_part(c, t, p, m->w, t->c[0]);
    if (m->up != NULL) product_part(c, t, p, m->up, t->c[1]);
    if (is_direct(p)) return;
    for (int r = 0; r < p->n_row; r++) {
        float *y = output_row(p, r);
        const float *from = t->c[0] + (size_t)r * ld;
        if (m->up != NULL)
            c->k->swiglu(from, t->c[1] + (size_t)r * ld, p->n_o, y);
        else if (m->into == HD_CPU_ADD)
            c->k->axpy(from, p->n_o, m->y_scale != NULL ? m->y_scale[p->row0 + r] : 1.0f, y);
        else
            memcpy(y, from, sizeof *y * (size_t)p->n_o);
    }
}

static void run_outputs(hd_cpu *c, int thread, part p, int n_o) {
    const unsigned char *next = p.next;
    p.most_o = most_outputs(p.m, p.n_row);
    for (int end = p.o0 + n_o; p.o0 < end; p.o0 += p.most_o) {
        p.n_o = hd_cpu_least(end - p.o0, p.most_o);
        p.next = p.o0 + p.n_o < end ? first_strip(p.m, p.o0 + p.n_o) : next;
        run_part(c, thread, &p);
    }
}

static int ceil_div(int a, int b) { return (a + b - 1) / b; }

/* Pieces first .. end of a set of c->n_piece. */
typedef struct run {
    int first, end;
} run;

hd_status hd_cpu_shares_open(hd_cpu *c) {
    void *memory;
    HD_TRY(hd_alloc_large((size_t)c->n_thread * sizeof *c->share, &memory));
    c->share = memory;
    c->n_piece = PIECES * c->n_thread;
    return HD_OK;
}

static void share_out(hd_cpu *c) {
    for (int i = 0; i < c->n_thread; i++) {
        uint64_t first = (uint64_t)i * PIECES;
        atomic_store_explicit(&c->share[i].left, first << 32 | (first + PIECES),
                              memory_order_relaxed);
    }
}

/* One of n_part parts of what is left of a share, rounded up. */
static bool take_part(struct hd_cpu_share *s, bool is_own, int n_part, run *out) {
    uint64_t left = atomic_load_explicit(&s->left, memory_order_relaxed), after;
    do {
        int first = (int)(left >> 32), end = (int)(uint32_t)left;
        int n = (end - first + n_part - 1) / n_part;
        if (n == 0) return false;
        *out = is_own ? (run){first, first + n} : (run){end - n, end};
        after = is_own ? (uint64_t)out->end << 32 | (uint32_t)end
                       : (uint64_t)first << 32 | (uint32_t)out->first;
    } while (!atomic_compare_exchange_weak_explicit(&s->left, &left, after, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

static bool take_run(hd_cpu *c, int thread, run *out) {
    for (int i = 0; i < c->n_thread; i++)
        if (take_part(&c->share[(thread + i) % c->n_thread], i == 0, i == 0 ? 2 : c->n_thread, out))
            return true;
    return false;
}

/* Lanes of `each` that begin before `at`, which is counted from the first one. */
static int lanes_before(double at, double each, int n_lane) {
    double n = ceil(at / each);
    return n <= 0 ? 0 : n >= n_lane ? n_lane : (int)n;
}

/* Rows that one task takes: as many as keep their inputs in half of the level-2 cache (1 MiB) while
 * one strip of weights after another passes. */
static int rows_each(const hd_cpu_mul *m) {
    size_t row = hd_cpu_takes_integers(m->w) ? m->xq.row_bytes : sizeof(float) * (size_t)m->w->n_in;
    int most = (int)((size_t)(1 << 19) / row) / 16 * 16;
    most = most < 32 ? 32 : hd_cpu_least(most, HD_CPU_ROWS);
    return hd_cpu_least(most, ceil_div(ceil_div(m->n_row, ceil_div(m->n_row, most)), 16) * 16);
}

/* What a lane of outputs costs: reading and unpacking it once, as much as some rows' arithmetic,
 * and the rows. */
static double lane_cost(const hd_cpu_mul *m, int n_row) {
    double n_weight = m->up != NULL ? 2 : 1;
    return n_weight * m->w->n_in * HD_CPU_LANES * (n_row + 5);
}

static int n_lane_of(const hd_cpu_mul *m) { return (int)hd_cpu_pad(m->w->n_out) / HD_CPU_LANES; }

/* Products in order, of each one block of rows after another, of each all outputs: a piece is a
 * part of this row of lanes, by cost. */
typedef struct job {
    hd_cpu *c;
    const hd_cpu_mul *mul;
    int n_mul;
    double cost;
} job;

static void run_pieces(const job *j, run r, int thread) {
    double each = j->cost / j->c->n_piece, from = r.first * each;
    double to = r.end < j->c->n_piece ? r.end * each : INFINITY;
    for (const hd_cpu_mul *m = j->mul; m < j->mul + j->n_mul && to > 0; m++) {
        int n_lane = n_lane_of(m), n_each = rows_each(m);
        for (part p = {.m = m}; p.row0 < m->n_row && to > 0; p.row0 += n_each) {
            p.n_row = hd_cpu_least(m->n_row - p.row0, n_each);
            double cost = lane_cost(m, p.n_row);
            int first = lanes_before(from, cost, n_lane), end = lanes_before(to, cost, n_lane);
            from -= cost * n_lane, to -= cost * n_lane;
            if (first == end) continue;
            const hd_cpu_mul *next = p.row0 + n_each < m->n_row ? m : m + 1;
            bool goes_on = end == n_lane && next < j->mul + j->n_mul;
            p.next = goes_on ? first_strip(next, 0) : NULL;
            p.o0 = first * HD_CPU_LANES;
            run_outputs(j->c, thread, p, hd_cpu_least(m->w->n_out, end * HD_CPU_LANES) - p.o0);
        }
    }
}

/* A thread's part of a job. */
static void run_share(void *ctx, int task, int thread) {
    (void)task;
    const job *j = ctx;
    for (run r; take_run(j->c, thread, &r);) run_pieces(j, r, thread);
}

static void check(const hd_cpu_mul *m) {
    HD_DASSERT(!hd_cpu_takes_integers(m->w) || m->xq.n_k == m->w->n_in);
    HD_DASSERT(!m->is_exact || !hd_cpu_takes_integers(m->w) || m->xq.is_wide);
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
    job j = {.c = c, .mul = mul, .n_mul = n};
    double work = 0;
    for (int i = 0; i < n; i++) {
        check(&mul[i]);
        work += (double)mul[i].n_row * mul[i].w->n_in * mul[i].w->n_out;
        for (int row = 0, each = rows_each(&mul[i]); row < mul[i].n_row; row += each)
            j.cost +=
                lane_cost(&mul[i], hd_cpu_least(mul[i].n_row - row, each)) * n_lane_of(&mul[i]);
    }
    if (work < SERIAL_WORK) {
        run_pieces(&j, (run){0, c->n_piece}, 0);
        return;
    }
    share_out(c);
    hd_pool_run(c->pool, c->n_thread, run_share, &j);
}

static void run_pieces_in_order(const job *j, run r, int thread) {
    int n_lane = n_lane_of(j->mul), n_out = j->mul[0].w->n_out;
    double each = (double)n_lane / j->c->n_piece;
    int first = lanes_before(r.first * each, 1, n_lane);
    int end = r.end < j->c->n_piece ? lanes_before(r.end * each, 1, n_lane) : n_lane;
    if (first == end) return;
    for (int i = 0; i < j->n_mul; i++) {
        const hd_cpu_mul *m = &j->mul[i];
        part p = {.m = m, .o0 = first * HD_CPU_LANES};
        p.next = i + 1 < j->n_mul ? first_strip(m + 1, p.o0)
                                  : first_strip(j->mul, end < n_lane ? end * HD_CPU_LANES : 0);
        for (; p.row0 < m->n_row; p.row0 += rows_each(m)) {
            p.n_row = hd_cpu_least(m->n_row - p.row0, rows_each(m));
            run_outputs(j->c, thread, p, hd_cpu_least(n_out, end * HD_CPU_LANES) - p.o0);
        }
    }
}

static void run_share_in_order(void *ctx, int task, int thread) {
    (void)task;
    const job *j = ctx;
    for (run r; take_run(j->c, thread, &r);) run_pieces_in_order(j, r, thread);
}

void hd_cpu_mul_run_in_order(hd_cpu *c, const hd_cpu_mul *mul, int n) {
    if (n == 0) return;
    tell_observer(c, mul, n);
    for (int i = 0; i < n; i++) check(&mul[i]);
    job j = {.c = c, .mul = mul, .n_mul = n};
    share_out(c);
    hd_pool_run(c->pool, c->n_thread, run_share_in_order, &j);
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
    const hd_cpu_quantising *a;
    hd_cpu_qrows q;
} quantise_job;

static void quantise_row(void *ctx, int row, int thread) {
    (void)thread;
    const quantise_job *j = ctx;
    j->c->k->quantise(j->a->x + (size_t)row * j->a->ldx, j->q.n_k, j->q.is_wide,
                      hd_cpu_qrow(&j->q, row));
}

hd_cpu_qrows hd_cpu_qrows_of(const hd_cpu *c, enum hd_cpu_input input, int slot, int n_row,
                             int n_k) {
    if (input == HD_CPU_FLOAT) return (hd_cpu_qrows){0};
    HD_ASSERT(n_k % HD_CPU_SUB == 0 && (size_t)n_row * (size_t)n_k <= c->q_room[slot]);
    hd_cpu_qrows q = {.n_k = n_k, .is_wide = input == HD_CPU_WIDE, .row0 = c->q[slot]};
    q.row_bytes = (size_t)(n_k / HD_CPU_SUB) * hd_cpu_xblock_bytes(q.is_wide);
    return q;
}

hd_cpu_qrows hd_cpu_quantise(hd_cpu *c, const hd_cpu_quantising *a) {
    quantise_job j = {.c = c, .a = a, .q = hd_cpu_qrows_of(c, a->input, a->slot, a->n_row, a->n_k)};
    if (a->input != HD_CPU_FLOAT) hd_cpu_rows(c, a->n_row, a->n_k, quantise_row, &j);
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
    if (a->input != HD_CPU_FLOAT)
        j->c->k->quantise(out, a->n, j->q.is_wide, hd_cpu_qrow(&j->q, row));
}

hd_cpu_qrows hd_cpu_norm(hd_cpu *c, const hd_cpu_norm_rows *a) {
    norm_job j = {.c = c, .a = a, .q = hd_cpu_qrows_of(c, a->input, 0, a->n_row, a->n)};
    hd_cpu_rows(c, a->n_row, a->n, norm_row, &j);
    return j.q;
}
