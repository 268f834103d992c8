/* Any bytes as a GGUF file: opened or refused; of an opened one every key, tensor, hyper-parameter,
 * canonical matrix and the hash can be read. */
#include "base/mem.h"
#include "file/gguf.h"
#include "model/model.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile unsigned sink;

/* Reads every byte, so that a sanitizer sees one that is not there. */
static void touch(const void *p, uint64_t n) {
    unsigned sum = 0;
    for (uint64_t i = 0; i < n; i++) sum += ((const unsigned char *)p)[i];
    sink += sum;
}

static void read_key(const hd_gguf *g, size_t ix) {
    int64_t v;
    double d;
    bool b;
    hd_str s, *list;
    size_t n;
    uint32_t type;
    hd_buf text;
    hd_str found = hd_gguf_key_at(g, ix);
    char *key = hd_strndup(found.ptr, found.len);
    hd_buf_init(&text, 1 << 16);
    hd_gguf_value_text(g, ix, &text);
    hd_buf_fini(&text);
    hd_gguf_raw(g, ix, &type, &s);
    touch(s.ptr, s.len);
    hd_gguf_num(g, key, &d);
    hd_gguf_bool(g, key, &b);
    if (hd_gguf_str(g, key, &s)) touch(s.ptr, s.len);
    if (hd_gguf_int(g, key, &v)) HD_ASSERT(hd_gguf_num(g, key, &d));
    if (hd_gguf_array(g, key, &n)) {
        HD_ASSERT(!hd_gguf_array_int(g, key, n, &v));
        if (n > 0) hd_gguf_array_num(g, key, n - 1, &d);
    }
    if (hd_gguf_array_strs(g, key, &list, &n)) {
        for (size_t i = 0; i < n; i++) touch(list[i].ptr, list[i].len);
        hd_free(list);
    }
    hd_free(key);
}

static void read_model(const hd_checkpoint *c) {
    hd_hparams hp;
    hd_canon *k;
    if (hd_hparams_read(c, &hp) != HD_OK || hd_canon_new(c, &hp, &k) != HD_OK) {
        HD_ASSERT(hd_error_text()[0] && !strchr(hd_error_text(), '\n'));
        return;
    }
    for (size_t i = 0; i < hd_canon_count(k); i++) {
        const hd_canon_tensor *t = hd_canon_at(k, i);
        size_t n_byte = hd_format_bytes(t->format, (size_t)(t->ne[0] * t->ne[1]));
        void *scratch = hd_alloc(n_byte);
        HD_ASSERT(hd_canon_find(k, t->name) == t);
        for (int m = 0; m < (int)t->ne[2]; m++) touch(hd_canon_matrix(k, t, m, scratch), n_byte);
        hd_free(scratch);
    }
    hd_canon_free(k);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hd_checkpoint *c;
    char hash[33];
    if (hd_checkpoint_open_memory(data, size, "input", &c) != HD_OK) {
        HD_ASSERT(!c && hd_error_text()[0] && !strchr(hd_error_text(), '\n'));
        return 0;
    }
    const hd_gguf *g = hd_checkpoint_gguf(c);
    for (size_t i = 0; i < hd_gguf_key_count(g); i++) read_key(g, i);
    for (size_t i = 0; i < hd_checkpoint_count(c); i++) {
        const hd_file_tensor *t = hd_checkpoint_at(c, i);
        HD_ASSERT(hd_checkpoint_find(c, t->name) == t);
        touch(t->data, t->n_byte);
    }
    hd_checkpoint_hash(c, hash, NULL, NULL);
    read_model(c);
    hd_checkpoint_close(c);
    return 0;
}
