/* Regular expressions as functions. Alternatives are tried in their order, as a backtracking regex
 * engine would; where a match is looked for further on, the first position that has one wins. */
#include "text/split.h"

#include "base/utf8.h"
#include "text/unicode.h"

#include <string.h>

struct ch {
    uint32_t cp; /* bad_cp: an invalid byte */
    unsigned cls;
    size_t len; /* 0 at the end */
};

enum { bad_cp = 0x7FFFFFFF };
enum {
    in_L = 1u << HD_UC_LETTER,
    in_M = 1u << HD_UC_MARK,
    in_N = 1u << HD_UC_NUMBER,
    in_P = 1u << HD_UC_PUNCT,
    in_S = 1u << HD_UC_SYMBOL,
    in_space = 1u << HD_UC_SPACE
};

/* The first character of p[0..n); cls is a set of one bit. */
static struct ch char_at(const char *p, size_t n) {
    if (n == 0) return (struct ch){0};
    struct ch c = {.cp = (unsigned char)p[0], .len = 1};
    if (c.cp >= 0x80) {
        c.len = hd_utf8_decode(p, n, &c.cp);
        if (c.len == 0) return (struct ch){bad_cp, 1u << HD_UC_NONE, 1};
    }
    c.cls = 1u << hd_unicode_class_of(c.cp);
    return c;
}

/* Length of the run of characters at p whose class is in the set. */
static size_t class_run(const char *p, size_t n, unsigned set) {
    size_t i = 0;
    for (struct ch c; i < n && (c = char_at(p + i, n - i)).cls & set;) i += c.len;
    return i;
}

static bool is_newline(char c) { return c == '\r' || c == '\n'; }
static bool is_ascii_letter(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }

/* ---- sets of characters ---- */

typedef bool (*set_fn)(struct ch c);

static bool is_cjk_kana(struct ch c) {
    return (c.cp >= 0x4E00 && c.cp <= 0x9FA5) || (c.cp >= 0x3040 && c.cp <= 0x30FF);
}

static bool is_wide(struct ch c) {
    return (c.cp >= 0x0800 && c.cp <= 0x9FA5) || (c.cp >= 0xAC00 && c.cp <= 0xD7FF);
}

/* As Rust has it, which is what Digits asks: \p{N} of a Unicode version later than the rest. */
static bool is_numeric(struct ch c) {
    return c.cls & in_N || (c.cp >= 0x11DE0 && c.cp <= 0x11DE9) ||
           (c.cp >= 0x16FF4 && c.cp <= 0x16FF6);
}

static bool is_letter(struct ch c) { return c.cls & in_L; }
static bool is_punctuation(struct ch c) { return c.cls & in_P; }

static const struct {
    uint32_t first, last;
} cased[] = {
    {0x00B5, 0x00B5},   {0x00C0, 0x00D6},   {0x00D8, 0x00F6},   {0x00F8, 0x01BA},
    {0x01BC, 0x01BF},   {0x01C4, 0x0293},   {0x0295, 0x02AF},   {0x0370, 0x0373},
    {0x0376, 0x0376},   {0x0377, 0x0377},   {0x037B, 0x037D},   {0x037F, 0x037F},
    {0x0386, 0x0386},   {0x0388, 0x038A},   {0x038C, 0x038C},   {0x038E, 0x03A1},
    {0x03A3, 0x03F5},   {0x03F7, 0x0481},   {0x048A, 0x052F},   {0x0531, 0x0556},
    {0x10A0, 0x10C5},   {0x13A0, 0x13F5},   {0x13F8, 0x13FD},   {0x1C90, 0x1CBA},
    {0x1CBD, 0x1CBF},   {0x1D00, 0x1D2B},   {0x1D6B, 0x1D77},   {0x1D79, 0x1D9A},
    {0x1E00, 0x1F15},   {0x1F18, 0x1F1D},   {0x1F20, 0x1F45},   {0x1F48, 0x1F4D},
    {0x1F50, 0x1F57},   {0x1F59, 0x1F59},   {0x1F5B, 0x1F5B},   {0x1F5D, 0x1F5D},
    {0x1F5F, 0x1F7D},   {0x1F80, 0x1FB4},   {0x1FB6, 0x1FBC},   {0x1FBE, 0x1FBE},
    {0x1FC2, 0x1FC4},   {0x1FC6, 0x1FCC},   {0x1FD0, 0x1FD3},   {0x1FD6, 0x1FDB},
    {0x1FE0, 0x1FEC},   {0x1FF2, 0x1FF4},   {0x1FF6, 0x1FFC},   {0x2102, 0x2102},
    {0x2107, 0x2107},   {0x210A, 0x2113},   {0x2115, 0x2115},   {0x2119, 0x211D},
    {0x2124, 0x2124},   {0x2126, 0x2126},   {0x2128, 0x2128},   {0x212A, 0x212D},
    {0x212F, 0x2134},   {0x2139, 0x2139},   {0x213C, 0x213F},   {0x2145, 0x2149},
    {0x214E, 0x214E},   {0x2183, 0x2183},   {0x2184, 0x2184},   {0x2C00, 0x2C7B},
    {0x2C7E, 0x2CE4},   {0x2CEB, 0x2CEE},   {0x2CF2, 0x2CF2},   {0x2CF3, 0x2CF3},
    {0xA640, 0xA66D},   {0xA680, 0xA69B},   {0xA722, 0xA76F},   {0xA771, 0xA787},
    {0xA78B, 0xA78E},   {0xAB70, 0xABBF},   {0xFB00, 0xFB06},   {0xFB13, 0xFB17},
    {0xFF21, 0xFF3A},   {0xFF41, 0xFF5A},   {0x10400, 0x1044F}, {0x104B0, 0x104D3},
    {0x104D8, 0x104FB}, {0x10C80, 0x10CB2}, {0x10CC0, 0x10CF2}, {0x118A0, 0x118DF},
    {0x1E900, 0x1E943},
};

static bool is_cased(struct ch c) {
    if (c.cp < 0x80) return is_ascii_letter((char)c.cp);
    size_t low = 0, high = HD_COUNT_OF(cased);
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (c.cp > cased[mid].last)
            low = mid + 1;
        else
            high = mid;
    }
    return low < HD_COUNT_OF(cased) && c.cp >= cased[low].first;
}

/* !-/ and :-~ (with the letters, which were cut off before), their full-width forms, quotation
 * marks, ideographic space, comma and full stop. */
static bool is_listed_mark(struct ch c) {
    uint32_t ascii = c.cp >= 0xFF01 && c.cp <= 0xFF5E ? c.cp - 0xFEE0 : c.cp;
    return (ascii >= '!' && ascii <= '/') || (ascii >= ':' && ascii <= '~') ||
           (c.cp >= 0x2018 && c.cp <= 0x201F) || (c.cp >= 0x3000 && c.cp <= 0x3002);
}

/* ---- kinds of expressions ---- */

/* Length of the run at p of characters that are in the set, or of those that are not. */
static size_t run_of(const char *p, size_t n, set_fn set, bool inside) {
    size_t i = 0;
    for (struct ch c; i < n && (c = char_at(p + i, n - i), set(c) == inside);) i += c.len;
    return i;
}

/* [set]+ */
static size_t split_run(const char *p, size_t n, set_fn set) {
    return run_of(p, n, set, set(char_at(p, n)));
}

/* [set] */
static size_t split_each(const char *p, size_t n, set_fn set) {
    struct ch c = char_at(p, n);
    return set(c) ? c.len : run_of(p, n, set, false);
}

/* \s?[set]+ */
static size_t split_spaced(const char *p, size_t n, set_fn set) {
    for (size_t i = 0; i < n;) {
        struct ch c = char_at(p + i, n - i);
        size_t from = i; /* of the run */
        if (!set(c) && c.cls & in_space) from += c.len;
        size_t run = run_of(p + from, n - from, set, true);
        if (run > 0) return i > 0 ? i : from + run;
        i += c.len;
    }
    return n;
}

static bool is_line_end(struct ch c) { return c.cp == '\r' || c.cp == '\n'; }

size_t hd_split_newline(const char *p, size_t n) { return split_each(p, n, is_line_end); }
size_t hd_split_digits(const char *p, size_t n) { return split_each(p, n, is_numeric); }
size_t hd_split_cjk_kana(const char *p, size_t n) { return split_run(p, n, is_cjk_kana); }
size_t hd_split_wide(const char *p, size_t n) { return split_run(p, n, is_wide); }
size_t hd_split_cased(const char *p, size_t n) { return split_spaced(p, n, is_cased); }
size_t hd_split_marks(const char *p, size_t n) { return split_spaced(p, n, is_listed_mark); }
size_t hd_split_letters(const char *p, size_t n) { return split_spaced(p, n, is_letter); }
size_t hd_split_punctuation(const char *p, size_t n) { return split_spaced(p, n, is_punctuation); }

size_t hd_split_trailing(const char *p, size_t n) {
    size_t end = 0; /* of the last character that is no white space */
    for (size_t i = 0; i < n;) {
        struct ch c = char_at(p + i, n - i);
        i += c.len;
        if (!(c.cls & in_space)) end = i;
    }
    return end > 0 ? end : n;
}

size_t hd_split_numbers(const char *p, size_t n) {
    size_t i = class_run(p, n, ~(unsigned)in_N);
    if (i > 0) return i;
    for (int k = 0; k < 3; k++) {
        struct ch c = char_at(p + i, n - i);
        if (!(c.cls & in_N)) break;
        i += c.len;
    }
    return i;
}

/* ---- the last expression of DeepSeek-V3, and the only one of Qwen2 and Llama-3 ---- */

/* \s*[\r\n]+|\s+(?!\S)|\s+ at a white-space character. */
static size_t match_space(const char *p, size_t n) {
    size_t i = 0, last = 0, newline_end = 0;
    for (struct ch c; i < n && (c = char_at(p + i, n - i)).cls & in_space;) {
        last = i;
        i += c.len;
        if (is_newline(p[last])) newline_end = i;
    }
    if (newline_end > 0) return newline_end;
    /* The last space before something else is left to it, unless it is the only one. */
    return i == n || last == 0 ? i : last;
}

/* The length of DeepSeek-V3's third expression matched at p, or 0:
 * [!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|(spaces) */
static size_t match_v3(const char *p, size_t n) {
    struct ch c = char_at(p, n);
    size_t i = c.len;
    if (c.cp < 0x80 && (c.cls & (in_P | in_S)) && n > 1 && is_ascii_letter(p[1])) {
        while (i < n && is_ascii_letter(p[i])) i++;
        return i;
    }
    if (c.cls & (in_L | in_M)) return i + class_run(p + i, n - i, in_L | in_M);
    if (!(c.cls & (in_P | in_S)) && !is_newline(p[0])) {
        size_t run = class_run(p + i, n - i, in_L | in_M);
        if (run > 0) return i + run;
    }
    size_t from = c.cp == ' ' ? 1 : 0;
    size_t run = class_run(p + from, n - from, in_P | in_S);
    if (run > 0) {
        for (i = from + run; i < n && is_newline(p[i]);) i++;
        return i;
    }
    return c.cls & in_space ? match_space(p, n) : 0;
}

size_t hd_split_v3(const char *p, size_t n) {
    size_t i = 0, len = 0;
    while (i < n && (len = match_v3(p + i, n - i)) == 0) i += char_at(p + i, n - i).len;
    return i > 0 ? i : len;
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d) at p: its length, or 0. Without case, the long s is an s. */
static size_t match_contraction(const char *p, size_t n) {
    if (n < 2 || p[0] != '\'') return 0;
    if (n > 2 && memcmp(p + 1, "\u017f", 2) == 0) return 3;
    char a = (char)(p[1] | 0x20), b = n > 2 ? (char)(p[2] | 0x20) : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* (contraction)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,max}| ?[^\s\p{L}\p{N}]+[\r\n]*|(spaces): every
 * character begins a match. */
static size_t split_gpt(const char *p, size_t n, int max_number) {
    struct ch c = char_at(p, n);
    size_t i = match_contraction(p, n);
    if (i > 0) return i;
    if (c.cls & in_L) return class_run(p, n, in_L);
    if (c.cls & in_N) {
        for (int k = 0; k < max_number && c.cls & in_N; k++, c = char_at(p + i, n - i)) i += c.len;
        return i;
    }
    size_t run = is_newline(p[0]) ? 0 : class_run(p + c.len, n - c.len, in_L);
    if (run > 0) return c.len + run;
    size_t from = c.cp == ' ' ? 1 : 0;
    run = class_run(p + from, n - from, ~(unsigned)(in_space | in_L | in_N));
    if (run == 0) return match_space(p, n);
    for (i = from + run; i < n && is_newline(p[i]);) i++;
    return i;
}

size_t hd_split_qwen2(const char *p, size_t n) { return split_gpt(p, n, 1); }
size_t hd_split_llama3(const char *p, size_t n) { return split_gpt(p, n, 3); }
