/* Five stages, each handing bytes to the next:
 *
 *   token -> utf8:  bytes to whole valid characters; at most 3 bytes wait
 *         -> mark:  each byte gets its part: reasoning, content, or marker (not shown); where
 *                   markers are text, bytes that may become one wait
 *         -> stop:  every stop string is matched by its own Knuth-Morris-Pratt automaton; the bytes
 *                   of the longest prefix of a stop string that the text ends in wait
 *         -> trim:  what the encoding has around the texts: a space, newlines
 *         -> shown: two buffers, valid until the next call; or the tool parser, which has its own
 *
 * Stop strings are matched in what was generated, markers included, so they may name </think>. */
#include "text/stream.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "text/chat_impl.h"

#include <string.h>

enum part { part_reasoning, part_content, part_marker };
enum where { at_start, after_open, in_reasoning, in_content };
enum { utf8_tail_max = 3, marker_max = 8, newline_max = 64, added_flag = 4 };
static const char open_text[] = HD_THINK, close_text[] = HD_THINK_END, replacement[] = "\uFFFD";

struct stop {
    char *text;
    uint16_t *fail; /* [len] longest border of text[0..i] */
    size_t len, matched;
};

struct hd_text_stream {
    const hd_tokenizer *t;
    bool split, keep_special, include_stop, has_ended;
    int n_token, min_tokens;   /* fed so far; stop strings are sought after this many */
    int32_t open_id, close_id; /* -1: the marker is text */

    char tail[utf8_tail_max + 1]; /* utf8 */
    size_t n_tail;
    bool is_added; /* the token being fed is an added one */

    enum where where; /* mark */
    enum where first; /* where the text begins when it does not begin with <think> */
    size_t n_marker;  /* bytes of a text marker seen so far */

    struct stop stop[HD_STREAM_STOP_MAX]; /* stop */
    size_t n_put, n_out;                  /* bytes that came to this stage, and left it */
    int n_stop, stop_ix;                  /* stop_ix -1: none matched */
    char *held;                           /* ring of held_room bytes, a power of two */
    uint8_t *held_part;                   /* its part, and added_flag */
    size_t held_at, n_held, held_room;

    bool strip_space, strip_newlines, had_reasoning, has_content; /* trim */
    size_t n_newline;                                             /* at the reasoning's end */

    char *shown[2]; /* by part */
    size_t n_shown[2], shown_room;
    hd_tool_parser *tools; /* instead; NULL: not wanted */
    bool is_full;          /* it has all the calls it may have */
};

/* ---- shown ---- */

static void show(hd_stream *s, char byte, enum part part, bool is_added) {
    if (s->tools) {
        hd_tool_parser_put(s->tools, byte, part == part_reasoning, is_added);
        return;
    }
    HD_DASSERT(s->n_shown[part] < s->shown_room);
    s->shown[part][s->n_shown[part]++] = byte;
}

/* ---- trim ---- */

static void show_newlines(hd_stream *s) {
    for (; s->n_newline > 0; s->n_newline--) show(s, '\n', part_reasoning, false);
}

static void trim(hd_stream *s, char byte, unsigned part_and_flag) {
    enum part part = (enum part)(part_and_flag & (added_flag - 1));
    s->n_out++;
    if (part == part_marker) return;
    if (part == part_reasoning) {
        s->had_reasoning = true;
        if (s->strip_newlines && byte == '\n' && s->n_newline < newline_max) {
            s->n_newline++;
            return;
        }
        if (byte != '\n') show_newlines(s);
    } else if (!s->has_content) {
        s->n_newline = 0;
        if (s->strip_newlines && s->had_reasoning && byte == '\n') return;
        s->has_content = true;
        if (s->strip_space && byte == ' ') return;
    }
    show(s, byte, part, part_and_flag & added_flag);
}

static void release(hd_stream *s, size_t n) {
    for (; n > 0; n--, s->n_held--) {
        trim(s, s->held[s->held_at], s->held_part[s->held_at]);
        s->held_at = (s->held_at + 1) & (s->held_room - 1);
    }
}

/* ---- stop ---- */

/* Advances one automaton; true when its string is complete. */
static bool advance(struct stop *k, char byte) {
    while (k->matched > 0 && k->text[k->matched] != byte) k->matched = k->fail[k->matched - 1];
    if (k->text[k->matched] == byte) k->matched++;
    return k->matched == k->len;
}

static void put_stop(hd_stream *s, char byte, enum part part) {
    size_t keep = 0, found = 0;
    unsigned part_and_flag = (unsigned)part | (s->is_added ? added_flag : 0);
    s->n_put++;
    if (s->stop_ix >= 0) return;
    if (s->n_token <= s->min_tokens) {
        trim(s, byte, part_and_flag);
        return;
    }
    size_t at = (s->held_at + s->n_held++) & (s->held_room - 1);
    s->held[at] = byte;
    s->held_part[at] = (uint8_t)part_and_flag;
    for (int i = 0; i < s->n_stop; i++) {
        struct stop *k = &s->stop[i];
        if (advance(k, byte)) {
            if (k->len > found) s->stop_ix = i;
            if (k->len > found) found = k->len;
        } else if (k->matched > keep) {
            keep = k->matched;
        }
    }
    if (found == 0) {
        release(s, s->n_held - keep);
        return;
    }
    release(s, s->n_held - (s->include_stop ? 0 : found));
    s->n_held = 0;
}

/* ---- mark ---- */

static enum part part_of(enum where w) { return w == in_content ? part_content : part_reasoning; }

static void put_marker(hd_stream *s, const char *text) {
    for (; *text; text++) put_stop(s, *text, part_marker);
}

static void put_text(hd_stream *s, char byte);

/* The bytes that might have become a text marker are text after all. */
static void give_up_marker(hd_stream *s) {
    const char *text = s->where == at_start ? open_text : close_text;
    size_t n = s->n_marker;
    s->n_marker = 0;
    if (s->where == at_start) {
        s->where = s->first;
        for (size_t i = 0; i < n; i++) put_text(s, text[i]);
    } else {
        for (size_t i = 0; i < n; i++) put_stop(s, text[i], part_reasoning);
    }
}

/* A byte that may belong to a marker written as text; false: it does not. */
static bool take_marker_byte(hd_stream *s, char byte) {
    bool opens = s->where == at_start && s->open_id < 0;
    if (!opens && (s->where != in_reasoning || s->close_id >= 0)) return false;
    const char *text = opens ? open_text : close_text;
    if (byte != text[s->n_marker]) return false;
    if (text[++s->n_marker]) return true;
    s->n_marker = 0;
    s->where = opens ? after_open : in_content;
    put_marker(s, text);
    return true;
}

static void put_text(hd_stream *s, char byte) {
    if (!s->split) {
        put_stop(s, byte, part_content);
        return;
    }
    if (s->where == after_open) {
        s->where = in_reasoning;
        if (byte == '\n') {
            put_stop(s, byte, part_marker);
            return;
        }
    }
    if (take_marker_byte(s, byte)) return;
    if (s->n_marker > 0 || s->where == at_start) {
        give_up_marker(s);
        put_text(s, byte); /* it may begin the next marker */
        return;
    }
    put_stop(s, byte, part_of(s->where));
}

/* ---- utf8 ---- */

static void put_replacement(hd_stream *s) {
    for (const char *r = replacement; *r; r++) put_text(s, *r);
}

static void put_byte(hd_stream *s, char byte) {
    uint32_t cp;
    s->tail[s->n_tail++] = byte;
    while (s->n_tail > 0 && !hd_utf8_is_partial(s->tail, s->n_tail)) {
        size_t len = hd_utf8_decode(s->tail, s->n_tail, &cp);
        if (len > 0) {
            for (size_t i = 0; i < len; i++) put_text(s, s->tail[i]);
        } else {
            len = hd_utf8_invalid_len(s->tail, s->n_tail);
            put_replacement(s);
        }
        s->n_tail -= len;
        memmove(s->tail, s->tail + len, s->n_tail);
    }
}

static void end_character(hd_stream *s) {
    if (s->n_tail > 0) put_replacement(s);
    s->n_tail = 0;
}

/* ---- token ---- */

/* A marker that is a token of its own; false: this token is text here. */
static bool take_marker_token(hd_stream *s, int32_t token) {
    bool is_first = s->where == at_start && s->n_tail == 0 && s->n_marker == 0;
    if (!s->split || token < 0) return false;
    if (token == s->open_id && is_first) {
        s->where = after_open;
        put_marker(s, open_text);
        return true;
    }
    if (token != s->close_id || !hd_stream_in_reasoning(s)) return false;
    end_character(s);
    if (s->n_marker > 0) give_up_marker(s);
    s->where = in_content;
    put_marker(s, close_text);
    return true;
}

/* Nothing more will come: what trim and the tool parser hold is decided. */
static void finish(hd_stream *s, bool is_cut) {
    if (s->has_ended) return;
    s->has_ended = true;
    show_newlines(s);
    if (s->tools) hd_tool_parser_end(s->tools, is_cut);
}

static hd_text_out result(hd_stream *s) {
    if (s->stop_ix >= 0 || s->is_full) finish(s, true);
    hd_text_out o = {.reasoning = {s->shown[part_reasoning], s->n_shown[part_reasoning]},
                     .content = {s->shown[part_content], s->n_shown[part_content]},
                     .in_reasoning = hd_stream_in_reasoning(s),
                     .stop_ix = s->stop_ix,
                     .n_in = s->n_put + s->n_marker + s->n_tail,
                     .n_out = s->n_out - s->n_newline};
    if (s->tools) {
        hd_tool_parser_take(s->tools, &o);
        s->is_full |= o.stopped;
        o.n_out -= hd_tool_parser_held(s->tools);
    }
    o.stopped = s->stop_ix >= 0 || s->is_full;
    s->n_shown[0] = s->n_shown[1] = 0;
    return o;
}

hd_text_out hd_stream_feed(hd_stream *s, int32_t token) {
    if (s->has_ended) return result(s);
    if (s->n_token <= s->min_tokens) s->n_token++;
    s->is_added = hd_tokenizer_is_added(s->t, token);
    if (take_marker_token(s, token)) return result(s);
    if (!s->keep_special && hd_tokenizer_is_special(s->t, token)) return result(s);
    hd_str bytes = hd_tokenizer_bytes(s->t, token);
    for (size_t i = 0; i < bytes.len; i++) put_byte(s, bytes.ptr[i]);
    return result(s);
}

hd_text_out hd_stream_end(hd_stream *s, bool is_cut) {
    if (s->has_ended) return result(s);
    s->is_added = false;
    if (s->tools) s->n_tail = 0; /* it may be the middle of a marker */
    end_character(s);
    if (s->n_marker > 0) give_up_marker(s);
    if (s->n_marker > 0) give_up_marker(s); /* the start's "<" may have begun a </think> */
    release(s, s->n_held);
    finish(s, is_cut);
    return result(s);
}

bool hd_stream_in_reasoning(const hd_stream *s) {
    if (!s->split || s->where == in_content) return false;
    return s->where == at_start ? s->first == in_reasoning : true;
}

/* ---- making ---- */

static void build_stop(struct stop *k, hd_str text) {
    k->len = text.len;
    k->text = hd_strndup(text.ptr, text.len); /* its NUL stands past a complete match */
    k->fail = hd_alloc_zero(text.len, sizeof *k->fail);
    for (size_t i = 1, n = 0; i < text.len; i++) {
        while (n > 0 && text.ptr[i] != text.ptr[n]) n = k->fail[n - 1];
        if (text.ptr[i] == text.ptr[n]) n++;
        k->fail[i] = (uint16_t)n;
    }
}

static hd_status check_stops(const hd_text_stream_options *o) {
    if (o->n_stop > HD_STREAM_STOP_MAX)
        return HD_FAIL(INVALID, "%d stop strings, at most %d are allowed", o->n_stop,
                       HD_STREAM_STOP_MAX);
    for (int i = 0; i < o->n_stop; i++) {
        size_t n = o->stop[i].len;
        if (n == 0 || n > HD_STREAM_STOP_BYTES_MAX)
            return HD_FAIL(INVALID, "stop string %d has %zu bytes, expected 1..%d", i, n,
                           HD_STREAM_STOP_BYTES_MAX);
        if (!hd_utf8_is_valid(o->stop[i].ptr, n))
            return HD_FAIL(INVALID, "stop string %d is not valid UTF-8", i);
    }
    return HD_OK;
}

/* One token's bytes may each become U+FFFD, and everything that waited may come with them. */
static void make_room(hd_stream *s, const hd_chat_encoding *e, const hd_text_stream_options *o) {
    size_t longest = 0;
    for (int i = 0; i < s->n_stop; i++) {
        build_stop(&s->stop[i], o->stop[i]);
        if (s->stop[i].len > longest) longest = s->stop[i].len;
    }
    s->held_room = 16;
    while (s->held_room < longest + 1) s->held_room *= 2;
    s->held = hd_alloc(s->held_room);
    s->held_part = hd_alloc(s->held_room);
    s->shown_room =
        longest + newline_max + 3 * (hd_tokenizer_longest(s->t) + utf8_tail_max) + 2 * marker_max;
    if (o->parse_tools)
        s->tools = hd_tool_parser_new(e->tools, s->t, o, s->shown_room);
    else
        for (int i = 0; i < 2; i++) s->shown[i] = hd_alloc(s->shown_room);
}

hd_status hd_stream_new(const hd_tokenizer *t, const hd_chat_encoding *e,
                        const hd_text_stream_options *o, hd_stream **out) {
    *out = NULL;
    HD_TRY(check_stops(o));
    if (o->parse_tools && !(e && hd_chat_can_call_tools(e)))
        return HD_FAIL(UNSUPPORTED, "chat encoding %s has no tools", e ? hd_chat_name(e) : "none");
    hd_stream *s = hd_alloc_zero(1, sizeof *s);
    s->t = t;
    s->split = o->split_reasoning || o->parse_tools;
    s->keep_special = o->keep_special;
    s->include_stop = o->include_stop;
    s->min_tokens = (o->min_tokens > 0 ? o->min_tokens : 0) + o->n_forced;
    s->strip_space = o->strip_space;
    s->strip_newlines = s->split && e && e->strip_newlines;
    s->open_id = hd_tokenizer_find_added(t, open_text);
    s->close_id = hd_tokenizer_find_added(t, close_text);
    s->first = o->in_reasoning ? in_reasoning : in_content;
    s->stop_ix = -1;
    s->n_stop = o->n_stop;
    make_room(s, e, o);
    *out = s;
    return HD_OK;
}

void hd_stream_free(hd_stream *s) {
    if (!s) return;
    for (int i = 0; i < s->n_stop; i++) {
        hd_free(s->stop[i].text);
        hd_free(s->stop[i].fail);
    }
    hd_free(s->held);
    hd_free(s->held_part);
    for (int i = 0; i < 2; i++) hd_free(s->shown[i]);
    hd_tool_parser_free(s->tools);
    hd_free(s);
}
