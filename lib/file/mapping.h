/* Read-only files: mapped whole, or read as a small text.
 *
 * Only regular files are taken (a folder, a pipe, a symlink loop or an empty file is one error
 * line). Thread: any. */
#ifndef HD_FILE_MAPPING_H
#define HD_FILE_MAPPING_H

#include "base/buf.h"

typedef struct hd_mapping {
    const void *ptr;
    size_t n_byte;
    int fd; /* open as long as it is mapped; -1: it is no file */
} hd_mapping;

/* HD_E_NOT_FOUND, HD_E_IO, or HD_E_CORRUPT when the file is empty; the text names path. */
HD_MUST_CHECK hd_status hd_mapping_open(const char *path, hd_mapping *out);
void hd_mapping_close(hd_mapping *m);

/* The whole file, NUL-terminated; heap, hd_free it. HD_E_TOO_LARGE above n_byte_max. */
HD_MUST_CHECK hd_status hd_text_read(const char *path, size_t n_byte_max, char **text,
                                     size_t *n_byte);

/* dir "/" name; heap. */
char *hd_path_join(const char *dir, const char *name);
/* The last part of a path, slashes at its end left out. */
hd_str hd_path_base(const char *path);

#endif
