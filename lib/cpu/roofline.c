/* What this machine can do on the backend's own threads and instruction set. The best of several
 * short rounds: what disturbs a measurement only makes it slower. */
#include "cpu/cpu.h"

#include "base/clock.h"
#include "base/mem.h"

#include <unistd.h>

/* Of 256 MB enough lines stay in the level-3 caches of two cores (32 MB each, Zen 5) to make reads
 * 10 to 25 % faster than memory. Not more than an eighth of the machine's memory. */
#define BUFFER_BYTES ((size_t)1 << 30)
#define N_ROUND 10
#define STEPS 500000 /* about 1 ms */

typedef union line { /* a cache line each: no two threads write the same one */
    _Alignas(64) double n_op;
    float real;
    int32_t whole;
} line;

typedef struct probe {
    const hd_cpu *c;
    float *buffer; /* in huge pages: one stream a thread, as weights are read */
    size_t n_each; /* floats a thread */
    line *out;     /* [n_thread] */
} probe;

static void touch(void *ctx, int task, int thread) {
    (void)thread;
    const probe *p = ctx;
    float *part = p->buffer + (size_t)task * p->n_each;
    for (size_t i = 0; i < p->n_each; i += 256) part[i] = 1; /* else all are the page of zeros */
}

static void multiply_floats(void *ctx, int task, int thread) {
    (void)thread;
    const probe *p = ctx;
    float x = 0.999f;
    p->out[task].n_op = p->c->k->probe_fma(STEPS, &x);
}

static void multiply_bytes(void *ctx, int task, int thread) {
    (void)thread;
    const probe *p = ctx;
    int32_t x = 0x03FB0305;
    p->out[task].n_op = p->c->k->probe_int8(STEPS, &x);
}

static void read_through(void *ctx, int task, int thread) {
    (void)thread;
    const probe *p = ctx;
    const float *part = p->buffer + (size_t)task * p->n_each;
    p->out[task].real = p->c->k->probe_read(part, p->n_each);
}

static double seconds_of(const probe *p, hd_pool_fn fn) {
    int64_t from = hd_now_ns();
    hd_pool_run(p->c->pool, p->c->n_thread, fn, (void *)(uintptr_t)p);
    return (double)(hd_now_ns() - from) / 1e9;
}

static double op_rate(const probe *p, hd_pool_fn fn) {
    double seconds = seconds_of(p, fn), n_op = 0;
    for (int i = 0; i < p->c->n_thread; i++) n_op += p->out[i].n_op;
    return n_op / seconds;
}

static void keep_most(double *best, double value) {
    if (value > *best) *best = value;
}

static size_t buffer_bytes(void) {
    size_t eighth = (size_t)sysconf(_SC_PHYS_PAGES) / 8 * (size_t)sysconf(_SC_PAGESIZE);
    return eighth < BUFFER_BYTES ? eighth : BUFFER_BYTES;
}

hd_status hd_cpu_roofline(void *ctx, hd_dev_roofline *out) {
    const hd_cpu *c = ctx;
    size_t n_thread = (size_t)c->n_thread;
    void *buffer, *lines;
    probe p = {.c = c, .n_each = buffer_bytes() / sizeof(float) / n_thread / 128 * 128};
    *out = (hd_dev_roofline){.flop_name = "float32 multiply-add",
                             .buffer_bytes = p.n_each * n_thread * sizeof(float)};
    HD_TRY(hd_alloc_large(out->buffer_bytes, &buffer));
    hd_status s = hd_alloc_large(n_thread * sizeof(line), &lines);
    if (s != HD_OK) {
        hd_free(buffer);
        return s;
    }
    p.buffer = buffer;
    p.out = lines;
    hd_pool_run(c->pool, c->n_thread, touch, &p);
    for (int round = 0; round < N_ROUND; round++) {
        keep_most(&out->flops, op_rate(&p, multiply_floats));
        keep_most(&out->int8_ops, op_rate(&p, multiply_bytes));
        keep_most(&out->read_bytes, (double)out->buffer_bytes / seconds_of(&p, read_through));
    }
    hd_free(buffer);
    hd_free(lines);
    return HD_OK;
}
