/* stream: whole characters, reasoning split, stop strings; against a direct computation over the
 * complete output, for random tokens, stop strings and options, fed one token at a time. */
#include "support/check.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "text/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { n_piece_max = 64, text_max = 8192 };

/* with_ids: <think> and </think> are tokens; without: the same vocabulary without these two. */
static hd_tokenizer *with_ids, *without_ids;

static int load_both(void **state) {
    (void)state;
    size_t n;
    char *text = test_read_file(test_path("tests/golden/tokenizer/mini_tokenizer.json"), &n);
    hd_tokenizer_parts p;
    assert_ok(hd_tokenizer_from_json((hd_str){text, n}, (hd_str){0}, "mini", &with_ids));
    free(text);
    hd_tokenizer_to_parts(with_ids, &p);
    int32_t *type = (int32_t *)p.type;
    type[hd_tokenizer_find(with_ids, hd_str_of("<think>"))] = 5;
    type[hd_tokenizer_find(with_ids, hd_str_of("</think>"))] = 5;
    assert_ok(hd_tokenizer_from_parts(&p, &without_ids));
    hd_free((void *)p.token);
    hd_free((void *)p.type);
    hd_free((void *)p.merge);
    return 0;
}

static int free_both(void **state) {
    (void)state;
    hd_tokenizer_free(with_ids);
    hd_tokenizer_free(without_ids);
    return 0;
}

struct text {
    char reasoning[text_max], content[text_max];
    size_t n_reasoning, n_content;
    bool stopped;
    int stop_ix;
    size_t n_out; /* bytes of the output that were decided: all, or up to a stop */
};

static void append(struct text *x, hd_text_out o) {
    assert_true(hd_utf8_is_valid(o.reasoning.ptr, o.reasoning.len));
    assert_true(hd_utf8_is_valid(o.content.ptr, o.content.len));
    if (x->stopped) assert_int_equal(o.reasoning.len + o.content.len, 0);
    if (o.reasoning.len) assert_int_equal(x->n_content, 0); /* never back to reasoning */
    assert_true(x->n_reasoning + o.reasoning.len < text_max);
    assert_true(x->n_content + o.content.len < text_max);
    memcpy(x->reasoning + x->n_reasoning, o.reasoning.ptr, o.reasoning.len);
    memcpy(x->content + x->n_content, o.content.ptr, o.content.len);
    x->n_reasoning += o.reasoning.len;
    x->n_content += o.content.len;
    x->reasoning[x->n_reasoning] = x->content[x->n_content] = 0;
    x->stopped = o.stopped;
    x->stop_ix = o.stop_ix;
    assert_true(o.n_out >= x->n_out && o.n_out >= x->n_reasoning + x->n_content);
    x->n_out = o.n_out;
}

static void feed_all(hd_stream *s, const int32_t *id, size_t n, struct text *x) {
    *x = (struct text){.stop_ix = -1};
    for (size_t i = 0; i < n; i++) append(x, hd_stream_feed(s, id[i]));
    append(x, hd_stream_end(s, false));
    append(x, hd_stream_feed(s, id[0])); /* nothing after the end */
    append(x, hd_stream_end(s, false));
}

/* ---- direct computation ---- */

struct whole {
    char byte[text_max];
    unsigned char token_ix[text_max]; /* which token the byte came from */
    size_t n;
};

/* Copies raw bytes, each maximal invalid run as U+FFFD. */
static void sanitise(const struct whole *raw, struct whole *out) {
    out->n = 0;
    for (size_t i = 0; i < raw->n;) {
        uint32_t cp;
        size_t len = hd_utf8_decode(raw->byte + i, raw->n - i, &cp);
        size_t used = len ? len : hd_utf8_invalid_len(raw->byte + i, raw->n - i);
        const char *from = len ? raw->byte + i : "\xEF\xBF\xBD";
        for (size_t k = 0; k < (len ? len : 3); k++) {
            out->token_ix[out->n] = raw->token_ix[i];
            out->byte[out->n++] = from[k];
        }
        i += used;
    }
}

/* Where marker occurs in x at or after from, as one token (id >= 0) or as text; x->n: nowhere. */
static size_t find_marker(const struct whole *x, size_t from, const char *marker, int32_t id,
                          const int32_t *ids) {
    size_t len = strlen(marker);
    for (size_t i = from; i + len <= x->n; i++) {
        if (memcmp(x->byte + i, marker, len) != 0) continue;
        if (id < 0 || (ids[x->token_ix[i]] == id && x->token_ix[i] == x->token_ix[i + len - 1]))
            return i;
    }
    return x->n;
}

static void compute(const hd_tokenizer *t, const hd_text_stream_options *o, const int32_t *ids,
                    size_t n, struct text *x) {
    static struct whole raw, all;
    char part[text_max]; /* r, c, m */
    int32_t open = hd_tokenizer_find(t, hd_str_of("<think>"));
    int32_t close = hd_tokenizer_find(t, hd_str_of("</think>"));
    raw.n = 0;
    for (size_t i = 0; i < n; i++) {
        hd_str b = hd_tokenizer_bytes(t, ids[i]);
        if (!o->keep_special && hd_tokenizer_is_special(t, ids[i])) continue;
        for (size_t k = 0; k < b.len; k++) {
            raw.token_ix[raw.n] = (unsigned char)i;
            raw.byte[raw.n++] = b.ptr[k];
        }
    }
    sanitise(&raw, &all);
    memset(part, 'c', sizeof part);
    if (o->split_reasoning) {
        bool opens = find_marker(&all, 0, "<think>", open, ids) == 0 && all.n > 0;
        size_t from = opens ? 7 : 0;
        if (opens && all.n > 7 && all.byte[7] == '\n') from = 8;
        if (opens || o->in_reasoning) {
            size_t end = find_marker(&all, opens ? 7 : 0, "</think>", close, ids);
            memset(part, 'r', end);
            if (end < all.n) memset(part + end, 'm', 8);
        }
        memset(part, 'm', from);
    }
    size_t cut = all.n;
    *x = (struct text){.stop_ix = -1};
    for (size_t end = 1; end <= all.n && !x->stopped; end++) {
        size_t longest = 0;
        for (int k = 0; k < o->n_stop; k++) {
            hd_str s = o->stop[k];
            if (s.len > end || s.len <= longest) continue;
            if (memcmp(all.byte + end - s.len, s.ptr, s.len) != 0) continue;
            longest = s.len;
            x->stopped = true;
            x->stop_ix = k;
        }
        if (longest) cut = o->include_stop ? end : end - longest;
    }
    x->n_out = cut;
    for (size_t i = 0; i < cut; i++) {
        if (part[i] == 'r') x->reasoning[x->n_reasoning++] = all.byte[i];
        if (part[i] == 'c') x->content[x->n_content++] = all.byte[i];
    }
    x->reasoning[x->n_reasoning] = x->content[x->n_content] = 0;
}

static uint64_t seed = 88172645463325252u;
static uint64_t random_below(uint64_t n) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed % n;
}

static int32_t byte_token(const hd_tokenizer *t, unsigned char byte) {
    char raw = (char)byte;
    return hd_tokenizer_find(t, (hd_str){&raw, 1});
}

static size_t random_tokens(const hd_tokenizer *t, int32_t *id) {
    static const char bytes[] = "<</think>>think\n\nab\xE4\xB8\xAD\xF0\x9F\x98\x80\xFF\xC3";
    static const char *const marker[] = {"<think>", "</think>", "<｜User｜>",
                                         "<｜end▁of▁sentence｜>", " the"};
    size_t n = 0, want = random_below(n_piece_max - 10);
    if (random_below(4) == 0) /* a marker at the start, as a token or as bytes */
        for (const char *c = random_below(2) ? "<think>" : "</think>"; *c; c++)
            id[n++] = byte_token(t, (unsigned char)*c);
    while (n < want) {
        if (random_below(5)) {
            id[n++] = byte_token(t, (unsigned char)bytes[random_below(sizeof bytes - 1)]);
            continue;
        }
        int32_t k = hd_tokenizer_find(t, hd_str_of(marker[random_below(HD_COUNT_OF(marker))]));
        id[n++] = random_below(20) ? k : (int32_t)random_below(5000) - 100; /* -1 and holes too */
    }
    return n;
}

static void equals_the_computation(void **state) {
    (void)state;
    static const char *const stop[] = {"ab",      "aba",  "b",        "</think>", "k>",  "<",
                                       "</",      "\n\n", "hink>\n",  "中",       ">a",  "\uFFFD",
                                       "think>x", "aaaa", "</thinka", "nk>\n<",   "<｜", "a\nb"};
    static struct text found, want;
    int n_stopped = 0, n_reasoned = 0;
    for (int round = 0; round < 60000; round++) {
        const hd_tokenizer *t = round & 1 ? with_ids : without_ids;
        int32_t id[n_piece_max];
        hd_str chosen[4];
        hd_text_stream_options o = {.in_reasoning = random_below(2),
                                    .split_reasoning = random_below(4) != 0,
                                    .keep_special = random_below(2),
                                    .include_stop = random_below(3) == 0,
                                    .stop = chosen,
                                    .n_stop = (int)random_below(5)};
        for (int i = 0; i < o.n_stop; i++)
            chosen[i] = hd_str_of(stop[random_below(HD_COUNT_OF(stop))]);
        size_t n = random_tokens(t, id);
        id[n] = byte_token(t, 'z');
        compute(t, &o, id, n, &want);
        hd_stream *s;
        assert_ok(hd_stream_new(t, NULL, &o, &s));
        feed_all(s, id, n, &found);
        if (n == 0) found.stopped = want.stopped;
        if (strcmp(found.reasoning, want.reasoning) != 0 ||
            strcmp(found.content, want.content) != 0)
            fail_msg("round %d: expected [%s][%s], found [%s][%s]", round, want.reasoning,
                     want.content, found.reasoning, found.content);
        assert_int_equal(found.stopped, want.stopped);
        assert_int_equal(found.stop_ix, want.stop_ix);
        assert_int_equal(found.n_out, want.n_out);
        n_stopped += found.stopped;
        n_reasoned += found.n_reasoning > 0;
        hd_stream_free(s);
    }
    print_message("%d of 60000 stopped, %d with reasoning\n", n_stopped, n_reasoned);
    assert_true(n_stopped > 1000 && n_reasoned > 1000);
}

/* ---- single behaviours ---- */

static hd_stream *stream(const hd_tokenizer *t, hd_text_stream_options o) {
    hd_stream *s;
    assert_ok(hd_stream_new(t, NULL, &o, &s));
    return s;
}

static hd_text_out feed(hd_stream *s, const hd_tokenizer *t, const char *token) {
    int32_t id = hd_tokenizer_find(t, hd_str_of(token));
    assert_true(id >= 0);
    return hd_stream_feed(s, id);
}

#define SHOWS(out, r, c)                                                                           \
    do {                                                                                           \
        hd_text_out o_ = (out);                                                                    \
        assert_int_equal(o_.reasoning.len, strlen(r));                                             \
        assert_memory_equal(o_.reasoning.ptr, r, strlen(r));                                       \
        assert_int_equal(o_.content.len, strlen(c));                                               \
        assert_memory_equal(o_.content.ptr, c, strlen(c));                                         \
    } while (0)

/* Text that nothing can change any more comes at once. */
static void nothing_is_held_needlessly(void **state) {
    (void)state;
    hd_str stop = hd_str_of("abc");
    hd_stream *s = stream(
        with_ids, (hd_text_stream_options){
                      .split_reasoning = true, .in_reasoning = true, .stop = &stop, .n_stop = 1});
    SHOWS(feed(s, with_ids, "x"), "x", "");
    SHOWS(feed(s, with_ids, "<"), "<", ""); /* the marker is a token: no text can become it */
    SHOWS(feed(s, with_ids, "a"), "", "");
    SHOWS(feed(s, with_ids, "b"), "", "");
    SHOWS(feed(s, with_ids, "a"), "ab", "");
    SHOWS(feed(s, with_ids, "\xE4"), "", "");
    SHOWS(feed(s, with_ids, "\xB8"), "", "");
    SHOWS(feed(s, with_ids, "\xAD"), "a中", "");
    assert_true(hd_stream_in_reasoning(s));
    SHOWS(feed(s, with_ids, "</think>"), "", "");
    assert_false(hd_stream_in_reasoning(s));
    SHOWS(feed(s, with_ids, "\n"), "", "\n"); /* exactly what follows */
    SHOWS(feed(s, with_ids, "</think>"), "", "</think>");
    SHOWS(hd_stream_end(s, false), "", "");
    hd_stream_free(s);

    s = stream(without_ids,
               (hd_text_stream_options){.split_reasoning = true, .in_reasoning = true});
    SHOWS(feed(s, without_ids, "<"), "", "");
    SHOWS(feed(s, without_ids, "/"), "", "");
    SHOWS(feed(s, without_ids, "x"), "</x", "");
    SHOWS(feed(s, without_ids, "<"), "", "");
    SHOWS(hd_stream_end(s, false), "<", "");
    hd_stream_free(s);
}

static void special_tokens_are_hidden(void **state) {
    (void)state;
    hd_stream *s = stream(with_ids, (hd_text_stream_options){0});
    SHOWS(feed(s, with_ids, "\xE4"), "", "");
    SHOWS(feed(s, with_ids, "<｜end▁of▁sentence｜>"), "", "");
    SHOWS(feed(s, with_ids, "\xB8"), "", "");
    SHOWS(feed(s, with_ids, "\xAD"), "", "中"); /* a hidden token is no border */
    SHOWS(feed(s, with_ids, "<｜Assistant｜>"), "", "<｜Assistant｜>");
    SHOWS(feed(s, with_ids, "<think>"), "", "<think>");
    SHOWS(hd_stream_feed(s, 1 << 20), "", "");
    SHOWS(feed(s, with_ids, "\xE4"), "", "");
    SHOWS(hd_stream_end(s, false), "", "\uFFFD");
    hd_stream_free(s);
    s = stream(with_ids, (hd_text_stream_options){.keep_special = true});
    SHOWS(feed(s, with_ids, "\xE4"), "", "");
    SHOWS(feed(s, with_ids, "<｜end▁of▁sentence｜>"), "", "\uFFFD<｜end▁of▁sentence｜>");
    hd_stream_free(s);
}

static void an_output_may_open_its_own_reasoning(void **state) {
    (void)state;
    hd_stream *s = stream(with_ids, (hd_text_stream_options){.split_reasoning = true});
    assert_false(hd_stream_in_reasoning(s));
    SHOWS(feed(s, with_ids, "<think>"), "", "");
    assert_true(hd_stream_in_reasoning(s));
    SHOWS(feed(s, with_ids, "\n"), "", "");
    SHOWS(feed(s, with_ids, "\n"), "\n", "");
    SHOWS(feed(s, with_ids, "</think>"), "", "");
    SHOWS(feed(s, with_ids, "<think>"), "", "<think>"); /* later ones are text */
    hd_stream_free(s);
    s = stream(with_ids, (hd_text_stream_options){.split_reasoning = true});
    SHOWS(feed(s, with_ids, "</think>"), "", "</think>"); /* closes nothing */
    hd_stream_free(s);
}

static void stops_are_checked(void **state) {
    (void)state;
    static char big[HD_STREAM_STOP_BYTES_MAX + 1];
    hd_str stop[HD_STREAM_STOP_MAX + 1];
    hd_stream *s;
    memset(big, 'a', sizeof big);
    for (size_t i = 0; i < HD_COUNT_OF(stop); i++) stop[i] = hd_str_of("x");
    hd_text_stream_options o = {.stop = stop, .n_stop = HD_COUNT_OF(stop)};
    assert_int_equal(hd_stream_new(with_ids, NULL, &o, &s), HD_E_INVALID);
    assert_null(s);
    o.n_stop = 3;
    stop[2] = (hd_str){"", 0};
    assert_int_equal(hd_stream_new(with_ids, NULL, &o, &s), HD_E_INVALID);
    assert_string_equal(hd_error_text(), "stop string 2 has 0 bytes, expected 1..1024");
    stop[2] = (hd_str){big, sizeof big};
    assert_int_equal(hd_stream_new(with_ids, NULL, &o, &s), HD_E_INVALID);
    stop[2] = hd_str_of("a\xFF");
    assert_int_equal(hd_stream_new(with_ids, NULL, &o, &s), HD_E_INVALID);
    assert_string_equal(hd_error_text(), "stop string 2 is not valid UTF-8");
    hd_stream_free(NULL);
}

/* The longest stop string, nearly matched again and again, then matched. */
static void long_stop_strings(void **state) {
    (void)state;
    static char big[HD_STREAM_STOP_BYTES_MAX];
    memset(big, 'a', sizeof big);
    big[sizeof big - 1] = 'b';
    hd_str stop = {big, sizeof big};
    hd_stream *s = stream(with_ids, (hd_text_stream_options){.stop = &stop, .n_stop = 1});
    size_t n_shown = 0;
    for (int i = 0; i < 5000; i++) {
        hd_text_out o = feed(s, with_ids, "a");
        n_shown += o.content.len;
        assert_int_equal(n_shown, i + 1 < 1023 ? 0 : i + 1 - 1023);
    }
    hd_text_out o = feed(s, with_ids, "b");
    assert_true(o.stopped);
    assert_int_equal(o.stop_ix, 0);
    assert_int_equal(n_shown + o.content.len, 5001 - sizeof big);
    hd_stream_free(s);
}

/* Stop strings are sought only in what comes after the first min_tokens tokens. */
static void stops_after_min_tokens(void **state) {
    (void)state;
    hd_str stop = hd_str_of("ab");
    for (int min = -1; min < 5; min++) {
        hd_stream *s = stream(
            with_ids, (hd_text_stream_options){.min_tokens = min, .stop = &stop, .n_stop = 1});
        struct text x;
        const int32_t ab[] = {byte_token(with_ids, 'a'), byte_token(with_ids, 'b'),
                              byte_token(with_ids, 'a'), byte_token(with_ids, 'b')};
        feed_all(s, ab, HD_COUNT_OF(ab), &x);
        assert_int_equal(x.stopped, min <= 2);
        assert_string_equal(x.content, min <= 0 ? "" : min <= 2 ? "ab" : "abab");
        hd_stream_free(s);
    }
}

/* The same text by other tokens gives the same result, in whatever pieces. */
static void any_grouping(void **state) {
    (void)state;
    static const char *const text[] = {
        "Plan: add, then check.</think>The answer is 42.\nSTOP and more",
        "<think>\nfirst the 思考 then</think>\n\n好的 😀 done STOP",
        "no marker at all, \xF0\x9F broken \xE4\xB8 bytes ST", "</think>", "<think></think>"};
    static struct text want, found;
    hd_str stop = hd_str_of("STOP");
    for (size_t k = 0; k < HD_COUNT_OF(text); k++) {
        for (int mode = 0; mode < 4; mode++) {
            hd_text_stream_options o = {
                .in_reasoning = mode & 1, .split_reasoning = mode & 2, .stop = &stop, .n_stop = 1};
            size_t len = strlen(text[k]);
            for (size_t cut = 0; cut <= len; cut++) { /* merged up to cut, single bytes after */
                hd_ids ids = {0};
                hd_tokenizer_encode(without_ids, (hd_str){text[k], cut}, false, &ids);
                for (size_t i = cut; i < len; i++)
                    hd_ids_add(&ids, byte_token(without_ids, (unsigned char)text[k][i]));
                hd_stream *s = stream(without_ids, o);
                feed_all(s, ids.id, ids.n, cut ? &found : &want);
                if (cut) {
                    assert_string_equal(found.reasoning, want.reasoning);
                    assert_string_equal(found.content, want.content);
                    assert_int_equal(found.stopped, want.stopped);
                }
                hd_stream_free(s);
                hd_ids_fini(&ids);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_computation),
        cmocka_unit_test(nothing_is_held_needlessly),
        cmocka_unit_test(special_tokens_are_hidden),
        cmocka_unit_test(an_output_may_open_its_own_reasoning),
        cmocka_unit_test(stops_are_checked),
        cmocka_unit_test(long_stop_strings),
        cmocka_unit_test(stops_after_min_tokens),
        cmocka_unit_test(any_grouping),
    };
    return cmocka_run_group_tests(tests, load_both, free_both);
}
