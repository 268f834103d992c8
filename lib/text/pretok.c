/* The table of pre-tokenizers, and the walk through nested splitters. */
#include "text/pretok.h"

#include "base/utf8.h"
#include "text/split.h"

#include <string.h>

struct hd_pretok {
    const char *name; /* GGUF's */
    int n_split;
    const char
        *pattern[HD_SPLIT_MAX]; /* as tokenizer.json writes them, escapes of newlines undone */
    hd_split_fn split[HD_SPLIT_MAX];
    bool nfc, ignore_merges; /* what GGUF implies by the name */
};

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
#define WIDE "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"

#define CASED_LETTERS                                                                              \
    "\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"         \
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1"           \
    "\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5"               \
    "\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"               \
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"          \
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3"         \
    "\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115"          \
    "\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"                 \
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"           \
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"               \
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"                    \
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"         \
    "\U000118a0-\U000118df\U0001e900-\U0001e943"

static const hd_pretok rows[] = {
    {.name = "deepseek-v3", /* V3, R1, V3.1, V3.2, V4 */
     .n_split = 3,
     .pattern = {"\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
                 "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
                 "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|" SPACES},
     .split = {hd_split_numbers, hd_split_cjk_kana, hd_split_v3}},
    {.name = "deepseek-llm", /* V1, moe-16b, V2, V2-Lite, V2.5, Coder-V2 */
     .n_split = 6,
     .pattern = {"[\r\n]", "\\s?[A-Za-z" CASED_LETTERS "]+",
                 "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", "\\s+$", WIDE,
                 HD_PRETOK_DIGITS},
     .split = {hd_split_newline, hd_split_cased, hd_split_marks, hd_split_trailing, hd_split_wide,
               hd_split_digits}},
    {.name = "deepseek-coder", /* the first Coder */
     .n_split = 5,
     .pattern = {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", WIDE, HD_PRETOK_DIGITS},
     .split = {hd_split_newline, hd_split_letters, hd_split_punctuation, hd_split_wide,
               hd_split_digits}},
    {.name = "qwen2", /* R1-Distill-Qwen */
     .n_split = 1,
     .pattern = {CONTRACTIONS "|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
                              " ?[^\\s\\p{L}\\p{N}]+[\r\n]*|" SPACES},
     .split = {hd_split_qwen2},
     .nfc = true},
    {.name = "llama-bpe", /* Llama-3, R1-Distill-Llama */
     .n_split = 1,
     .pattern = {CONTRACTIONS "|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
                              " ?[^\\s\\p{L}\\p{N}]+[\r\n]*|" SPACES},
     .split = {hd_split_llama3},
     .ignore_merges = true},
};

/* Further names that GGUF files have for a row. */
static const struct {
    const char *name, *row;
} other_names[] = {
    {"deepseek-r1-qwen", "qwen2"}, {"llama3", "llama-bpe"}, {"llama-v3", "llama-bpe"}};

static bool hex4(hd_str s, size_t at, uint32_t *out) {
    uint32_t v = 0;
    if (at + 4 > s.len) return false;
    for (size_t i = at; i < at + 4; i++) {
        char c = s.ptr[i], low = (char)(c | 0x20);
        if (c >= '0' && c <= '9')
            v = v * 16 + (uint32_t)(c - '0');
        else if (low >= 'a' && low <= 'f')
            v = v * 16 + (uint32_t)(low - 'a' + 10);
        else
            return false;
    }
    *out = v;
    return v < 0xD800 || v > 0xDFFF;
}

/* Whether a pattern is the row's but for \r, \n and \uXXXX written as escapes. */
static bool same_pattern(hd_str s, const char *row) {
    size_t n = strlen(row), at = 0;
    for (size_t i = 0; i < s.len;) {
        char raw[4] = {s.ptr[i]};
        size_t n_raw = 1, n_read = 1;
        if (s.ptr[i] == '\\' && i + 1 < s.len) {
            uint32_t cp = 0;
            char kind = s.ptr[i + 1];
            n_read = 2;
            if (kind == 'u' && hex4(s, i + 2, &cp) && cp >= 0x80) {
                n_raw = hd_utf8_encode(cp, raw);
                n_read = 6;
            } else if (kind == 'r' || kind == 'n') {
                raw[0] = kind == 'r' ? '\r' : '\n';
            } else {
                raw[1] = kind;
                n_raw = 2;
            }
        }
        if (n - at < n_raw || memcmp(row + at, raw, n_raw) != 0) return false;
        at += n_raw;
        i += n_read;
    }
    return at == n;
}

static size_t count_same(const hd_pretok *row, const hd_str *pattern, size_t n) {
    size_t same = 0;
    while (same < n && same < (size_t)row->n_split &&
           same_pattern(pattern[same], row->pattern[same]))
        same++;
    return same;
}

size_t hd_pretok_nearest(const hd_str *pattern, size_t n, const hd_pretok **row) {
    size_t most = 0;
    *row = &rows[0];
    for (size_t r = 0; r < HD_COUNT_OF(rows); r++) {
        size_t same = count_same(&rows[r], pattern, n);
        if (same <= most) continue;
        most = same;
        *row = &rows[r];
    }
    return most;
}

const hd_pretok *hd_pretok_by_patterns(const hd_str *pattern, size_t n) {
    for (size_t r = 0; r < HD_COUNT_OF(rows); r++)
        if ((size_t)rows[r].n_split == n && count_same(&rows[r], pattern, n) == n) return &rows[r];
    return NULL;
}

const hd_pretok *hd_pretok_by_name(hd_str pre) {
    for (size_t i = 0; i < HD_COUNT_OF(other_names); i++)
        if (hd_str_eq_c(pre, other_names[i].name)) pre = hd_str_of(other_names[i].row);
    for (size_t r = 0; r < HD_COUNT_OF(rows); r++)
        if (hd_str_eq_c(pre, rows[r].name)) return &rows[r];
    return NULL;
}

const hd_pretok *hd_pretok_at(size_t i) { return i < HD_COUNT_OF(rows) ? &rows[i] : NULL; }
const char *hd_pretok_name(const hd_pretok *row) { return row->name; }
bool hd_pretok_nfc(const hd_pretok *row) { return row->nfc; }
bool hd_pretok_ignore_merges(const hd_pretok *row) { return row->ignore_merges; }

const char *hd_pretok_known(void) {
    static _Thread_local char text[256];
    text[0] = 0;
    for (size_t r = 0; r < HD_COUNT_OF(rows); r++) hd_list_add(text, sizeof text, rows[r].name);
    return text;
}

void hd_words_begin(hd_words *w, const hd_pretok *row, hd_str text) {
    w->row = row;
    w->at = text.ptr ? text.ptr : "";
    w->end[0] = w->at + text.len;
    for (int k = 1; k <= row->n_split; k++) w->end[k] = w->at;
}

bool hd_words_next(hd_words *w, hd_str *word) {
    if (w->at == w->end[0]) return false;
    int k = w->row->n_split; /* the deepest splitter whose word is not used up */
    while (w->end[k] == w->at) k--;
    for (; k < w->row->n_split; k++)
        w->end[k + 1] = w->at + w->row->split[k](w->at, (size_t)(w->end[k] - w->at));
    *word = (hd_str){w->at, (size_t)(w->end[k] - w->at)};
    w->at = w->end[k];
    return true;
}
