/* Server-sent events from arbitrary bytes: whole and byte by byte give the same events; none is
 * longer than it may be. */
#include "base/sse.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { event_bytes_max = 96 };

static void keep(void *user, hd_str data) {
    if (data.len > event_bytes_max) abort();
    hd_buf_add(user, data.ptr, data.len);
    hd_buf_add(user, "\0|", 2); /* where it ended */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *p = (const char *)data;
    hd_sse whole, pieces;
    hd_buf a, b;
    hd_sse_init(&whole, event_bytes_max);
    hd_sse_init(&pieces, event_bytes_max);
    hd_buf_init(&a, 1 << 22);
    hd_buf_init(&b, 1 << 22);
    hd_status s = hd_sse_feed(&whole, (hd_str){p, size}, keep, &a), s2 = HD_OK;
    for (size_t i = 0; i < size && s2 == HD_OK; i++)
        s2 = hd_sse_feed(&pieces, (hd_str){p + i, 1}, keep, &b);
    if (s != s2 || a.len != b.len || (a.len > 0 && memcmp(a.ptr, b.ptr, a.len) != 0)) abort();
    hd_buf_fini(&a);
    hd_buf_fini(&b);
    hd_sse_fini(&whole);
    hd_sse_fini(&pieces);
    return 0;
}
