/* One scanner: scalars by their grammar, arrays and objects by a stack of what is open. */
#include "text/json_text.h"

#include "base/utf8.h"

#include <string.h>

enum { depth_max = 512 };

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
static bool is_one_of(char c, const char *all) { return c && strchr(all, c); }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static size_t skip_space(hd_str s, size_t at) {
    while (at < s.len && is_space(s.ptr[at])) at++;
    return at;
}

hd_str hd_json_text_trim(hd_str s) {
    size_t from = skip_space(s, 0);
    while (s.len > from && is_space(s.ptr[s.len - 1])) s.len--;
    return (hd_str){s.ptr + from, s.len - from};
}

/* ---- scalars: the index after one that begins at `at`, or 0 ---- */

static size_t skip_string(hd_str s, size_t at) {
    for (at++; at < s.len; at++) {
        unsigned char c = (unsigned char)s.ptr[at];
        if (c == '"') return at + 1;
        if (c < 0x20) return 0;
        if (c != '\\') continue;
        if (++at == s.len || !is_one_of(s.ptr[at], "\"\\/bfnrtu")) return 0;
        if (s.ptr[at] != 'u') continue;
        for (int k = 0; k < 4; k++)
            if (++at == s.len || !is_one_of(s.ptr[at], "0123456789abcdefABCDEF")) return 0;
    }
    return 0;
}

static size_t skip_digits(hd_str s, size_t at) {
    size_t from = at;
    while (at < s.len && is_digit(s.ptr[at])) at++;
    return at > from ? at : 0;
}

static size_t skip_number(hd_str s, size_t at) {
    if (s.ptr[at] == '-') at++;
    if (at < s.len && s.ptr[at] == '0')
        at++;
    else if ((at = skip_digits(s, at)) == 0)
        return 0;
    if (at < s.len && s.ptr[at] == '.' && (at = skip_digits(s, at + 1)) == 0) return 0;
    if (at < s.len && (s.ptr[at] == 'e' || s.ptr[at] == 'E')) {
        at++;
        if (at < s.len && (s.ptr[at] == '+' || s.ptr[at] == '-')) at++;
        at = skip_digits(s, at);
    }
    return at;
}

static size_t skip_scalar(hd_str s, size_t at) {
    static const char *const word[] = {"true", "false", "null"};
    if (s.ptr[at] == '"') return skip_string(s, at);
    if (s.ptr[at] == '-' || is_digit(s.ptr[at])) return skip_number(s, at);
    for (size_t i = 0; i < HD_COUNT_OF(word); i++) {
        size_t n = strlen(word[i]);
        if (s.len - at >= n && memcmp(s.ptr + at, word[i], n) == 0) return at + n;
    }
    return 0;
}

/* ---- values ---- */

/* After '{' or ',': a key and its colon; the index of the value, or 0. */
static size_t skip_key(hd_str s, size_t at) {
    at = skip_space(s, at);
    if (at == s.len || s.ptr[at] != '"' || (at = skip_string(s, at)) == 0) return 0;
    at = skip_space(s, at);
    return at < s.len && s.ptr[at] == ':' ? at + 1 : 0;
}

size_t hd_json_text_value(hd_str s) {
    bool is_object[depth_max];
    size_t depth = 0, at = 0;
    for (;;) { /* a value is expected at `at` */
        at = skip_space(s, at);
        if (at == s.len) return 0;
        char c = s.ptr[at];
        if (c == '{' || c == '[') {
            if (depth == depth_max) return 0;
            is_object[depth++] = c == '{';
            at = skip_space(s, at + 1);
            if (at == s.len) return 0;
            if (s.ptr[at] == (c == '{' ? '}' : ']'))
                depth--, at++;
            else if (c == '[' || (at = skip_key(s, at)) > 0)
                continue;
            else
                return 0;
        } else if ((at = skip_scalar(s, at)) == 0) {
            return 0;
        }
        for (;;) { /* a value has ended */
            if (depth == 0) return at;
            at = skip_space(s, at);
            if (at == s.len) return 0;
            if (s.ptr[at] == ',') break;
            if (s.ptr[at] != (is_object[depth - 1] ? '}' : ']')) return 0;
            depth--;
            at++;
        }
        at++;
        if (is_object[depth - 1] && (at = skip_key(s, at)) == 0) return 0;
    }
}

bool hd_json_text_is_value(hd_str s) {
    size_t n = hd_json_text_value(s);
    return n > 0 && skip_space(s, n) == s.len;
}

bool hd_json_text_member(hd_str object, size_t *at, hd_str *key, hd_str *value) {
    size_t i = skip_space(object, *at); /* at '{', or at what follows a value */
    i = skip_space(object, i + 1);
    if (*at > 0 && object.ptr[skip_space(object, *at)] == '}') return false;
    if (object.ptr[i] == '}') return false;
    size_t end = skip_string(object, i);
    *key = (hd_str){object.ptr + i, end - i};
    i = skip_key(object, i);
    size_t n = hd_json_text_value((hd_str){object.ptr + i, object.len - i});
    *value = hd_json_text_trim((hd_str){object.ptr + i, n});
    *at = i + n;
    return true;
}

/* ---- writing ---- */

static uint32_t hex4(const char *p) {
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        unsigned c = (unsigned char)p[i];
        v = v << 4 | (c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return v;
}

/* One \u escape at p, or two that are a pair; returns the bytes read. */
static size_t decode_u(hd_buf *b, const char *p, size_t n) {
    char out[4];
    uint32_t cp = hex4(p + 2);
    size_t used = 6;
    if (cp >= 0xD800 && cp < 0xDC00 && n >= 12 && p[6] == '\\' && p[7] == 'u') {
        uint32_t low = hex4(p + 8);
        if (low >= 0xDC00 && low < 0xE000) {
            cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
            used = 12;
        }
    }
    if (cp >= 0xD800 && cp < 0xE000) cp = 0xFFFD;
    hd_buf_add(b, out, hd_utf8_encode(cp, out));
    return used;
}

void hd_json_text_decode(hd_buf *b, hd_str string) {
    static const char from[] = "nrtbf", to[] = "\n\r\t\b\f";
    for (size_t i = 1; i + 1 < string.len;) {
        if (string.ptr[i] != '\\') {
            hd_buf_add(b, string.ptr + i++, 1);
        } else if (string.ptr[i + 1] == 'u') {
            i += decode_u(b, string.ptr + i, string.len - 1 - i);
        } else {
            const char *at = strchr(from, string.ptr[i + 1]);
            hd_buf_add(b, at ? to + (at - from) : string.ptr + i + 1, 1);
            i += 2;
        }
    }
}

static void respace_string(hd_buf *b, hd_str string) {
    hd_buf text;
    if (!memchr(string.ptr, '\\', string.len)) {
        hd_buf_add(b, string.ptr, string.len);
        return;
    }
    hd_buf_init(&text, SIZE_MAX / 2);
    hd_json_text_decode(&text, string);
    hd_json j = hd_json_begin(b);
    hd_json_str(&j, text.ptr, text.len);
    hd_buf_fini(&text);
}

void hd_json_text_respace(hd_buf *b, hd_str value) {
    for (size_t i = 0; i < value.len;) {
        char c = value.ptr[i];
        if (c == '"') {
            size_t end = skip_string(value, i);
            respace_string(b, (hd_str){value.ptr + i, end - i});
            i = end;
            continue;
        }
        if (!is_space(c)) hd_buf_add(b, &c, 1);
        if (c == ',' || c == ':') hd_buf_add(b, " ", 1);
        i++;
    }
}
