/* A chunk of prompts that is computed some layers at a time, beside sequences that decode.
 *
 * A chunk of few rows takes nearly as long as one of many: it reads all weights, and in the
 * expanded form it expands all positions before it. So beside sequences that decode a prompt is not
 * cut into rows until a step fits their tolerance; its chunk keeps its rows, and its layers are
 * cut. Steps alternate: all layers of those who decode, then some layers of the chunk.
 *
 * Until it has ended its rows are written: a sequence of it that finishes leaves it the pages of
 * its table, nobody's token is drawn for it, and none of its sequences is preempted. */
#include "sched/sched_impl.h"

#include "base/mem.h"

#include <string.h>

void hd_sched_chunk_init(hd_sched *s) {
    if (s->c.n_layer < 2) return;
    hd_sched_batch_init(&s->c, &s->chunk.batch);
    s->chunk.seq = hd_alloc_zero((size_t)s->n_slot, sizeof(hd_seq *));
}

void hd_sched_chunk_fini(hd_sched *s) {
    if (s->c.n_layer < 2) return;
    hd_batch_fini(&s->chunk.batch);
    hd_free(s->chunk.seq);
}

void hd_sched_chunk_hold(hd_sched *s, const hd_batch *b, const hd_step_load *load) {
    hd_chunk *c = &s->chunk;
    HD_ASSERT(c->batch.n_row == 0 && b->n_row > 0 && b->n_copy == 0);
    hd_batch_copy(&c->batch, b);
    c->load = *load;
    c->layer = 0;
    c->is_ended = false;
    for (int i = 0; i < b->n_seq; i++) {
        c->seq[i] = s->own_flight[i];
        c->seq[i]->in_chunk = true;
    }
}

hd_seq *hd_sched_chunk_first(const hd_sched *s) {
    const hd_chunk *c = &s->chunk;
    for (int i = 0; i < c->batch.n_seq && !c->is_ended; i++)
        if (c->seq[i]) return c->seq[i];
    return NULL;
}

void hd_sched_chunk_slice(hd_sched *s, int n_layer, hd_batch *b) {
    hd_chunk *c = &s->chunk;
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
static void end(hd_sched *s) {
    hd_chunk *c = &s->chunk;
    c->is_ended = true;
    for (int i = c->batch.n_seq - 1; i >= 0; i--) {
        const int32_t *page = c->batch.page + c->batch.seq_page0[i];
        for (int k = c->seq[i] ? 0 : n_page_of(c, i); k-- > 0;)
            hd_prefix_release(s->prefix, page[k]);
    }
}

bool hd_sched_chunk_commit(hd_sched *s, const hd_batch *b) {
    hd_chunk *c = &s->chunk;
    HD_ASSERT(b->layer0 == c->layer && b->n_row == c->batch.n_row);
    c->layer = b->layer1;
    if (c->layer == s->c.n_layer) end(s);
    return c->is_ended;
}

void hd_sched_chunk_abandon(hd_sched *s) { end(s); }

int hd_sched_chunk_keeps(const hd_sched *s, const hd_seq *q) {
    return q->in_chunk && !s->chunk.is_ended ? n_page_of(&s->chunk, q->flight_ix) : 0;
}

void hd_sched_chunk_settle(hd_sched *s) {
    hd_chunk *c = &s->chunk;
    if (c->batch.n_row == 0) return;
    if (!c->is_ended && !hd_sched_chunk_first(s)) end(s);
    if (!c->is_ended) return;
    for (int i = 0; i < c->batch.n_seq; i++) {
        if (!c->seq[i]) continue;
        c->seq[i]->in_chunk = false;
        c->seq[i]->flight_ix = -1;
    }
    hd_batch_clear(&c->batch);
}

void hd_sched_chunk_check(const hd_sched *s) {
    const hd_chunk *c = &s->chunk;
    for (int i = 0; i < c->batch.n_seq; i++) {
        const hd_seq *q = c->seq[i];
        const int32_t *page = c->batch.page + c->batch.seq_page0[i];
        HD_ASSERT(!q || (q->in_chunk && q->flight_ix == i && q->state == HD_SEQ_RUNNING));
        for (int k = c->is_ended ? 0 : n_page_of(c, i); k-- > 0;) {
            HD_ASSERT(!q || q->page[k] == page[k]);
            if (!q) s->uses[page[k]]++;
        }
    }
}
