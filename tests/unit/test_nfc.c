/* nfc: cases of each rule; idempotence; invalid bytes; long runs. That the tables are the reference
 * engine's is tests/tokenizer/nfc.test.mjs. */
#include "support/check.h"

#include "base/clock.h"
#include "base/mem.h"
#include "text/nfc.h"

#include <stdio.h>
#include <string.h>

static void normal_of(const char *text, const char *expected) {
    hd_buf b;
    hd_buf_init(&b, 1 << 20);
    hd_str found = hd_nfc(hd_str_of(text), &b);
    if (!hd_str_eq_c(found, expected))
        fail_msg("%s: expected %s, found %.*s", text, expected, (int)found.len, found.ptr);
    if (strcmp(text, expected) == 0) assert_ptr_equal(found.ptr, text);
    hd_buf_fini(&b);
}

static void composes(void **state) {
    (void)state;
    normal_of("e\u0301", "\u00e9");
    normal_of("xe\u0301y", "x\u00e9y");
    normal_of("\u00e9\u0327", "\u0229\u0301"); /* order first: the cedilla is lower */
    normal_of("a\u0323\u0302", "\u1ead");
    normal_of("a\u0302\u0323", "\u1ead");
    normal_of("q\u0307\u0323", "q\u0323\u0307");
    normal_of("e\u0301e\u0301", "\u00e9\u00e9");
    normal_of("\u0301e", "\u0301e");
    normal_of("e\u0300\u0301", "\u00e8\u0301"); /* the second grave of a class stays */
    normal_of("e\u0315\u0301", "\u00e9\u0315");
    normal_of("e\u0338\u0301", "\u00e9\u0338");
}

static void singletons_and_exclusions(void **state) {
    (void)state;
    normal_of("\u2126\u212a\u212b", "\u03a9K\u00c5");
    normal_of("\u0958", "\u0915\u093c");
    normal_of("\u0915\u093c", "\u0915\u093c");
    normal_of("\U0001d15e", "\U0001d157\U0001d165");
    normal_of("\U0002f800", "\u4e3d");
    normal_of("\u0344", "\u0308\u0301");
    normal_of("\u1e9b\u0323", "\u1e9b\u0323");
}

static void hangul(void **state) {
    (void)state;
    normal_of("\u1112\u1161\u11ab\u1100\u1173\u11af", "\ud55c\uae00");
    normal_of("\uac00\u11a8", "\uac01");
    normal_of("\uac01\u11a8", "\uac01\u11a8");
    normal_of("\u1161\u11a8", "\u1161\u11a8");
    normal_of("\u1100\u0301\u1161", "\u1100\u0301\u1161");
}

static void unchanged(void **state) {
    (void)state;
    normal_of("", "");
    normal_of("plain", "plain");
    normal_of("\u4f60\u597d \u00e9 \u0301", "\u4f60\u597d \u00e9 \u0301");
    normal_of("e\xff\u0301", "e\xff\u0301"); /* an invalid byte ends what is before it */
    normal_of("e\u0301\xcc", "\u00e9\xcc");
    normal_of("a\U0001e2ec\u0327", "a\U0001e2ec\u0327"); /* marks since Unicode 12 */
}

static void long_runs(void **state) {
    (void)state;
    static const char *const unit[] = {"\u0301", "\u0301\u0327", "e\u0301",
                                       "a",      "\u1100\u1161", "\xcc"};
    enum { n = 1 << 19 };
    for (size_t k = 0; k < HD_COUNT_OF(unit); k++) {
        size_t len = strlen(unit[k]), n_text = n / len * len;
        char *text = hd_alloc(n_text);
        for (size_t i = 0; i < n_text; i += len) memcpy(text + i, unit[k], len);
        hd_buf a, b;
        hd_buf_init(&a, SIZE_MAX / 2);
        hd_buf_init(&b, SIZE_MAX / 2);
        int64_t from_ns = hd_now_ns();
        hd_str once = hd_nfc((hd_str){text, n_text}, &a);
        print_message("unit %zu: 512 KiB %.1f ms\n", k, (double)(hd_now_ns() - from_ns) * 1e-6);
        hd_str twice = hd_nfc(once, &b);
        assert_ptr_equal(twice.ptr, once.ptr);
        assert_int_equal(twice.len, once.len);
        hd_buf_fini(&a);
        hd_buf_fini(&b);
        hd_free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(composes),  cmocka_unit_test(singletons_and_exclusions),
        cmocka_unit_test(hangul),    cmocka_unit_test(unchanged),
        cmocka_unit_test(long_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
