/* A step on its way to the device and its tokens on their way back, through pinned memory.
 *
 * A decoding step is filled up to a row count of which there are few (graph.c): its further rows
 * are token 0 at position 0 of sequences of their own, with the spare slot and the spare page. They
 * choose the same experts as one another, and no number of another row depends on them. */
#include "cuda/cuda.h"

#include "base/mem.h"

#include <string.h>

/* ---- the batch ---- */

void hd_cuda_free_step(hd_cuda *c) {
    for (int i = 0; i < HD_DEV_STEPS; i++) {
        (void)cudaFreeHost(c->stage[i].host);
        (void)cudaFreeHost(c->result[i].host);
        c->stage[i].host = c->result[i].host = NULL;
    }
    (void)cudaFree(c->batch_memory);
    c->batch_memory = NULL;
    c->batch_room = 0;
}

static void *take_array(char **at, size_t n, size_t n_byte) {
    void *p = *at;
    *at += (n * n_byte + 63) / 64 * 64;
    return p;
}

/* Where the arrays of a batch of these counts lie in a block; returns its size. The pages come
 * last: where the other arrays are is a matter of the step's shape. */
static char *place_arrays(hd_batch *b, hd_cuda_split_row **split, char *at) {
    size_t n_row = (size_t)b->n_row, n_seq = (size_t)b->n_seq, n_out = (size_t)b->n_out;
    *split = take_array(&at, n_row + 1, sizeof **split);
    b->token = take_array(&at, n_row, sizeof *b->token);
    b->pos = take_array(&at, n_row, sizeof *b->pos);
    b->row_seq = take_array(&at, n_row, sizeof *b->row_seq);
    b->kv_row = take_array(&at, n_row, sizeof *b->kv_row);
    b->form = take_array(&at, n_row, sizeof *b->form);
    b->seq_slot = take_array(&at, n_seq, sizeof *b->seq_slot);
    b->seq_row0 = take_array(&at, n_seq + 1, sizeof *b->seq_row0);
    b->seq_page0 = take_array(&at, n_seq + 1, sizeof *b->seq_page0);
    b->out_row = take_array(&at, n_out, sizeof *b->out_row);
    b->draw = take_array(&at, n_out, sizeof *b->draw);
    b->page = take_array(&at, (size_t)b->n_page, sizeof *b->page);
    return at;
}

/* Bytes of the largest batch and the plan of its attention. */
static size_t room_of(const hd_batch *sizes, const hd_cuda_plan *p) {
    hd_batch b = {.n_row = sizes->n_row_max,
                  .n_seq = sizes->n_seq_max,
                  .n_page = sizes->n_page_max,
                  .n_out = sizes->n_row_max};
    static char origin[1]; /* only told apart, never followed */
    hd_cuda_split_row *split;
    char *at = place_arrays(&b, &split, origin);
    take_array(&at, (size_t)p->n_expand_max, sizeof *p->expand);
    take_array(&at, (size_t)p->n_row_max, sizeof *p->flash);
    take_array(&at, (size_t)p->n_part_max, sizeof *p->part);
    return (size_t)(at - origin);
}

static hd_status make_room(hd_cuda *c, size_t n_byte) {
    void *p;
    if (c->batch_room >= n_byte) return HD_OK;
    HD_TRY(hd_cuda_told(cudaDeviceSynchronize(), "before a larger batch"));
    hd_cuda_graphs_drop(c->graphs);
    for (int i = 0; i < HD_DEV_STEPS; i++) {
        (void)cudaFreeHost(c->stage[i].host);
        c->stage[i].host = NULL;
        HD_TRY(hd_cuda_alloc_host(c, n_byte, "batches", &p));
        c->stage[i].host = p;
    }
    (void)cudaFree(c->batch_memory);
    c->batch_memory = NULL;
    HD_TRY(hd_cuda_alloc(c, n_byte, "batches", &p));
    c->batch_memory = p;
    c->batch_room = n_byte;
    return HD_OK;
}

static int most(int a, int b) { return a > b ? a : b; }

/* Room for batches of these sizes, filled up. */
static hd_status make_room_for(hd_cuda *c, const hd_batch *b) {
    const hd_dev_limits *l = &c->limits;
    hd_batch sizes = {.n_row_max = most(b->n_row_max, l->n_row),
                      .n_seq_max = most(b->n_seq_max, l->n_seq),
                      .n_page_max = b->n_page_max + l->n_seq,
                      .page_tok = b->page_tok};
    if (!hd_cuda_plan_fits(&c->plan, &sizes, c->flash_rule, c->n_room)) {
        hd_cuda_plan_fini(&c->plan);
        hd_cuda_plan_init(&c->plan, &sizes, c->flash_rule, c->n_room);
    }
    hd_cuda_forms_reserve(c, sizes.n_row_max);
    return make_room(c, room_of(&sizes, &c->plan));
}

hd_status hd_cuda_reserve_step(hd_cuda *c) {
    const hd_dev_limits *l = &c->limits;
    void *p;
    for (int i = 0; i < HD_DEV_STEPS; i++) {
        (void)cudaFreeHost(c->result[i].host);
        c->result[i].host = NULL;
        HD_TRY(hd_cuda_alloc_host(c, (size_t)l->n_out * sizeof(int32_t), "tokens", &p));
        c->result[i].host = p;
    }
    if (l->n_page == 0) return HD_OK; /* no model: each batch says what it takes */
    return make_room_for(c, &(hd_batch){.n_page_max = l->n_table, .page_tok = l->page_tok});
}

/* Rows from->n_row .. to->n_row of a decoding step, a sequence each. */
static void fill_up(const hd_cuda *c, const hd_batch *from, hd_batch *to) {
    for (int r = from->n_row; r < to->n_row; r++) {
        int page_at = from->n_page + r - from->n_row;
        to->token[r] = to->pos[r] = 0;
        to->row_seq[r] = to->out_row[r] = r;
        to->form[r] = HD_MLA_ABSORBED;
        to->seq_slot[r] = c->limits.n_seq;
        to->seq_row0[r + 1] = r + 1;
        to->seq_page0[r + 1] = page_at + 1;
        to->page[page_at] = c->limits.n_page;
        to->kv_row[r] = c->limits.n_page * c->limits.page_tok;
        to->draw[r] = (hd_draw){.temperature = 0};
    }
}

/* Rows of a step whose kernels are launched early: that hides what short kernels wait for one
 * another (one sequence of V2-Lite on an H200: 3.14 ms instead of 3.43), but longer ones lose more
 * than that to blocks that wait beside them. Measured there with six layers, early over in turn, 2,
 * 4, 8, 12, 16, 32 and 64 rows: -2, -4, -5, -8, -5, -5 and -1.5 %; of FP8 weights +6, +3, +2, +3,
 * -2, -4 and -1 %. */
enum { EARLY_ROWS_MAX = 1, EARLY_ROWS_MAX_FP8 = 15 };

static bool is_early(const hd_cuda *c, int n_row) {
    bool is_short = n_row <= (c->has_fp8 ? EARLY_ROWS_MAX_FP8 : EARLY_ROWS_MAX);
    return c->has_early_launch && !c->is_in_turn && is_short;
}

static int units_of(const hd_batch *b) {
    int top = 0;
    for (int i = 0; i < b->n_seq; i++) {
        int last = b->pos[b->seq_row0[i + 1] - 1];
        top = last > top ? last : top;
    }
    return top / HD_CUDA_UNIT + 1;
}

/* Copies an array to where the device's copy of it will be looked for. */
static const void *add_array(char **host, char **device, const void *from, size_t n, size_t each) {
    memcpy(*host, from, n * each);
    take_array(host, n, each);
    return take_array(device, n, each);
}

/* Tasks of a prompt's attention: no step that has some is a graph. */
static void add_plan(hd_cuda *c, char **host, char **device) {
    const hd_cuda_plan *p = &c->plan;
    c->expand_task = add_array(host, device, p->expand, (size_t)p->n_expand, sizeof *p->expand);
    c->flash_task = add_array(host, device, p->flash, (size_t)p->n_flash, sizeof *p->flash);
    c->flash_part = add_array(host, device, p->part, (size_t)p->n_part, sizeof *p->part);
}

hd_status hd_cuda_upload(void *ctx, const hd_batch *b, const hd_batch **out) {
    hd_cuda *c = ctx;
    HD_TRY(hd_cuda_flush(c));
    HD_TRY(make_room_for(c, b));
    hd_cuda_stage *s = &c->stage[c->stage_ix];
    c->stage_ix = (c->stage_ix + 1) % HD_DEV_STEPS;
    HD_TRY(hd_cuda_told(cudaEventSynchronize(s->copied), "an earlier step"));
    hd_batch staged = *b;
    int n_more = hd_cuda_graphs_begin(c, b, units_of(b)) - b->n_row;
    hd_cuda_launch_in_turn(!is_early(c, b->n_row + n_more));
    staged.n_row += n_more, staged.n_seq += n_more, staged.n_out += n_more, staged.n_page += n_more;
    c->batch = staged;
    hd_cuda_split_row *split, *split_device;
    char *host = place_arrays(&staged, &split, s->host);
    char *device = place_arrays(&c->batch, &split_device, c->batch_memory);
    hd_batch_copy_arrays(&staged, b);
    memcpy(staged.draw, b->draw, (size_t)b->n_out * sizeof *b->draw);
    fill_up(c, b, &staged);
    hd_cuda_plan_make(&c->plan, &staged);
    hd_cuda_forms_make(c, &staged);
    memcpy(split, c->plan.row, ((size_t)staged.n_row + 1) * sizeof *split);
    c->split_row = split_device;
    add_plan(c, &host, &device);
    size_t n_byte = (size_t)(host - s->host);
    HD_ASSERT(n_byte <= c->batch_room);
    HD_TRY(hd_cuda_told(
        cudaMemcpyAsync(c->batch_memory, s->host, n_byte, cudaMemcpyHostToDevice, c->stream),
        "a step"));
    HD_TRY(hd_cuda_told(cudaEventRecord(s->copied, c->stream), "a step"));
    *out = &c->batch;
    return HD_OK;
}

/* ---- results ---- */

hd_status hd_cuda_see_lost(hd_cuda *c) {
    return hd_cuda_told(cudaMemcpyAsync(c->kv_lost_seen, c->kv_lost, sizeof *c->kv_lost,
                                        cudaMemcpyDeviceToHost, c->stream),
                        "a count");
}

hd_status hd_cuda_send(void *ctx, int ix, const void *from, size_t n_byte) {
    hd_cuda *c = ctx;
    hd_cuda_result *r = &c->result[ix];
    HD_ASSERT(n_byte <= (size_t)c->limits.n_out * sizeof(int32_t));
    HD_TRY(hd_cuda_flush(c));
    HD_TRY(hd_cuda_told(cudaGetLastError(), "a kernel"));
    HD_TRY(hd_cuda_told(cudaMemcpyAsync(r->host, from, n_byte, cudaMemcpyDeviceToHost, c->stream),
                        "tokens"));
    HD_TRY(hd_cuda_see_lost(c));
    return hd_cuda_told(cudaEventRecord(r->arrived, c->stream), "tokens");
}

hd_status hd_cuda_receive(void *ctx, int ix, void *to, size_t n_byte) {
    hd_cuda *c = ctx;
    HD_TRY(hd_cuda_told(cudaEventSynchronize(c->result[ix].arrived), "a step"));
    memcpy(to, c->result[ix].host, n_byte);
    return HD_OK;
}
