/* The model that `hadal bench` times: opened without an engine, its batches made by hand. */
#include "cmd/bench.h"

#include "base/clock.h"
#include "engine/load.h"
#include "engine/sizes.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

hd_status hd_bench_parse_list(const char *flag, const char *text, int least,
                              struct hd_bench_list *out) {
    const char *p = text;
    out->n = 0;
    for (;;) {
        char *end;
        long v = strtol(p, &end, 10);
        if (end == p || v < least || v > 1 << 20 || (*end != 0 && *end != ',') ||
            out->n == HD_BENCH_LIST_MAX)
            return HD_FAIL(INVALID, "--%s: expected at most %d numbers from %d, found \"%s\"", flag,
                           HD_BENCH_LIST_MAX, least, text);
        out->v[out->n++] = (int)v;
        if (*end == 0) return HD_OK;
        p = end + 1;
    }
}

int hd_bench_largest(const struct hd_bench_list *l) {
    int top = 0;
    for (int i = 0; i < l->n; i++) top = l->v[i] > top ? l->v[i] : top;
    return top;
}

void hd_bench_fill(float *p, size_t n, float scale) {
    uint64_t seed = 1;
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        p[i] = ((float)(seed >> 40) / 8388608.0f - 1) * scale;
    }
}

hd_status hd_work_clock_init(hd_work_clock *c, const struct hd_options *o) {
    *c = (hd_work_clock){.is_processor = strcmp(o->bench_clock, "processor") == 0};
    if (!c->is_processor || (o->threads == 1 && strcmp(o->backend, "cuda") != 0)) return HD_OK;
    return HD_FAIL(INVALID, "--clock processor: expected --threads 1 and a backend on the host");
}

int64_t hd_work_clock_now(const hd_work_clock *c) {
    return c->is_processor ? hd_thread_cpu_ns() + c->ahead_ns : hd_now_ns();
}

void hd_work_clock_wait(hd_work_clock *c, int64_t until_ns) {
    int64_t ns = until_ns - hd_work_clock_now(c);
    if (ns <= 0) return;
    if (c->is_processor) {
        c->ahead_ns += ns;
        return;
    }
    struct timespec t = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) != 0) continue;
}

hd_status hd_bench_open(struct hd_bench_model *b, const struct hd_options *o, const char *model) {
    hd_engine_config config = {.model = model};
    hd_dev_config dc;
    *b = (struct hd_bench_model){.o = o, .seed = 1};
    HD_TRY(hd_work_clock_init(&b->clock, o));
    HD_TRY(hd_dev_config_from(o, &dc));
    HD_TRY(hd_engine_open_checkpoint(&config, &b->checkpoint));
    HD_TRY(hd_hparams_read(b->checkpoint, &b->hp));
    HD_TRY(hd_dev_open(o->backend, &dc, &b->dev));
    return hd_engine_kv_type(o->kv_cache_dtype, b->checkpoint, &b->dev, &b->mo.kv_type);
}

hd_status hd_bench_open_model(struct hd_bench_model *b, int n_row, int n_seq, int n_pos,
                              int n_page) {
    if (n_pos > b->hp.n_ctx)
        return HD_FAIL(CONTEXT, "%d tokens of context: the model has %d", n_pos, b->hp.n_ctx);
    hd_dev_config host;
    HD_TRY(hd_dev_config_from(b->o, &host));
    int page_tok = b->o->block_size, seq_pages = (n_pos + page_tok - 1) / page_tok;
    b->mo = (hd_model_options){.n_row_max = n_row > n_seq ? n_row : n_seq,
                               .n_seq_max = n_seq,
                               .n_out_max = n_seq,
                               .n_pos_max = n_pos,
                               .n_page = n_page > 0 ? n_page : seq_pages * n_seq,
                               .page_tok = page_tok,
                               .kv_type = b->mo.kv_type,
                               .repack_cache = b->o->repack_cache};
    HD_TRY(hd_place_find(&(hd_place_ask){.n_rank = 1,
                                         .checkpoint = b->checkpoint,
                                         .dev = &b->dev,
                                         .device_gib = b->o->gpu_memory_gib,
                                         .kv_bytes = (uint64_t)b->mo.n_page * (uint64_t)page_tok *
                                                     hd_hparams_kv_bytes(&b->hp, b->mo.kv_type),
                                         .plan = b->o->offload_plan,
                                         .host = &host},
                         &b->place));
    hd_place_apply(&b->place, &b->mo);
    HD_TRY(hd_model_open(b->checkpoint, &b->dev, &b->mo, hd_load_progress, NULL, &b->model));
    hd_place_log(&b->place, b->model);
    HD_TRY(hd_model_rehearse(b->model, NULL, NULL));
    hd_batch_init(&b->batch, b->mo.n_row_max, n_seq, b->mo.n_page, page_tok);
    return HD_OK;
}

void hd_bench_close_model(struct hd_bench_model *b) {
    if (b->model) hd_batch_fini(&b->batch);
    hd_model_close(b->model);
    hd_place_close(&b->place);
    b->model = NULL;
}

void hd_bench_close(struct hd_bench_model *b) {
    hd_bench_close_model(b);
    hd_dev_close(&b->dev);
    hd_checkpoint_close(b->checkpoint);
}

static int32_t random_token(struct hd_bench_model *b) {
    b->seed = b->seed * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((b->seed >> 33) % (uint64_t)b->hp.n_vocab);
}

void hd_bench_add_seq(struct hd_bench_model *b, int first, int n, enum hd_mla_form form,
                      bool has_out) {
    hd_batch *t = &b->batch;
    int s = t->n_seq++, end = first + n, n_page = (end + t->page_tok - 1) / t->page_tok;
    HD_ASSERT(s < t->n_seq_max && t->n_page + n_page <= b->mo.n_page);
    t->seq_slot[s] = s;
    /* One after the other, as a server deals them to a prompt. */
    for (int i = 0; i < n_page; i++, t->n_page++) t->page[t->n_page] = t->n_page;
    for (int pos = first; pos < end; pos++) {
        int r = t->n_row++;
        t->token[r] = random_token(b);
        t->pos[r] = pos;
        t->row_seq[r] = s;
        t->kv_row[r] = t->page[t->seq_page0[s] + pos / t->page_tok] * t->page_tok;
        t->kv_row[r] += pos % t->page_tok;
        t->form[r] = (uint8_t)form;
    }
    t->seq_row0[s + 1] = t->n_row;
    t->seq_page0[s + 1] = t->n_page;
    if (!has_out) return;
    t->draw[t->n_out] = (hd_draw){.temperature = 0};
    t->out_row[t->n_out++] = t->n_row - 1;
}

double hd_bench_step(struct hd_bench_model *b) {
    hd_model_out out;
    int64_t start = hd_work_clock_now(&b->clock);
    hd_status s = hd_model_enqueue(b->model, &b->batch);
    if (s == HD_OK) s = hd_model_fetch(b->model, &out);
    if (s != HD_OK) b->status = s;
    return (double)(hd_work_clock_now(&b->clock) - start) / 1e9;
}

double hd_bench_prompt(struct hd_bench_model *b, int n_tok) {
    enum hd_mla_form form =
        n_tok >= hd_engine_expand_min(&b->hp) ? HD_MLA_EXPANDED : HD_MLA_ABSORBED;
    double seconds = 0;
    for (int at = 0, n; at < n_tok && b->status == HD_OK; at += n) {
        n = n_tok - at < b->o->max_num_batched_tokens ? n_tok - at : b->o->max_num_batched_tokens;
        hd_batch_clear(&b->batch);
        hd_bench_add_seq(b, at, n, form, at + n == n_tok);
        seconds += hd_bench_step(b);
    }
    return seconds;
}

static void fill_decode(struct hd_bench_model *b, int n_seq, int context) {
    hd_batch_clear(&b->batch);
    for (int s = 0; s < n_seq; s++) hd_bench_add_seq(b, context - 1, 1, HD_MLA_ABSORBED, true);
}

void hd_bench_decode_many(struct hd_bench_model *b, int n_seq, int context, int growth, int n_step,
                          int64_t *ns) {
    int n_ahead = hd_dev_has_memory(&b->dev) ? HD_DEV_STEPS : 1, n_enqueued = 0;
    int64_t last_ns = hd_work_clock_now(&b->clock);
    for (int i = 0; i < n_step && b->status == HD_OK; i++) {
        for (; n_enqueued < n_step && n_enqueued < i + n_ahead && b->status == HD_OK;
             n_enqueued++) {
            fill_decode(b, n_seq, context + n_enqueued * growth);
            b->status = hd_model_enqueue(b->model, &b->batch);
        }
        hd_model_out out;
        if (b->status == HD_OK) b->status = hd_model_fetch(b->model, &out);
        int64_t now_ns = hd_work_clock_now(&b->clock);
        ns[i] = now_ns - last_ns;
        last_ns = now_ns;
    }
}
