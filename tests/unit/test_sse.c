/* Server-sent events: what the standard's examples give, in any pieces; lengths are bounded. */
#include "support/check.h"

#include "base/sse.h"

#include <string.h>

static void join(void *user, hd_str data) {
    hd_buf_add_c(user, "[");
    hd_buf_add(user, data.ptr, data.len);
    hd_buf_add_c(user, "]");
}

static void check_events(const char *text, const char *expected) {
    for (size_t piece = 1; piece <= strlen(text); piece++) {
        hd_sse s;
        hd_buf out;
        hd_sse_init(&s, 64);
        hd_buf_init(&out, 1024);
        hd_buf_add_c(&out, "");
        for (size_t at = 0; at < strlen(text); at += piece) {
            size_t left = strlen(text) - at;
            hd_str bytes = {text + at, left < piece ? left : piece};
            assert_int_equal(hd_sse_feed(&s, bytes, join, &out), HD_OK);
        }
        assert_string_equal(out.len ? out.ptr : "", expected);
        hd_buf_fini(&out);
        hd_sse_fini(&s);
    }
}

static void events_are_found(void **state) {
    (void)state;
    check_events("data: a\n\ndata: b\n\n", "[a][b]");
    check_events("data: a\r\n\r\ndata:b\r\rdata:  c\n\n", "[a][b][ c]");
    check_events("data: YHOO\ndata: +2\ndata: 10\n\n", "[YHOO\n+2\n10]");
    check_events(": comment\n\ndata: first\nid: 1\n\ndata:second\nevent: x\n\n", "[first][second]");
    check_events("data\n\ndata\ndata\n\ndata:", "[][\n]");
    check_events("database: x\n\ndat: y\n\n: \n\n\n\n", "");
    check_events("data: cut", "");
}

static void lengths_are_bounded(void **state) {
    (void)state;
    hd_sse s;
    hd_buf out;
    hd_buf_init(&out, 1024);
    hd_sse_init(&s, 8);
    assert_int_equal(hd_sse_feed(&s, hd_str_of("data: 12\n\n"), join, &out), HD_OK);
    assert_string_equal(out.ptr, "[12]");
    assert_int_equal(hd_sse_feed(&s, hd_str_of("data: 123"), join, &out), HD_E_TOO_LARGE);
    assert_string_equal(hd_error_text(), "an event of more than 8 bytes");
    hd_sse_fini(&s);
    hd_sse_init(&s, 8);
    assert_int_equal(hd_sse_feed(&s, hd_str_of("data:123\ndata:123\ndata:4\n\n"), join, &out),
                     HD_E_TOO_LARGE);
    assert_string_equal(out.ptr, "[12]");
    hd_sse_fini(&s);
    hd_buf_fini(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_are_found),
        cmocka_unit_test(lengths_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
