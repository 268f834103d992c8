/* Repacking weights when they are loaded: all threads, a run of rows each at a time, read from the
 * file into a buffer that stays in the cache (a mapping's pages would cost a fault each, and count
 * as memory beside the copy), and packed into huge pages.
 *
 * Pages are touched first by the threads that pack, which are those that read them later; since
 * runs of rows are dealt out to whoever is free, a weight is spread over all NUMA nodes evenly. */
#include "cpu/cpu.h"

#include "base/mem.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    run_bytes = 512 << 10,   /* of the file: read, then packed out of level 2 */
    own_bytes_min = 4 << 20, /* of a copy that has pages of its own */
    slab_bytes = 64 << 20,   /* others share huge pages */
    slab_max = 1 << 12
};

struct hd_cpu_store {
    char **run; /* [n_thread] buffers; NULL until one is needed, and again after settle */
    void *slab[slab_max];
    int n_slab, n_in_slab; /* copies in slabs: the last one's release frees them */
    size_t used;           /* of the last slab */
};

static size_t copy_bytes(const hd_weight *w) {
    if (w->is_plain || (!hd_cpu_is_packed(w->format) && !hd_cpu_is_float(w->format))) return 0;
    return (size_t)w->n_mat * hd_cpu_packed_bytes(w->format, w->n_in, w->n_out);
}

size_t hd_cpu_image_bytes(void *ctx, const hd_weight *w) {
    (void)ctx;
    return copy_bytes(w);
}

/* ---- memory ---- */

static hd_status take(struct hd_cpu_store *s, size_t n_byte, void **out) {
    if (n_byte >= own_bytes_min) return hd_alloc_large(n_byte, out);
    if (s->n_slab == 0 || s->used + n_byte > slab_bytes) {
        if (s->n_slab == slab_max) return HD_FAIL(NO_MEMORY, "more than %d slabs", slab_max);
        HD_TRY(hd_alloc_large(slab_bytes, &s->slab[s->n_slab]));
        s->n_slab++;
        s->used = 0;
    }
    *out = (char *)s->slab[s->n_slab - 1] + s->used;
    s->used += n_byte;
    s->n_in_slab++;
    return HD_OK;
}

static void give_back(struct hd_cpu_store *s, void *p, size_t n_byte) {
    if (n_byte >= own_bytes_min) {
        hd_free(p);
        return;
    }
    if (--s->n_in_slab > 0) return;
    while (s->n_slab > 0) hd_free(s->slab[--s->n_slab]);
}

static void free_runs(hd_cpu *c) {
    struct hd_cpu_store *s = c->store;
    for (int i = 0; s->run && i < c->n_thread; i++) hd_free(s->run[i]);
    hd_free(s->run);
    s->run = NULL;
}

void hd_cpu_store_open(hd_cpu *c) { c->store = hd_alloc_zero(1, sizeof *c->store); }

void hd_cpu_store_close(hd_cpu *c) {
    free_runs(c);
    while (c->store->n_slab > 0) hd_free(c->store->slab[--c->store->n_slab]);
    hd_free(c->store);
}

/* ---- packing ---- */

typedef struct packing {
    hd_cpu *c;
    const hd_weight *w;
    char *copy;
    int n_each, n_run; /* rows of a run; runs of a matrix */
    size_t row_bytes;
    atomic_int error; /* errno of a read that failed, or -1: the file ended */
} packing;

/* n bytes of a file, or 0 and errno in *error. */
static bool read_run(const hd_place_in_file *place, size_t from, size_t n, char *out,
                     atomic_int *error) {
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(place->fd, out + done, n - done, (off_t)(place->at + from + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            atomic_store(error, got < 0 ? errno : -1);
            return false;
        }
        done += (size_t)got;
    }
    return true;
}

static void pack_run(void *ctx, int task, int thread) {
    packing *p = ctx;
    const hd_weight *w = p->w;
    int mat = task / p->n_run, o0 = task % p->n_run * p->n_each;
    int n_out = hd_cpu_least(w->n_out - o0, p->n_each);
    size_t from = (size_t)o0 * p->row_bytes, n_byte = (size_t)n_out * p->row_bytes;
    const char *rows = (const char *)w->mat[mat] + from;
    if (w->place) {
        char **run = &p->c->store->run[thread];
        size_t room = (size_t)p->n_each * p->row_bytes;
        if (!*run) *run = hd_alloc(room > run_bytes ? room : run_bytes);
        if (!read_run(&w->place[mat], from, n_byte, *run, &p->error)) return;
        rows = *run;
    }
    char *to = p->copy + (size_t)mat * hd_cpu_packed_bytes(w->format, w->n_in, w->n_out);
    to += (size_t)(o0 / HD_CPU_STRIP_OUT) * hd_cpu_strip_bytes(w->format, w->n_in);
    hd_cpu_pack(w->format, w->n_in, n_out, rows, to);
}

/* Whole strips, of at most run_bytes unless one is longer. */
static int rows_of_run(size_t row_bytes) {
    size_t n = run_bytes / row_bytes / HD_CPU_STRIP_OUT * HD_CPU_STRIP_OUT;
    return n < HD_CPU_STRIP_OUT ? HD_CPU_STRIP_OUT : n > 4096 ? 4096 : (int)n;
}

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* headers before Linux 5.14 */
#endif

/* Maps pages of a weight that is read where it lies, so that no step waits for a fault: a row of
 * embeddings took 60 to 150 microseconds. All of it is read from the file then, as the other
 * weights are, also where those come from an image: 1.9 GB of BF16 embeddings of V3. Where the
 * kernel cannot (before Linux 5.14), steps wait. */
static void bring_in(const hd_weight *w) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t n_byte = hd_format_bytes(w->format, (size_t)w->n_in) * (size_t)w->n_out;
    for (int i = 0; i < w->n_mat; i++) {
        size_t before = (uintptr_t)w->mat[i] % page;
        char *first = (char *)(uintptr_t)w->mat[i] - before;
        (void)madvise(first, before + n_byte, MADV_POPULATE_READ);
    }
}

hd_status hd_cpu_prepare(void *ctx, hd_weight *w) {
    hd_cpu *c = ctx;
    size_t n_byte = copy_bytes(w);
    if (n_byte == 0) {
        bring_in(w);
        return HD_OK;
    }
    packing p = {.c = c, .w = w, .row_bytes = hd_format_bytes(w->format, (size_t)w->n_in)};
    p.n_each = rows_of_run(p.row_bytes);
    p.n_run = (w->n_out + p.n_each - 1) / p.n_each;
    if (w->place && (size_t)p.n_each * p.row_bytes > run_bytes) free_runs(c); /* larger ones */
    if (w->place && !c->store->run)
        c->store->run = hd_alloc_zero((size_t)c->n_thread, sizeof *c->store->run);
    void *copy;
    HD_TRY(take(c->store, n_byte, &copy));
    p.copy = copy;
    hd_pool_run(c->pool, w->n_mat * p.n_run, pack_run, &p);
    int error = atomic_load(&p.error);
    if (error != 0) {
        give_back(c->store, copy, n_byte);
        return HD_FAIL(IO, "tensor %s: cannot read its file: %s", w->name,
                       error > 0 ? strerror(error) : "it is shorter than it was");
    }
    w->prepared = copy;
    return HD_OK;
}

hd_status hd_cpu_settle(void *ctx) {
    free_runs(ctx);
    return HD_OK;
}

void hd_cpu_release(void *ctx, hd_weight *w) {
    hd_cpu *c = ctx;
    if (w->prepared) give_back(c->store, w->prepared, copy_bytes(w));
    w->prepared = NULL;
}
