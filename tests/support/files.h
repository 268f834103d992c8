/* Temporary folders and files for tests, and byte-level builders of GGUF and safetensors images. */
#ifndef HD_TEST_FILES_H
#define HD_TEST_FILES_H

#include "base/buf.h"

/* A fresh folder under TMPDIR (or /tmp); heap string. test_remove_dir deletes it and its files. */
char *test_temp_dir(void);
void test_remove_dir(char *dir); /* frees the string */
/* The same as cmocka's setup and teardown. */
extern char *test_dir;
int test_dir_make(void **state);
int test_dir_remove(void **state);
/* dir "/" name; valid until the next eight calls. */
const char *test_join(const char *dir, const char *name);
void test_write_file(const char *path, const void *p, size_t n_byte);
void test_write_text(const char *path, const char *text);
void test_copy_file(const char *from, const char *to);

/* GGUF pieces, appended to b. */
void test_gguf_head(hd_buf *b, uint32_t version, uint64_t n_tensor, uint64_t n_kv);
void test_gguf_str(hd_buf *b, const char *s); /* length and bytes */
void test_gguf_key(hd_buf *b, const char *key, uint32_t type);
void test_gguf_key_u32(hd_buf *b, const char *key, uint32_t v);
void test_gguf_key_f32(hd_buf *b, const char *key, float v);
void test_gguf_key_str(hd_buf *b, const char *key, const char *v);
void test_gguf_tensor(hd_buf *b, const char *name, uint32_t n_dim, const uint64_t *ne,
                      uint32_t type, uint64_t offset);
void test_put_u32(hd_buf *b, uint32_t v);
void test_put_u64(hd_buf *b, uint64_t v);
void test_pad(hd_buf *b, size_t align); /* zeros up to a multiple */
void test_zeros(hd_buf *b, size_t n);

/* A safetensors image: length, header, then n_data zero bytes. */
void test_safetensors(hd_buf *b, const char *header, size_t n_data);

#endif
