/* The mini model's lists, with more tokens at their end. */
#include "support/chat_tokenizer.h"

#include "base/mem.h"
#include "support/check.h"

#include <stdlib.h>
#include <string.h>

static const char *const extra[] = {
    "｜DSML｜",       "<｜System｜>",        "<｜latest_reminder｜>", "<｜action｜>",
    "<｜query｜>",    "<｜authority｜>",     "<｜domain｜>",          "<｜title｜>",
    "<｜read_url｜>", "<｜deepseek_image｜>"};

enum { control = 3, user = 4, unused = 5, token_max = 8192 };

hd_tokenizer *chat_tokenizer(const char *const *without, bool all_control) {
    static hd_str token[token_max];
    static int32_t type[token_max];
    size_t n;
    char *text = test_read_file(test_path("tests/golden/tokenizer/mini_tokenizer.json"), &n);
    hd_tokenizer *mini, *made;
    hd_tokenizer_parts p;
    assert_ok(hd_tokenizer_from_json((hd_str){text, n}, (hd_str){0}, "mini", &mini));
    free(text);
    hd_tokenizer_to_parts(mini, &p);
    n = p.n_token;
    assert_true(n + HD_COUNT_OF(extra) <= token_max);
    memcpy(token, p.token, n * sizeof *token);
    memcpy(type, p.type, n * sizeof *type);
    for (size_t i = 0; i < HD_COUNT_OF(extra); i++, n++) {
        token[n] = hd_str_of(extra[i]);
        type[n] = user;
    }
    for (size_t i = 0; i < n; i++) {
        bool is_marker = token[i].len > 4 && memcmp(token[i].ptr, "<｜", 4) == 0;
        if (all_control && is_marker && type[i] == user) type[i] = control;
        for (const char *const *k = without; *k; k++)
            if (hd_str_eq_c(token[i], *k)) type[i] = unused;
    }
    hd_tokenizer_parts q = p;
    q.token = token;
    q.type = type;
    q.n_token = n;
    assert_ok(hd_tokenizer_from_parts(&q, &made));
    hd_tokenizer_free(mini); /* the lists' name and texts are its own */
    hd_free((void *)p.token);
    hd_free((void *)p.type);
    hd_free((void *)p.merge);
    return made;
}
