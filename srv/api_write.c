/* Chunks and bodies of chat and text completions. */
#include "srv/api_write.h"

#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

/* ---- logprob items ---- */

void hd_write_token_text(hd_json *j, hd_str bytes) {
    if (hd_utf8_is_valid(bytes.ptr, bytes.len)) {
        hd_json_str(j, bytes.ptr, bytes.len);
        return;
    }
    hd_buf b;
    hd_buf_init(&b, 6 + 4 * bytes.len);
    hd_buf_add_c(&b, "bytes:");
    for (size_t i = 0; i < bytes.len; i++) hd_buf_addf(&b, "\\x%02x", (unsigned char)bytes.ptr[i]);
    hd_json_str(j, b.ptr, b.len);
    hd_buf_fini(&b);
}

/* Items of a growing array: a comma before all but the first. */
static hd_json item(hd_buf *b) {
    hd_json j = hd_json_begin(b);
    j.need_comma = b->len > 0;
    return j;
}

/* -inf is not JSON; OpenAI's servers write this number for it. */
static double finite(float logprob) { return logprob >= -9999.0f ? (double)logprob : -9999.0; }

static void token_fields(hd_json *j, hd_str bytes, float logprob) {
    hd_json_key(j, "token");
    hd_write_token_text(j, bytes);
    hd_json_key(j, "logprob");
    hd_json_num(j, finite(logprob));
    hd_json_key(j, "bytes");
    hd_json_array(j);
    for (size_t i = 0; i < bytes.len; i++) hd_json_int(j, (unsigned char)bytes.ptr[i]);
    hd_json_array_end(j);
}

static void chat_item(const hd_engine *e, const hd_gen_token *t, hd_buf *to) {
    hd_json j = item(to);
    hd_json_object(&j);
    token_fields(&j, hd_engine_token_bytes(e, t->token), t->logprob);
    hd_json_key(&j, "top_logprobs");
    hd_json_array(&j);
    for (int i = 0; i < t->n_top; i++) {
        hd_json_object(&j);
        token_fields(&j, hd_engine_token_bytes(e, t->top[i].token), t->top[i].logprob);
        hd_json_object_end(&j);
    }
    hd_json_array_end(&j);
    hd_json_object_end(&j);
}

static void top_entry(hd_json *j, const hd_engine *e, const hd_top_logprob *top) {
    hd_buf key;
    hd_buf_init(&key, 4096);
    hd_json k = hd_json_begin(&key);
    hd_write_token_text(&k, hd_engine_token_bytes(e, top->token));
    hd_json_raw(j, key.ptr, key.len);
    hd_buf_add(j->buf, ":", 1);
    j->need_comma = false;
    hd_json_num(j, finite(top->logprob));
    hd_buf_fini(&key);
}

static bool same_bytes(const hd_engine *e, int32_t a, int32_t b) {
    return hd_str_eq(hd_engine_token_bytes(e, a), hd_engine_token_bytes(e, b));
}

/* top_logprobs of a completion is an object: the chosen token is always in it, and of tokens with
 * the same text only the best. */
static void completion_item(const hd_engine *e, const hd_gen_token *t, hd_buf *to) {
    hd_json j = item(&to[HD_LP_TOKENS]);
    hd_write_token_text(&j, hd_engine_token_bytes(e, t->token));
    j = item(&to[HD_LP_TOKEN_LOGPROBS]);
    hd_json_num(&j, finite(t->logprob));
    j = item(&to[HD_LP_TOP]);
    hd_json_object(&j);
    bool has_chosen = false;
    for (int i = 0; i < t->n_top; i++) {
        bool is_new = true;
        for (int k = 0; k < i && is_new; k++)
            is_new = !same_bytes(e, t->top[k].token, t->top[i].token);
        if (is_new) top_entry(&j, e, &t->top[i]);
        if (same_bytes(e, t->top[i].token, t->token)) has_chosen = true;
    }
    hd_top_logprob chosen = {t->token, t->logprob};
    if (!has_chosen && t->n_top > 0) top_entry(&j, e, &chosen);
    hd_json_object_end(&j);
    j = item(&to[HD_LP_OFFSETS]);
    hd_json_int(&j, (int64_t)t->text_offset);
}

/* Writes the items of tokens whose text has begun to appear. */
static void release_held(hd_choice *ch, size_t n_out) {
    size_t n = 0;
    while (n < ch->n_held && ch->held[n].start < n_out) {
        const hd_gen_token *t = &ch->held[n++];
        if (ch->generation->request.kind == HD_API_COMPLETION)
            completion_item(ch->generation->engine, t, ch->logprobs);
        else
            chat_item(ch->generation->engine, t,
                      &ch->logprobs[t->is_reasoning ? HD_LP_REASONING : HD_LP_CONTENT]);
    }
    ch->n_held -= n;
    if (n > 0) memmove(ch->held, ch->held + n, ch->n_held * sizeof *ch->held);
}

static void hold(hd_choice *ch, const hd_gen_event *ev, const hd_top_logprob *top) {
    if (ch->n_held == ch->held_room) {
        ch->held_room = ch->held_room ? 2 * ch->held_room : 4;
        ch->held = hd_realloc(ch->held, ch->held_room * sizeof *ch->held);
    }
    hd_gen_token *t = &ch->held[ch->n_held++];
    *t = (hd_gen_token){.token = ev->token,
                        .logprob = ev->logprob,
                        .n_top = ev->n_top,
                        .start = ch->n_byte,
                        .text_offset = ch->n_char,
                        .is_reasoning = ch->in_reasoning};
    if (ev->n_top > 0) memcpy(t->top, top, (size_t)ev->n_top * sizeof *top);
}

/* Counts the characters that a token's bytes begin. Bytes that cannot be part of any become one
 * U+FFFD in the text, as the stream makes them. */
static void count_token(hd_choice *ch, hd_str bytes) {
    size_t n_whole = ch->n_char - (ch->n_tail > 0);
    for (size_t i = 0; i < bytes.len; i++) {
        ch->tail[ch->n_tail++] = bytes.ptr[i];
        while (ch->n_tail > 0 && !hd_utf8_is_partial(ch->tail, ch->n_tail)) {
            uint32_t cp;
            size_t n = hd_utf8_decode(ch->tail, ch->n_tail, &cp);
            if (n == 0) n = hd_utf8_invalid_len(ch->tail, ch->n_tail);
            n_whole++;
            ch->n_tail -= n;
            memmove(ch->tail, ch->tail + n, ch->n_tail);
        }
    }
    ch->n_char = n_whole + (ch->n_tail > 0);
}

/* ---- events ---- */

static hd_gen_call *add_call(hd_choice *ch) {
    ch->call = hd_realloc(ch->call, (ch->n_call + 1) * sizeof *ch->call);
    hd_gen_call *c = &ch->call[ch->n_call++];
    *c = (hd_gen_call){0};
    hd_buf_init(&c->name, HD_COLLECTED_BYTES_MAX);
    hd_buf_init(&c->arguments, HD_COLLECTED_BYTES_MAX);
    char hex[33];
    hd_make_id(hex);
    snprintf(c->id, sizeof c->id, "call_%.24s", hex);
    return c;
}

static void take_call(hd_choice *ch, const hd_call_delta *d) {
    if (d->name.len > 0) {
        hd_gen_call *c = add_call(ch);
        hd_buf_add(&c->name, d->name.ptr, d->name.len);
    }
    HD_ASSERT((size_t)d->index + 1 == ch->n_call);
    hd_buf_add(&ch->call[d->index].arguments, d->arguments.ptr, d->arguments.len);
}

static void take_text(hd_choice *ch, hd_text_out out) {
    for (size_t i = 0; i < out.n_call; i++) take_call(ch, &out.call[i]);
    hd_buf_add(&ch->reasoning, out.reasoning.ptr, out.reasoning.len);
    hd_buf_add(&ch->content, out.content.ptr, out.content.len);
    release_held(ch, out.n_out);
}

static void take_token(hd_choice *ch, const hd_gen_event *ev, const hd_top_logprob *top) {
    const hd_generation *g = ch->generation;
    if (g->request.return_token_ids) {
        hd_json j = item(&ch->ids);
        hd_json_int(&j, ev->token);
    }
    bool was_reasoning = ch->in_reasoning;
    if (ev->is_end_token) {
        ch->n_reasoning += was_reasoning;
        return;
    }
    bool wants_logprobs = g->request.sampling.n_top_logprob >= 0;
    if (wants_logprobs) hold(ch, ev, top);
    hd_text_out out = hd_text_stream_feed(ch->text, ev->token);
    /* No item for what is no text: a skipped special token, a reasoning marker. */
    bool is_marker = out.in_reasoning != was_reasoning;
    if (wants_logprobs && !out.stopped && (out.n_in == ch->n_byte || is_marker)) ch->n_held--;
    if (out.n_in != ch->n_byte && !is_marker)
        count_token(ch, hd_engine_token_bytes(g->engine, ev->token));
    ch->n_byte = out.n_in;
    ch->in_reasoning = out.in_reasoning;
    ch->n_reasoning += was_reasoning || out.in_reasoning;
    ch->is_cut = out.stopped;
    ch->by_stop = out.stopped && out.stop_ix >= 0;
    take_text(ch, out);
}

void hd_write_event(hd_choice *ch, const hd_gen_event *ev, const hd_top_logprob *top) {
    ch->n_hit = ev->n_hit;
    if (!ch->is_cut) ch->n_generated = ev->n_generated;
    if (ev->token >= 0 && !ch->is_cut) take_token(ch, ev, top);
    if (ev->finish == HD_FINISH_NONE) return;
    ch->finish = ch->is_cut ? HD_FINISH_STOP : ev->finish;
    take_text(ch, hd_text_stream_end(ch->text, ch->finish != HD_FINISH_STOP));
}

void hd_write_forced(hd_choice *ch, const int32_t *id, size_t n) {
    for (size_t i = 0; i < n; i++) {
        hd_text_out out = hd_text_stream_feed(ch->text, id[i]);
        ch->n_byte = out.n_in;
        take_text(ch, out);
    }
}

/* A call that a stop string cut off is none to carry out. */
const char *hd_choice_finish(const hd_choice *ch) {
    if (ch->finish == HD_FINISH_LENGTH) return "length";
    if (ch->finish != HD_FINISH_STOP) return NULL;
    if (ch->n_call == 0) return "stop";
    bool is_whole =
        !ch->by_stop || hd_api_is_object(hd_buf_str(&ch->call[ch->n_call - 1].arguments));
    return is_whole ? "tool_calls" : "stop";
}

void hd_write_echo(hd_generation *g) {
    const hd_api_request *q = &g->request;
    for (int i = 0; i < g->n_choice; i++) {
        hd_choice *ch = &g->choice[i];
        const hd_api_prompt *p = &q->prompt[ch->prompt_ix];
        if (p->id)
            hd_engine_detokenize(g->engine, p->id, p->n_id, q->keep_special, &ch->content);
        else
            hd_buf_add(&ch->content, p->text.ptr, p->text.len);
        ch->n_char = hd_utf8_count(ch->content.ptr, ch->content.len);
    }
}

/* ---- JSON ---- */

static void str(hd_json *j, const char *key, hd_str s) {
    hd_json_key(j, key);
    hd_json_str(j, s.ptr, s.len);
}

static void items(hd_json *j, const char *key, const hd_buf *b) {
    hd_json_key(j, key);
    hd_json_array(j);
    hd_json_raw(j, b->len ? b->ptr : "", b->len);
    hd_json_array_end(j);
}

static void prompt_ids(hd_json *j, const hd_generation *g, size_t ix) {
    size_t n;
    const int32_t *id = hd_generation_prompt(g, ix, &n);
    hd_json_key(j, "prompt_token_ids");
    hd_json_array(j);
    for (size_t i = 0; i < n; i++) hd_json_int(j, id[i]);
    hd_json_array_end(j);
}

static void head(hd_json *j, const hd_generation *g, const char *object) {
    char fingerprint[16] = "fp_";
    strncat(fingerprint, hd_engine_get_info(g->engine)->model_hash, 10);
    hd_json_object(j);
    hd_json_key(j, "id");
    hd_json_str_c(j, g->id);
    hd_json_key(j, "object");
    hd_json_str_c(j, object);
    hd_json_key(j, "created");
    hd_json_int(j, g->created_s);
    hd_json_key(j, "model");
    hd_json_str_c(j, g->model);
    hd_json_key(j, "system_fingerprint");
    hd_json_str_c(j, fingerprint);
    if (g->request.service_tier.len == 0) return;
    hd_json_key(j, "service_tier"); /* auto is what it became */
    hd_json_str_c(j, hd_str_eq_c(g->request.service_tier, "auto") ? "default"
                                                                  : g->request.service_tier.ptr);
}

/* One call: whole, or the parts of it that one delta of a stream has. */
enum call_part { CALL_WHOLE, CALL_BEGIN, CALL_ARGUMENTS };

static void tool_call(hd_json *j, const hd_choice *ch, size_t ix, enum call_part part) {
    const hd_gen_call *c = &ch->call[ix];
    hd_json_object(j);
    if (part != CALL_WHOLE) {
        hd_json_key(j, "index");
        hd_json_int(j, (int64_t)ix);
    }
    if (part != CALL_ARGUMENTS) {
        hd_json_key(j, "id");
        hd_json_str_c(j, c->id);
        hd_json_key(j, "type");
        hd_json_str_c(j, "function");
    }
    hd_json_key(j, "function");
    hd_json_object(j);
    if (part != CALL_ARGUMENTS) str(j, "name", hd_buf_str(&c->name));
    hd_str all = hd_buf_str(&c->arguments);
    hd_str part_of[] = {all, {"", 0}, {all.ptr + c->n_told, all.len - c->n_told}};
    str(j, "arguments", part_of[part]);
    hd_json_object_end(j);
    hd_json_object_end(j);
}

static void finish_reason(hd_json *j, const char *why) {
    hd_json_key(j, "finish_reason");
    hd_json_str_c(j, why);
}

/* `logprobs`, null when not asked for (or nothing came with this chunk). */
static void logprobs(hd_json *j, const hd_choice *ch, bool is_wanted) {
    hd_json_key(j, "logprobs");
    if (!is_wanted) {
        hd_json_null(j);
        return;
    }
    hd_json_object(j);
    if (ch->generation->request.kind == HD_API_COMPLETION) {
        items(j, "tokens", &ch->logprobs[HD_LP_TOKENS]);
        items(j, "token_logprobs", &ch->logprobs[HD_LP_TOKEN_LOGPROBS]);
        items(j, "top_logprobs", &ch->logprobs[HD_LP_TOP]);
        items(j, "text_offset", &ch->logprobs[HD_LP_OFFSETS]);
    } else {
        items(j, "content", &ch->logprobs[HD_LP_CONTENT]);
        if (ch->logprobs[HD_LP_REASONING].len > 0)
            items(j, "reasoning_content", &ch->logprobs[HD_LP_REASONING]);
        hd_json_key(j, "refusal");
        hd_json_null(j);
    }
    hd_json_object_end(j);
}

static void usage(hd_json *j, const hd_generation *g) {
    hd_usage u = hd_generation_usage(g);
    hd_json_key(j, "usage");
    hd_json_object(j);
    hd_json_key(j, "prompt_tokens");
    hd_json_int(j, u.n_prompt);
    hd_json_key(j, "completion_tokens");
    hd_json_int(j, u.n_generated);
    hd_json_key(j, "total_tokens");
    hd_json_int(j, u.n_prompt + u.n_generated);
    hd_json_key(j, "prompt_cache_hit_tokens");
    hd_json_int(j, u.n_hit);
    hd_json_key(j, "prompt_cache_miss_tokens");
    hd_json_int(j, u.n_prompt - u.n_hit);
    hd_json_key(j, "prompt_tokens_details");
    hd_json_object(j);
    hd_json_key(j, "cached_tokens");
    hd_json_int(j, u.n_hit);
    hd_json_object_end(j);
    hd_json_key(j, "completion_tokens_details");
    hd_json_object(j);
    hd_json_key(j, "reasoning_tokens");
    hd_json_int(j, u.n_reasoning);
    hd_json_object_end(j);
    hd_json_object_end(j);
}

/* ---- streams ---- */

enum piece { PIECE_ROLE, PIECE_TEXT, PIECE_CALL, PIECE_ARGUMENTS, PIECE_END };

/* Of the calls, a delta has the first that is not told. */
static void delta(hd_json *j, const hd_choice *ch, enum piece what) {
    hd_json_key(j, "delta");
    hd_json_object(j);
    if (what == PIECE_ROLE) {
        hd_json_key(j, "role");
        hd_json_str_c(j, "assistant");
        str(j, "content", (hd_str){"", 0});
    } else if (what == PIECE_TEXT) {
        if (ch->reasoning.len > 0) str(j, "reasoning_content", hd_buf_str(&ch->reasoning));
        if (ch->content.len > 0 || ch->reasoning.len == 0)
            str(j, "content", hd_buf_str(&ch->content));
    } else if (what != PIECE_END) {
        hd_json_key(j, "tool_calls");
        hd_json_array(j);
        tool_call(j, ch, ch->first_untold, what == PIECE_CALL ? CALL_BEGIN : CALL_ARGUMENTS);
        hd_json_array_end(j);
    }
    hd_json_object_end(j);
}

static void chunk(hd_choice *ch, enum piece what, hd_buf *out) {
    const hd_generation *g = ch->generation;
    bool is_chat = g->request.kind == HD_API_CHAT;
    bool is_first = !ch->has_role;
    ch->has_role = true;
    hd_buf_add_c(out, "data: ");
    hd_json j = hd_json_begin(out);
    head(&j, g, is_chat ? "chat.completion.chunk" : "text_completion");
    if (g->request.return_token_ids && is_chat && is_first) prompt_ids(&j, g, 0);
    hd_json_key(&j, "choices");
    hd_json_array(&j);
    hd_json_object(&j);
    hd_json_key(&j, "index");
    hd_json_int(&j, ch->ix);
    if (is_chat)
        delta(&j, ch, what);
    else
        str(&j, "text", what == PIECE_TEXT ? hd_buf_str(&ch->content) : (hd_str){"", 0});
    bool has_logprobs = ch->logprobs[0].len > 0 || ch->logprobs[1].len > 0;
    logprobs(&j, ch, what != PIECE_ROLE && what != PIECE_END && has_logprobs);
    finish_reason(&j, what == PIECE_END ? hd_choice_finish(ch) : NULL);
    if (g->request.return_token_ids) {
        if (!is_chat && is_first) prompt_ids(&j, g, (size_t)ch->prompt_ix);
        static const hd_buf none;
        items(&j, "token_ids", what == PIECE_ROLE ? &none : &ch->ids);
    }
    hd_json_object_end(&j);
    hd_json_array_end(&j);
    if (g->request.include_usage) {
        hd_json_key(&j, "usage");
        hd_json_null(&j);
    }
    hd_json_object_end(&j);
    hd_buf_add_c(out, "\n\n");
    if (what == PIECE_ROLE) return;
    hd_buf_clear(&ch->content);
    hd_buf_clear(&ch->reasoning);
    hd_buf_clear(&ch->ids);
    for (int i = 0; i < 4; i++) hd_buf_clear(&ch->logprobs[i]);
}

static bool has_untold_calls(const hd_choice *ch) {
    if (ch->first_untold == ch->n_call) return false;
    const hd_gen_call *c = &ch->call[ch->first_untold];
    return !c->is_told || c->n_told < c->arguments.len || ch->first_untold + 1 < ch->n_call;
}

/* Each call's name, then what is new of its arguments. The last call may still grow. */
static void call_chunks(hd_choice *ch, hd_buf *out) {
    for (;; ch->first_untold++) {
        hd_gen_call *c = &ch->call[ch->first_untold];
        if (!c->is_told) chunk(ch, PIECE_CALL, out);
        c->is_told = true;
        if (c->n_told < c->arguments.len) chunk(ch, PIECE_ARGUMENTS, out);
        c->n_told = c->arguments.len;
        if (ch->first_untold + 1 == ch->n_call) return;
    }
}

void hd_write_chunk(hd_choice *ch, bool is_last, hd_buf *out) {
    bool has_text = ch->content.len > 0 || ch->reasoning.len > 0;
    bool has_logprobs = ch->logprobs[0].len > 0 || ch->logprobs[1].len > 0;
    bool has_calls = has_untold_calls(ch);
    bool has_only_ids = !ch->text && ch->ids.len > 0; /* the model has no tokenizer */
    if (!has_text && !has_logprobs && !has_calls && !has_only_ids && !is_last) return;
    if (!ch->has_role && ch->generation->request.kind == HD_API_CHAT) chunk(ch, PIECE_ROLE, out);
    if (has_text || has_only_ids || (has_logprobs && !has_calls)) chunk(ch, PIECE_TEXT, out);
    if (has_calls) call_chunks(ch, out);
    if (is_last) chunk(ch, PIECE_END, out);
}

void hd_write_usage_chunk(const hd_generation *g, hd_buf *out) {
    hd_buf_add_c(out, "data: ");
    hd_json j = hd_json_begin(out);
    head(&j, g, g->request.kind == HD_API_CHAT ? "chat.completion.chunk" : "text_completion");
    hd_json_key(&j, "choices");
    hd_json_array(&j);
    hd_json_array_end(&j);
    usage(&j, g);
    hd_json_object_end(&j);
    hd_buf_add_c(out, "\n\n");
}

/* ---- whole answers ---- */

static void choice(hd_json *j, const hd_choice *ch) {
    const hd_generation *g = ch->generation;
    hd_json_object(j);
    hd_json_key(j, "index");
    hd_json_int(j, ch->ix);
    if (g->request.kind == HD_API_CHAT) {
        hd_json_key(j, "message");
        hd_json_object(j);
        hd_json_key(j, "role");
        hd_json_str_c(j, "assistant");
        if (ch->content.len > 0 || ch->n_call == 0) {
            str(j, "content", hd_buf_str(&ch->content));
        } else {
            hd_json_key(j, "content");
            hd_json_null(j);
        }
        if (ch->reasoning.len > 0) str(j, "reasoning_content", hd_buf_str(&ch->reasoning));
        if (ch->n_call > 0) {
            hd_json_key(j, "tool_calls");
            hd_json_array(j);
            for (size_t i = 0; i < ch->n_call; i++) tool_call(j, ch, i, CALL_WHOLE);
            hd_json_array_end(j);
        }
        hd_json_key(j, "refusal");
        hd_json_null(j);
        hd_json_object_end(j);
    } else {
        str(j, "text", hd_buf_str(&ch->content));
    }
    logprobs(j, ch, g->request.sampling.n_top_logprob >= 0);
    finish_reason(j, hd_choice_finish(ch));
    if (g->request.return_token_ids) {
        items(j, "token_ids", &ch->ids);
        if (g->request.kind == HD_API_COMPLETION) prompt_ids(j, g, (size_t)ch->prompt_ix);
    }
    hd_json_object_end(j);
}

void hd_write_body(const hd_generation *g, hd_buf *out) {
    bool is_chat = g->request.kind == HD_API_CHAT;
    hd_json j = hd_json_begin(out);
    head(&j, g, is_chat ? "chat.completion" : "text_completion");
    hd_json_key(&j, "choices");
    hd_json_array(&j);
    for (int i = 0; i < g->n_choice; i++) choice(&j, &g->choice[i]);
    hd_json_array_end(&j);
    usage(&j, g);
    if (g->request.return_token_ids && is_chat) prompt_ids(&j, g, 0);
    hd_json_object_end(&j);
}
