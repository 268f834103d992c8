/* The prefix index, also with a hash that collides all the time: then every safety rests on the
 * comparison of tokens and parents. The hash is replaced by including the source. */
#include "support/check.h"
#include "support/fake_dev.h"

#include <xxhash.h>

static uint64_t hash_mask; /* which bits of the true hash are kept */

static XXH128_hash_t masked_hash(const void *p, size_t n_byte) {
    XXH128_hash_t h = XXH3_128bits(p, n_byte);
    return (XXH128_hash_t){.low64 = h.low64 & hash_mask, .high64 = h.high64 & hash_mask};
}
#undef XXH3_128bits
#define XXH3_128bits masked_hash
#include "lib/kv/prefix.c"

enum { PAGE_TOK = 2, N_PAGE = 48, DEPTH_MAX = 6, N_CHAIN = 12 };

/* Pages of one sequence, the way the scheduler holds them. */
struct chain {
    bool live;
    uint64_t salt;
    int32_t token[DEPTH_MAX * PAGE_TOK];
    uint8_t form[DEPTH_MAX * PAGE_TOK];
    int32_t page[DEPTH_MAX];
    int n_page, n_indexed;
    bool promised;
};

static hd_prefix_content content_of(const struct chain *c, int i) {
    return (hd_prefix_content){.parent = i > 0 ? c->page[i - 1] : -1,
                               .salt = c->salt,
                               .token = c->token + (size_t)i * PAGE_TOK,
                               .form = c->form + (size_t)i * PAGE_TOK};
}

/* By looking at all pages: how deep can a path of equal tokens (and forms) go below `parent`? */
static int deepest(const hd_prefix *x, const hd_prefix_ask *ask, int parent, int depth) {
    int best = depth;
    for (int p = 0; depth < ask->n_page && p < N_PAGE; p++) {
        if (!hd_prefix_is_indexed(x, p) || hd_prefix_parent(x, p) != parent) continue;
        if (x->entry[p].is_hidden || x->entry[p].salt != ask->salt) continue;
        size_t at = (size_t)depth * PAGE_TOK;
        if (memcmp(hd_prefix_tokens(x, p), ask->token + at, PAGE_TOK * sizeof(int32_t)) != 0)
            continue;
        if (ask->form && memcmp(hd_prefix_forms(x, p), ask->form + at, PAGE_TOK) != 0) continue;
        int d = deepest(x, ask, p, depth + 1);
        if (d > best) best = d;
    }
    return best;
}

static void start_chain(hd_prefix *x, hd_pages *pages, test_rng *r, struct chain *c) {
    *c = (struct chain){.live = true, .salt = (uint64_t)rng_int(r, 0, 1)};
    for (int i = 0; i < DEPTH_MAX * PAGE_TOK; i++) {
        c->token[i] = rng_chance(r, 0.8) ? 1 : rng_int(r, 0, 2);
        c->form[i] = rng_chance(r, 0.1);
    }
    bool by_form = rng_chance(r, 0.5);
    hd_prefix_ask ask = {.salt = c->salt,
                         .token = c->token,
                         .form = by_form ? c->form : NULL,
                         .n_page = rng_int(r, 0, DEPTH_MAX)};
    hd_prefix_wait wait;
    int n_hit = hd_prefix_match(x, &ask, c->page, &wait);
    assert_int_equal(n_hit, deepest(x, &ask, -1, 0));
    for (int i = 0; i < n_hit; i++) {
        size_t at = (size_t)i * PAGE_TOK;
        assert_int_equal(hd_prefix_parent(x, c->page[i]), i > 0 ? c->page[i - 1] : -1);
        assert_memory_equal(hd_prefix_tokens(x, c->page[i]), c->token + at,
                            PAGE_TOK * sizeof(int32_t));
        if (by_form) {
            assert_memory_equal(hd_prefix_forms(x, c->page[i]), c->form + at, PAGE_TOK);
        }
        memcpy(c->form + at, hd_prefix_forms(x, c->page[i]), PAGE_TOK);
        hd_pages_ref(pages, c->page[i]);
    }
    c->n_page = c->n_indexed = n_hit;
    c->promised = rng_chance(r, 0.5);
    while (c->n_page < DEPTH_MAX) {
        int page = hd_prefix_take(x);
        if (page < 0) break;
        hd_prefix_content content = content_of(c, c->n_page);
        c->page[c->n_page++] = page;
        if (c->promised) hd_prefix_promise(x, page, &content, rng_int(r, 0, 2));
    }
}

static void end_chain(hd_prefix *x, struct chain *c) {
    while (c->n_page > 0) hd_prefix_release(x, c->page[--c->n_page]);
    c->live = false;
}

static void check_counts(const hd_prefix *x, const struct chain *chains) {
    int refs[N_PAGE] = {0};
    for (int k = 0; k < N_CHAIN; k++) {
        const struct chain *c = &chains[k];
        for (int i = 0; i < c->n_page; i++) {
            refs[c->page[i]]++;
            assert_int_equal(hd_prefix_is_indexed(x, c->page[i]), i < c->n_indexed);
            if (i >= c->n_indexed) {
                assert_int_equal(hd_prefix_is_promised(x, c->page[i]), c->promised);
                continue;
            }
            size_t at = (size_t)i * PAGE_TOK;
            assert_memory_equal(hd_prefix_tokens(x, c->page[i]), c->token + at,
                                PAGE_TOK * sizeof(int32_t));
            assert_memory_equal(hd_prefix_forms(x, c->page[i]), c->form + at, PAGE_TOK);
        }
    }
    for (int p = 0; p < N_PAGE; p++) assert_int_equal(hd_pages_refs(x->pages, p), refs[p]);
}

static void random_chains(uint64_t mask, int n_op) {
    hash_mask = mask;
    hd_pages *pages = hd_pages_new(N_PAGE);
    hd_prefix *x = hd_prefix_new(pages, PAGE_TOK, 5);
    struct chain *chains = hd_alloc_zero(N_CHAIN, sizeof *chains);
    test_rng r = {.x = mask + 1};
    int n_twin = 0;
    for (int op = 0; op < n_op; op++) {
        struct chain *c = &chains[rng_int(&r, 0, N_CHAIN - 1)];
        if (!c->live) {
            start_chain(x, pages, &r, c);
        } else if (rng_chance(&r, 0.15)) {
            bool hide = rng_chance(&r, 0.1);
            for (int i = 0; hide && i < c->n_indexed; i++) hd_prefix_hide(x, c->page[i]);
            end_chain(x, c);
        } else if (c->n_indexed < c->n_page) {
            hd_prefix_content content = content_of(c, c->n_indexed);
            int page = hd_prefix_publish(x, c->page[c->n_indexed], &content);
            n_twin += page != c->page[c->n_indexed];
            c->page[c->n_indexed++] = page;
        }
        if (rng_chance(&r, 0.01)) hd_prefix_drop_cached(x);
        hd_prefix_check(x);
        check_counts(x, chains);
    }
    assert_true(n_twin > 0);
    for (int k = 0; k < N_CHAIN; k++) end_chain(x, &chains[k]);
    hd_prefix_drop_cached(x);
    hd_prefix_check(x);
    assert_int_equal(hd_pages_n_free(pages), N_PAGE);
    hd_free(chains);
    hd_prefix_free(x);
    hd_pages_free(pages);
}

static void hits_are_the_longest_equal_paths(void **state) {
    (void)state;
    random_chains(UINT64_MAX, 20000);
}

static void collisions_never_give_a_wrong_page(void **state) {
    (void)state;
    random_chains(0, 20000); /* one hash for everything */
    random_chains(1, 20000); /* four */
}

/* One page of tokens {a, a} in form f. */
struct one {
    int32_t token[PAGE_TOK];
    uint8_t form[PAGE_TOK];
};

static int put(hd_prefix *x, int parent, uint64_t salt, struct one o) {
    int page = hd_prefix_take(x);
    hd_prefix_content c = {.parent = parent, .salt = salt, .token = o.token, .form = o.form};
    return hd_prefix_publish(x, page, &c);
}

static void forms_stand_side_by_side(void **state) {
    (void)state;
    hash_mask = UINT64_MAX;
    hd_pages *pages = hd_pages_new(8);
    hd_prefix *x = hd_prefix_new(pages, PAGE_TOK, 5);
    struct one a0 = {{7, 7}, {0, 0}}, a1 = {{7, 7}, {1, 1}}, b1 = {{8, 8}, {1, 1}};
    int page_a0 = put(x, -1, 0, a0), page_a1 = put(x, -1, 0, a1);
    assert_int_not_equal(page_a0, page_a1);
    int page_b1 = put(x, page_a1, 0, b1);
    int32_t token[] = {7, 7, 8, 8}, path[2];
    uint8_t form[] = {1, 1, 1, 1};
    hd_prefix_ask ask = {.token = token, .n_page = 2};
    hd_prefix_wait wait;
    assert_int_equal(hd_prefix_match(x, &ask, path, &wait), 2); /* not the dead end of a0 */
    assert_true(path[0] == page_a1 && path[1] == page_b1);
    ask.form = form;
    assert_int_equal(hd_prefix_match(x, &ask, path, &wait), 2);
    form[0] = form[1] = 0;
    assert_int_equal(hd_prefix_match(x, &ask, path, &wait), 1);
    assert_int_equal(path[0], page_a0);
    ask.salt = 1;
    assert_int_equal(hd_prefix_match(x, &ask, path, &wait), 0); /* another tenant */
    hd_prefix_check(x);
    hd_prefix_free(x);
    hd_pages_free(pages);
}

static void another_model_finds_nothing(void **state) {
    (void)state;
    hash_mask = UINT64_MAX;
    uint64_t first[2];
    for (uint64_t model_key = 0; model_key < 2; model_key++) {
        hd_pages *pages = hd_pages_new(2);
        hd_prefix *x = hd_prefix_new(pages, PAGE_TOK, model_key);
        first[model_key] = x->entry[put(x, -1, 0, (struct one){{1, 1}, {0, 0}})].fp.lo;
        hd_prefix_free(x);
        hd_pages_free(pages);
    }
    assert_true(first[0] != first[1]);
}

static void promises_are_kept_or_withdrawn(void **state) {
    (void)state;
    hash_mask = UINT64_MAX;
    hd_pages *pages = hd_pages_new(8);
    hd_prefix *x = hd_prefix_new(pages, PAGE_TOK, 5);
    int32_t token[] = {1, 1, 2, 2, 3, 3}, path[3];
    uint8_t form[] = {0, 0, 0, 0, 0, 0};
    int page[3];
    for (int i = 0; i < 3; i++) {
        page[i] = hd_prefix_take(x);
        hd_prefix_content c = {.parent = i > 0 ? page[i - 1] : -1,
                               .token = token + (size_t)i * PAGE_TOK,
                               .form = form + (size_t)i * PAGE_TOK};
        hd_prefix_promise(x, page[i], &c, 1);
    }
    hd_prefix_ask ask = {.token = token, .n_page = 2, .rank = 1};
    hd_prefix_wait wait;
    assert_int_equal(hd_prefix_match(x, &ask, path, &wait), 0);
    assert_int_equal(wait.page, page[1]); /* the last that is of use to the asker */
    ask.rank = 0;                         /* more urgent than who promised */
    hd_prefix_wait none;
    hd_prefix_match(x, &ask, path, &none);
    assert_int_equal(none.page, -1);
    ask.rank = 1;
    uint8_t other[] = {0, 0, 1, 0, 0, 0};
    ask.form = other;
    hd_prefix_match(x, &ask, path, &none);
    assert_int_equal(none.page, page[0]); /* the next has other forms */
    ask.form = NULL;
    for (int i = 0; i < 2; i++) {
        assert_true(hd_prefix_is_pending(x, wait));
        hd_prefix_content c = {.parent = i > 0 ? page[i - 1] : -1,
                               .token = token + (size_t)i * PAGE_TOK,
                               .form = form + (size_t)i * PAGE_TOK};
        assert_int_equal(hd_prefix_publish(x, page[i], &c), page[i]);
    }
    assert_false(hd_prefix_is_pending(x, wait));
    ask.n_page = 3;
    assert_int_equal(hd_prefix_match(x, &ask, path, &wait), 2);
    assert_int_equal(wait.page, page[2]);
    hd_prefix_release(x, page[2]); /* withdrawn */
    assert_false(hd_prefix_is_pending(x, wait));
    assert_int_equal(hd_pages_refs(pages, page[2]), 0);
    assert_int_equal(hd_prefix_match(x, &ask, path, &wait), 2);
    assert_int_equal(wait.page, -1);
    hd_prefix_check(x);
    hd_prefix_free(x);
    hd_pages_free(pages);
}

static void eviction_takes_leaves_first_and_oldest_first(void **state) {
    (void)state;
    hash_mask = UINT64_MAX;
    hd_pages *pages = hd_pages_new(4);
    hd_prefix *x = hd_prefix_new(pages, PAGE_TOK, 5);
    int a = put(x, -1, 0, (struct one){{1, 1}, {0, 0}});
    int b = put(x, a, 0, (struct one){{2, 2}, {0, 0}});
    int c = put(x, -1, 0, (struct one){{3, 3}, {0, 0}});
    hd_prefix_release(x, b);
    hd_prefix_release(x, a);
    hd_prefix_release(x, c);
    int d = hd_prefix_take(x); /* the free one */
    assert_true(d != a && d != b && d != c);
    assert_int_equal(hd_prefix_take(x), b);
    hd_prefix_check(x);
    assert_int_equal(hd_prefix_take(x), a);
    assert_int_equal(hd_prefix_take(x), c);
    assert_int_equal(hd_prefix_take(x), -1);
    hd_prefix_check(x);
    hd_prefix_free(x);
    hd_pages_free(pages);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hits_are_the_longest_equal_paths),
        cmocka_unit_test(collisions_never_give_a_wrong_page),
        cmocka_unit_test(forms_stand_side_by_side),
        cmocka_unit_test(another_model_finds_nothing),
        cmocka_unit_test(promises_are_kept_or_withdrawn),
        cmocka_unit_test(eviction_takes_leaves_first_and_oldest_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
