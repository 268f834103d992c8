/* hadal tokenize: text to token ids, as a table for people or line by line for programs. */
#include "base/utf8.h"
#include "cmd/command.h"
#include "engine/load.h"
#include "text/tokenizer.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { input_max = 1 << 30, flush_bytes = 1 << 16 };

struct job {
    const hd_tokenizer *t;
    bool match_added, add_bos;
    hd_ids ids;
    hd_buf out;
    size_t n_line;
};

static void encode(struct job *j, hd_str text) {
    j->ids.n = 0;
    if (j->add_bos) hd_ids_add(&j->ids, hd_tokenizer_bos(j->t));
    hd_tokenizer_encode(j->t, text, j->match_added, &j->ids);
}

static hd_status flush(struct job *j) {
    for (size_t at = 0; at < j->out.len;) {
        ssize_t n = write(STDOUT_FILENO, j->out.ptr + at, j->out.len - at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return HD_FAIL(IO, "cannot write: %s", strerror(errno));
        at += (size_t)n;
    }
    hd_buf_clear(&j->out);
    return HD_OK;
}

/* Appends more of stdin to b; *ended at its end. */
static hd_status read_more(hd_buf *b, bool *ended) {
    char piece[1 << 16];
    ssize_t n;
    do n = read(STDIN_FILENO, piece, sizeof piece);
    while (n < 0 && errno == EINTR);
    if (n < 0) return HD_FAIL(IO, "cannot read: %s", strerror(errno));
    *ended = n == 0;
    hd_buf_add(b, piece, (size_t)n);
    if (b->overflowed) return HD_FAIL(TOO_LARGE, "more than %d bytes of input", input_max);
    return HD_OK;
}

/* ---- lines of JSON ---- */

static void add_number(hd_buf *b, int32_t v) {
    char digits[12];
    size_t at = sizeof digits;
    uint32_t u = (uint32_t)v; /* ids are not negative */
    do digits[--at] = (char)('0' + u % 10);
    while ((u /= 10) > 0);
    hd_buf_add(b, digits + at, sizeof digits - at);
}

static hd_status encode_line(struct job *j, const char *line, size_t n) {
    json_error_t e;
    j->n_line++;
    json_t *root = json_loadb(line, n, JSON_ALLOW_NUL | JSON_DECODE_ANY, &e);
    if (!root)
        return HD_FAIL(CORRUPT, "line %zu: not valid JSON: column %d: %s", j->n_line, e.column,
                       e.text);
    const json_t *text = json_object_get(root, "text");
    if (!json_is_string(text)) {
        json_decref(root);
        return HD_FAIL(CORRUPT, "line %zu: expected an object with a string \"text\"", j->n_line);
    }
    encode(j, (hd_str){json_string_value(text), json_string_length(text)});
    json_decref(root);
    hd_buf_add_c(&j->out, "{\"ids\": [");
    for (size_t i = 0; i < j->ids.n; i++) {
        if (i > 0) hd_buf_add(&j->out, ", ", 2);
        add_number(&j->out, j->ids.id[i]);
    }
    hd_buf_add_c(&j->out, "]}\n");
    return j->out.len > flush_bytes ? flush(j) : HD_OK;
}

/* Answers every whole line that has come before it waits for more, so that a program may write a
 * line and read its answer. */
static hd_status encode_lines(struct job *j, hd_buf *in) {
    bool ended = false;
    size_t searched = 0; /* bytes of in that hold no newline */
    while (!ended) {
        HD_TRY(flush(j));
        HD_TRY(read_more(in, &ended));
        const char *line = hd_buf_str(in).ptr, *end = line + in->len, *at = line + searched;
        for (const char *stop; (stop = memchr(at, '\n', (size_t)(end - at))); at = line = stop + 1)
            HD_TRY(encode_line(j, line, (size_t)(stop - line)));
        hd_buf_drop_front(in, (size_t)(line - hd_buf_str(in).ptr));
        searched = in->len;
    }
    return in->len > 0 ? encode_line(j, in->ptr, in->len) : HD_OK;
}

/* ---- a table ---- */

/* Bytes in quotes: valid characters as they are, control characters and other bytes escaped. */
static void add_piece(hd_buf *b, hd_str s) {
    hd_buf_add(b, "\"", 1);
    for (size_t i = 0; i < s.len;) {
        unsigned char c = (unsigned char)s.ptr[i];
        uint32_t cp = 0;
        size_t len = hd_utf8_decode(s.ptr + i, s.len - i, &cp);
        if (c == '"' || c == '\\')
            hd_buf_addf(b, "\\%c", c);
        else if (c == '\n')
            hd_buf_add_c(b, "\\n");
        else if (len == 0 || cp < 32 || (cp >= 127 && cp < 160))
            hd_buf_addf(b, "\\x%02X", c);
        else
            hd_buf_add(b, s.ptr + i, len);
        i += len && cp >= 160 ? len : 1;
    }
    hd_buf_add(b, "\"", 1);
}

static hd_status print_table(struct job *j, hd_str text) {
    encode(j, text);
    hd_buf_add_c(&j->out, "     id  piece\n");
    for (size_t i = 0; i < j->ids.n; i++) {
        int32_t id = j->ids.id[i];
        hd_buf_addf(&j->out, "%7d  ", id);
        add_piece(&j->out, hd_tokenizer_bytes(j->t, id));
        if (hd_tokenizer_is_special(j->t, id))
            hd_buf_add_c(&j->out, "  special");
        else if (hd_tokenizer_is_added(j->t, id))
            hd_buf_add_c(&j->out, "  added");
        hd_buf_add(&j->out, "\n", 1);
        if (j->out.len > flush_bytes) HD_TRY(flush(j));
    }
    hd_buf_addf(&j->out, "%zu tokens, %zu bytes\n", j->ids.n, text.len);
    return HD_OK;
}

/* ---- the command ---- */

static hd_status open_tokenizer(const struct hd_options *o, hd_tokenizer **out) {
    if (o->tokenizer) return hd_engine_open_tokenizer(NULL, o->tokenizer, out);
    hd_engine_config c;
    hd_checkpoint *model;
    hd_engine_config_init(&c);
    c.model = o->model;
    HD_TRY(hd_engine_open_checkpoint(&c, &model));
    hd_status s = hd_engine_open_tokenizer(model, NULL, out);
    hd_checkpoint_close(model);
    if (s == HD_OK && !*out)
        s = HD_FAIL(NOT_FOUND, "model %s has no tokenizer: give one with --tokenizer", o->model);
    return s;
}

static hd_status work(struct job *j, const struct hd_options *o, const char *text, hd_buf *in) {
    if (j->add_bos && hd_tokenizer_bos(j->t) < 0)
        return HD_FAIL(INVALID, "--add-bos: the tokenizer has no begin-of-sentence token");
    if (o->jsonl)
        HD_TRY(encode_lines(j, in));
    else if (text)
        HD_TRY(print_table(j, hd_str_of(text)));
    else {
        for (bool ended = false; !ended;) HD_TRY(read_more(in, &ended));
        HD_TRY(print_table(j, hd_buf_str(in)));
    }
    return HD_OK;
}

static int run(const struct hd_options *o, int n_arg, char **arg) {
    hd_tokenizer *t = NULL;
    hd_buf in;
    if (n_arg > 1) return hd_command_usage(&hd_cmd_tokenize, "expected one TEXT, found %d", n_arg);
    if (n_arg == 1 && o->jsonl)
        return hd_command_usage(&hd_cmd_tokenize, "--jsonl reads stdin and takes no TEXT");
    if (open_tokenizer(o, &t) != HD_OK) return hd_command_error(&hd_cmd_tokenize);
    struct job j = {.t = t, .match_added = o->special, .add_bos = o->add_bos};
    hd_buf_init(&in, input_max);
    hd_buf_init(&j.out, SIZE_MAX / 2);
    hd_status s = work(&j, o, n_arg == 1 ? arg[0] : NULL, &in);
    int code = s == HD_OK ? 0 : hd_command_error(&hd_cmd_tokenize);
    if (s != HD_E_IO && flush(&j) != HD_OK) code = hd_command_error(&hd_cmd_tokenize);
    hd_ids_fini(&j.ids);
    hd_buf_fini(&in);
    hd_buf_fini(&j.out);
    hd_tokenizer_free(t);
    return code;
}

const struct hd_command hd_cmd_tokenize = {
    .name = "tokenize",
    .summary = "show the token ids of a text",
    .usage = "[options] [TEXT]",
    .details =
        "Without TEXT, stdin is the text. The tokenizer is the model's, or that of --tokenizer.\n"
        "  hadal tokenize 'Hello, world!'\n"
        "  hadal tokenize --tokenizer tokenizer.json --jsonl < texts.jsonl > ids.jsonl\n",
    .run = run,
};
