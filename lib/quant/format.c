/* Tensor formats: number conversions, and the reference encoding and decoding of every row of
 * formats.def. Plain loops: these define the bytes, fast paths elsewhere must agree with them. */
#include "quant/format.h"

#include "quant/blocks.h"

#include "base/buf.h"

#include <math.h>
#include <string.h>
#include <strings.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "formats are stored little-endian");

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

float hd_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = (h >> 10) & 31, frac = h & 0x3FF;
    if (exp == 31) return float_of(sign | 0x7F800000 | frac << 13);
    if (exp != 0) return float_of(sign | (exp + 112) << 23 | frac << 13);
    float f = (float)frac * 0x1p-24f; /* subnormal or zero: exact */
    return sign ? -f : f;
}

/* Shifts right, rounding to nearest, ties to even. */
static uint32_t shift_round(uint32_t v, int n_bit) {
    uint32_t kept = v >> n_bit, rest = v & ((1u << n_bit) - 1), half = 1u << (n_bit - 1);
    return kept + (rest > half || (rest == half && (kept & 1)));
}

uint16_t hd_f32_to_f16(float f) {
    uint32_t u = bits_of(f), sign = (u >> 16) & 0x8000, mag = u & 0x7FFFFFFF;
    if (mag > 0x7F800000) return (uint16_t)(sign | 0x7E00 | ((mag >> 13) & 0x3FF)); /* NaN */
    if (mag >= 0x477FF000) return (uint16_t)(sign | 0x7C00); /* rounds past 65504: infinity */
    if (mag >= 0x38800000) /* normal; a carry out of the fraction moves to the exponent rightly */
        return (uint16_t)(sign | (shift_round(mag, 13) - (112u << 10)));
    if (mag < 0x33000000) return (uint16_t)sign; /* below half of the least subnormal */
    int n_bit = 126 - (int)(mag >> 23);
    return (uint16_t)(sign | shift_round((mag & 0x7FFFFF) | 0x800000, n_bit));
}

float hd_bf16_to_f32(uint16_t h) { return float_of((uint32_t)h << 16); }

uint16_t hd_f32_to_bf16(float f) {
    uint32_t u = bits_of(f);
    if ((u & 0x7FFFFFFF) > 0x7F800000) return (uint16_t)(u >> 16 | 0x40); /* keep it a NaN */
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

void hd_decode_F32(const void *src, float *dst, size_t n) { memcpy(dst, src, n * 4); }
void hd_encode_F32(const float *src, const float *weight, void *dst, size_t n) {
    (void)weight;
    memcpy(dst, src, n * 4);
}

void hd_decode_F16(const void *src, float *dst, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, (const char *)src + 2 * i, 2);
        dst[i] = hd_f16_to_f32(h);
    }
}

void hd_encode_F16(const float *src, const float *weight, void *dst, size_t n) {
    (void)weight;
    for (size_t i = 0; i < n; i++) {
        uint16_t h = hd_f32_to_f16(src[i]);
        memcpy((char *)dst + 2 * i, &h, 2);
    }
}

void hd_decode_BF16(const void *src, float *dst, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, (const char *)src + 2 * i, 2);
        dst[i] = hd_bf16_to_f32(h);
    }
}

void hd_encode_BF16(const float *src, const float *weight, void *dst, size_t n) {
    (void)weight;
    for (size_t i = 0; i < n; i++) {
        uint16_t h = hd_f32_to_bf16(src[i]);
        memcpy((char *)dst + 2 * i, &h, 2);
    }
}

/* Q8_0: f16 d, then int8 q[32]; x = d * q. */
enum { q8_0_elems = 32, q8_0_bytes = 34 };

void hd_decode_Q8_0(const void *src, float *dst, size_t n) {
    const unsigned char *p = src;
    for (size_t b = 0; b < n / q8_0_elems; b++, p += q8_0_bytes) {
        uint16_t h;
        memcpy(&h, p, 2);
        float d = hd_f16_to_f32(h);
        for (int i = 0; i < q8_0_elems; i++) *dst++ = d * (float)(int8_t)p[2 + i];
    }
}

/* The quantised value; what no int8 can hold (NaN, or 1/d past the range of float) is brought
 * inside, so that no input is undefined behaviour. */
static int8_t q8_of(float x) {
    float q = roundf(x);
    if (q >= 127) return 127;
    if (q <= -127) return -127;
    return q == q ? (int8_t)q : 0;
}

void hd_encode_Q8_0(const float *src, const float *weight, void *dst, size_t n) {
    (void)weight;
    unsigned char *p = dst;
    for (size_t b = 0; b < n / q8_0_elems; b++, p += q8_0_bytes, src += q8_0_elems) {
        float amax = 0;
        for (int i = 0; i < q8_0_elems; i++) amax = fmaxf(amax, fabsf(src[i]));
        float d = amax / 127, inverse = d != 0 ? 1 / d : 0;
        uint16_t h = hd_f32_to_f16(d); /* q uses d before this rounding, as ggml does */
        memcpy(p, &h, 2);
        for (int i = 0; i < q8_0_elems; i++) p[2 + i] = (unsigned char)q8_of(src[i] * inverse);
    }
}

#define HD_FORMAT(id, name, gguf_id, block_elems, block_bytes, st)                                 \
    static void encode_##id(const float *src, void *dst, size_t n) {                               \
        hd_encode_##id(src, NULL, dst, n);                                                         \
    }
#include "quant/formats.def"
#undef HD_FORMAT

static const hd_format_info formats[] = {
#define HD_FORMAT(id, name, gguf_id, block_elems, block_bytes, st)                                 \
    {name, st, gguf_id, block_elems, block_bytes, hd_decode_##id, encode_##id, hd_encode_##id},
#include "quant/formats.def"
#undef HD_FORMAT
};

const hd_format_info *hd_format_get(enum hd_format f) {
    HD_ASSERT((unsigned)f < HD_FORMAT_COUNT);
    return &formats[f];
}

static const char *known_names(char *text, size_t room) {
    text[0] = 0;
    for (int f = 0; f < HD_FORMAT_COUNT; f++)
        if (formats[f].gguf_id >= 0) hd_list_add(text, room, formats[f].name);
    return text;
}

hd_status hd_format_by_name(const char *name, enum hd_format *out) {
    for (int f = 0; f < HD_FORMAT_COUNT; f++)
        if (formats[f].gguf_id >= 0 && strcasecmp(name, formats[f].name) == 0) {
            *out = (enum hd_format)f;
            return HD_OK;
        }
    char known[256];
    return HD_FAIL(UNSUPPORTED, "tensor format %.40s is not supported: known here: %s", name,
                   known_names(known, sizeof known));
}

hd_status hd_format_by_gguf_id(uint32_t id, enum hd_format *out) {
    for (int f = 0; f < HD_FORMAT_COUNT; f++)
        if (formats[f].gguf_id >= 0 && (uint32_t)formats[f].gguf_id == id) {
            *out = (enum hd_format)f;
            return HD_OK;
        }
    char known[256];
    return HD_FAIL(UNSUPPORTED, "tensor type %u is not supported: known here: %s", id,
                   known_names(known, sizeof known));
}

size_t hd_format_bytes(enum hd_format f, size_t n) {
    const hd_format_info *i = hd_format_get(f);
    HD_ASSERT(n % (size_t)i->block_elems == 0);
    return n / (size_t)i->block_elems * (size_t)i->block_bytes;
}
