/* What an engine answers to one request: tokens, and how it ended. */
#ifndef HD_TEST_ANSWER_H
#define HD_TEST_ANSWER_H

#include "hadal.h"

#include <stdbool.h>

enum { TEST_ANSWER_MAX = 32 }; /* tokens that are kept; further ones are not */

typedef struct test_answer {
    int32_t token[TEST_ANSWER_MAX];
    float logprob[TEST_ANSWER_MAX];
    int n;
    enum hd_finish finish;
    hd_status status;
    char error[256];
    bool is_done;
} test_answer;

/* Empties a and makes it the receiver of r's events; it is written to until it is done. */
void test_answer_expect(test_answer *a, hd_request *r);
/* Waits for the end. Any thread. */
void test_answer_await(test_answer *a);

#endif
