/* Repacking of weights: 16 outputs x 256 inputs at a time. Of each output first every code in a
 * byte of its own (formats differ in where they keep them), then its part of the planes, four
 * inputs a 32-bit word; then the words of 16 outputs are put side by side. Of floats a row's words
 * are as they lie.
 *
 * A model of 10 GB is packed while it is read, so this has to keep up with memory: everything that
 * depends on the format alone is decided by the compiler, in a copy of the code for each. */
#include "cpu/pack.h"

#include "base/status.h"
#include "quant/iq2_grid.h"

#include <string.h>

#define ALWAYS static inline __attribute__((always_inline))

#define DIGIT(c, j) ((c) >> (2 * (j)) & 3)
#define FOUR(c, i, j, k, l) (DIGIT(c, i) | DIGIT(c, j) << 2 | DIGIT(c, k) << 4 | DIGIT(c, l) << 6)
#define POINT(c) FOUR(c, 0, 4, 2, 6) | FOUR(c, 1, 5, 3, 7) << 8,
_Alignas(64) const uint16_t hd_cpu_iq2_points[258] = {HD_IQ2_GRID(POINT)};

enum { n_lane = HD_CPU_STRIP_OUT, n_word = HD_CPU_SUPER / 4 };

static size_t low_bytes(const hd_cpu_layout *l, int n_sub) {
    return (size_t)n_sub * 64 * (size_t)l->low_bits;
}

static size_t super_bytes(const hd_cpu_layout *l, int n_sub) {
    return hd_cpu_head_bytes(l->head, n_sub) + low_bytes(l, n_sub) +
           (size_t)n_sub * 64 * (size_t)l->high_bits;
}

size_t hd_cpu_strip_bytes(enum hd_format f, int n_in) {
    if (hd_cpu_is_float(f)) return (hd_format_bytes(f, (size_t)n_in) + 3) / 4 * 64;
    hd_cpu_layout l = hd_cpu_layout_of(f);
    int n_left = n_in % HD_CPU_SUPER / HD_CPU_SUB;
    HD_ASSERT(l.low_bits != 0 && n_in % hd_format_get(f)->block_elems == 0);
    return (size_t)(n_in / HD_CPU_SUPER) * super_bytes(&l, HD_CPU_SUPER / HD_CPU_SUB) +
           (n_left > 0 ? super_bytes(&l, n_left) : 0);
}

size_t hd_cpu_packed_bytes(enum hd_format f, int n_in, int n_out) {
    return (size_t)((n_out + n_lane - 1) / n_lane) * hd_cpu_strip_bytes(f, n_in);
}

/* ---- Codes of one output, a byte each ---- */

/* 16 bytes of two halves: elements 0 to 15, and 16 to 31. */
ALWAYS void halves(const unsigned char *qs, unsigned char *code) {
    for (int j = 0; j < 16; j++) {
        code[j] = qs[j] & 15;
        code[j + 16] = qs[j] >> 4;
    }
}

/* Eight bits at a time: each to its byte, where it becomes the highest, then the fifth. */
ALWAYS void fifth_bits(const unsigned char *qh, unsigned char *code) {
    for (int j = 0; j < 32; j += 8) {
        uint64_t bits = qh[j / 8] * 0x0101010101010101u & 0x8040201008040201u, eight;
        bits = ((bits + 0x00406070787C7E7Fu) & 0x8080808080808080u) >> 3;
        memcpy(&eight, code + j, sizeof eight);
        eight |= bits;
        memcpy(code + j, &eight, sizeof eight);
    }
}

/* Elements 32 s + l of a K-quant, from bits `shift` of byte l of a run of 32. */
ALWAYS void bits_of(const unsigned char *from, int shift, int mask, int up, unsigned char *code) {
    for (int l = 0; l < 32; l++)
        code[l] = (unsigned char)(code[l] | ((from[l] >> shift) & mask) << up);
}

/* Of IQ2_XXS the signs alone; points are packed by their index. A word of 4 x 7 bits, the eighth
 * of each the parity of the others. */
ALWAYS void iq2_signs(const unsigned char *sub, unsigned char *code) {
    uint32_t word;
    memcpy(&word, sub + 4, sizeof word);
    for (int g = 0; g < 4; g++) {
        uint32_t sign = word >> (7 * g) & 127;
        sign |= (uint32_t)__builtin_parity(sign) << 7;
        for (int j = 0; j < 8; j++) code[8 * g + j] = sign >> j & 1;
    }
}

ALWAYS void k_codes(enum hd_format f, const unsigned char *p, unsigned char *code) {
    memset(code, 0, HD_CPU_SUPER);
    _Pragma("GCC unroll 8") for (int s = 0; s < 8; s++, code += 32) {
        switch (f) {
        case HD_Q5_K: bits_of(p + 16, s, 1, 4, code); /* fall through */
        case HD_Q4_K:
            bits_of(p + (f == HD_Q4_K ? 16 : 48) + 32 * (s / 2), 4 * (s % 2), 15, 0, code);
            break;
        case HD_Q6_K:
            bits_of(p + 64 * (s / 4) + 32 * (s % 2), 4 * (s % 4 / 2), 15, 0, code);
            bits_of(p + 128 + 32 * (s / 4), 2 * (s % 4), 3, 4, code);
            break;
        case HD_Q2_K: bits_of(p + 16 + 32 * (s / 4), 2 * (s % 4), 3, 0, code); break;
        case HD_Q3_K:
            bits_of(p + 32 + 32 * (s / 4), 2 * (s % 4), 3, 0, code);
            bits_of(p, s, 1, 2, code);
            break;
        case HD_IQ2_XXS: iq2_signs(p + 2 + 8 * s, code); break;
        default: halves(p + 8 + 16 * s, code); break; /* IQ4_XS */
        }
    }
}

/* Of n blocks of 32 at p. */
ALWAYS void codes(enum hd_format f, const unsigned char *p, int n, unsigned char *code) {
    const hd_format_info *info = hd_format_get(f);
    if (info->block_elems == HD_CPU_SUPER) {
        k_codes(f, p, code);
        return;
    }
    for (int b = 0; b < n; b++, p += info->block_bytes, code += 32) {
        switch (f) {
        case HD_Q8_0:
            for (int j = 0; j < 32; j++) code[j] = p[2 + j] ^ 0x80;
            break;
        case HD_MXFP4: halves(p + 1, code); break;
        case HD_Q4_1: halves(p + 4, code); break;
        case HD_Q5_0:
            halves(p + 6, code);
            fifth_bits(p + 2, code);
            break;
        case HD_Q5_1:
            halves(p + 8, code);
            fifth_bits(p + 4, code);
            break;
        default: halves(p + 2, code); break; /* Q4_0, IQ4_NL */
        }
    }
}

/* ---- Heads ---- */

/* number [count][16] of six bits. */
ALWAYS void put_six_bits(unsigned char number[][HD_CPU_STRIP_OUT], int count, unsigned char *dst) {
    int half = count / 2, quarter = count / 4;
    for (int i = 0; i < half; i++, dst += n_lane)
        for (int o = 0; o < n_lane; o++)
            dst[o] = (unsigned char)((number[i][o] & 15) | (number[half + i][o] & 15) << 4);
    for (int i = 0; i < quarter; i++, dst += n_lane)
        for (int o = 0; o < n_lane; o++)
            dst[o] = (unsigned char)(number[i][o] >> 4 | (number[quarter + i][o] >> 4) << 2 |
                                     (number[half + i][o] >> 4) << 4 |
                                     (number[half + quarter + i][o] >> 4) << 6);
}

ALWAYS void six_bit_numbers(enum hd_format f, const unsigned char *p, int o,
                            unsigned char number[][HD_CPU_STRIP_OUT]) {
    for (int j = 0; j < 8; j++) {
        const unsigned char *s = p + 4; /* Q4_K and Q5_K: scales[12], eight and eight minimums */
        if (f == HD_IQ4_XS) {           /* scales_h[2], scales_l[4] */
            number[j][o] = (unsigned char)((p[4 + j / 2] >> (4 * (j % 2)) & 15) |
                                           ((p[2 + j / 4] >> (2 * (j % 4))) & 3) << 4);
        } else if (f == HD_Q3_K) {
            s = p + 96;
            for (int i = j; i < 16; i += 8)
                number[i][o] = (unsigned char)((s[i % 8] >> (i < 8 ? 0 : 4) & 15) |
                                               (s[8 + i % 4] >> (2 * (i / 4)) & 3) << 4);
        } else if (j < 4) {
            number[j][o] = s[j] & 63;
            number[j + 8][o] = s[j + 4] & 63;
        } else {
            number[j][o] = (unsigned char)((s[j + 4] & 15) | (s[j - 4] >> 6) << 4);
            number[j + 8][o] = (unsigned char)(s[j + 4] >> 4 | (s[j] >> 6) << 4);
        }
    }
}

ALWAYS void put_head(enum hd_format f, const unsigned char *const *block, int n,
                     unsigned char *dst) {
    enum hd_cpu_head head = hd_cpu_layout_of(f).head;
    int stride = hd_format_get(f)->block_bytes;
    /* Where the f16 d of a K-quant stands, and its six-bit numbers in the head. */
    int d_at = f == HD_Q6_K ? 208 : f == HD_Q3_K ? 108 : f == HD_Q2_K ? 80 : 0;
    bool has_min = head == HD_CPU_HEAD_K45 || head == HD_CPU_HEAD_K2;
    unsigned char number[16][HD_CPU_STRIP_OUT];
    memset(dst, 0, hd_cpu_head_bytes(head, n));
    for (int o = 0; o < n_lane; o++) {
        const unsigned char *p = block[o];
        if (head == HD_CPU_HEAD_D || head == HD_CPU_HEAD_DM || head == HD_CPU_HEAD_E) {
            for (int b = 0; b < n; b++, p += stride) {
                if (head == HD_CPU_HEAD_E) {
                    dst[16 * b + o] = p[0];
                } else if (head == HD_CPU_HEAD_D) {
                    memcpy(dst + 32 * b + 2 * o, p, 2);
                } else {
                    memcpy(dst + 64 * b + 2 * o, p, 2);
                    memcpy(dst + 64 * b + 32 + 2 * o, p + 2, 2);
                }
            }
            continue;
        }
        memcpy(dst + 2 * o, p + d_at, 2);
        if (has_min) memcpy(dst + 32 + 2 * o, p + d_at + 2, 2);
        for (int s = 0; s < 16; s++) {
            if (head == HD_CPU_HEAD_K6) dst[32 + 16 * s + o] = p[192 + s];
            if (head == HD_CPU_HEAD_K2) dst[64 + 16 * s + o] = p[s];
            if (head == HD_CPU_HEAD_X2 && s % 4 == 0) /* the top halves of two words */
                dst[32 + 4 * s + o] = (unsigned char)(p[9 + 4 * s] >> 4 | (p[17 + 4 * s] & 240));
        }
        if (head == HD_CPU_HEAD_K45 || head == HD_CPU_HEAD_K3 || head == HD_CPU_HEAD_X4)
            six_bit_numbers(f, p, o, number);
    }
    if (head == HD_CPU_HEAD_K45) put_six_bits(number, 16, dst + 64);
    if (head == HD_CPU_HEAD_K3) put_six_bits(number, 16, dst + 32);
    if (head == HD_CPU_HEAD_X4) put_six_bits(number, 8, dst + 32);
}

/* ---- Planes ---- */

/* Bits `shift` .. of the bytes of 32 codes into fewer words: 8 / bits groups of words share one.
 * For 4 bits, group g shares with g + 4; for fewer, with its neighbours. */
ALWAYS void put_plane(const unsigned char *code, int bits, int shift, uint32_t *out) {
    uint32_t mask = (bits == 8 ? 0xFFu : (1u << bits) - 1) * 0x01010101u, word[8];
    memcpy(word, code, sizeof word);
    _Pragma("GCC unroll 8") for (int v = 0; v < bits; v++) {
        int first = bits == 2 ? 4 * v : v, step = bits == 4 ? 4 : 1;
        uint32_t sum = 0;
        _Pragma("GCC unroll 8") for (int i = 0; i < 8 / bits; i++) sum |=
            (word[first + step * i] >> shift & mask) << (bits * i);
        out[v] = sum;
    }
}

/* Words of an output, in the order of their vectors. */
ALWAYS void put_planes(hd_cpu_layout l, const unsigned char *block, const unsigned char *code,
                       int n_sub, uint32_t *out) {
    uint32_t *high = out + n_sub * l.low_bits;
    for (int s = 0; s < n_sub; s++) {
        if (l.table == HD_CPU_TABLE_IQ2) {
            memcpy(out + s, block + 2 + 8 * s, sizeof *out);
            put_plane(code + 32 * s, 1, 0, high + s);
            continue;
        }
        put_plane(code + 32 * s, l.low_bits, 0, out + s * l.low_bits);
        if (l.high_bits > 0)
            put_plane(code + 32 * s, l.high_bits, l.low_bits, high + s * l.high_bits);
    }
}

typedef uint32_t quad __attribute__((vector_size(16)));

/* dst [n, 16] = the transpose of word [16, n], whose rows have zeros up to a multiple of 4. */
ALWAYS void put_lanes(uint32_t word[][n_word], int n, unsigned char *dst) {
    for (int w = 0; w < n; w += 4) {
        for (int o = 0; o < n_lane; o += 4) {
            quad r[4], t[4];
            for (int i = 0; i < 4; i++) memcpy(&r[i], &word[o + i][w], sizeof r[i]);
            t[0] = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5);
            t[1] = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
            t[2] = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
            t[3] = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
            r[0] = __builtin_shufflevector(t[0], t[1], 0, 1, 4, 5);
            r[1] = __builtin_shufflevector(t[0], t[1], 2, 3, 6, 7);
            r[2] = __builtin_shufflevector(t[2], t[3], 0, 1, 4, 5);
            r[3] = __builtin_shufflevector(t[2], t[3], 2, 3, 6, 7);
            for (int i = 0; i < 4 && w + i < n; i++)
                memcpy(dst + 64 * (w + i) + 4 * o, &r[i], sizeof r[i]);
        }
    }
}

ALWAYS void pack_super(enum hd_format f, const unsigned char *const *block, int n_sub,
                       unsigned char *dst) {
    hd_cpu_layout l = hd_cpu_layout_of(f);
    _Alignas(16) uint32_t word[HD_CPU_STRIP_OUT][n_word];
    unsigned char code[HD_CPU_SUPER];
    int n = n_sub * (l.low_bits + l.high_bits);
    for (int o = 0; o < n_lane; o++) {
        codes(f, block[o], n_sub, code);
        put_planes(l, block[o], code, n_sub, word[o]);
        for (int i = n; i % 4 != 0; i++) word[o][i] = 0;
    }
    put_head(f, block, n_sub, dst);
    put_lanes(word, n, dst + hd_cpu_head_bytes(l.head, n_sub));
}

ALWAYS void pack_rows(enum hd_format f, int n_in, int n_out, const void *src, void *dst) {
    static const unsigned char zero[8 * 34]; /* the longest run of blocks of a super-block */
    hd_cpu_layout l = hd_cpu_layout_of(f);
    const hd_format_info *info = hd_format_get(f);
    size_t row_bytes = hd_format_bytes(f, (size_t)n_in);
    unsigned char *to = dst;
    for (int o0 = 0; o0 < n_out; o0 += n_lane) {
        for (int k = 0; k < n_in; k += HD_CPU_SUPER) {
            const unsigned char *block[HD_CPU_STRIP_OUT];
            size_t at = hd_format_bytes(f, (size_t)k);
            int n_sub = (n_in - k < HD_CPU_SUPER ? n_in - k : HD_CPU_SUPER) / HD_CPU_SUB;
            HD_DASSERT((size_t)(n_sub * HD_CPU_SUB / info->block_elems * info->block_bytes) <=
                       sizeof zero);
            for (int o = 0; o < n_lane; o++)
                block[o] = o0 + o < n_out
                               ? (const unsigned char *)src + (size_t)(o0 + o) * row_bytes + at
                               : zero;
            pack_super(f, block, n_sub, to);
            to += super_bytes(&l, n_sub);
        }
    }
}

/* ---- Floats ---- */

static bool has_nan_code(const unsigned char *code) {
    unsigned n = 0;
    for (int i = 0; i < 128; i++) n += (code[i] & 127) == 127;
    return n > 0;
}

/* Pairs of 16-bit numbers, the first ones and the second ones. */
static void put_pairs_apart(unsigned char *vector) {
    uint16_t pair[2 * HD_CPU_STRIP_OUT], apart[2 * HD_CPU_STRIP_OUT];
    memcpy(pair, vector, sizeof pair);
    for (int o = 0; o < n_lane; o++) {
        apart[o] = pair[2 * o];
        apart[n_lane + o] = pair[2 * o + 1];
    }
    memcpy(vector, apart, sizeof apart);
}

static void pack_floats(enum hd_format f, int n_in, int n_out, const unsigned char *src,
                        unsigned char *dst) {
    _Alignas(16) uint32_t word[HD_CPU_STRIP_OUT][n_word];
    size_t row_bytes = hd_format_bytes(f, (size_t)n_in), each = sizeof word[0];
    if (f == HD_F8_B128) each = 132;
    for (int o0 = 0; o0 < n_out; o0 += n_lane, src += n_lane * row_bytes) {
        for (size_t at = 0; at < row_bytes; at += each) {
            size_t n_byte = row_bytes - at < each ? row_bytes - at : each;
            int n = (int)(n_byte + 3) / 4;
            for (int o = 0; o < n_lane; o++) {
                if (n_byte < each || o0 + o >= n_out) memset(word[o], 0, sizeof word[o]);
                if (o0 + o >= n_out) continue;
                memcpy(word[o], src + (size_t)o * row_bytes + at, n_byte);
                if (f == HD_F8_B128 && has_nan_code((unsigned char *)&word[o][1]))
                    word[o][0] = 0x7FC00000u;
            }
            put_lanes(word, n, dst);
            for (int i = 0; f == HD_F16 && i < n; i++) put_pairs_apart(dst + 64 * i);
            dst += 64 * n;
        }
    }
}

void hd_cpu_pack(enum hd_format f, int n_in, int n_out, const void *src, void *dst) {
    if (hd_cpu_is_float(f)) {
        pack_floats(f, n_in, n_out, src, dst);
        return;
    }
    switch (f) {
#define HD_CPU_PACKED(id, low, high, head, offset, table)                                          \
    case HD_##id:                                                                                  \
        pack_rows(HD_##id, n_in, n_out, src, dst);                                                 \
        return;
#include "cpu/packed.def"
#undef HD_CPU_PACKED
    default: HD_ASSERT(0 && "a format that is repacked");
    }
}
