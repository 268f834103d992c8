/* What holds for every parsed body, for the two fuzz targets of request bodies. */
#ifndef HD_FUZZ_BODY_H
#define HD_FUZZ_BODY_H

#include "base/utf8.h"
#include "srv/api_request.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_check(bool ok) {
    if (!ok) abort();
}

/* Written once more from its own text, a value is the same text. */
static void fuzz_dump(hd_str text) {
    json_t *v = json_loadb(text.ptr, text.len, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL);
    fuzz_check(json_is_object(v));
    hd_buf again;
    hd_buf_init(&again, 1 << 26);
    hd_api_dump(v, &again);
    fuzz_check(hd_str_eq(hd_buf_str(&again), text));
    hd_buf_fini(&again);
    json_decref(v);
}

/* What a chat encoding relies on. */
static void fuzz_tools(const hd_api_request *q) {
    fuzz_check(q->tool_choice != HD_TOOL_REQUIRED || q->n_tool > 0);
    bool is_forced = q->forced_tool.len == 0;
    for (size_t i = 0; i < q->n_tool; i++) {
        const hd_tool *t = &q->tool[i];
        fuzz_check(t->name.len >= 1 && t->name.len <= 64);
        fuzz_dump(t->parameters);
        fuzz_dump(t->function);
        fuzz_check(hd_utf8_is_valid(t->description.ptr, t->description.len));
        for (size_t k = 0; k < i; k++) fuzz_check(!hd_str_eq(t->name, q->tool[k].name));
        if (hd_str_eq(t->name, q->forced_tool)) is_forced = true;
    }
    fuzz_check(is_forced);
}

static void fuzz_message(const hd_message *m) {
    fuzz_check(hd_utf8_is_valid(m->content.ptr, m->content.len));
    fuzz_check(hd_utf8_is_valid(m->reasoning.ptr, m->reasoning.len));
    fuzz_check(m->n_call == 0 || m->role == HD_ROLE_ASSISTANT);
    fuzz_check((m->role == HD_ROLE_TOOL) == (m->call_id.ptr != NULL));
    for (size_t i = 0; i < m->n_call; i++) {
        fuzz_check(m->call[i].id.len > 0 && m->call[i].name.len > 0);
        fuzz_check(hd_api_is_object(m->call[i].arguments));
    }
}

static void fuzz_taken(enum hd_api_kind kind, const hd_api_request *q) {
    const hd_sampling *s = &q->sampling;
    fuzz_check(q->n >= 1 && q->n <= HD_API_N_MAX);
    fuzz_check(q->max_tokens >= 0 && q->min_tokens >= 0);
    fuzz_check(q->max_tokens == 0 || q->min_tokens <= q->max_tokens);
    fuzz_check(s->temperature >= 0 && s->temperature <= 2 && s->top_p > 0 && s->top_p <= 1);
    fuzz_check(s->min_p >= 0 && s->min_p <= 1 && s->top_k >= 0 && s->repetition_penalty > 0);
    fuzz_check(s->n_top_logprob >= -1 && s->n_top_logprob <= HD_TOP_LOGPROB_MAX);
    fuzz_check(s->n_bias >= 0 && s->n_bias <= HD_BIAS_MAX);
    fuzz_check(q->n_stop <= HD_STOP_MAX && q->n_stop_token <= HD_STOP_TOKEN_MAX);
    for (int i = 0; i < q->n_stop; i++)
        fuzz_check(q->stop[i].len > 0 && hd_utf8_is_valid(q->stop[i].ptr, q->stop[i].len));
    if (kind == HD_API_CHAT) {
        fuzz_check(q->n_message >= 1 && q->n_message <= HD_API_MESSAGE_MAX);
        for (size_t i = 0; i < q->n_message; i++) fuzz_message(&q->message[i]);
        fuzz_tools(q);
        if (q->continue_final) fuzz_check(q->message[q->n_message - 1].role == HD_ROLE_ASSISTANT);
        fuzz_check(q->effort >= 0 && q->effort <= 100 && q->max_call >= 0);
        return;
    }
    fuzz_check(q->n_prompt >= 1 && q->n_prompt * (size_t)q->n <= HD_API_CHOICE_MAX);
    for (size_t i = 0; i < q->n_prompt; i++) {
        fuzz_check(!q->prompt[i].id || q->prompt[i].n_id > 0);
        for (size_t k = 0; k < q->prompt[i].n_id; k++) fuzz_check(q->prompt[i].id[k] >= 0);
        fuzz_check(q->suffix.len == 0 || !q->prompt[i].id);
    }
}

static void fuzz_body(enum hd_api_kind kind, const uint8_t *data, size_t size) {
    hd_arena *arena = hd_arena_new(4096);
    hd_api_request q;
    hd_api_error e = {0};
    hd_sampling defaults;
    hd_sampling_init(&defaults);
    hd_status s = hd_api_parse(kind, (hd_str){(const char *)data, size}, &defaults, arena, &q, &e);
    if (s == HD_OK) {
        fuzz_taken(kind, &q);
    } else {
        int code = hd_status_http(s);
        fuzz_check(e.status == s && *e.message && (code == 400 || code == 413 || code == 501));
        hd_buf b;
        hd_buf_init(&b, 1 << 16);
        hd_json j = hd_json_begin(&b);
        hd_json_str_c(&j, e.message);
        fuzz_check(!b.overflowed && hd_utf8_is_valid(b.ptr, b.len));
        hd_buf_fini(&b);
    }
    hd_arena_free(arena);
}

#endif
