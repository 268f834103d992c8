/* file: safetensors folders, single and sharded, read rightly; every planted corruption refused in
 * words that name file, tensor, expected and found. */
#include "support/check.h"
#include "support/files.h"

#include "base/mem.h"
#include "file/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *dir;

static int set_up(void **state) {
    (void)state;
    dir = test_temp_dir();
    test_write_text(test_join(dir, "config.json"), "{}");
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    test_remove_dir(dir);
    return 0;
}

static void write_image(const char *name, const char *header, size_t n_data) {
    hd_buf b;
    hd_buf_init(&b, SIZE_MAX);
    test_safetensors(&b, header, n_data);
    test_write_file(test_join(dir, name), b.ptr, b.len);
    hd_buf_fini(&b);
}

static void refused(hd_status want, const char *words[]) {
    hd_checkpoint *c;
    hd_status s = hd_checkpoint_open(dir, &c);
    if (s != want)
        fail_msg("expected %s, found %s: %s", hd_status_name(want), hd_status_name(s),
                 s ? hd_error_text() : "");
    assert_null(c);
    for (int i = 0; words[i]; i++)
        if (!strstr(hd_error_text(), words[i]))
            fail_msg("expected \"%s\" in: %s", words[i], hd_error_text());
    assert_null(strchr(hd_error_text(), '\n'));
}
#define REFUSED(code, ...) refused(HD_E_##code, (const char *[]){__VA_ARGS__, NULL})
#define REFUSED_HEADER(header, n_data, code, ...)                                                  \
    do {                                                                                           \
        write_image("model.safetensors", header, n_data);                                          \
        REFUSED(code, "model.safetensors", __VA_ARGS__);                                           \
    } while (0)

static void a_hole_at_the_start_is_refused(void **state) {
    (void)state;
    hd_buf b;
    hd_buf_init(&b, SIZE_MAX);
    test_safetensors(&b,
                     "{\"__metadata__\":{\"format\":\"pt\"},"
                     "\"w\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[1,13]},"
                     "\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[13,17]},"
                     "\"none\":{\"dtype\":\"F16\",\"shape\":[0,4],\"data_offsets\":[0,0]},"
                     "\"odd\":{\"dtype\":\"F16\",\"shape\":[0],\"data_offsets\":[17,17]}} \n ",
                     0);
    hd_buf_add(&b, "?", 1);
    hd_buf_add(&b, "abcdefghijkl", 12);
    hd_buf_add(&b, "\0\0\x80\x3f", 4);
    test_write_file(test_join(dir, "model.safetensors"), b.ptr, b.len);
    hd_buf_fini(&b);
    /* byte 0 belongs to nothing: a hole */
    REFUSED(CORRUPT, "model.safetensors", "tensor w", "hole", "begin at 0", "found 1");
}

static void shapes_are_turned_round(void **state) {
    (void)state;
    hd_buf b;
    hd_checkpoint *c;
    hd_buf_init(&b, SIZE_MAX);
    test_safetensors(&b,
                     "{\"w\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
                     "\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[12,16]},"
                     "\"none\":{\"dtype\":\"F16\",\"shape\":[0,4],\"data_offsets\":[16,16]},"
                     "\"ids\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[16,24]}}  ",
                     0);
    hd_buf_add(&b, "abcdefghijkl\0\0\x80\x3fIDS0IDS1", 24);
    test_write_file(test_join(dir, "model.safetensors"), b.ptr, b.len);
    hd_buf_fini(&b);
    assert_ok(hd_checkpoint_open(dir, &c));
    assert_null(hd_checkpoint_gguf(c));
    assert_int_equal(hd_checkpoint_count(c), 4);
    const hd_file_tensor *t = hd_checkpoint_find(c, "ids"); /* listed, not computed with */
    assert_true(t->format == HD_FORMAT_COUNT && t->n_byte == 8);
    assert_string_equal(t->type, "I32");
    t = hd_checkpoint_find(c, "w");
    assert_string_equal(t->type, "BF16");
    assert_true(t->format == HD_BF16 && t->n_dim == 2 && t->ne[0] == 3 && t->ne[1] == 2);
    assert_true(t->ne[2] == 1 && t->n_byte == 12);
    assert_memory_equal(t->data, "abcdefghijkl", 12);
    assert_non_null(strstr(t->file, "model.safetensors"));
    t = hd_checkpoint_find(c, "s");
    assert_true(t->n_dim == 0 && t->n_byte == 4);
    assert_int_equal(hd_checkpoint_find(c, "none")->n_byte, 0);
    char *text;
    size_t n;
    assert_ok(hd_checkpoint_file(c, "config.json", &text, &n));
    assert_string_equal(text, "{}");
    assert_int_equal(n, 2);
    hd_free(text);
    assert_int_equal(hd_checkpoint_file(c, "tokenizer.json", &text, &n), HD_E_NOT_FOUND);
    assert_null(text);
    hd_checkpoint_close(c);
}

#define T(dtype, shape, begin, end)                                                                \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static void bad_headers_are_refused(void **state) {
    (void)state;
    REFUSED(NOT_FOUND, "model.safetensors", "model.safetensors.index.json", "neither");
    test_write_text(test_join(dir, "model.safetensors"), "");
    REFUSED(CORRUPT, "model.safetensors", "empty");
    test_write_text(test_join(dir, "model.safetensors"), "1234567");
    REFUSED(CORRUPT, "model.safetensors", "7 bytes");
    test_write_file(test_join(dir, "model.safetensors"), "\1\xE1\xF5\5\0\0\0\0{}", 10);
    REFUSED(CORRUPT, "100000000", "found 100000001");
    test_write_file(test_join(dir, "model.safetensors"), "\3\0\0\0\0\0\0\0{}", 10);
    REFUSED(CORRUPT, "expected 3 bytes", "found 2");
    REFUSED_HEADER("", 0, CORRUPT, "JSON object");
    REFUSED_HEADER("[]", 0, CORRUPT, "JSON object", "[]");
    REFUSED_HEADER(" {}", 0, CORRUPT, "JSON object");
    REFUSED_HEADER("{\"a\":1", 0, CORRUPT, "JSON", "line 1");
    REFUSED_HEADER("{} x", 0, CORRUPT, "JSON");
    REFUSED_HEADER("{\"a\xFF\":1}", 0, CORRUPT, "JSON");
    REFUSED_HEADER("{\"__metadata__\":[]}", 0, CORRUPT, "__metadata__", "a list of 0");
    REFUSED_HEADER("{\"__metadata__\":{\"a\":1}}", 0, CORRUPT, "__metadata__", "found 1");
    REFUSED_HEADER("{\"a\":" T("F32", "[1]", 0, 4) ",\"a\":" T("F32", "[1]", 4, 8) "}", 8, CORRUPT,
                   "duplicate");
}

static void bad_tensors_are_refused(void **state) {
    (void)state;
    REFUSED_HEADER("{\"a\":1}", 0, CORRUPT, "tensor a", "object", "found 1");
    REFUSED_HEADER("{\"a\":{}}", 0, CORRUPT, "tensor a", "data_offsets", "nothing");
    REFUSED_HEADER("{\"a\":" T("F32", "[2]", 0, 4) "}", 4, CORRUPT, "tensor a", "expected 8 bytes",
                   "found 4");
    REFUSED_HEADER("{\"a\":" T("F32", "[1]", 0, 4) "}", 3, CORRUPT, "tensor a", "[0, 4)",
                   "found 3 bytes");
    REFUSED_HEADER("{\"a\":" T("F32", "[1]", 4, 0) "}", 8, CORRUPT, "tensor a", "data_offsets");
    REFUSED_HEADER("{\"a\":" T("F32", "[1]", -4, 0) "}", 8, CORRUPT, "tensor a", "data_offsets");
    REFUSED_HEADER("{\"a\":" T("F32", "[1]", 0, 4.0) "}", 8, CORRUPT, "tensor a", "data_offsets");
    REFUSED_HEADER("{\"a\":" T("F32", "[1]", 0, 99999999999999999999) "}", 8, CORRUPT, "integer");
    REFUSED_HEADER("{\"a\":" T("F32", "[-1]", 0, 4) "}", 4, CORRUPT, "tensor a", "shape",
                   "found -1");
    REFUSED_HEADER("{\"a\":" T("F32", "[1.5]", 0, 4) "}", 4, CORRUPT, "tensor a", "shape");
    REFUSED_HEADER("{\"a\":" T("F32", "3", 0, 4) "}", 4, CORRUPT, "tensor a", "shape", "found 3");
    REFUSED_HEADER("{\"a\":" T("F32", "[4294967296,4294967296]", 0, 4) "}", 4, CORRUPT, "tensor a",
                   "product");
    REFUSED_HEADER("{\"a\":" T("F32", "[1,1,1,1,1]", 0, 4) "}", 4, UNSUPPORTED, "tensor a",
                   "4 dimensions", "found 5");
    REFUSED_HEADER("{\"a\":" T("Q4_K", "[4]", 0, 4) "}", 4, UNSUPPORTED, "tensor a", "\"Q4_K\"",
                   "F32, F16, BF16, F8_E4M3, F8_E8M0");
    REFUSED_HEADER("{\"a\":" T("I64", "[4]", 0, 31) "}", 31, CORRUPT, "tensor a", "32 bytes", "31");
    REFUSED_HEADER("{\"a\":" T("F4", "[5]", 0, 3) "}", 3, CORRUPT, "tensor a", "multiple of 2");
    REFUSED_HEADER("{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, CORRUPT,
                   "tensor a", "dtype", "found 7");
    REFUSED_HEADER("{\"a\":" T("F32", "[2]", 0, 8) ",\"b\":" T("F32", "[1]", 4, 8) "}", 8, CORRUPT,
                   "tensor b", "overlap");
    REFUSED_HEADER("{\"a\":" T("F32", "[1]", 0, 4) ",\"b\":" T("F32", "[1]", 8, 12) "}", 12,
                   CORRUPT, "tensor b", "hole");
    REFUSED_HEADER("{\"a\":" T("F32", "[1]", 0, 4) "}", 9, CORRUPT, "expected 4 bytes", "found 9");
    REFUSED_HEADER("{\"\":" T("F32", "[1]", 0, 4) "}", 4, CORRUPT, "tensor name");
    REFUSED_HEADER("{\"a\\nb\":" T("F32", "[1]", 0, 4) "}", 4, CORRUPT, "a?b");
}

static void shards_are_joined_by_the_index(void **state) {
    (void)state;
    hd_checkpoint *c;
    write_image("x-1.safetensors",
                "{\"a\":" T("F32", "[1]", 0, 4) ",\"stray\":" T("F8_E4M3", "[4]", 4, 8) "}", 8);
    write_image("x-2.safetensors",
                "{\"b\":" T("F32", "[1]", 0, 4) ",\"a\":" T("F32", "[1]", 4, 8) "}", 8);
    write_image("unlisted.safetensors", "not even a header", 0);
    test_write_text(test_join(dir, "model.safetensors.index.json"),
                    "{\"metadata\":{\"total_size\":8},\"weight_map\":{\"a\":\"x-1.safetensors\","
                    "\"b\":\"x-2.safetensors\"}}");
    assert_ok(hd_checkpoint_open(dir, &c));
    assert_int_equal(hd_checkpoint_count(c), 2);
    assert_non_null(strstr(hd_checkpoint_find(c, "a")->file, "x-1"));
    assert_non_null(strstr(hd_checkpoint_find(c, "b")->file, "x-2"));
    hd_checkpoint_close(c);
    unlink(test_join(dir, "x-2.safetensors"));
    REFUSED(NOT_FOUND, "shard of tensor b", "x-2.safetensors", "no such file");
    test_write_text(test_join(dir, "x-2.safetensors"), "");
    REFUSED(CORRUPT, "x-2.safetensors", "empty");
    write_image("x-2.safetensors", "{}", 0);
    REFUSED(CORRUPT, "model.safetensors.index.json", "tensor b", "x-2.safetensors", "missing");
}

static void bad_indexes_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *index, *words;
    } cases[] = {
        {"", "JSON"},
        {"{}", "weight_map"},
        {"{\"weight_map\":[]}", "weight_map"},
        {"{\"weight_map\":{}}", "empty"},
        {"{\"weight_map\":{\"a\":3}}", "tensor a"},
        {"{\"weight_map\":{\"a\":\"\"}}", "tensor a"},
        {"{\"weight_map\":{\"a\":\"../../etc/passwd\"}}", "this folder"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "this folder"},
        {"{\"weight_map\":{\"a\":\"..\"}}", "this folder"},
        {"{\"weight_map\":{\"a\":\"x\\ny\"}}", "this folder"},
        {"{\"weight_map\":{\"a\":\"x\",\"a\":\"y\"}}", "duplicate"},
    };
    for (size_t i = 0; i < HD_COUNT_OF(cases); i++) {
        test_write_text(test_join(dir, "model.safetensors.index.json"), cases[i].index);
        REFUSED(CORRUPT, "model.safetensors.index.json", cases[i].words);
    }
}

static void odd_folders_are_one_line(void **state) {
    (void)state;
    unlink(test_join(dir, "config.json"));
    REFUSED(NOT_FOUND, dir, "without config.json");
    assert_int_equal(mkdir(test_join(dir, "config.json"), 0755), 0);
    REFUSED(IO, "config.json", "regular file", "a folder");
    rmdir(test_join(dir, "config.json"));
    assert_int_equal(symlink("config.json", test_join(dir, "config.json")), 0);
    REFUSED(IO, "config.json", "symbolic links");
    unlink(test_join(dir, "config.json"));
    test_write_text(test_join(dir, "config.json"), "");
    REFUSED(CORRUPT, "config.json", "empty");
    test_write_text(test_join(dir, "config.json"), "{}");
    assert_int_equal(mkdir(test_join(dir, "model.safetensors"), 0755), 0);
    REFUSED(IO, "model.safetensors", "a folder");
    hd_checkpoint *c;
    char *slashed = strdup(test_join(dir, "///"));
    assert_int_equal(hd_checkpoint_open(slashed, &c), HD_E_IO);
    free(slashed);
    test_write_text(test_join(dir, "one.safetensors"), "\2\0\0\0\0\0\0\0{}");
    assert_int_equal(hd_checkpoint_open(test_join(dir, "one.safetensors"), &c), HD_E_CORRUPT);
    assert_non_null(strstr(hd_error_text(), "give the folder"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_hole_at_the_start_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(shapes_are_turned_round, set_up, tear_down),
        cmocka_unit_test_setup_teardown(bad_headers_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(bad_tensors_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(shards_are_joined_by_the_index, set_up, tear_down),
        cmocka_unit_test_setup_teardown(bad_indexes_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(odd_folders_are_one_line, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
