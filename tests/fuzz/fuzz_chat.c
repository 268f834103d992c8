/* Conversations of any roles and texts, in every encoding. Input: a byte of the encoding, two of
 * options, then messages, each a byte of its role (and calls, reasoning), a byte of its length, its
 * text. Texts never become markers: with harmless texts in their place there are as many. */
#include "tests/fuzz/small_tokenizer.h"
#include "text/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { message_max = 32, call_max = 3, text_max = 256 };

static hd_message message[message_max], harmless[message_max];
static hd_tool_call call[message_max][call_max];
static char xs[text_max];

static hd_str harmless_text(hd_str s) { return (hd_str){xs, s.len}; }

static void add_message(hd_chat_prompt *p, unsigned kind, hd_str text) {
    size_t at = p->n_message++;
    hd_message m = {.role = (enum hd_role)(kind % 7), .content = text, .call_id = text};
    if (kind & 8) m.reasoning = text;
    if (m.role == HD_ROLE_ASSISTANT) m.n_call = kind >> 4 & call_max;
    for (size_t k = 0; k < m.n_call; k++)
        call[at][k] = (hd_tool_call){.id = text, .name = hd_str_of("f"), .arguments = text};
    m.call = call[at];
    message[at] = harmless[at] = m;
    harmless[at].content = harmless_text(text);
    if (kind & 8) harmless[at].reasoning = harmless_text(text);
}

static size_t count_added(const hd_ids *ids, const hd_tokenizer *t) {
    size_t n = 0;
    for (size_t i = 0; i < ids->n; i++) n += hd_tokenizer_is_added(t, ids->id[i]);
    return n;
}

static void check(const hd_ids *ids, const hd_tokenizer *t, const hd_chat_start *start) {
    int32_t think = hd_tokenizer_find(t, hd_str_of("<think>"));
    size_t n_bos = 0;
    for (size_t i = 0; i < ids->n; i++) n_bos += ids->id[i] == hd_tokenizer_bos(t);
    HD_ASSERT(n_bos == 1 && ids->id[0] == hd_tokenizer_bos(t));
    HD_ASSERT(start->n_forced < ids->n);
    HD_ASSERT(!(start->in_reasoning && start->n_forced > 0));
    if (ids->id[ids->n - 1] == think) HD_ASSERT(start->in_reasoning);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *end = data + size;
    size_t n_row = 0;
    if (size < 3) return 0;
    memset(xs, 'x', sizeof xs);
    while (hd_chat_at(n_row)) n_row++;
    const hd_chat_encoding *e = hd_chat_at(data[0] % n_row);
    hd_tool tool = {
        .name = hd_str_of("f"), .function = hd_str_of("{}"), .parameters = hd_str_of("{}")};
    hd_chat_prompt p = {.message = message,
                        .thinking = data[1] & 1,
                        .continue_final = data[1] & 2,
                        .no_generation_prefix = data[1] & 4,
                        .tool = &tool,
                        .n_tool = data[1] >> 3 & 1,
                        .tool_choice = (enum hd_tool_choice)((data[1] >> 4) % 3),
                        .forced_tool = hd_str_of(data[1] & 64 ? "f" : ""),
                        .keep_reasoning = data[1] & 128,
                        .effort = data[2] % 103 - 1,
                        .task = hd_str_of(data[2] & 128 ? "query" : "")};
    const hd_tokenizer *t = small_tokenizer(1);
    for (data += 3; end - data >= 2 && p.n_message < message_max;) {
        unsigned kind = *data++;
        size_t n = *data++;
        if (n > (size_t)(end - data)) n = (size_t)(end - data);
        add_message(&p, kind, (hd_str){(const char *)data, n});
        data += n;
    }
    hd_str schema = p.n_message > 0 ? message[0].content : (hd_str){0};
    if (data[-1] & 1 && hd_chat_has_response_format(e)) p.schema = schema;
    hd_ids ids = {0}, other = {0};
    hd_chat_start start, other_start;
    if (hd_chat_encode(e, t, &p, &ids, &start) == HD_OK) {
        check(&ids, t, &start);
        p.message = harmless;
        p.schema = harmless_text(p.schema);
        HD_ASSERT(hd_chat_encode(e, t, &p, &other, &other_start) == HD_OK);
        HD_ASSERT(count_added(&ids, t) == count_added(&other, t));
        HD_ASSERT(start.in_reasoning == other_start.in_reasoning);
        HD_ASSERT(start.n_forced == other_start.n_forced);
    } else {
        HD_ASSERT(ids.n == 0);
    }
    hd_ids_fini(&ids);
    hd_ids_fini(&other);
    return 0;
}
