/* Any bytes as the head of an image file: refused with a line, or blocks that lie in the file. Also
 * with the sum put right, which hardly any would have. */
#include "base/mem.h"
#include "file/image.h"

#include <string.h>

#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void parse(hd_str bytes) {
    static const uint64_t n_file = 4 << 20;
    hd_image_block *block;
    size_t n_block = 0;
    if (hd_image_parse(bytes, n_file, "key", &block, &n_block) != HD_OK) {
        HD_ASSERT(!block && hd_error_text()[0] && !strchr(hd_error_text(), '\n'));
        return;
    }
    for (size_t i = 0; i < n_block; i++) {
        uint64_t at = (uint64_t)((const char *)block[i].ptr - bytes.ptr);
        HD_ASSERT(at % 64 == 0 && at <= n_file && block[i].n_byte <= n_file - at);
        HD_ASSERT(strlen(block[i].name) < HD_IMAGE_NAME_MAX);
        HD_ASSERT(i == 0 || strcmp(block[i - 1].name, block[i].name) <= 0);
    }
    hd_free(block);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { head_bytes = 72, place_bytes = 80, count_at = 64 };
    parse((hd_str){(const char *)data, size});
    uint64_t n = size < head_bytes ? 0 : (size - head_bytes) / place_bytes;
    size_t n_head = head_bytes + (size_t)n * place_bytes;
    char *whole = hd_alloc_zero(1, n_head + sizeof(XXH64_hash_t));
    memcpy(whole, data, size < n_head ? size : n_head);
    memcpy(whole + count_at, &n, sizeof n);
    XXH64_hash_t sum = XXH3_64bits(whole, n_head);
    memcpy(whole + n_head, &sum, sizeof sum);
    parse((hd_str){whole, n_head + sizeof sum});
    hd_free(whole);
    return 0;
}
