/* Rows of a KV cache: where their values lie, and the reference encoding and decoding.
 *
 * F32, F16, BF16: a row is its values. FP8 and INT8: codes of a byte each (E4M3; integers from -127
 * to 127), then a BF16 scale for each group of codes, then the values that are kept as BF16, then
 * zeros up to a multiple of 16 bytes. A value is code * scale, exactly, in float32.
 *
 * Scales come from the row alone (determinism: a row does not depend on its neighbours), so nothing
 * is ever clipped. Of FP8 they are powers of two, the least that bring the group's largest
 * magnitude to 448 or below: a floating-point code loses nothing by that, and code * scale is a
 * BF16 value. Of INT8 they are largest/127, rounded up to BF16. A group with a value that is no
 * number or at least HD_KV_LIMIT has a scale of NaN: whoever reads it finds NaN, and no other
 * sequence does.
 *
 * What is kept as BF16: the rotated key of a latent row, which all heads share (as in DeepSeek's
 * FlashMLA). What the types cost: docs/precision.md.
 * Thread: everything here is pure. */
#ifndef HD_QUANT_KV_H
#define HD_QUANT_KV_H

#include "quant/format.h"

#include <string.h>

enum hd_kv_type {
#define HD_KV_TYPE(id, name, options) HD_KV_##id,
#include "quant/kv_types.def"
#undef HD_KV_TYPE
    HD_KV_TYPE_COUNT
};

typedef struct hd_kv_layout {
    enum hd_kv_type type;
    int n;                  /* values of a row */
    int n_code;             /* the first of them are codes; 0 when the type is a float */
    int group;              /* codes that share a scale, dividing n_code; 0 without codes */
    enum hd_format plain;   /* of values that are no codes: they begin at plain_at */
    int scale_at, plain_at; /* bytes into a row; behind codes multiples of 2 and of 16 */
    int row_bytes;
} hd_kv_layout;

/* Functions that kernels of the cuda backend call, too. */
#ifdef __CUDACC__
#define HD_KV_INLINE static __host__ __device__ __forceinline__
#else
#define HD_KV_INLINE static inline
#endif

enum { HD_KV_GROUP_MAX = 128 };
#define HD_KV_LIMIT 0x1p127f /* code * scale of less is finite */

static inline bool hd_kv_has_codes(enum hd_kv_type t) { return t == HD_KV_FP8 || t == HD_KV_INT8; }

/* Rows of n_head units of n_unit values, of which groups do not cross the borders, then n_kept
 * values that are never codes. */
static inline hd_kv_layout hd_kv_layout_of(enum hd_kv_type t, int n_head, int n_unit, int n_kept) {
    hd_kv_layout l = {t, n_head * n_unit + n_kept, 0, 0, HD_BF16, 0, 0, 0};
    if (!hd_kv_has_codes(t)) {
        l.plain = t == HD_KV_F32 ? HD_F32 : t == HD_KV_F16 ? HD_F16 : HD_BF16;
        l.row_bytes = l.n * (t == HD_KV_F32 ? 4 : 2);
        return l;
    }
    l.n_code = n_head * n_unit;
    for (l.group = n_unit < HD_KV_GROUP_MAX ? n_unit : HD_KV_GROUP_MAX; n_unit % l.group;)
        l.group--;
    l.scale_at = (l.n_code + 1) / 2 * 2;
    l.plain_at = (l.scale_at + 2 * (l.n_code / l.group) + 15) / 16 * 16;
    l.row_bytes = (l.plain_at + 2 * n_kept + 15) / 16 * 16;
    return l;
}
/* The latent of n_c values and the rotated key of n_rope. */
static inline hd_kv_layout hd_kv_latent(enum hd_kv_type t, int n_c, int n_rope) {
    return hd_kv_layout_of(t, 1, n_c, n_rope);
}
/* Keys, or values, of n_head heads. */
static inline hd_kv_layout hd_kv_heads(enum hd_kv_type t, int n_head, int d_head) {
    return hd_kv_layout_of(t, n_head, d_head, 0);
}

static inline size_t hd_kv_bytes(const hd_kv_layout *l, size_t n_row) {
    return n_row * (size_t)l->row_bytes;
}

const char *hd_kv_type_name(enum hd_kv_type t);
/* By one of its option's names. HD_E_INVALID lists them. */
HD_MUST_CHECK hd_status hd_kv_type_by_name(const char *name, enum hd_kv_type *out);

/* One row from src[n]. Returns how many values are not finite as stored. */
int hd_kv_encode(const hd_kv_layout *l, const float *src, void *row);
/* Values first .. first + n of a row. */
void hd_kv_decode(const hd_kv_layout *l, const void *row, int first, int n, float *dst);

/* A value of at least these bits (its sign aside) is not finite in a float format. */
HD_KV_INLINE uint32_t hd_kv_limit_bits(enum hd_format plain) {
    return plain == HD_F32 ? 0x7F800000 : plain == HD_F16 ? 0x477FF000 : 0x7F7F8000;
}
/* The scale of a group whose largest magnitude is amax, below the limit; a BF16 value. FP8: the
 * least power of two that brings amax to 448 = 1.75 * 2^8 or below. INT8: amax / 127, rounded up.
 * Neither is below the least normal float, so that the inverse is finite. */
HD_KV_INLINE float hd_kv_scale(enum hd_kv_type t, float amax) {
    float scale = t == HD_KV_FP8 ? amax : amax / 127;
    uint32_t bits, least = (uint32_t)1 << 23;
    memcpy(&bits, &scale, sizeof bits);
    if (t == HD_KV_FP8) {
        int exponent = (int)(bits >> 23) - 8 + ((bits & 0x7FFFFF) > 0x600000);
        bits = exponent > 0 ? (uint32_t)exponent << 23 : 0;
    } else {
        bits = (bits + 0xFFFF) & 0xFFFF0000;
    }
    if (bits < least) bits = least;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}

#endif
