/* What is the same for all chat encodings: looking them up, checks, and text to ids. */
#include "text/chat_impl.h"

#include "base/mem.h"

#include <string.h>

/* Every marker that markup may hold. */
static const char *const markers[] = {
    HD_BOS,       HD_EOS,     HD_USER,        HD_ASSISTANT, HD_SYSTEM,     HD_REMINDER, HD_THINK,
    HD_THINK_END, HD_EOT,     HD_DSML,        HD_CALLS,     HD_CALLS_END,  HD_CALL,     HD_CALL_END,
    HD_SEP,       HD_OUTPUTS, HD_OUTPUTS_END, HD_OUTPUT,    HD_OUTPUT_END,
#define ROW(name) HD_TASK_MARKER(name),
    HD_TASKS(ROW)
#undef ROW
};
_Static_assert(HD_COUNT_OF(markers) <= HD_CHAT_MARKER_MAX, "a writer has an id for each");

const char *hd_chat_task_marker(hd_str task) {
    static const struct {
        const char *task, *marker;
    } all[] = {
#define ROW(name) {#name, HD_TASK_MARKER(name)},
        HD_TASKS(ROW)
#undef ROW
    };
    for (size_t i = 0; i < HD_COUNT_OF(all); i++)
        if (hd_str_eq_c(task, all[i].task)) return all[i].marker;
    return NULL;
}

/* ---- looking up ---- */

const hd_chat_encoding *hd_chat_by_name(const char *name) {
    for (size_t i = 0; i < hd_chat_row_count; i++) {
        const hd_chat_encoding *e = &hd_chat_rows[i];
        if (strcmp(e->name, name) == 0 || (e->alias && strcmp(e->alias, name) == 0)) return e;
    }
    return NULL;
}

const hd_chat_encoding *hd_chat_at(size_t ix) {
    return ix < hd_chat_row_count ? &hd_chat_rows[ix] : NULL;
}

void hd_chat_names(char *out, size_t room) {
    out[0] = 0;
    for (size_t i = 0; i < hd_chat_row_count; i++) hd_list_add(out, room, hd_chat_rows[i].name);
}

const char *hd_chat_missing_marker(const hd_chat_encoding *e, const hd_tokenizer *t) {
    for (const char *const *k = e->marker; *k; k++)
        if (hd_tokenizer_find_added(t, *k) < 0) return *k;
    return NULL;
}

const char *hd_chat_name(const hd_chat_encoding *e) { return e->name; }
const char *hd_chat_models(const hd_chat_encoding *e) { return e->models; }
bool hd_chat_can_think(const hd_chat_encoding *e) { return e->thinking != HD_CHAT_NO_THINKING; }
bool hd_chat_thinks_by_default(const hd_chat_encoding *e) {
    return e->thinking >= HD_CHAT_UNLESS_ASKED;
}
bool hd_chat_always_thinks(const hd_chat_encoding *e) { return e->thinking == HD_CHAT_ALWAYS; }
bool hd_chat_can_call_tools(const hd_chat_encoding *e) { return e->tools != HD_TOOLS_NONE; }
bool hd_chat_has_response_format(const hd_chat_encoding *e) { return e->dsml != NULL; }
bool hd_chat_keeps_reasoning(const hd_chat_encoding *e) { return e->dsml != NULL; }

int hd_chat_end_tokens(const hd_chat_encoding *e, const hd_tokenizer *t,
                       int32_t out[HD_CHAT_END_MAX]) {
    int n = 0;
    for (const char *const *k = e->end_token; *k; k++) {
        out[n] = hd_tokenizer_find_added(t, *k);
        n += out[n] >= 0;
    }
    return n;
}

/* ---- checks ---- */

static const char *const role_name[] = {"system", "user",      "assistant",
                                        "tool",   "developer", "latest_reminder"};

static hd_status count_bytes(size_t i, hd_str text, size_t *n_byte) {
    if (text.len > (1u << 30) - *n_byte)
        return HD_FAIL(TOO_LARGE, "message %zu: more than 1 GiB of text in all", i);
    *n_byte += text.len;
    return HD_OK;
}

/* V4 and later: reminders and quick tasks are theirs. */
static bool has_user_turns(const hd_chat_encoding *e) { return e->dsml && e->dsml->has_user_turns; }

static hd_status check_message(const hd_chat_encoding *e, const hd_chat_prompt *p, size_t i,
                               size_t *n_byte) {
    const hd_message *m = &p->message[i];
    if ((unsigned)m->role >= HD_COUNT_OF(role_name))
        return HD_FAIL(INVALID, "message %zu: unknown role %d", i, (int)m->role);
    if (m->role == HD_ROLE_LATEST_REMINDER && !has_user_turns(e))
        return HD_FAIL(UNSUPPORTED, "message %zu: chat encoding %s has no role %s", i, e->name,
                       role_name[m->role]);
    if ((m->n_call > 0 || m->role == HD_ROLE_TOOL) && !hd_chat_can_call_tools(e))
        return HD_FAIL(UNSUPPORTED, "message %zu: chat encoding %s has no tools", i, e->name);
    HD_TRY(count_bytes(i, m->content, n_byte));
    HD_TRY(count_bytes(i, m->reasoning, n_byte));
    for (size_t k = 0; k < m->n_call; k++) {
        HD_TRY(count_bytes(i, m->call[k].name, n_byte));
        HD_TRY(count_bytes(i, m->call[k].arguments, n_byte));
    }
    return HD_OK;
}

static hd_status check_messages(const hd_chat_encoding *e, const hd_chat_prompt *p) {
    const hd_message *m = p->message;
    size_t n_byte = 0, n = p->n_message;
    if (n == 0) return HD_FAIL(INVALID, "a chat needs at least one message");
    for (size_t i = 0; i < n; i++) HD_TRY(check_message(e, p, i, &n_byte));
    enum hd_role last = m[n - 1].role;
    if (last == HD_ROLE_ASSISTANT && !p->continue_final && !p->no_generation_prefix)
        return HD_FAIL(INVALID,
                       "message %zu: the last message is an assistant message: it can only be "
                       "continued (prefix), or be followed by a user or tool message",
                       n - 1);
    if (last != HD_ROLE_ASSISTANT && p->continue_final)
        return HD_FAIL(INVALID,
                       "message %zu: only an assistant message can be continued, the last has "
                       "role %s",
                       n - 1, role_name[last]);
    if (p->continue_final && m[n - 1].n_call > 0)
        return HD_FAIL(INVALID, "message %zu: a message with tool calls cannot be continued",
                       n - 1);
    if (p->continue_final && m[n - 1].reasoning.len > 0 && !hd_chat_can_think(e))
        return HD_FAIL(UNSUPPORTED, "message %zu: chat encoding %s has no reasoning to continue",
                       n - 1, e->name);
    return HD_OK;
}

static hd_status check_tools(const hd_chat_encoding *e, const hd_chat_prompt *p) {
    bool is_offered = p->tool_choice == HD_TOOL_AUTO && p->forced_tool.len == 0;
    if (p->tool_choice == HD_TOOL_NONE) return HD_OK;
    if (!hd_chat_can_call_tools(e) && (p->n_tool > 0 || p->tool_choice == HD_TOOL_REQUIRED))
        return HD_FAIL(UNSUPPORTED, "chat encoding %s has no tools", e->name);
    if (is_offered) return HD_OK;
    if (p->n_tool == 0) return HD_FAIL(INVALID, "a tool call is required, but there are no tools");
    if (p->continue_final)
        return HD_FAIL(INVALID, "a tool call cannot be required of a message that is continued");
    if (p->thinking)
        return HD_FAIL(INVALID, "a tool call cannot be required while thinking%s",
                       hd_chat_always_thinks(e) ? ", and this model always thinks" : "");
    for (size_t i = 0; i < p->n_tool; i++)
        if (p->forced_tool.len == 0 || hd_str_eq(p->tool[i].name, p->forced_tool)) return HD_OK;
    return HD_FAIL(INVALID, "the required tool %s is not one of the %zu tools",
                   hd_show(p->forced_tool), p->n_tool);
}

/* A token that only some prompts need. */
static hd_status check_token(const hd_chat_encoding *e, const hd_tokenizer *t, const char *text) {
    if (hd_tokenizer_find_added(t, text) >= 0) return HD_OK;
    return HD_FAIL(UNSUPPORTED, "chat encoding %s: the tokenizer has no token %s", e->name, text);
}

static hd_status check_extras(const hd_chat_encoding *e, const hd_tokenizer *t,
                              const hd_chat_prompt *p) {
    for (size_t i = 0; i < p->n_message; i++)
        if (p->message[i].role == HD_ROLE_LATEST_REMINDER) HD_TRY(check_token(e, t, HD_REMINDER));
    if (p->effort < 0 || p->effort > 100)
        return HD_FAIL(INVALID, "effort: expected 1 to 100 (0: the default), found %d", p->effort);
    if (p->schema.len > 0 && !hd_chat_has_response_format(e))
        return HD_FAIL(UNSUPPORTED, "chat encoding %s has no text for a response format", e->name);
    if (p->task.len == 0) return HD_OK;
    if (!has_user_turns(e))
        return HD_FAIL(UNSUPPORTED, "chat encoding %s has no quick tasks", e->name);
    const char *task = hd_chat_task_marker(p->task);
    if (!task)
        return HD_FAIL(INVALID,
                       "task: expected action, query, authority, domain, title or read_url, found "
                       "\"%s\"",
                       hd_show(p->task));
    if (p->message[p->n_message - 1].role != HD_ROLE_USER)
        return HD_FAIL(INVALID, "task: the last message must be a user's");
    return check_token(e, t, task);
}

/* ---- text to ids ---- */

void hd_chat_flush(hd_chat_writer *w) {
    if (w->plain.len > 0) hd_tokenizer_encode(w->t, hd_buf_str(&w->plain), false, w->out);
    hd_buf_clear(&w->plain);
}

void hd_chat_plain(hd_chat_writer *w, hd_str text) { hd_buf_add(&w->plain, text.ptr, text.len); }

/* The marker that text begins with, if it is a token; -1: none. */
static int marker_at(const hd_chat_writer *w, const char *text) {
    for (size_t i = 0; i < HD_COUNT_OF(markers); i++)
        if (w->marker[i] >= 0 && strncmp(text, markers[i], strlen(markers[i])) == 0) return (int)i;
    return -1;
}

void hd_chat_markup(hd_chat_writer *w, const char *text) {
    const char *from = text;
    if (!text) return;
    while (*text) {
        bool may_begin = *text == '<' || (unsigned char)*text == 0xEF; /* of ｜ */
        int i = may_begin ? marker_at(w, text) : -1;
        if (i < 0) {
            text++;
            continue;
        }
        hd_chat_plain(w, (hd_str){from, (size_t)(text - from)});
        hd_chat_flush(w);
        hd_ids_add(w->out, w->marker[i]);
        text += strlen(markers[i]);
        from = text;
    }
    hd_chat_plain(w, (hd_str){from, (size_t)(text - from)});
}

/* A model that reads of calls may well make another, whatever the prompt leaves out. */
static void ban_calls(const hd_chat_encoding *e, const hd_tokenizer *t, const hd_chat_prompt *p,
                      hd_chat_start *start) {
    static const char *const token[][HD_CHAT_BANNED_MAX] = {
        [HD_TOOLS_TOKENS] = {HD_CALLS, HD_CALL}, [HD_TOOLS_DSML] = {HD_DSML}};
    bool has_calls = p->n_tool > 0;
    for (size_t i = 0; i < p->n_message; i++) has_calls |= p->message[i].n_call > 0;
    bool may_call = p->n_tool > 0 && p->tool_choice != HD_TOOL_NONE;
    if (may_call || !has_calls || !hd_chat_can_call_tools(e)) return;
    for (int i = 0; i < HD_CHAT_BANNED_MAX && token[e->tools][i]; i++) {
        int32_t id = hd_tokenizer_find_added(t, token[e->tools][i]);
        if (id >= 0) start->banned[start->n_banned++] = id;
    }
}

hd_status hd_chat_encode(const hd_chat_encoding *e, const hd_tokenizer *t, const hd_chat_prompt *p,
                         hd_ids *out, hd_chat_start *start) {
    const char *missing = hd_chat_missing_marker(e, t);
    *start = (hd_chat_start){0};
    if (missing) return check_token(e, t, missing);
    hd_chat_prompt used = *p;
    bool is_asked = hd_chat_always_thinks(e) || (p->thinking && hd_chat_can_think(e));
    used.thinking = is_asked && !p->no_thinking;
    HD_TRY(check_messages(e, p));
    HD_TRY(check_extras(e, t, p));
    HD_TRY(check_tools(e, &used));
    if (p->tool_choice == HD_TOOL_NONE) used.n_tool = 0;
    hd_chat_writer w = {.e = e, .t = t, .p = &used, .out = out, .has_tools = p->n_tool > 0};
    hd_buf_init(&w.plain, SIZE_MAX / 2);
    for (size_t i = 0; i < HD_COUNT_OF(markers); i++)
        w.marker[i] = hd_tokenizer_find_added(t, markers[i]);
    hd_chat_markup(&w, HD_BOS);
    if (e->turns)
        hd_chat_turns_write(&w);
    else
        hd_chat_dsml_write(&w);
    hd_chat_flush(&w);
    hd_buf_fini(&w.plain);
    *start = w.start;
    ban_calls(e, t, p, start);
    return HD_OK;
}

/* ---- fill in the middle ---- */

static const char *const fim_marker[] = {HD_BOS, "<｜fim▁begin｜>", "<｜fim▁hole｜>",
                                         "<｜fim▁end｜>"};
enum { fim_bos, fim_begin, fim_hole, fim_end };

bool hd_chat_has_fim(const hd_tokenizer *t) {
    for (size_t i = 0; i < HD_COUNT_OF(fim_marker); i++)
        if (hd_tokenizer_find_added(t, fim_marker[i]) < 0) return false;
    return true;
}

hd_status hd_chat_fim(const hd_tokenizer *t, hd_str prefix, hd_str suffix, hd_ids *out) {
    int32_t id[HD_COUNT_OF(fim_marker)];
    for (size_t i = 0; i < HD_COUNT_OF(fim_marker); i++) {
        id[i] = hd_tokenizer_find_added(t, fim_marker[i]);
        if (id[i] < 0)
            return HD_FAIL(UNSUPPORTED, "fill in the middle: the tokenizer has no token %s",
                           fim_marker[i]);
    }
    hd_ids_add(out, id[fim_bos]);
    hd_ids_add(out, id[fim_begin]);
    hd_tokenizer_encode(t, prefix, false, out);
    hd_ids_add(out, id[fim_hole]);
    hd_tokenizer_encode(t, suffix, false, out);
    hd_ids_add(out, id[fim_end]);
    return HD_OK;
}
