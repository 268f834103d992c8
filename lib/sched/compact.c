/* Compaction: a running sequence's scattered pages are brought side by side while it runs.
 *
 * Every few steps one running sequence, in turn, is looked at: the stretch of its table with
 * the most jumps (pages that do not follow the one before in the pool) is moved to consecutive
 * pages that nobody uses. Only whole computed pages that no other running sequence holds are moved;
 * what is cached where they go takes the places that they leave. Where no page is free, the cached
 * one that would go next goes now, if there is something to move. A look reads one table and a
 * bounded part of the pool. The batch carries the copies, which the device makes before the step:
 * results do not change, and nobody waits. */
#include "sched/sched_impl.h"

enum {
    PERIOD_MAX = 32,   /* steps from one look to the next */
    LOOK_PAGES = 4096, /* of the pool, among which a place is looked for */
    GAIN_MIN = 4,      /* jumps that a stretch must have to be worth its copies; two may remain */
    COPIES_MAX = 3     /* of a moved page: when its new place is cached, by way of a third page */
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

struct place {
    int to, between; /* its first page; the page by way of which what is cached there leaves */
};

/* The stretch of q that is moved, and where to: shorter ones are tried where there is no room. */
static bool choose(hd_sched *s, hd_seq *q, struct stretch *x, struct place *at) {
    if (s->compact_from >= s->c.n_page) s->compact_from = 0;
    at->between = hd_pages_next_free(s->pages);
    if (at->between < 0) at->between = hd_pages_oldest(s->pages);
    if (at->between < 0) return false;
    int n_max = hd_sched_min(s->c.compact_page_max, HD_BATCH_COPY_MAX / COPIES_MAX);
    for (; n_max >= GAIN_MIN; n_max /= 2) {
        *x = (struct stretch){.n_jump = GAIN_MIN - 1};
        look_at(s, q, n_max, x);
        if (!x->q) break;
        hd_pages_search search = {
            .n = x->n, .avoid = at->between, .from = s->compact_from, .n_look = LOOK_PAGES};
        at->to = hd_pages_find_run(s->pages, &search);
        if (at->to >= 0) return true;
    }
    s->compact_from += LOOK_PAGES - HD_BATCH_COPY_MAX; /* elsewhere next time */
    return false;
}

void hd_sched_compact(hd_sched *s, hd_batch *b) {
    struct stretch x;
    struct place at;
    if (s->c.compact_page_max == 0 || s->n_run == 0) return;
    /* As many pages are moved as sequences that decode fill. */
    int period = s->c.compact_page_max * s->c.page_tok / s->n_run;
    if (++s->n_since_compact < hd_sched_min(period, PERIOD_MAX)) return;
    s->n_since_compact = 0;
    hd_seq *q = s->run[s->n_look++ % (unsigned)s->n_run];
    /* A step with rows follows, or there would be no copies. */
    if (hd_seq_n_wanted(q) == 0 || q->chunk || !choose(s, q, &x, &at)) return;
    int to = at.to, between = at.between;
    int taken = hd_prefix_take(s->prefix);
    HD_ASSERT(taken == between);
    for (int i = 0; i < x.n; i++) {
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
