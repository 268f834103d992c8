/* Status codes, error texts and assertions.
 *
 * Every function that can fail returns hd_status; 0 (HD_OK) is success. The text of an error is
 * recorded, per thread, where the error arises: what, which one, expected, found. Callers pass the
 * code up and may add context with hd_fail_context. A bug is HD_ASSERT (abort with a line); bad
 * input, files and devices are a status. Nothing in lib/ ever exits. */
#ifndef HD_BASE_STATUS_H
#define HD_BASE_STATUS_H

#include <stddef.h>

typedef enum hd_status {
    HD_OK = 0,
#define HD_STATUS(id, http, type, text) HD_E_##id,
#include "base/status.def"
#undef HD_STATUS
    HD_STATUS_COUNT
} hd_status;

#define HD_MUST_CHECK __attribute__((warn_unused_result))
#define HD_PRINTF(fmt_ix, first_ix) __attribute__((format(printf, fmt_ix, first_ix)))

/* Name of a code ("CORRUPT"), its default text, its HTTP code (200 for HD_OK) and OpenAI error
 * type. Any thread; never NULL. */
const char *hd_status_name(hd_status s);
const char *hd_status_text(hd_status s);
int hd_status_http(hd_status s);
const char *hd_status_type(hd_status s);

/* Records the formatted text as this thread's last error and returns `s`. At most 511 bytes kept.
 */
hd_status hd_fail(hd_status s, const char *fmt, ...) HD_PRINTF(2, 3);
/* Puts "prefix: " in front of this thread's last error and returns `s`. */
hd_status hd_fail_context(hd_status s, const char *fmt, ...) HD_PRINTF(2, 3);
/* This thread's last error text; valid until the next hd_fail on this thread. Never NULL. */
const char *hd_error_text(void);
/* Its code; HD_OK: there was none. */
hd_status hd_error_status(void);

/* Tells the compiler that a failure is one, so that it knows what HD_TRY lets pass to be set. */
static inline hd_status hd_status_failed(hd_status s) {
    if (s == HD_OK) __builtin_unreachable();
    return s;
}
#define HD_FAIL(id, ...) hd_status_failed(hd_fail(HD_E_##id, __VA_ARGS__))
#define HD_TRY(expr)                                                                               \
    do {                                                                                           \
        hd_status hd_try_s_ = (expr);                                                              \
        if (hd_try_s_ != HD_OK) return hd_try_s_;                                                  \
    } while (0)
/* For functions with one `out:` label and a local `hd_status s`. */
#define HD_TRY_OUT(expr)                                                                           \
    do {                                                                                           \
        s = (expr);                                                                                \
        if (s != HD_OK) goto out;                                                                  \
    } while (0)

__attribute__((noreturn)) void hd_assert_fail(const char *expr, const char *file, int line);
#define HD_ASSERT(expr) ((expr) ? (void)0 : hd_assert_fail(#expr, __FILE__, __LINE__))
#ifdef HD_DEBUG
#define HD_DASSERT(expr) HD_ASSERT(expr)
#else
#define HD_DASSERT(expr) ((void)sizeof(!(expr)))
#endif

#define HD_COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

#endif
