/* Rows of the KV cache of any type (quant/kv.h), written one at a time and read a block at a time.
 * Codes are decoded, a group at a time, to what the reference decoding yields, bit for bit. */
#include "cpu/cpu.h"

#include <string.h>

/* Values that are not finite in the plain format. */
static int count_lost(const float *x, int n, enum hd_format plain) {
    uint32_t limit = hd_kv_limit_bits(plain);
    int n_lost = 0;
    for (int i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        n_lost += (bits & 0x7FFFFFFF) >= limit;
    }
    return n_lost;
}

void hd_cpu_cache_put(hd_cpu *c, const hd_kv_layout *l, const float *x, void *row) {
    unsigned char *to = row;
    int n_plain = l->n - l->n_code;
    int n_lost = count_lost(x + l->n_code, n_plain, l->plain);
    if (l->n_code > 0) memset(to + l->n_code, 0, (size_t)(l->row_bytes - l->n_code));
    for (int i = 0; i < l->n_code; i += l->group) {
        float scale = c->k->encode_group(l->type, x + i, to + i, l->group);
        uint16_t h = hd_f32_to_bf16(scale);
        memcpy(to + l->scale_at + 2 * (i / l->group), &h, sizeof h);
        if (scale != scale) n_lost += l->group;
    }
    c->k->encode(l->plain, x + l->n_code, to + l->plain_at, n_plain);
    if (n_lost > 0) atomic_fetch_add_explicit(&c->kv_lost, (uint64_t)n_lost, memory_order_relaxed);
}

static void decode_row(const hd_cpu_kernels *k, const hd_kv_layout *l, const unsigned char *row,
                       int first, int n, float *out) {
    while (n > 0 && first < l->n_code) {
        int skip = first % l->group, n_now = hd_cpu_least(n, l->group - skip);
        uint16_t h;
        memcpy(&h, row + l->scale_at + 2 * (first / l->group), sizeof h);
        k->decode_group(l->type, row + first, hd_bf16_to_f32(h), out, n_now);
        first += n_now, n -= n_now, out += n_now;
    }
    if (n == 0) return;
    size_t at = hd_format_bytes(l->plain, (size_t)(first - l->n_code));
    k->decode(l->plain, row + l->plain_at + at, out, n);
}

void hd_cpu_cache_rows(const hd_cpu_kernels *k, const hd_cpu_cached *s, float *out, size_t ld) {
    for (int i = 0; i < s->n_row; i++)
        decode_row(k, s->kv, s->row[i], s->first, s->n, out + (size_t)i * ld);
}
