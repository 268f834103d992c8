/* From a row of logits to a token.
 *
 * Most requests need no row: hd_sampler_draw says how the device is to draw (dev/draw.h). Bias,
 * penalties, bans and log-probabilities are the host's, on the row's logits.
 *
 * Order: non-finite check; log-probabilities of the raw row; logit bias and banned tokens;
 * repetition, frequency and presence penalties; temperature; min-p; top-k; top-p (over what top-k
 * left); one draw. Equal logits are ordered by id, so greedy takes the lowest one. Ids without a
 * token (padding of the vocabulary) are never sampled. Token i of a request depends on its
 * settings, its row, its earlier tokens and (seed, i) only: not on neighbours, preemption or what
 * other requests drew.
 *
 * Thread: a sampler and a desk belong to one thread at a time. Allocates only in the two _new. */
#ifndef HD_ENGINE_SAMPLER_H
#define HD_ENGINE_SAMPLER_H

#include "base/batch.h"
#include "hadal.h"

/* What all requests share: which ids are tokens, and working memory for one row. */
typedef struct hd_sampler_desk hd_sampler_desk;
/* no_token: ids that must never be sampled (copied), each in [0, n_vocab). */
hd_sampler_desk *hd_sampler_desk_new(int n_vocab, const int32_t *no_token, int n_no_token);
void hd_sampler_desk_free(hd_sampler_desk *d); /* accepts NULL */

/* One request's settings and the counts its penalties need. */
typedef struct hd_sampler hd_sampler;

typedef struct hd_sampler_spec {
    const hd_sampling *sampling; /* validated: hd_request_check; copied, bias too */
    uint64_t seed;               /* used instead of sampling->seed */
    const int32_t *prompt;       /* [n_prompt] counted by the repetition penalty */
    int n_prompt, n_new_max;     /* tokens hd_sampler_accept will be called with, at most */
} hd_sampler_spec;

hd_sampler *hd_sampler_new(const hd_sampler_spec *spec);
void hd_sampler_free(hd_sampler *s); /* accepts NULL */

typedef struct hd_sample {
    int32_t token;
    float logprob; /* of the raw row, natural logarithm; 0 when not asked for */
    int n_top;
    hd_top_logprob *top; /* given by the caller: room for n_top_logprob; best first */
} hd_sample;

/* Samples from logits [n_vocab]; ban: ids that must not be sampled this time. HD_E_NUMERIC: the row
 * holds NaN or infinity. HD_E_INVALID: every token is banned. out->top must be set before. */
HD_MUST_CHECK hd_status hd_sampler_next(const hd_sampler *s, hd_sampler_desk *d,
                                        const float *logits, const int32_t *ban, int n_ban,
                                        hd_sample *out);
/* Whether the token can only be chosen here, from the row. */
bool hd_sampler_needs_row(const hd_sampler *s);
/* How the token behind those accepted and n_pending more is drawn. */
void hd_sampler_draw(const hd_sampler *s, int n_pending, hd_draw *out);
/* Tells the sampler that `token` became the next generated token. */
void hd_sampler_accept(hd_sampler *s, int32_t token);

/* The draw for token ix of a request: uniform in [0, 1). Counter-based SplitMix64: Steele, Lea and
 * Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014. */
double hd_sampler_uniform(uint64_t seed, uint64_t ix);

#endif
