/* /v1/completions bodies from arbitrary bytes: taken within bounds, or refused with a text. */
#include "body.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_body(HD_API_COMPLETION, data, size);
    return 0;
}
