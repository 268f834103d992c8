/* The few functions of lib/base that this object uses, by way of the program that loaded it: an
 * error's text must be the one that the program's threads read. */
#include "cuda/cuda.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static const hd_host *host;

void hd_cuda_bind(const hd_host *h) { host = h; }

hd_status hd_fail(hd_status s, const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return host->fail(s, text);
}

void hd_assert_fail(const char *expr, const char *file, int line) {
    host->assert_fail(expr, file, line);
    __builtin_unreachable();
}

void hd_cuda_add_text(hd_buf *b, const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    host->add(b, text);
}
