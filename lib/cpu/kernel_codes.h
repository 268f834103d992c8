/* Repacked weights (cpu/pack.h) taken apart: a block's codes as bytes, and its scales as floats, VN
 * outputs of a strip at a time. Included after a level's primitives, as kernel_product.h. */
#ifndef HD_CPU_KERNEL_CODES_H
#define HD_CPU_KERNEL_CODES_H

#define ALWAYS static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

ALWAYS W w_load(const unsigned char *p) {
    W w;
    __builtin_memcpy(&w, p, sizeof w);
    return w;
}

static const unsigned char packed_tables[3][16] = {
    {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241}, /* IQ4 + 128 */
    {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4},            /* 2 FP4 + 16 */
    {72, 89, 107, 64, 56, 39, 21, 64}}; /* IQ2 + 64; bit 2 of the code is its sign */

ALWAYS W code_values(hd_cpu_layout l, W code) {
    return w_lookup(packed_tables[l.table - HD_CPU_TABLE_IQ4], code);
}

/* Codes of 32 inputs, of the points with the indices at `low` and the signs at `high`. */
ALWAYS void load_points(hd_cpu_layout l, const unsigned char *low, const unsigned char *high,
                        W *w) {
    W point[2], sign = w_load(high);
    w_points(w_load(low), point);
    UNROLL for (int g = 0; g < 8; g++) {
        W eight = g < 4 ? point[g / 2 % 2] & 0xFFFFu : point[g / 2 % 2] >> 16;
        if (g % 2 == 1) eight >>= 2;
        W code = (eight | eight << 12) & 0x03030303u;
        w[g] = code_values(l, code | ((g < 2 ? sign << (2 - g) : sign >> (g - 2)) & 0x04040404u));
    }
}

/* The vectors of the planes that group g of a block comes from. */
ALWAYS int low_of(hd_cpu_layout l, int g) {
    return l.low_bits == 8 ? g : l.low_bits == 4 ? g % 4 : g / 4;
}
ALWAYS int high_of(hd_cpu_layout l, int g) { return g * l.high_bits / 8; }

/* Codes of group g from those. */
ALWAYS W codes_of(hd_cpu_layout l, W low, W high, int g) {
    W w = low;
    if (l.low_bits == 4) w = (low >> (4 * (g / 4))) & 0x0F0F0F0Fu;
    if (l.low_bits == 2) w = (low >> (2 * (g % 4))) & 0x03030303u;
    if (l.high_bits > 0) {
        int up = l.low_bits - l.high_bits * (g % (8 / l.high_bits));
        uint32_t mask = l.high_bits == 2 ? 0x03030303u : 0x01010101u;
        w |= (up < 0 ? high >> -up : high << up) & (mask << l.low_bits);
    }
    return l.table != HD_CPU_TABLE_NONE ? code_values(l, w) : w;
}

/* Codes of 32 inputs from the planes' vectors of them. */
ALWAYS void load_codes(hd_cpu_layout l, const unsigned char *low, const unsigned char *high, W *w) {
    if (l.table == HD_CPU_TABLE_IQ2) {
        load_points(l, low, high, w);
        return;
    }
    W of_low[8], of_high[2];
    UNROLL for (int v = 0; v < l.low_bits; v++) of_low[v] = w_kept(w_load(low + 64 * v));
    UNROLL for (int v = 0; v < l.high_bits; v++) of_high[v] = w_kept(w_load(high + 64 * v));
    UNROLL for (int g = 0; g < 8; g++) w[g] =
        codes_of(l, of_low[low_of(l, g)], l.high_bits > 0 ? of_high[high_of(l, g)] : of_low[0], g);
}

/* The count six-bit numbers of a head, a byte each, by quarters; vectors that are longer than one
 * write garbage where the next quarter is written later. */
ALWAYS void six_bits(const unsigned char *p, int count, unsigned char number[][16]) {
    UNROLL for (int quarter = 0; quarter < 4; quarter++) {
        UNROLL for (int at = 0; at < 4 * count; at += (int)sizeof(W)) {
            W low = w_load(p + 4 * count * (quarter % 2) + at), high = w_load(p + 8 * count + at);
            if (quarter >= 2) low >>= 4;
            high = quarter < 2 ? high << (4 - 2 * quarter) : high >> (2 * quarter - 4);
            W n = (low & 0x0F0F0F0Fu) | (high & 0x30303030u);
            __builtin_memcpy(number[0] + 4 * count * quarter + at, &n, sizeof n);
        }
    }
}

/* 2^(e - 128): half an E8M0 scale, whose least two are denormal; 255 is NaN. */
ALWAYS V half_e8m0(W e) {
    W is_least = (W)(e < 2), is_nan = (W)(e == 255);
    W bits = (is_least & (0x00200000u << e)) | (~is_least & ((e - 1) << 23));
    return (V)((is_nan & 0x7FC00000u) | (~is_nan & bits));
}

/* What all blocks of a super-block need: d and -dmin of the K-quants, and up to 16 numbers of six
 * bits, where eight leave room for what six_bits writes past them. */
typedef struct super_scale {
    V d, less;
    _Alignas(64) unsigned char number[16][16];
} super_scale;

ALWAYS void load_super(hd_cpu_layout l, const unsigned char *head, int lane, super_scale *s) {
    if (l.head == HD_CPU_HEAD_K45 || l.head == HD_CPU_HEAD_K6 || l.head == HD_CPU_HEAD_K3 ||
        l.head == HD_CPU_HEAD_K2 || l.head == HD_CPU_HEAD_X4 || l.head == HD_CPU_HEAD_X2)
        s->d = v_decode_f16(head + 2 * lane);
    if (l.head == HD_CPU_HEAD_K45 || l.head == HD_CPU_HEAD_K2)
        s->less = v_set(0) - v_decode_f16(head + 32 + 2 * lane);
    if (l.head == HD_CPU_HEAD_K45) six_bits(head + 64, 16, s->number);
    if (l.head == HD_CPU_HEAD_K3) six_bits(head + 32, 16, s->number);
    if (l.head == HD_CPU_HEAD_X4) six_bits(head + 32, 8, s->number);
}

ALWAYS V number_at(const super_scale *s, int lane, int i) {
    return v_float((VI)w_bytes(s->number[i] + lane));
}

/* Scales of block b, of its first and second 16 inputs where they differ, and what is added. */
typedef struct block_scale {
    V scale[2], add[2];
} block_scale;

ALWAYS block_scale load_scales(hd_cpu_layout l, const super_scale *s, const unsigned char *head,
                               int lane, int b) {
    block_scale out = {{v_set(0), v_set(0)}, {v_set(0), v_set(0)}};
    switch (l.head) {
    case HD_CPU_HEAD_D: out.scale[0] = v_decode_f16(head + 32 * b + 2 * lane); break;
    case HD_CPU_HEAD_DM:
        out.scale[0] = v_decode_f16(head + 64 * b + 2 * lane);
        out.add[0] = v_decode_f16(head + 64 * b + 32 + 2 * lane);
        break;
    case HD_CPU_HEAD_E: out.scale[0] = half_e8m0(w_bytes(head + 16 * b + lane)); break;
    case HD_CPU_HEAD_K45:
        out.scale[0] = s->d * number_at(s, lane, b);
        out.add[0] = s->less * number_at(s, lane, b + 8);
        break;
    case HD_CPU_HEAD_X4: out.scale[0] = s->d * (number_at(s, lane, b) - v_set(32)); break;
    case HD_CPU_HEAD_X2: {
        W four = (w_bytes(head + 32 + 16 * (b / 2) + lane) >> (4 * (b % 2))) & 15;
        out.scale[0] = s->d * (v_float((VI)four) + v_set(0.5f)) * v_set(0.25f); /* exact */
        break;
    }
    default:
        UNROLL for (int i = 0; i < 2; i++) {
            int at = 2 * b + i;
            if (l.head == HD_CPU_HEAD_K6) {
                out.scale[i] = s->d * v_decode_s8(head + 32 + 16 * at + lane);
            } else if (l.head == HD_CPU_HEAD_K3) {
                out.scale[i] = s->d * (number_at(s, lane, at) - v_set(32));
            } else {
                W both = w_bytes(head + 64 + 16 * at + lane);
                out.scale[i] = s->d * v_float((VI)(both & 15));
                out.add[i] = s->less * v_float((VI)(both >> 4));
            }
        }
    }
    return out;
}

#endif
