/* Normalization Form C, as the reference tokenizer engine has it: Unicode 9's tables, so that marks
 * and letters added later stay as they are.
 *
 * Any bytes are taken; what is not valid UTF-8 stays and combines with nothing. O(n log n), O(n)
 * for text without combining characters. Any thread. */
#ifndef HD_TEXT_NFC_H
#define HD_TEXT_NFC_H

#include "base/buf.h"

/* The normal form: text itself when it is normal already (out stays as it is), else in out, which
 * is emptied first. */
hd_str hd_nfc(hd_str text, hd_buf *out);

/* The generated tables (tools/gen_unicode.mjs). Ranges, ascending, of the characters that may not
 * stay as they are or combine with one before them. order: the combining class, counted from 1; 0:
 * a starter. All others are plain: starters that end what came before. */
typedef struct hd_nfc_range {
    uint32_t first, last;
    uint8_t order;
} hd_nfc_range;
extern const hd_nfc_range hd_nfc_ranges[];
extern const size_t hd_nfc_n_range;

/* Canonical decompositions, complete, by ascending cp: n characters of hd_nfc_parts from at on. */
typedef struct hd_nfc_split {
    uint32_t cp;
    uint16_t at, n;
} hd_nfc_split;
extern const hd_nfc_split hd_nfc_splits[];
extern const size_t hd_nfc_n_split;
extern const uint32_t hd_nfc_parts[];

/* Canonical compositions, by ascending first, then second. */
typedef struct hd_nfc_pair {
    uint32_t first, second, cp;
} hd_nfc_pair;
extern const hd_nfc_pair hd_nfc_pairs[];
extern const size_t hd_nfc_n_pair;

#endif
