/* Compaction: a running sequence's scattered pages are brought side by side while it runs.
 *
 * Every so many steps the stretch of some sequence's table with the most jumps (pages that do not
 * follow the one before in the pool) is moved to consecutive pages that nobody uses. Only whole
 * computed pages that no other running sequence holds are moved; what is cached where they go takes
 * the places that they leave, so nothing is forgotten but, when no page is free, one cached page.
 * The batch carries the copies, which the device makes before the step: results do not change, and
 * nobody waits. */
#include "sched/sched_impl.h"

enum {
    PERIOD = 32,   /* steps from one look to the next: a look reads every table and every page */
    GAIN_MIN = 4,  /* jumps that a stretch must have to be worth its copies; two may remain */
    COPIES_MAX = 3 /* of a moved page: when its new place is cached, by way of a third page */
};

struct stretch {
    hd_seq *q; /* NULL: none is worth it */
    int from, n, n_jump;
};

static bool is_jump(const hd_seq *q, int i) {
    return i > 0 && i < q->n_page && q->page[i] != q->page[i - 1] + 1;
}

/* Pages of q that are whole, computed, and told to the index where there is one. */
static int n_whole(const hd_sched *s, const hd_seq *q) {
    return s->c.prefix_cache ? q->n_indexed : q->n_computed / s->c.page_tok;
}

/* Widens to q's stretch of at most n_max pages with the most jumps, if that has more than *best. */
static void look_at(const hd_sched *s, hd_seq *q, int n_max, struct stretch *best) {
    int end = n_whole(s, q), from = 0, n_jump = 0;
    while (from < end && hd_pages_refs(s->pages, q->page[from]) > 1) from++;
    for (int i = from; i < end; i++) {
        n_jump += is_jump(q, i);
        if (i - from == n_max) n_jump -= is_jump(q, from++);
        /* A stretch begins with a jump, or there is one page less to move. */
        while (from < i && !is_jump(q, from)) from++;
        if (n_jump > best->n_jump)
            *best = (struct stretch){.q = q, .from = from, .n = i - from + 1, .n_jump = n_jump};
    }
}

static void move(hd_sched *s, hd_batch *b, int from, int to) {
    HD_ASSERT(b->n_copy < HD_BATCH_COPY_MAX);
    hd_prefix_move(s->prefix, from, to);
    b->copy_from[b->n_copy] = from;
    b->copy_to[b->n_copy++] = to;
}

void hd_sched_compact(hd_sched *s, hd_batch *b) {
    struct stretch x = {.n_jump = GAIN_MIN - 1};
    if (s->c.compact_page_max == 0 || ++s->n_since_compact < PERIOD) return;
    s->n_since_compact = 0;
    int n_max = hd_sched_min(s->c.compact_page_max, HD_BATCH_COPY_MAX / COPIES_MAX);
    for (int i = 0; i < s->n_run; i++) /* a step with rows follows, or there would be no copies */
        if (hd_seq_n_wanted(s->run[i]) > 0) look_at(s, s->run[i], n_max, &x);
    int between = x.q ? hd_prefix_take(s->prefix) : -1;
    if (between < 0) return;
    int to = hd_pages_find_run(s->pages, x.n);
    for (int i = 0; i < x.n && to >= 0; i++) {
        int old = x.q->page[x.from + i];
        bool is_free = hd_pages_is_free(s->pages, to + i);
        if (is_free)
            hd_pages_take_at(s->pages, to + i);
        else
            move(s, b, to + i, between);
        move(s, b, old, to + i);
        x.q->page[x.from + i] = to + i;
        if (is_free)
            hd_prefix_release(s->prefix, old);
        else
            move(s, b, between, old);
        s->n_moved++;
    }
    hd_prefix_release(s->prefix, between);
}
