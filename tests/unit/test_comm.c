/* Collectives between threads: sums in the order of the ranks, rows side by side, and a rank that
 * fails ends them for all. */
#include "support/check.h"

#include "dev/comm.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_ROUND = 200, N_MAX = 1000 };

typedef struct member {
    pthread_t thread;
    hd_comm *comm;
    int fail_at; /* round; -1: never */
    hd_status status;
    int n_done, n_wrong; /* rounds; values */
    char text[256];
} member;

/* Values whose sum depends on the order: what rank k adds in round r. */
static float value(int rank, int round, int i) {
    return (float)((i * 7 + round) % 13 - 6) * (rank % 2 ? 1e-7f : 1.0f) + (float)rank * 3e7f;
}

static int size_of_round(int round) {
    static const int n[] = {1, 0, 15, 16, 17, 64, N_MAX};
    return n[(size_t)round % HD_COUNT_OF(n)];
}

static int differs(float a, float b) { return memcmp(&a, &b, sizeof a) != 0; }

static int wrong_sums(const float *x, int n, int n_rank, int round) {
    int wrong = 0;
    for (int i = 0; i < n; i++) {
        float sum = value(0, round, i);
        for (int k = 1; k < n_rank; k++) sum += value(k, round, i);
        wrong += differs(x[i], sum);
    }
    return wrong;
}

static int wrong_rows(const float *all, int n_row, int n_each, int n_rank, int round) {
    int wrong = 0;
    for (int row = 0; row < n_row; row++)
        for (int k = 0; k < n_rank; k++)
            for (int i = 0; i < n_each; i++)
                wrong += differs(all[(row * n_rank + k) * n_each + i],
                                 value(k, round, row * n_each + i));
    return wrong;
}

static void *take_part(void *arg) {
    member *m = arg;
    hd_comm *c = m->comm;
    float *x = calloc(N_MAX, sizeof *x), *part = calloc(N_MAX, sizeof *x);
    float *all = calloc((size_t)N_MAX * (size_t)c->n_rank, sizeof *all);
    for (int round = 0; round < N_ROUND && m->status == HD_OK; round++) {
        if (round == m->fail_at) {
            m->status = HD_FAIL(DEVICE, "it broke in round %d", round);
            hd_comm_fail(c);
            break;
        }
        int n = size_of_round(round), n_row = n < 3 ? n : 3;
        for (int i = 0; i < n; i++) x[i] = part[i] = value(c->rank, round, i);
        m->status = c->all_reduce(c, x, (size_t)n);
        if (m->status == HD_OK) m->n_wrong += wrong_sums(x, n, c->n_rank, round);
        if (m->status == HD_OK)
            m->status = c->all_gather(c, part, all, (size_t)n_row, n_row ? (size_t)(n / n_row) : 0);
        if (m->status == HD_OK && n_row > 0)
            m->n_wrong += wrong_rows(all, n_row, n / n_row, c->n_rank, round);
        m->n_done += m->status == HD_OK;
    }
    if (m->status != HD_OK) snprintf(m->text, sizeof m->text, "%s", hd_error_text());
    free(x);
    free(part);
    free(all);
    return NULL;
}

static void run(hd_group *g, member *m, int n_rank) {
    for (int i = 0; i < n_rank; i++) {
        m[i].comm = hd_group_comm(g, i);
        assert_int_equal(m[i].comm->rank, i);
        assert_int_equal(m[i].comm->n_rank, n_rank);
        assert_int_equal(pthread_create(&m[i].thread, NULL, take_part, &m[i]), 0);
    }
    for (int i = 0; i < n_rank; i++) {
        pthread_join(m[i].thread, NULL);
        assert_int_equal(m[i].n_wrong, 0);
    }
}

static void sums_and_rows(void **state) {
    (void)state;
    for (int n_rank = 1; n_rank <= 5; n_rank++) {
        hd_group *g = hd_group_new(n_rank);
        member m[5] = {0};
        for (int i = 0; i < n_rank; i++) m[i].fail_at = -1;
        run(g, m, n_rank);
        for (int i = 0; i < n_rank; i++) assert_int_equal(m[i].n_done, N_ROUND);
        hd_group_free(g);
    }
}

static void a_rank_that_fails_ends_all(void **state) {
    (void)state;
    for (int fail_at = 0; fail_at < N_ROUND; fail_at += 37) {
        hd_group *g = hd_group_new(3);
        member m[3] = {{.fail_at = -1}, {.fail_at = fail_at}, {.fail_at = -1}};
        run(g, m, 3);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(m[i].status, HD_E_DEVICE);
            assert_in_range(m[i].n_done, fail_at > 0 ? fail_at - 1 : 0, fail_at);
            assert_non_null(strstr(m[i].text, "it broke in round"));
            if (i != 1) assert_non_null(strstr(m[i].text, "rank 1 of 3 failed"));
        }
        hd_group_free(g);
    }
}

/* As ops: the first failure is kept, and nothing waits after it. */
static void ops_keep_the_failure(void **state) {
    (void)state;
    hd_group *g = hd_group_new(2);
    hd_comm *c = hd_group_comm(g, 0);
    float x[2] = {1, 2};
    (void)HD_FAIL(DEVICE, "gone");
    hd_comm_fail(hd_group_comm(g, 1));
    for (int i = 0; i < 2; i++)
        hd_comm_op_all_reduce(NULL, &(struct hd_op_all_reduce){.comm = c, .n = 2, .x = x});
    hd_comm_op_all_gather(
        NULL, &(struct hd_op_all_gather){.comm = c, .n_row = 1, .n_each = 1, .part = x, .all = x});
    assert_int_equal(c->status, HD_E_DEVICE);
    assert_non_null(strstr(hd_error_text(), "gone"));
    hd_group_free(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_and_rows),
        cmocka_unit_test(a_rank_that_fails_ends_all),
        cmocka_unit_test(ops_keep_the_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
