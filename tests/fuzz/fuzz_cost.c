/* Cost profiles from arbitrary bytes: refused, or a formula whose times are finite and not
 * negative. */
#include "sim/cost.h"

#include <math.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hd_cost c;
    if (hd_cost_parse((hd_str){(const char *)data, size}, "fuzz", &c) != HD_OK) return 0;
    for (int n = 1; n < 1 << 22; n *= 3) {
        hd_cost_load l = {.n_row = n, .n_out = n, .decode_pos = n * 9.0, .expand_tok = n};
        double s = hd_cost_mean_s(&c, &l);
        if (isnan(s) || s < 0) abort();
    }
    for (double u = 0.01; u < 1; u += 0.01)
        if (!(hd_cost_factor(&c, u) >= 0)) abort();
    return 0;
}
