/* jansson with one error line. */
#include "file/json.h"

#include <stdio.h>

static hd_status parse(hd_str text, const char *file, size_t flags, json_t **out) {
    json_error_t e;
    *out = json_loadb(text.ptr, text.len, JSON_REJECT_DUPLICATES | flags, &e);
    if (!*out)
        return HD_FAIL(CORRUPT, "%s: not valid JSON: line %d, column %d: %s", file, e.line,
                       e.column, hd_show(hd_str_of(e.text)));
    if (!json_is_object(*out)) {
        hd_status s =
            HD_FAIL(CORRUPT, "%s: expected a JSON object, found %s", file, hd_json_found(*out));
        json_decref(*out);
        *out = NULL;
        return s;
    }
    return HD_OK;
}

hd_status hd_json_parse(hd_str text, const char *file, json_t **out) {
    return parse(text, file, 0, out);
}

hd_status hd_json_parse_texts(hd_str text, const char *file, json_t **out) {
    return parse(text, file, JSON_DECODE_INT_AS_REAL, out);
}

const char *hd_json_found(const json_t *v) {
    static _Thread_local char text[120];
    if (!v) return "nothing";
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: snprintf(text, sizeof text, "a list of %zu", json_array_size(v)); return text;
    case JSON_STRING:
        snprintf(text, sizeof text, "\"%s\"",
                 hd_show((hd_str){json_string_value(v), json_string_length(v)}));
        return text;
    case JSON_INTEGER:
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(v));
        return text;
    case JSON_REAL: snprintf(text, sizeof text, "%.9g", json_real_value(v)); return text;
    case JSON_TRUE: return "true";
    case JSON_FALSE: return "false";
    default: return "null";
    }
}
