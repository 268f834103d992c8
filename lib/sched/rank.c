/* Ranks, and the predictions they are made of: who is due when, who is overdue, how fast the line
 * moves. */
#include "sched/sched_impl.h"

enum {
    PRIORITY_MAX = 8, /* targets that a priority moves the due time by, at most */
    OUT_MEMORY = 32,  /* sequences over which means are taken */
    /* Prompts take so many times what they do alone beside decoding sequences, whose steps they may
     * stretch twofold (service.def). */
    LANE_ROOM = 2
};

/* Of a token's work while no step has been timed yet: only ratios matter then. */
static const int64_t UNKNOWN_TOK_NS = 1000000;

/* Forecast load from which a step's bound is stretched. Below 1: the forecast has an error, and at
 * 1 the line already grows without bound. */
static const double PRESSED_LOAD = 0.9;

static void follow(double *mean, double v) { *mean += (v - *mean) / OUT_MEMORY; }

/* ---- work ---- */

static int expected_out(const hd_sched *s, const hd_seq *q) {
    double mean = s->out_mean[q->service];
    return mean < q->n_new_max ? (int)mean : q->n_new_max;
}

/* Device time of one generated token at position pos when as many sequences decode as now. */
static int64_t out_tok_ns(const hd_sched *s, int pos) {
    int n = s->n_run > 0 ? s->n_run : 1;
    hd_step_load l = {.n_decode = n, .n_read = (int64_t)n * pos};
    return hd_profile_mean_ns(s->c.profile, &l) / n;
}

/* Predicts q's prompt alone; returns the work of all of q. */
static int64_t predict(hd_sched *s, hd_seq *q) {
    int n_out = expected_out(s, q);
    if (!hd_sched_knows(s)) return (q->n_prompt + n_out) * UNKNOWN_TOK_NS;
    int n_page;
    hd_step_load none = {0};
    (void)hd_sched_match(s, q, &n_page);
    int n_hit = n_page * s->c.page_tok;
    q->prompt_ns =
        hd_profile_prompt_ns(s->c.profile, &none, q->n_prompt - n_hit, n_hit, s->c.n_row_max);
    return q->prompt_ns + n_out * out_tok_ns(s, q->n_prompt + n_out / 2);
}

/* ---- rank ---- */

static int bucket_of(const hd_sched *s, const hd_seq *q, int64_t work_ns) {
    int bucket = (int)q->service;
    while (bucket + 1 < HD_BUCKET_COUNT && LANE_ROOM * q->prompt_ns > s->target[bucket].ttft_ns)
        bucket++;
    if (q->deadline_ns == 0) return bucket;
    int64_t slack_ns = q->deadline_ns - q->submitted_ns - work_ns;
    while (bucket > 0 && s->target[bucket].ttft_ns > slack_ns) bucket--;
    return bucket;
}

void hd_sched_rank(hd_sched *s, hd_seq *q) {
    if (!s->has_ended) follow(&s->out_mean_all, expected_out(s, q));
    int64_t work_ns = predict(s, q), expiry_ns = hd_sched_expiry_of(q);
    if (s->expiry_ns > expiry_ns) s->expiry_ns = expiry_ns;
    if (hd_sched_knows(s)) hd_forecast_add(&s->forecast, q->service, work_ns, q->submitted_ns);
    if (s->c.policy == HD_SCHED_FCFS) return;
    q->fair_start = hd_fair_ask(&s->fair, q->tenant, work_ns);
    q->bucket = bucket_of(s, q, work_ns);
    int priority = q->priority;
    if (priority > PRIORITY_MAX) priority = PRIORITY_MAX;
    if (priority < -PRIORITY_MAX) priority = -PRIORITY_MAX;
    q->due_ns =
        q->submitted_ns + s->target[q->bucket].ttft_ns + priority * s->target[q->service].ttft_ns;
    int64_t latest_ns = q->deadline_ns - work_ns;
    if (q->deadline_ns > 0 && q->due_ns > latest_ns) q->due_ns = latest_ns;
    q->turn_ns = q->fair_start + (q->due_ns - q->submitted_ns);
}

static hd_seq *longest_overdue(const hd_sched *s, int64_t now_ns) {
    hd_seq *worst = NULL; /* who is first in a bucket stands for it */
    for (int k = 0; k < HD_BUCKET_COUNT; k++) {
        hd_seq *q = s->queue[k].head;
        if (q && q->due_ns < now_ns && (!worst || q->due_ns < worst->due_ns)) worst = q;
    }
    return worst;
}

hd_seq *hd_sched_aged(const hd_sched *s, int64_t now_ns) {
    if (s->c.policy == HD_SCHED_FCFS || s->n_since_aged < HD_PACE_AGED_EVERY - 1) return NULL;
    return longest_overdue(s, now_ns);
}

bool hd_sched_is_pressed(const hd_sched *s) {
    return s->c.elastic && hd_forecast_load(&s->forecast, HD_SERVICE_COUNT - 1) > PRESSED_LOAD;
}

/* ---- learning ---- */

void hd_sched_note_start(hd_sched *s, const hd_seq *q) {
    hd_fair_served(&s->fair, q->fair_start);
    if (q->preempted) return;
    follow(&s->miss_mean, 1 - (double)q->n_hit / q->n_prompt);
}

void hd_sched_note_end(hd_sched *s, const hd_seq *q) {
    int n_out = q->n_tok - q->n_prompt;
    if (n_out == 0) return;
    s->has_ended = true;
    follow(&s->out_mean[q->service], n_out);
    follow(&s->out_mean_all, n_out);
    follow(&s->len_mean, q->n_tok);
}

void hd_sched_get_pace(hd_sched *s, int64_t now_ns, hd_pace *out) {
    *out = (hd_pace){.n_room = s->n_waiting > 0 ? 0 : s->n_slot - s->n_run};
    if (!hd_sched_knows(s)) return;
    int n_row = s->c.n_row_max;
    hd_step_load none = {0};
    double tok_ns =
        (double)hd_profile_prompt_ns(s->c.profile, &none, n_row, (int)s->len_mean / 2, n_row) /
        n_row;
    bool decodes = false;
    for (int i = 0; i < s->n_run; i++) {
        int n = hd_seq_n_wanted(s->run[i]);
        decodes |= n == 1;
        if (n > 1) out->running_tok[s->run[i]->service] += n;
    }
    out->tok_ns = (int64_t)(tok_ns * s->miss_mean * (decodes ? LANE_ROOM : 1));
    out->out_tok = (int)s->out_mean_all;
    out->seq_ns = (int64_t)(s->out_mean_all * (double)out_tok_ns(s, (int)s->len_mean));
    out->has_aged = s->c.policy != HD_SCHED_FCFS && longest_overdue(s, now_ns);
    hd_forecast_roll(&s->forecast, now_ns);
    for (int k = 0; k < HD_SERVICE_COUNT; k++)
        out->load[k] = hd_forecast_load(&s->forecast, (enum hd_service)k);
}

/* ---- deadlines ---- */

int64_t hd_sched_expiry_of(const hd_seq *q) {
    if (q->deadline_ns == 0) return INT64_MAX;
    return q->admitted_ns < 0 ? q->deadline_ns - q->prompt_ns : q->deadline_ns;
}

hd_seq *hd_sched_expired(hd_sched *s, int64_t now_ns) {
    if (now_ns < s->expiry_ns) return NULL;
    int64_t next_ns = INT64_MAX;
    hd_seq *found = NULL;
    for (int i = 0; i < s->n_run && !found; i++) {
        int64_t at = hd_sched_expiry_of(s->run[i]);
        if (at <= now_ns) found = s->run[i];
        if (at < next_ns) next_ns = at;
    }
    for (hd_seq *q = hd_sched_next_waiting(s, NULL); q && !found; q = hd_sched_next_waiting(s, q)) {
        int64_t at = hd_sched_expiry_of(q);
        if (at <= now_ns) found = q;
        if (at < next_ns) next_ns = at;
    }
    if (!found) s->expiry_ns = next_ns;
    return found;
}
