/* The loop that every attention op of this backend ends in: queries over a sequence's positions in
 * blocks of 64 from position 0, with an online softmax (arXiv 1805.02867). Sums over positions are
 * in ascending order and stop at the query's own position. */
#include "cpu/cpu.h"

/* Adds weights s[i][0..n_i) times values; n_i does not fall with i. The common positions of up to
 * six queries go together, the rest one query at a time: the same order for each. */
static void add_values(const hd_cpu_kernels *k, const hd_cpu_block *b, const float *const *s,
                       float *const *acc, const int *n_i, int n) {
    hd_cpu_product p = {.n_lane = (int)hd_cpu_pad(b->n_v), .a_step = 1, .ldb = b->ldv};
    for (int i = 0, end; i < n; i = end) {
        int common = n_i[i];
        end = i + 1;
        while (end < n && (n_i[end] == common || end - i < 6)) end++;
        p.n_row = end - i, p.n_k = common, p.a = s + i, p.c = acc + i;
        p.a_off = 0, p.b = b->v, p.is_sum = b->t0 > 0;
        k->product(&p);
        for (int j = i; j < end; j++) {
            if (n_i[j] == common) continue;
            p.n_row = 1, p.n_k = n_i[j] - common, p.a = s + j, p.c = acc + j;
            p.a_off = (size_t)common, p.b = b->v + (size_t)common * b->ldv, p.is_sum = true;
            k->product(&p);
        }
    }
}

void hd_cpu_attend(const hd_cpu_kernels *k, hd_cpu_scratch *t, const hd_cpu_block *b) {
    const hd_cpu_queries *q = &t->queries;
    int i0 = 0;
    while (i0 < q->n && q->pos[i0] < b->t0) i0++;
    for (; i0 < q->n; i0 += HD_CPU_QCHUNK) {
        int n = hd_cpu_least(q->n - i0, HD_CPU_QCHUNK), n_i[HD_CPU_QCHUNK];
        float *s[HD_CPU_QCHUNK];
        for (int i = 0; i < n; i++) s[i] = t->s + i * HD_CPU_KV_BLOCK;
        k->product(&(hd_cpu_product){.n_row = n,
                                     .n_k = b->n_key,
                                     .n_lane = (int)hd_cpu_pad(b->n_t),
                                     .a = q->q + i0,
                                     .a_step = 1,
                                     .b = b->kt,
                                     .ldb = HD_CPU_KV_BLOCK,
                                     .c = s});
        for (int i = 0; i < n; i++) {
            n_i[i] = hd_cpu_least(q->pos[i0 + i] - b->t0 + 1, HD_CPU_KV_BLOCK);
            float keep = k->softmax(s[i], n_i[i], b->scale, &q->m[i0 + i], &q->l[i0 + i]);
            if (b->t0 > 0 && keep != 1.0f) k->scale(q->acc[i0 + i], b->n_v, keep);
        }
        add_values(k, b, (const float *const *)s, q->acc + i0, n_i, n);
    }
}

void hd_cpu_block_rows(const hd_batch *b, int seq, const hd_cpu_block *block, const void *cache,
                       size_t row_bytes, const void **row) {
    const int32_t *page = b->page + b->seq_page0[seq];
    for (int i = 0; i < block->n_t; i++) {
        int t = block->t0 + i;
        size_t at = (size_t)page[t / b->page_tok] * (size_t)b->page_tok + (size_t)(t % b->page_tok);
        row[i] = (const char *)cache + at * row_bytes;
    }
}

int hd_cpu_make_groups(hd_cpu *c, const hd_batch *b, const int32_t *list, int first, int end,
                       int n_max) {
    int n = 0;
    for (int i = first; i < end; i++) {
        int seq = b->row_seq[list[i]];
        hd_cpu_group *g = n > 0 ? &c->group[n - 1] : NULL;
        if (g != NULL && g->seq == seq && g->n < n_max)
            g->n++;
        else
            c->group[n++] = (hd_cpu_group){.seq = seq, .first = i, .n = 1};
    }
    return n;
}
