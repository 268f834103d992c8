/* Sharded models: every golden family over 2 and 4 ranks, tensor and expert parallel, on the oracle
 * and the cpu, against one rank; the same bits on every rank and in every run; what does not divide
 * is named; a rank that breaks ends the step on all. The ranks are threads.
 *
 * HADAL_TEST_BACKEND=cuda: on GPUs, as many as HADAL_TEST_GPUS says (1): a rank each, through NCCL,
 * when there are enough of them, else sharing them, through the host's memory. */
#include "support/backend.h"
#include "support/canon.h"
#include "support/check.h"
#include "support/cut_layers.h"
#include "support/files.h"

#include "model/score.h"

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_TOK = 40, RANK_MAX = 4, FAMILY_MAX = 32 };

static const char *backends[] = {"ref", "cpu"};
static size_t n_backend = HD_COUNT_OF(backends);
static int n_gpu = 1;

/* The backend under test, if there is one that can be opened. */
static void choose_backend(void) {
    const char *gpus = getenv("HADAL_TEST_GPUS");
    test_need_backend();
    if (!test_backend()) return;
    backends[0] = test_backend();
    n_backend = 1;
    if (gpus) n_gpu = (int)strtol(gpus, NULL, 10);
}

static char families[FAMILY_MAX][64];
static int n_family;

static int list_families(void **state) {
    (void)state;
    choose_backend();
    DIR *d = opendir(test_path("tests/golden/families"));
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (strchr(e->d_name, '.')) continue;
        assert_true(n_family < FAMILY_MAX);
        snprintf(families[n_family++], sizeof families[0], "%.63s", e->d_name);
    }
    closedir(d);
    return 0;
}

/* ---- one rank: a thread from opening to closing ---- */

/* What the ranks of a run share. */
typedef struct group {
    hd_group *group; /* NULL: one that has the whole model */
    pthread_barrier_t ready;
    int n_rank;
    hd_dev dev[RANK_MAX];
    hd_status status[RANK_MAX]; /* of opening */
    hd_status joined;
} group;

typedef struct rank {
    pthread_t thread;
    group *all;
    int number;
    const hd_checkpoint *checkpoint;
    const char *backend;
    bool is_expert_parallel;
    int break_at; /* the upload that fails; 0: none */
    int n_each;   /* layers a step; 0: all */
    hd_status status;
    char text[256];
    float *logits; /* [N_TOK, n_vocab] */
    int n_vocab;
    uint64_t weight_bytes, kv_bytes, expected_bytes;
    char plan[4096];
} rank;

static void keep(void *user, int seq, int pos, const float *logits) {
    rank *r = user;
    (void)seq;
    memcpy(r->logits + (size_t)pos * (size_t)r->n_vocab, logits,
           (size_t)r->n_vocab * sizeof *logits);
}

/* A device that breaks: the oracle, whose upload fails once its time has come. */
static _Thread_local int uploads_left;
static _Thread_local hd_status (*inner_upload)(void *, const hd_batch *, const hd_batch **);
static hd_status break_later(void *ctx, const hd_batch *b, const hd_batch **out) {
    if (--uploads_left == 0) return HD_FAIL(DEVICE, "the device is gone");
    *out = b;
    return inner_upload ? inner_upload(ctx, b, out) : HD_OK;
}

static hd_status run_model(rank *r, hd_model *m, const hd_model_options *o) {
    hd_buf b;
    hd_buf_init(&b, sizeof r->plan);
    hd_model_plan_text(m, &b);
    snprintf(r->plan, sizeof r->plan, "%s", strstr(b.ptr, "rank ") ? strstr(b.ptr, "rank ") : "");
    hd_buf_fini(&b);
    r->n_vocab = hd_model_hparams(m)->n_vocab;
    r->weight_bytes = hd_model_weight_bytes(m);
    r->kv_bytes = hd_model_kv_bytes(m);
    r->logits = calloc(N_TOK, (size_t)r->n_vocab * sizeof *r->logits);
    int32_t id[N_TOK];
    for (int i = 0; i < N_TOK; i++) id[i] = (7 * i + 3) % 200;
    if (r->n_each > 0)
        return test_cut_layers(m, o, &(hd_score_spec){.token = id, .n_tok = N_TOK}, r->n_each,
                               r->logits);
    hd_scorer *s = hd_scorer_new(m, o, 1);
    int seq = hd_scorer_add(s, &(hd_score_spec){.token = id, .n_tok = N_TOK, .n_tok_max = N_TOK});
    int n = seq;
    do n = hd_scorer_step(s, 16, keep, r);
    while (n > 0);
    hd_scorer_free(s);
    return n < 0 ? HD_E_DEVICE : HD_OK;
}

/* Once every rank has its model, or one has none. */
static hd_status join(rank *r, hd_status opened, const hd_dev *dev) {
    group *g = r->all;
    g->status[r->number] = opened;
    g->dev[r->number] = *dev;
    pthread_barrier_wait(&g->ready);
    for (int i = 0; i < g->n_rank; i++)
        if (g->status[i] != HD_OK) return opened == HD_OK ? g->status[i] : opened;
    if (!g->group) return HD_OK;
    if (r->number == 0) g->joined = hd_group_join(g->group, g->dev);
    pthread_barrier_wait(&g->ready);
    return g->joined;
}

static hd_status run_rank(rank *r) {
    hd_dev own = {0}, dev;
    hd_model *m = NULL;
    hd_model_options o = {.n_row_max = 16,
                          .n_seq_max = 1,
                          .n_out_max = 16,
                          .n_pos_max = 64,
                          .n_page = 4,
                          .page_tok = 16,
                          .comm = r->all->group ? hd_group_comm(r->all->group, r->number) : NULL,
                          .is_expert_parallel = r->is_expert_parallel};
    hd_dev_config config = test_dev_config();
    config.n_thread = 1;
    config.ordinal = r->number % n_gpu;
    hd_dev_ops ops;
    hd_status s = hd_model_rank_bytes(r->checkpoint, r->all->n_rank, r->is_expert_parallel,
                                      &r->expected_bytes);
    if (s == HD_OK) s = hd_dev_open(r->backend, &config, &own);
    dev = own;
    if (s == HD_OK && r->break_at > 0) {
        ops = *own.ops;
        ops.upload = break_later;
        dev.ops = &ops;
        uploads_left = r->break_at;
        inner_upload = own.ops->upload;
    }
    if (s == HD_OK) s = hd_model_open(r->checkpoint, &dev, &o, NULL, NULL, &m);
    s = join(r, s, &own);
    if (s == HD_OK) s = run_model(r, m, &o);
    hd_model_close(m);
    hd_dev_close(&own);
    return s;
}

static void *rank_thread(void *arg) {
    rank *r = arg;
    r->status = run_rank(r);
    if (r->status != HD_OK) snprintf(r->text, sizeof r->text, "%s", hd_error_text());
    return NULL;
}

static const char *by; /* what the last group's collectives went through */

/* Runs the ranks of r[n_rank] together; the first says what they all are like. family: its name, or
 * a model's path. */
static void run(const char *family, rank *r, int n_rank) {
    char path[128];
    hd_checkpoint *c;
    snprintf(path, sizeof path, "tests/golden/families/%s", family);
    assert_ok(hd_checkpoint_open(strchr(family, '/') ? family : test_path(path), &c));
    int n = n_rank > 0 ? n_rank : 1;
    group g = {.n_rank = n, .group = n_rank > 0 ? hd_group_new(n_rank) : NULL};
    pthread_barrier_init(&g.ready, NULL, (unsigned)n);
    for (int i = 0; i < n; i++) {
        r[i].checkpoint = c;
        r[i].all = &g;
        r[i].number = i;
        r[i].backend = r[0].backend;
        r[i].is_expert_parallel = r[0].is_expert_parallel;
        r[i].n_each = r[0].n_each;
        assert_int_equal(pthread_create(&r[i].thread, NULL, rank_thread, &r[i]), 0);
    }
    for (int i = 0; i < n; i++) pthread_join(r[i].thread, NULL);
    if (g.joined == HD_E_UNSUPPORTED) {
        printf("skipped: %s\n", r[0].text);
        exit(77);
    }
    if (g.group) by = hd_group_comm(g.group, 0)->by;
    hd_group_free(g.group);
    pthread_barrier_destroy(&g.ready);
    hd_checkpoint_close(c);
}

static void free_logits(rank *r, int n_rank) {
    for (int i = 0; i < (n_rank > 0 ? n_rank : 1); i++) free(r[i].logits);
}

/* ---- the same numbers ---- */

static double worst_difference(const rank *a, const rank *b) {
    double worst = 0;
    for (int pos = 0; pos < N_TOK; pos++) {
        const float *x = a->logits + (size_t)pos * (size_t)a->n_vocab;
        const float *y = b->logits + (size_t)pos * (size_t)a->n_vocab;
        double sum = 0, square = 0, most = 0, n = a->n_vocab;
        for (int i = 0; i < a->n_vocab; i++) {
            sum += (double)x[i];
            square += (double)x[i] * (double)x[i];
            most = fmax(most, fabs((double)x[i] - (double)y[i]));
        }
        worst = fmax(worst, most / sqrt(square / n - sum / n * (sum / n)));
    }
    return worst;
}

/* Reads what must not divide; true when the family cannot be shared out so. */
static bool is_refused(const rank *r, int n_rank) {
    if (r[0].status == HD_OK) return false;
    for (int i = 0; i < n_rank; i++) assert_int_equal(r[i].status, HD_E_INVALID);
    assert_non_null(strstr(r[0].text, "divide into"));
    return true;
}

static int check_family(const char *backend, const char *family, const rank *whole, int n_rank,
                        bool is_expert_parallel) {
    rank r[RANK_MAX] = {{.backend = backend, .is_expert_parallel = is_expert_parallel}};
    rank again[RANK_MAX] = {{.backend = backend, .is_expert_parallel = is_expert_parallel}};
    size_t n_byte = (size_t)N_TOK * (size_t)whole->n_vocab * sizeof(float);
    run(family, r, n_rank);
    if (is_refused(r, n_rank)) {
        print_message("%s, %s, %d ranks: %s\n", backend, family, n_rank, r[0].text);
        return 0;
    }
    run(family, again, n_rank);
    double worst = worst_difference(whole, &r[0]);
    print_message("%s (%s), %s, %d ranks%s: %.2g\n", backend, by, family, n_rank,
                  is_expert_parallel ? ", experts by rank" : "", worst);
    assert_true(worst <= test_bound(1e-4, 0.3)); /* float32's order of sums; rounded inputs */
    uint64_t n_weight = 0;
    for (int i = 0; i < n_rank; i++) {
        char said[32];
        snprintf(said, sizeof said, "%d of %d", i, n_rank);
        assert_non_null(strstr(r[i].plan, said));
        assert_memory_equal(r[i].logits, r[0].logits, n_byte);
        assert_memory_equal(again[i].logits, r[0].logits, n_byte);
        assert_true(r[i].weight_bytes < whole->weight_bytes);
        assert_int_equal(r[i].weight_bytes, r[i].expected_bytes);
        n_weight += r[i].weight_bytes;
    }
    assert_true(n_weight >= whole->weight_bytes); /* nothing is missing */
    bool is_latent = r[0].kv_bytes == whole->kv_bytes;
    assert_true(is_latent || r[0].kv_bytes * (uint64_t)n_rank == whole->kv_bytes);
    free_logits(r, n_rank);
    free_logits(again, n_rank);
    return 1;
}

static void ranks_agree_with_one(void **state) {
    (void)state;
    int n_two = 0, n_four = 0, n_expert = 0;
    for (size_t b = 0; b < n_backend; b++)
        for (int f = 0; f < n_family; f++) {
            rank whole[1] = {{.backend = backends[b]}};
            run(families[f], whole, 0);
            if (whole->status == HD_E_UNSUPPORTED && test_backend()) {
                print_message("%s skipped: %s\n", families[f], whole->text);
                continue;
            }
            assert_int_equal(whole->status, HD_OK);
            n_two += check_family(backends[b], families[f], whole, 2, false);
            n_four += check_family(backends[b], families[f], whole, 4, false);
            n_expert += check_family(backends[b], families[f], whole, 2, true);
            free_logits(whole, 0);
        }
    int n = (int)n_backend * n_family;
    assert_true(2 * n_two >= n && 4 * n_four >= n && 2 * n_expert >= n);
}

static void one_rank_is_the_whole(void **state) {
    (void)state;
    const char *backend = test_backend() ? test_backend() : "cpu";
    rank whole[1] = {{.backend = backend}}, one[1] = {{.backend = backend}};
    run("v3", whole, 0);
    run("v3", one, 1);
    print_message("one rank: %s\n", by);
    assert_memory_equal(one->logits, whole->logits,
                        (size_t)N_TOK * (size_t)whole->n_vocab * sizeof(float));
    free_logits(whole, 0);
    free_logits(one, 1);
}

/* Slices of layers: every rank computes the same ones, whose sums go over the same ranks. */
static void layers_in_several_steps_give_the_same_bits(void **state) {
    (void)state;
    for (size_t b = 0; b < n_backend; b++)
        for (int k = 0; k < 2; k++) {
            rank whole[RANK_MAX] = {{.backend = backends[b], .is_expert_parallel = k == 1}};
            rank cut[RANK_MAX] = {
                {.backend = backends[b], .is_expert_parallel = k == 1, .n_each = 1}};
            run("v3", whole, 2);
            run("v3", cut, 2);
            size_t n_byte = (size_t)N_TOK * (size_t)whole->n_vocab * sizeof(float);
            for (int i = 0; i < 2; i++) {
                assert_int_equal(whole[i].status, HD_OK);
                assert_int_equal(cut[i].status, HD_OK);
                assert_memory_equal(cut[i].logits, whole[0].logits, n_byte);
            }
            free_logits(whole, 2);
            free_logits(cut, 2);
        }
}

/* ---- what cannot be ---- */

static void what_does_not_divide_is_named(void **state) {
    (void)state;
    static const struct {
        const char *family, *says;
        int n_rank;
        bool is_expert_parallel;
    } row[] = {
        {"v3", "3 ranks: 4 attention heads do not divide", 3, false},
        {"llama", "key and value heads do not divide", 4, false},
    };
    for (size_t i = 0; i < HD_COUNT_OF(row); i++) {
        rank r[RANK_MAX] = {
            {.backend = backends[0], .is_expert_parallel = row[i].is_expert_parallel}};
        run(row[i].family, r, row[i].n_rank);
        for (int k = 0; k < row[i].n_rank; k++) {
            assert_int_equal(r[k].status, HD_E_INVALID);
            if (!strstr(r[k].text, row[i].says)) fail_msg("%s: %s", row[i].family, r[k].text);
        }
        free_logits(r, row[i].n_rank);
    }
}

/* Of quantised weights columns are cut between blocks: 32 of Q8_0 divide everything in the mini
 * model, 256 of Q4_K do not divide its feed-forwards. (The cpu rounds the inputs of Q8_0.) */
static void columns_are_cut_between_blocks(void **state) {
    (void)state;
    struct opened o;
    char q8[128], q4[128];
    rank whole[1] = {{.backend = "ref"}}, two[RANK_MAX] = {{.backend = "ref"}};
    snprintf(q8, sizeof q8, "%s", test_join(test_dir, "q8.gguf"));
    snprintf(q4, sizeof q4, "%s", test_join(test_dir, "q4.gguf"));
    open_all(&o, test_path("models/mini/mini-bf16.gguf"));
    assert_ok(export_as(&o, HD_Q8_0, q8, NULL));
    assert_ok(export_as(&o, HD_Q4_K, q4, NULL));
    close_all(&o);
    run(q8, whole, 0);
    int n_done = check_family("ref", q8, whole, 2, false) + check_family("ref", q8, whole, 4, true);
    assert_int_equal(n_done, 2);
    run(q4, two, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(two[i].status, HD_E_INVALID);
        assert_non_null(strstr(two[i].text, "equal parts of whole blocks of 256 (Q4_K)"));
    }
    free_logits(whole, 0);
    free_logits(two, 2);
}

/* Whichever rank breaks, in whichever step: all of them end with its reason, and none waits on. */
static void a_rank_that_breaks_ends_all(void **state) {
    (void)state;
    for (int broken = 0; broken < 2; broken++)
        for (int step = 1; step <= 3; step++) {
            rank r[RANK_MAX] = {{.backend = backends[0]}};
            r[broken].break_at = step;
            run("v3", r, 2);
            for (int i = 0; i < 2; i++) {
                assert_int_equal(r[i].status, HD_E_DEVICE);
                assert_non_null(strstr(r[i].text, "the device is gone"));
            }
            assert_non_null(strstr(r[1 - broken].text, broken ? "rank 1 of 2" : "rank 0 of 2"));
            free_logits(r, 2);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_is_the_whole),
        cmocka_unit_test(ranks_agree_with_one),
        cmocka_unit_test(layers_in_several_steps_give_the_same_bits),
        cmocka_unit_test(what_does_not_divide_is_named),
        cmocka_unit_test_setup_teardown(columns_are_cut_between_blocks, test_dir_make,
                                        test_dir_remove),
        cmocka_unit_test(a_rank_that_breaks_ends_all),
    };
    return cmocka_run_group_tests(tests, list_families, NULL);
}
