/* Attention over pages (attend.h): groups of rows, who takes which chunk, and the blocks. */
#include "cpu/attend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Sums of queries over the positions from t0 on, so far. */
typedef struct sums {
    int t0;
    float *m, *l; /* [query] largest score, sum of weights */
    float *acc;   /* [query, ld] sum of weighted values */
} sums;

/* Every query of a group of rows in one unit. */
typedef struct part {
    const hd_cpu_attention *a;
    hd_cpu_scratch *t;
    const hd_cpu_group *g;
    int unit;
    size_t ld; /* of sums: pad(n_v) */
} part;

/* ---- Rows ---- */

static int compare_seqs(const void *x, const void *y) {
    const hd_cpu_seq *a = x, *b = y;
    int n = hd_cpu_least(a->n_page, b->n_page);
    int order = memcmp(a->page, b->page, sizeof *a->page * (size_t)n);
    if (order != 0) return order;
    if (a->n_page != b->n_page) return a->n_page < b->n_page ? -1 : 1;
    return a->seq < b->seq ? -1 : 1;
}

int hd_cpu_list_rows(hd_cpu *c, const hd_batch *b, int form, int which) {
    int n = 0;
    for (int s = 0; s < b->n_seq; s++)
        c->seq[s] = (hd_cpu_seq){.page = b->page + b->seq_page0[s],
                                 .n_page = b->seq_page0[s + 1] - b->seq_page0[s],
                                 .seq = s};
    if (b->n_seq > 1) qsort(c->seq, (size_t)b->n_seq, sizeof *c->seq, compare_seqs);
    for (int s = 0; s < b->n_seq; s++)
        for (int r = b->seq_row0[c->seq[s].seq]; r < b->seq_row0[c->seq[s].seq + 1]; r++)
            if (form < 0 || b->form[r] == form) c->list[which][n++] = r;
    return n;
}

/* Whether two sequences have the block of positions from t0 on in the same pages. */
static bool is_same_block(const hd_batch *b, int s, int r, int t0) {
    if (s == r) return true;
    const int32_t *x = b->page + b->seq_page0[s], *y = b->page + b->seq_page0[r];
    int first = t0 / b->page_tok, end = (t0 + HD_CPU_KV_BLOCK - 1) / b->page_tok + 1;
    int n_x = hd_cpu_least(end, b->seq_page0[s + 1] - b->seq_page0[s]) - first;
    int n_y = hd_cpu_least(end, b->seq_page0[r + 1] - b->seq_page0[r]) - first;
    return n_x == n_y && n_x > 0 && memcmp(x + first, y + first, sizeof *x * (size_t)n_x) == 0;
}

/* Runs of at most n_most rows of one sequence, or of several that begin with the same block. */
static int make_groups(const hd_cpu_attention *a, int n_most) {
    const hd_batch *b = a->batch;
    int n = 0;
    for (int i = 0; i < a->n_row; i++) {
        int row = a->list[i];
        hd_cpu_group *g = n > 0 ? &a->c->group[n - 1] : NULL;
        if (g == NULL || g->n == n_most ||
            !is_same_block(b, b->row_seq[a->list[i - 1]], b->row_seq[row], 0)) {
            g = &a->c->group[n++];
            *g = (hd_cpu_group){.first = i};
        }
        g->n++;
        if (b->pos[row] >= g->n_pos) g->n_pos = b->pos[row] + 1;
    }
    return n;
}

void hd_cpu_block_rows(const hd_batch *b, int seq, const hd_cpu_block *block, const void *cache,
                       size_t row_bytes, const void **row) {
    const int32_t *page = b->page + b->seq_page0[seq] + block->t0 / b->page_tok;
    int in_page = block->t0 % b->page_tok;
    for (int i = 0; i < block->n_t; page++, in_page = 0) {
        const char *from = (const char *)cache + (size_t)*page * (size_t)b->page_tok * row_bytes;
        for (; i < block->n_t && in_page < b->page_tok; i++, in_page++)
            row[i] = from + (size_t)in_page * row_bytes;
    }
}

hd_cpu_values hd_cpu_block_values(const hd_cpu *c, const hd_cpu_cached *s, float *room) {
    size_t row_bytes = hd_kv_bytes(s->kv, 1), first = (size_t)s->first;
    bool is_half = c->reads_halves && s->kv->type == HD_KV_F16;
    /* Readers read whole lanes, which must not leave the row: the last one may end the cache. */
    bool is_there =
        (is_half || s->kv->type == HD_KV_F32) && first + hd_cpu_pad(s->n) <= (size_t)s->kv->n;
    for (int i = 1; is_there && i < s->n_row; i++)
        is_there = (const char *)s->row[i] == (const char *)s->row[i - 1] + row_bytes;
    if (is_there)
        return (hd_cpu_values){(const char *)s->row[0] + hd_format_bytes(s->kv->plain, first),
                               (size_t)s->kv->n, is_half};
    hd_cpu_values v = {.at = room, .ld = hd_cpu_pad(s->n)};
    hd_cpu_cache_rows(c->k, s, room, v.ld);
    return v;
}

/* ---- One block ---- */

enum { FOUR = 4 }; /* queries, and values of theirs, that kernels take together */

static size_t padded_key(const hd_cpu_attention *a) {
    return (size_t)(a->n_key + FOUR - 1) / FOUR * FOUR;
}

/* Queries of a task that meet a block together. They are columns of t->s; column 0 is the first of
 * the panel that query q0 is in. */
typedef struct few {
    int q0, n, column; /* column of q0 */
    int n_lane;
    int n_see[HD_CPU_QCHUNK];                       /* [n] positions of the block */
    float m[HD_CPU_QCHUNK], l[HD_CPU_QCHUNK];       /* [n_lane] by column, as all below */
    float keep[HD_CPU_QCHUNK], gain[HD_CPU_QCHUNK]; /* as in hd_cpu_merging */
} few;

static size_t bytes_of(const hd_cpu_values *v, size_t n) {
    return hd_format_bytes(v->is_half ? HD_F16 : HD_F32, n);
}

/* Weighted values of queries that do not see the same positions: the common ones of eight queries
 * go together, the rest one query at a time; the same order for each. */
static void add_ragged(const part *p, const hd_cpu_block *b, const few *f, float *sum) {
    const float *s = p->t->s + f->column;
    hd_cpu_strided c = {.n_lane = (int)p->ld,
                        .a_row = 1,
                        .a_step = HD_CPU_QCHUNK,
                        .b = b->v,
                        .b_panel = HD_CPU_LANES,
                        .ldc = p->ld};
    for (int i = 0, end; i < f->n; i = end) {
        int common = f->n_see[i];
        for (end = i + 1; end < f->n && end < i + 8; end++)
            common = hd_cpu_least(common, f->n_see[end]);
        c.n_row = end - i, c.n_k = common, c.is_sum = false;
        c.a = s + i, c.b.at = b->v.at, c.c = sum + (size_t)i * p->ld;
        p->a->c->k->strided(&c);
        for (int j = i; j < end; j++) {
            if (f->n_see[j] == common) continue;
            c.n_row = 1, c.n_k = f->n_see[j] - common, c.is_sum = true;
            c.a = s + common * HD_CPU_QCHUNK + j;
            c.b.at = (const char *)b->v.at + bytes_of(&b->v, (size_t)common * b->v.ld);
            c.c = sum + (size_t)j * p->ld;
            p->a->c->k->strided(&c);
        }
    }
}

_Static_assert(HD_CPU_KV_BLOCK <= HD_CPU_SCORE_KEYS, "scores take a block's keys");
_Static_assert(HD_CPU_QCHUNK % FOUR == 0, "whole fours of scores are written");

/* Of the rows behind the block those that the values' sums ask for: their part of the time, as far
 * as they can; scores ask for the others, the first ones. Memory then works all the time. */
static hd_cpu_ahead asked_by_values(const part *p, const hd_cpu_block *b) {
    if (b->ahead.n == 0) return (hd_cpu_ahead){0};
    size_t n_line = (size_t)b->n_t * p->ld / (2 * HD_CPU_LANES);
    int n = b->ahead.n * p->a->n_v / (p->a->n_v + p->a->n_key);
    n = hd_cpu_least(n, (int)(n_line * 64 / b->ahead.n_byte));
    return (hd_cpu_ahead){b->ahead.piece + b->ahead.n - n, n, b->ahead.n_byte};
}

/* Weights of the block's positions in t->s; asks for n_ahead rows behind it. */
static void weigh(const part *p, const hd_cpu_block *b, few *f, int n_ahead) {
    const hd_cpu_attention *a = p->a;
    hd_cpu_scratch *t = p->t;
    int before = f->q0 % FOUR; /* queries of others, in the same four */
    a->c->k->score(&(hd_cpu_scoring){.n_t = b->n_t,
                                     .n_four = (before + f->n + FOUR - 1) / FOUR,
                                     .n_key = a->n_key,
                                     .q = t->qt + (size_t)(f->q0 - before) * padded_key(a),
                                     .k = b->k,
                                     .s = t->s + f->column - before,
                                     .lds = HD_CPU_QCHUNK,
                                     .ahead = {b->ahead.piece, n_ahead, b->ahead.n_byte}});
    for (int i = 0; i < f->n; i++)
        for (int s = f->n_see[i]; s < b->n_t; s++)
            t->s[s * HD_CPU_QCHUNK + f->column + i] = -INFINITY;
    a->c->k->weigh(&(hd_cpu_weighing){.s = t->s,
                                      .lds = HD_CPU_QCHUNK,
                                      .n_t = b->n_t,
                                      .n_lane = f->n_lane,
                                      .scale = a->scale,
                                      .m = f->m,
                                      .l = f->l});
}

/* Brings m and l of the block, in f, into u's. */
static void merge(const part *p, few *f, const sums *u) {
    float m[HD_CPU_QCHUNK], l[HD_CPU_QCHUNK];
    size_t n_byte = sizeof(float) * (size_t)f->n, n_all = sizeof(float) * (size_t)f->n_lane;
    memset(m, 0, n_all);
    memset(l, 0, n_all);
    memcpy(m + f->column, u->m + f->q0, n_byte);
    memcpy(l + f->column, u->l + f->q0, n_byte);
    p->a->c->k->merge(&(hd_cpu_merging){.n_lane = f->n_lane,
                                        .m = m,
                                        .l = l,
                                        .block_m = f->m,
                                        .block_l = f->l,
                                        .keep = f->keep,
                                        .gain = f->gain});
    memcpy(f->m, m, n_all);
    memcpy(f->l, l, n_all);
}

/* Queries q0 .. q0 + n of the task over a block, which u begins with or is added to u. */
static void attend_few(const part *p, const hd_cpu_block *b, int q0, int n, const sums *u) {
    hd_cpu_scratch *t = p->t;
    bool is_first = b->t0 == u->t0, is_ragged = false;
    few f; /* not all of it is used, nor written */
    f.q0 = q0, f.n = n, f.column = q0 % HD_CPU_LANES;
    f.n_lane = (int)hd_cpu_pad(f.column + n);
    for (int i = 0; i < n; i++) {
        f.n_see[i] = hd_cpu_least(t->pos[q0 + i] - b->t0 + 1, b->n_t);
        is_ragged |= f.n_see[i] < b->n_t;
    }
    hd_cpu_ahead ahead = is_ragged ? (hd_cpu_ahead){0} : asked_by_values(p, b);
    weigh(p, b, &f, b->ahead.n - ahead.n);
    if (!is_first) merge(p, &f, u);
    memcpy(u->m + q0, f.m + f.column, sizeof(float) * (size_t)n);
    memcpy(u->l + q0, f.l + f.column, sizeof(float) * (size_t)n);
    float *acc = u->acc + (size_t)q0 * p->ld, *keep = f.keep + f.column, *gain = f.gain + f.column;
    if (!is_ragged) {
        p->a->c->k->strided(&(hd_cpu_strided){.n_row = n,
                                              .n_k = b->n_t,
                                              .n_lane = (int)p->ld,
                                              .a = t->s + f.column,
                                              .a_row = 1,
                                              .a_step = HD_CPU_QCHUNK,
                                              .b = b->v,
                                              .b_panel = HD_CPU_LANES,
                                              .c = acc,
                                              .ldc = p->ld,
                                              .keep = is_first ? NULL : keep,
                                              .gain = gain,
                                              .ahead = ahead});
        return;
    }
    add_ragged(p, b, &f, is_first ? acc : t->ragged);
    for (int i = 0; !is_first && i < n; i++)
        p->a->c->k->fold(acc + (size_t)i * p->ld, t->ragged + (size_t)i * p->ld, (int)p->ld,
                         keep[i], gain[i]);
}

/* Every query that sees the block from t0 on: those whose sequences have it in the same pages
 * together. */
static void attend_block(const part *p, int t0, const sums *u) {
    const hd_cpu_attention *a = p->a;
    const hd_batch *batch = a->batch;
    const int32_t *row = a->list + p->g->first;
    for (int i = 0, end; i < p->g->n; i = end) {
        int seq = batch->row_seq[row[i]], last = batch->pos[row[i]];
        end = i + 1;
        if (last < t0) continue;
        for (; end < p->g->n && batch->pos[row[end]] >= t0; end++) {
            if (!is_same_block(batch, seq, batch->row_seq[row[end]], t0)) break;
            if (batch->pos[row[end]] > last) last = batch->pos[row[end]];
        }
        hd_cpu_block b = {.t0 = t0, .n_pos = last + 1};
        b.n_t = hd_cpu_least(HD_CPU_KV_BLOCK, b.n_pos - t0);
        a->load(a, p->t, seq, p->unit, &b);
        p->t->n_block++;
        for (int q = i * a->n_each, n; q < end * a->n_each; q += n) {
            n = hd_cpu_least(end * a->n_each - q, HD_CPU_QCHUNK - q % HD_CPU_LANES);
            attend_few(p, &b, q, n, u);
            b.ahead.n = 0;
        }
    }
}

static void attend_blocks(const part *p, int first, int end, const sums *u) {
    for (int b = first; b < end; b++) attend_block(p, b * HD_CPU_KV_BLOCK, u);
}

/* ---- Chunks and stretches added up ---- */

/* Some queries, HD_CPU_LANES at most, and some lanes of their values. */
typedef struct span {
    int q0, n, lane0, n_lane;
} span;

static int row_of(const part *p, int query) {
    return p->a->list[p->g->first + query / p->a->n_each];
}

/* Adds the sums of a chunk, or of a stretch, to those before it. */
static void add_span(const part *p, const sums *u, const sums *next, const span *s) {
    const hd_cpu_kernels *k = p->a->c->k;
    float m[2][HD_CPU_LANES] = {{0}}, l[2][HD_CPU_LANES] = {{0}};
    float keep[HD_CPU_LANES], gain[HD_CPU_LANES];
    size_t n_byte = sizeof(float) * (size_t)s->n;
    memcpy(m[0], u->m + s->q0, n_byte);
    memcpy(l[0], u->l + s->q0, n_byte);
    memcpy(m[1], next->m + s->q0, n_byte);
    memcpy(l[1], next->l + s->q0, n_byte);
    k->merge(&(hd_cpu_merging){.n_lane = HD_CPU_LANES,
                               .m = m[0],
                               .l = l[0],
                               .block_m = m[1],
                               .block_l = l[1],
                               .keep = keep,
                               .gain = gain});
    for (int i = 0; i < s->n; i++) {
        int q = s->q0 + i;
        size_t at = (size_t)q * p->ld + (size_t)s->lane0;
        if (p->a->batch->pos[row_of(p, q)] < next->t0) continue;
        u->m[q] = m[0][i], u->l[q] = l[0][i];
        k->fold(u->acc + at, next->acc + at, s->n_lane, keep[i], gain[i]);
    }
}

static void finish(const part *p, const sums *u, const span *s) {
    const hd_cpu_attention *a = p->a;
    size_t n = (size_t)hd_cpu_least(s->n_lane, a->n_v - s->lane0);
    for (int q = s->q0; q < s->q0 + s->n; q++) {
        float *out = a->out(a, row_of(p, q), p->unit, q % a->n_each) + s->lane0;
        memcpy(out, u->acc + (size_t)q * p->ld + s->lane0, sizeof *out * n);
        a->c->k->scale(out, (int)n, 1.0f / u->l[q]);
    }
}

static int n_query(const hd_cpu_attention *a, const hd_cpu_group *g) { return g->n * a->n_each; }

static int n_block(const hd_cpu_group *g) {
    return (g->n_pos + HD_CPU_KV_BLOCK - 1) / HD_CPU_KV_BLOCK;
}

/* Blocks of a chunk. */
static int chunk_of(const hd_cpu_attention *a, const hd_cpu_group *g) {
    return hd_cpu_least(a->n_chunk, n_block(g));
}

/* Blocks of a stretch. */
static int stretch_of(const hd_cpu_attention *a, const hd_cpu_group *g) {
    int each = chunk_of(a, g);
    return each == n_block(g) ? each : each * HD_CPU_STRETCH;
}

static int n_chunk(const hd_cpu_attention *a, const hd_cpu_group *g) {
    return (n_block(g) - 1) / a->n_chunk + 1;
}

static void add(const part *p, const sums *u, const sums *next) {
    int n = n_query(p->a, p->g);
    for (span s = {.n_lane = (int)p->ld}; s.q0 < n; s.q0 += HD_CPU_LANES) {
        s.n = hd_cpu_least(HD_CPU_LANES, n - s.q0);
        add_span(p, u, next, &s);
    }
}

static sums sums_of(const hd_cpu_scratch *t, int i, int block) {
    return (sums){.t0 = block * HD_CPU_KV_BLOCK, .m = t->m[i], .l = t->l[i], .acc = t->acc[i]};
}

/* Blocks first .. end, of one stretch that begins with the first, into u. */
static void attend_stretch(const part *p, int first, int end, const sums *u) {
    int each = chunk_of(p->a, p->g);
    attend_blocks(p, first, hd_cpu_least(first + each, end), u);
    for (int b = first + each; b < end; b += each) {
        sums chunk = sums_of(p->t, 0, b);
        attend_blocks(p, b, hd_cpu_least(b + each, end), &chunk);
        add(p, u, &chunk);
    }
}

/* Four queries, or fewer and zeros, as hd_cpu_scoring has them. */
static void put_four(const float *const *query, int n, int n_key, float *to) {
    for (int k = 0; k < n_key; k += FOUR)
        for (int i = 0; i < FOUR; i++, to += FOUR) {
            int n_there = i < n ? hd_cpu_least(n_key - k, FOUR) : 0;
            if (n_there == FOUR) {
                memcpy(to, query[i] + k, sizeof *to * FOUR);
                continue;
            }
            for (int j = 0; j < FOUR; j++) to[j] = j < n_there ? query[i][k + j] : 0;
        }
}

/* The queries by fours, and their positions. */
static part begin_part(const hd_cpu_attention *a, const hd_cpu_group *g, int unit, int thread) {
    hd_cpu_scratch *t = &a->c->thread[thread];
    part p = {.a = a, .t = t, .g = g, .unit = unit, .ld = hd_cpu_pad(a->n_v)};
    int n = n_query(a, g);
    for (int q = 0; q < n; q++) {
        int row = row_of(&p, q);
        t->a[q] = a->query(a, row, unit, q % a->n_each);
        t->pos[q] = a->batch->pos[row];
    }
    for (int q = 0; q < n; q += FOUR)
        put_four(t->a + q, hd_cpu_least(n - q, FOUR), a->n_key, t->qt + (size_t)q * padded_key(a));
    if (a->begin != NULL) a->begin(a, t, unit);
    return p;
}

/* ---- Groups of which one thread takes a unit whole ---- */

typedef struct whole_job {
    const hd_cpu_attention *a;
    int n_group;
} whole_job;

static void whole_task(void *ctx, int task, int thread) {
    const whole_job *j = ctx;
    const hd_cpu_attention *a = j->a;
    hd_cpu_scratch *t = &a->c->thread[thread];
    /* Later rows of a prompt see more positions: the largest tasks first. */
    const hd_cpu_group *g = &a->c->group[j->n_group - 1 - task / a->n_unit];
    if (g->is_split) return;
    part p = begin_part(a, g, task % a->n_unit, thread);
    sums u = sums_of(t, 2, 0);
    int n = n_query(a, g), n_b = n_block(g), each = stretch_of(a, g);
    attend_stretch(&p, 0, hd_cpu_least(each, n_b), &u);
    for (int b = each; b < n_b; b += each) {
        sums next = sums_of(t, 1, b);
        attend_stretch(&p, b, hd_cpu_least(b + each, n_b), &next);
        add(&p, &u, &next);
    }
    finish(&p, &u, &(span){.n = n, .n_lane = (int)p.ld});
}

/* ---- Groups whose positions all threads share ---- */

/* Segments first .. first + n of a group: its chunks; or, is_fine, the blocks of its first chunk,
 * which are added up in the same order, and the chunks behind it. Their sums wait in slots. */
typedef struct window {
    const hd_cpu_attention *a;
    const hd_cpu_group *g;
    bool is_fine;
    int first, n, n_piece;
} window;

static int n_segment(const window *w) {
    int n = n_chunk(w->a, w->g);
    return w->is_fine ? hd_cpu_least(w->a->n_chunk, n_block(w->g)) + n - 1 : n;
}

/* The first block of a segment; of one more than there are, the block behind the last. */
static int block_of(const window *w, int segment) {
    int n_b = n_block(w->g), each = hd_cpu_least(w->a->n_chunk, n_b);
    if (w->is_fine)
        return segment < each ? segment : hd_cpu_least((segment - each + 1) * each, n_b);
    return hd_cpu_least(segment * each, n_b);
}

/* Segment i of the window is in this piece: pieces are of about as many blocks. */
static int piece_of(const window *w, int i) {
    int first = block_of(w, w->first), n = block_of(w, w->first + w->n) - first;
    return ((block_of(w, w->first + i) - first + 1) * w->n_piece - 1) / n;
}

/* The segment of the window whose slot takes the sums of segment i: the first of its stretch, where
 * that is in the same piece. */
static int leader_of(const window *w, int i) {
    int leader = i - (w->first + i) % HD_CPU_STRETCH;
    return !w->is_fine && leader >= 0 && piece_of(w, leader) == piece_of(w, i) ? leader : i;
}

enum { SLOT_ALL = -2, SLOT_STRETCH = -1 };

/* Sums of a unit over the window's segment i; over all stretches so far, and over the one in
 * work. */
static sums slot(const window *w, int unit, int i) {
    const hd_cpu *c = w->a->c;
    size_t n = (size_t)n_query(w->a, w->g);
    size_t at = ((size_t)(i - SLOT_ALL) * (size_t)w->a->n_unit + (size_t)unit) * n;
    return (sums){.t0 = i >= 0 ? block_of(w, w->first + i) * HD_CPU_KV_BLOCK : 0,
                  .m = c->slot_m + at,
                  .l = c->slot_l + at,
                  .acc = c->slot + at * hd_cpu_pad(w->a->n_v)};
}

/* The segments that begin in the piece's share of the window's blocks. */
static void piece_task(void *ctx, int task, int thread) {
    const window *w = ctx;
    /* Blocks before whole chunks: the largest tasks first. */
    int unit = task / w->n_piece, piece = w->n_piece - 1 - task % w->n_piece;
    part p = {0};
    for (int i = 0; i < w->n; i++) {
        if (piece_of(w, i) != piece) continue;
        if (p.a == NULL) p = begin_part(w->a, w->g, unit, thread);
        int b = block_of(w, w->first + i), leader = leader_of(w, i);
        sums own = leader == i ? slot(w, unit, i) : sums_of(p.t, 0, b);
        attend_blocks(&p, b, block_of(w, w->first + i + 1), &own);
        if (leader == i) continue;
        sums u = slot(w, unit, leader);
        add(&p, &u, &own);
    }
}

/* Other threads have written most of them: from another cluster of cores a line takes long. */
static void ask_for(const float *acc, const span *s, size_t ld) {
    for (int q = s->q0; q < s->q0 + s->n; q++)
        for (int i = 0; i < s->n_lane; i += 16)
            __builtin_prefetch(acc + (size_t)q * ld + (size_t)(s->lane0 + i), 0, 3);
}

static void copy_span(const part *p, const sums *to, const sums *from, const span *s) {
    for (int q = s->q0; q < s->q0 + s->n; q++) {
        size_t at = (size_t)q * p->ld + (size_t)s->lane0;
        to->m[q] = from->m[q], to->l[q] = from->l[q];
        memcpy(to->acc + at, from->acc + at, sizeof *to->acc * (size_t)s->n_lane);
    }
}

/* A strip of the values of some queries. Each strip has m and l of its own, so that none reads what
 * another writes. */
static void add_task(void *ctx, int task, int thread) {
    const window *w = ctx;
    const hd_cpu_attention *a = w->a;
    (void)thread;
    int n = n_query(a, w->g), n_span = (n + HD_CPU_LANES - 1) / HD_CPU_LANES;
    int strip = task % HD_CPU_STRIPS, unit = task / HD_CPU_STRIPS / n_span;
    part p = {.a = a, .g = w->g, .unit = unit, .ld = hd_cpu_pad(a->n_v)};
    int width = (int)hd_cpu_pad(((int)p.ld + HD_CPU_STRIPS - 1) / HD_CPU_STRIPS);
    span s = {.q0 = task / HD_CPU_STRIPS % n_span * HD_CPU_LANES, .lane0 = strip * width};
    s.n = hd_cpu_least(HD_CPU_LANES, n - s.q0);
    s.n_lane = hd_cpu_least(width, (int)p.ld - s.lane0);
    if (s.n_lane <= 0) return;
    size_t apart = (size_t)a->c->n_slot * (size_t)(1 + strip);
    sums all = slot(w, unit, SLOT_ALL), stretch = slot(w, unit, SLOT_STRETCH);
    all.m += apart, all.l += apart, stretch.m += apart, stretch.l += apart;
    int n_b = n_block(w->g), each = stretch_of(a, w->g);
    for (int i = 0; i < w->n; i++) {
        int b = block_of(w, w->first + i);
        if (leader_of(w, i) != i) continue;
        int later = i + HD_CPU_STRETCH;
        if (later < w->n && leader_of(w, later) == later)
            ask_for(slot(w, unit, later).acc, &s, p.ld);
        sums next = slot(w, unit, i);
        stretch.t0 = (b - 1) / each * each * HD_CPU_KV_BLOCK;
        if (b % each == 0 && b > each) add_span(&p, &all, &stretch, &s);
        if (b % each == 0)
            copy_span(&p, b == 0 ? &all : &stretch, &next, &s);
        else
            add_span(&p, b < each ? &all : &stretch, &next, &s);
    }
    if (w->first + w->n < n_segment(w)) return;
    stretch.t0 = (n_b - 1) / each * each * HD_CPU_KV_BLOCK;
    if (n_b > each) add_span(&p, &all, &stretch, &s);
    finish(&p, &all, &s);
}

static int window_room(const hd_cpu_attention *a, const hd_cpu_group *g) {
    return a->c->n_slot / (n_query(a, g) * a->n_unit) + SLOT_ALL;
}

static void run_split(const hd_cpu_attention *a, const hd_cpu_group *g) {
    hd_cpu *c = a->c;
    int n_span = (n_query(a, g) + HD_CPU_LANES - 1) / HD_CPU_LANES;
    int n_piece = (4 * c->n_thread + a->n_unit - 1) / a->n_unit;
    window w = {.a = a, .g = g, .is_fine = n_chunk(a, g) < n_piece};
    for (int n = n_segment(&w); w.first < n; w.first += w.n) {
        w.n = hd_cpu_least(n - w.first, window_room(a, g));
        w.n_piece = hd_cpu_least(w.n, n_piece);
        hd_pool_run(c->pool, a->n_unit * w.n_piece, piece_task, &w);
        hd_pool_run(c->pool, a->n_unit * n_span * HD_CPU_STRIPS, add_task, &w);
    }
}

/* ---- The whole of it ---- */

static double work_of(const hd_cpu_group *g) { return (double)g->n * g->n_pos; }

void hd_cpu_attend(const hd_cpu_attention *a) {
    hd_cpu *c = a->c;
    whole_job j = {.a = a};
    HD_ASSERT(a->n_row_most > 0 && a->n_row_most * a->n_each <= c->n_query);
    double work = 0;
    for (int n_most = a->n_row_most;; n_most = (n_most + 1) / 2) {
        j.n_group = make_groups(a, n_most);
        if (a->n_chunk < HD_CPU_ONE_CHUNK || n_most * a->n_each <= HD_CPU_KV_BLOCK) break;
        if (n_most == 1 || j.n_group * a->n_unit >= 2 * c->n_thread) break;
    }
    for (int i = 0; i < j.n_group; i++) work += work_of(&c->group[i]) * a->n_unit;
    for (int i = 0; i < j.n_group; i++) {
        hd_cpu_group *g = &c->group[i];
        g->is_split = c->n_thread > 1 && a->n_chunk < HD_CPU_ONE_CHUNK && n_block(g) > 1 &&
                      window_room(a, g) > 1 && work_of(g) * 2 * c->n_thread > work;
        if (g->is_split) run_split(a, g);
    }
    hd_pool_run(c->pool, j.n_group * a->n_unit, whole_task, &j);
}
