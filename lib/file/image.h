/* An image file: blocks of bytes by name, as some program wants them in memory, so that a later
 * start maps them instead of making them again (weights that a device repacked).
 *
 * A cache, not a format to exchange: numbers are the host's. The head (magic, version, key, size of
 * the file, names, places) ends with its own XXH3; the key says what the blocks were made of and
 * how, so that anything else is another image. The bytes of blocks are not summed when it is
 * opened, since a start would have to read all of them: a file gets its name only after all of it
 * was written and synced, and its size is checked. A file that something else makes shorter while
 * it is mapped ends the program at the next read of what is gone (SIGBUS): hadal itself only ever
 * replaces the name. Blocks begin in the second 2 MiB, which the
 * mapping keeps, so that Linux may map huge pages. Thread: any, read-only after open. */
#ifndef HD_FILE_IMAGE_H
#define HD_FILE_IMAGE_H

#include "base/buf.h"

enum { HD_IMAGE_NAME_MAX = 64, HD_IMAGE_KEY_MAX = 48 }; /* with the NUL */

typedef struct hd_image_block {
    char name[HD_IMAGE_NAME_MAX];
    const void *ptr; /* 64-byte aligned in an image */
    uint64_t n_byte;
} hd_image_block;

/* The head at the front of a file of n_file bytes: blocks with ptr as if the file lay at
 * bytes.ptr; heap, hd_free *out. HD_E_CORRUPT says what was expected and found. */
HD_MUST_CHECK hd_status hd_image_parse(hd_str bytes, uint64_t n_file, const char *key,
                                       hd_image_block **out, size_t *n_block);

typedef struct hd_image hd_image;
/* Maps the image. HD_E_NOT_FOUND, HD_E_IO, HD_E_CORRUPT (another key is that, too). */
HD_MUST_CHECK hd_status hd_image_open(const char *path, const char *key, hd_image **out);
void hd_image_close(hd_image *im); /* accepts NULL */
/* Or NULL when there is no such block of so many bytes. */
const void *hd_image_find(const hd_image *im, const char *name, uint64_t n_byte);

/* Writes the image, syncs it, and only then gives it its name: until then it has none or, where the
 * file system has no such files, a temporary one beside path. on_progress (may be NULL) is told
 * shares in [0, 1]. HD_E_IO; HD_E_UNSUPPORTED: more than 16384 blocks. Nothing is left behind. */
HD_MUST_CHECK hd_status hd_image_write(const char *path, const char *key,
                                       const hd_image_block *block, size_t n_block,
                                       void (*on_progress)(void *user, double done), void *user);

#endif
