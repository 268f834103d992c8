/* The oracle as a device with memory of its own: what alloc and upload return cannot be followed,
 * only handed to its ops, put and get. A model that runs on it is blind to where a device's memory
 * is. One at a time. */
#ifndef HD_TEST_FAR_DEV_H
#define HD_TEST_FAR_DEV_H

#include "dev/dev.h"

hd_dev test_open_far(void);
/* From now on upload, get and receive fail as on a device that broke. */
void test_break_far(void);

#endif
