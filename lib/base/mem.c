/* Checked allocation and block arenas. */
#include "base/mem.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { large_bytes = 1 << 20, huge_page_bytes = 2 << 20 };

static void *or_abort(void *p, size_t n_byte) {
    if (!p) {
        fprintf(stderr, "hadal: host out of memory (%zu bytes)\n", n_byte);
        abort();
    }
    return p;
}

void *hd_alloc(size_t n_byte) { return or_abort(malloc(n_byte ? n_byte : 1), n_byte); }

void *hd_alloc_zero(size_t n, size_t n_byte) {
    return or_abort(calloc(n ? n : 1, n_byte ? n_byte : 1), n * n_byte);
}

void *hd_realloc(void *p, size_t n_byte) {
    return or_abort(realloc(p, n_byte ? n_byte : 1), n_byte);
}

void hd_free(void *p) { free(p); }

char *hd_strndup(const char *s, size_t n) {
    char *p = hd_alloc(n + 1);
    memcpy(p, s, n);
    p[n] = 0;
    return p;
}

char *hd_strdup(const char *s) { return hd_strndup(s, strlen(s)); }

/* Whole pages are given back to the kernel, which makes them zero when they are touched: memory
 * that is planned but not used yet costs nothing. */
static void zero(unsigned char *p, size_t n) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), head = (page - (uintptr_t)p % page) % page;
    size_t body = n > head ? (n - head) / page * page : 0;
    if (body < large_bytes || madvise(p + head, body, MADV_DONTNEED) != 0) {
        memset(p, 0, n);
        return;
    }
    memset(p, 0, head);
    memset(p + head + body, 0, n - head - body);
}

hd_status hd_alloc_large(size_t n_byte, void **out) {
    *out = NULL;
    if (n_byte > SIZE_MAX - 64)
        return HD_FAIL(NO_MEMORY, "allocation of %zu bytes overflows", n_byte);
    bool is_huge = n_byte >= 2 * huge_page_bytes;
    size_t align = is_huge ? huge_page_bytes : 64, size = hd_align_up(n_byte, 64);
    /* AddressSanitizer holds aligned_alloc to sizes that are multiples of the alignment. */
    void *p = NULL;
    if (posix_memalign(&p, align, size ? size : 64) != 0)
        return HD_FAIL(NO_MEMORY, "host has no %zu bytes of memory", n_byte);
    if (is_huge) madvise(p, size / huge_page_bytes * huge_page_bytes, MADV_HUGEPAGE);
    zero(p, size);
    *out = p;
    return HD_OK;
}

struct block {
    struct block *next;
    size_t used, size;
    _Alignas(16) unsigned char data[];
};

struct hd_arena {
    struct block *head;
    size_t block_bytes;
};

hd_arena *hd_arena_new(size_t block_bytes) {
    hd_arena *a = hd_alloc_zero(1, sizeof *a);
    a->block_bytes = block_bytes;
    return a;
}

void hd_arena_free(hd_arena *a) {
    if (!a) return;
    for (struct block *b = a->head, *next; b; b = next) {
        next = b->next;
        hd_free(b);
    }
    hd_free(a);
}

void *hd_arena_alloc(hd_arena *a, size_t n_byte) {
    HD_ASSERT(n_byte < SIZE_MAX / 2);
    size_t size = hd_align_up(n_byte, 16);
    struct block *b = a->head;
    if (!b || b->size - b->used < size) {
        size_t room = size > a->block_bytes ? size : a->block_bytes;
        b = hd_alloc(sizeof *b + room);
        *b = (struct block){.next = a->head, .size = room};
        a->head = b;
    }
    void *p = b->data + b->used;
    b->used += size;
    memset(p, 0, size);
    return p;
}

char *hd_arena_strndup(hd_arena *a, const char *s, size_t n) {
    char *p = hd_arena_alloc(a, n + 1);
    memcpy(p, s, n);
    return p;
}
