/* The plan of a step: which rows of which sequences, who is admitted, who is preempted. */
#include "sched/sched_impl.h"

#include <string.h>

/* Waiting sequences looked at in one plan: each costs a match at most once, then one comparison
 * until the promise it was passed over for ends. */
enum { LOOK_MAX = 64 };

struct plan {
    hd_batch *b;
    int64_t now_ns;
    int n_left; /* rows */
    bool may_admit;
    int64_t growth_page; /* of the running sequences over the horizon; -1: not counted yet */
};

static void add_rows(hd_sched *s, struct plan *p, hd_seq *q, int n_row) {
    hd_batch *b = p->b;
    int page_tok = s->c.page_tok, ix = b->n_seq++, n_known = hd_seq_n_known(q);
    HD_ASSERT(n_row > 0 && n_row <= p->n_left && q->flight_ix < 0);
    for (int pos = q->n_computed; pos < q->n_computed + n_row; pos++) {
        int r = b->n_row++;
        b->token[r] = pos < n_known ? q->token[pos] : hd_token_of_slot(q->slot);
        b->pos[r] = pos;
        b->row_seq[r] = ix;
        b->kv_row[r] = q->page[pos / page_tok] * page_tok + pos % page_tok;
        b->form[r] = q->form[pos];
    }
    int n_page = hd_sched_pages_for(&s->c, q->n_computed + n_row);
    HD_ASSERT(n_page <= q->n_page);
    memcpy(b->page + b->n_page, q->page, (size_t)n_page * sizeof *b->page);
    b->n_page += n_page;
    b->seq_slot[ix] = q->slot;
    b->seq_row0[ix + 1] = b->n_row;
    b->seq_page0[ix + 1] = b->n_page;
    if (q->n_computed + n_row == q->n_tok) b->out_row[b->n_out++] = b->n_row - 1;
    s->flight[ix] = q;
    s->n_flight = b->n_seq;
    q->flight_ix = ix;
    p->n_left -= n_row;
}

/* Decoding */

static void preempt(hd_sched *s, struct plan *p, hd_seq *q) {
    HD_ASSERT(q->flight_ix < 0);
    if (q->n_redo < q->n_computed) q->n_redo = q->n_computed;
    q->preempted = true;
    hd_sched_stop(s, q);
    hd_sched_enqueue(s, q);
    s->n_preempt++;
    if (s->horizon_tok < s->c.n_pos_max) s->horizon_tok += s->horizon_tok / HD_SCHED_HORIZON_UP + 1;
    p->may_admit = false;
}

/* Makes sure that q's next position has a page; false: q itself was preempted for want of one. The
 * victim is the last running sequence, which has no rows in the batch yet: they are added in the
 * same order. */
static bool reach_page(hd_sched *s, struct plan *p, hd_seq *q) {
    while (q->n_page * s->c.page_tok <= q->n_computed) {
        int page = hd_prefix_take(s->prefix);
        if (page >= 0) {
            HD_ASSERT(q->n_page < q->n_page_room);
            q->page[q->n_page++] = page;
            continue;
        }
        hd_seq *victim = s->run[s->n_run - 1];
        preempt(s, p, victim);
        if (victim == q) return false;
    }
    return true;
}

/* One row for each running sequence with one token to compute. There are no more of them than rows.
 */
static void plan_decodes(hd_sched *s, struct plan *p) {
    for (int i = 0; i < s->n_run; i++) {
        hd_seq *q = s->run[i];
        if (hd_seq_n_wanted(q) == 1 && q->flight_ix < 0 && reach_page(s, p, q)) {
            add_rows(s, p, q, 1);
        }
    }
}

/* Admission */

/* Positions that q has pages for once admitted: the known tokens that are of use. */
static int held_pos(const hd_seq *q) { return hd_sched_min(q->n_tok, q->n_tok_max - 1); }

static int growth_of(const hd_sched *s, const hd_seq *q) {
    int64_t n_pos = (int64_t)q->n_tok + s->horizon_tok;
    if (n_pos > q->n_tok_max - 1) n_pos = q->n_tok_max - 1;
    int n_held = q->state == HD_SEQ_RUNNING ? q->n_page : hd_sched_pages_for(&s->c, held_pos(q));
    int n_page = hd_sched_pages_for(&s->c, (int)n_pos);
    return n_page > n_held ? n_page - n_held : 0;
}

/* Whether the pool has room for q, of whose pages path[0..n_hit) exist, and for the growth of all.
 * A sequence alone always has: it was refused when submitted if not. */
static bool has_room(hd_sched *s, struct plan *p, const hd_seq *q, int n_hit) {
    int n_evictable = hd_pages_n_free(s->pages) + hd_pages_n_cached(s->pages);
    for (int i = 0; i < n_hit; i++) n_evictable -= hd_pages_is_cached(s->pages, s->path[i]);
    int n_left = n_evictable - (hd_sched_pages_for(&s->c, held_pos(q)) - n_hit);
    if (s->n_run == 0) {
        HD_ASSERT(n_left >= 0);
        return true;
    }
    if (p->growth_page < 0) {
        p->growth_page = 0;
        for (int i = 0; i < s->n_run; i++) p->growth_page += growth_of(s, s->run[i]);
    }
    return n_left >= p->growth_page + growth_of(s, q);
}

/* Copies the forms of reused pages and chooses the rest of the prompt's, once and for all. */
static void record_forms(hd_sched *s, hd_seq *q, int n_hit) {
    size_t page_tok = (size_t)s->c.page_tok;
    for (int i = 0; i < n_hit; i++) {
        const uint8_t *form = hd_prefix_forms(s->prefix, s->path[i]);
        memcpy(q->form + (size_t)i * page_tok, form, page_tok * sizeof *form);
    }
    int n_hit_tok = n_hit * s->c.page_tok, n_left = q->n_prompt - n_hit_tok;
    int form = !s->c.exact && n_left >= s->c.expand_min ? HD_MLA_EXPANDED : HD_MLA_ABSORBED;
    memset(q->form + n_hit_tok, form, (size_t)n_left * sizeof *q->form);
}

/* Takes pages for all known tokens, path[0..n_hit) being the first, and promises the full ones. */
static void take_pages(hd_sched *s, hd_seq *q, int n_hit) {
    for (int i = 0; i < n_hit; i++) {
        hd_pages_ref(s->pages, s->path[i]);
        q->page[i] = s->path[i];
    }
    q->n_page = q->n_indexed = n_hit;
    for (int i = n_hit; i < hd_sched_pages_for(&s->c, held_pos(q)); i++) {
        int page = hd_prefix_take(s->prefix);
        HD_ASSERT(page >= 0 && q->n_page < q->n_page_room);
        q->page[q->n_page++] = page;
        if (!s->c.prefix_cache || i >= q->n_tok / s->c.page_tok) continue;
        size_t at = (size_t)i * (size_t)s->c.page_tok;
        hd_prefix_content content = {.parent = i > 0 ? q->page[i - 1] : -1,
                                     .salt = q->salt,
                                     .token = q->token + at,
                                     .form = q->form + at};
        hd_prefix_promise(s->prefix, page, &content, q->priority);
    }
}

static void start(hd_sched *s, struct plan *p, hd_seq *q, int n_hit) {
    HD_ASSERT(hd_seq_n_known(q) == q->n_tok); /* whoever was preempted has been told since */
    hd_sched_dequeue(s, q);
    int n_hit_tok = n_hit * s->c.page_tok;
    if (q->admitted_ns < 0) {
        q->admitted_ns = p->now_ns;
        q->n_hit = n_hit_tok;
        s->prompt_tok += (uint64_t)q->n_prompt;
        s->hit_tok += (uint64_t)n_hit_tok;
        record_forms(s, q, n_hit);
    }
    take_pages(s, q, n_hit);
    q->n_computed = n_hit_tok;
    if (p->growth_page >= 0) p->growth_page += growth_of(s, q);
}

/* Unchunked: whether n_row prompt rows have to wait until a step has room for all of them, which is
 * the next one then. */
static bool waits_for_step(hd_sched *s, const struct plan *p, int n_row) {
    if (s->c.chunked || n_row <= p->n_left || n_row > s->c.n_row_max) return false;
    s->prompts_next = true;
    return true;
}

enum admission { ADMITTED, PASSED_OVER, BLOCKED };

static enum admission admit(hd_sched *s, struct plan *p, hd_seq *q) {
    if (s->n_run == s->n_slot) return BLOCKED;
    int n_hit = 0;
    if (s->c.prefix_cache) {
        if (hd_prefix_is_pending(s->prefix, q->wait)) return PASSED_OVER;
        hd_prefix_ask ask = {.salt = q->salt,
                             .token = q->token,
                             .form = q->admitted_ns < 0 ? NULL : q->form,
                             .n_page = (q->n_tok - 1) / s->c.page_tok,
                             .rank = q->priority};
        n_hit = hd_prefix_match(s->prefix, &ask, s->path, &q->wait);
        if (q->wait.page >= 0) return PASSED_OVER;
    }
    if (!has_room(s, p, q, n_hit)) return BLOCKED;
    if (waits_for_step(s, p, q->n_tok - n_hit * s->c.page_tok)) return BLOCKED;
    start(s, p, q, n_hit);
    return ADMITTED;
}

/* Prompts */

/* Rows of q for this step: as many as the budget and the chunk allow. False: q has to wait for the
 * next step, and those behind it with it. */
static bool add_chunk(hd_sched *s, struct plan *p, hd_seq *q) {
    int n_row = hd_seq_n_wanted(q);
    if (n_row == 0) return true;
    if (waits_for_step(s, p, n_row)) return false;
    if (s->c.chunked && s->c.chunk_max > 0) n_row = hd_sched_min(n_row, s->c.chunk_max);
    add_rows(s, p, q, hd_sched_min(n_row, p->n_left));
    return true;
}

/* The next running sequence from i on that has a prompt to compute and no rows yet. */
static int next_prompt(const hd_sched *s, int i) {
    while (i < s->n_run && (hd_seq_n_wanted(s->run[i]) < 2 || s->run[i]->flight_ix >= 0)) i++;
    return i;
}

/* Prompts of running sequences and admission of waiting ones, merged by priority; at equal priority
 * those who run come first. */
static void plan_prompts(hd_sched *s, struct plan *p) {
    hd_seq *waiting = s->head;
    int n_look = 0;
    for (int i = next_prompt(s, 0); p->n_left > 0; i = next_prompt(s, i)) {
        hd_seq *q = i < s->n_run ? s->run[i] : NULL;
        hd_seq *w = p->may_admit ? waiting : NULL;
        if (!q && !w) break;
        if (q && (!w || q->priority <= w->priority)) {
            if (!add_chunk(s, p, q)) break;
            i++;
            continue;
        }
        waiting = w->next;
        enum admission a = admit(s, p, w);
        if (a == BLOCKED || ++n_look == LOOK_MAX) p->may_admit = false;
        if (a != ADMITTED) continue;
        if (hd_sched_start(s, w) <= i) i++;
        if (!add_chunk(s, p, w)) break;
    }
}

int hd_sched_plan(hd_sched *s, int64_t now_ns, hd_batch *b) {
    HD_ASSERT(!s->in_flight);
    HD_ASSERT(b->page_tok == s->c.page_tok && b->n_row_max >= s->c.n_row_max);
    HD_ASSERT(b->n_seq_max >= s->n_slot && b->n_page_max / s->n_page_seq >= s->n_slot);
    for (int i = 0; i < s->n_flight; i++) {
        if (s->flight[i]) s->flight[i]->flight_ix = -1;
    }
    s->n_flight = 0;
    hd_batch_clear(b);
    struct plan p = {
        .b = b, .now_ns = now_ns, .n_left = s->c.n_row_max, .may_admit = true, .growth_page = -1};
    bool prompts_only = s->prompts_next;
    if (prompts_only) plan_prompts(s, &p);
    s->prompts_next = false; /* never two steps running: decoding goes on */
    if (b->n_row == 0) {
        plan_decodes(s, &p);
        plan_prompts(s, &p);
    }
    s->in_flight = b->n_row > 0;
#ifdef HD_DEBUG
    hd_batch_check(b);
#endif
    return b->n_row;
}
