/* The HTTP parser alone: what it makes of heads, at every split, and of lists and chunks. */
#include "support/check.h"

#include "base/mem.h"
#include "srv/http.h"

#include <string.h>

static const char whole[] = "\r\nPOST /v1/x?a=b%20c HTTP/1.1\r\nHost: h:1\r\nContent-Length: 12\r\n"
                            "X-Empty:\r\nx-list: \t a, gzip;q=0, br \t\r\n\r\nbody";

static void head_at_every_split(void **state) {
    (void)state;
    size_t n = strlen(whole) - 4, scanned = 0, used;
    hd_http_head h;
    for (size_t i = 0; i < n; i++) { /* grows byte by byte, remembering how far it looked */
        char *part = hd_alloc(i + 1);
        memcpy(part, whole, i);
        assert_int_equal(hd_http_parse_head((hd_str){part, i}, &scanned, &h, &used), HD_HTTP_MORE);
        hd_free(part);
    }
    assert_int_equal(hd_http_parse_head((hd_str){whole, n + 4}, &scanned, &h, &used), HD_HTTP_DONE);
    assert_int_equal(used, n);
    assert_true(hd_str_eq_c(h.method, "POST"));
    assert_true(hd_str_eq_c(h.path, "/v1/x"));
    assert_true(hd_str_eq_c(h.query, "a=b%20c"));
    assert_int_equal(h.minor, 1);
    assert_int_equal(h.content_length, 12);
    assert_true(h.keep_alive);
    assert_int_equal(h.n_header, 4);
    assert_true(hd_str_eq_c(hd_http_get(&h, "HOST"), "h:1"));
    assert_int_equal(hd_http_get(&h, "x-empty").len, 0);
    assert_non_null(hd_http_get(&h, "x-empty").ptr);
    assert_null(hd_http_get(&h, "x-none").ptr);
    hd_str list = hd_http_get(&h, "x-list");
    assert_true(hd_str_eq_c(list, "a, gzip;q=0, br"));
    assert_true(hd_http_list_has(list, "A"));
    assert_true(hd_http_list_has(list, "br"));
    assert_false(hd_http_list_has(list, "gzip"));
    assert_false(hd_http_list_has(list, "b"));
}

static int code_of(const char *text, hd_http_head *h) {
    size_t scanned = 0, used;
    enum hd_http_result r = hd_http_parse_head(hd_str_of(text), &scanned, h, &used);
    return r == HD_HTTP_DONE ? 200 : r == HD_HTTP_MORE ? 0 : h->error_code;
}

static void connection_and_framing(void **state) {
    (void)state;
    hd_http_head h;
#define H(rest) "GET / HTTP/1.1\r\nHost: t\r\n" rest "\r\n"
    assert_int_equal(code_of(H("Connection: Close\r\n"), &h), 200);
    assert_false(h.keep_alive);
    assert_int_equal(code_of(H("Connection: upgrade, close\r\n"), &h), 200);
    assert_false(h.keep_alive);
    assert_int_equal(code_of("GET / HTTP/1.0\r\n\r\n", &h), 200);
    assert_false(h.keep_alive);
    assert_int_equal(code_of("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", &h), 200);
    assert_true(h.keep_alive);
    assert_int_equal(code_of(H("Transfer-Encoding: Chunked\r\n"), &h), 200);
    assert_true(h.is_chunked);
    assert_int_equal(code_of(H("Transfer-Encoding: chunked, chunked\r\n"), &h), 501);
    assert_int_equal(code_of(H("Transfer-Encoding: gzip, chunked\r\n"), &h), 501);
    assert_int_equal(code_of(H("Content-Length : 3\r\n"), &h), 400);
    assert_int_equal(code_of(H("Content-Length: 3\r\nContent-Length: 30\r\n"), &h), 400);
    assert_int_equal(code_of(H("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), &h),
                     400);
    assert_int_equal(code_of(H("Transfer-Encoding: \x0b"
                               "chunked\r\n"),
                             &h),
                     400);
    assert_int_equal(code_of(H("Content-Length: 5\r\nContent-Length: 5\r\n"), &h), 200);
    assert_int_equal(code_of(H("Content-Length: 5, 5\r\n"), &h), 400);
    assert_int_equal(code_of(H("Content-Length: +5\r\n"), &h), 400);
    assert_int_equal(code_of(H("Content-Length: 0x5\r\n"), &h), 400);
    assert_int_equal(code_of(H("Content-Length: 99999999999999999999\r\n"), &h), 400);
    assert_int_equal(code_of(H("Content-Length:\r\n"), &h), 400);
    assert_int_equal(code_of(H("Expect: 100-Continue\r\n"), &h), 200);
    assert_true(h.expects_continue);
    assert_int_equal(code_of(H("A: b\rc\r\n"), &h), 400);
    assert_int_equal(code_of(H(": b\r\n"), &h), 400);
    assert_int_equal(code_of("OPTIONS * HTTP/1.1\r\nHost: t\r\n\r\n", &h), 200);
    assert_int_equal(code_of("GET http://h HTTP/1.1\r\nHost: t\r\n\r\n", &h), 200);
    assert_true(hd_str_eq_c(h.path, "/"));
    assert_int_equal(code_of("CONNECT h:1 HTTP/1.1\r\nHost: t\r\n\r\n", &h), 400);
    assert_int_equal(code_of("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &h), 505);
    assert_int_equal(code_of("\r\n\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: t\r\n\r\n", &h), 400);
}

static void escapes_in_paths(void **state) {
    (void)state;
    char s[] = "a%2Fb%20%4a%zz%4%";
    size_t n = hd_http_unescape(s, strlen(s));
    assert_int_equal(n, 11);
    assert_memory_equal(s, "a/b J%zz%4%", n);
}

static void a_nul_is_no_header_byte(void **state) {
    (void)state;
    static const char text[] = "GET / HTTP/1.1\r\nHost: t\0u\r\n\r\n";
    size_t scanned = 0, used;
    hd_http_head h;
    assert_int_equal(hd_http_parse_head((hd_str){text, sizeof text - 1}, &scanned, &h, &used),
                     HD_HTTP_BAD);
    assert_int_equal(h.error_code, 400);
}

static void chunks_at_every_split(void **state) {
    (void)state;
    static const char text[] = "1;e=\"f\"\r\na\r\n00b\r\nbcdefghijkl\r\n0;x\r\nT: u\r\n\r\nrest";
    size_t n = strlen(text), n_used;
    for (size_t cut = 0; cut <= n - 4; cut++) {
        hd_http_chunked c = {0};
        hd_buf b;
        hd_buf_init(&b, 100);
        enum hd_http_result r = hd_http_dechunk(&c, (hd_str){text, cut}, &n_used, &b);
        size_t first = n_used;
        if (cut < n - 4) {
            assert_int_equal(r, HD_HTTP_MORE);
            assert_int_equal(first, cut);
            r = hd_http_dechunk(&c, (hd_str){text + cut, n - cut}, &n_used, &b);
            first += n_used;
        }
        assert_int_equal(r, HD_HTTP_DONE);
        assert_int_equal(first, n - 4);
        assert_string_equal(b.ptr, "abcdefghijkl");
        hd_buf_fini(&b);
    }
    hd_http_chunked c = {0};
    hd_buf b;
    hd_buf_init(&b, 3); /* the limit of the body */
    hd_http_dechunk(&c, (hd_str){text, n}, &n_used, &b);
    assert_true(b.overflowed);
    hd_buf_fini(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(head_at_every_split),   cmocka_unit_test(connection_and_framing),
        cmocka_unit_test(escapes_in_paths),      cmocka_unit_test(a_nul_is_no_header_byte),
        cmocka_unit_test(chunks_at_every_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
