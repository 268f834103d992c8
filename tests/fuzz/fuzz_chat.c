/* Conversations of any roles and texts. Input: a byte of options, then messages, each a byte of its
 * role, a byte of its length, its text. Markers in texts must never become markers. */
#include "tests/fuzz/small_tokenizer.h"
#include "text/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { message_max = 64 };

static size_t count(const hd_ids *ids, const hd_tokenizer *t, const char *marker) {
    int32_t id = hd_tokenizer_find(t, hd_str_of(marker));
    size_t n = 0;
    for (size_t i = 0; i < ids->n; i++) n += ids->id[i] == id;
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *end = data + size;
    static hd_message m[message_max];
    size_t of_role[6] = {0};
    if (size == 0) return 0;
    hd_chat_prompt p = {.message = m,
                        .thinking = *data & 1,
                        .continue_final = *data & 2,
                        .no_generation_prefix = *data & 4};
    const hd_tokenizer *t = small_tokenizer(1);
    data++;
    while (end - data >= 2 && p.n_message < message_max) {
        unsigned role = *data++ % 6;
        size_t n = *data++;
        if (n > (size_t)(end - data)) n = (size_t)(end - data);
        m[p.n_message++] =
            (hd_message){.role = (enum hd_role)role, .content = {(const char *)data, n}};
        of_role[role]++;
        data += n;
    }
    hd_ids ids = {0};
    hd_chat_start start;
    if (hd_chat_encode(hd_chat_by_name("deepseek_v3.1"), t, &p, &ids, &start) == HD_OK) {
        HD_ASSERT(ids.id[0] == hd_tokenizer_bos(t) && count(&ids, t, small_marker[0]) == 1);
        HD_ASSERT(count(&ids, t, "<｜User｜>") == of_role[HD_ROLE_USER]);
        HD_ASSERT(count(&ids, t, "<｜tool▁output▁begin｜>") == of_role[HD_ROLE_TOOL]);
        HD_ASSERT(count(&ids, t, "<｜tool▁output▁end｜>") == of_role[HD_ROLE_TOOL]);
        HD_ASSERT(count(&ids, t, "<｜end▁of▁sentence｜>") ==
                  of_role[HD_ROLE_ASSISTANT] - p.continue_final);
        HD_ASSERT(count(&ids, t, "<think>") == start.in_reasoning);
    }
    hd_ids_fini(&ids);
    return 0;
}
