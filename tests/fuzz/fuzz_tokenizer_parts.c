/* GGUF's lists of any content. Input: lines "<type digit>token", "m<merge>", "b<bos>", "p<pre>". */
#include "tests/fuzz/small_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { list_max = 1024 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static hd_str token[list_max], merge[list_max];
    static int32_t type[list_max];
    hd_tokenizer_parts p = {.name = "input",
                            .pre = hd_str_of("deepseek-v3"),
                            .token = token,
                            .type = type,
                            .merge = merge,
                            .bos = -1,
                            .eos = -1,
                            .pad = -1};
    const char *at = (const char *)data, *end = at + size;
    while (at < end && p.n_token < list_max && p.n_merge < list_max) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        hd_str line = {at + 1, (size_t)((stop ? stop : end) - at)};
        if (line.len > 0) line.len--;
        if (*at == 'm') {
            merge[p.n_merge++] = line;
        } else if (*at == 'p') {
            p.pre = line;
        } else if (*at == 'b') {
            p.bos = line.len > 0 ? line.ptr[0] * 3 : -1;
        } else {
            type[p.n_token] = *at - '0';
            token[p.n_token++] = line;
        }
        at = stop ? stop + 1 : end;
    }
    hd_tokenizer *t;
    hd_tokenizer_imply(&p);
    if (hd_tokenizer_from_parts(&p, &t) != HD_OK) {
        HD_ASSERT(!t && hd_error_text()[0]);
        return 0;
    }
    hd_str text = {(const char *)data, size};
    small_same_by_parts(t, text, true);
    hd_tokenizer_free(t);
    return 0;
}
