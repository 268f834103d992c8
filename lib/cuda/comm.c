/* Collectives of the cuda backend.
 *
 * Ranks with a GPU each go through NCCL, on the stream that ops go through: a collective is one
 * more node of a decoding step's graph. libnccl.so.2 is opened when a group is formed; the headers
 * are enough to build. Its own sum has an order that depends on where a value lies in the array;
 * under --deterministic the ranks' terms are gathered and summed here, in the order of the ranks.
 *
 * Ranks that share a GPU, which NCCL refuses, or have no NCCL, go through pinned memory of the
 * host, where the program's own collectives work (dev/comm.h): every collective then waits for its
 * stream, and there are no graphs. */
#include "cuda/cuda.h"

#include "dev/comm.h"

#ifdef HD_CUDA_NCCL
#include "base/mem.h"

#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>
#endif

/* Floats of the largest collective of a rank: rows of the residual stream, or of logits. */
static size_t most_floats(const hd_dev_limits *l) {
    size_t x = (size_t)l->n_row * (size_t)l->d_model;
    size_t logits = (size_t)l->n_out * (size_t)l->n_vocab;
    return x > logits ? x : logits;
}

void hd_cuda_part(hd_cuda *c) {
    (void)cudaFree(c->all_ranks);
    (void)cudaFreeHost(c->host_ranks);
    c->all_ranks = c->host_ranks = NULL;
}

/* ---- through the host ---- */

static hd_status join_by_host(void *const *ctx, int n_rank) {
    for (int i = 0; i < n_rank; i++) {
        hd_cuda *c = ctx[i];
        size_t n_byte = 2 * most_floats(&c->limits) * sizeof(float); /* a part and all */
        HD_TRY(hd_cuda_told(cudaMallocHost((void **)&c->host_ranks, n_byte), "collectives"));
    }
    return HD_OK;
}

static hd_status host_copy(hd_cuda *c, void *to, const void *from, size_t n,
                           enum cudaMemcpyKind kind) {
    HD_TRY(hd_cuda_told(cudaMemcpyAsync(to, from, n * sizeof(float), kind, c->stream),
                        "a collective"));
    return hd_cuda_told(cudaStreamSynchronize(c->stream), "a collective");
}

static hd_status host_all_reduce(hd_cuda *c, const struct hd_op_all_reduce *a) {
    HD_TRY(host_copy(c, c->host_ranks, a->x, a->n, cudaMemcpyDeviceToHost));
    HD_TRY(a->comm->all_reduce(a->comm, c->host_ranks, a->n));
    return host_copy(c, a->x, c->host_ranks, a->n, cudaMemcpyHostToDevice);
}

static hd_status host_all_gather(hd_cuda *c, const struct hd_op_all_gather *a) {
    size_t n_row = (size_t)a->n_row, n_each = (size_t)a->n_each, n = n_row * n_each;
    float *all = c->host_ranks + most_floats(&c->limits);
    HD_TRY(host_copy(c, c->host_ranks, a->part, n, cudaMemcpyDeviceToHost));
    HD_TRY(a->comm->all_gather(a->comm, c->host_ranks, all, n_row, n_each));
    return host_copy(c, a->all, all, n * (size_t)a->comm->n_rank, cudaMemcpyHostToDevice);
}

#ifdef HD_CUDA_NCCL

/* ---- through NCCL ---- */

/* clang-format off */
#define NCCL_CALLS(X)                                                                              \
    X(ncclCommInitAll) X(ncclCommDestroy) X(ncclCommAbort) X(ncclAllReduce) X(ncclAllGather)       \
    X(ncclGroupStart) X(ncclGroupEnd) X(ncclGetErrorString)
/* clang-format on */
static struct {
    void *handle;
#define X(name) __typeof__(name) *name;
    NCCL_CALLS(X)
#undef X
} nccl;

static hd_status told(ncclResult_t r, const char *what) {
    if (r == ncclSuccess) return HD_OK;
    return HD_FAIL(DEVICE, "nccl: %s: %s", what, nccl.ncclGetErrorString(r));
}

static pthread_mutex_t nccl_lock = PTHREAD_MUTEX_INITIALIZER; /* of filling it */

static hd_status load_locked(void) {
    if (nccl.handle) return HD_OK;
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return HD_FAIL(UNSUPPORTED, "several GPUs: libnccl.so.2 is not found (LD_LIBRARY_PATH can "
                                    "name its folder)");
#define X(name)                                                                                    \
    nccl.name = (__typeof__(name) *)dlsym(library, #name);                                         \
    if (!nccl.name) return HD_FAIL(UNSUPPORTED, "libnccl has no %s: another version", #name);
    NCCL_CALLS(X)
#undef X
    nccl.handle = library;
    return HD_OK;
}

static hd_status load(void) {
    pthread_mutex_lock(&nccl_lock);
    hd_status s = load_locked();
    pthread_mutex_unlock(&nccl_lock);
    return s;
}

/* A rank's communicator. Any rank's thread may abort it: what waits on the device ends at once, but
 * ncclCommAbort, like ncclCommDestroy, returns when no graph holds a collective any more, which is
 * when the rank's device has been closed. So it has a thread of its own. */
typedef struct nccl_link {
    pthread_mutex_t lock; /* of comm and is_aborted */
    ncclComm_t comm;      /* NULL: aborted */
    bool is_aborted;
    ncclComm_t aborted; /* the aborter's alone */
    pthread_t aborter;
} nccl_link;

static void *abort_nccl(void *arg) {
    nccl_link *l = arg;
    (void)nccl.ncclCommAbort(l->aborted);
    return NULL;
}

static void cancel_nccl(void *handle) {
    nccl_link *l = handle;
    pthread_mutex_lock(&l->lock);
    if (l->comm) {
        l->aborted = l->comm;
        l->comm = NULL;
        l->is_aborted = pthread_create(&l->aborter, NULL, abort_nccl, l) == 0;
    }
    pthread_mutex_unlock(&l->lock);
}

/* After the devices. */
static void close_nccl(void *handle) {
    nccl_link *l = handle;
    if (l->is_aborted) pthread_join(l->aborter, NULL);
    if (l->comm) (void)nccl.ncclCommDestroy(l->comm);
    pthread_mutex_destroy(&l->lock);
    hd_free(l);
}

/* One collective of each kind on all ranks: the first ones connect them, and wait for each other on
 * the host, which later ones do not. */
static hd_status connect_ranks(void *const *ctx, const ncclComm_t *comm, int n_rank) {
    HD_TRY(told(nccl.ncclGroupStart(), "connecting"));
    for (int i = 0; i < n_rank; i++) {
        hd_cuda *c = ctx[i];
        HD_TRY(told(nccl.ncclAllReduce(c->all_ranks, c->all_ranks, 1, ncclFloat, ncclSum, comm[i],
                                       c->stream),
                    "connecting"));
        HD_TRY(told(
            nccl.ncclAllGather(c->all_ranks, c->all_ranks + 1, 1, ncclFloat, comm[i], c->stream),
            "connecting"));
    }
    return told(nccl.ncclGroupEnd(), "connecting");
}

static hd_status join_by_nccl(void *const *ctx, hd_comm *const *comm, int n_rank) {
    int ordinal[HD_RANK_MAX];
    ncclComm_t handle[HD_RANK_MAX];
    HD_TRY(load());
    for (int i = 0; i < n_rank; i++) {
        hd_cuda *c = ctx[i];
        size_t n_byte = ((size_t)n_rank * most_floats(&c->limits) + 1) * sizeof(float);
        ordinal[i] = c->ordinal;
        HD_TRY(hd_cuda_told(cudaSetDevice(c->ordinal), "a device"));
        HD_TRY(hd_cuda_told(cudaMalloc((void **)&c->all_ranks, n_byte), "collectives"));
    }
    HD_TRY(told(nccl.ncclCommInitAll(handle, n_rank, ordinal), "forming a group"));
    HD_TRY(connect_ranks(ctx, handle, n_rank));
    for (int i = 0; i < n_rank; i++) {
        nccl_link *l = hd_alloc_zero(1, sizeof *l);
        pthread_mutex_init(&l->lock, NULL);
        l->comm = handle[i];
        comm[i]->by = "nccl";
        comm[i]->native.handle = l;
        comm[i]->native.cancel = cancel_nccl;
        comm[i]->native.close = close_nccl;
    }
    return hd_cuda_told(cudaSetDevice(ordinal[0]), "a device");
}

static hd_status nccl_gather(hd_cuda *c, const hd_comm *comm, const float *part, size_t n) {
    nccl_link *l = comm->native.handle;
    ncclResult_t r = ncclSuccess; /* of what was aborted: the rank is told when it asks */
    pthread_mutex_lock(&l->lock);
    if (l->comm) r = nccl.ncclAllGather(part, c->all_ranks, n, ncclFloat, l->comm, c->stream);
    pthread_mutex_unlock(&l->lock);
    return told(r, "all_gather");
}

static hd_status nccl_all_reduce(hd_cuda *c, const struct hd_op_all_reduce *a) {
    nccl_link *l = a->comm->native.handle;
    ncclResult_t r = ncclSuccess;
    if (c->is_deterministic) {
        HD_TRY(nccl_gather(c, a->comm, a->x, a->n));
        hd_cuda_run_sum_ranks(c->all_ranks, a->comm->n_rank, a->n, a->x, c->stream);
        return HD_OK;
    }
    pthread_mutex_lock(&l->lock);
    if (l->comm) r = nccl.ncclAllReduce(a->x, a->x, a->n, ncclFloat, ncclSum, l->comm, c->stream);
    pthread_mutex_unlock(&l->lock);
    return told(r, "all_reduce");
}

static hd_status nccl_all_gather(hd_cuda *c, const struct hd_op_all_gather *a) {
    size_t n_row = (size_t)a->n_row, n_each = (size_t)a->n_each, n_rank = (size_t)a->comm->n_rank;
    size_t width = n_each * sizeof(float);
    HD_TRY(nccl_gather(c, a->comm, a->part, n_row * n_each));
    for (size_t k = 0; k < n_rank; k++)
        HD_TRY(hd_cuda_told(cudaMemcpy2DAsync(a->all + k * n_each, n_rank * width,
                                              c->all_ranks + k * n_row * n_each, width, width,
                                              n_row, cudaMemcpyDeviceToDevice, c->stream),
                            "all_gather"));
    return HD_OK;
}

#else

static hd_status join_by_nccl(void *const *ctx, hd_comm *const *comm, int n_rank) {
    (void)ctx;
    (void)comm;
    (void)n_rank;
    return HD_FAIL(UNSUPPORTED, "several GPUs: this build has no nccl (nccl.h was not found)");
}
/* Not called: no rank has a native handle. */
static hd_status nccl_all_reduce(hd_cuda *c, const struct hd_op_all_reduce *a) {
    (void)c;
    (void)a;
    return HD_OK;
}
static hd_status nccl_all_gather(hd_cuda *c, const struct hd_op_all_gather *a) {
    (void)c;
    (void)a;
    return HD_OK;
}

#endif

/* ---- the ops ---- */

hd_status hd_cuda_join(void *const *ctx, struct hd_comm *const *comm, int n_rank) {
    bool is_apart = true;
    for (int i = 0; i < n_rank; i++) {
        const hd_cuda *a = ctx[i];
        hd_cuda_part(ctx[i]);
        for (int k = 0; k < i; k++) is_apart &= a->ordinal != ((const hd_cuda *)ctx[k])->ordinal;
    }
    return is_apart ? join_by_nccl(ctx, comm, n_rank) : join_by_host(ctx, n_rank);
}

static void keep(hd_comm *c, hd_status s) {
    if (c->status == HD_OK) c->status = s;
}

void hd_cuda_now_all_reduce(void *ctx, const struct hd_op_all_reduce *args) {
    hd_comm *comm = args->comm;
    if (comm->status != HD_OK) return;
    keep(comm, comm->native.handle ? nccl_all_reduce(ctx, args) : host_all_reduce(ctx, args));
}

void hd_cuda_now_all_gather(void *ctx, const struct hd_op_all_gather *args) {
    hd_comm *comm = args->comm;
    if (comm->status != HD_OK) return;
    keep(comm, comm->native.handle ? nccl_all_gather(ctx, args) : host_all_gather(ctx, args));
}
