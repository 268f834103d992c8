/* Chat encodings since V3.2, as DeepSeek's Python encoders write them: reasoning is kept after the
 * last user message only (or everywhere), tool calls are DSML markup.
 *
 * V3.2 answers each user message, and puts results in a block of their own. V4 and V4.1 make one
 * turn of a user's and tools' messages, answered before an assistant's message or at the end. */
#include "text/chat_impl.h"

#include "base/mem.h"
#include "text/json_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct walk {
    hd_chat_writer *w;
    const hd_chat_dsml *k;
    const hd_chat_prompt *p;
    size_t n_front;           /* system messages at the beginning, written as one */
    size_t last_user;         /* the message that is answered last; SIZE_MAX: none */
    bool thinking, keeps_all; /* keeps_all: no reasoning is dropped */
    bool is_pending;          /* what the model is to answer has been written */
    bool after_results;       /* in a block of results (V3.2) */
    size_t pending;           /* the last message of it */
} walk;

static bool is_kept(const walk *x, size_t i) {
    return x->thinking && (x->keeps_all || x->last_user == SIZE_MAX || i >= x->last_user);
}

static bool counts_as_user(const walk *x, size_t i) {
    enum hd_role r = x->p->message[i].role;
    return r == HD_ROLE_USER || r == HD_ROLE_DEVELOPER ||
           (r == HD_ROLE_SYSTEM && x->k->has_system && i >= x->n_front);
}

static walk begin(hd_chat_writer *w) {
    const hd_chat_prompt *p = w->p;
    const hd_message *last = &p->message[p->n_message - 1];
    walk x = {.w = w, .k = w->e->dsml, .p = p, .last_user = SIZE_MAX};
    size_t n_front_max = x.k->has_system ? 1 : p->n_message;
    while (x.n_front < n_front_max && x.n_front < p->n_message &&
           p->message[x.n_front].role == HD_ROLE_SYSTEM)
        x.n_front++;
    for (size_t i = 0; i < p->n_message; i++)
        if (counts_as_user(&x, i)) x.last_user = i;
    x.thinking = p->thinking || (p->continue_final && last->reasoning.len > 0);
    x.keeps_all = p->keep_reasoning || (w->has_tools && x.k->has_user_turns);
    return x;
}

/* ---- the front: effort, system texts, tools ---- */

static const char effort_high[] =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to "
    "resolve the root cause, rigorously stress-testing your logic against all potential paths, "
    "edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, "
    "considered alternative, and rejected hypothesis to ensure absolutely no assumption is left "
    "unchecked.\n\n";
static const char effort_max[] =
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: "
    "exhaustively decompose the problem into its most fundamental components, trace every causal "
    "chain to its root, and resolve the underlying cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles "
    "and are certain that no assumption remains unchecked and no error remains undiscovered.\n\n";

enum { level_default = 50, level_high = 50, level_max = 100 };

/* "" when nothing is said of it. */
static const char *effort_text(const walk *x, char room[128]) {
    int level = x->p->effort;
    if (!x->thinking) return "";
    switch (x->k->effort) {
    case HD_EFFORT_NONE: break;
    case HD_EFFORT_MAX_ONLY: return level >= level_max ? effort_high : "";
    case HD_EFFORT_WORDS:
        return level >= level_max ? effort_max : level >= level_high ? effort_high : "";
    case HD_EFFORT_NUMBER:
        snprintf(room, 128,
                 "Reasoning Effort: %d (range 1-100, the higher the value, the more thorough the "
                 "reasoning)\n\n",
                 level ? level : level_default);
        return room;
    }
    return "";
}

static void write_tools(walk *x) {
    if (x->p->n_tool == 0) return;
    hd_chat_markup(x->w, "\n\n");
    hd_chat_markup(x->w, x->k->tools);
    for (size_t i = 0; i < x->p->n_tool; i++) {
        hd_chat_plain(x->w, x->p->tool[i].function);
        hd_chat_markup(x->w, "\n");
    }
    hd_chat_markup(x->w, x->k->tools_end);
}

static void write_response_format(walk *x) {
    if (x->p->schema.len == 0) return;
    hd_chat_markup(x->w, "\n\n## Response Format:\n\nYou MUST strictly adhere to the following "
                         "schema to reply:\n");
    hd_chat_plain(x->w, x->p->schema);
}

static void write_front(walk *x) {
    char room[128];
    const char *effort = effort_text(x, room);
    bool has_text = x->n_front > 0 || *effort || x->p->n_tool > 0 || x->p->schema.len > 0;
    if (x->k->has_system && has_text) hd_chat_markup(x->w, HD_SYSTEM);
    hd_chat_plain(x->w, hd_str_of(effort));
    for (size_t i = 0; i < x->n_front; i++) {
        if (i > 0) hd_chat_markup(x->w, "\n\n");
        hd_chat_plain(x->w, x->p->message[i].content);
    }
    write_tools(x);
    write_response_format(x);
}

/* ---- calls ---- */

static void write_parameter(walk *x, hd_str name, hd_str value, bool is_string) {
    hd_chat_markup(x->w, x->k->param);
    hd_chat_plain(x->w, name);
    hd_chat_markup(x->w, is_string ? "\" string=\"true\">" : "\" string=\"false\">");
    hd_chat_plain(x->w, value);
    hd_chat_markup(x->w, x->k->param_end);
}

/* Arguments that are no JSON object, as a model may have written them, are one parameter. */
static void write_parameters(walk *x, hd_str args) {
    hd_buf name, text;
    hd_str key, value;
    size_t at = 0, n = 0;
    args = hd_json_text_trim(args);
    if (args.len == 0) return;
    if (*args.ptr != '{' || !hd_json_text_is_value(args)) {
        write_parameter(x, hd_str_of("arguments"), args, true);
        return;
    }
    hd_buf_init(&name, SIZE_MAX / 2);
    hd_buf_init(&text, SIZE_MAX / 2);
    while (hd_json_text_member(args, &at, &key, &value)) {
        bool is_string = *value.ptr == '"';
        hd_buf_clear(&name);
        hd_buf_clear(&text);
        hd_json_text_decode(&name, key);
        if (is_string)
            hd_json_text_decode(&text, value);
        else
            hd_json_text_respace(&text, value);
        if (n++ > 0) hd_chat_markup(x->w, "\n");
        write_parameter(x, hd_buf_str(&name), hd_buf_str(&text), is_string);
    }
    hd_buf_fini(&name);
    hd_buf_fini(&text);
}

static void write_calls(walk *x, const hd_message *m) {
    if (m->n_call == 0) return;
    hd_chat_markup(x->w, "\n\n");
    hd_chat_markup(x->w, x->k->block);
    hd_chat_markup(x->w, "\n");
    for (size_t i = 0; i < m->n_call; i++) {
        hd_chat_markup(x->w, x->k->invoke);
        hd_chat_plain(x->w, m->call[i].name);
        hd_chat_markup(x->w, "\">\n");
        write_parameters(x, m->call[i].arguments);
        hd_chat_markup(x->w, "\n");
        hd_chat_markup(x->w, x->k->invoke_end);
        hd_chat_markup(x->w, "\n");
    }
    hd_chat_markup(x->w, x->k->block_end);
}

static void write_forced(walk *x) {
    hd_chat_flush(x->w);
    size_t n_before = x->w->out->n;
    hd_chat_markup(x->w, "\n\n");
    hd_chat_markup(x->w, x->k->block);
    hd_chat_markup(x->w, "\n");
    hd_chat_markup(x->w, x->k->invoke);
    if (x->p->forced_tool.len > 0) {
        hd_chat_plain(x->w, x->p->forced_tool);
        hd_chat_markup(x->w, "\">\n");
    }
    hd_chat_flush(x->w);
    x->w->start.n_forced = x->w->out->n - n_before;
}

/* ---- results, in the order of the calls they answer ---- */

struct ranked {
    hd_str id;
    size_t ix, rank; /* the message; its call's place */
};

static int by_id(const void *a, const void *b) {
    hd_str s = ((const struct ranked *)a)->id, t = ((const struct ranked *)b)->id;
    if (s.len != t.len) return s.len < t.len ? -1 : 1;
    return s.len == 0 ? 0 : memcmp(s.ptr, t.ptr, s.len);
}

static int by_rank(const void *a, const void *b) {
    const struct ranked *s = a, *t = b;
    if (s->rank != t->rank) return s->rank < t->rank ? -1 : 1;
    return s->ix < t->ix ? -1 : s->ix > t->ix;
}

/* The tool messages of [from, to), sorted; heap. One that answers no call stays behind those that
 * do. */
static struct ranked *sorted_results(const walk *x, size_t from, size_t to, size_t *n) {
    const hd_message *m = x->p->message;
    struct ranked *result = hd_alloc_zero(to - from, sizeof *result);
    *n = 0;
    for (size_t i = from; i < to; i++)
        if (m[i].role == HD_ROLE_TOOL)
            result[(*n)++] = (struct ranked){.id = m[i].call_id, .ix = i, .rank = SIZE_MAX};
    const hd_message *caller = NULL;
    for (size_t i = 0; i < from; i++)
        if (m[i].role == HD_ROLE_ASSISTANT) caller = &m[i];
    size_t n_call = caller ? caller->n_call : 0;
    struct ranked *call = hd_alloc_zero(n_call, sizeof *call);
    for (size_t i = 0; i < n_call; i++)
        call[i] = (struct ranked){.id = caller->call[i].id, .rank = i};
    qsort(call, n_call, sizeof *call, by_id);
    for (size_t i = 0; i < *n; i++) {
        const struct ranked *c =
            n_call == 0 ? NULL : bsearch(&result[i], call, n_call, sizeof *call, by_id);
        if (c && c->id.len > 0) result[i].rank = c->rank;
    }
    qsort(result, *n, sizeof *result, by_rank);
    hd_free(call);
    return result;
}

static void write_result(walk *x, size_t i) {
    hd_chat_markup(x->w, x->k->result);
    hd_chat_plain(x->w, x->p->message[i].content);
    hd_chat_markup(x->w, x->k->result_end);
}

/* V3.2: a block of results. Returns the message after it. */
static size_t write_results(walk *x, size_t from) {
    size_t to = from, n;
    while (to < x->p->n_message && x->p->message[to].role == HD_ROLE_TOOL) to++;
    struct ranked *result = sorted_results(x, from, to, &n);
    hd_chat_markup(x->w, x->k->results);
    for (size_t i = 0; i < n; i++) write_result(x, result[i].ix);
    hd_chat_markup(x->w, x->k->results_end);
    hd_free(result);
    x->after_results = true;
    return to;
}

/* V4: a user's and tools' messages as one turn; results take the places that tools have. */
static size_t write_user_turn(walk *x, size_t from) {
    const hd_message *m = x->p->message;
    size_t to = from, n, k = 0;
    while (to < x->p->n_message && (m[to].role == HD_ROLE_USER || m[to].role == HD_ROLE_TOOL)) to++;
    struct ranked *result = sorted_results(x, from, to, &n);
    hd_chat_markup(x->w, HD_USER);
    for (size_t i = from; i < to; i++) {
        if (i > from) hd_chat_markup(x->w, "\n\n");
        if (m[i].role == HD_ROLE_TOOL)
            write_result(x, result[k++].ix);
        else
            hd_chat_plain(x->w, m[i].content);
    }
    hd_free(result);
    return to;
}

/* ---- messages ---- */

static void write_think(walk *x, bool thinks) {
    hd_chat_markup(x->w, thinks ? HD_THINK : HD_THINK_END);
}

/* What makes the model answer what is pending. */
static void answer(walk *x) {
    if (!x->is_pending) return;
    hd_chat_markup(x->w, x->after_results ? "\n\n" : HD_ASSISTANT);
    write_think(x, is_kept(x, x->pending));
    x->is_pending = x->after_results = false;
}

static void write_assistant(walk *x, size_t i) {
    const hd_message *m = &x->p->message[i];
    bool is_open = x->p->continue_final && i + 1 == x->p->n_message;
    if (is_kept(x, i)) {
        hd_chat_plain(x->w, m->reasoning);
        x->w->start.in_reasoning = is_open && m->content.len == 0;
        if (x->w->start.in_reasoning) return;
        write_think(x, false);
    }
    hd_chat_plain(x->w, m->content);
    write_calls(x, m);
    if (!is_open) hd_chat_markup(x->w, HD_EOS);
}

static void write_user(walk *x, const hd_message *m) {
    hd_chat_markup(x->w, HD_USER);
    if (m->role == HD_ROLE_DEVELOPER && !x->k->has_user_turns)
        hd_chat_markup(x->w, "\n\n# The user's message is: ");
    hd_chat_plain(x->w, m->content);
}

/* The messages from i on that are written together; returns the one after them. */
static size_t write_message(walk *x, size_t i) {
    const hd_message *m = &x->p->message[i];
    size_t next = i + 1;
    switch (m->role) {
    case HD_ROLE_ASSISTANT: write_assistant(x, i); return next;
    case HD_ROLE_LATEST_REMINDER:
        hd_chat_markup(x->w, HD_REMINDER);
        hd_chat_plain(x->w, m->content);
        return next;
    case HD_ROLE_SYSTEM:
        hd_chat_markup(x->w, x->k->has_system ? HD_SYSTEM : x->is_pending ? "\n\n" : "");
        hd_chat_plain(x->w, m->content);
        if (!x->k->has_system) return next;
        break;
    case HD_ROLE_DEVELOPER:
        if (x->thinking && !x->keeps_all && i < x->last_user) return next;
        write_user(x, m);
        break;
    case HD_ROLE_USER:
        if (x->k->has_user_turns)
            next = write_user_turn(x, i);
        else
            write_user(x, m);
        break;
    case HD_ROLE_TOOL: next = x->k->has_user_turns ? write_user_turn(x, i) : write_results(x, i);
    }
    x->is_pending = true;
    x->pending = next - 1;
    return next;
}

static void write_end(walk *x) {
    hd_chat_writer *w = x->w;
    const char *task = x->p->task.len > 0 ? hd_chat_task_marker(x->p->task) : NULL;
    if (x->p->no_generation_prefix || x->p->continue_final) return;
    if (task) {
        if (hd_str_eq_c(x->p->task, "action")) answer(x);
        hd_chat_markup(w, task);
        return;
    }
    w->start.in_reasoning = x->is_pending && is_kept(x, x->pending);
    answer(x);
    if (x->p->tool_choice == HD_TOOL_REQUIRED) write_forced(x);
}

void hd_chat_dsml_write(hd_chat_writer *w) {
    walk x = begin(w);
    write_front(&x);
    for (size_t i = x.n_front; i < x.p->n_message;) {
        enum hd_role r = x.p->message[i].role;
        bool is_apart = r == HD_ROLE_SYSTEM || r == HD_ROLE_LATEST_REMINDER;
        if (r == HD_ROLE_ASSISTANT || (!x.k->has_user_turns && !is_apart)) answer(&x);
        i = write_message(&x, i);
    }
    write_end(&x);
}
