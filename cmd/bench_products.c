/* `hadal bench --products`: the weight product alone, which is most of a model's time. */
#include "cmd/bench.h"

#include "base/clock.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* What is timed; the last shape is larger than most caches, for few rows. A device with memory of
 * its own is told many products before it is asked for a result, and has sizes that fill it. */
enum { SHAPE_MAX = 4, ROW_COUNT_MAX = 9 };
typedef struct extent {
    int shapes[SHAPE_MAX][2], n_shape;          /* out, in */
    int row_counts[ROW_COUNT_MAX], n_row_count; /* ascending */
    int width_max, n_op;                        /* n_op: products between two results */
} extent;
static const extent of_host = {.shapes = {{256, 256}, {1024, 1024}, {2048, 2048}, {32768, 2048}},
                               .n_shape = 4,
                               .row_counts = {1, 4, 16, 64, 256},
                               .n_row_count = 5,
                               .width_max = 2048,
                               .n_op = 1};
static const extent of_device = {
    .shapes = {{2048, 2048}, {3072, 2048}, {2048, 10944}, {131072, 2048}},
    .n_shape = 4,
    .row_counts = {1, 4, 8, 16, 32, 64, 128, 512, 4096},
    .n_row_count = 9,
    .width_max = 10944,
    .n_op = 32};
static const enum hd_format formats[] = {HD_F32,  HD_F16,  HD_BF16, HD_F8_B128, HD_Q8_0,
                                         HD_Q5_0, HD_Q4_K, HD_Q6_K, HD_IQ2_XXS};

/* Weights repeat after so many, for encoding takes long. */
enum { ENCODED = 1 << 20 };

/* Seconds of the fastest of the runs that fit into `seconds`, at least three. */
static hd_status fastest(const hd_dev *dev, const struct hd_op_proj_add *a, int n_op,
                         double seconds, double *best) {
    double sum = 0;
    *best = INFINITY;
    for (int n = 0; n < 3 || (sum < seconds && n < 100000); n++) {
        float done;
        int64_t start = hd_now_ns();
        for (int i = 0; i < n_op; i++) dev->ops->proj_add(dev->ctx, a);
        HD_TRY(hd_dev_get(dev, &done, a->x, sizeof done)); /* waits */
        double s = (double)(hd_now_ns() - start) / 1e9;
        sum += s;
        s /= n_op;
        if (s < *best) *best = s;
    }
    return HD_OK;
}

static void encode(enum hd_format f, const float *value, unsigned char *bytes, size_t n) {
    for (size_t at = 0; at < n; at += ENCODED) {
        size_t n_more = n - at < ENCODED ? n - at : ENCODED;
        if (at == 0)
            hd_format_get(f)->encode(value, bytes, n_more);
        else
            memcpy(bytes + hd_format_bytes(f, at), bytes, hd_format_bytes(f, n_more));
    }
}

static int row_max(const extent *e) { return e->row_counts[e->n_row_count - 1]; }
static size_t outputs_max(const extent *e) { return (size_t)row_max(e) * (size_t)e->width_max; }

struct memory {
    float *value;         /* [ENCODED] what weights are encoded from */
    unsigned char *bytes; /* a weight */
    void *a, *x;          /* the device's */
};

static hd_status time_weight(const struct hd_bench_products *b, const extent *e,
                             const struct memory *m, enum hd_format f, const int shape[2]) {
    hd_json *j = b->json;
    const void *mat[1] = {m->bytes};
    hd_status s = HD_OK;
    hd_weight w = {.format = f, .n_in = shape[1], .n_out = shape[0], .n_mat = 1, .mat = mat};
    size_t n = (size_t)shape[0] * (size_t)shape[1];
    encode(f, m->value, m->bytes, n);
    if (b->dev->ops->prepare) HD_TRY(b->dev->ops->prepare(b->dev->ctx, &w));
    if (b->dev->ops->settle) HD_TRY_OUT(b->dev->ops->settle(b->dev->ctx));
    if (!j) printf("  %-7s [%4d, %4d]", hd_format_get(f)->name, shape[0], shape[1]);
    double gbytes_s = 0; /* of weights, with one row */
    for (int r = 0; r < e->n_row_count; r++) {
        int n_row = e->row_counts[r];
        if ((size_t)n_row * (size_t)shape[0] > outputs_max(e)) continue;
        struct hd_op_proj_add a = {.n_row = n_row, .a = m->a, .w = &w, .x = m->x};
        double best;
        HD_TRY_OUT(fastest(b->dev, &a, e->n_op, b->seconds, &best));
        double flops = 2.0 * (double)n * n_row / best;
        double share = b->roof->flops > 0 ? flops / b->roof->flops : 0;
        if (r == 0) gbytes_s = (double)hd_format_bytes(f, n) / best / 1e9;
        if (j) {
            static const char *const keys[] = {"n_out", "n_in", "rows", "gflops_s", "share_of_fma"};
            double values[] = {shape[0], shape[1], n_row, flops / 1e9, share};
            hd_json_object(j);
            hd_json_key(j, "format");
            hd_json_str_c(j, hd_format_get(f)->name);
            for (size_t i = 0; i < HD_COUNT_OF(keys); i++) {
                hd_json_key(j, keys[i]);
                hd_json_num(j, values[i]);
            }
            hd_json_object_end(j);
        } else {
            printf("  %4d: %8.1f (%3.0f %%)", n_row, flops / 1e9, 100 * share);
        }
    }
    if (!j) printf("  weights read by one row: %.0f GB/s\n", gbytes_s);
out:
    if (b->dev->ops->prepare) b->dev->ops->release(b->dev->ctx, &w);
    return s;
}

/* The activations, filled; x stays zero. */
static hd_status open_memory(const hd_dev *dev, const extent *e, struct memory *m) {
    size_t n_weight = 0, n_row = outputs_max(e);
    for (int i = 0; i < e->n_shape; i++) {
        size_t n = (size_t)e->shapes[i][0] * (size_t)e->shapes[i][1];
        n_weight = n > n_weight ? n : n_weight;
    }
    m->value = hd_alloc((ENCODED > n_row ? ENCODED : n_row) * sizeof(float));
    m->bytes = hd_alloc(n_weight * sizeof(float));
    HD_TRY(dev->ops->alloc(dev->ctx, n_row * sizeof(float), &m->a));
    HD_TRY(dev->ops->alloc(dev->ctx, n_row * sizeof(float), &m->x));
    hd_bench_fill(m->value, n_row, 1);
    HD_TRY(hd_dev_put(dev, m->a, m->value, n_row * sizeof(float)));
    hd_bench_fill(m->value, ENCODED, 0.03f);
    return HD_OK;
}

static void close_memory(const hd_dev *dev, struct memory *m) {
    hd_free(m->value);
    hd_free(m->bytes);
    if (m->a) dev->ops->free(dev->ctx, m->a);
    if (m->x) dev->ops->free(dev->ctx, m->x);
}

hd_status hd_bench_products(const struct hd_bench_products *b) {
    const hd_dev *dev = b->dev;
    hd_json *j = b->json;
    const extent *e = hd_dev_has_memory(dev) ? &of_device : &of_host;
    hd_dev_limits l = {.n_row = row_max(e),
                       .n_seq = 1,
                       .n_out = 1,
                       .d_model = e->width_max,
                       .n_vocab = 1,
                       .d_ff = e->width_max,
                       .d_expert = 32,
                       .n_expert = 1,
                       .n_used = 1,
                       .n_head = 1,
                       .n_nope = 32,
                       .n_rope = 32,
                       .n_c = 32,
                       .n_v = 32,
                       .q_lora = 32,
                       .n_pos = 1};
    HD_TRY(dev->ops->reserve(dev->ctx, &l));
    struct memory m = {0};
    hd_status s;
    HD_TRY_OUT(open_memory(dev, e, &m));
    if (j) {
        hd_json_key(j, "products");
        hd_json_array(j);
    } else {
        printf("products, GFLOP/s by rows (share of %s), best run\n",
               b->roof->flop_name ? b->roof->flop_name : "what is not known");
    }
    for (int i = 0; i < e->n_shape; i++)
        for (size_t f = 0; f < HD_COUNT_OF(formats); f++)
            if (e->shapes[i][1] % hd_format_get(formats[f])->block_elems == 0 &&
                dev->ops->supports(dev->ctx, HD_OP_proj_add, formats[f]))
                HD_TRY_OUT(time_weight(b, e, &m, formats[f], e->shapes[i]));
    if (j) hd_json_array_end(j);
out:
    close_memory(dev, &m);
    return s;
}
