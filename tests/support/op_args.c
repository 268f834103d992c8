/* The tensors of every op's arguments, as dev/op.h gives their shapes. */
#include "support/op_args.h"

#include "dev/comm.h"

enum direction { IN = 1, OUT = 2, IN_OUT = 3 };

static void add(test_args *t, const void *field, size_t n, size_t each, enum direction d) {
    void **at = (void **)(uintptr_t)field;
    if (!*at) return;
    HD_ASSERT(t->n < TEST_ARG_MAX);
    t->arg[t->n++] = (test_arg){at, n * each, (d & IN) != 0, (d & OUT) != 0};
}
#define ADD(field, n, direction) add(out, &args->field, (size_t)(n), sizeof *args->field, direction)

static void add_weight(test_args *t, const hd_weight **field) {
    HD_ASSERT(t->n_weight < TEST_WEIGHT_MAX);
    if (*field) t->weight[t->n_weight++] = field;
}
#define WEIGHT(field) add_weight(out, &args->field)

/* Cache rows up to the last one that the batch can reach. */
static size_t cache_bytes(const hd_batch *b, const hd_kv_layout *l) {
    int top = 0;
    for (int i = 0; i < b->n_page; i++) top = b->page[i] > top ? b->page[i] : top;
    size_t n_row = ((size_t)top + 1) * (size_t)b->page_tok;
    return hd_kv_bytes(l, n_row);
}

static int n_position(const hd_batch *b) {
    int top = 0;
    for (int r = 0; r < b->n_row; r++) top = b->pos[r] > top ? b->pos[r] : top;
    return top + 1;
}

void test_args_embed(struct hd_op_embed *args, const hd_batch *b, test_args *out) {
    *out = (test_args){0};
    const int32_t *token = b ? b->token : args->token;
    int top = 0;
    for (int r = 0; r < args->n_row; r++)
        top = hd_slot_of_token(token[r]) > top ? hd_slot_of_token(token[r]) : top;
    ADD(token, args->n_row, IN_OUT);
    ADD(last, top + 1, IN);
    ADD(x, args->n_row * args->table->n_in, OUT);
    WEIGHT(table);
}

void test_args_mla_qkv(struct hd_op_mla_qkv *args, const hd_batch *b, test_args *out) {
    if (!b) b = args->batch;
    *out = (test_args){.batch = &args->batch};
    ADD(x, b->n_row * args->d_model, IN);
    ADD(norm, args->d_model, IN);
    if (!args->q) ADD(q_a_norm, args->q_a->n_out, IN);
    ADD(kv_a_norm, args->n_c, IN);
    ADD(rope_cs, n_position(b) * args->n_rope, IN);
    add(out, &args->cache, cache_bytes(b, &args->kv), 1, IN_OUT);
    ADD(q_out, b->n_row * args->n_head * (args->n_nope + args->n_rope), OUT);
    WEIGHT(q);
    WEIGHT(q_a);
    WEIGHT(q_b);
    WEIGHT(kv_a);
}

void test_args_mla_attn(struct hd_op_mla_attn *args, const hd_batch *b, test_args *out) {
    if (!b) b = args->batch;
    *out = (test_args){.batch = &args->batch};
    ADD(q, b->n_row * args->n_head * (args->n_nope + args->n_rope), IN);
    add(out, &args->cache, cache_bytes(b, &args->kv), 1, IN);
    ADD(out, b->n_row * args->n_head * args->n_v, OUT);
    WEIGHT(k_b);
    WEIGHT(v_b);
}

void test_args_gqa_qkv(struct hd_op_gqa_qkv *args, const hd_batch *b, test_args *out) {
    if (!b) b = args->batch;
    *out = (test_args){.batch = &args->batch};
    int n_kv = args->n_head_kv * args->d_head;
    ADD(x, b->n_row * args->d_model, IN);
    ADD(norm, args->d_model, IN);
    ADD(q_bias, args->q->n_out, IN);
    ADD(k_bias, n_kv, IN);
    ADD(v_bias, n_kv, IN);
    ADD(rope_cs, n_position(b) * args->d_head, IN);
    add(out, &args->keys, cache_bytes(b, &args->kv), 1, IN_OUT);
    add(out, &args->values, cache_bytes(b, &args->kv), 1, IN_OUT);
    ADD(q_out, b->n_row * args->n_head * args->d_head, OUT);
    WEIGHT(q);
    WEIGHT(k);
    WEIGHT(v);
}

void test_args_gqa_attn(struct hd_op_gqa_attn *args, const hd_batch *b, test_args *out) {
    if (!b) b = args->batch;
    *out = (test_args){.batch = &args->batch};
    ADD(q, b->n_row * args->n_head * args->d_head, IN);
    add(out, &args->keys, cache_bytes(b, &args->kv), 1, IN);
    add(out, &args->values, cache_bytes(b, &args->kv), 1, IN);
    ADD(out, b->n_row * args->n_head * args->d_head, OUT);
}

void test_args_proj_add(struct hd_op_proj_add *args, const hd_batch *b, test_args *out) {
    (void)b;
    *out = (test_args){0};
    ADD(a, args->n_row * args->w->n_in, IN);
    ADD(x, args->n_row * args->w->n_out, IN_OUT);
    WEIGHT(w);
}

void test_args_ffn(struct hd_op_ffn *args, const hd_batch *b, test_args *out) {
    (void)b;
    *out = (test_args){0};
    ADD(norm, args->d_model, IN);
    ADD(x, args->n_row * args->d_model, IN_OUT);
    WEIGHT(gate);
    WEIGHT(up);
    WEIGHT(down);
}

void test_args_route(struct hd_op_route *args, const hd_batch *b, test_args *out) {
    (void)b;
    *out = (test_args){0};
    ADD(x, args->n_row * args->d_model, IN);
    ADD(norm, args->d_model, IN);
    ADD(bias, args->n_expert, IN);
    ADD(token, args->n_row, IN);
    ADD(normed, args->n_row * args->d_model, OUT);
    ADD(expert, args->n_row * args->n_used, OUT);
    ADD(weight, args->n_row * args->n_used, OUT);
    WEIGHT(router);
}

void test_args_moe(struct hd_op_moe *args, const hd_batch *b, test_args *out) {
    (void)b;
    *out = (test_args){0};
    ADD(normed, args->n_row * args->d_model, IN);
    ADD(expert, args->n_row * args->n_used, IN);
    ADD(weight, args->n_row * args->n_used, IN);
    ADD(x, args->n_row * args->d_model, IN_OUT);
    WEIGHT(gate);
    WEIGHT(up);
    WEIGHT(down);
    WEIGHT(shared_gate);
    WEIGHT(shared_up);
    WEIGHT(shared_down);
}

void test_args_head(struct hd_op_head *args, const hd_batch *b, test_args *out) {
    *out = (test_args){0};
    const int32_t *row = b ? b->out_row : args->row;
    int top = 0;
    for (int i = 0; i < args->n_out; i++) top = row[i] > top ? row[i] : top;
    ADD(row, args->n_out, IN);
    ADD(x, (top + 1) * args->d_model, IN);
    ADD(norm, args->d_model, IN);
    ADD(logits, args->n_out * args->w->n_out, OUT);
    WEIGHT(w);
}

void test_args_sample(struct hd_op_sample *args, const hd_batch *b, test_args *out) {
    if (!b) b = args->batch;
    *out = (test_args){.batch = &args->batch};
    int top = 0;
    for (int s = 0; s < b->n_seq; s++) top = b->seq_slot[s] > top ? b->seq_slot[s] : top;
    ADD(logits, args->n_out * args->n_vocab, IN);
    ADD(is_token, args->n_vocab, IN);
    ADD(token, args->n_out, OUT);
    ADD(last, top + 1, IN_OUT);
}

void test_args_all_reduce(struct hd_op_all_reduce *args, const hd_batch *b, test_args *out) {
    (void)b;
    *out = (test_args){0};
    ADD(x, args->n, IN_OUT);
}

void test_args_all_gather(struct hd_op_all_gather *args, const hd_batch *b, test_args *out) {
    (void)b;
    *out = (test_args){0};
    size_t n = (size_t)args->n_row * (size_t)args->n_each;
    ADD(part, n, IN);
    ADD(all, n * (size_t)args->comm->n_rank, OUT);
}
