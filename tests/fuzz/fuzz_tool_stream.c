/* Answers with tool calls, of any tokens. Input: a byte of the encoding, a byte of options, then
 * tokens: a byte below 0x18 is a marker (but for newlines), others are byte tokens. The same bytes
 * by other tokens give the same; arguments in DSML that are complete are JSON. */
#include "tests/fuzz/small_tokenizer.h"
#include "text/json_text.h"
#include "text/stream.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { call_max = 64 };

struct answer {
    hd_buf reasoning, content, names, args[call_max];
    int n_call;
    bool stopped;
};

static void answer_init(struct answer *a) {
    *a = (struct answer){0};
    hd_buf_init(&a->reasoning, SIZE_MAX / 2);
    hd_buf_init(&a->content, SIZE_MAX / 2);
    hd_buf_init(&a->names, SIZE_MAX / 2);
    for (int i = 0; i < call_max; i++) hd_buf_init(&a->args[i], SIZE_MAX / 2);
}

static void answer_fini(struct answer *a) {
    hd_buf_fini(&a->reasoning);
    hd_buf_fini(&a->content);
    hd_buf_fini(&a->names);
    for (int i = 0; i < call_max; i++) hd_buf_fini(&a->args[i]);
}

static void take(struct answer *a, hd_text_out o) {
    HD_ASSERT(hd_utf8_is_valid(o.reasoning.ptr, o.reasoning.len));
    HD_ASSERT(hd_utf8_is_valid(o.content.ptr, o.content.len));
    HD_ASSERT(o.reasoning.len == 0 || a->content.len + (size_t)a->n_call == 0);
    HD_ASSERT(o.content.len == 0 || a->n_call == 0);
    HD_ASSERT(!a->stopped || o.reasoning.len + o.content.len + o.n_call == 0);
    HD_ASSERT(o.n_out <= o.n_in);
    hd_buf_add(&a->reasoning, o.reasoning.ptr, o.reasoning.len);
    hd_buf_add(&a->content, o.content.ptr, o.content.len);
    for (size_t i = 0; i < o.n_call; i++) {
        const hd_call_delta *d = &o.call[i];
        HD_ASSERT(d->index == a->n_call - (d->name.len == 0));
        HD_ASSERT(hd_utf8_is_valid(d->name.ptr, d->name.len));
        HD_ASSERT(hd_utf8_is_valid(d->arguments.ptr, d->arguments.len));
        a->n_call += d->name.len > 0;
        hd_buf_add(&a->names, d->name.ptr, d->name.len);
        if (d->index < call_max) hd_buf_add(&a->args[d->index], d->arguments.ptr, d->arguments.len);
    }
    a->stopped = o.stopped;
}

static void feed(const hd_tokenizer *t, const hd_chat_encoding *e, const hd_text_stream_options *o,
                 const hd_ids *ids, struct answer *a) {
    hd_stream *s;
    answer_init(a);
    HD_ASSERT(hd_stream_new(t, e, o, &s) == HD_OK);
    for (size_t i = 0; i < ids->n; i++) take(a, hd_stream_feed(s, ids->id[i]));
    take(a, hd_stream_end(s, false));
    hd_stream_free(s);
}

static void check_same(const struct answer *a, const struct answer *b) {
    HD_ASSERT(hd_str_eq(hd_buf_str(&a->reasoning), hd_buf_str(&b->reasoning)));
    HD_ASSERT(hd_str_eq(hd_buf_str(&a->content), hd_buf_str(&b->content)));
    HD_ASSERT(hd_str_eq(hd_buf_str(&a->names), hd_buf_str(&b->names)));
    HD_ASSERT(a->n_call == b->n_call && a->stopped == b->stopped);
    for (int i = 0; i < a->n_call && i < call_max; i++)
        HD_ASSERT(hd_str_eq(hd_buf_str(&a->args[i]), hd_buf_str(&b->args[i])));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const rows[] = {"deepseek_v3",   "deepseek_r1", "deepseek_v3.1",
                                       "deepseek_v3.2", "deepseek_v4", "deepseek_v4.1"};
    static const char schema[] = "{\"properties\": {\"s\": {\"type\": \"string\"}, \"n\": {}}}";
    const hd_tool tool = {.name = hd_str_of("f"), .parameters = hd_str_of(schema)};
    hd_str stop = hd_str_of("STOP");
    if (size < 2) return 0;
    size_t row = data[0] % HD_COUNT_OF(rows);
    hd_text_stream_options o = {.parse_tools = true,
                                .in_reasoning = data[1] & 1,
                                .keep_special = data[1] & 2,
                                .strip_space = data[1] & 4,
                                .stop = &stop,
                                .n_stop = data[1] >> 3 & 1,
                                .tool = &tool,
                                .n_tool = 1,
                                .max_call = data[1] >> 4 & 3};
    const hd_tokenizer *t = small_tokenizer(data[1] >> 6 & 1);
    hd_ids ids = {0}, merged = {0};
    size_t at = 2;
    for (size_t i = 2; i <= size; i++) {
        bool is_marker = i < size && data[i] < 0x18 && data[i] != '\n';
        if (i < size && !is_marker) {
            hd_ids_add(&ids, data[i]);
            continue;
        }
        hd_tokenizer_encode(t, (hd_str){(const char *)data + at, i - at}, false, &merged);
        at = i + 1;
        if (i == size) break;
        hd_ids_add(&ids, small_bytes + data[i]);
        hd_ids_add(&merged, small_bytes + data[i]);
    }
    struct answer a, b;
    const hd_chat_encoding *e = hd_chat_by_name(rows[row]);
    feed(t, e, &o, &ids, &a);
    feed(t, e, &o, &merged, &b);
    check_same(&a, &b);
    for (int i = 0; row >= 3 && i + 1 < a.n_call && i < call_max; i++)
        HD_ASSERT(hd_json_text_is_value(hd_buf_str(&a.args[i])));
    answer_fini(&a);
    answer_fini(&b);
    hd_ids_fini(&ids);
    hd_ids_fini(&merged);
    return 0;
}
