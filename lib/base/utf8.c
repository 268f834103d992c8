/* UTF-8 decoding by the byte ranges of Unicode's table 3-7. */
#include "base/utf8.h"

/* Length a lead byte asks for (0: not a lead) and the range its second byte must lie in. */
static size_t lead(unsigned char c, unsigned char *lo, unsigned char *hi) {
    *lo = 0x80;
    *hi = 0xBF;
    if (c < 0x80) return 1;
    if (c >= 0xC2 && c <= 0xDF) return 2;
    if (c >= 0xE0 && c <= 0xEF) {
        if (c == 0xE0) *lo = 0xA0;
        if (c == 0xED) *hi = 0x9F;
        return 3;
    }
    if (c >= 0xF0 && c <= 0xF4) {
        if (c == 0xF0) *lo = 0x90;
        if (c == 0xF4) *hi = 0x8F;
        return 4;
    }
    return 0;
}

/* How many bytes of p[0..n) continue a valid character begun at p[0]; *want = its full length. */
static size_t valid_run(const char *p, size_t n, size_t *want) {
    unsigned char lo, hi;
    *want = lead((unsigned char)p[0], &lo, &hi);
    if (*want == 0) return 0;
    size_t i = 1;
    for (; i < *want && i < n; i++) {
        unsigned char c = (unsigned char)p[i];
        if (c < lo || c > hi) break;
        lo = 0x80;
        hi = 0xBF;
    }
    return i;
}

size_t hd_utf8_decode(const char *p, size_t n, uint32_t *cp) {
    if (n == 0) return 0;
    size_t want;
    if (valid_run(p, n, &want) != want || want == 0) return 0;
    unsigned char c = (unsigned char)p[0];
    uint32_t v = want == 1 ? c : c & (0x7Fu >> want);
    for (size_t i = 1; i < want; i++) v = v << 6 | ((unsigned char)p[i] & 0x3Fu);
    *cp = v;
    return want;
}

size_t hd_utf8_invalid_len(const char *p, size_t n) {
    size_t want, run = valid_run(p, n, &want);
    return run ? run : 1;
}

bool hd_utf8_is_partial(const char *p, size_t n) {
    if (n == 0) return false;
    size_t want, run = valid_run(p, n, &want);
    return run == n && run < want;
}

size_t hd_utf8_encode(uint32_t cp, char out[4]) {
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

bool hd_utf8_is_valid(const char *p, size_t n) {
    uint32_t cp;
    for (size_t i = 0; i < n;) {
        size_t len = hd_utf8_decode(p + i, n - i, &cp);
        if (len == 0) return false;
        i += len;
    }
    return true;
}

size_t hd_utf8_count(const char *p, size_t n) {
    size_t n_char = 0;
    for (size_t i = 0; i < n; i++) n_char += ((unsigned char)p[i] & 0xC0) != 0x80;
    return n_char;
}
