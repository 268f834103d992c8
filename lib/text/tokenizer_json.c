/* Hugging Face's tokenizer.json (and tokenizer_config.json).
 *
 * Only what is understood is accepted: a BPE model on the byte alphabet, a known pre-tokenizer, NFC
 * or no normalizer. Everything else is refused by name, because a wrong id is worse than an error.
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

static hd_status parse(hd_str text, const char *name, size_t flags, json_t **out) {
    json_error_t e;
    *out = json_loadb(text.ptr ? text.ptr : "", text.len,
                      flags | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    if (!*out)
        return HD_FAIL(CORRUPT, "%s: not valid JSON: line %d, column %d: %s", name, e.line,
                       e.column, hd_show(hd_str_of(e.text)));
    if (json_is_object(*out)) return HD_OK;
    json_decref(*out);
    *out = NULL;
    return HD_FAIL(CORRUPT, "%s: not a JSON object", name);
}

/* ---- what the file must be ---- */

enum { nesting_max = 4 };

/* None, NFC, or a Sequence of such. */
static hd_status read_normalizer(const json_t *j, const char *name, int depth, bool *nfc) {
    if (is_absent(j)) return HD_OK;
    const json_t *list = json_object_get(j, "normalizers"), *item;
    size_t i;
    if (strcmp(type_of(j), "NFC") == 0) {
        *nfc = true;
        return HD_OK;
    }
    if (strcmp(type_of(j), "Sequence") != 0 || !json_is_array(list) || depth > nesting_max)
        return HD_FAIL(UNSUPPORTED, "%s: normalizer %s: only NFC or none is supported", name,
                       type_of(j));
    json_array_foreach(list, i, item) HD_TRY(read_normalizer(item, name, depth + 1, nfc));
    return HD_OK;
}

static hd_status check_decoder(const json_t *j, const char *name) {
    if (strcmp(type_of(j), "ByteLevel") == 0) return HD_OK;
    return HD_FAIL(UNSUPPORTED, "%s: decoder %s: only ByteLevel is supported", name,
                   is_absent(j) ? "none" : type_of(j));
}

/* What a template adds to a text: {NULL, 0} nothing, or one token before it. */
struct template {
    bool is_there;
    hd_str before;
};

static hd_status read_template(const json_t *j, const char *name, struct template *out) {
    const json_t *single = json_object_get(j, "single");
    size_t n = json_array_size(single);
    const json_t *first = json_array_get(single, 0), *last = json_array_get(single, n - 1);
    const json_t *token = json_object_get(json_object_get(first, "SpecialToken"), "id");
    if (n < 1 || n > 2 || !json_object_get(last, "Sequence") || (n == 2 && !json_is_string(token)))
        return HD_FAIL(UNSUPPORTED,
                       "%s: post_processor TemplateProcessing: expected the text, or one token "
                       "before it",
                       name);
    *out = (struct template){true, n == 2 ? str_of(token) : (hd_str){0}};
    return HD_OK;
}

/* ByteLevel (which only moves offsets), a template, or a Sequence of such. */
static hd_status read_post_processor(const json_t *j, const char *name, int depth,
                                     struct template *out) {
    const json_t *list = json_object_get(j, "processors"), *item;
    size_t i;
    if (is_absent(j) || strcmp(type_of(j), "ByteLevel") == 0) return HD_OK;
    if (strcmp(type_of(j), "TemplateProcessing") == 0) return read_template(j, name, out);
    if (strcmp(type_of(j), "Sequence") != 0 || !json_is_array(list) || depth > nesting_max)
        return HD_FAIL(UNSUPPORTED,
                       "%s: post_processor %s: only ByteLevel and TemplateProcessing are supported",
                       name, type_of(j));
    json_array_foreach(list, i, item) HD_TRY(read_post_processor(item, name, depth + 1, out));
    return HD_OK;
}

static hd_status check_model(const json_t *m, const char *name) {
    static const char *const must_be_unset[] = {"dropout", "continuing_subword_prefix",
                                                "end_of_word_suffix"};
    const json_t *type = json_object_get(m, "type");
    if (!json_is_object(m))
        return HD_FAIL(CORRUPT, "%s: no object \"model\": expected a tokenizer.json", name);
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

/* One step of the Sequence: the regular expression of a Split, or HD_PRETOK_DIGITS. */
static hd_status read_step(const json_t *j, const char *name, hd_str *pattern) {
    const char *behavior = json_string_value(json_object_get(j, "behavior"));
    const json_t *regex = json_object_get(json_object_get(j, "pattern"), "Regex");
    if (strcmp(type_of(j), "Digits") == 0 &&
        json_is_true(json_object_get(j, "individual_digits"))) {
        *pattern = hd_str_of(HD_PRETOK_DIGITS);
        return HD_OK;
    }
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

/* No row has these steps: names the first that differs from the row that begins most alike. */
static hd_status unknown_steps(const hd_str *pattern, size_t n, const char *name) {
    const hd_pretok *row = NULL;
    size_t same = hd_pretok_nearest(pattern, n, &row);
    if (same == 0)
        return HD_FAIL(UNSUPPORTED,
                       "%s: pre_tokenizer of %zu steps is not known, the first is %s (known: %s)",
                       name, n, n > 0 ? hd_show(pattern[0]) : "none", hd_pretok_known());
    return HD_FAIL(UNSUPPORTED,
                   "%s: pre_tokenizer of %zu steps is not known: it begins as %s, then comes %s "
                   "(known: %s)",
                   name, n, hd_pretok_name(row), same < n ? hd_show(pattern[same]) : "the end",
                   hd_pretok_known());
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
        !json_is_false(json_object_get(last, "use_regex")) || n > HD_SPLIT_MAX + 1)
        return HD_FAIL(UNSUPPORTED,
                       "%s: pre_tokenizer: expected up to %d steps and a ByteLevel without prefix "
                       "space and regex, found %zu ending in %s",
                       name, HD_SPLIT_MAX, n, type_of(last));
    for (size_t i = 0; i + 1 < n; i++)
        HD_TRY(read_step(json_array_get(list, i), name, &pattern[i]));
    *out = hd_pretok_by_patterns(pattern, n - 1);
    return *out ? HD_OK : unknown_steps(pattern, n - 1, name);
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
        unsigned flags = json_is_true(json_object_get(item, "special")) ? HD_ADDED_SPECIAL : 0;
        if (json_is_true(json_object_get(item, "normalized"))) flags |= HD_ADDED_LATE;
        HD_TRY(hd_tokenizer_put_added(t, (int32_t)json_integer_value(json_object_get(item, "id")),
                                      content, flags));
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

static hd_status read_config(hd_tokenizer *t, hd_str text, const struct template *template) {
    json_t *config = NULL;
    hd_status s = HD_OK;
    if (text.ptr) {
        /* Its model_max_length may be 10^30; no integer of it is read. */
        s = parse(text, "tokenizer_config.json", JSON_DECODE_INT_AS_REAL, &config);
        if (s != HD_OK) return hd_fail_context(s, "beside %s", t->name);
    }
    HD_TRY_OUT(read_role(t, config, "bos_token", bos_text, &t->bos));
    if (template->before.ptr && (t->bos < 0 || !json_object_get(config, "bos_token"))) {
        t->bos = hd_tokenizer_find(t, template->before);
        if (t->bos < 0)
            HD_TRY_OUT(HD_FAIL(CORRUPT,
                               "%s: post_processor TemplateProcessing: expected a token of the "
                               "vocabulary, found \"%s\"",
                               t->name, hd_show(template->before)));
    }
    HD_TRY_OUT(read_role(t, config, "eos_token", eos_text, &t->eos));
    HD_TRY_OUT(read_role(t, config, "pad_token", pad_text, &t->pad));
    const json_t *add_bos = json_object_get(config, "add_bos_token");
    if (!is_absent(add_bos) && !json_is_boolean(add_bos))
        s = HD_FAIL(CORRUPT, "%s: add_bos_token in tokenizer_config.json is not a boolean",
                    t->name);
    else if (json_is_true(json_object_get(config, "add_eos_token")))
        s = HD_FAIL(UNSUPPORTED, "%s: add_eos_token in tokenizer_config.json is true", t->name);
    bool is_usual = !template->is_there || template->before.ptr;
    t->add_bos = t->bos >= 0 && (is_absent(add_bos) ? is_usual : json_is_true(add_bos));
out:
    json_decref(config);
    return s;
}

/* ---- all together ---- */

static hd_status load(const json_t *root, hd_str config, const char *name, hd_tokenizer **out) {
    const json_t *model = json_object_get(root, "model"), *vocab, *merges;
    const json_t *added = json_object_get(root, "added_tokens");
    const hd_pretok *pretok;
    struct template template = {0};
    bool nfc = false;
    size_t n_token = 0;
    HD_TRY(check_model(model, name));
    HD_TRY(read_normalizer(json_object_get(root, "normalizer"), name, 0, &nfc));
    HD_TRY(read_pretok(json_object_get(root, "pre_tokenizer"), name, &pretok));
    HD_TRY(check_decoder(json_object_get(root, "decoder"), name));
    HD_TRY(read_post_processor(json_object_get(root, "post_processor"), name, 0, &template));
    vocab = json_object_get(model, "vocab");
    merges = json_object_get(model, "merges");
    if (!json_is_object(vocab)) return HD_FAIL(CORRUPT, "%s: no object model.vocab", name);
    if (!json_is_array(merges)) return HD_FAIL(CORRUPT, "%s: no array model.merges", name);
    if (!is_absent(added) && !json_is_array(added))
        return HD_FAIL(CORRUPT, "%s: added_tokens is not an array", name);
    HD_TRY(count_ids(vocab, added, name, &n_token));

    hd_tokenizer *t = *out = hd_tokenizer_new(name, n_token, json_array_size(merges));
    t->pretok = pretok;
    t->nfc = nfc;
    t->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    HD_TRY(read_vocab(t, vocab));
    HD_TRY(read_added(t, added));
    HD_TRY(read_merges(t, merges));
    HD_TRY(read_config(t, config, &template));
    return hd_tokenizer_finish(t);
}

hd_status hd_tokenizer_from_json(hd_str json, hd_str tokenizer_config, const char *name,
                                 hd_tokenizer **out) {
    json_t *root;
    *out = NULL;
    HD_TRY(parse(json, name, 0, &root));
    hd_status s = load(root, tokenizer_config, name, out);
    json_decref(root);
    if (s == HD_OK) return HD_OK;
    hd_tokenizer_free(*out);
    *out = NULL;
    return s;
}
