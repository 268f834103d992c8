/* Feed-forwards on the host: the same bits as on the device, the layers that were asked for, and
 * what happens when the device breaks between. The device is far: nothing there can be followed. */
#include "support/check.h"
#include "support/cut_layers.h"
#include "support/far_dev.h"
#include "support/files.h"

#include "model/score.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_TOK = 40, N_LAYER_MAX = 8 };

typedef struct loaded {
    hd_checkpoint *checkpoint;
    hd_dev dev, host;
    hd_model_options opt;
    hd_model *model;
} loaded;

/* bound: bytes of the device for weights, 0: no bound. far: a device with memory of its own. */
static hd_status try_open(const char *family, bool is_far, uint64_t bound, const char *plan,
                          loaded *l) {
    char path[128];
    *l = (loaded){.opt = {.n_row_max = 16,
                          .n_seq_max = 1,
                          .n_out_max = 16,
                          .n_pos_max = 64,
                          .n_page = 4,
                          .page_tok = 16,
                          .device_weight_bytes = bound,
                          .offload_plan = plan}};
    snprintf(path, sizeof path, "tests/golden/families/%s", family);
    assert_ok(hd_checkpoint_open(test_path(path), &l->checkpoint));
    assert_ok(hd_dev_open("ref", NULL, &l->host));
    if (is_far)
        l->dev = test_open_far();
    else
        assert_ok(hd_dev_open("ref", NULL, &l->dev));
    l->opt.host = &l->host;
    return hd_model_open(l->checkpoint, &l->dev, &l->opt, NULL, NULL, &l->model);
}

static void close_all(loaded *l) {
    hd_model_close(l->model);
    hd_dev_close(&l->dev);
    hd_dev_close(&l->host);
    hd_checkpoint_close(l->checkpoint);
}

struct sink {
    float *logits; /* [N_TOK, n_vocab] */
    int n_vocab;
};
static void keep(void *user, int seq, int pos, const float *logits) {
    struct sink *s = user;
    assert_int_equal(seq, 0);
    memcpy(s->logits + (size_t)pos * (size_t)s->n_vocab, logits,
           (size_t)s->n_vocab * sizeof *logits);
}

/* [N_TOK, n_vocab] on the heap. n_each: layers a step, 0: all. */
static float *logits_of(loaded *l, int n_each) {
    int32_t id[N_TOK];
    struct sink sink = {.n_vocab = hd_model_hparams(l->model)->n_vocab};
    sink.logits = calloc(N_TOK, (size_t)sink.n_vocab * sizeof *sink.logits);
    for (int i = 0; i < N_TOK; i++) id[i] = (7 * i + 3) % sink.n_vocab;
    if (n_each > 0) {
        const hd_score_spec what = {.token = id, .n_tok = N_TOK};
        assert_ok(test_cut_layers(l->model, &l->opt, &what, n_each, sink.logits));
        return sink.logits;
    }
    hd_scorer *s = hd_scorer_new(l->model, &l->opt, 1);
    assert_int_equal(
        hd_scorer_add(s, &(hd_score_spec){.token = id, .n_tok = N_TOK, .n_tok_max = N_TOK}), 0);
    while (hd_scorer_step(s, 16, keep, &sink) > 0) {
    }
    hd_scorer_free(s);
    return sink.logits;
}

/* Layers whose feed-forward is on the host, by the plan's text. */
static int host_layers(const loaded *l, bool layer[N_LAYER_MAX]) {
    hd_buf b;
    int n = 0, first, last;
    hd_buf_init(&b, 1 << 16);
    hd_model_plan_text(l->model, &b);
    memset(layer, 0, N_LAYER_MAX * sizeof *layer);
    for (char *line = b.ptr, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        if (!strstr(line, "(on the host)")) continue;
        int got = sscanf(line, "%*s %d-%d", &first, &last);
        for (int k = first; got > 0 && k <= (got == 2 ? last : first); k++) {
            n += !layer[k];
            layer[k] = true;
        }
    }
    hd_buf_fini(&b);
    return n;
}

static const char *const families[] = {"v3", "v2-lite-yarn", "llama"};

/* Every number of layers on the host, down to the last one that can leave. */
static void test_same_bits(void **state) {
    (void)state;
    for (size_t f = 0; f < HD_COUNT_OF(families); f++) {
        loaded l;
        assert_ok(try_open(families[f], false, 0, NULL, &l));
        float *expected = logits_of(&l, 0);
        uint64_t all = hd_model_weight_bytes(l.model);
        int n_layer = hd_model_hparams(l.model)->n_layer;
        size_t n_byte = (size_t)N_TOK * (size_t)hd_model_hparams(l.model)->n_vocab * sizeof(float);
        assert_int_equal(hd_model_offload(l.model).n_layer, 0);
        close_all(&l);
        int seen = 0;
        for (uint64_t bound = all; bound > 0; bound -= all / 16) {
            hd_status s = try_open(families[f], true, bound, NULL, &l);
            if (s != HD_OK) {
                assert_int_equal(s, HD_E_NO_MEMORY);
                close_all(&l);
                break;
            }
            bool layer[N_LAYER_MAX];
            hd_offload_facts facts = hd_model_offload(l.model);
            assert_int_equal(host_layers(&l, layer), facts.n_layer);
            assert_true(facts.n_layer >= seen && facts.token_bytes <= facts.n_byte);
            assert_true(facts.n_layer == 0 || all - facts.n_byte <= bound);
            seen = facts.n_layer;
            for (int each = 0; each < n_layer; each++) {
                float *got = logits_of(&l, each);
                assert_memory_equal(got, expected, n_byte);
                free(got);
            }
            close_all(&l);
        }
        assert_int_equal(seen, n_layer); /* at the end all of them were there */
        free(expected);
    }
}

/* One layer must leave: the last of the largest; or the first that a file names. */
static void test_which(void **state) {
    (void)state;
    loaded l;
    bool layer[N_LAYER_MAX];
    assert_ok(try_open("v3", true, 0, NULL, &l));
    uint64_t bound = hd_model_weight_bytes(l.model) - 1;
    int n_layer = hd_model_hparams(l.model)->n_layer;
    close_all(&l);
    assert_ok(try_open("v3", true, bound, NULL, &l));
    assert_int_equal(host_layers(&l, layer), 1);
    assert_true(layer[n_layer - 1]);
    close_all(&l);
    const char *plan = test_join(test_dir, "plan");
    test_write_text(plan, "# experts first\n 2 # the third\r\n\n0\n");
    assert_ok(try_open("v3", true, bound, plan, &l));
    assert_int_equal(host_layers(&l, layer), 1);
    assert_true(layer[2]);
    close_all(&l);
}

static void test_bad_plans(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } row[] = {{"1\n9\n", "line 2: expected a layer from 0 to 3, found \"9\""},
               {"x", "line 1: expected a layer"},
               {"1 2", "line 1: expected a layer"},
               {"-1", "line 1: expected a layer"},
               {"0\n1\n0\n", "line 3: layer 0 is named twice"}};
    const char *plan = test_join(test_dir, "plan");
    for (size_t i = 0; i < HD_COUNT_OF(row); i++) {
        loaded l;
        test_write_text(plan, row[i].text);
        assert_int_equal(try_open("v3", true, 1 << 20, plan, &l), HD_E_CORRUPT);
        assert_non_null(strstr(hd_error_text(), row[i].says));
        close_all(&l);
    }
    loaded l;
    assert_int_equal(try_open("v3", true, 1 << 20, "/absent", &l), HD_E_NOT_FOUND);
    close_all(&l);
    /* Nor is one taken that has nothing to do: no bound. */
    assert_int_equal(try_open("v3", true, 0, "/absent", &l), HD_E_NOT_FOUND);
    close_all(&l);
    test_write_file(plan, "1\n\0 9", 5);
    assert_int_equal(try_open("v3", true, 0, plan, &l), HD_E_CORRUPT);
    assert_non_null(strstr(hd_error_text(), "byte 3: expected text, found a zero byte"));
    close_all(&l);
}

static void test_broken_device(void **state) {
    (void)state;
    loaded l;
    int32_t id[1] = {1};
    assert_ok(try_open("v3", true, 0, NULL, &l));
    uint64_t bound = hd_model_weight_bytes(l.model) / 2;
    close_all(&l);
    assert_ok(try_open("v3", true, bound, NULL, &l));
    assert_true(hd_model_offload(l.model).n_layer > 0);
    hd_scorer *s = hd_scorer_new(l.model, &l.opt, 1);
    assert_int_equal(hd_scorer_add(s, &(hd_score_spec){.token = id, .n_tok = 1, .n_tok_max = 1}),
                     0);
    test_break_far();
    struct sink none = {0};
    assert_true(hd_scorer_step(s, 1, keep, &none) < 0);
    hd_scorer_free(s);
    close_all(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test_setup_teardown(test_which, test_dir_make, test_dir_remove),
        cmocka_unit_test_setup_teardown(test_bad_plans, test_dir_make, test_dir_remove),
        cmocka_unit_test(test_broken_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
