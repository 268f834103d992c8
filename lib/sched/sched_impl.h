/* Inside the scheduler: its structures, shared by its files and nobody else.
 *
 * sched.c holds a sequence's life (submit, commit, append, finish) and the queues; rank.c gives
 * ranks and predicts; sched_plan.c decides a step, reorder.c and compact.c in which order and from
 * which pages, chunk.c keeps prompts that are computed some layers at a time; sched_check.c asserts
 * the invariants. */
#ifndef HD_SCHED_SCHED_IMPL_H
#define HD_SCHED_SCHED_IMPL_H

#include "kv/pages.h"
#include "kv/prefix.h"
#include "sched/fair.h"
#include "sched/forecast.h"
#include "sched/sched.h"

/* How far ahead the pages of running sequences are kept free when one more is admitted: at least a
 * page each. A preemption adds one part in UP (and 1) to it, a sequence that ends takes back one
 * part in DOWN of what is above a page. Measured over a pool too small for 1000 requests of 75
 * prompt and 1..600 new tokens (256 pages of 16): rows computed again 3.6 %, pages in use 78 %;
 * with a constant page ahead 22 % and 96 %; with 4 and 16 for these 8.1 % and 82 %. */
enum { HD_SCHED_HORIZON_UP = 8, HD_SCHED_HORIZON_DOWN = 64 };

/* A sequence's bucket: its class or a later one; before them, who was admitted as longest overdue.
 */
enum { HD_BUCKET_AGED = -1, HD_BUCKET_COUNT = HD_SERVICE_COUNT };

struct hd_seq {
    uint64_t salt;
    void *user;
    enum hd_service service;
    int priority;
    uint64_t tenant;
    int64_t submitted_ns, deadline_ns;
    /* The rank, with the order of submission. */
    int bucket;
    int64_t turn_ns; /* its due time on the fair clock */
    uint64_t order;
    int64_t due_ns;     /* when its first token is due */
    int64_t fair_start; /* of hd_fair_ask */
    int64_t prompt_ns;  /* predicted time of its prompt alone; 0: unknown */
    enum hd_seq_state state;
    int n_prompt, n_tok;
    int n_new_max, n_tok_max; /* n_tok_max: prompt and generated */
    int n_computed;           /* positions whose KV exists */
    int n_redo;               /* positions computed before a preemption */
    int n_hit;
    int64_t admitted_ns;    /* -1: not yet */
    bool preempted;         /* waiting again */
    int n_passed;           /* favourites that were admitted while it was the first in line */
    bool has_room;          /* during a plan: it gets a decoding row */
    struct hd_chunk *chunk; /* flight_ix is its place in this one; NULL: in none */
    int slot;               /* running; else -1 */
    int flight_ix;          /* in the last planned batch; else -1 */
    int n_page;             /* pages held: page[0..n_page) */
    int n_indexed;          /* the first of them, which are in the prefix index */
    int n_page_room;
    hd_prefix_wait wait; /* what it was last passed over for */
    hd_seq *prev, *next; /* queue */
    int32_t *token;      /* [n_tok_max] */
    uint8_t *form;       /* [n_tok_max] */
    int32_t *page;       /* [n_page_room] */
};

/* chunk.c: prompt rows whose layers are computed in several steps. */
typedef struct hd_chunk {
    hd_batch batch; /* as planned; without rows: there is none */
    hd_step_load load;
    hd_seq **seq;  /* [n_slot] its sequences; NULL where finished since */
    int layer;     /* the first that is not computed */
    int n_passed;  /* steps of prompts or new chunks that went before it since its own last one */
    bool is_ended; /* all are, or a step failed */
} hd_chunk;

struct hd_sched {
    hd_sched_config c;
    int n_slot;     /* running sequences at most */
    int n_page_seq; /* longest page table */
    hd_pages *pages;
    hd_prefix *prefix;
    hd_seq **run;             /* [n_slot] by rank */
    hd_seq **place, **merged; /* [n_slot] the same in the order of their rows; for sorting it */
    int n_since_reorder, n_since_compact; /* steps */
    unsigned n_look;                      /* of compaction: whose turn it is */
    int compact_from;                     /* page from which on it looks for a place */
    int n_run;
    int32_t *free_slot; /* [n_slot] stack */
    int n_free_slot;
    struct {
        hd_seq *head, *tail;
    } queue[HD_BUCKET_COUNT]; /* waiting, by rank */
    int n_waiting, n_waiting_of[HD_SERVICE_COUNT];
    int n_batch_left; /* is_static: sequences of the batch that were not admitted yet */
    int n_since_aged; /* admissions since the longest overdue had one */
    hd_service_target target[HD_SERVICE_COUNT];
    hd_fair fair;
    hd_forecast forecast;
    /* Of the sequences that ended lately: generated tokens, by class and in all, and all tokens;
     * of those that started, the share of the prompt that was not reused. */
    double out_mean[HD_SERVICE_COUNT], out_mean_all, len_mean, miss_mean;
    bool has_ended;    /* any; until then what is asked for stands for what comes */
    int64_t expiry_ns; /* no deadline is lost before; INT64_MAX: there is none */
    hd_seq **flight;   /* [n_slot] sequences of the last planned batch; NULL where finished since */
    hd_seq **own_flight; /* its memory, but for steps of the chunk */
    int n_flight;
    hd_chunk chunk[HD_BATCH_CHUNKS];
    bool chunk_next; /* the next step is the chunk's, or that of prompts which become one */
    /* Of the last step but those: classes that decoded in it, the P95 that tolerances are of, and
     * its own. */
    struct {
        unsigned decoding;
        int64_t decode_ns, step_ns;
    } beside;
    bool in_flight;    /* planned, neither committed nor abandoned */
    bool prompts_next; /* unchunked: the next step belongs to a prompt alone */
    int horizon_tok;
    uint64_t n_submit;
    uint64_t n_preempt, recomputed_tok, n_aged, n_moved, prompt_tok, hit_tok;
    int32_t *path; /* [n_page_seq] result of a match */
    int32_t *uses; /* [n_page] for the check */
};

int hd_sched_pages_for(const hd_sched_config *c, int n_pos);
void hd_sched_enqueue(hd_sched *s, hd_seq *q);
void hd_sched_dequeue(hd_sched *s, hd_seq *q);
/* Places q among the running ones; returns its index in run[]. */
int hd_sched_start(hd_sched *s, hd_seq *q);
/* Takes q from the running ones and gives up its pages and slot. */
void hd_sched_stop(hd_sched *s, hd_seq *q);
static inline int hd_sched_min(int a, int b) { return a < b ? a : b; }
/* The order of rank. */
static inline bool hd_sched_is_before(const hd_seq *a, const hd_seq *b) {
    if (a->bucket != b->bucket) return a->bucket < b->bucket;
    return a->turn_ns < b->turn_ns || (a->turn_ns == b->turn_ns && a->order < b->order);
}
/* The next waiting sequence by rank after q (NULL: the first). */
hd_seq *hd_sched_next_waiting(const hd_sched *s, const hd_seq *q);
/* The waiting sequence that is longest overdue, or NULL: its turn has not come, or none is. */
hd_seq *hd_sched_aged(const hd_sched *s, int64_t now_ns);

/* Renews the order of rows when it is time. */
void hd_sched_reorder(hd_sched *s);

/* Pages that q, which waits, could reuse: their number, and which in s->path. False: it waits for
 * some that are promised (q->wait). */
bool hd_sched_match(hd_sched *s, hd_seq *q, int *n_hit);

/* Who of those that wait in the most urgent bucket is admitted before its first one, by the
 * policy; NULL: nobody, it is that one's turn. */
hd_seq *hd_sched_favourite(hd_sched *s);

/* Brings scattered pages of a running sequence together when it is time; the batch is empty. */
void hd_sched_compact(hd_sched *s, hd_batch *b);

/* Whether prompts may be computed some layers at a time. */
static inline bool hd_sched_has_chunks(const hd_sched *s) {
    return s->c.n_layer > 1 && s->c.chunked && !s->c.is_static;
}
void hd_sched_chunk_init(hd_sched *s);
void hd_sched_chunk_fini(hd_sched *s);
/* Whether one more may be held. */
bool hd_sched_chunk_has_room(hd_sched *s);
/* The rows of b, just planned, become a chunk, for which there was room. */
hd_chunk *hd_sched_chunk_hold(hd_sched *s, const hd_batch *b, const hd_step_load *load);
/* Its first sequence that is alive; NULL: there is none, or it has ended. */
hd_seq *hd_sched_chunk_first(const hd_chunk *c);
/* The one whose layers are computed next, that of the most urgent sequence; NULL: there is none. */
hd_chunk *hd_sched_chunk_next(hd_sched *s);
/* b becomes its step of the next n_layer layers. */
void hd_sched_chunk_slice(hd_sched *s, hd_chunk *c, int n_layer, hd_batch *b);
/* That was computed; true: those were the last. */
bool hd_sched_chunk_commit(hd_sched *s, const hd_batch *b);
/* Pages of q, its first ones, that stay its chunk's when q finishes: until that has ended, or its
 * other sequences have finished, too. */
int hd_sched_chunk_keeps(const hd_seq *q);
/* Its step failed. */
void hd_sched_chunk_abandon(hd_sched *s, const hd_batch *b);
/* Before a plan: forgets chunks that have ended or whose sequences have all finished. */
void hd_sched_chunk_settle(hd_sched *s);
/* Asserts their invariants; adds the pages that they hold alone to uses. */
void hd_sched_chunk_check(const hd_sched *s);

/* Whether step times can be predicted. */
static inline bool hd_sched_knows(const hd_sched *s) {
    return s->c.profile && hd_profile_n_step(s->c.profile) > 0;
}
/* Gives q its rank, and counts its work for the forecast and its tenant. */
void hd_sched_rank(hd_sched *s, hd_seq *q);
/* Whether more load is forecast than the machine can do. */
bool hd_sched_is_pressed(const hd_sched *s);
/* q has ended or started: what is learned from it. */
void hd_sched_note_end(hd_sched *s, const hd_seq *q);
void hd_sched_note_start(hd_sched *s, const hd_seq *q);
/* When q's deadline counts as lost; INT64_MAX: it has none. */
int64_t hd_sched_expiry_of(const hd_seq *q);

/* The tokens of q that are known: all but the last, at least. */
int hd_seq_n_known(const hd_seq *q);
/* Tokens of q to compute: known, not computed, and of use for a further token. */
int hd_seq_n_wanted(const hd_seq *q);

#endif
