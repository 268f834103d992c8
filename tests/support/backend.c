/* Which backend a test is about: from the environment. */
#include "support/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *test_backend(void) { return getenv("HADAL_TEST_BACKEND"); }

static bool is_bfloat16(void) {
    const char *dtype = getenv("HADAL_TEST_DTYPE");
    return test_backend() && dtype && strcmp(dtype, "bfloat16") == 0;
}

static bool is_off(const char *name) {
    const char *is_wanted = getenv(name);
    return is_wanted && strcmp(is_wanted, "0") == 0;
}

bool test_is_deterministic(void) { return !is_off("HADAL_TEST_DETERMINISTIC"); }

double test_bound(double of_float32, double of_bfloat16) {
    return is_bfloat16() ? of_bfloat16 : of_float32;
}

hd_dev_config test_dev_config(void) {
    return (hd_dev_config){.isa = "auto",
                           .compute = is_bfloat16() ? HD_COMPUTE_BFLOAT16 : HD_COMPUTE_FLOAT32,
                           .is_deterministic = test_is_deterministic(),
                           .no_context_fmha = is_off("HADAL_TEST_CONTEXT_FMHA"),
                           .no_multi_block = is_off("HADAL_TEST_MULTI_BLOCK"),
                           .no_early_launch = is_off("HADAL_TEST_PDL")};
}

void test_need_backend(void) {
    const hd_dev_config config = test_dev_config();
    hd_dev d;
    if (!test_backend()) return;
    if (hd_dev_open(test_backend(), &config, &d) == HD_OK) {
        hd_dev_close(&d);
        return;
    }
    printf("skipped: %s\n", hd_error_text());
    exit(77);
}
