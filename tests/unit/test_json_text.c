/* json text: what is a value agrees with jansson, for random and broken texts; members, strings and
 * spacing as Python writes them. */
#include "support/check.h"

#include "support/rng.h"
#include "text/json_text.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool jansson_takes(const char *text, size_t n) {
    json_t *j =
        json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
    json_decref(j);
    return j != NULL;
}

static void values(void **state) {
    (void)state;
    static const char *const yes[] = {
        "{}",          "[]",  " [ 1 , -0.5e+3 ] ",    "\"\\u00e9\\n\"", "null",
        "{\"a\": {}}", "0",   "{\"a\":[{}],\"b\":1}", "-0.0",           "1E5",
        "[[[]]]",      "true"};
    static const char *const no[] = {"",           "{",     "[1,]",  "{\"a\"}", "{\"a\":}",  "01",
                                     "1.",         ".5",    "\"a",   "\"\\x\"", "\"\n\"",    "tru",
                                     "{} {}",      "[1 2]", "{1:2}", "{,}",     "\"\\u12\"", "-",
                                     "{\"a\":1,}", "1e",    "+1",    "]",       "[}"};
    for (size_t i = 0; i < HD_COUNT_OF(yes); i++) {
        assert_true(hd_json_text_is_value(hd_str_of(yes[i])));
        assert_true(jansson_takes(yes[i], strlen(yes[i])));
    }
    for (size_t i = 0; i < HD_COUNT_OF(no); i++)
        if (hd_json_text_is_value(hd_str_of(no[i]))) fail_msg("[%s] is no value", no[i]);
    static char deep[1100];
    memset(deep, '[', 512);
    memset(deep + 512, ']', 512);
    assert_true(hd_json_text_is_value(hd_str_of(deep)));
    memset(deep, '[', 513);
    memset(deep + 513, ']', 513);
    assert_false(hd_json_text_is_value(hd_str_of(deep)));
}

static void agrees_with_jansson(void **state) {
    (void)state;
    static const char *const piece[] = {"{",  "}",    "[",    "]",  ",",     ":", "\"a\"",
                                        "\"", "1",    "-",    ".",  "e",     "0", " ",
                                        "\n", "true", "null", "\\", "u00e9", "{}"};
    test_rng rng = {3};
    int n_yes = 0;
    for (int round = 0; round < 200000; round++) {
        char text[80] = "";
        size_t len = 0;
        for (int n = rng_int(&rng, 1, 8); n > 0; n--)
            len += (size_t)snprintf(text + len, sizeof text - len, "%s",
                                    piece[rng_int(&rng, 0, (int)HD_COUNT_OF(piece) - 1)]);
        bool is_value = hd_json_text_is_value(hd_str_of(text));
        if (is_value != jansson_takes(text, strlen(text))) fail_msg("[%s]: %d", text, is_value);
        n_yes += is_value;
    }
    assert_true(n_yes > 1000);
}

static void members(void **state) {
    (void)state;
    static const char text[] = " { \"a\" : [1, {\"x\": 2}] ,\"\\u00e9\":\"b\", \"c\" : 3 } ";
    static const char *const want[][2] = {
        {"\"a\"", "[1, {\"x\": 2}]"}, {"\"\\u00e9\"", "\"b\""}, {"\"c\"", "3"}};
    hd_str key, value;
    size_t at = 0, n = 0;
    while (hd_json_text_member(hd_str_of(text), &at, &key, &value)) {
        assert_true(n < HD_COUNT_OF(want));
        assert_true(hd_str_eq_c(key, want[n][0]));
        assert_true(hd_str_eq_c(value, want[n++][1]));
    }
    assert_int_equal(n, HD_COUNT_OF(want));
    at = 0;
    assert_false(hd_json_text_member(hd_str_of("{ }"), &at, &key, &value));
}

static void strings_and_spacing(void **state) {
    (void)state;
    static const struct {
        const char *json, *respaced;
    } rows[] = {
        {"{\"a\":1,\"b\":[ 1,2 ]}", "{\"a\": 1, \"b\": [1, 2]}"},
        {"{ }", "{}"},
        {"[1.50,-0e1]", "[1.50, -0e1]"},
        {"\"a, b: c\"", "\"a, b: c\""},
        {"\"\\u4e2d\\/\\u001f\\ud83d\\ude00\\n\"", "\"中/\\u001f😀\\n\""},
        {"\"\\ud83d \\udc00\"", "\"\uFFFD \uFFFD\""},
    };
    hd_buf b;
    hd_buf_init(&b, 1000);
    for (size_t i = 0; i < HD_COUNT_OF(rows); i++) {
        hd_buf_clear(&b);
        hd_json_text_respace(&b, hd_str_of(rows[i].json));
        assert_string_equal(b.ptr, rows[i].respaced);
    }
    hd_buf_clear(&b);
    hd_json_text_decode(&b, hd_str_of("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00E9\""));
    assert_string_equal(b.ptr, "\"\\/\b\f\n\r\té");
    hd_buf_clear(&b);
    for (const char *p = "\"\\\b\f\n\r\t\x01\x1f\x7f/é"; *p; p++) hd_json_escape(&b, *p);
    assert_string_equal(b.ptr, "\\\"\\\\\\b\\f\\n\\r\\t\\u0001\\u001f\x7f/é");
    hd_buf_fini(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values),
        cmocka_unit_test(agrees_with_jansson),
        cmocka_unit_test(members),
        cmocka_unit_test(strings_and_spacing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
