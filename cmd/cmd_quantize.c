/* hadal quantize: a model with smaller weights, by a named mix of formats. */
#include "cmd/anatomy.h"
#include "cmd/output.h"
#include "cmd/target.h"
#include "model/mix.h"

#include <regex.h>
#include <stdio.h>
#include <string.h>

/* One --tensor-type. */
struct override {
    regex_t pattern;
    const char *text;
    int wanted; /* format or HD_EXPORT_AUTO */
    bool is_used;
};

struct job {
    const struct hd_options *o;
    struct hd_target t;
    const hd_mix *mix;
    struct override override[HD_OPT_LIST_MAX];
    int n_override;
    hd_imatrix *imatrix;
};

/* ---- options ---- */

static hd_status read_override(struct override *v, const char *text) {
    char pattern[256], reason[128];
    const char *type = strrchr(text, '=');
    size_t n = type ? (size_t)(type - text) : 0;
    if (n == 0 || n >= sizeof pattern || !type[1])
        return HD_FAIL(INVALID, "--tensor-type: expected PATTERN=TYPE, found %.80s", text);
    memcpy(pattern, text, n);
    pattern[n] = 0;
    v->text = text;
    v->wanted = HD_EXPORT_AUTO;
    if (strcmp(type + 1, "keep") != 0) {
        enum hd_format f;
        hd_status s = hd_format_by_name(type + 1, &f);
        if (s != HD_OK) return hd_fail_context(s, "--tensor-type %.80s", text);
        v->wanted = (int)f;
    }
    int rc = regcomp(&v->pattern, pattern, REG_EXTENDED | REG_NOSUB);
    if (rc == 0) return HD_OK;
    regerror(rc, &v->pattern, reason, sizeof reason);
    return HD_FAIL(INVALID, "--tensor-type: expected a regular expression, found %s: %s", pattern,
                   reason);
}

static hd_status read_options(struct job *j) {
    const hd_opt_list *list = &j->o->tensor_type;
    HD_TRY(hd_mix_by_name(j->o->quantize_type, &j->mix));
    for (int i = 0; i < list->n; i++) {
        HD_TRY(read_override(&j->override[i], list->item[i]));
        j->n_override++;
    }
    if (j->o->imatrix) HD_TRY(hd_imatrix_open(j->o->imatrix, &j->imatrix));
    return HD_OK;
}

/* ---- formats ---- */

static int wanted_format(struct job *j, const hd_canon_tensor *c) {
    for (int i = 0; i < j->n_override; i++)
        if (regexec(&j->override[i].pattern, c->name, 0, NULL, 0) == 0) {
            if (!hd_export_is_fixed(c)) j->override[i].is_used = true;
            return j->override[i].wanted;
        }
    return (int)(j->o->pure ? hd_mix_base(j->mix) : hd_mix_format(j->mix, &j->t.hp, c));
}

/* Models are released in it: floats of any width. What only GGUF has has lost something already. */
static bool is_original(enum hd_format f) {
    return hd_format_get(f)->safetensors_name[0] != 0 || !hd_format_is_gguf(f);
}

static hd_status check_requantising(const struct job *j, const hd_canon_tensor *c,
                                    enum hd_format to) {
    enum hd_format from = c->src[0]->format;
    if (j->o->allow_requantize || is_original(from) || is_original(to) || from == to) return HD_OK;
    return HD_FAIL(INVALID,
                   "%s: tensor %s: expected weights that are not quantised, found %s "
                   "(--allow-requantize takes them and loses more than quantising the original)",
                   hd_checkpoint_path(j->t.c), c->name, hd_format_get(from)->name);
}

static hd_status choose_formats(struct job *j) {
    for (size_t i = 0; i < hd_canon_count(j->t.k); i++) {
        const hd_canon_tensor *c = hd_canon_at(j->t.k, i);
        hd_target_choose(&j->t, i, wanted_format(j, c));
        HD_TRY(check_requantising(j, c, j->t.tensor[i].to));
    }
    for (int i = 0; i < j->n_override; i++)
        if (!j->override[i].is_used)
            return HD_FAIL(INVALID,
                           "--tensor-type %.80s: expected a pattern of some weight matrix's name, "
                           "found none (norms, biases and the router stay F32)",
                           j->override[i].text);
    return HD_OK;
}

/* ---- importance ---- */

static bool is_encoded(const struct job *j, size_t ix) {
    enum hd_format to = j->t.tensor[ix].to;
    return !is_original(to) && to != hd_canon_at(j->t.k, ix)->format;
}

/* Every encoded tensor's importance; the embedding table has none, as nothing is multiplied. */
static hd_status find_importance(struct job *j) {
    enum { shown_max = 3 };
    size_t n_found = 0, n_missing = 0;
    hd_buf missing;
    hd_buf_init(&missing, 1 << 16);
    hd_status s = HD_OK;
    for (size_t i = 0; i < hd_canon_count(j->t.k) && s == HD_OK; i++) {
        const hd_canon_tensor *c = hd_canon_at(j->t.k, i);
        if (!is_encoded(j, i)) continue;
        s = hd_imatrix_find(j->imatrix, c, &j->t.tensor[i].importance);
        if (j->t.tensor[i].importance.mean)
            n_found++;
        else if (strcmp(c->name, "token_embd.weight") != 0 && n_missing++ < shown_max)
            hd_buf_addf(&missing, "%s %s", n_missing > 1 ? "," : "", c->name);
    }
    if (s == HD_OK && n_found == 0)
        s = HD_FAIL(CORRUPT, "%s: expected importance of this model's tensors, found none",
                    j->o->imatrix);
    if (s == HD_OK && n_missing > 0)
        hd_buf_addf(&j->t.notes, "importance: none for %zu tensors:%s%s\n", n_missing, missing.ptr,
                    n_missing > shown_max ? ", ..." : "");
    hd_buf_fini(&missing);
    return s;
}

static void note_unseen(struct job *j) {
    for (size_t i = 0; i < hd_canon_count(j->t.k); i++) {
        const hd_canon_tensor *c = hd_canon_at(j->t.k, i);
        if (j->t.tensor[i].loss.n_unseen > 0)
            hd_buf_addf(&j->t.notes,
                        "importance: %s: %d of %lld matrices were never used by the text: encoded "
                        "without\n",
                        c->name, j->t.tensor[i].loss.n_unseen, (long long)c->ne[2]);
    }
}

/* The keys that llama-quantize leaves too. */
static void put_imatrix_keys(struct job *j) {
    hd_gguf_writer *w = j->t.w;
    const char *dataset = hd_imatrix_dataset(j->imatrix);
    hd_gguf_set_str(w, "quantize.imatrix.file", hd_str_of(j->o->imatrix));
    if (dataset[0]) hd_gguf_set_str(w, "quantize.imatrix.dataset", hd_str_of(dataset));
    hd_gguf_set_i32(w, "quantize.imatrix.entries_count", (int32_t)hd_imatrix_count(j->imatrix));
    hd_gguf_set_i32(w, "quantize.imatrix.chunks_count", (int32_t)hd_imatrix_chunks(j->imatrix));
}

/* ---- report ---- */

static void key_str(hd_json *b, const char *key, const char *value) {
    hd_json_key(b, key);
    hd_json_str_c(b, value);
}

static void key_num(hd_json *b, const char *key, double value) {
    hd_json_key(b, key);
    hd_json_num(b, value);
}

static void tensor_json(const struct job *j, size_t ix, hd_json *b) {
    const hd_canon_tensor *c = hd_canon_at(j->t.k, ix);
    const struct hd_target_tensor *to = &j->t.tensor[ix];
    hd_json_object(b);
    key_str(b, "name", c->name);
    key_str(b, "from", hd_format_get(c->src[0]->format)->name);
    key_str(b, "to", hd_format_get(to->to)->name);
    hd_json_key(b, "weights");
    hd_json_int(b, (int64_t)hd_canon_params(c));
    hd_json_key(b, "bytes");
    hd_json_int(b, (int64_t)hd_target_bytes(&j->t, ix));
    hd_json_key(b, "has_importance");
    hd_json_bool(b, to->importance.mean != NULL);
    if (j->t.done > 0)
        key_num(b, "rel_rms_error", hd_target_loss(to->loss.error2, to->loss.value2));
    hd_json_object_end(b);
}

static void report_json(const struct job *j) {
    hd_buf out;
    hd_buf_init(&out, SIZE_MAX);
    hd_json b = hd_json_begin(&out);
    hd_json_object(&b);
    key_str(&b, "type", hd_mix_name(j->mix));
    key_str(&b, "target", j->t.path);
    key_num(&b, "bits_per_weight", hd_target_bits(&j->t));
    hd_json_key(&b, "tensor_bytes");
    hd_json_int(&b, (int64_t)j->t.all);
    if (j->t.done > 0) key_num(&b, "seconds", j->t.seconds);
    key_str(&b, "notes", j->t.notes.len ? j->t.notes.ptr : "");
    hd_json_key(&b, "tensors");
    hd_json_array(&b);
    for (size_t i = 0; i < hd_canon_count(j->t.k); i++) tensor_json(j, i, &b);
    hd_json_array_end(&b);
    hd_json_object_end(&b);
    printf("%s\n", out.ptr);
    hd_buf_fini(&out);
}

/* ---- the command ---- */

static hd_status quantize(struct job *j, int n_arg, char **arg) {
    HD_TRY(read_options(j));
    HD_TRY(hd_target_open(&j->t, arg[0], j->o->name, j->o->threads));
    HD_TRY(choose_formats(j));
    if (j->imatrix) HD_TRY(find_importance(j));
    if (j->o->dry_run) return HD_OK;
    HD_ASSERT(n_arg == 2);
    if (j->imatrix) HD_TRY(hd_output_differs(arg[1], j->o->imatrix));
    HD_TRY(hd_target_begin(&j->t, arg[1], j->o->force));
    hd_gguf_set_u32(j->t.w, "general.file_type",
                    j->o->pure ? hd_export_file_type(hd_mix_base(j->mix))
                               : hd_mix_file_type(j->mix));
    if (j->imatrix) put_imatrix_keys(j);
    HD_TRY(hd_target_write(&j->t));
    note_unseen(j);
    return HD_OK;
}

static int run(const struct hd_options *o, int n_arg, char **arg);

const struct hd_command hd_cmd_quantize = {
    .name = "quantize",
    .summary = "write a model with smaller weights",
    .usage = "[options] --type TYPE MODEL TARGET.gguf",
    .details =
        "MODEL is a Hugging Face folder, a GGUF file with weights that are not quantised or "
        "'mini',\n"
        "the embedded model. TYPE names a mix of formats:\n"
        "Q8_0, Q6_K, Q5_K_M, Q5_K_S, Q5_1, Q5_0, Q4_K_M, Q4_K_S, Q4_1,\n"
        "Q4_0, IQ4_NL, IQ4_XS, MXFP4_MOE, Q3_K_L, Q3_K_M, Q3_K_S, Q2_K (docs/quantize.md).\n"
        "Norms, biases and the router stay F32; rows that are no whole blocks take the next\n"
        "format that fits. The target appears only when it is complete; --force replaces another\n"
        "file, never the source.\n\n"
        "  hadal quantize --type Q4_K_M v3-bf16.gguf v3-q4.gguf\n"
        "  hadal quantize --type Q4_K_M v3-bf16.gguf --dry-run\n\n"
        "With an importance matrix, measured on a text like what the model will be used for:\n\n"
        "  hadal eval v3-bf16.gguf --perplexity text.txt --save-imatrix v3-imatrix.gguf\n"
        "  hadal quantize --type Q4_K_M --imatrix v3-imatrix.gguf v3-bf16.gguf v3-q4.gguf\n",
    .run = run,
};

static int run(const struct hd_options *o, int n_arg, char **arg) {
    if (n_arg != 2 && !(n_arg == 1 && o->dry_run))
        return hd_command_usage(&hd_cmd_quantize, "expected MODEL and TARGET, found %d arguments",
                                n_arg);
    if (!o->quantize_type) return hd_command_usage(&hd_cmd_quantize, "expected --type");
    struct job j = {.o = o, .t = {.what = "quantising", .is_measured = true}};
    hd_status s = quantize(&j, n_arg, arg);
    int rc = s == HD_OK ? 0 : hd_command_error(&hd_cmd_quantize);
    if (s == HD_OK && o->json) report_json(&j);
    if (s == HD_OK && !o->json) {
        hd_target_report(&j.t);
        printf("%s: %.2f bits a weight\n", hd_mix_name(j.mix), hd_target_bits(&j.t));
    }
    hd_target_close(&j.t);
    hd_imatrix_close(j.imatrix);
    for (int i = 0; i < j.n_override; i++) regfree(&j.override[i].pattern);
    return rc;
}
