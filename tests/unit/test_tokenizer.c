/* tokenizer: golden ids of the embedded model's tokenizer, from JSON and from GGUF's lists; what is
 * special; round trips of any bytes; merging against a direct implementation; threads. What is
 * refused is in test_tokenizer_bad.c. */
#include "support/check.h"

#include "base/clock.h"
#include "base/map.h"
#include "base/mem.h"
#include "text/bpe.h"
#include "text/tokenizer.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static hd_tokenizer *from_json, *from_parts;
static hd_tokenizer_parts parts;

static int load_both(void **state) {
    (void)state;
    size_t n, n_config;
    char *text = test_read_file(test_path("tests/golden/tokenizer/mini_tokenizer.json"), &n);
    char *config =
        test_read_file(test_path("tests/golden/tokenizer/mini_tokenizer_config.json"), &n_config);
    assert_ok(
        hd_tokenizer_from_json((hd_str){text, n}, (hd_str){config, n_config}, "mini", &from_json));
    free(text);
    free(config);
    hd_tokenizer_to_parts(from_json, &parts);
    assert_ok(hd_tokenizer_from_parts(&parts, &from_parts));
    return 0;
}

static int free_both(void **state) {
    (void)state;
    hd_free((void *)parts.token);
    hd_free((void *)parts.type);
    hd_free((void *)parts.merge);
    hd_tokenizer_free(from_json);
    hd_tokenizer_free(from_parts);
    return 0;
}

static uint64_t seed = 0x9E3779B97F4A7C15u;
static uint64_t random_below(uint64_t n) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed % n;
}

static bool same_ids(const hd_ids *a, const hd_ids *b) {
    return a->n == b->n && (a->n == 0 || memcmp(a->id, b->id, a->n * sizeof *a->id) == 0);
}

static void golden_case(const char *line, size_t n) {
    json_t *j = json_loadb(line, n, JSON_ALLOW_NUL, NULL);
    assert_non_null(j);
    const json_t *text = json_object_get(j, "text"), *ids = json_object_get(j, "ids");
    hd_ids want = {0}, found[2] = {0};
    for (size_t i = 0; i < json_array_size(ids); i++)
        hd_ids_add(&want, (int32_t)json_integer_value(json_array_get(ids, i)));
    for (int k = 0; k < 2; k++) {
        hd_tokenizer_encode(k ? from_parts : from_json,
                            (hd_str){json_string_value(text), json_string_length(text)}, true,
                            &found[k]);
        if (!same_ids(&found[k], &want)) fail_msg("other ids: %.*s", (int)n, line);
        hd_ids_fini(&found[k]);
    }
    hd_ids_fini(&want);
    json_decref(j);
}

static void golden_cases(void **state) {
    (void)state;
    char *text = test_read_file(test_path("tests/golden/tokenizer/golden_mini.jsonl"), NULL);
    int n_case = 0;
    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1, n_case++)
        golden_case(line, (size_t)(end - line));
    assert_int_equal(n_case, 36);
    free(text);
}

static void same_tokens(const hd_tokenizer *a, const hd_tokenizer *b) {
    assert_int_equal(hd_tokenizer_size(a), hd_tokenizer_size(b));
    for (int32_t id = -1; id <= (int32_t)hd_tokenizer_size(a); id++) {
        assert_true(hd_str_eq(hd_tokenizer_bytes(a, id), hd_tokenizer_bytes(b, id)));
        assert_int_equal(hd_tokenizer_is_added(a, id), hd_tokenizer_is_added(b, id));
        if (hd_tokenizer_is_special(a, id) != hd_tokenizer_is_special(b, id))
            fail_msg("token %d is special in one only", id);
    }
    assert_int_equal(hd_tokenizer_bos(a), hd_tokenizer_bos(b));
    assert_int_equal(hd_tokenizer_eos(a), hd_tokenizer_eos(b));
    assert_int_equal(hd_tokenizer_add_bos(a), hd_tokenizer_add_bos(b));
}

static void what_tokens_are(void **state) {
    (void)state;
    const hd_tokenizer *t = from_json;
    assert_int_equal(hd_tokenizer_size(t), 4096);
    assert_int_equal(hd_tokenizer_bos(t), 0);
    assert_int_equal(hd_tokenizer_eos(t), 1);
    assert_true(hd_tokenizer_add_bos(t));
    assert_int_equal(hd_tokenizer_find(t, hd_str_of("<｜User｜>")), 4084);
    assert_int_equal(hd_tokenizer_find(t, hd_str_of(" the")), 264);
    assert_int_equal(hd_tokenizer_find(t, hd_str_of("\n")), 201);
    assert_int_equal(hd_tokenizer_find(t, hd_str_of("no such token")), -1);
    assert_true(hd_str_eq_c(hd_tokenizer_bytes(t, 264), " the"));
    assert_true(hd_str_eq_c(hd_tokenizer_bytes(t, 4080), "</think>"));
    assert_int_equal(hd_tokenizer_bytes(t, 4096).len, 0);
    assert_int_equal(hd_tokenizer_bytes(t, -5).len, 0);
    for (int32_t id = 0; id < 4096; id++) {
        bool special = id < 3 || id == 4086; /* bos, eos, pad, <|EOT|> */
        assert_int_equal(hd_tokenizer_is_special(t, id), special);
        assert_int_equal(hd_tokenizer_is_added(t, id), id < 3 || id >= 4079);
    }
    same_tokens(from_json, from_parts);
}

/* llama.cpp's converter makes every <｜...｜> a control token. */
static void files_of_other_converters(void **state) {
    (void)state;
    int32_t *type = hd_alloc(parts.n_token * sizeof *type);
    hd_tokenizer_parts p = parts;
    int n_changed = 0;
    memcpy(type, parts.type, parts.n_token * sizeof *type);
    for (size_t i = 0; i < p.n_token; i++)
        if (type[i] == 4 && p.token[i].len > 4 && memcmp(p.token[i].ptr, "<｜", 4) == 0) {
            type[i] = 3;
            n_changed++;
        }
    assert_true(n_changed > 10);
    p.type = type;
    hd_tokenizer *t;
    assert_ok(hd_tokenizer_from_parts(&p, &t));
    same_tokens(from_json, t);
    hd_tokenizer_free(t);
    hd_free(type);
}

static void padded_lists(void **state) {
    (void)state;
    size_t n = parts.n_token + 3;
    hd_str *token = hd_alloc(n * sizeof *token);
    int32_t *type = hd_alloc(n * sizeof *type);
    memcpy(token, parts.token, parts.n_token * sizeof *token);
    memcpy(type, parts.type, parts.n_token * sizeof *type);
    for (size_t i = parts.n_token; i < n; i++) {
        token[i] = hd_str_of("[PAD]");
        type[i] = 5;
    }
    type[4090] = 5; /* a hole inside */
    hd_tokenizer_parts p = parts, back;
    p.token = token;
    p.type = type;
    p.n_token = n;
    hd_tokenizer *t;
    assert_ok(hd_tokenizer_from_parts(&p, &t));
    assert_int_equal(hd_tokenizer_size(t), parts.n_token);
    assert_int_equal(hd_tokenizer_bytes(t, 4090).len, 0);
    hd_tokenizer_to_parts(t, &back);
    assert_true(hd_str_eq_c(back.token[4090], "[PAD4090]"));
    assert_int_equal(back.type[4090], 5);
    assert_true(hd_str_eq(back.token[264], parts.token[264]));
    hd_free((void *)back.token);
    hd_free((void *)back.type);
    hd_free((void *)back.merge);
    hd_tokenizer_free(t);
    hd_free(token);
    hd_free(type);
}

static void round_trip(const hd_tokenizer *t, hd_str text, bool match_added, hd_ids *out) {
    hd_buf back;
    hd_buf_init(&back, SIZE_MAX / 2);
    out->n = 0;
    hd_tokenizer_encode(t, text, match_added, out);
    hd_tokenizer_decode(t, out->id, out->n, true, &back);
    assert_true(hd_str_eq(hd_buf_str(&back), text));
    hd_buf_fini(&back);
}

static void markup_as_plain_text(void **state) {
    (void)state;
    hd_ids ids = {0};
    for (int32_t id = 0; id < 4096; id++) {
        if (!hd_tokenizer_is_added(from_json, id)) continue;
        round_trip(from_json, hd_tokenizer_bytes(from_json, id), false, &ids);
        assert_true(ids.n > 1);
        for (size_t i = 0; i < ids.n; i++)
            assert_false(hd_tokenizer_is_added(from_json, ids.id[i]));
        round_trip(from_json, hd_tokenizer_bytes(from_json, id), true, &ids);
        assert_int_equal(ids.n, 1);
        assert_int_equal(ids.id[0], id);
    }
    hd_ids_fini(&ids);
    hd_buf shown;
    hd_buf_init(&shown, 1000);
    const int32_t some[] = {0, 4084, 68, 1, 4096, -1};
    hd_tokenizer_decode(from_json, some, HD_COUNT_OF(some), false, &shown);
    assert_string_equal(shown.ptr, "<｜User｜>b");
    hd_buf_fini(&shown);
}

static void any_bytes_round_trip(void **state) {
    (void)state;
    static const char *const piece[] = {
        "the ",   "<｜User｜>", "<think>", "</think>", "<｜", "<｜end▁of▁sentence｜",
        "\u4e2d", "\r\n",       "  ",      "\u0301",   "123", "'s"};
    hd_ids a = {0}, b = {0};
    char text[300];
    for (int round = 0; round < 20000; round++) {
        size_t n = 0;
        for (uint64_t k = random_below(24); k > 0; k--) {
            if (random_below(2)) {
                text[n++] = (char)random_below(256);
                continue;
            }
            const char *p = piece[random_below(HD_COUNT_OF(piece))];
            if (n + strlen(p) > sizeof text) break;
            memcpy(text + n, p, strlen(p));
            n += strlen(p);
        }
        bool match_added = round & 1;
        round_trip(from_json, (hd_str){text, n}, match_added, &a);
        round_trip(from_parts, (hd_str){text, n}, match_added, &b);
        assert_true(same_ids(&a, &b));
    }
    hd_ids_fini(&a);
    hd_ids_fini(&b);
}

/* ---- merging, done directly: all pairs are tried for each merge ---- */

static hd_map *rank_of; /* "left\0right" -> rank */

static void build_ranks(void) {
    rank_of = hd_map_new(parts.n_merge);
    for (size_t i = 0; i < parts.n_merge; i++) assert_true(hd_map_put(rank_of, parts.merge[i], i));
}

/* Symbols of a lower-case word are its letters. Returns how many tokens remain; end[i] of each. */
static size_t merge_directly(const char *word, size_t n, size_t *end) {
    for (size_t i = 0; i < n; i++) end[i] = i + 1;
    for (;;) {
        size_t best = 0;
        uint64_t best_rank = UINT64_MAX;
        for (size_t i = 0; i + 1 < n; i++) {
            char key[512];
            uint64_t rank;
            size_t from = i ? end[i - 1] : 0;
            int len = snprintf(key, sizeof key, "%.*s %.*s", (int)(end[i] - from), word + from,
                               (int)(end[i + 1] - end[i]), word + end[i]);
            if (!hd_map_get(rank_of, (hd_str){key, (size_t)len}, &rank) || rank >= best_rank)
                continue;
            best_rank = rank;
            best = i;
        }
        if (best_rank == UINT64_MAX) return n;
        memmove(end + best, end + best + 1, (n - best - 1) * sizeof *end);
        n--;
    }
}

static void merging_equals_the_definition(void **state) {
    (void)state;
    build_ranks();
    hd_ids ids = {0};
    for (int round = 0; round < 3000; round++) {
        char word[200];
        size_t end[200], n = 1 + random_below(round % 4 ? 48 : 200);
        const char *alphabet = round & 1 ? "etaonihsrd" : "es";
        for (size_t i = 0; i < n; i++) word[i] = alphabet[random_below(strlen(alphabet))];
        size_t n_token = merge_directly(word, n, end);
        ids.n = 0;
        hd_tokenizer_encode(from_json, (hd_str){word, n}, false, &ids);
        assert_int_equal(ids.n, n_token);
        for (size_t i = 0, at = 0; i < n_token; at = end[i++])
            assert_true(hd_str_eq(hd_tokenizer_bytes(from_json, ids.id[i]),
                                  (hd_str){word + at, end[i] - at}));
    }
    hd_ids_fini(&ids);
    hd_map_free(rank_of);
}

/* ---- long inputs ---- */

static void long_words_cost_linear_lookups(void **state) {
    (void)state;
    enum { n_level = 12 };
    hd_bpe *b = hd_bpe_new(n_level); /* a, aa, aaaa, ... */
    for (int byte = 0; byte < 256; byte++) hd_bpe_set_byte(b, (unsigned char)byte, byte);
    int32_t id = 'a';
    for (int32_t level = 0; level < n_level; level++) {
        assert_true(hd_bpe_add_merge(b, id, id, 256 + level));
        assert_false(hd_bpe_add_merge(b, id, id, 256 + level));
        id = 256 + level;
    }
    for (size_t n = 1; n <= (size_t)1 << 20; n = n * 4 + 1) {
        char *word = hd_alloc(n);
        memset(word, 'a', n);
        hd_ids ids = {0};
        size_t n_lookup = hd_bpe_encode(b, (hd_str){word, n}, &ids);
        assert_true(n_lookup <= 3 * n);
        assert_int_equal(ids.n, n / 4096 + (size_t)__builtin_popcountll(n % 4096));
        hd_ids_fini(&ids);
        hd_free(word);
    }
    hd_bpe_free(b);
}

/* Times are printed only; quadratic work would run into the test's time limit. */
static void long_texts(void **state) {
    (void)state;
    static const char *const unit[] = {"a", "the",    " ",    "!",  "\n",      "0",
                                       "<", "\u4e2d", "\xff", "e ", "<｜User", "\x01"};
    for (size_t k = 0; k < HD_COUNT_OF(unit); k++) {
        int64_t took_ns[2];
        for (int twice = 0; twice < 2; twice++) {
            size_t n = (size_t)1000000 << twice, len = strlen(unit[k]);
            char *text = hd_alloc(n + len);
            for (size_t i = 0; i < n; i += len) memcpy(text + i, unit[k], len);
            hd_ids ids = {0};
            int64_t from_ns = hd_now_ns();
            round_trip(from_json, (hd_str){text, n}, true, &ids);
            took_ns[twice] = hd_now_ns() - from_ns;
            hd_ids_fini(&ids);
            hd_free(text);
        }
        print_message("unit %zu: 1 MB %.0f ms, 2 MB %.0f ms\n", k, (double)took_ns[0] * 1e-6,
                      (double)took_ns[1] * 1e-6);
    }
}

static void *encode_in_thread(void *arg) {
    hd_ids *ids = arg;
    for (int i = 0; i < 200; i++) {
        ids->n = 0;
        hd_tokenizer_encode(from_json,
                            hd_str_of("Once upon a time <｜User｜> 你好, unusualwordswithoutspaces "
                                      "andtheywentonandonandonandonandon 123456!"),
                            true, ids);
    }
    return NULL;
}

static void threads_share_a_tokenizer(void **state) {
    (void)state;
    pthread_t thread[4];
    hd_ids ids[4] = {0};
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, encode_in_thread, &ids[i]), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        assert_true(ids[i].n > 10);
        assert_true(same_ids(&ids[i], &ids[0]));
    }
    for (int i = 0; i < 4; i++) hd_ids_fini(&ids[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_cases),
        cmocka_unit_test(what_tokens_are),
        cmocka_unit_test(files_of_other_converters),
        cmocka_unit_test(padded_lists),
        cmocka_unit_test(markup_as_plain_text),
        cmocka_unit_test(any_bytes_round_trip),
        cmocka_unit_test(merging_equals_the_definition),
        cmocka_unit_test(long_words_cost_linear_lookups),
        cmocka_unit_test(long_texts),
        cmocka_unit_test(threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, load_both, free_both);
}
