/* Sampling, and tokens that are named by their slot: every backend gives the oracle's very tokens,
 * at awkward sizes of the vocabulary, over ties, hostile rows and all kinds of cuts. */
#include "support/op_data.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_SEQ = 6, SLOTS = 2 * N_SEQ };

static hd_dev_limits limits_of(int n_vocab) {
    return (hd_dev_limits){.n_row = 2 * N_SEQ,
                           .n_seq = N_SEQ,
                           .n_out = 2 * N_SEQ,
                           .d_model = 32,
                           .n_vocab = n_vocab,
                           .d_ff = 32,
                           .n_head = 1,
                           .n_rope = 16,
                           .n_v = 16,
                           .n_kv = 16,
                           .n_pos = 64};
}

/* Two rows each, the second of them an output; slots in another order than sequences. */
static void make_batch(hd_batch *b) {
    test_seq seq[N_SEQ];
    int n_page;
    for (int s = 0; s < N_SEQ; s++) seq[s] = (test_seq){.n_pos = 3 + s, .n_row = 2};
    test_batch(b, seq, N_SEQ, 4, &n_page);
    for (int s = 0; s < N_SEQ; s++) {
        b->seq_slot[s] = SLOTS - 1 - 2 * s;
        b->out_row[b->n_out++] = 2 * s + 1;
    }
    hd_batch_check(b);
}

static hd_draw some_draw(int n_vocab) {
    static const float temperature[] = {0, 1, 0.3f, 5, 1e-30f, FLT_MAX};
    static const float top_p[] = {1, 1, 0.9f, 0.5f, 0.999f, 0};
    static const float min_p[] = {0, 0, 0.05f, 1};
    float p = min_p[test_below(4)];
    hd_draw d = {.u = fabs(test_uniform()),
                 .temperature = temperature[test_below(6)],
                 .min_x = p > 0 ? logf(p) : -INFINITY,
                 .top_p = test_below(3) ? top_p[test_below(6)] : (float)fabs(test_uniform()),
                 .top_k = test_below(2) ? 0 : 1 + test_below(n_vocab + 2)};
    if (test_below(8) == 0) d.u = test_below(2) ? 0 : 1 - 0x1p-53;
    d.is_host = test_below(10) == 0;
    return d;
}

/* Smooth, with ties, all equal, one far above; now and then a value that is not finite. */
static void some_logits(float *x, int n) {
    int kind = test_below(6);
    double scale = test_below(2) ? 3 : 30;
    for (int i = 0; i < n; i++) {
        double v = scale * test_uniform();
        x[i] = (float)(kind == 0 ? floor(v) : kind == 1 ? 2.5 : kind == 2 ? v * 1e-6 : v);
        if (kind == 3 && test_below(3) == 0) x[i] = test_below(2) ? 0.0f : -0.0f;
    }
    if (kind == 4) x[test_below(n)] = 100;
    if (kind == 5 && test_below(2)) x[test_below(n)] = FLT_MAX;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    if (test_below(8) == 0) x[test_below(n)] = bad[test_below(3)];
}

static void sampling_is_the_same_everywhere(void **state) {
    (void)state;
    static const int vocab[] = {1, 2, 31, 33, 100, 1024, 1025, 2047, 4099};
    test_level level[TEST_LEVEL_MAX];
    int n_level = test_levels(level);
    hd_batch b;
    make_batch(&b);
    for (size_t v = 0; v < HD_COUNT_OF(vocab); v++) {
        int n = vocab[v];
        hd_dev_limits l = limits_of(n);
        float *logits = test_floats((size_t)N_SEQ * (size_t)n, 1);
        uint8_t *is_token = malloc((size_t)n);
        hd_dev ref = test_open_ref(&l), dev[9];
        for (int i = 0; i < n_level; i++) dev[i] = test_open_cpu(level[i], &l);
        for (int round = 0; round < (n > 2000 ? 5 : 30); round++) {
            for (int i = 0; i < n; i++) is_token[i] = round % 3 == 0 || test_below(9) > 0;
            if (round % 3 == 1) is_token[test_below(n)] = 1;
            for (int i = 0; i < N_SEQ; i++) {
                some_logits(logits + (size_t)i * (size_t)n, n);
                b.draw[i] = some_draw(n);
            }
            int32_t token[2][N_SEQ], last[2][SLOTS];
            for (int i = -1; i < n_level; i++) {
                const hd_dev *d = i < 0 ? &ref : &dev[i];
                int at = i >= 0;
                for (int k = 0; k < SLOTS; k++) last[at][k] = 1000 + k;
                d->ops->sample(d->ctx, &(struct hd_op_sample){.n_out = N_SEQ,
                                                              .n_vocab = n,
                                                              .batch = &b,
                                                              .logits = logits,
                                                              .is_token = is_token,
                                                              .token = token[at],
                                                              .last = last[at]});
                for (int k = 0; k < N_SEQ && at; k++)
                    if (token[1][k] != token[0][k])
                        fail_msg("vocabulary %d, round %d, row %d: expected %d, found %d (t %g, "
                                 "top_k %d, top_p %g, min_x %g, u %g)",
                                 n, round, k, token[0][k], token[1][k],
                                 (double)b.draw[k].temperature, b.draw[k].top_k,
                                 (double)b.draw[k].top_p, (double)b.draw[k].min_x, b.draw[k].u);
                if (at) assert_memory_equal(last[1], last[0], sizeof last[0]);
            }
            for (int k = 0; k < N_SEQ; k++) {
                assert_true(token[0][k] >= -1 && token[0][k] < n);
                if (token[0][k] >= 0) assert_true(is_token[token[0][k]]);
                int32_t expected = b.draw[k].is_host ? 1000 + b.seq_slot[k] : token[0][k];
                assert_int_equal(last[0][b.seq_slot[k]], expected);
            }
        }
        for (int i = 0; i < n_level; i++) test_close(&dev[i]);
        test_close(&ref);
        free(logits);
        free(is_token);
    }
    hd_batch_fini(&b);
}

/* A token that names a slot is replaced by the one sampled there; by 0 when that row failed. */
static void embed_resolves_tokens(void **state) {
    (void)state;
    test_level level[TEST_LEVEL_MAX];
    int n_level = test_levels(level);
    hd_dev_limits l = limits_of(50);
    hd_weight *table = test_weight(HD_F32, 32, 50, 1);
    const int32_t last[4] = {7, -1, 49, 0};
    const int32_t named[6] = {3,  hd_token_of_slot(2), hd_token_of_slot(1),
                              49, hd_token_of_slot(0), hd_token_of_slot(3)};
    const int32_t expected[6] = {3, 49, 0, 49, 7, 0};
    for (int i = 0; i < n_level; i++) {
        hd_dev d = test_open_cpu(level[i], &l);
        float *x = test_floats(6 * 32, 0);
        int32_t token[6];
        memcpy(token, named, sizeof token);
        d.ops->embed(d.ctx, &(struct hd_op_embed){
                                .n_row = 6, .token = token, .last = last, .table = table, .x = x});
        assert_memory_equal(token, expected, sizeof token);
        for (int r = 0; r < 6; r++)
            test_bits_equal(x + r * 32, (const float *)table->mat[0] + expected[r] * 32,
                            32 * sizeof *x, "a named token's row");
        free(x);
        test_close(&d);
    }
    test_weight_free(table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sampling_is_the_same_everywhere),
        cmocka_unit_test(embed_resolves_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
