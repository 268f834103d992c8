/* Output files: what may be replaced, and that nothing is left half-written. */
#include "cmd/output.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- what stands there ---- */

hd_status hd_output_check(const char *path, bool *is_there) {
    struct stat st;
    *is_there = stat(path, &st) == 0;
    if (!*is_there && errno != ENOENT)
        return HD_FAIL(IO, "%s: cannot write there: %s", path, strerror(errno));
    if (!*is_there) return HD_OK;
    if (S_ISDIR(st.st_mode))
        return HD_FAIL(INVALID, "%s: expected the name of a file, found a folder", path);
    if (!S_ISREG(st.st_mode))
        return HD_FAIL(INVALID, "%s: expected a regular file, found something else", path);
    return HD_OK;
}

hd_status hd_output_differs(const char *path, const char *input) {
    struct stat a, b;
    if (stat(path, &a) != 0 || stat(input, &b) != 0) return HD_OK;
    if (a.st_dev != b.st_dev || a.st_ino != b.st_ino) return HD_OK;
    return HD_FAIL(INVALID, "%s: expected another file than what is read, found %s itself", path,
                   input);
}

hd_status hd_output_try(const char *path) {
    hd_new_file f;
    HD_TRY(hd_output_create(path, &f));
    hd_output_abandon(&f);
    return HD_OK;
}

/* ---- cut short by a signal ---- */

static char guarded[4096]; /* removed by the handler; "" when there is none */
static sigset_t before;
static const int ending_signals[] = {SIGINT, SIGTERM, SIGHUP};

static void on_signal(int sig) {
    if (guarded[0]) unlink(guarded);
    signal(sig, SIG_DFL);
    raise(sig);
}

void hd_output_hold(void) {
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < HD_COUNT_OF(ending_signals); i++) sigaddset(&set, ending_signals[i]);
    sigprocmask(SIG_BLOCK, &set, &before);
}

void hd_output_release(void) { sigprocmask(SIG_SETMASK, &before, NULL); }

void hd_output_guard(const char *temporary) {
    if (!temporary) {
        guarded[0] = 0;
        return;
    }
    snprintf(guarded, sizeof guarded, "%s", temporary);
    for (size_t i = 0; i < HD_COUNT_OF(ending_signals); i++) signal(ending_signals[i], on_signal);
}

/* ---- a file of its own kind ---- */

hd_status hd_output_create(const char *path, hd_new_file *f) {
    hd_output_hold();
    hd_status s = hd_new_file_create(path, false, f);
    if (s == HD_OK) hd_output_guard(f->temporary);
    hd_output_release();
    return s;
}

hd_status hd_output_finish(hd_new_file *f) {
    hd_status s = hd_new_file_finish(f);
    hd_output_guard(NULL);
    return s;
}

void hd_output_abandon(hd_new_file *f) {
    if (f->fd < 0) return;
    hd_new_file_abandon(f);
    hd_output_guard(NULL);
}

hd_status hd_output_write(const char *path, hd_str bytes) {
    hd_new_file f;
    HD_TRY(hd_output_create(path, &f));
    hd_status s = hd_new_file_write(&f, bytes.ptr, bytes.len);
    if (s == HD_OK) s = hd_output_finish(&f);
    hd_output_abandon(&f);
    return s;
}
