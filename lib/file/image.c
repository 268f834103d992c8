/* Image files: the head, its checks, and writing one so that no half of it is ever seen. */
#include "file/image.h"

#include "base/mem.h"
#include "base/new_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

enum {
    magic = 0x67616D69, /* "imag" */
    version = 1,
    huge_bytes = 2 << 20,
    blocks_max = 1 << 14,
    write_bytes = 8 << 20 /* whole huge pages: the page cache then holds such */
};

struct head {
    uint32_t magic, version;
    char key[HD_IMAGE_KEY_MAX];
    uint64_t n_file, n_block;
};

struct place {
    char name[HD_IMAGE_NAME_MAX];
    uint64_t at, n_byte;
};

struct hd_image {
    void *room; /* what was reserved, a huge page more than the file */
    size_t room_bytes;
    hd_image_block *block; /* in the order of names */
    size_t n_block;
};

static int by_name(const void *a, const void *b) {
    const hd_image_block *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* ---- reading ---- */

static hd_status read_head(hd_str bytes, uint64_t n_file, const char *key, struct head *h) {
    if (bytes.len < sizeof *h)
        return HD_FAIL(CORRUPT, "expected %zu bytes or more, found %zu", sizeof *h, bytes.len);
    memcpy(h, bytes.ptr, sizeof *h);
    if (h->magic != magic || h->version != version)
        return HD_FAIL(CORRUPT, "expected an image of version %d, found %08x %u", version, h->magic,
                       h->version);
    h->key[HD_IMAGE_KEY_MAX - 1] = 0;
    if (strcmp(h->key, key) != 0)
        return HD_FAIL(CORRUPT, "expected one of %s, found %s", key, hd_show(hd_str_of(h->key)));
    if (h->n_file != n_file)
        return HD_FAIL(CORRUPT, "expected %llu bytes, found %llu", (unsigned long long)h->n_file,
                       (unsigned long long)n_file);
    if (h->n_block > blocks_max ||
        bytes.len < sizeof *h + h->n_block * sizeof(struct place) + sizeof(XXH64_hash_t))
        return HD_FAIL(CORRUPT, "expected at most %d blocks, all named in the first %d bytes",
                       blocks_max, huge_bytes);
    size_t n_head = sizeof *h + (size_t)h->n_block * sizeof(struct place);
    XXH64_hash_t sum;
    memcpy(&sum, bytes.ptr + n_head, sizeof sum);
    if (XXH3_64bits(bytes.ptr, n_head) != sum)
        return HD_FAIL(CORRUPT, "the sum of its head is another one than it says");
    return HD_OK;
}

hd_status hd_image_parse(hd_str bytes, uint64_t n_file, const char *key, hd_image_block **out,
                         size_t *n_block) {
    struct head h;
    *out = NULL;
    HD_TRY(read_head(bytes, n_file, key, &h));
    size_t n = (size_t)h.n_block;
    hd_image_block *b = hd_alloc_zero(n, sizeof *b);
    for (size_t i = 0; i < n; i++) {
        struct place p;
        memcpy(&p, bytes.ptr + sizeof h + i * sizeof p, sizeof p);
        bool is_named = memchr(p.name, 0, sizeof p.name) != NULL;
        if (!is_named || p.at < huge_bytes || p.at % 64 != 0 || p.at > n_file ||
            p.n_byte > n_file - p.at) {
            hd_free(b);
            return HD_FAIL(CORRUPT, "block %zu lies outside of the file", i);
        }
        memcpy(b[i].name, p.name, sizeof p.name);
        b[i].ptr = (const char *)bytes.ptr + p.at;
        b[i].n_byte = p.n_byte;
    }
    qsort(b, n, sizeof *b, by_name);
    *out = b;
    *n_block = n;
    return HD_OK;
}

/* At an address where huge pages of the file are huge pages of memory. */
static hd_status map_aligned(hd_image *im, int fd, size_t n_byte, const char **at) {
    im->room_bytes = n_byte + huge_bytes;
    im->room =
        mmap(NULL, im->room_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (im->room == MAP_FAILED) {
        im->room = NULL;
        return HD_FAIL(IO, "cannot reserve %zu bytes: %s", im->room_bytes, strerror(errno));
    }
    void *p = (void *)hd_align_up((size_t)im->room, huge_bytes);
    if (mmap(p, n_byte, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0) == MAP_FAILED)
        return HD_FAIL(IO, "cannot map %zu bytes: %s", n_byte, strerror(errno));
    (void)madvise(p, n_byte, MADV_HUGEPAGE); /* where there are none, small ones do */
    *at = p;
    return HD_OK;
}

static hd_status open_image(hd_image *im, int fd, const char *key) {
    struct stat st;
    const char *p;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return HD_FAIL(IO, "expected a regular file, found something else");
    size_t n = (size_t)st.st_size;
    if (n < sizeof(struct head))
        return HD_FAIL(CORRUPT, "expected %zu bytes or more, found %zu", sizeof(struct head), n);
    HD_TRY(map_aligned(im, fd, n, &p));
    hd_str head = {p, n < huge_bytes ? n : huge_bytes};
    return hd_image_parse(head, n, key, &im->block, &im->n_block);
}

hd_status hd_image_open(const char *path, const char *key, hd_image **out) {
    *out = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && errno == ENOENT) return HD_FAIL(NOT_FOUND, "%s: no such file", path);
    if (fd < 0) return HD_FAIL(IO, "%s: cannot open: %s", path, strerror(errno));
    hd_image *im = hd_alloc_zero(1, sizeof *im);
    hd_status s = open_image(im, fd, key);
    close(fd);
    if (s != HD_OK) {
        hd_image_close(im);
        return hd_fail_context(s, "%s", path);
    }
    *out = im;
    return HD_OK;
}

void hd_image_close(hd_image *im) {
    if (!im) return;
    if (im->room) munmap(im->room, im->room_bytes);
    hd_free(im->block);
    hd_free(im);
}

const void *hd_image_find(const hd_image *im, const char *name, uint64_t n_byte) {
    hd_image_block key = {0};
    snprintf(key.name, sizeof key.name, "%s", name);
    const hd_image_block *b = bsearch(&key, im->block, im->n_block, sizeof key, by_name);
    return b && b->n_byte == n_byte ? b->ptr : NULL;
}

/* ---- writing ---- */

/* Collects pieces into whole writes. */
struct writer {
    hd_new_file file;
    char *room; /* [write_bytes] */
    size_t used;
    uint64_t done, all;
    hd_status error; /* of the first write that failed */
    void (*on_progress)(void *user, double done);
    void *user;
};

static void flush(struct writer *w) {
    if (w->error == HD_OK) w->error = hd_new_file_write(&w->file, w->room, w->used);
    w->done += w->used;
    w->used = 0;
    if (w->on_progress) w->on_progress(w->user, (double)w->done / (double)w->all);
}

/* p NULL: zeros. */
static void add(struct writer *w, const void *p, uint64_t n) {
    for (uint64_t at = 0; at < n && w->error == HD_OK;) {
        size_t room = write_bytes - w->used, some = n - at < room ? (size_t)(n - at) : room;
        if (p)
            memcpy(w->room + w->used, (const char *)p + at, some);
        else
            memset(w->room + w->used, 0, some);
        w->used += some;
        at += some;
        if (w->used == write_bytes) flush(w);
    }
}

static uint64_t padded(uint64_t n) { return (n + 63) / 64 * 64; }

static void write_all(struct writer *w, const char *key, const hd_image_block *block, size_t n) {
    struct head h = {.magic = magic, .version = version, .n_file = huge_bytes, .n_block = n};
    struct place *place = hd_alloc_zero(n, sizeof *place);
    snprintf(h.key, sizeof h.key, "%s", key);
    for (size_t i = 0; i < n; i++) {
        snprintf(place[i].name, sizeof place[i].name, "%s", block[i].name);
        place[i].at = h.n_file;
        place[i].n_byte = block[i].n_byte;
        h.n_file += padded(block[i].n_byte);
    }
    size_t n_head = sizeof h + n * sizeof *place;
    char *head = hd_alloc_zero(1, n_head);
    memcpy(head, &h, sizeof h);
    memcpy(head + sizeof h, place, n * sizeof *place);
    XXH64_hash_t sum = XXH3_64bits(head, n_head);
    w->all = h.n_file;
    add(w, head, n_head);
    add(w, &sum, sizeof sum);
    add(w, NULL, huge_bytes - n_head - sizeof sum);
    for (size_t i = 0; i < n; i++) {
        add(w, block[i].ptr, block[i].n_byte);
        add(w, NULL, padded(block[i].n_byte) - block[i].n_byte);
    }
    flush(w);
    hd_free(head);
    hd_free(place);
}

hd_status hd_image_write(const char *path, const char *key, const hd_image_block *block,
                         size_t n_block, void (*on_progress)(void *user, double done), void *user) {
    HD_ASSERT(strlen(key) < HD_IMAGE_KEY_MAX);
    if (n_block > blocks_max)
        return HD_FAIL(UNSUPPORTED, "%s: expected at most %d blocks, found %zu", path, blocks_max,
                       n_block);
    struct writer w = {.on_progress = on_progress, .user = user};
    HD_TRY(hd_new_file_create(path, true, &w.file));
    w.room = hd_alloc(write_bytes);
    write_all(&w, key, block, n_block);
    hd_free(w.room);
    if (w.error == HD_OK) w.error = hd_new_file_finish(&w.file);
    hd_new_file_abandon(&w.file);
    return w.error;
}
