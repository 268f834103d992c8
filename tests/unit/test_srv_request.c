/* Bodies to typed requests: what is taken, what is refused and under which name. */
#include "support/check.h"

#include "srv/api_request.h"

#include <string.h>

static hd_arena *arena;
static hd_api_request q;
static hd_api_error error;

static int fresh(void **state) {
    (void)state;
    hd_arena_free(arena);
    arena = hd_arena_new(4096);
    return 0;
}
static int done(void **state) {
    (void)state;
    hd_arena_free(arena);
    arena = NULL;
    return 0;
}

static hd_status parse(enum hd_api_kind kind, const char *body) {
    memset(&error, 0, sizeof error);
    hd_sampling defaults;
    hd_sampling_init(&defaults);
    return hd_api_parse(kind, hd_str_of(body), &defaults, arena, &q, &error);
}

#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
/* A chat body with one more field. */
#define CHAT(field) "{" MESSAGES "," field "}"
#define TEXT(field) "{\"prompt\":\"p\"," field "}"

static void chat_defaults(void **state) {
    (void)state;
    assert_int_equal(parse(HD_API_CHAT, "{" MESSAGES "}"), HD_OK);
    assert_int_equal(q.n_message, 1);
    assert_int_equal(q.message[0].role, HD_ROLE_USER);
    assert_true(hd_str_eq_c(q.message[0].content, "hi"));
    assert_int_equal(q.n, 1);
    assert_int_equal(q.max_tokens, 0);
    assert_true(q.sampling.temperature == 1.0f);
    assert_int_equal(q.sampling.n_top_logprob, -1);
    assert_false(q.sampling.has_seed);
    assert_false(q.stream);
    assert_int_equal(q.thinking, HD_API_THINK_UNSET);
    assert_int_equal((int)q.cache_salt, 0);
    assert_int_equal(parse(HD_API_COMPLETION, "{\"prompt\":\"p\"}"), HD_OK);
    assert_int_equal(q.max_tokens, 16);
}

static void every_chat_field(void **state) {
    (void)state;
    const char *body =
        "{\"model\":\"m\",\"messages\":["
        "{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":"
        "\"text\","
        "\"text\":\"b\"}],\"name\":\"n\"},"
        "{\"role\":\"user\",\"content\":\"\"},"
        "{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"r\",\"tool_calls\":[{"
        "\"id\":\"x\",\"function\":{\"name\":\"f\"}}]},"
        "{\"role\":\"tool\",\"content\":\"t\",\"tool_call_id\":\"x\"},"
        "{\"role\":\"assistant\",\"content\":\"con\",\"prefix\":true}],"
        "\"max_tokens\":5,\"max_completion_tokens\":7,\"min_tokens\":2,\"temperature\":0,"
        "\"top_p\":0.5,\"top_k\":-1,\"min_p\":0.25,\"n\":3,\"best_of\":3,\"stop\":[\"x\",\"yy\"],"
        "\"stream\":true,\"stream_options\":{\"include_usage\":true},\"presence_penalty\":-2,"
        "\"frequency_penalty\":2,\"repetition_penalty\":1.5,\"logit_bias\":{\"7\":-100,\"8\":1.5},"
        "\"seed\":-1,\"logprobs\":true,\"top_logprobs\":20,\"thinking\":{\"type\":\"enabled\"},"
        "\"chat_template_kwargs\":{\"thinking\":false,\"other\":1},\"reasoning_effort\":\"high\","
        "\"response_format\":{\"type\":\"text\"},\"user\":\"u\",\"cache_salt\":\"s\",\"service_"
        "tier\":"
        "\"batch\",\"priority\":-"
        "5,"
        "\"ignore_eos\":true,\"stop_token_ids\":[1,2],\"skip_special_tokens\":false,"
        "\"include_stop_str_in_output\":true,\"return_token_ids\":true,\"tools\":[],\"tool_"
        "choice\":"
        "\"none\",\"functions\":null,\"parallel_tool_calls\":true,\"store\":false,\"unknown\":{}}";
    assert_int_equal(parse(HD_API_CHAT, body), HD_OK);
    assert_int_equal(q.n_message, 5);
    assert_int_equal(q.message[0].role, HD_ROLE_SYSTEM);
    assert_true(hd_str_eq_c(q.message[0].content, "a\nb"));
    assert_int_equal(q.message[2].role, HD_ROLE_ASSISTANT);
    assert_int_equal(q.message[2].content.len, 0);
    assert_int_equal(q.message[3].role, HD_ROLE_TOOL);
    assert_true(q.continue_final);
    assert_int_equal(q.max_tokens, 7);
    assert_int_equal(q.min_tokens, 2);
    assert_true(q.sampling.temperature == 0);
    assert_true(q.sampling.top_p == 0.5f && q.sampling.min_p == 0.25f);
    assert_int_equal(q.sampling.top_k, 0);
    assert_int_equal(q.n, 3);
    assert_int_equal(q.n_stop, 2);
    assert_true(hd_str_eq_c(q.stop[1], "yy"));
    assert_true(q.stream && q.include_usage);
    assert_true(q.sampling.presence_penalty == -2 && q.sampling.frequency_penalty == 2);
    assert_int_equal(q.sampling.n_bias, 2);
    assert_int_equal(q.sampling.bias[0].token + q.sampling.bias[1].token, 15);
    assert_true(q.sampling.has_seed);
    assert_true(q.sampling.seed == UINT64_MAX);
    assert_int_equal(q.sampling.n_top_logprob, 20);
    assert_int_equal(q.thinking, HD_API_THINK_ON);
    assert_int_equal(q.priority, -5);
    assert_int_equal(q.service, HD_SERVICE_BATCH);
    assert_true(q.tenant != 0 && q.tenant != q.cache_salt);
    assert_true(q.ignore_eos && q.keep_special && q.include_stop && q.return_token_ids);
    assert_int_equal(q.n_stop_token, 2);
    assert_true(q.cache_salt != 0);
}

static void completion_prompts(void **state) {
    (void)state;
    assert_int_equal(parse(HD_API_COMPLETION, "{\"prompt\":[\"a\",\"\",\"c\"],\"n\":2}"), HD_OK);
    assert_int_equal(q.n_prompt, 3);
    assert_int_equal(parse(HD_API_COMPLETION, "{\"prompt\":[1,2,3],\"logprobs\":0}"), HD_OK);
    assert_int_equal(q.n_prompt, 1);
    assert_int_equal(q.prompt[0].n_id, 3);
    assert_int_equal(q.sampling.n_top_logprob, 0);
    assert_int_equal(parse(HD_API_COMPLETION, "{\"prompt\":[[1],[2,3]],\"suffix\":\"\"}"), HD_OK);
    assert_int_equal(q.n_prompt, 2);
    assert_int_equal(q.prompt[1].id[1], 3);
    assert_int_equal(parse(HD_API_COMPLETION, "{\"prompt\":[[1],\"mixed\"]}"), HD_OK);
}

static void thinking_spellings(void **state) {
    (void)state;
    static const struct {
        const char *body;
        enum hd_api_thinking want;
    } rows[] = {
        {CHAT("\"thinking\":{\"type\":\"disabled\"}"), HD_API_THINK_OFF},
        {CHAT("\"chat_template_kwargs\":{\"enable_thinking\":true}"), HD_API_THINK_ON},
        {CHAT("\"chat_template_kwargs\":{\"thinking\":true}"), HD_API_THINK_ON},
        {CHAT("\"chat_template_kwargs\":{}"), HD_API_THINK_UNSET},
        {CHAT("\"reasoning_effort\":\"low\""), HD_API_THINK_ON},
        {CHAT("\"reasoning_effort\":\"none\""), HD_API_THINK_OFF},
        {CHAT("\"reasoning_effort\":\"high\",\"thinking\":{\"type\":\"disabled\"}"),
         HD_API_THINK_OFF},
    };
    for (size_t i = 0; i < HD_COUNT_OF(rows); i++) {
        assert_int_equal(parse(HD_API_CHAT, rows[i].body), HD_OK);
        if (q.thinking != rows[i].want) fail_msg("%s: %d", rows[i].body, q.thinking);
    }
    static const struct {
        const char *body;
        int want;
    } efforts[] = {
        {CHAT("\"reasoning_effort\":\"minimal\""), 25},
        {CHAT("\"reasoning_effort\":\"medium\""), 50},
        {CHAT("\"reasoning_effort\":\"high\""), 50},
        {CHAT("\"reasoning_effort\":\"xhigh\""), 75},
        {CHAT("\"reasoning_effort\":\"ultra\""), 100},
        {CHAT("\"reasoning_effort\":7"), 7},
    };
    for (size_t i = 0; i < HD_COUNT_OF(efforts); i++) {
        assert_int_equal(parse(HD_API_CHAT, efforts[i].body), HD_OK);
        if (q.effort != efforts[i].want) fail_msg("%s: %d", efforts[i].body, q.effort);
    }
}

static void salts_part_tenants(void **state) {
    (void)state;
    uint64_t salt[5];
    static const char *const bodies[] = {CHAT("\"user\":\"a\""), CHAT("\"user\":\"b\""),
                                         CHAT("\"cache_salt\":\"a\",\"user\":\"a\""),
                                         CHAT("\"user_id\":\"a\""), CHAT("\"cache_salt\":\"a\"")};
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(parse(HD_API_CHAT, bodies[i]), HD_OK);
        salt[i] = q.cache_salt;
        assert_true(salt[i] != 0);
    }
    assert_true(salt[0] != salt[1] && salt[0] != salt[2]);
    assert_int_equal(parse(HD_API_CHAT, bodies[0]), HD_OK);
    assert_true(q.cache_salt == salt[0]);
    /* Only user_id has DeepSeek's alphabet; 512 bytes is the limit of all three. */
    assert_int_equal(parse(HD_API_CHAT, CHAT("\"user\":\"a b\",\"cache_salt\":\"\\u00e9\"")),
                     HD_OK);
    static char body[700];
    for (int n = 512; n <= 513; n++) {
        snprintf(body, sizeof body, CHAT("\"user_id\":\"%0*d\""), n, 7);
        assert_int_equal(parse(HD_API_CHAT, body), n == 512 ? HD_OK : HD_E_INVALID);
    }
}

typedef struct refusal {
    enum hd_api_kind kind;
    const char *body;
    hd_status status;
    const char *param;
} refusal;

static void expect_refusals(const refusal *rows, size_t n) {
    for (size_t i = 0; i < n; i++) {
        hd_status s = parse(rows[i].kind, rows[i].body);
        if (s != rows[i].status || error.status != s || strcmp(error.param, rows[i].param) != 0 ||
            !*error.message)
            fail_msg("%s: status %d, param '%s', message '%s'", rows[i].body, s, error.param,
                     error.message);
    }
}

static void wrong_types_and_ranges(void **state) {
    (void)state;
#define C HD_API_CHAT
#define T HD_API_COMPLETION
    static const refusal rows[] = {
        {C, "{}", HD_E_INVALID, "messages"},
        {C, "{\"messages\":[]}", HD_E_INVALID, "messages"},
        {C, "{\"messages\":{}}", HD_E_INVALID, "messages"},
        {C, "{\"messages\":[1]}", HD_E_INVALID, "messages"},
        {C, "{\"messages\":[{}]}", HD_E_INVALID, "messages[0].role"},
        {C, "{\"messages\":[{\"role\":\"user\"}]}", HD_E_INVALID, "messages[0].content"},
        {C, "{\"messages\":[{\"role\":\"user\",\"content\":1}]}", HD_E_INVALID,
         "messages[0].content"},
        {C, "{\"messages\":[{\"role\":\"wizard\",\"content\":\"\"}]}", HD_E_INVALID,
         "messages[0].role"},
        {C, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}", HD_E_INVALID,
         "messages[0].content[0].text"},
        {C, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
         HD_E_UNSUPPORTED, "messages[0].content[0].type"},
        {C, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"odd\"}]}]}", HD_E_INVALID,
         "messages[0].content[0].type"},
        {C, "{\"messages\":[{\"role\":\"user\",\"content\":\"\",\"prefix\":true}]}", HD_E_INVALID,
         "messages[0].prefix"},
        {C, CHAT("\"model\":1"), HD_E_INVALID, "model"},
        {C, CHAT("\"stream\":1"), HD_E_INVALID, "stream"},
        {C, CHAT("\"temperature\":2.1"), HD_E_INVALID, "temperature"},
        {C, CHAT("\"temperature\":-0.1"), HD_E_INVALID, "temperature"},
        {C, CHAT("\"temperature\":\"1\""), HD_E_INVALID, "temperature"},
        {C, CHAT("\"top_p\":1.5"), HD_E_INVALID, "top_p"},
        {C, CHAT("\"min_p\":-1"), HD_E_INVALID, "min_p"},
        {C, CHAT("\"top_k\":-2"), HD_E_INVALID, "top_k"},
        {C, CHAT("\"top_k\":1.5"), HD_E_INVALID, "top_k"},
        {C, CHAT("\"n\":0"), HD_E_INVALID, "n"},
        {C, CHAT("\"n\":17"), HD_E_INVALID, "n"},
        {C, CHAT("\"n\":true"), HD_E_INVALID, "n"},
        {C, CHAT("\"max_tokens\":0"), HD_E_INVALID, "max_tokens"},
        {C, CHAT("\"max_tokens\":-1"), HD_E_INVALID, "max_tokens"},
        {C, CHAT("\"max_tokens\":1.5"), HD_E_INVALID, "max_tokens"},
        {C, CHAT("\"max_completion_tokens\":\"9\""), HD_E_INVALID, "max_completion_tokens"},
        {C, CHAT("\"max_tokens\":3,\"min_tokens\":4"), HD_E_INVALID, "min_tokens"},
        {C, CHAT("\"presence_penalty\":2.5"), HD_E_INVALID, "presence_penalty"},
        {C, CHAT("\"frequency_penalty\":-2.5"), HD_E_INVALID, "frequency_penalty"},
        {C, CHAT("\"repetition_penalty\":0"), HD_E_INVALID, "repetition_penalty"},
        {C, CHAT("\"repetition_penalty\":10.5"), HD_E_INVALID, "repetition_penalty"},
        {C, CHAT("\"seed\":1.5"), HD_E_INVALID, "seed"},
        {C, CHAT("\"stop\":1"), HD_E_INVALID, "stop"},
        {C, CHAT("\"stop\":[\"a\",1]"), HD_E_INVALID, "stop"},
        {C, CHAT("\"stop\":\"\""), HD_E_INVALID, "stop"},
        {C,
         CHAT("\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"10\",\"11\","
              "\"12\",\"13\",\"14\",\"15\",\"16\",\"17\"]"),
         HD_E_INVALID, "stop"},
        {C, CHAT("\"stream_options\":{\"include_usage\":true}"), HD_E_INVALID, "stream_options"},
        {C, CHAT("\"stream\":true,\"stream_options\":[]"), HD_E_INVALID, "stream_options"},
        {C, CHAT("\"stream\":true,\"stream_options\":{\"include_usage\":1}"), HD_E_INVALID,
         "stream_options.include_usage"},
        {C, CHAT("\"logprobs\":5"), HD_E_INVALID, "logprobs"},
        {C, CHAT("\"top_logprobs\":5"), HD_E_INVALID, "top_logprobs"},
        {C, CHAT("\"logprobs\":true,\"top_logprobs\":21"), HD_E_INVALID, "top_logprobs"},
        {C, CHAT("\"logit_bias\":{\"x\":1}"), HD_E_INVALID, "logit_bias"},
        {C, CHAT("\"logit_bias\":{\"1\":101}"), HD_E_INVALID, "logit_bias"},
        {C, CHAT("\"logit_bias\":{\"1\":1,\"01\":1}"), HD_E_INVALID, "logit_bias"},
        {C, CHAT("\"logit_bias\":[1]"), HD_E_INVALID, "logit_bias"},
        {C, CHAT("\"stop_token_ids\":[-1]"), HD_E_INVALID, "stop_token_ids"},
        {C, CHAT("\"stop_token_ids\":7"), HD_E_INVALID, "stop_token_ids"},
        {C, CHAT("\"thinking\":true"), HD_E_INVALID, "thinking"},
        {C, CHAT("\"thinking\":{\"type\":\"perhaps\"}"), HD_E_INVALID, "thinking.type"},
        {C, CHAT("\"reasoning_effort\":\"huge\""), HD_E_INVALID, "reasoning_effort"},
        {C, CHAT("\"chat_template_kwargs\":{\"thinking\":\"yes\"}"), HD_E_INVALID,
         "chat_template_kwargs.thinking"},
        {C, CHAT("\"response_format\":{\"type\":\"odd\"}"), HD_E_INVALID, "response_format.type"},
        {C, CHAT("\"response_format\":\"text\""), HD_E_INVALID, "response_format"},
        {C, CHAT("\"response_format\":{\"type\":\"json_schema\"}"), HD_E_INVALID,
         "response_format.json_schema"},
        {C, CHAT("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}"), HD_E_INVALID,
         "response_format.json_schema.schema"},
        {T, TEXT("\"response_format\":{\"type\":\"odd\"}"), HD_E_INVALID, "response_format.type"},
        {C, CHAT("\"continue_final_message\":true"), HD_E_INVALID, "continue_final_message"},
        {C, CHAT("\"priority\":\"high\""), HD_E_INVALID, "priority"},
        {C, CHAT("\"service_tier\":\"scale\""), HD_E_INVALID, "service_tier"},
        {C, CHAT("\"service_tier\":1"), HD_E_INVALID, "service_tier"},
        {C, CHAT("\"user_id\":\"a b\""), HD_E_INVALID, "user_id"},
        {C, CHAT("\"user_id\":\"\\u00e9\""), HD_E_INVALID, "user_id"},
        {T, "{}", HD_E_INVALID, "prompt"},
        {T, "{\"prompt\":null}", HD_E_INVALID, "prompt"},
        {T, "{\"prompt\":[]}", HD_E_INVALID, "prompt"},
        {T, "{\"prompt\":[[]]}", HD_E_INVALID, "prompt"},
        {T, "{\"prompt\":7}", HD_E_INVALID, "prompt"},
        {T, "{\"prompt\":[1,\"a\"]}", HD_E_INVALID, "prompt"},
        {T, "{\"prompt\":[-1]}", HD_E_INVALID, "prompt"},
        {T, "{\"prompt\":[1.5]}", HD_E_INVALID, "prompt"},
        {T, TEXT("\"logprobs\":true"), HD_E_INVALID, "logprobs"},
        {T, TEXT("\"logprobs\":21"), HD_E_INVALID, "logprobs"},
        {T, TEXT("\"echo\":1"), HD_E_INVALID, "echo"},
    };
    expect_refusals(rows, HD_COUNT_OF(rows));
}

static void unsupported_is_said(void **state) {
    (void)state;
    static const refusal rows[] = {
        {C, CHAT("\"functions\":[{}]"), HD_E_UNSUPPORTED, "functions"},
        {C, CHAT("\"function_call\":\"auto\""), HD_E_UNSUPPORTED, "function_call"},
        {T, TEXT("\"response_format\":{\"type\":\"json_object\"}"), HD_E_UNSUPPORTED,
         "response_format"},
        {C, CHAT("\"response_format\":{\"type\":\"grammar\"}"), HD_E_UNSUPPORTED,
         "response_format.type"},
        {C,
         CHAT("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"strict\":true,"
              "\"schema\":{}}}"),
         HD_E_UNSUPPORTED, "response_format.json_schema.strict"},
        {C, CHAT("\"response_format\":{\"type\":\"structural_tag\"}"), HD_E_UNSUPPORTED,
         "response_format.type"},
        {C, CHAT("\"guided_json\":{\"a\":1}"), HD_E_UNSUPPORTED, "guided_json"},
        {C, CHAT("\"guided_regex\":\"a\""), HD_E_UNSUPPORTED, "guided_regex"},
        {C, CHAT("\"structured_outputs\":{\"json\":{}}"), HD_E_UNSUPPORTED, "structured_outputs"},
        {C, CHAT("\"best_of\":2"), HD_E_UNSUPPORTED, "best_of"},
        {C, CHAT("\"use_beam_search\":true"), HD_E_UNSUPPORTED, "use_beam_search"},
        {C, CHAT("\"modalities\":[\"text\",\"audio\"]"), HD_E_UNSUPPORTED, "modalities"},
        {C, CHAT("\"audio\":{\"voice\":\"a\"}"), HD_E_UNSUPPORTED, "audio"},
        {C, "{\"messages\":[{\"role\":\"function\",\"content\":\"\"}]}", HD_E_UNSUPPORTED,
         "messages[0].role"},
        {T, TEXT("\"echo\":true,\"logprobs\":1"), HD_E_UNSUPPORTED, "echo"},
        {T, TEXT("\"prompt_logprobs\":1"), HD_E_UNSUPPORTED, "prompt_logprobs"},
    };
    expect_refusals(rows, HD_COUNT_OF(rows));
#undef C
#undef T
}

static void json_is_strict(void **state) {
    (void)state;
    static const char *const bodies[] = {"",
                                         "x",
                                         "[]",
                                         "\"a\"",
                                         "null",
                                         "{\"prompt\":\"a\"",
                                         "{\"prompt\":\"a\"} x",
                                         "{\"prompt\":\"a\",}",
                                         "{\"prompt\":\"a\",\"prompt\":\"b\"}",
                                         "{\"prompt\":\"\xff\"}",
                                         "{\"prompt\":\"\\ud800\"}",
                                         "{\"prompt\":'a'}",
                                         "{\"prompt\":\"a\",\"n\":01}",
                                         "{\"prompt\":\"a\",\"temperature\":NaN}",
                                         "{\"prompt\":\"a\",\"temperature\":1e999}",
                                         "{\"prompt\":\"a\",\"seed\":99999999999999999999}",
                                         "\xef\xbb\xbf{\"prompt\":\"a\"}"};
    for (size_t i = 0; i < HD_COUNT_OF(bodies); i++) {
        if (parse(HD_API_COMPLETION, bodies[i]) != HD_E_INVALID) fail_msg("taken: %s", bodies[i]);
        assert_string_equal(error.param, "");
    }
    assert_int_equal(parse(HD_API_COMPLETION, "{\n \"prompt\": \"a\" \"n\"}"), HD_E_INVALID);
    assert_non_null(strstr(error.message, "line 2"));
    /* Depth and number of values are bounded before anything is built. */
    static char deep[300000];
    memset(deep, '[', 1000);
    deep[1000] = 0;
    assert_int_equal(parse(HD_API_COMPLETION, deep), HD_E_INVALID);
    assert_non_null(strstr(error.message, "deeper than"));
    assert_int_equal(parse(HD_API_COMPLETION, "{\"prompt\":\"a\\u0000b\"}"), HD_OK);
    assert_int_equal(q.prompt[0].text.len, 3);
    size_t n = 5u << 20;
    char *many = hd_alloc(n);
    memset(many, ',', n);
    memcpy(many, "{\"prompt\":[", 11);
    hd_sampling defaults;
    hd_sampling_init(&defaults);
    assert_int_equal(
        hd_api_parse(HD_API_COMPLETION, (hd_str){many, n}, &defaults, arena, &q, &error),
        HD_E_TOO_LARGE);
    hd_free(many);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, fresh, done)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(chat_defaults),       TEST(every_chat_field),   TEST(completion_prompts),
        TEST(thinking_spellings),  TEST(salts_part_tenants), TEST(wrong_types_and_ranges),
        TEST(unsupported_is_said), TEST(json_is_strict),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
