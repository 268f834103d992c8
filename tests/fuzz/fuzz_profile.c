/* Any bytes as a latency profile: refused with a line, or one whose every prediction is a number.
 */
#include "sched/profile.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hd_profile *p;
    uint64_t key;
    if (hd_profile_parse((hd_str){(const char *)data, size}, &key, &p) != HD_OK) {
        HD_ASSERT(!p && hd_error_text()[0] && !strchr(hd_error_text(), '\n'));
        return 0;
    }
    hd_profile_check(p);
    for (int n = 1; n <= 4096; n *= 8) {
        hd_step_load l = {.n_decode = n, .n_prompt = 3 * n, .n_read = 100 * n};
        HD_ASSERT(hd_profile_mean_ns(p, &l) >= 0);
        HD_ASSERT(hd_profile_p95_ns(p, &l) >= hd_profile_mean_ns(p, &l));
        hd_profile_learn(p, &l, 1000 * n);
    }
    hd_profile_check(p);
    hd_profile_free(p);
    return 0;
}
