/* The table of chat encodings, and what is the same for all of them: checks, and text to ids.
 *
 * deepseek_v3.1 (V3.1, V3.1-Terminus, V3.2-Exp) follows the template in DeepSeek's
 * tokenizer_config.json; ⏎ below is a newline:
 *     bos {system messages, wherever they stand, joined by ⏎⏎}{tools}
 *     user:       <｜User｜>{text}
 *     assistant:  <｜Assistant｜></think> (after a user message only)
 *                 {text after its first </think>}{calls} eos
 *     tool:       <｜tool▁output▁begin｜>{text}<｜tool▁output▁end｜>
 *     generation: <｜Assistant｜><think> or <｜Assistant｜></think>, after a user message */
#include "text/chat_impl.h"

#include "base/mem.h"

#include <string.h>

#define BOS "<｜begin▁of▁sentence｜>"
#define EOS "<｜end▁of▁sentence｜>"
#define USER "<｜User｜>"
#define ASSISTANT "<｜Assistant｜>"
#define CALLS "<｜tool▁calls▁begin｜>"
#define CALLS_END "<｜tool▁calls▁end｜>"
#define CALL "<｜tool▁call▁begin｜>"
#define CALL_END "<｜tool▁call▁end｜>"
#define SEP "<｜tool▁sep｜>"
#define OUTPUT "<｜tool▁output▁begin｜>"
#define OUTPUT_END "<｜tool▁output▁end｜>"

/* Every marker that markup may hold. */
static const char *const markers[] = {BOS,        EOS,    USER,      ASSISTANT, "<think>",
                                      "</think>", CALLS,  CALLS_END, CALL,      CALL_END,
                                      SEP,        OUTPUT, OUTPUT_END};
_Static_assert(HD_COUNT_OF(markers) <= HD_CHAT_MARKER_MAX, "a writer has an id for each");

/* ---- the table ---- */

static const char *const v31_marker[] = {BOS,        EOS,    USER,       ASSISTANT, "<think>",
                                         "</think>", CALLS,  CALLS_END,  CALL,      CALL_END,
                                         SEP,        OUTPUT, OUTPUT_END, NULL};
static const char *const end_at_user[] = {USER, NULL};

static const hd_chat_turns v31_turns = {
    .system_join = "\n\n",
    .user = USER,
    .past = ASSISTANT "</think>",
    .end = EOS,
    .answer = ASSISTANT "</think>",
    .answer_thinking = ASSISTANT "<think>",
    .think = "<think>",
    .think_end = "</think>",
    .tools = "\n\n## Tools\nYou have access to the following tools:\n",
    .tool_format =
        "\nIMPORTANT: ALWAYS adhere to this exact format for tool use:\n" CALLS CALL
        "tool_call_name" SEP "tool_call_arguments" CALL_END "{additional_tool_calls}" CALLS_END
        "\n\nWhere:\n"
        "- `tool_call_name` must be an exact match to one of the available tools\n"
        "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters "
        "Schema\n"
        "- For multiple tool calls, chain them directly without separators or spaces",
    .calls = CALLS,
    .calls_end = CALLS_END,
    .call = CALL,
    .call_args = SEP,
    .call_end = CALL_END,
    .output = OUTPUT,
    .output_end = OUTPUT_END,
};

static const hd_chat_encoding rows[] = {
    {.name = "deepseek_v3.1",
     .marker = v31_marker,
     .thinking = HD_CHAT_HYBRID,
     .tools = HD_TOOLS_TOKENS,
     .end_token = end_at_user,
     .write = hd_chat_turns_write,
     .turns = &v31_turns},
};

const hd_chat_encoding *hd_chat_by_name(const char *name) {
    for (size_t i = 0; i < HD_COUNT_OF(rows); i++)
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    return NULL;
}

/* The id of an added token, or -1. */
static int32_t token_of(const hd_tokenizer *t, const char *text) {
    int32_t id = hd_tokenizer_find(t, hd_str_of(text));
    return hd_tokenizer_is_added(t, id) ? id : -1;
}

/* The first marker that is not an added token, or NULL. */
static const char *missing_marker(const hd_chat_encoding *e, const hd_tokenizer *t) {
    for (const char *const *k = e->marker; *k; k++)
        if (token_of(t, *k) < 0) return *k;
    return NULL;
}

const hd_chat_encoding *hd_chat_for(const hd_tokenizer *t) {
    for (size_t i = 0; i < HD_COUNT_OF(rows); i++)
        if (!missing_marker(&rows[i], t)) return &rows[i];
    return NULL;
}

const char *hd_chat_name(const hd_chat_encoding *e) { return e->name; }
bool hd_chat_can_think(const hd_chat_encoding *e) { return e->thinking != HD_CHAT_NO_THINKING; }
bool hd_chat_thinks_by_default(const hd_chat_encoding *e) {
    return e->thinking >= HD_CHAT_UNLESS_ASKED;
}
bool hd_chat_always_thinks(const hd_chat_encoding *e) { return e->thinking == HD_CHAT_ALWAYS; }
bool hd_chat_can_call_tools(const hd_chat_encoding *e) { return e->tools != HD_TOOLS_NONE; }
bool hd_chat_keeps_reasoning(const hd_chat_encoding *e) { return e->keeps_reasoning; }

int hd_chat_end_tokens(const hd_chat_encoding *e, const hd_tokenizer *t,
                       int32_t out[HD_CHAT_END_MAX]) {
    int n = 0;
    for (const char *const *k = e->end_token; *k; k++) {
        out[n] = token_of(t, *k);
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

static hd_status check_message(const hd_chat_encoding *e, const hd_chat_prompt *p, size_t i,
                               size_t *n_byte) {
    const hd_message *m = &p->message[i];
    if ((unsigned)m->role >= HD_COUNT_OF(role_name))
        return HD_FAIL(INVALID, "message %zu: unknown role %d", i, (int)m->role);
    if (m->role == HD_ROLE_LATEST_REMINDER)
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
    if (p->task.len > 0)
        return HD_FAIL(UNSUPPORTED, "chat encoding %s has no quick tasks", e->name);
    if (p->tool_choice == HD_TOOL_NONE) return HD_OK;
    if (!hd_chat_can_call_tools(e) && (p->n_tool > 0 || p->tool_choice == HD_TOOL_REQUIRED))
        return HD_FAIL(UNSUPPORTED, "chat encoding %s has no tools", e->name);
    if (is_offered) return HD_OK;
    if (p->n_tool == 0) return HD_FAIL(INVALID, "a tool call is required, but there are no tools");
    if (p->thinking)
        return HD_FAIL(INVALID, "a tool call cannot be required while thinking%s",
                       hd_chat_always_thinks(e) ? ", and this model always thinks" : "");
    for (size_t i = 0; i < p->n_tool; i++)
        if (p->forced_tool.len == 0 || hd_str_eq(p->tool[i].name, p->forced_tool)) return HD_OK;
    return HD_FAIL(INVALID, "the required tool %s is not one of the %zu tools",
                   hd_show(p->forced_tool), p->n_tool);
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
        int i = *text == '<' ? marker_at(w, text) : -1;
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

hd_status hd_chat_encode(const hd_chat_encoding *e, const hd_tokenizer *t, const hd_chat_prompt *p,
                         hd_ids *out, hd_chat_start *start) {
    const char *missing = missing_marker(e, t);
    *start = (hd_chat_start){0};
    if (missing)
        return HD_FAIL(UNSUPPORTED, "chat encoding %s: the tokenizer has no token %s", e->name,
                       missing);
    hd_chat_prompt used = *p;
    used.thinking = hd_chat_always_thinks(e) || (p->thinking && hd_chat_can_think(e));
    HD_TRY(check_messages(e, p));
    HD_TRY(check_tools(e, &used));
    if (p->tool_choice == HD_TOOL_NONE) used.n_tool = 0;
    hd_chat_writer w = {.e = e, .t = t, .p = &used, .out = out};
    hd_buf_init(&w.plain, SIZE_MAX / 2);
    for (size_t i = 0; i < HD_COUNT_OF(markers); i++) w.marker[i] = token_of(t, markers[i]);
    hd_chat_markup(&w, BOS);
    e->write(&w);
    hd_chat_flush(&w);
    hd_buf_fini(&w.plain);
    *start = w.start;
    return HD_OK;
}

/* ---- fill in the middle ---- */

static const char *const fim_marker[] = {BOS, "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"};
enum { fim_bos, fim_begin, fim_hole, fim_end };

bool hd_chat_has_fim(const hd_tokenizer *t) {
    for (size_t i = 0; i < HD_COUNT_OF(fim_marker); i++)
        if (token_of(t, fim_marker[i]) < 0) return false;
    return true;
}

hd_status hd_chat_fim(const hd_tokenizer *t, hd_str prefix, hd_str suffix, hd_ids *out) {
    int32_t id[HD_COUNT_OF(fim_marker)];
    for (size_t i = 0; i < HD_COUNT_OF(fim_marker); i++) {
        id[i] = token_of(t, fim_marker[i]);
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
