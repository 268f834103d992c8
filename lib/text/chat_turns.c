/* Chat encodings that are turns between markers: system texts, then what users, the assistant and
 * tools said; one struct of texts an encoding. */
#include "text/chat_impl.h"

#include <string.h>

static const char think_end[] = HD_THINK_END;

/* What follows the first or the last </think>; all of it when there is none. */
static hd_str without_reasoning(hd_str s, enum hd_chat_drop drop) {
    size_t n = strlen(think_end);
    const char *end =
        drop == HD_DROP_NOTHING || s.len < n ? NULL : memmem(s.ptr, s.len, think_end, n);
    while (end) {
        end += n;
        s = (hd_str){end, s.len - (size_t)(end - s.ptr)};
        end = drop == HD_DROP_TO_LAST ? memmem(s.ptr, s.len, think_end, n) : NULL;
    }
    return s;
}

/* Encodings of this kind have no other developer messages. */
static bool is_system(const hd_message *m) {
    return m->role == HD_ROLE_SYSTEM || m->role == HD_ROLE_DEVELOPER;
}

static void write_tools(hd_chat_writer *w) {
    const hd_chat_turns *k = w->e->turns;
    if (w->p->n_tool == 0) return;
    hd_chat_markup(w, k->tools);
    for (size_t i = 0; i < w->p->n_tool; i++) {
        const hd_tool *t = &w->p->tool[i];
        if (k->tool) {
            hd_chat_markup(w, k->tool);
            hd_chat_plain(w, t->function);
            hd_chat_markup(w, k->tool_end);
            continue;
        }
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
    const hd_chat_turns *k = w->e->turns;
    const hd_chat_prompt *p = w->p;
    size_t n = 0, n_all = 0;
    for (size_t i = 0; i < p->n_message; i++) n_all += is_system(&p->message[i]);
    if (n_all == 0) hd_chat_markup(w, k->system_default);
    for (size_t i = 0; i < p->n_message && k->systems != HD_SYSTEMS_IN_PLACE; i++) {
        if (!is_system(&p->message[i])) continue;
        n++;
        if (k->systems == HD_SYSTEMS_LAST_ONLY && n < n_all) continue;
        if (k->systems == HD_SYSTEMS_FIRST && n > 1) hd_chat_markup(w, k->system_join);
        hd_chat_plain(w, p->message[i].content);
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
static void write_continued(hd_chat_writer *w, const hd_message *m, bool is_answer) {
    const hd_chat_turns *k = w->e->turns;
    if (m->reasoning.len == 0) {
        if (is_answer) hd_chat_markup(w, k->past);
        hd_chat_plain(w, without_reasoning(m->content, k->drop));
        return;
    }
    hd_chat_markup(w, is_answer ? k->answer_thinking : k->think);
    hd_chat_plain(w, m->reasoning);
    w->start.in_reasoning = m->content.len == 0;
    if (w->start.in_reasoning) return;
    hd_chat_markup(w, k->think_end);
    hd_chat_plain(w, m->content);
}

static void write_assistant(hd_chat_writer *w, const hd_message *m, bool is_answer) {
    const hd_chat_turns *k = w->e->turns;
    if (is_answer) hd_chat_markup(w, k->past);
    hd_chat_plain(w, without_reasoning(m->content, k->drop));
    write_calls(w, m);
    hd_chat_markup(w, k->past_end);
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

static void write_message(hd_chat_writer *w, size_t i, bool is_answer) {
    const hd_chat_turns *k = w->e->turns;
    const hd_message *m = &w->p->message[i];
    if (is_system(m)) {
        hd_chat_plain(w, m->content);
        hd_chat_markup(w, k->system_end);
    } else if (m->role == HD_ROLE_USER) {
        hd_chat_markup(w, k->user);
        hd_chat_plain(w, m->content);
        hd_chat_markup(w, k->user_end);
    } else if (m->role == HD_ROLE_TOOL) {
        write_tool_result(w, i);
    } else if (i + 1 == w->p->n_message && w->p->continue_final) {
        write_continued(w, m, is_answer);
    } else {
        write_assistant(w, m, is_answer);
    }
}

void hd_chat_turns_write(hd_chat_writer *w) {
    const hd_chat_turns *k = w->e->turns;
    const hd_chat_prompt *p = w->p;
    bool is_answer = k->answers_any; /* what the assistant says next begins a turn */
    write_system(w);
    for (size_t i = 0; i < p->n_message; i++) {
        const hd_message *m = &p->message[i];
        if (is_system(m) && k->systems != HD_SYSTEMS_IN_PLACE)
            continue; /* written first; does not end a user's turn */
        write_message(w, i, is_answer);
        is_answer = m->role == HD_ROLE_USER || (k->answers_any && m->role != HD_ROLE_TOOL);
    }
    if (p->no_generation_prefix || p->continue_final) return;
    if (is_answer) {
        hd_chat_markup(w, p->thinking ? k->answer_thinking : k->answer);
        w->start.in_reasoning = p->thinking;
        w->start.strip_space = w->e->strip_space;
    }
    if (p->tool_choice == HD_TOOL_REQUIRED) write_forced(w);
}
