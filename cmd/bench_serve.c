/* hadal bench serve: a load for a server that runs, from the trace to the report. */
#include "cmd/bench_load.h"
#include "cmd/output.h"

#include <stdio.h>
#include <string.h>

enum { exit_interrupted = 130 };

/* Of a file that is written at the end. */
static hd_status check_output(const char *path) {
    bool is_there;
    if (!path) return HD_OK;
    HD_TRY(hd_output_check(path, &is_there));
    return hd_output_try(path);
}

static hd_status check(const struct hd_options *o) {
    HD_TRY(hd_load_check_goodput(o));
    HD_TRY(check_output(o->load_save));
    HD_TRY(check_output(o->load_plot));
    if (o->load_plot && o->load_save && strcmp(o->load_plot, o->load_save) == 0)
        return HD_FAIL(INVALID, "--plot and --save-result: expected two files, found \"%s\" twice",
                       o->load_plot);
    return HD_OK;
}

static hd_status need_an_answer(const hd_load_run *r) {
    for (int i = 0; i < r->trace->n; i++)
        if (r->result[i].outcome == HD_LOAD_OK) return HD_OK;
    return HD_FAIL(UNAVAILABLE, "%s: none of the requests was answered", r->o->load_url);
}

static hd_status report_json(const hd_load_run *r) {
    hd_buf out;
    hd_buf_init(&out, 1 << 20);
    hd_json j = hd_json_begin(&out);
    hd_json_object(&j);
    hd_json_key(&j, "base_url");
    hd_json_str_c(&j, r->o->load_url);
    hd_json_key(&j, "model");
    hd_json_str_c(&j, r->model);
    hd_json_key(&j, "prompts");
    hd_json_str_c(&j, r->is_text ? "text" : "ids");
    hd_json_key(&j, "seed");
    hd_json_int(&j, (int64_t)r->trace->seed);
    hd_json_key(&j, "interrupted");
    hd_json_bool(&j, r->is_interrupted);
    hd_status s = hd_load_write(r, &j);
    hd_json_object_end(&j);
    if (s == HD_OK) printf("%s\n", out.ptr);
    hd_buf_fini(&out);
    return s;
}

static hd_status report(const hd_load_run *r) {
    if (r->o->json) return report_json(r);
    printf("%s: model %s, prompts as %s, seed %llu%s\n", r->o->load_url, r->model,
           r->is_text ? "text (lengths are about right)" : "token ids",
           (unsigned long long)r->trace->seed, r->is_interrupted ? "; interrupted" : "");
    return hd_load_print(r);
}

int hd_bench_serve(const struct hd_options *o, int n_arg) {
    if (n_arg > 1)
        return hd_command_usage(&hd_cmd_bench,
                                "serve takes no further words: --model names the model");
    hd_trace trace = {0};
    hd_load_run *r = hd_alloc_zero(1, sizeof *r);
    *r = (hd_load_run){.o = o, .trace = &trace};
    hd_status s = check(o);
    if (s == HD_OK) s = hd_load_trace_init(&trace, o);
    if (s == HD_OK) {
        hd_trace_hasten(&trace, o->load_scale);
        r->result = hd_alloc_zero((size_t)trace.n, sizeof *r->result);
        s = hd_load_send(r);
    }
    if (s == HD_OK) s = report(r);
    if (s == HD_OK && o->load_save) s = hd_load_save(r, o->load_save);
    if (s == HD_OK && o->load_plot) s = hd_load_plot(r, o->load_plot);
    if (s == HD_OK && !r->is_interrupted) s = need_an_answer(r);
    int rc = s != HD_OK          ? hd_command_error(&hd_cmd_bench)
             : r->is_interrupted ? exit_interrupted
                                 : 0;
    hd_free(r->result);
    hd_free(r);
    hd_trace_fini(&trace);
    return rc;
}
