/* The order in which running sequences' rows stand in a step, which changes no result, only which
 * pages are read near each other; and who of a bucket that waits is admitted before its turn. */
#include "sched/sched_impl.h"

#include <string.h>

/* Steps from one page of q to the next that are not to the next page of the pool, of all. */
static double fragmentation(const hd_sched *s, const hd_seq *q) {
    int n_jump = 0;
    for (int i = 1; i < q->n_page; i++) n_jump += q->page[i] != q->page[i - 1] + 1;
    int n_free = hd_pages_n_free(s->pages);
    return q->n_page > 1 ? (double)n_jump / (q->n_page - 1) / (n_free > 1 ? n_free : 1) : 0;
}

/* Sequences of one beginning hold the same first pages: side by side they are read once. */
static bool is_page_before(const hd_seq *a, const hd_seq *b) {
    int n = hd_sched_min(a->n_page, b->n_page);
    for (int i = 0; i < n; i++)
        if (a->page[i] != b->page[i]) return a->page[i] < b->page[i];
    return a->n_page < b->n_page;
}

static bool is_placed_before(const hd_sched *s, const hd_seq *a, const hd_seq *b) {
    switch (s->c.reorder) {
    case HD_REORDER_FRAGMENTATION: return fragmentation(s, a) > fragmentation(s, b);
    case HD_REORDER_PREFIX: return is_page_before(a, b);
    case HD_REORDER_LENGTH: return a->n_tok < b->n_tok;
    case HD_REORDER_NONE: break;
    }
    return false;
}

/* Merges the sorted runs place[from..mid) and place[mid..to); equals keep their order. */
static void merge(hd_sched *s, int from, int mid, int to) {
    int a = from, b = mid;
    for (int i = from; i < to; i++) {
        bool takes_b = a == mid || (b < to && is_placed_before(s, s->place[b], s->place[a]));
        s->merged[i] = s->place[takes_b ? b++ : a++];
    }
    memcpy(s->place + from, s->merged + from, (size_t)(to - from) * sizeof(hd_seq *));
}

void hd_sched_reorder(hd_sched *s) {
    if (s->c.reorder == HD_REORDER_NONE || ++s->n_since_reorder < s->c.reorder_interval) return;
    s->n_since_reorder = 0;
    for (int n = 1; n < s->n_run; n *= 2)
        for (int from = 0; from + n < s->n_run; from += 2 * n)
            merge(s, from, from + n, hd_sched_min(from + 2 * n, s->n_run));
}

/* ---- waiting ones ---- */

/* Nothing is remembered of what is looked at: it takes 21 ns a cached page (Zen 5), 70 us a plan
 * for 32 beginnings of 1650 tokens, and only while slots are free. */
enum {
    FAVOUR_LOOK = 32, /* of the first in line one is favoured */
    PASS_MAX = 16     /* so often is the first one passed by those */
};

/* Pages of q that are in the cache; -1: more of them soon, which it would wait for. */
static int n_cached_page(hd_sched *s, hd_seq *q) {
    int n;
    return hd_sched_match(s, q, &n) ? n : -1;
}

hd_seq *hd_sched_favourite(hd_sched *s) {
    hd_seq *first = hd_sched_next_waiting(s, NULL), *best = first;
    bool by_prefix = s->c.reorder == HD_REORDER_PREFIX && s->c.prefix_cache;
    if (!first || first->n_passed >= PASS_MAX) return NULL;
    if ((!by_prefix && s->c.reorder != HD_REORDER_LENGTH) || s->c.policy == HD_SCHED_FCFS)
        return NULL;
    int n_best = by_prefix ? n_cached_page(s, first) : first->n_tok, n = 1;
    for (hd_seq *q = first->next; q && n < FAVOUR_LOOK; q = q->next, n++) {
        int n_q = by_prefix ? n_cached_page(s, q) : q->n_tok;
        if (by_prefix ? n_q <= n_best : n_q >= n_best) continue;
        best = q;
        n_best = n_q;
    }
    return best != first ? best : NULL;
}
