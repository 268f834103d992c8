/* Rotary position tables, computed in float32 step by step as the reference implementation does,
 * because at position p an error in an inverse frequency counts p times. */
#include "model/arch.h"

#include <math.h>

/* Dimension whose wavelength turns n_rotation times within the original context. */
static double correction_dim(const hd_hparams *hp, double n_rotation) {
    double d = hp->n_rope, orig = hp->yarn_orig_ctx;
    return d * log(orig / (n_rotation * 2 * M_PI)) / (2 * log((double)hp->rope_base));
}

static void apply_yarn(const hd_hparams *hp, float *inv_freq, const float *freq) {
    float low = (float)fmax(floor(correction_dim(hp, (double)hp->yarn_beta_fast)), 0);
    float high = (float)fmin(ceil(correction_dim(hp, (double)hp->yarn_beta_slow)), hp->n_rope - 1);
    if (low == high) high += 0.001f;
    for (int i = 0; i < hp->n_rope / 2; i++) {
        float ramp = fminf(fmaxf(((float)i - low) / (high - low), 0.0f), 1.0f);
        float interpolated = 1.0f / (hp->yarn_factor * freq[i]);
        float keep = 1.0f - ramp;
        inv_freq[i] = interpolated * (1.0f - keep) + inv_freq[i] * keep;
    }
}

void hd_rope_inv_freq(const hd_hparams *hp, float *inv_freq) {
    float freq[HD_ROPE_PAIR_MAX];
    HD_ASSERT(hp->n_rope / 2 <= HD_ROPE_PAIR_MAX);
    for (int i = 0; i < hp->n_rope / 2; i++) {
        float exponent = (float)(2 * i) / (float)hp->n_rope;
        freq[i] = (float)pow((double)hp->rope_base, (double)exponent);
        inv_freq[i] = 1.0f / freq[i];
    }
    if (hp->is_yarn) apply_yarn(hp, inv_freq, freq);
    for (int i = 0; i < hp->n_rope / 2; i++) {
        if (hp->rope_linear > 0) inv_freq[i] /= hp->rope_linear;
        if (hp->has_rope_divisor) inv_freq[i] /= hp->rope_divisor[i];
    }
}

double hd_rope_mscale(double factor, double m) {
    return factor <= 1 ? 1 : 0.1 * m * log(factor) + 1;
}

void hd_rope_table(const hd_hparams *hp, int n_pos, float *cs) {
    float inv_freq[HD_ROPE_PAIR_MAX];
    hd_rope_inv_freq(hp, inv_freq);
    float scale = 1;
    if (hp->is_yarn)
        scale = (float)(hd_rope_mscale((double)hp->yarn_factor, (double)hp->yarn_mscale) /
                        hd_rope_mscale((double)hp->yarn_factor, (double)hp->yarn_mscale_all));
    for (int pos = 0; pos < n_pos; pos++)
        for (int i = 0; i < hp->n_rope / 2; i++) {
            double angle = (double)((float)pos * inv_freq[i]);
            *cs++ = (float)cos(angle) * scale;
            *cs++ = (float)sin(angle) * scale;
        }
}

float hd_rope_softmax_scale(const hd_hparams *hp) {
    double scale = 1 / sqrt((double)(hp->n_nope + hp->n_rope));
    if (hp->is_yarn && hd_hparams_is_mla(hp)) {
        double m = hd_rope_mscale((double)hp->yarn_factor, (double)hp->yarn_mscale_all);
        scale *= m * m;
    }
    return (float)scale;
}
