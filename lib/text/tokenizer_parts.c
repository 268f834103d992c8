/* The lists of a GGUF file: token texts, their types, merges.
 *
 * Types in GGUF: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte. hadal writes an
 * added token as control when it is special (hidden when text is shown) and as user-defined when it
 * is not. llama.cpp's converter writes control for every <｜...｜> as well, which would hide
 * <｜User｜> and the tool markers that parsers need. Since it never writes <｜...｜> as
 * user-defined, a file without any such token is taken to be its work, and there the markers that
 * DeepSeek's own tokenizer.json has as not special are shown again. */
#include "text/tokenizer_impl.h"

#include <stdio.h>
#include <string.h>

enum { type_normal = 1, type_unknown = 2, type_control = 3, type_user = 4, type_unused = 5 };

#define BAR "｜"
enum { bar_len = sizeof BAR - 1 };

/* <｜...｜> */
static bool is_marker(hd_str s) {
    return s.len > 2 * bar_len + 2 && memcmp(s.ptr, "<" BAR, bar_len + 1) == 0 &&
           memcmp(s.ptr + s.len - bar_len - 1, BAR ">", bar_len + 1) == 0;
}

static bool begins(hd_str s, const char *with) {
    size_t n = strlen(with);
    return s.len >= n && memcmp(s.ptr, with, n) == 0;
}

/* The <｜...｜> tokens that DeepSeek's tokenizer.json has as special. */
static bool is_special_marker(const hd_tokenizer_parts *p, int32_t id) {
    static const char *const special[] = {"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>",
                                          "<｜▁pad▁｜>"};
    if (id == p->bos || id == p->eos || id == p->pad) return true;
    for (size_t i = 0; i < HD_COUNT_OF(special); i++)
        if (hd_str_eq_c(p->token[id], special[i])) return true;
    return begins(p->token[id], "<｜place▁holder▁no▁");
}

static bool has_shown_marker(const hd_tokenizer_parts *p) {
    for (size_t i = 0; i < p->n_token; i++)
        if (p->type[i] == type_user && is_marker(p->token[i])) return true;
    return false;
}

/* The converter's name for a row of the matrix without a token. */
static bool is_pad(hd_str s, size_t id) {
    char pad[32];
    snprintf(pad, sizeof pad, "[PAD%zu]", id);
    return hd_str_eq_c(s, pad);
}

static bool is_unused(const hd_tokenizer_parts *p, size_t id) {
    return p->type[id] == type_unused || (p->type[id] == type_user && is_pad(p->token[id], id));
}

static bool is_added(const hd_tokenizer_parts *p, size_t id) {
    return p->type[id] != type_normal && !is_unused(p, id);
}

static hd_status check_parts(const hd_tokenizer_parts *p) {
    const struct {
        const char *what;
        int32_t id;
    } role[] = {{"bos", p->bos}, {"eos", p->eos}, {"padding", p->pad}};
    if (p->n_token == 0 || p->n_token > HD_TOKEN_ID_MAX + 1)
        return HD_FAIL(CORRUPT, "%s: %zu tokens, expected 1..%d", p->name, p->n_token,
                       HD_TOKEN_ID_MAX + 1);
    for (size_t i = 0; i < p->n_token; i++)
        if (p->type[i] < type_normal || p->type[i] > type_unused)
            return HD_FAIL(UNSUPPORTED, "%s: token %zu has type %d, expected 1..5", p->name, i,
                           p->type[i]);
    for (size_t i = 0; i < HD_COUNT_OF(role); i++) {
        int32_t id = role[i].id;
        if (id == -1) continue;
        if (id < 0 || (size_t)id >= p->n_token || is_unused(p, (size_t)id))
            return HD_FAIL(CORRUPT, "%s: the %s token %d is not one of %zu tokens", p->name,
                           role[i].what, id, p->n_token);
    }
    return HD_OK;
}

/* Vocabulary first, so that its byte texts win over those of added tokens. */
static hd_status put_tokens(hd_tokenizer *t, const hd_tokenizer_parts *p) {
    bool as_written = has_shown_marker(p);
    for (size_t i = 0; i < p->n_token; i++)
        if (p->type[i] == type_normal) HD_TRY(hd_tokenizer_put_vocab(t, (int32_t)i, p->token[i]));
    for (size_t i = 0; i < p->n_token; i++) {
        if (!is_added(p, i)) continue;
        bool special = p->type[i] != type_user;
        if (special && !as_written && is_marker(p->token[i]))
            special = is_special_marker(p, (int32_t)i);
        HD_TRY(hd_tokenizer_put_added(t, (int32_t)i, p->token[i], special ? HD_ADDED_SPECIAL : 0));
    }
    return HD_OK;
}

static hd_status put_merges(hd_tokenizer *t, const hd_tokenizer_parts *p) {
    for (size_t i = 0; i < p->n_merge; i++) {
        hd_str m = p->merge[i];
        const char *space = m.len > 0 ? memchr(m.ptr, ' ', m.len) : NULL;
        if (!space) return HD_FAIL(CORRUPT, "%s: merge %zu is not \"left right\"", p->name, i);
        size_t n_left = (size_t)(space - m.ptr);
        HD_TRY(hd_tokenizer_put_merge(t, (hd_str){m.ptr, n_left},
                                      (hd_str){space + 1, m.len - n_left - 1}));
    }
    return HD_OK;
}

/* Files from before tokenizer.ggml.pre: the models are told apart by a token's id. */
static hd_str pre_by_tokens(const hd_tokenizer_parts *p) {
    static const struct {
        size_t id;
        const char *token, *pre;
    } mark[] = {
        {0, "<｜begin▁of▁sentence｜>", "deepseek-v3"},
        {100000, "<｜begin▁of▁sentence｜>", "deepseek-llm"},
        {32013, "<｜begin▁of▁sentence｜>", "deepseek-coder"},
        {151646, "<｜begin▁of▁sentence｜>", "deepseek-r1-qwen"},
        {151643, "<|endoftext|>", "qwen2"},
        {128000, "<｜begin▁of▁sentence｜>", "llama-bpe"},
        {128000, "<|begin_of_text|>", "llama-bpe"},
    };
    for (size_t i = 0; i < HD_COUNT_OF(mark); i++)
        if (mark[i].id < p->n_token && hd_str_eq_c(p->token[mark[i].id], mark[i].token))
            return hd_str_of(mark[i].pre);
    return p->pre;
}

bool hd_tokenizer_imply(hd_tokenizer_parts *p) {
    bool is_unsaid = p->pre.len == 0 || hd_str_eq_c(p->pre, "default");
    hd_str pre = is_unsaid ? pre_by_tokens(p) : p->pre;
    const hd_pretok *row = hd_pretok_by_name(pre);
    if (!row) return false;
    p->pre = pre;
    p->nfc = hd_pretok_nfc(row);
    p->ignore_merges = hd_pretok_ignore_merges(row);
    p->add_bos = !hd_str_eq_c(pre, "qwen2");
    return true;
}

static hd_status load(const hd_tokenizer_parts *p, hd_tokenizer **out) {
    const hd_pretok *pretok = hd_pretok_by_name(p->pre);
    if (!pretok)
        return HD_FAIL(UNSUPPORTED, "%s: tokenizer.ggml.pre \"%s\" is not known (known: %s)",
                       p->name, hd_show(p->pre), hd_pretok_known());
    HD_TRY(check_parts(p));
    size_t n_token = p->n_token; /* rows after the last token, only there to fill a matrix */
    while (n_token > 1 && is_unused(p, n_token - 1)) n_token--;
    hd_tokenizer *t = *out = hd_tokenizer_new(p->name, n_token, p->n_merge);
    t->pretok = pretok;
    t->nfc = p->nfc;
    t->ignore_merges = p->ignore_merges;
    t->bos = p->bos;
    t->eos = p->eos;
    t->pad = p->pad;
    t->add_bos = p->add_bos;
    HD_TRY(put_tokens(t, p));
    HD_TRY(put_merges(t, p));
    return hd_tokenizer_finish(t);
}

hd_status hd_tokenizer_from_parts(const hd_tokenizer_parts *p, hd_tokenizer **out) {
    *out = NULL;
    hd_status s = load(p, out);
    if (s == HD_OK) return HD_OK;
    hd_tokenizer_free(*out);
    *out = NULL;
    return s;
}

/* ---- and back ---- */

/* Strings gathered one after another; turned into one block of hd_str and their bytes. */
static hd_str *to_block(const hd_buf *text, const size_t *end, size_t n) {
    hd_str *out = hd_alloc(n * sizeof *out + text->len + 1);
    char *bytes = (char *)(out + n);
    if (text->len) memcpy(bytes, text->ptr, text->len);
    for (size_t i = 0, at = 0; i < n; at = end[i++]) out[i] = (hd_str){bytes + at, end[i] - at};
    return out;
}

static int32_t type_of(uint32_t flags) {
    if (!flags) return type_unused;
    if (!(flags & HD_TOKEN_ADDED)) return type_normal;
    return flags & HD_TOKEN_SPECIAL ? type_control : type_user;
}

void hd_tokenizer_to_parts(const hd_tokenizer *t, hd_tokenizer_parts *out) {
    size_t n_merge = hd_bpe_n_merge(t->bpe);
    size_t n_max = t->n_token > n_merge ? t->n_token : n_merge;
    size_t *end = hd_alloc((n_max + 1) * sizeof *end);
    int32_t *type = hd_alloc(t->n_token * sizeof *type);
    int32_t(*pair)[2] = hd_alloc((n_merge + 1) * sizeof *pair);
    hd_buf b;
    hd_buf_init(&b, SIZE_MAX / 2);
    for (size_t i = 0; i < t->n_token; i++) {
        type[i] = type_of(t->token[i].flags);
        if (type[i] == type_unused)
            hd_buf_addf(&b, "[PAD%zu]", i);
        else
            hd_tokenizer_symbols(t, (int32_t)i, &b);
        end[i] = b.len;
    }
    *out = (hd_tokenizer_parts){.name = t->name,
                                .pre = hd_str_of(hd_pretok_name(t->pretok)),
                                .token = to_block(&b, end, t->n_token),
                                .type = type,
                                .n_token = t->n_token,
                                .n_merge = n_merge,
                                .bos = t->bos,
                                .eos = t->eos,
                                .pad = t->pad,
                                .add_bos = t->add_bos,
                                .nfc = t->nfc,
                                .ignore_merges = t->ignore_merges};
    hd_buf_clear(&b);
    hd_bpe_list(t->bpe, pair);
    for (size_t i = 0; i < n_merge; i++) {
        hd_tokenizer_symbols(t, pair[i][0], &b);
        hd_buf_add(&b, " ", 1);
        hd_tokenizer_symbols(t, pair[i][1], &b);
        end[i] = b.len;
    }
    out->merge = to_block(&b, end, n_merge);
    hd_buf_fini(&b);
    hd_free(pair);
    hd_free(end);
}
