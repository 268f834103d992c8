/* Traces as CSV text, and the prompts' tokens. */
#include "sim/trace.h"

#include "base/map.h"
#include "base/service.h"
#include "file/mapping.h"
#include "sim/random.h"
#include "sim/trace_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { n_field = 6, line_max = 4096, group_max = 1024 }; /* a line that is written can be read */
static const char *const field_name[n_field] = {"arrival_s",    "prompt_tokens", "output_tokens",
                                                "prefix_group", "prefix_tokens", "class"};

/* ---- fields of a line ---- */

struct line {
    int number;
    char text[line_max], *field[n_field];
};

/* Of a field: where it is, and what stands there. */
static hd_status unexpected(const struct line *l, int field, const char *expected) {
    return HD_FAIL(CORRUPT, "line %d, column %d (%s): expected %s, found \"%s\"", l->number,
                   (int)(l->field[field] - l->text) + 1, field_name[field], expected,
                   hd_show(hd_str_of(l->field[field])));
}

static hd_status split(struct line *l) {
    char *rest = l->text;
    int n = 0;
    for (; rest && n < n_field; n++) l->field[n] = strsep(&rest, ",");
    for (; rest; n++) strsep(&rest, ",");
    if (n == n_field) return HD_OK;
    return HD_FAIL(CORRUPT, "line %d, column 1: expected %d fields, found %d", l->number, n_field,
                   n);
}

static hd_status parse_count(const struct line *l, int field, int min, int *out) {
    const char *text = l->field[field];
    char *end, expected[64];
    long v = strtol(text, &end, 10);
    if (end != text && *end == 0 && v >= min && v <= HD_TRACE_TOKEN_MAX) {
        *out = (int)v;
        return HD_OK;
    }
    snprintf(expected, sizeof expected, "a number from %d to %d", min, HD_TRACE_TOKEN_MAX);
    return unexpected(l, field, expected);
}

static const char *keep(hd_trace *t, const char *text) {
    return *text ? hd_arena_strndup(t->arena, text, strlen(text)) : "";
}

static hd_status parse_service(const struct line *l, const char **out) {
    int service = hd_service_find(l->field[5]);
    if (*l->field[5] && service < 0) return unexpected(l, 5, "nothing or " HD_SERVICE_NAMES);
    *out = *l->field[5] ? hd_service_name((enum hd_service)service) : "";
    return HD_OK;
}

static hd_status parse_item(hd_trace *t, const struct line *l) {
    hd_trace_item item = {0};
    char *end;
    item.arrival_s = strtod(l->field[0], &end);
    if (end == l->field[0] || *end || !(item.arrival_s >= 0 && item.arrival_s < 1e9))
        return unexpected(l, 0, "seconds from 0");
    HD_TRY(parse_count(l, 1, 1, &item.n_prompt));
    HD_TRY(parse_count(l, 2, 1, &item.n_output));
    if (*l->field[3] || *l->field[4]) HD_TRY(parse_count(l, 4, 0, &item.n_prefix));
    if (*l->field[3] == 0) item.n_prefix = 0;
    if (item.n_prefix > item.n_prompt) return unexpected(l, 4, "at most prompt_tokens");
    if (t->n > 0 && item.arrival_s < t->item[t->n - 1].arrival_s)
        return unexpected(l, 0, "no earlier arrival than in the line before");
    HD_TRY(parse_service(l, &item.service));
    if (strlen(l->field[3]) > group_max) return unexpected(l, 3, "at most 1024 bytes");
    item.group = keep(t, l->field[3]);
    hd_trace_add(t, &item);
    return HD_OK;
}

/* ---- the whole text ---- */

void hd_trace_begin(hd_trace *t, uint64_t seed) {
    *t = (hd_trace){.seed = seed, .arena = hd_arena_new(4096)};
}

static uint64_t hash_text(const char *text) { /* FNV-1a */
    uint64_t h = 0xCBF29CE484222325u;
    for (; *text; text++) h = (h ^ (uint8_t)*text) * 0x100000001B3u;
    return h;
}

void hd_trace_add(hd_trace *t, const hd_trace_item *item) {
    if (t->n == 0 || (t->n >= 256 && (t->n & (t->n - 1)) == 0))
        t->item = hd_realloc(t->item, (t->n ? 2 * (size_t)t->n : 256) * sizeof *t->item);
    hd_trace_item *to = &t->item[t->n];
    *to = *item;
    uint64_t state = t->seed + ((uint64_t)t->n + 1) * 0x10001u; /* every request's own tokens */
    to->seed = hd_random_next(&state);
    to->prefix_seed = t->seed ^ hash_text(to->group);
    t->n++;
}

/* The next line of the text without its end. HD_E_CORRUPT: it is too long. */
static hd_status next_line(hd_str *text, struct line *l) {
    const char *end = memchr(text->ptr, '\n', text->len);
    size_t n = end ? (size_t)(end - text->ptr) : text->len;
    size_t len = n;
    l->number++;
    while (len > 0 && text->ptr[len - 1] == '\r') len--;
    if (len >= line_max)
        return HD_FAIL(CORRUPT, "line %d, column %d: expected at most %d bytes, found %zu",
                       l->number, line_max, line_max - 1, len);
    memcpy(l->text, text->ptr, len);
    l->text[len] = 0;
    size_t taken = end ? n + 1 : n;
    text->ptr += taken;
    text->len -= taken;
    if (strlen(l->text) == len) return HD_OK;
    return HD_FAIL(CORRUPT, "line %d, column %zu: expected text, found a zero byte", l->number,
                   strlen(l->text) + 1);
}

hd_status hd_trace_parse(hd_trace *t, hd_str text, uint64_t seed) {
    struct line l = {0};
    hd_trace_begin(t, seed);
    if (text.len == 0)
        return HD_FAIL(CORRUPT, "line 1: expected \"%s\", found nothing", HD_TRACE_HEADER);
    HD_TRY(next_line(&text, &l));
    if (strcmp(l.text, HD_TRACE_HEADER) != 0)
        return HD_FAIL(CORRUPT, "line 1: expected \"%s\", found \"%s\"", HD_TRACE_HEADER,
                       hd_show(hd_str_of(l.text)));
    while (text.len > 0) {
        HD_TRY(next_line(&text, &l));
        if (!*l.text) continue;
        if (t->n == HD_TRACE_REQUEST_MAX)
            return HD_FAIL(CORRUPT, "line %d: expected at most %d requests, found more", l.number,
                           HD_TRACE_REQUEST_MAX);
        HD_TRY(split(&l));
        HD_TRY(parse_item(t, &l));
    }
    if (t->n > 0) return HD_OK;
    return HD_FAIL(CORRUPT, "line %d: expected requests, found none", l.number + 1);
}

hd_status hd_trace_read(hd_trace *t, const char *path, uint64_t seed) {
    char *text = NULL;
    size_t n = 0;
    *t = (hd_trace){0};
    hd_status s = hd_text_read(path, HD_TRACE_BYTES_MAX, &text, &n);
    if (s != HD_OK) return hd_fail_context(s, "trace");
    s = hd_trace_parse(t, (hd_str){text, n}, seed);
    hd_free(text);
    return s == HD_OK ? HD_OK : hd_fail_context(s, "trace %s", path);
}

void hd_trace_fini(hd_trace *t) {
    hd_free(t->item);
    hd_arena_free(t->arena);
    *t = (hd_trace){0};
}

void hd_trace_write(const hd_trace *t, hd_buf *out) {
    hd_buf_add_c(out, HD_TRACE_HEADER "\n");
    for (int i = 0; i < t->n; i++) {
        const hd_trace_item *item = &t->item[i];
        hd_buf_addf(out, "%.6f,%d,%d,%s,%d,%s\n", item->arrival_s, item->n_prompt, item->n_output,
                    item->group, item->n_prefix, item->service);
    }
}

/* ---- tokens ---- */

void hd_trace_prompt(const hd_trace_item *item, int32_t *token) {
    uint64_t prefix = item->prefix_seed, own = item->seed;
    for (int i = 0; i < item->n_prompt; i++) {
        uint64_t v = hd_random_next(i < item->n_prefix ? &prefix : &own) >> 32;
        token[i] = (int32_t)(HD_TRACE_ID_FIRST + v % HD_TRACE_ID_COUNT);
    }
}

int64_t hd_trace_reusable_tok(const hd_trace *t, int page_tok) {
    hd_map *group_ix = hd_map_new((size_t)t->n);
    int *longest = hd_alloc_zero((size_t)t->n, sizeof *longest), n_group = 0; /* by group */
    int64_t sum = 0;
    for (int i = 0; i < t->n; i++) {
        const hd_trace_item *item = &t->item[i];
        if (item->n_prefix == 0) continue;
        uint64_t ix = (uint64_t)n_group;
        if (hd_map_put(group_ix, hd_str_of(item->group), ix))
            n_group++;
        else
            hd_map_get(group_ix, hd_str_of(item->group), &ix);
        int shared = item->n_prefix < longest[ix] ? item->n_prefix : longest[ix];
        if (shared > item->n_prompt - 1) shared = item->n_prompt - 1;
        sum += shared / page_tok * page_tok;
        if (item->n_prefix > longest[ix]) longest[ix] = item->n_prefix;
    }
    hd_free(longest);
    hd_map_free(group_ix);
    return sum;
}

void hd_trace_hasten(hd_trace *t, double times) {
    for (int i = 0; i < t->n; i++) t->item[i].arrival_s = fmin(t->item[i].arrival_s / times, 1e9);
}

int hd_trace_longest(const hd_trace *t) {
    int longest = 0;
    for (int i = 0; i < t->n; i++) {
        int n = t->item[i].n_prompt + t->item[i].n_output;
        longest = n > longest ? n : longest;
    }
    return longest;
}
