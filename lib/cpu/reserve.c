/* All memory of the cpu backend, in one block: laid out once to learn its size, then again to hand
 * out the pieces. Every piece starts on a cache line, so no two threads write the same one. */
#include "cpu/cpu.h"

#include "base/mem.h"

/* Sums of queries over chunks, up to 2 KiB each, that wait to be added up: 16 heads over 64 K
 * positions, or 512 queries that share a prefix over 16 chunks at a time. */
enum { SLOTS = 8192, SLOTS_EACH = 256 };

/* base NULL: only counting. */
typedef struct cut {
    char *base;
    size_t at;
} cut;

static void *take(cut *k, size_t n, size_t n_byte) {
    void *p = k->base != NULL ? k->base + k->at : NULL;
    k->at += (n * n_byte + 63) / 64 * 64;
    return p;
}

static float *take_f(cut *k, size_t n) { return take(k, n, sizeof(float)); }

static size_t most(size_t a, size_t b) { return a > b ? a : b; }

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* Most queries of an attention task: of expanded or grouped-query attention, of latent one. */
static size_t n_query(const hd_dev_limits *l, size_t cap) {
    size_t n_head = (size_t)l->n_head;
    return most(n_head, least((size_t)l->n_row * n_head, cap));
}

static void lay_out_thread(cut *k, const hd_dev_limits *l, hd_cpu_scratch *t) {
    size_t n_c = (size_t)l->n_c;
    size_t n_q = n_query(l, HD_CPU_QUERIES), n_latent = n_query(l, HD_CPU_LATENT_QUERIES);
    size_t n_sum = most(n_q * hd_cpu_pad(l->n_v), n_latent * hd_cpu_pad(l->n_c));
    size_t pad_q = hd_cpu_pad((int)n_q), pad_latent = hd_cpu_pad((int)n_latent);
    size_t n_qt = most(pad_q * hd_cpu_pad(l->n_nope + l->n_rope),
                       pad_latent * hd_cpu_pad(l->n_c + l->n_rope));
    size_t block = HD_CPU_KV_BLOCK;
    *t = (hd_cpu_scratch){
        .panel = take_f(k, (size_t)HD_CPU_KDECODE * HD_CPU_STRIP),
        .decoded = take_f(k, (size_t)HD_CPU_LANES * HD_CPU_KDECODE),
        .c = {take_f(k, (size_t)HD_CPU_ROWS * HD_CPU_STRIP),
              take_f(k, (size_t)HD_CPU_ROWS * HD_CPU_STRIP)},
        .a = take(k, most(n_q, HD_CPU_ROWS), sizeof *t->a),
        .c_row = take(k, HD_CPU_ROWS, sizeof *t->c_row),
        .xq = take(k, HD_CPU_ROWS, sizeof *t->xq),
        .w = take(k, HD_CPU_STRIP, sizeof *t->w),
        .ptr = take(k, block, sizeof *t->ptr),
        .pos = take(k, n_q, sizeof *t->pos),
        .qt = take_f(k, n_qt),
        .rows = take_f(k, block * hd_cpu_pad(l->n_c + l->n_rope)),
        .k = take_f(k, block * hd_cpu_pad(l->n_nope + l->n_rope)),
        .v = take_f(k, block * hd_cpu_pad(l->n_v)),
        .kb = take_f(k, n_c * hd_cpu_pad(l->n_nope)),
        .vb = take_f(k, n_c * hd_cpu_pad(l->n_v)),
        .s = take_f(k, block * HD_CPU_QCHUNK),
        .ragged = take_f(k, HD_CPU_QCHUNK * most(hd_cpu_pad(l->n_c), hd_cpu_pad(l->n_v))),
        .m = {take_f(k, n_q), take_f(k, n_q), take_f(k, n_q)},
        .l = {take_f(k, n_q), take_f(k, n_q), take_f(k, n_q)},
        .acc = {take_f(k, n_sum), take_f(k, n_sum), take_f(k, n_sum)},
    };
}

static void lay_out(cut *k, hd_cpu *c, const hd_dev_limits *l) {
    size_t n_row = (size_t)l->n_row, n_head = (size_t)l->n_head, n_expert = (size_t)l->n_expert;
    size_t n_used = (size_t)l->n_used, d_model = (size_t)l->d_model, d_ff = (size_t)l->d_ff;
    size_t n_pick = n_row * n_used, width = (size_t)l->n_c + (size_t)l->n_rope;
    size_t picked = n_pick * (size_t)l->d_expert;
    size_t n_wave = n_row < HD_CPU_WAVE ? n_row : HD_CPU_WAVE;
    c->thread = take(k, (size_t)c->n_thread, sizeof *c->thread);
    for (int i = 0; i < c->n_thread; i++) {
        hd_cpu_scratch counted;
        lay_out_thread(k, l, k->base != NULL ? &c->thread[i] : &counted);
    }
    c->normed = take_f(k, n_row * d_model);
    c->a = take_f(k, most(n_row * (size_t)l->q_lora, n_row * d_ff + picked));
    c->kv = take_f(k, n_row * most(width, 2 * (size_t)l->n_kv));
    c->score = take_f(k, n_row * n_expert);
    size_t of_heads = n_head * most((size_t)l->n_v, (size_t)l->n_nope);
    c->q_room[0] =
        most(n_row * most(most(d_model, d_ff), of_heads), n_wave * n_head * (size_t)l->n_c);
    c->q_room[1] = most(n_row * most(d_ff, (size_t)l->q_lora), picked);
    for (int i = 0; i < 2; i++)
        c->q[i] = take(k, c->q_room[i] / HD_CPU_SUB + 1, sizeof(hd_cpu_xblock));
    c->mul = take(k, most(n_head, n_expert + 1), sizeof *c->mul);
    c->q_abs = take_f(k, n_wave * n_head * width);
    c->u = take_f(k, n_wave * n_head * hd_cpu_pad(l->n_c));
    for (int i = 0; i < 2; i++) c->list[i] = take(k, n_row, sizeof *c->list[i]);
    c->wave_at = take(k, n_row, sizeof *c->wave_at);
    c->group = take(k, n_row, sizeof *c->group);
    c->seq = take(k, (size_t)l->n_seq, sizeof *c->seq);
    c->n_query = (int)n_query(l, HD_CPU_QUERIES);
    c->n_slot = c->n_thread > 1 ? SLOTS + SLOTS_EACH * c->n_thread : 0;
    size_t n_slot = (size_t)c->n_slot;
    c->slot = take_f(k, n_slot * most(hd_cpu_pad(l->n_c), hd_cpu_pad(l->n_v)));
    c->slot_m = take_f(k, (1 + HD_CPU_STRIPS) * n_slot);
    c->slot_l = take_f(k, (1 + HD_CPU_STRIPS) * n_slot);
    c->moe_row = take(k, n_pick, sizeof *c->moe_row);
    c->moe_slot = take(k, n_pick, sizeof *c->moe_slot);
    c->moe_weight = take_f(k, n_pick);
    c->moe_first = take(k, n_expert + 1, sizeof *c->moe_first);
}

void hd_cpu_free_desks(hd_cpu *c) {
    for (int i = 0; c->desk != NULL && i < c->n_thread; i++) hd_draw_desk_free(c->desk[i]);
    hd_free(c->desk);
    c->desk = NULL;
}

static void new_desks(hd_cpu *c, int n_vocab) {
    c->desk = hd_alloc_zero((size_t)c->n_thread, sizeof *c->desk);
    for (int i = 0; i < c->n_thread; i++) c->desk[i] = hd_draw_desk_new(n_vocab);
}

hd_status hd_cpu_reserve(void *ctx, const hd_dev_limits *limits) {
    hd_cpu *c = ctx;
    cut count = {0};
    void *memory;
    if (limits->n_expert > HD_CPU_EXPERT_MAX)
        return HD_FAIL(UNSUPPORTED, "backend cpu: %d experts, at most %d", limits->n_expert,
                       HD_CPU_EXPERT_MAX);
    if (limits->n_vocab > HD_DRAW_VOCAB_MAX)
        return HD_FAIL(UNSUPPORTED, "backend cpu: %d tokens of a vocabulary, at most %d",
                       limits->n_vocab, HD_DRAW_VOCAB_MAX);
    lay_out(&count, c, limits);
    HD_TRY(hd_alloc_large(count.at, &memory));
    hd_cpu_free_desks(c);
    hd_free(c->arena);
    c->arena = memory;
    c->arena_bytes = count.at;
    c->limits = *limits;
    cut real = {.base = memory};
    lay_out(&real, c, limits);
    new_desks(c, limits->n_vocab);
    for (int i = 0; i < limits->n_row * limits->n_used; i++) c->moe_slot[i] = i;
    return HD_OK;
}
