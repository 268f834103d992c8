/* `hadal eval --golden`: a model's golden file: prompts with their ids, the reference's best logits
 * at the last position and its greedy tokens; and tokenizer cases. Prompts run together. */
#include "cmd/eval.h"

#include "base/mem.h"
#include "file/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct golden {
    struct hd_eval *e;
    const char *path;
    const json_t *prompts;
    hd_scorer *scorer;
    int *prompt_of; /* [n_seq_max] */
    int n_running;
    double logit_max, logit_sum, kl_sum, kl_max; /* KL over the best logits, renormalised */
    int n_kl;
    int n_logit, n_greedy, n_greedy_equal, n_exact; /* n_exact: prompts with all tokens equal */
    double worst_margin; /* largest margin at which greedy left the reference */
    int n_off;
    int n_ids, n_ids_equal; /* texts tokenized */
};

static int size_of(const json_t *prompt, const char *key) {
    return (int)json_array_size(json_object_get(prompt, key));
}
static int32_t id_at(const json_t *prompt, const char *key, int ix) {
    return (int32_t)json_integer_value(json_array_get(json_object_get(prompt, key), (size_t)ix));
}

enum { N_TOP_MAX = 256 };

/* KL(reference || model) of the distributions that the softmax of these logits alone gives. */
static double divergence(const double *reference, const float *model, int n) {
    double max_r = reference[0], max_m = (double)model[0], sum_r = 0, sum_m = 0, kl = 0;
    for (int i = 1; i < n; i++) {
        max_r = fmax(max_r, reference[i]);
        max_m = fmax(max_m, (double)model[i]);
    }
    for (int i = 0; i < n; i++) {
        sum_r += exp(reference[i] - max_r);
        sum_m += exp((double)model[i] - max_m);
    }
    for (int i = 0; i < n; i++) {
        double ln_r = reference[i] - max_r - log(sum_r);
        double ln_m = (double)model[i] - max_m - log(sum_m);
        kl += exp(ln_r) * (ln_r - ln_m);
    }
    return kl;
}

static void compare_top(struct golden *g, const json_t *prompt, const float *logits) {
    size_t i;
    int n = 0;
    const json_t *pair;
    double reference[N_TOP_MAX];
    float model[N_TOP_MAX];
    json_array_foreach(json_object_get(prompt, "top"), i, pair) {
        json_int_t id = json_integer_value(json_array_get(pair, 0));
        reference[n] = json_number_value(json_array_get(pair, 1));
        model[n] = logits[id];
        double error = fabs((double)model[n] - reference[n]);
        n++;
        if (!(error <= g->logit_max)) g->logit_max = error;
        g->logit_sum += error;
        g->n_logit++;
    }
    if (n == 0) return;
    double kl = divergence(reference, model, n);
    g->kl_sum += kl;
    g->n_kl++;
    if (!(kl <= g->kl_max)) g->kl_max = kl;
}

static void on_logits(void *user, int seq, int pos, const float *logits) {
    struct golden *g = user;
    const json_t *prompt = json_array_get(g->prompts, (size_t)g->prompt_of[seq]);
    int n_done = pos + 1 - size_of(prompt, "ids"), n_greedy = size_of(prompt, "greedy");
    if (n_done == 0) {
        compare_top(g, prompt, logits);
        g->n_greedy += n_greedy;
    }
    if (n_done < n_greedy) {
        double margin;
        int token = hd_eval_arg_max(logits, g->e->hp.n_vocab, &margin);
        bool equal = token == id_at(prompt, "greedy", n_done);
        g->n_greedy_equal += equal;
        if (equal && n_done + 1 < n_greedy) {
            hd_scorer_extend(g->scorer, seq, token);
            return;
        }
        g->n_exact += equal;
        g->n_off += !equal;
        if (!equal && !(margin <= g->worst_margin)) g->worst_margin = margin;
    }
    hd_scorer_drop(g->scorer, seq);
    g->n_running--;
}

static bool is_id(const struct golden *g, const json_t *v) {
    json_int_t id = json_integer_value(v);
    return json_is_integer(v) && id >= 0 && id < g->e->hp.n_vocab;
}

static hd_status check_ids(const struct golden *g, int ix, const char *key) {
    const json_t *list = json_object_get(json_array_get(g->prompts, (size_t)ix), key), *v;
    size_t i;
    if (list && !json_is_array(list))
        return HD_FAIL(CORRUPT, "%s: prompts[%d].%s: expected a list of token ids, found %s",
                       g->path, ix, key, hd_json_found(list));
    json_array_foreach(list, i, v) {
        if (is_id(g, v)) continue;
        return HD_FAIL(CORRUPT, "%s: prompts[%d].%s[%zu]: expected a token id below %d, found %s",
                       g->path, ix, key, i, g->e->hp.n_vocab, hd_json_found(v));
    }
    return HD_OK;
}

/* A wrong entry ends it: left out, it would be a comparison that cannot fail. */
static hd_status check_prompt(const struct golden *g, int ix) {
    const json_t *prompt = json_array_get(g->prompts, (size_t)ix), *pair;
    const json_t *top = json_object_get(prompt, "top");
    size_t i;
    HD_TRY(check_ids(g, ix, "ids"));
    HD_TRY(check_ids(g, ix, "greedy"));
    if (size_of(prompt, "ids") < 1)
        return HD_FAIL(CORRUPT, "%s: prompts[%d].ids: expected at least one, found none", g->path,
                       ix);
    if (top && (!json_is_array(top) || json_array_size(top) > N_TOP_MAX))
        return HD_FAIL(CORRUPT, "%s: prompts[%d].top: expected a list of at most %d, found %s",
                       g->path, ix, N_TOP_MAX, hd_json_found(top));
    json_array_foreach(top, i, pair) {
        if (is_id(g, json_array_get(pair, 0)) && json_is_number(json_array_get(pair, 1))) continue;
        return HD_FAIL(CORRUPT,
                       "%s: prompts[%d].top[%zu]: expected [token id below %d, logit], found %s",
                       g->path, ix, i, g->e->hp.n_vocab, hd_json_found(pair));
    }
    return HD_OK;
}

static hd_status add_prompt(struct golden *g, int ix, int *seq) {
    const json_t *prompt = json_array_get(g->prompts, (size_t)ix);
    HD_TRY(check_prompt(g, ix));
    int n = size_of(prompt, "ids"), n_all = n + size_of(prompt, "greedy");
    HD_TRY(hd_eval_check_fits(g->e, n_all, "golden prompt"));
    int32_t *id = hd_alloc((size_t)n * sizeof *id);
    for (int i = 0; i < n; i++) id[i] = id_at(prompt, "ids", i);
    *seq = hd_scorer_add(g->scorer, &(hd_score_spec){.token = id,
                                                     .n_tok = n,
                                                     .n_tok_max = n_all,
                                                     .first_out = n - 1,
                                                     .form = hd_eval_form(g->e, n),
                                                     .next_form = hd_eval_form(g->e, 1)});
    hd_free(id);
    return HD_OK;
}

static hd_status run_prompts(struct golden *g) {
    int n = (int)json_array_size(g->prompts), next = 0;
    while (next < n || g->n_running > 0) {
        for (int seq = 0; next < n;) {
            HD_TRY(add_prompt(g, next, &seq));
            if (seq < 0) break;
            g->prompt_of[seq] = next++;
            g->n_running++;
        }
        if (hd_scorer_step(g->scorer, 0, on_logits, g) < 0) return HD_E_DEVICE;
        hd_progress(NULL, "golden", (double)(next - g->n_running) / n);
    }
    hd_progress(NULL, "golden", 1);
    return HD_OK;
}

/* Items with a text under `key` and its ids. */
static void compare_texts(struct golden *g, const json_t *list, const char *key) {
    size_t i;
    const json_t *item;
    json_array_foreach(list, i, item) {
        const json_t *text = json_object_get(item, key);
        hd_ids ids = {0};
        hd_str s = {json_string_value(text), json_string_length(text)};
        if (!s.ptr) continue;
        hd_tokenizer_encode(g->e->tokenizer, s, true, &ids);
        bool equal = (int)ids.n == size_of(item, "ids");
        for (size_t k = 0; equal && k < ids.n; k++) equal = ids.id[k] == id_at(item, "ids", (int)k);
        g->n_ids++;
        g->n_ids_equal += equal;
        hd_ids_fini(&ids);
    }
}

static void tell(const struct golden *g, const char *path) {
    int n = (int)json_array_size(g->prompts);
    double mean = g->n_logit ? g->logit_sum / g->n_logit : 0;
    double kl_mean = g->n_kl ? g->kl_sum / g->n_kl : 0;
    if (!g->e->json) {
        printf("%s: %d prompts\n  best logits: max error %.3g, mean %.3g; mean KL %.3g, max %.3g\n",
               path, n, g->logit_max, mean, kl_mean, g->kl_max);
        printf("  greedy: %d of %d prompts equal, %d of %d tokens; largest margin where it left "
               "the reference %.3g\n",
               g->n_exact, n, g->n_greedy_equal, g->n_greedy, g->worst_margin);
        if (g->e->tokenizer)
            printf("  tokenizer: %d of %d texts equal\n", g->n_ids_equal, g->n_ids);
        else
            printf("  tokenizer: not checked, the model has none\n");
        return;
    }
    hd_json *j = g->e->json;
    hd_json_key(j, "golden");
    hd_json_object(j);
    const struct {
        const char *key;
        double value;
    } numbers[] = {
        {"prompts", n},
        {"logit_max_error", g->logit_max},
        {"logit_mean_error", mean},
        {"kl_mean", kl_mean},
        {"kl_max", g->kl_max},
        {"greedy_prompts_equal", g->n_exact},
        {"greedy", g->n_greedy},
        {"greedy_equal", g->n_greedy_equal},
        {"greedy_worst_margin", g->worst_margin},
        {"texts", g->n_ids},
        {"texts_equal", g->n_ids_equal},
    };
    for (size_t i = 0; i < HD_COUNT_OF(numbers); i++) {
        hd_json_key(j, numbers[i].key);
        hd_json_num(j, numbers[i].value);
    }
    hd_json_object_end(j);
}

hd_status hd_eval_golden(struct hd_eval *e, const char *path) {
    json_t *root;
    HD_TRY(hd_eval_read(path, "prompts", &root));
    struct golden g = {.e = e,
                       .path = path,
                       .prompts = json_object_get(root, "prompts"),
                       .scorer = hd_scorer_new(e->model, &e->mo, 1),
                       .prompt_of = hd_alloc_zero((size_t)e->mo.n_seq_max, sizeof(int))};
    hd_status s = run_prompts(&g);
    if (s == HD_OK && e->tokenizer) {
        compare_texts(&g, g.prompts, "prompt");
        compare_texts(&g, json_object_get(root, "tokenizer"), "text");
    }
    if (s == HD_OK) tell(&g, path);
    hd_scorer_free(g.scorer);
    hd_free(g.prompt_of);
    json_decref(root);
    return s;
}
