/* The replaced allocator forwards to glibc's. */
#include "support/allocs.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

static _Thread_local bool is_watched;
static _Atomic long n_alloc;

static void note(void) {
    if (is_watched) atomic_fetch_add(&n_alloc, 1);
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HAS_SANITIZER 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAS_SANITIZER 1
#endif

#ifdef HAS_SANITIZER
int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                              void (*on_free)(const volatile void *));
static void on_malloc(const volatile void *p, size_t n) {
    (void)p;
    (void)n;
    note();
}
static void on_free(const volatile void *p) { (void)p; }
static void install(void) { __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free); }
static pthread_once_t once = PTHREAD_ONCE_INIT;
#else
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
void *malloc(size_t n);
void *calloc(size_t n, size_t size);
void *realloc(void *p, size_t n);
void *memalign(size_t align, size_t n);
void *aligned_alloc(size_t align, size_t n);
int posix_memalign(void **out, size_t align, size_t n);

void *malloc(size_t n) {
    note();
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t size) {
    note();
    return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n) {
    note();
    return __libc_realloc(p, n);
}
void *memalign(size_t align, size_t n) {
    note();
    return __libc_memalign(align, n);
}
void *aligned_alloc(size_t align, size_t n) {
    note();
    return __libc_memalign(align, n);
}
int posix_memalign(void **out, size_t align, size_t n) {
    note();
    *out = __libc_memalign(align, n);
    return *out ? 0 : ENOMEM;
}
#endif

void test_allocs_watch(bool on) {
#ifdef HAS_SANITIZER
    pthread_once(&once, install);
#endif
    is_watched = on;
}

long test_allocs_count(void) { return atomic_load(&n_alloc); }
