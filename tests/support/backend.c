/* Which backend a test is about: from the environment. */
#include "support/backend.h"

#include "support/check.h"

#include <stdlib.h>

const char *test_backend(void) { return getenv("HADAL_TEST_BACKEND"); }

hd_dev_config test_dev_config(void) {
    const char *dtype = getenv("HADAL_TEST_DTYPE");
    hd_dev_config config = {.isa = "auto", .is_deterministic = true};
    assert_ok(hd_compute_of(dtype ? dtype : "float32", &config.compute));
    return config;
}
