/* Seeded arrival processes, lengths and sessions. Equal specs give equal traces. */
#include "base/service.h"
#include "sim/random.h"
#include "sim/trace_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *hd_trace_kind_name(enum hd_trace_kind k) {
    static const char *const name[HD_TRACE_KIND_COUNT] = {"poisson", "bursty", "diurnal", "80-20",
                                                          "sessions"};
    return name[k];
}

/* ---- when ---- */

static double next_normal(uint64_t *state) {
    double radius = sqrt(-2 * log(hd_random_uniform(state)));
    return radius * cos(2 * M_PI * hd_random_uniform(state));
}

/* Gamma with mean `shape` (Marsaglia and Tsang, 2000); shape 1 is the Poisson process's gap. */
static double next_gamma(uint64_t *state, double shape) {
    if (shape < 1) {
        double u = hd_random_uniform(state);
        return next_gamma(state, shape + 1) * pow(u, 1 / shape);
    }
    double d = shape - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        double x = next_normal(state), v = 1 + c * x;
        if (v <= 0) continue;
        v = v * v * v;
        if (log(hd_random_uniform(state)) < 0.5 * x * x + d - d * v + d * log(v)) return d * v;
    }
}

/* Times the mean rate. BURSTY: 4/5 + 1/5 of the period add up to the mean. */
enum { burst_share = 5, burst_times = 4 };
static double rate_factor(const hd_trace_spec *s, double at_s) {
    double phase = fmod(at_s, s->period_s) / s->period_s;
    if (s->kind == HD_TRACE_BURSTY)
        return phase * burst_share < 1 ? burst_times : 1.0 / burst_times;
    return 1 + 0.8 * sin(2 * M_PI * phase);
}

/* The next arrival after at_s. A rate that varies is thinned from its maximum (Lewis and Shedler,
 * 1979). */
static double next_arrival(const hd_trace_spec *s, double at_s, uint64_t *state) {
    if (s->rate <= 0) return at_s;
    if (s->kind == HD_TRACE_POISSON || s->kind == HD_TRACE_LENGTHS)
        return at_s + next_gamma(state, s->shape) / (s->shape * s->rate);
    double most = s->kind == HD_TRACE_BURSTY ? burst_times : 1.8;
    do at_s += hd_random_exponential(state, 1 / (most * s->rate));
    while (hd_random_uniform(state) * most > rate_factor(s, at_s));
    return at_s;
}

/* ---- what ---- */

static int spread_length(const hd_trace_spec *s, int n, uint64_t *state) {
    double factor = s->spread > 0 ? 1 + s->spread * (2 * hd_random_uniform(state) - 1) : 1;
    int length = (int)lround(n * factor);
    return length > 1 ? length : 1;
}

static const char *next_class(const hd_trace_spec *s, uint64_t *state) {
    if (s->n_class == 0) return "";
    double all = 0;
    for (int i = 0; i < s->n_class; i++) all += s->class_of[i].share;
    double at = hd_random_uniform(state) * all;
    int i = 0;
    for (; i < s->n_class - 1 && at >= s->class_of[i].share; i++) at -= s->class_of[i].share;
    return s->class_of[i].name;
}

/* As a file tells it, so that a trace that was kept is the one that was generated. */
static double to_microsecond(double s) { return round(s * 1e6) / 1e6; }

enum { long_one_in = 5 }; /* 20 % */

static void generate_stream(hd_trace *t, const hd_trace_spec *s) {
    uint64_t state = s->seed;
    double at_s = 0;
    for (int i = 0; i < s->n; i++) {
        hd_trace_item item = {.arrival_s = to_microsecond(at_s), .n_prefix = s->n_prefix};
        bool is_long = s->kind == HD_TRACE_LENGTHS && hd_random_next(&state) / 2 % long_one_in == 0;
        item.n_prompt = is_long ? s->n_prompt_long : spread_length(s, s->n_prompt, &state);
        if (item.n_prompt < s->n_prefix) item.n_prompt = s->n_prefix;
        item.n_output = spread_length(s, s->n_output, &state);
        item.group = s->n_prefix > 0 ? "all" : "";
        bool is_by_length = s->kind == HD_TRACE_LENGTHS && s->n_class == 2;
        item.service = is_by_length ? s->class_of[is_long].name : next_class(s, &state);
        hd_trace_add(t, &item);
        at_s = next_arrival(s, at_s, &state);
    }
}

/* ---- sessions ---- */

static int by_arrival(const void *a, const void *b) {
    const hd_trace_item *x = a, *y = b;
    if (x->arrival_s != y->arrival_s) return x->arrival_s < y->arrival_s ? -1 : 1;
    int order = strcmp(x->group, y->group);
    return order ? order : x->n_prompt - y->n_prompt;
}

/* The whole prompt is the group's: the next turn begins with it. */
static void generate_sessions(hd_trace *t, const hd_trace_spec *s) {
    uint64_t state = s->seed;
    double start_s = 0;
    for (int n = 0, session = 0; n < s->n; session++) {
        char name[32];
        snprintf(name, sizeof name, "session-%d", session);
        const char *group = hd_arena_strndup(t->arena, name, strlen(name));
        const char *service = next_class(s, &state);
        double at_s = start_s;
        int n_prompt = 0, n_answer = 0;
        for (int turn = 0; turn < s->n_turn && n < s->n; turn++, n++) {
            n_prompt += n_answer + spread_length(s, s->n_prompt, &state);
            n_answer = spread_length(s, s->n_output, &state);
            hd_trace_item item = {.arrival_s = to_microsecond(at_s),
                                  .n_prompt = n_prompt,
                                  .n_prefix = n_prompt,
                                  .n_output = n_answer,
                                  .group = group,
                                  .service = service};
            hd_trace_add(t, &item);
            at_s += hd_random_exponential(&state, s->think_s);
        }
        if (s->rate > 0) start_s += hd_random_exponential(&state, s->n_turn / s->rate);
    }
    hd_trace_item *item = t->item;
    int n = t->n;
    qsort(item, (size_t)n, sizeof *item, by_arrival);
    t->n = 0;
    t->item = NULL;
    for (int i = 0; i < n; i++) hd_trace_add(t, &item[i]); /* seeds go by place */
    hd_free(item);
}

static hd_status check_spec(const hd_trace_spec *s) {
    if (s->n_prefix > s->n_prompt)
        return HD_FAIL(INVALID,
                       "shared beginning: expected at most the prompt's %d tokens, found %d",
                       s->n_prompt, s->n_prefix);
    double longest = s->kind == HD_TRACE_SESSIONS
                         ? (double)s->n_turn * (s->n_prompt + s->n_output) * (1 + s->spread)
                         : s->n_prompt * (1 + s->spread);
    if (longest > HD_TRACE_TOKEN_MAX)
        return HD_FAIL(INVALID, "prompts: expected at most %d tokens, found up to %.0f",
                       HD_TRACE_TOKEN_MAX, longest);
    return HD_OK;
}

hd_status hd_trace_generate(hd_trace *t, const hd_trace_spec *s) {
    hd_trace_begin(t, s->seed);
    HD_TRY(check_spec(s));
    if (s->kind == HD_TRACE_SESSIONS)
        generate_sessions(t, s);
    else
        generate_stream(t, s);
    return HD_OK;
}

hd_status hd_trace_parse_classes(const char *text, hd_trace_spec *s) {
    s->n_class = 0;
    for (const char *p = text; *p;) {
        size_t len = strcspn(p, ":,");
        char *end = NULL;
        double share = p[len] == ':' ? strtod(p + len + 1, &end) : 0;
        if (len == 0 || !(share > 0 && share < 1e6) || (*end && *end != ',') ||
            s->n_class == HD_TRACE_CLASS_MAX)
            return HD_FAIL(INVALID, "expected at most %d of NAME:SHARE, found \"%s\"",
                           HD_TRACE_CLASS_MAX, hd_show(hd_str_of(p)));
        char name[32];
        snprintf(name, sizeof name, "%.*s", (int)len, p);
        int service = len < sizeof name ? hd_service_find(name) : -1;
        if (service < 0)
            return HD_FAIL(INVALID, "expected class " HD_SERVICE_NAMES ", found \"%s\"",
                           hd_show((hd_str){p, len}));
        s->class_of[s->n_class].name = hd_service_name((enum hd_service)service);
        s->class_of[s->n_class++].share = share;
        p = *end ? end + 1 : end;
    }
    return HD_OK;
}
