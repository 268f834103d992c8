/* Bytes are held until what stands at the front is decided: nothing of interest, a marker, or a
 * prefix of one. What a marker or a byte then means depends on the place: text, between calls, a
 * call's head, its arguments. */
#include "text/tool_parser.h"

#include "base/mem.h"

#include <string.h>

enum { space_max = 256, marker_max = 16 };

enum marker_kind { m_block, m_block_end, m_call, m_call_end, m_sep, m_hidden };

/* Bytes [from, to) must come of added tokens. */
struct marker {
    const char *text;
    size_t len, from, to;
    enum marker_kind kind;
};

enum place { in_text, in_block, in_head, after_sep, before_args, in_fence, in_args, after_args };

struct delta {
    int index;
    size_t name, n_name, args, n_args; /* into names and args */
};

struct hd_tool_parser {
    struct marker marker[marker_max];
    int n_marker;
    int max_call, n_call; /* calls begun */
    enum place place;
    bool is_reasoning, has_ended, is_full;

    char held[HD_TOOL_HELD_MAX];
    bool added[HD_TOOL_HELD_MAX]; /* the byte came of an added token */
    size_t n_held;

    char head[HD_TOOL_NAME_MAX + 1],
        name[HD_TOOL_NAME_MAX + 1]; /* before and after the separator */
    size_t n_head, n_name;
    bool has_args, is_raw, in_string, is_escaped; /* of the open call's arguments */
    bool is_open;                                 /* the call's name is out */
    int depth;

    hd_buf reasoning, content, names, args; /* since the last take */
    struct delta *delta;
    hd_call_delta *call; /* the same, as they are handed out */
    size_t n_delta, delta_room;
};

/* ---- markers ---- */

static void add_marker(hd_tool_parser *p, const hd_tokenizer *t, const char *text,
                       enum marker_kind kind) {
    int32_t id = hd_tokenizer_find(t, hd_str_of(text));
    bool is_token = hd_tokenizer_is_added(t, id);
    if (kind == m_hidden && !is_token) return;
    HD_ASSERT(p->n_marker < marker_max);
    struct marker *m = &p->marker[p->n_marker++];
    *m = (struct marker){.text = text, .len = strlen(text), .kind = kind};
    m->to = is_token ? m->len : 0;
}

static void add_markers(hd_tool_parser *p, const hd_tokenizer *t) {
    static const struct {
        const char *text;
        enum marker_kind kind;
    } all[] = {
        {"<｜tool▁calls▁begin｜>", m_block},
        {"<｜tool▁calls▁end｜>", m_block_end},
        {"<｜tool▁call▁begin｜>", m_call},
        {"<｜tool▁call▁end｜>", m_call_end},
        {"<｜tool▁sep｜>", m_sep},
        {"<｜tool▁outputs▁begin｜>", m_hidden},
        {"<｜tool▁outputs▁end｜>", m_hidden},
        {"<｜tool▁output▁begin｜>", m_hidden},
        {"<｜tool▁output▁end｜>", m_hidden},
        {"<｜User｜>", m_hidden},
        {"<｜Assistant｜>", m_hidden},
        {"<think>", m_hidden},
        {"</think>", m_hidden},
    };
    for (size_t i = 0; i < HD_COUNT_OF(all); i++) add_marker(p, t, all[i].text, all[i].kind);
}

enum match { no_match, may_match, does_match };

static enum match match_one(const hd_tool_parser *p, size_t at, const struct marker *m) {
    size_t n = p->n_held - at < m->len ? p->n_held - at : m->len;
    for (size_t i = 0; i < n; i++)
        if (p->held[at + i] != m->text[i] || (i >= m->from && i < m->to && !p->added[at + i]))
            return no_match;
    return n == m->len ? does_match : may_match;
}

/* Of the markers, at most one can match: none is a prefix of another. */
static enum match match_any(const hd_tool_parser *p, size_t at, const struct marker **found) {
    enum match best = no_match;
    *found = NULL;
    if (at < p->n_held && p->held[at] != '<') return no_match;
    for (int i = 0; i < p->n_marker; i++) {
        const struct marker *m = &p->marker[i];
        if (p->in_string && m->to == 0) continue; /* a JSON string may hold the text of one */
        enum match r = match_one(p, at, m);
        if (r > best) best = r;
        if (r == does_match) *found = m;
    }
    return best;
}

static void drop(hd_tool_parser *p, size_t at, size_t n) {
    memmove(p->held + at, p->held + at + n, p->n_held - at - n);
    memmove(p->added + at, p->added + at + n, p->n_held - at - n);
    p->n_held -= n;
}

/* ---- what goes out ---- */

static void put_text(hd_tool_parser *p, size_t n) {
    hd_buf_add(p->is_reasoning ? &p->reasoning : &p->content, p->held, n);
    drop(p, 0, n);
}

/* The delta that takes the open call's next piece. */
static struct delta *last_delta(hd_tool_parser *p) {
    int index = p->n_call - 1;
    if (p->n_delta > 0 && p->delta[p->n_delta - 1].index == index) return &p->delta[p->n_delta - 1];
    HD_ASSERT(p->n_delta < p->delta_room);
    struct delta *d = &p->delta[p->n_delta++];
    *d = (struct delta){.index = index, .name = p->names.len, .args = p->args.len};
    return d;
}

static void put_args(hd_tool_parser *p, const char *text, size_t n) {
    last_delta(p)->n_args += n;
    hd_buf_add(&p->args, text, n);
    p->has_args = true;
}

static hd_str trimmed(const char *text, size_t n) {
    while (n > 0 && strchr(" \t\r\n", text[n - 1])) n--;
    while (n > 0 && strchr(" \t\r\n", *text)) text++, n--;
    return (hd_str){text, n};
}

/* The call begins, named; false: a name that is empty or too long, and no call. */
static bool open_call(hd_tool_parser *p, const char *name, size_t n_name) {
    hd_str s = trimmed(name, n_name);
    if (s.len == 0 || n_name > HD_TOOL_NAME_MAX) return false;
    p->n_call++;
    p->is_open = true;
    last_delta(p)->n_name = s.len;
    hd_buf_add(&p->names, s.ptr, s.len);
    p->has_args = p->in_string = p->is_escaped = p->is_raw = false;
    p->depth = 0;
    return true;
}

static void close_call(hd_tool_parser *p) {
    if (p->place == after_sep && !p->is_open) { /* no arguments */
        if (p->n_name > 0)
            open_call(p, p->name, p->n_name);
        else
            open_call(p, p->head, p->n_head);
    } else if (p->place == in_head) {
        open_call(p, p->head, p->n_head);
    }
    if (p->is_open && !p->has_args) put_args(p, "{}", 2);
    if (p->is_open && p->n_call == p->max_call) p->is_full = true;
    p->is_open = p->in_string = false;
}

/* ---- places ---- */

static void begin_head(hd_tool_parser *p) {
    p->place = in_head;
    p->n_head = p->n_name = 0;
}

/* The marker at the front of what is held (white space before it, in text). */
static void take_marker(hd_tool_parser *p, size_t at, const struct marker *m) {
    enum marker_kind kind = p->is_reasoning ? m_hidden : m->kind;
    drop(p, at, m->len);
    if (kind == m_hidden || (p->place == in_text && kind != m_block && kind != m_call)) return;
    if (p->place == in_text) drop(p, 0, at);
    if (kind == m_sep) {
        if (p->place == in_head) p->place = after_sep;
        return;
    }
    if (p->place > in_block) close_call(p);
    p->place = in_block;
    if (kind == m_call) begin_head(p);
}

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

static void add_to_name(char *name, size_t *n, char byte) {
    if (*n <= HD_TOOL_NAME_MAX) name[(*n)++] = byte;
    if (*n > HD_TOOL_NAME_MAX) *n = HD_TOOL_NAME_MAX + 1; /* too long: no call */
}

/* Between the separator and the arguments: the name, where "function" stands before. */
static void take_after_sep(hd_tool_parser *p, char byte) {
    bool has_type = p->n_head == 8 && memcmp(p->head, "function", 8) == 0;
    if (p->n_name == 0 && is_space(byte)) return;
    bool is_args = byte == '{' || byte == '`';
    if (p->n_name > 0 || (!is_args && has_type)) {
        if (!is_args && byte != '\n') {
            add_to_name(p->name, &p->n_name, byte);
            return;
        }
        p->place = open_call(p, p->name, p->n_name) ? before_args : after_args;
    } else {
        p->place = open_call(p, p->head, p->n_head) ? before_args : after_args;
    }
}

/* One byte of a JSON value; true: the value is complete with it. */
static bool track_json(hd_tool_parser *p, char byte) {
    if (p->is_escaped) {
        p->is_escaped = false;
    } else if (p->in_string) {
        if (byte == '\\') p->is_escaped = true;
        if (byte == '"') p->in_string = false;
    } else if (byte == '"') {
        p->in_string = true;
    } else if (byte == '{' || byte == '[') {
        p->depth++;
    } else if (byte == '}' || byte == ']') {
        return --p->depth <= 0;
    }
    return false;
}

static void take_args(hd_tool_parser *p) {
    if (p->is_raw) { /* no object: everything up to the marker, but for white space at its end */
        size_t n = 0;
        while (n < p->n_held && n < space_max && (is_space(p->held[n]) || p->held[n] == '`')) n++;
        const struct marker *m;
        if (n < space_max && n == p->n_held) return;
        if (match_any(p, n, &m) == may_match) return;
        if (m) {
            drop(p, 0, n);
            return;
        }
        n += n < space_max;
        put_args(p, p->held, n);
        drop(p, 0, n);
        return;
    }
    char byte = p->held[0];
    put_args(p, &byte, 1);
    drop(p, 0, 1);
    if (track_json(p, byte)) p->place = after_args;
}

/* The byte at the front, which begins no marker. */
static void take_byte(hd_tool_parser *p) {
    char byte = p->held[0];
    switch (p->place) {
    case in_text:
    case in_block:
    case after_args: break;
    case in_head: add_to_name(p->head, &p->n_head, byte); break;
    case after_sep:
        take_after_sep(p, byte);
        if (p->place == before_args && byte != '\n') return; /* it belongs to the arguments */
        break;
    case before_args:
        if (byte == '`') {
            p->place = in_fence;
        } else if (!is_space(byte)) {
            p->place = in_args;
            p->is_raw = byte != '{';
            return;
        }
        break;
    case in_fence:
        if (byte == '{') {
            p->place = before_args;
            return;
        }
        if (byte == '\n') p->place = before_args;
        break;
    case in_args: take_args(p); return;
    }
    drop(p, 0, 1);
}

/* Text goes out up to white space or a marker; false: more bytes are needed. */
static bool take_text(hd_tool_parser *p) {
    const struct marker *m;
    size_t n_space = 0;
    if (!p->is_reasoning)
        while (n_space < p->n_held && n_space < space_max && is_space(p->held[n_space])) n_space++;
    if (n_space == space_max) {
        put_text(p, 1);
        return true;
    }
    if (n_space == p->n_held) return false;
    enum match r = match_any(p, n_space, &m);
    if (r == may_match) return false;
    if (r == does_match)
        take_marker(p, n_space, m);
    else
        put_text(p, n_space + 1);
    return true;
}

/* False: more bytes are needed. */
static bool step(hd_tool_parser *p) {
    const struct marker *m;
    if (p->n_held == 0) return false;
    if (p->is_full) {
        p->n_held = 0;
        return false;
    }
    if (p->place == in_text) return take_text(p);
    enum match r = match_any(p, 0, &m);
    if (r == may_match) return false;
    size_t before = p->n_held;
    enum place place = p->place;
    if (r == does_match)
        take_marker(p, 0, m);
    else
        take_byte(p);
    return p->n_held < before || p->place != place;
}

void hd_tool_parser_put(hd_tool_parser *p, char byte, bool is_reasoning, bool is_added) {
    if (p->is_reasoning && !is_reasoning) {
        put_text(p, p->n_held); /* the reasoning ended: what it held back was text */
    }
    p->is_reasoning = is_reasoning;
    HD_ASSERT(p->n_held < HD_TOOL_HELD_MAX);
    p->held[p->n_held] = byte;
    p->added[p->n_held++] = is_added;
    while (step(p)) continue;
}

void hd_tool_parser_end(hd_tool_parser *p) {
    size_t n_space = 0;
    if (p->has_ended) return;
    p->has_ended = true;
    if (p->place != in_text) {
        p->n_held = 0;
        return;
    }
    while (n_space < p->n_held && is_space(p->held[n_space])) n_space++;
    /* More than the "<" of a marker: it is one that was cut off. */
    if (p->n_held > n_space + 1)
        p->n_held = 0;
    else
        put_text(p, p->n_held);
}

size_t hd_tool_parser_held(const hd_tool_parser *p) { return p->n_held; }

void hd_tool_parser_take(hd_tool_parser *p, hd_text_out *out) {
    for (size_t i = 0; i < p->n_delta; i++) {
        const struct delta *d = &p->delta[i];
        p->call[i] = (hd_call_delta){.index = d->index,
                                     .name = {p->names.ptr + d->name, d->n_name},
                                     .arguments = {p->args.ptr + d->args, d->n_args}};
    }
    out->reasoning = hd_buf_str(&p->reasoning);
    out->content = hd_buf_str(&p->content);
    out->call = p->call;
    out->n_call = p->n_delta;
    out->stopped = p->is_full;
    p->n_delta = 0;
    hd_buf_clear(&p->reasoning);
    hd_buf_clear(&p->content);
    hd_buf_clear(&p->names);
    hd_buf_clear(&p->args);
}

/* ---- making ---- */

hd_tool_parser *hd_tool_parser_new(const hd_tokenizer *t, const hd_text_stream_options *o,
                                   size_t put_max) {
    hd_tool_parser *p = hd_alloc_zero(1, sizeof *p);
    size_t room = put_max + HD_TOOL_HELD_MAX + 64;
    hd_buf *all[] = {&p->reasoning, &p->content, &p->names, &p->args};
    p->max_call = o->max_call;
    add_markers(p, t);
    for (size_t i = 0; i < HD_COUNT_OF(all); i++) {
        hd_buf_init(all[i], SIZE_MAX / 2);
        hd_buf_reserve(all[i], room);
    }
    p->delta_room = room / 16 + 2; /* no call is written in fewer bytes */
    p->delta = hd_alloc_zero(p->delta_room, sizeof *p->delta);
    p->call = hd_alloc_zero(p->delta_room, sizeof *p->call);
    return p;
}

void hd_tool_parser_free(hd_tool_parser *p) {
    if (!p) return;
    hd_buf_fini(&p->reasoning);
    hd_buf_fini(&p->content);
    hd_buf_fini(&p->names);
    hd_buf_fini(&p->args);
    hd_free(p->delta);
    hd_free(p->call);
    hd_free(p);
}
