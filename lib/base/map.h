/* A hash map from byte strings to 64-bit values, insert and look up only.
 *
 * Keys are borrowed: they must outlive the map. Thread: one writer, then any number of readers. */
#ifndef HD_BASE_MAP_H
#define HD_BASE_MAP_H

#include "base/buf.h"

typedef struct hd_map hd_map;

hd_map *hd_map_new(size_t n_expected);
void hd_map_free(hd_map *m); /* accepts NULL */
/* False, and nothing changed, when the key is already there. */
bool hd_map_put(hd_map *m, hd_str key, uint64_t value);
/* False when the key is not there. */
bool hd_map_get(const hd_map *m, hd_str key, uint64_t *value);
size_t hd_map_count(const hd_map *m);

#endif
