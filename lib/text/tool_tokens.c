/* Calls between tokens: V3, R1 and V3.1. A marker ends whatever is open before it. */
#include "text/tool_parser_impl.h"

#include "text/json_text.h"
#include "text/markers.h"

void hd_tool_tokens_init(hd_tool_parser *p, const hd_tokenizer *t) {
    static const struct {
        const char *text;
        enum hd_tool_marker_kind kind;
    } all[] = {
        {HD_CALLS, HD_MARK_BLOCK},
        {HD_CALLS_END, HD_MARK_BLOCK_END},
        {HD_CALL, HD_MARK_CALL},
        {HD_CALL_END, HD_MARK_CALL_END},
        {HD_SEP, HD_MARK_SEP},
        {HD_OUTPUTS, HD_MARK_HIDDEN},
        {HD_OUTPUTS_END, HD_MARK_HIDDEN},
        {HD_OUTPUT, HD_MARK_HIDDEN},
        {HD_OUTPUT_END, HD_MARK_HIDDEN},
    };
    for (size_t i = 0; i < HD_COUNT_OF(all); i++)
        hd_tool_add_marker(p, t, all[i].text, NULL, all[i].kind);
}

static void open_call(hd_tool_parser *p, const char *name, size_t n) {
    hd_tool_tokens *k = &p->tokens;
    k->is_raw = k->in_string = k->is_escaped = false;
    k->depth = 0;
    p->place = hd_tool_open_call(p, (hd_str){name, n}) ? HD_AT_ARGS_START : HD_AT_ARGS_END;
}

static void close_call(hd_tool_parser *p) {
    hd_tool_tokens *k = &p->tokens;
    if (p->place == HD_AT_SEP && k->n_name > 0)
        open_call(p, k->name, k->n_name);
    else if (p->place == HD_AT_SEP || p->place == HD_AT_HEAD)
        open_call(p, k->head, k->n_head);
    hd_tool_close_call(p);
    k->in_string = false;
}

void hd_tool_tokens_marker(hd_tool_parser *p, const hd_tool_marker *m) {
    hd_tool_drop(p, 0, m->len);
    if (m->kind == HD_MARK_HIDDEN) return;
    if (m->kind == HD_MARK_SEP) {
        if (p->place == HD_AT_HEAD) p->place = HD_AT_SEP;
        return;
    }
    if (p->place > HD_AT_BLOCK) close_call(p);
    p->place = HD_AT_BLOCK;
    if (m->kind != HD_MARK_CALL) return;
    p->place = HD_AT_HEAD;
    p->tokens.n_head = p->tokens.n_name = 0;
}

/* Before the separator stands "function", the name after it. */
static bool has_type(const hd_tool_tokens *k) {
    return hd_str_eq_c(hd_json_text_trim((hd_str){k->head, k->n_head}), "function");
}

/* One more than HD_TOOL_NAME_MAX: too long, and no call. */
static void add_to_name(char *name, size_t *n, char byte) {
    if (*n <= HD_TOOL_NAME_MAX) name[(*n)++] = byte;
}

static bool ends_name(const char *name, size_t n, char byte) {
    bool is_blank = hd_json_text_trim((hd_str){name, n}).len == 0;
    return byte == '{' || byte == '`' || (byte == '\n' && !is_blank);
}

/* Between the separator and the arguments: the name, where "function" stands before. False: the
 * byte belongs to the arguments. */
static bool take_name(hd_tool_parser *p, char byte) {
    hd_tool_tokens *k = &p->tokens;
    bool is_args = byte == '{' || byte == '`';
    if (k->n_name == 0 && hd_tool_is_space(byte)) return true;
    if (k->n_name == 0 && (is_args || !has_type(k))) {
        open_call(p, k->head, k->n_head);
        return false;
    }
    if (is_args || byte == '\n') {
        open_call(p, k->name, k->n_name);
        return byte == '\n';
    }
    add_to_name(k->name, &k->n_name, byte);
    return true;
}

/* One byte of a JSON value; true: the value is complete with it. */
static bool track_json(hd_tool_tokens *k, char byte) {
    if (k->is_escaped) {
        k->is_escaped = false;
    } else if (k->in_string) {
        if (byte == '\\') k->is_escaped = true;
        if (byte == '"') k->in_string = false;
    } else if (byte == '"') {
        k->in_string = true;
    } else if (byte == '{' || byte == '[') {
        k->depth++;
    } else if (byte == '}' || byte == ']') {
        return --k->depth <= 0;
    }
    return false;
}

/* Arguments that are no object: everything up to a marker, but for white space and a fence there.
 */
static void take_raw(hd_tool_parser *p) {
    const hd_tool_marker *m;
    size_t n = 0;
    while (n < p->n_held && n < HD_TOOL_SPACE_MAX &&
           (hd_tool_is_space(p->held[n]) || p->held[n] == '`'))
        n++;
    if (n < HD_TOOL_SPACE_MAX) {
        if (n == p->n_held || hd_tool_match(p, n, &m)) return;
        if (!m) hd_tool_put_args(p, p->held, ++n);
    } else {
        hd_tool_put_args(p, p->held, n);
    }
    hd_tool_drop(p, 0, n);
}

void hd_tool_tokens_byte(hd_tool_parser *p) {
    hd_tool_tokens *k = &p->tokens;
    char byte = p->held[0];
    bool is_taken = true;
    if (p->place == HD_AT_HEAD && ends_name(k->head, k->n_head, byte)) {
        p->place = HD_AT_SEP; /* the separator was left out */
        is_taken = false;
    } else if (p->place == HD_AT_HEAD) {
        add_to_name(k->head, &k->n_head, byte);
    } else if (p->place == HD_AT_SEP) {
        is_taken = take_name(p, byte);
    } else if (p->place == HD_AT_ARGS_START && byte == '`') {
        p->place = HD_AT_FENCE;
    } else if (p->place == HD_AT_ARGS_START && !hd_tool_is_space(byte)) {
        p->place = HD_AT_ARGS;
        k->is_raw = byte != '{';
        is_taken = false;
    } else if (p->place == HD_AT_FENCE && (byte == '{' || byte == '\n')) {
        p->place = HD_AT_ARGS_START;
        is_taken = byte == '\n';
    } else if (p->place == HD_AT_ARGS && k->is_raw) {
        take_raw(p);
        is_taken = false;
    } else if (p->place == HD_AT_ARGS) {
        hd_tool_put_args(p, &byte, 1);
        if (track_json(k, byte)) p->place = HD_AT_ARGS_END;
    }
    if (is_taken) hd_tool_drop(p, 0, 1); /* between calls, after arguments: nothing */
}

/* What is cut off before the separator may be half a name, and after "function" too. */
void hd_tool_tokens_end(hd_tool_parser *p, bool is_cut) {
    hd_tool_tokens *k = &p->tokens;
    if (!is_cut && p->place > HD_AT_BLOCK)
        close_call(p);
    else if (p->place == HD_AT_SEP && !has_type(k))
        open_call(p, k->head, k->n_head);
}
