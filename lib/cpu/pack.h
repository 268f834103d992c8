/* Weights as the cpu kernels read them: the same bits as in the file, in another order.
 *
 * A matrix [n_out, n_in] becomes strips of 16 outputs, one after another (the last one padded with
 * zeros), so that a vector lane belongs to an output and a strip is read from its first byte to
 * its last.
 *
 * Floats: a row is words of 4 bytes as they lie (the last one padded with zeros), and a strip has
 * word i of 16 outputs side by side, 64 bytes. So it is of F32 an input; of BF16 two; of F16 two,
 * first the 16 outputs' even input, then the odd one; of FP8 four codes, and before every 32 such
 * words one of scales, which are no numbers where a code of theirs is none.
 *
 * Quantised weights: a strip is a run of super-blocks of 256 inputs (the last one: what is left, a
 * multiple of 32); a super-block is, each part padded to 64 bytes:
 *
 *   head   scales of the 16 outputs, in the form the format has them (enum hd_cpu_head)
 *   low    for each 32 inputs the low bits of the codes: 8 bits, 8 vectors; 4 bits, 4 vectors, the
 *          high half of a byte belonging to 16 inputs later; 2 bits, 2 vectors of 4 groups each;
 *          1 bit, a vector: byte 4 o + i is the index of a point of IQ2_XXS's grid, inputs 8 i
 *          to 8 i + 7 of output o, a code of 2 bits each
 *   high   for each 32 inputs the next bit of the codes (a vector), or the next two (2 vectors)
 *
 * where a vector is 64 bytes: byte 4 o + i is input i of a group of 4 of output o. Group g of 8:
 * 4 bits: vector g % 4, bits 4 (g / 4). 2 bits: vector g / 4, bits 2 (g % 4). 1 bit: bit g.
 *
 * The layout is the same at every instruction-set level and takes at most 1.02 of the file's bytes
 * (1.1 of IQ2_XXS's, whose eighth signs are kept) when n_in is a multiple of 256 and n_out of 16.
 * Thread: everything here is pure. */
#ifndef HD_CPU_PACK_H
#define HD_CPU_PACK_H

#include "quant/format.h"

/* Changes whenever the bytes that hd_cpu_pack writes do. */
#define HD_CPU_PACK_VERSION 3

enum { HD_CPU_STRIP_OUT = 16, HD_CPU_SUPER = 256, HD_CPU_SUB = 32 };

/* n: blocks of 32 in the super-block. Six-bit numbers: [count/2][16] of the lower four bits, number
 * i in a byte with i + count/2; then [count/4][16] of the upper two, number i with i + count/4 and
 * so on; the first in the least bits. */
enum hd_cpu_head {
    HD_CPU_HEAD_D,   /* f16 scale [n][16] */
    HD_CPU_HEAD_DM,  /* f16 scale and minimum [n][2][16] */
    HD_CPU_HEAD_E,   /* E8M0 scale [n][16] */
    HD_CPU_HEAD_K45, /* f16 d[16], dmin[16]; 16 six-bit numbers: 8 scales, then 8 minimums */
    HD_CPU_HEAD_K6,  /* f16 d[16]; int8 scale [16][16], one for 16 inputs */
    HD_CPU_HEAD_K3,  /* f16 d[16]; 16 six-bit scales (less 32), one for 16 inputs */
    HD_CPU_HEAD_K2,  /* f16 d[16], dmin[16]; u8 [16][16] scale, and minimum in the high half */
    HD_CPU_HEAD_X4,  /* f16 d[16]; 8 six-bit scales (less 32) */
    HD_CPU_HEAD_X2   /* f16 d[16]; 8 four-bit scales [4][16], the odd one in the high half */
};

enum hd_cpu_table { HD_CPU_TABLE_NONE, HD_CPU_TABLE_IQ4, HD_CPU_TABLE_FP4, HD_CPU_TABLE_IQ2 };

typedef struct hd_cpu_layout {
    int low_bits, high_bits; /* low_bits 0: the format is not of super-blocks */
    enum hd_cpu_head head;
    int offset;
    enum hd_cpu_table table;
} hd_cpu_layout;

static inline hd_cpu_layout hd_cpu_layout_of(enum hd_format f) {
    switch (f) {
#define HD_CPU_PACKED(id, low, high, head, offset, table)                                          \
    case HD_##id:                                                                                  \
        return (hd_cpu_layout){low, high, HD_CPU_HEAD_##head, offset, HD_CPU_TABLE_##table};
#include "cpu/packed.def"
#undef HD_CPU_PACKED
    default: return (hd_cpu_layout){0};
    }
}

/* Bytes of the head of a super-block of n blocks of 32. */
static inline size_t hd_cpu_head_bytes(enum hd_cpu_head h, int n) {
    size_t sub = (size_t)n;
    switch (h) {
    case HD_CPU_HEAD_D: return (32 * sub + 63) / 64 * 64;
    case HD_CPU_HEAD_DM: return 64 * sub;
    case HD_CPU_HEAD_E: return (16 * sub + 63) / 64 * 64;
    case HD_CPU_HEAD_K45: return 256;
    case HD_CPU_HEAD_K6: return 320;
    case HD_CPU_HEAD_K3: return 256;
    case HD_CPU_HEAD_K2: return 320;
    case HD_CPU_HEAD_X4:
    case HD_CPU_HEAD_X2: return 128;
    }
    return 0;
}

/* Whether each 16 inputs have a scale of their own. */
static inline bool hd_cpu_has_halves(enum hd_cpu_head h) {
    return h == HD_CPU_HEAD_K6 || h == HD_CPU_HEAD_K3 || h == HD_CPU_HEAD_K2;
}

/* Whether a format becomes super-blocks, for products of integers. */
static inline bool hd_cpu_is_packed(enum hd_format f) { return hd_cpu_layout_of(f).low_bits != 0; }

/* Whether it becomes words of floats. */
static inline bool hd_cpu_is_float(enum hd_format f) {
    return f == HD_F32 || f == HD_F16 || f == HD_BF16 || f == HD_F8_B128;
}
/* Inputs that a word of floats holds. */
static inline int hd_cpu_word_inputs(enum hd_format f) {
    return f == HD_F8_B128 ? 4 : f == HD_F32 ? 1 : 2;
}

/* The grid of IQ2_XXS by index: values 0, 4, 2 and 6 of a point in bits 0, 2, 4 and 6 of the lower
 * byte, values 1, 5, 3 and 7 in those of the upper one, so that eight codes become bytes by few
 * shifts. One more, for reads of 32 bits. */
extern const uint16_t hd_cpu_iq2_points[258];

/* n_in is whole blocks of the format. Both are multiples of 64. */
size_t hd_cpu_strip_bytes(enum hd_format f, int n_in);
size_t hd_cpu_packed_bytes(enum hd_format f, int n_in, int n_out);

/* Packs n_out rows that lie one after another at src (any alignment) into dst
 * [hd_cpu_packed_bytes], 64-byte aligned. Rows of a matrix from a multiple of 16 on become its
 * strips from there on, so a matrix can be packed in parts, by several threads. */
void hd_cpu_pack(enum hd_format f, int n_in, int n_out, const void *src, void *dst);

#endif
