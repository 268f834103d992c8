/* Batching as servers did it before: collect, pad, run until the last one has ended, begin again.
 * The kernels are those of the engine. Everything that costs nothing to grant is granted: the KV of
 * a batch is no longer than its longest prompt and answer, and tokens count as told when they are
 * computed, not when the batch ends. */
#include "cmd/compare.h"

#include "base/mem.h"
#include "sim/random.h"

#include <limits.h>
#include <string.h>

struct seq {
    const hd_trace_item *item;
    hd_compare_request *request;
    int32_t *prompt;
    int n_prompt; /* as computed: padded, or its own */
    int n_done;   /* positions computed */
    int n_output; /* tokens it has */
};

struct driver {
    const hd_static_machine *m;
    const hd_policy *p;
    const hd_trace *trace;
    hd_compare_run *run;
    int64_t start_ns;
    struct seq *seq; /* [p->n_max] */
    int n, n_longest_prompt, n_longest_output;
    uint64_t random; /* of tokens that nobody reads, which choose experts all the same */
};

static bool is_padded(const struct driver *d) { return d->p->kind == HD_POLICY_STATIC; }

static int pages_of(const struct driver *d, int n_tok) {
    int page_tok = d->m->batch->page_tok;
    return (n_tok + page_tok - 1) / page_tok;
}

int hd_static_n_pos(const hd_trace *trace) {
    int n_prompt = 0, n_output = 0;
    for (int i = 0; i < trace->n; i++) {
        if (trace->item[i].n_prompt > n_prompt) n_prompt = trace->item[i].n_prompt;
        if (trace->item[i].n_output > n_output) n_output = trace->item[i].n_output;
    }
    return n_prompt + n_output;
}

/* ---- which requests ---- */

static int64_t arrival_ns(const struct driver *d, int ix) {
    double s = d->trace->item[ix].arrival_s - d->trace->item[0].arrival_s;
    return d->start_ns + (int64_t)(s * 1e9);
}

/* Tokens of KV that requests first..first+n take together. */
static int64_t kv_of(const struct driver *d, int first, int n) {
    int n_prompt = 0, n_output = 0;
    int64_t sum = 0;
    for (int i = first; i < first + n; i++) {
        const hd_trace_item *item = &d->trace->item[i];
        if (item->n_prompt > n_prompt) n_prompt = item->n_prompt;
        if (item->n_output > n_output) n_output = item->n_output;
        sum += (int64_t)pages_of(d, item->n_prompt + item->n_output) * d->m->batch->page_tok;
    }
    return is_padded(d) ? (int64_t)n * (n_prompt + n_output) : sum;
}

/* How many from `first` on a batch can hold, one at least. */
static int room_for(const struct driver *d, int first) {
    int n = 1;
    while (n < d->p->n_max && first + n < d->trace->n &&
           (d->m->kv_tok == 0 || kv_of(d, first, n + 1) <= d->m->kv_tok))
        n++;
    return n;
}

/* Waits until the batch is full or its first request has waited long enough; returns its size. */
static int collect(struct driver *d, int first) {
    int room = room_for(d, first), n = 0;
    int64_t due_ns = arrival_ns(d, first) + HD_POLICY_WAIT_MS * (int64_t)1000000;
    int64_t full_ns = first + room < d->trace->n || room == d->p->n_max
                          ? arrival_ns(d, first + room - 1)
                          : due_ns;
    int64_t at_ns = full_ns < due_ns ? full_ns : due_ns, now_ns = d->m->now_ns(d->m->ctx);
    if (at_ns > now_ns) d->m->wait_until(d->m->ctx, at_ns);
    if (at_ns < now_ns) at_ns = now_ns;
    while (n < room && arrival_ns(d, first + n) <= at_ns) n++;
    return n;
}

static double since_start(const struct driver *d) {
    return (double)(d->m->now_ns(d->m->ctx) - d->start_ns) * 1e-9;
}

static hd_status begin(struct driver *d, int first, int n) {
    d->n = n;
    d->n_longest_prompt = d->n_longest_output = 0;
    for (int i = 0; i < n; i++) {
        const hd_trace_item *item = &d->trace->item[first + i];
        if (item->n_prompt > d->n_longest_prompt) d->n_longest_prompt = item->n_prompt;
        if (item->n_output > d->n_longest_output) d->n_longest_output = item->n_output;
        hd_compare_request *r = &d->run->request[first + i];
        r->arrival_s = (double)(arrival_ns(d, first + i) - d->start_ns) * 1e-9;
        r->admitted_s = since_start(d);
        d->seq[i] = (struct seq){.item = item, .request = r, .n_prompt = item->n_prompt};
    }
    if (d->n_longest_prompt + d->n_longest_output > d->m->n_pos_max)
        return HD_FAIL(CONTEXT,
                       "%s: a batch of %d prompt and %d answer tokens: expected at most %d",
                       d->p->name, d->n_longest_prompt, d->n_longest_output, d->m->n_pos_max);
    for (int i = 0; i < n; i++) {
        struct seq *q = &d->seq[i];
        q->prompt = hd_alloc_zero((size_t)q->n_prompt, sizeof *q->prompt);
        hd_trace_prompt(q->item, q->prompt);
        if (is_padded(d)) q->n_prompt = d->n_longest_prompt;
    }
    return HD_OK;
}

/* ---- steps ---- */

/* Rows n_done .. n_done + n of sequence k. Padding stands behind the prompt; as it is computed like
 * any token, where it stands makes no difference to what is measured. */
static void add_rows(struct driver *d, int k, int n) {
    hd_batch *b = d->m->batch;
    struct seq *q = &d->seq[k];
    int s = b->n_seq++, page0 = k * pages_of(d, d->m->n_pos_max), end = q->n_done + n;
    bool is_expanded = q->n_done < q->n_prompt && q->n_prompt >= d->m->expand_min;
    b->seq_slot[s] = k;
    for (int i = 0; i < pages_of(d, end); i++) b->page[b->n_page++] = page0 + i;
    for (int pos = q->n_done; pos < end; pos++) {
        int r = b->n_row++;
        b->token[r] = pos < q->item->n_prompt ? q->prompt[pos] : HD_TRACE_ID_FIRST;
        if (pos >= q->n_prompt)
            b->token[r] += (int32_t)(hd_random_next(&d->random) % HD_TRACE_ID_COUNT);
        b->pos[r] = pos;
        b->row_seq[r] = s;
        b->kv_row[r] = page0 * b->page_tok + pos;
        b->form[r] = is_expanded ? HD_MLA_EXPANDED : HD_MLA_ABSORBED;
    }
    b->seq_row0[s + 1] = b->n_row;
    b->seq_page0[s + 1] = b->n_page;
    q->n_done = end;
    if (end >= q->n_prompt) b->out_row[b->n_out++] = b->n_row - 1;
}

/* What lies in the KV, and what is reserved for it, while a step runs. */
static void count_kv(struct driver *d, double seconds) {
    int64_t used = 0, allocated = 0;
    for (int i = 0; i < d->n; i++) {
        const struct seq *q = &d->seq[i];
        int n_tok = q->item->n_prompt + q->n_output;
        bool is_over = q->n_output >= q->item->n_output;
        if (!is_padded(d) && is_over) continue;
        used += is_over ? q->item->n_prompt + q->item->n_output : n_tok;
        allocated += is_padded(d) ? d->n_longest_prompt + d->n_longest_output
                                  : (int64_t)pages_of(d, n_tok) * d->m->batch->page_tok;
    }
    d->run->kv_used += seconds * (double)used;
    d->run->kv_allocated += seconds * (double)allocated;
    if (allocated > d->run->kv_peak_tok) d->run->kv_peak_tok = allocated;
}

static hd_status step(struct driver *d) {
    double from_s = since_start(d);
    HD_TRY(d->m->step(d->m->ctx));
    double now_s = since_start(d);
    count_kv(d, now_s - from_s);
    for (int i = 0; i < d->n; i++) {
        struct seq *q = &d->seq[i];
        if (q->n_done < q->n_prompt || q->n_output > q->n_done - q->n_prompt) continue;
        if (q->n_output++ == 0) q->request->first_s = now_s;
        if (q->n_output == q->item->n_output) q->request->end_s = now_s;
    }
    hd_batch_clear(d->m->batch);
    return HD_OK;
}

static hd_status run_prompts(struct driver *d) {
    hd_batch *b = d->m->batch;
    for (int k = 0; k < d->n;) {
        struct seq *q = &d->seq[k];
        int left = q->n_prompt - q->n_done, room = b->n_row_max - b->n_row;
        add_rows(d, k, left < room ? left : room);
        if (q->n_done == q->n_prompt) k++;
        if (b->n_row == b->n_row_max || k == d->n) HD_TRY(step(d));
    }
    return HD_OK;
}

static hd_status run_answers(struct driver *d) {
    for (int t = 1; t < d->n_longest_output; t++) {
        for (int k = 0; k < d->n; k++)
            if (is_padded(d) || t < d->seq[k].item->n_output) add_rows(d, k, 1);
        HD_TRY(step(d));
    }
    return HD_OK;
}

hd_status hd_static_run(const hd_static_machine *m, const hd_policy *p, const hd_trace *trace,
                        hd_compare_run *run) {
    struct driver d = {.m = m, .p = p, .trace = trace, .run = run, .random = trace->seed};
    d.start_ns = m->now_ns(m->ctx);
    d.seq = hd_alloc_zero((size_t)p->n_max, sizeof *d.seq);
    hd_batch_clear(m->batch);
    hd_status s = HD_OK;
    for (int first = 0; first < trace->n && s == HD_OK;) {
        int n = collect(&d, first);
        s = begin(&d, first, n);
        if (s == HD_OK) s = run_prompts(&d);
        if (s == HD_OK) s = run_answers(&d);
        for (int i = 0; i < n; i++) {
            run->request[first + i].n_output = d.seq[i].item->n_output;
            hd_free(d.seq[i].prompt);
        }
        first += n;
    }
    hd_free(d.seq);
    return s;
}
