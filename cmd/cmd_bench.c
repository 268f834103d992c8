/* hadal bench: how fast the model runs, apart from any server: prompts of some lengths, and steps
 * of some batch sizes at some contexts, one behind the other as a server has them; each also as a
 * share of what the machine measured in the same run can do.
 *
 * Tokens are random (seeded), so that experts are chosen about evenly; the cache holds zeros except
 * for the rows that the steps write, which costs the same time as any other content. */
#include "base/clock.h"
#include "base/mem.h"
#include "base/sort.h"
#include "cmd/anatomy.h"
#include "cmd/bench.h"
#include "cmd/bench_load.h"
#include "cmd/compare.h"
#include "engine/sizes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { RUN_MAX = 1000 };

struct bench {
    struct hd_bench_model m;
    hd_dev_roofline roof;             /* zeros when the backend does not tell */
    double fixed_bytes, expert_bytes; /* weights read in every step; all routed experts */
    double active_params;             /* a token's multiply-adds outside of attention */
    struct hd_bench_list prompts, batches, contexts;
    hd_json *json; /* NULL: lines for people */
};

/* One measured point: seconds of its runs, ascending. */
struct point {
    int n_run, n_tok;
    double seconds[RUN_MAX];
    double flop, bytes; /* of one run */
};

/* ---- options ---- */

static int larger(int a, int b) { return a > b ? a : b; }

/* ---- the model ---- */

static hd_status count_weights(struct bench *b) {
    hd_canon *k;
    HD_TRY(hd_canon_new(b->m.checkpoint, &b->m.hp, &k));
    for (size_t i = 0; i < hd_canon_count(k); i++) {
        const hd_canon_tensor *t = hd_canon_at(k, i);
        enum hd_part part = hd_part_of(t->name);
        double bytes = (double)hd_format_bytes(t->format, (size_t)hd_canon_params(t));
        if (part == HD_PART_EXPERTS)
            b->expert_bytes += bytes;
        else if (part != HD_PART_EMBEDDING)
            b->fixed_bytes += bytes;
        if (part != HD_PART_EMBEDDING && part != HD_PART_NORMS)
            b->active_params += (double)hd_canon_active_params(t, &b->m.hp);
    }
    hd_canon_free(k);
    return HD_OK;
}

static hd_status open_all(struct bench *b, const struct hd_options *o, const char *model) {
    HD_TRY(hd_bench_open(&b->m, o, model));
    HD_TRY(count_weights(b));
    if (b->m.dev.ops->roofline) HD_TRY(b->m.dev.ops->roofline(b->m.dev.ctx, &b->roof));
    if (o->bench_products) return HD_OK;
    int n_pos = larger(hd_bench_largest(&b->prompts), hd_bench_largest(&b->contexts));
    return hd_bench_open_model(&b->m, o->max_num_batched_tokens, hd_bench_largest(&b->batches),
                               n_pos);
}

/* n_run prompts of n tokens; or as many steps of n sequences of that context, one behind the other
 * as a server has them. */
static void repeat(struct bench *b, int n, int context, int n_run, double *seconds) {
    if (context > 0) {
        int64_t ns[RUN_MAX] = {0};
        hd_bench_decode_many(&b->m, n, context, n_run, ns);
        for (int i = 0; i < n_run; i++) seconds[i] = (double)ns[i] / 1e9;
    } else {
        for (int i = 0; i < n_run; i++) seconds[i] = hd_bench_prompt(&b->m, n);
    }
}

/* Runs to warm up, which say how many fill --seconds. */
static struct point measure(struct bench *b, int n, int context) {
    enum { WARM_UP = 2, LEAST = 3 };
    struct point p = {.n_tok = n};
    repeat(b, n, context, WARM_UP, p.seconds);
    if (b->m.status != HD_OK) return p;
    double n_fit = ceil(b->m.o->bench_seconds / p.seconds[WARM_UP - 1]);
    p.n_run = n_fit > RUN_MAX ? RUN_MAX : n_fit > LEAST ? (int)n_fit : LEAST;
    repeat(b, n, context, p.n_run, p.seconds);
    hd_sort_doubles(p.seconds, (size_t)p.n_run);
    return p;
}

/* Of n_query_pos pairs of a query and a position. Only latent attention has a form that reads the
 * latent itself; others have keys and values of a head's size. */
static double attention_flop(const struct bench *b, bool is_expanded, double n_query_pos) {
    const hd_hparams *h = &b->m.hp;
    bool has_heads = is_expanded || h->n_c == 0;
    double each = has_heads ? h->n_nope + h->n_rope + h->n_v : 2 * h->n_c + h->n_rope;
    return 2 * each * n_query_pos * h->n_head * h->n_layer;
}

/* Weights that a step of n rows reads, with even routing (1 - (1 - k/E)^n of the experts). */
static double step_bytes(const struct bench *b, int n) {
    double hit = 0;
    if (b->m.hp.n_expert > 0)
        hit = 1 - pow(1 - (double)b->m.hp.n_expert_used / b->m.hp.n_expert, n);
    return b->fixed_bytes + hit * b->expert_bytes;
}

/* ---- telling ---- */

static void json_numbers(hd_json *j, const char *const *keys, const double *values, int n) {
    hd_json_object(j);
    for (int i = 0; i < n; i++) {
        hd_json_key(j, keys[i]);
        hd_json_num(j, values[i]);
    }
    hd_json_object_end(j);
}

static void tell(struct bench *b, const struct point *p, int context) {
    double median = p->seconds[p->n_run / 2], best = p->seconds[0];
    double gflops = p->flop / median / 1e9, gbytes = p->bytes / median / 1e9;
    double of_fma = b->roof.flops > 0 ? 100 * gflops * 1e9 / b->roof.flops : 0;
    double of_read = b->roof.read_bytes > 0 ? 100 * gbytes * 1e9 / b->roof.read_bytes : 0;
    if (b->json) {
        static const char *const keys[] = {"tokens",       "context",           "runs",
                                           "tokens_per_s", "tokens_per_s_best", "gflops_s",
                                           "share_of_fma", "weights_gb_s",      "share_of_read"};
        double values[] = {p->n_tok, context,      p->n_run, p->n_tok / median, p->n_tok / best,
                           gflops,   of_fma / 100, gbytes,   of_read / 100};
        json_numbers(b->json, keys, values, (int)HD_COUNT_OF(keys));
        return;
    }
    printf("  %6d ", p->n_tok);
    if (context > 0)
        printf("%8d ", context);
    else
        printf("%8s ", "");
    printf("%10.1f %10.1f %9.1f %5.0f %% %8.2f %5.0f %%\n", p->n_tok / median, p->n_tok / best,
           gflops, of_fma, gbytes, of_read);
}

static void head_line(const struct bench *b, const char *what, const char *first,
                      const char *second) {
    if (b->json) return;
    printf("%s\n  %6s %8s %10s %10s %9s %7s %8s %7s\n", what, first, second, "tok/s", "best",
           "GFLOP/s", "of FMA", "GB/s", "of read");
}

static void json_array(struct bench *b, const char *key) {
    if (!b->json) return;
    hd_json_key(b->json, key);
    hd_json_array(b->json);
}

static hd_status run_all(struct bench *b) {
    head_line(b, "prompts (one sequence)", "tokens", "");
    json_array(b, "prompts");
    for (int i = 0; i < b->prompts.n; i++) {
        int n = b->prompts.v[i], budget = b->m.o->max_num_batched_tokens;
        struct point p = measure(b, n, 0);
        HD_TRY(b->m.status);
        bool is_expanded = n >= hd_engine_expand_min(&b->m.hp);
        double head = (double)b->m.hp.n_vocab * b->m.hp.d_model;
        p.flop = 2 * ((b->active_params - head) * n + head);
        p.flop += attention_flop(b, is_expanded, 0.5 * n * (n + 1.0));
        int n_step = (n + budget - 1) / budget;
        p.bytes = step_bytes(b, n < budget ? n : budget) * n_step;
        tell(b, &p, 0);
    }
    if (b->json) hd_json_array_end(b->json);
    head_line(b, "steps (one token of each sequence, one step behind the other)", "batch",
              "context");
    json_array(b, "steps");
    for (int c = 0; c < b->contexts.n; c++) {
        for (int i = 0; i < b->batches.n; i++) {
            int n = b->batches.v[i];
            struct point p = measure(b, n, b->contexts.v[c]);
            HD_TRY(b->m.status);
            p.flop = 2 * b->active_params * n;
            p.flop += attention_flop(b, false, (double)n * b->contexts.v[c]);
            p.bytes = step_bytes(b, n);
            p.bytes += (double)n * b->contexts.v[c] *
                       (double)hd_hparams_kv_bytes(&b->m.hp, b->m.mo.kv_type);
            tell(b, &p, b->contexts.v[c]);
        }
    }
    if (b->json) hd_json_array_end(b->json);
    return HD_OK;
}

static void describe(struct bench *b, const char *model) {
    hd_buf device;
    hd_buf_init(&device, 1024);
    b->m.dev.ops->describe(b->m.dev.ctx, &device);
    const char *kv = hd_kv_type_name(b->m.mo.kv_type), *name = b->m.dev.ops->name;
    if (b->json) {
        const char *const text[][2] = {
            {"model", model}, {"backend", name}, {"device", device.ptr}, {"kv_cache_dtype", kv}};
        for (size_t i = 0; i < HD_COUNT_OF(text); i++) {
            hd_json_key(b->json, text[i][0]);
            hd_json_str_c(b->json, text[i][1]);
        }
        static const char *const keys[] = {"fma_gflops_s", "read_gb_s", "read_buffer_mb"};
        double values[] = {b->roof.flops / 1e9, b->roof.read_bytes / 1e9,
                           (double)b->roof.buffer_bytes / 1e6};
        hd_json_key(b->json, "machine");
        json_numbers(b->json, keys, values, 3);
    } else {
        if (b->m.model)
            printf("%s on %s: %s; KV %s, pages of %d, %d tokens a step\n", model, name, device.ptr,
                   kv, b->m.mo.page_tok, b->m.o->max_num_batched_tokens);
        else
            printf("%s: %s\n", name, device.ptr);
        if (b->roof.flops > 0)
            printf("machine: %.1f GFLOP/s %s, %.1f GB/s read (%.0f MB)\n", b->roof.flops / 1e9,
                   b->roof.flop_name, b->roof.read_bytes / 1e9, (double)b->roof.buffer_bytes / 1e6);
    }
    hd_buf_fini(&device);
}

static hd_status parse_lists(struct bench *b, const struct hd_options *o) {
    HD_TRY(hd_bench_parse_list("prompt-lengths", o->bench_prompts, &b->prompts));
    HD_TRY(hd_bench_parse_list("batch-sizes", o->bench_batches, &b->batches));
    return hd_bench_parse_list("contexts", o->bench_contexts, &b->contexts);
}

static int run_cost(const struct hd_options *o, const char *model) {
    struct hd_bench_model m;
    hd_status s = hd_bench_open(&m, o, model);
    if (s == HD_OK) s = hd_bench_cost(&m);
    hd_bench_close(&m);
    return s == HD_OK ? 0 : hd_command_error(&hd_cmd_bench);
}

static int run_points(const struct hd_options *o, const char *model) {
    struct bench b = {0};
    hd_buf out;
    hd_buf_init(&out, 1 << 20);
    hd_json json = hd_json_begin(&out);
    if (o->json) {
        b.json = &json;
        hd_json_object(&json);
    }
    hd_status s = parse_lists(&b, o);
    if (s == HD_OK) s = open_all(&b, o, model);
    if (s == HD_OK) {
        describe(&b, model);
        if (o->bench_products)
            s = hd_bench_products(&(struct hd_bench_products){
                .dev = &b.m.dev, .roof = &b.roof, .seconds = o->bench_seconds, .json = b.json});
        else
            s = run_all(&b);
    }
    if (s == HD_OK && o->json) {
        hd_json_object_end(&json);
        printf("%s\n", out.ptr);
    }
    hd_buf_fini(&out);
    hd_bench_close(&b.m);
    return s == HD_OK ? 0 : hd_command_error(&hd_cmd_bench);
}

static int run(const struct hd_options *o, int n_arg, char **arg) {
    if (n_arg > 0 && strcmp(arg[0], "serve") == 0) return hd_bench_serve(o, n_arg);
    if (n_arg > 0 && strcmp(arg[0], "matrix") == 0) return hd_bench_matrix(o, n_arg, arg);
    if (n_arg > 0 && strcmp(arg[0], "compare") == 0) return hd_bench_compare(o, n_arg, arg);
    if (n_arg > 1) return hd_command_usage(&hd_cmd_bench, "one model at a time");
    const char *model = n_arg == 1 ? arg[0] : o->model;
    return o->bench_save_cost ? run_cost(o, model) : run_points(o, model);
}

const struct hd_command hd_cmd_bench = {
    .name = "bench",
    .summary = "measure speed: prompts and steps, as a share of the machine's own limits",
    .usage = "[options] [MODEL | serve | compare [MODEL] | matrix [MODEL]]",
    .details =
        "Runs the model alone, without server and scheduler: prompts of --prompt-lengths, then\n"
        "single steps of --batch-sizes sequences at --contexts. tok/s is of the median run.\n"
        "'of FMA' and 'of read' compare with float32 multiply-adds and streaming reads measured\n"
        "on the same threads just before; weights and KV read are counted, with even routing.\n\n"
        "--products times the weight product alone, on random weights.\n\n"
        "'hadal bench serve' loads a running server (any with OpenAI's API) instead, over HTTP:\n"
        "requests come by --request-rate or a --trace whatever the answers do, and times count\n"
        "from when a request should have come. --model names the server's; by default its "
        "first.\n\n"
        "'hadal bench compare' runs one load under several policies of batching, with the model "
        "in\n"
        "this process (or --simulated): what continuous batching over pages gains over padded\n"
        "batches that are collected for 50 ms and run to their end.\n\n"
        "'hadal bench matrix' times the attention switches on and off, alone and together: the\n"
        "largest of --prompt-lengths, the first and the largest of --batch-sizes at the largest "
        "of\n"
        "--contexts; 'difference' is of the logits, against both off. They act on a GPU.\n\n"
        "--save-cost measures step times for 'hadal sim'.\n\n"
        "  hadal bench mini --threads 1\n"
        "  hadal bench --products --seconds 0.1\n"
        "  hadal bench v2-lite.gguf --batch-sizes 1,8,32 --contexts 1024 --json\n"
        "  hadal bench serve --request-rate 8 --num-prompts 200 --goodput ttft:200,tpot:50\n"
        "  hadal bench compare --request-rate 0 --random-range-ratio 0.8 --seed 1\n"
        "  hadal bench matrix v2-lite.gguf --backend cuda --prompt-lengths 8192 --contexts 8192\n"
        "  hadal bench mini --save-cost mini.cost\n",
    .run = run,
};
