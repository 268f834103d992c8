/* hadal convert: a model of any kind that hadal reads, written as one GGUF file.
 *
 * Tensors and hyper-parameters go through lib/model's canonical list; the tokenizer, the chat
 * template and suggested sampling come from the Hugging Face files, or are copied from the source
 * GGUF. Says what became of every group of tensors. The target appears only when it is complete. */
#include "base/clock.h"
#include "base/mem.h"
#include "cmd/anatomy.h"
#include "cmd/command.h"
#include "file/json.h"
#include "model/export.h"
#include "text/tokenizer.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct job {
    hd_checkpoint *c;
    hd_hparams hp;
    hd_canon *k;
    hd_gguf_writer *w;
    enum hd_format *to; /* [hd_canon_count] */
    int wanted;         /* format or HD_EXPORT_AUTO */
    uint64_t done, all; /* bytes of tensors written, to write */
    hd_buf notes;       /* lines of the report */
};

/* ---- a target cut short by a signal leaves nothing ---- */

static char temporary[4096]; /* removed by the handler; "" when there is none */

static void on_signal(int sig) {
    if (temporary[0]) unlink(temporary);
    signal(sig, SIG_DFL);
    raise(sig);
}

static const int ending_signals[] = {SIGINT, SIGTERM, SIGHUP};

/* Creates the writer; no signal comes between the file's birth and the handler that knows it. */
static hd_status create_guarded(const char *target, hd_gguf_writer **w) {
    sigset_t set, before;
    sigemptyset(&set);
    for (size_t i = 0; i < HD_COUNT_OF(ending_signals); i++) sigaddset(&set, ending_signals[i]);
    sigprocmask(SIG_BLOCK, &set, &before);
    hd_status s = hd_gguf_create(target, w);
    if (s == HD_OK) {
        snprintf(temporary, sizeof temporary, "%s", hd_gguf_temporary(*w));
        for (size_t i = 0; i < HD_COUNT_OF(ending_signals); i++)
            signal(ending_signals[i], on_signal);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    return s;
}

/* ---- tokenizer and what else lies beside the weights ---- */

/* The text of a file of the folder; NULL (and HD_OK) when it is not there. */
static hd_status read_beside(const struct job *j, const char *name, hd_str *out) {
    char *text;
    size_t n;
    *out = (hd_str){0};
    hd_status s = hd_checkpoint_file(j->c, name, &text, &n);
    if (s == HD_E_NOT_FOUND) return HD_OK;
    if (s == HD_OK) *out = (hd_str){text, n};
    return s;
}

static void free_text(hd_str s) { hd_free((char *)(uintptr_t)s.ptr); }

/* The token list has a row for every row of the embedding, as llama.cpp wants it. */
static hd_status put_tokens(struct job *j, const hd_tokenizer_parts *p) {
    enum { type_unused = 5 };
    size_t n = (size_t)j->hp.n_vocab;
    if (p->n_token > n)
        return HD_FAIL(CORRUPT,
                       "%s: tokenizer: expected at most %zu tokens (vocab_size), found %zu",
                       hd_checkpoint_path(j->c), n, p->n_token);
    hd_str *token = hd_alloc(n * sizeof *token);
    int32_t *type = hd_alloc(n * sizeof *type);
    hd_arena *names = hd_arena_new(4096);
    for (size_t i = 0; i < n; i++) {
        char pad[32];
        bool is_there = i < p->n_token;
        snprintf(pad, sizeof pad, "[PAD%zu]", i);
        token[i] = is_there ? p->token[i] : hd_str_of(hd_arena_strndup(names, pad, strlen(pad)));
        type[i] = is_there ? p->type[i] : type_unused;
    }
    hd_gguf_set_strs(j->w, "tokenizer.ggml.tokens", token, n);
    hd_gguf_set_i32s(j->w, "tokenizer.ggml.token_type", type, n);
    hd_arena_free(names);
    hd_free(token);
    hd_free(type);
    return HD_OK;
}

static void put_token_id(struct job *j, const char *key, int32_t id) {
    if (id >= 0) hd_gguf_set_u32(j->w, key, (uint32_t)id);
}

/* The tokenizer's word counts more than config.json's, which released models have wrong. */
static void put_token_ids(struct job *j, int32_t bos, int32_t eos, int32_t pad) {
    put_token_id(j, "tokenizer.ggml.bos_token_id", bos >= 0 ? bos : j->hp.bos);
    put_token_id(j, "tokenizer.ggml.eos_token_id", eos >= 0 ? eos : j->hp.eos);
    put_token_id(j, "tokenizer.ggml.padding_token_id", pad >= 0 ? pad : j->hp.pad);
}

static hd_status put_parts(struct job *j, const hd_tokenizer_parts *p) {
    hd_tokenizer_parts said = *p;
    hd_tokenizer_imply(&said);
    if (said.ignore_merges != p->ignore_merges || said.nfc != p->nfc)
        return HD_FAIL(
            UNSUPPORTED,
            "%s: tokenizer.json: %s %s with the pre-tokenizer %.*s: GGUF cannot say it",
            hd_checkpoint_path(j->c), p->nfc != said.nfc ? "normalizer" : "ignore_merges",
            p->nfc != said.nfc ? (p->nfc ? "NFC" : "none") : (p->ignore_merges ? "true" : "false"),
            (int)p->pre.len, p->pre.ptr);
    hd_gguf_set_str(j->w, "tokenizer.ggml.model", hd_str_of("gpt2"));
    hd_gguf_set_str(j->w, "tokenizer.ggml.pre", p->pre);
    HD_TRY(put_tokens(j, p));
    hd_gguf_set_strs(j->w, "tokenizer.ggml.merges", p->merge, p->n_merge);
    put_token_ids(j, p->bos, p->eos, p->pad);
    hd_gguf_set_bool(j->w, "tokenizer.ggml.add_bos_token", p->add_bos);
    hd_gguf_set_bool(j->w, "tokenizer.ggml.add_eos_token", false);
    hd_buf_addf(&j->notes, "tokenizer: %zu tokens, %zu merges, pre-tokenizer %.*s\n", p->n_token,
                p->n_merge, (int)p->pre.len, p->pre.ptr);
    return HD_OK;
}

static hd_status put_tokenizer(struct job *j, hd_str json, hd_str config) {
    hd_tokenizer *t;
    hd_tokenizer_parts p;
    if (!json.ptr) { /* said in so many words: llama.cpp opens no file without the key */
        hd_gguf_set_str(j->w, "tokenizer.ggml.model", hd_str_of("none"));
        put_token_ids(j, -1, -1, -1);
        hd_buf_add_c(&j->notes, "tokenizer: none (there is no tokenizer.json)\n");
        return HD_OK;
    }
    HD_TRY(hd_tokenizer_from_json(json, config, "tokenizer.json", &t));
    hd_tokenizer_to_parts(t, &p);
    hd_status s = put_parts(j, &p);
    hd_free((void *)(uintptr_t)p.token);
    hd_free((void *)(uintptr_t)p.type);
    hd_free((void *)(uintptr_t)p.merge);
    hd_tokenizer_free(t);
    return s;
}

static void put_template(struct job *j, const char *name, const json_t *text) {
    char key[160] = "tokenizer.chat_template";
    if (!json_is_string(text)) return;
    if (name) snprintf(key, sizeof key, "tokenizer.chat_template.%s", name);
    hd_gguf_set_str(j->w, key, (hd_str){json_string_value(text), json_string_length(text)});
}

/* chat_template is a text, or a list of named ones of which "default" is the plain key's. */
static void put_templates(struct job *j, const json_t *v) {
    put_template(j, NULL, v);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *e = json_array_get(v, i);
        const char *name = json_string_value(json_object_get(e, "name"));
        if (!name || strlen(name) > 100) continue;
        bool is_repeated = false;
        for (size_t k = 0; k < i; k++) {
            const char *other = json_string_value(json_object_get(json_array_get(v, k), "name"));
            is_repeated |= other && strcmp(other, name) == 0;
        }
        if (!is_repeated)
            put_template(j, strcmp(name, "default") == 0 ? NULL : name,
                         json_object_get(e, "template"));
    }
}

static hd_status put_chat(struct job *j, hd_str config) {
    hd_str jinja;
    HD_TRY(read_beside(j, "chat_template.jinja", &jinja));
    if (jinja.ptr) {
        hd_gguf_set_str(j->w, "tokenizer.chat_template", jinja);
        free_text(jinja);
        hd_buf_add_c(&j->notes, "chat template: from chat_template.jinja\n");
        return HD_OK;
    }
    json_t *root;
    if (!config.ptr) return HD_OK;
    HD_TRY(hd_json_parse_texts(config, "tokenizer_config.json", &root));
    const json_t *v = json_object_get(root, "chat_template");
    put_templates(j, v);
    if (v) hd_buf_add_c(&j->notes, "chat template: from tokenizer_config.json\n");
    json_decref(root);
    return HD_OK;
}

/* The model's own suggestion, when it is to be sampled at all. */
static hd_status put_sampling(struct job *j) {
    hd_str text;
    json_t *root;
    HD_TRY(read_beside(j, "generation_config.json", &text));
    if (!text.ptr) return HD_OK;
    hd_status s = hd_json_parse(text, "generation_config.json", &root);
    free_text(text);
    if (s != HD_OK) return s;
    const json_t *temp = json_object_get(root, "temperature"),
                 *top_p = json_object_get(root, "top_p"), *top_k = json_object_get(root, "top_k");
    if (json_is_true(json_object_get(root, "do_sample"))) {
        if (json_is_number(temp))
            hd_gguf_set_f32(j->w, "general.sampling.temp", (float)json_number_value(temp));
        if (json_is_number(top_p))
            hd_gguf_set_f32(j->w, "general.sampling.top_p", (float)json_number_value(top_p));
        if (json_is_integer(top_k) && json_integer_value(top_k) > 0 &&
            json_integer_value(top_k) <= INT32_MAX)
            hd_gguf_set_i32(j->w, "general.sampling.top_k", (int32_t)json_integer_value(top_k));
    }
    json_decref(root);
    return HD_OK;
}

static hd_status put_folder_keys(struct job *j) {
    hd_str json, config = {0};
    HD_TRY(put_sampling(j));
    HD_TRY(read_beside(j, "tokenizer.json", &json));
    hd_status s = read_beside(j, "tokenizer_config.json", &config);
    if (s == HD_OK) s = put_tokenizer(j, json, config);
    if (s == HD_OK) s = put_chat(j, config);
    free_text(json);
    free_text(config);
    return s;
}

/* From a GGUF: everything but what is written anew here. */
static void copy_gguf_keys(struct job *j) {
    static const char *const own[] = {"general.architecture", "general.name", "general.file_type",
                                      "general.quantization_version", "general.alignment"};
    const hd_gguf *g = hd_checkpoint_gguf(j->c);
    size_t n_arch = strlen(j->hp.arch), n_copied = 0;
    for (size_t i = 0; i < hd_gguf_key_count(g); i++) {
        hd_str key = hd_gguf_key_at(g, i), bytes;
        uint32_t type;
        bool is_own = (key.len > n_arch && memcmp(key.ptr, j->hp.arch, n_arch) == 0 &&
                       key.ptr[n_arch] == '.') ||
                      (key.len > 6 && memcmp(key.ptr, "split.", 6) == 0);
        for (size_t k = 0; k < HD_COUNT_OF(own); k++) is_own |= hd_str_eq_c(key, own[k]);
        if (is_own) continue;
        hd_gguf_raw(g, i, &type, &bytes);
        hd_gguf_set_raw(j->w, key, type, bytes);
        n_copied++;
    }
    hd_buf_addf(&j->notes, "metadata: %zu keys copied\n", n_copied);
}

/* ---- tensors ---- */

static uint64_t target_bytes(const struct job *j, size_t ix) {
    return hd_format_bytes(j->to[ix], (size_t)hd_canon_params(hd_canon_at(j->k, ix)));
}

/* Chooses every tensor's format; each reason is noted once. */
static void choose_formats(struct job *j) {
    j->to = hd_alloc(hd_canon_count(j->k) * sizeof *j->to);
    for (size_t i = 0; i < hd_canon_count(j->k); i++) {
        const hd_canon_tensor *t = hd_canon_at(j->k, i);
        char why[128];
        j->to[i] = hd_export_format(t, j->wanted, why);
        j->all += target_bytes(j, i);
        if (!why[0]) continue;
        const char *suffix = strncmp(t->name, "blk.", 4) == 0 ? strchr(t->name + 4, '.') : NULL;
        char line[256];
        snprintf(line, sizeof line, "%s stays F16: %s\n", suffix ? suffix + 1 : t->name, why);
        if (j->notes.len == 0 || !strstr(j->notes.ptr, line)) hd_buf_add_c(&j->notes, line);
    }
}

/* The format that most weights have. */
static enum hd_format majority(const struct job *j) {
    uint64_t n[HD_FORMAT_COUNT] = {0};
    int best = 0;
    for (size_t i = 0; i < hd_canon_count(j->k); i++)
        n[j->to[i]] += hd_canon_params(hd_canon_at(j->k, i));
    for (int f = 1; f < HD_FORMAT_COUNT; f++)
        if (n[f] > n[best]) best = f;
    return (enum hd_format)best;
}

static void on_bytes(void *user, uint64_t n) {
    struct job *j = user;
    j->done += n;
    hd_progress(NULL, "converting", (double)j->done / (double)(j->all + 1));
}

static hd_status write_all(struct job *j) {
    enum hd_format most = majority(j);
    hd_export_keys(j->w, &j->hp);
    hd_gguf_set_u32(j->w, "general.file_type", hd_export_file_type(most));
    if (hd_format_get(most)->block_elems > 1)
        hd_gguf_set_u32(j->w, "general.quantization_version", 2);
    if (hd_checkpoint_gguf(j->c))
        copy_gguf_keys(j);
    else
        HD_TRY(put_folder_keys(j));
    for (size_t i = 0; i < hd_canon_count(j->k); i++) {
        const hd_canon_tensor *t = hd_canon_at(j->k, i);
        hd_gguf_declare(j->w, t->name, j->to[i], t->n_dim, t->ne);
    }
    HD_TRY(hd_gguf_begin(j->w));
    for (size_t i = 0; i < hd_canon_count(j->k); i++)
        HD_TRY(hd_export_tensor(j->w, j->k, hd_canon_at(j->k, i), j->to[i], on_bytes, j));
    return HD_OK;
}

/* ---- report ---- */

/* "BF16", or "BF16, F32" when a group has several. */
static void formats_text(const struct job *j, enum hd_part part, bool is_source, char out[64]) {
    bool is_seen[HD_FORMAT_COUNT] = {false};
    size_t n = 0;
    for (size_t i = 0; i < hd_canon_count(j->k); i++)
        if (hd_part_of(hd_canon_at(j->k, i)->name) == part)
            is_seen[is_source ? hd_canon_at(j->k, i)->src[0]->format : j->to[i]] = true;
    out[0] = 0;
    for (int f = 0; f < HD_FORMAT_COUNT; f++)
        if (is_seen[f] && n < 56)
            n += (size_t)snprintf(out + n, 64 - n, "%s%s", n ? ", " : "",
                                  hd_format_get((enum hd_format)f)->name);
}

static void report(const struct job *j, const char *target, double seconds) {
    struct stat st;
    uint64_t n_param = 0, n_file = stat(target, &st) == 0 ? (uint64_t)st.st_size : 0;
    printf("%-19s %8s %10s   %-12s %-12s %10s\n", "part", "tensors", "weights", "from", "to",
           "size");
    for (int p = 0; p < HD_PART_COUNT; p++) {
        uint64_t n_tensor = 0, n = 0, n_byte = 0;
        char from[64], to[64];
        for (size_t i = 0; i < hd_canon_count(j->k); i++) {
            const hd_canon_tensor *t = hd_canon_at(j->k, i);
            if (hd_part_of(t->name) != (enum hd_part)p) continue;
            n_tensor++;
            n += hd_canon_params(t);
            n_byte += target_bytes(j, i);
        }
        if (!n_tensor) continue;
        n_param += n;
        formats_text(j, (enum hd_part)p, true, from);
        formats_text(j, (enum hd_part)p, false, to);
        printf("%-19s %8llu %10s   %-12s %-12s %10s\n", hd_part_name((enum hd_part)p),
               (unsigned long long)n_tensor, hd_human_count(n), from, to, hd_human_bytes(n_byte));
    }
    printf("%-19s %8zu %10s   %-12s %-12s %10s\n", "all", hd_canon_count(j->k),
           hd_human_count(n_param), "", "", hd_human_bytes(j->all));
    printf("%s", j->notes.len ? j->notes.ptr : "");
    printf("wrote %s: %s, %s in %.1f s\n", target, j->hp.name, hd_human_bytes(n_file), seconds);
}

static void note_unused(struct job *j) {
    enum { shown_max = 3 };
    size_t n = 0;
    for (size_t i = 0; i < hd_checkpoint_count(j->c); i++) n += !hd_canon_is_used(j->k, i);
    if (n == 0) return;
    hd_buf_addf(&j->notes, "left out: %zu tensors that the architecture does not use:", n);
    for (size_t i = 0, shown = 0; i < hd_checkpoint_count(j->c) && shown < shown_max; i++)
        if (!hd_canon_is_used(j->k, i)) {
            hd_buf_addf(&j->notes, "%s %s", shown ? "," : "", hd_checkpoint_at(j->c, i)->name);
            shown++;
        }
    hd_buf_add_c(&j->notes, n > shown_max ? ", ...\n" : "\n");
}

/* ---- the command ---- */

static hd_status check_target(const char *target, bool is_forced) {
    struct stat st;
    if (stat(target, &st) != 0) {
        if (errno == ENOENT) return HD_OK;
        return HD_FAIL(IO, "%s: cannot write there: %s", target, strerror(errno));
    }
    if (S_ISDIR(st.st_mode))
        return HD_FAIL(INVALID, "%s: expected the name of a file, found a folder", target);
    if (!S_ISREG(st.st_mode))
        return HD_FAIL(INVALID, "%s: expected a regular file, found something else", target);
    if (!is_forced) return HD_FAIL(INVALID, "%s: exists already (--force replaces it)", target);
    return HD_OK;
}

static hd_status convert(struct job *j, const char *source, const char *target) {
    HD_TRY(hd_checkpoint_open(source, &j->c));
    char name[sizeof j->hp.name];
    memcpy(name, j->hp.name, sizeof name);
    HD_TRY(hd_hparams_read(j->c, &j->hp));
    if (name[0]) memcpy(j->hp.name, name, sizeof name);
    HD_TRY(hd_canon_new(j->c, &j->hp, &j->k));
    choose_formats(j);
    note_unused(j);
    HD_TRY(create_guarded(target, &j->w));
    hd_status s = write_all(j);
    if (s != HD_OK) {
        hd_gguf_abandon(j->w);
    } else {
        s = hd_gguf_finish(j->w);
        hd_progress(NULL, "converting", 1);
    }
    temporary[0] = 0;
    return s;
}

static int run(const struct hd_options *o, int n_arg, char **arg);

const struct hd_command hd_cmd_convert = {
    .name = "convert",
    .summary = "write a model as one GGUF file",
    .usage = "[options] SOURCE TARGET.gguf",
    .details =
        "SOURCE is a Hugging Face folder (config.json, safetensors, tokenizer.json) or a GGUF "
        "file.\n"
        "Norms, the router and its bias are written as F32, everything else as --outtype says;\n"
        "auto keeps each tensor's own format. Rows that are no whole blocks stay F16.\n"
        "The target appears only when it is complete.\n\n"
        "  hadal convert DeepSeek-V3-folder v3.gguf --outtype q8_0\n",
    .run = run,
};

static int run(const struct hd_options *o, int n_arg, char **arg) {
    if (n_arg != 2)
        return hd_command_usage(&hd_cmd_convert, "expected SOURCE and TARGET, found %d arguments",
                                n_arg);
    struct job j = {.wanted = HD_EXPORT_AUTO};
    enum hd_format f;
    int64_t start = hd_now_ns();
    if (o->name) snprintf(j.hp.name, sizeof j.hp.name, "%s", o->name);
    if (strcmp(o->outtype, "auto") != 0) {
        if (hd_format_by_name(o->outtype, &f) != HD_OK)
            return hd_command_usage(&hd_cmd_convert, "--outtype: %s, and auto", hd_error_text());
        j.wanted = (int)f;
    }
    hd_buf_init(&j.notes, 1 << 20);
    hd_status s = check_target(arg[1], o->force);
    if (s == HD_OK) s = convert(&j, arg[0], arg[1]);
    int rc = s == HD_OK ? 0 : hd_command_error(&hd_cmd_convert);
    if (s == HD_OK) report(&j, arg[1], (double)(hd_now_ns() - start) * 1e-9);
    hd_buf_fini(&j.notes);
    hd_free(j.to);
    hd_canon_free(j.k);
    hd_checkpoint_close(j.c);
    return rc;
}
