/* What this machine can do on the backend's own threads and instruction set. The best of several
 * short rounds: what disturbs a measurement only makes it slower. */
#include "cpu/cpu.h"

#include "base/clock.h"
#include "base/mem.h"

#define BUFFER_BYTES ((size_t)256 << 20)
#define N_ROUND 15
#define FMA_STEPS 1000000 /* about 2 ms */

typedef struct probe {
    const hd_cpu *c;
    float *buffer;
    size_t n_each; /* floats a thread */
    float *sink;   /* [n_thread * 16]: a cache line each */
    double *done;  /* [n_thread * 8] */
} probe;

static void burn(void *ctx, int task, int thread) {
    (void)thread;
    const probe *p = ctx;
    p->done[8 * task] = p->c->k->probe_fma(FMA_STEPS, &p->sink[16 * task]);
}

static void stream(void *ctx, int task, int thread) {
    (void)thread;
    const probe *p = ctx;
    p->sink[16 * task] = p->c->k->probe_read(p->buffer + (size_t)task * p->n_each, p->n_each);
}

hd_status hd_cpu_roofline(void *ctx, hd_dev_roofline *out) {
    const hd_cpu *c = ctx;
    size_t n_thread = (size_t)c->n_thread;
    void *memory;
    probe p = {.c = c, .n_each = BUFFER_BYTES / sizeof(float) / n_thread / 128 * 128};
    HD_TRY(hd_alloc_large(p.n_each * n_thread * sizeof(float), &memory));
    p.buffer = memory;
    /* Written, so that every page is there and they are not all the one page of zeros. */
    for (size_t i = 0; i < p.n_each * n_thread; i += 256) p.buffer[i] = 1;
    p.sink = hd_alloc_zero(n_thread * 16, sizeof *p.sink);
    p.done = hd_alloc_zero(n_thread * 8, sizeof *p.done);
    *out = (hd_dev_roofline){.flop_name = "float32 multiply-add",
                             .buffer_bytes = p.n_each * n_thread * sizeof(float)};
    for (int round = 0; round < N_ROUND; round++) {
        for (size_t i = 0; i < n_thread; i++) p.sink[16 * i] = 0.999f;
        int64_t t = hd_now_ns();
        hd_pool_run(c->pool, c->n_thread, burn, &p);
        double seconds = (double)(hd_now_ns() - t) / 1e9, flops = 0;
        for (size_t i = 0; i < n_thread; i++) flops += p.done[8 * i];
        if (flops / seconds > out->flops) out->flops = flops / seconds;
        t = hd_now_ns();
        hd_pool_run(c->pool, c->n_thread, stream, &p);
        seconds = (double)(hd_now_ns() - t) / 1e9;
        double rate = (double)out->buffer_bytes / seconds;
        if (rate > out->read_bytes) out->read_bytes = rate;
    }
    hd_free(memory);
    hd_free(p.sink);
    hd_free(p.done);
    return HD_OK;
}
