/* The text tools of the public API: thin calls into lib/text. */
#include "engine/impl.h"

static hd_status need_tokenizer(const hd_engine *e) {
    if (e->tokenizer) return HD_OK;
    return HD_FAIL(UNSUPPORTED, "model %s has no tokenizer: only token ids can be used",
                   e->info.model_name);
}

void hd_engine_free_ids(hd_token_list *l) {
    hd_free(l->id);
    *l = (hd_token_list){0};
}

static hd_token_list list_of(const hd_ids *ids) {
    return (hd_token_list){.id = ids->id, .n = ids->n};
}

hd_status hd_engine_tokenize(const hd_engine *e, hd_str text, bool match_added, bool add_bos,
                             hd_token_list *out) {
    *out = (hd_token_list){0};
    HD_TRY(need_tokenizer(e));
    hd_ids ids = {0}, all = {0};
    hd_tokenizer_encode(e->tokenizer, text, match_added, &ids);
    int32_t bos = hd_tokenizer_bos(e->tokenizer);
    bool wants_bos = add_bos && bos >= 0 && hd_tokenizer_add_bos(e->tokenizer);
    if (wants_bos && !(ids.n > 0 && ids.id[0] == bos)) { /* never two of them */
        hd_ids_add(&all, bos);
        for (size_t i = 0; i < ids.n; i++) hd_ids_add(&all, ids.id[i]);
        hd_ids_fini(&ids);
        ids = all;
    }
    *out = list_of(&ids);
    return HD_OK;
}

hd_str hd_engine_token_bytes(const hd_engine *e, int32_t token) {
    return e->tokenizer ? hd_tokenizer_bytes(e->tokenizer, token) : (hd_str){0};
}

bool hd_engine_token_is_special(const hd_engine *e, int32_t token) {
    return e->tokenizer && hd_tokenizer_is_special(e->tokenizer, token);
}

void hd_engine_detokenize(const hd_engine *e, const int32_t *id, size_t n, bool keep_special,
                          hd_buf *out) {
    hd_stream *s;
    hd_stream_options o = {.keep_special = keep_special};
    if (!e->tokenizer || hd_stream_new(e->tokenizer, &o, &s) != HD_OK) return;
    for (size_t i = 0; i < n; i++) {
        hd_str text = hd_stream_feed(s, id[i]).content;
        hd_buf_add(out, text.ptr, text.len);
    }
    hd_str rest = hd_stream_end(s).content;
    hd_buf_add(out, rest.ptr, rest.len);
    hd_stream_free(s);
}

static enum hd_role role_of(enum hd_chat_role r) {
    switch (r) {
    case HD_CHAT_SYSTEM: return HD_ROLE_SYSTEM;
    case HD_CHAT_USER: return HD_ROLE_USER;
    case HD_CHAT_ASSISTANT: return HD_ROLE_ASSISTANT;
    case HD_CHAT_TOOL: break;
    }
    return HD_ROLE_TOOL;
}

hd_status hd_engine_chat(const hd_engine *e, const hd_chat_input *in, hd_token_list *out,
                         bool *in_reasoning) {
    *out = (hd_token_list){0};
    *in_reasoning = false;
    HD_TRY(need_tokenizer(e));
    if (!e->chat)
        return HD_FAIL(UNSUPPORTED, "model %s: its tokenizer fits no known chat encoding",
                       e->info.model_name);
    if (in->n_message == 0) return HD_FAIL(INVALID, "messages: expected at least one, found none");
    hd_message *copy = hd_alloc_zero(in->n_message, sizeof *copy);
    for (size_t i = 0; i < in->n_message; i++)
        copy[i] =
            (hd_message){.role = role_of(in->message[i].role), .content = in->message[i].content};
    hd_chat_prompt p = {.message = copy,
                        .n_message = in->n_message,
                        .thinking = in->thinking,
                        .continue_final = in->continue_final,
                        .no_generation_prefix = in->no_generation_prefix};
    hd_ids ids = {0};
    hd_status s = hd_chat_encode(e->chat, e->tokenizer, &p, &ids, in_reasoning);
    hd_free(copy);
    *out = list_of(&ids);
    if (s != HD_OK) hd_engine_free_ids(out);
    return s;
}

struct hd_text_stream {
    hd_stream *stream;
};

hd_status hd_text_stream_new(const hd_engine *e, const hd_text_stream_options *o,
                             hd_text_stream **out) {
    *out = NULL;
    HD_TRY(need_tokenizer(e));
    hd_stream_options so = {.in_reasoning = o->in_reasoning,
                            .split_reasoning = o->split_reasoning,
                            .keep_special = o->keep_special,
                            .min_tokens = o->min_tokens,
                            .include_stop = o->include_stop,
                            .stop = o->stop,
                            .n_stop = (size_t)o->n_stop};
    hd_stream *stream;
    HD_TRY(hd_stream_new(e->tokenizer, &so, &stream));
    *out = hd_alloc_zero(1, sizeof **out);
    (*out)->stream = stream;
    return HD_OK;
}

void hd_text_stream_free(hd_text_stream *s) {
    if (!s) return;
    hd_stream_free(s->stream);
    hd_free(s);
}

static hd_text_out text_out(const hd_text_stream *s, hd_stream_out o) {
    return (hd_text_out){.reasoning = o.reasoning,
                         .content = o.content,
                         .stopped = o.stopped,
                         .in_reasoning = hd_stream_in_reasoning(s->stream),
                         .n_in = o.n_in,
                         .n_out = o.n_out};
}

hd_text_out hd_text_stream_feed(hd_text_stream *s, int32_t token) {
    return text_out(s, hd_stream_feed(s->stream, token));
}

hd_text_out hd_text_stream_end(hd_text_stream *s) { return text_out(s, hd_stream_end(s->stream)); }
