/* Opening the files an engine needs: the model's and the tokenizer's, and what they tell of the
 * chat encoding. */
#include "engine/impl.h"

#include "file/gguf.h"
#include "file/json.h"
#include "file/mapping.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

hd_status hd_engine_open_checkpoint(const hd_engine_config *c, hd_checkpoint **out) {
    if (c->model && strcmp(c->model, "mini") != 0) return hd_checkpoint_open(c->model, out);
    hd_str image = hd_embedded_model();
    return hd_checkpoint_open_memory(image.ptr, image.len, "mini", out);
}

static hd_status missing_key(const hd_checkpoint *c, const char *key) {
    return HD_FAIL(CORRUPT, "%s: tokenizer key %s: expected, not found", hd_checkpoint_path(c),
                   key);
}

static int32_t token_key(const hd_gguf *g, const char *key) {
    int64_t v;
    return hd_gguf_int(g, key, &v) && v >= 0 && v <= INT32_MAX ? (int32_t)v : -1;
}

/* Keys of GGUF's "tokenizer.ggml" group: see the GGUF specification, "Tokenizer". */
static hd_status tokenizer_from_gguf(const hd_checkpoint *c, hd_tokenizer **out) {
    const hd_gguf *g = hd_checkpoint_gguf(c);
    hd_str model;
    *out = NULL;
    if (!hd_gguf_str(g, "tokenizer.ggml.model", &model)) return HD_OK;
    if (hd_str_eq_c(model, "none") || hd_str_eq_c(model, "no_vocab")) return HD_OK;
    if (!hd_str_eq_c(model, "gpt2"))
        return HD_FAIL(UNSUPPORTED, "%s: tokenizer.ggml.model: expected gpt2, found %s",
                       hd_checkpoint_path(c), hd_show(model));
    hd_tokenizer_parts p = {.name = hd_checkpoint_path(c),
                            .bos = token_key(g, "tokenizer.ggml.bos_token_id"),
                            .eos = token_key(g, "tokenizer.ggml.eos_token_id"),
                            .pad = token_key(g, "tokenizer.ggml.padding_token_id")};
    hd_gguf_str(g, "tokenizer.ggml.pre", &p.pre);
    bool add_eos = false;
    hd_gguf_bool(g, "tokenizer.ggml.add_eos_token", &add_eos);
    if (add_eos)
        return HD_FAIL(UNSUPPORTED, "%s: tokenizer.ggml.add_eos_token: expected false, found true",
                       hd_checkpoint_path(c));
    hd_str *token = NULL, *merge = NULL;
    int32_t *type = NULL;
    hd_status s = HD_OK;
    if (!hd_gguf_array_strs(g, "tokenizer.ggml.tokens", &token, &p.n_token))
        s = missing_key(c, "tokenizer.ggml.tokens");
    else if (!hd_gguf_array_strs(g, "tokenizer.ggml.merges", &merge, &p.n_merge))
        s = missing_key(c, "tokenizer.ggml.merges");
    size_t n_type = 0;
    if (s == HD_OK &&
        (!hd_gguf_array(g, "tokenizer.ggml.token_type", &n_type) || n_type != p.n_token))
        s = HD_FAIL(CORRUPT, "%s: tokenizer.ggml.token_type: expected %zu elements, found %zu",
                    hd_checkpoint_path(c), p.n_token, n_type);
    if (s == HD_OK) {
        type = hd_alloc_zero(n_type, sizeof *type);
        for (size_t i = 0; i < n_type; i++) {
            int64_t v = 0;
            hd_gguf_array_int(g, "tokenizer.ggml.token_type", i, &v);
            type[i] = v >= 0 && v <= INT32_MAX ? (int32_t)v : 0; /* 0: refused with its token */
        }
        p.token = token;
        p.merge = merge;
        p.type = type;
        hd_tokenizer_imply(&p);
        hd_gguf_bool(g, "tokenizer.ggml.add_bos_token", &p.add_bos);
        s = hd_tokenizer_from_parts(&p, out);
    }
    hd_free(token);
    hd_free(merge);
    hd_free(type);
    return s;
}

/* A tokenizer.json and the tokenizer_config.json of its folder, if there is one. */
static hd_status tokenizer_from_file(const char *path, const char *folder, hd_tokenizer **out) {
    enum { text_bytes_max = 256 << 20 };
    char *json, *config, *config_path = hd_path_join(folder, "tokenizer_config.json");
    size_t n_json, n_config = 0;
    *out = NULL;
    hd_status s = hd_text_read(path, text_bytes_max, &json, &n_json);
    if (s == HD_OK) {
        s = hd_text_read(config_path, text_bytes_max, &config, &n_config);
        if (s == HD_E_NOT_FOUND) s = HD_OK;
        if (s == HD_OK)
            s = hd_tokenizer_from_json((hd_str){json, n_json}, (hd_str){config, n_config}, path,
                                       out);
        hd_free(config);
    }
    hd_free(json);
    hd_free(config_path);
    return s;
}

static hd_status tokenizer_from_folder(const char *folder, hd_tokenizer **out) {
    char *path = hd_path_join(folder, "tokenizer.json");
    hd_status s = tokenizer_from_file(path, folder, out);
    hd_free(path);
    return s;
}

static hd_status tokenizer_of(const hd_checkpoint *c, hd_tokenizer **out) {
    if (hd_checkpoint_gguf(c)) return tokenizer_from_gguf(c, out);
    hd_status s = tokenizer_from_folder(hd_checkpoint_path(c), out);
    return s == HD_E_NOT_FOUND ? HD_OK : s; /* a model may bring none */
}

static bool is_folder(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

hd_status hd_engine_open_tokenizer(const hd_checkpoint *model, const char *path,
                                   hd_tokenizer **out) {
    if (!path) return tokenizer_of(model, out);
    /* Only the tokenizer is wanted: there may be no weights beside it. */
    if (is_folder(path)) return tokenizer_from_folder(path, out);
    if (!hd_str_ends_c(hd_str_of(path), ".gguf")) {
        const char *slash = strrchr(path, '/');
        char *folder = slash ? hd_strndup(path, (size_t)(slash - path) + 1) : hd_strdup(".");
        hd_status s = tokenizer_from_file(path, folder, out);
        hd_free(folder);
        return s;
    }
    hd_checkpoint *c;
    HD_TRY(hd_checkpoint_open(path, &c));
    hd_status s = tokenizer_from_gguf(c, out);
    if (s == HD_OK && !*out)
        s = HD_FAIL(CORRUPT, "%s: tokenizer.ggml.model: expected gpt2, found none", path);
    hd_checkpoint_close(c);
    return s;
}

/* ---- the chat encoding ---- */

enum { template_bytes_max = 256 << 20 };

/* A text, or a list of named ones, "default" among them. Appends it to out. */
static void add_template(const json_t *v, hd_buf *out) {
    const json_t *one;
    size_t i;
    if (json_is_string(v)) hd_buf_add(out, json_string_value(v), json_string_length(v));
    json_array_foreach(v, i, one) {
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name && strcmp(name, "default") == 0)
            add_template(json_object_get(one, "template"), out);
    }
}

/* The first of the places where a folder may have it; nothing when it has none. */
static hd_status template_of_folder(const char *folder, hd_buf *out) {
    static const char *const file[] = {"chat_template.jinja", "tokenizer_config.json",
                                       "chat_template.json"};
    for (size_t i = 0; i < HD_COUNT_OF(file) && out->len == 0; i++) {
        char *path = hd_path_join(folder, file[i]), *text = NULL;
        size_t n = 0;
        json_t *root = NULL;
        hd_status s = hd_text_read(path, template_bytes_max, &text, &n);
        if (s == HD_OK && i == 0) hd_buf_add(out, text, n);
        if (s == HD_OK && i > 0) s = hd_json_parse_texts((hd_str){text, n}, path, &root);
        if (root) add_template(json_object_get(root, "chat_template"), out);
        json_decref(root);
        hd_free(text);
        hd_free(path);
        if (s != HD_OK && s != HD_E_NOT_FOUND) return s;
    }
    return HD_OK;
}

static hd_status template_of(const hd_checkpoint *c, hd_buf *out) {
    hd_str text = {NULL, 0};
    if (!hd_checkpoint_gguf(c)) return template_of_folder(hd_checkpoint_path(c), out);
    hd_gguf_str(hd_checkpoint_gguf(c), "tokenizer.chat_template", &text);
    hd_buf_add(out, text.ptr, text.len);
    return HD_OK;
}

/* As hd_engine_open_tokenizer takes its path. */
static hd_status template_at(const char *path, hd_buf *out) {
    if (is_folder(path)) return template_of_folder(path, out);
    if (!hd_str_ends_c(hd_str_of(path), ".gguf")) {
        const char *slash = strrchr(path, '/');
        char *folder = slash ? hd_strndup(path, (size_t)(slash - path) + 1) : hd_strdup(".");
        hd_status s = template_of_folder(folder, out);
        hd_free(folder);
        return s;
    }
    hd_checkpoint *c;
    HD_TRY(hd_checkpoint_open(path, &c));
    hd_status s = template_of(c, out);
    hd_checkpoint_close(c);
    return s;
}

/* general.architecture, or config.json's model_type. */
static void add_arch(const hd_checkpoint *c, hd_buf *out) {
    hd_str text = {NULL, 0};
    char *config = NULL;
    size_t n = 0;
    json_t *root = NULL;
    if (hd_checkpoint_gguf(c)) {
        hd_gguf_str(hd_checkpoint_gguf(c), "general.architecture", &text);
        hd_buf_add(out, text.ptr, text.len);
    } else if (hd_checkpoint_file(c, "config.json", &config, &n) == HD_OK &&
               hd_json_parse((hd_str){config, n}, "config.json", &root) == HD_OK) {
        const json_t *type = json_object_get(root, "model_type");
        hd_buf_add(out, json_string_value(type), json_string_length(type));
    }
    json_decref(root);
    hd_free(config);
}

hd_status hd_engine_choose_chat(const hd_checkpoint *model, const hd_engine_config *c,
                                const hd_tokenizer *t, const hd_chat_encoding **out,
                                char why[HD_CHAT_WHY_MAX]) {
    *out = NULL;
    if (c->chat_encoding) {
        char names[256];
        hd_chat_names(names, sizeof names);
        *out = hd_chat_by_name(c->chat_encoding);
        snprintf(why, HD_CHAT_WHY_MAX, "it was asked for");
        if (*out) return HD_OK;
        return HD_FAIL(INVALID, "chat_encoding: none is named \"%s\"; there are %s",
                       c->chat_encoding, names);
    }
    hd_buf template, arch;
    hd_str name = hd_path_base(hd_checkpoint_path(model));
    hd_buf_init(&template, SIZE_MAX / 2);
    hd_buf_init(&arch, SIZE_MAX / 2);
    if (hd_checkpoint_gguf(model)) hd_gguf_str(hd_checkpoint_gguf(model), "general.name", &name);
    add_arch(model, &arch);
    hd_status s = c->tokenizer ? template_at(c->tokenizer, &template) : HD_OK;
    if (s == HD_OK && template.len == 0) s = template_of(model, &template);
    hd_chat_evidence v = {.tokenizer = t,
                          .arch = hd_buf_str(&arch),
                          .name = name,
                          .chat_template = hd_buf_str(&template)};
    if (s == HD_OK) *out = hd_chat_choose(&v, why, HD_CHAT_WHY_MAX);
    hd_buf_fini(&template);
    hd_buf_fini(&arch);
    return s;
}
