/* Which backend a test is about, and how it computes: the environment says so (tests/CMakeLists.txt
 * has an entry for each combination). */
#ifndef HD_TEST_BACKEND_H
#define HD_TEST_BACKEND_H

#include "dev/dev.h"

/* HADAL_TEST_BACKEND; NULL: the test's own choice. */
const char *test_backend(void);
/* HADAL_TEST_DTYPE, else float32, whatever the product's default is. */
hd_dev_config test_dev_config(void);

#endif
