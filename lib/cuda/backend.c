/* The cuda backend: opening a device, its memory, and the table that the program loads.
 *
 * Start with kernels.h: what numbers are made of, and in which order sums go. ops.c composes ops of
 * kernels; each .cu file is one kind of kernel with its launcher. The first device that the CUDA
 * runtime lists is used (CUDA_VISIBLE_DEVICES chooses another), or the one of config->ordinal; of
 * the runtime a device belongs to the thread that opened it: the others' is the first. */
#include "cuda/cuda.h"

#include "base/mem.h"

hd_status hd_cuda_told(cudaError_t e, const char *what) {
    if (e == cudaSuccess) return HD_OK;
    return HD_FAIL(DEVICE, "cuda: %s: %s", what, cudaGetErrorString(e));
}

/* Why there is nothing to open; HD_OK when there is. */
static hd_status check_device(hd_cuda *c) {
    int n = 0;
    cudaError_t e = cudaDriverGetVersion(&c->driver);
    if (e != cudaSuccess || c->driver == 0)
        return HD_FAIL(UNSUPPORTED, "no NVIDIA driver is installed");
    e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n == 0)
        return HD_FAIL(UNSUPPORTED, "no device: %s",
                       e == cudaSuccess ? "the driver lists none" : cudaGetErrorString(e));
    if (c->ordinal >= n)
        return HD_FAIL(UNSUPPORTED, "device %d: there are %d devices", c->ordinal, n);
    e = cudaSetDevice(c->ordinal);
    if (e == cudaSuccess) e = cudaGetDeviceProperties(&c->prop, c->ordinal);
    if (e != cudaSuccess)
        return HD_FAIL(UNSUPPORTED, "device %d: %s", c->ordinal, cudaGetErrorString(e));
    int level;
    e = hd_cuda_check_image(&level);
    bool is_sm90 = c->prop.major == 9 && level >= 90;
    if (e != cudaSuccess)
        return HD_FAIL(UNSUPPORTED, "%s is sm_%d%d: this build has kernels for %s", c->prop.name,
                       c->prop.major, c->prop.minor, HD_CUDA_ARCHITECTURES);
    c->gemm = (hd_cuda_gemm_how){.n_block = c->prop.multiProcessorCount,
                                 .is_sm90 = is_sm90,
                                 .is_ordered = c->is_deterministic};
    return HD_OK;
}

static void close_cuda(void *ctx) {
    hd_cuda *c = ctx;
    if (!c) return;
    if (c->stream) (void)cudaStreamSynchronize(c->stream);
    hd_cuda_graphs_free(c->graphs);
    (void)hd_cuda_settle(c);
    hd_cuda_free_step(c);
    hd_cuda_plan_fini(&c->plan);
    hd_cuda_forms_fini(c);
    for (int i = 0; i < HD_DEV_STEPS; i++) {
        if (c->stage[i].copied) (void)cudaEventDestroy(c->stage[i].copied);
        if (c->result[i].arrived) (void)cudaEventDestroy(c->result[i].arrived);
    }
    (void)cudaFree(c->scratch);
    (void)cudaFree(c->decoded);
    hd_cuda_part(c);
    (void)cudaFree(c->kv_lost);
    (void)cudaFreeHost(c->kv_lost_seen);
    if (c->stream) (void)cudaStreamDestroy(c->stream);
    hd_free(c);
}

static hd_status open_queue(hd_cuda *c) {
    void *lost, *seen;
    HD_TRY(hd_cuda_alloc(c, sizeof *c->kv_lost, "a count", &lost));
    c->kv_lost = lost;
    HD_TRY(hd_cuda_alloc_host(c, sizeof *c->kv_lost_seen, "a count", &seen));
    c->kv_lost_seen = seen;
    *c->kv_lost_seen = 0;
    HD_TRY(hd_cuda_told(cudaMemset(lost, 0, sizeof *c->kv_lost), "a count"));
    HD_TRY(hd_cuda_told(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), "a stream"));
    for (int i = 0; i < HD_DEV_STEPS; i++) {
        cudaEvent_t *event[2] = {&c->stage[i].copied, &c->result[i].arrived};
        for (int k = 0; k < 2; k++)
            HD_TRY(hd_cuda_told(cudaEventCreateWithFlags(event[k], cudaEventDisableTiming),
                                "an event"));
    }
    return HD_OK;
}

static hd_status open_cuda(const hd_dev_config *config, void **ctx) {
    hd_cuda *c = hd_alloc_zero(1, sizeof *c);
    c->ordinal = config->ordinal;
    c->compute = config->compute;
    c->is_deterministic = config->is_deterministic;
    c->has_context_fmha = !config->no_context_fmha;
    c->has_multi_block = !config->no_multi_block;
    c->has_early_launch = !config->no_early_launch;
    hd_cuda_launch_in_turn(!c->has_early_launch);
    c->graphs = hd_cuda_graphs_new();
    hd_status s = check_device(c);
    if (s == HD_OK) s = open_queue(c);
    if (s != HD_OK) {
        close_cuda(c);
        return s;
    }
    *ctx = c;
    return HD_OK;
}

static void describe(void *ctx, hd_buf *b) {
    const hd_cuda *c = ctx;
    hd_cuda_add_text(b, "%s, sm_%d%d, %d multiprocessors, %.1f GiB, CUDA %d.%d (driver %d.%d)",
                     c->prop.name, c->prop.major, c->prop.minor, c->prop.multiProcessorCount,
                     (double)c->prop.totalGlobalMem / (double)(1 << 30), CUDART_VERSION / 1000,
                     CUDART_VERSION % 1000 / 10, c->driver / 1000, c->driver % 1000 / 10);
}

static bool supports(void *ctx, enum hd_op op, enum hd_format f) {
    (void)ctx;
    (void)op;
    return hd_cuda_can_decode(f);
}

static bool supports_kv(void *ctx, enum hd_kv_type t) {
    (void)ctx;
    return t < HD_KV_TYPE_COUNT;
}

static uint64_t kv_lost(void *ctx) {
    const hd_cuda *c = ctx;
    return __atomic_load_n(c->kv_lost_seen, __ATOMIC_RELAXED);
}

static const char *kernel(void *ctx, enum hd_op op, enum hd_format f) {
    if (op == HD_OP_embed) return "decode";
    if (op != HD_OP_route && hd_cuda_rounds(ctx, f)) return "mma-bf16, 1 product";
    return f == HD_F32 || f == HD_F8_B128 ? "mma-bf16, 6 products"
           : f == HD_F16                  ? "mma-bf16, 5 products"
                                          : "mma-bf16, 3 products";
}

static hd_status roofline(void *ctx, hd_dev_roofline *out) {
    hd_cuda *c = ctx;
    *out = (hd_dev_roofline){.flop_name = "BF16 tensor core", .buffer_bytes = (size_t)1 << 30};
    void *buffer = NULL;
    HD_TRY(hd_cuda_told(cudaMalloc(&buffer, out->buffer_bytes), "roofline"));
    cudaError_t e = hd_cuda_measure(buffer, out->buffer_bytes, c->prop.multiProcessorCount,
                                    &out->flops, &out->read_bytes, c->stream);
    (void)cudaFree(buffer);
    return hd_cuda_told(e, "roofline");
}

static hd_status alloc_memory(void *ctx, size_t n_byte, void **out) {
    hd_cuda *c = ctx;
    HD_TRY(hd_cuda_alloc(c, n_byte, "device memory", out));
    return hd_cuda_told(cudaMemsetAsync(*out, 0, n_byte, c->stream), "cudaMemset");
}

static void free_memory(void *ctx, void *p) {
    (void)ctx;
    (void)cudaFree(p);
}

/* Behind what the stream was given, like get. */
static hd_status put(void *ctx, void *to, const void *from, size_t n_byte) {
    hd_cuda *c = ctx;
    HD_TRY(hd_cuda_flush(c));
    c->sorted = NULL; /* experts may be what is written */
    HD_TRY(hd_cuda_told(cudaMemcpyAsync(to, from, n_byte, cudaMemcpyHostToDevice, c->stream),
                        "copy to the device"));
    return hd_cuda_told(cudaStreamSynchronize(c->stream), "copy to the device");
}

static hd_status get(void *ctx, void *to, const void *from, size_t n_byte) {
    hd_cuda *c = ctx;
    HD_TRY(hd_cuda_flush(c));
    HD_TRY(hd_cuda_told(cudaGetLastError(), "a kernel"));
    HD_TRY(hd_cuda_told(cudaMemcpyAsync(to, from, n_byte, cudaMemcpyDeviceToHost, c->stream),
                        "copy from the device"));
    HD_TRY(hd_cuda_see_lost(c));
    return hd_cuda_told(cudaStreamSynchronize(c->stream), "a step");
}

static hd_status copy(void *ctx, void *to, const void *from, size_t n_byte) {
    hd_cuda *c = ctx;
    HD_TRY(hd_cuda_flush(c));
    return hd_cuda_told(cudaMemcpyAsync(to, from, n_byte, cudaMemcpyDeviceToDevice, c->stream),
                        "copy of a page");
}

static uint64_t free_bytes(void *ctx) {
    (void)ctx;
    size_t n_free = 0, n_all = 0;
    return cudaMemGetInfo(&n_free, &n_all) == cudaSuccess ? n_free : 0;
}

static uint64_t n_alloc(void *ctx) {
    const hd_cuda *c = ctx;
    return c->n_alloc;
}

static uint64_t scratch_bytes(void *ctx) {
    const hd_cuda *c = ctx;
    return c->scratch_bytes + c->batch_room;
}

static const hd_dev_ops ops = {
    .name = "cuda",
    .open = open_cuda,
    .close = close_cuda,
    .describe = describe,
    .supports = supports,
    .supports_kv = supports_kv,
    .kv_lost = kv_lost,
    .alloc = alloc_memory,
    .free = free_memory,
    .put = put,
    .get = get,
    .copy = copy,
    .upload = hd_cuda_upload,
    .send = hd_cuda_send,
    .receive = hd_cuda_receive,
    .free_bytes = free_bytes,
    .reserve = hd_cuda_reserve,
    .join = hd_cuda_join,
    .prepare = hd_cuda_prepare,
    .release = hd_cuda_release,
    .settle = hd_cuda_settle,
    .rehearsal = hd_cuda_rehearsal,
    .rehearse = hd_cuda_rehearse,
    .n_alloc = n_alloc,
    .scratch_bytes = scratch_bytes,
    .kernel = kernel,
    .profile = hd_cuda_profile,
    .roofline = roofline,
#define HD_OP(name, what) .name = hd_cuda_op_##name,
#include "dev/op.def"
#undef HD_OP
};

__attribute__((visibility("default"))) const hd_plugin hd_plugin_of_this_object = {
    .contract = HD_DEV_CONTRACT, .ops = &ops, .bind = hd_cuda_bind};
