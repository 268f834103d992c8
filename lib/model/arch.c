/* The architectures that are built in: one row each. */
#include "model/arch.h"

#include <string.h>

static const struct {
    const char *name;
    const hd_arch *arch;
} arches[] = {
    {"deepseek2", &hd_arch_deepseek2},
    {"deepseek", &hd_arch_llama},
    {"llama", &hd_arch_llama},
    {"qwen2", &hd_arch_llama},
};

const hd_arch *hd_arch_find(const char *name) {
    for (size_t i = 0; i < HD_COUNT_OF(arches); i++)
        if (strcmp(name, arches[i].name) == 0) return arches[i].arch;
    return NULL;
}
