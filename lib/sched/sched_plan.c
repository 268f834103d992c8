/* The plan of a step: which rows of which sequences, who is admitted, who is preempted. */
#include "sched/sched_impl.h"

#include "base/sort.h"

#include <limits.h>
#include <string.h>

/* Waiting sequences looked at in one plan: each costs a match at most once, then one comparison
 * until the promise it was passed over for ends. */
enum {
    LOOK_MAX = 64,
    /* Rows that a step gives to a prompt at least, whatever its bound: so that prompts advance.
     * Longer chunks are multiples of it: kernels compute rows in tiles. */
    CHUNK_MIN = 16,
    /* The same of a chunk that is computed some layers at a time (least_of_chunk): never more than
     * the latter, nor fewer than the former. */
    CHUNK_LAYER_MIN = 64,
    CHUNK_LAYER_ENOUGH = 512,
    /* Most of a chunk's time depends on its rows when it takes so many times what CHUNK_MIN rows
     * do, and expanding the positions before it is worth its price with so many times the rows from
     * which that pays at all. */
    WORTH = 3,
    /* How much wider the tolerance is for a prompt that would be late otherwise. */
    LATE_FACTOR = 4
};

struct plan {
    hd_batch *b;
    int64_t now_ns;
    int n_left; /* rows */
    bool may_admit;
    int64_t growth_page; /* of the running sequences over the horizon; -1: not counted yet */
    hd_step_load load;
    unsigned decoding; /* classes that decode in this step, a bit each */
    int64_t decode_ns; /* P95 of a step of decoding rows that tolerances are of; 0: unknown */
    bool has_prompt;   /* prompt rows are in the batch */
    bool is_chunk;     /* they are alone there, and their layers may be computed in several steps */
    bool wants_chunk;  /* some would not fit beside the decoding rows */
    bool is_pressed;
    hd_seq *aged;   /* waiting and longest overdue, when it is its turn */
    int bucket_end; /* prompts of earlier buckets only */
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
    hd_step_load_add(&p->load, n_row, q->n_computed);
    s->flight[ix] = q;
    s->n_flight = b->n_seq;
    q->flight_ix = ix;
    p->n_left -= n_row;
}

/* Preemption */

static void preempt(hd_sched *s, hd_seq *q) {
    HD_ASSERT(q->flight_ix < 0);
    if (q->n_redo < q->n_computed) q->n_redo = q->n_computed;
    q->preempted = true;
    hd_sched_stop(s, q);
    hd_sched_enqueue(s, q);
    s->n_preempt++;
    if (s->c.is_static) s->n_batch_left++;
}

/* What a preemption of q costs and frees. Pages that others hold too stay: they are the first ones,
 * since who holds a page holds those before it. */
struct price {
    int64_t n_tok;
    int n_page;
};

static struct price price_of(const hd_sched *s, const hd_seq *q) {
    int low = 0, high = q->n_page; /* pages before low are shared */
    while (low < high) {
        int mid = (low + high) / 2;
        if (hd_pages_refs(s->pages, q->page[mid]) > 1)
            low = mid + 1;
        else
            high = mid;
    }
    int64_t n_tok = q->n_computed - (int64_t)low * s->c.page_tok;
    return (struct price){.n_tok = n_tok > 0 ? n_tok : 0, .n_page = q->n_page - low};
}

/* Of the running sequences from run[from] on that are in no chunk, and are of the last bucket
 * which has some, the one that is cheapest to preempt, the last of those that cost the same; it has
 * no rows in the batch yet. NULL: there is none. */
static hd_seq *cheapest(const hd_sched *s, int from) {
    hd_seq *best = NULL;
    struct price least = {0};
    for (int i = s->n_run - 1; i >= from; i--) {
        hd_seq *q = s->run[i];
        if (q->chunk) continue;
        if (best && q->bucket != best->bucket) break;
        struct price p = price_of(s, q);
        if (best && p.n_tok * least.n_page >= least.n_tok * p.n_page) continue;
        best = q;
        least = p;
    }
    return best;
}

/* Decoding */

/* Makes sure that the next position of q, run[i], has a page; false: q itself was preempted for
 * want of one. Victims stand behind q, and have no rows in the batch yet nor room for one. */
static bool reach_page(hd_sched *s, struct plan *p, hd_seq *q, int i) {
    while (q->n_page * s->c.page_tok <= q->n_computed) {
        int page = hd_prefix_take(s->prefix);
        if (page >= 0) {
            HD_ASSERT(q->n_page < q->n_page_room);
            q->page[q->n_page++] = page;
            continue;
        }
        hd_seq *victim = i + 1 < s->n_run ? cheapest(s, i + 1) : NULL;
        if (!victim) victim = q;
        preempt(s, victim);
        p->may_admit = false;
        if (s->horizon_tok < s->c.n_pos_max)
            s->horizon_tok += s->horizon_tok / HD_SCHED_HORIZON_UP + 1;
        if (victim == q) return false;
    }
    return true;
}

/* P95 of a step of these decoding rows, or of as many like them as fill half of the slots. Few rows
 * take little time: a multiple of that alone would leave prompts so little that few rows is what
 * there always is. */
static int64_t tolerated_ns(const hd_sched *s, const hd_step_load *decoding) {
    hd_step_load l = *decoding;
    int n_least = s->n_slot / 2;
    if (l.n_decode < n_least) {
        l.n_read = l.n_read * n_least / l.n_decode;
        l.n_decode = n_least;
    }
    return hd_profile_p95_ns(s->c.profile, &l);
}

/* One row for each running sequence with one token to compute. There are no more of them than rows.
 */
static void plan_decodes(hd_sched *s, struct plan *p) {
    for (int i = 0; i < s->n_run; i++) {
        hd_seq *q = s->run[i];
        if (hd_seq_n_wanted(q) != 1 || q->flight_ix >= 0) continue;
        q->has_room = reach_page(s, p, q, i);
    }
    for (int i = 0; i < s->n_run; i++) {
        hd_seq *q = s->place[i];
        if (!q->has_room) continue;
        q->has_room = false;
        add_rows(s, p, q, 1);
        p->decoding |= 1U << q->service;
    }
    if (p->decoding && hd_sched_knows(s)) p->decode_ns = tolerated_ns(s, &p->load);
}

/* Time */

/* How long the step may take when it computes rows of q's prompt. */
static int64_t bound_of(const hd_sched *s, const struct plan *p, const hd_seq *q) {
    int64_t bound = s->c.step_max_ns > 0 ? s->c.step_max_ns : INT64_MAX;
    int64_t left_ns = (int64_t)((double)q->prompt_ns * (q->n_tok - q->n_computed) / q->n_prompt);
    int lane = q->bucket > (int)q->service ? q->bucket : (int)q->service;
    bool others_wait = s->n_waiting > (q->state == HD_SEQ_WAITING);
    bool is_late = (p->is_pressed && others_wait) || p->now_ns + left_ns > q->due_ns;
    for (int k = 0; k < HD_SERVICE_COUNT && p->decode_ns > 0; k++) {
        if (!(p->decoding >> k & 1)) continue;
        double ns = (double)p->decode_ns * s->target[k].slowdown;
        /* Never at the expense of a class more urgent than its own or than its lane. */
        if (is_late && lane <= k) ns *= LATE_FACTOR;
        if (s->target[k].itl_ns > 0) ns = (double)s->target[k].itl_ns;
        if (ns < (double)bound) bound = (int64_t)ns;
    }
    return bound;
}

/* What a bound leaves of a step for layers of a chunk, after the decoding rows' own. */
static int64_t left_for_chunk(const hd_sched *s, int64_t bound_ns) {
    int64_t least_ns = bound_ns / 16, left_ns = bound_ns - s->beside.step_ns;
    return left_ns > least_ns ? left_ns : least_ns;
}

/* Rows from position pos on that a chunk has at least, if the prompt has as many: with fewer, most
 * of a layer's time goes into reading its weights and expanding the positions before it. More than
 * that take more time than they save, and the layer is what the others' tokens wait for. */
static int least_of_chunk(const hd_sched *s, int pos) {
    bool expands = !s->c.exact && s->c.expand_min < INT_MAX; /* which is never */
    int n = expands ? WORTH * hd_sched_min(s->c.expand_min, CHUNK_LAYER_ENOUGH) : CHUNK_LAYER_MIN;
    hd_step_load few = {0};
    hd_step_load_add(&few, CHUNK_MIN, pos);
    double worth_ns = WORTH * (double)hd_profile_mean_ns(s->c.profile, &few);
    if (n < CHUNK_LAYER_MIN) n = CHUNK_LAYER_MIN;
    while (n < CHUNK_LAYER_ENOUGH) {
        hd_step_load l = {0};
        hd_step_load_add(&l, n, pos);
        if ((double)hd_profile_mean_ns(s->c.profile, &l) >= worth_ns) break;
        n *= 2;
    }
    return hd_sched_min(n - n % CHUNK_MIN, CHUNK_LAYER_ENOUGH);
}

/* Rows of q from position pos on, at most n, for a chunk of which a layer takes no longer. */
static int rows_of_chunk(const hd_sched *s, const struct plan *p, int pos, int n, int64_t bound) {
    double all_ns = (double)left_for_chunk(s, bound) * s->c.n_layer;
    int64_t limit_ns = all_ns < 9e18 ? (int64_t)all_ns : INT64_MAX;
    int n_timely = hd_profile_rows_within(s->c.profile, &p->load, pos, n, limit_ns);
    if (n_timely == n) return n;
    int n_least = least_of_chunk(s, pos);
    if (n_timely > n_least) return n_timely - n_timely % CHUNK_MIN;
    return p->has_prompt ? 0 : hd_sched_min(n, n_least);
}

/* Whether rows of q from position pos on join the decoding rows' step, n_timely of n_wanted fitting
 * in: all, and nothing before them has to be expanded at a price that steps' times do not tell. */
static bool joins(const hd_sched *s, const hd_seq *q, int pos, int n_wanted, int n_timely) {
    if (n_timely < n_wanted) return false;
    bool is_expanded = q->admitted_ns >= 0 ? q->form[pos] == HD_MLA_EXPANDED
                                           : !s->c.exact && n_wanted >= s->c.expand_min;
    return !is_expanded || pos <= n_wanted;
}

/* Rows of q from position pos on, of n_wanted, that this step has room and time for. */
static int rows_for(const hd_sched *s, struct plan *p, const hd_seq *q, int pos, int n_wanted) {
    int n = hd_sched_min(n_wanted, p->n_left);
    if (!s->c.chunked) return n;
    if (s->c.chunk_max > 0) n = hd_sched_min(n, s->c.chunk_max);
    if (!hd_sched_knows(s)) return n;
    int64_t bound = bound_of(s, p, q);
    if (bound == INT64_MAX) return n;
    if (p->is_chunk) return rows_of_chunk(s, p, pos, n, bound);
    int n_timely = hd_profile_rows_within(s->c.profile, &p->load, pos, n, bound);
    if (hd_sched_has_chunks(s) && p->decoding && !joins(s, q, pos, n_wanted, n_timely)) {
        p->wants_chunk = true;
        return 0;
    }
    if (n_timely == n) return n;
    if (n_timely > CHUNK_MIN) return n_timely - n_timely % CHUNK_MIN;
    return p->has_prompt ? 0 : hd_sched_min(n, CHUNK_MIN);
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

/* Takes pages for all known tokens, path[0..n_hit) being the first, and promises the full ones.
 * Those taken stand in the order of the pool: backends read pages that follow one another faster.
 */
static void take_pages(hd_sched *s, hd_seq *q, int n_hit) {
    for (int i = 0; i < n_hit; i++) {
        hd_pages_ref(s->pages, s->path[i]);
        q->page[i] = s->path[i];
    }
    q->n_page = q->n_indexed = n_hit;
    while (q->n_page < hd_sched_pages_for(&s->c, held_pos(q))) {
        int page = hd_prefix_take(s->prefix);
        HD_ASSERT(page >= 0 && q->n_page < q->n_page_room);
        q->page[q->n_page++] = page;
    }
    hd_sort_ints(q->page + n_hit, q->n_page - n_hit);
    for (int i = n_hit; i < q->n_page; i++) {
        if (!s->c.prefix_cache || i >= q->n_tok / s->c.page_tok) break;
        size_t at = (size_t)i * (size_t)s->c.page_tok;
        hd_prefix_content content = {.parent = i > 0 ? q->page[i - 1] : -1,
                                     .salt = q->salt,
                                     .token = q->token + at,
                                     .form = q->form + at};
        hd_prefix_promise(s->prefix, q->page[i], &content, q->bucket);
    }
}

static void start(hd_sched *s, struct plan *p, hd_seq *q, int n_hit) {
    HD_ASSERT(hd_seq_n_known(q) == q->n_tok); /* whoever was preempted has been told since */
    hd_sched_dequeue(s, q);
    if (s->c.is_static) s->n_batch_left--;
    s->n_since_aged++;
    if (q == p->aged) {
        q->bucket = HD_BUCKET_AGED;
        s->n_since_aged = 0;
        s->n_aged++;
        p->aged = NULL;
    }
    int n_hit_tok = n_hit * s->c.page_tok;
    if (q->admitted_ns < 0) {
        q->admitted_ns = p->now_ns;
        q->n_hit = n_hit_tok;
        s->prompt_tok += (uint64_t)q->n_prompt;
        s->hit_tok += (uint64_t)n_hit_tok;
        record_forms(s, q, n_hit);
    }
    hd_sched_note_start(s, q);
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

bool hd_sched_match(hd_sched *s, hd_seq *q, int *n_hit) {
    *n_hit = 0;
    if (!s->c.prefix_cache) return true;
    if (hd_prefix_is_pending(s->prefix, q->wait)) return false;
    hd_prefix_ask ask = {.salt = q->salt,
                         .token = q->token,
                         .form = q->admitted_ns < 0 ? NULL : q->form,
                         .n_page = (q->n_tok - 1) / s->c.page_tok,
                         .rank = q->bucket};
    *n_hit = hd_prefix_match(s->prefix, &ask, s->path, &q->wait);
    return q->wait.page < 0;
}

/* The most urgent waiting sequence takes the place of running ones of later buckets. Before rows
 * are given: they then have none. */
static void make_way(hd_sched *s, struct plan *p) {
    hd_seq *q = hd_sched_next_waiting(s, NULL);
    int n_hit;
    if (!q || s->n_run == 0 || q->bucket >= p->bucket_end) return;
    if (s->run[s->n_run - 1]->bucket <= q->bucket || !hd_sched_match(s, q, &n_hit)) return;
    while (s->n_run > 0 && s->run[s->n_run - 1]->bucket > q->bucket) {
        hd_seq *victim = cheapest(s, 0);
        if (!victim || victim->bucket <= q->bucket) return;
        if (s->n_run < s->n_slot && has_room(s, p, q, n_hit)) return;
        preempt(s, victim);
        p->growth_page = -1;
    }
}

enum admission { ADMITTED, PASSED_OVER, BLOCKED };

static enum admission admit(hd_sched *s, struct plan *p, hd_seq *q) {
    int n_hit;
    if (s->n_run == s->n_slot || (s->c.is_static && s->n_batch_left == 0)) return BLOCKED;
    if (hd_seq_n_known(q) < q->n_tok) return PASSED_OVER; /* preempted just now */
    if (!hd_sched_match(s, q, &n_hit)) return PASSED_OVER;
    if (!has_room(s, p, q, n_hit)) return BLOCKED;
    int n_hit_tok = n_hit * s->c.page_tok, n_left = q->n_tok - n_hit_tok;
    if (waits_for_step(s, p, n_left)) return BLOCKED;
    if (rows_for(s, p, q, n_hit_tok, n_left) == 0) return BLOCKED;
    start(s, p, q, n_hit);
    return ADMITTED;
}

/* Prompts */

/* Rows of q for this step. False: it has to wait for the next one, and those behind it with it. */
static bool add_chunk(hd_sched *s, struct plan *p, hd_seq *q) {
    int n_row = hd_seq_n_wanted(q);
    if (n_row == 0) return true;
    if (waits_for_step(s, p, n_row)) return false;
    n_row = rows_for(s, p, q, q->n_computed, n_row);
    if (n_row == 0) return false;
    add_rows(s, p, q, n_row);
    p->has_prompt = true;
    return true;
}

/* The next running sequence from i on that has a prompt to compute and no rows yet. */
static int next_prompt(const hd_sched *s, int i) {
    while (i < s->n_run && (hd_seq_n_wanted(s->run[i]) < 2 || s->run[i]->flight_ix >= 0)) i++;
    return i;
}

/* Those that wait, in the order in which they are asked: the longest overdue, when it is its turn;
 * then favourites; then by rank. */
struct line {
    hd_seq *favourite, *next;
};

static struct line line_of(hd_sched *s, const struct plan *p) {
    struct line l = {.next = hd_sched_next_waiting(s, NULL)};
    if (p->may_admit && s->n_run < s->n_slot) l.favourite = hd_sched_favourite(s);
    return l;
}

static hd_seq *first_of(const struct plan *p, const struct line *l) {
    if (!p->may_admit) return NULL;
    hd_seq *q = p->aged ? p->aged : l->favourite ? l->favourite : l->next;
    return q && q->bucket < p->bucket_end ? q : NULL;
}

/* Asks w, which then stands in the line no more. */
static bool ask(hd_sched *s, struct plan *p, struct line *l, hd_seq *w) {
    bool is_favourite = w == l->favourite, is_aged = w == p->aged;
    hd_seq *passed = is_favourite && !is_aged ? hd_sched_next_waiting(s, NULL) : NULL;
    if (w == l->next) l->next = hd_sched_next_waiting(s, w);
    if (is_favourite) l->favourite = NULL;
    enum admission a = admit(s, p, w);
    if (a == BLOCKED) p->may_admit = false;
    if (a == PASSED_OVER && is_aged) p->aged = NULL;
    if (a != ADMITTED) return false;
    if (passed && passed != w) passed->n_passed++;
    if (is_favourite) l->favourite = s->n_run < s->n_slot ? hd_sched_favourite(s) : NULL;
    return true;
}

/* Prompts of running sequences and admission of waiting ones, merged by rank. */
static void plan_prompts(hd_sched *s, struct plan *p) {
    struct line line = line_of(s, p);
    int n_look = 0;
    for (int i = next_prompt(s, 0); p->n_left > 0; i = next_prompt(s, i)) {
        hd_seq *q = i < s->n_run && s->run[i]->bucket < p->bucket_end ? s->run[i] : NULL;
        hd_seq *w = first_of(p, &line);
        if (!q && !w) break;
        if (q && (!w || (w != p->aged && !hd_sched_is_before(w, q)))) {
            if (!add_chunk(s, p, q)) break;
            i++;
            continue;
        }
        if (++n_look == LOOK_MAX) p->may_admit = false;
        if (!ask(s, p, &line, w)) continue;
        if (hd_sched_start(s, w) <= i) i++;
        if (!add_chunk(s, p, w)) break;
    }
}

/* Chunks */

/* Whether a sequence decodes, of those that chunks leave alone. */
static bool has_decoding(const hd_sched *s) {
    for (int i = 0; i < s->n_run; i++)
        if (hd_seq_n_wanted(s->run[i]) == 1 && !s->run[i]->chunk) return true;
    return false;
}

/* Layers of a chunk of load l, whose first sequence is q, that fit into what is tolerated. */
static int layers_within(const hd_sched *s, const struct plan *p, const hd_seq *q,
                         const hd_step_load *l) {
    int64_t bound = bound_of(s, p, q), all_ns = hd_profile_p95_ns(s->c.profile, l);
    if (bound == INT64_MAX || all_ns <= 0) return s->c.n_layer;
    double n = (double)left_for_chunk(s, bound) * s->c.n_layer / (double)all_ns;
    return n < 1 ? 1 : n < s->c.n_layer ? (int)n : s->c.n_layer;
}

static void slice(hd_sched *s, const struct plan *p, hd_chunk *c) {
    int n = layers_within(s, p, hd_sched_chunk_first(c), &c->load);
    hd_sched_chunk_slice(s, c, hd_sched_min(n, s->c.n_layer - c->layer), p->b);
}

/* A step of prompts alone, of all layers or as a new chunk. */
static void begin_chunk(hd_sched *s, struct plan *p) {
    make_way(s, p);
    p->is_chunk = true;
    plan_prompts(s, p);
    p->is_chunk = false;
    if (p->b->n_row == 0) return;
    if (layers_within(s, p, s->flight[0], &p->load) >= s->c.n_layer) return;
    slice(s, p, hd_sched_chunk_hold(s, p->b, &p->load));
}

/* A step of prompts that are more urgent than the chunk under way, which then pauses. */
static void overtake(hd_sched *s, struct plan *p, const hd_chunk *c) {
    hd_seq *aged = p->aged; /* has its turn when nothing is under way */
    if (!hd_sched_chunk_has_room(s)) return;
    p->aged = NULL;
    p->bucket_end = hd_sched_chunk_first(c)->bucket;
    begin_chunk(s, p);
    p->bucket_end = HD_BUCKET_COUNT;
    p->aged = aged;
}

/* The next layers of the chunk under way, or of prompts that go before it: after so many of them,
 * or chunks of them, it has a turn, so that it advances however many more urgent ones come. */
static void continue_chunk(hd_sched *s, struct plan *p, hd_chunk *c) {
    if (c->n_passed < HD_PACE_AGED_EVERY - 1) overtake(s, p, c);
    if (p->b->n_row > 0) {
        c->n_passed++;
        return;
    }
    c->n_passed = 0;
    slice(s, p, c);
}

/* The step that is the chunk's turn; false: there is nothing for it. */
static bool plan_chunk(hd_sched *s, struct plan *p) {
    if (!hd_sched_has_chunks(s) || !s->chunk_next) return false;
    s->chunk_next = false;
    if (has_decoding(s)) {
        p->decoding = s->beside.decoding;
        p->decode_ns = s->beside.decode_ns;
    }
    hd_chunk *c = hd_sched_chunk_next(s);
    if (c)
        continue_chunk(s, p, c);
    else
        begin_chunk(s, p);
    p->decoding = 0;
    p->decode_ns = 0;
    return p->b->n_row > 0;
}

/* Decoding rows, and prompts that fit beside them. */
static void plan_step(hd_sched *s, struct plan *p) {
    plan_decodes(s, p);
    hd_chunk *c = hd_sched_chunk_next(s);
    if (p->b->n_row == 0 && c) {
        continue_chunk(s, p, c);
        return;
    }
    plan_prompts(s, p);
    if (!hd_sched_has_chunks(s) || !hd_sched_knows(s)) return;
    s->chunk_next = p->wants_chunk || c;
    s->beside.decoding = p->decoding;
    s->beside.decode_ns = p->decode_ns;
    s->beside.step_ns = hd_profile_p95_ns(s->c.profile, &p->load);
}

/* The last step is over. */
static void end_flight(hd_sched *s) {
    for (int i = 0; i < s->n_flight && s->flight == s->own_flight; i++) {
        if (s->flight[i]) s->flight[i]->flight_ix = -1;
    }
    s->flight = s->own_flight;
    s->n_flight = 0;
    hd_sched_chunk_settle(s);
}

int hd_sched_plan(hd_sched *s, int64_t now_ns, hd_batch *b) {
    HD_ASSERT(!s->in_flight);
    HD_ASSERT(b->page_tok == s->c.page_tok && b->n_row_max >= s->c.n_row_max);
    HD_ASSERT(b->n_seq_max >= s->n_slot && b->n_page_max / s->n_page_seq >= s->n_slot);
    end_flight(s);
    hd_batch_clear(b);
    struct plan p = {.b = b,
                     .now_ns = now_ns,
                     .n_left = s->c.n_row_max,
                     .may_admit = true,
                     .growth_page = -1,
                     .bucket_end = HD_BUCKET_COUNT,
                     .is_pressed = hd_sched_is_pressed(s),
                     .aged = hd_sched_aged(s, now_ns)};
    bool prompts_only = s->prompts_next;
    if (s->n_run == 0) s->n_batch_left = hd_sched_min(s->n_waiting, s->n_slot);
    if (!plan_chunk(s, &p)) {
        hd_sched_compact(s, b);
        make_way(s, &p);
        hd_sched_reorder(s);
        if (prompts_only) plan_prompts(s, &p);
        s->prompts_next = false; /* never two steps running: decoding goes on */
        if (b->n_row == 0) plan_step(s, &p);
    }
    s->in_flight = b->n_row > 0;
    HD_ASSERT(s->in_flight || b->n_copy == 0);
#ifdef HD_DEBUG
    hd_batch_check(b);
#endif
    return b->n_row;
}
