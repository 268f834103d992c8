/* `hadal eval`: how far a model on a backend is from a reference: cases with logits, a golden file,
 * the perplexity of a text, divergence from another run. */
#include "base/mem.h"
#include "cmd/eval.h"
#include "engine/load.h"
#include "engine/sizes.h"
#include "file/json.h"
#include "file/mapping.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

double hd_eval_log_sum_exp(const float *logits, int n) {
    double max = (double)logits[0], sum = 0;
    for (int i = 1; i < n; i++)
        if ((double)logits[i] > max) max = (double)logits[i];
    for (int i = 0; i < n; i++) sum += exp((double)logits[i] - max);
    return max + log(sum);
}

int hd_eval_arg_max(const float *logits, int n, double *margin) {
    int best = 0;
    double second = -INFINITY;
    for (int i = 1; i < n; i++) {
        if (logits[i] > logits[best]) {
            second = (double)logits[best];
            best = i;
        } else if ((double)logits[i] > second) {
            second = (double)logits[i];
        }
    }
    *margin = (double)logits[best] - second;
    return best;
}

hd_status hd_eval_read(const char *path, const char *list, json_t **root) {
    enum { bytes_max = 1 << 30 };
    char *text;
    size_t n;
    HD_TRY(hd_text_read(path, bytes_max, &text, &n));
    hd_status s = hd_json_parse((hd_str){text, n}, path, root);
    hd_free(text);
    HD_TRY(s);
    const json_t *found = json_object_get(*root, list);
    if (json_array_size(found) > 0) return HD_OK;
    s = HD_FAIL(CORRUPT, "%s: %s: expected a list that is not empty, found %s", path, list,
                hd_json_found(found));
    json_decref(*root);
    return s;
}

enum hd_mla_form hd_eval_form(const struct hd_eval *e, int n_tok) {
    /* Only there are inputs of k_b and v_b seen. */
    if (e->o->eval_save_imatrix) return HD_MLA_ABSORBED;
    if (strcmp(e->o->eval_form, "absorbed") == 0) return HD_MLA_ABSORBED;
    if (strcmp(e->o->eval_form, "expanded") == 0) return HD_MLA_EXPANDED;
    return n_tok >= hd_engine_expand_min(&e->hp) ? HD_MLA_EXPANDED : HD_MLA_ABSORBED;
}

hd_status hd_eval_check_fits(const struct hd_eval *e, int n_tok, const char *what) {
    if (n_tok <= e->mo.n_pos_max) return HD_OK;
    return HD_FAIL(CONTEXT, "%s: %d tokens: the context has %d (--max-model-len; the model's %d)",
                   what, n_tok, e->mo.n_pos_max, e->hp.n_ctx);
}

/* The context asked for, or the model's up to a size that any host has memory for. */
static int choose_n_pos(const struct hd_eval *e) {
    enum { modest = 8192 };
    int n = e->o->max_model_len > 0 ? e->o->max_model_len : modest;
    if (e->o->eval_context > n) n = e->o->eval_context;
    return n < e->hp.n_ctx ? n : e->hp.n_ctx;
}

/* Room for several sequences of full length, as far as a gibibyte goes; for one in any case. */
static void choose_sizes(struct hd_eval *e, enum hd_kv_type kv_type) {
    enum { n_seq = 16, page_tok = 16 };
    const int64_t kv_bytes_max = (int64_t)1 << 30, logits_bytes_max = (int64_t)1 << 28;
    int n_pos = choose_n_pos(e), n_row = e->o->max_num_batched_tokens;
    int64_t page_bytes = (int64_t)hd_hparams_kv_bytes(&e->hp, kv_type) * page_tok;
    int64_t seq_pages = (n_pos + page_tok - 1) / page_tok, n_page = seq_pages * n_seq;
    if (n_page * page_bytes > kv_bytes_max) n_page = kv_bytes_max / page_bytes;
    if (n_page < seq_pages) n_page = seq_pages;
    int64_t n_out = logits_bytes_max / ((int64_t)e->hp.n_vocab * (int64_t)sizeof(float));
    if (n_out > n_row) n_out = n_row;
    e->mo = (hd_model_options){.n_row_max = n_row,
                               .n_seq_max = n_seq,
                               .n_out_max = n_out > 1 ? (int)n_out : 1,
                               .n_pos_max = n_pos,
                               .n_page = (int)n_page,
                               .page_tok = page_tok,
                               .kv_type = kv_type,
                               .repack_cache = e->o->repack_cache};
}

/* Loading a large model takes minutes: a name that was mistyped is told before. */
static hd_status check_inputs(const struct hd_options *o) {
    const char *const path[] = {o->eval_cases, o->eval_golden, o->eval_perplexity, o->eval_against};
    for (size_t i = 0; i < HD_COUNT_OF(path); i++)
        if (path[i] && access(path[i], R_OK) != 0)
            return HD_FAIL(IO, "%s: cannot be read: %s", path[i], strerror(errno));
    return HD_OK;
}

static hd_status open_all(struct hd_eval *e, const char *model) {
    const struct hd_options *o = e->o;
    hd_engine_config config = {.model = model};
    hd_dev_config dc;
    enum hd_kv_type kv_type;
    HD_TRY(hd_dev_config_from(o, &dc));
    HD_TRY(check_inputs(o));
    HD_TRY(hd_engine_open_checkpoint(&config, &e->checkpoint));
    if (o->expect_hash) {
        char hash[33];
        hd_checkpoint_hash(e->checkpoint, hash, hd_hash_progress, NULL);
        HD_TRY(hd_checkpoint_expect_hash(e->checkpoint, o->expect_hash, hash));
    }
    if (o->eval_perplexity || o->eval_golden) /* cases are token ids */
        HD_TRY(hd_engine_open_tokenizer(e->checkpoint, o->tokenizer, &e->tokenizer));
    HD_TRY(hd_hparams_read(e->checkpoint, &e->hp));
    HD_TRY(hd_dev_open(o->backend, &dc, &e->dev));
    HD_TRY(hd_engine_kv_type(o->kv_cache_dtype, e->checkpoint, &e->dev, &kv_type));
    choose_sizes(e, kv_type);
    return hd_model_open(e->checkpoint, &e->dev, &e->mo, hd_load_progress, NULL, &e->model);
}

static void close_all(struct hd_eval *e) {
    hd_model_close(e->model);
    hd_dev_close(&e->dev);
    hd_tokenizer_free(e->tokenizer);
    hd_checkpoint_close(e->checkpoint);
}

static hd_status evaluate(struct hd_eval *e) {
    const struct hd_options *o = e->o;
    if (o->eval_plan) {
        hd_buf b;
        hd_buf_init(&b, 1 << 20);
        hd_model_plan_text(e->model, &b);
        if (e->json) {
            hd_json_key(e->json, "plan");
            hd_json_str(e->json, b.ptr, b.len);
        } else {
            printf("%s", b.len ? b.ptr : "");
        }
        hd_buf_fini(&b);
    }
    if (o->eval_cases) HD_TRY(hd_eval_cases(e, o->eval_cases));
    if (o->eval_golden) HD_TRY(hd_eval_golden(e, o->eval_golden));
    if (o->eval_perplexity) HD_TRY(hd_eval_perplexity(e, o->eval_perplexity));
    return HD_OK;
}

static void describe(struct hd_eval *e, const char *model) {
    hd_buf device;
    hd_buf_init(&device, 1024);
    e->dev.ops->describe(e->dev.ctx, &device);
    const char *kv = hd_kv_type_name(e->mo.kv_type), *name = e->dev.ops->name;
    if (e->json) {
        const char *const text[][2] = {{"model", model},       {"arch", e->hp.arch},
                                       {"backend", name},      {"device", device.ptr},
                                       {"kv_cache_dtype", kv}, {"form", e->o->eval_form}};
        for (size_t i = 0; i < HD_COUNT_OF(text); i++) {
            hd_json_key(e->json, text[i][0]);
            hd_json_str_c(e->json, text[i][1]);
        }
    } else {
        printf("%s (%s) on %s: %s; KV %s, form %s\n", model, e->hp.arch, name, device.ptr, kv,
               e->o->eval_form);
    }
    hd_buf_fini(&device);
}

static int run(const struct hd_options *o, int n_arg, char **arg) {
    if (n_arg > 1) return hd_command_usage(&hd_cmd_eval, "one model at a time");
    if ((o->eval_save_logits || o->eval_against) && !o->eval_perplexity)
        return hd_command_usage(&hd_cmd_eval, "%s needs --perplexity, the text",
                                o->eval_against ? "--against" : "--save-logits");
    if (!o->eval_cases && !o->eval_golden && !o->eval_perplexity && !o->eval_plan)
        return hd_command_usage(&hd_cmd_eval, "nothing to do: --cases, --golden, --perplexity or "
                                              "--plan");
    if (o->eval_save_imatrix && (!o->eval_perplexity || strcmp(o->eval_form, "expanded") == 0))
        return hd_command_usage(&hd_cmd_eval, "--save-imatrix needs --perplexity, and no expanded "
                                              "attention");
    const char *model = n_arg == 1 ? arg[0] : o->model;
    struct hd_eval e = {.o = o};
    hd_buf out;
    hd_buf_init(&out, 1 << 24);
    hd_json json = hd_json_begin(&out);
    if (o->json) {
        e.json = &json;
        hd_json_object(&json);
    }
    hd_status s = open_all(&e, model);
    if (s == HD_OK) {
        describe(&e, model);
        s = evaluate(&e);
    }
    if (s == HD_OK && o->json) {
        hd_json_object_end(&json);
        printf("%s\n", out.ptr);
    }
    hd_buf_fini(&out);
    close_all(&e);
    return s == HD_OK ? 0 : hd_command_error(&hd_cmd_eval);
}

const struct hd_command hd_cmd_eval = {
    .name = "eval",
    .summary = "measure a model against reference logits, a golden file, a text",
    .usage = "[options] [MODEL]",
    .details =
        "Tells how far a model, on a backend and with a KV type, is from a reference. MODEL is a\n"
        "GGUF file, a safetensors folder or 'mini'.\n\n"
        "  hadal eval mini --backend ref --golden tests/golden/mini/golden.json\n"
        "  hadal eval FOLDER --cases FOLDER/cases.json --json\n"
        "  hadal eval mini --perplexity book.txt --context 2048 --stride 1024\n\n"
        "Two runs are compared by their logits:\n\n"
        "  hadal eval mini --backend ref --perplexity book.txt --save-logits /tmp/ref.logits\n"
        "  hadal eval mini --backend cpu --perplexity book.txt --against /tmp/ref.logits\n\n"
        "What quantising should be careful with is measured on a text:\n\n"
        "  hadal eval MODEL --perplexity text.txt --save-imatrix imatrix.gguf\n",
    .run = run,
};
