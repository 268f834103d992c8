/* The sampler. A cut (top-k, top-p) needs no sorted vocabulary: a histogram over the probabilities'
 * bits tells which buckets are kept whole, and only the bucket in which the cut falls is put in
 * order. Over 129280 ids top-p 0.95 takes about what the exponentials take. */
#include "engine/sampler.h"

#include "base/mem.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <string.h>

struct hd_sampler_desk {
    int n_vocab, n_no_token;
    int32_t *no_token; /* [n_no_token] */
    uint8_t *is_token; /* [n_vocab] */
    float *row;        /* [n_vocab] logits after bias and penalties */
    float *p;          /* [n_vocab] exp((row - max) / temperature), by id */
    int32_t *heap;     /* [n_vocab] candidate ids */
    int32_t *n_in;     /* [bucket_max] candidates in a bucket of the histogram */
    double *mass_in;   /* [bucket_max] the sum of their p */
};

/* Bucket 0 holds p = 1, the best candidate's. 6 bits of the mantissa tell buckets apart. */
enum { one_bits = 0x3F800000, bucket_shift = 17, bucket_max = (one_bits >> bucket_shift) + 1 };

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
    d->p = hd_alloc_zero(n, sizeof *d->p);
    d->heap = hd_alloc_zero(n, sizeof *d->heap);
    d->n_in = hd_alloc_zero(bucket_max, sizeof *d->n_in);
    d->mass_in = hd_alloc_zero(bucket_max, sizeof *d->mass_in);
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
    hd_free(d->p);
    hd_free(d->heap);
    hd_free(d->n_in);
    hd_free(d->mass_in);
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

/* ---- one row ---- */

static bool row_is_finite(const float *x, int n) {
    uint32_t bad = 0;
    for (int i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bad |= (bits & 0x7F800000u) == 0x7F800000u;
    }
    return bad == 0;
}

/* Candidate a comes before b: larger logit, then lower id. */
static bool before(const float *row, int32_t a, int32_t b) {
    return row[a] > row[b] || (row[a] == row[b] && a < b);
}

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

static int32_t arg_max(const float *row, int n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (row[i] > row[best]) best = i;
    return best;
}

/* One id, with probability p[id] / sum. */
static int32_t draw(const hd_sampler_desk *d, double sum, double u) {
    double at = u * sum, below = 0;
    int32_t last = -1;
    for (int32_t i = 0; i < d->n_vocab; i++) {
        if (d->p[i] <= 0) continue;
        last = i;
        below += (double)d->p[i];
        if (below > at) return i;
    }
    return last; /* rounding left `at` above the last partial sum */
}

static void sift_down(const float *row, int32_t *heap, int n, int at) {
    if (n == 0) return;
    int32_t id = heap[at];
    for (int child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(row, heap[child + 1], heap[child])) child++;
        if (!before(row, heap[child], id)) break;
        heap[at] = heap[child];
    }
    heap[at] = id;
}

static int bucket_of(float p) {
    uint32_t bits;
    memcpy(&bits, &p, sizeof bits);
    return (int)((one_bits - bits) >> bucket_shift);
}

static void put_in_bucket(hd_sampler_desk *d, float p) {
    int b = bucket_of(p);
    d->n_in[b]++;
    d->mass_in[b] += (double)p;
}

/* Keeps the best candidates until n_max of them are kept or their p adds up to mass_max, but at
 * least one; p of all others becomes 0. Returns the sum that is kept. */
static double cut(hd_sampler_desk *d, int n_max, double mass_max) {
    int n = 0, b = 0, n_heap = 0;
    double mass = 0;
    for (; b < bucket_max; b++) {
        if (d->n_in[b] == 0) continue;
        if (n + d->n_in[b] >= n_max || mass + d->mass_in[b] >= mass_max) break;
        n += d->n_in[b];
        mass += d->mass_in[b];
    }
    if (b == bucket_max) return mass;
    for (int32_t i = 0; i < d->n_vocab; i++) {
        if (d->p[i] <= 0) continue;
        int at = bucket_of(d->p[i]);
        if (at == b) d->heap[n_heap++] = i;
        if (at > b) d->p[i] = 0;
    }
    memset(d->n_in + b, 0, (size_t)(bucket_max - b) * sizeof *d->n_in);
    memset(d->mass_in + b, 0, (size_t)(bucket_max - b) * sizeof *d->mass_in);
    for (int i = n_heap / 2 - 1; i >= 0; i--) sift_down(d->row, d->heap, n_heap, i);
    while (n_heap > 0 && (n == 0 || (n < n_max && mass < mass_max))) {
        float p = d->p[d->heap[0]];
        put_in_bucket(d, p);
        mass += (double)p;
        n++;
        d->heap[0] = d->heap[--n_heap];
        sift_down(d->row, d->heap, n_heap, 0);
    }
    for (int i = 0; i < n_heap; i++) d->p[d->heap[i]] = 0;
    return mass;
}

static int32_t draw_cut(const hd_sampler *s, hd_sampler_desk *d, double u) {
    const hd_sampling *set = &s->set;
    double sum = 0;
    memset(d->n_in, 0, bucket_max * sizeof *d->n_in);
    memset(d->mass_in, 0, bucket_max * sizeof *d->mass_in);
    for (int32_t i = 0; i < d->n_vocab; i++) {
        if (d->p[i] < set->min_p) d->p[i] = 0; /* the largest p is exactly 1 */
        if (d->p[i] <= 0) continue;
        put_in_bucket(d, d->p[i]);
        sum += (double)d->p[i];
    }
    if (set->top_k > 0) sum = cut(d, set->top_k, INFINITY);
    if (set->top_p < 1) sum = cut(d, INT_MAX, (double)set->top_p * sum);
    return draw(d, sum, u);
}

hd_status hd_sampler_next(const hd_sampler *s, hd_sampler_desk *d, const float *logits,
                          const int32_t *ban, int n_ban, hd_sample *out) {
    const hd_sampling *set = &s->set;
    int n = d->n_vocab;
    out->n_top = 0;
    out->logprob = 0;
    if (!row_is_finite(logits, n))
        return HD_FAIL(NUMERIC, "logits of a row hold NaN or infinity; the request was ended");
    memcpy(d->row, logits, (size_t)n * sizeof *d->row);
    adjust_row(s, d, ban, n_ban);
    int32_t token = arg_max(d->row, n);
    float max = d->row[token];
    if (max == -INFINITY)
        return HD_FAIL(INVALID, "no token is left to sample: logit_bias bans every one");
    if (set->temperature > 0) {
        double sum = 0;
        for (int i = 0; i < n; i++) {
            d->p[i] = expf((d->row[i] - max) / set->temperature);
            sum += (double)d->p[i];
        }
        double u = hd_sampler_uniform(s->seed, s->n_new);
        bool is_cut = set->top_k > 0 || set->top_p < 1 || set->min_p > 0;
        token = is_cut ? draw_cut(s, d, u) : draw(d, sum, u);
    }
    out->token = token;
    if (set->n_top_logprob < 0) return HD_OK;
    double lse = log_sum_exp(logits, n);
    out->logprob = (float)((double)logits[token] - lse);
    out->n_top = best_tokens(d, logits, set->n_top_logprob, out->top);
    for (int i = 0; i < out->n_top; i++)
        out->top[i].logprob = (float)((double)out->top[i].logprob - lse);
    return HD_OK;
}
