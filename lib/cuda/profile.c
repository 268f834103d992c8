/* What ran on the device, told by CUPTI, the CUDA profiling interface: its library is opened when
 * profiling begins, so that nothing depends on it otherwise.
 *
 * CUPTI hands over buffers of records on a thread of its own. They are kept here, and added to the
 * caller's spans when it ends. A kernel's op is known when every op is launched apart: the op is
 * pushed as an "external correlation" around its launches. Ops launched apart are NVTX ranges, for
 * those who look with the maker's tools. */
#include "cuda/cuda.h"

#include "base/mem.h"

#ifdef HD_CUDA_CUPTI

#include <cupti.h>
#include <dlfcn.h>
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BUFFER_BYTES = 1 << 20, RECORDS_MAX = 1 << 20 };

typedef struct origin {
    uint32_t launch; /* CUPTI's correlation id */
    enum hd_op op;
} origin;
typedef struct record {
    hd_span span;
    uint32_t launch;
} record;

#define CUPTI_CALLS(X)                                                                             \
    X(cuptiActivityRegisterCallbacks)                                                              \
    X(cuptiActivityRegisterTimestampCallback)                                                      \
    X(cuptiActivityEnable)                                                                         \
    X(cuptiActivityDisable)                                                                        \
    X(cuptiActivityFlushAll)                                                                       \
    X(cuptiActivityGetNextRecord)                                                                  \
    X(cuptiActivityPushExternalCorrelationId)                                                      \
    X(cuptiActivityPopExternalCorrelationId)                                                       \
    X(cuptiGetResultString)

/* One a process, as CUPTI is. */
static struct profiler {
    hd_spans *to;
    pthread_mutex_t lock; /* of what follows: CUPTI's thread writes */
    record *record;       /* [RECORDS_MAX] */
    origin *origin;       /* [RECORDS_MAX] */
    size_t n_record, n_origin, n_lost;
    void *handle;
#define X(name) __typeof__(name) *name;
    CUPTI_CALLS(X)
#undef X
} profiler = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint64_t monotonic_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* "attend" of _ZN..6attendILi1EE..: the last part of the name, without arguments. */
static void plain_name(const char *mangled, char out[64]) {
    const char *p = mangled, *id = mangled;
    size_t n = strlen(mangled);
    if (strncmp(p, "_Z", 2) == 0) {
        p += 2;
        bool is_nested = *p == 'N';
        p += is_nested || *p == 'L';
        while (*p >= '1' && *p <= '9') {
            char *end;
            size_t length = strtoul(p, &end, 10);
            if (length > strlen(end)) break;
            id = end, n = length;
            p = end + length;
            if (!is_nested) break;
        }
    }
    snprintf(out, 64, "%.*s", (int)n, id);
}

static record *new_record(void) {
    if (profiler.n_record == RECORDS_MAX) {
        profiler.n_lost++;
        return NULL;
    }
    record *r = &profiler.record[profiler.n_record++];
    *r = (record){.span.op = HD_OP_COUNT};
    return r;
}

static void keep_kernel(const CUpti_ActivityKernel10 *k) {
    record *r = new_record();
    if (!r) return;
    r->launch = k->correlationId;
    r->span.kind = HD_SPAN_KERNEL;
    r->span.lane = (int)k->streamId;
    r->span.start_ns = (int64_t)k->start;
    r->span.end_ns = (int64_t)k->end;
    plain_name(k->name ? k->name : "kernel", r->span.name);
}

static void keep_copy(const CUpti_ActivityMemcpy6 *m) {
    record *r = new_record();
    if (!r) return;
    r->launch = m->correlationId;
    r->span.kind = HD_SPAN_COPY;
    r->span.lane = (int)m->streamId;
    r->span.start_ns = (int64_t)m->start;
    r->span.end_ns = (int64_t)m->end;
    r->span.n_byte = m->bytes;
    snprintf(r->span.name, sizeof r->span.name, "%s",
             m->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD   ? "copy to the device"
             : m->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH ? "copy to the host"
                                                              : "copy");
}

static void keep_origin(const CUpti_ActivityExternalCorrelation *e) {
    if (profiler.n_origin == RECORDS_MAX) return; /* the kernel's op stays unknown */
    profiler.origin[profiler.n_origin++] =
        (origin){.launch = e->correlationId, .op = (enum hd_op)e->externalId};
}

static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *n_byte, size_t *n_record_max) {
    *buffer = hd_alloc(BUFFER_BYTES);
    *n_byte = BUFFER_BYTES;
    *n_record_max = 0; /* as many as fit */
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t n_byte,
                                 size_t n_valid) {
    (void)context;
    (void)stream;
    (void)n_byte;
    CUpti_Activity *a = NULL;
    pthread_mutex_lock(&profiler.lock);
    while (profiler.cuptiActivityGetNextRecord(buffer, n_valid, &a) == CUPTI_SUCCESS) {
        const void *p = a;
        if (a->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) keep_kernel(p);
        if (a->kind == CUPTI_ACTIVITY_KIND_MEMCPY) keep_copy(p);
        if (a->kind == CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION) keep_origin(p);
    }
    pthread_mutex_unlock(&profiler.lock);
    hd_free(buffer);
}

static hd_status told(CUptiResult r, const char *what) {
    if (r == CUPTI_SUCCESS) return HD_OK;
    const char *text = "unknown error";
    (void)profiler.cuptiGetResultString(r, &text);
    return HD_FAIL(UNSUPPORTED, "CUPTI: %s: %s", what, text);
}

static hd_status open_cupti(void) {
    static const char *const places[] = {"libcupti.so.13", "libcupti.so",
                                         "/usr/local/cuda/lib64/libcupti.so",
                                         "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so"};
    if (profiler.handle) return HD_OK;
    void *library = NULL;
    for (size_t i = 0; i < sizeof places / sizeof places[0] && !library; i++)
        library = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return HD_FAIL(UNSUPPORTED, "libcupti.so.13 is not found (it comes with the CUDA toolkit; "
                                    "LD_LIBRARY_PATH can name its folder)");
#define X(name)                                                                                    \
    profiler.name = (__typeof__(name) *)dlsym(library, #name);                                     \
    if (!profiler.name) return HD_FAIL(UNSUPPORTED, "libcupti has no %s: another version", #name);
    CUPTI_CALLS(X)
#undef X
    profiler.handle = library;
    HD_TRY(told(profiler.cuptiActivityRegisterTimestampCallback(monotonic_ns), "its clock"));
    return told(profiler.cuptiActivityRegisterCallbacks(give_buffer, take_buffer), "its buffers");
}

static const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                           CUPTI_ACTIVITY_KIND_MEMCPY,
                                           CUPTI_ACTIVITY_KIND_RUNTIME, /* of the correlations */
                                           CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION};
enum { N_KIND = sizeof kinds / sizeof kinds[0], N_KIND_ALWAYS = 2 };

static hd_status begin(hd_cuda *c, hd_spans *t, bool by_op) {
    HD_TRY(hd_cuda_told(cudaDeviceSynchronize(), "before profiling"));
    profiler.record = hd_alloc(RECORDS_MAX * sizeof *profiler.record);
    profiler.origin = hd_alloc(RECORDS_MAX * sizeof *profiler.origin);
    profiler.n_record = profiler.n_origin = profiler.n_lost = 0;
    profiler.to = t;
    c->is_profiled_by_op = by_op;
    for (int i = 0; i < (by_op ? N_KIND : N_KIND_ALWAYS); i++)
        HD_TRY(told(profiler.cuptiActivityEnable(kinds[i]), "a kind of record"));
    return HD_OK;
}

static int by_launch(const void *a, const void *b) {
    uint32_t x = ((const origin *)a)->launch, y = ((const origin *)b)->launch;
    return (x > y) - (x < y);
}

static hd_status end(hd_cuda *c) {
    HD_TRY(hd_cuda_told(cudaDeviceSynchronize(), "the end of profiling"));
    hd_status s = told(profiler.cuptiActivityFlushAll(1), "the last records");
    for (int i = 0; i < N_KIND; i++) (void)profiler.cuptiActivityDisable(kinds[i]);
    c->is_profiled_by_op = false;
    pthread_mutex_lock(&profiler.lock);
    qsort(profiler.origin, profiler.n_origin, sizeof *profiler.origin, by_launch);
    for (size_t i = 0; i < profiler.n_record; i++) {
        record *r = &profiler.record[i];
        const origin *l = bsearch(&(origin){.launch = r->launch}, profiler.origin,
                                  profiler.n_origin, sizeof *profiler.origin, by_launch);
        if (l) r->span.op = l->op;
        hd_spans_add(profiler.to, &r->span);
    }
    profiler.to->n_lost += profiler.n_lost;
    hd_free(profiler.record);
    hd_free(profiler.origin);
    profiler.record = NULL;
    profiler.origin = NULL;
    profiler.to = NULL;
    pthread_mutex_unlock(&profiler.lock);
    return s;
}

/* Only where they are launched early is there a difference. */
static void launch_in_turn(hd_cuda *c, bool on) {
    if (c->is_in_turn == on || !c->has_early_launch) return;
    c->is_in_turn = on; /* for the steps that follow */
    hd_cuda_graphs_renew(c->graphs);
}

hd_status hd_cuda_profile(void *ctx, hd_spans *t, enum hd_profile_how how) {
    hd_cuda *c = ctx;
    HD_TRY(hd_cuda_flush(c));
    if (profiler.to) HD_TRY(end(c));
    if (t) HD_TRY(open_cupti());
    launch_in_turn(c, t && how != HD_PROFILE_ALWAYS);
    return t ? begin(c, t, how == HD_PROFILE_BY_OP) : HD_OK;
}

static const char *const op_name[] = {
#define HD_OP(name, what) #name,
#include "dev/op.def"
#undef HD_OP
};

void hd_cuda_profile_enter(const hd_cuda *c, enum hd_op op) {
    (void)nvtxRangePushA(op_name[op]);
    if (c->is_profiled_by_op)
        (void)profiler.cuptiActivityPushExternalCorrelationId(
            CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, (uint64_t)op);
}

void hd_cuda_profile_leave(const hd_cuda *c) {
    uint64_t op;
    (void)nvtxRangePop();
    if (c->is_profiled_by_op)
        (void)profiler.cuptiActivityPopExternalCorrelationId(
            CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &op);
}

#else

hd_status hd_cuda_profile(void *ctx, hd_spans *t, enum hd_profile_how how) {
    (void)ctx;
    (void)how;
    return t ? HD_FAIL(UNSUPPORTED, "this cuda backend was built without cupti.h") : HD_OK;
}
void hd_cuda_profile_enter(const hd_cuda *c, enum hd_op op) {
    (void)c;
    (void)op;
}
void hd_cuda_profile_leave(const hd_cuda *c) { (void)c; }

#endif
