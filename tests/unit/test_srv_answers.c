/* The server over real sockets, in front of a stand-in engine: answers whole and streamed, waiting,
 * refusals, errors before and after the headers. */
#include "http/wire.h"

/* ---- generation ---- */

static void a_chat_streamed(void **state) {
    world *w = *state;
    start(w);
    int fd = dial(w->port);
    hd_buf b;
    hd_buf_init(&b, 1 << 20);
    put(fd, post_text(
                CHAT, "",
                "{\"stream\":true,\"stream_options\":{\"include_usage\":true},\"return_token_ids\":"
                "true,\"chat_template_kwargs\":{\"thinking\":true},\"logprobs\":true,"
                "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}"));
    assert_int_equal(stub_await(w->engine, &w->engine->n_open, 1), 1);
    assert_true(await_text(fd, &b, "text/event-stream")); /* headers come before any token */
    assert_null(strstr(b.ptr, "data:"));
    stub_text(w->engine, 0, "ab");
    stub_say(w->engine, 0, (hd_event){.token = STUB_END_THINK, .stop_ix = -1});
    stub_text(w->engine, 0, "\xc3");
    stub_text(w->engine, 0, "\xa9!");
    stub_finish(w->engine, 0, HD_FINISH_STOP);
    answer a = take_answer(fd, &b, false);
    assert_int_equal(a.code, 200);
    const char *t = text_of(&a);
    assert_non_null(strstr(t, "\"prompt_token_ids\":[256,104,105,258]"));
    assert_non_null(strstr(t, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}"));
    assert_non_null(strstr(t, "\"delta\":{\"reasoning_content\":\"a\"}"));
    /* Both halves of the character come together, with both items and ids. */
    const char *e = strstr(t, "\"delta\":{\"content\":\"\xc3\xa9\"}");
    assert_non_null(e);
    assert_non_null(strstr(e, "{\"token\":\"bytes:\\\\xc3\",\"logprob\":-0.5,\"bytes\":[195],"));
    assert_non_null(strstr(e, "\"token_ids\":[259,195,169]"));
    assert_non_null(strstr(t, "\"delta\":{},\"logprobs\":null,\"finish_reason\":\"stop\""));
    assert_non_null(strstr(t,
                           "\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":7,"
                           "\"total_tokens\":11,\"prompt_cache_hit_tokens\":2,"
                           "\"prompt_cache_miss_tokens\":2,\"prompt_tokens_details\":{\"cached_"
                           "tokens\":2},\"completion_tokens_details\":{\"reasoning_tokens\":3}}"));
    assert_string_equal(t + strlen(t) - 14, "data: [DONE]\n\n");
    drop_answer(&a);
    hd_buf_fini(&b);
    close(fd);
}

static void choices_of_several_prompts(void **state) {
    world *w = *state;
    start(w);
    int fd = dial(w->port);
    hd_buf b;
    hd_buf_init(&b, 1 << 20);
    put(fd, post_text("/v1/completions", "",
                      "{\"prompt\":[\"p\",\"qq\"],\"n\":2,\"seed\":7,\"echo\":true,\"priority\":-3,"
                      "\"user\":\"u\"}"));
    assert_int_equal(stub_await(w->engine, &w->engine->n_open, 4), 4);
    const stub_request *r = w->engine->r;
    assert_int_equal(r[0].sampling.seed, 7);
    assert_int_equal(r[1].sampling.seed, 8);
    assert_int_equal(r[2].sampling.seed, 7);
    assert_int_equal(r[0].max_tokens, 16);
    assert_int_equal(r[0].priority, -3);
    assert_true(r[0].cache_salt != 0);
    for (int i = 3; i >= 0; i--) {
        char text[2] = {(char)('0' + i), 0};
        stub_text(w->engine, i, text);
        stub_finish(w->engine, i, i == 0 ? HD_FINISH_LENGTH : HD_FINISH_STOP);
    }
    answer a = take_answer(fd, &b, false);
    const char *t = text_of(&a);
    assert_non_null(strstr(t, "\"object\":\"text_completion\""));
    assert_non_null(
        strstr(t, "{\"index\":0,\"text\":\"p0\",\"logprobs\":null,\"finish_reason\":\"length\"}"));
    assert_non_null(
        strstr(t, "{\"index\":3,\"text\":\"qq3\",\"logprobs\":null,\"finish_reason\":\"stop\"}"));
    assert_non_null(
        strstr(t, "\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":7,\"total_tokens\":12"));
    drop_answer(&a);
    hd_buf_fini(&b);
    close(fd);
}

static void refusals_name_the_reason(void **state) {
    world *w = *state;
    start(w);
    w->engine->echo_tokens = 1;
    expect(w, post_text(CHAT, "", "{\"messages\":[}"), 400, "line 1, column 14");
    expect(w,
           post_text(CHAT, "",
                     "{\"model\":\"gpt-4\",\"messages\":[{\"role\":\"user\",\"content\":\"\"}]}"),
           404, "model_not_found");
    expect(w, post_text("/v1/completions", "", "{\"prompt\":[1,300]}"), 400,
           "\"param\":\"prompt\"");
    expect(w, post_text("/v1/completions", "", "{\"prompt\":[1],\"logit_bias\":{\"300\":1}}"), 400,
           "\"param\":\"logit_bias\"");
    char body[256];
    snprintf(body, sizeof body, "{\"prompt\":\"%0100d\"}", 7);
    expect(w, post_text("/v1/completions", "", body), 400, "context_length_exceeded");
    expect(w, post_text("/tokenize", "", "{\"prompt\":\"ab\"}"), 200, "\"tokens\":[256,97,98]");
    expect(w, post_text("/tokenize", "", "{\"content\":\"ab\"}"), 200, "\"tokens\":[97,98]");
    expect(w,
           post_text("/tokenize", "",
                     "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],"
                     "\"return_token_strs\":true}"),
           200, "\"tokens\":[256,97,259],\"token_strs\":[\"\",\"a\",\"</think>\"]");
    expect(w, post_text("/detokenize", "", "{\"tokens\":[97,98]}"), 200,
           "{\"prompt\":\"ab\",\"content\":\"ab\"}");
    expect(w, post_text("/detokenize", "", "{\"tokens\":[97,-1]}"), 400, "tokens");
    w->engine->echo_tokens = 0;
    w->engine->busy_after = 1;
    answer a = ask(w->port, post_text("/v1/completions", "", "{\"prompt\":\"p\",\"n\":2}"));
    assert_int_equal(a.code, 429);
    assert_string_equal(header(&a, "Retry-After"), "8");
    drop_answer(&a);
    assert_int_equal(stub_await(w->engine, &w->engine->n_open, 0), 0);
    assert_int_equal(w->engine->n_cancelled, 1);
}

/* A full engine: refused before the body is read, unless it names a class; a more urgent one is
 * taken. */
static void full_engine_takes_the_urgent(void **state) {
    world *w = *state;
    start(w);
    w->engine->is_full = true;
    answer a = ask(w->port, post_text("/v1/completions", "", "not even JSON"));
    assert_int_equal(a.code, 429);
    assert_string_equal(header(&a, "Retry-After"), "8");
    assert_non_null(strstr(text_of(&a), "rate_limit_exceeded"));
    drop_answer(&a);
    assert_int_equal(w->engine->n_asked, 1);
    a = ask(w->port,
            post_text("/v1/completions", "", "{\"prompt\":\"p\",\"service_tier\":\"flex\"}"));
    assert_int_equal(a.code, 429);
    assert_string_equal(header(&a, "Retry-After"), "9");
    drop_answer(&a);
    a = ask(w->port, post_text("/v1/completions", "", "{\"prompt\":\"p\",\"service_tier\":\"x\"}"));
    assert_int_equal(a.code, 400);
    assert_non_null(strstr(text_of(&a), "\"param\":\"service_tier\""));
    drop_answer(&a);
    assert_int_equal(w->engine->n, 0);
    assert_int_equal((int)hd_metric_get(HD_M_REFUSAL_TIME), 2); /* not the 400 */
    hd_buf b;
    hd_buf_init(&b, 1 << 20);
    int fd = dial(w->port);
    put(fd, post_text("/v1/completions", "X-Hadal-Deadline-Ms: 60000\r\n",
                      "{\"prompt\":\"p\",\"service_tier\":\"priority\",\"user\":\"u\"}"));
    stub_await(w->engine, &w->engine->n, 1);
    const stub_request *r = w->engine->r;
    assert_int_equal(r->service, HD_SERVICE_INTERACTIVE);
    assert_true(r->tenant != 0);
    int64_t left_ns = r->deadline_ns - hd_now_ns();
    assert_true(left_ns > 0 && left_ns <= INT64_C(60000000000));
    stub_text(w->engine, 0, "abc");
    stub_finish(w->engine, 0, HD_FINISH_STOP);
    a = take_answer(fd, &b, false);
    assert_int_equal(a.code, 200);
    assert_non_null(strstr(text_of(&a), "\"service_tier\":\"priority\""));
    drop_answer(&a);
    a = ask(w->port, post_text("/v1/completions", "X-Hadal-Deadline-Ms: 1e3\r\n",
                               "{\"prompt\":\"p\",\"service_tier\":\"priority\"}"));
    assert_int_equal(a.code, 400);
    assert_non_null(strstr(text_of(&a), "x-hadal-deadline-ms"));
    drop_answer(&a);
    hd_buf_fini(&b);
    close(fd);
}

static void engine_errors(void **state) {
    world *w = *state;
    start(w);
    hd_buf b;
    hd_buf_init(&b, 1 << 20);
    int fd = dial(w->port);
    put(fd, post_text(CHAT, "", HELLO));
    stub_await(w->engine, &w->engine->n, 1);
    stub_text(w->engine, 0, "abc");
    stub_finish(w->engine, 0, HD_FINISH_ERROR);
    answer a = take_answer(fd, &b, false);
    assert_int_equal(a.code, 500);
    assert_non_null(strstr(text_of(&a), "layer 3"));
    drop_answer(&a);
    put(fd, post_text(
                CHAT, "",
                "{\"stream\":true,\"n\":2,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}"));
    stub_await(w->engine, &w->engine->n, 3);
    stub_text(w->engine, 1, "abc");
    assert_true(await_text(fd, &b, "\"c\""));
    stub_finish(w->engine, 1, HD_FINISH_ERROR); /* of one choice: the other is cancelled */
    a = take_answer(fd, &b, false);
    assert_int_equal(a.code, 200);
    assert_true(a.is_whole);
    assert_non_null(strstr(text_of(&a), "data: {\"error\":{\"message\":\"logits of layer 3"));
    assert_null(strstr(text_of(&a), "[DONE]"));
    assert_null(strstr(text_of(&a), "\"finish_reason\":\"")); /* none that says it is whole */
    drop_answer(&a);
    assert_int_equal(stub_await(w->engine, &w->engine->n_open, 0), 0);
    put(fd, GET("/health")); /* the connection lives */
    a = take_answer(fd, &b, false);
    assert_int_equal(a.code, 200);
    drop_answer(&a);
    hd_buf_fini(&b);
    close(fd);
}

static void silence_is_filled_with_comments(void **state) {
    world *w = *state;
    w->config.keep_alive_s = 0.2;
    start(w);
    int fd = dial(w->port);
    hd_buf b;
    hd_buf_init(&b, 1 << 20);
    put(fd, post_text(CHAT, "", HELLO_STREAM));
    assert_true(await_text(fd, &b, "\r\n: keep-alive\n\n\r\n"));
    stub_finish(w->engine, 0, HD_FINISH_STOP);
    answer a = take_answer(fd, &b, false);
    assert_non_null(strstr(text_of(&a), "data: [DONE]\n\n"));
    drop_answer(&a);
    hd_buf_fini(&b);
    close(fd);
}

static void waiting_is_filled_with_blank_lines(void **state) {
    world *w = *state;
    w->config.keep_alive_s = 0.2;
    start(w);
    for (int minor = 0; minor < 2; minor++) {
        int fd = dial(w->port);
        hd_buf b;
        hd_buf_init(&b, 1 << 20);
        char request[512];
        snprintf(request, sizeof request,
                 "POST " CHAT " HTTP/1.%d\r\nHost: t\r\nContent-Length: %zu\r\n\r\n%s", minor,
                 strlen(HELLO), HELLO);
        put(fd, request);
        assert_true(await_text(fd, &b, minor == 1 ? "\r\n\r\n1\r\n\n\r\n" : "\r\n\r\n\n"));
        stub_text(w->engine, minor, "ok");
        stub_finish(w->engine, minor, HD_FINISH_STOP);
        answer a = take_answer(fd, &b, false);
        assert_int_equal(a.code, 200);
        assert_true(a.is_whole);
        assert_string_equal(header(&a, "Content-Type"), "application/json");
        assert_memory_equal(text_of(&a), "\n", 1);
        assert_non_null(strstr(text_of(&a), "\n{\"id\":"));
        assert_non_null(strstr(text_of(&a), "\"content\":\"ok\""));
        drop_answer(&a);
        if (minor == 1) { /* the connection goes on */
            put(fd, GET("/health"));
            a = take_answer(fd, &b, false);
            assert_int_equal(a.code, 200);
            drop_answer(&a);
        }
        hd_buf_fini(&b);
        close(fd);
    }
    /* A failure after the 200 cannot be told: the answer is cut, never taken for a whole one. */
    int fd = dial(w->port);
    hd_buf b;
    hd_buf_init(&b, 1 << 20);
    put(fd, post_text(CHAT, "", HELLO));
    assert_true(await_text(fd, &b, "1\r\n\n\r\n"));
    stub_finish(w->engine, 2, HD_FINISH_ERROR);
    answer a = take_answer(fd, &b, false);
    assert_false(a.is_whole);
    assert_null(strchr(text_of(&a), '{'));
    drop_answer(&a);
    close(fd);
    hd_buf_clear(&b);
    fd = dial(w->port); /* nor can the server's end be */
    put(fd, post_text(CHAT, "", HELLO));
    assert_true(await_text(fd, &b, "1\r\n\n\r\n"));
    hd_server_drain(w->server);
    hd_server_stop(w->server);
    a = take_answer(fd, &b, false);
    assert_false(a.is_whole);
    drop_answer(&a);
    hd_buf_fini(&b);
    close(fd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_chat_streamed),
        TEST(choices_of_several_prompts),
        TEST(refusals_name_the_reason),
        TEST(full_engine_takes_the_urgent),
        TEST(engine_errors),
        TEST(silence_is_filled_with_comments),
        TEST(waiting_is_filled_with_blank_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
