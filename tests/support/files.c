/* Temporary files and image builders. */
#include "support/files.h"

#include "support/check.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char *test_temp_dir(void) {
    const char *root = getenv("TMPDIR");
    char path[4096];
    snprintf(path, sizeof path, "%s/hadal-test-XXXXXX", root && *root ? root : "/tmp");
    if (!mkdtemp(path)) fail_msg("cannot make %s", path);
    return strdup(path);
}

void test_remove_dir(char *dir) {
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        struct stat st;
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        char *path = strdup(test_join(dir, e->d_name));
        if (lstat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
            test_remove_dir(path);
            continue;
        }
        unlink(path);
        free(path);
    }
    if (d) closedir(d);
    rmdir(dir);
    free(dir);
}

char *test_dir;

int test_dir_make(void **state) {
    (void)state;
    test_dir = test_temp_dir();
    return 0;
}

int test_dir_remove(void **state) {
    (void)state;
    test_remove_dir(test_dir);
    return 0;
}

const char *test_join(const char *dir, const char *name) {
    static char ring[8][4096];
    static unsigned next;
    char *p = ring[next++ % 8];
    snprintf(p, sizeof ring[0], "%s/%s", dir, name);
    return p;
}

void test_write_file(const char *path, const void *p, size_t n_byte) {
    FILE *f = fopen(path, "wb");
    if (!f) fail_msg("cannot write %s", path);
    assert_int_equal(fwrite(p, 1, n_byte, f), n_byte);
    assert_int_equal(fclose(f), 0);
}

void test_write_text(const char *path, const char *text) {
    test_write_file(path, text, strlen(text));
}

void test_copy_file(const char *from, const char *to) {
    size_t n;
    char *p = test_read_file(from, &n);
    test_write_file(to, p, n);
    free(p);
}

void test_put_u32(hd_buf *b, uint32_t v) { hd_buf_add(b, &v, sizeof v); }
void test_put_u64(hd_buf *b, uint64_t v) { hd_buf_add(b, &v, sizeof v); }

void test_zeros(hd_buf *b, size_t n) {
    for (size_t i = 0; i < n; i++) hd_buf_add(b, "", 1);
}

void test_pad(hd_buf *b, size_t align) { test_zeros(b, (align - b->len % align) % align); }

void test_gguf_head(hd_buf *b, uint32_t version, uint64_t n_tensor, uint64_t n_kv) {
    hd_buf_add(b, "GGUF", 4);
    test_put_u32(b, version);
    test_put_u64(b, n_tensor);
    test_put_u64(b, n_kv);
}

void test_gguf_str(hd_buf *b, const char *s) {
    test_put_u64(b, strlen(s));
    hd_buf_add_c(b, s);
}

void test_gguf_key(hd_buf *b, const char *key, uint32_t type) {
    test_gguf_str(b, key);
    test_put_u32(b, type);
}

void test_gguf_key_u32(hd_buf *b, const char *key, uint32_t v) {
    test_gguf_key(b, key, 4);
    test_put_u32(b, v);
}

void test_gguf_key_f32(hd_buf *b, const char *key, float v) {
    test_gguf_key(b, key, 6);
    hd_buf_add(b, &v, sizeof v);
}

void test_gguf_key_str(hd_buf *b, const char *key, const char *v) {
    test_gguf_key(b, key, 8);
    test_gguf_str(b, v);
}

void test_gguf_tensor(hd_buf *b, const char *name, uint32_t n_dim, const uint64_t *ne,
                      uint32_t type, uint64_t offset) {
    test_gguf_str(b, name);
    test_put_u32(b, n_dim);
    for (uint32_t d = 0; d < n_dim; d++) test_put_u64(b, ne[d]);
    test_put_u32(b, type);
    test_put_u64(b, offset);
}

void test_safetensors(hd_buf *b, const char *header, size_t n_data) {
    test_put_u64(b, strlen(header));
    hd_buf_add_c(b, header);
    test_zeros(b, n_data);
}
