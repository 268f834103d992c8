/* Finding and reading CUDA's containers. All numbers are little-endian.
 *
 * Container: u32 magic, u16 version, u16 header bytes, u64 bytes of all entries; then the entries.
 * Entry: u16 kind, u16 -, u32 header bytes, u64 payload bytes, ..., at 28 u32 capability, at 40 u64
 * flags; then the payload. */
#include "file/fatbin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAGIC = (int)0xBA55ED50, VERSION = 1, CONTAINER_BYTES = 16, ENTRY_BYTES = 48 };
enum { KIND_PTX = 1, KIND_SASS = 2 };
enum { FLAG_ARCH = 1 << 20, FLAG_FAMILY = 1 << 21 };

static uint64_t number(const unsigned char *p, int n_byte) {
    uint64_t v = 0;
    for (int i = n_byte - 1; i >= 0; i--) v = v << 8 | p[i];
    return v;
}

static enum hd_fatbin_suffix suffix_of(uint64_t flags) {
    return flags & FLAG_FAMILY ? HD_FATBIN_FAMILY
           : flags & FLAG_ARCH ? HD_FATBIN_ARCH
                               : HD_FATBIN_PLAIN;
}

static hd_status add(hd_fatbin *f, const hd_fatbin_target *t) {
    for (int i = 0; i < f->n_target; i++) {
        hd_fatbin_target *old = &f->target[i];
        if (old->is_ptx != t->is_ptx || old->capability != t->capability ||
            old->suffix != t->suffix)
            continue;
        old->n_entry++;
        old->n_byte += t->n_byte;
        return HD_OK;
    }
    if (f->n_target == HD_FATBIN_TARGETS)
        return HD_FAIL(TOO_LARGE, "CUDA code for more than %d targets", HD_FATBIN_TARGETS);
    f->target[f->n_target++] = *t;
    return HD_OK;
}

/* The entries in p[0..n_byte), which are at `at` of the file. */
static hd_status read_entries(hd_fatbin *f, const unsigned char *p, uint64_t n_byte, size_t at) {
    for (uint64_t i = 0; i < n_byte;) {
        uint64_t left = n_byte - i;
        uint64_t header = left < ENTRY_BYTES ? 0 : number(p + i + 4, 4);
        uint64_t payload = left < ENTRY_BYTES ? 0 : number(p + i + 8, 8);
        if (header < ENTRY_BYTES || header > left || payload > left - header)
            return HD_FAIL(CORRUPT,
                           "CUDA code at byte %zu: an entry of %llu + %llu bytes where %llu are "
                           "left of its container",
                           at + (size_t)i, (unsigned long long)header, (unsigned long long)payload,
                           (unsigned long long)left);
        hd_fatbin_target t = {.capability = (int)number(p + i + 28, 2),
                              .suffix = suffix_of(number(p + i + 40, 8)),
                              .n_entry = 1,
                              .n_byte = payload};
        uint64_t kind = number(p + i, 2);
        t.is_ptx = kind == KIND_PTX;
        if (kind == KIND_PTX || kind == KIND_SASS)
            HD_TRY(add(f, &t));
        else
            f->n_other++;
        i += header + payload;
    }
    return HD_OK;
}

/* SASS before PTX, then by capability and suffix. */
static int by_target(const void *a, const void *b) {
    const hd_fatbin_target *x = a, *y = b;
    if (x->is_ptx != y->is_ptx) return x->is_ptx - y->is_ptx;
    if (x->capability != y->capability) return x->capability - y->capability;
    return (int)x->suffix - (int)y->suffix;
}

hd_status hd_fatbin_read(const void *data, size_t n_byte, hd_fatbin *out) {
    const unsigned char *p = data;
    *out = (hd_fatbin){0};
    const unsigned char magic[4] = {MAGIC & 0xff, MAGIC >> 8 & 0xff, MAGIC >> 16 & 0xff,
                                    (unsigned char)(MAGIC >> 24 & 0xff)};
    for (size_t i = 0; n_byte - i >= CONTAINER_BYTES;) {
        const unsigned char *hit = memchr(p + i, magic[0], n_byte - i - CONTAINER_BYTES + 1);
        if (!hit) break;
        i = (size_t)(hit - p);
        uint64_t header = number(hit + 6, 2), body = number(hit + 8, 8);
        bool is_container = memcmp(hit, magic, sizeof magic) == 0 &&
                            number(hit + 4, 2) == VERSION && header >= CONTAINER_BYTES;
        if (!is_container) {
            i++;
            continue;
        }
        uint64_t left = n_byte - i;
        if (header > left || body > left - header)
            return HD_FAIL(CORRUPT,
                           "CUDA code at byte %zu: %llu bytes expected, the file has %llu more", i,
                           (unsigned long long)body, (unsigned long long)(left - CONTAINER_BYTES));
        HD_TRY(read_entries(out, hit + header, body, i + (size_t)header));
        i += (size_t)(header + body);
    }
    if (out->n_target + out->n_other == 0) return HD_FAIL(NOT_FOUND, "no CUDA code inside");
    qsort(out->target, (size_t)out->n_target, sizeof out->target[0], by_target);
    return HD_OK;
}

bool hd_fatbin_loads(const hd_fatbin_target *t, int capability) {
    bool is_family = t->capability / 10 == capability / 10 && t->capability <= capability;
    switch (t->suffix) {
    case HD_FATBIN_ARCH: return t->capability == capability;
    case HD_FATBIN_FAMILY: return is_family;
    case HD_FATBIN_PLAIN: break;
    }
    return t->is_ptx ? t->capability <= capability : is_family;
}

const hd_fatbin_target *hd_fatbin_choose(const hd_fatbin *f, int capability) {
    const hd_fatbin_target *best = NULL;
    for (int i = 0; i < f->n_target; i++) { /* ascending, SASS first */
        const hd_fatbin_target *t = &f->target[i];
        if (hd_fatbin_loads(t, capability) && (!best || best->is_ptx == t->is_ptx)) best = t;
    }
    return best;
}

void hd_fatbin_name(const hd_fatbin_target *t, char name[32]) {
    static const char *const suffix[] = {"", "a", "f"};
    snprintf(name, 32, "%s_%d%s", t->is_ptx ? "compute" : "sm", t->capability, suffix[t->suffix]);
}
