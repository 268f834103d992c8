/* safetensors reader: one file, or shards named by model.safetensors.index.json.
 *
 * The header is strict JSON of at most 100 MB; every tensor's bytes lie inside the data section,
 * cover it without holes and without overlap, and have exactly the size its shape says: the rules
 * of the reference reader. Tensors are not aligned; readers of their bytes must not care. */
#include "file/checkpoint_build.h"
#include "file/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { header_bytes_max = 100000000, index_bytes_max = 256 << 20, shards_max = 10000 };

#define INDEX_NAME "model.safetensors.index.json"
#define SINGLE_NAME "model.safetensors"

struct span {
    uint64_t begin, end;
    const char *name;
};

/* One file while its header is read. */
struct reader {
    hd_checkpoint *c;
    const char *file;
    const uint8_t *data;
    uint64_t n_data;
    struct span *span;
    size_t n_span;
};

/* ---- one tensor's entry ---- */

/* Types that no weight of a model read here has. */
static const hd_file_type other_types[] = {
    {"BOOL", HD_FORMAT_COUNT, 1, 1}, {"U8", HD_FORMAT_COUNT, 1, 1},
    {"I8", HD_FORMAT_COUNT, 1, 1},   {"F8_E5M2", HD_FORMAT_COUNT, 1, 1},
    {"F4", HD_FORMAT_COUNT, 2, 1},   {"I16", HD_FORMAT_COUNT, 1, 2},
    {"U16", HD_FORMAT_COUNT, 1, 2},  {"I32", HD_FORMAT_COUNT, 1, 4},
    {"U32", HD_FORMAT_COUNT, 1, 4},  {"I64", HD_FORMAT_COUNT, 1, 8},
    {"U64", HD_FORMAT_COUNT, 1, 8},  {"F64", HD_FORMAT_COUNT, 1, 8},
};

static hd_status read_dtype(const struct reader *r, hd_str name, const json_t *v,
                            hd_file_type *out) {
    if (!json_is_string(v))
        return HD_FAIL(CORRUPT, "%s: tensor %s: dtype: expected a string, found %s", r->file,
                       hd_show(name), hd_json_found(v));
    char known[200] = "";
    for (int f = 0; f < HD_FORMAT_COUNT; f++) {
        const char *st = hd_format_get((enum hd_format)f)->safetensors_name;
        if (!*st) continue;
        if (strcmp(st, json_string_value(v)) == 0) {
            *out = hd_file_type_of((enum hd_format)f);
            return HD_OK;
        }
        hd_list_add(known, sizeof known, st);
    }
    for (size_t i = 0; i < HD_COUNT_OF(other_types); i++)
        if (strcmp(other_types[i].name, json_string_value(v)) == 0) {
            *out = other_types[i];
            return HD_OK;
        }
    return HD_FAIL(UNSUPPORTED, "%s: tensor %s: dtype %s is not supported: known here: %s", r->file,
                   hd_show(name), hd_json_found(v), known);
}

/* shape is outermost first; ne is innermost first. */
static hd_status read_shape(const struct reader *r, hd_str name, const json_t *v,
                            hd_file_tensor *t) {
    if (!json_is_array(v))
        return HD_FAIL(CORRUPT, "%s: tensor %s: shape: expected a list, found %s", r->file,
                       hd_show(name), hd_json_found(v));
    size_t n = json_array_size(v);
    if (n > 4)
        return HD_FAIL(UNSUPPORTED, "%s: tensor %s: expected at most 4 dimensions, found %zu",
                       r->file, hd_show(name), n);
    t->n_dim = (int)n;
    for (size_t d = 0; d < 4; d++) t->ne[d] = 1;
    for (size_t d = 0; d < n; d++) {
        const json_t *e = json_array_get(v, n - 1 - d);
        if (!json_is_integer(e) || json_integer_value(e) < 0)
            return HD_FAIL(CORRUPT, "%s: tensor %s: shape: expected integers from 0, found %s",
                           r->file, hd_show(name), hd_json_found(e));
        t->ne[d] = json_integer_value(e);
    }
    return HD_OK;
}

static hd_status read_span(const struct reader *r, hd_str name, const json_t *v, struct span *out) {
    const json_t *b = json_array_get(v, 0), *e = json_array_get(v, 1);
    if (json_array_size(v) != 2 || !json_is_integer(b) || !json_is_integer(e) ||
        json_integer_value(b) < 0 || json_integer_value(e) < json_integer_value(b))
        return HD_FAIL(CORRUPT,
                       "%s: tensor %s: data_offsets: expected [begin, end] with 0 <= begin <= end, "
                       "found %s",
                       r->file, hd_show(name),
                       json_array_size(v) == 2 ? "other values" : hd_json_found(v));
    out->begin = (uint64_t)json_integer_value(b);
    out->end = (uint64_t)json_integer_value(e);
    if (out->end > r->n_data)
        return HD_FAIL(CORRUPT,
                       "%s: tensor %s: expected its bytes [%" PRIu64 ", %" PRIu64
                       ") in the file, found %" PRIu64 " bytes of data (is the file cut short?)",
                       r->file, hd_show(name), out->begin, out->end, r->n_data);
    return HD_OK;
}

static hd_status read_tensor(struct reader *r, hd_str name, const json_t *v, bool is_kept) {
    if (!json_is_object(v))
        return HD_FAIL(CORRUPT, "%s: tensor %s: expected an object, found %s", r->file,
                       hd_show(name), hd_json_found(v));
    struct span *span = &r->span[r->n_span++];
    HD_TRY(read_span(r, name, json_object_get(v, "data_offsets"), span));
    span->name = name.ptr; /* lives as long as the parsed header */
    if (!is_kept) return HD_OK;
    hd_file_tensor t = {.file = r->file, .data = r->data + span->begin};
    hd_file_type type;
    HD_TRY(read_dtype(r, name, json_object_get(v, "dtype"), &type));
    HD_TRY(read_shape(r, name, json_object_get(v, "shape"), &t));
    HD_TRY(hd_tensor_set_type(&t, name, &type));
    if (span->end - span->begin != t.n_byte)
        return HD_FAIL(CORRUPT,
                       "%s: tensor %s: expected %" PRIu64 " bytes for its shape and dtype, found "
                       "%" PRIu64 " (data_offsets)",
                       r->file, hd_show(name), t.n_byte, span->end - span->begin);
    return hd_checkpoint_add(r->c, name, &t);
}

static hd_status check_metadata(const struct reader *r, json_t *v) {
    const char *key;
    json_t *e;
    if (!json_is_object(v))
        return HD_FAIL(CORRUPT, "%s: __metadata__: expected an object, found %s", r->file,
                       hd_json_found(v));
    json_object_foreach(v, key, e) if (!json_is_string(e)) return HD_FAIL(
        CORRUPT, "%s: __metadata__: %s: expected a string, found %s", r->file,
        hd_show(hd_str_of(key)), hd_json_found(e));
    return HD_OK;
}

static int by_begin(const void *a, const void *b) {
    const struct span *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* No overlap, no hole, nothing left over. */
static hd_status check_spans(struct reader *r) {
    qsort(r->span, r->n_span, sizeof *r->span, by_begin);
    uint64_t at = 0;
    for (size_t i = 0; i < r->n_span; i++) {
        const struct span *s = &r->span[i];
        if (s->begin != at)
            return HD_FAIL(CORRUPT,
                           "%s: tensor %s: expected its bytes to begin at %" PRIu64
                           ", found %" PRIu64 ": %s",
                           r->file, hd_show(hd_str_of(s->name)), at, s->begin,
                           s->begin < at ? "tensors overlap" : "a hole in the data");
        at = s->end;
    }
    if (at != r->n_data)
        return HD_FAIL(CORRUPT,
                       "%s: expected %" PRIu64 " bytes of data, found %" PRIu64
                       ": bytes that no tensor owns",
                       r->file, at, r->n_data);
    return HD_OK;
}

static hd_status read_header(struct reader *r, json_t *header, hd_keep_fn keep, void *user) {
    const char *key;
    size_t n_key;
    json_t *v;
    json_object_keylen_foreach(header, key, n_key, v) {
        hd_str name = {key, n_key};
        if (hd_str_eq_c(name, "__metadata__"))
            HD_TRY(check_metadata(r, v));
        else
            HD_TRY(read_tensor(r, name, v, !keep || keep(user, name)));
    }
    return check_spans(r);
}

hd_status hd_safetensors_parse(hd_checkpoint *c, hd_mapping image, const char *file,
                               hd_keep_fn keep, void *user) {
    uint64_t n;
    if (image.n_byte < sizeof n)
        return HD_FAIL(CORRUPT, "%s: expected a safetensors header, found %zu bytes in all", file,
                       image.n_byte);
    memcpy(&n, image.ptr, sizeof n);
    if (n > header_bytes_max)
        return HD_FAIL(CORRUPT,
                       "%s: header length: expected at most %d bytes, found %" PRIu64
                       " (is it a safetensors file?)",
                       file, header_bytes_max, n);
    if (n > image.n_byte - sizeof n)
        return HD_FAIL(CORRUPT, "%s: header: expected %" PRIu64 " bytes, found %zu", file, n,
                       image.n_byte - sizeof n);
    hd_str text = {(const char *)image.ptr + sizeof n, (size_t)n};
    if (n == 0 || text.ptr[0] != '{')
        return HD_FAIL(CORRUPT, "%s: header: expected a JSON object, found \"%s\"", file,
                       hd_show((hd_str){text.ptr, n < 8 ? (size_t)n : 8}));
    json_t *header;
    HD_TRY(hd_json_parse(text, file, &header));
    struct reader r = {.c = c,
                       .file = file,
                       .data = (const uint8_t *)text.ptr + n,
                       .n_data = image.n_byte - sizeof n - n};
    r.span = hd_alloc((json_object_size(header) + 1) * sizeof *r.span);
    hd_status s = read_header(&r, header, keep, user);
    hd_free(r.span);
    json_decref(header);
    return s;
}

/* ---- shards ---- */

struct shard {
    const char *name; /* of the index's text */
    const json_t *weight_map;
};

static bool is_in_shard(void *user, hd_str name) {
    const struct shard *s = user;
    const json_t *v = json_object_getn(s->weight_map, name.ptr, name.len);
    return v && strcmp(json_string_value(v), s->name) == 0;
}

static bool is_plain_name(const char *name) {
    for (; *name; name++)
        if (*name == '/' || (unsigned char)*name < 0x20 || *name == 0x7F) return false;
    return true;
}

/* A shard is a file of this folder: no path in its name, nothing that spoils a message. */
static hd_status check_index(const char *file, json_t *weight_map) {
    const char *key;
    json_t *v;
    if (!json_is_object(weight_map) || json_object_size(weight_map) == 0)
        return HD_FAIL(CORRUPT, "%s: weight_map: expected an object with tensors, found %s", file,
                       json_is_object(weight_map) ? "an empty one" : hd_json_found(weight_map));
    json_object_foreach(weight_map, key, v) {
        const char *name = json_string_value(v);
        if (!name || !*name || name[0] == '.' || strlen(name) > 255 || !is_plain_name(name))
            return HD_FAIL(CORRUPT,
                           "%s: tensor %s: expected the name of a file in this folder, found %s",
                           file, hd_show(hd_str_of(key)), hd_json_found(v));
    }
    return HD_OK;
}

static hd_status open_file(hd_checkpoint *c, const char *name, hd_keep_fn keep, void *user) {
    hd_mapping image;
    const char *kept;
    char *path = hd_path_join(c->path, name);
    hd_status s = hd_checkpoint_map(c, path, &image, &kept);
    hd_free(path);
    return s == HD_OK ? hd_safetensors_parse(c, image, kept, keep, user) : s;
}

/* Opens every shard named in the map, each once, in the order of first mention. */
static hd_status open_shards(hd_checkpoint *c, const char *file, json_t *weight_map) {
    hd_map *seen = hd_map_new(16);
    const char *key;
    json_t *v;
    hd_status s = HD_OK;
    json_object_foreach(weight_map, key, v) {
        struct shard shard = {json_string_value(v), weight_map};
        if (!hd_map_put(seen, hd_str_of(shard.name), 0)) continue;
        if (hd_map_count(seen) > shards_max)
            s = HD_FAIL(CORRUPT, "%s: expected at most %d shards, found more", file, shards_max);
        else
            s = open_file(c, shard.name, is_in_shard, &shard);
        if (s == HD_E_NOT_FOUND)
            s = hd_fail_context(s, "%s: shard of tensor %s", file, hd_show(hd_str_of(key)));
        if (s != HD_OK) break;
    }
    hd_map_free(seen);
    return s;
}

static hd_status open_index(hd_checkpoint *c, const char *file, json_t *index) {
    json_t *weight_map = json_object_get(index, "weight_map");
    const char *key;
    json_t *v;
    HD_TRY(check_index(file, weight_map));
    HD_TRY(open_shards(c, file, weight_map));
    json_object_foreach(weight_map, key, v) {
        if (!hd_checkpoint_find(c, key))
            return HD_FAIL(CORRUPT,
                           "%s: tensor %s: expected it in shard %s, found it missing there", file,
                           hd_show(hd_str_of(key)), hd_show(hd_str_of(json_string_value(v))));
    }
    return HD_OK;
}

hd_status hd_safetensors_open(hd_checkpoint *c) {
    char *text = NULL, *config = hd_path_join(c->path, "config.json");
    size_t n;
    hd_mapping probe;
    hd_status s = hd_mapping_open(config, &probe);
    hd_mapping_close(&probe);
    hd_free(config);
    if (s == HD_E_NOT_FOUND)
        return HD_FAIL(NOT_FOUND,
                       "%s: a folder without config.json: expected a Hugging Face model folder or "
                       "a .gguf file",
                       c->path);
    if (s != HD_OK) return s;
    char *file = hd_path_join(c->path, INDEX_NAME);
    s = hd_text_read(file, index_bytes_max, &text, &n);
    if (s == HD_E_NOT_FOUND) {
        s = open_file(c, SINGLE_NAME, NULL, NULL);
        if (s == HD_E_NOT_FOUND)
            s = HD_FAIL(NOT_FOUND, "%s: expected %s or %s in it, found neither", c->path,
                        SINGLE_NAME, INDEX_NAME);
    } else if (s == HD_OK) {
        json_t *index = NULL;
        s = hd_json_parse((hd_str){text, n}, file, &index);
        if (s == HD_OK) s = open_index(c, file, index);
        json_decref(index);
    }
    hd_free(text);
    hd_free(file);
    return s;
}
