/* The status table and the per-thread error text. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *type, *text;
    int http;
} status_rows[HD_STATUS_COUNT] = {
    [HD_OK] = {"OK", "", "ok", 200},
#define HD_STATUS(id, http, type, text) [HD_E_##id] = {#id, type, text, http},
#include "base/status.def"
#undef HD_STATUS
};

static _Thread_local char error_text[512];
static _Thread_local hd_status error_status;

static hd_status known(hd_status s) { return (unsigned)s < HD_STATUS_COUNT ? s : HD_E_INTERNAL; }

const char *hd_status_name(hd_status s) { return status_rows[known(s)].name; }
const char *hd_status_text(hd_status s) { return status_rows[known(s)].text; }
const char *hd_status_type(hd_status s) { return status_rows[known(s)].type; }
int hd_status_http(hd_status s) { return status_rows[known(s)].http; }

hd_status hd_fail(hd_status s, const char *fmt, ...) {
    char text[sizeof error_text]; /* arguments may include hd_error_text() itself */
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    memcpy(error_text, text, sizeof text);
    return error_status = s;
}

hd_status hd_fail_context(hd_status s, const char *fmt, ...) {
    char text[sizeof error_text];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof text - 3)
        snprintf(text + n, sizeof text - (size_t)n, ": %s", error_text);
    memcpy(error_text, text, sizeof text);
    return error_status = s;
}

const char *hd_error_text(void) { return error_text; }
hd_status hd_error_status(void) { return error_status; }

void hd_assert_fail(const char *expr, const char *file, int line) {
    fprintf(stderr, "hadal: assertion failed: %s (%s:%d)\n", expr, file, line);
    abort();
}
