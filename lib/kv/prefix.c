/* The prefix index: a hash table of indexed pages and one of promised pages, both chained through
 * per-page arrays, since a page has at most one entry. */
#include "kv/prefix.h"

#include "base/mem.h"
#include "base/status.h"

#include <string.h>
#include <xxhash.h>

enum kind { NONE, INDEXED, PROMISED };
enum { N_TABLE = 3 }; /* table[NONE] stays unused */

struct fp {
    uint64_t lo, hi;
};

struct entry {
    struct fp key, fp;
    uint64_t salt;   /* INDEXED */
    uint64_t serial; /* PROMISED */
    /* INDEXED: the page before, the first of the pages behind, and its neighbours among the pages
     * behind its own parent (none where parent is -1); -1: none. */
    int32_t parent, child, older, younger;
    int32_t next; /* in its bucket; -1: last */
    int32_t rank; /* PROMISED */
    uint8_t kind;
    bool is_hidden; /* INDEXED, but in no bucket */
};

struct hd_prefix {
    hd_pages *pages;
    int n_page, page_tok;
    uint64_t model_key, serial;
    struct entry *entry; /* [n_page] */
    int32_t *token;      /* [n_page, page_tok] of indexed pages */
    uint8_t *form;       /* [n_page, page_tok] of indexed pages */
    uint32_t n_bucket;   /* power of two */
    int32_t *table[N_TABLE];
    int32_t *front; /* [n_page] the search's frontier; the check's marks */
    char *bytes;    /* what is hashed: a fingerprint and a page's tokens or forms */
};

static size_t page_bytes(const hd_prefix *x, size_t n_byte) { return (size_t)x->page_tok * n_byte; }

hd_prefix *hd_prefix_new(hd_pages *pages, int page_tok, uint64_t model_key) {
    HD_ASSERT(page_tok > 0);
    hd_prefix *x = hd_alloc_zero(1, sizeof *x);
    x->pages = pages;
    x->n_page = hd_pages_n_page(pages);
    x->page_tok = page_tok;
    x->model_key = model_key;
    size_t n_page = (size_t)x->n_page;
    x->entry = hd_alloc_zero(n_page, sizeof *x->entry);
    x->token = hd_alloc_zero(n_page, page_bytes(x, sizeof *x->token));
    x->form = hd_alloc_zero(n_page, page_bytes(x, sizeof *x->form));
    x->front = hd_alloc_zero(n_page, sizeof *x->front);
    x->bytes = hd_alloc_zero(1, sizeof(struct fp) + page_bytes(x, sizeof *x->token));
    for (x->n_bucket = 16; x->n_bucket < n_page; x->n_bucket *= 2) {
    }
    for (int t = INDEXED; t <= PROMISED; t++) {
        x->table[t] = hd_alloc_zero(x->n_bucket, sizeof *x->table[t]);
        for (uint32_t i = 0; i < x->n_bucket; i++) x->table[t][i] = -1;
    }
    return x;
}

void hd_prefix_free(hd_prefix *x) {
    if (!x) return;
    hd_free(x->entry);
    hd_free(x->token);
    hd_free(x->form);
    hd_free(x->table[INDEXED]);
    hd_free(x->table[PROMISED]);
    hd_free(x->front);
    hd_free(x->bytes);
    hd_free(x);
}

/* Fingerprints */

static struct fp hash(const void *p, size_t n_byte) {
    XXH128_hash_t h = XXH3_128bits(p, n_byte);
    return (struct fp){.lo = h.low64, .hi = h.high64};
}

static struct fp chain(const hd_prefix *x, struct fp before, const void *p, size_t n_byte) {
    memcpy(x->bytes, &before, sizeof before);
    memcpy(x->bytes + sizeof before, p, n_byte);
    return hash(x->bytes, sizeof before + n_byte);
}

static struct fp root_of(const hd_prefix *x, uint64_t salt) {
    uint64_t seed[2] = {x->model_key, salt};
    return hash(seed, sizeof seed);
}

static struct fp key_of(const hd_prefix *x, struct fp before, const int32_t *token) {
    return chain(x, before, token, page_bytes(x, sizeof *token));
}

static struct fp fp_of(const hd_prefix *x, struct fp key, const uint8_t *form) {
    return chain(x, key, form, page_bytes(x, sizeof *form));
}

static bool fp_eq(struct fp a, struct fp b) { return a.lo == b.lo && a.hi == b.hi; }

/* Entries */

static struct entry *entry_at(const hd_prefix *x, int page) {
    HD_ASSERT(page >= 0 && page < x->n_page);
    return &x->entry[page];
}

static int32_t *bucket_of(const hd_prefix *x, int kind, struct fp key) {
    return &x->table[kind][key.lo & (x->n_bucket - 1)];
}

static int32_t *token_at(const hd_prefix *x, int page) {
    return x->token + (size_t)page * (size_t)x->page_tok;
}

static uint8_t *form_at(const hd_prefix *x, int page) {
    return x->form + (size_t)page * (size_t)x->page_tok;
}

static void link_entry(hd_prefix *x, int page) {
    struct entry *e = entry_at(x, page);
    int32_t *head = bucket_of(x, e->kind, e->key);
    e->next = *head;
    *head = page;
}

static void unlink_entry(hd_prefix *x, int page) {
    struct entry *e = entry_at(x, page);
    int32_t *at = bucket_of(x, e->kind, e->key);
    while (*at != page) {
        HD_ASSERT(*at >= 0);
        at = &x->entry[*at].next;
    }
    *at = e->next;
}

/* Page is the youngest child of its parent. */
static void join_family(hd_prefix *x, int page) {
    struct entry *e = entry_at(x, page);
    e->child = e->older = e->younger = -1;
    if (e->parent < 0) return;
    int32_t *first = &entry_at(x, e->parent)->child;
    e->younger = *first;
    if (*first >= 0) x->entry[*first].older = page;
    *first = page;
}

/* Whoever names page as a sibling or as its first child names `as` instead; its neighbours are
 * joined when that is -1. */
static void leave_family(hd_prefix *x, int page, int as) {
    struct entry *e = entry_at(x, page);
    if (e->parent < 0) return;
    int next = as >= 0 ? as : e->younger, before = as >= 0 ? as : e->older;
    *(e->older >= 0 ? &x->entry[e->older].younger : &x->entry[e->parent].child) = next;
    if (e->younger >= 0) x->entry[e->younger].older = before;
}

static void evict(hd_prefix *x, int page) {
    struct entry *e = entry_at(x, page);
    HD_ASSERT(e->kind == INDEXED && e->child < 0);
    leave_family(x, page, -1);
    if (!e->is_hidden) unlink_entry(x, page);
    e->kind = NONE;
    hd_pages_drop(x->pages, page);
}

int hd_prefix_take(hd_prefix *x) {
    int page = hd_pages_take(x->pages);
    if (page >= 0) return page;
    int oldest = hd_pages_oldest(x->pages);
    if (oldest < 0) return -1;
    evict(x, oldest);
    return hd_pages_take(x->pages);
}

static void end_promise(hd_prefix *x, int page) {
    struct entry *e = entry_at(x, page);
    if (e->kind != PROMISED) return;
    unlink_entry(x, page);
    e->kind = NONE;
}

void hd_prefix_release(hd_prefix *x, int page) {
    end_promise(x, page);
    hd_pages_unref(x->pages, page, x->entry[page].kind == INDEXED);
}

void hd_prefix_hide(hd_prefix *x, int page) {
    struct entry *e = entry_at(x, page);
    HD_ASSERT(e->kind == INDEXED);
    if (!e->is_hidden) unlink_entry(x, page);
    e->is_hidden = true;
}

void hd_prefix_drop_cached(hd_prefix *x) {
    for (int page; (page = hd_pages_oldest(x->pages)) >= 0;) evict(x, page);
}

void hd_prefix_promise(hd_prefix *x, int page, const hd_prefix_content *c, int rank) {
    struct entry *e = entry_at(x, page);
    HD_ASSERT(e->kind == NONE && hd_pages_refs(x->pages, page) == 1);
    HD_ASSERT(c->parent < 0 || entry_at(x, c->parent)->kind != NONE);
    struct fp before = c->parent < 0 ? root_of(x, c->salt) : x->entry[c->parent].fp;
    struct fp key = key_of(x, before, c->token);
    *e = (struct entry){.key = key,
                        .fp = fp_of(x, key, c->form),
                        .serial = ++x->serial,
                        .rank = rank,
                        .kind = PROMISED};
    link_entry(x, page);
}

/* Whether an indexed page holds the content of key `key`, behind `parent` (-1: salt's root), with
 * these tokens, and forms where given. */
static bool holds(const hd_prefix *x, int page, struct fp key, const hd_prefix_content *c) {
    const struct entry *e = &x->entry[page];
    if (!fp_eq(e->key, key) || e->parent != c->parent || e->salt != c->salt) return false;
    if (memcmp(token_at(x, page), c->token, page_bytes(x, sizeof *c->token)) != 0) return false;
    return !c->form || memcmp(form_at(x, page), c->form, page_bytes(x, sizeof *c->form)) == 0;
}

int hd_prefix_publish(hd_prefix *x, int page, const hd_prefix_content *c) {
    struct entry *e = entry_at(x, page);
    HD_ASSERT(e->kind != INDEXED && hd_pages_refs(x->pages, page) == 1);
    HD_ASSERT(c->parent < 0 || entry_at(x, c->parent)->kind == INDEXED);
    HD_ASSERT(c->parent < 0 || hd_pages_refs(x->pages, c->parent) > 0);
    struct fp before = c->parent < 0 ? root_of(x, c->salt) : x->entry[c->parent].fp;
    struct fp key = key_of(x, before, c->token);
    for (int twin = *bucket_of(x, INDEXED, key); twin >= 0; twin = x->entry[twin].next) {
        if (!holds(x, twin, key, c)) continue;
        hd_pages_ref(x->pages, twin);
        hd_prefix_release(x, page);
        return twin;
    }
    end_promise(x, page);
    *e = (struct entry){.key = key,
                        .fp = fp_of(x, key, c->form),
                        .salt = c->salt,
                        .parent = c->parent,
                        .kind = INDEXED};
    memcpy(token_at(x, page), c->token, page_bytes(x, sizeof *c->token));
    memcpy(form_at(x, page), c->form, page_bytes(x, sizeof *c->form));
    join_family(x, page);
    link_entry(x, page);
    return page;
}

void hd_prefix_move(hd_prefix *x, int from, int to) {
    struct entry *e = entry_at(x, from), *f = entry_at(x, to);
    HD_ASSERT(e->kind != PROMISED && f->kind == NONE);
    hd_pages_move(x->pages, from, to);
    if (e->kind == NONE) return;
    if (!e->is_hidden) unlink_entry(x, from);
    *f = *e;
    leave_family(x, from, to);
    for (int c = f->child; c >= 0; c = x->entry[c].younger) x->entry[c].parent = to;
    memcpy(token_at(x, to), token_at(x, from), page_bytes(x, sizeof *x->token));
    memcpy(form_at(x, to), form_at(x, from), page_bytes(x, sizeof *x->form));
    if (!f->is_hidden) link_entry(x, to);
    e->kind = NONE;
}

/* Search */

static hd_prefix_content content_at(const hd_prefix *x, const hd_prefix_ask *ask, int parent,
                                    int depth) {
    size_t at = (size_t)depth * (size_t)x->page_tok;
    return (hd_prefix_content){.parent = parent,
                               .salt = ask->salt,
                               .token = ask->token + at,
                               .form = ask->form ? ask->form + at : NULL};
}

/* Indexed pages that continue `parent` at `depth` go to front[n..]; the new length. */
static int add_children(hd_prefix *x, const hd_prefix_ask *ask, int parent, int depth, int n) {
    hd_prefix_content c = content_at(x, ask, parent, depth);
    struct fp before = parent < 0 ? root_of(x, ask->salt) : x->entry[parent].fp;
    struct fp key = key_of(x, before, c.token);
    for (int p = *bucket_of(x, INDEXED, key); p >= 0; p = x->entry[p].next) {
        if (holds(x, p, key, &c)) x->front[n++] = p;
    }
    return n;
}

/* The last promised page of the chain that continues fingerprint `before` at `depth`, or -1. */
static int last_promised(const hd_prefix *x, const hd_prefix_ask *ask, struct fp before,
                         int depth) {
    int last = -1;
    for (; depth < ask->n_page; depth++) {
        hd_prefix_content c = content_at(x, ask, -1, depth);
        struct fp key = key_of(x, before, c.token);
        int p = *bucket_of(x, PROMISED, key);
        for (; p >= 0; p = x->entry[p].next) {
            const struct entry *e = &x->entry[p];
            if (!fp_eq(e->key, key) || e->rank > ask->rank) continue;
            if (!c.form || fp_eq(e->fp, fp_of(x, key, c.form))) break;
        }
        if (p < 0) break;
        last = p;
        before = x->entry[p].fp;
    }
    return last;
}

int hd_prefix_match(hd_prefix *x, const hd_prefix_ask *ask, int32_t *path, hd_prefix_wait *wait) {
    /* Pages of one depth are front[i0..i1). Each page has one parent, so the tree has at most
     * n_page of them, and the search visits none twice. */
    int depth = 0, i0 = 0, i1 = 0;
    while (depth < ask->n_page) {
        int n = i1;
        if (depth == 0) n = add_children(x, ask, -1, 0, 0);
        for (int i = i0; depth > 0 && i < i1; i++) {
            n = add_children(x, ask, x->front[i], depth, n);
        }
        if (n == i1) break;
        i0 = i1;
        i1 = n;
        depth++;
    }
    int page = depth > 0 ? x->front[i0] : -1, promised = -1;
    if (depth == 0) promised = last_promised(x, ask, root_of(x, ask->salt), 0);
    for (int i = i0; i < i1 && promised < 0; i++) {
        promised = last_promised(x, ask, x->entry[x->front[i]].fp, depth);
        if (promised >= 0) page = x->front[i];
    }
    *wait =
        (hd_prefix_wait){.page = promised, .serial = promised >= 0 ? x->entry[promised].serial : 0};
    for (int d = depth - 1; d >= 0; d--, page = x->entry[page].parent) path[d] = page;
    return depth;
}

bool hd_prefix_is_pending(const hd_prefix *x, hd_prefix_wait wait) {
    if (wait.page < 0) return false;
    const struct entry *e = entry_at(x, wait.page);
    return e->kind == PROMISED && e->serial == wait.serial;
}

const int32_t *hd_prefix_tokens(const hd_prefix *x, int page) {
    HD_ASSERT(entry_at(x, page)->kind == INDEXED);
    return token_at(x, page);
}

const uint8_t *hd_prefix_forms(const hd_prefix *x, int page) {
    HD_ASSERT(entry_at(x, page)->kind == INDEXED);
    return form_at(x, page);
}

bool hd_prefix_is_indexed(const hd_prefix *x, int page) {
    return entry_at(x, page)->kind == INDEXED;
}

bool hd_prefix_is_promised(const hd_prefix *x, int page) {
    return entry_at(x, page)->kind == PROMISED;
}

int hd_prefix_parent(const hd_prefix *x, int page) {
    HD_ASSERT(entry_at(x, page)->kind == INDEXED);
    return x->entry[page].parent;
}

/* Invariants */

static void check_indexed(const hd_prefix *x, int page) {
    const struct entry *e = &x->entry[page];
    struct fp before = root_of(x, e->salt);
    if (e->parent >= 0) {
        const struct entry *up = entry_at(x, e->parent);
        HD_ASSERT(up->kind == INDEXED && up->salt == e->salt);
        HD_ASSERT(hd_pages_refs(x->pages, e->parent) >= hd_pages_refs(x->pages, page));
        before = up->fp;
    }
    HD_ASSERT(fp_eq(e->key, key_of(x, before, token_at(x, page))));
    HD_ASSERT(fp_eq(e->fp, fp_of(x, e->key, form_at(x, page))));
    HD_ASSERT(hd_pages_refs(x->pages, page) > 0 || hd_pages_is_cached(x->pages, page));
}

static bool are_twins(const hd_prefix *x, int a, int b) {
    hd_prefix_content c = {.parent = x->entry[a].parent,
                           .salt = x->entry[a].salt,
                           .token = token_at(x, a),
                           .form = form_at(x, a)};
    return holds(x, b, x->entry[a].key, &c);
}

static void check_table(const hd_prefix *x, int kind) {
    int n_entry = 0, n_linked = 0;
    for (int i = 0; i < x->n_page; i++) {
        n_entry += x->entry[i].kind == kind && !x->entry[i].is_hidden;
    }
    for (uint32_t i = 0; i < x->n_bucket; i++) {
        for (int p = x->table[kind][i]; p >= 0; p = x->entry[p].next) {
            HD_ASSERT(x->entry[p].kind == kind && ++n_linked <= n_entry);
            HD_ASSERT(bucket_of(x, kind, x->entry[p].key) == &x->table[kind][i]);
            for (int q = x->entry[p].next; kind == INDEXED && q >= 0; q = x->entry[q].next) {
                HD_ASSERT(!are_twins(x, p, q));
            }
        }
    }
    HD_ASSERT(n_linked == n_entry);
}

void hd_prefix_check(const hd_prefix *x) {
    hd_pages_check(x->pages);
    check_table(x, INDEXED);
    check_table(x, PROMISED);
    memset(x->front, 0, (size_t)x->n_page * sizeof *x->front);
    for (int i = 0; i < x->n_page; i++) {
        const struct entry *e = &x->entry[i];
        HD_ASSERT(e->kind == INDEXED || !hd_pages_is_cached(x->pages, i));
        if (e->kind == PROMISED) HD_ASSERT(hd_pages_refs(x->pages, i) == 1);
        if (e->kind != INDEXED) continue;
        check_indexed(x, i);
        if (e->parent >= 0) x->front[e->parent]++;
    }
    for (int i = 0; i < x->n_page; i++) {
        if (x->entry[i].kind != INDEXED) continue;
        int n_child = 0, before = -1;
        for (int c = x->entry[i].child; c >= 0; before = c, c = x->entry[c].younger) {
            HD_ASSERT(x->entry[c].kind == INDEXED && x->entry[c].parent == i);
            HD_ASSERT(x->entry[c].older == before && ++n_child <= x->front[i]);
        }
        HD_ASSERT(n_child == x->front[i]);
    }
    /* From the oldest on, evicting would always find a page whose children are gone. */
    for (int p = hd_pages_oldest(x->pages); p >= 0; p = hd_pages_newer(x->pages, p)) {
        HD_ASSERT(x->front[p] == 0);
        if (x->entry[p].parent >= 0) x->front[x->entry[p].parent]--;
    }
}
