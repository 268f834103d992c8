/* HTTP/1.1 requests from bytes (RFC 9112), strictly: a pure parser without sockets.
 *
 * What one server reads one way and a proxy another is refused, never repaired: bare CR or LF,
 * folded headers, space before a colon, both Content-Length and Transfer-Encoding, two different
 * lengths. Views point into the caller's bytes. Thread: any; no state but what is passed. */
#ifndef HD_SRV_HTTP_H
#define HD_SRV_HTTP_H

#include "base/buf.h"

enum {
    HD_HTTP_HEADER_MAX = 100,
    HD_HTTP_TARGET_BYTES_MAX = 8192,
    HD_HTTP_HEAD_BYTES_MAX = 32768,
    HD_HTTP_TRAILER_BYTES_MAX = 8192,
    HD_HTTP_EXTENSION_BYTES_MAX = 256
};

typedef struct hd_http_header {
    hd_str name, value; /* value without the white space around it */
} hd_http_header;

typedef struct hd_http_head {
    hd_str method, target;
    hd_str path, query; /* of the target; query without '?' */
    int minor;          /* HTTP/1.minor: 0 or 1 */
    hd_http_header header[HD_HTTP_HEADER_MAX];
    int n_header;
    int64_t content_length; /* -1: not given */
    bool is_chunked, keep_alive, expects_continue;
    /* When refused: the response code, and what was wrong. */
    int error_code;
    const char *error;
} hd_http_head;

enum hd_http_result { HD_HTTP_MORE, HD_HTTP_DONE, HD_HTTP_BAD };

/* Looks for a whole head at the start of `in`. DONE: *n_used bytes are the head. MORE: give it
 * again with more bytes; *n_scanned (0 at first) saves looking at the same bytes twice. BAD:
 * out->error_code and out->error say why, and the connection cannot go on. */
enum hd_http_result hd_http_parse_head(hd_str in, size_t *n_scanned, hd_http_head *out,
                                       size_t *n_used);

/* Value of the first header of that name (any case), or a NULL pointer. */
hd_str hd_http_get(const hd_http_head *h, const char *name);
bool hd_http_name_is(hd_str a, const char *b); /* equal but for ASCII case */
/* Whether a comma-separated list (Connection, Accept-Encoding) names the token; ";q=0" excludes. */
bool hd_http_list_has(hd_str list, const char *token);
/* Decodes %XX in place in a copy of s made by the caller; malformed escapes stay as they are.
 * Returns the new length. */
size_t hd_http_unescape(char *s, size_t n);
/* Reason phrase of a response code. */
const char *hd_http_reason(int code);

/* Decodes a chunked body piece by piece. */
typedef struct hd_http_chunked {
    int state;
    uint64_t left;    /* of the chunk */
    size_t n_digit;   /* of its size */
    size_t n_ignored; /* bytes of extension or trailer */
    size_t n_line;    /* bytes of the trailer line so far */
} hd_http_chunked;

/* Takes *n_used bytes of `in` and appends the decoded ones to `out` (whose cap is the limit of the
 * body: out->overflowed when passed). */
enum hd_http_result hd_http_dechunk(hd_http_chunked *c, hd_str in, size_t *n_used, hd_buf *out);

#endif
