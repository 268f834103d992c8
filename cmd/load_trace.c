/* From the options of a load to its trace. */
#include "cmd/load_trace.h"

#include "base/clock.h"
#include "cmd/output.h"

#include <string.h>

enum { long_times = 16 }; /* a long prompt by default, in short ones */

static void spec_of(const struct hd_options *o, hd_trace_spec *s) {
    *s = (hd_trace_spec){.n = o->load_num_prompts,
                         .rate = o->load_rate,
                         .shape = o->load_burstiness,
                         .period_s = o->load_period,
                         .n_prompt = o->load_input_len,
                         .n_output = o->load_output_len,
                         .n_prefix = o->load_prefix_len,
                         .spread = o->load_range_ratio,
                         .n_prompt_long = o->load_long_len,
                         .n_turn = o->load_turns,
                         .think_s = o->load_think_time};
    if (s->n_prompt_long == 0) s->n_prompt_long = long_times * s->n_prompt;
    while (strcmp(hd_trace_kind_name(s->kind), o->load_generate) != 0) s->kind++;
}

static hd_status generate(hd_trace *t, const struct hd_options *o, uint64_t seed) {
    hd_trace_spec spec;
    if (o->load_prefix_len > o->load_input_len)
        return HD_FAIL(INVALID, "--random-prefix-len: expected at most the input's %d, found %d",
                       o->load_input_len, o->load_prefix_len);
    spec_of(o, &spec);
    spec.seed = seed;
    if (o->load_classes && hd_trace_parse_classes(o->load_classes, &spec) != HD_OK)
        return hd_fail_context(HD_E_INVALID, "--class-mix");
    return hd_trace_generate(t, &spec);
}

static hd_status save(const hd_trace *t, const char *path) {
    hd_buf b;
    hd_buf_init(&b, HD_TRACE_BYTES_MAX);
    hd_trace_write(t, &b);
    hd_status s = b.overflowed ? HD_FAIL(TOO_LARGE, "%s: more than %d bytes of a trace", path,
                                         HD_TRACE_BYTES_MAX)
                               : hd_output_write(path, hd_buf_str(&b));
    hd_buf_fini(&b);
    return s;
}

hd_status hd_load_trace_init(hd_trace *t, const struct hd_options *o) {
    uint64_t seed = o->seed >= 0 ? (uint64_t)o->seed : (uint64_t)hd_wall_ms();
    *t = (hd_trace){0};
    if (o->load_trace) {
        HD_TRY(hd_trace_read(t, o->load_trace, seed));
    } else {
        HD_TRY(generate(t, o, seed));
    }
    return o->load_save_trace ? save(t, o->load_save_trace) : HD_OK;
}
