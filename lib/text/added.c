/* A byte trie; children of a node are a list, the roots a table by first byte. */
#include "text/added.h"

#include "base/mem.h"

struct node {
    uint32_t child, sibling; /* 0: none (node 0 is never a child) */
    int32_t id;              /* -1: no token ends here */
    unsigned char byte;
};

struct hd_added {
    struct node *node;
    uint32_t n, room;
    uint32_t root[256]; /* 0: no token begins so */
};

hd_added *hd_added_new(void) {
    hd_added *a = hd_alloc_zero(1, sizeof *a);
    a->room = 64;
    a->node = hd_alloc_zero(a->room, sizeof *a->node);
    a->n = 1;
    return a;
}

void hd_added_free(hd_added *a) {
    if (!a) return;
    hd_free(a->node);
    hd_free(a);
}

static uint32_t new_node(hd_added *a, unsigned char byte) {
    if (a->n == a->room) {
        a->room *= 2;
        a->node = hd_realloc(a->node, a->room * sizeof *a->node);
    }
    a->node[a->n] = (struct node){.id = -1, .byte = byte};
    return a->n++;
}

static uint32_t child_of(const hd_added *a, uint32_t parent, unsigned char byte) {
    uint32_t c = a->node[parent].child;
    while (c && a->node[c].byte != byte) c = a->node[c].sibling;
    return c;
}

bool hd_added_put(hd_added *a, hd_str content, int32_t id) {
    unsigned char first = (unsigned char)content.ptr[0];
    HD_ASSERT(content.len > 0);
    if (!a->root[first]) a->root[first] = new_node(a, first);
    uint32_t at = a->root[first];
    for (size_t i = 1; i < content.len; i++) {
        unsigned char byte = (unsigned char)content.ptr[i];
        uint32_t c = child_of(a, at, byte);
        if (!c) {
            c = new_node(a, byte);
            a->node[c].sibling = a->node[at].child;
            a->node[at].child = c;
        }
        at = c;
    }
    if (a->node[at].id >= 0) return false;
    a->node[at].id = id;
    return true;
}

/* The longest token at p[0..n): its length, or 0. */
static size_t match_at(const hd_added *a, const char *p, size_t n, int32_t *id) {
    size_t len = 0;
    uint32_t at = a->root[(unsigned char)p[0]];
    for (size_t i = 1; at; i++) {
        if (a->node[at].id >= 0) {
            len = i;
            *id = a->node[at].id;
        }
        if (i == n) break;
        at = child_of(a, at, (unsigned char)p[i]);
    }
    return len;
}

bool hd_added_find(const hd_added *a, hd_str text, size_t from, hd_added_hit *out) {
    for (size_t i = from; i < text.len && a->n > 1; i++) {
        if (!a->root[(unsigned char)text.ptr[i]]) continue;
        size_t len = match_at(a, text.ptr + i, text.len - i, &out->id);
        if (len == 0) continue;
        out->at = i;
        out->len = len;
        return true;
    }
    return false;
}
