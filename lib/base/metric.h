/* Metrics: one row each in metrics.def, rendered as Prometheus text.
 *
 * Counters and gauges are atomic; histograms have fixed buckets. Any thread, no allocation. */
#ifndef HD_BASE_METRIC_H
#define HD_BASE_METRIC_H

#include "base/buf.h"
#include "base/service.h"

enum hd_metric {
#define HD_COUNTER(id, name, help) HD_M_##id,
#define HD_GAUGE(id, name, help) HD_M_##id,
#define HD_HISTOGRAM(id, name, buckets, help) HD_M_##id,
/* One for each service class: HD_M_<id> + class. */
#define HD_CLASS_METRIC(id) HD_M_##id, HD_M_##id##_LAST = HD_M_##id + HD_SERVICE_COUNT - 1,
#define HD_CLASS_COUNTER(id, name, help) HD_CLASS_METRIC(id)
#define HD_CLASS_GAUGE(id, name, help) HD_CLASS_METRIC(id)
#define HD_CLASS_HISTOGRAM(id, name, buckets, help) HD_CLASS_METRIC(id)
#include "base/metrics.def"
#undef HD_COUNTER
#undef HD_GAUGE
#undef HD_HISTOGRAM
#undef HD_CLASS_METRIC
#undef HD_CLASS_COUNTER
#undef HD_CLASS_GAUGE
#undef HD_CLASS_HISTOGRAM
    HD_METRIC_COUNT
};

void hd_metric_add(enum hd_metric m, double v);     /* counters: v >= 0 */
void hd_metric_set(enum hd_metric m, double v);     /* gauges */
void hd_metric_observe(enum hd_metric m, double v); /* histograms */
double hd_metric_get(enum hd_metric m);             /* counter or gauge value; histogram count */
void hd_metric_reset_all(void);                     /* tests */
/* Appends every metric with HELP and TYPE, labelled model_name="..." and engine="0". */
void hd_metric_render(hd_buf *b, const char *model_name);

#endif
