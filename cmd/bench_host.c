/* `hadal bench`: what the host's side of a model costs apart from computing: how long it takes to
 * the first token and how much memory, and what the thread pool takes between ops and while there
 * is nothing to do. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/processor.h"
#include "base/sort.h"
#include "cmd/bench.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

void hd_bench_host_start(struct hd_bench_host *h) {
    *h = (struct hd_bench_host){.start_ns = hd_now_ns()};
}

hd_status hd_bench_host_first_token(struct hd_bench_host *h, struct hd_bench_model *m) {
    enum { PROMPT_TOK = 4 };
    struct rusage usage;
    h->load_s = (double)(hd_now_ns() - h->start_ns) / 1e9;
    (void)hd_bench_prompt(m, m->mo.n_pos_max < PROMPT_TOK ? m->mo.n_pos_max : PROMPT_TOK);
    h->first_token_s = (double)(hd_now_ns() - h->start_ns) / 1e9;
    if (getrusage(RUSAGE_SELF, &usage) == 0) h->peak_bytes = (double)usage.ru_maxrss * 1024;
    h->weight_bytes = (double)hd_model_weight_bytes(m->model);
    return m->status;
}

/* ---- the pool ---- */

static void nothing(void *ctx, int task, int thread) {
    (void)ctx;
    (void)task;
    (void)thread;
}

/* Nanoseconds of a run of one task a thread, with nothing to do. */
static hd_status time_empty_run(int n_thread, double *ns) {
    enum { N_BATCH = 21, N_RUN = 1000 };
    hd_pool *pool;
    double each[N_BATCH];
    HD_TRY(hd_pool_open(n_thread, &pool));
    for (int b = 0; b < N_BATCH; b++) {
        int64_t from_ns = hd_now_ns();
        for (int i = 0; i < N_RUN; i++) hd_pool_run(pool, n_thread, nothing, NULL);
        each[b] = (double)(hd_now_ns() - from_ns) / N_RUN;
    }
    hd_pool_close(pool);
    hd_sort_doubles(each, N_BATCH);
    *ns = each[N_BATCH / 2];
    return HD_OK;
}

static int64_t process_cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static double step_ms(struct hd_bench_model *m) {
    int64_t ns = 0;
    hd_bench_decode_many(m, 1, 1, 0, 1, &ns);
    return (double)ns / 1e6;
}

/* What is done behind idleness: a step of one sequence, or, without a model, memory is read. */
struct burst {
    struct hd_bench_model *m;
    uint64_t *memory;
};
enum { READ_BYTES = 256 << 20 };

static double burst_ms(const struct burst *b) {
    if (b->m) return step_ms(b->m);
    static volatile uint64_t sink;
    uint64_t sum[8] = {0};
    int64_t from_ns = hd_now_ns();
    for (size_t i = 0; i < READ_BYTES / sizeof *sum; i += 8)
        for (size_t k = 0; k < 8; k++) sum[k] += b->memory[i + k];
    for (int k = 1; k < 8; k++) sum[0] += sum[k];
    sink = sum[0];
    (void)sink;
    return (double)(hd_now_ns() - from_ns) / 1e6;
}

/* Medians of some in a row and of some behind idleness; returns the latter's share of a core. */
static double time_idleness(const struct burst *b, double *warm_ms, double *late_ms) {
    enum { N_ROUND = 5, N_WARM = 4 };
    const struct timespec pause = {.tv_nsec = 200000000};
    double warm[N_ROUND * N_WARM], late[N_ROUND];
    int64_t idle_ns = 0, cpu_ns = 0;
    for (int r = 0; r < N_ROUND; r++) {
        (void)burst_ms(b);
        for (int i = 0; i < N_WARM; i++) warm[r * N_WARM + i] = burst_ms(b);
        int64_t from_ns = hd_now_ns(), from_cpu_ns = process_cpu_ns();
        nanosleep(&pause, NULL);
        cpu_ns += process_cpu_ns() - from_cpu_ns;
        idle_ns += hd_now_ns() - from_ns;
        late[r] = burst_ms(b);
    }
    hd_sort_doubles(warm, HD_COUNT_OF(warm));
    hd_sort_doubles(late, HD_COUNT_OF(late));
    *warm_ms = warm[HD_COUNT_OF(warm) / 2];
    *late_ms = late[HD_COUNT_OF(late) / 2];
    return (double)cpu_ns / (double)idle_ns;
}

hd_status hd_bench_host_pool(struct hd_bench_host *h, struct hd_bench_model *m) {
    h->n_thread = m->o->threads > 0 ? m->o->threads : hd_cpu_available();
    HD_TRY(time_empty_run(h->n_thread, &h->empty_run_ns));
    h->idle_share = time_idleness(&(struct burst){.m = m}, &h->warm_ms, &h->late_ms);
    HD_TRY(m->status);
    void *memory;
    HD_TRY(hd_alloc_large(READ_BYTES, &memory));
    memset(memory, 1, READ_BYTES); /* else all are the page of zeros */
    (void)time_idleness(&(struct burst){.memory = memory}, &h->read_ms, &h->late_read_ms);
    hd_free(memory);
    return HD_OK;
}

/* ---- telling ---- */

void hd_bench_host_tell(const struct hd_bench_host *h) {
    printf(
        "first token %.2f s after the start (%.2f s to load %.2f GB), %.2f GB of memory at most\n",
        h->first_token_s, h->load_s, h->weight_bytes / 1e9, h->peak_bytes / 1e9);
    if (h->n_thread > 0)
        printf("pool of %d: %.0f ns a run of nothing; idle %.2f %% of a core; a step %.2f ms, "
               "behind 0.2 s of idleness %.2f ms; 256 MiB are read in %.2f ms, then in %.2f ms\n",
               h->n_thread, h->empty_run_ns, 100 * h->idle_share, h->warm_ms, h->late_ms,
               h->read_ms, h->late_read_ms);
}

static void number(hd_json *j, const char *key, double value) {
    hd_json_key(j, key);
    hd_json_num(j, value);
}

void hd_bench_host_json(const struct hd_bench_host *h, hd_json *j) {
    hd_json_key(j, "load");
    hd_json_object(j);
    number(j, "load_s", h->load_s);
    number(j, "first_token_s", h->first_token_s);
    number(j, "weight_bytes", h->weight_bytes);
    number(j, "peak_rss_bytes", h->peak_bytes);
    hd_json_object_end(j);
    if (h->n_thread == 0) return;
    hd_json_key(j, "pool");
    hd_json_object(j);
    number(j, "threads", h->n_thread);
    number(j, "empty_run_ns", h->empty_run_ns);
    number(j, "idle_core_share", h->idle_share);
    number(j, "warm_step_ms", h->warm_ms);
    number(j, "step_after_idle_ms", h->late_ms);
    number(j, "warm_read_ms", h->read_ms);
    number(j, "read_after_idle_ms", h->late_read_ms);
    hd_json_object_end(j);
}
