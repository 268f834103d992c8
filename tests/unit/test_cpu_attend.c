/* Attention of the cpu backend over pages. Those that several sequences share: the bits are those
 * of sequences with copies of the pages, and a shared block's keys and values are made once. Those
 * that lie side by side are read where they lie: the bits are those of scattered ones, of a cache
 * of F16 those of its values as floats, and those of one thread however many share a sequence. */
#include "support/op_data.h"

#include "cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

/* Sequence s begins with the pages of sequence s % N_CLASS. The last but one ends inside of them.
 */
enum {
    N_SEQ = 7,
    N_CLASS = 2,
    PAGE = 16,
    SHARED = 192,
    D_C = 40,
    D_ROPE = 8,
    D_NOPE = 24,
    D_V = 20
};
enum { N_KEY_HEAD = 2, D_HEAD = 24, N_ROW_MOST = 40 };
/* Counts that fill vectors of any level, and counts that do not. */
static const int heads[] = {6, 8, 2, 40, 12, 20, 4, 24};
/* One is of three stretches, so that threads share it. */
static const int n_pos[N_SEQ] = {300, 193, 513, 4700, 192 + 64, 100, 1104};

enum which { LATENT, EXPANDED, GROUPED, N_WHICH };
static const char *const names[] = {"absorbed", "expanded", "grouped-query"};

typedef struct fixture {
    int n_head, n_unit;
    hd_batch own, shared; /* the same sequences, in pages of their own and in shared ones */
    hd_kv_layout kv;
    char *cache[2];
    float *q;
    hd_weight *k_b, *v_b;
    hd_dev_limits limits;
    size_t n_out; /* floats a row */
    int n_page;   /* of a cache */
} fixture;

static void copy_batch(hd_batch *to, const hd_batch *from) {
    hd_batch_init(to, from->n_row, from->n_seq, from->n_page, from->page_tok);
    to->n_row = from->n_row, to->n_seq = from->n_seq, to->n_page = from->n_page;
    size_t n = (size_t)from->n_row, n_seq = (size_t)from->n_seq;
    memcpy(to->pos, from->pos, sizeof(int32_t) * n);
    memcpy(to->row_seq, from->row_seq, sizeof(int32_t) * n);
    memcpy(to->form, from->form, n);
    memcpy(to->seq_row0, from->seq_row0, sizeof(int32_t) * (n_seq + 1));
    memcpy(to->seq_page0, from->seq_page0, sizeof(int32_t) * (n_seq + 1));
    memcpy(to->page, from->page, sizeof(int32_t) * (size_t)from->n_page);
}

static void share_pages(fixture *f) {
    size_t page_bytes = hd_kv_bytes(&f->kv, PAGE);
    for (int s = N_CLASS; s < N_SEQ; s++)
        for (int i = 0; i < SHARED / PAGE && i < (n_pos[s] + PAGE - 1) / PAGE; i++) {
            size_t at = (size_t)(f->own.seq_page0[s] + i);
            size_t leader = (size_t)(f->own.seq_page0[s % N_CLASS] + i);
            int32_t from = f->own.page[leader], to = f->own.page[at];
            f->shared.page[at] = from;
            /* A row writes its own position, here as in the op before: not in a shared page. */
            for (int c = 0; c < 2; c++)
                memcpy(f->cache[c] + (size_t)to * page_bytes,
                       f->cache[c] + (size_t)from * page_bytes, page_bytes);
        }
}

static void set_up(fixture *f, enum which w, enum hd_kv_type type, int n_head) {
    test_seq seq[N_SEQ];
    f->n_head = n_head;
    f->n_unit = w == LATENT ? 1 : w == EXPANDED ? n_head : N_KEY_HEAD;
    int n_page;
    for (int s = 0; s < N_SEQ; s++)
        seq[s] = (test_seq){.n_pos = n_pos[s], .n_row = s == 5 ? 1 : 1 + s % 3};
    for (int s = 0; s < N_SEQ && w == EXPANDED; s++) seq[s].n_expanded = seq[s].n_row;
    f->kv = w == GROUPED ? hd_kv_heads(type, N_KEY_HEAD, D_HEAD) : hd_kv_latent(type, D_C, D_ROPE);
    test_batch(&f->own, seq, N_SEQ, PAGE, &n_page);
    f->n_page = n_page;
    copy_batch(&f->shared, &f->own);
    for (int c = 0; c < 2; c++) f->cache[c] = test_cache(&f->own, n_page, &f->kv);
    share_pages(f);
    f->n_out = (size_t)n_head * (w == GROUPED ? D_HEAD : D_V);
    f->q = test_floats((size_t)f->own.n_row * (size_t)n_head * (D_NOPE + D_ROPE), 2);
    f->k_b = test_weight(HD_BF16, D_NOPE, D_C, n_head);
    f->v_b = test_weight(HD_BF16, D_C, D_V, n_head);
    f->limits = (hd_dev_limits){.n_row = N_ROW_MOST,
                                .n_seq = N_SEQ,
                                .n_out = 1,
                                .d_model = 32,
                                .n_vocab = 10,
                                .d_ff = 32,
                                .n_head = n_head,
                                .n_nope = D_NOPE,
                                .n_rope = w == GROUPED ? D_HEAD : D_ROPE,
                                .n_c = D_C,
                                .n_v = w == GROUPED ? D_HEAD : D_V,
                                .n_kv = N_KEY_HEAD * D_HEAD,
                                .n_pos = 4700};
}

static void tear_down(fixture *f) {
    hd_batch_fini(&f->own);
    hd_batch_fini(&f->shared);
    for (int c = 0; c < 2; c++) free(f->cache[c]);
    free(f->q);
    test_weight_free(f->k_b);
    test_weight_free(f->v_b);
}

/* Returns how many blocks' keys and values were made. */
static int attend(const hd_dev *d, const fixture *f, enum which w, const hd_batch *b, float *out) {
    hd_cpu *c = d->ctx;
    uint64_t before = 0, after = 0;
    for (int i = 0; i < c->n_thread; i++) before += c->thread[i].n_block;
    if (w == GROUPED)
        d->ops->gqa_attn(d->ctx, &(struct hd_op_gqa_attn){.batch = b,
                                                          .q = f->q,
                                                          .kv = f->kv,
                                                          .keys = f->cache[0],
                                                          .values = f->cache[1],
                                                          .n_head = f->n_head,
                                                          .n_head_kv = N_KEY_HEAD,
                                                          .d_head = D_HEAD,
                                                          .scale = 0.3f,
                                                          .out = out});
    else
        d->ops->mla_attn(d->ctx, &(struct hd_op_mla_attn){.batch = b,
                                                          .q = f->q,
                                                          .kv = f->kv,
                                                          .cache = f->cache[0],
                                                          .k_b = f->k_b,
                                                          .v_b = f->v_b,
                                                          .n_head = f->n_head,
                                                          .n_nope = D_NOPE,
                                                          .n_rope = D_ROPE,
                                                          .n_c = D_C,
                                                          .n_v = D_V,
                                                          .scale = 0.3f,
                                                          .out = out});
    for (int i = 0; i < c->n_thread; i++) after += c->thread[i].n_block;
    return (int)(after - before);
}

static int blocks_of(int n) { return (n + HD_CPU_KV_BLOCK - 1) / HD_CPU_KV_BLOCK; }

/* Blocks of all sequences, those in shared pages once a class. The sequence that ends inside of a
 * block has fewer pages of it than the others, and so it for itself. */
static int expected_blocks(bool is_shared) {
    int n = 0;
    for (int s = 0; s < N_SEQ; s++) {
        n += blocks_of(n_pos[s]);
        if (is_shared && s >= N_CLASS)
            n -= n_pos[s] < SHARED ? n_pos[s] / HD_CPU_KV_BLOCK : SHARED / HD_CPU_KV_BLOCK;
    }
    return n;
}

static void shared_pages_are_read_once(void **state) {
    (void)state;
    /* Every count of heads meets every kind of attention, and most types. */
    for (int at = 0; at < N_WHICH * (int)HD_COUNT_OF(heads); at++) {
        enum which w = (enum which)(at % N_WHICH);
        fixture f;
        set_up(&f, w, (enum hd_kv_type)(at / N_WHICH % HD_KV_TYPE_COUNT),
               heads[at % (int)HD_COUNT_OF(heads)]);
        size_t n = (size_t)f.own.n_row * f.n_out;
        float *expected = test_floats(n, 0), *found = test_floats(n, 0);
        test_level level[TEST_LEVEL_MAX];
        int n_level = test_levels(level);
        for (int i = 0; i < n_level; i++) {
            hd_dev d = test_open_cpu(level[i], &f.limits);
            int n_own = attend(&d, &f, w, &f.own, expected);
            int n_shared = attend(&d, &f, w, &f.shared, found);
            test_bits_equal(found, expected, n * sizeof *found, names[w]);
            assert_int_equal(n_own, f.n_unit * expected_blocks(false));
            assert_int_equal(n_shared, f.n_unit * expected_blocks(true));
            test_close(&d);
        }
        free(expected);
        free(found);
        tear_down(&f);
    }
}

/* Moves the pages of the cache of f so that each sequence's follow one another, and the last row of
 * the last one ends the cache. */
static void put_side_by_side(fixture *f) {
    size_t page_bytes = hd_kv_bytes(&f->kv, PAGE);
    int first = f->n_page - f->own.n_page;
    for (int c = 0; c < 2; c++) {
        char *from = f->cache[c];
        f->cache[c] = malloc((size_t)f->n_page * page_bytes);
        assert_non_null(f->cache[c]);
        for (int i = 0; i < f->own.n_page; i++)
            memcpy(f->cache[c] + (size_t)(first + i) * page_bytes,
                   from + (size_t)f->own.page[i] * page_bytes, page_bytes);
        free(from);
    }
    for (int i = 0; i < f->own.n_page; i++) f->own.page[i] = first + i;
}

/* The cache's values as floats. */
static void put_as_floats(fixture *f, enum which w) {
    size_t n_row = (size_t)f->n_page * PAGE;
    hd_kv_layout from = f->kv;
    f->kv = w == GROUPED ? hd_kv_heads(HD_KV_F32, N_KEY_HEAD, D_HEAD)
                         : hd_kv_latent(HD_KV_F32, D_C, D_ROPE);
    for (int c = 0; c < 2; c++) {
        float *to = test_floats(n_row * (size_t)from.n, 0);
        for (size_t i = 0; i < n_row; i++)
            hd_kv_decode(&from, f->cache[c] + hd_kv_bytes(&from, i), 0, from.n,
                         to + i * (size_t)from.n);
        free(f->cache[c]);
        f->cache[c] = (char *)to;
    }
}

static void where_rows_lie_and_threads_change_no_bit(void **state) {
    (void)state;
    for (int at = 0; at < N_WHICH * (int)HD_COUNT_OF(heads); at++) {
        enum which w = (enum which)(at % N_WHICH);
        fixture f;
        set_up(&f, w, HD_KV_F16, heads[at % (int)HD_COUNT_OF(heads)]);
        size_t n = (size_t)f.own.n_row * f.n_out;
        float *expected[TEST_LEVEL_MAX], *found = test_floats(n, 0);
        test_level level[TEST_LEVEL_MAX];
        int n_level = test_levels(level);
        static const char *const how[] = {"scattered", "side by side", "decoded first",
                                          "floats side by side"};
        for (int step = 0; step < (int)HD_COUNT_OF(how); step++) {
            if (step == 1) put_side_by_side(&f);
            if (step == 3) put_as_floats(&f, w);
            for (int i = 0; i < n_level; i++) {
                /* Levels come with one thread, two and three. */
                bool is_first = step == 0 && i % 3 == 0;
                if (is_first) expected[i / 3] = test_floats(n, 0);
                hd_dev d = test_open_cpu(level[i], &f.limits);
                ((hd_cpu *)d.ctx)->reads_halves = step != 2; /* else by the processor's maker */
                attend(&d, &f, w, &f.own, is_first ? expected[i / 3] : found);
                if (!is_first)
                    test_bits_equal(found, expected[i / 3], n * sizeof *found, how[step]);
                test_close(&d);
            }
        }
        for (int i = 0; i < n_level; i += 3) free(expected[i / 3]);
        free(found);
        tear_down(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(shared_pages_are_read_once),
                                       cmocka_unit_test(where_rows_lie_and_threads_change_no_bit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
