/* Calls in DSML: V3.2, V4 and V4.1. Tags are gathered up to their ">", then understood; a
 * parameter's text is passed on at once where it is a string, else held until it can be judged. */
#include "text/tool_parser_impl.h"

#include "base/mem.h"
#include "text/json_text.h"
#include "text/markers.h"

#include <string.h>
#include <xxhash.h>

#define DSML HD_DSML

void hd_tool_dsml_init(hd_tool_parser *p, const hd_tokenizer *t) {
    static const char *const value_end[] = {"</" DSML "parameter>", "</" DSML " parameter>"};
    hd_tool_add_marker(p, t, "<" DSML, DSML, HD_MARK_TAG);
    hd_tool_add_marker(p, t, "</" DSML, DSML, HD_MARK_TAG_END);
    for (size_t i = 0; i < HD_COUNT_OF(value_end); i++)
        hd_tool_add_marker(p, t, value_end[i], DSML, HD_MARK_VALUE_END);
    hd_buf_init(&p->dsml.tag, HD_TOOL_HELD_MAX);
    hd_buf_reserve(&p->dsml.tag, HD_TOOL_HELD_MAX);
    hd_buf_init(&p->dsml.key, 6 * HD_TOOL_HELD_MAX);
    hd_buf_reserve(&p->dsml.key, 6 * HD_TOOL_HELD_MAX);
    hd_buf_init(&p->dsml.value, HD_TOOL_VALUE_MAX);
    hd_buf_reserve(&p->dsml.value, HD_TOOL_VALUE_MAX);
}

void hd_tool_dsml_fini(hd_tool_parser *p) {
    hd_buf_fini(&p->dsml.tag);
    hd_buf_fini(&p->dsml.key);
    hd_buf_fini(&p->dsml.value);
}

static const char *const blocks[] = {"function_calls", "tool_calls", "calls"};

static bool ends_word(char c) { return c == '>' || hd_tool_is_space(c); }

bool hd_tool_dsml_is_tag(const hd_tool_parser *p, size_t at, bool *may) {
    static const char *const others[] = {"invoke", "parameter"};
    at += at < p->n_held && p->held[at] == ' ';
    size_t n_left = p->n_held - at;
    *may = false;
    for (size_t i = 0; i < HD_COUNT_OF(blocks) + HD_COUNT_OF(others); i++) {
        const char *word = i < HD_COUNT_OF(blocks) ? blocks[i] : others[i - HD_COUNT_OF(blocks)];
        size_t n = strlen(word);
        if (memcmp(p->held + at, word, n_left < n ? n_left : n) != 0) continue;
        if (n_left > n && ends_word(p->held[at + n])) return true;
        *may |= n_left <= n;
    }
    return false;
}

/* ---- schemas ---- */

static const json_t *properties_of(const hd_tool_parser *p, hd_str name) {
    for (size_t i = 0; i < p->n_tool; i++)
        if (hd_str_eq_c(name, p->tool[i].name))
            return json_object_get(p->tool[i].parameters, "properties");
    return NULL;
}

/* Whether a parameter takes strings and nothing else; JSON null besides. */
static bool takes_strings(const json_t *schema) {
    const json_t *type = json_object_get(schema, "type"), *one;
    size_t i;
    bool has_string = false;
    if (json_is_string(type)) return strcmp(json_string_value(type), "string") == 0;
    json_array_foreach(type, i, one) {
        const char *s = json_string_value(one);
        if (s && strcmp(s, "string") == 0)
            has_string = true;
        else if (!s || strcmp(s, "null") != 0)
            return false;
    }
    return has_string;
}

/* ---- values ---- */

static void put_escaped(hd_tool_parser *p, hd_str text) {
    hd_buf *b = &p->dsml.key; /* its room is for one byte's escape, too; the key is out by now */
    for (size_t i = 0; i < text.len; i++) {
        hd_buf_clear(b);
        hd_json_escape(b, text.ptr[i]);
        hd_tool_put_args(p, b->ptr, b->len);
    }
}

/* `{"key": ` or `, "key": ` */
static void put_key(hd_tool_parser *p) {
    bool is_first = !p->has_args;
    hd_tool_put_args(p, is_first ? "{\"" : ", \"", is_first ? 2 : 3);
    hd_tool_put_args(p, p->dsml.key.ptr, p->dsml.key.len);
    hd_tool_put_args(p, "\": ", 3);
}

static void put_string(hd_tool_parser *p, hd_str text) {
    put_key(p);
    hd_tool_put_args(p, "\"", 1);
    put_escaped(p, text);
    hd_tool_put_args(p, "\"", 1);
}

/* A single parameter that holds all arguments: its members are theirs. */
static bool unwrap(hd_tool_parser *p, hd_str value) {
    if (!p->dsml.is_wrapper || value.len == 0 || *value.ptr != '{') return false;
    value.len--; /* its "}" is the call's */
    hd_str inside = hd_json_text_trim((hd_str){value.ptr + 1, value.len - 1});
    p->dsml.is_unwrapped = true;
    if (inside.len == 0) return true;
    hd_tool_put_args(p, "{", 1);
    hd_tool_put_args(p, inside.ptr, inside.len);
    return true;
}

/* What a model writes for JSON's words, out of habit. */
static const char *word_of(hd_str value) {
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    for (size_t i = 0; i < HD_COUNT_OF(words); i++)
        if (hd_str_eq_c(value, words[i][0])) return words[i][1];
    return NULL;
}

static void end_value(hd_tool_parser *p) {
    hd_tool_dsml *k = &p->dsml;
    hd_str text = hd_buf_str(&k->value), value = hd_json_text_trim(text);
    bool is_json = k->kind == HD_VALUE_JSON && hd_json_text_is_value(value);
    const char *word = word_of(value);
    p->place = HD_AT_INVOKE;
    if (k->kind == HD_VALUE_STRING) {
        hd_tool_put_args(p, "\"", 1);
    } else if (k->kind == HD_VALUE_JSON && !(is_json && unwrap(p, value))) {
        if (k->wants_string || (!is_json && !word)) {
            put_string(p, text);
        } else {
            put_key(p);
            hd_tool_put_args(p, is_json ? value.ptr : word, is_json ? value.len : strlen(word));
        }
    }
    k->kind = HD_VALUE_DROPPED;
}

/* Of a value that is too long to be checked, what its beginning tells. */
static bool may_be_json(hd_str value) {
    value = hd_json_text_trim(value);
    return value.len > 0 && strchr("{[\"-0123456789", *value.ptr) && *value.ptr;
}

static void take_value_byte(hd_tool_parser *p) {
    hd_tool_dsml *k = &p->dsml;
    char byte = p->held[0];
    hd_tool_drop(p, 0, 1);
    if (k->kind == HD_VALUE_JSON && k->value.len == HD_TOOL_VALUE_MAX) {
        hd_str text = hd_buf_str(&k->value);
        bool is_string = k->wants_string || !may_be_json(text);
        put_key(p);
        k->kind = is_string ? HD_VALUE_STRING : HD_VALUE_LONG;
        if (is_string) hd_tool_put_args(p, "\"", 1);
        if (is_string)
            put_escaped(p, text);
        else
            hd_tool_put_args(p, text.ptr, text.len);
    }
    if (k->kind == HD_VALUE_JSON) hd_buf_add(&k->value, &byte, 1);
    if (k->kind == HD_VALUE_STRING) put_escaped(p, (hd_str){&byte, 1});
    if (k->kind == HD_VALUE_LONG) hd_tool_put_args(p, &byte, 1);
}

/* ---- tags ---- */

/* The value of an attribute of the tag's text; ptr NULL: it has none. */
static hd_str attribute(hd_str tag, const char *name) {
    size_t n = strlen(name);
    for (size_t i = 0; i + n + 2 < tag.len; i++) {
        if (!hd_tool_is_space(tag.ptr[i]) || memcmp(tag.ptr + i + 1, name, n) != 0) continue;
        size_t at = i + 1 + n;
        if (at + 1 >= tag.len || tag.ptr[at] != '=' || tag.ptr[at + 1] != '"') continue;
        const char *from = tag.ptr + at + 2;
        const char *to = memchr(from, '"', tag.len - at - 2);
        return to ? (hd_str){from, (size_t)(to - from)} : (hd_str){NULL, 0};
    }
    return (hd_str){NULL, 0};
}

static bool is_repeated(hd_tool_dsml *k, hd_str name) {
    uint64_t hash = XXH3_64bits(name.ptr, name.len);
    for (size_t i = 0; i < k->n_seen; i++)
        if (k->seen[i] == hash) return true;
    if (k->n_seen == HD_TOOL_PARAM_MAX) return true; /* and no more than these */
    k->seen[k->n_seen++] = hash;
    return false;
}

static void begin_value(hd_tool_parser *p, hd_str tag) {
    hd_tool_dsml *k = &p->dsml;
    hd_str name = attribute(tag, "name"), string = attribute(tag, "string");
    p->place = HD_AT_VALUE;
    k->kind = HD_VALUE_DROPPED;
    if (!name.ptr || k->is_unwrapped || is_repeated(k, name)) return;
    const json_t *schema = json_object_getn(k->properties, name.ptr, name.len);
    k->wants_string = string.ptr ? hd_str_eq_c(string, "true") : takes_strings(schema);
    k->is_wrapper = !p->has_args && k->properties && !schema &&
                    (hd_str_eq_c(name, "arguments") || hd_str_eq_c(name, "input"));
    k->kind = k->wants_string && !k->is_wrapper ? HD_VALUE_STRING : HD_VALUE_JSON;
    hd_buf_clear(&k->value);
    hd_buf_clear(&k->key);
    for (size_t i = 0; i < name.len; i++) hd_json_escape(&k->key, name.ptr[i]);
    if (k->kind != HD_VALUE_STRING) return;
    put_key(p);
    hd_tool_put_args(p, "\"", 1);
}

static void begin_call(hd_tool_parser *p, hd_str tag) {
    hd_tool_dsml *k = &p->dsml;
    hd_str name = attribute(tag, "name");
    k->n_seen = 0;
    k->is_unwrapped = false;
    k->properties = properties_of(p, name);
    p->place = hd_tool_open_call(p, name) ? HD_AT_INVOKE : HD_AT_BLOCK;
}

static void close_call(hd_tool_parser *p) {
    if (p->is_open && p->has_args) hd_tool_put_args(p, "}", 1);
    hd_tool_close_call(p);
}

static void end_tag(hd_tool_parser *p) {
    hd_tool_dsml *k = &p->dsml;
    hd_str tag = hd_json_text_trim(hd_buf_str(&k->tag)), word = tag;
    for (word.len = 0; word.len < tag.len && !ends_word(tag.ptr[word.len]);) word.len++;
    p->place = k->tag_from;
    if (k->is_too_long || (k->is_end_tag && k->tag_from == HD_AT_TEXT)) return;
    for (size_t i = 0; i < HD_COUNT_OF(blocks); i++) {
        if (!hd_str_eq_c(word, blocks[i])) continue;
        close_call(p);
        p->place = HD_AT_BLOCK;
    }
    if (hd_str_eq_c(word, "invoke")) {
        close_call(p);
        p->place = HD_AT_BLOCK;
        if (!k->is_end_tag && !p->is_full) begin_call(p, tag);
    }
    if (hd_str_eq_c(word, "parameter") && !k->is_end_tag && p->is_open) begin_value(p, tag);
}

static void take_tag_byte(hd_tool_parser *p) {
    hd_tool_dsml *k = &p->dsml;
    char byte = p->held[0];
    hd_tool_drop(p, 0, 1);
    if (byte == '>' && (!k->in_quotes || k->is_too_long)) {
        end_tag(p);
        return;
    }
    if (byte == '"') k->in_quotes = !k->in_quotes;
    if (k->tag.len == HD_TOOL_HELD_MAX)
        k->is_too_long = true;
    else
        hd_buf_add(&k->tag, &byte, 1);
}

/* ---- the format ---- */

void hd_tool_dsml_marker(hd_tool_parser *p, const hd_tool_marker *m) {
    hd_tool_dsml *k = &p->dsml;
    hd_tool_drop(p, 0, m->len);
    if (m->kind == HD_MARK_VALUE_END) end_value(p);
    if (m->kind != HD_MARK_TAG && m->kind != HD_MARK_TAG_END) return;
    if (p->place != HD_AT_TAG) k->tag_from = p->place; /* else: the last one was never closed */
    p->place = HD_AT_TAG;
    k->is_end_tag = m->kind == HD_MARK_TAG_END;
    k->in_quotes = k->is_too_long = false;
    hd_buf_clear(&k->tag);
}

void hd_tool_dsml_byte(hd_tool_parser *p) {
    if (p->place == HD_AT_TAG)
        take_tag_byte(p);
    else if (p->place == HD_AT_VALUE)
        take_value_byte(p);
    else
        hd_tool_drop(p, 0, 1);
}

/* A value stays as far as it came. */
void hd_tool_dsml_end(hd_tool_parser *p, bool is_cut) {
    hd_tool_dsml *k = &p->dsml;
    if (p->place != HD_AT_VALUE && !is_cut) close_call(p);
    if (p->place != HD_AT_VALUE || k->kind != HD_VALUE_JSON || k->value.len == 0) return;
    put_key(p);
    hd_tool_put_args(p, k->value.ptr, k->value.len);
}
