/* How much memory this process may still take. */
#ifndef HD_ENGINE_MEMORY_H
#define HD_ENGINE_MEMORY_H

#include <stdint.h>

/* The smallest of MemAvailable (proc_pid(5)) and what every control group above this process
 * leaves (cgroup v2: memory.max - memory.current + inactive_file; v1 likewise); 0 when nothing can
 * be read. root: "" for the host; tests plant files under another one. */
uint64_t hd_memory_free_bytes(const char *root);

#endif
