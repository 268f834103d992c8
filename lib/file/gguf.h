/* GGUF metadata (typed getters) and the GGUF v3 writer.
 *
 * Getters return false when the key is absent or holds another kind of value; any integer width is
 * accepted for an integer. Pointers live as long as the checkpoint. */
#ifndef HD_FILE_GGUF_H
#define HD_FILE_GGUF_H

#include "file/checkpoint.h"

uint32_t hd_gguf_version(const hd_gguf *g);
size_t hd_gguf_key_count(const hd_gguf *g);
hd_str hd_gguf_key_at(const hd_gguf *g, size_t ix);
/* One value as text for people ("3", "\"abc\"", "[128000 strings]"), appended to b. */
void hd_gguf_value_text(const hd_gguf *g, size_t ix, hd_buf *b);

bool hd_gguf_int(const hd_gguf *g, const char *key, int64_t *out);
bool hd_gguf_num(const hd_gguf *g, const char *key, double *out); /* integers too */
bool hd_gguf_bool(const hd_gguf *g, const char *key, bool *out);
bool hd_gguf_str(const hd_gguf *g, const char *key, hd_str *out);
/* Arrays: the element count, then elements by index. */
bool hd_gguf_array(const hd_gguf *g, const char *key, size_t *n);
bool hd_gguf_array_int(const hd_gguf *g, const char *key, size_t ix, int64_t *out);
bool hd_gguf_array_num(const hd_gguf *g, const char *key, size_t ix, double *out);
/* All strings of a string array: arena-free, caller frees the returned block with hd_free. */
bool hd_gguf_array_strs(const hd_gguf *g, const char *key, hd_str **out, size_t *n);
/* A value as it lies in the file, for hd_gguf_set_raw: its type number and its bytes. */
void hd_gguf_raw(const hd_gguf *g, size_t ix, uint32_t *type, hd_str *bytes);

/* Writer: set metadata, declare every tensor, begin, then give the data in declaration order. */
typedef struct hd_gguf_writer hd_gguf_writer;
HD_MUST_CHECK hd_status hd_gguf_create(const char *path, hd_gguf_writer **out);
/* The file written to until it is finished (for a signal handler to remove). */
const char *hd_gguf_temporary(const hd_gguf_writer *w);
void hd_gguf_set_u32(hd_gguf_writer *w, const char *key, uint32_t v);
void hd_gguf_set_i32(hd_gguf_writer *w, const char *key, int32_t v);
void hd_gguf_set_f32(hd_gguf_writer *w, const char *key, float v);
void hd_gguf_set_bool(hd_gguf_writer *w, const char *key, bool v);
void hd_gguf_set_str(hd_gguf_writer *w, const char *key, hd_str v);
void hd_gguf_set_strs(hd_gguf_writer *w, const char *key, const hd_str *v, size_t n);
void hd_gguf_set_i32s(hd_gguf_writer *w, const char *key, const int32_t *v, size_t n);
/* A value read elsewhere, copied as it is. */
void hd_gguf_set_raw(hd_gguf_writer *w, hd_str key, uint32_t type, hd_str bytes);
/* name: at most 63 bytes. Keys and names are set once each (asserted). */
void hd_gguf_declare(hd_gguf_writer *w, const char *name, enum hd_format f, int n_dim,
                     const int64_t *ne);
HD_MUST_CHECK hd_status hd_gguf_begin(hd_gguf_writer *w);
/* Appends bytes of the tensor whose turn it is; a tensor may come in several pieces. */
HD_MUST_CHECK hd_status hd_gguf_data(hd_gguf_writer *w, const void *p, size_t n_byte);
/* Checks that every tensor is complete, syncs, and renames the temporary file to path.
 * Frees the writer in every case; on failure no file is left. */
HD_MUST_CHECK hd_status hd_gguf_finish(hd_gguf_writer *w);
void hd_gguf_abandon(hd_gguf_writer *w); /* accepts NULL; removes the temporary file */

#endif
