/* Packs pending rows of the added sequences into batches and hands out logits. */
#include "model/score.h"

#include "base/mem.h"

#include <string.h>

struct seq {
    bool is_used;
    int32_t *token, *page; /* heap */
    int n_tok, n_tok_max, n_done, n_page, first_out, n_first;
    uint8_t form, next_form;
};

struct hd_scorer {
    hd_model *m;
    hd_model_options opt;
    hd_batch batch;
    struct seq *seq; /* [n_seq_max] */
    int32_t *free_page;
    int n_free;
    int next_seq; /* who is first in the next step */
    struct out {
        int seq, pos;
    } * out; /* [n_row_max] of the step's output rows */
};

hd_scorer *hd_scorer_new(hd_model *m, const hd_model_options *o, uint64_t seed) {
    hd_scorer *s = hd_alloc_zero(1, sizeof *s);
    s->m = m;
    s->opt = *o;
    hd_batch_init(&s->batch, o->n_row_max, o->n_seq_max, o->n_page, o->page_tok);
    s->seq = hd_alloc_zero((size_t)o->n_seq_max, sizeof *s->seq);
    s->out = hd_alloc_zero((size_t)o->n_row_max, sizeof *s->out);
    s->free_page = hd_alloc_zero((size_t)o->n_page, sizeof *s->free_page);
    for (int i = 0; i < o->n_page; i++) { /* inside-out shuffle */
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        int k = (int)((seed >> 33) % (uint64_t)(i + 1));
        s->free_page[i] = s->free_page[k];
        s->free_page[k] = i;
    }
    s->n_free = o->n_page;
    return s;
}

void hd_scorer_free(hd_scorer *s) {
    if (!s) return;
    for (int i = 0; i < s->opt.n_seq_max; i++) {
        hd_free(s->seq[i].token);
        hd_free(s->seq[i].page);
    }
    hd_batch_fini(&s->batch);
    hd_free(s->seq);
    hd_free(s->out);
    hd_free(s->free_page);
    hd_free(s);
}

int hd_scorer_add(hd_scorer *s, const hd_score_spec *spec) {
    HD_ASSERT(spec->n_tok >= 1 && spec->n_tok_max >= spec->n_tok);
    HD_ASSERT(spec->n_tok_max <= s->opt.n_pos_max);
    int n_page = (spec->n_tok_max + s->opt.page_tok - 1) / s->opt.page_tok;
    int ix = 0;
    while (ix < s->opt.n_seq_max && s->seq[ix].is_used) ix++;
    if (ix == s->opt.n_seq_max || n_page > s->n_free) return -1;
    struct seq *q = &s->seq[ix];
    *q = (struct seq){.is_used = true,
                      .token = hd_alloc((size_t)spec->n_tok_max * sizeof *q->token),
                      .page = hd_alloc((size_t)n_page * sizeof *q->page),
                      .n_tok = spec->n_tok,
                      .n_tok_max = spec->n_tok_max,
                      .n_page = n_page,
                      .first_out = spec->first_out,
                      .n_first = spec->n_tok,
                      .form = (uint8_t)spec->form,
                      .next_form = (uint8_t)spec->next_form};
    memcpy(q->token, spec->token, (size_t)spec->n_tok * sizeof *q->token);
    for (int i = 0; i < n_page; i++) q->page[i] = s->free_page[--s->n_free];
    return ix;
}

static struct seq *get(const hd_scorer *s, int seq) {
    HD_ASSERT(seq >= 0 && seq < s->opt.n_seq_max && s->seq[seq].is_used);
    return &s->seq[seq];
}

void hd_scorer_extend(hd_scorer *s, int seq, int32_t token) {
    struct seq *q = get(s, seq);
    HD_ASSERT(q->n_tok < q->n_tok_max);
    q->token[q->n_tok++] = token;
}

void hd_scorer_drop(hd_scorer *s, int seq) {
    struct seq *q = get(s, seq);
    for (int i = 0; i < q->n_page; i++) s->free_page[s->n_free++] = q->page[i];
    hd_free(q->token);
    hd_free(q->page);
    *q = (struct seq){0};
}

/* Appends up to n rows of sequence ix; fewer when output rows run out. */
static void add_rows(hd_scorer *s, int ix, int n) {
    hd_batch *b = &s->batch;
    struct seq *q = &s->seq[ix];
    int row0 = b->n_row, n_page = 0;
    for (int k = 0; k < n; k++) {
        int pos = q->n_done, r = b->n_row;
        if (pos >= q->first_out && b->n_out == s->opt.n_out_max) break;
        b->token[r] = q->token[pos];
        b->pos[r] = pos;
        b->row_seq[r] = b->n_seq;
        b->kv_row[r] = q->page[pos / b->page_tok] * b->page_tok + pos % b->page_tok;
        b->form[r] = pos < q->n_first ? q->form : q->next_form;
        if (pos >= q->first_out) {
            s->out[b->n_out] = (struct out){.seq = ix, .pos = pos};
            b->out_row[b->n_out++] = r;
        }
        b->n_row++;
        q->n_done++;
    }
    if (b->n_row == row0) return;
    n_page = (q->n_done + b->page_tok - 1) / b->page_tok;
    memcpy(b->page + b->n_page, q->page, (size_t)n_page * sizeof *q->page);
    b->n_page += n_page;
    b->seq_slot[b->n_seq] = ix;
    b->n_seq++;
    b->seq_row0[b->n_seq] = b->n_row;
    b->seq_page0[b->n_seq] = b->n_page;
}

int hd_scorer_step(hd_scorer *s, int chunk, hd_score_fn fn, void *user) {
    hd_batch *b = &s->batch;
    int n_seq = s->opt.n_seq_max;
    hd_batch_clear(b);
    for (int k = 0; k < n_seq && b->n_row < s->opt.n_row_max; k++) {
        int ix = (s->next_seq + k) % n_seq;
        struct seq *q = &s->seq[ix];
        int n = q->is_used ? q->n_tok - q->n_done : 0;
        if (chunk > 0 && n > chunk) n = chunk;
        if (n > s->opt.n_row_max - b->n_row) n = s->opt.n_row_max - b->n_row;
        if (n > 0) add_rows(s, ix, n);
    }
    if (b->n_row == 0) return 0;
    s->next_seq = (b->seq_slot[b->n_seq - 1] + 1) % n_seq;
    const float *logits;
    if (hd_model_forward(s->m, b, &logits) != HD_OK) return -1;
    int n_row = b->n_row, n_out = b->n_out;
    size_t n_vocab = (size_t)hd_model_hparams(s->m)->n_vocab;
    for (int i = 0; i < n_out; i++)
        fn(user, s->out[i].seq, s->out[i].pos, logits + (size_t)i * n_vocab);
    return n_row;
}
