/* Added tokens: finding their contents in text, leftmost first and the longest there.
 *
 * Immutable once built; any thread. */
#ifndef HD_TEXT_ADDED_H
#define HD_TEXT_ADDED_H

#include "base/buf.h"

typedef struct hd_added hd_added;

hd_added *hd_added_new(void);
void hd_added_free(hd_added *a); /* accepts NULL */
/* False, and nothing changed, when the content is there already. Content: not empty. */
bool hd_added_put(hd_added *a, hd_str content, int32_t id);

typedef struct hd_added_hit {
    size_t at, len;
    int32_t id;
} hd_added_hit;
/* The first added token in text at or after from; false: none. */
bool hd_added_find(const hd_added *a, hd_str text, size_t from, hd_added_hit *out);

#endif
