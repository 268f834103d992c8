/* The architectures that are built in: one row each. */
#include "model/arch.h"

#include <string.h>

static const hd_arch *const arches[] = {&hd_arch_deepseek2};

const hd_arch *hd_arch_find(const char *name) {
    for (size_t i = 0; i < HD_COUNT_OF(arches); i++)
        if (strcmp(name, arches[i]->name) == 0) return arches[i];
    return NULL;
}
