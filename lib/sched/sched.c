/* A sequence's life: made, submitted, started and stopped by the plan, its tokens appended and its
 * full pages published as steps complete, finished. */
#include "sched/sched_impl.h"

#include "base/mem.h"

#include <string.h>

/* Generated tokens that a request is expected to take while none has ended. */
static const double OUT_MEAN_START = 128;

int hd_sched_pages_for(const hd_sched_config *c, int n_pos) {
    return (n_pos + c->page_tok - 1) / c->page_tok;
}

static int slots_of(const hd_sched_config *c) { return hd_sched_min(c->n_seq_max, c->n_row_max); }

static int pages_of_seq(const hd_sched_config *c) {
    return hd_sched_min(hd_sched_pages_for(c, c->n_pos_max), c->n_page);
}

hd_sched *hd_sched_new(const hd_sched_config *c) {
    HD_ASSERT(c->n_seq_max > 0 && c->n_row_max > 0 && c->n_pos_max > 0);
    HD_ASSERT(c->n_page > 0 && c->page_tok > 0 && c->n_pos_max <= INT32_MAX - c->page_tok);
    HD_ASSERT((int64_t)c->n_page * c->page_tok <= INT32_MAX);
    hd_sched *s = hd_alloc_zero(1, sizeof *s);
    s->c = *c;
    s->n_slot = slots_of(c);
    s->n_page_seq = pages_of_seq(c);
    s->pages = hd_pages_new(c->n_page);
    s->prefix = hd_prefix_new(s->pages, c->page_tok, c->model_key);
    size_t n_slot = (size_t)s->n_slot;
    s->run = hd_alloc_zero(n_slot, sizeof(hd_seq *));
    s->place = hd_alloc_zero(n_slot, sizeof(hd_seq *));
    s->merged = hd_alloc_zero(n_slot, sizeof(hd_seq *));
    s->flight = s->own_flight = hd_alloc_zero(n_slot, sizeof(hd_seq *));
    s->free_slot = hd_alloc_zero(n_slot, sizeof *s->free_slot);
    s->path = hd_alloc_zero((size_t)s->n_page_seq, sizeof *s->path);
    s->uses = hd_alloc_zero((size_t)c->n_page, sizeof *s->uses);
    for (int i = 0; i < s->n_slot; i++) s->free_slot[i] = s->n_slot - 1 - i;
    s->n_free_slot = s->n_slot;
    hd_sched_chunk_init(s);
    s->horizon_tok = c->page_tok;
    s->expiry_ns = INT64_MAX;
    for (int k = 0; k < HD_SERVICE_COUNT; k++) {
        s->target[k] = hd_service_defaults((enum hd_service)k, c->target[k]);
        s->out_mean[k] = OUT_MEAN_START;
    }
    s->out_mean_all = OUT_MEAN_START;
    s->len_mean = 2 * OUT_MEAN_START;
    s->miss_mean = 1;
    return s;
}

void hd_sched_free(hd_sched *s) {
    if (!s) return;
    HD_ASSERT(s->n_run == 0 && s->n_waiting == 0);
    hd_prefix_free(s->prefix);
    hd_pages_free(s->pages);
    hd_free(s->run);
    hd_free(s->place);
    hd_free(s->merged);
    hd_free(s->own_flight);
    hd_sched_chunk_fini(s);
    hd_free(s->free_slot);
    hd_free(s->path);
    hd_free(s->uses);
    hd_free(s);
}

void hd_sched_batch_init(const hd_sched_config *c, hd_batch *b) {
    int64_t n_page = (int64_t)slots_of(c) * pages_of_seq(c);
    HD_ASSERT(n_page <= INT32_MAX);
    hd_batch_init(b, c->n_row_max, slots_of(c), (int)n_page, c->page_tok);
}

hd_seq *hd_seq_new(const hd_sched_config *c, const hd_seq_spec *spec) {
    HD_ASSERT(spec->n_prompt > 0 && spec->n_new_max > 0);
    hd_seq *q = hd_alloc_zero(1, sizeof *q);
    q->salt = spec->salt;
    q->user = spec->user;
    HD_ASSERT((int)spec->service >= 0 && spec->service < HD_SERVICE_COUNT);
    q->service = spec->service;
    q->priority = spec->priority;
    q->tenant = spec->tenant;
    q->submitted_ns = spec->submitted_ns;
    q->deadline_ns = spec->deadline_ns;
    q->state = HD_SEQ_NEW;
    q->n_prompt = q->n_tok = spec->n_prompt;
    q->n_new_max = spec->n_new_max;
    /* What can never fit is refused by submit: no room is made for it. */
    int64_t n_tok_max = (int64_t)spec->n_prompt + spec->n_new_max;
    q->n_tok_max = n_tok_max <= c->n_pos_max ? (int)n_tok_max : spec->n_prompt;
    q->admitted_ns = -1;
    q->slot = q->flight_ix = -1;
    q->wait.page = -1;
    q->n_page_room = pages_of_seq(c);
    int n_page_wanted = (q->n_tok_max - 1) / c->page_tok + 1;
    if (q->n_page_room > n_page_wanted) q->n_page_room = n_page_wanted;
    q->token = hd_alloc_zero((size_t)q->n_tok_max, sizeof *q->token);
    q->form = hd_alloc_zero((size_t)q->n_tok_max, sizeof *q->form);
    q->page = hd_alloc_zero((size_t)q->n_page_room, sizeof *q->page);
    memcpy(q->token, spec->prompt, (size_t)spec->n_prompt * sizeof *q->token);
    return q;
}

void hd_seq_free(hd_seq *q) {
    if (!q) return;
    HD_ASSERT(q->state == HD_SEQ_NEW || q->state == HD_SEQ_DONE);
    hd_free(q->token);
    hd_free(q->form);
    hd_free(q->page);
    hd_free(q);
}

/* Queues */

/* Searched from the end: most arrivals belong there. */
void hd_sched_enqueue(hd_sched *s, hd_seq *q) {
    if (q->bucket == HD_BUCKET_AGED) q->bucket = 0; /* preempted */
    hd_seq *after = s->queue[q->bucket].tail;
    while (after && hd_sched_is_before(q, after)) after = after->prev;
    q->prev = after;
    q->next = after ? after->next : s->queue[q->bucket].head;
    *(q->next ? &q->next->prev : &s->queue[q->bucket].tail) = q;
    *(after ? &after->next : &s->queue[q->bucket].head) = q;
    q->state = HD_SEQ_WAITING;
    s->n_waiting++;
    s->n_waiting_of[q->service]++;
}

void hd_sched_dequeue(hd_sched *s, hd_seq *q) {
    HD_ASSERT(q->state == HD_SEQ_WAITING);
    *(q->prev ? &q->prev->next : &s->queue[q->bucket].head) = q->next;
    *(q->next ? &q->next->prev : &s->queue[q->bucket].tail) = q->prev;
    q->prev = q->next = NULL;
    s->n_waiting--;
    s->n_waiting_of[q->service]--;
    if (s->n_waiting == 0) hd_fair_idle(&s->fair);
}

hd_seq *hd_sched_next_waiting(const hd_sched *s, const hd_seq *q) {
    if (q && q->next) return q->next;
    for (int k = q ? q->bucket + 1 : 0; k < HD_BUCKET_COUNT; k++)
        if (s->queue[k].head) return s->queue[k].head;
    return NULL;
}

hd_status hd_sched_fits(const hd_sched_config *c, int n_prompt, int n_new_max) {
    if (n_prompt < 1 || n_new_max < 1) {
        return HD_FAIL(INVALID, "sequence of %d prompt and %d new tokens: expected at least 1 each",
                       n_prompt, n_new_max);
    }
    int64_t n_pos = (int64_t)n_prompt + n_new_max;
    if (n_pos > c->n_pos_max) {
        return HD_FAIL(CONTEXT,
                       "context: at most %d tokens, asked for %lld (%d of the prompt, %d new)",
                       c->n_pos_max, (long long)n_pos, n_prompt, n_new_max);
    }
    /* The last token is generated, never computed. */
    int n_page = hd_sched_pages_for(c, (int)n_pos - 1);
    if (n_page > c->n_page) {
        return HD_FAIL(CONTEXT,
                       "KV pages: at most %d of %d tokens, asked for %d (%d tokens of the prompt, "
                       "%d new)",
                       c->n_page, c->page_tok, n_page, n_prompt, n_new_max);
    }
    if (!c->chunked && n_prompt > c->n_row_max) {
        return HD_FAIL(CONTEXT,
                       "prompt: at most %d tokens, the budget of a step, when prompts are not "
                       "chunked, asked for %d",
                       c->n_row_max, n_prompt);
    }
    return HD_OK;
}

hd_status hd_sched_submit(hd_sched *s, hd_seq *q) {
    HD_ASSERT(q->state == HD_SEQ_NEW);
    HD_TRY(hd_sched_fits(&s->c, q->n_prompt, q->n_new_max));
    q->order = ++s->n_submit;
    hd_sched_rank(s, q);
    hd_sched_enqueue(s, q);
    return HD_OK;
}

/* Running */

int hd_sched_start(hd_sched *s, hd_seq *q) {
    HD_ASSERT(s->n_run < s->n_slot && s->n_free_slot > 0);
    int at = s->n_run++;
    for (; at > 0 && hd_sched_is_before(q, s->run[at - 1]); at--) s->run[at] = s->run[at - 1];
    s->run[at] = q;
    s->place[s->n_run - 1] = q;
    q->slot = s->free_slot[--s->n_free_slot];
    q->state = HD_SEQ_RUNNING;
    return at;
}

/* Takes q out of list[n], keeping the order of the others. */
static void take_out(hd_seq **list, int n, const hd_seq *q) {
    int at = 0;
    while (list[at] != q) at++;
    memmove(&list[at], &list[at + 1], (size_t)(n - 1 - at) * sizeof(hd_seq *));
}

void hd_sched_stop(hd_sched *s, hd_seq *q) {
    HD_ASSERT(q->state == HD_SEQ_RUNNING);
    take_out(s->run, s->n_run, q);
    take_out(s->place, s->n_run, q);
    s->n_run--;
    s->free_slot[s->n_free_slot++] = q->slot;
    q->slot = -1;
    int n_kept = hd_sched_chunk_keeps(q);
    while (q->n_page > n_kept) hd_prefix_release(s->prefix, q->page[--q->n_page]);
    q->n_page = 0;
    q->n_indexed = 0;
    q->n_computed = 0;
}

int hd_seq_n_wanted(const hd_seq *q) {
    return q->n_tok < q->n_tok_max ? q->n_tok - q->n_computed : 0;
}

int hd_seq_n_known(const hd_seq *q) {
    return q->n_tok - (q->token[q->n_tok - 1] == HD_TOKEN_UNKNOWN);
}

/* Pages whose last position exists and is known now are indexed, in order. An equal page that
 * another sequence indexed first takes the place of q's. */
static void publish(hd_sched *s, hd_seq *q) {
    if (!s->c.prefix_cache) return;
    int n_pos = hd_sched_min(q->n_computed, hd_seq_n_known(q));
    for (; q->n_indexed < n_pos / s->c.page_tok; q->n_indexed++) {
        int i = q->n_indexed;
        size_t at = (size_t)i * (size_t)s->c.page_tok;
        hd_prefix_content content = {.parent = i > 0 ? q->page[i - 1] : -1,
                                     .salt = q->salt,
                                     .token = q->token + at,
                                     .form = q->form + at};
        q->page[i] = hd_prefix_publish(s->prefix, q->page[i], &content);
    }
}

static void check_in_flight(const hd_sched *s, const hd_batch *b) {
    HD_ASSERT(s->in_flight == (b->n_row > 0) && s->n_flight == b->n_seq);
}

void hd_sched_commit(hd_sched *s, const hd_batch *b) {
    check_in_flight(s, b);
    s->in_flight = false;
    if (b->layer1 > 0 && !hd_sched_chunk_commit(s, b)) return;
    for (int i = 0; i < s->n_flight; i++) {
        hd_seq *q = s->flight[i];
        if (!q) continue;
        int n_row = b->seq_row0[i + 1] - b->seq_row0[i];
        HD_ASSERT(b->pos[b->seq_row0[i]] == q->n_computed);
        if (q->n_computed < q->n_redo) {
            s->recomputed_tok += (uint64_t)hd_sched_min(n_row, q->n_redo - q->n_computed);
        }
        q->n_computed += n_row;
        publish(s, q);
    }
}

void hd_sched_abandon(hd_sched *s, const hd_batch *b) {
    check_in_flight(s, b);
    s->in_flight = false;
    if (b->layer1 > 0) hd_sched_chunk_abandon(s, b);
}

hd_seq *hd_sched_seq_at(hd_sched *s, const hd_batch *b, int seq_ix) {
    HD_ASSERT(s->n_flight == b->n_seq && seq_ix >= 0 && seq_ix < b->n_seq);
    return s->flight[seq_ix];
}

hd_seq *hd_sched_out_seq(hd_sched *s, const hd_batch *b, int out_ix) {
    HD_ASSERT(out_ix >= 0 && out_ix < b->n_out);
    return hd_sched_seq_at(s, b, b->row_seq[b->out_row[out_ix]]);
}

void hd_sched_append(hd_sched *s, hd_seq *q, int32_t token) {
    HD_ASSERT(!s->in_flight && q->state == HD_SEQ_RUNNING);
    HD_ASSERT(q->n_computed == q->n_tok && q->n_tok < q->n_tok_max);
    HD_ASSERT(hd_seq_n_known(q) == q->n_tok && (token >= 0 || token == HD_TOKEN_UNKNOWN));
    q->form[q->n_tok] = HD_MLA_ABSORBED;
    q->token[q->n_tok++] = token;
}

void hd_sched_resolve(hd_sched *s, hd_seq *q, int32_t token) {
    HD_ASSERT(q->state == HD_SEQ_RUNNING || q->state == HD_SEQ_WAITING);
    HD_ASSERT(hd_seq_n_known(q) < q->n_tok && token >= 0);
    q->token[q->n_tok - 1] = token;
    publish(s, q);
}

void hd_sched_finish(hd_sched *s, hd_seq *q) {
    HD_ASSERT(q->state == HD_SEQ_WAITING || q->state == HD_SEQ_RUNNING);
    if (q->flight_ix >= 0) (q->chunk ? q->chunk->seq : s->own_flight)[q->flight_ix] = NULL;
    if (q->state == HD_SEQ_WAITING) {
        hd_sched_dequeue(s, q);
    } else {
        hd_sched_stop(s, q);
        s->horizon_tok -= (s->horizon_tok - s->c.page_tok) / HD_SCHED_HORIZON_DOWN;
    }
    q->flight_ix = -1;
    q->chunk = NULL;
    hd_sched_note_end(s, q);
    q->state = HD_SEQ_DONE;
}

void hd_sched_distrust(hd_sched *s, hd_seq *q) {
    for (int i = 0; i < q->n_indexed; i++) hd_prefix_hide(s->prefix, q->page[i]);
}

void hd_sched_get_stats(const hd_sched *s, hd_sched_stats *out) {
    int n_free = hd_pages_n_free(s->pages), n_cached = hd_pages_n_cached(s->pages);
    *out = (hd_sched_stats){.n_waiting = s->n_waiting,
                            .n_running = s->n_run,
                            .n_page = s->c.n_page,
                            .n_page_free = n_free,
                            .n_page_cached = n_cached,
                            .n_page_used = s->c.n_page - n_free - n_cached,
                            .n_preempt = s->n_preempt,
                            .recomputed_tok = s->recomputed_tok,
                            .n_aged = s->n_aged,
                            .n_moved = s->n_moved,
                            .prompt_tok = s->prompt_tok,
                            .hit_tok = s->hit_tok};
    memcpy(out->n_waiting_of, s->n_waiting_of, sizeof out->n_waiting_of);
}

void hd_sched_drop_cache(hd_sched *s) { hd_prefix_drop_cached(s->prefix); }

void *hd_seq_user(const hd_seq *q) { return q->user; }
enum hd_seq_state hd_seq_get_state(const hd_seq *q) { return q->state; }
int hd_seq_n_prompt(const hd_seq *q) { return q->n_prompt; }
int hd_seq_n_tok(const hd_seq *q) { return q->n_tok; }
int hd_seq_n_new_max(const hd_seq *q) { return q->n_new_max; }
const int32_t *hd_seq_tokens(const hd_seq *q) { return q->token; }
const uint8_t *hd_seq_forms(const hd_seq *q) { return q->form; }
int hd_seq_n_hit(const hd_seq *q) { return q->n_hit; }
int hd_seq_n_computed(const hd_seq *q) { return q->n_computed; }
int64_t hd_seq_admitted_ns(const hd_seq *q) { return q->admitted_ns; }
int64_t hd_seq_due_ns(const hd_seq *q) { return q->due_ns; }
