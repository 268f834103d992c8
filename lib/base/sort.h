/* Measured values in order. */
#ifndef HD_BASE_SORT_H
#define HD_BASE_SORT_H

#include <stdlib.h>

static inline int hd_compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Ascending; n 0: v may be NULL. No NaN among them. */
static inline void hd_sort_doubles(double *v, size_t n) {
    if (n > 0) qsort(v, n, sizeof *v, hd_compare_doubles);
}

#endif
