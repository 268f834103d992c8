/* tokenizer: files that are refused, each with an error that names the thing; and the smaller
 * freedoms that are accepted. Cases are edits of a small sound tokenizer.json. */
#include "support/check.h"

#include "base/buf.h"
#include "base/mem.h"
#include "text/tokenizer.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char split3[] =
    "[!\\\"#$%&'()*+,\\\\-./:;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\\\p{L}\\\\p{P}"
    "\\\\p{S}]?[\\\\p{L}\\\\p{M}]+| ?[\\\\p{P}\\\\p{S}]+[\\r\\n]*|\\\\s*[\\r\\n]+|"
    "\\\\s+(?!\\\\S)|\\\\s+";

/* A tokenizer.json whose vocabulary is the bytes (ids 0..255 in order), ab 256, abc 257, <s> 300.
 */
static json_t *sound(void) {
    hd_buf b;
    hd_buf_init(&b, 1 << 20);
    hd_buf_add_c(&b, "{\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Sequence\","
                     "\"pretokenizers\":[");
    const char *const pattern[] = {"\\\\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", split3};
    for (int i = 0; i < 3; i++)
        hd_buf_addf(&b,
                    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},\"behavior\":"
                    "\"Isolated\",\"invert\":false},",
                    pattern[i]);
    hd_buf_add_c(&b, "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},"
                     "\"decoder\":{\"type\":\"ByteLevel\"},\"added_tokens\":[{\"id\":300,"
                     "\"content\":\"<s>\",\"special\":true}],\"model\":{\"type\":\"BPE\","
                     "\"merges\":[\"a b\",\"ab c\"],\"vocab\":{\"ab\":256,\"abc\":257");
    unsigned other = 256;
    for (unsigned byte = 0; byte < 256; byte++) {
        bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
        hd_buf_addf(&b, ",\"\\u%04x\":%u", printable ? byte : other++, byte);
    }
    hd_buf_add_c(&b, "}}}");
    json_error_t e;
    json_t *j = json_loadb(b.ptr, b.len, 0, &e);
    if (!j) fail_msg("%s", e.text);
    hd_buf_fini(&b);
    return j;
}

static json_t *at(json_t *root, const char *path) {
    char key[64];
    while (*path) {
        size_t n = strcspn(path, "/");
        memcpy(key, path, n);
        key[n] = 0;
        path += n + (path[n] == '/');
        root = json_is_array(root) ? json_array_get(root, strtoul(key, NULL, 10))
                                   : json_object_get(root, key);
    }
    return root;
}

static hd_status load(json_t *root, const char *config, hd_tokenizer **t) {
    char *text = json_dumps(root, JSON_COMPACT);
    hd_status s = hd_tokenizer_from_json(hd_str_of(text), config ? hd_str_of(config) : (hd_str){0},
                                         "t.json", t);
    free(text);
    return s;
}

/* Sets path/key to the JSON value (NULL: deletes it). */
static void edit(json_t *root, const char *path, const char *key, const char *value) {
    json_t *parent = at(root, path);
    json_t *v = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    if (json_is_array(parent) && strcmp(key, "+") == 0)
        json_array_append_new(parent, v);
    else if (json_is_array(parent))
        json_array_set_new(parent, strtoul(key, NULL, 10), v);
    else if (v)
        json_object_set_new(parent, key, v);
    else
        assert_int_equal(json_object_del(parent, key), 0);
}

#define TOKEN "{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}}"
#define TEXT "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"
#define TEMPLATE(single) "{\"type\":\"TemplateProcessing\",\"single\":[" single "]}"

static const struct bad_case {
    const char *path, *key, *value;
    hd_status status;
    const char *text; /* part of the error */
} bad[] = {
    {"", "model", NULL, HD_E_CORRUPT, "no object \"model\""},
    {"", "model", "[]", HD_E_CORRUPT, "no object \"model\""},
    {"model", "type", "\"WordPiece\"", HD_E_UNSUPPORTED, "model WordPiece"},
    {"model", "type", "7", HD_E_UNSUPPORTED, "model without a type"},
    {"model", "dropout", "0.5", HD_E_UNSUPPORTED, "model.dropout"},
    {"model", "end_of_word_suffix", "\"</w>\"", HD_E_UNSUPPORTED, "model.end_of_word_suffix"},
    {"model", "continuing_subword_prefix", "\"##\"", HD_E_UNSUPPORTED, "continuing_subword"},
    {"model", "vocab", "[]", HD_E_CORRUPT, "model.vocab"},
    {"model", "merges", NULL, HD_E_CORRUPT, "model.merges"},
    {"", "normalizer", "{\"type\":\"NFKC\"}", HD_E_UNSUPPORTED, "normalizer NFKC"},
    {"", "normalizer",
     "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Lowercase\"}]}",
     HD_E_UNSUPPORTED, "normalizer Lowercase"},
    {"", "decoder", "{\"type\":\"Metaspace\"}", HD_E_UNSUPPORTED, "decoder Metaspace"},
    {"", "decoder", "null", HD_E_UNSUPPORTED, "decoder none"},
    {"", "post_processor", "{\"type\":\"BertProcessing\"}", HD_E_UNSUPPORTED,
     "post_processor BertProcessing"},
    {"", "post_processor", TEMPLATE(TEXT "," TOKEN), HD_E_UNSUPPORTED, "expected the text, or one"},
    {"", "post_processor", TEMPLATE(TOKEN "," TEXT "," TOKEN), HD_E_UNSUPPORTED, "TemplateProc"},
    {"", "post_processor", TEMPLATE(""), HD_E_UNSUPPORTED, "TemplateProcessing"},
    {"", "post_processor", TEMPLATE("{\"SpecialToken\":{\"id\":\"<t>\",\"type_id\":0}}," TEXT),
     HD_E_CORRUPT, "TemplateProcessing: expected a token of the vocabulary, found \"<t>\""},
    {"", "post_processor",
     "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"RobertaProcessing\"}]}", HD_E_UNSUPPORTED,
     "post_processor RobertaProcessing"},
    {"", "pre_tokenizer", "null", HD_E_UNSUPPORTED, "pre_tokenizer none"},
    {"", "pre_tokenizer", "{\"type\":\"Whitespace\"}", HD_E_UNSUPPORTED,
     "pre_tokenizer Whitespace"},
    {"pre_tokenizer", "pretokenizers", "[]", HD_E_UNSUPPORTED, "found 0"},
    {"pre_tokenizer", "pretokenizers", "[{\"type\":\"ByteLevel\",\"use_regex\":false}]",
     HD_E_UNSUPPORTED, "pre_tokenizer of 0 steps"},
    {"pre_tokenizer/pretokenizers/3", "use_regex", "true", HD_E_UNSUPPORTED, "without prefix"},
    {"pre_tokenizer/pretokenizers/3", "use_regex", NULL, HD_E_UNSUPPORTED, "without prefix"},
    {"pre_tokenizer/pretokenizers/3", "add_prefix_space", "true", HD_E_UNSUPPORTED, "prefix"},
    {"pre_tokenizer/pretokenizers/0", "behavior", "\"Removed\"", HD_E_UNSUPPORTED,
     "behavior Removed"},
    {"pre_tokenizer/pretokenizers/1", "invert", "true", HD_E_UNSUPPORTED, "inverted"},
    {"pre_tokenizer/pretokenizers/1", "type", "\"Digits\"", HD_E_UNSUPPORTED, "Digits"},
    {"pre_tokenizer/pretokenizers/0/pattern", "Regex", "\"\\\\d+\"", HD_E_UNSUPPORTED,
     "the first is \\d+ (known: deepseek-v3, "},
    {"pre_tokenizer/pretokenizers/1/pattern", "Regex", "\"\\\\w+\"", HD_E_UNSUPPORTED,
     "begins as deepseek-v3, then comes \\w+ (known: "},
    {"pre_tokenizer/pretokenizers/2", "type", "\"ByteLevel\"", HD_E_UNSUPPORTED,
     "pre_tokenizer ByteLevel is not supported"},
    {"pre_tokenizer/pretokenizers/0", "pattern", "{\"String\":\" \"}", HD_E_UNSUPPORTED,
     "without a regular expression"},
    {"model/vocab", "zz", "256", HD_E_CORRUPT, "id 256 is given to two tokens, \"ab\" and \"zz\""},
    {"model/vocab", "zz", "-1", HD_E_CORRUPT, "token \"zz\" is -1"},
    {"model/vocab", "zz", "4000000000000", HD_E_CORRUPT, "token \"zz\" is 4000000000000"},
    {"model/vocab", "zz", "1048576", HD_E_CORRUPT, "expected 0..1048575"},
    {"model/vocab", "zz", "1.5", HD_E_CORRUPT, "not an integer"},
    {"model/vocab", "zz", "\"5\"", HD_E_CORRUPT, "not an integer"},
    {"model/vocab", "", "400", HD_E_CORRUPT, "id 400 is empty"},
    {"model/vocab", "Q", NULL, HD_E_CORRUPT, "no token for byte 0x51"},
    {"model/vocab", "\u0143", NULL, HD_E_CORRUPT, "no token for byte 0xAD"},
    {"model/vocab", "abc", NULL, HD_E_CORRUPT, "merge 1: \"ab\" + \"c\" is not in the vocabulary"},
    {"model/merges", "+", "\"a b\"", HD_E_CORRUPT, "merge 2: \"a\" \"b\" is there twice"},
    {"model/merges", "+", "\"xyz b\"", HD_E_CORRUPT, "merge 2: \"xyz\" is not in"},
    {"model/merges", "+", "\"a xyz\"", HD_E_CORRUPT, "merge 2: \"xyz\" is not in"},
    {"model/merges", "+", "\"ab\"", HD_E_CORRUPT, "merge 2 is not \"left right\""},
    {"model/merges", "+", "\"a b c\"", HD_E_CORRUPT, "merge 2 is not"},
    {"model/merges", "+", "\" a\"", HD_E_CORRUPT, "merge 2: \"\" is not in"},
    {"model/merges", "+", "[\"a\"]", HD_E_CORRUPT, "merge 2 is not"},
    {"model/merges", "+", "[\"a\",3]", HD_E_CORRUPT, "merge 2 is not"},
    {"model/merges", "+", "null", HD_E_CORRUPT, "merge 2 is not"},
    {"", "added_tokens", "{}", HD_E_CORRUPT, "added_tokens is not an array"},
    {"added_tokens", "+", "7", HD_E_CORRUPT, "added token 1 has no content"},
    {"added_tokens", "+", "{\"id\":301}", HD_E_CORRUPT, "added token 1 has no content"},
    {"added_tokens", "+", "{\"content\":\"<x>\"}", HD_E_CORRUPT, "\"<x>\" is not an integer"},
    {"added_tokens", "+", "{\"id\":301,\"content\":\"\"}", HD_E_CORRUPT, "id 301 is empty"},
    {"added_tokens", "+", "{\"id\":301,\"content\":\"<s>\"}", HD_E_CORRUPT,
     "added token \"<s>\" is there twice"},
    {"added_tokens", "+", "{\"id\":300,\"content\":\"<x>\"}", HD_E_CORRUPT,
     "id 300 is given to two tokens, \"<s>\" and \"<x>\""},
    {"added_tokens", "+", "{\"id\":256,\"content\":\"<x>\"}", HD_E_CORRUPT, "id 256 is given"},
    {"added_tokens", "+", "{\"id\":301,\"content\":\"ab\"}", HD_E_CORRUPT,
     "added token \"ab\" has id 301, in the vocabulary it has 256"},
    {"added_tokens", "+", "{\"id\":32,\"content\":\"Ġ\"}", HD_E_UNSUPPORTED,
     "added token \"Ġ\" stands for other bytes"},
    {"added_tokens/0", "lstrip", "true", HD_E_UNSUPPORTED, "\"<s>\" is lstrip"},
    {"added_tokens/0", "single_word", "true", HD_E_UNSUPPORTED, "\"<s>\" is single_word"},
};

static void bad_json_is_named(void **state) {
    (void)state;
    for (size_t i = 0; i < HD_COUNT_OF(bad); i++) {
        const struct bad_case *c = &bad[i];
        json_t *root = sound();
        hd_tokenizer *t = (hd_tokenizer *)&root;
        edit(root, c->path, c->key, c->value);
        hd_status s = load(root, NULL, &t);
        if (s != c->status || !strstr(hd_error_text(), c->text) ||
            !strstr(hd_error_text(), "t.json"))
            fail_msg("%s/%s=%s: expected %s with \"%s\", found %s: %s", c->path, c->key,
                     c->value ? c->value : "-", hd_status_name(c->status), c->text,
                     hd_status_name(s), hd_error_text());
        assert_null(t);
        json_decref(root);
    }
}

static void text_that_is_not_json(void **state) {
    (void)state;
    static const char *const text[] = {"", "[]", "{", "{\"a\":1,\"a\":2}", "nul", "\xff"};
    hd_tokenizer *t;
    for (size_t i = 0; i < HD_COUNT_OF(text); i++) {
        assert_int_equal(hd_tokenizer_from_json(hd_str_of(text[i]), (hd_str){0}, "t.json", &t),
                         HD_E_CORRUPT);
        assert_non_null(strstr(hd_error_text(), "t.json"));
    }
    assert_int_equal(hd_tokenizer_from_json((hd_str){0}, (hd_str){0}, "t.json", &t), HD_E_CORRUPT);
}

static hd_tokenizer *load_ok(json_t *root, const char *config) {
    hd_tokenizer *t;
    assert_ok(load(root, config, &t));
    json_decref(root);
    return t;
}

static void ids_are(const hd_tokenizer *t, const char *text, const char *expected) {
    hd_ids ids = {0};
    hd_buf b;
    hd_buf_init(&b, 1000);
    hd_tokenizer_encode(t, hd_str_of(text), true, &ids);
    for (size_t i = 0; i < ids.n; i++) hd_buf_addf(&b, i ? " %d" : "%d", ids.id[i]);
    assert_string_equal(b.len ? b.ptr : "", expected);
    hd_buf_fini(&b);
    hd_ids_fini(&ids);
}

static void accepted_forms(void **state) {
    (void)state;
    json_t *root = sound();
    hd_tokenizer *t = load_ok(sound(), NULL);
    ids_are(t, "abcab<s>b", "257 256 300 98");
    hd_tokenizer_free(t);

    edit(root, "", "normalizer", "{\"type\":\"Sequence\",\"normalizers\":[]}");
    edit(root, "model", "merges", "[[\"a\",\"b\"],[\"ab\",\"c\"]]");
    edit(root, "model", "type", NULL);
    edit(root, "model", "dropout", "null");
    edit(root, "model", "end_of_word_suffix", "\"\"");
    edit(root, "", "post_processor",
         "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"}]}");
    edit(root, "", "truncation", "{\"max_length\":3}");
    t = load_ok(root, NULL);
    ids_are(t, "abcab<s>b", "257 256 300 98");
    assert_int_equal(hd_tokenizer_size(t), 301);
    assert_int_equal(hd_tokenizer_bos(t), -1);
    assert_false(hd_tokenizer_add_bos(t));
    assert_int_equal(hd_tokenizer_bytes(t, 299).len, 0);
    hd_tokenizer_free(t);
}

/* Added tokens marked "normalized" are found after the others, in the normalized text. */
static void normalizing(void **state) {
    (void)state;
    json_t *root = sound();
    edit(root, "", "normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}");
    edit(root, "added_tokens", "+", "{\"id\":301,\"content\":\"<e\u0301>\",\"normalized\":true}");
    edit(root, "added_tokens", "+", "{\"id\":302,\"content\":\"e\u0301]\"}");
    edit(root, "added_tokens", "+", "{\"id\":303,\"content\":\"<e\"}");
    hd_tokenizer *t = load_ok(root, NULL), *again;
    ids_are(t, "e\u0301e", "195 169 101");
    ids_are(t, "<\u00e9>\u00e9]", "301 195 169 93");
    ids_are(t, "<e\u0301>e\u0301]", "303 204 129 62 302"); /* "<e" is found first */
    ids_are(t, "a<s>\u0301", "97 300 204 129");            /* never across a token */
    hd_tokenizer_parts p;
    hd_tokenizer_to_parts(t, &p);
    assert_true(p.nfc);
    assert_ok(hd_tokenizer_from_parts(&p, &again));
    ids_are(again, "e\u0301e", "195 169 101");
    hd_free((void *)p.token);
    hd_free((void *)p.type);
    hd_free((void *)p.merge);
    hd_tokenizer_free(again);
    hd_tokenizer_free(t);
}

/* With ignore_merges a word that is a token is taken as it is, reachable by merges or not. */
static void ignore_merges(void **state) {
    (void)state;
    for (int on = 0; on < 2; on++) {
        json_t *root = sound();
        edit(root, "model/vocab", "xyz", "258");
        edit(root, "model", "ignore_merges", on ? "true" : "false");
        hd_tokenizer *t = load_ok(root, NULL), *again;
        hd_tokenizer_parts p;
        hd_tokenizer_to_parts(t, &p);
        assert_ok(hd_tokenizer_from_parts(&p, &again));
        ids_are(t, "xyz!xyzab", on ? "258 33 120 121 122 256" : "120 121 122 33 120 121 122 256");
        ids_are(again, "xyz", on ? "258" : "120 121 122");
        hd_free((void *)p.token);
        hd_free((void *)p.type);
        hd_free((void *)p.merge);
        hd_tokenizer_free(again);
        hd_tokenizer_free(t);
    }
}

/* Leftmost first, the longest there; a token inside another one counts only alone. */
static void overlapping_added_tokens(void **state) {
    (void)state;
    json_t *root = sound();
    hd_tokenizer *t;
    edit(root, "added_tokens", "+", "{\"id\":301,\"content\":\"<s>x\"}");
    edit(root, "added_tokens", "+", "{\"id\":302,\"content\":\"s>\"}");
    edit(root, "added_tokens", "+", "{\"id\":256,\"content\":\"ab\"}");
    t = load_ok(root, NULL);
    ids_are(t, "<s>x<s>ys>", "301 300 121 302");
    ids_are(t, "<s><<s", "300 60 60 115");
    ids_are(t, "cabc", "99 256 99");
    assert_true(hd_tokenizer_is_added(t, 256));
    hd_tokenizer_free(t);
}

static void roles_come_from_the_config(void **state) {
    (void)state;
    const struct {
        const char *config;
        int32_t bos, eos;
        bool add_bos;
    } good[] = {
        {"{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"<s>\"}}", 300, 300, true},
        {"{\"bos_token\":\"<s>\",\"add_bos_token\":false}", 300, -1, false},
        {"{\"bos_token\":\"<s>\",\"add_bos_token\":null}", 300, -1, true},
        {"{\"bos_token\":null,\"add_bos_token\":true,\"eos_token\":\"ab\"}", -1, 256, false},
        {"{\"model_max_length\":1000000000000000019884624838656}", -1, -1, false},
    };
    for (size_t i = 0; i < HD_COUNT_OF(good); i++) {
        hd_tokenizer *t = load_ok(sound(), good[i].config);
        assert_int_equal(hd_tokenizer_bos(t), good[i].bos);
        assert_int_equal(hd_tokenizer_eos(t), good[i].eos);
        assert_int_equal(hd_tokenizer_add_bos(t), good[i].add_bos);
        hd_tokenizer_free(t);
    }
    const char *const refused[][2] = {
        {"{\"bos_token\":\"<none>\"}", "bos_token \"<none>\" of tokenizer_config.json"},
        {"{\"eos_token\":3}", "eos_token in tokenizer_config.json is not a string"},
        {"{\"eos_token\":{}}", "eos_token in tokenizer_config.json is not a string"},
        {"{\"bos_token\":\"<s>\",\"add_bos_token\":1}", "add_bos_token"},
        {"[]", "tokenizer_config.json"},
        {"{", "tokenizer_config.json"},
    };
    for (size_t i = 0; i < HD_COUNT_OF(refused); i++) {
        hd_tokenizer *t;
        json_t *root = sound();
        assert_int_equal(load(root, refused[i][0], &t), HD_E_CORRUPT);
        if (!strstr(hd_error_text(), refused[i][1])) fail_msg("%s", hd_error_text());
        json_decref(root);
    }
}

/* A template says what is before a text, unless tokenizer_config.json does. */
static void roles_come_from_a_template(void **state) {
    (void)state;
    const struct {
        const char *post_processor, *config;
        int32_t bos;
        bool add_bos;
    } good[] = {
        {TEMPLATE(TOKEN "," TEXT), NULL, 300, true},
        {"{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"}," TEMPLATE(TOKEN
                                                                                     "," TEXT) "]}",
         "{\"bos_token\":\"<s>\"}", 300, true},
        {TEMPLATE(TEXT), "{\"bos_token\":\"<s>\"}", 300, false},
        {TEMPLATE(TEXT), "{\"bos_token\":\"<s>\",\"add_bos_token\":true}", 300, true},
        {TEMPLATE(TOKEN "," TEXT), "{\"bos_token\":\"ab\",\"add_bos_token\":false}", 256, false},
    };
    for (size_t i = 0; i < HD_COUNT_OF(good); i++) {
        json_t *root = sound();
        edit(root, "", "post_processor", good[i].post_processor);
        hd_tokenizer *t = load_ok(root, good[i].config);
        assert_int_equal(hd_tokenizer_bos(t), good[i].bos);
        assert_int_equal(hd_tokenizer_add_bos(t), good[i].add_bos);
        hd_tokenizer_free(t);
    }
    hd_tokenizer *t;
    json_t *root = sound();
    assert_int_equal(load(root, "{\"add_eos_token\":true}", &t), HD_E_UNSUPPORTED);
    assert_non_null(strstr(hd_error_text(), "add_eos_token"));
    json_decref(root);
}

static void bad_parts_are_named(void **state) {
    (void)state;
    hd_tokenizer *t = load_ok(sound(), NULL), *u;
    hd_tokenizer_parts good, p;
    hd_tokenizer_to_parts(t, &good);
    hd_str *token = (hd_str *)good.token, *merge = (hd_str *)good.merge;
    int32_t *type = (int32_t *)good.type;
#define REFUSED(status, part)                                                                      \
    do {                                                                                           \
        assert_int_equal(hd_tokenizer_from_parts(&p, &u), HD_E_##status);                          \
        if (!strstr(hd_error_text(), part)) fail_msg("%s", hd_error_text());                       \
        assert_null(u);                                                                            \
    } while (0)
    p = good;
    p.pre = hd_str_of("gpt-4o");
    REFUSED(UNSUPPORTED, "tokenizer.ggml.pre \"gpt-4o\" is not known (known: deepseek-v3, ");
    p = good;
    p.pre = (hd_str){0};
    REFUSED(UNSUPPORTED, "tokenizer.ggml.pre \"\"");
    p = good;
    p.n_token = 0;
    REFUSED(CORRUPT, "0 tokens");
    p = good;
    p.bos = 301;
    REFUSED(CORRUPT, "bos token 301");
    p = good;
    p.eos = -2;
    REFUSED(CORRUPT, "eos token -2");
    p = good;
    p.pad = 299; /* a hole */
    REFUSED(CORRUPT, "padding token 299");
    p = good;
    type[5] = 6;
    REFUSED(UNSUPPORTED, "token 5 has type 6");
    type[5] = 5;
    REFUSED(CORRUPT, "no token for byte 0x05");
    type[5] = 1;
    hd_str kept = token[5];
    token[5] = token[6];
    REFUSED(CORRUPT, "twice in the vocabulary");
    token[5] = (hd_str){"", 0};
    REFUSED(CORRUPT, "id 5 is empty");
    token[5] = kept;
    kept = merge[1];
    merge[1] = hd_str_of("abc");
    REFUSED(CORRUPT, "merge 1 is not");
    merge[1] = hd_str_of("ab d");
    REFUSED(CORRUPT, "merge 1: \"ab\" + \"d\"");
    merge[1] = (hd_str){0};
    REFUSED(CORRUPT, "merge 1");
    merge[1] = kept;
    assert_ok(hd_tokenizer_from_parts(&p, &u));
    hd_tokenizer_free(u);
    hd_free(token);
    hd_free(type);
    hd_free(merge);
    hd_tokenizer_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_json_is_named),
        cmocka_unit_test(text_that_is_not_json),
        cmocka_unit_test(accepted_forms),
        cmocka_unit_test(ignore_merges),
        cmocka_unit_test(overlapping_added_tokens),
        cmocka_unit_test(roles_come_from_the_config),
        cmocka_unit_test(bad_parts_are_named),
        cmocka_unit_test(roles_come_from_a_template),
        cmocka_unit_test(normalizing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
