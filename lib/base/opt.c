/* The option engine: one setter behind three readers. See opt.h. */
#include "base/opt.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum { file_bytes_max = 1 << 20, name_bytes_max = 64 };

/* ---- names ---- */

static int edit_distance(const char *a, const char *b) {
    size_t n = strlen(b);
    int row[name_bytes_max + 1];
    if (n > name_bytes_max) return name_bytes_max;
    for (size_t j = 0; j <= n; j++) row[j] = (int)j;
    for (size_t i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= n; j++) {
            int cost = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < cost) cost = row[j] + 1;
            if (row[j - 1] + 1 < cost) cost = row[j - 1] + 1;
            row[j] = cost;
        }
    }
    return row[n];
}

const char *hd_nearest(const char *word, const char *const *candidate, size_t n) {
    const char *best = NULL;
    int best_d = 1 + (int)strlen(word) / 3;
    if (best_d > 4) best_d = 4;
    for (size_t i = 0; i < n; i++) {
        int d = edit_distance(word, candidate[i]);
        if (d <= best_d && (!best || d < best_d)) {
            best = candidate[i];
            best_d = d;
        }
    }
    return best;
}

static bool applies(const hd_opt_table *t, const hd_opt_row *r) {
    if (strcmp(r->commands, "*") == 0) return true;
    size_t n = strlen(t->command);
    for (const char *p = r->commands; (p = strstr(p, t->command)) != NULL; p += n)
        if ((p == r->commands || p[-1] == ' ') && (p[n] == 0 || p[n] == ' ')) return true;
    return false;
}

/* This command's row of that flag, or else another's. */
static const hd_opt_row *row_of(const hd_opt_table *t, const char *flag, size_t n) {
    const hd_opt_row *found = NULL;
    for (const hd_opt_row *r = t->row; r < t->row + t->n_row; r++) {
        if (strlen(r->flag) != n || memcmp(r->flag, flag, n) != 0) continue;
        if (applies(t, r)) return r;
        if (!found) found = r;
    }
    return found;
}

/* Text of an unknown-key error: the nearest row of this command, if any is near. */
static hd_status unknown(const hd_opt_table *t, const char *where, const char *key,
                         const char *flag) {
    const char *candidate[256];
    size_t n = 0;
    for (int i = 0; i < t->n_row && n < HD_COUNT_OF(candidate); i++)
        if (applies(t, &t->row[i])) candidate[n++] = t->row[i].flag;
    const char *near = hd_nearest(flag, candidate, n);
    if (near)
        return HD_FAIL(INVALID, "%s: unknown option '%s'; did you mean '%s%s'?", where, key,
                       key[0] == '-' ? "--" : "", near);
    return HD_FAIL(INVALID, "%s: unknown option '%s'; 'hadal %s --help' lists them", where, key,
                   t->command);
}

/* ---- one value; where says which option, as its source spells it ---- */

static hd_status parse_bool(const char *where, const char *text, bool *out) {
    static const char *const yes[] = {"true", "1", "yes", "on"}, *const no[] = {"false", "0", "no",
                                                                                "off"};
    for (size_t i = 0; i < HD_COUNT_OF(yes); i++) {
        if (strcmp(text, yes[i]) == 0) return *out = true, HD_OK;
        if (strcmp(text, no[i]) == 0) return *out = false, HD_OK;
    }
    return HD_FAIL(INVALID, "%s: expected true or false, found '%s'", where, text);
}

static double unit_of(const char *suffix) {
    static const struct {
        const char *name;
        double value;
    } units[] = {{"", 1},       {"k", 1e3},       {"m", 1e6},          {"g", 1e9},
                 {"kib", 1024}, {"mib", 1048576}, {"gib", 1073741824}, {"tib", 1099511627776}};
    char lower[8] = {0};
    for (size_t i = 0; suffix[i] && i < sizeof lower - 1; i++)
        lower[i] = (char)tolower((unsigned char)suffix[i]);
    for (size_t i = 0; i < HD_COUNT_OF(units); i++)
        if (strcmp(lower, units[i].name) == 0) return units[i].value;
    return 0;
}

static hd_status parse_number(const char *where, const hd_opt_row *r, const char *text,
                              double *out) {
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    bool whole = r->kind != HD_OPT_NUM;
    const char *want = r->kind == HD_OPT_SIZE ? "a whole number (K, M, G, KiB, MiB, GiB allowed)"
                       : whole                ? "a whole number"
                                              : "a number";
    double unit = r->kind == HD_OPT_SIZE ? unit_of(end) : (*end == 0);
    if (end == text || isspace((unsigned char)text[0]) || unit == 0 || !isfinite(v) || errno != 0 ||
        strpbrk(text, "xX") || (whole && floor(v * unit) != v * unit))
        return HD_FAIL(INVALID, "%s: expected %s, found '%s'", where, want, text);
    v *= unit;
    if (v < r->min || v > r->max)
        return HD_FAIL(INVALID, "%s: expected %s in [%.15g, %.15g], found %s", where, want, r->min,
                       r->max, text);
    *out = v;
    return HD_OK;
}

static bool is_choice(const char *choices, const char *text) {
    size_t n = strlen(text);
    for (const char *p = choices; *p;) {
        size_t len = strcspn(p, "|");
        if (len == n && memcmp(p, text, n) == 0) return true;
        p += len + (p[len] == '|');
    }
    return false;
}

static hd_status set_value(const hd_opt_table *t, void *options, const hd_opt_row *r,
                           const char *where, const char *text) {
    void *field = (char *)options + r->offset;
    double v = 0;
    switch (r->kind) {
    case HD_OPT_BOOL: return parse_bool(where, text, field);
    case HD_OPT_STR:
        if (r->choices && !is_choice(r->choices, text))
            return HD_FAIL(INVALID, "%s: expected one of %s, found '%s'", where, r->choices, text);
        *(const char **)field = hd_arena_strndup(t->arena, text, strlen(text));
        return HD_OK;
    case HD_OPT_LIST: {
        hd_opt_list *list = field;
        if (list->n == HD_OPT_LIST_MAX)
            return HD_FAIL(INVALID, "%s: more than %d values", where, HD_OPT_LIST_MAX);
        list->item[list->n++] = hd_arena_strndup(t->arena, text, strlen(text));
        return HD_OK;
    }
    case HD_OPT_INT:
        HD_TRY(parse_number(where, r, text, &v));
        *(int *)field = (int)v;
        return HD_OK;
    case HD_OPT_SIZE:
        HD_TRY(parse_number(where, r, text, &v));
        *(int64_t *)field = (int64_t)v;
        return HD_OK;
    case HD_OPT_NUM:
        HD_TRY(parse_number(where, r, text, &v));
        *(double *)field = v;
        return HD_OK;
    }
    HD_ASSERT(0 && "option kind");
    return HD_OK;
}

/* A stronger source replaces a list: emptied when the source first names it. */
static void clear_list(void *options, const hd_opt_row *r) {
    if (r->kind == HD_OPT_LIST) ((hd_opt_list *)((char *)options + r->offset))->n = 0;
}

void hd_opt_defaults(const hd_opt_table *t, void *options) {
    for (int i = 0; i < t->n_row; i++) {
        clear_list(options, &t->row[i]);
        if (!t->row[i].initial) continue;
        hd_status s = set_value(t, options, &t->row[i], "default", t->row[i].initial);
        HD_ASSERT(s == HD_OK);
    }
}

/* ---- YAML file ---- */

struct yaml_reader {
    const hd_opt_table *t;
    void *options;
    const char *path;
    yaml_parser_t parser;
    yaml_event_t event;
    bool has_event;
    bool seen[256]; /* rows */
};

static hd_status yaml_next(struct yaml_reader *y) {
    if (y->has_event) yaml_event_delete(&y->event);
    y->has_event = false;
    if (!yaml_parser_parse(&y->parser, &y->event))
        return HD_FAIL(INVALID, "%s:%zu: %s", y->path, y->parser.problem_mark.line + 1,
                       y->parser.problem ? y->parser.problem : "not YAML");
    y->has_event = true;
    if (y->event.type == YAML_ALIAS_EVENT ||
        (y->event.type == YAML_SCALAR_EVENT && y->event.data.scalar.anchor))
        return HD_FAIL(INVALID, "%s:%zu: anchors and aliases are not accepted", y->path,
                       y->event.start_mark.line + 1);
    return HD_OK;
}

/* A name as rows spell it: '_' becomes '-'. */
static void to_flag(const char *key, char flag[name_bytes_max]) {
    size_t i = 0;
    for (; key[i] && i < name_bytes_max - 1; i++) flag[i] = key[i] == '_' ? '-' : key[i];
    flag[i] = 0;
}

static hd_status yaml_value(struct yaml_reader *y, const hd_opt_row *r, const char *line) {
    char where[640];
    snprintf(where, sizeof where, "%s: %s", line, r->flag);
    HD_TRY(yaml_next(y));
    clear_list(y->options, r);
    if (y->event.type == YAML_SCALAR_EVENT)
        return set_value(y->t, y->options, r, where, (const char *)y->event.data.scalar.value);
    if (y->event.type != YAML_SEQUENCE_START_EVENT || r->kind != HD_OPT_LIST)
        return HD_FAIL(INVALID, "%s: expected %s", where,
                       r->kind == HD_OPT_LIST ? "a value or a list of values" : "one value");
    for (;;) {
        HD_TRY(yaml_next(y));
        if (y->event.type == YAML_SEQUENCE_END_EVENT) return HD_OK;
        if (y->event.type != YAML_SCALAR_EVENT)
            return HD_FAIL(INVALID, "%s: a list may hold plain values only", where);
        HD_TRY(set_value(y->t, y->options, r, where, (const char *)y->event.data.scalar.value));
    }
}

static hd_status yaml_mapping(struct yaml_reader *y) {
    for (;;) {
        char where[512], flag[name_bytes_max], key[name_bytes_max];
        HD_TRY(yaml_next(y));
        if (y->event.type == YAML_MAPPING_END_EVENT) return HD_OK;
        snprintf(where, sizeof where, "%s:%zu", y->path, y->event.start_mark.line + 1);
        if (y->event.type != YAML_SCALAR_EVENT)
            return HD_FAIL(INVALID, "%s: expected an option name", where);
        snprintf(key, sizeof key, "%s", (const char *)y->event.data.scalar.value);
        to_flag(key, flag);
        const hd_opt_row *r = row_of(y->t, flag, strlen(flag));
        if (!r) return unknown(y->t, where, key, flag);
        if (y->seen[r - y->t->row])
            return HD_FAIL(INVALID, "%s: option '%s' is given twice", where, key);
        y->seen[r - y->t->row] = true;
        HD_TRY(yaml_value(y, r, where));
    }
}

static hd_status yaml_document(struct yaml_reader *y) {
    for (;;) {
        HD_TRY(yaml_next(y));
        switch (y->event.type) {
        case YAML_STREAM_START_EVENT:
        case YAML_DOCUMENT_START_EVENT:
        case YAML_DOCUMENT_END_EVENT: break;
        case YAML_STREAM_END_EVENT: return HD_OK;
        case YAML_MAPPING_START_EVENT: HD_TRY(yaml_mapping(y)); break;
        case YAML_SCALAR_EVENT: /* an empty file is a null scalar */
            if (y->event.data.scalar.length == 0) break;
            /* fallthrough */
        default:
            return HD_FAIL(INVALID, "%s:%zu: expected lines of 'option: value'", y->path,
                           y->event.start_mark.line + 1);
        }
    }
}

hd_status hd_opt_read_file(const hd_opt_table *t, void *options, const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) return HD_FAIL(INVALID, "config file %s: %s", path, strerror(errno));
    unsigned char *text = hd_alloc(file_bytes_max + 1);
    size_t n = fread(text, 1, file_bytes_max + 1, f);
    bool is_bad = ferror(f) != 0;
    fclose(f);
    hd_status s = HD_OK;
    struct yaml_reader *y = hd_alloc_zero(1, sizeof *y);
    *y = (struct yaml_reader){.t = t, .options = options, .path = path};
    HD_ASSERT(t->n_row <= (int)HD_COUNT_OF(y->seen));
    if (is_bad || n > file_bytes_max) {
        s = HD_FAIL(INVALID, "config file %s: not readable, or larger than %d bytes", path,
                    file_bytes_max);
    } else {
        HD_ASSERT(yaml_parser_initialize(&y->parser));
        yaml_parser_set_input_string(&y->parser, text, n);
        s = yaml_document(y);
        if (y->has_event) yaml_event_delete(&y->event);
        yaml_parser_delete(&y->parser);
    }
    hd_free(y);
    hd_free(text);
    return s;
}

/* ---- environment ---- */

static bool is_ignored(const hd_opt_table *t, const char *name, size_t n) {
    for (const char *const *p = t->env_ignored; p && *p; p++) {
        size_t len = strlen(*p);
        if ((*p)[len - 1] == '*' ? n >= len - 1 && memcmp(*p, name, len - 1) == 0
                                 : n == len && memcmp(*p, name, n) == 0)
            return true;
    }
    return false;
}

hd_status hd_opt_read_env(const hd_opt_table *t, void *options, char **env) {
    size_t prefix = strlen(t->env_prefix);
    for (; *env; env++) {
        const char *eq = strchr(*env, '=');
        if (!eq || strncmp(*env, t->env_prefix, prefix) != 0) continue;
        char name[2 * name_bytes_max], flag[2 * name_bytes_max];
        snprintf(name, sizeof name, "%.*s", (int)(eq - *env), *env);
        if (is_ignored(t, name, strlen(name))) continue;
        /* Kubernetes sets NAME_PORT=tcp://... for a service of this name: that is not an option. */
        if (strncmp(eq + 1, "tcp://", 6) == 0) continue;
        size_t i = 0;
        for (const char *p = name + prefix; *p; p++)
            flag[i++] = *p == '_' ? '-' : (char)tolower((unsigned char)*p);
        flag[i] = 0;
        const hd_opt_row *r = row_of(t, flag, i);
        if (!r) return unknown(t, "environment", name, flag);
        clear_list(options, r);
        HD_TRY(set_value(t, options, r, name, eq + 1));
    }
    return HD_OK;
}

/* ---- flags ---- */

struct args {
    const hd_opt_table *t;
    void *options;
    char **arg;
    int n, at, n_kept;
    bool seen[256];
};

static hd_status take_row(struct args *a, const hd_opt_row *r, const char *shown,
                          const char *inline_value) {
    const char *value = inline_value;
    if (!value && r->kind == HD_OPT_BOOL) value = "true";
    if (!value) {
        if (a->at + 1 >= a->n)
            return HD_FAIL(INVALID, "%s: expected a value (%s)", shown, r->placeholder);
        value = a->arg[++a->at];
    }
    size_t ix = (size_t)(r - a->t->row);
    if (!a->seen[ix]) clear_list(a->options, r);
    a->seen[ix] = true;
    return set_value(a->t, a->options, r, shown, value);
}

static hd_status take_long(struct args *a, const char *arg) {
    const char *eq = strchr(arg, '=');
    size_t n = eq ? (size_t)(eq - arg) : strlen(arg);
    char shown[2 * name_bytes_max];
    snprintf(shown, sizeof shown, "--%.*s", (int)n, arg);
    char flag[name_bytes_max];
    to_flag(shown + 2, flag);
    const hd_opt_row *r = row_of(a->t, flag, strlen(flag));
    if (!r && !eq && strncmp(flag, "no-", 3) == 0) {
        const hd_opt_row *negated = row_of(a->t, flag + 3, strlen(flag + 3));
        if (negated && negated->kind == HD_OPT_BOOL && applies(a->t, negated))
            return take_row(a, negated, shown, "false");
    }
    if (r && !applies(a->t, r))
        return HD_FAIL(INVALID, "%s is not an option of 'hadal %s' (it belongs to: %s)", shown,
                       a->t->command, r->commands);
    if (!r) return unknown(a->t, "command line", shown, flag);
    return take_row(a, r, shown, eq ? eq + 1 : NULL);
}

static hd_status take_short(struct args *a, const char *arg) {
    char shown[3] = {'-', arg[0], 0};
    for (int i = 0; i < a->t->n_row; i++) {
        const hd_opt_row *r = &a->t->row[i];
        if (r->letter == arg[0] && applies(a->t, r))
            return take_row(a, r, shown, arg[1] ? arg + 1 : NULL);
    }
    return HD_FAIL(INVALID, "command line: unknown option '%s'; 'hadal %s --help' lists them",
                   shown, a->t->command);
}

hd_status hd_opt_read_args(const hd_opt_table *t, void *options, int *n_arg, char **arg) {
    struct args a = {.t = t, .options = options, .arg = arg, .n = *n_arg};
    bool flags_end = false;
    for (; a.at < a.n; a.at++) {
        char *p = arg[a.at];
        if (flags_end || p[0] != '-' || p[1] == 0) {
            arg[a.n_kept++] = p;
        } else if (strcmp(p, "--") == 0) {
            flags_end = true;
        } else if (p[1] == '-') {
            HD_TRY(take_long(&a, p + 2));
        } else {
            HD_TRY(take_short(&a, p + 1));
        }
    }
    *n_arg = a.n_kept;
    return HD_OK;
}

/* ---- help ---- */

static void help_row(const hd_opt_row *r, hd_buf *out) {
    char left[128], tail[160] = "";
    char letter[5] = {'-', r->letter, ',', ' ', 0};
    bool is_bool = r->kind == HD_OPT_BOOL;
    snprintf(left, sizeof left, "  %s--%s%s%s%s", r->letter ? letter : "    ",
             is_bool ? "[no-]" : "", r->flag, is_bool ? "" : " ", r->placeholder);
    if (r->choices) snprintf(tail, sizeof tail, " [%s]", r->choices);
    hd_buf_addf(out, "%-42s %s%s", left, r->help, tail);
    if (r->initial && r->initial[0] && !(is_bool && strcmp(r->initial, "false") == 0))
        hd_buf_addf(out, " (default %s)", r->initial);
    hd_buf_add_c(out, "\n");
}

void hd_opt_help(const hd_opt_table *t, hd_buf *out) {
    for (int i = 0; i < t->n_row; i++)
        if (applies(t, &t->row[i])) help_row(&t->row[i], out);
}
