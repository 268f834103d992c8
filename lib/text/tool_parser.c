/* What both formats share: bytes are held until what stands at the front is decided: nothing of
 * interest, a marker, or a prefix of one. Text is shown; in a block, the format decides. */
#include "text/tool_parser_impl.h"

#include "base/mem.h"
#include "text/json_text.h"
#include "text/markers.h"

#include <string.h>

/* ---- markers ---- */

void hd_tool_add_marker(hd_tool_parser *p, const hd_tokenizer *t, const char *text,
                        const char *added, enum hd_tool_marker_kind kind) {
    const char *part = added ? added : text;
    bool is_token = hd_tokenizer_find_added(t, part) >= 0;
    if (kind == HD_MARK_HIDDEN && !is_token) return;
    HD_ASSERT(p->n_marker < HD_TOOL_MARKER_MAX);
    hd_tool_marker *m = &p->marker[p->n_marker++];
    *m = (hd_tool_marker){.text = text, .len = strlen(text), .kind = kind};
    if (!is_token) return;
    m->from = (size_t)(strstr(text, part) - text);
    m->to = m->from + strlen(part);
}

/* The bytes of m that stand at held[at], up to all of them; 0: it does not stand there. */
static size_t matched(const hd_tool_parser *p, size_t at, const hd_tool_marker *m) {
    size_t n = p->n_held - at < m->len ? p->n_held - at : m->len;
    for (size_t i = 0; i < n; i++)
        if (p->held[at + i] != m->text[i] || (i >= m->from && i < m->to && !p->added[at + i]))
            return 0;
    return n;
}

/* Inside a value of DSML only its end counts; a JSON string may hold the text of markers. */
static bool counts(const hd_tool_parser *p, const hd_tool_marker *m) {
    bool is_value = p->place == HD_AT_VALUE;
    return is_value == (m->kind == HD_MARK_VALUE_END) && !(p->tokens.in_string && m->to == 0);
}

/* None is a prefix of another. */
bool hd_tool_match(const hd_tool_parser *p, size_t at, const hd_tool_marker **found) {
    bool may = false;
    *found = NULL;
    if (at == p->n_held || (p->held[at] != '<' && p->held[at] != "｜"[0])) return false;
    for (int i = 0; i < p->n_marker; i++) {
        const hd_tool_marker *m = &p->marker[i];
        size_t n = counts(p, m) ? matched(p, at, m) : 0;
        if (n == m->len) *found = m;
        may |= n > 0;
    }
    return may && !*found;
}

void hd_tool_drop(hd_tool_parser *p, size_t at, size_t n) {
    memmove(p->held + at, p->held + at + n, p->n_held - at - n);
    memmove(p->added + at, p->added + at + n, p->n_held - at - n);
    p->n_held -= n;
}

/* ---- what goes out ---- */

static void put_text(hd_tool_parser *p, size_t n) {
    hd_buf_add(p->is_reasoning ? &p->reasoning : &p->content, p->held, n);
    hd_tool_drop(p, 0, n);
}

/* The delta that takes the open call's next piece. */
static hd_tool_delta *last_delta(hd_tool_parser *p) {
    int index = p->n_call - 1;
    if (p->n_delta > 0 && p->delta[p->n_delta - 1].index == index) return &p->delta[p->n_delta - 1];
    HD_ASSERT(p->n_delta < p->delta_room);
    hd_tool_delta *d = &p->delta[p->n_delta++];
    *d = (hd_tool_delta){.index = index, .name = p->names.len, .args = p->args.len};
    return d;
}

void hd_tool_put_args(hd_tool_parser *p, const char *text, size_t n) {
    if (n == 0) return;
    last_delta(p)->n_args += n;
    hd_buf_add(&p->args, text, n);
    p->has_args = true;
}

bool hd_tool_open_call(hd_tool_parser *p, hd_str name) {
    if (name.len == 0 || name.len > HD_TOOL_NAME_MAX) return false;
    hd_str s = hd_json_text_trim(name);
    if (s.len == 0) return false;
    p->n_call++;
    p->is_open = true;
    p->has_args = false;
    last_delta(p)->n_name = s.len;
    hd_buf_add(&p->names, s.ptr, s.len);
    return true;
}

void hd_tool_close_call(hd_tool_parser *p) {
    if (!p->is_open) return;
    if (!p->has_args) hd_tool_put_args(p, "{}", 2);
    if (p->n_call == p->max_call) p->is_full = true;
    p->is_open = false;
}

/* ---- places ---- */

static void take_marker(hd_tool_parser *p, const hd_tool_marker *m) {
    if (p->format == HD_TOOLS_DSML)
        hd_tool_dsml_marker(p, m);
    else
        hd_tool_tokens_marker(p, m);
}

/* Whether a block may begin with m, held at `at`; *may: more bytes decide. */
static bool begins_block(const hd_tool_parser *p, size_t at, const hd_tool_marker *m, bool *may) {
    *may = false;
    if (p->is_reasoning) return false;
    if (m->kind == HD_MARK_BLOCK || m->kind == HD_MARK_CALL) return true;
    return (m->kind == HD_MARK_TAG || m->kind == HD_MARK_TAG_END) &&
           hd_tool_dsml_is_tag(p, at + m->len, may);
}

/* Text goes out up to white space or a marker; false: more bytes are needed. */
static bool take_text(hd_tool_parser *p) {
    const hd_tool_marker *m;
    bool may = false;
    size_t n = 0;
    while (!p->is_reasoning && n < p->n_held && n < HD_TOOL_SPACE_MAX &&
           hd_tool_is_space(p->held[n]))
        n++;
    if (n == HD_TOOL_SPACE_MAX) {
        put_text(p, 1);
        return true;
    }
    if (n == p->n_held || hd_tool_match(p, n, &m)) return false;
    if (!m) {
        put_text(p, n + 1);
    } else if (begins_block(p, n, m, &may)) {
        hd_tool_drop(p, 0, n);
        take_marker(p, m);
    } else if (may) {
        return false;
    } else {
        hd_tool_drop(p, n, m->len); /* it is no text, wherever it stands */
    }
    return true;
}

/* False: more bytes are needed. */
static bool step(hd_tool_parser *p) {
    const hd_tool_marker *m;
    if (p->is_full) p->n_held = 0;
    if (p->n_held == 0) return false;
    if (p->place == HD_AT_TEXT) return take_text(p);
    if (hd_tool_match(p, 0, &m)) return false;
    size_t n_before = p->n_held;
    enum hd_tool_place place = p->place;
    if (m)
        take_marker(p, m);
    else if (p->format == HD_TOOLS_DSML)
        hd_tool_dsml_byte(p);
    else
        hd_tool_tokens_byte(p);
    return p->n_held < n_before || p->place != place;
}

void hd_tool_parser_put(hd_tool_parser *p, char byte, bool is_reasoning, bool is_added) {
    if (p->is_reasoning && !is_reasoning)
        put_text(p, p->n_held); /* the reasoning ended: what it held back was text */
    p->is_reasoning = is_reasoning;
    HD_ASSERT(p->n_held < HD_TOOL_HELD_MAX);
    p->held[p->n_held] = byte;
    p->added[p->n_held++] = is_added;
    while (step(p)) continue;
}

void hd_tool_parser_end(hd_tool_parser *p, bool is_cut) {
    size_t n_space = 0;
    if (p->has_ended || p->is_full) return;
    p->has_ended = true;
    if (p->place != HD_AT_TEXT) {
        if (p->format == HD_TOOLS_DSML)
            hd_tool_dsml_end(p, is_cut);
        else
            hd_tool_tokens_end(p, is_cut);
        p->n_held = 0;
        return;
    }
    while (n_space < p->n_held && hd_tool_is_space(p->held[n_space])) n_space++;
    size_t n_text = n_space; /* with "<" and "</"; more of a marker is one that was cut off */
    while (n_text < p->n_held && (p->held[n_text] == '<' || p->held[n_text] == '/')) n_text++;
    if (n_text < p->n_held)
        p->n_held = 0;
    else
        put_text(p, p->n_held);
}

size_t hd_tool_parser_held(const hd_tool_parser *p) { return p->n_held; }

void hd_tool_parser_take(hd_tool_parser *p, hd_text_out *out) {
    for (size_t i = 0; i < p->n_delta; i++) {
        const hd_tool_delta *d = &p->delta[i];
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

static void copy_tools(hd_tool_parser *p, const hd_text_stream_options *o) {
    p->n_tool = o->n_tool;
    p->tool = hd_alloc_zero(o->n_tool, sizeof *p->tool);
    for (size_t i = 0; i < o->n_tool; i++) {
        const hd_str name = o->tool[i].name, text = o->tool[i].parameters;
        p->tool[i].name = hd_strndup(name.len ? name.ptr : "", name.len);
        p->tool[i].parameters =
            json_loadb(text.len ? text.ptr : "", text.len, JSON_ALLOW_NUL, NULL);
    }
}

hd_tool_parser *hd_tool_parser_new(enum hd_tool_format f, const hd_tokenizer *t,
                                   const hd_text_stream_options *o, size_t put_max) {
    static const char *const hidden[] = {HD_USER, HD_ASSISTANT, HD_THINK, HD_THINK_END, HD_DSML};
    hd_tool_parser *p = hd_alloc_zero(1, sizeof *p);
    size_t room = put_max + HD_TOOL_HELD_MAX;
    p->format = f;
    p->max_call = o->max_call;
    for (size_t i = 0; i < HD_COUNT_OF(hidden); i++)
        hd_tool_add_marker(p, t, hidden[i], NULL, HD_MARK_HIDDEN);
    if (f == HD_TOOLS_DSML) {
        copy_tools(p, o);
        hd_tool_dsml_init(p, t);
    } else {
        hd_tool_tokens_init(p, t);
    }
    p->delta_room = room / 16 + 2; /* no call is written in fewer bytes */
    p->delta = hd_alloc_zero(p->delta_room, sizeof *p->delta);
    p->call = hd_alloc_zero(p->delta_room, sizeof *p->call);
    /* A byte is at most six in a JSON string; a value is held, and may come with the rest. */
    size_t args_room = f == HD_TOOLS_DSML ? 6 * (room + HD_TOOL_VALUE_MAX) + 64 : room + 64;
    hd_buf *all[] = {&p->reasoning, &p->content, &p->names, &p->args};
    for (size_t i = 0; i < HD_COUNT_OF(all); i++) {
        hd_buf_init(all[i], SIZE_MAX / 2);
        hd_buf_reserve(all[i], all[i] == &p->args ? args_room : room);
    }
    return p;
}

void hd_tool_parser_free(hd_tool_parser *p) {
    if (!p) return;
    hd_tool_dsml_fini(p);
    for (size_t i = 0; i < p->n_tool; i++) {
        json_decref(p->tool[i].parameters);
        hd_free(p->tool[i].name);
    }
    hd_free(p->tool);
    hd_buf_fini(&p->reasoning);
    hd_buf_fini(&p->content);
    hd_buf_fini(&p->names);
    hd_buf_fini(&p->args);
    hd_free(p->delta);
    hd_free(p->call);
    hd_free(p);
}
