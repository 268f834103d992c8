/* A small tokenizer for the fuzz targets of lib/text: the bytes as ids 0..255, a few merges, and
 * DeepSeek's markers as added tokens. */
#ifndef HD_FUZZ_SMALL_TOKENIZER_H
#define HD_FUZZ_SMALL_TOKENIZER_H

#include "base/mem.h"
#include "base/utf8.h"
#include "text/nfc.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <string.h>

enum { small_bytes = 256, small_merges = 4, small_markers = 20 };

static const char *const small_marker[small_markers] = {"<｜begin▁of▁sentence｜>",
                                                        "<｜end▁of▁sentence｜>",
                                                        "<｜User｜>",
                                                        "<｜Assistant｜>",
                                                        "<think>",
                                                        "</think>",
                                                        "<｜tool▁output▁begin｜>",
                                                        "<｜tool▁output▁end｜>",
                                                        "<|EOT|>",
                                                        "<｜tool▁calls▁begin｜>",
                                                        "<｜tool▁calls▁end｜>",
                                                        "<｜tool▁call▁begin｜>",
                                                        "<｜tool▁call▁end｜>",
                                                        "<｜tool▁sep｜>",
                                                        "｜DSML｜",
                                                        "<｜System｜>",
                                                        "<｜latest_reminder｜>",
                                                        "<｜query｜>",
                                                        "<｜tool▁outputs▁begin｜>",
                                                        "<｜tool▁outputs▁end｜>"};

/* with_think: whether <think>, </think> and ｜DSML｜ are tokens. Lives until the program ends. */
static inline const hd_tokenizer *small_tokenizer(int with_think) {
    static const char *const merged[small_merges] = {"th", "in", "thin", "ab"};
    static const char *const merge[small_merges] = {"t h", "i n", "th in", "a b"};
    static hd_tokenizer *made[2];
    enum { n = small_bytes + small_merges + small_markers };
    char text[small_bytes][5];
    hd_str token[n], merges[small_merges];
    int32_t type[n];
    unsigned other = 256;
    if (made[with_think]) return made[with_think];
    for (unsigned b = 0; b < small_bytes; b++) {
        bool printable = (b >= 33 && b <= 126) || (b >= 161 && b != 173);
        token[b] = (hd_str){text[b], hd_utf8_encode(printable ? b : other++, text[b])};
        type[b] = 1;
    }
    for (int i = 0; i < small_merges; i++) {
        token[small_bytes + i] = hd_str_of(merged[i]);
        type[small_bytes + i] = 1;
        merges[i] = hd_str_of(merge[i]);
    }
    for (int i = 0; i < small_markers; i++) {
        int at = small_bytes + small_merges + i;
        token[at] = hd_str_of(small_marker[i]);
        type[at] = i < 2 || i == 8 ? 3 : 4;
        if (!with_think && (i == 4 || i == 5 || i == 14)) type[at] = 5;
    }
    hd_tokenizer_parts p = {.name = "small",
                            .pre = hd_str_of("deepseek-v3"),
                            .token = token,
                            .type = type,
                            .n_token = n,
                            .merge = merges,
                            .n_merge = small_merges,
                            .bos = small_bytes + small_merges,
                            .eos = small_bytes + small_merges + 1,
                            .pad = -1,
                            .add_bos = true};
    HD_ASSERT(hd_tokenizer_from_parts(&p, &made[with_think]) == HD_OK);
    return made[with_think];
}

/* Text encodes to ids that decode to it again, in normal form if the tokenizer has one. (Bytes that
 * UTF-8 never uses may be added tokens, which stand for their content: so any bytes only with a
 * tokenizer that has all of them.) */
static inline void small_round_trip(const hd_tokenizer *t, hd_str text, bool match_added,
                                    bool nfc) {
    hd_ids ids = {0};
    hd_buf back, normal;
    hd_buf_init(&back, SIZE_MAX / 2);
    hd_buf_init(&normal, SIZE_MAX / 2);
    hd_tokenizer_encode(t, text, match_added, &ids);
    hd_tokenizer_decode(t, ids.id, ids.n, true, &back);
    if (nfc) text = hd_nfc(text, &normal);
    HD_ASSERT(hd_str_eq(hd_buf_str(&back), text));
    hd_buf_fini(&back);
    hd_buf_fini(&normal);
    hd_ids_fini(&ids);
}

static inline void small_free_parts(hd_tokenizer_parts *p) {
    hd_free((void *)p->token);
    hd_free((void *)p->type);
    hd_free((void *)p->merge);
}

/* An accepted tokenizer turns into lists and back, and the two encode alike (with added tokens only
 * when match_added: lists do not tell which are found in normalized text); and plain text makes a
 * round trip. */
static inline void small_same_by_parts(const hd_tokenizer *t, hd_str text, bool match_added) {
    hd_tokenizer_parts p;
    hd_tokenizer *again;
    hd_ids a = {0}, b = {0};
    hd_tokenizer_to_parts(t, &p);
    if (hd_tokenizer_from_parts(&p, &again) != HD_OK) {
        fprintf(stderr, "refused its own lists: %s\n", hd_error_text());
        HD_ASSERT(false);
    }
    if (hd_utf8_is_valid(text.ptr, text.len)) small_round_trip(t, text, false, p.nfc);
    small_free_parts(&p);
    hd_tokenizer_encode(t, text, match_added, &a);
    hd_tokenizer_encode(again, text, match_added, &b);
    HD_ASSERT(a.n == b.n);
    for (size_t i = 0; i < a.n; i++) HD_ASSERT(a.id[i] == b.id[i]);
    hd_ids_fini(&a);
    hd_ids_fini(&b);
    hd_tokenizer_free(again);
}

#endif
