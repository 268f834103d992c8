/* A chunk of prompts that is computed some layers at a time, beside sequences that decode.
 *
 * A chunk of few rows takes nearly as long as one of many: it reads all weights, and in the
 * expanded form it expands all positions before it. So beside sequences that decode a prompt is not
 * cut into rows until a step fits their tolerance; its chunk keeps its rows, and its layers are
 * cut. Steps alternate: all layers of those who decode, then some layers of the chunk. It pauses
 * while a more urgent prompt is computed, which may be a chunk, too; that one pauses for nobody.
 *
 * Until it has ended its rows are written: a sequence of it that finishes leaves it the pages of
 * its table, nobody's token is drawn for it, and none of its sequences is preempted. */
#include "sched/sched_impl.h"

#include "base/mem.h"

#include <string.h>

void hd_sched_chunk_init(hd_sched *s) {
    for (int i = 0; i < HD_BATCH_CHUNKS && s->c.n_layer > 1; i++) {
        hd_sched_batch_init(&s->c, &s->chunk[i].batch);
        s->chunk[i].seq = hd_alloc_zero((size_t)s->n_slot, sizeof(hd_seq *));
    }
}

void hd_sched_chunk_fini(hd_sched *s) {
    for (int i = 0; i < HD_BATCH_CHUNKS && s->c.n_layer > 1; i++) {
        hd_batch_fini(&s->chunk[i].batch);
        hd_free(s->chunk[i].seq);
    }
}

static hd_chunk *unused(hd_sched *s) {
    for (int i = 0; i < HD_BATCH_CHUNKS; i++)
        if (s->chunk[i].batch.n_row == 0) return &s->chunk[i];
    return NULL;
}

bool hd_sched_chunk_has_room(hd_sched *s) { return unused(s) != NULL; }

hd_chunk *hd_sched_chunk_hold(hd_sched *s, const hd_batch *b, const hd_step_load *load) {
    hd_chunk *c = unused(s);
    HD_ASSERT(c && b->n_row > 0);
    hd_batch_copy(&c->batch, b);
    c->batch.n_copy = 0; /* copies are this step's */
    c->load = *load;
    c->layer = 0;
    c->n_passed = 0;
    c->is_ended = false;
    for (int i = 0; i < b->n_seq; i++) {
        c->seq[i] = s->own_flight[i];
        c->seq[i]->chunk = c;
    }
    return c;
}

hd_seq *hd_sched_chunk_first(const hd_chunk *c) {
    for (int i = 0; i < c->batch.n_seq && !c->is_ended; i++)
        if (c->seq[i]) return c->seq[i];
    return NULL;
}

hd_chunk *hd_sched_chunk_next(hd_sched *s) {
    hd_chunk *next = NULL;
    hd_seq *first = NULL;
    for (int i = 0; i < HD_BATCH_CHUNKS; i++) {
        hd_seq *q = hd_sched_chunk_first(&s->chunk[i]);
        if (!q || (first && !hd_sched_is_before(q, first))) continue;
        next = &s->chunk[i];
        first = q;
    }
    return next;
}

void hd_sched_chunk_slice(hd_sched *s, hd_chunk *c, int n_layer, hd_batch *b) {
    HD_ASSERT(n_layer > 0 && c->layer + n_layer <= s->c.n_layer);
    int n_copy = b->n_copy; /* of pages: the plan's, not the chunk's */
    int32_t from[HD_BATCH_COPY_MAX], to[HD_BATCH_COPY_MAX];
    memcpy(from, b->copy_from, sizeof from);
    memcpy(to, b->copy_to, sizeof to);
    hd_batch_copy(b, &c->batch);
    b->n_copy = n_copy;
    memcpy(b->copy_from, from, sizeof from);
    memcpy(b->copy_to, to, sizeof to);
    b->layer0 = c->layer;
    b->layer1 = c->layer + n_layer;
    b->chunk_ix = (int)(c - s->chunk);
    b->n_out = 0;
    for (int i = 0; i < c->batch.n_out && b->layer1 == s->c.n_layer; i++) {
        int row = c->batch.out_row[i];
        if (c->seq[c->batch.row_seq[row]]) b->out_row[b->n_out++] = row;
    }
    s->flight = c->seq;
    s->n_flight = b->n_seq;
}

static int n_page_of(const hd_chunk *c, int i) {
    return c->batch.seq_page0[i + 1] - c->batch.seq_page0[i];
}

/* Its rows are written no more. */
static void end(hd_sched *s, hd_chunk *c) {
    c->is_ended = true;
    for (int i = c->batch.n_seq - 1; i >= 0; i--) {
        const int32_t *page = c->batch.page + c->batch.seq_page0[i];
        for (int k = c->seq[i] ? 0 : n_page_of(c, i); k-- > 0;)
            hd_prefix_release(s->prefix, page[k]);
    }
}

bool hd_sched_chunk_commit(hd_sched *s, const hd_batch *b) {
    hd_chunk *c = &s->chunk[b->chunk_ix];
    HD_ASSERT(b->layer0 == c->layer && b->n_row == c->batch.n_row);
    c->layer = b->layer1;
    if (c->layer == s->c.n_layer) end(s, c);
    return c->is_ended;
}

void hd_sched_chunk_abandon(hd_sched *s, const hd_batch *b) { end(s, &s->chunk[b->chunk_ix]); }

int hd_sched_chunk_keeps(const hd_seq *q) {
    return q->chunk && !q->chunk->is_ended ? n_page_of(q->chunk, q->flight_ix) : 0;
}

static void settle(hd_sched *s, hd_chunk *c) {
    if (c->batch.n_row == 0) return;
    if (!c->is_ended && !hd_sched_chunk_first(c)) end(s, c);
    if (!c->is_ended) return;
    for (int i = 0; i < c->batch.n_seq; i++) {
        if (!c->seq[i]) continue;
        c->seq[i]->chunk = NULL;
        c->seq[i]->flight_ix = -1;
    }
    hd_batch_clear(&c->batch);
}

void hd_sched_chunk_settle(hd_sched *s) {
    for (int i = 0; i < HD_BATCH_CHUNKS; i++) settle(s, &s->chunk[i]);
}

static void check(const hd_sched *s, const hd_chunk *c) {
    for (int i = 0; i < c->batch.n_seq; i++) {
        const hd_seq *q = c->seq[i];
        const int32_t *page = c->batch.page + c->batch.seq_page0[i];
        HD_ASSERT(!q || (q->chunk == c && q->flight_ix == i && q->state == HD_SEQ_RUNNING));
        for (int k = c->is_ended ? 0 : n_page_of(c, i); k-- > 0;) {
            HD_ASSERT(!q || q->page[k] == page[k]);
            if (!q) s->uses[page[k]]++;
        }
    }
}

void hd_sched_chunk_check(const hd_sched *s) {
    for (int i = 0; i < HD_BATCH_CHUNKS; i++) check(s, &s->chunk[i]);
}
