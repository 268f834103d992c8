/* The page pool: states, order of eviction, random operations against a plain model. */
#include "support/check.h"
#include "support/fake_dev.h"

#include "kv/pages.h"

static void every_page_is_taken_once(void **state) {
    (void)state;
    hd_pages *p = hd_pages_new(5);
    bool seen[5] = {0};
    for (int i = 0; i < 5; i++) {
        int page = hd_pages_take(p);
        assert_true(page >= 0 && page < 5 && !seen[page]);
        seen[page] = true;
        assert_int_equal(hd_pages_refs(p, page), 1);
    }
    assert_int_equal(hd_pages_take(p), -1);
    hd_pages_unref(p, 3, false);
    assert_int_equal(hd_pages_take(p), 3);
    hd_pages_check(p);
    hd_pages_free(p);
}

static void cached_pages_go_in_order_of_release(void **state) {
    (void)state;
    hd_pages *p = hd_pages_new(4);
    for (int i = 0; i < 4; i++) assert_true(hd_pages_take(p) >= 0);
    hd_pages_ref(p, 2);
    hd_pages_unref(p, 2, true); /* one reference is left */
    assert_int_equal(hd_pages_oldest(p), -1);
    hd_pages_unref(p, 2, true);
    hd_pages_unref(p, 0, true);
    hd_pages_unref(p, 3, true);
    assert_int_equal(hd_pages_oldest(p), 2);
    assert_int_equal(hd_pages_newer(p, 2), 0);
    hd_pages_ref(p, 2); /* used again: released last now */
    hd_pages_unref(p, 2, true);
    assert_int_equal(hd_pages_oldest(p), 0);
    assert_int_equal(hd_pages_newer(p, 3), 2);
    assert_int_equal(hd_pages_take(p), -1); /* cached pages are not free */
    hd_pages_drop(p, 3);
    assert_int_equal(hd_pages_n_cached(p), 2);
    assert_int_equal(hd_pages_n_free(p), 1);
    assert_int_equal(hd_pages_take(p), 3);
    hd_pages_check(p);
    hd_pages_free(p);
}

enum { N_PAGE = 40 };

struct model {
    int refs[N_PAGE];
    long released[N_PAGE]; /* when it was cached; 0: not cached */
    long now;
};

static int model_oldest(const struct model *m) {
    int oldest = -1;
    for (int i = 0; i < N_PAGE; i++) {
        if (m->released[i] && (oldest < 0 || m->released[i] < m->released[oldest])) oldest = i;
    }
    return oldest;
}

static void random_operations_agree_with_a_model(void **state) {
    (void)state;
    hd_pages *p = hd_pages_new(N_PAGE);
    struct model m = {0};
    test_rng r = {.x = 1};
    for (int i = 0; i < 100000; i++) {
        int page = rng_int(&r, 0, N_PAGE - 1);
        bool keep = rng_chance(&r, 0.5);
        switch (rng_int(&r, 0, 3)) {
        case 0:
            page = hd_pages_take(p);
            if (page < 0) break;
            assert_true(m.refs[page] == 0 && m.released[page] == 0);
            m.refs[page] = 1;
            break;
        case 1:
            if (m.refs[page] == 0 && m.released[page] == 0) break;
            hd_pages_ref(p, page);
            m.refs[page]++;
            m.released[page] = 0;
            break;
        case 2:
            if (m.refs[page] == 0) break;
            hd_pages_unref(p, page, keep);
            if (--m.refs[page] == 0 && keep) m.released[page] = ++m.now;
            break;
        default:
            if (!rng_chance(&r, 0.2) || model_oldest(&m) < 0) break;
            assert_int_equal(hd_pages_oldest(p), model_oldest(&m));
            m.released[model_oldest(&m)] = 0;
            hd_pages_drop(p, hd_pages_oldest(p));
            break;
        }
        int n_cached = 0, n_used = 0;
        for (int k = 0; k < N_PAGE; k++) {
            assert_int_equal(hd_pages_refs(p, k), m.refs[k]);
            assert_int_equal(hd_pages_is_cached(p, k), m.released[k] != 0);
            n_cached += m.released[k] != 0;
            n_used += m.refs[k] > 0;
        }
        assert_int_equal(hd_pages_n_cached(p), n_cached);
        assert_int_equal(hd_pages_n_free(p), N_PAGE - n_cached - n_used);
        hd_pages_check(p);
    }
    hd_pages_free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_page_is_taken_once),
        cmocka_unit_test(cached_pages_go_in_order_of_release),
        cmocka_unit_test(random_operations_agree_with_a_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
