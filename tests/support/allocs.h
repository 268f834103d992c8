/* Counting a thread's allocations: malloc and its family are replaced in the test program (under a
 * sanitizer its own hooks are used). Only programs that call these functions contain them. */
#ifndef HD_TEST_ALLOCS_H
#define HD_TEST_ALLOCS_H

#include <stdbool.h>

/* Whether the calling thread's allocations are counted from now on. */
void test_allocs_watch(bool on);
/* Allocations of all watched threads so far. */
long test_allocs_count(void);

#endif
