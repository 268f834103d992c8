/* A peer's word on the same tokens: scores cases or a text with llama.cpp, as `hadal eval` does.
 *
 * Not part of the build: docs/peers.md says how to compile it against a llama.cpp of your own and
 * which figures it gave. KV in float32, no flash attention: what is left is llama.cpp's arithmetic.
 *
 *   llama_score MODEL cases FILE [OUT]   prompts of a cases.json: against its reference, and (OUT)
 *                                        the same file with llama.cpp's numbers, for --cases
 *   llama_score MODEL text FILE CONTEXT STRIDE [LIMIT [LOGITS]]
 *                                        a text in the windows of `hadal eval --perplexity`; LOGITS
 *                                        is what --save-logits wrote for the same text
 *   llama_score MODEL ids                lines {"text": ...} from stdin to lines {"ids": [...]}, as
 *                                        `hadal tokenize --jsonl` writes them */
#include "base/mem.h"
#include "file/mapping.h"

#include <jansson.h>
#include <llama.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_THREAD = 2 };

struct peer {
    struct llama_model *model;
    struct llama_context *ctx;
    const struct llama_vocab *vocab;
    struct llama_batch batch;
    int n_vocab;
};

static void quiet(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static int open_peer(struct peer *p, const char *path, int n_ctx) {
    struct llama_model_params mp = llama_model_default_params();
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = cp.n_batch = cp.n_ubatch = (uint32_t)n_ctx;
    cp.n_threads = cp.n_threads_batch = N_THREAD;
    cp.type_k = cp.type_v = GGML_TYPE_F32;
    cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    p->model = llama_model_load_from_file(path, mp);
    if (p->model) p->ctx = llama_init_from_model(p->model, cp);
    if (!p->ctx) {
        fprintf(stderr, "%s: llama.cpp does not open it\n", path);
        return 1;
    }
    p->vocab = llama_model_get_vocab(p->model);
    p->n_vocab = llama_vocab_n_tokens(p->vocab);
    p->batch = llama_batch_init(n_ctx, 0, 1);
    return 0;
}

/* Logits of all positions: row i at llama_get_logits_ith(ctx, i). */
static int decode(struct peer *p, const llama_token *id, int n) {
    llama_memory_clear(llama_get_memory(p->ctx), true);
    p->batch.n_tokens = n;
    for (int i = 0; i < n; i++) {
        p->batch.token[i] = id[i];
        p->batch.pos[i] = i;
        p->batch.n_seq_id[i] = 1;
        p->batch.seq_id[i][0] = 0;
        p->batch.logits[i] = 1;
    }
    return llama_decode(p->ctx, p->batch);
}

static double log_sum_exp(const float *x, int n) {
    double max = (double)x[0], sum = 0;
    for (int i = 1; i < n; i++) max = fmax(max, (double)x[i]);
    for (int i = 0; i < n; i++) sum += exp((double)x[i] - max);
    return max + log(sum);
}

static int arg_max(const float *x, int n) {
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* ---- cases ---- */

struct sums {
    double nll, want, nll_max, logit_max; /* logit_max over the reference's standard deviation */
    int n, n_top, n_top_equal;
};

static void compare_last(struct sums *s, const float *x, const json_t *want, int n) {
    double mean = 0, variance = 0, error = 0;
    for (int i = 0; i < n; i++) mean += json_number_value(json_array_get(want, (size_t)i)) / n;
    for (int i = 0; i < n; i++) {
        double w = json_number_value(json_array_get(want, (size_t)i));
        variance += (w - mean) * (w - mean) / n;
        error = fmax(error, fabs((double)x[i] - w));
    }
    s->logit_max = fmax(s->logit_max, error / sqrt(variance));
}

static int run_case(struct peer *p, json_t *c, struct sums *s) {
    const json_t *ids = json_object_get(c, "ids"), *nll = json_object_get(c, "nll"),
                 *top1 = json_object_get(c, "top1");
    int n = (int)json_array_size(ids);
    llama_token *id = hd_alloc_zero((size_t)n, sizeof *id);
    json_t *own_nll = json_array(), *own_top = json_array(), *own_last = json_array();
    for (int i = 0; i < n; i++)
        id[i] = (llama_token)json_integer_value(json_array_get(ids, (size_t)i));
    if (decode(p, id, n) != 0) return 1;
    for (int i = 0; i < n; i++) {
        const float *x = llama_get_logits_ith(p->ctx, i);
        int top = arg_max(x, p->n_vocab);
        json_array_append_new(own_top, json_integer(top));
        s->n_top++;
        s->n_top_equal += top == json_integer_value(json_array_get(top1, (size_t)i));
        if (i + 1 == n) break;
        double own = log_sum_exp(x, p->n_vocab) - (double)x[id[i + 1]];
        double want = json_number_value(json_array_get(nll, (size_t)i));
        json_array_append_new(own_nll, json_real(own));
        s->nll += own;
        s->want += want;
        s->nll_max = fmax(s->nll_max, fabs(own - want));
        s->n++;
    }
    const float *last = llama_get_logits_ith(p->ctx, n - 1);
    compare_last(s, last, json_object_get(c, "last_logits"), p->n_vocab);
    for (int i = 0; i < p->n_vocab; i++)
        json_array_append_new(own_last, json_real((double)last[i]));
    json_object_set_new(c, "nll", own_nll);
    json_object_set_new(c, "top1", own_top);
    json_object_set_new(c, "last_logits", own_last);
    json_object_del(c, "greedy");
    hd_free(id);
    return 0;
}

static int score_cases(struct peer *p, const char *model, int n_arg, char **arg) {
    json_t *root = json_load_file(arg[0], 0, NULL), *list = json_object_get(root, "cases");
    struct sums s = {0};
    if (!root || open_peer(p, model, 256)) return 1;
    for (size_t i = 0; i < json_array_size(list); i++)
        if (run_case(p, json_array_get(list, i), &s)) return 1;
    if (n_arg > 1 && json_dump_file(root, arg[1], JSON_REAL_PRECISION(9)) != 0) return 1;
    printf(
        "perplexity %.6f, reference %.6f, ratio - 1 %+.2e; nll max error %.2e; logits max error / "
        "std %.2e; arg-max %d of %d\n",
        exp(s.nll / s.n), exp(s.want / s.n), exp((s.nll - s.want) / s.n) - 1, s.nll_max,
        s.logit_max, s.n_top_equal, s.n_top);
    json_decref(root);
    return 0;
}

/* ---- a text ---- */

struct logits_head { /* of the files of `hadal eval --save-logits` */
    char magic[8];
    uint32_t n_vocab, n_tok, context, stride;
    uint64_t ids_hash;
};

struct text {
    llama_token *id;
    int n_tok, context, stride, n_top_equal;
    double nll, kl, kl_max, logit_max;
    FILE *base;
    float *row;
};

static int open_base(struct text *t, const struct peer *p, const char *path) {
    struct logits_head h;
    uint64_t hash = 14695981039346656037u;
    for (int i = 0; i < t->n_tok; i++) hash = (hash ^ (uint64_t)t->id[i]) * 1099511628211u;
    t->base = fopen(path, "rb");
    if (!t->base || fread(&h, sizeof h, 1, t->base) != 1) return 1;
    if (h.n_vocab != (uint32_t)p->n_vocab || h.n_tok != (uint32_t)t->n_tok || h.ids_hash != hash ||
        h.context != (uint32_t)t->context || h.stride != (uint32_t)t->stride) {
        fprintf(stderr, "%s: of other tokens or settings\n", path);
        return 1;
    }
    t->row = hd_alloc((size_t)p->n_vocab * sizeof *t->row);
    return 0;
}

static int compare_row(struct text *t, const float *x, int n) { /* KL of x from the file's row */
    double kl = 0;
    if (fread(t->row, sizeof *t->row, (size_t)n, t->base) != (size_t)n) return 1;
    double base_sum = log_sum_exp(t->row, n), sum = log_sum_exp(x, n);
    for (int i = 0; i < n; i++) {
        double own = (double)t->row[i] - base_sum, other = (double)x[i] - sum;
        kl += exp(own) * (own - other);
        t->logit_max = fmax(t->logit_max, fabs((double)x[i] - (double)t->row[i]));
    }
    t->kl += kl;
    t->kl_max = fmax(t->kl_max, kl);
    t->n_top_equal += arg_max(x, n) == arg_max(t->row, n);
    return 0;
}

/* Windows as cmd/eval_text.c has them: a begin token, up to context - 1 - stride tokens of before,
 * then new ones. */
static int run_windows(struct peer *p, struct text *t) {
    llama_token *id = hd_alloc((size_t)t->context * sizeof *id);
    for (int next = 0; next < t->n_tok;) {
        int start = next == 0 ? 0 : next - (t->context - 1 - t->stride);
        int end = start + t->context - 1 < t->n_tok ? start + t->context - 1 : t->n_tok;
        id[0] = llama_vocab_bos(p->vocab);
        memcpy(id + 1, t->id + start, (size_t)(end - start - 1) * sizeof *id);
        if (decode(p, id, end - start) != 0) return 1;
        for (; next < end; next++) {
            const float *x = llama_get_logits_ith(p->ctx, next - start);
            t->nll += log_sum_exp(x, p->n_vocab) - (double)x[t->id[next]];
            if (t->base && compare_row(t, x, p->n_vocab)) return 1;
        }
    }
    hd_free(id);
    return 0;
}

static int score_text(struct peer *p, const char *model, int n_arg, char **arg) {
    if (n_arg < 3) return 2;
    struct text t = {.context = (int)strtol(arg[1], NULL, 10),
                     .stride = (int)strtol(arg[2], NULL, 10)};
    size_t n_byte;
    int limit = n_arg > 3 ? (int)strtol(arg[3], NULL, 10) : 0;
    char *bytes;
    if (hd_text_read(arg[0], INT32_MAX, &bytes, &n_byte) != HD_OK) {
        fprintf(stderr, "%s\n", hd_error_text());
        return 1;
    }
    if (open_peer(p, model, t.context)) return 1;
    t.id = hd_alloc((n_byte + 1) * sizeof *t.id);
    t.n_tok =
        llama_tokenize(p->vocab, bytes, (int32_t)n_byte, t.id, (int32_t)n_byte + 1, false, false);
    if (limit > 0 && limit < t.n_tok) t.n_tok = limit;
    if (n_arg > 4 && open_base(&t, p, arg[4])) return 1;
    if (run_windows(p, &t)) return 1;
    printf("perplexity %.6f over %d tokens", exp(t.nll / t.n_tok), t.n_tok);
    if (t.base)
        printf("; KL from the file %.3e mean, %.3e max; logits max error %.3e; arg-max %d equal",
               t.kl / t.n_tok, t.kl_max, t.logit_max, t.n_top_equal);
    printf("\n");
    hd_free(bytes);
    hd_free(t.id);
    hd_free(t.row);
    if (t.base) fclose(t.base);
    return 0;
}

/* ---- token ids ---- */

static int print_ids(struct peer *p, const char *model) {
    char *line = NULL;
    size_t room = 0;
    if (open_peer(p, model, 256)) return 1;
    while (getline(&line, &room, stdin) > 0) {
        json_t *j = json_loads(line, JSON_ALLOW_NUL, NULL), *text = json_object_get(j, "text");
        int32_t n_max = (int32_t)json_string_length(text) + 1;
        llama_token *id = hd_alloc((size_t)n_max * sizeof *id);
        int n =
            llama_tokenize(p->vocab, json_string_value(text), n_max - 1, id, n_max, false, true);
        printf("{\"ids\": [");
        for (int i = 0; i < n; i++) printf(i ? ", %d" : "%d", id[i]);
        printf("]}\n");
        hd_free(id);
        json_decref(j);
    }
    free(line); /* getline's */
    return 0;
}

int main(int n_arg, char **arg) {
    struct peer p = {0};
    int rc = 2;
    llama_log_set(quiet, NULL);
    if (n_arg > 3 && strcmp(arg[2], "cases") == 0)
        rc = score_cases(&p, arg[1], n_arg - 3, arg + 3);
    else if (n_arg > 3 && strcmp(arg[2], "text") == 0)
        rc = score_text(&p, arg[1], n_arg - 3, arg + 3);
    else if (n_arg == 3 && strcmp(arg[2], "ids") == 0)
        rc = print_ids(&p, arg[1]);
    if (rc == 2)
        fprintf(stderr, "usage: llama_score MODEL cases FILE [OUT]\n"
                        "       llama_score MODEL text FILE CONTEXT STRIDE [LIMIT [LOGITS]]\n"
                        "       llama_score MODEL ids\n");
    if (p.ctx) llama_batch_free(p.batch);
    llama_free(p.ctx);
    llama_model_free(p.model);
    return rc;
}
