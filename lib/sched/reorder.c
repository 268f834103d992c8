/* The order in which running sequences' rows stand in a step. It changes no result, only which
 * pages are read near each other. */
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
