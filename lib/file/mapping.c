/* Regular files, mapped or read. Opening never blocks: a pipe is refused after open, not waited
 * on. */
#include "file/mapping.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *kind_of(mode_t mode) {
    if (S_ISDIR(mode)) return "a folder";
    if (S_ISFIFO(mode)) return "a pipe";
    if (S_ISSOCK(mode)) return "a socket";
    return "a device";
}

/* Opens a regular file; the caller closes *fd. */
static hd_status open_regular(const char *path, int *fd, size_t *n_byte) {
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (*fd < 0) {
        if (errno == ENOENT || errno == ENOTDIR)
            return HD_FAIL(NOT_FOUND, "%s: no such file", path);
        return HD_FAIL(IO, "%s: cannot open: %s", path, strerror(errno));
    }
    struct stat st;
    hd_status s = HD_OK;
    if (fstat(*fd, &st) != 0)
        s = HD_FAIL(IO, "%s: cannot stat: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        s = HD_FAIL(IO, "%s: expected a regular file, found %s", path, kind_of(st.st_mode));
    if (s != HD_OK) {
        close(*fd);
        return s;
    }
    *n_byte = (size_t)st.st_size;
    return HD_OK;
}

hd_status hd_mapping_open(const char *path, hd_mapping *out) {
    int fd;
    size_t n;
    *out = (hd_mapping){0};
    HD_TRY(open_regular(path, &fd, &n));
    if (n == 0) {
        close(fd);
        return HD_FAIL(CORRUPT, "%s: the file is empty (0 bytes)", path);
    }
    void *p = mmap(NULL, n, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
        hd_status s = HD_FAIL(IO, "%s: cannot map %zu bytes: %s", path, n, strerror(errno));
        close(fd);
        return s;
    }
    *out = (hd_mapping){p, n, fd};
    return HD_OK;
}

void hd_mapping_close(hd_mapping *m) {
    if (m->ptr) {
        munmap((void *)(uintptr_t)m->ptr, m->n_byte);
        close(m->fd);
    }
    *m = (hd_mapping){0};
}

hd_status hd_text_read(const char *path, size_t n_byte_max, char **text, size_t *n_byte) {
    int fd;
    size_t n;
    *text = NULL;
    HD_TRY(open_regular(path, &fd, &n));
    if (n > n_byte_max) {
        close(fd);
        return HD_FAIL(TOO_LARGE, "%s: expected at most %zu bytes, found %zu", path, n_byte_max, n);
    }
    char *p = hd_alloc(n + 1);
    size_t got = 0;
    while (got < n) {
        ssize_t r = read(fd, p + got, n - got);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) {
            hd_status s = HD_FAIL(IO, "%s: cannot read: %s", path, strerror(errno));
            close(fd);
            hd_free(p);
            return s;
        }
        if (r == 0) break;
        got += (size_t)r;
    }
    close(fd);
    p[got] = 0;
    *text = p;
    *n_byte = got;
    return HD_OK;
}

char *hd_path_join(const char *dir, const char *name) {
    size_t n = strlen(dir), room = n + strlen(name) + 2;
    while (n > 1 && dir[n - 1] == '/') n--;
    char *p = hd_alloc(room);
    snprintf(p, room, "%.*s/%s", (int)n, dir, name);
    return p;
}

hd_str hd_path_base(const char *path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t from = n;
    while (from > 0 && path[from - 1] != '/') from--;
    return (hd_str){path + from, n - from};
}
