/* hadal bench: how fast a model runs, apart from any server (bench_speed.c); and the words that
 * make it measure something else. */
#include "cmd/bench.h"
#include "cmd/bench_load.h"
#include "cmd/compare.h"

#include <stdio.h>
#include <string.h>

static hd_status run_cost(const struct hd_options *o, const char *model) {
    struct hd_bench_model m;
    hd_status s = hd_bench_open(&m, o, model);
    if (s == HD_OK) s = hd_bench_cost(&m);
    hd_bench_close(&m);
    return s;
}

static hd_status run_attention(const struct hd_bench_model *m, const hd_dev_roofline *roof,
                               hd_json *j) {
    const struct hd_options *o = m->o;
    struct hd_bench_list prompts, depths, batches;
    HD_TRY(hd_bench_parse_list("prompt", o->bench_prompts, 1, &prompts));
    HD_TRY(hd_bench_parse_list("depth", o->bench_depths, 0, &depths));
    HD_TRY(hd_bench_parse_list("batch", o->bench_batches, 1, &batches));
    return hd_bench_attention(&(struct hd_bench_attention){.dev = &m->dev,
                                                           .roof = roof,
                                                           .prompts = &prompts,
                                                           .depths = &depths,
                                                           .batches = &batches,
                                                           .kv_type = m->mo.kv_type,
                                                           .page_tok = o->block_size,
                                                           .seconds = o->bench_seconds,
                                                           .json = j});
}

/* --products, --attention: no model's weights, but its device. */
static hd_status run_part(const struct hd_options *o, const char *model) {
    struct hd_bench_model m;
    hd_dev_roofline roof = {0};
    hd_buf out;
    hd_buf_init(&out, 1 << 20);
    hd_json j = hd_json_begin(&out);
    hd_json_object(&j);
    hd_status s = hd_bench_open(&m, o, model);
    if (s == HD_OK && m.dev.ops->roofline) s = m.dev.ops->roofline(m.dev.ctx, &roof);
    if (s == HD_OK && o->bench_products)
        s = hd_bench_products(&(struct hd_bench_products){.dev = &m.dev,
                                                          .roof = &roof,
                                                          .seconds = o->bench_seconds,
                                                          .json = o->json ? &j : NULL});
    if (s == HD_OK && o->bench_attention) s = run_attention(&m, &roof, o->json ? &j : NULL);
    hd_json_object_end(&j);
    if (s == HD_OK && o->json) printf("%s\n", out.ptr);
    hd_buf_fini(&out);
    hd_bench_close(&m);
    return s;
}

static int run(const struct hd_options *o, int n_arg, char **arg) {
    if (n_arg > 0 && strcmp(arg[0], "serve") == 0) return hd_bench_serve(o, n_arg);
    if (n_arg > 0 && strcmp(arg[0], "matrix") == 0) return hd_bench_matrix(o, n_arg, arg);
    if (n_arg > 0 && strcmp(arg[0], "compare") == 0) return hd_bench_compare(o, n_arg, arg);
    if (n_arg > 1) return hd_command_usage(&hd_cmd_bench, "one model at a time");
    const char *model = n_arg == 1 ? arg[0] : o->model;
    hd_status s = o->bench_save_cost                        ? run_cost(o, model)
                  : o->bench_products || o->bench_attention ? run_part(o, model)
                                                            : hd_bench_speed(o, model);
    return s == HD_OK ? 0 : hd_command_error(&hd_cmd_bench);
}

const struct hd_command hd_cmd_bench = {
    .name = "bench",
    .summary = "measure speed: prompts and steps, as a share of the machine's own limits",
    .usage = "[options] [MODEL | serve | compare [MODEL] | matrix [MODEL]]",
    .details =
        "Runs the model alone, without server and scheduler: prompts of --prompt tokens, then "
        "--gen\n"
        "tokens of each of --batch sequences at once, behind --depth tokens. tok/s is of the "
        "median "
        "run.\n"
        "'of ops' and 'of read' compare with multiply-adds (8-bit integers for quantised weights, "
        "else\n"
        "float32) and streaming reads measured on the same threads before and after each point. "
        "Weights\n"
        "are counted that must be read, with even routing, and KV; the larger share is that of the "
        "roof.\n"
        "--json prints a line an object: prompt_tok_s, decode_tok_s (one sequence), batch_tok_s, "
        "shares of\n"
        "the roof, bandwidth_gbs, int8_gops, time and memory to the first token, the thread pool's "
        "cost.\n\n"
        "--products times the weight product alone, on random weights; --attention latent "
        "attention, by\n"
        "--depth, --batch and --prompt, as shares of float32 multiply-adds and of reads.\n\n"
        "'hadal bench serve' loads a running server (any with OpenAI's API) instead, over HTTP:\n"
        "requests come by --request-rate or a --trace whatever the answers do, and times count\n"
        "from when a request should have come. --model names the server's; by default its "
        "first.\n\n"
        "'hadal bench compare' runs one load under several policies of batching, with the model "
        "in\n"
        "this process (or --simulated): what continuous batching over pages gains over padded\n"
        "batches that are collected for 50 ms and run to their end.\n\n"
        "'hadal bench matrix' times the attention switches on and off, alone and together: the\n"
        "largest of --prompt, the first and the largest of --batch at the largest of --depth;\n"
        "'difference' is of the logits, against both off. They act on a GPU.\n\n"
        "--save-cost measures step times for 'hadal sim'.\n\n"
        "  hadal bench mini --threads 1\n"
        "  hadal bench --products --seconds 0.1\n"
        "  hadal bench --attention --depth 4096,16384 --batch 1,16 --threads 2\n"
        "  hadal bench v2-lite.gguf --batch 1,8,32 --depth 1024 --json\n"
        "  hadal bench serve --request-rate 8 --num-prompts 200 --goodput ttft:200,tpot:50\n"
        "  hadal bench compare --request-rate 0 --random-range-ratio 0.8 --seed 1\n"
        "  hadal bench matrix v2-lite.gguf --backend cuda --prompt 8192 --depth 8191\n"
        "  hadal bench mini --save-cost mini.cost\n",
    .run = run,
};
