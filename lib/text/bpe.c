/* Merge table and the two ways of merging: shifting a small array, and a heap over a linked list.
 *
 * Both take the lowest rank first. Ranks are unique, so an entry of the heap is stale exactly when
 * the pair that starts at its position no longer has its rank. */
#include "text/bpe.h"

#include "base/mem.h"

#include <string.h>

enum { small_max = 32 };
#define NO_RANK UINT32_MAX
#define NONE UINT32_MAX /* of a link */

struct merge {
    int32_t left, right, merged;
    uint32_t rank; /* NO_RANK: free */
};

struct hd_bpe {
    struct merge *table; /* open addressing, at most half full */
    unsigned shift;      /* 64 - log2(room) */
    size_t mask;
    uint32_t n_merge;
    int32_t byte_id[256];
};

hd_bpe *hd_bpe_new(size_t n_merge) {
    hd_bpe *b = hd_alloc_zero(1, sizeof *b);
    size_t room = 16;
    b->shift = 60;
    for (; room < n_merge * 2; room *= 2) b->shift--;
    b->mask = room - 1;
    b->table = hd_alloc(room * sizeof *b->table);
    for (size_t i = 0; i < room; i++) b->table[i].rank = NO_RANK;
    return b;
}

void hd_bpe_free(hd_bpe *b) {
    if (!b) return;
    hd_free(b->table);
    hd_free(b);
}

void hd_bpe_set_byte(hd_bpe *b, unsigned char byte, int32_t id) { b->byte_id[byte] = id; }
size_t hd_bpe_n_merge(const hd_bpe *b) { return b->n_merge; }

/* The pair's entry, or the free one where it belongs. */
static struct merge *entry_of(const hd_bpe *b, int32_t left, int32_t right) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    key ^= key >> 29;
    size_t i = (size_t)(key * 0x9E3779B97F4A7C15u >> b->shift);
    for (;; i = (i + 1) & b->mask) {
        struct merge *m = &b->table[i];
        if (m->rank == NO_RANK || (m->left == left && m->right == right)) return m;
    }
}

bool hd_bpe_add_merge(hd_bpe *b, int32_t left, int32_t right, int32_t merged) {
    struct merge *m = entry_of(b, left, right);
    if (m->rank != NO_RANK) return false;
    HD_ASSERT((size_t)b->n_merge * 2 <= b->mask);
    *m = (struct merge){left, right, merged, b->n_merge++};
    return true;
}

void hd_bpe_list(const hd_bpe *b, int32_t (*pair)[2]) {
    for (size_t i = 0; i <= b->mask; i++) {
        const struct merge *m = &b->table[i];
        if (m->rank == NO_RANK) continue;
        pair[m->rank][0] = m->left;
        pair[m->rank][1] = m->right;
    }
}

/* ---- short words: arrays that shrink by shifting ---- */

static size_t encode_small(const hd_bpe *b, hd_str word, hd_ids *out) {
    int32_t id[small_max];
    const struct merge *pair[small_max]; /* [i] of symbols i and i + 1 */
    size_t n = word.len, n_lookup = n - 1;
    for (size_t i = 0; i < n; i++) id[i] = b->byte_id[(unsigned char)word.ptr[i]];
    for (size_t i = 0; i + 1 < n; i++) pair[i] = entry_of(b, id[i], id[i + 1]);
    for (;;) {
        size_t best = 0;
        uint32_t rank = NO_RANK;
        for (size_t i = 0; i + 1 < n; i++) {
            if (pair[i]->rank >= rank) continue;
            rank = pair[i]->rank;
            best = i;
        }
        if (rank == NO_RANK) break;
        id[best] = pair[best]->merged;
        memmove(id + best + 1, id + best + 2, (n - best - 2) * sizeof *id);
        for (size_t i = best; i + 2 < n; i++) pair[i] = pair[i + 1];
        n--;
        if (best > 0) pair[best - 1] = entry_of(b, id[best - 1], id[best]);
        if (best + 1 < n) pair[best] = entry_of(b, id[best], id[best + 1]);
        n_lookup += 2;
    }
    for (size_t i = 0; i < n; i++) hd_ids_add(out, id[i]);
    return n_lookup;
}

/* ---- long words: a heap of rank and position over a doubly linked list ---- */

struct symbol {
    int32_t id, merged; /* merged: what the pair that starts here becomes */
    uint32_t rank;      /* of that pair, or NO_RANK */
    uint32_t prev, next;
};

struct heap {
    uint64_t *key; /* rank << 32 | position */
    size_t n, room;
};

static void sift_down(struct heap *h, size_t i) {
    uint64_t key = h->key[i];
    for (size_t child; (child = 2 * i + 1) < h->n; i = child) {
        if (child + 1 < h->n && h->key[child + 1] < h->key[child]) child++;
        if (key <= h->key[child]) break;
        h->key[i] = h->key[child];
    }
    h->key[i] = key;
}

static void heap_push(struct heap *h, uint64_t key) {
    if (h->n == h->room) {
        h->room += h->room / 2 + 16;
        h->key = hd_realloc(h->key, h->room * sizeof *h->key);
    }
    size_t i = h->n++;
    for (; i > 0 && h->key[(i - 1) / 2] > key; i = (i - 1) / 2) h->key[i] = h->key[(i - 1) / 2];
    h->key[i] = key;
}

static uint64_t heap_pop(struct heap *h) {
    uint64_t top = h->key[0];
    h->key[0] = h->key[--h->n];
    if (h->n > 0) sift_down(h, 0);
    return top;
}

/* Looks up the pair that starts at symbol i. */
static void find_pair(const hd_bpe *b, struct symbol *s, uint32_t i) {
    s[i].rank = NO_RANK;
    if (s[i].next == NONE) return;
    const struct merge *m = entry_of(b, s[i].id, s[s[i].next].id);
    s[i].rank = m->rank;
    if (m->rank != NO_RANK) s[i].merged = m->merged;
}

static size_t encode_large(const hd_bpe *b, hd_str word, hd_ids *out) {
    uint32_t n = (uint32_t)word.len;
    struct symbol *s = hd_alloc(n * sizeof *s);
    struct heap h = {.key = hd_alloc(n * sizeof *h.key), .room = n};
    size_t n_lookup = n - 1;
    for (uint32_t i = 0; i < n; i++)
        s[i] = (struct symbol){b->byte_id[(unsigned char)word.ptr[i]], 0, NO_RANK, i - 1,
                               i + 1 < n ? i + 1 : NONE};
    for (uint32_t i = 0; i < n; i++) {
        find_pair(b, s, i);
        if (s[i].rank != NO_RANK) h.key[h.n++] = (uint64_t)s[i].rank << 32 | i;
    }
    for (size_t i = h.n / 2; i-- > 0;) sift_down(&h, i);
    while (h.n > 0) {
        uint64_t top = heap_pop(&h);
        uint32_t i = (uint32_t)top;
        if (s[i].rank != (uint32_t)(top >> 32)) continue;
        uint32_t gone = s[i].next;
        s[i].id = s[i].merged;
        s[i].next = s[gone].next;
        s[gone].rank = NO_RANK;
        if (s[i].next != NONE) s[s[i].next].prev = i;
        find_pair(b, s, i);
        if (s[i].rank != NO_RANK) heap_push(&h, (uint64_t)s[i].rank << 32 | i);
        uint32_t before = s[i].prev;
        n_lookup += 2;
        if (before == NONE) continue;
        find_pair(b, s, before);
        if (s[before].rank != NO_RANK) heap_push(&h, (uint64_t)s[before].rank << 32 | before);
    }
    for (uint32_t i = 0; i != NONE; i = s[i].next) hd_ids_add(out, s[i].id);
    hd_free(h.key);
    hd_free(s);
    return n_lookup;
}

size_t hd_bpe_encode(const hd_bpe *b, hd_str word, hd_ids *out) {
    HD_ASSERT(word.len < (size_t)1 << 31);
    if (word.len == 0) return 0;
    return word.len <= small_max ? encode_small(b, word, out) : encode_large(b, word, out);
}
