/* A request's defaults and its validation. */
#include "engine/request.h"

#include <math.h>

void hd_sampling_init(hd_sampling *s) {
    *s = (hd_sampling){.temperature = 1, .top_p = 1, .repetition_penalty = 1, .n_top_logprob = -1};
}

void hd_request_init(hd_request *r) {
    *r = (hd_request){.service = HD_SERVICE_STANDARD};
    hd_sampling_init(&r->sampling);
}

static hd_status check_ids(const char *field, const int32_t *id, int n, int n_vocab) {
    for (int i = 0; i < n; i++)
        if (id[i] < 0 || id[i] >= n_vocab)
            return HD_FAIL(INVALID, "%s[%d]: expected a token id from 0 to %d, found %d", field, i,
                           n_vocab - 1, id[i]);
    return HD_OK;
}

static hd_status check_int(const char *field, int v, int min, int max) {
    if (v >= min && v <= max) return HD_OK;
    return HD_FAIL(INVALID, "%s: expected %d to %d, found %d", field, min, max, v);
}

static hd_status check_num(const char *field, float v, float min, float max) {
    if (v >= min && v <= max) return HD_OK; /* false for NaN */
    return HD_FAIL(INVALID, "%s: expected %g to %g, found %g", field, (double)min, (double)max,
                   (double)v);
}

static hd_status check_sampling(const hd_sampling *s, int n_vocab) {
    if (!(s->temperature >= 0 && isfinite(s->temperature)))
        return HD_FAIL(INVALID, "temperature: expected a finite number, 0 or more, found %g",
                       (double)s->temperature);
    if (s->top_k < 0)
        return HD_FAIL(INVALID, "top_k: expected 0 (off) or more, found %d", s->top_k);
    HD_TRY(check_num("top_p", s->top_p, 0, 1));
    HD_TRY(check_num("min_p", s->min_p, 0, 1));
    HD_TRY(check_num("presence_penalty", s->presence_penalty, -2, 2));
    HD_TRY(check_num("frequency_penalty", s->frequency_penalty, -2, 2));
    if (!(s->repetition_penalty > 0 && s->repetition_penalty <= 10))
        return HD_FAIL(INVALID, "repetition_penalty: expected more than 0, up to 10, found %g",
                       (double)s->repetition_penalty);
    HD_TRY(check_int("top_logprobs", s->n_top_logprob, -1, HD_TOP_LOGPROB_MAX));
    if (s->n_bias < 0 || s->n_bias > HD_BIAS_MAX)
        return HD_FAIL(INVALID, "logit_bias: expected at most %d entries, found %d", HD_BIAS_MAX,
                       s->n_bias);
    for (int i = 0; i < s->n_bias; i++) {
        HD_TRY(check_ids("logit_bias token", &s->bias[i].token, 1, n_vocab));
        if (s->bias[i].bias != -INFINITY) /* a ban */
            HD_TRY(check_num("logit_bias", s->bias[i].bias, -100, 100));
    }
    return HD_OK;
}

static hd_status check_stops(const hd_request *r, int n_vocab) {
    if (r->n_stop < 0 || r->n_stop > HD_STOP_MAX)
        return HD_FAIL(INVALID, "stop: expected at most %d strings, found %d", HD_STOP_MAX,
                       r->n_stop);
    for (int i = 0; i < r->n_stop; i++)
        if (r->stop[i].len == 0)
            return HD_FAIL(INVALID,
                           "stop[%d]: expected a string of 1 or more bytes, found an "
                           "empty one",
                           i);
    if (r->n_stop_token < 0 || r->n_stop_token > HD_STOP_TOKEN_MAX)
        return HD_FAIL(INVALID, "stop_token_ids: expected at most %d ids, found %d",
                       HD_STOP_TOKEN_MAX, r->n_stop_token);
    return check_ids("stop_token_ids", r->stop_token, r->n_stop_token, n_vocab);
}

hd_status hd_request_check(const hd_request *r, int n_vocab, int n_ctx) {
    HD_ASSERT(r->on_event);
    if (r->n_prompt < 1) return HD_FAIL(INVALID, "prompt: expected at least 1 token, found none");
    if (r->n_prompt >= n_ctx)
        return HD_FAIL(CONTEXT,
                       "prompt: %d tokens, but the context holds %d, prompt and at least one "
                       "generated token",
                       r->n_prompt, n_ctx);
    HD_TRY(check_ids("prompt", r->prompt, r->n_prompt, n_vocab));
    if (r->max_tokens < 0)
        return HD_FAIL(INVALID, "max_tokens: expected 1 or more (0: no limit), found %d",
                       r->max_tokens);
    if (r->min_tokens < 0 || (r->max_tokens > 0 && r->min_tokens > r->max_tokens))
        return HD_FAIL(INVALID, "min_tokens: expected 0 to max_tokens (%d), found %d",
                       r->max_tokens, r->min_tokens);
    HD_TRY(check_sampling(&r->sampling, n_vocab));
    return check_stops(r, n_vocab);
}
