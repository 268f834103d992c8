/* cmocka with its required includes, and the helpers that every test shares. */
#ifndef HD_TEST_CHECK_H
#define HD_TEST_CHECK_H

#include "base/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Fails the test with the recorded error text when a call that must succeed does not. */
#define assert_ok(expr)                                                                            \
    do {                                                                                           \
        hd_status assert_s_ = (expr);                                                              \
        if (assert_s_ != HD_OK)                                                                    \
            fail_msg("%s: %s: %s", #expr, hd_status_name(assert_s_), hd_error_text());             \
    } while (0)

/* Path of a file in the checkout, by HADAL_SOURCE_DIR (or "."). Valid until the next eight calls.
 */
const char *test_path(const char *relative);

/* Whole file as heap bytes with a NUL after them; fails the test when it cannot be read. */
char *test_read_file(const char *path, size_t *n_byte);

#endif
