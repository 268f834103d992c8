/* pretok: each row's words, rule by rule; every input is its words joined; long runs. */
#include "support/check.h"

#include "base/clock.h"
#include "base/mem.h"
#include "text/pretok.h"

#include <stdio.h>
#include <string.h>

static const hd_pretok *named(const char *name) {
    const hd_pretok *row = hd_pretok_by_name(hd_str_of(name));
    assert_non_null(row);
    return row;
}
static const hd_pretok *v3(void) { return named("deepseek-v3"); }

/* Words of text separated by "~", which no text uses. */
static void words_of(const hd_pretok *row, const char *text, const char *expected) {
    char found[512];
    size_t n = 0;
    hd_words w;
    hd_str word;
    hd_words_begin(&w, row, hd_str_of(text));
    while (hd_words_next(&w, &word)) {
        assert_true(n + word.len + 2 < sizeof found);
        if (n > 0) found[n++] = '~';
        memcpy(found + n, word.ptr, word.len);
        n += word.len;
    }
    found[n] = 0;
    assert_string_equal(found, expected);
}
static void words_are(const char *text, const char *expected) { words_of(v3(), text, expected); }

static void numbers_go_by_threes(void **state) {
    (void)state;
    words_are("1234567", "123~456~7");
    words_are("a12b", "a~12~b");
    words_are(" 1", " ~1");
    words_are("  12", "  ~12"); /* end of word: both spaces stay together */
    words_are("\u00b2\u00b3\u216b1", "\u00b2\u00b3\u216b~1"); /* every number character counts */
    words_are("-1", "-~1");
}

static void ideographs_and_kana_are_runs(void **state) {
    (void)state;
    words_are("\u4f60\u597dabc", "\u4f60\u597d~abc");
    words_are("x \u4e2d\u6587", "x~ ~\u4e2d\u6587"); /* the space ends its word: alone */
    words_are("x  \u4e2d", "x~  ~\u4e2d");
    words_are("\u30ab\u30fb\u3042", "\u30ab~\u30fb~\u3042"); /* the middle dot is punctuation */
    words_are("\u30fb\u30a2", "\u30fb~\u30a2");
    words_are("\uac00\ub098 \ub2e4", "\uac00\ub098~ \ub2e4"); /* hangul is letters only */
    words_are("\u3040\u3041", "\u3040\u3041");  /* unassigned, as the character before letters */
    words_are("\u3400\u4e00", "\u3400~\u4e00"); /* outside the ideograph range: another word */
}

static void letters_take_one_character_before_them(void **state) {
    (void)state;
    words_are("Hello world", "Hello~ world");
    words_are("a\tb", "a~\tb");
    words_are("a  b", "a~ ~ b");
    words_are("a   b", "a~  ~ b");
    words_are("don't", "don~'t");
    words_are("!\u00e9t\u00e9", "!~\u00e9t\u00e9"); /* only ASCII letters join punctuation */
    words_are("'re_x", "'re~_x");
    words_are("_abc\u00e9", "_abc~\u00e9");
    words_are("!!abc", "!!~abc");
    words_are("$abc", "$abc");
    words_are("\u20acabc", "\u20ac~abc");
    words_are("a\u200bb", "a~\u200bb");
    words_are("e\u0301x \u0301", "e\u0301x~ \u0301");
    words_are("\na", "\n~a");
    words_are("\r\n\r a", "\r\n\r~ a");
}

static void punctuation_takes_newlines(void **state) {
    (void)state;
    words_are("x ?!\n\r\ny", "x~ ?!\n\r\n~y");
    words_are("  ?!", " ~ ?!");
    words_are("!? !?", "!?~ !?");
    words_are("\t!", "\t~!"); /* only U+0020 joins */
    words_are("!\n \n", "!\n~ \n");
    words_are("...a", "...~a");
    words_are("\u2014\u2026 \u00ab", "\u2014\u2026~ \u00ab");
}

static void white_space(void **state) {
    (void)state;
    words_are("   ", "   ");
    words_are(" \n \n  ", " \n \n~  ");
    words_are(" \n \n  x", " \n \n~ ~ x");
    words_are("\n\n\n \n", "\n\n\n \n");
    words_are("\u3000\u3000!", "\u3000~\u3000~!");
    words_are("\u3000!", "\u3000~!");
    words_are(" \u3000\u4e2d", " \u3000~\u4e2d");
    words_are("\xc2\x85\u2028x", "\xc2\x85~\u2028x");
}

static void unmatched_characters_form_one_word(void **state) {
    (void)state;
    words_are("\x02\x03\x04", "\x02\x03\x04");
    words_are("\x02\x03z", "\x02~\x03z");
    words_are("\x02 \x03", "\x02~ ~\x03");
    words_are("\x02!", "\x02~!");
    words_are("\u200b\ufeff", "\u200b\ufeff");
}

static void invalid_bytes_are_characters(void **state) {
    (void)state;
    words_are("\xff\xfe", "\xff\xfe");
    words_are("\xff\xfe"
              "a",
              "\xff~\xfe"
              "a");
    words_are("\xe4\xb8 \xb8", "\xe4\xb8~ ~\xb8");
    words_are("\xed\xa0\x80!", "\xed\xa0\x80~!"); /* a surrogate: three invalid bytes */
    words_are("", "");
}

static void deepseek_llm(void **state) {
    (void)state;
    const hd_pretok *row = named("deepseek-llm");
    words_of(row, "Hello world", "Hello~ world");
    words_of(row, "a  b", "a~ ~ b");
    words_of(row, "a\n\r\nb \n", "a~\n~\r~\n~b~ ~\n");
    words_of(row, "caf\u00e9 \u00e9a", "caf~\u00e9~ \u00e9~a"); /* ":-~" cuts ASCII letters off */
    words_of(row, "12 34", "1~2~ ~3~4");                        /* no space before a digit */
    words_of(row, "(a) [b]", "(~a~)~ [~b~]");
    words_of(row, "!! \uff01!", "!!~ \uff01!");
    words_of(row, "!! \u3000!", "!!~ ~\u3000~!"); /* U+3000 is in two sets */
    words_of(row, "1  ", "1~  ");
    words_of(row, "  1", "  ~1");
    words_of(row, "\u4f60\u597d\uff0c\u4e16\u754c", "\u4f60\u597d~\uff0c~\u4e16\u754c");
    words_of(row, "\u3053\uac00\u0939\u05d0", "\u3053\uac00\u0939~\u05d0"); /* U+0800 and up */
    words_of(row, "\u05d0\u05d1 \u05d2", "\u05d0\u05d1 \u05d2"); /* Hebrew is in no set */
    words_of(row, "\u01bb\u01bc", "\u01bb~\u01bc");              /* U+01BB is not listed */
    words_of(row, "\U00011de0\u0663", "\U00011de0~\u0663");      /* numeric since Unicode 17 */
}

static void deepseek_coder(void **state) {
    (void)state;
    const hd_pretok *row = named("deepseek-coder");
    words_of(row, "int x = 10;", "int~ x~ = ~1~0~;");
    words_of(row, "caf\u00e9 ++", "caf\u00e9~ ++"); /* + is a symbol, no punctuation */
    words_of(row, "a\u0301b", "a~\u0301~b");
    words_of(row, "\t\tx", "\t~\tx");
    words_of(row, "  ", "  ");
    words_of(row, "\u3053\u3093\u30fb", "\u3053\u3093~\u30fb"); /* the dot is punctuation */
    words_of(row, " \u4e16\u754c\n", " ~\u4e16\u754c~\n");
}

static void qwen2_and_llama3(void **state) {
    (void)state;
    const hd_pretok *row = named("qwen2");
    words_of(row, "I'm we'VE he'Ll 'x", "I~'m~ we~'VE~ he~'Ll~ '~x");
    words_of(row, "a'\u017fb'\u212ab", "a~'\u017f~b~'\u212ab"); /* long s is s; Kelvin is no d */
    words_of(row, "'r 'v'l", "'r~ '~v~'l");
    words_of(row, "123 45", "1~2~3~ ~4~5");
    words_of(row, "a\u0301b", "a~\u0301b"); /* a mark is no letter, but one may come before some */
    words_of(row, "\u0301\u0302!\n\nx", "\u0301\u0302!\n\n~x");
    words_of(row, "$x !?\r\n", "$x~ !?\r\n");
    words_of(row, "a   b\n  c", "a~  ~ b~\n~ ~ c");
    words_of(row, " \n \n  ", " \n \n~  ");
    words_of(row, "\u00a0x\u00a0\u00a01", "\u00a0x~\u00a0~\u00a0~1");
    row = named("llama-bpe");
    words_of(row, "1234 \u0663\u0664", "123~4~ ~\u0663\u0664");
    words_of(row, "it's\t9", "it~'s~\t~9");
}

static void names(void **state) {
    (void)state;
    assert_ptr_equal(named("deepseek-r1-qwen"), named("qwen2"));
    assert_ptr_equal(named("llama3"), named("llama-bpe"));
    assert_ptr_equal(named("llama-v3"), named("llama-bpe"));
    size_t n = 0;
    for (const hd_pretok *row; (row = hd_pretok_at(n)) != NULL; n++) {
        assert_ptr_equal(named(hd_pretok_name(row)), row);
        assert_int_equal(hd_pretok_nfc(row), row == named("qwen2"));
        assert_int_equal(hd_pretok_ignore_merges(row), row == named("llama-bpe"));
    }
    assert_int_equal(n, 5);
}

static void recognised_by_patterns(void **state) {
    (void)state;
    hd_str p[] = {hd_str_of("\\p{N}{1,3}"), hd_str_of("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
                  hd_str_of("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
                            "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|"
                            "\\s*[\r\n]+|\\s+(?!\\S)|\\s+")};
    assert_ptr_equal(hd_pretok_by_patterns(p, 3), v3());
    assert_null(hd_pretok_by_patterns(p, 2));
    p[1] = hd_str_of("[\\u4E00-\\u9fa5\\u3040-\\u309F\u30a0-\\u30ff]+");
    p[2] = hd_str_of("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
                     "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|"
                     "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+");
    assert_ptr_equal(hd_pretok_by_patterns(p, 3), v3());
    p[1] = hd_str_of("[\\u4E00-\\u9fa5]+");
    const hd_pretok *row;
    assert_null(hd_pretok_by_patterns(p, 3));
    assert_int_equal(hd_pretok_nearest(p, 3, &row), 1);
    assert_ptr_equal(row, v3());
    static const char *const not_it[] = {"\\p{N}{1,2}", "\\p{N}{1,3", "\\p{N}{1,3}\\",
                                         "\\u",         "\\ud800",    ""};
    for (size_t i = 0; i < HD_COUNT_OF(not_it); i++) {
        p[0] = hd_str_of(not_it[i]);
        assert_int_equal(hd_pretok_nearest(p, 3, &row), 0);
    }
    assert_null(hd_pretok_by_name(hd_str_of("gpt-2")));
    assert_null(hd_pretok_by_name((hd_str){0}));
    assert_non_null(strstr(hd_pretok_known(), hd_pretok_name(v3())));
}

static uint64_t random_u64(uint64_t *seed) {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    return *seed ^= *seed << 17;
}

static void words_joined_are_the_text(void **state) {
    (void)state;
    static const char *const piece[] = {"a", "Z",  "1",      " ",      "\n",         "\r",
                                        "!", "'",  "\u00e9", "\u4e2d", "\u0301",     "\u3000",
                                        "$", "\t", "\x01",   "\xff",   "\U0001f600", "\u30fb"};
    uint64_t seed = 42;
    for (size_t round = 0; round < 40000; round++) {
        const hd_pretok *row = hd_pretok_at(round % 5);
        char text[128];
        size_t n = 0, at = 0;
        for (uint64_t k = random_u64(&seed) % 24; k > 0; k--) {
            const char *p = piece[random_u64(&seed) % HD_COUNT_OF(piece)];
            memcpy(text + n, p, strlen(p));
            n += strlen(p);
        }
        hd_words w;
        hd_str word;
        hd_words_begin(&w, row, (hd_str){text, n});
        while (hd_words_next(&w, &word)) {
            assert_true(word.len > 0);
            assert_ptr_equal(word.ptr, text + at);
            at += word.len;
        }
        assert_int_equal(at, n);
    }
}

static double walk_ms(const hd_pretok *row, const char *unit, size_t n) {
    size_t len = strlen(unit), at = 0;
    char *text = hd_alloc(n + len);
    for (size_t i = 0; i < n; i += len) memcpy(text + i, unit, len);
    hd_words w;
    hd_str word;
    int64_t from_ns = hd_now_ns();
    hd_words_begin(&w, row, (hd_str){text, n});
    while (hd_words_next(&w, &word)) at += word.len;
    assert_int_equal(at, n);
    hd_free(text);
    return (double)(hd_now_ns() - from_ns) * 1e-6;
}

/* Times are printed only; a quadratic splitter would run into the test's time limit. */
static void long_runs(void **state) {
    (void)state;
    static const char *const unit[] = {"a",      " ",    "\n",     "!",   "1",  "\x01",
                                       "\u4e2d", "\xff", "\u0301", " \n", " a", "'s"};
    const hd_pretok *row;
    for (size_t r = 0; (row = hd_pretok_at(r)) != NULL; r++) {
        double slowest = 0;
        for (size_t k = 0; k < HD_COUNT_OF(unit); k++) {
            double ms = walk_ms(row, unit[k], (size_t)1 << 19);
            if (ms > slowest) slowest = ms;
        }
        print_message("%s: 512 KiB at most %.1f ms\n", hd_pretok_name(row), slowest);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_go_by_threes),
        cmocka_unit_test(ideographs_and_kana_are_runs),
        cmocka_unit_test(letters_take_one_character_before_them),
        cmocka_unit_test(punctuation_takes_newlines),
        cmocka_unit_test(white_space),
        cmocka_unit_test(unmatched_characters_form_one_word),
        cmocka_unit_test(invalid_bytes_are_characters),
        cmocka_unit_test(deepseek_llm),
        cmocka_unit_test(deepseek_coder),
        cmocka_unit_test(qwen2_and_llama3),
        cmocka_unit_test(names),
        cmocka_unit_test(recognised_by_patterns),
        cmocka_unit_test(words_joined_are_the_text),
        cmocka_unit_test(long_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
