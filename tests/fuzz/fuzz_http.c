/* HTTP heads and chunked bodies from arbitrary bytes: the head is parsed whole and byte by byte,
 * which must agree; what follows it is decoded as a chunked body in pieces. */
#include "base/mem.h"
#include "srv/http.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool ok) {
    if (!ok) abort();
}

static bool lies_in(hd_str s, const char *p, size_t n) {
    return s.len == 0 || (s.ptr >= p && s.ptr + s.len <= p + n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *p = (const char *)data;
    hd_http_head h, h2;
    size_t scanned = 0, used = 0, used2 = 0;
    enum hd_http_result r = hd_http_parse_head((hd_str){p, size}, &scanned, &h, &used);
    if (r == HD_HTTP_DONE) {
        check(used <= size && h.n_header <= HD_HTTP_HEADER_MAX);
        check(!(h.is_chunked && h.content_length >= 0));
        check(lies_in(h.method, p, size) && lies_in(h.target, p, size));
        for (int i = 0; i < h.n_header; i++) {
            check(lies_in(h.header[i].name, p, size) && lies_in(h.header[i].value, p, size));
            check(h.header[i].name.len > 0);
            check(!memchr(h.header[i].value.ptr, '\n', h.header[i].value.len));
            hd_http_list_has(h.header[i].value, "gzip");
        }
    } else if (r == HD_HTTP_BAD) {
        check(h.error_code >= 400 && h.error);
    }
    size_t head_max = size < 2000 ? size : 2000;
    enum hd_http_result r2 = HD_HTTP_MORE;
    scanned = 0;
    for (size_t n = 1; n <= head_max && r2 == HD_HTTP_MORE; n++)
        r2 = hd_http_parse_head((hd_str){p, n}, &scanned, &h2, &used2);
    if (head_max == size) check(r == r2 || (r != HD_HTTP_DONE && r2 != HD_HTTP_DONE));
    if (r == HD_HTTP_DONE && r2 == HD_HTTP_DONE) check(used == used2);

    hd_buf whole, pieces;
    hd_buf_init(&whole, 1 << 16);
    hd_buf_init(&pieces, 1 << 16);
    hd_str body = {p + used, size - used};
    hd_http_chunked c = {0}, c2 = {0};
    r = hd_http_dechunk(&c, body, &used, &whole);
    check(used <= body.len);
    r2 = HD_HTTP_MORE;
    for (size_t at = 0; at < body.len && r2 == HD_HTTP_MORE; at += used2)
        r2 = hd_http_dechunk(&c2, (hd_str){body.ptr + at, 1}, &used2, &pieces);
    check(r == r2 && whole.len == pieces.len);
    check(whole.len == 0 || memcmp(whole.ptr, pieces.ptr, whole.len) == 0);
    hd_buf_fini(&whole);
    hd_buf_fini(&pieces);
    return 0;
}
