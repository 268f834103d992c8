/* What the processor offers this process. */
#include "base/processor.h"

#include <sched.h>
#include <stdio.h>

/* Cores of a control group's quota, rounded up; 0 when there is none. */
static int quota_cores(void) {
    long quota = -1, period = 0;
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "r");
    if (f != NULL) {
        if (fscanf(f, "%ld %ld", &quota, &period) != 2) quota = -1; /* "max": no quota */
        fclose(f);
    } else {
        f = fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "r");
        if (f == NULL) return 0;
        if (fscanf(f, "%ld", &quota) != 1) quota = -1;
        fclose(f);
        f = fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "r");
        if (f == NULL) return 0;
        if (fscanf(f, "%ld", &period) != 1) period = 0;
        fclose(f);
    }
    if (quota <= 0 || period <= 0) return 0;
    return (int)((quota + period - 1) / period);
}

int hd_cpu_available(void) {
    cpu_set_t set;
    int n = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0) n = CPU_COUNT(&set);
    int quota = quota_cores();
    if (quota > 0 && quota < n) n = quota;
    return n > 0 ? n : 1;
}

bool hd_cpu_likes_halves(void) {
#if defined(__x86_64__)
    return __builtin_cpu_is("amd") && __builtin_cpu_supports("avx512f");
#else
    return false;
#endif
}
