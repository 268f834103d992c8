/* Metric storage and the Prometheus text format (version 0.0.4). */
#include "base/metric.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum { bucket_max = 24 };
enum kind { KIND_COUNTER, KIND_GAUGE, KIND_HISTOGRAM };

#define HD_BUCKETS_TTFT                                                                            \
    {                                                                                              \
        .001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,     \
            160, 640                                                                               \
    }
#define HD_BUCKETS_ITL                                                                             \
    {                                                                                              \
        .001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, \
            20                                                                                     \
    }
#define HD_BUCKETS_LONG                                                                            \
    { .01, .05, .1, .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 60, 120, 240, 480, 960 }
#define HD_BUCKETS_TOKENS                                                                          \
    { 1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384 }

static const struct {
    enum kind kind;
    const char *name, *help;
    double bucket[bucket_max]; /* upper bounds; the first 0 ends them */
} rows[HD_METRIC_COUNT] = {
#define HD_COUNTER(id, name, help) [HD_M_##id] = {KIND_COUNTER, name, help, {0}},
#define HD_GAUGE(id, name, help) [HD_M_##id] = {KIND_GAUGE, name, help, {0}},
#define HD_HISTOGRAM(id, name, buckets, help) [HD_M_##id] = {KIND_HISTOGRAM, name, help, buckets},
#define HD_CLASS_ROW(id, k, class, name, help, ...)                                                \
    [HD_M_##id + HD_SERVICE_##class] = {k, name, help, __VA_ARGS__}
#define HD_CLASS_ROWS(id, k, name, help, ...)                                                      \
    HD_CLASS_ROW(id, k, INTERACTIVE, name "{class=\"interactive\"}", help, __VA_ARGS__),           \
        HD_CLASS_ROW(id, k, STANDARD, name "{class=\"standard\"}", help, __VA_ARGS__),             \
        HD_CLASS_ROW(id, k, BATCH, name "{class=\"batch\"}", help, __VA_ARGS__),                   \
        HD_CLASS_ROW(id, k, OFFLINE, name "{class=\"offline\"}", help, __VA_ARGS__),
#define HD_CLASS_COUNTER(id, name, help) HD_CLASS_ROWS(id, KIND_COUNTER, name, help, {0})
#define HD_CLASS_GAUGE(id, name, help) HD_CLASS_ROWS(id, KIND_GAUGE, name, help, {0})
#define HD_CLASS_HISTOGRAM(id, name, buckets, help)                                                \
    HD_CLASS_ROWS(id, KIND_HISTOGRAM, name, help, buckets)
#include "base/metrics.def"
#undef HD_COUNTER
#undef HD_GAUGE
#undef HD_HISTOGRAM
};

static struct {
    _Atomic double value; /* counter, gauge, or a histogram's sum */
    _Atomic uint64_t n, bucket[bucket_max];
} cells[HD_METRIC_COUNT];

static void add_double(_Atomic double *cell, double v) {
    double old = atomic_load_explicit(cell, memory_order_relaxed);
    while (!atomic_compare_exchange_weak(cell, &old, old + v)) {
    }
}

void hd_metric_add(enum hd_metric m, double v) { add_double(&cells[m].value, v); }
void hd_metric_set(enum hd_metric m, double v) { atomic_store(&cells[m].value, v); }

void hd_metric_observe(enum hd_metric m, double v) {
    HD_DASSERT(rows[m].kind == KIND_HISTOGRAM);
    int i = 0;
    while (i < bucket_max && rows[m].bucket[i] > 0 && v > rows[m].bucket[i]) i++;
    if (i < bucket_max && rows[m].bucket[i] > 0) atomic_fetch_add(&cells[m].bucket[i], 1);
    atomic_fetch_add(&cells[m].n, 1);
    add_double(&cells[m].value, v);
}

double hd_metric_get(enum hd_metric m) {
    if (rows[m].kind == KIND_HISTOGRAM) return (double)atomic_load(&cells[m].n);
    return atomic_load(&cells[m].value);
}

void hd_metric_reset_all(void) {
    for (int m = 0; m < HD_METRIC_COUNT; m++) {
        atomic_store(&cells[m].value, 0);
        atomic_store(&cells[m].n, 0);
        for (int i = 0; i < bucket_max; i++) atomic_store(&cells[m].bucket[i], 0);
    }
}

/* Writes the label set: the common labels, then those written in the row's name, then `le`. */
static void labels(hd_buf *b, const char *own, const char *model_name, const char *le) {
    hd_buf_add_c(b, "{model_name=\"");
    for (const char *c = model_name; *c; c++) {
        if (*c == '"' || *c == '\\') hd_buf_add(b, "\\", 1);
        if (*c == '\n') {
            hd_buf_add_c(b, "\\n");
            continue;
        }
        hd_buf_add(b, c, 1);
    }
    hd_buf_add_c(b, "\",engine=\"0\"");
    if (own) hd_buf_addf(b, ",%.*s", (int)(strlen(own) - 2), own + 1);
    if (le) hd_buf_addf(b, ",le=\"%s\"", le);
    hd_buf_add_c(b, "} ");
}

static void number(hd_buf *b, double v) {
    if (isinf(v))
        hd_buf_add_c(b, v > 0 ? "+Inf\n" : "-Inf\n");
    else
        hd_buf_addf(b, "%.17g\n", v);
}

static void render_histogram(hd_buf *b, int m, const char *own, const char *model_name) {
    uint64_t below = 0;
    int len = own ? (int)(own - rows[m].name) : (int)strlen(rows[m].name);
    const char *name = rows[m].name;
    for (int i = 0; i < bucket_max && rows[m].bucket[i] > 0; i++) {
        char le[32];
        hd_buf le_buf = {.ptr = le, .room = sizeof le, .cap = sizeof le - 1};
        hd_buf_addf(&le_buf, "%g", rows[m].bucket[i]);
        below += atomic_load(&cells[m].bucket[i]);
        hd_buf_addf(b, "%.*s_bucket", len, name);
        labels(b, own, model_name, le);
        hd_buf_addf(b, "%llu\n", (unsigned long long)below);
    }
    uint64_t n = atomic_load(&cells[m].n);
    hd_buf_addf(b, "%.*s_bucket", len, name);
    labels(b, own, model_name, "+Inf");
    hd_buf_addf(b, "%llu\n%.*s_sum", (unsigned long long)n, len, name);
    labels(b, own, model_name, NULL);
    number(b, atomic_load(&cells[m].value));
    hd_buf_addf(b, "%.*s_count", len, name);
    labels(b, own, model_name, NULL);
    hd_buf_addf(b, "%llu\n", (unsigned long long)n);
}

void hd_metric_render(hd_buf *b, const char *model_name) {
    static const char *const kind_names[] = {"counter", "gauge", "histogram"};
    size_t last_len = 0;
    const char *last = "";
    for (int m = 0; m < HD_METRIC_COUNT; m++) {
        const char *own = strchr(rows[m].name, '{');
        size_t len = own ? (size_t)(own - rows[m].name) : strlen(rows[m].name);
        if (len != last_len || memcmp(last, rows[m].name, len) != 0) {
            hd_buf_addf(b, "# HELP %.*s %s\n# TYPE %.*s %s\n", (int)len, rows[m].name, rows[m].help,
                        (int)len, rows[m].name, kind_names[rows[m].kind]);
            last = rows[m].name;
            last_len = len;
        }
        if (rows[m].kind == KIND_HISTOGRAM) {
            render_histogram(b, m, own, model_name);
            continue;
        }
        hd_buf_addf(b, "%.*s", (int)len, rows[m].name);
        labels(b, own, model_name, NULL);
        number(b, atomic_load(&cells[m].value));
    }
}
