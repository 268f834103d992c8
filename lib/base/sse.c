/* Bytes to lines, lines to events. */
#include "base/sse.h"

#include <string.h>

void hd_sse_init(hd_sse *s, size_t event_bytes_max) {
    *s = (hd_sse){0};
    hd_buf_init(&s->line, event_bytes_max);
    hd_buf_init(&s->data, event_bytes_max);
}

void hd_sse_fini(hd_sse *s) {
    hd_buf_fini(&s->line);
    hd_buf_fini(&s->data);
}

static void end_line(hd_sse *s, void (*on_data)(void *user, hd_str data), void *user) {
    hd_str line = hd_buf_str(&s->line);
    if (line.len == 0 && s->has_data) {
        on_data(user, hd_buf_str(&s->data));
        hd_buf_clear(&s->data);
        s->has_data = false;
    }
    if (line.len >= 4 && memcmp(line.ptr, "data", 4) == 0 &&
        (line.len == 4 || line.ptr[4] == ':')) {
        size_t at = line.len == 4 ? 4 : 5;
        if (at < line.len && line.ptr[at] == ' ') at++;
        if (s->has_data) hd_buf_add(&s->data, "\n", 1);
        hd_buf_add(&s->data, line.ptr + at, line.len - at);
        s->has_data = true;
    }
    hd_buf_clear(&s->line);
}

hd_status hd_sse_feed(hd_sse *s, hd_str bytes, void (*on_data)(void *user, hd_str data),
                      void *user) {
    size_t from = 0;
    for (size_t i = 0; i < bytes.len; i++) {
        char c = bytes.ptr[i];
        bool is_second = c == '\n' && s->after_cr; /* of CR LF */
        s->after_cr = c == '\r';
        if (c != '\n' && c != '\r') continue;
        if (!is_second) {
            hd_buf_add(&s->line, bytes.ptr + from, i - from);
            if (s->line.overflowed) break;
            end_line(s, on_data, user);
            if (s->data.overflowed) break;
        }
        from = i + 1;
    }
    if (!s->line.overflowed && !s->data.overflowed)
        hd_buf_add(&s->line, bytes.ptr + from, bytes.len - from);
    if (s->line.overflowed || s->data.overflowed)
        return HD_FAIL(TOO_LARGE, "an event of more than %zu bytes", s->line.cap);
    return HD_OK;
}
