/* Inside of `hadal eval`: what its parts share. */
#ifndef HD_CMD_EVAL_H
#define HD_CMD_EVAL_H

#include "cmd/command.h"
#include "model/score.h"
#include "text/tokenizer.h"

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

/* ln(sum of exp). */
double hd_eval_log_sum_exp(const float *logits, int n);
/* Index of the largest (ties to the lower); *margin: its distance to the second. */
int hd_eval_arg_max(const float *logits, int n, double *margin);
/* The MLA form that --form names for a sequence of n_tok tokens. */
enum hd_mla_form hd_eval_form(const struct hd_eval *e, int n_tok);
/* HD_E_CONTEXT: a sequence of n_tok tokens, called `what`, has no room. */
HD_MUST_CHECK hd_status hd_eval_check_fits(const struct hd_eval *e, int n_tok, const char *what);

/* Each prints, or writes members into e->json. */
HD_MUST_CHECK hd_status hd_eval_cases(struct hd_eval *e, const char *path);      /* eval_cases.c */
HD_MUST_CHECK hd_status hd_eval_golden(struct hd_eval *e, const char *path);     /* eval_golden.c */
HD_MUST_CHECK hd_status hd_eval_perplexity(struct hd_eval *e, const char *path); /* eval_text.c */

#endif
