/* JSON (or plain) log lines on stderr. */
#include "base/log.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/version.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { line_bytes_max = 16384 };

static _Atomic int min_level = HD_LOG_INFO;
static _Atomic int plain;
static const char *const level_names[] = {"debug", "info", "warn", "error"};

void hd_log_set_level(enum hd_log_level level) { atomic_store(&min_level, (int)level); }
enum hd_log_level hd_log_get_level(void) { return (enum hd_log_level)atomic_load(&min_level); }
void hd_log_set_plain(int is_plain) { atomic_store(&plain, is_plain); }

static void add_time(hd_json *j) {
    int64_t ms = hd_wall_ms();
    time_t sec = (time_t)(ms / 1000);
    struct tm tm;
    gmtime_r(&sec, &tm);
    char day[32], text[48];
    strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(text, sizeof text, "%s.%03dZ", day, (int)(ms % 1000));
    hd_json_key(j, "time");
    hd_json_str_c(j, text);
}

static void add_value(hd_json *j, const char *kind, va_list *ap) {
    switch (kind[0]) {
    case 's': hd_json_str_c(j, va_arg(*ap, const char *)); break;
    case 'd': hd_json_int(j, va_arg(*ap, int64_t)); break;
    case 'f': hd_json_num(j, va_arg(*ap, double)); break;
    case 'b': hd_json_bool(j, va_arg(*ap, int) != 0); break;
    default: HD_ASSERT(0 && "log kind is s, d, f or b");
    }
}

void hd_log(enum hd_log_level level, const char *message, ...) {
    if ((int)level < atomic_load(&min_level) || level >= HD_LOG_OFF) return;
    hd_buf b;
    hd_buf_init(&b, line_bytes_max);
    hd_json j = hd_json_begin(&b);
    bool is_plain = atomic_load(&plain) != 0;
    if (is_plain) {
        hd_buf_addf(&b, "%s: %s", level_names[level], message);
    } else {
        hd_json_object(&j);
        add_time(&j);
        hd_json_key(&j, "level");
        hd_json_str_c(&j, level_names[level]);
        hd_json_key(&j, "service.version");
        hd_json_str_c(&j, HD_VERSION);
        hd_json_key(&j, "message");
        hd_json_str_c(&j, message);
    }
    va_list ap;
    va_start(ap, message);
    for (const char *key; (key = va_arg(ap, const char *)) != NULL;) {
        const char *kind = va_arg(ap, const char *);
        if (is_plain) {
            hd_buf_addf(&b, " %s=", key);
            j.need_comma = false;
        } else {
            hd_json_key(&j, key);
        }
        add_value(&j, kind, &ap);
    }
    va_end(ap);
    if (!is_plain) hd_json_object_end(&j);
    if (b.overflowed) b.len = 0;
    hd_buf_add(&b, "\n", 1);
    if (b.len > 1 && write(STDERR_FILENO, b.ptr, b.len) < 0) { /* nowhere left to say so */
    }
    hd_buf_fini(&b);
}
