/* Microseconds: 1 a step, 3 more and a tenth of one a row with a prompt. */
#include "support/slow_prompts.h"

hd_profile *test_slow_prompts(int n_seq, int n_row) {
    hd_profile *p = hd_profile_new();
    for (int n_decode = 0; n_decode <= n_seq; n_decode++)
        for (int n_prompt = 0; n_prompt <= n_row; n_prompt += 2) {
            hd_step_load l = {.n_decode = n_decode, .n_prompt = n_prompt, .n_read = 40};
            if (n_decode + n_prompt > 0)
                hd_profile_learn(p, &l, 1000 + (n_prompt > 0) * 3000 + n_prompt * 100);
        }
    return p;
}
