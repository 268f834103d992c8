/* Server-sent events as a client reads them (WHATWG HTML, 9.2.6): the data of each event; comments
 * and other fields are skipped. Lines end in CR, LF or both; bytes may come in any pieces.
 * Thread: one owner at a time. */
#ifndef HD_BASE_SSE_H
#define HD_BASE_SSE_H

#include "base/buf.h"

typedef struct hd_sse {
    hd_buf line, data; /* the line that is not complete, the event's data so far */
    bool has_data, after_cr;
} hd_sse;

void hd_sse_init(hd_sse *s, size_t event_bytes_max);
void hd_sse_fini(hd_sse *s);
/* Calls on_data for every event that these bytes complete; the text is borrowed for the call.
 * HD_E_TOO_LARGE: a line or an event is longer than it may be; the stream cannot go on. */
HD_MUST_CHECK hd_status hd_sse_feed(hd_sse *s, hd_str bytes,
                                    void (*on_data)(void *user, hd_str data), void *user);

#endif
