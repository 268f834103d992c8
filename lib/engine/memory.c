/* Free host memory, from /proc/meminfo and the control groups. */
#include "engine/memory.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { path_max = 4096 };

/* The number after `key` at the start of a line (key "" : the file's first number). */
static bool read_number(const char *path, const char *key, uint64_t *out) {
    FILE *f = fopen(path, "re");
    if (!f) return false;
    char line[512];
    bool found = false;
    size_t n_key = strlen(key);
    while (!found && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, n_key) != 0) continue;
        char *end;
        unsigned long long v = strtoull(line + n_key, &end, 10);
        found = end != line + n_key;
        if (found) *out = v;
    }
    fclose(f);
    return found;
}

static bool number_in(const char *dir, const char *file, const char *key, uint64_t *out) {
    char path[path_max];
    int n = snprintf(path, sizeof path, "%s/%s", dir, file);
    return n > 0 && (size_t)n < sizeof path && read_number(path, key, out);
}

/* What one control group leaves; pages of files that were not used lately can be taken back. */
static uint64_t group_free(const char *dir, const char *max, const char *now, const char *idle) {
    uint64_t limit, used, idle_bytes = 0;
    if (!number_in(dir, max, "", &limit) || !number_in(dir, now, "", &used)) return UINT64_MAX;
    number_in(dir, "memory.stat", idle, &idle_bytes);
    used = used > idle_bytes ? used - idle_bytes : 0;
    return limit > used ? limit - used : 0;
}

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* The group named in /proc/self/cgroup and every one above it. In a container the mount shows the
 * container's own group as the root, and the named path does not exist there. */
static uint64_t groups_free(const char *root) {
    uint64_t least = UINT64_MAX;
    char path[path_max], line[path_max / 2];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        bool is_v2 = strncmp(line, "0::", 3) == 0;
        const char *v1 = strstr(line, ":memory:");
        if (!is_v2 && !v1) continue;
        char *group = is_v2 ? line + 3 : line + (v1 - line) + strlen(":memory:");
        for (;;) {
            if (strcmp(group, "/") == 0) *group = 0;
            snprintf(path, sizeof path, "%s/sys/fs/cgroup%s%s", root, is_v2 ? "" : "/memory",
                     group);
            least = smaller(
                least, is_v2 ? group_free(path, "memory.max", "memory.current", "inactive_file ")
                             : group_free(path, "memory.limit_in_bytes", "memory.usage_in_bytes",
                                          "total_inactive_file "));
            char *slash = strrchr(group, '/');
            if (!slash) break;
            *slash = 0;
        }
    }
    if (f) fclose(f);
    return least;
}

uint64_t hd_memory_free_bytes(const char *root) {
    char path[path_max];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    uint64_t kib, least = groups_free(root);
    if (read_number(path, "MemAvailable:", &kib)) least = smaller(least, kib * 1024);
    return least == UINT64_MAX ? 0 : least;
}
