/* Tools in bodies: definitions as a model reads them, calls and their answers in past messages,
 * effort and holes; what is refused, in which words. */
#include "support/check.h"

#include "srv/api_request.h"

#include <string.h>

static hd_arena *arena;
static hd_api_request q;
static hd_api_error error;

static int fresh(void **state) {
    (void)state;
    arena = hd_arena_new(4096);
    return 0;
}
static int done(void **state) {
    (void)state;
    hd_arena_free(arena);
    return 0;
}

static hd_status parse(enum hd_api_kind kind, const char *body) {
    memset(&error, 0, sizeof error);
    hd_sampling defaults;
    hd_sampling_init(&defaults);
    return hd_api_parse(kind, hd_str_of(body), &defaults, arena, &q, &error);
}

static void expect_text(hd_str found, const char *expected) {
    if (!hd_str_eq_c(found, expected))
        fail_msg("expected %s, found %.*s", expected, (int)found.len, found.ptr);
}

#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define CHAT(field) "{" HI "," field "}"
#define TOOL(fields) "{\"type\":\"function\",\"function\":{" fields "}}"
#define NAMED(name) TOOL("\"name\":\"" name "\"")

/* Expected texts: python3 -c 'import json; print(json.dumps(json.loads(TEXT),
 * ensure_ascii=False))'. */
static void values_are_written_as_python_does(void **state) {
    (void)state;
    static const struct {
        const char *in, *out;
    } rows[] = {
        {"{}", "{}"},
        {"[]", "[]"},
        {"{\"b\":1,\"a\":[1,2,{\"c\":null}]}", "{\"b\": 1, \"a\": [1, 2, {\"c\": null}]}"},
        {"[true,false,-0,-7,9223372036854775807]", "[true, false, 0, -7, 9223372036854775807]"},
        {"\"\\u00e9\\ud83d\\ude00\\/\\\"\\\\\"", "\"\xc3\xa9\xf0\x9f\x98\x80/\\\"\\\\\""},
        {"\"\\b\\f\\n\\r\\t\\u0000\\u000b\\u001f\\u007f\"",
         "\"\\b\\f\\n\\r\\t\\u0000\\u000b\\u001f\x7f\""},
        {"1.0", "1.0"},
        {"0.1", "0.1"},
        {"-0.0", "-0.0"},
        {"1e3", "1000.0"},
        {"100000000000000000000.0", "1e+20"},
        {"1e16", "1e+16"},
        {"1e15", "1000000000000000.0"},
        {"123456789012345.678", "123456789012345.67"},
        {"1234567890123456.7", "1234567890123456.8"},
        {"12345678901234567.8", "1.2345678901234568e+16"},
        {"0.0001", "0.0001"},
        {"0.00001", "1e-05"},
        {"0.00012345", "0.00012345"},
        {"1.5e300", "1.5e+300"},
        {"5e-324", "5e-324"},
        {"-2.5e-7", "-2.5e-07"},
        {"3.141592653589793", "3.141592653589793"},
        {"1.7976931348623157e308", "1.7976931348623157e+308"},
    };
    for (size_t i = 0; i < HD_COUNT_OF(rows); i++) {
        json_t *v =
            json_loads(rows[i].in, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(v);
        expect_text(hd_api_dump_text(arena, v), rows[i].out);
        json_decref(v);
    }
}

static void definitions(void **state) {
    (void)state;
    assert_int_equal(
        parse(HD_API_CHAT, CHAT("\"tools\":[" TOOL(
                               "\"name\":\"get_w\",\"description\":\"W\\u00e9\","
                               "\"parameters\":{\"type\":\"object\",\"properties\":{\"z\":{"
                               "\"type\":\"string\"},\"a\":{\"enum\":[1,2.50]}},\"required\":"
                               "[\"z\"]},\"strict\":false") "," NAMED("b-2") "]")),
        HD_OK);
    assert_int_equal(q.n_tool, 2);
    expect_text(q.tool[0].name, "get_w");
    expect_text(q.tool[0].description, "W\xc3\xa9");
    expect_text(q.tool[0].parameters,
                "{\"type\": \"object\", \"properties\": {\"z\": {\"type\": \"string\"}, \"a\": "
                "{\"enum\": [1, 2.5]}}, \"required\": [\"z\"]}");
    expect_text(q.tool[0].function,
                "{\"name\": \"get_w\", \"description\": \"W\xc3\xa9\", \"parameters\": {\"type\": "
                "\"object\", \"properties\": {\"z\": {\"type\": \"string\"}, \"a\": {\"enum\": [1, "
                "2.5]}}, \"required\": [\"z\"]}, \"strict\": false}");
    expect_text(q.tool[1].description, "");
    expect_text(q.tool[1].parameters, "{\"type\": \"object\", \"properties\": {}}");
    expect_text(q.tool[1].function, "{\"name\": \"b-2\"}");
    assert_int_equal(q.tool_choice, HD_TOOL_AUTO);
    assert_int_equal(q.max_call, 0);
}

static void choices(void **state) {
    (void)state;
#define CHOICE(value) CHAT("\"tools\":[" NAMED("a") "," NAMED("b") "],\"tool_choice\":" value)
    static const struct {
        const char *body;
        enum hd_tool_choice choice;
        const char *forced;
    } rows[] = {
        {CHOICE("\"auto\""), HD_TOOL_AUTO, ""},
        {CHOICE("\"none\""), HD_TOOL_NONE, ""},
        {CHOICE("null"), HD_TOOL_AUTO, ""},
        {CHOICE("\"required\""), HD_TOOL_REQUIRED, ""},
        {CHOICE("{\"type\":\"function\",\"function\":{\"name\":\"b\"}}"), HD_TOOL_REQUIRED, "b"},
        {CHAT("\"tool_choice\":\"none\""), HD_TOOL_NONE, ""},
        {CHAT("\"tools\":[],\"tool_choice\":\"auto\""), HD_TOOL_AUTO, ""},
    };
    for (size_t i = 0; i < HD_COUNT_OF(rows); i++) {
        assert_int_equal(parse(HD_API_CHAT, rows[i].body), HD_OK);
        assert_int_equal(q.tool_choice, rows[i].choice);
        expect_text(q.forced_tool, rows[i].forced);
        assert_int_equal(q.max_call, *rows[i].forced ? 1 : 0);
    }
    assert_int_equal(parse(HD_API_CHAT, CHAT("\"parallel_tool_calls\":false")), HD_OK);
    assert_int_equal(q.max_call, 1);
}

#define TURNS(messages) "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}," messages "]}"
#define CALL(id, function) "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{" function "}}"
#define ASKS(calls) "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[" calls "]}"
#define ANSWER(id) "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"content\":\"r\"}"
#define F "\"name\":\"f\""

static void calls_and_answers(void **state) {
    (void)state;
    static const char body[] = TURNS(
        "{\"role\":\"assistant\",\"content\":\"c\",\"reasoning_content\":\"t\",\"tool_calls\":"
        "[" CALL("1", F ",\"arguments\":\"{ \\\"a\\\":1e2}\"") "," CALL(
            "2", "\"name\":\"g\","
                 "\"arguments\":\" "
                 "\"") "]}," ANSWER("2") "," ANSWER("1") ",{\"role\":\"assistant\",\"content\":"
                                                         "\"d\",\"reasoning\":"
                                                         "\"u\"},{\"role\":\"user\","
                                                         "\"content\":\"\"}");
    assert_int_equal(parse(HD_API_CHAT, body), HD_OK);
    assert_int_equal(q.n_message, 6);
    const hd_message *m = &q.message[1];
    expect_text(m->content, "c");
    expect_text(m->reasoning, "t");
    assert_int_equal(m->n_call, 2);
    expect_text(m->call[0].id, "1");
    expect_text(m->call[0].name, "f");
    expect_text(m->call[0].arguments, "{ \"a\":1e2}"); /* byte for byte */
    expect_text(m->call[1].arguments, "{}");
    assert_int_equal(q.message[2].role, HD_ROLE_TOOL);
    expect_text(q.message[2].call_id, "2");
    expect_text(q.message[2].content, "r");
    expect_text(q.message[4].reasoning, "u");
}

/* What a model or a client made of arguments: the model is shown an object in any case. */
static void arguments_become_an_object(void **state) {
    (void)state;
    static const struct {
        const char *arguments, *want;
    } rows[] = {
        {"\"{}\"", "{}"},
        {"\"\"", "{}"},
        {"null", "{}"},
        {"{\"b\":[1],\"a\":2}", "{\"b\": [1], \"a\": 2}"},
        {"\"{\\\"n\\\":123456789012345678901234567890}\"",
         "{\"n\":123456789012345678901234567890}"},
        {"\"{\\\"a\\\":\"", "{\"arguments\": \"{\\\"a\\\":\"}"},
        {"\"[1]\"", "{\"arguments\": \"[1]\"}"},
        {"\"{} {}\"", "{\"arguments\": \"{} {}\"}"},
    };
    for (size_t i = 0; i < HD_COUNT_OF(rows); i++) {
        char body[512];
        snprintf(body, sizeof body,
                 "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\","
                 "\"function\":{\"name\":\"f\",\"arguments\":%s}}]}," ANSWER("1") "]}",
                 rows[i].arguments);
        assert_int_equal(parse(HD_API_CHAT, body), HD_OK);
        expect_text(q.message[0].call[0].arguments, rows[i].want);
    }
}

/* A name that no tool can have comes back as the model wrote it. */
static void names_a_model_made_up(void **state) {
    (void)state;
    char name[300], body[600];
    static const size_t len[] = {256, 257};
    assert_int_equal(
        parse(HD_API_CHAT, TURNS(ASKS(CALL("1", "\"name\":\"a. \xc3\xa9\\n\"")) "," ANSWER("1"))),
        HD_OK);
    expect_text(q.message[1].call[0].name, "a. \xc3\xa9\n");
    for (size_t i = 0; i < HD_COUNT_OF(len); i++) {
        snprintf(name, sizeof name, "%0*d", (int)len[i], 0);
        snprintf(body, sizeof body,
                 "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\","
                 "\"function\":{\"name\":\"%s\"}}]}," ANSWER("1") "]}",
                 name);
        assert_int_equal(parse(HD_API_CHAT, body), len[i] > 256 ? HD_E_INVALID : HD_OK);
    }
    assert_string_equal(error.param, "messages[0].tool_calls[0].function.name");
    assert_string_equal(error.message, "'messages[0].tool_calls[0].function.name' must have 1 to "
                                       "256 bytes, found 257");
}

/* Which message's reasoning is missing: of those after the last user's. */
static void missing_reasoning_is_found(void **state) {
    (void)state;
#define THOUGHT(calls)                                                                             \
    "{\"role\":\"assistant\",\"reasoning_content\":\"\",\"tool_calls\":[" calls "]}"
    static const struct {
        const char *body;
        int ix;
    } rows[] = {
        {TURNS(ASKS(CALL("1", F)) "," ANSWER("1")), 1},
        {TURNS(THOUGHT(CALL("1", F)) "," ANSWER("1")), -1},
        {TURNS(THOUGHT(CALL("1", F)) "," ANSWER("1") "," ASKS(CALL("1", F)) "," ANSWER("1")), 3},
        {TURNS(ASKS(CALL("1", F)) "," ANSWER("1") ",{\"role\":\"user\",\"content\":\"\"}"), -1},
        {TURNS("{\"role\":\"assistant\",\"content\":\"\"},{\"role\":\"system\",\"content\":\"\"}"),
         -1},
    };
    for (size_t i = 0; i < HD_COUNT_OF(rows); i++) {
        assert_int_equal(parse(HD_API_CHAT, rows[i].body), HD_OK);
        assert_int_equal(q.no_reasoning_ix, rows[i].ix);
    }
}

static void prefixes(void **state) {
    (void)state;
    assert_int_equal(parse(HD_API_CHAT, TURNS("{\"role\":\"assistant\",\"content\":\"p\","
                                              "\"reasoning_content\":\"t\",\"prefix\":true}")),
                     HD_OK);
    assert_true(q.continue_final);
    expect_text(q.message[1].reasoning, "t");
    assert_int_equal(parse(HD_API_CHAT,
                           "{\"continue_final_message\":true,\"messages\":[{\"role\":\"assistant\","
                           "\"content\":\"p\"}]}"),
                     HD_OK);
    assert_true(q.continue_final);
    assert_int_equal(parse(HD_API_CHAT, "{\"messages\":[{\"role\":\"latest_reminder\",\"content\":"
                                        "\"\"},{\"role\":\"user\",\"content\":\"\",\"task\":"
                                        "\"title\"}]}"),
                     HD_OK);
    assert_int_equal(q.message[0].role, HD_ROLE_LATEST_REMINDER);
    expect_text(q.task, "title");
    /* Calls without answers can be rendered, but nothing can follow them. */
    assert_int_equal(parse(HD_API_CHAT, "{\"add_generation_prompt\":false,\"messages\":[" ASKS(
                                            CALL("1", F)) "]}"),
                     HD_OK);
}

static void efforts(void **state) {
    (void)state;
    static const struct {
        const char *body;
        int effort;
        enum hd_api_thinking thinking;
    } rows[] = {
        {CHAT("\"reasoning_effort\":\"minimal\""), 25, HD_API_THINK_ON},
        {CHAT("\"reasoning_effort\":\"low\""), 25, HD_API_THINK_ON},
        {CHAT("\"reasoning_effort\":\"medium\""), 50, HD_API_THINK_ON},
        {CHAT("\"reasoning_effort\":\"high\""), 50, HD_API_THINK_ON},
        {CHAT("\"reasoning_effort\":\"xhigh\""), 75, HD_API_THINK_ON},
        {CHAT("\"reasoning_effort\":\"max\""), 100, HD_API_THINK_ON},
        {CHAT("\"reasoning_effort\":\"ultra\""), 100, HD_API_THINK_ON},
        {CHAT("\"reasoning_effort\":\"none\""), 0, HD_API_THINK_OFF},
        {CHAT("\"reasoning_effort\":73"), 73, HD_API_THINK_ON},
        {CHAT("\"reasoning_effort\":\"low\",\"chat_template_kwargs\":{\"reasoning_effort\":\"max\","
              "\"enable_thinking\":false}"),
         100, HD_API_THINK_OFF},
        {CHAT("\"thinking\":{\"type\":\"enabled\"}"), 0, HD_API_THINK_ON},
    };
    for (size_t i = 0; i < HD_COUNT_OF(rows); i++) {
        assert_int_equal(parse(HD_API_CHAT, rows[i].body), HD_OK);
        if (q.effort != rows[i].effort || q.thinking != rows[i].thinking)
            fail_msg("%s: effort %d, thinking %d", rows[i].body, q.effort, q.thinking);
        assert_false(q.keep_reasoning);
    }
    assert_int_equal(parse(HD_API_CHAT, CHAT("\"chat_template_kwargs\":{\"drop_thinking\":false}")),
                     HD_OK);
    assert_true(q.keep_reasoning);
    assert_int_equal(q.thinking, HD_API_THINK_UNSET);
}

static void holes(void **state) {
    (void)state;
    assert_int_equal(parse(HD_API_COMPLETION, "{\"prompt\":\"a\",\"suffix\":\"b\"}"), HD_OK);
    expect_text(q.suffix, "b");
    assert_int_equal(q.max_tokens, 4096);
    assert_int_equal(parse(HD_API_COMPLETION, "{\"prompt\":[1],\"suffix\":\"\"}"), HD_OK);
    assert_int_equal(q.max_tokens, 16);
    assert_int_equal(parse(HD_API_COMPLETION,
                           "{\"prompt\":\"a\",\"suffix\":\"b\",\"max_tokens\":5000,"
                           "\"thinking\":{\"type\":\"disabled\"},\"model\":\"deepseek-chat\"}"),
                     HD_OK);
    assert_int_equal(q.max_tokens, 5000);
}

typedef struct refusal {
    const char *body;
    hd_status status;
    const char *param, *message;
} refusal;

static void expect_refusals(enum hd_api_kind kind, const refusal *rows, size_t n) {
    for (size_t i = 0; i < n; i++) {
        hd_status s = parse(kind, rows[i].body);
        if (s != rows[i].status || strcmp(error.param, rows[i].param) != 0 ||
            strcmp(error.message, rows[i].message) != 0)
            fail_msg("%s: status %d, param '%s', message \"%s\"", rows[i].body, s, error.param,
                     error.message);
    }
}

static void wrong_tools(void **state) {
    (void)state;
#define TOOLS(list) CHAT("\"tools\":[" list "]")
    static const refusal rows[] = {
        {CHAT("\"tools\":{\"a\":1}"), HD_E_INVALID, "tools",
         "'tools' must be an array, found an object"},
        {TOOLS("1"), HD_E_INVALID, "tools", "'tools' must be an array of objects, found a number"},
        {TOOLS("{}"), HD_E_INVALID, "tools[0].type",
         "'tools[0].type' must be \"function\", found nothing"},
        {TOOLS(NAMED("a") ",{\"type\":\"web_search\"}"), HD_E_UNSUPPORTED, "tools[1].type",
         "'tools[1].type' \"web_search\" is not supported: only \"function\" is"},
        {TOOLS("{\"type\":\"function\",\"name\":\"a\"}"), HD_E_INVALID, "tools[0].function",
         "'tools[0].function' must be an object, found nothing"},
        {TOOLS(TOOL("\"description\":\"\"")), HD_E_INVALID, "tools[0].function.name",
         "'tools[0].function.name' must be a string, found nothing"},
        {TOOLS(NAMED("")), HD_E_INVALID, "tools[0].function.name",
         "'tools[0].function.name' must have 1 to 64 letters, digits, '_' and '-', found \"\""},
        {TOOLS(NAMED("a.b")), HD_E_INVALID, "tools[0].function.name",
         "'tools[0].function.name' must have 1 to 64 letters, digits, '_' and '-', found \"a.b\""},
        {TOOLS(NAMED("0123456789012345678901234567890123456789012345678901234567890123x")),
         HD_E_INVALID, "tools[0].function.name",
         "'tools[0].function.name' must have 1 to 64 letters, digits, '_' and '-', found "
         "\"0123456789012345678901234567890123456789012345678901234567890123x\""},
        {TOOLS(NAMED("a") "," NAMED("b") "," NAMED("a")), HD_E_INVALID, "tools[2].function.name",
         "'tools[2].function.name' is \"a\", the name of tools[0] already"},
        {TOOLS(TOOL("\"name\":\"a\",\"strict\":true")), HD_E_UNSUPPORTED,
         "tools[0].function.strict",
         "'tools[0].function.strict' is not supported: arguments are not checked against the "
         "schema"},
        {TOOLS(TOOL("\"name\":\"a\",\"strict\":1")), HD_E_INVALID, "tools[0].function.strict",
         "'tools[0].function.strict' must be a boolean, found a number"},
        {TOOLS(TOOL("\"name\":\"a\",\"description\":[]")), HD_E_INVALID,
         "tools[0].function.description",
         "'tools[0].function.description' must be a string, found an array"},
        {TOOLS(TOOL("\"name\":\"a\",\"parameters\":[]")), HD_E_INVALID,
         "tools[0].function.parameters",
         "'tools[0].function.parameters' must be the JSON schema of an object, found an array"},
        {TOOLS(TOOL("\"name\":\"a\",\"parameters\":{\"type\":\"array\"}")), HD_E_INVALID,
         "tools[0].function.parameters.type",
         "'tools[0].function.parameters.type' must be \"object\", found \"array\""},
        {CHOICE("1"), HD_E_INVALID, "tool_choice",
         "'tool_choice' must be a string or an object, found a number"},
        {CHOICE("\"any\""), HD_E_INVALID, "tool_choice",
         "'tool_choice' must be \"none\", \"auto\", \"required\" or a function, found \"any\""},
        {CHOICE("{}"), HD_E_INVALID, "tool_choice.type",
         "'tool_choice.type' must be \"function\", found nothing"},
        {CHOICE("{\"type\":\"allowed_tools\"}"), HD_E_UNSUPPORTED, "tool_choice.type",
         "'tool_choice.type' \"allowed_tools\" is not supported: only \"function\" is"},
        {CHOICE("{\"type\":\"function\"}"), HD_E_INVALID, "tool_choice.function",
         "'tool_choice.function' must be an object, found nothing"},
        {CHOICE("{\"type\":\"function\",\"function\":{\"name\":\"c\"}}"), HD_E_INVALID,
         "tool_choice.function.name", "'tool_choice.function.name' \"c\" is none of 'tools'"},
        {CHAT("\"tool_choice\":\"required\""), HD_E_INVALID, "tool_choice",
         "'tool_choice' \"required\" needs 'tools'"},
        {CHAT("\"parallel_tool_calls\":\"no\""), HD_E_INVALID, "parallel_tool_calls",
         "'parallel_tool_calls' must be a boolean, found a string"},
    };
    expect_refusals(HD_API_CHAT, rows, HD_COUNT_OF(rows));
    static char many[16000];
    int n = snprintf(many, sizeof many, "{" HI ",\"tools\":[");
    for (int i = 0; i < 129; i++)
        n += snprintf(many + n, sizeof many - (size_t)n, "%s" TOOL("\"name\":\"n%d\""),
                      i ? "," : "", i);
    snprintf(many + n, sizeof many - (size_t)n, "]}");
    assert_int_equal(parse(HD_API_CHAT, many), HD_E_INVALID);
    assert_string_equal(error.message, "'tools' must have at most 128 items, found 129");
}

static void wrong_calls(void **state) {
    (void)state;
    static const refusal rows[] = {
        {TURNS("{\"role\":\"assistant\",\"tool_calls\":{}}"), HD_E_INVALID,
         "messages[1].tool_calls", "'messages[1].tool_calls' must be an array, found an object"},
        {TURNS(ASKS("1")), HD_E_INVALID, "messages[1].tool_calls",
         "'messages[1].tool_calls' must be an array of objects, found a number"},
        {TURNS("{\"role\":\"user\",\"content\":\"\",\"tool_calls\":[{}]}"), HD_E_INVALID,
         "messages[1].tool_calls", "'messages[1].tool_calls' belongs to role assistant"},
        {TURNS(ASKS("{}")), HD_E_INVALID, "messages[1].tool_calls[0].id",
         "'messages[1].tool_calls[0].id' must be a string that is not empty, found nothing"},
        {TURNS(ASKS(CALL("", F))), HD_E_INVALID, "messages[1].tool_calls[0].id",
         "'messages[1].tool_calls[0].id' must be a string that is not empty, found a string"},
        {TURNS(ASKS(CALL("1", F) "," CALL("1", F))), HD_E_INVALID, "messages[1].tool_calls[1].id",
         "'messages[1].tool_calls[1].id' is \"1\", the id of another call of this message"},
        {TURNS(ASKS("{\"id\":\"1\",\"type\":\"custom\"}")), HD_E_UNSUPPORTED,
         "messages[1].tool_calls[0].type",
         "'messages[1].tool_calls[0].type' \"custom\" is not supported: only \"function\" is"},
        {TURNS(ASKS("{\"id\":\"1\"}")), HD_E_INVALID, "messages[1].tool_calls[0].function",
         "'messages[1].tool_calls[0].function' must be an object, found nothing"},
        {TURNS(ASKS(CALL("1", "\"name\":\"\""))), HD_E_INVALID,
         "messages[1].tool_calls[0].function.name",
         "'messages[1].tool_calls[0].function.name' must have 1 to 256 bytes, found 0"},
        {TURNS(ASKS(CALL("1", F ",\"arguments\":[]"))), HD_E_INVALID,
         "messages[1].tool_calls[0].function.arguments",
         "'messages[1].tool_calls[0].function.arguments' must be a string with a JSON object, "
         "found an array"},
        {TURNS("{\"role\":\"tool\",\"content\":\"r\"}"), HD_E_INVALID, "messages[1].tool_call_id",
         "'messages[1].tool_call_id' must be a string, found nothing"},
        {TURNS(ANSWER("1")), HD_E_INVALID, "messages[1].tool_call_id",
         "messages[1] of role tool must follow the assistant message whose 'tool_calls' it "
         "answers"},
        {TURNS(ASKS(CALL("1", F)) "," ANSWER("2")), HD_E_INVALID, "messages[2].tool_call_id",
         "'messages[2].tool_call_id' \"2\" is no call of messages[1]"},
        {TURNS(ASKS(CALL("1", F)) "," ANSWER("1") "," ANSWER("1")), HD_E_INVALID,
         "messages[3].tool_call_id", "'messages[3].tool_call_id' \"1\" is answered already"},
        {TURNS(ASKS(CALL("1", F) "," CALL("2", F)) "," ANSWER(
             "1") ",{\"role\":\"user\",\"content\":\"n\"}"),
         HD_E_INVALID, "messages[1].tool_calls[1]",
         "'messages[1].tool_calls[1]' \"2\" has no answer of role tool before messages[3]"},
        {TURNS(ASKS(CALL("1", F)) "," ANSWER("1") ",{\"role\":\"user\",\"content\":\"n\"}," ANSWER(
             "1")),
         HD_E_INVALID, "messages[4].tool_call_id",
         "messages[4] of role tool must follow the assistant message whose 'tool_calls' it "
         "answers"},
        {TURNS(ASKS(CALL("1", F))), HD_E_INVALID, "messages",
         "the 'tool_calls' of messages[1] have no answers of role tool"},
        {TURNS("{\"role\":\"assistant\",\"prefix\":true,\"tool_calls\":[" CALL("1", F) "]}"),
         HD_E_INVALID, "messages[1].prefix",
         "'messages[1].prefix' and 'tool_calls' exclude each other"},
        {TURNS("{\"role\":\"assistant\",\"content\":\"\",\"prefix\":true},{\"role\":\"user\","
               "\"content\":\"\"}"),
         HD_E_INVALID, "messages[1].prefix",
         "'messages[1].prefix' belongs to a last message of role assistant"},
        {TURNS("{\"role\":\"assistant\",\"content\":\"\",\"task\":\"title\"}"), HD_E_INVALID,
         "messages[1].task", "'messages[1].task' belongs to a last message of role user"},
        {TURNS("{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":[]}"), HD_E_INVALID,
         "messages[1].reasoning_content",
         "'messages[1].reasoning_content' must be a string, found an array"},
        {TURNS("{\"role\":\"assistant\",\"content\":\"\",\"function_call\":{}}"), HD_E_UNSUPPORTED,
         "messages[1].function_call", "'messages[1].function_call' is not supported"},
        {CHAT("\"reasoning_effort\":0"), HD_E_INVALID, "reasoning_effort",
         "'reasoning_effort' must be at least 1, found 0"},
        {CHAT("\"reasoning_effort\":101"), HD_E_INVALID, "reasoning_effort",
         "'reasoning_effort' must be at most 100, found 101"},
        {CHAT("\"reasoning_effort\":true"), HD_E_INVALID, "reasoning_effort",
         "'reasoning_effort' must be a string or an integer, found a boolean"},
        {CHAT("\"chat_template_kwargs\":{\"reasoning_effort\":\"huge\"}"), HD_E_INVALID,
         "chat_template_kwargs.reasoning_effort",
         "'chat_template_kwargs.reasoning_effort' must be none, minimal, low, medium, high, xhigh, "
         "max, ultra or 1 to 100, found \"huge\""},
        {CHAT("\"chat_template_kwargs\":{\"drop_thinking\":1}"), HD_E_INVALID,
         "chat_template_kwargs.drop_thinking",
         "'chat_template_kwargs.drop_thinking' must be a boolean, found a number"},
    };
    expect_refusals(HD_API_CHAT, rows, HD_COUNT_OF(rows));
}

static void wrong_holes(void **state) {
    (void)state;
    static const refusal rows[] = {
        {"{\"prompt\":\"a\",\"suffix\":1}", HD_E_INVALID, "suffix",
         "'suffix' must be a string, found a number"},
        {"{\"prompt\":[1],\"suffix\":\"b\"}", HD_E_INVALID, "suffix",
         "'suffix' needs a 'prompt' of text, found token ids"},
        {"{\"prompt\":[\"a\",[1]],\"suffix\":\"b\"}", HD_E_INVALID, "suffix",
         "'suffix' needs a 'prompt' of text, found token ids"},
        {"{\"prompt\":\"a\",\"suffix\":\"b\",\"thinking\":{\"type\":\"enabled\"}}", HD_E_INVALID,
         "suffix", "'suffix' cannot be had together with thinking"},
        {"{\"prompt\":\"a\",\"suffix\":\"b\",\"model\":\"deepseek-reasoner\"}", HD_E_INVALID,
         "suffix", "'suffix' cannot be had together with thinking"},
        {"{\"prompt\":\"a\",\"tools\":[{}]}", HD_E_UNSUPPORTED, "tools",
         "'tools' is not supported: only in a chat"},
    };
    expect_refusals(HD_API_COMPLETION, rows, HD_COUNT_OF(rows));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, fresh, done)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(values_are_written_as_python_does),
        TEST(definitions),
        TEST(choices),
        TEST(calls_and_answers),
        TEST(arguments_become_an_object),
        TEST(names_a_model_made_up),
        TEST(missing_reasoning_is_found),
        TEST(prefixes),
        TEST(efforts),
        TEST(holes),
        TEST(wrong_tools),
        TEST(wrong_calls),
        TEST(wrong_holes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
