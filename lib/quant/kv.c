/* Rows of a KV cache: names of the types, reference encoding and decoding. */
#include "quant/kv.h"

#include "base/buf.h"

#include <math.h>
#include <string.h>
#include <strings.h>

static const struct {
    const char *name, *options;
} types[] = {
#define HD_KV_TYPE(id, name, options) {name, options},
#include "quant/kv_types.def"
#undef HD_KV_TYPE
};

const char *hd_kv_type_name(enum hd_kv_type t) {
    HD_ASSERT((unsigned)t < HD_KV_TYPE_COUNT);
    return types[t].name;
}

static bool is_one_of(const char *name, const char *options) {
    size_t n = strlen(name);
    for (const char *p = options; n > 0; p++) {
        size_t len = strcspn(p, "|");
        if (len == n && strncasecmp(p, name, n) == 0) return true;
        p += len;
        if (*p == 0) return false;
    }
    return false;
}

hd_status hd_kv_type_by_name(const char *name, enum hd_kv_type *out) {
    for (int t = 0; t < HD_KV_TYPE_COUNT; t++)
        if (is_one_of(name, types[t].options)) {
            *out = (enum hd_kv_type)t;
            return HD_OK;
        }
    char known[256] = "";
    for (int t = 0; t < HD_KV_TYPE_COUNT; t++) hd_list_add(known, sizeof known, types[t].options);
    return HD_FAIL(INVALID, "found %.40s, expected one of %s", name, known);
}

static bool can_hold(const float *x, int n) {
    for (int i = 0; i < n; i++)
        if (!(fabsf(x[i]) < HD_KV_LIMIT)) return false;
    return true;
}

static void encode_group(const hd_kv_layout *l, const float *src, uint8_t *code, void *scale_out) {
    float amax = 0;
    for (int i = 0; i < l->group; i++) amax = fmaxf(amax, fabsf(src[i]));
    float scale = hd_kv_scale(l->type, amax), inverse = 1 / scale;
    uint16_t h = hd_f32_to_bf16(scale);
    memcpy(scale_out, &h, sizeof h);
    for (int i = 0; i < l->group; i++)
        code[i] = l->type == HD_KV_FP8 ? hd_f32_to_e4m3(src[i] * inverse)
                                       : (uint8_t)(int8_t)rintf(src[i] * inverse);
}

static int encode_codes(const hd_kv_layout *l, const float *src, uint8_t *row) {
    int n_lost = 0;
    const uint16_t nan = hd_f32_to_bf16(NAN);
    for (int i = 0; i < l->n_code; i += l->group) {
        uint8_t *scale = row + l->scale_at + 2 * (i / l->group);
        if (can_hold(src + i, l->group)) {
            encode_group(l, src + i, row + i, scale);
        } else {
            memset(row + i, 0, (size_t)l->group);
            memcpy(scale, &nan, sizeof nan);
            n_lost += l->group;
        }
    }
    return n_lost;
}

int hd_kv_encode(const hd_kv_layout *l, const float *src, void *row) {
    uint8_t *to = row;
    int n_plain = l->n - l->n_code, n_lost = 0;
    if (l->n_code > 0) {
        memset(to + l->n_code, 0, (size_t)(l->row_bytes - l->n_code));
        n_lost = encode_codes(l, src, to);
    }
    hd_format_get(l->plain)->encode(src + l->n_code, to + l->plain_at, (size_t)n_plain);
    for (int i = l->n_code; i < l->n; i++) {
        uint32_t bits;
        memcpy(&bits, &src[i], sizeof bits);
        n_lost += (bits & 0x7FFFFFFF) >= hd_kv_limit_bits(l->plain);
    }
    return n_lost;
}

static float decode_code(const hd_kv_layout *l, const uint8_t *row, int i) {
    uint16_t h;
    memcpy(&h, row + l->scale_at + 2 * (i / l->group), sizeof h);
    float code = l->type == HD_KV_FP8 ? hd_e4m3_to_f32(row[i]) : (float)(int8_t)row[i];
    return hd_bf16_to_f32(h) * code;
}

void hd_kv_decode(const hd_kv_layout *l, const void *row, int first, int n, float *dst) {
    const uint8_t *from = row;
    for (; n > 0 && first < l->n_code; n--, first++) *dst++ = decode_code(l, from, first);
    if (n == 0) return;
    size_t skip = hd_format_bytes(l->plain, (size_t)(first - l->n_code));
    hd_format_get(l->plain)->decode(from + l->plain_at + skip, dst, (size_t)n);
}
