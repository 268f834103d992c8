/* The cost profile as a JSON file. */
#include "sim/cost.h"

#include "base/mem.h"
#include "file/json.h"
#include "file/mapping.h"

#include <stdio.h>
#include <string.h>

enum { file_bytes_max = 1 << 20 };
static const char kind[] = "hadal cost profile",
                  formula[] = "seconds = W(rows) + out_s outputs + decode_s D + absorbed_s A + "
                              "expanded_s E + expand_s T; W: "
                              "linear between (rows, seconds)";

/* Scalars, one row each: key, field, least value. */
#define COST_TEXTS(X)                                                                              \
    X("model", model)                                                                              \
    X("backend", backend)                                                                          \
    X("device", device)                                                                            \
    X("kv_cache_dtype", kv_dtype)
#define COST_INTS(X)                                                                               \
    X("threads", n_thread, 0)                                                                      \
    X("context", n_ctx, 2)                                                                         \
    X("expand_min", expand_min, 0)                                                                 \
    X("layers", n_layer, 1)                                                                        \
    X("kv_bytes_per_token", kv_tok_bytes, 1)                                                       \
    X("weight_bytes", weight_bytes, 0)                                                             \
    X("points", n_point, 1)                                                                        \
    X("other_points", n_other, 0)
#define COST_NUMBERS(X)                                                                            \
    X("out_s", out_s)                                                                              \
    X("decode_s", decode_s)                                                                        \
    X("absorbed_s", absorbed_s)                                                                    \
    X("expanded_s", expanded_s)                                                                    \
    X("expand_s", expand_s)                                                                        \
    X("error_mean", error_mean)                                                                    \
    X("error_max", error_max)                                                                      \
    X("other_error_mean", other_mean)                                                              \
    X("other_error_max", other_max)

void hd_cost_write(const hd_cost *c, hd_buf *out) {
    hd_json j = hd_json_begin(out);
    hd_json_object(&j);
    hd_json_key(&j, "kind");
    hd_json_str_c(&j, kind);
#define X(key, field)                                                                              \
    hd_json_key(&j, key);                                                                          \
    hd_json_str_c(&j, c->field);
    COST_TEXTS(X)
#undef X
#define X(key, field, least)                                                                       \
    hd_json_key(&j, key);                                                                          \
    hd_json_int(&j, c->field);
    COST_INTS(X)
#undef X
    hd_json_key(&j, "formula");
    hd_json_str_c(&j, formula);
#define X(key, field)                                                                              \
    hd_json_key(&j, key);                                                                          \
    hd_json_num(&j, c->field);
    COST_NUMBERS(X)
#undef X
    hd_json_key(&j, "rows");
    hd_json_array(&j);
    for (int i = 0; i < c->n_knot; i++) hd_json_int(&j, c->knot[i]);
    hd_json_array_end(&j);
    hd_json_key(&j, "seconds");
    hd_json_array(&j);
    for (int i = 0; i < c->n_knot; i++) hd_json_num(&j, c->knot_s[i]);
    hd_json_array_end(&j);
    hd_json_key(&j, "spread");
    hd_json_array(&j);
    for (int i = 0; i < HD_COST_QUANTILES; i++) hd_json_num(&j, c->quantile[i]);
    hd_json_array_end(&j);
    hd_json_object_end(&j);
    hd_buf_add_c(out, "\n");
}

/* ---- reading ---- */

static hd_status wrong(const char *key, const char *expected, const json_t *found) {
    return HD_FAIL(CORRUPT, "%s: expected %s, found %s", key, expected, hd_json_found(found));
}

static hd_status read_text(const json_t *root, const char *key, char *out, size_t room) {
    const json_t *v = json_object_get(root, key);
    if (!json_is_string(v)) return wrong(key, "text", v);
    snprintf(out, room, "%s", json_string_value(v));
    return HD_OK;
}

static hd_status read_int(const json_t *v, const char *key, int64_t least, int64_t *out) {
    char expected[64];
    snprintf(expected, sizeof expected, "a whole number from %lld", (long long)least);
    if (!json_is_integer(v) || json_integer_value(v) < least || json_integer_value(v) > 1LL << 50)
        return wrong(key, expected, v);
    *out = json_integer_value(v);
    return HD_OK;
}

static hd_status read_number(const json_t *v, const char *key, double *out) {
    if (!json_is_number(v) || !(json_number_value(v) >= 0 && json_number_value(v) <= 1e6))
        return wrong(key, "a number from 0 to 1e6", v);
    *out = json_number_value(v);
    return HD_OK;
}

static hd_status read_knots(const json_t *root, hd_cost *c) {
    const json_t *rows = json_object_get(root, "rows"), *s = json_object_get(root, "seconds");
    size_t n = json_array_size(rows);
    if (n < 1 || n > HD_COST_KNOT_MAX) return wrong("rows", "a list of row counts", rows);
    if (json_array_size(s) != n) return wrong("seconds", "as many as rows", s);
    for (size_t i = 0; i < n; i++) {
        int64_t v;
        HD_TRY(read_int(json_array_get(rows, i), "rows", i > 0 ? c->knot[i - 1] + 1 : 1, &v));
        if (v > 1 << 24) return wrong("rows", "at most 16777216", json_array_get(rows, i));
        c->knot[i] = (int)v;
        HD_TRY(read_number(json_array_get(s, i), "seconds", &c->knot_s[i]));
    }
    c->n_knot = (int)n;
    return HD_OK;
}

static hd_status read_spread(const json_t *root, hd_cost *c) {
    const json_t *list = json_object_get(root, "spread");
    if (json_array_size(list) != HD_COST_QUANTILES) return wrong("spread", "a list of 21", list);
    for (size_t i = 0; i < HD_COST_QUANTILES; i++) {
        HD_TRY(read_number(json_array_get(list, i), "spread", &c->quantile[i]));
        if (i > 0 && c->quantile[i] < c->quantile[i - 1])
            return wrong("spread", "ascending numbers", json_array_get(list, i));
    }
    return HD_OK;
}

static hd_status read_object(const json_t *root, hd_cost *c) {
    char is[64];
    HD_TRY(read_text(root, "kind", is, sizeof is));
    if (strcmp(is, kind) != 0)
        return wrong("kind", "\"hadal cost profile\"", json_object_get(root, "kind"));
#define X(key, field) HD_TRY(read_text(root, key, c->field, sizeof c->field));
    COST_TEXTS(X)
#undef X
#define X(key, field, least)                                                                       \
    {                                                                                              \
        int64_t v;                                                                                 \
        HD_TRY(read_int(json_object_get(root, key), key, least, &v));                              \
        if (sizeof c->field == sizeof(int) && v > INT32_MAX)                                       \
            return wrong(key, "at most 2147483647", json_object_get(root, key));                   \
        c->field = (__typeof__(c->field))v;                                                        \
    }
    COST_INTS(X)
#undef X
#define X(key, field) HD_TRY(read_number(json_object_get(root, key), key, &c->field));
    COST_NUMBERS(X)
#undef X
    HD_TRY(read_knots(root, c));
    return read_spread(root, c);
}

hd_status hd_cost_parse(hd_str text, const char *name, hd_cost *out) {
    json_t *root;
    *out = (hd_cost){0};
    HD_TRY(hd_json_parse(text, name, &root));
    hd_status s = read_object(root, out);
    json_decref(root);
    return s == HD_OK ? HD_OK : hd_fail_context(s, "%s", name);
}

hd_status hd_cost_read(const char *path, hd_cost *out) {
    char *text;
    size_t n;
    HD_TRY(hd_text_read(path, file_bytes_max, &text, &n));
    hd_status s = hd_cost_parse((hd_str){text, n}, path, out);
    hd_free(text);
    return s;
}
