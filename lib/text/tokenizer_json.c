/* Hugging Face's tokenizer.json (and tokenizer_config.json).
 *
 * Only what is understood is accepted: a BPE model on the byte alphabet, a known pre-tokenizer, no
 * normalizer. Everything else is refused by name, because a wrong id is worse than an error.
 * truncation and padding are ignored: they are settings of a training script. */
#include "text/tokenizer_impl.h"

#include <jansson.h>
#include <string.h>

/* Where bos, eos and pad come from when no tokenizer_config.json says: DeepSeek's names. */
static const char bos_text[] = "<｜begin▁of▁sentence｜>";
static const char eos_text[] = "<｜end▁of▁sentence｜>";
static const char pad_text[] = "<｜▁pad▁｜>";

static hd_str str_of(const json_t *j) {
    return (hd_str){json_string_value(j), json_string_length(j)};
}

static const char *type_of(const json_t *j) {
    const char *type = json_string_value(json_object_get(j, "type"));
    return type ? hd_show(hd_str_of(type)) : "without a type";
}

static bool is_absent(const json_t *j) { return !j || json_is_null(j); }

static hd_status parse(hd_str text, const char *name, json_t **out) {
    json_error_t e;
    *out =
        json_loadb(text.ptr ? text.ptr : "", text.len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    if (!*out)
        return HD_FAIL(CORRUPT, "%s: not valid JSON: line %d, column %d: %s", name, e.line,
                       e.column, hd_show(hd_str_of(e.text)));
    if (json_is_object(*out)) return HD_OK;
    json_decref(*out);
    *out = NULL;
    return HD_FAIL(CORRUPT, "%s: not a JSON object", name);
}

/* ---- what the file must be ---- */

/* A normalizer that changes nothing: none, or a Sequence of such. */
static hd_status check_normalizer(const json_t *j, const char *name, int depth) {
    if (is_absent(j)) return HD_OK;
    const json_t *list = json_object_get(j, "normalizers"), *item;
    size_t i;
    if (strcmp(type_of(j), "Sequence") != 0 || !json_is_array(list) || depth > 4)
        return HD_FAIL(UNSUPPORTED, "%s: normalizer %s: only the identity is supported", name,
                       type_of(j));
    json_array_foreach(list, i, item) HD_TRY(check_normalizer(item, name, depth + 1));
    return HD_OK;
}

static hd_status check_byte_level(const json_t *root, const char *key, const char *name) {
    const json_t *j = json_object_get(root, key);
    if (is_absent(j) && strcmp(key, "post_processor") == 0) return HD_OK;
    if (strcmp(type_of(j), "ByteLevel") == 0) return HD_OK;
    return HD_FAIL(UNSUPPORTED, "%s: %s %s: only ByteLevel is supported", name, key,
                   is_absent(j) ? "none" : type_of(j));
}

static hd_status check_model(const json_t *m, const char *name) {
    static const char *const must_be_unset[] = {"dropout", "continuing_subword_prefix",
                                                "end_of_word_suffix"};
    const json_t *type = json_object_get(m, "type");
    if (!json_is_object(m)) return HD_FAIL(CORRUPT, "%s: no object \"model\"", name);
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "BPE") != 0))
        return HD_FAIL(UNSUPPORTED, "%s: model %s: only BPE is supported", name, type_of(m));
    for (size_t i = 0; i < HD_COUNT_OF(must_be_unset); i++) {
        const json_t *j = json_object_get(m, must_be_unset[i]);
        if (is_absent(j) || (json_is_string(j) && json_string_length(j) == 0)) continue;
        if (json_is_number(j) && json_number_value(j) == 0) continue;
        return HD_FAIL(UNSUPPORTED, "%s: model.%s is set", name, must_be_unset[i]);
    }
    return HD_OK;
}

/* One Split of the Sequence: its regular expression. */
static hd_status read_split(const json_t *j, const char *name, hd_str *pattern) {
    const char *behavior = json_string_value(json_object_get(j, "behavior"));
    const json_t *regex = json_object_get(json_object_get(j, "pattern"), "Regex");
    if (strcmp(type_of(j), "Split") != 0)
        return HD_FAIL(UNSUPPORTED, "%s: pre_tokenizer %s is not supported (known: %s)", name,
                       type_of(j), hd_pretok_known());
    if (!behavior || strcmp(behavior, "Isolated") != 0 ||
        json_is_true(json_object_get(j, "invert")))
        return HD_FAIL(UNSUPPORTED,
                       "%s: pre_tokenizer Split: behavior %s%s: only Isolated is supported", name,
                       behavior ? hd_show(hd_str_of(behavior)) : "none",
                       json_is_true(json_object_get(j, "invert")) ? ", inverted" : "");
    if (!json_is_string(regex))
        return HD_FAIL(UNSUPPORTED, "%s: pre_tokenizer Split without a regular expression", name);
    *pattern = str_of(regex);
    return HD_OK;
}

static hd_status read_pretok(const json_t *j, const char *name, const hd_pretok **out) {
    const json_t *list = json_object_get(j, "pretokenizers");
    hd_str pattern[HD_SPLIT_MAX];
    size_t n = json_array_size(list);
    if (is_absent(j) || strcmp(type_of(j), "Sequence") != 0)
        return HD_FAIL(UNSUPPORTED, "%s: pre_tokenizer %s is not supported (known: %s)", name,
                       is_absent(j) ? "none" : type_of(j), hd_pretok_known());
    const json_t *last = n > 0 ? json_array_get(list, n - 1) : NULL;
    if (strcmp(type_of(last), "ByteLevel") != 0 ||
        json_is_true(json_object_get(last, "add_prefix_space")) ||
        !json_is_false(json_object_get(last, "use_regex")) || n > HD_SPLIT_MAX)
        return HD_FAIL(UNSUPPORTED,
                       "%s: pre_tokenizer: expected up to %d Splits and a ByteLevel without prefix "
                       "space and regex, found %zu ending in %s",
                       name, HD_SPLIT_MAX - 1, n, type_of(last));
    for (size_t i = 0; i + 1 < n; i++)
        HD_TRY(read_split(json_array_get(list, i), name, &pattern[i]));
    *out = hd_pretok_by_patterns(pattern, n - 1);
    if (!*out)
        return HD_FAIL(UNSUPPORTED,
                       "%s: pre_tokenizer of %zu Splits is not known, the first is %s (known: %s)",
                       name, n - 1, n > 1 ? hd_show(pattern[0]) : "none", hd_pretok_known());
    return HD_OK;
}

/* ---- tokens and merges ---- */

static hd_status read_id(const json_t *j, const char *name, hd_str text, int32_t *out) {
    json_int_t v = json_integer_value(j);
    if (!json_is_integer(j))
        return HD_FAIL(CORRUPT, "%s: the id of token \"%s\" is not an integer", name,
                       hd_show(text));
    if (v < 0 || v > HD_TOKEN_ID_MAX)
        return HD_FAIL(CORRUPT, "%s: the id of token \"%s\" is %lld, expected 0..%d", name,
                       hd_show(text), (long long)v, HD_TOKEN_ID_MAX);
    *out = (int32_t)v;
    return HD_OK;
}

/* Highest id + 1 over the vocabulary and the added tokens. */
static hd_status count_ids(const json_t *vocab, const json_t *added, const char *name,
                           size_t *out) {
    const json_t *value;
    const char *key;
    size_t i;
    int32_t id = -1;
    size_t n = 0;
    json_object_foreach((json_t *)vocab, key, value) {
        HD_TRY(read_id(value, name, hd_str_of(key), &id));
        if ((size_t)id >= n) n = (size_t)id + 1;
    }
    json_array_foreach(added, i, value) {
        const json_t *content = json_object_get(value, "content");
        if (!json_is_string(content))
            return HD_FAIL(CORRUPT, "%s: added token %zu has no content", name, i);
        HD_TRY(read_id(json_object_get(value, "id"), name, str_of(content), &id));
        if ((size_t)id >= n) n = (size_t)id + 1;
    }
    *out = n;
    return HD_OK;
}

static hd_status read_vocab(hd_tokenizer *t, const json_t *vocab) {
    const json_t *value;
    const char *key;
    json_object_foreach((json_t *)vocab, key, value)
        HD_TRY(hd_tokenizer_put_vocab(t, (int32_t)json_integer_value(value), hd_str_of(key)));
    return HD_OK;
}

static hd_status read_added(hd_tokenizer *t, const json_t *added) {
    static const char *const must_be_false[] = {"single_word", "lstrip", "rstrip"};
    const json_t *item;
    size_t i;
    json_array_foreach(added, i, item) {
        hd_str content = str_of(json_object_get(item, "content"));
        for (size_t k = 0; k < HD_COUNT_OF(must_be_false); k++)
            if (json_is_true(json_object_get(item, must_be_false[k])))
                return HD_FAIL(UNSUPPORTED, "%s: added token \"%s\" is %s", t->name,
                               hd_show(content), must_be_false[k]);
        HD_TRY(hd_tokenizer_put_added(t, (int32_t)json_integer_value(json_object_get(item, "id")),
                                      content, json_is_true(json_object_get(item, "special"))));
    }
    return HD_OK;
}

/* "left right" with exactly one space, or ["left", "right"]. */
static bool split_merge(const json_t *j, hd_str *left, hd_str *right) {
    if (json_is_string(j)) {
        hd_str s = str_of(j);
        const char *space = memchr(s.ptr, ' ', s.len);
        if (!space) return false;
        *left = (hd_str){s.ptr, (size_t)(space - s.ptr)};
        *right = (hd_str){space + 1, s.len - left->len - 1};
        return !memchr(right->ptr, ' ', right->len);
    }
    if (json_array_size(j) != 2) return false;
    const json_t *l = json_array_get(j, 0), *r = json_array_get(j, 1);
    if (!json_is_string(l) || !json_is_string(r)) return false;
    *left = str_of(l);
    *right = str_of(r);
    return true;
}

static hd_status read_merges(hd_tokenizer *t, const json_t *merges) {
    const json_t *item;
    size_t i;
    json_array_foreach(merges, i, item) {
        hd_str left, right;
        if (!split_merge(item, &left, &right))
            return HD_FAIL(CORRUPT, "%s: merge %zu is not \"left right\" or a pair of strings",
                           t->name, i);
        HD_TRY(hd_tokenizer_put_merge(t, left, right));
    }
    return HD_OK;
}

/* ---- tokenizer_config.json ---- */

/* "bos_token": a string, an object with "content", or null. Absent: the token of this text. */
static hd_status read_role(const hd_tokenizer *t, const json_t *config, const char *key,
                           const char *usual, int32_t *out) {
    const json_t *j = json_object_get(config, key);
    *out = -1;
    if (!j) {
        *out = hd_tokenizer_find(t, hd_str_of(usual));
        return HD_OK;
    }
    if (json_is_null(j)) return HD_OK;
    if (json_is_object(j)) j = json_object_get(j, "content");
    if (!json_is_string(j))
        return HD_FAIL(CORRUPT, "%s: %s in tokenizer_config.json is not a string", t->name, key);
    hd_str text = str_of(j);
    *out = hd_tokenizer_find(t, text);
    if (*out < 0)
        return HD_FAIL(CORRUPT, "%s: %s \"%s\" of tokenizer_config.json is not a token", t->name,
                       key, hd_show(text));
    return HD_OK;
}

static hd_status read_config(hd_tokenizer *t, hd_str text) {
    json_t *config = NULL;
    hd_status s = HD_OK;
    if (text.ptr) {
        s = parse(text, "tokenizer_config.json", &config);
        if (s != HD_OK) return hd_fail_context(s, "beside %s", t->name);
    }
    HD_TRY_OUT(read_role(t, config, "bos_token", bos_text, &t->bos));
    HD_TRY_OUT(read_role(t, config, "eos_token", eos_text, &t->eos));
    HD_TRY_OUT(read_role(t, config, "pad_token", pad_text, &t->pad));
    const json_t *add_bos = json_object_get(config, "add_bos_token");
    if (!is_absent(add_bos) && !json_is_boolean(add_bos))
        s = HD_FAIL(CORRUPT, "%s: add_bos_token in tokenizer_config.json is not a boolean",
                    t->name);
    t->add_bos = t->bos >= 0 && !json_is_false(add_bos);
out:
    json_decref(config);
    return s;
}

/* ---- all together ---- */

static hd_status load(const json_t *root, hd_str config, const char *name, hd_tokenizer **out) {
    const json_t *model = json_object_get(root, "model"), *vocab, *merges;
    const json_t *added = json_object_get(root, "added_tokens");
    const hd_pretok *pretok;
    size_t n_token = 0;
    HD_TRY(check_model(model, name));
    HD_TRY(check_normalizer(json_object_get(root, "normalizer"), name, 0));
    HD_TRY(read_pretok(json_object_get(root, "pre_tokenizer"), name, &pretok));
    HD_TRY(check_byte_level(root, "decoder", name));
    HD_TRY(check_byte_level(root, "post_processor", name));
    vocab = json_object_get(model, "vocab");
    merges = json_object_get(model, "merges");
    if (!json_is_object(vocab)) return HD_FAIL(CORRUPT, "%s: no object model.vocab", name);
    if (!json_is_array(merges)) return HD_FAIL(CORRUPT, "%s: no array model.merges", name);
    if (!is_absent(added) && !json_is_array(added))
        return HD_FAIL(CORRUPT, "%s: added_tokens is not an array", name);
    HD_TRY(count_ids(vocab, added, name, &n_token));

    hd_tokenizer *t = *out = hd_tokenizer_new(name, n_token, json_array_size(merges));
    t->pretok = pretok;
    t->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    HD_TRY(read_vocab(t, vocab));
    HD_TRY(read_added(t, added));
    HD_TRY(read_merges(t, merges));
    HD_TRY(read_config(t, config));
    return hd_tokenizer_finish(t);
}

hd_status hd_tokenizer_from_json(hd_str json, hd_str tokenizer_config, const char *name,
                                 hd_tokenizer **out) {
    json_t *root;
    *out = NULL;
    HD_TRY(parse(json, name, &root));
    hd_status s = load(root, tokenizer_config, name, out);
    json_decref(root);
    if (s == HD_OK) return HD_OK;
    hd_tokenizer_free(*out);
    *out = NULL;
    return s;
}
