/* Any bytes are cut by every pre-tokenizer into words that, joined, are the bytes; and encode to
 * ids that decode to them.
 */
#include "tests/fuzz/small_tokenizer.h"
#include "text/pretok.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hd_str text = {(const char *)data, size}, word;
    const hd_pretok *row;
    for (size_t r = 0; (row = hd_pretok_at(r)) != NULL; r++) {
        hd_words w;
        size_t at = 0;
        hd_words_begin(&w, row, text);
        while (hd_words_next(&w, &word)) {
            HD_ASSERT(word.len > 0 && word.ptr == text.ptr + at);
            at += word.len;
        }
        HD_ASSERT(at == size);
    }
    small_round_trip(small_tokenizer(1), text, false, false);
    small_round_trip(small_tokenizer(1), text, true, false);
    return 0;
}
