/* GGUF v3 writer. Metadata and the tensor table are collected in memory, the data is streamed to a
 * temporary file beside the target, which is renamed over it only when everything is on disk. */
#include "file/gguf.h"

#include "base/map.h"
#include "base/mem.h"
#include "base/new_file.h"
#include "file/gguf_layout.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { buffer_bytes = 1 << 20 };

struct hd_gguf_writer {
    hd_new_file target;
    FILE *file; /* to it, with a descriptor of its own */
    char *buffer;
    hd_buf kv, table;
    uint64_t n_kv, n_tensor, offset; /* offset: of the next tensor declared */
    uint64_t *tensor_bytes;          /* [n_tensor] */
    size_t room;
    hd_arena *arena; /* names, for the check that each is set once */
    hd_map *names;
    bool has_begun;
    uint64_t current, written; /* the tensor whose turn it is, and its bytes so far */
};

hd_status hd_gguf_create(const char *path, hd_gguf_writer **out) {
    *out = NULL;
    hd_new_file target;
    HD_TRY(hd_new_file_create(path, false, &target));
    int fd = dup(target.fd);
    FILE *file = fd >= 0 ? fdopen(fd, "wb") : NULL;
    if (!file) {
        hd_status s = HD_FAIL(IO, "%s: cannot write there: %s", path, strerror(errno));
        if (fd >= 0) close(fd);
        hd_new_file_abandon(&target);
        return s;
    }
    hd_gguf_writer *w = hd_alloc_zero(1, sizeof *w);
    w->target = target;
    w->file = file;
    w->buffer = hd_alloc(buffer_bytes);
    setvbuf(file, w->buffer, _IOFBF, buffer_bytes);
    hd_buf_init(&w->kv, SIZE_MAX);
    hd_buf_init(&w->table, SIZE_MAX);
    w->arena = hd_arena_new(16 << 10);
    w->names = hd_map_new(256);
    *out = w;
    return HD_OK;
}

const char *hd_gguf_temporary(const hd_gguf_writer *w) { return w->target.temporary; }

static void put_u32(hd_buf *b, uint32_t v) { hd_buf_add(b, &v, sizeof v); }
static void put_u64(hd_buf *b, uint64_t v) { hd_buf_add(b, &v, sizeof v); }

static void put_str(hd_buf *b, hd_str s) {
    put_u64(b, s.len);
    hd_buf_add(b, s.ptr, s.len);
}

/* Asserts that a key ('k') or tensor ('t') of this name was not set before. */
static void claim(hd_gguf_writer *w, char kind, hd_str name) {
    char *copy = hd_arena_alloc(w->arena, name.len + 1);
    copy[0] = kind;
    memcpy(copy + 1, name.ptr, name.len);
    HD_ASSERT(!w->has_begun);
    bool is_new = hd_map_put(w->names, (hd_str){copy, name.len + 1}, 0);
    HD_ASSERT(is_new);
}

static void put_key(hd_gguf_writer *w, hd_str key, uint32_t type) {
    claim(w, 'k', key);
    put_str(&w->kv, key);
    put_u32(&w->kv, type);
    w->n_kv++;
}

void hd_gguf_set_u32(hd_gguf_writer *w, const char *key, uint32_t v) {
    put_key(w, hd_str_of(key), HD_GGUF_U32);
    put_u32(&w->kv, v);
}

void hd_gguf_set_i32(hd_gguf_writer *w, const char *key, int32_t v) {
    put_key(w, hd_str_of(key), HD_GGUF_I32);
    hd_buf_add(&w->kv, &v, sizeof v);
}

void hd_gguf_set_f32(hd_gguf_writer *w, const char *key, float v) {
    put_key(w, hd_str_of(key), HD_GGUF_F32);
    hd_buf_add(&w->kv, &v, sizeof v);
}

void hd_gguf_set_bool(hd_gguf_writer *w, const char *key, bool v) {
    uint8_t byte = v;
    put_key(w, hd_str_of(key), HD_GGUF_BOOL);
    hd_buf_add(&w->kv, &byte, 1);
}

void hd_gguf_set_str(hd_gguf_writer *w, const char *key, hd_str v) {
    put_key(w, hd_str_of(key), HD_GGUF_STR);
    put_str(&w->kv, v);
}

void hd_gguf_set_strs(hd_gguf_writer *w, const char *key, const hd_str *v, size_t n) {
    put_key(w, hd_str_of(key), HD_GGUF_ARRAY);
    put_u32(&w->kv, HD_GGUF_STR);
    put_u64(&w->kv, n);
    for (size_t i = 0; i < n; i++) put_str(&w->kv, v[i]);
}

void hd_gguf_set_i32s(hd_gguf_writer *w, const char *key, const int32_t *v, size_t n) {
    put_key(w, hd_str_of(key), HD_GGUF_ARRAY);
    put_u32(&w->kv, HD_GGUF_I32);
    put_u64(&w->kv, n);
    hd_buf_add(&w->kv, v, n * sizeof *v);
}

void hd_gguf_set_raw(hd_gguf_writer *w, hd_str key, uint32_t type, hd_str bytes) {
    put_key(w, key, type);
    hd_buf_add(&w->kv, bytes.ptr, bytes.len);
}

static size_t aligned(uint64_t n) { return hd_align_up((size_t)n, HD_GGUF_ALIGN); }

void hd_gguf_declare(hd_gguf_writer *w, const char *name, enum hd_format f, int n_dim,
                     const int64_t *ne) {
    HD_ASSERT(hd_format_is_gguf(f) && n_dim >= 0 && n_dim <= 4 &&
              strlen(name) <= HD_GGUF_NAME_BYTES_MAX);
    uint64_t n = 1;
    claim(w, 't', hd_str_of(name));
    put_str(&w->table, hd_str_of(name));
    put_u32(&w->table, (uint32_t)n_dim);
    for (int d = 0; d < n_dim; d++) {
        n *= (uint64_t)ne[d];
        put_u64(&w->table, (uint64_t)ne[d]);
    }
    put_u32(&w->table, (uint32_t)hd_format_get(f)->gguf_id);
    put_u64(&w->table, w->offset);
    if (w->n_tensor == w->room) {
        w->room = w->room ? w->room * 2 : 64;
        w->tensor_bytes = hd_realloc(w->tensor_bytes, w->room * sizeof *w->tensor_bytes);
    }
    w->tensor_bytes[w->n_tensor++] = hd_format_bytes(f, (size_t)n);
    w->offset += aligned(hd_format_bytes(f, (size_t)n));
}

static hd_status put(hd_gguf_writer *w, const void *p, size_t n) {
    if (n && fwrite(p, 1, n, w->file) != n)
        return HD_FAIL(IO, "%s: cannot write: %s", w->target.path, strerror(errno));
    return HD_OK;
}

static hd_status pad(hd_gguf_writer *w, uint64_t n) {
    static const char zeros[HD_GGUF_ALIGN];
    return put(w, zeros, aligned(n) - (size_t)n);
}

/* Moves past finished tensors, padding each. */
static hd_status advance(hd_gguf_writer *w) {
    while (w->current < w->n_tensor && w->written == w->tensor_bytes[w->current]) {
        HD_TRY(pad(w, w->written));
        w->written = 0;
        w->current++;
    }
    return HD_OK;
}

hd_status hd_gguf_begin(hd_gguf_writer *w) {
    HD_ASSERT(!w->has_begun);
    w->has_begun = true;
    uint32_t version = 3;
    HD_TRY(put(w, "GGUF", 4));
    HD_TRY(put(w, &version, sizeof version));
    HD_TRY(put(w, &w->n_tensor, sizeof w->n_tensor));
    HD_TRY(put(w, &w->n_kv, sizeof w->n_kv));
    HD_TRY(put(w, w->kv.ptr, w->kv.len));
    HD_TRY(put(w, w->table.ptr, w->table.len));
    HD_TRY(pad(w, 24 + w->kv.len + w->table.len));
    return advance(w);
}

hd_status hd_gguf_data(hd_gguf_writer *w, const void *p, size_t n_byte) {
    HD_ASSERT(w->has_begun && w->current < w->n_tensor);
    HD_ASSERT(n_byte <= w->tensor_bytes[w->current] - w->written);
    HD_TRY(put(w, p, n_byte));
    w->written += n_byte;
    return advance(w);
}

static hd_status close_and_rename(hd_gguf_writer *w) {
    if (!w->has_begun || w->current < w->n_tensor)
        return HD_FAIL(INTERNAL, "%s: expected the data of %llu tensors, found %llu",
                       w->target.path, (unsigned long long)w->n_tensor,
                       (unsigned long long)w->current);
    bool is_written = fclose(w->file) == 0;
    w->file = NULL;
    if (!is_written) return HD_FAIL(IO, "%s: cannot write: %s", w->target.path, strerror(errno));
    return hd_new_file_finish(&w->target);
}

hd_status hd_gguf_finish(hd_gguf_writer *w) {
    hd_status s = close_and_rename(w);
    hd_gguf_abandon(w);
    return s;
}

void hd_gguf_abandon(hd_gguf_writer *w) {
    if (!w) return;
    if (w->file) fclose(w->file);
    hd_new_file_abandon(&w->target);
    hd_free(w->buffer);
    hd_free(w->tensor_bytes);
    hd_buf_fini(&w->kv);
    hd_buf_fini(&w->table);
    hd_map_free(w->names);
    hd_arena_free(w->arena);
    hd_free(w);
}
