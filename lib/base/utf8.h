/* UTF-8 as Unicode's table 3-7 defines it: no overlong forms, no surrogates, at most U+10FFFF. */
#ifndef HD_BASE_UTF8_H
#define HD_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decodes the first character of p[0..n): its length 1..4 with *cp set, or 0 when p does not begin
 * with a whole valid character (or n is 0). */
size_t hd_utf8_decode(const char *p, size_t n, uint32_t *cp);

/* For p[0..n) that does not begin with a whole valid character: how many bytes form the maximal
 * invalid prefix, which becomes one U+FFFD (at least 1). */
size_t hd_utf8_invalid_len(const char *p, size_t n);

/* True when p[0..n) is a proper prefix of some valid character: more bytes could complete it. */
bool hd_utf8_is_partial(const char *p, size_t n);

/* Encodes cp (a scalar value) into out[4]; returns its length 1..4. */
size_t hd_utf8_encode(uint32_t cp, char out[4]);

bool hd_utf8_is_valid(const char *p, size_t n);
/* Bytes that begin a character: how many characters valid text has. */
size_t hd_utf8_count(const char *p, size_t n);

#endif
