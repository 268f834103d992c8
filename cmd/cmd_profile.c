/* hadal profile: where the time of a step goes: by op, by kernel, between kernels, in copies and on
 * the host. */
#include "base/clock.h"
#include "base/mem.h"
#include "cmd/bench.h"
#include "cmd/profile.h"

#include <stdio.h>

enum { SPANS_MAX = 1 << 20 };

static void run_steps(struct hd_bench_model *b, int64_t *ns, int n_step) {
    const struct hd_options *o = b->o;
    if (o->profile_prompt == 0) {
        hd_bench_decode_many(b, o->profile_batch, o->profile_context, 0, n_step, ns);
        return;
    }
    for (int i = 0; i < n_step && b->status == HD_OK; i++) {
        int64_t start = hd_now_ns();
        (void)hd_bench_prompt(b, o->profile_prompt);
        ns[i] = hd_now_ns() - start;
    }
}

/* Warm: graphs are made in the first run that is like this one. */
static hd_status measure_run(struct hd_bench_model *b, hd_profile_run *r, int n_step,
                             enum hd_profile_how how) {
    HD_TRY(hd_model_profile(b->model, &r->spans, how));
    run_steps(b, r->step_ns, n_step);
    HD_TRY(b->status);
    HD_TRY(hd_model_profile(b->model, &r->spans, how)); /* ends the first */
    r->spans.n = r->spans.n_lost = 0;
    run_steps(b, r->step_ns, n_step);
    return b->status;
}

static hd_status measure(struct hd_bench_model *b, hd_profile *p) {
    HD_TRY(measure_run(b, &p->always, p->n_step, HD_PROFILE_ALWAYS));
    p->has_device = b->dev.ops->profile != NULL;
    if (p->has_device) {
        HD_TRY(measure_run(b, &p->in_turn, p->n_step, HD_PROFILE_IN_TURN));
        HD_TRY(measure_run(b, &p->by_op, p->n_step, HD_PROFILE_BY_OP));
    }
    return hd_model_profile(b->model, NULL, HD_PROFILE_ALWAYS);
}

static hd_status profile(struct hd_bench_model *b, hd_profile *p, const char *model) {
    const struct hd_options *o = b->o;
    hd_buf device;
    HD_TRY(hd_bench_open(b, o, model));
    hd_buf_init(&device, sizeof p->device - 1);
    b->dev.ops->describe(b->dev.ctx, &device);
    snprintf(p->device, sizeof p->device, "%s, %s", b->dev.ops->name, device.len ? device.ptr : "");
    hd_buf_fini(&device);
    bool is_prompt = o->profile_prompt > 0;
    HD_TRY(hd_bench_open_model(b, is_prompt ? o->max_num_batched_tokens : 1,
                               is_prompt ? 1 : o->profile_batch,
                               is_prompt ? o->profile_prompt : o->profile_context, 0));
    HD_TRY(measure(b, p));
    if (o->profile_chrome_trace) HD_TRY(hd_profile_save_trace(p, o->profile_chrome_trace));
    return hd_profile_report(p, o->json);
}

static int run(const struct hd_options *o, int n_arg, char **arg) {
    if (n_arg > 1) return hd_command_usage(&hd_cmd_profile, "one model at a time");
    struct hd_bench_model b = {.o = o};
    char what[96];
    if (o->profile_prompt > 0)
        snprintf(what, sizeof what, "a prompt of %d tokens", o->profile_prompt);
    else
        snprintf(what, sizeof what, "a step of %d sequence%s of %d tokens", o->profile_batch,
                 o->profile_batch == 1 ? "" : "s", o->profile_context);
    hd_profile p = {.what = what, .n_step = o->profile_steps};
    hd_profile_run *const runs[] = {&p.always, &p.in_turn, &p.by_op};
    enum { N_RUN = sizeof runs / sizeof runs[0] };
    for (int i = 0; i < N_RUN; i++) {
        runs[i]->step_ns = hd_alloc_zero((size_t)p.n_step, sizeof *runs[i]->step_ns);
        hd_spans_init(&runs[i]->spans, SPANS_MAX);
    }
    hd_status s = profile(&b, &p, n_arg == 1 ? arg[0] : o->model);
    hd_bench_close(&b);
    for (int i = 0; i < N_RUN; i++) {
        hd_spans_fini(&runs[i]->spans);
        hd_free(runs[i]->step_ns);
    }
    return s == HD_OK ? 0 : hd_command_error(&hd_cmd_profile);
}

const struct hd_command hd_cmd_profile = {
    .name = "profile",
    .summary = "tell where the time of a step goes, op by op",
    .usage = "[options] [MODEL]",
    .details =
        "Runs steps of a model and tells the time of each block op, its share, and what is in no\n"
        "op. On a GPU also each kernel's time, the gaps between kernels, how long the GPU was "
        "busy,\n"
        "copies and how much of them ran beside computing, and the host's part. Kernels start "
        "early\n"
        "there and wait for one another; so the steps run a second time with kernels in turn,\n"
        "which wait for nothing: their times, and the share of a step in which one runs. It "
        "needs\n"
        "CUPTI (libcupti, of the CUDA toolkit) there, nothing otherwise.\n"
        "\n"
        "  hadal profile mini --batch-size 16 --profile-context 512\n"
        "  hadal profile MODEL --backend cuda --prompt-length 8192 --max-num-batched-tokens 8192\n"
        "  hadal profile mini --chrome-trace step.json     for chrome://tracing or "
        "ui.perfetto.dev\n"
        "\n"
        "Tokens are random, and the cache is empty: the time is the same.\n",
    .run = run,
};
