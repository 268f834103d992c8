/* unicode: the generated table equals tools/unicode_classes.json for every code point. */
#include "support/check.h"

#include "text/unicode.h"

#include <jansson.h>
#include <stdlib.h>

enum { cp_end = 0x110000 };

static void table_equals_the_ranges(void **state) {
    (void)state;
    static const char *const key[] = {"", "L", "M", "N", "P", "S", "s"};
    size_t n;
    char *text = test_read_file(test_path("tools/unicode_classes.json"), &n);
    json_t *root = json_loadb(text, n, 0, NULL);
    json_t *classes = json_object_get(root, "classes");
    unsigned char *want = calloc(cp_end, 1);
    assert_non_null(want);
    assert_int_equal(json_object_size(classes), HD_COUNT_OF(key) - 1);
    for (unsigned k = 1; k < HD_COUNT_OF(key); k++) {
        json_t *range;
        size_t i;
        json_array_foreach(json_object_get(classes, key[k]), i, range) {
            json_int_t first = json_integer_value(json_array_get(range, 0));
            json_int_t last = json_integer_value(json_array_get(range, 1));
            for (json_int_t cp = first; cp <= last; cp++) want[cp] = (unsigned char)k;
        }
        assert_true(i > 0);
    }
    for (uint32_t cp = 0; cp < cp_end; cp++)
        if ((unsigned)hd_unicode_class_of(cp) != want[cp])
            fail_msg("U+%04X: expected %u, found %d", cp, want[cp], (int)hd_unicode_class_of(cp));
    free(want);
    json_decref(root);
    free(text);
}

static void known_characters(void **state) {
    (void)state;
    assert_int_equal(hd_unicode_class_of('a'), HD_UC_LETTER);
    assert_int_equal(hd_unicode_class_of('7'), HD_UC_NUMBER);
    assert_int_equal(hd_unicode_class_of('!'), HD_UC_PUNCT);
    assert_int_equal(hd_unicode_class_of('$'), HD_UC_SYMBOL);
    assert_int_equal(hd_unicode_class_of('\t'), HD_UC_SPACE);
    assert_int_equal(hd_unicode_class_of(0x301), HD_UC_MARK);
    assert_int_equal(hd_unicode_class_of(0), HD_UC_NONE);
    assert_int_equal(hd_unicode_class_of(0x200B), HD_UC_NONE);
    assert_int_equal(hd_unicode_class_of(0x2000B), HD_UC_LETTER);
    assert_int_equal(hd_unicode_class_of(0xE0100), HD_UC_MARK);
    assert_int_equal(hd_unicode_class_of(0x10FFFF), HD_UC_NONE);
    assert_int_equal(hd_unicode_class_of(0x7FFFFFFF), HD_UC_NONE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_equals_the_ranges),
        cmocka_unit_test(known_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
