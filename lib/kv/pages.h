/* The pool of KV pages: fixed-size pages known only by their numbers 0..n_page-1.
 *
 * A page is free, in use (1 or more references) or cached (no references, its content kept for
 * reuse). Cached pages stand in a list from least to most recently released: the head is the one to
 * give up first. What a page holds, and where its bytes are, is not known here: every cache kind of
 * a model (latent, K, V, ...) lays out its own arena over the same page numbers.
 *
 * Owner: the engine thread. Allocates only in hd_pages_new. Misuse is a bug (assertion). */
#ifndef HD_KV_PAGES_H
#define HD_KV_PAGES_H

#include <stdbool.h>

typedef struct hd_pages hd_pages;

hd_pages *hd_pages_new(int n_page);
void hd_pages_free(hd_pages *p); /* accepts NULL */

/* A free page, now in use with one reference, or -1 when none is free. */
int hd_pages_take(hd_pages *p);
/* The same of a free page of the caller's choice. */
void hd_pages_take_at(hd_pages *p, int page);
/* One reference more; the page is in use or cached. */
void hd_pages_ref(hd_pages *p, int page);
/* One reference less. The last one makes the page cached (most recent) if `keep`, else free. */
void hd_pages_unref(hd_pages *p, int page, bool keep);
/* The free page that is taken next, or -1. */
int hd_pages_next_free(const hd_pages *p);
/* The cached page released longest ago, or -1. */
int hd_pages_oldest(const hd_pages *p);
/* The cached page released next after `page`, which is cached; or -1. */
int hd_pages_newer(const hd_pages *p, int page);
/* Makes a cached page free. */
void hd_pages_drop(hd_pages *p, int page);

/* Page `to`, just taken, stands for `from` from now on: with its references, or as cached as that
 * was. `from` is then what `to` was: in use with one reference. */
void hd_pages_move(hd_pages *p, int from, int to);
typedef struct hd_pages_search {
    int n;            /* consecutive pages of which none is in use, and as few as possible cached */
    int avoid;        /* none of them is this one */
    int from, n_look; /* among so many pages from this one on, at most until the last page */
} hd_pages_search;
/* The first page of the run; -1: there is none. */
int hd_pages_find_run(const hd_pages *p, const hd_pages_search *q);

int hd_pages_refs(const hd_pages *p, int page);
bool hd_pages_is_cached(const hd_pages *p, int page);
bool hd_pages_is_free(const hd_pages *p, int page);
int hd_pages_n_page(const hd_pages *p);
int hd_pages_n_free(const hd_pages *p);
int hd_pages_n_cached(const hd_pages *p);

/* Asserts: every page is in exactly one state, lists are linked both ways, counts add up. */
void hd_pages_check(const hd_pages *p);

#endif
