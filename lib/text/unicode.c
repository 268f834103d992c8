/* Look-up of a character's class in the generated tables. */
#include "text/unicode.h"

enum hd_unicode_class hd_unicode_class_of(uint32_t cp) {
    if (cp < 0x20000) {
        unsigned pair = hd_unicode_stage2[hd_unicode_stage1[cp >> 7]][(cp & 127) >> 1];
        return (enum hd_unicode_class)(cp & 1 ? pair >> 4 : pair & 15);
    }
    for (size_t i = 0; i < hd_unicode_n_high && hd_unicode_high[i].first <= cp; i++)
        if (cp <= hd_unicode_high[i].last) return (enum hd_unicode_class)hd_unicode_high[i].cls;
    return HD_UC_NONE;
}
