/* Inside of `hadal eval`: what its parts share. */
#ifndef HD_CMD_EVAL_H
#define HD_CMD_EVAL_H

#include "cmd/command.h"
#include "model/score.h"
#include "text/tokenizer.h"

#include <jansson.h>

struct hd_eval {
    const struct hd_options *o;
    hd_checkpoint *checkpoint;
    hd_tokenizer *tokenizer; /* NULL: the model brings none, or it is not needed */
    hd_dev dev;
    hd_hparams hp;
    hd_model *model;
    hd_model_options mo; /* what the model was opened with */
    hd_json *json;       /* results as members of an object, or NULL: lines on stdout */
};

/* A file of cases or golden values: an object whose member `list` is a list that is not empty. The
 * caller frees *root with json_decref. */
HD_MUST_CHECK hd_status hd_eval_read(const char *path, const char *list, json_t **root);
/* ln(sum of exp). */
double hd_eval_log_sum_exp(const float *logits, int n);
/* Index of the largest (ties to the lower); *margin: its distance to the second. */
int hd_eval_arg_max(const float *logits, int n, double *margin);
/* The MLA form that --form names for a sequence of n_tok tokens. */
enum hd_mla_form hd_eval_form(const struct hd_eval *e, int n_tok);
/* HD_E_CONTEXT: a sequence of n_tok tokens, called `what`, has no room. */
HD_MUST_CHECK hd_status hd_eval_check_fits(const struct hd_eval *e, int n_tok, const char *what);

/* ---- two runs over the same positions (eval_compare.c) ---- */

typedef struct hd_comparison {
    int n, n_max;
    double *kl, *dp; /* [n_max] divergence; difference of the text's token's probability */
    double nll, base_nll, logit_max;
    int n_top1, n_top5, n_top5_all;
} hd_comparison;

void hd_comparison_init(hd_comparison *c, int n_max);
void hd_comparison_fini(hd_comparison *c);
/* One position of n logits each; token is what the text has there. */
void hd_comparison_add(hd_comparison *c, const float *base, const float *logits, int n, int token);

/* kl: KL(base || run) in nats, its mean with the standard error, its quantiles. dp: probability of
 * the text's token here minus there. top1, top5: shares of positions with the same best token, and
 * of the base's five best tokens that are among the five best here. */
typedef struct hd_comparison_summary {
    int n;
    double perplexity, base_perplexity;
    double kl_mean, kl_error, kl_median, kl_99, kl_999, kl_max;
    double dp_mean, dp_rms, top1, top5, logit_max;
} hd_comparison_summary;
/* At least one position; reorders kl. */
hd_comparison_summary hd_comparison_summarise(hd_comparison *c);
void hd_comparison_print(const hd_comparison_summary *s, const char *against);
void hd_comparison_json(const hd_comparison_summary *s, hd_json *j);

/* Each prints, or writes members into e->json. */
HD_MUST_CHECK hd_status hd_eval_cases(struct hd_eval *e, const char *path);      /* eval_cases.c */
HD_MUST_CHECK hd_status hd_eval_golden(struct hd_eval *e, const char *path);     /* eval_golden.c */
HD_MUST_CHECK hd_status hd_eval_perplexity(struct hd_eval *e, const char *path); /* eval_text.c */

#endif
