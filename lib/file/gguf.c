/* GGUF reader: header, metadata and tensor table of an image in memory, versions 2 and 3.
 *
 * Nothing is believed: every count and length is checked against the bytes that remain before
 * anything of that size is touched, and lists grow with what was really read. Values stay where
 * they lie in the image; getters decode them on demand. */
#include "file/gguf.h"

#include "file/checkpoint_build.h"
#include "file/gguf_layout.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *names;
    unsigned size; /* 0: variable */
} types[HD_GGUF_TYPE_COUNT] = {
    [HD_GGUF_U8] = {"u8", "u8 numbers", 1},    [HD_GGUF_I8] = {"i8", "i8 numbers", 1},
    [HD_GGUF_U16] = {"u16", "u16 numbers", 2}, [HD_GGUF_I16] = {"i16", "i16 numbers", 2},
    [HD_GGUF_U32] = {"u32", "u32 numbers", 4}, [HD_GGUF_I32] = {"i32", "i32 numbers", 4},
    [HD_GGUF_F32] = {"f32", "f32 numbers", 4}, [HD_GGUF_BOOL] = {"bool", "booleans", 1},
    [HD_GGUF_STR] = {"string", "strings", 0},  [HD_GGUF_ARRAY] = {"array", "arrays", 0},
    [HD_GGUF_U64] = {"u64", "u64 numbers", 8}, [HD_GGUF_I64] = {"i64", "i64 numbers", 8},
    [HD_GGUF_F64] = {"f64", "f64 numbers", 8},
};

enum {
    key_bytes_max = 65535,
    kv_min_bytes = 8 + 4 + 1,             /* empty key, type, one byte of value */
    tensor_min_bytes = 8 + 1 + 4 + 4 + 8, /* name of one byte, no dimensions, type, offset */
    nesting_max = 4,
};

struct value {
    hd_str key;
    uint32_t type, elem; /* elem: of an array */
    uint64_t n;          /* elements of an array, bytes of a string */
    const uint8_t *data; /* first byte of the value, or of the first element */
    const uint8_t *raw;  /* the whole value as it lies in the file */
    size_t n_raw;
};

struct hd_gguf {
    uint32_t version;
    uint64_t align;
    struct value *value;
    size_t n_value, room;
    hd_map *by_key;
};

/* ---- reading with a bound ---- */

struct cursor {
    const uint8_t *p;
    size_t n, at;
    const char *file;
};

/* The next n bytes; NULL when the file ends before (the error text says of what). */
static const uint8_t *take(struct cursor *c, uint64_t n, const char *what, hd_str of) {
    if (n > c->n - c->at) {
        (void)HD_FAIL(CORRUPT,
                      "%s: %s%s%s at byte %zu: expected %" PRIu64 " bytes, found the file's end "
                      "after %zu",
                      c->file, what, of.len ? " " : "", hd_show(of), c->at, n, c->n - c->at);
        return NULL;
    }
    const uint8_t *p = c->p + c->at;
    c->at += (size_t)n;
    return p;
}

static hd_status take_u32(struct cursor *c, const char *what, hd_str of, uint32_t *out) {
    const uint8_t *p = take(c, sizeof *out, what, of);
    if (!p) return HD_E_CORRUPT;
    memcpy(out, p, sizeof *out);
    return HD_OK;
}

static hd_status take_u64(struct cursor *c, const char *what, hd_str of, uint64_t *out) {
    const uint8_t *p = take(c, sizeof *out, what, of);
    if (!p) return HD_E_CORRUPT;
    memcpy(out, p, sizeof *out);
    return HD_OK;
}

static hd_status take_str(struct cursor *c, const char *what, hd_str of, hd_str *out) {
    uint64_t n;
    HD_TRY(take_u64(c, what, of, &n));
    const uint8_t *p = take(c, n, what, of);
    if (!p) return HD_E_CORRUPT;
    *out = (hd_str){(const char *)p, (size_t)n};
    return HD_OK;
}

/* ---- metadata ---- */

static hd_status check_bools(const struct cursor *c, hd_str key, const uint8_t *p, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        if (p[i] > 1)
            return HD_FAIL(CORRUPT, "%s: key %s: expected a boolean 0 or 1, found %u", c->file,
                           hd_show(key), p[i]);
    return HD_OK;
}

static hd_status skip_array(struct cursor *c, hd_str key, int depth, struct value *v) {
    HD_TRY(take_u32(c, "element type of key", key, &v->elem));
    HD_TRY(take_u64(c, "element count of key", key, &v->n));
    if (v->elem >= HD_GGUF_TYPE_COUNT)
        return HD_FAIL(CORRUPT, "%s: key %s: expected an element type 0 to %d, found %u", c->file,
                       hd_show(key), HD_GGUF_TYPE_COUNT - 1, v->elem);
    uint64_t least = types[v->elem].size ? types[v->elem].size : 8;
    if (v->n > (c->n - c->at) / least)
        return HD_FAIL(CORRUPT,
                       "%s: key %s: %" PRIu64 " array elements: expected at most the %zu bytes "
                       "left in the file",
                       c->file, hd_show(key), v->n, c->n - c->at);
    if (types[v->elem].size) {
        const uint8_t *p = take(c, v->n * types[v->elem].size, "elements of key", key);
        if (!p) return HD_E_CORRUPT;
        return v->elem == HD_GGUF_BOOL ? check_bools(c, key, p, v->n) : HD_OK;
    }
    if (v->elem == HD_GGUF_ARRAY && depth >= nesting_max)
        return HD_FAIL(CORRUPT, "%s: key %s: expected arrays at most %d deep, found deeper",
                       c->file, hd_show(key), nesting_max);
    for (uint64_t i = 0; i < v->n; i++) {
        hd_str s;
        struct value inner;
        if (v->elem == HD_GGUF_STR)
            HD_TRY(take_str(c, "element of key", key, &s));
        else
            HD_TRY(skip_array(c, key, depth + 1, &inner));
    }
    return HD_OK;
}

static hd_status take_value(struct cursor *c, struct value *v) {
    HD_TRY(take_u32(c, "type of key", v->key, &v->type));
    if (v->type >= HD_GGUF_TYPE_COUNT)
        return HD_FAIL(CORRUPT, "%s: key %s: expected a value type 0 to %d, found %u", c->file,
                       hd_show(v->key), HD_GGUF_TYPE_COUNT - 1, v->type);
    size_t from = c->at;
    if (v->type == HD_GGUF_STR) {
        hd_str s;
        HD_TRY(take_str(c, "value of key", v->key, &s));
        v->data = (const uint8_t *)s.ptr;
        v->n = s.len;
    } else if (v->type == HD_GGUF_ARRAY) {
        HD_TRY(skip_array(c, v->key, 1, v));
        v->data = c->p + from + 12;
    } else {
        v->data = take(c, types[v->type].size, "value of key", v->key);
        if (!v->data) return HD_E_CORRUPT;
        if (v->type == HD_GGUF_BOOL) HD_TRY(check_bools(c, v->key, v->data, 1));
    }
    v->raw = c->p + from;
    v->n_raw = c->at - from;
    return HD_OK;
}

static hd_status take_key(struct cursor *c, hd_gguf *g) {
    struct value v = {0};
    HD_TRY(take_str(c, "metadata key", (hd_str){0}, &v.key));
    if (v.key.len == 0 || v.key.len > key_bytes_max || memchr(v.key.ptr, 0, v.key.len))
        return HD_FAIL(CORRUPT, "%s: metadata key \"%s\": expected 1 to %d bytes, found %zu%s",
                       c->file, hd_show(v.key), key_bytes_max, v.key.len,
                       v.key.len <= key_bytes_max && v.key.len ? " with a zero byte" : "");
    HD_TRY(take_value(c, &v));
    if (!hd_map_put(g->by_key, v.key, g->n_value))
        return HD_FAIL(CORRUPT, "%s: key %s: expected each key once, found it twice", c->file,
                       hd_show(v.key));
    if (g->n_value == g->room) {
        g->room = g->room ? g->room * 2 : 64;
        g->value = hd_realloc(g->value, g->room * sizeof *g->value);
    }
    g->value[g->n_value++] = v;
    return HD_OK;
}

static hd_status read_align(hd_gguf *g, const char *file) {
    uint64_t ix;
    int64_t v = HD_GGUF_ALIGN;
    if (hd_map_get(g->by_key, hd_str_of("general.alignment"), &ix) &&
        !hd_gguf_int(g, "general.alignment", &v))
        return HD_FAIL(CORRUPT, "%s: general.alignment: expected an integer, found %s", file,
                       types[g->value[ix].type].name);
    if (v < 8 || v > 1 << 30 || (v & (v - 1)) != 0)
        return HD_FAIL(CORRUPT,
                       "%s: general.alignment: expected a power of two that is a multiple of 8, "
                       "found %" PRId64,
                       file, v);
    g->align = (uint64_t)v;
    return HD_OK;
}

/* ---- the tensor table ---- */

/* Types of GGUF that formats.def does not have, by their number. */
static const hd_file_type other_types[] = {
    [9] = {"Q8_1", HD_FORMAT_COUNT, 32, 36},     [15] = {"Q8_K", HD_FORMAT_COUNT, 256, 292},
    [17] = {"IQ2_XS", HD_FORMAT_COUNT, 256, 74}, [18] = {"IQ3_XXS", HD_FORMAT_COUNT, 256, 98},
    [19] = {"IQ1_S", HD_FORMAT_COUNT, 256, 50},  [21] = {"IQ3_S", HD_FORMAT_COUNT, 256, 110},
    [22] = {"IQ2_S", HD_FORMAT_COUNT, 256, 82},  [24] = {"I8", HD_FORMAT_COUNT, 1, 1},
    [25] = {"I16", HD_FORMAT_COUNT, 1, 2},       [26] = {"I32", HD_FORMAT_COUNT, 1, 4},
    [27] = {"I64", HD_FORMAT_COUNT, 1, 8},       [28] = {"F64", HD_FORMAT_COUNT, 1, 8},
    [29] = {"IQ1_M", HD_FORMAT_COUNT, 256, 56},  [34] = {"TQ1_0", HD_FORMAT_COUNT, 256, 54},
    [35] = {"TQ2_0", HD_FORMAT_COUNT, 256, 66},  [40] = {"NVFP4", HD_FORMAT_COUNT, 64, 36},
    [41] = {"Q1_0", HD_FORMAT_COUNT, 128, 18},   [42] = {"Q2_0", HD_FORMAT_COUNT, 64, 18},
};

static hd_status take_type(struct cursor *c, hd_str name, hd_file_type *out) {
    uint32_t id;
    enum hd_format f;
    HD_TRY(take_u32(c, "type of tensor", name, &id));
    if (id < HD_COUNT_OF(other_types) && other_types[id].name) {
        *out = other_types[id];
        return HD_OK;
    }
    if (hd_format_by_gguf_id(id, &f) != HD_OK)
        return hd_fail_context(HD_E_CORRUPT, "%s: tensor %s: no such type", c->file, hd_show(name));
    *out = hd_file_type_of(f);
    return HD_OK;
}

static hd_status take_tensor(struct cursor *c, hd_checkpoint *ck, uint64_t align,
                             uint64_t *offset) {
    hd_str name;
    uint32_t n_dim;
    hd_file_tensor t = {.file = c->file, .ne = {1, 1, 1, 1}};
    HD_TRY(take_str(c, "tensor name", (hd_str){0}, &name));
    if (name.len == 0 || name.len > HD_GGUF_NAME_BYTES_MAX)
        return HD_FAIL(CORRUPT, "%s: tensor name \"%s\": expected 1 to %d bytes, found %zu",
                       c->file, hd_show(name), HD_GGUF_NAME_BYTES_MAX, name.len);
    HD_TRY(take_u32(c, "dimension count of tensor", name, &n_dim));
    if (n_dim > 4)
        return HD_FAIL(CORRUPT, "%s: tensor %s: expected at most 4 dimensions, found %u", c->file,
                       hd_show(name), n_dim);
    t.n_dim = (int)n_dim;
    for (uint32_t d = 0; d < n_dim; d++) {
        uint64_t v;
        HD_TRY(take_u64(c, "dimensions of tensor", name, &v));
        if (v > INT64_MAX)
            return HD_FAIL(CORRUPT,
                           "%s: tensor %s: dimension %u: expected less than 2^63, found %" PRIu64,
                           c->file, hd_show(name), d, v);
        t.ne[d] = (int64_t)v;
    }
    hd_file_type type;
    HD_TRY(take_type(c, name, &type));
    HD_TRY(take_u64(c, "offset of tensor", name, offset));
    if (*offset % align != 0)
        return HD_FAIL(CORRUPT,
                       "%s: tensor %s: offset: expected a multiple of %" PRIu64 ", found %" PRIu64,
                       c->file, hd_show(name), align, *offset);
    HD_TRY(hd_tensor_set_type(&t, name, &type));
    return hd_checkpoint_add(ck, name, &t);
}

static int by_data(const void *a, const void *b) {
    const hd_file_tensor *const *x = a, *const *y = b;
    return ((*x)->data > (*y)->data) - ((*x)->data < (*y)->data);
}

static hd_status check_overlap(const hd_file_tensor *t, size_t n) {
    const hd_file_tensor **sorted = hd_alloc((n + 1) * sizeof(void *)), *last = NULL;
    size_t n_sorted = 0;
    for (size_t i = 0; i < n; i++)
        if (t[i].n_byte) sorted[n_sorted++] = &t[i];
    qsort(sorted, n_sorted, sizeof(void *), by_data);
    hd_status s = HD_OK;
    for (size_t i = 0; i < n_sorted && s == HD_OK; i++) {
        if (last && (const char *)last->data + last->n_byte > (const char *)sorted[i]->data)
            s = HD_FAIL(CORRUPT,
                        "%s: tensor %s: expected bytes of its own, found them overlap "
                        "those of tensor %s",
                        t->file, sorted[i]->name, last->name);
        last = sorted[i];
    }
    hd_free(sorted);
    return s;
}

/* Reads the table and points every tensor at its bytes. */
static hd_status take_tensors(struct cursor *c, hd_checkpoint *ck, uint64_t n_tensor,
                              uint64_t align) {
    size_t first = ck->n_tensor, room = 0;
    uint64_t *offset = NULL;
    hd_status s = HD_OK;
    for (size_t i = 0; i < n_tensor && s == HD_OK; i++) {
        if (i == room) {
            room = room ? room * 2 : 64;
            offset = hd_realloc(offset, room * sizeof *offset);
        }
        s = take_tensor(c, ck, align, &offset[i]);
    }
    size_t start = c->at + (size_t)((align - c->at % align) % align);
    size_t n_data = start < c->n ? c->n - start : 0;
    for (size_t i = 0; i < n_tensor && s == HD_OK; i++) {
        hd_file_tensor *t = &ck->tensor[first + i];
        if (t->n_byte > n_data || offset[i] > n_data - t->n_byte)
            s = HD_FAIL(CORRUPT,
                        "%s: tensor %s: expected %" PRIu64 " bytes at offset %" PRIu64
                        ", found a data section of %zu bytes (is the file cut short?)",
                        c->file, t->name, t->n_byte, offset[i], n_data);
        else
            t->data = c->p + (t->n_byte ? start + (size_t)offset[i] : 0);
    }
    hd_free(offset);
    if (s != HD_OK) return s;
    return ck->n_tensor > first ? check_overlap(&ck->tensor[first], ck->n_tensor - first) : HD_OK;
}

static hd_status take_version(struct cursor *c, uint32_t *version) {
    static const hd_str none;
    if (c->n < 4 || memcmp(c->p, "GGUF", 4) != 0) {
        hd_str found = {(const char *)c->p, c->n < 4 ? c->n : 4};
        return HD_FAIL(CORRUPT, "%s: expected a GGUF file (magic \"GGUF\"), found \"%s\"%s",
                       c->file, hd_show(found),
                       strstr(c->file, ".safetensors") ? ": give the folder of a safetensors model"
                                                       : "");
    }
    c->at = 4;
    HD_TRY(take_u32(c, "version", none, version));
    if (*version == 2 || *version == 3) return HD_OK;
    if (__builtin_bswap32(*version) <= 3)
        return HD_FAIL(UNSUPPORTED, "%s: GGUF byte order: expected little-endian, found big-endian",
                       c->file);
    return HD_FAIL(UNSUPPORTED, "%s: GGUF version: expected 2 or 3, found %u", c->file, *version);
}

static hd_status parse(struct cursor *c, hd_checkpoint *ck, hd_gguf *g) {
    static const hd_str none;
    uint64_t n_tensor, n_kv;
    HD_TRY(take_version(c, &g->version));
    HD_TRY(take_u64(c, "tensor count", none, &n_tensor));
    HD_TRY(take_u64(c, "key count", none, &n_kv));
    if (n_kv > (c->n - c->at) / kv_min_bytes)
        return HD_FAIL(CORRUPT,
                       "%s: key count: expected at most what %zu bytes can hold, found %" PRIu64,
                       c->file, c->n - c->at, n_kv);
    for (uint64_t i = 0; i < n_kv; i++) HD_TRY(take_key(c, g));
    HD_TRY(read_align(g, c->file));
    if (n_tensor > (c->n - c->at) / tensor_min_bytes)
        return HD_FAIL(CORRUPT,
                       "%s: tensor count: expected at most what %zu bytes can hold, found %" PRIu64,
                       c->file, c->n - c->at, n_tensor);
    return take_tensors(c, ck, n_tensor, g->align);
}

hd_status hd_gguf_parse(hd_checkpoint *ck, const void *image, size_t n_byte, const char *file,
                        hd_gguf **out) {
    struct cursor c = {.p = image, .n = n_byte, .file = file};
    hd_gguf *g = hd_alloc_zero(1, sizeof *g);
    g->by_key = hd_map_new(64);
    hd_status s = parse(&c, ck, g);
    if (s != HD_OK) {
        hd_gguf_free(g);
        g = NULL;
    }
    *out = g;
    return s;
}

void hd_gguf_free(hd_gguf *g) {
    if (!g) return;
    hd_map_free(g->by_key);
    hd_free(g->value);
    hd_free(g);
}

/* ---- getters ---- */

uint32_t hd_gguf_version(const hd_gguf *g) { return g->version; }
size_t hd_gguf_key_count(const hd_gguf *g) { return g->n_value; }

hd_str hd_gguf_key_at(const hd_gguf *g, size_t ix) {
    HD_ASSERT(ix < g->n_value);
    return g->value[ix].key;
}

static const struct value *find(const hd_gguf *g, const char *key) {
    uint64_t ix;
    return hd_map_get(g->by_key, hd_str_of(key), &ix) ? &g->value[ix] : NULL;
}

/* An integer of any width; false for other types and for what int64 cannot hold. */
static bool int_of(uint32_t type, const uint8_t *p, int64_t *out) {
#define CASE(t, ctype)                                                                             \
    case t: {                                                                                      \
        ctype v;                                                                                   \
        memcpy(&v, p, sizeof v);                                                                   \
        *out = (int64_t)v;                                                                         \
        return true;                                                                               \
    }
    switch (type) {
        CASE(HD_GGUF_U8, uint8_t)
        CASE(HD_GGUF_I8, int8_t)
        CASE(HD_GGUF_U16, uint16_t)
        CASE(HD_GGUF_I16, int16_t)
        CASE(HD_GGUF_U32, uint32_t)
        CASE(HD_GGUF_I32, int32_t)
        CASE(HD_GGUF_I64, int64_t)
    case HD_GGUF_U64: {
        uint64_t v;
        memcpy(&v, p, sizeof v);
        if (v > INT64_MAX) return false;
        *out = (int64_t)v;
        return true;
    }
    default: return false;
    }
#undef CASE
}

static bool num_of(uint32_t type, const uint8_t *p, double *out) {
    int64_t i;
    float f;
    switch (type) {
    case HD_GGUF_F32:
        memcpy(&f, p, sizeof f);
        *out = (double)f;
        return true;
    case HD_GGUF_F64: memcpy(out, p, sizeof *out); return true;
    default:
        if (!int_of(type, p, &i)) return false;
        *out = (double)i;
        return true;
    }
}

bool hd_gguf_int(const hd_gguf *g, const char *key, int64_t *out) {
    const struct value *v = find(g, key);
    return v && int_of(v->type, v->data, out);
}

bool hd_gguf_num(const hd_gguf *g, const char *key, double *out) {
    const struct value *v = find(g, key);
    return v && num_of(v->type, v->data, out);
}

bool hd_gguf_bool(const hd_gguf *g, const char *key, bool *out) {
    const struct value *v = find(g, key);
    if (!v || v->type != HD_GGUF_BOOL) return false;
    *out = v->data[0] != 0;
    return true;
}

bool hd_gguf_str(const hd_gguf *g, const char *key, hd_str *out) {
    const struct value *v = find(g, key);
    if (!v || v->type != HD_GGUF_STR) return false;
    *out = (hd_str){(const char *)v->data, (size_t)v->n};
    return true;
}

bool hd_gguf_array(const hd_gguf *g, const char *key, size_t *n) {
    const struct value *v = find(g, key);
    if (!v || v->type != HD_GGUF_ARRAY) return false;
    *n = (size_t)v->n;
    return true;
}

static const uint8_t *element(const hd_gguf *g, const char *key, size_t ix, uint32_t *type) {
    const struct value *v = find(g, key);
    if (!v || v->type != HD_GGUF_ARRAY || ix >= v->n || !types[v->elem].size) return NULL;
    *type = v->elem;
    return v->data + ix * types[v->elem].size;
}

bool hd_gguf_array_int(const hd_gguf *g, const char *key, size_t ix, int64_t *out) {
    uint32_t type;
    const uint8_t *p = element(g, key, ix, &type);
    return p && int_of(type, p, out);
}

bool hd_gguf_array_num(const hd_gguf *g, const char *key, size_t ix, double *out) {
    uint32_t type;
    const uint8_t *p = element(g, key, ix, &type);
    return p && num_of(type, p, out);
}

bool hd_gguf_array_strs(const hd_gguf *g, const char *key, hd_str **out, size_t *n) {
    const struct value *v = find(g, key);
    if (!v || v->type != HD_GGUF_ARRAY || v->elem != HD_GGUF_STR) return false;
    *n = (size_t)v->n;
    *out = hd_alloc((*n + 1) * sizeof **out);
    const uint8_t *p = v->data;
    for (size_t i = 0; i < *n; i++) {
        uint64_t len;
        memcpy(&len, p, sizeof len);
        (*out)[i] = (hd_str){(const char *)p + 8, (size_t)len};
        p += 8 + len;
    }
    return true;
}

/* The shortest text that reads back as the same number. */
static void num_text(uint32_t type, const uint8_t *p, hd_buf *b) {
    double d = 0;
    char text[32];
    num_of(type, p, &d);
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, d);
        if (type == HD_GGUF_F32 ? strtof(text, NULL) == (float)d : strtod(text, NULL) == d) break;
    }
    hd_buf_add_c(b, text);
}

static void scalar_text(uint32_t type, const uint8_t *p, hd_buf *b) {
    int64_t i;
    uint64_t u;
    if (type == HD_GGUF_BOOL)
        hd_buf_add_c(b, *p ? "true" : "false");
    else if (type == HD_GGUF_F32 || type == HD_GGUF_F64)
        num_text(type, p, b);
    else if (int_of(type, p, &i))
        hd_buf_addf(b, "%" PRId64, i);
    else {
        memcpy(&u, p, sizeof u);
        hd_buf_addf(b, "%" PRIu64, u);
    }
}

void hd_gguf_value_text(const hd_gguf *g, size_t ix, hd_buf *b) {
    enum { shown_max = 8 };
    HD_ASSERT(ix < g->n_value);
    const struct value *v = &g->value[ix];
    if (v->type == HD_GGUF_STR) {
        hd_buf_addf(b, "\"%s\"", hd_show((hd_str){(const char *)v->data, (size_t)v->n}));
    } else if (v->type != HD_GGUF_ARRAY) {
        scalar_text(v->type, v->data, b);
    } else if (types[v->elem].size && v->n <= shown_max) {
        hd_buf_add_c(b, "[");
        for (size_t i = 0; i < v->n; i++) {
            if (i) hd_buf_add_c(b, ", ");
            scalar_text(v->elem, v->data + i * types[v->elem].size, b);
        }
        hd_buf_add_c(b, "]");
    } else {
        hd_buf_addf(b, "[%" PRIu64 " %s]", v->n, types[v->elem].names);
    }
}

void hd_gguf_raw(const hd_gguf *g, size_t ix, uint32_t *type, hd_str *bytes) {
    HD_ASSERT(ix < g->n_value);
    *type = g->value[ix].type;
    *bytes = (hd_str){(const char *)g->value[ix].raw, g->value[ix].n_raw};
}
