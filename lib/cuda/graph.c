/* Decoding steps as CUDA graphs.
 *
 * A step of one row a sequence has hundreds of small kernels, and the host would need longer to
 * launch them than the device to run them. So its ops are only written down; when the step's result
 * is asked for (or anything else is done with the device), the list is looked up by the step's
 * shape. The same list as last time: its graph is launched, one call. Another list, or none: the
 * ops are run into a new graph. The kernels and their order are those of an eager step, so the
 * numbers are, too. What varies from step to step (tokens, positions, pages) lies in the batch,
 * whose arrays have the same place for every step of a shape; which experts are hit is known on the
 * device only. */
#include "cuda/cuda.h"

#include "base/mem.h"

#include <string.h>

enum { LIST_BYTES_MAX = 1 << 20, STEPS_MAX = 128 };

typedef struct shape {
    int n_row, n_seq, n_out, n_unit;
} shape;

/* A deferred op: this, then its arguments, padded to 16 bytes. */
typedef struct record {
    int op;
    int n_byte; /* of the arguments */
    int64_t pad;
} record;

typedef struct step {
    shape shape;
    unsigned char *list;
    size_t n_byte;
    cudaGraphExec_t graph;
    uint64_t last_use;
} step;

struct hd_cuda_graphs {
    unsigned char list[LIST_BYTES_MAX]; /* of the step that is being written down */
    size_t n_byte;
    bool is_deferring;
    shape shape;
    step step[STEPS_MAX];
    int n_step;
    uint64_t n_use;
};

hd_cuda_graphs *hd_cuda_graphs_new(void) { return hd_alloc_zero(1, sizeof(hd_cuda_graphs)); }

static void drop(step *s) {
    if (s->graph) (void)cudaGraphExecDestroy(s->graph);
    hd_free(s->list);
    *s = (step){0};
}

void hd_cuda_graphs_drop(hd_cuda_graphs *g) {
    for (int i = 0; i < g->n_step; i++) drop(&g->step[i]);
    g->n_step = 0;
}

void hd_cuda_graphs_free(hd_cuda_graphs *g) {
    if (!g) return;
    hd_cuda_graphs_drop(g);
    hd_free(g);
}

void hd_cuda_graphs_begin(hd_cuda *c) {
    const hd_batch *b = &c->batch;
    hd_cuda_graphs *g = c->graphs;
    g->n_byte = 0;
    bool is_decoding = b->n_row == b->n_seq && b->n_row == b->n_out && c->plan.n_flash == 0;
    g->is_deferring = !c->is_profiled_by_op && is_decoding && !c->host_ranks;
    if (!g->is_deferring) return;
    int n_unit = 1; /* few shapes: tasks past a row's end return at once */
    while (n_unit < c->n_unit) n_unit *= 2;
    c->n_unit = n_unit;
    g->shape = (shape){b->n_row, b->n_seq, b->n_out, n_unit};
}

/* True: written down, not to be run now. */
static bool defer(hd_cuda *c, enum hd_op op, const void *args, size_t n_byte) {
    hd_cuda_graphs *g = c->graphs;
    size_t room = sizeof(record) + (n_byte + 15) / 16 * 16;
    if (!g->is_deferring) return false;
    HD_ASSERT(g->n_byte + room <= sizeof g->list);
    record r = {.op = (int)op, .n_byte = (int)n_byte};
    memset(g->list + g->n_byte, 0, room);
    memcpy(g->list + g->n_byte, &r, sizeof r);
    memcpy(g->list + g->n_byte + sizeof r, args, n_byte);
    g->n_byte += room;
    return true;
}

#define HD_OP(name, what)                                                                          \
    void hd_cuda_op_##name(void *ctx, const struct hd_op_##name *args) {                           \
        if (defer(ctx, HD_OP_##name, args, sizeof *args)) return;                                  \
        hd_cuda_profile_enter(ctx, HD_OP_##name);                                                  \
        hd_cuda_now_##name(ctx, args);                                                             \
        hd_cuda_profile_leave(ctx);                                                                \
    }
#include "dev/op.def"
#undef HD_OP

static void run_list(hd_cuda *c, const unsigned char *list, size_t n_byte) {
    for (size_t at = 0; at < n_byte;) {
        record r;
        memcpy(&r, list + at, sizeof r);
        const void *args = list + at + sizeof r;
        switch ((enum hd_op)r.op) {
#define HD_OP(name, what)                                                                          \
    case HD_OP_##name:                                                                             \
        hd_cuda_now_##name(c, args);                                                               \
        break;
#include "dev/op.def"
#undef HD_OP
        case HD_OP_COUNT: break;
        }
        at += sizeof r + ((size_t)r.n_byte + 15) / 16 * 16;
    }
}

/* The step of this shape; else a free one, or the one that was not used for longest. */
static step *find_step(hd_cuda_graphs *g) {
    step *oldest = &g->step[0];
    for (int i = 0; i < g->n_step; i++) {
        if (memcmp(&g->step[i].shape, &g->shape, sizeof g->shape) == 0) return &g->step[i];
        if (g->step[i].last_use < oldest->last_use) oldest = &g->step[i];
    }
    return g->n_step < STEPS_MAX ? &g->step[g->n_step++] : oldest;
}

static hd_status capture(hd_cuda *c, step *s) {
    hd_cuda_graphs *g = c->graphs;
    cudaGraph_t graph = NULL;
    drop(s);
    HD_TRY(hd_cuda_told(cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal),
                        "beginning a graph"));
    run_list(c, g->list, g->n_byte);
    HD_TRY(hd_cuda_told(cudaStreamEndCapture(c->stream, &graph), "a graph"));
    cudaError_t e = cudaGraphInstantiate(&s->graph, graph, 0);
    (void)cudaGraphDestroy(graph);
    HD_TRY(hd_cuda_told(e, "making a graph"));
    s->shape = g->shape;
    s->n_byte = g->n_byte;
    s->list = hd_alloc(g->n_byte);
    memcpy(s->list, g->list, g->n_byte);
    return HD_OK;
}

hd_status hd_cuda_flush(hd_cuda *c) {
    hd_cuda_graphs *g = c->graphs;
    if (!g->is_deferring) return HD_OK;
    g->is_deferring = false;
    if (g->n_byte == 0) return HD_OK;
    step *s = find_step(g);
    s->last_use = ++g->n_use;
    bool is_known = s->graph && s->n_byte == g->n_byte && memcmp(s->list, g->list, g->n_byte) == 0;
    if (!is_known) HD_TRY(capture(c, s));
    return hd_cuda_told(cudaGraphLaunch(s->graph, c->stream), "launching a graph");
}
