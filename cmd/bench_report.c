/* What a load showed: percentiles over answered requests, throughput, errors apart, goodput. */
#include "cmd/bench_load.h"

#include "base/service.h"
#include "base/sort.h"
#include "cmd/output.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { status_max = 600, save_block_bytes = 1 << 16 };

static const char *const outcome_name[] = {
#define X(id, name) name,
    HD_LOAD_OUTCOMES(X)
#undef X
};

static const double quantile[] = {0.5, 0.9, 0.99};
enum {
    n_quantile = HD_COUNT_OF(quantile),
    n_slo = 3,
    class_max = HD_SERVICE_COUNT + 1,
    bound_max = 64
};

struct summary {
    int n;
    double mean, at[n_quantile], max; /* seconds */
};

static const struct metric {
    const char *key, *title, *slo;
    size_t offset;
    int n_token_min;              /* of requests that have it */
    enum hd_load_outcome outcome; /* of requests that have it; UNSENT: all that were sent */
} metrics[] = {
    {"ttft_ms", "time to first token", "ttft", offsetof(hd_load_result, ttft_s), 1, HD_LOAD_OK},
    {"tpot_ms", "time per output token", "tpot", offsetof(hd_load_result, tpot_s), 2, HD_LOAD_OK},
    {"e2el_ms", "end to end", "e2el", offsetof(hd_load_result, latency_s), 0, HD_LOAD_OK},
    {"reject_ms", "rejected after", NULL, offsetof(hd_load_result, latency_s), 0, HD_LOAD_REJECTED},
    {"reject_sent_ms", "  after it was sent", NULL, offsetof(hd_load_result, answer_s), 0,
     HD_LOAD_REJECTED},
    {"send_late_ms", "sent late", NULL, offsetof(hd_load_result, late_s), 0, HD_LOAD_UNSENT},
};
enum { n_metric = HD_COUNT_OF(metrics) };

/* One class of a trace. */
struct class_totals {
    const char *name;
    int n_sent, n_ok, n_good;
    struct summary metric[n_slo];
};

/* Of --goodput: a good request of this class (NULL: of any) takes at most so long. */
struct bound {
    const char *service;
    int metric;
    double ms;
};
struct bounds {
    struct bound at[bound_max];
    int n;
};

struct totals {
    int n[HD_LOAD_OUTCOME_COUNT], status[status_max], n_wrong_length, n_good;
    double n_input, n_output;
    struct bounds slo;
    struct summary metric[n_metric], gap;
    struct class_totals class_of[class_max]; /* in the order of the trace; those without, too */
    int n_class;
};

/* ---- inter-token gaps ---- */

static const double step_log = 0.00995033085316808; /* ln 1.01 */

void hd_load_histogram_add(hd_load_histogram *h, double seconds, double weight) {
    double at = seconds > 1e-6 ? log(seconds * 1e6) / step_log : 0;
    h->weight[at < HD_LOAD_STEPS ? (int)at : HD_LOAD_STEPS - 1] += weight;
    h->all += weight;
    h->sum += seconds * weight;
    h->max = seconds > h->max ? seconds : h->max;
}

static struct summary of_histogram(const hd_load_histogram *h) {
    struct summary s = {.n = (int)fmin(h->all, 2147483647.0), .max = h->max};
    if (h->all > 0) s.mean = h->sum / h->all;
    for (int q = 0; q < n_quantile; q++) {
        double seen = 0;
        for (int i = 0; i < HD_LOAD_STEPS && h->all > 0; i++) {
            seen += h->weight[i];
            if (seen < quantile[q] * h->all) continue;
            s.at[q] = fmin(exp((i + 0.5) * step_log) * 1e-6, h->max);
            break;
        }
    }
    return s;
}

/* ---- requests ---- */

static double value_of(const hd_load_result *r, const struct metric *m) {
    return *(const double *)((const char *)r + m->offset);
}

static bool has_metric(const hd_load_result *r, const struct metric *m) {
    bool is_of_it =
        m->outcome == HD_LOAD_UNSENT ? r->outcome != HD_LOAD_UNSENT : r->outcome == m->outcome;
    return is_of_it && r->n_output >= m->n_token_min;
}

static bool is_of_class(const hd_load_run *r, int ix, const char *service) {
    return !service || strcmp(r->trace->item[ix].service, service) == 0;
}

/* service: a class, or NULL for all. */
static int sort_values(const hd_load_run *r, const struct metric *m, const char *service,
                       double *v) {
    int n = 0;
    for (int i = 0; i < r->trace->n; i++)
        if (has_metric(&r->result[i], m) && is_of_class(r, i, service))
            v[n++] = value_of(&r->result[i], m);
    hd_sort_doubles(v, (size_t)n);
    return n;
}

int hd_load_sorted(const hd_load_run *r, enum hd_load_metric metric, double *v) {
    return sort_values(r, &metrics[metric], NULL, v);
}

const char *hd_load_title(enum hd_load_metric metric) { return metrics[metric].title; }

/* Percentiles by the nearest rank. */
static struct summary of_metric(const hd_load_run *r, const struct metric *m, const char *service) {
    double *v = hd_alloc_zero((size_t)r->trace->n, sizeof *v), sum = 0;
    struct summary s = {.n = sort_values(r, m, service, v)};
    if (s.n > 0) {
        for (int i = 0; i < s.n; i++) sum += v[i];
        s.mean = sum / s.n;
        s.max = v[s.n - 1];
        for (int q = 0; q < n_quantile; q++) s.at[q] = v[(int)ceil(quantile[q] * s.n) - 1];
    }
    hd_free(v);
    return s;
}

/* The class's own name; NULL: there is none of this name. */
static const char *class_of(hd_str name) {
    char text[32];
    snprintf(text, sizeof text, "%.*s", (int)name.len, name.ptr);
    int service = name.len < sizeof text ? hd_service_find(text) : -1;
    return service < 0 ? NULL : hd_service_name((enum hd_service)service);
}

/* "CLASS/NAME:MS" or "NAME:MS", several with commas. */
static hd_status parse_bounds(const char *text, struct bounds *out) {
    for (const char *p = text;; p++) {
        size_t len = strcspn(p, ":,");
        const char *slash = memchr(p, '/', len), *name = slash ? slash + 1 : p;
        struct bound b = {.service = slash ? class_of((hd_str){p, (size_t)(slash - p)}) : NULL};
        char *end = NULL;
        hd_str metric = {name, (size_t)(p + len - name)};
        while (b.metric < n_slo && !hd_str_eq_c(metric, metrics[b.metric].slo)) b.metric++;
        b.ms = p[len] == ':' ? strtod(p + len + 1, &end) : 0;
        if (b.metric == n_slo || !(b.ms > 0 && b.ms < 1e9) || (*end && *end != ',') ||
            out->n == bound_max || (slash && !b.service))
            return HD_FAIL(
                INVALID,
                "--goodput: expected ttft:MS, tpot:MS or e2el:MS, or with a class before "
                "it, CLASS/ttft:MS with " HD_SERVICE_NAMES ", found \"%s\"",
                hd_show(hd_str_of(text)));
        out->at[out->n++] = b;
        if (!*end) return HD_OK;
        p = end;
    }
}

static hd_status read_bounds(const struct hd_options *o, struct bounds *out) {
    out->n = 0;
    for (int i = 0; i < o->load_goodput.n; i++) HD_TRY(parse_bounds(o->load_goodput.item[i], out));
    return HD_OK;
}

hd_status hd_load_check_goodput(const struct hd_options *o) {
    struct bounds b;
    return read_bounds(o, &b);
}

static bool is_good(const hd_load_run *r, int ix, const struct bounds *slo) {
    const hd_load_result *one = &r->result[ix];
    if (one->outcome != HD_LOAD_OK) return false;
    for (int i = 0; i < slo->n; i++) {
        const struct bound *b = &slo->at[i];
        if (is_of_class(r, ix, b->service) && value_of(one, &metrics[b->metric]) * 1e3 > b->ms)
            return false;
    }
    return true;
}

double hd_load_good_share(const hd_load_run *r) {
    struct bounds slo;
    int n_good = 0, n_sent = 0;
    hd_status s = read_bounds(r->o, &slo);
    HD_ASSERT(s == HD_OK); /* checked before */
    for (int i = 0; i < r->trace->n; i++) {
        n_good += is_good(r, i, &slo);
        n_sent += r->result[i].outcome != HD_LOAD_UNSENT;
    }
    return n_sent > 0 ? (double)n_good / n_sent : 0;
}

static void add_to_class(const hd_load_run *r, int ix, struct totals *t) {
    int c = 0;
    while (c < t->n_class && !is_of_class(r, ix, t->class_of[c].name)) c++;
    if (c == t->n_class) t->class_of[t->n_class++].name = r->trace->item[ix].service;
    struct class_totals *to = &t->class_of[c];
    to->n_sent += r->result[ix].outcome != HD_LOAD_UNSENT;
    to->n_ok += r->result[ix].outcome == HD_LOAD_OK;
    to->n_good += is_good(r, ix, &t->slo);
}

static hd_status add_up(const hd_load_run *r, struct totals *t) {
    *t = (struct totals){.gap = of_histogram(&r->gap)};
    HD_TRY(read_bounds(r->o, &t->slo));
    for (int i = 0; i < r->trace->n; i++) {
        const hd_load_result *one = &r->result[i];
        t->n[one->outcome]++;
        add_to_class(r, i, t);
        if (one->outcome == HD_LOAD_REJECTED || one->outcome == HD_LOAD_STATUS)
            t->status[one->status > 0 && one->status < status_max ? one->status : 0]++;
        if (one->outcome != HD_LOAD_OK) continue;
        t->n_input += one->n_input;
        t->n_output += one->n_output;
        if (one->n_output != r->trace->item[i].n_output) t->n_wrong_length++;
        if (is_good(r, i, &t->slo)) t->n_good++;
    }
    for (int c = 0; c < t->n_class; c++)
        for (int m = 0; m < n_slo; m++)
            t->class_of[c].metric[m] = of_metric(r, &metrics[m], t->class_of[c].name);
    for (int m = 0; m < n_metric; m++) t->metric[m] = of_metric(r, &metrics[m], NULL);
    return HD_OK;
}

/* ---- for people ---- */

static void print_row(const char *title, const struct summary *s) {
    printf("%-24s %10.2f %10.2f %10.2f %10.2f %10.2f\n", title, s->mean * 1e3, s->at[0] * 1e3,
           s->at[1] * 1e3, s->at[2] * 1e3, s->max * 1e3);
}

static void print_classes(const struct totals *t) {
    printf("\n%-24s %8s %8s %8s %12s %12s %12s\n", "class", "sent", "ok", "good", "ttft p50 ms",
           "ttft p99 ms", "e2el p99 ms");
    for (int i = 0; i < t->n_class; i++) {
        const struct class_totals *c = &t->class_of[i];
        printf("%-24s %8d %8d %8d %12.2f %12.2f %12.2f\n", hd_show(hd_str_of(c->name)), c->n_sent,
               c->n_ok, c->n_good, c->metric[HD_LOAD_TTFT].at[0] * 1e3,
               c->metric[HD_LOAD_TTFT].at[2] * 1e3, c->metric[HD_LOAD_E2EL].at[2] * 1e3);
    }
}

static void print(const hd_load_run *r, const struct totals *t) {
    double s = r->seconds > 0 ? r->seconds : 1;
    printf("%d requests in %.2f s:", r->trace->n, r->seconds);
    for (int i = HD_LOAD_OUTCOME_COUNT - 1; i >= 0; i--)
        if (t->n[i] > 0 || i == HD_LOAD_OK) printf(" %d %s", t->n[i], outcome_name[i]);
    for (int i = 0; i < status_max; i++)
        if (t->status[i] > 0) printf("; HTTP %d: %d", i, t->status[i]);
    printf("\n%.3f requests/s, %.1f input tokens/s, %.1f output tokens/s\n", t->n[HD_LOAD_OK] / s,
           t->n_input / s, t->n_output / s);
    if (t->n_wrong_length > 0)
        printf("%d answers had another length than asked for\n", t->n_wrong_length);
    if (t->slo.n > 0)
        printf("goodput %.3f requests/s: %d of %d are good (%.1f %%)\n", t->n_good / s, t->n_good,
               r->trace->n - t->n[HD_LOAD_UNSENT],
               100.0 * t->n_good / fmax(1, r->trace->n - t->n[HD_LOAD_UNSENT]));
    printf("\n%-24s %10s %10s %10s %10s %10s\n", "ms", "mean", "p50", "p90", "p99", "max");
    for (int m = 0; m < n_metric; m++) {
        if (t->metric[m].max > 0) print_row(metrics[m].title, &t->metric[m]);
        if (m == HD_LOAD_TPOT && t->gap.n > 0) print_row("inter-token", &t->gap);
    }
    if (t->n_class > 1) print_classes(t);
}

/* ---- for programs ---- */

static void write_number(hd_json *j, const char *key, double v) {
    hd_json_key(j, key);
    hd_json_num(j, v);
}

static void write_count(hd_json *j, const char *key, int v) {
    hd_json_key(j, key);
    hd_json_int(j, v);
}

static void write_summary(hd_json *j, const char *key, const struct summary *s) {
    static const char *const names[n_quantile] = {"p50", "p90", "p99"};
    hd_json_key(j, key);
    hd_json_object(j);
    write_count(j, "n", s->n);
    write_number(j, "mean", s->mean * 1e3);
    for (int q = 0; q < n_quantile; q++) write_number(j, names[q], s->at[q] * 1e3);
    write_number(j, "max", s->max * 1e3);
    hd_json_object_end(j);
}

static void write_counts(const hd_load_run *r, const struct totals *t, hd_json *j) {
    hd_json_key(j, "outcomes");
    hd_json_object(j);
    for (int i = 0; i < HD_LOAD_OUTCOME_COUNT; i++) write_count(j, outcome_name[i], t->n[i]);
    hd_json_object_end(j);
    hd_json_key(j, "http_status");
    hd_json_object(j);
    for (int i = 0; i < status_max; i++) {
        char code[16];
        snprintf(code, sizeof code, "%d", i);
        if (t->status[i] > 0) write_count(j, code, t->status[i]);
    }
    hd_json_object_end(j);
    write_count(j, "num_prompts", r->trace->n);
    write_count(j, "completed", t->n[HD_LOAD_OK]);
    write_count(j, "wrong_length", t->n_wrong_length);
}

static void write_classes(const struct totals *t, hd_json *j) {
    hd_json_key(j, "classes");
    hd_json_array(j);
    for (int i = 0; i < t->n_class; i++) {
        const struct class_totals *c = &t->class_of[i];
        hd_json_object(j);
        hd_json_key(j, "class");
        hd_json_str_c(j, c->name);
        write_count(j, "sent", c->n_sent);
        write_count(j, "completed", c->n_ok);
        if (t->slo.n > 0) write_count(j, "good", c->n_good);
        for (int m = 0; m < n_slo; m++) write_summary(j, metrics[m].key, &c->metric[m]);
        hd_json_object_end(j);
    }
    hd_json_array_end(j);
}

static void write_keys(const hd_load_run *r, const struct totals *t, hd_json *j) {
    double s = r->seconds > 0 ? r->seconds : 1;
    write_counts(r, t, j);
    write_number(j, "duration_s", r->seconds);
    write_number(j, "total_input_tokens", t->n_input);
    write_number(j, "total_output_tokens", t->n_output);
    write_number(j, "request_throughput", t->n[HD_LOAD_OK] / s);
    write_number(j, "input_throughput", t->n_input / s);
    write_number(j, "output_throughput", t->n_output / s);
    if (t->slo.n > 0) {
        write_count(j, "good", t->n_good);
        write_number(j, "request_goodput", t->n_good / s);
    }
    for (int m = 0; m < n_metric; m++) write_summary(j, metrics[m].key, &t->metric[m]);
    write_summary(j, "itl_ms", &t->gap);
    if (t->n_class > 1) write_classes(t, j);
}

hd_status hd_load_print(const hd_load_run *r) {
    struct totals t;
    HD_TRY(add_up(r, &t));
    print(r, &t);
    return HD_OK;
}

hd_status hd_load_write(const hd_load_run *r, hd_json *j) {
    struct totals t;
    HD_TRY(add_up(r, &t));
    write_keys(r, &t, j);
    return HD_OK;
}

/* ---- every request ---- */

static void write_line(const hd_load_run *r, int ix, hd_buf *out) {
    const hd_trace_item *item = &r->trace->item[ix];
    const hd_load_result *one = &r->result[ix];
    hd_json j = hd_json_begin(out);
    hd_json_object(&j);
    write_number(&j, "arrival_s", item->arrival_s);
    hd_json_key(&j, "class");
    hd_json_str_c(&j, item->service);
    write_count(&j, "prompt_tokens", item->n_prompt);
    write_count(&j, "output_tokens", item->n_output);
    hd_json_key(&j, "outcome");
    hd_json_str_c(&j, outcome_name[one->outcome]);
    write_count(&j, "http_status", one->status);
    write_count(&j, "usage_prompt_tokens", one->n_input);
    write_count(&j, "usage_completion_tokens", one->n_output);
    write_count(&j, "events", one->n_event);
    for (int m = 0; m < n_metric; m++)
        if (has_metric(one, &metrics[m]))
            write_number(&j, metrics[m].key, value_of(one, &metrics[m]) * 1e3);
    hd_json_object_end(&j);
    hd_buf_add(out, "\n", 1);
}

static hd_status put_lines(const hd_load_run *r, hd_new_file *f) {
    hd_buf b;
    hd_buf_init(&b, save_block_bytes + (1 << 16));
    hd_status s = HD_OK;
    for (int i = 0; i < r->trace->n && s == HD_OK; i++) {
        write_line(r, i, &b);
        if (b.len < save_block_bytes && i < r->trace->n - 1) continue;
        s = hd_new_file_write(f, b.ptr, b.len);
        hd_buf_clear(&b);
    }
    hd_buf_fini(&b);
    return s;
}

hd_status hd_load_save(const hd_load_run *r, const char *path) {
    hd_new_file f;
    HD_TRY(hd_output_create(path, &f));
    hd_status s = put_lines(r, &f);
    if (s == HD_OK) s = hd_output_finish(&f);
    hd_output_abandon(&f);
    return s;
}

hd_status hd_load_plot(const hd_load_run *r, const char *path) {
    hd_buf b;
    hd_buf_init(&b, 1 << 20);
    hd_load_draw(r, &b);
    hd_status s = hd_output_write(path, hd_buf_str(&b));
    hd_buf_fini(&b);
    return s;
}
