/* CUDA code inside of a file: which GPUs it was built for, and on which it will load.
 *
 * nvcc puts device code into "fat binaries": containers inside the host's object or program, each
 * with entries of machine code (SASS, a cubin) for one compute capability or of PTX text that the
 * driver compiles when the program starts. A whole file is searched for them, so that programs,
 * plugins, static libraries and plain .fatbin files are read alike, on any host.
 *
 * The container's layout is not published by its maker; what is read of it (magic number, sizes,
 * kind, capability, two flags) was found by building known files with CUDA 13.0 and is checked
 * against such files in the tests. Rules of loading: CUDA C++ Programming Guide, "Binary
 * Compatibility", "PTX Compatibility" and "Feature Availability" (suffixes a and f).
 *
 * Thread: any. */
#ifndef HD_FILE_FATBIN_H
#define HD_FILE_FATBIN_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* PLAIN: "90"; ARCH: "90a", that very capability alone; FAMILY: "100f". */
enum hd_fatbin_suffix { HD_FATBIN_PLAIN, HD_FATBIN_ARCH, HD_FATBIN_FAMILY };

/* What one kind of code a file holds is for. */
typedef struct hd_fatbin_target {
    bool is_ptx;
    int capability; /* 10*major + minor: 90 */
    enum hd_fatbin_suffix suffix;
    int n_entry;     /* entries of it */
    uint64_t n_byte; /* all of them */
} hd_fatbin_target;

enum { HD_FATBIN_TARGETS = 64 };
typedef struct hd_fatbin {
    hd_fatbin_target target[HD_FATBIN_TARGETS]; /* SASS first, by capability and suffix */
    int n_target;
    int n_other; /* entries that are neither SASS nor PTX */
} hd_fatbin;

/* Reads the containers in data[0..n_byte). HD_E_NOT_FOUND: there is none. HD_E_CORRUPT names the
 * offset of one that is cut or contradicts itself. */
HD_MUST_CHECK hd_status hd_fatbin_read(const void *data, size_t n_byte, hd_fatbin *out);

/* Whether code for t runs on a GPU of this compute capability. */
bool hd_fatbin_loads(const hd_fatbin_target *t, int capability);
/* The target that a GPU of this capability takes: SASS before PTX, then the highest; NULL: none. */
const hd_fatbin_target *hd_fatbin_choose(const hd_fatbin *f, int capability);

/* "sm_90a", "compute_80"; buffer of 32. */
void hd_fatbin_name(const hd_fatbin_target *t, char name[32]);

#endif
