/* What a profile says: sums by op and by kernel, what lies between kernels; tables, JSON, and the
 * trace as a picture for a viewer. Times are told per step. */
#include "base/mem.h"
#include "cmd/output.h"
#include "cmd/profile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KERNELS_MAX = 64, KERNELS_TOLD = 16, OTHER = HD_OP_COUNT };

/* Time by name: of an op, or of a kernel. */
struct sum {
    const char *name;
    int64_t ns;
    int n;
};

/* What ran on a device, of all steps. */
struct device_facts {
    struct sum kernel[KERNELS_MAX];
    int n_kernel_name;
    int64_t wall_ns;
    int64_t busy_ns;              /* some kernel or copy runs */
    int64_t kernel_ns, kernel_at; /* some kernel runs; until when, of those that were walked */
    int64_t copy_ns, hidden_ns;
    uint64_t copy_bytes;
    int n_copy, n_gap;
    double gap_median_us, gap_p90_us, gap_max_us;
    double step_median_ms;
};

struct facts {
    struct sum op[HD_OP_COUNT + 1]; /* [OTHER]: of no op */
    int64_t call_ns;                /* calls of ops, of all steps */
    int64_t op_ns;                  /* sum of op[] */
    struct device_facts always, in_turn;
};

/* ---- sums ---- */

static void add_to(struct sum *s, const hd_span *span) {
    s->ns += span->end_ns - span->start_ns;
    s->n++;
}

static void sum_ops(struct facts *f, const hd_spans *spans, bool is_call) {
    for (int op = 0; op < HD_OP_COUNT; op++) f->op[op].name = hd_op_name((enum hd_op)op);
    f->op[OTHER].name = is_call ? "outside of ops" : "copies and other";
    for (size_t i = 0; i < spans->n; i++)
        if ((spans->span[i].kind == HD_SPAN_CALL) == is_call)
            add_to(&f->op[spans->span[i].op], &spans->span[i]);
}

/* The last place takes what has no place of its own. */
static void sum_kernel(struct device_facts *f, const hd_span *span) {
    int i = 0;
    while (i < f->n_kernel_name && strcmp(f->kernel[i].name, span->name) != 0) i++;
    if (i == KERNELS_MAX) i--;
    if (i == f->n_kernel_name) f->kernel[f->n_kernel_name++].name = span->name;
    add_to(&f->kernel[i], span);
}

static int by_time(const void *a, const void *b) {
    const struct sum *x = a, *y = b;
    return (x->ns < y->ns) - (x->ns > y->ns);
}
static int by_start(const void *a, const void *b) {
    const hd_span *x = *(const hd_span *const *)a, *y = *(const hd_span *const *)b;
    return (x->start_ns > y->start_ns) - (x->start_ns < y->start_ns);
}
static int ascending(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Walks the device's spans in order of time: where none runs is a gap; a gap before a step's first
 * kernel counts, too, since the device waits there for the host. */
static void walk_kernel(struct device_facts *f, const hd_span *s) {
    int64_t from = s->start_ns > f->kernel_at ? s->start_ns : f->kernel_at;
    sum_kernel(f, s);
    if (s->end_ns <= from) return;
    f->kernel_ns += s->end_ns - from;
    f->kernel_at = s->end_ns;
}

static void walk_copy(struct device_facts *f, const hd_span *s) {
    int64_t end = s->end_ns < f->kernel_at ? s->end_ns : f->kernel_at;
    f->n_copy++;
    f->copy_ns += s->end_ns - s->start_ns;
    f->copy_bytes += s->n_byte;
    if (end > s->start_ns) f->hidden_ns += end - s->start_ns;
}

static void walk_device(struct device_facts *f, const hd_spans *spans) {
    const hd_span **order = hd_alloc(spans->n * sizeof(const hd_span *));
    int64_t *gap = hd_alloc(spans->n * sizeof *gap), busy_until = 0;
    size_t n = 0, n_gap = 0;
    for (size_t i = 0; i < spans->n; i++)
        if (spans->span[i].kind != HD_SPAN_CALL) order[n++] = &spans->span[i];
    if (n > 0) qsort(order, n, sizeof(const hd_span *), by_start);
    for (size_t i = 0; i < n; i++) {
        const hd_span *s = order[i];
        int64_t from = s->start_ns > busy_until ? s->start_ns : busy_until;
        if (busy_until > 0 && s->start_ns > busy_until) gap[n_gap++] = s->start_ns - busy_until;
        if (s->end_ns > from) f->busy_ns += s->end_ns - from;
        if (s->end_ns > busy_until) busy_until = s->end_ns;
        (s->kind == HD_SPAN_KERNEL ? walk_kernel : walk_copy)(f, s);
    }
    f->n_gap = (int)n_gap;
    if (n_gap > 0) {
        qsort(gap, n_gap, sizeof *gap, ascending);
        f->gap_median_us = (double)gap[n_gap / 2] / 1e3;
        f->gap_p90_us = (double)gap[n_gap * 9 / 10] / 1e3;
        f->gap_max_us = (double)gap[n_gap - 1] / 1e3;
    }
    qsort(f->kernel, (size_t)f->n_kernel_name, sizeof f->kernel[0], by_time);
    hd_free((void *)order);
    hd_free(gap);
}

static void find_device(struct device_facts *f, const hd_profile_run *r, int n_step) {
    int64_t *step = hd_alloc((size_t)n_step * sizeof *step);
    memcpy(step, r->step_ns, (size_t)n_step * sizeof *step);
    qsort(step, (size_t)n_step, sizeof *step, ascending);
    f->step_median_ms = (double)step[n_step / 2] / 1e6;
    for (int i = 0; i < n_step; i++) f->wall_ns += step[i];
    hd_free(step);
    walk_device(f, &r->spans);
}

static void find_facts(struct facts *f, const hd_profile *p) {
    const hd_spans *spans = &p->always.spans;
    find_device(&f->always, &p->always, p->n_step);
    for (size_t i = 0; i < spans->n; i++)
        if (spans->span[i].kind == HD_SPAN_CALL)
            f->call_ns += spans->span[i].end_ns - spans->span[i].start_ns;
    if (p->has_device) {
        find_device(&f->in_turn, &p->in_turn, p->n_step);
        sum_ops(f, &p->by_op.spans, false);
    } else {
        sum_ops(f, spans, true);
        f->op[OTHER].ns = f->always.wall_ns - f->call_ns;
    }
    for (int i = 0; i <= HD_OP_COUNT; i++) f->op_ns += f->op[i].ns;
}

/* Time that kernels in turn take, of the time that steps take as always: what is not waiting. */
static double work_share(const struct facts *f) {
    return f->always.wall_ns > 0 ? (double)f->in_turn.kernel_ns / (double)f->always.wall_ns : 0;
}

/* ---- text ---- */

static double share(int64_t part, int64_t all) {
    return all > 0 ? 100 * (double)part / (double)all : 0;
}

static void print_sums(const struct sum *s, int n, int n_step, int64_t all) {
    for (int i = 0; i < n; i++) {
        if (s[i].ns == 0 && s[i].n == 0) continue;
        double us = (double)s[i].ns / 1e3 / n_step;
        printf("  %-22.22s %12.1f %7.1f %8.1f %10.2f\n", s[i].name, us, share(s[i].ns, all),
               (double)s[i].n / n_step, s[i].n > 0 ? (double)s[i].ns / 1e3 / s[i].n : 0);
    }
}

static void print_kernels(const struct device_facts *f, const char *what, int n_step) {
    int n = f->n_kernel_name < KERNELS_TOLD ? f->n_kernel_name : KERNELS_TOLD;
    int64_t sum_ns = 0;
    for (int i = 0; i < f->n_kernel_name; i++) sum_ns += f->kernel[i].ns;
    printf("\n%s\n  %-22s %12s %7s %8s %10s\n", what, "kernel", "us/step", "%", "n/step",
           "us each");
    print_sums(f->kernel, n, n_step, sum_ns);
    if (n < f->n_kernel_name) printf("  and %d more\n", f->n_kernel_name - n);
}

static void print_gaps(const struct device_facts *f, int n_step) {
    printf("gaps             %.1f a step, median %.2f us, 90 %% %.2f, longest %.1f\n",
           (double)f->n_gap / n_step, f->gap_median_us, f->gap_p90_us, f->gap_max_us);
}

static void print_device(const struct facts *f, const hd_profile *p) {
    const struct device_facts *d = &f->always, *t = &f->in_turn;
    print_kernels(d, "kernels of steps as they run always, and what they wait for one another",
                  p->n_step);
    printf("\nGPU busy         %6.2f %% of the time (some kernel or copy runs)\n",
           share(d->busy_ns, d->wall_ns));
    print_gaps(d, p->n_step);
    printf("copies           %.1f a step, %.1f KiB, %.2f %% of the time; %.0f %% of that beside "
           "kernels\n",
           (double)d->n_copy / p->n_step, (double)d->copy_bytes / 1024 / p->n_step,
           share(d->copy_ns, d->wall_ns), share(d->hidden_ns, d->copy_ns));
    printf("host             %.1f us a step in calls of ops (%.1f %% of the time)\n",
           (double)f->call_ns / 1e3 / p->n_step, share(f->call_ns, d->wall_ns));
    print_kernels(t, "kernels launched in turn, which wait for nothing", p->n_step);
    printf("\na step           %.3f ms (median)\n", t->step_median_ms);
    printf("kernels busy     %6.2f %% of the time (some kernel runs)\n",
           share(t->kernel_ns, t->wall_ns));
    print_gaps(t, p->n_step);
    printf("work             %6.2f %% (kernels in turn, of the time of steps as always)\n",
           100 * work_share(f));
}

static size_t spans_lost(const hd_profile *p) {
    return p->always.spans.n_lost + p->in_turn.spans.n_lost + p->by_op.spans.n_lost;
}

static void print_facts(const struct facts *f, const hd_profile *p) {
    printf("%s on %s: %.3f ms (median of %d)\n\n", p->what, p->device, f->always.step_median_ms,
           p->n_step);
    printf("ops%s\n", p->has_device ? ", each launched apart, kernels in turn" : "");
    printf("  %-22s %12s %7s %8s %10s\n", "op", "us/step", "%", p->has_device ? "kernels" : "calls",
           "us each");
    print_sums(f->op, HD_OP_COUNT + 1, p->n_step, f->op_ns);
    if (p->has_device) print_device(f, p);
    size_t n_lost = spans_lost(p);
    if (n_lost > 0) printf("\n%zu spans did not fit: take fewer --steps\n", n_lost);
}

/* ---- JSON ---- */

static void add_number(hd_json *j, const char *key, double v) {
    hd_json_key(j, key);
    hd_json_num(j, v);
}

static void add_sums(hd_json *j, const char *key, const struct sum *s, int n, int n_step) {
    hd_json_key(j, key);
    hd_json_array(j);
    for (int i = 0; i < n; i++) {
        if (s[i].ns == 0 && s[i].n == 0) continue;
        hd_json_object(j);
        hd_json_key(j, "name");
        hd_json_str_c(j, s[i].name);
        add_number(j, "us_per_step", (double)s[i].ns / 1e3 / n_step);
        add_number(j, "count_per_step", (double)s[i].n / n_step);
        hd_json_object_end(j);
    }
    hd_json_array_end(j);
}

static void add_device(hd_json *j, const struct facts *f, int n_step) {
    const struct device_facts *d = &f->always, *t = &f->in_turn;
    add_sums(j, "kernels", d->kernel, d->n_kernel_name, n_step);
    add_number(j, "gpu_busy", share(d->busy_ns, d->wall_ns) / 100);
    add_number(j, "gaps_per_step", (double)d->n_gap / n_step);
    add_number(j, "gap_median_us", d->gap_median_us);
    add_number(j, "gap_p90_us", d->gap_p90_us);
    add_number(j, "gap_max_us", d->gap_max_us);
    add_number(j, "copy_share", share(d->copy_ns, d->wall_ns) / 100);
    add_number(j, "copy_overlapped", share(d->hidden_ns, d->copy_ns) / 100);
    add_number(j, "in_turn_step_median_ms", t->step_median_ms);
    add_number(j, "in_turn_step_mean_us", (double)t->wall_ns / 1e3 / n_step);
    add_sums(j, "in_turn_kernels", t->kernel, t->n_kernel_name, n_step);
    add_number(j, "in_turn_busy", share(t->kernel_ns, t->wall_ns) / 100);
    add_number(j, "in_turn_gap_median_us", t->gap_median_us);
    add_number(j, "work_share", work_share(f));
}

static void print_json(const struct facts *f, const hd_profile *p) {
    hd_buf b;
    hd_buf_init(&b, 1 << 20);
    hd_json j = hd_json_begin(&b);
    hd_json_object(&j);
    hd_json_key(&j, "what");
    hd_json_str_c(&j, p->what);
    hd_json_key(&j, "device");
    hd_json_str_c(&j, p->device);
    add_number(&j, "steps", p->n_step);
    add_number(&j, "step_median_ms", f->always.step_median_ms);
    add_number(&j, "step_mean_us", (double)f->always.wall_ns / 1e3 / p->n_step);
    add_sums(&j, "ops", f->op, HD_OP_COUNT + 1, p->n_step);
    add_number(&j, "host_us_per_step", (double)f->call_ns / 1e3 / p->n_step);
    if (p->has_device) add_device(&j, f, p->n_step);
    add_number(&j, "spans_lost", (double)spans_lost(p));
    hd_json_object_end(&j);
    printf("%.*s\n", (int)b.len, b.ptr);
    hd_buf_fini(&b);
}

hd_status hd_profile_report(const hd_profile *p, bool is_json) {
    struct facts *f = hd_alloc_zero(1, sizeof *f);
    find_facts(f, p);
    if (is_json)
        print_json(f, p);
    else
        print_facts(f, p);
    hd_free(f);
    return HD_OK;
}

/* ---- the trace file ---- */

static void name_lane(hd_json *j, int lane) {
    char text[32] = "host: calls of ops";
    if (lane != HD_LANE_HOST) snprintf(text, sizeof text, "GPU stream %d", lane);
    hd_json_object(j);
    hd_json_key(j, "name");
    hd_json_str_c(j, "thread_name");
    hd_json_key(j, "ph");
    hd_json_str_c(j, "M");
    hd_json_key(j, "pid");
    hd_json_int(j, 1);
    hd_json_key(j, "tid");
    hd_json_int(j, lane + 1);
    hd_json_key(j, "args");
    hd_json_object(j);
    hd_json_key(j, "name");
    hd_json_str_c(j, text);
    hd_json_object_end(j);
    hd_json_object_end(j);
}

static void add_event(hd_json *j, const hd_span *s, int64_t origin_ns) {
    hd_json_object(j);
    hd_json_key(j, "name");
    hd_json_str_c(j, s->kind == HD_SPAN_CALL ? hd_op_name(s->op) : s->name);
    hd_json_key(j, "ph");
    hd_json_str_c(j, "X");
    hd_json_key(j, "pid");
    hd_json_int(j, 1);
    hd_json_key(j, "tid");
    hd_json_int(j, s->lane + 1);
    add_number(j, "ts", (double)(s->start_ns - origin_ns) / 1e3);
    add_number(j, "dur", (double)(s->end_ns - s->start_ns) / 1e3);
    hd_json_object_end(j);
}

static void write_events(const hd_spans *spans, hd_buf *b) {
    int64_t origin_ns = INT64_MAX;
    for (size_t i = 0; i < spans->n; i++)
        if (spans->span[i].start_ns < origin_ns) origin_ns = spans->span[i].start_ns;
    hd_json j = hd_json_begin(b);
    hd_json_object(&j);
    hd_json_key(&j, "traceEvents");
    hd_json_array(&j);
    for (size_t i = 0; i < spans->n; i++) {
        size_t before = 0;
        while (before < i && spans->span[before].lane != spans->span[i].lane) before++;
        if (before == i) name_lane(&j, spans->span[i].lane);
        add_event(&j, &spans->span[i], origin_ns);
    }
    hd_json_array_end(&j);
    hd_json_object_end(&j);
}

hd_status hd_profile_save_trace(const hd_profile *p, const char *path) {
    hd_buf b;
    hd_buf_init(&b, (size_t)1 << 30);
    write_events(&p->always.spans, &b);
    hd_status s = hd_output_write(path, hd_buf_str(&b));
    hd_buf_fini(&b);
    return s;
}
