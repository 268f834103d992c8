/* A file that appears at its path when it is complete, or not at all: written under a temporary
 * name beside it (or none), synced, renamed over what stood there. Names are of one process and
 * one file, so that several may write the same path; permissions follow the umask. Thread: any,
 * one at a time for a file. */
#ifndef HD_BASE_NEW_FILE_H
#define HD_BASE_NEW_FILE_H

#include "base/buf.h"

typedef struct hd_new_file {
    int fd;          /* to be written, the file's own; -1: there is none */
    char *path;      /* heap, the file's own */
    char *temporary; /* heap; NULL: the file has no name */
} hd_new_file;

/* is_nameless: of which nothing stays when the program is killed, where the file system has such
 * files. HD_E_IO; *f is then as after abandon. */
HD_MUST_CHECK hd_status hd_new_file_create(const char *path, bool is_nameless, hd_new_file *f);
HD_MUST_CHECK hd_status hd_new_file_write(hd_new_file *f, const void *p, size_t n);
/* Syncs, closes, and gives it its name. HD_E_IO: nothing is left. */
HD_MUST_CHECK hd_status hd_new_file_finish(hd_new_file *f);
/* Closes and removes it; nothing when that was done, or after finish. */
void hd_new_file_abandon(hd_new_file *f);
/* A whole file at once. */
HD_MUST_CHECK hd_status hd_new_file_put(const char *path, hd_str bytes);

#endif
