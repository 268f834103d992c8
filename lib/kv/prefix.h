/* The prefix index: which KV pages can stand for which beginning of which sequence.
 *
 * A full page is found by a chained fingerprint (XXH3-128):
 *     key_i = H(fp_{i-1}, tokens of page i)      fp_i = H(key_i, forms of page i's positions)
 *     fp_{-1} = H(model_key, salt)
 * so a page is reused only behind exactly the pages it was computed behind, computed in exactly the
 * same MLA forms, with the same weights, for the same tenant. Pages of equal tokens but different
 * forms share a key: the index is a multi-map. A fingerprint only finds candidates; a hit is a page
 * whose stored tokens are equal and whose parent is the very page matched before it, so a collision
 * costs a miss and never gives a wrong page. docs/adr/0004-prefix-index.md says why.
 *
 * An indexed page's ancestors outlive it: whoever references a page references all its ancestors,
 * and releases descendants first; so a cached page's descendants are all cached, and released
 * before it, and the page released longest ago never has one. Evicting in that order keeps the
 * index sound.
 *
 * A promise says that a page in use will hold a certain content soon: others can wait for it
 * instead of computing the same. A page is promised, indexed or neither.
 *
 * Owner: the engine thread. Allocates only in hd_prefix_new. Misuse is a bug (assertion). */
#ifndef HD_KV_PREFIX_H
#define HD_KV_PREFIX_H

#include "kv/pages.h"

#include <stdint.h>

typedef struct hd_prefix hd_prefix;

/* Borrows the pool. `model_key`: everything that gives the same tokens another KV. */
hd_prefix *hd_prefix_new(hd_pages *pages, int page_tok, uint64_t model_key);
void hd_prefix_free(hd_prefix *x); /* accepts NULL; the pool stays */

/* A page for the caller with one reference: a free one, else the cached page released longest ago;
 * -1 when all are in use. */
int hd_prefix_take(hd_prefix *x);
/* Gives one reference back. A page with a promise loses it; an indexed page stays cached, any other
 * becomes free. Of a sequence's pages the last goes first. */
void hd_prefix_release(hd_prefix *x, int page);

/* What a full page holds. */
typedef struct hd_prefix_content {
    int parent;           /* page before it in its sequence, or -1 */
    uint64_t salt;        /* tenant salt of the sequence */
    const int32_t *token; /* [page_tok] */
    const uint8_t *form;  /* [page_tok] enum hd_mla_form */
} hd_prefix_content;

/* Promises a page that the caller holds alone; the parent is indexed or promised. Lower ranks are
 * more urgent: a promise is waited for only by those of equal or higher rank. */
void hd_prefix_promise(hd_prefix *x, int page, const hd_prefix_content *c, int rank);
/* Indexes a page that the caller holds alone and whose content is complete, which ends its promise;
 * the parent is indexed and held by the caller. Returns the page that stands for the content from
 * now on: when an equal one is indexed already it is that one, and the caller's reference has moved
 * to it. */
int hd_prefix_publish(hd_prefix *x, int page, const hd_prefix_content *c);

/* What page `from` holds is in page `to`, just taken, from now on: its references and its place in
 * the index, or among the cached pages, are that one's. `from`, which has no promise, is then the
 * caller's, alone and empty. Copying the bytes is the caller's, too. */
void hd_prefix_move(hd_prefix *x, int from, int to);

/* An indexed page is found no more, and so is nothing behind it; who holds it keeps it. */
void hd_prefix_hide(hd_prefix *x, int page);

typedef struct hd_prefix_ask {
    uint64_t salt;
    const int32_t *token; /* [n_page * page_tok] */
    const uint8_t *form;  /* [n_page * page_tok]: only pages of these forms; NULL: any */
    int n_page;           /* whole pages that may be reused */
    int rank;             /* of the asker, see hd_prefix_promise */
} hd_prefix_ask;

typedef struct hd_prefix_wait {
    int page;        /* promised page to wait for, or -1 */
    uint64_t serial; /* identifies that promise for ever */
} hd_prefix_wait;

/* The longest indexed beginning: its pages into path[n_page], their number returned; no reference
 * is taken. When pages behind it are promised, *wait names the last of them that the asker could
 * reuse. */
int hd_prefix_match(hd_prefix *x, const hd_prefix_ask *ask, int32_t *path, hd_prefix_wait *wait);
/* Whether that promise is neither kept nor withdrawn yet. */
bool hd_prefix_is_pending(const hd_prefix *x, hd_prefix_wait wait);

/* [page_tok] of an indexed page. */
const int32_t *hd_prefix_tokens(const hd_prefix *x, int page);
const uint8_t *hd_prefix_forms(const hd_prefix *x, int page);
bool hd_prefix_is_indexed(const hd_prefix *x, int page);
bool hd_prefix_is_promised(const hd_prefix *x, int page);
int hd_prefix_parent(const hd_prefix *x, int page); /* of an indexed page; -1: none */

/* Evicts every cached page. */
void hd_prefix_drop_cached(hd_prefix *x);

/* Asserts: fingerprints follow from contents, parents are indexed and at least as much in use,
 * children are listed, cached pages are indexed and none is older than its child. */
void hd_prefix_check(const hd_prefix *x);

#endif
