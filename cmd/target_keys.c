/* The metadata of a model being written: tokenizer, chat template and suggested sampling from the
 * Hugging Face files, or every key of the source GGUF that is not written anew. */
#include "base/mem.h"
#include "cmd/target.h"
#include "file/json.h"
#include "file/suggestion.h"
#include "model/export.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <string.h>

/* The text of a file of the folder; NULL (and HD_OK) when it is not there. */
static hd_status read_beside(const struct hd_target *j, const char *name, hd_str *out) {
    char *text;
    size_t n;
    *out = (hd_str){0};
    hd_status s = hd_checkpoint_file(j->c, name, &text, &n);
    if (s == HD_E_NOT_FOUND) return HD_OK;
    if (s == HD_OK) *out = (hd_str){text, n};
    return s;
}

static void free_text(hd_str s) { hd_free((char *)(uintptr_t)s.ptr); }

/* The token list has a row for every row of the embedding, as llama.cpp wants it. */
static hd_status put_tokens(struct hd_target *j, const hd_tokenizer_parts *p) {
    enum { type_unused = 5 };
    size_t n = (size_t)j->hp.n_vocab;
    if (p->n_token > n)
        return HD_FAIL(CORRUPT,
                       "%s: tokenizer: expected at most %zu tokens (vocab_size), found %zu",
                       hd_checkpoint_path(j->c), n, p->n_token);
    hd_str *token = hd_alloc(n * sizeof *token);
    int32_t *type = hd_alloc(n * sizeof *type);
    hd_arena *names = hd_arena_new(4096);
    for (size_t i = 0; i < n; i++) {
        char pad[32];
        bool is_there = i < p->n_token;
        snprintf(pad, sizeof pad, "[PAD%zu]", i);
        token[i] = is_there ? p->token[i] : hd_str_of(hd_arena_strndup(names, pad, strlen(pad)));
        type[i] = is_there ? p->type[i] : type_unused;
    }
    hd_gguf_set_strs(j->w, "tokenizer.ggml.tokens", token, n);
    hd_gguf_set_i32s(j->w, "tokenizer.ggml.token_type", type, n);
    hd_arena_free(names);
    hd_free(token);
    hd_free(type);
    return HD_OK;
}

static void put_token_id(struct hd_target *j, const char *key, int32_t id) {
    if (id >= 0) hd_gguf_set_u32(j->w, key, (uint32_t)id);
}

/* The tokenizer's word counts more than config.json's, which released models have wrong. */
static void put_token_ids(struct hd_target *j, int32_t bos, int32_t eos, int32_t pad) {
    put_token_id(j, "tokenizer.ggml.bos_token_id", bos >= 0 ? bos : j->hp.bos);
    put_token_id(j, "tokenizer.ggml.eos_token_id", eos >= 0 ? eos : j->hp.eos);
    put_token_id(j, "tokenizer.ggml.padding_token_id", pad >= 0 ? pad : j->hp.pad);
}

static hd_status put_parts(struct hd_target *j, const hd_tokenizer_parts *p) {
    hd_tokenizer_parts said = *p;
    hd_tokenizer_imply(&said);
    if (said.ignore_merges != p->ignore_merges || said.nfc != p->nfc)
        return HD_FAIL(
            UNSUPPORTED,
            "%s: tokenizer.json: %s %s with the pre-tokenizer %.*s: GGUF cannot say it",
            hd_checkpoint_path(j->c), p->nfc != said.nfc ? "normalizer" : "ignore_merges",
            p->nfc != said.nfc ? (p->nfc ? "NFC" : "none") : (p->ignore_merges ? "true" : "false"),
            (int)p->pre.len, p->pre.ptr);
    hd_gguf_set_str(j->w, "tokenizer.ggml.model", hd_str_of("gpt2"));
    hd_gguf_set_str(j->w, "tokenizer.ggml.pre", p->pre);
    HD_TRY(put_tokens(j, p));
    hd_gguf_set_strs(j->w, "tokenizer.ggml.merges", p->merge, p->n_merge);
    put_token_ids(j, p->bos, p->eos, p->pad);
    hd_gguf_set_bool(j->w, "tokenizer.ggml.add_bos_token", p->add_bos);
    hd_gguf_set_bool(j->w, "tokenizer.ggml.add_eos_token", false);
    hd_buf_addf(&j->notes, "tokenizer: %zu tokens, %zu merges, pre-tokenizer %.*s\n", p->n_token,
                p->n_merge, (int)p->pre.len, p->pre.ptr);
    return HD_OK;
}

static hd_status put_tokenizer(struct hd_target *j, hd_str json, hd_str config) {
    hd_tokenizer *t;
    hd_tokenizer_parts p;
    if (!json.ptr) { /* said in so many words: llama.cpp opens no file without the key */
        hd_gguf_set_str(j->w, "tokenizer.ggml.model", hd_str_of("none"));
        put_token_ids(j, -1, -1, -1);
        hd_buf_add_c(&j->notes, "tokenizer: none (there is no tokenizer.json)\n");
        return HD_OK;
    }
    HD_TRY(hd_tokenizer_from_json(json, config, "tokenizer.json", &t));
    hd_tokenizer_to_parts(t, &p);
    hd_status s = put_parts(j, &p);
    hd_free((void *)(uintptr_t)p.token);
    hd_free((void *)(uintptr_t)p.type);
    hd_free((void *)(uintptr_t)p.merge);
    hd_tokenizer_free(t);
    return s;
}

static void put_template(struct hd_target *j, const char *name, const json_t *text) {
    char key[160] = "tokenizer.chat_template";
    if (!json_is_string(text)) return;
    if (name) snprintf(key, sizeof key, "tokenizer.chat_template.%s", name);
    hd_gguf_set_str(j->w, key, (hd_str){json_string_value(text), json_string_length(text)});
}

/* chat_template is a text, or a list of named ones of which "default" is the plain key's. */
static void put_templates(struct hd_target *j, const json_t *v) {
    put_template(j, NULL, v);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *e = json_array_get(v, i);
        const char *name = json_string_value(json_object_get(e, "name"));
        if (!name || strlen(name) > 100) continue;
        bool is_repeated = false;
        for (size_t k = 0; k < i; k++) {
            const char *other = json_string_value(json_object_get(json_array_get(v, k), "name"));
            is_repeated |= other && strcmp(other, name) == 0;
        }
        if (!is_repeated)
            put_template(j, strcmp(name, "default") == 0 ? NULL : name,
                         json_object_get(e, "template"));
    }
}

static hd_status put_chat(struct hd_target *j, hd_str config) {
    hd_str jinja;
    HD_TRY(read_beside(j, "chat_template.jinja", &jinja));
    if (jinja.ptr) {
        hd_gguf_set_str(j->w, "tokenizer.chat_template", jinja);
        free_text(jinja);
        hd_buf_add_c(&j->notes, "chat template: from chat_template.jinja\n");
        return HD_OK;
    }
    json_t *root;
    if (!config.ptr) return HD_OK;
    HD_TRY(hd_json_parse_texts(config, "tokenizer_config.json", &root));
    const json_t *v = json_object_get(root, "chat_template");
    put_templates(j, v);
    if (v) hd_buf_add_c(&j->notes, "chat template: from tokenizer_config.json\n");
    json_decref(root);
    return HD_OK;
}

static hd_status put_sampling(struct hd_target *j) {
    hd_suggestion own;
    HD_TRY(hd_suggestion_read(j->c, &own));
    if (own.temperature >= 0)
        hd_gguf_set_f32(j->w, "general.sampling.temp", (float)own.temperature);
    if (own.top_p >= 0) hd_gguf_set_f32(j->w, "general.sampling.top_p", (float)own.top_p);
    if (own.top_k > 0) hd_gguf_set_i32(j->w, "general.sampling.top_k", own.top_k);
    return HD_OK;
}

static hd_status put_folder_keys(struct hd_target *j) {
    hd_str json, config = {0};
    HD_TRY(put_sampling(j));
    HD_TRY(read_beside(j, "tokenizer.json", &json));
    hd_status s = read_beside(j, "tokenizer_config.json", &config);
    if (s == HD_OK) s = put_tokenizer(j, json, config);
    if (s == HD_OK) s = put_chat(j, config);
    free_text(json);
    free_text(config);
    return s;
}

/* From a GGUF: everything but what is written anew here. */
static void copy_gguf_keys(struct hd_target *j) {
    static const char *const own[] = {"general.architecture", "general.name", "general.file_type",
                                      "general.quantization_version", "general.alignment"};
    const hd_gguf *g = hd_checkpoint_gguf(j->c);
    size_t n_arch = strlen(j->hp.arch), n_copied = 0;
    for (size_t i = 0; i < hd_gguf_key_count(g); i++) {
        hd_str key = hd_gguf_key_at(g, i), bytes;
        uint32_t type;
        bool is_own = (key.len > n_arch && memcmp(key.ptr, j->hp.arch, n_arch) == 0 &&
                       key.ptr[n_arch] == '.') ||
                      (key.len > 6 && memcmp(key.ptr, "split.", 6) == 0);
        for (size_t k = 0; k < HD_COUNT_OF(own); k++) is_own |= hd_str_eq_c(key, own[k]);
        if (is_own) continue;
        hd_gguf_raw(g, i, &type, &bytes);
        hd_gguf_set_raw(j->w, key, type, bytes);
        n_copied++;
    }
    hd_buf_addf(&j->notes, "metadata: %zu keys copied\n", n_copied);
}

hd_status hd_target_put_keys(struct hd_target *j) {
    hd_export_keys(j->w, &j->hp);
    if (!hd_checkpoint_gguf(j->c)) return put_folder_keys(j);
    copy_gguf_keys(j);
    return HD_OK;
}
