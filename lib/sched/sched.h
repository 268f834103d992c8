/* The scheduler: which tokens of which sequences are computed next. Pure decisions on integers.
 *
 * No device, model, text or wall clock: time comes as an argument, tokens as numbers, so the
 * simulator runs this very code. A step is plan, (the model runs), commit, then the engine appends
 * each sampled token or finishes its sequence:
 *
 *     while (hd_sched_plan(s, now, batch) > 0) {
 *         run(batch);                                    // or hd_sched_abandon(s, batch)
 *         hd_sched_commit(s, batch);                     // KV of the rows exists now
 *         for each output i of batch:                    // i-th out_row belongs to
 *             hd_seq *q = hd_sched_out_seq(s, batch, i); // NULL: finished in the meantime
 *             hd_sched_append(s, q, token) or hd_sched_finish(s, q);
 *     }
 *
 * The scheduler's time is the device's order of work, not the host's: a step that was enqueued can
 * be committed before it ran, its tokens appended as HD_TOKEN_UNKNOWN and the next step planned,
 * which names them by their slot. They are resolved, or their sequences finished, before that next
 * step is committed or abandoned. Pages are shared once their tokens are known.
 *
 * Policy (docs/adr/0007-rank-and-profile.md). Every sequence has a rank, given at submission:
 * (bucket, due time on the fair clock, order), least first. The bucket is its service class, or the
 * first behind it whose target a prompt that long can keep; it is due at submission + the bucket's
 * target, earlier for a deadline or a negative priority, later for a positive one. The fair clock
 * (sched/fair.h) stands still for a tenant that has already asked for more than its share. First
 * come, first served is the same with the rank (0, 0, order).
 *
 * Decoding sequences come first, one row each; then prompt chunks in order of rank, as many rows as
 * the token budget has and, when step times are known, as keep the step's predicted P95 within the
 * tolerance of those who decode in it. The tolerance is wider when the most urgent prompt would be
 * late otherwise, or others wait and more load is forecast than the machine can do.
 *
 * Where n_layer allows it, a prompt that does not fit beside those who decode is not cut to fewer
 * rows: it gets steps of its own, every other one, of as many of its layers as the tolerance leaves
 * (base/batch.h). Its sequences stand still meanwhile, and are not preempted.
 *
 * Where compact_page_max allows it, pages of a running sequence are moved now and then, so that
 * they lie side by side: the batch says which are copied where before its rows are computed.
 *
 * At most min(n_seq_max, n_row_max) sequences run, so each of them gets a row. A sequence is
 * admitted in order of rank when a slot is free and the pool holds all pages of its known tokens,
 * and beyond them what the running sequences will take over a horizon of next tokens, which grows
 * with each preemption and shrinks as sequences end: so that preemption does not thrash. A sequence
 * blocked by pages blocks those behind it, but may take the place of one in a later bucket. One
 * admission in HD_PACE_AGED_EVERY belongs to the sequence that is longest overdue, in whatever
 * bucket; it counts as most urgent from then on: so every bucket's wait is bounded. The step that
 * admits a sequence computes rows of it.
 *
 * A decoding sequence that finds no page preempts, among those behind it in the last bucket, the
 * one whose recomputation costs least for each page it frees, itself if there is none: the first
 * one always advances. A preempted sequence keeps its rank and is computed again.
 *
 * A prompt is matched against the prefix index when admitted; whole pages are reused, never the
 * last known token. When a running sequence of the same or an earlier bucket is about to compute
 * pages that a waiting one could reuse, the waiting one is passed over until they are there.
 *
 * A prompt position's MLA form is chosen at first admission (expanded if at least expand_min prompt
 * tokens are to be computed and not `exact`; else absorbed; a reused page's as it was computed) and
 * recorded; generated positions are absorbed; a recomputation repeats the record.
 *
 * Unchunked, a prompt that does not fit beside the decoding rows gets the next step without them,
 * at most every other step; only a recomputation longer than the budget is still cut.
 *
 * Owner: the engine thread. Allocates only in hd_sched_new, hd_sched_batch_init and hd_seq_new.
 * Cost of a plan: running sequences, and a bounded number of waiting ones. */
#ifndef HD_SCHED_SCHED_H
#define HD_SCHED_SCHED_H

#include "base/batch.h"
#include "base/service.h"
#include "base/status.h"
#include "sched/pace.h"
#include "sched/profile.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct hd_sched hd_sched;
typedef struct hd_seq hd_seq;

enum hd_sched_policy { HD_SCHED_PRIORITY, HD_SCHED_FCFS };

/* The order of rows of decoding sequences: as they started; or, renewed every reorder_interval
 * steps, the most fragmented first (share of pages that do not follow the one before in the pool,
 * over the free pages), those of the same beginning side by side, or the shortest first. PREFIX and
 * LENGTH admit by it, too: of the first that wait in the most urgent bucket the one with most pages
 * in the cache, or the shortest, goes before the first, which is passed so a bounded number of
 * times. */
enum hd_reorder { HD_REORDER_NONE, HD_REORDER_FRAGMENTATION, HD_REORDER_PREFIX, HD_REORDER_LENGTH };

typedef struct hd_sched_config {
    enum hd_sched_policy policy;
    bool is_static; /* a batch at a time: whoever waits when the last one of a batch has ended */
    int n_seq_max;  /* running sequences */
    int n_row_max;  /* token budget of a step (max_num_batched_tokens) */
    int n_layer;   /* more than 1: a step may compute some of a prompt's layers; else all of them */
    int chunk_max; /* prompt tokens of one sequence in a step; 0: the budget */
    bool chunked;  /* false: a prompt is computed in one step or not at all */
    int n_pos_max; /* longest sequence */
    int n_page, page_tok;
    bool prefix_cache;
    bool exact;         /* determinism level 2: absorbed everywhere */
    int expand_min;     /* prompt tokens to compute from which the expanded form pays */
    uint64_t model_key; /* starts every fingerprint chain: weights, KV type, rope settings */
    hd_service_target target[HD_SERVICE_COUNT]; /* 0: the class's defaults */
    enum hd_reorder reorder;
    int reorder_interval;      /* steps; with a reorder at least 1 */
    int compact_page_max;      /* pages that are moved before a step at most; 0: none are */
    int64_t step_max_ns;       /* bound of a step's predicted P95; 0: none */
    bool elastic;              /* a step's bound follows the forecast load */
    const hd_profile *profile; /* borrowed; NULL, or while it knows nothing: no predictions */
} hd_sched_config;

typedef struct hd_seq_spec {
    const int32_t *prompt; /* copied; n_prompt >= 1 */
    int n_prompt;
    int n_new_max; /* tokens to generate at most, >= 1 */
    enum hd_service service;
    int priority; /* lower is sooner, as vLLM's: each unit moves the due time by the class's target,
                     within -8..8 */
    uint64_t tenant;      /* who shares fairly with others */
    int64_t submitted_ns; /* on the clock of hd_sched_plan */
    int64_t deadline_ns;  /* the answer is of no use after; 0: none */
    uint64_t salt;        /* tenant salt of the fingerprint chain; 0: shared */
    void *user;
} hd_seq_spec;

/* NEW: not submitted yet. WAITING includes preempted. */
enum hd_seq_state { HD_SEQ_WAITING, HD_SEQ_RUNNING, HD_SEQ_DONE, HD_SEQ_NEW };

/* Numbers of the configuration are at least 1 (chunk_max, expand_min: 0). */
hd_sched *hd_sched_new(const hd_sched_config *c);
/* Accepts NULL. All sequences are finished or were never submitted. */
void hd_sched_free(hd_sched *s);
/* A batch with the room that hd_sched_plan asks for; end it with hd_batch_fini. A batch made
 * otherwise needs at least the same: n_row_max rows, the running sequences, and a full page table
 * for each of them (shared pages stand in several tables). */
void hd_sched_batch_init(const hd_sched_config *c, hd_batch *b);

/* Makes a sequence, with all memory it will ever need (any thread). hd_seq_free only before submit,
 * after a refused submit or after hd_sched_finish. */
hd_seq *hd_seq_new(const hd_sched_config *c, const hd_seq_spec *spec);
void hd_seq_free(hd_seq *q); /* accepts NULL */

/* HD_E_CONTEXT: can never fit (names the limit and what was asked); it stays the caller's. On
 * success the scheduler holds the sequence until hd_sched_finish. How many may wait is the caller's
 * to bound.
 */
HD_MUST_CHECK hd_status hd_sched_submit(hd_sched *s, hd_seq *q);
/* Whether a sequence of this size could ever fit; any thread. */
HD_MUST_CHECK hd_status hd_sched_fits(const hd_sched_config *c, int n_prompt, int n_new_max);

/* Fills the batch (cleared first); returns its rows: 0 when nothing can or needs to run. A batch
 * with rows must be committed or abandoned before the next plan. */
int hd_sched_plan(hd_sched *s, int64_t now_ns, hd_batch *b);
void hd_sched_commit(hd_sched *s, const hd_batch *b);
/* The step failed: its rows do not count as computed. */
void hd_sched_abandon(hd_sched *s, const hd_batch *b);
/* Sequences of the last planned batch, until the next plan; NULL where finished since, or before
 * the plan of a step of further layers. */
hd_seq *hd_sched_seq_at(hd_sched *s, const hd_batch *b, int seq_ix); /* seq_ix in [0, n_seq) */
hd_seq *hd_sched_out_seq(hd_sched *s, const hd_batch *b, int out_ix);
enum { HD_TOKEN_UNKNOWN = -1 };
/* Appends a generated token, or HD_TOKEN_UNKNOWN, to a sequence whose last token was just computed.
 * A sequence with n_new_max generated tokens is not planned any more. */
void hd_sched_append(hd_sched *s, hd_seq *q, int32_t token);
/* Tells the token that was appended as unknown to a submitted sequence, running or preempted. */
void hd_sched_resolve(hd_sched *s, hd_seq *q, int32_t token);
/* Ends a submitted sequence in any state (finished, cancelled, failed), also between plan and
 * commit: its pages are released. */
void hd_sched_finish(hd_sched *s, hd_seq *q);

/* A sequence that cannot keep its deadline any more, or NULL: one that waits and whose prompt alone
 * would take too long, or any whose deadline has passed. Follow with hd_sched_finish. Cheap while
 * nothing has expired. */
hd_seq *hd_sched_expired(hd_sched *s, int64_t now_ns);

/* The numbers of a submitted sequence are wrong (not finite): no page that it holds is reused from
 * now on, by nobody. Follow with hd_sched_finish. */
void hd_sched_distrust(hd_sched *s, hd_seq *q);

typedef struct hd_sched_stats {
    int n_waiting_of[HD_SERVICE_COUNT]; /* by class */
    int n_waiting, n_running, n_page, n_page_free, n_page_cached, n_page_used;
    uint64_t n_preempt, recomputed_tok, n_aged; /* n_aged: admitted as the longest overdue */
    uint64_t n_moved;                           /* pages, by compaction */
    uint64_t prompt_tok, hit_tok;               /* over admitted sequences, first admission only */
} hd_sched_stats;
void hd_sched_get_stats(const hd_sched *s, hd_sched_stats *out);
/* How fast the line moves now, for hd_pace_wait_ns; zeros while nothing is known. */
void hd_sched_get_pace(hd_sched *s, int64_t now_ns, hd_pace *out);
/* Forgets every cached prefix that is not in use. */
void hd_sched_drop_cache(hd_sched *s);

void *hd_seq_user(const hd_seq *q);
enum hd_seq_state hd_seq_get_state(const hd_seq *q);
int hd_seq_n_prompt(const hd_seq *q);
int hd_seq_n_tok(const hd_seq *q); /* prompt and generated */
int hd_seq_n_new_max(const hd_seq *q);
const int32_t *hd_seq_tokens(const hd_seq *q); /* [n_tok]; the last may be HD_TOKEN_UNKNOWN */
const uint8_t *hd_seq_forms(const hd_seq *q);  /* [n_tok] the record, once admitted */
int hd_seq_n_hit(const hd_seq *q);             /* prompt tokens reused at first admission */
int hd_seq_n_computed(const hd_seq *q);        /* positions whose KV exists */
int64_t hd_seq_admitted_ns(const hd_seq *q);   /* first admission, or -1 */
int64_t hd_seq_due_ns(const hd_seq *q);        /* of a submitted sequence */

/* Asserts every invariant: reference counts equal uses, no page twice in a sequence, counts add up,
 * every index entry's page holds the tokens it is keyed by. */
void hd_sched_check(const hd_sched *s);

#endif
