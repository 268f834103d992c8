/* Decoding steps as CUDA graphs.
 *
 * A step of one row a sequence has hundreds of small kernels, and the host would need longer to
 * launch them than the device to run them. So its ops are only written down; when the step's result
 * is asked for (or anything else is done with the device), the list is looked up by the step's
 * shape. The same list as last time: its graph is launched, one call. Another list, or none: the
 * ops are run into a new graph. The kernels and their order are those of an eager step, so the
 * numbers are, too. What varies from step to step (tokens, positions, pages) lies in the batch,
 * whose arrays have the same place for every step of a shape; which experts are hit is known on the
 * device only.
 *
 * There are few shapes: rows are filled up to one of row_counts (step.c), the units of the longest
 * sequence to a power of two. All graphs are made before the device is ready, by a rehearsal: the
 * model is asked for a step of each shape, which is not launched. A list that differs afterwards,
 * as without the sampling at its end, is run op by op: no memory is taken for it. */
#include "cuda/cuda.h"

#include "base/mem.h"

#include <string.h>

enum { LIST_BYTES_MAX = 1 << 20, ROWS_MAX = 96, UNITS_MAX = 24 };

/* A deferred op: this, then its arguments, padded to 16 bytes. */
typedef struct record {
    int op;
    int n_byte; /* of the arguments */
    int64_t pad;
} record;

typedef struct step {
    unsigned char *list;
    size_t n_byte;
    cudaGraphExec_t graph; /* NULL: none yet */
} step;

struct hd_cuda_graphs {
    unsigned char list[LIST_BYTES_MAX]; /* of the step that is being written down */
    size_t n_byte;
    bool is_deferring, is_rehearsing;
    bool was_rehearsed;                   /* no graph is made any more */
    int row_count[ROWS_MAX], n_row_count; /* ascending */
    int n_unit_count;                     /* 1, 2, 4, ... units */
    step *now;                            /* of the shape that is being written down */
    step step[ROWS_MAX][UNITS_MAX];
};

hd_cuda_graphs *hd_cuda_graphs_new(void) { return hd_alloc_zero(1, sizeof(hd_cuda_graphs)); }

static void drop(step *s) {
    if (s->graph) (void)cudaGraphExecDestroy(s->graph);
    hd_free(s->list);
    *s = (step){0};
}

void hd_cuda_graphs_drop(hd_cuda_graphs *g) {
    for (int r = 0; r < ROWS_MAX; r++)
        for (int u = 0; u < UNITS_MAX; u++) drop(&g->step[r][u]);
}

void hd_cuda_graphs_renew(hd_cuda_graphs *g) {
    hd_cuda_graphs_drop(g);
    g->was_rehearsed = false;
}

void hd_cuda_graphs_free(hd_cuda_graphs *g) {
    if (!g) return;
    hd_cuda_graphs_drop(g);
    hd_free(g);
}

/* A further row costs a few percent of a small step, and next to nothing in a large one. */
static int next_row_count(int n) {
    return n < 8 ? n + 1 : n < 32 ? n + 4 : n < 128 ? n + 8 : n < 512 ? n + 32 : n + 256;
}

void hd_cuda_graphs_reserve(hd_cuda *c) {
    hd_cuda_graphs *g = c->graphs;
    const hd_dev_limits *l = &c->limits;
    hd_cuda_graphs_drop(g);
    g->n_row_count = g->n_unit_count = 0;
    g->was_rehearsed = false;
    int n_max = l->n_row < l->n_seq ? l->n_row : l->n_seq;
    if (n_max > l->n_out) n_max = l->n_out;
    if (l->n_page == 0) return; /* no model, whose cache has a spare page */
    for (int n = 0; n < n_max && g->n_row_count < ROWS_MAX;) {
        n = next_row_count(n);
        g->row_count[g->n_row_count++] = n < n_max ? n : n_max;
    }
    int n_unit = (l->n_pos + HD_CUDA_UNIT - 1) / HD_CUDA_UNIT;
    while (g->n_unit_count < UNITS_MAX &&
           (g->n_unit_count == 0 || 1 << (g->n_unit_count - 1) < n_unit))
        g->n_unit_count++;
}

/* One row a sequence, of the form that decoding has, in all layers. */
static bool is_decoding(const hd_batch *b) {
    if (b->n_row != b->n_seq || b->n_row != b->n_out || b->layer1 > 0) return false;
    for (int r = 0; r < b->n_row; r++)
        if (b->form[r] != HD_MLA_ABSORBED) return false;
    return true;
}

int hd_cuda_graphs_begin(hd_cuda *c, const hd_batch *b, int n_unit) {
    hd_cuda_graphs *g = c->graphs;
    int row_ix = 0, unit_ix = 0;
    g->n_byte = 0;
    c->n_unit = n_unit;
    while (row_ix < g->n_row_count && g->row_count[row_ix] < b->n_row) row_ix++;
    while (1 << unit_ix < n_unit) unit_ix++;
    g->is_deferring = !c->is_profiled_by_op && !c->host_ranks && is_decoding(b);
    if (row_ix == g->n_row_count || unit_ix >= g->n_unit_count) g->is_deferring = false;
    if (!g->is_deferring) return b->n_row;
    c->n_unit = 1 << unit_ix; /* tasks past a row's end return at once */
    g->now = &g->step[row_ix][unit_ix];
    return g->row_count[row_ix];
}

bool hd_cuda_rehearsal(void *ctx, int ix, int *n_row, int *n_pos) {
    const hd_cuda *c = ctx;
    const hd_cuda_graphs *g = c->graphs;
    if (c->host_ranks || ix >= g->n_row_count * g->n_unit_count) return false;
    *n_row = g->row_count[ix / g->n_unit_count];
    *n_pos = HD_CUDA_UNIT << ix % g->n_unit_count;
    if (*n_pos > c->limits.n_pos) *n_pos = c->limits.n_pos;
    return true;
}

void hd_cuda_rehearse(void *ctx, bool on) {
    hd_cuda *c = ctx;
    c->graphs->is_rehearsing = on;
    c->graphs->was_rehearsed = !on;
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

static hd_status capture(hd_cuda *c, step *s) {
    hd_cuda_graphs *g = c->graphs;
    cudaGraph_t graph = NULL;
    drop(s);
    HD_TRY(hd_cuda_told(cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal),
                        "beginning a graph"));
    run_list(c, g->list, g->n_byte);
    HD_TRY(hd_cuda_told(cudaStreamEndCapture(c->stream, &graph), "a graph"));
    cudaError_t e = cudaGraphInstantiate(&s->graph, graph, 0);
    c->n_alloc++;
    (void)cudaGraphDestroy(graph);
    HD_TRY(hd_cuda_told(e, "making a graph"));
    HD_TRY(hd_cuda_told(cudaGraphUpload(s->graph, c->stream), "uploading a graph"));
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
    step *s = g->now;
    bool is_known = s->graph && s->n_byte == g->n_byte && memcmp(s->list, g->list, g->n_byte) == 0;
    if (!is_known && g->was_rehearsed) {
        run_list(c, g->list, g->n_byte);
        return HD_OK;
    }
    if (!is_known) HD_TRY(capture(c, s));
    if (g->is_rehearsing) return HD_OK;
    return hd_cuda_told(cudaGraphLaunch(s->graph, c->stream), "launching a graph");
}
