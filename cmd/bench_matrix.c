/* `hadal bench matrix`: the attention switches on and off, alone and together: what each is worth,
 * and how far apart the outputs are. */
#include "cmd/bench.h"

#include "base/mem.h"
#include "base/sort.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Options that may be on or off for one result within a tolerance. */
static const struct toggle {
    const char *flag;
    size_t offset;
} toggles[] = {{"context-fmha", offsetof(struct hd_options, context_fmha)},
               {"multi-block", offsetof(struct hd_options, multi_block)}};
enum { N_TOGGLE = HD_COUNT_OF(toggles), N_CELL = 1 << N_TOGGLE, N_LOAD = 3, RUN_MAX = 1000 };

struct load {
    int n_seq, n_tok; /* tokens: of a prompt; of each sequence's context */
    bool is_prompt;
};

struct cell {
    double tok_s[N_LOAD]; /* of the median run */
    float *logits;        /* [n_vocab] of the prompt's last token */
    double difference;    /* largest to cell 0's logits, over the largest logit */
};

struct matrix {
    const struct hd_options *o;
    struct load load[N_LOAD];
    struct cell cell[N_CELL];
    char device[160], backend[16];
    int n_vocab;
};

/* Seconds of a prompt, or of a step among several that follow one another. */
static double run_load(struct hd_bench_model *m, const struct load *l) {
    enum { N_STEP = 8 };
    int64_t ns[N_STEP], sum = 0;
    if (l->is_prompt) return hd_bench_prompt(m, l->n_tok);
    hd_bench_decode_many(m, l->n_seq, l->n_tok, 0, N_STEP, ns);
    for (int i = 0; i < N_STEP && m->status == HD_OK; i++) sum += ns[i];
    return (double)sum / N_STEP * 1e-9;
}

static hd_status time_load(struct hd_bench_model *m, const struct load *l, double *tok_s) {
    double *seconds = hd_alloc_zero(RUN_MAX, sizeof *seconds), sum = 0;
    int n = 0;
    (void)run_load(m, l); /* to warm up */
    while (m->status == HD_OK && n < RUN_MAX && (n < 3 || sum < m->o->bench_seconds)) {
        seconds[n] = run_load(m, l);
        sum += seconds[n++];
    }
    hd_sort_doubles(seconds, (size_t)n);
    if (n > 0) *tok_s = (l->is_prompt ? l->n_tok : l->n_seq) / seconds[n / 2];
    hd_free(seconds);
    return m->status;
}

/* The same tokens in every cell: a prompt, then a step behind it, so that both switches matter. */
static hd_status keep_logits(struct hd_bench_model *m, int n_tok, float *out) {
    const float *logits;
    m->seed = 1;
    (void)hd_bench_prompt(m, n_tok - 1);
    hd_batch_clear(&m->batch);
    hd_bench_add_seq(m, n_tok - 1, 1, HD_MLA_ABSORBED, true);
    if (m->status == HD_OK) m->status = hd_model_forward(m->model, &m->batch, &logits);
    if (m->status == HD_OK) memcpy(out, logits, (size_t)m->hp.n_vocab * sizeof *out);
    return m->status;
}

static int most(int a, int b) { return a > b ? a : b; }

static hd_status fill_cell(struct matrix *x, struct hd_bench_model *m, struct cell *c) {
    int n_pos = most(x->load[0].n_tok, x->load[1].n_tok);
    HD_TRY(hd_bench_open_model(m, x->o->max_num_batched_tokens, x->load[2].n_seq, n_pos, 0));
    hd_buf device;
    hd_buf_init(&device, 1024);
    m->dev.ops->describe(m->dev.ctx, &device);
    snprintf(x->device, sizeof x->device, "%s", device.len ? device.ptr : "");
    snprintf(x->backend, sizeof x->backend, "%s", m->dev.ops->name);
    hd_buf_fini(&device);
    x->n_vocab = m->hp.n_vocab;
    c->logits = hd_alloc_zero((size_t)x->n_vocab, sizeof *c->logits);
    HD_TRY(keep_logits(m, x->load[0].n_tok, c->logits));
    for (int i = 0; i < N_LOAD; i++) HD_TRY(time_load(m, &x->load[i], &c->tok_s[i]));
    return HD_OK;
}

static hd_status run_cell(struct matrix *x, int ix, const char *model) {
    struct hd_options o = *x->o;
    for (int i = 0; i < N_TOGGLE; i++) *(bool *)((char *)&o + toggles[i].offset) = ix >> i & 1;
    struct hd_bench_model m;
    hd_status s = hd_bench_open(&m, &o, model);
    if (s == HD_OK) s = fill_cell(x, &m, &x->cell[ix]);
    hd_bench_close(&m);
    return s;
}

static void compare_logits(struct matrix *x) {
    for (int c = 1; c < N_CELL; c++) {
        double largest = 0, difference = 0;
        for (int i = 0; i < x->n_vocab; i++) {
            double a = (double)x->cell[0].logits[i], b = (double)x->cell[c].logits[i];
            largest = fmax(largest, fabs(a));
            difference = fmax(difference, fabs(a - b));
        }
        x->cell[c].difference = difference / largest;
    }
}

static void print(const struct matrix *x) {
    printf("%s: %s\n", x->backend, x->device);
    for (int i = 0; i < N_TOGGLE; i++) printf("%-14s", toggles[i].flag);
    for (int i = 0; i < N_LOAD; i++) {
        const struct load *l = &x->load[i];
        char title[48];
        if (l->is_prompt)
            snprintf(title, sizeof title, "prompt of %d", l->n_tok);
        else
            snprintf(title, sizeof title, "%d at depth %d", l->n_seq, l->n_tok - 1);
        printf("%24s", title);
    }
    printf("%14s\n", "difference");
    for (int c = 0; c < N_CELL; c++) {
        for (int i = 0; i < N_TOGGLE; i++) printf("%-14s", c >> i & 1 ? "on" : "off");
        for (int i = 0; i < N_LOAD; i++)
            printf("%10.1f tok/s %6.2fx", x->cell[c].tok_s[i],
                   x->cell[c].tok_s[i] / x->cell[0].tok_s[i]);
        printf("%14.2g\n", x->cell[c].difference);
    }
}

static void print_json(const struct matrix *x) {
    hd_buf out;
    hd_buf_init(&out, 1 << 20);
    hd_json j = hd_json_begin(&out);
    hd_json_object(&j);
    hd_json_key(&j, "backend");
    hd_json_str_c(&j, x->backend);
    hd_json_key(&j, "device");
    hd_json_str_c(&j, x->device);
    hd_json_key(&j, "cells");
    hd_json_array(&j);
    for (int c = 0; c < N_CELL; c++) {
        static const char *const key[N_LOAD] = {"prompt_tokens_per_s", "decode_few_tokens_per_s",
                                                "decode_many_tokens_per_s"};
        hd_json_object(&j);
        for (int i = 0; i < N_TOGGLE; i++) {
            hd_json_key(&j, toggles[i].flag);
            hd_json_bool(&j, c >> i & 1);
        }
        for (int i = 0; i < N_LOAD; i++) {
            hd_json_key(&j, key[i]);
            hd_json_num(&j, x->cell[c].tok_s[i]);
        }
        hd_json_key(&j, "difference");
        hd_json_num(&j, x->cell[c].difference);
        hd_json_object_end(&j);
    }
    hd_json_array_end(&j);
    hd_json_object_end(&j);
    printf("%s\n", out.ptr);
    hd_buf_fini(&out);
}

static hd_status choose_loads(struct matrix *x) {
    struct hd_bench_list prompts, batches, depths;
    HD_TRY(hd_bench_parse_list("prompt", x->o->bench_prompts, 2, &prompts));
    HD_TRY(hd_bench_parse_list("batch", x->o->bench_batches, 1, &batches));
    HD_TRY(hd_bench_parse_list("depth", x->o->bench_depths, 0, &depths));
    int context = hd_bench_largest(&depths) + 1, prompt = hd_bench_largest(&prompts);
    x->load[0] = (struct load){.n_seq = 1, .n_tok = prompt, .is_prompt = true};
    x->load[1] = (struct load){.n_seq = batches.v[0], .n_tok = context};
    x->load[2] = (struct load){.n_seq = hd_bench_largest(&batches), .n_tok = context};
    return HD_OK;
}

int hd_bench_matrix(const struct hd_options *o, int n_arg, char **arg) {
    if (n_arg > 2) return hd_command_usage(&hd_cmd_bench, "matrix: one model at a time");
    struct matrix x = {.o = o};
    hd_status s = choose_loads(&x);
    for (int c = 0; c < N_CELL && s == HD_OK; c++)
        s = run_cell(&x, c, n_arg == 2 ? arg[1] : o->model);
    if (s == HD_OK) {
        compare_logits(&x);
        if (o->json)
            print_json(&x);
        else
            print(&x);
    }
    for (int c = 0; c < N_CELL; c++) hd_free(x.cell[c].logits);
    return s == HD_OK ? 0 : hd_command_error(&hd_cmd_bench);
}
