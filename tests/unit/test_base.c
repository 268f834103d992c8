/* base: status texts, buffers, lists and the JSON writer, UTF-8 ranges, map, arena. */
#include "support/check.h"

#include "base/buf.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

static void error_text_keeps_its_origin(void **state) {
    (void)state;
    assert_int_equal(HD_FAIL(CORRUPT, "tensor %s: expected %d, found %d", "a.b", 3, 4),
                     HD_E_CORRUPT);
    assert_string_equal(hd_error_text(), "tensor a.b: expected 3, found 4");
    assert_int_equal(hd_fail_context(HD_E_CORRUPT, "file %s", "x"), HD_E_CORRUPT);
    assert_string_equal(hd_error_text(), "file x: tensor a.b: expected 3, found 4");
    assert_int_equal(hd_status_http(HD_E_BUSY), 429);
}

static void buf_stops_at_its_cap(void **state) {
    (void)state;
    hd_buf b;
    hd_buf_init(&b, 8);
    hd_buf_add_c(&b, "12345678");
    assert_false(b.overflowed);
    hd_buf_add_c(&b, "9");
    assert_true(b.overflowed);
    assert_string_equal(b.ptr, "12345678");
    hd_buf_fini(&b);
}

static void list_leaves_out_what_has_no_room(void **state) {
    (void)state;
    char list[10] = "";
    hd_list_add(list, sizeof list, "F32");
    assert_string_equal(list, "F32");
    hd_list_add(list, sizeof list, "Q4_K_M"); /* one byte too many, with its NUL */
    assert_string_equal(list, "F32");
    hd_list_add(list, sizeof list, "BF16");
    assert_string_equal(list, "F32, BF16");
}

static void json_writer_escapes(void **state) {
    (void)state;
    hd_buf b;
    hd_buf_init(&b, 1000);
    hd_json j = hd_json_begin(&b);
    hd_json_object(&j);
    hd_json_key(&j, "a\"b");
    hd_json_str(&j, "x\n\x01\xC3\xA9\xE2\x82\xFF", 8);
    hd_json_key(&j, "n");
    hd_json_array(&j);
    hd_json_int(&j, -3);
    hd_json_num(&j, 0.5);
    hd_json_bool(&j, true);
    hd_json_null(&j);
    hd_json_array_end(&j);
    hd_json_object_end(&j);
    assert_string_equal(
        b.ptr,
        "{\"a\\\"b\":\"x\\n\\u0001\xC3\xA9\xEF\xBF\xBD\xEF\xBF\xBD\",\"n\":[-3,0.5,true,null]}");
    hd_buf_fini(&b);
}

static void utf8_round_trip_and_refusals(void **state) {
    (void)state;
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
        if (cp >= 0xD800 && cp <= 0xDFFF) continue;
        char p[4];
        uint32_t back;
        size_t n = hd_utf8_encode(cp, p);
        assert_int_equal(hd_utf8_decode(p, n, &back), n);
        assert_int_equal(back, cp);
        for (size_t k = 1; k < n; k++) assert_true(hd_utf8_is_partial(p, k));
    }
    uint32_t cp;
    assert_int_equal(hd_utf8_decode("\xC0\x80", 2, &cp), 0);
    assert_int_equal(hd_utf8_decode("\xED\xA0\x80", 3, &cp), 0);
    assert_int_equal(hd_utf8_decode("\xF4\x90\x80\x80", 4, &cp), 0);
    assert_int_equal(hd_utf8_invalid_len("\xE2\x82\xFF", 3), 2);
    assert_false(hd_utf8_is_partial("\xFF", 1));
}

static void map_finds_what_it_was_given(void **state) {
    (void)state;
    hd_map *m = hd_map_new(0);
    static char keys[1000][8];
    for (uint64_t i = 0; i < 1000; i++) {
        snprintf(keys[i], sizeof keys[i], "k%llu", (unsigned long long)i);
        assert_true(hd_map_put(m, hd_str_of(keys[i]), i));
        assert_false(hd_map_put(m, hd_str_of(keys[i]), 7));
    }
    uint64_t v;
    for (uint64_t i = 0; i < 1000; i++) {
        assert_true(hd_map_get(m, hd_str_of(keys[i]), &v));
        assert_int_equal(v, i);
    }
    assert_false(hd_map_get(m, hd_str_of("absent"), &v));
    hd_map_free(m);
}

static void arena_is_zeroed_and_aligned(void **state) {
    (void)state;
    hd_arena *a = hd_arena_new(100);
    for (size_t n = 0; n < 300; n += 7) {
        unsigned char *p = hd_arena_alloc(a, n);
        assert_int_equal((uintptr_t)p % 16, 0);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(p[i], 0);
            p[i] = 0xAA;
        }
    }
    hd_arena_free(a);
}

static void large_memory_is_zeroed(void **state) {
    (void)state;
    for (size_t n = 1; n < (size_t)64 << 20; n = 3 * n + 1) {
        for (int pass = 0; pass < 2; pass++) { /* the second time it may be used memory */
            void *p;
            assert_ok(hd_alloc_large(n, &p));
            assert_int_equal((uintptr_t)p % 64, 0);
            unsigned char any = 0;
            for (size_t i = 0; i < n; i++) any |= ((unsigned char *)p)[i];
            assert_int_equal(any, 0);
            memset(p, 0xAA, n);
            hd_free(p);
        }
    }
    void *p;
    assert_int_equal(hd_alloc_large(SIZE_MAX - 10, &p), HD_E_NO_MEMORY);
    assert_null(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_text_keeps_its_origin),
        cmocka_unit_test(buf_stops_at_its_cap),
        cmocka_unit_test(list_leaves_out_what_has_no_room),
        cmocka_unit_test(json_writer_escapes),
        cmocka_unit_test(utf8_round_trip_and_refusals),
        cmocka_unit_test(map_finds_what_it_was_given),
        cmocka_unit_test(arena_is_zeroed_and_aligned),
        cmocka_unit_test(large_memory_is_zeroed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
