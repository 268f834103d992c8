/* Rehearsal: one step of every kind that a device prepares for, over the first page of the cache.
 */
#include "model/arch.h"

static void add_row(hd_batch *b, int seq, int pos, enum hd_mla_form form) {
    int r = b->n_row++;
    b->token[r] = 0;
    b->pos[r] = pos;
    b->row_seq[r] = seq;
    b->kv_row[r] = pos % b->page_tok;
    b->form[r] = (uint8_t)form;
}

/* A sequence whose rows are positions first .. last, with the last one's token drawn. */
static void add_seq(hd_batch *b, int first, int last) {
    int s = b->n_seq++, middle = (first + last) / 2;
    for (int pos = first; pos <= last; pos++)
        add_row(b, s, pos, first < last && pos < middle ? HD_MLA_EXPANDED : HD_MLA_ABSORBED);
    for (int pos = 0; pos <= last; pos += b->page_tok) b->page[b->n_page++] = 0;
    b->seq_slot[s] = s;
    b->seq_row0[s + 1] = b->n_row;
    b->seq_page0[s + 1] = b->n_page;
    b->out_row[b->n_out] = b->n_row - 1;
    b->draw[b->n_out++] = (hd_draw){.temperature = 1, .top_p = 1};
}

static hd_status run(hd_model *m, const hd_batch *b) {
    hd_model_out out;
    HD_TRY(hd_model_enqueue(m, b));
    return hd_model_fetch(m, &out);
}

/* A prompt in both forms, as long as a step allows: it is computed. */
static hd_status run_prompt(hd_model *m, hd_batch *b) {
    const hd_model_options *o = &m->opt;
    int n_row = o->n_row_max < o->n_pos_max ? o->n_row_max : o->n_pos_max;
    if (n_row > o->n_page * o->page_tok) n_row = o->n_page * o->page_tok;
    hd_batch_clear(b);
    add_seq(b, 0, n_row - 1);
    return run(m, b);
}

hd_status hd_model_rehearse(hd_model *m, void (*on_progress)(void *user, int done, int all),
                            void *user) {
    const hd_dev_ops *ops = m->dev.ops;
    int all = 0, n_row, n_pos;
    if (!ops->rehearsal) return HD_OK;
    while (ops->rehearsal(m->dev.ctx, all, &n_row, &n_pos)) all++;
    hd_dev_limits l = hd_model_limits(m);
    hd_batch b;
    hd_batch_init(&b, l.n_row, l.n_seq, l.n_table + l.n_seq, l.page_tok);
    hd_status s = run_prompt(m, &b);
    ops->rehearse(m->dev.ctx, true);
    for (int i = 0; i < all && s == HD_OK; i++) {
        HD_ASSERT(ops->rehearsal(m->dev.ctx, i, &n_row, &n_pos));
        hd_batch_clear(&b);
        for (int k = 0; k < n_row; k++) add_seq(&b, k == 0 ? n_pos - 1 : 0, k == 0 ? n_pos - 1 : 0);
        s = run(m, &b);
        if (on_progress) on_progress(user, i + 1, all);
    }
    ops->rehearse(m->dev.ctx, false);
    hd_batch_fini(&b);
    return s;
}
