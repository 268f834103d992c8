/* Which instruction-set level runs: the best that the processor and the system offer, or the one
 * that was asked for. */
#include "cpu/cpu.h"

#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* What a level lacks here; NULL: nothing. */
typedef const char *(*lack_fn)(void);

static const char *lack_nothing(void) { return NULL; }

#if defined(__x86_64__)
static const char *lack_avx2(void) {
    unsigned eax, ebx, ecx = 0, edx; /* clang 14 does not know "f16c" */
    bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
               __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
    return has ? NULL : "the processor has no AVX2, FMA and F16C";
}

static const char *lack_avxvnni(void) {
    unsigned eax = 0, ebx, ecx, edx;
    if (lack_avx2() != NULL) return lack_avx2();
    bool has = __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax >> 4 & 1) != 0;
    return has ? NULL : "the processor has no AVX-VNNI";
}

static const char *lack_avx512(void) {
    if (lack_avx2() != NULL) return lack_avx2();
    bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512vnni");
    return has ? NULL : "the processor has no AVX-512 F, BW, DQ, VL and VNNI";
}

/* Linux saves tiles of threads only once their process has asked for that; threads that it starts
 * later have it too (Documentation/arch/x86/xstate.rst). Asking again changes nothing. */
static const char *lack_amx(void) {
    enum { request_permission = 0x1023, tile_data = 18, tile_bits = 3 << 17 };
    unsigned eax, ebx, ecx, edx = 0, saved, upper;
    if (lack_avx512() != NULL) return lack_avx512();
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx >> 24 & 3) != 3)
        return "the processor has no AMX-TILE and AMX-INT8";
    __asm__("xgetbv" : "=a"(saved), "=d"(upper) : "c"(0));
    if ((saved & tile_bits) != tile_bits) return "the system does not save AMX tiles";
    if (syscall(SYS_arch_prctl, request_permission, tile_data) != 0)
        return errno == ENOSYS || errno == EINVAL ? "the system does not know AMX tiles"
                                                  : "the system does not let this process use AMX";
    return NULL;
}
#endif

hd_status hd_cpu_choose_level(const char *isa, const hd_cpu_kernels **out) {
    static const struct {
        const hd_cpu_kernels *kernels;
        lack_fn lack;
    } level[] = {
#if defined(__x86_64__)
        {&hd_cpu_amx, lack_amx},
        {&hd_cpu_avx512, lack_avx512},
        {&hd_cpu_avxvnni, lack_avxvnni},
        {&hd_cpu_avx2, lack_avx2},
#endif
        {&hd_cpu_scalar, lack_nothing},
    };
    bool is_auto = isa == NULL || strcmp(isa, "auto") == 0;
    for (size_t i = 0; i < HD_COUNT_OF(level); i++) {
        if (!is_auto && strcmp(isa, level[i].kernels->name) != 0) continue;
        const char *lack = level[i].lack();
        if (lack != NULL && is_auto) continue;
        if (lack != NULL) return HD_FAIL(UNSUPPORTED, "cpu instruction set %s: %s", isa, lack);
        *out = level[i].kernels;
        return HD_OK;
    }
    return HD_FAIL(UNSUPPORTED,
                   "cpu instruction set: expected auto, amx, avx512, avxvnni, avx2 or scalar, "
                   "found %s",
                   isa);
}
