/* Tools, thinking and holes on the wire, in front of a stand-in engine: the order of a stream's
 * events, calls that are cut off, forced and single calls, what is refused. */
#include "http/client.h"
#include "http/stub_engine.c"

#include "base/log.h"
#include "base/metric.h"
#include "srv/server.h"
#include "support/rng.h"

#include <jansson.h>
#include <math.h>

typedef struct world {
    hd_server *server;
    hd_engine *engine;
    int port, fd;
    hd_buf in; /* what came on fd and is not taken yet */
} world;

static int setup(void **state) {
    world *w = hd_alloc_zero(1, sizeof *w);
    hd_server_config config;
    hd_server_config_init(&config);
    config.port = 0;
    hd_metric_reset_all();
    hd_log_set_level(HD_LOG_OFF);
    assert_ok(hd_server_open(&config, &w->server));
    w->port = hd_server_port(w->server);
    w->engine = stub_open();
    hd_server_set_engine(w->server, w->engine);
    hd_buf_init(&w->in, 1 << 20);
    w->fd = dial(w->port);
    *state = w;
    return 0;
}

static int teardown(void **state) {
    world *w = *state;
    close(w->fd);
    hd_server_stop(w->server);
    if (hd_server_n_active(w->server) != 0) return -1;
    hd_engine_close(w->engine);
    hd_server_free(w->server);
    hd_buf_fini(&w->in);
    hd_free(w);
    return 0;
}

#define CHAT "/v1/chat/completions"
#define TOOL(name) "{\"type\":\"function\",\"function\":{\"name\":\"" name "\"}}"
#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define TOOLS "\"tools\":[" TOOL("w") "," TOOL("x") "]"

/* Asks on the world's connection; n: how many engine requests there are then, in all. */
static void begin(world *w, const char *path, const char *body, int n) {
    put(w->fd, post_text(path, "", body));
    assert_int_equal(stub_await(w->engine, &w->engine->n, n), n);
}

static answer finish(world *w) { return take_answer(w->fd, &w->in, false); }

static void say(world *w, int ix, int32_t token) {
    stub_say(w->engine, ix, (hd_event){.token = token, .logprob = -0.5f, .stop_ix = -1});
}

static void say_call(world *w, int ix, const char *name, const char *arguments) {
    say(w, ix, STUB_CALL);
    stub_text(w->engine, ix, name);
    say(w, ix, STUB_SEP);
    stub_text(w->engine, ix, arguments);
}

/* Each part comes after the one before it. */
static void expect_order(const answer *a, const char *const *part, size_t n) {
    const char *at = text_of(a);
    for (size_t i = 0; i < n; i++) {
        const char *found = strstr(at, part[i]);
        if (!found) fail_msg("no '%s' (part %zu) in: %s", part[i], i, at);
        at = found + strlen(part[i]);
    }
}
#define EXPECT_ORDER(a, ...)                                                                       \
    expect_order(a, (const char *const[]){__VA_ARGS__},                                            \
                 sizeof(const char *const[]){__VA_ARGS__} / sizeof(char *))

static int count_of(const char *text, const char *what) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)) != NULL; at += strlen(what)) n++;
    return n;
}

static void expect(world *w, const char *path, const char *body, int code, const char *part) {
    answer a = ask(w->port, post_text(path, "", body));
    if (a.code != code || !strstr(text_of(&a), part))
        fail_msg("%s: expected %d with %s, found %d: %s", body, code, part, a.code, text_of(&a));
    drop_answer(&a);
}

/* ---- streams ---- */

static void a_call_streamed(void **state) {
    world *w = *state;
    begin(w, CHAT,
          "{\"stream\":true,\"stream_options\":{\"include_usage\":true},\"thinking\":{\"type\":"
          "\"enabled\"}," TOOLS "," HI "}",
          1);
    stub_text(w->engine, 0, "r");
    say(w, 0, STUB_END_THINK);
    stub_text(w->engine, 0, "c");
    say_call(w, 0, "w", "{}");
    say(w, 0, STUB_END_CALL);
    say_call(w, 0, "x", "\xc3\xa9");
    say(w, 0, STUB_END_CALL);
    stub_finish(w->engine, 0, HD_FINISH_STOP);
    answer a = finish(w);
    EXPECT_ORDER(
        &a, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}",
        "\"delta\":{\"reasoning_content\":\"r\"}", "\"delta\":{\"content\":\"c\"}",
        "\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"call_",
        "\",\"type\":\"function\",\"function\":{\"name\":\"w\",\"arguments\":\"\"}}]}",
        "\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\"}}]}",
        "\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"}\"}}]}",
        "\"delta\":{\"tool_calls\":[{\"index\":1,\"id\":\"call_",
        "\",\"type\":\"function\",\"function\":{\"name\":\"x\",\"arguments\":\"\"}}]}",
        "\"delta\":{\"tool_calls\":[{\"index\":1,\"function\":{\"arguments\":\"\xc3\xa9\"}}]}",
        "\"delta\":{},\"logprobs\":null,\"finish_reason\":\"tool_calls\"",
        "\"choices\":[],\"usage\":{\"prompt_tokens\":6,\"completion_tokens\":16,\"total_tokens\":"
        "22,\"prompt_cache_hit_tokens\":3,\"prompt_cache_miss_tokens\":3,",
        "\"completion_tokens_details\":{\"reasoning_tokens\":2}", "data: [DONE]\n\n");
    assert_int_equal(count_of(text_of(&a), "\"finish_reason\":null"), 8);
    drop_answer(&a);
}

/* Every token of a call has its item; the items come with the call's chunks. */
static void logprobs_of_calls(void **state) {
    world *w = *state;
    for (int is_stream = 0; is_stream < 2; is_stream++) {
        begin(w, CHAT,
              is_stream ? "{\"stream\":true,\"logprobs\":true,\"return_token_ids\":true," TOOLS
                          "," HI "}"
                        : "{\"logprobs\":true,\"return_token_ids\":true," TOOLS "," HI "}",
              is_stream + 1);
        stub_text(w->engine, is_stream, "c");
        say_call(w, is_stream, "w", "{}");
        say(w, is_stream, STUB_END_CALL);
        stub_finish(w->engine, is_stream, HD_FINISH_STOP);
        answer a = finish(w);
        assert_int_equal(count_of(text_of(&a), "\"logprob\":-0.5"), 7);
        if (is_stream)
            EXPECT_ORDER(&a, "{\"index\":0,\"id\":\"call_", "\"logprobs\":{\"content\":[",
                         "\"finish_reason\":null,\"token_ids\":[261]", "{\"arguments\":\"{\"}",
                         "\"token\":\"{\"", "\"token_ids\":[123]");
        else
            EXPECT_ORDER(&a, "\"finish_reason\":\"tool_calls\"",
                         "\"token_ids\":[99,260,119,261,123,125,262,257]");
        drop_answer(&a);
    }
}

static void a_client_that_leaves_within_a_call(void **state) {
    world *w = *state;
    begin(w, CHAT, "{\"stream\":true," TOOLS "," HI "}", 1);
    say_call(w, 0, "w", "{\"a\":");
    assert_true(await_text(w->fd, &w->in, "{\"arguments\":\":\"}"));
    close(w->fd);
    assert_int_equal(stub_await(w->engine, &w->engine->n_cancelled, 1), 1);
    assert_int_equal(stub_await(w->engine, &w->engine->n_open, 0), 0);
    w->fd = dial(w->port);
}

/* ---- streams and whole answers are the same ---- */

enum { SCRIPT_MAX = 200 };

static void add_bytes(int32_t *script, int *n, test_rng *rng, int n_max) {
    static const char *const pieces[] = {"a",  "\"", "{}", "\xc3\xa9", "\xf0\x9f\x98\x80",
                                         "\n", " "};
    for (int i = rng_int(rng, 0, n_max); i > 0; i--)
        for (const char *p = pieces[rng_int(rng, 0, (int)HD_COUNT_OF(pieces) - 1)]; *p; p++)
            script[(*n)++] = (unsigned char)*p;
}

/* Reasoning, content, some calls: each may be empty. */
static int make_script(int32_t *script, test_rng *rng) {
    int n = 0;
    add_bytes(script, &n, rng, 4);
    script[n++] = STUB_END_THINK;
    add_bytes(script, &n, rng, 4);
    for (int i = rng_int(rng, 0, 3); i > 0; i--) {
        script[n++] = STUB_CALL;
        script[n++] = rng_int(rng, 'a', 'z');
        script[n++] = STUB_SEP;
        add_bytes(script, &n, rng, 5);
        script[n++] = STUB_END_CALL;
    }
    assert_true(n <= SCRIPT_MAX);
    return n;
}

static void append(json_t *to, const char *key, const json_t *piece) {
    if (!json_is_string(piece)) return;
    const json_t *old = json_object_get(to, key);
    json_t *both =
        json_sprintf("%s%s", old ? json_string_value(old) : "", json_string_value(piece));
    assert_int_equal(json_object_set_new(to, key, both), 0);
}

static void append_call(json_t *message, const json_t *piece) {
    json_t *calls = json_object_get(message, "tool_calls");
    if (!calls) {
        calls = json_array();
        json_object_set_new(message, "tool_calls", calls);
    }
    size_t ix = (size_t)json_integer_value(json_object_get(piece, "index"));
    const json_t *function = json_object_get(piece, "function");
    if (ix == json_array_size(calls)) { /* the first piece: everything but the arguments */
        assert_true(json_is_string(json_object_get(piece, "id")));
        assert_string_equal(json_string_value(json_object_get(piece, "type")), "function");
        assert_string_equal(json_string_value(json_object_get(function, "arguments")), "");
        json_array_append_new(calls, json_pack("{s:O}", "name", json_object_get(function, "name")));
    }
    assert_int_equal(ix + 1, json_array_size(calls)); /* one after the other */
    append(json_array_get(calls, ix), "arguments", json_object_get(function, "arguments"));
}

/* What a client makes of a stream: {content, reasoning_content, tool_calls, finish_reason}. */
static json_t *gather(const answer *a) {
    json_t *message = json_object();
    const char *at = text_of(a);
    while (strncmp(at, "data: {", 7) == 0) {
        const char *end = strstr(at, "\n\n");
        assert_non_null(end);
        json_t *chunk = json_loadb(at + 6, (size_t)(end - at) - 6, 0, NULL);
        const json_t *choice = json_array_get(json_object_get(chunk, "choices"), 0);
        const json_t *delta = json_object_get(choice, "delta");
        append(message, "content", json_object_get(delta, "content"));
        append(message, "reasoning_content", json_object_get(delta, "reasoning_content"));
        const json_t *calls = json_object_get(delta, "tool_calls");
        for (size_t i = 0; i < json_array_size(calls); i++)
            append_call(message, json_array_get(calls, i));
        append(message, "finish_reason", json_object_get(choice, "finish_reason"));
        json_decref(chunk);
        at = end + 2;
    }
    assert_string_equal(at, "data: [DONE]\n\n");
    return message;
}

/* The same of a whole answer. */
static json_t *reduce(const answer *a) {
    json_t *body = json_loadb(a->body.ptr, a->body.len, 0, NULL);
    const json_t *choice = json_array_get(json_object_get(body, "choices"), 0);
    json_t *from = json_object_get(choice, "message"), *message = json_object();
    append(message, "content", json_object_get(from, "content"));
    append(message, "reasoning_content", json_object_get(from, "reasoning_content"));
    append(message, "finish_reason", json_object_get(choice, "finish_reason"));
    const json_t *calls = json_object_get(from, "tool_calls");
    if (json_array_size(calls) > 0) json_object_set_new(message, "tool_calls", json_array());
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *function = json_object_get(json_array_get(calls, i), "function");
        json_array_append(json_object_get(message, "tool_calls"), function);
    }
    if (!json_object_get(message, "content"))
        json_object_set_new(message, "content", json_string(""));
    json_decref(body);
    return message;
}

static void streams_gather_to_whole_answers(void **state) {
    world *w = *state;
    test_rng rng = {7};
    for (int round = 0; round < 30; round++) {
        int32_t script[SCRIPT_MAX];
        int n = make_script(script, &rng);
        json_t *found[2];
        for (int is_stream = 0; is_stream < 2; is_stream++) {
            int ix = 2 * round + is_stream;
            begin(w, CHAT,
                  is_stream ? "{\"stream\":true,\"thinking\":{\"type\":\"enabled\"}," TOOLS "," HI
                              "}"
                            : "{\"thinking\":{\"type\":\"enabled\"}," TOOLS "," HI "}",
                  ix + 1);
            for (int i = 0; i < n; i++) say(w, ix, script[i]);
            stub_finish(w->engine, ix, HD_FINISH_STOP);
            answer a = finish(w);
            found[is_stream] = is_stream ? gather(&a) : reduce(&a);
            drop_answer(&a);
        }
        if (!json_equal(found[0], found[1])) {
            char *whole = json_dumps(found[0], 0), *pieces = json_dumps(found[1], 0);
            fail_msg("round %d: whole %s, streamed %s", round, whole, pieces);
        }
        json_decref(found[0]);
        json_decref(found[1]);
    }
}

/* ---- whole answers ---- */

static void calls_in_a_whole_answer(void **state) {
    world *w = *state;
    begin(w, CHAT, "{\"n\":2," TOOLS "," HI "}", 2);
    for (int i = 0; i < 2; i++) {
        if (i == 1) stub_text(w->engine, i, "and");
        say_call(w, i, "w", "{\"a\":1}");
        say(w, i, STUB_END_CALL);
        say_call(w, i, "x", "{}");
        say(w, i, STUB_END_CALL);
        stub_finish(w->engine, i, HD_FINISH_STOP);
    }
    answer a = finish(w);
    EXPECT_ORDER(&a,
                 "\"message\":{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":"
                 "\"call_",
                 "\",\"type\":\"function\",\"function\":{\"name\":\"w\",\"arguments\":\"{\\\"a\\\":"
                 "1}\"}},{\"id\":\"call_",
                 "\"name\":\"x\",\"arguments\":\"{}\"}}],\"refusal\":null}",
                 "\"finish_reason\":\"tool_calls\"", "\"content\":\"and\",\"tool_calls\":[",
                 "\"finish_reason\":\"tool_calls\"",
                 "\"usage\":{\"prompt_tokens\":6,\"completion_tokens\":39,");
    char id[4][30];
    const char *at = text_of(&a);
    for (int i = 0; i < 4; i++) {
        at = strstr(at, "\"call_");
        assert_non_null(at);
        snprintf(id[i], sizeof id[i], "%.29s", at + 1);
        assert_int_equal(at[30], '"');
        for (int k = 0; k < i; k++) assert_string_not_equal(id[i], id[k]);
        at++;
    }
    drop_answer(&a);
}

/* What was cut off is delivered as far as it came, and says why. */
static void calls_that_are_cut_off(void **state) {
    world *w = *state;
    begin(w, CHAT, "{\"max_tokens\":9," TOOLS "," HI "}", 1);
    say_call(w, 0, "w", "{\"a\"");
    stub_finish(w->engine, 0, HD_FINISH_LENGTH);
    answer a = finish(w);
    EXPECT_ORDER(&a, "\"name\":\"w\",\"arguments\":\"{\\\"a\\\"\"}",
                 "\"finish_reason\":\"length\"");
    drop_answer(&a);
    begin(w, CHAT, "{\"stop\":\"!\"," TOOLS "," HI "}", 2);
    say_call(w, 1, "w", "{\"a\"");
    stub_say(w->engine, 1, (hd_event){.token = '!', .finish = HD_FINISH_STOP});
    a = finish(w);
    EXPECT_ORDER(&a, "\"name\":\"w\",\"arguments\":\"{\\\"a\\\"\"}", "\"finish_reason\":\"stop\"");
    drop_answer(&a);
    begin(w, CHAT, "{\"stop\":\"!\"," TOOLS "," HI "}", 3); /* after a whole call */
    say_call(w, 2, "w", "{}");
    say(w, 2, STUB_END_CALL);
    stub_say(w->engine, 2, (hd_event){.token = '!', .finish = HD_FINISH_STOP});
    a = finish(w);
    EXPECT_ORDER(&a, "\"arguments\":\"{}\"", "\"finish_reason\":\"tool_calls\"");
    drop_answer(&a);
    /* The bound cuts calls off, the model does not. */
    for (int i = 0; i < 2; i++) {
        begin(w, CHAT, "{\"max_tokens\":9," TOOLS "," HI "}", 4 + i);
        say_call(w, 3 + i, "w", "");
        stub_finish(w->engine, 3 + i, i == 0 ? HD_FINISH_LENGTH : HD_FINISH_STOP);
        a = finish(w);
        assert_int_equal(stub_was_cut, i == 0);
        drop_answer(&a);
    }
}

static void one_call_at_most(void **state) {
    world *w = *state;
    static const char *const bodies[] = {
        "{\"parallel_tool_calls\":false," TOOLS "," HI "}",
        "{\"stream\":true,\"stream_options\":{\"include_usage\":true},\"parallel_tool_calls\":"
        "false," TOOLS "," HI "}"};
    for (int i = 0; i < 2; i++) {
        begin(w, CHAT, bodies[i], i + 1);
        say_call(w, i, "w", "{}");
        say(w, i, STUB_END_CALL);
        /* The engine would go on; it is told to stop. */
        assert_int_equal(stub_await(w->engine, &w->engine->n_stopped, i + 1), i + 1);
        answer a = finish(w);
        assert_int_equal(a.code, 200);
        EXPECT_ORDER(&a, "\"name\":\"w\"", "\"finish_reason\":\"tool_calls\"",
                     "\"completion_tokens\":6,");
        drop_answer(&a);
    }
}

/* Of two choices one is ended early: the other goes on. */
static void one_choice_is_ended_early(void **state) {
    world *w = *state;
    begin(w, CHAT, "{\"n\":2,\"parallel_tool_calls\":false," TOOLS "," HI "}", 2);
    say_call(w, 0, "w", "{}");
    say(w, 0, STUB_END_CALL);
    assert_int_equal(stub_await(w->engine, &w->engine->n_stopped, 1), 1);
    stub_text(w->engine, 1, "text");
    stub_finish(w->engine, 1, HD_FINISH_LENGTH);
    answer a = finish(w);
    assert_int_equal(a.code, 200);
    EXPECT_ORDER(&a, "\"name\":\"w\"", "\"finish_reason\":\"tool_calls\"", "\"content\":\"text\"",
                 "\"finish_reason\":\"length\"", "\"completion_tokens\":10,");
    drop_answer(&a);
}

/* Tokens that the engine computes before it hears of the end are not part of the answer. */
static void late_tokens_are_dropped(void **state) {
    world *w = *state;
    begin(w, CHAT, "{\"parallel_tool_calls\":false,\"return_token_ids\":true," TOOLS "," HI "}", 1);
    say(w, 0, STUB_CALL);
    say(w, 0, 'w');
    pthread_mutex_lock(&w->engine->mu);
    stub_event(w->engine, &w->engine->r[0], (hd_event){.token = STUB_SEP, .stop_ix = -1});
    stub_event(w->engine, &w->engine->r[0], (hd_event){.token = STUB_END_CALL, .stop_ix = -1});
    stub_event(w->engine, &w->engine->r[0], (hd_event){.token = 'z', .stop_ix = -1});
    stub_event(w->engine, &w->engine->r[0],
               (hd_event){.token = 'z', .stop_ix = -1, .finish = HD_FINISH_LENGTH});
    pthread_mutex_unlock(&w->engine->mu);
    answer a = finish(w);
    EXPECT_ORDER(&a, "\"content\":null", "\"finish_reason\":\"tool_calls\"",
                 "\"token_ids\":[260,119,261,262]", "\"completion_tokens\":4,");
    assert_int_equal(stub_count(w->engine, &w->engine->n_stopped), 0);
    drop_answer(&a);
}

static void forced_calls(void **state) {
    world *w = *state;
    begin(w, CHAT, "{\"stream\":true,\"n\":2,\"tool_choice\":" TOOL("x") "," TOOLS "," HI "}", 2);
    const stub_request *r = &w->engine->r[0];
    static const int32_t prompt[] = {STUB_BOS,       'w',       'x', 'h',     'i',
                                     STUB_END_THINK, STUB_CALL, 'x', STUB_SEP};
    assert_int_equal(r->n_prompt, 9);
    assert_memory_equal(r->prompt, prompt, sizeof prompt);
    for (int i = 0; i < 2; i++) { /* the call ends the answer */
        stub_text(w->engine, i, "{}");
        say(w, i, STUB_END_CALL);
    }
    assert_int_equal(stub_await(w->engine, &w->engine->n_stopped, 2), 2);
    answer a = finish(w);
    EXPECT_ORDER(&a, "\"index\":0,\"delta\":{\"role\"", "\"name\":\"x\",\"arguments\":\"\"",
                 "{\"arguments\":\"{\"}", "\"finish_reason\":\"tool_calls\"");
    assert_int_equal(count_of(text_of(&a), "\"name\":\"x\""), 2);
    drop_answer(&a);
    begin(w, CHAT, "{\"tool_choice\":\"required\"," TOOLS "," HI "}", 3);
    assert_int_equal(w->engine->r[2].prompt[6], STUB_CALL);
    assert_int_equal(w->engine->r[2].n_prompt, 7);
    stub_text(w->engine, 2, "w");
    say(w, 2, STUB_SEP);
    stub_text(w->engine, 2, "{}");
    stub_finish(w->engine, 2, HD_FINISH_STOP);
    a = finish(w);
    EXPECT_ORDER(&a, "\"name\":\"w\",\"arguments\":\"{}\"", "\"finish_reason\":\"tool_calls\"",
                 "\"completion_tokens\":5,");
    drop_answer(&a);
}

/* tool_choice "none": the tools are not in the prompt, the token that begins a call is banned, and
 * calls are not looked for. */
static void no_calls(void **state) {
    world *w = *state;
    begin(w, CHAT, "{\"tool_choice\":\"none\",\"logit_bias\":{\"7\":1}," TOOLS "," HI "}", 1);
    const stub_request *r = &w->engine->r[0];
    assert_int_equal(r->n_prompt, 4);
    assert_int_equal(r->sampling.n_bias, 2);
    assert_int_equal(r->sampling.bias[0].token, 7);
    assert_int_equal(r->sampling.bias[1].token, STUB_CALL);
    assert_true(isinf(r->sampling.bias[1].bias) && r->sampling.bias[1].bias < 0);
    say_call(w, 0, "w", "{}");
    stub_finish(w->engine, 0, HD_FINISH_STOP);
    answer a = finish(w);
    EXPECT_ORDER(&a, "\"content\":\"w{}\",\"refusal\"", "\"finish_reason\":\"stop\"");
    drop_answer(&a);
}

/* ---- prompts ---- */

#define TOOL_TURN                                                                                  \
    "{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":null,"              \
    "\"reasoning_content\":\"t\",\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\","            \
    "\"function\":{\"name\":\"w\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"tool_call_id\":"   \
    "\"c1\",\"content\":\"o\"}"

static void tokenize_takes_chats_whole(void **state) {
    world *w = *state;
    expect(w, "/apply-template", "{" TOOLS ",\"messages\":[" TOOL_TURN "]}", 200,
           "{\"prompt\":\"wxqtw{}o</think>\"}");
    expect(w, "/apply-template", "{\"messages\":[]}", 400, "\"param\":\"messages\"");
    expect(w, "/tokenize", "{" TOOLS ",\"messages\":[" TOOL_TURN "]}", 200,
           "\"tokens\":[256,119,120,113,116,260,119,261,123,125,262,111,259]");
    expect(w, "/tokenize",
           "{" TOOLS ",\"add_generation_prompt\":false,\"tool_choice\":\"none\",\"messages\":["
           "{\"role\":\"user\",\"content\":\"q\"}]}",
           200, "\"tokens\":[256,113]");
    expect(w, "/tokenize", "{\"thinking\":{\"type\":\"enabled\"}," HI "}", 200,
           "\"tokens\":[256,104,105,258]");
    expect(w, "/tokenize", "{\"tools\":[{}]," HI "}", 400, "tools[0].type");
}

static void thinking_is_the_models_unless_asked(void **state) {
    world *w = *state;
    static const struct {
        bool always, by_default;
        const char *body;
        int32_t last; /* of the prompt */
    } rows[] = {
        {false, false, "{" HI "}", STUB_END_THINK},
        {false, true, "{" HI "}", STUB_THINK},
        {false, true, "{\"thinking\":{\"type\":\"disabled\"}," HI "}", STUB_END_THINK},
        {false, true, "{\"reasoning_effort\":\"none\"," HI "}", STUB_END_THINK},
        {false, true, "{\"model\":\"deepseek-chat\"," HI "}", STUB_END_THINK},
        {false, false, "{\"model\":\"deepseek-reasoner\"," HI "}", STUB_THINK},
        {false, false, "{\"reasoning_effort\":\"max\"," HI "}", STUB_THINK},
        {true, true, "{" HI "}", STUB_THINK},
        {true, true, "{\"model\":\"deepseek-chat\"," HI "}", STUB_THINK},
        {true, true, "{\"thinking\":{\"type\":\"disabled\"}," HI "}", STUB_END_THINK},
    };
    for (size_t i = 0; i < HD_COUNT_OF(rows); i++) {
        w->engine->info.always_thinks = rows[i].always;
        w->engine->info.thinks_by_default = rows[i].by_default;
        begin(w, CHAT, rows[i].body, (int)i + 1);
        const stub_request *r = &w->engine->r[i];
        if (r->prompt[r->n_prompt - 1] != rows[i].last) fail_msg("row %zu", i);
        stub_finish(w->engine, (int)i, HD_FINISH_STOP);
        answer a = finish(w);
        drop_answer(&a);
    }
}

/* What a request leaves open is as the model's files suggest it. */
static void the_models_temperature_is_the_default(void **state) {
    world *w = *state;
    static const struct {
        const char *path, *body;
        float temperature;
    } rows[] = {{CHAT, "{" HI "}", 0.25f},
                {CHAT, "{\"temperature\":null," HI "}", 0.25f},
                {CHAT, "{\"temperature\":0," HI "}", 0},
                {"/v1/completions", "{\"prompt\":\"a\"}", 0.25f},
                {"/chat/completions",
                 "{\"thinking\":{\"type\":\"enabled\"},\"temperature\":0," HI "}", 0.25f}};
    w->engine->temperature = 0.25f;
    for (size_t i = 0; i < HD_COUNT_OF(rows); i++) {
        begin(w, rows[i].path, rows[i].body, (int)i + 1);
        assert_true(w->engine->r[i].sampling.temperature == rows[i].temperature);
        stub_finish(w->engine, (int)i, HD_FINISH_STOP);
        answer a = finish(w);
        drop_answer(&a);
    }
}

/* On its own paths DeepSeek's rule counts: what a chat that thinks says of temperature and
 * penalties is taken, and nothing comes of it. */
static void thinking_ignores_the_temperature(void **state) {
    world *w = *state;
    static const struct {
        const char *path, *body;
        bool ignored;
    } rows[] = {
#define COLD "\"temperature\":0,\"top_p\":0.5,\"presence_penalty\":1,\"frequency_penalty\":1,"
#define THINKS "{\"thinking\":{\"type\":\"enabled\"}," COLD HI "}"
#define ANSWERS "{\"thinking\":{\"type\":\"disabled\"}," COLD HI "}"
        {"/v1/chat/completions", THINKS, false},  {"/v1/chat/completions", ANSWERS, false},
        {"/chat/completions", THINKS, true},      {"/chat/completions", ANSWERS, false},
        {"/beta/chat/completions", THINKS, true}, {"/beta/chat/completions", ANSWERS, false},
    };
    for (size_t i = 0; i < HD_COUNT_OF(rows); i++) {
        begin(w, rows[i].path, rows[i].body, (int)i + 1);
        const hd_sampling *s = &w->engine->r[i].sampling;
        float one = rows[i].ignored ? 0 : 1;
        assert_true(s->temperature == 1 - one);
        assert_true(s->presence_penalty == one && s->frequency_penalty == one);
        assert_true(s->top_p == (rows[i].ignored ? 0.95f : 0.5f));
        stub_finish(w->engine, (int)i, HD_FINISH_STOP);
        answer a = finish(w);
        drop_answer(&a);
    }
}

static void what_a_model_cannot_do_is_refused(void **state) {
    world *w = *state;
    expect(w, CHAT,
           "{\"thinking\":{\"type\":\"enabled\"},\"tool_choice\":\"required\"," TOOLS "," HI "}",
           400,
           "'tool_choice' cannot force a call while thinking is on: send \\\"thinking\\\": "
           "{\\\"type\\\": \\\"disabled\\\"}\",\"type\":\"invalid_request_error\",\"param\":"
           "\"tool_choice\"");
    w->engine->info.always_thinks = w->engine->info.thinks_by_default = true;
    expect(w, CHAT, "{\"tool_choice\":\"required\"," TOOLS "," HI "}", 400,
           "cannot force a call while thinking is on");
    w->engine->info.always_thinks = w->engine->info.thinks_by_default = false;
    w->engine->info.can_call_tools = false;
    expect(w, CHAT, "{" TOOLS "," HI "}", 501, "chat encoding stub has no tool calls");
    w->engine->info.has_fim = false;
    expect(w, "/beta/completions", "{\"prompt\":\"a\",\"suffix\":\"b\"}", 501,
           "no token <hole>\",\"type\":\"not_implemented_error\",\"param\":\"suffix\"");
}

#define FORMAT_SCHEMA                                                                              \
    "{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"s\",\"schema\":{"  \
    "\"type\":\"object\",\"required\":[\"a\"]}}}"
#define FORMAT_OBJECT "{\"response_format\":{\"type\":\"json_object\"}"

/* Told to a model whose encoding has words for it; else refused, since nothing would come of it. */
static void the_form_of_an_answer_is_told(void **state) {
    world *w = *state;
    expect(w, CHAT, FORMAT_OBJECT "," HI "}", 501,
           "chat encoding stub has no text that tells the model of it, and answers are not "
           "constrained\",\"type\":\"not_implemented_error\",\"param\":\"response_format\"");
    expect(w, CHAT, FORMAT_SCHEMA "," HI "}", 501, "\"param\":\"response_format\"");
    w->engine->info.has_response_format = true;
    expect(w, CHAT, FORMAT_OBJECT "," HI "}", 400,
           "needs the word json in a message\",\"type\":\"invalid_request_error\",\"param\":"
           "\"messages\"");
    expect(w, "/apply-template", FORMAT_SCHEMA "," HI "}", 200,
           "{\\\"type\\\": \\\"object\\\", \\\"required\\\": [\\\"a\\\"]}hi");
    expect(w, "/apply-template",
           FORMAT_OBJECT ",\"messages\":[{\"role\":\"user\",\"content\":\"Json!\"}]}", 200,
           "{\\\"type\\\": \\\"object\\\"}Json!");
}

/* Each choice would hold the tools: what does not fit is refused before. */
static void tools_that_do_not_fit(void **state) {
    world *w = *state;
    char body[4096];
    int n = snprintf(body, sizeof body, "{\"n\":16,\"tools\":[");
    for (int i = 0; i < 40; i++)
        n += snprintf(body + n, sizeof body - (size_t)n,
                      "%s{\"type\":\"function\",\"function\":{\"name\":\"t%d\"}}", i ? "," : "", i);
    snprintf(body + n, sizeof body - (size_t)n, "]," HI "}");
    expect(w, CHAT, body, 400,
           "\"message\":\"prompt: 114 tokens, but the context holds 64, prompt and at least one "
           "generated token\",\"type\":"
           "\"invalid_request_error\",\"param\":\"messages\",\"code\":\"context_length_exceeded\"");
    assert_int_equal(stub_count(w->engine, &w->engine->n), 0);
}

/* Where past reasoning is kept, calls without it would mislead the model. */
static void reasoning_must_come_back(void **state) {
    world *w = *state;
    w->engine->info.keeps_reasoning = true;
    w->engine->echo_tokens = 1;
#define CALLED(reasoning)                                                                          \
    "{\"thinking\":{\"type\":\"%s\"},\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{"        \
    "\"role\":\"assistant\"," reasoning "\"tool_calls\":[{\"id\":\"c1\",\"function\":{\"name\":"   \
    "\"w\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"o\"}%s]}"
    static const struct {
        const char *body, *thinking, *tail;
        int code;
    } rows[] = {
        {CALLED(""), "enabled", "", 400},
        {CALLED(""), "disabled", "", 200},
        {CALLED("\"reasoning_content\":\"\","), "enabled", "", 200},
        {CALLED(""), "enabled", ",{\"role\":\"user\",\"content\":\"n\"}", 200},
    };
    for (size_t i = 0; i < HD_COUNT_OF(rows); i++) {
        char body[512];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(body, sizeof body, rows[i].body, rows[i].thinking, rows[i].tail);
#pragma GCC diagnostic pop
        expect(w, CHAT, body, rows[i].code,
               rows[i].code == 400 ? "'messages[1].reasoning_content' is missing" : "\"x\"");
    }
    w->engine->info.keeps_reasoning = false;
    expect(w, CHAT,
           "{\"thinking\":{\"type\":\"enabled\"},\"messages\":[{\"role\":\"user\",\"content\":"
           "\"q\"},{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c1\",\"function\":{\"name\":"
           "\"w\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"o\"}]}",
           200, "\"x\"");
}

static void holes_are_filled(void **state) {
    world *w = *state;
    begin(w, "/beta/completions",
          "{\"prompt\":[\"a\",\"b\"],\"suffix\":\"s\",\"echo\":true,\"n\":1}", 2);
    static const int32_t prompt[] = {STUB_BOS, 'b', STUB_HOLE, 's', STUB_END_FIM};
    assert_int_equal(w->engine->r[1].n_prompt, 5);
    assert_memory_equal(w->engine->r[1].prompt, prompt, sizeof prompt);
    assert_int_equal(w->engine->r[0].max_tokens, 4096);
    for (int i = 0; i < 2; i++) {
        stub_text(w->engine, i, "=");
        stub_finish(w->engine, i, HD_FINISH_STOP);
    }
    answer a = finish(w);
    EXPECT_ORDER(&a, "{\"index\":0,\"text\":\"a=\"", "{\"index\":1,\"text\":\"b=\"",
                 "\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":4,");
    drop_answer(&a);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_call_streamed),
        TEST(logprobs_of_calls),
        TEST(a_client_that_leaves_within_a_call),
        TEST(streams_gather_to_whole_answers),
        TEST(calls_in_a_whole_answer),
        TEST(calls_that_are_cut_off),
        TEST(one_call_at_most),
        TEST(one_choice_is_ended_early),
        TEST(late_tokens_are_dropped),
        TEST(forced_calls),
        TEST(no_calls),
        TEST(tokenize_takes_chats_whole),
        TEST(thinking_is_the_models_unless_asked),
        TEST(the_models_temperature_is_the_default),
        TEST(thinking_ignores_the_temperature),
        TEST(what_a_model_cannot_do_is_refused),
        TEST(the_form_of_an_answer_is_told),
        TEST(tools_that_do_not_fit),
        TEST(reasoning_must_come_back),
        TEST(holes_are_filled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
