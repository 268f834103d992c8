/* Measured values and small numbers in order. */
#ifndef HD_BASE_SORT_H
#define HD_BASE_SORT_H

#include <stdint.h>
#include <stdlib.h>

static inline int hd_compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Ascending; n 0: v may be NULL. No NaN among them. */
static inline void hd_sort_doubles(double *v, size_t n) {
    if (n > 0) qsort(v, n, sizeof *v, hd_compare_doubles);
}

/* Ascending. Takes no memory (heapsort), unlike qsort, whose work may come from malloc. */
static inline void hd_sort_ints(int32_t *v, int n) {
    for (int built = n / 2, end = n; end > 1;) {
        int32_t x;
        if (built > 0) {
            x = v[--built];
        } else {
            x = v[--end];
            v[end] = v[0];
        }
        int at = built;
        for (int child; (child = 2 * at + 1) < end; at = child) {
            if (child + 1 < end && v[child + 1] > v[child]) child++;
            if (v[child] <= x) break;
            v[at] = v[child];
        }
        v[at] = x;
    }
}

#endif
