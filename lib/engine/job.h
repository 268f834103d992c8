/* A job: one request inside the engine, with all memory it will ever need.
 *
 * Made by hd_job_new on the submitter's thread, then owned by the loop, which frees it after its
 * last event and once no message names it any more. Fields in the first group are fixed; the loop
 * thread alone touches the second; the inbox guards the third by its lock. */
#ifndef HD_ENGINE_JOB_H
#define HD_ENGINE_JOB_H

#include "engine/sampler.h"
#include "sched/sched.h"
#include "text/stream.h"

typedef struct hd_job {
    uint64_t id;
    hd_seq *seq;
    hd_sampler *sampler;
    hd_stream *stop; /* matches stop strings; NULL: there are none */
    int n_prompt, n_new_max, n_new_min;
    enum hd_service service;
    uint64_t tenant;
    int32_t *end_token; /* [n_end_token] eos and stop tokens */
    int n_end_token;
    hd_event_fn on_event;
    void *user;
    int64_t submitted_ns;

    struct hd_job *emit_next; /* list of jobs with an event to be told */
    bool is_emitting;
    bool is_submitted; /* the scheduler holds seq */
    bool is_admitted, is_ended;
    int out_ix; /* its output in the step under way; else -1 */
    int64_t last_token_ns;
    hd_event ev;
    hd_top_logprob *top; /* [HD_TOP_LOGPROB_MAX] or NULL */
    char error[256];

    int n_ref; /* the loop, and an end message that names the job */
    bool is_end_posted;
} hd_job;

typedef struct hd_job_spec {
    const hd_request *request; /* validated: hd_request_check */
    const hd_sched_config *sched;
    const hd_tokenizer *tokenizer; /* NULL only when there are no stop strings */
    const int32_t *end_token;      /* the model's, then those of a chat answer alone */
    int n_end_token, n_chat_end_token;
    int n_new_max;     /* tokens to generate at most; the context has room for them */
    uint64_t id, seed; /* seed: for a request without one */
    int64_t now_ns;
} hd_job_spec;

HD_MUST_CHECK hd_status hd_job_new(const hd_job_spec *spec, hd_job **out);
/* Only while the scheduler does not hold its sequence. Accepts NULL. */
void hd_job_free(hd_job *j);
bool hd_job_is_end_token(const hd_job *j, int32_t token);

#endif
