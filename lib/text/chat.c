/* The table of chat encodings.
 *
 * deepseek_v3.1 (V3.1, V3.1-Terminus, V3.2-Exp) follows the template in DeepSeek's
 * tokenizer_config.json; ⏎ below is a newline:
 *     bos {system messages, wherever they stand, joined by ⏎⏎}
 *     user:      <｜User｜>{text}
 *     assistant: <｜Assistant｜></think> (after a user message only) {text after its first
 * </think>} eos tool:      <｜tool▁output▁begin｜>{text}<｜tool▁output▁end｜> generation, after a
 * user message: <｜Assistant｜><think> or <｜Assistant｜></think> */
#include "text/chat.h"

#include "base/mem.h"

#include <string.h>

/* Builds the ids: plain text is gathered until a marker ends it. */
struct writer {
    const hd_tokenizer *t;
    hd_ids *out;
    hd_buf plain;
};

struct hd_chat_encoding {
    const char *name;
    bool can_think;
    const char *const *marker; /* every one must be an added token; ended by NULL */
    /* The messages are checked. Returns whether generation begins inside reasoning. */
    bool (*write)(struct writer *w, const hd_chat_prompt *p);
};

static void flush(struct writer *w) {
    if (w->plain.len > 0) hd_tokenizer_encode(w->t, hd_buf_str(&w->plain), false, w->out);
    hd_buf_clear(&w->plain);
}

static void marker(struct writer *w, const char *text) {
    flush(w);
    hd_ids_add(w->out, hd_tokenizer_find(w->t, hd_str_of(text)));
}

static void plain(struct writer *w, hd_str text) { hd_buf_add(&w->plain, text.ptr, text.len); }

/* ---- deepseek_v3.1 ---- */

#define BOS "<｜begin▁of▁sentence｜>"
#define EOS "<｜end▁of▁sentence｜>"
#define USER "<｜User｜>"
#define ASSISTANT "<｜Assistant｜>"
#define THINK "<think>"
#define THINK_END "</think>"
#define OUTPUT "<｜tool▁output▁begin｜>"
#define OUTPUT_END "<｜tool▁output▁end｜>"

static const char *const v31_marker[] = {BOS,       EOS,    USER,       ASSISTANT, THINK,
                                         THINK_END, OUTPUT, OUTPUT_END, NULL};

/* The text after the first </think>; all of it when there is none. */
static hd_str without_reasoning(hd_str s) {
    const char *end = s.len ? memmem(s.ptr, s.len, THINK_END, strlen(THINK_END)) : NULL;
    if (!end) return s;
    end += strlen(THINK_END);
    return (hd_str){end, s.len - (size_t)(end - s.ptr)};
}

static void v31_system(struct writer *w, const hd_chat_prompt *p) {
    bool is_first = true;
    for (size_t i = 0; i < p->n_message; i++) {
        if (p->message[i].role != HD_ROLE_SYSTEM) continue;
        if (!is_first) plain(w, hd_str_of("\n\n"));
        plain(w, p->message[i].content);
        is_first = false;
    }
}

static bool v31_write(struct writer *w, const hd_chat_prompt *p) {
    bool after_user = false;
    marker(w, BOS);
    v31_system(w, p);
    for (size_t i = 0; i < p->n_message; i++) {
        hd_str text = p->message[i].content;
        switch (p->message[i].role) {
        case HD_ROLE_SYSTEM: break; /* written first; does not end a user's turn */
        case HD_ROLE_USER:
            marker(w, USER);
            plain(w, text);
            after_user = true;
            break;
        case HD_ROLE_ASSISTANT:
            if (after_user) {
                marker(w, ASSISTANT);
                marker(w, THINK_END);
            }
            plain(w, without_reasoning(text));
            if (i + 1 < p->n_message || !p->continue_final) marker(w, EOS);
            after_user = false;
            break;
        case HD_ROLE_TOOL:
            marker(w, OUTPUT);
            plain(w, text);
            marker(w, OUTPUT_END);
            after_user = false;
            break;
        }
    }
    flush(w);
    if (!after_user || p->no_generation_prefix) return false;
    marker(w, ASSISTANT);
    marker(w, p->thinking ? THINK : THINK_END);
    return p->thinking;
}

/* ---- the table ---- */

static const hd_chat_encoding rows[] = {
    {.name = "deepseek_v3.1", .can_think = true, .marker = v31_marker, .write = v31_write},
};

const hd_chat_encoding *hd_chat_by_name(const char *name) {
    for (size_t i = 0; i < HD_COUNT_OF(rows); i++)
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    return NULL;
}

/* The first marker that is not an added token, or NULL. */
static const char *missing_marker(const hd_chat_encoding *e, const hd_tokenizer *t) {
    for (const char *const *k = e->marker; *k; k++)
        if (!hd_tokenizer_is_added(t, hd_tokenizer_find(t, hd_str_of(*k)))) return *k;
    return NULL;
}

const hd_chat_encoding *hd_chat_for(const hd_tokenizer *t) {
    for (size_t i = 0; i < HD_COUNT_OF(rows); i++)
        if (!missing_marker(&rows[i], t)) return &rows[i];
    return NULL;
}

const char *hd_chat_name(const hd_chat_encoding *e) { return e->name; }
bool hd_chat_can_think(const hd_chat_encoding *e) { return e->can_think; }

static hd_status check_messages(const hd_chat_prompt *p) {
    static const char *const role_name[] = {"system", "user", "assistant", "tool"};
    const hd_message *m = p->message;
    size_t n_byte = 0, n = p->n_message;
    if (n == 0) return HD_FAIL(INVALID, "a chat needs at least one message");
    for (size_t i = 0; i < n; i++) {
        if ((unsigned)m[i].role >= HD_COUNT_OF(role_name))
            return HD_FAIL(INVALID, "message %zu: unknown role %d", i, (int)m[i].role);
        if (m[i].content.len > (1u << 30) - n_byte)
            return HD_FAIL(TOO_LARGE, "message %zu: more than 1 GiB of text in all", i);
        n_byte += m[i].content.len;
    }
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
    return HD_OK;
}

hd_status hd_chat_encode(const hd_chat_encoding *e, const hd_tokenizer *t, const hd_chat_prompt *p,
                         hd_ids *out, bool *in_reasoning) {
    const char *missing = missing_marker(e, t);
    *in_reasoning = false;
    if (missing)
        return HD_FAIL(UNSUPPORTED, "chat encoding %s: the tokenizer has no token %s", e->name,
                       missing);
    HD_TRY(check_messages(p));
    struct writer w = {.t = t, .out = out};
    hd_buf_init(&w.plain, SIZE_MAX / 2);
    hd_chat_prompt used = *p;
    used.thinking = p->thinking && e->can_think;
    *in_reasoning = e->write(&w, &used);
    hd_buf_fini(&w.plain);
    return HD_OK;
}
