/* Text is walked until a character that is not plain; from the starter before it up to the next
 * plain character everything is decomposed, put in canonical order and composed again. Hangul
 * syllables are composed by arithmetic and never need decomposing here. */
#include "text/nfc.h"

#include "base/mem.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { short_run = 32 };
enum { L_first = 0x1100, V_first = 0x1161, T_before = 0x11A7, S_first = 0xAC00 };
enum { n_L = 19, n_V = 21, n_T = 28, n_S = n_L * n_V * n_T };
/* An invalid byte: beyond Unicode, so that it is a starter that combines with nothing. */
enum { bad_byte = 0x7F000000 };

struct part {
    uint32_t cp;
    uint32_t order;
};

struct parts {
    struct part *p;
    size_t n, room;
    struct part *spare; /* as large as p */
};

/* The range of a character that is not plain, or NULL. */
static const hd_nfc_range *range_of(uint32_t cp) {
    size_t low = 0, high = hd_nfc_n_range;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (cp > hd_nfc_ranges[mid].last)
            low = mid + 1;
        else
            high = mid;
    }
    return low < hd_nfc_n_range && cp >= hd_nfc_ranges[low].first ? &hd_nfc_ranges[low] : NULL;
}

static bool is_plain(uint32_t cp) { return cp < hd_nfc_ranges[0].first || !range_of(cp); }

static size_t read_char(const char *p, size_t n, uint32_t *cp) {
    size_t len = hd_utf8_decode(p, n, cp);
    if (len > 0) return len;
    *cp = bad_byte + (unsigned char)p[0];
    return 1;
}

static void push(struct parts *l, uint32_t cp) {
    if (l->n == l->room) {
        l->room = l->room ? l->room * 2 : 64;
        l->p = hd_realloc(l->p, l->room * sizeof *l->p);
        l->spare = hd_realloc(l->spare, l->room * sizeof *l->spare);
    }
    const hd_nfc_range *r = range_of(cp);
    l->p[l->n++] = (struct part){cp, r ? r->order : 0};
}

static int by_cp(const void *key, const void *item) {
    uint32_t cp = *(const uint32_t *)key, other = ((const hd_nfc_split *)item)->cp;
    return (cp > other) - (cp < other);
}

static void push_decomposed(struct parts *l, uint32_t cp) {
    const hd_nfc_split *s =
        bsearch(&cp, hd_nfc_splits, hd_nfc_n_split, sizeof *hd_nfc_splits, by_cp);
    if (!s) {
        push(l, cp);
        return;
    }
    for (size_t i = 0; i < s->n; i++) push(l, hd_nfc_parts[s->at + i]);
}

/* Stable, by order. */
static void sort_run(struct part *p, struct part *spare, size_t n) {
    if (n <= short_run) {
        for (size_t i = 1; i < n; i++) {
            struct part moved = p[i];
            size_t at = i;
            for (; at > 0 && p[at - 1].order > moved.order; at--) p[at] = p[at - 1];
            p[at] = moved;
        }
        return;
    }
    size_t at[257] = {0};
    for (size_t i = 0; i < n; i++) at[p[i].order + 1]++;
    for (size_t k = 1; k < HD_COUNT_OF(at); k++) at[k] += at[k - 1];
    for (size_t i = 0; i < n; i++) spare[at[p[i].order]++] = p[i];
    memcpy(p, spare, n * sizeof *p);
}

static void put_in_order(struct parts *l) {
    for (size_t i = 0; i < l->n;) {
        size_t end = i;
        while (end < l->n && l->p[end].order > 0) end++;
        sort_run(l->p + i, l->spare + i, end - i);
        i = end + 1;
    }
}

static int by_pair(const void *key, const void *item) {
    const hd_nfc_pair *a = key, *b = item;
    if (a->first != b->first) return a->first > b->first ? 1 : -1;
    return (a->second > b->second) - (a->second < b->second);
}

/* What two characters become, or 0. */
static uint32_t compose(uint32_t a, uint32_t b) {
    if (a >= L_first && a < L_first + n_L && b >= V_first && b < V_first + n_V)
        return S_first + ((a - L_first) * n_V + (b - V_first)) * n_T;
    if (a >= S_first && a < S_first + n_S && (a - S_first) % n_T == 0 && b > T_before &&
        b < T_before + n_T)
        return a + (b - T_before);
    hd_nfc_pair key = {a, b, 0};
    const hd_nfc_pair *pair =
        bsearch(&key, hd_nfc_pairs, hd_nfc_n_pair, sizeof *hd_nfc_pairs, by_pair);
    return pair ? pair->cp : 0;
}

/* Composes each character with the last starter before it, unless one between them has the same
 * order or a higher one, or is a starter itself. */
static void put_together(struct parts *l) {
    size_t n = 0, starter = SIZE_MAX;
    for (size_t i = 0; i < l->n; i++) {
        struct part c = l->p[i];
        bool is_next = starter != SIZE_MAX && (n == starter + 1 || l->p[n - 1].order < c.order);
        uint32_t both = is_next ? compose(l->p[starter].cp, c.cp) : 0;
        if (both) {
            l->p[starter].cp = both;
            continue;
        }
        if (c.order == 0) starter = n;
        l->p[n++] = c;
    }
    l->n = n;
}

/* Appends the normal form of p[0..n), decided on its own. */
static void add_normal(const char *p, size_t n, struct parts *l, hd_buf *out) {
    l->n = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += read_char(p + i, n - i, &cp);
        push_decomposed(l, cp);
    }
    put_in_order(l);
    put_together(l);
    for (size_t i = 0; i < l->n; i++) {
        char utf8[4] = {(char)(l->p[i].cp - bad_byte)};
        size_t len = l->p[i].cp >= bad_byte ? 1 : hd_utf8_encode(l->p[i].cp, utf8);
        hd_buf_add(out, utf8, len);
    }
}

hd_str hd_nfc(hd_str text, hd_buf *out) {
    struct parts l = {0};
    size_t done = 0;    /* bytes of text that are in out */
    size_t starter = 0; /* where the last plain character begins */
    bool is_changed = false;
    hd_buf_clear(out);
    for (size_t i = 0; i < text.len;) {
        uint32_t cp = (unsigned char)text.ptr[i];
        size_t len = cp < 0x80 ? 1 : read_char(text.ptr + i, text.len - i, &cp);
        if (is_plain(cp)) {
            starter = i;
            i += len;
            continue;
        }
        size_t end = i + len; /* of what may change: the next plain character */
        for (; end < text.len; end += len) {
            len = read_char(text.ptr + end, text.len - end, &cp);
            if (is_plain(cp)) break;
        }
        size_t n_before = out->len + (starter - done);
        hd_buf_add(out, text.ptr + done, starter - done);
        add_normal(text.ptr + starter, end - starter, &l, out);
        is_changed |= out->len - n_before != end - starter ||
                      memcmp(out->ptr + n_before, text.ptr + starter, end - starter) != 0;
        done = starter = i = end;
    }
    hd_free(l.p);
    hd_free(l.spare);
    if (!is_changed) return text;
    hd_buf_add(out, text.ptr + done, text.len - done);
    return hd_buf_str(out);
}
