/* Building and freeing a job. */
#include "engine/job.h"

#include "base/mem.h"

#include <string.h>

static void add_end_tokens(hd_job *j, const int32_t *token, int n) {
    for (int i = 0; i < n; i++)
        if (!hd_job_is_end_token(j, token[i])) j->end_token[j->n_end_token++] = token[i];
}

hd_status hd_job_new(const hd_job_spec *spec, hd_job **out) {
    const hd_request *r = spec->request;
    HD_ASSERT(r->n_prompt > 0 && spec->n_new_max > 0);
    hd_job *j = hd_alloc_zero(1, sizeof *j);
    j->id = spec->id;
    j->n_ref = 1;
    j->out_ix = -1;
    j->on_event = r->on_event;
    j->user = r->user;
    j->submitted_ns = spec->now_ns;
    j->n_prompt = r->n_prompt;
    j->service = r->service;
    j->tenant = r->tenant;
    j->n_new_max = spec->n_new_max;
    j->n_new_min = r->min_tokens;
    int n_end = spec->n_end_token + (r->is_chat ? spec->n_chat_end_token : 0);
    int n_end_max = r->n_stop_token + n_end;
    j->end_token = hd_alloc_zero((size_t)n_end_max, sizeof(int32_t));
    add_end_tokens(j, r->stop_token, r->n_stop_token);
    if (!r->ignore_eos) add_end_tokens(j, spec->end_token, n_end);
    hd_seq_spec seq = {.prompt = r->prompt,
                       .n_prompt = r->n_prompt,
                       .n_new_max = j->n_new_max,
                       .service = r->service,
                       .priority = r->priority,
                       .tenant = r->tenant,
                       .submitted_ns = spec->now_ns,
                       .deadline_ns = r->deadline_ns,
                       .salt = r->cache_salt,
                       .user = j};
    j->seq = hd_seq_new(spec->sched, &seq);
    hd_sampler_spec sampler = {.sampling = &r->sampling,
                               .seed = r->sampling.has_seed ? r->sampling.seed : spec->seed,
                               .prompt = r->prompt,
                               .n_prompt = r->n_prompt,
                               .n_new_max = j->n_new_max};
    j->sampler = hd_sampler_new(&sampler);
    if (r->sampling.n_top_logprob >= 0) j->top = hd_alloc_zero(HD_TOP_LOGPROB_MAX, sizeof *j->top);
    if (r->n_stop > 0) {
        HD_ASSERT(spec->tokenizer);
        hd_text_stream_options o = {.min_tokens = r->min_tokens,
                                    .keep_special = r->keep_special,
                                    .stop = r->stop,
                                    .n_stop = r->n_stop};
        hd_status s = hd_stream_new(spec->tokenizer, NULL, &o, &j->stop);
        if (s != HD_OK) {
            hd_job_free(j);
            return s;
        }
    }
    j->ev = (hd_event){.id = j->id,
                       .token = -1,
                       .stop_ix = -1,
                       .stop_token = -1,
                       .n_prompt = j->n_prompt,
                       .submitted_ns = j->submitted_ns,
                       .top = j->top};
    *out = j;
    return HD_OK;
}

void hd_job_free(hd_job *j) {
    if (!j) return;
    HD_ASSERT(!j->is_submitted);
    hd_seq_free(j->seq);
    hd_sampler_free(j->sampler);
    hd_stream_free(j->stop);
    hd_free(j->end_token);
    hd_free(j->top);
    hd_free(j);
}

bool hd_job_is_end_token(const hd_job *j, int32_t token) {
    for (int i = 0; i < j->n_end_token; i++)
        if (j->end_token[i] == token) return true;
    return false;
}
