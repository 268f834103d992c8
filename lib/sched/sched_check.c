/* The scheduler's invariants. Not for every step of a server: each page and token is looked at. */
#include "sched/sched_impl.h"

#include <string.h>

static void check_pages_of(const hd_sched *s, const hd_seq *q) {
    int page_tok = s->c.page_tok;
    HD_ASSERT(q->n_page <= q->n_page_room && q->n_page * page_tok >= q->n_computed);
    int n_full = hd_sched_min(q->n_computed, hd_seq_n_known(q)) / page_tok;
    HD_ASSERT(q->n_indexed == (s->c.prefix_cache ? n_full : 0));
    for (int i = 0; i < q->n_page; i++) {
        int page = q->page[i];
        HD_ASSERT(hd_pages_refs(s->pages, page) > 0);
        s->uses[page]++;
        for (int k = 0; k < i; k++) HD_ASSERT(q->page[k] != page);
        HD_ASSERT(hd_prefix_is_indexed(s->prefix, page) == (i < q->n_indexed));
        if (i >= q->n_indexed) { /* not complete: nobody else's */
            HD_ASSERT(hd_pages_refs(s->pages, page) == 1);
            continue;
        }
        size_t at = (size_t)i * (size_t)page_tok;
        const int32_t *token = hd_prefix_tokens(s->prefix, page);
        const uint8_t *form = hd_prefix_forms(s->prefix, page);
        HD_ASSERT(hd_prefix_parent(s->prefix, page) == (i > 0 ? q->page[i - 1] : -1));
        HD_ASSERT(memcmp(token, q->token + at, (size_t)page_tok * sizeof *token) == 0);
        HD_ASSERT(memcmp(form, q->form + at, (size_t)page_tok * sizeof *form) == 0);
    }
}

static void check_running(const hd_sched *s) {
    memset(s->uses, 0, (size_t)s->c.n_page * sizeof *s->uses);
    HD_ASSERT(s->n_run >= 0 && s->n_run <= s->n_slot && s->n_run + s->n_free_slot == s->n_slot);
    for (int i = 0; i < s->n_run; i++) {
        const hd_seq *q = s->run[i];
        HD_ASSERT(q->state == HD_SEQ_RUNNING && q->admitted_ns >= 0);
        HD_ASSERT(i == 0 || hd_sched_is_before(s->run[i - 1], q));
        HD_ASSERT(q->slot >= 0 && q->slot < s->n_slot && !q->has_room);
        int n_place = 0;
        for (int k = 0; k < s->n_run; k++) n_place += s->place[k] == q;
        HD_ASSERT(n_place == 1);
        for (int k = 0; k < i; k++) HD_ASSERT(s->run[k]->slot != q->slot);
        for (int k = 0; k < s->n_free_slot; k++) HD_ASSERT(s->free_slot[k] != q->slot);
        HD_ASSERT(q->n_computed <= q->n_tok && q->n_tok <= q->n_tok_max);
        HD_ASSERT(q->n_prompt <= q->n_tok && q->n_hit < q->n_prompt);
        check_pages_of(s, q);
    }
    hd_sched_chunk_check(s);
    int n_used = 0;
    for (int i = 0; i < s->c.n_page; i++) {
        HD_ASSERT(hd_pages_refs(s->pages, i) == s->uses[i]);
        HD_ASSERT(s->uses[i] > 0 || !hd_prefix_is_promised(s->prefix, i));
        n_used += s->uses[i] > 0;
    }
    HD_ASSERT(n_used + hd_pages_n_free(s->pages) + hd_pages_n_cached(s->pages) == s->c.n_page);
    HD_ASSERT(s->c.prefix_cache || hd_pages_n_cached(s->pages) == 0);
}

static void check_queue(const hd_sched *s, int k, int *n_waiting_of) {
    const hd_seq *before = NULL;
    for (const hd_seq *q = s->queue[k].head; q; before = q, q = q->next) {
        HD_ASSERT(q->state == HD_SEQ_WAITING && q->prev == before && q->slot < 0);
        HD_ASSERT(q->n_page == 0 && q->n_computed == 0 && q->n_indexed == 0);
        HD_ASSERT(q->preempted == (q->admitted_ns >= 0) && q->bucket == k);
        HD_ASSERT(!before || hd_sched_is_before(before, q));
        HD_ASSERT(s->expiry_ns <= hd_sched_expiry_of(q));
        n_waiting_of[q->service]++;
    }
    HD_ASSERT(before == s->queue[k].tail);
}

static void check_queues(const hd_sched *s) {
    int n_waiting_of[HD_SERVICE_COUNT] = {0}, n_waiting = 0;
    for (int k = 0; k < HD_BUCKET_COUNT; k++) check_queue(s, k, n_waiting_of);
    for (int c = 0; c < HD_SERVICE_COUNT; c++) {
        HD_ASSERT(n_waiting_of[c] == s->n_waiting_of[c]);
        n_waiting += n_waiting_of[c];
    }
    HD_ASSERT(n_waiting == s->n_waiting);
}

void hd_sched_check(const hd_sched *s) {
    hd_prefix_check(s->prefix);
    check_running(s);
    check_queues(s);
    for (int i = 0; i < s->n_flight; i++) {
        HD_ASSERT(!s->flight[i] || s->flight[i]->flight_ix == i);
    }
    HD_ASSERT(s->hit_tok <= s->prompt_tok);
    HD_ASSERT(s->horizon_tok >= s->c.page_tok);
}
