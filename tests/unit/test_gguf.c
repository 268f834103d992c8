/* file: GGUF read back from the writer, every value type, and every planted corruption refused in
 * words that name file, place, expected and found. */
#include "support/check.h"
#include "support/files.h"

#include "base/mem.h"
#include "file/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { F32 = 0, F16 = 1, Q8_0 = 8, BF16 = 30 };

static hd_buf image; /* of the test that runs */

static int set_up(void **state) {
    (void)state;
    hd_buf_init(&image, SIZE_MAX);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    hd_buf_fini(&image);
    return 0;
}

/* Opens the image from an exact-size copy, so that a sanitizer sees any read past its end. */
static hd_status open_image(hd_checkpoint **c) {
    static char *copy;
    free(copy);
    copy = malloc(image.len ? image.len : 1);
    if (image.len) memcpy(copy, image.ptr, image.len);
    hd_status s = hd_checkpoint_open_memory(copy, image.len, "m.gguf", c);
    if (s != HD_OK) {
        assert_null(*c);
        free(copy);
        copy = NULL;
        assert_null(strchr(hd_error_text(), '\n'));
    }
    return s;
}

static void refused(hd_status want, const char *words[]) {
    hd_checkpoint *c;
    hd_status s = open_image(&c);
    if (s != want)
        fail_msg("expected %s, found %s: %s", hd_status_name(want), hd_status_name(s),
                 s ? hd_error_text() : "");
    for (int i = 0; words[i]; i++)
        if (!strstr(hd_error_text(), words[i]))
            fail_msg("expected \"%s\" in: %s", words[i], hd_error_text());
    hd_buf_clear(&image);
}
#define REFUSED(code, ...) refused(HD_E_##code, (const char *[]){"m.gguf", __VA_ARGS__, NULL})

/* One tensor, its bytes present. */
static void one_tensor(const char *name, uint32_t n_dim, const uint64_t *ne, uint32_t type,
                       uint64_t offset, size_t n_data) {
    test_gguf_head(&image, 3, 1, 0);
    test_gguf_tensor(&image, name, n_dim, ne, type, offset);
    test_pad(&image, 32);
    test_zeros(&image, n_data);
}

static void write_sample(const char *path) {
    hd_gguf_writer *w;
    assert_ok(hd_gguf_create(path, &w));
    hd_gguf_set_str(w, "general.architecture", hd_str_of("deepseek2"));
    hd_gguf_set_u32(w, "a.u32", 4000000000u);
    hd_gguf_set_i32(w, "a.i32", -5);
    hd_gguf_set_f32(w, "a.f32", 0.1f);
    hd_gguf_set_bool(w, "a.bool", true);
    hd_str words[] = {hd_str_of("one"), hd_str_of(""), hd_str_of("drei")};
    hd_gguf_set_strs(w, "a.words", words, 3);
    int32_t ids[] = {1, -2, 3};
    hd_gguf_set_i32s(w, "a.ids", ids, 3);
    hd_gguf_declare(w, "small.weight", HD_F32, 1, (int64_t[]){3});
    hd_gguf_declare(w, "empty.weight", HD_F32, 2, (int64_t[]){0, 7});
    hd_gguf_declare(w, "stack.weight", HD_Q8_0, 3, (int64_t[]){64, 2, 2});
    hd_gguf_declare(w, "half.weight", HD_F16, 2, (int64_t[]){5, 2});
    assert_ok(hd_gguf_begin(w));
    float small[3] = {1, 2, 3};
    unsigned char q[4 * 68];
    for (size_t i = 0; i < sizeof q; i++) q[i] = (unsigned char)i;
    assert_ok(hd_gguf_data(w, small, 8));
    assert_ok(hd_gguf_data(w, small + 2, 4));
    assert_ok(hd_gguf_data(w, q, sizeof q));
    assert_ok(hd_gguf_data(w, q, 20));
    assert_ok(hd_gguf_finish(w));
}

static void check_values(const hd_gguf *g) {
    int64_t i;
    double d;
    bool b;
    hd_str s, *list;
    size_t n;
    assert_int_equal(hd_gguf_version(g), 3);
    assert_int_equal(hd_gguf_key_count(g), 7);
    assert_true(hd_str_eq_c(hd_gguf_key_at(g, 1), "a.u32"));
    assert_true(hd_gguf_int(g, "a.u32", &i) && i == 4000000000);
    assert_true(hd_gguf_int(g, "a.i32", &i) && i == -5);
    assert_true(hd_gguf_num(g, "a.i32", &d) && d == -5);
    assert_true(hd_gguf_num(g, "a.f32", &d) && d == (double)0.1f);
    assert_false(hd_gguf_int(g, "a.f32", &i));
    assert_true(hd_gguf_bool(g, "a.bool", &b) && b);
    assert_false(hd_gguf_int(g, "a.bool", &i));
    assert_false(hd_gguf_bool(g, "a.u32", &b));
    assert_true(hd_gguf_str(g, "general.architecture", &s) && hd_str_eq_c(s, "deepseek2"));
    assert_false(hd_gguf_str(g, "a.absent", &s));
    assert_true(hd_gguf_array(g, "a.ids", &n) && n == 3);
    assert_true(hd_gguf_array_int(g, "a.ids", 1, &i) && i == -2);
    assert_true(hd_gguf_array_num(g, "a.ids", 2, &d) && d == 3);
    assert_false(hd_gguf_array_int(g, "a.ids", 3, &i));
    assert_false(hd_gguf_array_int(g, "a.words", 0, &i));
    assert_false(hd_gguf_array_strs(g, "a.ids", &list, &n));
    assert_true(hd_gguf_array_strs(g, "a.words", &list, &n) && n == 3);
    assert_true(hd_str_eq_c(list[0], "one") && list[1].len == 0 && hd_str_eq_c(list[2], "drei"));
    hd_free(list);
}

static void check_texts(const hd_gguf *g) {
    hd_buf b;
    hd_buf_init(&b, 1000);
    for (size_t i = 0; i < hd_gguf_key_count(g); i++) {
        hd_gguf_value_text(g, i, &b);
        hd_buf_add_c(&b, " ");
    }
    assert_string_equal(b.ptr, "\"deepseek2\" 4000000000 -5 0.1 true [3 strings] [1, -2, 3] ");
    hd_buf_fini(&b);
}

static void what_is_written_is_read(void **state) {
    (void)state;
    char *dir = test_temp_dir();
    const char *path = test_join(dir, "x.gguf");
    write_sample(path);
    hd_checkpoint *c;
    assert_ok(hd_checkpoint_open(path, &c));
    assert_string_equal(hd_checkpoint_path(c), path);
    check_values(hd_checkpoint_gguf(c));
    check_texts(hd_checkpoint_gguf(c));
    assert_int_equal(hd_checkpoint_count(c), 4);
    const hd_file_tensor *t = hd_checkpoint_find(c, "small.weight");
    assert_non_null(t);
    assert_true(t->n_dim == 1 && t->ne[0] == 3 && t->ne[1] == 1 && t->ne[3] == 1);
    assert_true(t->format == HD_F32 && t->n_byte == 12 && ((const float *)t->data)[2] == 3);
    t = hd_checkpoint_find(c, "stack.weight");
    assert_true(t->n_dim == 3 && t->format == HD_Q8_0 && t->n_byte == 272);
    assert_int_equal((uintptr_t)t->data % 32, 0);
    assert_int_equal(((const unsigned char *)t->data)[255], 255);
    assert_int_equal(((const unsigned char *)t->data)[271], 15);
    t = hd_checkpoint_find(c, "half.weight");
    assert_true(t->n_dim == 2 && t->format == HD_F16 && t->n_byte == 20);
    assert_true(hd_checkpoint_find(c, "empty.weight")->n_byte == 0);
    assert_null(hd_checkpoint_find(c, "no.weight"));
    char *text;
    size_t n;
    assert_int_equal(hd_checkpoint_file(c, "config.json", &text, &n), HD_E_NOT_FOUND);
    hd_checkpoint_close(c);
    /* nothing temporary is left, and the mode is an ordinary file's */
    struct stat st;
    mode_t mask = umask(0);
    umask(mask);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0666 & ~mask);
    unlink(path);
    assert_int_equal(rmdir(dir), 0);
    free(dir);
}

static void an_unfinished_file_leaves_nothing(void **state) {
    (void)state;
    char *dir = test_temp_dir();
    hd_gguf_writer *w;
    assert_ok(hd_gguf_create(test_join(dir, "x.gguf"), &w));
    hd_gguf_declare(w, "a", HD_F32, 1, (int64_t[]){2});
    assert_ok(hd_gguf_begin(w));
    assert_ok(hd_gguf_data(w, "1234", 4));
    assert_int_equal(hd_gguf_finish(w), HD_E_INTERNAL);
    assert_ok(hd_gguf_create(test_join(dir, "x.gguf"), &w));
    hd_gguf_abandon(w);
    hd_gguf_abandon(NULL);
    assert_int_equal(hd_gguf_create(test_join(dir, "none/x.gguf"), &w), HD_E_IO);
    assert_non_null(strstr(hd_error_text(), "none/x.gguf"));
    assert_int_equal(rmdir(dir), 0); /* empty */
    free(dir);
}

/* Raw copy of every value keeps it. */
static void raw_values_are_copied(void **state) {
    (void)state;
    char *dir = test_temp_dir();
    write_sample(test_join(dir, "a.gguf"));
    hd_checkpoint *a, *b;
    hd_gguf_writer *w;
    assert_ok(hd_checkpoint_open(test_join(dir, "a.gguf"), &a));
    assert_ok(hd_gguf_create(test_join(dir, "b.gguf"), &w));
    const hd_gguf *g = hd_checkpoint_gguf(a);
    for (size_t i = 0; i < hd_gguf_key_count(g); i++) {
        uint32_t type;
        hd_str bytes;
        hd_gguf_raw(g, i, &type, &bytes);
        hd_gguf_set_raw(w, hd_gguf_key_at(g, i), type, bytes);
    }
    assert_ok(hd_gguf_begin(w));
    assert_ok(hd_gguf_finish(w));
    assert_ok(hd_checkpoint_open(test_join(dir, "b.gguf"), &b));
    check_values(hd_checkpoint_gguf(b));
    hd_checkpoint_close(a);
    hd_checkpoint_close(b);
    test_remove_dir(dir);
}

static void every_value_type_is_read(void **state) {
    (void)state;
    static const struct {
        uint32_t type;
        const char *bytes;
        size_t n;
        int64_t value;
    } ints[] = {{0, "\xFF", 1, 255},
                {1, "\xFF", 1, -1},
                {2, "\xFE\xFF", 2, 65534},
                {3, "\xFE\xFF", 2, -2},
                {4, "\xFF\xFF\xFF\xFF", 4, 4294967295},
                {5, "\xFF\xFF\xFF\xFF", 4, -1},
                {10, "\1\0\0\0\1\0\0\0", 8, 4294967297},
                {11, "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", 8, -1}};
    test_gguf_head(&image, 2, 0, HD_COUNT_OF(ints) + 3);
    for (size_t i = 0; i < HD_COUNT_OF(ints); i++) {
        char key[8];
        snprintf(key, sizeof key, "k%zu", i);
        test_gguf_key(&image, key, ints[i].type);
        hd_buf_add(&image, ints[i].bytes, ints[i].n);
    }
    double f64 = 1e300;
    test_gguf_key(&image, "f64", 12);
    hd_buf_add(&image, &f64, 8);
    test_gguf_key(&image, "huge", 10);
    test_put_u64(&image, UINT64_MAX);
    test_gguf_key(&image, "nested", 9); /* [[1, 2], []] */
    test_put_u32(&image, 9);
    test_put_u64(&image, 2);
    test_put_u32(&image, 0);
    test_put_u64(&image, 2);
    hd_buf_add(&image, "\1\2", 2);
    test_put_u32(&image, 8);
    test_put_u64(&image, 0);
    hd_checkpoint *c;
    assert_ok(open_image(&c));
    const hd_gguf *g = hd_checkpoint_gguf(c);
    assert_int_equal(hd_gguf_version(g), 2);
    for (size_t i = 0; i < HD_COUNT_OF(ints); i++) {
        char key[8];
        int64_t v = 0;
        snprintf(key, sizeof key, "k%zu", i);
        assert_true(hd_gguf_int(g, key, &v));
        assert_int_equal(v, ints[i].value);
    }
    double d;
    int64_t v;
    size_t n;
    assert_true(hd_gguf_num(g, "f64", &d) && d == 1e300);
    assert_false(hd_gguf_int(g, "huge", &v));
    assert_true(hd_gguf_array(g, "nested", &n) && n == 2);
    assert_false(hd_gguf_array_int(g, "nested", 0, &v));
    hd_checkpoint_close(c);
}

static void bad_headers_are_refused(void **state) {
    (void)state;
    hd_buf_add(&image, "GGU", 3);
    REFUSED(CORRUPT, "magic", "GGU");
    hd_buf_add(&image, "PK\3\4................", 20);
    REFUSED(CORRUPT, "magic", "PK??");
    hd_buf_add(&image, "GGUF\3\0", 6);
    REFUSED(CORRUPT, "version", "expected 4 bytes", "after 2");
    test_gguf_head(&image, 1, 0, 0);
    REFUSED(UNSUPPORTED, "version", "expected 2 or 3", "found 1");
    test_gguf_head(&image, 4, 0, 0);
    REFUSED(UNSUPPORTED, "version", "found 4");
    test_gguf_head(&image, 0x03000000, 0, 0);
    REFUSED(UNSUPPORTED, "big-endian");
    test_gguf_head(&image, 3, 1ull << 60, 0);
    REFUSED(CORRUPT, "tensor count", "1152921504606846976");
    test_gguf_head(&image, 3, 0, 1ull << 60);
    REFUSED(CORRUPT, "key count", "1152921504606846976");
    test_gguf_head(&image, 3, 0, 1);
    test_zeros(&image, 12);
    REFUSED(CORRUPT, "key count", "12 bytes");
    REFUSED(CORRUPT, "magic"); /* empty */
}

static void bad_metadata_is_refused(void **state) {
    (void)state;
    test_gguf_head(&image, 3, 0, 1);
    test_put_u64(&image, 1ull << 63); /* key length */
    test_zeros(&image, 40);
    REFUSED(CORRUPT, "metadata key", "9223372036854775808");
    test_gguf_head(&image, 3, 0, 1);
    test_put_u64(&image, 0);
    test_put_u32(&image, 4);
    test_put_u64(&image, 4);
    REFUSED(CORRUPT, "metadata key", "found 0");
    test_gguf_head(&image, 3, 0, 2);
    test_gguf_key_u32(&image, "a.key", 1);
    test_gguf_key_u32(&image, "a.key", 2);
    REFUSED(CORRUPT, "a.key", "once", "twice");
    test_gguf_head(&image, 3, 0, 1);
    test_gguf_key(&image, "a.key", 13);
    test_zeros(&image, 8);
    REFUSED(CORRUPT, "a.key", "value type", "found 13");
    test_gguf_head(&image, 3, 0, 1);
    test_gguf_key(&image, "a.bool", 7);
    hd_buf_add(&image, "\2", 1);
    REFUSED(CORRUPT, "a.bool", "0 or 1", "found 2");
    test_gguf_head(&image, 3, 0, 1);
    test_gguf_key(&image, "a.text", 8);
    test_put_u64(&image, 100);
    hd_buf_add_c(&image, "short");
    REFUSED(CORRUPT, "a.text", "expected 100 bytes", "after 5");
    test_gguf_head(&image, 3, 0, 1);
    test_gguf_key(&image, "a.list", 9);
    test_put_u32(&image, 5);
    test_put_u64(&image, 1ull << 62);
    REFUSED(CORRUPT, "a.list", "4611686018427387904");
    test_gguf_head(&image, 3, 0, 1);
    test_gguf_key(&image, "a.list", 9);
    test_put_u32(&image, 99);
    test_put_u64(&image, 0);
    REFUSED(CORRUPT, "a.list", "element type", "found 99");
    test_gguf_head(&image, 3, 0, 1);
    test_gguf_key(&image, "a.list", 9);
    test_put_u32(&image, 8);
    test_put_u64(&image, 2);
    test_gguf_str(&image, "fine");
    test_put_u64(&image, 1ull << 40);
    REFUSED(CORRUPT, "a.list", "1099511627776");
    test_gguf_head(&image, 3, 0, 1);
    test_gguf_key(&image, "a.deep", 9);
    for (int i = 0; i < 6; i++) {
        test_put_u32(&image, 9);
        test_put_u64(&image, 1);
    }
    test_zeros(&image, 12);
    REFUSED(CORRUPT, "a.deep", "deep");
    test_gguf_head(&image, 3, 0, 1);
    test_gguf_str(&image, "bad\nkey");
    test_put_u32(&image, 77);
    test_zeros(&image, 8);
    REFUSED(CORRUPT, "bad?key"); /* and one line, checked in open_image */
}

static void bad_alignment_is_refused(void **state) {
    (void)state;
    static const uint32_t bad[] = {0, 1, 4, 24, 33, 0xFFFFFFFF};
    for (size_t i = 0; i < HD_COUNT_OF(bad); i++) {
        char found[32];
        test_gguf_head(&image, 3, 0, 1);
        test_gguf_key_u32(&image, "general.alignment", bad[i]);
        snprintf(found, sizeof found, "found %u", bad[i]);
        REFUSED(CORRUPT, "general.alignment", "power of two", found);
    }
    test_gguf_head(&image, 3, 0, 1);
    test_gguf_key_str(&image, "general.alignment", "32");
    REFUSED(CORRUPT, "general.alignment", "integer", "string");
}

static void alignment_is_obeyed(void **state) {
    (void)state;
    test_gguf_head(&image, 3, 2, 1);
    test_gguf_key_u32(&image, "general.alignment", 128);
    test_gguf_tensor(&image, "a", 1, (uint64_t[]){1}, F32, 0);
    test_gguf_tensor(&image, "b", 1, (uint64_t[]){1}, F32, 128);
    test_pad(&image, 128);
    hd_buf_add(&image, "AAAA", 4);
    test_pad(&image, 128);
    hd_buf_add(&image, "BBBB", 4);
    hd_checkpoint *c;
    assert_ok(open_image(&c));
    assert_memory_equal(hd_checkpoint_find(c, "a")->data, "AAAA", 4);
    assert_memory_equal(hd_checkpoint_find(c, "b")->data, "BBBB", 4);
    hd_checkpoint_close(c);
}

/* A type that is not computed with is listed under its name: a model may not need the tensor. */
static void other_types_are_listed(void **state) {
    (void)state;
    static const struct {
        uint32_t type;
        const char *name;
        uint64_t n, n_byte;
    } types[] = {{18, "IQ3_XXS", 512, 196}, {26, "I32", 3, 12}, {28, "F64", 2, 16}};
    for (size_t i = 0; i < HD_COUNT_OF(types); i++) {
        hd_checkpoint *c;
        one_tensor("t", 1, (uint64_t[]){types[i].n}, types[i].type, 0, types[i].n_byte);
        assert_ok(open_image(&c));
        const hd_file_tensor *t = hd_checkpoint_find(c, "t");
        assert_true(t->format == HD_FORMAT_COUNT && t->n_byte == types[i].n_byte);
        assert_string_equal(t->type, types[i].name);
        hd_checkpoint_close(c);
        hd_buf_clear(&image);
    }
}

static void bad_tensors_are_refused(void **state) {
    (void)state;
    static const char name64[] = "n234567890123456789012345678901234567890123456789012345678901234";
    one_tensor(name64, 1, (uint64_t[]){1}, F32, 0, 4);
    REFUSED(CORRUPT, "tensor name", "63", "found 64");
    one_tensor("", 1, (uint64_t[]){1}, F32, 0, 4);
    REFUSED(CORRUPT, "tensor name", "found 0");
    one_tensor("a\tb", 1, (uint64_t[]){1}, F32, 0, 4);
    REFUSED(CORRUPT, "a?b", "clean");
    one_tensor("a\xC2\x9B"
               "2Jb",
               1, (uint64_t[]){1}, F32, 0, 4); /* U+009B, as ESC [ */
    REFUSED(CORRUPT, "a?2Jb", "clean");
    one_tensor("t", 5, (uint64_t[]){1, 1, 1, 1, 1}, F32, 0, 4);
    REFUSED(CORRUPT, "tensor t", "4 dimensions", "found 5");
    one_tensor("t", 1, (uint64_t[]){1ull << 63}, F32, 0, 4);
    REFUSED(CORRUPT, "tensor t", "2^63", "9223372036854775808");
    one_tensor("t", 4, (uint64_t[]){1u << 20, 1u << 20, 1u << 20, 1u << 20}, F32, 0, 4);
    REFUSED(CORRUPT, "tensor t", "product");
    one_tensor("t", 2, (uint64_t[]){1ull << 61, 2}, F32, 0, 4);
    REFUSED(CORRUPT, "tensor t", "product");
    one_tensor("t", 1, (uint64_t[]){33}, Q8_0, 0, 68);
    REFUSED(CORRUPT, "tensor t", "multiple of 32", "found 33");
    one_tensor("t", 1, (uint64_t[]){256}, 18, 0, 97);
    REFUSED(CORRUPT, "tensor t", "98 bytes");
    one_tensor("t", 1, (uint64_t[]){255}, 18, 0, 98);
    REFUSED(CORRUPT, "tensor t", "IQ3_XXS", "multiple of 256");
    one_tensor("t", 1, (uint64_t[]){256}, UINT32_MAX, 0, 144);
    REFUSED(CORRUPT, "tensor t", "4294967295");
    one_tensor("t", 1, (uint64_t[]){256}, 4, 0, 144);
    REFUSED(CORRUPT, "tensor t", "no such type", "4");
    one_tensor("t", 1, (uint64_t[]){256}, 4711, 0, 144);
    REFUSED(CORRUPT, "tensor t", "4711");
    one_tensor("t", 1, (uint64_t[]){4}, F32, 8, 32);
    REFUSED(CORRUPT, "tensor t", "multiple of 32", "found 8");
    one_tensor("t", 1, (uint64_t[]){4}, F32, 0, 15);
    REFUSED(CORRUPT, "tensor t", "expected 16 bytes at offset 0", "15 bytes");
    one_tensor("t", 1, (uint64_t[]){4}, F32, 32, 40);
    REFUSED(CORRUPT, "tensor t", "offset 32", "40 bytes");
    one_tensor("t", 1, (uint64_t[]){4}, F32, ~31ull, 40);
    REFUSED(CORRUPT, "tensor t", "18446744073709551584");
    test_gguf_head(&image, 3, 2, 0);
    test_gguf_tensor(&image, "same", 1, (uint64_t[]){4}, F32, 0);
    test_gguf_tensor(&image, "same", 1, (uint64_t[]){4}, F32, 32);
    test_zeros(&image, 96);
    REFUSED(CORRUPT, "tensor same", "once", "twice");
    test_gguf_head(&image, 3, 2, 0);
    test_gguf_tensor(&image, "one", 1, (uint64_t[]){12}, F32, 0);
    test_gguf_tensor(&image, "two", 1, (uint64_t[]){4}, F32, 32);
    test_zeros(&image, 128);
    REFUSED(CORRUPT, "tensor two", "overlap", "tensor one");
}

/* Every cut of a good file is refused, except cuts inside the last padding. */
static void every_cut_is_refused(void **state) {
    (void)state;
    char *dir = test_temp_dir();
    write_sample(test_join(dir, "x.gguf"));
    size_t n;
    char *bytes = test_read_file(test_join(dir, "x.gguf"), &n);
    size_t n_padding = (32 - 20 % 32) % 32;
    for (size_t cut = 0; cut < n - n_padding; cut++) {
        hd_checkpoint *c;
        hd_buf_clear(&image);
        hd_buf_add(&image, bytes, cut);
        hd_status s = open_image(&c);
        if (s != HD_E_CORRUPT) fail_msg("cut at %zu of %zu: %s", cut, n, hd_status_name(s));
    }
    free(bytes);
    test_remove_dir(dir);
}

static void write_part(const char *path, uint32_t no, uint32_t count, const char *tensor,
                       uint32_t n_all) {
    hd_gguf_writer *w;
    assert_ok(hd_gguf_create(path, &w));
    hd_gguf_set_u32(w, "split.no", no);
    hd_gguf_set_u32(w, "split.count", count);
    hd_gguf_set_u32(w, "split.tensors.count", n_all);
    if (no == 0) hd_gguf_set_str(w, "general.architecture", hd_str_of("x"));
    if (tensor) hd_gguf_declare(w, tensor, HD_F32, 1, (int64_t[]){1});
    assert_ok(hd_gguf_begin(w));
    float v = (float)no;
    if (tensor) assert_ok(hd_gguf_data(w, &v, 4));
    assert_ok(hd_gguf_finish(w));
}

static void split_files_are_joined(void **state) {
    (void)state;
    char *dir = test_temp_dir(), *part[3];
    hd_checkpoint *c;
    for (int i = 0; i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "m-%05d-of-00003.gguf", i + 1);
        part[i] = strdup(test_join(dir, name));
    }
    write_part(part[0], 0, 3, NULL, 2);
    write_part(part[1], 1, 3, "a", 2);
    write_part(part[2], 2, 3, "b", 2);
    assert_ok(hd_checkpoint_open(part[0], &c));
    assert_int_equal(hd_checkpoint_count(c), 2);
    assert_true(*(const float *)hd_checkpoint_find(c, "b")->data == 2);
    assert_string_equal(hd_checkpoint_find(c, "b")->file, part[2]);
    hd_checkpoint_close(c);
    for (int i = 1; i < 3; i++) { /* any part leads to the first */
        assert_ok(hd_checkpoint_open(part[i], &c));
        assert_int_equal(hd_checkpoint_count(c), 2);
        assert_string_equal(hd_checkpoint_path(c), part[0]);
        hd_checkpoint_close(c);
    }
    for (uint32_t count = 0; count < 2;
         count++) { /* whole files: as merged, and as split into one */
        write_part(test_join(dir, "whole.gguf"), 0, count, "a", 1);
        assert_ok(hd_checkpoint_open(test_join(dir, "whole.gguf"), &c));
        assert_int_equal(hd_checkpoint_count(c), 1);
        hd_checkpoint_close(c);
    }
    write_part(part[0], 2, 3, NULL, 2); /* two that say they are the last */
    assert_int_equal(hd_checkpoint_open(part[2], &c), HD_E_INVALID);
    assert_non_null(strstr(hd_error_text(), "-00003-of-00003.gguf"));
    write_part(part[0], 3, 3, NULL, 2);
    assert_int_equal(hd_checkpoint_open(part[0], &c), HD_E_CORRUPT);
    assert_non_null(strstr(hd_error_text(), "split.no: expected 0 to 2, found 3"));
    write_part(part[0], 0, 3, NULL, 2);
    write_part(part[2], 1, 3, "b", 2);
    assert_int_equal(hd_checkpoint_open(part[0], &c), HD_E_CORRUPT);
    assert_non_null(strstr(hd_error_text(), "expected split.no 2 of 3, found 1 of 3"));
    write_part(part[2], 2, 3, "a", 2);
    assert_int_equal(hd_checkpoint_open(part[0], &c), HD_E_CORRUPT);
    assert_non_null(strstr(hd_error_text(), "twice"));
    write_part(part[2], 2, 3, NULL, 2);
    assert_int_equal(hd_checkpoint_open(part[0], &c), HD_E_CORRUPT);
    assert_non_null(strstr(hd_error_text(), "expected 2 tensors"));
    unlink(part[2]);
    assert_int_equal(hd_checkpoint_open(part[0], &c), HD_E_NOT_FOUND);
    assert_non_null(strstr(hd_error_text(), "m-00003-of-00003.gguf"));
    assert_non_null(strstr(hd_error_text(), "part 3 of 3"));
    assert_int_equal(rename(part[0], test_join(dir, "other.gguf")), 0);
    assert_int_equal(hd_checkpoint_open(part[1], &c), HD_E_NOT_FOUND);
    assert_non_null(strstr(hd_error_text(), "m-00001-of-00003.gguf"));
    assert_non_null(strstr(hd_error_text(), "the first part of"));
    assert_int_equal(hd_checkpoint_open(test_join(dir, "other.gguf"), &c), HD_E_INVALID);
    for (int i = 0; i < 3; i++) free(part[i]);
    test_remove_dir(dir);
}

static void odd_paths_are_one_line(void **state) {
    (void)state;
    char *dir = test_temp_dir();
    hd_checkpoint *c;
    static const char *const names[] = {"absent.gguf", "folder.gguf", "empty.gguf",
                                        "loop.gguf",   "pipe.gguf",   "text.gguf/x.gguf"};
    static const hd_status want[] = {HD_E_NOT_FOUND, HD_E_NOT_FOUND, HD_E_CORRUPT,
                                     HD_E_IO,        HD_E_IO,        HD_E_NOT_FOUND};
    static const char *const words[] = {"no such file", "without config.json",
                                        "empty",        "Too many levels of sy",
                                        "a pipe",       "no such"};
    assert_int_equal(mkdir(test_join(dir, "folder.gguf"), 0755), 0);
    test_write_text(test_join(dir, "empty.gguf"), "");
    test_write_text(test_join(dir, "text.gguf"), "x");
    assert_int_equal(symlink("loop.gguf", test_join(dir, "loop.gguf")), 0);
    assert_int_equal(mkfifo(test_join(dir, "pipe.gguf"), 0644), 0);
    for (size_t i = 0; i < HD_COUNT_OF(names); i++) {
        assert_int_equal(hd_checkpoint_open(test_join(dir, names[i]), &c), want[i]);
        assert_null(c);
        assert_non_null(strstr(hd_error_text(), names[i]));
        if (!strstr(hd_error_text(), words[i])) fail_msg("%s: %s", words[i], hd_error_text());
        assert_null(strchr(hd_error_text(), '\n'));
    }
    test_remove_dir(dir);
}

static uint64_t told_done, told_all;
static void on_progress(void *user, uint64_t done, uint64_t all) {
    (void)user;
    told_done = done;
    told_all = all;
}

/* The same tensors in another order have the same hash; any change has another. */
static void hash_is_of_the_tensors(void **state) {
    (void)state;
    static const struct {
        const char *first, *second, *a_bytes;
        uint32_t type;
    } cases[] = {{"a", "b", "AAAA", F32},
                 {"b", "a", "AAAA", F32},
                 {"a", "b", "AAAB", F32},
                 {"a", "c", "AAAA", F32},
                 {"a", "b", "AAAA", BF16}};
    char hash[HD_COUNT_OF(cases)][33];
    for (size_t i = 0; i < HD_COUNT_OF(cases); i++) {
        hd_checkpoint *c;
        hd_buf_clear(&image);
        uint64_t ne = cases[i].type == F32 ? 1 : 2;
        test_gguf_head(&image, 3, 2, 0);
        test_gguf_tensor(&image, cases[i].first, 1, &ne, cases[i].type, 0);
        test_gguf_tensor(&image, cases[i].second, 1, &ne, cases[i].type, 32);
        test_pad(&image, 32);
        bool a_first = strcmp(cases[i].first, "a") == 0;
        hd_buf_add_c(&image, a_first ? cases[i].a_bytes : "BBBB");
        test_pad(&image, 32);
        hd_buf_add_c(&image, a_first ? "BBBB" : cases[i].a_bytes);
        assert_ok(open_image(&c));
        hd_checkpoint_hash(c, hash[i], on_progress, NULL);
        assert_true(told_done == 8 && told_all == 8);
        assert_int_equal(strlen(hash[i]), 32);
        hd_checkpoint_close(c);
    }
    assert_string_equal(hash[0], hash[1]);
    for (size_t i = 2; i < HD_COUNT_OF(cases); i++) assert_string_not_equal(hash[0], hash[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_written_is_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_unfinished_file_leaves_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(raw_values_are_copied, set_up, tear_down),
        cmocka_unit_test_setup_teardown(every_value_type_is_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(bad_headers_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(bad_metadata_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(bad_alignment_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(alignment_is_obeyed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(other_types_are_listed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(bad_tensors_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(every_cut_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(split_files_are_joined, set_up, tear_down),
        cmocka_unit_test_setup_teardown(odd_paths_are_one_line, set_up, tear_down),
        cmocka_unit_test_setup_teardown(hash_is_of_the_tensors, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
