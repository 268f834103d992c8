/* Files that appear complete or not at all. */
#include "base/new_file.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The folder of a path, heap. */
static char *folder_of(const char *path) {
    const char *slash = strrchr(path, '/');
    if (!slash) return hd_strdup(".");
    return slash == path ? hd_strdup("/") : hd_strndup(path, (size_t)(slash - path));
}

/* The next name beside path that this process has not used. */
static char *next_name(const char *path) {
    static atomic_uint count;
    size_t room = strlen(path) + 32;
    char *name = hd_alloc(room);
    snprintf(name, room, "%s.%d.%u", path, (int)getpid(), atomic_fetch_add(&count, 1));
    return name;
}

static int open_nameless(const char *path) {
    char *folder = folder_of(path);
    int fd = open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    hd_free(folder);
    return fd;
}

static int open_named(const char *path, char **name) {
    for (;;) {
        *name = next_name(path);
        int fd = open(*name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0) return fd;
        hd_free(*name);
        *name = NULL;
        if (errno != EEXIST) return -1;
    }
}

hd_status hd_new_file_create(const char *path, bool is_nameless, hd_new_file *f) {
    *f = (hd_new_file){.fd = is_nameless ? open_nameless(path) : -1};
    if (f->fd < 0) f->fd = open_named(path, &f->temporary);
    if (f->fd < 0) return HD_FAIL(IO, "%s: cannot create a file there: %s", path, strerror(errno));
    f->path = hd_strdup(path);
    return HD_OK;
}

hd_status hd_new_file_write(hd_new_file *f, const void *p, size_t n) {
    for (const char *at = p; n > 0;) {
        ssize_t done = write(f->fd, at, n);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return HD_FAIL(IO, "%s: cannot write: %s", f->path, strerror(errno));
        at += done;
        n -= (size_t)done;
    }
    return HD_OK;
}

/* A file without a name gets one for the moment that it takes to rename it. */
static bool give_name(hd_new_file *f) {
    char self[32];
    snprintf(self, sizeof self, "/proc/self/fd/%d", f->fd);
    while (!f->temporary) {
        char *name = next_name(f->path);
        if (linkat(AT_FDCWD, self, AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0) {
            f->temporary = name;
            continue;
        }
        int error = errno;
        hd_free(name);
        errno = error;
        if (error != EEXIST) return false;
    }
    return true;
}

/* So that the rename itself survives a power cut. Some file systems cannot: that is no failure. */
static void sync_folder(const char *path) {
    char *folder = folder_of(path);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
    hd_free(folder);
}

hd_status hd_new_file_finish(hd_new_file *f) {
    bool is_done = fsync(f->fd) == 0 && give_name(f);
    int error = errno;
    if (close(f->fd) != 0 && is_done) is_done = false, error = errno;
    f->fd = -1;
    if (is_done && rename(f->temporary, f->path) != 0) is_done = false, error = errno;
    hd_status s = is_done ? HD_OK : HD_FAIL(IO, "%s: cannot write: %s", f->path, strerror(error));
    if (is_done) {
        sync_folder(f->path);
        hd_free(f->temporary);
        f->temporary = NULL;
    }
    hd_new_file_abandon(f);
    return s;
}

void hd_new_file_abandon(hd_new_file *f) {
    if (f->temporary) unlink(f->temporary);
    if (f->fd >= 0) close(f->fd);
    hd_free(f->temporary);
    hd_free(f->path);
    *f = (hd_new_file){.fd = -1};
}

hd_status hd_new_file_put(const char *path, hd_str bytes) {
    hd_new_file f;
    HD_TRY(hd_new_file_create(path, false, &f));
    hd_status s = hd_new_file_write(&f, bytes.ptr, bytes.len);
    if (s == HD_OK) s = hd_new_file_finish(&f);
    hd_new_file_abandon(&f);
    return s;
}
