/* The list of spans. */
#include "dev/spans.h"

#include "base/mem.h"

void hd_spans_init(hd_spans *t, size_t room) {
    *t = (hd_spans){.span = hd_alloc_zero(room, sizeof *t->span), .room = room};
}

void hd_spans_fini(hd_spans *t) {
    hd_free(t->span);
    *t = (hd_spans){0};
}
