/* Which backend a test is about, and how it computes: the environment says so (tests/CMakeLists.txt
 * has an entry for each combination). */
#ifndef HD_TEST_BACKEND_H
#define HD_TEST_BACKEND_H

#include "dev/dev.h"

/* HADAL_TEST_BACKEND; NULL: the test's own choice. */
const char *test_backend(void);
/* HADAL_TEST_DTYPE, else float32, whatever the product's default is. Deterministic unless
 * HADAL_TEST_DETERMINISTIC is 0; of HADAL_TEST_CONTEXT_FMHA, HADAL_TEST_MULTI_BLOCK and
 * HADAL_TEST_PDL 0 is off. */
hd_dev_config test_dev_config(void);
/* Leaves the program, so that the test counts as skipped, when the backend under test cannot be
 * opened, and says why. */
void test_need_backend(void);
/* Whether a row's bits may not depend on the rows beside it. */
bool test_is_deterministic(void);
/* A bound where products round to BF16 (and accuracy is theirs), else one of float32. */
double test_bound(double of_float32, double of_bfloat16);

#endif
