/* The page pool: one array of nodes, a stack of free pages and a list of cached ones through it. */
#include "kv/pages.h"

#include "base/mem.h"
#include "base/status.h"

#include <stdint.h>

enum state { FREE, IN_USE, CACHED };

struct node {
    int32_t refs;       /* IN_USE only */
    int32_t prev, next; /* neighbours in the list of CACHED pages, in the stack of FREE ones */
    uint8_t state;
};

struct hd_pages {
    struct node *node; /* [n_page] */
    int n_page, n_free, n_cached;
    int32_t free_top;       /* last freed is first taken: its bytes may still be in a CPU cache */
    int32_t oldest, newest; /* ends of the cached list */
};

hd_pages *hd_pages_new(int n_page) {
    HD_ASSERT(n_page > 0);
    hd_pages *p = hd_alloc_zero(1, sizeof *p);
    p->node = hd_alloc_zero((size_t)n_page, sizeof *p->node);
    p->n_page = p->n_free = n_page;
    for (int i = 0; i < n_page; i++) {
        p->node[i] =
            (struct node){.prev = i - 1, .next = i + 1 < n_page ? i + 1 : -1, .state = FREE};
    }
    p->free_top = 0;
    p->oldest = p->newest = -1;
    return p;
}

void hd_pages_free(hd_pages *p) {
    if (!p) return;
    hd_free(p->node);
    hd_free(p);
}

static struct node *node_at(const hd_pages *p, int page) {
    HD_ASSERT(page >= 0 && page < p->n_page);
    return &p->node[page];
}

void hd_pages_take_at(hd_pages *p, int page) {
    struct node *n = node_at(p, page);
    HD_ASSERT(n->state == FREE);
    *(n->prev >= 0 ? &p->node[n->prev].next : &p->free_top) = n->next;
    if (n->next >= 0) p->node[n->next].prev = n->prev;
    p->n_free--;
    *n = (struct node){.refs = 1, .prev = -1, .next = -1, .state = IN_USE};
}

int hd_pages_take(hd_pages *p) {
    int page = p->free_top;
    if (page >= 0) hd_pages_take_at(p, page);
    return page;
}

static void push_free(hd_pages *p, int page) {
    *node_at(p, page) = (struct node){.prev = -1, .next = p->free_top, .state = FREE};
    if (p->free_top >= 0) p->node[p->free_top].prev = page;
    p->free_top = page;
    p->n_free++;
}

static void link_newest(hd_pages *p, int page) {
    *node_at(p, page) = (struct node){.prev = p->newest, .next = -1, .state = CACHED};
    if (p->newest >= 0)
        p->node[p->newest].next = page;
    else
        p->oldest = page;
    p->newest = page;
    p->n_cached++;
}

static void unlink_cached(hd_pages *p, int page) {
    struct node *n = node_at(p, page);
    HD_ASSERT(n->state == CACHED);
    if (n->prev >= 0)
        p->node[n->prev].next = n->next;
    else
        p->oldest = n->next;
    if (n->next >= 0)
        p->node[n->next].prev = n->prev;
    else
        p->newest = n->prev;
    p->n_cached--;
}

void hd_pages_ref(hd_pages *p, int page) {
    struct node *n = node_at(p, page);
    HD_ASSERT(n->state != FREE);
    if (n->state == CACHED) {
        unlink_cached(p, page);
        *n = (struct node){.prev = -1, .next = -1, .state = IN_USE};
    }
    n->refs++;
}

void hd_pages_unref(hd_pages *p, int page, bool keep) {
    struct node *n = node_at(p, page);
    HD_ASSERT(n->state == IN_USE && n->refs > 0);
    if (--n->refs > 0) return;
    if (keep)
        link_newest(p, page);
    else
        push_free(p, page);
}

int hd_pages_next_free(const hd_pages *p) { return p->free_top; }
int hd_pages_oldest(const hd_pages *p) { return p->oldest; }

int hd_pages_newer(const hd_pages *p, int page) {
    HD_ASSERT(node_at(p, page)->state == CACHED);
    return p->node[page].next;
}

void hd_pages_drop(hd_pages *p, int page) {
    unlink_cached(p, page);
    push_free(p, page);
}

void hd_pages_move(hd_pages *p, int from, int to) {
    struct node *a = node_at(p, from), *b = node_at(p, to);
    HD_ASSERT(a->state != FREE && b->state == IN_USE && b->refs == 1);
    *b = *a;
    if (a->state == CACHED) {
        *(a->prev >= 0 ? &p->node[a->prev].next : &p->oldest) = to;
        *(a->next >= 0 ? &p->node[a->next].prev : &p->newest) = to;
    }
    *a = (struct node){.refs = 1, .prev = -1, .next = -1, .state = IN_USE};
}

int hd_pages_find_run(const hd_pages *p, const hd_pages_search *q) {
    int best = -1, n_best = q->n + 1, n_cached = 0, len = 0;
    int end = p->n_page - q->from < q->n_look ? p->n_page : q->from + q->n_look;
    for (int i = q->from; i < end && n_best > 0; i++) {
        if (p->node[i].state == IN_USE || i == q->avoid) {
            len = n_cached = 0;
            continue;
        }
        n_cached += p->node[i].state == CACHED;
        if (++len > q->n) n_cached -= p->node[i - q->n].state == CACHED;
        if (len < q->n || n_cached >= n_best) continue;
        best = i - q->n + 1;
        n_best = n_cached;
    }
    return best;
}

int hd_pages_refs(const hd_pages *p, int page) { return node_at(p, page)->refs; }
bool hd_pages_is_cached(const hd_pages *p, int page) { return node_at(p, page)->state == CACHED; }
bool hd_pages_is_free(const hd_pages *p, int page) { return node_at(p, page)->state == FREE; }
int hd_pages_n_page(const hd_pages *p) { return p->n_page; }
int hd_pages_n_free(const hd_pages *p) { return p->n_free; }
int hd_pages_n_cached(const hd_pages *p) { return p->n_cached; }

void hd_pages_check(const hd_pages *p) {
    int count[3] = {0};
    for (int i = 0; i < p->n_page; i++) {
        const struct node *n = &p->node[i];
        HD_ASSERT(n->state <= CACHED && (n->refs > 0) == (n->state == IN_USE));
        count[n->state]++;
    }
    HD_ASSERT(count[FREE] == p->n_free && count[CACHED] == p->n_cached);
    int n_seen = 0, before = -1;
    for (int i = p->free_top; i >= 0; before = i, i = p->node[i].next) {
        HD_ASSERT(p->node[i].state == FREE && p->node[i].prev == before);
        HD_ASSERT(++n_seen <= p->n_free);
    }
    HD_ASSERT(n_seen == p->n_free);
    n_seen = 0;
    before = -1;
    for (int i = p->oldest; i >= 0; before = i, i = p->node[i].next) {
        HD_ASSERT(p->node[i].state == CACHED && p->node[i].prev == before);
        HD_ASSERT(++n_seen <= p->n_cached);
    }
    HD_ASSERT(n_seen == p->n_cached && before == p->newest);
}
