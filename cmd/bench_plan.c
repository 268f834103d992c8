/* When which request comes: a seeded arrival process, or a trace; and the prompts' tokens. */
#include "base/clock.h"
#include "cmd/bench_load.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Token ids of prompts: above the control tokens and inside of any vocabulary. */
enum { id_first = 100, id_count = 900, line_max = 4096, n_field = 6 };
static const char trace_header[] =
    "arrival_s,prompt_tokens,output_tokens,prefix_group,prefix_tokens,class";

/* ---- random numbers (splitmix64) ---- */

static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* In (0, 1). */
static double next_uniform(uint64_t *state) {
    return ((double)(next_random(state) >> 11) + 0.5) * 0x1p-53;
}

static double next_normal(uint64_t *state) {
    double radius = sqrt(-2 * log(next_uniform(state)));
    return radius * cos(2 * M_PI * next_uniform(state));
}

/* Gamma with mean `shape` (Marsaglia and Tsang, 2000); shape 1 is the Poisson process's gap. */
static double next_gamma(uint64_t *state, double shape) {
    if (shape < 1) {
        double u = next_uniform(state);
        return next_gamma(state, shape + 1) * pow(u, 1 / shape);
    }
    double d = shape - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        double x = next_normal(state), v = 1 + c * x;
        if (v <= 0) continue;
        v = v * v * v;
        if (log(next_uniform(state)) < 0.5 * x * x + d - d * v + d * log(v)) return d * v;
    }
}

/* Every request's own tokens, by its place. */
static uint64_t seed_of(const hd_load_plan *p, int ix) {
    uint64_t state = p->seed + ((uint64_t)ix + 1) * 0x10001u;
    return next_random(&state);
}

static void generate(hd_load_plan *p, const struct hd_options *o) {
    uint64_t state = p->seed;
    double at_s = 0;
    p->n = o->load_num_prompts;
    p->item = hd_alloc_zero((size_t)p->n, sizeof *p->item);
    for (int i = 0; i < p->n; i++) {
        p->item[i] = (hd_load_item){.arrival_s = at_s,
                                    .n_prompt = o->load_input_len,
                                    .n_output = o->load_output_len,
                                    .n_prefix = o->load_prefix_len,
                                    .prefix_seed = p->seed,
                                    .seed = seed_of(p, i),
                                    .service = ""};
        if (o->load_rate > 0)
            at_s += next_gamma(&state, o->load_burstiness) / (o->load_burstiness * o->load_rate);
    }
}

/* ---- traces ---- */

static hd_status parse_count(const char *text, int min, const char *what, int *out) {
    char *end;
    long v = strtol(text, &end, 10);
    if (end == text || *end || v < min || v > HD_LOAD_TOKEN_MAX)
        return HD_FAIL(INVALID, "%s: expected a number from %d to %d, found \"%s\"", what, min,
                       HD_LOAD_TOKEN_MAX, hd_show(hd_str_of(text)));
    *out = (int)v;
    return HD_OK;
}

static uint64_t hash_text(const char *text) { /* FNV-1a */
    uint64_t h = 0xCBF29CE484222325u;
    for (; *text; text++) h = (h ^ (uint8_t)*text) * 0x100000001B3u;
    return h;
}

static hd_status parse_row(hd_load_plan *p, char *line, hd_load_item *out) {
    char *field[n_field], *rest = line, *end;
    int n = 0;
    while (rest && n < n_field) field[n++] = strsep(&rest, ",");
    for (; rest; n++) strsep(&rest, ",");
    if (n != n_field) return HD_FAIL(INVALID, "expected %d fields, found %d", n_field, n);
    *out = (hd_load_item){.arrival_s = strtod(field[0], &end)};
    if (end == field[0] || *end || !(out->arrival_s >= 0 && out->arrival_s < 1e7))
        return HD_FAIL(INVALID, "arrival_s: expected seconds from 0, found \"%s\"",
                       hd_show(hd_str_of(field[0])));
    HD_TRY(parse_count(field[1], 1, "prompt_tokens", &out->n_prompt));
    HD_TRY(parse_count(field[2], 1, "output_tokens", &out->n_output));
    if (*field[3]) HD_TRY(parse_count(field[4], 0, "prefix_tokens", &out->n_prefix));
    if (out->n_prefix > out->n_prompt)
        return HD_FAIL(INVALID, "prefix_tokens: expected at most prompt_tokens, %d, found %d",
                       out->n_prompt, out->n_prefix);
    out->prefix_seed = p->seed ^ hash_text(field[3]);
    out->seed = seed_of(p, p->n);
    out->service = hd_arena_strndup(p->arena, field[5], strlen(field[5]));
    return HD_OK;
}

static hd_status read_rows(hd_load_plan *p, FILE *f) {
    char line[line_max];
    int room = 0;
    for (int n_line = 1; fgets(line, sizeof line, f); n_line++) {
        size_t len = strcspn(line, "\r\n");
        if (len == sizeof line - 1)
            return HD_FAIL(INVALID, "line %d: longer than %d bytes", n_line, line_max - 2);
        line[len] = 0;
        if (n_line == 1) {
            if (strcmp(line, trace_header) != 0)
                return HD_FAIL(INVALID, "line 1: expected \"%s\", found \"%s\"", trace_header,
                               hd_show(hd_str_of(line)));
            continue;
        }
        if (len == 0) continue;
        if (p->n == HD_LOAD_REQUEST_MAX)
            return HD_FAIL(INVALID, "more than %d requests", HD_LOAD_REQUEST_MAX);
        if (p->n == room) {
            room = room ? 2 * room : 256;
            p->item = hd_realloc(p->item, (size_t)room * sizeof *p->item);
        }
        if (parse_row(p, line, &p->item[p->n]) != HD_OK)
            return hd_fail_context(HD_E_INVALID, "line %d", n_line);
        if (p->n > 0 && p->item[p->n].arrival_s < p->item[p->n - 1].arrival_s)
            return HD_FAIL(INVALID,
                           "line %d: arrival_s: expected %g of the row before, or later, found %g",
                           n_line, p->item[p->n - 1].arrival_s, p->item[p->n].arrival_s);
        p->n++;
    }
    return p->n > 0 ? HD_OK : HD_FAIL(INVALID, "expected requests, found none");
}

static hd_status read_trace(hd_load_plan *p, const char *path) {
    FILE *f = fopen(path, "r");
    if (!f) return HD_FAIL(IO, "trace %s: %s", path, strerror(errno));
    hd_status s = read_rows(p, f);
    fclose(f);
    return s == HD_OK ? HD_OK : hd_fail_context(s, "trace %s", path);
}

hd_status hd_load_plan_init(hd_load_plan *p, const struct hd_options *o) {
    *p = (hd_load_plan){.arena = hd_arena_new(4096)};
    p->seed = o->seed >= 0 ? (uint64_t)o->seed : (uint64_t)hd_wall_ms();
    if (o->load_trace) return read_trace(p, o->load_trace);
    if (o->load_prefix_len > o->load_input_len)
        return HD_FAIL(INVALID, "--random-prefix-len: expected at most the input's %d, found %d",
                       o->load_input_len, o->load_prefix_len);
    generate(p, o);
    return HD_OK;
}

void hd_load_plan_fini(hd_load_plan *p) {
    hd_free(p->item);
    hd_arena_free(p->arena);
}

/* ---- prompts ---- */

void hd_load_prompt(const hd_load_item *item, bool is_text, hd_json *j) {
    static const char *const word[] = {" one", " day", " the", " man", " saw", " two",
                                       " new", " red", " and", " old", " big", " sea",
                                       " sun", " was", " not", " all"};
    uint64_t prefix = item->prefix_seed, own = item->seed;
    hd_buf text;
    hd_buf_init(&text, (size_t)HD_LOAD_TOKEN_MAX * 4);
    if (!is_text) hd_json_array(j);
    for (int i = 0; i < item->n_prompt; i++) {
        uint64_t v = next_random(i < item->n_prefix ? &prefix : &own) >> 32;
        if (is_text)
            hd_buf_add_c(&text, word[v % HD_COUNT_OF(word)]);
        else
            hd_json_int(j, (int64_t)(id_first + v % id_count));
    }
    if (is_text)
        hd_json_str(j, text.ptr, text.len);
    else
        hd_json_array_end(j);
    hd_buf_fini(&text);
}
