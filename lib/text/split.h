/* Splitters: one function for each regular expression of the pre-tokenizers in pretok.c.
 *
 * A splitter gets the rest of a word and returns the length of its first piece: a match of its
 * expression at the start, else the gap up to the next match (n: there is none). p[0..n) is not
 * empty; "end of text" in the expression is p + n. Linear in the length of the piece and the run of
 * characters after it. Bytes that are no UTF-8 are characters without a class. Any thread. */
#ifndef HD_TEXT_SPLIT_H
#define HD_TEXT_SPLIT_H

#include <stddef.h>

typedef size_t (*hd_split_fn)(const char *p, size_t n);

size_t hd_split_newline(const char *p, size_t n);  /* [\r\n] */
size_t hd_split_digits(const char *p, size_t n);   /* Digits(individual_digits) */
size_t hd_split_trailing(const char *p, size_t n); /* \s+$ */

/* DeepSeek-V3 */
size_t hd_split_numbers(const char *p, size_t n);  /* \p{N}{1,3} */
size_t hd_split_cjk_kana(const char *p, size_t n); /* ideographs, hiragana, katakana: + */
size_t hd_split_v3(const char *p, size_t n);       /* the rest */

/* deepseek-llm, deepseek-coder */
size_t hd_split_cased(const char *p, size_t n);       /* \s?[the letters it lists]+ */
size_t hd_split_marks(const char *p, size_t n);       /* \s?[the punctuation it lists]+ */
size_t hd_split_wide(const char *p, size_t n);        /* [U+0800-9FA5, U+AC00-D7FF]+ */
size_t hd_split_letters(const char *p, size_t n);     /* \s?\p{L}+ */
size_t hd_split_punctuation(const char *p, size_t n); /* \s?\p{P}+ */

/* One expression for everything: numbers digit by digit, or by threes. */
size_t hd_split_qwen2(const char *p, size_t n);
size_t hd_split_llama3(const char *p, size_t n);

#endif
