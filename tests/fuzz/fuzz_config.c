/* Any bytes as config.json: refused, or hyper-parameters that nothing downstream can trip over. */
#include "model/hparams_source.h"

#include <math.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hd_hparams h = {.bos = -1, .eos = -1, .pad = -1};
    if (hd_hparams_parse_config((hd_str){(const char *)data, size}, "input", &h) != HD_OK) {
        HD_ASSERT(hd_error_text()[0] && !strchr(hd_error_text(), '\n'));
        return 0;
    }
    HD_ASSERT(h.n_layer >= 1 && h.n_ctx >= 1 && h.d_model >= 1 && h.n_vocab >= 1 && h.n_head >= 1);
    HD_ASSERT(h.n_v >= 1 && h.n_rope >= 2 && h.n_rope % 2 == 0);
    HD_ASSERT(h.n_head_kv >= 1 && h.n_head % h.n_head_kv == 0);
    if (hd_hparams_is_mla(&h))
        HD_ASSERT(h.n_c >= 1 && h.n_nope >= 1);
    else
        HD_ASSERT(h.n_nope == 0 && h.n_v == h.n_rope && h.q_lora == 0);
    HD_ASSERT(h.rope_linear == 0 || (isfinite(h.rope_linear) && h.rope_linear > 0));
    for (int i = 0; h.has_rope_divisor && i < h.n_rope / 2; i++)
        HD_ASSERT(h.rope_divisor[i] >= 0.99f && h.rope_divisor[i] <= 1e6f);
    HD_ASSERT((int64_t)h.n_head * (h.n_nope + h.n_rope + h.n_v) < INT32_MAX);
    HD_ASSERT((int64_t)h.d_expert * h.n_expert_shared < INT32_MAX);
    HD_ASSERT(h.n_dense_layer >= 0 && h.n_dense_layer <= h.n_layer);
    HD_ASSERT(h.n_dense_layer == 0 || h.d_ff >= 1);
    if (h.n_dense_layer < h.n_layer) {
        HD_ASSERT(h.n_expert >= 1 && h.n_group >= 1 && h.n_expert % h.n_group == 0);
        HD_ASSERT(h.n_group_used >= 1 && h.n_group_used <= h.n_group && h.n_expert_used >= 1);
        HD_ASSERT(h.n_expert_used <= h.n_expert / h.n_group * h.n_group_used && h.d_expert >= 1);
    }
    HD_ASSERT(isfinite(h.rms_eps) && h.rms_eps > 0 && isfinite(h.expert_scale));
    HD_ASSERT(isfinite(h.rope_base) && h.rope_base > 1);
    if (h.is_yarn) {
        HD_ASSERT(isfinite(h.yarn_factor) && h.yarn_factor >= 1 && h.yarn_orig_ctx >= 1);
        HD_ASSERT(h.yarn_beta_fast > 0 && h.yarn_beta_slow > 0);
        HD_ASSERT(isfinite(h.yarn_mscale) && isfinite(h.yarn_mscale_all));
    }
    HD_ASSERT(h.bos >= -1 && h.bos < h.n_vocab && h.eos >= -1 && h.eos < h.n_vocab);
    HD_ASSERT(hd_hparams_kv_bytes(&h, HD_KV_F32) > 0);
    return 0;
}
