/* Weights on their way to the device: large ones go through pinned memory, filled by several
 * threads at once, since one thread reads neither a file nor a page cache as fast as the bus
 * copies.
 *
 * hd_cuda_load only notes what is to be copied, and waits while much is noted already; settle waits
 * for all of it. The threads and their memory exist from the first large weight to settle. */
#include "cuda/cuda.h"

#include "base/mem.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { PIECE_BYTES = 8 << 20, THREADS_MAX = 8, NOTES = 32, SMALL_BYTES = 1 << 20 };

typedef struct worker {
    struct hd_cuda_loader *loader;
    pthread_t thread;
    cudaStream_t stream;
    struct {
        void *host; /* [PIECE_BYTES] pinned */
        cudaEvent_t copied;
    } buffer[2];
} worker;

struct hd_cuda_loader {
    int ordinal;          /* of the device */
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t noted, taken;
    hd_cuda_rows note[NOTES]; /* a ring */
    unsigned n_noted, n_taken;
    bool is_closed;
    cudaError_t error;      /* the first one */
    int n_worker, n_thread; /* n_thread: of them started */
    worker worker[THREADS_MAX];
};

static bool take_note(hd_cuda_loader *l, hd_cuda_rows *out) {
    pthread_mutex_lock(&l->lock);
    while (l->n_taken == l->n_noted && !l->is_closed) pthread_cond_wait(&l->noted, &l->lock);
    bool is_taken = l->n_taken < l->n_noted;
    if (is_taken) *out = l->note[l->n_taken++ % NOTES];
    pthread_cond_signal(&l->taken);
    pthread_mutex_unlock(&l->lock);
    return is_taken;
}

/* 64 codes in the order of hd_cuda_mat. */
static void order_codes(uint8_t *to, const uint8_t *from) {
    for (int i = 0; i < 16; i++) {
        uint32_t w;
        memcpy(&w, from + i / 2 % 2 * 32 + i / 4 * 8 + i % 2 * 4, sizeof w);
        w = (w & 0xff0000ffu) | (w >> 8 & 0xff00u) | (w & 0xff00u) << 8;
        memcpy(to + 4 * i, &w, sizeof w);
    }
}

/* A row of blocks of 128, each a scale and its codes, as hd_cuda_mat says. */
static void fill_fp8(uint8_t *to, const uint8_t *from, size_t to_bytes, size_t from_bytes) {
    enum { N = 128, BYTES = 132, SCALES = HD_CUDA_FP8_BYTES - HD_CUDA_FP8_BLOCK };
    memset(to, 0, to_bytes);
    for (size_t b = 0; b < from_bytes / BYTES; b++, from += BYTES) {
        uint8_t *block = to + b / (HD_CUDA_FP8_BLOCK / N) * HD_CUDA_FP8_BYTES;
        size_t in_block = b % (HD_CUDA_FP8_BLOCK / N);
        memcpy(block + 4 * in_block, from, 4);
        for (int i = 0; i < N; i += 64)
            order_codes(block + SCALES + N * in_block + i, from + 4 + i);
    }
}

/* Rows as they lie on the device: padded with zeros. */
static void fill(char *to, const hd_cuda_rows *r) {
    if (r->is_fp8) {
        for (size_t i = 0; i < r->n_row; i++)
            fill_fp8((uint8_t *)to + i * r->to_bytes, (const uint8_t *)r->from + i * r->from_bytes,
                     r->to_bytes, r->from_bytes);
        return;
    }
    if (r->to_bytes == r->from_bytes) {
        memcpy(to, r->from, r->n_row * r->to_bytes);
        return;
    }
    for (size_t i = 0; i < r->n_row; i++) {
        memcpy(to + i * r->to_bytes, (const char *)r->from + i * r->from_bytes, r->from_bytes);
        memset(to + i * r->to_bytes + r->from_bytes, 0, r->to_bytes - r->from_bytes);
    }
}

static void *work(void *arg) {
    worker *w = arg;
    hd_cuda_rows r;
    cudaError_t e = cudaSetDevice(w->loader->ordinal);
    for (unsigned n = 0; take_note(w->loader, &r); n++) {
        void *host = w->buffer[n % 2].host;
        cudaEvent_t copied = w->buffer[n % 2].copied;
        if (e == cudaSuccess) e = cudaEventSynchronize(copied);
        if (e != cudaSuccess) continue; /* notes are taken all the same */
        fill(host, &r);
        e = cudaMemcpyAsync(r.to, host, r.n_row * r.to_bytes, cudaMemcpyHostToDevice, w->stream);
        if (e == cudaSuccess) e = cudaEventRecord(copied, w->stream);
    }
    if (e == cudaSuccess) e = cudaStreamSynchronize(w->stream);
    pthread_mutex_lock(&w->loader->lock);
    if (w->loader->error == cudaSuccess) w->loader->error = e;
    pthread_mutex_unlock(&w->loader->lock);
    return NULL;
}

static hd_status start_worker(hd_cuda *c, worker *w) {
    HD_TRY(hd_cuda_told(cudaStreamCreateWithFlags(&w->stream, cudaStreamNonBlocking), "a stream"));
    for (int i = 0; i < 2; i++) {
        HD_TRY(hd_cuda_alloc_host(c, PIECE_BYTES, "memory for uploads", &w->buffer[i].host));
        HD_TRY(hd_cuda_told(cudaEventCreateWithFlags(&w->buffer[i].copied, cudaEventDisableTiming),
                            "an event"));
    }
    if (pthread_create(&w->thread, NULL, work, w) != 0)
        return HD_FAIL(NO_MEMORY, "a thread for uploads");
    w->loader->n_thread++;
    return HD_OK;
}

static hd_status open_loader(hd_cuda *c) {
    hd_cuda_loader *l = c->loader = hd_alloc_zero(1, sizeof *l);
    l->ordinal = c->ordinal;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->noted, NULL);
    pthread_cond_init(&l->taken, NULL);
    long n_core = sysconf(_SC_NPROCESSORS_ONLN);
    int n = n_core < 1 ? 1 : n_core > THREADS_MAX ? THREADS_MAX : (int)n_core;
    for (int i = 0; i < n; i++) {
        l->worker[l->n_worker++].loader = l;
        HD_TRY(start_worker(c, &l->worker[i]));
    }
    return HD_OK;
}

hd_status hd_cuda_settle(void *ctx) {
    hd_cuda *c = ctx;
    hd_cuda_loader *l = c->loader;
    if (!l) return HD_OK;
    c->loader = NULL;
    pthread_mutex_lock(&l->lock);
    l->is_closed = true;
    pthread_cond_broadcast(&l->noted);
    pthread_mutex_unlock(&l->lock);
    for (int i = 0; i < l->n_thread; i++) pthread_join(l->worker[i].thread, NULL);
    for (int i = 0; i < l->n_worker; i++) {
        worker *w = &l->worker[i];
        for (int k = 0; k < 2; k++) {
            if (w->buffer[k].copied) (void)cudaEventDestroy(w->buffer[k].copied);
            (void)cudaFreeHost(w->buffer[k].host);
        }
        if (w->stream) (void)cudaStreamDestroy(w->stream);
    }
    cudaError_t e = l->error;
    pthread_cond_destroy(&l->taken);
    pthread_cond_destroy(&l->noted);
    pthread_mutex_destroy(&l->lock);
    hd_free(l);
    return hd_cuda_told(e, "uploading weights");
}

static void note(hd_cuda_loader *l, const hd_cuda_rows *r) {
    pthread_mutex_lock(&l->lock);
    while (l->n_noted - l->n_taken == NOTES) pthread_cond_wait(&l->taken, &l->lock);
    l->note[l->n_noted++ % NOTES] = *r;
    pthread_cond_signal(&l->noted);
    pthread_mutex_unlock(&l->lock);
}

/* A copy from memory that is not pinned has read it when it returns. */
static hd_status load_small(const hd_cuda *c, const hd_cuda_rows *r, const char *what) {
    if (r->is_fp8) {
        char *rows = hd_alloc(r->n_row * r->to_bytes);
        fill(rows, r);
        cudaError_t e =
            cudaMemcpyAsync(r->to, rows, r->n_row * r->to_bytes, cudaMemcpyHostToDevice, c->stream);
        hd_free(rows);
        return hd_cuda_told(e, what);
    }
    if (r->to_bytes > r->from_bytes)
        HD_TRY(hd_cuda_told(cudaMemsetAsync(r->to, 0, r->n_row * r->to_bytes, c->stream), what));
    return hd_cuda_told(cudaMemcpy2DAsync(r->to, r->to_bytes, r->from, r->from_bytes, r->from_bytes,
                                          r->n_row, cudaMemcpyHostToDevice, c->stream),
                        what);
}

hd_status hd_cuda_load(hd_cuda *c, const hd_cuda_rows *r, const char *what) {
    size_t n_each = PIECE_BYTES / r->to_bytes;
    if (r->n_row * r->to_bytes < SMALL_BYTES || n_each == 0) return load_small(c, r, what);
    if (!c->loader) HD_TRY(open_loader(c));
    for (size_t row = 0; row < r->n_row; row += n_each) {
        hd_cuda_rows piece = *r;
        piece.to = (char *)r->to + row * r->to_bytes;
        piece.from = (const char *)r->from + row * r->from_bytes;
        piece.n_row = r->n_row - row < n_each ? r->n_row - row : n_each;
        note(c->loader, &piece);
    }
    return HD_OK;
}
