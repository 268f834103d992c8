/* chat choose: template, architecture, tokens and name to the encoding, and the reason in words. */
#include "support/chat_tokenizer.h"
#include "support/check.h"

#include "text/chat.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum set { s_v41, s_v4, s_r1, s_v3, s_none, set_count };

static hd_tokenizer *made[set_count];

static int load_all(void **state) {
    (void)state;
    made[s_v41] = chat_tokenizer((const char *[]){NULL}, false);
    made[s_v4] = chat_tokenizer((const char *[]){"<｜System｜>", NULL}, true);
    made[s_r1] = chat_tokenizer((const char *[]){"<｜System｜>", "｜DSML｜", NULL}, true);
    made[s_v3] = chat_tokenizer(
        (const char *[]){"<｜System｜>", "｜DSML｜", "<think>", "</think>", NULL}, false);
    made[s_none] = chat_tokenizer(
        (const char *[]){"<｜User｜>", "<think>", "｜DSML｜", "<｜Assistant｜>", NULL}, false);
    return 0;
}

static int free_all(void **state) {
    (void)state;
    for (int i = 0; i < set_count; i++) hd_tokenizer_free(made[i]);
    return 0;
}

/* Pieces of templates that tell: what they write. */
#define T_V2 "{{ 'User: ' + message['content'] + '\\n\\n' }}{{ 'Assistant:' }}"
#define T_CODER "{{'### Instruction:\\n' + message['content']}}{{'\\n<|EOT|>\\n'}}"
#define T_V3 "{{'<｜User｜>' + c}}{{'<｜Assistant｜>'}}{{'<｜tool▁sep｜>' + n + '\\n```json\\n'}}"
#define T_R1 T_V3 "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}"
#define T_V31 "{{'<｜User｜>' + c}}{{'<｜Assistant｜></think>'}}{{'<｜tool▁sep｜>'}}"
#define T_V32 "{{'<｜User｜>'}}{{'</think>'}}{{'<｜DSML｜function_calls>'}}"
#define T_V4 "{{'<｜User｜>'}}{{'</think>'}}{{'<｜DSML｜tool_calls>'}}"
#define T_V41 "{{'<｜User｜>'}}{{'</think>'}}{{'<｜DSML｜ calls>'}}"
#define T_CHATML "{{'<|im_start|>' + message['role']}}"

static void choices(void **state) {
    (void)state;
    static const struct {
        enum set tokens;
        const char *arch, *name, *chat_template, *row, *why;
    } rows[] = {
        {s_none, "llama", "", T_V2, "deepseek_v2", "its template writes User: and Assistant:"},
        {s_v3, "deepseek2", "", T_V2, "deepseek_v2",
         ""}, /* V2: it has <｜User｜>, and no use of it */
        {s_none, "llama", "", T_CODER, "deepseek_coder", ""},
        {s_v3, "deepseek2", "", T_V3, "deepseek_v3", ""}, /* V2.5 as well */
        {s_r1, "deepseek2", "", T_R1, "deepseek_r1", ""},
        {s_r1, "deepseek_v3", "", T_R1, "deepseek_r1", ""},
        {s_r1, "qwen2", "", T_R1, "deepseek_r1_distill", ""},
        {s_r1, "llama", "", T_R1, "deepseek_r1_distill", ""},
        {s_r1, "deepseek2", "", T_V31, "deepseek_v3.1", ""},
        {s_r1, "deepseek_v32", "", T_V31, "deepseek_v3.1", ""}, /* V3.2-Exp */
        {s_r1, "deepseek_v32", "", T_V32, "deepseek_v3.2", ""},
        {s_v4, "deepseek_v4", "", T_V4, "deepseek_v4", ""},
        {s_v4, "deepseek_v4", "DeepSeek-V4-Preview", T_V4, "deepseek_v4_preview", ""},
        {s_v41, "deepseek_v4", "", T_V41, "deepseek_v4.1", ""},
        {s_v41, "deepseek_v4", "", T_CHATML, NULL, "its chat template is none of DeepSeek's"},
        {s_v3, "deepseek2", "", T_V31, NULL,
         "deepseek_v3.1 (its template writes </think>, and calls without a fence), but the "
         "tokenizer has no token <think>"},
        {s_v41, "deepseek_v4", "", "", "deepseek_v4.1", ""},
        {s_v4, "deepseek_v4", "", "", "deepseek_v4", ""},
        {s_v4, "deepseek_v4", "V4-preview", "", "deepseek_v4_preview", ""},
        {s_r1, "deepseek_v32", "", "", "deepseek_v3.2",
         "no template, as V3.2 comes, and its architecture"},
        {s_r1, "deepseek2", "", "", "deepseek_r1", ""},
        {s_r1, "qwen2", "", "", "deepseek_r1_distill", ""},
        {s_none, "deepseek2", "", "", "deepseek_v2", ""},
    };
    for (size_t i = 0; i < HD_COUNT_OF(rows); i++) {
        char why[200];
        hd_chat_evidence v = {.tokenizer = made[rows[i].tokens],
                              .arch = hd_str_of(rows[i].arch),
                              .name = hd_str_of(rows[i].name),
                              .chat_template = hd_str_of(rows[i].chat_template)};
        const hd_chat_encoding *e = hd_chat_choose(&v, why, sizeof why);
        const char *found = e ? hd_chat_name(e) : "none",
                   *want = rows[i].row ? rows[i].row : "none";
        if (strcmp(found, want) != 0)
            fail_msg("row %zu: %s (%s), expected %s", i, found, why, want);
        assert_true(strlen(why) > 5);
        if (*rows[i].why) assert_string_equal(why, rows[i].why);
    }
}

/* The mini model's whole template is V3.1's. */
static void a_whole_template(void **state) {
    (void)state;
    json_t *j =
        json_load_file(test_path("tests/golden/tokenizer/mini_tokenizer_config.json"), 0, NULL);
    char why[200];
    hd_chat_evidence v = {.tokenizer = made[s_r1],
                          .arch = hd_str_of("deepseek2"),
                          .chat_template =
                              hd_str_of(json_string_value(json_object_get(j, "chat_template")))};
    assert_string_equal(hd_chat_name(hd_chat_choose(&v, why, sizeof why)), "deepseek_v3.1");
    json_decref(j);
}

static void names(void **state) {
    (void)state;
    char all[300];
    hd_chat_names(all, sizeof all);
    assert_non_null(strstr(all, "deepseek_v2, deepseek_coder, "));
    for (size_t i = 0; hd_chat_at(i); i++) {
        assert_ptr_equal(hd_chat_by_name(hd_chat_name(hd_chat_at(i))), hd_chat_at(i));
        assert_non_null(strstr(all, hd_chat_name(hd_chat_at(i))));
    }
}

static void end_tokens(void **state) {
    (void)state;
    static const struct {
        const char *row, *token; /* token NULL: eos alone */
    } rows[] = {{"deepseek_v2", NULL},           {"deepseek_coder", "<|EOT|>"},
                {"deepseek_v3", "<｜User｜>"},   {"deepseek_r1", "<｜User｜>"},
                {"deepseek_v3.2", "<｜User｜>"}, {"deepseek_v4.1", "<｜User｜>"}};
    int32_t id[HD_CHAT_END_MAX];
    for (size_t i = 0; i < HD_COUNT_OF(rows); i++) {
        int n = hd_chat_end_tokens(hd_chat_by_name(rows[i].row), made[s_v41], id);
        assert_int_equal(n, rows[i].token != NULL);
        if (n) assert_int_equal(id[0], hd_tokenizer_find(made[s_v41], hd_str_of(rows[i].token)));
    }
    assert_int_equal(hd_chat_end_tokens(hd_chat_by_name("deepseek_v3"), made[s_none], id), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices),
        cmocka_unit_test(a_whole_template),
        cmocka_unit_test(names),
        cmocka_unit_test(end_tokens),
    };
    return cmocka_run_group_tests(tests, load_all, free_all);
}
