/* Capped byte buffers and the JSON writer. */
#include "base/buf.h"

#include "base/mem.h"
#include "base/utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

hd_str hd_str_of(const char *c_str) { return (hd_str){c_str, strlen(c_str)}; }

bool hd_str_eq(hd_str a, hd_str b) {
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

bool hd_str_eq_c(hd_str a, const char *b) { return hd_str_eq(a, hd_str_of(b)); }

bool hd_str_ends_c(hd_str a, const char *end) {
    size_t n = strlen(end);
    return a.len >= n && memcmp(a.ptr + a.len - n, end, n) == 0;
}

const char *hd_show(hd_str text) {
    enum { ring_n = 8, shown_max = 80 };
    static _Thread_local char ring[ring_n][shown_max + 8];
    static _Thread_local unsigned next;
    char *out = ring[next++ % ring_n];
    size_t n = 0;
    for (size_t i = 0; i < text.len;) {
        uint32_t cp = 0;
        size_t used = hd_utf8_decode(text.ptr + i, text.len - i, &cp);
        bool is_plain = used > 0 && cp >= 0x20 && !(cp >= 0x7F && cp < 0xA0);
        size_t add = is_plain ? used : 1;
        if (n + add > shown_max) {
            memcpy(out + n, "...", 3);
            n += 3;
            break;
        }
        if (is_plain)
            memcpy(out + n, text.ptr + i, used);
        else
            out[n] = '?';
        n += add;
        i += used ? used : 1;
    }
    out[n] = 0;
    return out;
}

void hd_list_add(char *list, size_t room, const char *item) {
    size_t n = strlen(list);
    const char *between = n > 0 ? ", " : "";
    if (strlen(between) + strlen(item) < room - n)
        snprintf(list + n, room - n, "%s%s", between, item);
}

void hd_buf_init(hd_buf *b, size_t cap) { *b = (hd_buf){.cap = cap}; }

void hd_buf_fini(hd_buf *b) {
    hd_free(b->ptr);
    *b = (hd_buf){0};
}

void hd_buf_clear(hd_buf *b) {
    b->len = 0;
    b->overflowed = false;
}

void hd_buf_reserve(hd_buf *b, size_t n_byte) {
    if (n_byte < b->room) return;
    size_t room = b->room ? b->room : 64;
    while (room <= n_byte) room += room;
    b->ptr = hd_realloc(b->ptr, room);
    b->room = room;
}

/* Makes room for n more bytes and a NUL; false (and overflowed) when the cap forbids it. */
static bool make_room(hd_buf *b, size_t n) {
    if (b->overflowed || n > b->cap - b->len) {
        b->overflowed = true;
        return false;
    }
    hd_buf_reserve(b, b->len + n);
    return true;
}

void hd_buf_add(hd_buf *b, const void *p, size_t n) {
    if (n == 0 || !make_room(b, n)) return;
    memcpy(b->ptr + b->len, p, n);
    b->len += n;
    b->ptr[b->len] = 0;
}

void hd_buf_add_c(hd_buf *b, const char *c_str) { hd_buf_add(b, c_str, strlen(c_str)); }

void hd_buf_addf(hd_buf *b, const char *fmt, ...) {
    va_list ap, ap2;
    va_start(ap, fmt);
    va_copy(ap2, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n > 0 && make_room(b, (size_t)n)) {
        vsnprintf(b->ptr + b->len, (size_t)n + 1, fmt, ap2);
        b->len += (size_t)n;
    }
    va_end(ap2);
}

void hd_buf_drop_front(hd_buf *b, size_t n) {
    HD_ASSERT(n <= b->len);
    if (n == 0) return;
    memmove(b->ptr, b->ptr + n, b->len - n);
    b->len -= n;
    b->ptr[b->len] = 0;
}

hd_str hd_buf_str(const hd_buf *b) { return (hd_str){b->len ? b->ptr : "", b->len}; }

hd_json hd_json_begin(hd_buf *b) { return (hd_json){.buf = b}; }

static void comma(hd_json *j) {
    if (j->need_comma) hd_buf_add(j->buf, ",", 1);
    j->need_comma = true;
}

static void open_with(hd_json *j, const char *mark) {
    comma(j);
    hd_buf_add(j->buf, mark, 1);
    j->need_comma = false;
}

static void close_with(hd_json *j, const char *mark) {
    hd_buf_add(j->buf, mark, 1);
    j->need_comma = true;
}

void hd_json_object(hd_json *j) { open_with(j, "{"); }
void hd_json_object_end(hd_json *j) { close_with(j, "}"); }
void hd_json_array(hd_json *j) { open_with(j, "["); }
void hd_json_array_end(hd_json *j) { close_with(j, "]"); }

void hd_json_escape(hd_buf *b, char byte) {
    static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
    const char *at = byte ? strchr(from, byte) : NULL;
    if (at) {
        hd_buf_add(b, (char[]){'\\', to[at - from]}, 2);
    } else if ((unsigned char)byte < 0x20) {
        static const char hex[] = "0123456789abcdef";
        hd_buf_add(b, (char[]){'\\', 'u', '0', '0', hex[byte >> 4 & 1], hex[byte & 15]}, 6);
    } else {
        hd_buf_add(b, &byte, 1);
    }
}

static void quoted(hd_buf *b, const char *p, size_t n) {
    hd_buf_add(b, "\"", 1);
    size_t run = 0; /* start of bytes not yet copied */
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)p[i];
        if (c >= 0x20 && c < 0x80 && c != '"' && c != '\\') {
            i++;
            continue;
        }
        uint32_t cp;
        size_t used = c < 0x80 ? 1 : hd_utf8_decode(p + i, n - i, &cp);
        if (used > 0 && c >= 0x80) {
            i += used;
            continue;
        }
        hd_buf_add(b, p + run, i - run);
        if (c < 0x80) {
            hd_json_escape(b, p[i++]);
        } else {
            hd_buf_add_c(b, "\xEF\xBF\xBD");
            i += hd_utf8_invalid_len(p + i, n - i);
        }
        run = i;
    }
    hd_buf_add(b, p + run, n - run);
    hd_buf_add(b, "\"", 1);
}

void hd_json_key(hd_json *j, const char *key) {
    comma(j);
    quoted(j->buf, key, strlen(key));
    hd_buf_add(j->buf, ":", 1);
    j->need_comma = false;
}

void hd_json_str(hd_json *j, const char *p, size_t n) {
    comma(j);
    quoted(j->buf, p, n);
}

void hd_json_str_c(hd_json *j, const char *c_str) {
    if (c_str)
        hd_json_str(j, c_str, strlen(c_str));
    else
        hd_json_null(j);
}

void hd_json_int(hd_json *j, int64_t v) {
    comma(j);
    hd_buf_addf(j->buf, "%lld", (long long)v);
}

void hd_json_num(hd_json *j, double v) {
    if (!isfinite(v)) {
        hd_json_null(j);
        return;
    }
    comma(j);
    hd_buf_addf(j->buf, "%.9g", v);
}

void hd_json_bool(hd_json *j, bool v) {
    comma(j);
    hd_buf_add_c(j->buf, v ? "true" : "false");
}

void hd_json_null(hd_json *j) {
    comma(j);
    hd_buf_add_c(j->buf, "null");
}

void hd_json_raw(hd_json *j, const char *p, size_t n) {
    comma(j);
    hd_buf_add(j->buf, p, n);
}
