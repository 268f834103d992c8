/* The fake device: see fake_dev.h. */
#include "support/fake_dev.h"

#include "support/check.h"

#include "base/mem.h"

#include <string.h>

struct row {
    uint64_t tokens, forms;
};

struct fake_dev {
    int n_page, page_tok, n_slot;
    struct row *kv;   /* [n_page * page_tok] */
    uint64_t *salt;   /* [n_slot] */
    int32_t *last;    /* [n_slot] token sampled last */
    uint64_t *writer; /* [n_page * page_tok] the run that wrote it last */
    uint64_t n_run, garbage;
};

uint64_t fake_hash_begin(uint64_t salt) { return rng_mix(salt + 0x9E3779B97F4A7C15U); }
uint64_t fake_hash_add(uint64_t hash, uint64_t value) {
    return rng_mix(hash * 3 + value + 0x9E3779B97F4A7C15U);
}

int32_t fake_next(uint64_t hash) {
    uint64_t x = rng_mix(hash ^ 0x5851F42D4C957F2DU);
    if (x % FAKE_STOP_EVERY == 0) return FAKE_STOP;
    return (int32_t)(1 + (x >> 32) % (FAKE_N_VOCAB - 1));
}

fake_dev *fake_dev_new(int n_page, int page_tok, int n_slot) {
    fake_dev *d = hd_alloc_zero(1, sizeof *d);
    d->n_page = n_page;
    d->page_tok = page_tok;
    d->n_slot = n_slot;
    size_t n_row = (size_t)n_page * (size_t)page_tok;
    d->kv = hd_alloc_zero(n_row, sizeof *d->kv);
    d->writer = hd_alloc_zero(n_row, sizeof *d->writer);
    d->salt = hd_alloc_zero((size_t)n_slot, sizeof *d->salt);
    d->last = hd_alloc_zero((size_t)n_slot, sizeof *d->last);
    for (size_t i = 0; i < n_row; i++) d->kv[i] = (struct row){++d->garbage, ++d->garbage};
    return d;
}

void fake_dev_free(fake_dev *d) {
    hd_free(d->kv);
    hd_free(d->writer);
    hd_free(d->salt);
    hd_free(d->last);
    hd_free(d);
}

void fake_dev_set_salt(fake_dev *d, int slot, uint64_t salt) {
    assert_true(slot >= 0 && slot < d->n_slot);
    d->salt[slot] = salt;
}

/* The row of a position, by the sequence's page table. */
static size_t row_at(const fake_dev *d, const hd_batch *b, int seq_ix, int pos) {
    int entry = b->seq_page0[seq_ix] + pos / d->page_tok;
    assert_true(pos >= 0 && entry < b->seq_page0[seq_ix + 1]);
    int page = b->page[entry];
    assert_true(page >= 0 && page < d->n_page);
    return (size_t)page * (size_t)d->page_tok + (size_t)(pos % d->page_tok);
}

static struct row begin(uint64_t salt) {
    return (struct row){fake_hash_begin(salt), fake_hash_begin(salt)};
}

static struct row extend(struct row r, int32_t token, uint8_t form) {
    return (struct row){fake_hash_add(r.tokens, (uint64_t)token),
                        fake_hash_add(r.forms, (uint64_t)token * 2 + form)};
}

static void copy_pages(fake_dev *d, const hd_batch *b) {
    size_t n = (size_t)d->page_tok;
    for (int i = 0; i < b->n_copy; i++) {
        assert_true(b->copy_from[i] >= 0 && b->copy_from[i] < d->n_page);
        assert_true(b->copy_to[i] >= 0 && b->copy_to[i] < d->n_page);
        memcpy(d->kv + n * (size_t)b->copy_to[i], d->kv + n * (size_t)b->copy_from[i],
               n * sizeof *d->kv);
    }
}

void fake_dev_run(fake_dev *d, const hd_batch *b, int32_t *next) {
    d->n_run++;
    copy_pages(d, b);
    for (int i = 0; i < b->n_row; i++) {
        int s = b->row_seq[i], pos = b->pos[i], slot = b->seq_slot[s];
        assert_true(slot >= 0 && slot < d->n_slot);
        struct row before = pos > 0 ? d->kv[row_at(d, b, s, pos - 1)] : begin(d->salt[slot]);
        size_t at = row_at(d, b, s, pos);
        assert_int_equal(at, b->kv_row[i]);
        if (d->writer[at] == d->n_run) fail_msg("KV row %zu is written twice in a step", at);
        d->writer[at] = d->n_run;
        int32_t token = b->token[i] < 0 ? d->last[slot] : b->token[i];
        d->kv[at] = extend(before, token, b->form[i]);
    }
    for (int i = 0; i < b->n_out; i++) {
        next[i] = fake_next(d->kv[b->kv_row[b->out_row[i]]].tokens);
        d->last[b->seq_slot[b->row_seq[b->out_row[i]]]] = next[i];
    }
}

void fake_dev_fail(fake_dev *d, const hd_batch *b) {
    copy_pages(d, b);
    for (int i = 0; i < b->n_row; i++) {
        d->kv[b->kv_row[i]] = (struct row){++d->garbage, ++d->garbage};
    }
}

void fake_dev_verify(const fake_dev *d, const hd_batch *b, int seq_ix, const int32_t *token,
                     const uint8_t *form, int n_tok) {
    struct row expected = begin(d->salt[b->seq_slot[seq_ix]]);
    for (int pos = 0; pos < n_tok; pos++) {
        expected = extend(expected, token[pos], form[pos]);
        struct row found = d->kv[row_at(d, b, seq_ix, pos)];
        if (found.tokens != expected.tokens) fail_msg("position %d: KV of other tokens", pos);
        if (found.forms != expected.forms) fail_msg("position %d: KV of other forms", pos);
    }
}
