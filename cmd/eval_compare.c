/* How far one run's distributions are from another's, position by position: what `--against` tells,
 * in the terms that users of llama-perplexity --kl-divergence know. */
#include "cmd/eval.h"

#include "base/mem.h"
#include "base/sort.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { n_top = 5 };

void hd_comparison_init(hd_comparison *c, int n_max) {
    *c = (hd_comparison){.kl = hd_alloc((size_t)n_max * sizeof *c->kl),
                         .dp = hd_alloc((size_t)n_max * sizeof *c->dp),
                         .n_max = n_max};
}

void hd_comparison_fini(hd_comparison *c) {
    hd_free(c->kl);
    hd_free(c->dp);
}

/* Indices of the n_top largest, best first; ties to the lower index. */
static void find_top(const float *x, int n, int top[n_top]) {
    int n_found = 0;
    for (int i = 0; i < n; i++) {
        int at = n_found;
        while (at > 0 && x[i] > x[top[at - 1]]) at--;
        if (at == n_top) continue;
        if (n_found < n_top) n_found++;
        for (int k = n_found - 1; k > at; k--) top[k] = top[k - 1];
        top[at] = i;
    }
    for (; n_found < n_top; n_found++) top[n_found] = -1;
}

void hd_comparison_add(hd_comparison *c, const float *base, const float *logits, int n, int token) {
    HD_ASSERT(c->n < c->n_max);
    double base_sum = hd_eval_log_sum_exp(base, n), sum = hd_eval_log_sum_exp(logits, n), kl = 0;
    for (int i = 0; i < n; i++) {
        double p = (double)base[i] - base_sum, q = (double)logits[i] - sum;
        double error = fabs((double)logits[i] - (double)base[i]);
        kl += exp(p) * (p - q);
        if (!(error <= c->logit_max)) c->logit_max = error;
    }
    int a[n_top], b[n_top];
    find_top(base, n, a);
    find_top(logits, n, b);
    c->n_top1 += a[0] == b[0];
    for (int i = 0; i < n_top && i < n; i++)
        for (int k = 0; k < n_top; k++) c->n_top5 += a[i] == b[k];
    c->n_top5_all += n < n_top ? n : n_top;
    double ln_p = (double)base[token] - base_sum, ln_q = (double)logits[token] - sum;
    c->base_nll -= ln_p;
    c->nll -= ln_q;
    c->kl[c->n] = kl;
    c->dp[c->n++] = exp(ln_q) - exp(ln_p);
}

/* Of sorted values: the one that a share of them does not exceed. */
static double quantile(const double *sorted, int n, double share) {
    double at = share * (n - 1);
    int i = (int)at;
    return i + 1 < n ? sorted[i] + (at - i) * (sorted[i + 1] - sorted[i]) : sorted[n - 1];
}

static double mean_of(const double *x, int n, bool is_square) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += is_square ? x[i] * x[i] : x[i];
    return sum / n;
}

/* Of the mean of n values. */
static double standard_error(double mean, double mean_square, int n) {
    double variance = mean_square - mean * mean;
    return n > 1 && variance > 0 ? sqrt(variance / (n - 1)) : 0;
}

hd_comparison_summary hd_comparison_summarise(hd_comparison *c) {
    int n = c->n;
    HD_ASSERT(n > 0);
    double kl = mean_of(c->kl, n, false), kl2 = mean_of(c->kl, n, true);
    double dp = mean_of(c->dp, n, false), dp2 = mean_of(c->dp, n, true);
    hd_sort_doubles(c->kl, (size_t)n);
    return (hd_comparison_summary){.n = n,
                                   .perplexity = exp(c->nll / n),
                                   .base_perplexity = exp(c->base_nll / n),
                                   .kl_mean = kl,
                                   .kl_error = standard_error(kl, kl2, n),
                                   .kl_median = quantile(c->kl, n, 0.5),
                                   .kl_99 = quantile(c->kl, n, 0.99),
                                   .kl_999 = quantile(c->kl, n, 0.999),
                                   .kl_max = c->kl[n - 1],
                                   .dp_mean = dp,
                                   .dp_rms = sqrt(dp2),
                                   .top1 = (double)c->n_top1 / n,
                                   .top5 = (double)c->n_top5 / c->n_top5_all,
                                   .logit_max = c->logit_max};
}

void hd_comparison_print(const hd_comparison_summary *s, const char *against) {
    printf("  against %s, %d tokens:\n", against, s->n);
    printf("    perplexity %.6f, there %.6f, ratio %.6f\n", s->perplexity, s->base_perplexity,
           s->perplexity / s->base_perplexity);
    printf(
        "    KL divergence: mean %.4g +- %.2g, median %.4g, 99 %% %.4g, 99.9 %% %.4g, max %.4g\n",
        s->kl_mean, s->kl_error, s->kl_median, s->kl_99, s->kl_999, s->kl_max);
    printf("    probability of the text's token: mean difference %+.4f %%, RMS %.4f %%\n",
           100 * s->dp_mean, 100 * s->dp_rms);
    printf("    same best token %.3f %%, of the five best %.3f %%; largest logit error %.4g\n",
           100 * s->top1, 100 * s->top5, s->logit_max);
}

void hd_comparison_json(const hd_comparison_summary *s, hd_json *j) {
    const struct {
        const char *key;
        double value;
    } numbers[] = {{"base_perplexity", s->base_perplexity},
                   {"perplexity_ratio", s->perplexity / s->base_perplexity},
                   {"kl_mean", s->kl_mean},
                   {"kl_mean_error", s->kl_error},
                   {"kl_median", s->kl_median},
                   {"kl_99", s->kl_99},
                   {"kl_99_9", s->kl_999},
                   {"kl_max", s->kl_max},
                   {"dp_mean", s->dp_mean},
                   {"dp_rms", s->dp_rms},
                   {"top1_agreement", s->top1},
                   {"top5_agreement", s->top5},
                   {"logit_max_error", s->logit_max}};
    for (size_t i = 0; i < HD_COUNT_OF(numbers); i++) {
        hd_json_key(j, numbers[i].key);
        hd_json_num(j, numbers[i].value);
    }
}
