/* Open addressing over XXH3 hashes; grows at 3/4 full. */
#include "base/map.h"

#include "base/mem.h"

#include <xxhash.h>

struct entry {
    hd_str key; /* ptr NULL: free */
    uint64_t hash, value;
};

struct hd_map {
    struct entry *entry;
    size_t n, room; /* room is a power of two */
};

hd_map *hd_map_new(size_t n_expected) {
    hd_map *m = hd_alloc_zero(1, sizeof *m);
    m->room = 16;
    while (m->room < n_expected + n_expected / 2) m->room *= 2;
    m->entry = hd_alloc_zero(m->room, sizeof *m->entry);
    return m;
}

void hd_map_free(hd_map *m) {
    if (!m) return;
    hd_free(m->entry);
    hd_free(m);
}

/* The entry that holds the key, or the free one where it belongs. */
static struct entry *slot_of(const hd_map *m, hd_str key, uint64_t hash) {
    for (size_t i = hash & (m->room - 1);; i = (i + 1) & (m->room - 1)) {
        struct entry *e = &m->entry[i];
        if (!e->key.ptr || (e->hash == hash && hd_str_eq(e->key, key))) return e;
    }
}

static void grow(hd_map *m) {
    struct entry *old = m->entry;
    size_t n_old = m->room;
    m->room *= 2;
    m->entry = hd_alloc_zero(m->room, sizeof *m->entry);
    for (size_t i = 0; i < n_old; i++)
        if (old[i].key.ptr) *slot_of(m, old[i].key, old[i].hash) = old[i];
    hd_free(old);
}

bool hd_map_put(hd_map *m, hd_str key, uint64_t value) {
    if (!key.ptr) key.ptr = "";
    if (m->n + 1 > m->room - m->room / 4) grow(m);
    uint64_t hash = XXH3_64bits(key.ptr, key.len);
    struct entry *e = slot_of(m, key, hash);
    if (e->key.ptr) return false;
    *e = (struct entry){.key = key, .hash = hash, .value = value};
    m->n++;
    return true;
}

bool hd_map_get(const hd_map *m, hd_str key, uint64_t *value) {
    if (!key.ptr) key.ptr = "";
    const struct entry *e = slot_of(m, key, XXH3_64bits(key.ptr, key.len));
    if (!e->key.ptr) return false;
    *value = e->value;
    return true;
}

size_t hd_map_count(const hd_map *m) { return m->n; }
