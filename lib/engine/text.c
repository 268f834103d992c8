/* The text tools of the public API: thin calls into lib/text. */
#include "engine/impl.h"

static hd_status need_tokenizer(const hd_engine *e) {
    if (e->tokenizer) return HD_OK;
    return HD_FAIL(UNSUPPORTED,
                   "model %s has no tokenizer: only token ids can be used "
                   "(--tokenizer names one)",
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
    hd_text_stream_options o = {.keep_special = keep_special};
    if (!e->tokenizer || hd_stream_new(e->tokenizer, NULL, &o, &s) != HD_OK) return;
    for (size_t i = 0; i < n; i++) {
        hd_str text = hd_stream_feed(s, id[i]).content;
        hd_buf_add(out, text.ptr, text.len);
    }
    hd_str rest = hd_stream_end(s, false).content;
    hd_buf_add(out, rest.ptr, rest.len);
    hd_stream_free(s);
}

hd_status hd_engine_chat(const hd_engine *e, const hd_chat_prompt *p, hd_token_list *out,
                         hd_chat_start *start) {
    *out = (hd_token_list){0};
    *start = (hd_chat_start){0};
    HD_TRY(need_tokenizer(e));
    if (!e->chat)
        return HD_FAIL(UNSUPPORTED, "model %s has no chat encoding: %s; --chat-encoding names one",
                       e->info.model_name, e->info.chat_encoding_why);
    hd_ids ids = {0};
    hd_status s = hd_chat_encode(e->chat, e->tokenizer, p, &ids, start);
    *out = list_of(&ids);
    if (s != HD_OK) hd_engine_free_ids(out);
    return s;
}

hd_status hd_engine_fim(const hd_engine *e, hd_str prefix, hd_str suffix, hd_token_list *out) {
    *out = (hd_token_list){0};
    HD_TRY(need_tokenizer(e));
    hd_ids ids = {0};
    hd_status s = hd_chat_fim(e->tokenizer, prefix, suffix, &ids);
    *out = list_of(&ids);
    return s;
}

hd_status hd_text_stream_new(const hd_engine *e, const hd_text_stream_options *o,
                             hd_text_stream **out) {
    *out = NULL;
    if (!e->tokenizer && o->n_stop == 0 && !o->parse_tools) return HD_OK;
    HD_TRY(need_tokenizer(e));
    return hd_stream_new(e->tokenizer, e->chat, o, out);
}

void hd_text_stream_free(hd_text_stream *s) { hd_stream_free(s); }

hd_text_out hd_text_stream_feed(hd_text_stream *s, int32_t token) {
    return s ? hd_stream_feed(s, token) : (hd_text_out){.stop_ix = -1};
}

hd_text_out hd_text_stream_end(hd_text_stream *s, bool is_cut) {
    return s ? hd_stream_end(s, is_cut) : (hd_text_out){.stop_ix = -1};
}
