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
    small_same_by_parts(t, text, !memmem(data, size, "\"normalized\"", 12));
    hd_tokenizer_free(t);
    return 0;
}
