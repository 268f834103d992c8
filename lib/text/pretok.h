/* Pre-tokenizers: cutting text into the words within which BPE merges.
 *
 * A row of the table is a sequence of splitters. Each stands for one regular expression of the
 * tokenizer.json with behaviour "Isolated": its matches become words, and so do the gaps between
 * them; the next splitter sees one such word at a time, so "end of text" in a look-ahead means the
 * end of that word. Splitters are plain functions (split.h), linear in the text.
 *
 * Bytes that are not valid UTF-8 are each a character of their own without a class, so every input
 * is cut into words that, joined, are the input. Thread: any; nothing is written but hd_words. */
#ifndef HD_TEXT_PRETOK_H
#define HD_TEXT_PRETOK_H

#include "base/buf.h"

typedef struct hd_pretok hd_pretok;

/* A step that is no Split: each numeric character alone. */
#define HD_PRETOK_DIGITS "Digits(individual_digits)"

/* The row with these regular expressions (or HD_PRETOK_DIGITS) in this order, or NULL. \r, \n and
 * \uXXXX may be written as escapes. */
const hd_pretok *hd_pretok_by_patterns(const hd_str *pattern, size_t n);
/* How many of the first steps are those of the row that begins most alike: for messages. */
size_t hd_pretok_nearest(const hd_str *pattern, size_t n, const hd_pretok **row);
/* By GGUF's tokenizer.ggml.pre, or NULL. */
const hd_pretok *hd_pretok_by_name(hd_str pre);
const hd_pretok *hd_pretok_at(size_t i); /* every row, in order; NULL after the last */
const char *hd_pretok_name(const hd_pretok *row);
/* What GGUF's name implies besides the words: normalization to NFC; a word that is a token is not
 * merged. */
bool hd_pretok_nfc(const hd_pretok *row);
bool hd_pretok_ignore_merges(const hd_pretok *row);
/* Names of all rows, separated by ", ": for messages. Valid on this thread. */
const char *hd_pretok_known(void);

enum { HD_SPLIT_MAX = 6 };

/* A walk over the words of a text. The text is borrowed while walking. */
typedef struct hd_words {
    const hd_pretok *row;
    const char *at;
    const char *end[HD_SPLIT_MAX + 1]; /* [0] the text's end; [k] of splitter k's current word */
} hd_words;

void hd_words_begin(hd_words *w, const hd_pretok *row, hd_str text);
/* False at the end. A word is never empty. */
bool hd_words_next(hd_words *w, hd_str *word);

#endif
