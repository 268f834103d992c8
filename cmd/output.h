/* Files that commands write: under a temporary name beside their own until they are complete, so
 * that a failure, a full disk or a signal leaves nothing, and what stood there before stays. One at
 * a time (signals); main thread. */
#ifndef HD_CMD_OUTPUT_H
#define HD_CMD_OUTPUT_H

#include "base/new_file.h"

/* HD_E_INVALID when path is there and is no regular file. *is_there: something would be replaced.
 */
HD_MUST_CHECK hd_status hd_output_check(const char *path, bool *is_there);
/* HD_E_INVALID when path is the same file as `input`, by whatever names. */
HD_MUST_CHECK hd_status hd_output_differs(const char *path, const char *input);
/* HD_E_IO when no file can be made at path: to be known before hours of work, not after. */
HD_MUST_CHECK hd_status hd_output_try(const char *path);

/* Between hold and release signals that end the program wait. After guard they remove `temporary`
 * first (NULL: no longer). */
void hd_output_hold(void);
void hd_output_guard(const char *temporary);
void hd_output_release(void);

/* A file to be written (base/new_file.h), removed when a signal ends the program before finish. */
HD_MUST_CHECK hd_status hd_output_create(const char *path, hd_new_file *f);
HD_MUST_CHECK hd_status hd_output_finish(hd_new_file *f);
void hd_output_abandon(hd_new_file *f); /* nothing when f->fd < 0 */
/* A whole file at once. */
HD_MUST_CHECK hd_status hd_output_write(const char *path, hd_str bytes);

#endif
