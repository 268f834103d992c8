/* Strict JSON (jansson) and checked field access. */
#include "srv/api_read.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

hd_status hd_api_fail(hd_api_error *e, hd_status s, const char *param, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    e->status = s;
    e->code = NULL;
    e->retry_s = 0;
    return s;
}

hd_status hd_api_fail_last(hd_api_error *e, hd_status s, const char *param) {
    return hd_api_fail(e, s, param, "%s", hd_error_text());
}

/* Bounds what the parser will build, before it builds it: a value takes up to about 130 bytes. */
static hd_status scan_size(hd_str body, hd_api_error *e) {
    size_t depth = 0, n_value = 0;
    bool in_string = false;
    for (size_t i = 0; i < body.len; i++) {
        char c = body.ptr[i];
        if (in_string) {
            if (c == '\\') i++;
            if (c == '"') in_string = false;
            continue;
        }
        if (c == '"') in_string = true;
        if (c == ',' || c == '[' || c == '{') n_value++;
        if (c == '[' || c == '{') depth++;
        if ((c == ']' || c == '}') && depth > 0) depth--;
        if (depth > HD_API_DEPTH_MAX)
            return hd_api_fail(e, HD_E_INVALID, NULL,
                               "invalid JSON at byte %zu: nested deeper than %d", i,
                               HD_API_DEPTH_MAX);
        if (n_value > HD_API_VALUES_MAX)
            return hd_api_fail(e, HD_E_TOO_LARGE, NULL, "the body holds more than %d values",
                               HD_API_VALUES_MAX);
    }
    return HD_OK;
}

hd_status hd_api_load(hd_str body, json_t **out, hd_api_error *e) {
    HD_TRY(scan_size(body, e));
    json_error_t je;
    *out = json_loadb(body.ptr, body.len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &je);
    if (!*out)
        return hd_api_fail(e, HD_E_INVALID, NULL,
                           "invalid JSON at line %d, column %d (byte %d): %.200s", je.line,
                           je.column, je.position, je.text);
    if (json_is_object(*out)) return HD_OK;
    json_decref(*out);
    *out = NULL;
    return hd_api_fail(e, HD_E_INVALID, NULL, "the body must be a JSON object");
}

static const char *kind_of(const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER:
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    case JSON_NULL: break;
    }
    return "null";
}

static void join(char *to, size_t room, const hd_api_in *in, const char *key) {
    snprintf(to, room, "%s%s", in->path, key);
}

hd_status hd_api_wrong(const hd_api_in *in, const char *key, const char *expected,
                       const json_t *found) {
    char param[96];
    join(param, sizeof param, in, key);
    return hd_api_fail(in->error, HD_E_INVALID, param, "'%s' must be %s, found %s", param, expected,
                       found ? kind_of(found) : "nothing");
}

const json_t *hd_api_get(const hd_api_in *in, const char *key) {
    const json_t *v = json_object_get(in->object, key);
    return v && !json_is_null(v) ? v : NULL;
}

hd_status hd_api_bool(const hd_api_in *in, const char *key, bool *out) {
    const json_t *v = hd_api_get(in, key);
    if (!v) return HD_OK;
    if (!json_is_boolean(v)) return hd_api_wrong(in, key, "a boolean", v);
    *out = json_is_true(v);
    return HD_OK;
}

static bool to_int(const json_t *v, int64_t *out) {
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return true;
    }
    double d = json_is_real(v) ? json_real_value(v) : 0.5;
    if (d != floor(d) || fabs(d) > 9007199254740992.0) return false;
    *out = (int64_t)d;
    return true;
}

hd_status hd_api_int(const hd_api_in *in, const char *key, int64_t min, int64_t max, int64_t *out) {
    const json_t *v = hd_api_get(in, key);
    int64_t i;
    if (!v) return HD_OK;
    if (!to_int(v, &i)) return hd_api_wrong(in, key, "an integer", v);
    char param[96];
    join(param, sizeof param, in, key);
    if (i < min)
        return hd_api_fail(in->error, HD_E_INVALID, param, "'%s' must be at least %lld, found %lld",
                           param, (long long)min, (long long)i);
    if (i > max)
        return hd_api_fail(in->error, HD_E_INVALID, param, "'%s' must be at most %lld, found %lld",
                           param, (long long)max, (long long)i);
    *out = i;
    return HD_OK;
}

hd_status hd_api_num(const hd_api_in *in, const char *key, double min, double max, float *out) {
    const json_t *v = hd_api_get(in, key);
    if (!v) return HD_OK;
    if (!json_is_number(v)) return hd_api_wrong(in, key, "a number", v);
    double d = json_number_value(v);
    if (!(d >= min && d <= max)) {
        char param[96];
        join(param, sizeof param, in, key);
        return hd_api_fail(in->error, HD_E_INVALID, param,
                           "'%s' must be between %g and %g, found %g", param, min, max, d);
    }
    *out = (float)d;
    return HD_OK;
}

hd_str hd_api_copy(hd_arena *a, const json_t *string) {
    size_t n = json_string_length(string);
    return (hd_str){hd_arena_strndup(a, json_string_value(string), n), n};
}

hd_status hd_api_text(const hd_api_in *in, const char *key, hd_str *out) {
    const json_t *v = hd_api_get(in, key);
    if (!v) return HD_OK;
    if (!json_is_string(v)) return hd_api_wrong(in, key, "a string", v);
    *out = hd_api_copy(in->arena, v);
    return HD_OK;
}

hd_status hd_api_object(const hd_api_in *in, const char *key, hd_api_in *out) {
    const json_t *v = hd_api_get(in, key);
    *out = (hd_api_in){.object = NULL, .path = "", .arena = in->arena, .error = in->error};
    if (!v) return HD_OK;
    if (!json_is_object(v)) return hd_api_wrong(in, key, "an object", v);
    char path[96];
    snprintf(path, sizeof path, "%s%s.", in->path, key);
    out->object = v;
    out->path = hd_arena_strndup(in->arena, path, strlen(path));
    return HD_OK;
}

hd_status hd_api_int_array(const hd_api_in *in, const char *key, const json_t *v, size_t n_max,
                           int32_t **out, size_t *n) {
    if (!json_is_array(v)) return hd_api_wrong(in, key, "an array of integers", v);
    *n = json_array_size(v);
    char param[96];
    join(param, sizeof param, in, key);
    if (*n > n_max)
        return hd_api_fail(in->error, HD_E_INVALID, param,
                           "'%s' must have at most %zu items, found %zu", param, n_max, *n);
    *out = hd_arena_alloc(in->arena, (*n + 1) * sizeof **out);
    for (size_t i = 0; i < *n; i++) {
        const json_t *item = json_array_get(v, i);
        int64_t x;
        if (!to_int(item, &x)) return hd_api_wrong(in, key, "an array of integers", item);
        if (x < 0 || x > INT32_MAX)
            return hd_api_fail(in->error, HD_E_INVALID, param,
                               "'%s[%zu]' must be a token id, found %lld", param, i, (long long)x);
        (*out)[i] = (int32_t)x;
    }
    return HD_OK;
}

hd_status hd_api_ints(const hd_api_in *in, const char *key, size_t n_max, int32_t **out,
                      size_t *n) {
    const json_t *v = hd_api_get(in, key);
    return v ? hd_api_int_array(in, key, v, n_max, out, n) : HD_OK;
}

bool hd_api_is_plain(hd_str text) {
    for (size_t i = 0; i < text.len; i++) {
        char c = text.ptr[i];
        bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '-';
        if (!ok) return false;
    }
    return true;
}

/* ---- writing ---- */

/* The shortest digits that mean the same number, as Python's repr spells them. */
static void dump_real(double d, hd_buf *out) {
    char e[40], digits[32];
    int precision = 0, n = 0;
    do snprintf(e, sizeof e, "%.*e", precision, d);
    while (strtod(e, NULL) != d && ++precision <= 16);
    const char *at = e;
    if (*at == '-') hd_buf_add(out, at++, 1);
    for (; *at && *at != 'e'; at++)
        if (*at != '.') digits[n++] = *at;
    int x = *at ? (int)strtol(at + 1, NULL, 10) : 0;
    static const char zeros[] = "0000000000000000";
    if (x < -4 || x >= 16) {
        hd_buf_add(out, digits, 1);
        if (n > 1) hd_buf_addf(out, ".%.*s", n - 1, digits + 1);
        hd_buf_addf(out, "e%c%02d", x < 0 ? '-' : '+', abs(x));
    } else if (x < 0) {
        hd_buf_addf(out, "0.%.*s%.*s", -x - 1, zeros, n, digits);
    } else if (n <= x + 1) {
        hd_buf_addf(out, "%.*s%.*s.0", n, digits, x + 1 - n, zeros);
    } else {
        hd_buf_addf(out, "%.*s.%.*s", x + 1, digits, n - x - 1, digits + x + 1);
    }
}

static void dump_string(const char *p, size_t n, hd_buf *out) {
    hd_json j = hd_json_begin(out);
    hd_json_str(&j, p, n);
}

static void dump_object(const json_t *v, hd_buf *out) {
    const char *key;
    json_t *item; /* jansson's iteration hands out a mutable pointer; it is only read */
    hd_buf_add(out, "{", 1);
    bool is_first = true;
    json_object_foreach((json_t *)v, key, item) {
        if (!is_first) hd_buf_add(out, ", ", 2);
        is_first = false;
        dump_string(key, strlen(key), out);
        hd_buf_add(out, ": ", 2);
        hd_api_dump(item, out);
    }
    hd_buf_add(out, "}", 1);
}

void hd_api_dump(const json_t *v, hd_buf *out) {
    switch (json_typeof(v)) {
    case JSON_OBJECT: dump_object(v, out); return;
    case JSON_ARRAY:
        hd_buf_add(out, "[", 1);
        for (size_t i = 0; i < json_array_size(v); i++) {
            if (i > 0) hd_buf_add(out, ", ", 2);
            hd_api_dump(json_array_get(v, i), out);
        }
        hd_buf_add(out, "]", 1);
        return;
    case JSON_STRING: dump_string(json_string_value(v), json_string_length(v), out); return;
    case JSON_INTEGER: hd_buf_addf(out, "%lld", (long long)json_integer_value(v)); return;
    case JSON_REAL: dump_real(json_real_value(v), out); return;
    case JSON_TRUE: hd_buf_add_c(out, "true"); return;
    case JSON_FALSE: hd_buf_add_c(out, "false"); return;
    case JSON_NULL: break;
    }
    hd_buf_add_c(out, "null");
}

hd_str hd_api_dump_text(hd_arena *a, const json_t *v) {
    hd_buf b;
    hd_buf_init(&b, SIZE_MAX / 2);
    hd_api_dump(v, &b);
    hd_str text = {hd_arena_strndup(a, b.ptr, b.len), b.len};
    hd_buf_fini(&b);
    return text;
}

bool hd_api_is_object(hd_str text) {
    hd_api_error e;
    if (scan_size(text, &e) != HD_OK) return false;
    json_t *v = json_loadb(text.ptr, text.len, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
    bool is_object = json_is_object(v);
    json_decref(v);
    return is_object;
}
