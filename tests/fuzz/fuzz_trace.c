/* Load traces from arbitrary bytes: refused, or read into requests within their bounds, which
 * written and read again are the same. */
#include "sim/trace.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool is_same(const hd_trace_item *a, const hd_trace_item *b) {
    return a->n_prompt == b->n_prompt && a->n_output == b->n_output && a->n_prefix == b->n_prefix &&
           a->seed == b->seed && a->prefix_seed == b->prefix_seed && !strcmp(a->group, b->group) &&
           !strcmp(a->service, b->service);
}

static void check_item(const hd_trace *t, int i) {
    const hd_trace_item *a = &t->item[i];
    if (a->n_prompt < 1 || a->n_output < 1 || a->n_prefix < 0 || a->n_prefix > a->n_prompt) abort();
    if (!(a->arrival_s >= 0) || (i > 0 && a->arrival_s < a[-1].arrival_s)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hd_trace a, b;
    hd_buf text;
    hd_buf_init(&text, 1 << 24);
    if (hd_trace_parse(&a, (hd_str){(const char *)data, size}, 7) == HD_OK) {
        for (int i = 0; i < a.n; i++) check_item(&a, i);
        hd_trace_write(&a, &text);
        if (hd_trace_parse(&b, hd_buf_str(&text), 7) != HD_OK || a.n != b.n) abort();
        for (int i = 0; i < a.n; i++)
            if (!is_same(&a.item[i], &b.item[i])) abort();
        if (hd_trace_reusable_tok(&a, 16) < 0) abort();
        hd_trace_fini(&b);
    }
    hd_buf_fini(&text);
    hd_trace_fini(&a);
    return 0;
}
