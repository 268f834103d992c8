/* The sampler: what bias, bans and penalties make of a row, and its log-probabilities. */
#include "engine/sampler.h"

#include "base/mem.h"
#include "dev/draw.h"

#include <float.h>
#include <math.h>
#include <string.h>

struct hd_sampler_desk {
    int n_vocab, n_no_token;
    int32_t *no_token; /* [n_no_token] */
    uint8_t *is_token; /* [n_vocab] */
    float *row;        /* [n_vocab] logits after bias and penalties */
    hd_draw_desk *draw;
};

/* A token that occurred, and how often it was generated. */
typedef struct seen {
    int32_t token, n_new;
} seen;

struct hd_sampler {
    hd_sampling set;
    hd_logit_bias *bias;
    uint64_t seed, n_new;
    bool has_counts;
    int n_seen;
    seen *seen;     /* [n_seen] distinct tokens */
    uint32_t mask;  /* slots of table - 1 */
    int32_t *table; /* index into seen or -1; open addressing, at most half full */
};

hd_sampler_desk *hd_sampler_desk_new(int n_vocab, const int32_t *no_token, int n_no_token) {
    HD_ASSERT(n_vocab > 0 && n_no_token >= 0);
    hd_sampler_desk *d = hd_alloc_zero(1, sizeof *d);
    size_t n = (size_t)n_vocab;
    *d = (hd_sampler_desk){.n_vocab = n_vocab, .n_no_token = n_no_token};
    d->no_token = hd_alloc_zero((size_t)n_no_token, sizeof *d->no_token);
    d->is_token = hd_alloc(n);
    d->row = hd_alloc_zero(n, sizeof *d->row);
    d->draw = hd_draw_desk_new(n_vocab);
    memset(d->is_token, 1, n);
    for (int i = 0; i < n_no_token; i++) {
        HD_ASSERT(no_token[i] >= 0 && no_token[i] < n_vocab);
        d->no_token[i] = no_token[i];
        d->is_token[no_token[i]] = 0;
    }
    return d;
}

void hd_sampler_desk_free(hd_sampler_desk *d) {
    if (!d) return;
    hd_free(d->no_token);
    hd_free(d->is_token);
    hd_free(d->row);
    hd_draw_desk_free(d->draw);
    hd_free(d);
}

/* ---- counts ---- */

static void count_token(hd_sampler *s, int32_t token, int n_new) {
    uint32_t at = (uint32_t)token * 2654435769u; /* Fibonacci hashing, Knuth volume 3, 6.4 */
    at ^= at >> 16;
    while (s->table[at & s->mask] >= 0 && s->seen[s->table[at & s->mask]].token != token) at++;
    int32_t *slot = &s->table[at & s->mask];
    if (*slot < 0) {
        *slot = s->n_seen;
        s->seen[s->n_seen++] = (seen){.token = token};
    }
    s->seen[*slot].n_new += n_new;
}

hd_sampler *hd_sampler_new(const hd_sampler_spec *spec) {
    const hd_sampling *set = spec->sampling;
    HD_ASSERT(set->n_top_logprob >= -1 && set->n_top_logprob <= HD_TOP_LOGPROB_MAX);
    hd_sampler *s = hd_alloc_zero(1, sizeof *s);
    s->set = *set;
    s->seed = spec->seed;
    s->bias = hd_alloc_zero((size_t)set->n_bias, sizeof *s->bias);
    if (set->n_bias > 0) memcpy(s->bias, set->bias, (size_t)set->n_bias * sizeof *s->bias);
    s->set.bias = s->bias;
    s->has_counts =
        set->presence_penalty != 0 || set->frequency_penalty != 0 || set->repetition_penalty != 1;
    if (!s->has_counts) return s;
    bool count_prompt = set->repetition_penalty != 1;
    size_t n_slot = 16,
           n_need = (size_t)spec->n_new_max + (count_prompt ? (size_t)spec->n_prompt : 0);
    while (n_slot < 2 * n_need) n_slot *= 2;
    s->seen = hd_alloc_zero(n_need, sizeof *s->seen);
    s->mask = (uint32_t)n_slot - 1;
    s->table = hd_alloc(n_slot * sizeof *s->table);
    for (size_t i = 0; i < n_slot; i++) s->table[i] = -1;
    if (count_prompt)
        for (int i = 0; i < spec->n_prompt; i++) count_token(s, spec->prompt[i], 0);
    return s;
}

void hd_sampler_free(hd_sampler *s) {
    if (!s) return;
    hd_free(s->bias);
    hd_free(s->seen);
    hd_free(s->table);
    hd_free(s);
}

void hd_sampler_accept(hd_sampler *s, int32_t token) {
    s->n_new++;
    if (s->has_counts) count_token(s, token, 1);
}

/* ---- randomness ---- */

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

double hd_sampler_uniform(uint64_t seed, uint64_t ix) {
    /* The seed is mixed first: seeds that differ by the stream's increment would else give the same
     * numbers, shifted by one. */
    uint64_t x = mix(mix(seed + 0x9E3779B97F4A7C15u) + 0x9E3779B97F4A7C15u * (ix + 1));
    return (double)(x >> 11) * 0x1p-53;
}

bool hd_sampler_needs_row(const hd_sampler *s) {
    return s->has_counts || s->set.n_bias > 0 || s->set.n_top_logprob >= 0;
}

void hd_sampler_draw(const hd_sampler *s, int n_pending, hd_draw *out) {
    *out = (hd_draw){.u = hd_sampler_uniform(s->seed, s->n_new + (uint64_t)n_pending),
                     .temperature = s->set.temperature,
                     .top_p = s->set.top_p,
                     .min_x = s->set.min_p > 0 ? logf(s->set.min_p) : -INFINITY,
                     .top_k = s->set.top_k,
                     .is_host = hd_sampler_needs_row(s)};
}

/* ---- one row ---- */

static double log_sum_exp(const float *x, int n) {
    float max = x[0];
    for (int i = 1; i < n; i++) max = x[i] > max ? x[i] : max;
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)expf(x[i] - max);
    return (double)max + log(sum);
}

/* The best n tokens of the raw row, by insertion: n is at most 20 and most ids fail the first
 * comparison. */
static int best_tokens(const hd_sampler_desk *d, const float *x, int n, hd_top_logprob *top) {
    int n_top = 0;
    for (int32_t id = 0; id < d->n_vocab && n > 0; id++) {
        if (!d->is_token[id]) continue;
        if (n_top == n && x[id] <= top[n - 1].logprob) continue;
        int at = n_top < n ? n_top++ : n - 1;
        for (; at > 0 && top[at - 1].logprob < x[id]; at--) top[at] = top[at - 1];
        top[at] = (hd_top_logprob){.token = id, .logprob = x[id]};
    }
    return n_top;
}

static void adjust_row(const hd_sampler *s, hd_sampler_desk *d, const int32_t *ban, int n_ban) {
    const hd_sampling *set = &s->set;
    float *row = d->row;
    for (int i = 0; i < set->n_bias; i++) row[set->bias[i].token] += set->bias[i].bias;
    for (int i = 0; i < n_ban; i++) row[ban[i]] = -INFINITY;
    for (int i = 0; i < d->n_no_token; i++) row[d->no_token[i]] = -INFINITY;
    for (int i = 0; i < s->n_seen; i++) {
        const seen *e = &s->seen[i];
        float *x = &row[e->token];
        if (set->repetition_penalty != 1)
            *x = *x > 0 ? *x / set->repetition_penalty : *x * set->repetition_penalty;
        *x -= set->frequency_penalty * (float)e->n_new;
        if (e->n_new > 0) *x -= set->presence_penalty;
        if (*x > FLT_MAX) *x = FLT_MAX;
    }
    for (int i = 0; i < set->n_bias; i++) /* a large logit plus a large bias */
        if (row[set->bias[i].token] > FLT_MAX) row[set->bias[i].token] = FLT_MAX;
}

hd_status hd_sampler_next(const hd_sampler *s, hd_sampler_desk *d, const float *logits,
                          const int32_t *ban, int n_ban, hd_sample *out) {
    const hd_sampling *set = &s->set;
    int n = d->n_vocab;
    out->n_top = 0;
    out->logprob = 0;
    if (!hd_draw_is_finite(logits, n))
        return HD_FAIL(NUMERIC, "logits of a row hold NaN or infinity; the request was ended");
    memcpy(d->row, logits, (size_t)n * sizeof *d->row);
    adjust_row(s, d, ban, n_ban);
    hd_draw how;
    hd_sampler_draw(s, 0, &how);
    int32_t token = hd_draw_token(d->draw, d->row, &how);
    if (token < 0) return HD_FAIL(INVALID, "no token is left to sample: logit_bias bans every one");
    out->token = token;
    if (set->n_top_logprob < 0) return HD_OK;
    double lse = log_sum_exp(logits, n);
    out->logprob = (float)((double)logits[token] - lse);
    out->n_top = best_tokens(d, logits, set->n_top_logprob, out->top);
    for (int i = 0; i < out->n_top; i++)
        out->top[i].logprob = (float)((double)out->top[i].logprob - lse);
    return HD_OK;
}
