/* Token sequences through a model, logits out: the small driver behind evaluation, calibration and
 * the tests of forward passes. No scheduling: sequences are added while pages last, a step takes
 * pending rows of all of them in turn, and every wanted position's logits are handed over.
 *
 * Pages are taken from the pool in a seeded random order, so that nothing can rely on their order.
 * Owner: one thread. Allocates in new and add only. */
#ifndef HD_MODEL_SCORE_H
#define HD_MODEL_SCORE_H

#include "model/model.h"

typedef struct hd_scorer hd_scorer;

/* m is borrowed and used by nothing else meanwhile; o are the options it was opened with. */
hd_scorer *hd_scorer_new(hd_model *m, const hd_model_options *o, uint64_t seed);
void hd_scorer_free(hd_scorer *s); /* accepts NULL */

typedef struct hd_score_spec {
    const int32_t *token;             /* [n_tok] copied */
    int n_tok;                        /* >= 1 */
    int n_tok_max;                    /* with what hd_scorer_extend will append; >= n_tok */
    int first_out;                    /* logits are wanted from this position on */
    enum hd_mla_form form, next_form; /* of the n_tok given here, and of appended ones */
} hd_score_spec;

/* The sequence's number, or -1 when no page, or no sequence slot, is free for it now. Asserts that
 * it could ever fit (n_tok_max within n_pos_max). */
int hd_scorer_add(hd_scorer *s, const hd_score_spec *spec);
void hd_scorer_extend(hd_scorer *s, int seq, int32_t token);
void hd_scorer_drop(hd_scorer *s, int seq); /* its pages are free again */

/* logits [n_vocab]: of position pos, valid during the call. May call extend and add, and drop of a
 * sequence that has no further wanted row in this step. */
typedef void (*hd_score_fn)(void *user, int seq, int pos, const float *logits);

/* One forward pass over pending rows, at most `chunk` of each sequence (0: no bound), as many as
 * the model's options allow. Returns the rows computed; 0: nothing is pending; -1: the device broke
 * (hd_error_text says how), and nothing more can be computed. */
int hd_scorer_step(hd_scorer *s, int chunk, hd_score_fn fn, void *user);

#endif
