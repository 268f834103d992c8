/* The engine loop as six verbs: drain, plan, step, tell, commit, emit.
 *
 * A device that runs on its own gets step n + 1 before the tokens of step n are known (tell comes
 * after step), so that it never waits for the host: docs/adr/0008-overlap.md. A sequence that ends
 * in step n has a row in n + 1 whose token nobody is told.
 *
 * hd_loop_turn runs one turn on the calling thread: the engine's thread in the server, the test or
 * the simulator elsewhere, with an injected clock and an injected step. Every request that was
 * submitted gets its tokens in order and then exactly one event with finish set, whatever happens
 * to it. Nothing allocates in a turn: what a request needs is allocated when it is submitted, on
 * the submitter's thread, and freed after its last event. */
#ifndef HD_ENGINE_LOOP_H
#define HD_ENGINE_LOOP_H

#include "base/clock.h"
#include "hadal.h"
#include "sched/sched.h"
#include "text/tokenizer.h"

/* What a step yields; valid until the next enqueue. */
typedef struct hd_step_out {
    const int32_t *token; /* [n_out]; -1: a row whose numbers were not finite */
    const float *logits;  /* [n_out, n_vocab] rows whose draw is the host's; else undefined */
} hd_step_out;

/* The device behind the loop. A failing enqueue ends the requests of its batch with that status;
 * HD_E_DEVICE, and any failure of fetch, ends every request, and the loop accepts no more. */
typedef struct hd_stepper {
    hd_status (*enqueue)(void *ctx, const hd_batch *b);
    /* Waits for the oldest step that was enqueued and not fetched. */
    hd_status (*fetch)(void *ctx, hd_step_out *out);
    bool is_async; /* enqueue returns before the step has run; two can be under way */
    void *ctx;
} hd_stepper;

typedef struct hd_loop_config {
    hd_sched_config sched;
    hd_profile *profile; /* learns every step's time; borrowed; NULL: none does. The scheduler's own
                            is sched.profile, usually the same */
    int n_queue_max;     /* waiting requests, beyond those that could run now */
    int64_t queue_tok_max; /* their prompt tokens; 0: no bound */
    int64_t wait_max_ns;   /* until a request's computation begins; 0: no bound */
    hd_clock clock;
    hd_stepper stepper;
    int n_vocab;
    const int32_t *no_token; /* [n_no_token] ids that are never sampled; copied */
    int n_no_token;
    const int32_t *end_token; /* the model's, then those of a chat answer alone; copied */
    int n_end_token, n_chat_end_token;
    const hd_tokenizer *tokenizer; /* borrowed; NULL: stop strings are refused */
    uint64_t seed;                 /* of the seeds given to requests that bring none */
    bool has_metrics;              /* count in base/metric (one loop a process) */
} hd_loop_config;

typedef struct hd_loop hd_loop;
hd_loop *hd_loop_new(const hd_loop_config *c);
/* After hd_loop_end_all, or when every request has ended. Accepts NULL. */
void hd_loop_free(hd_loop *l);

/* See hd_engine_admits and hd_engine_retry_s; any thread. */
HD_MUST_CHECK hd_status hd_loop_admits(const hd_loop *l, enum hd_service service);
int hd_loop_retry_s(const hd_loop *l, enum hd_service service);
/* Any thread. The request is validated (hd_request_check) except for stop strings, whose limits
 * hd_stream_new checks: HD_E_INVALID. HD_E_CONTEXT: never fits. HD_E_BUSY: too many wait, or it
 * would wait too long. HD_E_UNAVAILABLE: stopped. */
HD_MUST_CHECK hd_status hd_loop_submit(hd_loop *l, const hd_request *r, uint64_t *id);
void hd_loop_cancel(hd_loop *l, uint64_t id);
void hd_loop_finish(hd_loop *l, uint64_t id);

/* One turn; false when there was nothing to do. One thread at a time, the loop's owner. */
bool hd_loop_turn(hd_loop *l);
/* The owner: accepts no more requests and ends every one: CANCELLED when status is HD_OK, else
 * ERROR with it and this thread's error text. */
void hd_loop_end_all(hd_loop *l, hd_status status);
/* The owner, on a thread of its own: turns, sleeping while idle, until hd_loop_stop; then ends all.
 */
void hd_loop_run(hd_loop *l);
void hd_loop_stop(hd_loop *l); /* any thread */

/* Any thread; never blocks on the loop. */
void hd_loop_get_stats(const hd_loop *l, hd_engine_stats *out);
/* The owner: between requests, forgets cached prefixes. */
void hd_loop_drop_cache(hd_loop *l);
/* The owner: asserts every invariant, the scheduler's too. */
void hd_loop_check(hd_loop *l);

#endif
