/* Any bytes as a safetensors file: refused, or every tensor's bytes are there, once. */
#include "file/checkpoint_build.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile unsigned sink;

static bool has_even_length(void *user, hd_str name) {
    (void)user;
    return name.len % 2 == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hd_mapping image = {.ptr = data, .n_byte = size, .fd = -1};
    for (int pass = 0; pass < 2; pass++) {
        hd_checkpoint *c = hd_checkpoint_new("input");
        uint64_t n_byte = 0;
        if (hd_safetensors_parse(c, image, "input", pass ? has_even_length : NULL, NULL) != HD_OK) {
            HD_ASSERT(hd_error_text()[0] && !strchr(hd_error_text(), '\n'));
        } else {
            for (size_t i = 0; i < hd_checkpoint_count(c); i++) {
                const hd_file_tensor *t = hd_checkpoint_at(c, i);
                unsigned sum = 0;
                for (uint64_t k = 0; k < t->n_byte; k++) sum += ((const uint8_t *)t->data)[k];
                sink += sum;
                n_byte += t->n_byte;
                HD_ASSERT(hd_checkpoint_find(c, t->name) == t);
            }
            HD_ASSERT(n_byte <= size);
        }
        hd_checkpoint_close(c);
    }
    return 0;
}
