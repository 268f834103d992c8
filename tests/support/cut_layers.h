/* A prompt whose layers are computed in several steps (base/batch.h), chunk by chunk. */
#ifndef HD_TEST_CUT_LAYERS_H
#define HD_TEST_CUT_LAYERS_H

#include "model/score.h"

/* Logits [n_tok, n_vocab] of a prompt alone, n_each layers a step, at most o->n_out_max rows a
 * chunk. o: the options that m was opened with. HD_E_DEVICE: it broke. */
hd_status test_cut_layers(hd_model *m, const hd_model_options *o, const hd_score_spec *what,
                          int n_each, float *logits);

#endif
