/* IQ2_XXS: 256 elements in sub-blocks of 32, those in groups of eight. A group is a point of the
 * grid (iq2_grid.h) with a sign for each value.
 *
 * f16 d, then for each sub-block four indices of a byte and a word of 4 x 7 sign bits and, on top,
 * four bits of scale: x = d * (scale + 1/2) / 4 * value. The eighth sign of a group is the parity
 * of its other seven, so that an even number is set. */
#include "quant/blocks.h"
#include "quant/iq2_grid.h"

#include <math.h>

enum {
    n_elem = 256,
    n_sub = 8,
    sub_elem = 32,
    n_group = 4,
    n_point = 256,
    n_byte = 66,
    n_part = 8
};

static const uint16_t point_codes[n_point] = {
#define POINT(c) c,
    HD_IQ2_GRID(POINT)
#undef POINT
};

/* [element][point] */
#define DIGIT(c, j) ((c) >> (2 * (j)) & 3)
#define VALUE(c, j) (DIGIT(c, j) == 0 ? 8 : DIGIT(c, j) == 1 ? 25 : 43),
#define VALUE0(c) VALUE(c, 0)
#define VALUE1(c) VALUE(c, 1)
#define VALUE2(c) VALUE(c, 2)
#define VALUE3(c) VALUE(c, 3)
#define VALUE4(c) VALUE(c, 4)
#define VALUE5(c) VALUE(c, 5)
#define VALUE6(c) VALUE(c, 6)
#define VALUE7(c) VALUE(c, 7)
static const float values[8][n_point] = {
    {HD_IQ2_GRID(VALUE0)}, {HD_IQ2_GRID(VALUE1)}, {HD_IQ2_GRID(VALUE2)}, {HD_IQ2_GRID(VALUE3)},
    {HD_IQ2_GRID(VALUE4)}, {HD_IQ2_GRID(VALUE5)}, {HD_IQ2_GRID(VALUE6)}, {HD_IQ2_GRID(VALUE7)},
};

static uint32_t load_word(const unsigned char *p) {
    uint32_t w;
    memcpy(&w, p, sizeof w);
    return w;
}

static uint32_t with_parity(uint32_t seven) {
    return seven | (uint32_t)__builtin_parity(seven) << 7;
}

void hd_decode_IQ2_XXS(const void *src, float *dst, size_t n) {
    static const float of_digit[4] = {8, 25, 43, 0};
    const unsigned char *p = src;
    for (size_t b = 0; b < n / n_elem; b++, p += n_byte) {
        float d = load_f16(p);
        for (int s = 0; s < n_sub; s++) {
            const unsigned char *index = p + 2 + 8 * s;
            uint32_t signs = load_word(index + 4);
            float unit = d * (0.5f + (float)(signs >> 28)) * 0.25f;
            for (int g = 0; g < n_group; g++) {
                uint32_t code = point_codes[index[g]], sign = with_parity(signs >> (7 * g) & 127);
                for (int j = 0; j < 8; j++) {
                    float v = unit * of_digit[code >> (2 * j) & 3];
                    *dst++ = sign >> j & 1 ? -v : v;
                }
            }
        }
    }
}

/* ---- encoding ---- */

/* A sub-block: of each group and point g, 2 sum w |x| g and sum w g^2, so that the error under a
 * scale d is d (d gg - xg) more than sum w x^2. Values that take the wrong sign have |x| < 0. */
struct sub_block {
    float xg[n_group][n_point], gg[n_group][n_point];
    uint32_t sign[n_group]; /* seven bits */
    float largest;          /* |x| */
};

static void load_group(struct sub_block *s, int g, const float *x, const float *weight) {
    float size[8], w[8];
    uint32_t sign = 0;
    int least = 0;
    for (int j = 0; j < 8; j++) {
        w[j] = weight ? weight[j] : 1;
        size[j] = fabsf(x[j]);
        if (x[j] < 0) sign |= 1u << j;
        if (size[j] > s->largest) s->largest = size[j];
        if (w[j] * size[j] < w[least] * size[least]) least = j;
    }
    if (__builtin_parity(sign)) {
        sign ^= 1u << least;
        size[least] = -size[least];
    }
    s->sign[g] = sign & 127;
    float *xg = s->xg[g], *gg = s->gg[g];
    memset(xg, 0, sizeof s->xg[g]);
    memset(gg, 0, sizeof s->gg[g]);
    for (int j = 0; j < 8; j++) {
        const float *v = values[j];
        float wx = 2 * w[j] * size[j];
        for (int i = 0; i < n_point; i++) {
            xg[i] += wx * v[i];
            gg[i] += w[j] * v[i] * v[i];
        }
    }
}

/* The least of a group's errors under a scale. */
static float least_error(const float *xg, const float *gg, float d) {
    float best[n_part]; /* of what d > 0 is a factor of */
    for (int k = 0; k < n_part; k++) best[k] = INFINITY;
    for (int i = 0; i < n_point; i += n_part)
        for (int k = 0; k < n_part; k++) {
            float e = d * gg[i + k] - xg[i + k];
            best[k] = e < best[k] ? e : best[k];
        }
    for (int k = 1; k < n_part; k++) best[0] = best[k] < best[0] ? best[k] : best[0];
    return d * best[0];
}

static float sub_error(const struct sub_block *s, float d) {
    float e = 0;
    for (int g = 0; g < n_group; g++) e += least_error(s->xg[g], s->gg[g], d);
    return e;
}

static float least_of_part(const float *xg, const float *gg, float d) {
    float e[n_part];
    for (int k = 0; k < n_part; k++) e[k] = d * gg[k] - xg[k];
    for (int k = 0; k < n_part / 2; k++) e[k] = e[k] < e[k + 4] ? e[k] : e[k + 4];
    float a = e[0] < e[1] ? e[0] : e[1], b = e[2] < e[3] ? e[2] : e[3];
    return a < b ? a : b;
}

/* The points of least error under a scale; adds up what a better scale would follow from. */
static void choose_points(const struct sub_block *s, float d, unsigned char *index, float *xg,
                          float *gg) {
    for (int g = 0; g < n_group; g++) {
        float best = INFINITY;
        int first = 0, at = 0;
        for (int i = 0; i < n_point; i += n_part) { /* eight at a time, then among them */
            float e = least_of_part(s->xg[g] + i, s->gg[g] + i, d);
            if (e < best) best = e, first = i;
        }
        best = INFINITY;
        for (int i = first; i < first + n_part; i++) {
            float e = d * s->gg[g][i] - s->xg[g][i];
            if (e < best) best = e, at = i;
        }
        index[g] = (unsigned char)at;
        *xg += s->xg[g][at] / 2;
        *gg += s->gg[g][at];
    }
}

/* The scale that fits a sub-block best: some around the one that makes its largest value 43, those
 * that make it 25 and 8, which even values want; the best one then refined once. */
static float fit_scale(const struct sub_block *s) {
    static const float shares[] = {0.55f, 0.61f, 0.67f, 0.73f, 0.79f, 0.85f,      0.91f,
                                   0.97f, 1.03f, 1.09f, 1.15f, 1.21f, 43.0f / 25, 43.0f / 8};
    float best = INFINITY, d = 0;
    for (size_t t = 0; t < HD_COUNT_OF(shares); t++) {
        float trial = s->largest / 43 * shares[t], e = sub_error(s, trial);
        if (e < best) best = e, d = trial;
    }
    unsigned char index[n_group];
    float xg = 0, gg = 0;
    choose_points(s, d, index, &xg, &gg);
    return xg > 0 && gg > 0 ? xg / gg : d;
}

static float scale_of(int code) { return (0.5f + (float)code) * 0.25f; }

/* Codes of scales near the wanted ones, the points under them, and all errors' sum. */
static float choose_scales(const struct sub_block *s, const float *wanted, float d,
                           unsigned char *code, float *better) {
    float sum = 0, xg = 0, gg = 0;
    for (int b = 0; b < n_sub; b++) {
        int near = d != 0 ? clamp_round(wanted[b] / d * 4 - 0.5f, 0, 15) : 0;
        float best = INFINITY, of_xg = 0, of_gg = 0;
        code[b] = (unsigned char)near;
        for (int c = near - 1; c <= near + 1; c++) {
            if (c < 0 || c > 15) continue;
            float e = sub_error(&s[b], d * scale_of(c));
            if (e < best) best = e, code[b] = (unsigned char)c;
        }
        unsigned char index[n_group];
        choose_points(&s[b], d * scale_of(code[b]), index, &of_xg, &of_gg);
        sum += best;
        xg += scale_of(code[b]) * of_xg;
        gg += scale_of(code[b]) * scale_of(code[b]) * of_gg;
    }
    *better = xg > 0 && gg > 0 ? xg / gg : d;
    return sum;
}

static float as_f16(float x) { return hd_f16_to_f32(hd_f32_to_f16(x)); }

static void encode_block(const float *x, const float *weight, unsigned char *p) {
    struct sub_block s[n_sub];
    float wanted[n_sub], largest = 0, better;
    for (int b = 0; b < n_sub; b++) {
        s[b].largest = 0;
        for (int g = 0; g < n_group; g++) {
            size_t at = (size_t)(sub_elem * b + 8 * g);
            load_group(&s[b], g, x + at, weight ? weight + at : NULL);
        }
        wanted[b] = fit_scale(&s[b]);
        if (wanted[b] > largest) largest = wanted[b];
    }
    unsigned char code[n_sub], other[n_sub];
    float d = as_f16(largest / scale_of(15));
    float error = choose_scales(s, wanted, d, code, &better);
    for (int round = 0; round < 2; round++) {
        float trial = as_f16(better), e = choose_scales(s, wanted, trial, other, &better);
        if (!(e < error)) break;
        d = trial, error = e;
        memcpy(code, other, sizeof code);
    }
    store_f16(p, d);
    for (int b = 0; b < n_sub; b++) {
        unsigned char *at = p + 2 + 8 * b;
        uint32_t word = (uint32_t)code[b] << 28;
        float xg = 0, gg = 0;
        choose_points(&s[b], d * scale_of(code[b]), at, &xg, &gg);
        for (int g = 0; g < n_group; g++) word |= s[b].sign[g] << (7 * g);
        memcpy(at + 4, &word, sizeof word);
    }
}

void hd_encode_IQ2_XXS(const float *src, const float *weight, void *dst, size_t n) {
    unsigned char *p = dst;
    for (size_t b = 0; b < n / n_elem; b++, p += n_byte, src += n_elem)
        encode_block(src, weight ? weight + b * n_elem : NULL, p);
}
