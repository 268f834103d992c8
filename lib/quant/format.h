/* Tensor formats: names, block geometry, and the reference encoding and decoding of each.
 *
 * Layouts are those of GGUF (Q8_0: f16 scale d, then 32 int8 q; x = d*q). Adding a format is one
 * row in formats.def and one decode/encode pair in this folder. Thread: everything here is pure. */
#ifndef HD_QUANT_FORMAT_H
#define HD_QUANT_FORMAT_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum hd_format {
#define HD_FORMAT(id, name, gguf_id, block_elems, block_bytes, st) HD_##id,
#include "quant/formats.def"
#undef HD_FORMAT
    HD_FORMAT_COUNT
};

typedef struct hd_format_info {
    const char *name;
    const char *safetensors_name; /* "" when safetensors has no such dtype */
    int gguf_id;                  /* negative: GGUF has no such type */
    int block_elems, block_bytes;
    /* n is a multiple of block_elems. Sources and targets may be unaligned. */
    void (*decode)(const void *src, float *dst, size_t n);
    void (*encode)(const float *src, void *dst, size_t n);
    /* The same, minimising the error weighted by the importance of each element (NULL: none). */
    void (*encode_weighted)(const float *src, const float *weight, void *dst, size_t n);
} hd_format_info;

/* Never NULL for a valid format; asserts otherwise. */
const hd_format_info *hd_format_get(enum hd_format f);
static inline bool hd_format_is_gguf(enum hd_format f) { return hd_format_get(f)->gguf_id >= 0; }
/* Of GGUF's formats. HD_E_UNSUPPORTED with the known names when there is none of that name (any
 * case) or id. */
HD_MUST_CHECK hd_status hd_format_by_name(const char *name, enum hd_format *out);
HD_MUST_CHECK hd_status hd_format_by_gguf_id(uint32_t id, enum hd_format *out);

/* Bytes of n elements; asserts that n is a multiple of the block. */
size_t hd_format_bytes(enum hd_format f, size_t n);

float hd_f16_to_f32(uint16_t h);
uint16_t hd_f32_to_f16(float f); /* round to nearest even */
float hd_bf16_to_f32(uint16_t h);
uint16_t hd_f32_to_bf16(float f); /* round to nearest even; NaN stays NaN */
float hd_e4m3_to_f32(uint8_t b);  /* 0x7F and 0xFF are NaN */
uint8_t hd_f32_to_e4m3(float f);  /* nearest, ties to even; beyond 448 the largest; NaN stays NaN */

#endif
