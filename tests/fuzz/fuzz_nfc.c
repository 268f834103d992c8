/* Any bytes have a normal form, which is its own; what is valid UTF-8 stays so. */
#include "base/mem.h"
#include "base/utf8.h"
#include "text/nfc.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hd_str text = {(const char *)data, size};
    hd_buf once, twice;
    hd_buf_init(&once, SIZE_MAX / 2);
    hd_buf_init(&twice, SIZE_MAX / 2);
    hd_str normal = hd_nfc(text, &once);
    HD_ASSERT(hd_utf8_is_valid(text.ptr, size) == hd_utf8_is_valid(normal.ptr, normal.len));
    HD_ASSERT(hd_nfc(normal, &twice).ptr == normal.ptr);
    hd_buf_fini(&once);
    hd_buf_fini(&twice);
    return 0;
}
