/* The plan of a step's attention: see attn_plan.h.
 *
 * Absorbed rows are computed where they are, in runs. A sequence with rows of the expanded form
 * needs the keys and values of all positions up to the last of them: those are expanded into a room
 * of limited size, wave by wave. A sequence that fits is never cut; a longer one fills several
 * waves, and its softmax is carried from one to the next, bit for bit as if it had been one. */
#include "cuda/attn_plan.h"

#include "base/mem.h"
#include "base/status.h"

#include <stdbool.h>

enum { QUERIES = HD_CUDA_QUERY_ROWS, KEYS = HD_CUDA_KEY_ROWS, TILE = HD_CUDA_TILE_POS };

static int least(int a, int b) { return a < b ? a : b; }
static int up(int n, int unit) { return (n + unit - 1) / unit; }

/* A wave and the next have more than n_room rows together: what is there is more than half full, or
 * the sequence behind it is long. A wave begins with the sequence that the last one ended with. */
void hd_cuda_plan_init(hd_cuda_plan *p, const hd_batch *sizes, enum hd_cuda_flash_rule rule,
                       int n_room) {
    int n_row = sizes->n_row_max, n_seq = sizes->n_seq_max, n_wave = 0, n_key = 0;
    if (rule == HD_CUDA_FLASH_BY_LENGTH) n_wave = 1;
    if (rule == HD_CUDA_FLASH_BY_FORM) {
        HD_ASSERT(n_room > 0 && n_room % KEYS == 0);
        n_key = up(sizes->n_page_max * sizes->page_tok, KEYS) + n_seq;
        n_wave = 2 * up(n_key * KEYS, n_room) + 1;
    }
    *p = (hd_cuda_plan){.rule = rule,
                        .n_room = n_room,
                        .page_tok = sizes->page_tok,
                        .n_wave_max = n_wave,
                        .n_row_max = n_row,
                        .n_seq_max = n_seq,
                        .n_page_max = sizes->n_page_max,
                        .n_expand_max = n_key,
                        .n_part_max = n_seq + n_wave};
    p->wave = hd_alloc((size_t)n_wave * sizeof *p->wave);
    p->run = hd_alloc((size_t)n_row * sizeof *p->run);
    p->expand = hd_alloc((size_t)n_key * sizeof *p->expand);
    p->flash = hd_alloc((size_t)n_row * sizeof *p->flash);
    p->part = hd_alloc((size_t)p->n_part_max * sizeof *p->part);
    p->row = hd_alloc(((size_t)n_row + 1) * sizeof *p->row);
}

bool hd_cuda_plan_fits(const hd_cuda_plan *p, const hd_batch *sizes, enum hd_cuda_flash_rule rule,
                       int n_room) {
    return p->row != NULL && p->rule == rule && p->n_room == n_room &&
           p->page_tok == sizes->page_tok && p->n_row_max >= sizes->n_row_max &&
           p->n_seq_max >= sizes->n_seq_max && p->n_page_max >= sizes->n_page_max;
}

void hd_cuda_plan_fini(hd_cuda_plan *p) {
    hd_free(p->wave);
    hd_free(p->run);
    hd_free(p->expand);
    hd_free(p->flash);
    hd_free(p->part);
    hd_free(p->row);
    *p = (hd_cuda_plan){0};
}

static void begin_wave(hd_cuda_plan *p, int seq, int flash0) {
    HD_ASSERT(p->n_wave < p->n_wave_max);
    p->wave[p->n_wave++] =
        (hd_cuda_wave){.seq0 = seq, .part0 = p->n_part, .expand0 = p->n_expand, .flash0 = flash0};
}

static bool has_task(const hd_cuda_plan *p, const hd_batch *b, int row) {
    int s = b->row_seq[row];
    if (p->rule == HD_CUDA_FLASH_BY_LENGTH)
        return b->seq_row0[s + 1] - b->seq_row0[s] >= HD_CUDA_FLASH_ROWS;
    return p->rule == HD_CUDA_FLASH_BY_FORM && b->form[row] == HD_MLA_EXPANDED;
}

/* The tasks of a sequence, longest first, and its runs. How many positions the tasks' rows see. */
static int add_rows(hd_cuda_plan *p, const hd_batch *b, int s) {
    int n_pos = 0, begin = b->seq_row0[s], row = 0;
    for (int end = b->seq_row0[s + 1]; end > begin; end = row) {
        bool is_task = has_task(p, b, end - 1);
        int least_row = is_task && end - begin > QUERIES ? end - QUERIES : begin;
        for (row = end - 1; row > least_row && has_task(p, b, row - 1) == is_task;) row--;
        if (is_task) {
            n_pos = n_pos > 0 ? n_pos : b->pos[end - 1] + 1;
            p->flash[p->n_flash++] =
                (hd_cuda_flash_task){.row0 = row, .n_row = end - row, .seq = s, .pos = b->pos[row]};
        } else {
            p->run[p->n_run++] = (hd_cuda_run){.row0 = row, .n = end - row};
        }
    }
    return n_pos;
}

/* Positions pos .. pos + n of sequence s into the room's rows from `at`. */
static void add_part(hd_cuda_plan *p, int s, int pos, int n, int at) {
    if (p->rule == HD_CUDA_FLASH_BY_LENGTH) return;
    HD_ASSERT(p->n_part < p->n_part_max);
    p->part[p->n_part++] = (hd_cuda_flash_part){.pos0 = pos, .pos1 = pos + n, .at = at};
    for (int i = 0; i < n; i += KEYS) {
        HD_ASSERT(p->n_expand < p->n_expand_max);
        p->expand[p->n_expand++] =
            (hd_cuda_expand_task){.seq = s, .pos = pos + i, .n = least(KEYS, n - i), .at = at + i};
    }
}

static void add_seq(hd_cuda_plan *p, const hd_batch *b, int s, int *used) {
    int flash0 = p->n_flash, n_pos = add_rows(p, b, s), n_row = up(n_pos, KEYS) * KEYS;
    if (p->rule == HD_CUDA_FLASH_BY_LENGTH && n_pos > 0) {
        if (p->n_wave == 0) begin_wave(p, s, flash0);
        p->wave[0].n_flash = p->n_flash;
        return;
    }
    if (n_pos == 0) {
        if (p->n_wave > 0) add_part(p, s, 0, 0, 0);
        return;
    }
    if (p->n_wave == 0 || *used == p->n_room || (n_row <= p->n_room && *used + n_row > p->n_room)) {
        begin_wave(p, s, flash0);
        *used = 0;
    }
    for (int pos = 0; pos < n_pos;) {
        if (*used == p->n_room) {
            begin_wave(p, s, flash0);
            *used = 0;
        }
        int n = least(p->n_room - *used, n_pos - pos);
        add_part(p, s, pos, n, *used);
        *used += up(n, KEYS) * KEYS;
        pos += n;
        hd_cuda_wave *w = &p->wave[p->n_wave - 1];
        w->n_expand = p->n_expand - w->expand0;
        w->n_flash = p->n_flash - w->flash0;
    }
}

/* Runs of different sequences that touch become one. */
static void join_runs(hd_cuda_plan *p) {
    int n = 0;
    for (int i = 0; i < p->n_run; i++) {
        hd_cuda_run r = p->run[i];
        if (n > 0 && p->run[n - 1].row0 + p->run[n - 1].n == r.row0)
            p->run[n - 1].n += r.n;
        else
            p->run[n++] = r;
    }
    p->n_run = n;
}

void hd_cuda_plan_make(hd_cuda_plan *p, const hd_batch *b) {
    HD_ASSERT(b->n_row <= p->n_row_max);
    int used = 0;
    p->n_wave = p->n_run = p->n_expand = p->n_flash = p->n_part = 0;
    for (int s = 0; s < b->n_seq; s++) add_seq(p, b, s, &used);
    join_runs(p);
    int32_t tile0 = 0;
    for (int r = 0; r < b->n_row; r++) {
        int seq = b->row_seq[r];
        p->row[r] = (hd_cuda_split_row){.tile0 = tile0,
                                        .page0 = b->seq_page0[seq],
                                        .n_pos = b->pos[r] + 1,
                                        .n_old = b->pos[b->seq_row0[seq]]};
        tile0 += up(b->pos[r] + 1, TILE);
    }
    p->row[b->n_row] = (hd_cuda_split_row){.tile0 = tile0};
}

static void check_task(const hd_cuda_plan *p, const hd_batch *b, int ix) {
    const hd_cuda_flash_task *t = &p->flash[ix];
    int pos = 0, last = t->pos + t->n_row - 1;
    HD_ASSERT(t->n_row > 0 && t->n_row <= QUERIES && b->pos[t->row0] == t->pos);
    for (int i = 0; i < t->n_row; i++)
        HD_ASSERT(b->row_seq[t->row0 + i] == t->seq && has_task(p, b, t->row0 + i));
    if (p->rule == HD_CUDA_FLASH_BY_LENGTH) return;
    for (int w = 0; w < p->n_wave; w++) {
        const hd_cuda_wave *v = &p->wave[w];
        if (ix < v->flash0 || ix >= v->flash0 + v->n_flash) continue;
        const hd_cuda_flash_part *part = &p->part[v->part0 + t->seq - v->seq0];
        HD_ASSERT(part->pos0 == pos && part->pos1 > pos && part->pos0 % KEYS == 0);
        int at = part->at;
        for (int i = 0; i < v->n_expand; i++) {
            const hd_cuda_expand_task *e = &p->expand[v->expand0 + i];
            HD_ASSERT(e->n > 0 && e->n <= KEYS && e->at + e->n <= p->n_room);
            if (e->seq != t->seq) continue;
            HD_ASSERT(e->pos == pos && e->at == at);
            pos += e->n, at += e->n;
        }
        HD_ASSERT(part->pos1 == pos);
    }
    HD_ASSERT(pos > last);
}

/* Rows of split attention: tiles add up, and nothing below n_old is written by the step. */
static void check_rows(const hd_cuda_plan *p, const hd_batch *b) {
    for (int r = 0; r < b->n_row; r++) {
        const hd_cuda_split_row *row = &p->row[r];
        int s = b->row_seq[r];
        HD_ASSERT(row->n_pos == b->pos[r] + 1 && row->page0 == b->seq_page0[s]);
        HD_ASSERT(row[1].tile0 - row->tile0 == up(row->n_pos, TILE));
        for (int i = b->seq_row0[s]; i < b->seq_row0[s + 1]; i++)
            HD_ASSERT(b->pos[i] >= row->n_old);
    }
}

void hd_cuda_plan_check(const hd_cuda_plan *p, const hd_batch *b) {
    int n_row = 0;
    for (int i = 0; i < p->n_flash; i++) {
        check_task(p, b, i);
        n_row += p->flash[i].n_row;
    }
    for (int i = 0; i < p->n_run; i++) {
        n_row += p->run[i].n;
        for (int r = 0; r < p->run[i].n; r++) HD_ASSERT(!has_task(p, b, p->run[i].row0 + r));
    }
    HD_ASSERT(n_row == b->n_row);
    check_rows(p, b);
}
