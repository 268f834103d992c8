/* Opening a model: decides what a path is, keeps the mappings and the directory of tensors, and
 * hashes them. The formats themselves are in gguf.c and safetensors.c. */
#include "file/checkpoint_build.h"

#include "base/utf8.h"
#include "file/gguf.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include <xxhash.h>

enum { name_bytes_max = 255, small_file_bytes_max = 256 << 20, split_parts_max = 9999 };

hd_checkpoint *hd_checkpoint_new(const char *path) {
    hd_checkpoint *c = hd_alloc_zero(1, sizeof *c);
    c->path = hd_strdup(path);
    c->arena = hd_arena_new(16 << 10);
    c->by_name = hd_map_new(64);
    return c;
}

void hd_checkpoint_close(hd_checkpoint *c) {
    if (!c) return;
    hd_gguf_free(c->gguf);
    for (int i = 0; i < c->n_mapping; i++) hd_mapping_close(&c->mapping[i]);
    hd_free(c->mapping);
    hd_free(c->tensor);
    hd_map_free(c->by_name);
    hd_arena_free(c->arena);
    hd_free(c->path);
    hd_free(c);
}

hd_status hd_checkpoint_map(hd_checkpoint *c, const char *path, hd_mapping *out,
                            const char **name) {
    HD_TRY(hd_mapping_open(path, out));
    c->mapping = hd_realloc(c->mapping, (size_t)(c->n_mapping + 1) * sizeof *c->mapping);
    c->mapping[c->n_mapping++] = *out;
    *name = hd_arena_strndup(c->arena, path, strlen(path));
    return HD_OK;
}

/* Names are printed and used as C strings: no control characters, valid UTF-8. */
static bool is_clean(hd_str name) {
    uint32_t cp;
    for (size_t i = 0, n; i < name.len; i += n) {
        n = hd_utf8_decode(name.ptr + i, name.len - i, &cp);
        if (n == 0 || cp < 0x20 || (cp >= 0x7F && cp < 0xA0)) return false;
    }
    return true;
}

hd_status hd_checkpoint_add(hd_checkpoint *c, hd_str name, const hd_file_tensor *t) {
    if (name.len == 0 || name.len > name_bytes_max || !is_clean(name))
        return HD_FAIL(CORRUPT,
                       "%s: tensor name \"%s\": expected 1 to %d bytes of clean UTF-8, found %zu",
                       t->file, hd_show(name), name_bytes_max, name.len);
    if (c->n_tensor == c->room) {
        c->room = c->room ? c->room * 2 : 64;
        c->tensor = hd_realloc(c->tensor, c->room * sizeof *c->tensor);
    }
    char *copy = hd_arena_strndup(c->arena, name.ptr, name.len);
    if (!hd_map_put(c->by_name, (hd_str){copy, name.len}, c->n_tensor))
        return HD_FAIL(CORRUPT, "%s: tensor %s: expected each name once, found it twice", t->file,
                       hd_show(name));
    c->tensor[c->n_tensor] = *t;
    c->tensor[c->n_tensor++].name = copy;
    return HD_OK;
}

hd_file_type hd_file_type_of(enum hd_format f) {
    const hd_format_info *i = hd_format_get(f);
    return (hd_file_type){i->name, f, i->block_elems, i->block_bytes};
}

hd_status hd_tensor_set_type(hd_file_tensor *t, hd_str name, const hd_file_type *f) {
    uint64_t n = 1;
    bool is_zero = false;
    for (int d = 0; d < t->n_dim; d++) {
        if (t->ne[d] < 0)
            return HD_FAIL(CORRUPT, "%s: tensor %s: dimension %d: expected 0 or more, found %lld",
                           t->file, hd_show(name), d, (long long)t->ne[d]);
        is_zero |= t->ne[d] == 0;
    }
    for (int d = 0; d < t->n_dim && !is_zero; d++)
        if (__builtin_mul_overflow(n, (uint64_t)t->ne[d], &n) || n > INT64_MAX / 8)
            return HD_FAIL(CORRUPT,
                           "%s: tensor %s: expected fewer than 2^60 elements, found dimensions "
                           "whose product is larger",
                           t->file, hd_show(name));
    if (t->n_dim > 0 && t->ne[0] % f->block_elems != 0)
        return HD_FAIL(CORRUPT,
                       "%s: tensor %s: %s rows: expected a multiple of %d elements, found %lld",
                       t->file, hd_show(name), f->name, f->block_elems, (long long)t->ne[0]);
    if (t->n_dim == 0 && f->block_elems != 1)
        return HD_FAIL(CORRUPT, "%s: tensor %s: expected a plain format for a scalar, found %s",
                       t->file, hd_show(name), f->name);
    t->format = f->format;
    t->type = f->name;
    t->n_byte = is_zero ? 0 : n / (uint64_t)f->block_elems * (uint64_t)f->block_bytes;
    return HD_OK;
}

/* The name of part `no` (from 1) of `count`, given that of part `given`; HD_E_INVALID when that is
 * not named PREFIX-NNNNN-of-NNNNN.gguf. Heap. */
static hd_status part_name(const char *path, int given, int no, int count, char **out) {
    char tail[64];
    size_t n = strlen(path);
    snprintf(tail, sizeof tail, "-%05d-of-%05d.gguf", given, count);
    if (!hd_str_ends_c(hd_str_of(path), tail))
        return HD_FAIL(INVALID, "%s: part %d of %d: expected a name that ends in %s", path, given,
                       count, tail);
    *out = hd_strdup(path);
    snprintf(*out + n - strlen(tail), strlen(tail) + 1, "-%05d-of-%05d.gguf", no, count);
    return HD_OK;
}

static hd_status open_part(hd_checkpoint *c, const char *path, int64_t no, int64_t count) {
    hd_mapping m;
    const char *name;
    hd_gguf *g = NULL;
    HD_TRY(hd_checkpoint_map(c, path, &m, &name));
    HD_TRY(hd_gguf_parse(c, m.ptr, m.n_byte, name, &g));
    int64_t found_no = -1, found_count = -1;
    hd_status s = HD_OK;
    if (!hd_gguf_int(g, "split.no", &found_no) || !hd_gguf_int(g, "split.count", &found_count) ||
        found_no != no || found_count != count)
        s = HD_FAIL(CORRUPT, "%s: expected split.no %lld of %lld, found %lld of %lld", name,
                    (long long)no, (long long)count, (long long)found_no, (long long)found_count);
    hd_gguf_free(g); /* metadata is part 1's alone */
    return s;
}

/* split.count: 1 when the file is whole; llama.cpp's merging writes 0 then. */
static int64_t split_count(const hd_gguf *g) {
    int64_t count;
    return hd_gguf_int(g, "split.count", &count) && count != 0 ? count : 1;
}

/* split.count and split.no of the file itself; 1 and 0 when it is whole. */
static hd_status read_split(const hd_checkpoint *c, int64_t *count, int64_t *no) {
    *count = split_count(c->gguf);
    *no = 0;
    if (*count == 1) return HD_OK;
    if (*count < 1 || *count > split_parts_max)
        return HD_FAIL(CORRUPT, "%s: split.count: expected 1 to %d, found %lld", c->path,
                       split_parts_max, (long long)*count);
    if (!hd_gguf_int(c->gguf, "split.no", no) || *no < 0 || *no >= *count)
        return HD_FAIL(CORRUPT, "%s: split.no: expected 0 to %lld, found %lld", c->path,
                       (long long)*count - 1, (long long)*no);
    return HD_OK;
}

/* Opens parts 2 and on of a split file. */
static hd_status open_split(hd_checkpoint *c, int count) {
    int64_t n_tensor = 0;
    for (int i = 1; i < count; i++) {
        char *part = NULL;
        HD_TRY(part_name(c->path, 1, i + 1, count, &part));
        hd_status s = open_part(c, part, i, count);
        hd_free(part);
        if (s == HD_E_NOT_FOUND)
            s = hd_fail_context(s, "part %d of %d of %s", i + 1, count, c->path);
        if (s != HD_OK) return s;
    }
    if (hd_gguf_int(c->gguf, "split.tensors.count", &n_tensor) && n_tensor != (int64_t)c->n_tensor)
        return HD_FAIL(CORRUPT, "%s: expected %lld tensors (split.tensors.count), found %zu",
                       c->path, (long long)n_tensor, c->n_tensor);
    return HD_OK;
}

/* *first: the path of the first part, when c is another one and nothing is opened yet. */
static hd_status open_gguf(hd_checkpoint *c, char **first) {
    hd_mapping m;
    const char *name;
    int64_t count, no;
    HD_TRY(hd_checkpoint_map(c, c->path, &m, &name));
    HD_TRY(hd_gguf_parse(c, m.ptr, m.n_byte, name, &c->gguf));
    HD_TRY(read_split(c, &count, &no));
    if (no > 0) return part_name(c->path, (int)no + 1, 1, (int)count, first);
    return count > 1 ? open_split(c, (int)count) : HD_OK;
}

static hd_status open_any(const char *path, bool is_folder, char **first, hd_checkpoint **out) {
    hd_checkpoint *c = hd_checkpoint_new(path);
    c->is_folder = is_folder;
    hd_status s = is_folder ? hd_safetensors_open(c) : open_gguf(c, first);
    if (s != HD_OK || *first) {
        hd_checkpoint_close(c);
        c = NULL;
    }
    *out = c;
    return s;
}

hd_status hd_checkpoint_open(const char *path, hd_checkpoint **out) {
    char *first = NULL, *again = NULL;
    struct stat st;
    *out = NULL;
    if (stat(path, &st) != 0) {
        if (errno == ENOENT || errno == ENOTDIR)
            return HD_FAIL(NOT_FOUND, "%s: no such file or folder", path);
        return HD_FAIL(IO, "%s: cannot open: %s", path, strerror(errno));
    }
    hd_status s = open_any(path, S_ISDIR(st.st_mode), &first, out);
    if (s == HD_OK && first) {
        s = open_any(first, false, &again, out);
        if (s == HD_OK && again)
            s = HD_FAIL(CORRUPT, "%s: expected the first part (split.no 0), found another", first);
        else if (s == HD_E_NOT_FOUND)
            s = hd_fail_context(s, "the first part of %s", path);
    }
    hd_free(first);
    hd_free(again);
    return s;
}

hd_status hd_checkpoint_open_memory(const void *p, size_t n_byte, const char *name,
                                    hd_checkpoint **out) {
    *out = NULL;
    hd_checkpoint *c = hd_checkpoint_new(name);
    hd_status s = hd_gguf_parse(c, p, n_byte, c->path, &c->gguf);
    if (s == HD_OK && split_count(c->gguf) != 1)
        s = HD_FAIL(UNSUPPORTED, "%s: split.count: expected 1 in memory, found %lld", name,
                    (long long)split_count(c->gguf));
    if (s != HD_OK) {
        hd_checkpoint_close(c);
        return s;
    }
    *out = c;
    return HD_OK;
}

const char *hd_checkpoint_path(const hd_checkpoint *c) { return c->path; }
size_t hd_checkpoint_count(const hd_checkpoint *c) { return c->n_tensor; }
const hd_gguf *hd_checkpoint_gguf(const hd_checkpoint *c) { return c->gguf; }

const hd_file_tensor *hd_checkpoint_at(const hd_checkpoint *c, size_t ix) {
    HD_ASSERT(ix < c->n_tensor);
    return &c->tensor[ix];
}

const hd_file_tensor *hd_checkpoint_find(const hd_checkpoint *c, const char *name) {
    uint64_t ix;
    return hd_map_get(c->by_name, hd_str_of(name), &ix) ? &c->tensor[ix] : NULL;
}

void hd_shape_text(const hd_checkpoint *c, const int64_t ne[4], int n_dim, char out[96]) {
    size_t n = (size_t)snprintf(out, 96, "[");
    for (int d = 0; d < n_dim; d++)
        n += (size_t)snprintf(out + n, 96 - n, "%s%lld", d ? ", " : "",
                              (long long)ne[c->gguf ? d : n_dim - 1 - d]);
    snprintf(out + n, 96 - n, "]");
}

hd_status hd_checkpoint_file(const hd_checkpoint *c, const char *name, char **text,
                             size_t *n_byte) {
    *text = NULL;
    *n_byte = 0;
    HD_ASSERT(!strchr(name, '/'));
    if (!c->is_folder) return HD_FAIL(NOT_FOUND, "%s: a single file has no %s", c->path, name);
    char *path = hd_path_join(c->path, name);
    hd_status s = hd_text_read(path, small_file_bytes_max, text, n_byte);
    hd_free(path);
    return s;
}

static int by_name(const void *a, const void *b) {
    const hd_file_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* Of a tensor's description: everything but its bytes. */
static void hash_head(XXH3_state_t *h, const hd_file_tensor *t) {
    bool is_known = t->format < HD_FORMAT_COUNT;
    int64_t head[6] = {is_known ? hd_format_get(t->format)->gguf_id : INT64_MIN,
                       t->n_dim,
                       t->ne[0],
                       t->ne[1],
                       t->ne[2],
                       t->ne[3]};
    XXH3_128bits_update(h, t->name, strlen(t->name) + 1);
    if (!is_known) XXH3_128bits_update(h, t->type, strlen(t->type) + 1);
    XXH3_128bits_update(h, head, sizeof head);
}

void hd_checkpoint_hash(const hd_checkpoint *c, char out[33],
                        void (*on_progress)(void *user, uint64_t done, uint64_t all), void *user) {
    enum { piece_bytes = 64 << 20 };
    const hd_file_tensor **sorted = hd_alloc((c->n_tensor + 1) * sizeof(void *));
    uint64_t done = 0, all = 0;
    for (size_t i = 0; i < c->n_tensor; i++) {
        sorted[i] = &c->tensor[i];
        all += c->tensor[i].n_byte;
    }
    qsort(sorted, c->n_tensor, sizeof(void *), by_name);
    XXH3_state_t h;
    XXH3_128bits_reset(&h);
    for (size_t i = 0; i < c->n_tensor; i++) {
        const hd_file_tensor *t = sorted[i];
        hash_head(&h, t);
        for (uint64_t at = 0; at < t->n_byte; at += piece_bytes) {
            uint64_t n = t->n_byte - at < piece_bytes ? t->n_byte - at : piece_bytes;
            XXH3_128bits_update(&h, (const char *)t->data + at, (size_t)n);
            done += n;
            if (on_progress) on_progress(user, done, all);
        }
    }
    hd_free(sorted);
    XXH128_hash_t r = XXH3_128bits_digest(&h);
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)r.high64, (unsigned long long)r.low64);
}

void hd_checkpoint_identity(const hd_checkpoint *c, char out[33]) {
    enum { sample_bytes = 4096 };
    XXH3_state_t h;
    XXH3_128bits_reset(&h);
    for (size_t i = 0; i < c->n_tensor; i++) {
        const hd_file_tensor *t = &c->tensor[i];
        uint64_t n = t->n_byte < sample_bytes ? t->n_byte : sample_bytes;
        hash_head(&h, t);
        XXH3_128bits_update(&h, t->data, (size_t)n);
        XXH3_128bits_update(&h, (const char *)t->data + t->n_byte - n, (size_t)n);
    }
    for (int i = 0; i < c->n_mapping; i++) {
        struct stat st;
        if (fstat(c->mapping[i].fd, &st) != 0) continue;
        int64_t file[3] = {st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec};
        XXH3_128bits_update(&h, file, sizeof file);
    }
    XXH128_hash_t r = XXH3_128bits_digest(&h);
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)r.high64, (unsigned long long)r.low64);
}

bool hd_checkpoint_locate(const hd_checkpoint *c, const void *p, int *fd, uint64_t *at) {
    for (int i = 0; i < c->n_mapping; i++) {
        const hd_mapping *m = &c->mapping[i];
        uintptr_t from = (uintptr_t)m->ptr, here = (uintptr_t)p;
        if (here < from || here - from >= m->n_byte) continue;
        *fd = m->fd;
        *at = here - from;
        return true;
    }
    return false;
}

hd_status hd_checkpoint_expect_hash(const hd_checkpoint *c, const char *expected,
                                    const char *found) {
    if (strspn(expected, "0123456789abcdefABCDEF") != 32 || expected[32])
        return HD_FAIL(INVALID, "expected hash: expected 32 hex digits, found \"%s\"",
                       hd_show(hd_str_of(expected)));
    if (strcasecmp(expected, found) == 0) return HD_OK;
    return HD_FAIL(CORRUPT, "%s: content hash: expected %s, found %s", c->path, expected, found);
}
