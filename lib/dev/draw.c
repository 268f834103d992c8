/* Drawing on the host. A cut (top_k, top_p) needs no sorted vocabulary: a histogram over the
 * probabilities' bits tells which buckets are kept whole, and only the bucket in which the cut
 * falls is put in order. Over 129280 ids top_p 0.95 takes about what the exponentials take. */
#include "dev/draw.h"

#include "base/mem.h"

#include <math.h>

struct hd_draw_desk {
    int n_vocab;
    float *row;        /* [n_vocab] logits without those that are no tokens */
    float *x;          /* [n_vocab] by id; OUT: no candidate, or cut */
    int32_t *heap;     /* [n_vocab] candidate ids */
    int32_t *n_in;     /* [HD_DRAW_BINS] candidates in a bin */
    uint64_t *mass_in; /* [HD_DRAW_BINS] the sum of their weights */
};
#define OUT (-INFINITY)

hd_draw_desk *hd_draw_desk_new(int n_vocab) {
    HD_ASSERT(n_vocab > 0 && n_vocab <= HD_DRAW_VOCAB_MAX);
    hd_draw_desk *d = hd_alloc_zero(1, sizeof *d);
    size_t n = (size_t)n_vocab;
    d->n_vocab = n_vocab;
    d->row = hd_alloc_zero(n, sizeof *d->row);
    d->x = hd_alloc_zero(n, sizeof *d->x);
    d->heap = hd_alloc_zero(n, sizeof *d->heap);
    d->n_in = hd_alloc_zero(HD_DRAW_BINS, sizeof *d->n_in);
    d->mass_in = hd_alloc_zero(HD_DRAW_BINS, sizeof *d->mass_in);
    return d;
}

void hd_draw_desk_free(hd_draw_desk *d) {
    if (!d) return;
    hd_free(d->row);
    hd_free(d->x);
    hd_free(d->heap);
    hd_free(d->n_in);
    hd_free(d->mass_in);
    hd_free(d);
}

bool hd_draw_is_finite(const float *x, int n) {
    uint32_t bad = 0;
    for (int i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bad |= (bits & 0x7F800000u) == 0x7F800000u;
    }
    return bad == 0;
}

/* Candidate a comes before b. */
static bool before(const float *row, int32_t a, int32_t b) {
    return row[a] > row[b] || (row[a] == row[b] && a < b);
}

/* The first of the largest, whose value is looked for first: of maxima side by side the compiler
 * makes vectors. */
static int32_t arg_max(const float *row, int n) {
    enum { LANES = 32 };
    float lane[LANES], max = -INFINITY;
    int32_t i = 0, best = 0;
    for (int l = 0; l < LANES; l++) lane[l] = max;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) lane[l] = row[i + l] > lane[l] ? row[i + l] : lane[l];
    for (; i < n; i++) max = row[i] > max ? row[i] : max;
    for (int l = 0; l < LANES; l++) max = lane[l] > max ? lane[l] : max;
    while (best < n - 1 && row[best] != max) best++;
    return best;
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

static void put_in_bin(hd_draw_desk *d, float x) {
    int b = hd_draw_bin(x);
    d->n_in[b]++;
    d->mass_in[b] += hd_draw_weight(x);
}

/* Keeps the best candidates until the bound is reached, but at least one. Returns the sum that is
 * kept. */
static uint64_t cut(hd_draw_desk *d, const float *row, hd_draw_bound x) {
    int n = 0, b = 0, n_heap = 0;
    uint64_t mass = 0;
    for (; b < HD_DRAW_BINS; b++) {
        if (d->n_in[b] == 0) continue;
        if (hd_draw_is_reached(x, n + d->n_in[b], mass + d->mass_in[b])) break;
        n += d->n_in[b];
        mass += d->mass_in[b];
    }
    if (b == HD_DRAW_BINS) return mass;
    for (int32_t i = 0; i < d->n_vocab; i++) {
        if (d->x[i] == OUT) continue;
        int at = hd_draw_bin(d->x[i]);
        if (at == b) d->heap[n_heap++] = i;
        if (at > b) d->x[i] = OUT;
    }
    memset(d->n_in + b, 0, (size_t)(HD_DRAW_BINS - b) * sizeof *d->n_in);
    memset(d->mass_in + b, 0, (size_t)(HD_DRAW_BINS - b) * sizeof *d->mass_in);
    for (int i = n_heap / 2 - 1; i >= 0; i--) sift_down(row, d->heap, n_heap, i);
    while (n_heap > 0 && (n == 0 || !hd_draw_is_reached(x, n, mass))) {
        float kept = d->x[d->heap[0]];
        put_in_bin(d, kept);
        mass += hd_draw_weight(kept);
        n++;
        d->heap[0] = d->heap[--n_heap];
        sift_down(row, d->heap, n_heap, 0);
    }
    for (int i = 0; i < n_heap; i++) d->x[d->heap[i]] = OUT;
    return mass;
}

static uint64_t cut_all(hd_draw_desk *d, const float *row, const hd_draw *how, uint64_t sum) {
    memset(d->n_in, 0, HD_DRAW_BINS * sizeof *d->n_in);
    memset(d->mass_in, 0, HD_DRAW_BINS * sizeof *d->mass_in);
    for (int32_t i = 0; i < d->n_vocab; i++)
        if (d->x[i] != OUT) put_in_bin(d, d->x[i]);
    if (how->top_k > 0) sum = cut(d, row, (hd_draw_bound){.n_max = how->top_k, .top_p = 1});
    if (how->top_p < 1)
        sum = cut(d, row, (hd_draw_bound){.n_max = INT32_MAX, .top_p = how->top_p, .sum = sum});
    return sum;
}

int32_t hd_draw_token(hd_draw_desk *d, const float *row, const hd_draw *how) {
    int32_t best = arg_max(row, d->n_vocab);
    float max = row[best];
    if (max == -INFINITY) return -1;
    if (!(how->temperature > 0)) return best;
    uint64_t sum = 0, below = 0;
    for (int i = 0; i < d->n_vocab; i++) {
        float x = hd_draw_x(row[i], max, how->temperature);
        d->x[i] = hd_draw_is_candidate(x, how->min_x) ? x : OUT;
        if (d->x[i] != OUT) sum += hd_draw_weight(x);
    }
    if (how->top_k > 0 || how->top_p < 1) sum = cut_all(d, row, how, sum);
    uint64_t at = hd_draw_target(how->u, sum);
    for (int32_t i = 0; i < d->n_vocab; i++) {
        if (d->x[i] == OUT) continue;
        below += hd_draw_weight(d->x[i]);
        if (below > at) return i;
    }
    hd_assert_fail("the target is below the sum", __FILE__, __LINE__);
}

int32_t hd_draw_row(hd_draw_desk *d, const float *logits, const uint8_t *is_token,
                    const hd_draw *how) {
    if (!hd_draw_is_finite(logits, d->n_vocab)) return -1;
    if (!is_token) return hd_draw_token(d, logits, how);
    for (int i = 0; i < d->n_vocab; i++) d->row[i] = is_token[i] ? logits[i] : -INFINITY;
    return hd_draw_token(d, d->row, how);
}
