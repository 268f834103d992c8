/* The table of pre-tokenizers and their splitters.
 *
 * A splitter gets the rest of a word and returns the length of its first piece: a match of its
 * regular expression at the start, else the gap up to the next match. Rules are tried in the order
 * of the alternatives, as a backtracking regex engine would. */
#include "text/pretok.h"

#include "base/utf8.h"
#include "text/unicode.h"

#include <stdio.h>

typedef size_t (*split_fn)(const char *p, size_t n);

struct hd_pretok {
    const char *name; /* GGUF's */
    int n_split;
    const char *pattern[HD_SPLIT_MAX]; /* as tokenizer.json writes them */
    split_fn split[HD_SPLIT_MAX];
};

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

/* \p{N}{1,3} */
static size_t split_numbers(const char *p, size_t n) {
    size_t i = class_run(p, n, ~(unsigned)in_N);
    if (i > 0) return i;
    for (int k = 0; k < 3; k++) {
        struct ch c = char_at(p + i, n - i);
        if (!(c.cls & in_N)) break;
        i += c.len;
    }
    return i;
}

static bool is_cjk(uint32_t cp) {
    return (cp >= 0x4E00 && cp <= 0x9FA5) || (cp >= 0x3040 && cp <= 0x30FF);
}

/* Chinese ideographs, hiragana, katakana: one or more. */
static size_t split_cjk(const char *p, size_t n) {
    struct ch c = char_at(p, n);
    bool inside = is_cjk(c.cp);
    size_t i = 0;
    for (; i < n && is_cjk(c.cp) == inside; c = char_at(p + i, n - i)) i += c.len;
    return i;
}

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

static size_t split_v3(const char *p, size_t n) {
    size_t i = 0, len = 0;
    while (i < n && (len = match_v3(p + i, n - i)) == 0) i += char_at(p + i, n - i).len;
    return i > 0 ? i : len;
}

static const hd_pretok rows[] = {
    {.name = "deepseek-v3",
     .n_split = 3,
     .pattern = {"\\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
                 "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
                 "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|"
                 "\\s*[\r\n]+|\\s+(?!\\S)|\\s+"},
     .split = {split_numbers, split_cjk, split_v3}},
};

const hd_pretok *hd_pretok_by_patterns(const hd_str *pattern, size_t n) {
    for (size_t r = 0; r < HD_COUNT_OF(rows); r++) {
        size_t same = 0;
        if ((size_t)rows[r].n_split != n) continue;
        while (same < n && hd_str_eq_c(pattern[same], rows[r].pattern[same])) same++;
        if (same == n) return &rows[r];
    }
    return NULL;
}

const hd_pretok *hd_pretok_by_name(hd_str pre) {
    for (size_t r = 0; r < HD_COUNT_OF(rows); r++)
        if (hd_str_eq_c(pre, rows[r].name)) return &rows[r];
    return NULL;
}

const char *hd_pretok_name(const hd_pretok *row) { return row->name; }

const char *hd_pretok_known(void) {
    static _Thread_local char text[256];
    size_t n = 0;
    for (size_t r = 0; r < HD_COUNT_OF(rows) && n < sizeof text; r++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", r ? ", " : "", rows[r].name);
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
