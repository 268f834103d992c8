/* Timing made-up steps. */
#include "engine/measure.h"

#include "base/mem.h"

/* A step: sequences that decode behind pos tokens each, and a prompt. */
struct point {
    int n_decode, n_prompt, pos;
};

/* From cheap to dear, so that a slow machine learns the first ones; -1: as many as there may be. */
static const struct point points[] = {
    {1, 0, 16},  {0, 32, 0},   {4, 0, 64},  {8, 32, 64},  {0, 128, 0},
    {16, 0, 64}, {1, 0, 1000}, {-1, 0, 64}, {4, 128, 64}, {0, -1, 0},
};

static int smaller(int a, int b) { return a < b ? a : b; }

/* n_row rows at positions from pos on of one more sequence, in pages of its own from *page on;
 * false when the pool has not so many. */
static bool add_seq(hd_batch *b, const hd_sched_config *c, int n_row, int pos, int *page,
                    int n_vocab) {
    int n_page = (pos + n_row + c->page_tok - 1) / c->page_tok, ix = b->n_seq;
    if (*page + n_page > c->n_page || pos + n_row > c->n_pos_max) return false;
    for (int i = 0; i < n_row; i++) {
        int r = b->n_row++, at = pos + i;
        b->token[r] = (int32_t)((r * 7919LL + at * 104729LL) % n_vocab);
        b->pos[r] = at;
        b->row_seq[r] = ix;
        b->kv_row[r] = (*page + at / c->page_tok) * c->page_tok + at % c->page_tok;
        bool expands = n_row > 1 && !c->exact && n_row >= c->expand_min;
        b->form[r] = expands ? HD_MLA_EXPANDED : HD_MLA_ABSORBED;
    }
    for (int i = 0; i < n_page; i++) b->page[b->n_page++] = (*page)++;
    b->seq_slot[ix] = ix;
    b->seq_row0[ix + 1] = b->n_row;
    b->seq_page0[ix + 1] = b->n_page;
    b->out_row[b->n_out++] = b->n_row - 1;
    b->n_seq++;
    return true;
}

static bool fill(hd_batch *b, const hd_sched_config *c, struct point p, int n_vocab) {
    int page = 0, n_prompt = p.n_prompt;
    int n_decode = p.n_decode < 0 ? smaller(c->n_seq_max, c->n_row_max) : p.n_decode;
    if (n_prompt < 0) n_prompt = smaller(c->n_row_max, c->n_pos_max);
    hd_batch_clear(b);
    if (n_decode + (n_prompt > 0) > smaller(c->n_seq_max, b->n_seq_max) ||
        n_decode + n_prompt > c->n_row_max)
        return false;
    for (int i = 0; i < n_decode; i++)
        if (!add_seq(b, c, 1, p.pos, &page, n_vocab)) return false;
    return n_prompt == 0 || add_seq(b, c, n_prompt, 0, &page, n_vocab);
}

static int64_t now(const hd_loop_config *c) { return c->clock.now_ns(c->clock.ctx); }

void hd_measure_steps(const hd_loop_config *c, int64_t budget_ns, hd_profile *p) {
    enum { N_ROUND = 3 }; /* the first one touches memory that was never used: not counted */
    hd_batch b;
    hd_sched_batch_init(&c->sched, &b);
    int64_t from_ns = now(c);
    for (size_t i = 0; i < HD_COUNT_OF(points); i++) {
        if (!fill(&b, &c->sched, points[i], c->n_vocab)) continue;
        hd_step_load load = hd_step_load_of(&b);
        for (int round = 0; round < N_ROUND; round++) {
            int64_t before_ns = now(c);
            int64_t next_ns = hd_profile_mean_ns(p, &load);
            if (i + (size_t)round > 0 && before_ns - from_ns + next_ns > budget_ns) break;
            hd_step_out out = {0};
            if (c->stepper.enqueue(c->stepper.ctx, &b) != HD_OK ||
                c->stepper.fetch(c->stepper.ctx, &out) != HD_OK)
                goto done;
            int64_t step_ns = now(c) - before_ns;
            bool is_last = before_ns - from_ns + 2 * step_ns > budget_ns;
            if (round > 0 || is_last) hd_profile_learn(p, &load, step_ns);
            if (is_last) break;
        }
    }
done:
    hd_batch_fini(&b);
}
