/* Any bytes as a model folder, config.json and model.safetensors: refused, or every canonical
 * matrix can be made, FP8 with scales included. Two bytes say how long config.json is. */
#include "file/checkpoint_build.h"
#include "model/hparams_source.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile unsigned sink;

static void assert_one_line(void) {
    HD_ASSERT(hd_error_text()[0] && !strchr(hd_error_text(), '\n'));
}

static void touch(const void *p, size_t n) {
    unsigned sum = 0;
    for (size_t i = 0; i < n; i++) sum += ((const uint8_t *)p)[i];
    sink += sum;
}

static void read_model(const hd_checkpoint *c, const hd_hparams *hp) {
    hd_canon *k;
    if (hd_canon_new(c, hp, &k) != HD_OK) {
        assert_one_line();
        return;
    }
    for (size_t i = 0; i < hd_canon_count(k); i++) {
        const hd_canon_tensor *t = hd_canon_at(k, i);
        size_t n_byte = hd_format_bytes(t->format, (size_t)(t->ne[0] * t->ne[1]));
        void *scratch = hd_alloc(n_byte);
        for (int m = 0; m < (int)t->ne[2]; m++) {
            if (hd_canon_check(k, t, m) != HD_OK) assert_one_line();
            touch(hd_canon_matrix(k, t, m, scratch), n_byte);
        }
        hd_free(scratch);
    }
    for (size_t i = 0; i < hd_checkpoint_count(c); i++)
        HD_ASSERT(!hd_canon_is_used(k, i) || !hd_canon_is_surplus(k, i));
    hd_canon_free(k);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    size_t n_config = (size_t)data[0] | (size_t)data[1] << 8;
    if (n_config > size - 2) return 0;
    hd_hparams hp = {.bos = -1, .eos = -1, .pad = -1};
    if (hd_hparams_parse_config((hd_str){(const char *)data + 2, n_config}, "config.json", &hp) !=
        HD_OK) {
        assert_one_line();
        return 0;
    }
    hd_checkpoint *c = hd_checkpoint_new("input");
    hd_mapping image = {.ptr = data + 2 + n_config, .n_byte = size - 2 - n_config, .fd = -1};
    if (hd_safetensors_parse(c, image, "input", NULL, NULL) == HD_OK)
        read_model(c, &hp);
    else
        assert_one_line();
    hd_checkpoint_close(c);
    return 0;
}
