/* `hadal eval --cases`: prompts with reference logits, as a file of the form
 * {"cases": [{"ids": [...], "last_logits": [...], "top1": [...], "nll": [...], "greedy": [...]}]}.
 *
 * The same prompts are computed whole, in chunks and token by token; errors are told against the
 * reference, and the three ways against each other, bit for bit. An arg-max that differs counts as
 * wrong only where the margin to the second exceeds twice the largest logit error. */
#include "cmd/eval.h"

#include "base/mem.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct one_case {
    int n_tok, n_greedy;
    int32_t *id, *top1, *greedy; /* [n_tok], [n_tok] or NULL, [n_greedy] */
    float *last_logits;          /* [n_vocab] or NULL */
    double *nll;                 /* [n_tok - 1] or NULL */
    uint64_t *row_hash;          /* [n_tok] of the logits when computed whole */
};

enum { MISS_MAX = 4096 };
struct result { /* of one way to compute the prompts */
    double logit_max, logit_sum, logit_max_relative, nll_max;
    double kl_sum, kl_max; /* of the last logits, from the reference */
    int64_t n_logit;
    int n_last;
    int n_arg_max, n_arg_max_equal, n_arg_max_wrong, n_greedy, n_greedy_equal, n_greedy_wrong;
    int n_row, n_row_equal;
    uint64_t hash; /* of all prompt logits, whatever their order */
    double arg_max_margin[MISS_MAX], greedy_margin[MISS_MAX]; /* where it differed */
    int n_arg_max_miss, n_greedy_miss;
};

struct run {
    struct hd_eval *e;
    hd_scorer *scorer;
    struct one_case *cases;
    int n_case, chunk;
    bool is_first; /* the way whose bits the others are compared with */
    struct result *result;
    int *case_of; /* [n_seq_max] */
    int n_running;
};

static uint64_t hash_row(const float *p, int n) { /* FNV-1a */
    const unsigned char *b = (const unsigned char *)p;
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < (size_t)n * sizeof *p; i++) h = (h ^ b[i]) * 1099511628211u;
    return h;
}

/* ---- reading ---- */

static hd_status bad(const char *path, size_t ix, const char *what) {
    return HD_FAIL(CORRUPT, "%s: case %zu: %s", path, ix, what);
}

static int32_t *int_array(const json_t *a, int n_vocab, int *n) {
    *n = (int)json_array_size(a);
    int32_t *p = hd_alloc_zero((size_t)*n, sizeof *p);
    for (int i = 0; i < *n; i++) {
        json_int_t v = json_integer_value(json_array_get(a, (size_t)i));
        if (!json_is_integer(json_array_get(a, (size_t)i)) || v < 0 || v >= n_vocab) {
            hd_free(p);
            return NULL;
        }
        p[i] = (int32_t)v;
    }
    return p;
}

static bool are_numbers(const json_t *a, size_t n) {
    bool ok = json_array_size(a) == n;
    for (size_t i = 0; ok && i < n; i++) ok = json_is_number(json_array_get(a, i));
    return ok;
}

static hd_status read_case(const struct hd_eval *e, const char *path, size_t ix, const json_t *j,
                           struct one_case *c) {
    int n_vocab = e->hp.n_vocab, n = 0;
    c->id = int_array(json_object_get(j, "ids"), n_vocab, &c->n_tok);
    if (!c->id || c->n_tok < 1) return bad(path, ix, "ids: expected ids of the vocabulary");
    const json_t *top1 = json_object_get(j, "top1"), *greedy = json_object_get(j, "greedy");
    const json_t *logits = json_object_get(j, "last_logits"), *nll = json_object_get(j, "nll");
    if (top1) c->top1 = int_array(top1, n_vocab, &n);
    if (top1 && (!c->top1 || n != c->n_tok)) return bad(path, ix, "top1: one id a token expected");
    if (greedy) c->greedy = int_array(greedy, n_vocab, &c->n_greedy);
    if (greedy && !c->greedy) return bad(path, ix, "greedy: expected ids of the vocabulary");
    if (logits && !are_numbers(logits, (size_t)n_vocab))
        return bad(path, ix, "last_logits: expected one number a vocabulary entry");
    if (nll && !are_numbers(nll, (size_t)c->n_tok - 1))
        return bad(path, ix, "nll: expected one number for each token but the first");
    c->row_hash = hd_alloc_zero((size_t)c->n_tok, sizeof *c->row_hash);
    if (logits) {
        c->last_logits = hd_alloc_zero((size_t)n_vocab, sizeof *c->last_logits);
        for (int i = 0; i < n_vocab; i++)
            c->last_logits[i] = (float)json_number_value(json_array_get(logits, (size_t)i));
    }
    if (nll && c->n_tok > 1) {
        c->nll = hd_alloc_zero((size_t)c->n_tok, sizeof *c->nll);
        for (int i = 0; i + 1 < c->n_tok; i++)
            c->nll[i] = json_number_value(json_array_get(nll, (size_t)i));
    }
    return hd_eval_check_fits(e, c->n_tok + c->n_greedy, path);
}

static void free_cases(struct one_case *c, int n) {
    for (int i = 0; i < n; i++) {
        hd_free(c[i].id);
        hd_free(c[i].top1);
        hd_free(c[i].greedy);
        hd_free(c[i].last_logits);
        hd_free(c[i].nll);
        hd_free(c[i].row_hash);
    }
    hd_free(c);
}

static hd_status read_cases(const struct hd_eval *e, const char *path, struct one_case **out,
                            int *n_out) {
    json_t *root;
    HD_TRY(hd_eval_read(path, "cases", &root));
    const json_t *list = json_object_get(root, "cases");
    size_t n = json_array_size(list);
    hd_status s = HD_OK;
    struct one_case *c = hd_alloc_zero(n, sizeof *c);
    for (size_t i = 0; i < n && s == HD_OK; i++)
        s = read_case(e, path, i, json_array_get(list, i), &c[i]);
    json_decref(root);
    if (s != HD_OK) {
        free_cases(c, (int)n);
        return s;
    }
    *out = c;
    *n_out = (int)n;
    return HD_OK;
}

/* ---- comparing ---- */

/* Kullback-Leibler divergence of softmax(logits) from softmax(c->last_logits), nats. */
static void compare_distributions(struct result *r, const struct one_case *c, const float *logits,
                                  int n) {
    double base_sum = hd_eval_log_sum_exp(c->last_logits, n);
    double sum = hd_eval_log_sum_exp(logits, n), kl = 0;
    for (int i = 0; i < n; i++) {
        double log_p = (double)c->last_logits[i] - base_sum;
        kl += exp(log_p) * (log_p - ((double)logits[i] - sum));
    }
    r->kl_sum += kl;
    r->n_last++;
    if (!(kl <= r->kl_max)) r->kl_max = kl; /* NaN is taken */
}

static void compare_last(struct result *r, const struct one_case *c, const float *logits, int n) {
    double mean = 0, variance = 0, max = 0;
    for (int i = 0; i < n; i++) mean += (double)c->last_logits[i] / n;
    for (int i = 0; i < n; i++) {
        double d = (double)c->last_logits[i] - mean;
        variance += d * d / n;
        double error = fabs((double)logits[i] - (double)c->last_logits[i]);
        if (!(error <= max)) max = error; /* NaN is taken */
        r->logit_sum += error;
    }
    r->n_logit += n;
    if (!(max <= r->logit_max)) r->logit_max = max;
    double relative = max / sqrt(variance);
    if (!(relative <= r->logit_max_relative)) r->logit_max_relative = relative;
}

static void add_miss(double *list, int *n, double margin) {
    if (*n < MISS_MAX) list[(*n)++] = margin;
}

static void compare_prompt(struct run *u, struct one_case *c, int pos, const float *logits) {
    struct result *r = u->result;
    int n_vocab = u->e->hp.n_vocab;
    uint64_t hash = hash_row(logits, n_vocab);
    if (u->is_first) c->row_hash[pos] = hash;
    r->n_row++;
    r->n_row_equal += c->row_hash[pos] == hash;
    uint64_t key = (uint64_t)(c - u->cases) << 32 | (uint64_t)pos; /* rows come in any order */
    r->hash += (hash ^ key * 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u;
    if (c->top1) {
        double margin;
        bool equal = hd_eval_arg_max(logits, n_vocab, &margin) == c->top1[pos];
        r->n_arg_max++;
        r->n_arg_max_equal += equal;
        if (!equal) add_miss(r->arg_max_margin, &r->n_arg_max_miss, margin);
    }
    if (c->nll && pos + 1 < c->n_tok) {
        double nll = hd_eval_log_sum_exp(logits, n_vocab) - (double)logits[c->id[pos + 1]];
        double error = fabs(nll - c->nll[pos]);
        if (!(error <= r->nll_max)) r->nll_max = error;
    }
    if (c->last_logits && pos + 1 == c->n_tok) {
        compare_last(r, c, logits, n_vocab);
        compare_distributions(r, c, logits, n_vocab);
    }
}

static void on_logits(void *user, int seq, int pos, const float *logits) {
    struct run *u = user;
    struct one_case *c = &u->cases[u->case_of[seq]];
    struct result *r = u->result;
    if (pos < c->n_tok) compare_prompt(u, c, pos, logits);
    int n_done = pos + 1 - c->n_tok; /* greedy tokens before this row's */
    if (n_done < 0) return;
    if (n_done < c->n_greedy) {
        double margin;
        int token = hd_eval_arg_max(logits, u->e->hp.n_vocab, &margin);
        if (n_done == 0) r->n_greedy += c->n_greedy;
        r->n_greedy_equal += token == c->greedy[n_done];
        if (token == c->greedy[n_done] && n_done + 1 < c->n_greedy) {
            hd_scorer_extend(u->scorer, seq, token);
            return;
        }
        if (token != c->greedy[n_done]) add_miss(r->greedy_margin, &r->n_greedy_miss, margin);
    }
    hd_scorer_drop(u->scorer, seq);
    u->n_running--;
}

static hd_status run_cases(struct run *u) {
    int next = 0;
    while (next < u->n_case || u->n_running > 0) {
        while (next < u->n_case) {
            const struct one_case *c = &u->cases[next];
            enum hd_mla_form form = hd_eval_form(u->e, c->n_tok);
            int seq =
                hd_scorer_add(u->scorer, &(hd_score_spec){.token = c->id,
                                                          .n_tok = c->n_tok,
                                                          .n_tok_max = c->n_tok + c->n_greedy,
                                                          .form = form,
                                                          .next_form = hd_eval_form(u->e, 1)});
            if (seq < 0) break;
            u->case_of[seq] = next++;
            u->n_running++;
        }
        if (hd_scorer_step(u->scorer, u->chunk, on_logits, u) < 0) return HD_E_DEVICE;
        hd_progress(NULL, "cases", (double)(next - u->n_running) / u->n_case);
    }
    return HD_OK;
}

/* A miss is wrong when rounding as large as the largest error seen cannot explain it. */
static int count_wrong(const double *margin, int n, double error) {
    int wrong = 0;
    for (int i = 0; i < n; i++) wrong += !(margin[i] <= 2 * error);
    return wrong;
}

/* ---- telling ---- */

static double kl_mean(const struct result *r) { return r->n_last ? r->kl_sum / r->n_last : 0; }

static void print_result(const char *way, const struct result *r) {
    printf("  %-14s logits: max error %.3g, mean %.3g, max / std %.3g; nll: max error %.3g; KL "
           "divergence mean %.3g, max %.3g\n",
           way, r->logit_max, r->n_logit ? r->logit_sum / (double)r->n_logit : 0,
           r->logit_max_relative, r->nll_max, kl_mean(r), r->kl_max);
    printf("  %-14s arg-max %d of %d equal, %d wrong beyond the margin; greedy %d of %d, %d wrong; "
           "%s (logits hash %016" PRIx64 ")\n",
           "", r->n_arg_max_equal, r->n_arg_max, r->n_arg_max_wrong, r->n_greedy_equal, r->n_greedy,
           r->n_greedy_wrong,
           r->n_row == r->n_row_equal ? "bit-equal" : "NOT bit-equal to the first way", r->hash);
}

static void write_result(hd_json *j, const char *way, const struct result *r) {
    hd_json_object(j);
    hd_json_key(j, "way");
    hd_json_str_c(j, way);
    const struct {
        const char *key;
        double value;
    } numbers[] = {
        {"logit_max_error", r->logit_max},
        {"logit_mean_error", r->n_logit ? r->logit_sum / (double)r->n_logit : 0},
        {"logit_max_error_over_std", r->logit_max_relative},
        {"nll_max_error", r->nll_max},
        {"kl_mean", kl_mean(r)},
        {"kl_max", r->kl_max},
        {"arg_max", r->n_arg_max},
        {"arg_max_equal", r->n_arg_max_equal},
        {"arg_max_wrong", r->n_arg_max_wrong},
        {"greedy", r->n_greedy},
        {"greedy_equal", r->n_greedy_equal},
        {"greedy_wrong", r->n_greedy_wrong},
        {"rows", r->n_row},
        {"rows_bit_equal", r->n_row_equal},
    };
    for (size_t i = 0; i < HD_COUNT_OF(numbers); i++) {
        hd_json_key(j, numbers[i].key);
        hd_json_num(j, numbers[i].value);
    }
    char hash[17];
    snprintf(hash, sizeof hash, "%016" PRIx64, r->hash);
    hd_json_key(j, "logits_hash");
    hd_json_str_c(j, hash);
    hd_json_object_end(j);
}

static hd_status run_way(struct hd_eval *e, struct one_case *cases, int n_case, int chunk,
                         const char *way) {
    struct result *r = hd_alloc_zero(1, sizeof *r);
    struct run u = {.e = e,
                    .scorer = hd_scorer_new(e->model, &e->mo, 1),
                    .cases = cases,
                    .n_case = n_case,
                    .chunk = chunk,
                    .is_first = chunk == 0,
                    .result = r,
                    .case_of = hd_alloc_zero((size_t)e->mo.n_seq_max, sizeof(int))};
    hd_status s = run_cases(&u);
    hd_progress(NULL, "cases", 1);
    r->n_arg_max_wrong = count_wrong(r->arg_max_margin, r->n_arg_max_miss, r->logit_max);
    r->n_greedy_wrong = count_wrong(r->greedy_margin, r->n_greedy_miss, r->logit_max);
    if (s == HD_OK && e->json)
        write_result(e->json, way, r);
    else if (s == HD_OK)
        print_result(way, r);
    hd_scorer_free(u.scorer);
    hd_free(u.case_of);
    hd_free(r);
    return s;
}

hd_status hd_eval_cases(struct hd_eval *e, const char *path) {
    struct one_case *cases;
    int n_case;
    HD_TRY(read_cases(e, path, &cases, &n_case));
    if (e->json) {
        hd_json_key(e->json, "cases");
        hd_json_array(e->json);
    } else {
        printf("%s: %d cases\n", path, n_case);
    }
    char chunks[32];
    snprintf(chunks, sizeof chunks, "chunks of %d", e->o->eval_chunk);
    hd_status s = run_way(e, cases, n_case, 0, "whole");
    if (s == HD_OK && e->o->eval_chunk > 1) s = run_way(e, cases, n_case, e->o->eval_chunk, chunks);
    if (s == HD_OK) s = run_way(e, cases, n_case, 1, "token by token");
    if (e->json) hd_json_array_end(e->json);
    free_cases(cases, n_case);
    return s;
}
