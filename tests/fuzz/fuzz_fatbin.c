/* CUDA containers from arbitrary bytes: what is read adds up, and a choice always loads. */
#include "file/fatbin.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hd_fatbin f;
    if (hd_fatbin_read(data, size, &f) != HD_OK) return 0;
    uint64_t n_byte = 0;
    for (int i = 0; i < f.n_target; i++) {
        char name[32];
        hd_fatbin_name(&f.target[i], name);
        n_byte += f.target[i].n_byte;
        const hd_fatbin_target *t = hd_fatbin_choose(&f, f.target[i].capability);
        if (!t || !hd_fatbin_loads(t, f.target[i].capability)) abort();
    }
    if (n_byte > size) abort();
    return 0;
}
