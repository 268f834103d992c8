/* Chat encodings that are turns between markers: system texts first, then what users, the assistant
 * and tools said; one struct of texts an encoding. */
#include "text/chat_impl.h"

#include <string.h>

static const char think_end[] = "</think>";

/* The text after the first </think>; all of it when there is none. */
static hd_str without_reasoning(hd_str s) {
    const char *end = s.len ? memmem(s.ptr, s.len, think_end, strlen(think_end)) : NULL;
    if (!end) return s;
    end += strlen(think_end);
    return (hd_str){end, s.len - (size_t)(end - s.ptr)};
}

static bool is_system(const hd_message *m) {
    return m->role == HD_ROLE_SYSTEM || m->role == HD_ROLE_DEVELOPER;
}

static void write_tools(hd_chat_writer *w) {
    const hd_chat_turns *k = w->e->turns;
    if (w->p->n_tool == 0) return;
    hd_chat_plain(w, hd_str_of(k->tools));
    for (size_t i = 0; i < w->p->n_tool; i++) {
        const hd_tool *t = &w->p->tool[i];
        hd_chat_plain(w, hd_str_of("\n### "));
        hd_chat_plain(w, t->name);
        hd_chat_plain(w, hd_str_of("\nDescription: "));
        hd_chat_plain(w, t->description);
        hd_chat_plain(w, hd_str_of("\n\nParameters: "));
        hd_chat_plain(w, t->parameters);
        hd_chat_plain(w, hd_str_of("\n"));
    }
    hd_chat_markup(w, k->tool_format);
}

static void write_system(hd_chat_writer *w) {
    bool is_first = true;
    for (size_t i = 0; i < w->p->n_message; i++) {
        if (!is_system(&w->p->message[i])) continue;
        if (!is_first) hd_chat_markup(w, w->e->turns->system_join);
        hd_chat_plain(w, w->p->message[i].content);
        is_first = false;
    }
    write_tools(w);
}

static void write_calls(hd_chat_writer *w, const hd_message *m) {
    const hd_chat_turns *k = w->e->turns;
    if (m->n_call == 0) return;
    hd_chat_markup(w, k->calls);
    for (size_t i = 0; i < m->n_call; i++) {
        const hd_str args = m->call[i].arguments;
        if (i > 0) hd_chat_markup(w, k->call_join);
        hd_chat_markup(w, k->call);
        hd_chat_plain(w, m->call[i].name);
        hd_chat_markup(w, k->call_args);
        hd_chat_plain(w, args.len > 0 ? args : hd_str_of("{}"));
        hd_chat_markup(w, k->call_end);
    }
    hd_chat_markup(w, k->calls_end);
}

/* The last message, left open. */
static void write_continued(hd_chat_writer *w, const hd_message *m, bool after_user) {
    const hd_chat_turns *k = w->e->turns;
    if (m->reasoning.len == 0) {
        if (after_user) hd_chat_markup(w, k->past);
        hd_chat_plain(w, without_reasoning(m->content));
        return;
    }
    if (after_user)
        hd_chat_markup(w, k->answer_thinking);
    else
        hd_chat_markup(w, k->think);
    hd_chat_plain(w, m->reasoning);
    w->start.in_reasoning = m->content.len == 0;
    if (w->start.in_reasoning) return;
    hd_chat_markup(w, k->think_end);
    hd_chat_plain(w, m->content);
}

static void write_assistant(hd_chat_writer *w, const hd_message *m, bool after_user) {
    if (after_user) hd_chat_markup(w, w->e->turns->past);
    hd_chat_plain(w, without_reasoning(m->content));
    write_calls(w, m);
    hd_chat_markup(w, w->e->turns->end);
}

/* The beginning of a call, as much of it as is certain. */
static void write_forced(hd_chat_writer *w) {
    const hd_chat_turns *k = w->e->turns;
    hd_chat_flush(w);
    size_t n_before = w->out->n;
    hd_chat_markup(w, k->calls);
    hd_chat_markup(w, k->call);
    if (w->p->forced_tool.len > 0) {
        hd_chat_plain(w, w->p->forced_tool);
        hd_chat_markup(w, k->call_args);
    }
    hd_chat_flush(w);
    w->start.n_forced = w->out->n - n_before;
}

static void write_tool_result(hd_chat_writer *w, size_t i) {
    const hd_chat_turns *k = w->e->turns;
    const hd_message *m = &w->p->message[i];
    bool is_first = i == 0 || m[-1].role != HD_ROLE_TOOL;
    bool is_last = i + 1 == w->p->n_message || m[1].role != HD_ROLE_TOOL;
    hd_chat_markup(w, is_first ? k->outputs : k->output_join);
    hd_chat_markup(w, k->output);
    hd_chat_plain(w, m->content);
    hd_chat_markup(w, k->output_end);
    if (is_last) hd_chat_markup(w, k->outputs_end);
}

void hd_chat_turns_write(hd_chat_writer *w) {
    const hd_chat_turns *k = w->e->turns;
    const hd_chat_prompt *p = w->p;
    bool after_user = false;
    write_system(w);
    for (size_t i = 0; i < p->n_message; i++) {
        const hd_message *m = &p->message[i];
        if (is_system(m)) continue; /* written first; does not end a user's turn */
        if (m->role == HD_ROLE_USER) {
            hd_chat_markup(w, k->user);
            hd_chat_plain(w, m->content);
        } else if (m->role == HD_ROLE_TOOL) {
            write_tool_result(w, i);
        } else if (i + 1 == p->n_message && p->continue_final) {
            write_continued(w, m, after_user);
        } else {
            write_assistant(w, m, after_user);
        }
        after_user = m->role == HD_ROLE_USER;
    }
    if (p->no_generation_prefix) return;
    if (after_user) {
        hd_chat_markup(w, p->thinking ? k->answer_thinking : k->answer);
        w->start.in_reasoning = p->thinking;
    }
    if (p->tool_choice == HD_TOOL_REQUIRED) write_forced(w);
}
