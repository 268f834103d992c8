/* tool parser: calls written in each format and cut into tokens in every way give the same calls;
 * cut off anywhere, nothing leaks; slips of models are read as meant. */
#include "support/chat_tokenizer.h"
#include "support/check.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "support/rng.h"
#include "text/stream.h"
#include "text/tool_parser.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { text_max = 16384, call_max = 8 };

/* with_ids: the markers are tokens; without_ids: the same vocabulary, where they are text. */
static hd_tokenizer *with_ids, *without_ids;

static int load_all(void **state) {
    (void)state;
    static const char *const text_markers[] = {"<think>",
                                               "</think>",
                                               "｜DSML｜",
                                               "<｜tool▁calls▁begin｜>",
                                               "<｜tool▁calls▁end｜>",
                                               "<｜tool▁call▁begin｜>",
                                               "<｜tool▁call▁end｜>",
                                               "<｜tool▁sep｜>",
                                               NULL};
    with_ids = chat_tokenizer((const char *[]){NULL}, false);
    without_ids = chat_tokenizer(text_markers, false);
    return 0;
}

static int free_all(void **state) {
    (void)state;
    hd_tokenizer_free(with_ids);
    hd_tokenizer_free(without_ids);
    return 0;
}

/* ---- what an answer is taken for ---- */

struct text {
    char text[text_max];
    size_t n;
};

static void add(struct text *x, hd_str s) {
    assert_true(x->n + s.len < text_max);
    memcpy(x->text + x->n, s.ptr, s.len);
    x->n += s.len;
    x->text[x->n] = 0;
}

static void add_c(struct text *x, const char *s) { add(x, hd_str_of(s)); }

struct answer {
    struct text reasoning, content;
    struct {
        char name[600];
        struct text args;
    } call[call_max];
    int n_call;
    bool stopped;
};

static void clear(struct answer *a) {
    a->reasoning.n = a->content.n = 0;
    a->reasoning.text[0] = a->content.text[0] = 0;
    a->n_call = 0;
    a->stopped = false;
}

static void expect_call(struct answer *a, const char *name, const char *args) {
    snprintf(a->call[a->n_call].name, sizeof a->call[0].name, "%s", name);
    a->call[a->n_call].args.n = 0;
    add_c(&a->call[a->n_call++].args, args);
}

static void take(struct answer *a, hd_text_out o) {
    assert_true(hd_utf8_is_valid(o.reasoning.ptr, o.reasoning.len));
    assert_true(hd_utf8_is_valid(o.content.ptr, o.content.len));
    assert_true(o.n_out <= o.n_in);
    if (o.reasoning.len > 0) assert_int_equal(a->content.n + (size_t)a->n_call, 0);
    if (o.content.len > 0) assert_int_equal(a->n_call, 0);
    if (a->stopped) assert_int_equal(o.reasoning.len + o.content.len + o.n_call, 0);
    add(&a->reasoning, o.reasoning);
    add(&a->content, o.content);
    for (size_t i = 0; i < o.n_call; i++) {
        const hd_call_delta *d = &o.call[i];
        assert_true(hd_utf8_is_valid(d->arguments.ptr, d->arguments.len));
        assert_int_equal(d->index, d->name.len > 0 ? a->n_call : a->n_call - 1);
        if (d->name.len > 0) {
            assert_true(a->n_call < call_max && d->name.len < sizeof a->call[0].name);
            memcpy(a->call[a->n_call].name, d->name.ptr, d->name.len);
            a->call[a->n_call].name[d->name.len] = 0;
            a->call[a->n_call].args.n = 0;
            a->call[a->n_call++].args.text[0] = 0;
        }
        assert_true(d->name.len + d->arguments.len > 0);
        add(&a->call[a->n_call - 1].args, d->arguments);
    }
    a->stopped = o.stopped;
}

static void same(const struct answer *found, const struct answer *want, const char *what) {
    if (strcmp(found->reasoning.text, want->reasoning.text) != 0)
        fail_msg("%s: reasoning [%s], expected [%s]", what, found->reasoning.text,
                 want->reasoning.text);
    if (strcmp(found->content.text, want->content.text) != 0)
        fail_msg("%s: content [%s], expected [%s]", what, found->content.text, want->content.text);
    if (found->n_call != want->n_call)
        fail_msg("%s: %d calls, expected %d", what, found->n_call, want->n_call);
    for (int i = 0; i < want->n_call; i++) {
        if (strcmp(found->call[i].name, want->call[i].name) != 0)
            fail_msg("%s: call %d is %s, expected %s", what, i, found->call[i].name,
                     want->call[i].name);
        if (strcmp(found->call[i].args.text, want->call[i].args.text) != 0)
            fail_msg("%s: call %d has arguments [%s], expected [%s]", what, i,
                     found->call[i].args.text, want->call[i].args.text);
    }
}

/* ---- an output, and its tokens ---- */

/* Text with places where a marker stands that is a token (where the tokenizer has it). */
struct output {
    struct text x;
    unsigned short token_len[text_max]; /* at the marker's first byte */
};

static void begin(struct output *o) { memset(o, 0, sizeof *o); }

/* Markup: markers in it become tokens; plain never does. */
static void plain(struct output *o, const char *s) { add_c(&o->x, s); }

static void markup(struct output *o, const char *s) {
    hd_ids ids = {0};
    hd_tokenizer_encode(with_ids, hd_str_of(s), true, &ids);
    for (size_t i = 0; i < ids.n; i++) {
        hd_str bytes = hd_tokenizer_bytes(with_ids, ids.id[i]);
        if (hd_tokenizer_is_added(with_ids, ids.id[i]))
            o->token_len[o->x.n] = (unsigned short)bytes.len;
        add(&o->x, bytes);
    }
    hd_ids_fini(&ids);
}

/* The tokens of bytes [from, to): whole markers as theirs, the text between encoded. */
static void tokens(const hd_tokenizer *t, const struct output *o, size_t from, size_t to,
                   hd_ids *ids) {
    size_t at = from;
    for (size_t i = from; i < to;) {
        size_t n = o->token_len[i];
        int32_t id = n && i + n <= to ? hd_tokenizer_find(t, (hd_str){o->x.text + i, n}) : -1;
        if (id < 0 || !hd_tokenizer_is_added(t, id)) {
            i++;
            continue;
        }
        hd_tokenizer_encode(t, (hd_str){o->x.text + at, i - at}, false, ids);
        hd_ids_add(ids, id);
        at = i += n;
    }
    hd_tokenizer_encode(t, (hd_str){o->x.text + at, to - at}, false, ids);
}

static bool is_inside_token(const hd_tokenizer *t, const struct output *o, size_t at) {
    for (size_t i = at > 64 ? at - 64 : 0; i < at; i++)
        if (o->token_len[i] && i + o->token_len[i] > at &&
            hd_tokenizer_is_added(t,
                                  hd_tokenizer_find(t, (hd_str){o->x.text + i, o->token_len[i]})))
            return true;
    return false;
}

static bool is_cut; /* how answers end */

static void feed(const hd_tokenizer *t, const char *row, const hd_text_stream_options *o,
                 const hd_ids *ids, struct answer *found) {
    hd_stream *s;
    clear(found);
    assert_ok(hd_stream_new(t, hd_chat_by_name(row), o, &s));
    for (size_t i = 0; i < ids->n; i++) take(found, hd_stream_feed(s, ids->id[i]));
    take(found, hd_stream_end(s, is_cut));
    take(found, hd_stream_feed(s, 'x'));
    hd_stream_free(s);
}

/* As one piece, in two at every point, and in many at random. */
static void every_split(const hd_tokenizer *t, const char *row, const struct output *o,
                        const hd_text_stream_options *so, const struct answer *want) {
    static struct answer found;
    test_rng rng = {o->x.n};
    char what[64];
    for (size_t cut = 0; cut <= o->x.n; cut++) {
        hd_ids ids = {0};
        if (is_inside_token(t, o, cut)) continue;
        tokens(t, o, 0, cut, &ids);
        tokens(t, o, cut, o->x.n, &ids);
        feed(t, row, so, &ids, &found);
        snprintf(what, sizeof what, "%s, cut at %zu", row, cut);
        same(&found, want, what);
        hd_ids_fini(&ids);
    }
    for (int round = 0; round < 20; round++) {
        hd_ids ids = {0};
        for (size_t at = 0, to; at < o->x.n; at = to) {
            to = at + (size_t)rng_int(&rng, 1, round == 0 ? 1 : 12);
            if (to > o->x.n) to = o->x.n;
            while (is_inside_token(t, o, to)) to++;
            tokens(t, o, at, to, &ids);
        }
        feed(t, row, so, &ids, &found);
        snprintf(what, sizeof what, "%s, random cuts %d", row, round);
        same(&found, want, what);
        hd_ids_fini(&ids);
    }
}

/* Cut off after every token and after every byte: what came is the beginning of what would have. */
static void every_end(const hd_tokenizer *t, const char *row, const struct output *o,
                      const hd_text_stream_options *so, const struct answer *want) {
    static struct answer found;
    for (size_t n = 0; n <= o->x.n; n++) {
        hd_ids ids = {0};
        if (is_inside_token(t, o, n)) continue;
        tokens(t, o, 0, n, &ids);
        is_cut = true;
        feed(t, row, so, &ids, &found);
        is_cut = false;
        hd_ids_fini(&ids);
        if (strncmp(found.reasoning.text, want->reasoning.text, found.reasoning.n) != 0 &&
            found.reasoning.n <= want->reasoning.n)
            fail_msg("cut off at %zu: reasoning [%s]", n, found.reasoning.text);
        if (strstr(found.content.text, "｜") && !strstr(want->content.text, "｜"))
            fail_msg("cut off at %zu: a marker leaks: [%s]", n, found.content.text);
        if (strstr(found.reasoning.text, "｜") && !strstr(want->reasoning.text, "｜"))
            fail_msg("cut off at %zu: a marker leaks: [%s]", n, found.reasoning.text);
        assert_true(found.n_call <= want->n_call);
        for (int i = 0; i < found.n_call; i++) {
            assert_string_equal(found.call[i].name, want->call[i].name);
            assert_memory_equal(found.call[i].args.text, want->call[i].args.text,
                                found.call[i].args.n);
            if (i + 1 < found.n_call)
                assert_string_equal(found.call[i].args.text, want->call[i].args.text);
        }
    }
}

/* ---- random answers ---- */

static const char *const words[] = {"Paris",
                                    "a b",
                                    "中文",
                                    "\xF0\x9F\x98\x80",
                                    "",
                                    "x\ny",
                                    "<",
                                    "</",
                                    "\"",
                                    "\\",
                                    "<｜tool▁call▁end｜>",
                                    "```",
                                    "}",
                                    "{\"k\": [",
                                    ":",
                                    "é",
                                    "</think>",
                                    "\t",
                                    "0",
                                    "null",
                                    "<｜tool▁calls▁begin｜>",
                                    "</｜DSML｜invoke>",
                                    "<｜DSML｜invoke name=\"x\">",
                                    "</｜DSML｜param",
                                    "<｜DSML｜"};

static const char *word(test_rng *rng) {
    return words[rng_int(rng, 0, (int)HD_COUNT_OF(words) - 1)];
}

static json_t *random_value(test_rng *rng, int depth) {
    int kind = rng_int(rng, 0, depth > 0 ? 6 : 4);
    char s[128];
    if (kind == 0) return json_integer(rng_int(rng, -1000, 1000));
    if (kind == 1) return rng_chance(rng, 0.5) ? json_true() : json_null();
    if (kind <= 4) {
        snprintf(s, sizeof s, "%s%s", word(rng), word(rng));
        return json_string(s);
    }
    json_t *v = kind == 5 ? json_array() : json_object();
    for (int n = rng_int(rng, 0, 3); n > 0; n--) {
        snprintf(s, sizeof s, "k%d", n);
        if (kind == 5)
            json_array_append_new(v, random_value(rng, depth - 1));
        else
            json_object_set_new(v, s, random_value(rng, depth - 1));
    }
    return v;
}

static json_t *random_args(test_rng *rng) {
    json_t *v = json_object();
    char key[32];
    for (int n = rng_int(rng, 0, 3); n > 0; n--) {
        snprintf(key, sizeof key, "%s%d", rng_chance(rng, 0.5) ? "key" : "名", n);
        json_object_set_new(v, key, random_value(rng, 3));
    }
    return v;
}

/* How a format writes an answer's calls. */
struct format {
    const char *row;
    void (*write)(struct output *o, int n_call, char *const name[], json_t *const args[]);
};

static char *json_text(const json_t *v) { return json_dumps(v, JSON_ENCODE_ANY); }

static void write_v31(struct output *o, int n_call, char *const name[], json_t *const args[]) {
    markup(o, "<｜tool▁calls▁begin｜>");
    for (int i = 0; i < n_call; i++) {
        char *text = json_text(args[i]);
        markup(o, "<｜tool▁call▁begin｜>");
        plain(o, name[i]);
        markup(o, "<｜tool▁sep｜>");
        plain(o, text);
        markup(o, "<｜tool▁call▁end｜>");
        free(text);
    }
    markup(o, "<｜tool▁calls▁end｜>");
}

static void write_v3(struct output *o, int n_call, char *const name[], json_t *const args[]) {
    markup(o, "<｜tool▁calls▁begin｜>");
    for (int i = 0; i < n_call; i++) {
        char *text = json_text(args[i]);
        markup(o, i ? "\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>"
                    : "<｜tool▁call▁begin｜>function<｜tool▁sep｜>");
        plain(o, name[i]);
        plain(o, "\n```json\n");
        plain(o, text);
        markup(o, "\n```<｜tool▁call▁end｜>");
        free(text);
    }
    markup(o, "<｜tool▁calls▁end｜>");
}

/* block: its name; space: what stands before names in tags. */
static void write_dsml(struct output *o, int n_call, char *const name[], json_t *const args[],
                       const char *block, const char *space) {
    char tag[400];
    const char *key;
    json_t *value;
    snprintf(tag, sizeof tag, "<｜DSML｜%s%s>\n", space, block);
    markup(o, tag);
    for (int i = 0; i < n_call; i++) {
        snprintf(tag, sizeof tag, "<｜DSML｜%sinvoke name=\"%s\">\n", space, name[i]);
        markup(o, tag);
        if (json_object_size(args[i]) == 0) plain(o, "\n");
        json_object_foreach(args[i], key, value) {
            char *text =
                json_is_string(value) ? strdup(json_string_value(value)) : json_text(value);
            snprintf(tag, sizeof tag, "<｜DSML｜%sparameter name=\"%s\" string=\"%s\">", space, key,
                     json_is_string(value) ? "true" : "false");
            markup(o, tag);
            plain(o, text);
            snprintf(tag, sizeof tag, "</｜DSML｜%sparameter>\n", space);
            markup(o, tag);
            free(text);
        }
        snprintf(tag, sizeof tag, "</｜DSML｜%sinvoke>\n", space);
        markup(o, tag);
    }
    snprintf(tag, sizeof tag, "</｜DSML｜%s%s>", space, block);
    markup(o, tag);
}

static void write_v32(struct output *o, int n_call, char *const name[], json_t *const args[]) {
    write_dsml(o, n_call, name, args, "function_calls", "");
}
static void write_v4(struct output *o, int n_call, char *const name[], json_t *const args[]) {
    write_dsml(o, n_call, name, args, "tool_calls", "");
}
static void write_v41(struct output *o, int n_call, char *const name[], json_t *const args[]) {
    write_dsml(o, n_call, name, args, "calls", " ");
}

static const struct format formats[] = {{"deepseek_v3.1", write_v31}, {"deepseek_v3", write_v3},
                                        {"deepseek_r1", write_v3},    {"deepseek_v3.2", write_v32},
                                        {"deepseek_v4", write_v4},    {"deepseek_v4.1", write_v41}};

static void random_answer(uint64_t seed, const struct format *f, struct output *o,
                          struct answer *want, hd_text_stream_options *so) {
    test_rng rng = {seed};
    char *name[4];
    json_t *args[4];
    int n_call = rng_int(&rng, 0, 4);
    begin(o);
    clear(want);
    so->in_reasoning = rng_chance(&rng, 0.4);
    if (so->in_reasoning) {
        for (int n = rng_int(&rng, 0, 4); n > 0; n--) {
            const char *w = word(&rng);
            if (strstr(w, "think") || strstr(w, "｜") || strchr(w, '<')) continue;
            plain(o, w);
            add_c(&want->reasoning, w);
        }
        markup(o, "</think>");
    }
    if (rng_chance(&rng, 0.6)) {
        plain(o, "Let me see: 中 < 3.");
        add_c(&want->content, "Let me see: 中 < 3.");
        if (n_call > 0 && rng_chance(&rng, 0.5)) plain(o, " \n\n");
    }
    for (int i = 0; i < n_call; i++) {
        char s[64];
        snprintf(s, sizeof s, "%s_%d", rng_chance(&rng, 0.2) ? "function" : "get", i);
        name[i] = strdup(s);
        args[i] = random_args(&rng);
        char *text = json_text(args[i]);
        expect_call(want, s, text);
        free(text);
    }
    if (n_call > 0) f->write(o, n_call, name, args);
    for (int i = 0; i < n_call; i++) {
        free(name[i]);
        json_decref(args[i]);
    }
}

static void any_grouping(void **state) {
    (void)state;
    static struct output o;
    static struct answer want;
    for (uint64_t seed = 1; seed <= 6; seed++)
        for (size_t f = 0; f < HD_COUNT_OF(formats); f++) {
            hd_text_stream_options so = {.parse_tools = true};
            random_answer(seed, &formats[f], &o, &want, &so);
            every_split(with_ids, formats[f].row, &o, &so, &want);
            every_split(without_ids, formats[f].row, &o, &so, &want);
        }
}

static void cut_off(void **state) {
    (void)state;
    static struct output o;
    static struct answer want;
    for (uint64_t seed = 1; seed <= 10; seed++)
        for (size_t f = 0; f < HD_COUNT_OF(formats); f++) {
            hd_text_stream_options so = {.parse_tools = true};
            random_answer(seed, &formats[f], &o, &want, &so);
            every_end(with_ids, formats[f].row, &o, &so, &want);
            every_end(without_ids, formats[f].row, &o, &so, &want);
        }
}

/* ---- single behaviours ---- */

/* The answer that markup, as the row reads it, is taken for; compared with want in every split. */
static void reads(const char *row, const char *text, hd_text_stream_options so,
                  const struct answer *want) {
    static struct output o;
    begin(&o);
    markup(&o, text);
    so.parse_tools = true;
    every_split(with_ids, row, &o, &so, want);
    every_split(without_ids, row, &o, &so, want);
}

static struct answer want;
static const hd_text_stream_options none;

#define CALLS "<｜tool▁calls▁begin｜>"
#define CALLS_END "<｜tool▁calls▁end｜>"
#define CALL "<｜tool▁call▁begin｜>"
#define CALL_END "<｜tool▁call▁end｜>"
#define SEP "<｜tool▁sep｜>"

static void slips_in_tokens(void **state) {
    (void)state;
    static const char *const two[] = {
        CALLS CALL "f" SEP "{\"a\": 1}" CALL_END CALL "g" SEP "{}" CALL_END CALLS_END,
        CALLS CALL "f" SEP "{\"a\": 1}" CALL_END "\n" CALL "g" SEP "{}",            /* no closers */
        CALL "f" SEP "{\"a\": 1}" CALL "g" SEP CALLS_END,                           /* no opener */
        CALLS CALL " f\n" SEP " {\"a\": 1}\n" CALL_END "and" CALL "g" CALL_END "x", /* text */
        CALLS CALL "function" SEP "f\n{\"a\": 1}" CALL_END CALL "function" SEP "g" CALL_END,
        CALLS CALL "function" SEP "f\n```json\n{\"a\": 1}" CALL "function" SEP "g\n```json\n```",
        CALLS CALL "f" SEP "```json\n{\"a\": 1}\n```" CALL_END CALLS_END CALLS CALL "g" SEP "{}",
    };
    clear(&want);
    expect_call(&want, "f", "{\"a\": 1}");
    expect_call(&want, "g", "{}");
    for (size_t i = 0; i < HD_COUNT_OF(two); i++) {
        reads("deepseek_v3.1", two[i], none, &want);
    }
    clear(&want);
    expect_call(&want, "function", "{}");
    reads("deepseek_v3.1", CALLS CALL "function" SEP "{}" CALL_END CALLS_END, none, &want);
    clear(&want);
    expect_call(&want, "f", "[1, 2]"); /* no object: as it is */
    reads("deepseek_v3.1", CALLS CALL "f" SEP "[1, 2] \n" CALL_END CALLS_END, none, &want);
    clear(&want); /* without the separator, in either form */
    expect_call(&want, "f", "{\"a\": 1}");
    expect_call(&want, "g", "{}");
    reads("deepseek_v3", CALLS CALL "f\n```json\n{\"a\": 1}\n```" CALL_END CALL "g{}" CALLS_END,
          none, &want);
    reads("deepseek_v3",
          CALLS CALL "function\nf\r\n```json\r\n{\"a\": 1}\r\n```" CALL_END CALL "g```json\n{}```",
          none, &want);
    clear(&want); /* ended after the name */
    expect_call(&want, "f", "{}");
    reads("deepseek_v3.1", CALLS CALL "f" SEP, none, &want);
    reads("deepseek_v3.1", CALLS CALL "f" SEP "\n", none, &want);
    reads("deepseek_v3", CALLS CALL "function" SEP "f", none, &want);
    is_cut = true; /* cut off there: a name that the separator ended is one */
    want.call[0].args.n = 0;
    want.call[0].args.text[0] = 0;
    reads("deepseek_v3.1", CALLS CALL "f" SEP, none, &want);
    clear(&want);
    reads("deepseek_v3.1", CALLS CALL "f", none, &want);
    reads("deepseek_v3", CALLS CALL "function" SEP "f", none, &want);
    is_cut = false;
    clear(&want); /* no name, no call */
    reads("deepseek_v3.1", CALLS CALL SEP "{}" CALL_END CALL " " SEP CALL_END CALLS_END, none,
          &want);
    char longer[1000];
    snprintf(longer, sizeof longer, CALLS CALL "%0300d" SEP "{}" CALL_END, 0);
    reads("deepseek_v3.1", longer, none, &want);
}

#define D "<｜DSML｜"
#define E "</｜DSML｜"
#define PARAM(name, string, value)                                                                 \
    D "parameter name=\"" name "\" string=\"" string "\">" value E "parameter>\n"
#define ONE(params) D "tool_calls>\n" D "invoke name=\"f\">\n" params E "invoke>\n" E "tool_calls>"

static const char f_schema[] = "{\"properties\": {\"s\": {\"type\": \"string\"}, \"t\": {\"type\": "
                               "[\"null\", \"string\"]}, \"n\": {\"type\": [\"integer\", "
                               "\"string\"]}}}";
static const hd_tool f_tool = {.name = {"f", 1}, .parameters = {f_schema, sizeof f_schema - 1}};

/* The arguments of the one call of f. */
static void dsml_args(const char *text, const char *args) {
    const hd_text_stream_options so = {.tool = &f_tool, .n_tool = 1};
    clear(&want);
    expect_call(&want, "f", args);
    reads("deepseek_v4", text, so, &want);
    reads("deepseek_v3.2", text, so, &want);
}

static void slips_in_dsml(void **state) {
    (void)state;
    dsml_args(ONE(PARAM("a", "true", "\n x\"\\") PARAM("b", "false", " [1,  2]\n")),
              "{\"a\": \"\\n x\\\"\\\\\", \"b\": [1,  2]}");
    dsml_args(ONE(PARAM("a", "false", "True") PARAM("b", "false", "None")),
              "{\"a\": true, \"b\": null}");
    dsml_args(ONE(PARAM("a", "false", "Paris, \"F\"") PARAM("b", "false", "")),
              "{\"a\": \"Paris, \\\"F\\\"\", \"b\": \"\"}"); /* no JSON: a string */
    dsml_args(ONE(D "parameter name=\"s\">12" E "parameter>" D "parameter name=\"n\">12" E
                    "parameter>" D "parameter name=\"t\">null" E "parameter>" D
                    "parameter name=\"z\">x" E "parameter>"),
              "{\"s\": \"12\", \"n\": 12, \"t\": \"null\", \"z\": \"x\"}"); /* by the schema */
    dsml_args(ONE(PARAM("a", "true", "1") PARAM("a", "true", "2") PARAM("b", "false", "3")),
              "{\"a\": \"1\", \"b\": 3}"); /* a repeated one */
    dsml_args(ONE(PARAM("arguments", "false", " {\"s\": \"x\", \"n\": {}} ")),
              "{\"s\": \"x\", \"n\": {}}");
    dsml_args(ONE(PARAM("input", "true", "{\"s\": 1}") PARAM("n", "false", "2")), "{\"s\": 1}");
    dsml_args(ONE(PARAM("arguments", "true", "{}")), "{}");
    dsml_args(ONE(PARAM("input", "true", "{s}")), "{\"input\": \"{s}\"}");
    dsml_args(ONE(PARAM("n", "false", "2") PARAM("input", "true", "{}")),
              "{\"n\": 2, \"input\": \"{}\"}");
    dsml_args(ONE(""), "{}");
    dsml_args(ONE("\n and text "), "{}");
    dsml_args(
        ONE(D "parameter string=\"true\">no name" E "parameter>" D "other name=\"x\">y" E "other>"),
        "{}");
    dsml_args(D " calls>" D " invoke name=\"f\">" D " parameter name=\"n\" string=\"false\">1" E
                " parameter>" E " invoke>" E " calls>",
              "{\"n\": 1}");
    dsml_args(D "invoke name=\"f\">" PARAM("n", "false", "1"), "{\"n\": 1}"); /* no block */
    dsml_args("\n\n" ONE(PARAM("n", "false", "1")) "\n\nThat was it.", "{\"n\": 1}");
    clear(&want); /* cut off inside a value: it stays open */
    expect_call(&want, "f", "{\"a\": [1, 2");
    reads("deepseek_v4",
          D "tool_calls>" D "invoke name=\"f\">" D "parameter name=\"a\" string=\"false\">[1, 2",
          none, &want);
    clear(&want);
    expect_call(&want, "f", "{\"a\": \"x");
    reads("deepseek_v4",
          D "tool_calls>" D "invoke name=\"f\">" D "parameter name=\"a\" string=\"true\">x", none,
          &want);
    is_cut = true; /* between parameters: there may be more of them */
    dsml_args(D "invoke name=\"f\">" PARAM("n", "false", "1"), "{\"n\": 1");
    dsml_args(D "invoke name=\"f\">", "");
    is_cut = false;
    dsml_args(D "invoke name=\"f\">" PARAM("n", "false", "1") E "inv", "{\"n\": 1}");
    clear(&want); /* two, the second after a missing closer; and no call without a name */
    expect_call(&want, "f", "{}");
    expect_call(&want, "g", "{\"arguments\": {}}");
    reads("deepseek_v4",
          D "tool_calls>" D "invoke name=\"f\">" D
            "invoke name=\"g\">" PARAM("arguments", "false", "{}") E
          "invoke>" D "invoke>" PARAM("x", "true", "y") E "invoke>",
          (hd_text_stream_options){.tool = &f_tool, .n_tool = 1}, &want);
}

/* What is no tag of a call is text, but for the marker. */
static void text_about_dsml(void **state) {
    (void)state;
    static const struct {
        const char *text, *content;
    } rows[] = {
        {"a \n" D "thing> b", "a \nthing> b"},
        {"The " D " marker begins tags.\nIt is one token",
         "The  marker begins tags.\nIt is one token"},
        {D D "invoked " E "call " D "  calls", "invoked call   calls"},
        {"a" E "tool_calls> b" E "invoke>c", "a bc"}, /* closers of nothing */
        {"x " D "par", "x"},                          /* cut off */
        {"x " D, "x"},
        {"if a </", "if a </"},
        {"if a <", "if a <"},
        {"a <</", "a <</"},
    };
    for (size_t i = 0; i < HD_COUNT_OF(rows); i++) {
        clear(&want);
        add_c(&want.content, rows[i].content);
        reads("deepseek_v4", rows[i].text, none, &want);
        reads("deepseek_v3.2", rows[i].text, none, &want);
    }
    /* The token alone is none either: what was left of a tag before it does not become one. */
    static struct output o;
    const hd_text_stream_options so = {.parse_tools = true};
    begin(&o);
    markup(&o, "a <" E "invoke>｜DSML｜invoke> </</think>｜DSML｜ ｜｜DSML｜。");
    clear(&want);
    add_c(&want.content, "a <invoke> </ ｜。");
    every_split(with_ids, "deepseek_v4", &o, &so, &want);
}

/* A value of more than 64 KiB that is no string is passed on unchecked, if it begins as JSON does.
 */
static void long_values(void **state) {
    (void)state;
    enum { n_value = HD_TOOL_VALUE_MAX + 1000 };
    static char text[n_value + 400], expected[n_value + 40];
    hd_text_stream_options so = {.parse_tools = true};
    for (int kind = 0; kind < 3; kind++) {
        bool is_string = kind > 0;
        char byte = kind == 2 ? 'x' : '7';
        hd_stream *s;
        hd_ids ids = {0};
        hd_buf args;
        size_t n = (size_t)snprintf(text, sizeof text,
                                    D "tool_calls>" D "invoke name=\"f\">" D
                                      "parameter name=\"a\" string=\"%s\">",
                                    kind == 1 ? "true" : "false");
        memset(text + n, byte, n_value);
        snprintf(text + n + n_value, 200, E "parameter>" E "invoke>" E "tool_calls>");
        n = (size_t)snprintf(expected, sizeof expected, is_string ? "{\"a\": \"" : "{\"a\": ");
        memset(expected + n, byte, n_value);
        snprintf(expected + n + n_value, 8, "%s", is_string ? "\"}" : "}");
        hd_buf_init(&args, 1 << 20);
        hd_tokenizer_encode(with_ids, hd_str_of(text), true, &ids);
        assert_ok(hd_stream_new(with_ids, hd_chat_by_name("deepseek_v4"), &so, &s));
        for (size_t i = 0; i <= ids.n; i++) {
            hd_text_out o = i < ids.n ? hd_stream_feed(s, ids.id[i]) : hd_stream_end(s, false);
            for (size_t k = 0; k < o.n_call; k++)
                hd_buf_add(&args, o.call[k].arguments.ptr, o.call[k].arguments.len);
        }
        assert_string_equal(args.ptr, expected);
        hd_stream_free(s);
        hd_buf_fini(&args);
        hd_ids_fini(&ids);
    }
}

/* From a tokenizer.json and from a GGUF whose markers are all of type control: the same. */
static void control_tokens_too(void **state) {
    (void)state;
    static struct output o;
    static struct answer w;
    hd_tokenizer *t = chat_tokenizer((const char *[]){NULL}, true);
    for (uint64_t seed = 1; seed <= 20; seed++)
        for (size_t f = 0; f < HD_COUNT_OF(formats); f++) {
            static struct answer found;
            hd_text_stream_options so = {.parse_tools = true};
            hd_ids ids = {0};
            random_answer(seed, &formats[f], &o, &w, &so);
            tokens(t, &o, 0, o.x.n, &ids);
            feed(t, formats[f].row, &so, &ids, &found);
            same(&found, &w, formats[f].row);
            hd_ids_fini(&ids);
        }
    for (int32_t id = 0; id < (int32_t)hd_tokenizer_size(t); id++)
        assert_int_equal(hd_tokenizer_is_special(t, id), hd_tokenizer_is_special(with_ids, id));
    hd_tokenizer_free(t);
}

/* What encodings have around the texts. */
static void around_the_texts(void **state) {
    (void)state;
    clear(&want);
    add_c(&want.reasoning, "a\n\nb");
    add_c(&want.content, "c\n\n");
    reads("deepseek_r1", "a\n\nb\n\n</think>\n\nc\n\n",
          (hd_text_stream_options){.in_reasoning = true}, &want);
    clear(&want);
    add_c(&want.content, "\n\nc"); /* no reasoning before it */
    reads("deepseek_r1", "\n\nc", none, &want);
    clear(&want);
    add_c(&want.reasoning, "a\n");
    add_c(&want.content, "\nc"); /* V3.1: exactly what it wrote */
    reads("deepseek_v3.1", "a\n</think>\nc", (hd_text_stream_options){.in_reasoning = true}, &want);
    static const char *const text[] = {" Hi there", "Hi there"};
    for (int strips = 0; strips < 2; strips++) {
        hd_stream *s;
        hd_ids ids = {0};
        hd_text_stream_options so = {.strip_space = strips};
        hd_tokenizer_encode(with_ids, hd_str_of(text[0]), false, &ids);
        assert_ok(hd_stream_new(with_ids, hd_chat_by_name("deepseek_v2"), &so, &s));
        clear(&want);
        for (size_t i = 0; i < ids.n; i++) take(&want, hd_stream_feed(s, ids.id[i]));
        take(&want, hd_stream_end(s, false));
        assert_string_equal(want.content.text, text[strips]);
        hd_stream_free(s);
        hd_ids_fini(&ids);
    }
}

static void a_block_counts_in_content_only(void **state) {
    (void)state;
    const hd_text_stream_options thinking = {.in_reasoning = true};
    clear(&want);
    add_c(&want.reasoning, "I call f{} now");
    add_c(&want.content, "So");
    expect_call(&want, "g", "{}");
    static struct output o;
    begin(&o);
    hd_text_stream_options so = thinking;
    so.parse_tools = true;
    markup(&o, "I call " CALLS CALL "f" SEP "{}" CALL_END CALLS_END " now</think>So\n" CALLS CALL
               "g" SEP "{}" CALL_END CALLS_END);
    every_split(with_ids, "deepseek_v3.1", &o, &so, &want);
    clear(&want); /* the texts of markers, where they are tokens, are text */
    add_c(&want.content, "Write " CALL " then");
    begin(&o);
    plain(&o, "Write " CALL " then");
    so.in_reasoning = false;
    every_split(with_ids, "deepseek_v3.1", &o, &so, &want);
    clear(&want); /* and stray tokens are no text */
    add_c(&want.content, "It is 4.\n\n5");
    reads("deepseek_v3.1", "It is 4" SEP ".\n\n" CALL_END "5", none, &want);
    clear(&want);
    add_c(&want.content, "no call \n ");
    reads("deepseek_v3.1", "no call \n ", none, &want);
}

static void bounds(void **state) {
    (void)state;
    const char *text = "a" CALLS CALL "f" SEP "{}" CALL_END CALL "g" SEP "{}" CALL_END CALLS_END;
    clear(&want);
    add_c(&want.content, "a");
    expect_call(&want, "f", "{}");
    reads("deepseek_v3.1", text, (hd_text_stream_options){.max_call = 1}, &want);
    reads("deepseek_v4",
          "a" D "tool_calls>" D "invoke name=\"f\">" E "invoke>" D "invoke name=\"g\">",
          (hd_text_stream_options){.max_call = 1}, &want);
    reads("deepseek_v4", "a" D "invoke name=\"f\">" D "invoke name=\"g\">" PARAM("x", "true", "y"),
          (hd_text_stream_options){.max_call = 1}, &want); /* without a closer */
    expect_call(&want, "g", "{}");
    reads("deepseek_v3.1", text, (hd_text_stream_options){.max_call = 2}, &want);
    /* White space before a block is held back, but not without end. */
    static struct output o;
    static struct answer found;
    hd_text_stream_options so = {.parse_tools = true};
    hd_stream *s;
    begin(&o);
    for (int i = 0; i < 400; i++) plain(&o, " ");
    markup(&o, CALLS CALL "f" SEP "{}");
    hd_ids ids = {0};
    tokens(with_ids, &o, 0, o.x.n, &ids);
    feed(with_ids, "deepseek_v3.1", &so, &ids, &found);
    assert_int_equal(found.content.n, 400 - 255);
    assert_int_equal(found.n_call, 1);
    hd_ids_fini(&ids);
    assert_int_equal(hd_stream_new(with_ids, NULL, &so, &s), HD_E_UNSUPPORTED);
    assert_string_equal(hd_error_text(), "chat encoding none has no tools");
}

/* A stop string ends the text wherever it stands. */
static void stop_strings(void **state) {
    (void)state;
    hd_str stop = hd_str_of("STOP");
    const hd_text_stream_options so = {.stop = &stop, .n_stop = 1};
    clear(&want);
    add_c(&want.content, "a");
    expect_call(&want, "f", "{\"a\": \"x");
    want.stopped = true;
    reads("deepseek_v3.1", "a\n" CALLS CALL "f" SEP "{\"a\": \"xSTOP\"}" CALL_END CALLS_END, so,
          &want);
    clear(&want);
    add_c(&want.content, "a\n");
    reads("deepseek_v3.1", "a\nSTOP" CALLS CALL "f" SEP "{}" CALL_END CALLS_END, so, &want);
    clear(&want); /* between parameters */
    expect_call(&want, "f", "{\"n\": 1");
    reads("deepseek_v4", D "invoke name=\"f\">" PARAM("n", "false", "1") "STOP" E "invoke>", so,
          &want);
    clear(&want); /* what came before it might have begun a marker */
    add_c(&want.content, "<b>a </");
    reads("deepseek_v4", "<b>a </STOP", so, &want);
    /* The forced beginning of a call is the prompt's: nothing in it stops. */
    clear(&want);
    expect_call(&want, "STOP", "{\"a\": 1}");
    hd_ids ids = {0};
    static struct output o;
    static struct answer found;
    begin(&o);
    markup(&o, CALLS CALL "STOP" SEP);
    hd_text_stream_options forced = so;
    tokens(with_ids, &o, 0, o.x.n, &ids);
    forced.n_forced = (int)ids.n;
    forced.parse_tools = true;
    size_t n = o.x.n;
    markup(&o, "{\"a\": 1}" CALL_END CALLS_END);
    tokens(with_ids, &o, n, o.x.n, &ids);
    feed(with_ids, "deepseek_v3.1", &forced, &ids, &found);
    same(&found, &want, "forced");
    hd_ids_fini(&ids);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_grouping),
        cmocka_unit_test(cut_off),
        cmocka_unit_test(slips_in_tokens),
        cmocka_unit_test(slips_in_dsml),
        cmocka_unit_test(text_about_dsml),
        cmocka_unit_test(long_values),
        cmocka_unit_test(control_tokens_too),
        cmocka_unit_test(around_the_texts),
        cmocka_unit_test(a_block_counts_in_content_only),
        cmocka_unit_test(bounds),
        cmocka_unit_test(stop_strings),
    };
    return cmocka_run_group_tests(tests, load_all, free_all);
}
