/* tokenizer from GGUF's lists: what the name of the pre-tokenizer implies, files without one, rows
 * without a token, letters that are added tokens, bytes that no token has. */
#include "support/check.h"

#include "base/buf.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <string.h>

enum { normal = 1, control = 3, user = 4, unused = 5, room = 300 };

/* Lists of the 256 bytes (ids 0..255), to be added to. */
struct lists {
    hd_str token[room], merge[4];
    int32_t type[room];
    char symbol[256][4];
    hd_tokenizer_parts p;
};

static void begin(struct lists *l, const char *pre) {
    uint32_t other = 256;
    for (unsigned b = 0; b < 256; b++) {
        bool printable = (b >= 33 && b <= 126) || (b >= 161 && b != 173);
        l->token[b] = (hd_str){l->symbol[b], hd_utf8_encode(printable ? b : other++, l->symbol[b])};
        l->type[b] = normal;
    }
    l->p = (hd_tokenizer_parts){.name = "lists",
                                .pre = hd_str_of(pre),
                                .token = l->token,
                                .type = l->type,
                                .n_token = 256,
                                .merge = l->merge,
                                .bos = -1,
                                .eos = -1,
                                .pad = -1};
}

static void add(struct lists *l, const char *text, int32_t type) {
    l->token[l->p.n_token] = hd_str_of(text);
    l->type[l->p.n_token++] = type;
}

static hd_tokenizer *load(struct lists *l) {
    hd_tokenizer *t;
    assert_true(hd_tokenizer_imply(&l->p));
    assert_ok(hd_tokenizer_from_parts(&l->p, &t));
    return t;
}

static void ids_are(const hd_tokenizer *t, const char *text, bool match_added,
                    const char *expected) {
    hd_ids ids = {0};
    char found[256] = "";
    size_t n = 0;
    hd_tokenizer_encode(t, hd_str_of(text), match_added, &ids);
    for (size_t i = 0; i < ids.n; i++)
        n += (size_t)snprintf(found + n, sizeof found - n, i ? " %d" : "%d", ids.id[i]);
    assert_string_equal(found, expected);
    hd_ids_fini(&ids);
}

static void the_name_implies_the_rest(void **state) {
    (void)state;
    static const struct {
        const char *pre;
        bool nfc, ignore_merges, add_bos;
    } row[] = {
        {"deepseek-v3", false, false, true},     {"deepseek-llm", false, false, true},
        {"deepseek-coder", false, false, true},  {"qwen2", true, false, false},
        {"deepseek-r1-qwen", true, false, true}, {"llama-bpe", false, true, true},
        {"llama3", false, true, true},           {"llama-v3", false, true, true},
    };
    for (size_t i = 0; i < HD_COUNT_OF(row); i++) {
        hd_tokenizer_parts p = {.pre = hd_str_of(row[i].pre)};
        assert_true(hd_tokenizer_imply(&p));
        assert_true(hd_str_eq_c(p.pre, row[i].pre));
        assert_int_equal(p.nfc, row[i].nfc);
        assert_int_equal(p.ignore_merges, row[i].ignore_merges);
        assert_int_equal(p.add_bos, row[i].add_bos);
    }
    hd_tokenizer_parts p = {.pre = hd_str_of("gpt-4o"), .nfc = true};
    assert_false(hd_tokenizer_imply(&p));
    assert_true(p.nfc && hd_str_eq_c(p.pre, "gpt-4o"));
}

/* Files from before tokenizer.ggml.pre. */
static void no_name(void **state) {
    (void)state;
    static const struct {
        size_t id;
        const char *token, *pre;
    } model[] = {
        {0, "<｜begin▁of▁sentence｜>", "deepseek-v3"},
        {100000, "<｜begin▁of▁sentence｜>", "deepseek-llm"},
        {32013, "<｜begin▁of▁sentence｜>", "deepseek-coder"},
        {151646, "<｜begin▁of▁sentence｜>", "deepseek-r1-qwen"},
        {151643, "<|endoftext|>", "qwen2"},
        {128000, "<|begin_of_text|>", "llama-bpe"},
        {128000, "<｜begin▁of▁sentence｜>", "llama-bpe"},
    };
    enum { n = 151700 };
    hd_str *token = hd_alloc_zero(n, sizeof *token);
    for (size_t i = 0; i < HD_COUNT_OF(model); i++) {
        token[model[i].id] = hd_str_of(model[i].token);
        hd_tokenizer_parts p = {.pre = hd_str_of("default"), .token = token, .n_token = n};
        assert_true(hd_tokenizer_imply(&p));
        assert_true(hd_str_eq_c(p.pre, model[i].pre));
        p = (hd_tokenizer_parts){.token = token, .n_token = n};
        assert_true(hd_tokenizer_imply(&p));
        assert_true(hd_str_eq_c(p.pre, model[i].pre));
        p = (hd_tokenizer_parts){.token = token, .n_token = model[i].id};
        assert_false(hd_tokenizer_imply(&p));
        token[model[i].id] = (hd_str){0};
    }
    hd_free(token);
}

/* Older converters write rows without a token as user-defined. */
static void pads_are_no_tokens(void **state) {
    (void)state;
    struct lists l;
    begin(&l, "deepseek-v3");
    add(&l, "<x>", user);
    add(&l, "[PAD257]", user);
    add(&l, "[PAD7]", user); /* not its own id: somebody's token */
    add(&l, "[PAD259]", user);
    add(&l, "[PAD260]", unused);
    l.p.pad = 257;
    hd_tokenizer *t;
    assert_int_equal(hd_tokenizer_from_parts(&l.p, &t), HD_E_CORRUPT);
    assert_non_null(strstr(hd_error_text(), "padding token 257"));
    l.p.pad = -1;
    t = load(&l);
    assert_int_equal(hd_tokenizer_size(t), 259);
    assert_int_equal(hd_tokenizer_bytes(t, 257).len, 0);
    assert_false(hd_tokenizer_is_added(t, 257));
    ids_are(t, "<x>[PAD7]", true, "256 258");
    ids_are(t, "[PAD259]", true, "91 80 65 68 50 53 57 93");
    hd_tokenizer_free(t);
}

/* A letter that stands for a byte UTF-8 never uses is text: its id is what the model learnt. */
static void letters_are_text(void **state) {
    (void)state;
    struct lists l;
    begin(&l, "deepseek-coder");
    l.type[0xFC] = l.type[0xC0] = unused;
    add(&l, "ü", user);
    add(&l, "À", user);
    add(&l, "<ü>", control);
    hd_tokenizer *t = load(&l);
    ids_are(t, "aü<ü>À", true, "97 256 258 257");
    ids_are(t, "aü<ü>À", false, "97 256 60 256 62 257");
    ids_are(t, "\xfc", false, "256");
    assert_true(hd_str_eq_c(hd_tokenizer_bytes(t, 256), "ü"));
    hd_tokenizer_free(t);
}

/* DeepSeek-V2's list has no tokens for bytes that UTF-8 never uses. */
static void bytes_that_no_token_has(void **state) {
    (void)state;
    struct lists l;
    begin(&l, "deepseek-llm");
    for (unsigned b = 0xF5; b < 256; b++) l.type[b] = unused;
    l.type[0xC0] = l.type[0xC1] = unused;
    hd_tokenizer *t = load(&l);
    ids_are(t, "a\xff\xc0", false, "97 63 63");
    ids_are(t, "ü", false, "195 188");
    hd_tokenizer_free(t);
    l.type[0xF4] = unused;
    assert_int_equal(hd_tokenizer_from_parts(&l.p, &t), HD_E_CORRUPT);
    assert_non_null(strstr(hd_error_text(), "no token for byte 0xF4"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_name_implies_the_rest), cmocka_unit_test(no_name),
        cmocka_unit_test(pads_are_no_tokens),        cmocka_unit_test(letters_are_text),
        cmocka_unit_test(bytes_that_no_token_has),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
