/* The latency profile's file: a first line with version and key, a line a cell, a last line with
 * the number of cells and the hash of all before it. Numbers are decimal; a cell's mean load says
 * where it belongs. */
#include "sched/profile_impl.h"

#include "base/mem.h"
#include "base/new_file.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { VERSION = 1, FILE_BYTES_MAX = 1 << 20, LINE_MAX_BYTES = 160, STEPS_MAX = 1 << 20 };

static void write_text(const hd_profile *p, uint64_t key, hd_buf *b) {
    int n = 0;
    hd_buf_addf(b, "hadal latency profile %d %016" PRIx64 "\n", VERSION, key);
    for (int i = 0; i < HD_PROFILE_CELLS; i++) {
        const hd_profile_cell *c = &p->cell[i];
        if (c->n == 0) continue;
        n++;
        hd_buf_addf(b, "%u %.17g %.17g %.17g %.6g %.6g\n", c->n, c->x[1], c->x[2], c->x[3], c->ns,
                    c->q);
    }
    hd_buf_addf(b, "end %d %016" PRIx64 "\n", n, XXH3_64bits(b->ptr, b->len));
}

hd_status hd_profile_save(const hd_profile *p, const char *path, uint64_t key) {
    hd_buf b;
    hd_buf_init(&b, FILE_BYTES_MAX);
    write_text(p, key, &b);
    hd_status s = hd_new_file_put(path, hd_buf_str(&b));
    hd_buf_fini(&b);
    return s == HD_OK ? HD_OK : hd_fail_context(s, "latency profile");
}

/* ---- reading ---- */

struct lines {
    hd_str text;
    size_t at;
    int n; /* of the line last read */
    char line[LINE_MAX_BYTES];
};

static hd_status next_line(struct lines *t) {
    t->n++;
    const char *from = t->text.ptr + t->at;
    size_t left = t->text.len - t->at;
    const char *end = left > 0 ? memchr(from, '\n', left) : NULL;
    size_t len = end ? (size_t)(end - from) : 0;
    if (!end || len >= sizeof t->line || memchr(from, 0, len))
        return HD_FAIL(CORRUPT,
                       "latency profile: line %d: expected a line of text of at most %d "
                       "bytes, found %s",
                       t->n, LINE_MAX_BYTES - 1, end ? "another one" : "the end of the file");
    memcpy(t->line, from, len);
    t->line[len] = 0;
    t->at += len + 1;
    return HD_OK;
}

/* The next number of a line, after one space. */
static bool take_number(const char **at, double min, double max, double *out) {
    char *end;
    if (**at == ' ') ++*at;
    if (!strchr("0123456789", **at) || **at == 0) return false;
    *out = strtod(*at, &end);
    bool ok = end != *at && (*end == ' ' || *end == 0) && *out >= min && *out <= max;
    *at = end;
    return ok;
}

static bool parse_cell(const char *line, hd_profile_cell *c) {
    double n;
    const char *at = line;
    c->x[0] = 1;
    if (!take_number(&at, 1, STEPS_MAX, &n) || !take_number(&at, 0, 1e6, &c->x[1]) ||
        !take_number(&at, 0, 1e9, &c->x[2]) || !take_number(&at, 0, 1e15, &c->x[3]) ||
        !take_number(&at, 1, 1e15, &c->ns) || !take_number(&at, 1, 1e6, &c->q))
        return false;
    c->n = (uint32_t)n;
    return *at == 0 && n == c->n;
}

static hd_status parse_cells(struct lines *t, hd_profile *p, int *n_cell) {
    for (*n_cell = 0;; ++*n_cell) {
        HD_TRY(next_line(t));
        if (strncmp(t->line, "end ", 4) == 0) return HD_OK;
        hd_profile_cell c = {0};
        bool ok = parse_cell(t->line, &c);
        hd_step_load load = hd_profile_cell_load(&c);
        hd_profile_cell *to = &p->cell[hd_profile_cell_ix(&load)];
        if (!ok || to->n > 0)
            return HD_FAIL(CORRUPT,
                           "latency profile: line %d: expected steps, decoding rows, prompt rows, "
                           "positions read, nanoseconds and P95 ratio of a further cell, found "
                           "\"%s\"",
                           t->n, hd_show(hd_str_of(t->line)));
        *to = c;
        p->n_step += c.n;
    }
}

static hd_status parse_end(const struct lines *t, size_t n_byte, int n_cell) {
    char expected[LINE_MAX_BYTES];
    snprintf(expected, sizeof expected, "end %d %016" PRIx64, n_cell,
             XXH3_64bits(t->text.ptr, n_byte));
    if (strcmp(t->line, expected) == 0 && t->at == t->text.len && n_cell > 0) return HD_OK;
    return HD_FAIL(CORRUPT,
                   "latency profile: line %d: expected \"%s\" as the last line, found "
                   "\"%s\"",
                   t->n, expected, hd_show(hd_str_of(t->line)));
}

static hd_status parse_into(hd_str text, uint64_t *key, hd_profile *p) {
    struct lines t = {.text = text};
    HD_TRY(next_line(&t));
    static const char first[] = "hadal latency profile 1 ";
    size_t n = sizeof first - 1;
    char *end = t.line;
    if (strncmp(t.line, first, n) == 0 && strspn(t.line + n, "0123456789abcdef") == 16)
        *key = strtoull(t.line + n, &end, 16);
    if (end != t.line + n + 16 || *end)
        return HD_FAIL(CORRUPT, "latency profile: line 1: expected \"%s\" and a key, found \"%s\"",
                       first, hd_show(hd_str_of(t.line)));
    int n_cell;
    HD_TRY(parse_cells(&t, p, &n_cell));
    size_t n_byte = t.at - strlen(t.line) - 1;
    HD_TRY(parse_end(&t, n_byte, n_cell));
    hd_profile_fit(p);
    return HD_OK;
}

hd_status hd_profile_parse(hd_str text, uint64_t *key, hd_profile **out) {
    hd_profile *p = hd_profile_new();
    hd_status s = parse_into(text, key, p);
    if (s != HD_OK) {
        hd_profile_free(p);
        p = NULL;
    }
    *out = p;
    return s;
}

hd_status hd_profile_load(const char *path, uint64_t key, hd_profile **out) {
    *out = NULL;
    FILE *f = fopen(path, "re");
    if (!f) return HD_FAIL(IO, "latency profile %s: %s", path, strerror(errno));
    char *text = hd_alloc(FILE_BYTES_MAX);
    size_t n = fread(text, 1, FILE_BYTES_MAX, f);
    bool failed = ferror(f) != 0;
    fclose(f);
    uint64_t found = 0;
    hd_status s = failed ? HD_FAIL(IO, "latency profile: cannot be read")
                         : hd_profile_parse((hd_str){text, n}, &found, out);
    hd_free(text);
    if (s != HD_OK) return hd_fail_context(s, "%s", path);
    if (found == key) return HD_OK;
    hd_profile_free(*out);
    *out = NULL;
    return HD_FAIL(CORRUPT,
                   "latency profile %s: expected key %016" PRIx64
                   " (this model, backend, device, threads and dtype), found %016" PRIx64,
                   path, key, found);
}
