/* Character classes as the reference tokenizer engine has them: general categories L, M, N, P, S
 * and White_Space (disjoint), for every code point. Tables are generated: tools/gen_unicode.mjs. */
#ifndef HD_TEXT_UNICODE_H
#define HD_TEXT_UNICODE_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum hd_unicode_class {
    HD_UC_NONE, /* controls, formats, unassigned */
    HD_UC_LETTER,
    HD_UC_MARK,
    HD_UC_NUMBER,
    HD_UC_PUNCT,
    HD_UC_SYMBOL,
    HD_UC_SPACE
};

/* cp: any number; above U+10FFFF there is only NONE. */
enum hd_unicode_class hd_unicode_class_of(uint32_t cp);

/* The generated tables. Below U+20000: stage 1 gives the block of 128 code points, stage 2 two
 * classes a byte, low half first. Above: ranges in ascending order. */
typedef struct hd_unicode_range {
    uint32_t first, last;
    uint8_t cls;
} hd_unicode_range;
extern const uint8_t hd_unicode_stage1[0x20000 / 128];
extern const uint8_t hd_unicode_stage2[][64];
extern const hd_unicode_range hd_unicode_high[];
extern const size_t hd_unicode_n_high;

#endif
