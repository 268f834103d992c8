/* Everything that is not generation: models, health, metrics, tokenizing, the page's files. */
#include "base/metric.h"
#include "base/utf8.h"
#include "base/version.h"
#include "srv/api_request.h"
#include "srv/api_write.h"
#include "srv/core.h"
#include "srv/routes.h"
#include "srv/web.h"

#include <string.h>

/* ---- health ---- */

static void reply_word(hd_call *c, const char *key, const char *value) {
    hd_json j = hd_reply_json(&c->reply);
    hd_json_object(&j);
    hd_json_key(&j, key);
    hd_json_str_c(&j, value);
    hd_json_object_end(&j);
}

/* Alive: the loop makes progress. While draining it still is. */
void hd_handle_health(hd_call *c) {
    switch (hd_server_get_state(c->server)) {
    case HD_SERVER_LOADING: hd_reply_loading(&c->reply); return;
    case HD_SERVER_READY: reply_word(c, "status", "ok"); return;
    case HD_SERVER_DRAINING: reply_word(c, "status", "draining"); return;
    case HD_SERVER_STUCK:
        hd_reply_status(&c->reply, HD_E_UNAVAILABLE, "the engine makes no progress");
        return;
    case HD_SERVER_FAILED: break;
    }
    hd_reply_status(&c->reply, HD_E_UNAVAILABLE, "the engine has failed");
}

/* Ready: new work is welcome. */
void hd_handle_ready(hd_call *c) {
    enum hd_server_state s = hd_server_get_state(c->server);
    if (s == HD_SERVER_READY)
        reply_word(c, "status", "ready");
    else if (s == HD_SERVER_DRAINING)
        hd_reply_status(&c->reply, HD_E_UNAVAILABLE, "the server is shutting down");
    else
        hd_handle_health(c);
}

void hd_handle_version(hd_call *c) { reply_word(c, "version", HD_VERSION); }

void hd_handle_metrics(hd_call *c) {
    const hd_engine *e = atomic_load(&c->server->engine);
    if (e) {
        hd_engine_stats s;
        hd_engine_get_stats(e, &s);
        hd_metric_set(HD_M_RUNNING, s.n_running);
        hd_metric_set(HD_M_WAITING, s.n_waiting);
        hd_metric_set(HD_M_KV_USAGE, s.n_page > 0 ? (double)s.n_page_used / s.n_page : 0);
        hd_metric_set(HD_M_KV_PAGES_USED, s.n_page_used);
        hd_metric_set(HD_M_KV_PAGES_CACHED, s.n_page_cached);
        hd_metric_set(HD_M_KV_PAGES_FREE, s.n_page_free);
        for (int k = 0; k < HD_SERVICE_COUNT; k++) {
            hd_metric_set((enum hd_metric)(HD_M_CLASS_WAITING + k), s.n_waiting_of[k]);
            hd_metric_set((enum hd_metric)(HD_M_CLASS_WAIT + k), (double)s.wait_ns[k] * 1e-9);
        }
    }
    hd_reply_clear(&c->reply);
    c->reply.code = 200;
    c->reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
    hd_metric_render(&c->reply.body, e ? hd_engine_get_info(e)->model_name : "");
}

/* ---- models ---- */

static void write_model(hd_json *j, const hd_call *c, const char *id) {
    const hd_engine_info *info = hd_engine_get_info(atomic_load(&c->server->engine));
    hd_json_object(j);
    hd_json_key(j, "id");
    hd_json_str_c(j, id);
    hd_json_key(j, "object");
    hd_json_str_c(j, "model");
    hd_json_key(j, "created");
    hd_json_int(j, c->server->started_s);
    hd_json_key(j, "owned_by");
    hd_json_str_c(j, "hadal");
    hd_json_key(j, "root");
    hd_json_str_c(j, info->model_name);
    hd_json_key(j, "parent");
    hd_json_null(j);
    hd_json_key(j, "max_model_len");
    hd_json_int(j, info->max_model_len);
    hd_json_key(j, "meta");
    hd_json_object(j);
    hd_json_key(j, "arch");
    hd_json_str_c(j, info->arch);
    hd_json_key(j, "n_vocab");
    hd_json_int(j, info->n_vocab);
    hd_json_key(j, "n_ctx_train");
    hd_json_int(j, info->n_ctx_train);
    hd_json_key(j, "n_params");
    hd_json_int(j, info->n_param);
    hd_json_key(j, "size");
    hd_json_int(j, info->weight_bytes);
    hd_json_key(j, "weight_format");
    hd_json_str_c(j, info->weight_format);
    hd_json_key(j, "backend");
    hd_json_str_c(j, info->backend);
    hd_json_key(j, "device");
    hd_json_str_c(j, info->device);
    const struct {
        const char *key;
        bool value;
    } flags[] = {{"can_think", info->can_think},
                 {"always_thinks", info->always_thinks},
                 {"thinks_by_default", info->thinks_by_default},
                 {"can_call_tools", info->can_call_tools},
                 {"has_response_format", info->has_response_format},
                 {"has_fim", info->has_fim}};
    for (size_t i = 0; i < HD_COUNT_OF(flags); i++) {
        hd_json_key(j, flags[i].key);
        hd_json_bool(j, flags[i].value);
    }
    hd_json_object_end(j);
    hd_json_object_end(j);
}

void hd_handle_models(hd_call *c) {
    const char *name = hd_engine_get_info(atomic_load(&c->server->engine))->model_name;
    hd_json j = hd_reply_json(&c->reply);
    hd_json_object(&j);
    hd_json_key(&j, "object");
    hd_json_str_c(&j, "list");
    hd_json_key(&j, "data");
    hd_json_array(&j);
    write_model(&j, c, name);
    for (int i = 0; i < HD_MODEL_ALIAS_COUNT; i++)
        if (strcmp(hd_model_aliases[i].name, name) != 0)
            write_model(&j, c, hd_model_aliases[i].name);
    hd_json_array_end(&j);
    hd_json_object_end(&j);
}

void hd_handle_model(hd_call *c) {
    const char *name = hd_engine_get_info(atomic_load(&c->server->engine))->model_name;
    hd_str path = c->head.path;
    const char *at = memmem(path.ptr, path.len, "/models/", 8);
    size_t n = path.len - (size_t)(at + 8 - path.ptr);
    char *copy = hd_arena_strndup(c->arena, at + 8, n);
    hd_str id = {copy, hd_http_unescape(copy, n)};
    if (!hd_str_eq_c(id, name) && !hd_model_alias_find(id)) {
        hd_api_error e;
        hd_api_fail(&e, HD_E_NOT_FOUND, "model", "the model '%.*s' does not exist",
                    id.len < 128 ? (int)id.len : 128, id.ptr);
        e.code = "model_not_found";
        hd_reply_error(&c->reply, &e);
        return;
    }
    hd_json j = hd_reply_json(&c->reply);
    write_model(&j, c, hd_arena_strndup(c->arena, id.ptr, id.len));
}

/* ---- tokenize, detokenize, apply-template ---- */

static hd_status chat_ids(const hd_engine *e, const hd_api_in *in, hd_token_list *out) {
    hd_api_request q = {0};
    hd_chat_start start;
    HD_TRY(hd_api_messages(in, &q));
    HD_TRY(hd_api_tools(in, &q));
    HD_TRY(hd_api_template(in, &q));
    return hd_api_chat_ids(e, &q, out, &start, in->error);
}

/* The three forms of /tokenize: {messages}, {prompt} (vLLM's) and {content} (llama.cpp's). */
static hd_status tokenize(hd_call *c, const hd_api_in *in, hd_token_list *out) {
    const hd_engine *e = atomic_load(&c->server->engine);
    hd_status s;
    if (hd_api_get(in, "messages")) return chat_ids(e, in, out);
    bool is_content = !hd_api_get(in, "prompt") && hd_api_get(in, "content");
    const char *key = is_content ? "content" : "prompt";
    hd_str text = {NULL, 0};
    bool add_bos = !is_content, match_added = true;
    HD_TRY(hd_api_text(in, key, &text));
    if (!text.ptr) return hd_api_wrong(in, key, "a string", NULL);
    HD_TRY(hd_api_bool(in, is_content ? "add_special" : "add_special_tokens", &add_bos));
    HD_TRY(hd_api_bool(in, "parse_special", &match_added));
    s = hd_engine_tokenize(e, text, match_added, add_bos, out);
    return s == HD_OK ? s : hd_api_fail_last(in->error, s, key);
}

/* llama.cpp's pieces: a string, or bytes where they are no valid text. */
static void write_piece(hd_json *j, int32_t id, hd_str bytes) {
    hd_json_object(j);
    hd_json_key(j, "id");
    hd_json_int(j, id);
    hd_json_key(j, "piece");
    if (hd_utf8_is_valid(bytes.ptr, bytes.len)) {
        hd_json_str(j, bytes.ptr, bytes.len);
    } else {
        hd_json_array(j);
        for (size_t i = 0; i < bytes.len; i++) hd_json_int(j, (unsigned char)bytes.ptr[i]);
        hd_json_array_end(j);
    }
    hd_json_object_end(j);
}

static hd_status write_tokens(hd_call *c, const hd_api_in *in, const hd_token_list *ids) {
    const hd_engine *e = atomic_load(&c->server->engine);
    bool pieces = false, strs = false;
    HD_TRY(hd_api_bool(in, "with_pieces", &pieces));
    HD_TRY(hd_api_bool(in, "return_token_strs", &strs));
    hd_json j = hd_reply_json(&c->reply);
    hd_json_object(&j);
    hd_json_key(&j, "count");
    hd_json_int(&j, (int64_t)ids->n);
    hd_json_key(&j, "max_model_len");
    hd_json_int(&j, hd_engine_get_info(e)->max_model_len);
    hd_json_key(&j, "tokens");
    hd_json_array(&j);
    for (size_t i = 0; i < ids->n; i++) {
        if (pieces)
            write_piece(&j, ids->id[i], hd_engine_token_bytes(e, ids->id[i]));
        else
            hd_json_int(&j, ids->id[i]);
    }
    hd_json_array_end(&j);
    hd_json_key(&j, "token_strs");
    if (strs) {
        hd_json_array(&j);
        for (size_t i = 0; i < ids->n; i++)
            hd_write_token_text(&j, hd_engine_token_bytes(e, ids->id[i]));
        hd_json_array_end(&j);
    } else {
        hd_json_null(&j);
    }
    hd_json_object_end(&j);
    return HD_OK;
}

static hd_status detokenize(hd_call *c, const hd_api_in *in) {
    const hd_engine *e = atomic_load(&c->server->engine);
    int n_vocab = hd_engine_get_info(e)->n_vocab;
    int32_t *id = NULL;
    size_t n = 0;
    if (!hd_api_get(in, "tokens")) return hd_api_wrong(in, "tokens", "an array of token ids", NULL);
    HD_TRY(hd_api_ints(in, "tokens", HD_API_VALUES_MAX, &id, &n));
    for (size_t i = 0; i < n; i++)
        if (id[i] >= n_vocab)
            return hd_api_fail(in->error, HD_E_INVALID, "tokens",
                               "'tokens[%zu]' is %d; the model has %d tokens", i, id[i], n_vocab);
    hd_buf text;
    hd_buf_init(&text, SIZE_MAX / 2);
    hd_engine_detokenize(e, id, n, true, &text);
    hd_json j = hd_reply_json(&c->reply);
    hd_json_object(&j);
    hd_json_key(&j, "prompt");
    hd_json_str(&j, text.len ? text.ptr : "", text.len);
    hd_json_key(&j, "content");
    hd_json_str(&j, text.len ? text.ptr : "", text.len);
    hd_json_object_end(&j);
    hd_buf_fini(&text);
    return HD_OK;
}

/* The prompt of a chat as text, special tokens included. */
static hd_status render(hd_call *c, const hd_api_in *in) {
    const hd_engine *e = atomic_load(&c->server->engine);
    hd_token_list ids = {0};
    HD_TRY(chat_ids(e, in, &ids));
    hd_buf text;
    hd_buf_init(&text, SIZE_MAX / 2);
    hd_engine_detokenize(e, ids.id, ids.n, true, &text);
    hd_engine_free_ids(&ids);
    hd_json j = hd_reply_json(&c->reply);
    hd_json_object(&j);
    hd_json_key(&j, "prompt");
    hd_json_str(&j, text.len ? text.ptr : "", text.len);
    hd_json_object_end(&j);
    hd_buf_fini(&text);
    return HD_OK;
}

static bool load(hd_call *c, hd_api_in *in, json_t **root) {
    if (hd_api_load(hd_buf_str(&c->body), root, in->error) != HD_OK) return false;
    in->object = *root;
    in->path = "";
    in->arena = c->arena;
    return true;
}

static hd_status tokenize_and_write(hd_call *c, const hd_api_in *in) {
    hd_token_list ids = {0};
    hd_status s = tokenize(c, in, &ids);
    if (s == HD_OK) s = write_tokens(c, in, &ids);
    hd_engine_free_ids(&ids);
    return s;
}

static void answer(hd_call *c, hd_status (*handle)(hd_call *c, const hd_api_in *in)) {
    hd_api_error e = {0};
    hd_api_in in = {.error = &e};
    json_t *root = NULL;
    bool ok = load(c, &in, &root) && handle(c, &in) == HD_OK;
    if (!ok) hd_reply_error(&c->reply, &e);
    json_decref(root);
}

void hd_handle_tokenize(hd_call *c) { answer(c, tokenize_and_write); }
void hd_handle_detokenize(hd_call *c) { answer(c, detokenize); }
void hd_handle_apply_template(hd_call *c) { answer(c, render); }

/* ---- the page ---- */

const struct hd_web_asset *hd_asset_find(hd_str path, bool gzip) {
    const struct hd_web_asset *found = NULL;
    for (size_t i = 0; i < hd_web_asset_count; i++) {
        if (!hd_str_eq_c(path, hd_web_assets[i].path)) continue;
        if (hd_web_assets[i].is_gzip == gzip) return &hd_web_assets[i];
        if (!hd_web_assets[i].is_gzip) found = &hd_web_assets[i];
    }
    return found;
}

void hd_handle_asset(hd_call *c) {
    bool gzip = hd_http_list_has(hd_http_get(&c->head, "accept-encoding"), "gzip");
    const struct hd_web_asset *a = hd_asset_find(c->head.path, gzip);
    hd_reply *r = &c->reply;
    hd_reply_clear(r);
    if (!a) { /* only a compressed form: the table promises a plain one */
        hd_reply_status(r, HD_E_NOT_FOUND, "no such path");
        return;
    }
    hd_buf_addf(&r->headers, "ETag: %s\r\nCache-Control: no-cache\r\nVary: Accept-Encoding\r\n",
                a->etag);
    hd_buf_add_c(&r->headers, "Content-Security-Policy: " HD_WEB_CSP "\r\n"
                              "Referrer-Policy: no-referrer\r\n");
    if (hd_http_list_has(hd_http_get(&c->head, "if-none-match"), a->etag)) {
        r->code = 304;
        return;
    }
    if (a->is_gzip) hd_buf_add_c(&r->headers, "Content-Encoding: gzip\r\n");
    r->code = 200;
    r->content_type = a->content_type;
    r->fixed = a->data;
    r->fixed_bytes = a->size;
}
