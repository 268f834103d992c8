/* hadal run: one answer (-p), or a chat in the terminal. Text goes to stdout, everything else to
 * stderr, so that the answer can be piped. */
#include "base/mem.h"
#include "cmd/command.h"
#include "cmd/generate.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { exit_interrupted = 130 };

/* Everything one run keeps: the engine, the settings, the conversation. */
typedef struct session {
    const struct hd_options *o;
    hd_engine *e;
    bool thinking, is_tty;
    bool is_raw;         /* no chat: the prompt is continued as it is, or up to a suffix */
    hd_message *message; /* [n_message], contents on the heap */
    size_t n_message, message_room;
    char *system; /* or NULL */
    hd_generated last;
} session;

/* Where an answer's text goes while it comes. */
typedef struct printer {
    const session *s;
    hd_text_stream *stream;
    bool is_dim;
    hd_buf reasoning, content;
    int32_t *token; /* [n_token] for --json */
    int n_token, token_room;
} printer;

/* ---- printing ---- */

/* Reasoning is dimmed on a terminal and stands between its markers elsewhere. */
static void set_dim(printer *p, bool dim) {
    if (p->is_dim == dim || p->s->o->json) return;
    if (p->s->is_tty)
        fputs(dim ? "\033[2m" : "\033[0m\n", stdout);
    else
        fputs(dim ? "<think>" : "</think>\n", stdout);
    p->is_dim = dim;
}

static void print_text(printer *p, hd_text_out t) {
    hd_buf_add(&p->reasoning, t.reasoning.ptr, t.reasoning.len);
    hd_buf_add(&p->content, t.content.ptr, t.content.len);
    if (p->s->o->json) return;
    if (t.reasoning.len > 0) {
        set_dim(p, true);
        fwrite(t.reasoning.ptr, 1, t.reasoning.len, stdout);
    }
    if (t.content.len > 0) {
        set_dim(p, false);
        fwrite(t.content.ptr, 1, t.content.len, stdout);
    }
    fflush(stdout);
}

static bool on_token(void *user, const hd_event *ev) {
    printer *p = user;
    if (p->n_token == p->token_room) {
        p->token_room = p->token_room ? 2 * p->token_room : 256;
        p->token = hd_realloc(p->token, (size_t)p->token_room * sizeof *p->token);
    }
    p->token[p->n_token++] = ev->token;
    if (!ev->is_end_token) print_text(p, hd_text_stream_feed(p->stream, ev->token));
    return !ferror(stdout);
}

static void print_stats(const hd_generated *g) {
    static const char *const why[] = {"", "", ", at the token limit", ", interrupted", ", failed"};
    fprintf(stderr, "[%d prompt tokens (%d cached), first token after %.0f ms; %d generated%s, ",
            g->n_prompt, g->n_hit, g->first_s * 1e3, g->n_generated, why[g->finish]);
    fprintf(stderr, "%.1f tok/s]\n", g->token_s);
}

static void print_json(const printer *p, const hd_generated *g) {
    static const char *const finish[] = {"", "stop", "length", "cancelled", "error"};
    hd_buf b;
    hd_buf_init(&b, SIZE_MAX / 2);
    hd_json j = hd_json_begin(&b);
    hd_json_object(&j);
    hd_json_key(&j, "text");
    hd_json_str(&j, p->content.ptr, p->content.len);
    hd_json_key(&j, "reasoning");
    hd_json_str(&j, p->reasoning.ptr, p->reasoning.len);
    hd_json_key(&j, "token_ids");
    hd_json_array(&j);
    for (int i = 0; i < p->n_token; i++) hd_json_int(&j, p->token[i]);
    hd_json_array_end(&j);
    hd_json_key(&j, "finish_reason");
    hd_json_str_c(&j, finish[g->finish]);
    hd_json_key(&j, "prompt_tokens");
    hd_json_int(&j, g->n_prompt);
    hd_json_key(&j, "prompt_cache_hit_tokens");
    hd_json_int(&j, g->n_hit);
    hd_json_key(&j, "completion_tokens");
    hd_json_int(&j, g->n_generated);
    hd_json_key(&j, "first_token_s");
    hd_json_num(&j, g->first_s);
    hd_json_key(&j, "tokens_per_s");
    hd_json_num(&j, g->token_s);
    hd_json_object_end(&j);
    printf("%s\n", b.ptr);
    hd_buf_fini(&b);
}

/* ---- one generation ---- */

static void fill_request(const session *s, const hd_token_list *prompt, hd_request *r,
                         hd_str stop[HD_STOP_MAX]) {
    const struct hd_options *o = s->o;
    hd_request_init(r);
    r->prompt = prompt->id;
    r->n_prompt = (int)prompt->n;
    r->max_tokens = o->max_tokens;
    r->sampling.temperature = (float)o->temp;
    r->sampling.top_p = (float)o->top_p;
    r->sampling.min_p = (float)o->min_p;
    r->sampling.top_k = o->top_k;
    r->sampling.has_seed = o->seed >= 0;
    r->sampling.seed = (uint64_t)o->seed;
    r->n_stop = o->stop.n;
    for (int i = 0; i < r->n_stop; i++) stop[i] = hd_str_of(o->stop.item[i]);
    r->stop = stop;
}

/* Generates after prompt, printing; the answer is left in p. */
static hd_status generate(session *s, const hd_token_list *prompt, const hd_chat_start *start,
                          printer *p) {
    hd_str stop[HD_STOP_MAX];
    hd_request r;
    fill_request(s, prompt, &r, stop);
    r.is_chat = !s->is_raw;
    hd_text_stream_options so = {.in_reasoning = start->in_reasoning,
                                 .strip_space = start->strip_space,
                                 .split_reasoning = !s->is_raw,
                                 .stop = stop,
                                 .n_stop = r.n_stop};
    HD_TRY(hd_text_stream_new(s->e, &so, &p->stream));
    hd_status st = hd_generate(s->e, &r, on_token, p, &s->last);
    print_text(p, hd_text_stream_end(p->stream, false));
    set_dim(p, false);
    if (!s->o->json && p->n_token > 0) putchar('\n');
    fflush(stdout);
    hd_text_stream_free(p->stream);
    return st;
}

static void printer_init(printer *p, const session *s) {
    *p = (printer){.s = s};
    hd_buf_init(&p->reasoning, SIZE_MAX / 2);
    hd_buf_init(&p->content, SIZE_MAX / 2);
}

static void printer_fini(printer *p) {
    hd_buf_fini(&p->reasoning);
    hd_buf_fini(&p->content);
    hd_free(p->token);
}

/* ---- the conversation ---- */

static void add_message(session *s, enum hd_role role, hd_str text) {
    if (s->n_message == s->message_room) {
        s->message_room = s->message_room ? 2 * s->message_room : 16;
        s->message = hd_realloc(s->message, s->message_room * sizeof *s->message);
    }
    hd_str copy = {hd_strndup(text.len ? text.ptr : "", text.len), text.len};
    s->message[s->n_message++] = (hd_message){.role = role, .content = copy};
}

static void drop_messages(session *s, size_t n_left) {
    while (s->n_message > n_left)
        hd_free((void *)(uintptr_t)s->message[--s->n_message].content.ptr);
}

static void clear(session *s) {
    drop_messages(s, 0);
    if (s->system) add_message(s, HD_ROLE_SYSTEM, hd_str_of(s->system));
}

/* Answers the conversation. What failed leaves it as it was before the last message. */
static hd_status answer(session *s, hd_str text) {
    size_t n_before = s->n_message;
    add_message(s, HD_ROLE_USER, text);
    hd_chat_prompt in = {.message = s->message, .n_message = s->n_message, .thinking = s->thinking};
    hd_token_list prompt = {0};
    hd_chat_start start;
    printer p;
    printer_init(&p, s);
    hd_status st = hd_engine_chat(s->e, &in, &prompt, &start);
    if (st == HD_OK) st = generate(s, &prompt, &start, &p);
    if (st == HD_OK)
        add_message(s, HD_ROLE_ASSISTANT, hd_buf_str(&p.content));
    else
        drop_messages(s, n_before);
    if (st == HD_OK && s->o->json) print_json(&p, &s->last);
    hd_engine_free_ids(&prompt);
    printer_fini(&p);
    return st;
}

static hd_status complete(session *s, hd_str text) {
    hd_token_list prompt = {0};
    printer p;
    printer_init(&p, s);
    hd_status st = s->o->suffix ? hd_engine_fim(s->e, text, hd_str_of(s->o->suffix), &prompt)
                                : hd_engine_tokenize(s->e, text, true, true, &prompt);
    if (st == HD_OK) st = generate(s, &prompt, &(hd_chat_start){0}, &p);
    if (st == HD_OK && s->o->json) print_json(&p, &s->last);
    hd_engine_free_ids(&prompt);
    printer_fini(&p);
    return st;
}

/* ---- the chat's commands ---- */

static void help(session *s, const char *arg) {
    (void)s;
    (void)arg;
    fputs("/help            this\n"
          "/clear           forget the conversation\n"
          "/think on|off    let the model reason before it answers\n"
          "/system TEXT     set the system message (and forget the conversation)\n"
          "/stats           figures of the last answer and of the engine\n"
          "/quit            leave; so does Ctrl-D. Ctrl-C stops an answer\n",
          stderr);
}

static void command_clear(session *s, const char *arg) {
    (void)arg;
    clear(s);
}

static void think(session *s, const char *arg) {
    bool on = strcmp(arg, "on") == 0;
    if (on || strcmp(arg, "off") == 0) {
        const hd_engine_info *i = hd_engine_get_info(s->e);
        if (on && !i->can_think)
            fprintf(stderr, "this model's chat encoding has no thinking\n");
        else if (!on && i->always_thinks)
            fprintf(stderr, "this model always thinks\n");
        else
            s->thinking = on;
    }
    fprintf(stderr, "thinking is %s\n", s->thinking ? "on" : "off");
}

static void set_system(session *s, const char *arg) {
    hd_free(s->system);
    s->system = *arg ? hd_strdup(arg) : NULL;
    clear(s);
}

static void stats(session *s, const char *arg) {
    (void)arg;
    const hd_engine_info *i = hd_engine_get_info(s->e);
    hd_engine_stats t;
    hd_engine_get_stats(s->e, &t);
    if (s->last.n_prompt > 0) print_stats(&s->last);
    fprintf(stderr,
            "model %s (%s, %.1f M parameters, %s), %s: %s\ncontext %d tokens; KV pages: %d, of %d "
            "tokens each: %d free, %d cached, %d in use\n",
            i->model_name, i->arch, (double)i->n_param * 1e-6, i->weight_format, i->backend,
            i->device, i->max_model_len, i->n_page, i->block_size, t.n_page_free, t.n_page_cached,
            t.n_page_used);
}

static const struct {
    const char *name;
    void (*run)(session *s, const char *arg);
} chat_commands[] = {
    {"/help", help},         {"/clear", command_clear}, {"/think", think},
    {"/system", set_system}, {"/stats", stats},
};

/* False: the line asks to leave. */
static bool run_chat_command(session *s, const char *line) {
    if (strcmp(line, "/quit") == 0 || strcmp(line, "/exit") == 0) return false;
    for (size_t i = 0; i < HD_COUNT_OF(chat_commands); i++) {
        size_t n = strlen(chat_commands[i].name);
        if (strncmp(line, chat_commands[i].name, n) != 0 || (line[n] && line[n] != ' ')) continue;
        const char *arg = line + n;
        while (*arg == ' ') arg++;
        chat_commands[i].run(s, arg);
        return true;
    }
    fprintf(stderr, "no such command; /help lists them\n");
    return true;
}

static int chat(session *s) {
    bool prompts = isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
    char *line = NULL;
    size_t room = 0;
    int rc = 0;
    if (prompts) {
        fprintf(stderr, "%s, context of %d tokens. /help lists the commands.\n",
                hd_engine_get_info(s->e)->model_name, hd_engine_get_info(s->e)->max_model_len);
    }
    for (;;) {
        if (prompts) fputs("> ", stderr);
        errno = 0;
        ssize_t n = getline(&line, &room, stdin);
        if (n < 0 && errno == EINTR) {
            hd_generate_was_interrupted();
            clearerr(stdin);
            fputs("\n(Ctrl-D or /quit leaves)\n", stderr);
            continue;
        }
        if (n < 0) break;
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) line[--n] = 0;
        if (n == 0) continue;
        if (line[0] == '/') {
            if (!run_chat_command(s, line)) break;
            continue;
        }
        hd_status st = answer(s, (hd_str){line, (size_t)n});
        if (st != HD_OK) rc = hd_command_error(&hd_cmd_run);
        if (st == HD_E_CONTEXT) fprintf(stderr, "/clear forgets the conversation\n");
        if (st == HD_OK && prompts) print_stats(&s->last);
        if (ferror(stdout)) break;
        hd_generate_was_interrupted();
    }
    if (prompts) fputc('\n', stderr);
    free(line);
    return rc;
}

/* A prompt that writes the begin-of-sentence marker itself is already encoded. */
static bool names_bos(const hd_engine *e, hd_str text) {
    int32_t id = hd_engine_get_info(e)->bos;
    hd_str bos = id >= 0 ? hd_engine_token_bytes(e, id) : (hd_str){"", 0};
    return bos.len > 0 && text.len >= bos.len && memcmp(text.ptr, bos.ptr, bos.len) == 0;
}

static int one_shot(session *s) {
    hd_str text = hd_str_of(s->o->prompt);
    s->is_raw = s->o->raw || s->o->suffix || names_bos(s->e, text);
    if (s->is_raw && (s->o->system || s->o->thinking))
        return hd_command_usage(&hd_cmd_run, "the prompt begins with the begin-of-sentence "
                                             "marker, so it has no chat: no --system, no "
                                             "--thinking");
    if ((s->is_raw ? complete(s, text) : answer(s, text)) != HD_OK)
        return hd_command_error(&hd_cmd_run);
    if (!s->o->json && !ferror(stdout)) print_stats(&s->last);
    return s->last.finish == HD_FINISH_CANCELLED ? exit_interrupted : 0;
}

static int run(const struct hd_options *o, int n_arg, char **arg) {
    if (n_arg > 0)
        return hd_command_usage(&hd_cmd_run, "unexpected argument '%s' (the prompt goes to -p)",
                                arg[0]);
    if (!o->prompt && (o->raw || o->json || o->suffix))
        return hd_command_usage(&hd_cmd_run, "--raw, --suffix and --json need a prompt: -p TEXT");
    if ((o->raw || o->suffix) && (o->system || o->thinking))
        return hd_command_usage(&hd_cmd_run, "%s has no chat: no --system, no --thinking",
                                o->raw ? "--raw" : "--suffix");
    if (o->stop.n > HD_STOP_MAX)
        return hd_command_usage(&hd_cmd_run, "--stop: at most %d, found %d", HD_STOP_MAX,
                                o->stop.n);
    session s = {.o = o, .thinking = o->thinking, .is_tty = isatty(STDOUT_FILENO)};
    hd_engine_config c;
    hd_engine_config_from(o, &c);
    c.max_num_seqs = 1;
    if (hd_engine_open(&c, &s.e) != HD_OK) return hd_command_error(&hd_cmd_run);
    hd_generate_catch_interrupt();
    s.thinking |= hd_engine_get_info(s.e)->always_thinks;
    if (o->system) s.system = hd_strdup(o->system);
    clear(&s);
    int rc = o->prompt ? one_shot(&s) : chat(&s);
    drop_messages(&s, 0);
    hd_free(s.message);
    hd_free(s.system);
    hd_engine_close(s.e);
    return rc;
}

const struct hd_command hd_cmd_run = {
    .name = "run",
    .summary = "answer one prompt, or chat in the terminal",
    .usage = "[-p TEXT] [options]",
    .details =
        "With -p the answer goes to stdout and one line of figures to stderr. Without it, a\n"
        "chat: each line of stdin is a message, /help lists the commands. A prompt that begins\n"
        "with the begin-of-sentence marker is taken as already encoded, as with --raw: the\n"
        "special tokens written in it count.\n\n"
        "  hadal run -p 'What is 12 + 30?' --temp 0\n"
        "  hadal run --raw -p 'Once upon a time' -n 100\n"
        "  hadal run -p 'for i in ' --suffix ': print(i)' --temp 0\n"
        "  hadal run --model DeepSeek-V2-Lite.gguf --system 'Answer in French.'\n",
    .run = run,
};
