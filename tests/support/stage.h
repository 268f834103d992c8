/* A device that prepares weights, and may have memory of its own: every op prepares its weights and
 * copies its arguments there, runs, and copies its results back, so that tests of ops need not know
 * where memory is. Arrays are as exact in size there as here. One at a time; d is closed with the
 * result. */
#ifndef HD_TEST_STAGE_H
#define HD_TEST_STAGE_H

#include "dev/dev.h"

hd_dev test_stage(hd_dev d);

#endif
