/* Host memory: checked allocation and arenas.
 *
 * hd_alloc and friends abort when the host is out of memory: they are for objects whose size the
 * program chose. Sizes that a client or a file chose are capped first, and large ones (weights, KV)
 * use hd_alloc_large, which returns a status. An arena is a set of blocks freed together: one per
 * process, request or step. Thread: any for hd_alloc; an arena belongs to one thread at a time. */
#ifndef HD_BASE_MEM_H
#define HD_BASE_MEM_H

#include "base/status.h"

#include <stddef.h>

/* The least multiple of align (a power of two) that is not below n_byte. */
static inline size_t hd_align_up(size_t n_byte, size_t align) {
    return (n_byte + align - 1) & ~(align - 1);
}

void *hd_alloc(size_t n_byte);                /* uninitialised; aborts on failure */
void *hd_alloc_zero(size_t n, size_t n_byte); /* zeroed array; aborts on overflow or failure */
void *hd_realloc(void *p, size_t n_byte);     /* aborts on failure */
void hd_free(void *p);                        /* accepts NULL */
char *hd_strdup(const char *s);
char *hd_strndup(const char *s, size_t n); /* copies n bytes and adds a NUL */

/* Zeroed, 64-byte aligned memory of any size, in huge pages (Linux's, where they are allowed) from
 * 4 MiB on; HD_E_NO_MEMORY when the host has none.
 * Free with hd_free. */
HD_MUST_CHECK hd_status hd_alloc_large(size_t n_byte, void **out);

typedef struct hd_arena hd_arena;
hd_arena *hd_arena_new(size_t block_bytes);       /* grows by blocks of at least this size */
void hd_arena_free(hd_arena *a);                  /* accepts NULL */
void *hd_arena_alloc(hd_arena *a, size_t n_byte); /* 16-byte aligned, zeroed */
char *hd_arena_strndup(hd_arena *a, const char *s, size_t n);

#endif
