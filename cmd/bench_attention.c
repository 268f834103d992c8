/* `hadal bench --attention`: latent attention alone, with DeepSeek-V2-Lite's 16 heads and V3's 128,
 * and with 8, half of V2-Lite's: tokens that are decoded, in latent space, and prompts, whose keys
 * and values are expanded. */
#include "cmd/bench.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/sort.h"
#include "engine/memory.h"

#include <stdio.h>
#include <string.h>

enum { N_NOPE = 128, N_ROPE = 64, N_C = 512, N_V = 128, N_RANDOM = 256 };
static const int heads[] = {8, 16, 128};
enum { N_HEAD_MOST = 128 };

typedef struct point {
    int n_head, n_seq, n_row, n_pos; /* rows and positions of each sequence */
    enum hd_mla_form form;
    bool is_shared;    /* the sequences share all pages but each one's last */
    bool is_scattered; /* no page of a sequence follows the one before it in the cache */
} point;

typedef struct bench {
    const struct hd_bench_attention *b;
    hd_kv_layout kv;
    int n_row, n_seq, n_pos, n_page; /* the most of all points */
    hd_batch batch;
    hd_weight k_b, v_b;
    const void *k_mat[N_HEAD_MOST], *v_mat[N_HEAD_MOST];
    void *weights, *cache, *q, *out;
} bench;

static int pages_of(const bench *x, int n_pos) {
    return (n_pos + x->b->page_tok - 1) / x->b->page_tok;
}

/* Page i of a cache of n in an order without neighbours. */
static int scattered(int i, int n) {
    int n_column = 1;
    while (n_column * n_column < n) n_column++;
    int n_row = n / n_column; /* by columns of a table, and the rest as it is */
    return i < n_row * n_column ? i % n_row * n_column + i / n_row : i;
}

/* Pages as a server deals them to sequences that grow one after another, or scattered. */
static void make_batch(bench *x, const point *p) {
    hd_batch *b = &x->batch;
    int n_page = pages_of(x, p->n_pos);
    hd_batch_clear(b);
    b->n_seq = p->n_seq, b->n_row = p->n_seq * p->n_row, b->n_page = p->n_seq * n_page;
    for (int s = 0; s < p->n_seq; s++) {
        int32_t *page = b->page + s * n_page;
        b->seq_slot[s] = s;
        b->seq_row0[s + 1] = (s + 1) * p->n_row, b->seq_page0[s + 1] = (s + 1) * n_page;
        for (int i = 0; i < n_page; i++) {
            page[i] = p->is_shared && i < n_page - 1 ? i : s * n_page + i;
            if (p->is_scattered) page[i] = scattered(page[i], x->n_page);
        }
        for (int i = 0; i < p->n_row; i++) {
            int row = s * p->n_row + i, pos = p->n_pos - p->n_row + i;
            b->pos[row] = pos, b->row_seq[row] = s, b->form[row] = (uint8_t)p->form;
            b->kv_row[row] = page[pos / b->page_tok] * b->page_tok + pos % b->page_tok;
        }
    }
    hd_batch_check(b);
}

static void run(const bench *x, const point *p) {
    x->b->dev->ops->mla_attn(x->b->dev->ctx, &(struct hd_op_mla_attn){.batch = &x->batch,
                                                                      .q = x->q,
                                                                      .kv = x->kv,
                                                                      .cache = x->cache,
                                                                      .k_b = &x->k_b,
                                                                      .v_b = &x->v_b,
                                                                      .n_head = p->n_head,
                                                                      .n_nope = N_NOPE,
                                                                      .n_rope = N_ROPE,
                                                                      .n_c = N_C,
                                                                      .n_v = N_V,
                                                                      .scale = 0.1f,
                                                                      .out = x->out});
}

/* Seconds of the median run of those that fit, at least three. */
static double median_run(bench *x, const point *p) {
    enum { MOST = 1000 };
    double took[MOST], sum = 0;
    int n = 0;
    make_batch(x, p);
    for (; n < 3 || (sum < x->b->seconds && n < MOST); n++) {
        int64_t start = hd_now_ns();
        run(x, p);
        took[n] = (double)(hd_now_ns() - start) / 1e9;
        sum += took[n];
    }
    hd_sort_doubles(took, (size_t)n);
    return took[n / 2];
}

static void time_point(bench *x, const point *p) {
    const struct hd_bench_attention *b = x->b;
    double pairs = 0, heads_each = 2.0 * p->n_head, s = median_run(x, p), flops, rate = 0, read = 0;
    int n_read = (p->is_shared ? 1 : p->n_seq) * p->n_pos;
    for (int i = 0; i < p->n_row; i++) pairs += (double)p->n_seq * (p->n_pos - i);
    if (p->form == HD_MLA_EXPANDED) {
        flops = pairs * heads_each * (N_NOPE + N_ROPE + N_V) +
                (double)n_read * heads_each * N_C * (N_NOPE + N_V);
    } else {
        /* The products with k_b and v_b apart: what the same rows take without a context. */
        point none = *p;
        none.n_pos = none.n_row;
        s -= median_run(x, &none);
        flops = pairs * heads_each * (2 * N_C + N_ROPE);
    }
    double bytes = (double)hd_kv_bytes(&x->kv, (size_t)n_read);
    if (b->roof->flops > 0) rate = flops / s / b->roof->flops;
    if (b->roof->read_bytes > 0) read = bytes / s / b->roof->read_bytes;
    if (!b->json) {
        printf("  %-7s %3d heads, %2d x %5d tokens behind %5d%s: %9.3f ms, %7.1f GFLOP/s (%3.0f "
               "%%), %6.2f GB/s (%3.0f %%)\n",
               p->form == HD_MLA_EXPANDED ? "prompt" : "decode", p->n_head, p->n_seq, p->n_row,
               p->n_pos - p->n_row,
               p->is_shared      ? ", shared"
               : p->is_scattered ? ", scattered"
                                 : "",
               s * 1e3, flops / s / 1e9, 100 * rate, bytes / s / 1e9, 100 * read);
        return;
    }
    static const char *const keys[] = {"heads",        "sequences", "tokens",       "behind",
                                       "shared",       "scattered", "seconds",      "gflops_s",
                                       "share_of_fma", "gb_s",      "share_of_read"};
    double values[] = {p->n_head,    p->n_seq,        p->n_row, p->n_pos - p->n_row,
                       p->is_shared, p->is_scattered, s,        flops / s / 1e9,
                       rate,         bytes / s / 1e9, read};
    hd_json_object(b->json);
    hd_json_key(b->json, "form");
    hd_json_str_c(b->json, p->form == HD_MLA_EXPANDED ? "prompt" : "decode");
    for (size_t i = 0; i < HD_COUNT_OF(keys); i++) {
        hd_json_key(b->json, keys[i]);
        hd_json_num(b->json, values[i]);
    }
    hd_json_object_end(b->json);
}

static hd_status size_up(bench *x) {
    const struct hd_bench_attention *b = x->b;
    int depth = hd_bench_largest(b->depths), prompt = hd_bench_largest(b->prompts);
    x->n_seq = hd_bench_largest(b->batches);
    x->n_row = prompt > x->n_seq ? prompt : x->n_seq;
    x->n_pos = depth + prompt;
    double n_page = (double)x->n_seq * pages_of(x, depth + 1);
    if (n_page < pages_of(x, x->n_pos)) n_page = pages_of(x, x->n_pos);
    double n_byte = n_page * (double)hd_kv_bytes(&x->kv, (size_t)b->page_tok) +
                    (double)x->n_row * N_HEAD_MOST * (N_NOPE + N_ROPE + N_V) * sizeof(float);
    double free_bytes = (double)hd_memory_free_bytes("");
    if (n_byte > free_bytes || n_page * b->page_tok > INT32_MAX)
        return HD_FAIL(NO_MEMORY, "--attention: a cache and queries of %.1f GB, found %.1f GB",
                       n_byte / 1e9, free_bytes / 1e9);
    x->n_page = (int)n_page;
    return HD_OK;
}

/* Memory, all of it written. */
static hd_status open_bench(bench *x) {
    const hd_dev_ops *ops = x->b->dev->ops;
    void *ctx = x->b->dev->ctx;
    size_t n_row = (size_t)x->n_page * (size_t)x->b->page_tok, w = N_C + N_ROPE;
    size_t n_q = (size_t)x->n_row * N_HEAD_MOST * (N_NOPE + N_ROPE);
    size_t row_bytes = hd_kv_bytes(&x->kv, 1), n_mat = (size_t)N_C * N_NOPE;
    if (n_q < N_RANDOM * w) n_q = N_RANDOM * w; /* cache and weights begin as these values, too */
    _Static_assert(N_NOPE == N_V, "k_b and v_b read the same random weights");
    HD_TRY(ops->reserve(ctx, &(hd_dev_limits){.n_row = x->n_row,
                                              .n_seq = x->n_seq,
                                              .n_out = 1,
                                              .d_model = 64,
                                              .n_vocab = 1,
                                              .d_ff = 64,
                                              .d_expert = 32,
                                              .n_expert = 1,
                                              .n_used = 1,
                                              .n_head = N_HEAD_MOST,
                                              .n_nope = N_NOPE,
                                              .n_rope = N_ROPE,
                                              .n_c = N_C,
                                              .n_v = N_V,
                                              .q_lora = 64,
                                              .n_pos = x->n_pos}));
    HD_TRY(ops->alloc(ctx, hd_kv_bytes(&x->kv, n_row), &x->cache));
    HD_TRY(ops->alloc(ctx, n_q * sizeof(float), &x->q));
    HD_TRY(ops->alloc(ctx, (size_t)x->n_row * N_HEAD_MOST * N_V * sizeof(float), &x->out));
    HD_TRY(ops->alloc(ctx, n_mat * sizeof(uint16_t), &x->weights));
    hd_bench_fill(x->q, n_q, 1);
    for (size_t i = 0; i < n_row && i < N_RANDOM; i++)
        hd_kv_encode(&x->kv, (const float *)x->q + i * w, (char *)x->cache + i * row_bytes);
    for (size_t i = N_RANDOM; i < n_row; i++)
        memcpy((char *)x->cache + i * row_bytes, (char *)x->cache + i % N_RANDOM * row_bytes,
               row_bytes);
    hd_format_get(HD_BF16)->encode(x->q, x->weights, n_mat);
    for (int h = 0; h < N_HEAD_MOST; h++) x->k_mat[h] = x->v_mat[h] = x->weights;
    x->k_b = (hd_weight){
        .format = HD_BF16, .n_in = N_NOPE, .n_out = N_C, .n_mat = N_HEAD_MOST, .mat = x->k_mat};
    x->v_b = (hd_weight){
        .format = HD_BF16, .n_in = N_C, .n_out = N_V, .n_mat = N_HEAD_MOST, .mat = x->v_mat};
    hd_batch_init(&x->batch, x->n_row, x->n_seq, x->n_page, x->b->page_tok);
    return HD_OK;
}

static void close_bench(bench *x) {
    void *const all[] = {x->cache, x->q, x->out, x->weights};
    for (size_t i = 0; i < HD_COUNT_OF(all); i++)
        if (all[i]) x->b->dev->ops->free(x->b->dev->ctx, all[i]);
    hd_batch_fini(&x->batch);
}

static void time_all(bench *x) {
    const struct hd_bench_attention *b = x->b;
    for (size_t h = 0; h < HD_COUNT_OF(heads); h++)
        for (int d = 0; d < b->depths->n; d++) {
            point p = {.n_head = heads[h], .n_row = 1, .n_pos = b->depths->v[d] + 1};
            for (int i = 0; i < 3 * b->batches->n; i++) {
                p.n_seq = b->batches->v[i / 3];
                p.is_shared = i % 3 == 1, p.is_scattered = i % 3 == 2;
                if (p.n_seq > 1 || !p.is_shared) time_point(x, &p);
            }
            p.n_seq = 1, p.is_shared = p.is_scattered = false, p.form = HD_MLA_EXPANDED;
            for (int i = 0; i < b->prompts->n; i++) {
                p.n_row = b->prompts->v[i], p.n_pos = b->depths->v[d] + p.n_row;
                time_point(x, &p);
            }
        }
}

hd_status hd_bench_attention(const struct hd_bench_attention *b) {
    bench x = {.b = b, .kv = hd_kv_latent(b->kv_type, N_C, N_ROPE)};
    if (hd_dev_has_memory(b->dev))
        return HD_FAIL(UNSUPPORTED, "--attention: backend %s has memory of its own; expected cpu",
                       b->dev->ops->name);
    hd_status s = size_up(&x);
    if (s == HD_OK) s = open_bench(&x);
    if (s == HD_OK) {
        if (b->json) {
            hd_json_key(b->json, "attention");
            hd_json_array(b->json);
        } else {
            printf("latent attention, %s cache, median run (shares of %s, of streaming reads)\n",
                   hd_kv_type_name(b->kv_type),
                   b->roof->flop_name ? b->roof->flop_name : "what is not known");
        }
        time_all(&x);
        if (b->json) hd_json_array_end(b->json);
    }
    close_bench(&x);
    return s;
}
