/* Streams over any tokens. Input: a byte of options, stop strings each after a byte of its length
 * (0 ends them), then tokens: a byte below 0x10 is a marker, others are byte tokens. */
#include "tests/fuzz/small_tokenizer.h"
#include "text/stream.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const hd_text_out *o, bool was_stopped, size_t *n_content) {
    HD_ASSERT(hd_utf8_is_valid(o->reasoning.ptr, o->reasoning.len));
    HD_ASSERT(hd_utf8_is_valid(o->content.ptr, o->content.len));
    HD_ASSERT(o->reasoning.len == 0 || *n_content == 0);
    HD_ASSERT(!was_stopped || o->reasoning.len + o->content.len == 0);
    HD_ASSERT(o->stopped == (o->stop_ix >= 0) && (o->stopped || !was_stopped));
    *n_content += o->content.len;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *end = data + size;
    if (size == 0) return 0;
    uint8_t flags = *data++;
    hd_str stop[HD_STREAM_STOP_MAX + 1];
    hd_text_stream_options o = {.in_reasoning = flags & 1,
                                .split_reasoning = flags & 2,
                                .keep_special = flags & 4,
                                .include_stop = flags & 8,
                                .stop = stop};
    while (data < end && *data && o.n_stop < HD_STREAM_STOP_MAX + 1) {
        size_t n = *data++;
        if (n > (size_t)(end - data)) n = (size_t)(end - data);
        stop[o.n_stop++] = (hd_str){(const char *)data, n};
        data += n;
    }
    const hd_tokenizer *t = small_tokenizer(flags >> 4 & 1);
    hd_stream *s;
    if (hd_stream_new(t, NULL, &o, &s) != HD_OK) return 0;
    bool stopped = false;
    size_t n_content = 0;
    for (; data < end; data++) {
        int32_t id = *data >= 0x10 || *data == '\n' ? *data : small_bytes + *data;
        hd_text_out out = hd_stream_feed(s, id);
        check(&out, stopped, &n_content);
        stopped = out.stopped;
    }
    hd_text_out out = hd_stream_end(s, false);
    check(&out, stopped, &n_content);
    hd_stream_free(s);
    return 0;
}
