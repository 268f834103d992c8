/* A prompt in chunks of rows, each of them in slices of layers. */
#include "support/cut_layers.h"

#include <string.h>

/* Rows pos .. pos + n - 1 of the one sequence, without outputs. */
static void fill(hd_batch *b, const hd_score_spec *what, int pos, int n) {
    hd_batch_clear(b);
    b->n_row = n, b->n_seq = 1, b->n_page = (pos + n - 1) / b->page_tok + 1;
    b->seq_slot[0] = 0;
    b->seq_row0[1] = n, b->seq_page0[1] = b->n_page;
    for (int i = 0; i < b->n_page; i++) b->page[i] = i;
    for (int r = 0; r < n; r++) {
        b->token[r] = what->token[pos + r];
        b->pos[r] = b->kv_row[r] = pos + r;
        b->row_seq[r] = 0;
        b->form[r] = (uint8_t)what->form;
    }
}

/* The chunk's layers; its outputs with the last of them. */
static hd_status run_layers(hd_model *m, hd_batch *b, int n_each, const float **logits) {
    int n_layer = hd_model_hparams(m)->n_layer;
    for (int layer = 0; layer < n_layer; layer = b->layer1) {
        b->layer0 = layer;
        b->layer1 = layer + n_each < n_layer ? layer + n_each : n_layer;
        for (int r = 0; r < b->n_row && b->layer1 == n_layer; r++) b->out_row[b->n_out++] = r;
        HD_TRY(hd_model_forward(m, b, logits));
    }
    return HD_OK;
}

hd_status test_cut_layers(hd_model *m, const hd_model_options *o, const hd_score_spec *what,
                          int n_each, float *logits) {
    size_t n_vocab = (size_t)hd_model_hparams(m)->n_vocab;
    hd_batch b;
    hd_status s = HD_OK;
    hd_batch_init(&b, o->n_row_max, o->n_seq_max, o->n_page, o->page_tok);
    for (int pos = 0, n; pos < what->n_tok && s == HD_OK; pos += n) {
        const float *p;
        n = what->n_tok - pos < o->n_out_max ? what->n_tok - pos : o->n_out_max;
        fill(&b, what, pos, n);
        s = run_layers(m, &b, n_each, &p);
        if (s != HD_OK) break;
        memcpy(logits + (size_t)pos * n_vocab, p, (size_t)n * n_vocab * sizeof *p);
    }
    hd_batch_fini(&b);
    return s;
}
