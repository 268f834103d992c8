/* tokenizer.json of any content: refused with a text, or a tokenizer that keeps its promises. */
#include "tests/fuzz/small_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hd_str text = {(const char *)data, size};
    hd_tokenizer *t;
    if (hd_tokenizer_from_json(text, (hd_str){0}, "input", &t) != HD_OK) {
        HD_ASSERT(!t && hd_error_text()[0]);
        return 0;
    }
    if (hd_utf8_is_valid(text.ptr, text.len)) small_round_trip(t, text, false);
    small_same_by_parts(t, text);
    hd_tokenizer_free(t);
    return 0;
}
