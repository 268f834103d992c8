/* Storage and invariants of the batch. */
#include "base/batch.h"

#include "base/mem.h"

#include <string.h>

void hd_batch_init(hd_batch *b, int n_row_max, int n_seq_max, int n_page_max, int page_tok) {
    HD_ASSERT(n_row_max > 0 && n_seq_max > 0 && n_page_max > 0 && page_tok > 0);
    *b = (hd_batch){.page_tok = page_tok,
                    .n_row_max = n_row_max,
                    .n_seq_max = n_seq_max,
                    .n_page_max = n_page_max};
    size_t n_row = (size_t)n_row_max, n_seq = (size_t)n_seq_max, n_page = (size_t)n_page_max;
    b->token = hd_alloc_zero(n_row, sizeof *b->token);
    b->pos = hd_alloc_zero(n_row, sizeof *b->pos);
    b->row_seq = hd_alloc_zero(n_row, sizeof *b->row_seq);
    b->kv_row = hd_alloc_zero(n_row, sizeof *b->kv_row);
    b->form = hd_alloc_zero(n_row, sizeof *b->form);
    b->seq_slot = hd_alloc_zero(n_seq, sizeof *b->seq_slot);
    b->seq_row0 = hd_alloc_zero(n_seq + 1, sizeof *b->seq_row0);
    b->seq_page0 = hd_alloc_zero(n_seq + 1, sizeof *b->seq_page0);
    b->page = hd_alloc_zero(n_page, sizeof *b->page);
    b->out_row = hd_alloc_zero(n_row, sizeof *b->out_row);
    b->draw = hd_alloc_zero(n_row, sizeof *b->draw);
}

void hd_batch_fini(hd_batch *b) {
    hd_free(b->token);
    hd_free(b->pos);
    hd_free(b->row_seq);
    hd_free(b->kv_row);
    hd_free(b->form);
    hd_free(b->seq_slot);
    hd_free(b->seq_row0);
    hd_free(b->seq_page0);
    hd_free(b->page);
    hd_free(b->out_row);
    hd_free(b->draw);
    *b = (hd_batch){0};
}

void hd_batch_clear(hd_batch *b) {
    b->n_row = b->n_seq = b->n_page = b->n_out = b->n_copy = 0;
    b->layer0 = b->layer1 = b->chunk_ix = 0;
    b->seq_row0[0] = b->seq_page0[0] = 0;
}

void hd_batch_copy_arrays(hd_batch *to, const hd_batch *from) {
    size_t n_row = (size_t)from->n_row, n_seq = (size_t)from->n_seq;
    memcpy(to->token, from->token, n_row * sizeof *to->token);
    memcpy(to->pos, from->pos, n_row * sizeof *to->pos);
    memcpy(to->row_seq, from->row_seq, n_row * sizeof *to->row_seq);
    memcpy(to->kv_row, from->kv_row, n_row * sizeof *to->kv_row);
    memcpy(to->form, from->form, n_row * sizeof *to->form);
    memcpy(to->seq_slot, from->seq_slot, n_seq * sizeof *to->seq_slot);
    memcpy(to->seq_row0, from->seq_row0, (n_seq + 1) * sizeof *to->seq_row0);
    memcpy(to->seq_page0, from->seq_page0, (n_seq + 1) * sizeof *to->seq_page0);
    memcpy(to->page, from->page, (size_t)from->n_page * sizeof *to->page);
    memcpy(to->out_row, from->out_row, (size_t)from->n_out * sizeof *to->out_row);
}

void hd_batch_copy(hd_batch *to, const hd_batch *from) {
    HD_ASSERT(from->n_row <= to->n_row_max && from->n_seq <= to->n_seq_max);
    HD_ASSERT(from->n_page <= to->n_page_max && from->page_tok == to->page_tok);
    to->n_row = from->n_row, to->n_seq = from->n_seq, to->n_page = from->n_page;
    to->n_out = from->n_out, to->n_copy = from->n_copy;
    to->layer0 = from->layer0, to->layer1 = from->layer1, to->chunk_ix = from->chunk_ix;
    hd_batch_copy_arrays(to, from);
    memcpy(to->copy_from, from->copy_from, sizeof to->copy_from);
    memcpy(to->copy_to, from->copy_to, sizeof to->copy_to);
}

static void check_seq(const hd_batch *b, int s) {
    int row0 = b->seq_row0[s], row1 = b->seq_row0[s + 1];
    int page0 = b->seq_page0[s], n_page = b->seq_page0[s + 1] - page0;
    HD_ASSERT(row0 < row1 && n_page > 0);
    for (int r = row0; r < row1; r++) {
        HD_ASSERT(b->row_seq[r] == s && b->form[r] <= HD_MLA_EXPANDED);
        bool is_known = b->token[r] >= 0;
        HD_ASSERT(is_known || hd_slot_of_token(b->token[r]) == b->seq_slot[s]);
        HD_ASSERT(is_known || r == row1 - 1);
        HD_ASSERT(r == row0 || b->pos[r] == b->pos[r - 1] + 1);
        HD_ASSERT(b->pos[r] >= 0 && b->pos[r] / b->page_tok < n_page);
        int page = b->page[page0 + b->pos[r] / b->page_tok];
        HD_ASSERT(b->kv_row[r] == page * b->page_tok + b->pos[r] % b->page_tok);
    }
}

void hd_batch_check(const hd_batch *b) {
    HD_ASSERT(b->n_row <= b->n_row_max && b->n_seq <= b->n_seq_max);
    HD_ASSERT(b->n_page <= b->n_page_max && b->n_out <= b->n_row);
    HD_ASSERT(b->layer0 >= 0 && (b->layer1 > b->layer0 || b->layer0 + b->layer1 == 0));
    HD_ASSERT(b->chunk_ix >= 0 && b->chunk_ix < (b->layer1 > 0 ? HD_BATCH_CHUNKS : 1));
    HD_ASSERT(b->seq_row0[0] == 0 && b->seq_page0[0] == 0);
    for (int s = 0; s < b->n_seq; s++) check_seq(b, s);
    HD_ASSERT(b->seq_row0[b->n_seq] == b->n_row && b->seq_page0[b->n_seq] == b->n_page);
    for (int i = 0; i < b->n_out; i++) {
        HD_ASSERT(b->out_row[i] >= 0 && b->out_row[i] < b->n_row);
        HD_ASSERT(i == 0 || b->out_row[i] > b->out_row[i - 1]);
    }
}
