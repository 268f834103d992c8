/* Inside lib/file: how the readers fill a checkpoint. Not for other folders. */
#ifndef HD_FILE_CHECKPOINT_BUILD_H
#define HD_FILE_CHECKPOINT_BUILD_H

#include "base/map.h"
#include "base/mem.h"
#include "file/checkpoint.h"
#include "file/mapping.h"

struct hd_checkpoint {
    char *path;
    bool is_folder;  /* Hugging Face layout */
    hd_arena *arena; /* names */
    hd_mapping *mapping;
    int n_mapping;
    hd_gguf *gguf;
    hd_file_tensor *tensor;
    size_t n_tensor, room;
    hd_map *by_name;
};

/* An empty checkpoint; hd_checkpoint_close frees it. */
hd_checkpoint *hd_checkpoint_new(const char *path);

/* Maps a file that lives as long as the checkpoint; *name is its path, kept in the arena. */
HD_MUST_CHECK hd_status hd_checkpoint_map(hd_checkpoint *c, const char *path, hd_mapping *out,
                                          const char **name);
/* Adds a tensor (name is copied, t->name ignored); HD_E_CORRUPT when the name is empty, too long,
 * not clean text, or already there. */
HD_MUST_CHECK hd_status hd_checkpoint_add(hd_checkpoint *c, hd_str name, const hd_file_tensor *t);

/* A type of tensors: a row of formats.def, or one that is only listed (format HD_FORMAT_COUNT). */
typedef struct hd_file_type {
    const char *name;
    enum hd_format format;
    int block_elems, block_bytes;
} hd_file_type;
hd_file_type hd_file_type_of(enum hd_format f);

/* Sets t's format, type and bytes (its shape is set). HD_E_CORRUPT when a dimension is negative,
 * the product overflows, or ne[0] is no whole number of blocks. The text begins with file and
 * tensor. */
HD_MUST_CHECK hd_status hd_tensor_set_type(hd_file_tensor *t, hd_str name,
                                           const hd_file_type *type);

/* Parses a GGUF image and adds its tensors to c. */
HD_MUST_CHECK hd_status hd_gguf_parse(hd_checkpoint *c, const void *image, size_t n_byte,
                                      const char *file, hd_gguf **out);
void hd_gguf_free(hd_gguf *g); /* accepts NULL */

/* Opens the tensors of a folder (c->path). */
HD_MUST_CHECK hd_status hd_safetensors_open(hd_checkpoint *c);
/* Parses one safetensors image. keep (may be NULL) says whether a tensor is wanted. */
typedef bool (*hd_keep_fn)(void *user, hd_str name);
HD_MUST_CHECK hd_status hd_safetensors_parse(hd_checkpoint *c, hd_mapping image, const char *file,
                                             hd_keep_fn keep, void *user);

#endif
