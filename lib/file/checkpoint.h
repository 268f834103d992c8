/* A checkpoint: a directory of named tensors over mapped files, and its metadata.
 *
 * Two kinds: a GGUF v3 (or v2) file, and a folder in Hugging Face's layout (config.json and
 * model.safetensors, or shards named by model.safetensors.index.json). Every count, size, name and
 * offset is checked before use: bad files give one line that names file, tensor, expected, found.
 * Names are the file's own (lib/model translates). A type that hadal does not compute with is no
 * reason to refuse a file: only a model that needs the tensor is. Read-only after open; any thread.
 */
#ifndef HD_FILE_CHECKPOINT_H
#define HD_FILE_CHECKPOINT_H

#include "base/buf.h"
#include "quant/format.h"

typedef struct hd_file_tensor {
    const char *name;
    enum hd_format format; /* HD_FORMAT_COUNT: a type that is listed, and not computed with */
    const char *type;      /* as its kind of file names it */
    int n_dim;
    int64_t ne[4];    /* ne[0] is contiguous (GGUF order); unused ones are 1 */
    const void *data; /* mapped; may be unaligned in safetensors */
    uint64_t n_byte;
    const char *file; /* name of the file it lies in, for messages */
} hd_file_tensor;

typedef struct hd_checkpoint hd_checkpoint;
typedef struct hd_gguf hd_gguf; /* metadata of a GGUF file: file/gguf.h */

/* path: a .gguf file (any part of a split one), or a folder with config.json and safetensors. */
HD_MUST_CHECK hd_status hd_checkpoint_open(const char *path, hd_checkpoint **out);
/* A GGUF image in memory (the embedded model); borrowed, must outlive the checkpoint. */
HD_MUST_CHECK hd_status hd_checkpoint_open_memory(const void *p, size_t n_byte, const char *name,
                                                  hd_checkpoint **out);
void hd_checkpoint_close(hd_checkpoint *c); /* accepts NULL */

const char *hd_checkpoint_path(const hd_checkpoint *c);
size_t hd_checkpoint_count(const hd_checkpoint *c);
const hd_file_tensor *hd_checkpoint_at(const hd_checkpoint *c, size_t ix);
const hd_file_tensor *hd_checkpoint_find(const hd_checkpoint *c, const char *name); /* or NULL */

/* "[320, 64]", in the order of the checkpoint's kind: GGUF innermost first, else outermost first.
 */
void hd_shape_text(const hd_checkpoint *c, const int64_t ne[4], int n_dim, char out[96]);

/* GGUF metadata, or NULL for a safetensors folder. */
const hd_gguf *hd_checkpoint_gguf(const hd_checkpoint *c);
/* Text of a small file of a safetensors folder (config.json, tokenizer.json); heap, NUL-terminated,
 * caller frees with hd_free. HD_E_NOT_FOUND when absent or when this is a GGUF. */
HD_MUST_CHECK hd_status hd_checkpoint_file(const hd_checkpoint *c, const char *name, char **text,
                                           size_t *n_byte);

/* XXH3-128 of tensor names, formats, shapes and bytes in name order, as 32 hex digits and NUL: two
 * checkpoints with the same tensors have the same hash whatever the order in their files. Reads
 * everything. on_progress (may be NULL) is told bytes done and bytes in all. */
void hd_checkpoint_hash(const hd_checkpoint *c, char out[33],
                        void (*on_progress)(void *user, uint64_t done, uint64_t all), void *user);

/* 32 hex digits and NUL that tell checkpoints apart without reading all of them: XXH3-128 of what
 * the hash has but only the first and last 4 KiB of each tensor's bytes, and of the files' sizes
 * and times of change. */
void hd_checkpoint_identity(const hd_checkpoint *c, char out[33]);

/* Where in a file bytes of a tensor lie: whoever reads them once, all of them, needs no pages of
 * the mapping for that. false: they are in memory only. Thread: any; *fd stays the checkpoint's. */
bool hd_checkpoint_locate(const hd_checkpoint *c, const void *p, int *fd, uint64_t *at);

/* HD_E_CORRUPT unless expected (any case) is the hash that was found; the text has both.
 * HD_E_INVALID: it is no hash. */
HD_MUST_CHECK hd_status hd_checkpoint_expect_hash(const hd_checkpoint *c, const char *expected,
                                                  const char *found);

#endif
