/* Reading and checking what a model's files suggest for sampling. */
#include "file/suggestion.h"

#include "base/mem.h"
#include "file/gguf.h"
#include "file/json.h"

#include <jansson.h>
#include <limits.h>

static const char json_name[] = "generation_config.json";

static hd_status check(const hd_checkpoint *c, const char *key, double v, double min, double max) {
    if (v >= min && v <= max) return HD_OK;
    return HD_FAIL(CORRUPT, "%s: %s: expected %g to %g, found %g", hd_checkpoint_path(c), key, min,
                   max, v);
}

static hd_status read_gguf(const hd_checkpoint *c, hd_suggestion *out) {
    const hd_gguf *g = hd_checkpoint_gguf(c);
    int64_t top_k;
    if (hd_gguf_num(g, "general.sampling.temp", &out->temperature))
        HD_TRY(check(c, "general.sampling.temp", out->temperature, 0, 100));
    if (hd_gguf_num(g, "general.sampling.top_p", &out->top_p))
        HD_TRY(check(c, "general.sampling.top_p", out->top_p, 0, 1));
    if (hd_gguf_int(g, "general.sampling.top_k", &top_k)) {
        HD_TRY(check(c, "general.sampling.top_k", (double)top_k, 0, INT_MAX));
        out->top_k = (int)top_k;
    }
    return HD_OK;
}

static hd_status read_json(const hd_checkpoint *c, const json_t *root, hd_suggestion *out) {
    const json_t *temperature = json_object_get(root, "temperature"),
                 *top_p = json_object_get(root, "top_p"), *top_k = json_object_get(root, "top_k");
    if (!json_is_true(json_object_get(root, "do_sample"))) return HD_OK;
    if (json_is_number(temperature)) {
        out->temperature = json_number_value(temperature);
        HD_TRY(check(c, "generation_config.json: temperature", out->temperature, 0, 100));
    }
    if (json_is_number(top_p)) {
        out->top_p = json_number_value(top_p);
        HD_TRY(check(c, "generation_config.json: top_p", out->top_p, 0, 1));
    }
    if (json_is_number(top_k)) { /* -1: off, to some */
        HD_TRY(check(c, "generation_config.json: top_k", json_number_value(top_k), -1, INT_MAX));
        int n = (int)json_number_value(top_k);
        out->top_k = n > 0 ? n : 0;
    }
    return HD_OK;
}

hd_status hd_suggestion_read(const hd_checkpoint *c, hd_suggestion *out) {
    char *text;
    size_t n;
    json_t *root;
    *out = (hd_suggestion){-1, -1, -1};
    if (hd_checkpoint_gguf(c)) return read_gguf(c, out);
    hd_status s = hd_checkpoint_file(c, json_name, &text, &n);
    if (s == HD_E_NOT_FOUND) return HD_OK;
    HD_TRY(s);
    s = hd_json_parse((hd_str){text, n}, json_name, &root);
    hd_free(text);
    HD_TRY(s);
    s = read_json(c, root, out);
    json_decref(root);
    return s;
}
